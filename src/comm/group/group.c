/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: made together, numbered alike, each with a control block in every member's heap.
 *
 * A group is made by a single all_gather over the parent: every rank contributes the offset of its
 * control block and the number that it would give. The largest number is taken, so no rank ever
 * sees two groups of one number. The list of ranks travels in the operation's tag, so the usual
 * comparison of descriptors reports ranks that ask for different groups. Memory is allocated before
 * that exchange, and a rank without memory reports that in its offer: after the exchange nothing
 * can fail on one rank alone.
 *
 *     rank in the new group                     rank of the parent outside it
 *     ls__group_make (all memory)
 *     all_gather of offers  ◀─────────────────▶ all_gather of offers
 *     same number, same result on all ranks     the same
 *     ls__group_join                            only learns the number
 *
 * Note [Group numbers]
 * Messages and descriptors carry the number, so a group must not get one that a late message could
 * still bear: numbers only grow. Tables in the heap's header are indexed by number modulo
 * LS__GROUP_SLOTS (reclaim.c), so a number is also skipped while its slot belongs to another group
 * that some rank of the parent still has, or still waits to reclaim.
 */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/size.h"
#include "comm/api/collective.h"
#include "comm/backend/plugin_group.h"
#include "comm/core/cause.h"
#include "comm/core/collective.h"
#include "comm/core/group.h"
#include "comm/core/progress_lock.h"
#include "comm/core/reclaim.h"
#include "comm/core/round_robin.h"
#include "comm/diagnose/fail.h"
#include "comm/engine/engine.h"
#include "comm/group/make.h"
#include "comm/memory/control.h"
#include "comm/memory/heap.h"
#include "comm/remote/remote.h"

#define TAG_ROOM 4096

#define SLOT_WORDS (LS__GROUP_SLOTS / 64)
#define NO_HEAP 0 /* instead of an offset, which is a multiple of 64 */
#define NO_MEMORY 1

typedef struct offer {         /* one rank's contribution to a new group */
    uint64_t control;          /* offset in its heap, or NO_… */
    uint64_t next;             /* the number it would give */
    uint64_t what;             /* hash of name and ranks; compared by ls_group_new_among */
    uint64_t busy[SLOT_WORDS]; /* table slots of its groups that other ranks may still read */
} offer;

/* ---- making ------------------------------------------------------------------------------- */

/* Whether `ranks` are different ranks of the parent. */
static ls_status check_ranks(const ls_group *parent, const int *ranks, int count)
{
    if (count < 1 || count > parent->size) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_new: %d ranks of group \"%s\", which has %d; give 1 to %d", count,
                        parent->name, parent->size, parent->size);
    }
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            return ls__fail(LS_ERR_INVALID,
                            "ls_group_new: ranks[%d] is %d; group \"%s\" has ranks 0 to %d", i,
                            ranks[i], parent->name, parent->size - 1);
        }
        for (int k = 0; k < i; k++) {
            if (ranks[k] == ranks[i]) {
                return ls__fail(LS_ERR_INVALID, "ls_group_new: rank %d is listed twice", ranks[i]);
            }
        }
    }
    return LS_OK;
}

/* The text on which all ranks must agree, as the tag of the exchange: "new group "tp" of ranks
 * 0,1,2". A list that is cut off still differs in most cases by its start. */
static void put_tag(char *tag, size_t bytes, const ls__group_creation *f, const int *ranks,
                    int count)
{
    const char *name = f->name != NULL ? f->name : "";
    size_t used =
        (size_t)snprintf(tag, bytes, "new group \"%s\"%s%.60s of ranks ", name,
                         f->backend != NULL ? " by " : "", f->backend != NULL ? f->backend : "");
    for (int i = 0; i < count && used < bytes; i++) {
        used += (size_t)snprintf(tag + used, bytes - used, "%s%d", i == 0 ? "" : ",", ranks[i]);
    }
}

/* Two groups whose ids share a table slot must not exist at the same time. */
static void mark_busy(offer *o, uint32_t id)
{
    const uint32_t slot = id % LS__GROUP_SLOTS;
    o->busy[slot / 64] |= (uint64_t)1 << slot % 64;
}

/* Marks the groups that exist on this rank and those awaiting reclamation; needs comm->lock. The
 * world, id 0, keeps slot 0 for as long as the job lives. */
