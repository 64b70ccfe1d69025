/* SPDX-License-Identifier: Apache-2.0 */
/* Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1; shared key heads: Ainslie et
 * al. 2023), flash-style: the kernel keeps no T x S matrix.
 *
 *   q [B,H,T,D], k and v [B,G,S,D], H a multiple of G; mask broadcasts to [B,H,T,S]
 *   o = dropout(softmax(scale q k^T + mask)) v      [B,H,T,D], scale 1/sqrt(D) unless given
 *   lse [B,H,T] = log of the softmax's denominator, from which backward recomputes the weights
 *
 * The formulas of the gradients stand in kernel/ref/attention.c.
 *
 * Note [No copies around attention]
 * q, k and v are usually slices of one product [B,T,3,H,D] and o goes on as [B,T,C], so the
 * kernel reads q, k, v where they lie and o is laid out as [B,T,H,D] (seen as [B,H,T,D]). In the
 * other direction the kernel writes dq, dk, dv with the strides of q, k, v, hence straight into
 * the gradient of the tensor they are views of: one edge to that base takes the place of three.
 * This needs views that do not overlap, which `apart` proves; else operands are copied first. */
#include <math.h>
#include <string.h>

#include <lockstep/ops.h>

#include "base/assert.h"
#include "base/options.h"
#include "tensor/attention.h"
#include "tensor/half.h"
#include "tensor/rng_stream.h"

enum { SAVED_Q, SAVED_K, SAVED_V, SAVED_O, SAVED_LSE, SAVED_MASK };

typedef struct attention_context {
    ls__attention args; /* geometry only; pointers are filled in when it runs */
    int edge[3];        /* which edge dq, dk, dv go to */
    int64_t at[3];      /* from where in it */
    bool fill[3];       /* edge i is not covered: zero first */
    int64_t numel[3];   /* of edge i's gradient */
} attention_context;

typedef struct operand { /* q, k or v, as the kernel reads it */
    ls__dense held;      /* a reference to its memory; dropped after the call */
    int64_t b, h, t;     /* strides of batch, head and time, in elements */
    bool copied; /* the memory is a row-major copy, so its gradient takes an edge of its own */
} operand;

/* Operand i with its strides, and a reference to its memory, which the caller drops. Heads may
 * lie anywhere, since the kernel takes their strides; only the elements of a row must be
 * neighbours. `copy` asks for a row-major copy all the same. */
static operand operand_of(ls__call *call, int i, bool copy)
{
    const ls__record *in = call->in[i];
    operand o = {.copied = copy || (in->dim[3] != 1 && in->stride[3] != 1)};
    if (o.copied) {
        o.held = ls__call_dense(call, i);
        o.t = in->dim[3];
        o.h = in->dim[2] * o.t;
        o.b = in->dim[1] * o.h;
        return o;
    }
    o.held = ls__dense_of_output(in);
    o.held.argument = i + 1;
    o.held.leaf = in->node != NULL && ls__node_is_leaf(in->node) ? in->node : NULL;
    o.b = in->stride[0];
    o.h = in->stride[1];
    o.t = in->stride[2];
    return o;
}

/* Whether two equally strided views, b `delta` elements behind a, share none. Inner dims span a
 * block in each; both blocks must fit within the stride of the next dim outwards. */
static bool apart(const ls__record *a, const ls__record *b, int64_t delta)
{
    int64_t span_a = 1, span_b = 1;
    bool used[LS_DIMS_MAX] = {false};
    for (int n = 0; n <= a->ndim; n++) {
        int inner = -1; /* the smallest stride not yet used */
        for (int d = 0; d < a->ndim; d++) {
            bool spans = !used[d] && (a->dim[d] > 1 || b->dim[d] > 1);
            if (spans && (inner < 0 || a->stride[d] < a->stride[inner])) {
                inner = d;
            }
        }
        if (span_a <= delta && (inner < 0 || delta + span_b <= a->stride[inner])) {
            return true;
        }
        if (inner < 0) {
            return false;
        }
        used[inner] = true;
        span_a += (a->dim[inner] - 1) * a->stride[inner];
        span_b += (b->dim[inner] - 1) * a->stride[inner];
    }
    return false;
}

