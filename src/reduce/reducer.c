/* The reducer: a state machine over buckets (Li et al., VLDB 2020, sections 3.2.3 and 4.2).
 *
 *   begin ──▶ CONTROL ──(exchange done)──▶ RUNNING ──(wait)──▶ IDLE        FAILED from anywhere
 *
 *   ready(i):  bucket.pending--, and when it is 0 and all buckets before it are launched,
 *              and the control exchange is done: launch it, then look at the next
 *
 * Note [Launching]
 * Launches happen in three places: the thread that calls ready, the engine when the control
 * exchange completes, and wait. One thread at a time: it sets `launching` under the lock, but starts
 * the operation without the lock, because a start may complete at once and call back. A thread that
 * finds `launching` set leaves; the one that set it looks again under the lock before it clears it,
 * so a bucket that became ready meanwhile is not overlooked.
 */

#include "reduce/reducer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/engine/lock.h"
#include "reduce/bucket.h"
#include "reduce/config_check.h"
#include "reduce/control.h"
#include "reduce/nonfinite.h"
#include "reduce/plan.h"

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

/* Peers learn of the failure at once, and their operations in this group end with `status` and this
 * text. */
void ls__reducer_abort(ls_reducer *r, ls_status status, const char *message)
{
    char text[LS__MESSAGE_MAX];
    (void)snprintf(text, sizeof text, "rank %d failed: %s", r->rank, message);
    ls__group_fail(r->group, status, text);
}

/* ---- a backward begins -------------------------------------------------------------------- */

/* Takes the lock, because the engine's thread changes the phase while a synchronising backward
 * runs. */
static bool is_idle(ls_reducer *r)
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
    LS_ASSERT(r->phase != LS__REDUCER_IDLE && !r->launching);
    r->phase = LS__REDUCER_IDLE;
    ls__unlock(&r->lock, r->runtime->env);
}

/* A group that failed earlier stays failed; its error is returned again. */
static ls_status check_begin(ls_reducer *r, const ls_reducer_begin_options *options)
{
    LS_TRY(ls_group_status(r->group));
    if (!is_idle(r)) {
        return ls__fail(LS_ERR_STATE,
                        "reducer \"%s\": ls_reducer_begin while a synchronising backward is under"
                        " way; call ls_reducer_wait first",
                        r->name);
    }
    if (!(options->weight >= 0.0) || isinf(options->weight)) {
        return ls__fail(LS_ERR_INVALID, "reducer \"%s\": the weight is %g; give a finite one >= 0",
                        r->name, options->weight);
    }
    return LS_OK;
}

/* Resets what belongs to one backward. A parameter that will not be reached counts as ready from
 * the start. */
static void count_pending(ls_reducer *r, const uint8_t *used)
{
    r->ready_count = 0;
    r->next_launch = 0;
    r->gradient_bytes = 0;
    atomic_store_explicit(&r->first_launch_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&r->last_end_ns, 0, memory_order_relaxed);
    for (int b = 0; b < r->plan.count; b++) {
        r->plan.buckets[b].pending = 0;
        r->plan.buckets[b].work = NULL;
    }
    for (int i = 0; i < r->param_count; i++) {
        ls__reduce_param *param = &r->params[i];
        bool reached = used == NULL || used[i];
        param->ready = !reached;
        r->plan.buckets[param->bucket].pending += reached;
    }
}

/* Every rank finds the same mismatch. It fails the group all the same, so that the launcher names it
 * as the root cause, and not the exit code of the rank that ended first. */
static ls_status check_config(ls_reducer *r)
{
    const ls_status status = ls__config_check(r);
    if (status == LS_ERR_MISMATCH) {
        ls__group_fail(r->group, status, ls_error_message());
    }
    return status;
}

/* Local work first, then the exchange: a failure before ls__control_start leaves the reducer
 * idle. */
ls_status ls__reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options,
                            const uint8_t *present)
{
    LS_READ_OPTIONS(ls_reducer_begin_options, given, options, "ls_reducer_begin", LS_ERR_INVALID);
    options = &given;
    LS_TRY(check_begin(r, options));
    LS_TRY(ls__buckets_begin(r, present));
    if (r->weight > 0.0 && r->weighted != options->weighted) {
        return ls__fail(LS_ERR_STATE,
                        "reducer \"%s\": weighted and plain backwards are mixed in one step; use"
                        " one form for all of its micro-batches",
                        r->name);
    }
    count_pending(r, options->used);
    r->weighted = options->weighted;
    r->weight += options->weighted ? options->weight : 1.0;
    if (options->local) {
        return LS_OK;
    }
    LS_TRY(check_config(r));
    /* From here on the gradients that this backward reaches count as accumulated: the peers learn of
     * them by the bitmap. */
    for (int i = 0; i < r->param_count; i++) {
        r->params[i].local = r->params[i].local || options->used == NULL || options->used[i];
    }
    ls__lock_take(&r->lock, r->runtime->env);
    LS_ASSERT(r->phase == LS__REDUCER_IDLE && r->next_launch == 0 && !r->launching);
    r->phase = LS__REDUCER_CONTROL;
    r->failure = LS_OK;
    ls__unlock(&r->lock, r->runtime->env);
    ls_status status = ls__control_start(r);
    if (status < 0) {
        become_idle(r);
    }
    return status;
}

