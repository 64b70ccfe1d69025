/* SPDX-License-Identifier: Apache-2.0 */
/* Several hosts: this agent as one node among the others.
 *
 *     gather:  all connect to node 0, which lays out the world     before there is a rank
 *     then:    root cause and stop requests travel                 job/nodes carries them
 *     end:     DONE to node 0, END from it                         all end, or restart, alike */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/log.h"
#include "base/settings.h"
#include "job/nodes/secret.h"
#include "launch/agent.h"

/* ---- gathering ----------------------------------------------------------------------------- */

/* Serves the loop while a name server has not answered. */
static bool stopped_meanwhile(void *arg)
{
    ls__agent *agent = arg;
    agent->starting = true; /* a turn that does not wait */
    ls__agent_turn(agent);
    agent->starting = false;
    return agent->host.has_cause;
}

/* Translates the job's options for the host agent, which connects. */
static ls_status open_nodes(ls__agent *agent)
{
    const ls__job *job = agent->job;
    const ls__nodes_spec nodes = {.first = job->node == 0,
                                  .nodes = job->nodes,
                                  .node = job->node,
                                  .attempt = job->attempt,
                                  .id = job->job_id != NULL ? job->job_id : "",
                                  .run_id = job->run_id,
                                  .timeout_ms = ls__timeout_setting_ms()};
    const ls__host_agent_hosts hosts = {.rendezvous = job->rendezvous,
                                        .rendezvous_from = job->rendezvous_from,
                                        .secret_file = job->secret_file,
                                        .secret_from = "--secret-file",
                                        .nodes = &nodes,
                                        .plain = job->plain,
                                        .stop = stopped_meanwhile,
                                        .stop_arg = agent};
    return ls__host_agent_join_hosts(&agent->host, &hosts);
}

/* Only with several nodes: a user of one host knows it. */
void ls__agent_say_placement(const ls__agent *agent)
{
    const ls__nodes_world *world = &agent->host.world;
    char line[512];
    if (agent->host.nodes == NULL || agent->output == NULL) {
        return;
    }
    snprintf(line, sizeof line,
             "lockstep: node %d of %d (host %s, %s): ranks %d to %d of %d; between nodes: %s",
             world->node, world->nodes, agent->host.name, world->address, world->first_rank,
             world->first_rank + agent->job->ranks - 1, world->world_size,
             ls__nodes_protection(agent->host.nodes));
    ls__output_say(agent->output, line);
}

/* Serves the loop while it waits, so that signals and the front's end are noticed. A failure here,
 * of this node or of another, becomes the root cause. */
bool ls__agent_gather(ls__agent *agent)
{
    if (open_nodes(agent) < 0) {
        ls__agent_fail(agent, 1, "%s", ls_error_message());
        return false;
    }
    agent->gathering = true;
    while (ls__nodes_state_of(agent->host.nodes) == LS__NODES_GATHERING && !agent->host.has_cause) {
        ls__agent_turn(agent);
    }
    agent->gathering = false;
    if (ls__nodes_state_of(agent->host.nodes) == LS__NODES_FAILED) {
        ls__agent_fail(agent, 1, "%s", ls__nodes_error(agent->host.nodes));
    }
    if (agent->host.has_cause) {
        return false;
    }
    agent->host.world = *ls__nodes_world_of(agent->host.nodes);
    if (agent->host.world.world_size > LS__BOARD_RANKS_MAX) {
        ls__agent_fail(agent, 1, "a world of %d ranks is too large: this release runs at most %d",
                       agent->host.world.world_size, LS__BOARD_RANKS_MAX);
        return false;
    }
    return true;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* Node 0's decision for all nodes. It works on a copy of the front's record: the front decides
 * again from the same numbers, with the same result, and counts the restart. */
static ls__nodes_end decide(const ls__agent *agent)
{
    ls__nodes_end end = {.again = false};
    const ls__job_result *result = agent->result;
    if (result->code == 0 || agent->job->max_restarts == 0) {
        return end;
    }
    if (agent->host.stop_signal != 0) {
        snprintf(end.text, sizeof end.text, "not restarted: a stop was requested (%s)",
                 ls__signal_name(agent->host.stop_signal));
        return end;
    }
    ls__restarts restarts = *agent->restarts;
    ls__restart next = ls__restart_decide(&restarts, result, agent->env->now_ns(agent->env));
    end.again = next.again;
    end.delay_ms = next.delay_ms;
    snprintf(end.text, sizeof end.text, "%s", next.text);
    return end;
}

/* Passes node 0's decision to the front, which follows it. Once is enough. */
static void take_decision(ls__agent *agent)
{
    const ls__nodes_end *end = ls__nodes_end_of(agent->host.nodes);
    ls__job_result *result = agent->result;
    if (end == NULL || result->node0_decided) {
        return;
    }
    result->node0_decided = true;
    result->node0_restarts = end->again;
    result->node0_delay_ms = end->delay_ms;
    snprintf(result->node0_text, sizeof result->node0_text, "%s", end->text);
}

/* The culprit's last lines, wherever it ran: the decision about a restart compares them with
 * those of the attempt before. */
static void keep_tail(ls__agent *agent, const char *here, const char *there)
{
    ls__job_failure *failure = &agent->result->failure;
    if (failure->last_lines[0] == '\0') {
        snprintf(failure->last_lines, sizeof failure->last_lines, "%s",
                 here[0] != '\0' ? here : there);
    }
}

/* Called in every turn after the ranks of this host have ended; true: the loop must go on. */
bool ls__agent_awaits_nodes(ls__agent *agent)
{
    char tail[sizeof agent->result->failure.last_lines];
    const char *other_tail = "";
    ls__agent_tail(agent, tail, sizeof tail);
    switch (ls__host_agent_may_leave(&agent->host, tail, &other_tail)) {
    case LS__LEAVE_DECIDE:
        keep_tail(agent, tail, other_tail);
        const ls__nodes_end end = decide(agent);
        ls__nodes_finish(agent->host.nodes, &end);
        ls__nodes_flush(agent->host.nodes);
        return ls__nodes_state_of(agent->host.nodes) != LS__NODES_ENDED;
    case LS__LEAVE_WAIT:
        return true;
    case LS__LEAVE_OVER:
        break;
    }
    if (agent->host.nodes != NULL && !agent->host.first) {
        take_decision(agent);
    }
    return false;
}
