/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters divided among GPUs (zero 3): between two reads a rank has its part of them in the
 * device's memory, and steps have the bits of zero 1 there. Over the fakes of CUDA and NCCL, whose
 * streams are late and whose memory traps the program's touch. tests/device/test_dist.py runs tests
 * of tests/dist/zero over them, too. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/captured.h>
#include <lockstep/memory.h>

#include "../device/models.h"
#include "../dist/comm/nccl_fakes.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "elements.h"
#include "outcome.h"
#include "says.h"

static void use_cuda(void)
{
    name_fakes();
    load_fake_libraries();
    CHECK_OK(ls_device_use("cuda"));
}

static ls_status read_first(ls_module *net)
{
    float numbers[1024];
    ls_param param;
    (void)ls_module_params(net, &param, 1);
    return ls_copy_out(param.value, numbers, (size_t)ls_numel(param.value) * sizeof(float));
}

/* ---- training ------------------------------------------------------------------------------- */

static uint64_t train_divided(int zero, const training *t, double values[2 * STEPS])
{
    int identical = 0;
    uint64_t hash = 0;
    ls_module *net = train_with(LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = 4000,
                                           .first_bucket_bytes = 1000, .check_every = 2),
                                t, ls_world(), values);
    CHECK(strcmp(ls_ddp_backend(net), "nccl") == 0);
    CHECK_STATUS(read_first(net), zero == 3 ? LS_ERR_STATE : LS_OK);
    CHECK_OK(ls_ddp_gather(net));
    CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    CHECK_INT(identical, ls_world_size());
    ls_module_free(net);
    return hash;
}

static void check_training(const training *t)
{
    double whole[2 * STEPS], divided[2 * STEPS];
    const uint64_t hash = train_divided(1, t, whole);
    CHECK(train_divided(3, t, divided) == hash && hash != 0);
    CHECK(memcmp(whole, divided, sizeof whole) == 0);
}

DIST_TESTS(parameters_divided_among_, _gpus_have_the_bits_of_whole_ones, 2, 3)
{
    use_cuda();
    check_training(&(training){make_gpt, language, true, true, 0});
    check_training(&(training){make_gpt, language_bf16, false, true, 0});
    check_training(&(training){make_cnn, image_loss, true, true, 0});
}

/* ---- layers, each weight in a bucket of its own ---------------------------------------------- */

enum { LAYERS = 6, DIM = 64, WEIGHT = DIM * DIM * (int)sizeof(float) };

typedef struct trainee {
    ls_module *net, *ddp;
    ls_optim *optim;
} trainee;

static trainee trainee_new(int zero, int check_every)
{
    CHECK_OK(ls_manual_seed(1));
    ls_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = ls_linear_new(DIM, DIM, NULL);
    }
    trainee t = {.net = ls_sequential_new(layers, LAYERS)};
    t.ddp = ls_ddp_new(
        t.net, ls_world(),
        LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = 0, .check_every = check_every));
    CHECK_OK(ls_module_status(t.ddp));
    t.optim = ls_adamw_new(t.ddp, LS_OPTIONS(ls_adamw_options, .lr = 0.01));
    return t;
}

static ls_tensor *loss_of(const trainee *t, int64_t columns)
{
    ls_tensor *y = ls_forward(t->ddp, floats(1, columns, ls_rank()));
    return ls_mse_loss(y, floats(1, DIM, 50));
}

