/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines whose ranks differ: one fails while the others wait, one ends, one computes no
 * gradient. */
#include "elements.h"
#include "says.h"
#include "test.h"

#include <unistd.h>

#include <lockstep/lockstep.h>

enum { DIM = 6, ROWS = 3, MICRO = 4 };

/* ---- a layer that some micro-batches skip --------------------------------------------------- */

typedef struct skipper {
    ls_module base;
    ls_module *layer;
} skipper;

/* Those of one row. */
static ls_tensor *skip(ls_module *module, ls_tensor *x)
{
    return ls_size(x, 0) == 1 ? ls_scale(x, 1.0) : ls_forward(((skipper *)module)->layer, x);
}

static const ls_module_class skipper_class = LS_MODULE_CLASS(.name = "skipper", .forward = skip);

static ls_module *skipper_new(void)
{
    skipper *self = ls_module_new(sizeof *self, &skipper_class);
    self->layer = ls_module_add(&self->base, "layer", ls_linear_new(DIM, DIM, NULL));
    return &self->base;
}

static ls_module *make_net(void)
{
    ls_module *layers[] = {ls_linear_new(DIM, DIM, NULL), skipper_new()};
    return ls_sequential_new(layers, 2);
}

static ls_micro_batch micro_of(int m, int copy, int rows)
{
    float x[ROWS * DIM];
    int32_t y[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(10 * copy + m), (uint64_t)i);
    }
    for (int i = 0; i < ROWS; i++) {
        y[i] = (i + m + copy) % DIM;
    }
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_from_data(x, LS_SHAPE(rows, DIM), LS_FLOAT32)},
                            .target = ls_from_data(y, LS_SHAPE(rows), LS_INT32)};
}

/* ---- micro-batches that reach no parameter -------------------------------------------------- */

/* The mean over all micro-batches of all copies; rows(copy, m). */
static void twin_grads(ls_module *net, int copies, int (*rows)(int copy, int m))
{
    for (int copy = 0; copy < copies; copy++) {
        for (int m = 0; m < MICRO; m++) {
            LS_SCOPE;
            ls_micro_batch micro = micro_of(m, copy, rows(copy, m));
            ls_tensor *y = ls_forward(net, micro.inputs[0]);
            CHECK_OK(ls_backward(
                ls_scale(ls_cross_entropy(y, micro.target, NULL), 1.0 / (MICRO * copies))));
        }
    }
}

static void check_grads(ls_module *net, ls_module *twin)
{
    ls_param params[4];
    const int count = ls_module_params(net, params, 4);
    CHECK(count > 0);
    for (int i = 0; i < count; i++) {
        const float *a = elements_of(ls_grad(params[i].value));
        const float *b = elements_of(ls_grad(ls_module_param(twin, params[i].name)));
        for (int64_t e = 0; e < ls_numel(params[i].value); e++) {
            CHECK(a[e] - b[e] < 1e-6F && b[e] - a[e] < 1e-6F);
        }
    }
}

static void train(const char *schedule, const char *replicas, int copies,
                  int (*rows)(int copy, int m))
{
    LS_SCOPE;
    ls_group *group = NULL, *alike = NULL;
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net(), *twin = make_net();
    const int copy = ls_rank() / (ls_world_size() / copies);
    CHECK_OK(ls_group_split(ls_world(), copy, 0, "copy", &group));
    CHECK_OK(ls_pipeline_new(net, group,
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .replicas = replicas),
                             &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, "alike", &alike));
    net = ls_ddp_new(net, alike, NULL);
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(m, copy, rows(copy, m));
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
    twin_grads(twin, copies, rows);
    check_grads(net, twin);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(twin);
    CHECK_OK(ls_group_free(alike));
    CHECK_OK(ls_group_free(group));
}

static int last_of_the_second_copy(int copy, int m)
{
    return copy == 1 && m == MICRO - 1 ? 1 : ROWS;
}

static int all_of_the_second_copy(int copy, int m)
{
    (void)m;
    return copy == 1 ? 1 : ROWS;
}

static int odd_ones(int copy, int m)
{
    (void)copy;
    return m % 2 == 1 ? 1 : ROWS;
}

DIST_TEST(a_copy_whose_last_backward_reaches_no_parameter_takes_part, 4)
{
    train("1f1b", NULL, 2, last_of_the_second_copy);
    train("zb-h1", NULL, 2, last_of_the_second_copy);
    train("1f1b", NULL, 2, all_of_the_second_copy);
}

