/* SPDX-License-Identifier: Apache-2.0 */
/* send and recv: the protocol described in p2p.h. One pass takes the messages that have arrived and
 * then sends those that have room; it never waits.
 *
 * Note [Matching]
 * The rule is MPI's: messages of one pair with one tag match in the order in which they were sent
 * and the receives were posted. Three properties give it: a transport keeps the order of each pair;
 * works of one peer announce themselves in the order of submission (p2p->ready); and both hash
 * tables are searched from the oldest entry on. Two tags in one bucket do not disturb that. A
 * receive from any source takes the announcement that this rank has processed first.
 *
 * A receive from any source and one from a given rank may both fit an announcement; the one posted
 * first gets it.
 *
 * Note [Messages and failures]
 * A message whose sides disagree fails the group, not only the two works: no other way leads to the
 * sender, and a collective with different counts fails the same way. A peer's message is
 * never trusted: one that fits no work is dropped, and the deadline of the work reports the loss.
 */
#include "comm/p2p/p2p.h"
#include "comm/core/message_state.h"
#include "comm/core/unexpected.h"

#include "base/assert.h"
#include "base/lock.h"
#include "base/size.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/flight.h"
#include "comm/core/group.h"
#include "comm/remote/remote.h"

#include <stdio.h>
#include <string.h>

#define MESSAGES_PER_PEER 64 /* taken from one peer in a turn, before the next peer's */

/* Bytes of payload that one message to this peer may carry. */
static size_t payload_max(ls__comm *comm, int peer)
{
    return comm->transport->payload_max(comm->transport, peer);
}

/* ---- both ends ---------------------------------------------------------------------------- */

/* World rank of the peer, by which the transport knows it. */
static int peer_of(const ls_work *work)
{
    return work->group->member[work->descriptor.root].world_rank;
}

/* The size of the message on both sides; match() has compared them. */
static size_t bytes_of(const ls_work *work)
{
    return (size_t)work->count * work->element;
}

/* The work needs a slot of the ring to its peer. Works of one peer keep their order, so messages
 * with one tag cannot overtake each other. */
static void make_ready(ls_work *work)
{
    LS_ASSERT(ls__list_empty(&work->turn));
    ls__p2p *p2p = work->group->p2p;
    ls__list_push_back(&p2p->ready[work->descriptor.root], &work->turn);
    p2p->ready_count++;
}

/* The message went out, so the next work of this peer gets its turn. */
static void leave_ready(ls_work *work)
{
    LS_ASSERT(work->group->p2p->ready_count > 0 && !ls__list_empty(&work->turn));
    ls__list_remove(&work->turn);
    work->group->p2p->ready_count--;
}

/* Multiplicative hashing: tags are mostly small, consecutive numbers. */
static ls__list *bucket_of(ls__list *buckets, int32_t tag)
{
    return &buckets[(uint32_t)tag * UINT32_C(0x9e3779b1) >> (32 - LS__TAG_BUCKETS_LOG)];
}

/* Whether a plug-in moves the bytes of this message. */
static bool is_carried(const ls_work *work)
{
    return ls__plugin_carries(work->group, work->operation, work->plugin.control);
}

/* Completes a send (its DONE has arrived) or a receive (its DONE has been sent). */
static void end_message(ls_work *work)
{
    ls_group *group = work->group;
    const bool sent = work->operation == LS__OP_SEND;
    LS_ASSERT(work->message.stage == (sent ? LS__SEND_WAIT : LS__RECV_DONE));
    ls__list_remove(&work->link);
    ls__count(&group->counts.operations, 1);
    ls__count(&group->counts.messages, 1);
    ls__count(sent ? &group->counts.bytes_sent : &group->counts.bytes_received, bytes_of(work));
    ls__work_end(work, LS_OK);
}

/* Reserves a slot and fills in the head. NULL while the peer has given no credit; the work stays in
 * the ready list then. */
static ls__message *compose(const ls_work *work, ls__message_kind kind)
{
    ls__transport *t = work->group->comm->transport;
    ls__message *message = t->reserve(t, peer_of(work));
    if (message != NULL) {
        message->kind = (uint32_t)kind;
        message->lane = 0;
        message->group = work->group->id;
        message->bytes = 0;
        message->number = work->message.number;
        message->total = bytes_of(work);
        message->offset = 0;
    }
    return message;
}

/* Hands the composed message, which has no payload, to the transport. */
static void commit(const ls_work *work)
{
    ls__transport *t = work->group->comm->transport;
    t->commit(t, peer_of(work));
}

