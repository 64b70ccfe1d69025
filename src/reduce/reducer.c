/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: a state machine over buckets (Li et al., VLDB 2020, sections 3.2.3 and 4.2).
 *
 *   begin ──▶ CONTROL ──(exchange done)──▶ RUNNING ──(wait)──▶ IDLE        FAILED from anywhere
 *
 *   ready(i):  bucket.pending--, and when it is 0 the bucket's exchange may begin (exchange.c)
 */

#include "reduce/reducer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/trace.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "kernel/reduce/reduce.h"
#include "reduce/bucket.h"
#include "reduce/compare.h"
#include "reduce/device.h"
#include "reduce/domain.h"
#include "reduce/exchange.h"
#include "reduce/internal.h"
#include "reduce/plan.h"
#include "reduce/shards.h"

/* Before the first backward, so no lock is needed. */
void ls__reducer_set_overwrites(ls_reducer *r)
{
    r->overwrites = true;
}

/* Borrowed; it lives as long as the reducer. */
ls_group *ls__reducer_group(const ls_reducer *r)
{
    return r->group;
}

/* The same on every rank: all saw the same exchange. */
int ls__reducer_first_live(const ls_reducer *r)
{
    return r->first_live;
}

/* Peers learn of the failure at once, and their operations in these groups end with `status` and
 * this text. */
void ls__reducer_abort(ls_reducer *r, ls_status status, const char *message)
{
    char text[LS__MESSAGE_MAX];
    ls__group_failure_say(r->group, message, text, sizeof text);
    ls__reducer_fail(r, status, text);
}

/* ---- a backward begins -------------------------------------------------------------------- */

/* Takes the lock, because the engine's thread changes the phase while a synchronising backward
 * runs. */
bool ls__reducer_is_idle(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    bool idle = r->phase == LS__REDUCER_IDLE;
    ls__unlock(&r->lock, r->runtime->env);
    return idle;
}

/* Only after all works have been waited for: no callback can come any more. */
static void become_idle(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    LS_ASSERT(r->phase != LS__REDUCER_IDLE && !r->pass.stepping);
    r->phase = LS__REDUCER_IDLE;
    ls__unlock(&r->lock, r->runtime->env);
}

/* A group that failed earlier stays failed; its error is returned again. */
static ls_status check_begin(ls_reducer *r, const ls_reducer_begin_options *options)
{
    for (int d = 0; d < r->domain_count; d++) {
        LS_TRY(ls_group_status(r->domains[d].group));
    }
    if (!ls__reducer_is_idle(r)) {
        return ls__fail(LS_ERR_STATE,
                        "reducer \"%s\": ls_reducer_begin while a synchronising backward is under"
                        " way; call ls_reducer_wait first",
                        r->name);
    }
    if (options->joined && options->local) {
        return ls__fail(
            LS_ERR_INVALID,
            "reducer \"%s\": a backward of a rank that has joined cannot be local; give "
            "joined or local",
            r->name);
    }
    if (!(options->weight >= 0.0) || isinf(options->weight)) {
        return ls__fail(LS_ERR_INVALID, "reducer \"%s\": the weight is %g; give a finite one >= 0",
                        r->name, options->weight);
    }
    return LS_OK;
}

/* Whether this backward reaches the parameter; that of a rank without data reaches none. */
static bool reaches(const ls_reducer_begin_options *options, int param)
{
    return !options->joined && (options->used == NULL || options->used[param]);
}

/* Resets what belongs to one backward. A parameter that will not be reached counts as ready from
 * the start. */
static void count_pending(ls_reducer *r, const ls_reducer_begin_options *options)
{
    ls__exchange_begin(r);
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        const bool reached = reaches(options, i);
        param->ready = !reached;
        param->ready_ns = 0;
        r->plan.buckets[param->bucket].pending += reached;
    }
}

