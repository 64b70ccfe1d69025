/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in the runtime of collectives: its ranks, their names and hosts, its settings. Nothing
 * here waits or sends a message. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "base/hash.h"
#include "base/settings.h"
#include "base/text.h"
#include "comm/algorithm/rules.h"
#include "comm/core/backend.h"
#include "comm/core/group.h"
#include "comm/core/remote_rank.h"
#include "comm/memory/control.h"

/* `what` is the name of the public function, for the error text. */
ls__comm *ls__comm_get(const char *what)
{
    ls_runtime *runtime = ls__runtime_get(what);
    return runtime != NULL ? runtime->layer[LS__LAYER_COMM].data : NULL;
}

/* A local rank's record lies on the board, which all ranks of the host share; a remote rank's is
 * the cached copy that its heartbeats update. */
ls__board_rank *ls__comm_record(const ls__comm *comm, int world_rank)
{
    const int local = ls__board_local(comm->board, world_rank);
    return comm->remote != NULL && comm->remote->is[world_rank]
               ? comm->remote->rank[world_rank].record
               : &comm->board->rank[local];
}

/* Error texts of all ranks use this form, so that reports of one failure can be compared. */
void ls__comm_name(const ls__comm *comm, int world_rank, char *out, size_t bytes)
{
    if (comm->remote == NULL || !comm->remote->is[world_rank]) {
        ls__board_name(comm->board, ls__board_local(comm->board, world_rank), out, bytes);
        return;
    }
    const ls__remote_rank *rank = &comm->remote->rank[world_rank];
    (void)snprintf(out, bytes, "rank %d (host %.63s, pid %d)", world_rank, rank->host,
                   (int)atomic_load_explicit(&rank->record->pid, memory_order_relaxed));
}

/* The name, and the rank's activity as far as it is known here. A remote rank that is silent is
 * reported as such first, since its activity is as old as its last heartbeat. */
void ls__comm_describe(const ls__comm *comm, int world_rank, char *out, size_t bytes)
{
    if (comm->remote == NULL || !comm->remote->is[world_rank]) {
        ls__board_describe(comm->board, comm->env, ls__board_local(comm->board, world_rank), out,
                           bytes);
        return;
    }
    ls__text to = {out, bytes};
    char doing[768], name[128];
    const ls__remote_rank *rank = &comm->remote->rank[world_rank];
    ls__comm_name(comm, world_rank, name, sizeof name);
    ls__board_record_doing(rank->record, comm->env, doing, sizeof doing);
    ls__text_add(&to, "%s ", name);
    const uint64_t now = comm->env->now_ns(comm->env);
    const uint64_t heard = atomic_load_explicit(&rank->record->heartbeat_ns, memory_order_relaxed);
    if (rank->silent && now > heard) {
        ls__text_add(&to, "has sent no heartbeat for %.1f s (stopped, or cut off), ",
                     (double)(now - heard) * 1e-9);
    }
    ls__text_add(&to, "%s", doing);
}

/* Borrowed: ls_finalize closes the store. */
ls_store *ls_runtime_store(void)
{
    ls__comm *comm = ls__comm_get("ls_runtime_store");
    return comm != NULL ? comm->boot.store : NULL;
}

/* ---- settings ----------------------------------------------------------------------------- */

/* The settings on which all ranks must agree, as text, so that an error can show the difference.
 * They include the kernel variant, because every rank runs its optimizer for itself: another
 * variant rounds differently, and the replicas would drift apart. */
void ls__comm_config(const ls__comm *comm, char *out, size_t bytes)
{
    const char *hosts = ls__setting_get("LOCKSTEP_HOSTS");
    const char *rules = ls__setting_get("LOCKSTEP_ALGORITHM");
    const char *plane = ls__setting_get("LOCKSTEP_DATA_PLANE");
    const char *backend = ls__setting_get("LOCKSTEP_BACKEND");
    const bool native = ls__backend_is_native(backend);
    char chosen[160] = ""; /* the hash stands for the end of a long text */
    if (comm->rules.hash != 0) {
        snprintf(chosen, sizeof chosen, ", LOCKSTEP_ALGORITHM=%.80s (%016" PRIx64 ")",
                 rules != NULL ? rules : "", comm->rules.hash);
    }
    snprintf(out, bytes,
             "version=%s, layout=%d.%d.%zu.%zu, LOCKSTEP_CPU=%s, LOCKSTEP_ONEDNN=%d%s, "
             "LOCKSTEP_CHECK=%s, "
             "LOCKSTEP_CHANNELS=%d, LOCKSTEP_TUNE=%s%s%.60s%s%.40s%s%s%s",
             ls_version(), LS__HEAP_VERSION, LS__DESCRIPTOR_VERSION, sizeof(ls__control_block),
             sizeof(ls__heap_header), ls__cpu_name(ls__cpu_level()), ls__cpu_onednn(),
             ls__cpu_strict() ? ", LOCKSTEP_DETERMINISTIC=strict" : "",
             comm->strict ? "strict" : "default", comm->channels,
             comm->tune == LS__TUNE_AUTO ? "auto" : "off", hosts != NULL ? ", LOCKSTEP_HOSTS=" : "",
             hosts != NULL ? hosts : "", native ? "" : ", LOCKSTEP_BACKEND=", native ? "" : backend,
             chosen, ls__setting_get("LOCKSTEP_TRACE") != NULL ? ", LOCKSTEP_TRACE" : "",
             plane != NULL && strcmp(plane, "mpi") == 0 ? ", LOCKSTEP_DATA_PLANE=mpi" : "");
}

/* ---- hosts --------------------------------------------------------------------------- */

/* The lowest rank of this host; this rank is one of them, so the search ends. */
static int first_here(const ls__comm *comm)
{
    int rank = 0;
    while (comm->remote->is[rank]) {
        rank++;
    }
    return rank;
}

/* A rank publishes the lowest rank of its host when it connects (remote_connect.c). */
int ls__comm_host_of(const ls__comm *comm, int world_rank)
{
    return comm->remote->is[world_rank] ? comm->remote->rank[world_rank].first : first_here(comm);
}

/* Linear, since it is called for messages of groups on several hosts and on errors only. */
int ls__member_of(const ls_group *group, int world_rank)
{
    for (int r = 0; r < group->size; r++) {
        if (group->member[r].world_rank == world_rank) {
            return r;
        }
    }
    return -1;
}

uint64_t ls__group_agreement(const ls_group *group)
{
    uint64_t hash = LS__HASH_START;
    for (int i = 0; i < group->size; i++) {
        hash = ls__hash_bytes(hash, &group->member[i].world_rank, sizeof(int));
    }
    return ls__agreement_key(group->size, hash);
}
