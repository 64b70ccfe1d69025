/* SPDX-License-Identifier: Apache-2.0 */
/* Heartbeats of ranks on other hosts, and the periodic check that gives a rank up. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "comm/core/cause.h"
#include "comm/core/remote_rank.h"
#include "comm/remote/remote.h"
#include "comm/transport/tcp.h"

typedef struct beat { /* the payload of BEAT */
    int32_t pid;
    uint32_t life, phase;
    int32_t line;
    uint64_t age_ns; /* of the phase */
    uint64_t updates, step;
    char detail[LS__ACTIVITY_DETAIL_MAX];
    char file[LS__ACTIVITY_FILE_MAX];
    uint32_t flight_state; /* of the last operation */
    uint32_t reserved;
    ls__descriptor descriptor;
    char group_name[32];
} beat;

/* ---- heartbeats --------------------------------------------------------------------------- */

/* The cached board record of the sender becomes what its own one was when it sent. */
void ls__remote_take_beat(ls__comm *comm, int from, const ls__message *message)
{
    ls__board_rank *record = comm->remote->rank[from].record;
    beat b;
    if (message->bytes != sizeof b) {
        return;
    }
    memcpy(&b, message->payload, sizeof b);
    const uint64_t now = comm->env->now_ns(comm->env);
    ls__activity *a = &record->activity;
    atomic_store_explicit(&record->pid, b.pid, memory_order_relaxed);
    atomic_store_explicit(&a->phase, b.phase, memory_order_relaxed);
    atomic_store_explicit(&a->since_ns, b.age_ns < now ? now - b.age_ns : 1, memory_order_relaxed);
    atomic_store_explicit(&a->step, b.step, memory_order_relaxed);
    atomic_store_explicit(&a->updates, b.updates, memory_order_relaxed);
    memcpy(a->detail, b.detail, sizeof a->detail);
    memcpy(a->file, b.file, sizeof a->file);
    a->line = b.line;
    ls__flight_record *flight = &record->flight[0];
    flight->descriptor = b.descriptor;
    memcpy(flight->group_name, b.group_name, sizeof flight->group_name);
    atomic_store_explicit(&flight->state, b.flight_state, memory_order_release);
    atomic_store_explicit(&record->flight_next, b.flight_state != LS__FLIGHT_EMPTY,
                          memory_order_release);
}

/* A snapshot of this rank's board record: its activity and its last operation. */
static void fill_beat(const ls__comm *comm, uint64_t now, beat *out)
{
    const ls__board_rank *me = comm->me;
    const ls__activity *a = &me->activity;
    ls__activity_copy copy;
    (void)ls__activity_read(a, &copy);
    memset(out, 0, sizeof *out);
    out->pid = comm->runtime->pid;
    out->phase = copy.phase;
    out->line = copy.line;
    out->age_ns = now > copy.since_ns ? now - copy.since_ns : 0;
    out->step = atomic_load_explicit(&a->step, memory_order_relaxed);
    out->updates = atomic_load_explicit(&a->updates, memory_order_relaxed);
    memcpy(out->detail, copy.detail, sizeof out->detail);
    memcpy(out->file, copy.file, sizeof out->file);
    const uint64_t next = atomic_load_explicit(&me->flight_next, memory_order_acquire);
    if (next > 0) {
        const ls__flight_record *flight = &me->flight[(next - 1) % LS__FLIGHT_MAX];
        out->flight_state = atomic_load_explicit(&flight->state, memory_order_acquire);
        out->descriptor = flight->descriptor;
        memcpy(out->group_name, flight->group_name, sizeof out->group_name);
    }
}

/* Only with a free slot: the next heartbeat replaces this one. */
static void send_beats(ls__comm *comm, uint64_t now)
{
    beat b;
    ls__message head = {.kind = LS__MESSAGE_BEAT, .bytes = sizeof b};
    comm->remote->next_beat_ns = now + LS__REMOTE_BEAT_NS;
    fill_beat(comm, now, &b);
    for (int r = 0; r < comm->runtime->world_size; r++) {
        /* Waiting messages are a sign of life as well, and beats must not pile up for a stopped
         * peer. */
        if (comm->remote->is[r] && ls__list_empty(&comm->remote->rank[r].waiting)) {
            (void)ls__remote_put(comm, r, &head, &b);
        }
    }
}

/* ---- the periodic check ---------------------------------------------------------------------- */

/* Whether the rank is a member of the group. */
static bool has_member(const ls_group *group, int world_rank)
{
    return ls__member_of(group, world_rank) >= 0;
}

bool ls__remote_is_damaged(const ls__comm *comm, int rank)
{
    return ls__tcp_damage(comm->remote->net, rank) != NULL;
}

/* Why rank r is given up. A broken connection is unconfirmed, because only a launcher can
 * distinguish a dead process from a broken network; damaged data needs no confirmation. */
