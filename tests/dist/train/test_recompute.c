/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputed parts of a data-parallel network: replicas and parameters as without, to the last bit,
 * over steps of micro-batches in which some parameters are shared and some unused. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "replicas.h"
#include "test.h"

enum { WIDTH = 16, BATCH = 6, LAYERS = 4, STEPS = 12, MICRO = 3 };

typedef struct net {
    ls_module base;
    ls_module *part[LAYERS], *head;
    bool recompute;
    int skip; /* this part has no share in the result; -1: all have */
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    net *self = (net *)m;
    for (int i = 0; i < LAYERS; i++) {
        ls_module *part = self->part[i == 3 ? 0 : i]; /* the first one twice */
        ls_tensor *h = self->recompute ? ls_recompute(part, x) : ls_forward(part, x);
        x = i == self->skip ? x : ls_add(x, h);
    }
    return ls_forward(self->head, x);
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static ls_module *net_new(bool recompute)
{
    net *n = ls_module_new(sizeof *n, &net_class);
    for (int i = 0; i < LAYERS; i++) {
        ls_module *list[] = {ls_layer_norm_new(WIDTH, NULL), ls_linear_new(WIDTH, WIDTH, NULL),
                             ls_gelu_new(LS_GELU_TANH), ls_dropout_new(0.2)};
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        n->part[i] = ls_module_add(&n->base, name, ls_sequential_new(list, 4));
    }
    n->head = ls_module_add(&n->base, "head", ls_linear_new(WIDTH, WIDTH, NULL));
    n->recompute = recompute;
    CHECK_OK(ls_module_status(&n->base));
    return &n->base;
}

static double micro_batch(ls_module *m, uint64_t step, int micro, bool whole)
{
    double value = 0.0;
    {
        LS_SCOPE;
        int64_t first = ((int64_t)ls_rank() * MICRO + micro) * BATCH;
        if (micro == 0) {
            ls_step_begin((ls_step_context){.step = step, .sample_offset = first});
        }
        ls_tensor *x = ls_randn(LS_SHAPE(BATCH, WIDTH));
        ls_tensor *y = whole ? ls_recompute(m, x) : ls_forward(m, x); /* the wrapper itself */
        ls_tensor *loss = ls_mse_loss(y, ls_randn(LS_SHAPE(BATCH, WIDTH)));
        CHECK_OK(ls_backward_weighted(loss, BATCH + ls_rank()));
        CHECK_OK(ls_item(loss, &value));
    }
    return value;
}

static uint64_t train(bool recompute, bool whole, double *losses)
{
    CHECK_OK(ls_manual_seed(4));
    net *inner = (net *)net_new(recompute);
    ls_module *ddp =
        ls_ddp_new(&inner->base, ls_world(), LS_OPTIONS(ls_ddp_options, .bucket_bytes = 2048));
    CHECK(ddp != NULL);
    ls_optim *optim = ls_adamw_new(ddp, LS_OPTIONS(ls_adamw_options, .lr = 1e-2));
    for (int step = 0; step < STEPS; step++) {
        losses[step] = 0.0;
        for (int micro = 0; micro < MICRO; micro++) {
            inner->skip = (step + micro) % 3 == 0 ? (step + ls_rank()) % 3 : -1;
            CHECK_OK(ls_ddp_set_sync(ddp, micro + 1 == MICRO));
            losses[step] += micro_batch(ddp, (uint64_t)step, micro, whole);
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    const uint64_t hash = equal_replicas(ddp, ls_world());
    ls_optim_free(optim);
    ls_module_free(ddp);
    return hash;
}

static void recomputed_equals_kept(void)
{
    double kept[STEPS], parts[STEPS], whole[STEPS], both[STEPS];
    uint64_t hash = train(false, false, kept);
    CHECK(train(true, false, parts) == hash);
    CHECK(train(false, true, whole) == hash);
    CHECK(train(true, true, both) == hash);
    CHECK(memcmp(kept, parts, sizeof kept) == 0);
    CHECK(memcmp(kept, whole, sizeof kept) == 0);
    CHECK(memcmp(kept, both, sizeof kept) == 0);
}

DIST_TEST(recomputed_replicas_equal_kept_ones_in_a_world_of_one, 1)
{
    recomputed_equals_kept();
}

DIST_TEST(three_replicas_with_recomputed_parts_end_with_the_bits_of_those_without, 3)
{
    recomputed_equals_kept();
}

/* Between the first run and the second a rank's module begins to do something else. */
typedef struct fickle {
    ls_module base;
    ls_module *fc;
    bool other;
} fickle;

static ls_tensor *fickle_forward(ls_module *m, ls_tensor *x)
{
    fickle *self = (fickle *)m;
    ls_tensor *y = ls_forward(self->fc, x);
    return self->other ? ls_dropout(y, 0.5) : y;
}
static const ls_module_class fickle_class =
    LS_MODULE_CLASS(.name = "fickle", .forward = fickle_forward);

DIST_TEST(a_recomputation_that_fails_on_one_rank_is_heard_by_all, 2)
{
    CHECK_OK(ls_manual_seed(4));
    fickle *f = ls_module_new(sizeof *f, &fickle_class);
    f->fc = ls_module_add(&f->base, "fc", ls_linear_new(WIDTH, WIDTH, NULL));
    ls_module *ddp = ls_ddp_new(&f->base, ls_world(), NULL);
    CHECK(ddp != NULL);
    {
        LS_SCOPE;
        ls_tensor *y = ls_recompute(ddp, ls_ones(LS_SHAPE(BATCH, WIDTH), LS_FLOAT32));
        f->other = ls_rank() == 1;
        ls_status status = ls_backward(ls_mean(y));
        CHECK(status < 0);
        CHECK_CONTAINS(ls_error_message(), "drew other random numbers");
    }
    ls_module_free(ddp);
}

DIST_TEST(a_wrapper_that_runs_again_expects_no_other_backward, 2)
{
    ls_module *ddp = ls_ddp_new(net_new(true), ls_world(), NULL);
    CHECK(ddp != NULL);
    (void)micro_batch(ddp, 0, 0, true);
    {
        LS_SCOPE;
        ls_tensor *other = ls_set_requires_grad(ls_ones(LS_SHAPE(2), LS_FLOAT32), true);
        CHECK_OK(ls_backward(ls_sum(other)));
    }
    ls_ddp_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_ddp_get_stats(ddp, &stats));
    CHECK_INT((int64_t)stats.reduce.reductions, 1);
    ls_module_free(ddp);
}

TEST_MAIN
