/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of src/cuda/kernels as C++, and their grids; see emulator.h. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda/kernels/attention.cu"
#include "cuda/kernels/elementwise.cu"
#include "cuda/kernels/image.cu"
#include "cuda/kernels/loss.cu"
#include "cuda/kernels/move.cu"
#include "cuda/kernels/optim.cu"
#include "cuda/kernels/random.cu"
#include "cuda/kernels/rows.cu"
#include "cuda/kernels/sums.cu"

extern "C" {
#include "sim/fiber.h"
}

/* No power of two: the frames of all threads would share a few lines of the cache. */
#define STACK_BYTES (((size_t)8 << 10) + 320)

thread_local emulated_index threadIdx, blockIdx, blockDim, gridDim;

#define X(name, together)                                                                          \
    static void run_##name(const void *args)                                                       \
    {                                                                                              \
        cuda_##name(*(const struct cuda_##name##_args *)args);                                     \
    }
CUDA_KERNELS(X)
#undef X

static const emulated_kernel kernels[] = {
#define X(name, together) {#name, run_##name, sizeof(struct cuda_##name##_args), together},
    CUDA_KERNELS(X)
#undef X
        {NULL, NULL, 0, 0}};

/* ---- a block -------------------------------------------------------------------------------- */

struct block { /* that this system thread runs */
    const emulated_kernel *kernel;
    const void *args;
    ls__fiber_context main, thread[LS__CUDA_THREADS];
    char *stacks;
    unsigned waiting, ended, now;
};

static thread_local block *running; /* NULL: threads run one after the other */
static thread_local block own;

static void stop(const char *why)
{
    fprintf(stderr, "emulated CUDA: kernel %s: %s\n", own.kernel->name, why);
    abort();
}

void emulated_sync(void)
{
    if (running == NULL) {
        stop("its threads wait for each other, and its list says that they do not");
    }
    running->waiting++;
    ls__fiber_switch(&running->thread[running->now], &running->main, 0);
}

static void begin(void *arg)
{
    block *b = (block *)arg;
    b->kernel->run(b->args);
    b->ended++;
    ls__fiber_switch(&b->thread[b->now], &b->main, 1);
}

/* Rounds from one barrier to the next: all threads come to it, or all end. */
static void run_together(block *b, unsigned threads)
{
    running = b;
    b->ended = 0;
    for (unsigned t = 0; t < threads; t++) {
        ls__fiber_prepare(&b->thread[t], b->stacks + t * STACK_BYTES, STACK_BYTES, begin, b);
    }
    while (b->ended == 0) {
        b->waiting = 0;
        for (b->now = 0; b->now < threads; b->now++) {
            threadIdx.x = b->now;
            ls__fiber_switch(&b->main, &b->thread[b->now], 0);
        }
        if (b->waiting != 0 && b->waiting != threads) {
            stop("some threads of a block ended before a barrier at which others wait");
        }
    }
    running = NULL;
}

static void launch(const emulated_kernel *kernel, const void *args, unsigned blocks,
                   unsigned threads)
{
    own.kernel = kernel;
    own.args = args;
    if (threads == 0 || threads > LS__CUDA_THREADS) {
        stop("it was started with an impossible number of threads");
    }
    if (own.stacks == NULL) {
        void *memory = mmap(NULL, LS__CUDA_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            stop("no memory for the stacks of its threads");
        }
        own.stacks = (char *)memory;
    }
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        if (kernel->together) {
            run_together(&own, threads);
            continue;
        }
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            kernel->run(args);
        }
    }
}

extern "C" {
extern const emulated_module emulated;
const emulated_module emulated = {kernels, launch};
}
