/* Asynchronous pipelines against their staleness twin: one process that computes each micro-batch
 * with the versions of the parameters that the papers give its stages (Narayanan et al. 2019,
 * section 3.3; 2021, section 3.1). Losses and parameters are equal to the last bit. */
#include "says.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { LAYERS = 8, DIM = 12, ROWS = 5, MICRO = 8, CALLS = 3, PARAMS = 2 * LAYERS };

static ls_module *make_net(void)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int i = 0; i < LAYERS; i++) {
        const char name[] = {(char)('a' + i), '\0'};
        ls_module *pair[] = {
            ls_linear_new(DIM, DIM,
                          LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_GELU)),
            ls_dropout_new(0.1)};
        (void)ls_module_add(net, name, ls_sequential_new(pair, 2));
    }
    return net;
}

static ls_micro_batch micro_of(int call, int m, int replica)
{
    const uint64_t stream = (uint64_t)(call * MICRO + m + 1000 * replica);
    float x[ROWS * DIM];
    int32_t y[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) {
        x[i] = ls_random_normal(3, stream, (uint64_t)i);
    }
    for (int i = 0; i < ROWS; i++) {
        y[i] = (i + call + m) % DIM;
    }
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_from_data(x, LS_SHAPE(ROWS, DIM), LS_FLOAT32)},
                            .target = ls_from_data(y, LS_SHAPE(ROWS), LS_INT32),
                            .context = {.step = stream}};
}

/* ---- the twin ----------------------------------------------------------------------------- */

typedef struct twin {
    ls_module *net; /* perhaps wrapped */
    ls_optim *optim;
    ls_param params[PARAMS];
    int stage[PARAMS];
    bool vertical_sync;
    const char *cut;                   /* NULL: evenly */
    float *version[MICRO + 1][PARAMS]; /* of the numbers after so many steps */
} twin;

static void copy(const twin *t, int i, float *to, const float *from)
{
    for (int64_t e = 0; e < ls_numel(t->params[i].value); e++) {
        to[e] = from[e];
    }
}

static void keep(const twin *t, int version)
{
    for (int i = 0; i < PARAMS; i++) {
        copy(t, i, t->version[version][i], ls_data(t->params[i].value));
    }
}

static void put(const twin *t, int i, int version)
{
    copy(t, i, ls_data(t->params[i].value), t->version[version][i]);
}

/* The second stage is a dropout alone. */
static const char *const bare_cut = "d.1 e.0";

/* Layer i is parts 2 i and 2 i + 1. */
static void find_stages(twin *t, ls_module *net, int stages)
{
    CHECK_INT(ls_module_params(net, t->params, PARAMS), PARAMS);
    for (int s = 0; s < stages; s++) {
        int first = 0, count = 0;
        CHECK_OK(ls_module_cut_evenly(net, stages, s, &first, &count));
        for (int i = 0; i < PARAMS; i++) {
            const int part = 2 * (t->params[i].name[0] - 'a');
            t->stage[i] = part >= first && part < first + count ? s : t->stage[i];
        }
    }
    for (int i = 0; i < PARAMS && t->cut != NULL; i++) {
        t->stage[i] = t->params[i].name[0] <= 'd' ? 0 : 2;
    }
    for (int v = 0; v <= MICRO; v++) {
        for (int i = 0; i < PARAMS; i++) {
            t->version[v][i] = malloc((size_t)ls_numel(t->params[i].value) * sizeof(float));
        }
    }
}

/* The version that micro-batch m finds at a stage; with vertical sync that of the first one. */
static int version_of(int m, int stage, int stages, int per_step, bool vertical_sync)
{
    const int delay = per_step > 1 ? 1 : stages - 1 - (vertical_sync ? 0 : stage);
    return m / per_step > delay ? m / per_step - delay : 0;
}