static void mark_alive(ls__comm *comm, offer *o)
{
    LS_ASSERT(comm->making);
    LS__LIST_EACH (at, &comm->groups) {
        mark_busy(o, LS__LIST_ITEM(at, ls_group, link)->id);
    }
    LS__LIST_EACH (at, &comm->held) {
        mark_busy(o, LS__LIST_ITEM(at, ls__reclaim, link)->id);
    }
}

bool ls__group_exists(ls__comm *comm, uint32_t id)
{
    bool found = false;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &comm->groups) {
        found = found || LS__LIST_ITEM(at, ls_group, link)->id == id;
    }
    ls__unlock(&comm->lock, comm->env);
    return found;
}

/* This rank's contribution. A rank without memory takes part as well and reports it, because the
 * others would wait for it otherwise. *control is the new control block, or NULL. */
static offer make_offer(ls__comm *comm, const ls_group *group, const char *tag, void **control)
{
    offer o = {.what = ls__hash_text(tag)};
    uint64_t offset = group != NULL ? NO_HEAP : NO_MEMORY;
    *control = NULL;
    (void)ls__reclaim_settle(comm);
    if (group != NULL && ls__heap_alloc(&comm->heap, sizeof(ls__control_block), control) == LS_OK) {
        (void)ls__heap_offset(&comm->heap, *control, sizeof(ls__control_block), &offset);
    }
    ls__lock_take(&comm->lock, comm->env);
    o.control = offset;
    o.next = comm->next_group;
    mark_alive(comm, &o);
    ls__unlock(&comm->lock, comm->env);
    return o;
}

/* Whether any rank still uses the slot of this id. */
static bool is_busy(const ls_group *parent, const offer *offers, uint64_t id)
{
    const uint64_t slot = id % LS__GROUP_SLOTS;
    for (int r = 0; r < parent->size; r++) {
        if ((offers[r].busy[slot / 64] >> slot % 64 & 1) != 0) {
            return true;
        }
    }
    return false;
}

/* The number that all ranks will use: the first one, from the largest proposal on, whose slot is
 * free on all of them. All ranks compute it from the same offers. */
static ls_status agree(const ls_group *parent, const offer *offers, uint32_t *id)
{
    uint64_t next = 0;
    for (int r = 0; r < parent->size; r++) {
        next = offers[r].next > next ? offers[r].next : next;
    }
    for (uint64_t i = next; i < next + LS__GROUP_SLOTS && i < UINT32_MAX; i++) {
        if (!is_busy(parent, offers, i)) {
            *id = (uint32_t)i;
            return LS_OK;
        }
    }
    return ls__fail(
        LS_ERR_LIMIT,
        "ls_group_new: the ranks of group \"%s\" are in %d groups already, which is the "
        "limit; free some",
        parent->name, LS__GROUP_SLOTS);
}

/* From now on messages for ids up to this one belong to freed groups, unless the group is open. So
 * the caller holds the progress lock and keeps it until the group has joined. */
static void learn_id(ls__comm *comm, uint32_t id)
{
    LS_ASSERT(id < UINT32_MAX);
    ls__lock_take(&comm->lock, comm->env);
    comm->next_group = id + 1 > comm->next_group ? id + 1 : comm->next_group;
    ls__unlock(&comm->lock, comm->env);
}

typedef struct plan { /* a group being made */
    ls_group *parent;
    const int *ranks; /* of the parent */
    int count, rank;  /* rank: -1 outside */
    bool among;       /* only `ranks` take part */
    const char *name;
    offer *offers;     /* [parent->size] */
    int *world_rank;   /* [count] */
    uint64_t *control; /* [count] */
} plan;

/* All ranks find the same rank without memory in the offers. */
static ls_status fail_by(const plan *p, int rank, ls_status status)
{
    ls__comm_record_found(p->parent->comm, status, rank, ls_error_message());
    return status;
}

/* The offsets of the members' control blocks. Fails alike on all ranks if one of them has no
 * memory. */
