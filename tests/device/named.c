/* SPDX-License-Identifier: Apache-2.0 */
/* Devices by name, through the public interface: the loop device as a plug-in. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "scratch.h"

static void begin(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("tests/device"), 1);
    CHECK_OK(ls_init(NULL));
}

TEST(tensors_go_there_and_back_with_their_gradients)
{
    const float x[6] = {1, 2, 3, 4, 5, 6};
    float y[6], g[6];
    begin();
    {
        LS_SCOPE;
        ls_tensor *here = ls_set_requires_grad(ls_from_data(x, LS_SHAPE(2, 3), LS_FLOAT32), true);
        ls_tensor *there = ls_to(ls_transpose(here, 0, 1), "loop");
        CHECK_STR(ls_device_of(here), "cpu");
        CHECK_STR(ls_device_of(there), "loop");
        CHECK_STR(ls_device_of(ls_to(there, "loop:0")), "loop");
        ls_tensor *back = ls_to(ls_mul(there, there), "cpu");
        CHECK_OK(ls_copy_out(back, y, sizeof y));
        CHECK(y[0] == 1 && y[1] == 16 && y[2] == 4 && y[5] == 36);
        CHECK_OK(ls_backward(ls_sum(back)));
        CHECK_STR(ls_device_of(ls_grad(here)), "cpu");
        CHECK_OK(ls_copy_out(ls_grad(here), g, sizeof g));
        for (int i = 0; i < 6; i++) {
            CHECK(g[i] == 2 * x[i]);
        }
    }
    CHECK_OK(ls_finalize());
}

/* The loss after some steps, with the module moved or made on `device`. */
static double learn(const char *device, bool moves)
{
    double loss = 0.0;
    CHECK_OK(moves ? LS_OK : ls_device_use(device));
    ls_module *layers[] = {ls_linear_new(4, 8, NULL), ls_relu_new(), ls_linear_new(8, 2, NULL)};
    ls_module *net = ls_sequential_new(layers, 3);
    CHECK_OK(moves ? ls_module_to(net, device) : LS_OK);
    ls_optim *optim = ls_adamw_new(net, LS_OPTIONS(ls_adamw_options, .lr = 0.1));
    for (int step = 0; step < 5; step++) {
        LS_SCOPE;
        float x[12];
        for (int i = 0; i < 12; i++) {
            x[i] = (float)((i * 7 + step) % 5) - 2.0f;
        }
        ls_tensor *y =
            ls_forward(net, ls_to(ls_from_memory(x, LS_SHAPE(3, 4), LS_FLOAT32), device));
        ls_tensor *mean = ls_mean(ls_mul(y, y));
        CHECK_STR(ls_device_of(mean), device);
        CHECK_OK(ls_backward(mean));
        CHECK_OK(ls_item(mean, &loss));
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
    }
    ls_optim_free(optim);
    ls_module_free(net);
    return loss;
}

TEST(a_module_that_was_moved_learns_the_same)
{
    begin();
    const double expected = learn("cpu", true);
    CHECK_OK(ls_finalize());
    CHECK_OK(ls_init(NULL));
    CHECK(learn("loop", true) == expected);
    CHECK_OK(ls_finalize());
    CHECK_OK(ls_init(NULL));
    CHECK(learn("loop", false) == expected);
    CHECK_OK(ls_finalize());
}

