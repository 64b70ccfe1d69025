/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons of two operands of any type but the 16-bit floats, element by element with
 * broadcasting: out[i] = op(a[i], b[i]), 0 or 1. As in IEEE 754 every comparison with NaN is
 * false but "not equal". */
#include "kernel/ref/ref.h"

/* Element i as a long double, which holds every number of every type here where it has the 64
 * bits of an int64 or uint64, as on x86-64. */
long double ls__ref_load(const void *from, ls_dtype dtype, int64_t i)
{
    switch (dtype) {
    case LS_FLOAT32:
        return (long double)((const float *)from)[i];
    case LS_FLOAT64:
        return (long double)((const double *)from)[i];
    case LS_FLOAT16:
        return (long double)ls__float16_widen(((const uint16_t *)from)[i]);
    case LS_BFLOAT16:
        return (long double)ls__bfloat16_widen(((const ls__bfloat16 *)from)[i]);
    case LS_INT8:
        return (long double)((const int8_t *)from)[i];
    case LS_UINT8:
        return (long double)((const uint8_t *)from)[i];
    case LS_BOOL:
        return (long double)(((const uint8_t *)from)[i] != 0);
    case LS_INT32:
        return (long double)((const int32_t *)from)[i];
    case LS_INT64:
        return (long double)((const int64_t *)from)[i];
    case LS_INT16:
        return (long double)((const int16_t *)from)[i];
    case LS_UINT16:
        return (long double)((const uint16_t *)from)[i];
    case LS_UINT32:
        return (long double)((const uint32_t *)from)[i];
    case LS_UINT64:
        return (long double)((const uint64_t *)from)[i];
    default:
        return 0.0L;
    }
}

/* long double holds every int64 and every float64 exactly, so one function compares all types. */
static bool holds(ls__compare op, long double a, long double b)
{
    switch (op) {
    case LS__COMPARE_EQ:
        return a == b;
    case LS__COMPARE_NE:
        return a != b;
    case LS__COMPARE_LT:
        return a < b;
    case LS__COMPARE_LE:
        return a <= b;
    case LS__COMPARE_AND:
        return a != 0.0L && b != 0.0L;
    case LS__COMPARE_OR:
        return a != 0.0L || b != 0.0L;
    case LS__COMPARE_COUNT:
        break;
    }
    return false;
}

/* Element by element with broadcasting strides; out is contiguous, 0 or 1. */
void ls__ref_compare(const ls__comparison *c, ls_stream *stream)
{
    (void)stream;
    const int64_t count = ls__ref_count(c->ndim, c->shape);
    int64_t at[LS__KERNEL_DIMS_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        const long double a =
            ls__ref_load(c->a, c->dtype, ls__ref_offset(at, c->a_strides, c->ndim));
        const long double b =
            ls__ref_load(c->b, c->dtype, ls__ref_offset(at, c->b_strides, c->ndim));
        c->out[i] = holds(c->op, a, b);
        ls__ref_next(at, c->ndim, c->shape);
    }
}
