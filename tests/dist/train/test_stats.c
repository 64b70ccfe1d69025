/* SPDX-License-Identifier: Apache-2.0 */
/* What DDP knows about a run: where the time of a step goes, which rank the others wait for, the
 * timeline of gradients, and whether the replicas are still equal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { IN = 64, HIDDEN = 128, OUT = 10, BATCH = 8, STEPS = 6, PARAMS = 6 };

static ls_module *net_new(ls_reduce_mode mode)
{
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    ls_module *net = ls_sequential_new(layers, 5);
    ls_module *ddp = ls_ddp_new(net, ls_world(),
                                LS_OPTIONS(ls_ddp_options, .bucket_bytes = 20000,
                                           .first_bucket_bytes = 4000, .mode = mode));
    CHECK(ddp != NULL);
    return ddp;
}

static void train(ls_module *ddp, ls_optim *optim, int slow_rank, int steps)
{
    for (int step = 0; step < steps; step++) {
        LS_SCOPE;
        ls_optim_zero_grad(optim);
        if (ls_rank() == slow_rank) {
            usleep(40000); /* its data are late */
        }
        ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32);
        CHECK_OK(ls_backward(ls_mean(ls_forward(ddp, x))));
        CHECK_OK(ls_optim_step(optim));
    }
}

DIST_TEST(the_rank_that_the_others_wait_for_is_named, 3)
{
    ls_module *ddp = net_new(LS_REDUCE_OVERLAP);
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    for (int slow = 0; slow < 3; slow++) {
        train(ddp, optim, slow, 4);
        ls_ddp_stats stats = {.size = sizeof stats};
        CHECK_OK(ls_ddp_get_stats(ddp, &stats));
        CHECK_INT(stats.reduce.slowest_rank, slow);
        CHECK(stats.reduce.slowest_seconds >= 0.04);
        char name[32];
        snprintf(name, sizeof name, "rank %d (host ", slow);
        CHECK(strncmp(stats.reduce.slowest_name, name, strlen(name)) == 0);
        CHECK(!stats.reduce.automatic);
        CHECK(stats.reduce.fastest_seconds < stats.reduce.slowest_seconds);
        if (ls_rank() ==
            slow) { /* another rank's step may begin late within the slow one's pause */
            CHECK(stats.step.last >= 0.04);
        }
    }
    ls_optim_free(optim);
    ls_module_free(ddp);
}

