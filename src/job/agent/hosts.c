/* SPDX-License-Identifier: Apache-2.0 */
/* This host as one of several: how it joins the others, and when it may leave them.
 *
 *   gather   all hosts connect to the first, which describes the world   before there is a board
 *   then     failures and stop requests travel                           job/nodes carries them
 *   leave    DONE to the first host, END from it                         so that all end alike */
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/assert.h"
#include "job/agent/host_agent.h"
#include "job/nodes/secret.h"

/* Resolves the rendezvous, reads the common secret and starts to connect; the owner's loop does
 * the rest. Without a secret file only hosts on the loopback are accepted (ls__nodes_open). */
ls_status ls__host_agent_join_hosts(ls__host_agent *a, const ls__host_agent_hosts *hosts)
{
    LS_ASSERT(a->nodes == NULL && a->board == NULL);
    ls__rendezvous_place place;
    const uint64_t deadline = ls__deadline_after(a->env, hosts->nodes->timeout_ms);
    LS_TRY(ls__place_parse(hosts->rendezvous, hosts->rendezvous_from, &place));
    LS_TRY(
        ls__place_resolve(a->env, &place, hosts->nodes->timeout_ms, hosts->stop, hosts->stop_arg));
    if (hosts->secret_file != NULL) {
        LS_TRY(ls__secret_read(a->env, hosts->secret_file, hosts->secret_from, a->secret));
    } else if (hosts->secret != NULL) {
        memcpy(a->secret, hosts->secret, sizeof a->secret);
    }
    ls__nodes_spec spec = *hosts->nodes;
    spec.env = a->env;
    spec.deadline_ns = deadline;
    spec.store = a->store;
    spec.secret = hosts->secret_file != NULL || hosts->secret != NULL ? a->secret : NULL;
    spec.mode = ls__place_mode(&place, hosts->plain);
    spec.place = &place;
    spec.ranks = a->ranks;
    spec.host = a->name;
    spec.version = LS_VERSION;
    a->plain = spec.mode == LS__LINK_PLAIN;
    a->first = spec.first;
    return ls__nodes_open(&spec, &a->nodes);
}

/* Whether a failure of this host still waits for a better explanation (root_cause.c). */
static bool settles(const ls__host_agent *a)
{
    return a->settle_ns != LS__NEVER && !a->has_cause;
}

/* The first host leaves last: it decides when every host has reported DONE. Another host reports
 * DONE once, with the last lines of the culprit if that ran here, and waits for END. A host that
 * reported a failure first waits for the decision, which says whose last lines are needed. */
ls__host_agent_leave ls__host_agent_may_leave(ls__host_agent *a, const char *tail,
                                              const char **other_tail)
{
    if (a->nodes == NULL) {
        return LS__LEAVE_OVER;
    }
    const ls__nodes_state state = ls__nodes_state_of(a->nodes);
    if (state == LS__NODES_FAILED || state == LS__NODES_GATHERING ||
        (state == LS__NODES_ENDED && (a->first || a->done))) {
        return LS__LEAVE_OVER;
    }
    if (a->first) {
        return ls__nodes_all_done(a->nodes, other_tail) && !settles(a) ? LS__LEAVE_DECIDE
                                                                       : LS__LEAVE_WAIT;
    }
    const bool lost = ls__nodes_failure(a->nodes) != NULL;
    if (a->reported != LS__FAILURE_NONE && !a->has_cause && !lost) {
        return LS__LEAVE_WAIT;
    }
    if (!a->done) {
        a->done = true;
        ls__nodes_done(a->nodes, tail);
        ls__nodes_flush(a->nodes);
    }
    return ls__nodes_state_of(a->nodes) == LS__NODES_RUNNING && !lost ? LS__LEAVE_WAIT
                                                                      : LS__LEAVE_OVER;
}
