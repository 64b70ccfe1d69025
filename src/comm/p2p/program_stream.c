/* Streams: the SEND, RECV and RECV_REDUCE steps of programs over a message transport. A step's
 * chunk travels as one or more pieces, an empty chunk as one empty piece. Every piece carries the
 * sender's descriptor, and the receiver compares it before it uses a byte (docs/design.md, D4).
 *
 * Bytes are not copied on the way: a piece is lent to the transport where it lies, and its SEND is
 * complete when the transport has done with it; the transport puts what is received into its
 * place. What comes is received when its place may be touched, not only when its lane is there:
 * each stream knows of which step its next piece is, and a lane that comes to a RECV finds it done.
 */
#include <string.h>

#include "base/assert.h"
#include "comm/diagnose/cause.h"
#include "comm/diagnose/mismatch.h"
#include "comm/engine/exec.h"
#include "comm/group/group.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

#define LANES_ALL (LS__PROGRAM_LANES_MAX * LS__CHANNELS_MAX) /* of one peer */

size_t ls__stream_count(const ls_group *group)
{
    return (size_t)group->size * LANES_ALL;
}

/* `lane` as messages have it: channel * LS__PROGRAM_LANES_MAX + lane of the program. */
static ls__program_stream *stream_of(ls_group *group, int peer, unsigned lane)
{
    ls__p2p *letters = group->p2p;
    if (letters->streams == NULL) {
        const size_t count = ls__stream_count(group);
        const ls__env *env = group->comm->env;
        letters->streams = env->allocate(env, count * sizeof *letters->streams);
        for (size_t i = 0; letters->streams != NULL && i < count; i++) {
            letters->streams[i] = (ls__program_stream){0};
            ls__list_init(&letters->streams[i].early);
            ls__list_init(&letters->streams[i].owing);
        }
    }
    return letters->streams == NULL ? NULL : &letters->streams[(size_t)peer * LANES_ALL + lane];
}

static unsigned lane_of(const ls__run *run, const ls__step *step)
{
    return (unsigned)run->slot * LS__PROGRAM_LANES_MAX + step->lane;
}

/* The largest payload that is a whole number of elements. */
static size_t payload_max(const ls_group *group, int peer, size_t element)
{
    ls__transport *t = group->comm->transport;
    const size_t most = t->payload_max(t, group->member[peer].world_rank);
    return most - most % element;
}

static size_t element_of(const ls_group *group, const ls__run *run, int32_t ref)
{
    return ls__ref_element(group->exec, run->program->refs[ref]);
}

/* ---- sending ------------------------------------------------------------------------------ */

typedef struct parcel { /* what a SEND step sends */
    const unsigned char *from;
    size_t total, piece_max; /* bytes */
} parcel;

static size_t send_piece(ls_group *group, const ls__run *run, const ls__step *step, size_t offset,
                         const parcel *what)
{
    ls__transport *t = group->comm->transport;
    ls__program_stream *stream = stream_of(group, step->peer, lane_of(run, step));
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
    message->letter = stream->sent;
    message->total = what->total;
    message->offset = offset;
    message->descriptor = group->exec->work->descriptor;
    stream->under_way++;
    if (bytes > 0) {
        t->lend(t, peer, what->from + offset, &stream->lent);
    } else {
        t->commit(t, peer);
    }
    return bytes;
}

ls__result ls__stream_send(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__program_stream *stream = stream_of(group, step->peer, lane_of(run, step));
    int64_t count = 0;
    const size_t element = element_of(group, run, step->first_src);
    parcel what = {.piece_max = payload_max(group, step->peer, element)};
    what.from = ls__ref_at(group->exec, run, run->program->refs[step->first_src], &count);
    what.total = (size_t)count * element;
    bool moved = false, whole = what.total > 0 && (size_t)lane->moved == what.total;
    while (!whole && stream != NULL && stream->under_way < LS__STREAM_CREDIT) {
        const size_t bytes = send_piece(group, run, step, (size_t)lane->moved, &what);
        if (bytes == SIZE_MAX) {
            break;
        }
        moved = true;
        lane->moved += (int64_t)bytes;
        whole = (size_t)lane->moved == what.total;
        if (whole) {
            stream->sent++;
            ls__count(&group->messages, 1);
            ls__count(&group->bytes_sent, what.total);
        }
    }
    if (whole && stream->lent == 0) {
        return LS__COMPLETE;
    }
    return moved ? LS__MOVED : LS__BLOCKED;
}

/* ---- receiving ---------------------------------------------------------------------------- */

