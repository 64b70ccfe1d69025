/* SPDX-License-Identifier: Apache-2.0 */
/* Coalesced operations: many buffers are packed into registered memory that the group keeps, one
 * operation runs there in place, and its end unpacks them. Adjacent buffers need no packing. Packs
 * are used again, so a steady state allocates nothing.
 *
 *     user's buffers ──pack_in──▶ pack ──operation in place──▶ pack ──pack_out──▶ user's buffers
 *
 * The list is copied into the pack, so the caller's arrays may be gone when the operation ends; the
 * buffers themselves may not. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/options.h"
#include "base/size.h"
#include "comm/api/collective.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/core/packs.h"
#include "comm/diagnose/fail.h"

/* ---- moving ------------------------------------------------------------------------------- */

/* Copies all buffers into the pack, one after the other. */
static void pack_in(ls__pack *p)
{
    LS_ASSERT(p->count <= p->room);
    unsigned char *to = p->memory;
    for (int i = 0; i < p->count; i++) {
        if (p->part[i] > 0) {
            memcpy(to, p->buf[i], p->part[i]);
        }
        to += p->part[i];
    }
}

/* Runs when the operation has ended, on the thread that drives the engine, before the user's handle
 * is complete. */
static void pack_out(void *arg, ls_status status)
{
    ls__pack *p = arg;
    const unsigned char *from = p->memory;
    for (int i = 0; status == LS_OK && i < p->count; i++) {
        if (p->part[i] > 0) {
            memcpy(p->buf[i], from, p->part[i]);
        }
        from += p->part[i];
    }
    ls__pack_give(p);
}

/* ---- the calls ---------------------------------------------------------------------------- */

/* The user's list of buffers; check() fills in the last three fields. */
typedef struct list {
    void *const *bufs;
    const int64_t *counts; /* elements of each */
    int n;
    int64_t total;
    int32_t mark;  /* hash of the counts, compared between ranks */
    bool adjacent; /* the buffers are one piece of memory */
} list;

/* Adds up the counts and hashes them; the hash (`mark`) travels in the descriptor, so ranks with
 * other lists are reported. Also finds out whether the buffers are adjacent. */
static ls_status check(const char *what, const ls_group *group, ls_dtype dtype, list *l)
{
    const size_t element = ls_dtype_size(dtype);
    uint32_t hash = 0x811c9dc5u ^ (uint32_t)l->n;
    size_t bytes = 0;
    if (group == NULL || l->n < 0 || (l->n > 0 && (l->bufs == NULL || l->counts == NULL))) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: %s is NULL, or the number of buffers, %d, is negative; give the group "
                        "and lists of buffers and their counts",
                        what, group == NULL ? "the group" : "a list", l->n);
    }
    l->adjacent = true;
    for (int i = 0; i < l->n; i++) {
        const int64_t count = l->counts[i];
        const bool fits = count >= 0 && !__builtin_add_overflow(l->total, count, &l->total) &&
                          ls__bytes_of(l->total, element, &bytes) && bytes <= SIZE_MAX / 4;
        if (!fits || (count > 0 && l->bufs[i] == NULL)) {
            return ls__fail(LS_ERR_INVALID,
                            "%s on group \"%s\": buffer %d of %d is %s with count %lld; give "
                            "memory, and a count of 0 or more that fits in it",
                            what, group->name, i, l->n, l->bufs[i] == NULL ? "NULL" : "given",
                            (long long)count);
        }
        hash = (hash ^ (uint32_t)count ^ (uint32_t)((uint64_t)count >> 32)) * 0x01000193u;
        l->adjacent = l->adjacent && (i == 0 || (unsigned char *)l->bufs[i - 1] +
                                                        (size_t)l->counts[i - 1] * element ==
                                                    l->bufs[i]);
    }
    l->mark = (int32_t)(hash | 1u);
    return LS_OK;
}

/* Fails the group, since the other ranks would wait for this one. */
static ls_status no_memory(const char *what, ls_group *group)
{
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "%s on group \"%s\": rank %d has no memory to pack the buffers",
             what, group->name, group->comm->runtime->rank);
    ls__group_fail(group, LS_ERR_MEMORY, text);
    return ls__fail(LS_ERR_MEMORY, "%s", text);
}

/* One operation in place on the pack. A blocking call waits here, because pack_out must run for it
 * as well. */
static ls_status start_packed(const char *what, ls_group *group, const list *l,
                              ls__collective *args, ls_work **work)
{
    const size_t element = ls_dtype_size(args->dtype);
    ls__pack *p = ls__pack_take(group, (size_t)l->total * element, l->n);
    if (p == NULL) {
        return no_memory(what, group);
    }
    p->count = l->n;
    for (int i = 0; i < l->n; i++) {
        p->buf[i] = l->bufs[i];
        p->part[i] = (size_t)l->counts[i] * element;
    }
    pack_in(p);
    args->input = p->memory;
    args->output = p->memory;
    args->done = pack_out;
    args->arg = p;
    ls_work *made = NULL;
    const ls_status status = ls__collective_start(group, args, &made);
    if (status != LS_OK) {
        ls__pack_give(p);
        return status;
    }
    if (work != NULL) {
        *work = made;
        return LS_OK;
    }
    return ls_work_wait(made);
}

/* Adjacent buffers need no pack. An empty list takes part with 0 elements. */
static ls_status start(const char *what, ls_group *group, list l, ls__collective args,
                       ls_work **work)
{
    if (work != NULL) {
        *work = NULL;
    }
    if (ls__comm_get(what) == NULL) {
        return ls__self.status;
    }
    LS_TRY(check(what, group, args.dtype, &l));
    args.count = l.total;
    args.mark = l.mark;
    if (!l.adjacent && ls_dtype_size(args.dtype) > 0) {
        LS_TRY(ls__promise_host(what, group));
        return start_packed(what, group, &l, &args, work);
    }
    args.output = l.n > 0 ? l.bufs[0] : NULL;
    args.input = args.output;
    return ls__collective_start(group, &args, work);
}

ls_status ls_all_reduce_many(ls_group *group, void *const *bufs, const int64_t *counts, int n,
                             ls_dtype dtype, ls_reduce_op op, const ls_collective_options *options,
                             ls_work **work)
{
    return start("ls_all_reduce_many", group, (list){.bufs = bufs, .counts = counts, .n = n},
                 (ls__collective){
                     .operation = LS__OP_ALL_REDUCE, .dtype = dtype, .op = op, .options = options},
                 work);
}

ls_status ls_broadcast_many(ls_group *group, void *const *bufs, const int64_t *counts, int n,
                            ls_dtype dtype, int root, const ls_collective_options *options,
                            ls_work **work)
{
    return start(
        "ls_broadcast_many", group, (list){.bufs = bufs, .counts = counts, .n = n},
        (ls__collective){
            .operation = LS__OP_BROADCAST, .dtype = dtype, .root = root, .options = options},
        work);
}
