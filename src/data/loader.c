/* The loader: batches read ahead by a thread of its own into a ring of buffers.
 *
 *          reader --filled--> [slot][slot][slot] --taken--> the user's thread
 *                  <--free-------------------------
 *
 * There is one slot more than `prefetch`: the one whose batch the user holds. The reader walks
 * (epoch, position) on its own (Note [Positions] in sampler.h); the user's side walks the same
 * sequence and so knows which slot is which. Both counters only grow; each side sleeps on its own
 * event word. A seek stops the reader, moves the position and starts it again. With prefetch 0
 * there is no thread and one slot. Where rank 0 feeds all, its slots hold the samples of all ranks,
 * and the others have one slot and no reader (scatter.h).
 *
 * Memory is taken once. A batch's tensors are views of its slot, made once for the full size; only
 * the shorter batch at an epoch's end gets views of its own.
 */
#include <lockstep/data.h>
#include <lockstep/random.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/runtime.h"
#include "base/size.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/scatter.h"
#include "tensor/tensor.h"

#define PREFETCH_MAX 1024

typedef struct slot {
    uint8_t *x, *y;
    ls_tensor *x_full, *y_full; /* views of all `batch` samples */
    ls_status status;           /* of reading it */
    char message[LS__MESSAGE_MAX];
} slot;

struct ls_loader {
    ls_dataset *dataset;
    ls_sampler *sampler;
    ls_runtime *runtime;
    const ls__env *env;
    ls_feed feed;
    ls__scatter *scatter; /* NULL: this rank reads what it gets */
    int64_t batch;
    int64_t room;            /* samples a slot has place for */
    size_t x_bytes, y_bytes; /* of one sample */

    slot *slots;
    int slot_count;
    int64_t *indices; /* [room] Sync: owned by the reader while it runs */

    int64_t epoch, position;    /* of the next batch; without a step there, the end is due */
    int64_t batches;            /* handed out so far: see Note [Numbers of batches] */
    bool held;                  /* the user holds a slot */
    ls_tensor *x_held, *y_held; /* as these tensors */
    ls_tensor *x_part, *y_part; /* views of a short batch, until the next call */
    ls_status status;
    char message[LS__MESSAGE_MAX];

    bool threaded;
    ls__env_thread *reader;                /* NULL: not running */
    int64_t reader_epoch, reader_position; /* Sync: owned by the reader while it runs */
    _Atomic uint32_t filled; /* Sync: release by the reader, acquire by the user's thread */
    _Atomic uint32_t freed;  /* Sync: release by the user's thread, acquire by the reader */
    _Atomic uint32_t stop;   /* Sync: release by the user's thread, acquire by the reader */
    _Atomic uint32_t filled_event, freed_event; /* Sync: bumped after a change, parked on */
};

/* Note [Numbers of batches]
 * Random operations draw from the stream of their step's number (ls_step_begin). A number computed
 * from the position, as (epoch * steps + step), would not do: after a load at another rank count
 * the same position is another step, and numbers of the past would come again, with the dropout
 * masks of then. So batches are counted, and the count is saved. */

/* ---- reading one batch -------------------------------------------------------------------- */

static int64_t step_at(const ls_loader *l, int64_t position)
{
    return position / ls__sampler_global_batch(l->sampler);
}

/* Goes on behind a step; where the epoch has no step left, to the next epoch. */
static void next_position(const ls_loader *l, int64_t *epoch, int64_t *position)
{
    *position += ls__sampler_span_at(l->sampler, *position).global;
    if (ls__sampler_span_at(l->sampler, *position).global == 0) {
        *position = 0;
        ++*epoch;
    }
}