static void tell_mismatch(ls_group *group, int peer, const ls__message *message)
{
    char text[LS__FAILURE_MAX];
    const ls__descriptor *own = &group->exec->work->descriptor;
    const bool lower = group->rank < peer; /* the lower rank is named first, whoever notices */
    const int self = group->member[group->rank].world_rank;
    const int other = group->member[peer].world_rank;
    ls__mismatch_text(group, lower ? own : &message->descriptor, lower ? self : other,
                      lower ? &message->descriptor : own, lower ? other : self, text, sizeof text);
    ls__group_cause(group, LS_ERR_MISMATCH, text);
}

/* Of which step of `run` the next piece of the stream is; NULL: of none. */
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
        const bool receives = step->kind == LS__STEP_RECV || step->kind == LS__STEP_RECV_REDUCE;
        if (receives && step->peer == peer) {
            break;
        }
    }
    stream->run = run->number;
    stream->step = at < program->lane_start[lane + 1] ? at : -1;
    return stream->step < 0 ? NULL : &program->steps[at];
}

/* Whether nothing before it touches the step's place any more. */
static bool may_receive(const ls__run *run, const ls__step *step)
{
    for (int l = 0; l < run->program->lanes; l++) {
        if (run->lane[l].step < step->need[l]) {
            return false;
        }
    }
    return true;
}

/* The step that takes the stream's next piece now; NULL: it has to wait. */
static const ls__step *open_step(ls_group *group, ls__program_stream *stream, int peer,
                                 unsigned lane)
{
    ls__exec *exec = group->exec;
    const ls__run *run = &exec->run[lane / LS__PROGRAM_LANES_MAX];
    const ls__step *step = exec->state == LS__EXEC_RUN
                               ? next_step(run, stream, peer, lane % LS__PROGRAM_LANES_MAX)
                               : NULL;
    return step != NULL && may_receive(run, step) ? step : NULL;
}

/* Where the step's bytes go, if the message is of it and fits. */
static unsigned char *place_of(const ls_group *group, const ls__run *run,
                               const ls__program_stream *stream, const ls__step *step,
                               const ls__message *message)
{
    const size_t element = element_of(group, run, step->first_dst);
    int64_t room = 0;
    unsigned char *to = ls__ref_at(group->exec, run, run->program->refs[step->first_dst], &room);
    const bool uneven = group->exec->work->count_of[0] != NULL;
    const bool fits = message->letter == stream->received && message->offset >= stream->moved &&
                      message->total <= (uint64_t)room * element &&
                      (!uneven || message->total == (uint64_t)room * element) &&
                      message->offset <= message->total &&
                      message->bytes <= message->total - message->offset &&
                      message->bytes % element == 0;
    const ls__descriptor *own = &group->exec->work->descriptor;
    return fits && ls__descriptor_equal(group->comm, own, &message->descriptor) ? to : NULL;
}

