/* SPDX-License-Identifier: Apache-2.0 */
/* Training on the loop device: losses, norms and parameters have the bits that the processor
 * computes, so nothing reads a result too early, and no part of the library touches elements. The
 * device must be able to see both: a wait that is left out, and an access of the program. */
#include "test.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loop.h"
#include "models.h"
#include "says.h"
#include "tensor/tensor.h"

enum { IN = 7, HIDDEN = 16, OUT = 3, VALUES_MAX = 1 << 16 };

typedef struct results {
    int count;
    double value[VALUES_MAX];
} results;

static void note(results *r, double value)
{
    CHECK(r->count < VALUES_MAX);
    r->value[r->count++] = value;
}

static void note_params(results *r, ls_module *net)
{
    ls_param params[64];
    static float values[VALUES_MAX];
    const int count = ls_module_params(net, params, 64);
    CHECK(count > 0 && count <= 64);
    for (int i = 0; i < count; i++) {
        const int64_t n = ls_numel(params[i].value);
        CHECK_OK(ls_copy_out(params[i].value, values, (size_t)n * sizeof *values));
        for (int64_t j = 0; j < n; j++) {
            note(r, (double)values[j]);
        }
    }
}

/* ---- models ------------------------------------------------------------------------------- */

static ls_module *make_mlp(void)
{
    ls_module *layers[] = {ls_linear_new(IN, HIDDEN, NULL), ls_relu_new(),
                           ls_linear_new(HIDDEN, OUT, NULL)};
    return ls_sequential_new(layers, 3);
}

static ls_tensor *mse(ls_module *net, int step)
{
    return ls_mse_loss(ls_forward(net, floats(ROWS, IN, step)), floats(ROWS, OUT, step + 50));
}

static ls_tensor *bce(ls_module *net, int step)
{
    return ls_bce_with_logits(ls_forward(net, floats(ROWS, IN, step)),
                              ls_sigmoid(floats(ROWS, OUT, step + 50)));
}

/* A gradient that is not 1, and losses that are added. */
static ls_tensor *weighted(ls_module *net, int step)
{
    ls_tensor *y = ls_forward(net, floats(ROWS, IN, step));
    ls_tensor *target = integers(ROWS, 1, OUT, step, LS_INT64);
    ls_tensor *sum = ls_add(ls_scale(ls_cross_entropy(y, target, NULL), 0.3),
                            ls_scale(ls_nll_loss(ls_log_softmax(y, -1), target), 0.7));
    return ls_add(sum, ls_scale(ls_mean(ls_mul(y, y)), 0.1));
}

/* ---- training ----------------------------------------------------------------------------- */

static void train_and_note(const training *t, results *r)
{
    double values[2 * STEPS];
    ls_module *net = train(t, NULL, values);
    for (int i = 0; i < 2 * STEPS; i++) {
        note(r, values[i]);
    }
    note_params(r, net);
    note(r, (double)(ls_module_hash(net) >> 11));
    ls_module_free(net);
}

/* On `device`, or on the processor (NULL). */
static void run_on(const ls__device *device, const training *t, results *r)
{
    r->count = 0;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(device != NULL ? ls__tensor_use_device(device) : LS_OK);
    train_and_note(t, r);
    CHECK_OK(ls_finalize());
}

static bool same(const results *a, const results *b)
{
    return a->count == b->count &&
           memcmp(a->value, b->value, (size_t)a->count * sizeof *a->value) == 0;
}

static results cpu, loop;

static void check_bits(const training *t)
{
    run_on(NULL, t, &cpu);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        run_on(loop_new(seed), t, &loop);
        CHECK(loop_started() > STEPS * 10);
        loop_free();
        CHECK(same(&cpu, &loop));
    }
}

TEST(a_perceptron_learns_the_same_on_the_loop_device)
{
    check_bits(&(training){make_mlp, mse, false, false, 0});
    check_bits(&(training){make_mlp, bce, true, false, 0});
    check_bits(&(training){make_mlp, weighted, true, true, 0});
}

