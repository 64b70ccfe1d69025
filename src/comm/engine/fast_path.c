/* The short way of a small blocking operation: announced, met, combined and finished by the caller
 * itself, without a work, a queue or a program counter.
 *
 *     token ▸ lock: number, announcement ▸ record in the flight recorder ▸ look at the others ▸
 *     compare keys ▸ the steps after the fence ▸ finished ▸ token back ▸ wake who sleeps
 *
 * What peers see is the same, so a rank may go this way and another not. It is gone only where
 * nothing else is to be done: nothing in flight on any group of this rank, nobody else driving. And
 * only for as long as a caller would spin or yield; whatever else happens (a rank that is late, a
 * mismatch, a failure, another operation) makes it an ordinary operation, announced already, of
 * which engine.c knows all there is to know about deadlines, deadlocks and reports.
 *
 * The first operation of a kind goes the ordinary way, is checked and chosen there, and leaves its
 * *plan* here, found by its key.
 *
 * Note [First the announcement]
 * Peers wait for the stamp, so all that is not needed for it is done behind it, while its line is
 * on the way: the clock, the flight record, fetching the next lines to be written. The stamp is a
 * plain store, and nothing waits for it until the lock is given back; only then comes the fence. So
 * of two that come last at the same time both may see the other late; each that has seen all then
 * looks for sleepers (after its fence, so Note [Last arriver] holds). The record behind the unlock
 * instead of before it: 0.35 us instead of 0.32 (2 ranks, 4 bytes).
 */
#include "comm/engine/fast_path.h"

#include <string.h>

#include "base/options.h"
#include "base/planted.h"
#include "comm/api/collective.h"
#include "comm/api/overlap.h"
#include "comm/diagnose/cause.h"
#include "comm/diagnose/fail.h"
#include "comm/diagnose/flight.h"
#include "comm/diagnose/mismatch.h"
#include "comm/engine/engine.h"
#include "comm/engine/exec.h"
#include "comm/engine/lock.h"
#include "comm/engine/post.h"
#include "comm/engine/progress_lock.h"
#include "comm/engine/wake.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"

#define BARE_LOOKS 64 /* some 0.3 us without looking at the clock: most waits are shorter */
#define FETCH_BYTES 1024

typedef struct small_run {
    ls__small_plan plan;
    uint64_t sequence, queued_ns;
    uint64_t flight; /* number of its record */
} small_run;

/* ---- plans -------------------------------------------------------------------------------- */

/* No option but a time to wait, whatever options there will be. */
static bool is_default(const ls_collective_options *given)
{
    const ls_collective_options defaults =
        *LS_OPTIONS(ls_collective_options, .size = sizeof defaults);
    if (!ls__struct_size_fits(ls__struct_size(given))) {
        return false; /* ls__collective_start refuses it */
    }
    LS_READ_OPTIONS(ls_collective_options, options, given, "is_default", false);
    const bool sound = options.timeout_ms >= 0;
    options.size = defaults.size;
    options.timeout_ms = defaults.timeout_ms;
    return sound && memcmp(&options, &defaults, sizeof options) == 0;
}

static bool is_plain(const ls_group *group, const ls__collective *args)
{
    return group->comm->forced == 0 && (args->options == NULL || is_default(args->options)) &&
           args->mark == 0 && !args->monitored && !group->has_remote && group->turns == NULL &&
           (unsigned)args->dtype < LS_DTYPE_COUNT && (unsigned)args->op < LS_REDUCE_OP_COUNT &&
           args->root >= 0 && (uint64_t)args->count <= LS__SMALL_BYTES &&
           (args->count == 0 || (args->input != NULL && args->output != NULL)) &&
           (args->input == args->output || ls__overlap_check("", group, args) == LS_OK);
}

static uint64_t key_of(const ls__collective *args)
{
    const bool reduces = ls__operation_reduces(args->operation);
    return ls__key_of((uint8_t)args->operation, reduces ? (uint8_t)args->op : 0xff,
                      (uint8_t)args->dtype,
                      ls__operation_has_root(args->operation) ? args->root : 0, args->count);
}

static ls__small_kind *kind_of(ls_group *group, uint64_t key)
{
    return &group->small[(key * UINT64_C(0x9e3779b97f4a7c15)) >> (64 - LS__SMALL_KINDS_LOG)];
}

