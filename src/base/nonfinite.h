/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory holds NaN or infinity. */
#ifndef LS_BASE_NONFINITE_H
#define LS_BASE_NONFINITE_H

#include <lockstep/types.h>

/* The first element in [from, to) that is not finite; -1: all are, as integers always are. */
int64_t ls__nonfinite_find(const void *at, ls_dtype dtype, int64_t from, int64_t to);

#endif
