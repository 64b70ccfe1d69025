/* SPDX-License-Identifier: Apache-2.0 */
/* Elements and slices chosen by index. Indices are checked before a kernel follows them.
 *
 *     gather_dim    y[i] = a[i'],      i' = i with i'[dim] = index[i]; gradient: da[i'] += dy[i]
 *     scatter_add   y = a, y[i'] += src[i]; gradient: da = dy, dsrc[i] = dy[i']
 *     index_select  y[..,j,..] = a[..,index[j],..]; gradient: sums, as an embedding's
 *     index_add     y = a, y[..,index[j],..] += src[..,j,..]; gradient: dsrc[..,j,..] =
 *                   dy[..,index[j],..]
 *
 * Sums of elements that fall together are taken in order of the index, so they are reproducible. */
#include <lockstep/ops.h>

#include "base/assert.h"
#include "tensor/indices.h"

/* ---- element by element: gather_dim, scatter_add ------------------------------------------ */

enum { EDGE_A, EDGE_INDEX, EDGE_SRC };
enum { SAVED_INDEX };

typedef struct pick_context {
    int ndim, dim;              /* of the index; the dimension that it chooses along */
    int64_t shape[LS_DIMS_MAX]; /* of the index */
    size_t index_bytes;
    ls__strided indexed, plain; /* of a, and of the operand of the index' shape; row-major */
    int64_t a_numel, plain_numel;
} pick_context;

/* Row-major strides for a shape, whatever the record's own are: operands are read through
 * row-major copies where they do not lie so. */
static ls__strided dense_strides(const ls__record *in)
{
    ls__strided out = {{0}};
    int64_t stride = 1;
    for (int d = in->ndim - 1; d >= 0; d--) {
        out.stride[d] = stride;
        stride *= in->dim[d];
    }
    return out;
}

/* The geometry of a call, row-major for all operands: everything backward needs, so that it does
 * not look at tensors that may be gone. */
static void context_fill(pick_context *c, const ls__record *a, const ls__record *index,
                         const ls__record *plain, int dim)
{
    c->ndim = index->ndim;
    c->dim = dim;
    for (int d = 0; d < index->ndim; d++) {
        c->shape[d] = index->dim[d];
    }
    c->index_bytes = ls_dtype_size((ls_dtype)index->dtype);
    c->indexed = dense_strides(a);
    c->plain = dense_strides(plain);
    c->a_numel = a->numel;
    c->plain_numel = plain->numel;
}

/* The part of the kernel's arguments that both directions share; callers add the two sides. */
static ls__pick arguments(const pick_context *c, const void *index)
{
    LS_ASSERT(c->dim >= 0 && c->dim < c->ndim);
    return (ls__pick){.ndim = c->ndim,
                      .dim = c->dim,
                      .shape = c->shape,
                      .index = index,
                      .index_bytes = c->index_bytes};
}

/* Gathers along the dimension: to[i] = from[index[i]], elements of `bytes`; `to` has the index'
 * shape and `from` that of a. */
static void pick(ls__pool *on, const pick_context *c, const void *index, void *to, const void *from,
                 size_t bytes)
{
    ls__pick args = arguments(c, index);
    args.bytes = bytes;
    args.from = from;
    args.from_strides = c->indexed;
    args.to = to;
    args.to_strides = c->plain;
    on->k->pick(&args, on->stream);
}

/* Adds along the dimension: to[index[i]] += from[i], in the order of i; `to` has the shape of a. */
static void put_add(ls__pool *on, const pick_context *c, const void *index, float *to,
                    const float *from)
{
    ls__pick args = arguments(c, index);
    args.bytes = sizeof(float);
    args.from = from;
    args.from_strides = c->plain;
    args.to = to;
    args.to_strides = c->indexed;
    on->k->put_add(&args, on->stream);
}

/* da[i'] += dy[i] in order of i, so an element that was picked twice gets the sum of both
 * gradients. Cleared first unless it accumulates. */
static ls_status gather_backward(ls__tensor_rule *r)
{
    const pick_context *c = r->node->context;
    if (r->in[EDGE_A].beta == 0.0f) {
        r->k->fill(r->in[EDGE_A].data, c->a_numel, 0.0f, r->stream);
    }
    put_add(r->on, c, r->saved[SAVED_INDEX], r->in[EDGE_A].data, r->dy);
    return LS_OK;
}

/* da is dy itself, which the engine hands on (`passes`); dsrc[i] = dy[i']. Elements of src that
 * no index uses get nothing. */
