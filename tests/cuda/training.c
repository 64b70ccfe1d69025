/* Training on the CUDA device, over the fake driver: losses are those of the processor, but for the
 * order of sums in float32. Kernels run late on a thread, and memory traps the program's touch. */
#include "test.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/cnn.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/lstm.h>

#include "../fake_cuda/fake.h"
#include "says.h"

/* Plug-ins are looked for beside the library, which tests do not link; and a library that is loaded
 * is found by its name. */
__attribute__((constructor)) static void prepare(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("src/cuda"), 1);
    (void)dlopen(test_build_path("tests/fake_cuda/libcublasLt.so.13"), RTLD_NOW | RTLD_GLOBAL);
}

enum { STEPS = 4, VOCAB = 13, CONTEXT = 6, BATCH = 3 };

static ls_tensor *integers(int64_t rows, int64_t n, int64_t below, int seed, ls_dtype dtype)
{
    int64_t x[256];
    int32_t narrow[256];
    for (int64_t i = 0; i < rows * n; i++) {
        x[i] = (i * 7 + seed * 3) % below;
        narrow[i] = (int32_t)x[i];
    }
    return ls_from_data(dtype == LS_INT64 ? (void *)x : narrow,
                        n == 1 ? LS_SHAPE(rows) : LS_SHAPE(rows, n), dtype);
}

static ls_module *make_gpt(void)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = 2, .heads = 2, .dim = 16,
                                 .context = CONTEXT, .vocab = VOCAB, .dropout = 0.1));
}

static ls_tensor *language(ls_module *net, int step)
{
    ls_tensor *y = ls_forward(net, integers(BATCH, CONTEXT, VOCAB, step, LS_INT32));
    return ls_cross_entropy(y, integers(BATCH, CONTEXT, VOCAB, step + 1, LS_INT64), NULL);
}

static ls_tensor *language_bf16(ls_module *net, int step)
{
    LS_AUTOCAST(true);
    return language(net, step);
}

static ls_module *make_lstm(void)
{
    return ls_lstm_model_new(LS_OPTIONS(ls_lstm_model_options, .layers = 2, .dim = 8, .hidden = 8,
                                        .vocab = VOCAB, .dropout = 0.1));
}

static ls_module *make_cnn(void)
{
    return ls_cnn_new(2, 4);
}

static ls_tensor *image_loss(ls_module *net, int step)
{
    ls_tensor *x = ls_cast(integers(BATCH, 64, 11, step, LS_INT32), LS_FLOAT32);
    x = ls_reshape(ls_concat((ls_tensor *[]){x, x}, 2, 1), LS_SHAPE(BATCH, 2, 8, 8));
    return ls_cross_entropy(ls_forward(net, x), integers(BATCH, 1, 4, step, LS_INT64), NULL);
}

typedef struct training {
    ls_module *(*make)(void);
    ls_tensor *(*loss)(ls_module *net, int step);
    double close; /* relative difference of losses and norms */
    bool wraps;   /* in a DDP of one rank */
} training;