/* The public form, without knowledge of which gradients are present. */
ls_status ls_reducer_begin(ls_reducer *r, const ls_reducer_begin_options *options)
{
    if (r == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_reducer_begin: the reducer is NULL; check what ls_reducer_new returned");
    }
    const ls_status status = ls__reducer_begin(r, options, NULL);
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

/* Runs on the thread that completes the exchange, often the engine's. A mismatch fails the group
 * here, because this rank may still be computing and would reach ls_reducer_wait only later. */
void ls__reducer_control_done(void *reducer, ls_status status)
{
    ls_reducer *r = reducer;
    if (status < 0) {
        return; /* wait reports it */
    }
    ls__lock_take(&r->lock, r->runtime->env);
    open_launches(r);
    ls_status failure = r->failure;
    ls__unlock(&r->lock, r->runtime->env);
    if (failure < 0) {
        ls__group_fail(r->group, failure, r->failure_text);
        return;
    }
    ls__reducer_advance(r);
}

/* The last of these marks the end of communication in the statistics; errors are reported by
 * ls_reducer_wait. */
static void bucket_done(void *reducer, ls_status status)
{
    ls_reducer *r = reducer;
    (void)status;
    const ls__env *env = r->runtime->env;
    atomic_store_explicit(&r->last_end_ns, env->now_ns(env), memory_order_relaxed);
}

/* Called by the thread that set `launching`, without the lock; see Note [Launching]. */
static ls_status launch(ls_reducer *r, ls__reduce_bucket *bucket)
{
    const ls__env *env = r->runtime->env;
    if (!ls__bucket_used(r, bucket)) {
        return LS_OK;
    }
    LS_ASSERT(bucket->pending == 0 && bucket->work == NULL);
    ls__bucket_fill(r, bucket);
    ls__nonfinite_look(r, bucket);
    if (atomic_load_explicit(&r->first_launch_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&r->first_launch_ns, env->now_ns(env), memory_order_relaxed);
    }
    r->gradient_bytes += bucket->bytes;
    const ls_collective_options options = {
        .size = sizeof options, .tag = bucket->tag, .divisor = r->divisor};
    const ls__collective args = {.operation = LS__OP_ALL_REDUCE,
                                 .input = bucket->memory,
                                 .output = bucket->memory,
                                 .count = ls__bucket_elements(bucket),
                                 .dtype = bucket->dtype,
                                 .op = LS_SUM,
                                 .options = &options,
                                 .done = bucket_done,
                                 .arg = r};
    return ls__collective_start(r->group, &args, &bucket->work);
}

/* Launches every bucket whose turn has come. May be called from any thread; returns at once if
 * another thread is launching. */
void ls__reducer_advance(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    if (r->launching) {
        ls__unlock(&r->lock, r->runtime->env);
        return;
    }
    LS_ASSERT(r->next_launch >= 0 && r->next_launch <= r->plan.count);
    r->launching = true;
    while (r->phase == LS__REDUCER_RUNNING && r->next_launch < r->plan.count &&
           r->plan.buckets[r->next_launch].pending == 0) {
        ls__reduce_bucket *bucket = &r->plan.buckets[r->next_launch];
        ls__unlock(&r->lock, r->runtime->env);
        ls_status status = launch(r, bucket);
        ls__lock_take(&r->lock, r->runtime->env);
        if (status < 0) {
            r->failure = status;
            r->phase = LS__REDUCER_FAILED;
            (void)snprintf(r->failure_text, sizeof r->failure_text, "%s", ls_error_message());
        } else {
            r->next_launch++;
        }
    }
    r->launching = false;
    const ls_status failure = r->phase == LS__REDUCER_FAILED ? r->failure : LS_OK;
    ls__unlock(&r->lock, r->runtime->env);
    if (failure < 0) { /* the peers wait for buckets that were not launched */
        ls__group_fail(r->group, failure, r->failure_text);
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
    ls__lock_take(&r->lock, r->runtime->env);
    if (r->phase == LS__REDUCER_IDLE) {
        p->local = true;
        if (r->plan.buckets[p->bucket].state == LS__BUCKET_EMPTY) {
            r->plan.buckets[p->bucket].state = LS__BUCKET_LOCAL;
        }
        ls__unlock(&r->lock, r->runtime->env);
        return LS_OK;
    }
    bool twice = p->ready;
    if (!twice) {
        p->ready = true;
        LS_ASSERT(r->plan.buckets[p->bucket].pending > 0 && r->ready_count < r->param_count);
        r->plan.buckets[p->bucket].pending--;
        r->ready_order[r->ready_count++] = param;
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

/* Waits for the exchange. open_launches may have run in the callback already; then this only reads
 * its result. */
static ls_status wait_control(ls_reducer *r)
{
    ls_status status = ls_work_wait(r->control_work);
    r->control_work = NULL;
    if (status < 0) {
        return status;
    }
    ls__lock_take(&r->lock, r->runtime->env);
    open_launches(r);
    status = r->failure;
    ls__unlock(&r->lock, r->runtime->env);
    if (status < 0) { /* every rank finds the same; the abort is for operations in flight */
        ls__group_fail(r->group, status, r->failure_text);
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
        bool done =
            !r->launching && (r->phase == LS__REDUCER_FAILED || r->next_launch == r->plan.count);
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
    r->phase = LS__REDUCER_FAILED;
    LS_ASSERT(r->phase != LS__REDUCER_IDLE);
    while (r->launching) {
        ls__unlock(&r->lock, env);
        env->yield(env);
        ls__lock_take(&r->lock, env);
    }
    ls__unlock(&r->lock, env);
}

/* Waits for every bucket, also after a failure: the operations read and write bucket memory until
 * they end. Returns the first error. */
static ls_status wait_buckets(ls_reducer *r)
{
    ls_status first = LS_OK;
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        if (bucket->work != NULL) {
            ls_status status = ls_work_wait(bucket->work);
            bucket->work = NULL;
            first = first < 0 ? first : status;
        }
    }
    return first;
}

/* comm_seconds spans the first launch to the last end; exposed_seconds is the part that this thread
 * spent waiting. */
static void record_stats(ls_reducer *r, uint64_t wait_start_ns)
{
    const ls__env *env = r->runtime->env;
    uint64_t first = atomic_load_explicit(&r->first_launch_ns, memory_order_relaxed);
    uint64_t last = atomic_load_explicit(&r->last_end_ns, memory_order_relaxed);
    r->stats.reductions++;
    r->stats.comm_seconds = last > first ? (double)(last - first) * 1e-9 : 0.0;
    r->stats.exposed_seconds = (double)(env->now_ns(env) - wait_start_ns) * 1e-9;
    r->stats.gradient_bytes = r->gradient_bytes;
}

/* Every path waits for the exchange and for all launched buckets before the reducer becomes idle.
 * This rank's own mistake takes precedence over the errors that its abort causes. */
ls_status ls_reducer_wait(ls_reducer *r)
{
    if (r == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_wait: the reducer is NULL; check what ls_reducer_new returned");
    }
    if (is_idle(r)) {
        return LS_OK; /* a local backward */
    }
    uint64_t start = r->runtime->env->now_ns(r->runtime->env);
    char own[LS__MESSAGE_MAX] = ""; /* this rank's mistake; the waits below overwrite the error */
    ls_status status = check_all_ready(r);
    if (status < 0) {
        (void)ls__fail_at_site(status);
        memcpy(own, ls_error_message(), sizeof own);
        ls__reducer_abort(r, status, own);
    }
    ls_status control = wait_control(r);
    status = status < 0 ? status : control;
    if (status == LS_OK) {
        status = wait_launched(r);
    }
    if (status < 0) {
        stop_launching(r);
    }
    ls_status buckets = wait_buckets(r);
    status = status < 0 ? status : buckets;
    if (status == LS_OK) {
        ls__buckets_settle(r);
        record_stats(r, start);
    }
    become_idle(r);
    if (status == LS_OK && r->settings_differ) {
        status = ls__config_name_change(r);
        ls__group_fail(r->group, status, ls_error_message());
    }
    return own[0] != '\0' ? ls__fail_again(status, own) : status;
}

/* With `overwrites` the caller's next gradient replaces the old one, so nothing needs to be
 * cleared. */
ls_status ls_reducer_zero(ls_reducer *r)
{
    if (r == NULL || !is_idle(r)) {
        return ls__fail(LS_ERR_STATE, "ls_reducer_zero: %s",
                        r ? "a synchronising backward is under way; call ls_reducer_wait first"
                          : "the reducer is NULL; check what ls_reducer_new returned");
    }
    for (int i = 0; i < r->param_count && !r->overwrites; i++) {
        memset(ls__reducer_grad(r, i), 0, r->params[i].bytes);
    }
    ls__buckets_forget(r);
    return LS_OK;
}

/* Valid after a synchronised backward, and the same on every rank. */
bool ls_reducer_used(const ls_reducer *r, int param)
{
    return r != NULL && param >= 0 && param < r->param_count && r->params[param].used;
}

/* Of the last synchronised backward; the bytes of all buckets are counted here. */
ls_status ls_reducer_get_stats(const ls_reducer *r, ls_reducer_stats *out)
{
    if (r == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_reducer_get_stats: the reducer is NULL; give a reducer");
    }
    ls_reducer_stats now = r->stats;
    for (int b = 0; b < r->plan.count; b++) {
        now.bucket_bytes += r->plan.buckets[b].bytes;
    }
    return ls__struct_fill(out, &now, sizeof now, "ls_reducer_stats", "ls_reducer_get_stats");
}