static ls_status gather_members(const plan *p)
{
    for (int i = 0; i < p->count; i++) {
        const int rank = p->world_rank[i];
        p->control[i] = p->offers[p->ranks[i]].control;
        if (p->control[i] == NO_MEMORY) {
            return fail_by(
                p, rank,
                ls__fail(LS_ERR_MEMORY, "ls_group_new: rank %d has no memory for the group", rank));
        }
        if (p->control[i] == NO_HEAP) {
            return fail_by(p, rank,
                           ls__fail(LS_ERR_MEMORY,
                                    "ls_group_new: rank %d has no shared memory left for the "
                                    "group; raise LOCKSTEP_HEAP_RESERVE",
                                    rank));
        }
    }
    return LS_OK;
}

/* Point-to-point messages are not compared by their tags, so the offers carry a hash. */
static ls_status check_what(const plan *p, const char *tag)
{
    for (int i = 1; i < p->count; i++) {
        if (p->offers[p->ranks[i]].what != p->offers[p->ranks[0]].what) {
            const ls_status status =
                ls__fail(LS_ERR_MISMATCH,
                         "ls_group_new_among: rank %d asks for another name or other ranks than "
                         "rank %d; this rank asks for: %.200s; give the same on each of them",
                         p->ranks[i], p->ranks[0], tag);
            ls__group_record_failure(p->parent, status, ls_error_message());
            return status;
        }
    }
    return LS_OK;
}

/* Fills offers[rank] of every rank that takes part. Collective. */
static ls_status exchange(const plan *p, const offer *mine, const char *tag)
{
    if (p->among) {
        memset(p->offers, 0, (size_t)p->parent->size * sizeof *p->offers);
        p->offers[p->parent->rank] = *mine;
        LS_TRY(ls__group_exchange_among(
            &(ls__group_exchange){
                .parent = p->parent, .ranks = p->ranks, .count = p->count, .tag = tag},
            p->offers, sizeof *mine));
        return check_what(p, tag);
    }
    return ls__collective_start(
        p->parent,
        &(ls__collective){.operation = LS__OP_ALL_GATHER,
                          .input = mine,
                          .output = p->offers,
                          .count = sizeof *mine,
                          .dtype = LS_UINT8,
                          .control = true,
                          .options = LS_OPTIONS(ls_collective_options, .tag = tag)},
        NULL);
}

/* Makes everything that can fail first, then exchanges, then joins. Ranks outside the new group
 * take part in the exchange and leave *out NULL. */
static ls_status make_group(const plan *p, const char *tag, ls_group **out)
{
    ls__comm *comm = p->parent->comm;
    void *control = NULL;
    ls_group *group = NULL;
    ls__group_spec spec = {.name = p->name,
                           .rank = p->rank,
                           .size = p->count,
                           .world_rank = p->world_rank,
                           .control = p->control};
    for (int i = 0; i < p->count; i++) {
        p->world_rank[i] = p->parent->member[p->ranks[i]].world_rank;
    }
    if (p->rank >= 0) {
        (void)ls__group_make(comm, &spec, true, &group); /* a failure goes into the offer */
    }
    const offer mine = make_offer(comm, group, tag, &control);
    ls_status status = exchange(p, &mine, tag);
    if (status == LS_OK) {
        status = agree(p->parent, p->offers, &spec.id);
        const bool has_id = status == LS_OK;
        if (has_id) {
            status = gather_members(p);
        }
        ls__progress_take(comm); /* the list of groups changes */
        if (has_id) {
            learn_id(comm, spec.id);
        }
        if (status == LS_OK && p->rank >= 0) {
            ls__group_join(group, &spec);
            *out = group;
        }
        ls__progress_release(comm);
    }
    if (status != LS_OK) {
        ls__group_unmake(group);
    }
    if (status != LS_OK && control != NULL) {
        (void)ls__heap_free(&comm->heap, control, true); /* a peer may have begun to use it */
    }
    return status;
}

/* This rank's rank in the new group; -1: it is outside. */
static int rank_in(const int *ranks, int count, int rank)
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* The backend that was asked for, or the parent's. Collective over the new group; without its
 * backend it is freed again. */
