/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what a rank has recorded. The rank may have died in the middle of an event, and its
 * program may have written over the memory, so every field is checked. */
#include "trace/file.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* The number of events that fit must be that of the head, whoever wrote it. */
static bool is_sound(const ls__trace_head *head, size_t bytes)
{
    return head->magic == LS__TRACE_MAGIC && head->version == LS__TRACE_VERSION &&
           head->capacity >= LS__TRACE_EVENTS_MIN && head->capacity <= LS__TRACE_EVENTS_MAX &&
           ls__trace_bytes(head->capacity) == bytes && head->rank >= 0 &&
           head->rank < head->world_size && memchr(head->host, '\0', sizeof head->host) != NULL &&
           memchr(head->path, '\0', sizeof head->path) != NULL;
}

static int by_time(const void *a, const void *b)
{
    const ls__trace_event *x = *(const ls__trace_event *const *)a;
    const ls__trace_event *y = *(const ls__trace_event *const *)b;
    if (x->begin_ns != y->begin_ns) {
        return x->begin_ns < y->begin_ns ? -1 : 1;
    }
    if (x->end_ns != y->end_ns) {
        return x->end_ns > y->end_ns ? -1 : 1;
    }
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* Of the newest events, those that are complete. */
static void collect(ls__trace_part *part)
{
    const ls__trace_head *head = part->head;
    const ls__trace_event *events =
        (const ls__trace_event *)(const void *)((const char *)head + sizeof *head);
    const uint64_t next = atomic_load_explicit(&head->next, memory_order_acquire);
    for (uint64_t n = next > head->capacity ? next - head->capacity : 0; n < next; n++) {
        const ls__trace_event *event = &events[n % head->capacity];
        /* Sync: acquire; pairs with the release of ls__trace_add. */
        const bool whole = atomic_load_explicit(&event->stamp, memory_order_acquire) == n + 1;
        if (whole && event->kind < LS__TRACE_KINDS && event->begin_ns <= event->end_ns &&
            event->text[LS__TRACE_TEXT - 1] == '\0') {
            part->events[part->count++] = event;
        }
    }
    part->dropped = next - (uint64_t)part->count;
    qsort((void *)part->events, (size_t)part->count, sizeof *part->events, by_time);
}

ls_status ls__trace_part_open(const ls__env *env, int fd, ls__trace_part *out)
{
    const int64_t bytes = env->shm_size(env, fd);
    void *memory = NULL;
    *out = (ls__trace_part){.env = env};
    if (bytes < (int64_t)ls__trace_bytes(LS__TRACE_EVENTS_MIN) ||
        bytes > (int64_t)ls__trace_bytes(LS__TRACE_EVENTS_MAX) ||
        env->shm_map(env, fd, (size_t)bytes, LS__MAP_ANYWHERE, &memory) < 0) {
        return ls__fail(LS_ERR_FORMAT, "trace: descriptor %d holds no events", fd);
    }
    out->head = memory;
    out->bytes = (size_t)bytes;
    if (!is_sound(out->head, out->bytes)) {
        ls__trace_part_close(out);
        return ls__fail(LS_ERR_FORMAT, "trace: the memory of a rank's events is damaged");
    }
    out->events_bytes = (size_t)out->head->capacity * sizeof *out->events;
    out->events = env->allocate(env, out->events_bytes);
    if (out->events == NULL) {
        ls__trace_part_close(out);
        return ls__fail(LS_ERR_MEMORY, "trace: no memory to sort the events of a rank");
    }
    memcpy(out->clock, out->head->clock, sizeof out->clock);
    collect(out);
    return LS_OK;
}

void ls__trace_part_close(ls__trace_part *part)
{
    if (part->events != NULL) {
        part->env->release(part->env, (void *)part->events, part->events_bytes);
    }
    if (part->head != NULL) {
        part->env->shm_unmap(part->env, (void *)(uintptr_t)part->head, part->bytes);
    }
    *part = (ls__trace_part){0};
}

/* Clocks drift by some microseconds a second, evenly, so between the two measurements the offset is
 * taken from the line through them; outside it is that of the nearer one. */
uint64_t ls__trace_part_time(const ls__trace_part *part, uint64_t ns)
{
    const ls__trace_clock *a = &part->clock[0], *b = &part->clock[1];
    if (a->at_ns == 0) {
        return ns;
    }
    if (b->at_ns <= a->at_ns || ns <= a->at_ns) {
        return ns + (uint64_t)a->offset_ns;
    }
    if (ns >= b->at_ns) {
        return ns + (uint64_t)b->offset_ns;
    }
    const double share = (double)(ns - a->at_ns) / (double)(b->at_ns - a->at_ns);
    const double more = share * (double)(b->offset_ns - a->offset_ns);
    return ns + (uint64_t)(a->offset_ns + (int64_t)more);
}
