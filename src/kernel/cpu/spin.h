/* SPDX-License-Identifier: Apache-2.0 */
/* How long OpenMP's idle threads spin before they sleep. */
#ifndef LS_KERNEL_CPU_SPIN_H
#define LS_KERNEL_CPU_SPIN_H

#include "base/env.h"

typedef struct ls__spin_limit ls__spin_limit;

/* Bounds the spinning of a process whose kernels use `threads` threads, until it is freed. NULL
 * where nothing is to be done (one thread, the user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT, not
 * GNU's OpenMP) or can be. */
ls__spin_limit *ls__spin_limit_new(const ls__env *env, int threads);
void ls__spin_limit_free(const ls__env *env, ls__spin_limit *limit); /* NULL is allowed */

#endif
