/* SPDX-License-Identifier: Apache-2.0 */
/* The versions of asynchronous pipelines, looked at from inside: a log of the version that each
 * forward and backward reads, the bytes of the stashes, and how well such a pipeline learns.
 * test_pipedream.c compares their bits with the twin's. */
#include "elements.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "schedule/schedule.h"

/* ---- the log ------------------------------------------------------------------------------ */

enum { MICRO = 12, CALLS = 2 };

/* Its parameter is the number of its version: the gradients of a step sum to -1, and SGD subtracts
 * them at learning rate 1. */
typedef struct counter {
    ls_module base;
    ls_tensor *version;
} counter;

static int per_step;
static int forwards, backwards; /* in the order of the micro-batches */
static int read_forward[MICRO * CALLS], read_backward[MICRO * CALLS];

static int value_of(ls_tensor *t)
{
    return (int)*(const float *)elements_of(t);
}

static ls_status pass(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out, int m,
                      void *arg)
{
    (void)n, (void)m, (void)arg;
    read_forward[forwards++] = value_of(in[1]);
    out[0] = ls_scale(in[0], 1.0);
    return ls_function_save(call, in[1]);
}

static ls_status pass_back(ls_function_call *call, ls_tensor *const *dout, int m, ls_tensor **din,
                           int n)
{
    (void)m, (void)n;
    read_backward[backwards++] = value_of(ls_function_saved(call, 0));
    din[0] = ls_scale(dout[0], 1.0);
    din[1] = ls_full(LS_SHAPE(1), LS_FLOAT32, -1.0 / per_step);
    return LS_OK;
}

static const ls_function pass_function =
    LS_FUNCTION(.name = "counter", .forward = pass, .backward = pass_back);

static ls_tensor *count(ls_module *m, ls_tensor *x)
{
    ls_tensor *in[] = {x, ((counter *)m)->version}, *out = NULL;
    CHECK_OK(ls_function_apply_many(&pass_function, in, 2, &out, 1, NULL));
    return out;
}

static const ls_module_class counter_class = LS_MODULE_CLASS(.name = "counter", .forward = count);

static ls_module *counter_new(void)
{
    counter *c = ls_module_new(sizeof *c, &counter_class);
    c->version = ls_module_add_param(&c->base, "version", ls_zeros(LS_SHAPE(1), LS_FLOAT32));
    return &c->base;
}

static ls_tensor *sum_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg, (void)target;
    return ls_sum(output);
}

/* Narayanan et al. 2019, section 3.3, and 2021, section 3.1; with vertical sync that of the first
 * stage. */
static int version_of(int m, bool vertical_sync)
{
    const int behind = ls_world_size() - 1 - (vertical_sync ? 0 : ls_rank());
    const int delay = per_step == 1 ? behind : 1;
    return m / per_step > delay ? m / per_step - delay : 0;
}

static void check_log(bool vertical_sync)
{
    CHECK_INT(forwards, MICRO * CALLS);
    CHECK_INT(backwards, MICRO * CALLS);
    for (int i = 0; i < MICRO * CALLS; i++) {
        /* A call begins with the newest version everywhere. */
        const int expected = i / MICRO * (MICRO / per_step) + version_of(i % MICRO, vertical_sync);
        CHECK_INT(read_forward[i], expected);
        CHECK_INT(read_backward[i], expected);
    }
}

static void log_versions(const char *schedule, int micro_batches_per_step, bool vertical_sync)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    ls_pipeline *pipe = NULL;
    per_step = micro_batches_per_step;
    forwards = backwards = 0;
    for (int s = 0; s < ls_world_size(); s++) {
        const char name[] = {(char)('a' + s), '\0'};
        (void)ls_module_add(net, name, counter_new());
    }
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .loss = sum_of,
                                        .vertical_sync = vertical_sync),
                             &pipe));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1.0));
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    for (int call = 0; call < CALLS; call++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof micro[m],
                                        .inputs = {ls_ones(LS_SHAPE(2), LS_FLOAT32)}};
        }
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
    }
    check_log(vertical_sync);
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

DIST_TEST(forward_and_backward_read_the_version_of_the_rule_on_2, 2)
{
    log_versions("pipedream", 1, false);
    log_versions("pipedream", 1, true);
    log_versions("pipedream-2bw", 2, false);
}

DIST_TEST(forward_and_backward_read_the_version_of_the_rule_on_4, 4)
{
    log_versions("pipedream", 1, false);
    log_versions("pipedream", 1, true);
    log_versions("pipedream-2bw", 4, false);
}

