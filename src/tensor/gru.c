/* SPDX-License-Identifier: Apache-2.0 */
/* Gated recurrent units over a whole sequence; as lstm.c, one node stands for all steps. T steps,
 * batch B, H cells:
 *
 *     gates [T,B,3H] = x W_ih^T + b_ih, one product for all steps, is the caller's (ls_linear)
 *     weight W [3H,H], bias b [3H] or NULL; state [1,B,H], h before the first step, or NULL: zeros
 *     step t:  p_t = h_{t-1} W^T + b,  h_t = cell(gates_t, p_t, h_{t-1})
 *     result [T,B,H], whose last step is the state to carry on
 *
 * The cell and its gradient stand in kernel/ref/gru.c. Saved for backward: acts [T,B,3H] (the gates
 * after their functions), fresh [T,B,H] (the last third of p), W, the result and the state.
 *
 * Backward goes through time from the end with one product a step. The reset gate multiplies the
 * last third of p alone, so gates and p have gradients of their own, da and dp [T,B,3H]:
 *
 *     dh = dy_t + dh_{t+1} z_{t+1} + dp_{t+1} W;   da_t, dp_t = cell's gradient(dh)
 *     dgates = da;  dW = dp^T [h_0 … h_{T-1}];  db = sum of dp's rows;  dstate = dh z_1 + dp_1 W
 */
#include "tensor/recurrent.h"

enum { SAVED_ACTS, SAVED_FRESH, SAVED_W, SAVED_OUT, SAVED_STATE };
enum { EDGE_GATES, EDGE_W, EDGE_BIAS, EDGE_STATE };

/* ---- backward ----------------------------------------------------------------------------- */

/* Memory of a backward pass. */
typedef struct backward {
    ls__tensor_rule *r;
    const ls__recurrent *c;
    ls__recurrent_tools with;
    float *da, *dp; /* [T,B,3H] */
    float *dh;      /* [B,H]: carries the gradient from step to step */
} backward;

/* Of what came before step t: dh holds what the cell has left. */
static ls_status add_carried(const backward *b, float *dh, int64_t t)
{
    const float *dp = b->dp + t * b->c->batch * b->c->wide;
    return ls__recurrent_product(&b->with, dh, dp, b->r->saved[SAVED_W], b->c, false);
}

/* Fills da and dp from the last step to the first; dh then holds dh z_1. */
static ls_status backward_time(const backward *b)
{
    const ls__recurrent *c = b->c;
    ls__tensor_rule *r = b->r;
    const float *acts = r->saved[SAVED_ACTS], *fresh = r->saved[SAVED_FRESH];
    const float *out = r->saved[SAVED_OUT];
    const int64_t step = ls__recurrent_step(c), wide = c->batch * c->wide;
    for (int64_t t = c->time - 1; t >= 0; t--) {
        const bool last = t == c->time - 1;
        const float *before = t > 0 ? out + (t - 1) * step : r->saved[SAVED_STATE];
        LS_TRY(last ? LS_OK : add_carried(b, b->dh, t + 1));
        r->k->axpby(b->dh, r->dy + t * step, step, 1.0f, last ? 0.0f : 1.0f, r->stream);
        r->k->gru_step_backward(b->da + t * wide, b->dp + t * wide, b->dh, acts + t * wide,
                                fresh + t * step, before, c->batch, c->n, r->stream);
    }
    return LS_OK;
}

/* The gradient of the state [1,B,H]: dh z_1 + dp_1 W. */
static ls_status backward_state(const backward *b)
{
    const ls__gradient *d = &b->r->in[EDGE_STATE];
    const int64_t step = ls__recurrent_step(b->c);
    if (b->c->time == 0) {
        if (d->beta == 0.0f) {
            b->r->k->fill(d->data, step, 0.0f, b->r->stream);
        }
        return LS_OK;
    }
    b->r->k->axpby(d->data, b->dh, step, 1.0f, d->beta, b->r->stream);
    return add_carried(b, d->data, 0);
}

/* Where dgates is accumulated, da is memory of its own and is added at the end; else da is dgates
 * itself. */
