/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines whose micro-batches count differently, and whose middle stages have losses of their own
 * (the gates' of experts): the mean of all targets against a reference in float64, and gradient
 * accumulation in one process, bit for bit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "elements.h"
#include "says.h"
#include "test.h"

/* ---- a net, and the same in float64 --------------------------------------------------------- */

enum { LAYERS = 4, DIM = 5, CLASSES = DIM, ROWS = 3, MICRO = 4, REPLICAS_MAX = 2 };

static ls_module *make_net(void)
{
    ls_module *layers[LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = ls_linear_new(DIM, DIM, NULL);
    }
    return ls_sequential_new(layers, LAYERS);
}

static float input_at(int replica, int m, int i)
{
    return sinf((float)(replica * 311 + m * 53 + i * 7));
}

/* Micro-batch 1 has no target that counts, the others one to three. */
static int32_t target_at(int replica, int m, int row)
{
    const int counted = m == 1 ? 0 : 1 + (m + replica) % ROWS;
    return row < counted ? (replica + m + row) % CLASSES : -100;
}

static double weight_of(int replica, int m)
{
    double weight = 0.0;
    for (int row = 0; row < ROWS; row++) {
        weight += target_at(replica, m, row) >= 0;
    }
    return weight;
}

typedef struct reference {
    double w[LAYERS][DIM][DIM], b[LAYERS][DIM], dw[LAYERS][DIM][DIM], db[LAYERS][DIM];
    double targets;
} reference;

/* One row: adds the gradients of -log softmax(h)[target]. */
static void add_row(reference *r, const double *x, int target)
{
    double h[LAYERS + 1][DIM], dh[DIM], sum = 0.0;
    memcpy(h[0], x, sizeof h[0]);
    for (int l = 0; l < LAYERS; l++) {
        for (int o = 0; o < DIM; o++) {
            h[l + 1][o] = r->b[l][o];
            for (int i = 0; i < DIM; i++) {
                h[l + 1][o] += r->w[l][o][i] * h[l][i];
            }
        }
    }
    for (int c = 0; c < CLASSES; c++) {
        sum += exp(h[LAYERS][c]);
    }
    for (int c = 0; c < CLASSES; c++) {
        dh[c] = exp(h[LAYERS][c]) / sum - (c == target);
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        double before[DIM] = {0};
        for (int o = 0; o < DIM; o++) {
            r->db[l][o] += dh[o];
            for (int i = 0; i < DIM; i++) {
                r->dw[l][o][i] += dh[o] * h[l][i];
                before[i] += dh[o] * r->w[l][o][i];
            }
        }
        memcpy(dh, before, sizeof dh);
    }
}

static void copy_params(reference *r, ls_module *net)
{
    char name[16];
    for (int l = 0; l < LAYERS; l++) {
        (void)snprintf(name, sizeof name, "%d.weight", l);
        const float *w = elements_of(ls_module_param(net, name));
        (void)snprintf(name, sizeof name, "%d.bias", l);
        const float *b = elements_of(ls_module_param(net, name));
        for (int i = 0; i < DIM * DIM; i++) {
            (&r->w[l][0][0])[i] = (double)w[i];
        }
        for (int i = 0; i < DIM; i++) {
            r->b[l][i] = (double)b[i];
        }
    }
}

static void add_all(reference *r, int replicas)
{
    for (int q = 0; q < replicas; q++) {
        for (int m = 0; m < MICRO; m++) {
            for (int row = 0; row < ROWS; row++) {
                double x[DIM];
                for (int i = 0; i < DIM; i++) {
                    x[i] = (double)input_at(q, m, row * DIM + i);
                }
                if (target_at(q, m, row) >= 0) {
                    add_row(r, x, target_at(q, m, row));
                    r->targets++;
                }
            }
        }
    }
}

static void check_close(const float *got, const double *sums, int count, double targets)
{
    for (int i = 0; i < count; i++) {
        CHECK(fabs((double)got[i] - sums[i] / targets) < 2e-7 + 1e-5 * fabs(sums[i] / targets));
    }
}

static void check_grads(ls_module *net, const reference *r)
{
    ls_param params[2 * LAYERS];
    const int count = ls_module_params(net, params, 2 * LAYERS);
    for (int i = 0; i < count; i++) {
        const int l = params[i].name[0] - '0';
        const float *grad = elements_of(ls_grad(params[i].value));
        const bool bias = strstr(params[i].name, "bias") != NULL;
        check_close(grad, bias ? r->db[l] : &r->dw[l][0][0], bias ? DIM : DIM * DIM, r->targets);
    }
}

/* ---- weights -------------------------------------------------------------------------------- */

static ls_micro_batch micro_of(int replica, int m)
{
    float x[ROWS * DIM];
    int32_t y[ROWS];
    for (int i = 0; i < ROWS * DIM; i++) {
        x[i] = input_at(replica, m, i);
    }
    for (int row = 0; row < ROWS; row++) {
        y[row] = target_at(replica, m, row);
    }
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_from_data(x, LS_SHAPE(ROWS, DIM), LS_FLOAT32)},
                            .target = ls_from_data(y, LS_SHAPE(ROWS), LS_INT32),
                            .weight = weight_of(replica, m)};
}