static void read_batch(ls_loader *l, slot *at, int64_t epoch, int64_t position)
{
    const ls__sampler_span span = ls__sampler_span_at(l->sampler, position);
    /* Rank 0 reads for all: the blocks of the ranks follow each other. */
    const int64_t count = l->scatter ? span.global : span.count;
    const ls__sampler_order order =
        l->feed == LS_FEED_SHARED ? LS__SAMPLER_OWN : LS__SAMPLER_COMMON;
    at->status = LS_OK;
    ls__sampler_read(l->sampler, order, epoch, span.first, count, l->indices);
    for (int64_t i = 0; i < count; i++) {
        at->status =
            ls__dataset_get(l->dataset, epoch, l->indices[i], at->x + (size_t)i * l->x_bytes,
                            at->y + (size_t)i * l->y_bytes);
        if (at->status < 0) {
            (void)snprintf(at->message, sizeof at->message, "loader: epoch %lld, step %lld: %s",
                           (long long)epoch, (long long)step_at(l, position), ls_error_message());
            return;
        }
    }
}

/* ---- the reader's thread ------------------------------------------------------------------ */

static bool reader_may_fill(const ls_loader *l)
{
    uint32_t filled = atomic_load_explicit(&l->filled, memory_order_relaxed); /* its own */
    uint32_t freed = atomic_load_explicit(&l->freed, memory_order_acquire);   /* release_slot */
    return filled - freed < (uint32_t)l->slot_count;
}

static bool reader_wait(ls_loader *l)
{
    for (;;) {
        uint32_t event = atomic_load_explicit(&l->freed_event, memory_order_acquire);
        if (atomic_load_explicit(&l->stop, memory_order_acquire)) {
            return false;
        }
        if (reader_may_fill(l)) {
            return true;
        }
        (void)l->env->park(l->env, &l->freed_event, event, LS__NEVER);
    }
}

static void signal_event(const ls_loader *l, _Atomic uint32_t *event)
{
    atomic_fetch_add_explicit(event, 1, memory_order_release);
    l->env->wake(l->env, event, 1);
}

static void reader_run(void *arg)
{
    ls_loader *l = arg;
    ls__runtime_attach_background(l->runtime);
    bool failed = false;
    while (!failed && reader_wait(l)) {
        uint32_t filled = atomic_load_explicit(&l->filled, memory_order_relaxed);
        slot *at = &l->slots[filled % (uint32_t)l->slot_count];
        read_batch(l, at, l->reader_epoch, l->reader_position);
        failed = at->status < 0;
        next_position(l, &l->reader_epoch, &l->reader_position);
        atomic_store_explicit(&l->filled, filled + 1, memory_order_release);
        signal_event(l, &l->filled_event);
    }
    (void)ls_runtime_attach(NULL);
}

static void reader_stop(ls_loader *l)
{
    if (!l->reader) {
        return;
    }
    atomic_store_explicit(&l->stop, 1, memory_order_release);
    signal_event(l, &l->freed_event);
    l->env->thread_join(l->env, l->reader);
    l->reader = NULL;
}

static ls_status reader_start(ls_loader *l)
{
    atomic_store_explicit(&l->stop, 0, memory_order_relaxed);
    atomic_store_explicit(&l->filled, 0, memory_order_relaxed);
    atomic_store_explicit(&l->freed, 0, memory_order_relaxed);
    l->reader_epoch = l->epoch;
    l->reader_position = l->position;
    int error = l->env->thread_start(l->env, "ls-loader", reader_run, l, &l->reader);
    if (error < 0) {
        l->reader = NULL;
        return ls__fail(LS_ERR_SYSTEM,
                        "loader: no thread could be started: %s; prefetch = 0 "
                        "needs none",
                        strerror(-error));
    }
    return LS_OK;
}

/* ---- the user's side ---------------------------------------------------------------------- */

static ls_status wait_filled(ls_loader *l, uint32_t freed)
{
    uint64_t deadline = ls__deadline_after(l->env, l->runtime->timeout_ms);
    for (;;) {
        uint32_t event = atomic_load_explicit(&l->filled_event, memory_order_acquire);
        if (atomic_load_explicit(&l->filled, memory_order_acquire) != freed) {
            return LS_OK;
        }
        if (l->env->now_ns(l->env) >= deadline) {
            return ls__fail(LS_ERR_TIMEOUT,
                            "loader: epoch %lld, step %lld: the data set gave no batch for %lld "
                            "ms; look at its get function, or raise LOCKSTEP_TIMEOUT",
                            (long long)l->epoch, (long long)step_at(l, l->position),
                            (long long)l->runtime->timeout_ms);
        }
        (void)l->env->park(l->env, &l->filled_event, event, deadline);
    }
}

