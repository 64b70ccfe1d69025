/* SPDX-License-Identifier: Apache-2.0 */
/* The device's table for the tests of kernels: on the driver's own stream, which the fake runs at
 * once, so memory of the program will do. */
#include "test.h"

#include <stdlib.h>

#include "device/device.h"

const ls__device_plugin *ls__device_plugin_get(void);
const ls__kernels *cuda_table(void);

const ls__kernels *cuda_table(void)
{
    static const ls__device *device;
    char error[LS__DEVICE_ERROR_MAX] = "";
#ifdef CUDA_LONG
    if (getenv("TEST_LONG") == NULL) {
        SKIP("a minute on an emulated grid: TEST_LONG=1");
    }
#endif
#ifdef OWN_CONVOLUTIONS
    setenv("LOCKSTEP_CUDNN", "0", 1);
#endif
    if (device == NULL) {
        device = ls__device_plugin_get()->open(0, error);
        CHECK_STR(error, "");
    }
    return device->kernels;
}
