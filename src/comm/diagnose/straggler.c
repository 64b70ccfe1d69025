/* SPDX-License-Identifier: Apache-2.0 */
/* Stragglers: the members that keep an operation waiting, and the texts that name them at a
 * deadline and in warnings. */
#include "comm/diagnose/straggler.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/post.h"
#include "comm/core/unexpected.h"
#include "comm/memory/control.h"
#include "comm/operation/mismatch.h"

/* Sync: acquire; everything the member did before it left is visible after LEFT was read. */
ls__life ls__life_of(const ls_group *group, int member)
{
    return (ls__life)atomic_load_explicit(&group->member[member].record->life,
                                          memory_order_acquire);
}

/* Where the member is in this operation. */
static uint64_t stamp_of(const ls_group *group, int member, const ls_work *work)
{
    return atomic_load_explicit(&ls__post_slot(group, member, work->descriptor.sequence)->stamp,
                                memory_order_acquire);
}

/* Its post slot may belong to a later operation already, but `finished` only grows. */
static bool has_finished(const ls_group *group, int r, const ls_work *work)
{
    return atomic_load_explicit(&group->member[r].control->finished, memory_order_acquire) >=
           work->descriptor.sequence;
}

/* Whether the member has announced the operation. */
bool ls__has_called(const ls_group *group, int r, const ls_work *work)
{
    return stamp_of(group, r, work) >= ls__stamp(work->descriptor.sequence, 1) ||
           has_finished(group, r, work);
}

/* Whether the member has not reached a fence of the operation that this rank has reached. */
bool ls__is_behind(const ls_group *group, int r, const ls_work *work)
{
    bool behind = stamp_of(group, r, work) < stamp_of(group, group->rank, work) &&
                  !has_finished(group, r, work);
    for (int i = 0; work->path == LS__PATH_STAGED && i < LS__SLICE_SLOTS; i++) {
        const uint64_t own = atomic_load_explicit(&group->own->slice[i], memory_order_relaxed);
        behind = behind || atomic_load_explicit(&group->member[r].control->slice[i],
                                                memory_order_acquire) < own;
    }
    return behind;
}

static bool is_unwell(const ls_group *group, int r, bool closely)
{
    return ls__rank_is_unwell(group->comm, group->member[r].world_rank, closely);
}

/* Adds members that have not called the operation, or are behind in it. Unwell ones come first,
 * because they explain the others. */
static void add_missing(ls__straggler *m, const ls_group *group, const ls_work *work,
                        bool all_called, bool closely)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < group->size && m->count < LS__STRAGGLER_NAMED; r++) {
            const bool late =
                all_called ? ls__is_behind(group, r, work) : !ls__has_called(group, r, work);
            if (r != group->rank && late && is_unwell(group, r, closely) == (pass == 0)) {
                m->member[m->count++] = r;
            }
        }
    }
}

/* By messages no member can be seen to be behind, so this names those that are stopped or silent
 * and have not finished. */
static void add_unwell(ls__straggler *m, const ls_group *group, const ls_work *work)
{
    for (int r = 0; r < group->size && m->count < LS__STRAGGLER_NAMED; r++) {
        if (r != group->rank && !has_finished(group, r, work) && is_unwell(group, r, true)) {
            m->member[m->count++] = r;
        }
    }
}

/* The source of such a receive is decided when an announcement matches. */
bool ls__takes_any(const ls_work *work)
{
    return ls__is_p2p(work) && work->descriptor.root == LS_ANY_SOURCE;
}

/* For a collective the members that have not announced it, or, if all have, those that are behind
 * at a fence; for a message the peer, or all that might have sent it. */