static ls_status scatter_backward(ls__tensor_rule *r)
{
    const pick_context *c = r->node->context;
    if (r->in[EDGE_SRC].data != NULL) {
        r->k->fill(r->in[EDGE_SRC].data, c->plain_numel, 0.0f, r->stream);
        pick(r->on, c, r->saved[SAVED_INDEX], r->in[EDGE_SRC].data, r->dy, sizeof(float));
    }
    return LS_OK;
}

static const ls__op gather_op = {
    .name = "gather_dim", .backward = gather_backward, .accumulates = true};
static const ls__op scatter_op = {
    .name = "scatter_add", .backward = scatter_backward, .passes = 1u << EDGE_A};

/* Checks dimension, index and shapes: sizes of the index must not exceed a's except along the
 * dimension. The other operands' types are checked by the callers. *at is the dimension counted
 * from the left. False with call->failed set. */
static bool picks(ls__call *call, int dim, int *at)
{
    const ls__record *a = call->in[EDGE_A], *index = call->in[EDGE_INDEX];
    if (!ls__call_dim(call, dim, at) || !ls__call_index(call, EDGE_INDEX)) {
        return false;
    }
    bool fits = index->ndim == a->ndim;
    for (int d = 0; fits && d < a->ndim; d++) {
        fits = d == *at || index->dim[d] <= a->dim[d];
    }
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "%s by index %s along dimension %d: the index must have as many "
                            "dimensions, and none longer but that one",
                            ls__record_print(a).text, ls__record_print(index).text, *at);
    }
    return fits;
}

/* As torch.gather: y[i] = a[i'] with i'[dim] = index[i]; the index has the output's shape. A copy,
 * so of any type; what ls__call_floats does not widen has no gradient. */
ls_tensor *ls_gather_dim(ls_tensor *a, int dim, ls_tensor *index)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, "gather_dim", 2, (ls_tensor *[]){a, index}) ||
        !ls__call_floats(&call, 1u << EDGE_A) || !picks(&call, dim, &at)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_A], *ids = call.in[EDGE_INDEX];
    ls__dense from = ls__call_dense(&call, EDGE_A), chosen = ls__call_dense(&call, EDGE_INDEX);
    ls__record *out = NULL;
    pick_context c = {0};
    if (ls__call_indices(&call, EDGE_INDEX, &chosen, in->dim[at], false)) {
        out = ls__call_output(&call, ls__record_shape(ids), (ls_dtype)in->dtype);
    }
    if (out != NULL) {
        context_fill(&c, in, ids, out, at);
        pick(call.on, &c, chosen.data, ls__record_data(out), from.data,
             ls_dtype_size((ls_dtype)in->dtype));
    }
    ls__tensor_node *node = ls__call_record(&call, &gather_op, out, sizeof c);
    if (node != NULL) {
        *(pick_context *)node->context = c;
        ls__node_save(node, SAVED_INDEX, &chosen);
    }
    ls__dense_drop(&from);
    ls__dense_drop(&chosen);
    call.follows = LS__ROWS(1u << at, FIRST);
    return ls__call_finish(&call, out);
}

/* src must be as large as the index or larger in every dimension, as in torch.scatter_add; the
 * rest of it is not read. False with call->failed set. */
static bool adds(ls__call *call)
{
    const ls__record *a = call->in[EDGE_A];
    if (a->dtype != LS_FLOAT32) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "argument 1 is %s %s; it takes float32 or bfloat16: convert with "
                            "ls_cast",
                            ls_dtype_name((ls_dtype)a->dtype), ls__record_print(a).text);
        return false;
    }
    const ls__record *index = call->in[EDGE_INDEX], *src = call->in[EDGE_SRC];
    bool fits = src->dtype == LS_FLOAT32 && src->ndim == index->ndim;
    for (int d = 0; fits && d < index->ndim; d++) {
        fits = index->dim[d] <= src->dim[d];
    }
    if (!fits) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID,
            "src %s of %s by index %s: src must be float32 or bfloat16 with as many "
            "dimensions as the index, none shorter",
            ls__record_print(src).text, ls_dtype_name((ls_dtype)src->dtype),
            ls__record_print(index).text);
    }
    return fits;
}

/* The result of ls_scatter_add: a copy of the input, because the result is a new tensor, with
 * src added. NULL after a failure. */
static ls__record *scatter(ls__call *call, pick_context *c, int at, const ls__dense *chosen)
{
    const ls__record *in = call->in[EDGE_A], *src = call->in[EDGE_SRC];
    ls__dense added = ls__call_dense(call, EDGE_SRC);
    ls__record *out = ls__call_output(call, ls__record_shape(in), LS_FLOAT32);
    if (out != NULL) {
        float *to = ls__record_floats(out);
        call->k->gather(to, ls__record_data(in), ls__record_strided(in), in->ndim, in->dim,
                        sizeof(float), call->stream);
        context_fill(c, in, call->in[EDGE_INDEX], src, at);
        put_add(call->on, c, chosen->data, to, added.data);
    }
    ls__dense_drop(&added);
    return out;
}

