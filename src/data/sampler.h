/* What the loader needs of a sampler beyond the public calls: where a step's samples lie. */
#ifndef LS_DATA_SAMPLER_H
#define LS_DATA_SAMPLER_H

#include <lockstep/data.h>

typedef struct ls__sampler_span {
    int64_t first;  /* global position of this rank's first sample, within the epoch */
    int64_t count;  /* this rank's samples */
    int64_t global; /* samples of all ranks in the step */
    int64_t offset; /* of `first` within the step: the step context's sample_offset */
} ls__sampler_span;

ls__sampler_span ls__sampler_span_of(const ls_sampler *sampler, int64_t step);
int64_t ls__sampler_batch(const ls_sampler *sampler);
uint64_t ls__sampler_seed(const ls_sampler *sampler);
void ls__sampler_set_seed(ls_sampler *sampler, uint64_t seed);

#endif
