/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting to the ranks of other hosts in ls_init, and leaving them in ls_finalize. The
 * protocol is described in remote.h.
 *
 *     ls_init       ls__remote_open     which ranks are remote; their cached state
 *                   heaps of local ranks are mapped
 *                   ls__remote_connect  TCP connections, host names and pids, doorbells
 *     ls_finalize   ls__remote_leave    last messages, BYE, answers
 *                   ls__remote_close    memory, after the transport is closed
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/settings.h"
#include "base/size.h"
#include "comm/backend/mpi_choice.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/comm.h"
#include "comm/core/progress_lock.h"
#include "comm/core/remote_rank.h"
#include "comm/engine/engine.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/p2p/p2p.h"
#include "comm/remote/remote.h"
#include "comm/runtime/init.h"
#include "comm/transport/mpi.h"
#include "comm/transport/tcp.h"
#include "comm/transport/transport.h"
#include "job/store/store.h"

/* ---- which ranks are remote --------------------------------------------------------------- */

/* LOCKSTEP_HOSTS: pretended hosts, for tests: their number, or one number a rank ("0,0,1"). */
static int pretended_host(const char *text, int rank)
{
    if (strchr(text, ',') == NULL) {
        const long hosts = strtol(text, NULL, 10);
        return hosts > 0 ? rank % (int)(hosts < 1024 ? hosts : 1024) : 0;
    }
    for (int i = 0; i < rank && text != NULL; i++) {
        text = strchr(text, ',');
        text = text != NULL ? text + 1 : NULL;
    }
    return text != NULL ? (int)strtol(text, NULL, 10) : 0;
}

/* Ranks of pretended hosts count as remote although they share this one. */
static bool is_remote(const ls__comm *comm, const char *hosts, int rank)
{
    return ls__board_local(comm->board, rank) < 0 ||
           (hosts != NULL &&
            pretended_host(hosts, rank) != pretended_host(hosts, comm->runtime->rank));
}

/* ---- cached state ------------------------------------------------------------------------- */

/* The control block behind the header needs the alignment of a cache line. */
static size_t header_bytes(void)
{
    return ls__round_up(sizeof(ls__heap_header), LS__CACHE_LINE);
}

/* The cached heap of a remote rank: its header and its control block of the world. */
static size_t cache_bytes(void)
{
    return header_bytes() + sizeof(ls__control_block);
}

/* A cached board record holds one flight, the last operation of the rank. */
static size_t record_bytes(void)
{
    return offsetof(ls__board_rank, flight) + sizeof(ls__flight_record);
}

/* The cached state begins as that of a rank that has joined and announced nothing. */
static ls_status make_cache(ls__comm *comm, int r)
{
    const ls__env *env = comm->env;
    ls__remote_rank *rank = &comm->remote->rank[r];
    LS_ASSERT(rank->cache == NULL && rank->record == NULL);
    rank->cache = env->allocate(env, cache_bytes());
    rank->record = env->allocate(env, record_bytes());
    if (rank->cache == NULL || rank->record == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for the cached state of rank %d", r);
    }
    memset(rank->record, 0, record_bytes());
    memset(rank->cache, 0, header_bytes());
    ls__control_clear((ls__control_block *)(void *)(rank->cache + header_bytes()));
    ((ls__heap_header *)(void *)rank->cache)->world = header_bytes();
    atomic_store_explicit(&rank->record->life, LS__LIFE_JOINED, memory_order_relaxed);
    snprintf(rank->host, sizeof rank->host, "unknown");
    comm->heap.peer[r] = (ls__heap_peer){.base = rank->cache, .remote = true};
    return LS_OK;
}

/* One allocation: the struct and its three arrays. */
static size_t remote_bytes(int size, int local)
{
    return sizeof(ls__remote) + (size_t)size * (sizeof(ls__remote_rank) + sizeof(bool)) +
           (size_t)local * sizeof(int);
}