static void twin_call(twin *t, int call, int replica, int stages, int per_step, double *losses)
{
    keep(t, 0);
    for (int m = 0; m < MICRO; m++) {
        const bool last = (m + 1) % per_step == 0;
        for (int i = 0; i < PARAMS; i++) {
            put(t, i, version_of(m, t->stage[i], stages, per_step, t->vertical_sync));
        }
        {
            LS_SCOPE;
            ls_micro_batch micro = micro_of(call, m, replica);
            ls_step_begin(micro.context);
            CHECK_OK(ls_ddp_set_sync(t->net, last));
            ls_tensor *y = ls_forward(t->net, micro.inputs[0]);
            ls_tensor *loss = ls_cross_entropy(y, micro.target, NULL);
            CHECK_OK(ls_backward(ls_scale(loss, 1.0 / per_step)));
            CHECK_OK(ls_item(loss, &losses[m]));
        }
        for (int i = 0; i < PARAMS; i++) {
            put(t, i, m / per_step);
        }
        if (last) {
            CHECK_OK(ls_optim_step(t->optim));
            ls_optim_zero_grad(t->optim);
            keep(t, m / per_step + 1);
        }
    }
}

/* ---- both --------------------------------------------------------------------------------- */

static void check_params(ls_module *net, ls_module *whole)
{
    ls_param params[PARAMS];
    const int count = ls_module_params(net, params, PARAMS);
    for (int i = 0; i < count; i++) {
        ls_tensor *other = ls_module_param(whole, params[i].name);
        CHECK(memcmp(ls_data(params[i].value), ls_data(other),
                     (size_t)ls_numel(other) * sizeof(float)) == 0);
    }
}

/* With the newest parameters, in other shapes than in training. */
static void check_forward(ls_pipeline *pipe, ls_module *net, ls_module *whole, int call)
{
    enum { COUNT = 3 };
    LS_SCOPE;
    LS_NO_GRAD;
    ls_micro_batch micro[COUNT];
    ls_tensor *outputs[COUNT];
    ls_module_train(net, false);
    ls_module_train(whole, false);
    for (int m = 0; m < COUNT; m++) {
        micro[m] = micro_of(call, 100 + m, 0);
        micro[m].inputs[0] = ls_slice(micro[m].inputs[0], 0, 0, ROWS - m);
    }
    CHECK_OK(ls_pipeline_forward(pipe, micro, COUNT, outputs));
    for (int m = 0; m < COUNT && outputs[m] != NULL; m++) {
        CHECK(memcmp(ls_data(outputs[m]), ls_data(ls_forward(whole, micro[m].inputs[0])),
                     (size_t)((ROWS - m) * DIM) * sizeof(float)) == 0);
    }
    ls_module_train(net, true);
    ls_module_train(whole, true);
}