/* Commits the message with the next `bytes` of the user's buffer, which the transport reads in
 * place: a send ends only after the receiver has all bytes, so the transport no longer needs the
 * buffer by then. */
static void commit_payload(ls__message *message, ls_work *work, size_t bytes)
{
    LS_ASSERT(bytes <= bytes_of(work) - work->message.moved);
    ls__transport *t = work->group->comm->transport;
    const unsigned char *from =
        bytes > 0 ? (const unsigned char *)work->input + work->message.moved : NULL;
    message->offset = work->message.moved;
    message->bytes = (uint32_t)bytes;
    work->message.moved += bytes;
    if (bytes > 0) {
        t->commit_borrowed(t, peer_of(work), from, &work->group->p2p->borrowed);
    } else {
        t->commit(t, peer_of(work));
    }
}

/* ---- the receiver ------------------------------------------------------------------------- */

/* Puts a piece of payload where it belongs and completes the receive with the last one. False: the
 * peer has sent something else than the announced bytes; the piece is ignored, and the deadline of
 * the receive reports it. */
static bool place(ls_work *work, const ls__message *message, const void *payload)
{
    LS_ASSERT(work->message.stage == LS__RECV_DATA);
    const size_t total = bytes_of(work);
    if (message->offset != work->message.moved || message->bytes > total - work->message.moved) {
        return false;
    }
    unsigned char *to = work->output;
    if (message->bytes > 0 && to + work->message.moved != payload) {
        memcpy(to + work->message.moved, payload, message->bytes);
    }
    work->message.moved += message->bytes;
    if (work->message.moved == total) {
        work->message.stage = LS__RECV_DONE;
        make_ready(work);
    }
    return true;
}

/* One side of a mismatch: "rank 2 sends float32[100] at train.c:31". */
static void side_text(const ls_group *group, int rank, const ls__descriptor *d, const char *verb,
                      char *out, size_t bytes)
{
    snprintf(out, bytes, "rank %d %s %s[%lld] at %.*s:%d", group->member[rank].world_rank, verb,
             ls_dtype_name((ls_dtype)d->dtype), (long long)d->count, LS__FILE_MAX, d->file,
             (int)d->line);
}

/* Both ranks must report it, and only the failure of the group reaches the sender. */
static void fail_mismatched(const ls_work *recv, int from, const ls__descriptor *sent)
{
    ls_group *group = recv->group;
    char text[LS__FAILURE_MAX], a[256], b[256];
    side_text(group, from, sent, "sends", a, sizeof a);
    side_text(group, group->rank, &recv->descriptor,
              recv->message.up_to ? "receives up to" : "receives", b, sizeof b);
    const char *format = recv->message.up_to
                             ? "send/recv with tag %d on group \"%s\" disagree: %s, %s; give the "
                               "receiver room for the message, and both the same dtype"
                             : "send/recv with tag %d on group \"%s\" disagree: %s, %s; give both "
                               "the same count and dtype";
    snprintf(text, sizeof text, format, (int)sent->tag, group->name, a, b);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* A receive with room for more than is sent becomes one of just that. */
static bool fits(ls_work *recv, const ls__descriptor *sent)
{
    if (recv->message.up_to && sent->count >= 0 && sent->count < recv->count) {
        recv->count = sent->count;
    }
    return sent->count == recv->count && sent->dtype == recv->descriptor.dtype;
}

/* An announcement has met its receive. With few bytes they came along, and the receive is complete;
 * else ACCEPT asks for them. */
static void match(ls_work *recv, int from, const ls__message *message)
{
    LS_ASSERT(recv->message.stage == LS__RECV_MATCH);
    const ls__descriptor *sent = &message->descriptor;
    recv->descriptor.root = from; /* the source, if it was LS_ANY_SOURCE */
    if (!fits(recv, sent) || message->total != bytes_of(recv)) {
        fail_mismatched(recv, from, sent);
        return;
    }
    ls__list_remove(&recv->turn);
    recv->message.number = message->number;
    recv->message.stage = message->bytes == message->total ? LS__RECV_DATA : LS__RECV_ACCEPT;
    if (recv->message.stage == LS__RECV_ACCEPT) {
        make_ready(recv);
    } else {
        (void)place(recv, message, message->payload);
    }
    ls__flight_start(recv->group->comm, recv);
}

/* Whether this receive matches: its tag and its peer, or any peer. */
static bool wants(const ls_work *recv, int from, int tag)
{
    const bool fits = recv->descriptor.root == from || recv->descriptor.root == LS_ANY_SOURCE;
    return recv->message.stage == LS__RECV_MATCH && fits && recv->descriptor.tag == tag;
}

/* Matches the oldest receive or keeps the announcement. False: no memory to keep it; it stays in
 * the ring and is offered again. */
static bool take_announce(ls_group *group, int from, const ls__message *message)
{
    const int32_t tag = message->descriptor.tag;
    LS__LIST_EACH (at, bucket_of(group->p2p->open, tag)) {
        ls_work *recv = LS__LIST_ITEM(at, ls_work, turn);
        if (wants(recv, from, tag)) {
            match(recv, from, message);
            return true;
        }
    }
    ls__unexpected *kept = ls__unexpected_keep(group->comm, from, message);
    if (kept != NULL) {
        ls__list_push_back(&group->p2p->announced, &kept->link);
        ls__list_push_back(bucket_of(group->p2p->kept, tag), &kept->same);
    }
    return kept != NULL;
}

/* The counterpart of take_announce: a new receive takes the oldest announcement that fits. */
static void match_announced(ls_work *recv)
{
    ls_group *group = recv->group;
    LS__LIST_EACH (at, bucket_of(group->p2p->kept, recv->descriptor.tag)) {
        ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, same);
        if (wants(recv, kept->from, kept->message->descriptor.tag)) {
            ls__list_remove(&kept->link);
            ls__list_remove(&kept->same);
            match(recv, kept->from, kept->message);
            ls__unexpected_drop(group->comm, kept);
            return;
        }
    }
}

