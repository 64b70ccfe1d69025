/* send and recv: the protocol of letters.h. One pass looks at what arrived and then sends what has
 * room; it never waits. */
#include "comm/p2p/p2p.h"

#include "base/size.h"
#include "comm/diagnose/cause.h"
#include "comm/diagnose/flight.h"
#include "comm/engine/lock.h"
#include "comm/group/group.h"
#include "comm/remote/remote.h"

#include <stdio.h>
#include <string.h>

#define MESSAGES_PER_PEER 64

static size_t payload_max(ls__comm *comm, int peer)
{
    return comm->transport->payload_max(comm->transport, peer);
}

ls_status ls__p2p_open(ls_group *group)
{
    const ls__env *env = group->comm->env;
    ls__p2p *letters = env->allocate(env, sizeof *letters);
    ls__list *ready = env->allocate(env, (size_t)group->size * sizeof *ready);
    if (letters == NULL || ready == NULL) {
        if (letters != NULL) {
            env->release(env, letters, sizeof *letters);
        }
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d", group->size);
    }
    *letters = (ls__p2p){.next = 1, .ready = ready};
    ls__list_init(&letters->sends);
    ls__list_init(&letters->recvs);
    ls__list_init(&letters->announced);
    ls__list_init(&letters->owing);
    for (int i = 0; i < LS__TAG_SHELVES; i++) {
        ls__list_init(&letters->open[i]);
        ls__list_init(&letters->kept[i]);
    }
    for (int r = 0; r < group->size; r++) {
        ls__list_init(&ready[r]);
    }
    group->p2p = letters;
    return LS_OK;
}

void ls__p2p_close(ls_group *group)
{
    ls__p2p *letters = group->p2p;
    const ls__env *env = group->comm->env;
    if (letters == NULL) {
        return;
    }
    ls__unexpected_drop_all(group->comm, &letters->announced);
    const size_t streams = ls__stream_count(group);
    for (size_t i = 0; letters->streams != NULL && i < streams; i++) {
        ls__unexpected_drop_all(group->comm, &letters->streams[i].early);
    }
    if (letters->streams != NULL) {
        env->release(env, letters->streams, streams * sizeof *letters->streams);
    }
    env->release(env, letters->ready, (size_t)group->size * sizeof *letters->ready);
    env->release(env, letters, sizeof *letters);
    group->p2p = NULL;
}

/* ---- both ends ---------------------------------------------------------------------------- */

static int peer_of(const ls_work *work)
{
    return work->group->member[work->descriptor.root].world_rank;
}

static size_t bytes_of(const ls_work *work)
{
    return (size_t)work->count * work->element;
}

/* It needs a slot of the ring to its peer. */
static void make_ready(ls_work *work)
{
    ls__p2p *letters = work->group->p2p;
    ls__list_push_back(&letters->ready[work->descriptor.root], &work->turn);
    letters->ready_count++;
}

static void take_turn(ls_work *work)
{
    ls__list_remove(&work->turn);
    work->group->p2p->ready_count--;
}

static ls__list *shelf(ls__list *shelves, int32_t tag)
{
    return &shelves[(uint32_t)tag * UINT32_C(0x9e3779b1) >> (32 - LS__TAG_SHELVES_LOG)];
}

static void end_letter(ls_work *work)
{
    ls_group *group = work->group;
    const bool sent = work->operation == LS__OP_SEND;
    ls__list_remove(&work->link);
    ls__count(&group->operations, 1);
    ls__count(&group->messages, 1);
    ls__count(sent ? &group->bytes_sent : &group->bytes_received, bytes_of(work));
    ls__work_end(work, LS_OK);
}

static ls__message *compose(const ls_work *work, ls__message_kind kind)
{
    ls__transport *t = work->group->comm->transport;
    ls__message *message = t->reserve(t, peer_of(work));
    if (message != NULL) {
        message->kind = (uint32_t)kind;
        message->lane = 0;
        message->group = work->group->id;
        message->bytes = 0;
        message->letter = work->letter;
        message->total = bytes_of(work);
        message->offset = 0;
    }
    return message;
}

static void send_off(const ls_work *work)
{
    ls__transport *t = work->group->comm->transport;
    t->commit(t, peer_of(work));
}

/* With the next bytes of what is sent. They stay where they are: a send ends when all is received,
 * so the transport has done with them before. */