typedef struct use {
    const char *schedule, *replicas;
    int chunks;
    bool recompute;
} use;

static void check_means(const use *u, int pp, int dp)
{
    char axes[32];
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    ls_group *alike = NULL;
    (void)snprintf(axes, sizeof axes, "pp=%d,dp=%d", pp, dp);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    ls_module *net = make_net();
    reference r = {.targets = 0.0};
    copy_params(&r, net);
    add_all(&r, dp);
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = u->schedule,
                                        .micro_batches = MICRO, .chunks = u->chunks,
                                        .recompute = u->recompute, .replicas = u->replicas,
                                        .weighted = true),
                             &pipe));
    CHECK_OK(ls_group_split(ls_world(), ls_pipeline_stage(pipe), 0, NULL, &alike));
    net = dp > 1 || u->replicas != NULL ? ls_ddp_new(net, alike, NULL) : net;
    CHECK_OK(ls_module_status(net));
    {
        LS_SCOPE;
        const int replica = ls_mesh_coordinate(mesh, "dp");
        ls_micro_batch micro[MICRO];
        double losses[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(replica, m);
        }
        CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
        CHECK(losses[1] == 0.0 && losses[0] > 0.0 && losses[3] > 0.0);
        check_grads(ls_ddp_module(net), &r);
    }
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    CHECK_OK(ls_group_free(alike));
    CHECK_OK(ls_mesh_free(mesh));
}

static void every_schedule(int pp, int dp)
{
    check_means(&(use){.schedule = "1f1b"}, pp, dp);
    check_means(&(use){.schedule = "gpipe"}, pp, dp);
    check_means(&(use){.schedule = "gpipe", .recompute = true}, pp, dp);
    check_means(&(use){.schedule = "zb-h1"}, pp, dp);
}

DIST_TEST(masked_targets_have_an_exact_mean_on_2, 2)
{
    every_schedule(2, 1);
    check_means(&(use){.schedule = "interleaved", .chunks = 2}, 2, 1);
}

DIST_TEST(masked_targets_have_an_exact_mean_on_4, 4)
{
    every_schedule(2, 2);
    every_schedule(4, 1);
    check_means(&(use){.schedule = "1f1b", .replicas = "3,1"}, 4, 1);
}

/* ---- what is refused ------------------------------------------------------------------------ */

/* A step whose micro-batch 2 has this weight on the ranks from `first` on. */
static ls_status step_with(bool weighted, double weight, int first)
{
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    ls_status status;
    CHECK_OK(ls_pipeline_new(
        net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO, .weighted = weighted), &pipe));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have made it */
    {
        LS_SCOPE;
        ls_micro_batch micro[MICRO];
        for (int m = 0; m < MICRO; m++) {
            micro[m] = micro_of(0, m);
            micro[m].weight = weighted && weight != 0.0 ? micro[m].weight : 0.0;
        }
        micro[2].weight = ls_rank() >= first ? weight : micro[2].weight;
        status = ls_pipeline_backward(pipe, net, micro, NULL);
    }
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
    return status;
}

