/* SPDX-License-Identifier: Apache-2.0 */
/* More operations on tensors: comparisons, joining and indexing, reductions over any dimensions,
 * sorting, the parts of transformers, and losses. Errors, poisoned tensors, dtypes and layouts are
 * those of tensor.h; names, parameters and results are PyTorch's unless a comment says otherwise.
 * Operations are differentiable unless a comment says "outside the graph".
 */
#ifndef LOCKSTEP_OPS_H
#define LOCKSTEP_OPS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise -------------------------------------------------------------------------- */

LS_API ls_tensor *ls_abs(ls_tensor *a);  /* gradient 0 at 0 */
LS_API ls_tensor *ls_silu(ls_tensor *a); /* a sigmoid(a) */
/* a where a > 0, slope a elsewhere (Maas et al. 2013). PyTorch's slope is 0.01. */
LS_API ls_tensor *ls_leaky_relu(ls_tensor *a, double slope);
LS_API ls_tensor *ls_sin(ls_tensor *a);
LS_API ls_tensor *ls_cos(ls_tensor *a);
LS_API ls_tensor *ls_pow_scalar(ls_tensor *a, double exponent);
/* min(max(a, low), high); -INFINITY or INFINITY means no limit. The gradient passes where low <= a
 * <= high. */
LS_API ls_tensor *ls_clamp(ls_tensor *a, double low, double high);
/* The larger, or smaller, element of each pair; a and b broadcast. The result is NaN if one of the
 * two is. If both are equal, each gets half of the gradient. */