/* Whether gradients of a and b can be written beside each other: they go to different bases, or
 * are views of one base, equally strided, that share no element. */
static bool disjoint(const ls__record *a, const ls__record *b)
{
    if (a->node == NULL || a->node != b->node) {
        return true;
    }
    if (memcmp(a->stride, b->stride, sizeof a->stride) != 0) {
        return false;
    }
    return a->offset < b->offset ? apart(a, b, b->offset - a->offset)
                                 : apart(b, a, a->offset - b->offset);
}

/* The forward arguments with the pointers of this backward call; strides are those of the saved
 * operands. All memory stays the rule's. */
static ls__attention arguments(const attention_context *c, ls__tensor_rule *r)
{
    ls__attention a = c->args;
    a.q = r->saved[SAVED_Q];
    a.k = r->saved[SAVED_K];
    a.v = r->saved[SAVED_V];
    a.o = (float *)(uintptr_t)r->saved[SAVED_O]; /* read only in backward */
    a.lse = (float *)(uintptr_t)r->saved[SAVED_LSE];
    a.mask = r->saved[SAVED_MASK];
    a.d_o = r->dy;
    return a;
}

/* Bytes of an element of q, k, v, o and their gradients, which all have one type. */
static size_t element_of(const ls__attention *a)
{
    return a->half ? sizeof(ls__bfloat16) : sizeof(float);
}

/* Where operand i's gradient is written; scratch where no gradient is wanted. */
static void *gradient_at(const attention_context *c, ls__tensor_rule *r, int i, void *scratch)
{
    const ls__gradient *to = c->edge[i] >= 0 ? &r->in[c->edge[i]] : NULL;
    if (to == NULL || to->data == NULL) {
        return scratch;
    }
    return (char *)to->data + c->at[i] * (int64_t)element_of(&c->args);
}

/* Elements from the first to behind the last of operand i, which has gaps where it is a view: so
 * much memory a gradient with the same strides takes. */
static int64_t span_of(const attention_context *c, int i)
{
    const ls__attention *a = &c->args;
    int64_t b = i == 0 ? a->q_b : i == 1 ? a->k_b : a->v_b;
    int64_t h = i == 0 ? a->q_h : i == 1 ? a->k_h : a->v_h;
    int64_t t = i == 0 ? a->q_t : i == 1 ? a->k_t : a->v_t;
    int64_t heads = i == 0 ? a->heads : a->kv_heads, time = i == 0 ? a->time : a->keys;
    return (a->batch - 1) * b + (heads - 1) * h + (time - 1) * t + a->dim;
}

/* Without queries or without keys there is nothing to compute. */
static bool is_empty(const ls__attention *a)
{
    return a->batch * a->heads * a->time * a->dim == 0 || a->keys == 0;
}

/* dq, dk and dv from dy [B,T,H,D] and what was saved, each overwritten (beta 0). The kernel
 * always writes all three; those that are not wanted go to one spare buffer of the largest span.
 * An edge to a base that its views do not cover is cleared first. */
static ls_status attention_backward(ls__tensor_rule *r)
{
    const attention_context *c = r->node->context;
    bool empty = is_empty(&c->args);
    int64_t spare = 0;
    for (int i = 0; i < 3; i++) {
        bool wanted = c->edge[i] >= 0 && r->in[c->edge[i]].data != NULL;
        int64_t span = wanted || empty ? 0 : span_of(c, i);
        spare = span > spare ? span : spare;
        if (r->in[i].data != NULL && (c->fill[i] || empty)) {
            r->k->zero(r->in[i].data, (size_t)c->numel[i] * element_of(&c->args), r->stream);
        }
    }
    if (empty) { /* maybe views of something that is not */
        return LS_OK;
    }
    ls__attention a = arguments(c, r);
    ls__storage *work = ls__storage_new(r->on, r->k->attention_workspace(&a, true) + 64);
    ls__storage *scratch = ls__storage_new(r->on, (size_t)spare * element_of(&a));
    ls_status status = LS_OK;
    if (work != NULL && scratch != NULL) {
        a.workspace = work->data;
        a.dq = gradient_at(c, r, 0, scratch->data);
        a.dk = gradient_at(c, r, 1, scratch->data);
        a.dv = gradient_at(c, r, 2, scratch->data);
        r->k->attention_backward(&a, r->stream);
    } else {
        status = ls__self.status;
    }
    ls__storage_unref(work);
    ls__storage_unref(scratch);
    return status;
}

