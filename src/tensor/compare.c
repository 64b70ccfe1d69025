/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons and logic: two tensors that broadcast, the result of bool. Nothing here is part of
 * a graph: the result is constant almost everywhere. "Greater" is "less" with its operands
 * exchanged, which is right for NaN, too: every comparison with it is false, and only "not
 * equal" is true. */
#include <lockstep/ops.h>

#include "tensor/op.h"

/* No promotion, as everywhere here: comparing int64 with float32 would round silently. False with
 * call->failed set. */
static bool one_type(ls__call *call)
{
    const ls__record *a = call->in[0], *b = call->in[1];
    if (a->dtype == b->dtype && a->dtype != LS_FLOAT16) {
        return true;
    }
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "%s %s with %s %s; both must have one type, any but float16: convert with "
                        "ls_cast",
                        ls_dtype_name((ls_dtype)a->dtype), ls__record_print(a).text,
                        ls_dtype_name((ls_dtype)b->dtype), ls__record_print(b).text);
    return false;
}

/* op(a, b), or op(b, a) where `exchanged`. */
static ls_tensor *compare(const char *name, ls__compare op, bool exchanged, ls_tensor *a,
                          ls_tensor *b)
{
    ls__call call;
    ls_shape shape;
    if (!ls__call_begin(&call, name, 2, (ls_tensor *[]){a, b}) || !ls__call_floats(&call, 3u) ||
        !one_type(&call) || !ls__call_broadcast(&call, &shape)) {
        return call.failed;
    }
    const ls__record *x = call.in[exchanged ? 1 : 0], *y = call.in[exchanged ? 0 : 1];
    ls__record *out = ls__call_output(&call, shape, LS_BOOL);
    if (out != NULL && out->numel > 0) {
        const ls__comparison args = {.op = op,
                                     .dtype = (ls_dtype)x->dtype,
                                     .a = ls__record_data(x),
                                     .b = ls__record_data(y),
                                     .a_strides = ls__shape_expand(x, shape),
                                     .b_strides = ls__shape_expand(y, shape),
                                     .ndim = shape.ndim,
                                     .shape = shape.dim,
                                     .out = (uint8_t *)ls__record_data(out)};
        call.k->compare(&args, call.stream);
    }
    call.follows = LS__ELEMENTWISE(NOT);
    return ls__call_finish(&call, out);
}

ls_tensor *ls_eq(ls_tensor *a, ls_tensor *b)
{
    return compare("eq", LS__COMPARE_EQ, false, a, b);
}

ls_tensor *ls_ne(ls_tensor *a, ls_tensor *b)
{
    return compare("ne", LS__COMPARE_NE, false, a, b);
}

ls_tensor *ls_lt(ls_tensor *a, ls_tensor *b)
{
    return compare("lt", LS__COMPARE_LT, false, a, b);
}

ls_tensor *ls_le(ls_tensor *a, ls_tensor *b)
{
    return compare("le", LS__COMPARE_LE, false, a, b);
}

/* a > b is b < a, also for NaN. */
ls_tensor *ls_gt(ls_tensor *a, ls_tensor *b)
{
    return compare("gt", LS__COMPARE_LT, true, a, b);
}

/* a >= b is b <= a, also for NaN. */
ls_tensor *ls_ge(ls_tensor *a, ls_tensor *b)
{
    return compare("ge", LS__COMPARE_LE, true, a, b);
}

ls_tensor *ls_logical_and(ls_tensor *a, ls_tensor *b)
{
    return compare("logical_and", LS__COMPARE_AND, false, a, b);
}

ls_tensor *ls_logical_or(ls_tensor *a, ls_tensor *b)
{
    return compare("logical_or", LS__COMPARE_OR, false, a, b);
}

/* a == 0, the zero in the type of a. */
ls_tensor *ls_logical_not(ls_tensor *a)
{
    ls__call call;
    if (!ls__call_begin(&call, "logical_not", 1, &a)) {
        return call.failed;
    }
    return compare(call.name, LS__COMPARE_EQ, false, a,
                   ls_zeros(LS_SCALAR, (ls_dtype)call.in[0]->dtype));
}
