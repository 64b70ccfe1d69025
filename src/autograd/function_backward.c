/* SPDX-License-Identifier: Apache-2.0 */
/* Backward through a user's operation: its saved tensors are checked, its backward runs in a scope
 * of its own, and the gradients it gave are checked and accumulated. */
#include <string.h>

#include "autograd/accumulate.h"
#include "autograd/engine.h"
#include "autograd/function_call.h"
#include "autograd/joint.h"
#include "autograd/mode.h"
#include "base/assert.h"
#include "tensor/op.h"

/* Backward must see the values that forward saw, so a saved tensor that changed in place is an
 * error. */
static ls_status check_saved(const ls__autograd_pass *pass, const ls__tensor_node *node,
                             const ls_function_call *call)
{
    for (int i = 0; i < call->saved_count; i++) {
        const ls__function_saved *s = ls__function_saved_at(call, i);
        if (ls__storage_version(s->record.storage) != s->check.version) {
            return ls__fail_changed(pass, node, &s->check);
        }
    }
    return LS_OK;
}

/* Makes tensors of the gradients that arrived, for the user's backward; grads[i] stays NULL where
 * output i received no gradient. In a backward of weight 0 those that would have come are zero. */
static ls_status wrap_grads(const ls__tensor_node *node, const ls_function_call *call,
                            ls_tensor **grads)
{
    for (int i = 0; i < call->output_count; i++) {
        ls__storage *dy = ls__joint_outputs_of(node)->at[i].grad;
        if (ls__joint_outputs_of(node)->at[i].skipped) {
            grads[i] = ls_zeros(call->output[i].shape, call->output[i].dtype);
            LS_TRY(ls_tensor_status(grads[i]));
            continue;
        }
        ls__record *record = dy != NULL ? ls__record_new(call->tensors) : NULL;
        if (dy == NULL) {
            continue;
        }
        if (record == NULL || !ls__record_set_shape(record, call->output[i].shape,
                                                    call->output[i].dtype, call->function->name)) {
            return ls__self.status;
        }
        record->storage = ls__storage_ref(dy);
        grads[i] = ls__handle(record);
    }
    return LS_OK;
}

/* Sizes only: strides may differ, because sound_grad makes the gradient row-major. */
static bool same_shape(const ls__record *record, const ls_shape *shape)
{
    return record->ndim == shape->ndim &&
           memcmp(record->dim, shape->dim, (size_t)shape->ndim * sizeof shape->dim[0]) == 0;
}

/* The gradient of input i as it is accumulated: its shape and type, row-major from offset 0. */
static ls__record *sound_grad(const ls__tensor_node *node, const ls_function_call *call, int i,
                              ls_tensor *given)
{
    const ls__function_signature *want = &call->input[i];
    ls__record *grad = ls__record_sound(call->tensors, given, call->function->name);
    if (grad == NULL) {
        return NULL;
    }
    if ((ls_dtype)grad->dtype != want->dtype || !same_shape(grad, &want->shape)) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s at %s:%d: its backward gave a gradient %s %s for input %d, which is %s "
                       "%s; give one of the same shape and type",
                       call->function->name, node->file != NULL ? node->file : "?", node->line,
                       ls_dtype_name((ls_dtype)grad->dtype), ls__record_print(grad).text, i,
                       ls_dtype_name(want->dtype), ls__shape_print(want->shape).text);
        return NULL;
    }
    if (grad->offset == 0 && ls__record_contiguous(grad)) {
        return grad;
    }
    return ls__record_sound(call->tensors, ls_clone(given), call->function->name);
}

/* Every link was announced in the plan and must be settled exactly once, also where the user's
 * backward gave no gradient. */
static ls_status accumulate_grads(ls__autograd_pass *pass, const ls__tensor_node *node,
                                  const ls_function_call *call, ls_tensor *const *grads)
{
    const ls__joint_links *links = ls__links_of(node);
    for (int i = 0; i < call->input_count; i++) {
        const ls__edge *edge = &links->at[i].edge;
        const bool given = edge->to != NULL && grads[i] != NULL;
        const ls__record *grad = given ? sound_grad(node, call, i, grads[i]) : NULL;
        if (given && grad == NULL) {
            return ls__self.status;
        }
        LS_TRY(ls__contribute(pass, edge, given ? grad->storage : NULL));
    }
    return LS_OK;
}

/* dx[i] stays NULL where the user's function gives no gradient. */
static ls_status run_backward(ls__autograd_pass *pass, const ls__tensor_node *node,
                              ls_function_call *call, bool skipped)
{
    ls_tensor *dy[LS_CALL_TENSORS_MAX] = {NULL}, *dx[LS_CALL_TENSORS_MAX] = {NULL};
    LS_TRY(wrap_grads(node, call, dy));
    const ls__user_call user = ls__user_call_begin();
    const ls_status status =
        call->function->backward(call, dy, call->output_count, dx, call->input_count);
    LS_TRY(ls__user_call_end(&user, status, "backward of \"%s\"", call->function->name));
    return skipped ? LS_OK : accumulate_grads(pass, node, call, dx);
}

/* The engine reaches the joint after everything that used its outputs. The user's backward runs
 * without a graph, in a scope of its own, and errors name the line of the forward call. */
static ls_status call_backward(ls__autograd_pass *pass, const ls__tensor_node *node, bool skipped)
{
    ls_function_call *call = node->saved[LS__JOINT_OWN].storage->data;
    LS_ASSERT(call->phase == LS__FUNCTION_BETWEEN); /* a released graph is not walked again */
    LS_TRY(check_saved(pass, node, call));
    const ls__autograd_mode before = ls__autograd_mode_get();
    call->phase = LS__FUNCTION_BACKWARD;
    ls__self.no_grad = true;
    ls__self.file = node->file;
    ls__self.line = node->line;
    ls_scope *scope = ls_scope_enter();
    const ls_status status = run_backward(pass, node, call, skipped);
    ls_scope_leave(scope);
    ls__autograd_mode_set(&before);
    call->phase = LS__FUNCTION_BETWEEN;
    return status;
}

static ls_status function_run(ls__autograd_pass *pass, ls__tensor_node *node)
{
    return ls__joint_any_grad(node) ? call_backward(pass, node, false)
                                    : ls__links_skip(pass, ls__links_of(node));
}

/* The ranks whose backward has a weight wait in the operations of theirs. */
static ls_status function_skipped(ls__autograd_pass *pass, ls__tensor_node *node)
{
    const ls_function_call *call = node->saved[LS__JOINT_OWN].storage->data;
    bool reached = false;
    for (int i = 0; i < call->output_count; i++) {
        reached = reached || ls__joint_outputs_of(node)->at[i].skipped;
    }
    return reached && ls__function_is_collective(call->function) ? call_backward(pass, node, true)
                                                                 : LS_OK;
}

const ls__op ls__function_op = {
    .name = "function", .run = function_run, .skipped = function_skipped};
