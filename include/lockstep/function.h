/* SPDX-License-Identifier: Apache-2.0 */
/* User-defined differentiable operations (torch.autograd.Function): a forward function over
 * tensors, inside which no graph is recorded, and a backward function, which computes the gradients
 * of the inputs from those of the outputs.
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
 * Such an operation works wherever a built-in one does, for example under ls_ddp_new, ls_recompute
 * and ls_gradcheck. Its saved tensors are freed as ls_backward proceeds. Both functions may access
 * raw numbers with ls_data. Intermediate tensors of a function are freed when it returns.
 */
#ifndef LOCKSTEP_FUNCTION_H
#define LOCKSTEP_FUNCTION_H

#include <lockstep/autograd.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_function_call ls_function_call; /* one application, with its saved tensors */

/* What the operation makes of placements (placement.h). */
typedef enum ls_placing {
    LS_PLACING_VARYING = 0,   /* its results vary wherever an input is placed; an input that is
                                 invariant or partial is refused */
    LS_PLACING_POINTWISE = 1, /* each element of a result depends on the elements of the inputs at
                                 its place alone, as in ls_relu: results are as the inputs */
    LS_PLACING_BY_CALLER = 2, /* any input goes; results vary, and the caller says by ls_place what
                                 else they are: of an operation with collectives of its own */
} ls_placing;

typedef struct ls_function {
    size_t size;      /* LS_FUNCTION sets it */
    const char *name; /* appears in reports */
    /* Fills outputs[output_count] from inputs[input_count], or returns an error. An input that the
     * caller omitted is NULL. `arg` is that of ls_function_apply. */
    ls_status (*forward)(ls_function_call *call, ls_tensor *const *inputs, int input_count,
                         ls_tensor **outputs, int output_count, void *arg);
    /* Fills input_grads[input_count], each of the shape and dtype of its input. An entry that stays
     * NULL, its initial value, adds nothing (the gradient of a parameter under ls_ddp_new is then
     * zero). output_grads[i] is NULL if the loss does not depend on output i; at least one is not
     * NULL. ls_backward calls this function once, and each further one of a graph that was kept
     * (LS_RETAIN_GRAPH) once more. */
    ls_status (*backward)(ls_function_call *call, ls_tensor *const *output_grads, int output_count,
                          ls_tensor **input_grads, int input_count);
    /* Its backward calls operations in which other ranks take part. A backward of weight 0 computes
     * nothing (ls_backward_weighted), and the others would wait for this rank: with `collective` it
     * calls `backward` all the same, with zeros for the gradients of outputs that the loss depends
     * on, and ignores what that gives. Also within ls_recompute, which runs `forward` again. */
    bool collective;
    ls_placing placing; /* where a mesh is in force; default LS_PLACING_VARYING */
    /* With `collective`: outputs of other ranks depend on this rank's inputs, as in an all-gather.
     * So a backward of weight 0 does not ignore what `backward` gives: it is what the losses of
     * those ranks add, and backward goes on from there. */
    bool gathers;
} ls_function;
/* The initialiser of an ls_function. The struct is borrowed until ls_backward, or until the end of
 * the scope in which it was applied. */
#define LS_FUNCTION(...)                                                                           \
    {                                                                                              \
        .size = sizeof(ls_function), __VA_ARGS__                                                   \
    }

/* Applies the operation to one input and returns its one output. Outputs of float32 and bfloat16
 * require gradients if an input does; others never do. A poisoned input is returned. `arg` is
 * borrowed for the call. */
LS_API ls_tensor *ls_function_apply(const ls_function *function, ls_tensor *x, void *arg);
/* The same with 1 to LS_CALL_TENSORS_MAX inputs and outputs. On failure the outputs are poisoned
 * tensors. */
LS_API ls_status ls_function_apply_many(const ls_function *function, ls_tensor *const *inputs,
                                        int input_count, ls_tensor **outputs, int output_count,
                                        void *arg);

/* ---- in forward --------------------------------------------------------------------------- */

#define LS_FUNCTION_SAVED_MAX 16
/* Keeps `t` (an input, an output or an intermediate tensor) until backward has passed this call. If
 * it was changed in place meanwhile, ls_backward returns LS_ERR_STATE. LS_ERR_LIMIT: more than
 * LS_FUNCTION_SAVED_MAX tensors. */
LS_API ls_status ls_function_save(ls_function_call *call, ls_tensor *t);
/* Keeps a copy of data[bytes] for backward. LS_ERR_STATE: data was saved before. */
LS_API ls_status ls_function_save_data(ls_function_call *call, const void *data, size_t bytes);
/* Keeps the pointer `data` for backward. `free_data` (NULL: none) is called when it is no longer
 * needed; without gradients this is at the end of the forward function. */
LS_API ls_status ls_function_save_pointer(ls_function_call *call, void *data,
                                          void (*free_data)(void *data));

/* ---- in forward and backward -------------------------------------------------------------- */

/* Whether input number `input` needs a gradient; backward may omit the others. */
LS_API bool ls_function_needs_grad(const ls_function_call *call, int input);

/* ---- in backward -------------------------------------------------------------------------- */

/* Tensor number i in order of saving; borrowed until backward returns. A poisoned tensor if none
 * has this number. */
LS_API ls_tensor *ls_function_saved(ls_function_call *call, int i);
LS_API void *ls_function_data(const ls_function_call *call); /* the saved data; NULL: none */

#if !defined(LS_NO_SITES)
#define ls_function_apply(...) LS_AT(ls_function_apply(__VA_ARGS__))
#define ls_function_apply_many(...) LS_AT(ls_function_apply_many(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
