/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: where a rank is in its data, and the batches it hands out.
 *
 * The reader thread and its ring of buffers are in prefetch.h; here is the user's side. A seek
 * stops the reader, moves the position and lets the next batch start it again. Where rank 0 feeds
 * all, its slots hold the samples of all ranks, and the others have one slot and no reader
 * (scatter.h).
 *
 * Memory is allocated once. A batch's tensors are views of its slot, made once for the full size;
 * only the shorter batch at an epoch's end gets views of its own.
 */
#include <lockstep/data.h>
#include <lockstep/random.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/options.h"
#include "base/runtime.h"
#include "base/size.h"
#include "base/trace.h"
#include "data/dataset.h"
#include "data/prefetch.h"
#include "data/sample.h"
#include "data/scatter.h"
#include "tensor/across.h"

#define PREFETCH_MAX 1024

struct ls_loader {
    ls_dataset *dataset; /* borrowed, as the sampler is */
    ls_sampler *sampler;
    ls__scatter *scatter; /* NULL: this rank reads its own samples */
    ls__prefetch ring;
    int64_t batch; /* samples of a full batch of this rank */
    int64_t room;  /* samples that fit into a slot */

    int64_t epoch, position;    /* of the next batch; without a step there, the end is due */
    int64_t batches;            /* handed out so far: see Note [Numbers of batches] */
    bool held;                  /* the user holds a slot */
    int parts, part;            /* of a rank's batch: its shards; the one handed out last */
    ls_batch whole;             /* with parts: the batch that is held */
    ls__prefetch_slot *slot;    /* … where it lies, … */
    ls_step_context context;    /* … and its place in the global batch */
    ls_tensor *x_held, *y_held; /* as these tensors */
    ls_tensor *x_part, *y_part; /* views of a short batch, until the next call */
    ls_tensor *arrays[LS_SAMPLE_ARRAYS_MAX]; /* of a batch of arrays, likewise */
    int array_count;
    ls_status status; /* a failure stays until the next seek or load */
    char message[LS__MESSAGE_MAX];
};

/* Note [Numbers of batches]
 * Random operations draw from the stream of their step's number (ls_step_begin). A number computed
 * from the position, as (epoch * steps + step), would not do: after a load at another rank count
 * the same position is another step, and numbers of the past would come again, with the dropout
 * masks of then. So batches are counted, and the count is saved. */

/* ---- handing batches out ------------------------------------------------------------------- */

/* The slot of the batch at (l->epoch, l->position), with this rank's samples in it. When rank 0
 * feeds all and cannot read, the others get its error. */
static ls_status take_slot(ls_loader *l, ls__prefetch_slot **out)
{
    if (l->scatter == NULL) {
        return ls__prefetch_take(&l->ring, l->epoch, l->position, out);
    }
    *out = &l->ring.slots[0];
    if (ls__scatter_root(l->scatter)) {
        const ls_status status = ls__prefetch_take(&l->ring, l->epoch, l->position, out);
        if (status < 0) {
            char message[LS__MESSAGE_MAX];
            memcpy(message, ls__self.message, sizeof message);
            ls__scatter_abort(l->scatter, message);
            return ls__fail_again(status, message);
        }
    }
    return ls__scatter_run(l->scatter, l->position, (*out)->x, (*out)->y);
}

/* Ends the tensors of the last call, if it gave any. They count as changed, so that a graph that
 * saved them fails instead of computing gradients from other numbers. */
static void end_tensors(ls_loader *l)
{
    if (l->x_held != NULL) {
        ls__tensor_changed(l->x_held);
        ls__tensor_changed(l->y_held);
    }
    ls_free(l->x_part);
    ls_free(l->y_part);
    l->x_part = l->y_part = NULL;
    for (; l->array_count > 0; l->array_count--) {
        ls__tensor_changed(l->arrays[l->array_count - 1]);
        ls_free(l->arrays[l->array_count - 1]);
    }
}