static ls_status give_backend(const ls_group *parent, const ls__group_creation *f, ls_group *group,
                              ls_group **out)
{
    const bool inherits = f->backend == NULL;
    const char *asked = !inherits                ? f->backend
                        : parent->plugin != NULL ? parent->plugin->plugin->asked
                                                 : NULL;
    ls_status status = ls__backend_is_native(asked) ? LS_OK : ls__plugin_attach(group, asked);
    if (status == LS_OK && f->canonical && (group->can->flags & LS_BACKEND_CANONICAL) == 0) {
        status = ls__fail(LS_ERR_UNSUPPORTED,
                          "group \"%s\" shall add in the library's order, and backend \"%s\" does "
                          "not; use backend \"native\", or leave canonical_sums false",
                          group->name, ls__backend_name(group));
    }
    if (status != LS_OK) {
        char why[LS__MESSAGE_MAX];
        snprintf(why, sizeof why, "%s", ls_error_message());
        (void)ls_group_free(group);
        *out = NULL;
        return ls__fail(status, "%s", why);
    }
    return LS_OK;
}

/* One allocation holds the offers, the lists and the tag. A rank that lacks even this memory cannot
 * take part in the exchange, so it fails the parent instead. */
ls_status ls__group_create(ls_group *parent, const ls__group_creation *f, ls_group **out)
{
    const ls__env *env = parent->comm->env;
    const int *ranks = f->ranks;
    const size_t size = (size_t)parent->size;
    const size_t bytes = size * (sizeof(offer) + sizeof(uint64_t) + 2 * sizeof(int)) + TAG_ROOM;
    unsigned char *memory = env->allocate(env, bytes);
    if (memory == NULL) {
        char text[LS__FAILURE_MAX];
        snprintf(text, sizeof text, "ls_group_new on group \"%s\": rank %d has no memory for it",
                 parent->name, parent->comm->runtime->rank);
        ls__group_fail(parent, LS_ERR_MEMORY, text);
        return ls__fail(LS_ERR_MEMORY, "%s", text);
    }
    plan p = {.parent = parent, .count = f->count, .name = f->name, .among = f->among};
    p.offers = (offer *)(void *)memory;
    p.control = (uint64_t *)(void *)(memory + size * sizeof(offer));
    p.world_rank = (int *)(void *)(p.control + size);
    int *all = p.world_rank + size;
    char *tag = (char *)(all + size);
    for (int r = 0; ranks == NULL && r < parent->size; r++) {
        all[r] = r;
    }
    p.ranks = ranks != NULL ? ranks : all;
    p.count = ranks != NULL ? f->count : parent->size;
    ls_status status = f->tag != NULL ? LS_OK : check_ranks(parent, p.ranks, p.count);
    if (status == LS_OK) {
        p.rank = rank_in(p.ranks, p.count, parent->rank);
        put_tag(tag, TAG_ROOM, f, p.ranks, p.count);
        status = make_group(&p, f->tag != NULL ? f->tag : tag, out);
    }
    env->release(env, memory, bytes);
    return status == LS_OK && *out != NULL ? give_backend(parent, f, *out, out) : status;
}

/* Only one group is made at a time on each rank: two threads that make groups from different
 * parents could be given the same number. The second thread fails its parent group, because the
 * peers of that group would wait for it. */
ls_status ls__group_begin_making(ls_group *parent)
{
    ls__comm *comm = parent->comm;
    LS_TRY(ls__work_may_wait("ls_group_new"));
    ls__lock_take(&comm->lock, comm->env);
    const bool busy = comm->making; /* by another thread of this rank */
    comm->making = true;
    ls__unlock(&comm->lock, comm->env);
    if (!busy) {
        return LS_OK;
    }
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text,
             "ls_group_new on group \"%s\": another thread of rank %d is making a group at this "
             "moment; make groups one after the other, on all ranks in the same order",
             parent->name, comm->runtime->rank);
    ls__group_fail(parent, LS_ERR_STATE, text);
    return ls__fail(LS_ERR_STATE, "%s", text);
}

/* Called by the thread whose begin_making succeeded, whether or not the group was made. */
void ls__group_end_making(ls__comm *comm)
{
    ls__lock_take(&comm->lock, comm->env);
    LS_ASSERT(comm->making);
    comm->making = false;
    ls__unlock(&comm->lock, comm->env);
}

static ls_status new_group(ls_group *parent, const ls__group_creation *f, ls_group **out)
{
    ls__comm *comm = ls__comm_get("ls_group_new");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (parent == NULL || out == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_new: %s is NULL; give the group to take ranks from and a place "
                        "for the new one",
                        parent == NULL ? "the parent group" : "out");
    }
    *out = NULL;
    LS_TRY(ls__group_begin_making(parent));
    const ls_status status = ls__group_create(parent, f, out);
    ls__group_end_making(comm);
    return status;
}

