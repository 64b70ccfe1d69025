/* SPDX-License-Identifier: Apache-2.0 */
/* A training program in which one rank dies at a chosen place, for test_failures.
 *
 *     victim PLACE RANK [MARK]
 *     PLACE: forward, backward, collective, between: killed by SIGKILL there
 *            exit0, exit3: leaves in the middle of training with that status
 *            segfault: a bad pointer in the forward pass
 *            pipeline: killed in the forward pass of a stage; each rank has one
 *            none: nobody dies
 *     MARK: by which the test finds this process
 * At the moment of death the victim writes "DYING <monotonic seconds>" to stderr.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "autograd/param.h"

enum { DIM = 64, BATCH = 16, STEPS = 400, FATAL_STEP = 5 };

static const char *place;
static int victim;
static int step;

static bool due(const char *here)
{
    return step == FATAL_STEP && ls_rank() == victim && strcmp(place, here) == 0;
}

static void note(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    char line[64];
    int n =
        snprintf(line, sizeof line, "DYING %.3f\n", (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
    if (write(2, line, (size_t)n) < 0) {
        _exit(9);
    }
}

static void die(void)
{
    note();
    kill(getpid(), SIGKILL);
    for (;;) {
        pause();
    }
}

static void die_by_alarm(int signal)
{
    (void)signal;
    die();
}

typedef struct fragile {
    ls_module base;
    ls_module *fc1, *fc2;
} fragile;

static ls_tensor *fragile_forward(ls_module *m, ls_tensor *x)
{
    fragile *self = (fragile *)m;
    ls_tensor *h = ls_relu(ls_forward(self->fc1, x));
    if (due("forward") || due("pipeline")) {
        die();
    }
    if (due("segfault")) {
        note();
        raise(SIGSEGV);
    }
    return ls_forward(self->fc2, h);
}
static const ls_module_class fragile_class =
    LS_MODULE_CLASS(.name = "fragile", .forward = fragile_forward);

/* A leaf of its own whose gradient is ready in the middle of backward. */
static ls_status trap_begin(ls__observer *self, const ls__backward_info *info)
{
    (void)self;
    (void)info;
    return LS_OK;
}
static ls_status trap_ready(ls__observer *self, int index)
{
    (void)self;
    (void)index;
    if (due("backward")) {
        die();
    }
    return LS_OK;
}
static ls_status trap_end(ls__observer *self)
{
    (void)self;
    return LS_OK;
}
static void trap_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self;
    (void)status;
    (void)message;
}

/* All but the last rank are blocked in an all_reduce when the victim dies inside it. */
static void meet(void)
{
    if (strcmp(place, "collective") != 0 || step != FATAL_STEP) {
        return;
    }
    if (ls_rank() == victim) {
        signal(SIGALRM, die_by_alarm);
        ualarm(150000, 0);
    }
    if (ls_rank() == (victim + 1) % ls_world_size()) {
        usleep(400000);
    }
    static float numbers[100000];
    LS_CHECK(ls_all_reduce(ls_world(), numbers, numbers, 100000, LS_FLOAT32, LS_SUM, NULL, NULL));
}

static void leave_if_due(void)
{
    if (due("exit0") || due("exit3")) {
        note();
        _exit(strcmp(place, "exit3") == 0 ? 3 : 0);
    }
    if (due("between")) {
        die();
    }
}

static fragile *fragile_new(void)
{
    fragile *net = ls_module_new(sizeof *net, &fragile_class);
    net->fc1 = ls_module_add(&net->base, "fc1", ls_linear_new(DIM, DIM, NULL));
    net->fc2 = ls_module_add(&net->base, "fc2", ls_linear_new(DIM, DIM, NULL));
    return net;
}

static ls_tensor *mean_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    (void)target;
    return ls_mean(output);
}

static void train_pipeline(void)
{
    enum { MICRO = 4 };
    ls_pipeline *pipeline = NULL;
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < ls_world_size(); i++) {
        const char name[] = {(char)('a' + i), '\0'};
        (void)ls_module_add(net, name, &fragile_new()->base);
    }
    LS_CHECK(ls_pipeline_new(
        net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = mean_of),
        &pipeline));
    for (step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof micro[m],
                                        .inputs = {ls_randn(LS_SHAPE(BATCH, DIM))}};
        }
        LS_CHECK(ls_pipeline_backward(pipeline, net, micro, NULL));
    }
    LS_CHECK(ls_pipeline_free(pipeline));
    ls_module_free(net);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: victim PLACE RANK [MARK]\n");
        return 2;
    }
    place = argv[1];
    victim = atoi(argv[2]);
    LS_CHECK(ls_init(NULL));
    if (strcmp(place, "pipeline") == 0) {
        train_pipeline();
        return 0;
    }
    fragile *net = fragile_new();
    ls_module *ddp = ls_ddp_new(&net->base, ls_world(), NULL);
    if (!ddp) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 1;
    }
    ls_optim *optim = ls_sgd_new(ddp, NULL);
    ls_tensor *trap = ls_set_requires_grad(ls_keep(ls_ones(LS_SHAPE(DIM), LS_FLOAT32)), true);
    ls__observer observer = {.param_count = 1,
                             .begin = trap_begin,
                             .ready = trap_ready,
                             .end = trap_end,
                             .abort = trap_abort};
    LS_CHECK(ls__observer_add(&observer));
    LS_CHECK(ls__param_observe(trap, &observer, 0));
    for (step = 0; step < STEPS; step++) {
        leave_if_due();
        {
            LS_SCOPE;
            ls_tensor *x = ls_mul(ls_randn(LS_SHAPE(BATCH, DIM)), trap);
            LS_CHECK(ls_backward(ls_mean(ls_forward(ddp, x))));
        }
        meet();
        LS_CHECK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        usleep(2000);
    }
    ls__observer_remove(&observer);
    ls_optim_free(optim);
    ls_module_free(ddp);
    ls_free(trap);
    LS_CHECK(ls_finalize());
    return 0;
}