DIST_TEST(weights_that_make_no_mean_are_refused, 2)
{
    CHECK_STATUS(step_with(false, 2.0, 0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: micro[%d].weight is %g, and the pipeline takes plain means; "
               "make it with .weighted = true, or leave weights 0");
}

DIST_TEST(a_weight_that_is_nan_is_refused_on_all_ranks, 2)
{
    CHECK_STATUS(step_with(true, NAN, 1), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_pipeline_backward: micro[%d].weight is %g; give a finite "
                                   "number >= 0, as that of its targets");
}

DIST_TEST(weights_that_are_all_0_are_refused, 2)
{
    CHECK_STATUS(step_with(true, 0.0, 0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_pipeline_backward: all %d micro-batches have weight 0, so "
                                   "there is no mean; leave the step out");
}

DIST_TEST(weights_that_differ_between_stages_are_a_mismatch, 2)
{
    CHECK_STATUS(step_with(true, 7.0, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_backward: micro[%d].weight is %g on rank %d of the pipeline, and %g on "
               "rank 0; give all of its ranks the same");
    CHECK_CONTAINS(ls_error_message(), "micro[2].weight is 7 on rank 1");
}

DIST_TEST(weights_on_some_ranks_only_are_a_mismatch, 2)
{
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    CHECK_STATUS(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .weighted = ls_rank() == 1),
                                 &pipe),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "weighted");
    ls_module_free(net);
}

DIST_TEST(schedules_that_step_within_have_no_weights, 2)
{
    ls_pipeline *pipe = NULL;
    ls_module *net = make_net();
    CHECK_STATUS(
        ls_pipeline_new(net, ls_world(),
                        LS_OPTIONS(ls_pipeline_options, .schedule = "pipedream", .weighted = true),
                        &pipe),
        LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_pipeline_new: schedule %s steps after every %d micro-batch%s, so there is no "
               "mean over the weights of a call; leave .weighted out, or take 1f1b");
    ls_module_free(net);
}

/* ---- losses of middle stages ---------------------------------------------------------------- */

enum { TOKENS = 8, VOCAB = 11, BATCH = 2, STEPS = 2, PARAMS_MAX = 160 };

static ls_module *make_experts(bool recompute)
{
    return ls_gpt_new(LS_OPTIONS(
        ls_gpt_options, .layers = 4, .heads = 2, .dim = 16, .context = TOKENS, .vocab = VOCAB,
        .dropout = 0.1, .recompute = recompute,
        .moe = LS_OPTIONS(ls_moe_options, .experts = 4, .balance_loss = 0.5, .z_loss = 0.1)));
}

/* A layer with a loss of its own. */
static ls_tensor *sparse_forward(ls_module *self, ls_tensor *x)
{
    ls_tensor *y = ls_tanh(x);
    LS_CHECK(ls_module_set_loss(self, ls_scale(ls_mean(ls_abs(y)), 0.3)));
    return y;
}

static const ls_module_class sparse_class =
    LS_MODULE_CLASS(.name = "sparse", .forward = sparse_forward);

static ls_module *make_sparse(bool recompute)
{
    enum { WIDE = 12 };
    (void)recompute;
    return ls_sequential_new((ls_module *[]){ls_embedding_new(VOCAB, WIDE),
                                             ls_module_new(sizeof(ls_module), &sparse_class),
                                             ls_linear_new(WIDE, WIDE, NULL),
                                             ls_module_new(sizeof(ls_module), &sparse_class),
                                             ls_linear_new(WIDE, VOCAB, NULL)},
                             5);
}

static ls_tensor *tokens_of(int step, int m, int shift)
{
    int32_t x[BATCH * TOKENS];
    for (int i = 0; i < BATCH * TOKENS; i++) {
        x[i] = (i * 5 + step * 7 + m * 3 + shift + i * i) % VOCAB;
    }
    return ls_from_data(x, LS_SHAPE(BATCH, TOKENS), LS_INT32);
}

static ls_micro_batch tokens_micro(int step, int m)
{
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {tokens_of(step, m, 0)},
                            .target = tokens_of(step, m, 1),
                            .context = {.step = (uint64_t)(step * 100 + m)}};
}

static void accumulate(ls_module *net, int step)
{
    for (int m = 0; m < MICRO; m++) {
        LS_SCOPE;
        const ls_micro_batch micro = tokens_micro(step, m);
        ls_step_begin(micro.context);
        ls_tensor *loss = ls_cross_entropy(ls_forward(net, micro.inputs[0]), micro.target, NULL);
        CHECK_OK(ls_backward(ls_scale(ls_add(loss, ls_module_loss(net)), 1.0 / MICRO)));
    }
}