/* As torch.scatter_add. Indices may repeat; their values are added in order, so the sum is
 * reproducible. */
ls_tensor *ls_scatter_add(ls_tensor *a, int dim, ls_tensor *index, ls_tensor *src)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, "scatter_add", 3, (ls_tensor *[]){a, index, src}) ||
        !ls__call_floats(&call, 1u << EDGE_A | 1u << EDGE_SRC) || !picks(&call, dim, &at) ||
        !adds(&call)) {
        return call.failed;
    }
    ls__dense chosen = ls__call_dense(&call, EDGE_INDEX);
    ls__record *out = NULL;
    pick_context c = {0};
    if (ls__call_indices(&call, EDGE_INDEX, &chosen, call.in[EDGE_A]->dim[at], false)) {
        out = scatter(&call, &c, at, &chosen);
    }
    ls__tensor_node *node = ls__call_record(&call, &scatter_op, out, sizeof c);
    if (node != NULL) {
        *(pick_context *)node->context = c;
        ls__node_save(node, SAVED_INDEX, &chosen);
    }
    ls__dense_drop(&chosen);
    call.follows = LS__ROWS(1u << at, NOT);
    return ls__call_finish(&call, out);
}

/* ---- whole slices: index_select ----------------------------------------------------------- */

/* [outer,n,inner] by index [count] -> [outer,count,inner]: an embedding for each of outer. */
typedef struct select_context {
    int64_t outer, n, inner, count;
    size_t index_bytes; /* 4 or 8 */
} select_context;

static ls__lookup lookup_of(const select_context *c, const void *index)
{
    return (ls__lookup){.index = index,
                        .index_bytes = c->index_bytes,
                        .count = c->count,
                        .dim = c->inner,
                        .vocab = c->n};
}

/* Each of `outer` is a table of its own: its rows at the index, one after the other. */
static void read_rows(ls__pool *on, const select_context *c, const void *index, float *to,
                      const float *from)
{
    const ls__lookup at = lookup_of(c, index);
    for (int64_t i = 0; i < c->outer; i++) {
        on->k->embedding(to + i * c->count * c->inner, from + i * c->n * c->inner, &at, on->stream);
    }
}

/* The reverse: rows that are named twice get the sum, in order of the index. */
static void add_rows(ls__pool *on, const select_context *c, const void *index, float *to,
                     const float *from)
{
    const ls__lookup at = lookup_of(c, index);
    for (int64_t i = 0; i < c->outer; i++) {
        on->k->embedding_backward(to + i * c->n * c->inner, from + i * c->count * c->inner, &at,
                                  on->stream);
    }
}

/* da [outer,n,inner] from dy [outer,count,inner]. */
static ls_status select_backward(ls__tensor_rule *r)
{
    const select_context *c = r->node->context;
    float *da = r->in[EDGE_A].data;
    if (r->in[EDGE_A].beta == 0.0f) {
        r->k->fill(da, c->outer * c->n * c->inner, 0.0f, r->stream);
    }
    add_rows(r->on, c, r->saved[SAVED_INDEX], da, r->dy);
    return LS_OK;
}

static const ls__op select_op = {
    .name = "index_select", .backward = select_backward, .accumulates = true};

static bool select_begin(ls__call *call, const char *name, int count, ls_tensor *const *inputs,
                         int dim, int *at)
{
    const unsigned floats = 1u << EDGE_A | (count > EDGE_SRC ? 1u << EDGE_SRC : 0u);
    if (!ls__call_begin(call, name, count, inputs) || !ls__call_floats(call, floats) ||
        !ls__call_index(call, EDGE_INDEX) || !ls__call_dim(call, dim, at)) {
        return false;
    }
    const ls__record *in = call->in[EDGE_A], *ids = call->in[EDGE_INDEX];
    if (in->dtype != LS_FLOAT32 || ids->ndim != 1) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "%s of %s by index %s; it takes float32 or bfloat16 and an index of "
                            "one dimension",
                            ls__record_print(in).text, ls_dtype_name((ls_dtype)in->dtype),
                            ls__record_print(ids).text);
    }
    return call->failed == NULL;
}

