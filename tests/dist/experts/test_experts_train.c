/* SPDX-License-Identifier: Apache-2.0 */
/* Experts in training: gradients that do not depend on how 4 ranks are divided into dp and ep,
 * losses of a GPT, checkpoints of one mesh on another, and ranks that die. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "../ending.h"
#include "elements.h"
#include "says.h"
#include "small.h"
#include "test.h"

enum { EXPERTS = 8, DIM = 12, HIDDEN = 20, TOKENS = 40, RANKS = 4 };

static ls_mesh *mesh_of(const char *axes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    return mesh;
}

static ls_tensor *numbers(int64_t rows, int key)
{
    ls_tensor *t = ls_empty(LS_SHAPE(rows, DIM), LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < rows * DIM; i++) {
        at[i] = sinf((float)(key * 1009 + i * 7) * 0.37f) * 1.5f;
    }
    put_elements(t, at);
    return t;
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* Ranks have unequal weights. */
static double weight_of(int rank)
{
    return rank == 1 ? 0.0 : 1.0 + rank;
}

static ls_tensor *loss_of(ls_module *net, int rank)
{
    ls_tensor *y = ls_forward(net, numbers(TOKENS - rank, rank));
    return ls_add(ls_mean(ls_mul(y, y)), ls_moe_loss(net));
}

static const char *const names[] = {"gate.weight", "w1", "b1", "w2", "b2", "shared.up.weight"};
enum { NAMES = sizeof names / sizeof names[0] };

static ls_module *layer(void)
{
    CHECK_OK(ls_manual_seed(9));
    ls_module *m = ls_moe_new(DIM, HIDDEN,
                              LS_OPTIONS(ls_moe_options, .experts = EXPERTS, .shared = 1,
                                         .balance_loss = 0.3, .z_loss = 0.1));
    CHECK(m != NULL);
    return m;
}

/* The sum over the ranks' samples with their weights, by the sum of these. */
static ls_module *in_one_process(void)
{
    ls_module *net = layer();
    double total = 0.0;
    for (int q = 0; q < RANKS; q++) {
        total += weight_of(q);
    }
    for (int q = 0; q < RANKS; q++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_scale(loss_of(net, q), weight_of(q) / total)));
    }
    return net;
}

static void check_close(const char *name, ls_tensor *own, ls_tensor *whole, int part)
{
    const float *a = elements_of(own), *b = elements_of(whole);
    b += part * ls_numel(own);
    CHECK((part + 1) * ls_numel(own) <= ls_numel(whole));
    for (int64_t i = 0; i < ls_numel(own); i++) {
        if (!(fabsf(a[i] - b[i]) <= 2e-6f)) {
            test_fail(__FILE__, __LINE__, "%s: gradient %lld is %g, want %g", name, (long long)i,
                      (double)a[i], (double)b[i]);
        }
    }
}

