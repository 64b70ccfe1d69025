/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of waits: a rank that does not come may itself wait for another one, and so on to a
 * rank that waits for none. That one keeps all of them, so errors and the launcher name it.
 *
 *     rank 3: recv ──waits for──▶ rank 2: all_reduce ──▶ rank 1: recv ──▶ rank 0: the user's code
 *
 * Each link is what a rank has published of its waits (job/blocked.h). Unlike a cycle (deadlock.c)
 * a chain proves nothing, since its last rank may only be slow: it is looked at when a wait is
 * late.
 *
 * Deadlines of one chain pass at nearly the same time. So a rank whose wait has failed leaves its
 * record on the board for a while, and is not taken for the last one.
 */
#include "comm/diagnose/straggler.h"

#include <string.h>

#include "base/lock.h"
#include "base/text.h"
#include "comm/core/group.h"
#include "comm/core/remote_rank.h"
#include "comm/diagnose/deadlock.h"

#define READ_TRIES 100 /* a record that is being written; its writer may have died */
#define UNSEEN (-2)
#define START (-1)

bool ls__rank_is_unwell(const ls__comm *comm, int world_rank, bool closely)
{
    const bool remote = comm->remote != NULL && comm->remote->is[world_rank];
    const ls__life life = (ls__life)atomic_load_explicit(&ls__comm_record(comm, world_rank)->life,
                                                         memory_order_acquire);
    if (life == LS__LIFE_LEFT || life == LS__LIFE_DEAD) {
        return true;
    }
    return remote ? comm->remote->rank[world_rank].silent
                  : closely && ls__board_stopped(comm->board, comm->env,
                                                 ls__board_local(comm->board, world_rank));
}

/* Whether the rank learned of a failure: then its end is a consequence, and its waits explain
 * it. */
static bool gave_up(const ls__board_rank *record)
{
    return atomic_load_explicit(&record->failed, memory_order_relaxed) != 0 ||
           atomic_load_explicit(&record->reported, memory_order_relaxed) != 0;
}

/* A thread of this rank that sleeps in a wait is not kept by this rank. Its record need not exist
 * yet. */
static bool sleeps(ls__comm *comm)
{
    ls__lock_take(&comm->lock, comm->env);
    const bool any = !ls__list_empty(&comm->sleepers);
    ls__unlock(&comm->lock, comm->env);
    return any;
}

/* The waits of a rank; false: they could not be read, or say nothing about it. */
static bool read_waits(ls__comm *comm, int rank, ls__blocked *out)
{
    const ls__board_rank *record = ls__comm_record(comm, rank);
    bool read = false;
    for (int i = 0; i < READ_TRIES && !read; i++) {
        read = ls__blocked_read(&record->blocked, out);
    }
    if (read && ls__rank_is_unwell(comm, rank, true) && !gave_up(record)) {
        out->wait_count = 0;
    }
    return read && !(rank == comm->runtime->rank && out->wait_count == 0 && sleeps(comm));
}

bool ls__rank_waits_for_none(ls__comm *comm, int world_rank)
{
    ls__blocked waits;
    return read_waits(comm, world_rank, &waits) && waits.wait_count == 0;
}

/* ---- the search --------------------------------------------------------------------------- */

typedef struct search {                  /* breadth first */
    int16_t from[LS__PROGRAM_RANKS_MAX]; /* the rank that waits for it; START, UNSEEN */
    int16_t queue[LS__PROGRAM_RANKS_MAX];
    int queued, taken;
} search;

static void see(search *s, int rank, int from)
{
    if (s->from[rank] == UNSEEN) {
        s->from[rank] = (int16_t)from;
        s->queue[s->queued++] = (int16_t)rank;
    }
}

/* The ranks for which a wait waits. */
static void see_awaited(search *s, int world_size, int rank, const ls__blocked_wait *wait)
{
    if (wait->peer >= 0 && wait->peer < world_size) {
        see(s, wait->peer, rank);
    }
    for (int j = 0; wait->peer < 0 && j < world_size; j++) {
        if (ls__has_bit(wait->needs, j)) {
            see(s, j, rank);
        }
    }
}

/* The way back from the last rank to the first. */
static ls__wait_chain chain_to(const search *s, int last)
{
    ls__wait_chain chain = {.last = last};
    for (int at = last; at >= 0; at = s->from[at]) {
        chain.length++;
    }
    int place = chain.length - 1;
    for (int at = last; at >= 0; at = s->from[at], place--) {
        if (place < LS__CHAIN_NAMED && at != last) {
            chain.rank[place] = at;
        }
    }
    return chain;
}

ls__wait_chain ls__wait_chain_find(ls__comm *comm, const int *first, int count)
{
    search s = {.queued = 0};
    ls__blocked waits;
    for (int r = 0; r < comm->runtime->world_size; r++) {
        s.from[r] = UNSEEN;
    }
    for (int i = 0; i < count; i++) {
        see(&s, first[i], START);
    }
    while (s.taken < s.queued) {
        const int rank = s.queue[s.taken++];
        if (!read_waits(comm, rank, &waits)) {
            continue;
        }
        if (waits.wait_count == 0) {
            return chain_to(&s, rank);
        }
        for (uint32_t w = 0; w < waits.wait_count; w++) {
            see_awaited(&s, comm->runtime->world_size, rank, &waits.wait[w]);
        }
    }
    return (ls__wait_chain){.length = 0};
}

void ls__wait_chain_text(const ls__wait_chain *chain, char *out, size_t bytes)
{
    ls__text to = {out, bytes};
    out[0] = '\0';
    for (int i = 1; i < chain->length - 1 && i < LS__CHAIN_NAMED; i++) {
        ls__text_add(&to, "%s waits for rank %d", i == 1 ? "; it" : ", which", chain->rank[i]);
    }
    if (chain->length > 1) {
        ls__text_add(&to, "%s rank %d",
                     chain->length == 2                    ? "; it waits for"
                     : chain->length > LS__CHAIN_NAMED + 1 ? ", and so on to"
                                                           : ", which waits for",
                     chain->last);
    }
}