TEST(gpt_learns_the_same_on_the_loop_device)
{
    check_bits(&(training){make_gpt, language, true, true, 0});
    check_bits(&(training){make_gpt, language_bf16, true, true, 0});
}

TEST(images_and_sequences_learn_the_same_on_the_loop_device)
{
    check_bits(&(training){make_cnn, image_loss, true, true, 0});
    check_bits(&(training){make_lstm, language, false, true, 0});
}

/* ---- what it finds ------------------------------------------------------------------------ */

/* A mistake for the device to find: the program waits for it but once. */
static struct {
    void (*wait)(const ls__device *device);
    uint64_t seed;
    int waits, left_out;
} planted;

static void wait_but_once(const ls__device *device)
{
    if (planted.waits++ != planted.left_out) {
        planted.wait(device);
    }
}

static const training perceptron = {make_mlp, weighted, true, true, 0};

enum { FOUND, UNSEEN, NONE_LEFT };

/* Ends with FOUND if the results are other than the processor's. */
static void train_without_a_wait(void)
{
    ls__device hasty = *loop_new(planted.seed);
    planted.wait = hasty.synchronize;
    hasty.synchronize = wait_but_once;
    run_on(&hasty, &perceptron, &loop);
    _exit(planted.waits <= planted.left_out ? NONE_LEFT : same(&cpu, &loop) ? UNSEEN : FOUND);
}

static void read_elements(void)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(1)));
    LS_SCOPE;
    ls_tensor *y = ls_ones(LS_SHAPE(4), LS_FLOAT32);
    ls__pool *on = NULL;
    const volatile float *at = ls__tensor_elements(y, &on);
    _exit(at[2] == 1.0f ? 0 : 1);
}