static void send_filled(ls__message *message, ls_work *work, size_t bytes)
{
    ls__transport *t = work->group->comm->transport;
    const unsigned char *from = bytes > 0 ? (const unsigned char *)work->input + work->moved : NULL;
    message->offset = work->moved;
    message->bytes = (uint32_t)bytes;
    work->moved += bytes;
    if (bytes > 0) {
        t->lend(t, peer_of(work), from, &work->group->p2p->lent);
    } else {
        t->commit(t, peer_of(work));
    }
}

/* ---- the receiver ------------------------------------------------------------------------- */

static bool place(ls_work *work, const ls__message *message, const void *payload)
{
    const size_t total = bytes_of(work);
    if (message->offset != work->moved || message->bytes > total - work->moved) {
        return false;
    }
    unsigned char *to = work->output;
    if (message->bytes > 0 && to + work->moved != payload) {
        memcpy(to + work->moved, payload, message->bytes);
    }
    work->moved += message->bytes;
    if (work->moved == total) {
        work->stage = LS__RECV_DONE;
        make_ready(work);
    }
    return true;
}

static void side_text(const ls_group *group, int rank, const ls__descriptor *d, const char *verb,
                      char *out, size_t bytes)
{
    snprintf(out, bytes, "rank %d %s %s[%lld] at %.*s:%d", group->member[rank].world_rank, verb,
             ls_dtype_name((ls_dtype)d->dtype), (long long)d->count, LS__FILE_MAX, d->file,
             (int)d->line);
}

static void tell_letter_mismatch(const ls_work *recv, int from, const ls__descriptor *sent)
{
    ls_group *group = recv->group;
    char text[LS__FAILURE_MAX], a[256], b[256];
    side_text(group, from, sent, "sends", a, sizeof a);
    side_text(group, group->rank, &recv->descriptor, "receives", b, sizeof b);
    snprintf(text, sizeof text,
             "send/recv with tag %d on group \"%s\" disagree: %s, %s; give both the same count and "
             "dtype",
             (int)sent->tag, group->name, a, b);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* An announcement and a receive have met. */
static void match(ls_work *recv, int from, const ls__message *message)
{
    const ls__descriptor *sent = &message->descriptor;
    recv->descriptor.root = from; /* whom LS_ANY_SOURCE has got */
    if (sent->count != recv->count || sent->dtype != recv->descriptor.dtype ||
        message->total != bytes_of(recv)) {
        tell_letter_mismatch(recv, from, sent);
        return;
    }
    ls__list_remove(&recv->turn);
    recv->letter = message->letter;
    recv->stage = message->bytes == message->total ? LS__RECV_DATA : LS__RECV_ACCEPT;
    if (recv->stage == LS__RECV_ACCEPT) {
        make_ready(recv);
    } else {
        (void)place(recv, message, message->payload);
    }
    ls__flight_start(recv->group->comm, recv);
}

static bool wants(const ls_work *recv, int from, int tag)
{
    const bool fits = recv->descriptor.root == from || recv->descriptor.root == LS_ANY_SOURCE;
    return recv->stage == LS__RECV_MATCH && fits && recv->descriptor.tag == tag;
}

/* False: no memory to keep it, so it stays where it is for now. */
static bool take_announce(ls_group *group, int from, const ls__message *message)
{
    const int32_t tag = message->descriptor.tag;
    LS__LIST_EACH (at, shelf(group->p2p->open, tag)) {
        ls_work *recv = LS__LIST_ITEM(at, ls_work, turn);
        if (wants(recv, from, tag)) {
            match(recv, from, message);
            return true;
        }
    }
    ls__unexpected *note = ls__unexpected_keep(group->comm, from, message);
    if (note != NULL) {
        ls__list_push_back(&group->p2p->announced, &note->link);
        ls__list_push_back(shelf(group->p2p->kept, tag), &note->same);
    }
    return note != NULL;
}

static void look_for_announced(ls_work *recv)
{
    ls_group *group = recv->group;
    LS__LIST_EACH (at, shelf(group->p2p->kept, recv->descriptor.tag)) {
        ls__unexpected *note = LS__LIST_ITEM(at, ls__unexpected, same);
        if (wants(recv, note->from, note->message->descriptor.tag)) {
            ls__list_remove(&note->link);
            ls__list_remove(&note->same);
            match(recv, note->from, note->message);
            ls__unexpected_drop(group->comm, note);
            return;
        }
    }
}

/* ---- arrivals ----------------------------------------------------------------------------- */

static bool is_it(const ls_work *work, int from, uint64_t letter, ls__p2p_stage stage)
{
    return work->letter == letter && work->descriptor.root == from && work->stage == (uint8_t)stage;
}

/* From both ends: letters are mostly taken in the order in which they were sent, or against it. */
static ls_work *find(ls__list *works, int from, uint64_t letter, ls__p2p_stage stage)
{
    ls__list *up = works->next, *down = works->prev;
    bool last = ls__list_empty(works);
    while (!last) {
        ls_work *low = LS__LIST_ITEM(up, ls_work, link), *high = LS__LIST_ITEM(down, ls_work, link);
        if (is_it(low, from, letter, stage) || is_it(high, from, letter, stage)) {
            return is_it(low, from, letter, stage) ? low : high;
        }
        last = up == down || up->next == down;
        up = up->next;
        down = down->prev;
    }
    return NULL;
}

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
        work = find(&group->p2p->sends, from, message->letter, LS__SEND_WAIT);
        if (work != NULL) {
            work->stage = LS__SEND_STREAM;
            make_ready(work);
        }
        return true;
    case LS__MESSAGE_DATA:
        work = find(&group->p2p->recvs, from, message->letter, LS__RECV_DATA);
        if (work != NULL) {
            (void)place(work, message, payload);
        }
        return true;
    case LS__MESSAGE_DONE:
        work = find(&group->p2p->sends, from, message->letter, LS__SEND_WAIT);
        if (work != NULL) {
            end_letter(work);
        }
        return true;
    default:
        return true;
    }
}

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