/* NULL: no memory. No rank is marked as remote yet. */
static ls__remote *remote_new(const ls__comm *comm)
{
    const int size = comm->runtime->world_size, local = comm->board->ranks;
    ls__remote *remote = comm->env->allocate(comm->env, remote_bytes(size, local));
    if (remote != NULL) {
        memset(remote, 0, remote_bytes(size, local));
        remote->rank = (ls__remote_rank *)(void *)(remote + 1);
        remote->bell = (int *)(void *)(remote->rank + size);
        remote->is = (bool *)(remote->bell + local);
        for (int i = 0; i < local; i++) {
            remote->bell[i] = -1;
        }
        for (int r = 0; r < size; r++) {
            ls__list_init(&remote->rank[r].waiting);
        }
    }
    return remote;
}

/* On failure ls__remote_close releases what exists. */
ls_status ls__remote_open(ls__comm *comm)
{
    LS_ASSERT(comm->remote == NULL);
    const char *hosts = ls__setting_get("LOCKSTEP_HOSTS");
    const int size = comm->runtime->world_size;
    bool any = false;
    for (int r = 0; r < size; r++) {
        any = any || is_remote(comm, hosts, r);
    }
    if (!any) {
        return LS_OK;
    }
    comm->remote = remote_new(comm);
    if (comm->remote == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory for ranks on other hosts");
    }
    for (int r = 0; r < size; r++) {
        if (is_remote(comm, hosts, r)) {
            comm->remote->is[r] = true;
            comm->remote->count++;
            LS_TRY(make_cache(comm, r));
        }
    }
    return LS_OK;
}

/* ---- doorbells ---------------------------------------------------------------------------- */

/* Waits for the event of a local rank. */
static ls_status get_bell(ls__comm *comm, int rank, const char *key, int *out)
{
    ls_status status;
    do {
        status = ls__store_get_fd(comm->boot.store, key, out, ls__arrival_slice_ms(&comm->arrival));
    } while (ls__arrival_goes_on(&comm->arrival, status, rank));
    return status;
}

/* Sleepers of this host wait in a poller, so a store to shared memory does not wake them: each rank
 * has an event beside its doorbell, which the local ranks pass to each other by the store. */
static ls_status share_bells(ls__comm *comm)
{
    const ls__env *env = comm->env;
    ls__remote *remote = comm->remote;
    const int own = comm->runtime->local_rank;
    char key[32];
    remote->bell[own] = env->event_open(env);
    if (remote->bell[own] < 0) {
        return ls__fail(LS_ERR_SYSTEM, "ls_init: cannot create the event that wakes this rank: %s",
                        strerror(-remote->bell[own]));
    }
    LS_TRY(ls__tcp_watch_bell(remote->net, remote->bell[own]));
    if (comm->board->ranks == 1) {
        return LS_OK;
    }
    snprintf(key, sizeof key, "bell/%d", comm->runtime->rank);
    LS_TRY(ls__store_put_fd(comm->boot.store, key, remote->bell[own], comm->runtime->timeout_ms));
    for (int r = 0; r < comm->runtime->world_size; r++) {
        const int local = ls__board_local(comm->board, r);
        if (local >= 0 && local != own && !remote->is[r]) {
            snprintf(key, sizeof key, "bell/%d", r);
            LS_TRY(get_bell(comm, r, key, &remote->bell[local]));
        }
    }
    return LS_OK;
}

/* The peer's line in its published address: "pid, lowest rank of its host, host name". A malformed
 * one leaves the host unknown. */
static void learn(void *arg, int peer, const char *about)
{
    ls__remote_rank *rank = &((ls__comm *)arg)->remote->rank[peer];
    int pid = 0;
    if (sscanf(about, "%d %d %63s", &pid, &rank->first, rank->host) == 3) {
        atomic_store_explicit(&rank->record->pid, pid, memory_order_relaxed);
    }
    /* Until its first heartbeat: it publishes its address in ls_init. */
    ls__activity *activity = &rank->record->activity;
    const ls__env *env = ((ls__comm *)arg)->env;
    atomic_store_explicit(&activity->phase, LS__PHASE_START, memory_order_relaxed);
    atomic_store_explicit(&activity->since_ns, env->now_ns(env), memory_order_relaxed);
}