/* Collective over the parent. */
ls_status ls_group_new(ls_group *parent, const int *ranks, int count, const char *name,
                       ls_group **out)
{
    return new_group(parent, &(ls__group_creation){.ranks = ranks, .count = count, .name = name},
                     out);
}

/* Collective over the parent. */
ls_status ls_group_create(ls_group *parent, const ls_group_options *given, ls_group **out)
{
    LS_READ_OPTIONS(ls_group_options, options, given, "ls_group_create", LS_ERR_INVALID);
    return new_group(parent,
                     &(ls__group_creation){.ranks = options.ranks,
                                           .count = options.count,
                                           .name = options.name,
                                           .backend = options.backend,
                                           .canonical = options.canonical_sums},
                     out);
}

/* ---- ending ------------------------------------------------------------------------------- */

/* The barrier makes sure that no member still starts an operation. Its failure does not stop the
 * release: the group may have failed before. Other ranks may read this rank's control block for
 * some time, so that is reclaimed later. */
ls_status ls_group_free(ls_group *group)
{
    if (group == NULL) {
        return LS_OK;
    }
    ls__comm *comm = ls__comm_get("ls_group_free");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == comm->world) {
        return ls__fail(
            LS_ERR_INVALID,
            "ls_group_free: the group is the world, which ls_finalize frees; remove this call");
    }
    LS_TRY(ls__work_may_wait("ls_group_free"));
    LS_TRY(ls__group_check_unused(group, "ls_group_free"));
    if (group->turns != NULL) {
        ls__round_robin_free(group);
        return LS_OK;
    }
    (void)ls_group_free(group->beside); /* a failure of it is this group's, too */
    group->beside = NULL;
    ls_status status =
        ls_barrier(group, LS_OPTIONS(ls_collective_options, .tag = "ls_group_free"), NULL);
    ls__engine_drain(comm, &group->pending);
    ls__progress_take(comm);
    ls__heap_header *header = ls__heap_header_of(&comm->heap, comm->runtime->rank);
    ls__reclaim_add(group, LS__RECLAIM_LEFT, group->own);
    /* Sync: release, after the last look at any peer's control block; pairs with reclaim.c. */
    atomic_store_explicit(&header->left[group->id % LS__GROUP_SLOTS], group->id + 1,
                          memory_order_release);
    if (comm->remote != NULL) { /* the last messages of this group */
        ls__remote_send_finished(group);
        (void)ls__remote_turn(comm);
        ls__remote_send_left(group, LS__MESSAGE_LEFT);
    }
    ls__group_close(group);
    ls__progress_release(comm);
    (void)ls__reclaim_settle(comm);
    return status;
}

/* Any thread; other members learn of it when they wait or start the next operation. */
ls_status ls_group_abort(ls_group *group, const char *why)
{
    ls__comm *comm = ls__comm_get("ls_group_abort");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_abort: the group is NULL; give one that this rank is in");
    }
    LS_TRY(ls__promise_abort("ls_group_abort", group));
    char text[LS__FAILURE_MAX];
    snprintf(text, sizeof text, "group \"%s\" was aborted by rank %d: %s", group->name,
             comm->runtime->rank, why != NULL ? why : "no reason was given");
    ls__group_fail(group, LS_ERR_ABORTED, text);
    return LS_OK;
}

/* Looks for failures first, so it also notices them on a rank that does not wait. */
ls_status ls_group_status(ls_group *group)
{
    ls__comm *comm = ls__comm_get("ls_group_status");
    if (comm == NULL) {
        return ls__self.status;
    }
    if (group == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_group_status: the group is NULL; give one that this rank is in");
    }
    if (ls__progress_try(comm)) {
        (void)ls__comm_look(comm);
        ls__progress_release(comm);
    }
    for (int i = 0; i < ls__round_robin_count(group); i++) {
        const ls_group *one = ls__round_robin_at(group, i);
        const int32_t failed = atomic_load_explicit(&one->failure.status, memory_order_acquire);
        if (failed != 0) {
            return ls__fail_again((ls_status)failed, one->failure.text);
        }
    }
    return LS_OK;
}
