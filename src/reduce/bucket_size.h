/* SPDX-License-Identifier: Apache-2.0 */
/* How large buckets are where the caller did not say; see bucket_size.c. */
#ifndef LS_REDUCE_BUCKET_SIZE_H
#define LS_REDUCE_BUCKET_SIZE_H

#include <lockstep/reducer.h>

#include "comm/tune/tune.h"

#define LS__BUCKET_BYTES_MIN ((size_t)1 << 20)
#define LS__BUCKET_BYTES_MAX ((size_t)25 << 20)

/* The cap of the buckets of `bytes` gradients that are summed over this link. */
size_t ls__bucket_size(const ls__tune_link *link, size_t bytes);

/* Whether Lockstep chooses: the caller gave neither a size nor a map, nor a mode without sizes. */
bool ls__bucket_sizes_are_chosen(const ls_reducer *r);
/* Sets domains[].bucket_bytes, once, before the first plan: the caller's size, or one that follows
 * from the domain's link. Local, and the same on all ranks of a domain. LS_ERR_MEMORY */
ls_status ls__bucket_sizes_choose(ls_reducer *r);

#endif