/* The status of a child that runs `body`, and the line that it writes to stderr. */
static int status_of(void (*body)(void), char *said, size_t bytes)
{
    int to[2], status = 0;
    CHECK(pipe(to) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(to[1], STDERR_FILENO);
        body();
        _exit(1);
    }
    close(to[1]);
    const ssize_t got = read(to[0], said, bytes - 1);
    said[got > 0 ? got : 0] = '\0';
    close(to[0]);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Each wait of a training, left out alone; but for those of checks (two a step, of the targets),
 * which find nothing wrong with a wait and without. */
TEST(a_missing_wait_is_found_within_20_runs)
{
    char said[512];
    int status = FOUND, unseen = 0;
    run_on(NULL, &perceptron, &cpu);
    for (planted.left_out = 0; status != NONE_LEFT; planted.left_out++) {
        status = UNSEEN;
        for (planted.seed = 1; planted.seed <= 20 && status == UNSEEN; planted.seed++) {
            status = status_of(train_without_a_wait, said, sizeof said);
        }
        unseen += status == UNSEEN;
    }
    CHECK(planted.left_out > 6 * STEPS);
    CHECK(unseen <= 2 * STEPS + 1);
}

TEST(an_access_of_the_program_traps_and_names_the_tensor)
{
    char said[512];
    CHECK_INT(status_of(read_elements, said, sizeof said), LOOP_TRAPPED);
    CHECK_CONTAINS(said, "the program read or wrote elements of a tensor made at ");
    CHECK_CONTAINS(said, "training.c:");
}

TEST(ls_data_is_for_memory_that_the_program_may_read)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(1)));
    {
        LS_SCOPE;
        CHECK(ls_data(ls_ones(LS_SHAPE(4), LS_FLOAT32)) == NULL);
        CHECK_SAYS(ls_error_message(), "data: the tensor %s is on device \"%s\", whose memory only "
                                       "kernels read; use ls_copy_out and ls_copy_in");
    }
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(parts_of_a_module_on_a_device_are_compared_with_its_forward)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(2)));
    ls_module *net = make_gpt();
    {
        LS_SCOPE;
        ls_tensor *x = integers(BATCH, CONTEXT, VOCAB, 1, LS_INT32);
        CHECK_OK(ls_module_check_parts(net, &x, 1));
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(samples_of_tensors_on_a_device_are_read)
{
    float row[IN];
    int64_t label = -1;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(2)));
    ls_tensor *x = floats(ROWS, IN, 0), *y = integers(ROWS, 1, OUT, 0, LS_INT64);
    ls_dataset *data = ls_tensor_dataset_new(x, y);
    CHECK(data != NULL);
    ls_free(x);
    ls_free(y);
    CHECK_OK(data->get(data, 1, row, &label));
    CHECK(row[2] == (float)(9 * 37 % 101 - 50) / 25.0f && label == 7 % OUT);
    ls_dataset_free(data);
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(operands_on_two_devices_are_refused)
{
    float x[4] = {1, 2, 3, 4};
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(1)));
    {
        LS_SCOPE;
        ls_tensor *here = ls_from_memory(x, LS_SHAPE(4), LS_FLOAT32);
        ls_tensor *there = ls_ones(LS_SHAPE(4), LS_FLOAT32);
        CHECK(ls_tensor_status(ls_add(here, there)) == LS_ERR_INVALID);
        CHECK_SAYS(
            ls_error_message(),
            "argument %d is on device \"%s\", and one before it on device \"%s\"; bring one of "
            "them there with ls_to");
        ls_tensor *logits = ls_ones(LS_SHAPE(2, 4), LS_FLOAT32);
        ls_tensor *target = ls_zeros(LS_SHAPE(2), LS_INT64);
        CHECK(ls_tensor_status(ls_cross_entropy(
                  logits, target, LS_OPTIONS(ls_cross_entropy_options, .weight = here))) ==
              LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(),
                   "the weight of the classes is on device \"%s\", and argument 1 on device "
                   "\"%s\"; bring one of them there with ls_to");
    }
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(a_process_has_one_device_besides_the_processor)
{
    const ls__device *loop_device = loop_new(1);
    ls__device other = *loop_device;
    other.name = "other";
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_device));
    CHECK_OK(ls__tensor_use_device(loop_device));
    CHECK_STATUS(ls__tensor_use_device(&other), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "device \"%s\": this process computes on device \"%s\" already; "
                                   "start one rank for each device");
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(parameters_are_not_divided_where_kernels_do_not_reach_the_parts)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls__tensor_use_device(loop_new(2)));
    ls_module *net = ls_linear_new(IN, OUT, NULL);
    CHECK(ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .zero = 1)) == NULL);
    CHECK_SAYS(
        ls_error_message(),
        "zero: parameters are gathered in memory that kernels of their "
        "device do not reach; have gradients averaged there (backend \"nccl\"), or leave zero out");
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST(a_module_on_two_devices_is_refused)
{
    ls_param params[4];
    double norm;
    CHECK_OK(ls_init(NULL));
    ls_module *layers[2] = {ls_linear_new(IN, OUT, NULL)};
    CHECK_OK(ls__tensor_use_device(loop_new(1)));
    layers[1] = ls_linear_new(OUT, OUT, NULL);
    ls_module *net = ls_sequential_new(layers, 2);
    CHECK_INT(ls_module_params(net, params, 4), 4);
    for (int i = 0; i < 4; i++) {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_sum(ls_mul(params[i].value, params[i].value))));
    }
    CHECK_STATUS(ls_clip_grad_norm(net, 1.0, NULL, &norm), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "clip_grad_norm: %.200s is on device \"%s\", and a parameter "
                                   "before it on device \"%s\"; keep a module on one device");
    ls_optim *optim = ls_sgd_new(net, NULL);
    CHECK_STATUS(ls_optim_step(optim), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s step: %s is on device \"%s\", and the first parameter on "
                                   "device \"%s\"; keep a module on one device");
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    loop_free();
}

TEST_MAIN
