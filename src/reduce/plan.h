/* The layout of buckets; see plan.c. */
#ifndef LS_REDUCE_PLAN_H
#define LS_REDUCE_PLAN_H

#include "reduce/internal.h"

/* Lays buckets out for gradients that become ready in `order`, with memory of zeros. */
ls_status ls__plan_make(ls_reducer *r, const int *order, uint32_t version, ls__reduce_plan *out);
void ls__plan_release(ls_reducer *r, ls__reduce_plan *plan);

/* Where the gradient of `param` lives. */
void *ls__reducer_grad(const ls_reducer *r, int param);

/* The layout: bucket and offset in bytes of `param`'s gradient, and the size of a bucket.
 * Parameters and optimizer state are laid out the same way. */
typedef struct ls__reduce_place {
    int bucket;
    size_t offset;
} ls__reduce_place;
ls__reduce_place ls__reducer_place(const ls_reducer *r, int param);
int ls__reducer_buckets(const ls_reducer *r);
size_t ls__reducer_bucket_bytes(const ls_reducer *r, int bucket);

/* Lays the buckets out anew in the order in which rank 0's gradients became ready in the last
 * backward (docs/design.md, D9). Collective; between steps. `moved(arg, param, memory)` is called
 * for each parameter while both old and new memory exist, and must copy the numbers it wants to
 * keep. */
ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg);

#endif
