/* SPDX-License-Identifier: Apache-2.0 */
/* Pipelines on the device `cuda`: activations and gradients go from the memory of one GPU to that
 * of another, by messages of the backend `nccl`, over a group for each way. */

#include "../dist/comm/nccl_fakes.h"
#include "../dist/train/pipeline_models.h"
#include "../fake_cuda/libraries.h"
#include "parallel/pipeline/internal.h"
#include "says.h"

enum { MICRO = 4 };

static void step(const use *of, ls_pipeline *pipe, ls_module *net, int number, double *losses)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    for (int m = 0; m < of->micro; m++) {
        micro[m] = micro_of(of, number, m, 0);
    }
    CHECK_OK(ls_pipeline_backward(pipe, net, micro, losses));
}

/* Whether all values that leave this rank go by links. */
static bool is_linked(const ls_pipeline *p)
{
    bool linked = p->links != NULL;
    for (int k = 0; k < p->own_count; k++) {
        const ls__stage *s = &p->own[k];
        for (int i = 0; i < s->leaving_count; i++) {
            linked = linked && (s->leaving[i].own || s->slot[0].leaving[i].head.linked);
        }
    }
    return linked;
}

static void train(const char *device, const use *of, double losses[STEPS][MICRO_MAX])
{
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_device_use(device));
    ls_module *net = of->make();
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = of->schedule,
                                        .micro_batches = of->micro, .chunks = of->chunks,
                                        .loss = loss_of),
                             &pipe));
    ls_optim *optim = ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    for (int i = 0; i < STEPS; i++) {
        step(of, pipe, net, i, losses[i]);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    CHECK(is_linked(pipe) == (device[1] == 'u'));
    ls_optim_free(optim);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

static void check(const use *of)
{
    static double cpu[STEPS][MICRO_MAX], gpus[STEPS][MICRO_MAX];
    train("cpu", of, cpu);
    train("cuda", of, gpus);
    for (int i = 0; i < STEPS; i++) {
        for (int m = 0; m < of->micro; m++) {
            CHECK_NEAR(gpus[i][m], cpu[i][m], 2e-5 * fabs(cpu[i][m]));
        }
    }
}

DIST_TESTS(stages_on_, _gpus_learn_what_they_learn_on_processors, 2, 3)
{
    name_fakes();
    load_fake_libraries();
    check(&(use){.make = make_gpt, .schedule = "1f1b", .micro = MICRO});
    check(&(use){.make = make_unet, .schedule = "zb-h1", .micro = MICRO});
    check(&(use){.make = make_gpt2, .schedule = "gpipe", .micro = MICRO});
}

DIST_TEST(ranks_on_different_kinds_of_devices_are_named, 2)
{
    ls_pipeline *pipe = NULL;
    name_fakes();
    load_fake_libraries();
    CHECK_OK(ls_device_use(ls_rank() == 0 ? "cpu" : "cuda"));
    ls_module *net = make_gpt();
    CHECK_STATUS(ls_pipeline_new(net, ls_world(),
                                 LS_OPTIONS(ls_pipeline_options, .schedule = "1f1b",
                                            .micro_batches = MICRO, .loss = loss_of),
                                 &pipe),
                 LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), "the backend of their device");
    CHECK_SAYS(ls_error_message(),
               "let all ranks make tensors on the same kind of device (ls_device_use)");
    CHECK_CONTAINS(ls_error_message(), "rank 0 has none, rank 1 has nccl");
    ls_module_free(net);
}

TEST_MAIN