/* Whether MPI has to be abandoned: the launcher has announced a root cause, or a connection broke
 * without a farewell. While this rank leaves, others that have left may close theirs. */
static bool mpi_has_failed(void *arg)
{
    const ls__comm *comm = arg;
    ls__transport *net = comm->remote->net;
    if (ls__board_has_cause(comm->board)) {
        return true;
    }
    for (int r = 0; r < comm->runtime->world_size && !comm->remote->leaving; r++) {
        if (comm->remote->is[r] && comm->remote->rank[r].left_ns == 0 &&
            net->broken(net, r) != NULL) {
            return true;
        }
    }
    return false;
}

/* Initialises MPI. Before the connections are made: the system closes the descriptors of a process
 * that dies in their order, and MPI must not notice a death first. */
static ls_status open_mpi(ls__comm *comm, const ls_backend_transport **table, void **mpi)
{
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    const int size = comm->runtime->world_size;
    int world_rank[LS__PROGRAM_RANKS_MAX], host[LS__PROGRAM_RANKS_MAX];
    char error[LS_BACKEND_ERROR_MAX] = "";
    ls__plugin *plugin = NULL;
    if (plane == NULL || strcmp(plane, LS__BACKEND_MPI) != 0) {
        return LS_OK;
    }
    LS_TRY(ls__plugin_of(comm, LS__BACKEND_MPI, &plugin));
    if ((plugin->can.flags & LS_BACKEND_PROGRAMS) == 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_init: LOCKSTEP_DATA_PLANE=mpi: %s carries no messages between hosts; "
                        "set LOCKSTEP_MPI to openmpi or mpich",
                        plugin->path);
    }
    *table = plugin->table->transport;
    for (int r = 0; r < size; r++) {
        world_rank[r] = r;
        host[r] = ls__comm_host_of(comm, r);
    }
    const ls_backend_group_spec world = {.size = sizeof world,
                                         .name = "world",
                                         .job = comm->board->job,
                                         .generation = comm->board->generation,
                                         .rank = comm->runtime->rank,
                                         .ranks = size,
                                         .world_rank = world_rank,
                                         .host = host,
                                         .timeout_ms = comm->runtime->timeout_ms,
                                         .world_ranks = size};
    const ls_status status = (*table)->open(&world, ls__mpi_requests(size), mpi, error);
    if (status > 0) {
        return ls__user_status(status, "ls_init: LOCKSTEP_DATA_PLANE=mpi: open");
    }
    if (status == LS_OK) {
        return LS_OK;
    }
    return ls__board_has_cause(comm->board)
               ? ls__fail(LS_ERR_PEER, "ls_init: %.1000s", comm->board->root_cause_text)
               : ls__fail(status, "ls_init: LOCKSTEP_DATA_PLANE=mpi: %s", error);
}

