/* Several hosts: this agent among the others.
 *
 *     gather:  all come to node 0, which deals out the world       before there is a rank
 *     then:    verdicts and stops travel (report.c, agent.c)       comm/nodes carries them
 *     end:     DONE to node 0, END from it                         all end, or restart, alike
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/log.h"
#include "base/settings.h"
#include "job/nodes/secret.h"
#include "launch/agent.h"

/* ---- gathering ----------------------------------------------------------------------------- */

static ls_status open_nodes(ls__agent *agent)
{
    const ls__job *job = agent->job;
    ls__rendezvous_place place;
    LS_TRY(ls__place_parse(job->rendezvous, job->rendezvous_from, &place));
    LS_TRY(ls__place_resolve(agent->env, &place));
    if (job->secret_file != NULL) {
        LS_TRY(ls__secret_read(agent->env, job->secret_file, "--secret-file", agent->secret));
    }
    agent->plain = ls__place_mode(&place, job->plain) == LS__LINK_PLAIN;
    const ls__nodes_spec spec = {.env = agent->env,
                                 .store = agent->store,
                                 .secret = job->secret_file != NULL ? agent->secret : NULL,
                                 .mode = agent->plain ? LS__LINK_PLAIN : LS__LINK_TLS,
                                 .place = &place,
                                 .first = job->node == 0,
                                 .nodes = job->nodes,
                                 .node = job->node,
                                 .ranks = job->ranks,
                                 .attempt = job->attempt,
                                 .id = job->job_id != NULL ? job->job_id : "",
                                 .run_id = job->run_id,
                                 .host = agent->host,
                                 .version = LS_VERSION,
                                 .timeout_ms = ls__timeout_setting_ms()};
    return ls__nodes_open(&spec, &agent->nodes);
}

void ls__agent_say_where(const ls__agent *agent)
{
    const ls__nodes_world *world = &agent->world;
    char line[512];
    if (agent->nodes == NULL || agent->output == NULL) {
        return;
    }
    snprintf(line, sizeof line,
             "lockstep: node %d of %d (host %s, %s): ranks %d to %d of %d; between nodes: %s",
             world->node, world->nodes, agent->host, world->address, world->first_rank,
             world->first_rank + agent->job->ranks - 1, world->world_size,
             ls__nodes_protection(agent->nodes));
    ls__output_say(agent->output, line);
}

bool ls__agent_gather(ls__agent *agent)
{
    if (open_nodes(agent) < 0) {
        ls__agent_fail(agent, 1, "%s", ls_error_message());
        return false;
    }
    agent->gathering = true;
    while (ls__nodes_state_of(agent->nodes) == LS__NODES_GATHERING && !ls__agent_failed(agent)) {
        ls__agent_turn(agent);
    }
    agent->gathering = false;
    if (ls__nodes_state_of(agent->nodes) == LS__NODES_FAILED) {
        ls__agent_fail(agent, 1, "%s", ls__nodes_error(agent->nodes));
    }
    if (ls__agent_failed(agent)) {
        return false;
    }
    agent->world = *ls__nodes_world_of(agent->nodes);
    memcpy(agent->secret, ls__nodes_secret(agent->nodes), sizeof agent->secret);
    if (agent->world.world_size > LS__BOARD_RANKS_MAX) {
        ls__agent_fail(agent, 1, "%d ranks: this release runs at most %d in a world",
                       agent->world.world_size, LS__BOARD_RANKS_MAX);
        return false;
    }
    return true;
}

/* ---- the end ------------------------------------------------------------------------------- */

/* The front will decide alike: from the same numbers, which it has too. */
static ls__nodes_end decide(const ls__agent *agent)
{
    ls__nodes_end end = {.again = false};
    const ls__job_result *result = agent->result;
    if (result->code == 0 || agent->job->max_restarts == 0) {
        return end;
    }
    if (agent->stop_signal != 0) {
        snprintf(end.text, sizeof end.text, "not restarted: asked to stop (%s)",
                 ls__signal_name(agent->stop_signal));
        return end;
    }
    ls__restarts restarts = *agent->restarts;
    ls__restart next = ls__restart_decide(&restarts, result, agent->env->now_ns(agent->env));
    end.again = next.again;
    end.delay_ms = next.delay_ms;
    snprintf(end.text, sizeof end.text, "%s", next.text);
    return end;
}

static void be_told(ls__agent *agent)
{
    const ls__nodes_end *end = ls__nodes_end_of(agent->nodes);
    ls__job_result *result = agent->result;
    if (end == NULL || result->told) {
        return;
    }
    result->told = true;
    result->told_again = end->again;
    result->told_delay_ms = end->delay_ms;
    snprintf(result->told_text, sizeof result->told_text, "%s", end->text);
}

static bool first_awaits(ls__agent *agent)
{
    const char *tail = "";
    const bool judging = agent->settle_ns != LS__NEVER && !ls__agent_failed(agent);
    if (!ls__nodes_all_done(agent->nodes, &tail) || judging) {
        return true; /* a failure of this host waits for a better explanation until its time is up
                      */
    }
    char *lines = agent->result->failure.last_lines;
    if (lines[0] == '\0') {
        ls__agent_tail(agent, lines, sizeof agent->result->failure.last_lines);
    }
    if (lines[0] == '\0') {
        snprintf(lines, sizeof agent->result->failure.last_lines, "%s", tail);
    }
    ls__nodes_end end = decide(agent);
    ls__nodes_finish(agent->nodes, &end);
    ls__nodes_flush(agent->nodes);
    return ls__nodes_state_of(agent->nodes) != LS__NODES_ENDED;
}

bool ls__agent_awaits_nodes(ls__agent *agent)
{
    if (agent->nodes == NULL || ls__nodes_state_of(agent->nodes) == LS__NODES_FAILED ||
        ls__nodes_state_of(agent->nodes) == LS__NODES_GATHERING) {
        return false;
    }
    if (agent->job->node == 0) {
        return first_awaits(agent);
    }
    if (agent->reported != LS__FOUND_NONE && !ls__agent_failed(agent) &&
        ls__nodes_found(agent->nodes) == NULL) {
        return true; /* node 0's verdict says whose last lines are wanted */
    }
    if (!agent->over) {
        char tail[sizeof agent->result->failure.last_lines];
        ls__agent_tail(agent, tail, sizeof tail);
        ls__nodes_done(agent->nodes, tail);
        ls__nodes_flush(agent->nodes);
        agent->over = true;
    }
    be_told(agent);
    return ls__nodes_state_of(agent->nodes) == LS__NODES_RUNNING &&
           ls__nodes_found(agent->nodes) == NULL;
}
