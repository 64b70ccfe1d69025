/* SPDX-License-Identifier: Apache-2.0 */
/* A program of which one rank keeps all the others waiting, directly or through each other.
 *
 *     holder WHAT HOW RANK
 *     WHAT   the schedule of a pipeline, whose stage does not come back from its forward;
 *            groups, messages or mixed: rank RANK + 1 waits for it, RANK + 2 for RANK + 1, and so
 *            on
 *     HOW    pause (asleep for good), spin (a loop without end), stop (SIGSTOP)
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

enum { DIM = 16, BATCH = 4, MICRO = 8, FATAL_STEP = 1, RANKS_MAX = 8 };

static const char *what, *how;
static int holder, rank, size, step, calls;

static void hold(void)
{
    fprintf(stderr, "PID %d\n", (int)getpid());
    if (strcmp(how, "stop") == 0) {
        (void)raise(SIGSTOP);
    }
    for (volatile int turns = 0; strcmp(how, "spin") == 0; turns = turns ^ 1) {
    }
    for (;;) {
        (void)pause();
    }
}

/* ---- a pipeline ----------------------------------------------------------------------------- */

typedef struct stage {
    ls_module base;
    ls_module *fc;
} stage;

static ls_tensor *stage_forward(ls_module *m, ls_tensor *x)
{
    if (rank == holder && step == FATAL_STEP && ++calls == 3) {
        hold();
    }
    return ls_forward(((stage *)m)->fc, x);
}
static const ls_module_class stage_class =
    LS_MODULE_CLASS(.name = "stage", .forward = stage_forward);

static ls_tensor *mean_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    (void)target;
    return ls_mean(output);
}

static ls_module *make_stages(int count)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < count; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        stage *one = ls_module_new(sizeof *one, &stage_class);
        one->fc = ls_module_add(&one->base, "fc", ls_linear_new(DIM, DIM, NULL));
        (void)ls_module_add(net, name, &one->base);
    }
    return net;
}

static void run_pipeline(void)
{
    ls_pipeline *pipeline = NULL;
    ls_module *net = make_stages(2 * size);
    LS_CHECK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = what,
                                        .micro_batches = MICRO, .loss = mean_of,
                                        .chunks = strcmp(what, "interleaved") == 0 ? 2 : 0),
                             &pipeline));
    ls_optim *optim = ls_sgd_new(net, NULL);
    if (strncmp(what, "pipedream", 9) == 0) {
        LS_CHECK(ls_pipeline_set_optim(pipeline, optim));
    }
    for (step = 0; step <= FATAL_STEP; step++) {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = (ls_micro_batch){.size = sizeof *micro,
                                        .inputs = {ls_ones(LS_SHAPE(BATCH, DIM), LS_FLOAT32)}};
        }
        LS_CHECK(ls_pipeline_backward(pipeline, net, micro, NULL));
    }
}

/* ---- groups and messages --------------------------------------------------------------------- */

static float a[DIM];

/* Waits for the rank before this one. */
static void wait_by_message(void)
{
    LS_CHECK(ls_recv(ls_world(), a, DIM, LS_FLOAT32, (rank + size - 1) % size, 0, NULL, NULL));
}

static void wait_in(ls_group *group)
{
    LS_CHECK(ls_all_reduce(group, a, a, DIM, LS_FLOAT32, LS_SUM, NULL, NULL));
}

static void run_chain(void)
{
    ls_group *pair[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        const int members[] = {(r + size - 1) % size, r};
        LS_CHECK(ls_group_new(ls_world(), members, 2, "pair", &pair[r]));
    }
    const int distance = (rank - holder + size) % size;
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    if (distance == 0) {
        hold();
    }
    if (strcmp(what, "groups") == 0 || (strcmp(what, "mixed") == 0 && distance == 2)) {
        wait_in(pair[rank]);
    } else if (strcmp(what, "messages") == 0 || distance == 1) {
        wait_by_message();
    } else {
        LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: holder WHAT HOW RANK\n");
        return 2;
    }
    what = argv[1];
    how = argv[2];
    holder = atoi(argv[3]);
    LS_CHECK(ls_init(NULL));
    rank = ls_rank();
    size = ls_world_size();
    if (strcmp(what, "groups") == 0 || strcmp(what, "messages") == 0 ||
        strcmp(what, "mixed") == 0) {
        run_chain();
    } else {
        run_pipeline();
    }
    return 0;
}
