/* SPDX-License-Identifier: Apache-2.0 */
/* Data-parallel and pipeline training on the loop device: first on the processor, then the same on
 * the device, and all losses, norms and parameters must have equal bits. Buckets and messages lie
 * in memory of the program, so every one of them needs a wait. So do those of ring attention. */
#include "../dist/train/pipeline_models.h"

#include "loop.h"
#include "tensor/tensor.h"

enum { RESULTS_MAX = 1 << 18, MICRO = 4 };

typedef struct results {
    int count;
    double value[RESULTS_MAX];
} results;

static results cpu, loop;

static void note(results *r, const double *values, int count)
{
    CHECK(r->count + count <= RESULTS_MAX);
    memcpy(&r->value[r->count], values, (size_t)count * sizeof *values);
    r->count += count;
}

static void note_params(results *r, ls_module *net)
{
    ls_param params[PARAMS_MAX];
    static float values[1 << 14];
    const int count = ls_module_params(net, params, PARAMS_MAX);
    for (int i = 0; i < count; i++) {
        const int64_t n = ls_numel(params[i].value);
        CHECK(n <= (int64_t)(sizeof values / sizeof *values));
        CHECK_OK(ls_copy_out(params[i].value, values, (size_t)n * sizeof *values));
        for (int64_t j = 0; j < n; j++) {
            const double value = (double)values[j];
            note(r, &value, 1);
        }
    }
}

typedef struct way { /* of training */
    use of;
    int pp, dp;
} way;

static void step_pipeline(const way *w, ls_pipeline *pipe, ls_module *net, int step, int replica,
                          double *losses)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    for (int m = 0; m < w->of.micro; m++) {
        micro[m] = micro_of(&w->of, step, m, replica);
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
}

static void step_ddp(const way *w, ls_module *net, int step, int replica, double *losses)
{
    LS_SCOPE;
    const ls_micro_batch micro = micro_of(&w->of, step, 0, replica);
    ls_step_begin(micro.context);
    ls_tensor *loss = loss_of(NULL, ls_forward(net, micro.inputs[0]), micro.target);
    CHECK_OK(ls_backward(loss));
    CHECK_OK(ls_item(loss, losses));
}

static void train(const way *w, results *r)
{
    char axes[32];
    ls_mesh *mesh = NULL;
    ls_pipeline *pipe = NULL;
    r->count = 0;
    (void)snprintf(axes, sizeof axes, "pp=%d,dp=%d", w->pp, w->dp);
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    const int replica = ls_mesh_coordinate(mesh, "dp");
    ls_module *net = w->of.make();
    if (w->pp > 1) {
        CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = w->of.schedule,
                                            .micro_batches = w->of.micro, .loss = loss_of),
                                 &pipe));
    }
    if (w->dp > 1) {
        net = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
        CHECK_OK(ls_module_status(net));
    }
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.01));
    for (int step = 0; step < STEPS; step++) {
        double losses[MICRO_MAX] = {0}, norm = 0.0;
        if (pipe != NULL) {
            step_pipeline(w, pipe, net, step, replica, losses);
        } else {
            step_ddp(w, net, step, replica, losses);
        }
        CHECK_OK(ls_clip_grad_norm(
            net, 1.0, LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_mesh_group(mesh, "pp")),
            &norm));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        note(r, losses, w->of.micro);
        note(r, &norm, 1);
    }
    note_params(r, net);
    ls_optim_free(optim);
    CHECK_OK(pipe != NULL ? ls_pipeline_free(pipe) : LS_OK);
    ls_module_free(net);
    CHECK_OK(ls_mesh_free(mesh));
}

static void check_bits(const way *ways, int count)
{
    static results expected[8];
    CHECK(count <= 8);
    for (int i = 0; i < count; i++) {
        train(&ways[i], &cpu);
        expected[i] = cpu;
    }
    CHECK_OK(ls__tensor_use_device(loop_new(1 + (uint64_t)ls_rank())));
    for (int i = 0; i < count; i++) {
        train(&ways[i], &loop);
        CHECK_INT(loop.count, expected[i].count);
        for (int v = 0; v < loop.count; v++) {
            CHECK(loop.value[v] == expected[i].value[v]);
        }
    }
    CHECK(loop_started() > 100);
}

DIST_TEST(replicas_learn_the_same_on_the_loop_device, 2)
{
    check_bits((const way[]){{{.make = make_gpt, .micro = 1}, 1, 2},
                             {{.make = make_unet, .micro = 1}, 1, 2}},
               2);
}

DIST_TEST(stages_learn_the_same_on_the_loop_device, 2)
{
    check_bits((const way[]){{{.make = make_gpt, .schedule = "gpipe", .micro = MICRO}, 2, 1},
                             {{.make = make_gpt, .schedule = "1f1b", .micro = MICRO}, 2, 1},
                             {{.make = make_unet, .schedule = "zb-h1", .micro = MICRO}, 2, 1}},
               3);
}

