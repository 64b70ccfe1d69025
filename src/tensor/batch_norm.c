/* SPDX-License-Identifier: Apache-2.0 */
/* Batch normalisation (Ioffe & Szegedy 2015) over x [N,C,..]: for each channel over the elements
 * of all samples
 *
 *     y = relu((x - mean) rstd w + b + residual), each part optional; rstd = 1 / sqrt(var + eps)
 *
 * Formulas of the gradients in kernel/ref/batch_norm.c. In training mean and variance are the
 * batch's, in evaluation the running ones. Those are buffers of the caller's, changed in place
 * in training; the gradient rule keeps the mean and deviation it needs by itself, so a later
 * forward does not disturb it. A residual that is added and ReLU are part of the operation: the
 * elements pass through memory once. With the statistics of several ranks' batches see
 * batch_norm_sync.c. */
#include "tensor/batch_norm.h"

#include "base/assert.h"
#include "base/options.h"
#include "tensor/fill.h"
#include "tensor/op.h"

/* SAVED_Y only with a ReLU, SAVED_SYNC only over ranks; arrays of the others are SAVED_Y long. */
enum { SAVED_X, SAVED_W, SAVED_MEAN, SAVED_RSTD, SAVED_Y, SAVED_SYNC };
enum { EDGE_X, EDGE_W, EDGE_B, EDGE_R };

typedef struct norm_context {        /* of x [N,C,..] */
    int64_t batch, channels, pixels; /* N, C and the product of the other sizes */
    int64_t count;                   /* elements a channel that the statistics are of */
    bool training, relu, half;       /* half: elements of x's shape are bfloat16 */
    ls__norm_sync *sync;             /* NULL: the statistics are of this rank's elements */
} norm_context;

/* The part of the kernel's arguments that forward and backward share; the caller fills in
 * pointers, which stay its own. */
static ls__batch_norm shape_of(const norm_context *c)
{
    return (ls__batch_norm){.half = c->half,
                            .batch = c->batch,
                            .channels = c->channels,
                            .pixels = c->pixels,
                            .training = c->training,
                            .relu = c->relu};
}

/* Reads x, w, mean, rstd and, with a ReLU, y; writes each gradient that is wanted with its own
 * beta. An empty batch has no gradient to sum, but dw and db must still be defined: zeros. */
static ls_status batch_norm_backward(ls__tensor_rule *r)
{
    const norm_context *c = r->node->context;
    ls__batch_norm n = shape_of(c);
    if (c->batch * c->pixels == 0 && c->sync == NULL) {
        for (int i = EDGE_W; i <= EDGE_B; i++) {
            if (r->in[i].data != NULL && r->in[i].beta == 0.0f && c->channels > 0) {
                r->k->fill(r->in[i].data, c->channels, 0.0f, r->stream);
            }
        }
        return LS_OK;
    }
    n.x = r->saved[SAVED_X];
    n.w = r->saved[SAVED_W];
    n.mean = r->saved[SAVED_MEAN];
    n.rstd = r->saved[SAVED_RSTD];
    n.dy = r->dy;
    n.dx = r->in[EDGE_X].data;
    n.dw = r->in[EDGE_W].data;
    n.db = r->in[EDGE_B].data;
    n.beta_x = r->in[EDGE_X].beta;
    n.beta_w = r->in[EDGE_W].beta;
    n.beta_b = r->in[EDGE_B].beta;
    n.dresidual = r->in[EDGE_R].data;
    n.beta_residual = r->in[EDGE_R].beta;
    n.out = r->saved[SAVED_Y];
    if (c->sync != NULL) {
        const bool wants_dx = r->node->edge[EDGE_X].to != NULL;
        return ls__norm_sync_backward(c->sync, r->on, &n, c->count, wants_dx);
    }
    ls__storage *work = ls__storage_new(r->on, r->k->batch_norm_workspace(&n));
    if (work == NULL) {
        return ls__self.status;
    }
    n.workspace = work->data;
    r->k->batch_norm_backward(&n, r->stream);
    ls__storage_unref(work);
    return LS_OK;
}

