/* Autograd: define-by-run reverse-mode differentiation.
 *
 * Operations on tensors that require gradients record a graph; ls_backward walks it from a scalar.
 * Before the first gradient is computed the engine counts how many accumulations each parameter
 * will receive, so "final" is exact: shared weights, several forwards and unused parameters need no
 * setting (docs/design.md, D7). A parameter's gradient is absent until reached; absent differs
 * from zero.
 *
 * Backward frees memory as it proceeds: tensors that operations saved, and intermediate tensors of
 * modules. A module whose intermediate tensor must be readable after ls_backward returns it from
 * its forward function, or keeps a copy (ls_clone of ls_detach).
 */
#ifndef LOCKSTEP_AUTOGRAD_H
#define LOCKSTEP_AUTOGRAD_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Gradients of the scalar `loss` accumulate into the leaves that require them. When parameters
 * belong to a DistributedDataParallel module that synchronises, returns after their buckets are
 * reduced. Errors: the poison of `loss`; a failed group; LS_ERR_STATE when a saved tensor was
 * changed. */
LS_API ls_status ls_backward(ls_tensor *loss);

/* The same, seeded with `weight` (samples or tokens of this micro-batch) when `loss` is a mean over
 * them: gradients are sums of w·g, and the reducer divides once by the global Σw, so the mean is
 * exact however uneven the shares. Weight 0 takes part and contributes nothing. All micro-batches
 * of a step use one form. It is the reducer that divides: wrap the module with ls_ddp_new, in a
 * world of one too. LS_ERR_STATE, before any gradient is computed, when the loss depends on a leaf
 * that belongs to no wrapper: nothing would divide its gradient. */
LS_API ls_status ls_backward_weighted(ls_tensor *loss, double weight);

LS_API ls_tensor *ls_set_requires_grad(ls_tensor *t,
                                       bool requires_grad); /* leaves only; returns t */
LS_API bool ls_requires_grad(const ls_tensor *t);
/* Borrowed view, until the gradient becomes absent (ls_optim_zero_grad), when its memory goes back
 * to the allocator; NULL while absent. */
LS_API ls_tensor *ls_grad(ls_tensor *t);

/* LS_NO_GRAD; records no graph from here to the end of the block (torch.no_grad). A declaration, as
 * LS_SCOPE is. */
LS_API bool ls_set_grad_mode(bool enabled); /* returns the former mode of this thread */
#if defined(__GNUC__)
static inline void ls_grad_mode_cleanup_(const bool *before)
{
    (void)ls_set_grad_mode(*before);
}
#define LS_NO_GRAD                                                                                 \
    const bool LS_ON_LINE(ls_grad_mode_before_) LS_UNTIL_END_(ls_grad_mode_cleanup_) =             \
        ls_set_grad_mode(false)
#endif

/* A hook: a function of yours that is called at a place in a pass. It dies with the tensor or module
 * to which it belongs; ls_hook_free takes it off before. It may free itself while it runs. */
typedef struct ls_hook ls_hook;
LS_API void ls_hook_free(ls_hook *hook); /* NULL is allowed */

/* Called in every ls_backward that reaches the leaf `t`, when its gradient is final on this rank and
 * before a data-parallel bucket takes it (register_post_accumulate_grad_hook): `grad` is the leaf's
 * whole accumulated gradient, which the hook may change in place. No graph is recorded inside. An
 * error ends ls_backward, on all ranks of a wrapper. Hooks run in order of addition; not in a
 * backward of weight 0. NULL with the error set when `t` is not a leaf that requires gradients. */
typedef ls_status (*ls_grad_hook_fn)(void *arg, ls_tensor *t, ls_tensor *grad);
LS_API ls_hook *ls_grad_hook_new(ls_tensor *t, ls_grad_hook_fn fn, void *arg);

#define LS_CALL_TENSORS_MAX 64 /* inputs of one call with arrays of tensors, and outputs */

/* Activation recomputation (torch.utils.checkpoint; Chen et al., "Training Deep Nets with Sublinear
 * Memory Cost", 2016). Returns fn(x, arg) and keeps only x and the result: fn's intermediate
 * tensors are freed at once. When backward reaches this call, fn runs again, and backward goes
 * through the new graph and frees it. Costs fn's forward pass a second time. ls_recompute (nn.h)
 * does it with a module.
 *
 * Gradients are bitwise identical to those of fn(x, arg) itself. The tensors that fn's graph leads
 * to (parameters, x, others that require gradients) are recorded before that graph is freed, and
 * counted when ls_backward plans; the second graph leads to the same tensors and runs at the place
 * of the first. So gradients are added in the same order, and data-parallel parameters become ready
 * once, in the same order: shared and unused parameters and micro-batches need no setting. Calls
 * may be nested. Random operations draw the same numbers again.
 *
 * fn must do the same both times, arg and the tensors fn takes from elsewhere must live and stay as
 * they are until ls_backward, and tensors made by fn die when it returns, as in an LS_SCOPE (what
 * it ls_keeps stays). Errors of ls_backward: LS_ERR_STATE when x or a parameter was changed in
 * place meanwhile, or when fn drew other random numbers, used other parameters or gave another
 * shape. Without gradients (LS_NO_GRAD) fn runs once, and its intermediate tensors are freed
 * too. */
typedef ls_tensor *(*ls_recompute_fn)(ls_tensor *x, void *arg);
LS_API ls_tensor *ls_recompute_call(ls_recompute_fn fn, ls_tensor *x, void *arg);
/* The same with several inputs and outputs; all inputs are kept (a mask of the batch, say). An
 * input may be NULL. On failure the outputs are poisoned tensors. */
typedef ls_status (*ls_recompute_many_fn)(ls_tensor *const *inputs, int input_count,
                                          ls_tensor **outputs, int output_count, void *arg);
LS_API ls_status ls_recompute_call_many(ls_recompute_many_fn fn, ls_tensor *const *inputs,
                                        int input_count, ls_tensor **outputs, int output_count,
                                        void *arg);
/* Whether a function is being recomputed: running statistics, for example, are updated already. */
LS_API bool ls_recomputing(void);

/* Numeric gradient check: compares the gradients of sum(fn(inputs) * r), r a fixed random tensor,
 * with central differences evaluated in float64 steps. Returns LS_ERR_MISMATCH naming the worst
 * element when |a-n| > atol + rtol*|n|. */
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
