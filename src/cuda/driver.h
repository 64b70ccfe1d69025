/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver, libcuda.so.1, loaded when the device is opened: declarations of what is used, as
 * its own header has them. */
#ifndef LS_CUDA_DRIVER_H
#define LS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS__CU_SUCCESS 0
#define LS__CU_OUT_OF_MEMORY 2
#define LS__CU_FILE_NOT_FOUND 301
#define LS__CU_NOT_FOUND 500
#define LS__CU_NOT_READY 600
#define LS__CU_EVENT_NO_TIMING 2
#define LS__CU_STREAM_NON_BLOCKING 1
#define LS__CU_CAPTURE_THREAD_LOCAL 1
#define LS__CU_CAPTURE_RELAXED 2

typedef uint64_t ls__cu_pointer; /* CUdeviceptr; the address, which the processor knows as well */

/* X(symbol, arguments): handles are pointers, devices numbers. */
#define LS__CU_FUNCTIONS(X)                                                                        \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDriverGetVersion, (int *version))                                                          \
    X(cuGetErrorString, (int error, const char **text))                                            \
    X(cuDeviceGetCount, (int *count))                                                              \
    X(cuDeviceGet, (int *device, int number))                                                      \
    X(cuDevicePrimaryCtxRetain, (void **context, int device))                                      \
    X(cuCtxSetCurrent, (void *context))                                                            \
    X(cuModuleLoad, (void **module, const char *path))                                             \
    X(cuModuleGetFunction, (void **function, void *module, const char *name))                      \
    X(cuStreamCreate, (void **stream, unsigned flags))                                             \
    X(cuStreamSynchronize, (void *stream))                                                         \
    X(cuStreamBeginCapture_v2, (void *stream, int mode))                                           \
    X(cuStreamEndCapture, (void *stream, void **graph))                                            \
    X(cuThreadExchangeStreamCaptureMode, (int *mode))                                              \
    X(cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags))     \
    X(cuGraphLaunch, (void *executable, void *stream))                                             \
    X(cuGraphExecDestroy, (void *executable))                                                      \
    X(cuGraphDestroy, (void *graph))                                                               \
    X(cuEventCreate, (void **event, unsigned flags))                                               \
    X(cuEventDestroy_v2, (void *event))                                                            \
    X(cuEventRecord, (void *event, void *stream))                                                  \
    X(cuEventQuery, (void *event))                                                                 \
    X(cuEventSynchronize, (void *event))                                                           \
    X(cuMemAlloc_v2, (ls__cu_pointer * memory, size_t bytes))                                      \
    X(cuMemFree_v2, (ls__cu_pointer memory))                                                       \
    X(cuMemcpyAsync, (ls__cu_pointer to, ls__cu_pointer from, size_t bytes, void *stream))         \
    X(cuMemsetD8Async, (ls__cu_pointer at, unsigned char value, size_t bytes, void *stream))       \
    X(cuLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,          \
                       unsigned block_x, unsigned block_y, unsigned block_z,                       \
                       unsigned shared_bytes, void *stream, void **arguments, void **extra))

typedef struct ls__cu {
#define X(name, arguments) int(*name) arguments;
    LS__CU_FUNCTIONS(X)
#undef X
} ls__cu;

extern ls__cu ls__cu_driver;

/* False with a line in `error`, of `bytes`. */
bool ls__cu_load(char *error, size_t bytes);
/* The driver's words for an error code. */
const char *ls__cu_text(int code);
/* The first of `names` (its end is NULL) that can be loaded, with all its `symbols`; `table` gets
 * their addresses. False with a line in `error`. */
bool ls__cuda_library(const char *const *names, const char *const *symbols, void **table,
                      char *error, size_t bytes);

#endif
