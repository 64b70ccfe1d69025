/* SPDX-License-Identifier: Apache-2.0 */
/* Training of a model on any mesh, and of the one that most tests take. */
#ifndef PLACEMENT_TRAIN_H
#define PLACEMENT_TRAIN_H

#include <math.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "elements.h"
#include "test.h"

enum { STEPS_MAX = 100 };
enum { BATCH = 2, TIME = 128, VOCAB = 256 };

/* A sanitizer finds in two steps what it finds in more. */
static inline int step_count(void)
{
    return TEST_SLOWER > 1 ? 2 : getenv("TEST_LONG") != NULL ? STEPS_MAX : 8;
}

static inline ls_tensor *tokens(int64_t batch, int64_t time, int64_t vocab, int step)
{
    ls_tensor *x = ls_empty(LS_SHAPE(batch, time), LS_INT64);
    int64_t *at = edit_elements(x);
    for (int64_t i = 0; i < batch * time; i++) {
        at[i] = (i * 7 + i * i % 13 + step * 5) % vocab;
    }
    put_elements(x, at);
    return x;
}

static inline ls_module *gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = TIME, .vocab = VOCAB, .dropout = 0.1));
}

static inline ls_tensor *gpt_loss(ls_module *net, int step)
{
    ls_tensor *logits = ls_forward(net, tokens(BATCH, TIME, VOCAB, step));
    return ls_tensor_parallel_cross_entropy(logits, tokens(BATCH, TIME, VOCAB, step + 1), NULL);
}

/* A model and its data. */
typedef struct trial {
    ls_module *(*make)(void);
    ls_tensor *(*loss)(ls_module *net, int step);
} trial;

static inline ls_module *made(const trial *t)
{
    CHECK_OK(ls_manual_seed(7));
    ls_module *net = t->make();
    CHECK(net != NULL);
    return net;
}

/* The losses of some steps of AdamW; `how` NULL: in one process. */
static inline void train(const trial *t, const ls_tensor_parallel_options *how, int steps,
                         double *losses)
{
    ls_module *net = made(t);
    if (how != NULL) {
        CHECK_OK(ls_tensor_parallel(net, how));
        if (how->sequence) {
            net = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = ""));
            CHECK(net != NULL);
        }
    }
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    CHECK(optim != NULL);
    for (int s = 0; s < steps; s++) {
        LS_SCOPE;
        ls_step_begin((ls_step_context){.step = (uint64_t)s});
        ls_tensor *loss = t->loss(net, s);
        CHECK_OK(ls_item(loss, &losses[s]));
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

static inline double worst(const double *a, const double *b, int steps)
{
    double most = 0.0;
    for (int s = 0; s < steps; s++) {
        most = fmax(most, fabs(a[s] - b[s]));
    }
    return most;
}

#endif
