/* SPDX-License-Identifier: Apache-2.0 */
/* Integers: arithmetic of indices, and counts. The program computes these itself, element by
 * element: they are small beside the tensors that they index. Results are those of the type, so
 * sums and products that exceed it wrap around, as in PyTorch; sums are int64. Nothing here is part
 * of a graph. */
#include "tensor/integers.h"

#include <string.h>

#include <lockstep/ops.h>

#include "base/assert.h"
#include "tensor/convert.h"
#include "tensor/indices.h"

#define INTEGER_TYPES(X)                                                                           \
    X(LS_INT8, int8_t)                                                                             \
    X(LS_UINT8, uint8_t)                                                                           \
    X(LS_INT16, int16_t)                                                                           \
    X(LS_UINT16, uint16_t)                                                                         \
    X(LS_INT32, int32_t)                                                                           \
    X(LS_UINT32, uint32_t)                                                                         \
    X(LS_INT64, int64_t)                                                                           \
    X(LS_UINT64, uint64_t)

static bool is_integer(ls_dtype dtype)
{
#define CASE(name, type) dtype == name ||
    return INTEGER_TYPES(CASE) false;
#undef CASE
}

/* Of uint64 the same bits. */
static int64_t load(const void *from, ls_dtype dtype, int64_t i)
{
    switch (dtype) {
#define CASE(name, type)                                                                           \
    case name:                                                                                     \
        return (int64_t)((const type *)from)[i];
        INTEGER_TYPES(CASE)
#undef CASE
    default: /* bool */
        return ((const uint8_t *)from)[i] != 0;
    }
}

static void store(void *to, ls_dtype dtype, int64_t i, int64_t value)
{
    switch (dtype) {
#define CASE(name, type)                                                                           \
    case name:                                                                                     \
        ((type *)to)[i] = (type)value;                                                             \
        break;
        INTEGER_TYPES(CASE)
#undef CASE
    default:
        LS_ASSERT(false);
    }
}

/* ---- elements where the program reads and writes them ------------------------------------- */

typedef struct work { /* an operation's row-major operands and its result */
    ls__dense in[2], stage;
    ls__host_view view[2];
    ls__record *out;
} work;

/* Reads the inputs. False after a failure, as work_make; work_end must follow. */
static bool work_begin(ls__call *call, work *w)
{
    *w = (work){.out = NULL};
    for (int i = 0; i < call->count && call->failed == NULL; i++) {
        const ls__record *in = call->in[i];
        const size_t bytes = (size_t)in->numel * ls_dtype_size((ls_dtype)in->dtype);
        w->in[i] = ls__call_dense(call, i);
        if (w->in[i].data != NULL &&
            ls__host_view_open(call->on, w->in[i].data, bytes, &w->view[i]) < 0) {
            call->failed = ls__poison(call->tensors);
        }
    }
    return call->failed == NULL;
}

static bool work_make(ls__call *call, ls_shape shape, ls_dtype dtype, work *w)
{
    w->out = ls__call_output(call, shape, dtype);
    w->stage = ls__call_stage(call, w->out);
    return call->failed == NULL;
}

static ls_tensor *work_end(ls__call *call, work *w)
{
    for (int i = 0; i < call->count; i++) {
        ls__host_view_close(&w->view[i], false);
        ls__dense_drop(&w->in[i]);
    }
    ls__call_staged(call, w->out, &w->stage);
    return ls__call_finish(call, w->out);
}

/* ---- arithmetic --------------------------------------------------------------------------- */

bool ls__call_integers(const ls__call *call)
{
    for (int i = 0; i < call->count; i++) {
        if (!is_integer((ls_dtype)call->in[i]->dtype)) {
            return false;
        }
    }
    return true;
}

