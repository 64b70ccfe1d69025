/* Judging a classifier: of images, or of the next token at every place of a window. */
#ifndef PROGRAMS_JUDGE_H
#define PROGRAMS_JUDGE_H

#include <lockstep/lockstep.h>

typedef struct verdict {
    double loss;  /* mean cross-entropy of an answer */
    double right; /* share of answers whose best guess is the target */
} verdict;

#define JUDGE_NOTHING (-100) /* a target that nobody asks for, as ls_cross_entropy's */

/* Runs the plain module over the first `samples` of `data` (all, if there are no more), `batch` at
 * a time, each rank a stretch of them; no graph is recorded. `net` maps x to logits [n,..,classes]
 * for y [n,..], which may hold JUDGE_NOTHING, and is left in training mode. All ranks get the same
 * numbers. Collective. */
ls_status judge(ls_module *net, ls_dataset *data, int64_t samples, int64_t batch, verdict *out);

#endif