static const ls__op batch_norm_op = {
    .name = "batch_norm", .backward = batch_norm_backward, .accumulates = true};
/* Of x with a gradient, which the losses of other ranks reach through the statistics. */
static const ls__op synced_op = {
    .name = "batch_norm", .backward = batch_norm_backward, .accumulates = true, .gathers = true};

/* ---- checks ------------------------------------------------------------------------------- */

/* x [N,C,..], weight and bias [C] or NULL, residual as x or NULL. False with call->failed set. */
static bool norm_shapes(ls__call *call)
{
    const ls__record *x = call->in[EDGE_X];
    if (x->ndim < 2) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "x %s; it must be [N,C] or [N,C,..]",
                            ls__record_print(x).text);
        return false;
    }
    for (int i = EDGE_W; i <= EDGE_B; i++) {
        const ls__record *p = call->in[i];
        if (p != NULL && (p->ndim != 1 || p->dim[0] != x->dim[1])) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "x %s with %s %s: it must be [%lld], the channels of x",
                                ls__record_print(x).text, i == EDGE_W ? "weight" : "bias",
                                ls__record_print(p).text, (long long)x->dim[1]);
            return false;
        }
    }
    const ls__record *residual = call->in[EDGE_R];
    if (residual != NULL && !ls__shape_equal(x, residual)) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "x %s with residual %s; give the same shape",
                            ls__record_print(x).text, ls__record_print(residual).text);
        return false;
    }
    return true;
}

/* The record of a running statistic, which is written in place: float32 [C], contiguous, outside
 * the graph. NULL where it was not given and, with call->failed set, where it does not fit. */
static ls__record *running_of(ls__call *call, const char *name, ls_tensor *t)
{
    if (t == NULL || call->failed != NULL) {
        return NULL;
    }
    ls__record *r = ls__record_sound(call->tensors, t, call->name);
    const ls__record *x = call->in[EDGE_X];
    if (r == NULL) {
        call->failed = ls__poison(call->tensors);
        return NULL;
    }
    if (ls__fill_settle(r->storage) < 0) {
        call->failed = ls__poison(call->tensors);
        return NULL;
    }
    if (r->dtype != LS_FLOAT32 || r->ndim != 1 || r->dim[0] != x->dim[1] || r->node != NULL ||
        !ls__record_contiguous(r)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s with %s %s of %s; it must be contiguous float32 [%lld] that "
                            "requires no gradient",
                            ls__record_print(x).text, name, ls__record_print(r).text,
                            ls_dtype_name((ls_dtype)r->dtype), (long long)x->dim[1]);
        return NULL;
    }
    return r;
}

/* Checks what does not depend on shapes alone. Training on one element a channel is refused: the
 * unbiased variance would divide by zero. False with call->failed set. */
static bool norm_arguments(ls__call *call, const norm_context *c, bool has_mean, bool has_var,
                           double momentum)
{
    if (call->failed != NULL) {
        return false;
    }
    if (!c->training && (!has_mean || !has_var)) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "evaluation needs running_mean and running_var; give both, or set "
                            "training");
    } else if (c->training && c->sync == NULL && c->batch * c->pixels == 1) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "x %s has one element per channel; training needs at least two, "
                            "because it divides by their standard deviation",
                            ls__record_print(call->in[EDGE_X]).text);
    } else if (!(momentum >= 0.0 && momentum <= 1.0)) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "momentum is %g; give a number from 0 to 1",
                            momentum);
    }
    return call->failed == NULL;
}

/* ---- the operation ------------------------------------------------------------------------ */

typedef struct running { /* statistics over batches, [C] each; the caller's, written in place */
    ls_tensor *handle[2];
    ls__record *record[2]; /* mean, variance; NULL: not kept */
    double momentum;
} running;

/* running = (1 - momentum) running + momentum batch, the variance unbiased: once a batch, so not
 * where a forward pass is replayed for its gradients. */
