/* SPDX-License-Identifier: Apache-2.0 */
/* The board: how it is made, opened and closed, how the root cause is published on it, and the
 * sentences that describe a rank in reports.
 *
 * A board is written by ranks that may die at any instruction, so its readers trust nothing in it:
 * numbers are range-checked, texts are cut at the end of their field, and a half-written record is
 * described by the fields that it has so far.
 */
#include "job/board.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "job/operation.h"

/* A new memfd reads as zeros, so only the fields that are not zero are written. The caller
 * passes the descriptor on to the ranks. */
ls_status ls__board_new(const ls__env *env, const ls__board_job *job, int *fd, ls__board **out)
{
    LS_ASSERT(job->ranks >= 1 && job->ranks <= LS__BOARD_RANKS_MAX);
    LS_ASSERT(job->host != NULL && job->world_size >= job->ranks);
    const size_t bytes = ls__board_bytes(job->ranks);
    const int file = env->shm_create(env, "lockstep-board", bytes);
    if (file < 0) {
        return ls__fail(LS_ERR_SYSTEM, "creating the job's board of %zu bytes: %s", bytes,
                        strerror(-file));
    }
    void *memory = NULL;
    const int error = env->shm_map(env, file, bytes, LS__MAP_ANYWHERE, &memory);
    if (error < 0) {
        env->close(env, file);
        return ls__fail(LS_ERR_SYSTEM, "mapping the job's board of %zu bytes: %s", bytes,
                        strerror(-error));
    }
    ls__board *board = memory;
    board->magic = LS__BOARD_MAGIC;
    board->version = LS__BOARD_VERSION;
    board->bytes = bytes;
    board->ranks = job->ranks;
    board->world_size = job->world_size;
    board->generation = job->generation;
    board->job = job->number;
    board->launcher_pid = job->launcher_pid;
    board->nodes = job->nodes;
    board->node = job->node;
    board->plain = job->plain;
    snprintf(board->host, sizeof board->host, "%s", job->host);
    snprintf(board->address, sizeof board->address, "%s", job->address != NULL ? job->address : "");
    for (int r = 0; r < job->ranks; r++) {
        board->rank[r].world_rank =
            job->world_rank != NULL ? job->world_rank[r] : job->first_rank + r;
    }
    board->first_rank = board->rank[0].world_rank;
    *fd = file;
    *out = board;
    return LS_OK;
}

/* The failure of ls__board_open. `found` is a clause about the descriptor. */
static ls_status not_a_board(int fd, const char *found)
{
    return ls__fail(LS_ERR_INVALID,
                    "descriptor %d should be the job's board, but %s: start the program with "
                    "`lockstep run`, call ls_init once in a process (and ls_runtime_attach in "
                    "further threads), and do not close or reuse inherited descriptors",
                    fd, found);
}

/* The number of ranks is checked against the size, so that no reader runs past the mapping. */
bool ls__board_is_sound(const ls__board *board, size_t bytes)
{
    return board->magic == LS__BOARD_MAGIC && board->version == LS__BOARD_VERSION &&
           board->ranks >= 1 && board->ranks <= LS__BOARD_RANKS_MAX && board->bytes == bytes &&
           ls__board_bytes(board->ranks) == bytes && board->first_rank >= 0 &&
           board->world_size >= board->ranks;
}

/* The descriptor was inherited, so the program may have closed or reused it; every property is
 * checked before the memory is used. */
ls_status ls__board_open(const ls__env *env, int fd, ls__board **out)
{
    const int64_t size = env->shm_size(env, fd);
    if (size < 0) {
        return not_a_board(fd, "it is closed or is not shared memory");
    }
    if (size < (int64_t)sizeof(ls__board) || size > (int64_t)ls__board_bytes(LS__BOARD_RANKS_MAX)) {
        return not_a_board(fd, "its size is not that of a board");
    }
    void *memory = NULL;
    const int error = env->shm_map(env, fd, (size_t)size, LS__MAP_ANYWHERE, &memory);
    if (error < 0) {
        return not_a_board(fd, strerror(-error));
    }
    if (!ls__board_is_sound(memory, (size_t)size)) {
        env->shm_unmap(env, memory, (size_t)size);
        return not_a_board(fd, "it belongs to another version or to another program");
    }
    *out = memory;
    return LS_OK;
}

