/* SPDX-License-Identifier: Apache-2.0 */
/* The plain twin of every kernel: loops a reader can check against the formula, float64 inside and
 * one rounding at the end. Slow on purpose; nothing here is blocked, vectorised or threaded.
 */
#ifndef LS_KERNEL_REF_H
#define LS_KERNEL_REF_H

#include "base/half.h"
#include "kernel/kernels.h"

/* gemm.c */
void ls__ref_gemm(const ls__gemm *g, ls_stream *stream);
void ls__ref_gemm_batch(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                        int64_t stride_c, ls_stream *stream);
void ls__ref_gemm_bf16(const ls__gemm_bf16 *g, ls_stream *stream);
size_t ls__ref_gemm_bf16_workspace(const ls__gemm_bf16 *g);
void ls__ref_linear_rounded(const ls__linear_rounded *args, ls_stream *stream);

/* reduce.c */
void ls__ref_add_rows(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream);
void ls__ref_sum_rows(float *out, const float *x, int64_t rows, int64_t n, float beta,
                      ls_stream *stream);
void ls__ref_sum_cols(float *out, const float *x, int64_t rows, int64_t n, float beta,
                      ls_stream *stream);
double ls__ref_total(const float *x, int64_t count); /* in index order, not rounded */
void ls__ref_sum(float *out, const float *x, int64_t count, double divisor, ls_stream *stream);
void ls__ref_mean_squares(float *out, const float *x, int64_t count, ls_stream *stream);
void ls__ref_sum_squares(double *out, const float *x, int64_t count, ls_stream *stream);
void ls__ref_sum_squares_bf16(double *out, const ls__bfloat16 *x, int64_t count, ls_stream *stream);
void ls__ref_sum_dims(float *out, const float *x, int ndim, const int64_t *shape,
                      const uint8_t *keep, float beta, ls_stream *stream);

/* elementwise.c */
void ls__ref_unary(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream);
void ls__ref_unary_backward(ls__unary op, float *dx, const float *dy, const float *x,
                            const float *y, int64_t count, float beta, ls_stream *stream);
void ls__ref_activation_backward(const ls__activation_grad *g, ls_stream *stream);
size_t ls__ref_activation_backward_workspace(const ls__activation_grad *g);
void ls__ref_map(ls__map op, const double *arg, float *out, const float *a, int64_t count,
                 ls_stream *stream);
void ls__ref_map_backward(ls__map op, const double *arg, float *dx, const float *dy, const float *x,
                          int64_t count, float beta, ls_stream *stream);
void ls__ref_binary(ls__binary op, float *out, const float *a, ls__strided a_strides,
                    const float *b, ls__strided b_strides, int ndim, const int64_t *shape,
                    ls_stream *stream);
void ls__ref_axpby(float *out, const float *a, int64_t count, float alpha, float beta,
                   ls_stream *stream);
void ls__ref_add_scalar(float *out, const float *a, int64_t count, float value, ls_stream *stream);
void ls__ref_fill(float *out, int64_t count, float value, ls_stream *stream);
void ls__ref_axpby_by(float *out, const float *a, int64_t count, ls__factor alpha, float beta,
                      ls_stream *stream);
void ls__ref_fill_by(float *out, int64_t count, ls__factor value, ls_stream *stream);

/* memory.c */
void ls__ref_copy(void *out, const void *in, size_t bytes, ls_stream *stream);
void ls__ref_zero(void *out, size_t bytes, ls_stream *stream);
void ls__ref_increment(int64_t *number, ls_stream *stream);
void ls__ref_nonfinite(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                       ls_stream *stream);
void ls__ref_outside(const ls__index_check *check, ls_stream *stream);

/* layout.c */
void ls__ref_gather(void *out, const void *in, ls__strided in_strides, int ndim,
                    const int64_t *shape, size_t bytes, ls_stream *stream);
void ls__ref_scatter(void *out, ls__strided out_strides, const void *in, int ndim,
                     const int64_t *shape, size_t bytes, float beta, ls_stream *stream);
void ls__ref_embedding(float *out, const float *weight, const ls__lookup *at, ls_stream *stream);
void ls__ref_embedding_backward(float *dweight, const float *dy, const ls__lookup *at,
                                ls_stream *stream);