static void train(const training *t, const char *device, double values[2 * STEPS])
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use(device));
    ls_module *net = t->make();
    net = t->wraps ? ls_ddp_new(net, ls_world(), NULL) : net;
    CHECK_OK(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    for (int step = 0; step < STEPS; step++) {
        LS_SCOPE;
        ls_tensor *loss = t->loss(net, step);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_item(loss, &values[2 * step]));
        CHECK_OK(ls_clip_grad_norm(net, 0.5, NULL, &values[2 * step + 1]));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

static void check_training(const training *t)
{
    double cpu[2 * STEPS], cuda[2 * STEPS];
    train(t, "cpu", cpu);
    const uint64_t before = fake_cuda_launched();
    train(t, "cuda", cuda);
    CHECK(fake_cuda_launched() - before > STEPS * 20);
    for (int i = 0; i < 2 * STEPS; i++) {
        if (!(fabs(cuda[i] - cpu[i]) <= t->close * fabs(cpu[i]))) {
            test_fail(__FILE__, __LINE__, "number %d: %.9g, on the processor %.9g", i, cuda[i],
                      cpu[i]);
        }
    }
}

TEST(gpt_learns_on_cuda_what_it_learns_on_the_processor)
{
    check_training(&(training){make_gpt, language, 2e-5, true});
    check_training(&(training){make_gpt, language_bf16, 2e-2, false});
}

TEST(images_and_sequences_learn_on_cuda_what_they_learn_on_the_processor)
{
    check_training(&(training){make_lstm, language, 2e-5, true});
    check_training(&(training){make_cnn, image_loss, 2e-4, false});
}

TEST(first_values_are_those_of_the_processor)
{
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_init(NULL));
        CHECK_OK(ls_device_use(i == 0 ? "cpu" : "cuda:0"));
        ls_module *net = make_gpt();
        hash[i] = ls_module_hash(net);
        ls_module_free(net);
        CHECK_OK(ls_finalize());
    }
    CHECK(hash[0] == hash[1] && hash[0] != 0);
}

TEST(a_kernel_that_fails_is_reported_by_the_next_operation)
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda:0"));
    {
        LS_SCOPE;
        double value;
        ls_tensor *x = ls_ones(LS_SHAPE(8), LS_FLOAT32);
        CHECK_OK(ls_tensor_status(x));
        fake_cuda_fail_next(700);
        CHECK(ls_tensor_status(ls_exp(x)) == LS_ERR_SYSTEM);
        CHECK_SAYS(ls_error_message(), "device \"%s\" has failed: %.400s");
        CHECK_CONTAINS(ls_error_message(), "unary: an illegal memory access was encountered");
        CHECK_STATUS(ls_item(ls_sum(x), &value), LS_ERR_SYSTEM);
    }
    CHECK_OK(ls_finalize());
}

TEST(statistics_count_the_memory_of_the_device)
{
    ls_memory_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda:0"));
    CHECK_OK(ls_memory_get_stats(&before));
    {
        LS_SCOPE;
        CHECK_OK(ls_tensor_status(ls_zeros(LS_SHAPE(1 << 20), LS_FLOAT32)));
        CHECK_OK(ls_memory_get_stats(&after));
        CHECK_INT(after.allocated - before.allocated, 4 << 20);
        CHECK(after.reserved - before.reserved >= 4 << 20);
        fake_cuda_limit(fake_cuda_used());
        CHECK(ls_tensor_status(ls_zeros(LS_SHAPE(8 << 20), LS_FLOAT32)) == LS_ERR_MEMORY);
    }
    CHECK_OK(ls_finalize());
}

static void refused(const char *variable, const char *value, const char *device)
{
    setenv(variable, value, 1);
    CHECK_OK(ls_init(NULL));
    CHECK_STATUS(ls_device_use(device), LS_ERR_UNSUPPORTED);
    CHECK_OK(ls_finalize());
    unsetenv(variable);
}

TEST(a_gpu_that_cannot_be_used_says_why)
{
    refused("FAKE_CUDA_DEVICES", "1", "cuda:1");
    CHECK_SAYS(ls_error_message(),
               "there are %d GPUs here, from cuda:0 on; start no more ranks on this host");
    refused("FAKE_CUDA_VERSION", "11080", "cuda:0");
    CHECK_SAYS(ls_error_message(),
               "the driver is for CUDA %d.%d; install one for CUDA %d.0 or newer");
    refused("FAKE_CUDA_KERNELS", "0", "cuda:0");
    CHECK_SAYS(ls_error_message(),
               "%.300s is not there; build Lockstep with nvcc (meson setup -Dcuda=enabled)");
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use("cuda:1"));
    CHECK_STATUS(ls_device_use("cuda:0"), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "this process computes on %.20s already; start one rank for each GPU");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
