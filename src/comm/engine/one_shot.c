/* SPDX-License-Identifier: Apache-2.0 */
/* Small operations in one shot. The program is cut in two at its only fence: announcing does what
 * comes before it, and what comes after it is done here, in one piece, because 16 KiB a rank take
 * less time than looking after other groups between two steps would.
 *
 *     this rank's post:  stamp · line ── key, bytes, data up to 104 bytes ─┐
 *     its small stage:   slot of the operation ── blocks, each on a line ──┼─▶ read by its peers
 *     its wide stage:    slots for offers of up to 256 KiB ────────────────┘
 *
 * A blocking call runs its operation inline, without the queue: it announces, meets, combines and
 * finishes one after the other, with the functions by which the engine does it.
 *
 *     progress lock ▸ lock: number, plan, announcement, flight record ▸ look at the others ▸
 *     compare keys ▸ combine ▸ finished ▸ progress lock back ▸ wake the sleepers
 *
 * Peers see the same, so a rank may run an operation inline and another not. It is done only where
 * nothing else is to be done: nothing is in flight on any group of this rank, and no other thread
 * drives. And only for as long as a caller would spin or yield; whatever else happens (a rank that
 * is late, a mismatch, a failure, another operation) makes it an ordinary operation of the queue,
 * announced already, and engine.c knows about deadlines, deadlocks and reports.
 *
 * Note [First the announcement]
 * Peers wait for the stamp, so all that is not needed for it is done behind it, while its line is
 * on the way: the clock, the flight record, fetching the next lines to be written. The stamp is a
 * plain store, and nothing waits for it until the lock is given back; only then comes the fence. So
 * of two that come last at the same time both may see the other late; each that has seen all then
 * looks for sleepers (after its fence, so Note [Last arriver] holds). The record behind the unlock
 * instead of before it: 0.35 us instead of 0.32 (2 ranks, 4 bytes).
 *
 * Note [Bare looks]
 * A pause between two looks at a line takes some 10 ns on AMD's processors and 40 on Intel's, which
 * is measured at the start. Where it is short, 4 bytes take 5 % less with it (2 ranks, Zen 4: 0.20
 * to 0.19 us): looks that were made ahead need not be thrown away when the line changes.
 */
#include "comm/engine/one_shot.h"
#include "comm/core/plan.h"

#include <string.h>

#include "base/assert.h"
#include "base/copy.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/planted.h"
#include "base/size.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/flight.h"
#include "comm/core/post.h"
#include "comm/core/progress_lock.h"
#include "comm/core/wake.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/operation/describe.h"
#include "comm/operation/exec.h"
#include "comm/remote/remote.h"

#define BARE_LOOKS 64 /* some 0.3 us without looking at the clock: most waits are shorter */
#define FETCH_BYTES 1024
#define SURE_COUNT (LS__SMALL_BYTES / 4 / 8) /* elements that are small whatever they are */

/* ---- publishing and combining ------------------------------------------------------------- */

static size_t bytes_of(const ls_work *work)
{
    return (size_t)work->count * work->element;
}

/* Note [Changing places] */
static bool changes_places(const ls_work *work)
{
    return ls__changes_places(work->group, work->plan->program);
}

/* From the start of the ref's buffer. A block of STAGE begins on a cache line; where ranks change
 * places there is only one. */
static size_t offset_of(const ls_work *work, ls__ref ref)
{
    const bool staged = ref.buffer == LS__BUFFER_STAGE;
    if (!work->plan->blocks[ref.buffer] || (staged && changes_places(work))) {
        return 0;
    }
    const size_t block = bytes_of(work);
    return (size_t)ref.chunk * (staged ? ls__round_up(block, LS__CACHE_LINE) : block);
}

size_t ls__one_shot_bytes(const ls_group *group, ls__operation operation, size_t bytes)
{
    return ls__operation_has_blocks(operation, true)
               ? (size_t)group->size * ls__round_up(bytes, LS__CACHE_LINE)
               : bytes;
}