/* ---- arrivals ----------------------------------------------------------------------------- */

/* Numbers are the sender's, so they identify a message only together with its peer. */
static bool is_wanted(const ls_work *work, int from, uint64_t number, ls__p2p_stage stage)
{
    return work->message.number == number && work->descriptor.root == from &&
           work->message.stage == (uint8_t)stage;
}

/* Searches from both ends: messages are mostly received in the order in which they were sent, or
 * against it. */
static ls_work *find(ls__list *works, int from, uint64_t number, ls__p2p_stage stage)
{
    ls__list *up = works->next, *down = works->prev;
    bool last = ls__list_empty(works);
    while (!last) {
        ls_work *low = LS__LIST_ITEM(up, ls_work, link), *high = LS__LIST_ITEM(down, ls_work, link);
        if (is_wanted(low, from, number, stage) || is_wanted(high, from, number, stage)) {
            return is_wanted(low, from, number, stage) ? low : high;
        }
        last = up == down || up->next == down;
        up = up->next;
        down = down->prev;
    }
    return NULL;
}

/* Dispatches by kind. A message that fits no work (its operation has failed, or the peer is broken)
 * is dropped. False: no memory; it stays in the ring. */
static bool take_for_group(ls_group *group, int world_rank, const ls__message *message,
                           const void *payload)
{
    const int from = ls__member_of(group, world_rank);
    ls_work *work = NULL;
    if (from < 0) {
        return true;
    }
    if (ls__remote_kind(message->kind)) {
        return ls__remote_take_group(group, world_rank, message);
    }
    switch ((ls__message_kind)message->kind) {
    case LS__MESSAGE_STEP:
        return ls__stream_take(group, world_rank, message, payload);
    case LS__MESSAGE_CREDIT:
        ls__stream_credit(group, world_rank, message);
        return true;
    case LS__MESSAGE_ANNOUNCE:
        return take_announce(group, from, message);
    case LS__MESSAGE_ACCEPT:
        work = find(&group->p2p->sends, from, message->number, LS__SEND_WAIT);
        if (work != NULL) {
            work->message.stage = LS__SEND_STREAM;
            make_ready(work);
        }
        return true;
    case LS__MESSAGE_DATA:
        work = find(&group->p2p->recvs, from, message->number, LS__RECV_DATA);
        if (work != NULL) {
            (void)place(work, message, payload);
        }
        return true;
    case LS__MESSAGE_DONE:
        work = find(&group->p2p->sends, from, message->number, LS__SEND_WAIT);
        if (work != NULL && work->plugin.carried) {
            work->message.moved = bytes_of(work); /* ends with its request */
        } else if (work != NULL) {
            end_message(work);
        }
        return true;
    default:
        return true;
    }
}

/* NULL: the group was freed, or this rank has not made it yet. */
static ls_group *group_by_id(ls__comm *comm, uint32_t id)
{
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (group->id == id) {
            return group;
        }
    }
    return NULL;
}