LS_API ls_tensor *ls_maximum(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_minimum(ls_tensor *a, ls_tensor *b);
/* condition (bool) ? a : b for each element; the three tensors broadcast. */
LS_API ls_tensor *ls_where(ls_tensor *condition, ls_tensor *a, ls_tensor *b);

/* ---- comparisons and logic ---------------------------------------------------------------- */

/* a == b, a != b, a < b, a <= b, a > b, a >= b for each element -> bool, outside the graph. a and b
 * broadcast; to compare with a number pass ls_full(LS_SCALAR, dtype, number). Both have the same
 * dtype, any one except float16, or are float32 and bfloat16. Comparisons with NaN are false,
 * except ls_ne. */
LS_API ls_tensor *ls_eq(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_ne(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_lt(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_le(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_gt(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_ge(ls_tensor *a, ls_tensor *b);
/* Logic -> bool, outside the graph: numbers count as true if they are not 0. Dtypes as above. */
LS_API ls_tensor *ls_logical_and(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_logical_or(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_logical_not(ls_tensor *a);

/* ---- integers ----------------------------------------------------------------------------- */

/* Integers of 8 to 64 bits, signed or not, are added, subtracted, multiplied and compared by the
 * functions for floats, outside the graph: ls_add, ls_sub, ls_mul, ls_maximum and ls_minimum of two
 * tensors of one dtype that broadcast, ls_scale and ls_add_scalar with a number that the dtype
 * holds. The result has their dtype and wraps around. ls_sum, ls_sum_dim, ls_sum_dims and ls_cumsum
 * of integers and of bool give int64, so ls_sum(ls_ne(tokens, padding)) counts tokens. */

/* The quotient, rounded towards minus infinity, and what it leaves, with the sign of b (torch.div
 * with rounding_mode="floor", torch.remainder): integers of one dtype, which broadcast. A divisor
 * of 0 is an error that names the element. */
LS_API ls_tensor *ls_floor_div(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_remainder(ls_tensor *a, ls_tensor *b);
/* index (int32 or int64) of any shape -> [bins] int64: how often each number in [0,bins) occurs
 * (torch.bincount with minlength). Others are an error that names the first one. Outside the graph;
 * for sums of weights: ls_index_add to zeros. */
LS_API ls_tensor *ls_bincount(ls_tensor *index, int64_t bins);
/* a of any dtype -> [n,dims of a] int64: the indices of the n elements that are not 0, in row-major
 * order (torch.nonzero). Outside the graph. */
LS_API ls_tensor *ls_nonzero(ls_tensor *a);

/* ---- sequences of numbers ----------------------------------------------------------------- */

/* [n] of any dtype: start, start + step, …, below `end` (for a negative step above it), where n is
 * (end - start) / step rounded up. Values are converted to integers as ls_cast does. */
LS_API ls_tensor *ls_arange(double start, double end, double step, ls_dtype dtype);
/* [count] of any dtype: from start to end, both included, in equal steps. */
LS_API ls_tensor *ls_linspace(double start, double end, int64_t count, ls_dtype dtype);

/* ---- joining and indexing ----------------------------------------------------------------- */

/* [..,n1,..], [..,n2,..], … -> [..,n1+n2+…,..] along `dim` (torch.cat). All have the same dtype, or
 * are float32 and bfloat16, which give float32. */
LS_API ls_tensor *ls_concat(ls_tensor *const *tensors, int count, int dim);
/* Joins tensors of one shape along a new dimension `dim` of the result: [..] -> [..,count,..].
 * Dtypes as for ls_concat. */
LS_API ls_tensor *ls_stack(ls_tensor *const *tensors, int count, int dim);
/* Puts the constant `value` around `a`: before[i] elements in front of dimension i, after[i] behind
 * it (torch.nn.functional.pad, whose list begins with the last dimension). Both shapes align at the
 * right, and dimensions in front of them stay: LS_SHAPE(top, left), LS_SHAPE(bottom, right) pads
 * images. Negative numbers crop. Works for any dtype; float32 and bfloat16 have gradients. */
LS_API ls_tensor *ls_pad(ls_tensor *a, ls_shape before, ls_shape after, double value);
/* Repeats `a` along its dimensions of size 1, and along new leading dimensions, to `shape`; -1
 * keeps a size (torch.Tensor.expand, but as a copy: no two elements of a tensor share memory).
 * Works for any dtype. Operations of two tensors broadcast without this. */
LS_API ls_tensor *ls_expand(ls_tensor *a, ls_shape shape);
/* out[i] becomes a view of the next sizes[i] elements of `a` along `dim`, for i in 0 … count-1; the
 * sizes add up to the dimension (torch.split). After an error all of `out` are poisoned. */
LS_API ls_status ls_split(ls_tensor *a, int dim, const int64_t *sizes, int count, ls_tensor **out);
/* out[i,j,k] = a[index[i,j,k],j,k] for dim 0, and likewise for other dims (torch.gather). `a` has
 * any dtype; float32 and bfloat16 have gradients. `index` (int32 or int64) has the same number of
 * dimensions as `a`; every dimension except `dim` must be no longer than a's. The result has the
 * shape of `index`. An index out of range is an error that names it. */
LS_API ls_tensor *ls_gather_dim(ls_tensor *a, int dim, ls_tensor *index);
/* A copy of `a` with out[index[i,j,k],j,k] += src[i,j,k] for dim 0, and likewise for other dims
 * (torch.scatter_add). Elements are added in the order of `src`. `index` is as above, and no
 * dimension of it may be longer than that of `src`. */
LS_API ls_tensor *ls_scatter_add(ls_tensor *a, int dim, ls_tensor *index, ls_tensor *src);
/* Entries `index` [m] (int32 or int64) of a [..,n,..] along `dim` -> [..,m,..]. */
LS_API ls_tensor *ls_index_select(ls_tensor *a, int dim, ls_tensor *index);
/* A copy of a [..,n,..] with out[..,index[j],..] += src[..,j,..] along `dim` (torch.index_add):
 * index [m] (int32 or int64) in [0,n), src [..,m,..]. Rows are added in the order of `src`. */
LS_API ls_tensor *ls_index_add(ls_tensor *a, int dim, ls_tensor *index, ls_tensor *src);

/* index [..] (int32 or int64) in [0,classes) -> [..,classes] int64: 1 at each index, otherwise 0.
 * Outside the graph. */
LS_API ls_tensor *ls_one_hot(ls_tensor *index, int64_t classes);

/* ---- along and over dimensions ------------------------------------------------------------ */

LS_API ls_tensor *ls_cumsum(ls_tensor *a, int dim); /* cumulative sum, of the same shape */
/* log sum exp(a) over the dimension `dim`, which is removed, or is 1 with keepdim. No exponential
 * overflows. */
LS_API ls_tensor *ls_logsumexp(ls_tensor *a, int dim, bool keepdim);
/* Over the dimensions listed in `dims`, for example LS_SHAPE(0, -1); LS_SCALAR means over all. With
 * keepdim they stay with size 1. A mean or variance over no elements is an error. */
LS_API ls_tensor *ls_sum_dims(ls_tensor *a, ls_shape dims, bool keepdim);
LS_API ls_tensor *ls_mean_dims(ls_tensor *a, ls_shape dims, bool keepdim);
/* The variance; with `unbiased` the sum of squares is divided by n - 1, otherwise by n. */
LS_API ls_tensor *ls_var_dims(ls_tensor *a, ls_shape dims, bool unbiased, bool keepdim);
/* The largest, or smallest, element along `dim`; NaN counts as both. The gradient goes to the first
 * of equal elements. */
LS_API ls_tensor *ls_max_dim(ls_tensor *a, int dim, bool keepdim);
LS_API ls_tensor *ls_min_dim(ls_tensor *a, int dim, bool keepdim);

/* Sorts the elements along `dim`, the smallest first or, with `descending`, the largest first. `a`
 * has any dtype; float32 and bfloat16 have gradients. The sort is stable, as in PyTorch with
 * stable=True, and NaN counts as the largest. *indices (may be NULL) becomes their former
 * positions, of the same shape, int64. `dim` has at most 2^32 - 1 elements. */
LS_API ls_tensor *ls_sort(ls_tensor *a, int dim, bool descending, ls_tensor **indices);
LS_API ls_tensor *ls_argsort(ls_tensor *a, int dim, bool descending); /* only the indices */
/* The first k elements in descending order or, with `largest` false, in ascending order
 * (torch.topk). */
LS_API ls_tensor *ls_topk(ls_tensor *a, int64_t k, int dim, bool largest, ls_tensor **indices);

/* ---- norms --------------------------------------------------------------------------------- */

/* Group normalisation (Wu & He 2018): x [N,C,..] -> the same shape. The channels of a sample are
 * divided into `groups`, and each group is normalised to mean 0 and variance 1; then weight [C] and
 * bias [C] (NULL: none) are applied. PyTorch's eps is 1e-5. */
LS_API ls_tensor *ls_group_norm(ls_tensor *x, int64_t groups, ls_tensor *weight, ls_tensor *bias,
                                double eps);

/* ---- transformers ------------------------------------------------------------------------- */

/* Root mean square normalisation over the last dimension (Zhang & Sennrich 2019): x /
 * sqrt(mean(x^2) + eps) * weight; x [..,C], weight [C] or NULL. */
LS_API ls_tensor *ls_rms_norm(ls_tensor *x, ls_tensor *weight, double eps);
/* Rotary position embedding (Su et al. 2021) in the form of GPT-NeoX and Llama: in x [B,H,T,D], D
 * even, each pair (x_d, x_{d+D/2}) is rotated by the angle (first + t) base^(-2d/D), in radians.
 * `first` is the position of t = 0. The result has the same shape. */
LS_API ls_tensor *ls_rotary(ls_tensor *x, int64_t first, double base);

/* Slower rotation, for sequences longer than those of the first training. A pair that turns less
 * than low_freq_factor times within the original positions turns `factor` times slower, one that
 * turns more than high_freq_factor times as before; between them the frequency changes steadily
 * from one to the other. */
typedef struct ls_rotary_scaling_options {
    size_t size;
    double factor; /* >= 1; 1: not scaled */
    double low_freq_factor, high_freq_factor;
    int64_t original_positions; /* 0: all pairs turn slower ("linear"; Chen et al. 2023) */
} ls_rotary_scaling_options;
/* Llama 3.1's ("rope_type": "llama3"). */
#define LS_DEFAULTS_ls_rotary_scaling_options                                                      \
    .factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_positions = 8192,
LS_DEFAULTS_FUNCTION(rotary_scaling)
/* ls_rotary with scaled frequencies. NULL: they are not scaled. */
LS_API ls_tensor *ls_rotary_scaled(ls_tensor *x, int64_t first, double base,
                                   const ls_rotary_scaling_options *scaling);

typedef struct ls_attention_options {
    size_t size;
    bool causal;     /* query t of T attends to keys 0 … t + S - T, so the last one to all; needs
                        T <= S, since the first queries would see no key */
    ls_tensor *mask; /* NULL, or a float32 tensor that is added to the scores: broadcasts to
                        [B,H,T,S], its last dimension is S; -INFINITY hides a key; no gradient.
                        On a mesh it is equal on all ranks, or divided as q is */
    double dropout;  /* of the weights, as ls_dropout, counted by [B,H,T,S]; pass 0 in evaluation */
    double scale;    /* factor of q k^T; 0: 1/sqrt(D) */
} ls_attention_options;
#define LS_DEFAULTS_ls_attention_options
LS_DEFAULTS_FUNCTION(attention)
/* softmax(scale q k^T + mask) v (Vaswani et al. 2017): q [B,H,T,D], k and v [B,G,S,D] -> [B,H,T,D].
 * H is a multiple of G, and head h uses k and v of h G/H (torch's scaled_dot_product_attention with
 * enable_gqa; grouped queries: Ainslie et al. 2023). A query without any visible key gets 0. */
LS_API ls_tensor *ls_attention(ls_tensor *q, ls_tensor *k, ls_tensor *v,
                               const ls_attention_options *options);

/* ---- losses: a mean -> scalar float32, NaN if nothing counts ------------------------------ */

typedef struct ls_cross_entropy_options {
    size_t size;
    double label_smoothing; /* in [0,1]: this share of the target is spread over all classes */
    int64_t ignore_index;   /* rows with this target are ignored; default -100 */
    double z_loss; /* adds this times (log sum exp logits)^2, a mean over the same rows, which keeps
                      logits small (Chowdhery et al. 2022, section 5: 1e-4); default 0 */
    ls_tensor *weight; /* float32 [C], a constant: what a row of each class counts. The mean is
                          divided by the sum of the weights of the rows' targets, as in PyTorch; the
                          share of label_smoothing counts by its own class. NULL, the default: 1 */
} ls_cross_entropy_options;
#define LS_DEFAULTS_ls_cross_entropy_options .ignore_index = -100,
LS_DEFAULTS_FUNCTION(cross_entropy)
/* The mean negative log-likelihood of `target` [..] (int32 or int64, in [0,C) or ignore_index)
 * under softmax(logits), logits [..,C], over the rows that are not ignored. On a rank without
 * samples the result is NaN, as every mean; such a rank calls ls_backward_weighted with weight
 * 0. */
LS_API ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target,
                                   const ls_cross_entropy_options *options);
/* *weight becomes what the mean of ls_cross_entropy is divided by: the number of rows that are not
 * ignored, or the sum of the weights of their classes. It is the weight of ls_backward_weighted,
 * and of ls_micro_batch, with which ranks and micro-batches of different numbers of tokens train on
 * the mean over all of them. Local. */
LS_API ls_status ls_cross_entropy_weight(ls_tensor *target, const ls_cross_entropy_options *options,
                                         double *weight);
/* The mean of -log_probs[.., target]; log_probs [..,C], target [..] (int32 or int64) in [0,C), or
 * -100 for rows that are ignored. */
LS_API ls_tensor *ls_nll_loss(ls_tensor *log_probs, ls_tensor *target);
/* The mean binary cross-entropy of sigmoid(logits) and target in [0,1], of the same shape. */
LS_API ls_tensor *ls_bce_with_logits(ls_tensor *logits, ls_tensor *target);

/* The mean of |x - y|; x and y have the same shape. */
LS_API ls_tensor *ls_l1_loss(ls_tensor *x, ls_tensor *y);
/* The mean of d^2/2 if |d| <= delta, otherwise of delta (|d| - delta/2), with d = x - y (Huber
 * 1964). PyTorch's delta is 1. */
LS_API ls_tensor *ls_huber_loss(ls_tensor *x, ls_tensor *y, double delta);
/* Huber's loss with delta = beta, divided by beta; beta 0: ls_l1_loss. PyTorch's beta is 1. */
LS_API ls_tensor *ls_smooth_l1_loss(ls_tensor *x, ls_tensor *y, double beta);

typedef enum ls_reduction {
    LS_REDUCTION_MEAN = 0, /* of all elements */
    LS_REDUCTION_SUM = 1,
    LS_REDUCTION_NONE = 2,     /* no reduction: one result for each element */
    LS_REDUCTION_BATCHMEAN = 3 /* the sum, divided by the size of dimension 0 */
} ls_reduction;

typedef struct ls_kl_div_options {
    size_t size;
    ls_reduction reduction; /* LS_REDUCTION_BATCHMEAN gives the divergence of distributions */
    bool log_target;        /* `target` also contains logarithms */
} ls_kl_div_options;
#define LS_DEFAULTS_ls_kl_div_options
LS_DEFAULTS_FUNCTION(kl_div)
/* The Kullback-Leibler divergence of x from target, of the same shape (torch.nn.functional.kl_div).
 * x contains logarithms of probabilities (ls_log_softmax), target probabilities. The term of an
 * element is target (log target - x), or 0 if the target is 0. */
LS_API ls_tensor *ls_kl_div(ls_tensor *x, ls_tensor *target, const ls_kl_div_options *options);

#if !defined(LS_NO_SITES)
#define ls_abs(...) LS_AT(ls_abs(__VA_ARGS__))
#define ls_silu(...) LS_AT(ls_silu(__VA_ARGS__))
#define ls_leaky_relu(...) LS_AT(ls_leaky_relu(__VA_ARGS__))
#define ls_pow_scalar(...) LS_AT(ls_pow_scalar(__VA_ARGS__))
#define ls_clamp(...) LS_AT(ls_clamp(__VA_ARGS__))
#define ls_where(...) LS_AT(ls_where(__VA_ARGS__))
#define ls_concat(...) LS_AT(ls_concat(__VA_ARGS__))
#define ls_split(...) LS_AT(ls_split(__VA_ARGS__))
#define ls_gather_dim(...) LS_AT(ls_gather_dim(__VA_ARGS__))
#define ls_scatter_add(...) LS_AT(ls_scatter_add(__VA_ARGS__))
#define ls_index_select(...) LS_AT(ls_index_select(__VA_ARGS__))
#define ls_index_add(...) LS_AT(ls_index_add(__VA_ARGS__))
#define ls_floor_div(...) LS_AT(ls_floor_div(__VA_ARGS__))
#define ls_remainder(...) LS_AT(ls_remainder(__VA_ARGS__))
#define ls_bincount(...) LS_AT(ls_bincount(__VA_ARGS__))
#define ls_nonzero(...) LS_AT(ls_nonzero(__VA_ARGS__))
#define ls_logsumexp(...) LS_AT(ls_logsumexp(__VA_ARGS__))
#define ls_cumsum(...) LS_AT(ls_cumsum(__VA_ARGS__))
#define ls_sum_dims(...) LS_AT(ls_sum_dims(__VA_ARGS__))
#define ls_mean_dims(...) LS_AT(ls_mean_dims(__VA_ARGS__))
#define ls_var_dims(...) LS_AT(ls_var_dims(__VA_ARGS__))
#define ls_max_dim(...) LS_AT(ls_max_dim(__VA_ARGS__))
#define ls_min_dim(...) LS_AT(ls_min_dim(__VA_ARGS__))
#define ls_rms_norm(...) LS_AT(ls_rms_norm(__VA_ARGS__))
#define ls_rotary(...) LS_AT(ls_rotary(__VA_ARGS__))
#define ls_rotary_scaled(...) LS_AT(ls_rotary_scaled(__VA_ARGS__))
#define ls_attention(...) LS_AT(ls_attention(__VA_ARGS__))
#define ls_cross_entropy(...) LS_AT(ls_cross_entropy(__VA_ARGS__))
#define ls_cross_entropy_weight(...) LS_AT(ls_cross_entropy_weight(__VA_ARGS__))
#define ls_nll_loss(...) LS_AT(ls_nll_loss(__VA_ARGS__))
#define ls_bce_with_logits(...) LS_AT(ls_bce_with_logits(__VA_ARGS__))
#define ls_sin(...) LS_AT(ls_sin(__VA_ARGS__))
#define ls_cos(...) LS_AT(ls_cos(__VA_ARGS__))
#define ls_maximum(...) LS_AT(ls_maximum(__VA_ARGS__))
#define ls_minimum(...) LS_AT(ls_minimum(__VA_ARGS__))
#define ls_eq(...) LS_AT(ls_eq(__VA_ARGS__))
#define ls_ne(...) LS_AT(ls_ne(__VA_ARGS__))
#define ls_lt(...) LS_AT(ls_lt(__VA_ARGS__))
#define ls_le(...) LS_AT(ls_le(__VA_ARGS__))
#define ls_gt(...) LS_AT(ls_gt(__VA_ARGS__))
#define ls_ge(...) LS_AT(ls_ge(__VA_ARGS__))
#define ls_logical_and(...) LS_AT(ls_logical_and(__VA_ARGS__))
#define ls_logical_or(...) LS_AT(ls_logical_or(__VA_ARGS__))
#define ls_logical_not(...) LS_AT(ls_logical_not(__VA_ARGS__))
#define ls_arange(...) LS_AT(ls_arange(__VA_ARGS__))
#define ls_linspace(...) LS_AT(ls_linspace(__VA_ARGS__))
#define ls_stack(...) LS_AT(ls_stack(__VA_ARGS__))
#define ls_pad(...) LS_AT(ls_pad(__VA_ARGS__))
#define ls_expand(...) LS_AT(ls_expand(__VA_ARGS__))
#define ls_one_hot(...) LS_AT(ls_one_hot(__VA_ARGS__))
#define ls_sort(...) LS_AT(ls_sort(__VA_ARGS__))
#define ls_argsort(...) LS_AT(ls_argsort(__VA_ARGS__))
#define ls_topk(...) LS_AT(ls_topk(__VA_ARGS__))
#define ls_group_norm(...) LS_AT(ls_group_norm(__VA_ARGS__))
#define ls_l1_loss(...) LS_AT(ls_l1_loss(__VA_ARGS__))
#define ls_huber_loss(...) LS_AT(ls_huber_loss(__VA_ARGS__))
#define ls_smooth_l1_loss(...) LS_AT(ls_smooth_l1_loss(__VA_ARGS__))
#define ls_kl_div(...) LS_AT(ls_kl_div(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
