/* SPDX-License-Identifier: Apache-2.0 */
/* The effect of each step of a program on the symbolic memory, and the checks of its accesses. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/program/check_run.h"

/* ---- failing ------------------------------------------------------------------------------ */

/* The text begins with the algorithm and the kind of run, because one test checks hundreds of
 * programs. */
bool ls__check_fail(ls__checker *c, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const ls__program *p = c->programs[0];
    static const char *const memories[] = {"undecided", "messages", "registered", "staged"};
    c->status = ls__fail(LS_ERR_MISMATCH, "%s %s (%d ranks, %s, %s): %s", p->algorithm,
                         ls__operation_name(p->operation), c->size, memories[p->memory],
                         c->in_place ? "in place" : "out of place", text);
    return false;
}

/* Names the step in the form of ls__program_print, so that it can be found there. */
bool ls__check_fail_at(ls__checker *c, const ls__check_thread *t, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return ls__check_fail(c, "rank %d, lane %d, step %d (%s): %s", t->rank, t->lane, t->next,
                          ls__step_kind_name((ls__step_kind)ls__check_step(c, t)->kind), text);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* In place, INPUT and OUTPUT share cells. STAGE has two slots taken in turn by slices, the
 * fewest that an operation has. A SCRATCH slot is one cell, whichever chunk it holds. */
ls__cell *ls__check_cell(ls__checker *c, ls__ref ref, int slice)
{
    const int n = c->chunks;
    ls__cell *base = c->cells + (size_t)ref.rank * (size_t)c->cells_per_rank;
    switch ((ls__program_buffer)ref.buffer) {
    case LS__BUFFER_INPUT:
        return base + ref.chunk;
    case LS__BUFFER_OUTPUT:
        return base + (ls__check_in_place(c, ref.rank) ? 0 : n) + ref.chunk;
    case LS__BUFFER_STAGE:
        return base + 2 * n + (slice % 2) * n + ref.chunk;
    case LS__BUFFER_SCRATCH:
    default:
        return base + 4 * n + ref.chunk / n;
    }
}

/* The short side of operations with blocks has one chunk, numbered as its rank; some buffers exist
 * on the root only. */
bool ls__check_ref_exists(const ls__checker *c, ls__ref ref)
{
    const bool input = ref.buffer == LS__BUFFER_INPUT;
    if (!input && ref.buffer != LS__BUFFER_OUTPUT) {
        return true;
    }
    const bool here = ls__operation_uses(c->operation, input, ref.rank, c->root);
    const bool is_short = ls__operation_is_short(c->operation, input);
    return here && (!is_short || ref.chunk == ref.rank);
}

/* Whether this kind of memory may be named at all: by messages no rank sees another's, and private
 * buffers are seen by their owner only. */
static bool ref_allowed(const ls__checker *c, const ls__check_thread *t, ls__ref ref)
{
    if (ref.rank == t->rank) {
        return ref.buffer != LS__BUFFER_STAGE || c->memory == LS__MEMORY_STAGED;
    }
    if (c->memory == LS__MEMORY_REGISTERED) {
        return ref.buffer == LS__BUFFER_INPUT || ref.buffer == LS__BUFFER_OUTPUT;
    }
    return c->memory == LS__MEMORY_STAGED && ref.buffer == LS__BUFFER_STAGE;
}

/* Whether the step may name this memory at all; races are a question of order and come later. */
static bool check_ref(ls__checker *c, const ls__check_thread *t, ls__ref ref)
{
    const char *name = ls__buffer_name((ls__program_buffer)ref.buffer);
    if (!ref_allowed(c, t, ref)) {
        return ls__check_fail_at(c, t, "%s[%d].%d is memory that it cannot access", name, ref.rank,
                                 ref.chunk);
    }
    if (!ls__check_ref_exists(c, ref)) {
        return ls__check_fail_at(c, t, "%s[%d].%d does not exist: %s of rank %d has %s", name,
                                 ref.rank, ref.chunk, ls__operation_name(c->operation), ref.rank,
                                 ls__operation_on_all(c->operation, ref.buffer == LS__BUFFER_INPUT)
                                     ? "the chunk of its number only"
                                 : c->operation == LS__OP_EXSCAN
                                     ? "no result"
                                     : "no such buffer; only the root has one");
    }
    if (ref.rank != t->rank && !t->published) {
        return ls__check_fail_at(c, t, "touches %s[%d].%d of a peer before fence 0", name, ref.rank,
                                 ref.chunk);
    }
    return true;
}

/* Names both accesses of a race. */
static bool fail_race(ls__checker *c, const ls__check_thread *t, ls__ref ref, int other)
{
    return ls__check_fail_at(
        c, t,
        "race on %s[%d].%d: rank %d (lane %d) touches it too, with no fence or message "
        "between",
        ls__buffer_name((ls__program_buffer)ref.buffer), ref.rank, ref.chunk, other / c->lanes,
        other % c->lanes);
}

/* Checks the access and returns the value of the cell. */
static bool read_ref(ls__checker *c, const ls__check_thread *t, ls__ref ref, ls__value *out)
{
    if (!check_ref(c, t, ref)) {
        return false;
    }
    ls__cell *cell = ls__check_cell(c, ref, c->rank[t->rank].slice);
    const int other = ls__cell_read(&c->model, cell, t->index, t->clock);
    if (other >= 0) {
        return fail_race(c, t, ref, other);
    }
    *out = cell->value;
    if (cell->value == 0) {
        return ls__check_fail_at(c, t, "reads %s[%d].%d, where nothing was written",
                                 ls__buffer_name((ls__program_buffer)ref.buffer), ref.rank,
                                 ref.chunk);
    }
    return true;
}

/* Checks that the rank may write there, and that no thread accesses the cell concurrently. */
static bool write_ref(ls__checker *c, const ls__check_thread *t, ls__ref ref, ls__value value)
{
    if (!check_ref(c, t, ref)) {
        return false;
    }
    if (ref.buffer == LS__BUFFER_INPUT && !ls__check_in_place(c, ref.rank)) {
        return ls__check_fail_at(c, t, "writes to input[%d].%d, which is read-only", ref.rank,
                                 ref.chunk);
    }
    const int place = ls__value_place(&c->values, value);
    if (ref.buffer == LS__BUFFER_SCRATCH && place >= 0 &&
        place % c->chunks != ref.chunk % c->chunks) {
        return ls__check_fail_at(c, t,
                                 "puts chunk %d where scratch is said to hold another chunk, %d",
                                 place % c->chunks, ref.chunk % c->chunks);
    }
    ls__cell *cell = ls__check_cell(c, ref, c->rank[t->rank].slice);
    const int other = ls__cell_write(&c->model, cell, t->index, t->clock);
    if (other >= 0) {
        return fail_race(c, t, ref, other);
    }
    cell->value = value;
    return true;
}

/* ---- wide programs: Note [Wide programs] in program.h -------------------------------------- */

/* Whether this place holds elements of the accumulation dtype. */
static bool is_wide(const ls__checker *c, ls__ref ref)
{
    return c->wide && ref.buffer == LS__BUFFER_SCRATCH;
}

/* A rounded sum is final and must not take part in another one. */
static bool check_partial(ls__checker *c, const ls__check_thread *t, ls__value value)
{
    return !c->wide || !ls__value_is_rounded(&c->values, value) ||
           ls__check_fail_at(c, t, "goes on with a sum that was rounded (and divided) already");
}

/* The value that the place holds after it was written. */
static ls__value stored(ls__checker *c, ls__ref dst, ls__value value)
{
    return is_wide(c, dst) ? value : ls__value_round(&c->values, value);
}

/* ---- clocks ------------------------------------------------------------------------------- */

/* Element by element, the larger: all that happened before either clock. */
void ls__check_join(const ls__checker *c, uint32_t *into, const uint32_t *from)
{
    for (int i = 0; i < c->threads; i++) {
        into[i] = into[i] > from[i] ? into[i] : from[i];
    }
}

/* NULL: no memory, which is recorded in the model. */
uint32_t *ls__check_clock_copy(ls__checker *c, const uint32_t *clock)
{
    const size_t bytes = (size_t)c->threads * sizeof *clock;
    uint32_t *copy = ls__arena_alloc(&c->arena, bytes);
    if (copy == NULL) {
        c->model.failed = true;
    } else {
        memcpy(copy, clock, bytes);
    }
    return copy;
}

/* ---- steps: each returns whether it ran; a failure is in c->status ------------------------- */

/* Source i of the thread's current step. */
static ls__ref src_of(const ls__checker *c, const ls__check_thread *t, int i)
{
    return c->programs[t->rank]->refs[ls__check_step(c, t)->first_src + i];
}

/* Destination i of the thread's current step. */
static ls__ref dst_of(const ls__checker *c, const ls__check_thread *t, int i)
{
    return c->programs[t->rank]->refs[ls__check_step(c, t)->first_dst + i];
}

/* Puts a message with the sender's clock into the stream. False: the source could not be read, or
 * there is no memory. */
static bool post(ls__checker *c, const ls__check_thread *t, ls__check_stream *stream, ls__ref src)
{
    ls__value value = 0;
    if (!read_ref(c, t, src, &value)) {
        return false;
    }
    ls__check_message *m = c->spare_message;
    if (m != NULL) {
        c->spare_message = m->next;
        memcpy(m->clock, t->clock, (size_t)c->threads * sizeof *m->clock);
    } else {
        m = ls__arena_alloc(&c->arena, sizeof *m);
        if (m == NULL || (m->clock = ls__check_clock_copy(c, t->clock)) == NULL) {
            c->model.failed = true;
            return false;
        }
    }
    m->value = value;
    m->wide = is_wide(c, src);
    m->next = NULL;
    *(stream->last ? &stream->last->next : &stream->first) = m;
    stream->last = m;
    stream->count++;
    return true;
}

/* At capacity 0 a send begins when its message is in the stream, and ends when the receiver takes
 * it. */
static bool run_send(ls__checker *c, ls__check_thread *t, const ls__step *step)
{
    ls__check_stream *stream = ls__check_stream_of(c, t->rank, step->peer, t->lane);
    if (t->offered) {
        t->offered = stream->count > 0;
        return !t->offered;
    }
    if (stream->count >= (c->capacity > 0 ? c->capacity : 1) ||
        !post(c, t, stream, src_of(c, t, 0))) {
        return false;
    }
    t->offered = c->capacity == 0;
    return !t->offered;
}

/* Receiving is ordered after sending. Both sides must agree on the element type. */
static bool run_recv(ls__checker *c, ls__check_thread *t, const ls__step *step)
{
    ls__check_stream *stream = ls__check_stream_of(c, step->peer, t->rank, t->lane);
    ls__check_message *m = stream->first;
    if (m == NULL) {
        return false;
    }
    stream->first = m->next;
    stream->last = m->next ? stream->last : NULL;
    stream->count--;
    ls__check_join(c, t->clock, m->clock);
    const ls__value value = m->value;
    m->next = c->spare_message;
    c->spare_message = m;
    const ls__ref dst = dst_of(c, t, 0);
    if (m->wide != is_wide(c, dst)) {
        return ls__check_fail_at(c, t, "the message from rank %d is %s, its place is not",
                                 step->peer, m->wide ? "wide" : "of the operation's dtype");
    }
    return write_ref(c, t, dst, value);
}

/* COPY and PEER_COPY. A copy may widen; only a reduce rounds. */
static bool run_copy(ls__checker *c, ls__check_thread *t)
{
    const ls__ref src = src_of(c, t, 0), dst = dst_of(c, t, 0);
    const int slice = c->rank[t->rank].slice;
    if (ls__check_cell(c, src, slice) == ls__check_cell(c, dst, slice)) {
        return true; /* in place: onto itself, nothing is touched */
    }
    if (is_wide(c, src) && !is_wide(c, dst)) {
        return ls__check_fail_at(c, t, "copies a wide sum, which only a reduce divides and rounds");
    }
    ls__value value = 0;
    return read_ref(c, t, src, &value) && (!is_wide(c, dst) || check_partial(c, t, value)) &&
           write_ref(c, t, dst, value);
}

/* The operands in their order form a canonical tree; all destinations get the same value. */
static bool run_reduce(ls__checker *c, ls__check_thread *t, const ls__step *step)
{
    ls__value operand[LS__PROGRAM_RANKS_MAX];
    for (int i = 0; i < step->src_count; i++) {
        if (!read_ref(c, t, src_of(c, t, i), &operand[i]) || !check_partial(c, t, operand[i])) {
            return false;
        }
    }
    const ls__value tree = ls__value_tree(&c->values, operand, step->src_count);
    const ls__value value = stored(c, dst_of(c, t, 0), tree);
    for (int i = 0; i < step->dst_count; i++) {
        if (is_wide(c, dst_of(c, t, i)) != is_wide(c, dst_of(c, t, 0))) {
            return ls__check_fail_at(c, t, "has wide and other destinations");
        }
        if (!write_ref(c, t, dst_of(c, t, i), value)) {
            return false;
        }
    }
    return true;
}

/* The last rank that arrives releases all others; every clock then includes all clocks. */
static bool run_fence(ls__checker *c, ls__check_thread *t, const ls__step *step)
{
    const int number = c->rank[t->rank].slice * c->fences + step->fence;
    ls__check_fence *fence = &c->fence[number];
    if (step->fence != c->rank[t->rank].fences_reached - (t->offered ? 1 : 0)) {
        return ls__check_fail_at(c, t, "fence %d is reached as number %d", step->fence,
                                 c->rank[t->rank].fences_reached);
    }
    if (!t->offered) {
        t->offered = true;
        c->rank[t->rank].fences_reached++;
        fence->arrived++;
        fence->reached[t->rank] = true;
        ls__check_join(c, fence->clock, t->clock);
    }
    if (fence->arrived < c->size) {
        return false;
    }
    t->offered = false;
    t->published = true;
    ls__check_join(c, t->clock, fence->clock);
    return true;
}

/* False means that the step has to wait, or that c->status says why it is wrong. */
bool ls__check_run_step(ls__checker *c, ls__check_thread *t)
{
    const ls__step *step = ls__check_step(c, t);
    switch ((ls__step_kind)step->kind) {
    case LS__STEP_SEND:
        return run_send(c, t, step);
    case LS__STEP_RECV:
        return run_recv(c, t, step);
    case LS__STEP_COPY:
    case LS__STEP_PEER_COPY:
        return run_copy(c, t);
    case LS__STEP_REDUCE:
    case LS__STEP_PEER_REDUCE:
        return run_reduce(c, t, step);
    case LS__STEP_FENCE:
        return run_fence(c, t, step);
    default:
        return ls__check_fail(c, "rank %d has a step of no known kind", t->rank);
    }
}