/* One more micro-batch; a rank without data counts none. */
static ls_status count_weight(ls_reducer *r, const ls_reducer_begin_options *options)
{
    r->pass.flags = r->differ ? LS__REDUCE_DIFFER : 0;
    if (options->joined) {
        r->pass.flags |= LS__REDUCE_JOINED | (options->divide_by_live ? LS__REDUCE_LIVE : 0);
        return LS_OK;
    }
    if ((r->weight > 0.0 || r->shards.done > 0) && r->weighted != options->weighted) {
        return ls__fail(LS_ERR_STATE,
                        "reducer \"%s\": weighted and plain backwards are mixed in one step; use"
                        " one form for all of its micro-batches",
                        r->name);
    }
    r->weighted = options->weighted;
    r->weight += ls__buckets_idle(r) + (options->weighted ? options->weight : 1.0);
    r->weight = options->local ? r->weight : ls__shards_weight(r, r->weight);
    return LS_OK;
}

/* Every rank finds the same mismatch. It fails the group all the same, so that the launcher names
 * it as the root cause, and not the exit code of the rank that ended first. */
static ls_status check_config(ls_reducer *r)
{
    const ls__agree_peers peers = ls__domain_peers(r, &r->domains[0]);
    const ls_status status = r->stats.reductions > 0 ? LS_OK : ls__agree_settings(&peers);
    if (status == LS_ERR_MISMATCH) {
        ls__reducer_fail(r, status, ls_error_message());
    }
    return status;
}

/* The exchange could not be started in all domains: peers must not wait for it. */
static void abandon(ls_reducer *r, ls_status status)
{
    char text[LS__MESSAGE_MAX];
    memcpy(text, ls_error_message(), sizeof text);
    ls__reducer_fail(r, status, text);
    (void)ls__control_wait(r);
    become_idle(r);
    (void)ls__fail_again(status, text);
}

/* Local work first, then the exchange: a failure before ls__control_start leaves the reducer
 * idle. */
ls_status ls__reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options)
{
    LS_READ_OPTIONS(ls_reducer_begin_options, given, options, "ls_reducer_begin", LS_ERR_INVALID);
    options = &given;
    LS_TRY(check_begin(r, options));
    LS_TRY(ls__shards_check(r));
    LS_TRY(ls__device_check_begin(r, options));
    LS_TRY(ls__buckets_begin(r));
    r->pass = (ls__reduce_pass){.exchanges = r->domain_count,
                                .stream = options->stream,
                                .records = r->captured.records && !options->local,
                                .held = r->options.mode != LS_REDUCE_OVERLAP};
    r->pass.held = r->pass.held || r->pass.records; /* this thread records, in ls_reducer_wait */
    LS_TRY(count_weight(r, options));
    count_pending(r, options);
    ls__buckets_mark_rows(r, options->local);
    if (options->local) {
        return LS_OK;
    }
    ls__agreement_join(r->runtime, r->agreement);
    LS_TRY(check_config(r));
    /* From here on the gradients that this backward reaches count as accumulated: the peers learn
     * of them by the bitmap. */
    for (int i = 0; i < r->param_count; i++) {
        r->params[i].local = r->params[i].local || reaches(options, i) || ls__shards_held(r, i);
    }
    LS_TRY(ls__device_begin(r));
    if (!r->scattered) { /* else what was gathered since the backward before counts, too */
        r->sent_before = ls__stats_sent(r);
    }
    ls__lock_take(&r->lock, r->runtime->env);
    LS_ASSERT(r->phase == LS__REDUCER_IDLE && r->pass.next[0] == 0 && !r->pass.stepping);
    r->phase = LS__REDUCER_CONTROL;
    r->failure = LS_OK;
    r->begin_ns = r->runtime->env->now_ns(r->runtime->env);
    if (LS__UNLIKELY(r->runtime->trace != NULL) && !r->overwrites) {
        ls__trace_pass(r->runtime->trace, r->begin_ns);
    }
    ls__unlock(&r->lock, r->runtime->env);
    const ls_status status = ls__control_start(r);
    if (status < 0) {
        abandon(r, status);
    }
    return status;
}

