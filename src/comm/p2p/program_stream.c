/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: the SEND and RECV steps of programs over a message transport. A step's
 * chunk travels as one or more pieces, an empty chunk as one empty piece. Every piece carries the
 * sender's descriptor, and the receiver compares it before it uses a byte (docs/design.md, D4).
 *
 * Bytes are not copied: the transport borrows a piece where it lies, and the SEND is
 * complete when the transport has read it; on the other side the transport puts payloads straight
 * into their places.
 *
 * Note [Credits]
 * A receiver must be able to take every piece out of the transport at once, because other streams
 * and messages share its slots: otherwise a piece that cannot be used yet would block the one that
 * is needed first. So a stream has at most LS__STREAM_CREDIT pieces that the receiver has not
 * consumed, for which memory is prepared with the first one. Programs need no credit at all to be
 * free of deadlocks (the checker proves them at capacity 0); credits only let a sender run ahead.
 *
 * A piece is received as soon as its place may be touched, even before its lane
 * reaches the RECV: each stream knows to which step its next piece belongs, and a lane that comes
 * to a RECV finds it done.
 */
#include <string.h>

#include "base/assert.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/unexpected.h"
#include "comm/operation/exec.h"
#include "comm/operation/mismatch.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

#define LANES_ALL (LS__PROGRAM_LANES_MAX * LS__CHANNELS_MAX) /* of one peer */

/* One stream for each lane of each channel of each member. */
size_t ls__stream_count(const ls_group *group)
{
    return (size_t)group->size * LANES_ALL;
}

/* `lane` as messages carry it: channel * LS__PROGRAM_LANES_MAX + lane of the program. The streams
 * are allocated with the first use. NULL: no memory. */
static ls__program_stream *stream_of(ls_group *group, int peer, unsigned lane)
{
    ls__p2p *p2p = group->p2p;
    if (p2p->streams == NULL) {
        const size_t count = ls__stream_count(group);
        const ls__env *env = group->comm->env;
        p2p->streams = env->allocate(env, count * sizeof *p2p->streams);
        for (size_t i = 0; p2p->streams != NULL && i < count; i++) {
            p2p->streams[i] = (ls__program_stream){0};
            ls__list_init(&p2p->streams[i].early);
            ls__list_init(&p2p->streams[i].due_link);
        }
    }
    return p2p->streams == NULL ? NULL : &p2p->streams[(size_t)peer * LANES_ALL + lane];
}

/* The lane number that messages carry; see stream_of. */
static unsigned lane_of(const ls__run *run, const ls__step *step)
{
    return (unsigned)run->slot * LS__PROGRAM_LANES_MAX + step->lane;
}

/* A piece holds a whole number of elements. */
static size_t payload_max(const ls_group *group, int peer, size_t element)
{
    ls__transport *t = group->comm->transport;
    const size_t most = t->payload_max(t, group->member[peer].world_rank);
    return most - most % element;
}

/* Bytes of an element where this ref lies; SCRATCH may hold wider ones. */
static size_t element_of(const ls_group *group, const ls__run *run, int32_t ref)
{
    return ls__ref_element(group->exec, run->program->refs[ref]);
}

/* ---- sending ------------------------------------------------------------------------------ */

typedef struct send_data { /* of a SEND step */
    const unsigned char *from;
    size_t total, piece_max; /* bytes */
} send_data;

/* Sends the bytes from `offset` on, as many as fit. Returns how many, or SIZE_MAX while the
 * transport has no slot. The caller has checked the stream's credit. */
static size_t send_piece(ls_group *group, const ls__run *run, const ls__step *step, size_t offset,
                         const send_data *what)
{
    LS_ASSERT(what->total >= offset && what->piece_max > 0);
    ls__transport *t = group->comm->transport;
    ls__program_stream *stream = stream_of(group, step->peer, lane_of(run, step));
    LS_ASSERT(stream != NULL && stream->in_flight < LS__STREAM_CREDIT);
    const int peer = group->member[step->peer].world_rank;
    ls__message *message = t->reserve(t, peer);
    if (message == NULL) {
        return SIZE_MAX;
    }
    const size_t left = what->total - offset;
    const size_t bytes = left < what->piece_max ? left : what->piece_max;
    message->kind = LS__MESSAGE_STEP;
    message->lane = lane_of(run, step);
    message->group = group->id;
    message->bytes = (uint32_t)bytes;
    message->number = stream->sent;
    message->total = what->total;
    message->offset = offset;
    message->descriptor = group->exec->work->descriptor;
    stream->in_flight++;
    if (bytes > 0) {
        t->commit_borrowed(t, peer, what->from + offset, &stream->borrowed);
    } else {
        t->commit(t, peer);
    }
    return bytes;
}

