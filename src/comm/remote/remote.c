/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to and from remote members; the protocol is described in remote.h.
 *
 * Note [Cached state]
 * Cached state is older than the member's own, and never newer. That is safe because all of it only
 * grows: a stamp, the number of finished operations, a claim, a life that ends. A reader that sees
 * too little waits a little longer.
 *
 * A message without a slot is kept and sent as soon as there is one (remote_send.c). The transport
 * loses messages only together with the connection, and then the peer is given up.
 */
#include "comm/remote/remote.h"
#include "comm/core/remote_rank.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/post.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/operation/mismatch.h"

/* ---- sending ------------------------------------------------------------------------------ */

/* A message of the group without payload. */
static ls__message head_of(const ls_group *group, ls__message_kind kind)
{
    return (ls__message){.kind = (uint32_t)kind, .group = group->id};
}

/* The last operation that this rank has finished. Other messages carry it, too, so that few
 * FINISHED are needed. */
static uint64_t finished_by(const ls_group *group)
{
    return atomic_load_explicit(&group->own->finished, memory_order_relaxed);
}

/* Sends one announcement to all remote members, with `bytes` of a one-shot contribution. */
static bool post(ls_group *group, uint64_t sequence, uint32_t bytes)
{
    const ls__post *slot = ls__post_slot(group, group->rank, sequence);
    ls__message head = head_of(group, LS__MESSAGE_POST);
    head.bytes = bytes;
    head.total = finished_by(group);
    head.descriptor = slot->descriptor;
    return ls__remote_send_members(group, &head, ls__small_place(group, group->rank, sequence));
}

/* The operation has stalled: its announcement goes out alone, so that both sides can be compared
 * and named. */
void ls__remote_post(ls_group *group, uint64_t sequence)
{
    if (group->has_remote) {
        (void)post(group, sequence, 0);
    }
}

/* Sends the one-shot operations announced since the last call. Other operations need no POST,
 * because their messages carry the descriptor. Whether anything was sent. */
static bool post_new(ls_group *group)
{
    const uint64_t posted = atomic_load_explicit(&group->posted, memory_order_acquire);
    bool moved = false;
    while (group->remote_posted < posted) {
        const ls__post *slot = ls__post_slot(group, group->rank, group->remote_posted + 1);
        if (slot->line.one_shot != 0 &&
            !post(group, group->remote_posted + 1, slot->line.one_shot - 1)) {
            break; /* no memory: again at the next turn */
        }
        group->remote_posted++;
        moved = true;
    }
    return moved;
}

/* Before this rank falls silent, so that no member waits for room that exists. */
void ls__remote_send_finished(ls_group *group)
{
    if (group->has_remote) {
        ls__message head = head_of(group, LS__MESSAGE_FINISHED);
        head.total = finished_by(group);
        (void)ls__remote_send_members(group, &head, NULL);
    }
}

/* A lost copy would keep memory in quarantine on that member, so it is queued like any message. */
void ls__remote_send_left(ls_group *group, ls__message_kind kind)
{
    if (group->has_remote) {
        const ls__message head = head_of(group, kind);
        (void)ls__remote_send_members(group, &head, NULL);
    }
}

typedef struct cause {
    ls_status status;
    int by; /* the rank of the world that caused it */
    const char *text;
} cause;

/* CLAIM and FAILED carry status, responsible rank and text in fields that no other message uses. */
static void put_cause(ls__message *head, const cause *c)
{
    head->number = (uint64_t) - (int64_t)c->status;
    head->offset = (uint64_t)c->by;
    head->bytes = (uint32_t)strlen(c->text) + 1;
}

/* Sends the root cause to the members that do not see it in shared memory: the remote ones, and the
 * local ones if the claimant is remote. */
