/* SPDX-License-Identifier: Apache-2.0 */
/* Recording: the ring, the steps, and the settings. */
#include "base/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/settings.h"

#define EVENTS_DEFAULT (1 << 16)

/* ---- recording ---------------------------------------------------------------------------- */

/* Threads are numbered in the order of their first spans; the one that called ls_init is 1. */
static uint16_t thread_number(ls__trace *trace)
{
    if (ls__self.trace_thread == 0) {
        ls__self.trace_thread = (uint16_t)(1 + atomic_fetch_add_explicit(&trace->head->threads, 1,
                                                                         memory_order_relaxed));
    }
    return ls__self.trace_thread;
}

/* Copies what fits, ended by 0; returns the place behind the 0. Of a name that is too long the end
 * is kept, because "…attn.c_proj.weight" tells more than its beginning; of a text of several words
 * the beginning. */
static char *put(char *to, size_t room, const char *text)
{
    size_t length = strlen(text);
    if (length >= room) {
        text += strchr(text, ' ') == NULL ? length - (room - 1) : 0;
        length = room - 1;
    }
    memcpy(to, text, length);
    to[length] = '\0';
    return to + length + 1;
}

/* Each text gets at least the half of the room. */
static void put_texts(char out[LS__TRACE_TEXT], const char *name, const char *detail)
{
    const size_t second = detail != NULL ? strlen(detail) + 1 : 1;
    const size_t half = LS__TRACE_TEXT / 2;
    char *end = put(out, LS__TRACE_TEXT - (second < half ? second : half), name);
    (void)put(end, LS__TRACE_TEXT - (size_t)(end - out), detail != NULL ? detail : "");
}

/* A slot is free when the event that it held one turn of the ring ago is complete; a thread that
 * was interrupted for a whole turn loses the newer event, which counts as dropped. */
void ls__trace_add(ls__trace *trace, const ls__trace_span *span)
{
    ls__trace_head *head = trace->head;
    LS_ASSERT(span->kind < LS__TRACE_KINDS);
    const uint64_t number = atomic_fetch_add_explicit(&head->next, 1, memory_order_relaxed);
    ls__trace_event *event = &trace->events[number % head->capacity];
    /* Sync: acquire; pairs with the release below, by the thread that used the slot before. */
    uint64_t former = number < head->capacity ? 0 : number + 1 - head->capacity;
    if (!atomic_compare_exchange_strong_explicit(&event->stamp, &former, 0, memory_order_acquire,
                                                 memory_order_relaxed)) {
        return;
    }
    event->begin_ns = span->begin_ns;
    event->end_ns = span->end_ns;
    event->flow = span->flow;
    event->bytes = span->bytes;
    event->kind = (uint16_t)span->kind;
    event->thread = span->kind < LS__TRACE_BUCKET ? thread_number(trace) : 0;
    put_texts(event->text, span->name, span->detail);
    /* Sync: release; pairs with the reader, which comes when the process has ended. */
    atomic_store_explicit(&event->stamp, number + 1, memory_order_release);
}

uint64_t ls__trace_now(ls__trace *trace)
{
    const bool on = atomic_load_explicit(&trace->on, memory_order_relaxed) && !ls__self.forked;
    return on ? trace->env->now_ns(trace->env) : 0;
}

/* The first step begins with its first batch, or forward pass, and not while the model is made. */
void ls__trace_close_span(uint64_t begin_ns, ls__trace_kind kind, const char *name,
                          const char *detail)
{
    ls__trace *trace = ls__self.runtime != NULL ? ls__self.runtime->trace : NULL;
    if (trace == NULL) {
        return;
    }
    const ls__trace_span span = {.kind = kind,
                                 .begin_ns = begin_ns,
                                 .end_ns = trace->env->now_ns(trace->env),
                                 .name = name,
                                 .detail = detail};
    ls__trace_add(trace, &span);
    const bool starts = kind == LS__TRACE_LOADER || kind == LS__TRACE_FORWARD;
    if (starts && atomic_load_explicit(&trace->step_begin_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&trace->step_begin_ns, begin_ns, memory_order_relaxed);
    }
    if (kind == LS__TRACE_BACKWARD) {
        atomic_store_explicit(&trace->backward, true, memory_order_relaxed);
    }
}

static bool wanted(const ls__trace *trace, uint64_t step)
{
    return (int64_t)step >= trace->first_step && (int64_t)step <= trace->last_step;
}

static void add_step(ls__trace *trace, uint64_t step, uint64_t begin_ns, uint64_t end_ns)
{
    char name[32];
    (void)snprintf(name, sizeof name, "step %llu", (unsigned long long)step);
    const ls__trace_span span = {.kind = LS__TRACE_STEP,
                                 .begin_ns = begin_ns,
                                 .end_ns = end_ns,
                                 .bytes = step,
                                 .name = name};
    ls__trace_add(trace, &span);
}

/* Outside of the steps that are recorded no span says whether there was a backward: there every
 * call counts. */
static void end_step(ls__trace *trace, uint64_t now_ns)
{
    const bool on = atomic_load_explicit(&trace->on, memory_order_relaxed);
    const uint64_t begin = atomic_load_explicit(&trace->step_begin_ns, memory_order_relaxed);
    const uint64_t step = atomic_load_explicit(&trace->step, memory_order_relaxed);
    if (on && (begin == 0 || !atomic_load_explicit(&trace->backward, memory_order_relaxed))) {
        return;
    }
    if (on) {
        add_step(trace, step, begin, now_ns);
    }
    atomic_store_explicit(&trace->step, step + 1, memory_order_relaxed);
    atomic_store_explicit(&trace->backward, false, memory_order_relaxed);
    atomic_store_explicit(&trace->step_begin_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&trace->on, wanted(trace, step + 1), memory_order_relaxed);
}