/* Rounded down. The quotient of the least int64 by -1 wraps around. */
static int64_t floor_quotient(int64_t a, int64_t b)
{
    if (b == -1) {
        return (int64_t)(0 - (uint64_t)a);
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static int64_t apply(ls__integer_op op, bool wide_unsigned, int64_t a, int64_t b)
{
    const uint64_t x = (uint64_t)a, y = (uint64_t)b;
    const bool less = wide_unsigned ? x < y : a < b;
    switch (op) {
    case LS__INTEGER_ADD:
        return (int64_t)(x + y);
    case LS__INTEGER_SUB:
        return (int64_t)(x - y);
    case LS__INTEGER_MUL:
        return (int64_t)(x * y);
    case LS__INTEGER_MAX:
        return less ? b : a;
    case LS__INTEGER_MIN:
        return less ? a : b;
    case LS__INTEGER_FLOOR_DIV:
        return wide_unsigned ? (int64_t)(x / y) : floor_quotient(a, b);
    case LS__INTEGER_REMAINDER:
        return wide_unsigned ? (int64_t)(x % y) : (int64_t)(x - (uint64_t)floor_quotient(a, b) * y);
    }
    return 0;
}

/* Steps through row-major elements of `in` where the result goes on by one; 0 where it repeats. */
static ls__strided steps(const ls__record *in, ls_shape shape)
{
    ls__strided out = {{0}};
    int64_t stride = 1;
    for (int d = shape.ndim - 1, from = in->ndim - 1; from >= 0; d--, from--) {
        out.stride[d] = in->dim[from] == 1 ? 0 : stride;
        stride *= in->dim[from];
    }
    return out;
}

/* Moves to the next element of the result; *a and *b are the places in the operands. */
static void step(ls_shape shape, const ls__strided strides[2], int64_t *at, int64_t place[2])
{
    for (int d = shape.ndim - 1; d >= 0; d--) {
        place[0] += strides[0].stride[d];
        place[1] += strides[1].stride[d];
        if (++at[d] < shape.dim[d]) {
            return;
        }
        place[0] -= strides[0].stride[d] * at[d];
        place[1] -= strides[1].stride[d] * at[d];
        at[d] = 0;
    }
}

/* The first element of the result whose divisor is 0; -1: none is. */
static int64_t combine(ls__integer_op op, const ls__call *call, ls_shape shape, const work *w)
{
    const ls_dtype dtype = (ls_dtype)call->in[0]->dtype;
    const ls__strided strides[2] = {steps(call->in[0], shape), steps(call->in[1], shape)};
    int64_t at[LS_DIMS_MAX] = {0}, place[2] = {0, 0};
    for (int64_t i = 0; i < w->out->numel; i++) {
        const int64_t a = load(w->view[0].data, dtype, place[0]);
        const int64_t b = load(w->view[1].data, dtype, place[1]);
        if (b == 0 && (op == LS__INTEGER_FLOOR_DIV || op == LS__INTEGER_REMAINDER)) {
            return i;
        }
        store(w->stage.data, dtype, i, apply(op, dtype == LS_UINT64, a, b));
        step(shape, strides, at, place);
    }
    return -1;
}

ls_tensor *ls__integers_combine(ls__call *call, ls__integer_op op)
{
    const ls__record *x = call->in[0], *y = call->in[1];
    ls_shape shape;
    work w;
    if (x->dtype != y->dtype) {
        return ls__call_fail(call, LS_ERR_INVALID,
                             "%s %s with %s %s; integers must have one type: convert with ls_cast",
                             ls_dtype_name((ls_dtype)x->dtype), ls__record_print(x).text,
                             ls_dtype_name((ls_dtype)y->dtype), ls__record_print(y).text);
    }
    if (!ls__call_broadcast(call, &shape)) {
        return call->failed;
    }
    if (work_begin(call, &w) && work_make(call, shape, (ls_dtype)x->dtype, &w)) {
        const int64_t zero = combine(op, call, shape, &w);
        if (zero >= 0) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "the divisor of element %lld of %s is 0; give other numbers",
                                (long long)zero, ls__shape_print(shape).text);
        }
    }
    return work_end(call, &w);
}

static ls_tensor *divided(const char *name, ls__integer_op op, ls_tensor *a, ls_tensor *b)
{
    ls__call call;
    if (!ls__call_begin(&call, name, 2, (ls_tensor *[]){a, b})) {
        return call.failed;
    }
    if (!ls__call_integers(&call)) {
        return ls__call_fail(
            &call, LS_ERR_INVALID,
            "%s %s with %s %s; it takes integers of one type: ls_div divides "
            "float32, and ls_cast converts",
            ls_dtype_name((ls_dtype)call.in[0]->dtype), ls__record_print(call.in[0]).text,
            ls_dtype_name((ls_dtype)call.in[1]->dtype), ls__record_print(call.in[1]).text);
    }
    call.follows = LS__ELEMENTWISE(NOT);
    return ls__integers_combine(&call, op);
}

/* Rounded towards minus infinity (torch.div with rounding_mode="floor"). */
ls_tensor *ls_floor_div(ls_tensor *a, ls_tensor *b)
{
    return divided("floor_div", LS__INTEGER_FLOOR_DIV, a, b);
}

/* With the sign of b (torch.remainder). */
ls_tensor *ls_remainder(ls_tensor *a, ls_tensor *b)
{
    return divided("remainder", LS__INTEGER_REMAINDER, a, b);
}

ls_tensor *ls__integers_with(ls__call *call, ls__integer_op op, double number)
{
    const ls_dtype dtype = (ls_dtype)call->in[0]->dtype;
    const ls__record *in = call->in[0];
    int64_t held = 0;
    work w;
    ls__convert_store(&held, dtype, 0, number);
    const int64_t b = load(&held, dtype, 0);
    const double above = dtype == LS_UINT64 ? 0x1p64 : 0x1p63;
    if ((dtype == LS_UINT64 ? (double)(uint64_t)b : (double)b) != number || number >= above) {
        return ls__call_fail(call, LS_ERR_INVALID,
                             "%s %s and %.15g, which %s does not hold; give one that it does, or "
                             "ls_cast the tensor",
                             ls_dtype_name(dtype), ls__record_print(in).text, number,
                             ls_dtype_name(dtype));
    }
    if (work_begin(call, &w) && work_make(call, ls__record_shape(in), dtype, &w)) {
        for (int64_t i = 0; i < in->numel; i++) {
            store(w.stage.data, dtype, i,
                  apply(op, dtype == LS_UINT64, load(w.view[0].data, dtype, i), b));
        }
    }
    return work_end(call, &w);
}

