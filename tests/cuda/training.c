/* SPDX-License-Identifier: Apache-2.0 */
/* Training on the CUDA device, over the fake driver: losses are those of the processor, but for the
 * order of sums in float32. Kernels run late on a thread, and memory traps the program's touch. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../device/models.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "says.h"

/* Plug-ins are looked for beside the library, which tests do not link; and a library that is loaded
 * is found by its name. */
__attribute__((constructor)) static void prepare(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("src/cuda"), 1);
    load_fake_libraries();
}

static void train_on(const char *device, const training *t, bool wraps, double values[2 * STEPS])
{
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_device_use(device));
    ls_module_free(train(t, wraps ? ls_world() : NULL, values));
    CHECK_OK(ls_finalize());
}

/* `wraps`: in a ddp of one rank. */
static void check_training(const training *t, bool wraps)
{
    double cpu[2 * STEPS], cuda[2 * STEPS];
    train_on("cpu", t, wraps, cpu);
    const uint64_t before = fake_cuda_launched();
    train_on("cuda", t, wraps, cuda);
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
    check_training(&(training){make_gpt, language, true, true, 2e-5}, true);
    check_training(&(training){make_gpt, language_bf16, true, true, 2e-2}, false);
}

TEST(images_and_sequences_learn_on_cuda_what_they_learn_on_the_processor)
{
    check_training(&(training){make_lstm, language, true, true, 2e-5}, true);
    check_training(&(training){make_cnn, image_loss, true, true, 2e-4}, false);
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
        CHECK_SAYS(ls_error_message(),
                   "a new tensor of %zu bytes: memory of device \"%s\" is out; free tensors, end "
                   "scopes earlier or make batches smaller");
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
               "the driver shows %d of them, from cuda:0 on; give one of those, and start no more "
               "ranks on a host");
    refused("FAKE_CUDA_DEVICES", "0", "cuda:0");
    CHECK_SAYS(ls_error_message(),
               "the driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
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