static bool has_arrays(const ls_loader *l)
{
    return l->ring.samples != NULL;
}

/* Returns the slot that the user held to the reader, which overwrites it with another batch. */
static void release_slot(ls_loader *l)
{
    if (!l->held) {
        return;
    }
    end_tensors(l);
    l->held = false;
    l->part = 0;
    ls__prefetch_release(&l->ring);
}

/* [count, sample…] */
static ls_shape batched(int64_t count, ls_shape sample)
{
    ls_shape shape = {.ndim = sample.ndim + 1, .dim = {count}};
    memcpy(shape.dim + 1, sample.dim, (size_t)sample.ndim * sizeof sample.dim[0]);
    return shape;
}

/* Makes tensors over `count` samples of a slot; the caller frees both, also on failure. */
static ls_status view(const ls_loader *l, ls__prefetch_slot *at, int64_t first, int64_t count,
                      ls_tensor **x, ls_tensor **y)
{
    const ls_dataset *d = l->dataset;
    uint8_t *const xs = at->x + (size_t)first * l->ring.x_bytes;
    uint8_t *const ys = at->y + (size_t)first * l->ring.y_bytes;
    *x = ls_keep(ls_from_memory(xs, batched(count, d->x_shape), d->x_dtype));
    *y = ls_keep(ls_from_memory(ys, batched(count, d->y_shape), d->y_dtype));
    LS_TRY(ls_tensor_status(*x));
    return ls_tensor_status(*y);
}

/* Tensors over the arrays of the slot, or copies of them where tensors are made. */
static ls_status view_arrays(ls_loader *l, const ls__prefetch_slot *at)
{
    for (int i = 0; i < ls_sample_arrays(at->batch); i++) {
        LS_SCOPE;
        const ls_array *a = ls_sample_array(at->batch, i);
        l->arrays[i] = ls_keep(ls__tensor_to_made(ls_from_memory(a->data, a->shape, a->dtype)));
        l->array_count = i + 1;
        LS_TRY(ls_tensor_status(l->arrays[i]));
    }
    return LS_OK;
}

/* Brings the tensors of a batch to where tensors are made; those copies end with the batch. */
static ls_status bring(ls_loader *l, ls_batch *batch)
{
    LS_SCOPE;
    ls_tensor *const x = ls__tensor_to_made(batch->x), *const y = ls__tensor_to_made(batch->y);
    LS_TRY(ls_tensor_status(x));
    LS_TRY(ls_tensor_status(y));
    if (x != batch->x) {
        ls_free(l->x_part);
        batch->x = l->x_held = l->x_part = ls_keep(x);
    }
    if (y != batch->y) {
        ls_free(l->y_part);
        batch->y = l->y_held = l->y_part = ls_keep(y);
    }
    return LS_OK;
}

/* The tensors of a batch, which the loader holds. */
static ls_status view_batch(ls_loader *l, ls__prefetch_slot *at, ls_batch *batch)
{
    if (has_arrays(l)) {
        LS_TRY(view_arrays(l, at));
        batch->array_count = l->array_count;
        memcpy(batch->arrays, l->arrays, (size_t)l->array_count * sizeof batch->arrays[0]);
        batch->x = l->arrays[0];
        batch->y = l->array_count > 1 ? l->arrays[1] : NULL;
        return LS_OK;
    }
    l->x_held = at->x_full;
    l->y_held = at->y_full;
    if (batch->count != l->batch) {
        LS_TRY(view(l, at, 0, batch->count, &l->x_part, &l->y_part));
        l->x_held = l->x_part;
        l->y_held = l->y_part;
    }
    batch->x = l->x_held;
    batch->y = l->y_held;
    return LS_OK;
}

/* Hands out the step at the loader's position and moves past it. Dropout and other random functions
 * of this step draw from the stream of the batch's number, at the offset of this rank's samples in
 * the global batch. */