static void train_with(const char *schedule, int pp, int dp, bool vertical_sync, const char *cut)
{
    char axes[32];
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    twin t = {.net = make_net(), .vertical_sync = vertical_sync, .cut = cut};
    ls_module *net = make_net(), *whole = t.net;
    const int per_step = strcmp(schedule, "pipedream") == 0 ? 1 : pp;
    (void)snprintf(axes, sizeof axes, "pp=%d,dp=%d", pp, dp);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    find_stages(&t, whole, pp);
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .vertical_sync = vertical_sync,
                                        .cut = cut),
                             &pipe));
    if (dp > 1) {
        net = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
        t.net = ls_ddp_new(t.net, ls_mesh_group(mesh, "dp"), NULL);
    }
    ls_optim *optim = ls_module_param_count(net) > 0
                          ? ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02))
                          : NULL;
    t.optim = ls_adamw_new(t.net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    for (int call = 0; call < CALLS; call++) {
        double losses[MICRO], expected[MICRO];
        {
            LS_SCOPE;
            ls_micro_batch micro[MICRO];
            for (int m = 0; m < MICRO; m++) {
                micro[m] = micro_of(call, m, ls_mesh_coordinate(mesh, "dp"));
            }
            CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
        }
        twin_call(&t, call, ls_mesh_coordinate(mesh, "dp"), pp, per_step, expected);
        for (int m = 0; m < MICRO; m++) {
            CHECK(losses[m] == expected[m]);
        }
        check_params(net, whole);
        check_forward(pipe, net, whole, call);
    }
    for (int v = 0; v <= MICRO; v++) {
        for (int i = 0; i < PARAMS; i++) {
            free(t.version[v][i]);
        }
    }
    ls_optim_free(optim);
    ls_optim_free(t.optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(t.net);
    CHECK_OK(ls_mesh_free(mesh));
}

static void train(const char *schedule, int pp, int dp)
{
    train_with(schedule, pp, dp, false, NULL);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_1, 1)
{
    train("pipedream", 1, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_2, 2)
{
    train("pipedream", 2, 1);
    train("pipedream-2bw", 2, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_4, 4)
{
    train("pipedream", 4, 1);
    train("pipedream-2bw", 4, 1);
}

DIST_TEST(pipedream_equals_its_staleness_twin_on_8, 8)
{
    train("pipedream", 8, 1);
    train("pipedream-2bw", 8, 1);
}

DIST_TEST(replicas_of_asynchronous_stages_average_every_step, 4)
{
    train("pipedream", 2, 2);
    train("pipedream-2bw", 2, 2);
}

/* Narayanan et al. 2019, section 3.3: delay P-1 at every stage. */
DIST_TEST(vertical_sync_gives_a_micro_batch_one_version_at_all_stages, 4)
{
    train_with("pipedream", 4, 1, true, NULL);
    train_with("pipedream", 2, 2, true, NULL);
}

DIST_TEST(vertical_sync_on_8, 8)
{
    train_with("pipedream", 8, 1, true, NULL);
}

DIST_TEST(a_stage_without_parameters_steps_without_an_optimizer, 3)
{
    train_with("pipedream", 3, 1, false, bare_cut);
    train_with("pipedream", 3, 1, true, bare_cut);
}

DIST_TEST(zero_is_refused, 2)
{
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    ls_group *own = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream", .micro_batches = MICRO), &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_rank(), 0, NULL, &own));
    ls_module *ddp = ls_ddp_new(net, own, LS_OPTIONS(ls_ddp_options, .zero = 1));
    ls_optim *optim = ls_adamw_new(ddp, NULL);
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_micro_batch micro[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = micro_of(0, m, 0);
    }
    CHECK_STATUS(ls_pipeline_backward(pipe, ddp, micro, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: the optimizer steps while micro-batches are in flight, with "
               "versions of the parameters that lie elsewhere, and zero gathers parameters in "
               "place; leave zero out, or step after ls_pipeline_backward");
    CHECK_STATUS(ls_pipeline_free(pipe), LS_ERR_UNSUPPORTED);
    ls_optim_free(optim);
    ls_module_free(ddp);
    CHECK_OK(ls_group_free(own));
}

/* The user cannot look between the gradient and the step. */
static void check_nan(const char *schedule)
{
    ls_module *net = make_net();
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = schedule, .micro_batches = MICRO), &pipe));
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK_OK(ls_pipeline_set_optim(pipe, optim));
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(0, m, 0);
        }
        ((float *)ls_data(micro[3].inputs[0]))[7] = NAN;
        CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    }
    CHECK_SAYS(
        ls_error_message(),
        "ls_pipeline_backward: the gradient of %.200s is not finite on rank %d (element %lld "
        "of %lld), and the optimizer has not stepped with it; look for a division by zero or "
        "a logarithm of 0, or lower the learning rate%s");
    ls_param params[PARAMS];
    const int count = ls_module_params(net, params, PARAMS);
    for (int i = 0; i < count; i++) {
        for (int64_t e = 0; e < ls_numel(params[i].value); e++) {
            CHECK(isfinite(((const float *)ls_data(params[i].value))[e]));
        }
    }
    CHECK_STATUS(ls_pipeline_free(pipe), LS_ERR_INVALID);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(a_gradient_that_is_not_finite_is_not_stepped_with, 3)
{
    check_nan("pipedream");
}

DIST_TEST(a_gradient_that_is_not_finite_is_not_stepped_with_in_2bw, 2)
{
    check_nan("pipedream-2bw");
}

TEST_MAIN
