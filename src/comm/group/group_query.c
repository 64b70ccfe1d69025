/* SPDX-License-Identifier: Apache-2.0 */
/* A group's name, size, backend, memory and counters. Local calls. */
#include "base/options.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/group.h"
#include "comm/core/reclaim.h"
#include "comm/core/round_robin.h"
#include "comm/memory/heap.h"

/* NULL with the error set before ls_init and after ls_finalize. */
ls_group *ls_world(void)
{
    ls__comm *comm = ls__comm_get("ls_world");
    return comm != NULL ? comm->world : NULL;
}

/* Without a group: the one rank of a program that runs alone. */
int ls_group_rank(const ls_group *group)
{
    return group != NULL ? group->rank : 0;
}

int ls_group_size(const ls_group *group)
{
    return group != NULL ? group->size : 1;
}

const char *ls_group_backend(const ls_group *group)
{
    return group != NULL ? ls__backend_name(group) : LS__BACKEND_NATIVE;
}

const char *ls_group_name(const ls_group *group)
{
    return group != NULL ? group->name : "";
}

/* Local. The heap is shared by all groups of this rank; the group only documents the user's
 * purpose. */
ls_status ls_group_alloc(ls_group *group, size_t bytes, void **out)
{
    ls__comm *comm = ls__comm_get("ls_group_alloc");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_alloc: %s is NULL; give the group whose ranks use the memory and "
                        "a place for its address",
                        group == NULL ? "the group" : "out");
    }
    *out = NULL;
    LS_TRY(ls__promise_memory(group));
    return ls__group_buffers(group, bytes, out);
}

/* While a failed group may still touch buffers, freed blocks stay in quarantine. */
ls_status ls_group_dealloc(ls_group *group, void *memory)
{
    ls__comm *comm = ls__comm_get("ls_group_dealloc");
    if (comm == NULL || memory == NULL) {
        return comm == NULL ? ls__self.status : LS_OK;
    }
    if (group != NULL && ls__plugin_dealloc(group, memory)) {
        return LS_OK;
    }
    /* The heap is the rank's; a failure of any group may concern this block. */
    return ls__heap_free(&comm->heap, memory, ls__reclaim_settle(comm));
}

/* A handle over several groups shows their sum. */
ls_status ls_group_get_counters(const ls_group *group, ls_counters *out)
{
    if (group == NULL) {
        return ls__fail(LS_ERR_INVALID, "ls_group_get_counters: the group is NULL; give a group");
    }
    ls_counters now = {.size = sizeof now};
    for (int i = 0; i < ls__round_robin_count(group); i++) {
        const ls_group *one = ls__round_robin_at(group, i);
        now.operations += atomic_load_explicit(&one->counts.operations, memory_order_relaxed);
        now.messages += atomic_load_explicit(&one->counts.messages, memory_order_relaxed);
        now.bytes_sent += atomic_load_explicit(&one->counts.bytes_sent, memory_order_relaxed);
        now.bytes_received +=
            atomic_load_explicit(&one->counts.bytes_received, memory_order_relaxed);
        now.wait_ns += atomic_load_explicit(&one->counts.wait_ns, memory_order_relaxed);
    }
    return ls__struct_fill(out, &now, sizeof now, "ls_counters", "ls_group_get_counters");
}
