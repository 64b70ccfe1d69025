/* SPDX-License-Identifier: Apache-2.0 */
/* cuDNN around its convolutions, over the fake one: how it is found and what is said without it,
 * what kernels of our own compute in its place, its errors, its descriptors, and captures. Whatever
 * happens, the result is that of the plain twin. What it computes is in cuda_conv. */
#include <math.h>
#include <stdio.h>

#include "../fake_cuda/fake.h"
#include "../unit/kernel/kernel_test.h"
#include "device/device.h"
#include "says.h"

const ls__device_plugin *ls__device_plugin_get(void);

static const ls__device *device;

static const ls__conv2d usual = {.batch = 2,
                                 .in = 4,
                                 .height = 5,
                                 .width = 7,
                                 .groups = 2,
                                 .out = 6,
                                 .out_height = 5,
                                 .out_width = 4,
                                 .kernel = {3, 3},
                                 .stride = {1, 2},
                                 .padding = {1, 1},
                                 .dilation = {1, 1}};

static void open_device(const char *cudnn)
{
    char error[LS__DEVICE_ERROR_MAX] = "";
    if (cudnn != NULL) {
        setenv("LOCKSTEP_CUDNN", cudnn, 1);
    }
    device = ls__device_plugin_get()->open(0, error);
    CHECK_STR(error, "");
}

static int64_t elements(const ls__conv2d *c, int which)
{
    const int64_t counts[] = {c->batch * c->height * c->width * c->in,
                              c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1],
                              c->batch * c->out_height * c->out_width * c->out};
    return counts[which];
}

/* ---- on the driver's own stream, in memory of the program ------------------------------------ */

static void run(const ls__kernels *k, const ls__conv2d *c, ls__conv2d_pass pass, float *out)
{
    float *x = random_floats(elements(c, 0), 1), *w = random_floats(elements(c, 1), 2);
    float *y = random_floats(elements(c, 2), 3);
    ls__conv2d_data d = {.x = x, .w = w, .dy = y, .out = out};
    d.workspace = allocate(k->conv2d_workspace(c, pass, &d));
    k->conv2d(c, pass, &d, NULL);
    free(x), free(w), free(y), free(d.workspace);
}

/* By the device; `offset`: of the result in its memory. Returns how many cuDNN computed. */
static int check_pass(const ls__conv2d *c, ls__conv2d_pass pass, int offset)
{
    const int before = fake_cudnn_convolutions();
    const int64_t count = elements(c, pass == LS__CONV2D_FORWARD      ? 2
                                      : pass == LS__CONV2D_BACKWARD_X ? 0
                                                                      : 1);
    float *want = allocate((size_t)count * sizeof *want);
    float *got = allocate((size_t)(count + offset) * sizeof *got);
    run(ls__kernels_ref(), c, pass, want);
    run(device->kernels, c, pass, got + offset);
    check_close("a convolution", got + offset, want, count, 1e-5, 1e-5);
    free(want), free(got);
    return fake_cudnn_convolutions() - before;
}

static int check_passes(const ls__conv2d *c)
{
    return check_pass(c, LS__CONV2D_FORWARD, 0) + check_pass(c, LS__CONV2D_BACKWARD_X, 0) +
           check_pass(c, LS__CONV2D_BACKWARD_W, 0);
}

static const char *notice(void)
{
    static char text[LS__DEVICE_ERROR_MAX];
    return device->notice(device, text) ? text : "";
}

/* ---- loading --------------------------------------------------------------------------------- */

#define WITHOUT                                                                                    \
    SAYS("convolutions are computed without cuDNN, more slowly: %s; install cuDNN 9 (the wheel "   \
         "nvidia-cudnn-cu13), give the path of libcudnn.so.9 in LOCKSTEP_CUDNN, or 0 there to do " \
         "without")

/* It is said once. */
static const char *said_without(const char *cudnn)
{
    open_device(cudnn);
    CHECK_STR(notice(), "");
    CHECK_INT(check_passes(&usual), 0);
    const char *text = notice();
    CHECK_SAYS(text, WITHOUT);
    return text;
}

TEST(cudnn_is_found_and_computes_every_pass)
{
    open_device(NULL);
    ls__conv2d of_channels = usual, of_pixels = usual, dilated = usual;
    of_channels.groups = of_channels.in = of_channels.out = 5;
    of_pixels.kernel[0] = of_pixels.kernel[1] = 1;
    of_pixels.padding[0] = of_pixels.padding[1] = 0;
    dilated.dilation[0] = dilated.padding[0] = 2;
    CHECK_INT(check_passes(&usual), 3);
    CHECK_INT(check_passes(&of_channels), 3);
    CHECK_INT(check_passes(&of_pixels), 3);
    CHECK_INT(check_passes(&dilated), 3);
    CHECK_STR(notice(), "");
}

