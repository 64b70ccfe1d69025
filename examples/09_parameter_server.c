/* SPDX-License-Identifier: Apache-2.0 */
/* A parameter server: the last rank keeps the parameters, the others send it gradients.
 *
 *     worker   pull ─▶ forward ─▶ backward ─▶ push     no worker waits (async)
 *     server   push of worker 2: version 57;  push of worker 0: version 58; …
 *
 * Worker 1 is twice as slow as the others. With "sync" each step takes as long as its step; with
 * "async" they go on, with parameters that are some versions old; with "stale" they may be two
 * steps ahead of it. The order of an asynchronous run is the machine's, so the server writes a log,
 * and rank 0 makes all versions again by itself, in that order: with the same bits.
 *
 *     lockstep run -n 5 ./09_parameter_server async
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/mlp.h>

enum { IN = 8, HIDDEN = 32, OUT = 4, ROWS = 16, STEPS = 20, SLOW = 1 };

static const char log_path[] = "09_parameter_server.log";

static ls_module *make_net(void)
{
    return ls_mlp_new(IN, HIDDEN, OUT);
}

/* The rows of a step of a worker: the class is the largest of the first four numbers. */
static ls_tensor *loss_of(ls_module *net, int worker, int64_t step)
{
    float x[ROWS * IN];
    int32_t y[ROWS] = {0};
    for (int i = 0; i < ROWS * IN; i++) {
        x[i] = ls_random_normal(7, (uint64_t)(1000 * worker + step), (uint64_t)i);
    }
    for (int r = 0; r < ROWS; r++) {
        for (int k = 1; k < OUT; k++) {
            y[r] = x[r * IN + k] > x[r * IN + y[r]] ? k : y[r];
        }
    }
    return ls_cross_entropy(ls_forward(net, ls_from_data(x, LS_SHAPE(ROWS, IN), LS_FLOAT32)),
                            ls_from_data(y, LS_SHAPE(ROWS), LS_INT32), NULL);
}

/* One step of a worker: with servers backward pushes, and ls_optim_step does nothing. */
static double train_step(ls_module *net, ls_optim *optim, int worker, int64_t step)
{
    double value;
    LS_SCOPE;
    ls_tensor *loss = loss_of(net, worker, step);
    LS_CHECK(ls_backward(loss));
    LS_CHECK(ls_item(loss, &value));
    LS_CHECK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    return value;
}

/* What ls_server_replay asks for. */
static ls_status again(void *optim, ls_module *net, int worker, int64_t step)
{
    (void)train_step(net, optim, worker, step);
    return LS_OK;
}

/* On rank 0 alone: every version of the log once more. */
static void replay(ls_module *served)
{
    const int self = 0;
    ls_group *alone = NULL;
    int64_t versions = 0;
    LS_CHECK(ls_manual_seed(1));
    LS_CHECK(ls_group_new_among(ls_world(), &self, 1, "alone", &alone));
    ls_module *net =
        ls_ddp_new(make_net(), alone, LS_OPTIONS(ls_ddp_options, .bucket_bytes = 25 << 20));
    ls_optim *optim = ls_adamw_new(net, NULL);
    LS_CHECK(ls_server_replay(net, optim,
                              LS_OPTIONS(ls_server_replay_options, .log = log_path, .step = again,
                                         .arg = optim, .versions = &versions)));
    printf("the log has %lld versions; rank 0 has made all of them again: %s\n",
           (long long)versions,
           ls_module_hash(net) == ls_module_hash(served) ? "the same bits" : "OTHER BITS");
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_group_free(alone));
}

/* -1: there is none of this name. */
static int mode_of(const char *name)
{
    return strcmp(name, "sync") == 0    ? LS_SERVER_SYNC
           : strcmp(name, "async") == 0 ? LS_SERVER_ASYNC
           : strcmp(name, "stale") == 0 ? LS_SERVER_STALE
                                        : -1;
}

int main(int argc, char **argv)
{
    const int mode = mode_of(argc > 1 ? argv[1] : "async");
    const struct timespec pause = {0, 5000000};
    if (mode < 0) {
        fprintf(stderr, "mode \"%s\": give sync, async or stale\n", argv[1]);
        return 2;
    }
    LS_CHECK(ls_init(LS_OPTIONS(ls_init_options, .seed = 1)));
    ls_module *net =
        ls_server_new(make_net(), ls_world(),
                      LS_OPTIONS(ls_server_options, .mode = (ls_server_mode)mode, .log = log_path,
                                 .staleness = mode == LS_SERVER_STALE ? 2 : 0));
    LS_CHECK(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(net, NULL);
    double loss = 0.0;

    LS_CHECK(ls_server_run(net, optim)); /* the server returns when all workers have joined */
    const double begin = ls_time();
    for (int step = 0; ls_server_works(net) && step < STEPS; step++) {
        (void)nanosleep(&pause, NULL); /* a step of a larger model */
        if (ls_rank() == SLOW) {
            (void)nanosleep(&pause, NULL);
        }
        loss = train_step(net, optim, ls_rank(), step);
    }
    const double seconds = ls_time() - begin;
    LS_CHECK(ls_server_join(net)); /* all ranks: the newest version */

    ls_server_stats stats = {.size = sizeof stats};
    LS_CHECK(ls_server_get_stats(net, &stats));
    if (ls_server_here(net)) {
        printf("server: %lld versions; a gradient was %.1f versions old, at most %lld\n",
               (long long)stats.version, stats.staleness, (long long)stats.staleness_max);
    } else {
        printf("worker: loss %.3f after %d steps in %.2f s\n", loss, STEPS, seconds);
    }
    fflush(stdout);
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 0) {
        replay(net);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return 0;
}
