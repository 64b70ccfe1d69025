/* SPDX-License-Identifier: Apache-2.0 */
/* exact=layout: gradients of a step's shards are added in one tree, whichever ranks compute them.
 * The twin computes all shards on every rank and adds them by a loop of its own. */
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { IN = 9, HIDDEN = 12, OUT = 3, SHARD = 2, SHARDS = 8, STEPS = 3, PARAMS = 6 };

/* Two layers with dropout between them, and a branch that only odd shards use. */
typedef struct forked {
    ls_module base;
    ls_module *up, *drop, *down, *odd;
    bool use_odd;
} forked;

static ls_tensor *forked_forward(ls_module *m, ls_tensor *x)
{
    forked *self = (forked *)m;
    ls_tensor *y = ls_forward(self->down, ls_relu(ls_forward(self->drop, ls_forward(self->up, x))));
    return self->use_odd ? ls_add(y, ls_forward(self->odd, x)) : y;
}

static const ls_module_class forked_class =
    LS_MODULE_CLASS(.name = "forked", .forward = forked_forward);

static forked *forked_new(void)
{
    forked *self = ls_module_new(sizeof *self, &forked_class);
    self->up = ls_module_add(&self->base, "up", ls_linear_new(IN, HIDDEN, NULL));
    self->drop = ls_module_add(&self->base, "drop", ls_dropout_new(0.3));
    self->down = ls_module_add(&self->base, "down", ls_linear_new(HIDDEN, OUT, NULL));
    self->odd = ls_module_add(&self->base, "odd", ls_linear_new(IN, OUT, NULL));
    CHECK_OK(ls_module_status(&self->base));
    return self;
}

/* Sample i of step t is the same on any number of ranks. */
static ls_tensor *samples(int step, int shard)
{
    float x[SHARD * IN];
    for (int i = 0; i < SHARD * IN; i++) {
        x[i] = ls_random_normal(3, (uint64_t)step, (uint64_t)(shard * SHARD * IN + i));
    }
    return ls_from_data(x, LS_SHAPE(SHARD, IN), LS_FLOAT32);
}

/* `odd` = 0: no shard uses the branch; 1: odd ones; 2: all. */
static ls_tensor *loss_of(ls_module *net, forked *f, int step, int shard, int odd)
{
    ls_step_begin(
        (ls_step_context){.step = (uint64_t)step, .sample_offset = (int64_t)shard * SHARD});
    f->use_odd = odd == 2 || (odd == 1 && shard % 2 == 1);
    ls_tensor *y = ls_forward(net, samples(step, shard));
    return ls_mean(ls_mul(y, y));
}

/* ---- the twin ------------------------------------------------------------------------------ */

typedef struct twin {
    forked *net;
    ls_optim *optim; /* only makes gradients absent */
    ls_param params[PARAMS];
    bool used[PARAMS];
    float *grads[SHARDS][PARAMS];
} twin;

static twin *twin_new(void)
{
    twin *t = calloc(1, sizeof *t);
    t->net = forked_new();
    t->optim = ls_sgd_new(&t->net->base, NULL);
    CHECK_INT(ls_module_params(&t->net->base, t->params, PARAMS), PARAMS);
    for (int s = 0; s < SHARDS; s++) {
        for (int i = 0; i < PARAMS; i++) {
            t->grads[s][i] = calloc((size_t)ls_numel(t->params[i].value), sizeof(float));
        }
    }
    return t;
}

static void twin_free(twin *t)
{
    for (int s = 0; s < SHARDS; s++) {
        for (int i = 0; i < PARAMS; i++) {
            free(t->grads[s][i]);
        }
    }
    ls_optim_free(t->optim);
    ls_module_free(&t->net->base);
    free(t);
}

static double weight_of(int shard, bool weighted)
{
    return weighted ? 1.0 + shard * 0.75 : 1.0;
}

/* The gradient of every shard alone; zero where it has none. */
static void twin_shards(twin *t, int step, int odd, bool weighted)
{
    for (int s = 0; s < SHARDS; s++) {
        LS_SCOPE;
        ls_tensor *loss = loss_of(&t->net->base, t->net, step, s, odd);
        CHECK_OK(ls_backward(ls_scale(loss, weight_of(s, weighted))));
        for (int i = 0; i < PARAMS; i++) {
            const size_t bytes = (size_t)ls_numel(t->params[i].value) * sizeof(float);
            ls_tensor *grad = ls_grad(t->params[i].value);
            t->used[i] = (s > 0 && t->used[i]) || grad != NULL;
            if (grad != NULL) {
                memcpy(t->grads[s][i], elements_of(grad), bytes);
            } else {
                memset(t->grads[s][i], 0, bytes);
            }
        }
        ls_optim_zero_grad(t->optim);
    }
}

/* ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), over the sum of weights; in grads[0]. */
static void twin_mean(twin *t, bool weighted)
{
    double weights = 0.0;
    for (int s = 0; s < SHARDS; s++) {
        weights += weight_of(s, weighted);
    }
    for (int i = 0; i < PARAMS; i++) {
        const int64_t count = ls_numel(t->params[i].value);
        for (int apart = 1; apart < SHARDS; apart *= 2) {
            for (int s = 0; s < SHARDS; s += 2 * apart) {
                for (int64_t k = 0; k < count; k++) {
                    t->grads[s][i][k] += t->grads[s + apart][i][k];
                }
            }
        }
        for (int64_t k = 0; k < count; k++) {
            t->grads[0][i][k] = (float)((double)t->grads[0][i][k] / weights);
        }
    }
}

/* ---- the ranks ----------------------------------------------------------------------------- */

typedef struct run {
    forked *net;
    ls_module *ddp;
    ls_optim *optim;
    ls_param params[PARAMS];
} run;

static run run_new(const ls_ddp_options *options)
{
    run r = {.net = forked_new()};
    r.ddp = ls_ddp_new(&r.net->base, ls_world(), options);
    CHECK(r.ddp != NULL);
    r.optim = ls_adamw_new(r.ddp, NULL);
    CHECK_INT(ls_module_params(r.ddp, r.params, PARAMS), PARAMS);
    return r;
}

static void run_free(run *r)
{
    ls_optim_free(r->optim);
    ls_module_free(r->ddp);
}

static void run_step(run *r, int step, int odd, bool weighted)
{
    const int of_rank = SHARDS / ls_world_size();
    for (int k = 0; k < of_rank; k++) {
        LS_SCOPE;
        const int shard = ls_rank() * of_rank + k;
        ls_tensor *loss = loss_of(r->ddp, r->net, step, shard, odd);
        CHECK_OK(weighted ? ls_backward_weighted(loss, weight_of(shard, weighted))
                          : ls_backward(loss));
    }
}

static void check_step(run *r, twin *t, int step, int odd, bool weighted)
{
    twin_shards(t, step, odd, weighted);
    twin_mean(t, weighted);
    run_step(r, step, odd, weighted);
    for (int i = 0; i < PARAMS; i++) {
        const size_t bytes = (size_t)ls_numel(r->params[i].value) * sizeof(float);
        ls_tensor *grad = ls_grad(r->params[i].value);
        CHECK((grad != NULL) == t->used[i]);
        CHECK(grad == NULL || memcmp(elements_of(grad), t->grads[0][i], bytes) == 0);
    }
    CHECK_OK(ls_optim_step(r->optim));
    ls_optim_zero_grad(r->optim);
    for (int i = 0; i < PARAMS; i++) {
        const size_t bytes = (size_t)ls_numel(r->params[i].value) * sizeof(float);
        CHECK_OK(ls_copy_in(t->params[i].value, elements_of(r->params[i].value), bytes));
    }
}

static void check_steps(ls_reduce_mode mode, size_t bucket_bytes)
{
    CHECK_OK(ls_manual_seed(4));
    run r = run_new(
        LS_OPTIONS(ls_ddp_options, .shards = SHARDS, .mode = mode, .bucket_bytes = bucket_bytes));
    twin *t = twin_new();
    for (int step = 0; step < STEPS; step++) {
        check_step(&r, t, step, step, false);
    }
    check_step(&r, t, STEPS, 1, true);
    check_step(&r, t, STEPS + 1, 1, false);
    run_free(&r);
    twin_free(t);
}

static void check_modes(void)
{
    check_steps(LS_REDUCE_OVERLAP, 25 << 20);
    check_steps(LS_REDUCE_OVERLAP, 256);
    check_steps(LS_REDUCE_NAIVE, 0);
}

DIST_TEST(one_rank_adds_all_shards_in_the_tree, 1)
{
    check_modes();
}

DIST_TEST(two_ranks_add_their_shards_in_the_tree, 2)
{
    check_modes();
}

DIST_TEST(four_ranks_add_their_shards_in_the_tree, 4)
{
    check_modes();
}

DIST_TEST(eight_ranks_add_their_shards_in_the_tree, 8)
{
    check_modes();
}