void *ls__message_place(void *arg, int from, const ls__message *head)
{
    ls__comm *comm = arg;
    const bool step = head->kind == LS__MESSAGE_STEP;
    ls_group *group =
        step || head->kind == LS__MESSAGE_DATA ? group_by_id(comm, head->group) : NULL;
    const int peer = group != NULL ? ls__member_of(group, from) : -1;
    if (peer < 0 || atomic_load_explicit(&group->failed, memory_order_relaxed) != 0) {
        return NULL;
    }
    if (step) {
        return ls__stream_place(group, peer, head);
    }
    const ls_work *work = find(&group->p2p->recvs, peer, head->letter, LS__RECV_DATA);
    const size_t total = work != NULL ? bytes_of(work) : 0;
    return work != NULL && head->offset >= work->moved && head->offset <= total &&
                   head->bytes <= total - head->offset
               ? (unsigned char *)work->output + head->offset
               : NULL;
}

/* A peer may know a new group before this rank does; what it sends there is kept. Messages for
 * groups of the past are dropped. */
static bool take(ls__comm *comm, int from, const ls__message *message, const void *payload)
{
    if (ls__remote_rank_kind(message->kind)) {
        return ls__remote_take(comm, from, message);
    }
    ls_group *group = group_by_id(comm, message->group);
    if (group != NULL) {
        return atomic_load_explicit(&group->failed, memory_order_relaxed) != 0 ||
               take_for_group(group, from, message, payload);
    }
    if (message->group < comm->next_group) {
        return true;
    }
    ls__unexpected *note = ls__unexpected_keep(comm, from, message);
    if (note != NULL) {
        ls__list_push_back(&comm->orphans, &note->link);
    }
    return note != NULL;
}

static bool take_orphans(ls__comm *comm)
{
    bool moved = false;
    LS__LIST_EACH (at, &comm->orphans) {
        ls__unexpected *note = LS__LIST_ITEM(at, ls__unexpected, link);
        if (note->message->group < comm->next_group) {
            ls__list_remove(&note->link);
            (void)take(comm, note->from, note->message, note->message->payload);
            ls__unexpected_drop(comm, note);
            moved = true;
        }
    }
    return moved;
}

/* Of each peer a bounded number, beginning with another one each time: a receive from any source
 * finds them in turn, however much one of them sends. */