static void update(const ls__call *call, const norm_context *c, const running *stats,
                   const float *mean, const float *variance)
{
    const double count = (double)c->count, momentum = stats->momentum;
    LS_ASSERT(count > 1.0); /* one element a channel was refused */
    const float *batch[2] = {mean, variance};
    const double share[2] = {momentum, momentum * count / (count - 1.0)};
    for (int i = 0; i < 2; i++) {
        if (stats->record[i] != NULL && ls__self.replay == NULL) {
            call->k->axpby(ls__record_floats(stats->record[i]), batch[i], c->channels,
                           (float)share[i], (float)(1.0 - momentum), call->stream);
            ls__tensor_changed(stats->handle[i]);
        }
    }
}

/* Mean and variance [C] of the batch, or of all ranks' batches. An empty batch on all of them has
 * none, and changes nothing; false for that, or with call->failed set. */
static bool batch_stats(ls__call *call, norm_context *c, const ls__batch_norm *n, float *mean,
                        float *variance)
{
    c->count = c->batch * c->pixels;
    if (c->count > 0 && c->channels > 0) {
        call->k->batch_norm_stats(n, mean, variance, call->stream);
    }
    if (c->sync == NULL) {
        return true;
    }
    if (ls__norm_sync_stats(c->sync, call->on, c->channels, mean, variance, &c->count) < 0) {
        call->failed = ls__poison(call->tensors);
    } else if (c->count == 1) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "the %d ranks have one element per channel together; training needs at "
                            "least two, because it divides by their standard deviation",
                            c->sync->ranks);
    }
    return call->failed == NULL && c->count > 0;
}

/* Fills mean and rstd [C], then y. In training the statistics are those of the batch, and the
 * running ones move; in evaluation the running ones are copied, so that backward sees the values
 * of this call. */
static void forward(ls__call *call, norm_context *c, const running *stats, ls__batch_norm *n,
                    float *mean, float *rstd, double eps)
{
    if (c->training) {
        if (!batch_stats(call, c, n, mean, rstd) || c->channels == 0) {
            return;
        }
        update(call, c, stats, mean, rstd);
        call->k->batch_norm_rstd(rstd, rstd, c->channels, eps, call->stream);
    } else {
        call->k->axpby(mean, ls__record_floats(stats->record[0]), c->channels, 1.0f, 0.0f,
                       call->stream);
        call->k->batch_norm_rstd(rstd, ls__record_floats(stats->record[1]), c->channels, eps,
                                 call->stream);
    }
    n->mean = mean;
    n->rstd = rstd;
    if (c->batch * c->pixels > 0) {
        call->k->batch_norm(n, call->stream);
    }
}

/* Keeps x, w, mean, rstd and, with a ReLU, y for backward. A node of NULL means that backward
 * will not run; nothing is kept then. */
static void save(ls__tensor_node *node, const norm_context *c, const ls__record *out,
                 const ls__dense saved[SAVED_Y])
{
    if (node == NULL) {
        return;
    }
    *(norm_context *)node->context = *c;
    for (int i = 0; i < SAVED_Y; i++) {
        ls__node_save(node, i, &saved[i]);
    }
    if (c->sync != NULL) {
        const ls__dense sync = {.storage = c->sync->self, .data = c->sync};
        ls__node_save(node, SAVED_SYNC, &sync);
    }
    if (c->relu) {
        ls__dense y = ls__dense_of_output(out);
        ls__node_save(node, SAVED_Y, &y);
        ls__dense_drop(&y);
    }
}

/* Whether the kernels take bfloat16 as it is: x and the residual, where all else is float32. Other
 * calls go through float32 copies. */
static bool reads_half(const ls__call *call)
{
    const ls__record *x = call->in[EDGE_X], *residual = call->in[EDGE_R];
    bool fits = x->dtype == LS_BFLOAT16 && (residual == NULL || residual->dtype == LS_BFLOAT16);
    for (int i = EDGE_W; i <= EDGE_B; i++) {
        fits = fits && (call->in[i] == NULL || call->in[i]->dtype == LS_FLOAT32);
    }
    return fits;
}

