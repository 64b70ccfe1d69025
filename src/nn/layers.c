/* SPDX-License-Identifier: Apache-2.0 */
/* The layers: parameters, names, shapes and initial distributions as in PyTorch, so that a network
 * written in both starts alike. Each is a struct, a forward function and a constructor.
 *
 * A constructor checks its arguments, makes the module and adds the parameters. It returns NULL
 * with the error set when an argument is wrong or memory is short. The order in which parameters
 * are added is the order in which they draw their initial values, so it must not change.
 */
#include <stdio.h>

#include <lockstep/ops.h>

#include "autograd/param.h"
#include "base/options.h"
#include "nn/layer.h"
#include "nn/module.h"
#include "nn/parallel.h"
#include "nn/parts.h"
#include "tensor/tensor.h"

/* ---- linear ------------------------------------------------------------------------------- */

/* `bias` is NULL in a layer without one. */
typedef struct linear {
    ls_module base;
    ls_tensor *weight, *bias;
    ls_activation activation;
} linear;

/* The activation is fused into the product, which saves a pass over the output. */
static ls_tensor *linear_forward(ls_module *m, ls_tensor *x) /* [..,in] -> [..,out] */
{
    linear *self = (linear *)m;
    return ls__is_parallel(m)
               ? ls_tensor_parallel_linear(m, x, self->weight, self->bias, self->activation)
               : ls_linear_activation(x, self->weight, self->bias, self->activation);
}

static const ls_module_class linear_class =
    LS_MODULE_CLASS(.name = "Linear", .forward = linear_forward);

/* The weight is [out, in]. A value of the enumeration that does not exist would otherwise surface
 * only in the first forward. */
ls_module *ls_linear_new(int64_t in, int64_t out, const ls_linear_options *options)
{
    LS__OPTIONS_OR(NULL, ls_linear_options, given, options);
    if (!ls__layer_positive("Linear", "in", in) || !ls__layer_positive("Linear", "out", out)) {
        return NULL;
    }
    if (given.activation < LS_ACTIVATION_NONE || given.activation > LS_ACTIVATION_TANH) {
        (void)ls__fail(LS_ERR_INVALID,
                       "Linear: activation %d; give one of ls_activation, LS_ACTIVATION_NONE to "
                       "LS_ACTIVATION_TANH",
                       (int)given.activation);
        return NULL;
    }
    linear *self = ls_module_new(sizeof *self, &linear_class);
    if (self == NULL) {
        return NULL;
    }
    self->activation = given.activation;
    ls__layer_add_weights(&self->base, &self->weight, given.bias ? &self->bias : NULL,
                          LS_SHAPE(out, in), out);
    return ls__layer_finished(&self->base);
}

/* ---- embedding ---------------------------------------------------------------------------- */

/* The weight is [count, dim]: one row a token. */
typedef struct embedding {
    ls_module base;
    ls_tensor *weight;
} embedding;

static ls_tensor *embedding_forward(ls_module *m, ls_tensor *index) /* [..] -> [..,dim] */
{
    ls_tensor *weight = ((embedding *)m)->weight;
    return ls__is_parallel(m) ? ls__parallel_embedding(m, weight, index)
                              : ls_embedding(weight, index);
}

static const ls_module_class embedding_class =
    LS_MODULE_CLASS(.name = "Embedding", .forward = embedding_forward);

/* Drawn from N(0, 1), PyTorch's default for embeddings. */
ls_module *ls_embedding_new(int64_t count, int64_t dim)
{
    if (!ls__layer_positive("Embedding", "count", count) ||
        !ls__layer_positive("Embedding", "dim", dim)) {
        return NULL;
    }
    embedding *self = ls_module_new(sizeof *self, &embedding_class);
    if (self == NULL) {
        return NULL;
    }
    self->weight = ls__layer_param(&self->base, "weight", LS_SHAPE(count, dim));
    ls__layer_note(&self->base, ls_fill_normal(self->weight, 0.0, 1.0));
    ls__param_set_table(self->weight);
    return ls__layer_finished(&self->base);
}

/* ---- layer norm --------------------------------------------------------------------------- */

/* Both parameters are NULL without `affine`. */
typedef struct layer_norm {
    ls_module base;
    ls_tensor *weight, *bias;
    double eps;
} layer_norm;

static ls_tensor *layer_norm_forward(ls_module *m, ls_tensor *x) /* [..,dim] -> [..,dim] */
{
    layer_norm *self = (layer_norm *)m;
    return ls_layer_norm(x, self->weight, self->bias, self->eps);
}

static const ls_module_class layer_norm_class =
    LS_MODULE_CLASS(.name = "LayerNorm", .forward = layer_norm_forward);

/* Starts as a plain normalisation: weight 1, bias 0. */
ls_module *ls_layer_norm_new(int64_t dim, const ls_layer_norm_options *options)
{
    LS__OPTIONS_OR(NULL, ls_layer_norm_options, given, options);
    if (!ls__layer_positive("LayerNorm", "dim", dim)) {
        return NULL;
    }
    layer_norm *self = ls_module_new(sizeof *self, &layer_norm_class);
    if (self == NULL) {
        return NULL;
    }
    self->eps = given.eps;
    if (given.affine) {
        self->weight = ls__layer_param(&self->base, "weight", LS_SHAPE(dim));
        self->bias = ls__layer_param(&self->base, "bias", LS_SHAPE(dim));
        ls__layer_note(&self->base, ls_fill_constant(self->weight, 1.0));
        ls__layer_note(&self->base, ls_fill_constant(self->bias, 0.0));
    }
    return ls__layer_finished(&self->base);
}

