/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of tokens in which some are masked, for masked language modelling (Devlin et al. 2019,
 * section 3.1). */
#ifndef PROGRAMS_MASKED_TOKENS_H
#define PROGRAMS_MASKED_TOKENS_H

#include <lockstep/lockstep.h>

typedef struct masking {
    double share;        /* the share of a window's tokens that are predicted */
    int64_t mask;        /* the mask token */
    int64_t first, last; /* tokens added before and after each window; -1: none */
    int64_t vocab;       /* random tokens are below it */
    uint64_t seed;
} masking;

#define MASKED_NOTHING (-100) /* label of a token that is not predicted */

/* Windows x int32 [n] (of ls_text_dataset_new or ls_tokens_dataset_new) -> x int32 [T], y int32
 * [T], where T is n plus one for each of `first` and `last`. In every window the same number of
 * tokens is predicted, share * n rounded, at least one, so the mean over windows equals the mean
 * over predicted tokens on any number of ranks. y has the original token at these positions; x has
 * the mask at 80 % of them, a random token at 10 % and the original token at 10 %. The tokens mask,
 * `first` and `last` of the data are not predicted unless there are too few others.
 *
 * All choices depend on (seed, epoch, index) only, so they are the same on any rank and after a
 * resume. `get` uses a separate epoch, for evaluation. Takes `windows`, also when it fails. */
ls_status masked_tokens_new(ls_dataset *windows, const masking *m, ls_dataset **out);

/* The number of tokens of a window of n that are predicted. */
int64_t masked_tokens_asked(const masking *m, int64_t n);

#endif