static const ls__op attention_op = {.name = "attention", .backward = attention_backward};

/* Replaces the three edges that ls__call_record made by whole-base ones where the kernel writes
 * in place, merging those to the same base: edge i then has no target and c->edge[i] names the
 * one that stands for it. `covered` counts the elements that views write in each base; the
 * others are to be cleared. */
static void merge_edges(const ls__call *call, ls__tensor_node *node, const operand o[3])
{
    attention_context *c = node->context;
    int64_t covered[3] = {0};
    for (int i = 0; i < 3; i++) {
        ls__edge *edge = &node->edge[i];
        const ls__record *in = call->in[i];
        c->edge[i] = edge->to != NULL ? i : -1;
        c->at[i] = 0;
        if (edge->to == NULL || o[i].copied) {
            c->numel[i] = covered[i] = in->numel;
            continue;
        }
        c->at[i] = in->offset - edge->to->offset;
        LS_ASSERT(c->at[i] >= 0); /* a view begins within its base */
        c->numel[i] = edge->to->numel;
        edge->geometry = NULL;
        for (int j = 0; j < i; j++) {
            if (node->edge[j].to == edge->to && !o[j].copied && c->edge[i] == i) {
                c->edge[i] = j;
                ls__node_unref(edge->to);
                edge->to = NULL;
            }
        }
        covered[c->edge[i]] += in->numel;
    }
    for (int i = 0; i < 3; i++) {
        c->fill[i] = covered[i] < c->numel[i];
    }
}

/* Sizes and strides of the kernel's arguments; the checks of shapes are done. */
static void geometry(ls__attention *a, const ls__call *call, const operand o[3])
{
    const ls__record *q = call->in[0], *k = call->in[1];
    *a = (ls__attention){.batch = q->dim[0],
                         .heads = q->dim[1],
                         .kv_heads = k->dim[1],
                         .time = q->dim[2],
                         .keys = k->dim[2],
                         .dim = q->dim[3],
                         .q = o[0].held.data,
                         .k = o[1].held.data,
                         .v = o[2].held.data,
                         .q_b = o[0].b,
                         .q_h = o[0].h,
                         .q_t = o[0].t,
                         .k_b = o[1].b,
                         .k_h = o[1].h,
                         .k_t = o[1].t,
                         .v_b = o[2].b,
                         .v_h = o[2].h,
                         .v_t = o[2].t,
                         .o_b = q->dim[2] * q->dim[1] * q->dim[3],
                         .o_h = q->dim[3],
                         .o_t = q->dim[1] * q->dim[3]};
}

/* The settings of a call, beyond its operands. */
typedef struct request {
    bool causal;           /* query t sees keys 0 … t + S - T */
    double dropout, scale; /* scale 0: 1/sqrt(D) */
    ls__record *given;     /* the mask as the caller gave it; NULL: none */
    ls__dense mask;        /* its elements; storage NULL: none */
    ls__strided mask_strides;
} request;

/* Fills in what the options add: scale, mask and dropout. Takes this call's position in the
 * stream for dropout, so it must run once a call. */
static void apply(ls__attention *a, const ls__call *call, const request *asked)
{
    a->causal = asked->causal;
    a->scale = (float)(asked->scale != 0.0 ? asked->scale : 1.0 / sqrt((double)a->dim));
    a->mask = asked->mask.data;
    a->m_b = asked->mask_strides.stride[0];
    a->m_h = asked->mask_strides.stride[1];
    a->m_t = asked->mask_strides.stride[2];
    if (asked->dropout > 0.0) {
        ls__record weights = {.ndim = 4, .dim = {a->batch, a->heads, a->time, a->keys}};
        weights.numel = ls__shape_product(&weights, 0, 4);
        weights.place = call->in[0]->place; /* heads and queries are those of q */
        int64_t strides[4];
        const ls__rng_stream stream =
            ls__rng_stream_next(call->tensors->runtime, LS__RNG_DROPOUT, &weights, strides);
        a->dropout = asked->dropout;
        a->seed = stream.seed;
        a->stream_id = stream.id;
        a->varies = stream.varies;
        a->first = stream.first;
        a->w_b = strides[0], a->w_h = strides[1], a->w_t = strides[2];
    }
}

