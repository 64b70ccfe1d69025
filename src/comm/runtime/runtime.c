/* SPDX-License-Identifier: Apache-2.0 */
/* ls_init and ls_finalize: the runtime's life.
 *
 *     bootstrap ▸ own heap ▸ map the peers' heaps ▸ transport ▸ world group ▸ engine's thread
 *
 * Nothing is waited for but the peers' heaps: they lie ready, zeroed and stamped, before they are
 * published, so the first operation may begin while a peer is still mapping. Leaving needs no
 * peer either: memory that they still read stays theirs through their own mappings.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/assert.h"
#include "base/compiler.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/options.h"
#include "base/settings.h"
#include "base/text.h"
#include "comm/algorithm/rules.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/reclaim.h"
#include "comm/core/unexpected.h"
#include "comm/core/wake.h"
#include "comm/diagnose/deadlock.h"
#include "comm/engine/engine.h"
#include "comm/group/make.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/operation/exec.h"
#include "comm/runtime/init.h"
#include "comm/transport/transport.h"
#include "comm/tune/choice.h"
#include "job/store/store.h"

#define GIB ((size_t)1 << 30)
#define WORKS_CHUNK_BYTES ((size_t)16 << 10)

static int threads_of(const ls__env *env, int wanted, int local_size)
{
    const int cores = env->cores(env);
    const int share = cores / local_size > 0 ? cores / local_size : 1;
    if (wanted > 0) {
        return wanted;
    }
    const int64_t omp = ls__setting_int("OMP_NUM_THREADS", share, 1, 4096);
    return (int)ls__setting_int("LOCKSTEP_THREADS", omp, 1, 4096);
}

static bool strict_setting(void)
{
    const char *check = ls__setting_get("LOCKSTEP_CHECK");
    return check != NULL && strcmp(check, "strict") == 0;
}

/* ---- building ----------------------------------------------------------------------------- */

static void wake_peer(void *arg, int peer)
{
    ls__comm *comm = arg;
    ls__ring(comm, ls__board_local(comm->board, peer));
}

static ls_status open_world(ls__comm *comm)
{
    const int size = comm->runtime->world_size;
    int ranks[LS__PROGRAM_RANKS_MAX];
    uint64_t control[LS__PROGRAM_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        ranks[r] = r;
        control[r] = ls__heap_header_of(&comm->heap, r)->world;
    }
    comm->next_group = 1;
    const ls__group_spec spec = {.name = "world",
                                 .id = 0,
                                 .rank = comm->runtime->rank,
                                 .size = size,
                                 .world_rank = ranks,
                                 .control = control};
    LS_TRY(ls__group_make(comm, &spec, false, &comm->world));
    ls__group_join(comm->world, &spec);
    return LS_OK;
}

static ls_status open_heap(ls__comm *comm)
{
    char config[LS__CONFIG_MAX];
    ls__comm_config(comm, config, sizeof config);
    const ls_runtime *runtime = comm->runtime;
    const ls__heap_spec spec = {
        .rank = runtime->rank,
        .size = runtime->world_size,
        .here = runtime->local_size,
        .job = comm->board->job,
        .ring_bytes = ls__shm_ring_bytes(runtime->world_size),
        .config = config,
        .reserve = (size_t)ls__setting_int("LOCKSTEP_HEAP_RESERVE", 64, 1, 4096) * GIB};
    LS_TRY(ls__heap_init(&comm->heap, comm->env, &spec));
    LS_TRY(ls__remote_open(comm));
    LS_TRY(ls__heap_join(&comm->heap, comm->boot.store, &spec, &comm->arrival));
    comm->machine.past_caches = ls__past_caches(comm->env);
    return LS_OK;
}

static ls_status refuse_world(const ls__boot *boot)
{
    LS_ASSERT(boot->local_size <= LS__BOARD_RANKS_MAX); /* the board was made for them */
    if (boot->world_size > LS__PROGRAM_RANKS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "ls_init: a world of %d ranks; at most %d can be one",
                        boot->world_size, LS__PROGRAM_RANKS_MAX);
    }
    return LS_OK;
}

/* Whether a pause is short: Note [Bare looks] in engine/one_shot.c. The shortest of three, since
 * another process may take the core meanwhile. */
