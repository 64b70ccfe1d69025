/* SPDX-License-Identifier: Apache-2.0 */
/* Losses: mean squared error, binary and other cross-entropy, negative log-likelihood. Each
 * gives one float32 number, the mean over elements or over the rows that count; formulas in
 * kernel/ref/loss.c. The kernels sum in float64.
 *
 * The mean over nothing is NaN and its gradients are zeros, as in PyTorch: at the end of an
 * epoch a rank may hold no sample, and still takes part in the backward pass
 * (ls_backward_weighted). */
#include <math.h>

#include <lockstep/ops.h>

#include "base/assert.h"
#include "base/options.h"
#include "tensor/class_loss.h"
#include "tensor/indices.h"

/* ---- mean squared error ------------------------------------------------------------------- */

enum { SAVED_DIFFERENCE };

typedef struct mse_context { /* of both losses by element */
    int64_t numel;           /* the divisor of the mean */
} mse_context;

/* loss = mean((x - y)^2): dx = dloss 2 (x - y) / numel, dy = -dx. The difference was saved. */
static ls_status mse_backward(ls__tensor_rule *r)
{
    const mse_context *c = r->node->context;
    for (int i = 0; i < 2; i++) {
        const ls__factor factor = {r->dy, i == 0 ? 2.0 : -2.0, (double)c->numel};
        if (r->in[i].data != NULL) {
            r->k->axpby_by(r->in[i].data, r->saved[SAVED_DIFFERENCE], c->numel, factor,
                           r->in[i].beta, r->stream);
        }
    }
    return LS_OK;
}

static const ls__op mse_op = {.name = "mse_loss", .backward = mse_backward, .accumulates = true};

/* mean((x - y)^2), float32. The difference is kept for backward: its gradient is a multiple of
 * it. */
ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *y)
{
    ls__call call;
    if (!ls__call_begin(&call, "mse_loss", 2, (ls_tensor *[]){x, y}) || !ls__call_float32(&call) ||
        !ls__call_alike(&call)) {
        return call.failed;
    }
    call.narrow = false; /* a loss is float32 whatever it is made of */
    const ls__record *a = call.in[0], *b = call.in[1];
    ls__dense difference = ls__call_memory(&call, (size_t)a->numel * sizeof(float));
    ls__record *out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        call.k->binary(LS__BINARY_SUB, difference.data, ls__record_floats(a), ls__record_strided(a),
                       ls__record_floats(b), ls__record_strided(b), a->ndim, a->dim, call.stream);
        call.k->mean_squares(ls__record_floats(out), difference.data, a->numel, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &mse_op, out, sizeof(mse_context));
    if (node != NULL) {
        ((mse_context *)node->context)->numel = a->numel;
        ls__node_save(node, SAVED_DIFFERENCE, &difference);
    }
    ls__dense_drop(&difference);
    call.follows = LS__LOSS;
    return ls__call_finish(&call, out);
}

/* ---- binary cross-entropy ----------------------------------------------------------------- */

/* The gradient for the logits, and the logits where the target wants a gradient. */
enum { SAVED_DX, SAVED_X };

/* The gradient for the logits, (sigmoid(x) - y) / numel, was computed in the forward pass and is
 * scaled by dloss; the one for the target is -x dloss / numel. */
static ls_status bce_backward(ls__tensor_rule *r)
{
    const mse_context *c = r->node->context;
    if (r->in[0].data != NULL) {
        r->k->axpby_by(r->in[0].data, r->saved[SAVED_DX], c->numel, (ls__factor){r->dy, 1.0, 1.0},
                       r->in[0].beta, r->stream);
    }
    if (r->in[1].data != NULL) {
        r->k->axpby_by(r->in[1].data, r->saved[SAVED_X], c->numel,
                       (ls__factor){r->dy, -1.0, (double)c->numel}, r->in[1].beta, r->stream);
    }
    return LS_OK;
}

static const ls__op bce_op = {
    .name = "bce_with_logits", .backward = bce_backward, .accumulates = true};

/* The mean over all elements, float32. The gradient is computed with the loss, where the sigmoid
 * is at hand, and only scaled in backward. */
