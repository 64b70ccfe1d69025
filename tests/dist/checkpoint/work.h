/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tests train: a small network with dropout, AdamW and a loader. */
#ifndef CHECKPOINT_WORK_H
#define CHECKPOINT_WORK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

enum { WORK_IN = 6, WORK_HIDDEN = 17, WORK_OUT = 4, WORK_SAMPLES = 60, WORK_ITEMS = 4 };

typedef struct work_net {
    ls_module base;
    ls_module *fc1, *dropout, *fc2;
    int64_t calls; /* state of the class' own */
    double scale;
} work_net;

static ls_tensor *work_forward(ls_module *m, ls_tensor *x)
{
    work_net *self = (work_net *)m;
    self->calls++;
    self->scale *= 0.999;
    ls_tensor *h = ls_forward(self->dropout, ls_relu(ls_forward(self->fc1, x)));
    return ls_forward(self->fc2, ls_scale(h, self->scale));
}

static ls_status work_state(ls_module *m, const char *prefix, const ls_state_visitor *v)
{
    work_net *self = (work_net *)m;
    char name[64];
    (void)snprintf(name, sizeof name, "%s.calls", prefix);
    LS_TRY(v->int64(v->self, name, &self->calls));
    (void)snprintf(name, sizeof name, "%s.scale", prefix);
    return v->float64(v->self, name, &self->scale);
}

static const ls_module_class work_class =
    LS_MODULE_CLASS(.name = "work", .forward = work_forward, .state = work_state);

typedef struct work_data {
    ls_dataset base;
} work_data;

static ls_status work_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    for (int k = 0; k < WORK_IN; k++) {
        ((float *)x)[k] = ls_random_normal(3, 4, (uint64_t)(index * WORK_IN + k));
    }
    *(int32_t *)y = (int32_t)(index % WORK_OUT);
    return LS_OK;
}

typedef struct work {
    work_data data;
    ls_sampler *sampler;
    ls_loader *loader;
    work_net *inner;
    ls_module *net;
    ls_optim *optim;
    ls_checkpoint_item items[WORK_ITEMS];
} work;

/* `seed` is of the weights: a resumed job begins with others than those it loads. */
static inline void work_open(work *w, uint64_t seed, int64_t batch)
{
    CHECK_OK(ls_manual_seed(seed));
    w->data = (work_data){{.size = sizeof(ls_dataset),
                           .count = WORK_SAMPLES,
                           .x_shape = LS_SHAPE(WORK_IN),
                           .y_shape = LS_SCALAR,
                           .x_dtype = LS_FLOAT32,
                           .y_dtype = LS_INT32,
                           .get = work_get}};
    CHECK_OK(w->sampler = ls_sampler_new(
                 WORK_SAMPLES, LS_OPTIONS(ls_sampler_options, .batch = batch, .seed = seed)));
    CHECK_OK(w->loader = ls_loader_new(&w->data.base, w->sampler, NULL));
    work_net *n = ls_module_new(sizeof *n, &work_class);
    n->fc1 = ls_module_add(&n->base, "fc1", ls_linear_new(WORK_IN, WORK_HIDDEN, NULL));
    n->dropout = ls_module_add(&n->base, "dropout", ls_dropout_new(0.3));
    n->fc2 = ls_module_add(&n->base, "fc2", ls_linear_new(WORK_HIDDEN, WORK_OUT, NULL));
    n->scale = 1.0;
    w->inner = n;
    w->net = ls_ddp_new(&n->base, ls_world(), NULL);
    CHECK(w->net);
    w->optim = ls_adamw_new(w->net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    CHECK(w->optim);
    CHECK_OK(ls_optim_add_group(w->optim, ls_select_vectors, NULL,
                                LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
    const ls_checkpoint_item items[WORK_ITEMS] = {
        LS_ITEM("model", ls_ddp_module(w->net)), LS_ITEM("optim", w->optim),
        LS_ITEM("loader", w->loader), LS_ITEM("random", ls_runtime_current())};
    memcpy(w->items, items, sizeof items);
}

static inline void work_close(work *w)
{
    ls_optim_free(w->optim);
    ls_module_free(w->net);
    ls_loader_free(w->loader);
    ls_sampler_free(w->sampler);
}

/* One step; the loss of this rank. */
static inline double work_step(work *w)
{
    ls_batch batch = {.size = sizeof batch};
    double loss = 0.0;
    while (!ls_loader_next(w->loader, &batch)) {
        CHECK_OK(ls_loader_status(w->loader));
    }
    {
        LS_SCOPE;
        ls_tensor *mean = ls_cross_entropy(ls_forward(w->net, batch.x), batch.y, NULL);
        CHECK_OK(ls_backward(mean));
        CHECK_OK(ls_item(mean, &loss));
    }
    ls_optim_set_lr(w->optim, ls_optim_lr(w->optim) * 0.97);
    CHECK_OK(ls_optim_step(w->optim));
    ls_optim_zero_grad(w->optim);
    return loss;
}

/* ---- a hash of everything the items show --------------------------------------------------- */

typedef struct work_hash {
    uint64_t hash;
} work_hash;

static inline void work_mix(work_hash *h, const void *data, size_t bytes) /* FNV-1a */
{
    for (size_t i = 0; i < bytes; i++) {
        h->hash = (h->hash ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    }
}

static ls_status work_hash_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    size_t bytes = ls_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++) {
        bytes *= (size_t)t->local[i];
    }
    work_mix(self, name, strlen(name));
    work_mix(self, t->data, bytes);
    return LS_OK;
}

static ls_status work_hash_int64(void *self, const char *name, int64_t *value)
{
    work_mix(self, name, strlen(name));
    work_mix(self, value, sizeof *value);
    return LS_OK;
}

static ls_status work_hash_float64(void *self, const char *name, double *value)
{
    work_mix(self, name, strlen(name));
    work_mix(self, value, sizeof *value);
    return LS_OK;
}

static inline uint64_t work_hash_of(const ls_checkpoint_item *items, int count)
{
    work_hash h = {0xcbf29ce484222325u};
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = &h,
                                      .tensor = work_hash_tensor,
                                      .int64 = work_hash_int64,
                                      .float64 = work_hash_float64};
    for (int i = 0; i < count; i++) {
        CHECK_OK(items[i].state(items[i].object, items[i].prefix, &visitor));
    }
    return h.hash;
}

/* ---- folders ------------------------------------------------------------------------------ */

/* A new folder's name; the same on all ranks of a test, removed by folder_remove. */
static inline const char *folder_new(void)
{
    static char path[] = "/tmp/lockstep-checkpoint-XXXXXX";
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    CHECK(mkdtemp(path) != NULL);
    return path;
}

static inline void shell(const char *format, const char *path)
{
    char command[512];
    (void)snprintf(command, sizeof command, format, path);
    test_output done = test_run(command, 20);
    if (done.status != 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", command, done.text);
    }
    free(done.text);
}

static inline void folder_remove(const char *path)
{
    shell("rm -rf '%s'", path);
}

#endif