static void check_gradients(const char *axes)
{
    ls_mesh *mesh = mesh_of(axes);
    ls_module *net = ls_ddp_new(layer(), ls_world(), NULL);
    CHECK(net != NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    for (int step = 0; step < 2; step++) { /* the first lays out */
        LS_SCOPE;
        ls_tensor *loss = loss_of(net, ls_rank());
        CHECK_OK(ls_backward_weighted(loss, weight_of(ls_rank())));
        double norm = 0.0, want = 0.0;
        CHECK_OK(ls_mesh_use(NULL));
        ls_module *whole = in_one_process();
        CHECK_OK(ls_clip_grad_norm(whole, 1e9, NULL, &want));
        CHECK_OK(ls_mesh_use(mesh));
        for (int i = 0; i < NAMES; i++) {
            ls_tensor *own = ls_module_param(net, names[i]),
                      *all = ls_module_param(whole, names[i]);
            const int part = ls_numel(own) < ls_numel(all) ? ls_mesh_coordinate(mesh, "ep") : 0;
            check_close(names[i], ls_grad(own), ls_grad(all), part);
        }
        CHECK_OK(ls_clip_grad_norm(net, 1e9, NULL, &norm));
        CHECK_NEAR(norm, want, 1e-6 * want);
        ls_module_free(whole);
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(gradients_of_experts_and_gate_are_those_of_one_process_on_every_mesh, 4)
{
    check_gradients("dp=4,ep=1");
    check_gradients("dp=2,ep=2");
    check_gradients("ep=2,dp=2");
    check_gradients("ep=4");
}

/* What no layer of experts has marked stays refused. */
DIST_TEST(other_parameters_that_are_sharded_along_an_axis_of_batches_are_refused, 2)
{
    ls_mesh *mesh = mesh_of("ep=2");
    ls_module *net = ls_linear_new(8, 8, NULL);
    CHECK_OK(ls_tensor_shard(ls_module_param(net, "weight"), "ep", 0, NULL, 0));
    CHECK(ls_ddp_new(net, ls_world(), NULL) == NULL);
    CHECK_CONTAINS(ls_error_message(), "would add the gradients of different parts");
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- a GPT ---------------------------------------------------------------------------------- */

enum { STEPS = 6, BATCH = 2, TIME = 16, VOCAB = 64 };

static ls_module *gpt(bool recompute)
{
    CHECK_OK(ls_manual_seed(4));
    const ls_moe_options *moe =
        LS_OPTIONS(ls_moe_options, .experts = 4, .balance_loss = 0.01, .balance_bias = true);
    ls_module *net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .dim = 32, .heads = 2, .context = TIME,
                                           .vocab = VOCAB, .recompute = recompute, .moe = moe));
    CHECK(net != NULL);
    return net;
}

static ls_tensor *tokens(int step, int rank)
{
    int64_t at[BATCH * TIME];
    for (int i = 0; i < BATCH * TIME; i++) {
        at[i] = (i * 7 + i * i % 13 + step * 5 + rank * 11) % VOCAB;
    }
    return ls_from_data(at, LS_SHAPE(BATCH, TIME), LS_INT64);
}

static ls_tensor *gpt_loss(ls_module *net, int step, int rank)
{
    ls_tensor *logits = ls_forward(net, tokens(step, rank));
    return ls_add(ls_cross_entropy(logits, tokens(step + 1, rank), NULL), ls_moe_loss(net));
}

/* One step of every rank; the mean of the losses. */
static double step_of(ls_module *net, ls_optim *optim, int step)
{
    double loss = 0.0;
    LS_SCOPE;
    ls_tensor *own = gpt_loss(net, step, ls_rank());
    CHECK_OK(ls_item(own, &loss));
    CHECK_OK(ls_backward(own));
    CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
    CHECK_OK(ls_moe_balance(net, ls_world(), 0.001));
    CHECK_OK(ls_metric_mean(ls_world(), loss, 1.0, &loss));
    return loss;
}

static void train(const char *axes, bool recompute, double *losses)
{
    ls_mesh *mesh = mesh_of(axes);
    ls_module *net =
        ls_ddp_new(gpt(recompute), ls_world(), LS_OPTIONS(ls_ddp_options, .check_every = 2));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    int identical = 0;
    uint64_t hash;
    for (int s = 0; s < STEPS; s++) {
        losses[s] = step_of(net, optim, s);
    }
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, 4);
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

static double worst(const double *a, const double *b)
{
    double most = 0.0;
    for (int s = 0; s < STEPS; s++) {
        most = fmax(most, fabs(a[s] - b[s]));
    }
    return most;
}

DIST_TEST(losses_of_a_gpt_with_experts_are_equal_on_all_meshes_of_4_ranks, 4)
{
    double replicas[STEPS], other[STEPS];
    train("dp=4", false, replicas);
    train("dp=2,ep=2", false, other);
    CHECK(worst(replicas, other) <= 1e-5);
    train("ep=4", false, other);
    CHECK(worst(replicas, other) <= 1e-5);
    double again[STEPS];
    train("ep=4", true, again);
    CHECK(memcmp(other, again, sizeof again) == 0); /* recomputed: the same bits */
    CHECK(replicas[STEPS - 1] < replicas[0]);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

typedef struct job {
    const char *folder, *axes;
    int64_t saved_at; /* saves after so many steps; else loads, and goes on */
    double losses[STEPS];
} job;

static int run_job(void *arg)
{
    job *j = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    ls_mesh *mesh = mesh_of(j->axes);
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    ls_module *net = ls_ddp_new(gpt(false), ls_world(), NULL);
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    const ls_checkpoint_item items[] = {LS_ITEM("model", net), LS_ITEM("optim", optim)};
    int64_t at = 0;
    if (j->saved_at == 0) {
        CHECK_OK(ls_checkpoint_load(c, items, 2, &at));
    }
    /* Of the samples of 4 ranks, on as many as there are. */
    for (int s = (int)at; s < STEPS; s++) {
        double sum = 0.0;
        const int each = 4 / ls_world_size();
        for (int i = 0; i < each; i++) {
            LS_SCOPE;
            double loss = 0.0;
            CHECK_OK(ls_ddp_set_sync(net, i == each - 1));
            ls_tensor *own = gpt_loss(net, s, ls_rank() * each + i);
            CHECK_OK(ls_item(own, &loss));
            CHECK_OK(ls_backward(ls_scale(own, 1.0 / each)));
            sum += loss / each;
        }
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        CHECK_OK(ls_moe_balance(net, ls_world(), 0.001));
        CHECK_OK(ls_metric_mean(ls_world(), sum, 1.0, &sum));
        if (s + 1 == j->saved_at) {
            CHECK_OK(ls_checkpoint_save(c, s + 1, items, 2));
        }
        j->losses[s] = sum; /* the same on all ranks */
    }
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_mesh_free(mesh));
    CHECK_OK(ls_finalize());
    return 0;
}

/* In memory that the processes of the jobs share. */
static job *job_on(const char *folder, const char *axes, int64_t saved_at, int ranks)
{
    job *j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(j != MAP_FAILED);
    *j = (job){.folder = folder, .axes = axes, .saved_at = saved_at};
    CHECK_OK(ls_spawn(run_job, j, ranks));
    return j;
}

TEST(a_checkpoint_of_4_ranks_of_experts_goes_on_on_2_1_and_on_another_mesh)
{
    static const struct {
        const char *axes;
        int ranks;
    } to[] = {{"ep=4", 4}, {"ep=2", 2}, {"ep=1", 1}, {"dp=2,ep=2", 4}, {"dp=2", 2}};
    char folder[64];
    small_folder(folder);
    const job *saved = job_on(folder, "ep=4", STEPS / 2, 4);
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        const job *loaded = job_on(folder, to[i].axes, 0, to[i].ranks);
        for (int s = STEPS / 2; s < STEPS; s++) {
            CHECK_NEAR(loaded->losses[s], saved->losses[s], i == 0 ? 0.0 : 1e-5);
        }
    }
    small_remove(folder);
}

/* ---- ranks that die ------------------------------------------------------------------------- */

#define VICTIM "tests/dist/experts/expert_victim"

TEST(a_rank_that_is_killed_between_dispatch_and_combination_is_named_by_all)
{
    for (int rank = 0; rank < 4; rank++) {
        check_killed(VICTIM, "forward", rank, "");
        check_killed(VICTIM, "backward", rank, "");
    }
    check_killed(VICTIM, "forward", 1, "LOCKSTEP_HOSTS=64");
    check_killed(VICTIM, "backward", 2, "LOCKSTEP_HOSTS=64");
}

TEST(a_rank_that_hangs_with_others_rows_is_named)
{
    check_hangs(VICTIM, 2, "expert_victim.c");
}

TEST(a_rank_of_weight_0_computes_the_others_rows)
{
    static const char *const places[] = {"weight0", "none"};
    for (int i = 0; i < 2; i++) {
        ending e = run_victim(VICTIM, places[i], 2, i == 0 ? "LOCKSTEP_HOSTS=64" : "");
        CHECK_INT(e.out.status, 0);
        CHECK_INT(count_of(e.out.text, "12 steps, 4 identical"), 4);
        free(e.out.text);
    }
}

TEST_MAIN
