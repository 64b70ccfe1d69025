/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the element types and reduction operators, and the caller's place in the
 * user's program.
 *
 * The tables are indexed by the pinned enumerators; a value that came from a file or a peer may be
 * anything, so every lookup checks its range first.
 */
#include <lockstep/types.h>

#include "base/runtime.h"

typedef struct dtype_row {
    const char *name;
    size_t size;
} dtype_row;

static const dtype_row dtypes[LS_DTYPE_COUNT] = {
    [LS_FLOAT32] = {"float32", 4},   [LS_FLOAT64] = {"float64", 8}, [LS_FLOAT16] = {"float16", 2},
    [LS_BFLOAT16] = {"bfloat16", 2}, [LS_INT8] = {"int8", 1},       [LS_UINT8] = {"uint8", 1},
    [LS_INT32] = {"int32", 4},       [LS_INT64] = {"int64", 8},     [LS_BOOL] = {"bool", 1},
    [LS_INT16] = {"int16", 2},       [LS_UINT16] = {"uint16", 2},   [LS_UINT32] = {"uint32", 4},
    [LS_UINT64] = {"uint64", 8},
};

static const char *const reduce_ops[LS_REDUCE_OP_COUNT] = {
    [LS_SUM] = "sum", [LS_PRODUCT] = "product", [LS_MIN] = "min",
    [LS_MAX] = "max", [LS_AVG] = "avg",         [LS_BAND] = "band",
    [LS_BOR] = "bor", [LS_BXOR] = "bxor",       [LS_PREMUL_SUM] = "premul_sum",
};

/* 0 for a value that is not an element type. */
size_t ls_dtype_size(ls_dtype dtype)
{
    unsigned row = (unsigned)dtype;
    return row < LS_DTYPE_COUNT ? dtypes[row].size : 0;
}

const char *ls_dtype_name(ls_dtype dtype)
{
    unsigned row = (unsigned)dtype;
    return row < LS_DTYPE_COUNT ? dtypes[row].name : "invalid";
}

const char *ls_reduce_op_name(ls_reduce_op op)
{
    unsigned row = (unsigned)op;
    if (row >= LS_REDUCE_OP_USER && row <= LS_REDUCE_OP_USER_LAST) {
        return "user-defined";
    }
    return row < LS_REDUCE_OP_COUNT ? reduce_ops[row] : "invalid";
}

/* Called by the macros of the public headers; `file` must be a string literal, for it is kept. */
void ls_site_set(const char *file, int line)
{
    ls__self.file = file;
    ls__self.line = line;
}
