/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the messages of a table: a send waits while its channel holds a message, a receive while
 * it holds none, and a reduction until all replicas of its stage are there. Which rank goes on
 * first makes no difference (a network of processes with one writer and one reader per channel:
 * Kahn, 1974; a reduction is a message to and from each of the others), so one execution proves
 * that there is no deadlock.
 */
#include "base/error.h"
#include "schedule/verify.h"

typedef struct channels {
    const ls__schedule *s;
    int *next;    /* [ranks] action at which the rank is */
    int *message; /* [ranks, ranks] from, to: the send's index + 1; 0: empty */
    int *waiting; /* stack of ranks that may go on */
    int count;    /* ranks on it */
    bool *queued; /* [ranks] whether a rank is on it */
    bool *there;  /* [replica_count] whether it has reached its reduction */
} channels;

static void wake(channels *c, int rank)
{
    if (!c->queued[rank]) {
        c->queued[rank] = true;
        c->waiting[c->count++] = rank;
    }
}

/* What a receive takes must be what it is for. */
static ls_status match(const channels *c, int from, int send, int to)
{
    const ls__action *s = &c->s->rank[from].list[send], *r = &c->s->rank[to].list[c->next[to]];
    const bool forward = s->kind == LS__SEND_ACTIVATION;
    if (r->kind == (forward ? LS__RECV_ACTIVATION : LS__RECV_GRADIENT) &&
        r->stage == s->stage + (forward ? 1 : -1) && r->micro_batch == s->micro_batch) {
        return LS_OK;
    }
    char text[LS__ACTION_BYTES];
    return ls__schedule_bad(c->s, to, c->next[to],
                            "the next message from rank %d is %s (action %d there)", from,
                            ls__action_print(s, text), send + 1);
}

/* The first replica that has not reached its reduction, as a rank; negative: all have. Lists have
 * one reduction of a stage with replicas, because such tables have one step (verify.c). */
static int missing(const channels *c, int stage)
{
    for (int j = 0; j < c->s->replicas[stage]; j++) {
        if (!c->there[c->s->first_replica[stage] + j]) {
            return c->s->rank_of[stage] + j;
        }
    }
    return -1;
}

/* Whether the rank goes on behind a reduction; the last replica to come wakes the others. */
static bool reduce(channels *c, int rank, int stage)
{
    bool *there = &c->there[c->s->first_replica[stage] + ls__schedule_replica(c->s, stage, rank)];
    const bool came = !*there;
    *there = true;
    if (missing(c, stage) >= 0) {
        return false;
    }
    for (int j = 0; came && j < c->s->replicas[stage]; j++) {
        if (c->s->rank_of[stage] + j != rank) {
            wake(c, c->s->rank_of[stage] + j);
        }
    }
    return true;
}

/* Until the rank waits or has ended. */
static ls_status go_on(channels *c, int rank)
{
    const ls__actions *list = &c->s->rank[rank];
    for (; c->next[rank] < list->count; c->next[rank]++) {
        const ls__action *a = &list->list[c->next[rank]];
        const char arrow = ls__action_form_of(a->kind)->arrow;
        if (a->kind == LS__REDUCE && !reduce(c, rank, a->stage)) {
            return LS_OK;
        }
        if (arrow == 0) {
            continue;
        }
        const int from = arrow == '>' ? rank : a->peer, to = arrow == '>' ? a->peer : rank;
        int *message = &c->message[from * c->s->ranks + to];
        if ((*message == 0) == (arrow == '<')) {
            return LS_OK;
        }
        if (arrow == '<') {
            LS_TRY(match(c, from, *message - 1, to));
        }
        *message = arrow == '>' ? c->next[rank] + 1 : 0;
        wake(c, a->peer);
    }
    return LS_OK;
}

/* The first rank that waits, and what its peer does. */
static ls_status deadlock(const channels *c, int rank)
{
    const ls__action *a = &c->s->rank[rank].list[c->next[rank]];
    const int peer = a->kind == LS__REDUCE ? missing(c, a->stage) : a->peer;
    const ls__actions *there = &c->s->rank[peer];
    if (c->next[peer] == there->count) {
        return ls__schedule_bad(c->s, rank, c->next[rank],
                                "it waits for rank %d, whose list has ended", peer);
    }
    char text[LS__ACTION_BYTES];
    return ls__schedule_bad(c->s, rank, c->next[rank],
                            "deadlock: it waits for rank %d, which waits in action %d (%s)", peer,
                            c->next[peer] + 1, ls__action_print(&there->list[c->next[peer]], text));
}

/* No message is left then: the lists have one receive for each possible send (verify.c). */
static ls_status check_end(const channels *c)
{
    for (int r = 0; r < c->s->ranks; r++) {
        if (c->next[r] < c->s->rank[r].count) {
            return deadlock(c, r);
        }
    }
    return LS_OK;
}

ls_status ls__schedule_verify_channels(const ls__schedule *s, ls__arena *arena)
{
    const size_t ranks = (size_t)s->ranks;
    channels c = {.s = s,
                  .next = ls__arena_alloc(arena, ranks * sizeof *c.next),
                  .message = ls__arena_alloc(arena, ranks * ranks * sizeof *c.message),
                  .waiting = ls__arena_alloc(arena, ranks * sizeof *c.waiting),
                  .queued = ls__arena_alloc(arena, ranks * sizeof *c.queued),
                  .there = ls__arena_alloc(arena, (size_t)s->replica_count * sizeof *c.there)};
    if (c.next == NULL || c.message == NULL || c.waiting == NULL || c.queued == NULL ||
        c.there == NULL) {
        return ls__fail(LS_ERR_MEMORY, "schedule %s: no memory to verify it", s->name);
    }
    for (int r = 0; r < s->ranks; r++) {
        wake(&c, s->ranks - 1 - r);
    }
    while (c.count > 0) {
        const int rank = c.waiting[--c.count];
        c.queued[rank] = false;
        LS_TRY(go_on(&c, rank));
    }
    return check_end(&c);
}
