/* Programs that PyTorch answers with an error or a hang, named after the thread that reported them.
 * Most have their tests elsewhere:
 *
 *   a rank is missing, in a hang that blames the waiters     comm/test_failures: a_missing_call_times_out…;
 *     pytorch 46874, 54232, 118369; marin 7344               comm/test_deadlock; train/test_join: an_operation…
 *   collectives that differ: NCCL 296, 1417; pytorch 58224   comm/test_mismatch, train/test_settings
 *   unused parameters: pytorch 22219, 68862; yolov9 559;     train/test_layer_drop, train/test_ddp: a_parameter_used_on…
 *     Cutie 125; GLiNER 165; CT3D 5; byol 92
 *   ready only once, under recomputation: Lightning 4033;    train/test_recompute
 *     ibot 30; FocalNet 4; TopoMLP 25; ms-swift 3171
 *   interfaces: gloo 70, 335; aws-do-eks 51, 69              launch/hosts: the_interface_asked_for…
 *   the cause is hidden, corpses: ColossalAI 3571;           train/test_failures, failures/launcher, failures/matrix
 *     pytorch 67742, 76287, 113231, 147064; slide2vec 131
 *   uneven inputs: pytorch 38174, 42577, 56755;              train/test_join, train/test_ddp_uses: an_epoch_that_ends…
 *     PyMarlin 80; Lightning 20404
 *   not the mean of one process: transformers 34191, 34242;  train/test_ddp: a_weighted_backward…; train/test_gpt_text
 *     trl 3231, 5619; fairseq2 430; torchtune 1917
 *   other bits in another run: pytorch 36871; NCCL 446       train/test_gpt_text: the_same_run_and_other_buckets…
 *   gradients twice in memory: pytorch 41954; d2go 526       train/test_ddp: parameters_lie_beside_each_other…
 *   which rank is slow: Horovod 867; pytorch 71303;          train/test_stats: the_rank_that_the_others_wait_for…
 *     dlrover 678; traceml 165
 *   a checkpoint knows the number of ranks: verl 2265;       checkpoint/test_slices, launch/stop: a_job_whose_rank…
 *     gpt-neox 1158; prime-rl 827, 1092; Megatron 2829
 *
 * pytorch 57448 (join with SyncBatchNorm) is refused: test_sync_batch_norm. pytorch 97106, 137260 (slow
 * start), 127964, 159942 (pipelines) and gloo 158, 169, 248 (slow on CPU) are not errors: see
 * docs/performance.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "test.h"

enum { IN = 6, HIDDEN = 8, OUT = 3, SHARE = 4, STEPS = 4 };

static ls_module *perceptron(void)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    CHECK_OK(ls_module_status(net));
    return net;
}

static ls_tensor *input_of(int rank, int step)
{
    float x[SHARE * IN];
    for (int i = 0; i < SHARE * IN; i++) {
        x[i] = ls_random_normal(5, (uint64_t)(100 * step + rank), (uint64_t)i);
    }
    return ls_from_data(x, LS_SHAPE(SHARE, IN), LS_FLOAT32);
}

static ls_tensor *loss_of(ls_module *net, ls_tensor *x)
{
    ls_tensor *y = ls_forward(net, x);
    return ls_mean(ls_mul(y, y));
}

/* The gradients of `ddp` are those of `twin`, to rounding. */
static void check_gradients(ls_module *ddp, ls_module *twin)
{
    ls_param p[4], q[4];
    CHECK_INT(ls_module_params(ddp, p, 4), 4);
    CHECK_INT(ls_module_params(twin, q, 4), 4);
    for (int i = 0; i < 4; i++) {
        const float *a = ls_data(ls_grad(p[i].value)), *b = ls_data(ls_grad(q[i].value));
        for (int64_t k = 0; k < ls_numel(p[i].value); k++) {
            CHECK_NEAR(a[k], b[k], 1e-6);
        }
    }
}

static void zero(ls_module *net)
{
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_optim_zero_grad(optim);
    ls_optim_free(optim);
}

/* "Expected to have finished reduction in the prior iteration", because a forward pass without
 * gradients stood between forward and backward. */
