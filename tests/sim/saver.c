/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of the simulated job: what is saved on the way, and a second job, after the first
 * one's end, that must find it: the newest that was confirmed to anybody, or a later one, byte for
 * byte. */
#include <stdio.h>
#include <string.h>

#include <lockstep/checkpoint.h>
#include <lockstep/comm.h>

#include "base/options.h"
#include "sim/scenario.h"

#define FOLDER "/run"

/* ---- a state that follows from the step ------------------------------------------------------ */

static void fill(ls__saved *s, int64_t step)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < LS__SAVED_ROWS * 3; i++) {
        s->weight[i] = ls__oracle_float((uint64_t)step, 0, i);
    }
    s->count = -step;
    s->rate = (double)step / 3.0;
}

static bool is_of(const ls__saved *s, int64_t step)
{
    ls__saved expected;
    fill(&expected, step);
    return memcmp(&expected, s, sizeof expected) == 0;
}

static ls_status visit(void *object, const char *prefix, const ls_state_visitor *v)
{
    ls__saved *s = object;
    const ls_state_tensor weight = {.dtype = LS_FLOAT32,
                                    .ndim = 2,
                                    .global = {LS__SAVED_ROWS, 3},
                                    .local = {LS__SAVED_ROWS, 3},
                                    .data = s->weight};
    (void)prefix;
    LS_TRY(v->tensor(v->self, "weight", &weight));
    LS_TRY(v->int64(v->self, "count", &s->count));
    return v->float64(v->self, "rate", &s->rate);
}

static ls_checkpoint_item item_of(ls__saved *s)
{
    return (ls_checkpoint_item){
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = s, .state = visit};
}

/* ---- on the way ------------------------------------------------------------------------------ */

static void confirm(ls__saver *saver)
{
    ls__plan *plan = saver->plan;
    if (saver->pending > plan->confirmed) {
        plan->confirmed = saver->pending;
        ls__sim_note("step %lld is confirmed", (long long)saver->pending);
    }
}

ls_status ls__saver_begin(ls__saver *saver, ls__plan *plan)
{
    *saver = (ls__saver){.plan = plan};
    return ls_checkpoint_new(FOLDER, ls_world(),
                             LS_OPTIONS(ls_checkpoint_options, .async = plan->save_async,
                                        .timeout_ms = plan->timeout_ms),
                             &saver->checkpoint);
}

ls_status ls__saver_save(ls__saver *saver, int64_t step)
{
    const ls_checkpoint_item item = item_of(&saver->state);
    ls__plan *plan = saver->plan;
    fill(&saver->state, step);
    plan->attempted = step > plan->attempted ? step : plan->attempted;
    const ls_status status = ls_checkpoint_save(saver->checkpoint, step, &item, 1);
    if (status != LS_OK) {
        saver->pending = 0; /* if it was the one before that failed, this told of it */
        return status;
    }
    if (plan->save_async) {
        confirm(saver); /* the one before */
    }
    saver->pending = step;
    if (!plan->save_async) {
        confirm(saver);
    }
    return LS_OK;
}

ls_status ls__saver_end(ls__saver *saver)
{
    const ls_status status = ls_checkpoint_free(saver->checkpoint);
    saver->checkpoint = NULL;
    if (status == LS_OK) {
        confirm(saver);
    }
    return status;
}

/* ---- afterwards ------------------------------------------------------------------------------ */

/* What the second job found; NULL: what it must find. */
static void look(ls__plan *plan, ls_status status, int64_t step, const ls__saved *state)
{
    if (status == LS_ERR_NOT_FOUND && plan->confirmed == 0) {
        return;
    }
    if (status != LS_OK) {
        ls__sim_stop("step %lld was confirmed, and loading says: %s", (long long)plan->confirmed,
                     ls_error_message());
    } else if (step < plan->confirmed || step > plan->attempted) {
        ls__sim_stop("step %lld was confirmed, and step %lld is loaded", (long long)plan->confirmed,
                     (long long)step);
    } else if (!is_of(state, step)) {
        ls__sim_stop("what is loaded as step %lld is not what was saved", (long long)step);
    }
}

int ls__resume_main(void *arg)
{
    ls__plan *plan = arg;
    ls__saver saver;
    ls__saved *state = ls__sim_alloc(sizeof *state);
    const ls_checkpoint_item item = item_of(state);
    int64_t step = 0;
    ls_status status = ls_init(NULL);
    status = status == LS_OK ? ls__saver_begin(&saver, plan) : status;
    if (status != LS_OK) {
        ls__sim_stop("the second job: %s", ls_error_message());
        return 1;
    }
    status = ls_checkpoint_load(saver.checkpoint, &item, 1, &step);
    look(plan, status, step, state);
    status = ls_checkpoint_free(saver.checkpoint);
    if (status != LS_OK || ls_finalize() != LS_OK) {
        ls__sim_stop("the second job: %s", ls_error_message());
    }
    return 0;
}