static void check_equal(ls_module *net, ls_module *whole, bool grads)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        ls_tensor *a = params[i].value, *b = ls_module_param(whole, params[i].name);
        a = grads ? ls_grad(a) : a;
        b = grads ? ls_grad(b) : b;
        CHECK(a != NULL && b != NULL);
        CHECK(memcmp(elements_of(a), elements_of(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
    }
}

static void check_losses(const use *u, ls_module *(*make)(bool recompute), bool blocks)
{
    ls_pipeline *pipe = NULL;
    ls_module *net = make(blocks), *whole = make(false);
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = u->schedule,
                                        .micro_batches = MICRO, .chunks = u->chunks,
                                        .recompute = u->recompute),
                             &pipe));
    ls_optim *optim = ls_sgd_new(net, NULL), *other = ls_sgd_new(whole, NULL);
    for (int step = 0; step < STEPS; step++) {
        {
            LS_SCOPE;
            ls_micro_batch micro[MICRO];
            for (int m = 0; m < MICRO; m++) {
                micro[m] = tokens_micro(step, m);
            }
            CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
        }
        accumulate(whole, step);
        check_equal(net, whole, true);
        CHECK_OK(ls_optim_step(optim));
        CHECK_OK(ls_optim_step(other));
        ls_optim_zero_grad(optim);
        ls_optim_zero_grad(other);
    }
    check_equal(net, whole, false);
    ls_optim_free(optim);
    ls_optim_free(other);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(whole);
}

static void check_gates(const use *u, bool blocks)
{
    check_losses(u, make_experts, blocks);
}

static void gates_of_every_schedule(void)
{
    check_gates(&(use){.schedule = "1f1b"}, false);
    check_gates(&(use){.schedule = "1f1b"}, true);
    check_gates(&(use){.schedule = "gpipe"}, false);
    check_gates(&(use){.schedule = "gpipe", .recompute = true}, false);
    check_gates(&(use){.schedule = "gpipe", .recompute = true}, true);
    check_gates(&(use){.schedule = "zb-h1"}, false);
}

DIST_TEST(losses_of_gates_reach_every_stage_on_2, 2)
{
    gates_of_every_schedule();
    check_gates(&(use){.schedule = "interleaved", .chunks = 2}, false);
}

DIST_TEST(losses_of_modules_reach_every_stage, 2)
{
    check_losses(&(use){.schedule = "1f1b"}, make_sparse, false);
    check_losses(&(use){.schedule = "gpipe", .recompute = true}, make_sparse, false);
    check_losses(&(use){.schedule = "zb-h1"}, make_sparse, false);
}

DIST_TEST(losses_of_gates_reach_every_stage_on_4, 4)
{
    gates_of_every_schedule();
}

/* ---- on every mesh -------------------------------------------------------------------------- */

static ls_group *group_over(ls_mesh *mesh, const char *axes)
{
    ls_group *group = NULL;
    CHECK_OK(ls_mesh_group_new(mesh, axes, &group));
    return group;
}

static ls_tensor *loss_of(void *arg, ls_tensor *output, ls_tensor *target)
{
    (void)arg;
    return ls_tensor_parallel_cross_entropy(output, target, NULL);
}

/* The passes that are this replica's, one after the other. */
static void pass(ls_module *net, int replica, int replicas)
{
    const int own = MICRO / replicas;
    for (int k = 0; k < own; k++) {
        LS_SCOPE;
        const ls_micro_batch micro = tokens_micro(0, k * replicas + replica);
        ls_tensor *loss = loss_of(NULL, ls_forward(net, micro.inputs[0]), micro.target);
        CHECK_OK(ls_ddp_set_sync(net, k == own - 1));
        CHECK_OK(ls_backward(ls_scale(ls_add(loss, ls_moe_loss(net)), 1.0 / own)));
    }
}

static void run_pipeline(ls_pipeline *pipe, ls_module *net, int replica, int replicas)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO];
    for (int k = 0; k < MICRO / replicas; k++) {
        micro[k] = tokens_micro(0, k * replicas + replica);
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, NULL));
}

/* The gates' gradients, of which most are their own losses', against those of one process. */
static void check_gate_grads(ls_module *net, ls_module *whole)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        if (strstr(params[i].name, "gate.weight") == NULL) {
            continue;
        }
        const float *a = elements_of(ls_grad(params[i].value));
        const float *b = elements_of(ls_grad(ls_module_param(whole, params[i].name)));
        for (int64_t e = 0; e < ls_numel(params[i].value); e++) {
            CHECK(fabsf(a[e] - b[e]) < 1e-6F + 1e-5F * fabsf(b[e]));
        }
    }
}

