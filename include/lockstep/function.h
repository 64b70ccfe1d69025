/* Differentiable operations of your own (torch.autograd.Function): a forward over tensors, inside
 * which no graph is recorded, and a backward that turns the gradients of its outputs into those of
 * its inputs.
 *
 *     static ls_status square_forward(ls_function_call *call, ls_tensor *const *in, int n,
 *                                     ls_tensor **out, int m, void *arg)
 *     {
 *         out[0] = ls_mul(in[0], in[0]);
 *         return ls_function_save(call, in[0]);
 *     }
 *     static ls_status square_backward(ls_function_call *call, ls_tensor *const *dout, int m,
 *                                      ls_tensor **din, int n)
 *     {
 *         din[0] = ls_scale(ls_mul(ls_function_saved(call, 0), dout[0]), 2.0);
 *         return LS_OK;
 *     }
 *     static const ls_function square = LS_FUNCTION(
 *         .name = "square", .forward = square_forward, .backward = square_backward);
 *
 *     ls_tensor *y = ls_function_apply(&square, x, NULL);
 *
 * Such an operation works wherever a built-in one does: under ls_ddp_new, ls_recompute and
 * ls_gradcheck; what it saved is freed as ls_backward passes it. Both functions may reach raw
 * numbers by ls_data. Tensors they make on the way die when they return.
 */
#ifndef LOCKSTEP_FUNCTION_H
#define LOCKSTEP_FUNCTION_H

#include <lockstep/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_function_call ls_function_call; /* one application: what its backward needs */

typedef struct ls_function {
    size_t size;      /* LS_FUNCTION sets it */
    const char *name; /* in reports */
    /* Fills outputs[output_count] from inputs[input_count] (an input that the caller left out is
     * NULL), or returns an error. `arg` is that of ls_function_apply. */
    ls_status (*forward)(ls_function_call *call, ls_tensor *const *inputs, int input_count,
                         ls_tensor **outputs, int output_count, void *arg);
    /* Fills input_grads, which are NULL at first: each has the shape and type of its input. One left
     * NULL adds nothing (the gradient of an observed parameter is then zero). output_grads[i] is
     * NULL where the loss does not depend on output i; at least one is not. Called once, by
     * ls_backward. */
    ls_status (*backward)(ls_function_call *call, ls_tensor *const *output_grads, int output_count,
                          ls_tensor **input_grads, int input_count);
} ls_function;
/* The initialiser of a function. The struct is borrowed until ls_backward, or the end of the scope
 * in which it was applied. */
#define LS_FUNCTION(...)                                                                           \
    {                                                                                              \
        .size = sizeof(ls_function), __VA_ARGS__                                                   \
    }

/* One input, one output. Outputs of float32 and bfloat16 require gradients when an input does;
 * others never do. A poisoned input is passed on. */
LS_API ls_tensor *ls_function_apply(const ls_function *function, ls_tensor *x, void *arg);
/* 1 to LS_CALL_TENSORS_MAX of each. On failure the outputs are poisoned tensors. */
LS_API ls_status ls_function_apply_many(const ls_function *function, ls_tensor *const *inputs,
                                        int input_count, ls_tensor **outputs, int output_count,
                                        void *arg);

/* ---- in forward --------------------------------------------------------------------------- */

#define LS_FUNCTION_SAVED_MAX 16
/* Keeps `t` (an input, an output, or made on the way) until backward has come to this call. When it
 * was changed in place meanwhile, ls_backward says so (LS_ERR_STATE). LS_ERR_LIMIT: too many. */
LS_API ls_status ls_function_save(ls_function_call *call, ls_tensor *t);
/* Keeps a copy of data[bytes]. LS_ERR_STATE: there is one already. */
LS_API ls_status ls_function_save_data(ls_function_call *call, const void *data, size_t bytes);
/* Keeps `data` itself; `free_data` (NULL: nothing) is called when it is needed no more, which is at
 * once where no gradient is recorded. */
LS_API ls_status ls_function_save_pointer(ls_function_call *call, void *data,
                                          void (*free_data)(void *data));

/* ---- in forward and backward -------------------------------------------------------------- */

/* Whether input i wants a gradient: work for others may be left out. */
LS_API bool ls_function_needs_grad(const ls_function_call *call, int input);

/* ---- in backward -------------------------------------------------------------------------- */

/* The tensors in order of saving, borrowed until backward returns. A number that was not saved is a
 * poisoned tensor. */
LS_API ls_tensor *ls_function_saved(ls_function_call *call, int i);
LS_API void *ls_function_data(const ls_function_call *call); /* NULL: none was saved */

#if !defined(LS_NO_SITES)
#define ls_function_apply(...) LS_AT(ls_function_apply(__VA_ARGS__))
#define ls_function_apply_many(...) LS_AT(ls_function_apply_many(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
