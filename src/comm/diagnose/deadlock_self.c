/* SPDX-License-Identifier: Apache-2.0 */
/* The record that this rank publishes when all its threads are blocked; see deadlock.c. */
#include <string.h>

#include "base/lock.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/unexpected.h"
#include "comm/diagnose/deadlock.h"
#include "comm/diagnose/straggler.h"

/* One number for the calls of all these ranks. Each of them only grows, so equal numbers mean equal
 * calls, except once in 2^64. */
uint64_t ls__deadlock_calls(const ls__deadlock *d, const ls__blocked_wait *wait, int world_size)
{
    uint64_t hash = 0;
    for (int j = 0; j < world_size; j++) {
        if (ls__has_bit(wait->needs, j)) {
            hash = (hash ^ d->view[j].calls) * 0x9e3779b97f4a7c15u;
            hash ^= hash >> 29;
        }
    }
    return hash | 1;
}

/* Whether this is a send or a receive. */
static bool is_p2p(const ls_work *work)
{
    return work->operation == LS__OP_SEND || work->operation == LS__OP_RECV;
}

/* Whether the operation cannot end here before that member has called it. In shared memory all
 * meet at fence 0; by messages some members of a rooted operation may go ahead. */
static bool needs_member(const ls_work *work, int member)
{
    const ls_group *group = work->group;
    const bool root = work->descriptor.root == group->rank;
    if (!group->has_remote && work->path != LS__PATH_MESSAGES) {
        return true;
    }
    switch (ls__operation_plain(work->operation)) {
    case LS__OP_BROADCAST:
    case LS__OP_SCATTER:
        return !root && member == work->descriptor.root;
    case LS__OP_REDUCE:
    case LS__OP_GATHER:
        return root;
    case LS__OP_SCAN:
    case LS__OP_EXSCAN:
        return member < group->rank;
    default:
        return true;
    }
}

/* Whether the copy of the peer's record proves that no send in flight fits this receive. */
static bool sends_nothing(const ls__blocked *peer, const ls_work *recv)
{
    const ls_group *group = recv->group;
    const int me = group->member[group->rank].world_rank;
    bool none = peer->calls != 0 && peer->sends_cut == 0;
    for (uint32_t i = 0; i < peer->send_count; i++) {
        const ls__blocked_message *send = &peer->send[i];
        none = none &&
               !(send->group == group->id && send->peer == me && send->tag == recv->descriptor.tag);
    }
    return none;
}

/* A message to oneself can end a receive from any source without another rank. */
static bool sends_to_self(const ls_group *group, const ls__list *works, int tag)
{
    LS__LIST_EACH (at, works) {
        const ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        if (work->operation == LS__OP_SEND && work->descriptor.root == group->rank &&
            work->descriptor.tag == tag) {
            return true;
        }
    }
    return false;
}

/* A receive from any source: each of the other members would have to make a call. */
static void put_any_wait(ls__comm *comm, const ls_work *work, ls__blocked_wait *to)
{
    const ls_group *group = work->group;
    bool none = !sends_to_self(group, &group->inbox.works, work->descriptor.tag) &&
                !sends_to_self(group, &group->p2p->sends, work->descriptor.tag);
    for (int r = 0; r < group->size; r++) {
        if (r != group->rank) {
            ls__set_bit(to->needs, group->member[r].world_rank);
            none = none && sends_nothing(&comm->deadlock->view[group->member[r].world_rank], work);
        }
    }
    if (none && work->message.stage == LS__RECV_MATCH) {
        to->peer_calls = ls__deadlock_calls(comm->deadlock, to, comm->runtime->world_size);
    }
}

/* A receive that has met its announcement is not blocked by a missing call; its peer_calls stays 0,
 * so no fact follows from it. */
static void put_p2p_wait(ls__comm *comm, const ls_work *work, ls__blocked_wait *to)
{
    to->tag = work->descriptor.tag;
    if (work->descriptor.root == LS_ANY_SOURCE) {
        put_any_wait(comm, work, to);
        return;
    }
    to->peer = work->group->member[work->descriptor.root].world_rank;
    if (work->operation == LS__OP_SEND) {
        to->number = work->message.number;
    } else if (work->message.stage == LS__RECV_MATCH) {
        /* In this order; see Note [Why it is never wrong]. `view` was read before this look at the
         * receive, which changes only under the progress lock. */
        const ls__blocked *peer = &comm->deadlock->view[to->peer];
        to->peer_calls = sends_nothing(peer, work) ? peer->calls : 0;
    }
}

/* The members for which a collective waits: those that have not called it or, if all have, those
 * that are behind in it. */
static void put_needs(const ls_work *work, ls__blocked_wait *to)
{
    const ls_group *group = work->group;
    bool any = false;
    for (int pass = 0; pass < 2 && !any; pass++) {
        for (int r = 0; r < group->size; r++) {
            const bool late = pass == 0 ? needs_member(work, r) && !ls__has_called(group, r, work)
                                        : ls__is_behind(group, r, work);
            if (r != group->rank && late) {
                ls__set_bit(to->needs, group->member[r].world_rank);
                any = true;
            }
        }
    }
}

