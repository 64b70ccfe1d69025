/* Tensor parallelism of layers and models: losses, gradients and bytes on any number of ranks
 * against one process. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/mlp.h>

#include "says.h"
#include "test.h"

enum { STEPS = 30, LOSSES_MAX = 128 };

static ls_tensor *input(ls_shape shape, double step)
{
    ls_tensor *x = ls_empty(shape, LS_FLOAT32);
    float *at = ls_data(x);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        at[i] = (float)sin(0.37 * (double)i + step);
    }
    return x;
}

static ls_tensor *tokens(int64_t batch, int64_t time, int64_t vocab, int step)
{
    ls_tensor *x = ls_empty(LS_SHAPE(batch, time), LS_INT64);
    int64_t *at = ls_data(x);
    for (int64_t i = 0; i < batch * time; i++) {
        at[i] = (i * 7 + i * i % 13 + step * 5) % vocab;
    }
    return x;
}

/* One model and its data; NULL mesh: the twin in one process. */
typedef struct trial {
    ls_module *(*make)(void);
    ls_tensor *(*loss)(ls_module *net, int step);
} trial;

/* The losses of some steps of AdamW. */
static void train(const trial *t, const ls_tensor_parallel_options *how, int steps, double *losses)
{
    CHECK_OK(ls_manual_seed(7));
    ls_module *net = t->make();
    CHECK(net != NULL);
    if (how != NULL) {
        CHECK_OK(ls_tensor_parallel(net, how));
        if (how->sequence) {
            net = ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .batch_axes = ""));
            CHECK(net != NULL);
        }
    }
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 1e-3));
    CHECK(optim != NULL);
    for (int s = 0; s < steps; s++) {
        LS_SCOPE;
        ls_step_begin((ls_step_context){.step = (uint64_t)s});
        ls_tensor *loss = t->loss(net, s);
        CHECK_OK(ls_item(loss, &losses[s]));
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
}

static double worst(const double *a, const double *b, int steps)
{
    double most = 0.0;
    for (int s = 0; s < steps; s++) {
        most = fmax(most, fabs(a[s] - b[s]));
    }
    return most;
}

/* On all ranks of the axis tp as in one process, and twice with the same bits. */
static void check_trial(const trial *t, const ls_tensor_parallel_options *how)
{
    double whole[LOSSES_MAX], own[LOSSES_MAX], again[LOSSES_MAX];
    ls_mesh *mesh = NULL;
    train(t, NULL, STEPS, whole);
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    train(t, how, STEPS, own);
    train(t, how, STEPS, again);
    CHECK_OK(ls_mesh_free(mesh));
    CHECK(memcmp(own, again, STEPS * sizeof *own) == 0);
    if (!(worst(whole, own, STEPS) <= 1e-5)) {
        test_fail(__FILE__, __LINE__,
                  "losses differ by %g; the first is %g, want %g, the last "
                  "%g, want %g",
                  worst(whole, own, STEPS), own[0], whole[0], own[STEPS - 1], whole[STEPS - 1]);
    }
}

/* ---- two layers --------------------------------------------------------------------------- */

static ls_module *mlp(void)
{
    return ls_mlp_new(16, 32, 8);
}

static ls_tensor *mlp_loss(ls_module *net, int step)
{
    return ls_mse_loss(ls_forward(net, input(LS_SHAPE(4, 16), step)),
                       input(LS_SHAPE(4, 8), 0.5 * step));
}

DIST_TESTS(two_layers_over_, _ranks, 1, 2, 4)
{
    check_trial(&(trial){mlp, mlp_loss}, LS_OPTIONS(ls_tensor_parallel_options, .sequence = false));
}

/* ---- gpt ---------------------------------------------------------------------------------- */

enum { BATCH = 2, TIME = 128, VOCAB = 256 };

static ls_module *gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = TIME, .vocab = VOCAB, .dropout = 0.1));
}

static ls_module *gpt_plain(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .context = TIME, .vocab = VOCAB));
}

static ls_tensor *gpt_loss(ls_module *net, int step)
{
    ls_tensor *logits = ls_forward(net, tokens(BATCH, TIME, VOCAB, step));
    return ls_tensor_parallel_cross_entropy(logits, tokens(BATCH, TIME, VOCAB, step + 1), NULL);
}

DIST_TESTS(gpt_over_, _ranks, 1, 2, 4)
{
    check_trial(&(trial){gpt, gpt_loss}, LS_OPTIONS(ls_tensor_parallel_options, .sequence = false));
}

DIST_TESTS(gpt_with_sequence_parallelism_over_, _ranks, 2, 4)
{
    check_trial(&(trial){gpt_plain, gpt_loss},
                LS_OPTIONS(ls_tensor_parallel_options, .sequence = true));
}

DIST_TESTS(gpt_that_gathers_again_over_, _ranks, 2, 4)
{
    check_trial(&(trial){gpt_plain, gpt_loss},
                LS_OPTIONS(ls_tensor_parallel_options, .sequence = true, .keep_gathered = false));
}

TEST_MAIN