/* v-variants: a block of another length than this rank expects; the group has failed. */
static bool other_length(ls_group *group, const ls__run *run, const ls__step *step,
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

/* Uses one piece of the step; false: it does not belong here, and the group has failed. */
static bool receive_piece(ls_group *group, const ls__run *run, ls__program_stream *stream,
                          const ls__step *step, const ls__message *message, const void *payload)
{
    const ls_work *work = group->exec->work;
    const size_t element = element_of(group, run, step->first_dst);
    unsigned char *to = place_of(group, run, stream, step, message);
    if (work->count_of[0] != NULL && other_length(group, run, step, message)) {
        return false;
    }
    if (message->offset != stream->moved || (to == NULL && message->bytes > 0) ||
        !ls__descriptor_equal(group->comm, &work->descriptor, &message->descriptor)) {
        tell_mismatch(group, step->peer, message);
        return false;
    }
    if (message->bytes > 0 && step->kind == LS__STEP_RECV) {
        if (to + stream->moved != payload) {
            memcpy(to + stream->moved, payload, message->bytes);
        }
    } else if (message->bytes > 0) {
        const ls_dtype dtype =
            run->program->wide ? ls__reduce_accumulator(work->dtype) : work->dtype;
        void *const dst = to + stream->moved;
        const ls__reduce_args args = {.dst = &dst,
                                      .dst_count = 1,
                                      .src = (const void *const[]){dst, payload},
                                      .src_count = 2,
                                      .count = (int64_t)(message->bytes / element),
                                      .dtype = dtype,
                                      .op = work->op,
                                      .user = work->user,
                                      .table = group->comm->kernels};
        if (!ls__exec_reduce(group, &args)) {
            return false;
        }
    }
    stream->moved += message->bytes;
    if (stream->moved == message->total) {
        ls__count(&group->messages, 1);
        ls__count(&group->bytes_received, message->total);
        stream->moved = 0;
        stream->received++;
        stream->step++; /* next_step looks from here on */
    }
    return true;
}

static void owe_credit(ls_group *group, ls__program_stream *stream)
{
    stream->owed++;
    /* In halves: a sender that is out of credit always gets some when half is consumed. */
    if (stream->owed == LS__STREAM_CREDIT / 2) {
        ls__list_push_back(&group->p2p->owing, &stream->owing);
    }
}

static bool drain_stream(ls_group *group, ls__program_stream *stream, int peer, unsigned lane)
{
    bool moved = false;
    while (!ls__list_empty(&stream->early)) {
        const ls__step *step = open_step(group, stream, peer, lane);
        if (step == NULL) {
            break;
        }
        ls__unexpected *note =
            LS__LIST_ITEM(ls__list_pop_front(&stream->early), ls__unexpected, link);
        group->p2p->early--;
        const ls__run *run = &group->exec->run[lane / LS__PROGRAM_LANES_MAX];
        const bool used =
            receive_piece(group, run, stream, step, note->message, note->message->payload);
        ls__unexpected_drop(group->comm, note);
        owe_credit(group, stream);
        moved = true;
        if (!used) {
            break; /* the next turn ends the operation */
        }
    }
    return moved;
}

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

void *ls__stream_place(ls_group *group, int peer, const ls__message *head)
{
    ls__program_stream *stream = head->lane < LANES_ALL ? stream_of(group, peer, head->lane) : NULL;
    if (stream == NULL || !ls__list_empty(&stream->early)) {
        return NULL;
    }
    const ls__step *step = open_step(group, stream, peer, head->lane);
    if (step == NULL || step->kind != LS__STEP_RECV) {
        return NULL;
    }
    const ls__run *run = &group->exec->run[head->lane / LS__PROGRAM_LANES_MAX];
    unsigned char *to = place_of(group, run, stream, step, head);
    return to != NULL ? to + head->offset : NULL;
}

/* Straight from the transport into its place. */
static bool take_now(ls_group *group, int peer, ls__program_stream *stream,
                     const ls__message *message, const void *payload)
{
    const ls__step *step =
        ls__list_empty(&stream->early) ? open_step(group, stream, peer, message->lane) : NULL;
    if (step == NULL) {
        return false;
    }
    owe_credit(group, stream);
    (void)receive_piece(group, &group->exec->run[message->lane / LS__PROGRAM_LANES_MAX], stream,
                        step, message, payload);
    return true;
}

bool ls__stream_take(ls_group *group, int from, const ls__message *message, const void *payload)
{
    const int peer = ls__member_of(group, from);
    if (peer < 0 || message->lane >= LANES_ALL) {
        return true; /* not ours: dropped */
    }
    ls__program_stream *stream = stream_of(group, peer, message->lane);
    if (stream == NULL) {
        return false;
    }
    if (!stream->ready) { /* now, and never again in a steady state */
        ls__transport *t = group->comm->transport;
        ls__unexpected_prepare(group->comm, LS__STREAM_CREDIT, t->payload_max(t, from));
        stream->ready = true;
    }
    ls__remote_heard(group, peer, message);
    if (take_now(group, peer, stream, message, payload)) {
        return true;
    }
    if (payload != message->payload) { /* it was placed for a step that another piece has ended */
        if (group->exec->work != NULL) {
            tell_mismatch(group, peer, message);
        }
        return true;
    }
    ls__unexpected *note = ls__unexpected_keep_large(group->comm, from, message);
    if (note == NULL) {
        return false;
    }
    ls__list_push_back(&stream->early, &note->link);
    group->p2p->early++;
    return true;
}

void ls__stream_credit(ls_group *group, int from, const ls__message *message)
{
    const int peer = ls__member_of(group, from);
    ls__program_stream *stream =
        peer >= 0 && message->lane < LANES_ALL ? stream_of(group, peer, message->lane) : NULL;
    if (stream != NULL && message->total <= stream->under_way) {
        stream->under_way -= (uint32_t)message->total;
    }
}

bool ls__stream_flush(ls_group *group)
{
    ls__transport *t = group->comm->transport;
    bool moved = false;
    LS__LIST_EACH (at, &group->p2p->owing) {
        ls__program_stream *stream = LS__LIST_ITEM(at, ls__program_stream, owing);
        const size_t i = (size_t)(stream - group->p2p->streams);
        const int peer = group->member[i / LANES_ALL].world_rank;
        ls__message *message = t->reserve(t, peer);
        if (message != NULL) {
            message->kind = LS__MESSAGE_CREDIT;
            message->lane = (uint32_t)(i % LANES_ALL);
            message->group = group->id;
            message->bytes = 0;
            message->total = stream->owed;
            stream->owed = 0;
            ls__list_remove(&stream->owing);
            t->commit(t, peer);
            moved = true;
        }
    }
    return moved;
}
