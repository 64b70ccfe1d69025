/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a sampler that only the loader uses: the positions of a step's samples. */
#ifndef LS_DATA_SAMPLER_H
#define LS_DATA_SAMPLER_H

#include <lockstep/data.h>

typedef struct ls__sampler_span {
    int64_t first;  /* global position of this rank's first sample, within the epoch */
    int64_t count;  /* this rank's samples */
    int64_t global; /* samples of all ranks in the step */
    int64_t offset; /* of `first` within the step: the step context's sample_offset */
} ls__sampler_span;

/* Note [Positions]
 * A place in the order of samples is (epoch, position), where position counts the samples of this
 * epoch that all ranks together have used. Unlike a step's number it means the same for any number
 * of ranks and any batch, so a loader keeps and saves it. Counted from the epoch's start, positions
 * are multiples of the global batch; after a load at another rank count they need not be, and the
 * rest of the epoch is cut into steps from there. */
/* The step that begins at `position`; `global` is 0 when the epoch has no step left there. */
ls__sampler_span ls__sampler_span_at(const ls_sampler *sampler, int64_t position);
/* The same for another rank. */
ls__sampler_span ls__sampler_span_of(const ls_sampler *sampler, int64_t position, int rank);

typedef enum ls__sampler_order {
    LS__SAMPLER_COMMON = 0, /* the order of samples that all ranks walk through together */
    LS__SAMPLER_OWN = 1     /* this rank's own shuffle of all samples, at the same positions */
} ls__sampler_order;
/* The samples at positions first … first + count - 1. */
void ls__sampler_read(const ls_sampler *sampler, ls__sampler_order order, int64_t epoch,
                      int64_t first, int64_t count, int64_t *indices);
int64_t ls__sampler_count(const ls_sampler *sampler);
int64_t ls__sampler_global_batch(const ls_sampler *sampler);
int64_t ls__sampler_batch(const ls_sampler *sampler);
/* Whether the sampler divides the samples among the ranks of this job, and there are several. */
bool ls__sampler_of_job(const ls_sampler *sampler);
int ls__sampler_rank(const ls_sampler *sampler);
int ls__sampler_ranks(const ls_sampler *sampler);
bool ls__sampler_even(const ls_sampler *sampler);       /* all steps are full */
bool ls__sampler_has_shares(const ls_sampler *sampler); /* ls_sampler_options.batches */
bool ls__sampler_shuffles(const ls_sampler *sampler);
uint64_t ls__sampler_seed(const ls_sampler *sampler);
void ls__sampler_set_seed(ls_sampler *sampler, uint64_t seed);

#endif
