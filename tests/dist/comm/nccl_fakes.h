/* SPDX-License-Identifier: Apache-2.0 */
/* The fake CUDA and NCCL for tests of the backend `nccl`, and kernels: functions that a stream
 * runs. */
#ifndef TEST_NCCL_FAKES_H
#define TEST_NCCL_FAKES_H

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

#include "test.h"

#define FAKE_CUDA test_build_path("tests/fake_cuda/libcuda.so.1")
#define FAKE_NCCL test_build_path("tests/fake_cuda/libnccl.so.2")
#define FAKE_NCCL_HALF test_build_path("tests/fake_cuda/libnccl_half.so")

static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set_context)(void *);
    int (*alloc)(uintptr_t *, size_t);
    int (*make_stream)(ls_stream **, unsigned, int);
    int (*launch)(ls_stream *, void (*)(void *), void *);
    int (*synchronize)(ls_stream *);
} cuda;

static inline void find(void *library, const char *name, void *to)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol != NULL);
    memcpy(to, &symbol, sizeof symbol);
}

static inline void name_fakes(void)
{
    setenv("LOCKSTEP_BACKEND_PATH", test_build_path("src/lockstep/backends"), 1);
    setenv("LOCKSTEP_CUDA", FAKE_CUDA, 1);
    setenv("LOCKSTEP_NCCL", FAKE_NCCL, 1);
}

/* Each rank has a GPU of its own, whose memory it may touch. */
static inline void use_fakes(void)
{
    void *context = NULL;
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        test_fail(__FILE__, __LINE__, "%s", dlerror());
    }
    name_fakes();
    setenv("FAKE_CUDA_OPEN", "1", 1);
    find(library, "cuInit", &cuda.init);
    find(library, "cuDevicePrimaryCtxRetain", &cuda.retain);
    find(library, "cuCtxSetCurrent", &cuda.set_context);
    find(library, "cuMemAlloc_v2", &cuda.alloc);
    find(library, "cuStreamCreateWithPriority", &cuda.make_stream);
    find(library, "cuLaunchHostFunc", &cuda.launch);
    find(library, "cuStreamSynchronize", &cuda.synchronize);
    CHECK_INT(cuda.init(0), 0);
    CHECK_INT(cuda.retain(&context, ls_rank()), 0);
    CHECK_INT(cuda.set_context(context), 0);
}

static inline ls_group *group_over_nccl(const char *name)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_create(
        ls_world(), LS_OPTIONS(ls_group_options, .name = name, .backend = "nccl"), &group));
    return group;
}

static inline ls_stream *new_stream(void)
{
    ls_stream *stream = NULL;
    CHECK_INT(cuda.make_stream(&stream, 1, 0), 0);
    return stream;
}

static inline void *device_memory(size_t bytes)
{
    uintptr_t at = 0;
    CHECK_INT(cuda.alloc(&at, bytes), 0);
    return (void *)at;
}

#endif
