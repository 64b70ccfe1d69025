/* SPDX-License-Identifier: Apache-2.0 */
/* Models and micro-batches of the tests of pipelines, and comparing with a twin. */
#ifndef LS_TEST_PIPELINE_MODELS_H
#define LS_TEST_PIPELINE_MODELS_H

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/resnet.h>

#include "elements.h"
#include "test.h"

enum { STEPS = 4, MICRO_MAX = 8, TOKENS = 6, VOCAB = 11, PARAMS_MAX = 160 };

/* ---- models and data ---------------------------------------------------------------------- */

static inline ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 8, .heads = 2, .dim = 16,
                                 .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static inline ls_module *make_gpt2(void)
{
    return ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 3, .heads = 2, .dim = 16,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static inline ls_module *make_bert(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 3, .heads = 2, .dim = 16, .wide = 32,
                                  .context = TOKENS, .vocab = VOCAB, .dropout = 0.2));
}

static inline ls_module *make_resnet(void)
{
    return ls_resnet_new(18, VOCAB, true);
}

/* A U: results of the way down go to the parts of the way up too, past all between. */
typedef struct unet {
    ls_module base;
    ls_module *layer[6];
} unet;

static inline ls_tensor *up(ls_module *m, ls_tensor *const *x, int layer)
{
    return ls_gelu(ls_forward(((unet *)m)->layer[layer], ls_add(x[0], x[1])), LS_GELU_ERF);
}

static inline ls_tensor *up_3(ls_module *m, ls_tensor *const *x)
{
    return up(m, x, 3);
}

static inline ls_tensor *up_4(ls_module *m, ls_tensor *const *x)
{
    return up(m, x, 4);
}

static inline ls_tensor *up_5(ls_module *m, ls_tensor *const *x)
{
    return up(m, x, 5);
}

static inline void unet_parts(ls_module *m, ls_parts *parts)
{
    unet *self = (unet *)m;
    for (int i = 0; i < 3; i++) {
        ls_parts_add(parts, &LS_PART(.module = self->layer[i]));
    }
    ls_parts_add(parts, &LS_PART(.name = "up3", .run = up_3, .uses = "3", .from = (int[]){2, 1},
                                 .from_count = 2));
    ls_parts_add(parts, &LS_PART(.name = "up4", .run = up_4, .uses = "4", .from = (int[]){3, 0},
                                 .from_count = 2));
    ls_parts_add(parts, &LS_PART(.name = "up5", .run = up_5, .uses = "5", .from = (int[]){4, 0},
                                 .from_count = 2));
}

static inline ls_tensor *unet_forward(ls_module *m, ls_tensor *x)
{
    unet *self = (unet *)m;
    ls_tensor *a = ls_forward(self->layer[0], x), *b = ls_forward(self->layer[1], a);
    ls_tensor *c = up_3(m, (ls_tensor *[]){ls_forward(self->layer[2], b), b});
    return up_5(m, (ls_tensor *[]){up_4(m, (ls_tensor *[]){c, a}), a});
}

static const ls_module_class unet_class =
    LS_MODULE_CLASS(.name = "unet", .forward = unet_forward, .parts = unet_parts);

static inline ls_module *make_unet(void)
{
    unet *self = ls_module_new(sizeof *self, &unet_class);
    for (int i = 0; i < 6; i++) {
        ls_module *pair[] = {ls_linear_new(i == 0 ? 3 * 64 : 13, i == 5 ? VOCAB : 13, NULL),
                             ls_dropout_new(i < 5 ? 0.2 : 0.0)};
        const char name[] = {(char)('0' + i), '\0'};
        self->layer[i] = ls_module_add(&self->base, name, ls_sequential_new(pair, 2));
    }
    return &self->base;
}

static inline ls_tensor *tokens_of(int step, int m, int rows, int length, int which)
{
    int32_t x[8 * TOKENS];
    for (int i = 0; i < rows * length; i++) {
        const int value = (i * 5 + step * 7 + m * 3 + which) % VOCAB;
        x[i] = which == 1 ? value % 2 : which == 2 ? i % length < length - 1 : value;
    }
    return ls_from_data(x, LS_SHAPE(rows, length), LS_INT32);
}

