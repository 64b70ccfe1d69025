/* SPDX-License-Identifier: Apache-2.0 */
/* Deadlock detection: ranks that wait for each other in a cycle are named with operation, group and
 * call site, and their groups fail at once instead of at a deadline.
 *
 *     rank 0: all_reduce on "a" ──waits for──▶ rank 1: all_reduce on "b" ──waits for──▶ rank 0
 *
 * Note [Why it is never wrong]
 * A rank whose threads are all blocked publishes how many operations it has submitted (`calls`),
 * in all and per group, and the operation for which each thread waits. From two such records follow
 * *facts* of this form: "rank i, having made c calls, cannot end this wait before rank j makes its
 * (d+1)th":
 *   - a collective: i waits for number s of a group, all members must submit it, and j with its d
 *     calls has submitted fewer than s of that group;
 *   - a receive: j with its d calls has no send in flight that fits, and i looked at its receive
 *     after j published this, so no earlier send fits either;
 *   - a receive from any source: the same of every other member j at once, so all of them must be
 *     stuck, each with the same number of calls as then;
 *   - a send: j with its d calls holds the announcement of this very send and has no receive for
 *     it.
 * Facts stay true, however old the records are from which they were read. A rank is stuck if every
 * thread of it has such a fact towards a stuck rank. The first of the stuck ranks to make another
 * call would need another one of them to have made one before, so no stuck rank ever makes one.
 * Slow ranks, data in flight and threads that compute produce no facts. An operation whose end
 * makes the engine start another one (the reducer's buckets) counts as a thread that waits for it.
 *
 * A thread that has not yet attached itself to the runtime is not seen; see ls_runtime_attach.
 *
 * A rank that has found a cycle ends its wait and publishes the cycle for a while: the members that
 * are still blocked then do the same, with the same text.
 */
#include <string.h>

#include "base/assert.h"
#include "base/lock.h"
#include "base/text.h"
#include "comm/core/cause.h"
#include "comm/core/group.h"
#include "comm/diagnose/deadlock.h"
#include "comm/diagnose/fail.h"
#include "comm/remote/remote.h"

#define EXAMINE_NS 1500000000u /* a wait this long is examined; mismatches are found earlier */
#define FREEZE_NS 2000000000u /* how long a published cycle, or a failed wait, stays on the board */
#define NAMED_MAX 4           /* ranks of a cycle that are named */

_Static_assert(LS__BLOCKED_RANK_WORDS * 64 == LS__PROGRAM_RANKS_MAX, "a bit for each rank");

/* Writes the record only if it has changed, so an unchanged wait costs nothing. */
static void publish(ls__comm *comm)
{
    ls__deadlock *d = comm->deadlock;
    if (memcmp(&d->published, &d->next, sizeof d->published) != 0) {
        memcpy(&d->published, &d->next, sizeof d->published);
        ls__blocked_write(&comm->me->blocked, &d->published);
        ls__remote_send_blocked(comm, &d->published);
    }
    memcpy(&d->view[comm->runtime->rank], &d->published, sizeof d->published);
}

/* ---- facts -------------------------------------------------------------------------------- */

/* Whether the rank has submitted fewer than `number` operations of that group. A group that is not
 * listed proves nothing. */
static bool lacks_call(const ls__blocked *of, uint32_t group, uint64_t number)
{
    for (uint32_t i = 0; i < of->group_count; i++) {
        if (of->group[i].group == group) {
            return of->group[i].submitted < number;
        }
    }
    return false;
}

/* Whether the rank has this very send without a receive for it. */
static bool holds_announcement(const ls__blocked *of, int from, const ls__blocked_wait *wait)
{
    for (uint32_t i = 0; i < of->announced_count; i++) {
        if (of->announced[i].group == wait->group && of->announced[i].peer == from &&
            of->announced[i].number == wait->number) {
            return true;
        }
    }
    return false;
}

/* Whether a fact holds: the wait of rank i cannot end before rank j makes another call. */
static bool waits_for(const ls__deadlock *d, int i, const ls__blocked_wait *wait, int j)
{
    const ls__blocked *of = &d->view[j];
    if (of->calls == 0) {
        return false;
    }
    switch ((ls__operation)wait->operation) {
    case LS__OP_SEND:
        return wait->peer == j && holds_announcement(of, i, wait);
    case LS__OP_RECV:
        return wait->peer == j && wait->peer_calls == of->calls;
    default:
        return ls__has_bit(wait->needs, j) && lacks_call(of, wait->group, wait->number);
    }
}

/* A receive from any source depends on all possible senders at once: returns the first of them if
 * all are stuck, else -1. */