/* A block of INPUT or OUTPUT of this rank. */
static const unsigned char *own_block(const ls_work *work, ls__ref ref)
{
    const unsigned char *base = ref.buffer == LS__BUFFER_INPUT ? work->input : work->output;
    return base + offset_of(work, ref);
}

/* Copies a block to where it lies in `base`, unless it is there. */
static void copy_block(const ls_work *work, unsigned char *base, ls__ref dst,
                       const unsigned char *from)
{
    unsigned char *to = base + offset_of(work, dst);
    if (to != from) {
        memcpy(to, from, bytes_of(work));
    }
}

bool ls__one_shot_has_wide(ls_group *group)
{
    return ls__post_room(group, group->sequence + 1, LS__WIDE_SLOTS);
}

/* Where this rank publishes the operation's data if they are not in the line. */
static uint8_t place_of(const ls_work *work, uint64_t sequence)
{
    const size_t bytes = ls__one_shot_bytes(work->group, work->operation, bytes_of(work));
    const bool wide = bytes > LS__SMALL_BYTES;
    const uint64_t slots = wide ? LS__WIDE_SLOTS : LS__SMALL_SLOTS;
    const bool other = changes_places(work) && sequence / slots % 2 != 0;
    return (uint8_t)((wide ? LS__PLACE_WIDE + sequence % slots : LS__PLACE_SMALL) |
                     (other ? LS__PLACE_OTHER : 0));
}

void ls__one_shot_publish(ls_group *group, const ls_work *work, ls__line *line)
{
    const ls__plan *plan = work->plan;
    const ls__program *program = plan->program;
    const size_t bytes = bytes_of(work);
    LS_ASSERT(plan->one_shot);
    const uint64_t sequence = work->descriptor.sequence;
    const bool in_line = !plan->blocks[LS__BUFFER_STAGE] && bytes <= LS__PAIR_BYTES;
    line->place = in_line ? LS__PLACE_LINE : place_of(work, sequence);
    unsigned char *stage =
        in_line ? line->data : ls__place_at(group, group->rank, sequence, line->place);
    size_t used = 0; /* of the stage */
    for (int s = 0; s < plan->first_step - 1 && bytes > 0; s++) {
        const ls__step *step = &program->steps[s];
        const ls__ref dst = program->refs[step->first_dst];
        const bool staged = dst.buffer == LS__BUFFER_STAGE;
        const size_t end = staged ? offset_of(work, dst) + bytes : 0;
        copy_block(work, staged ? stage : work->output, dst,
                   own_block(work, program->refs[step->first_src]));
        used = end > used ? end : used;
    }
    LS_ASSERT(used <= LS__WIDE_BYTES);
    line->one_shot = 1 + (uint32_t)used;
}

static const unsigned char *source_of(const ls_group *group, const ls_work *work, ls__ref ref)
{
    return ref.buffer == LS__BUFFER_STAGE
               ? ls__small_place(group, ref.rank, work->descriptor.sequence) + offset_of(work, ref)
               : own_block(work, ref);
}

/* Note [Claimed lines] in base/copy.h. What lies beside the stamp is not claimed: its peers look at
 * that line until it comes. */
static void claim_sources(const ls_group *group, const ls_work *work, const ls__step *step)
{
    const ls__ref *refs = work->plan->program->refs;
    for (int i = 0; i < step->src_count; i++) {
        const ls__ref ref = refs[step->first_src + i];
        if (ref.rank != group->rank && ref.buffer == LS__BUFFER_STAGE) {
            ls__claim_lines(group->exec->src[i], bytes_of(work));
        }
    }
}

