/* SPDX-License-Identifier: Apache-2.0 */
/* Records the ends of ranks in the order in which they happened.
 *
 * When a rank is killed, others may end within milliseconds, and the agent sees several ends at
 * once. The poller returns them in the order in which they happened. A rank that was killed
 * first may still end last, because it has a write to finish or much memory to release.
 * Therefore a rank that has SIGKILL pending when the first end is seen is ordered before that
 * end. */
#include <signal.h>

#include "base/assert.h"
#include "base/memory.h"
#include "job/agent/host_agent.h"

#define READY_MAX 16

/* The caller sets the rank's pid and pidfd first. The poller reports the local rank as its tag.
 * A failure to watch is not an error here: a parent also reaps every child. */
void ls__host_agent_watch(ls__host_agent *a, int r)
{
    LS_ASSERT(r >= 0 && r < a->ranks && !a->rank[r].ended);
    a->started++;
    a->running++;
    if (a->rank[r].pidfd >= 0) {
        (void)a->env->poller_add(a->env, a->ends_fd, a->rank[r].pidfd, (uint64_t)r);
    }
}

/* Whether a rank that was killed before the first end is still ending. Its end may be the root
 * cause, so root_cause.c waits for it for a moment. */
bool ls__host_agent_awaits_end(const ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        if (!a->rank[r].ended && a->rank[r].order != 0) {
            return true;
        }
    }
    return false;
}

/* A rank whose ls_init has failed leaves too, but the other ranks wait for it. */
static ls__life life_of(const ls__board_rank *place)
{
    const uint32_t life = atomic_load_explicit(&place->life, memory_order_acquire);
    const uint32_t phase = atomic_load_explicit(&place->activity.phase, memory_order_relaxed);
    return life == LS__LIFE_LEFT && phase == LS__PHASE_START ? LS__LIFE_JOINED : (ls__life)life;
}

/* Records the end of rank r, once. The rank's life is copied from the board now: mark_dead
 * overwrites it later. `how` is known exactly where this process is the parent. */
void ls__host_agent_note_end(ls__host_agent *a, int r, const ls__env_exit *how)
{
    ls__host_agent_rank *rank = &a->rank[r];
    LS_ASSERT(r >= 0 && r < a->ranks && a->running > 0);
    LS_ASSERT(!rank->ended && (how != NULL) == (a->launcher == NULL));
    rank->exit = how != NULL ? *how : (ls__env_exit){.pid = rank->pid};
    rank->life = life_of(&a->board->rank[r]);
    rank->no_memory =
        how != NULL && how->signal == SIGKILL && ls__memory_oom_kills(a->env) > a->oom_kills;
    rank->ended = true;
    rank->ended_ns = a->env->now_ns(a->env);
    rank->order = rank->order != 0 ? rank->order : ++a->ends;
    a->running--;
    if (rank->pidfd >= 0) {
        (void)a->env->poller_remove(a->env, a->ends_fd, rank->pidfd);
        a->env->close(a->env, rank->pidfd);
        rank->pidfd = -1;
    }
}

/* Terminates the processes that rank r had started, then reaps it. In this order: until a rank
 * is reaped its process group number cannot be reused, so the signal reaches no other group. */
static void take_end(ls__host_agent *a, int r)
{
    ls__env_exit how;
    if (a->rank[r].ended) {
        return;
    }
    if (a->launcher != NULL) {
        ls__host_agent_note_end(a, r, NULL);
        return;
    }
    (void)a->env->kill_group(a->env, a->rank[r].pid, SIGTERM);
    if (a->env->wait_exit(a->env, a->rank[r].pid, &how) == 0) {
        ls__host_agent_note_end(a, r, &how);
    }
}

/* Orders the ranks that have SIGKILL pending before the first end that is recorded; called once,
 * just before that. */
static void note_dying(ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        ls__host_agent_rank *rank = &a->rank[r];
        if (!rank->ended && a->env->process_state(a->env, rank->pid) == 'K') {
            rank->order = ++a->ends;
        }
    }
}

/* Drains the poller, so that all ends of one turn of the loop are compared with each other. */
void ls__host_agent_take_ends(ls__host_agent *a)
{
    ls__env_ready ready[READY_MAX];
    int count;
    do {
        count = a->env->poller_wait(a->env, a->ends_fd, ready, READY_MAX, 0);
        if (count > 0 && a->ends == 0) {
            note_dying(a);
        }
        for (int i = 0; i < count; i++) {
            LS_ASSERT(ready[i].tag < (uint64_t)a->ranks);
            take_end(a, (int)ready[i].tag);
        }
    } while (count == READY_MAX);
}
