/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16 in kernels whose loops are float32: a block is widened into a buffer on the stack, the
 * float32 loop runs on it, the result is narrowed. The buffer stays in the first-level cache, so
 * loops that memory limits gain as much as the smaller elements save, and none is written twice. */
#ifndef LS_KERNEL_CPU_HALVES_H
#define LS_KERNEL_CPU_HALVES_H

#include "base/half.h"
#include "kernel/cpu/isa.h"

#define LS__HALF_BLOCK 2048 /* elements of such a buffer: 8 KiB, several fit in the cache */

LS__INLINE void ls__halves_widen(float *restrict out, const ls__bfloat16 *restrict in,
                                 int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = ls__bfloat16_widen(in[i]);
    }
}

LS__INLINE void ls__halves_narrow(ls__bfloat16 *restrict out, const float *restrict in,
                                  int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        out[i] = ls__bfloat16_round(in[i]);
    }
}

static inline ls__real ls__real_of(const void *at, bool half)
{
    return (ls__real){.at = (void *)(uintptr_t)at, .half = half};
}

/* `count` numbers from element `at` on: where they are if they are float32, else in the buffer. */
LS__INLINE const float *ls__real_read(float *buffer, ls__real x, int64_t at, int64_t count)
{
    if (!x.half) {
        return (const float *)x.at + at;
    }
    ls__halves_widen(buffer, (const ls__bfloat16 *)x.at + at, count);
    return buffer;
}

/* Where `count` numbers are to be written from; ls__real_written ends it. */
LS__INLINE float *ls__real_write(float *buffer, ls__real x, int64_t at)
{
    return x.half ? buffer : (float *)x.at + at;
}

LS__INLINE void ls__real_written(const float *buffer, ls__real x, int64_t at, int64_t count)
{
    if (x.half) {
        ls__halves_narrow((ls__bfloat16 *)x.at + at, buffer, count);
    }
}

/* Element i of numbers of either type, for loops that are made for both. */
LS__INLINE float ls__get(const float *x, int64_t i, const bool half)
{
    return half ? ls__bfloat16_widen(((const ls__bfloat16 *)(const void *)x)[i]) : x[i];
}

LS__INLINE void ls__put(float *x, int64_t i, float value, const bool half)
{
    if (half) {
        ((ls__bfloat16 *)(void *)x)[i] = ls__bfloat16_round(value);
    } else {
        x[i] = value;
    }
}

/* The table's kernels for bfloat16, each beside its float32 twin. */
void LS__K(unary_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                       ls_stream *stream);
void LS__K(unary_backward_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                float beta, ls_stream *stream);
void LS__K(unary_block_bf16)(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count);
void LS__K(unary_backward_block_bf16)(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                      const ls__bfloat16 *z, int64_t count, float beta);
void LS__K(binary_bf16)(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t count,
                        ls_stream *stream);
void LS__K(axpby_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                       float beta, ls_stream *stream);
void LS__K(axpby_bf16_by)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, ls__factor alpha,
                          float beta, ls_stream *stream);
void LS__K(sum_squares_bf16)(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream);
void LS__K(sum_rows_bf16)(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                          ls_stream *stream);
void LS__K(cross_entropy_bf16)(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                               const ls__cross_entropy *args, ls_stream *stream);
void LS__K(softmax_bf16)(ls__bfloat16 *out, const ls__bfloat16 *x, int64_t rows, int64_t n,
                         bool log, ls_stream *stream);
void LS__K(softmax_backward_bf16)(ls__bfloat16 *dx, const ls__bfloat16 *dy, const ls__bfloat16 *y,
                                  int64_t rows, int64_t n, bool log, float beta, ls_stream *stream);
void LS__K(layer_norm_bf16)(ls__bfloat16 *y, float *mean, float *rstd, const ls__bfloat16 *x,
                            const float *w, const float *b, int64_t rows, int64_t n, float eps,
                            ls_stream *stream);
void LS__K(layer_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                     float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                     const float *mean, const float *rstd, const float *w,
                                     int64_t rows, int64_t n, void *workspace, ls_stream *stream);
void LS__K(rms_norm_bf16)(ls__bfloat16 *y, float *rstd, const ls__bfloat16 *x, const float *w,
                          int64_t rows, int64_t n, float eps, ls_stream *stream);
void LS__K(rms_norm_backward_bf16)(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                   const ls__bfloat16 *dy, const ls__bfloat16 *x, const float *rstd,
                                   const float *w, int64_t rows, int64_t n, void *workspace,
                                   ls_stream *stream);
void LS__K(dropout_bf16)(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                         const ls__drop *drop, float beta, ls_stream *stream);

#endif