static bool take_arrived(ls__comm *comm)
{
    ls__transport *t = comm->transport;
    bool moved = !ls__list_empty(&comm->orphans) && take_orphans(comm);
    const int size = comm->runtime->world_size;
    const int first = comm->first_peer;
    comm->first_peer = first + 1 < size ? first + 1 : 0;
    for (int i = 0; i < size; i++) {
        const int peer = first + i < size ? first + i : first + i - size;
        const void *payload = NULL;
        const ls__message *message = t->peek(t, peer, &payload);
        for (int taken = 0;
             message != NULL && taken < MESSAGES_PER_PEER &&
             (message->bytes > t->payload_max(t, peer) || take(comm, peer, message, payload));
             taken++) {
            t->release(t, peer);
            moved = true;
            message = t->peek(t, peer, &payload);
        }
    }
    return moved;
}

/* ---- departures --------------------------------------------------------------------------- */

/* Each says whether it went; what did not is stuck until there is a slot. */
static bool push_announce(ls_work *work)
{
    const size_t most = payload_max(work->group->comm, peer_of(work));
    ls__message *message = compose(work, LS__MESSAGE_ANNOUNCE);
    if (message == NULL) {
        return false;
    }
    take_turn(work);
    message->descriptor = work->descriptor;
    send_filled(message, work, bytes_of(work) <= most ? bytes_of(work) : 0);
    work->stage = LS__SEND_WAIT;
    ls__flight_start(work->group->comm, work);
    return true;
}

static bool push_data(ls_work *work, bool *moved)
{
    const size_t most = payload_max(work->group->comm, peer_of(work));
    while (work->moved < bytes_of(work)) {
        ls__message *message = compose(work, LS__MESSAGE_DATA);
        if (message == NULL) {
            return false;
        }
        const size_t left = bytes_of(work) - work->moved;
        send_filled(message, work, left < most ? left : most);
        *moved = true;
    }
    take_turn(work);
    work->stage = LS__SEND_WAIT;
    return true;
}

static bool push_answer(ls_work *work)
{
    const bool accept = work->stage == LS__RECV_ACCEPT;
    ls__message *message = compose(work, accept ? LS__MESSAGE_ACCEPT : LS__MESSAGE_DONE);
    if (message == NULL) {
        return false;
    }
    take_turn(work);
    send_off(work);
    if (accept) {
        work->stage = LS__RECV_DATA; /* what is accepted has bytes */
    } else {
        end_letter(work);
    }
    return true;
}

static bool push(ls_work *work, bool *moved)
{
    const bool went = work->stage == LS__SEND_ANNOUNCE ? push_announce(work)
                      : work->stage == LS__SEND_STREAM ? push_data(work, moved)
                                                       : push_answer(work);
    *moved = *moved || went;
    return went;
}

/* New sends and receives of the user. */
static bool collect_mail(ls_group *group)
{
    ls__comm *comm = group->comm;
    if (atomic_load_explicit(&group->mailed, memory_order_acquire) == 0) {
        return false;
    }
    for (;;) {
        ls__lock_take(&comm->lock, comm->env);
        ls__list *link = ls__list_pop_front(&group->mail);
        if (link != NULL) {
            atomic_fetch_sub_explicit(&group->mailed, 1, memory_order_relaxed);
        }
        ls__unlock(&comm->lock, comm->env);
        if (link == NULL) {
            return true;
        }
        ls_work *work = LS__LIST_ITEM(link, ls_work, link);
        const bool send = work->operation == LS__OP_SEND;
        work->stage = send ? LS__SEND_ANNOUNCE : LS__RECV_MATCH;
        work->letter = send ? group->p2p->next++ : 0;
        ls__list_push_back(send ? &group->p2p->sends : &group->p2p->recvs, &work->link);
        if (send) {
            make_ready(work);
        } else {
            ls__list_push_back(shelf(group->p2p->open, work->descriptor.tag), &work->turn);
            look_for_announced(work);
        }
    }
}

/* A ring that is full stops only those that are for the same peer: their order is kept. */
static bool push_group(ls_group *group)
{
    ls__p2p *letters = group->p2p;
    bool moved = collect_mail(group);
    for (int r = 0; r < group->size && letters->ready_count > 0; r++) {
        bool went = true;
        while (went && !ls__list_empty(&letters->ready[r])) {
            went = push(LS__LIST_ITEM(letters->ready[r].next, ls_work, turn), &moved);
        }
    }
    return ls__stream_flush(group) || moved;
}

bool ls__p2p_turn(ls__comm *comm)
{
    bool moved = take_arrived(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (atomic_load_explicit(&group->failed, memory_order_relaxed) == 0) {
            moved = push_group(group) || moved;
        }
    }
    return moved;
}
