/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of all optimizers: making one, its list of parameters, and its settings. step.c
 * has the steps, state.c the state.
 */
#include "optim/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/size.h"
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

/* Whether the optimizer has it already: modules may share a parameter. */
static bool has_param(const ls_optim *o, const ls_tensor *value)
{
    for (int i = 0; i < o->count; i++) {
        if (o->params[i].value == value) {
            return true;
        }
    }
    return false;
}

/* The module's name of a parameter, or `prefix`.name in memory of the optimizer's; NULL: none. */
static const char *name_of(const char *prefix, const ls__module_item *item, char **owned)
{
    const size_t bytes = prefix != NULL ? strlen(prefix) + strlen(item->name) + 2 : 0;
    if (prefix == NULL) {
        return item->name;
    }
    *owned = malloc(bytes);
    if (*owned != NULL) {
        (void)snprintf(*owned, bytes, "%s.%s", prefix, item->name);
    }
    return *owned;
}

static ls_status list_param(ls_optim *o, const char *prefix, const ls__module_item *item)
{
    const ls_dtype dtype = ls_dtype_of(item->value);
    ls__optim_param *param = &o->params[o->count];
    *param = (ls__optim_param){.value = item->value,
                               .count = ls_numel(item->value),
                               .own = ls_numel(item->value),
                               .half = dtype == LS_BFLOAT16};
    param->name = name_of(prefix, item, &param->own_name);
    if (param->name == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a name", o->cls->name);
    }
    ls__fill_set_optimized(item->value);
    LS_ASSERT(dtype == LS_FLOAT32 || dtype == LS_BFLOAT16); /* as ls_module_add_param saw to */
    o->count++;
    return LS_OK;
}

/* Appends the module's parameters. Borrows names, without a prefix, and tensors from the module,
 * which must outlive the optimizer. Buffers are skipped. */
static ls_status list_params(ls_optim *o, const char *prefix, ls_module *module)
{
    int items = 0;
    const ls__module_item *item = ls__module_items(module, &items);
    size_t bytes;
    if (item == NULL) {
        return ls__self.status;
    }
    ls__optim_param *params = ls__bytes_of((int64_t)o->count + items + 1, sizeof *params, &bytes)
                                  ? realloc(o->params, bytes)
                                  : NULL;
    if (params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d parameters", o->cls->name, items);
    }
    o->params = params;
    for (int i = 0; i < items; i++) {
        if (!item[i].buffer && (prefix == NULL || !has_param(o, item[i].value))) {
            LS_TRY(list_param(o, prefix, &item[i]));
        }
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
    ls__optim_range *whole = calloc((size_t)o->count, sizeof *whole);
    ls__step_part *parts = calloc((size_t)o->count, sizeof *parts);
    if (whole == NULL || parts == NULL) {
        free(whole);
        free(parts);
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %d parameters", o->cls->name, o->count);
    }
    for (int i = 0; i < o->count; i++) {
        whole[i] = (ls__optim_range){.param = i, .count = o->params[i].count};
    }
    free(o->whole);
    free(o->parts);
    o->whole = whole;
    o->parts = parts;
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
    ls__config_note(&(ls__config_of){o, ls__optim_shared}, "optimizer", own, "%s%s", o->cls->name,
                    hyper);
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
    if (list_params(o, NULL, module) < 0 || list_ranges(o) < 0) {
        ls_optim_free(o);
        return NULL;
    }
    note_config(o);
    return o;
}

/* The parameters from number `first` on. */
static void forget_params(ls_optim *o, int first)
{
    for (; o->count > first; o->count--) {
        free(o->params[o->count - 1].own_name);
    }
}

/* The parameters are the module's and stay as they are. Also after ls_finalize. */
void ls_optim_free(ls_optim *o)
{
    if (o == NULL) {
        return;
    }
    if (o->guest.runtime != NULL) {
        ls__config_drop(o);
        ls__config_forget(o->lr_name);
        ls__config_forget(o->steps_name);
        ls__config_forget(o->trained_name);
    }
    ls__runtime_leave(&o->guest);
    if (o->memory != NULL) {
        o->memory_of->release(o->memory_of, o->memory, o->memory_bytes);
    }
    free(o->groups);
    free(o->parts);
    free(o->whole);
    forget_params(o, 0);
    free(o->params);
    free(o);
}

/* ---- several modules ------------------------------------------------------------------------ */

/* Names of the state are unique: no parameter has the prefix yet. */
static ls_status check_name(const ls_optim *o, const char *name)
{
    const size_t length = name != NULL ? strlen(name) : 0;
    if (length == 0 || length > LS__MODULE_NAME_MAX) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_optim_add_module: the name \"%.80s\" has %zu characters; give it 1 to %d",
            name != NULL ? name : "", length, LS__MODULE_NAME_MAX);
    }
    for (int i = 0; i < o->count; i++) {
        if (strncmp(o->params[i].name, name, length) == 0 && o->params[i].name[length] == '.') {
            return ls__fail(LS_ERR_INVALID,
                            "ls_optim_add_module: this %s has a parameter %s already; give the "
                            "module another name than \"%s\"",
                            o->cls->name, o->params[i].name, name);
        }
    }
    return LS_OK;
}

/* State is laid out once, and a loaded checkpoint would have none of these. */
static ls_status check_unstepped(const ls_optim *o)
{
    return o->memory == NULL && o->round == 0
               ? LS_OK
               : ls__fail(LS_ERR_STATE,
                          "ls_optim_add_module: this %s has state already; add all modules before "
                          "the first ls_optim_step and before a checkpoint is saved or loaded",
                          o->cls->name);
}

/* As it was on a failure. */
ls_status ls_optim_add_module(ls_optim *o, const char *name, ls_module *module)
{
    if (o == NULL || module == NULL) {
        return o == NULL
                   ? ls__optim_missing("ls_optim_add_module")
                   : ls__fail(LS_ERR_INVALID, "ls_optim_add_module: the module is NULL; check "
                                              "what its constructor returned");
    }
    LS_TRY(ls_module_status(module));
    LS_TRY(check_name(o, name));
    LS_TRY(check_unstepped(o));
    const int before = o->count;
    ls_status status = list_params(o, name, module);
    status = status < 0 ? status : list_ranges(o);
    if (status < 0) {
        forget_params(o, before);
        return status;
    }
    note_config(o);
    return LS_OK;
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