static ls_module *make_gates(void)
{
    return ls_gpt_new(LS_OPTIONS(
        ls_gpt_options, .layers = 4, .heads = 2, .dim = 16, .context = TOKENS, .vocab = 12,
        .moe = LS_OPTIONS(ls_moe_options, .experts = 4, .balance_loss = 20.0, .z_loss = 1.0)));
}

static void check_mesh(const char *axes, const char *copies, const char *batches, bool sequence)
{
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    ls_module *whole = make_gates(), *net = make_gates();
    accumulate(whole, 0);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    ls_group *group = group_over(mesh, copies), *data = group_over(mesh, batches);
    const int replica = ls_group_rank(data), replicas = ls_group_size(data);
    CHECK_OK(
        ls_mesh_has(mesh, "tp")
            ? ls_tensor_parallel(net, LS_OPTIONS(ls_tensor_parallel_options, .sequence = sequence))
            : LS_OK);
    CHECK_OK(ls_expert_parallel(net));
    if (ls_mesh_has(mesh, "pp")) {
        CHECK_OK(ls_pipeline_new(
            net, ls_mesh_group(mesh, "pp"),
            LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO / replicas, .loss = loss_of),
            &pipe));
    }
    net = ls_ddp_new(net, group, LS_OPTIONS(ls_ddp_options, .batch_axes = batches));
    CHECK_OK(ls_module_status(net));
    if (pipe != NULL) {
        run_pipeline(pipe, net, replica, replicas);
    } else {
        pass(net, replica, replicas);
    }
    check_gate_grads(ls_ddp_module(net), whole);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    ls_module_free(whole);
    CHECK_OK(ls_group_free(data));
    CHECK_OK(ls_group_free(group));
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(gradients_of_gates_are_equal_on_meshes_of_2, 2)
{
    check_mesh("dp=2", "dp", "dp", false);
    check_mesh("pp=2,dp=1", "dp", "dp", false);
    check_mesh("dp=1,tp=2", "dp,tp", "dp", false);
    check_mesh("dp=1,tp=2", "dp,tp", "dp", true);
    check_mesh("dp=1,ep=2", "dp,ep", "dp,ep", false);
}

DIST_TEST(gradients_of_gates_are_equal_on_meshes_of_4, 4)
{
    check_mesh("dp=4", "dp", "dp", false);
    check_mesh("dp=2,ep=2", "dp,ep", "dp,ep", false);
    check_mesh("pp=2,dp=2", "dp", "dp", false);
    check_mesh("pp=2,dp=1,tp=2", "dp,tp", "dp", false);
    check_mesh("pp=2,dp=1,tp=2", "dp,tp", "dp", true);
    check_mesh("pp=2,ep=2", "ep", "ep", false);
    check_mesh("ep=2,tp=2", "ep,tp", "ep", true);
}

/* ---- recomputation -------------------------------------------------------------------------- */

/* Operations along ep that are no exchange of rows: one all-gather for each choice. */
static uint64_t choices_of(bool recompute, const char *schedule)
{
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    ls_counters counters = {.size = sizeof counters};
    ls_redistribute_stats moved = {.size = sizeof moved};
    const bool stages = strcmp(schedule, "gpipe") == 0;
    ls_module *net = make_experts(recompute && !stages);
    CHECK_OK(ls_mesh_new(ls_world(), "pp=2,ep=2", &mesh));
    CHECK_OK(ls_expert_parallel(net));
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .micro_batches = MICRO,
                                        .schedule = schedule, .recompute = recompute && stages),
                             &pipe));
    net = ls_ddp_new(net, ls_mesh_group(mesh, "ep"), NULL);
    CHECK_OK(ls_module_status(net));
    run_pipeline(pipe, net, 0, 1);
    CHECK_OK(ls_group_get_counters(ls_mesh_group(mesh, "ep"), &counters));
    CHECK_OK(ls_redistribute_get_stats("ep", &moved));
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK(moved.all_to_alls > 0);
    return counters.operations - moved.all_to_alls;
}

DIST_TEST(a_recomputed_layer_does_not_choose_again, 4)
{
    const uint64_t once = choices_of(false, "1f1b");
    CHECK(once >= MICRO);
    CHECK_INT(choices_of(true, "1f1b"), once);
    CHECK_INT(choices_of(true, "gpipe"), once);
}

TEST_MAIN
