/* SPDX-License-Identifier: Apache-2.0 */
/* Included by every file that is built once per instruction set.
 *
 * The build compiles these files three times on x86-64, with -march of the levels v4, v3 and base,
 * LS__ISA naming the variant and LS__LANES its float32 lanes. LS__K(x) is the symbol of this
 * variant, so the three stand side by side in one library and table.c chooses among their tables.
 */
#ifndef LS_KERNEL_CPU_ISA_H
#define LS_KERNEL_CPU_ISA_H

#include "kernel/cpu/threads.h"
#include "kernel/kernels.h"

#define LS__PASTE_(isa, name) ls__##isa##_##name
#define LS__PASTE(isa, name) LS__PASTE_(isa, name)
#define LS__K(name) LS__PASTE(LS__ISA, name)

#define LS__INLINE static inline __attribute__((always_inline))
#define LS__VEC_BYTES (LS__LANES * 4)
#define LS__BLOCK 16384 /* elements of one task of an elementwise loop: 64 KiB, within the L2 */

typedef float ls__vec __attribute__((vector_size(LS__VEC_BYTES)));
typedef int32_t ls__vec_mask __attribute__((vector_size(LS__VEC_BYTES)));
typedef float ls__vec_unaligned __attribute__((vector_size(LS__VEC_BYTES), aligned(4), may_alias));

LS__INLINE ls__vec ls__load(const float *p)
{
    return *(const ls__vec_unaligned *)p;
}

LS__INLINE void ls__store(float *p, ls__vec v)
{
    *(ls__vec_unaligned *)p = v;
}

LS__INLINE int64_t ls__min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* gemm.c: through oneDNN or the built-in kernel, whichever is faster for the shape. */
void LS__K(gemm)(const ls__gemm *g, ls_stream *stream);
void LS__K(gemm_batch)(const ls__gemm *g, int64_t batch, int64_t stride_a, int64_t stride_b,
                       int64_t stride_c, ls_stream *stream);
/* gemm_builtin.c: on the calling thread alone. */
void LS__K(gemm_builtin)(const ls__gemm *g);

/* gemm_bf16.c, gemm_bf16_builtin.c: one matrix, on the calling thread alone */
void LS__K(gemm_bf16)(const ls__gemm_bf16 *g, ls_stream *stream);
size_t LS__K(gemm_bf16_workspace)(const ls__gemm_bf16 *g);
void LS__K(gemm_bf16_builtin)(const ls__gemm_bf16 *g);

/* linear_rounded.c */
void LS__K(linear_rounded)(const ls__linear_rounded *args, ls_stream *stream);

/* reduce.c */
void LS__K(add_rows)(float *y, const float *bias, int64_t rows, int64_t n, ls_stream *stream);
void LS__K(sum_rows)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream);
void LS__K(sum_cols)(float *out, const float *x, int64_t rows, int64_t n, float beta,
                     ls_stream *stream);
void LS__K(sum)(float *out, const float *x, int64_t count, double divisor, ls_stream *stream);
void LS__K(mean_squares)(float *out, const float *x, int64_t count, ls_stream *stream);
void LS__K(sum_squares)(double *out, const float *x, int64_t count, ls_stream *stream);
void LS__K(activation_backward)(const ls__activation_grad *g, ls_stream *stream);
size_t LS__K(activation_backward_workspace)(const ls__activation_grad *g);
void LS__K(sum_dims)(float *out, const float *x, int ndim, const int64_t *shape,
                     const uint8_t *keep, float beta, ls_stream *stream);

/* unary.c */
void LS__K(unary)(ls__unary op, float *out, const float *a, int64_t count, ls_stream *stream);
void LS__K(unary_backward)(ls__unary op, float *dx, const float *dy, const float *x, const float *y,
                           int64_t count, float beta, ls_stream *stream);

/* the same on the calling thread; z as ls__unary_reads has it */
void LS__K(unary_block)(ls__unary op, float *out, const float *a, int64_t count);
/* c += bias, out = op(c); out may be c */
void LS__K(unary_biased_block)(ls__unary op, float *c, float *out, const float *bias,
                               int64_t count);
void LS__K(unary_backward_block)(ls__unary op, float *dx, const float *dy, const float *z,
                                 int64_t count, float beta);
/* Which of three a derivative is written in. */
LS__INLINE const void *ls__unary_reads(ls__unary op, const void *dy, const void *x, const void *y)
{
    bool output = op == LS__UNARY_EXP || op == LS__UNARY_SQRT || op == LS__UNARY_TANH ||
                  op == LS__UNARY_SIGMOID;
    return output ? y : op == LS__UNARY_NEG ? dy : x;
}

