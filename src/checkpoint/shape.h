/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes and dtypes as files spell them, and products of dims that cannot overflow. */
#ifndef LS_CHECKPOINT_SHAPE_H
#define LS_CHECKPOINT_SHAPE_H

#include <jansson.h>

#include <lockstep/state.h>

/* safetensors' name of a dtype: "F32"; and back, false for one we do not have. */
const char *ls__shape_dtype_name(ls_dtype dtype);
bool ls__shape_dtype_find(const char *name, ls_dtype *out);

/* Bytes of a tensor; false when a dim is negative or the product overflows. */
bool ls__shape_bytes(const int64_t *dim, int ndim, ls_dtype dtype, size_t *out);

/* Reads an array of at most LS_DIMS_MAX non-negative integers; false when it is something else. */
bool ls__shape_read(const json_t *array, int64_t *dim, int *ndim);
json_t *ls__shape_json(const int64_t *dim, int ndim); /* new; NULL without memory */

/* "[2,3]"; for messages. Returns out. */
#define LS__SHAPE_TEXT 192
const char *ls__shape_text(const int64_t *dim, int ndim, char out[LS__SHAPE_TEXT]);
/* "[0:2,3:5]"; for messages. Returns out. */
#define LS__BOX_TEXT 352
const char *ls__shape_box_text(const int64_t *start, const int64_t *dim, int ndim,
                               char out[LS__BOX_TEXT]);

#endif