DIST_TEST(replicas_of_stages_learn_the_same_on_the_loop_device, 4)
{
    check_bits((const way[]){{{.make = make_gpt, .schedule = "1f1b", .micro = MICRO}, 2, 2}}, 1);
}

/* ---- batch norm over all ranks ------------------------------------------------------------ */

static void note_numbers(results *r, ls_tensor *t)
{
    float x[256];
    CHECK(ls_numel(t) <= 256);
    CHECK_OK(ls_copy_out(t, x, (size_t)ls_numel(t) * sizeof *x));
    for (int64_t i = 0; i < ls_numel(t); i++) {
        const double value = (double)x[i];
        note(r, &value, 1);
    }
}

static void normalise(results *r)
{
    enum { CHANNELS = 3, PIXELS = 5 };
    ls_param params[4];
    const int images = 2 + ls_rank();
    ls_module *net = ls_batch_norm2d_new(CHANNELS, 1e-5, 0.1);
    CHECK_OK(ls_sync_batch_norm_convert(net, ls_world()));
    r->count = 0;
    LS_SCOPE;
    float x[4 * CHANNELS * PIXELS];
    for (int i = 0; i < images * CHANNELS * PIXELS; i++) {
        x[i] = ls_random_normal(3, (uint64_t)ls_rank(), (uint64_t)i);
    }
    ls_tensor *in = ls_from_data(x, LS_SHAPE(images, CHANNELS, 1, PIXELS), LS_FLOAT32);
    CHECK_OK(ls_tensor_status(ls_set_requires_grad(in, true)));
    ls_tensor *out = ls_forward(net, in);
    CHECK_OK(ls_backward(ls_mean(ls_mul(out, ls_mul(out, in)))));
    note_numbers(r, out);
    note_numbers(r, ls_grad(in));
    CHECK_INT(ls_module_params(net, params, 4), 2);
    note_numbers(r, ls_grad(params[0].value));
    note_numbers(r, ls_grad(params[1].value));
    ls_module_free(net);
}

DIST_TEST(batch_norm_over_all_ranks_is_the_same_on_the_loop_device, 2)
{
    normalise(&cpu);
    CHECK_OK(ls__tensor_use_device(loop_new(2 + 2 * (uint64_t)ls_rank())));
    normalise(&loop);
    CHECK_INT(loop.count, cpu.count);
    for (int v = 0; v < loop.count; v++) {
        CHECK(loop.value[v] == cpu.value[v]);
    }
}

/* ---- ring attention ------------------------------------------------------------------------- */

enum { HEADS = 4, LENGTH = 24, DIM = 8, NUMEL = HEADS * LENGTH * DIM };

static ls_tensor *part_of(uint64_t stream)
{
    float x[NUMEL];
    for (int i = 0; i < NUMEL; i++) {
        x[i] = ls_random_normal(9, stream, (uint64_t)i);
    }
    return ls_context_shard(ls_from_data(x, LS_SHAPE(1, HEADS, LENGTH, DIM), LS_FLOAT32), 2, "cp");
}

static void note_tensor(results *r, ls_tensor *t)
{
    float x[NUMEL];
    CHECK_OK(ls_copy_out(t, x, (size_t)ls_numel(t) * sizeof *x));
    for (int64_t i = 0; i < ls_numel(t); i++) {
        const double value = (double)x[i];
        note(r, &value, 1);
    }
}

static void attend(results *r, bool causal)
{
    LS_SCOPE;
    ls_tensor *in[3], *d_o = part_of(4);
    for (uint64_t i = 0; i < 3; i++) {
        in[i] = part_of(i);
        CHECK_OK(ls_set_requires_grad(in[i], true));
    }
    ls_tensor *o = ls_ring_attention(ls_context_rotary(in[0], "cp", 100.0), in[1], in[2], "cp",
                                     LS_OPTIONS(ls_attention_options, .causal = causal));
    CHECK_OK(ls_backward_from(&o, &d_o, 1));
    note_tensor(r, ls_context_gather(o, 2, "cp"));
    for (int i = 0; i < 3; i++) {
        note_tensor(r, ls_grad(in[i]));
    }
}

static void attend_both(results *r)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "cp=*", &mesh));
    attend(r, false);
    attend(r, true);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(ring_attention_is_the_same_on_the_loop_device, 3)
{
    attend_both(&cpu);
    CHECK_OK(ls__tensor_use_device(loop_new(1 + (uint64_t)ls_rank())));
    attend_both(&loop);
    CHECK_INT(loop.count, cpu.count);
    for (int v = 0; v < loop.count; v++) {
        CHECK(loop.value[v] == cpu.value[v]);
    }
    CHECK(loop_started() > 100);
}

TEST_MAIN