void ls__trace_step(ls__trace *trace, uint64_t now_ns)
{
    atomic_store_explicit(&trace->optimizes, true, memory_order_relaxed);
    end_step(trace, now_ns);
}

void ls__trace_pass(ls__trace *trace, uint64_t now_ns)
{
    if (atomic_load_explicit(&trace->step_begin_ns, memory_order_relaxed) == 0) {
        atomic_store_explicit(&trace->step_begin_ns, now_ns, memory_order_relaxed);
    } else if (!atomic_load_explicit(&trace->optimizes, memory_order_relaxed)) {
        end_step(trace, now_ns);
    }
}

/* The finaliser of MurmurHash3: every bit of the arguments reaches every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

uint64_t ls__trace_flow(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t flow = mix(mix(mix(a + 1) ^ b) ^ c);
    return flow != 0 ? flow : 1;
}

/* ---- settings ----------------------------------------------------------------------------- */

/* "10-20", "10-" or "10"; steps are counted from 0. */
static ls_status read_steps(ls__trace *trace)
{
    const char *text = ls__setting_get("LOCKSTEP_TRACE_STEPS");
    trace->first_step = 0;
    trace->last_step = INT64_MAX;
    if (text == NULL) {
        return LS_OK;
    }
    char *end = NULL;
    const long long first = strtoll(text, &end, 10);
    long long last = first;
    bool sound = end != text && first >= 0;
    if (sound && *end == '-') {
        const char *second = end + 1;
        last = *second == '\0' ? INT64_MAX : strtoll(second, &end, 10);
        sound = *second == '\0' || end != second;
        end = *second == '\0' ? (char *)second : end;
    }
    if (!sound || *end != '\0' || last < first) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: LOCKSTEP_TRACE_STEPS=%s; give the first and the last step, "
                        "counted from 0, as 10-20",
                        text);
    }
    trace->first_step = first;
    trace->last_step = last;
    return LS_OK;
}

size_t ls__trace_bytes(uint64_t capacity)
{
    return sizeof(ls__trace_head) + (size_t)capacity * sizeof(ls__trace_event);
}

/* The pages are written once, so that none has to be found while a step is timed. */
static ls_status map(ls__trace *trace, uint64_t capacity)
{
    const ls__env *env = trace->env;
    void *memory = NULL;
    trace->bytes = ls__trace_bytes(capacity);
    trace->fd = env->shm_create(env, "lockstep-trace", trace->bytes);
    const int error = trace->fd < 0
                          ? trace->fd
                          : env->shm_map(env, trace->fd, trace->bytes, LS__MAP_ANYWHERE, &memory);
    if (error < 0) {
        return ls__fail(LS_ERR_MEMORY,
                        "ls_init: LOCKSTEP_TRACE: no memory for %llu events: %s; set a smaller "
                        "LOCKSTEP_TRACE_EVENTS",
                        (unsigned long long)capacity, strerror(-error));
    }
    memset(memory, 0, trace->bytes);
    trace->head = memory;
    trace->events = (ls__trace_event *)(void *)((char *)memory + sizeof(ls__trace_head));
    return LS_OK;
}

/* The magic is written last: an agent may look at the memory of a rank that dies here. */
static ls_status fill_head(ls__trace *trace, const ls_runtime *runtime, const char *path,
                           uint64_t capacity)
{
    ls__trace_head *head = trace->head;
    if (strlen(path) >= sizeof head->path) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: the path of LOCKSTEP_TRACE is longer than %zu "
                        "bytes; give a shorter one",
                        sizeof head->path - 1);
    }
    memcpy(head->path, path, strlen(path) + 1);
    if (trace->env->host_name(trace->env, head->host, sizeof head->host) < 0) {
        (void)snprintf(head->host, sizeof head->host, "localhost");
    }
    head->version = LS__TRACE_VERSION;
    head->capacity = capacity;
    head->rank = runtime->rank;
    head->world_size = runtime->world_size;
    head->pid = runtime->pid;
    ls__self.trace_thread = 0;
    (void)thread_number(trace);
    LS_ASSERT(ls__self.trace_thread == 1);
    head->magic = LS__TRACE_MAGIC;
    return LS_OK;
}

ls_status ls__trace_new(const ls_runtime *runtime, ls__trace **out)
{
    const char *path = ls__setting_get("LOCKSTEP_TRACE");
    *out = NULL;
    if (path == NULL) {
        return LS_OK;
    }
    const uint64_t capacity = (uint64_t)ls__setting_int("LOCKSTEP_TRACE_EVENTS", EVENTS_DEFAULT,
                                                        LS__TRACE_EVENTS_MIN, LS__TRACE_EVENTS_MAX);
    ls__trace *trace = runtime->env->allocate(runtime->env, sizeof *trace);
    if (trace == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the trace");
    }
    *trace = (ls__trace){.env = runtime->env, .fd = -1};
    ls_status status = read_steps(trace);
    status = status < 0 ? status : map(trace, capacity);
    status = status < 0 ? status : fill_head(trace, runtime, path, capacity);
    if (status < 0) {
        ls__trace_free(trace);
        return status;
    }
    atomic_store_explicit(&trace->on, wanted(trace, 0), memory_order_relaxed);
    *out = trace;
    return LS_OK;
}

void ls__trace_free(ls__trace *trace)
{
    if (trace == NULL) {
        return;
    }
    const ls__env *env = trace->env;
    if (trace->head != NULL) {
        env->shm_unmap(env, trace->head, trace->bytes);
    }
    if (trace->fd >= 0) {
        env->close(env, trace->fd);
    }
    env->release(env, trace, sizeof *trace);
}
