/* SPDX-License-Identifier: Apache-2.0 */
/* A group's life on this rank: memory, members, and the engine's list. No rank waits for another
 * here.
 *
 *     make (all memory) ▸ the exchange of group.c ▸ join (number, members) ▸ close ▸ forget
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "comm/backend/plugin.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"
#include "comm/core/plan.h"
#include "comm/engine/engine.h"
#include "comm/memory/control.h"
#include "comm/tune/choice.h"

/* The table of plans: one entry for each that the size of the group allows. */
static size_t plans_bytes(int size)
{
    return ls__select_plans(size) * sizeof(ls__plan);
}

/* The struct with its arrays, all zero; NULL: no memory. */
static ls_group *group_allocate(ls__comm *comm, int size)
{
    const ls__env *env = comm->env;
    ls_group *group = env->allocate(env, sizeof *group);
    ls__group_member *member = env->allocate(env, (size_t)size * sizeof *member);
    ls__plan *plans = env->allocate(env, plans_bytes(size));
    if (group == NULL || member == NULL || plans == NULL) {
        if (group != NULL) {
            env->release(env, group, sizeof *group);
        }
        if (member != NULL) {
            env->release(env, member, (size_t)size * sizeof *member);
        }
        if (plans != NULL) {
            env->release(env, plans, plans_bytes(size));
        }
        return NULL;
    }
    memset(group, 0, sizeof *group);
    memset(member, 0, (size_t)size * sizeof *member);
    memset(plans, 0, plans_bytes(size));
    group->member = member;
    group->plans = plans;
    return group;
}

/* Only caches that the group owns; the world's belong to remote.c. */
static void release_caches(ls_group *group)
{
    const ls__env *env = group->comm->env;
    for (int r = 0; r < group->size; r++) {
        if (group->member[r].cache != NULL) {
            env->release(env, group->member[r].cache, sizeof(ls__control_block));
        }
    }
}

/* The group must be closed, or never have been open, and no handle may be left. */
void ls__group_forget(ls_group *group)
{
    LS_ASSERT(group->handles == 0);
    const ls__env *env = group->comm->env;
    const size_t count = ls__select_plans(group->size);
    for (size_t i = 0; i < count; i++) {
        ls__program_free((ls__program *)group->plans[i].program);
    }
    release_caches(group);
    ls__tuning_close(group);
    env->release(env, group->plans, plans_bytes(group->size));
    env->release(env, group->member, (size_t)group->size * sizeof *group->member);
    env->release(env, group, sizeof *group);
}

/* Allocates the cached control blocks of remote members. The world has none of its own: they lie
 * behind the cached heap headers. */
static ls_status make_caches(ls_group *group, const ls__group_spec *spec)
{
    ls__comm *comm = group->comm;
    for (int r = 0; r < spec->size; r++) {
        ls__group_member *m = &group->member[r];
        if (!comm->heap.peer[spec->world_rank[r]].remote) {
            continue;
        }
        m->cache = comm->env->allocate(comm->env, sizeof *m->cache);
        if (m->cache == NULL) {
            return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", spec->size);
        }
        ls__control_clear(m->cache);
    }
    return LS_OK;
}

/* The parts with memory of their own. On failure ls__group_forget releases those that exist. */
static ls_status open_parts(ls_group *group, const ls__group_spec *spec, bool caches)
{
    if (caches) {
        LS_TRY(make_caches(group, spec));
    }
    return group->backend->open(group);
}

/* Does all of the creation that can fail on one rank alone. The group has no number yet, and the
 * engine does not know it. */
ls_status ls__group_make(ls__comm *comm, const ls__group_spec *spec, bool caches, ls_group **out)
{
    LS_ASSERT(spec->rank >= 0 && spec->rank < spec->size);
    ls_group *group = group_allocate(comm, spec->size);
    if (group == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", spec->size);
    }
    group->comm = comm;
    group->backend = &ls__backend_native;
    group->can = &ls__native_can;
    group->rank = spec->rank;
    group->size = spec->size;
    group->channels = comm->channels;
    ls__list_init(&group->queue);
    ls__list_init(&group->inbox.works);
    ls__list_init(&group->packs);
    const ls_status status = open_parts(group, spec, caches);
    if (status != LS_OK) {
        ls__group_forget(group);
        return status;
    }
    *out = group;
    return LS_OK;
}

/* Before the join no peer knows the group, so its memory is released at once. */
void ls__group_unmake(ls_group *group)
{
    if (group != NULL) {
        group->backend->close(group);
        ls__group_forget(group);
    }
}

/* An unnamed group is called by its number, which is equal on all ranks. */
static void put_name(ls_group *group, const char *name)
{
    if (name != NULL) {
        snprintf(group->name, sizeof group->name, "%s", name);
    } else {
        snprintf(group->name, sizeof group->name, "group %u", group->id);
    }
}

/* Resolves the members' control blocks and board records, in shared memory or cached. */
static void put_members(ls_group *group, const ls__group_spec *spec)
{
    ls__comm *comm = group->comm;
    for (int r = 0; r < spec->size; r++) {
        const int world_rank = spec->world_rank[r];
        unsigned char *base = comm->heap.peer[world_rank].base;
        ls__group_member *m = &group->member[r];
        m->world_rank = world_rank;
        m->remote = comm->heap.peer[world_rank].remote;
        m->local = m->remote ? -1 : ls__board_local(comm->board, world_rank);
        m->record = ls__comm_record(comm, world_rank);
        m->base = m->remote ? NULL : base;
        LS_ASSERT(m->cache != NULL || base != NULL);
        m->control =
            m->cache != NULL ? m->cache : (ls__control_block *)(void *)(base + spec->control[r]);
        group->has_remote = group->has_remote || m->remote;
    }
}

/* Cannot fail. The caller holds the progress lock, because the list of groups changes. */
void ls__group_join(ls_group *group, const ls__group_spec *spec)
{
    LS_ASSERT(group->own == NULL && group->rank >= 0 && group->rank < spec->size);
    ls__comm *comm = group->comm;
    group->id = spec->id;
    put_name(group, spec->name);
    put_members(group, spec);
    group->own = group->member[group->rank].control;
    ls__lock_take(&comm->lock, comm->env);
    ls__list_push_back(&comm->groups, &group->link);
    ls__unlock(&comm->lock, comm->env);
}

/* The caller holds the progress lock. Handles of operations that have ended may outlive the group,
 * and the last of them frees the struct. */
void ls__group_close(ls_group *group)
{
    LS_ASSERT(!group->closed);
    ls__comm *comm = group->comm;
    ls__packs_free(group);
    ls__lock_take(&comm->lock, comm->env);
    ls__list_remove(&group->link);
    ls__unlock(&comm->lock, comm->env);
    group->backend->close(group);
    const ls__env *env = comm->env;
    ls__lock_take(&comm->lock, env);
    group->closed = true;
    const bool last = group->handles == 0;
    ls__unlock(&comm->lock, env);
    if (last) {
        ls__group_forget(group);
    }
}