static int next_of_any(const ls__comm *comm, const ls__blocked_wait *wait)
{
    const ls__deadlock *d = comm->deadlock;
    int first = -1;
    for (int j = comm->runtime->world_size - 1; j >= 0; j--) {
        if (ls__has_bit(wait->needs, j)) {
            first = j;
            if (!d->stuck[j]) {
                return -1;
            }
        }
    }
    return wait->peer_calls == ls__deadlock_calls(d, wait, comm->runtime->world_size) ? first : -1;
}

/* The first stuck rank on which this wait depends; -1: it depends on no stuck rank. */
static int next_stuck(const ls__comm *comm, int i, const ls__blocked_wait *wait)
{
    if (ls__blocked_any(wait)) {
        return next_of_any(comm, wait);
    }
    for (int j = 0; j < comm->runtime->world_size; j++) {
        if (j != i && comm->deadlock->stuck[j] && waits_for(comm->deadlock, i, wait, j)) {
            return j;
        }
    }
    return -1;
}

/* Whether every blocked thread of the rank depends on a stuck rank. */
static bool is_stuck(const ls__comm *comm, int i)
{
    const ls__blocked *b = &comm->deadlock->view[i];
    for (uint32_t w = 0; w < b->wait_count; w++) {
        if (next_stuck(comm, i, &b->wait[w]) < 0) {
            return false;
        }
    }
    return b->wait_count > 0;
}

/* The largest set of ranks of which each depends on another one of it: starts with all blocked
 * ranks and removes those that may still move, until none is removed. */
static void find_stuck(ls__comm *comm)
{
    ls__deadlock *d = comm->deadlock;
    bool changed = true;
    for (int r = 0; r < comm->runtime->world_size; r++) {
        d->stuck[r] = d->view[r].calls != 0;
    }
    while (changed) {
        changed = false;
        for (int r = 0; r < comm->runtime->world_size; r++) {
            if (d->stuck[r] && !is_stuck(comm, r)) {
                d->stuck[r] = false;
                changed = true;
            }
        }
    }
}

/* The next rank of the cycle; the first wait of a rank stands for all of them. */
static int follow(const ls__comm *comm, int rank)
{
    return next_stuck(comm, rank, &comm->deadlock->view[rank].wait[0]);
}

/* The lowest rank of the cycle in which this one is; -1: it only leads to a cycle. */
static int cycle_of(const ls__comm *comm, int rank)
{
    int lowest = rank, at = rank;
    for (int steps = 0; steps < comm->runtime->world_size; steps++) {
        at = follow(comm, at);
        LS_ASSERT(at >= 0); /* every stuck rank depends on a stuck rank */
        if (at == rank) {
            return lowest;
        }
        lowest = at < lowest ? at : lowest;
    }
    return -1;
}

/* ---- reporting ---------------------------------------------------------------------------- */

/* "rank 0 waits in all_reduce #3 (bucket 1) on group "a" at train.c:88 (host n1, pid 812)" */
static void put_rank(const ls__comm *comm, ls__text *to, int rank, const ls__blocked_wait *w)
{
    const bool p2p = w->peer >= 0 || ls__blocked_any(w);
    char who[128];
    ls__text_add(to, "rank %d waits in %s", rank,
                 w->operation < LS__OP_COUNT ? ls__operation_name((ls__operation)w->operation)
                                             : "an operation");
    if (p2p) {
        ls__text_add(to, "%s with tag %d", ls__blocked_any(w) ? " from any rank" : "", (int)w->tag);
    } else {
        ls__text_add(to, " #%llu", (unsigned long long)w->number);
    }
    if (w->text[0] != '\0') {
        ls__text_add(to, " (%.*s)", LS__TAG_MAX - 1, w->text);
    }
    ls__text_add(to, " on group \"%.31s\"", w->group_name);
    if (w->file[0] != '\0') {
        ls__text_add(to, " at %.*s:%d", LS__FILE_MAX - 1, w->file, (int)w->line);
    }
    ls__comm_name(comm, rank, who, sizeof who);
    const char *place = strchr(who, '(');
    ls__text_add(to, " %s", place != NULL ? place : "");
}

/* The text starts with the lowest rank, so all ranks of the cycle report the same one. The remedy
 * is kept even if the names have to be cut. */
