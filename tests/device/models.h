/* SPDX-License-Identifier: Apache-2.0 */
/* Small models, their losses and one training loop, for tests that train on a device what they
 * train on the processor. */
#ifndef TEST_DEVICE_MODELS_H
#define TEST_DEVICE_MODELS_H

#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/cnn.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/lstm.h>

#include "test.h"

enum { STEPS = 4, ROWS = 5, VOCAB = 13, CONTEXT = 6, BATCH = 3 };

/* ---- data ----------------------------------------------------------------------------------- */

static inline ls_tensor *floats(int64_t rows, int64_t n, int seed)
{
    float x[1024];
    CHECK(rows * n <= 1024);
    for (int64_t i = 0; i < rows * n; i++) {
        x[i] = (float)((i * 37 + seed * 11) % 101 - 50) / 25.0f;
    }
    ls_tensor *t = ls_from_data(x, LS_SHAPE(rows, n), LS_FLOAT32);
    explicit_bzero(x, sizeof x); /* it has been read */
    return t;
}

static inline ls_tensor *integers(int64_t rows, int64_t n, int64_t below, int seed, ls_dtype dtype)
{
    int64_t x[1024];
    int32_t narrow[1024];
    CHECK(rows * n <= 1024);
    for (int64_t i = 0; i < rows * n; i++) {
        x[i] = (i * 7 + seed * 3) % below;
        narrow[i] = (int32_t)x[i];
    }
    ls_tensor *t = ls_from_data(dtype == LS_INT64 ? (void *)x : narrow,
                                n == 1 ? LS_SHAPE(rows) : LS_SHAPE(rows, n), dtype);
    explicit_bzero(x, sizeof x);
    explicit_bzero(narrow, sizeof narrow);
    return t;
}

/* ---- models --------------------------------------------------------------------------------- */

typedef ls_tensor *loss_fn(ls_module *net, int seed); /* of the data */

static inline ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 16,
                                 .context = CONTEXT, .vocab = VOCAB, .dropout = 0.1));
}

static inline ls_tensor *language(ls_module *net, int seed)
{
    ls_tensor *y = ls_forward(net, integers(BATCH, CONTEXT, VOCAB, seed, LS_INT32));
    return ls_cross_entropy(y, integers(BATCH, CONTEXT, VOCAB, seed + 1, LS_INT64), NULL);
}

static inline ls_tensor *language_bf16(ls_module *net, int seed)
{
    LS_AUTOCAST(true);
    return language(net, seed);
}

static inline ls_module *make_lstm(void)
{
    return ls_lstm_model_new(LS_OPTIONS(ls_lstm_model_options, .layers = 2, .dim = 8, .hidden = 8,
                                        .vocab = VOCAB, .dropout = 0.1));
}

/* Convolutions and batch norm with running statistics. */
static inline ls_module *make_cnn(void)
{
    ls_module *layers[] = {ls_cnn_new(2, 12), ls_dropout_new(0.1), ls_linear_new(12, 4, NULL)};
    return ls_sequential_new(layers, 3);
}

/* A stem and a residual block of two convolutions, each with batch norm. */
typedef struct residual_net {
    ls_module base;
    ls_module *conv[3], *norm[3], *head;
} residual_net;

static inline ls_tensor *residual_forward(ls_module *m, ls_tensor *x)
{
    residual_net *self = (residual_net *)m;
    ls_tensor *stem = NULL;
    for (int i = 0; i < 3; i++) {
        x = ls_batch_norm2d_relu(self->norm[i], ls_forward(self->conv[i], x), i == 2 ? stem : NULL);
        stem = i == 0 ? x : stem;
    }
    x = ls_adaptive_avg_pool2d(x, 2, 2);
    return ls_forward(self->head, ls_reshape(x, LS_SHAPE(ls_size(x, 0), -1)));
}

static inline ls_module *make_residual(void)
{
    static const ls_module_class cls =
        LS_MODULE_CLASS(.name = "residual", .forward = residual_forward);
    static const char *const conv[] = {"conv1", "conv2", "conv3"}, *const norm[] = {"bn1", "bn2",
                                                                                    "bn3"};
    residual_net *self = ls_module_new(sizeof *self, &cls);
    for (int i = 0; i < 3; i++) {
        self->conv[i] = ls_module_add(
            &self->base, conv[i],
            ls_conv2d_new(i == 0 ? 2 : 6, 6, 3,
                          LS_OPTIONS(ls_conv2d_layer_options, .padding = 1, .bias = false)));
        self->norm[i] = ls_module_add(&self->base, norm[i], ls_batch_norm2d_new(6, 1e-5, 0.1));
    }
    self->head = ls_module_add(&self->base, "head", ls_linear_new(6 * 2 * 2, 4, NULL));
    return &self->base;
}

static inline ls_tensor *image_loss(ls_module *net, int seed)
{
    ls_tensor *x = ls_reshape(floats(ROWS, 2 * 8 * 8, seed), LS_SHAPE(ROWS, 2, 8, 8));
    return ls_cross_entropy(ls_forward(net, x), integers(ROWS, 1, 4, seed, LS_INT64), NULL);
}

/* ---- training ------------------------------------------------------------------------------- */

typedef struct training {
    ls_module *(*make)(void);
    loss_fn *loss;
    bool adam, clips;
    double close; /* relative difference of losses and norms to those of the processor */
} training;

/* On the device where tensors are made; over a group (NULL: none) in a ddp with these options,
 * and with data of each rank's own. values: the loss and the norm of each step. The caller frees
 * the module. */
static inline ls_module *train_with(const ls_ddp_options *options, const training *t,
                                    ls_group *group, double values[2 * STEPS])
{
    const int rank = group != NULL ? ls_group_rank(group) : 0;
    ls_module *net = t->make();
    net = group != NULL ? ls_ddp_new(net, group, options) : net;
    CHECK_OK(ls_module_status(net));
    ls_optim *optim =
        t->adam ? ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02))
                : ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
    for (int step = 0; step < STEPS; step++) {
        double *loss = &values[2 * step], *norm = loss + 1;
        LS_SCOPE;
        *norm = 0.0;
        ls_step_begin((ls_step_context){.step = (uint64_t)step, .sample_offset = rank * ROWS});
        ls_tensor *y = t->loss(net, step + 10 * rank);
        CHECK_OK(ls_backward(y));
        CHECK_OK(ls_item(y, loss));
        CHECK_OK(t->clips ? ls_clip_grad_norm(net, 0.5, NULL, norm) : LS_OK);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    return net;
}

static inline ls_module *train(const training *t, ls_group *group, double values[2 * STEPS])
{
    return train_with(NULL, t, group, values);
}

#endif
