/* SPDX-License-Identifier: Apache-2.0 */
/* The formulas of Llama and Mixtral beside the models that are built: parameters, operations
 * counted from these, kept bytes as they are measured. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>

#include "base/env_posix.h"
#include "cost/job.h"
#include "plan/profile.h"
#include "says.h"
#include "scratch.h"

enum { PARAMS_MAX = 256, BATCH = 2 };

/* layers, dim, heads, vocab, context, experts, top_k, untied, mlp, llama, kv_heads, head_dim */
static const ls__gpt shapes[] = {
    {2, 32, 4, 96, 16, 0, 0, true, 80, true, 4, 8, 0},   /* as many heads of keys */
    {3, 48, 6, 101, 16, 0, 0, true, 56, true, 2, 8, 0},  /* fewer */
    {1, 64, 8, 64, 16, 0, 0, false, 128, true, 1, 8, 0}, /* one, tied */
    {2, 32, 4, 96, 16, 0, 0, true, 80, true, 2, 12, 0},  /* heads wider than dim */
    {2, 32, 4, 96, 16, 4, 2, true, 24, true, 2, 8, 0},   /* experts in every layer */
    {3, 32, 4, 96, 16, 8, 1, true, 40, true, 1, 8, 0},
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

static ls_module *build(const ls__gpt *g)
{
    if (g->experts > 0) {
        return ls_mixtral_new(LS_OPTIONS(ls_mixtral_options, .layers = (int)g->layers,
                                         .heads = (int)g->heads, .kv_heads = (int)g->kv_heads,
                                         .dim = g->dim, .head_dim = g->head_dim, .hidden = g->mlp,
                                         .experts = g->experts, .top_k = (int)g->top_k,
                                         .vocab = g->vocab, .context = g->context));
    }
    return ls_llama_new(LS_OPTIONS(ls_llama_options, .layers = (int)g->layers,
                                   .heads = (int)g->heads, .kv_heads = (int)g->kv_heads,
                                   .dim = g->dim, .head_dim = g->head_dim, .hidden = g->mlp,
                                   .vocab = g->vocab, .context = g->context, .tied = !g->untied));
}

TEST(parameters_are_those_of_the_models_that_are_built)
{
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < SHAPES; i++) {
        ls_module *net = build(&shapes[i]);
        CHECK_OK(ls_module_status(net));
        CHECK_NEAR(ls__gpt_parameters(&shapes[i]), (double)ls_module_numel(net), 0.0);
        ls_module_free(net);
    }
    /* A GPT, with and without experts, and a GPT-2 that reads less than it could. */
    ls__gpt g = {3, 32, 4, 96, 16, .untied = true};
    ls_gpt_options o =
        *LS_OPTIONS(ls_gpt_options, .layers = 3, .heads = 4, .dim = 32, .vocab = 96, .context = 16);
    ls_module *net = ls_gpt_new(&o);
    CHECK_NEAR(ls__gpt_parameters(&g), (double)ls_module_numel(net), 0.0);
    ls_module_free(net);
    o.moe = LS_OPTIONS(ls_moe_options, .experts = 4, .top_k = 2);
    g.experts = 4;
    net = ls_gpt_new(&o);
    CHECK_NEAR(ls__gpt_parameters(&g), (double)ls_module_numel(net), 0.0);
    ls_module_free(net);
    g = (ls__gpt){2, 32, 4, 96, 16, .positions = 64};
    net = ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = 2, .heads = 4, .dim = 32, .vocab = 96,
                                 .context = 64));
    CHECK_NEAR(ls__gpt_parameters(&g), (double)ls_module_numel(net), 0.0);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* Elements of matrices with which a token is multiplied; a tied table is the head as well. */
static double multiplied(ls_module *net, const ls__gpt *g)
{
    ls_param params[PARAMS_MAX];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    double sum = 0.0;
    for (int i = 0; i < count; i++) {
        const double numel = (double)ls_numel(params[i].value);
        const bool table = ends_in(params[i].name, "embed_tokens.weight"),
                   gate = ends_in(params[i].name, "block_sparse_moe.gate.weight");
        switch (ls_ndim(params[i].value)) {
        case 2:
            sum += gate || (table && g->untied) ? 0.0 : numel;
            break;
        case 3: /* [experts,..] */
            sum += numel * (double)g->top_k / (double)g->experts;
            break;
        default:
            break;
        }
    }
    return sum;
}

static ls__processor device(void)
{
    ls__processor d;
    CHECK_OK(ls__processor_parse("test", "1gflop,1000000gbyte", 19, 4, &d));
    return d;
}

TEST(operations_are_those_of_the_matrices_and_of_attention)
{
    const ls__processor d = device();
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < SHAPES; i++) {
        const ls__gpt *g = &shapes[i];
        const ls__gpt_use u = {.model = *g, .batch = BATCH, .tp = 1, .width = 4};
        const double n = BATCH * (double)g->context, wide = (double)(g->heads * g->head_dim);
        ls_module *net = build(g);
        const double scores = 12.0 * n * (double)g->context * wide * (double)g->layers;
        const double want = 6.0 * n * multiplied(net, g) + scores;
        CHECK_NEAR(ls__gpt_flops(&u) / want, 1.0, 1e-12);
        /* What layers and head take is that, and the gates'. */
        const ls__stage_times layer = ls__gpt_layer_times(&u, &d, g->experts > 0),
                              head = ls__gpt_head_times(&u, &d);
        const double seconds =
            (double)g->layers * (layer.forward + layer.backward) + head.forward + head.backward;
        const double gates = 6.0 * n * (double)(g->experts * g->dim * g->layers);
        CHECK_NEAR(seconds * 1e9 / (want + gates), 1.0, 1e-3);
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
}

