/* SPDX-License-Identifier: Apache-2.0 */
/* What all kernels use. They are compiled by nvcc, and as C++ with tests/fake_cuda/emulator.h,
 * which runs a grid on the processor: so no kernel uses instructions of a warp, and all that
 * threads share passes through __shared__ memory and __syncthreads().
 *
 *   EACH(i, n)    the elements of this thread, of all threads of the grid
 *   ROWS(r, n)    the rows of this block
 *   WITHIN(j, n)  the elements of this thread, of the threads of its block
 *
 * Sums have one order, which follows from the sizes alone: results are reproducible, and are not
 * the bits of the processor. Numbers are float32 inside; sums over everything are float64. */
#ifndef LS_CUDA_COMMON_CUH
#define LS_CUDA_COMMON_CUH

#ifdef __CUDACC__
#define LS__CUDA_INLINE __host__ __device__ __inline__
#else
#include "emulator.h"
#define LS__CUDA_INLINE inline
#endif

#include "cuda/args.h"

#define inline LS__CUDA_INLINE
#include "base/half.h"
#undef inline

#define KERNEL(name)                                                                               \
    extern "C" __global__ void __launch_bounds__(LS__CUDA_THREADS)                                 \
        cuda_##name(const struct cuda_##name##_args k)
#define EACH(i, n)                                                                                 \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)
#define ROWS(r, n) for (int64_t r = blockIdx.x; r < (n); r += gridDim.x)
#define WITHIN(j, n) for (int64_t j = threadIdx.x; j < (n); j += blockDim.x)

/* ---- elements ----------------------------------------------------------------------------- */

static __device__ __inline__ float get(const float *x, int64_t i)
{
    return x[i];
}

static __device__ __inline__ float get(const ls__bfloat16 *x, int64_t i)
{
    return ls__bfloat16_widen(x[i]);
}

static __device__ __inline__ float get(ls__real x, int64_t i)
{
    return x.half ? get((const ls__bfloat16 *)x.at, i) : ((const float *)x.at)[i];
}

static __device__ __inline__ void put(float *out, int64_t i, float value)
{
    out[i] = value;
}

static __device__ __inline__ void put(ls__bfloat16 *out, int64_t i, float value)
{
    out[i] = ls__bfloat16_round(value);
}

static __device__ __inline__ void put(ls__real out, int64_t i, float value)
{
    if (out.half) {
        put((ls__bfloat16 *)out.at, i, value);
    } else {
        ((float *)out.at)[i] = value;
    }
}

/* value + beta out; a beta of 0 does not read out. */
template <class T>
static __device__ __inline__ void store(T out, int64_t i, float value, float beta)
{
    put(out, i, beta == 0.0f ? value : value + beta * get(out, i));
}

static __device__ __inline__ ls__real real_of(const void *at, bool half)
{
    ls__real r;
    r.at = (void *)at;
    r.half = half;
    return r;
}

static __device__ __inline__ int64_t index_at(const void *index, size_t bytes, int64_t i)
{
    return bytes == 4 ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

static __device__ __inline__ float factor_of(ls__factor f)
{
    return (float)(f.times * (double)*f.at / f.over);
}

/* ---- places ------------------------------------------------------------------------------- */

/* The coordinates of element i of shape[ndim], row-major. */
static __device__ __inline__ void coordinates(int64_t i, int ndim, const int64_t *shape,
                                              int64_t *at)
{
    for (int d = ndim - 1; d >= 0; d--) {
        at[d] = i % shape[d];
        i /= shape[d];
    }
}

static __device__ __inline__ int64_t offset_of(int64_t i, const ls__strided &s, int ndim,
                                               const int64_t *shape)
{
    int64_t at = 0;
    for (int d = ndim - 1; d >= 0; d--) {
        at += i % shape[d] * s.stride[d];
        i /= shape[d];
    }
    return at;
}

/* ---- a block together ---------------------------------------------------------------------- */

struct add {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a + b;
    }
};

struct larger { /* a NaN is passed over */
    template <class T> __device__ T operator()(T a, T b) const
    {
        return a < b ? b : a;
    }
};

struct smaller {
    template <class T> __device__ T operator()(T a, T b) const
    {
        return b < a ? b : a;
    }
};

#define SQUARE 16 /* of threads: SQUARE * SQUARE are a block */

/* The values of all threads, combined in two steps; every thread gets the result. */
template <class F, class T> static __device__ __inline__ T combine(T x, F f)
{
    __shared__ T part[LS__CUDA_THREADS], some[SQUARE];
    part[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x < SQUARE) {
        T own = part[threadIdx.x];
        for (int i = 1; i < SQUARE; i++) {
            own = f(own, part[threadIdx.x + i * SQUARE]);
        }
        some[threadIdx.x] = own;
    }
    __syncthreads(); /* behind the next first one, too, nobody reads `some` any more */
    T all = some[0];
    for (int i = 1; i < SQUARE; i++) {
        all = f(all, some[i]);
    }
    return all;
}

template <class T> static __device__ __inline__ T sum_of(T x)
{
    return combine(x, add());
}

/* ---- a tile of columns ----------------------------------------------------------------------
 * A block has LS__CUDA_TILE columns, one for each thread of a line; its lines take turns at the rows,
 * so that neighbours read neighbours. The first line gets the sums. */

#define LINES (LS__CUDA_THREADS / LS__CUDA_TILE)

static __device__ __inline__ int64_t tile_column(int64_t tile)
{
    return tile * LS__CUDA_TILE + threadIdx.x % LS__CUDA_TILE;
}

static __device__ __inline__ unsigned tile_line(void)
{
    return threadIdx.x / LS__CUDA_TILE;
}

template <class T> static __device__ __inline__ T sum_of_lines(T x)
{
    __shared__ T part[LS__CUDA_THREADS];
    part[threadIdx.x] = x;
    __syncthreads();
    T all = part[threadIdx.x % LS__CUDA_TILE];
    for (int line = 1; line < LINES; line++) {
        all += part[line * LS__CUDA_TILE + threadIdx.x % LS__CUDA_TILE];
    }
    __syncthreads();
    return all;
}

#endif
