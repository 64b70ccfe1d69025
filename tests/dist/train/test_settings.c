/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in which ranks must not differ though no shape or count tells so: each difference is an
 * error on all ranks at the first synchronised backward, with both values and both call sites. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/config.h"
#include "says.h"
#include "test.h"

enum { IN = 4, COUNT = 24 };

typedef struct setup { /* one rank's */
    uint64_t seed;
    int64_t samples, batch;
    uint64_t order;
    bool shuffle;
    double rate, decay;
    double bias_decay; /* of a group; 0: there is none */
    bool sgd, second_sampler;
    int passes;
} setup;

#define USUAL                                                                                      \
    .seed = 3, .samples = COUNT, .batch = 2, .order = 5, .shuffle = true, .rate = 0.125, .passes = 1

static ls_status train(const setup *s, char *text, size_t bytes)
{
    ls_sampler *sampler = NULL, *second = NULL;
    CHECK_OK(ls_manual_seed(s->seed));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    CHECK_OK(ls_module_status(net));
    CHECK_OK(sampler =
                 ls_sampler_new(s->samples, LS_OPTIONS(ls_sampler_options, .batch = s->batch,
                                                       .seed = s->order, .shuffle = s->shuffle)));
    if (s->second_sampler) {
        CHECK_OK(second = ls_sampler_new(s->samples, NULL));
    }
    ls_optim *optim = s->sgd ? ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = s->rate))
                             : ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = s->rate,
                                                            .weight_decay = s->decay));
    CHECK(optim != NULL);
    if (s->bias_decay != 0.0) {
        CHECK_OK(
            ls_optim_add_group(optim, ls_select_vectors, NULL,
                               LS_OPTIONS(ls_optim_group_options, .weight_decay = s->bias_decay)));
    }
    ls_status status = LS_OK;
    for (int pass = 0; pass < s->passes && status == LS_OK; pass++) {
        ls_ddp_set_sync(net, pass == s->passes - 1);
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(2, IN), LS_FLOAT32);
        status = ls_backward(ls_mean(ls_forward(net, x)));
    }
    (void)snprintf(text, bytes, "%s", ls_error_message());
    ls_optim_free(optim);
    ls_sampler_free(sampler);
    ls_sampler_free(second);
    ls_module_free(net);
    return status;
}

typedef struct difference {
    setup odd; /* of rank 1 */
    const char *says[3];
} difference;

static const difference differences[] = {
    {{USUAL, .seed = 4}, {"the seed: rank 0 has 3", "rank 1 has 4", "ls_manual_seed"}},
    {{USUAL, .samples = 25},
     {"sampler 1: rank 0 has 24 samples, batch 2", "25 samples, batch 2", "same samplers"}},
    {{USUAL, .batch = 3}, {"24 samples, batch 2", "24 samples, batch 3", "same samplers"}},
    {{USUAL, .order = 6}, {"batch 2, seed 5", "batch 2, seed 6", "same samplers"}},
    {{USUAL, .shuffle = false}, {"seed 5, shuffled at", "seed 5 at", "same samplers"}},
    {{USUAL, .rate = 0.25}, {"lr 0.125", "lr 0.25", "optimizers on every rank"}},
    {{USUAL, .decay = 0.5}, {"weight_decay 0", "weight_decay 0.5", "optimizers on every rank"}},
    {{USUAL, .bias_decay = 0.25},
     {"optimizer group 1: rank 0 has none", "(1 parameters of AdamW, bias the first) at",
      "lr_scale 1, weight_decay 0.25 ("}},
    {{USUAL, .bias_decay = LS_OPTIM_DECAY},
     {"rank 0 has none", "bias the first", "weight_decay the optimizer's ("}},
    {{USUAL, .sgd = true},
     {"optimizer 1: rank 0 has AdamW", "rank 1 has SGD", "in the same order"}},
    {{USUAL, .second_sampler = true},
     {"sampler 2: rank 0 has none", "rank 1 has 24", "same order"}},
    {{USUAL, .passes = 3},
     {"backward passes in this step: rank 0 has 1", "rank 1 has 3", "use ls_backward_weighted"}},
};

