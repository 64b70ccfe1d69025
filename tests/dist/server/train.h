/* SPDX-License-Identifier: Apache-2.0 */
/* Training of a small model by servers, and by ls_ddp_new over the workers alone. */
#ifndef SERVER_TRAIN_H
#define SERVER_TRAIN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>

#include "base/runtime.h"
#include "test.h"

enum { IN = 6, HIDDEN = 27, OUT = 3, SHARE = 5, STEPS = 7, NUMBERS_MAX = 4096 };

#if defined(HOSTS) /* every rank is on a pretended host of its own */
__attribute__((constructor)) static void on_hosts_of_their_own(void)
{
    setenv("LOCKSTEP_HOSTS", HOSTS, 1);
}
#endif

/* How it is trained; all zero: AdamW, one micro-batch, a server. */
typedef struct recipe {
    ls_server_options server;
    bool sgd, rmsprop, weighted, uneven, bf16, norm, late;
    int micro_batches, steps;
} recipe; /* server.clip_norm limits the averages, too */

typedef struct numbers {
    char data[NUMBERS_MAX * sizeof(float)];
    size_t bytes;
} numbers;

/* A table that two places use, and a parameter that no pass reaches. */
typedef struct model {
    ls_module base;
    ls_module *body, *norm; /* NULL: none */
    ls_tensor *table, *unused;
} model;

static ls_tensor *model_forward(ls_module *m, ls_tensor *x)
{
    model *self = (model *)m;
    ls_tensor *rows = ls_matmul(x, ls_cast(self->table, LS_FLOAT32));
    if (self->norm != NULL) {
        ls_tensor *image = ls_reshape(rows, LS_SHAPE(SHARE, HIDDEN, 1, 1));
        rows = ls_reshape(ls_forward(self->norm, image), LS_SHAPE(SHARE, HIDDEN));
    }
    ls_tensor *h = ls_forward(self->body, ls_relu(rows));
    return ls_matmul(h, ls_cast(self->table, LS_FLOAT32));
}

static const ls_module_class model_class =
    LS_MODULE_CLASS(.name = "model", .forward = model_forward);

static inline ls_module *make_model(const recipe *how)
{
    CHECK_OK(ls_manual_seed(1));
    model *m = ls_module_new(sizeof *m, &model_class);
    ls_module *layers[] = {ls_linear_new(HIDDEN, 40, NULL), ls_relu_new(),
                           ls_linear_new(40, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, IN, NULL)};
    float table[IN * HIDDEN];
    for (int i = 0; i < IN * HIDDEN; i++) {
        table[i] = 0.3f * ls_random_normal(3, 1, (uint64_t)i);
    }
    const ls_dtype dtype = how->bf16 ? LS_BFLOAT16 : LS_FLOAT32;
    m->table = ls_module_add_param(
        &m->base, "table", ls_cast(ls_from_data(table, LS_SHAPE(IN, HIDDEN), LS_FLOAT32), dtype));
    m->unused = ls_module_add_param(&m->base, "unused", ls_ones(LS_SHAPE(33), LS_FLOAT32));
    m->body = ls_module_add(&m->base, "body", ls_sequential_new(layers, 5));
    m->norm =
        how->norm ? ls_module_add(&m->base, "norm", ls_batch_norm2d_new(HIDDEN, 1e-5, 0.1)) : NULL;
    CHECK_OK(ls_module_status(&m->base));
    return &m->base;
}

static inline ls_optim *optim_of(ls_module *net, const recipe *how)
{
    return how->sgd       ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9))
           : how->rmsprop ? ls_rmsprop_new(net, LS_OPTIONS(ls_rmsprop_options, .lr = 1e-3,
                                                           .momentum = 0.9, .centered = true))
                          : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
}

static inline ls_tensor *loss_of(ls_module *net, int worker, int batch)
{
    float x[SHARE * IN];
    int32_t y[SHARE];
    for (int i = 0; i < SHARE * IN; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(100 * batch + worker), (uint64_t)i);
    }
    for (int i = 0; i < SHARE; i++) {
        y[i] = x[IN * i] > 0.3f ? 0 : x[IN * i + 1] > x[IN * i + 2] ? 1 : 2;
    }
    return ls_cross_entropy(ls_forward(net, ls_from_data(x, LS_SHAPE(SHARE, IN), LS_FLOAT32)),
                            ls_from_data(y, LS_SHAPE(SHARE), LS_INT32), NULL);
}

static inline double lr_of(int step)
{
    return 0.02 / (1 + step);
}