/* Waits until MPI has made the communicator, which needs all ranks, and puts it over TCP. */
static ls_status connect_mpi(ls__comm *comm, const ls_backend_transport *table, void *mpi)
{
    ls__remote *remote = comm->remote;
    const ls__env *env = comm->env;
    char error[LS_BACKEND_ERROR_MAX] = "";
    ls_status status = LS_IN_PROGRESS;
    while (status == LS_IN_PROGRESS) {
        if (mpi_has_failed(comm) || ls__arrival_left_ms(&comm->arrival) <= 0) {
            return ls__fail(LS_ERR_TIMEOUT, "ls_init: MPI has not connected all ranks: one of them "
                                            "has not come, or has failed");
        }
        status = table->connect(mpi, error);
        if (status == LS_IN_PROGRESS) {
            ls__tcp_sleep(remote->net, env->now_ns(env) + LS__MPI_POLL_MAX_NS);
        }
    }
    if (status > 0) {
        return ls__user_status(status, "ls_init: LOCKSTEP_DATA_PLANE=mpi: connect");
    }
    if (status != LS_OK) {
        return ls__fail(status, "ls_init: LOCKSTEP_DATA_PLANE=mpi: %s", error);
    }
    const ls__mpi_spec spec = {.env = env,
                               .table = table,
                               .mpi = mpi,
                               .rank = comm->runtime->rank,
                               .size = comm->runtime->world_size,
                               .remote = remote->is,
                               .control = remote->net,
                               .failed = mpi_has_failed,
                               .arg = comm,
                               .calls = &comm->plugins.calls};
    return ls__mpi_transport_new(&spec, &remote->mpi);
}

/* Connects to all remote ranks by TCP. */
static ls_status connect_tcp(ls__comm *comm)
{
    const ls__boot *boot = &comm->boot;
    const bool inside =
        boot->address[0] == '\0'; /* pretended hosts: all traffic stays on this one */
    char about[96], config[LS__CONFIG_MAX];
    snprintf(about, sizeof about, "%d %d %.63s", comm->runtime->pid,
             ls__comm_host_of(comm, comm->runtime->rank), comm->board->host);
    ls__comm_config(comm, config, sizeof config);
    const ls__tcp_spec spec = {
        .link = {.env = comm->env,
                 .secret = boot->secret,
                 .mode = inside || boot->plain ? LS__LINK_PLAIN : LS__LINK_TLS,
                 .purpose = "data",
                 .job = comm->board->job},
        .rank = comm->runtime->rank,
        .size = comm->runtime->world_size,
        .remote = comm->remote->is,
        .generation = comm->board->generation,
        .connections =
            (int)ls__setting_int("LOCKSTEP_TCP_CONNECTIONS", 2, 1, LS__TCP_CONNECTIONS_MAX),
        .address = inside ? "127.0.0.1" : boot->address,
        .store = boot->store,
        .about = about,
        .config = config,
        .board = comm->board,
        .arrival = &comm->arrival,
        .timeout_ms = comm->runtime->timeout_ms};
    LS_TRY(ls__tcp_transport_new(&spec, learn, comm, &comm->remote->net));
    comm->remote->net->place = ls__message_place;
    comm->remote->net->place_arg = comm;
    return LS_OK;
}

/* Makes comm->transport of the one inside the host and the one between hosts. */
static ls_status connect_all(ls__comm *comm, ls__transport *host)
{
    ls__remote *remote = comm->remote;
    const ls_backend_transport *table = NULL;
    void *mpi = NULL;
    LS_TRY(open_mpi(comm, &table, &mpi));
    ls_status status = connect_tcp(comm);
    if (status == LS_OK && mpi != NULL) {
        status = connect_mpi(comm, table, mpi);
    }
    if (mpi != NULL && status != LS_OK) {
        table->close(mpi, true);
    }
    LS_TRY(status);
    return ls__mixed_transport_new(comm->env, host, remote->mpi != NULL ? remote->mpi : remote->net,
                                   remote->is, comm->runtime->world_size, &comm->transport);
}

/* On failure all transports are closed. */
ls_status ls__remote_connect(ls__comm *comm, ls__transport *host)
{
    ls__remote *remote = comm->remote;
    LS_ASSERT(remote != NULL && remote->net == NULL);
    const ls_status status = connect_all(comm, host);
    ls__transport *net = remote->mpi != NULL ? remote->mpi : remote->net; /* which owns the other */
    if (status == LS_OK) {
        return share_bells(comm);
    }
    host->close(host);
    if (net != NULL) {
        net->close(net);
    }
    remote->net = remote->mpi = NULL;
    return status;
}

/* ---- leaving ------------------------------------------------------------------------------ */

