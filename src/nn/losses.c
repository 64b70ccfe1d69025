/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of layers in the middle of a model, which join that at its end: each module notes the one
 * of its last forward. A pipeline takes those of a stage when the stage has run. */
#include "nn/losses.h"

#include "nn/module.h"
#include "tensor/op.h"

/* It may be read after backward, so it is the caller's and not the module's own. */
ls_status ls_module_set_loss(ls_module *module, ls_tensor *loss)
{
    if (module == NULL) {
        return ls__fail(LS_ERR_INVALID, "module_set_loss: the module is NULL; give the one whose "
                                        "forward has computed the loss");
    }
    if (loss != NULL && ls_tensor_status(loss) == LS_OK && ls_numel(loss) != 1) {
        return ls__fail(
            LS_ERR_INVALID,
            "module_set_loss: the loss of the %s has %lld elements; give one of exactly "
            "one (ls_mean and ls_sum make one)",
            ls__module_name(module), (long long)ls_numel(loss));
    }
    if (loss != NULL && !ls_recomputing()) {
        ls__tensor_give_out(loss);
    }
    module->entries->loss = loss;
    return LS_OK;
}

/* The recursion is bounded by LS__MODULE_DEPTH_MAX. */
static void add(const ls_module *module, ls_tensor **sum)
{
    ls_tensor *loss = module->entries->loss;
    if (loss != NULL) {
        *sum = *sum != NULL ? ls_add(*sum, loss) : loss;
    }
    for (int i = 0; i < ls_module_child_count(module); i++) {
        add(ls_module_child_at(module, i), sum);
    }
}

ls_tensor *(ls_module_loss)(ls_module *module)
{
    ls_tensor *sum = NULL;
    if (module == NULL) {
        (void)ls__fail(LS_ERR_INVALID, "module_loss: the module is NULL; give the model");
        return ls__call_refused();
    }
    add(module, &sum);
    return sum != NULL ? sum : ls_zeros(LS_SCALAR, LS_FLOAT32);
}

void ls__losses_forget(ls_module *module)
{
    module->entries->loss = NULL;
    for (int i = 0; i < ls_module_child_count(module); i++) {
        ls__losses_forget(ls_module_child_at(module, i));
    }
}