static int try_difference(void *arg)
{
    const setup usual = {USUAL};
    const difference *d = arg;
    char text[1024];
    CHECK_OK(ls_init(NULL));
    const double begin = ls_time();
    const ls_status status = train(ls_rank() == 1 ? &d->odd : &usual, text, sizeof text);
    CHECK_WITHIN(ls_time() - begin, 3);
    if (status != LS_ERR_MISMATCH) {
        test_fail(__FILE__, __LINE__, "\"%s\" wanted, %s: %s", d->says[0], ls_status_name(status),
                  text);
    }
    for (size_t k = 0; k < 3; k++) {
        CHECK_CONTAINS(text, d->says[k]);
    }
    if (d->odd.bias_decay != 0.0) {
        CHECK_SAYS(text, "lr_scale %.9g, weight_decay %s");
        CHECK_SAYS(text, "optimizer group");
        CHECK_SAYS(text, " (%d parameters of %s, %.40s the first)");
        CHECK(d->odd.bias_decay != LS_OPTIM_DECAY ||
              test_count_said(text, SAYS("the optimizer's")) == 1);
    }
    const char *site = strstr(text, "test_settings.c:");
    CHECK((site != NULL) == test_contains(text, "make the same samplers"));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the process goes on */
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(every_setting_that_differs_is_named_on_all_ranks)
{
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        CHECK_OK(ls_spawn(try_difference, (void *)(uintptr_t)&differences[i], 2 + (int)i % 2));
    }
}

/* ---- settings that change in the run -------------------------------------------------------- */

typedef enum change { RATE, NORM, NO_CLIP, AUTOCAST, SKIPPED, NOTHING } change;

/* A step; `odd` is what this rank does otherwise in it. */
static ls_status step(ls_module *net, ls_optim *optim, change odd)
{
    LS_SCOPE;
    LS_AUTOCAST(odd == AUTOCAST);
    ls_tensor *x = ls_ones(LS_SHAPE(2, IN), LS_FLOAT32);
    LS_TRY(ls_backward(ls_mean(ls_forward(net, x))));
    if (odd != NO_CLIP) {
        CHECK_OK(ls_clip_grad_norm(net, odd == NORM ? 2.0 : 1.0, NULL, NULL));
    }
    if (odd == SKIPPED) {
        return LS_OK;
    }
    ls_optim_set_lr(optim, odd == RATE ? 0.5 : 0.25);
    return ls_optim_step(optim);
}

typedef struct change_case {
    change odd; /* of rank 1, in step 1 */
    int found;  /* in this step */
    const char *says;
} change_case;

static int try_change(void *arg)
{
    const change_case *c = arg;
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.125));
    ls_status status = LS_OK;
    int at = 0;
    while (at < 4) {
        status = step(net, optim, ls_rank() == 1 && at >= 1 ? c->odd : NOTHING);
        if (status < 0) {
            break;
        }
        at++;
    }
    if (at != c->found || (status != LS_OK) != (c->odd != NOTHING)) {
        test_fail(__FILE__, __LINE__, "\"%s\" wanted in step %d; step %d, %s: %s", c->says,
                  c->found, at, ls_status_name(status), ls_error_message());
    }
    if (status < 0) {
        CHECK_INT(status, LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), c->says);
        CHECK(test_count_said(ls_error_message(),
                              SAYS("do the same on every rank in every step, or the replicas "
                                   "drift apart")) == 1);
        CHECK(c->odd != SKIPPED ||
              test_count_said(ls_error_message(), SAYS("the number of steps of %s%s #%d")) == 1);
        CHECK(c->odd != RATE ||
              test_count_said(ls_error_message(), SAYS("the learning rate of %s%s #%d")) == 1);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the process goes on */
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_setting_that_comes_to_differ_is_named_in_the_next_step)
{
    static const change_case cases[] = {
        {RATE, 2, "the learning rate of SGD #1: rank 0 has 0.25"},
        {NORM, 2, "the largest norm of ls_clip_grad_norm: rank 0 has 1"},
        {AUTOCAST, 1, "the ranks differ in autocast: rank 0 has 0"},
        {SKIPPED, 2, "the number of steps of SGD #1: rank 0 has 2"},
        {NOTHING, 4, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(ls_spawn(try_change, (void *)(uintptr_t)&cases[i], 2 + (int)i % 2));
    }
}

static int clip_on_one_rank(void *arg)
{
    (void)arg;
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.125));
    CHECK_OK(step(net, optim, ls_rank() == 1 ? NO_CLIP : NOTHING));
    CHECK_STATUS(step(net, optim, NOTHING), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(),
                   "the largest norm of ls_clip_grad_norm: rank 0 has 1, rank 1 has none; ");
    CHECK_SAYS(ls_error_message(), "the largest norm of ls_clip_grad_norm");
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(clipping_on_one_rank_alone_is_named)
{
    CHECK_OK(ls_spawn(clip_on_one_rank, NULL, 2));
}