/* ---- tp -------------------------------------------------------------------------------------- */

/* Keys and values of 2 heads: of two ranks each has one, four have all of them, which they sum. */
TEST(ranks_share_heads_of_keys_that_are_fewer)
{
    const ls__gpt g = {4, 64, 8, 64, 16, 0, 0, true, 128, true, 2, 8, 0};
    const double h = 64, queries = 2 * h * 64, keys = 2 * h * 16, mlp = 3 * h * 128;
    const ls__gpt_use one = {.model = g, .batch = BATCH, .tp = 1, .width = 4};
    for (int tp = 1; tp <= 4; tp *= 2) {
        ls__gpt_use u = one;
        u.tp = tp;
        const double shared = tp == 4 ? keys : 0.0;
        CHECK_NEAR(ls__gpt_shared_keys(&u), shared, 0.0);
        CHECK_NEAR(ls__gpt_layer_share(&u, false),
                   (queries + 2 * h + keys - shared + mlp) / tp + shared, 1e-9);
        CHECK_NEAR(ls__gpt_keys(&u), BATCH * 16 * 8 * (tp == 1 ? 2.0 : 1.0), 1e-9);
    }
    ls__sim_job job = {.use = one,
                       .device = device(),
                       .pp = {1, 4},
                       .dp = {1, 4},
                       .tp = {4, 1},
                       .schedule = "1f1b",
                       .spec = {.ranks = 1, .micro_batches = 2},
                       .bucket_bytes = 1.0};
    ls__sim_step step;
    CHECK_OK(ls__cluster_parse("test", "4:1gbyte", 8, &job.cluster));
    job.use.tp = 4;
    CHECK_OK(ls__simulate_job(ls__env_posix(), &job, &step));
    const double ring = 1.5 * 4 * BATCH * 16 * h, sums = 1.5 * 4 * keys;
    CHECK_NEAR(step.tp_bytes, 2 * (4 * (4 * ring + sums) + 2 * ring), 1e-6);
    CHECK_NEAR(step.tp, step.tp_bytes / 1e9, 1e-9);
    ls__sim_step_free(&step);
}

/* Around a ring go keys and values, here half as wide as queries. */
TEST(a_ring_carries_the_keys_alone)
{
    ls__sim_step step;
    ls__sim_job job = {.use = {.model = {4, 64, 8, 64, 16, 0, 0, true, 128, true, 4, 8, 0},
                               .batch = BATCH,
                               .tp = 1,
                               .cp = 2,
                               .width = 4},
                       .device = device(),
                       .pp = {1, 2},
                       .dp = {1, 2},
                       .cp = {2, 1},
                       .schedule = "1f1b",
                       .spec = {.ranks = 1, .micro_batches = 1},
                       .bucket_bytes = 1.0};
    CHECK_OK(ls__cluster_parse("test", "2:1gbyte", 8, &job.cluster));
    CHECK_OK(ls__simulate_job(ls__env_posix(), &job, &step));
    CHECK_NEAR(step.cp_bytes, 4 * 3 * 2 * 4.0 * BATCH * 8 * 32, 1e-6);
    ls__sim_step_free(&step);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_tensor *tokens(const ls__gpt *g)
{
    ls_tensor *x = ls_zeros(LS_SHAPE(BATCH, g->context), LS_INT64);
    CHECK_OK(ls_tensor_status(x));
    return x;
}

/* Bytes that a layer keeps from its forward to its backward, as ls_profile_write measures them. */
static double measured(ls_module *net, const ls__gpt *g)
{
    ls__profile *found = NULL;
    const char *path = scratch_at("profile.json");
    ls_tensor *x = tokens(g), *y = tokens(g);
    CHECK_OK(ls_profile_write(net, &x, 1, y, LS_OPTIONS(ls_profile_options, .seconds = 0.0), path));
    CHECK_OK(ls__profile_read(ls__env_posix(), path, &found));
    CHECK_STR(found->parts[1].name, "model.layers.0");
    const double bytes = (double)found->parts[1].kept_bytes;
    ls__profile_free(found);
    ls_free(x);
    ls_free(y);
    return bytes;
}

TEST(a_layer_keeps_what_is_measured)
{
    static const ls__gpt larger[] = {
        {1, 256, 8, 64, 64, 0, 0, true, 1024, true, 8, 32, 0},
        {1, 256, 8, 64, 64, 0, 0, true, 704, true, 2, 32, 0},
        {1, 256, 8, 64, 64, 4, 2, true, 512, true, 2, 32, 0},
        {1, 256, 8, 64, 64, 4, 1, true, 512, true, 8, 32, 0},
    };
    scratch_begin();
    CHECK_OK(ls_init(NULL));
    for (size_t i = 0; i < sizeof larger / sizeof *larger; i++) {
        const ls__gpt *g = &larger[i];
        const ls__gpt_use u = {.model = *g, .batch = BATCH, .tp = 1, .width = 4};
        ls_module *net = build(g);
        const double kept = measured(net, g), said = ls__gpt_layer_kept(&u, g->experts > 0);
        /* A gate keeps its scores besides, and the order of the rows. */
        CHECK_NEAR(said / kept, 1.0, g->experts > 0 ? 0.005 : 1e-9);
        ls_module_free(net);
    }
    CHECK_OK(ls_finalize());
    scratch_end();
}

TEST_MAIN
