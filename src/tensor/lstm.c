/* SPDX-License-Identifier: Apache-2.0 */
/* Long short-term memory over a whole sequence: the weight is used once for every step of time,
 * and one node stands for all of them. T steps, batch B, H cells:
 *
 *     gates [T,B,4H] = x W_ih^T + b, one product for all steps, is the caller's (ls_linear)
 *     weight W [4H,H]; state [2,B,H], h and c before the first step, or NULL for zeros
 *     step t:  a_t = gates_t + h_{t-1} W^T,  (h_t, c_t) = cell(a_t, c_{t-1})
 *     result [T+1,B,H]: h_1 … h_T, then c_T, so that a state can be carried on
 *
 * The cell and its gradient stand in kernel/ref/lstm.c. Saved for backward: acts [T,B,4H] (the
 * gates behind their functions), cells [T,B,H], W, the result and the state.
 *
 * Backward goes through time from the end with one product a step:
 *
 *     dh = dy_t + da_{t+1} W;   da_t, dc = cell's gradient(dh, dc);   dgates = da [T,B,4H]
 *     dW = da^T [h_0 … h_{T-1}], one product over all steps (two, if a state was given);
 *     dstate = (da_1 W, dc)
 *
 * Where everything came as bfloat16, under autocast say, the products are of bfloat16 matrices:
 * W is rounded once for all steps, h and da before each; sums, gates and cells are float32. */
#include "tensor/recurrent.h"

enum { SAVED_GATES, SAVED_CELLS, SAVED_W, SAVED_OUT, SAVED_STATE };
enum { EDGE_GATES, EDGE_W, EDGE_STATE };

/* ---- backward ----------------------------------------------------------------------------- */

/* Fills da [T,B,4H] from the last step to the first. dh and dc [B,H] carry the gradients from
 * step to step: dc starts as the gradient of the result's last part, c_T, and ends as that of c
 * before the first step. */
static ls_status backward_time(ls__tensor_rule *r, const ls__recurrent *c,
                               const ls__recurrent_tools *with, float *da, float *dc, float *dh)
{
    const float *gates = r->saved[SAVED_GATES], *cells = r->saved[SAVED_CELLS];
    const float *state = r->saved[SAVED_STATE];
    int64_t step = ls__recurrent_step(c);
    r->k->axpby(dc, r->dy + c->time * step, step, 1.0f, 0.0f, r->stream);
    for (int64_t t = c->time - 1; t >= 0; t--) {
        const float *before = t > 0 ? cells + (t - 1) * step : state != NULL ? state + step : NULL;
        r->k->axpby(dh, r->dy + t * step, step, 1.0f, 0.0f, r->stream);
        if (t < c->time - 1) {
            LS_TRY(ls__recurrent_product(with, dh, da + (t + 1) * 4 * step, r->saved[SAVED_W], c,
                                         false));
        }
        r->k->lstm_step_backward(da + t * 4 * step, dc, dh, gates + t * 4 * step, cells + t * step,
                                 before, c->batch, c->n, r->stream);
    }
    return LS_OK;
}

/* The gradient of the state [2,B,H]: of h (da_1 W), then of c (dc), both accumulated where beta
 * is 1. */
static ls_status backward_state(ls__tensor_rule *r, const ls__recurrent *c,
                                const ls__recurrent_tools *with, const float *da, const float *dc)
{
    const ls__gradient *d = &r->in[EDGE_STATE];
    int64_t step = ls__recurrent_step(c);
    if (d->beta == 0.0f) {
        r->k->fill(d->data, step, 0.0f, r->stream);
    }
    if (c->time > 0) {
        LS_TRY(ls__recurrent_product(with, d->data, da, r->saved[SAVED_W], c, false));
    }
    r->k->axpby(d->data + step, dc, step, 1.0f, d->beta, r->stream);
    return LS_OK;
}

/* All gradients, once da [T,B,4H] has memory. Where dgates is accumulated, da is memory of its
 * own and is added at the end; else da is dgates itself. */
