/* SPDX-License-Identifier: Apache-2.0 */
/* Autograd: define-by-run reverse-mode differentiation (torch.autograd).
 *
 * Operations on tensors that require gradients record a graph, and ls_backward walks it from a
 * scalar. Before the first gradient is computed, the engine counts the contributions that each
 * parameter will receive. It therefore knows exactly when a gradient is final, and shared weights,
 * several forward passes and unused parameters need no setting (docs/design.md, D7). The gradient
 * of a parameter is absent until a backward pass reaches the parameter; absent is not the same as
 * zero.
 *
 * Backward frees memory as it proceeds (but see LS_RETAIN_GRAPH): tensors that operations saved,
 * and intermediate tensors of modules. If an intermediate tensor must be readable after
 * ls_backward, the module returns it from its forward function, or keeps a copy (ls_clone of
 * ls_detach).
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the gradients of the scalar `loss` to the leaves that require them (torch.Tensor.backward).
 * If parameters belong to an ls_ddp_new module that synchronises, the call is collective over its
 * group and returns when their buckets are reduced. Errors: that of a poisoned `loss`;
 * LS_ERR_INVALID when `loss` is not a scalar with a graph; LS_ERR_STATE when a saved tensor was
 * changed; errors of the group. */
LS_API ls_status ls_backward(ls_tensor *loss);

/* The same for a `loss` that is a mean over `weight` samples or tokens of this micro-batch.
 * Gradients are sums of w·g, and the reducer divides them once by the global Σw, so the mean is
 * exact even if ranks have different numbers of samples. A rank with weight 0 takes part and
 * contributes nothing: of its operations only those run that other ranks wait for, functions that
 * are `collective`, and those before batch norm over the ranks or a function that `gathers`, to
 * which the losses of other ranks give gradients (function.h). All micro-batches of a step use
 * either ls_backward or this function. Because the reducer divides, wrap the module with
 * ls_ddp_new, also in a world of one rank. LS_ERR_STATE, before any gradient is computed, when the
 * loss depends on a leaf outside a wrapper, whose gradient nothing would divide. */
LS_API ls_status ls_backward_weighted(ls_tensor *loss, double weight);

/* The same from `n` tensors, 1 to LS_CALL_TENSORS_MAX, with given gradients
 * (torch.autograd.backward): adds the gradients of the sum of all elements of ys[i] * dys[i]. So a
 * graph can be cut: the later part of a model takes activations of the earlier part as leaves
 * (ls_set_requires_grad), and ls_grad of these leaves are the dys of the earlier part. The sums are
 * made in the order of the whole graph, so parameters get the same bits.
 *
 * dys[i] has the shape and dtype of ys[i], any layout, and is copied; it may be NULL, as may `dys`,
 * if ys[i] has one element: 1 then. ys[i] may be a leaf, and several may be views of one tensor.
 * Gradients are added in this order: dys[0] to dys[n-1], then contributions in the reverse order of
 * the forward pass. The graph is freed, and the call may be collective, as in ls_backward; but only
 * wrappers with a parameter that the graph reaches take part, so a process that wraps several parts
 * of a cut graph calls this function for all of them.
 *
 * Errors, before any gradient is computed, besides those of ls_backward: LS_ERR_INVALID for NULL,
 * two equal handles, or a shape or dtype of dys[i] that differs; LS_ERR_STATE for a tensor that
 * requires no gradient or belongs to a suspended scope. */
LS_API ls_status ls_backward_from(ls_tensor *const *ys, ls_tensor *const *dys, int n);

/* The same with the weight of ls_backward_weighted. dys contain the factor `weight` already;
 * nothing is scaled, and the weight is announced to the reducer. A dys[i] of NULL stands for
 * `weight`, so the last part calls ls_backward_from_weighted(&loss, NULL, 1, weight), and ls_grad
 * of its leaves has the factor. With weight 0 nothing is computed: these gradients stay absent, and
 * every dys[i] may be NULL. Unlike in ls_backward_weighted, leaves outside a wrapper are allowed:
 * the received activations. */
LS_API ls_status ls_backward_from_weighted(ls_tensor *const *ys, ls_tensor *const *dys, int n,
                                           double weight);

/* Backward in two parts, for pipelines that compute weight gradients while they would wait (Qi et
 * al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2; stage_backward_input and
 * stage_backward_weight of torch.distributed.pipelining).
 *
 * ls_backward_input_part is ls_backward_from (options->weighted: ls_backward_from_weighted), but
 * computes only what the gradients of options->inputs need; these are final when it returns. The
 * other gradients are put off until ls_backward_weight_part, which is called once, when the same
 * scope is the innermost one again; scopes may be suspended in between. Parameters, their hooks,
 * and wrappers (ls_ddp_new) take part in the weight part only, which is collective where
 * ls_backward is.
 *
 * The bits, and the order in which parameters become ready, are those of ls_backward_from, if both
 * parts run in the order of the micro-batches. What the weight part reads, activations and
 * gradients of operations with parameters, is kept until then, and all else is freed by the input
 * part. The derivative of an activation inside a linear layer is computed once; other operations
 * that have both kinds of inputs run twice, each time for some of them (for ls_lstm this repeats
 * the recursion over time). A user's function (function.h) through which an input is reached runs
 * once, in the input part, with gradients for all its inputs; a recomputed function runs again
 * there and is kept until the weight part, for what that reads. Operations that lead to no input,
 * such as casts of parameters, run in the weight part; without inputs that is everything.
 *
 * Errors besides those of ls_backward_from: LS_ERR_STATE when an input is not a leaf or belongs to
 * a wrapper, when the innermost scope has a weight part to run already (input part) or none (weight
 * part). After an error of either part nothing is put off. A scope that ends before its weight part
 * has run logs a warning. */