ls_tensor *ls_bce_with_logits(ls_tensor *logits, ls_tensor *target)
{
    ls__call call;
    if (!ls__call_begin(&call, "bce_with_logits", 2, (ls_tensor *[]){logits, target}) ||
        !ls__call_float32(&call) || !ls__call_alike(&call)) {
        return call.failed;
    }
    call.narrow = false;
    const ls__record *a = call.in[0];
    ls__dense x = ls__call_dense(&call, 0), y = ls__call_dense(&call, 1), dx = {0};
    if (call.grad) {
        dx = ls__call_memory(&call, (size_t)a->numel * sizeof(float));
    }
    ls__record *out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        call.k->bce(ls__record_floats(out), dx.data, x.data, y.data, a->numel, call.stream);
    }
    ls__tensor_node *node = ls__call_record(&call, &bce_op, out, sizeof(mse_context));
    if (node != NULL) {
        ((mse_context *)node->context)->numel = a->numel;
        ls__node_save(node, SAVED_DX, &dx);
        ls__node_save(node->edge[1].to != NULL ? node : NULL, SAVED_X, &x);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&y);
    ls__dense_drop(&dx);
    call.follows = LS__LOSS;
    return ls__call_finish(&call, out);
}

/* ---- against class indices ---------------------------------------------------------------- */

/* The forward pass has softmax(logits) at hand, so it computes the gradient at once; backward only
 * scales it, or hands it on when dy is 1. */
enum { SAVED_DLOGITS };
enum { EDGE_LOGITS, EDGE_TARGET };

typedef struct cross_entropy_context {
    int64_t numel;
    bool half; /* logits and their gradient are bfloat16 */
} cross_entropy_context;

/* Forward left the gradient of a loss with dy = 1. A loss that ls_backward starts from has just
 * that, so the memory is handed over (`gives`) instead of copied; any other is scaled into new
 * memory. */
static ls_status cross_entropy_backward(ls__tensor_rule *r)
{
    const cross_entropy_context *c = r->node->context;
    ls__storage *dlogits = r->node->saved[SAVED_DLOGITS].storage;
    if (r->dy_is_one) {
        r->in[0].give = ls__storage_ref(dlogits);
        return LS_OK;
    }
    const ls__factor dy = {r->dy, 1.0, 1.0};
    size_t element = c->half ? sizeof(ls__bfloat16) : sizeof(float);
    r->in[0].give = ls__storage_new(r->on, (size_t)c->numel * element);
    if (r->in[0].give == NULL) {
        return ls__self.status;
    }
    if (c->half) {
        r->k->axpby_bf16_by(r->in[0].give->data, dlogits->data, c->numel, dy, 0.0f, r->stream);
        return LS_OK;
    }
    r->k->axpby_by(r->in[0].give->data, dlogits->data, c->numel, dy, 0.0f, r->stream);
    return LS_OK;
}

#define CLASS_LOSS(text)                                                                           \
    {                                                                                              \
        .name = (text), .backward = cross_entropy_backward, .gives = true                          \
    }
static const ls__op cross_entropy_op = CLASS_LOSS("cross_entropy");
static const ls__op nll_op = CLASS_LOSS("nll_loss");
#undef CLASS_LOSS

typedef struct class_loss { /* one of the losses of classes, with its options */
    const ls__op *op;
    void (*run)(const ls__cross_entropy *args, ls_stream *stream);
    double smoothing, z_loss;
    int64_t ignore;      /* allowed among the targets */
    const float *weight; /* of the classes; NULL: none */
} class_loss;

/* logits [..,C] against target [..]: classes are the last dimension. False with call->failed
 * set. */
static bool cross_entropy_shapes(ls__call *call)
{
    const ls__record *x = call->in[EDGE_LOGITS], *y = call->in[EDGE_TARGET];
    bool fits = (x->dtype == LS_FLOAT32 || x->dtype == LS_BFLOAT16) && x->ndim == y->ndim + 1;
    for (int d = 0; fits && d < y->ndim; d++) {
        fits = x->dim[d] == y->dim[d];
    }
    if (!fits) {
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "logits %s of %s with target %s; logits must be float32 or bfloat16 "
                            "[..,C] and the target the same without the last dimension",
                            ls__record_print(x).text, ls_dtype_name((ls_dtype)x->dtype),
                            ls__record_print(y).text);
    }
    return fits;
}

static void say_target(ls__call *call, int i, const char *shape, const ls__index_check *check,
                       const int64_t at[2])
{
    (void)i;
    (void)ls__call_fail(call, LS_ERR_INVALID,
                        "element %lld of target %s is %lld; give values in [0,%lld), or %lld "
                        "for rows that do not count",
                        (long long)at[0], shape, (long long)at[1], (long long)check->n,
                        (long long)check->ignore);
}

/* All targets are checked before the kernel runs, which trusts them; that of a device which
 * captures steps gives a loss of NaN for one outside. */
bool ls__class_targets(ls__call *call, const ls__dense *target, int64_t n, int64_t ignore)
{
    ls__index_check check = {.n = n, .may_ignore = true, .ignore = ignore};
    return ls__call_inside(call, EDGE_TARGET, target, &check, true, say_target);
}