static void train_once(const trainee *t, double *loss)
{
    LS_SCOPE;
    ls_tensor *y = loss_of(t, DIM);
    CHECK_OK(ls_backward(y));
    CHECK_OK(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
    CHECK_OK(loss != NULL ? ls_item(y, loss) : LS_OK);
}

static void trainee_free(trainee *t)
{
    ls_optim_free(t->optim);
    ls_module_free(t->ddp);
}

static size_t allocated(bool peak)
{
    ls_memory_stats now = {.size = sizeof now};
    CHECK_OK(ls_memory_get_stats(&now));
    return peak ? now.allocated_peak : now.allocated;
}

/* Most bytes that a step takes from the pools beyond those between steps. */
static size_t bytes_of_step(const trainee *t)
{
    const size_t before = allocated(false);
    CHECK_OK(ls_memory_reset_peaks());
    train_once(t, NULL);
    CHECK(allocated(false) == before);
    return allocated(true) - before;
}

/* Buckets lie in the memory of NCCL: the pools have what is gathered, and activations. */
DIST_TESTS(of_the_parameters_of_, _gpus_two_buckets_are_whole_at_once, 2, 4)
{
    use_cuda();
    size_t bytes[4] = {0}, used[4] = {0};
    for (int run = 0; run < 3; run++) {
        const int zero = run < 2 ? 1 : 3; /* the first run takes memory that stays reserved */
        const size_t before = fake_cuda_used();
        trainee t = trainee_new(zero, 0);
        train_once(&t, NULL);
        train_once(&t, NULL);
        for (int step = 0; step < 3; step++) {
            const size_t now = bytes_of_step(&t);
            bytes[zero] = now > bytes[zero] ? now : bytes[zero];
        }
        CHECK_OK(ls_memory_release_cached());
        used[zero] = fake_cuda_used() - before;
        trainee_free(&t);
        CHECK_OK(ls_memory_release_cached());
    }
    const size_t others = (size_t)(LAYERS * WEIGHT / ls_world_size() * (ls_world_size() - 1));
    CHECK(bytes[3] > 2 * WEIGHT && bytes[3] <= 2 * WEIGHT + bytes[1] && bytes[1] < WEIGHT);
    CHECK(used[3] + others <= used[1]);
}

enum { HELD = 5 };

/* `holds`: from the third step on the GPU is held up until the step has returned. */
static void train_held(bool holds, double losses[HELD])
{
    trainee t = trainee_new(3, 0);
    void *stream = stream_of(t.net);
    for (int step = 0; step < HELD; step++) {
        LS_SCOPE;
        ls_tensor *x = floats(1, DIM, ls_rank()), *target = floats(1, DIM, 50);
        fake_cuda_hold(stream, holds && step >= 2);
        ls_tensor *loss = ls_mse_loss(ls_forward(t.ddp, x), target);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_optim_step(t.optim));
        ls_optim_zero_grad(t.optim);
        fake_cuda_hold(stream, 0);
        CHECK_OK(ls_item(loss, &losses[step]));
    }
    trainee_free(&t);
}

DIST_TEST(a_step_that_gathers_waits_for_nothing_on_the_gpu, 2)
{
    double held[HELD], free[HELD];
    use_cuda();
    train_held(false, free);
    train_held(true, held);
    CHECK(memcmp(held, free, sizeof held) == 0);
    CHECK(held[HELD - 1] != held[0]);
}

/* ---- whole on demand ------------------------------------------------------------------------- */

static void overwrite_free_memory(void)
{
    LS_SCOPE;
    for (int i = 0; i < 4 * LAYERS; i++) {
        CHECK_OK(ls_tensor_status(ls_ones(LS_SHAPE(DIM, DIM), LS_FLOAT32)));
        CHECK_OK(ls_tensor_status(ls_ones(LS_SHAPE(DIM), LS_FLOAT32)));
    }
}

/* What is gathered lies where it was until it is released, and the next gathering elsewhere. */
static ls_status evaluate(void *arg, ls_tensor *const *inputs, ls_tensor **outputs)
{
    LS_NO_GRAD;
    outputs[0] = ls_mean(ls_forward(arg, inputs[0]));
    return ls_tensor_status(outputs[0]);
}

DIST_TEST(a_step_that_reads_divided_parameters_is_not_captured, 2)
{
    use_cuda();
    trainee t = trainee_new(3, 0);
    ls_captured *c = ls_captured_new(evaluate, t.net);
    ls_tensor *x = ls_keep(floats(1, DIM, 0));
    double first = 0.0, value = 0.0;
    train_once(&t, NULL);
    for (int run = 0; run < 5; run++) {
        CHECK_OK(ls_ddp_gather(t.ddp));
        CHECK_OK(ls_captured_run(c, &x, 1, &value, 1));
        CHECK(run == 0 || value == first);
        first = value;
        CHECK_OK(ls_ddp_release(t.ddp));
        overwrite_free_memory();
    }
    CHECK_INT(ls_captured_replays(c), 0);
    CHECK_SAYS(ls_captured_why(c),
               "parameters of ls_ddp_new are gathered when they are read (zero 3)");
    ls_captured_free(c);
    ls_free(x);
    trainee_free(&t);
}

static const void *place_of_first(ls_module *net)
{
    ls_param param;
    ls__pool *on = NULL;
    (void)ls_module_params(net, &param, 1);
    return ls__tensor_place(param.value, &on);
}

/* The wrapper is taken off while parameters are divided, and while they are gathered. */
DIST_TEST(a_module_outlives_its_divided_wrapper, 2)
{
    use_cuda();
    for (int gathered = 0; gathered < 2; gathered++) {
        int identical = 0;
        uint64_t hash[2];
        trainee t = trainee_new(3, 0);
        train_once(&t, NULL);
        train_once(&t, NULL);
        CHECK_OK(ls_ddp_gather(t.ddp));
        CHECK_OK(ls_replicas_identical(t.ddp, ls_world(), &identical, &hash[0]));
        CHECK_OK(gathered ? LS_OK : ls_ddp_release(t.ddp));
        const void *before = place_of_first(t.net);
        ls_module *net = ls_ddp_unwrap(t.ddp);
        CHECK(net == t.net && place_of_first(net) != before); /* which was a block's, or a part's */
        overwrite_free_memory();
        CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash[1]));
        CHECK_INT(identical, 2);
        CHECK(hash[0] == hash[1]);
        ls_optim_free(t.optim);
        ls_module_free(net);
    }
}