static void describe(const ls__comm *comm, int lowest, char *out, size_t bytes)
{
    const char *remedy = "; call the operations of all groups in the same order on all ranks, or "
                         "start them with a work handle and wait later";
    ls__text to = {out, bytes - strlen(remedy)};
    int at = lowest, named = 0;
    ls__text_add(&to, "deadlock: ");
    do {
        if (named < NAMED_MAX) {
            put_rank(comm, &to, at, &comm->deadlock->view[at].wait[0]);
            ls__text_add(&to, " for rank %d%s", follow(comm, at),
                         follow(comm, at) == lowest ? "" : ", ");
        }
        named++;
        at = follow(comm, at);
    } while (at != lowest);
    if (named > NAMED_MAX) {
        ls__text_add(&to, "and %d more back to rank %d", named - NAMED_MAX, lowest);
    }
    ls__text end = {out + strlen(out), bytes - strlen(out)};
    ls__text_add(&end, "%s", remedy);
}

/* Fails the groups in whose operations this rank is blocked, and no others. */
static void fail_own_groups(ls__comm *comm, const ls__blocked *own, const char *text)
{
    LS__LIST_EACH (at, &comm->groups) {
        ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        bool waits = false;
        for (uint32_t w = 0; w < own->wait_count; w++) {
            waits = waits || own->wait[w].group == group->id;
        }
        if (waits && atomic_load_explicit(&group->failure.status, memory_order_relaxed) == 0) {
            ls__group_cause(group, LS_ERR_MISMATCH, text);
            (void)ls__group_failed(group);
        }
    }
}

/* The members with their calls: a rank that has made another call since is not in it. */
static void put_cycle(const ls__comm *comm, int lowest, ls__blocked *out)
{
    int at = lowest;
    do {
        if (out->cycle_count < LS__BLOCKED_CYCLE_MAX) {
            out->cycle[out->cycle_count].rank = at;
            out->cycle[out->cycle_count++].calls = comm->deadlock->view[at].calls;
        }
        at = follow(comm, at);
    } while (at != lowest);
}

/* Ends this rank's waits, and publishes the cycle instead of them. In this order: a rank that no
 * longer sees this one as blocked comes too late to fail the same groups with another text. */
static void give_up(ls__comm *comm, int lowest, uint64_t now_ns)
{
    LS_ASSERT(lowest >= 0);
    ls__deadlock *d = comm->deadlock;
    memset(&d->next, 0, sizeof d->next);
    put_cycle(comm, lowest, &d->next);
    describe(comm, lowest, d->next.text, sizeof d->next.text);
    fail_own_groups(comm, &d->published, d->next.text);
    publish(comm);
    d->frozen_until_ns = now_ns + FREEZE_NS;
}

/* Whether a cycle was found of which a member is still blocked, and will give up at its next check.
 * Meanwhile that member and a rank outside might look like another cycle. */
static bool cycle_is_ending(const ls__deadlock *d, int world_size)
{
    for (int r = 0; r < world_size; r++) {
        for (uint32_t i = 0; i < d->view[r].cycle_count; i++) {
            const int rank = d->view[r].cycle[i].rank;
            if (rank >= 0 && rank < world_size &&
                d->view[rank].calls == d->view[r].cycle[i].calls) {
                return true;
            }
        }
    }
    return false;
}

/* Another rank has found this one in a cycle: ends the waits with that text. The number of calls
 * shows that it is about the present wait. */
static bool join_others(ls__comm *comm)
{
    const ls__deadlock *d = comm->deadlock;
    for (int r = 0; r < comm->runtime->world_size; r++) {
        for (uint32_t i = 0; i < d->view[r].cycle_count; i++) {
            if (d->view[r].cycle[i].rank == comm->runtime->rank &&
                d->view[r].cycle[i].calls == d->published.calls) {
                char text[LS__FAILURE_MAX];
                ls__text_add(&(ls__text){text, sizeof text}, "%.*s", (int)sizeof text - 1,
                             d->view[r].text);
                fail_own_groups(comm, &d->published, text);
                return true;
            }
        }
    }
    return false;
}

/* ---- the periodic check ---------------------------------------------------------------------- */

/* The struct with its two arrays. */
static size_t bytes_of(const ls__comm *comm)
{
    const size_t size = (size_t)comm->runtime->world_size;
    return sizeof(ls__deadlock) + size * (sizeof(ls__blocked) + sizeof(bool));
}

/* Whether there are sleeping threads, and all of them have slept for `least_ns`. */
static bool sleeps_since(ls__comm *comm, uint64_t now_ns, uint64_t least_ns)
{
    bool all = true;
    ls__lock_take(&comm->lock, comm->env);
    LS__LIST_EACH (at, &comm->sleepers) {
        all = all && now_ns >= LS__LIST_ITEM(at, ls__sleeper, link)->since_ns + least_ns;
    }
    all = all && !ls__list_empty(&comm->sleepers);
    ls__unlock(&comm->lock, comm->env);
    return all;
}