/* Makes the node and saves q, k, v, the output, lse and the mask, from which backward recomputes
 * the weights. Nothing is saved when no gradient is wanted. */
static void record(ls__call *call, const ls__attention *a, const operand o[3], ls__record *out,
                   const ls__dense *lse, const ls__dense *mask)
{
    ls__tensor_node *node = ls__call_record(call, &attention_op, out, sizeof(attention_context));
    if (node == NULL) {
        return;
    }
    attention_context *c = node->context;
    c->args = *a;
    merge_edges(call, node, o);
    for (int i = 0; i < 3; i++) {
        ls__node_save(node, i, &o[i].held);
    }
    ls__dense result = ls__dense_of_output(out);
    ls__node_save(node, SAVED_O, &result);
    ls__dense_drop(&result);
    ls__node_save(node, SAVED_LSE, lse);
    ls__node_save(node, SAVED_MASK, mask);
}

/* The operation itself; the operands are checked, the request is valid. The result is made as
 * [B,T,H,D] and returned as its view [B,H,T,D]. Drops asked->mask. */
static ls_tensor *attend(ls__call *call, request *asked)
{
    const ls__record *in = call->in[0];
    bool copy = !disjoint(in, call->in[1]) || !disjoint(in, call->in[2]) ||
                !disjoint(call->in[1], call->in[2]);
    operand o[3];
    for (int i = 0; i < 3; i++) {
        o[i] = operand_of(call, i, copy && call->grad);
    }
    ls_shape laid_out = {4, {in->dim[0], in->dim[2], in->dim[1], in->dim[3]}};
    int64_t rows = in->dim[0] * in->dim[1] * in->dim[2];
    ls__dense lse = ls__call_memory(call, (size_t)rows * sizeof(float));
    ls__attention a;
    geometry(&a, call, o);
    apply(&a, call, asked);
    a.half = in->dtype == LS_BFLOAT16;
    ls__dense work = ls__call_memory(call, call->k->attention_workspace(&a, false) + 64);
    ls__record *out = ls__call_output(call, laid_out, (ls_dtype)in->dtype);
    if (out != NULL && !is_empty(&a)) {
        a.o = ls__record_floats(out);
        a.lse = lse.data;
        a.workspace = work.data;
        call->k->attention(&a, call->stream);
    } else if (out != NULL) {
        call->k->zero(ls__record_data(out), (size_t)out->numel * element_of(&a), call->stream);
    }
    record(call, &a, o, out, &lse, &asked->mask);
    for (int i = 0; i < 3; i++) {
        ls__dense_drop(&o[i].held);
    }
    ls__dense_drop(&lse);
    ls__dense_drop(&work);
    ls__dense_drop(&asked->mask);
    call->in[LS__PLACE_MASK] = asked->given; /* its placement counts, too */
    call->count += asked->given != NULL;
    call->follows = (ls__follows){.how = LS__FOLLOW_ATTENDS,
                                  .over = asked->causal ? LS__TO_WHOLE : LS__TO_VARYING};
    return ls_transpose(ls__call_finish(call, out), 1, 2);
}

/* Takes q, k and v as they are where all are bfloat16, else as float32. False with call->failed
 * set where a type is neither. */
static bool operands_fit(ls__call *call)
{
    bool halves = true;
    for (int i = 0; i < 3; i++) {
        halves = halves && call->in[i]->dtype == LS_BFLOAT16;
    }
    return halves || ls__call_float32(call);
}

/* q [B,H,T,D], k and v [B,G,S,D]: query heads share key heads in groups, so H must be a multiple
 * of G. False with call->failed set. */
