/* SPDX-License-Identifier: Apache-2.0 */
/* Giving a group a plug-in: opening, connecting, and agreeing about it. */
#include <stdio.h>
#include <string.h>

#include <lockstep/comm.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/core/progress_lock.h"
#include "comm/diagnose/fail.h"
#include "comm/group/make.h"
#include "job/board.h"

/* What each rank contributes to the opening of a group. */
typedef struct hello {
    int32_t status; /* of loading and opening */
    char text[LS_BACKEND_ERROR_MAX];
    ls_backend_capabilities can;
    unsigned char address[LS_BACKEND_ADDRESS_MAX];
} hello;

typedef struct opening {
    ls_group *group;
    const char *asked;
    ls__plugin_group *part;
    hello *hello;             /* [size] */
    unsigned char *addresses; /* [size][address_bytes] */
} opening;

static ls_status open_part(const opening *o, hello *mine)
{
    ls_group *group = o->group;
    ls__comm *comm = group->comm;
    int world_rank[LS__PROGRAM_RANKS_MAX], host[LS__PROGRAM_RANKS_MAX];
    LS_TRY(ls__plugin_of(comm, o->asked, &o->part->plugin));
    for (int r = 0; r < group->size; r++) {
        world_rank[r] = group->member[r].world_rank;
        host[r] = comm->remote != NULL ? ls__comm_host_of(comm, world_rank[r]) : 0;
    }
    const ls_backend_group_spec spec = {.size = sizeof spec,
                                        .name = group->name,
                                        .job = comm->board->job,
                                        .id = group->id,
                                        .generation = comm->board->generation,
                                        .rank = group->rank,
                                        .ranks = group->size,
                                        .world_rank = world_rank,
                                        .host = host,
                                        .timeout_ms = comm->runtime->timeout_ms,
                                        .world_ranks = comm->runtime->world_size};
    mine->can = o->part->plugin->can;
    ls__progress_take(comm);
    const ls_status status =
        o->part->plugin->table->open(&spec, mine->address, &o->part->group, mine->text);
    ls__progress_release(comm);
    if (status > 0) {
        return ls__user_status(status, "open");
    }
    return status == LS_OK ? LS_OK : ls__fail(status, "%s", mine->text);
}

/* All ranks tell each other how far they have come. */
static ls_status exchange(const opening *o, const hello *mine)
{
    return ls__collective_start(
        o->group,
        &(ls__collective){.operation = LS__OP_ALL_GATHER,
                          .input = mine,
                          .output = o->hello,
                          .count = sizeof *mine,
                          .dtype = LS_UINT8,
                          .control = true,
                          .options = LS_OPTIONS(ls_collective_options, .tag = "backend")},
        NULL);
}

/* The same failure on all ranks: that of the lowest one. */
static ls_status compare(const opening *o)
{
    const ls_group *group = o->group;
    for (int r = 0; r < group->size; r++) {
        const hello *h = &o->hello[r];
        if (h->status != LS_OK) {
            char text[LS_BACKEND_ERROR_MAX];
            snprintf(text, sizeof text, "%s", h->text);
            const int rank = group->member[r].world_rank;
            const ls_status status = ls__fail(
                (ls_status)h->status, "group \"%s\" cannot have backend \"%s\": rank %d: %s",
                group->name, o->asked, rank, text);
            ls__comm_record_found(group->comm, status, rank, ls_error_message());
            return status;
        }
        if (memcmp(&h->can, &o->hello[0].can, sizeof h->can) != 0) {
            return ls__fail(
                LS_ERR_MISMATCH,
                "group \"%s\" cannot have backend \"%s\": it promises something else on "
                "rank %d than on rank %d; install the same plug-in on all hosts",
                group->name, o->asked, group->member[r].world_rank, group->member[0].world_rank);
        }
    }
    return LS_OK;
}

/* Calls connect until it has ended, the group has failed or its time is over. */
static ls_status connect_part(const opening *o, hello *mine)
{
    ls_group *group = o->group;
    ls__comm *comm = group->comm;
    const ls__env *env = comm->env;
    const ls_backend *table = o->part->plugin->table;
    const uint64_t end = ls__deadline_after(env, comm->runtime->timeout_ms);
    for (;;) {
        ls__progress_take(comm);
        const ls_status status = table->connect(o->part->group, o->addresses, mine->text);
        ls__progress_release(comm);
        if (status != LS_IN_PROGRESS) {
            if (status > 0) {
                return ls__user_status(status, "connect");
            }
            return status == LS_OK ? LS_OK : ls__fail(status, "%s", mine->text);
        }
        const int32_t failed = atomic_load_explicit(&group->failure.status, memory_order_acquire);
        if (failed != 0) {
            return ls__fail((ls_status)failed, "%s", ls__group_failure(group));
        }
        if (env->now_ns(env) >= end) {
            return ls__fail(LS_ERR_TIMEOUT, "it has not connected the ranks within %.1f s",
                            (double)comm->runtime->timeout_ms * 1e-3);
        }
        env->sleep_until(env, env->now_ns(env) + comm->plugins.poll_ns);
    }
}

/* Loading and opening, then connecting: after each the ranks tell each other how it went. */
static ls_status open_together(const opening *o)
{
    ls_group *group = o->group;
    hello mine;
    memset(&mine, 0, sizeof mine);
    for (int phase = 0; phase < 2; phase++) {
        const ls_status status = phase == 0 ? open_part(o, &mine) : connect_part(o, &mine);
        mine.status = status;
        if (status != LS_OK) {
            snprintf(mine.text, sizeof mine.text, "%.*s", (int)sizeof mine.text - 1,
                     ls_error_message());
        }
        LS_TRY(exchange(o, &mine));
        LS_TRY(compare(o));
        const size_t bytes = mine.can.address_bytes;
        for (int r = 0; phase == 0 && r < group->size; r++) {
            memcpy(o->addresses + (size_t)r * bytes, o->hello[r].address, bytes);
        }
    }
    return LS_OK;
}

/* A rank without memory fails the group, since the others wait for it. */
static ls_status no_memory(ls_group *group)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "group \"%s\": rank %d has no memory for its backend", group->name,
             group->comm->runtime->rank);
    ls__group_fail(group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}

ls_status ls__plugin_attach(ls_group *group, const char *asked)
{
    LS_ASSERT(group->plugin == NULL && !ls__backend_is_native(asked));
    ls__comm *comm = group->comm;
    const ls__env *env = comm->env;
    const size_t size = (size_t)group->size;
    const size_t bytes = size * (sizeof(hello) + LS_BACKEND_ADDRESS_MAX);
    opening o = {.group = group, .asked = asked, .part = env->allocate(env, sizeof *o.part)};
    o.hello = env->allocate(env, bytes);
    if (o.part == NULL || o.hello == NULL) {
        if (o.part != NULL) {
            env->release(env, o.part, sizeof *o.part);
        }
        if (o.hello != NULL) {
            env->release(env, o.hello, bytes);
        }
        return no_memory(group);
    }
    o.addresses = (unsigned char *)(o.hello + size);
    *o.part = (ls__plugin_group){0};
    ls__list_init(&o.part->blocks);
    const ls_status status = open_together(&o);
    ls__progress_take(comm);
    if (status == LS_OK) {
        ls__lock_take(&comm->lock, env);
        group->plugin = o.part;
        group->can = &o.part->plugin->can;
        ls__unlock(&comm->lock, env);
    } else {
        ls__plugin_part_free(group, o.part, true);
    }
    ls__progress_release(comm);
    env->release(env, o.hello, bytes);
    return status;
}
