/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors joined along a dimension, and cut again (into views).
 *
 * Note [A chain of nodes]
 * A node has a few edges, a concatenation any number of inputs. So it is recorded as a chain, two
 * inputs a node, whose third edge leads to the node before and passes dy on untouched:
 *
 *      t0 t1   t2 t3   t4
 *       \|      \|      |
 *      node <- node <- node <- result      no copy is made between them
 */
#include <lockstep/ops.h>

#include "base/assert.h"
#include "tensor/op.h"

#define INPUTS_PER_NODE 2
enum { EDGE_BEFORE = INPUTS_PER_NODE };

typedef struct concat_context {                          /* one node of the chain */
    int64_t outer, row;                                  /* the result is [outer,row] */
    int64_t at[INPUTS_PER_NODE], width[INPUTS_PER_NODE]; /* an input is the columns from `at` on */
} concat_context;

/* Each input's gradient is its columns of dy, copied out. */
static ls_status concat_backward(ls__tensor_rule *r)
{
    const concat_context *c = r->node->context;
    const char *dy = (const char *)r->dy;
    size_t element = ls_dtype_size((ls_dtype)r->node->dtype);
    for (int i = 0; i < INPUTS_PER_NODE; i++) {
        int64_t shape[2] = {c->outer, c->width[i]};
        if (r->in[i].data != NULL && c->outer * c->width[i] > 0) {
            r->k->gather(r->in[i].data, dy + c->at[i] * (int64_t)element,
                         (ls__strided){{c->row, 1}}, 2, shape, element, r->stream);
        }
    }
    return LS_OK;
}

static const ls__op concat_op = {
    .name = "concat", .backward = concat_backward, .passes = 1u << EDGE_BEFORE};

/* Adds tensor `record`, number i, to *shape and *dtype, those of the result so far; sizes must
 * agree in every dimension but `dim`. float32 with bfloat16 make float32. False with
 * call->failed set. */
static bool joins(ls__call *call, ls_shape *shape, ls_dtype *dtype, const ls__record *record, int i,
                  int dim)
{
    bool promoted = ls__carries_gradients(*dtype) && ls__carries_gradients((ls_dtype)record->dtype);
    bool fits = record->ndim == shape->ndim && (record->dtype == *dtype || promoted);
    for (int d = 0; fits && d < shape->ndim; d++) {
        fits = d == dim || record->dim[d] == shape->dim[d];
    }
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "tensor %d is %s %s, but the tensors before it make %s %s; all must "
                            "have one type and agree in every dimension but %d",
                            i, ls_dtype_name((ls_dtype)record->dtype),
                            ls__record_print(record).text, ls_dtype_name(*dtype),
                            ls__shape_print(*shape).text, dim);
        return false;
    }
    shape->dim[dim] += record->dim[dim];
    *dtype = record->dtype == LS_FLOAT32 ? LS_FLOAT32 : *dtype;
    return true;
}

/* The result's shape and type; checks every tensor. */
static bool joined_shape(ls__call *call, const char *name, ls_tensor *const *tensors, int count,
                         int dim, int *at, ls_shape *shape, ls_dtype *dtype)
{
    if (!ls__call_begin(call, name, 1, tensors) || !ls__call_dim(call, dim, at)) {
        return false;
    }
    *dtype = (ls_dtype)call->in[0]->dtype;
    *shape = ls__record_shape(call->in[0]);
    for (int i = 1; i < count; i++) {
        ls__call one;
        if (!ls__call_begin(&one, name, 1, &tensors[i])) {
            call->failed = one.failed;
            return false;
        }
        if (!joins(call, shape, dtype, one.in[0], i, *at)) {
            return false;
        }
    }
    return true;
}

/* Copies input `input` of the call `one` to its columns of the result, which c->at and c->width
 * name by `slot`. */
