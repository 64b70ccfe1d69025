/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a run ended as it must: right bits everywhere, or one named error on every live rank. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim/scenario.h"

#define CORE_MAX 200 /* bytes of a text that must be the same; its end may be cut */
/* What a wait in a run without stalls may last, of the time in which all threads sleep; a lost
 * wake-up costs 100 ms. While threads run, one that the plan made slow may take long. */
#define PROMPT_NS 80000000u
#define LATE_NS 2000000000u /* from a deadline to the end of a wait, at most */

static bool has_fault(const ls__plan *plan, ls__fault_kind kind)
{
    for (int i = 0; i < plan->faults; i++) {
        if (plan->fault[i].kind == kind) {
            return true;
        }
    }
    return false;
}

/* A fault that may end the job. */
static bool is_grave(const ls__plan *plan)
{
    for (int i = 0; i < plan->faults; i++) {
        const ls__fault_kind kind = plan->fault[i].kind;
        if (kind != LS__FAULT_SLOW && kind != LS__FAULT_STALL && kind != LS__FAULT_GAP &&
            kind != LS__FAULT_STOP) {
            return true;
        }
    }
    return false;
}

static const char *wrong(const char *format, ...) LS__PRINTF(1, 2);
static const char *wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(ls__sim->why, sizeof ls__sim->why, format, args);
    va_end(args);
    return ls__sim->why;
}

/* ---- a run in which all must be well ------------------------------------------------------- */

static const char *judge_good(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (!o->reported || o->status != LS_OK || !o->finalized) {
            return wrong("rank %d should have ended well: %s", r,
                         o->reported ? o->text : "it said nothing");
        }
        if (!has_fault(plan, LS__FAULT_STALL) && !has_fault(plan, LS__FAULT_GAP) &&
            o->idlest_ns > PROMPT_NS) {
            return wrong(
                "rank %d waited %.1f ms for operation %d while all threads slept, and nobody was "
                "stalled: was somebody not woken?",
                r, (double)o->idlest_ns * 1e-6, o->idlest);
        }
    }
    for (int r = 1; r < plan->ranks; r++) {
        if (plan->outcome[r].stopped_at != plan->outcome[0].stopped_at) {
            return wrong("rank 0 stopped after step %lld, rank %d after step %lld",
                         (long long)plan->outcome[0].stopped_at, r,
                         (long long)plan->outcome[r].stopped_at);
        }
    }
    for (int h = 0; h < plan->hosts; h++) {
        const ls__plan_node *n = &plan->node[h];
        if (n->status != LS_OK || (n->result.code != 0 && !has_fault(plan, LS__FAULT_STOP))) {
            return wrong("the job should have ended well, host %d says: %s", h, n->result.cause);
        }
    }
    return NULL;
}

/* ---- a run that failed --------------------------------------------------------------------- */

/* Killed or made to end by the plan, or by what the plan killed. */
static bool was_lost(const ls__plan *plan, int rank)
{
    for (int i = 0; i < plan->faults; i++) {
        const ls__fault *f = &plan->fault[i];
        const bool of_host =
            f->kind == LS__FAULT_AGENT || f->kind == LS__FAULT_FRONT || f->kind == LS__FAULT_HOST;
        if (f->kind == LS__FAULT_POWER && f->done) {
            return true;
        }
        if (of_host && f->done && plan->host_of[rank] == f->host) {
            return true;
        }
        const bool fatal = f->kind == LS__FAULT_KILL || f->kind == LS__FAULT_EXIT ||
                           f->kind == LS__FAULT_FREEZE || f->kind == LS__FAULT_STALL;
        if (f->done && f->rank == rank && fatal) {
            return true;
        }
    }
    return false;
}

/* Whether `text` tells what the job's verdict tells: one of them holds the other, which may be cut
 * and have words around it. */