/* A SEND step is complete only when the transport has read its last byte, since the next step may
 * overwrite it. An empty chunk is sent as one empty piece, so that streams stay in step. */
ls__result ls__stream_send(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__program_stream *stream = stream_of(group, step->peer, lane_of(run, step));
    int64_t count = 0;
    const size_t element = element_of(group, run, step->first_src);
    send_data what = {.piece_max = payload_max(group, step->peer, element)};
    what.from = ls__ref_at(group->exec, run, run->program->refs[step->first_src], &count);
    what.total = (size_t)count * element;
    bool moved = false, whole = what.total > 0 && (size_t)lane->moved == what.total;
    while (!whole && stream != NULL && stream->in_flight < LS__STREAM_CREDIT) {
        const size_t bytes = send_piece(group, run, step, (size_t)lane->moved, &what);
        if (bytes == SIZE_MAX) {
            break;
        }
        moved = true;
        lane->moved += (int64_t)bytes;
        whole = (size_t)lane->moved == what.total;
        if (whole) {
            stream->sent++;
            ls__count(&group->counts.messages, 1);
            ls__count(&group->counts.bytes_sent, what.total);
        }
    }
    if (whole && stream->borrowed == 0) {
        return LS__COMPLETE;
    }
    return moved ? LS__MOVED : LS__BLOCKED;
}

/* ---- receiving ---------------------------------------------------------------------------- */

