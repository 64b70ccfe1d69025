/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are stopped: by SIGSTOP, or because they touched the terminal. Ctrl-Z stops all ranks
 * of this host; the user knows, so they are not reported.
 *
 * The kernel sends a parent SIGCHLD when a child is stopped or continues. The agent then checks
 * its ranks, and reports those that are still stopped a moment later: the others wait for them
 * as long as their own deadlines allow. When all others have ended, only the agent still waits,
 * with the same deadline.
 *
 *     runs ──stopped──▶ noted ──STOPPED_REPORT_MS──▶ reported ──continues──▶ runs (reported again)
 *                                                       └──alone, deadline over──▶ root cause */
#include <signal.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/settings.h"
#include "launch/agent.h"

#define STOPPED_REPORT_MS 1000 /* a shorter stop is not reported */

/* A line of the launcher's own, between lines of the ranks' output where it passes through here. */
static void say(ls__agent *agent, const char *line)
{
    if (agent->output != NULL) {
        ls__output_say(agent->output, line);
    } else {
        LS__WARN("%s", line);
    }
}

/* Names the rank, its process and how to continue it. */
static void report_stopped(ls__agent *agent, int r)
{
    char what[1024], line[1200];
    ls__board_describe(agent->host.board, agent->env, r, what, sizeof what);
    snprintf(line, sizeof line, "lockstep: warning: %s; the other ranks wait for it", what);
    say(agent, line);
}

/* Only after report_stopped: the user has read that the rank was stopped. */
static void report_continued(ls__agent *agent, int r, uint64_t now_ns)
{
    char name[128], line[256];
    ls__board_name(agent->host.board, r, name, sizeof name);
    snprintf(line, sizeof line, "lockstep: %s continues after %.1f s", name,
             (double)(now_ns - agent->rank[r].stopped_ns) * 1e-9);
    say(agent, line);
}

/* Whether some ranks have ended, all of them successfully, and all others are stopped. */
static bool waits_alone(const ls__agent *agent)
{
    int ended = 0;
    for (int r = 0; r < agent->host.started; r++) {
        const ls__host_agent_rank *rank = &agent->host.rank[r];
        const bool well = rank->exit.code == 0 && rank->exit.signal == 0;
        if (rank->ended ? !well : !agent->rank[r].reported_stopped) {
            return false;
        }
        ended += rank->ended;
    }
    return ended > 0;
}

/* Returns when to check rank r again, which is stopped and reported. */
static uint64_t wait_for(ls__agent *agent, int r, uint64_t now_ns)
{
    const uint64_t over_ns = ls__time_after(agent->rank[r].stopped_ns, ls__timeout_setting_ms());
    if (now_ns < over_ns) {
        return over_ns;
    }
    if (!waits_alone(agent)) {
        return ls__time_after(now_ns, STOPPED_REPORT_MS);
    }
    char what[1024];
    ls__board_describe(agent->host.board, agent->env, r, what, sizeof what);
    ls__agent_fail(agent, 1, "%s; all other ranks have ended, and it has not continued for %.1f s",
                   what, (double)(now_ns - agent->rank[r].stopped_ns) * 1e-9);
    return LS__NEVER;
}

/* One step of the state machine above for rank r. Returns when to check it again. */
static uint64_t check_rank(ls__agent *agent, int r, uint64_t now_ns)
{
    ls__agent_rank *rank = &agent->rank[r];
    const bool ended = agent->host.rank[r].ended;
    const uint64_t report_ns = rank->stopped_ns + STOPPED_REPORT_MS * 1000000ull;
    if (ended || agent->paused || !ls__board_stopped(agent->host.board, agent->env, r)) {
        const bool ending = agent->kill_ns != LS__NEVER; /* it may be killed and not reaped yet */
        if (!ended && !ending && rank->reported_stopped) {
            report_continued(agent, r, now_ns);
        }
        rank->stopped_ns = 0;
        rank->reported_stopped = false;
        return LS__NEVER;
    }
    if (rank->stopped_ns == 0) {
        rank->stopped_ns = now_ns;
        return now_ns + STOPPED_REPORT_MS * 1000000ull;
    }
    LS_ASSERT(now_ns >= rank->stopped_ns);
    if (!rank->reported_stopped && now_ns >= report_ns) {
        rank->reported_stopped = true;
        report_stopped(agent, r);
    }
    return rank->reported_stopped ? wait_for(agent, r, now_ns) : report_ns;
}

void ls__agent_pause(ls__agent *agent, bool stop)
{
    if (stop == agent->paused) {
        return;
    }
    agent->paused = stop;
    if (!stop && agent->host.board != NULL) { /* the first one to run may look at a deadline */
        atomic_store_explicit(&agent->host.board->continued_ns, agent->env->now_ns(agent->env),
                              memory_order_relaxed);
    }
    ls__agent_signal_groups(agent, stop ? SIGSTOP : SIGCONT);
}

/* Checks all ranks and sets agent->stopped_ns to the earliest time of the next check. */
void ls__agent_check_stopped(ls__agent *agent)
{
    const uint64_t now_ns = agent->env->now_ns(agent->env);
    agent->stopped_ns = LS__NEVER;
    for (int r = 0; r < agent->host.started; r++) {
        const uint64_t again_ns = check_rank(agent, r, now_ns);
        agent->stopped_ns = again_ns < agent->stopped_ns ? again_ns : agent->stopped_ns;
    }
}
