/* SPDX-License-Identifier: Apache-2.0 */
/* A small training program for the tests of stopping and restarting: hand-made gradients through a
 * reducer.
 *
 *     worker train STEPS    until a wish to stop, at most STEPS; files up0, up1 … when it trains
 *     worker agree STEPS    the same without a reducer, by ls_stop_agree
 *     worker plain STEPS    the same without .graceful_stop
 *     worker deaf STEPS     the same, but no wish is heeded
 *     worker mend           rank 1 fails at step 5 of the first attempt; resumes from ./saved
 *     worker fail           rank 1 fails at step 5 of every attempt; resumes from ./saved
 *     worker kill           the same by SIGKILL, at another step each time
 *     worker mismatch       ranks reduce different counts
 *     worker leave          rank 0 is in ls_finalize when the wish to stop comes (after up0)
 *     worker differ WHAT    rank 1 trains with another seed, batch, data (their number), lr or
 *                           optimizer, splits the world with another name, or makes a pipeline of
 *                           another schedule or number of layers
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>
#include <lockstep/reducer.h>

#include "base/runtime.h"
#include "comm/core/comm.h"

enum { COUNT = 1000, STEPS = 10, FATAL_STEP = 5, SAVED_STEP = 3, FAILURE = 9 };

static const char *mode;
static float weights[COUNT];
static ls_reducer *reducer;
static ls_reducer_param param = {.name = "w", .count = COUNT, .dtype = LS_FLOAT32};

static bool mode_is(const char *name)
{
    return strcmp(mode, name) == 0;
}

static void touch(const char *name, int number)
{
    char path[64];
    snprintf(path, sizeof path, "%s%d", name, number);
    FILE *file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d\n", (int)getpid()) < 0 || fclose(file) != 0) {
        exit(FAILURE);
    }
}

/* Between the exchange and the look at its outcome: ranks that looked at the wish itself would
 * mostly see it in different steps. */
static void work(void)
{
    struct timespec pause = {.tv_nsec = 1000000 + 3000000 * ls_rank()};
    (void)nanosleep(&pause, NULL);
}

static void train_step(int step)
{
    ls_step_begin((ls_step_context){.step = (uint64_t)step});
    LS_CHECK(ls_reducer_begin(reducer, NULL));
    for (int i = 0; i < COUNT; i++) {
        ((float *)param.grad)[i] = weights[i] * 0.01f + (float)(ls_rank() + step) * 1e-3f;
    }
    LS_CHECK(ls_reducer_ready(reducer, 0, NULL));
    LS_CHECK(ls_reducer_wait(reducer));
    for (int i = 0; i < COUNT; i++) {
        weights[i] -= 0.1f * ((float *)param.grad)[i];
    }
    LS_CHECK(ls_reducer_zero(reducer));
    work();
}

static bool stop_wanted(void)
{
    bool stop = false;
    if (mode_is("agree")) {
        work();
        LS_CHECK(ls_stop_agree(ls_world(), &stop));
        return stop;
    }
    return ls_stop_requested();
}

static int train(int steps)
{
    int step = 0;
    for (bool stop = false; !stop && step < steps; step++) {
        if (!mode_is("agree")) {
            train_step(step);
        }
        stop = stop_wanted() && !mode_is("deaf");
        if (step == 3) {
            touch("up", ls_rank());
        }
    }
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        hash = (hash ^ bits) * 1099511628211u;
    }
    printf("ended after step %d of %d with %016llx\n", step, steps, (unsigned long long)hash);
    return 0;
}

/* ---- failing -------------------------------------------------------------------------------- */

static int attempt(void)
{
    const char *text = getenv("TORCHELASTIC_RESTART_COUNT");
    return text != NULL ? atoi(text) : -1;
}

static void fail_here(void)
{
    fprintf(stderr, "process %d at 0x%zx failed, clock %ld\n", (int)getpid(), (size_t)&attempt,
            (long)clock());
    if (mode_is("kill")) {
        kill(getpid(), SIGKILL);
    }
    exit(FAILURE);
}

