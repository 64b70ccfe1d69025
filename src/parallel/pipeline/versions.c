/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of a stage's parameters, for schedules that step while micro-batches are in flight
 * (PipeDream, Narayanan et al. 2019, section 3.3; PipeDream-2BW, 2021, section 3.1).
 *
 * A stash is a copy of all parameters. To bind it, each parameter's memory and the stash's change
 * places, and so do the counters of changes in place by which backward knows that it computes with
 * what its forward has read. The newest version is then in the stash, and comes back in the same
 * way before the optimizer steps. */
#include "autograd/param.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/runtime.h"
#include "parallel/pipeline/internal.h"

static ls__stash *stash_of(ls_pipeline *p, int version)
{
    for (int i = 0; i < p->stash_count; i++) {
        if (p->stashes[i].version == version) {
            return &p->stashes[i];
        }
    }
    return NULL;
}

/* The memory is kept from step to step. */
static ls_status make_copies(ls_pipeline *p, ls__stash *stash)
{
    for (int i = 0; i < p->param_count; i++) {
        ls_tensor *param = p->params[i].value;
        stash->copy[i] = ls_keep(ls_empty(ls_shape_of(param), ls_dtype_of(param)));
        LS_TRY(ls_tensor_status(stash->copy[i]));
    }
    return LS_OK;
}

static void swap_stash(ls_pipeline *p, ls__stash *stash)
{
    for (int i = 0; i < p->param_count; i++) {
        ls__param_swap(p->params[i].value, stash->copy[i]);
    }
}

/* Binds the newest version. */
static void bind_newest(ls_pipeline *p)
{
    if (p->bound != NULL) {
        swap_stash(p, p->bound);
        p->bound = NULL;
    }
}

/* Frees stashes that no later action of this rank's list loads. */
static void free_unneeded(ls_pipeline *p)
{
    const ls__actions *list = &p->schedule->rank[p->rank];
    for (int s = 0; s < p->stash_count; s++) {
        ls__stash *stash = &p->stashes[s];
        bool needed = false;
        for (int i = p->at; i < list->count && !needed; i++) {
            needed = list->list[i].kind == LS__LOAD && list->list[i].version == stash->version;
        }
        stash->version = needed ? stash->version : LS__STASH_FREE;
    }
}

ls_status ls__version_stash(ls_pipeline *p, int version)
{
    LS_ASSERT(version == p->newest);
    bind_newest(p);
    free_unneeded(p);
    ls__stash *stash = stash_of(p, LS__STASH_FREE);
    if (stash == NULL) {
        LS_ASSERT(p->stash_count < p->stash_room); /* the verifier's peak */
        stash = &p->stashes[p->stash_count++];     /* from now on ls__versions_free frees it */
        stash->version = LS__STASH_FREE;
        LS_TRY(make_copies(p, stash));
    }
    stash->version = version;
    for (int i = 0; i < p->param_count; i++) {
        ls__param_copy(p->params[i].value, stash->copy[i]);
    }
    return LS_OK;
}

ls_status ls__version_load(ls_pipeline *p, int version)
{
    bind_newest(p);
    if (version != p->newest) {
        p->bound = stash_of(p, version);
        LS_ASSERT(p->bound != NULL);
        swap_stash(p, p->bound);
    }
    return LS_OK;
}

const ls_param *ls__pipeline_nonfinite(const ls_pipeline *p, int64_t *at)
{
    for (int i = 0; i < p->param_count; i++) {
        ls_tensor *grad = ls_grad(p->params[i].value);
        *at = -1;
        if (grad != NULL && ls__tensor_nonfinite(grad, at) == LS_OK && *at >= 0) {
            return &p->params[i];
        }
    }
    return NULL;
}

/* The user cannot look at these gradients before they change the parameters. */
static ls_status check_gradients(const ls_pipeline *p)
{
    int64_t at = -1;
    char progress[LS__PROGRESS_MAX];
    const ls_param *param = ls__pipeline_nonfinite(p, &at);
    ls__activity_progress(ls__self.runtime->activity, progress);
    return param == NULL
               ? LS_OK
               : ls__fail(
                     LS_ERR_INVALID,
                     "ls_pipeline_backward: the gradient of %.200s is not finite on rank %d "
                     "(element %lld of %lld), and the optimizer has not stepped with it; look "
                     "for a division by zero or a logarithm of 0, or lower the learning rate%s",
                     param->name, ls_rank(), (long long)at, (long long)ls_numel(param->value),
                     progress);
}

/* The step of the optimizer, on the newest version. Without one it is the caller's, or there is
 * nothing to step. */
ls_status ls__version_step(ls_pipeline *p, int version)
{
    bind_newest(p);
    if (p->optim != NULL) {
        LS_TRY(check_gradients(p));
        ls__self.exchanges++; /* with the other stages: these parameters are on this rank only */
        LS_TRY(ls_optim_step(p->optim));
        ls_optim_zero_grad(p->optim);
    }
    p->newest = version;
    return ls__stage_log_made(p);
}

/* The versions of the next step's table begin with 0 again. */
void ls__versions_restart(ls_pipeline *p)
{
    bind_newest(p);
    for (int i = 0; i < p->stash_count; i++) {
        p->stashes[i].version = LS__STASH_FREE;
    }
    p->newest = 0;
}

void ls__versions_free(ls_pipeline *p)
{
    bind_newest(p);
    for (int s = 0; s < p->stash_count; s++) {
        for (int i = 0; i < p->param_count; i++) {
            ls_free(p->stashes[s].copy[i]);
        }
    }
}
