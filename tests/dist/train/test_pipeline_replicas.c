/* SPDX-License-Identifier: Apache-2.0 */
/* Stages with several ranks against their sequential twin (schedule.h, Note [Meaning of a table]):
 * one process adds the gradients of each replica's micro-batches in ascending order, then these
 * sums over the ranks of the stage in the order of an all_reduce, and divides once. Losses and
 * parameters are equal to the last bit, and close to those of accumulation over all
 * micro-batches. */
#include "elements.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

#include "pipeline_models.h"
#include "says.h"

enum { STAGES_MAX = 6, GROUP_MAX = 16 };

typedef struct layout {
    const use *u;
    int copies, stages; /* of the pipeline; of the model */
    int replicas[STAGES_MAX];
    int32_t stage_of_param[PARAMS_MAX];
} layout;

/* "3,1" of one digit each. */
static layout layout_of(const use *u, const char *replicas, int copies)
{
    layout l = {.u = u, .copies = copies};
    for (const char *at = replicas; *at != '\0'; at++) {
        if (*at != ',') {
            l.replicas[l.stages++] = *at - '0';
        }
    }
    return l;
}

/* ---- the twin ----------------------------------------------------------------------------- */

/* Adds the gradients of one replica's micro-batches; the losses on the way, unless NULL. */
static void accumulate(const layout *l, ls_module *net, int step, int copy, int replica, int every,
                       double *losses)
{
    for (int m = replica; m < l->u->micro; m += every) {
        LS_SCOPE;
        ls_micro_batch micro = micro_of(l->u, step, m, copy);
        ls_tensor *y = NULL;
        ls_step_begin(micro.context);
        CHECK_OK(ls_forward_many(net, micro.inputs, l->u->make == make_bert ? 3 : 1, &y, 1));
        ls_tensor *loss = loss_of(NULL, y, micro.target);
        CHECK_OK(ls_backward(loss));
        if (losses != NULL) {
            CHECK_OK(ls_item(loss, &losses[m]));
        }
    }
}

/* The binary tree over the ranks: split at the largest power of two. */
static float tree(const float *x, int count)
{
    int half = 1;
    while (2 * half < count) {
        half *= 2;
    }
    return count == 1 ? x[0] : tree(x, half) + tree(x + half, count - half);
}

/* sums[rank of the stage's group] of one parameter, into mean. */
static void mean_of(float *const *sums, int ranks, int64_t count, int divisor, float *mean)
{
    for (int64_t e = 0; e < count; e++) {
        float x[GROUP_MAX];
        for (int r = 0; r < ranks; r++) {
            x[r] = sums[r][e];
        }
        mean[e] = tree(x, ranks) / (float)divisor;
    }
}

/* What accumulate leaves in the parameters, as copies. */
static void take_grads(const ls_param *params, int count, float **out)
{
    for (int i = 0; i < count; i++) {
        const size_t bytes = (size_t)ls_numel(params[i].value) * sizeof(float);
        out[i] = malloc(bytes);
        memcpy(out[i], elements_of(ls_grad(params[i].value)), bytes);
    }
}

/* means[param] of a stage's parameters; those of the other stages stay. */
static void stage_means(const layout *l, ls_module *net, ls_optim *optim, int step, int stage,
                        float **means)
{
    static float *grads[GROUP_MAX][PARAMS_MAX];
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX), every = l->replicas[stage];
    const int ranks = l->copies * every;
    for (int r = 0; r < ranks; r++) {
        ls_optim_zero_grad(optim);
        accumulate(l, net, step, r / every, r % every, every, NULL);
        take_grads(params, count, grads[r]);
    }
    for (int i = 0; i < count; i++) {
        float *sums[GROUP_MAX];
        for (int r = 0; r < ranks; r++) {
            sums[r] = grads[r][i];
        }
        if (l->stage_of_param[i] == stage) {
            mean_of(sums, ranks, ls_numel(params[i].value), l->copies * l->u->micro, means[i]);
        }
        for (int r = 0; r < ranks; r++) {
            free(sums[r]);
        }
    }
}

/* The last stage that has each parameter of the whole model. */
static void find_stages(layout *l, ls_group *group, ls_module *net, int stage, ls_module *whole)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(whole, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        l->stage_of_param[i] = ls_module_param(net, params[i].name) != NULL ? stage : -1;
    }
    CHECK_OK(ls_all_reduce(group, l->stage_of_param, l->stage_of_param, count, LS_INT32, LS_MAX,
                           NULL, NULL));
}

