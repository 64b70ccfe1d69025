/* SPDX-License-Identifier: Apache-2.0 */
/* The native backend: operations of a group in sequence order, each a program over slices.
 *
 *     IDLE ──first of the queue──▶ MEET ──all announced, descriptors equal──▶ RUN ──▶ IDLE
 *
 * Everything here belongs to the holder of the progress lock, except submit, which runs under the
 * submission lock. An operation in one shot (one_shot.c) skips RUN: it is complete when it is met.
 *
 * Note [Slices]
 * A staged operation is cut into slices, which are numbered across operations. In an operation with
 * s STAGE slots slice g takes slot g mod s, and s slices run at the same time, so that a rank
 * copies the next ones in while it waits for peers. A slice begins only when every member has
 * *completed* the slice that used its slot before, in this operation or an earlier one, which may
 * have had another number of slots: completion is stored in the slot's counter as a last, virtual
 * fence (SLICE_DONE). That is enough whatever the program reads or writes in its peers' STAGE.
 *
 * A broadcast of more than two slices has four slots: its root only copies in and the peers only
 * copy out, so it can stay ahead of them. Other operations, where every rank copies in and out,
 * have two, since the slots of all ranks should fit into the caches, and so has a broadcast where
 * ranks share cores, since nobody reads before the last rank has run. Time with two slots over
 * four, medians of 5 and 7 rounds (private memory, Zen 5, 2 cores): broadcast, 2 ranks, 1 MB 1.21
 * and 1.11, 10 MB 1.30 and 1.14, 100 MB 1.09; 4 ranks, 1 MB 1.00 and 0.76, 6 ranks, 10 MB 1.11 and
 * 1.24; all_gather, 2 ranks, 0.99 (1 MB) and 0.98 (10 MB), 4 and 6 ranks, 10 MB 0.88 and 0.92.
 *
 * The four slots hold half as much each, so that they take no more of the caches than two, and the
 * peers begin earlier. Time with 256 KiB over 128 KiB in two runs, between which the machine had
 * changed its distance from core to core: 256 KiB 1.24 and 1.16, 1 MB 1.08 and 1.46, 10 MB 0.97 and
 * 1.42, 100 MB 0.94. With 64 KiB: 1 MB 0.92 and 1.22, 10 MB 0.85 and 1.56. Shorter slices of other
 * operations lost (all_gather 0.89 to 0.98, all_reduce 0.74 to 0.92).
 *
 * Two ranks that change places (control.h) use the slots of both heaps, so theirs hold half as
 * much, too. Time with 256 KiB over 128 KiB (Sapphire Rapids, 2 cores, 1 and 10 MB, medians of 7
 * turns): all_gather 1.05 and 1.03, all_to_all 1.03 and 0.98, reduce_scatter 1.09 and 0.98.
 */
#include "comm/operation/exec.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/planted.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/backend.h"
#include "comm/core/cause.h"
#include "comm/core/flight.h"
#include "comm/core/group.h"
#include "comm/core/plan.h"
#include "comm/core/post.h"
#include "comm/core/wake.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/engine/one_shot.h"
#include "comm/memory/control.h"
#include "comm/operation/mismatch.h"
#include "comm/operation/v_counts.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"

#define SLICE_SHIFT 8
#define SLICE_DONE 0xffu /* above any fence of a program */
#define OPERATIONS_PER_TURN 16

/* ---- fences ------------------------------------------------------------------------------- */

/* The counter of the slice's STAGE slot: which slice uses it, and how far the member is with it. */
static _Atomic uint64_t *slice_word(const ls_group *group, int member, uint64_t slice)
{
    return &group->member[member].control->slice[ls__stage_slot(group->exec, slice)];
}

static uint64_t slice_value(uint64_t slice, unsigned fences)
{
    return slice << SLICE_SHIFT | fences;
}

/* Whether the counters of the slice's slot have all come to `value`. */
static bool slot_all_at(const ls_group *group, uint64_t slice, uint64_t value)
{
    for (int r = 0; r < group->size; r++) {
        /* Sync: seq_cst, Note [Last arriver]; acquires what the member wrote before. */
        if (atomic_load_explicit(slice_word(group, r, slice), memory_order_seq_cst) < value) {
            return false;
        }
    }
    return true;
}

