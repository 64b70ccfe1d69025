/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that are dropped at random (stochastic depth, Huang et al. 2016; section 6.2.2 of the DDP
 * paper), on all ranks alike and on each by itself, against one process that has all shares. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "replicas.h"
#include "test.h"

enum { BLOCKS = 6, WIDTH = 8, OUT = 3, SHARE = 5, STEPS = 24, PARAMS = 2 * BLOCKS + 2 };

typedef struct deep {
    ls_module base;
    ls_module *block[BLOCKS], *head;
    unsigned kept; /* bit b: block b is not dropped */
} deep;

static ls_tensor *deep_forward(ls_module *m, ls_tensor *x)
{
    deep *self = (deep *)m;
    for (int b = 0; b < BLOCKS; b++) {
        if ((self->kept >> b & 1) != 0) {
            x = ls_add(x, ls_relu(ls_forward(self->block[b], x)));
        }
    }
    return ls_forward(self->head, x);
}

static const ls_module_class deep_class = LS_MODULE_CLASS(.name = "deep", .forward = deep_forward);

static deep *deep_new(void)
{
    static const char *const NAMES[BLOCKS] = {"b0", "b1", "b2", "b3", "b4", "b5"};
    CHECK_OK(ls_manual_seed(1));
    deep *n = ls_module_new(sizeof *n, &deep_class);
    for (int b = 0; b < BLOCKS; b++) {
        n->block[b] = ls_module_add(&n->base, NAMES[b], ls_linear_new(WIDTH, WIDTH, NULL));
    }
    n->head = ls_module_add(&n->base, "head", ls_linear_new(WIDTH, OUT, NULL));
    CHECK_OK(ls_module_status(&n->base));
    return n;
}

/* How layers are dropped. */
typedef enum dropping { ALIKE, APART } dropping;

/* The blocks that a rank keeps in a step: half of them; all are dropped in the third. */
static unsigned kept(dropping how, int rank, int step)
{
    unsigned bits = 0;
    for (int b = 0; b < BLOCKS && step != 2; b++) {
        const uint64_t key = (uint64_t)(how == ALIKE ? step : 1000 * (rank + 1) + step);
        bits |= ls_random_normal(3, key, (uint64_t)b) > 0.0f ? 1u << b : 0;
    }
    return bits;
}

static ls_tensor *loss_of(ls_module *net, deep *n, dropping how, int rank, int step)
{
    float x[SHARE * WIDTH];
    int32_t y[SHARE];
    for (int i = 0; i < SHARE * WIDTH; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(100 * step + rank), (uint64_t)i);
    }
    for (int i = 0; i < SHARE; i++) {
        y[i] = x[WIDTH * i] > 0.3f ? 0 : x[WIDTH * i + 1] > x[WIDTH * i + 2] ? 1 : 2;
    }
    n->kept = kept(how, rank, step);
    return ls_cross_entropy(ls_forward(net, ls_from_data(x, LS_SHAPE(SHARE, WIDTH), LS_FLOAT32)),
                            ls_from_data(y, LS_SHAPE(SHARE), LS_INT32), NULL);
}

/* Momentum and moments of a block that all ranks have dropped must not decay. */
static ls_optim *optimizer(ls_module *net, bool adam)
{
    return adam ? ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-2))
                : ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
}

static void twin_step(deep *twin, ls_optim *optim, dropping how, int step)
{
    LS_SCOPE;
    ls_tensor *sum = NULL;
    ls_optim_zero_grad(optim);
    for (int r = 0; r < ls_world_size(); r++) {
        ls_tensor *loss = loss_of(&twin->base, twin, how, r, step);
        sum = sum == NULL ? loss : ls_add(sum, loss);
    }
    CHECK_OK(ls_backward(ls_scale(sum, 1.0 / ls_world_size())));
    CHECK_OK(ls_optim_step(optim));
}

/* A gradient is there where any rank has used the block, and only there. */
static void check_present(ls_module *ddp, dropping how, int step)
{
    ls_param p[PARAMS];
    unsigned any = 0;
    for (int r = 0; r < ls_world_size(); r++) {
        any |= kept(how, r, step);
    }
    CHECK_INT(ls_module_params(ddp, p, PARAMS), PARAMS);
    for (int i = 0; i < 2 * BLOCKS; i++) {
        CHECK((ls_grad(p[i].value) != NULL) == ((any >> (i / 2) & 1) != 0));
    }
}

static void check_close(ls_module *a, ls_module *b)
{
    ls_param p[PARAMS], q[PARAMS];
    CHECK_INT(ls_module_params(a, p, PARAMS), PARAMS);
    CHECK_INT(ls_module_params(b, q, PARAMS), PARAMS);
    for (int i = 0; i < PARAMS; i++) {
        const float *x = elements_of(p[i].value), *y = elements_of(q[i].value);
        for (int64_t k = 0; k < ls_numel(p[i].value); k++) {
            CHECK_NEAR(x[k], y[k], 1e-4 * (1.0 + fabs((double)y[k])));
        }
    }
}

/* Returns the hash of the parameters at the end. */
static uint64_t train(dropping how, bool adam, ls_reduce_mode mode)
{
    deep *twin = deep_new(), *n = deep_new();
    ls_module *ddp =
        ls_ddp_new(&n->base, ls_world(),
                   LS_OPTIONS(ls_ddp_options, .bucket_bytes = 600, .first_bucket_bytes = 300,
                              .mode = mode, .check_every = 1));
    CHECK_OK(ls_module_status(ddp));
    ls_optim *optim = optimizer(ddp, adam), *alone = optimizer(&twin->base, adam);
    for (int step = 0; step < STEPS; step++) {
        {
            LS_SCOPE;
            CHECK_OK(ls_backward(loss_of(ddp, n, how, ls_rank(), step)));
            check_present(ddp, how, step);
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        twin_step(twin, alone, how, step);
    }
    check_close(ddp, &twin->base);
    const uint64_t hash = equal_replicas(ddp, ls_world());
    ls_optim_free(alone);
    ls_optim_free(optim);
    ls_module_free(ddp);
    ls_module_free(&twin->base);
    return hash;
}

/* All modes give the same bits. */
DIST_TESTS(dropped_layers_of_, _ranks_train_as_in_one_process, 1, 2, 3, 4, 8)
{
    for (int how = ALIKE; how <= APART; how++) {
        const uint64_t first = train((dropping)how, false, LS_REDUCE_OVERLAP);
        CHECK(train((dropping)how, false, LS_REDUCE_BUCKETED) == first);
        CHECK(train((dropping)how, false, LS_REDUCE_FLAT) == first);
        CHECK(train((dropping)how, false, LS_REDUCE_NAIVE) == first);
        (void)train((dropping)how, true, LS_REDUCE_OVERLAP);
    }
}

TEST_MAIN