/* elementwise.c */
void LS__K(binary)(ls__binary op, float *out, const float *a, ls__strided a_strides, const float *b,
                   ls__strided b_strides, int ndim, const int64_t *shape, ls_stream *stream);
void LS__K(axpby)(float *out, const float *a, int64_t count, float alpha, float beta,
                  ls_stream *stream);
void LS__K(add_scalar)(float *out, const float *a, int64_t count, float value, ls_stream *stream);
void LS__K(fill)(float *out, int64_t count, float value, ls_stream *stream);
void LS__K(axpby_by)(float *out, const float *a, int64_t count, ls__factor alpha, float beta,
                     ls_stream *stream);
void LS__K(fill_by)(float *out, int64_t count, ls__factor value, ls_stream *stream);

/* memory.c */
void LS__K(copy)(void *out, const void *in, size_t bytes, ls_stream *stream);
void LS__K(zero)(void *out, size_t bytes, ls_stream *stream);
void LS__K(increment)(int64_t *number, ls_stream *stream);
void LS__K(nonfinite)(int64_t *first, const void *x, ls_dtype dtype, int64_t from, int64_t to,
                      ls_stream *stream);
void LS__K(outside)(const ls__index_check *check, ls_stream *stream);

/* layout.c */
void LS__K(gather)(void *out, const void *in, ls__strided in_strides, int ndim,
                   const int64_t *shape, size_t bytes, ls_stream *stream);
void LS__K(scatter)(void *out, ls__strided out_strides, const void *in, int ndim,
                    const int64_t *shape, size_t bytes, float beta, ls_stream *stream);
void LS__K(embedding)(float *out, const float *weight, const ls__lookup *at, ls_stream *stream);
void LS__K(embedding_backward)(float *dweight, const float *dy, const ls__lookup *at,
                               ls_stream *stream);

/* bfloat16.c */
void LS__K(bfloat16_widen)(float *out, const ls__bfloat16 *in, int64_t count, float beta,
                           ls_stream *stream);
void LS__K(bfloat16_narrow)(ls__bfloat16 *out, const float *in, int64_t count, float beta,
                            ls_stream *stream);

/* norm.c */
void LS__K(softmax)(float *out, const float *x, int64_t rows, int64_t n, bool log,
                    ls_stream *stream);
void LS__K(softmax_backward)(float *dx, const float *dy, const float *y, int64_t rows, int64_t n,
                             bool log, float beta, ls_stream *stream);
void LS__K(layer_norm)(float *y, float *mean, float *rstd, const float *x, const float *w,
                       const float *b, int64_t rows, int64_t n, float eps, ls_stream *stream);
void LS__K(layer_norm_backward)(float *dx, float beta_x, float *dw, float *db, float beta_w,
                                const float *dy, const float *x, const float *mean,
                                const float *rstd, const float *w, int64_t rows, int64_t n,
                                void *workspace, ls_stream *stream);
size_t LS__K(layer_norm_workspace)(int64_t rows, int64_t n);

/* attention.c */
void LS__K(attention)(const ls__attention *a, ls_stream *stream);
void LS__K(attention_backward)(const ls__attention *a, ls_stream *stream);
size_t LS__K(attention_workspace)(const ls__attention *a, bool backward);

/* gru.c */
void LS__K(gru_step)(float *gates, float *h, float *fresh, const float *product,
                     const float *before, int64_t rows, int64_t n, ls_stream *stream);
void LS__K(gru_step_backward)(float *dgates, float *dproduct, float *dh, const float *gates,
                              const float *fresh, const float *before, int64_t rows, int64_t n,
                              ls_stream *stream);

/* lstm.c */
void LS__K(lstm_step)(float *gates, float *h, float *c_next, const float *c, int64_t rows,
                      int64_t n, ls_stream *stream);
void LS__K(lstm_step_backward)(float *dgates, float *dc, const float *dh, const float *gates,
                               const float *c_next, const float *c, int64_t rows, int64_t n,
                               ls_stream *stream);

/* loss.c */
void LS__K(cross_entropy)(const ls__cross_entropy *args, ls_stream *stream);
void LS__K(nll)(const ls__cross_entropy *args, ls_stream *stream);
void LS__K(bce)(float *loss, float *dx, const float *x, const float *y, int64_t count,
                ls_stream *stream);

/* vocab_loss.c */
void LS__K(vocab_max)(const ls__vocab_loss *a, ls_stream *stream);
void LS__K(vocab_sums)(const ls__vocab_loss *a, ls_stream *stream);
void LS__K(vocab_loss)(float *loss, const ls__vocab_loss *a, ls_stream *stream);
void LS__K(vocab_loss_backward)(void *dlogits, const ls__vocab_loss *a, const float *dloss,
                                ls_stream *stream);