DIST_TEST(the_parts_of_a_step_add_up, 2)
{
    ls_module *ddp = net_new(LS_REDUCE_OVERLAP);
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    train(ddp, optim, -1, 1);
    ls_ddp_stats first = {.size = sizeof first}, stats = {.size = sizeof stats};
    CHECK_OK(ls_ddp_get_stats(ddp, &first));
    CHECK(first.step.last == 0 && first.step.mean == 0); /* it begins with the first one's end */
    CHECK(first.forward.last > 0 && first.backward.last > 0);
    train(ddp, optim, -1, STEPS);
    CHECK_OK(ls_ddp_get_stats(ddp, &stats));
    CHECK_INT((int64_t)stats.reduce.reductions, 1 + STEPS);
    const double parts =
        stats.forward.mean + stats.backward.mean + stats.exposed.mean + stats.optimizer.mean;
    CHECK(stats.forward.mean > 0 && stats.backward.mean > 0 && stats.wire.mean > 0);
    CHECK(stats.exposed.mean > 0 && stats.optimizer.mean > 0);
    CHECK(parts <= stats.step.mean * 1.001);
    CHECK(stats.step.deviation >= 0 && stats.hidden_share >= 0 && stats.hidden_share <= 1);
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* In the order of the buckets, and each bucket after its gradients. */
static void check_timeline(ls_module *ddp, bool overlaps)
{
    double ready_last = 0, launched_first = 1e9, launched[PARAMS];
    for (int b = 0; b < PARAMS; b++) {
        launched[b] = -1;
    }
    for (int i = 0; i < PARAMS; i++) {
        ls_reducer_event event = {.size = sizeof event};
        CHECK_OK(ls_reducer_get_event(ls_ddp_reducer(ddp), i, &event));
        CHECK(event.ready >= 0 && event.launched >= event.ready);
        CHECK(event.reduced >= event.launched);
        CHECK(event.bucket >= 0 && event.bucket < PARAMS);
        CHECK(launched[event.bucket] < 0 || launched[event.bucket] == event.launched);
        launched[event.bucket] = event.launched;
        ready_last = event.ready > ready_last ? event.ready : ready_last;
        launched_first = event.launched < launched_first ? event.launched : launched_first;
    }
    for (int b = 1; b < PARAMS && launched[b] >= 0; b++) {
        CHECK(launched[b] >= launched[b - 1]);
    }
    CHECK(overlaps || launched_first >= ready_last);
}

DIST_TEST(the_timeline_shows_each_gradient_and_its_bucket, 2)
{
    for (int mode = LS_REDUCE_OVERLAP; mode <= LS_REDUCE_NAIVE; mode++) {
        ls_module *ddp = net_new((ls_reduce_mode)mode);
        ls_optim *optim = ls_sgd_new(ddp, NULL);
        train(ddp, optim, -1, 3);
        check_timeline(ddp, mode == LS_REDUCE_OVERLAP);
        size_t needed = 0;
        CHECK_STATUS(ls_ddp_timeline(ddp, NULL, 0, &needed), LS_ERR_LIMIT);
        CHECK_SAYS(ls_error_message(), "ls_ddp_timeline: the text takes %zu bytes; give as many");
        char *text = malloc(needed);
        CHECK_STATUS(ls_ddp_timeline(ddp, text, needed - 1, NULL), LS_ERR_LIMIT);
        CHECK_OK(ls_ddp_timeline(ddp, text, needed, NULL));
        CHECK(strlen(text) + 1 == needed);
        CHECK_CONTAINS(text, "{\"parameters\":[{\"name\":\"0.weight\",\"elements\":8192,"
                             "\"dtype\":\"float32\",\"bucket\":");
        CHECK_CONTAINS(text, "\"ready\":");
        CHECK_CONTAINS(text, "\"buckets\":[{\"bytes\":");
        free(text);
        ls_optim_free(optim);
        ls_module_free(ddp);
    }
    ls_module *plain = ls_linear_new(2, 2, NULL);
    CHECK_STATUS(ls_ddp_timeline(plain, NULL, 0, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "%s: the module is not a ddp; give what ls_ddp_new returned");
    CHECK(ls_ddp_reducer(plain) == NULL);
    ls_module_free(plain);
}

DIST_TEST(a_timeline_of_no_parameter_and_of_a_running_backward_is_refused, 2)
{
    ls_reducer *reducer = NULL;
    ls_reducer_param param = {.name = "p", .count = 1, .dtype = LS_FLOAT32};
    ls_reducer_event event = {.size = sizeof event};
    CHECK_OK(ls_reducer_new(ls_world(), &param, 1, NULL, &reducer));
    CHECK_OK(ls_reducer_get_event(reducer, 0, &event));
    CHECK(event.ready == -1 && event.launched == -1 && event.reduced == -1);
    ls_reducer_bucket bucket = {.size = sizeof bucket};
    CHECK_OK(ls_reducer_get_bucket(reducer, 0, &bucket));
    CHECK(bucket.bytes == 128 && bucket.params == 1 && bucket.launched == -1);
    CHECK(strcmp(bucket.first_param, "p") == 0 && strcmp(bucket.last_param, "p") == 0);
    CHECK_STATUS(ls_reducer_get_bucket(reducer, 1, &bucket), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_get_bucket: bucket %d of a reducer with %d; give 0 to %d");
    CHECK_STATUS(ls_reducer_get_event(reducer, 1, &event), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_reducer_get_event: parameter %d of a reducer with %d; give 0 to %d");
    CHECK_OK(ls_reducer_begin(reducer, NULL));
    CHECK_STATUS(ls_reducer_get_event(reducer, 0, &event), LS_ERR_STATE);
    CHECK_STATUS(ls_reducer_get_bucket(reducer, 0, &bucket), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "%s: a synchronising backward of reducer \"%s\" "
                                   "is under way; call ls_reducer_wait first");
    CHECK_OK(ls_reducer_ready(reducer, 0, NULL));
    CHECK_OK(ls_reducer_wait(reducer));
    CHECK_OK(ls_reducer_free(reducer));
}

DIST_TEST(a_metric_is_the_mean_over_all_samples, 4)
{
    double mean = 0;
    CHECK_OK(ls_metric_mean(ls_world(), ls_rank() == 3 ? (double)NAN : 10.0 * ls_rank(),
                            ls_rank() == 3 ? 0 : 1 + ls_rank(), &mean));
    CHECK_NEAR(mean, (10 * 2 + 20 * 3) / 6.0, 1e-12);
    CHECK_OK(ls_metric_mean(ls_world(), 5, 0, &mean));
    CHECK(isnan(mean));
    CHECK_STATUS(ls_metric_mean(ls_world(), 5, -1, &mean), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_metric_mean: %s; give a finite weight >= 0 and a place for the mean");
    CHECK_SAYS(ls_error_message(), "the weight is negative or not finite");
    CHECK_STATUS(ls_metric_mean(ls_world(), 5, 1, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "mean is NULL");
}

/* ---- replicas ----------------------------------------------------------------------------- */

typedef struct flip {
    int rank, param, bit;
    int64_t element;
} flip;

/* Drawn alike on all ranks. */
static flip draw(int trial, const ls_param *params)
{
    flip f = {.rank = (int)(ls_random_uniform(3, (uint64_t)trial, 0) * (float)ls_world_size()),
              .param = (int)(ls_random_uniform(3, (uint64_t)trial, 1) * PARAMS),
              .bit = (int)(ls_random_uniform(3, (uint64_t)trial, 2) * 32)};
    f.element = (int64_t)(ls_random_uniform(3, (uint64_t)trial, 3) *
                          (float)ls_numel(params[f.param].value));
    return f;
}

/* Of the two ranks in the text only the other one has the words after its hash. */
static void check_odd(int odd, const char *others)
{
    char begin[32];
    snprintf(begin, sizeof begin, "rank %d has hash ", odd);
    CHECK_CONTAINS(ls_error_message(), begin);
    CHECK_CONTAINS(ls_error_message(), others);
    const char *hash = strstr(ls_error_message(), begin) + strlen(begin);
    CHECK(strncmp(hash + 16, ", rank ", 7) == 0 || hash[16] == ';');
}

DIST_TEST(a_flipped_bit_is_named_by_rank_parameter_and_step_100_times_of_100, 3)
{
    for (int trial = 0; trial < 100; trial++) {
        ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_linear_new(HIDDEN, HIDDEN, NULL),
                               ls_linear_new(HIDDEN, OUT, NULL)};
        ls_module *ddp = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(),
                                    LS_OPTIONS(ls_ddp_options, .check_every = 2));
        ls_optim *optim = ls_sgd_new(ddp, NULL);
        ls_param params[PARAMS];
        CHECK_INT(ls_module_params(ddp, params, PARAMS), PARAMS);
        train(ddp, optim, -1, 2);
        const flip f = draw(trial, params);
        if (ls_rank() == f.rank) {
            uint32_t *words = edit_elements(params[f.param].value);
            words[f.element] ^= 1u << f.bit;
            put_elements(params[f.param].value, words);
        }
        {
            LS_SCOPE;
            ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32);
            CHECK_STATUS(ls_backward(ls_mean(ls_forward(ddp, x))), LS_ERR_MISMATCH);
        }
        char words[200];
        snprintf(words, sizeof words,
                 "synchronised backward 2: the ranks differ in the numbers of %s (parameter %d): ",
                 params[f.param].name, f.param);
        CHECK_CONTAINS(ls_error_message(), words);
        check_odd(f.rank, "as 2 of 3 ranks");
        CHECK_STATUS(ls_optim_step(optim), LS_ERR_STATE);
        ls_optim_free(optim);
        ls_module_free(ddp);
    }
}

/* Of two ranks neither can be said to be right. */
DIST_TEST(two_replicas_that_differ_are_both_suspect, 2)
{
    ls_module *ddp = net_new(LS_REDUCE_OVERLAP); /* looks at steps 0, 100 … */
    ls_param params[PARAMS];
    CHECK_INT(ls_module_params(ddp, params, PARAMS), PARAMS);
    add_float(params[3].value, 0, (float)ls_rank());
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32);
    CHECK_STATUS(ls_backward(ls_mean(ls_forward(ddp, x))), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "reducer \"%.20s\", synchronised backward %llu");
    CHECK_SAYS(ls_error_message(), "the numbers of %.200s (parameter %d)");
    CHECK_SAYS(ls_error_message(), "a bit has flipped, or the program changed it on one rank: "
                                   "continue from the last checkpoint");
    CHECK_CONTAINS(ls_error_message(), "rank 0 has hash ");
    CHECK_CONTAINS(ls_error_message(), ", rank 1 has hash ");
    CHECK(strstr(ls_error_message(), "of 2 ranks") == NULL);
    ls_module_free(ddp);
}

DIST_TEST(of_two_and_two_replicas_the_lower_ranks_count_as_right, 4)
{
    ls_module *ddp = net_new(LS_REDUCE_OVERLAP);
    ls_param params[PARAMS];
    CHECK_INT(ls_module_params(ddp, params, PARAMS), PARAMS);
    add_float(params[3].value, 0, (float)(ls_rank() / 2));
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32);
    CHECK_STATUS(ls_backward(ls_mean(ls_forward(ddp, x))), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 0 has hash ");
    CHECK_CONTAINS(ls_error_message(), ", rank 2 has hash ");
    CHECK_CONTAINS(ls_error_message(), ", as 2 of 4 ranks, rank 2");
    ls_module_free(ddp);
}

/* Else only some ranks would enter the exchange that names a difference. */
DIST_TEST(ranks_that_compare_at_other_steps_are_a_mismatch, 3)
{
    ls_module *ddp = ls_ddp_new(ls_linear_new(IN, OUT, NULL), ls_world(),
                                LS_OPTIONS(ls_ddp_options, .check_every = ls_rank() != 1));
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(BATCH, IN), LS_FLOAT32);
    CHECK_STATUS(ls_backward(ls_mean(ls_forward(ddp, x))), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "the check of the parameters in this step");
    CHECK_SAYS(ls_error_message(), "give every rank the same check_every");
    CHECK_CONTAINS(ls_error_message(), "rank 0 has one, as 2 of 3 ranks, rank 1 has none; ");
    ls_module_free(ddp);
    ls_module *plain = ls_linear_new(IN, OUT, NULL);
    CHECK(ls_ddp_new(plain, ls_world(), LS_OPTIONS(ls_ddp_options, .check_every = -1)) == NULL);
    CHECK_SAYS(ls_error_message(), "check_every is %d; give a number of steps, or 0 for never");
    ls_module_free(plain);
}

TEST_MAIN
