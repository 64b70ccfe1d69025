/* SPDX-License-Identifier: Apache-2.0 */
/* Zero 3 beside zero 0 where ranks read other layers, or a pass reads only some of them: before a
 * step, a load or a gathering all ranks have gathered alike, and nothing that was changed is lost.
 * So for parameters that are frozen for a while, at any stage. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

enum { DIM = 8, LAYERS = 4, ROWS = 4, STEPS = 6 };

typedef struct tower {
    ls_module base;
    ls_module *layer[LAYERS];
} tower;

static unsigned left_out; /* bit i: layer i, in the next forward passes of this rank */
static int recomputed = -1;

static ls_tensor *tower_forward(ls_module *m, ls_tensor *x)
{
    const tower *self = (tower *)m;
    for (int i = 0; i < LAYERS; i++) {
        if (!(left_out >> i & 1)) {
            ls_module *layer = self->layer[i];
            x = ls_tanh(i == recomputed ? ls_recompute(layer, x) : ls_forward(layer, x));
        }
    }
    return ls_add(x, ls_forward(self->layer[0], x));
}

static const ls_module_class tower_class =
    LS_MODULE_CLASS(.name = "tower", .forward = tower_forward);

static ls_module *tower_new(void)
{
    CHECK_OK(ls_manual_seed(1));
    tower *m = ls_module_new(sizeof *m, &tower_class);
    for (int i = 0; i < LAYERS; i++) {
        const char name[] = {'l', (char)('0' + i), '\0'};
        m->layer[i] = ls_module_add(&m->base, name, ls_linear_new(DIM, DIM, NULL));
    }
    left_out = 0;
    recomputed = -1;
    return &m->base;
}

static ls_tensor *loss_of(ls_module *net, int seed)
{
    float x[ROWS * DIM];
    for (int i = 0; i < ROWS * DIM; i++) {
        x[i] = ls_random_normal(5, (uint64_t)seed, (uint64_t)i);
    }
    ls_tensor *y = ls_forward(net, ls_from_data(x, LS_SHAPE(ROWS, DIM), LS_FLOAT32));
    return ls_mean(ls_mul(y, y));
}

static void evaluate(ls_module *net, int passes)
{
    for (int i = 0; i < passes; i++) {
        LS_SCOPE;
        LS_NO_GRAD;
        double loss = 0.0;
        CHECK_OK(ls_item(loss_of(net, 500 + i), &loss));
    }
}

static uint64_t hash_of(ls_module *net)
{
    int identical = 0;
    uint64_t hash = 0;
    CHECK_OK(ls_ddp_gather(net));
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    CHECK_OK(ls_ddp_release(net));
    return hash;
}

static void freeze(ls_module *net, int layer, bool frozen)
{
    char name[16];
    (void)snprintf(name, sizeof name, "l%d.weight", layer);
    CHECK(ls_set_requires_grad(ls_module_param(ls_ddp_module(net), name), !frozen) != NULL);
}

typedef enum story {
    EVALUATED_BEFORE_STEP,
    EVALUATED_AFTER_STEP,
    EVALUATED_AT_END,
    RECOMPUTED_FROZEN,
    GATHERED_WHILE_ACCUMULATING,
    PART_EVALUATED, /* twice, without layer 2, between backward and step */
    THAWED,         /* and the last rank joins from then on */
    STORIES
} story;

static void prepare(ls_module *net, story s, int step)
{
    const bool last = ls_rank() == ls_world_size() - 1;
    if (s <= RECOMPUTED_FROZEN) { /* in step 0 no rank has one layer, then the last lacks another */
        left_out = step == 0 ? (s == RECOMPUTED_FROZEN ? 8 : 4) : last ? 4 : 0;
    }
    if (s == RECOMPUTED_FROZEN) {
        recomputed = 2;
        freeze(net, 2, step >= 2);
    }
    if (s == THAWED) {
        freeze(net, 0, step == 3);
    }
    if (s == GATHERED_WHILE_ACCUMULATING) {
        CHECK_OK(ls_ddp_set_sync(net, false));
        CHECK_OK(ls_backward_weighted(loss_of(net, 100 + step), 1.0));
        CHECK_OK(ls_ddp_set_sync(net, true));
        CHECK_OK(ls_ddp_gather(net));
        CHECK_OK(ls_ddp_release(net));
    }
}