static bool spread(ls_group *group, int claimant, const cause *c)
{
    ls__message head = head_of(group, LS__MESSAGE_FAILED);
    const bool to_local = group->member[claimant].remote;
    LS_ASSERT(c->status < 0);
    bool all = true;
    put_cause(&head, c);
    head.lane = (uint32_t)claimant;
    for (int r = 0; r < group->size; r++) {
        if (r != group->rank && (group->member[r].remote || to_local)) {
            all = ls__remote_send(group->comm, group->member[r].world_rank, &head, c->text) && all;
        }
    }
    return all;
}

/* Asks member 0, which decides alone, so there is one winner among all hosts. */
static bool send_claim(ls_group *group)
{
    ls__message head = head_of(group, LS__MESSAGE_CLAIM);
    put_cause(&head, &(cause){group->claim.status, group->claim.by, group->claim.text});
    return ls__remote_send(group->comm, group->member[0].world_rank, &head, group->claim.text);
}

/* Sends the failure that a thread of this rank has prepared, once. Whether it was sent; without
 * memory it is tried again at the next turn. */
static bool report_failure(ls_group *group)
{
    /* Sync: acquires the text. */
    if (atomic_load_explicit(&group->claim.state, memory_order_acquire) != LS__CLAIM_READY) {
        return false;
    }
    const bool sent =
        group->member[0].remote
            ? send_claim(group)
            : spread(group, group->rank,
                     &(cause){group->claim.status, group->claim.by, group->claim.text});
    if (sent) {
        atomic_store_explicit(&group->claim.state, LS__CLAIM_SENT, memory_order_relaxed);
    }
    return sent;
}

/* Stores the root cause where the readers in this process look: in the cached copy of the claimant,
 * or in the own control block. The claim word comes last and publishes the rest. */
static void write_cause(ls_group *group, int claimant, const cause *c)
{
    LS_ASSERT(claimant >= 0 && claimant < group->size && c->status < 0);
    ls__control_block *of = group->member[claimant].control;
    snprintf(of->failed_text, sizeof of->failed_text, "%s", c->text);
    of->failed_by = c->by;
    atomic_store_explicit(&of->failed, (uint32_t)-c->status, memory_order_seq_cst);
    atomic_store_explicit(&group->member[0].control->claim, (uint32_t)claimant + 1,
                          memory_order_seq_cst);
}

/* Status and text of CLAIM and FAILED. False: the message is malformed, and is ignored. */
static bool read_cause(const ls__message *message, cause *out)
{
    *out = (cause){(ls_status) - (int64_t)message->number, (int)message->offset,
                   (const char *)message->payload};
    return message->bytes > 0 && message->bytes <= LS__FAILURE_MAX && out->status < 0 &&
           out->status > -1000 && out->text[message->bytes - 1] == '\0';
}

/* Only member 0 decides. The first claim wins; the answer to later ones is the FAILED that the
 * first has caused. */
static void take_claim(ls_group *group, int from, const ls__message *message)
{
    cause c;
    uint32_t expected = 0;
    if (group->rank != 0 || !group->member[from].remote || !read_cause(message, &c)) {
        return;
    }
    if (atomic_compare_exchange_strong_explicit(&group->own->claim, &expected, (uint32_t)from + 1,
                                                memory_order_seq_cst, memory_order_relaxed)) {
        write_cause(group, from, &c);
        (void)spread(group, from, &c);
    }
}

/* Member 0 has decided. If member 0 is on this host, a message about a claimant of this host brings
 * nothing new. If it is on another host, all members here get the message, and each writes only to
 * its own block: a claimant's block is shared memory, which the claimant may be writing. */
static void take_failed(ls_group *group, const ls__message *message)
{
    cause c;
    const uint32_t claimant = message->lane;
    if (claimant >= (uint32_t)group->size || !read_cause(message, &c)) {
        return;
    }
    if (claimant == (uint32_t)group->rank) {
        ls__group_record_failure_by(group, c.status, c.text, c.by); /* granted by member 0 */
    }
    if (group->member[0].remote || group->member[claimant].remote) {
        write_cause(group, group->member[0].remote ? group->rank : (int)claimant, &c);
    }
}

