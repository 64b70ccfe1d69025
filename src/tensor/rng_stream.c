/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of random operations; the idea is in base/draws.h. */
#include "tensor/rng_stream.h"

#include <string.h>

#include "base/assert.h"
#include "base/splitmix64.h"
#include "device/captured.h"
#include "tensor/placement.h"

#define NUMBER_MASK ((UINT64_C(1) << LS__DRAW_NUMBER_BITS) - 1)

/* Keeps calls_in_step above every number drawn, for the checkpoint. */
static void note_number(ls_runtime *runtime, uint64_t number)
{
    uint64_t seen = __atomic_load_n(&runtime->calls_in_step, __ATOMIC_RELAXED);
    while (seen <= number &&
           !__atomic_compare_exchange_n(&runtime->calls_in_step, &seen, number + 1, true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Takes the next number of the place. Relaxed: threads that draw at once in one place get numbers
 * of their own, in whatever order. */
static uint64_t number_next(ls_runtime *runtime, ls__draw_place *place)
{
    const uint64_t round = runtime->draw_round << LS__DRAW_NUMBER_BITS;
    uint64_t seen = atomic_load_explicit(&place->drawn, memory_order_relaxed), mine;
    do {
        const bool current = (seen & ~NUMBER_MASK) == round;
        mine = current ? seen : round | (runtime->draw_first & NUMBER_MASK);
    } while (!atomic_compare_exchange_weak_explicit(&place->drawn, &seen, mine + 1,
                                                    memory_order_relaxed, memory_order_relaxed));
    note_number(runtime, mine & NUMBER_MASK);
    return mine & NUMBER_MASK;
}

/* The stream of a draw in this place, in this step. */
static uint64_t id_next(ls_runtime *runtime, ls__draw_place *place, ls__rng_use use)
{
    const uint64_t number = number_next(runtime, place);
    const uint64_t step = ls__splitmix64(runtime->step ^ ls__splitmix64(number));
    return ls__rng_id(use, ls__splitmix64(ls__place_path(place) ^ step));
}

void ls__draw_log_init(ls__draw_log *log, const ls_runtime *runtime)
{
    const ls__draw_log *replay = ls__self.replay;
    *log = (ls__draw_log){.seed = replay != NULL ? replay->seed : runtime->seed,
                          .sample_offset =
                              replay != NULL ? replay->sample_offset : runtime->sample_offset};
}

/* Room for one more: twice the memory when it is full. False without memory. */
static bool reserve(ls__draw_log *log, ls__tensors *tensors)
{
    const size_t used = (size_t)log->count * sizeof(ls__drawn);
    if (log->drawn != NULL && used < log->drawn->bytes) {
        return true;
    }
    ls__storage *grown =
        ls__storage_new(&tensors->host, used > 0 ? 2 * used : 32 * sizeof(ls__drawn));
    if (grown == NULL) {
        return false;
    }
    if (log->drawn != NULL) {
        memcpy(grown->data, log->drawn->data, used);
    }
    ls__storage_unref(log->drawn);
    log->drawn = grown;
    return true;
}

/* Every segment around the draw will run again, so each records it. */
static void record(ls__drawn drawn)
{
    for (ls__draw_log *log = ls__self.record; log != NULL; log = log->outer) {
        ls__tensors *tensors = ls__tensors_get("recompute");
        if (tensors == NULL || !reserve(log, tensors)) {
            log->status = ls__self.status;
            continue;
        }
        ((ls__drawn *)log->drawn->data)[log->count++] = drawn;
    }
}

/* What the first run drew at this point. A run that draws more than it is found out by its number
 * of draws. */
static ls__drawn draw_again(ls__draw_log *replay)
{
    const int64_t at = replay->next++;
    LS_ASSERT(at >= 0);
    return at < replay->count ? ((const ls__drawn *)replay->drawn->data)[at] : (ls__drawn){0};
}

void ls__draw_log_keep(int64_t *numbers, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = ls__self.replay != NULL ? (int64_t)draw_again(ls__self.replay).id : numbers[i];
        record((ls__drawn){.id = (uint64_t)numbers[i]});
    }
}

/* Where element `at` of this rank's `size` along a dimension is among those of the axis. */
static int64_t among(const ls__axis_in_force *axis, int place, int64_t at, int64_t size)
{
    const int64_t rank = axis->coordinate, chunk = size / 2;
    if (place >= LS__PLACED_SHARDED) {
        return rank * size + at;
    }
    return at < chunk ? rank * chunk + at : (2 * axis->size - 1 - rank) * chunk + at - chunk;
}

/* The size of the whole along dimension d, of which this rank has `own` elements, and where its
 * first and middle ones are there: those between follow each other. With several axes the last one
 * in the mesh is the inner one, but chunks of sequences are cut before all else. Dimension 0 along
 * axes of batches is left to the sample offset. */
static int64_t whole_along(const ls__axes_in_force *axes, uint32_t word, int d, int64_t own,
                           int64_t at[2])
{
    const int count = axes != NULL && word != 0 ? axes->count : 0;
    int64_t size = own;
    at[0] = 0;
    at[1] = own / 2;
    for (int i = 2 * count - 1; i >= 0; i--) {
        const ls__axis_in_force *axis = &axes->axis[i % count];
        const int place = ls__place_at(word, i % count);
        const bool in_turn = (place >= LS__PLACED_SHARDED) == (i >= count);
        if (in_turn && ls__place_dim(place) == d && (d > 0 || axis->batches == 0)) {
            at[0] = among(axis, place, at[0], size);
            at[1] = among(axis, place, at[1], size);
            size *= axis->size;
        }
    }
    return size;
}

/* Strides cannot tell two chunks, so for them parts in zigzag order are numbered as if they lay in
 * order: other masks than one process has, and none twice. */
static uint32_t in_order(uint32_t word)
{
    for (int a = 0; a < LS__AXES_MAX; a++) {
        const int place = ls__place_at(word, a), d = ls__place_dim(place);
        word = d >= 0 ? ls__place_with(word, a, LS__PLACED_SHARDED + d) : word;
    }
    return word;
}

/* `count` more runs of what the levels have so far; the first two without a gap are one level. */
static void add_level(ls__rng_stream *s, bool follows, int64_t count, int64_t stride)
{
    if (follows) {
        s->level[s->levels - 1].count *= count;
    } else {
        s->level[s->levels++] = (ls__rng_level){count, (uint64_t)stride};
    }
}

/* Levels and first element of a part, from its last dimension on. `offset`: in entries of dimension
 * 0. */
static void number_elements(ls__rng_stream *s, const ls_runtime *runtime, const ls__record *shape,
                            int64_t offset, int64_t *strides)
{
    const uint32_t word = strides == NULL ? shape->place : in_order(shape->place);
    int64_t stride = 1;
    bool follows = false; /* the level so far is whole */
    for (int d = shape->ndim - 1; d >= 0; d--) {
        const int64_t own = shape->dim[d];
        int64_t at[2];
        const int64_t whole = whole_along(runtime->axes, word, d, own, at);
        const bool halves = at[1] - at[0] != own / 2; /* two chunks of a sequence */
        s->first += (uint64_t)((at[0] + (d == 0 ? offset : 0)) * stride);
        if (strides != NULL) {
            strides[d] = stride;
        }
        add_level(s, follows, halves ? own / 2 : own, stride);
        if (halves) {
            add_level(s, false, 2, (at[1] - at[0]) * stride);
        }
        follows = whole == own;
        stride *= whole;
    }
    s->first += shape->ndim == 0 ? (uint64_t)offset : 0;
}

/* ---- captured steps -------------------------------------------------------------------------- */

static ls_status renew_id(const ls__captured_number *n, void *slot)
{
    const uint64_t id = id_next(ls__self.runtime, n->of, (ls__rng_use)n->which);
    memcpy(slot, &id, sizeof id);
    return LS_OK;
}

static void undo_id(const ls__captured_number *n)
{
    ls__draw_place *place = n->of;
    atomic_fetch_sub_explicit(&place->drawn, 1, memory_order_relaxed);
}

/* Where a captured step reads the stream of this draw; NULL: `id` holds. */
static const uint64_t *slot_of(ls__draw_place *place, ls__rng_use use, uint64_t id)
{
    if (use != LS__RNG_DROPOUT) {
        ls__captured_refuse("ls_rand and ls_randn, whose numbers would be those of every step");
        return NULL;
    }
    return ls__captured_number_add(
        &(ls__captured_number){
            .renew = renew_id, .undo = undo_id, .of = place, .which = (int64_t)use},
        &id, sizeof id);
}

static ls__drawn draw_next(ls_runtime *runtime, ls__draw_place *place, ls__rng_use use)
{
    ls__drawn drawn = {.id = id_next(runtime, place, use)};
    ls__captured_drew();
    if (LS__UNLIKELY(ls__self.captured != NULL)) {
        drawn.varies = slot_of(place, use, drawn.id);
    }
    return drawn;
}

ls__rng_stream ls__rng_stream_next(ls_runtime *runtime, ls__rng_use use, const ls__record *shape,
                                   int64_t *strides)
{
    ls__draw_log *replay = ls__self.replay;
    const int64_t offset = replay != NULL ? replay->sample_offset : runtime->sample_offset;
    ls__draw_place *place = ls__self.drawing != NULL ? ls__self.drawing : &runtime->outside;
    const ls__drawn drawn = replay != NULL ? draw_again(replay) : draw_next(runtime, place, use);
    ls__rng_stream stream = {.id = drawn.id,
                             .varies = drawn.varies,
                             .seed = replay != NULL ? replay->seed : runtime->seed};
    record(drawn);
    number_elements(&stream, runtime, shape, offset, strides);
    return stream;
}