/* The frame of the three losses of classes, whose checks are done. Forward computes the gradient
 * at once when a graph is recorded, for softmax is at hand then. */
static ls_tensor *class_loss_of(ls__call *call, const class_loss *loss)
{
    const ls__record *in = call->in[EDGE_LOGITS], *wanted = call->in[EDGE_TARGET];
    const bool half = in->dtype == LS_BFLOAT16;
    call->narrow = false;
    ls__cross_entropy args = {.rows = wanted->numel, .n = in->dim[in->ndim - 1]};
    LS_ASSERT(!half || args.n <= LS__HALF_LOGITS_MAX);
    ls__dense x = ls__call_dense(call, EDGE_LOGITS), y = ls__call_dense(call, EDGE_TARGET);
    ls__dense dx = {0};
    ls__record *out = NULL;
    if (ls__class_targets(call, &y, args.n, loss->ignore)) {
        if (call->grad) {
            dx = ls__call_memory(call, (size_t)in->numel * ls_dtype_size((ls_dtype)in->dtype));
        }
        out = ls__call_output(call, (ls_shape){0}, LS_FLOAT32);
    }
    if (out != NULL) {
        args.dlogits = half ? NULL : dx.data;
        args.logits = half ? NULL : x.data;
        args.target = y.data;
        args.index_bytes = ls_dtype_size((ls_dtype)wanted->dtype);
        args.smoothing = loss->smoothing;
        args.z_loss = loss->z_loss;
        args.ignore = loss->ignore;
        args.weight = loss->weight;
        args.loss = ls__record_floats(out);
        if (half) {
            call->k->cross_entropy_bf16(dx.data, x.data, &args, call->stream);
        } else {
            loss->run(&args, call->stream);
        }
    }
    ls__tensor_node *node = ls__call_record(call, loss->op, out, sizeof(cross_entropy_context));
    if (node != NULL) {
        *(cross_entropy_context *)node->context = (cross_entropy_context){in->numel, half};
        ls__node_save(node, SAVED_DLOGITS, &dx);
    }
    ls__dense_drop(&x);
    ls__dense_drop(&y);
    ls__dense_drop(&dx);
    call->follows = (ls__follows){.how = LS__FOLLOW_CLASSES};
    return ls__call_finish(call, out);
}

/* Whether the kernel reads these logits as they are: bfloat16, and a row fits its buffer. */
static bool reads_halves(const ls__call *call, int64_t half_max)
{
    const ls__record *x = call->in[EDGE_LOGITS];
    return x->dtype == LS_BFLOAT16 && x->ndim > 0 && x->dim[x->ndim - 1] <= half_max;
}

bool ls__class_loss_check(ls__call *call, int64_t half_max)
{
    return (reads_halves(call, half_max) || ls__call_floats(call, 1u << EDGE_LOGITS)) &&
           ls__call_index(call, EDGE_TARGET) && cross_entropy_shapes(call);
}

bool ls__class_loss_options(ls__call *call, const ls_cross_entropy_options *given)
{
    if (!(given->label_smoothing >= 0.0 && given->label_smoothing <= 1.0)) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "label_smoothing is %g; it is a share in 0…1",
                            given->label_smoothing);
    } else if (!(given->z_loss >= 0.0 && given->z_loss < INFINITY)) {
        (void)ls__call_fail(call, LS_ERR_INVALID, "z_loss is %g; it is a factor of at least 0",
                            given->z_loss);
    }
    return call->failed == NULL;
}

/* Fills `out` with the weights of `classes` classes (negative: any number); of no data where none
 * are given. False with call->failed set. */
static bool read_weight(ls__call *call, ls_tensor *weight, int64_t classes, ls__dense *out)
{
    ls__call one;
    *out = (ls__dense){0};
    if (weight == NULL) {
        return true;
    }
    if (!ls__call_begin(&one, call->name, 1, &weight)) {
        call->failed = one.failed;
        return false;
    }
    const ls__record *in = one.in[0];
    if (in->dtype != LS_FLOAT32 || in->ndim != 1 || (classes >= 0 && in->dim[0] != classes) ||
        in->node != NULL) {
        const bool known = classes >= 0;
        (void)ls__call_fail(call, LS_ERR_INVALID,
                            "weight %s of %s%s; it must be float32 [%s] with one number for each "
                            "class, and is a constant",
                            ls__record_print(in).text, ls_dtype_name((ls_dtype)in->dtype),
                            in->node != NULL ? ", which requires gradients" : "",
                            known ? ls__shape_print(LS_SHAPE(classes)).text : "C");
        return false;
    }
    if (one.on != call->on) {
        (void)ls__call_fail(
            call, LS_ERR_INVALID,
            "the weight of the classes is on device \"%s\", and argument 1 on device "
            "\"%s\"; bring one of them there with ls_to",
            one.on->device->name, call->on->device->name);
        return false;
    }
    *out = ls__call_dense(&one, 0);
    call->failed = one.failed;
    return call->failed == NULL;
}

