/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose parameters are sharded in all ways, on any mesh. */
#ifndef PLACEMENT_SHARDED_H
#define PLACEMENT_SHARDED_H

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

static inline ls_mesh *mesh_of(const char *axes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    return mesh;
}

typedef struct way {
    const char *name;
    int rows, columns; /* 0 columns: a vector */
    ls_dtype dtype;
    int tp, ep; /* the dimension that is sharded; -1: none */
    int64_t groups[3];
    int group_count; /* of the dimension that is sharded along tp */
} way;

static const way ways[] = {
    {"qkv", 24, 8, LS_FLOAT32, 0, -1, {8, 8, 8}, 3},
    {"qkv_bias", 24, 0, LS_BFLOAT16, 0, -1, {8, 8, 8}, 3},
    {"conv1d", 8, 16, LS_FLOAT32, 1, -1, {8, 4, 4}, 3}, /* boxes with gaps between their rows */
    {"row", 8, 16, LS_FLOAT32, 1, -1, {16}, 1},
    {"experts", 8, 24, LS_FLOAT32, 1, 0, {8, 8, 8}, 3},
    {"only_ep", 16, 4, LS_BFLOAT16, -1, 1, {0}, 0},
    {"norm", 8, 0, LS_FLOAT32, -1, -1, {0}, 0},
};

enum { WAYS = sizeof ways / sizeof ways[0] };

static inline ls_tensor *param_of(ls_module *net, const way *w, const ls_mesh *mesh, int seed)
{
    const ls_shape shape = w->columns > 0 ? LS_SHAPE(w->rows, w->columns) : LS_SHAPE(w->rows);
    ls_tensor *t = ls_zeros(shape, LS_FLOAT32);
    if (w->dtype == LS_BFLOAT16) { /* values that exist */
        float *at = edit_elements(t);
        for (int64_t i = 0; i < ls_numel(t); i++) {
            at[i] = (float)((i * 7 + seed) % 64) / 32.0f;
        }
        put_elements(t, at);
        t = ls_cast(t, LS_BFLOAT16);
    }
    ls_module_add_param(net, w->name, t);
    if (w->dtype != LS_BFLOAT16) {
        CHECK_OK(ls_fill_normal(t, 0.0, 1.0));
    }
    if (mesh != NULL && ls_mesh_has(mesh, "ep") && w->ep >= 0) {
        CHECK_OK(ls_tensor_shard(t, "ep", w->ep, NULL, 0));
    }
    if (mesh != NULL && ls_mesh_has(mesh, "tp") && w->tp >= 0) {
        CHECK_OK(ls_tensor_shard(t, "tp", w->tp, w->groups, w->group_count));
    }
    return t;
}

/* Whole without a mesh. */
static inline ls_module *model_of(const ls_mesh *mesh, int seed)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    CHECK_OK(ls_manual_seed((uint64_t)seed));
    for (int i = 0; i < WAYS; i++) {
        (void)param_of(net, &ways[i], mesh, seed);
    }
    CHECK_OK(ls_module_status(net));
    return net;
}

static inline ls_tensor *complete(ls_tensor *t, const ls_mesh *mesh, const char *axis)
{
    const bool partial = ls_mesh_has(mesh, axis) && ls_placement_of(t, axis) == LS_PARTIAL;
    return partial ? ls_redistribute(t, axis, LS_PARTIAL, LS_INVARIANT) : t;
}

/* The gradient of every element is twice its value. */
static inline ls_status run_backward(ls_module *net, const ls_mesh *mesh)
{
    ls_param params[WAYS];
    ls_tensor *loss = NULL;
    CHECK_INT(ls_module_params(net, params, WAYS), WAYS);
    LS_SCOPE;
    for (int i = 0; i < WAYS; i++) {
        ls_tensor *wide = ls_cast(params[i].value, LS_FLOAT32);
        ls_tensor *sum = ls_sum(ls_mul(wide, wide));
        sum = complete(complete(sum, mesh, "ep"), mesh, "tp");
        loss = loss == NULL ? sum : ls_add(loss, sum);
    }
    return ls_backward(loss);
}

#endif