void ls__board_close(const ls__env *env, ls__board *board)
{
    if (board != NULL) {
        env->shm_unmap(env, board, ls__board_bytes(board->ranks));
    }
}

void ls__board_record_failure(ls__board_rank *place, const ls__env *env, const ls__board_failure *f)
{
    LS_ASSERT(f->status < 0);
    const bool free = atomic_load_explicit(&place->failed, memory_order_relaxed) == 0 ||
                      atomic_load_explicit(&place->survived, memory_order_relaxed) != 0;
    if (free) {
        atomic_store_explicit(&place->failed, 0, memory_order_release);
        atomic_store_explicit(&place->survived, 0, memory_order_relaxed);
        atomic_store_explicit(&place->failed_ns, env->now_ns(env), memory_order_relaxed);
        snprintf(place->failed_text, sizeof place->failed_text, "%s", f->text);
        place->failed_by = f->by;
        place->failed_about = f->about;
        /* Sync: release; pairs with the acquire of the launcher. */
        atomic_store_explicit(&place->failed, (uint32_t)-f->status, memory_order_release);
    }
}

/* Several processes may publish at once: when the host agent is a thread and dies, every rank of
 * the host stands in for it (parent_watch.c). The claim chooses one writer. If that one dies before
 * its last store, the board stays without a root cause, and the ranks end by their deadlines. */
bool ls__board_set_cause(ls__board *board, const ls__env *env, const ls__failure_record *cause)
{
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong_explicit(&board->root_cause_claim, &none, 1,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        return false;
    }
    board->root_cause_rank = cause->failed_rank;
    snprintf(board->root_cause_text, sizeof board->root_cause_text, "%s", cause->text);
    /* Sync: release, after the text and the rank; pairs with the acquire loads of the ranks, which
     * therefore never read half a root cause. */
    atomic_store_explicit(&board->root_cause, 1, memory_order_release);
    for (int r = 0; r < board->ranks; r++) {
        ls__board_ring(board, env, r);
    }
    return true;
}

void ls__board_ring(ls__board *board, const ls__env *env, int r)
{
    LS_ASSERT(r >= 0 && r < board->ranks);
    ls__board_rank *rank = &board->rank[r];
    /* Sync: sequentially consistent, as is the sleeper's increment of `sleepers` before it checks
     * its condition for the last time: either the sleeper sees the change, or this thread sees the
     * sleeper and wakes it. */
    atomic_fetch_add_explicit(&rank->doorbell, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&rank->sleepers, memory_order_seq_cst) != 0) {
        env->wake(env, &rank->doorbell, INT_MAX);
    }
}

void ls__board_name(const ls__board *board, int r, char *out, size_t bytes)
{
    LS_ASSERT(r >= 0 && r < board->ranks);
    const int pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
    snprintf(out, bytes, "rank %d (host %.63s, pid %d)", board->rank[r].world_rank, board->host,
             pid);
}

/* The number comes from memory that a rank may be writing: any value is possible. */
static const char *flight_state_name(uint32_t state)
{
    switch (state) {
    case LS__FLIGHT_QUEUED:
        return "queued";
    case LS__FLIGHT_STARTED:
        return "started";
    case LS__FLIGHT_DONE:
        return "done";
    case LS__FLIGHT_FAILED:
        return "failed";
    default:
        return "being written";
    }
}

/* Adds the last operation of the flight recorder. The record may be half written, or already reused
 * for the next operation, so every text is bounded and the operation's number is checked. */