/* Rows of bfloat16 are widened where classes have weights. */
ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target,
                            const ls_cross_entropy_options *options)
{
    ls__call call;
    ls__dense weight;
    LS__OPTIONS_OR(ls__call_refused(), ls_cross_entropy_options, given, options);
    if (!ls__call_begin(&call, cross_entropy_op.name, 2, (ls_tensor *[]){logits, target}) ||
        !ls__class_loss_check(&call, given.weight != NULL ? -1 : LS__HALF_LOGITS_MAX) ||
        !ls__class_loss_options(&call, &given)) {
        return call.failed;
    }
    const ls__record *in = call.in[EDGE_LOGITS];
    if (!read_weight(&call, given.weight, in->dim[in->ndim - 1], &weight)) {
        return ls__call_finish(&call, NULL);
    }
    class_loss loss = {&cross_entropy_op, call.k->cross_entropy, given.label_smoothing,
                       given.z_loss,      given.ignore_index,    weight.data};
    ls_tensor *out = class_loss_of(&call, &loss);
    ls__dense_drop(&weight);
    return out;
}

/* What the rows count, added as the kernels do. `of` may have no data: 1 each then. */
static double sum_weights(ls__call *call, const void *target, const float *of, int64_t classes,
                          int64_t ignore)
{
    const ls__record *in = call->in[0];
    double sum = 0.0;
    for (int64_t i = 0; i < in->numel; i++) {
        const int64_t class =
            in->dtype == LS_INT32 ? ((const int32_t *)target)[i] : ((const int64_t *)target)[i];
        if (class == ignore) {
            continue;
        }
        if (class < 0 || class >= classes) {
            (void)ls__call_fail(call, LS_ERR_INVALID,
                                "element %lld of target %s is %lld; give values in [0,%lld), or "
                                "%lld for rows that do not count",
                                (long long)i, ls__record_print(in).text, (long long)class,
                                (long long)classes, (long long)ignore);
            break;
        }
        sum += of != NULL ? (double)of[class] : 1.0;
    }
    return sum;
}

ls_status ls_cross_entropy_weight(ls_tensor *target, const ls_cross_entropy_options *options,
                                  double *weight)
{
    ls__call call;
    ls__dense of = {0}, at = {0};
    ls__host_view classes = {0}, rows = {0};
    LS__OPTIONS(ls_cross_entropy_options, given, options);
    if (!ls__call_begin(&call, "cross_entropy_weight", 1, &target) || !ls__call_index(&call, 0) ||
        !read_weight(&call, given.weight, -1, &of)) {
        return ls_tensor_status(call.failed);
    }
    const int64_t count = of.data != NULL ? ls_numel(given.weight) : INT64_MAX;
    at = ls__call_dense(&call, 0);
    ls_status status = ls__host_view_open(
        call.on, at.data, (size_t)call.in[0]->numel * ls_dtype_size((ls_dtype)call.in[0]->dtype),
        &rows);
    if (status == LS_OK && of.data != NULL) {
        status = ls__host_view_open(call.on, of.data, (size_t)count * sizeof(float), &classes);
    }
    if (status == LS_OK) {
        *weight = sum_weights(&call, rows.data, classes.data, count, given.ignore_index);
        status = call.failed != NULL ? ls_tensor_status(call.failed) : LS_OK;
    }
    ls__host_view_close(&rows, false);
    ls__host_view_close(&classes, false);
    ls__dense_drop(&at);
    ls__dense_drop(&of);
    return status;
}

#define NLL_IGNORE (-100) /* torch.nn.functional.nll_loss' default */

/* Targets of NLL_IGNORE do not count, as in PyTorch. */
ls_tensor *ls_nll_loss(ls_tensor *log_probs, ls_tensor *target)
{
    ls__call call;
    if (!ls__call_begin(&call, nll_op.name, 2, (ls_tensor *[]){log_probs, target}) ||
        !ls__class_loss_check(&call, -1)) { /* no kernel of nll reads bfloat16 */
        return call.failed;
    }
    class_loss loss = {&nll_op, call.k->nll, 0.0, 0.0, NLL_IGNORE, NULL};
    return class_loss_of(&call, &loss);
}