static bool slice_all_at(const ls_group *group, uint64_t slice, unsigned fences)
{
    return slot_all_at(group, slice, slice_value(slice, fences));
}

/* This rank is at the fence of the slice; the last to come wakes the others. */
static void slice_reach(ls_group *group, uint64_t slice, unsigned fences)
{
    _Atomic uint64_t *word = slice_word(group, group->rank, slice);
    LS_ASSERT(atomic_load_explicit(word, memory_order_relaxed) < slice_value(slice, fences));
    atomic_store_explicit(word, slice_value(slice, fences), memory_order_seq_cst);
    if (slice_all_at(group, slice, fences)) {
        ls__ring_members(group);
    }
}

/* A staged operation has its fences in the slice counters, all others in the stamp of the post. */
static ls__result run_fence(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    const uint64_t sequence = group->exec->work->descriptor.sequence;
    const unsigned fences = (unsigned)step->fence + 1;
    const bool sliced = group->exec->work->path == LS__PATH_STAGED;
    if (lane->moved == 0) {
        lane->moved = 1;
        if (sliced) {
            slice_reach(group, run->slice, fences);
        } else if (step->fence > 0) { /* 0 was reached when the operation was announced */
            (void)ls__post_reach(group, sequence, fences);
        }
    }
    const bool all =
        sliced ? slice_all_at(group, run->slice, fences) : ls__post_all_at(group, sequence, fences);
    const bool left_out = LS__PLANTED(FENCE) && step->fence > 0;
    return all || left_out ? LS__COMPLETE : LS__BLOCKED;
}

/* ---- lanes -------------------------------------------------------------------------------- */

/* A bounded piece of one step. */
static ls__result run_step(ls_group *group, ls__run *run, const ls__step *step, ls__lane *lane)
{
    switch ((ls__step_kind)step->kind) {
    case LS__STEP_FENCE:
        return run_fence(group, run, step, lane);
    case LS__STEP_SEND:
        return ls__stream_send(group, run, step, lane);
    case LS__STEP_RECV:
        return ls__stream_recv(group, run, step, lane);
    default:
        return ls__step_run(group, run, step, lane);
    }
}

/* Moves one lane until it blocks, ends, or has done a piece of data. */
static ls__result run_lane(ls_group *group, ls__run *run, int l)
{
    const ls__program *program = run->program;
    const int steps = program->lane_start[l + 1] - program->lane_start[l];
    ls__lane *lane = &run->lane[l];
    bool moved = false;
    while (lane->step < steps) {
        const ls__step *step = &program->steps[program->lane_start[l] + lane->step];
        const ls__result result =
            ls__step_waits(run, step) ? LS__BLOCKED : run_step(group, run, step, lane);
        if (result == LS__MOVED || (result == LS__BLOCKED && moved)) {
            return LS__MOVED;
        }
        if (result == LS__BLOCKED) {
            return LS__BLOCKED;
        }
        *lane = (ls__lane){.step = lane->step + 1};
        moved = true;
    }
    return moved ? LS__MOVED : LS__COMPLETE;
}

/* COMPLETE when all lanes have ended. */
static ls__result advance_run(ls_group *group, ls__run *run)
{
    bool moved = ls__stream_drain(group, run), complete = true;
    for (int l = 0; l < run->program->lanes; l++) {
        const ls__result result = run_lane(group, run, l);
        moved = moved || result == LS__MOVED;
        complete = complete && result == LS__COMPLETE;
    }
    return complete ? LS__COMPLETE : moved ? LS__MOVED : LS__BLOCKED;
}

/* ---- slices ------------------------------------------------------------------------------- */

