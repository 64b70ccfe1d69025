/* SPDX-License-Identifier: Apache-2.0 */
/* Calling a module. The rank's activity record names the innermost module, so a report on a rank
 * that died or hangs says in which layer.
 *
 * Both calls go through one frame (enter, leave), and either works on either kind of class: only
 * `call_class` knows which of the two functions the class has. */
#include <stdio.h>

#include "autograd/arrays.h"
#include "base/assert.h"
#include "base/trace.h"
#include "nn/hooks.h"
#include "nn/module.h"
#include "nn/parts.h"
#include "tensor/tensor.h"

/* The state of the thread around a call, so that errors in the rest of the caller's expression name
 * the caller's line and not one inside the module. */
typedef struct frame {
    ls__phase former;
    ls__draw_place *drawing;
    const char *file;
    int line;
    uint64_t traced;
} frame;

/* Must be paired with leave on the same thread. The count of modules marks tensors that backward
 * may free on its way. */
static frame enter(ls_module *module)
{
    const frame f = {.former = ls__activity_enter(LS__PHASE_FORWARD, ls__module_name(module)),
                     .drawing = ls__self.drawing,
                     .file = ls__self.file,
                     .line = ls__self.line,
                     .traced = ls__trace_begin()};
    ls__self.modules++;
    ls__self.crossings++;
    ls__self.drawing = &module->entries->draws;
    return f;
}

/* The results of the outermost module belong to its caller, so backward does not free them
 * (autograd's Note [Within modules]). */
static void leave(const frame *f, const ls_module *module, ls_tensor *const *outputs, int count)
{
    LS_ASSERT(ls__self.modules > 0);
    ls__self.crossings++;
    ls__trace_end(f->traced,
                  ls__self.replay != NULL ? LS__TRACE_RECOMPUTE
                  : ls__self.modules > 1  ? LS__TRACE_MODULE
                                          : LS__TRACE_FORWARD,
                  ls__module_name(module), module->cls->name);
    if (--ls__self.modules == 0) {
        for (int i = 0; i < count; i++) {
            ls__tensor_give_out(outputs[i]);
        }
    }
    ls__self.drawing = f->drawing;
    ls__self.file = f->file;
    ls__self.line = f->line;
    ls__activity_leave(f->former);
}

/* A class with `forward` has exactly one input and one output; forward_many checks its own
 * numbers. */
static ls_status check_counts(const ls_module *module, ls_tensor *const *inputs, int input_count,
                              ls_tensor *const *outputs, int output_count)
{
    LS_TRY(ls__arrays_check("forward", inputs, input_count, outputs, output_count));
    if (module->cls->forward != NULL && (input_count != 1 || output_count != 1)) {
        return ls__fail(
            LS_ERR_INVALID,
            "forward: module %s has 1 input and 1 output, but the call has %d and %d; give "
            "one of each",
            module->cls->name, input_count, output_count);
    }
    return LS_OK;
}

/* An output that the class did not fill would surface as a NULL far away from its cause. */
static ls_status check_outputs(const ls_module *module, ls_tensor *const *outputs, int count)
{
    for (int i = 0; i < count; i++) {
        if (outputs[i] == NULL) {
            return ls__fail(LS_ERR_INVALID,
                            "forward: the %s gave no output %d of the %d asked for; fill all of "
                            "them, or return an error",
                            module->cls->name, i, count);
        }
    }
    return LS_OK;
}

/* Calls the class' own function, whichever of the two it has. */
static ls_status call_class(ls_module *module, ls_tensor *const *inputs, int input_count,
                            ls_tensor **outputs, int output_count)
{
    if (module->cls->forward != NULL) {
        outputs[0] = module->cls->forward(module, inputs[0]);
        return LS_OK;
    }
    const ls__user_call user = ls__user_call_begin();
    const ls_status status =
        module->cls->forward_many(module, inputs, input_count, outputs, output_count);
    LS_TRY(ls__user_call_check(&user, status, "forward of the %s", module->cls->name));
    return check_outputs(module, outputs, output_count);
}

/* Runs the forward between its hooks. Hooks see a copy of the array of inputs, because they may
 * replace some. */
