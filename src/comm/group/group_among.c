/* SPDX-License-Identifier: Apache-2.0 */
/* A group made by its members alone: as in group.c, but the offers travel as point-to-point
 * messages through the first member instead of by an all_gather over the parent. Ranks outside
 * take no part, so groups without a common rank may get the same number, which no rank can see. */
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "comm/api/collective.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/group/make.h"

/* One blocking message with the library's own tag, which no message of the user matches. */
static ls_status transfer(ls_group *parent, ls__operation operation, void *bytes, size_t count,
                          int peer, const char *tag)
{
    return ls__collective_start(
        parent,
        &(ls__collective){.operation = operation,
                          .input = operation == LS__OP_SEND ? bytes : NULL,
                          .output = operation == LS__OP_SEND ? NULL : bytes,
                          .count = (int64_t)count,
                          .dtype = LS_UINT8,
                          .root = peer,
                          .own_tag = true,
                          .control = true,
                          .options = LS_OPTIONS(ls_collective_options, .tag = tag)},
        NULL);
}

/* all[parent->size] elements of `bytes` each; those of ranks outside stay as they are. The first
 * rank gathers and distributes: 2 (count - 1) messages, a few hundred bytes each. */
ls_status ls__group_exchange_among(const ls__group_exchange *e, void *all, size_t bytes)
{
    LS_ASSERT(e->count >= 1);
    unsigned char *to = all;
    const int first = e->ranks[0], me = e->parent->rank;
    const size_t everything = bytes * (size_t)e->parent->size;
    if (me != first) {
        LS_TRY(transfer(e->parent, LS__OP_SEND, to + (size_t)me * bytes, bytes, first, e->tag));
        return transfer(e->parent, LS__OP_RECV, all, everything, first, e->tag);
    }
    for (int i = 1; i < e->count; i++) {
        const int from = e->ranks[i];
        LS_TRY(transfer(e->parent, LS__OP_RECV, to + (size_t)from * bytes, bytes, from, e->tag));
    }
    for (int i = 1; i < e->count; i++) {
        LS_TRY(transfer(e->parent, LS__OP_SEND, all, everything, e->ranks[i], e->tag));
    }
    return LS_OK;
}

/* Whether this rank is in the list. */
static bool is_among(const ls_group *parent, const int *ranks, int count)
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] == parent->rank) {
            return true;
        }
    }
    return false;
}

/* Collective over `ranks` only. A rank outside the list is refused at once, since no member would
 * answer it. */
ls_status ls_group_new_among(ls_group *parent, const int *ranks, int count, const char *name,
                             ls_group **out)
{
    ls__comm *comm = ls__comm_get("ls_group_new_among");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (parent == NULL || ranks == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_new_among: %s is NULL; give the group to take ranks from, its "
                        "ranks, and a place for the new one",
                        parent == NULL  ? "the parent group"
                        : ranks == NULL ? "ranks"
                                        : "out");
    }
    *out = NULL;
    if (!is_among(parent, ranks, count)) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_new_among: rank %d of group \"%s\" is not among the %d ranks "
                        "given; only those call it",
                        parent->rank, parent->name, count);
    }
    LS_TRY(ls__group_begin_making(parent));
    const ls__group_creation f = {.ranks = ranks, .count = count, .name = name, .among = true};
    const ls_status status = ls__group_create(parent, &f, out);
    ls__group_end_making(comm);
    return status;
}