static void add_flight(ls__text *out, const ls__board_rank *rank)
{
    const uint64_t next = atomic_load_explicit(&rank->flight_next, memory_order_acquire);
    if (next == 0) {
        return;
    }
    const ls__flight_record *record = &rank->flight[(next - 1) % LS__FLIGHT_MAX];
    const uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
    const ls__descriptor *d = &record->descriptor;
    const char *name =
        d->operation < LS__OP_COUNT ? ls__operation_name((ls__operation)d->operation) : "operation";
    ls__text_add(out, "; last operation: %s #%llu", name, (unsigned long long)d->sequence);
    if (d->text[0] != '\0') {
        ls__text_add(out, " \"%.*s\"", LS__TAG_MAX - 1, d->text);
    }
    ls__text_add(out, " of group \"%.31s\"", record->group_name);
    if (d->file[0] != '\0') {
        ls__text_add(out, " at %.*s:%d", LS__FILE_MAX - 1, d->file, (int)d->line);
    }
    ls__text_add(out, ", %s", flight_state_name(state));
}

void ls__board_doing(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes)
{
    LS_ASSERT(r >= 0 && r < board->ranks);
    ls__board_record_doing(&board->rank[r], env, out, bytes);
}

/* Activity first, then the last operation. The activity may be torn if its writer died within
 * it. */
void ls__board_record_doing(const ls__board_rank *rank, const ls__env *env, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    ls__activity_copy activity;
    ls__activity_read(&rank->activity, &activity);
    if (activity.since_ns == 0) {
        ls__text_add(&to, "in its own code before ls_init");
        return;
    }
    ls__text_add(&to, "in %s", ls__phase_name(activity.phase));
    if (activity.detail[0] != '\0') {
        ls__text_add(&to, " (%.*s)", LS__ACTIVITY_DETAIL_MAX - 1, activity.detail);
    }
    /* The library does not know the place in the user's own code; add_flight adds the place of the
     * last operation. */
    if (activity.file[0] != '\0' && activity.phase != LS__PHASE_USER) {
        ls__text_add(&to, " at %.*s:%d", LS__ACTIVITY_FILE_MAX - 1, activity.file, activity.line);
    }
    const uint64_t now = env->now_ns(env);
    if (now > activity.since_ns) {
        ls__text_add(&to, " for %.1f s", (double)(now - activity.since_ns) * 1e-9);
    }
    add_flight(&to, rank);
}

/* The state letter of the rank's process, as in /proc/PID/stat; 0: unknown. The pid may have been
 * reused if the rank has ended long ago; the letter is for reports only. */
static int state_of(const ls__board *board, const ls__env *env, int r)
{
    const int pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
    return pid > 0 && env->process_state != NULL ? env->process_state(env, pid) : 0;
}

bool ls__board_stopped(const ls__board *board, const ls__env *env, int r)
{
    const int state = state_of(board, env, r);
    return state == 'T' || state == 't'; /* t: stopped by a debugger */
}

bool ls__board_traced(const ls__board *board, const ls__env *env, int r)
{
    const int pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
    return pid > 0 && env->process_traced(env, pid);
}

bool ls__board_unreaped(const ls__board *board, const ls__env *env, int r)
{
    return state_of(board, env, r) == 'Z';
}

/* Adds the state of the rank's process if it is unusual: "is stopped (state T; …), " */
static void add_state(ls__text *out, const ls__board *board, const ls__env *env, int r)
{
    const int state = state_of(board, env, r);
    const int pid = atomic_load_explicit(&board->rank[r].pid, memory_order_relaxed);
    if (state == 'T') {
        ls__text_add(out, "is stopped (state T; `kill -CONT %d` lets it go on), ", pid);
    } else if (state == 't') {
        ls__text_add(out, "is held by a debugger (state t), ");
    } else if (state == 'D') {
        ls__text_add(out, "waits for a disk or a driver (state D), ");
    } else if (state == 'Z') {
        ls__text_add(out, "has ended, but the launcher (pid %d) has not reported it, ",
                     board->launcher_pid);
    }
}

void ls__board_describe(const ls__board *board, const ls__env *env, int r, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    char name[128], doing[768];
    ls__board_name(board, r, name, sizeof name);
    ls__board_doing(board, env, r, doing, sizeof doing);
    ls__text_add(&to, "%s ", name);
    add_state(&to, board, env, r);
    ls__text_add(&to, "%s", doing);
}
