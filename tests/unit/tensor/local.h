/* SPDX-License-Identifier: Apache-2.0 */
/* A runtime of this thread alone, without communication: what tensor tests need of ls_init. */
#ifndef TEST_LOCAL_H
#define TEST_LOCAL_H

#include <lockstep/autograd.h>

#include "base/runtime.h"
#include "harness.h"
#include "tensor/tensor.h"

static inline ls_runtime *local_begin(ls_runtime *runtime)
{
    ls__runtime_init(runtime, ls__env_posix());
    CHECK_OK(ls_runtime_attach(runtime));
    return runtime;
}

static inline void local_end(ls_runtime *runtime)
{
    for (int i = LS__LAYER_COUNT - 1; i >= 0; i--) {
        if (runtime->layer[i].free != NULL) {
            runtime->layer[i].free(runtime, runtime->layer[i].data);
        }
    }
    CHECK_OK(ls_runtime_attach(NULL));
}

/* A test's body between the two. */
#define LOCAL_TEST(name)                                                                           \
    static void name##_body(void);                                                                 \
    TEST(name)                                                                                     \
    {                                                                                              \
        ls_runtime runtime;                                                                        \
        (void)local_begin(&runtime);                                                               \
        name##_body();                                                                             \
        local_end(&runtime);                                                                       \
    }                                                                                              \
    static void name##_body(void)

#endif
