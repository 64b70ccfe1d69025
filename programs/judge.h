/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation of a classifier: of images, or of the next token at every position of a window. */
#ifndef PROGRAMS_JUDGE_H
#define PROGRAMS_JUDGE_H

#include <lockstep/lockstep.h>

#include "parallel.h"

typedef struct verdict {
    double loss;  /* mean cross-entropy over the targets */
    double right; /* accuracy: the share of targets that were predicted */
} verdict;

#define JUDGE_NOTHING (-100) /* a target that is ignored, as in ls_cross_entropy */

/* Evaluates the module without its wrapper on the first `samples` of `data` (at most all), `batch`
 * at a time; each replica evaluates a contiguous part, and no graph is recorded. `net` maps x to
 * logits [n,..,classes] for y [n,..], which may contain JUDGE_NOTHING, and is in training mode
 * afterwards. All ranks get the same numbers. Collective. */
ls_status judge(const parallel *ranks, ls_module *net, ls_dataset *data, int64_t samples,
                int64_t batch, verdict *out);

#endif