static ls_status backward_all(ls__tensor_rule *r, const ls__recurrent *c,
                              const ls__recurrent_tools *with, float *da, float *dc, float *dh)
{
    const ls__gradient *dgates = &r->in[EDGE_GATES];
    int64_t step = ls__recurrent_step(c);
    if (step > 0) {
        LS_TRY(backward_time(r, c, with, da, dc, dh));
    }
    if (dgates->data != NULL && da != dgates->data) {
        r->k->axpby(dgates->data, da, c->time * 4 * step, 1.0f, dgates->beta, r->stream);
    }
    if (r->in[EDGE_W].data != NULL) {
        LS_TRY(ls__recurrent_weight(r, c, EDGE_W, da, r->saved[SAVED_OUT], r->saved[SAVED_STATE]));
    }
    bool wanted = r->in[EDGE_STATE].data != NULL && step > 0;
    return wanted ? backward_state(r, c, with, da, dc) : LS_OK;
}

/* One block of workspace holds dc [B,H], dh [B,H], a rounded left side [B,4H] of bfloat16 and,
 * where dgates cannot take it, da [T,B,4H]. */
static ls_status lstm_backward(ls__tensor_rule *r)
{
    const ls__recurrent *c = r->node->context;
    const ls__gradient *dgates = &r->in[EDGE_GATES];
    int64_t step = ls__recurrent_step(c), all = c->time * 4 * step;
    ls__storage *work = ls__storage_new(r->on, (size_t)(all + 4 * step) * sizeof(float) + 64);
    if (work == NULL) {
        return ls__self.status;
    }
    float *dc = (float *)(void *)work->data, *dh = dc + step, *da = dh + 3 * step;
    const ls__recurrent_tools with = {r->on, (ls__bfloat16 *)(void *)(dh + step)};
    if (dgates->data != NULL && dgates->beta == 0.0f) {
        da = dgates->data;
    }
    ls_status status = backward_all(r, c, &with, da, dc, dh);
    ls__storage_unref(work);
    return status;
}

static const ls__op lstm_op = {.name = "lstm", .backward = lstm_backward, .accumulates = true};

/* ---- forward ------------------------------------------------------------------------------ */

/* gates [T,B,4H], weight [4H,H], state [2,B,H] or NULL. False with call->failed set. */
static bool lstm_shapes(ls__call *call)
{
    const ls__record *gates = call->in[EDGE_GATES], *w = call->in[EDGE_W];
    const ls__record *state = call->in[EDGE_STATE];
    if (w->ndim != 2 || w->dim[1] < 1 || w->dim[0] / 4 != w->dim[1] || w->dim[0] % 4 != 0) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID,
            "weight %s: it must be [4H,H] with H at least 1, the four gates of each "
            "of H cells",
            ls__record_print(w).text);
        return false;
    }
    if (gates->ndim != 3 || gates->dim[2] != w->dim[0] || gates->dim[0] == INT64_MAX) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID, "gates %s with weight %s: they must be [time,batch,%lld]",
            ls__record_print(gates).text, ls__record_print(w).text, (long long)w->dim[0]);
        return false;
    }
    if (state != NULL && (state->ndim != 3 || state->dim[0] != 2 ||
                          state->dim[1] != gates->dim[1] || state->dim[2] != w->dim[1])) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "gates %s with state %s: it must be [2,%lld,%lld], the h and c before "
                            "the first step",
                            ls__record_print(gates).text, ls__record_print(state).text,
                            (long long)gates->dim[1], (long long)w->dim[1]);
        return false;
    }
    return true;
}

typedef struct lstm_memory {   /* of a forward pass; dropped at its end, what is saved excepted */
    ls__dense gates, w, state; /* inputs */
    ls__dense acts, cells;     /* [T,B,4H] gates behind their functions, [T,B,H] */
    ls__dense rounded;         /* [B,H] */
} lstm_memory;

/* The gates are copied, then every step adds its product and applies the cell in place. Steps
 * depend on each other; the threads share the work within each. `out` is [T+1,B,H], its last
 * part the final c. */