/* The slot of the batch at (l->epoch, l->position), read or awaited. */
static ls_status read_slot(ls_loader *l, slot **out)
{
    uint32_t freed = 0;
    if (l->threaded) {
        if (!l->reader) {
            LS_TRY(reader_start(l));
        }
        freed = atomic_load_explicit(&l->freed, memory_order_relaxed); /* our own */
        LS_TRY(wait_filled(l, freed));
    } else {
        read_batch(l, &l->slots[0], l->epoch, l->position);
    }
    slot *at = &l->slots[freed % (uint32_t)l->slot_count];
    if (at->status < 0) {
        return ls__fail_again(at->status, at->message);
    }
    *out = at;
    return LS_OK;
}

/* The same, with this rank's samples in it. */
static ls_status take_slot(ls_loader *l, slot **out)
{
    if (!l->scatter) {
        return read_slot(l, out);
    }
    *out = &l->slots[0];
    if (ls__scatter_root(l->scatter)) {
        ls_status status = read_slot(l, out);
        if (status < 0) {
            char message[LS__MESSAGE_MAX];
            memcpy(message, ls__self.message, sizeof message);
            ls__scatter_abort(l->scatter, message);
            return ls__fail_again(status, message);
        }
    }
    return ls__scatter_run(l->scatter, l->position, (*out)->x, (*out)->y);
}

/* What the user held goes back to the reader, and will be another batch: a graph that saved it is
 * told so, lest its gradients be computed from that. */
static void release_slot(ls_loader *l)
{
    if (!l->held) {
        return;
    }
    ls__tensor_changed(l->x_held);
    ls__tensor_changed(l->y_held);
    ls_free(l->x_part);
    ls_free(l->y_part);
    l->x_part = l->y_part = NULL;
    l->held = false;
    if (l->reader) {
        atomic_fetch_add_explicit(&l->freed, 1, memory_order_release); /* reader_may_fill */
        signal_event(l, &l->freed_event);
    }
}

static ls_shape batched(int64_t count, ls_shape sample)
{
    ls_shape shape = {.ndim = sample.ndim + 1, .dim = {count}};
    memcpy(shape.dim + 1, sample.dim, (size_t)sample.ndim * sizeof sample.dim[0]);
    return shape;
}

static ls_status view(const ls_loader *l, slot *at, int64_t count, ls_tensor **x, ls_tensor **y)
{
    const ls_dataset *d = l->dataset;
    *x = ls_keep(ls_from_memory(at->x, batched(count, d->x_shape), d->x_dtype));
    *y = ls_keep(ls_from_memory(at->y, batched(count, d->y_shape), d->y_dtype));
    LS_TRY(ls_tensor_status(*x));
    return ls_tensor_status(*y);
}

static ls_status deliver(ls_loader *l, ls_batch *batch)
{
    slot *at = NULL;
    LS_TRY(take_slot(l, &at));
    l->held = true;
    l->x_held = at->x_full;
    l->y_held = at->y_full;
    ls__sampler_span span = ls__sampler_span_at(l->sampler, l->position);
    *batch = (ls_batch){.size = sizeof *batch,
                        .x = at->x_full,
                        .y = at->y_full,
                        .count = span.count,
                        .global_count = span.global,
                        .epoch = l->epoch,
                        .step = step_at(l, l->position)};
    batch->last = ls__sampler_span_at(l->sampler, l->position + span.global).global == 0;
    if (span.count != l->batch) {
        LS_TRY(view(l, at, span.count, &l->x_part, &l->y_part));
        batch->x = l->x_held = l->x_part;
        batch->y = l->y_held = l->y_part;
    }
    ls_step_begin((ls_step_context){.step = (uint64_t)l->batches++, .sample_offset = span.offset});
    l->position += span.global;
    return LS_OK;
}