/* A form of parallelism that is added later needs one call for each of its settings. */
DIST_TEST(a_setting_of_a_new_parallel_form_is_compared_with_the_others, 3)
{
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    ls__config_note(NULL, "sharded optimizer", "", "stage %d", ls_rank() == 2 ? 2 : 3);
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(net, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32));
        CHECK_STATUS(ls_backward(ls_mean(y)), LS_ERR_MISMATCH);
    }
    CHECK_CONTAINS(ls_error_message(),
                   "the ranks differ in sharded optimizer 1: rank 0 has stage 3");
    CHECK_CONTAINS(ls_error_message(), ", as 2 of 3 ranks, rank 2 has stage 2");
    ls_module_free(net);
}

/* Only rank 0 wants to know the norm: legal. */
static int norm_on_one_rank(void *arg)
{
    double norm = 0.0;
    (void)arg;
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    for (int i = 0; i < 3; i++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(2, IN), LS_FLOAT32)))));
        if (ls_rank() == 0) {
            CHECK_OK(ls_clip_grad_norm(net, INFINITY, NULL, &norm));
            CHECK(norm > 0.0);
        }
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(the_norm_alone_may_be_asked_on_one_rank)
{
    CHECK_OK(ls_spawn(norm_on_one_rank, NULL, 2));
}

/* ---- NaN ------------------------------------------------------------------------------------ */

static char warned[2048];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", text);
    }
}

static int nan_on_rank_2(void *arg)
{
    (void)arg;
    CHECK_OK(ls_init(NULL));
    ls_set_log_callback(keep_warning, NULL);
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    for (int i = 0; i < 3; i++) {
        LS_SCOPE;
        const double factor = i == 1 && ls_rank() == 2 ? NAN : 1.0;
        ls_tensor *x = ls_ones(LS_SHAPE(2, IN), LS_FLOAT32);
        CHECK_OK(ls_backward(ls_scale(ls_mean(ls_forward(net, x)), factor)));
        const ls_status status = ls_clip_grad_norm(net, 1.0, NULL, NULL);
        CHECK_INT(status, i == 1 ? LS_ERR_INVALID : LS_OK);
        if (i == 1) {
            CHECK_CONTAINS(
                ls_error_message(),
                "the gradients' norm is nan (not finite in 2 of the parameters, first in weight)");
        }
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    CHECK_INT(strlen(warned) > 0, ls_rank() != 1);
    if (ls_rank() == 0) {
        CHECK_CONTAINS(warned,
                       "another rank reports its own, or the sum over the ranks overflowed");
    }
    if (ls_rank() == 2) {
        CHECK_CONTAINS(warned, "is not finite on rank 2 (element 0 of ");
        CHECK_CONTAINS(warned, "in synchronised backward 1;");
        CHECK_SAYS(
            warned,
            "reducer \"%s\": the gradient of %.200s is not finite on rank %d (element %lld of "
            "%lld) before it is averaged, in synchronised backward %llu; the average will not be "
            "finite on any rank: look for a division by zero or a logarithm of 0, or lower the "
            "learning rate");
        CHECK(strchr(warned, '\n') == warned + strlen(warned) - 1); /* once */
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(nan_on_one_rank_is_named_with_rank_and_parameter_before_it_is_averaged)
{
    CHECK_OK(ls_spawn(nan_on_rank_2, NULL, 3));
}

/* Legal: a sampler of one rank's own, optimizers of equal settings, another number of backward
 * passes where weights make the mean exact. */
static int legal(void *arg)
{
    const setup usual = {USUAL};
    char text[1024];
    ls_sampler *alone = NULL;
    (void)arg;
    CHECK_OK(ls_init(NULL));
    if (ls_rank() == 0) { /* evaluates alone */
        CHECK_OK(alone = ls_sampler_new(
                     7, LS_OPTIONS(ls_sampler_options, .rank = 0, .world_size = 1, .seed = 77)));
    }
    CHECK_OK(train(&usual, text, sizeof text));
    ls_module *net = ls_ddp_new(ls_linear_new(IN, 1, NULL), ls_world(), NULL);
    for (int pass = 0; pass <= ls_rank(); pass++) {
        CHECK_OK(ls_ddp_set_sync(net, pass == ls_rank()));
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(2, IN), LS_FLOAT32);
        CHECK_OK(ls_backward_weighted(ls_mean(ls_forward(net, x)), 2));
    }
    ls_module_free(net);
    ls_sampler_free(alone);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(what_ranks_may_do_differently_is_not_refused)
{
    CHECK_OK(ls_spawn(legal, NULL, 3));
}

TEST_MAIN