static void copy_in(ls__call *one, int input, ls__record *out, const concat_context *c, int slot)
{
    size_t element = ls_dtype_size((ls_dtype)out->dtype);
    int64_t shape[2] = {c->outer, c->width[slot]};
    ls__dense from = ls__call_dense(one, input);
    if (from.data != NULL && c->outer * c->width[slot] > 0) {
        char *to = ls__record_data(out) + (size_t)c->at[slot] * element;
        one->k->scatter(to, (ls__strided){{c->row, 1}}, from.data, 2, shape, element, 0.0f,
                        one->stream);
    }
    ls__dense_drop(&from);
}

/* A tensor to join as it is, or its cast where the result is float32 and it is bfloat16; the
 * cast is a node. */
static ls_tensor *typed(ls_tensor *t, ls_dtype dtype)
{
    return ls_dtype_of(t) == dtype ? t : ls_cast(t, dtype);
}

/* The result so far is an input as well, but for the first link. */
static void place(ls__call *one, ls__record *out, int dim, bool first)
{
    one->in[EDGE_BEFORE] = first ? NULL : out;
    one->count = INPUTS_PER_NODE + 1;
    one->grad = one->grad || out->node != NULL; /* of an earlier link */
    one->follows = ls__follows_moves(LS__LINEAR_ALL);
    one->follows.to[dim] = LS__TO_VARYING;
    ls__call_place(one, out);
}

/* Copies tensors [first,first+count) to the columns from `done` on and records their node of the
 * chain, whose result is `out` so far. Returns the columns done, negative after a failure. */
static int64_t add_link(ls__call *call, ls_tensor *const *tensors, int count, ls__record *out,
                        int dim, int64_t done)
{
    ls__call one;
    const ls_dtype dtype = (ls_dtype)out->dtype;
    ls_tensor *in[INPUTS_PER_NODE + 1] = {typed(tensors[0], dtype),
                                          count > 1 ? typed(tensors[1], dtype) : NULL, NULL};
    concat_context c = {.outer = ls__shape_product(out, 0, dim)};
    c.row = ls__shape_product(out, dim, out->ndim);
    if (!ls__call_begin_optional(&one, call->name, INPUTS_PER_NODE, in, 2)) {
        call->failed = one.failed;
        return -1;
    }
    for (int i = 0; i < count; i++) {
        c.at[i] = done;
        c.width[i] = ls__shape_product(one.in[i], dim, one.in[i]->ndim);
        done += c.width[i];
        copy_in(&one, i, out, &c, i);
    }
    LS_ASSERT(done <= c.row);
    const bool first = c.at[0] == 0;
    if (one.grad) {                /* of float32 or bfloat16, then */
        one.in[EDGE_BEFORE] = out; /* its node so far */
        one.count = INPUTS_PER_NODE + 1;
        ls__tensor_node *node = ls__call_record(&one, &concat_op, out, sizeof c);
        if (node != NULL) {
            *(concat_context *)node->context = c;
        }
    }
    if (LS__UNLIKELY(ls__axes_of(one.tensors) != NULL)) {
        place(&one, out, dim, first);
    }
    call->failed = one.failed;
    return one.failed == NULL ? done : -1;
}

/* At least one tensor must be given. */
static bool some_given(ls__call *call, const char *name, ls_tensor *const *tensors, int count)
{
    if (!ls__call_begin(call, name, 0, NULL)) {
        return false;
    }
    if (count < 1) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "%d tensors; give at least one", count);
    } else if (tensors == NULL) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "the array of the %d tensors is NULL", count);
    }
    return call->failed == NULL;
}

/* All tensors are checked before the first is copied, so an error leaves no half-made chain. */
static ls_tensor *concat(const char *name, ls_tensor *const *tensors, int count, int dim)
{
    ls__call call;
    ls_shape shape;
    ls_dtype dtype;
    int at;
    if (!some_given(&call, name, tensors, count) ||
        !joined_shape(&call, name, tensors, count, dim, &at, &shape, &dtype)) {
        return call.failed;
    }
    ls__record *out = ls__call_output(&call, shape, dtype);
    int64_t done = out != NULL ? 0 : -1;
    for (int i = 0; i < count && done >= 0; i += INPUTS_PER_NODE) {
        int some = count - i < INPUTS_PER_NODE ? count - i : INPUTS_PER_NODE;
        done = add_link(&call, tensors + i, some, out, at, done);
    }
    call.count = 0; /* the links have placed the result */
    return ls__call_finish(&call, out);
}