/* bfloat16.c */
void ls__ref_bfloat16_widen(float *out, const ls__bfloat16 *in, int64_t count, float beta,
                            ls_stream *stream);
void ls__ref_bfloat16_narrow(ls__bfloat16 *out, const float *in, int64_t count, float beta,
                             ls_stream *stream);

/* norm.c */
void ls__ref_softmax(float *out, const float *x, int64_t rows, int64_t n, bool log,
                     ls_stream *stream);
void ls__ref_softmax_backward(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                              bool log, float beta, ls_stream *stream);
void ls__ref_layer_norm(float *y, float *mean, float *rstd, const float *x, const float *w,
                        const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream);
void ls__ref_layer_norm_backward(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                 const float *dy, const float *x, const float *mean,
                                 const float *rstd, const float *w, int64_t rows, int64_t n,
                                 void *workspace, ls_stream *stream);
size_t ls__ref_layer_norm_workspace(int64_t rows, int64_t n);

/* attention.c */
void ls__ref_attention(const ls__attention *a, ls_stream *stream);
void ls__ref_attention_backward(const ls__attention *a, ls_stream *stream);
size_t ls__ref_attention_workspace(const ls__attention *a, bool backward);

/* gru.c */
void ls__ref_gru_step(float *gates, float *h, float *fresh, const float *product,
                      const float *before, int64_t rows, int64_t n, ls_stream *stream);
void ls__ref_gru_step_backward(float *dgates, float *dproduct, float *dh, const float *gates,
                               const float *fresh, const float *before, int64_t rows, int64_t n,
                               ls_stream *stream);

/* lstm.c */
void ls__ref_lstm_step(float *gates, float *h, float *c_next, const float *c, int64_t rows,
                       int64_t n, ls_stream *stream);
void ls__ref_lstm_step_backward(float *dgates, float *dc, const float *dh, const float *gates,
                                const float *c_next, const float *c, int64_t rows, int64_t n,
                                ls_stream *stream);

/* loss.c */
void ls__ref_cross_entropy(const ls__cross_entropy *args, ls_stream *stream);
void ls__ref_nll(const ls__cross_entropy *args, ls_stream *stream);
void ls__ref_bce(float *loss, float *dx, const float *x, const float *y, int64_t count,
                 ls_stream *stream);

/* vocab_loss.c */
void ls__ref_vocab_max(const ls__vocab_loss *a, ls_stream *stream);
void ls__ref_vocab_sums(const ls__vocab_loss *a, ls_stream *stream);
void ls__ref_vocab_loss(float *loss, const ls__vocab_loss *a, ls_stream *stream);
void ls__ref_vocab_loss_backward(void *dlogits, const ls__vocab_loss *a, const float *dloss,
                                 ls_stream *stream);

/* random.c */
uint64_t ls__ref_drop_number(const ls__drop *drop, int64_t i); /* of element i of a call */
void ls__ref_dropout(float *out, const float *a, int64_t count, const ls__drop *drop, float beta,
                     ls_stream *stream);
void ls__ref_random_uniform(float *out, int64_t count, uint64_t first, double low, double high,
                            uint64_t seed, uint64_t stream_id, ls_stream *stream);
void ls__ref_random_normal(float *out, int64_t count, uint64_t first, double mean, double std,
                           uint64_t seed, uint64_t stream_id, ls_stream *stream);

/* conv.c */
void ls__ref_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                    ls_stream *stream);
size_t ls__ref_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                const ls__conv2d_data *d);

/* pool.c */
void ls__ref_max_pool2d(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                        ls_stream *stream);
void ls__ref_max_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 const int32_t *index, ls_stream *stream);
void ls__ref_avg_pool2d(const ls__pool2d *p, float *y, const float *x, ls_stream *stream);
void ls__ref_avg_pool2d_backward(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                 ls_stream *stream);

/* batch_norm.c */
void ls__ref_batch_norm_stats(const ls__batch_norm *n, float *mean, float *variance,
                              ls_stream *stream);
void ls__ref_batch_norm_rstd(float *rstd, const float *variance, int64_t channels, double eps,
                             ls_stream *stream);
void ls__ref_batch_norm(const ls__batch_norm *n, ls_stream *stream);
void ls__ref_batch_norm_backward(const ls__batch_norm *n, ls_stream *stream);
size_t ls__ref_batch_norm_workspace(const ls__batch_norm *n);