/* The gradient of a step of a worker; its push with servers, its part of the average without. */
static inline void backward(ls_module *net, const recipe *how, int worker, int step)
{
    const int micro = how->micro_batches > 0 ? how->micro_batches : 1;
    for (int m = 0; m < micro; m++) {
        LS_SCOPE;
        ls_tensor *loss = loss_of(net, worker, step * micro + m);
        CHECK_OK(ls_ddp_set_sync(net, m == micro - 1));
        CHECK_OK(how->weighted ? ls_backward_weighted(loss, worker % 3) : ls_backward(loss));
    }
}

static inline int steps_of(const recipe *how, int worker)
{
    const int steps = how->steps > 0 ? how->steps : STEPS;
    return how->uneven ? steps - 2 * worker : steps;
}

static inline void one_step(ls_module *net, ls_optim *optim, const recipe *how, int worker,
                            int step)
{
    ls_optim_set_lr(optim, lr_of(step));
    backward(net, how, worker, step);
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

static inline numbers numbers_of(ls_module *net)
{
    numbers out = {.bytes = 0};
    ls_param params[64];
    const int count = ls_module_params(net, params, 64);
    for (int i = 0; i < count; i++) {
        const size_t bytes =
            (size_t)ls_numel(params[i].value) * ls_dtype_size(ls_dtype_of(params[i].value));
        CHECK(out.bytes + bytes <= sizeof out.data);
        memcpy(out.data + out.bytes, ls_data(params[i].value), bytes);
        out.bytes += bytes;
    }
    return out;
}

static inline void append_buffer(ls_module *net, const char *name, numbers *out)
{
    ls_tensor *buffer = ls_module_buffer(net, name);
    const size_t bytes = (size_t)ls_numel(buffer) * sizeof(float);
    CHECK(out->bytes + bytes <= sizeof out->data);
    memcpy(out->data + out->bytes, ls_data(buffer), bytes);
    out->bytes += bytes;
}

static inline numbers all_numbers(ls_module *net, const recipe *how)
{
    numbers out = numbers_of(net);
    if (how->norm) {
        append_buffer(net, "norm.running_mean", &out);
        append_buffer(net, "norm.running_var", &out);
    }
    return out;
}

static inline int workers_of(const recipe *how)
{
    return how->server.colocated ? ls_world_size() : ls_world_size() - how->server.servers;
}

/* Trainings of groups of different ranks, one after the other, are compared with nothing. */
static inline void forget_settings(void)
{
    ls__self.runtime->config = (ls__config){0};
}

/* The workers alone, with their averages. Other ranks get zeros. */
static inline numbers train_ddp(const recipe *how)
{
    int ranks[64];
    numbers out = {.bytes = 0};
    const int workers = workers_of(how), rank = ls_rank();
    ls_group *group = NULL;
    for (int i = 0; i < workers; i++) {
        ranks[i] = i;
    }
    CHECK_OK(ls_group_new(ls_world(), ranks, workers, "workers", &group));
    if (group == NULL) {
        return out;
    }
    ls_module *net = ls_ddp_new(make_model(how), group, NULL);
    ls_optim *optim = optim_of(net, how);
    bool more = true;
    for (int step = 0; more; step++) {
        ls_optim_set_lr(optim, lr_of(step));
        if (step < steps_of(how, rank)) {
            backward(net, how, rank, step);
        } else {
            CHECK_OK(ls_ddp_join(
                net, LS_OPTIONS(ls_ddp_join_options, .divide_by_initial_world_size = false),
                &more));
        }
        if (more) {
            CHECK_OK(how->server.clip_norm > 0.0
                         ? ls_clip_grad_norm(net, how->server.clip_norm, NULL, NULL)
                         : LS_OK);
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
    }
    out = all_numbers(net, how);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_group_free(group));
    forget_settings();
    return out;
}

/* Steps [from, to) of every worker. */
static inline void run_steps(ls_module *net, ls_optim *optim, const recipe *how, int from, int to)
{
    CHECK_OK(ls_server_run(net, optim));
    if (how->late && ls_rank() == 1) {
        const struct timespec moment = {0, 50000000};
        (void)nanosleep(&moment, NULL);
    }
    for (int step = from; ls_server_works(net) && step < steps_of(how, ls_rank()) && step < to;
         step++) {
        one_step(net, optim, how, ls_rank(), step);
    }
    CHECK_OK(ls_server_join(net));
}

static inline ls_module *serve_model(const recipe *how)
{
    ls_server_options options = how->server;
    options.size = sizeof options;
    options.bucket_bytes = options.bucket_bytes > 0 ? options.bucket_bytes : 2000;
    ls_module *net = ls_server_new(make_model(how), ls_world(), &options);
    CHECK_OK(ls_module_status(net));
    return net;
}

static inline numbers train_served(const recipe *how)
{
    ls_module *net = serve_model(how);
    ls_optim *optim = optim_of(net, how);
    run_steps(net, optim, how, 0, 1000);
    const numbers out = all_numbers(net, how);
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
    return out;
}

#endif
