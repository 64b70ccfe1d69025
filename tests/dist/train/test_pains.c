/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that PyTorch answers with an error or a hang, named after the thread that reported them.
 * Most have their tests elsewhere: the table below, which a test compares with those that run.
 *
 * pytorch 97106, 137260 (slow start), 127964, 159942 (pipelines) and gloo 158, 169, 248 (slow on
 * CPU) are not errors: see docs/performance.md. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

typedef struct pain {
    const char *threads;        /* what happened there, and where */
    const char *program, *name; /* the test: its program below tests/dist, and itself */
} pain;

static const pain pains[] = {
    {"a rank is missing, in a hang that blames the waiters: pytorch 46874, 54232, 118369; marin "
     "7344",
     "comm/comm_test_failures", "a_missing_call_times_out_and_names_the_rank"},
    {"the same, in a circle of waits", "comm/comm_test_deadlock",
     "groups_called_in_another_order_are_a_named_deadlock"},
    {"the same, after data has ended on one rank", "train/test_join",
     "an_operation_that_a_joined_rank_does_not_reach_ends_in_words"},
    {"collectives that differ: NCCL 296, 1417; pytorch 58224", "comm/comm_test_mismatch",
     "every_row_is_named_on_every_path_of_two_ranks"},
    {"settings that differ", "train/test_settings",
     "every_setting_that_differs_is_named_on_all_ranks"},
    {"unused parameters: pytorch 22219, 68862; yolov9 559; Cutie 125; GLiNER 165; CT3D 5; byol 92",
     "train/test_ddp",
     "a_parameter_used_on_one_rank_only_gets_its_mean_and_unused_ones_stay_absent"},
    {"unused layers", "train/test_layer_drop", "dropped_layers_of_4_ranks_train_as_in_one_process"},
    {"ready only once, under recomputation: Lightning 4033; ibot 30; FocalNet 4; TopoMLP 25; "
     "ms-swift 3171",
     "train/test_recompute",
     "three_replicas_with_recomputed_parts_end_with_the_bits_of_those_without"},
    {"interfaces: gloo 70, 335; aws-do-eks 51, 69", "launch/launch_hosts",
     "the_interface_asked_for_is_the_one_others_are_told"},
    {"the cause is hidden: ColossalAI 3571; pytorch 67742, 76287, 113231, 147064; slide2vec 131",
     "train/test_failures", "a_rank_killed_inside_a_collective_is_named_by_all_within_a_second"},
    {"corpses", "failures/failures_launcher",
     "a_death_that_a_stopped_agent_does_not_see_is_found_by_the_ranks"},
    {"uneven inputs: pytorch 38174, 42577, 56755; PyMarlin 80; Lightning 20404", "train/test_join",
     "a_rank_that_never_has_data_trains_from_the_first_step"},
    {"an epoch's last batch", "train/test_ddp_uses",
     "an_epoch_that_ends_with_fewer_samples_than_ranks_trains_as_one_process_does"},
    {"not the mean of one process: transformers 34191, 34242; trl 3231, 5619; fairseq2 430; "
     "torchtune 1917",
     "train/test_ddp", "a_weighted_backward_is_the_exact_mean_over_uneven_shares"},
    {"the same, with micro-batches", "train/test_gpt_text",
     "micro_batches_of_two_workers_equal_one_process"},
    {"other bits in another run: pytorch 36871; NCCL 446", "train/test_gpt_text",
     "the_same_run_and_other_buckets_give_the_same_bits"},
    {"gradients twice in memory: pytorch 41954; d2go 526", "train/test_ddp",
     "parameters_lie_beside_each_other_as_their_gradients_do"},
    {"which rank is slow: Horovod 867; pytorch 71303; dlrover 678; traceml 165", "train/test_stats",
     "the_rank_that_the_others_wait_for_is_named"},
    {"a checkpoint knows the number of ranks: verl 2265; gpt-neox 1158; prime-rl 827, 1092; "
     "Megatron 2829",
     "checkpoint/test_slices", "what_n_ranks_save_in_slices_m_ranks_load_in_others"},
    {"the same, after a failure", "launch/launch_stop",
     "a_job_whose_rank_is_killed_goes_on_from_its_checkpoint"},
    {"join with SyncBatchNorm, a hang, which is refused: pytorch 57448",
     "train/test_sync_batch_norm", "a_rank_that_joins_is_refused_and_the_others_hear_of_it"},
};

/* The program has the test under this very name, so tests/run runs it with all others of that
 * program. */
static void check_runs(const pain *row)
{
    char command[1200], line[300];
    snprintf(command, sizeof command, "TEST_LIST=1 %s/%s %s", test_build_path("tests/dist"),
             row->program, row->name);
    snprintf(line, sizeof line, "\n%s\n", row->name);
    test_output out = test_run(command, 60);
    char all[20000];
    snprintf(all, sizeof all, "\n%s", out.text);
    if (out.status != 0 || strstr(all, line) == NULL) {
        test_fail(__FILE__, __LINE__, "%s has no test %s, which shows \"%s\":\n%s", row->program,
                  row->name, row->threads, out.text);
    }
    free(out.text);
}

TEST(each_row_of_the_table_has_its_test)
{
    for (size_t i = 0; i < sizeof pains / sizeof *pains; i++) {
        check_runs(&pains[i]);
    }
}

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
        const float *a = elements_of(ls_grad(p[i].value)), *b = elements_of(ls_grad(q[i].value));
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

/* "Expected to mark a variable ready only once": one module in two forward passes of one loss, as
 * in contrastive learning; the number of passes differs between ranks and steps. */
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