/* Only payload whose receive or step is already known is put into place; all other payload stays
 * behind its head. */
void *ls__message_place(void *arg, int from, const ls__message *head)
{
    ls__comm *comm = arg;
    const bool step = head->kind == LS__MESSAGE_STEP;
    ls_group *group =
        step || head->kind == LS__MESSAGE_DATA ? group_by_id(comm, head->group) : NULL;
    const int peer = group != NULL ? ls__member_of(group, from) : -1;
    if (peer < 0 || atomic_load_explicit(&group->failure.status, memory_order_relaxed) != 0) {
        return NULL;
    }
    if (step) {
        return ls__stream_place(group, peer, head);
    }
    const ls_work *work = find(&group->p2p->recvs, peer, head->number, LS__RECV_DATA);
    const size_t total = work != NULL ? bytes_of(work) : 0;
    return work != NULL && head->offset >= work->message.moved && head->offset <= total &&
                   head->bytes <= total - head->offset
               ? (unsigned char *)work->output + head->offset
               : NULL;
}

/* A peer may know a new group before this rank does, so messages for ids from comm->next_group on
 * are kept as orphans. Messages for freed groups, or for a group that has failed, are
 * dropped. False: no memory. */
static bool take_message(ls__comm *comm, int from, const ls__message *message, const void *payload)
{
    if (ls__remote_rank_kind(message->kind)) {
        return ls__remote_take(comm, from, message);
    }
    ls_group *group = group_by_id(comm, message->group);
    if (group != NULL) {
        return atomic_load_explicit(&group->failure.status, memory_order_relaxed) != 0 ||
               take_for_group(group, from, message, payload);
    }
    if (message->group < comm->next_group) {
        return true;
    }
    ls__unexpected *kept = ls__unexpected_keep(comm, from, message);
    if (kept != NULL) {
        ls__list_push_back(&comm->inbox.orphans, &kept->link);
    }
    return kept != NULL;
}

/* Delivers orphans whose group exists by now, or has gone. */
static bool take_orphans(ls__comm *comm)
{
    bool moved = false;
    LS__LIST_EACH (at, &comm->inbox.orphans) {
        ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        if (kept->message->group < comm->next_group) {
            ls__list_remove(&kept->link);
            (void)take_message(comm, kept->from, kept->message, kept->message->payload);
            ls__unexpected_drop(comm, kept);
            moved = true;
        }
    }
    return moved;
}

/* Takes a bounded number of messages from each peer, and begins with another peer each time, so
 * that a receive from any source is served fairly however much one of them sends. */
static bool take_arrived(ls__comm *comm)
{
    ls__transport *t = comm->transport;
    bool moved = !ls__list_empty(&comm->inbox.orphans) && take_orphans(comm);
    const int size = comm->runtime->world_size;
    const int first = comm->inbox.first_peer;
    comm->inbox.first_peer = first + 1 < size ? first + 1 : 0;
    for (int i = 0; i < size; i++) {
        const int peer = first + i < size ? first + i : first + i - size;
        const void *payload = NULL;
        const ls__message *message = t->peek(t, peer, &payload);
        for (int taken = 0; message != NULL && taken < MESSAGES_PER_PEER &&
                            (message->bytes > t->payload_max(t, peer) ||
                             take_message(comm, peer, message, payload));
             taken++) {
            t->release(t, peer);
            moved = true;
            message = t->peek(t, peer, &payload);
        }
    }
    return moved;
}

/* ---- departures --------------------------------------------------------------------------- */

/* The push functions return whether the work has left the ready list; otherwise it waits for a
 * slot. */
static bool push_announce(ls_work *work)
{
    LS_ASSERT(work->message.stage == LS__SEND_ANNOUNCE && work->message.moved == 0);
    const size_t most = payload_max(work->group->comm, peer_of(work));
    ls__message *message = compose(work, LS__MESSAGE_ANNOUNCE);
    if (message == NULL) {
        return false;
    }
    leave_ready(work);
    message->descriptor = work->descriptor;
    const bool along = bytes_of(work) <= most && !is_carried(work);
    commit_payload(message, work, along ? bytes_of(work) : 0);
    work->message.stage = LS__SEND_WAIT;
    ls__flight_start(work->group->comm, work);
    return true;
}