static void twin_step(const layout *l, ls_module *net, ls_optim *optim, int step, int copy,
                      double *losses)
{
    ls_param params[PARAMS_MAX];
    float *means[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        means[i] = malloc((size_t)ls_numel(params[i].value) * sizeof(float));
    }
    for (int s = 0; ls_rank() == 0 && s < l->stages; s++) {
        stage_means(l, net, optim, step, s, means);
    }
    for (int i = 0; i < count; i++) { /* all ranks have the same twin */
        CHECK_OK(ls_broadcast(ls_world(), means[i], ls_numel(params[i].value), LS_FLOAT32, 0, NULL,
                              NULL));
    }
    ls_optim_zero_grad(optim);
    accumulate(l, net, step, copy, 0, 1, losses);
    for (int i = 0; i < count; i++) {
        CHECK_OK(ls_copy_in(ls_grad(params[i].value), means[i],
                            (size_t)ls_numel(params[i].value) * sizeof(float)));
        free(means[i]);
    }
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

/* ---- both --------------------------------------------------------------------------------- */

/* Some micro-batches, fewer than replicas among them, on the ranks that have them. */
static void evaluate(const layout *l, ls_pipeline *pipe, ls_module *net, ls_module *twin, int step,
                     int copy, bool tied)
{
    enum { COUNT = 11 };
    LS_SCOPE;
    LS_NO_GRAD;
    ls_micro_batch micro[COUNT];
    ls_tensor *outputs[COUNT];
    use u = *l->u;
    u.short_last = true;
    const int count = 1 + step % 2 * 10, last = l->stages - 1;
    ls_module_train(net, step == 1);
    ls_module_train(twin, step == 1);
    for (int m = 0; m < count; m++) {
        micro[m] = micro_of(&u, 50 + step, m, copy);
    }
    CHECK_OK(ls_pipeline_forward(pipe, micro, count, outputs));
    const int size = ls_world_size() / l->copies, rank = ls_rank() % size;
    for (int m = 0; m < count; m++) {
        ls_tensor *y = NULL;
        ls_step_begin(micro[m].context);
        CHECK_OK(ls_forward_many(twin, micro[m].inputs, u.make == make_bert ? 3 : 1, &y, 1));
        CHECK((outputs[m] != NULL) == (rank == size - l->replicas[last] + m % l->replicas[last]));
        if (outputs[m] != NULL) {
            check_output(outputs[m], y, tied);
        }
    }
    ls_module_train(net, true);
    ls_module_train(twin, true);
}

static void train(const use *u, const char *replicas, int copies)
{
    const bool tied = u->make == make_gpt2 || u->make == make_bert;
    ls_group *group = NULL, *alike = NULL;
    ls_pipeline *pipe = NULL;
    ls_module *net = u->make(), *twin = u->make();
    layout l = layout_of(u, replicas, copies);
    const int size = ls_world_size() / copies, copy = ls_rank() / size;
    CHECK_OK(ls_group_split(ls_world(), copy, 0, "copy", &group));
    CHECK_OK(ls_pipeline_new(net, group,
                             LS_OPTIONS(ls_pipeline_options, .schedule = u->schedule,
                                        .micro_batches = u->micro, .recompute = u->recompute,
                                        .warm_up = u->warm_up, .replicas = replicas),
                             &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, "stage", &alike));
    CHECK_INT(ls_group_size(alike), copies * l.replicas[ls_pipeline_stage(pipe)]);
    find_stages(&l, group, net, ls_pipeline_stage(pipe), twin);
    net = ls_module_param_count(net) > 0 ? ls_ddp_new(net, alike, NULL) : net;
    ls_optim *optim = optim_of(net, tied), *other = optim_of(twin, tied);
    CHECK_OK(u->steps ? ls_pipeline_set_optim(pipe, optim) : LS_OK);
    for (int step = 0; step < STEPS; step++) {
        double losses[MICRO_MAX], expected[MICRO_MAX];
        {
            LS_SCOPE;
            ls_micro_batch micro[MICRO_MAX];
            for (int m = 0; m < u->micro; m++) {
                micro[m] = micro_of(u, step, m, copy);
            }
            CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
        }
        twin_step(&l, twin, other, step, copy, expected);
        check_losses(losses, expected, u->micro, tied);
        if (optim != NULL && !u->steps) {
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        check_params(net, twin, tied);
        if (u->make != make_resnet) { /* running statistics are those of each replica */
            evaluate(&l, pipe, net, twin, step, copy, tied);
        }
    }
    ls_optim_free(optim);
    ls_optim_free(other);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(twin);
    CHECK_OK(ls_group_free(alike));
    CHECK_OK(ls_group_free(group));
}

/* Its second stage of three has no parameters. */
static ls_module *make_bare(void)
{
    ls_module *layers[] = {ls_embedding_new(VOCAB, 8), ls_gelu_new(LS_GELU_TANH),
                           ls_linear_new(8, VOCAB, NULL)};
    return ls_sequential_new(layers, 3);
}

/* ---- tests -------------------------------------------------------------------------------- */

static void both_schedules_of(ls_module *(*make)(void), const char *replicas, int copies)
{
    train(&(use){.make = make, .schedule = "1f1b", .micro = 8}, replicas, copies);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 5, .short_last = true}, replicas,
          copies);
    train(&(use){.make = make, .schedule = "1f1b", .micro = 7, .warm_up = 2}, replicas, copies);
    train(&(use){.make = make, .schedule = "gpipe", .micro = 7, .steps = true}, replicas, copies);
    train(&(use){.make = make, .schedule = "gpipe", .micro = 4, .recompute = true}, replicas,
          copies);
}