static ls_status deliver(ls_loader *l, ls_batch *batch)
{
    ls__prefetch_slot *at = NULL;
    LS_TRY(take_slot(l, &at));
    LS_ASSERT(!l->held && l->x_part == NULL && l->y_part == NULL);
    l->held = true;
    ls__sampler_span span = ls__sampler_span_at(l->sampler, l->position);
    *batch = (ls_batch){.size = sizeof *batch,
                        .count = span.count,
                        .global_count = span.global,
                        .epoch = l->epoch,
                        .step = ls__prefetch_step(&l->ring, l->position)};
    batch->last = ls__sampler_span_at(l->sampler, l->position + span.global).global == 0;
    LS_TRY(view_batch(l, at, batch));
    LS_TRY(l->parts == 1 && !has_arrays(l) ? bring(l, batch) : LS_OK);
    l->slot = at;
    l->context = (ls_step_context){.step = (uint64_t)l->batches++, .sample_offset = span.offset};
    batch->context = l->context;
    ls_step_begin(l->context);
    l->position += span.global;
    return LS_OK;
}

/* Hands out one of the parts of the batch that is held. All have the step's number, and each its
 * own place among the samples: random operations draw what they would for the whole batch. */
static ls_status deliver_part(ls_loader *l, ls_batch *batch)
{
    const int64_t count = l->batch / l->parts, first = l->part * count;
    LS_ASSERT(l->held && l->whole.count == l->batch);
    end_tensors(l);
    LS_TRY(view(l, l->slot, first, count, &l->x_part, &l->y_part));
    *batch = l->whole;
    batch->x = l->x_held = l->x_part;
    batch->y = l->y_held = l->y_part;
    LS_TRY(bring(l, batch));
    batch->count = count;
    batch->last = l->whole.last && l->part == l->parts - 1;
    batch->context = (ls_step_context){.step = l->context.step,
                                       .sample_offset = l->context.sample_offset + first};
    ls_step_begin(batch->context);
    return LS_OK;
}

/* The next batch of the rank, or its first part. */
static ls_status deliver_first(ls_loader *l, ls_batch *batch)
{
    LS_TRY(deliver(l, batch));
    if (l->parts == 1) {
        return LS_OK;
    }
    l->whole = *batch;
    return deliver_part(l, batch);
}

static bool in_parts(const ls_loader *l)
{
    return l->held && l->part + 1 < l->parts;
}

/* The error of a public call whose loader is NULL. */
static ls_status no_loader(const char *what)
{
    return ls__fail(LS_ERR_INVALID, "%s: the loader is NULL; check what ls_loader_new returned",
                    what);
}

/* Of the failure in l->status, for ls_loader_status. */
static void keep_message(ls_loader *l)
{
    (void)snprintf(l->message, sizeof l->message, "%s", ls_error_message());
}

/* False at the end of an epoch, once, and after a failure, until a seek or a load clears it. */
static bool advance(ls_loader *l, ls_batch *batch)
{
    if (l->status < 0) {
        (void)ls__fail_again(l->status, l->message);
        return false;
    }
    const bool more = in_parts(l);
    if (more) {
        l->part++;
    } else {
        release_slot(l);
    }
    if (!more && ls__sampler_span_at(l->sampler, l->position).global == 0) {
        l->position = 0;
        l->epoch++;
        return false;
    }
    ls__phase former = ls__activity_enter(LS__PHASE_DATA, "batch");
    const uint64_t traced = ls__trace_begin();
    l->status = more ? deliver_part(l, batch) : deliver_first(l, batch);
    ls__trace_end(traced, LS__TRACE_LOADER, "batch", NULL);
    ls__activity_leave(former);
    if (l->status < 0) {
        keep_message(l);
        *batch = (ls_batch){.size = sizeof *batch};
    }
    return l->status == LS_OK;
}