static inline ls_tensor *images_of(int step, int m, int rows)
{
    float x[8 * 3 * 64];
    for (int i = 0; i < rows * 3 * 64; i++) {
        x[i] = (float)((i * 37 + step * 11 + m * 5) % 101) / 50.0F - 1.0F;
    }
    return ls_from_data(x, LS_SHAPE(rows, 3, 8, 8), LS_FLOAT32);
}

static inline ls_tensor *classes_of(int step, int m, int rows)
{
    int32_t y[8];
    for (int i = 0; i < rows; i++) {
        y[i] = (i * 3 + step + m) % VOCAB;
    }
    return ls_from_data(y, LS_SHAPE(rows), LS_INT32);
}

typedef struct use {
    ls_module *(*make)(void);
    const char *schedule;
    int micro, chunks, warm_up;
    bool recompute;
    bool steps; /* the pipeline does, with the optimizer */
    const char *cut;
    bool short_last; /* the last micro-batch has fewer samples, and sizes change from step to
                        step */
    bool lengths;    /* so do those of the sequences */
    bool mixed;      /* bfloat16 in every second step */
} use;

static inline int rows_of(const use *u, int step, int m)
{
    const int least = u->make == make_resnet ? 2 : 1; /* batch norm needs two */
    return !u->short_last ? 3 : m == u->micro - 1 ? least : 3 + (step + m) % 2;
}

/* `replica` has data of its own. */
static inline ls_micro_batch micro_of(const use *u, int step, int m, int replica)
{
    const int rows = rows_of(u, step, m), k = m + 40 * replica;
    ls_micro_batch micro = {
        .size = sizeof micro,
        .context = {.step = (uint64_t)(step * 100 + m), .sample_offset = 10 * replica}};
    const int length = u->lengths ? 2 + (step + m) % (TOKENS - 1) : TOKENS;
    if (u->make == make_resnet || u->make == make_unet) {
        ls_tensor *x = images_of(step, k, rows);
        micro.inputs[0] = u->make == make_unet ? ls_reshape(x, LS_SHAPE(rows, 3 * 64)) : x;
        micro.target = classes_of(step, k, rows);
    } else {
        for (int i = 0; i < (u->make == make_bert ? 3 : 1); i++) {
            micro.inputs[i] = tokens_of(step, k, rows, length, i);
        }
        micro.target = tokens_of(step, k + 1, rows, length, 0);
    }
    return micro;
}

static inline ls_tensor *loss_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return ls_cross_entropy(output, target, NULL);
}

/* ---- comparing ----------------------------------------------------------------------------- */

/* Every parameter of the stage is the twin's, bit for bit; a tied one up to rounding. */
static inline void check_params(ls_module *net, ls_module *twin, bool tied)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        ls_tensor *other = ls_module_param(twin, params[i].name);
        const float *a = elements_of(params[i].value), *b = elements_of(other);
        int64_t wrong = 0;
        for (int64_t e = 0; e < ls_numel(other); e++) {
            wrong += tied ? fabsf(a[e] - b[e]) > 1e-5F : memcmp(&a[e], &b[e], sizeof *a) != 0;
        }
        CHECK_INT(wrong, 0);
    }
}

static inline void check_losses(const double *a, const double *b, int count, bool tied)
{
    for (int m = 0; m < count; m++) {
        CHECK(tied ? fabs(a[m] - b[m]) < 1e-5 : a[m] == b[m]);
    }
}

/* AdamW divides by the size of a gradient, so it would not keep differences in rounding small. */
static inline ls_optim *optim_of(ls_module *net, bool tied)
{
    return ls_module_param_count(net) == 0 ? NULL
           : tied                          ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1))
                  : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.01));
}

static inline void check_output(ls_tensor *y, ls_tensor *expected, bool tied)
{
    CHECK(!ls_requires_grad(y) && ls_numel(y) == ls_numel(expected));
    const float *a = elements_of(y), *b = elements_of(expected);
    int64_t wrong = 0;
    for (int64_t e = 0; e < ls_numel(y); e++) {
        wrong += tied ? fabsf(a[e] - b[e]) > 1e-4F : memcmp(&a[e], &b[e], sizeof *a) != 0;
    }
    CHECK_INT(wrong, 0);
}

#endif