DIST_TEST(pytorch_43259_a_forward_without_gradients_before_the_backward_changes_nothing, 2)
{
    ls_module *twin = perceptron(), *ddp = ls_ddp_new(perceptron(), ls_world(), NULL);
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_tensor *loss = loss_of(ddp, input_of(ls_rank(), step));
        {
            LS_NO_GRAD;
            CHECK_OK(ls_tensor_status(ls_forward(ddp, input_of(ls_rank(), 100))));
        }
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_backward(ls_scale(
            ls_add(loss_of(twin, input_of(0, step)), loss_of(twin, input_of(1, step))), 0.5)));
        check_gradients(ddp, twin);
        zero(ddp);
        zero(twin);
    }
    ls_module_free(ddp);
    ls_module_free(twin);
}

/* "Expected to mark a variable ready only once": one module in two forward passes of one loss, as in
 * contrastive learning; the number of passes differs between ranks and steps. */
DIST_TEST(lightning_8382_parameters_of_several_forward_passes_are_ready_once, 3)
{
    ls_module *twin = perceptron(), *ddp = ls_ddp_new(perceptron(), ls_world(), NULL);
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_tensor *loss = NULL, *all = NULL;
        for (int r = 0; r < ls_world_size(); r++) {
            for (int pass = 0; pass < 1 + (r + step) % 3; pass++) {
                ls_tensor *x = input_of(r, 10 * step + pass);
                ls_tensor *part = loss_of(twin, x);
                all = all == NULL ? part : ls_add(all, part);
                if (r == ls_rank()) {
                    part = loss_of(ddp, x);
                    loss = loss == NULL ? part : ls_add(loss, part);
                }
            }
        }
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_backward(ls_scale(all, 1.0 / ls_world_size())));
        check_gradients(ddp, twin);
        zero(ddp);
        zero(twin);
    }
    ls_module_free(ddp);
    ls_module_free(twin);
}

/* A hang: rank 0 alone goes through the wrapper to evaluate, and the forward pass of a model with
 * running statistics waits for the other ranks. */
DIST_TEST(pytorch_137268_one_rank_alone_evaluates_through_the_wrapper, 3)
{
    ls_module *layers[] = {ls_batch_norm2d_new(2, 1e-5, 0.1), ls_flatten_new(),
                           ls_linear_new(2, OUT, NULL)};
    ls_module *ddp = ls_ddp_new(ls_sequential_new(layers, 3), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(ddp, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_tensor *x = ls_full(LS_SHAPE(4, 2, 1, 1), LS_FLOAT32, 1.0 + ls_rank() + step);
        CHECK_OK(ls_backward(loss_of(ddp, x)));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        for (int batch = 0; batch < 3 && ls_rank() == 0; batch++) {
            LS_NO_GRAD;
            ls_module_train(ddp, batch == 2); /* by mistake in training mode, too */
            CHECK_OK(ls_tensor_status(ls_forward(ddp, x)));
        }
        ls_module_train(ddp, true);
    }
    ls_optim_free(optim);
    ls_module_free(ddp);
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Runs `jobs` jobs of three ranks at once. Free the text. */
static test_output run_jobs(int jobs)
{
    char victim[512], one[1200], all[6000] = "";
    snprintf(victim, sizeof victim, "%s", test_build_path("tests/dist/train/victim"));
    snprintf(one, sizeof one, "%s run -n 3 %s none 0 /tmp & pids=\"$pids $!\"; ",
             test_build_path("lockstep"), victim);
    for (int i = 0; i < jobs; i++) {
        strncat(all, one, sizeof all - strlen(all) - 1);
    }
    strncat(all, "for p in $pids; do wait $p || exit 1; done", sizeof all - strlen(all) - 1);
    return test_run(all, 60);
}

/* "Address already in use": jobs of one user take the same default port. */
TEST(pytorch_47461_jobs_that_start_at_once_need_no_port)
{
    test_output out = run_jobs(4);
    if (out.status != 0) {
        test_fail(__FILE__, __LINE__, "status %d\n%s", out.status, out.text);
    }
    free(out.text);
}

/* "Broken pipe" of ranks that outlive the store, after a job that went well. */
TEST(xinference_4421_a_job_that_went_well_ends_without_noise)
{
    for (int i = 0; i < 5; i++) {
        test_output out = run_jobs(1);
        CHECK_INT(out.status, 0);
        CHECK(strcasestr(out.text, "error") == NULL && strcasestr(out.text, "pipe") == NULL);
        CHECK(strcasestr(out.text, "warning") == NULL && strcasestr(out.text, "lost") == NULL);
        free(out.text);
    }
}

TEST_MAIN
