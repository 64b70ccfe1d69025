/* Layers of long short-term memory, with PyTorch's names: weight_ih_l0, weight_hh_l0, bias_ih_l0,
 * bias_hh_l0, then _l1. Time goes first inside, so that each step's rows lie together; the product
 * with weight_ih is made for all steps at once. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "nn/module.h"

#define LAYERS_MAX 1000 /* bounds the struct; more is a mistake in the order of the arguments */

/* The four gates lie below each other: weight_ih is [4*hidden, in], weight_hh [4*hidden,
 * hidden]. */
typedef struct layer {
    ls_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
} layer;

/* The layers lie behind the struct, so that one allocation holds both. */
typedef struct lstm {
    ls_module base;
    int layers;
    layer layer[];
} lstm;

/* Each layer's output is cut to its first T rows; the last row that ls_lstm returns is the final
 * cell state. */
static ls_tensor *lstm_forward(ls_module *m, ls_tensor *x) /* [B,T,in] -> [B,T,hidden] */
{
    const lstm *self = (lstm *)m;
    x = ls_transpose(x, 0, 1);
    for (int i = 0; i < self->layers; i++) {
        const layer *at = &self->layer[i];
        ls_tensor *gates = ls_linear(x, at->weight_ih, ls_add(at->bias_ih, at->bias_hh));
        x = ls_slice(ls_lstm(gates, at->weight_hh, NULL), 0, 0, ls_size(x, 0));
    }
    return ls_transpose(x, 0, 1);
}

static const ls_module_class lstm_class = LS_MODULE_CLASS(.name = "LSTM", .forward = lstm_forward);

/* Adds one parameter of layer i; a failure is noted on the module, which the constructor checks at
 * its end. */
static ls_tensor *add(lstm *self, const char *kind, int i, ls_shape shape, double bound)
{
    char name[LS__MODULE_NAME_MAX + 1];
    (void)snprintf(name, sizeof name, "%s_l%d", kind, i);
    ls_tensor *t = ls_module_add_param(&self->base, name, ls_empty(shape, LS_FLOAT32));
    ls_status status = ls_fill_uniform(t, -bound, bound);
    if (status < 0) {
        ls__module_fail(&self->base, status);
    }
    return t;
}

/* Larger sizes than these are refused before anything is computed from them. */
static bool in_range(const char *name, int64_t value, int64_t most)
{
    if (value >= 1 && value <= most) {
        return true;
    }
    (void)ls__fail(LS_ERR_INVALID, "LSTM: %s is %lld; it must be in 1…%lld", name, (long long)value,
                   (long long)most);
    return false;
}

/* All parameters are drawn from U(-1/sqrt(hidden), 1/sqrt(hidden)), in the order of their names. */
ls_module *ls_lstm_new(int64_t in, int64_t hidden, int layers)
{
    if (!in_range("in", in, INT64_MAX) || !in_range("hidden", hidden, INT64_MAX / 4) ||
        !in_range("layers", layers, LAYERS_MAX)) {
        return NULL;
    }
    lstm *self = ls_module_new(sizeof *self + (size_t)layers * sizeof(layer), &lstm_class);
    if (self == NULL) {
        return NULL;
    }
    self->layers = layers;
    double bound = 1.0 / sqrt((double)hidden);
    for (int i = 0; i < layers; i++) {
        layer *at = &self->layer[i];
        at->weight_ih = add(self, "weight_ih", i, LS_SHAPE(4 * hidden, i > 0 ? hidden : in), bound);
        at->weight_hh = add(self, "weight_hh", i, LS_SHAPE(4 * hidden, hidden), bound);
        at->bias_ih = add(self, "bias_ih", i, LS_SHAPE(4 * hidden), bound);
        at->bias_hh = add(self, "bias_hh", i, LS_SHAPE(4 * hidden), bound);
    }
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}