static bool has_short_pause(const ls__env *env)
{
    enum { PAUSES = 64, SHORT_NS = 20 };
    uint64_t least = UINT64_MAX;
    for (int turn = 0; turn < 3; turn++) {
        const uint64_t begin = env->now_ns(env);
        for (int i = 0; i < PAUSES; i++) {
            LS__PAUSE();
        }
        const uint64_t took = env->now_ns(env) - begin;
        least = took < least ? took : least;
    }
    return least < (uint64_t)PAUSES * SHORT_NS;
}

static void adopt_boot(ls__comm *comm)
{
    ls_runtime *runtime = comm->runtime;
    const ls__boot *boot = &comm->boot;
    runtime->rank = boot->rank;
    runtime->world_size = boot->world_size;
    runtime->local_rank = boot->local_rank;
    runtime->local_size = boot->local_size;
    comm->board = boot->board;
    comm->me = &boot->board->rank[boot->local_rank];
    runtime->activity = &comm->me->activity;
    runtime->stop = &boot->board->stop;
    comm->machine.may_spin =
        boot->local_size > 1 && comm->env->cores(comm->env) >= boot->local_size;
    comm->machine.short_pause = has_short_pause(comm->env);
}

static ls_status open_transport(ls__comm *comm)
{
    ls__transport *host = NULL;
    LS_TRY(ls__shm_transport_new(&comm->heap, wake_peer, comm, &host));
    if (comm->remote != NULL) {
        return ls__remote_connect(comm, host);
    }
    comm->transport = host;
    return LS_OK;
}

static ls_status open_comm(ls__comm *comm, int threads)
{
    LS_TRY(ls__bootstrap(comm->env, comm->runtime->timeout_ms, &comm->boot));
    adopt_boot(comm);
    (void)ls__activity_enter(LS__PHASE_START, NULL);
    LS_TRY(refuse_world(&comm->boot));
    ls__arrival_begin(&comm->arrival, comm->env, comm->board, comm->runtime->local_rank,
                      comm->runtime->timeout_ms);
    comm->runtime->threads = threads_of(comm->env, threads, comm->boot.local_size);
    if (comm->runtime->rank == 0) { /* one speaks for all: the launcher gives all the same */
        (void)ls__settings_check();
    }
    LS_TRY(ls__cpu_check());
    LS_TRY(ls__rules_read(&comm->rules));
    LS_TRY(ls__tune_mode_read(&comm->tune));
    LS_TRY(open_heap(comm));
    LS_TRY(open_transport(comm));
    LS_TRY(ls__tuning_share(comm));
    LS_TRY(open_world(comm));
    LS_TRY(ls__comm_trace_open(comm));
    return ls__engine_start(comm);
}

/* Last, while the board is still there: a request that finds this rank on its way out of the job
 * shall not end it. */
static void leave_stops(ls__comm *comm)
{
    if (comm->runtime->graceful_stop) {
        atomic_store_explicit(&comm->me->stops_itself, 0, memory_order_release);
        comm->env->release_stop(comm->env);
        comm->runtime->graceful_stop = false;
    }
}

/* Whether a rank may be dead or stopped, which an engine's own end (MPI_Finalize) would wait for.
 * After a mismatch all ranks are there. */
static bool may_lack_a_rank(const ls__comm *comm)
{
    const int status = comm->world != NULL ? atomic_load_explicit(&comm->world->failure.status,
                                                                  memory_order_relaxed)
                                           : LS_OK;
    return comm->board != NULL &&
           (ls__board_has_cause(comm->board) || (status != LS_OK && status != LS_ERR_MISMATCH));
}

