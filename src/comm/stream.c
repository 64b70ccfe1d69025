/* Streams: the SEND, RECV and RECV_REDUCE steps of programs over a message transport. A step's
 * chunk travels as one or more pieces, an empty chunk as one empty piece. Every piece carries the
 * sender's descriptor, and the receiver compares it before it uses a byte (DESIGN D4). */
#include <string.h>

#include "base/assert.h"
#include "comm/far.h"
#include "comm/letters.h"

int ls__member_of(const ls_group *group, int world_rank)
{
    for (int r = 0; r < group->size; r++) {
        if (group->member[r].world_rank == world_rank) {
            return r;
        }
    }
    return -1;
}

static ls__stream *stream_of(ls_group *group, int peer, unsigned lane)
{
    ls__letters *letters = group->letters;
    const size_t count = (size_t)group->size * LS__PROGRAM_LANES_MAX;
    if (letters->streams == NULL) {
        const ls__env *env = group->comm->env;
        letters->streams = env->allocate(env, count * sizeof *letters->streams);
        for (size_t i = 0; letters->streams != NULL && i < count; i++) {
            letters->streams[i] = (ls__stream){0};
            ls__list_init(&letters->streams[i].early);
        }
    }
    return letters->streams == NULL
               ? NULL
               : &letters->streams[(size_t)peer * LS__PROGRAM_LANES_MAX + lane];
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

static size_t send_piece(ls_group *group, const ls__step *step, size_t offset, const parcel *what)
{
    ls__transport *t = group->comm->transport;
    const int peer = group->member[step->peer].world_rank;
    ls__message *message = t->reserve(t, peer);
    if (message == NULL) {
        return SIZE_MAX;
    }
    const size_t left = what->total - offset;
    const size_t bytes = left < what->piece_max ? left : what->piece_max;
    message->kind = LS__MESSAGE_STEP;
    message->lane = step->lane;
    message->group = group->id;
    message->bytes = (uint32_t)bytes;
    message->letter = 0;
    message->total = what->total;
    message->offset = offset;
    message->descriptor = group->exec->work->descriptor;
    if (bytes > 0) {
        memcpy(message->payload, what->from + offset, bytes);
    }
    t->commit(t, peer);
    return bytes;
}

ls__result ls__stream_send(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__stream *stream = stream_of(group, step->peer, step->lane);
    int64_t count = 0;
    const size_t element = element_of(group, run, step->first_src);
    parcel what = {.piece_max = payload_max(group, step->peer, element)};
    what.from = ls__ref_at(group->exec, run, run->program->refs[step->first_src], &count);
    what.total = (size_t)count * element;
    bool moved = false;
    while (stream != NULL && stream->under_way < LS__STREAM_CREDIT) {
        const size_t bytes = send_piece(group, step, (size_t)lane->moved, &what);
        if (bytes == SIZE_MAX) {
            break;
        }
        moved = true;
        stream->under_way++;
        lane->moved += (int64_t)bytes;
        if ((size_t)lane->moved == what.total) {
            ls__count(&group->messages, 1);
            ls__count(&group->bytes_sent, what.total);
            return LS__COMPLETE;
        }
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

/* Uses one piece; false: it does not belong here. */
static bool use_piece(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane,
                      const ls__message *message)
{
    const ls_work *work = group->exec->work;
    const size_t element = element_of(group, run, step->first_dst);
    int64_t room = 0;
    unsigned char *to = ls__ref_at(group->exec, run, run->program->refs[step->first_dst], &room);
    const bool fits =
        message->offset == (uint64_t)lane->moved && message->total <= (uint64_t)room * element &&
        message->offset + message->bytes <= message->total && message->bytes % element == 0;
    if (!ls__descriptor_equal(group->comm, &work->descriptor, &message->descriptor) || !fits) {
        tell_mismatch(group, step->peer, message);
        return false;
    }
    if (message->bytes > 0 && step->kind == LS__STEP_RECV) {
        memcpy(to + lane->moved, message->payload, message->bytes);
    } else if (message->bytes > 0) {
        const ls_dtype dtype =
            run->program->wide ? ls__reduce_accumulator(work->dtype) : work->dtype;
        ls__reduce_into(to + lane->moved, message->payload, (int64_t)(message->bytes / element),
                        dtype, work->op);
    }
    lane->moved += (int64_t)message->bytes;
    return true;
}

static ls__result receive_piece(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane,
                                const ls__message *message)
{
    if (!use_piece(group, run, step, lane, message) || (uint64_t)lane->moved < message->total) {
        return LS__MOVED; /* if it was not used the group has failed; the next turn ends it */
    }
    ls__count(&group->messages, 1);
    ls__count(&group->bytes_received, message->total);
    return LS__COMPLETE;
}

ls__result ls__stream_recv(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    ls__stream *stream = stream_of(group, step->peer, step->lane);
    if (stream == NULL || ls__list_empty(&stream->early)) {
        return LS__BLOCKED;
    }
    ls__note *note = LS__LIST_ITEM(ls__list_pop_front(&stream->early), ls__note, link);
    const ls__result result = receive_piece(group, run, step, lane, note->message);
    ls__note_drop(group->comm, note);
    stream->owed++;
    return result;
}

/* The receive that this message is the next piece of, if its lane has come to it. */
static const ls__step *waiting_step(const ls_group *group, int peer, unsigned l)
{
    const ls__exec *exec = group->exec;
    const ls__run *run = &exec->run[0];
    if (exec->state != LS__EXEC_RUN || !run->active || (int)l >= run->program->lanes) {
        return NULL;
    }
    const ls__program *program = run->program;
    const int at = program->lane_start[l] + run->lane[l].step;
    const ls__step *step = &program->steps[at];
    const bool receives = at < program->lane_start[l + 1] && step->peer == peer &&
                          (step->kind == LS__STEP_RECV || step->kind == LS__STEP_RECV_REDUCE);
    return receives && !ls__step_waits(run, step) ? step : NULL;
}

/* Straight from the transport into its place. */
static bool take_now(ls_group *group, int peer, ls__stream *stream, const ls__message *message)
{
    const ls__step *step =
        ls__list_empty(&stream->early) ? waiting_step(group, peer, message->lane) : NULL;
    if (step == NULL) {
        return false;
    }
    ls__run *run = &group->exec->run[0];
    ls__lane *lane = &run->lane[message->lane];
    stream->owed++;
    if (receive_piece(group, run, step, lane, message) == LS__COMPLETE) {
        *lane = (ls__lane){.step = lane->step + 1};
    }
    return true;
}

bool ls__stream_take(ls_group *group, int from, const ls__message *message)
{
    const int peer = ls__member_of(group, from);
    if (peer < 0 || message->lane >= LS__PROGRAM_LANES_MAX) {
        return true; /* not ours: dropped */
    }
    ls__stream *stream = stream_of(group, peer, message->lane);
    if (stream == NULL) {
        return false;
    }
    if (!stream->ready) { /* now, and never again in a steady state */
        ls__transport *t = group->comm->transport;
        ls__notes_prepare(group->comm, LS__STREAM_CREDIT, t->payload_max(t, from));
        stream->ready = true;
    }
    ls__far_heard(group, peer, message);
    if (take_now(group, peer, stream, message)) {
        return true;
    }
    ls__note *note = ls__note_keep_large(group->comm, from, message);
    if (note == NULL) {
        return false;
    }
    ls__list_push_back(&stream->early, &note->link);
    return true;
}

void ls__stream_credit(ls_group *group, int from, const ls__message *message)
{
    const int peer = ls__member_of(group, from);
    ls__stream *stream = peer >= 0 && message->lane < LS__PROGRAM_LANES_MAX
                             ? stream_of(group, peer, message->lane)
                             : NULL;
    if (stream != NULL && message->total <= stream->under_way) {
        stream->under_way -= (uint32_t)message->total;
    }
}

bool ls__stream_flush(ls_group *group)
{
    ls__transport *t = group->comm->transport;
    bool moved = false;
    for (int i = 0; group->letters->streams != NULL && i < group->size * LS__PROGRAM_LANES_MAX;
         i++) {
        ls__stream *stream = &group->letters->streams[i];
        /* In halves: a sender that is out of credit always gets some when half is consumed. */
        if (stream->owed < LS__STREAM_CREDIT / 2) {
            continue;
        }
        const int peer = group->member[i / LS__PROGRAM_LANES_MAX].world_rank;
        ls__message *message = t->reserve(t, peer);
        if (message != NULL) {
            message->kind = LS__MESSAGE_CREDIT;
            message->lane = (uint32_t)(i % LS__PROGRAM_LANES_MAX);
            message->group = group->id;
            message->bytes = 0;
            message->total = stream->owed;
            stream->owed = 0;
            t->commit(t, peer);
            moved = true;
        }
    }
    return moved;
}