/* Whether all members have completed the slice that used the slot before: Note [Slices]. */
static bool may_begin_slice(const ls_group *group)
{
    const ls__exec *exec = group->exec;
    const uint64_t next = group->stage.slices + 1;
    const uint64_t before = group->stage.slot_slice[ls__stage_slot(exec, next)];
    const bool left_out = LS__PLANTED(SLOT);
    return before == 0 || left_out || slot_all_at(group, next, slice_value(before, SLICE_DONE));
}

/* The number of the slice that begins now. */
static uint64_t next_slice(ls_group *group)
{
    const uint64_t slice = ++group->stage.slices;
    group->stage.slot_slice[ls__stage_slot(group->exec, slice)] = slice;
    return slice;
}

/* Whether a slice is left to begin. */
static bool has_slice(const ls__exec *exec)
{
    return !exec->begun || exec->next < exec->work->count;
}

/* Begins the next slice in `run` if there is one and its slot is free. */
static bool begin_slice(ls_group *group, ls__run *run)
{
    ls__exec *exec = group->exec;
    const bool sliced = exec->work->path == LS__PATH_STAGED;
    if (run->active || !has_slice(exec) || (sliced && !may_begin_slice(group))) {
        return false;
    }
    if (exec->runs > 1 && !sliced && exec->next / exec->slice % exec->runs != run - exec->run) {
        return false; /* channels take slices in turn: all ranks alike */
    }
    const int64_t left = exec->work->count - exec->next;
    const ls__program *program = exec->work->plan->program;
    const int64_t count = left < exec->slice ? left : exec->slice;
    ls__run_init(run, program, sliced ? next_slice(group) : 0);
    run->active = true;
    run->slot = (int)(run - exec->run);
    run->number = ++exec->run_number;
    run->start = exec->next;
    run->count = count;
    run->quantum = ls__chunk_quantum(exec->work, program, count);
    run->lane[0].step = exec->work->plan->first_step;
    exec->begun = true;
    exec->next += count;
    return true;
}

/* Moves all slices in progress, and begins the next one where a run is free. */
static bool advance_runs(ls_group *group)
{
    ls__exec *exec = group->exec;
    const bool sliced = exec->work->path == LS__PATH_STAGED;
    bool moved = false;
    for (int i = 0; i < exec->runs; i++) {
        ls__run *run = &exec->run[i];
        moved = begin_slice(group, run) || moved;
        const ls__result result = run->active ? advance_run(group, run) : LS__BLOCKED;
        moved = moved || result != LS__BLOCKED;
        if (result == LS__COMPLETE) {
            run->active = false;
            if (sliced) {
                slice_reach(group, run->slice, SLICE_DONE);
            }
        }
    }
    return moved;
}

static bool runs_ended(const ls__exec *exec)
{
    bool active = has_slice(exec);
    for (int i = 0; i < exec->runs; i++) {
        active = active || exec->run[i].active;
    }
    return !active;
}

/* Peers wait for this rank in the operation, so its failure must end the group. */
static void fail_work(ls_group *group, const ls_work *work, ls_status status)
{
    char text[LS__FAILURE_MAX], operation[256];
    group->exec->state = LS__EXEC_FAILED;
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    snprintf(text, sizeof text, "%s cannot run on rank %d: %s", operation,
             group->comm->runtime->rank, ls_error_message());
    ls__plugin_cause(group, status, text);
}

static void fail_here(ls_group *group, ls_status status)
{
    fail_work(group, group->exec->work, status);
}

/* Chooses the program and binds it; false: the group was failed. */
static bool begin_run(ls_group *group)
{
    ls__exec *exec = group->exec;
    ls_work *work = exec->work;
    LS_ASSERT(exec->state == LS__EXEC_RUN);
    const ls__plan *plan = ls__select_announced(group, work);
    if (plan == NULL) {
        fail_here(group, ls__self.status);
        return false;
    }
    const ls__program *program = plan->program;
    exec->slice = ls__slice_of(work, program);
    exec->runs = ls__slices_at_once(work, program);
    exec->scratch_element =
        program->wide ? ls__accumulator_bytes(work->dtype, work->divisor != 0) : work->element;
    exec->begun = false;
    exec->next = 0;
    const int64_t first = work->count < exec->slice ? work->count : exec->slice;
    if (!ls__scratch_make(group, program, ls__chunk_quantum(work, program, first))) {
        (void)ls__fail(LS_ERR_MEMORY, "no memory to receive into");
        fail_here(group, LS_ERR_MEMORY);
        return false;
    }
    ls__exec_bind(group, exec);
    exec->divide_last = work->divisor != 0 && ls__reduces_in_steps(program);
    return true;
}

