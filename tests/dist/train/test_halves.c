/* SPDX-License-Identifier: Apache-2.0 */
/* Groups smaller than the world: two halves that train models of their own agree on stop requests,
 * compare settings and replicas, and save checkpoints each for itself, and errors name ranks of the
 * world. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

enum { RANKS = 4, HALF = 2, IN = 4, STEPS = 6, LATE = 3 };

typedef struct half {
    int number;
    ls_group *group;
    ls_module *net;
    ls_optim *optim;
} half;

static half half_new(double rate, uint64_t seed)
{
    half h = {.number = ls_rank() / HALF};
    CHECK_OK(ls_group_split(ls_world(), h.number, ls_rank(), "half", &h.group));
    CHECK_OK(ls_manual_seed(seed));
    CHECK(h.net = ls_ddp_new(ls_linear_new(IN, 1, NULL), h.group,
                             LS_OPTIONS(ls_ddp_options, .check_every = 1)));
    CHECK(h.optim = ls_sgd_new(h.net, LS_OPTIONS(ls_sgd_options, .lr = rate)));
    return h;
}

static void half_free(half *h)
{
    ls_optim_free(h->optim);
    ls_module_free(h->net);
    CHECK_OK(ls_group_free(h->group));
}

static ls_status step(half *h)
{
    LS_SCOPE;
    LS_TRY(ls_backward(ls_mean(ls_forward(h->net, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32)))));
    LS_TRY(ls_optim_step(h->optim));
    ls_optim_zero_grad(h->optim);
    return LS_OK;
}

/* ---- stop ----------------------------------------------------------------------------------- */

/* Rank 3 alone is asked to stop: its half ends after one step, the other one never. */
static int stop_one_half(void *arg)
{
    (void)arg;
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .graceful_stop = true)));
    half h = half_new(0.5, 1);
    int steps = 0;
    for (; steps < STEPS && !ls_stop_requested(); steps++) {
        if (ls_rank() == RANKS - 1 && steps == LATE) {
            CHECK_INT(raise(SIGTERM), 0);
        }
        CHECK_OK(step(&h));
    }
    CHECK_INT(steps, h.number == 1 ? LATE + 1 : STEPS);
    half_free(&h);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_half_of_the_world_stops_after_the_same_step)
{
    CHECK_OK(ls_spawn(stop_one_half, NULL, RANKS));
}

/* Stages whose ranks also synchronise in a larger group stop with that one only. */
static int stop_with_the_larger(void *arg)
{
    const bool by_call = arg != NULL;
    bool stop = false;
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .graceful_stop = true)));
    half h = half_new(0.5, 1);
    ls_module *all = NULL;
    if (by_call) {
        CHECK_OK(ls_stop_agree(ls_world(), &stop));
    } else {
        CHECK(all = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL));
    }
    if (ls_rank() == 0) {
        CHECK_INT(raise(SIGTERM), 0);
    }
    CHECK_OK(step(&h));
    CHECK(!ls_stop_requested());
    if (by_call) {
        CHECK_OK(ls_stop_agree(ls_world(), &stop));
        CHECK(stop);
    } else {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(all, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32)))));
    }
    CHECK(ls_stop_requested());
    ls_module_free(all);
    half_free(&h);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_half_does_not_stop_before_the_larger_group)
{
    int yes = 1;
    CHECK_OK(ls_spawn(stop_with_the_larger, NULL, RANKS));
    CHECK_OK(ls_spawn(stop_with_the_larger, &yes, RANKS));
}

/* ---- settings, replicas ---------------------------------------------------------------------- */

typedef enum difference { RATE, SEED, LATER_RATE, REPLICA } difference;

static const char *const says[] = {
    [RATE] = "rank 2 has SGD, ",
    [SEED] = "the seed: rank 2 has 7, rank 3 has 8; ",
    [LATER_RATE] = "SGD #1: rank 2 has 0.25, rank 3 has 0.75",
    [REPLICA] = "the numbers of ",
};

/* Rank 3 differs: an error of its half. The halves differ from each other all the time. */
static int differ(void *arg)
{
    const difference d = *(const difference *)arg;
    CHECK_OK(ls_init(NULL));
    const bool odd = ls_rank() == RANKS - 1;
    half h = half_new(ls_rank() < HALF   ? 0.125
                      : odd && d == RATE ? 0.5
                                         : 0.25,
                      ls_rank() < HALF   ? 5
                      : odd && d == SEED ? 8
                                         : 7);
    ls_status status = step(&h);
    if (status == LS_OK) {
        if (odd && d == LATER_RATE) {
            ls_optim_set_lr(h.optim, 0.75);
        }
        if (odd && d == REPLICA) {
            ls_param params[2];
            CHECK_INT(ls_module_params(h.net, params, 2), 2);
            add_float(params[0].value, 1, 1);
        }
        status = step(&h);
        status = status == LS_OK ? step(&h) : status;
    }
    if (h.number == 0) {
        CHECK_OK(status);
    } else {
        CHECK_INT(status, LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), says[d]);
        CHECK_CONTAINS(ls_error_message(), "rank 3");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_optim_free(h.optim);
    ls_module_free(h.net);
    (void)ls_group_free(h.group);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_difference_within_a_half_is_named_by_ranks_of_the_world)
{
    for (difference d = RATE; d <= REPLICA; d++) {
        CHECK_OK(ls_spawn(differ, &d, RANKS));
    }
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Each half saves and loads in a folder of its own at the same time. */
static int save_both(void *arg)
{
    char folder[512];
    CHECK_OK(ls_init(NULL));
    half h = half_new(ls_rank() < HALF ? 0.125 : 0.25, 5);
    (void)snprintf(folder, sizeof folder, "%s/half%d", (const char *)arg, h.number);
    CHECK_OK(step(&h));
    ls_checkpoint *checkpoint = NULL;
    CHECK_OK(ls_checkpoint_new(folder, h.group, NULL, &checkpoint));
    const ls_checkpoint_item parts[] = {LS_ITEM("model", h.net), LS_ITEM("optim", h.optim)};
    CHECK_OK(ls_checkpoint_save(checkpoint, 1, parts, 2));
    CHECK_OK(ls_checkpoint_wait(checkpoint));
    const uint64_t before = ls_module_hash(h.net);
    CHECK_OK(step(&h));
    CHECK(ls_module_hash(h.net) != before);
    int64_t found = 0;
    CHECK_OK(ls_checkpoint_load(checkpoint, parts, 2, &found));
    CHECK_INT(found, 1);
    CHECK(ls_module_hash(h.net) == before);
    CHECK_OK(ls_checkpoint_free(checkpoint));
    half_free(&h);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(each_half_saves_and_loads_a_checkpoint)
{
    char folder[] = "/tmp/halves.XXXXXX", remove[64];
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(ls_spawn(save_both, folder, RANKS));
    (void)snprintf(remove, sizeof remove, "rm -r %s", folder);
    free(test_run(remove, 20).text);
}

TEST_MAIN
