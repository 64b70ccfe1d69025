/* The reducer: a state machine over buckets (Li et al., VLDB 2020, sections 3.2.3 and 4.2).
 *
 *   begin ──▶ CONTROL ──(exchange done)──▶ RUNNING ──(wait)──▶ IDLE        FAILED from anywhere
 *
 *   ready(i):  bucket.pending--, and when it is 0 and all buckets before it are launched,
 *              and the control exchange is done: launch it, then look at the next
 *
 * Note [Launching]
 * Launches happen in three places: the thread that calls ready, the engine when the control
 * exchange completes, and wait. One thread at a time: it sets `launching` under the lock, but
 * starts the operation without the lock, because a start may complete at once and call back. A
 * thread that finds `launching` set leaves; the one that set it looks again under the lock before
 * it clears it, so a bucket that became ready meanwhile is not overlooked.
 */

#include "reduce/reducer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/trace.h"
#include "comm/api/collective.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/flight.h"
#include "kernel/reduce/reduce.h"
#include "reduce/bucket.h"
#include "reduce/compare.h"
#include "reduce/control.h"
#include "reduce/domain.h"
#include "reduce/nonfinite.h"
#include "reduce/plan.h"
#include "reduce/shards.h"
#include "reduce/stats.h"
#include "reduce/wire.h"

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
    LS_ASSERT(r->phase != LS__REDUCER_IDLE && !r->pass.launching);
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
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        bucket->pending = 0;
        bucket->work = NULL;
        bucket->launched_ns = bucket->reduced_ns = 0;
        bucket->env = r->runtime->env;
    }
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
    LS_TRY(ls__buckets_begin(r));
    r->pass = (ls__reduce_pass){.exchanges = r->domain_count,
                                .held = r->options.mode != LS_REDUCE_OVERLAP};
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
    ls__lock_take(&r->lock, r->runtime->env);
    LS_ASSERT(r->phase == LS__REDUCER_IDLE && r->pass.next_launch == 0 && !r->pass.launching);
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

/* ---- launching; see Note [Launching] ------------------------------------------------------ */

/* Must be called under the lock. Combines the control parts once; the callback and ls_reducer_wait
 * both come here, in either order. */
static void open_launches(ls_reducer *r)
{
    if (r->phase != LS__REDUCER_CONTROL) {
        return;
    }
    r->failure = ls__control_finish(r);
    r->phase = r->failure == LS_OK ? LS__REDUCER_RUNNING : LS__REDUCER_FAILED;
    if (r->failure < 0) {
        (void)snprintf(r->failure_text, sizeof r->failure_text, "%s", ls_error_message());
    }
}

/* Runs on the thread that completes an exchange, often the engine's; the last one opens the
 * launches. A mismatch fails the group here, because this rank may still be computing. */
void ls__reducer_control_done(void *reducer, ls_status status)
{
    ls_reducer *r = reducer;
    if (status < 0) {
        return; /* wait reports it */
    }
    ls__lock_take(&r->lock, r->runtime->env);
    LS_ASSERT(r->pass.exchanges > 0);
    const bool last = --r->pass.exchanges == 0;
    if (last) {
        open_launches(r);
    }
    const ls_status failure = last ? r->failure : LS_OK;
    ls__unlock(&r->lock, r->runtime->env);
    if (failure < 0) {
        ls__reducer_fail(r, failure, r->failure_text);
    } else if (last) {
        ls__reducer_advance(r);
    }
}

/* For the timeline; errors are reported by ls_reducer_wait. */
static void bucket_done(void *arg, ls_status status)
{
    ls__reduce_bucket *bucket = arg;
    (void)status;
    bucket->reduced_ns = bucket->env->now_ns(bucket->env);
}