DIST_TEST(forward_and_backward_read_the_version_of_the_rule_on_6, 6)
{
    log_versions("pipedream", 1, false);
    log_versions("pipedream", 1, true);
    log_versions("pipedream-2bw", 6, false);
}

/* ---- the stashes -------------------------------------------------------------------------- */

enum { WIDE = 128, WEIGHT_BYTES = WIDE * WIDE * 4 }; /* no rounding by the allocator */

static size_t allocated(void)
{
    ls_memory_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_memory_get_stats(&stats));
    return stats.allocated;
}

/* Bytes that the pipeline keeps between calls, more than before the first one. */
static size_t kept_by(const char *schedule, bool vertical_sync)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    ls_pipeline *pipe = NULL;
    for (int i = 0; i < 2 * ls_world_size(); i++) {
        const char name[] = {(char)('a' + i), '\0'};
        (void)ls_module_add(
            net, name, ls_linear_new(WIDE, WIDE, LS_OPTIONS(ls_linear_options, .bias = false)));
    }
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .loss = sum_of,
                                        .vertical_sync = vertical_sync),
                             &pipe));
    ls_optim *optim =
        ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 1e-9)); /* what diverges is refused */
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    const size_t before = allocated();
    for (int call = 0; call < 2; call++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof micro[m],
                                        .inputs = {ls_ones(LS_SHAPE(2, WIDE), LS_FLOAT32)}};
        }
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
    }
    ls_optim_zero_grad(optim);
    const size_t after = allocated();
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    return after - before;
}

/* By the verifier, of stages whose weights are two matrices. */
static size_t stashed_by(const char *schedule, bool vertical_sync)
{
    ls__stage_sizes sizes[8];
    ls__schedule_peak peaks[8];
    ls__schedule *s = NULL;
    const ls__schedule_spec spec = {
        .ranks = ls_world_size(), .micro_batches = MICRO, .vertical_sync = vertical_sync};
    CHECK_OK(ls__schedule_new(ls__env_posix(), schedule, &spec, &s));
    for (int i = 0; i < ls_world_size(); i++) {
        sizes[i] = (ls__stage_sizes){.weights = 2 * (int64_t)WEIGHT_BYTES};
    }
    CHECK_OK(ls__schedule_peaks(s, sizes, peaks));
    ls__schedule_free(s);
    return (size_t)peaks[ls_rank()].stashed;
}

/* A stash for each version besides the newest one. */
static void check_stashed(const char *schedule, bool vertical_sync, int versions)
{
    const size_t kept = kept_by(schedule, vertical_sync);
    CHECK_INT(kept, 2 * (size_t)WEIGHT_BYTES * (size_t)versions);
    CHECK_INT(kept, stashed_by(schedule, vertical_sync));
}

static void check_stashes(void)
{
    const int last = ls_world_size() - 1;
    check_stashed("pipedream", false, last - ls_rank());
    check_stashed("pipedream", true, last);
    check_stashed("pipedream-2bw", false, 1);
    check_stashed("1f1b", false, 0);
}

DIST_TEST(a_stash_takes_the_bytes_of_the_parameters_of_its_stage_on_2, 2)
{
    check_stashes();
}

DIST_TEST(a_stash_takes_the_bytes_of_the_parameters_of_its_stage_on_4, 4)
{
    check_stashes();
}

/* ---- learning ----------------------------------------------------------------------------- */

enum {
    PIXELS = 64,
    CLASSES = 10,
    DIGITS_MAX = 2000,
    HELD_OUT = 5,
    ROWS = 16,
    WINDOW = 90,
    EPOCHS = 40
};

typedef struct digits {
    int count[2]; /* to train on; held out */
    float pixels[2][DIGITS_MAX][PIXELS];
    int32_t label[2][DIGITS_MAX];
} digits;

/* bench/digits/README.md: a label, a blank, a character from '0' to 'g' for each pixel. */
static digits *read_digits(void)
{
    char line[PIXELS + 4];
    digits *d = calloc(1, sizeof *d);
    FILE *file = fopen(test_source_path("bench/digits/digits.txt"), "r");
    CHECK(d != NULL && file != NULL);
    for (int number = 0; fgets(line, sizeof line, file) != NULL; number++) {
        const int part = number % HELD_OUT == 0, k = d->count[part]++;
        d->label[part][k] = line[0] - '0';
        for (int i = 0; i < PIXELS; i++) {
            const char pixel = line[2 + i];
            d->pixels[part][k][i] = (float)(pixel <= '9' ? pixel - '0' : pixel - 'a' + 10) / 16.0f;
        }
    }
    (void)fclose(file);
    return d;
}

