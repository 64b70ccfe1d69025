/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver for tests, libcuda.so.1 by its name, and cuBLASLt, cuDNN and NCCL for it: what the
 * device `cuda` and the backend `nccl` call, of the same ABI, on the processor.
 *
 * Memory is full of ones, which are NaN, when it is taken and when it is given back. The program
 * may not touch it: that traps, as on a GPU. A stream is a thread that runs what is put into it in
 * order, each after a random pause, so that a missing wait is seen within a few operations; the
 * driver's own stream, NULL, runs at once. Kernels are the emulated ones (emulator.h), a module
 * beside this library, or functions of the program's (cuLaunchHostFunc).
 *
 *     FAKE_CUDA_DEVICES     how many there are; default 8, -1: cuInit fails
 *     FAKE_CUDA_VERSION     of the driver; default 13000
 *     FAKE_CUDA_KERNELS=0   modules are not found
 *     FAKE_CUDA_OPEN=1      the program may touch memory of the device, also as a kernel
 *     FAKE_CUDA_ALL=1       all memory counts as the device's
 *     FAKE_CUDA_DELAY_US    the longest pause of streams to come; default 200
 *     FAKE_CUDA_SEED        of the pauses
 *     FAKE_CUDNN_VERSION    of cuDNN; default 92800
 *     FAKE_CUDA_WAITS=0     a stream waits for no event: a mistake for tests to find
 *
 * A stream whose work is captured (in the mode of the thread) notes it in a graph, and so do
 * streams that wait for its events; when the capture ends, it must have waited for them. The thread
 * may then not wait, and takes no memory but in the relaxed mode: the call fails with 900, and so
 * does the capture. A started graph runs the work of each stream on a thread, with random pauses.
 *
 * Events and streams are never freed: tests are short. */
#ifndef TEST_FAKE_CUDA_H
#define TEST_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_PUBLIC __attribute__((visibility("default")))

FAKE_PUBLIC void fake_cuda_limit(size_t bytes);  /* of memory; from now on */
FAKE_PUBLIC size_t fake_cuda_used(void);         /* bytes that were taken and not given back */
FAKE_PUBLIC uint64_t fake_cuda_launched(void);   /* kernels so far, and products */
FAKE_PUBLIC void fake_cuda_fail_next(int code);  /* the next start of a kernel fails so */
FAKE_PUBLIC void fake_cuda_fail_graph(int code); /* the next graph is not made */
FAKE_PUBLIC uint64_t fake_cuda_replayed(void);   /* graphs that were started so far */
FAKE_PUBLIC int fake_cuda_graphs(void);          /* that exist */
/* Holds what was put into `stream` back until it is released. */
FAKE_PUBLIC void fake_cuda_hold(void *stream, int holds);

FAKE_PUBLIC int fake_cublas_choices(void); /* of algorithms so far */

/* The next step of cuDNN fails so, which is making a handle, choosing an algorithm or computing; 1:
 * the next choice has no algorithm that is deterministic and of moderate memory; 2: the next size
 * of a workspace is not told. */
FAKE_PUBLIC void fake_cudnn_fail_next(int status);
FAKE_PUBLIC int fake_cudnn_descriptors(void);  /* that exist */
FAKE_PUBLIC int fake_cudnn_convolutions(void); /* that were started so far */

/* Calls `tell` when the graph of the stream's capture is freed. */
FAKE_PUBLIC void fake_cuda_on_graph_end(void *stream, void (*tell)(void *arg), void *arg);

/* For the other fakes: where what runs on a stream reaches this memory; and a product, whose
 * arguments are copied and such addresses put in place. */
FAKE_PUBLIC void *fake_cuda_reach(const void *memory);
FAKE_PUBLIC void fake_cuda_enqueue(void *stream, void (*run)(void *args), const void *args,
                                   size_t bytes);

#endif