/* ---- root mean square norm ---------------------------------------------------------------- */

/* y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019). */
typedef struct rms_norm {
    ls_module base;
    ls_tensor *weight;
    double eps;
} rms_norm;

static ls_tensor *rms_norm_forward(ls_module *m, ls_tensor *x) /* [..,dim] -> [..,dim] */
{
    rms_norm *self = (rms_norm *)m;
    return ls_rms_norm(x, self->weight, self->eps);
}

static const ls_module_class rms_norm_class =
    LS_MODULE_CLASS(.name = "RMSNorm", .forward = rms_norm_forward);

/* Starts with weight 1; PyTorch's RMSNorm has no bias. */
ls_module *ls_rms_norm_new(int64_t dim, double eps)
{
    if (!ls__layer_positive("RMSNorm", "dim", dim)) {
        return NULL;
    }
    rms_norm *self = ls_module_new(sizeof *self, &rms_norm_class);
    if (self == NULL) {
        return NULL;
    }
    self->eps = eps;
    self->weight = ls__layer_param(&self->base, "weight", LS_SHAPE(dim));
    ls__layer_note(&self->base, ls_fill_constant(self->weight, 1.0));
    return ls__layer_finished(&self->base);
}

/* ---- dropout ------------------------------------------------------------------------------ */

/* The mask is drawn from the stream of the step, by the position of each element in the global
 * batch: the same for any number of ranks. */
typedef struct dropout {
    ls_module base;
    double p;
} dropout;

/* In evaluation, and with p = 0, x itself is returned and nothing is drawn. */
static ls_tensor *dropout_forward(ls_module *m, ls_tensor *x) /* [..] -> [..] */
{
    dropout *self = (dropout *)m;
    return m->training && self->p > 0.0 ? ls_dropout(x, self->p) : x;
}

static const ls_module_class dropout_class =
    LS_MODULE_CLASS(.name = "Dropout", .forward = dropout_forward);

/* With p = 1 every element is dropped. */
ls_module *ls_dropout_new(double p)
{
    if (!(p >= 0.0 && p <= 1.0)) {
        (void)ls__fail(LS_ERR_INVALID, "Dropout: p is %g; it is a probability in 0…1", p);
        return NULL;
    }
    dropout *self = ls_module_new(sizeof *self, &dropout_class);
    if (self == NULL) {
        return NULL;
    }
    self->p = p;
    return &self->base;
}

/* ---- activations -------------------------------------------------------------------------- */

/* ReLU has no state, so the module is a plain ls_module. */
static ls_tensor *relu_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return ls_relu(x);
}

static const ls_module_class relu_class = LS_MODULE_CLASS(.name = "ReLU", .forward = relu_forward);

ls_module *ls_relu_new(void)
{
    return ls_module_new(sizeof(ls_module), &relu_class);
}

typedef struct gelu {
    ls_module base;
    ls_gelu_kind kind;
} gelu;

static ls_tensor *gelu_forward(ls_module *m, ls_tensor *x)
{
    return ls_gelu(x, ((gelu *)m)->kind);
}

static const ls_module_class gelu_class = LS_MODULE_CLASS(.name = "GELU", .forward = gelu_forward);

/* The two kinds differ by up to 5e-4, so a model must be run with the one it was trained with. */
ls_module *ls_gelu_new(ls_gelu_kind kind)
{
    if (kind != LS_GELU_ERF && kind != LS_GELU_TANH) {
        (void)ls__fail(LS_ERR_INVALID, "GELU: kind %d is neither LS_GELU_ERF nor LS_GELU_TANH",
                       (int)kind);
        return NULL;
    }
    gelu *self = ls_module_new(sizeof *self, &gelu_class);
    if (self == NULL) {
        return NULL;
    }
    self->kind = kind;
    return &self->base;
}

/* ---- identity ----------------------------------------------------------------------------- */

/* x itself and not a copy, so that the graph does not grow. */
static ls_tensor *identity_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class identity_class =
    LS_MODULE_CLASS(.name = "Identity", .forward = identity_forward);

/* Takes the place of a layer that a configuration leaves out. */
ls_module *ls_identity_new(void)
{
    return ls_module_new(sizeof(ls_module), &identity_class);
}

/* ---- sequential --------------------------------------------------------------------------- */

/* Children run in the order in which they were added; parameters of the module itself are
 * skipped. */
static ls_tensor *sequential_forward(ls_module *m, ls_tensor *x)
{
    for (int i = 0; i < m->entries->count; i++) {
        const ls__entry *at = &m->entries->list[i];
        x = at->kind == LS__ENTRY_CHILD ? ls_forward(at->child, x) : x;
    }
    return x;
}

static void sequential_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add_children(parts, m);
}

static const ls_module_class sequential_class =
    LS_MODULE_CLASS(.name = "Sequential", .forward = sequential_forward, .parts = sequential_parts);

bool ls__is_sequential(const ls_module *module)
{
    return module->cls == &sequential_class;
}

/* Takes the children, also when one is NULL or failed: the sequential then has failed as well. */
ls_module *ls_sequential_new(ls_module **children, int count)
{
    if (count < 0 || (count > 0 && children == NULL)) {
        (void)ls__fail(LS_ERR_INVALID, "Sequential: %d modules at %p; give an array of the modules",
                       count, (void *)children);
        return NULL;
    }
    ls_module *self = ls_module_new(sizeof *self, &sequential_class);
    for (int i = 0; i < count; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(self, name, children[i]);
    }
    return self;
}