/* The public form: says where a mistake was made. */
ls_status ls_reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options)
{
    if (r == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_reducer_begin: the reducer is NULL; check what ls_reducer_new returned");
    }
    const ls_status status = ls__reducer_begin(r, options);
    return status == LS_ERR_STATE || status == LS_ERR_INVALID ? ls__fail_at_site(status) : status;
}

/* ---- gradients become ready ---------------------------------------------------------------- */

/* Runs on the thread that completes an exchange, often the engine's. */
void ls__reducer_control_done(void *reducer, ls_status status)
{
    if (status == LS_OK) { /* wait reports a failure */
        ls__exchange_opened(reducer);
    }
}

/* Outside a synchronising backward it only records that the parameter holds a local sum. */
ls_status ls_reducer_ready(ls_reducer *r, int param, ls_stream *stream)
{
    if (r == NULL || param < 0 || param >= r->param_count) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_ready: parameter %d of a reducer with %d; give 0 to %d", param,
                        r ? r->param_count : 0, r ? r->param_count - 1 : 0);
    }
    if (stream != NULL) {
        LS_TRY(ls__promise_streams("ls_reducer_ready", r->group));
    }
    ls__reduce_param *p = &r->params[param];
    const uint64_t now = r->runtime->env->now_ns(r->runtime->env);
    ls__lock_take(&r->lock, r->runtime->env);
    if (r->phase == LS__REDUCER_IDLE) {
        p->local = true;
        p->present = true;
        ls__unlock(&r->lock, r->runtime->env);
        return LS_OK;
    }
    const bool twice = p->ready;
    bool last = false;
    const ls_status marked = twice ? LS_OK : ls__device_mark(r, param, stream);
    if (!twice) {
        p->ready = p->present = true;
        p->ready_ns = now;
        LS_ASSERT(r->plan.buckets[p->bucket].pending > 0 && r->pass.ready_count < r->param_count);
        last = --r->plan.buckets[p->bucket].pending == 0;
        r->ready_order[r->pass.ready_count++] = param;
    }
    ls__unlock(&r->lock, r->runtime->env);
    if (twice) {
        return ls__fail(LS_ERR_STATE,
                        "reducer \"%s\": parameter %s became ready twice in one backward, or was"
                        " declared unused in ls_reducer_begin; call ls_reducer_ready once, when its"
                        " last contribution is in",
                        r->name, p->name);
    }
    ls__exchange_ready(r, last);
    return marked;
}

/* ---- the backward ends -------------------------------------------------------------------- */

/* A parameter that never becomes ready would hold up its bucket, and every later one, for good. */
static ls_status check_all_ready(ls_reducer *r)
{
    for (int i = 0; i < r->param_count; i++) {
        if (!r->params[i].ready) {
            return ls__fail(LS_ERR_STATE,
                            "reducer \"%s\": ls_reducer_wait, but parameter %s (and maybe others)"
                            " was never ready; call ls_reducer_ready for it, or leave it out of"
                            " `used` in ls_reducer_begin",
                            r->name, r->params[i].name);
        }
    }
    return LS_OK;
}

/* Every rank finds the same in the control exchange. */
static ls_status wait_control(ls_reducer *r)
{
    LS_TRY(ls__control_wait(r));
    return ls__exchange_wait(r, -1);
}

/* The bucket has ended: its averages are in place. */
static ls_status settle(ls_reducer *r, ls__reduce_bucket *bucket)
{
    if (bucket->kind != NULL && !r->on_device) {
        ls__nonfinite_look_again(r, bucket);
    }
    ls__bucket_settle(r, bucket);
    if ((bucket->kind != NULL || bucket->block != NULL) && r->scattered && r->releases) {
        ls__bucket_release(r, bucket);
    }
    return r->reduced != NULL
               ? r->reduced(r->reduced_arg, &r->plan.order[bucket->first], bucket->count)
               : LS_OK;
}

/* The thread of backward owns next_end. Buckets that were reduced leave memory to those that
 * follow. */
ls_status ls__reducer_poll(ls_reducer *r)
{
    const bool asked = r->reduced != NULL || (r->scattered && r->releases);
    const int ended = asked ? ls__exchange_ended(r) : 0;
    while (r->pass.next_end < ended) {
        LS_TRY(settle(r, &r->plan.buckets[r->pass.next_end++]));
    }
    return LS_OK;
}

