/* SPDX-License-Identifier: Apache-2.0 */
/* What was chosen for a shape, kept for the next call of that shape: a table of a caller's plans,
 * each with its key, which is compared as bytes, and a bool that says whether it is one. */
#ifndef LS_CUDA_PLANS_H
#define LS_CUDA_PLANS_H

#include <stdbool.h>
#include <stddef.h>

#define LS__CUDA_PLANS 1024
#define LS__CUDA_PLANS_USED_MAX (LS__CUDA_PLANS / 4 * 3) /* a free place is near */

typedef struct ls__cuda_plans {
    void *plans; /* [LS__CUDA_PLANS] */
    size_t plan_bytes, key_bytes, key_at, used_at;
} ls__cuda_plans;

/* The plan of this key, or the free place for one. */
void *ls__cuda_plan_place(const ls__cuda_plans *table, const void *key);

#endif