ls__straggler ls__straggler_find(const ls_group *group, const ls_work *work, bool closely)
{
    ls__straggler m = {.what = "has not called it"};
    if (ls__takes_any(work)) {
        m.what = "has sent nothing that fits";
        for (int r = 0; r < group->size && m.count < LS__STRAGGLER_NAMED; r++) {
            if (r != group->rank) {
                m.member[m.count++] = r;
            }
        }
        return m;
    }
    if (ls__is_p2p(work)) {
        m.member[m.count++] = work->descriptor.root;
        m.what = work->message.stage == LS__SEND_ANNOUNCE ||
                         work->message.stage == LS__RECV_MATCH ||
                         work->message.stage == LS__SEND_WAIT
                     ? "has not called its side"
                     : "has called its side but not come through";
        return m;
    }
    add_missing(&m, group, work, false, closely);
    if (m.count == 0) {
        m.what = "has called it but not come through";
        add_missing(&m, group, work, true, closely);
    }
    if (m.count == 0 && closely) {
        add_unwell(&m, group, work);
    }
    return m;
}

/* A receive has found no message while its peer has sent one with another tag: the likeliest
 * cause. */
static void add_other_sends(const ls_group *group, const ls_work *work, char *out, size_t bytes)
{
    const size_t used = strlen(out);
    if (work->message.stage != LS__RECV_MATCH) {
        return;
    }
    LS__LIST_EACH (at, &group->p2p->announced) {
        const ls__unexpected *kept = LS__LIST_ITEM(at, ls__unexpected, link);
        const ls__descriptor *d = &kept->message->descriptor;
        if (work->operation == LS__OP_RECV &&
            (kept->from == work->descriptor.root || ls__takes_any(work))) {
            snprintf(
                out + used, bytes - used,
                "; this receive has tag %d, but rank %d has sent a message with tag %d (%s[%lld] "
                "at %.*s:%d): give both sides the same tag",
                (int)work->descriptor.tag, group->member[kept->from].world_rank, (int)d->tag,
                ls_dtype_name((ls_dtype)d->dtype), (long long)d->count, LS__FILE_MAX, d->file,
                (int)d->line);
            return;
        }
    }
}

/* The chain of waits that begins with one of these members. */
static ls__wait_chain chain_of(const ls_group *group, const ls__straggler *m)
{
    int first[LS__STRAGGLER_NAMED];
    for (int i = 0; i < m->count; i++) {
        first[i] = group->member[m->member[i]].world_rank;
    }
    return ls__wait_chain_find(group->comm, first, m->count);
}

/* "rank 2 has not called it: rank 2 (host …) in the backward pass …; rank 3 …": without those that
 * wait for others. */
static void put_members(const ls_group *group, const ls__straggler *m, const ls__wait_chain *chain,
                        ls__text *to)
{
    char what[512];
    int told = 0;
    for (int i = 0; i < m->count; i++) {
        const int rank = group->member[m->member[i]].world_rank;
        if (chain->length == 0 || rank == chain->last ||
            ls__rank_waits_for_none(group->comm, rank)) {
            ls__comm_describe(group->comm, rank, what, sizeof what);
            ls__text_add(to, "%srank %d %s: %s", told++ == 0 ? "" : "; ", rank, m->what, what);
        }
    }
}

/* Says who keeps the operation waiting. Returns the chain of waits to that rank. */
static ls__wait_chain waiting_text(const ls_group *group, const ls_work *work, char *out,
                                   size_t bytes)
{
    const ls__straggler m = ls__straggler_find(group, work, true);
    const ls__wait_chain chain = chain_of(group, &m);
    ls__text to = {out, bytes};
    snprintf(out, bytes, "all ranks have called it and are as far as this one");
    if (m.count == 0 && work->path == LS__PATH_BACKEND) {
        ls__plugin_awaited(group, work, out, bytes);
    }
    if (chain.length > 1) {
        char links[256], what[512];
        ls__wait_chain_text(&chain, links, sizeof links);
        ls__comm_describe(group->comm, chain.last, what, sizeof what);
        snprintf(out, bytes, "rank %d %s%s: %s", chain.rank[0], m.what, links, what);
    } else if (m.count > 0) {
        out[0] = '\0';
        put_members(group, &m, &chain, &to);
    }
    add_other_sends(group, work, out, bytes);
    return chain;
}