static ls_status no_loader(const char *what)
{
    return ls__fail(LS_ERR_INVALID, "%s: the loader is NULL; check what ls_loader_new returned",
                    what);
}

static bool advance(ls_loader *l, ls_batch *batch)
{
    if (l->status < 0) {
        (void)ls__fail_again(l->status, l->message);
        return false;
    }
    release_slot(l);
    if (ls__sampler_span_at(l->sampler, l->position).global == 0) {
        l->position = 0;
        l->epoch++;
        return false;
    }
    ls__phase former = ls__activity_enter(LS__PHASE_DATA, "batch");
    l->status = deliver(l, batch);
    ls__activity_leave(former);
    if (l->status < 0) {
        (void)snprintf(l->message, sizeof l->message, "%s", ls_error_message());
        *batch = (ls_batch){.size = sizeof *batch};
    }
    return l->status == LS_OK;
}

bool ls_loader_next(ls_loader *l, ls_batch *batch)
{
    if (l == NULL) {
        (void)no_loader("ls_loader_next");
        return false;
    }
    ls_batch next = {.size = sizeof next};
    /* Empty first: a batch whose size is impossible is refused before anything is taken. */
    if (ls__struct_fill(batch, &next, sizeof next, "ls_batch", __func__) != LS_OK) {
        return false;
    }
    const bool more = advance(l, &next);
    return ls__struct_fill(batch, &next, sizeof next, "ls_batch", __func__) == LS_OK && more;
}

ls_status ls_loader_status(const ls_loader *loader)
{
    if (loader == NULL) {
        return no_loader("ls_loader_status");
    }
    return loader->status < 0 ? ls__fail_again(loader->status, loader->message) : LS_OK;
}

static void go_to(ls_loader *l, int64_t epoch, int64_t position)
{
    reader_stop(l);
    release_slot(l);
    l->epoch = epoch;
    l->position = position;
    l->status = LS_OK;
}

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
    go_to(l, epoch, position < count ? position : count);
    l->batches = epoch * steps + step;
    return LS_OK;
}

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
                        "loader: epoch %lld, sample %lld of %lld, batch %lld is not a position",
                        (long long)epoch, (long long)position, (long long)here, (long long)batches);
    }
    return LS_OK;
}

/* Saving leaves the reader alone; a loading visitor that changed anything makes it start anew. */
ls_status ls_loader_state(ls_loader *l, const char *prefix, const ls_state_visitor *visitor)
{
    if (l == NULL) {
        return no_loader("ls_loader_state");
    }
    LS_TRY(ls__visitor_check(visitor, __func__));
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
        LS_TRY(visitor->int64(visitor->self, name, field[i].value));
    }
    LS_TRY(check_state(l, epoch, position, batches, count));
    l->batches = batches;
    if (epoch == l->epoch && position == l->position &&
        (uint64_t)seed == ls__sampler_seed(l->sampler)) {
        return LS_OK;
    }
    go_to(l, epoch, position);
    ls__sampler_set_seed(l->sampler, (uint64_t)seed);
    return LS_OK;
}

/* ---- making ------------------------------------------------------------------------------- */

