/* Settings in which ranks must not differ though no shape or count tells so: each difference is an
 * error on all ranks at the first synchronised backward, with both values and both call sites. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

enum { IN = 4, COUNT = 24 };

typedef struct setup { /* one rank's */
    uint64_t seed;
    int64_t samples, batch;
    uint64_t order;
    bool shuffle;
    double rate, decay;
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
    {{USUAL, .seed = 4}, {"rank 0 has seed 3", "rank 1 has seed 4", "ls_manual_seed"}},
    {{USUAL, .samples = 25}, {"24 samples, batch 2", "25 samples, batch 2", "same samplers"}},
    {{USUAL, .batch = 3}, {"24 samples, batch 2", "24 samples, batch 3", "same samplers"}},
    {{USUAL, .order = 6}, {"batch 2, seed 5", "batch 2, seed 6", "same samplers"}},
    {{USUAL, .shuffle = false}, {"seed 5, shuffled at", "seed 5 at", "same samplers"}},
    {{USUAL, .rate = 0.25}, {"lr 0.125", "lr 0.25", "optimizers on every rank"}},
    {{USUAL, .decay = 0.5}, {"weight_decay 0", "weight_decay 0.5", "optimizers on every rank"}},
    {{USUAL, .sgd = true}, {"rank 0 made AdamW of", "rank 1 made SGD of", "in the same order"}},
    {{USUAL, .second_sampler = true}, {"rank 0 made AdamW", "a sampler of 24", "same order"}},
    {{USUAL, .passes = 3}, {"rank 0 adds up 1 backward", "rank 1 3", "use ls_backward_weighted"}},
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
    const char *second = strstr(text, "rank 1 made");
    CHECK(second == NULL || (test_contains(second, "test_settings.c:")));
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