/* Copies the published records of all ranks, which may be of different moments. Of one that is just
 * being written the former copy stays, whose facts are still true: without it a cycle of other
 * ranks might be found, and all ranks are to find the same one. */
static void read_all(ls__comm *comm)
{
    ls__deadlock *d = comm->deadlock;
    ls__blocked copy;
    for (int r = 0; r < comm->runtime->world_size; r++) {
        if (ls__blocked_read(&ls__comm_record(comm, r)->blocked, &copy)) {
            memcpy(&d->view[r], &copy, sizeof copy);
        }
    }
}

/* Allocates the memory with the first long wait. False: no memory, so no deadlock is found. */
static bool ready(ls__comm *comm)
{
    if (comm->deadlock == NULL) {
        comm->deadlock = comm->env->allocate(comm->env, bytes_of(comm));
        if (comm->deadlock != NULL) {
            memset(comm->deadlock, 0, bytes_of(comm));
            comm->deadlock->stuck = (bool *)(comm->deadlock->view + comm->runtime->world_size);
        }
    }
    return comm->deadlock != NULL;
}

/* Whether the group of a published wait has failed. */
static bool has_failed(const ls__comm *comm, const ls__blocked *own)
{
    LS__LIST_EACH (at, &comm->groups) {
        const ls_group *group = LS__LIST_ITEM(at, ls_group, link);
        for (uint32_t w = 0; w < own->wait_count; w++) {
            if (own->wait[w].group == group->id &&
                atomic_load_explicit(&group->failure.status, memory_order_relaxed) != 0) {
                return true;
            }
        }
    }
    return false;
}

/* Waits that have failed stay on the board for a while, since other ranks' deadlines pass too
 * (chain.c). From now on they prove nothing. */
static bool keeps_failed(ls__comm *comm, uint64_t now_ns)
{
    ls__deadlock *d = comm->deadlock;
    if (d->published.calls != 0 && has_failed(comm, &d->published)) {
        memcpy(&d->next, &d->published, sizeof d->next);
        d->next.calls = 0;
        publish(comm);
        d->frozen_until_ns = now_ns + FREEZE_NS;
    }
    return d->published.calls == 0 && d->published.wait_count > 0 && now_ns < d->frozen_until_ns;
}

/* Whether this rank's record on the board says anything. */
static bool has_published(const ls__deadlock *d)
{
    return d->published.calls != 0 || d->published.cycle_count != 0 || d->published.wait_count != 0;
}

/* Publishes first and examines a second later: all ranks of a cycle must have published. */
void ls__deadlock_check(ls__comm *comm, uint64_t now_ns)
{
    const bool slept = sleeps_since(comm, now_ns, LS__DEADLOCK_PUBLISH_NS);
    if (comm->runtime->world_size == 1 || (!slept && comm->deadlock == NULL) || !ready(comm)) {
        return;
    }
    ls__deadlock *d = comm->deadlock;
    if ((d->published.cycle_count > 0 && now_ns < d->frozen_until_ns) ||
        (!slept && !has_published(d))) {
        return;
    }
    read_all(comm);
    ls__deadlock_look(comm, now_ns, &d->next);
    if (d->next.wait_count == 0 && keeps_failed(comm, now_ns)) {
        return;
    }
    publish(comm);
    if (d->published.calls == 0 || join_others(comm) || !sleeps_since(comm, now_ns, EXAMINE_NS) ||
        cycle_is_ending(d, comm->runtime->world_size)) {
        return;
    }
    find_stuck(comm);
    const int rank = comm->runtime->rank;
    const int lowest = d->stuck[rank] ? cycle_of(comm, rank) : -1;
    if (lowest >= 0) {
        give_up(comm, lowest, now_ns);
    }
}

/* The text of the cycle in which that rank gave up; false: it did not. */
bool ls__deadlock_left(const ls__comm *comm, int world_rank, char *out, size_t bytes)
{
    ls__blocked left;
    if (!ls__blocked_read(&ls__comm_record(comm, world_rank)->blocked, &left) ||
        left.cycle_count == 0) {
        return false;
    }
    ls__text to = {out, bytes};
    ls__text_add(&to, "%.*s", (int)sizeof left.text - 1, left.text);
    return true;
}

/* When the runtime closes; the memory may never have been needed. */
void ls__deadlock_close(ls__comm *comm)
{
    if (comm->deadlock != NULL) {
        comm->env->release(comm->env, comm->deadlock, bytes_of(comm));
        comm->deadlock = NULL;
    }
}
