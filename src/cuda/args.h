/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of every kernel: one struct by value, the same for the C that starts it and the
 * CUDA that reads it. Those of the table's entries are written by entries.py; here are the
 * others, which are parts of an entry. */
#ifndef LS_CUDA_ARGS_H
#define LS_CUDA_ARGS_H

#ifdef __cplusplus
/* kernels.h without the env table, which is C, and its functions for both sides. */
#define LS_BASE_ENV_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef struct ls__env ls__env;
#define inline LS__CUDA_INLINE
#endif
#include "kernel/kernels.h"
#ifdef __cplusplus
#undef inline
#endif

#include "cuda/cuda_entries.h"

#define LS__CUDA_THREADS 256 /* of a block */
#define LS__CUDA_PARTS 1024  /* blocks of a sum over everything, at most */
#define LS__CUDA_TILE 32     /* columns of a block of a sum over rows */
#define LS__CUDA_STEP_PARTS 24
#define LS__CUDA_STEP_CHUNK 8192 /* elements that a block of an optimizer steps */

struct cuda_sum_dims_args { /* dimensions [0,kept) of shape are kept, [kept,ndim) summed over */
    float *out;
    const float *x;
    int kept, ndim;
    int64_t shape[LS__KERNEL_DIMS_MAX], outputs, terms;
    ls__strided strides; /* in x */
    float beta;
};

/* partial[block] = the sum over the block's elements, float64. */
struct cuda_sum_part_args {
    double *partial;
    const void *x;
    int64_t count;
    bool half, squares;
};

struct cuda_sum_end_args {
    float *out;      /* of the sum / divisor; or … */
    double *out_sum; /* … of the sum */
    const double *partial;
    int64_t count;
    double divisor;
    const double *over; /* instead of divisor; NULL: it is not */
};

struct cuda_first_part_args { /* partial[block] = the first element that is not as it must be */
    int64_t *partial;
    const void *x;
    ls_dtype dtype;
    int64_t from, to;
    bool checks_index; /* else looks for numbers that are not finite */
    ls__index_check check;
};

struct cuda_first_end_args {
    int64_t *first;
    const int64_t *partial;
    int64_t count;
    bool checks_index;
    ls__index_check check;
};

struct cuda_count_targets_args {
    double *count;
    const void *target;
    size_t index_bytes;
    int64_t rows, ignore, n;
    const float *weight; /* [n] of each class; NULL: 1 */
};

struct cuda_cross_entropy_rows_args { /* nll: x are log-probabilities */
    double *losses;
    const double *count;
    void *dlogits;
    const void *logits;
    bool half, nll;
    ls__cross_entropy of;
};

struct cuda_vocab_gradient_args {
    void *dlogits;
    const float *dloss;
    const double *count;
    ls__vocab_loss of;
};

struct cuda_bce_part_args {
    double *partial;
    float *dx;
    const float *x, *y;
    int64_t count;
};

struct cuda_norm_gradient_args { /* of layer norm; mean NULL: of rms norm */
    void *dx;
    float beta;
    const void *dy, *x;
    const float *mean, *rstd, *w;
    int64_t rows, n;
    bool half;
    float *rest; /* [rows] out; NULL: of rms norm */
};

struct cuda_norm_weights_args {
    float *dw, *db;
    float beta;
    const void *dy, *x;
    const float *mean, *rstd;
    int64_t rows, n;
    bool half;
    const float *rest; /* of norm_gradient */
};

/* Rows are cut into parts, of which each has a block for each tile of columns. */
struct cuda_batch_norm_sums_args {
    double *part; /* [parts,2,C] */
    int64_t parts;
    ls__batch_norm of;
    double *sums;           /* of the gradient's sums: [2,C] */
    float *mean, *variance; /* of the statistics: [C] */
};

struct cuda_batch_norm_gradient_args {
    const double *sums;
    ls__batch_norm of;
};

struct cuda_attention_args {
    ls__attention of;
    float *delta; /* [B,H,T] of backward */
};

struct cuda_finish_product_args { /* c = acc + bias + beta c; out = op(c) */
    const float *acc;             /* row stride ld_acc; NULL: c itself */
    int64_t ld_acc;
    void *c, *out;
    bool half, activates;
    ls__unary op;
    const float *bias;
    float beta;
    int64_t m, n, ldc;
};

