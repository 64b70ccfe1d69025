/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange of a bucket: a small state machine (Li et al., VLDB 2020, section 3.2.3).
 *
 *   filling ──(its last gradient is ready)──▶ phase 0 ──▶ … ──▶ phase n-1 ──▶ ended
 *
 * A phase is one collective; a kind (exchange.h) says which, from one for a plain all-reduce to
 * four. Phase k of all buckets starts in the order of the buckets, on a group of its own
 * (domain.c), so every rank issues the same operations on each group, however phases of different
 * buckets interleave. A bucket that no rank uses passes through without an operation.
 *
 * Note [Steps]
 * next[k] is the first bucket whose phase k was not started, and next[phases] the
 * first that has not ended. A step moves one of them on: it ends the phase before, and starts this
 * one. Steps are taken by the thread that calls ready, by the reducer's own thread, and by wait.
 * One thread at a time: it sets `stepping` under the lock, but takes the step without the lock,
 * because it computes, and a start may complete at once and call back. A thread that finds
 * `stepping` set leaves; the one that set it looks again under the lock before it clears it, so
 * nothing is overlooked.
 *
 * A callback of the engine takes no step: it would hold up every operation while it computes. It
 * wakes the reducer's own thread if something can be done that no other thread will soon do: a
 * bucket became ready before the control exchange had ended, or the steps of a hook. */
#include "reduce/exchange.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/flight.h"
#include "reduce/bucket.h"
#include "reduce/device.h"
#include "reduce/domain.h"
#include "reduce/hook.h"
#include "reduce/internal.h"
#include "reduce/reducer.h"
#include "reduce/table.h"

/* ---- a step; see Note [Steps] --------------------------------------------------------------- */

static const ls__exchange_kind *kind_of(const ls_reducer *r, const ls__reduce_bucket *bucket)
{
    const ls__reduce_region *region = &r->plan.regions[bucket->region];
    if (r->hook.kind != NULL && r->domains[region->key.domain].size > 1) {
        return r->hook.kind;
    }
    if (r->scattered) {
        return ls__division_is_hybrid(r) ? &ls__exchange_hybrid : &ls__exchange_scattered;
    }
    if (ls__bucket_table(r, bucket) != NULL) {
        return &ls__exchange_rows;
    }
    return region->wire != NULL ? &ls__exchange_rounded : &ls__exchange_plain;
}

static ls_status plain_before(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED,
                              ls__reduce_exchange *out)
{
    void *memory = ls__bucket_memory(r, bucket);
    *out = (ls__reduce_exchange){.operation = LS__OP_ALL_REDUCE,
                                 .input = memory,
                                 .output = memory,
                                 .count = ls__bucket_elements(r, bucket),
                                 .dtype = r->plan.regions[bucket->region].key.dtype,
                                 .divisor = ls__bucket_divisor(r, bucket)};
    return LS_OK;
}

const ls__exchange_kind ls__exchange_plain = {1, plain_before, NULL};

static ls_status scattered_before(ls_reducer *r, ls__reduce_bucket *bucket, int phase LS__UNUSED,
                                  ls__reduce_exchange *out)
{
    const ls__reduce_region *region = &r->plan.regions[bucket->region];
    const ls__bucket_part own = ls__bucket_own(r, bucket);
    const ls_dtype dtype = region->key.dtype;
    *out = (ls__reduce_exchange){.operation = LS__OP_REDUCE_SCATTER,
                                 .input = ls__bucket_memory(r, bucket),
                                 .output = region->memory + own.offset,
                                 .count = (int64_t)(own.bytes / ls_dtype_size(dtype)),
                                 .dtype = dtype,
                                 .divisor = ls__bucket_divisor(r, bucket)};
    return LS_OK;
}

const ls__exchange_kind ls__exchange_scattered = {1, scattered_before, NULL};

/* division.c has the drawing. */
static ls_status hybrid_before(ls_reducer *r, ls__reduce_bucket *bucket, int phase,
                               ls__reduce_exchange *out)
{
    LS_TRY(scattered_before(r, bucket, phase, out));
    if (phase == 0) {
        out->divisor = 0.0;
    } else {
        out->operation = LS__OP_ALL_REDUCE;
        out->input = out->output;
    }
    return LS_OK;
}

const ls__exchange_kind ls__exchange_hybrid = {2, hybrid_before, NULL};

/* Something may have become possible: the reducer's own thread looks. From any thread, also in a
 * callback. */