static void describe_loss(ls__comm *comm, int r, const char *why, char text[LS__FAILURE_MAX])
{
    char doing[512];
    const bool here = ls__remote_is_damaged(comm, r);
    if (here || ls__tcp_peer_says_damaged(comm->remote->net, r)) {
        const int rank = comm->runtime->rank;
        snprintf(text, LS__FAILURE_MAX, "data from rank %d arrived damaged at rank %d (%s)",
                 here ? r : rank, here ? rank : r, why);
        return;
    }
    ls__comm_describe(comm, r, doing, sizeof doing);
    snprintf(
        text, LS__FAILURE_MAX,
        "the connection between rank %d (host %.63s) and rank %d broke (%s), and no launcher has "
        "reported why: %s; check that host and the network between (unconfirmed)",
        comm->runtime->rank, comm->board->host, r, why, doing);
}

/* Fails every group that contains a rank which cannot be reached any more; those that are made
 * later find the reason in the rank's record. */
static void give_up(ls__comm *comm, int r, const char *why)
{
    ls__remote_rank *rank = &comm->remote->rank[r];
    char text[LS__FAILURE_MAX];
    LS_ASSERT(!rank->given_up);
    rank->given_up = true;
    describe_loss(comm, r, why, text);
    /* The side where data arrived damaged found the root cause. A lost peer, which the other side
     * may see, explains less (job/agent/root_cause.c). */
    ls__comm_record_failure(comm, ls__remote_is_damaged(comm, r) ? LS_ERR_SYSTEM : LS_ERR_PEER,
                            text);
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        if (has_member(group, r) &&
            atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            ls__group_cause(group, LS_ERR_PEER, text);
        }
    }
    snprintf(rank->record->ended_text, sizeof rank->record->ended_text, "%.639s", text);
    atomic_store_explicit(&rank->record->life, LS__LIFE_DEAD, memory_order_release);
}

/* Rank r is given up at once after damage; at the next check it has been told, and its connections
 * end. */
static void check_damaged(ls__comm *comm, int r, const char *damage)
{
    const ls__remote_rank *rank = &comm->remote->rank[r];
    if (rank->left_ns == 0 && !rank->given_up) {
        give_up(comm, r, damage);
    } else {
        ls__tcp_end_damaged(comm->remote->net, r);
    }
}

/* A rank is given up only some time after its connection broke, since the launcher usually reports
 * the reason, unless damage is the reason. Silence leads to a warning only, since the process may
 * be stopped, unless its host is silent too. */
static void check_rank(ls__comm *comm, int r, uint64_t now_ns)
{
    ls__remote_rank *rank = &comm->remote->rank[r];
    const char *broken = comm->transport->broken(comm->transport, r);
    const char *damage = ls__tcp_damage(comm->remote->net, r);
    if (damage != NULL && broken == NULL) {
        check_damaged(comm, r, damage);
        return;
    }
    if (broken != NULL && rank->left_ns == 0 && !rank->given_up) {
        rank->broken_ns = rank->broken_ns == 0 ? now_ns : rank->broken_ns;
        if (damage != NULL || ls__tcp_peer_says_damaged(comm->remote->net, r) ||
            now_ns - rank->broken_ns > LS__GRACE_NS) {
            give_up(comm, r, broken);
        }
        return;
    }
    const uint64_t heard = ls__tcp_heard(comm->remote->net, r);
    atomic_store_explicit(&rank->record->heartbeat_ns, heard, memory_order_relaxed);
    const bool silent = rank->left_ns == 0 && broken == NULL && !comm->remote->stood_still &&
                        now_ns > heard + LS__REMOTE_SILENT_NS;
    if (silent && !rank->silent && atomic_load_explicit(&comm->pending, memory_order_relaxed) > 0) {
        char what[768];
        rank->silent = true;
        ls__comm_describe(comm, r, what, sizeof what);
        LS__WARN("%s", what);
    } else if (silent && rank->silent) {
        (void)ls__tcp_give_up(comm->remote->net, r);
    } else if (!silent && rank->silent) {
        LS__WARN("rank %d sends heartbeats again", r);
        rank->silent = false;
    }
}

/* Called ten times a second; heartbeats have a period of their own. A process that was stopped has
 * yet to read those that came meanwhile. */
void ls__remote_check(ls__comm *comm, uint64_t now_ns)
{
    comm->remote->stood_still = now_ns > comm->remote->checked_ns + LS__REMOTE_SILENT_NS / 2;
    comm->remote->checked_ns = now_ns;
    if (now_ns >= comm->remote->next_beat_ns) {
        send_beats(comm, now_ns);
    }
    for (int r = 0; r < comm->runtime->world_size; r++) {
        if (comm->remote->is[r]) {
            check_rank(comm, r, now_ns);
        }
    }
}