struct cuda_conv_args {
    ls__conv2d of;
    ls__conv2d_data data;
};

/* in [count,rows,columns] -> out [count,columns,rows] */
struct cuda_conv_reorder_args {
    void *out;
    const void *in;
    bool half_out, half_in;
    int64_t count, rows, columns;
    float beta;
};

struct cuda_upsample_args { /* of.rows and columns are the device's */
    ls__upsample2d of;
    float *to;
    const float *from;
    float beta;
};

struct cuda_step_gate_args {
    ls__step_gate of;
};

struct cuda_step_verdict_args {
    int64_t *to;
    const char *checks; /* every `bytes` */
    int64_t count, bytes, rank;
};

struct cuda_step_args {
    ls__step_part part[LS__CUDA_STEP_PARTS];
    const float *gate; /* NaN there: no step is made; NULL: it is */
    int64_t first_block[LS__CUDA_STEP_PARTS + 1];
    float correction[LS__CUDA_STEP_PARTS][2]; /* of adamw: 1 - beta^t */
    int count;
    bool decoupled, nesterov, centered;
    double beta1, beta2, eps, momentum, dampening, alpha;
};

#define CUDA_MORE(X)                                                                               \
    X(sum_dims, 1)                                                                                 \
    X(sum_dims_few, 0)                                                                             \
    X(sum_part, 1)                                                                                 \
    X(sum_end, 1)                                                                                  \
    X(first_part, 1)                                                                               \
    X(first_end, 1)                                                                                \
    X(count_targets, 1)                                                                            \
    X(cross_entropy_rows, 1)                                                                       \
    X(vocab_gradient, 0)                                                                           \
    X(bce_part, 1)                                                                                 \
    X(norm_gradient, 1)                                                                            \
    X(norm_weights, 1)                                                                             \
    X(batch_norm_part, 1)                                                                          \
    X(batch_norm_stats, 0)                                                                         \
    X(batch_norm_sums_part, 1)                                                                     \
    X(batch_norm_sums, 0)                                                                          \
    X(batch_norm_gradient, 0)                                                                      \
    X(finish_product, 0)                                                                           \
    X(conv_forward, 0)                                                                             \
    X(conv_backward_x, 0)                                                                          \
    X(conv_backward_w, 1)                                                                          \
    X(conv_reorder, 0)                                                                             \
    X(upsample_forward, 0)                                                                         \
    X(upsample_backward, 0)                                                                        \
    X(step_gate, 0)                                                                                \
    X(step_verdict, 0)                                                                             \
    X(adamw_parts, 0)                                                                              \
    X(sgd_parts, 0)                                                                                \
    X(rmsprop_parts, 0)                                                                            \
    X(attention_delta, 0)                                                                          \
    X(attention_forward, 1)                                                                        \
    X(attention_forward_wide, 1)                                                                   \
    X(attention_queries, 1)                                                                        \
    X(attention_queries_wide, 1)                                                                   \
    X(attention_keys, 1)                                                                           \
    X(attention_keys_wide, 1)

/* Kernels that share a struct. */
#define cuda_sum_dims_few_args cuda_sum_dims_args
#define cuda_batch_norm_part_args cuda_batch_norm_sums_args
#define cuda_batch_norm_stats_args cuda_batch_norm_sums_args
#define cuda_batch_norm_sums_part_args cuda_batch_norm_sums_args
#define cuda_conv_forward_args cuda_conv_args
#define cuda_conv_backward_x_args cuda_conv_args
#define cuda_conv_backward_w_args cuda_conv_args
#define cuda_upsample_forward_args cuda_upsample_args
#define cuda_upsample_backward_args cuda_upsample_args
#define cuda_adamw_parts_args cuda_step_args
#define cuda_sgd_parts_args cuda_step_args
#define cuda_rmsprop_parts_args cuda_step_args
#define cuda_attention_delta_args cuda_attention_args
#define cuda_attention_forward_args cuda_attention_args
#define cuda_attention_forward_wide_args cuda_attention_args
#define cuda_attention_queries_args cuda_attention_args
#define cuda_attention_queries_wide_args cuda_attention_args
#define cuda_attention_keys_args cuda_attention_args
#define cuda_attention_keys_wide_args cuda_attention_args

#define CUDA_KERNELS(X) CUDA_ENTRIES(X) CUDA_MORE(X)

#endif