/* The former batch is invalid from here on. */
bool ls_loader_next(ls_loader *l, ls_batch *batch)
{
    if (l == NULL) {
        (void)no_loader("ls_loader_next");
        return false;
    }
    ls_batch next = {.size = sizeof next};
    /* Empty first: a batch whose size is impossible is refused before anything is taken. */
    const ls_status filled = ls__struct_fill(batch, &next, sizeof next, "ls_batch", __func__);
    if (filled < 0) {
        l->status = filled; /* a loop that looks at the end of epochs only would never end */
        keep_message(l);
        return false;
    }
    const bool more = advance(l, &next);
    if (more && next.array_count == 0) {
        next.array_count = 2;
        next.arrays[0] = next.x;
        next.arrays[1] = next.y;
    }
    return ls__struct_fill(batch, &next, sizeof next, "ls_batch", __func__) == LS_OK && more;
}

ls_status ls_loader_status(const ls_loader *loader)
{
    if (loader == NULL) {
        return no_loader("ls_loader_status");
    }
    return loader->status < 0 ? ls__fail_again(loader->status, loader->message) : LS_OK;
}

/* Moves to a position and clears a failure; batches that were read ahead are dropped. */
static ls_status go_to(ls_loader *l, int64_t epoch, int64_t position)
{
    LS_TRY(ls__prefetch_stop(&l->ring));
    release_slot(l);
    l->epoch = epoch;
    l->position = position;
    l->status = LS_OK;
    return LS_OK;
}

/* Steps are counted with this job's number of ranks. */
ls_status ls_loader_seek(ls_loader *l, int64_t epoch, int64_t step)
{
    if (l == NULL) {
        return no_loader("ls_loader_seek");
    }
    int64_t steps = ls_sampler_steps(l->sampler), count = ls__sampler_count(l->sampler);
    if (epoch < 0 || step < 0 || step > steps) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: seek to epoch %lld, step %lld: an epoch has "
                        "steps 0…%lld",
                        (long long)epoch, (long long)step, (long long)steps);
    }
    /* Behind the last step: the last may be short, so the product may pass the count. */
    int64_t position = step * ls__sampler_global_batch(l->sampler);
    LS_TRY(go_to(l, epoch, position < count ? position : count));
    l->batches = epoch * steps + step;
    return LS_OK;
}

/* Checks what a checkpoint gave. The position may lie anywhere in the epoch, because the job that
 * saved it may have had another number of ranks. */
static ls_status check_state(const ls_loader *l, int64_t epoch, int64_t position, int64_t batches,
                             int64_t count)
{
    const int64_t here = ls__sampler_count(l->sampler);
    if (count != here) {
        return ls__fail(LS_ERR_MISMATCH,
                        "loader: the saved position is in a data set of %lld samples, this one has "
                        "%lld; give the same data",
                        (long long)count, (long long)here);
    }
    if (epoch < 0 || position < 0 || position > here || batches < 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "loader: epoch %lld, sample %lld of %lld, batch %lld is not a "
                        "position; is it the state of another data set?",
                        (long long)epoch, (long long)position, (long long)here, (long long)batches);
    }
    return LS_OK;
}

/* Saving does not disturb the reader; after a load that changed the position or the seed it starts
 * again. */
ls_status ls_loader_state(ls_loader *l, const char *prefix, const ls_state_visitor *visitor)
{
    if (l == NULL) {
        return no_loader("ls_loader_state");
    }
    LS_TRY(ls__visitor_check(visitor, __func__));
    if (in_parts(l)) {
        return ls__fail(LS_ERR_STATE,
                        "loader: %d of this rank's %d shards of the step were handed out; save and "
                        "load between steps",
                        l->part + 1, l->parts);
    }
    int64_t epoch = l->epoch, position = l->position, seed = (int64_t)ls__sampler_seed(l->sampler);
    int64_t count = ls__sampler_count(l->sampler), batches = l->batches;
    struct {
        const char *name;
        int64_t *value;
    } field[] = {{"epoch", &epoch},
                 {"sample", &position},
                 {"seed", &seed},
                 {"count", &count},
                 {"batches", &batches}};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) {
        char name[256];
        int length = snprintf(name, sizeof name, "%s%s%s", prefix ? prefix : "",
                              prefix && *prefix ? "." : "", field[i].name);
        if (length < 0 || (size_t)length >= sizeof name) {
            return ls__fail(LS_ERR_LIMIT,
                            "loader: the state prefix \"%.80s\" is too long; give a shorter one",
                            prefix);
        }
        LS_TRY(ls__visit_int64(visitor, name, field[i].value));
    }
    LS_TRY(check_state(l, epoch, position, batches, count));
    l->batches = batches;
    if (epoch == l->epoch && position == l->position &&
        (uint64_t)seed == ls__sampler_seed(l->sampler)) {
        return LS_OK;
    }
    LS_TRY(go_to(l, epoch, position));
    ls__sampler_set_seed(l->sampler, (uint64_t)seed);
    return LS_OK;
}

