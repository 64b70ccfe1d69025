/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapper's part in a captured step (Note [Replays of several ranks] in reduce/captured.c). */
#include "device/captured.h"

#include "autograd/param.h"
#include "ddp/apart.h"
#include "ddp/wrapper.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

static ls__ddp *ddp_of(const ls__captured_ranks *ranks)
{
    return LS__LIST_ITEM((ls__captured_ranks *)(uintptr_t)ranks, ls__ddp, captured);
}

/* ---- in the step ---------------------------------------------------------------------------- */

static bool holds_gradients(const ls__ddp *d)
{
    bool holds = false;
    for (int i = 0; i < d->param_count && ls__self.captured != NULL; i++) {
        holds = holds || *ls__reducer_present(d->reducer, i);
    }
    return holds;
}

/* Why a backward that synchronises cannot be recorded; NULL: it can. */
static const char *obstacle_of(const ls__ddp *d, const ls__backward_info *info)
{
    const char *of_reducer = ls__reducer_obstacle(d->reducer);
    const bool continues = ls__self.captured != NULL && ls__self.captured->adds_up == d;
    return of_reducer != NULL     ? of_reducer
           : d->optim != NULL     ? "ls_ddp_step_in_backward steps within the backward pass"
           : d->buffers.count > 0 ? "ls_ddp_new broadcasts buffers in each step (broadcast_buffers)"
           : !continues && holds_gradients(d)
               ? "gradients of ls_ddp_new were added up before it; make all backwards of a step in "
                 "the function"
           : info->weighted ? "ls_backward_weighted over several ranks, whose weights may change"
                            : NULL;
}

void ls__ddp_captured_begin(ls__ddp *d, const ls__backward_info *info, bool local)
{
    const char *obstacle = local ? NULL : obstacle_of(d, info);
    if (!d->on_host && !local) {
        ls__captured_join(&d->captured);
    }
    if (obstacle != NULL) {
        ls__captured_refuse(obstacle);
    }
    if (ls__self.captured != NULL) {
        ls__self.captured->adds_up = local ? d : NULL;
    }
    for (int i = 0; i < d->param_count && ls__captured_records(); i++) {
        ls__param_meet_grad(d->params[i].value); /* averages come to all of them */
    }
    d->noticed = ls__reducer_noticed(d->reducer);
    ls__reducer_record(d->reducer, ls__captured_records() && obstacle == NULL);
}

void ls__ddp_captured_end(ls__ddp *d)
{
    ls__reducer_record(d->reducer, false);
    if (ls__self.captured != NULL) {
        ls__self.captured->noticed += ls__reducer_noticed(d->reducer) - d->noticed;
    }
}

static ls_status share(ls__captured_ranks *ranks, int64_t *worst)
{
    const ls__ddp *d = ddp_of(ranks);
    return ls__reducer_record_max(d->reducer, worst, ls__ddp_stream(d));
}

static int rank_of(const ls__captured_ranks *ranks)
{
    return ddp_of(ranks)->runtime->rank;
}

/* ---- beside it ------------------------------------------------------------------------------ */

/* In steps in which the ranks compare their parameters nothing is replayed, and in none that begins
 * under LS_NO_SYNC. */
static ls_status vote(ls__captured_ranks *ranks, ls__captured_vote *v)
{
    ls__ddp *d = ddp_of(ranks);
    const bool plain = (ls__ddp_compares(d) || !d->sync) && v->act > LS__CAPTURED_WATCH;
    v->held = plain && !d->sync ? "runs begin while ls_ddp_set_sync is false (LS_NO_SYNC); turn "
                                  "synchronisation off within the step"
                                : NULL;
    ls__reducer_vote of = {.act = (int32_t)(plain ? LS__CAPTURED_PLAIN : v->act),
                           .refuses = v->refuses,
                           .step = v->step,
                           .recorded = v->recorded};
    LS_TRY(ls__reducer_vote_run(d->reducer, &of));
    if (of.act == LS__CAPTURED_RECORD) {
        ls__reducer_record_anew(d->reducer);
    } else if (of.act == LS__CAPTURED_REPLAY) {
        d->passes++;
        d->grads = GRADS_USABLE;
        ls__reducer_count_replay(d->reducer);
    }
    v->act = (ls__captured_act)of.act;
    v->refuses = of.refuses;
    v->recorded = of.recorded;
    return LS_OK;
}

static ls_status recorded(ls__captured_ranks *ranks, bool well, int *failed)
{
    ls__ddp *d = ddp_of(ranks);
    ls__reducer_recorded of = {0};
    ls__reducer_get_recorded(d->reducer, &of);
    of.failed = !well;
    LS_TRY(ls__reducer_vote_recorded(d->reducer, &of));
    *failed = of.failed;
    return LS_OK;
}

static ls_status replayed(ls__captured_ranks *ranks, uint64_t step, uint64_t number)
{
    const ls__ddp *d = ddp_of(ranks);
    return ls__reducer_replayed(d->reducer, ls__ddp_stream(d), step, number);
}

static ls_status status_of(const ls__captured_ranks *ranks)
{
    return ls__reducer_status(ddp_of(ranks)->reducer);
}

static void abort_all(ls__captured_ranks *ranks, ls_status status, const char *message)
{
    ls__reducer_abort(ddp_of(ranks)->reducer, status, message);
}

void ls__ddp_captured_init(ls__ddp *d)
{
    d->captured = (ls__captured_ranks){.vote = vote,
                                       .recorded = recorded,
                                       .replayed = replayed,
                                       .status = status_of,
                                       .abort = abort_all,
                                       .share = share,
                                       .rank = rank_of};
}