static ls_status backward_all(const backward *b)
{
    ls__tensor_rule *r = b->r;
    const ls__recurrent *c = b->c;
    const ls__gradient *dgates = &r->in[EDGE_GATES], *dbias = &r->in[EDGE_BIAS];
    const int64_t step = ls__recurrent_step(c), rows = c->time * c->batch;
    if (step > 0) {
        LS_TRY(backward_time(b));
    }
    if (dgates->data != NULL && b->da != dgates->data) {
        r->k->axpby(dgates->data, b->da, rows * c->wide, 1.0f, dgates->beta, r->stream);
    }
    if (r->in[EDGE_W].data != NULL) {
        LS_TRY(
            ls__recurrent_weight(r, c, EDGE_W, b->dp, r->saved[SAVED_OUT], r->saved[SAVED_STATE]));
    }
    if (dbias->data != NULL) {
        r->k->sum_rows(dbias->data, b->dp, rows, c->wide, dbias->beta, r->stream);
    }
    return r->in[EDGE_STATE].data != NULL && step > 0 ? backward_state(b) : LS_OK;
}

/* One block of workspace holds dp, dh, a rounded left side [B,3H] of bfloat16 (in 2 [B,H] of
 * float32) and, where dgates cannot take it, da. */
static ls_status gru_backward(ls__tensor_rule *r)
{
    const ls__recurrent *c = r->node->context;
    const ls__gradient *dgates = &r->in[EDGE_GATES];
    const int64_t step = ls__recurrent_step(c), all = c->time * c->batch * c->wide;
    ls__storage *work = ls__storage_new(r->on, (size_t)(2 * all + 3 * step) * sizeof(float) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    float *dh = (float *)(void *)work->data, *dp = dh + 3 * step;
    const bool direct = dgates->data != NULL && dgates->beta == 0.0f;
    const backward b = {.r = r,
                        .c = c,
                        .with = {r->on, (ls__bfloat16 *)(void *)(dh + step)},
                        .da = direct ? (float *)dgates->data : dp + all,
                        .dp = dp,
                        .dh = dh};
    ls_status status = backward_all(&b);
    ls__storage_unref(work);
    return status;
}

static const ls__op gru_op = {.name = "gru", .backward = gru_backward, .accumulates = true};

/* ---- forward ------------------------------------------------------------------------------ */

/* gates [T,B,3H], weight [3H,H], bias [3H] or NULL, state [1,B,H] or NULL. False with call->failed
 * set. */
static bool gru_shapes(ls__call *call)
{
    const ls__record *gates = call->in[EDGE_GATES], *w = call->in[EDGE_W];
    const ls__record *bias = call->in[EDGE_BIAS], *state = call->in[EDGE_STATE];
    if (w->ndim != 2 || w->dim[1] < 1 || w->dim[0] / 3 != w->dim[1] || w->dim[0] % 3 != 0) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "weight %s: it must be [3H,H] with H at least 1, the three gates of "
                            "each of H cells",
                            ls__record_print(w).text);
        return false;
    }
    if (gates->ndim != 3 || gates->dim[2] != w->dim[0]) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID, "gates %s with weight %s: they must be [time,batch,%lld]",
            ls__record_print(gates).text, ls__record_print(w).text, (long long)w->dim[0]);
        return false;
    }
    if (bias != NULL && (bias->ndim != 1 || bias->dim[0] != w->dim[0])) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "bias %s with weight %s: it must be [%lld]",
                            ls__record_print(bias).text, ls__record_print(w).text,
                            (long long)w->dim[0]);
        return false;
    }
    if (state != NULL && (state->ndim != 3 || state->dim[0] != 1 ||
                          state->dim[1] != gates->dim[1] || state->dim[2] != w->dim[1])) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "gates %s with state %s: it must be [1,%lld,%lld], the h before the "
                            "first step",
                            ls__record_print(gates).text, ls__record_print(state).text,
                            (long long)gates->dim[1], (long long)w->dim[1]);
        return false;
    }
    return true;
}

typedef struct gru_memory { /* of a forward pass; dropped at its end, what is saved excepted */
    ls__dense gates, w, bias, state; /* inputs */
    ls__dense acts, fresh;           /* [T,B,3H] gates after their functions, [T,B,H] */
    ls__dense product;               /* [B,3H] */
    ls__dense rounded;               /* [B,H] */
} gru_memory;