static ls_status call_hooked(ls_module *module, ls_tensor *const *inputs, int input_count,
                             ls_tensor **outputs, int output_count)
{
    ls_tensor *given[LS_CALL_TENSORS_MAX];
    if (module->entries->hooks == NULL) {
        return call_class(module, inputs, input_count, outputs, output_count);
    }
    for (int i = 0; i < input_count; i++) {
        given[i] = inputs[i];
    }
    LS_TRY(ls__module_hooks_run(module, given, input_count, NULL, 0));
    LS_TRY(call_class(module, given, input_count, outputs, output_count));
    LS_TRY(ls__module_hooks_run(module, given, input_count, outputs, output_count));
    return check_outputs(module, outputs, output_count);
}

/* The common part of both calls. Errors from within carry the line inside the module; the outermost
 * call adds the user's line. */
static ls_status call(ls_module *module, ls_tensor *const *inputs, int input_count,
                      ls_tensor **outputs, int output_count)
{
    for (int i = 0; i < output_count; i++) {
        outputs[i] = NULL;
    }
    const frame f = enter(module);
    const ls_status status = call_hooked(module, inputs, input_count, outputs, output_count);
    leave(&f, module, outputs, status < 0 ? 0 : output_count);
    return status < 0 && ls__self.modules == 0 ? ls__fail_at_site(status) : status;
}

ls_status ls__module_within(ls_module *module, ls_status (*body)(void *arg, ls_tensor **outputs),
                            void *arg, ls_tensor **outputs, int output_count)
{
    const frame f = enter(module);
    const ls_status status = body(arg, outputs);
    leave(&f, module, outputs, status < 0 ? 0 : output_count);
    return status;
}

/* A module that failed to build reports that failure from every call, and so does one of which only
 * some parts are left. */
static ls_status check_module(const ls_module *module)
{
    ls_status status = module != NULL ? ls_module_status(module) : ls__module_missing("forward");
    const ls_parts *parts = status == LS_OK ? module->entries->parts : NULL;
    if (parts != NULL && parts->cut) {
        status =
            ls__fail(LS_ERR_STATE,
                     "forward: ls_module_keep_parts has freed parts of this %s; run the others "
                     "with ls_module_run_stage",
                     module->cls->name);
    }
    return status < 0 ? ls__fail_at_site(status) : LS_OK;
}

/* Errors come back as a tensor that carries them. */
ls_tensor *ls_forward(ls_module *module, ls_tensor *x)
{
    ls_tensor *y = NULL;
    ls_status status = check_module(module);
    if (status == LS_OK) {
        status = call(module, &x, 1, &y, 1);
    }
    if (status < 0) {
        ls__arrays_poison(&y, 1);
    }
    return y;
}

/* Returns failures that concern the call; a single poisoned output is left to the caller. */
static ls_status forward_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count)
{
    LS_TRY(check_module(module));
    const ls_status status = check_counts(module, inputs, input_count, outputs, output_count);
    return status < 0 ? ls__fail_at_site(status)
                      : call(module, inputs, input_count, outputs, output_count);
}

/* Also fails when the module succeeded but an output carries an error. */
ls_status ls_forward_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                          ls_tensor **outputs, int output_count)
{
    const ls_status status = forward_many(module, inputs, input_count, outputs, output_count);
    if (status < 0) {
        ls__arrays_poison(outputs, output_count);
        return status;
    }
    for (int i = 0; i < output_count; i++) {
        LS_TRY(ls_tensor_status(outputs[i]));
    }
    return LS_OK;
}

/* ---- recomputed --------------------------------------------------------------------------- */

/* Fits ls_forward to recomputation, which keeps the module as its argument. */
static ls_tensor *forward_of(ls_tensor *x, void *module)
{
    return ls_forward(module, x);
}

/* The module must live until backward has run the segment again. */
ls_tensor *ls_recompute(ls_module *module, ls_tensor *x)
{
    return ls_recompute_call(forward_of, x, module);
}

/* The same for several inputs and outputs. */
static ls_status forward_many_of(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                                 int output_count, void *module)
{
    return ls_forward_many(module, inputs, input_count, outputs, output_count);
}

ls_status ls_recompute_many(ls_module *module, ls_tensor *const *inputs, int input_count,
                            ls_tensor **outputs, int output_count)
{
    return ls_recompute_call_many(forward_many_of, inputs, input_count, outputs, output_count,
                                  module);
}
