/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a rank's present activity, under a sequence lock.
 *
 * The writer is one thread and never waits. A reader copies between two equal even sequence
 * numbers; the text is copied through relaxed atomic bytes, so that a copy which raced a write is
 * merely discarded and is not a data race. A writer that was killed within a write leaves an odd
 * number for ever: the reader gives up after some tries and returns its last copy.
 */
#include "base/activity.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/runtime.h"

#define READ_TRIES_MAX 1000 /* far more than a live writer, which never waits, can spoil */

/* Writes what fits, ended by 0. Sync: relaxed; ordered by the fences of the sequence lock on both
 * sides. */
static void put_text(char *to, const char *from, size_t room)
{
    size_t i = 0;
    for (; i + 1 < room && from[i] != '\0'; i++) {
        __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
    }
    __atomic_store_n(&to[i], '\0', __ATOMIC_RELAXED);
}

/* The text may change while it is copied, so the end is set in any case. Sync: as in put_text. */
static void get_text(char *to, const char *from, size_t room)
{
    for (size_t i = 0; i + 1 < room; i++) {
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        if (to[i] == '\0') {
            return;
        }
    }
    to[room - 1] = '\0';
}

/* The end of a path that fits, because "…/train.c" tells more than its root. Borrowed from
 * `path`. */
static const char *tail(const char *path, size_t room)
{
    size_t length = strlen(path);
    return length < room ? path : path + length - (room - 1);
}

/* The sequence lock allows one writer at a time. File and line are those of the user's last
 * call. */
ls__phase ls__activity_enter(ls__phase phase, const char *detail)
{
    ls_runtime *runtime = ls__self.runtime;
    if (runtime == NULL) {
        return LS__PHASE_USER;
    }
    LS_ASSERT(phase <= LS__PHASE_EXIT);
    ls__activity *a = runtime->activity;
    ls__phase former = (ls__phase)atomic_load_explicit(&a->phase, memory_order_relaxed);
    uint32_t sequence = atomic_load_explicit(&a->sequence, memory_order_relaxed);
    /* Sync: odd before the fields (this fence pairs with the reader's acquire fence). */
    atomic_store_explicit(&a->sequence, sequence | 1u, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&a->phase, (uint32_t)phase, memory_order_relaxed);
    atomic_store_explicit(&a->since_ns, runtime->env->now_ns(runtime->env), memory_order_relaxed);
    put_text(a->detail, detail != NULL ? detail : "", sizeof a->detail);
    put_text(a->file, tail(ls__self.file != NULL ? ls__self.file : "", sizeof a->file),
             sizeof a->file);
    __atomic_store_n(&a->line, ls__self.line, __ATOMIC_RELAXED);
    /* Sync: even after the fields; pairs with the reader's first load. */
    atomic_store_explicit(&a->sequence, (sequence | 1u) + 1u, memory_order_release);
    return former;
}

/* The detail of the outer phase is not restored; its time begins anew. */
void ls__activity_leave(ls__phase former)
{
    (void)ls__activity_enter(former, NULL);
}

/* The copy counts only if the sequence number was even and unchanged around it. */
static void copy_fields(const ls__activity *a, ls__activity_copy *out)
{
    out->phase = (ls__phase)atomic_load_explicit(&a->phase, memory_order_relaxed);
    out->since_ns = atomic_load_explicit(&a->since_ns, memory_order_relaxed);
    get_text(out->detail, a->detail, sizeof out->detail);
    get_text(out->file, a->file, sizeof out->file);
    out->line = __atomic_load_n(&a->line, __ATOMIC_RELAXED);
}

/* false: the writer was in the middle each time, or died there; `out` holds the last copy, whose
 * texts are ended but may be mixed. */
bool ls__activity_read(const ls__activity *activity, ls__activity_copy *out)
{
    for (int i = 0; i < READ_TRIES_MAX; i++) {
        uint32_t before = atomic_load_explicit(&activity->sequence, memory_order_acquire);
        copy_fields(activity, out);
        atomic_thread_fence(memory_order_acquire);
        uint32_t after = atomic_load_explicit(&activity->sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) {
            return true;
        }
    }
    return false;
}

void ls__activity_progress(const ls__activity *activity, char out[LS__PROGRESS_MAX])
{
    const uint64_t updates = atomic_load_explicit(&activity->updates, memory_order_relaxed);
    const uint64_t step = atomic_load_explicit(&activity->step, memory_order_relaxed);
    out[0] = '\0';
    if (updates != 0) {
        (void)snprintf(out, LS__PROGRESS_MAX, " (after optimizer step %llu)",
                       (unsigned long long)updates);
    } else if (step != 0) {
        (void)snprintf(out, LS__PROGRESS_MAX, " (in step %llu, counted from 0)",
                       (unsigned long long)(step - 1));
    }
}

/* The words complete the sentence "rank 3 is in …"; a peer may run another version, so any value is
 * allowed. */
const char *ls__phase_name(ls__phase phase)
{
    switch (phase) {
    case LS__PHASE_USER:
        return "its own code";
    case LS__PHASE_START:
        return "ls_init";
    case LS__PHASE_DATA:
        return "the data loader";
    case LS__PHASE_FORWARD:
        return "the forward pass";
    case LS__PHASE_BACKWARD:
        return "the backward pass";
    case LS__PHASE_OPTIMIZER:
        return "the optimizer step";
    case LS__PHASE_COLLECTIVE:
        return "a collective";
    case LS__PHASE_CHECKPOINT:
        return "a checkpoint";
    case LS__PHASE_EXIT:
        return "ls_finalize";
    }
    return "an unknown phase";
}
