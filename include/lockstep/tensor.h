/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: strided views of reference-counted storage, made by operations, owned by scopes.
 *
 * Lifetime. A tensor made by an operation belongs to the innermost scope of its thread and is freed
 * when the scope ends. ls_keep detaches it from the scope; then ls_free must free it. `LS_SCOPE;`
 * opens a scope until the end of the block. A tensor made outside any scope lives until ls_free or
 * ls_finalize. Using a handle after its tensor was freed is an error (LS_ERR_STALE), not a crash.
 * Tensors in a scope may be used by its thread only; kept ones by any thread, one thread at a time.
 *
 * Errors. Operations never return NULL. A failed operation returns a *poisoned* tensor, which
 * carries the first error through all further operations, so ls_relu(ls_matmul(x, w)) needs no
 * check of each call; ls_item, ls_backward, ls_tensor_status and ls_data report the error. Errors
 * of operations are LS_ERR_INVALID (shapes, dtypes, arguments), LS_ERR_STALE and LS_ERR_MEMORY. No
 * operation is collective.
 *
 * Shapes are written as [B,T,C]. Elementwise operations broadcast as in NumPy and PyTorch: shapes
 * are aligned at the right, and a dimension of 1 is repeated. Layouts are row-major by default.
 * Names, parameters and results are PyTorch's unless a comment says otherwise. ops.h has more
 * operations.
 *
 * Types. Operations take float32 or bfloat16 unless a comment says otherwise. With bfloat16 they
 * compute in float32 and round the result once, to nearest even. The result is bfloat16 if all
 * inputs are, otherwise float32 (PyTorch's promotion); but norms return the type of x, embeddings
 * that of the weight, and losses float32. A gradient has the type of its tensor. Parameters of
 * modules are float32.
 */
#ifndef LOCKSTEP_TENSOR_H
#define LOCKSTEP_TENSOR_H

#include <lockstep/runtime.h>
#include <lockstep/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_tensor ls_tensor;
typedef struct ls_scope ls_scope;

typedef struct ls_shape {
    int ndim; /* 0: a scalar */
    int64_t dim[LS_DIMS_MAX];
} ls_shape;

#ifndef __cplusplus
#define LS_SHAPE(...)                                                                              \
    ((ls_shape){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})
#define LS_SCALAR ((ls_shape){0, {0}})
#endif

/* ---- scopes ------------------------------------------------------------------------------- */

LS_API ls_scope *ls_scope_enter(void); /* opens the new innermost scope of this thread */
/* Ends the scope, suspended or not, and those inside it, and frees their tensors. */
LS_API void ls_scope_leave(ls_scope *scope);

/* Several scopes side by side, for example one for each micro-batch of a pipeline: a suspended
 * scope keeps its tensors and graph, and takes no part until it is resumed.
 *
 *     ls_scope *scope = ls_scope_enter();      // forward of a micro-batch
 *     CHECK(ls_scope_suspend(scope));          // the scope around it is the innermost again
 *     …                                        // other micro-batches
 *     CHECK(ls_scope_resume(scope));           // its backward
 *     ls_scope_leave(scope);
 *
 * ls_scope_suspend takes the innermost scope; ls_scope_resume makes it the innermost one again,
 * where it was entered: in the same scope of the same thread. Scopes may be resumed in any order.
 * Tensors of a suspended scope stay valid and may be read and written; to continue their graph, or
 * to call ls_backward on it, resume the scope. A scope that ends also ends those that are suspended
 * in it. LS_ERR_STATE, and nothing changes: the scope is not one that this thread has entered, is
 * not the innermost (suspend), was entered in another scope than the innermost (resume), or is
 * suspended already or not at all. In the steady state nothing is allocated. */
LS_API ls_status ls_scope_suspend(ls_scope *scope);
LS_API ls_status ls_scope_resume(ls_scope *scope);

/* LS_SCOPE; is a declaration that opens a scope until the end of the enclosing block:
 *     for (int64_t step = 0; step < steps; step++) {
 *         LS_SCOPE;
 *         … if (loss is good enough) break;
 *     }
 * The macro contains no loop, so `break`, `continue`, `return` and `goto` have their usual meaning,
 * and each of them ends the scope when it leaves the block. Scopes nest. The macro needs the
 * cleanup attribute (gcc, clang); with other compilers call ls_scope_enter and ls_scope_leave. C++
 * programs may use lockstep::scope (lockstep.hpp). */
#if defined(__GNUC__)
static inline void ls_scope_cleanup_(ls_scope **scope)
{
    ls_scope_leave(*scope);
}
#define LS_SCOPE                                                                                   \
    ls_scope *LS_ON_LINE(ls_scope_here_) LS_UNTIL_END_(ls_scope_cleanup_) = ls_scope_enter()
#endif

/* Moves `t` out of its scope, so that it lives until ls_free. The graph stays in the scope and is
 * freed with it, so `t` no longer requires gradients unless it is a leaf (a parameter). Returns
 * t. */
LS_API ls_tensor *ls_keep(ls_tensor *t);
/* Frees a kept tensor, or a tensor of a scope before the scope ends; NULL is allowed. */
LS_API void ls_free(ls_tensor *t);

/* ---- making ------------------------------------------------------------------------------- */

/* New tensors of any dtype. ls_empty leaves the elements uninitialised. */
LS_API ls_tensor *ls_empty(ls_shape shape, ls_dtype dtype);
LS_API ls_tensor *ls_zeros(ls_shape shape, ls_dtype dtype);
LS_API ls_tensor *ls_ones(ls_shape shape, ls_dtype dtype);
LS_API ls_tensor *ls_full(ls_shape shape, ls_dtype dtype, double value);
/* Copies row-major elements of `dtype` (torch.tensor). */
LS_API ls_tensor *ls_from_data(const void *data, ls_shape shape, ls_dtype dtype);
/* A view of the caller's memory (torch.from_numpy), which must outlive every use of the tensor. */
LS_API ls_tensor *ls_from_memory(void *data, ls_shape shape, ls_dtype dtype);
/* float32, uniform in [0,1) and standard normal. Like ls_dropout, each call within a step uses its
 * own Philox stream, in which elements are counted from the step's sample offset (random.h). */
LS_API ls_tensor *ls_rand(ls_shape shape);
LS_API ls_tensor *ls_randn(ls_shape shape);

/* ---- mixed precision ---------------------------------------------------------------------- */

/* LS_AUTOCAST(true); (torch.autocast("cpu", torch.bfloat16)): until the end of the block, products
 * (ls_linear, ls_matmul, ls_attention, ls_lstm, ls_gru, ls_conv2d) convert float32 tensors to
 * bfloat16 and return bfloat16. Softmax and losses return float32; all other operations follow the
 * types of their arguments. Parameters stay float32 and get float32 gradients, so they are the
 * master weights. Gradients need no scaling, because bfloat16 has the range of float32. Run the
 * forward pass inside the block; ls_backward uses the recorded types, and ls_recompute repeats
 * them. The mode belongs to the thread; blocks nest, and LS_AUTOCAST(false); disables it. A
 * declaration, like LS_SCOPE. */
LS_API bool ls_set_autocast(bool enabled); /* returns the previous mode of this thread */
#if defined(__GNUC__)
static inline void ls_autocast_cleanup_(const bool *before)
{
    (void)ls_set_autocast(*before);
}
#define LS_AUTOCAST(enabled)                                                                       \
    const bool LS_ON_LINE(ls_autocast_before_) LS_UNTIL_END_(ls_autocast_cleanup_) =               \
        ls_set_autocast(enabled)
#endif

/* ---- access ------------------------------------------------------------------------------- */

LS_API ls_status ls_tensor_status(const ls_tensor *t); /* LS_OK, or a poisoned tensor's error */
LS_API int ls_ndim(const ls_tensor *t);
LS_API int64_t ls_size(const ls_tensor *t, int dim); /* negative dim counts from the end */
LS_API ls_shape ls_shape_of(const ls_tensor *t);
LS_API int64_t ls_numel(const ls_tensor *t); /* number of elements */
LS_API ls_dtype ls_dtype_of(const ls_tensor *t);
LS_API bool ls_is_contiguous(const ls_tensor *t);
/* The first element of a contiguous tensor in host memory, the only kind that this release makes;
 * borrowed while the tensor lives. NULL with an error set for other tensors, whose elements
 * ls_copy_out and ls_copy_in reach. */
LS_API void *ls_data(ls_tensor *t);
/* The value of a tensor with one element, of any dtype; LS_ERR_INVALID for other tensors. */
LS_API ls_status ls_item(ls_tensor *t, double *value);
/* Copy all elements out of, or into, a tensor of any dtype and layout: row-major, without
 * conversion. `bytes` is the size of the caller's memory and must equal that of the elements. */
LS_API ls_status ls_copy_out(ls_tensor *t, void *out, size_t bytes);
LS_API ls_status ls_copy_in(ls_tensor *t, const void *in, size_t bytes);

/* Says that `t` is the part of a larger tensor of shape `whole` whose first element has the indices
 * `first`, for tensor parallelism: ls_fill_uniform, ls_fill_normal and ls_fill_kaiming_normal then
 * give `t` the values that the whole tensor would have there. Call it before the values are used.
 * The states of modules and optimizers show `t` as this slice of the whole, so a checkpoint of all
 * parts can be loaded in any other cut.
 * LS_ERR_INVALID if the part does not lie within the whole or `t` is a view; LS_ERR_STATE if the
 * values were used. */
LS_API ls_status ls_tensor_set_part(ls_tensor *t, ls_shape whole, ls_shape first);
LS_API ls_status ls_print(ls_tensor *t); /* to stdout, like torch; large tensors are summarised */

/* ---- views (no copy) and copies ----------------------------------------------------------- */

/* One dimension may be -1 and follows from the others. A view where the layout allows one,
 * otherwise a copy. */
LS_API ls_tensor *ls_reshape(ls_tensor *t, ls_shape shape);
LS_API ls_tensor *ls_transpose(ls_tensor *t, int dim0, int dim1);
/* Dimension i of the result is dimension order.dim[i] of t. */
LS_API ls_tensor *ls_permute(ls_tensor *t, ls_shape order);
LS_API ls_tensor *ls_slice(ls_tensor *t, int dim, int64_t start, int64_t end); /* [start,end) */
LS_API ls_tensor *ls_contiguous(ls_tensor *t); /* t itself if it is row-major, otherwise a copy */
LS_API ls_tensor *ls_clone(ls_tensor *t);
LS_API ls_tensor *ls_detach(ls_tensor *t); /* a view of the same storage, outside the graph */
/* To floats, values are rounded to nearest even; to integers, they are truncated towards zero and
 * saturate. Gradients pass between float32 and bfloat16; a cast from or to another type leaves the
 * graph. */
LS_API ls_tensor *ls_cast(ls_tensor *t, ls_dtype dtype);

/* ---- elementwise, broadcasting ------------------------------------------------------------ */

/* The exact GELU, or its approximation by tanh (Hendrycks & Gimpel 2016). */
typedef enum ls_gelu_kind { LS_GELU_ERF = 0, LS_GELU_TANH = 1 } ls_gelu_kind;

LS_API ls_tensor *ls_add(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_sub(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_mul(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_div(ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_scale(ls_tensor *a, double factor);
LS_API ls_tensor *ls_add_scalar(ls_tensor *a, double value);
LS_API ls_tensor *ls_neg(ls_tensor *a);
LS_API ls_tensor *ls_exp(ls_tensor *a);
LS_API ls_tensor *ls_log(ls_tensor *a);
LS_API ls_tensor *ls_sqrt(ls_tensor *a);
LS_API ls_tensor *ls_tanh(ls_tensor *a);
LS_API ls_tensor *ls_sigmoid(ls_tensor *a);
LS_API ls_tensor *ls_relu(ls_tensor *a);
LS_API ls_tensor *ls_gelu(ls_tensor *a, ls_gelu_kind kind);
/* Sets elements to 0 with probability p in [0,1] and scales the others by 1/(1-p) (Srivastava et
 * al. 2014). The random numbers are Philox's, keyed by (seed, number of the call within the step)
 * and counted by the *global* element index, of slices by samples (ls_step_context). Applies also
 * in evaluation; the module of ls_dropout_new does not. */
LS_API ls_tensor *ls_dropout(ls_tensor *a, double p);

/* ---- products, reductions, fused operations ----------------------------------------------- */

/* a [..,M,K], b [..,K,N] -> [..,M,N]; the leading dimensions broadcast (torch.matmul). */
LS_API ls_tensor *ls_matmul(ls_tensor *a, ls_tensor *b);
/* x [..,I], weight [O,I], bias [O] or NULL -> [..,O] (torch.nn.functional.linear). */
LS_API ls_tensor *ls_linear(ls_tensor *x, ls_tensor *weight, ls_tensor *bias);
typedef enum ls_activation {
    LS_ACTIVATION_NONE = 0,
    LS_ACTIVATION_RELU,
    LS_ACTIVATION_GELU,      /* LS_GELU_ERF */
    LS_ACTIVATION_GELU_TANH, /* LS_GELU_TANH */
    LS_ACTIVATION_SILU,
    LS_ACTIVATION_TANH
} ls_activation;
/* activation(ls_linear(x, weight, bias)), with bias and activation in one pass over the product and
 * one pass for the gradients of both. The results are those of the separate operations. The
 * pre-activation is not stored when no graph is being recorded, nor for ReLU and tanh, whose
 * gradients need only the output. */
LS_API ls_tensor *ls_linear_activation(ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                       ls_activation activation);
LS_API ls_tensor *ls_sum(ls_tensor *a);  /* -> scalar */
LS_API ls_tensor *ls_mean(ls_tensor *a); /* -> scalar; NaN, with zero gradients, if `a` is empty */
/* Over the dimension `dim` (negative: from the end), which is removed, or is 1 with keepdim. */
LS_API ls_tensor *ls_sum_dim(ls_tensor *a, int dim, bool keepdim);
LS_API ls_tensor *ls_mean_dim(ls_tensor *a, int dim, bool keepdim);
LS_API ls_tensor *ls_softmax(ls_tensor *a, int dim);
LS_API ls_tensor *ls_log_softmax(ls_tensor *a, int dim);
/* Layer normalisation over the last dimension (Ba et al. 2016): x [..,C], weight and bias [C]
 * (NULL: none). PyTorch's eps is 1e-5. */
LS_API ls_tensor *ls_layer_norm(ls_tensor *x, ls_tensor *weight, ls_tensor *bias, double eps);
/* Rows of weight [V,C] at index [..] (int32 or int64) -> [..,C]. An index outside [0,V) is an error
 * that names it. */
LS_API ls_tensor *ls_embedding(ls_tensor *weight, ls_tensor *index);
/* Long short-term memory (Hochreiter & Schmidhuber 1997) over a sequence of T steps. `gates`
 * [T,B,4H] is x W_ih^T + b_ih + b_hh of all steps, with the gates in the order i, f, g, o; `weight`
 * [4H,H] is W_hh; `state` [2,B,H] is h and c before the first step (NULL: zeros). Returns
 * [T+1,B,H]: h of every step, then the last c. */
LS_API ls_tensor *ls_lstm(ls_tensor *gates, ls_tensor *weight, ls_tensor *state);
/* Gated recurrent units (Cho et al. 2014) over a sequence of T steps, with the reset gate after the
 * product, as in PyTorch: h' = (1 - z) tanh(a_n + r (W_n h + b_n)) + z h. `gates` [T,B,3H] is
 * x W_ih^T + b_ih of all steps, in the order r, z, n; `weight` [3H,H] is W_hh, `bias` [3H] is b_hh
 * (NULL: none), `state` [1,B,H] is h before the first step (NULL: zeros). Returns [T,B,H]: h of
 * every step, of which the last is the state to carry on. */
LS_API ls_tensor *ls_gru(ls_tensor *gates, ls_tensor *weight, ls_tensor *bias, ls_tensor *state);
LS_API ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *y); /* mean of (x - y)^2 -> scalar */
/* The index of the first largest element along `dim`, which is removed -> int64, outside the
 * graph. */
LS_API ls_tensor *ls_argmax(ls_tensor *a, int dim);

#if !defined(LS_NO_SITES)
#define ls_empty(...) LS_AT(ls_empty(__VA_ARGS__))
#define ls_zeros(...) LS_AT(ls_zeros(__VA_ARGS__))
#define ls_ones(...) LS_AT(ls_ones(__VA_ARGS__))
#define ls_full(...) LS_AT(ls_full(__VA_ARGS__))
#define ls_from_data(...) LS_AT(ls_from_data(__VA_ARGS__))
#define ls_from_memory(...) LS_AT(ls_from_memory(__VA_ARGS__))
#define ls_rand(...) LS_AT(ls_rand(__VA_ARGS__))
#define ls_randn(...) LS_AT(ls_randn(__VA_ARGS__))
#define ls_reshape(...) LS_AT(ls_reshape(__VA_ARGS__))
#define ls_transpose(...) LS_AT(ls_transpose(__VA_ARGS__))
#define ls_permute(...) LS_AT(ls_permute(__VA_ARGS__))
#define ls_slice(...) LS_AT(ls_slice(__VA_ARGS__))
#define ls_contiguous(...) LS_AT(ls_contiguous(__VA_ARGS__))
#define ls_clone(...) LS_AT(ls_clone(__VA_ARGS__))
#define ls_detach(...) LS_AT(ls_detach(__VA_ARGS__))
#define ls_cast(...) LS_AT(ls_cast(__VA_ARGS__))
#define ls_add(...) LS_AT(ls_add(__VA_ARGS__))
#define ls_sub(...) LS_AT(ls_sub(__VA_ARGS__))
#define ls_mul(...) LS_AT(ls_mul(__VA_ARGS__))
#define ls_div(...) LS_AT(ls_div(__VA_ARGS__))
#define ls_scale(...) LS_AT(ls_scale(__VA_ARGS__))
#define ls_add_scalar(...) LS_AT(ls_add_scalar(__VA_ARGS__))
#define ls_neg(...) LS_AT(ls_neg(__VA_ARGS__))
#define ls_exp(...) LS_AT(ls_exp(__VA_ARGS__))
#define ls_log(...) LS_AT(ls_log(__VA_ARGS__))
#define ls_sqrt(...) LS_AT(ls_sqrt(__VA_ARGS__))
#define ls_tanh(...) LS_AT(ls_tanh(__VA_ARGS__))
#define ls_sigmoid(...) LS_AT(ls_sigmoid(__VA_ARGS__))
#define ls_relu(...) LS_AT(ls_relu(__VA_ARGS__))
#define ls_gelu(...) LS_AT(ls_gelu(__VA_ARGS__))
#define ls_dropout(...) LS_AT(ls_dropout(__VA_ARGS__))
#define ls_matmul(...) LS_AT(ls_matmul(__VA_ARGS__))
#define ls_linear(...) LS_AT(ls_linear(__VA_ARGS__))
#define ls_linear_activation(...) LS_AT(ls_linear_activation(__VA_ARGS__))
#define ls_sum(...) LS_AT(ls_sum(__VA_ARGS__))
#define ls_mean(...) LS_AT(ls_mean(__VA_ARGS__))
#define ls_sum_dim(...) LS_AT(ls_sum_dim(__VA_ARGS__))
#define ls_mean_dim(...) LS_AT(ls_mean_dim(__VA_ARGS__))
#define ls_softmax(...) LS_AT(ls_softmax(__VA_ARGS__))
#define ls_log_softmax(...) LS_AT(ls_log_softmax(__VA_ARGS__))
#define ls_layer_norm(...) LS_AT(ls_layer_norm(__VA_ARGS__))
#define ls_embedding(...) LS_AT(ls_embedding(__VA_ARGS__))
#define ls_lstm(...) LS_AT(ls_lstm(__VA_ARGS__))
#define ls_gru(...) LS_AT(ls_gru(__VA_ARGS__))
#define ls_mse_loss(...) LS_AT(ls_mse_loss(__VA_ARGS__))
#define ls_argmax(...) LS_AT(ls_argmax(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