static void both_schedules(const char *replicas, int copies)
{
    both_schedules_of(make_gpt, replicas, copies);
}

DIST_TEST(replicas_before_a_stage_equal_their_twin, 4)
{
    both_schedules("3,1", 1);
}

DIST_TEST(replicas_behind_a_stage_equal_their_twin, 4)
{
    both_schedules("1,3", 1);
}

DIST_TEST(replicas_between_stages_equal_their_twin, 6)
{
    both_schedules("1,2,1,2", 1);
}

DIST_TEST(one_stage_of_several_ranks_is_data_parallelism, 3)
{
    both_schedules("3", 1);
}

DIST_TEST(replicas_and_copies_of_a_pipeline_share_one_mean, 6)
{
    both_schedules("2,1", 2);
}

DIST_TEST(copies_and_replicas_of_a_later_stage_share_one_mean, 6)
{
    both_schedules("1,2", 2);
}

DIST_TEST(a_stage_without_parameters_has_replicas_and_no_wrapper, 4)
{
    both_schedules_of(make_bare, "1,2,1", 1);
}

DIST_TEST(masks_pass_replicas, 4)
{
    train(&(use){.make = make_bert, .schedule = "1f1b", .micro = 5}, "2,1,1", 1);
}

DIST_TEST(ties_of_replicas_are_summed_once, 4)
{
    train(&(use){.make = make_gpt2, .schedule = "1f1b", .micro = 4}, "1,3", 1);
}

DIST_TEST(ties_between_replicas_are_summed_once, 4)
{
    train(&(use){.make = make_gpt2, .schedule = "gpipe", .micro = 5}, "2,2", 1);
}

DIST_TEST(batch_norm_of_replicas_takes_each_micro_batch_by_itself, 3)
{
    train(&(use){.make = make_resnet, .schedule = "1f1b", .micro = 4}, "2,1", 1);
}

/* ---- mistakes ----------------------------------------------------------------------------- */

static ls_status try_backward(ls_pipeline *pipe, ls_module *net, const use *u)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    for (int m = 0; m < u->micro; m++) {
        micro[m] = micro_of(u, 0, m, 0);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have made it */
    return ls_pipeline_backward(pipe, net, micro, NULL);
}

static ls_pipeline *make_pipe(ls_module *net, const char *replicas, int micro)
{
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all are through with the one before */
    (void)ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .micro_batches = micro, .replicas = replicas), &pipe);
    return pipe;
}

DIST_TEST(replicas_without_a_wrapper_are_refused, 3)
{
    const use u = {.make = make_gpt, .micro = 4};
    ls_module *net = make_gpt();
    ls_pipeline *pipe = make_pipe(net, "2,1", u.micro);
    CHECK_INT(try_backward(pipe, net, &u), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "without a wrapper");
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: stage %d has %d of the ranks of its pipeline, and was given "
               "%s; give the wrapper of ls_ddp_new over all ranks whose ls_pipeline_stage is %d");
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
}

DIST_TEST(a_wrapper_that_leaves_replicas_out_is_refused, 3)
{
    const use u = {.make = make_gpt, .micro = 4};
    ls_module *net = make_gpt();
    ls_pipeline *pipe = make_pipe(net, "2,1", u.micro);
    ls_group *alone = NULL;
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, "alone", &alone));
    net = ls_ddp_new(net, alone, NULL);
    CHECK(try_backward(pipe, net, &u) < 0);
    if (ls_rank() != 2) {
        CHECK_SAYS(ls_error_message(), "in a wrapper that leaves a rank of it out");
    }
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
    CHECK_OK(ls_group_free(alone));
}

static void check_refused(const char *replicas, int micro, const char *why)
{
    ls_module *net = make_gpt();
    CHECK(make_pipe(net, replicas, micro) == NULL);
    CHECK_CONTAINS(ls_error_message(), why);
    ls_module_free(net);
}

DIST_TEST(replicas_that_do_not_fit_are_refused, 3)
{
    check_refused("2,2", 4, "2 stages are 4 ranks, and there are 3");
    check_refused("2,x", 4, "give the number of ranks of each stage");
    check_refused("2,1", 1, "at least one micro-batch for each replica");
    check_refused(ls_rank() == 2 ? "1,2" : "2,1", 4, "give all ranks the same model and options");
    CHECK_INT(ls_pipeline_stage(NULL), LS_ERR_INVALID);
}

TEST_MAIN