TEST(only_free_modules_move)
{
    begin();
    ls_module *net = ls_linear_new(2, 2, NULL);
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(ls_sum(ls_forward(net, ls_ones(LS_SHAPE(1, 2), LS_FLOAT32)))));
    }
    CHECK_STATUS(ls_module_to(net, "loop"), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "ls_module_to: %.200s has a gradient; move the module before "
                                   "ls_backward, or after ls_optim_zero_grad");
    CHECK_STATUS(ls_module_to(NULL, "loop"), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "%s: the module is NULL; check what its constructor returned%s%s%s");
    CHECK_CONTAINS(ls_error_message(), "ls_module_to: the module is NULL");
    ls_module_free(net);
    net = ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL);
    CHECK_STATUS(ls_module_to(net, "loop"), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(), "ls_module_to: the memory of %.200s is not its own; move the "
                                   "module before it is wrapped (ls_ddp_new)");
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(an_optimizer_that_has_stepped_does_not_follow_its_module)
{
    begin();
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *optim = ls_adamw_new(net, NULL);
    for (int i = 0; i < 2; i++) {
        LS_SCOPE;
        ls_tensor *x = ls_to(ls_ones(LS_SHAPE(1, 2), LS_FLOAT32), i == 0 ? "cpu" : "loop");
        CHECK_OK(ls_module_to(net, i == 0 ? "cpu" : "loop"));
        CHECK_OK(ls_backward(ls_sum(ls_forward(net, x))));
        CHECK_STATUS(ls_optim_step(optim), i == 0 ? LS_OK : LS_ERR_STATE);
        ls_optim_zero_grad(optim);
    }
    CHECK_SAYS(ls_error_message(),
               "%s: its parameters were moved to device \"%s\" after its first step, and its state "
               "was not; move the module before, or save a checkpoint, make a new optimizer and "
               "load it");
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(devices_that_cannot_be_used_say_why)
{
    begin();
    CHECK_STATUS(ls_device_use("gpu 0"), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "device \"%.60s\" is no name of a device; give cpu, cuda, or a "
                                   "number as in cuda:0");
    CHECK_STATUS(ls_device_use("cpu:1"), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "device \"cpu:1\" is no name of a device");
    CHECK_OK(ls_device_use("cpu:0"));
    CHECK_STATUS(ls_device_use("absent:3"), LS_ERR_NOT_FOUND);
    CHECK_SAYS(ls_error_message(), "%s: there is no ls_device_%s.so in %s; install the plug-in, or "
                                   "give its folder in LOCKSTEP_BACKEND_PATH");
    CHECK_OK(ls_device_use("loop"));
    CHECK_STATUS(ls_device_use("loop:1"), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "device \"loop:1\": one device a process");
    {
        LS_SCOPE;
        ls_tensor *t = ls_ones(LS_SHAPE(2), LS_FLOAT32);
        CHECK_STR(ls_device_of(t), "loop");
        CHECK(ls_tensor_status(ls_to(t, "nowhere")) == LS_ERR_NOT_FOUND);
    }
    CHECK_OK(ls_device_use("cpu"));
    CHECK_OK(ls_finalize());
}

/* The file as ls_device_KIND.so in a folder of its own; then its use is refused. */
static void refused(const char *file, const char *kind)
{
    char command[1024];
    scratch_begin();
    snprintf(command, sizeof command, "cp '%s' '%s/ls_device_%s.so'", file, scratch_folder(), kind);
    CHECK_INT(test_run(command, 10).status, 0);
    setenv("LOCKSTEP_BACKEND_PATH", scratch_folder(), 1);
    CHECK_OK(ls_init(NULL));
    CHECK_STATUS(ls_device_use(kind), LS_ERR_UNSUPPORTED);
    scratch_end();
}

TEST(files_that_are_no_plug_ins_of_this_build_are_refused)
{
    refused(test_source_path("README.md"), "text");
    CHECK_SAYS(ls_error_message(), "%s: %s cannot be loaded: %.300s");
    CHECK_OK(ls_finalize());
    refused(test_build_path("tests/plugins/ls_backend_empty.so"), "empty");
    CHECK_SAYS(ls_error_message(), "%s: %s is of another build than this library, %s; install the "
                                   "one that came with it");
    CHECK_OK(ls_finalize());
    refused(test_build_path("tests/device/ls_device_other.so"), "other");
    CHECK_SAYS(ls_error_message(), "%s: %s has interface %016llx, and this library, also %s, has "
                                   "%016llx; install both from one build");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