/* Fails the group; the rank at the end of the chain is the cause. */
static void fail_late(ls_group *group, const ls__wait_chain *chain, const char *text)
{
    const int by = chain->length > 0 ? chain->last : group->comm->runtime->rank;
    ls__group_cause_by(group, LS_ERR_TIMEOUT, text, by);
}

/* `r` may be one past the last member. */
static bool has_not_come(const ls_group *group, int r, const ls_work *work)
{
    return r < group->size && r != group->rank && !ls__has_called(group, r, work);
}

/* "1, 3-7, 9": world ranks of all that have not called it. Returns how many. */
static int list_missing(const ls_group *group, const ls_work *work, ls__text *to)
{
    int count = 0;
    for (int r = 0; r < group->size; r++) {
        const int first = r;
        while (has_not_come(group, r, work) && has_not_come(group, r + 1, work) &&
               group->member[r + 1].world_rank == group->member[r].world_rank + 1) {
            r++;
        }
        if (has_not_come(group, r, work)) {
            ls__text_add(to, "%s%d", count > 0 ? ", " : "", group->member[first].world_rank);
            if (r > first) {
                ls__text_add(to, "-%d", group->member[r].world_rank);
            }
            count += r - first + 1;
        }
    }
    return count;
}

/* A monitored barrier names all missing ranks instead of the first few. False: all have come. */
static bool fail_monitored(ls_group *group, const ls_work *work, uint64_t now_ns)
{
    char text[LS__FAILURE_MAX], list[LS__FAILURE_MAX / 2], operation[256], who[256] = "";
    list[0] = '\0';
    const int count = list_missing(group, work, &(ls__text){list, sizeof list});
    const ls__straggler m = ls__straggler_find(group, work, true);
    const ls__wait_chain chain = chain_of(group, &m);
    if (count == 0) {
        return false;
    }
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    if (m.count > 0) {
        const int first = group->member[m.member[0]].world_rank;
        ls__comm_describe(group->comm, chain.length > 0 ? chain.last : first, who, sizeof who);
    }
    snprintf(text, sizeof text, "monitored %s: %d of %d ranks did not come within %.1f s: %s (%s)",
             operation, count, group->size, (double)(now_ns - work->queued_ns) * 1e-9, list, who);
    fail_late(group, &chain, text);
    return true;
}

/* Called at the deadline. The text names the missing ranks and their activity. */
void ls__straggler_fail(ls_group *group, const ls_work *work, uint64_t now_ns)
{
    if (work->monitored && fail_monitored(group, work, now_ns)) {
        return;
    }
    char text[LS__FAILURE_MAX], operation[256], who[LS__FAILURE_MAX - 320];
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    const ls__wait_chain chain = waiting_text(group, work, who, sizeof who);
    snprintf(text, sizeof text, "%s did not finish within %.1f s: %s", operation,
             (double)(now_ns - work->queued_ns) * 1e-9, who);
    fail_late(group, &chain, text);
}

/* A stopped process does not resume by itself, so it is reported early, and again after a warning
 * of another kind. */
bool ls__straggler_stopped(const ls_group *group, const ls_work *work)
{
    const ls__comm *comm = group->comm;
    const ls__straggler m = ls__straggler_find(group, work, true);
    const ls__group_member *first = m.count > 0 ? &group->member[m.member[0]] : NULL;
    return first != NULL && !first->remote &&
           ls__board_stopped(comm->board, comm->env, first->local);
}

/* A warning only: the operation goes on until its deadline. */
void ls__straggler_warn(ls_group *group, ls_work *work, uint64_t now_ns)
{
    char operation[256], who[LS__FAILURE_MAX];
    ls__operation_text(group, &work->descriptor, operation, sizeof operation);
    (void)waiting_text(group, work, who, sizeof who);
    LS__WARN("%s has waited for %.1f s: %s", operation, (double)(now_ns - work->queued_ns) * 1e-9,
             who);
    work->watch.warned = true;
}
