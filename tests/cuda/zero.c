/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters divided among GPUs (zero 3): between two reads a rank has its part of them in the
 * device's memory, and steps have the bits of zero 1 there. Over the fakes of CUDA and NCCL, whose
 * streams are late and whose memory traps the program's touch. tests/device/test_dist.py runs the
 * tests of zero on processors over them, too. */
#include <math.h>
#include <string.h>

#include "../device/models.h"
#include "../dist/comm/nccl_fakes.h"
#include "../fake_cuda/fake.h"
#include "../fake_cuda/libraries.h"
#include "outcome.h"
#include "says.h"

static void use_cuda(void)
{
    name_fakes();
    load_fake_libraries();
    CHECK_OK(ls_device_use("cuda"));
}

static const ls_ddp_options *with_zero(int zero)
{
    static ls_ddp_options options;
    options = *LS_OPTIONS(ls_ddp_options, .zero = zero, .bucket_bytes = 4000,
                          .first_bucket_bytes = 1000, .check_every = 2);
    return &options;
}

/* ---- training ------------------------------------------------------------------------------- */

static void check_training(const training *t)
{
    double whole[2 * STEPS], divided[2 * STEPS];
    uint64_t hash[2] = {0};
    int identical = 0;
    for (int i = 0; i < 2; i++) {
        ls_module *net = train_with(with_zero(i == 0 ? 1 : 3), t, ls_world(), i == 0 ? whole : divided);
        CHECK(strcmp(ls_ddp_backend(net), "nccl") == 0);
        CHECK_OK(ls_ddp_gather(net));
        CHECK_OK(ls_replicas_identical(net, ls_world(), &identical, &hash[i]));
        CHECK_INT(identical, ls_world_size());
        ls_module_free(net);
    }
    CHECK(memcmp(whole, divided, sizeof whole) == 0);
    CHECK(hash[0] == hash[1] && hash[0] != 0);
}

DIST_TESTS(parameters_divided_among_, _gpus_have_the_bits_of_whole_ones, 2, 3)
{
    use_cuda();
    check_training(&(training){make_gpt, language, true, true, 0});
    check_training(&(training){make_gpt, language_bf16, false, true, 0});
    check_training(&(training){make_cnn, image_loss, true, true, 0});
}

TEST_MAIN
