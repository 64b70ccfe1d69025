/* The common part of all optimizers: making one, its list of parameters, and its settings. step.c
 * has the steps, state.c the state.
 */
#include "optim/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/text.h"
#include "nn/module.h"
#include "tensor/fill.h"
#include "tensor/tensor.h"

/* NaN fails too: every comparison with it is false. */
ls_status ls__optim_check(const char *optim, const char *name, double value, double low,
                          double high)
{
    if (value >= low && value < high) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID, "%s: %s is %g; it must be in [%g, %g)", optim, name, value, low,
                    high);
}

/* Public calls check for NULL: a constructor may have failed unnoticed. */
ls_status ls__optim_missing(const char *call)
{
    return ls__fail(LS_ERR_INVALID,
                    "%s: the optimizer is NULL; check what its constructor returned", call);
}

/* ---- making ------------------------------------------------------------------------------- */

/* Borrows names and tensors from the module, which must outlive the optimizer. Buffers are
 * skipped. */
static ls_status list_params(ls_optim *o, ls_module *module)
{
    int items = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    if (item == NULL) {
        return ls__self.status;
    }
    o->params = calloc((size_t)items + 1, sizeof *o->params);
    if (o->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d parameters", o->cls->name, items);
    }
    for (int i = 0; i < items; i++) {
        if (item[i].buffer) {
            continue;
        }
        const ls_dtype dtype = ls_dtype_of(item[i].value);
        ls__fill_set_optimized(item[i].value);
        LS_ASSERT(dtype == LS_FLOAT32 || dtype == LS_BFLOAT16); /* as ls_module_add_param saw to */
        o->params[o->count++] = (ls__optim_param){.name = item[i].name,
                                                  .value = item[i].value,
                                                  .count = ls_numel(item[i].value),
                                                  .own = ls_numel(item[i].value),
                                                  .half = dtype == LS_BFLOAT16};
    }
    if (o->count == 0) {
        return ls__fail(LS_ERR_INVALID, "%s: the module has no parameters; give the one to train",
                        o->cls->name);
    }
    return LS_OK;
}

/* What ls_optim_step passes on, and room for the parts that it makes of it, so that no step
 * allocates. */
static ls_status list_ranges(ls_optim *o)
{
    o->whole = calloc((size_t)o->count, sizeof *o->whole);
    o->parts = calloc((size_t)o->count, sizeof *o->parts);
    if (o->whole == NULL || o->parts == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d parameters", o->cls->name, o->count);
    }
    for (int i = 0; i < o->count; i++) {
        o->whole[i] = (ls__optim_range){.param = i, .count = o->params[i].count};
    }
    o->part_room = o->count;
    return LS_OK;
}

/* Notes name, parameters and hyper-parameters for the comparison in dist/agree.c: ranks
 * whose optimizers differ drift apart although their gradients are equal. */
static void note_config(ls_optim *o)
{
    char hyper[LS__CONFIG_TEXT] = "", own[LS__CONFIG_OWN];
    ls__text to = {hyper, sizeof hyper};
    for (int h = 0; h < o->cls->hyper_count; h++) {
        ls__text_add(&to, ", %s %.9g", o->cls->hyper_name[h], o->hyper[h]);
    }
    (void)snprintf(own, sizeof own, " (%d parameters)", o->count);
    ls__config_note("optimizer", own, "%s%s", o->cls->name, hyper);
}

/* No state is allocated yet: a wrapper may still move the parameters (docs/design.md, D9). */
ls_optim *ls__optim_new(ls_module *module, const ls__optim_class *cls, const double *hyper,
                        int state_count)
{
    ls__tensors *tensors = ls__tensors_get(cls->name);
    if (tensors != NULL && module == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "%s: the module is NULL; check what its constructor returned", cls->name);
    }
    if (tensors == NULL || module == NULL || ls_module_status(module) < 0) {
        return NULL;
    }
    ls_optim *o = calloc(1, sizeof *o);
    if (o == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "%s: no memory", cls->name);
        return NULL;
    }
    LS_ASSERT(cls->hyper_count <= LS__OPTIM_HYPER_MAX && state_count <= LS__OPTIM_STATE_MAX);
    o->cls = cls;
    o->env = tensors->runtime->env;
    o->exchanges = ls__self.exchanges;
    ls__runtime_enter(tensors->runtime, &o->guest);
    o->state_count = state_count;
    memcpy(o->hyper, hyper, (size_t)cls->hyper_count * sizeof *hyper);
    if (list_params(o, module) < 0 || list_ranges(o) < 0) {
        ls_optim_free(o);
        return NULL;
    }
    note_config(o);
    return o;
}

/* The parameters are the module's and stay as they are. Also after ls_finalize. */
void ls_optim_free(ls_optim *o)
{
    if (o == NULL) {
        return;
    }
    if (o->staged && o->guest.runtime != NULL) {
        ls__config_forget(o->lr_name);
        ls__config_forget(o->steps_name);
    }
    ls__runtime_leave(&o->guest);
    if (o->memory != NULL) {
        o->memory_of->release(o->memory_of, o->memory, o->memory_bytes);
    }
    free(o->groups);
    free(o->parts);
    free(o->whole);
    free(o->params);
    free(o);
}

/* Makes gradients absent without writing to them; the next backward overwrites. */
void ls_optim_zero_grad(ls_optim *o)
{
    for (int i = 0; o != NULL && i < o->count; i++) {
        (void)ls__param_set_grad_present(o->params[i].value, false);
    }
}

/* The value is checked by the next step, because this function returns no status. */
void ls_optim_set_lr(ls_optim *o, double lr)
{
    if (o != NULL) {
        o->hyper[0] = lr;
    }
}

/* 0 for NULL. */
double ls_optim_lr(const ls_optim *o)
{
    return o != NULL ? o->hyper[0] : 0.0;
}
