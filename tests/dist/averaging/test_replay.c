/* SPDX-License-Identifier: Apache-2.0 */
/* The replay log of averages: written by a run, and made again by one process. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/runtime.h"
#include "ddp/wrapper.h"
#include "elements.h"
#include "says.h"
#include "scratch.h"
#include "test.h"

enum { STEPS = 14, EVERY = 4, CLASSES = 3 };

/* Which outer optimizer a run has, and whether its ranks have weights. */
typedef struct recipe {
    const ls_outer_options *outer;
    bool weighted, empty; /* empty: rank 0 has the weight 0 */
    int other;            /* data of the twin: 0, the run's */
} recipe;

/* With buffers, which follow rank 0. */
static ls_module *net_new(void)
{
    ls_module *layers[] = {ls_batch_norm2d_new(2, 1e-5, 0.1), ls_flatten_new(),
                           ls_linear_new(2, CLASSES, NULL)};
    return ls_sequential_new(layers, 3);
}

static double weight_of(const recipe *how, int worker)
{
    return how->empty && worker == 0 ? 0.0 : how->weighted ? 1.0 + 0.7 * worker : 1.0;
}

static void local_step(ls_module *ddp, ls_optim *optim, int worker, int64_t step)
{
    LS_SCOPE;
    float x[8];
    for (int i = 0; i < 8; i++) {
        x[i] = ls_random_normal(11, (uint64_t)(100 * worker + step), (uint64_t)i);
    }
    ls_optim_set_lr(optim, 0.02 / (double)(step + 1));
    ls_tensor *y = ls_forward(ddp, ls_from_data(x, LS_SHAPE(4, 2, 1, 1), LS_FLOAT32));
    CHECK_OK(ls_backward(ls_mean(ls_mul(y, y))));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

static ls_module *begin(ls_group *group, ls_optim **optim)
{
    ls_module *ddp = ls_ddp_new(net_new(), group, NULL);
    CHECK_OK(ls_module_status(ddp));
    *optim = ls_adamw_new(ddp, NULL);
    CHECK_OK(ls_ddp_set_local(ddp, true));
    CHECK_OK(ls_ddp_set_sync(ddp, false));
    return ddp;
}

static void average(ls_module *ddp, const recipe *how, const char *path, int64_t step)
{
    CHECK_OK(ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .outer = how->outer,
                                            .weight = weight_of(how, ls_rank()), .log = path,
                                            .command = "train\nit", .step = step)));
}

/* A run of STEPS on all ranks, the last of them in a shorter round. */
static void run_with_log(const recipe *how, const char *path)
{
    ls_optim *optim = NULL;
    ls_module *ddp = begin(ls_world(), &optim);
    if (how->outer != NULL) {
        average(ddp, how, path, 0);
    }
    for (int64_t step = 0; step < STEPS; step++) {
        local_step(ddp, optim, ls_rank(), step);
        if ((step + 1) % EVERY == 0 || step + 1 == STEPS) {
            average(ddp, how, path, step + 1);
        }
    }
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* ---- the twin -------------------------------------------------------------------------------- */

typedef struct workers {
    int64_t done[8];
    int other;
} workers;

static ls_status train(void *arg, ls_module *ddp, ls_optim *optim, int worker, int64_t step)
{
    workers *w = arg;
    for (; w->done[worker] < step; w->done[worker]++) {
        local_step(ddp, optim, worker + w->other, w->done[worker]);
    }
    return LS_OK;
}

static bool ended; /* of the last replay */

/* By every rank alone, since the file is on the disk of all. */
static ls_status replay(const recipe *how, const char *path, int64_t *versions)
{
    ls_optim *optim = NULL;
    ls_group *alone = NULL;
    workers w = {.other = how->other};
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "alone", &alone));
    ls_module *ddp = begin(alone, &optim);
    const ls_status status = ls_average_replay(
        ddp, optim,
        LS_OPTIONS(ls_average_replay_options, .log = path, .train = train, .arg = &w,
                   .outer = how->outer, .versions = versions, .ended = &ended));
    char text[1024];
    (void)snprintf(text, sizeof text, "%s", ls_error_message());
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(alone));
    return status < 0 ? ls_fail(status, "%s", text) : status;
}