static bool shapes_fit(ls__call *call, bool causal)
{
    const ls__record *q = call->in[0], *k = call->in[1];
    bool fits = q->ndim == 4 && k->ndim == 4 && ls__shape_equal(k, call->in[2]) &&
                q->dim[0] == k->dim[0] && q->dim[3] == k->dim[3] &&
                (k->dim[1] > 0 ? q->dim[1] % k->dim[1] == 0 : q->dim[1] == 0);
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "q %s, k %s, v %s; q must be [B,H,T,D], k and v [B,G,S,D] with H a "
                            "multiple of G",
                            ls__record_print(q).text, ls__record_print(k).text,
                            ls__record_print(call->in[2]).text);
        return false;
    }
    if (causal && k->dim[2] < q->dim[2]) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "causal with %lld queries and %lld keys: the last query sees the last "
                            "key, so there must be at least as many keys",
                            (long long)q->dim[2], (long long)k->dim[2]);
        return false;
    }
    return true;
}

/* The comparison is written so that NaN fails it. False with call->failed set. */
static bool numbers_fit(ls__call *call, const ls_attention_options *o)
{
    if (!(o->dropout >= 0.0 && o->dropout <= 1.0)) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "dropout is %g; give a probability from 0 to 1",
                            o->dropout);
        return false;
    }
    if (!isfinite(o->scale)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "scale is %g; give a finite number, or 0 for 1/sqrt(D)", o->scale);
        return false;
    }
    return true;
}

/* Fills asked->mask with a reference to the mask's memory, whose strides are those of [B,H,T,S]
 * (0 where it repeats); each row of S keys lies in order. False with call->failed set. */
static bool read_mask(ls__call *call, ls_tensor *mask, request *asked)
{
    ls__call one;
    const ls__record *q = call->in[0], *k = call->in[1];
    ls_shape seen = {4, {q->dim[0], q->dim[1], q->dim[2], k->dim[2]}}, both;
    if (!ls__call_begin(&one, call->name, 1, &mask)) {
        call->failed = one.failed;
        return false;
    }
    asked->given = one.in[0];
    if (!ls__call_floats(&one, 1)) {
        call->failed = one.failed;
        return false;
    }
    ls__record in = *one.in[0];
    bool fits = in.dtype == LS_FLOAT32 && in.ndim >= 1 && in.dim[in.ndim - 1] == seen.dim[3] &&
                ls__shape_broadcast(ls__record_shape(&in), seen, &both) && both.ndim == 4 &&
                memcmp(both.dim, seen.dim, 4 * sizeof(int64_t)) == 0;
    if (!fits || one.grad) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID,
            "mask %s of %s%s; it must be float32 or bfloat16, broadcast to %s with all "
            "keys in its last dimension, and gets no gradient (add it to the scores of an "
            "attention made of ls_matmul and ls_softmax)",
            ls__record_print(&in).text, ls_dtype_name((ls_dtype)in.dtype),
            one.grad ? " that requires gradients" : "", ls__shape_print(seen).text);
        return false;
    }
    bool rows_lie = in.stride[in.ndim - 1] == 1 || in.dim[in.ndim - 1] == 1;
    asked->mask = rows_lie ? ls__dense_of_output(&in) : ls__call_dense(&one, 0);
    for (int64_t d = in.ndim - 1, stride = 1; !rows_lie && d >= 0; d--) {
        in.stride[d] = stride;
        stride *= in.dim[d];
    }
    asked->mask_strides = ls__shape_expand(&in, seen);
    call->failed = one.failed;
    return one.failed == NULL;
}

/* As torch.nn.functional.scaled_dot_product_attention, with grouped key heads. All options are
 * checked before any memory is taken. */
ls_tensor *ls_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v,
                        const ls_attention_options *options)
{
    ls__call call;
    LS__OPTIONS_OR(ls__call_refused(), ls_attention_options, given, options);
    if (!ls__call_begin(&call, attention_op.name, 3, (ls_tensor *[]){q, k, v}) ||
        !ls__call_autocast(&call) || !operands_fit(&call) || !shapes_fit(&call, given.causal) ||
        !numbers_fit(&call, &given)) {
        return call.failed;
    }
    request asked = {.causal = given.causal, .dropout = given.dropout, .scale = given.scale};
    if (given.mask != NULL && !read_mask(&call, given.mask, &asked)) {
        return call.failed;
    }
    return attend(&call, &asked);
}

