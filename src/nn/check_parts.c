/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the parts of a module compute what its forward computes, each with the modules that it
 * declares: in a pipeline the others may be freed. Both run in evaluation mode and without a graph,
 * so that masks are not drawn and running statistics stay as they are. */
#include <string.h>

#include <lockstep/ops.h>

#include "base/error.h"
#include "nn/module.h"
#include "nn/parts.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

/* Sets evaluation mode and notes the mode that each module was in, or sets that one again. The
 * recursion is bounded by LS__MODULE_DEPTH_MAX. */
static void set_evaluation(ls_module *module, bool evaluation)
{
    bool *former = &module->entries->former_training;
    *former = evaluation ? module->training : *former;
    module->training = evaluation ? false : *former;
    for (int i = 0; i < module->entries->count; i++) {
        const ls__entry *at = &module->entries->list[i];
        if (at->kind == LS__ENTRY_CHILD) {
            set_evaluation(at->child, evaluation);
        }
    }
}

static ls_status run_parts(ls_module *module, int parts, ls_tensor *const *inputs, int input_count,
                           ls_tensor **out)
{
    ls_stage_edges edges;
    ls_tensor *in[LS_CALL_TENSORS_MAX] = {NULL};
    LS_TRY(ls_module_stage_edges(module, 0, parts, &edges));
    for (int i = 0; i < edges.in_count; i++) {
        const int number = -1 - edges.in[i]; /* LS_PART_INPUT */
        in[i] = number < input_count ? inputs[number] : NULL;
    }
    return ls__parts_run_apart(module, in, edges.in_count, out);
}

static int64_t first_difference(const char *x, const char *y, int64_t count, size_t bytes)
{
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(x + (size_t)i * bytes, y + (size_t)i * bytes, bytes) != 0) {
            return i;
        }
    }
    return -1;
}

/* *at: the first element that differs in its bits; -1: none. */
static ls_status find_difference(ls_tensor *a, ls_tensor *b, int64_t *at)
{
    ls__host_view x, y;
    LS_TRY(ls__host_view_of(ls_contiguous(a), &x));
    const ls_status read = ls__host_view_of(ls_contiguous(b), &y);
    if (read == LS_OK) {
        *at = first_difference(x.data, y.data, ls_numel(a), ls_dtype_size(ls_dtype_of(a)));
        ls__host_view_close(&y, false);
    }
    ls__host_view_close(&x, false);
    return read;
}

static ls_status compare(const ls_module *module, ls_tensor *forward, ls_tensor *parts)
{
    const ls_shape a = ls_shape_of(forward), b = ls_shape_of(parts);
    if (ls_dtype_of(forward) != ls_dtype_of(parts) || a.ndim != b.ndim ||
        memcmp(a.dim, b.dim, (size_t)a.ndim * sizeof a.dim[0]) != 0) {
        return ls__fail(LS_ERR_MISMATCH,
                        "ls_module_check_parts: forward of the %s gives %s %s, its parts %s %s; "
                        "declare the steps of forward (lockstep/parts.h)",
                        module->cls->name, ls_dtype_name(ls_dtype_of(forward)),
                        ls__shape_print(a).text, ls_dtype_name(ls_dtype_of(parts)),
                        ls__shape_print(b).text);
    }
    int64_t at = -1;
    LS_TRY(find_difference(forward, parts, &at));
    return at < 0 ? LS_OK
                  : ls__fail(LS_ERR_MISMATCH,
                             "ls_module_check_parts: forward of the %s and its parts differ in "
                             "element %lld of the result %s; a pipeline would train another "
                             "model: declare the steps of forward (lockstep/parts.h)",
                             module->cls->name, (long long)at, ls__shape_print(a).text);
}

static ls_status check(ls_module *module, const ls_parts *parts, ls_tensor *const *inputs,
                       int input_count)
{
    ls_tensor *forward = NULL, *result = NULL;
    LS_TRY(ls_forward_many(module, inputs, input_count, &forward, 1));
    LS_TRY(ls_tensor_status(forward));
    LS_TRY(run_parts(module, parts->count, inputs, input_count, &result));
    return compare(parts->self, forward, result);
}

ls_status ls_module_check_parts(ls_module *module, ls_tensor *const *inputs, int input_count)
{
    const ls_parts *parts = ls__parts_of(module);
    if (parts == NULL) {
        return ls__self.status;
    }
    const bool recorded = ls_set_grad_mode(false);
    ls_scope *scope = ls_scope_enter();
    set_evaluation(module, true);
    const ls_status status = check(module, parts, inputs, input_count);
    set_evaluation(module, false);
    ls_scope_leave(scope);
    (void)ls_set_grad_mode(recorded);
    return status;
}