static void wake(ls_reducer *r)
{
    ls__reduce_worker *worker = &r->worker;
    if (worker->thread != NULL) {
        atomic_fetch_add_explicit(&worker->signals, 1, memory_order_release);
        worker->env->wake(worker->env, &worker->signals, 1);
    }
}

/* Runs on the thread that completes the operation, often the engine's. */
static void phase_done(void *arg, ls_status status)
{
    ls__reduce_bucket *bucket = arg;
    ls_reducer *r = bucket->reducer;
    bucket->reduced_ns = r->worker.env->now_ns(r->worker.env);
    /* Sync: release; pairs with the acquire in next_step. */
    atomic_store_explicit(&bucket->flying, false, memory_order_release);
    if ((r->hook.kind != NULL || r->phases > 1) && status == LS_OK) {
        wake(r);
    }
}

static ls_status start_collective(ls_reducer *r, ls__reduce_bucket *bucket, int phase,
                                  const ls__reduce_exchange *exchange)
{
    const ls__reduce_domain *domain = &r->domains[r->plan.regions[bucket->region].key.domain];
    const ls_collective_options options = {
        .size = sizeof options, .tag = bucket->tag, .divisor = exchange->divisor};
    const ls__collective args = {.operation = exchange->operation,
                                 .input = exchange->input,
                                 .output = exchange->output,
                                 .count = exchange->count,
                                 .dtype = exchange->dtype,
                                 .op = LS_SUM,
                                 .anywhere = true, /* two threads take steps */
                                 .options = &options,
                                 .place = ls__device_take_place(bucket),
                                 .done = r->pass.stream == NULL ? phase_done : NULL,
                                 .arg = bucket};
    const bool hybrid = bucket->kind == &ls__exchange_hybrid;
    const int size = hybrid ? r->division.size : domain->size;
    const bool parts = exchange->operation == LS__OP_ALL_TO_ALL ||
                       exchange->operation == LS__OP_REDUCE_SCATTER; /* one for each rank */
    ls_group *group = hybrid ? r->division.group[phase] : ls__domain_phase_group(domain, phase);
    r->pass.gradient_bytes +=
        (uint64_t)exchange->count * ls_dtype_size(exchange->dtype) * (uint64_t)(parts ? size : 1);
    if (r->pass.records) {
        const ls_status recorded = ls__captured_exchange(r, group, &args, exchange->divisor);
        phase_done(bucket, recorded);
        return recorded;
    }
    ls__captured_notice(r);
    atomic_store_explicit(&bucket->flying, true, memory_order_relaxed);
    const ls_status status = ls__collective_start(group, &args, &bucket->work);
    if (status < 0) {
        atomic_store_explicit(&bucket->flying, false, memory_order_relaxed);
    } else if (phase == 0 && r->runtime->trace != NULL) {
        bucket->flow = ls__flight_flow(bucket->work);
    }
    return status;
}

/* The bucket's gradients are complete. */
static ls_status launch(ls_reducer *r, ls__reduce_bucket *bucket)
{
    LS_ASSERT(bucket->pending == 0 && bucket->work == NULL);
    bucket->kind = NULL;
    if (!ls__bucket_used(r, bucket)) {
        ls__device_drop_place(r, bucket);
    } else {
        bucket->kind = kind_of(r, bucket);
        if (!r->on_device) { /* else ls__device_begin has zeroed what is not used */
            LS_TRY(ls__bucket_fill(r, bucket));
            ls__nonfinite_look(r, bucket);
        }
        bucket->launched_ns = r->runtime->env->now_ns(r->runtime->env);
    }
    return LS_OK;
}

/* Its collective has ended: the wait only gives the handle back. */
static ls_status end_phase(ls_reducer *r, ls__reduce_bucket *bucket, int phase)
{
    if (bucket->work != NULL) {
        ls_work *work = bucket->work;
        bucket->work = NULL;
        LS_TRY(ls_work_wait(work));
    }
    return bucket->kind->after != NULL ? bucket->kind->after(r, bucket, phase) : LS_OK;
}

/* Ends the phase before this one, and starts this one; the number of phases stands for the end. */
static ls_status take_step(ls_reducer *r, ls__reduce_bucket *bucket, int phase)
{
    if (phase == 0) {
        LS_TRY(launch(r, bucket));
    } else if (bucket->kind != NULL && phase <= bucket->kind->phases) {
        LS_TRY(end_phase(r, bucket, phase - 1));
    }
    if (bucket->kind == NULL || phase >= bucket->kind->phases) {
        return LS_OK;
    }
    ls__reduce_exchange exchange = {0};
    LS_TRY(bucket->kind->before(r, bucket, phase, &exchange));
    return exchange.none ? LS_OK : start_collective(r, bucket, phase, &exchange);
}

