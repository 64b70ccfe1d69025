/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing the next token: temperature, top-k and top-p (nucleus sampling, Holtzman et al. 2020).
 */
#ifndef PROGRAMS_SAMPLING_H
#define PROGRAMS_SAMPLING_H

#include <stdint.h>

#include <lockstep/status.h>

typedef struct sampling {
    double temperature; /* logits are divided by it; 0: always the most probable token */
    int64_t top_k;      /* only the k most probable; 0: all */
    double top_p;       /* of these the fewest that reach this probability together; the most
                           probable one is always among them */
} sampling;

typedef struct candidate {
    int32_t token;
    double probability; /* among the candidates: they add up to 1 */
} candidate;

/* Fills out[vocab] with the tokens that may follow, and sets *count to their number. Equally
 * probable tokens are ordered by their ids. A logit of -INFINITY excludes a token. LS_ERR_INVALID
 * when a logit is NaN or infinity, or all tokens are excluded. */
ls_status sampling_candidates(const sampling *s, const float *logits, int64_t vocab, candidate *out,
                              int64_t *count);

/* The candidate at position `uniform` in [0,1) of the cumulative probability. */
int32_t sampling_draw(const candidate *candidates, int64_t count, double uniform);

/* Number `index` of the stream of `seed`, uniform in [0,1): 53 bits. */
double sampling_uniform(uint64_t seed, uint64_t index);

#endif
