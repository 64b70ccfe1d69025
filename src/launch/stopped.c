/* Ranks that are stopped: by SIGSTOP or Ctrl-Z, or because they touched the terminal.
 *
 * The kernel tells a parent by SIGCHLD when a child is stopped or goes on. The agent then looks at
 * its ranks, and names those that are still stopped a moment later: the others wait for them, as
 * long as the deadline of what they wait in allows.
 */
#include <stdio.h>

#include "base/log.h"
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
    ls__board_describe(agent->board, agent->env, r, what, sizeof what);
    snprintf(line, sizeof line, "lockstep: warning: %s; the other ranks wait for it", what);
    say(agent, line);
}

static void tell_going_on(ls__agent *agent, int r, uint64_t now_ns)
{
    char name[128], line[256];
    ls__board_name(agent->board, r, name, sizeof name);
    snprintf(line, sizeof line, "lockstep: %s goes on after %.1f s", name,
             (double)(now_ns - agent->rank[r].stopped_ns) * 1e-9);
    say(agent, line);
}

/* Returns when rank r is to be looked at again. */
static uint64_t look(ls__agent *agent, int r, uint64_t now_ns)
{
    ls__agent_rank *rank = &agent->rank[r];
    const uint64_t tell_ns = rank->stopped_ns + STOPPED_TELL_MS * 1000000ull;
    if (rank->ended || !ls__board_stopped(agent->board, agent->env, r)) {
        if (!rank->ended && rank->told_stopped) {
            tell_going_on(agent, r, now_ns);
        }
        rank->stopped_ns = 0;
        rank->told_stopped = false;
        return LS__NEVER;
    }
    if (rank->stopped_ns == 0) {
        rank->stopped_ns = now_ns;
        return now_ns + STOPPED_TELL_MS * 1000000ull;
    }
    if (!rank->told_stopped && now_ns >= tell_ns) {
        rank->told_stopped = true;
        tell_stopped(agent, r);
    }
    return rank->told_stopped ? LS__NEVER : tell_ns;
}

void ls__agent_look_stopped(ls__agent *agent)
{
    const uint64_t now_ns = agent->env->now_ns(agent->env);
    agent->stopped_ns = LS__NEVER;
    for (int r = 0; r < agent->started; r++) {
        const uint64_t again_ns = look(agent, r, now_ns);
        agent->stopped_ns = again_ns < agent->stopped_ns ? again_ns : agent->stopped_ns;
    }
}
