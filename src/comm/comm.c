/* What the runtime knows of itself and its ranks: one look-up for the layers above, no waiting, no
 * messages. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/cpu.h"
#include "base/settings.h"
#include "base/text.h"
#include "comm/group/group.h"
#include "comm/memory/control.h"
#include "comm/remote/remote.h"
#include "comm/tune/rules.h"

ls__comm *ls__comm_get(const char *what)
{
    ls_runtime *runtime = ls__runtime_get(what);
    return runtime != NULL ? runtime->layer[LS__LAYER_COMM].data : NULL;
}

ls__board_rank *ls__comm_record(const ls__comm *comm, int world_rank)
{
    const int local = ls__board_local(comm->board, world_rank);
    return comm->remote != NULL && comm->remote->is[world_rank]
               ? comm->remote->rank[world_rank].record
               : &comm->board->rank[local];
}

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
        ls__text_add(&to, "has not been heard of for %.1f s (stopped, or cut off), ",
                     (double)(now - heard) * 1e-9);
    }
    ls__text_add(&to, "%s", doing);
}

ls_store *ls_runtime_store(void)
{
    ls__comm *comm = ls__comm_get("ls_runtime_store");
    return comm != NULL ? comm->boot.store : NULL;
}

/* ---- settings ----------------------------------------------------------------------------- */

/* What ranks must agree on, as text, so that a difference can be shown. The kernel variant is among
 * it because optimizers run on every rank for itself: another one rounds otherwise, and the
 * replicas would drift apart. */
void ls__comm_config(const ls__comm *comm, char *out, size_t bytes)
{
    const char *hosts = ls__setting_get("LOCKSTEP_HOSTS");
    char rules[64] = "";
    if (comm->rules.hash != 0 || comm->tune != LS__TUNE_AUTO) {
        static const char *const modes[] = {"auto", "off"};
        snprintf(rules, sizeof rules, ", tune=%s, LOCKSTEP_ALGORITHM=(%016" PRIx64 ")",
                 modes[comm->tune], comm->rules.hash);
    }
    snprintf(out, bytes,
             "lockstep %s, cpu=%s%s, check=%s, channels=%d, layout %d.%d.%zu.%zu%s%.60s%s",
             ls_version(), ls__cpu_name(ls__cpu_level()),
             ls__cpu_strict() ? ", deterministic=strict" : "", comm->strict ? "strict" : "default",
             comm->channels, LS__HEAP_VERSION, LS__DESCRIPTOR_VERSION, sizeof(ls__control_block),
             sizeof(ls__heap_header), hosts != NULL ? ", LOCKSTEP_HOSTS=" : "",
             hosts != NULL ? hosts : "", rules);
}

/* ---- connecting --------------------------------------------------------------------------- */

static int first_here(const ls__comm *comm)
{
    int rank = 0;
    while (comm->remote->is[rank]) {
        rank++;
    }
    return rank;
}

int ls__comm_host_of(const ls__comm *comm, int world_rank)
{
    return comm->remote->is[world_rank] ? comm->remote->rank[world_rank].first : first_here(comm);
}

int ls__member_of(const ls_group *group, int world_rank)
{
    for (int r = 0; r < group->size; r++) {
        if (group->member[r].world_rank == world_rank) {
            return r;
        }
    }
    return -1;
}
