/* Autograd: define-by-run reverse-mode differentiation (torch.autograd).
 *
 * Operations on tensors that require gradients record a graph, and ls_backward walks it from a
 * scalar. Before the first gradient is computed, the engine counts the contributions that each
 * parameter will receive. It therefore knows exactly when a gradient is final, and shared weights,
 * several forward passes and unused parameters need no setting (docs/design.md, D7). The gradient
 * of a parameter is absent until a backward pass reaches the parameter; absent is not the same as
 * zero.
 *
 * Backward frees memory as it proceeds: tensors that operations saved, and intermediate tensors of
 * modules. If an intermediate tensor must be readable after ls_backward, the module returns it from
 * its forward function, or keeps a copy (ls_clone of ls_detach).
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
 * contributes nothing. All micro-batches of a step use either ls_backward or this function. Because
 * the reducer divides, wrap the module with ls_ddp_new, also in a world of one rank. LS_ERR_STATE,
 * before any gradient is computed, when the loss depends on a leaf outside a wrapper, whose
 * gradient nothing would divide. */
LS_API ls_status ls_backward_weighted(ls_tensor *loss, double weight);

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

/* A hook: a function of the user that is called during a forward or backward pass. It is freed with
 * the tensor or module to which it belongs; ls_hook_free removes it earlier. A hook may free itself
 * while it runs. */
typedef struct ls_hook ls_hook;
LS_API void ls_hook_free(ls_hook *hook); /* NULL is allowed */

/* Adds a hook to the leaf `t` (register_post_accumulate_grad_hook). Every ls_backward that reaches
 * the leaf calls it when the gradient is final on this rank and before a data-parallel bucket is
 * reduced. `grad` is the leaf's whole accumulated gradient, which the hook may change in place; no
 * graph is recorded inside. An error ends ls_backward, on all ranks of a wrapper. Hooks run in
 * order of addition, and not in a backward of weight 0. NULL with the error set when `t` is not a
 * leaf that requires gradients. */
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
#endif

#ifdef __cplusplus
}
#endif
#endif