/* ---- making ------------------------------------------------------------------------------- */

/* Bytes of one sample and of `batch` of them. */
static ls_status sample_bytes(const char *name, ls_shape shape, ls_dtype dtype, int64_t batch,
                              size_t *one, size_t *all)
{
    int64_t count = 1;
    bool fits = true;
    if (shape.ndim < 0 || shape.ndim >= LS_DIMS_MAX) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: samples of the data set's %s have %d dimensions and a batch has "
                        "one more; give samples of 0 to %d",
                        name, shape.ndim, LS_DIMS_MAX - 1);
    }
    for (int i = 0; fits && i < shape.ndim; i++) {
        fits = ls__mul_int64(count, shape.dim[i], &count);
    }
    if (!fits || !ls__bytes_of(count, ls_dtype_size(dtype), one) ||
        !ls__mul_size(*one, (size_t)batch, all)) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: a batch of %lld samples of the data set's %s is too large for "
                        "memory; give a smaller batch",
                        (long long)batch, name);
    }
    return LS_OK;
}

/* Of a scattering loader, memory from which the other ranks of the host can read. */
static bool make_memory(const ls_loader *l, size_t bytes, uint8_t **out)
{
    if (l->scatter != NULL) {
        return ls__scatter_alloc(l->scatter, bytes > 0 ? bytes : 1, out) == LS_OK;
    }
    *out = calloc(1, bytes > 0 ? bytes : 1);
    return *out != NULL;
}

/* The inverse of make_memory. */
static void free_memory(const ls_loader *l, uint8_t *memory)
{
    if (l->scatter != NULL) {
        ls__scatter_dealloc(l->scatter, memory);
    } else {
        free(memory);
    }
}

/* Of a data set with arrays, whose memory grows as samples come. */
static ls_status make_array_slots(ls_loader *l)
{
    l->ring.slots = calloc((size_t)l->ring.slot_count, sizeof *l->ring.slots);
    l->ring.indices = calloc((size_t)l->room, sizeof *l->ring.indices);
    l->ring.samples = calloc((size_t)l->room, sizeof *l->ring.samples);
    if (l->ring.slots == NULL || l->ring.indices == NULL || l->ring.samples == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory for batches of %lld samples",
                        (long long)l->room);
    }
    for (int64_t i = 0; i < l->room; i++) {
        LS_TRY((l->ring.samples[i] = ls__sample_new()) != NULL ? LS_OK : LS_ERR_MEMORY);
    }
    for (int i = 0; i < l->ring.slot_count; i++) {
        LS_TRY((l->ring.slots[i].batch = ls__sample_new()) != NULL ? LS_OK : LS_ERR_MEMORY);
    }
    return LS_OK;
}

/* Allocates everything a batch needs. On failure ls_loader_free releases what was made. Collective
 * when rank 0 feeds all. */