TEST(without_cudnn_kernels_of_our_own_compute_and_its_absence_is_said_once)
{
    const char *text = said_without("/nowhere/libcudnn.so.9");
    CHECK_SAYS(text, "%s is not there (%.200s)");
    CHECK_CONTAINS(text, "/nowhere/libcudnn.so.9");
    CHECK_INT(check_passes(&usual), 0);
    CHECK_STR(notice(), "");
}

TEST(a_cudnn_that_is_too_old_is_named)
{
    setenv("FAKE_CUDNN_VERSION", "8907", 1);
    const char *text = said_without(NULL);
    CHECK_SAYS(text, "it has version %zu, and 9.0 (%d) or later is needed");
    CHECK_CONTAINS(text, "8907");
}

TEST(a_cudnn_that_lacks_a_function_is_named)
{
    const char *text = said_without(test_build_path("tests/fake_cuda/libcudnn_half.so"));
    CHECK_SAYS(text, "%s has no %s; install a newer one");
    CHECK_CONTAINS(text, "libcudnn_half.so has no "
                         "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
}

TEST(a_cudnn_that_does_not_start_is_named)
{
    fake_cudnn_fail_next(4000);
    const char *text = said_without(NULL);
    CHECK_SAYS(text, "cudnnCreate: %s");
    CHECK_CONTAINS(text, "cudnnCreate: CUDNN_STATUS_INTERNAL_ERROR");
}

TEST(who_asks_for_no_cudnn_is_told_nothing)
{
    open_device("0");
    CHECK_INT(check_passes(&usual), 0);
    CHECK_STR(notice(), "");
}

/* ---- refusals and errors --------------------------------------------------------------------- */

#define INSTEAD                                                                                    \
    SAYS("kernels of its own, which are slower, compute a convolution of [%lld,%lld,%lld,%lld] "   \
         "with %lld outputs, since cuDNN does not: %s: %s")

TEST(a_shape_that_cudnn_refuses_is_left_to_kernels_of_our_own)
{
    open_device(NULL);
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 0), 1);
    const int kept = fake_cudnn_descriptors();
    fake_cudnn_fail_next(3000); /* choosing */
    CHECK_INT(check_pass(&usual, LS__CONV2D_BACKWARD_X, 0), 0);
    const char *text = notice();
    CHECK_SAYS(text, INSTEAD);
    CHECK_SAYS(text, "choosing an algorithm");
    CHECK_CONTAINS(text, "[2,4,5,7] with 6 outputs");
    CHECK_CONTAINS(text, "choosing an algorithm: CUDNN_STATUS_NOT_SUPPORTED: it was asked to fail");
    CHECK(strstr(text, "of the fake") == NULL); /* the first line only */
    CHECK_INT(fake_cudnn_descriptors(), kept);
    CHECK_INT(check_pass(&usual, LS__CONV2D_BACKWARD_X, 0), 0);
    CHECK_STR(notice(), "");

    ls__conv2d other = usual;
    other.batch = 1;
    fake_cudnn_fail_next(2);
    CHECK_INT(check_pass(&other, LS__CONV2D_BACKWARD_X, 0), 0);
    CHECK_SAYS(notice(), "the size of its workspace");
    fake_cudnn_fail_next(1);
    CHECK_INT(check_pass(&usual, LS__CONV2D_BACKWARD_W, 0), 0);
    CHECK_SAYS(notice(), "none is deterministic and has less than 1 GiB of workspace");

    fake_cudnn_fail_next(3000); /* computing */
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 0), 0);
    CHECK_CONTAINS(notice(), "cudnnConvolutionForward: CUDNN_STATUS_NOT_SUPPORTED");
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 0), 0);
    CHECK_INT(fake_cudnn_descriptors(), 0);
    CHECK(device->failure(device) == NULL);
}

TEST(an_error_of_cudnn_fails_the_device_with_its_words)
{
    float *out = allocate((size_t)elements(&usual, 2) * sizeof *out);
    open_device(NULL);
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 0), 1);
    fake_cudnn_fail_next(5000);
    run(device->kernels, &usual, LS__CONV2D_FORWARD, out);
    CHECK_STR(device->failure(device),
              "cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED: it was asked to fail");
    free(out);
}