/* All operands are checked. The channels come last: op.h, Note [Channels last]. */
static ls_tensor *normalise(ls__call *call, norm_context *c, const running *stats, double eps)
{
    ls__batch_norm n = shape_of(c);
    ls__call_see_channels_last(call, EDGE_X);
    if (call->in[EDGE_R] != NULL) {
        ls__call_see_channels_last(call, EDGE_R);
    }
    ls__dense saved[SAVED_Y] = {ls__call_dense(call, EDGE_X), ls__call_dense(call, EDGE_W)};
    ls__dense b = ls__call_dense(call, EDGE_B), residual = ls__call_dense(call, EDGE_R);
    saved[SAVED_MEAN] = ls__call_memory(call, (size_t)c->channels * sizeof(float));
    saved[SAVED_RSTD] = ls__call_memory(call, (size_t)c->channels * sizeof(float));
    ls__dense work = ls__call_memory(call, call->k->batch_norm_workspace(&n));
    ls__record *out = ls__call_output(call, ls__record_shape(call->in[EDGE_X]),
                                      c->half ? LS_BFLOAT16 : LS_FLOAT32);
    if (out != NULL && (out->numel > 0 || c->sync != NULL)) {
        n.x = saved[SAVED_X].data;
        n.w = saved[SAVED_W].data;
        n.b = b.data;
        n.residual = residual.data;
        n.y = ls__record_floats(out);
        n.workspace = work.data;
        forward(call, c, stats, &n, saved[SAVED_MEAN].data, saved[SAVED_RSTD].data, eps);
    }
    const bool gathers = c->sync != NULL && call->in[EDGE_X]->node != NULL;
    save(ls__call_record(call, gathers ? &synced_op : &batch_norm_op, out, sizeof *c), c, out,
         saved);
    for (int i = 0; i < SAVED_Y; i++) {
        ls__dense_drop(&saved[i]);
    }
    ls__dense_drop(&b);
    ls__dense_drop(&residual);
    ls__dense_drop(&work);
    call->follows = LS__SAMPLES(NOT);
    return ls__call_finish(call, out);
}

/* As torch.nn.functional.batch_norm, with a residual and a ReLU. All operands are checked before
 * the running statistics change, so a failed call leaves them. */
ls_tensor *ls__batch_norm_over(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                               const ls_batch_norm_options *options, ls__norm_sync *sync)
{
    LS__OPTIONS_OR(ls__call_refused(), ls_batch_norm_options, o, options);
    ls__call call;
    unsigned optional = 1u << EDGE_W | 1u << EDGE_B | 1u << EDGE_R;
    if (!ls__call_begin_optional(&call, "batch_norm", 4,
                                 (ls_tensor *[]){x, weight, bias, o.residual}, optional) ||
        !(reads_half(&call) || ls__call_float32(&call)) || !norm_shapes(&call)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_X];
    call.narrow = call.halves >> EDGE_X & 1u; /* the type of x */
    norm_context c = {.batch = in->dim[0],
                      .channels = in->dim[1],
                      .training = o.training,
                      .relu = o.relu,
                      .half = in->dtype == LS_BFLOAT16,
                      .sync = o.training ? sync : NULL};
    c.pixels = ls__shape_product(in, 2, in->ndim);
    running stats = {.handle = {o.running_mean, o.running_var}, .momentum = o.momentum};
    stats.record[0] = running_of(&call, "running_mean", o.running_mean);
    stats.record[1] = running_of(&call, "running_var", o.running_var);
    if (!norm_arguments(&call, &c, o.running_mean != NULL, o.running_var != NULL, o.momentum)) {
        return call.failed;
    }
    return normalise(&call, &c, &stats, o.eps);
}

ls_tensor *ls_batch_norm(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         const ls_batch_norm_options *options)
{
    return ls__batch_norm_over(x, weight, bias, options, NULL);
}