static bool tells_cause(const ls__plan *plan, const char *text)
{
    char core[CORE_MAX + 1];
    const char *cause = plan->node[0].result.cause;
    snprintf(core, sizeof core, "%.*s", CORE_MAX, cause);
    if (core[0] != '\0' && strstr(text, core) != NULL) {
        return true;
    }
    snprintf(core, sizeof core, "%.*s", CORE_MAX, text);
    return strstr(cause, core) != NULL;
}

/* Who did what went wrong; its own words about it are its own. -1: nobody. */
static int culprit_of(const ls__plan *plan)
{
    const ls__fault *f = &plan->fault[0];
    const bool own =
        f->kind == LS__FAULT_MEMORY || f->kind == LS__FAULT_KILL || f->kind == LS__FAULT_EXIT;
    return f->done && own ? f->rank : -1;
}

/* With several groups a rank that is stopped, or calls too little, lets each of them time out for
 * itself. */
static bool times_out(const ls__plan *plan)
{
    const ls__fault_kind kind = plan->fault[0].kind;
    return kind == LS__FAULT_FREEZE || (kind == LS__FAULT_WRONG && (plan->groups || plan->saves ||
                                                                    plan->trains || plan->pipes));
}

/* A rank was stopped for longer than the deadline: groups find that out for themselves. */
static const char *judge_freeze(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        const bool own = o->status == LS_ERR_TIMEOUT ||
                         (plan->fault[0].kind == LS__FAULT_WRONG &&
                          (o->status == LS_ERR_MISMATCH || strstr(o->text, "deadlock") != NULL));
        if (o->status != LS_OK && !own && !tells_cause(plan, o->text)) {
            return wrong("rank %d was stopped or calls too little; rank %d says \"%s\"",
                         plan->fault[0].rank, r, o->text);
        }
    }
    return NULL;
}

/* "rank 3 has left …": the culprit's end, as its peers saw it before the launcher did. */
static bool names_culprit(const ls__plan *plan, const char *text)
{
    char name[32], speaker[32];
    snprintf(name, sizeof name, "rank %d ", plan->node[0].result.culprit);
    snprintf(speaker, sizeof speaker, "rank %d: ", plan->node[0].result.culprit);
    return strstr(text, name) != NULL || strstr(text, speaker) != NULL;
}

static const char *judge_texts(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (o->status != LS_OK && r != culprit_of(plan) && !was_lost(plan, r) &&
            !tells_cause(plan, o->text) && !names_culprit(plan, o->text)) {
            return wrong("rank %d says \"%s\", the job says \"%s\"", r, o->text,
                         plan->node[0].result.cause);
        }
    }
    return NULL;
}

/* Both sides of a network that fails see it their own way. */
static bool of_network(const ls__plan *plan)
{
    for (int i = 0; i < plan->faults; i++) {
        if (plan->fault[i].kind >= LS__FAULT_AGENT) {
            return plan->hosts > 1;
        }
    }
    return false;
}

/* A failed save ends all ranks with one text; the launcher sees only that they end. */
static const char *judge_disk(const ls__plan *plan)
{
    const ls__rank_outcome *first = NULL;
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (o->status == LS_OK || tells_cause(plan, o->text)) {
            continue;
        }
        if (first != NULL && strcmp(first->text, o->text) != 0) {
            return wrong("two errors: rank %d says \"%s\", rank %d says \"%s\"",
                         (int)(first - plan->outcome), first->text, r, o->text);
        }
        first = o;
    }
    return NULL;
}

/* A rank called something else than its peers. Every member takes part in the operations drawn for
 * that, so whatever differs, a tag too, all of them must say an error. A call that is missing is
 * not judged here: it may be the last. */
static const char *judge_wrong_call(const ls__plan *plan)
{
    for (int i = 0; i < plan->faults; i++) {
        const ls__fault *f = &plan->fault[i];
        const bool differs = f->kind == LS__FAULT_WRONG && f->how != LS__WRONG_MISSING;
        for (int r = 0; differs && f->done && r < plan->ranks; r++) {
            const ls__rank_outcome *o = &plan->outcome[r];
            if (o->reported && o->status == LS_OK && !was_lost(plan, r)) {
                return wrong("rank %d called operation %d otherwise than its peers (difference %d),"
                             " and rank %d ended well",
                             f->rank, f->operation, (int)f->how, r);
            }
        }
    }
    return NULL;
}