static bool joins(story s, int step)
{
    return ls_rank() == ls_world_size() - 1 &&
           ((s == THAWED && step >= 4) || (s == GATHERED_WHILE_ACCUMULATING && step > 2));
}

static void between(ls_module *net, story s, int step)
{
    const unsigned before = left_out;
    if (s == EVALUATED_BEFORE_STEP && step > 0) {
        evaluate(net, 1);
    }
    if (s == PART_EVALUATED) {
        left_out = 4;
        evaluate(net, 2);
        left_out = before;
    }
}

static uint64_t train(story s, int zero)
{
    ls_module *net = ls_ddp_new(tower_new(), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = 0));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .momentum = 0.9));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        bool more = true;
        prepare(net, s, step);
        CHECK_OK(joins(s, step) ? ls_ddp_join(net, NULL, &more)
                                : ls_backward_weighted(loss_of(net, step + 10 * ls_rank()), 1.0));
        between(net, s, step);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        evaluate(net, s == EVALUATED_AFTER_STEP && step > 0);
    }
    evaluate(net, s == EVALUATED_AT_END);
    const uint64_t hash = hash_of(net);
    ls_optim_free(optim);
    ls_module_free(net);
    return hash;
}

static void compare_stages(void)
{
    for (int s = 0; s < STORIES; s++) {
        const uint64_t whole = train((story)s, 0);
        for (int zero = 1; zero <= 3; zero += 2) {
            const uint64_t hash = train((story)s, zero);
            if (hash != whole) {
                test_fail(__FILE__, __LINE__, "story %d: zero %d has other numbers than zero 0", s,
                          zero);
            }
        }
    }
}

DIST_TEST(stages_have_the_same_numbers_whatever_a_pass_reads_on_2, 2)
{
    compare_stages();
}

DIST_TEST(stages_have_the_same_numbers_whatever_a_pass_reads_on_3, 3)
{
    compare_stages();
}

/* As thawed ones on a rank that joins: the other way for that rank is an empty batch. */
DIST_TEST(a_thawed_parameter_trains_on_a_rank_that_joins, 2)
{
    uint64_t hash[2];
    for (int joined = 0; joined < 2; joined++) {
        ls_module *net = ls_ddp_new(tower_new(), ls_world(), NULL);
        ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
        for (int step = 0; step < STEPS; step++) {
            LS_SCOPE;
            bool more = true;
            const bool idle = step >= 3 && ls_rank() == 1;
            freeze(net, 0, step == 2);
            CHECK_OK(idle && joined ? ls_ddp_join(net, NULL, &more)
                                    : ls_backward_weighted(loss_of(net, step + 10 * ls_rank()),
                                                           idle ? 0.0 : 1.0));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        hash[joined] = hash_of(net);
        ls_optim_free(optim);
        ls_module_free(net);
    }
    CHECK(hash[0] == hash[1]);
}

DIST_TEST(a_parameter_that_is_frozen_later_is_left_out_of_steps_within_backward, 2)
{
    for (int zero = 0; zero <= 3; zero += 3) {
        ls_module *net =
            ls_ddp_new(tower_new(), ls_world(), LS_OPTIONS(ls_ddp_options, .zero = zero));
        ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
        CHECK_OK(ls_ddp_step_in_backward(net, optim));
        for (int step = 0; step < STEPS; step++) {
            LS_SCOPE;
            freeze(net, 1, step == 2 || step == 3);
            CHECK_OK(ls_backward(loss_of(net, step + 10 * ls_rank())));
        }
        (void)hash_of(net);
        ls_module_free(net);
        ls_optim_free(optim);
    }
}

TEST_MAIN
