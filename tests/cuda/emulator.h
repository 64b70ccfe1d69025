/* A grid of CUDA on the processor, for kernels without instructions of a warp: blocks run one
 * after the other. The threads of a block run one after the other, too, or, where they wait for
 * each other, in turns as fibers, from one __syncthreads() to the next. */
#ifndef TEST_CUDA_EMULATOR_H
#define TEST_CUDA_EMULATOR_H

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

extern const emulated_kernel emulated_kernels[]; /* the end has no name */

/* Runs the grid, on the calling thread. */
void emulated_launch(const emulated_kernel *kernel, const void *args, unsigned blocks,
                     unsigned threads);

#ifdef __cplusplus
}
#endif

#endif