/* ---- ranks that differ ----------------------------------------------------------------------- */

/* Rank 1 changes a parameter while it is whole; parameters are compared in steps 0, 2, 4. */
DIST_TEST(a_gathered_parameter_that_one_gpu_has_changed_is_found, 2)
{
    use_cuda();
    trainee t = trainee_new(3, 2);
    for (int step = 0; step < 4; step++) {
        train_once(&t, NULL);
    }
    CHECK_OK(ls_ddp_gather(t.ddp));
    LS_SCOPE;
    if (ls_rank() == 1) {
        add_float(ls_module_param(t.net, "2.weight"), 5, 1.0f); /* of rank 0's part */
    }
    CHECK_STATUS(ls_backward(loss_of(&t, DIM)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the numbers of 2.weight");
    trainee_free(&t);
}

/* Rank 1 fails between two gatherings of the forward pass, in which the other one waits for it. */
static ls_status fail_on_rank_1(void *arg, ls_module *module, ls_tensor **inputs, int input_count,
                                ls_tensor **outputs, int output_count)
{
    (void)arg, (void)module, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return ls_rank() == 1 ? LS_ERR_INVALID : LS_OK;
}

DIST_TEST(a_gpu_that_fails_within_a_pass_ends_the_others, 2)
{
    use_cuda();
    trainee t = trainee_new(3, 0);
    train_once(&t, NULL);
    train_once(&t, NULL);
    CHECK(ls_forward_pre_hook_new(ls_module_child(t.net, "3"), fail_on_rank_1, NULL) != NULL);
    {
        LS_SCOPE;
        CHECK(ls_backward(loss_of(&t, DIM)) < 0);
        CHECK_CONTAINS(ls_error_message(), ls_rank() == 0 ? "rank 1" : "hook");
        CHECK(ls_backward(loss_of(&t, DIM)) < 0);
    }
    trainee_free(&t);
}

/* ---- ranks that die or hang ------------------------------------------------------------------ */

static ls_status kill_rank_1(void *arg, ls_module *module, ls_tensor **inputs, int input_count,
                             ls_tensor **outputs, int output_count)
{
    (void)arg, (void)module, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return ls_rank() == 1 && kill(getpid(), SIGKILL) == 0 ? LS_ERR_STATE : LS_OK;
}

static void train_until_error(bool dies)
{
    use_cuda();
    trainee t = trainee_new(3, 0);
    ls_status status = LS_OK;
    train_once(&t, NULL);
    train_once(&t, NULL);
    const double begin = ls_time();
    if (dies) { /* between two gatherings of a forward pass */
        CHECK(ls_forward_pre_hook_new(ls_module_child(t.net, "3"), kill_rank_1, NULL) != NULL);
    }
    for (int step = 0; status == LS_OK && step < 100; step++) {
        LS_SCOPE;
        status = ls_backward(loss_of(&t, DIM));
        status = status == LS_OK ? ls_optim_step(t.optim) : status;
        ls_optim_zero_grad(t.optim);
    }
    (void)fprintf(stderr, "rank %d: %s\n", ls_rank(), ls_error_message());
    CHECK_STATUS(status, dies ? LS_ERR_PEER : LS_ERR_TIMEOUT);
    CHECK_WITHIN(ls_time() - begin, 2 + 5);
    trainee_free(&t);
}

DIST_TEST(helper_dies, 2)
{
    train_until_error(true);
}

DIST_TEST(helper_hangs, 2)
{
    train_until_error(false);
}

TEST(a_rank_that_dies_between_two_gatherings_is_named)
{
    test_output run = test_run_helper("", "helper_dies");
    CHECK(run.status != 0);
    CHECK_CONTAINS(run.text, "signal 9");
    CHECK_CONTAINS(run.text, "rank 0: ");
    CHECK_CONTAINS(run.text, "rank 1 (");
    free(run.text);
}

TEST(a_gathering_that_hangs_on_one_gpu_ends_at_the_deadline)
{
    test_output run =
        test_run_helper("LOCKSTEP_TIMEOUT=2 FAKE_NCCL_FAULT=hang:1:30", "helper_hangs");
    if (run.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", run.text);
    }
    free(run.text);
}

TEST_MAIN