static ls_status make_slots(ls_loader *l, ls_feed feed)
{
    const ls_dataset *d = l->dataset;
    size_t x_all = 0, y_all = 0;
    if (ls__dataset_has_arrays(d)) {
        return make_array_slots(l);
    }
    LS_TRY(sample_bytes("x", d->x_shape, d->x_dtype, l->room, &l->ring.x_bytes, &x_all));
    LS_TRY(sample_bytes("y", d->y_shape, d->y_dtype, l->room, &l->ring.y_bytes, &y_all));
    if (feed == LS_FEED_SCATTER) {
        LS_TRY(ls__scatter_new(d, l->sampler, &l->scatter));
    }
    l->ring.slots = calloc((size_t)l->ring.slot_count, sizeof *l->ring.slots);
    l->ring.indices = calloc((size_t)l->room, sizeof *l->ring.indices);
    bool have = l->ring.slots != NULL && l->ring.indices != NULL;
    for (int i = 0; have && i < l->ring.slot_count; i++) {
        have = make_memory(l, x_all, &l->ring.slots[i].x) &&
               make_memory(l, y_all, &l->ring.slots[i].y);
    }
    if (!have) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory for %d batches of %zu bytes",
                        l->ring.slot_count, x_all + y_all);
    }
    for (int i = 0; i < l->ring.slot_count; i++) {
        LS_TRY(view(l, &l->ring.slots[i], 0, l->batch, &l->ring.slots[i].x_full,
                    &l->ring.slots[i].y_full));
    }
    return LS_OK;
}

/* A shared feed without shuffling would give every rank the same samples. */
static ls_status check_feed(ls_feed feed, const ls_sampler *sampler)
{
    if (feed != LS_FEED_SPLIT && feed != LS_FEED_SHARED && feed != LS_FEED_SCATTER) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: feed %d is not valid; give LS_FEED_SPLIT, LS_FEED_SHARED or "
                        "LS_FEED_SCATTER",
                        (int)feed);
    }
    if (feed == LS_FEED_SHARED && !ls__sampler_shuffles(sampler)) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: LS_FEED_SHARED gives each rank a shuffle of its own, but the "
                        "sampler does not shuffle; make it with .shuffle = true");
    }
    return LS_OK;
}

/* All shards of all steps have equally many samples, and belong to the ranks in their order. */
static ls_status check_shards(int shards, ls_feed feed, const ls_sampler *sampler)
{
    const int ranks = ls__sampler_ranks(sampler);
    if (shards == 0) {
        return LS_OK;
    }
    if (shards < 0 || shards % ranks != 0 || ls__sampler_batch(sampler) % (shards / ranks) != 0) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: a step of %d ranks x %lld samples cannot be divided into %d equal "
                        "shards that belong to one rank each; give a multiple of the ranks, and a "
                        "batch that is a multiple of shards/ranks",
                        ranks, (long long)ls__sampler_batch(sampler), shards);
    }
    if (!ls__sampler_even(sampler)) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: the last step of an epoch has fewer samples, so its shards would "
                        "not be equal; make the sampler with .drop_last = true");
    }
    if (feed == LS_FEED_SHARED) {
        return ls__fail(LS_ERR_INVALID,
                        "loader: LS_FEED_SHARED gives each rank a shuffle of its own, so shards "
                        "would depend on the ranks; give LS_FEED_SPLIT or LS_FEED_SCATTER");
    }
    return LS_OK;
}

static ls_status check_new(const ls_dataset *dataset, const ls_sampler *sampler,
                           const ls_loader_options *given)
{
    if (dataset == NULL || sampler == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "loader: a data set and a sampler are needed; check what their constructors returned");
    }
    LS_TRY(ls__dataset_check_size(dataset, "ls_loader_new"));
    if (given->prefetch < 0 || given->prefetch > PREFETCH_MAX) {
        return ls__fail(LS_ERR_INVALID, "loader: prefetch is %d; it must be in 0…%d",
                        given->prefetch, PREFETCH_MAX);
    }
    LS_TRY(check_feed(given->feed, sampler));
    if (ls__dataset_has_arrays(dataset) && (given->feed == LS_FEED_SCATTER || given->shards > 0)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "loader: the samples are arrays of any shape (get_sample), and are neither "
                        "scattered nor divided into shards; give LS_FEED_SPLIT without shards");
    }
    if (ls__sampler_has_shares(sampler) && (given->feed != LS_FEED_SPLIT || given->shards > 0)) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "loader: the sampler gives the ranks different numbers of samples "
                        "(batches), which is for LS_FEED_SPLIT without shards");
    }
    return check_shards(given->shards, given->feed, sampler);
}