/* Undoes open_comm, as far as it came. */
static void close_comm(ls__comm *comm)
{
    const bool failed = may_lack_a_rank(comm);
    ls__engine_stop(comm);
    ls__comm_trace_close(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (group != comm->world) {
            LS__DEBUG("ls_finalize: group \"%s\" was not freed; it is freed now", group->name);
        }
        group->handles = 0; /* of works without a waiter: none can come any more */
        ls__group_close(group);
    }
    ls__unexpected_release(comm);
    ls__reclaim_clear(comm);
    ls__deadlock_close(comm);
    if (comm->transport != NULL) {
        comm->transport->close(comm->transport);
    }
    ls__remote_close(comm);
    ls__plugins_unload(comm, failed);
    if (comm->heap.env != NULL) {
        ls__heap_fini(&comm->heap);
    }
    ls__tuning_unshare(comm);
    ls__arena_fini(&comm->pool.memory);
    comm->runtime->activity = &comm->runtime->own_activity;
    comm->runtime->stop = &comm->runtime->own_stop;
    leave_stops(comm);
    if (comm->boot.board != NULL) {
        ls__bootstrap_close(comm->env, &comm->boot);
    }
    comm->env->release(comm->env, comm, sizeof *comm);
}

/* The handler first: the launcher sends nothing more once it sees the flag. */
static void answer_stops(ls__comm *comm)
{
    comm->runtime->graceful_stop = true;
    comm->env->catch_stop(comm->env, &comm->board->root_cause);
    atomic_store_explicit(&comm->me->stops_itself, 1, memory_order_release);
}

/* ---- leaving ------------------------------------------------------------------------------ */

static void free_comm(ls_runtime *runtime, void *data)
{
    ls__comm *comm = data;
    (void)ls__activity_enter(LS__PHASE_EXIT, NULL);
    ls__comm_trace_leave(comm);
    ls__engine_drain(comm, &comm->pending);
    ls__remote_leave(comm);
    /* Sync: release, after the last operation; pairs with the peers' look at this rank's life. */
    atomic_store_explicit(&comm->me->life, LS__LIFE_LEFT, memory_order_release);
    if (comm->world != NULL) {
        ls__ring_members(comm->world);
    }
    runtime->layer[LS__LAYER_COMM].data = NULL;
    close_comm(comm);
}

static ls__comm *comm_new(ls_runtime *runtime)
{
    ls__comm *comm = runtime->env->allocate(runtime->env, sizeof *comm);
    if (comm != NULL) {
        memset(comm, 0, sizeof *comm);
        comm->runtime = runtime;
        comm->env = runtime->env;
        comm->strict = strict_setting();
        comm->channels = (int)ls__setting_int("LOCKSTEP_CHANNELS", 1, 1, LS__CHANNELS_MAX);
        comm->kernels = ls__reduce_kernels_get();
        ls__list_init(&comm->groups);
        ls__list_init(&comm->pool.free);
        ls__list_init(&comm->sleepers);
        ls__list_init(&comm->held);
        ls__list_init(&comm->plugins.list);
        ls__list_init(&comm->inbox.orphans);
        ls__list_init(&comm->inbox.unused);
        ls__arena_init(&comm->pool.memory, comm->env, WORKS_CHUNK_BYTES);
    }
    return comm;
}

/* ---- the public calls --------------------------------------------------------------------- */

/* ls_init has run out of time with all ranks there: adds those of this host that are stopped. */
static void explain_late(const ls__comm *comm)
{
    const ls__board *board = comm->board;
    for (int r = 0; r < board->ranks; r++) {
        if (ls__board_stopped(board, comm->env, r)) {
            char what[768];
            ls__board_describe(board, comm->env, r, what, sizeof what);
            (void)ls__fail(LS_ERR_TIMEOUT, "%s; %s", ls_error_message(), what);
            break;
        }
    }
}

/* Whether the failure is another rank's, which that rank or the launcher has recorded. */
static bool is_of_other(const ls__comm *comm, ls_status status)
{
    return status == LS_ERR_PEER &&
           (ls__board_has_cause(comm->board) ||
            atomic_load_explicit(&comm->me->reported, memory_order_relaxed) != 0);
}

/* Records the failure of ls_init for the launcher, whose report otherwise knows an exit code only,
 * and tells the ranks of other hosts, which may have completed ls_init and would see nothing but a
 * connection that breaks. After the deadline none has completed it. */
static void report_failed_init(ls__comm *comm, ls_status status)
{
    LS_ASSERT(status < 0);
    if (comm->me == NULL || is_of_other(comm, status)) {
        return;
    }
    if (status == LS_ERR_TIMEOUT && !comm->arrival.explained) {
        explain_late(comm);
    }
    ls__comm_record_failure(comm, status, ls_error_message());
    if (status != LS_ERR_TIMEOUT) {
        ls__remote_leave(comm);
    }
}