/* As torch.cat. The result is a copy; its memory is written once, input by input. */
ls_tensor *ls_concat(ls_tensor *const *tensors, int count, int dim)
{
    return concat("concat", tensors, count, dim);
}

/* ---- stack -------------------------------------------------------------------------------- */

/* A view of `t` with a dimension of 1 before its dimension `at`. */
static ls_tensor *with_new_dim(ls_tensor *t, int at)
{
    ls_shape shape = ls_shape_of(t);
    if (ls_tensor_status(t) < 0 || shape.ndim == LS_DIMS_MAX || shape.ndim < at) {
        return t; /* concat reports it */
    }
    for (int d = shape.ndim++; d > at; d--) {
        shape.dim[d] = shape.dim[d - 1];
    }
    shape.dim[at] = 1;
    return ls_reshape(t, shape);
}

/* Views with a new dimension of 1 are concatenated along it. */
ls_tensor *ls_stack(ls_tensor *const *tensors, int count, int dim)
{
    ls__call call;
    if (!some_given(&call, "stack", tensors, count) ||
        !ls__call_begin(&call, "stack", 1, tensors)) {
        return call.failed;
    }
    const int ndim = call.in[0]->ndim, at = dim < 0 ? dim + ndim + 1 : dim;
    if (at < 0 || at > ndim || ndim == LS_DIMS_MAX) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "a new dimension %d for %s; give %d to %d, and tensors of at most %d "
                             "dimensions",
                             dim, ls__record_print(call.in[0]).text, -ndim - 1, ndim,
                             LS_DIMS_MAX - 1);
    }
    ls_tensor **views = ls__scope_alloc(call.tensors, (size_t)count * sizeof(ls_tensor *));
    if (views == NULL) {
        return ls__poison(call.tensors);
    }
    for (int i = 0; i < count; i++) {
        views[i] = with_new_dim(tensors[i], at);
    }
    return concat("stack", views, count, at);
}

/* ---- split -------------------------------------------------------------------------------- */

/* Subtracts instead of adding, so that sizes near INT64_MAX cannot overflow. */
static bool sizes_fit(const ls__record *a, int dim, const int64_t *sizes, int count)
{
    int64_t rest = a->dim[dim];
    bool fits = count >= 1 && sizes != NULL;
    for (int i = 0; fits && i < count; i++) {
        fits = sizes[i] >= 0 && sizes[i] <= rest;
        rest -= fits ? sizes[i] : 0;
    }
    return fits && rest == 0;
}

/* The parts are views. From the first failure on every element of out is a poisoned tensor, so
 * callers may use them without a check. */
ls_status ls_split(ls_tensor *a, int dim, const int64_t *sizes, int count, ls_tensor **out)
{
    ls__call call;
    int at = 0;
    int64_t start = 0;
    if (out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "split: the place for the %d parts is NULL; give an array of %d", count,
                        count);
    }
    bool ok = ls__call_begin(&call, "split", 1, &a) && ls__call_dim(&call, dim, &at);
    if (ok && !sizes_fit(call.in[0], at, sizes, count)) {
        (void)ls__call_fail(&call, LS_ERR_INVALID,
                            "%s along dimension %d into %d: give sizes >= 0 that add up to %lld",
                            ls__record_print(call.in[0]).text, at, count,
                            (long long)call.in[0]->dim[at]);
        ok = false;
    }
    for (int i = 0; i < count; i++) {
        out[i] = ok ? ls_slice(a, at, start, start + sizes[i]) : call.failed;
        start += ok ? sizes[i] : 0;
        if (ok && ls_tensor_status(out[i]) < 0) {
            call.failed = out[i];
            ok = false;
        }
    }
    return ok ? LS_OK : ls_tensor_status(call.failed);
}