static ls_status sample_bytes(const char *name, ls_shape shape, ls_dtype dtype, int64_t batch,
                              size_t *one, size_t *all)
{
    int64_t count = 1;
    bool fits = shape.ndim >= 0 && shape.ndim < LS_DIMS_MAX;
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

static bool make_memory(const ls_loader *l, size_t bytes, uint8_t **out)
{
    if (l->scatter) {
        return ls__scatter_alloc(l->scatter, bytes ? bytes : 1, out) == LS_OK;
    }
    *out = calloc(1, bytes ? bytes : 1);
    return *out != NULL;
}

static void free_memory(const ls_loader *l, uint8_t *memory)
{
    if (l->scatter) {
        ls__scatter_dealloc(l->scatter, memory);
    } else {
        free(memory);
    }
}

static ls_status make_slots(ls_loader *l)
{
    const ls_dataset *d = l->dataset;
    size_t x_all = 0, y_all = 0;
    LS_TRY(sample_bytes("x", d->x_shape, d->x_dtype, l->room, &l->x_bytes, &x_all));
    LS_TRY(sample_bytes("y", d->y_shape, d->y_dtype, l->room, &l->y_bytes, &y_all));
    if (l->feed == LS_FEED_SCATTER) {
        LS_TRY(ls__scatter_new(d, l->sampler, &l->scatter));
    }
    l->slots = calloc((size_t)l->slot_count, sizeof *l->slots);
    l->indices = calloc((size_t)l->room, sizeof *l->indices);
    bool have = l->slots && l->indices;
    for (int i = 0; have && i < l->slot_count; i++) {
        have = make_memory(l, x_all, &l->slots[i].x) && make_memory(l, y_all, &l->slots[i].y);
    }
    if (!have) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory for %d batches of %zu bytes",
                        l->slot_count, x_all + y_all);
    }
    for (int i = 0; i < l->slot_count; i++) {
        LS_TRY(view(l, &l->slots[i], l->batch, &l->slots[i].x_full, &l->slots[i].y_full));
    }
    return LS_OK;
}

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

static ls_status make(ls_dataset *dataset, ls_sampler *sampler, const ls_loader_options *given,
                      ls_loader **out)
{
    ls_runtime *runtime = ls__runtime_get("ls_loader_new");
    if (runtime == NULL) {
        return ls__self.status;
    }
    if (dataset == NULL || sampler == NULL) {
        return ls__fail(
            LS_ERR_INVALID,
            "loader: a data set and a sampler are needed; check what their constructors returned");
    }
    if (given->prefetch < 0 || given->prefetch > PREFETCH_MAX) {
        return ls__fail(LS_ERR_INVALID, "loader: prefetch is %d; it must be in 0…%d",
                        given->prefetch, PREFETCH_MAX);
    }
    LS_TRY(check_feed(given->feed, sampler));
    ls_loader *l = calloc(1, sizeof *l);
    if (l == NULL) {
        return ls__fail(LS_ERR_MEMORY, "loader: no memory");
    }
    const bool scatter = given->feed == LS_FEED_SCATTER, fed = scatter && ls_rank() != 0;
    l->dataset = dataset;
    l->sampler = sampler;
    l->runtime = runtime;
    l->env = runtime->env;
    l->feed = given->feed;
    l->batch = ls__sampler_batch(sampler);
    l->room = scatter && !fed ? ls__sampler_global_batch(sampler) : l->batch;
    l->threaded = given->prefetch > 0 && !fed;
    l->slot_count = fed ? 1 : given->prefetch + 1;
    ls_status status = make_slots(l);
    if (status < 0) {
        char message[LS__MESSAGE_MAX];
        memcpy(message, ls__self.message, sizeof message);
        if (l->scatter) {
            ls__scatter_abort(l->scatter, message);
        }
        ls_loader_free(l);
        return ls__fail_again(status, message);
    }
    if (given->feed == LS_FEED_SHARED && ls__sampler_of_job(sampler)) {
        ls__fact_note("a loader with LS_FEED_SHARED");
    }
    *out = l;
    return LS_OK;
}

ls_loader *ls_loader_new(ls_dataset *dataset, ls_sampler *sampler, const ls_loader_options *options)
{
    LS__OPTIONS_OR(NULL, ls_loader_options, given, options);
    ls_loader *made = NULL;
    return make(dataset, sampler, &given, &made) == LS_OK ? made : NULL;
}

void ls_loader_free(ls_loader *l)
{
    if (l == NULL) {
        return;
    }
    reader_stop(l);
    release_slot(l);
    for (int i = 0; l->slots && i < l->slot_count; i++) {
        ls_free(l->slots[i].x_full);
        ls_free(l->slots[i].y_full);
        free_memory(l, l->slots[i].x);
        free_memory(l, l->slots[i].y);
    }
    free(l->slots);
    free(l->indices);
    ls__scatter_free(l->scatter);
    free(l);
}