static select_context select_of(const ls__call *call, int at)
{
    const ls__record *in = call->in[EDGE_A], *ids = call->in[EDGE_INDEX];
    return (select_context){.outer = ls__shape_product(in, 0, at),
                            .n = in->dim[at],
                            .inner = ls__shape_product(in, at + 1, in->ndim),
                            .count = ids->numel,
                            .index_bytes = ls_dtype_size((ls_dtype)ids->dtype)};
}

static void select_record(ls__call *call, const ls__op *op, ls__record *out,
                          const select_context *c, const ls__dense *chosen)
{
    ls__tensor_node *node = ls__call_record(call, op, out, sizeof *c);
    if (node != NULL) {
        *(select_context *)node->context = *c;
        ls__node_save(node, SAVED_INDEX, chosen);
    }
}

/* As torch.index_select: one index for all rows, where ls_gather_dim has one for each element. */
ls_tensor *ls_index_select(ls_tensor *a, int dim, ls_tensor *index)
{
    ls__call call;
    int at;
    if (!select_begin(&call, select_op.name, 2, (ls_tensor *[]){a, index}, dim, &at)) {
        return call.failed;
    }
    const select_context c = select_of(&call, at);
    ls_shape shape = ls__record_shape(call.in[EDGE_A]);
    shape.dim[at] = c.count;
    ls__dense from = ls__call_dense(&call, EDGE_A), chosen = ls__call_dense(&call, EDGE_INDEX);
    ls__record *out = ls__call_indices(&call, EDGE_INDEX, &chosen, c.n, false)
                          ? ls__call_output(&call, shape, LS_FLOAT32)
                          : NULL;
    if (out != NULL) {
        read_rows(call.on, &c, chosen.data, ls__record_floats(out), from.data);
    }
    select_record(&call, &select_op, out, &c, &chosen);
    ls__dense_drop(&from);
    ls__dense_drop(&chosen);
    call.follows = ls__follows_moves(LS__LINEAR_FIRST);
    call.follows.to[at] = LS__TO_WHOLE;
    return ls__call_finish(&call, out);
}

/* ---- and their sums: index_add ------------------------------------------------------------ */

/* da is dy itself, which the engine hands on (`passes`). */
static ls_status add_backward(ls__tensor_rule *r)
{
    if (r->in[EDGE_SRC].data != NULL) {
        read_rows(r->on, r->node->context, r->saved[SAVED_INDEX], r->in[EDGE_SRC].data, r->dy);
    }
    return LS_OK;
}

static const ls__op add_op = {
    .name = "index_add", .backward = add_backward, .passes = 1u << EDGE_A};

/* src has the shape of `a` but along `at`, where it has as many rows as the index has numbers. */
static bool adds_rows(ls__call *call, int at)
{
    const ls__record *a = call->in[EDGE_A], *ids = call->in[EDGE_INDEX];
    const ls__record *src = call->in[EDGE_SRC];
    bool fits = src->dtype == LS_FLOAT32 && src->ndim == a->ndim;
    for (int d = 0; fits && d < a->ndim; d++) {
        fits = src->dim[d] == (d == at ? ids->numel : a->dim[d]);
    }
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "src %s of %s for %s by index %s along dimension %d: src must be "
                            "float32 or bfloat16 of that shape, with as many rows as the index",
                            ls__record_print(src).text, ls_dtype_name((ls_dtype)src->dtype),
                            ls__record_print(a).text, ls__record_print(ids).text, at);
    }
    return fits;
}

/* As torch.index_add. */
ls_tensor *ls_index_add(ls_tensor *a, int dim, ls_tensor *index, ls_tensor *src)
{
    ls__call call;
    int at;
    if (!select_begin(&call, add_op.name, 3, (ls_tensor *[]){a, index, src}, dim, &at) ||
        !adds_rows(&call, at)) {
        return call.failed;
    }
    const select_context c = select_of(&call, at);
    const ls__record *in = call.in[EDGE_A];
    ls__dense added = ls__call_dense(&call, EDGE_SRC), chosen = ls__call_dense(&call, EDGE_INDEX);
    ls__record *out = ls__call_indices(&call, EDGE_INDEX, &chosen, c.n, false)
                          ? ls__call_output(&call, ls__record_shape(in), LS_FLOAT32)
                          : NULL;
    if (out != NULL) {
        call.k->gather(ls__record_floats(out), ls__record_data(in), ls__record_strided(in),
                       in->ndim, in->dim, sizeof(float), call.stream);
        add_rows(call.on, &c, chosen.data, ls__record_floats(out), added.data);
    }
    select_record(&call, &add_op, out, &c, &chosen);
    ls__dense_drop(&added);
    ls__dense_drop(&chosen);
    call.follows = LS__ROWS(1u << at, NOT);
    return ls__call_finish(&call, out);
}