static const char *shared_path(void)
{
    static char path[256];
    if (ls_rank() == 0) {
        scratch_begin();
        (void)snprintf(path, sizeof path, "%s", scratch_at("log"));
    }
    CHECK_OK(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
    return path;
}

static void leave(void)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        scratch_end();
    }
}

static void check_twin(const recipe *how, int64_t averages)
{
    int64_t versions = 0;
    const char *path = shared_path();
    run_with_log(how, path);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(replay(how, path, &versions));
    CHECK_INT(versions, averages);
    CHECK(ended);
    leave();
}

DIST_TESTS(every_average_of_, _ranks_is_made_again_by_one, 1, 2, 3, 4, 5, 6, 7, 8)
{
    check_twin(&(recipe){.weighted = false}, 4);
    check_twin(&(recipe){.weighted = true}, 4);
    check_twin(&(recipe){.outer = LS_OPTIONS(ls_outer_options, .lr = 0.7, .momentum = 0.9,
                                             .nesterov = true)},
               5);
    check_twin(&(recipe){.weighted = true, .outer = LS_OPTIONS(ls_outer_options, .momentum = 0.5)},
               5);
}

/* Changes the log on rank 0: exchanges lines a and b, counted from 1, or writes other digits for
 * the hash of line a. */
static void change(const char *path, int a, int b)
{
    static char text[1 << 16], line[64][256];
    int lines = 0;
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line[lines], sizeof line[0], file) != NULL) {
        lines++;
    }
    CHECK(fclose(file) == 0);
    if (b > 0) {
        memcpy(text, line[a - 1], sizeof line[0]);
        memcpy(line[a - 1], line[b - 1], sizeof line[0]);
        memcpy(line[b - 1], text, sizeof line[0]);
    } else {
        char *hash = strstr(line[a - 1], "hash=");
        CHECK(hash != NULL);
        hash[5] = hash[5] == '0' ? '1' : '0';
    }
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < lines; i++) {
        CHECK(fputs(line[i], file) >= 0);
    }
    CHECK(fclose(file) == 0);
}

static void check_changed(int a, int b, const char *says)
{
    const recipe how = {.weighted = true};
    int64_t versions = 0;
    const char *path = shared_path();
    run_with_log(&how, path);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        change(path, a, b);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_STATUS(replay(&how, path, &versions), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), says);
    leave();
}

/* Three lines of head, then two for each average. */
DIST_TEST(a_log_that_was_changed_fails_at_that_line, 2)
{
    check_changed(5, 0, "line 5: average 1 has hash ");
    CHECK_SAYS(ls_error_message(),
               "ls_average_replay: %s, line %lld: average %lld has hash %016llx there, and %016llx "
               "here; the run had other data, settings or code, or the log was changed");
    check_changed(9, 0, "line 9: average 3 has hash ");
    check_changed(6, 7, "line 6: worker 0 of round 1 comes next");
    check_changed(5, 7, "line 5: worker 1 of round 0 comes next");
    CHECK_SAYS(ls_error_message(),
               "ls_average_replay: %s, line %lld: worker %d of round %lld comes next, and made "
               "%lld; the log was changed, or lines are missing");
}

DIST_TEST(a_twin_of_other_data_or_settings_fails_at_the_first_average, 2)
{
    int64_t versions = 7;
    const recipe how = {.outer = LS_OPTIONS(ls_outer_options, .lr = 0.7)},
                 data = {.outer = how.outer, .other = 3},
                 outer = {.outer = LS_OPTIONS(ls_outer_options, .lr = 0.6)};
    const char *path = shared_path();
    run_with_log(&how, path);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_STATUS(replay(&data, path, &versions), LS_ERR_MISMATCH);
    CHECK_INT(versions, 1); /* the start */
    CHECK_STATUS(replay(&outer, path, &versions), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "average 2 has hash");
    leave();
}