/* compare.c */
/* Element i of a contiguous array, exactly. */
long double ls__ref_load(const void *from, ls_dtype dtype, int64_t i);
void ls__ref_compare(const ls__comparison *args, ls_stream *stream);

/* top.c */
void ls__ref_top(int64_t *index, const void *x, ls_dtype dtype, int64_t rows, int64_t n, int64_t k,
                 bool largest, ls_stream *stream);

/* upsample.c */
void ls__ref_upsample2d(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream);
void ls__ref_upsample2d_backward(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                 ls_stream *stream);

/* optim.c */
void ls__ref_adamw(const ls__adamw_args *args, ls_stream *stream);
void ls__ref_sgd(const ls__sgd_args *args, ls_stream *stream);
void ls__ref_rmsprop(const ls__rmsprop_args *args, ls_stream *stream);

/* gather_scatter.c */
void ls__ref_where(float *out, const uint8_t *c, ls__strided c_strides, const float *a,
                   ls__strided a_strides, const float *b, ls__strided b_strides, int ndim,
                   const int64_t *shape, ls_stream *stream);
void ls__ref_pick(const ls__pick *args, ls_stream *stream);
void ls__ref_put_add(const ls__pick *args, ls_stream *stream);

/* cumulative.c */
void ls__ref_cumsum(float *out, const float *x, int64_t outer, int64_t n, int64_t inner,
                    bool reverse, float beta, ls_stream *stream);
void ls__ref_extreme(float *out, int64_t *index, const float *x, int64_t outer, int64_t n,
                     int64_t inner, bool least, ls_stream *stream);
void ls__ref_variance(float *out, float *mean, const float *x, int64_t rows, int64_t n,
                      double divisor, ls_stream *stream);
void ls__ref_variance_backward(float *dx, const float *dy, const float *x, const float *mean,
                               int64_t rows, int64_t n, double divisor, float beta,
                               ls_stream *stream);

/* rms_norm.c */
void ls__ref_rms_norm(float *y, float *rstd, const float *x, const float *w, int64_t rows,
                      int64_t n, float eps, ls_stream *stream);
void ls__ref_rms_norm_backward(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                               const float *x, const float *rstd, const float *w, int64_t rows,
                               int64_t n, void *workspace, ls_stream *stream);

/* rotary.c */
void ls__ref_rotary(const ls__rotary *args, ls_stream *stream);
size_t ls__ref_rotary_workspace(const ls__rotary *args);

/* Stores value + beta * *out, where beta 0 does not read *out (it may hold anything). */
static inline void ls__ref_store(float *out, double value, float beta)
{
    *out = (float)(beta == 0.0f ? value : value + (double)beta * (double)*out);
}

/* Element `at` of float32, or of bfloat16. */
static inline double ls__ref_read(const void *x, bool half, int64_t at)
{
    return (double)(half ? ls__bfloat16_widen(((const ls__bfloat16 *)x)[at])
                         : ((const float *)x)[at]);
}

/* Like ls__ref_store, and rounded once. */
static inline void ls__ref_write(void *out, bool half, int64_t at, double value, float beta)
{
    float to = beta == 0.0f ? 0.0f : (float)ls__ref_read(out, half, at);
    ls__ref_store(&to, value, beta);
    if (half) {
        ((ls__bfloat16 *)out)[at] = ls__bfloat16_round(to);
    } else {
        ((float *)out)[at] = to;
    }
}

static inline int64_t ls__ref_index(const void *index, size_t index_bytes, int64_t i)
{
    return index_bytes == 4 ? ((const int32_t *)index)[i] : ((const int64_t *)index)[i];
}

/* An odometer over shape[ndim]: advances `at` by one element in row-major order. */
static inline void ls__ref_next(int64_t *at, int ndim, const int64_t *shape)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++at[d] < shape[d]) {
            return;
        }
        at[d] = 0;
    }
}

static inline int64_t ls__ref_count(int ndim, const int64_t *shape)
{
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

static inline int64_t ls__ref_offset(const int64_t *at, ls__strided strides, int ndim)
{
    int64_t offset = 0;
    for (int d = 0; d < ndim; d++) {
        offset += at[d] * strides.stride[d];
    }
    return offset;
}

#endif
