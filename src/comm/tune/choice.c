/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of algorithms of a group. Rank 0 shares the measured times once, when the job starts.
 * Every rank then decides for each of its groups by itself; since all use the same numbers and the
 * same arithmetic, all decide alike (Note [Deciding] in tune.h). */
#include "comm/tune/choice.h"

#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"
#include "comm/algorithm/registry.h"
#include "comm/core/comm.h"
#include "comm/core/work.h"
#include "comm/tune/cache.h"
#include "job/store/store.h"

#define KEY "tuning"
#define LINK_BYTES (4 << 20) /* of the all_reduce that stands for a link: as buckets have */

/* The store orders it: the other ranks wait in ls_store_get until rank 0 has set the key. An empty
 * text is shared too, so that they never wait in vain. */
ls_status ls__tuning_share(ls__comm *comm)
{
    const ls__env *env = comm->env;
    if (comm->remote == NULL || comm->tune == LS__TUNE_OFF) {
        return LS_OK;
    }
    comm->timed = env->allocate(env, LS__TUNE_SHARED_MAX);
    if (comm->timed == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory (%zu bytes) for the times of the links",
                        LS__TUNE_SHARED_MAX);
    }
    size_t bytes = LS__TUNE_SHARED_MAX - 1;
    if (comm->runtime->rank == 0) {
        ls__tune_read_file(comm, comm->timed, LS__TUNE_SHARED_MAX);
        bytes = strlen(comm->timed);
        return ls_store_set(comm->boot.store, KEY, comm->timed, bytes, comm->runtime->timeout_ms);
    }
    ls_status status;
    do {
        status = ls_store_get(comm->boot.store, KEY, comm->timed, &bytes,
                              ls__arrival_slice_ms(&comm->arrival));
    } while (ls__arrival_goes_on(&comm->arrival, status, 0));
    LS_TRY(status);
    comm->timed[bytes] = '\0';
    return LS_OK;
}

/* Also after a failed ls_init, when nothing may have been shared. */
void ls__tuning_unshare(ls__comm *comm)
{
    if (comm->timed != NULL) {
        comm->env->release(comm->env, comm->timed, LS__TUNE_SHARED_MAX);
        comm->timed = NULL;
    }
}

ls__layout ls__tuning_layout(const ls_group *group)
{
    ls__layout layout = {.size = group->size};
    if (layout.size > LS__TUNE_RANKS_MAX) {
        layout.size = LS__TUNE_RANKS_MAX;
    }
    /* Hosts are numbered in the order of their first rank, so that equal layouts compare equal. */
    int host[LS__TUNE_RANKS_MAX];
    for (int r = 0, next = 0; r < layout.size; r++) {
        host[r] = ls__comm_host_of(group->comm, group->member[r].world_rank);
        layout.host[r] = -1;
        for (int s = 0; s < r && layout.host[r] < 0; s++) {
            layout.host[r] = host[s] == host[r] ? layout.host[s] : -1;
        }
        layout.host[r] = layout.host[r] < 0 ? next++ : layout.host[r];
    }
    return layout;
}

/* Logs the table once per group: its rank 0 does. */
static void report(const ls_group *group, bool known)
{
    char text[1024] = "";
    ls__text out = {.at = text, .room = sizeof text};
    if (group->rank == 0) {
        ls__tune_print(group->tuning, &out);
        LS__INFO("group \"%s\" uses these algorithms by size in bytes (%s):\n%s", group->name,
                 known ? "from the times in the tuning file" : "by the model's default figures",
                 text);
    }
}

/* Makes the table once per group and keeps it until ls__tuning_close. If memory is missing, nothing
 * is kept, and the caller's operation fails on this rank. */
