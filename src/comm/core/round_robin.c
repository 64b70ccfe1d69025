/* SPDX-License-Identifier: Apache-2.0 */
/* One handle over several groups of the same ranks: collective k runs on groups[k % count] (Li et
 * al. 2020, section 3.3, round-robin process groups), so collectives that are in flight together do
 * not wait for each other. The handle is not a group: the engine does not know it.
 *
 * Every rank calls collectives in the same order, so all ranks take the same turn without talking
 * to each other. Point-to-point messages would not, since not all ranks call them: they use
 * groups[0]. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"
#include "comm/core/round_robin.h"

struct ls__round_robin {
    size_t bytes; /* of this struct */
    int count;
    _Atomic uint64_t passed; /* collectives started. Sync: relaxed; the user orders the callers */
    ls_group *group[];       /* [count], borrowed */
};

/* The number of groups behind a handle; 1 for an ordinary group. */
int ls__round_robin_count(const ls_group *group)
{
    return group->turns != NULL ? group->turns->count : 1;
}

/* Group i behind the handle, or the group itself. The cast only removes `const`: groups are changed
 * through handles that the caller owns. */
ls_group *ls__round_robin_at(const ls_group *group, int i)
{
    LS_ASSERT(i >= 0 && i < ls__round_robin_count(group));
    return group->turns != NULL ? group->turns->group[i] : (ls_group *)(uintptr_t)group;
}

/* Messages all use the first group, so that they match in the order of their calls. */
ls_group *ls__round_robin_group(ls_group *group, bool p2p)
{
    ls__round_robin *turns = group->turns;
    if (turns == NULL) {
        return group;
    }
    const uint64_t passed = atomic_load_explicit(&turns->passed, memory_order_relaxed);
    return turns->group[p2p ? 0 : passed % (uint64_t)turns->count];
}

/* Counted only after the operation has started: a refused call does not shift the turn of this rank
 * against the others. */
void ls__round_robin_pass(ls_group *group, bool p2p)
{
    if (group->turns != NULL && !p2p) {
        atomic_fetch_add_explicit(&group->turns->passed, 1, memory_order_relaxed);
    }
}

/* Local: the groups behind the handle stay open. */
void ls__round_robin_free(ls_group *handle)
{
    LS_ASSERT(handle->turns != NULL);
    const ls__env *env = handle->comm->env;
    ls__packs_free(handle);
    for (int i = 0; i < handle->turns->count; i++) {
        ls__group_use(handle->turns->group[i], LS__USER_ROUND_ROBIN, -1);
    }
    env->release(env, handle->turns, handle->turns->bytes);
    env->release(env, handle, sizeof *handle);
}

/* Whether both groups have the same ranks in the same order. */
static bool same_members(const ls_group *a, const ls_group *b)
{
    for (int r = 0; a->size == b->size && r < a->size; r++) {
        if (a->member[r].world_rank != b->member[r].world_rank) {
            return false;
        }
    }
    return a->size == b->size;
}

/* All groups must have the same ranks in the same order: a handle has one rank and size. */
static ls_status check(ls_group *const *groups, int count, ls_group **out)
{
    if (groups == NULL || out == NULL || count < 1) {
        return ls__fail(LS_ERR_INVALID, "ls_group_round_robin: groups or out is NULL, or the list "
                                        "is empty; give groups and a place for the handle");
    }
    for (int i = 0; i < count; i++) {
        if (groups[i] == NULL || groups[i]->turns != NULL) {
            return ls__fail(LS_ERR_INVALID, "ls_group_round_robin: groups[%d] is %s; give groups",
                            i, groups[i] == NULL ? "NULL" : "itself a handle over several");
        }
        if (!same_members(groups[0], groups[i])) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_group_round_robin: groups \"%s\" and \"%s\" do not have the same "
                            "ranks in the same order; make them by ls_group_new with ranks NULL",
                            groups[0]->name, groups[i]->name);
        }
        for (int k = 0; k < i; k++) {
            if (groups[k] == groups[i]) {
                return ls__fail(LS_ERR_INVALID,
                                "ls_group_round_robin: group \"%s\" is listed twice; "
                                "list every group once",
                                groups[i]->name);
            }
        }
    }
    return LS_OK;
}

/* Local, not collective. The handle borrows the groups, and its members are those of the first. */
ls_status ls_group_round_robin(ls_group *const *groups, int count, const char *name, ls_group **out)
{
    ls__comm *comm = ls__comm_get("ls_group_round_robin");
    size_t bytes = 0;
    if (comm == NULL) {
        return ls__self.status;
    }
    LS_TRY(check(groups, count, out));
    *out = NULL;
    const bool fits = ls__mul_size((size_t)count, sizeof *groups, &bytes) &&
                      ls__add_size(bytes, sizeof(ls__round_robin), &bytes);
    ls_group *handle = fits ? comm->env->allocate(comm->env, sizeof *handle) : NULL;
    ls__round_robin *turns = handle != NULL ? comm->env->allocate(comm->env, bytes) : NULL;
    if (turns == NULL) {
        if (handle != NULL) {
            comm->env->release(comm->env, handle, sizeof *handle);
        }
        return ls__fail(LS_ERR_MEMORY, "ls_group_round_robin: no memory for %d groups", count);
    }
    memset(handle, 0, sizeof *handle);
    memset(turns, 0, bytes);
    turns->bytes = bytes;
    turns->count = count;
    for (int i = 0; i < count; i++) {
        turns->group[i] = groups[i];
        ls__group_use(groups[i], LS__USER_ROUND_ROBIN, 1);
    }
    handle->comm = comm;
    handle->turns = turns;
    handle->rank = groups[0]->rank;
    handle->size = groups[0]->size;
    handle->has_remote = groups[0]->has_remote;
    handle->member = groups[0]->member;
    handle->backend = groups[0]->backend;
    handle->plugin = groups[0]->plugin;
    handle->can = groups[0]->can;
    ls__list_init(&handle->packs);
    snprintf(handle->name, sizeof handle->name, "%s", name != NULL ? name : "round robin");
    *out = handle;
    return LS_OK;
}
