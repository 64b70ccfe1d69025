/* The ends of ranks, in the order in which they came.
 *
 * When a rank is killed others may follow within milliseconds, and the agent finds several ends at
 * once. A poller hands them out in the order in which they happened. And one that was killed first
 * may end last, because it writes to a disk or has much memory to give back: a rank that has
 * SIGKILL on its way when the first end is seen comes before that.
 */
#include <signal.h>

#include "launch/agent.h"

#define READY_MAX 16

void ls__agent_watch_end(ls__agent *agent, int r)
{
    (void)agent->env->poller_add(agent->env, agent->ends_fd, agent->rank[r].pidfd, (uint64_t)r);
}

bool ls__agent_awaits_end(const ls__agent *agent)
{
    for (int r = 0; r < agent->started; r++) {
        if (!agent->rank[r].ended && agent->rank[r].order != 0) {
            return true;
        }
    }
    return false;
}

void ls__agent_note_end(ls__agent *agent, int r, const ls__env_exit *how)
{
    ls__agent_rank *rank = &agent->rank[r];
    uint32_t life = atomic_load_explicit(&agent->board->rank[r].life, memory_order_acquire);
    rank->exit = *how;
    rank->life = (ls__life)life;
    rank->ended = true;
    rank->ended_ns = agent->env->now_ns(agent->env);
    rank->order = rank->order != 0 ? rank->order : ++agent->ends;
    agent->running--;
    (void)agent->env->poller_remove(agent->env, agent->ends_fd, rank->pidfd);
    agent->env->close(agent->env, rank->pidfd);
    rank->pidfd = -1;
}

/* A rank that ended takes what it started along; its number is still its own until it is reaped. */
static void reap_rank(ls__agent *agent, int r)
{
    ls__env_exit how;
    ls__agent_rank *rank = &agent->rank[r];
    if (rank->ended) {
        return;
    }
    (void)agent->env->kill_group(agent->env, rank->pid, SIGTERM);
    if (agent->env->wait_exit(agent->env, rank->pid, &how) == 0) {
        ls__agent_note_end(agent, r, &how);
    }
}

/* Before the first end is noted: who was killed before and takes longer. */
static void note_dying(ls__agent *agent)
{
    for (int r = 0; r < agent->started; r++) {
        ls__agent_rank *rank = &agent->rank[r];
        if (!rank->ended && agent->env->process_state(agent->env, rank->pid) == 'K') {
            rank->order = ++agent->ends;
        }
    }
}

void ls__agent_reap(ls__agent *agent)
{
    ls__env_ready ready[READY_MAX];
    int count;
    do {
        count = agent->env->poller_wait(agent->env, agent->ends_fd, ready, READY_MAX, 0);
        if (count > 0 && agent->ends == 0) {
            note_dying(agent);
        }
        for (int i = 0; i < count; i++) {
            reap_rank(agent, (int)ready[i].tag);
        }
    } while (count == READY_MAX);
}