/* A rank that is fed by rank 0 neither reads nor needs more than one slot. */
static void set_up(ls_loader *l, ls_dataset *dataset, ls_sampler *sampler,
                   const ls_loader_options *given)
{
    const bool scatter = given->feed == LS_FEED_SCATTER, fed = scatter && ls_rank() != 0;
    l->dataset = dataset;
    l->sampler = sampler;
    l->parts = given->shards > 0 ? given->shards / ls__sampler_ranks(sampler) : 1;
    l->batch = ls__sampler_batch(sampler);
    l->room = scatter && !fed ? ls__sampler_global_batch(sampler) : l->batch;
    l->ring.dataset = dataset;
    l->ring.sampler = sampler;
    l->ring.order = given->feed == LS_FEED_SHARED ? LS__SAMPLER_OWN : LS__SAMPLER_COMMON;
    l->ring.all_ranks = scatter;
    l->ring.threaded = given->prefetch > 0 && !fed;
    l->ring.slot_count = fed ? 1 : given->prefetch + 1;
}

static ls_status make_loader(ls_dataset *dataset, ls_sampler *sampler,
                             const ls_loader_options *given, ls_loader **out)
{
    ls_runtime *runtime = ls__runtime_get("ls_loader_new");
    if (runtime == NULL) {
        return ls__self.status;
    }
    LS_TRY(check_new(dataset, sampler, given));
    ls_loader *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory");
    }
    set_up(l, dataset, sampler, given);
    l->ring.runtime = runtime;
    l->ring.env = runtime->env;
    const ls_status status = make_slots(l, given->feed);
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls__self.message, sizeof message);
        if (l->scatter != NULL) {
            ls__scatter_abort(l->scatter, message);
        }
        ls_loader_free(l);
        return ls__fail_again(status, message);
    }
    if (given->feed == LS_FEED_SHARED && ls__sampler_of_job(sampler)) {
        ls__config_note(NULL, "loader", "", "LS_FEED_SHARED");
    }
    *out = l;
    return LS_OK;
}

ls_loader *ls_loader_new(ls_dataset *dataset, ls_sampler *sampler, const ls_loader_options *options)
{
    LS__OPTIONS_OR(NULL, ls_loader_options, given, options);
    ls_loader *made = NULL;
    return make_loader(dataset, sampler, &given, &made) == LS_OK ? made : NULL;
}

/* The reader is stopped first, because it writes into the slots; one that hangs keeps them, and the
 * data set. Data set and sampler stay the caller's. */
void ls_loader_free(ls_loader *l)
{
    if (l == NULL) {
        return;
    }
    if (ls__prefetch_stop(&l->ring) < 0) {
        LS__WARN("ls_loader_free: %s; the loader and its data set are not freed",
                 ls_error_message());
        ls__dataset_keep(l->dataset);
        return;
    }
    release_slot(l);
    for (int i = 0; l->ring.slots != NULL && i < l->ring.slot_count; i++) {
        ls_free(l->ring.slots[i].x_full);
        ls_free(l->ring.slots[i].y_full);
        ls__sample_free(l->ring.slots[i].batch);
        free_memory(l, l->ring.slots[i].x);
        free_memory(l, l->ring.slots[i].y);
    }
    for (int64_t i = 0; l->ring.samples != NULL && i < l->room; i++) {
        ls__sample_free(l->ring.samples[i]);
    }
    free(l->ring.samples);
    free(l->ring.slots);
    free(l->ring.indices);
    ls__scatter_free(l->scatter);
    free(l);
}
