/* SPDX-License-Identifier: Apache-2.0 */
/* DDP over a plug-in (tests/plugins/loop.c) that moves the gradients by threads of its own, late
 * and in its own order: the same losses as native, and a wait that is missing shows. */
#include <dlfcn.h>
#include <math.h>

#include <lockstep/lockstep.h>

#include "../../plugins/loop.h"
#include "replicas.h"
#include "says.h"
#include "test.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

enum { STEPS = 12, ROWS = 6, IN = 8, OUT = 3 };

static ls_group *group_of(const char *backend)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = backend), &group));
    return group;
}

static ls_module *net_new(void)
{
    CHECK_OK(ls_manual_seed(3));
    ls_module *layers[] = {ls_linear_new(IN, 16, NULL), ls_relu_new(),
                           ls_linear_new(16, OUT, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    CHECK(net);
    return net;
}

static double train_step(ls_module *ddp, ls_optim *optim, int step)
{
    float xs[ROWS * IN];
    int32_t ys[ROWS];
    for (int i = 0; i < ROWS * IN; i++) {
        xs[i] = ls_random_normal(5, (uint64_t)step, (uint64_t)(ls_rank() * ROWS * IN + i));
        ys[i / IN] = i / IN % OUT;
    }
    double loss = 0;
    {
        LS_SCOPE;
        ls_tensor *x = ls_from_data(xs, LS_SHAPE(ROWS, IN), LS_FLOAT32);
        ls_tensor *y = ls_from_data(ys, LS_SHAPE(ROWS), LS_INT32);
        ls_tensor *l = ls_cross_entropy(ls_forward(ddp, x), y, NULL);
        CHECK_OK(ls_backward(l));
        CHECK_OK(ls_item(l, &loss));
    }
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return loss;
}

/* The losses of this rank; whether the replicas end alike. */
static void train(const char *backend, bool alike, double *losses)
{
    ls_group *group = group_of(backend);
    ls_module *ddp = ls_ddp_new(net_new(), group, LS_OPTIONS(ls_ddp_options, .bucket_bytes = 256));
    CHECK(ddp);
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int step = 0; step < STEPS; step++) {
        losses[step] = train_step(ddp, optim, step);
    }
    if (alike) {
        (void)equal_replicas(ddp, group);
    }
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(group));
}

static void compare(double tolerance)
{
    double native[STEPS], loop[STEPS];
    setenv("LOOP_DELAY_US", "500", 1);
    train("native", true, native);
    train(LOOP, true, loop);
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(loop[step], native[step], tolerance);
    }
}

/* A sum of two has one order. */
DIST_TEST(two_ranks_over_a_plug_in_have_the_losses_of_native, 2)
{
    compare(0.0);
}

DIST_TEST(three_ranks_differ_by_the_order_of_sums_only, 3)
{
    compare(1e-5);
}

DIST_TEST(buckets_lie_in_the_registered_memory_of_the_plug_in, 2)
{
    setenv("LOOP_PROMISES", "registered abort", 1);
    ls_group *group = group_of(LOOP);
    const loop_counts *counts = dlsym(dlopen(LOOP, RTLD_NOW | RTLD_NOLOAD), "loop_counters");
    ls_module *ddp = ls_ddp_new(net_new(), group, NULL);
    CHECK(ddp && counts != NULL && counts->allocated > 0);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(group));
    CHECK_INT(counts->allocated, 0);
    compare(0.0);
}

DIST_TEST(a_missing_wait_poisons_the_loss, 2)
{
    double losses[STEPS];
    setenv("LOOP_FAULT", "early:1:6", 1);
    train(LOOP, false, losses);
    CHECK(losses[STEPS - 1] != losses[STEPS - 1]); /* NaN, which the next average spreads */
}

DIST_TEST(layouts_of_equal_bits_need_the_order_of_sums, 2)
{
    ls_group *group = group_of(LOOP);
    ls_module *net = net_new();
    CHECK(!ls_ddp_new(net, group, LS_OPTIONS(ls_ddp_options, .shards = 4)));
    CHECK_SAYS(
        ls_error_message(),
        "shards: backend \"%s\" adds in an order of its own, so bits would depend on the number "
        "of ranks; use a group of backend \"native\"");
    ls_module_free(net);
    CHECK_OK(ls_group_free(group));
}

TEST_MAIN