/* The optimizer may step in the backward of the last shard. */
DIST_TEST(an_optimizer_in_backward_gives_the_same_bits, 2)
{
    const ls_ddp_options options =
        *LS_OPTIONS(ls_ddp_options, .shards = SHARDS, .bucket_bytes = 256);
    run after = run_new(&options), within = run_new(&options);
    CHECK_OK(ls_ddp_step_in_backward(within.ddp, within.optim));
    for (int step = 0; step < STEPS; step++) {
        run_step(&after, step, 1, false);
        CHECK_OK(ls_optim_step(after.optim));
        ls_optim_zero_grad(after.optim);
        run_step(&within, step, 1, false);
        CHECK(ls_module_hash(after.ddp) == ls_module_hash(within.ddp));
    }
    CHECK_OK(ls_ddp_step_in_backward(within.ddp, NULL));
    run_free(&after);
    run_free(&within);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void refused(const ls_ddp_options *options, const char *words)
{
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    CHECK(ls_ddp_new(net, ls_world(), options) == NULL);
    CHECK_CONTAINS(ls_error_message(), words);
    ls_module_free(net);
}

static void nowhere(void *arg, const char *name, const ls_tensor *param, ls_ddp_place *place)
{
    (void)arg, (void)name, (void)param, (void)place;
}

DIST_TEST(other_numbers_of_ranks_and_options_are_refused, 3)
{
    refused(LS_OPTIONS(ls_ddp_options, .shards = 6), "6 shards; give a power of two up to 65536");
    CHECK_SAYS(ls_error_message(),
               "reducer \"%s\": %d shards; give a power of two up to %d, the same "
               "for every number of ranks");
    refused(LS_OPTIONS(ls_ddp_options, .shards = 8), "8 shards cannot be divided evenly among 3");
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": %d shards cannot be divided evenly among %d ranks; start a power of "
        "two of ranks, at most as many as shards");
    refused(LS_OPTIONS(ls_ddp_options, .shards = 8, .place = nowhere), "shards and place");
    CHECK_SAYS(ls_error_message(),
               "shards and place: with shards all parameters are reduced over the "
               "whole group; leave one of them out");
    refused(LS_OPTIONS(ls_ddp_options, .shards = 8, .wire_dtype = LS_BFLOAT16), "wire_dtype");
    CHECK_SAYS(ls_error_message(),
               "shards and wire_dtype: each rank rounds its sum before it is sent, so bits would "
               "depend on the number of ranks; leave one of them out");
    refused(LS_OPTIONS(ls_ddp_options, .shards = 8, .broadcast_buffers = false),
            "running statistics");
    CHECK_SAYS(
        ls_error_message(),
        "shards without broadcast_buffers: each rank's running statistics would follow other "
        "shards; leave broadcast_buffers true");
}

DIST_TEST(ranks_with_other_shards_are_a_mismatch, 2)
{
    run r = run_new(LS_OPTIONS(ls_ddp_options, .shards = ls_rank() == 0 ? 2 : 4));
    for (int k = 0; k < ls_rank(); k++) {
        CHECK_OK(ls_backward(loss_of(r.ddp, r.net, 0, k, 2)));
    }
    CHECK_STATUS(ls_backward(loss_of(r.ddp, r.net, 0, 3, 2)), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "%d shards");
    run_free(&r);
}

DIST_TEST(parameters_of_16_bits_are_refused, 2)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    (void)ls_module_add_param(net, "half", ls_zeros(LS_SHAPE(4), LS_BFLOAT16));
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .shards = 2)) == NULL);
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": parameter %s is %s, whose sums are rounded once for each rank; with "
        "shards give float32 (LS_AUTOCAST computes in bfloat16)");
    ls_module_free(net);
}

DIST_TEST(an_algorithm_with_another_order_is_refused, 2)
{
    CHECK(setenv("LOCKSTEP_ALGORITHM", "all_reduce=ring", 1) == 0);
    refused(LS_OPTIONS(ls_ddp_options, .shards = 2), "selects \"ring\"");
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": LOCKSTEP_ALGORITHM selects \"%s\" for all_reduce, which adds in an "
        "order of its own; with shards select one that is exact (docs/algorithms.md), or none");
    CHECK(unsetenv("LOCKSTEP_ALGORITHM") == 0);
}

DIST_TEST(a_step_in_the_middle_of_its_shards_is_refused, 2)
{
    run r = run_new(LS_OPTIONS(ls_ddp_options, .shards = SHARDS));
    bool more = false;
    CHECK_STATUS(ls_ddp_join(r.ddp, NULL, &more), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_join: every step has all of its shards on the ranks to which "
               "they belong; give all ranks equally many batches");
    CHECK_STATUS(ls_ddp_set_local(r.ddp, true), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_ddp_set_local: local steps depend on the number of ranks; make "
               "the ddp without shards");
    for (int k = 0; k < 3; k++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(loss_of(r.ddp, r.net, 0, ls_rank() * SHARDS / 2 + k, 2)));
    }
    CHECK_STATUS(ls_optim_step(r.optim), LS_ERR_STATE);
    CHECK_SAYS(
        ls_error_message(),
        "ls_optim_step: %d of this rank's %d shards of the step are done; call ls_backward for "
        "each of them before the optimizer steps");
    CHECK_CONTAINS(ls_error_message(), "3 of this rank's 4 shards");
    CHECK_OK(ls_backward(loss_of(r.ddp, r.net, 0, ls_rank() * SHARDS / 2 + 3, 2)));
    CHECK_OK(ls_optim_step(r.optim));
    CHECK_STATUS(ls_backward(loss_of(r.ddp, r.net, 1, 0, 2)), LS_ERR_STATE); /* no zero_grad */
    CHECK_SAYS(
        ls_error_message(),
        "reducer \"%s\": a step begins, but parameter %s has a gradient already; with shards "
        "call ls_optim_zero_grad after each step");
    run_free(&r);
}

TEST_MAIN