/* ---- arrivals ----------------------------------------------------------------------------- */

/* Messages of one peer may be processed twice (POST, FINISHED), so counters only grow. */
static void raise(_Atomic uint64_t *word, uint64_t value)
{
    if (atomic_load_explicit(word, memory_order_relaxed) < value) {
        atomic_store_explicit(word, value, memory_order_seq_cst);
    }
}

/* A remote member has announced an operation. An announcement that is already known is ignored. */
static void take_post(ls_group *group, int from, const ls__message *message)
{
    const uint64_t sequence = message->descriptor.sequence;
    ls__post *slot = ls__post_slot(group, from, sequence);
    ls__control_block *cache = group->member[from].control;
    raise(&cache->finished, message->total);
    if (message->bytes > LS__REMOTE_SMALL ||
        atomic_load_explicit(&slot->stamp, memory_order_relaxed) >= ls__stamp(sequence, 1)) {
        return;
    }
    if (message->bytes > 0) {
        memcpy(ls__small_stage(group, from, sequence), message->payload, message->bytes);
    }
    ls__remote_record_call(group, from, message);
    /* A member that posts after this rank has finished may be missing this rank's FINISHED. */
    if (finished_by(group) >= sequence) {
        ls__message head = head_of(group, LS__MESSAGE_FINISHED);
        head.total = finished_by(group);
        (void)ls__remote_send(group->comm, group->member[from].world_rank, &head, NULL);
    }
}

/* The cached control block then looks as if the member had announced the operation in shared
 * memory, so the code that compares descriptors and names stragglers needs no second form. */
void ls__remote_record_call(ls_group *group, int member, const ls__message *message)
{
    const ls__descriptor *d = &message->descriptor;
    ls__post *slot = ls__post_slot(group, member, d->sequence);
    if (group->member[member].remote &&
        atomic_load_explicit(&slot->stamp, memory_order_relaxed) < ls__stamp(d->sequence, 1)) {
        slot->descriptor = *d;
        slot->descriptor.memory = LS__MEMORY_STAGED; /* its offsets mean nothing here */
        atomic_store_explicit(&slot->stamp, ls__stamp(d->sequence, 1), memory_order_seq_cst);
        ls__mismatch_check_member(group, member, d->sequence);
    }
}

/* Messages from members that share memory with this rank carry nothing new, except CLAIM and
 * FAILED, which check that themselves. */
bool ls__remote_take_group(ls_group *group, int from, const ls__message *message)
{
    const int member = ls__member_of(group, from);
    if (member < 0) {
        return true;
    }
    switch ((ls__message_kind)message->kind) {
    case LS__MESSAGE_POST:
        if (group->member[member].remote) {
            take_post(group, member, message);
        }
        return true;
    case LS__MESSAGE_FINISHED:
        if (group->member[member].remote) {
            raise(&group->member[member].control->finished, message->total);
        }
        return true;
    case LS__MESSAGE_CLAIM:
        take_claim(group, member, message);
        return true;
    case LS__MESSAGE_FAILED:
        take_failed(group, message);
        return true;
    default:
        return true;
    }
}

/* The operations for which the sender waits; deadlock detection reads them from the cached
 * record. */
static void take_blocked(ls__comm *comm, int from, const ls__message *message)
{
    ls__blocked blocked;
    if (message->bytes == sizeof blocked) {
        memcpy(&blocked, message->payload, sizeof blocked);
        ls__blocked_write(&comm->remote->rank[from].record->blocked, &blocked);
    }
}

/* Called when the published record has changed. */
void ls__remote_send_blocked(ls__comm *comm, const ls__blocked *blocked)
{
    const ls__message head = {.kind = LS__MESSAGE_BLOCKED, .bytes = sizeof *blocked};
    for (int r = 0; comm->remote != NULL && r < comm->runtime->world_size; r++) {
        if (comm->remote->is[r]) {
            (void)ls__remote_send(comm, r, &head, blocked);
        }
    }
}

