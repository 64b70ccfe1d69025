/* Streams of random operations; the idea is in base/draws.h. */
#include "tensor/rng_stream.h"

#include <string.h>

#include "base/assert.h"
#include "base/splitmix64.h"
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
static uint64_t id_next(ls_runtime *runtime, ls__rng_use use)
{
    ls__draw_place *place = ls__self.drawing != NULL ? ls__self.drawing : &runtime->outside;
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
    const size_t used = (size_t)log->count * sizeof(uint64_t);
    if (log->ids != NULL && used < log->ids->bytes) {
        return true;
    }
    ls__storage *grown =
        ls__storage_new(&tensors->host, used > 0 ? 2 * used : 32 * sizeof(uint64_t));
    if (grown == NULL) {
        return false;
    }
    if (log->ids != NULL) {
        memcpy(grown->data, log->ids->data, used);
    }
    ls__storage_unref(log->ids);
    log->ids = grown;
    return true;
}

/* Every segment around the draw will run again, so each records it. */
static void record(uint64_t id)
{
    for (ls__draw_log *log = ls__self.record; log != NULL; log = log->outer) {
        ls__tensors *tensors = ls__tensors_get("recompute");
        if (tensors == NULL || !reserve(log, tensors)) {
            log->status = ls__self.status;
            continue;
        }
        ((uint64_t *)log->ids->data)[log->count++] = id;
    }
}

/* What the first run drew at this point. A run that draws more than it is found out by its number
 * of draws. */
static uint64_t id_again(ls__draw_log *replay)
{
    const int64_t at = replay->next++;
    LS_ASSERT(at >= 0);
    return at < replay->count ? ((const uint64_t *)replay->ids->data)[at] : 0;
}

/* Parts along dimension d, and which this rank has. Those of dimension 0 along axes of batches are
 * left to the sample offset. With several axes the first in the mesh is the outer one. Zigzag parts
 * are numbered as if they lay in order: other masks than one process has, and none twice. */
static void parts_along(const ls__axes_in_force *axes, uint32_t word, int d, int64_t *parts,
                        int64_t *part)
{
    *parts = 1;
    *part = 0;
    for (int a = 0; axes != NULL && word != 0 && a < axes->count; a++) {
        const ls__axis_in_force *axis = &axes->axis[a];
        if (ls__place_dim(ls__place_at(word, a)) == d && (d > 0 || axis->batches == 0)) {
            *part = *part * axis->size + axis->coordinate;
            *parts *= axis->size;
        }
    }
}

/* Levels and first element of a part, from its last dimension on. `offset`: in entries of dimension
 * 0. */
static void number_elements(ls__rng_stream *s, const ls_runtime *runtime, const ls__record *shape,
                            int64_t offset, int64_t *strides)
{
    int64_t stride = 1;
    bool follows = false; /* the level so far is whole */
    for (int d = shape->ndim - 1; d >= 0; d--) {
        int64_t parts, part;
        parts_along(runtime->axes, shape->place, d, &parts, &part);
        const int64_t first = part * shape->dim[d] + (d == 0 ? offset : 0);
        s->first += (uint64_t)(first * stride);
        if (strides != NULL) {
            strides[d] = stride;
        }
        if (!follows) {
            s->level[s->levels++] = (ls__rng_level){shape->dim[d], (uint64_t)stride};
        } else {
            s->level[s->levels - 1].count *= shape->dim[d];
        }
        follows = parts == 1;
        stride *= shape->dim[d] * parts;
    }
    s->first += shape->ndim == 0 ? (uint64_t)offset : 0;
}

ls__rng_stream ls__rng_stream_next(ls_runtime *runtime, ls__rng_use use, const ls__record *shape,
                                   int64_t *strides)
{
    ls__draw_log *replay = ls__self.replay;
    const int64_t offset = replay != NULL ? replay->sample_offset : runtime->sample_offset;
    ls__rng_stream stream = {.id = replay != NULL ? id_again(replay) : id_next(runtime, use),
                             .seed = replay != NULL ? replay->seed : runtime->seed};
    record(stream.id);
    number_elements(&stream, runtime, shape, offset, strides);
    return stream;
}