DIST_TEST(micro_batches_that_reach_no_parameter_count_in_the_mean_of_replicas, 3)
{
    train("1f1b", "1,2", 1, odd_ones); /* all of the second replica */
    train("gpipe", "1,2", 1, odd_ones);
}

/* ---- failures ----------------------------------------------------------------------------- */

/* Rank 0 gives no input for one micro-batch. Nobody ends, so only what is said ends the others'
 * waits. */
static void check_failure(const char *schedule, const char *axes, const char *replicas)
{
    LS_SCOPE;
    ls_mesh *mesh = NULL;
    ls_group *alike = NULL;
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .replicas = replicas),
                             &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, "alike", &alike));
    net = ls_ddp_new(net, alike, NULL);
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(m, 0, ROWS);
        micro[m].inputs[0] = ls_rank() == 0 && m == 2 ? NULL : micro[m].inputs[0];
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have made it */
    CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    CHECK_CONTAINS(ls_error_message(), "is NULL; give a tensor");
    CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
    (void)ls_group_free(alike);
    (void)ls_mesh_free(mesh);
}

DIST_TEST(a_failure_reaches_the_copies_of_a_pipeline, 4)
{
    check_failure("1f1b", "dp=2,pp=2", NULL);
}

DIST_TEST(a_failure_reaches_the_copies_of_a_pipeline_that_splits_backwards, 4)
{
    check_failure("zb-h1", "dp=2,pp=2", NULL);
}

DIST_TEST(a_failure_reaches_replicas, 3)
{
    check_failure("1f1b", "pp=3", "2,1");
}

/* ---- a loss that is not a number ----------------------------------------------------------- */

static ls_tensor *output_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg, (void)target;
    return output;
}

DIST_TEST(a_loss_of_several_elements_is_refused, 1)
{
    LS_SCOPE;
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    CHECK_OK(ls_pipeline_new(
        net, ls_world(), LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = output_of),
        &pipe));
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(m, 0, ROWS);
    }
    CHECK_STATUS(ls_pipeline_backward(pipe, net, micro, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "the loss of the pipeline has %lld elements; give one of exactly one "
               "(ls_mean and ls_sum make one)");
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
}

/* ---- after ls_finalize --------------------------------------------------------------------- */

static void train_once(ls_pipeline *pipe, ls_module *net)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(m, 0, ROWS);
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
}

/* Also when the process has joined another job since. */
TEST(a_pipeline_of_a_job_that_has_ended_is_refused_and_freed)
{
    for (int again = 0; again < 2; again++) {
        ls_micro_batch micro[MICRO] = {{.size = sizeof *micro}};
        ls_tensor *outputs[MICRO] = {NULL};
        ls_pipeline *pipe = NULL;
        CHECK_OK(ls_init(NULL));
        ls_module *net = make_net();
        CHECK_OK(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO), &pipe));
        train_once(pipe, net);
        CHECK_OK(ls_finalize());
        CHECK_OK(again ? ls_init(NULL) : LS_OK);
        CHECK_STATUS(ls_pipeline_backward(pipe, net, micro, NULL), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "%s: this pipeline was made before ls_finalize; make a new "
                                       "module and a new pipeline after ls_init");
        CHECK_CONTAINS(ls_error_message(), "ls_pipeline_backward: this");
        CHECK_STATUS(ls_pipeline_forward(pipe, micro, MICRO, outputs), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "ls_pipeline_forward: this");
        CHECK_OK(ls_pipeline_free(pipe));
        ls_module_free(net);
        CHECK_OK(again ? ls_finalize() : LS_OK);
    }
}

/* ---- a rank that ends --------------------------------------------------------------------- */

static ls_tensor *end(void *arg, ls_tensor *output, ls_tensor *target)
{
    static int calls;
    (void)arg;
    if (calls++ == 1) {
        _exit(3);
    }
    return ls_cross_entropy(output, target, NULL);
}

/* The rank of the last stage ends in the second micro-batch. */
static int lose_a_stage(void *arg)
{
    (void)arg;
    CHECK_OK(ls_init(NULL));
    LS_SCOPE;
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .loss = end),
                             &pipe));
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(m, 0, ROWS);
    }
    CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    CHECK_CONTAINS(ls_error_message(), "exited with code 3");
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
    _exit(0); /* its own end must not be what ls_spawn tells */
}

TEST(a_rank_that_ends_within_its_stage_is_named)
{
    CHECK(ls_spawn(lose_a_stage, NULL, 2) < 0);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    CHECK_CONTAINS(ls_error_message(), "exited with code 3");
}

TEST_MAIN