static bool is_whole(ls__ref ref, ls__program_buffer buffer)
{
    return ref.chunk == 0 && ref.buffer == (uint8_t)buffer;
}

/* Of a step after the fence: OUTPUT from whole buffers, each this rank's or published. */
static bool is_short_step(const ls__program *program, const ls__step *step)
{
    const ls__ref *refs = program->refs;
    if (step->kind < LS__STEP_COPY || step->kind > LS__STEP_PEER_REDUCE || step->dst_count != 1 ||
        !is_whole(refs[step->first_dst], LS__BUFFER_OUTPUT)) {
        return false;
    }
    for (int i = 0; i < step->src_count; i++) {
        const ls__ref src = refs[step->first_src + i];
        if (!is_whole(src, LS__BUFFER_STAGE) &&
            !(is_whole(src, LS__BUFFER_INPUT) && src.rank == program->rank)) {
            return false;
        }
    }
    return true;
}

static bool publishes(const ls__program *program)
{
    return program->step_count > 0 && program->steps[0].kind == LS__STEP_COPY &&
           is_whole(program->refs[program->steps[0].first_dst], LS__BUFFER_STAGE) &&
           is_whole(program->refs[program->steps[0].first_src], LS__BUFFER_INPUT);
}

/* The step after the fence if before it there is at most one, which publishes; -1: there is more.
 * A rank alone has no fence. */
static int first_short_step(const ls__program *program)
{
    const int fence = publishes(program) ? 1 : 0;
    const bool fenced = fence < program->step_count && program->steps[fence].kind == LS__STEP_FENCE;
    return fenced ? fence + 1 : program->size == 1 ? 0 : -1;
}

static bool is_short(const ls__program *program)
{
    const int first = first_short_step(program);
    const ls__operation operation = program->operation;
    bool is = first >= 0 && program->chunks == 1 && program->lanes <= 1 && !program->wide &&
              !ls__reduces_in_steps(program) && !ls__operation_reads_ahead(operation) &&
              !ls__operation_has_blocks(operation, true) &&
              !ls__operation_has_blocks(operation, false);
    for (int s = first; is && s < program->step_count; s++) {
        is = is_short_step(program, &program->steps[s]);
    }
    return is;
}

void ls__small_learn(ls_group *group, const ls__collective *args, const ls_work *work)
{
    if (work->way != LS__WAY_SMALL || !is_plain(group, args)) {
        return;
    }
    const uint64_t key = ls__descriptor_key(group->comm, &work->descriptor);
    ls__small_kind *kind = kind_of(group, key);
    if (key == 0 || key != key_of(args) || key == kind->plan.key || !is_short(work->program)) {
        return;
    }
    kind->plan = (ls__small_plan){.key = key,
                                  .program = work->program,
                                  .first_step = first_short_step(work->program),
                                  .publishes = publishes(work->program),
                                  .in_line = ls__small_in_line(work),
                                  .count = work->count,
                                  .bytes = (size_t)work->count * work->element,
                                  .dtype = work->dtype,
                                  .op = work->op,
                                  .divisor = work->divisor};
    kind->descriptor = work->descriptor;
    kind->descriptor.memory = LS__MEMORY_STAGED; /* where the buffers lie does not matter */
}

/* ---- announcing --------------------------------------------------------------------------- */

static bool is_idle(const ls_group *group)
{
    return atomic_load_explicit(&group->comm->pending, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&group->failed, memory_order_relaxed) == 0 &&
           group->next_post == NULL && ls__list_empty(&group->queue);
}

/* lock */
static void announce(ls_group *group, ls__small_kind *kind, const ls__collective *args,
                     uint64_t sequence)
{
    const ls__small_plan *plan = &kind->plan;
    ls__line line = {.key = plan->key, .one_shot = 1, .in_line = plan->in_line};
    kind->descriptor.sequence = sequence;
    ls__descriptor_site(&kind->descriptor);
    if (plan->publishes) {
        unsigned char *to =
            plan->in_line ? line.data : ls__small_stage(group, group->rank, sequence);
        line.one_shot += (uint32_t)plan->bytes;
        memcpy(to, args->input, plan->bytes);
    }
    ls__post_write(group, &kind->descriptor, &line);
    /* Sync: release; pairs with the loads in meet() and exec.c. */
    atomic_store_explicit(&ls__post_slot(group, group->rank, sequence)->stamp,
                          ls__stamp(sequence, 1), memory_order_release);
    atomic_store_explicit(&group->posted, sequence, memory_order_release);
}

