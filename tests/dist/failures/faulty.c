/* SPDX-License-Identifier: Apache-2.0 */
/* A pipeline of one part for each rank, of which one comes to grief in its third step. With FAULT
 * "replica" two pipelines, of the even and of the odd ranks, are replicas.
 *
 *     faulty FAULT RANK SCHEDULE
 *
 * FAULT: "part" (its operation fails), "null" (it returns no tensor), "loss" (the loss does not
 * exist; RANK is the last), "nan" (its weight is not a number; with pipedream the optimizer of the
 * stage refuses that), "replica" (so is an input of that rank's pipeline: the gradients' norm is
 * not finite on any rank). Prints "PID n". */
#include <lockstep/lockstep.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DIM = 6, ROWS = 3, MICRO = 4, STEPS = 5, RANKS_MAX = 4, FAULTY_STEP = 2 };

static const char *fault;
static int victim, step, stages;
static ls_group *copy; /* the ranks of this rank's pipeline */

typedef struct chain {
    ls_module base;
    ls_module *layer[RANKS_MAX];
} chain;

static ls_tensor *forward(ls_module *module, ls_tensor *x)
{
    for (int i = 0; i < stages; i++) {
        x = ls_forward(((chain *)module)->layer[i], x);
    }
    return x;
}

static ls_tensor *run(ls_module *module, ls_tensor *x, int number)
{
    const bool fails = step == FAULTY_STEP && number == victim && ls_rank() == victim;
    if (fails && strcmp(fault, "null") == 0) {
        return NULL;
    }
    if (fails && strcmp(fault, "part") == 0) {
        x = ls_matmul(x, x); /* FAULTY LINE */
    }
    return ls_forward(((chain *)module)->layer[number], x);
}

static ls_tensor *run_0(ls_module *module, ls_tensor *const *in)
{
    return run(module, in[0], 0);
}

static ls_tensor *run_1(ls_module *module, ls_tensor *const *in)
{
    return run(module, in[0], 1);
}

static ls_tensor *run_2(ls_module *module, ls_tensor *const *in)
{
    return run(module, in[0], 2);
}

static ls_tensor *run_3(ls_module *module, ls_tensor *const *in)
{
    return run(module, in[0], 3);
}

static void parts(ls_module *module, ls_parts *p)
{
    const ls_part all[RANKS_MAX] = {LS_PART(.name = "p0", .run = run_0, .uses = "l0"),
                                    LS_PART(.name = "p1", .run = run_1, .uses = "l1"),
                                    LS_PART(.name = "p2", .run = run_2, .uses = "l2"),
                                    LS_PART(.name = "p3", .run = run_3, .uses = "l3")};
    (void)module;
    for (int i = 0; i < stages; i++) {
        ls_parts_add(p, &all[i]); /* DECLARATION */
    }
}

static const ls_module_class chain_class =
    LS_MODULE_CLASS(.name = "chain", .forward = forward, .parts = parts);

static ls_module *make_net(void)
{
    static const char *const names[RANKS_MAX] = {"l0", "l1", "l2", "l3"};
    chain *self = ls_module_new(sizeof *self, &chain_class);
    for (int i = 0; i < stages; i++) {
        self->layer[i] = ls_module_add(&self->base, names[i], ls_linear_new(DIM, DIM, NULL));
    }
    LS_CHECK(ls_module_status(&self->base));
    return &self->base;
}

static ls_tensor *loss(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return strcmp(fault, "loss") == 0 && step == FAULTY_STEP ? NULL : ls_mse_loss(output, target);
}

/* Of its last layer the gradient is finite no more. */
static void spoil(ls_module *net)
{
    char name[16];
    (void)snprintf(name, sizeof name, "l%d.weight", victim);
    *(float *)ls_data(ls_module_param(net, name)) = NAN;
}

static void train(ls_pipeline *pipe, ls_module *net)
{
    LS_SCOPE;
    float x[ROWS * DIM];
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        for (int i = 0; i < ROWS * DIM; i++) {
            x[i] = ls_random_normal(5, (uint64_t)(step * MICRO + m), (uint64_t)i);
        }
        ls_tensor *values = ls_from_data(x, LS_SHAPE(ROWS, DIM), LS_FLOAT32);
        micro[m] =
            (ls_micro_batch){.size = sizeof(ls_micro_batch), .inputs = {values}, .target = values};
    }
    if (strcmp(fault, "replica") == 0 && step == FAULTY_STEP && ls_rank() % 2 == victim % 2) {
        *(float *)ls_data(micro[1].inputs[0]) = NAN;
    }
    LS_CHECK(ls_pipeline_backward(pipe, net, micro, NULL));
}

/* Averages the gradients of a stage over the two pipelines. */
static ls_module *replicate(ls_pipeline *pipe, ls_module *net)
{
    ls_group *alike = NULL;
    LS_CHECK(ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, "alike", &alike));
    LS_CHECK(net = ls_ddp_new(net, alike, NULL));
    return net;
}

int main(int argc, char **argv)
{
    ls_pipeline *pipe = NULL;
    if (argc != 4) {
        return 2;
    }
    fault = argv[1];
    victim = atoi(argv[2]);
    const bool steps_itself = strcmp(argv[3], "pipedream") == 0;
    printf("PID %d\n", (int)getpid());
    fflush(stdout);
    LS_CHECK(ls_init(NULL));
    const bool replicas = strcmp(fault, "replica") == 0;
    stages = ls_world_size() / (replicas ? 2 : 1);
    copy = ls_world();
    LS_CHECK(replicas ? ls_group_split(ls_world(), ls_rank() % 2, 0, "copy", &copy) : LS_OK);
    ls_module *net = make_net();
    LS_CHECK(ls_pipeline_new(
        net, copy,
        LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .schedule = argv[3], .loss = loss),
        &pipe));
    net = replicas ? replicate(pipe, net) : net;
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.01));
    LS_CHECK(steps_itself ? ls_pipeline_set_optim(pipe, optim) : LS_OK);
    for (step = 0; step < STEPS; step++) {
        if (strcmp(fault, "nan") == 0 && step == FAULTY_STEP && ls_rank() == victim) {
            spoil(net);
        }
        train(pipe, net);
        LS_CHECK(replicas
                     ? ls_clip_grad_norm(net, 1.0,
                                         LS_OPTIONS(ls_clip_grad_norm_options, .group = copy), NULL)
                     : LS_OK);
        LS_CHECK(steps_itself ? LS_OK : ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    LS_CHECK(ls_pipeline_free(pipe));
    ls_optim_free(optim);
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return 0;
}