/* ---- over a part of the keys --------------------------------------------------------------- */

/* The kernel's arguments for forward; NULL where an operand failed, with the error set. */
static ls__pool *part_arguments(const ls__attention_part *p, ls__attention *a)
{
    ls_tensor *const given[] = {p->q, p->k, p->v, p->o, p->lse};
    const ls__record *in[5];
    for (int i = 0; i < 5; i++) {
        in[i] = ls__record_sound(ls__tensors_get(attention_op.name), given[i], attention_op.name);
        if (in[i] == NULL) {
            return NULL;
        }
    }
    const int64_t *q = in[0]->dim, *k = in[1]->dim;
    *a = (ls__attention){.batch = q[0], .heads = q[1], .kv_heads = k[1], .time = q[2]};
    a->keys = k[2];
    a->dim = a->q_t = a->k_t = a->v_t = a->o_h = q[3];
    a->q_h = a->time * a->dim;
    a->k_h = a->v_h = a->keys * a->dim;
    a->o_t = a->heads * a->dim;
    a->q_b = a->o_b = a->heads * a->q_h;
    a->k_b = a->v_b = a->kv_heads * a->k_h;
    a->q = ls__record_floats(in[0]);
    a->k = ls__record_floats(in[1]);
    a->v = ls__record_floats(in[2]);
    a->o = ls__record_floats(in[3]);
    a->lse = ls__record_floats(in[4]);
    a->half = in[0]->dtype == LS_BFLOAT16;
    a->causal = p->causal;
    a->scale = (float)(p->scale != 0.0 ? p->scale : 1.0 / sqrt((double)a->dim));
    return in[0]->storage->pool;
}

static ls_status run_part(ls__pool *on, ls__attention *a, bool backward)
{
    ls__storage *work = ls__storage_new(on, on->k->attention_workspace(a, backward) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    a->workspace = work->data;
    (backward ? on->k->attention_backward : on->k->attention)(a, on->stream);
    ls__storage_unref(work);
    return LS_OK;
}

ls_status ls__attention_part_forward(ls__attention_part *p)
{
    ls__attention a;
    const ls_shape q = ls_shape_of(p->q);
    p->o = ls_empty(LS_SHAPE(q.dim[0], q.dim[2], q.dim[1], q.dim[3]), ls_dtype_of(p->q));
    p->lse = ls_empty(LS_SHAPE(q.dim[0], q.dim[1], q.dim[2]), LS_FLOAT32);
    ls__pool *on = part_arguments(p, &a);
    return on != NULL ? run_part(on, &a, false) : ls__self.status;
}

/* Elements of a new tensor; NULL with the error set. */
static void *made(ls_tensor **out, ls_shape shape, ls_dtype dtype)
{
    *out = ls_empty(shape, dtype);
    const ls__record *record =
        ls__record_sound(ls__tensors_get(attention_op.name), *out, attention_op.name);
    return record != NULL ? ls__record_data(record) : NULL;
}

ls_status ls__attention_part_backward(ls__attention_part *p)
{
    ls__attention a;
    ls__pool *on = part_arguments(p, &a);
    const ls__record *d_o =
        ls__record_sound(ls__tensors_get(attention_op.name), p->d_o, attention_op.name);
    if (on == NULL || d_o == NULL) {
        return ls__self.status;
    }
    const ls_dtype dtype = ls_dtype_of(p->q);
    const size_t values = (size_t)ls_numel(p->k) * element_of(&a);
    a.d_o = ls__record_floats(d_o);
    a.dq = made(&p->dq, ls_shape_of(p->q), dtype);
    a.dk = made(&p->dkv, LS_SHAPE(2, a.batch, a.kv_heads, a.keys, a.dim), dtype);
    if (a.dq == NULL || a.dk == NULL) {
        return ls__self.status;
    }
    a.dv = (float *)(void *)((char *)a.dk + values);
    return run_part(on, &a, true);
}
