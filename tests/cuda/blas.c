/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of products, over the fake cuBLASLt. What they compute is in cuda_gemm. */
#include "test.h"

#include "../fake_cuda/fake.h"
#include "device/device.h"

enum { SHAPES = 600, MANY = 2000 }; /* of a model with many; of one that has too many */

const ls__device_plugin *ls__device_plugin_get(void);

/* Products of m rows, from 1 to `shapes`; how many algorithms were chosen. */
static int multiply(const ls__device *device, int shapes)
{
    static float a[MANY], c[MANY];
    const float b = 2.0f;
    const int before = fake_cublas_choices();
    for (int m = 1; m <= shapes; m++) {
        a[m - 1] = (float)m;
        device->kernels->gemm(
            &(ls__gemm){
                .m = m, .n = 1, .k = 1, .a = a, .b = &b, .c = c, .lda = 1, .ldb = 1, .ldc = 1},
            NULL);
        CHECK(c[m - 1] == 2.0f * (float)m && c[0] == 2.0f);
    }
    return fake_cublas_choices() - before;
}

TEST(each_shape_is_planned_once_and_too_many_begin_anew)
{
    char error[LS__DEVICE_ERROR_MAX] = "";
    const ls__device *device = ls__device_plugin_get()->open(0, error);
    CHECK_STR(error, "");
    CHECK_INT(multiply(device, SHAPES), SHAPES);
    CHECK_INT(multiply(device, SHAPES), 0);
    CHECK_INT(multiply(device, MANY), MANY - SHAPES);
    CHECK(multiply(device, SHAPES) > 0);
    CHECK(device->failure(device) == NULL);
}

TEST_MAIN
