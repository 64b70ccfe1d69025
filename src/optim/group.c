/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of parameters with a learning rate and a weight decay of their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/size.h"
#include "optim/optim.h"

double ls__optim_lr_scale(const ls_optim *o, const ls__optim_param *param)
{
    LS_ASSERT(param->group >= 0 && param->group <= o->group_count);
    return param->group > 0 ? o->groups[param->group - 1].lr_scale : 1.0;
}

double ls__optim_lr_of(const ls_optim *o, const ls__optim_param *param)
{
    return o->hyper[0] * ls__optim_lr_scale(o, param);
}

double ls__optim_decay_of(const ls_optim *o, const ls__optim_param *param)
{
    const double own = param->group > 0 ? o->groups[param->group - 1].weight_decay : LS_OPTIM_DECAY;
    return own >= 0.0 ? own : o->hyper[o->cls->decay];
}

/* ---- adding --------------------------------------------------------------------------------- */

static ls_status check_options(const ls_optim *o, const ls_optim_group_options *given)
{
    LS_TRY(ls__optim_check(o->cls->name, "lr_scale", given->lr_scale, 0.0, INFINITY));
    if (given->weight_decay != LS_OPTIM_DECAY) {
        LS_TRY(ls__optim_check(o->cls->name, "weight_decay of a group", given->weight_decay, 0.0,
                               INFINITY));
    }
    return LS_OK;
}

/* The step counts come from a loaded checkpoint, too. */
static ls_status check_before_first_step(const ls_optim *o)
{
    for (int i = 0; i < o->count; i++) {
        if (o->params[i].steps > 0) {
            return ls__fail(LS_ERR_STATE,
                            "ls_optim_add_group: this %s has stepped already; add all groups "
                            "before the first ls_optim_step and before a checkpoint is loaded",
                            o->cls->name);
        }
    }
    return LS_OK;
}

/* Nothing is changed yet, because a refusal must change nothing. Adds the number of parameters to
 * *count and keeps the name of the first. */
static ls_status choose(ls_optim *o, ls_select_fn select, void *arg, int *count, const char **first)
{
    for (int i = 0; i < o->count; i++) {
        ls__optim_param *param = &o->params[i];
        LS_TRY(ls_tensor_status(param->value)); /* else the name may have died with the module */
        param->chosen = select(arg, param->name, param->value);
        if (param->chosen && param->group != 0) {
            return ls__fail(LS_ERR_STATE,
                            "ls_optim_add_group: %s is in group %d of this %s already; a "
                            "parameter can be in one group only",
                            param->name, param->group, o->cls->name);
        }
        if (param->chosen && (*count)++ == 0) {
            *first = param->name;
        }
    }
    if (*count == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_optim_add_group: none of the %d parameters of this %s is selected; "
                        "compare with their names (ls_module_params)",
                        o->count, o->cls->name);
    }
    return LS_OK;
}

static ls_status append(ls_optim *o, const ls_optim_group_options *given)
{
    size_t bytes;
    ls__optim_group *groups =
        ls__bytes_of(o->group_count + 1, sizeof *groups, &bytes) ? realloc(o->groups, bytes) : NULL;
    if (groups == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a group", o->cls->name);
    }
    o->groups = groups;
    groups[o->group_count++] = (ls__optim_group){given->lr_scale, given->weight_decay};
    return LS_OK;
}

/* The ranks compare the number and the first name: selections that differ mostly differ there. */
static void note_config(const ls_optim *o, const ls_optim_group_options *given, int count,
                        const char *first)
{
    char decay[32] = "the optimizer's", own[LS__CONFIG_OWN];
    if (given->weight_decay != LS_OPTIM_DECAY) {
        (void)snprintf(decay, sizeof decay, "%.9g", given->weight_decay);
    }
    (void)snprintf(own, sizeof own, " (%d parameters of %s, %.40s the first)", count, o->cls->name,
                   first);
    ls__config_note(&(ls__config_of){o, ls__optim_shared}, "optimizer group", own,
                    "lr_scale %.9g, weight_decay %s", given->lr_scale, decay);
}

ls_status ls_optim_add_group(ls_optim *o, ls_select_fn select, void *arg,
                             const ls_optim_group_options *options)
{
    if (o == NULL || select == NULL) {
        return o == NULL ? ls__optim_missing("ls_optim_add_group")
                         : ls__fail(LS_ERR_INVALID, "ls_optim_add_group: select is NULL; give a "
                                                    "function such as ls_select_vectors");
    }
    LS__OPTIONS(ls_optim_group_options, given, options);
    int count = 0;
    const char *first = NULL;
    LS_TRY(check_options(o, &given));
    LS_TRY(check_before_first_step(o));
    LS_TRY(choose(o, select, arg, &count, &first));
    LS_TRY(append(o, &given));
    for (int i = 0; i < o->count; i++) {
        o->params[i].group = o->params[i].chosen ? o->group_count : o->params[i].group;
    }
    note_config(o, &given, count, first);
    return LS_OK;
}