typedef struct ls_backward_part_options {
    size_t size;
    ls_tensor *const *inputs; /* [input_count], at most LS_CALL_TENSORS_MAX: received activations */
    int input_count;
    bool weighted;
    double weight;
} ls_backward_part_options;
#define LS_DEFAULTS_ls_backward_part_options
LS_DEFAULTS_FUNCTION(backward_part)
LS_API ls_status ls_backward_input_part(ls_tensor *const *ys, ls_tensor *const *dys, int n,
                                        const ls_backward_part_options *options);
LS_API ls_status ls_backward_weight_part(void);

/* For leaves of float32 or bfloat16 only, that is, for tensors that no recorded operation made;
 * returns t. */
LS_API ls_tensor *ls_set_requires_grad(ls_tensor *t, bool requires_grad);
LS_API bool ls_requires_grad(const ls_tensor *t);
/* The gradient of a leaf, of its shape and dtype; NULL while it is absent. Borrowed until the
 * gradient becomes absent (ls_optim_zero_grad). */
LS_API ls_tensor *ls_grad(ls_tensor *t);

/* LS_NO_GRAD; disables the recording of graphs until the end of the block (torch.no_grad). A
 * declaration, like LS_SCOPE. */
LS_API bool ls_set_grad_mode(bool enabled); /* returns the previous mode of this thread */
#if defined(__GNUC__)
static inline void ls_grad_mode_cleanup_(const bool *before)
{
    (void)ls_set_grad_mode(*before);
}
#define LS_NO_GRAD                                                                                 \
    const bool LS_ON_LINE(ls_grad_mode_before_) LS_UNTIL_END_(ls_grad_mode_cleanup_) =             \
        ls_set_grad_mode(false)
#endif

/* LS_RETAIN_GRAPH; keeps the graphs that ls_backward, ls_backward_weighted and ls_backward_from
 * walk until the end of the block (retain_graph=True), so that another call may walk them: for two
 * losses that share a part of their graph, or two gradients of one. A declaration, like LS_SCOPE:
 *
 *     {
 *         LS_RETAIN_GRAPH;
 *         LS_CHECK(ls_backward(first));
 *     }
 *     LS_CHECK(ls_backward(second));   // frees what it walks; the scope frees the rest
 *
 * Gradients are added up, with the bits of two forward passes. What a call keeps is checked by the
 * next one: LS_ERR_STATE if a saved tensor or a parameter was changed in place in between, so step
 * after the last one. Recomputed functions run again for each call. For a wrapper (ls_ddp_new) the
 * calls are micro-batches of a step: put all but the last into LS_NO_SYNC, and their sum is reduced
 * once. Otherwise each call reduces, a later one on top of the averages of the earlier ones (in
 * PyTorch an error). The tensors of modules are not freed on the way. ls_backward_input_part
 * refuses it (LS_ERR_UNSUPPORTED). */
LS_API bool ls_set_retain_graph(bool retain); /* returns the previous mode of this thread */
#if defined(__GNUC__)
static inline void ls_retain_graph_cleanup_(const bool *before)
{
    (void)ls_set_retain_graph(*before);
}
#define LS_RETAIN_GRAPH                                                                            \
    const bool LS_ON_LINE(ls_retain_graph_before_) LS_UNTIL_END_(ls_retain_graph_cleanup_) =       \
        ls_set_retain_graph(true)
#endif

/* A hook: a function of the user that is called during a forward or backward pass. It is freed with
 * the tensor or module to which it belongs; ls_hook_free removes it earlier. A hook may free itself
 * while it runs. */
typedef struct ls_hook ls_hook;
LS_API void ls_hook_free(ls_hook *hook); /* NULL is allowed */

/* Adds a hook to `t`, which requires gradients. No graph is recorded inside; an error ends
 * ls_backward, on all ranks of a wrapper. Hooks run in order of addition, and in a backward of
 * weight 0 only where the losses of other ranks give gradients (ls_function.gathers).
 *
 * Of a leaf (register_post_accumulate_grad_hook): every ls_backward that reaches it calls the hook
 * when the gradient is final on this rank and before a data-parallel bucket is reduced. `grad` is
 * the leaf's whole accumulated gradient, which the hook may change in place.
 *
 * Of an activation, the result of an operation or module (torch.Tensor.register_hook): every
 * ls_backward that reaches it calls the hook with the gradient of the loss with respect to it, all
 * uses of it added up, as it lies (ls_copy_out, ls_copy_in; ls_data where it is contiguous). What
 * the hook writes into it flows on. The elements of `t` may still be read, also inside a module.
 * The hook belongs to the scope in which `t` was computed and ends with it. A view of all of a
 * tensor, in any order, has its gradient in common with it. A hook that a recomputed function adds
 * is called once, by the second run.
 *
 * NULL with the error set: `t` requires no gradients, is a view of a leaf or of a part of a tensor,
 * or its graph was released. */
