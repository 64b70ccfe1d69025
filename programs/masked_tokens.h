/* Windows of tokens in which some are masked, for a model that says what was there (Devlin et al.
 * 2019, section 3.1). */
#ifndef PROGRAMS_MASKED_TOKENS_H
#define PROGRAMS_MASKED_TOKENS_H

#include <lockstep/lockstep.h>

typedef struct masking {
    double share;        /* of a window's tokens that are asked for */
    int64_t mask;        /* the token that hides another */
    int64_t first, last; /* tokens put before and behind each window; -1: none */
    int64_t vocab;       /* random tokens are below it */
    uint64_t seed;
} masking;

#define MASKED_NOTHING (-100) /* label of a token that is not asked for */

/* Of windows x int32 [n] (as ls_text_dataset_new and ls_tokens_dataset_new give) -> x int32 [T], y int32 [T]; T is
 * n and a place for each of `first` and `last`. In every window the same number of tokens is asked
 * for, share * n rounded, at least one, so a mean over windows is the mean over what is asked for,
 * however windows are dealt out. y has what was there; x has the mask in 80 % of these places, a
 * random token in 10 %, what was there in 10 %. The mask, `first` and `last` are not asked for
 * where the data holds them, unless there is too little else.
 *
 * All is drawn by (seed, epoch, index): the same for any rank, and after a resume. `get` draws as
 * an epoch of its own, for what is judged. Takes `windows`, also when it fails. */
ls_status masked_tokens_new(ls_dataset *windows, const masking *m, ls_dataset **out);

/* How many tokens of a window of n are asked for. */
int64_t masked_tokens_asked(const masking *m, int64_t n);

#endif
