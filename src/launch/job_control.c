/* Ranks that are stopped: by SIGSTOP or Ctrl-Z, or because they touched the terminal.
 *
 * The kernel tells a parent by SIGCHLD when a child is stopped or goes on. The agent then looks at
 * its ranks, and names those that are still stopped a moment later: the others wait for them, as
 * long as the deadline of what they wait in allows. When all others have ended nobody waits any
 * more but the agent, which has the same deadline.
 */
#include <stdio.h>

#include "base/log.h"
#include "base/settings.h"
#include "launch/agent.h"

#define STOPPED_TELL_MS 1000 /* who stops a rank for a moment is told nothing */

static void say(ls__agent *agent, const char *line)
{
    if (agent->output != NULL) {
        ls__output_say(agent->output, line);
    } else {
        LS__WARN("%s", line);
    }
}

static void tell_stopped(ls__agent *agent, int r)
{
    char what[1024], line[1200];
    ls__board_describe(agent->host.board, agent->env, r, what, sizeof what);
    snprintf(line, sizeof line, "lockstep: warning: %s; the other ranks wait for it", what);
    say(agent, line);
}

static void tell_going_on(ls__agent *agent, int r, uint64_t now_ns)
{
    char name[128], line[256];
    ls__board_name(agent->host.board, r, name, sizeof name);
    snprintf(line, sizeof line, "lockstep: %s goes on after %.1f s", name,
             (double)(now_ns - agent->rank[r].stopped_ns) * 1e-9);
    say(agent, line);
}

/* Some ranks have ended, all of these well, and the others are all stopped. */
static bool waits_alone(const ls__agent *agent)
{
    int ended = 0;
    for (int r = 0; r < agent->host.started; r++) {
        const ls__host_agent_rank *rank = &agent->host.rank[r];
        const bool well = rank->exit.code == 0 && rank->exit.signal == 0;
        if (rank->ended ? !well : !agent->rank[r].said_stopped) {
            return false;
        }
        ended += rank->ended;
    }
    return ended > 0;
}

/* Returns when to look again at rank r, which is stopped. */
static uint64_t wait_for(ls__agent *agent, int r, uint64_t now_ns)
{
    const uint64_t over_ns = ls__time_after(agent->rank[r].stopped_ns, ls__timeout_setting_ms());
    if (now_ns < over_ns) {
        return over_ns;
    }
    if (!waits_alone(agent)) {
        return ls__time_after(now_ns, STOPPED_TELL_MS);
    }
    char what[1024];
    ls__board_describe(agent->host.board, agent->env, r, what, sizeof what);
    ls__agent_fail(agent, 1, "%s; all other ranks have ended, and it did not go on for %.1f s",
                   what, (double)(now_ns - agent->rank[r].stopped_ns) * 1e-9);
    return LS__NEVER;
}

/* Returns when rank r is to be looked at again. */
static uint64_t look(ls__agent *agent, int r, uint64_t now_ns)
{
    ls__agent_rank *rank = &agent->rank[r];
    const bool ended = agent->host.rank[r].ended;
    const uint64_t tell_ns = rank->stopped_ns + STOPPED_TELL_MS * 1000000ull;
    if (ended || !ls__board_stopped(agent->host.board, agent->env, r)) {
        if (!ended && rank->said_stopped) {
            tell_going_on(agent, r, now_ns);
        }
        rank->stopped_ns = 0;
        rank->said_stopped = false;
        return LS__NEVER;
    }
    if (rank->stopped_ns == 0) {
        rank->stopped_ns = now_ns;
        return now_ns + STOPPED_TELL_MS * 1000000ull;
    }
    if (!rank->said_stopped && now_ns >= tell_ns) {
        rank->said_stopped = true;
        tell_stopped(agent, r);
    }
    return rank->said_stopped ? wait_for(agent, r, now_ns) : tell_ns;
}

void ls__agent_look_stopped(ls__agent *agent)
{
    const uint64_t now_ns = agent->env->now_ns(agent->env);
    agent->stopped_ns = LS__NEVER;
    for (int r = 0; r < agent->host.started; r++) {
        const uint64_t again_ns = look(agent, r, now_ns);
        agent->stopped_ns = again_ns < agent->stopped_ns ? again_ns : agent->stopped_ns;
    }
}
