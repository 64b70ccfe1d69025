/* SPDX-License-Identifier: Apache-2.0 */
/* The reader thread of a loader and the ring of slots between it and the user's thread; the picture
 * is in prefetch.h.
 *
 * The counters `filled` and `freed` count slots since the start of the reader. Slot n % slot_count
 * belongs to the reader while filled - freed < slot_count, and to the user's thread from the
 * moment `filled` passes it until `freed` does. A reader whose data set fails marks the slot and
 * ends; the error reaches the user with that step and not earlier. */
#include "data/prefetch.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/trace.h"
#include "data/dataset.h"
#include "data/sample.h"

/* ---- reading one batch -------------------------------------------------------------------- */

int64_t ls__prefetch_step(const ls__prefetch *p, int64_t position)
{
    return position / ls__sampler_global_batch(p->sampler);
}

/* Moves past a step; at the end of an epoch, to the start of the next one. */
static void next_position(const ls__prefetch *p, int64_t *epoch, int64_t *position)
{
    *position += ls__sampler_span_at(p->sampler, *position).global;
    if (ls__sampler_span_at(p->sampler, *position).global == 0) {
        *position = 0;
        ++*epoch;
    }
}

static bool is_to_stop(const ls__prefetch *p)
{
    return atomic_load_explicit(&p->stop, memory_order_acquire) != 0;
}

static ls_status read_samples(ls__prefetch *p, ls__prefetch_slot *at, int64_t epoch, int64_t count)
{
    for (int64_t i = 0; i < count && !is_to_stop(p); i++) {
        LS_TRY(ls__dataset_get(p->dataset, epoch, p->indices[i], at->x + (size_t)i * p->x_bytes,
                               at->y + (size_t)i * p->y_bytes));
    }
    return LS_OK;
}

/* Of an empty batch the data set's first sample shows the shapes. */
static ls_status read_arrays(ls__prefetch *p, ls__prefetch_slot *at, int64_t epoch, int64_t count)
{
    if (count == 0) {
        LS_TRY(ls__dataset_get_sample(p->dataset, epoch, 0, p->samples[0]));
    }
    for (int64_t i = 0; i < count && !is_to_stop(p); i++) {
        LS_TRY(ls__dataset_get_sample(p->dataset, epoch, p->indices[i], p->samples[i]));
    }
    return is_to_stop(p) ? LS_OK
                         : ls__dataset_collate(p->dataset, (const ls_sample *const *)p->samples,
                                               count, at->batch);
}

/* Failure is recorded in the slot, because the user's thread reports it. With `all_ranks` the
 * blocks of the ranks follow each other. A batch that nobody will take may be left half read. */
static void read_batch(ls__prefetch *p, ls__prefetch_slot *at, int64_t epoch, int64_t position)
{
    const ls__sampler_span span = ls__sampler_span_at(p->sampler, position);
    const int64_t count = p->all_ranks ? span.global : span.count;
    LS_ASSERT(span.global > 0); /* both sides go to the next epoch at the end of one */
    ls__sampler_read(p->sampler, p->order, epoch, span.first, count, p->indices);
    at->status =
        p->samples != NULL ? read_arrays(p, at, epoch, count) : read_samples(p, at, epoch, count);
    if (at->status < 0) {
        (void)snprintf(at->message, sizeof at->message, "loader: epoch %lld, step %lld: %s",
                       (long long)epoch, (long long)ls__prefetch_step(p, position),
                       ls_error_message());
    }
}

/* ---- the reader's thread ------------------------------------------------------------------ */

static bool reader_may_fill(const ls__prefetch *p)
{
    const uint32_t filled = atomic_load_explicit(&p->filled, memory_order_relaxed); /* its own */
    const uint32_t freed =
        atomic_load_explicit(&p->freed, memory_order_acquire); /* pairs with ls__prefetch_release */
    LS_ASSERT(filled - freed <= (uint32_t)p->slot_count);
    return filled - freed < (uint32_t)p->slot_count;
}

/* False: the reader is to end. The event is read before the conditions, so a change between the
 * two lets park return at once. */
static bool reader_wait(ls__prefetch *p)
{
    for (;;) {
        const uint32_t event = atomic_load_explicit(&p->freed_event, memory_order_acquire);
        if (is_to_stop(p)) {
            return false;
        }
        if (reader_may_fill(p)) {
            return true;
        }
        (void)p->env->park(p->env, &p->freed_event, event, LS__NEVER);
    }
}

static void signal_event(const ls__prefetch *p, _Atomic uint32_t *event)
{
    atomic_fetch_add_explicit(event, 1, memory_order_release);
    p->env->wake(p->env, event, 1);
}

/* Once it is to stop it looks at neither sampler nor data set: where a read hung, they may be
 * gone. */