/* The lines that the next operation will write, which peers have read. */
static void fetch_next(const ls_group *group, const ls__small_plan *plan, uint64_t sequence)
{
    LS__PREFETCH_WRITE(ls__post_slot(group, group->rank, sequence + 1));
    if (plan->publishes && !plan->in_line) {
        const unsigned char *stage = ls__small_stage(group, group->rank, sequence + 1);
        for (size_t at = 0; at < plan->bytes && at < FETCH_BYTES; at += LS__CACHE_LINE) {
            LS__PREFETCH_WRITE(stage + at);
        }
    }
}

/* Announces the operation if it may go this way. */
static bool begin(ls_group *group, const ls__collective *args, small_run *run)
{
    ls__comm *comm = group->comm;
    const uint64_t key = key_of(args);
    ls__small_kind *kind = kind_of(group, key);
    ls__lock_take(&comm->lock, comm->env);
    const uint64_t sequence = group->sequence + 1;
    const bool may = key != 0 && kind->plan.key == key && is_idle(group) &&
                     ls__post_room(group, sequence, LS__SMALL_SLOTS);
    if (may) {
        group->sequence = sequence;
        announce(group, kind, args, sequence);
        run->plan = kind->plan;
        run->sequence = sequence;
        run->queued_ns = comm->env->now_ns(comm->env);
        run->flight = ls__flight_open(comm, group, &kind->descriptor, run->queued_ns);
        fetch_next(group, &run->plan, sequence);
    }
    ls__unlock(&comm->lock, comm->env);
    /* Sync: seq_cst; Note [First the announcement]. */
    atomic_thread_fence(memory_order_seq_cst);
    return may;
}

/* ---- meeting ------------------------------------------------------------------------------ */

static bool is_at(const ls__post *post, uint64_t stamp)
{
    return atomic_load_explicit(&post->stamp, memory_order_acquire) >= stamp;
}

/* Whether all come while one would spin or yield, and call it the same. */
static bool meet(ls_group *group, const small_run *run, ls__backoff *patience)
{
    ls__comm *comm = group->comm;
    const uint64_t stamp = ls__stamp(run->sequence, 1);
    uint16_t behind = 0;
    bool same = true;
    const bool spins =
        comm->may_spin && atomic_load_explicit(&comm->spin_ns, memory_order_relaxed) > 0;
    int bare = spins ? BARE_LOOKS : 0;
    for (int r = 0; r < group->size; r++) {
        const ls__post *post = ls__post_slot(group, r, run->sequence);
        while (!is_at(post, stamp)) {
            if (bare-- > 0) {
                continue;
            }
            if (patience->since_ns == 0) {
                ls__backoff_begin(comm, patience, run->queued_ns);
            }
            if (atomic_load_explicit(&comm->pending, memory_order_relaxed) > 0 ||
                !ls__backoff_left(comm, patience)) {
                return false;
            }
        }
        same = same && post->line.key == run->plan.key;
        behind = post->line.behind > behind ? post->line.behind : behind;
    }
    if (behind < UINT16_MAX && group->finished_seen < run->sequence - behind) {
        group->finished_seen = run->sequence - behind;
    }
    return same && !ls__group_failed(group);
}

/* ---- combining ---------------------------------------------------------------------------- */

static const unsigned char *source_of(const ls_group *group, const small_run *run,
                                      const ls__collective *args, ls__ref ref)
{
    return ref.buffer == LS__BUFFER_INPUT ? args->input
                                          : ls__small_place(group, ref.rank, run->sequence);
}