/* ---- sums --------------------------------------------------------------------------------- */

bool ls__call_counts(const ls__call *call)
{
    return call->in[0]->dtype == LS_BOOL || is_integer((ls_dtype)call->in[0]->dtype);
}

/* The place in the result of the element at `at`: dimensions that are summed over do not count. */
static int64_t place_of(const ls__record *in, const uint8_t *keep, const int64_t *at)
{
    int64_t place = 0;
    for (int d = 0; d < in->ndim; d++) {
        place = keep[d] ? place * in->dim[d] + at[d] : place;
    }
    return place;
}

ls_tensor *ls__integers_sum(ls__call *call, const uint8_t *keep, ls_shape shape)
{
    const ls__record *in = call->in[0];
    const ls_shape whole = ls__record_shape(in);
    const ls__strided none[2] = {{{0}}, {{0}}};
    int64_t at[LS_DIMS_MAX] = {0}, place[2] = {0, 0};
    work w;
    if (work_begin(call, &w) && work_make(call, shape, LS_INT64, &w)) {
        int64_t *sum = w.stage.data;
        memset(sum, 0, (size_t)w.out->numel * sizeof *sum);
        for (int64_t i = 0; i < in->numel; i++) {
            int64_t *to = &sum[place_of(in, keep, at)];
            const uint64_t more = (uint64_t)load(w.view[0].data, (ls_dtype)in->dtype, i);
            *to = (int64_t)((uint64_t)*to + more);
            step(whole, none, at, place);
        }
    }
    return work_end(call, &w);
}

ls_tensor *ls__integers_cumsum(ls__call *call, int dim)
{
    const ls__record *in = call->in[0];
    const int64_t n = in->dim[dim], inner = ls__shape_product(in, dim + 1, in->ndim);
    work w;
    if (work_begin(call, &w) && work_make(call, ls__record_shape(in), LS_INT64, &w)) {
        int64_t *sum = w.stage.data;
        for (int64_t i = 0; i < in->numel; i++) {
            const uint64_t before = i / inner % n > 0 ? (uint64_t)sum[i - inner] : 0;
            sum[i] = (int64_t)(before + (uint64_t)load(w.view[0].data, (ls_dtype)in->dtype, i));
        }
    }
    return work_end(call, &w);
}

/* ---- counts and places -------------------------------------------------------------------- */

ls_tensor *ls_bincount(ls_tensor *index, int64_t bins)
{
    ls__call call;
    work w;
    if (!ls__call_begin(&call, "bincount", 1, &index) || !ls__call_index(&call, 0)) {
        return call.failed;
    }
    if (bins < 0) {
        return ls__call_fail(&call, LS_ERR_INVALID, "%lld bins; give at least 0", (long long)bins);
    }
    if (work_begin(&call, &w) && ls__call_indices(&call, 0, &w.in[0], bins, false) &&
        work_make(&call, LS_SHAPE(bins), LS_INT64, &w)) {
        const ls__record *in = call.in[0];
        int64_t *count = w.stage.data;
        memset(count, 0, (size_t)bins * sizeof *count);
        for (int64_t i = 0; i < in->numel; i++) {
            count[load(w.view[0].data, (ls_dtype)in->dtype, i)]++;
        }
    }
    call.follows = LS__REDUCES(~0u, false, SUM);
    call.follows.linear = LS__LINEAR_NOT;
    return work_end(&call, &w);
}

/* NaN counts as well. */
static bool is_set(const work *w, ls_dtype dtype, int64_t i)
{
    return ls__convert_load(w->view[0].data, dtype, i) != 0.0;
}

/* The coordinates of element i, the digits of i. */
static void put_place(int64_t *out, ls_shape shape, int64_t i)
{
    for (int d = shape.ndim - 1; d >= 0; d--) {
        out[d] = i % shape.dim[d];
        i /= shape.dim[d];
    }
}

/* How many there are is known only when the elements have been read. */
ls_tensor *ls_nonzero(ls_tensor *a)
{
    ls__call call;
    work w;
    if (!ls__call_begin(&call, "nonzero", 1, &a)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    const ls_dtype dtype = (ls_dtype)in->dtype;
    int64_t count = 0;
    const bool read = work_begin(&call, &w);
    for (int64_t i = 0; i < in->numel && read; i++) {
        count += is_set(&w, dtype, i);
    }
    if (read && work_make(&call, LS_SHAPE(count, in->ndim), LS_INT64, &w)) {
        int64_t *to = w.stage.data;
        for (int64_t i = 0; i < in->numel; i++) {
            if (is_set(&w, dtype, i)) {
                put_place(to, ls__record_shape(in), i);
                to += in->ndim;
            }
        }
    }
    return work_end(&call, &w);
}
