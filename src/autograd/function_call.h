/* SPDX-License-Identifier: Apache-2.0 */
/* One application of a user's differentiable operation; see function.c. */
#ifndef LS_AUTOGRAD_FUNCTION_CALL_H
#define LS_AUTOGRAD_FUNCTION_CALL_H

#include <lockstep/function.h>

#include "tensor/graph.h"

typedef struct ls__function_signature { /* of an input or output */
    ls_shape shape;
    ls_dtype dtype;
    bool wants; /* an input: a gradient; an output: can have one */
} ls__function_signature;

typedef struct ls__function_saved {
    ls__record record; /* as it was; never linked. Holds a reference to its storage */
    ls__tensor_saved check;
} ls__function_saved;

typedef enum ls__function_phase {
    LS__FUNCTION_FORWARD,
    LS__FUNCTION_BETWEEN,
    LS__FUNCTION_BACKWARD
} ls__function_phase;

struct ls_function_call { /* in a storage, which the joint owns */
    const ls_function *function;
    ls__tensors *tensors;
    ls__function_phase phase;
    ls_tensor *const *inputs; /* in forward: the user's */
    int input_count, output_count, saved_count;
    ls__function_signature *input, *output;
    ls__storage *saved[LS_FUNCTION_SAVED_MAX]; /* an ls__function_saved each: most save few */
    void *data;
    void (*free_data)(void *data);
    ls__storage *copy; /* where `data` lies, when it was copied */
};

static inline ls__function_saved *ls__function_saved_at(const ls_function_call *call, int i)
{
    return call->saved[i]->data;
}

/* A call without inputs and results yet. NULL with the error set. */
ls__storage *ls__function_call_new(ls__tensors *tensors, const ls_function *function,
                                   ls_tensor *const *inputs, int input_count, int output_count);

bool ls__function_is_collective(const ls_function *function);
/* How many of such this thread has applied, and of built-in operations whose forward exchanges. */
uint64_t ls__function_collectives(void);
void ls__function_collective_begun(bool gathers);
uint64_t ls__function_gatherings(void); /* and of those that gather */

extern const ls__op ls__function_op; /* function_backward.c */

#endif
