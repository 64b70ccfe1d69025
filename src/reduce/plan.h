/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of gradients; see plan.c. */
#ifndef LS_REDUCE_PLAN_H
#define LS_REDUCE_PLAN_H

#include "reduce/internal.h"

/* Lays gradients that become ready in `order` out in regions of zeros, bucket by bucket. */
ls_status ls__plan_make(ls_reducer *r, const int *order, uint32_t version, ls__reduce_plan *out);
void ls__plan_release(ls_reducer *r, ls__reduce_plan *plan);

/* Where the gradient of `param` lives. */
void *ls__reducer_grad(const ls_reducer *r, int param);
/* Whether it is there: shared with autograd and optimizers, until the reducer is freed. */
bool *ls__reducer_present(ls_reducer *r, int param);

/* The layout: region and offset in bytes of `param`'s gradient, and a region's size and group.
 * Parameters and optimizer state are laid out the same way. */
typedef struct ls__reduce_place {
    int region;
    size_t offset;
} ls__reduce_place;
ls__reduce_place ls__reducer_place(const ls_reducer *r, int param);
int ls__reducer_regions(const ls_reducer *r);
size_t ls__reducer_region_bytes(const ls_reducer *r, int region);
ls_group *ls__reducer_region_group(const ls_reducer *r, int region);
ls_dtype ls__reducer_region_dtype(const ls_reducer *r, int region);

/* Lays gradients out anew in the order in which those of each domain's rank 0 became ready in the
 * last backward (docs/design.md, D9). Collective; between steps. `moved(arg, param, memory)` is
 * called for each parameter while both old and new memory exist, and must copy the numbers it wants
 * to keep. */
ls_status ls__reducer_replan(ls_reducer *r, void (*moved)(void *arg, int param, void *memory),
                             void *arg);

/* The buckets are laid out anew: their scratch memory goes. */
void ls__plan_forget_scratch(ls_reducer *r, ls__reduce_plan *plan);

#endif