static bool run_step(ls_group *group, const ls_work *work, const ls__step *step)
{
    const ls__ref *refs = work->plan->program->refs;
    const size_t bytes = bytes_of(work);
    const void **from = group->exec->src;
    int peers = 0;
    for (int i = 0; i < step->src_count; i++) {
        const ls__ref ref = refs[step->first_src + i];
        from[i] = source_of(group, work, ref);
        peers += ref.rank != group->rank;
    }
    ls__count(&group->counts.messages, (uint64_t)peers);
    ls__count(&group->counts.bytes_received, (uint64_t)peers * bytes);
    if (bytes == 0) {
        return true;
    }
    const ls__ref dst = refs[step->first_dst];
    if (step->kind == LS__STEP_REDUCE || step->kind == LS__STEP_PEER_REDUCE) {
        const ls__reduce_args args = {
            .dst = (void *const[]){(unsigned char *)work->output + offset_of(work, dst)},
            .dst_count = 1,
            .src = from,
            .src_count = step->src_count,
            .count = work->count,
            .dtype = work->dtype,
            .op = work->op,
            .divisor = work->divisor,
            .averages = work->divisor != 0,
            .user = work->user,
            .table = group->comm->kernels};
        if (work->user.fn != NULL) {
            return ls__exec_reduce(group, work, &args);
        }
        ls__reduce(&args);
    } else {
        copy_block(work, work->output, dst, from[0]);
    }
    if (bytes > LS__PAIR_BYTES && (group->size == 2 || group->comm->machine.may_spin)) {
        claim_sources(group, work, step);
    }
    return true;
}

bool ls__one_shot_run(ls_group *group, const ls_work *work)
{
    const ls__program *program = work->plan->program;
    bool sound = true;
    for (int s = work->plan->first_step; sound && s < program->step_count; s++) {
        sound = run_step(group, work, &program->steps[s]);
    }
    return sound;
}

/* ---- inline: announcing -------------------------------------------------------------------- */

/* No option but a time to wait. */
static bool is_default(const ls_collective_options *options)
{
    _Static_assert(sizeof *options == 7 * sizeof(void *), "a new option must be looked at here");
    return options->tag == NULL && options->algorithm == NULL && options->stream == NULL &&
           options->divisor == 0 && options->factor == 1;
}

/* Whether the announcement's key says all that peers must know of the call. */
static bool is_plain(const ls_group *group, const ls__collective *args,
                     const ls__operation_traits *traits, const ls_collective_options *options)
{
    const ls__comm *comm = group->comm;
    return (group->plugin == NULL || args->control) && !group->has_remote &&
           comm->forced == LS__MEMORY_UNDECIDED && !comm->strict && comm->rules.hash == 0 &&
           !ls__operation_is_p2p(args->operation) && traits->plain == args->operation &&
           (unsigned)args->op < LS_REDUCE_OP_COUNT && args->op != LS_PREMUL_SUM &&
           args->mark == 0 && !args->monitored && (uint64_t)args->count <= LS__WIDE_BYTES &&
           is_default(options) &&
           ((uint64_t)args->count <= SURE_COUNT || ls__select_may_announce(group, args));
}

static bool is_idle(const ls_group *group)
{
    return atomic_load_explicit(&group->comm->pending, memory_order_relaxed) == 0 &&
           atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0 &&
           group->next_post == NULL && ls__list_empty(&group->queue);
}

/* lock; the work that is kept for this, described as the call says; NULL: no memory. Between two
 * calls of a group with the same key, only the buffers and the call site may differ; the plan is
 * the same unless one is in place and the other not. */
static ls_work *describe(ls_group *group, const ls__collective *args, uint64_t key)
{
    ls__comm *comm = group->comm;
    ls_work *work = comm->inline_call.work;
    if (work != NULL && work->descriptor.group == group->id && comm->inline_call.key == key) {
        const bool in_place = work->input == work->output;
        if (work->path == LS__PATH_OFFER || in_place != (args->input == args->output)) {
            work->path = LS__PATH_OPEN;
            work->plan = NULL;
        }
        work->input = args->input;
        work->output = args->output;
        ls__descriptor_site(&work->descriptor);
        return work;
    }
    work = work != NULL ? work : ls__work_take(comm);
    if (work != NULL) {
        ls__collective_fill_plain(group, args, work);
    }
    comm->inline_call.work = work;
    comm->inline_call.key = key;
    return work;
}

