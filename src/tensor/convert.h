/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion between element types, one element at a time: for casts, fills and printing. */
#ifndef LS_TENSOR_CONVERT_H
#define LS_TENSOR_CONVERT_H

#include <lockstep/types.h>

/* 16-bit floats round to nearest even; integers truncate towards zero and saturate, NaN gives 0;
 * bool is "not zero". */
double ls__convert_load(const void *from, ls_dtype dtype, int64_t index);
void ls__convert_store(void *to, ls_dtype dtype, int64_t index, double value);
void ls__convert_fill(void *to, ls_dtype dtype, int64_t count, double value);
void ls__convert(void *to, ls_dtype to_dtype, const void *from, ls_dtype from_dtype, int64_t count);

#endif
