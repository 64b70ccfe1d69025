/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with arrays of inputs and outputs: modules, recomputed functions, functions of users. They
 * share the checks of the arrays, the reading of an input, and the end: either all outputs are
 * results, or all carry the error. */
#include "autograd/arrays.h"

#include "tensor/fill.h"

/* The outputs are checked before anything runs, because ls__arrays_poison writes to them after a
 * failure. */
ls_status ls__arrays_check(const char *name, ls_tensor *const *inputs, int input_count,
                           ls_tensor *const *outputs, int output_count)
{
    const int most = LS_CALL_TENSORS_MAX;
    if (inputs == NULL || outputs == NULL) {
        return ls__fail(LS_ERR_INVALID, "%s: the array of %s is NULL; give an array of 1 to %d",
                        name, inputs == NULL ? "inputs" : "outputs", most);
    }
    if (input_count < 1 || input_count > most || output_count < 1 || output_count > most) {
        return ls__fail(LS_ERR_INVALID, "%s: %d inputs and %d outputs; give 1 to %d of each", name,
                        input_count, output_count, most);
    }
    return LS_OK;
}

/* A poisoned input keeps its first error, so the call adds neither its name nor a line. */
ls_status ls__arrays_input(ls__tensors *tensors, const char *name, ls_tensor *const *inputs, int i,
                           int count, bool optional, ls__record **out)
{
    *out = NULL;
    if (inputs[i] == NULL && optional) {
        return LS_OK;
    }
    ls__record *record = ls__record_of(tensors, inputs[i], name, count > 1 ? i + 1 : 0);
    if (record == NULL) {
        return ls__fail_at_site(ls__self.status);
    }
    if (record->status < 0) {
        return ls_tensor_status(inputs[i]);
    }
    if (!ls__self.no_grad && !ls__graph_open(record)) {
        return ls__fail_at_site(ls__fail_within(ls__self.status, "%s", name));
    }
    const ls_status settled = ls__fill_settle(record->storage);
    if (settled < 0) {
        return ls__fail_at_site(ls__fail_within(settled, "%s", name));
    }
    *out = record;
    return LS_OK;
}

/* The array may be what the call complained about, so a missing or oversized one is left alone. */
void ls__arrays_poison(ls_tensor **outputs, int count)
{
    const ls_status status = ls__self.status;
    ls__tensors *tensors = ls__tensors_get("forward");
    const bool possible = outputs != NULL && count <= LS_CALL_TENSORS_MAX;
    for (int i = 0; possible && i < count; i++) {
        outputs[i] = tensors != NULL ? ls__poison(tensors) : ls__poison_fixed(status);
    }
}

/* `y` is read only after success: a failed call need not have filled it. */
ls_status ls__arrays_finish(ls__call *call, ls_status status, ls__record *const *y,
                            ls_tensor **outputs, int count)
{
    if (status < 0) {
        ls__arrays_poison(outputs, count);
        return status;
    }
    outputs[0] = ls__call_finish(call, y[0]);
    for (int i = 1; i < count; i++) {
        outputs[i] = ls__handle(y[i]);
    }
    return LS_OK;
}