static ls_module *make_classifier(void)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < 4; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        (void)ls_module_add(
            net, name,
            ls_linear_new(PIXELS, i < 3 ? PIXELS : CLASSES,
                          LS_OPTIONS(ls_linear_options, .activation = i < 3 ? LS_ACTIVATION_RELU
                                                                            : LS_ACTIVATION_NONE)));
    }
    return net;
}

/* Rows of the training set: every epoch takes all of them, in another order. */
static ls_micro_batch micro_of(digits *d, int epoch, int m)
{
    ls_tensor *x = ls_empty(LS_SHAPE(ROWS, PIXELS), LS_FLOAT32),
              *y = ls_empty(LS_SHAPE(ROWS), LS_INT32);
    float *pixels = edit_elements(x);
    int32_t *labels = edit_elements(y);
    for (int i = 0; i < ROWS; i++) {
        const int k = ((m * ROWS + i) * (2 * epoch + 7) + epoch) % d->count[0];
        memcpy(pixels + (size_t)i * PIXELS, d->pixels[0][k], sizeof d->pixels[0][k]);
        labels[i] = d->label[0][k];
    }
    put_elements(x, pixels);
    put_elements(y, labels);
    return (ls_micro_batch){.size = sizeof(ls_micro_batch), .inputs = {x}, .target = y};
}

/* On the last rank: the share of held-out digits that are recognised. */
static double accuracy_of(digits *d, ls_pipeline *pipe)
{
    LS_SCOPE;
    ls_tensor *y = NULL;
    ls_micro_batch all = {
        .size = sizeof all,
        .inputs = {ls_from_data(&d->pixels[1][0][0], LS_SHAPE(d->count[1], PIXELS), LS_FLOAT32)}};
    CHECK_OK(ls_pipeline_forward(pipe, &all, 1, &y));
    int right = 0;
    const int64_t *guess = y != NULL ? elements_of(ls_argmax(y, 1)) : NULL;
    for (int i = 0; guess != NULL && i < d->count[1]; i++) {
        right += guess[i] == d->label[1][i];
    }
    return (double)right / d->count[1];
}

typedef struct learnt {
    double loss, accuracy;
} learnt;

/* A step after every micro-batch, of `group`'s pipeline. */
static learnt learn(digits *d, ls_group *group, uint64_t seed)
{
    ls_pipeline *pipe = NULL;
    learnt out = {0};
    CHECK_OK(ls_manual_seed(seed));
    ls_module *net = make_classifier();
    CHECK_OK(ls_pipeline_new(
        net, group,
        LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream", .micro_batches = WINDOW), &pipe));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        LS_SCOPE;
        double losses[WINDOW];
        ls_micro_batch micro[WINDOW];
        for (int m = 0; m < WINDOW; m++) {
            micro[m] = micro_of(d, epoch, m);
        }
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
        out.loss = 0.0;
        for (int m = 0; m < WINDOW; m++) {
            out.loss += losses[m] / WINDOW;
        }
    }
    out.accuracy = accuracy_of(d, pipe);
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    return out;
}

/* Without staleness, on one rank, these are the steps of plain SGD. The mean over a few beginnings,
 * because one digit of the 360 is more than a quarter of a point. */
DIST_TEST(with_stale_gradients_it_learns_as_well_as_without_within_half_a_point, 4)
{
    enum { BEGINNINGS = 3 };
    ls_group *alone = NULL;
    digits *d = read_digits();
    double stale = 0.0, fresh = 0.0;
    CHECK_OK(ls_group_new(ls_world(), (int[]){3}, 1, "alone", &alone));
    for (int seed = 0; seed < BEGINNINGS; seed++) {
        const learnt a = learn(d, ls_world(), (uint64_t)seed);
        if (alone != NULL) {
            const learnt b = learn(d, alone, (uint64_t)seed);
            printf("# loss %.4f, held out %.4f; without staleness %.4f, %.4f\n", a.loss, a.accuracy,
                   b.loss, b.accuracy);
            CHECK(a.loss < b.loss + 0.005);
            stale += a.accuracy / BEGINNINGS;
            fresh += b.accuracy / BEGINNINGS;
        }
    }
    if (alone != NULL) {
        CHECK(stale > 0.95 && stale > fresh - 0.005);
        CHECK_OK(ls_group_free(alone));
    }
    free(d);
}

TEST_MAIN