/* A plug-in has moved the bytes of this message. */
static void end_in_plugin(ls_work *work)
{
    const bool whole = work->message.moved == bytes_of(work); /* of a send: DONE has come */
    work->message.moved = bytes_of(work);
    if (work->operation == LS__OP_RECV) {
        work->message.stage = LS__RECV_DONE;
        make_ready(work);
    } else if (whole) {
        end_message(work);
    }
}

/* Sends as many pieces as there are slots; *moved is set even if more are left. */
static bool push_data(ls_work *work, bool *moved)
{
    LS_ASSERT(work->message.stage == LS__SEND_STREAM);
    if (is_carried(work)) {
        leave_ready(work);
        work->message.stage = LS__SEND_WAIT;
        return ls__plugin_message(work);
    }
    const size_t most = payload_max(work->group->comm, peer_of(work));
    while (work->message.moved < bytes_of(work)) {
        ls__message *message = compose(work, LS__MESSAGE_DATA);
        if (message == NULL) {
            return false;
        }
        const size_t left = bytes_of(work) - work->message.moved;
        commit_payload(message, work, left < most ? left : most);
        *moved = true;
    }
    leave_ready(work);
    work->message.stage = LS__SEND_WAIT;
    return true;
}

/* Sends ACCEPT or DONE. A receive is complete as soon as its DONE is sent. */
static bool push_answer(ls_work *work)
{
    LS_ASSERT(work->message.stage == LS__RECV_ACCEPT || work->message.stage == LS__RECV_DONE);
    const bool accept = work->message.stage == LS__RECV_ACCEPT;
    ls__message *message = compose(work, accept ? LS__MESSAGE_ACCEPT : LS__MESSAGE_DONE);
    if (message == NULL) {
        return false;
    }
    leave_ready(work);
    commit(work);
    if (accept) {
        work->message.stage = LS__RECV_DATA; /* empty messages come with their announcement */
        if (is_carried(work)) {
            return ls__plugin_message(work);
        }
    } else {
        end_message(work);
    }
    return true;
}

/* Only works that need a slot are in a ready list, so the stage says which message comes next. */
static bool push(ls_work *work, bool *moved)
{
    const bool went = work->message.stage == LS__SEND_ANNOUNCE ? push_announce(work)
                      : work->message.stage == LS__SEND_STREAM ? push_data(work, moved)
                                                               : push_answer(work);
    *moved = *moved || went;
    return went;
}

/* Takes over the sends and receives that user threads have submitted. One at a time, because
 * matching under comm->lock would delay every thread that submits. */
static bool collect_submitted(ls_group *group)
{
    ls__comm *comm = group->comm;
    if (atomic_load_explicit(&group->inbox.length, memory_order_acquire) == 0) {
        return false;
    }
    for (;;) {
        ls__lock_take(&comm->lock, comm->env);
        ls__list *link = ls__list_pop_front(&group->inbox.works);
        if (link != NULL) {
            atomic_fetch_sub_explicit(&group->inbox.length, 1, memory_order_relaxed);
        }
        ls__unlock(&comm->lock, comm->env);
        if (link == NULL) {
            return true;
        }
        ls_work *work = LS__LIST_ITEM(link, ls_work, link);
        const bool send = work->operation == LS__OP_SEND;
        work->message.stage = send ? LS__SEND_ANNOUNCE : LS__RECV_MATCH;
        work->message.number = send ? group->p2p->next++ : 0;
        ls__list_push_back(send ? &group->p2p->sends : &group->p2p->recvs, &work->link);
        if (send) {
            make_ready(work);
        } else {
            ls__list_push_back(bucket_of(group->p2p->open, work->descriptor.tag), &work->turn);
            match_announced(work);
        }
    }
}

/* A full ring stops only works for the same peer, so their order is kept. */
static bool push_group(ls_group *group)
{
    ls__p2p *p2p = group->p2p;
    bool moved = collect_submitted(group);
    for (int r = 0; r < group->size && p2p->ready_count > 0; r++) {
        bool went = true;
        while (went && !ls__list_empty(&p2p->ready[r])) {
            went = push(LS__LIST_ITEM(p2p->ready[r].next, ls_work, turn), &moved);
        }
    }
    if (p2p->carried > 0) {
        moved = ls__plugin_messages(group, end_in_plugin) || moved;
    }
    return ls__stream_flush(group) || moved;
}

/* Arrivals first: they free slots and credits, which the departures may need. */
bool ls__p2p_turn(ls__comm *comm)
{
    bool moved = take_arrived(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            moved = push_group(group) || moved;
        }
    }
    return moved;
}
