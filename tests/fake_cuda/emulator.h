/* SPDX-License-Identifier: Apache-2.0 */
/* A grid of CUDA on the processor, for kernels without instructions of a warp, as a module that the
 * fake driver loads in place of compiled kernels: blocks run one after the other. The threads of a
 * block run one after the other, too, or, where they wait for each other, in turns as fibers, from
 * one __syncthreads() to the next. */
#ifndef TEST_FAKE_CUDA_EMULATOR_H
#define TEST_FAKE_CUDA_EMULATOR_H

#include <stddef.h>

#ifdef __cplusplus
#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static thread_local /* a system thread runs one block at a time */

struct emulated_index {
    unsigned x, y, z;
};
extern thread_local emulated_index threadIdx, blockIdx, blockDim, gridDim;

void emulated_sync(void);
#define __syncthreads() emulated_sync()

extern "C" {
#endif

typedef struct emulated_kernel {
    const char *name;
    void (*run)(const void *args); /* as one thread */
    size_t bytes;                  /* of its arguments */
    int together;                  /* threads of a block wait for each other */
} emulated_kernel;

#define EMULATED_MODULE "emulated" /* what the module exports, an emulated_module */

typedef struct emulated_module {
    const emulated_kernel *kernels; /* the end has no name */
    /* Runs the grid, on the calling thread. */
    void (*launch)(const emulated_kernel *kernel, const void *args, unsigned blocks,
                   unsigned threads);
} emulated_module;

#ifdef __cplusplus
}
#endif

#endif
