/* SPDX-License-Identifier: Apache-2.0 */
/* Feeding from rank 0: it reads a step's samples of all ranks, and each rank gets its block.
 *
 *     rank 0's slot   [ rank 0's | rank 1's | rank 2's ]      in memory that its host's ranks can
 *                         |           \           \           read in place
 *                      its batch     rank 1's    rank 2's
 *
 * The scatter runs in ls_loader_next, over a group of its own: every rank takes part once a step,
 * wherever rank 0's thread is in reading ahead.
 */
#ifndef LS_DATA_SCATTER_H
#define LS_DATA_SCATTER_H

#include <lockstep/data.h>

typedef struct ls__scatter ls__scatter;

/* Collective over the world: compares the batches of the ranks' data sets and samplers; a
 * difference is LS_ERR_MISMATCH on all ranks. Borrows the sampler, which must be of this job's
 * ranks. */
ls_status ls__scatter_new(const ls_dataset *dataset, const ls_sampler *sampler, ls__scatter **out);
/* Collective unless it has failed. */
void ls__scatter_free(ls__scatter *scatter);
/* Whether this rank reads for all. */
bool ls__scatter_root(const ls__scatter *scatter);

/* Zeroed memory for a batch: rank 0's for all ranks. */
ls_status ls__scatter_alloc(ls__scatter *scatter, size_t bytes, uint8_t **out);
void ls__scatter_dealloc(ls__scatter *scatter, uint8_t *memory);

/* The step at `position`: x and y hold all samples of it on rank 0, and then this rank's. */
ls_status ls__scatter_run(ls__scatter *scatter, int64_t position, uint8_t *x, uint8_t *y);
/* Rank 0 could not read: the others get `why`. */
void ls__scatter_abort(ls__scatter *scatter, const char *why);

#endif
