/* SPDX-License-Identifier: Apache-2.0 */
/* The plain twins of kernels for bfloat16 (halves.c). */
#ifndef LS_KERNEL_REF_HALVES_H
#define LS_KERNEL_REF_HALVES_H

#include "kernel/kernels.h"

void ls__ref_unary_bf16(ls__unary op, ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                        ls_stream *stream);
void ls__ref_unary_backward_bf16(ls__unary op, ls__bfloat16 *dx, const ls__bfloat16 *dy,
                                 const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t count,
                                 float beta, ls_stream *stream);
void ls__ref_binary_bf16(ls__binary op, ls__real out, ls__real a, ls__real b, int64_t count,
                         ls_stream *stream);
void ls__ref_axpby_bf16(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count, float alpha,
                        float beta, ls_stream *stream);
void ls__ref_axpby_bf16_by(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                           ls__factor alpha, float beta, ls_stream *stream);
void ls__ref_sum_rows_bf16(float *out, const ls__bfloat16 *x, int64_t rows, int64_t n, float beta,
                           ls_stream *stream);
void ls__ref_cross_entropy_bf16(ls__bfloat16 *dlogits, const ls__bfloat16 *logits,
                                const ls__cross_entropy *args, ls_stream *stream);
void ls__ref_dropout_bf16(ls__bfloat16 *out, const ls__bfloat16 *a, int64_t count,
                          const ls__drop *drop, float beta, ls_stream *stream);
void ls__ref_softmax_bf16(ls__bfloat16 *out, const ls__bfloat16 *x, int64_t rows, int64_t n,
                          bool log, ls_stream *stream);
void ls__ref_softmax_backward_bf16(ls__bfloat16 *dx, const ls__bfloat16 *dy, const ls__bfloat16 *y,
                                   int64_t rows, int64_t n, bool log, float beta,
                                   ls_stream *stream);
void ls__ref_layer_norm_bf16(ls__bfloat16 *y, float *mean, float *rstd, const ls__bfloat16 *x,
                             const float *w, const float *b, int64_t rows, int64_t n, float eps,
                             ls_stream *stream);
void ls__ref_layer_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float *db,
                                      float beta_w, const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                      const float *mean, const float *rstd, const float *w,
                                      int64_t rows, int64_t n, void *workspace, ls_stream *stream);
void ls__ref_rms_norm_bf16(ls__bfloat16 *y, float *rstd, const ls__bfloat16 *x, const float *w,
                           int64_t rows, int64_t n, float eps, ls_stream *stream);
void ls__ref_rms_norm_backward_bf16(ls__bfloat16 *dx, float beta_x, float *dw, float beta_w,
                                    const ls__bfloat16 *dy, const ls__bfloat16 *x,
                                    const float *rstd, const float *w, int64_t rows, int64_t n,
                                    void *workspace, ls_stream *stream);

#endif
