/* SPDX-License-Identifier: Apache-2.0 */
/* A model in two parts with a skip connection, dropout, a shared parameter and parts that may be
 * recomputed, and its gradients over several micro-batches: what tests of cut graphs compare. */
#ifndef TEST_CUT_H
#define TEST_CUT_H

#undef LS_NO_SITES
#include "../tensor/local.h"

#include <string.h>

#include <lockstep/lockstep.h>

#include "autograd/param.h"
#include "says.h"

enum { WIDTH = 40, ROWS = 24, MICRO = 4, PARAMS_MAX = 16, NUMBERS_MAX = WIDTH * WIDTH };

typedef struct model {
    ls_module base;
    ls_module *fc, *norm, *drop, *block;
    ls_tensor *weight, *bias, *scale;
    bool recompute, autocast;
} model;

static inline ls_tensor *block_forward(ls_module *m, ls_tensor *x);
static const ls_module_class model_class =
    LS_MODULE_CLASS(.name = "model", .forward = block_forward);

static inline ls_tensor *model_param(model *m, const char *name, ls_shape shape, double scale)
{
    return ls_module_add_param(&m->base, name, ls_scale(ls_randn(shape), scale));
}

static inline model *model_new(bool recompute, bool autocast)
{
    CHECK_OK(ls_manual_seed(3));
    model *m = ls_module_new(sizeof *m, &model_class);
    m->weight = model_param(m, "weight", LS_SHAPE(WIDTH, WIDTH), 0.2);
    m->bias = model_param(m, "bias", LS_SHAPE(WIDTH), 0.2);
    m->scale = model_param(m, "scale", LS_SHAPE(WIDTH), 1.0);
    m->norm = ls_module_add(&m->base, "norm", ls_layer_norm_new(WIDTH, NULL));
    m->drop = ls_module_add(&m->base, "drop", ls_dropout_new(0.25));
    ls_module *block[] = {ls_linear_new(WIDTH, WIDTH, NULL), ls_gelu_new(LS_GELU_TANH),
                          ls_dropout_new(0.1), ls_linear_new(WIDTH, WIDTH, NULL)};
    m->block = ls_module_add(&m->base, "block", ls_sequential_new(block, 4));
    CHECK_OK(ls_module_status(&m->base));
    m->recompute = recompute;
    m->autocast = autocast;
    return m;
}

static inline ls_tensor *block_forward(ls_module *self, ls_tensor *x)
{
    model *m = (model *)self;
    return m->recompute ? ls_recompute(m->block, x) : ls_forward(m->block, x);
}

/* Two activations; the first goes around the block. */
static inline void first_part(model *m, ls_tensor *x, ls_tensor *h[2])
{
    ls_tensor *a = ls_linear_activation(x, m->weight, m->bias, LS_ACTIVATION_GELU);
    h[0] = ls_forward(m->drop, ls_forward(m->norm, a));
    h[1] = ls_add(block_forward(&m->base, h[0]), ls_mul(x, m->scale));
}

/* Uses the block and the weight of the first part again. */
static inline ls_tensor *second_part(model *m, ls_tensor *const k[2])
{
    ls_tensor *b = ls_add(block_forward(&m->base, k[1]), ls_mul(k[0], m->scale));
    ls_tensor *c = ls_linear_activation(b, m->weight, m->bias, LS_ACTIVATION_SILU);
    c = ls_add(ls_forward(m->norm, c), ls_linear(k[0], m->weight, NULL));
    return ls_mean(ls_mul(c, ls_tanh(c)));
}

typedef struct micro_batch {
    ls_scope *scope;
    ls_tensor *x, *h[2], *k[2], *loss;
} micro_batch;

/* The received activation: a leaf over the same elements. */
static inline ls_tensor *received(ls_tensor *h)
{
    return ls_set_requires_grad(ls_detach(h), true);
}

static inline void forward_micro(model *m, int i, bool cut, micro_batch *out)
{
    LS_AUTOCAST(m->autocast);
    ls_step_begin((ls_step_context){(uint64_t)i, 0});
    out->x = ls_set_requires_grad(ls_randn(LS_SHAPE(ROWS + i, WIDTH)), true);
    first_part(m, out->x, out->h);
    for (int k = 0; k < 2; k++) {
        out->k[k] = cut ? received(out->h[k]) : out->h[k];
    }
    out->loss = second_part(m, out->k);
    CHECK_OK(ls_tensor_status(out->loss));
}

/* What one way of computing all micro-batches left behind. */
typedef struct outcome {
    float grad[PARAMS_MAX][NUMBERS_MAX];
    float dx[MICRO][(ROWS + MICRO) * WIDTH];
    double loss[MICRO];
    int order[PARAMS_MAX * MICRO], ready; /* parameters in the order in which they became ready */
} outcome;

static inline void keep_micro(const micro_batch *b, int i, outcome *out)
{
    CHECK_OK(ls_item(b->loss, &out->loss[i]));
    ls_tensor *dx = ls_grad(b->x);
    CHECK(dx != NULL);
    CHECK_OK(ls_copy_out(dx, out->dx[i], (size_t)ls_numel(dx) * sizeof(float)));
}

/* Also makes the gradients absent. */
static inline void keep_gradients(model *m, outcome *out)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(&m->base, params, PARAMS_MAX);
    CHECK(count > 0 && count <= PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        ls_tensor *grad = ls_grad(params[i].value);
        CHECK(grad != NULL && ls_numel(grad) <= NUMBERS_MAX);
        CHECK_OK(ls_copy_out(grad, out->grad[i], (size_t)ls_numel(grad) * sizeof(float)));
        CHECK_OK(ls__param_set_grad_present(params[i].value, false));
    }
}

static inline void check_same(const outcome *a, const outcome *b)
{
    CHECK(memcmp(a->loss, b->loss, sizeof a->loss) == 0);
    for (int i = 0; i < PARAMS_MAX; i++) {
        if (memcmp(a->grad[i], b->grad[i], sizeof a->grad[i]) != 0) {
            test_fail(__FILE__, __LINE__, "gradient %d differs: %.9g, %.9g", i,
                      (double)a->grad[i][0], (double)b->grad[i][0]);
        }
    }
    CHECK(memcmp(a->dx, b->dx, sizeof a->dx) == 0);
}

static inline outcome *outcome_new(void)
{
    outcome *out = calloc(1, sizeof *out);
    CHECK(out != NULL);
    return out;
}

#endif