ls_status ls__tuning_decide(ls_group *group)
{
    ls__comm *comm = group->comm;
    const ls__env *env = comm->env;
    if (!group->has_remote || comm->timed == NULL || group->tuning != NULL) {
        return LS_OK;
    }
    const ls__layout layout = ls__tuning_layout(group);
    ls__timings timings;
    ls__figures figures;
    LS_TRY(ls__timings_init(&timings, &layout, env));
    const bool known = ls__tune_figures(comm->timed, &layout, env, &timings, &figures);
    ls__tune_table *table = env->allocate(env, sizeof *table);
    if (table == NULL) {
        return ls__fail(LS_ERR_MEMORY,
                        "group \"%s\": no memory (%zu bytes) for its choice of algorithms",
                        group->name, sizeof *table);
    }
    const ls_status status = ls__tune_decide(&layout, &timings, &figures, env, table);
    if (status != LS_OK) {
        env->release(env, table, sizeof *table);
        return status;
    }
    group->tuning = table;
    report(group, known);
    return LS_OK;
}

void ls__tuning_close(ls_group *group)
{
    const ls__env *env = group->comm->env;
    if (group->tuning != NULL) {
        env->release(env, group->tuning, sizeof *group->tuning);
        group->tuning = NULL;
    }
}

/* Sizes are those of a rank's larger buffer: for operations in blocks, all blocks together. */
const ls__algorithm *ls__tuning_find(const ls_group *group, const ls_work *work)
{
    if (group->tuning == NULL || work->algorithm != NULL) {
        return work->algorithm;
    }
    const ls__operation_traits *traits = ls__operation_traits_of(work->operation);
    const int64_t blocks = traits->in_blocks || traits->out_blocks ? group->size : 1;
    return ls__tune_find(group->tuning, work->operation,
                         work->count * blocks * (int64_t)work->element);
}

/* Without a table (one host, or tuning is off) the announcement's own limit decides. */
bool ls__tuning_one_shot(const ls_group *group, size_t bytes)
{
    LS_ASSERT(group->tuning == NULL || group->has_remote);
    return group->tuning == NULL ||
           (group->tuning->one_shot > 0 && bytes <= (size_t)group->tuning->one_shot);
}

/* ---- queries of the user ------------------------------------------------------------------- */

/* The table, decided now if no operation has asked for it yet. */
static ls_status table_of(ls_group *group, const ls__tune_table **out)
{
    ls__comm *comm = group->comm;
    ls__lock_take(&comm->lock, comm->env);
    const ls_status status = ls__tuning_decide(group);
    *out = group->tuning;
    ls__unlock(&comm->lock, comm->env);
    return status;
}

ls_status ls__tuning_link(ls_group *group, ls__tune_link *out)
{
    *out = ls__tune_shared_memory;
    if (!group->has_remote) {
        return LS_OK;
    }
    const ls__tune_table *table = NULL;
    LS_TRY(table_of(group, &table));
    const ls__algorithm *found =
        table != NULL ? ls__tune_find(table, LS__OP_ALL_REDUCE, LINK_BYTES) : NULL;
    const ls__layout layout = ls__tuning_layout(group);
    ls__counts counts;
    LS_TRY(ls__tune_count(found != NULL ? found : ls__algorithm_find(LS__OP_ALL_REDUCE, "direct"),
                          &layout, group->comm->env, &counts));
    *out = ls__tune_line(table != NULL ? &table->figures : &ls__tune_default_figures, &counts);
    return LS_OK;
}

/* For reports; it decides like an operation of this size would. */
const char *ls__tuning_name(ls_group *group, ls__operation operation, int64_t bytes)
{
    const ls__tune_table *table = NULL;
    if (table_of(group, &table) != LS_OK || table == NULL) {
        return "built-in";
    }
    const ls__algorithm *found = ls__tune_find(table, operation, bytes);
    return bytes <= table->one_shot ? "announced" : found != NULL ? found->name : "built-in";
}

/* An empty text stands for a group that is not tuned. */
ls_status ls_group_get_tuning(ls_group *group, char *out, size_t bytes)
{
    const ls__comm *comm = ls__comm_get("ls_group_get_tuning");
    const ls__tune_table *table = NULL;
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL || out == NULL || bytes == 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "ls_group_get_tuning: %s; give a group and memory for the text",
                       group == NULL ? "the group is NULL" : "there is no memory for the text");
        return ls__fail_at_site(LS_ERR_INVALID);
    }
    ls__text text = {.at = out, .room = bytes};
    ls__text_add(&text, "%s", "");
    LS_TRY(table_of(group, &table));
    if (table != NULL) {
        ls__tune_print(table, &text);
    }
    return LS_OK;
}