static ls_status forward(const ls__call *call, const ls__recurrent *c, const lstm_memory *m,
                         float *out)
{
    ls__pool *on = call->on;
    const ls__recurrent_tools with = {on, m->rounded.data};
    float *acts = m->acts.data, *cells = m->cells.data;
    const float *h = m->state.data, *cell = h != NULL ? h + ls__recurrent_step(c) : NULL;
    int64_t step = ls__recurrent_step(c);
    if (step == 0) {
        return LS_OK;
    }
    on->k->axpby(acts, m->gates.data, c->time * 4 * step, 1.0f, 0.0f, on->stream);
    for (int64_t t = 0; t < c->time; t++) {
        if (h != NULL) {
            LS_TRY(ls__recurrent_product(&with, acts + t * 4 * step, h, m->w.data, c, true));
        }
        on->k->lstm_step(acts + t * 4 * step, out + t * step, cells + t * step, cell, c->batch,
                         c->n, on->stream);
        h = out + t * step;
        cell = cells + t * step;
    }
    if (cell != NULL) {
        on->k->axpby(out + c->time * step, cell, step, 1.0f, 0.0f, on->stream);
    } else {
        on->k->fill(out, step, 0.0f, on->stream); /* no step and no state */
    }
    return LS_OK;
}

/* Keeps what backward reads, with references of the node's own: the gates after their
 * activations and all cell states, so that backward recomputes no step. */
static void save(ls__tensor_node *node, const ls__recurrent *c, const lstm_memory *m,
                 const ls__record *out)
{
    ls__dense result = ls__dense_of_output(out);
    *(ls__recurrent *)node->context = *c;
    ls__node_save(node, SAVED_GATES, &m->acts);
    ls__node_save(node, SAVED_CELLS, &m->cells);
    ls__node_save(node, SAVED_W, &m->w);
    ls__node_save(node, SAVED_OUT, &result);
    ls__node_save(node, SAVED_STATE, &m->state);
    ls__dense_drop(&result);
}

/* The result [T+1,B,H] holds all h and behind them the last c. `gates` already contains the
 * input's product and the bias for all steps: one large ls_linear before the loop. */
ls_tensor *ls_lstm(ls_tensor *gates, ls_tensor *weight, ls_tensor *state)
{
    ls__call call;
    if (!ls__call_begin_optional(&call, "lstm", 3, (ls_tensor *[]){gates, weight, state},
                                 1u << EDGE_STATE) ||
        !ls__call_autocast(&call) || !ls__call_float32(&call) || !lstm_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_GATES];
    ls__recurrent c = {
        .time = in->dim[0], .batch = in->dim[1], .n = in->dim[2] / 4, .wide = in->dim[2]};
    size_t bytes = (size_t)in->numel * sizeof(float);
    lstm_memory m = {.gates = ls__call_dense(&call, EDGE_GATES)};
    c.half = call.narrow;
    m.w = c.half ? ls__call_half(&call, EDGE_W) : ls__call_dense(&call, EDGE_W);
    m.rounded = ls__call_memory(&call, (size_t)ls__recurrent_step(&c) * sizeof(ls__bfloat16));
    m.state = ls__call_dense(&call, EDGE_STATE);
    m.acts = ls__call_memory(&call, bytes);
    m.cells = ls__call_memory(&call, bytes / 4);
    ls__record *out = ls__call_output(&call, LS_SHAPE(c.time + 1, c.batch, c.n), LS_FLOAT32);
    if (out != NULL && forward(&call, &c, &m, ls__record_floats(out)) != LS_OK) {
        call.failed = ls__poison(call.tensors);
    }
    ls__tensor_node *node = ls__call_record(&call, &lstm_op, out, sizeof c);
    if (node != NULL) {
        save(node, &c, &m, out);
    }
    ls__dense_drop(&m.gates);
    ls__dense_drop(&m.w);
    ls__dense_drop(&m.state);
    ls__dense_drop(&m.acts);
    ls__dense_drop(&m.cells);
    ls__dense_drop(&m.rounded);
    call.follows = LS__SAMPLES(NOT);
    return ls__call_finish(&call, out);
}