/* Each rank that failed, and each launcher, names a fault that was planted. */
static const char *judge_words(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (o->reported && o->status != LS_OK && !was_lost(plan, r) &&
            !ls__plan_names_cause(plan, o->text, o->at_ns)) {
            return wrong("rank %d names nothing that was planted: \"%s\"", r, o->text);
        }
    }
    for (int h = 0; h < plan->hosts; h++) {
        const ls__plan_node *n = &plan->node[h];
        if (n->ended && n->result.code != 0 &&
            !ls__plan_names_cause(plan, n->result.cause, n->ended_ns)) {
            return wrong("the launcher of host %d names nothing that was planted: \"%s\"", h,
                         n->result.cause);
        }
    }
    return NULL;
}

static const char *judge_failed(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (o->began && !o->reported && !was_lost(plan, r)) {
            return wrong("rank %d ended without a report (operation %d); the job says: %s", r,
                         o->operation, plan->node[0].result.cause);
        }
    }
    const char *undetected = judge_wrong_call(plan);
    if (undetected != NULL) {
        return undetected;
    }
    const char *text = plan->faults > 1 || of_network(plan)    ? NULL
                       : plan->fault[0].kind == LS__FAULT_DISK ? judge_disk(plan)
                       : times_out(plan)                       ? judge_freeze(plan)
                                                               : judge_texts(plan);
    if (text != NULL) {
        return text;
    }
    const char *words = judge_words(plan);
    if (words != NULL) {
        return words;
    }
    for (int i = 0; i < plan->faults && plan->faults == 1; i++) {
        const ls__fault *f = &plan->fault[i];
        const bool names =
            f->kind == LS__FAULT_KILL || f->kind == LS__FAULT_EXIT || f->kind == LS__FAULT_MEMORY;
        if (f->done && names && plan->node[0].result.code != 0 &&
            plan->node[0].result.culprit != f->rank) {
            return wrong("rank %d was the culprit, the job says %d: %s", f->rank,
                         plan->node[0].result.culprit, plan->node[0].result.cause);
        }
    }
    return NULL;
}

/* Whatever happened, no wait goes on long after its deadline. */
static const char *judge_deadlines(const ls__plan *plan)
{
    const uint64_t most = (uint64_t)plan->timeout_ms * 1000000u + LATE_NS;
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (!was_lost(plan, r) && o->longest_ns > most) {
            return wrong("rank %d waited %.1f s for operation %d, whose deadline was %.1f s", r,
                         (double)o->longest_ns * 1e-9, o->longest, (double)plan->timeout_ms * 1e-3);
        }
    }
    return NULL;
}

/* ---- what is left -------------------------------------------------------------------------- */

static const char *judge_leaks(const ls__plan *plan)
{
    for (int r = 0; r < plan->ranks; r++) {
        const ls__rank_outcome *o = &plan->outcome[r];
        if (o->finalized && (o->bytes != 0 || o->fds != 0)) {
            return wrong("rank %d left %zu bytes and %d descriptors after ls_finalize", r, o->bytes,
                         o->fds);
        }
    }
    return NULL;
}

const char *ls__plan_judge(ls__plan *plan)
{
    if (ls__sim->over) {
        return ls__sim->why;
    }
    for (int h = 0; h < plan->hosts; h++) {
        if (!plan->node[h].ended && !plan->node[h].front->dead) {
            return wrong("the launcher of host %d did not come back", h);
        }
    }
    const char *bad = is_grave(plan) ? judge_failed(plan) : judge_good(plan);
    bad = bad != NULL ? bad : judge_deadlines(plan);
    return bad != NULL ? bad : judge_leaks(plan);
}
