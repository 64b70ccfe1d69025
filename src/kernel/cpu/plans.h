/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: objects that a library makes once for each shape and that are used many times.
 *
 * A table per runtime, bounded: the plan used longest ago makes room. Whoever takes a plan has it
 * alone until it is given back, so a plan may hold memory handles; a second thread that comes
 * meanwhile is refused and makes one for itself.
 */
#ifndef LS_KERNEL_CPU_PLANS_H
#define LS_KERNEL_CPU_PLANS_H

#include "kernel/kernels.h"

/* ResNet-152 needs some 100. One takes some 10 KB and what oneDNN makes. */
#define LS__PLANS_MAX 512
#define LS__PLAN_KEY 24

/* Keys of convolutions end with 0, others with their kind. */
enum { LS__PLAN_CONV2D, LS__PLAN_GEMM_BF16 };

typedef struct ls__plan_key { /* equal keys, equal plans; unused ones are 0 */
    int64_t at[LS__PLAN_KEY];
} ls__plan_key;

typedef struct ls__plan_kind {
    size_t bytes;
    bool (*make)(void *plan, const void *arg); /* in zeroed memory; false: cannot be */
    void (*fini)(void *plan);
} ls__plan_kind;

/* The plan of `key`, made by kind->make(plan, arg) where it does not exist yet. NULL: another
 * thread has it, it cannot be made, or memory is out. */
void *ls__plans_take(ls__plans *plans, const ls__plan_key *key, const ls__plan_kind *kind,
                     const void *arg);
void ls__plans_give(ls__plans *plans, void *plan);

#endif