TEST(sizes_and_places_that_its_descriptors_cannot_say_are_left_to_kernels_of_our_own)
{
    ls__conv2d odd = usual;
    odd.height = 6; /* a row more than y follows from, as in a transposed convolution */
    open_device(NULL);
    CHECK_INT(check_pass(&odd, LS__CONV2D_BACKWARD_X, 0), 0);
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 1), 0);
    CHECK_INT(check_pass(&usual, LS__CONV2D_FORWARD, 4), 1);
    CHECK_STR(notice(), "");
}

/* ---- descriptors ----------------------------------------------------------------------------- */

TEST(descriptors_of_many_shapes_do_not_pile_up)
{
    ls__conv2d c = usual;
    int most = 0;
    open_device(NULL);
    for (int batch = 1; batch <= 2000; batch++) {
        c.batch = batch;
        CHECK(device->kernels->conv2d_workspace(&c, LS__CONV2D_FORWARD, &(ls__conv2d_data){0}) > 0);
        most = fake_cudnn_descriptors() > most ? fake_cudnn_descriptors() : most;
    }
    CHECK(most > 2000 && most < 4000 && fake_cudnn_descriptors() < most);
    CHECK_INT(check_passes(&usual), 3);
}

/* ---- on the device's stream, in its memory --------------------------------------------------- */

typedef struct arrays {
    float *x, *w, *y; /* of the device */
    char *workspace;
} arrays;

static float *on_device(int64_t count, uint64_t seed)
{
    const size_t bytes = (size_t)count * sizeof(float);
    float *from = random_floats(count, seed), *out = device->memory->allocate(NULL, bytes);
    device->kernels->copy(out, from, bytes, device->stream);
    free(from);
    return out;
}

static arrays arrays_new(void)
{
    return (arrays){on_device(elements(&usual, 0), 1), on_device(elements(&usual, 1), 2),
                    on_device(elements(&usual, 2), 3), device->memory->allocate(NULL, 1 << 16)};
}

static void start(const arrays *a)
{
    ls__conv2d_data d = {.x = a->x, .w = a->w, .out = a->y, .workspace = a->workspace};
    CHECK(device->kernels->conv2d_workspace(&usual, LS__CONV2D_FORWARD, &d) <= 1 << 16);
    device->kernels->conv2d(&usual, LS__CONV2D_FORWARD, &d, device->stream);
}

/* Of y, which is then full of zeros. */
static void check_result(const arrays *a)
{
    const int64_t count = elements(&usual, 2);
    float *want = allocate((size_t)count * sizeof *want);
    float *got = allocate((size_t)count * sizeof *got);
    run(ls__kernels_ref(), &usual, LS__CONV2D_FORWARD, want);
    device->kernels->copy(got, a->y, (size_t)count * sizeof *got, device->stream);
    device->kernels->zero(a->y, (size_t)count * sizeof *got, device->stream);
    device->synchronize(device);
    check_close("a convolution", got, want, count, 1e-5, 1e-5);
    free(want), free(got);
}

static int check_captured(const arrays *a)
{
    char why[LS__DEVICE_ERROR_MAX] = "";
    const int before = fake_cudnn_convolutions();
    CHECK(device->capture->begin(device, why));
    start(a);
    void *graph = device->capture->end(device, why);
    CHECK_STR(why, "");
    const int by_cudnn = fake_cudnn_convolutions() - before;
    for (int replay = 0; replay < 3; replay++) {
        device->capture->launch(device, graph);
        check_result(a);
    }
    device->capture->free(device, graph);
    return by_cudnn;
}

/* No library is loaded and no algorithm chosen in a capture. */
TEST(a_capture_has_convolutions_of_cudnn_once_their_shape_was_met)
{
    open_device(NULL);
    const arrays a = arrays_new();
    CHECK_INT(check_captured(&a), 0);
    CHECK_INT(check_pass(&usual, LS__CONV2D_BACKWARD_X, 0), 1);
    CHECK_INT(check_captured(&a), 0);
    for (int i = 0; i < 20; i++) {
        start(&a);
        check_result(&a);
    }
    CHECK_INT(fake_cudnn_convolutions(), 1 + 20);
    CHECK_INT(check_captured(&a), 1);
    CHECK_STR(notice(), "");
    CHECK(device->failure(device) == NULL);
}

TEST_MAIN
