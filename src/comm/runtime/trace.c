/* SPDX-License-Identifier: Apache-2.0 */
/* The job's side of a trace.
 *
 *     ls_init       memfd ──▶ store (the host agent)         other hosts: round trips with rank 0
 *     ls_finalize   other hosts: round trips again, then the whole memfd ──▶ rank 0 ──▶ its store
 *
 * Offsets of clocks are measured as NTP does (RFC 5905, section 8): of several round trips the
 * shortest one counts, and rank 0 read its clock in the middle of it, within half its length. */
#include "comm/api/control.h"
#include "comm/runtime/init.h"

#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>

#include "base/log.h"
#include "base/settings.h"
#include "base/trace.h"
#include "comm/core/group.h"
#include "job/store/store.h"
#include "trace/file.h"

#define ROUND_TRIPS 16
#define TAG 0x7ace

/* ---- messages ------------------------------------------------------------------------------- */

static ls_status send_bytes(const ls__comm *comm, int peer, const void *bytes, size_t count)
{
    return ls__control_send(comm->world, bytes, count, peer, TAG, NULL);
}

static ls_status recv_bytes(const ls__comm *comm, int peer, void *bytes, size_t count)
{
    return ls__control_recv(comm->world, bytes, count, peer, TAG, NULL);
}

/* Whether a rank is on another host than this one. */
static bool is_away(const ls__comm *comm, int rank)
{
    return ls__board_local(comm->board, rank) < 0;
}

/* ---- clocks --------------------------------------------------------------------------------- */

/* Rank 0's side: answers each question with the time. */
static ls_status tell_time(const ls__comm *comm, int peer)
{
    for (int i = 0; i < ROUND_TRIPS; i++) {
        uint64_t time = 0;
        LS_TRY(recv_bytes(comm, peer, &time, sizeof time));
        time = comm->env->now_ns(comm->env);
        LS_TRY(send_bytes(comm, peer, &time, sizeof time));
    }
    return LS_OK;
}

static ls_status ask_time(const ls__comm *comm, ls__trace_clock *out)
{
    ls__trace_clock best = {.error_ns = UINT64_MAX};
    for (int i = 0; i < ROUND_TRIPS; i++) {
        const uint64_t before = comm->env->now_ns(comm->env);
        uint64_t time = before;
        LS_TRY(send_bytes(comm, 0, &time, sizeof time));
        LS_TRY(recv_bytes(comm, 0, &time, sizeof time));
        const uint64_t after = comm->env->now_ns(comm->env), half = (after - before) / 2;
        if (half < best.error_ns) {
            best = (ls__trace_clock){.at_ns = before + half,
                                     .offset_ns = (int64_t)(time - (before + half)),
                                     .error_ns = half};
        }
    }
    *out = best;
    return LS_OK;
}

/* ---- events --------------------------------------------------------------------------------- */

static ls_status publish(const ls__comm *comm, int rank, int fd)
{
    char key[32];
    (void)snprintf(key, sizeof key, "trace/%d", rank);
    return ls__store_put_fd(comm->boot.store, key, fd, comm->runtime->timeout_ms);
}

/* The whole memory, used or not: some megabytes, once. */
static ls_status send_events(const ls__comm *comm)
{
    ls__trace *trace = comm->runtime->trace;
    const uint64_t bytes = trace->bytes;
    LS_TRY(send_bytes(comm, 0, &bytes, sizeof bytes));
    LS_TRY(send_bytes(comm, 0, trace->head, trace->bytes));
    atomic_store_explicit(&trace->head->sent, 1, memory_order_release);
    return LS_OK;
}

static ls_status fail_memory(uint64_t bytes)
{
    return ls__fail(LS_ERR_MEMORY, "no memory for the %llu bytes of a rank's trace",
                    (unsigned long long)bytes);
}

/* The copy looks like the memory of a rank of this host. */
static ls_status recv_events(const ls__comm *comm, int peer)
{
    const ls__env *env = comm->env;
    uint64_t bytes = 0;
    void *memory = NULL;
    LS_TRY(recv_bytes(comm, peer, &bytes, sizeof bytes));
    if (bytes > ls__trace_bytes(LS__TRACE_EVENTS_MAX)) {
        return fail_memory(bytes);
    }
    const int fd = env->shm_create(env, "lockstep-trace", bytes);
    if (fd < 0) {
        return fail_memory(bytes);
    }
    ls_status status = env->shm_map(env, fd, bytes, LS__MAP_ANYWHERE, &memory) < 0
                           ? fail_memory(bytes)
                           : recv_bytes(comm, peer, memory, bytes);
    if (memory != NULL) {
        env->shm_unmap(env, memory, bytes);
    }
    status = status < 0 ? status : publish(comm, peer, fd);
    env->close(env, fd);
    return status;
}

/* ---- both ends of a job --------------------------------------------------------------------- */

/* Which of the two measurements, and whether the events follow. The exchange itself is not
 * recorded. */
static ls_status exchange(const ls__comm *comm, int which, bool events)
{
    ls__trace *trace = comm->runtime->trace;
    if (comm->runtime->rank != 0 && is_away(comm, 0)) {
        LS_TRY(ask_time(comm, &trace->head->clock[which]));
        return events ? send_events(comm) : LS_OK;
    }
    for (int r = 1; comm->runtime->rank == 0 && r < comm->runtime->world_size; r++) {
        if (is_away(comm, r)) {
            LS_TRY(tell_time(comm, r));
            LS_TRY(events ? recv_events(comm, r) : LS_OK);
        }
    }
    return LS_OK;
}

ls_status ls__comm_trace_open(ls__comm *comm)
{
    ls_runtime *runtime = comm->runtime;
    const char *path = ls__setting_get("LOCKSTEP_TRACE");
    if (path == NULL) {
        return LS_OK;
    }
    LS_TRY(ls__trace_new(runtime, &runtime->trace));
    if (runtime->rank == 0) {
        LS_TRY(ls__trace_check_path(comm->env, path));
    }
    runtime->trace->head->node = is_away(comm, 0) ? comm->board->node : 0;
    return publish(comm, runtime->rank, runtime->trace->fd);
}

void ls__comm_trace_begin(ls__comm *comm)
{
    ls__trace *trace = comm->runtime->trace;
    if (trace == NULL) {
        return;
    }
    const bool on = atomic_load_explicit(&trace->on, memory_order_relaxed);
    atomic_store_explicit(&trace->on, false, memory_order_relaxed);
    if (exchange(comm, 0, false) < 0) {
        LS__WARN("the clocks of the hosts could not be compared: %s", ls_error_message());
    }
    atomic_store_explicit(&trace->on, on, memory_order_relaxed);
}

/* After a failure the groups no longer work; then the agents write what their hosts have. */
void ls__comm_trace_leave(ls__comm *comm)
{
    ls__trace *trace = comm->runtime->trace;
    if (trace == NULL) {
        return;
    }
    atomic_store_explicit(&trace->on, false, memory_order_relaxed);
    atomic_store_explicit(&trace->head->left, 1, memory_order_release);
    if (comm->world != NULL && ls_group_status(comm->world) == LS_OK &&
        exchange(comm, 1, true) < 0) {
        LS__WARN("the traces of the hosts could not be joined: %s", ls_error_message());
    }
}

void ls__comm_trace_close(ls__comm *comm)
{
    ls__trace_free(comm->runtime->trace);
    comm->runtime->trace = NULL;
}