void ls__reducer_on_reduced(ls_reducer *r, ls__reduced_fn reduced, void *arg)
{
    LS_ASSERT(r->phase != LS__REDUCER_CONTROL && r->phase != LS__REDUCER_RUNNING);
    r->reduced = reduced;
    r->reduced_arg = arg;
}

/* Each bucket as it ends. */
static ls_status wait_buckets(ls_reducer *r)
{
    for (; r->pass.next_end < r->plan.count; r->pass.next_end++) {
        LS_TRY(ls__exchange_wait(r, r->pass.next_end));
        LS_TRY(settle(r, &r->plan.buckets[r->pass.next_end]));
    }
    return LS_OK;
}

/* Operations read and write the buckets' memory until they end. Peers, also in other domains, must
 * not wait for what will not be launched. */
static ls_status give_up(ls_reducer *r, ls_status status)
{
    char text[LS__MESSAGE_MAX];
    memcpy(text, ls_error_message(), sizeof text);
    ls__reducer_fail(r, status, text);
    ls__exchange_stop(r);
    return ls__fail_again(status, text);
}

/* Every path waits for the exchange and for all launched buckets before the reducer becomes idle.
 * This rank's own mistake takes precedence over the errors that its abort causes. */
ls_status ls_reducer_wait(ls_reducer *r)
{
    if (r == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_wait: the reducer is NULL; check what ls_reducer_new returned");
    }
    if (ls__reducer_is_idle(r)) {
        return LS_OK; /* a local backward */
    }
    uint64_t start = r->runtime->env->now_ns(r->runtime->env);
    const uint64_t traced = ls__trace_begin();
    char own[LS__MESSAGE_MAX] = ""; /* this rank's mistake; the waits below overwrite the error */
    ls_status status = check_all_ready(r);
    if (status < 0) {
        (void)ls__fail_at_site(status);
        memcpy(own, ls_error_message(), sizeof own);
        ls__reducer_abort(r, status, own);
    }
    ls__exchange_take_over(r);
    const ls_status control = wait_control(r);
    status = status < 0 ? status : control;
    status = status < 0 ? status : wait_buckets(r);
    if (status < 0) {
        status = give_up(r, status);
    }
    ls__trace_end(traced, LS__TRACE_EXPOSED, "wait for buckets", r->name);
    if (LS__UNLIKELY(traced != 0) && !r->overwrites) { /* else autograd's */
        ls__trace_end(r->begin_ns, LS__TRACE_BACKWARD, "backward", r->name);
    }
    if (status == LS_OK) {
        ls__buckets_settle(r);
        ls__stats_record(r, start);
    }
    become_idle(r);
    status = status < 0 ? status : ls__changes_check(r);
    status = status < 0 ? status : ls__replica_check(r);
    return own[0] != '\0' ? ls__fail_again(status, own) : status;
}

/* With `overwrites` the caller's next gradient replaces the old one, so nothing needs to be
 * cleared. */
ls_status ls_reducer_zero(ls_reducer *r)
{
    if (r == NULL || !ls__reducer_is_idle(r)) {
        return ls__fail(LS_ERR_STATE, "ls_reducer_zero: %s",
                        r ? "a synchronising backward is under way; call ls_reducer_wait first"
                          : "the reducer is NULL; check what ls_reducer_new returned");
    }
    if (r->on_device) {
        LS_TRY(ls__device_zero_all(r));
    }
    for (int i = 0; i < r->param_count && !r->overwrites && !r->on_device; i++) {
        ls__elements_zero(ls__reducer_grad(r, i), r->params[i].bytes);
    }
    ls__buckets_forget(r);
    return LS_OK;
}

/* Valid after a synchronised backward, and the same on every rank. */
bool ls_reducer_used(const ls_reducer *r, int param)
{
    return r != NULL && param >= 0 && param < r->param_count && r->params[param].used;
}