/* Under the lock. Later phases go first: they end buckets. */
static ls__reduce_bucket *next_step(ls_reducer *r, int *phase)
{
    ls__reduce_pass *pass = &r->pass;
    for (*phase = r->phases; r->phase == LS__REDUCER_RUNNING && !pass->held && *phase >= 0;
         (*phase)--) {
        ls__reduce_bucket *bucket = &r->plan.buckets[pass->next[*phase]];
        if (pass->next[*phase] == r->plan.count) {
            continue;
        }
        if (*phase == 0 ? bucket->pending == 0
                        : pass->next[*phase - 1] > pass->next[*phase] &&
                              !atomic_load_explicit(&bucket->flying, memory_order_acquire)) {
            return bucket;
        }
    }
    return NULL;
}

/* Under the lock. */
static void fail(ls_reducer *r, ls_status status)
{
    r->failure = status;
    r->phase = LS__REDUCER_FAILED;
    (void)snprintf(r->failure_text, sizeof r->failure_text, "%s", ls_error_message());
}

/* Under the lock. Combines the parts of the control exchange once, when all have come. A mismatch
 * fails the group before wait, because this rank may still be computing. */
static void open_launches(ls_reducer *r)
{
    if (r->phase == LS__REDUCER_CONTROL && r->pass.exchanges == 0) {
        const ls_status status = ls__control_finish(r);
        r->phase = LS__REDUCER_RUNNING;
        if (status < 0) {
            fail(r, status);
        }
    }
}

/* `worker`: the reducer's own thread, which leaves all steps to wait once that has begun. */
static void advance(ls_reducer *r, bool worker)
{
    const ls__env *env = r->runtime->env;
    int phase = 0;
    LS_ASSERT(!ls__self.in_callback);
    ls__lock_take(&r->lock, env);
    const bool open = r->phase == LS__REDUCER_CONTROL || r->phase == LS__REDUCER_RUNNING;
    if (!open || r->pass.stepping || (worker && r->pass.waiting)) { /* a late signal, or taken */
        ls__unlock(&r->lock, env);
        return;
    }
    r->pass.stepping = true;
    open_launches(r);
    for (ls__reduce_bucket *bucket = next_step(r, &phase); bucket != NULL;
         bucket = next_step(r, &phase)) {
        ls__unlock(&r->lock, env);
        const ls_status status = take_step(r, bucket, phase);
        ls__lock_take(&r->lock, env);
        if (status < 0 && r->phase == LS__REDUCER_RUNNING) {
            fail(r, status);
        } else if (status >= 0) {
            r->pass.next[phase]++;
        }
    }
    r->pass.stepping = false;
    const ls_status failure = r->phase == LS__REDUCER_FAILED ? r->failure : LS_OK;
    ls__unlock(&r->lock, env);
    if (failure < 0) { /* the peers wait for buckets that were not launched */
        ls__reducer_fail(r, failure, r->failure_text);
    }
}

/* ---- the reducer's own thread ------------------------------------------------------------- */

static void run_worker(void *reducer)
{
    ls_reducer *r = reducer;
    ls__reduce_worker *worker = &r->worker;
    ls__self.runtime = r->runtime; /* not attached: it is none of the user's threads */
    for (;;) {
        /* Sync: acquire; pairs with the release of whoever made a step possible. */
        const uint32_t seen = atomic_load_explicit(&worker->signals, memory_order_acquire);
        if (atomic_load_explicit(&worker->stop, memory_order_relaxed)) {
            return;
        }
        advance(r, true);
        (void)worker->env->park(worker->env, &worker->signals, seen, LS__NEVER);
    }
}

/* Called when the runtime ends: nothing of it may be touched any more. */
static void on_runtime_end(ls__runtime_guest *guest)
{
    ls__exchange_close(LS__LIST_ITEM(guest, ls_reducer, guest));
}

ls_status ls__exchange_open(ls_reducer *r)
{
    ls__reduce_worker *worker = &r->worker;
    worker->env = r->runtime->env;
    if (r->size == 1) {
        return LS_OK;
    }
    const int error =
        worker->env->thread_start(worker->env, "ls-reducer", run_worker, r, &worker->thread);
    if (error < 0) {
        worker->thread = NULL;
        return ls__fail(LS_ERR_SYSTEM, "reducer \"%s\": cannot start a thread: %s", r->name,
                        strerror(-error));
    }
    r->guest.ended = on_runtime_end;
    return LS_OK;
}

