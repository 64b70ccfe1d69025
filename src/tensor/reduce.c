/* Sums and means, over everything or one dimension, and argmax. */
#include "tensor/convert.h"
#include "tensor/op.h"

/* ---- over everything ---------------------------------------------------------------------- */

typedef struct total_context {
    float factor; /* 1, or 1/numel */
    int64_t numel;
} total_context;

static ls_status total_backward(ls__rule *r)
{
    const total_context *c = r->node->context;
    r->k->fill(r->in[0].data, c->numel, r->dy[0] * c->factor, NULL);
    return LS_OK;
}

static const ls__op sum_op = {.name = "sum", .backward = total_backward};
static const ls__op mean_op = {.name = "mean", .backward = total_backward};

static ls_tensor *total(const ls__op *op, ls_tensor *a, bool mean)
{
    ls__call call;
    if (!ls__call_begin(&call, op->name, 1, &a) || !ls__call_float32(&call)) {
        return call.failed;
    }
    int64_t numel = call.in[0]->numel; /* 0: the mean is NaN, as in PyTorch; see loss.c */
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, (ls_shape){0}, LS_FLOAT32);
    if (out != NULL) {
        double sum = numel > 0 ? call.k->sum(x.data, numel) : 0.0;
        *(float *)(void *)ls__record_data(out) = (float)(mean ? sum / (double)numel : sum);
    }
    ls__node *node = ls__call_record(&call, op, out, sizeof(total_context));
    if (node != NULL) {
        float factor = mean ? (float)(1.0 / (double)numel) : 1.0f;
        *(total_context *)node->context = (total_context){factor, numel};
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

ls_tensor *ls_sum(ls_tensor *a)
{
    return total(&sum_op, a, false);
}

ls_tensor *ls_mean(ls_tensor *a)
{
    return total(&mean_op, a, true);
}

/* ---- over one dimension ------------------------------------------------------------------- */

typedef struct dim_context {
    ls_shape in;
    int dim;
    float factor;
} dim_context;

/* dx repeats dy (scaled) along the dimension. */
static ls_status dim_backward(ls__rule *r)
{
    const dim_context *c = r->node->context;
    ls__strided strides = {{0}};
    int64_t stride = 1;
    for (int d = c->in.ndim - 1; d >= 0; d--) {
        strides.stride[d] = d == c->dim ? 0 : stride;
        stride *= d == c->dim ? 1 : c->in.dim[d];
    }
    const float *dy = r->dy;
    ls__storage *scaled = NULL;
    if (c->factor != 1.0f) {
        scaled = ls__storage_new(r->tensors, (size_t)r->node->numel * sizeof(float));
        if (scaled == NULL) {
            return ls__self.status;
        }
        r->k->axpby(scaled->data, dy, r->node->numel, c->factor, 0.0f, NULL);
        dy = scaled->data;
    }
    r->k->gather(r->in[0].data, dy, strides, c->in.ndim, c->in.dim, sizeof(float), NULL);
    ls__storage_unref(scaled);
    return LS_OK;
}

static const ls__op sum_dim_op = {.name = "sum_dim", .backward = dim_backward};
static const ls__op mean_dim_op = {.name = "mean_dim", .backward = dim_backward};

static ls_shape without_dim(const ls__record *in, int dim, bool keepdim)
{
    ls_shape shape = {0};
    for (int d = 0; d < in->ndim; d++) {
        if (d != dim || keepdim) {
            shape.dim[shape.ndim++] = d == dim ? 1 : in->dim[d];
        }
    }
    return shape;
}

static ls_tensor *over_dim(const ls__op *op, ls_tensor *a, int dim, bool keepdim, bool mean)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, op->name, 1, &a) || !ls__call_float32(&call) ||
        !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (mean && in->dim[at] == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "dimension %d of %s is empty, so it has no mean; give it elements",
                             dim, ls__record_print(in).text);
    }
    uint8_t keep[LS_DIMS_MAX];
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        keep[d] = d != at;
    }
    float factor = mean ? (float)(1.0 / (double)in->dim[at]) : 1.0f;
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, without_dim(in, at, keepdim), LS_FLOAT32);
    if (out != NULL && out->numel > 0) {
        float *to = (float *)(void *)ls__record_data(out);
        call.k->sum_dims(to, x.data, in->ndim, in->dim, keep, 0.0f, NULL);
        for (int64_t i = 0; mean && i < out->numel; i++) {
            to[i] *= factor;
        }
    }
    ls__node *node = ls__call_record(&call, op, out, sizeof(dim_context));
    if (node != NULL) {
        *(dim_context *)node->context = (dim_context){ls__record_shape(in), at, factor};
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}

ls_tensor *ls_sum_dim(ls_tensor *a, int dim, bool keepdim)
{
    return over_dim(&sum_dim_op, a, dim, keepdim, false);
}

ls_tensor *ls_mean_dim(ls_tensor *a, int dim, bool keepdim)
{
    return over_dim(&mean_dim_op, a, dim, keepdim, true);
}

/* ---- argmax ------------------------------------------------------------------------------- */

/* The first of equal ones; NaN counts as largest, as in PyTorch. */
static int64_t largest(const float *x, int64_t count, int64_t stride)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        float at = x[i * stride], most = x[best * stride];
        if (most != most) {
            break;
        }
        if (at > most || at != at) {
            best = i;
        }
    }
    return best;
}

ls_tensor *ls_argmax(ls_tensor *a, int dim)
{
    ls__call call;
    int at;
    if (!ls__call_begin(&call, "argmax", 1, &a) || !ls__call_float32(&call) ||
        !ls__call_dim(&call, dim, &at)) {
        return call.failed;
    }
    const ls__record *in = call.in[0];
    if (in->dim[at] == 0) {
        return ls__call_fail(&call, LS_ERR_INVALID,
                             "dimension %d of %s is empty, so it has no largest; give it elements",
                             dim, ls__record_print(in).text);
    }
    ls__dense x = ls__call_dense(&call, 0);
    ls__record *out = ls__call_output(&call, without_dim(in, at, false), LS_INT64);
    int64_t inner = ls__shape_product(in, at + 1, in->ndim), count = in->dim[at];
    for (int64_t i = 0; out != NULL && i < out->numel; i++) {
        const float *first = (const float *)x.data + i / inner * inner * count + i % inner;
        ((int64_t *)(void *)ls__record_data(out))[i] = largest(first, count, inner);
    }
    ls__dense_drop(&x);
    return ls__call_finish(&call, out);
}
