/* Splitting a group by colour: one exchange tells everybody who wants to be with whom, and a second
 * one, that of group.c, makes all the groups at once. They have no rank in common, so they share
 * one number. */
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/group/group.h"

typedef struct wish { /* of one rank; travels */
    int32_t color, key;
    char name[LS__GROUP_NAME_MAX]; /* "": numbered */
} wish;

typedef struct hall { /* where they meet */
    ls_group *parent;
    const char *name;
    wish *wish; /* [parent->size] */
    int *ranks; /* [parent->size] those of this rank's colour, in order */
    int count;
} hall;

static ls_status exchange(const hall *h, int color, int key)
{
    wish mine = {.color = color, .key = key};
    snprintf(mine.name, sizeof mine.name, "%s", h->name != NULL ? h->name : "");
    return ls__collective_start(
        h->parent,
        &(ls__collective){.operation = LS__OP_ALL_GATHER,
                          .input = &mine,
                          .output = h->wish,
                          .count = sizeof mine,
                          .dtype = LS_UINT8,
                          .options =
                              LS_OPTIONS(ls_collective_options, .tag = "ls_group_split: colors")},
        NULL);
}

/* By key, then by rank in the parent: ranks come in order, so an insertion behind equal keys. */
static void gather_ranks(hall *h, int color)
{
    for (int r = 0; color >= 0 && r < h->parent->size; r++) {
        int at = h->count;
        if (h->wish[r].color != color) {
            continue;
        }
        for (; at > 0 && h->wish[h->ranks[at - 1]].key > h->wish[r].key; at--) {
            h->ranks[at] = h->ranks[at - 1];
        }
        h->ranks[at] = r;
        h->count++;
    }
}

/* All ranks see all names and find the same pair, those of other colours, too. */
static ls_status check_names(const hall *h)
{
    for (int r = 0; r < h->parent->size; r++) {
        const wish *a = &h->wish[r];
        for (int k = r + 1; a->color >= 0 && k < h->parent->size; k++) {
            const wish *b = &h->wish[k];
            if (b->color == a->color && strncmp(a->name, b->name, sizeof a->name) != 0) {
                return ls__fail(LS_ERR_MISMATCH,
                                "ls_group_split of group \"%s\": of color %d rank %d names the "
                                "group \"%.31s\", rank %d \"%.31s\"; give ranks of one color the "
                                "same name",
                                h->parent->name, (int)a->color, r, a->name, k, b->name);
            }
        }
    }
    return LS_OK;
}

static ls_status split(hall *h, int color, int key, ls_group **out)
{
    LS_TRY(exchange(h, color, key));
    LS_TRY(check_names(h));
    gather_ranks(h, color);
    return ls__group_found(
        h->parent,
        &(ls__founding){
            .ranks = h->ranks, .count = h->count, .name = h->name, .tag = "ls_group_split: groups"},
        out);
}

static ls_status with_hall(ls_group *parent, int color, int key, const char *name, ls_group **out)
{
    const ls__env *env = parent->comm->env;
    const size_t size = (size_t)parent->size;
    const size_t bytes = size * (sizeof(wish) + sizeof(int));
    hall h = {.parent = parent, .name = name};
    h.wish = env->allocate(env, bytes);
    if (h.wish == NULL) { /* the others would wait */
        char text[LS__FAILURE_MAX];
        snprintf(text, sizeof text, "ls_group_split of group \"%s\": rank %d has no memory for it",
                 parent->name, parent->comm->runtime->rank);
        ls__group_fail(parent, LS_ERR_MEMORY, text);
        return ls__fail(LS_ERR_MEMORY, "%s", text);
    }
    h.ranks = (int *)(void *)(h.wish + size);
    const ls_status status = split(&h, color, key, out);
    env->release(env, h.wish, bytes);
    return status;
}

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
                        "ls_group_split of group \"%s\": color %d is negative; give one from 0 on, "
                        "or LS_NO_COLOR for no group",
                        parent->name, color);
    }
    LS_TRY(ls__group_begin_making(parent));
    const ls_status status = with_hall(parent, color, key, name, out);
    ls__group_end_making(comm);
    return status;
}