/* Called by the thread that set `launching`, without the lock; see Note [Launching]. */
static ls_status launch(ls_reducer *r, ls__reduce_bucket *bucket)
{
    if (!ls__bucket_used(r, bucket)) {
        return LS_OK;
    }
    LS_ASSERT(bucket->pending == 0 && bucket->work == NULL);
    ls__bucket_fill(r, bucket);
    ls__nonfinite_look(r, bucket);
    bucket->launched_ns = bucket->env->now_ns(bucket->env);
    const ls__reduce_wire wire = ls__wire_send(r, bucket);
    r->pass.gradient_bytes += (uint64_t)wire.count * ls_dtype_size(wire.dtype);
    const ls__reduce_key *key = &r->plan.regions[bucket->region].key;
    const ls_collective_options options = {
        .size = sizeof options,
        .tag = bucket->tag,
        .divisor = key->divisor != 0 ? key->divisor : r->batches[key->batch].divisor};
    const ls__collective args = {.operation = LS__OP_ALL_REDUCE,
                                 .input = wire.memory,
                                 .output = wire.memory,
                                 .count = wire.count,
                                 .dtype = wire.dtype,
                                 .op = LS_SUM,
                                 .options = &options,
                                 .done = bucket_done,
                                 .arg = bucket};
    LS_TRY(ls__collective_start(r->domains[key->domain].group, &args, &bucket->work));
    bucket->flow = r->runtime->trace != NULL ? ls__flight_flow(bucket->work) : 0;
    return LS_OK;
}

/* Launches every bucket whose turn has come. May be called from any thread; returns at once if
 * another thread is launching. */
void ls__reducer_advance(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    if (r->pass.launching) {
        ls__unlock(&r->lock, r->runtime->env);
        return;
    }
    LS_ASSERT(r->pass.next_launch >= 0 && r->pass.next_launch <= r->plan.count);
    r->pass.launching = true;
    while (r->phase == LS__REDUCER_RUNNING && !r->pass.held &&
           r->pass.next_launch < r->plan.count &&
           r->plan.buckets[r->pass.next_launch].pending == 0) {
        ls__reduce_bucket *bucket = &r->plan.buckets[r->pass.next_launch];
        ls__unlock(&r->lock, r->runtime->env);
        ls_status status = launch(r, bucket);
        ls__lock_take(&r->lock, r->runtime->env);
        if (status < 0) {
            r->failure = status;
            r->phase = LS__REDUCER_FAILED;
            (void)snprintf(r->failure_text, sizeof r->failure_text, "%s", ls_error_message());
        } else {
            r->pass.next_launch++;
        }
    }
    r->pass.launching = false;
    const ls_status failure = r->phase == LS__REDUCER_FAILED ? r->failure : LS_OK;
    ls__unlock(&r->lock, r->runtime->env);
    if (failure < 0) { /* the peers wait for buckets that were not launched */
        ls__reducer_fail(r, failure, r->failure_text);
    }
}