/* Adds one wait to the record. If it is full nothing can be proven. */
static void put_wait(ls__comm *comm, const ls_work *work, ls__blocked *out)
{
    const ls_group *group = work->group;
    const ls__descriptor *d = &work->descriptor;
    if (out->wait_count == LS__BLOCKED_WAITS_MAX) {
        out->waits_cut = 1;
        return;
    }
    ls__blocked_wait *to = &out->wait[out->wait_count++];
    to->operation = (uint8_t)work->operation;
    to->group = group->id;
    to->number = d->sequence;
    to->peer = -1;
    to->line = d->line;
    memcpy(to->group_name, group->name, sizeof to->group_name);
    memcpy(to->file, d->file, sizeof to->file);
    memcpy(to->text, d->text, sizeof to->text);
    if (is_p2p(work)) {
        put_p2p_wait(comm, work, to);
    } else {
        put_needs(work, to);
    }
}

/* Needs comm->lock. True: all attached threads of this rank are blocked, and have been for a while;
 * their waits are in the record. */
static bool put_threads(ls__comm *comm, uint64_t now_ns, ls__blocked *out)
{
    uint32_t threads = 0;
    LS__LIST_EACH (at, &comm->sleepers) {
        const ls__sleeper *sleeper = LS__LIST_ITEM(at, ls__sleeper, link);
        const bool waits =
            atomic_load_explicit(&sleeper->work->status, memory_order_acquire) == LS_IN_PROGRESS;
        if (!waits || now_ns < sleeper->since_ns + LS__DEADLOCK_PUBLISH_NS) {
            return false;
        }
        put_wait(comm, sleeper->work, out);
        threads++;
    }
    return threads > 0 &&
           threads == atomic_load_explicit(&comm->runtime->attached, memory_order_acquire);
}

/* Whether the end of this operation calls code that may start another one. The tuner's operations
 * wake no thread. */
static bool continues(const ls_work *work)
{
    return work->done != NULL ||
           atomic_load_explicit(&work->callback.state, memory_order_acquire) == LS__CALLBACK_SET;
}

/* Needs comm->lock. Adds the operations whose end makes the engine call on: the first of a queue,
 * since those behind it end later, and every message. */
static void put_callbacks(ls__comm *comm, const ls_group *group, ls__blocked *out)
{
    const ls__list *messages[] = {&group->inbox.works, &group->p2p->sends, &group->p2p->recvs};
    for (int i = 0; i < 3; i++) {
        LS__LIST_EACH (at, messages[i]) {
            const ls_work *work = LS__LIST_ITEM(at, ls_work, link);
            if (continues(work)) {
                put_wait(comm, work, out);
            }
        }
    }
    LS__LIST_EACH (at, &group->queue) {
        const ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        if (continues(work)) {
            put_wait(comm, work, out);
            return;
        }
    }
}

/* A receiver must see all sends that might fit; `sends_cut` says that some are missing. */
static void put_sends(const ls_group *group, const ls__list *works, ls__blocked *out)
{
    LS__LIST_EACH (at, works) {
        const ls_work *work = LS__LIST_ITEM(at, ls_work, link);
        if (work->operation == LS__OP_SEND && out->send_count < LS__BLOCKED_MESSAGES_MAX) {
            out->send[out->send_count++] =
                (ls__blocked_message){.group = group->id,
                                      .peer = group->member[work->descriptor.root].world_rank,
                                      .tag = work->descriptor.tag,
                                      .number = work->message.number};
        } else if (work->operation == LS__OP_SEND) {
            out->sends_cut = 1;
        }
    }
}

/* A send whose announcement is missing here is not proven to be stuck; so a full list only hides a
 * deadlock. */
static void put_announced(const ls_group *group, ls__blocked *out)
{
    LS__LIST_EACH (at, &group->p2p->announced) {
        const ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        if (out->announced_count < LS__BLOCKED_MESSAGES_MAX) {
            out->announced[out->announced_count++] =
                (ls__blocked_message){.group = group->id,
                                      .peer = group->member[kept->from].world_rank,
                                      .tag = kept->message->descriptor.tag,
                                      .number = kept->message->number};
        }
    }
}

/* Needs comm->lock. */
static void put_groups(ls__comm *comm, ls__blocked *out)
{
    LS__LIST_EACH (at, &comm->groups) {
        const ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        put_callbacks(comm, group, out);
        put_sends(group, &group->inbox.works, out);
        put_sends(group, &group->p2p->sends, out);
        put_announced(group, out);
        if (out->group_count < LS__BLOCKED_GROUPS_MAX) {
            out->group[out->group_count].group = group->id;
            out->group[out->group_count++].submitted = group->sequence;
        }
    }
}

/* All lists are read under one hold of comm->lock, so the record is of one moment. */
void ls__deadlock_look(ls__comm *comm, uint64_t now_ns, ls__blocked *out)
{
    memset(out, 0, sizeof *out);
    ls__lock_take(&comm->lock, comm->env);
    if (put_threads(comm, now_ns, out)) {
        put_groups(comm, out);
        const uint64_t calls = atomic_load_explicit(&comm->me->flight_next, memory_order_relaxed);
        out->calls = out->waits_cut == 0 ? 1 + calls : 0;
    } else {
        memset(out, 0, sizeof *out);
    }
    ls__unlock(&comm->lock, comm->env);
}
