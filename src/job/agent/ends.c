/* The ends of ranks, in the order in which they came.
 *
 * When a rank is killed others may follow within milliseconds, and the agent finds several ends at
 * once. A poller hands them out in the order in which they happened. And one that was killed first
 * may end last, because it writes to a disk or has much memory to give back: a rank that has
 * SIGKILL on its way when the first end is seen comes before that.
 */
#include <signal.h>

#include "base/assert.h"
#include "job/agent/host_agent.h"

#define READY_MAX 16

void ls__host_agent_watch(ls__host_agent *a, int r)
{
    LS_ASSERT(r >= 0 && r < a->ranks && !a->rank[r].ended);
    a->started++;
    a->running++;
    if (a->rank[r].pidfd >= 0) {
        (void)a->env->poller_add(a->env, a->ends_fd, a->rank[r].pidfd, (uint64_t)r);
    }
}

bool ls__host_agent_awaits_end(const ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        if (!a->rank[r].ended && a->rank[r].order != 0) {
            return true;
        }
    }
    return false;
}

/* What the board says of the rank now is what it had reached: later it is marked as dead. */
void ls__host_agent_note_end(ls__host_agent *a, int r, const ls__env_exit *how)
{
    ls__host_agent_rank *rank = &a->rank[r];
    LS_ASSERT(!rank->ended && (how != NULL) == (a->launcher == NULL));
    rank->exit = how != NULL ? *how : (ls__env_exit){.pid = rank->pid};
    rank->life = (ls__life)atomic_load_explicit(&a->board->rank[r].life, memory_order_acquire);
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

/* A rank that ended takes what it started along; its number is still its own until it is reaped. */
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

/* Before the first end is noted: the ranks that were killed before it and take longer. */
static void note_dying(ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        ls__host_agent_rank *rank = &a->rank[r];
        if (!rank->ended && a->env->process_state(a->env, rank->pid) == 'K') {
            rank->order = ++a->ends;
        }
    }
}

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
            take_end(a, (int)ready[i].tag);
        }
    } while (count == READY_MAX);
}