/* Rank 0 has no data, so nothing of its batches is in the model, buffers included. */
DIST_TEST(buffers_are_those_of_the_lowest_rank_with_a_weight, 3)
{
    const recipe how = {.empty = true};
    ls_optim *optim = NULL;
    float mine[2], given[2];
    ls_module *ddp = begin(ls_world(), &optim);
    local_step(ddp, optim, ls_rank(), 0);
    memcpy(mine, elements_of(ls_module_buffer(ddp, "0.running_mean")), sizeof mine);
    CHECK_OK(ls_broadcast(ls_world(), mine, 2, LS_FLOAT32, 1, NULL, NULL));
    CHECK_OK(ls_ddp_average(
        ddp, LS_OPTIONS(ls_ddp_average_options, .weight = weight_of(&how, ls_rank()))));
    memcpy(given, elements_of(ls_module_buffer(ddp, "0.running_mean")), sizeof given);
    CHECK(memcmp(given, mine, sizeof mine) == 0);
    ls_optim_free(optim);
    ls_module_free(ddp);
    check_twin(&how, 4);
}

/* ---- a log without its end ------------------------------------------------------------------- */

static ls__env full; /* a disk that takes `room` more bytes */
static size_t room;

static ssize_t write_full(const ls__env *env, int fd, const void *in, size_t bytes)
{
    const ls__env *real = ls__self.runtime->env;
    const size_t some = bytes < room ? bytes : room;
    (void)env;
    room -= some;
    return some > 0 ? real->write(real, fd, in, some) : -ENOSPC;
}

/* The third average fits in part. */
DIST_TEST(a_disk_that_is_full_within_a_line_fails_all_ranks_and_leaves_whole_lines, 2)
{
    const recipe how = {.weighted = true};
    int64_t versions = 0;
    ls_optim *optim = NULL;
    const char *path = shared_path();
    ls_module *ddp = begin(ls_world(), &optim);
    average(ddp, &how, path, 0);
    if (ls_rank() == 0) {
        ls__replay_writer *writer = &ls__ddp_of(ddp)->log.writer;
        full = *writer->env;
        full.write = write_full;
        room = 200;
        writer->env = &full;
    }
    local_step(ddp, optim, ls_rank(), 0);
    average(ddp, &how, path, 1);
    const ls_status status =
        ls_ddp_average(ddp, LS_OPTIONS(ls_ddp_average_options, .log = path, .step = 1,
                                       .weight = weight_of(&how, ls_rank())));
    CHECK(status < 0);
    CHECK_CONTAINS(ls_error_message(), "replay log: cannot write");
    ls_optim_free(optim);
    ls_module_free(ddp);
    ls_group *alone = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "wait", &alone));
    CHECK_OK(replay(&how, path, &versions));
    CHECK_INT(versions, 2);
    CHECK(!ended);
    CHECK_OK(ls_group_free(alone));
    leave();
}

static ls_status fail(void *arg, ls_module *ddp, ls_optim *optim, int worker, int64_t step)
{
    (void)arg, (void)ddp, (void)optim, (void)step;
    return worker == 1 ? LS_ERR_INVALID : LS_OK;
}

DIST_TEST(a_worker_that_cannot_be_trained_is_named, 2)
{
    ls_optim *optim = NULL;
    ls_group *alone = NULL;
    const char *path = shared_path();
    run_with_log(&(recipe){.weighted = false}, path);
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "alone", &alone));
    ls_module *ddp = begin(alone, &optim);
    CHECK_STATUS(ls_average_replay(
                     ddp, optim, LS_OPTIONS(ls_average_replay_options, .log = path, .train = fail)),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "training worker %d to step %lld");
    CHECK_CONTAINS(ls_error_message(), "training worker 1 to step 4");
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(alone));
    leave();
}

DIST_TEST(a_replay_needs_a_local_wrapper_on_one_rank, 2)
{
    ls_optim *optim = NULL;
    workers w = {.other = 0};
    ls_module *ddp = begin(ls_world(), &optim);
    CHECK_STATUS(ls_average_replay(ddp, optim,
                                   LS_OPTIONS(ls_average_replay_options, .log = "log",
                                              .train = train, .arg = &w)),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_average_replay: give a wrapper of ls_ddp_new on one rank after "
               "ls_ddp_set_local(ddp, true), its optimizer, a log, and a function that trains");
    ls_optim_free(optim);
    ls_module_free(ddp);
}

TEST_MAIN