/* The descriptors differ, or the piece belongs to another place of the program. */
static void fail_mismatched(ls_group *group, int peer, const ls__message *message)
{
    char text[LS__FAILURE_MAX];
    const ls__descriptor *own = &group->exec->work->descriptor;
    const bool lower = group->rank < peer; /* both ranks name the lower one first */
    const int self = group->member[group->rank].world_rank;
    const int other = group->member[peer].world_rank;
    ls__mismatch_text(group, lower ? own : &message->descriptor, lower ? self : other,
                      lower ? &message->descriptor : own, lower ? other : self, text, sizeof text);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* The step of `run` to which the next piece of the stream belongs; NULL: none. The search goes on
 * from the last one, so a run looks at each of its steps once. */
static const ls__step *next_step(const ls__run *run, ls__program_stream *stream, int peer,
                                 unsigned lane)
{
    const ls__program *program = run->program;
    if (!run->active || (int)lane >= program->lanes) {
        return NULL;
    }
    const bool known = stream->run == run->number;
    int at = known ? stream->step : program->lane_start[lane];
    if (known && at < 0) {
        return NULL;
    }
    for (; at < program->lane_start[lane + 1]; at++) {
        const ls__step *step = &program->steps[at];
        if (step->kind == LS__STEP_RECV && step->peer == peer) {
            break;
        }
    }
    stream->run = run->number;
    stream->step = at < program->lane_start[lane + 1] ? at : -1;
    return stream->step < 0 ? NULL : &program->steps[at];
}

/* Whether all steps that touch the step's place before it are complete. */
static bool may_receive(const ls__run *run, const ls__step *step)
{
    for (int l = 0; l < run->program->lanes; l++) {
        if (run->lane[l].step < step->need[l]) {
            return false;
        }
    }
    return true;
}

/* The step that can take the stream's next piece now; NULL: it has to wait. */
static const ls__step *receiving_step(ls_group *group, ls__program_stream *stream, int peer,
                                      unsigned lane)
{
    ls__exec *exec = group->exec;
    const ls__run *run = &exec->run[lane / LS__PROGRAM_LANES_MAX];
    const ls__step *step = exec->state == LS__EXEC_RUN
                               ? next_step(run, stream, peer, lane % LS__PROGRAM_LANES_MAX)
                               : NULL;
    return step != NULL && may_receive(run, step) ? step : NULL;
}

/* Where the step's bytes go; NULL if the message does not belong to it or exceeds its place. The
 * transport asks before it has verified the head, so every field is checked. */
static unsigned char *place_of(const ls_group *group, const ls__run *run,
                               const ls__program_stream *stream, const ls__step *step,
                               const ls__message *message)
{
    const size_t element = element_of(group, run, step->first_dst);
    int64_t room = 0;
    unsigned char *to = ls__ref_at(group->exec, run, run->program->refs[step->first_dst], &room);
    const bool uneven = group->exec->work->count_of[0] != NULL;
    const bool fits = message->number == stream->received && message->offset >= stream->moved &&
                      message->total <= (uint64_t)room * element &&
                      (!uneven || message->total == (uint64_t)room * element) &&
                      message->offset <= message->total &&
                      message->bytes <= message->total - message->offset &&
                      message->bytes % element == 0;
    const ls__descriptor *own = &group->exec->work->descriptor;
    return fits && ls__descriptor_equal(group->comm, own, &message->descriptor) ? to : NULL;
}

/* v-variants: fails the group if the sender's block has another length than this rank expects.
 * Returns whether it did. */
static bool fail_other_length(ls_group *group, const ls__run *run, const ls__step *step,
                              const ls__message *message)
{
    const ls__descriptor *own = &group->exec->work->descriptor;
    const uint64_t element = element_of(group, run, step->first_dst);
    int64_t expected = 0;
    (void)ls__ref_at(group->exec, run, run->program->refs[step->first_dst], &expected);
    const bool other = ls__descriptor_equal(group->comm, own, &message->descriptor) &&
                       message->total != (uint64_t)expected * element;
    if (other) {
        ls__mismatch_block(group, step->peer, &message->descriptor,
                           (int64_t)(message->total / element), expected);
    }
    return other;
}

/* Copies one piece to its place, unless the transport has put it there already. False: it does not
 * belong here, and the group has failed. */
static bool receive_piece(ls_group *group, const ls__run *run, ls__program_stream *stream,
                          const ls__step *step, const ls__message *message, const void *payload)
{
    const ls_work *work = group->exec->work;
    unsigned char *to = place_of(group, run, stream, step, message);
    if (work->count_of[0] != NULL && fail_other_length(group, run, step, message)) {
        return false;
    }
    if (message->offset != stream->moved || (to == NULL && message->bytes > 0) ||
        !ls__descriptor_equal(group->comm, &work->descriptor, &message->descriptor)) {
        fail_mismatched(group, step->peer, message);
        return false;
    }
    if (message->bytes > 0 && to + stream->moved != payload) {
        memcpy(to + stream->moved, payload, message->bytes);
    }
    stream->moved += message->bytes;
    if (stream->moved == message->total) {
        ls__count(&group->counts.messages, 1);
        ls__count(&group->counts.bytes_received, message->total);
        stream->moved = 0;
        stream->received++;
        stream->step++; /* next_step looks from here on */
    }
    return true;
}

/* The receiver has consumed a piece, and the sender may send another. */
static void add_due_credit(ls_group *group, ls__program_stream *stream)
{
    stream->credits_due++;
    /* Credits are returned in halves: a sender that has none gets some when half is consumed. */
    if (stream->credits_due == LS__STREAM_CREDIT / 2) {
        ls__list_push_back(&group->p2p->credits_due, &stream->due_link);
    }
}

/* Uses the kept pieces in order, as long as the program may receive them. */
static bool drain_stream(ls_group *group, ls__program_stream *stream, int peer, unsigned lane)
{
    bool moved = false;
    while (!ls__list_empty(&stream->early)) {
        const ls__step *step = receiving_step(group, stream, peer, lane);
        if (step == NULL) {
            break;
        }
        ls__unexpected *kept =
            LS__LIST_ITEM(ls__list_pop_front(&stream->early), ls__unexpected, link);
        group->p2p->early--;
        const ls__run *run = &group->exec->run[lane / LS__PROGRAM_LANES_MAX];
        const bool used =
            receive_piece(group, run, stream, step, kept->message, kept->message->payload);
        ls__unexpected_drop(group->comm, kept);
        add_due_credit(group, stream);
        moved = true;
        if (!used) {
            break; /* the next turn ends the operation */
        }
    }
    return moved;
}

/* Called whenever a run has moved: a completed step may have made room for pieces that came
 * early. */
bool ls__stream_drain(ls_group *group, ls__run *run)
{
    bool moved = false;
    for (int peer = 0; group->p2p->early > 0 && peer < group->size; peer++) {
        for (unsigned l = 0; (int)l < run->program->lanes; l++) {
            const unsigned lane = (unsigned)run->slot * LS__PROGRAM_LANES_MAX + l;
            moved = drain_stream(group, stream_of(group, peer, lane), peer, lane) || moved;
        }
    }
    return moved;
}

/* Pieces are received as they arrive, so a lane that reaches a RECV often finds it done: the stream
 * is past this step then. */
ls__result ls__stream_recv(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    (void)lane;
    ls__program_stream *stream = stream_of(group, step->peer, lane_of(run, step));
    if (stream == NULL) {
        return LS__BLOCKED;
    }
    const bool moved = drain_stream(group, stream, step->peer, lane_of(run, step));
    const ls__step *next = next_step(run, stream, step->peer, step->lane);
    return next == NULL || next > step ? LS__COMPLETE : moved ? LS__MOVED : LS__BLOCKED;
}

/* Kept pieces come first. */
void *ls__stream_place(ls_group *group, int peer, const ls__message *head)
{
    ls__program_stream *stream = head->lane < LANES_ALL ? stream_of(group, peer, head->lane) : NULL;
    if (stream == NULL || !ls__list_empty(&stream->early)) {
        return NULL;
    }
    const ls__step *step = receiving_step(group, stream, peer, head->lane);
    if (step == NULL) {
        return NULL;
    }
    const ls__run *run = &group->exec->run[head->lane / LS__PROGRAM_LANES_MAX];
    unsigned char *to = place_of(group, run, stream, step, head);
    return to != NULL ? to + head->offset : NULL;
}

/* Uses a piece directly from the transport. False: it has to be kept. */
static bool take_now(ls_group *group, int peer, ls__program_stream *stream,
                     const ls__message *message, const void *payload)
{
    const ls__step *step =
        ls__list_empty(&stream->early) ? receiving_step(group, stream, peer, message->lane) : NULL;
    if (step == NULL) {
        return false;
    }
    add_due_credit(group, stream);
    (void)receive_piece(group, &group->exec->run[message->lane / LS__PROGRAM_LANES_MAX], stream,
                        step, message, payload);
    return true;
}

/* A piece that is not for a lane of this group is dropped; one that cannot be used yet is kept. */
bool ls__stream_take(ls_group *group, int from, const ls__message *message, const void *payload)
{
    const int peer = ls__member_of(group, from);
    if (peer < 0 || message->lane >= LANES_ALL) {
        return true; /* not of this group's programs: dropped */
    }
    ls__program_stream *stream = stream_of(group, peer, message->lane);
    if (stream == NULL) {
        return false;
    }
    if (!stream->ready) { /* with the first piece, and never again */
        ls__transport *t = group->comm->transport;
        ls__unexpected_prepare(group->comm, LS__STREAM_CREDIT, t->payload_max(t, from));
        stream->ready = true;
    }
    ls__remote_record_call(group, peer, message);
    if (take_now(group, peer, stream, message, payload)) {
        return true;
    }
    if (payload != message->payload) { /* placed for a step that another piece has completed */
        if (group->exec->work != NULL) {
            fail_mismatched(group, peer, message);
        }
        return true;
    }
    ls__unexpected *kept = ls__unexpected_keep_large(group->comm, from, message);
    if (kept == NULL) {
        return false;
    }
    ls__list_push_back(&stream->early, &kept->link);
    group->p2p->early++;
    return true;
}

/* Credit for more pieces than are in flight is a peer's mistake, and ignored. */
void ls__stream_credit(ls_group *group, int from, const ls__message *message)
{
    const int peer = ls__member_of(group, from);
    ls__program_stream *stream =
        peer >= 0 && message->lane < LANES_ALL ? stream_of(group, peer, message->lane) : NULL;
    if (stream != NULL && message->total <= stream->in_flight) {
        stream->in_flight -= (uint32_t)message->total;
    }
}

/* A stream without a slot stays in the list until the next turn. */
bool ls__stream_flush(ls_group *group)
{
    ls__transport *t = group->comm->transport;
    bool moved = false;
    LS__LIST_EACH (at, &group->p2p->credits_due) {
        ls__program_stream *stream = LS__LIST_ITEM(at, ls__program_stream, due_link);
        const size_t i = (size_t)(stream - group->p2p->streams);
        const int peer = group->member[i / LANES_ALL].world_rank;
        ls__message *message = t->reserve(t, peer);
        if (message != NULL) {
            message->kind = LS__MESSAGE_CREDIT;
            message->lane = (uint32_t)(i % LANES_ALL);
            message->group = group->id;
            message->bytes = 0;
            message->total = stream->credits_due;
            stream->credits_due = 0;
            ls__list_remove(&stream->due_link);
            t->commit(t, peer);
            moved = true;
        }
    }
    return moved;
}