/* ---- the backend's functions -------------------------------------------------------------- */

/* lock; the first of the queue that no plug-in has becomes the operation in progress. */
static void take_first(ls_group *group)
{
    ls__exec *exec = group->exec;
    ls__list *at = group->queue.next;
    for (int i = 0; group->plugin != NULL && i < group->plugin->flying; i++) {
        at = at->next;
    }
    const bool none = at == &group->queue;
    exec->work = none ? NULL : LS__LIST_ITEM(at, ls_work, link);
    exec->state = none ? LS__EXEC_IDLE : LS__EXEC_MEET;
    exec->met = 0;
    exec->divide_last = false;
}

static bool begin_operation(ls_group *group)
{
    ls__comm *comm = group->comm;
    ls__lock_take(&comm->lock, comm->env);
    take_first(group);
    ls__unlock(&comm->lock, comm->env);
    return group->exec->work != NULL;
}

/* Announces the work if there was no room for it when it was submitted. */
static bool is_posted(ls_group *group, const ls_work *work)
{
    ls__comm *comm = group->comm;
    if (atomic_load_explicit(&work->posted, memory_order_acquire)) {
        return true;
    }
    ls__lock_take(&comm->lock, comm->env);
    const bool ready = ls__post_flush(group);
    ls__unlock(&comm->lock, comm->env);
    if (ready) { /* this thread may leave before it is done: the engine's must know of it */
        ls__ring(comm, comm->runtime->local_rank);
    }
    return atomic_load_explicit(&work->posted, memory_order_relaxed);
}

/* Whether all members have announced the operation. */
static bool all_met(ls_group *group)
{
    ls__exec *exec = group->exec;
    const ls_work *work = exec->work;
    const uint64_t stamp = ls__stamp(work->descriptor.sequence, 1);
    if (exec->met == 0 && !is_posted(group, work)) {
        return false;
    }
    while (work->path != LS__PATH_MESSAGES && exec->met < group->size) {
        const ls__post *post = ls__post_slot(group, exec->met, work->descriptor.sequence);
        /* Sync: seq_cst for Note [Last arriver]; acquires the descriptor. */
        if (atomic_load_explicit(&post->stamp, memory_order_seq_cst) < stamp) {
            return false;
        }
        if (ls__is_one_shot(work)) { /* comes while they are compared */
            LS__PREFETCH(ls__small_place(group, exec->met, work->descriptor.sequence));
        }
        exec->met++;
    }
    return true;
}

/* The operation has its result: peers may use this rank's post slot again, and the waiter wakes. */
static void finish_operation(ls_group *group, ls_work *work)
{
    ls__exec *exec = group->exec;
    ls__comm *comm = group->comm;
    if (work->path == LS__PATH_BACKEND ? work->plugin.divides : exec->divide_last) {
        const int64_t count = work->count_of[1] ? work->count_of[1][group->rank] : work->count;
        ls__divide(work->output, count, work->dtype, work->divisor);
    }
    LS_ASSERT(exec->state != LS__EXEC_IDLE || work->path == LS__PATH_BACKEND);
    ls__count(&group->counts.operations, 1);
    if (ls__post_finish(group, work->descriptor.sequence)) {
        ls__remote_send_finished(group);
    }
    ls__lock_take(&comm->lock, comm->env);
    ls__list_remove(&work->link);
    if (work == exec->work || exec->work == NULL) {
        take_first(group);
    }
    ls__unlock(&comm->lock, comm->env);
    ls__work_end(work, LS_OK);
}

/* ---- operations in the plug-in ------------------------------------------------------------- */

/* Hands the operation to the group's plug-in; false: the group was failed. A device keeps the order
 * of what it is given, so the next operation need not wait for this one. */
