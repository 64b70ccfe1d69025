/* SPDX-License-Identifier: Apache-2.0 */
/* The libraries of NVIDIA's that the device `cuda` asks for by their names: one that is loaded is
 * found by its name. The driver is loaded with the program, which is linked with the fake one. */
#ifndef TEST_FAKE_CUDA_LIBRARIES_H
#define TEST_FAKE_CUDA_LIBRARIES_H

#include <dlfcn.h>

#include "test.h"

static inline void load_fake_libraries(void)
{
    CHECK(dlopen(test_build_path("tests/fake_cuda/libcublasLt.so.13"), RTLD_NOW | RTLD_GLOBAL));
    CHECK(dlopen(test_build_path("tests/fake_cuda/libcudnn.so.9"), RTLD_NOW | RTLD_GLOBAL));
}

#endif
