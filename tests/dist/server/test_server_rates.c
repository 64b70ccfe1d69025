/* SPDX-License-Identifier: Apache-2.0 */
/* How fast workers of unequal speed train: with a common step all wait for the slowest. Workers
 * sleep in place of computing. */
#include <time.h>

#include "train.h"

enum { UNITS = 16, UNIT_MS = 150 * TEST_SLOWER, SLOW = 1 }; /* computing is small beside a unit */

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_seconds(double duration)
{
    const struct timespec t = {(time_t)duration,
                               (long)((duration - (double)(time_t)duration) * 1e9)};
    (void)nanosleep(&t, NULL);
}

/* Between the pull and the push of a step. */
static void sleeping_step(ls_module *net, ls_optim *optim, int step, double duration)
{
    LS_SCOPE;
    ls_tensor *loss = loss_of(net, ls_rank(), step);
    sleep_seconds(duration);
    CHECK_OK(ls_backward(loss));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

/* Worker-steps of all in a unit of time, which is a step of all but one: that takes two. */
static double rate_of(const recipe *how)
{
    ls_module *net = serve_model(how);
    ls_optim *optim = optim_of(net, how);
    const double unit = UNIT_MS * 1e-3;
    double rate = 0.0;
    CHECK_OK(ls_server_run(net, optim));
    const double begin = seconds();
    for (int step = 0; ls_server_works(net) && seconds() < begin + UNITS * unit; step++) {
        sleeping_step(net, optim, step, ls_rank() == SLOW ? 2.0 * unit : unit);
        rate = (double)(step + 1) / (seconds() - begin) * unit;
    }
    CHECK_OK(ls_server_join(net));
    CHECK_OK(ls_all_reduce(ls_world(), &rate, &rate, 1, LS_FLOAT64, LS_SUM, NULL, NULL));
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
    return rate;
}

/* Within `part` of the rate; other work on the machine may make it less. */
static void check_rate(double rate, double expected, double part)
{
    const double promised = UNITS * UNIT_MS * 1e-3;
    CHECK(rate <= (1.0 + part) * expected);
    CHECK_WITHIN(promised * expected / rate, (1.0 + part) * promised);
}

DIST_TEST(asynchronous_workers_do_not_wait_for_one_that_is_twice_as_slow, 5)
{
    const double async = rate_of(&(recipe){.server = {.mode = LS_SERVER_ASYNC, .servers = 1}});
    check_rate(async, 3.5, 0.05);
    const double sync = rate_of(&(recipe){.server = {.servers = 1}});
    check_rate(sync, 2.0, 0.05);
}

DIST_TEST(a_backup_worker_takes_the_place_of_one_that_is_twice_as_slow, 5)
{
    const double backup = rate_of(&(recipe){.server = {.servers = 1, .backup = 1}});
    check_rate(backup, 3.5, 0.1); /* the latest of three wake-ups counts in each step */
}

/* ---- a long step ---------------------------------------------------------------------------- */

static int waits;

static void count_waits(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    waits += level == LS_LOG_WARN && strstr(text, "has waited for") != NULL;
}

/* Any other operation warns after 5 s. */
DIST_TEST(a_server_whose_worker_computes_for_long_warns_of_nothing, 2)
{
    ls_module *net = serve_model(&(recipe){.server = {.servers = 1}});
    ls_optim *optim = optim_of(net, &(recipe){.server = {.servers = 1}});
    ls_set_log_callback(count_waits, NULL);
    CHECK_OK(ls_server_run(net, optim));
    if (ls_server_works(net)) {
        sleeping_step(net, optim, 0, 5.4);
    }
    CHECK_OK(ls_server_join(net));
    ls_set_log_callback(NULL, NULL);
    CHECK_INT(waits, 0);
    ls_optim_free(optim);
    ls_module_free(net);
    forget_settings();
}

TEST_MAIN
