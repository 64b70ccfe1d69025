/* SPDX-License-Identifier: Apache-2.0 */
/* Fair shares (flow.h). The events are a heap by time; of equal times the one that was found first
 * comes first, so a simulation is the same everywhere. */
#include "cost/flow.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

#define ROOM_FIRST 64

/* ---- events ---------------------------------------------------------------------------------- */

/* An array with room for one more; NULL without memory. */
static void *with_room(ls__flows *f, void *array, int count, int *room, size_t bytes)
{
    if (count < *room) {
        return array;
    }
    const int wider = *room > 0 ? 2 * *room : ROOM_FIRST;
    void *copy = ls__arena_alloc(f->arena, (size_t)wider * bytes);
    if (copy == NULL) {
        f->no_memory = true;
        return NULL;
    }
    if (count > 0) {
        memcpy(copy, array, (size_t)count * bytes);
    }
    *room = wider;
    return copy;
}

static bool is_earlier(const ls__flow_event *a, const ls__flow_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void put_event(ls__flows *f, int at, ls__flow_event event)
{
    f->heap[at] = event;
    f->flows[event.flow].event = at;
}

static void move_up(ls__flows *f, int at, ls__flow_event event)
{
    for (; at > 0 && is_earlier(&event, &f->heap[(at - 1) / 2]); at = (at - 1) / 2) {
        put_event(f, at, f->heap[(at - 1) / 2]);
    }
    put_event(f, at, event);
}

static void move_down(ls__flows *f, int at, ls__flow_event event)
{
    const ls__flow_event *heap = f->heap;
    for (int child = 2 * at + 1; child < f->heap_count; child = 2 * at + 1) {
        child += child + 1 < f->heap_count && is_earlier(&heap[child + 1], &heap[child]);
        if (!is_earlier(&heap[child], &event)) {
            break;
        }
        put_event(f, at, heap[child]);
        at = child;
    }
    put_event(f, at, event);
}

/* Sets the next event of a flow, in place of the one that it had. */
static void set_event(ls__flows *f, double time, int flow)
{
    const ls__flow_event event = {time, f->order++, flow};
    const int at = f->flows[flow].event;
    if (at >= 0 && is_earlier(&f->heap[at], &event)) {
        move_down(f, at, event);
        return;
    }
    if (at >= 0) {
        move_up(f, at, event);
        return;
    }
    ls__flow_event *heap = with_room(f, f->heap, f->heap_count, &f->heap_room, sizeof *f->heap);
    if (heap != NULL) {
        f->heap = heap;
        move_up(f, f->heap_count++, event);
    }
}

static ls__flow_event pop_event(ls__flows *f)
{
    const ls__flow_event first = f->heap[0], last = f->heap[--f->heap_count];
    if (f->heap_count > 0) {
        move_down(f, 0, last);
    }
    f->flows[first.flow].event = -1;
    return first;
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* The least that the shares of its resources give. */
static double rate_of(const ls__flows *f, const ls__flow *flow)
{
    double least = INFINITY;
    for (int k = 0; k < LS__FLOW_RESOURCES; k++) {
        if (flow->resource[k] != LS__SIM_NONE) {
            const int at = flow->resource[k];
            const double speed =
                flow->speed[k] * ls__sim_share(&f->resources[at], f->users[at].weight);
            least = speed < least ? speed : least;
        }
    }
    return least;
}

/* Which of its resources this is. */
static int place_of(const ls__flow *flow, int resource)
{
    int k = 0;
    while (flow->resource[k] != resource) {
        k++;
        LS_ASSERT(k < LS__FLOW_RESOURCES); /* it is in the list of this resource */
    }
    return k;
}

/* An unchanged rate changes nothing, so flows that share nothing have exact times. */
static void reschedule(ls__flows *f, int index, double rate)
{
    ls__flow *flow = &f->flows[index];
    LS_ASSERT(rate > 0.0);
    if (rate == flow->rate) {
        return;
    }
    if (flow->rate > 0.0) {
        flow->left = fmax(0.0, flow->left - flow->rate * (f->now - flow->since));
    }
    flow->since = f->now;
    flow->rate = rate;
    set_event(f, f->now + (flow->left > 0.0 ? flow->left / rate : 0.0), index);
}

/* After a flow has joined or left: all flows of its resources have new rates. */
static void reschedule_users(ls__flows *f, const int *resource)
{
    for (int k = 0; k < LS__FLOW_RESOURCES; k++) {
        int at = resource[k] != LS__SIM_NONE ? f->users[resource[k]].first : -1;
        while (at >= 0) {
            const ls__flow *flow = &f->flows[at];
            const int next = flow->next[place_of(flow, resource[k])];
            reschedule(f, at, rate_of(f, flow));
            at = next;
        }
    }
}

static bool uses_resources(const ls__flow *flow)
{
    bool uses = false;
    for (int k = 0; k < LS__FLOW_RESOURCES; k++) {
        uses = uses || flow->resource[k] != LS__SIM_NONE;
    }
    return uses;
}

static void join_users(ls__flows *f, int index)
{
    ls__flow *flow = &f->flows[index];
    for (int k = 0; k < LS__FLOW_RESOURCES; k++) {
        if (flow->resource[k] != LS__SIM_NONE) {
            ls__flow_user *user = &f->users[flow->resource[k]];
            flow->next[k] = user->first;
            user->first = index;
            user->weight += flow->weight[k];
        }
    }
}

/* A resource with no user has the weight 0 exactly, whatever was rounded. */
static void leave_users(ls__flows *f, int index)
{
    ls__flow *flow = &f->flows[index];
    for (int k = 0; k < LS__FLOW_RESOURCES; k++) {
        if (flow->resource[k] != LS__SIM_NONE) {
            ls__flow_user *user = &f->users[flow->resource[k]];
            int *link = &user->first;
            while (*link != index) {
                LS_ASSERT(*link >= 0); /* a moving flow is in the lists of its resources */
                ls__flow *before = &f->flows[*link];
                link = &before->next[place_of(before, flow->resource[k])];
            }
            *link = flow->next[k];
            user->weight = user->first < 0 ? 0.0 : user->weight - flow->weight[k];
        }
    }
}

/* ---- flows ----------------------------------------------------------------------------------- */

bool ls__flows_init(ls__flows *f, ls__arena *arena, const ls__sim_resource *resources, int count)
{
    *f = (ls__flows){.arena = arena, .resources = resources, .free = -1};
    f->users = ls__arena_alloc(arena, ((size_t)count + 1) * sizeof *f->users);
    for (int i = 0; f->users != NULL && i < count; i++) {
        f->users[i].first = -1;
    }
    return f->users != NULL;
}

/* -1: no memory. */
static int take_flow(ls__flows *f)
{
    if (f->free >= 0) {
        const int index = f->free;
        f->free = f->flows[index].next[0];
        return index;
    }
    ls__flow *flows = with_room(f, f->flows, f->flow_count, &f->flow_room, sizeof *f->flows);
    if (flows == NULL) {
        return -1;
    }
    f->flows = flows;
    return f->flow_count++;
}

void ls__flows_add(ls__flows *f, const ls__flow *flow, double alone)
{
    const int index = take_flow(f);
    if (index < 0) {
        return;
    }
    f->flows[index] = *flow;
    f->flows[index].event = -1;
    f->flows[index].begin = f->flows[index].since = f->now;
    f->flows[index].rate = 0.0;
    f->flows[index].moving = true;
    if (!uses_resources(flow)) {
        reschedule(f, index, alone);
        return;
    }
    join_users(f, index);
    reschedule_users(f, flow->resource);
}

bool ls__flows_next(ls__flows *f, ls__flow *out)
{
    while (f->heap_count > 0 && !f->no_memory) {
        const ls__flow_event event = pop_event(f);
        ls__flow *flow = &f->flows[event.flow];
        LS_ASSERT(event.time >= f->now);
        f->now = event.time;
        if (flow->moving) { /* its work is done; the result arrives after the latency */
            flow->moving = false;
            if (uses_resources(flow)) {
                leave_users(f, event.flow);
                reschedule_users(f, flow->resource);
            }
            if (flow->latency > 0.0) {
                set_event(f, f->now + flow->latency, event.flow);
                continue;
            }
        }
        *out = *flow;
        flow->next[0] = f->free;
        f->free = event.flow;
        return true;
    }
    return false;
}