/* Whether every remote rank that can still answer has answered BYE. */
static bool all_seen(const ls__comm *comm)
{
    for (int r = 0; r < comm->runtime->world_size; r++) {
        const ls__remote_rank *rank = &comm->remote->rank[r];
        if (comm->remote->is[r] && !rank->bye_seen &&
            comm->transport->broken(comm->transport, r) == NULL) {
            return false;
        }
    }
    return true;
}

/* Whether MPI still sends to a rank that has not left; who has may not call MPI again. */
static bool mpi_unsent(const ls__comm *comm)
{
    const ls__remote *remote = comm->remote;
    bool any = false;
    for (int r = 0; remote->mpi != NULL && r < comm->runtime->world_size; r++) {
        any = any || (remote->rank[r].left_ns == 0 && ls__mpi_unsent(remote->mpi, r));
    }
    return any;
}

/* Whether a peer may still need data of this rank: a slow or stopped one reads late. After a
 * failure no peer waits for it. */
static bool has_unsent(const ls__comm *comm)
{
    bool any = ls__tcp_unsent(comm->remote->net) || mpi_unsent(comm);
    for (int r = 0; r < comm->runtime->world_size; r++) {
        any = any || (!ls__list_empty(&comm->remote->rank[r].waiting) &&
                      comm->transport->broken(comm->transport, r) == NULL);
    }
    return any && comm->world != NULL &&
           atomic_load_explicit(&comm->world->failure.status, memory_order_relaxed) == 0;
}

/* Waits for the answers to BYE; as long as data is unsent the wait is extended, up to the user's
 * timeout. Closing earlier would reset connections with unread data. Once the job has failed this
 * is of no use, and the launcher soon ends the rank, which may have its own error to report. */
void ls__remote_leave(ls__comm *comm)
{
    if (comm->remote == NULL || comm->transport == NULL) {
        return;
    }
    const ls__env *env = comm->env;
    const uint64_t begin = env->now_ns(env);
    const uint64_t latest = begin + (uint64_t)comm->runtime->timeout_ms * 1000000u;
    uint64_t deadline = begin + LS__REMOTE_BYE_NS;
    ls__progress_take(comm);
    LS__LIST_EACH (at, &comm->groups) {
        ls__remote_send_finished(LS__LIST_ITEM(at, ls_group, link));
    }
    (void)ls__remote_turn(comm);
    ls__remote_send_bye(comm);
    for (uint64_t now = begin; (!all_seen(comm) || mpi_unsent(comm)) && now < deadline &&
                               !ls__board_has_cause(comm->board);
         now = env->now_ns(env)) {
        if (!ls__engine_turn(comm, true)) {
            const bool mpi = comm->remote->mpi != NULL; /* works only while it is called */
            ls__tcp_sleep(comm->remote->net, now + (mpi ? LS__MPI_POLL_MAX_NS : LS__CHECK_NS / 10));
        }
        if (has_unsent(comm) && now < latest) {
            deadline = now + LS__REMOTE_BYE_NS;
        }
    }
    ls__progress_release(comm);
}

/* Releases cached state and doorbells; the transport is closed by its owner. */
void ls__remote_close(ls__comm *comm)
{
    ls__remote *remote = comm->remote;
    const ls__env *env = comm->env;
    if (remote == NULL) {
        return;
    }
    for (int i = 0; i < comm->board->ranks; i++) {
        if (remote->bell[i] >= 0) {
            env->close(env, remote->bell[i]);
        }
    }
    for (int r = 0; r < comm->runtime->world_size; r++) {
        if (remote->rank[r].cache != NULL) {
            env->release(env, remote->rank[r].cache, cache_bytes());
        }
        if (remote->rank[r].record != NULL) {
            env->release(env, remote->rank[r].record, record_bytes());
        }
    }
    env->release(env, remote, remote_bytes(comm->runtime->world_size, comm->board->ranks));
    comm->remote = NULL;
}
