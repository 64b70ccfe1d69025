/* SPDX-License-Identifier: Apache-2.0 */
/* Splitting a group by color: in one exchange all ranks learn the colors of all others, and a
 * second one, that of group.c, makes all the groups at once. The groups have no rank in common, so
 * they share one number. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/diagnose/fail.h"
#include "comm/group/make.h"

/* The request of one rank, as it is exchanged. */
typedef struct request {
    int32_t color, key;
    char name[LS__GROUP_NAME_MAX]; /* "": numbered */
} request;

/* A split in progress. */
typedef struct division {
    ls_group *parent;
    const char *name;
    request *request; /* [parent->size] */
    int *ranks;       /* [parent->size] ranks of this rank's color, in order */
    int count;
} division;

/* Collective: every rank learns the color, key and name of all others. */
static ls_status exchange(const division *d, int color, int key)
{
    request mine = {.color = color, .key = key};
    snprintf(mine.name, sizeof mine.name, "%s", d->name != NULL ? d->name : "");
    return ls__collective_start(
        d->parent,
        &(ls__collective){.operation = LS__OP_ALL_GATHER,
                          .input = &mine,
                          .output = d->request,
                          .count = sizeof mine,
                          .dtype = LS_UINT8,
                          .control = true,
                          .options =
                              LS_OPTIONS(ls_collective_options, .tag = "ls_group_split: colors")},
        NULL);
}

/* Sorts by key, then by rank in the parent: ranks are visited in order, so each one is inserted
 * behind equal keys. */
static void gather_ranks(division *d, int color)
{
    for (int r = 0; color >= 0 && r < d->parent->size; r++) {
        int at = d->count;
        if (d->request[r].color != color) {
            continue;
        }
        for (; at > 0 && d->request[d->ranks[at - 1]].key > d->request[r].key; at--) {
            d->ranks[at] = d->ranks[at - 1];
        }
        d->ranks[at] = r;
        d->count++;
    }
}

/* All ranks see all names and find the same contradiction, even one among other colors, so the
 * split fails alike on every rank. */
static ls_status check_names(const division *d)
{
    for (int r = 0; r < d->parent->size; r++) {
        const request *a = &d->request[r];
        for (int k = r + 1; a->color >= 0 && k < d->parent->size; k++) {
            const request *b = &d->request[k];
            if (b->color == a->color && strncmp(a->name, b->name, sizeof a->name) != 0) {
                const ls_status status =
                    ls__fail(LS_ERR_MISMATCH,
                             "ls_group_split of group \"%s\": of color %d rank %d names the "
                             "group \"%.31s\", rank %d \"%.31s\"; give ranks of one color the "
                             "same name",
                             d->parent->name, (int)a->color, r, a->name, k, b->name);
                ls__group_record_failure(d->parent, status, ls_error_message());
                return status;
            }
        }
    }
    return LS_OK;
}

/* Two collectives over the parent: one exchanges the requests, the other makes all groups at
 * once. */
static ls_status split(division *d, int color, int key, ls_group **out)
{
    LS_TRY(exchange(d, color, key));
    LS_TRY(check_names(d));
    gather_ranks(d, color);
    return ls__group_create(
        d->parent,
        &(ls__group_creation){
            .ranks = d->ranks, .count = d->count, .name = d->name, .tag = "ls_group_split: groups"},
        out);
}

/* Without memory the rank fails the parent, since the others would wait in the exchange. */
static ls_status with_memory(ls_group *parent, int color, int key, const char *name, ls_group **out)
{
    const ls__env *env = parent->comm->env;
    const size_t size = (size_t)parent->size;
    const size_t bytes = size * (sizeof(request) + sizeof(int));
    division d = {.parent = parent, .name = name};
    d.request = env->allocate(env, bytes);
    if (d.request == NULL) {
        char text[LS__FAILURE_MAX];
        snprintf(text, sizeof text, "ls_group_split of group \"%s\": rank %d has no memory for it",
                 parent->name, parent->comm->runtime->rank);
        ls__group_fail(parent, LS_ERR_MEMORY, text);
        return ls__fail(LS_ERR_MEMORY, "%s", text);
    }
    d.ranks = (int *)(void *)(d.request + size);
    const ls_status status = split(&d, color, key, out);
    env->release(env, d.request, bytes);
    return status;
}

/* Collective over the parent; a rank with LS_NO_COLOR takes part in both exchanges as well. */
ls_status ls_group_split(ls_group *parent, int color, int key, const char *name, ls_group **out)
{
    ls__comm *comm = ls__comm_get("ls_group_split");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (parent == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_split: %s is NULL; give the group to split and a place for this "
                        "rank's part",
                        parent == NULL ? "the group" : "out");
    }
    *out = NULL;
    if (color < 0 && color != LS_NO_COLOR) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_split of group \"%s\": color %d is negative; give 0 or more, or "
                        "LS_NO_COLOR for no group",
                        parent->name, color);
    }
    LS_TRY(ls__group_begin_making(parent));
    const ls_status status = with_memory(parent, color, key, name, out);
    ls__group_end_making(comm);
    return status;
}