void ls__exchange_close(ls_reducer *r)
{
    ls__reduce_worker *worker = &r->worker;
    if (worker->thread != NULL) {
        atomic_store_explicit(&worker->stop, true, memory_order_relaxed);
        wake(r);
        worker->env->thread_join(worker->env, worker->thread);
        worker->thread = NULL;
    }
}

/* ---- a backward ------------------------------------------------------------------------------ */

void ls__exchange_begin(ls_reducer *r)
{
    for (int b = 0; b < r->plan.count; b++) {
        ls__reduce_bucket *bucket = &r->plan.buckets[b];
        bucket->pending = 0;
        bucket->work = NULL;
        bucket->launched_ns = bucket->reduced_ns = 0;
        bucket->place = NULL;
        bucket->reducer = r;
    }
}

void ls__exchange_ready(ls_reducer *r, bool last)
{
    if (r->hook.kind == NULL && !ls__self.in_callback) {
        advance(r, false);
    } else if (last) {
        wake(r);
    }
}

/* Runs on the thread that completes an exchange, often the engine's. */
void ls__exchange_opened(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->worker.env);
    LS_ASSERT(r->pass.exchanges > 0);
    const bool last = --r->pass.exchanges == 0;
    const bool due = r->plan.count > 0 && r->plan.buckets[0].pending == 0 && !r->pass.held;
    const bool wanted = last && due && !r->pass.waiting;
    ls__unlock(&r->lock, r->worker.env);
    if (wanted) {
        wake(r);
    }
}

int ls__exchange_ended(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    const int ended = r->phase == LS__REDUCER_RUNNING ? r->pass.next[r->phases] : 0;
    ls__unlock(&r->lock, r->runtime->env);
    return ended;
}

/* ---- wait ------------------------------------------------------------------------------------ */

/* The thread of wait takes all steps from now on. */
void ls__exchange_take_over(ls_reducer *r)
{
    ls__lock_take(&r->lock, r->runtime->env);
    r->pass.waiting = true;
    r->pass.held = false;
    ls__unlock(&r->lock, r->runtime->env);
}

/* The result of an operation that did not end in a step. */
static void note_failure(ls_reducer *r, ls_status status)
{
    ls__lock_take(&r->lock, r->runtime->env);
    if (status < 0 && r->phase == LS__REDUCER_RUNNING) {
        fail(r, status);
    }
    ls__unlock(&r->lock, r->runtime->env);
}

/* Waits for the operation that the first unfinished bucket waits for. Another thread may be inside
 * a step at this moment and is about to return, so yielding is enough. */
ls_status ls__exchange_wait(ls_reducer *r, int bucket)
{
    for (;;) {
        advance(r, false);
        ls__lock_take(&r->lock, r->runtime->env);
        const bool stepping = r->pass.stepping;
        const int first = r->pass.next[r->phases];
        const ls_status failure = r->phase == LS__REDUCER_FAILED ? r->failure : LS_OK;
        ls__unlock(&r->lock, r->runtime->env);
        if (stepping) {
            r->runtime->env->yield(r->runtime->env);
        } else if (failure < 0) {
            return ls__fail_again(failure, r->failure_text);
        } else if (first > bucket) {
            return LS_OK;
        } else {
            ls__reduce_bucket *next = &r->plan.buckets[first];
            ls_work *work = next->work;
            next->work = NULL;
            note_failure(r, work != NULL ? ls_work_wait_stream(work, r->pass.stream) : LS_OK);
            if (r->pass.stream != NULL) { /* a stream waits for it: it has ended for the host */
                phase_done(next, LS_OK);
            }
        }
    }
}

void ls__exchange_stop(ls_reducer *r)
{
    const ls__env *env = r->runtime->env;
    ls__lock_take(&r->lock, env);
    LS_ASSERT(r->phase != LS__REDUCER_IDLE);
    r->phase = LS__REDUCER_FAILED;
    while (r->pass.stepping) {
        ls__unlock(&r->lock, env);
        env->yield(env);
        ls__lock_take(&r->lock, env);
    }
    ls__unlock(&r->lock, env);
    for (int b = 0; b < r->plan.count; b++) {
        ls_work *work = r->plan.buckets[b].work;
        r->plan.buckets[b].work = NULL;
        (void)(work != NULL ? ls_work_wait(work) : LS_OK);
    }
}
