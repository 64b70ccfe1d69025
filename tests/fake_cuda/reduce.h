/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of NCCL's types. */
#ifndef FAKE_NCCL_REDUCE_H
#define FAKE_NCCL_REDUCE_H

#include <stddef.h>

enum { FAKE_SUM = 0, FAKE_PROD = 1, FAKE_MAX = 2, FAKE_MIN = 3, FAKE_AVG = 4, FAKE_MADE = 5 };

size_t fake_bytes(int type);
double fake_value(const void *scalar, int type);
/* Of from[0 … ranks-1], in this order. */
void fake_reduce(void *out, const unsigned char *const *from, int ranks, size_t count, int type,
                 int op);
void fake_scale(void *out, const void *in, size_t count, int type, double factor);

#endif