/* Outside a synchronising backward it only records that the parameter holds a local sum. */
ls_status ls_reducer_ready(ls_reducer *r, int param, ls_stream *stream)
{
    if (r == NULL || param < 0 || param >= r->param_count || stream != NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_ready: parameter %d of a reducer with %d; give 0 to %d and"
                        " stream NULL (the host)",
                        param, r ? r->param_count : 0, r ? r->param_count - 1 : 0);
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
    if (!twice) {
        p->ready = p->present = true;
        p->ready_ns = now;
        LS_ASSERT(r->plan.buckets[p->bucket].pending > 0 && r->pass.ready_count < r->param_count);
        r->plan.buckets[p->bucket].pending--;
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
    ls__reducer_advance(r);
    return LS_OK;
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

/* Waits for the exchanges. open_launches may have run in the callback already; then this only reads
 * its result. */
static ls_status wait_control(ls_reducer *r)
{
    LS_TRY(ls__control_wait(r));
    ls__lock_take(&r->lock, r->runtime->env);
    open_launches(r);
    const ls_status status = r->failure;
    ls__unlock(&r->lock, r->runtime->env);
    if (status < 0) { /* every rank finds the same; the abort is for operations in flight */
        ls__reducer_fail(r, status, r->failure_text);
        return ls__fail_again(status, r->failure_text);
    }
    return LS_OK;
}

/* Waits until all buckets are launched. Another thread may be inside launch at this moment and is
 * about to return, so yielding is enough. */
static ls_status wait_launched(ls_reducer *r)
{
    for (;;) {
        ls__reducer_advance(r);
        ls__lock_take(&r->lock, r->runtime->env);
        bool done = !r->pass.launching &&
                    (r->phase == LS__REDUCER_FAILED || r->pass.next_launch == r->plan.count);
        ls_status failure = r->failure;
        ls__unlock(&r->lock, r->runtime->env);
        if (done) {
            return failure < 0 ? ls__fail_again(failure, r->failure_text) : LS_OK;
        }
        r->runtime->env->yield(r->runtime->env);
    }
}

/* After a failure: on return no further launch begins, and no thread is inside one. */
static void stop_launching(ls_reducer *r)
{
    const ls__env *env = r->runtime->env;
    ls__lock_take(&r->lock, env);
    LS_ASSERT(r->phase != LS__REDUCER_IDLE);
    r->phase = LS__REDUCER_FAILED;
    while (r->pass.launching) {
        ls__unlock(&r->lock, env);
        env->yield(env);
        ls__lock_take(&r->lock, env);
    }
    ls__unlock(&r->lock, env);
}

/* Waits for the bucket's all-reduce, if there is one; `ok`: its averages are wanted. */
static ls_status end_bucket(ls_reducer *r, ls__reduce_bucket *bucket, bool ok)
{
    const bool sent = bucket->work != NULL;
    const ls_status status = sent ? ls_work_wait(bucket->work) : LS_OK;
    bucket->work = NULL;
    if (status < 0 || !ok) {
        return status;
    }
    if (sent) {
        ls__wire_receive(r, bucket);
        ls__nonfinite_look_again(r, bucket);
    }
    ls__bucket_settle(r, bucket);
    return r->reduced != NULL
               ? r->reduced(r->reduced_arg, &r->plan.order[bucket->first], bucket->count)
               : LS_OK;
}

/* The thread of backward owns next_end; the bucket's work was set before next_launch passed it. */
ls_status ls__reducer_poll(ls_reducer *r)
{
    while (r->reduced != NULL) {
        ls__lock_take(&r->lock, r->runtime->env);
        const bool launched =
            r->phase == LS__REDUCER_RUNNING && r->pass.next_end < r->pass.next_launch;
        ls__unlock(&r->lock, r->runtime->env);
        ls__reduce_bucket *bucket = &r->plan.buckets[launched ? r->pass.next_end : 0];
        if (!launched || (bucket->work != NULL && ls_work_test(bucket->work) == LS_IN_PROGRESS)) {
            return LS_OK;
        }
        r->pass.next_end++;
        LS_TRY(end_bucket(r, bucket, true));
    }
    return LS_OK;
}

void ls__reducer_on_reduced(ls_reducer *r, ls__reduced_fn reduced, void *arg)
{
    LS_ASSERT(r->phase != LS__REDUCER_CONTROL && r->phase != LS__REDUCER_RUNNING);
    r->reduced = reduced;
    r->reduced_arg = arg;
}

/* Waits for every bucket, also after a failure: the operations read and write bucket memory until
 * they end. Returns the first error. */
static ls_status wait_buckets(ls_reducer *r, bool ok)
{
    ls_status first = LS_OK;
    char text[LS__MESSAGE_MAX];
    for (; r->pass.next_end < r->plan.count; r->pass.next_end++) {
        const ls_status status =
            end_bucket(r, &r->plan.buckets[r->pass.next_end], ok && first == LS_OK);
        if (status < 0 && first == LS_OK) { /* peers in other domains would wait */
            first = status;
            memcpy(text, ls_error_message(), sizeof text);
            ls__reducer_fail(r, status, text);
        }
    }
    return first < 0 ? ls__fail_again(first, text) : LS_OK;
}

/* Backward has ended, so the modes that do not overlap may begin. */
static void release_held(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    r->pass.held = false;
    ls__unlock(&r->lock, r->runtime->env);
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
    release_held(r);
    const ls_status control = wait_control(r);
    status = status < 0 ? status : control;
    if (status == LS_OK) {
        status = wait_launched(r);
    }
    if (status < 0) {
        stop_launching(r);
    }
    ls_status buckets = wait_buckets(r, status == LS_OK);
    ls__trace_end(traced, LS__TRACE_EXPOSED, "wait for buckets", r->name);
    if (LS__UNLIKELY(traced != 0) && !r->overwrites) { /* else autograd's */
        ls__trace_end(r->begin_ns, LS__TRACE_BACKWARD, "backward", r->name);
    }
    status = status < 0 ? status : buckets;
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
    for (int i = 0; i < r->param_count && !r->overwrites; i++) {
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
