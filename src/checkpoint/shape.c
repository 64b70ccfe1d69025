/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes and dtypes as files spell them. Everything here may come from a hostile file. */
#include "checkpoint/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/text.h"

static const char *const dtype_names[LS_DTYPE_COUNT] = {
    [LS_FLOAT32] = "F32", [LS_FLOAT64] = "F64", [LS_FLOAT16] = "F16", [LS_BFLOAT16] = "BF16",
    [LS_INT8] = "I8",     [LS_UINT8] = "U8",    [LS_INT32] = "I32",   [LS_INT64] = "I64",
    [LS_BOOL] = "BOOL",   [LS_INT16] = "I16",   [LS_UINT16] = "U16",  [LS_UINT32] = "U32",
    [LS_UINT64] = "U64"};

/* Every dtype of this library has a name there. */
const char *ls__shape_dtype_name(ls_dtype dtype)
{
    return dtype_names[dtype];
}

/* NULL gives false, so a missing JSON field needs no check of its own. */
bool ls__shape_dtype_find(const char *name, ls_dtype *out)
{
    for (int d = 0; name != NULL && d < LS_DTYPE_COUNT; d++) {
        if (strcmp(dtype_names[d], name) == 0) {
            *out = (ls_dtype)d;
            return true;
        }
    }
    return false;
}

/* Dimensions may be hostile. An empty tensor is checked as if its zeros were ones: its other
 * dimensions must not overflow either. */
bool ls__shape_bytes(const int64_t *dim, int ndim, ls_dtype dtype, size_t *out)
{
    int64_t count = 1;
    bool empty = false;
    for (int i = 0; i < ndim; i++) {
        empty = empty || dim[i] == 0;
    }
    for (int i = 0; i < ndim; i++) { /* an empty tensor's other dims must not overflow either */
        if (!ls__mul_int64(count, empty && dim[i] == 0 ? 1 : dim[i], &count)) {
            return false;
        }
    }
    return ls__bytes_of(empty ? 0 : count, ls_dtype_size(dtype), out);
}

/* On failure dim and ndim may be partly written. */
bool ls__shape_read(const json_t *array, int64_t *dim, int *ndim)
{
    if (!json_is_array(array) || json_array_size(array) > LS_DIMS_MAX) {
        return false;
    }
    *ndim = (int)json_array_size(array);
    for (int i = 0; i < *ndim; i++) {
        const json_t *value = json_array_get(array, (size_t)i);
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return false;
        }
        dim[i] = json_integer_value(value);
    }
    return true;
}

json_t *ls__shape_json(const int64_t *dim, int ndim)
{
    json_t *array = json_array();
    for (int i = 0; array != NULL && i < ndim; i++) {
        if (json_array_append_new(array, json_integer(dim[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Truncates rather than overflows. */
const char *ls__shape_text(const int64_t *dim, int ndim, char out[LS__SHAPE_TEXT])
{
    size_t used = 0;
    for (int i = 0; i < ndim && used < LS__SHAPE_TEXT; i++) {
        used += (size_t)snprintf(out + used, LS__SHAPE_TEXT - used, "%c%lld", i ? ',' : '[',
                                 (long long)dim[i]);
    }
    (void)snprintf(out + used, LS__SHAPE_TEXT - used, ndim > 0 ? "]" : "[]");
    return out;
}

const char *ls__shape_box_text(const int64_t *start, const int64_t *dim, int ndim,
                               char out[LS__BOX_TEXT])
{
    ls__text text = {out, LS__BOX_TEXT};
    for (int i = 0; i < ndim; i++) {
        ls__text_add(&text, "%c%lld:%lld", i > 0 ? ',' : '[', (long long)start[i],
                     (long long)(start[i] + dim[i]));
    }
    ls__text_add(&text, ndim > 0 ? "]" : "[]");
    return out;
}