static bool begin_in_plugin(ls_group *group)
{
    ls_work *work = group->exec->work;
    const ls_status status = ls__plugin_start(group, work);
    if (status != LS_OK) {
        fail_here(group, status);
        return false;
    }
    work->plugin.divides =
        work->divisor != 0 && !ls__group_scales(group) &&
        ls__operation_uses(work->operation, false, group->rank, work->descriptor.root);
    if (ls__group_has_streams(group)) {
        ls__lock_take(&group->comm->lock, group->comm->env);
        take_first(group);
        ls__unlock(&group->comm->lock, group->comm->env);
    }
    return true;
}

/* Asks the plug-in whether its oldest operation has ended. */
static ls__result advance_in_plugin(ls_group *group)
{
    ls_work *work = LS__LIST_ITEM(group->queue.next, ls_work, link);
    const ls_status status = ls__plugin_test(group, work);
    if (status == LS_IN_PROGRESS) {
        return LS__BLOCKED;
    }
    if (status == LS_OK) {
        finish_operation(group, work);
    } else {
        fail_work(group, work, status);
    }
    return LS__COMPLETE;
}

/* Whether the operation in progress must wait for those in the plug-in: one that runs here would
 * end before them. */
static bool is_behind(const ls_group *group)
{
    return group->plugin != NULL && group->plugin->flying > 0 &&
           group->exec->work->path != LS__PATH_BACKEND;
}

/* All members have announced the operation: whether the group has failed or fails now, since they
 * called different operations. By messages every message is compared instead. */
static bool differs(ls_group *group)
{
    const ls_work *work = group->exec->work;
    return ls__group_failed(group) || /* others announced it, and then gave up waiting for us */
           (work->path != LS__PATH_MESSAGES && ls__mismatch_check(group, work)) ||
           (work->has_layout && ls__v_layout_differ(group, group->exec->work));
}

/* All members have announced the same operation: it runs by its path. In one shot it is complete
 * then. */
static ls__result start_run(ls_group *group)
{
    ls__exec *exec = group->exec;
    ls__select_met(group, exec->work);
    ls__flight_start(group->comm, exec->work);
    if (ls__is_one_shot(exec->work)) {
        if (ls__one_shot_run(group, exec->work)) {
            finish_operation(group, exec->work);
        }
        return LS__COMPLETE;
    }
    exec->state = LS__EXEC_RUN;
    const bool begun =
        exec->work->path == LS__PATH_BACKEND ? begin_in_plugin(group) : begin_run(group);
    return begun ? LS__MOVED : LS__COMPLETE;
}

/* All slices have ended: whether the result counts. */
static bool is_sound(ls_group *group)
{
    ls__exec *exec = group->exec;
    switch (exec->work->path) {
    case LS__PATH_MESSAGES: /* those whose messages this rank did not need have not been compared */
        return !ls__mismatch_check(group, exec->work);
    case LS__PATH_REGISTERED: /* a rank that gave up may use its buffer again meanwhile */
    case LS__PATH_PACKED:
        return !ls__group_failed(group);
    default:
        return true;
    }
}

static ls__result advance_program(ls_group *group)
{
    const bool moved = advance_runs(group);
    if (!runs_ended(group->exec)) {
        return moved ? LS__MOVED : LS__BLOCKED;
    }
    if (is_sound(group)) {
        finish_operation(group, group->exec->work);
    }
    return LS__COMPLETE;
}

/* One transition; LS__BLOCKED when nothing could be done. */
static ls__result advance_once(ls_group *group)
{
    ls__exec *exec = group->exec;
    switch (exec->state) {
    case LS__EXEC_IDLE:
        return begin_operation(group) ? LS__MOVED : LS__BLOCKED;
    case LS__EXEC_MEET:
        if (!all_met(group) || is_behind(group)) {
            return LS__BLOCKED;
        }
        return differs(group) ? LS__COMPLETE : start_run(group);
    case LS__EXEC_RUN:
        return exec->work->path == LS__PATH_BACKEND ? advance_in_plugin(group)
                                                    : advance_program(group);
    case LS__EXEC_FAILED:
        return LS__BLOCKED;
    }
    return LS__BLOCKED;
}