static void reader_run(void *arg)
{
    ls__prefetch *p = arg;
    ls__runtime_attach_background(p->runtime);
    bool failed = false;
    while (!failed && reader_wait(p)) {
        const uint32_t filled = atomic_load_explicit(&p->filled, memory_order_relaxed);
        ls__prefetch_slot *at = &p->slots[filled % (uint32_t)p->slot_count];
        const uint64_t traced = ls__trace_begin();
        read_batch(p, at, p->reader_epoch, p->reader_position);
        ls__trace_end(traced, LS__TRACE_READ, "read a batch", NULL);
        if (is_to_stop(p)) {
            break;
        }
        failed = at->status < 0;
        next_position(p, &p->reader_epoch, &p->reader_position);
        atomic_store_explicit(&p->filled, filled + 1, memory_order_release);
        signal_event(p, &p->filled_event);
    }
    (void)ls_runtime_attach(NULL);
    atomic_store_explicit(&p->ended, 1, memory_order_release); /* pairs with wait_ended */
    p->env->wake(p->env, &p->ended, 1);
}

/* No reader runs here, so the counters need no order: starting a thread gives it. */
static ls_status reader_start(ls__prefetch *p, int64_t epoch, int64_t position)
{
    LS_ASSERT(p->reader == NULL);
    atomic_store_explicit(&p->stop, 0, memory_order_relaxed);
    atomic_store_explicit(&p->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&p->filled, 0, memory_order_relaxed);
    atomic_store_explicit(&p->freed, 0, memory_order_relaxed);
    p->reader_epoch = epoch;
    p->reader_position = position;
    const int error = p->env->thread_start(p->env, "ls-loader", reader_run, p, &p->reader);
    if (error < 0) {
        p->reader = NULL;
        return ls__fail(LS_ERR_SYSTEM,
                        "loader: the reader thread could not be started: %s; prefetch = 0 works "
                        "without one",
                        strerror(-error));
    }
    return LS_OK;
}

static ls_status wait_ended(ls__prefetch *p)
{
    const uint64_t deadline = ls__deadline_after(p->env, p->runtime->timeout_ms);
    while (atomic_load_explicit(&p->ended, memory_order_acquire) == 0) {
        if (p->env->now_ns(p->env) >= deadline) {
            return ls__fail(
                LS_ERR_TIMEOUT,
                "loader: the data set's get function has not returned for %lld ms; look "
                "at it, and at the disk that it reads from",
                (long long)p->runtime->timeout_ms);
        }
        (void)p->env->park(p->env, &p->ended, 0, deadline);
    }
    return LS_OK;
}

ls_status ls__prefetch_stop(ls__prefetch *p)
{
    if (p->reader == NULL) {
        return LS_OK;
    }
    atomic_store_explicit(&p->stop, 1, memory_order_release);
    signal_event(p, &p->freed_event);
    LS_TRY(wait_ended(p));
    p->env->thread_join(p->env, p->reader);
    p->reader = NULL;
    return LS_OK;
}

/* ---- the user's side ---------------------------------------------------------------------- */

static ls_status wait_filled(ls__prefetch *p, uint32_t freed, int64_t epoch, int64_t position)
{
    const uint64_t deadline = ls__deadline_after(p->env, p->runtime->timeout_ms);
    for (;;) {
        const uint32_t event = atomic_load_explicit(&p->filled_event, memory_order_acquire);
        if (atomic_load_explicit(&p->filled, memory_order_acquire) != freed) {
            return LS_OK;
        }
        if (p->env->now_ns(p->env) >= deadline) {
            return ls__fail(LS_ERR_TIMEOUT,
                            "loader: epoch %lld, step %lld: the data set gave no batch for %lld "
                            "ms; look at its get function, or raise LOCKSTEP_TIMEOUT",
                            (long long)epoch, (long long)ls__prefetch_step(p, position),
                            (long long)p->runtime->timeout_ms);
        }
        (void)p->env->park(p->env, &p->filled_event, event, deadline);
    }
}

ls_status ls__prefetch_take(ls__prefetch *p, int64_t epoch, int64_t position,
                            ls__prefetch_slot **out)
{
    uint32_t freed = 0;
    if (p->threaded) {
        if (p->reader == NULL) {
            LS_TRY(reader_start(p, epoch, position));
        }
        freed = atomic_load_explicit(&p->freed, memory_order_relaxed); /* this thread's own */
        LS_TRY(wait_filled(p, freed, epoch, position));
    } else {
        read_batch(p, &p->slots[0], epoch, position);
    }
    ls__prefetch_slot *at = &p->slots[freed % (uint32_t)p->slot_count];
    if (at->status < 0) {
        return ls__fail_again(at->status, at->message);
    }
    *out = at;
    return LS_OK;
}

/* After a stop there is nobody to release to: the next reader starts with all slots free. */
void ls__prefetch_release(ls__prefetch *p)
{
    if (p->reader != NULL) {
        atomic_fetch_add_explicit(&p->freed, 1, memory_order_release); /* reader_may_fill */
        signal_event(p, &p->freed_event);
    }
}