typedef ls_status (*ls_grad_hook_fn)(void *arg, ls_tensor *t, ls_tensor *grad);
LS_API ls_hook *ls_grad_hook_new(ls_tensor *t, ls_grad_hook_fn fn, void *arg);

#define LS_CALL_TENSORS_MAX 64 /* inputs, and outputs, of a call with arrays of tensors */

/* Activation recomputation (torch.utils.checkpoint; Chen et al., "Training Deep Nets with Sublinear
 * Memory Cost", 2016). Returns fn(x, arg) and keeps only x and the result; the intermediate tensors
 * of fn are freed at once. When backward reaches this call, fn runs again, and backward continues
 * through the new graph and frees it. This costs a second forward pass of fn. ls_recompute (nn.h)
 * does the same with a module.
 *
 * Gradients are bitwise identical to those of fn(x, arg) itself. The tensors to which fn's graph
 * leads (parameters, x, others that require gradients) are recorded before that graph is freed, and
 * are counted when ls_backward begins. The second graph leads to the same tensors and takes the
 * place of the first. Gradients are therefore added in the same order, and data-parallel parameters
 * become ready once, in the same order; shared parameters, unused parameters and micro-batches need
 * no setting. Calls may be nested. Random operations draw the same numbers again.
 *
 * fn must do the same both times. `arg`, and tensors that fn uses besides x, must live and stay
 * unchanged until ls_backward. Tensors made by fn are freed when it returns, as in an LS_SCOPE,
 * unless it calls ls_keep. ls_backward returns LS_ERR_STATE when x or a parameter was changed in
 * place, or when fn drew other random numbers, used other parameters or returned another shape.
 * Without gradients (LS_NO_GRAD) fn runs once, and its intermediate tensors are freed as well. */
typedef ls_tensor *(*ls_recompute_fn)(ls_tensor *x, void *arg);
LS_API ls_tensor *ls_recompute_call(ls_recompute_fn fn, ls_tensor *x, void *arg);
/* The same with several inputs and outputs. All inputs are kept; an input may be NULL. On failure
 * the outputs are poisoned tensors. */
typedef ls_status (*ls_recompute_many_fn)(ls_tensor *const *inputs, int input_count,
                                          ls_tensor **outputs, int output_count, void *arg);
LS_API ls_status ls_recompute_call_many(ls_recompute_many_fn fn, ls_tensor *const *inputs,
                                        int input_count, ls_tensor **outputs, int output_count,
                                        void *arg);
/* Whether a function is being recomputed on this thread. Running statistics, for example, must not
 * be updated a second time then. */
LS_API bool ls_recomputing(void);

/* Numeric gradient check (torch.autograd.gradcheck): compares the gradients of sum(fn(inputs) * r),
 * where r is a fixed random tensor, with central differences of width `step`, computed in float64.
 * Returns LS_ERR_MISMATCH, which names the worst element, when |analytic - numeric| > atol + rtol
 * |numeric|. Not collective. */
typedef ls_tensor *(*ls_gradcheck_fn)(ls_tensor **inputs, void *arg);
typedef struct ls_gradcheck_options {
    size_t size;
    double step, rtol, atol;
} ls_gradcheck_options;
#define LS_DEFAULTS_ls_gradcheck_options .step = 1e-2, .rtol = 2e-2, .atol = 2e-3,
LS_DEFAULTS_FUNCTION(gradcheck)
LS_API ls_status ls_gradcheck(ls_gradcheck_fn fn, ls_tensor **inputs, int count, void *arg,
                              const ls_gradcheck_options *options);

#if !defined(LS_NO_SITES)
#define ls_set_requires_grad(...) LS_AT(ls_set_requires_grad(__VA_ARGS__))
#define ls_recompute_call(...) LS_AT(ls_recompute_call(__VA_ARGS__))
#define ls_recompute_call_many(...) LS_AT(ls_recompute_call_many(__VA_ARGS__))
#define ls_backward(...) LS_AT(ls_backward(__VA_ARGS__))
#define ls_backward_weighted(...) LS_AT(ls_backward_weighted(__VA_ARGS__))
#define ls_backward_input_part(...) LS_AT(ls_backward_input_part(__VA_ARGS__))
#define ls_backward_weight_part(...) LS_AT(ls_backward_weight_part(__VA_ARGS__))
#define ls_backward_from(...) LS_AT(ls_backward_from(__VA_ARGS__))
#define ls_backward_from_weighted(...) LS_AT(ls_backward_from_weighted(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
