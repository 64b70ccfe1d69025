/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of long short-term memory and of gated recurrent units, with PyTorch's names:
 * weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, then _l1. Time goes first inside, so that
 * each step's rows lie together; the product with weight_ih is made for all steps at once. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "nn/module.h"

#define LAYERS_MAX 1000 /* bounds the struct; more is a mistake in the order of the arguments */

/* The gates, 4 of an LSTM and 3 of a GRU, lie below each other: weight_ih is [gates*hidden, in],
 * weight_hh [gates*hidden, hidden]. */
typedef struct layer {
    ls_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
} layer;

/* The layers lie behind the struct, so that one allocation holds both. */
typedef struct recurrent {
    ls_module base;
    int layers;
    layer layer[];
} recurrent;

/* Each layer's output is cut to its first T rows; the last row that ls_lstm returns is the final
 * cell state. */
static ls_tensor *lstm_forward(ls_module *m, ls_tensor *x) /* [B,T,in] -> [B,T,hidden] */
{
    const recurrent *self = (recurrent *)m;
    x = ls_transpose(x, 0, 1);
    for (int i = 0; i < self->layers; i++) {
        const layer *at = &self->layer[i];
        ls_tensor *gates = ls_linear(x, at->weight_ih, ls_add(at->bias_ih, at->bias_hh));
        x = ls_slice(ls_lstm(gates, at->weight_hh, NULL), 0, 0, ls_size(x, 0));
    }
    return ls_transpose(x, 0, 1);
}

static const ls_module_class lstm_class = LS_MODULE_CLASS(.name = "LSTM", .forward = lstm_forward);

/* The reset gate multiplies the product with weight_hh and bias_hh, so this bias stays apart. */
static ls_tensor *gru_forward(ls_module *m, ls_tensor *x) /* [B,T,in] -> [B,T,hidden] */
{
    const recurrent *self = (recurrent *)m;
    x = ls_transpose(x, 0, 1);
    for (int i = 0; i < self->layers; i++) {
        const layer *at = &self->layer[i];
        x = ls_gru(ls_linear(x, at->weight_ih, at->bias_ih), at->weight_hh, at->bias_hh, NULL);
    }
    return ls_transpose(x, 0, 1);
}

static const ls_module_class gru_class = LS_MODULE_CLASS(.name = "GRU", .forward = gru_forward);

/* Adds one parameter of layer i; a failure is noted on the module, which the constructor checks at
 * its end. */
static ls_tensor *add(recurrent *self, const char *kind, int i, ls_shape shape, double bound)
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
static bool in_range(const char *kind, const char *name, int64_t value, int64_t most)
{
    if (value >= 1 && value <= most) {
        return true;
    }
    (void)ls__fail(LS_ERR_INVALID, "%s: %s is %lld; it must be in 1…%lld", kind, name,
                   (long long)value, (long long)most);
    return false;
}

/* All parameters are drawn from U(-1/sqrt(hidden), 1/sqrt(hidden)), in the order of their names. */
static void add_layer(recurrent *self, int i, int64_t in, int64_t hidden, int64_t wide)
{
    const double bound = 1.0 / sqrt((double)hidden);
    layer *at = &self->layer[i];
    at->weight_ih = add(self, "weight_ih", i, LS_SHAPE(wide, in), bound);
    at->weight_hh = add(self, "weight_hh", i, LS_SHAPE(wide, hidden), bound);
    at->bias_ih = add(self, "bias_ih", i, LS_SHAPE(wide), bound);
    at->bias_hh = add(self, "bias_hh", i, LS_SHAPE(wide), bound);
}

static ls_module *make(const ls_module_class *cls, int gates, int64_t in, int64_t hidden,
                       int layers)
{
    if (!in_range(cls->name, "in", in, INT64_MAX) ||
        !in_range(cls->name, "hidden", hidden, INT64_MAX / gates) ||
        !in_range(cls->name, "layers", layers, LAYERS_MAX)) {
        return NULL;
    }
    recurrent *self = ls_module_new(sizeof *self + (size_t)layers * sizeof(layer), cls);
    if (self == NULL) {
        return NULL;
    }
    self->layers = layers;
    for (int i = 0; i < layers; i++) {
        add_layer(self, i, i > 0 ? hidden : in, hidden, gates * hidden);
    }
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}

ls_module *ls_lstm_new(int64_t in, int64_t hidden, int layers)
{
    return make(&lstm_class, 4, in, hidden, layers);
}

ls_module *ls_gru_new(int64_t in, int64_t hidden, int layers)
{
    return make(&gru_class, 3, in, hidden, layers);
}
