/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the CUDA runtime as examples/11_cuda_bring_your_own_backward.cu calls, over the fake
 * driver (tests/fake_cuda/fake.h, FAKE_CUDA_OPEN=1): the file is compiled as C++, in which
 * tests/cuda/test_example.py has written `kernel<<<grid, block, 0, stream>>>(args);` as
 * `start(grid, block, 0, stream, kernel, args);`. A kernel is a call in its stream. */
#ifndef TEST_CUDA_RUNTIME_H
#define TEST_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

extern "C" {
int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *memory, size_t bytes);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamSynchronize(void *stream);
int cuLaunchHostFunc(void *stream, void (*run)(void *arg), void *arg);
int cuGetErrorString(int error, const char **text);
}

#define __global__ static

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z)
    {
    }
};
inline thread_local dim3 blockIdx, threadIdx, blockDim, gridDim;

typedef int cudaError_t;
typedef void *cudaStream_t;
enum { cudaSuccess };
enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

inline cudaStream_t the_stream; /* the program's: a copy that blocks comes after what is in it */
inline int start_error;

inline const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = "";
    cuGetErrorString(error, &text);
    return text;
}

inline cudaError_t cudaGetLastError(void)
{
    return start_error;
}

inline cudaError_t cudaGetDeviceCount(int *count)
{
    const int error = cuInit(0);
    return error != 0 ? error : cuDeviceGetCount(count);
}

inline cudaError_t cudaSetDevice(int device)
{
    void *context = nullptr;
    const int error = cuDevicePrimaryCtxRetain(&context, device);
    return error != 0 ? error : cuCtxSetCurrent(context);
}

inline cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    const int error = cuStreamCreate(stream, 0);
    the_stream = *stream;
    return error;
}

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return cuStreamSynchronize(stream);
}

template <typename T> cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    uint64_t at = 0;
    const int error = cuMemAlloc_v2(&at, bytes);
    *memory = (T *)(uintptr_t)at;
    return error;
}

inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int,
                                   cudaStream_t stream)
{
    return cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, stream);
}

inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int)
{
    cuStreamSynchronize(the_stream);
    return cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, bytes, nullptr);
}

inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return cuMemsetD8Async((uintptr_t)to, (unsigned char)value, bytes, stream);
}

inline float atomicAdd(float *to, float value)
{
    const float before = *to;
    *to += value;
    return before;
}

struct started_kernel {
    dim3 grid, block;
    std::function<void()> thread;
};

inline void run_started_kernel(void *arg)
{
    started_kernel *k = (started_kernel *)arg;
    gridDim = k->grid;
    blockDim = k->block;
    for (blockIdx.x = 0; blockIdx.x < k->grid.x; blockIdx.x++) {
        for (threadIdx.y = 0; threadIdx.y < k->block.y; threadIdx.y++) {
            for (threadIdx.x = 0; threadIdx.x < k->block.x; threadIdx.x++) {
                k->thread();
            }
        }
    }
    delete k;
}

/* The arguments are copied at the call, as CUDA does. */
template <typename... A, typename... B>
void start(dim3 grid, dim3 block, size_t, cudaStream_t stream, void (*kernel)(A...), B... args)
{
    started_kernel *k = new started_kernel{grid, block, [=] { kernel(args...); }};
    const int error = cuLaunchHostFunc(stream, run_started_kernel, k);
    start_error = start_error != 0 ? start_error : error;
}

#endif