/* The world's data travels by the backend of LOCKSTEP_BACKEND. The ranks talk about it by
 * operations of the world, for which the runtime must be there. */
static ls_status give_backend(ls__comm *comm)
{
    const char *backend = ls__setting_get("LOCKSTEP_BACKEND");
    if (ls__backend_is_native(backend)) {
        return LS_OK;
    }
    comm->runtime->layer[LS__LAYER_COMM].data = comm;
    const ls_status status = ls__plugin_attach(comm->world, backend);
    comm->runtime->layer[LS__LAYER_COMM].data = NULL;
    return status;
}

static ls_status start(ls_runtime *runtime, const ls_init_options *options)
{
    runtime->seed = options->seed;
    if (options->timeout_ms > 0) {
        runtime->timeout_ms = options->timeout_ms;
    }
    ls__comm *comm = comm_new(runtime);
    if (comm == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the runtime");
    }
    ls_status status = open_comm(comm, options->threads);
    if (status == LS_OK) {
        status = give_backend(comm);
    }
    if (status != LS_OK) {
        report_failed_init(comm, status);
        close_comm(comm);
        return status;
    }
    runtime->layer[LS__LAYER_COMM].data = comm;
    runtime->layer[LS__LAYER_COMM].free = free_comm;
    if (options->graceful_stop) {
        answer_stops(comm);
    }
    atomic_store_explicit(&comm->me->life, LS__LIFE_JOINED, memory_order_release);
    ls__comm_trace_begin(comm);
    (void)ls__activity_enter(LS__PHASE_USER, NULL);
    LS__INFO(
        "lockstep %s: rank %d of %d, process %d, %d compute thread%s, %s kernels, deadline %g s",
        LS_VERSION, runtime->rank, runtime->world_size, runtime->pid, runtime->threads,
        runtime->threads == 1 ? "" : "s", ls__cpu_name(ls__cpu_level()),
        (double)runtime->timeout_ms * 1e-3);
    return LS_OK;
}

ls_status ls__init_with(const ls__env *env, const ls_init_options *given)
{
    LS_READ_OPTIONS(ls_init_options, options, given, "ls_init", LS_ERR_INVALID);
    if (ls__self.runtime != NULL) {
        return ls__runtime_get("ls_init") == NULL
                   ? ls__self.status
                   : ls__fail(LS_ERR_STATE, "ls_init: this thread has a runtime already; call "
                                            "ls_finalize before a second ls_init");
    }
    if (options.timeout_ms < 0 || options.threads < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: timeout_ms is %lld and threads %d; give positive "
                        "numbers, or 0 for the defaults",
                        (long long)options.timeout_ms, options.threads);
    }
    ls_runtime *runtime = env->allocate(env, sizeof *runtime);
    if (runtime == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the runtime");
    }
    ls__runtime_init(runtime, env);
    runtime->rank = -1; /* not known until adopt_boot: the log then names no rank */
    ls__self.runtime = runtime;
    ls_status status = start(runtime, &options);
    if (status != LS_OK) {
        ls__self.runtime = NULL;
        env->release(env, runtime, sizeof *runtime);
    }
    return status;
}

ls_status ls_init(const ls_init_options *options)
{
    return ls__init_with(ls__env_posix(), options);
}

ls_status ls_finalize(void)
{
    ls_runtime *runtime = ls__runtime_get("ls_finalize");
    if (runtime == NULL) {
        return ls__self.status;
    }
    LS_TRY(ls__work_may_wait("ls_finalize"));
    const ls__env *env = runtime->env;
    ls__runtime_dismiss(runtime);
    for (int l = LS__LAYER_COUNT - 1; l >= 0; l--) {
        if (runtime->layer[l].data != NULL && runtime->layer[l].free != NULL) {
            runtime->layer[l].free(runtime, runtime->layer[l].data);
        }
    }
    ls__self.runtime = NULL;
    env->release(env, runtime, sizeof *runtime);
    return LS_OK;
}
