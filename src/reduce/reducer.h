/* What DistributedDataParallel needs of the reducer beyond the public calls: tensors know which of
 * their gradients are present, and can be told to live elsewhere. */
#ifndef LS_REDUCE_REDUCER_H
#define LS_REDUCE_REDUCER_H

#include <lockstep/reducer.h>

/* The caller overwrites a gradient that is absent instead of adding to it, so absent ones need no
 * zeroing. Set once, before the first backward. */
void ls__reducer_set_overwrites(ls_reducer *r);

/* ls_reducer_begin, told which gradients hold numbers just now ([count]; NULL: those it knows of).
 */
ls_status ls__reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options,
                            const uint8_t *present);

/* Where the gradient of `param` lives. */
void *ls__reducer_grad(const ls_reducer *r, int param);

/* The layout: bucket and offset in bytes of `param`'s gradient, and the size of a bucket. What lies
 * beside gradients (parameters, optimizer state) is laid out the same way. */
typedef struct ls__reduce_place {
    int bucket;
    size_t offset;
} ls__reduce_place;
ls__reduce_place ls__reducer_place(const ls_reducer *r, int param);
int ls__reducer_buckets(const ls_reducer *r);
size_t ls__reducer_bucket_bytes(const ls_reducer *r, int bucket);

/* Lays the buckets out anew in the order in which rank 0's gradients became ready in the last
 * backward (docs/design.md, D9). Collective; between steps. `moved(arg, param, memory)` is called
 * for each parameter while both old and new memory exist, and must copy what it wants to keep. */
ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg);

/* The group of its operations, a duplicate of the user's, whose order of operations is the
 * reducer's: buckets may be launched from ls__reducer_begin to ls_reducer_wait. */
ls_group *ls__reducer_group(const ls_reducer *r);

/* Fails the reducer's group on all ranks with this cause. */
void ls__reducer_abort(ls_reducer *r, ls_status status, const char *message);

#endif