/* lock; the announcement with its data. */
static void announce(ls_group *group, ls_work *work, uint64_t key)
{
    const uint64_t sequence = ++group->sequence;
    work->descriptor.sequence = sequence;
    ls__line line; /* what is not used of it stays as it is */
    line.key = key;
    ls__one_shot_publish(group, work, &line);
    ls__post_write(group, &work->descriptor, &line);
    /* Sync: release; pairs with the loads in meet() and exec.c. */
    atomic_store_explicit(&ls__post_slot(group, group->rank, sequence)->stamp,
                          ls__stamp(sequence, 1), memory_order_release);
    atomic_store_explicit(&group->posted, sequence, memory_order_release);
}

/* The lines that the next operation will write, which peers have read. */
static void fetch_next(const ls_group *group, const ls_work *work)
{
    const uint64_t next = work->descriptor.sequence + 1;
    const size_t bytes = (size_t)work->count * work->element;
    ls__post *post = ls__post_slot(group, group->rank, next);
    LS__PREFETCH_WRITE(post);
    if (bytes > LS__LINE_BYTES && bytes <= LS__PAIR_BYTES) {
        LS__PREFETCH_WRITE(&post->line.data[LS__LINE_BYTES]);
    } else if (work->plan->first_step > 1 && bytes > LS__PAIR_BYTES) {
        const unsigned char *stage = ls__place_at(group, group->rank, next, place_of(work, next));
        for (size_t at = 0; at < bytes && at < FETCH_BYTES; at += LS__CACHE_LINE) {
            LS__PREFETCH_WRITE(stage + at);
        }
    }
}

/* Announces the operation if it may run inline; NULL: it may not. */
static ls_work *begin_inline(ls_group *group, const ls__collective *args, uint64_t key)
{
    ls__comm *comm = group->comm;
    ls__lock_take(&comm->lock, comm->env);
    ls_work *work = is_idle(group) && ls__post_room(group, group->sequence + 1, LS__SMALL_SLOTS)
                        ? describe(group, args, key)
                        : NULL;
    if (work != NULL && (work->plan != NULL || ls__select_prepared(group, work))) {
        announce(group, work, key);
        work->queued_ns = comm->env->now_ns(comm->env);
        work->flight = ls__flight_open(comm, group, &work->descriptor, work->queued_ns);
        fetch_next(group, work);
    } else {
        work = NULL;
    }
    ls__unlock(&comm->lock, comm->env);
    /* Sync: seq_cst; Note [First the announcement]. */
    atomic_thread_fence(memory_order_seq_cst);
    return work;
}

/* ---- inline: meeting ----------------------------------------------------------------------- */

static bool is_at(const ls__post *post, uint64_t stamp)
{
    return atomic_load_explicit(&post->stamp, memory_order_acquire) >= stamp;
}

/* Whether all come while one would spin or yield, and call it the same. */
static bool meet(ls_group *group, const ls_work *work, uint64_t key, ls__backoff *backoff)
{
    ls__comm *comm = group->comm;
    const uint64_t sequence = work->descriptor.sequence, stamp = ls__stamp(sequence, 1);
    uint16_t behind = 0;
    bool same = true;
    const bool spins = comm->machine.may_spin &&
                       atomic_load_explicit(&comm->drive.spin_ns, memory_order_relaxed) > 0;
    int bare = spins ? BARE_LOOKS : 0;
    for (int r = 0; r < group->size; r++) {
        const ls__post *post = ls__post_slot(group, r, sequence);
        while (!is_at(post, stamp)) {
            if (bare-- > 0) {
                if (comm->machine.short_pause) {
                    LS__PAUSE();
                }
                continue;
            }
            if (backoff->since_ns == 0) {
                ls__backoff_begin(comm, backoff, work->queued_ns);
            }
            if (atomic_load_explicit(&comm->pending, memory_order_relaxed) > 0 ||
                !ls__backoff_left(comm, backoff)) {
                return false;
            }
        }
        same = same && post->line.key == key && post->line.one_shot != 0;
        behind = post->line.behind > behind ? post->line.behind : behind;
    }
    if (behind < UINT16_MAX && group->finished_seen < sequence - behind) {
        group->finished_seen = sequence - behind;
    }
    return same && !ls__group_failed(group);
}