static void run_step(ls_group *group, const small_run *run, const ls__collective *args,
                     const ls__step *step)
{
    const ls__small_plan *plan = &run->plan;
    const ls__ref *src = plan->program->refs + step->first_src;
    const void **from = group->exec->src;
    int peers = 0;
    for (int i = 0; i < step->src_count; i++) {
        from[i] = source_of(group, run, args, src[i]);
        peers += src[i].rank != group->rank;
    }
    ls__count(&group->messages, (uint64_t)peers);
    ls__count(&group->bytes_received, (uint64_t)peers * plan->bytes);
    if (plan->count == 0) {
        return;
    }
    if (step->kind == LS__STEP_REDUCE || step->kind == LS__STEP_PEER_REDUCE) {
        ls__reduce(&(ls__reduce_args){.dst = (void *const[]){args->output},
                                      .dst_count = 1,
                                      .src = from,
                                      .src_count = step->src_count,
                                      .count = plan->count,
                                      .dtype = plan->dtype,
                                      .op = plan->op,
                                      .divisor = plan->divisor,
                                      .table = group->comm->kernels});
    } else if (from[0] != args->output) {
        memcpy(args->output, from[0], plan->bytes);
    }
}

static void finish(ls_group *group, const small_run *run, const ls__collective *args,
                   const ls__backoff *patience)
{
    ls__comm *comm = group->comm;
    const ls__program *program = run->plan.program;
    for (int s = run->plan.first_step; s < program->step_count; s++) {
        run_step(group, run, args, &program->steps[s]);
    }
    uint64_t now = run->queued_ns;
    if (patience->begun_ns != 0) { /* else it took no longer than looking at the clock */
        now = comm->env->now_ns(comm->env);
        ls__count(&group->wait_ns, now - patience->begun_ns);
    }
    ls__count(&group->operations, 1);
    ls__post_finish(group, run->sequence);
    ls__work_survived(comm, run->queued_ns);
    ls__flight_end(comm, run->flight, LS_OK, now);
}

/* ---- all of it ---------------------------------------------------------------------------- */

/* token, given back. What was announced goes on as a work, before all that was called since. */
static ls_status adopt(ls_group *group, const ls__collective *args, const small_run *run)
{
    ls__comm *comm = group->comm;
    LS_READ_OPTIONS(ls_collective_options, options, args->options, "adopt", LS_ERR_INVALID);
    ls__lock_take(&comm->lock, comm->env);
    const int32_t failed = atomic_load_explicit(&group->failed, memory_order_acquire);
    ls_work *work = failed == 0 ? ls__work_take(comm) : NULL;
    ls__progress_release(comm); /* while nothing is pending: nobody has to be called for it */
    if (work != NULL) {
        ls__collective_fill(group, args, &options, work);
        work->descriptor.sequence = run->sequence;
        work->queued_ns = run->queued_ns;
        work->flight = run->flight;
        work->way = LS__WAY_SMALL;
        work->program = run->plan.program;
        atomic_store_explicit(&work->posted, true, memory_order_relaxed);
        group->handles++;
        atomic_fetch_add_explicit(&comm->pending, 1, memory_order_seq_cst);
        atomic_fetch_add_explicit(&group->pending, 1, memory_order_seq_cst);
        ls__list_push_front(&group->queue, &work->link);
    }
    ls__unlock(&comm->lock, comm->env);
    if (work != NULL) {
        (void)ls__post_reach(group, run->sequence, 1); /* wakes who sleeps, if all are there now */
        return ls_work_wait(work);
    }
    ls__flight_end(comm, run->flight, LS_ERR_STATE, run->queued_ns);
    return failed != 0 ? ls__fail_again((ls_status)failed, ls__group_report_cause(group))
                       : ls__collective_no_memory(group, args);
}

bool ls__small_call(ls_group *group, const ls__collective *args, ls_status *status)
{
    ls__comm *comm = group->comm;
    small_run run = {.sequence = 0};
    if (!is_plain(group, args) || !ls__progress_try(comm)) {
        return false;
    }
    if (!begin(group, args, &run)) {
        ls__progress_release(comm);
        return false;
    }
    ls__backoff patience = {0};
    if (!meet(group, &run, &patience)) {
        *status = adopt(group, args, &run);
        return true;
    }
    ls__backoff_rewarded(comm, &patience);
    finish(group, &run, args, &patience);
    ls__progress_release(comm);
    if (!LS__PLANTED(WAKE)) {
        ls__ring_members(group);
    }
    *status = LS_OK;
    return true;
}