/* dropout.c */
void LS__K(dropout)(float *out, const float *a, int64_t count, const ls__drop *drop, float beta,
                    ls_stream *stream);

/* random.c */
void LS__K(random_uniform)(float *out, int64_t count, uint64_t first, double low, double high,
                           uint64_t seed, uint64_t stream_id, ls_stream *stream);
void LS__K(random_normal)(float *out, int64_t count, uint64_t first, double mean, double std,
                          uint64_t seed, uint64_t stream_id, ls_stream *stream);

/* conv.c */
void LS__K(conv2d)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                   ls_stream *stream);
size_t LS__K(conv2d_workspace)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d);
void LS__K(conv2d_builtin)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d);
/* conv_widened.c: of bfloat16, where no library has kernels for it */
void LS__K(conv2d_widened)(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                           ls_stream *stream);
size_t LS__K(conv2d_widened_workspace)(const ls__conv2d *c, ls__conv2d_pass pass,
                                       const ls__conv2d_data *d);

/* pool.c */
void LS__K(max_pool2d)(const ls__pool2d *p, float *y, int32_t *index, const float *x,
                       ls_stream *stream);
void LS__K(max_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                const int32_t *index, ls_stream *stream);
void LS__K(avg_pool2d)(const ls__pool2d *p, float *y, const float *x, ls_stream *stream);
void LS__K(avg_pool2d_backward)(const ls__pool2d *p, float *dx, float beta, const float *dy,
                                ls_stream *stream);

/* batch_norm.c */
void LS__K(batch_norm_stats)(const ls__batch_norm *n, float *mean, float *variance,
                             ls_stream *stream);
void LS__K(batch_norm_rstd)(float *rstd, const float *variance, int64_t channels, double eps,
                            ls_stream *stream);
void LS__K(batch_norm)(const ls__batch_norm *n, ls_stream *stream);
void LS__K(batch_norm_backward)(const ls__batch_norm *n, ls_stream *stream);
size_t LS__K(batch_norm_workspace)(const ls__batch_norm *n);

/* compare.c */
void LS__K(compare)(const ls__comparison *args, ls_stream *stream);

/* top.c */
void LS__K(top)(int64_t *index, const void *x, ls_dtype dtype, int64_t rows, int64_t n, int64_t k,
                bool largest, ls_stream *stream);

/* upsample.c */
void LS__K(upsample2d)(const ls__upsample2d *u, float *y, const float *x, ls_stream *stream);
void LS__K(upsample2d_backward)(const ls__upsample2d *u, float *dx, float beta, const float *dy,
                                ls_stream *stream);

/* optim.c */
void LS__K(adamw)(const ls__adamw_args *args, ls_stream *stream);
void LS__K(sgd)(const ls__sgd_args *args, ls_stream *stream);
void LS__K(rmsprop)(const ls__rmsprop_args *args, ls_stream *stream);

/* map.c */
void LS__K(map)(ls__map op, const double *arg, float *out, const float *a, int64_t count,
                ls_stream *stream);
void LS__K(map_backward)(ls__map op, const double *arg, float *dx, const float *dy, const float *x,
                         int64_t count, float beta, ls_stream *stream);

/* gather_scatter.c */
void LS__K(where)(float *out, const uint8_t *c, ls__strided c_strides, const float *a,
                  ls__strided a_strides, const float *b, ls__strided b_strides, int ndim,
                  const int64_t *shape, ls_stream *stream);
void LS__K(pick)(const ls__pick *args, ls_stream *stream);
void LS__K(put_add)(const ls__pick *args, ls_stream *stream);

/* cumulative.c */
void LS__K(cumsum)(float *out, const float *x, int64_t outer, int64_t n, int64_t inner,
                   bool reverse, float beta, ls_stream *stream);
void LS__K(extreme)(float *out, int64_t *index, const float *x, int64_t outer, int64_t n,
                    int64_t inner, bool least, ls_stream *stream);
void LS__K(variance)(float *out, float *mean, const float *x, int64_t rows, int64_t n,
                     double divisor, ls_stream *stream);
void LS__K(variance_backward)(float *dx, const float *dy, const float *x, const float *mean,
                              int64_t rows, int64_t n, double divisor, float beta,
                              ls_stream *stream);

/* rms_norm.c */
void LS__K(rms_norm)(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t n,
                     float eps, ls_stream *stream);
void LS__K(rms_norm_backward)(float *dx, float beta_x, float *dw, float beta_w, const float *dy,
                              const float *x, const float *rstd, const float *w, int64_t rows,
                              int64_t n, void *workspace, ls_stream *stream);

/* rotary.c */
void LS__K(rotary)(const ls__rotary *args, ls_stream *stream);
size_t LS__K(rotary_workspace)(const ls__rotary *args);

#endif