/* The gates are copied, then every step makes its product and applies the cell in place. */
static ls_status forward(const ls__call *call, const ls__recurrent *c, const gru_memory *m,
                         float *out)
{
    ls__pool *on = call->on;
    const ls__recurrent_tools with = {on, m->rounded.data};
    const int64_t step = ls__recurrent_step(c), wide = c->batch * c->wide;
    float *acts = m->acts.data, *fresh = m->fresh.data, *product = m->product.data;
    const float *h = m->state.data;
    if (step == 0) {
        return LS_OK;
    }
    on->k->axpby(acts, m->gates.data, c->time * wide, 1.0f, 0.0f, on->stream);
    for (int64_t t = 0; t < c->time; t++) {
        on->k->fill(product, wide, 0.0f, on->stream);
        if (m->bias.data != NULL) {
            on->k->add_rows(product, m->bias.data, c->batch, c->wide, on->stream);
        }
        if (h != NULL) {
            LS_TRY(ls__recurrent_product(&with, product, h, m->w.data, c, true));
        }
        on->k->gru_step(acts + t * wide, out + t * step, fresh + t * step, product, h, c->batch,
                        c->n, on->stream);
        h = out + t * step;
    }
    return LS_OK;
}

/* Keeps what backward reads, with references of the node's own. */
static void save(ls__tensor_node *node, const ls__recurrent *c, const gru_memory *m,
                 const ls__record *out)
{
    ls__dense result = ls__dense_of_output(out);
    *(ls__recurrent *)node->context = *c;
    ls__node_save(node, SAVED_ACTS, &m->acts);
    ls__node_save(node, SAVED_FRESH, &m->fresh);
    ls__node_save(node, SAVED_W, &m->w);
    ls__node_save(node, SAVED_OUT, &result);
    ls__node_save(node, SAVED_STATE, &m->state);
    ls__dense_drop(&result);
}

static void drop(gru_memory *m)
{
    ls__dense_drop(&m->gates);
    ls__dense_drop(&m->w);
    ls__dense_drop(&m->bias);
    ls__dense_drop(&m->state);
    ls__dense_drop(&m->acts);
    ls__dense_drop(&m->fresh);
    ls__dense_drop(&m->product);
    ls__dense_drop(&m->rounded);
}

ls_tensor *ls_gru(ls_tensor *gates, ls_tensor *weight, ls_tensor *bias, ls_tensor *state)
{
    ls__call call;
    if (!ls__call_begin_optional(&call, "gru", 4, (ls_tensor *[]){gates, weight, bias, state},
                                 1u << EDGE_BIAS | 1u << EDGE_STATE) ||
        !ls__call_autocast(&call) || !ls__call_float32(&call) || !gru_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_GATES];
    ls__recurrent c = {.time = in->dim[0],
                       .batch = in->dim[1],
                       .n = in->dim[2] / 3,
                       .wide = in->dim[2],
                       .half = call.narrow};
    const size_t bytes = (size_t)in->numel * sizeof(float);
    const size_t step = (size_t)ls__recurrent_step(&c);
    gru_memory m = {.gates = ls__call_dense(&call, EDGE_GATES)};
    m.w = c.half ? ls__call_half(&call, EDGE_W) : ls__call_dense(&call, EDGE_W);
    m.bias = ls__call_dense(&call, EDGE_BIAS);
    m.state = ls__call_dense(&call, EDGE_STATE);
    m.acts = ls__call_memory(&call, bytes);
    m.fresh = ls__call_memory(&call, bytes / 3);
    m.product = ls__call_memory(&call, 3 * step * sizeof(float));
    m.rounded = ls__call_memory(&call, step * sizeof(ls__bfloat16));
    ls__record *out = ls__call_output(&call, LS_SHAPE(c.time, c.batch, c.n), LS_FLOAT32);
    if (out != NULL && forward(&call, &c, &m, ls__record_floats(out)) != LS_OK) {
        call.failed = ls__poison(call.tensors);
    }
    ls__tensor_node *node = ls__call_record(&call, &gru_op, out, sizeof c);
    if (node != NULL) {
        save(node, &c, &m, out);
    }
    drop(&m);
    call.follows = LS__SAMPLES(NOT);
    return ls__call_finish(&call, out);
}