static int fail(void)
{
    FILE *saved = fopen("saved", "r");
    int fatal = mode_is("kill") ? FATAL_STEP + attempt() : FATAL_STEP;
    bool due = ls_rank() == 1 && (attempt() == 0 || !mode_is("mend"));
    for (int step = saved != NULL ? SAVED_STEP : 0; step < STEPS; step++) {
        if (due && step == fatal) {
            ls_step_begin((ls_step_context){.step = (uint64_t)step});
            fail_here();
        }
        train_step(step);
        if (step == SAVED_STEP && ls_rank() == 0) {
            touch("save", 0);
            (void)rename("save0", "saved");
        }
    }
    printf("came through in attempt %d\n", attempt());
    return 0;
}

static int mismatch(void)
{
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    ls_status status =
        ls_all_reduce(ls_world(), weights, weights, 10 + ls_rank(), LS_FLOAT32, LS_SUM, NULL, NULL);
    return status < 0 ? 1 : 0;
}

/* Rank 0 waits in ls_finalize for the end of an operation that rank 1 starts only once the job was
 * asked to stop. */
static int leave(void)
{
    const ls__comm *comm = ls__comm_get("worker");
    static ls_work *never_waited;
    if (ls_rank() == 0) {
        LS_CHECK(ls_all_reduce(ls_world(), weights, weights, 10, LS_FLOAT32, LS_SUM, NULL,
                               &never_waited));
        return 0;
    }
    while (atomic_load(&comm->board->rank[0].activity.phase) != LS__PHASE_EXIT) {
        work();
    }
    touch("up", 0);
    while (ls__stop_wanted(comm->runtime) == 0) {
        work();
    }
    LS_CHECK(ls_all_reduce(ls_world(), weights, weights, 10, LS_FLOAT32, LS_SUM, NULL, NULL));
    return 0;
}

/* ---- settings that differ ------------------------------------------------------------------- */

static const char *differs; /* the setting that rank 1 has otherwise */

static bool other(const char *what)
{
    return ls_rank() == 1 && strcmp(differs, what) == 0;
}

static void make_optimizer(ls_module *net)
{
    const double lr = other("lr") ? 0.2 : 0.1;
    const ls_optim *optim = other("optimizer")
                                ? ls_adam_new(net, LS_OPTIONS(ls_adam_options, .lr = lr))
                                : ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = lr));
    LS_CHECK(LS_STATUS_OF(optim));
}

/* Only rank 1 has another pipeline. */
static void make_pipeline(void)
{
    ls_pipeline *pipeline = NULL;
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < (other("layers") ? 7 : 6); i++) {
        const char name[] = {(char)('a' + i), '\0'};
        (void)ls_module_add(net, name, ls_linear_new(4, 4, NULL));
    }
    LS_CHECK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = other("schedule") ? "gpipe" : "1f1b"),
        &pipeline));
}

/* Everything that a trainer makes, with one difference; then the first step. */
static int differ(void)
{
    ls_group *part = NULL;
    const ls_sampler *sampler = ls_sampler_new(
        other("data") ? 20 : 24, LS_OPTIONS(ls_sampler_options, .batch = other("batch") ? 3 : 2));
    LS_CHECK(LS_STATUS_OF(sampler));
    if (other("seed")) {
        ls_manual_seed(7);
    }
    make_optimizer(ls_linear_new(4, 2, NULL));
    if (strcmp(differs, "names") == 0) {
        LS_CHECK(ls_group_split(ls_world(), 0, 0, other("names") ? "odd" : "even", &part));
    }
    if (strcmp(differs, "schedule") == 0 || strcmp(differs, "layers") == 0) {
        make_pipeline();
    }
    train_step(0);
    return 0;
}

static int run(int argc, char **argv)
{
    int steps = argc > 2 ? atoi(argv[2]) : STEPS;
    if (mode_is("mismatch")) {
        return mismatch();
    }
    if (mode_is("leave")) {
        return leave();
    }
    LS_CHECK(ls_reducer_new(ls_world(), &param, 1, NULL, &reducer));
    if (mode_is("differ")) {
        differs = argv[2];
        return differ();
    }
    bool fails = mode_is("mend") || mode_is("fail") || mode_is("kill");
    int status = fails ? fail() : train(steps);
    LS_CHECK(ls_reducer_free(reducer));
    return status;
}

int main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "";
    LS_CHECK(ls_init(LS_OPTIONS(ls_init_options, .graceful_stop = !mode_is("plain"))));
    int status = run(argc, argv);
    LS_CHECK(ls_finalize());
    return status;
}