static bool native_advance(ls_group *group)
{
    bool moved = false;
    if (ls__group_failing(group)) {
        return false;
    }
    while (group->plugin != NULL && ls__group_has_streams(group) && group->plugin->flying > 0 &&
           !ls__group_failing(group) && advance_in_plugin(group) == LS__COMPLETE) {
        moved = true;
    }
    if (ls__group_failing(group)) {
        return moved;
    }
    int64_t bytes = 0; /* of the operations worked on */
    for (int ended = 0; ended < OPERATIONS_PER_TURN;) {
        const ls_work *work = group->exec->work;
        const int64_t size = work != NULL ? work->count * (int64_t)work->element : 0;
        const ls__result result = advance_once(group);
        if (result == LS__BLOCKED) {
            break;
        }
        moved = true;
        ended += result == LS__COMPLETE ? 1 : 0;
        bytes += result == LS__COMPLETE || group->exec->state == LS__EXEC_RUN ? size : 0;
        if (result == LS__COMPLETE && (ls__group_failing(group) || ls__group_failed(group))) {
            break;
        }
        if (bytes > LS__TURN_BYTES) {
            break; /* let other groups have their turn */
        }
    }
    return moved;
}

/* lock; announces at once if there is room. True also where it must be announced later. */
static bool native_submit(ls_group *group, ls_work *work)
{
    if (group->next_post == NULL) {
        group->next_post = work;
    }
    const bool ready = ls__post_flush(group);
    return ready || group->size == 1 || !atomic_load_explicit(&work->posted, memory_order_relaxed);
}

/* After a failure: nothing of the operation in progress goes on. */
static void native_reset(ls_group *group)
{
    if (group->plugin != NULL) {
        ls__plugin_reset(group);
    }
    group->exec->work = NULL;
    group->exec->state = LS__EXEC_IDLE;
    for (int i = 0; i < LS__RUNS_MAX; i++) {
        group->exec->run[i].active = false;
    }
    if (group->comm->transport->return_buffers != NULL) {
        group->comm->transport->return_buffers(group->comm->transport, group->id);
    }
}

/* One allocation: the struct and its five arrays of `size` pointers. */
static size_t exec_bytes(int size)
{
    return sizeof(ls__exec) + 5 * (size_t)size * sizeof(void *);
}

static ls__exec *exec_new(const ls__env *env, int size)
{
    ls__exec *exec = env->allocate(env, exec_bytes(size));
    if (exec != NULL) {
        memset(exec, 0, exec_bytes(size));
        void **at = (void **)(exec + 1);
        exec->input = (unsigned char **)at;
        exec->output = (unsigned char **)(at + size);
        exec->stage = (unsigned char **)(at + 2 * size);
        exec->dst = at + 3 * size;
        exec->src = (const void **)(at + 4 * size);
    }
    return exec;
}

static void native_close(ls_group *group)
{
    const ls__env *env = group->comm->env;
    ls__plugin_close(group);
    ls__p2p_close(group);
    if (group->exec != NULL && group->exec->scratch != NULL) {
        env->release(env, group->exec->scratch, group->exec->scratch_bytes);
    }
    if (group->exec != NULL) {
        env->release(env, group->exec, exec_bytes(group->size));
    }
    group->exec = NULL;
}

static ls_status native_open(ls_group *group)
{
    group->exec = exec_new(group->comm->env, group->size);
    ls_status status = group->exec != NULL
                           ? ls__p2p_open(group)
                           : ls__fail(LS_ERR_MEMORY, "no memory for a group of %d", group->size);
    if (status != LS_OK) {
        native_close(group);
    }
    return status;
}

const ls__backend ls__backend_native = {
    .name = "native",
    .open = native_open,
    .close = native_close,
    .prepare = ls__select_submitted,
    .submit = native_submit,
    .advance = native_advance,
    .reset = native_reset,
};
