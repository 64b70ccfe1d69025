/* SPDX-License-Identifier: Apache-2.0 */
/* Uneven inputs: a rank without data takes part in the backwards of the others.
 *
 *   rank 0   backward  backward  join      join
 *   rank 1   backward  join      join      join
 *   rank 2   backward  backward  backward  join ──▶ no rank has data: all leave
 *   divided by   3         3         3          initial world size, or
 *                3         2         1          ranks with data, or the sum of weights
 *
 * The control exchange that begins a backward says who has joined, so the ranks with data need no
 * call, and no exchange is added. A rank that has joined contributes zeros and gets the averages,
 * with which it steps like all others; so replicas and optimizers are equal after every step, and
 * no weights need to be sent at the end. */
#include <string.h>

#include "autograd/param.h"
#include "base/axes.h"
#include "base/config.h"
#include "base/options.h"
#include "ddp/wrapper.h"
#include "nn/batch_norm.h"
#include "reduce/reducer.h"

static ls_status pass(ls__ddp *d, const ls_reducer_begin_options *options)
{
    LS_TRY(ls__ddp_adopt_thawed(d));
    LS_TRY(ls__ddp_begin(d, options));
    return ls__ddp_end(d);
}

/* A backward that reaches nothing. A failure is told to the peers, as in ls_backward. */
static ls_status take_part(ls__ddp *d, const ls_ddp_join_options *options)
{
    const ls_status status =
        pass(d, LS_OPTIONS(ls_reducer_begin_options, .joined = true,
                           .divide_by_live = !options->divide_by_initial_world_size));
    return status < 0 ? ls__ddp_give_up(d, status) : LS_OK;
}

ls_status ls__ddp_pass_empty(ls__ddp *d, bool weighted, double weight)
{
    const size_t bytes = (size_t)d->param_count;
    if (!d->sync) {
        ls__reducer_count_idle(d->reducer, weighted ? weight : 1.0);
        return LS_OK;
    }
    uint8_t *used = d->env->allocate(d->env, bytes);
    ls_status status = LS_OK;
    if (used == NULL) {
        status = ls__fail(LS_ERR_MEMORY, "no memory for %d parameters", d->param_count);
        return ls__ddp_give_up(d, status);
    }
    memset(used, 0, bytes);
    status = pass(d, LS_OPTIONS(ls_reducer_begin_options, .local = d->remote != NULL, .used = used,
                                .weighted = weighted, .weight = weight));
    d->env->release(d->env, used, bytes);
    return status < 0 ? ls__ddp_give_up(d, status) : LS_OK;
}

/* The others' tokens visit experts of this rank, so they wait for its forward pass. */
static ls_status refuse_experts(const ls__ddp *d)
{
    for (int i = 0; i < d->param_count; i++) {
        const unsigned along = ls__param_complete(d->params[i].value);
        if (along == 0) {
            continue;
        }
        const ls_status status =
            ls__fail(LS_ERR_UNSUPPORTED,
                     "ls_ddp_join: %s is of experts that tokens of other ranks visit, and a rank "
                     "that has joined runs no forward pass; give all ranks equally many batches, "
                     "which may be empty",
                     d->params[i].name);
        for (int a = 0; d->runtime->axes != NULL && a < d->runtime->axes->count; a++) {
            if (along >> a & 1) {
                (void)ls_group_abort(d->runtime->axes->axis[a].group, ls_error_message());
            }
        }
        return status;
    }
    return LS_OK;
}

/* A module without a wrapper waits for no other rank. */
ls_status ls_ddp_join(ls_module *module, const ls_ddp_join_options *options, bool *more)
{
    if (module == NULL || more == NULL) {
        return ls__fail_at_site(
            ls__fail(LS_ERR_INVALID,
                     "ls_ddp_join: an argument is NULL; give a module and a place for *more"));
    }
    LS__OPTIONS(ls_ddp_join_options, given, options);
    ls__ddp *d = ls__ddp_of(module);
    *more = false;
    if (d == NULL) {
        return ls__ddp_refuse_beside(module, "ls_ddp_join");
    }
    LS_TRY(ls__ddp_refuse_remote(d, "ls_ddp_join", "call ls_server_join after the last batch"));
    if (d->shards) {
        return ls__fail_at_site(
            ls__fail(LS_ERR_UNSUPPORTED,
                     "ls_ddp_join: every step has all of its shards on the ranks to which "
                     "they belong; give all ranks equally many batches"));
    }
    ls__norm_sync *sync = ls__norm_sync_in(d->inner);
    if (sync != NULL) { /* the others wait in it for the forward pass of this rank */
        const ls_status status = ls__fail(
            LS_ERR_UNSUPPORTED,
            "ls_ddp_join: batch norm takes the statistics of all ranks "
            "(ls_sync_batch_norm_convert), and a rank that has joined runs no forward pass; "
            "give all ranks equally many batches, which may be empty, or leave one of "
            "them out");
        ls__norm_sync_abort(sync, ls_error_message());
        return ls__fail_at_site(status);
    }
    const ls_status experts = refuse_experts(d);
    if (experts < 0) {
        return ls__fail_at_site(experts);
    }
    if (d->local) {
        return ls__fail_at_site(ls__fail(
            LS_ERR_STATE, "ls_ddp_join: the replicas may differ (ls_ddp_set_local), so no rank "
                          "waits for this one in each step; call ls_ddp_average with the "
                          "weight 0 where the others call it"));
    }
    ls__config_set("autocast",
                   ls__self.autocast); /* as a forward pass does, which may never come */
    const ls__phase former = ls__activity_enter(LS__PHASE_BACKWARD, "ls_ddp_join");
    const ls_status status = take_part(d, &given);
    ls__activity_leave(former);
    LS_TRY(status);
    *more = ls__reducer_figures(d->reducer)->live_ranks > 0;
    return LS_OK;
}