/* ---- inline: ending ------------------------------------------------------------------------ */

static void finish_inline(ls_group *group, const ls_work *work, const ls__backoff *backoff)
{
    ls__comm *comm = group->comm;
    uint64_t now = work->queued_ns;
    if (backoff->begun_ns != 0) { /* else it took no longer than looking at the clock */
        now = comm->env->now_ns(comm->env);
        ls__count(&group->counts.wait_ns, now - backoff->begun_ns);
    }
    ls__count(&group->counts.operations, 1);
    if (ls__post_finish(group, work->descriptor.sequence)) {
        ls__remote_send_finished(group);
    }
    ls__work_survived(comm, work->queued_ns);
    ls__flight_end(comm, work->flight, LS_OK, now);
}

/* progress lock, given back. What was announced goes on in the queue, before all that was called
 * since. */
static ls_status go_on_in_queue(ls_group *group, const ls_collective_options *options,
                                ls_work *work, ls_work **late)
{
    ls__comm *comm = group->comm;
    const uint64_t sequence = work->descriptor.sequence;
    ls__lock_take(&comm->lock, comm->env);
    const int32_t failed = atomic_load_explicit(&group->failure.status, memory_order_acquire);
    ls__progress_release(comm); /* while nothing is pending: no thread has to be called for it */
    if (failed == 0) {
        comm->inline_call.work = NULL; /* the next one takes another */
        atomic_store_explicit(&work->status, LS_IN_PROGRESS, memory_order_relaxed);
        work->deadline_ns = ls__work_deadline(group, options, work->queued_ns);
        atomic_store_explicit(&work->posted, true, memory_order_relaxed);
        group->handles++;
        work->held = true;
        atomic_fetch_add_explicit(&comm->pending, 1, memory_order_seq_cst);
        atomic_fetch_add_explicit(&group->pending, 1, memory_order_seq_cst);
        ls__list_push_front(&group->queue, &work->link);
    } else {
        ls__flight_end(comm, work->flight, LS_ERR_STATE, work->queued_ns);
    }
    ls__unlock(&comm->lock, comm->env);
    if (failed != 0) {
        return ls__fail_again((ls_status)failed, ls__group_report_cause(group));
    }
    (void)ls__post_reach(group, sequence, 1); /* wakes the sleepers, if all are there now */
    *late = work;
    return LS_OK;
}

bool ls__run_inline(ls_group *group, const ls__collective *args,
                    const ls_collective_options *options, ls_status *status, ls_work **late)
{
    ls__comm *comm = group->comm;
    const ls__operation_traits *traits = ls__operation_traits_of(args->operation);
    const uint64_t key =
        ls__key_of((uint8_t)args->operation, traits->reduces ? (uint8_t)args->op : 0xff,
                   (uint8_t)args->dtype, traits->has_root ? args->root : 0, args->count);
    if (key == 0 || !is_plain(group, args, traits, options) || !ls__progress_try(comm)) {
        return false;
    }
    ls_work *work = begin_inline(group, args, key);
    if (work == NULL) {
        ls__progress_release(comm);
        return false;
    }
    ls__backoff backoff = {0};
    if (!meet(group, work, key, &backoff)) {
        *status = go_on_in_queue(group, options, work, late);
        return true;
    }
    ls__backoff_rewarded(comm, &backoff);
    const bool sound = ls__one_shot_run(group, work);
    LS_ASSERT(sound); /* there is no operator of the user's to fail */
    finish_inline(group, work, &backoff);
    ls__progress_release(comm);
    if (!LS__PLANTED(WAKE)) {
        ls__ring_members(group);
    }
    *status = LS_OK;
    return true;
}