/* The peer waits for the answer, so that it closes its sockets only when this rank has read
 * everything. */
static void take_bye(ls__comm *comm, int from, const ls__message *message)
{
    cause c;
    ls__remote_rank *rank = &comm->remote->rank[from];
    const ls__message head = {.kind = LS__MESSAGE_BYE_SEEN};
    (void)ls__remote_send(comm, from, &head, NULL);
    if (read_cause(message, &c)) {
        snprintf(rank->record->failed_text, sizeof rank->record->failed_text, "%s", c.text);
        atomic_store_explicit(&rank->record->failed, (uint32_t)-c.status, memory_order_relaxed);
    }
    rank->left_ns = comm->env->now_ns(comm->env);
    atomic_store_explicit(&rank->record->life, LS__LIFE_LEFT, memory_order_release);
}

/* QUIET or LEFT: the tables of the cached header, which deferred reclamation reads. */
static void take_left(ls__comm *comm, int from, const ls__message *message)
{
    ls__heap_header *header = ls__heap_header_of(&comm->heap, from);
    _Atomic uint32_t *table = message->kind == LS__MESSAGE_LEFT ? header->left : header->quiet;
    atomic_store_explicit(&table[message->group % LS__GROUP_SLOTS], message->group + 1,
                          memory_order_release);
}

/* Kinds of another version are ignored. */
bool ls__remote_take(ls__comm *comm, int from, const ls__message *message)
{
    if (comm->remote == NULL || !comm->remote->is[from]) {
        return true;
    }
    switch ((ls__message_kind)message->kind) {
    case LS__MESSAGE_QUIET:
    case LS__MESSAGE_LEFT:
        take_left(comm, from, message);
        return true;
    case LS__MESSAGE_BEAT:
        ls__remote_take_beat(comm, from, message);
        return true;
    case LS__MESSAGE_BLOCKED:
        take_blocked(comm, from, message);
        return true;
    case LS__MESSAGE_BYE:
        take_bye(comm, from, message);
        return true;
    case LS__MESSAGE_BYE_SEEN:
        comm->remote->rank[from].bye_seen = true;
        return true;
    default:
        return true;
    }
}

/* ---- turns -------------------------------------------------------------------------------- */

/* No message of this rank follows, except answers. If it leaves because of a failure, it says
 * which. Over MPI a rank that has left is not told: it receives no more. */
void ls__remote_send_bye(ls__comm *comm)
{
    ls__message head = {.kind = LS__MESSAGE_BYE};
    const ls_status failed = ls__comm_failure_of(comm->me);
    if (failed != LS_OK) {
        put_cause(&head, &(cause){failed, comm->me->failed_by, comm->me->failed_text});
    }
    comm->remote->leaving = true;
    for (int r = 0; r < comm->runtime->world_size; r++) {
        ls__remote_rank *rank = &comm->remote->rank[r];
        if (comm->remote->mpi != NULL && rank->left_ns != 0) {
            rank->bye_seen = true;
        } else if (comm->remote->is[r]) {
            (void)ls__remote_send(comm, r, &head, comm->me->failed_text);
        }
    }
}

/* One pass: the transport, messages that waited, failures, and new announcements. */
bool ls__remote_turn(ls__comm *comm)
{
    LS_ASSERT(comm->remote != NULL);
    bool moved = comm->transport->turn(comm->transport);
    for (int r = 0; r < comm->runtime->world_size; r++) {
        moved = ls__remote_send_waiting(comm, r) || moved;
    }
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (group->has_remote) {
            moved = report_failure(group) || moved;
            moved = (atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0 &&
                     post_new(group)) ||
                    moved;
        }
    }
    return moved;
}
