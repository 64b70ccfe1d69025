/* SPDX-License-Identifier: Apache-2.0 */
/* The root cause: which failure was the first, and the text that every rank and the user read.
 *
 * A failure spreads faster than it is reported: when one rank is killed the others fail too, and
 * one turn of the loop may see several ends. So all of them are compared, and the root cause is
 * chosen by kind; a kind explains those below it:
 *
 *     a rank's own failure (another shape, a poisoned loss …)   the rank recorded it on the board
 *     killed by a signal                                        no rank does that to itself
 *     a deadline, an abort, a lost peer                         recorded on the board too
 *     an exit code
 *     status 0 without ls_finalize                              the others wait for the rank
 *
 * Under another launcher the exit status is unknown. A rank that ended without ls_finalize and
 * had recorded nothing then counts as killed; a rank that had recorded a failure counts as one
 * that gave up with an exit code.
 *
 * A recorded failure counts only near the end: a failure that the program survived, or that
 * preceded a signal by more than NEAR_MS, did not end the job. The report mentions it in a note.
 *
 * A process that was killed takes a while to end, longer the more memory it has, and a peer that
 * noticed may be faster. So a weaker explanation becomes the root cause only if no better one
 * arrives within SETTLE_MS.
 *
 *     no cause ──failure seen──▶ settling (settle_ns) ──better one, or time over──▶ cause (once) */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "job/agent/host_agent.h"

#define SETTLE_MS 50
#define SETTLE_DYING_MS 200 /* for a rank that was killed first and ends last */
#define SETTLE_NODES_MS 200
#define NEAR_MS                                                                                    \
    3000 /* an end that long after a noted failure may have another cause; ls_finalize
            alone waits 2 s for ranks that it cannot reach */
#define UNKNOWN_CODE 1
#define SAME_BYTES 160 /* texts that agree in so many bytes count as the same */

/* ---- kinds of failure ----------------------------------------------------------------------- */

/* The status that a rank recorded on the board; LS_OK: none. The board holds it negated. */
static ls_status noted_status(const ls__board_rank *place)
{
    return -(int)atomic_load_explicit(&place->failed, memory_order_acquire);
}

/* Whether a rank that still runs has called ls_init, or has completed it. ls_init needs all
 * ranks, so such a rank waits for one that ended before. */
static bool any_joins(const ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        const ls__board_rank *place = &a->board->rank[r];
        uint32_t life = atomic_load_explicit(&place->life, memory_order_acquire);
        bool joining = atomic_load_explicit(&place->activity.since_ns, memory_order_relaxed) != 0;
        if (!a->rank[r].ended && (life == LS__LIFE_JOINED || joining)) {
            return true;
        }
    }
    return false;
}

/* A rank that ended in a way that only another launcher knows. */
static ls__failure_kind kind_of_unknown_end(const ls__host_agent *a, int r)
{
    const ls__board_rank *place = &a->board->rank[r];
    if (a->rank[r].life == LS__LIFE_LEFT) {
        return LS__FAILURE_NONE;
    }
    const bool noted = noted_status(place) != LS_OK ||
                       atomic_load_explicit(&place->reported, memory_order_acquire) != 0;
    return noted ? LS__FAILURE_CODE : LS__FAILURE_SIGNAL;
}

/* What the end of rank r says, without what it had recorded. Status 0 is a failure only if other
 * ranks wait for this one. */
static ls__failure_kind kind_of_end(const ls__host_agent *a, int r)
{
    const ls__host_agent_rank *rank = &a->rank[r];
    if (!rank->ended) {
        return LS__FAILURE_NONE;
    }
    if (a->launcher != NULL) {
        return kind_of_unknown_end(a, r);
    }
    if (rank->exit.signal != 0) {
        return LS__FAILURE_SIGNAL;
    }
    if (rank->exit.code != 0) {
        return LS__FAILURE_CODE;
    }
    const bool waited_for = rank->life == LS__LIFE_STARTED && any_joins(a);
    return rank->life == LS__LIFE_JOINED || waited_for ? LS__FAILURE_UNFINISHED : LS__FAILURE_NONE;
}

/* When the first of the failed ranks ended; now, if none has failed. *killed: a signal ended one
 * of them. SIGABRT does not count: it is how a program gives up, so it is not a cause of its
 * own. */
static uint64_t first_end_ns(const ls__host_agent *a, bool *killed)
{
    uint64_t first = a->env->now_ns(a->env);
    *killed = false;
    for (int r = 0; r < a->started; r++) {
        const ls__host_agent_rank *rank = &a->rank[r];
        const ls__failure_kind kind = kind_of_end(a, r);
        if (kind != LS__FAILURE_NONE) {
            first = rank->ended_ns < first ? rank->ended_ns : first;
            *killed = *killed || (kind == LS__FAILURE_SIGNAL && rank->exit.signal != SIGABRT);
        }
    }
    return first;
}

/* Whether the failure that a rank recorded is not the reason for the end of the job: the program
 * survived it, or something killed a rank long after it. */
static bool is_past(const ls__host_agent *a, const ls__board_rank *place)
{
    bool killed;
    const uint64_t end_ns = first_end_ns(a, &killed);
    const uint64_t failed_ns = atomic_load_explicit(&place->failed_ns, memory_order_relaxed);
    const bool survived = atomic_load_explicit(&place->survived, memory_order_acquire) != 0;
    const bool far = end_ns > failed_ns + NEAR_MS * 1000000ull;
    return survived ? killed || far : killed && far;
}

/* A deadline, an abort and a lost peer are consequences of another failure more often than not;
 * any other status is the rank's own. */
static ls__failure_kind kind_of_status(ls_status status)
{
    const bool waited =
        status == LS_ERR_PEER || status == LS_ERR_TIMEOUT || status == LS_ERR_ABORTED;
    return waited ? LS__FAILURE_WAITED : LS__FAILURE_MISMATCH;
}

/* The failure that rank r recorded, if it counts. What ranks share is not finite because a gradient
 * of one of them was not, which that rank may have recorded. */
static ls__failure_kind kind_of_noted(const ls__host_agent *a, int r)
{
    const ls__board_rank *place = &a->board->rank[r];
    const ls_status status = noted_status(place);
    if (status == LS_OK || is_past(a, place)) {
        return LS__FAILURE_NONE;
    }
    return place->failed_about == LS__ABOUT_NORM ? LS__FAILURE_WAITED : kind_of_status(status);
}

/* Whether a rank ended soon after it learned of a failure that another rank caused. */
static bool was_notified(const ls__host_agent *a, int r)
{
    const ls__board_rank *place = &a->board->rank[r];
    const uint64_t reported_ns = atomic_load_explicit(&place->reported_ns, memory_order_relaxed);
    return atomic_load_explicit(&place->reported, memory_order_acquire) != 0 &&
           a->rank[r].ended_ns < reported_ns + NEAR_MS * 1000000ull;
}

/* ---- the root cause stands ------------------------------------------------------------------- */

/* Whether the root cause stopped this rank: it still runs, it failed, or it ended soon after it
 * was notified. Which of these it is depends only on timing, so all of them count. */
static bool is_consequence(const ls__host_agent *a, int r)
{
    return !a->rank[r].ended || kind_of_end(a, r) != LS__FAILURE_NONE || was_notified(a, r) ||
           kind_of_noted(a, r) != LS__FAILURE_NONE;
}

/* The number of ranks that the root cause stopped. Ranks of other hosts are all counted: they
 * run until all hosts have ended. */
static int count_consequences(const ls__host_agent *a, int culprit)
{
    const int local = culprit >= 0 ? ls__board_local(a->board, culprit) : -1;
    int count = a->world.world_size - a->ranks;
    count -= count > 0 && culprit >= 0 && local < 0;
    for (int r = 0; r < a->started; r++) {
        count += r != local && is_consequence(a, r);
    }
    return count;
}

/* Publishes the root cause, once: ranks of this host read it on the board, ranks that wait in
 * the store receive it as their answer, and other hosts receive it from the first one. */
static void settle_on(ls__host_agent *a, const ls__failure_record *f)
{
    LS_ASSERT(!a->has_cause && f->text[0] != '\0' && f->kind < LS__FAILURE_NONE);
    a->has_cause = true;
    a->cause = *f;
    a->settle_ns = LS__NEVER;
    if (a->board != NULL) {
        a->consequences = count_consequences(a, f->failed_rank);
        (void)ls__board_set_cause(a->board, a->env, f);
    }
    if (a->store != NULL) {
        /* A mismatch is an error of all ranks, also of one that has not found it yet. */
        const bool common = f->status == LS_ERR_MISMATCH;
        ls__store_server_fail(a->store, common ? LS_ERR_MISMATCH : LS_ERR_PEER, f->text);
    }
    if (a->nodes != NULL && a->first) {
        ls__nodes_announce_cause(a->nodes, f);
    }
}

/* For failures that the owner of the agent finds itself. They are certain, so they become the
 * root cause without settling; the first host learns of them too. Once there are several hosts the
 * text says on which of them it happened, because all of them show it. */
void ls__host_agent_fail(ls__host_agent *a, const ls__failure_record *f)
{
    if (a->has_cause) {
        return;
    }
    ls__failure_record named = *f;
    if (a->nodes != NULL && a->board != NULL) {
        snprintf(named.text, sizeof named.text, "node %d (host %s): %.900s", a->world.node, a->name,
                 f->text);
    }
    if (a->nodes != NULL && !a->first) {
        ls__nodes_report(a->nodes, &named);
        ls__nodes_flush(a->nodes);
    }
    settle_on(a, &named);
}

/* ---- looking for it -------------------------------------------------------------------------- */

/* The job's exit code after this end, by the shell's convention for signals. */
static int code_of(const ls__env_exit *how)
{
    return how->signal != 0 ? 128 + how->signal : how->code != 0 ? how->code : UNKNOWN_CODE;
}

/* Whether the end of rank r follows a stop request of the user. After SIGINT or SIGTERM a rank
 * that ends by that signal, or with a code, has not failed. */
static bool is_stop(const ls__host_agent *a, int r, ls__failure_record *out)
{
    const ls__env_exit *how = &a->rank[r].exit;
    if (a->stop_signal == 0 || (how->signal != 0 && how->signal != a->stop_signal)) {
        return false;
    }
    *out = (ls__failure_record){
        .kind = LS__FAILURE_OWN, .failed_rank = -1, .final = true, .stop = true};
    out->job_code = how->code != 0 ? how->code : 128 + a->stop_signal;
    snprintf(out->text, sizeof out->text, "the job was stopped by signal %d (%s)", a->stop_signal,
             ls__signal_name(a->stop_signal));
    return true;
}

/* Whether the end of rank r explains more than that of `other`, which is of the same kind. A
 * rank that was notified by others comes after one that was not; of two that were killed the
 * earlier counts. An error that all ranks find is attributed to the lowest rank, whichever was
 * quickest. */
static bool explains(const ls__host_agent *a, int r, int other, ls__failure_kind kind)
{
    if (kind == LS__FAILURE_CODE && was_notified(a, r) != was_notified(a, other)) {
        return was_notified(a, other);
    }
    return kind == LS__FAILURE_SIGNAL && a->rank[r].order < a->rank[other].order;
}

/* The rank of this host whose end explains most; -1: none has failed. */
static int worst_end(const ls__host_agent *a, ls__failure_kind *kind)
{
    int worst = -1;
    *kind = LS__FAILURE_NONE;
    for (int r = 0; r < a->started; r++) {
        const ls__failure_kind end = kind_of_end(a, r);
        if (end < *kind || (end == *kind && worst >= 0 && explains(a, r, worst, end))) {
            *kind = end;
            worst = r;
        }
    }
    return worst;
}

/* Fills in the record of a failure of rank r. `ended` is the rank whose end gives the job its
 * exit code if r itself has not failed; -1: none. */
static void describe(const ls__host_agent *a, int r, int ended, ls__failure_kind kind,
                     ls__failure_record *out)
{
    const ls__host_agent_rank *rank = &a->rank[r];
    const ls__board_rank *place = &a->board->rank[r];
    const bool failed = kind_of_end(a, r) != LS__FAILURE_NONE;
    *out = (ls__failure_record){.kind = kind, .failed_rank = place->world_rank, .pid = rank->pid};
    out->signal = rank->exit.signal;
    out->code = rank->exit.code;
    out->job_code = failed || ended < 0 ? code_of(&rank->exit) : code_of(&a->rank[ended].exit);
    out->before_init = rank->exit.signal == 0 && rank->ended && rank->life == LS__LIFE_STARTED;
    out->status = is_past(a, place) ? LS_OK : noted_status(place);
    out->step = atomic_load_explicit(&place->activity.step, memory_order_relaxed);
    out->updates = atomic_load_explicit(&place->activity.updates, memory_order_relaxed);
    if (kind == LS__FAILURE_MISMATCH || kind == LS__FAILURE_WAITED) {
        ls__failure_say_noted(a, r, out->text, sizeof out->text);
    } else {
        ls__failure_say_end(a, r, out->text, sizeof out->text);
    }
}

/* Another rank than r is the culprit, which runs elsewhere or recorded nothing: it hangs, for
 * example. Rank r recorded what it found or learned of it. The record names the culprit, not r. */
static void describe_other(const ls__host_agent *a, int by, ls_status status, const char *text,
                           ls__failure_record *out)
{
    const int local = ls__board_local(a->board, by);
    *out = (ls__failure_record){.kind = kind_of_status(status),
                                .failed_rank = by,
                                .pid = local >= 0 ? a->rank[local].pid : 0,
                                .status = status,
                                .job_code = out->job_code,
                                .step = out->step,
                                .updates = out->updates};
    char named[32];
    const int length = snprintf(named, sizeof named, "rank %d failed: ", by);
    if (strncmp(text, named, (size_t)length) == 0) { /* ranks read it with this name */
        snprintf(out->text, sizeof out->text, "%.900s", text);
        return;
    }
    snprintf(out->text, sizeof out->text, "rank %d %s: %.900s", by,
             status == LS_ERR_TIMEOUT ? "keeps the others waiting" : "failed", text);
}

/* The culprit's record, if rank r blames another rank. */
static void blame_other(const ls__host_agent *a, int r, ls__failure_record *out)
{
    const ls__board_rank *place = &a->board->rank[r];
    if (out->kind == LS__FAILURE_CODE && was_notified(a, r)) {
        const ls_status status = -(int)atomic_load_explicit(&place->reported, memory_order_acquire);
        describe_other(a, place->reported_by, status, place->reported_text, out);
    } else if (out->kind == LS__FAILURE_WAITED && place->failed_by != place->world_rank) {
        describe_other(a, place->failed_by, noted_status(place), place->failed_text, out);
    }
}

/* A rank of this host whose process is stopped while others ran into their deadline; -1: none is. A
 * debugger that holds a rank stops it too. */
static int stopped_rank(const ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        if (!a->rank[r].ended && ls__board_stopped(a->board, a->env, r)) {
            return r;
        }
    }
    return -1;
}

/* The deadline of a rank has passed because another one is stopped: the record names that one,
 * which could not report anything itself. */
static void describe_stopped(const ls__host_agent *a, int stopped, ls__failure_record *out)
{
    char what[512], waiter[sizeof out->text];
    ls__board_describe(a->board, a->env, stopped, what, sizeof what);
    snprintf(waiter, sizeof waiter, "%s", out->text);
    out->failed_rank = a->board->rank[stopped].world_rank;
    out->pid = a->rank[stopped].pid;
    snprintf(out->text, sizeof out->text, "%s; meanwhile %.*s", what,
             (int)(sizeof out->text - strlen(what) - 16), waiter);
}

/* Of several deadlines the first to pass counts: all waits were still in place, so it was seen who
 * kept them. Gradients that are not finite spread from the first one to other ranks. */
static bool noted_earlier(const ls__host_agent *a, int r, int other, ls__failure_kind kind)
{
    const ls__board_rank *rank = a->board->rank;
    const bool ordered =
        kind == LS__FAILURE_WAITED ||
        (kind == LS__FAILURE_MISMATCH && rank[r].failed_about == LS__ABOUT_GRADIENT &&
         rank[other].failed_about == LS__ABOUT_GRADIENT);
    return ordered && atomic_load_explicit(&rank[r].failed_ns, memory_order_relaxed) <
                          atomic_load_explicit(&rank[other].failed_ns, memory_order_relaxed);
}

/* The best explanation that this host has, given that something has failed, here or elsewhere.
 * False: this host knows of no failure. */
static bool look_here(const ls__host_agent *a, bool failed_elsewhere, ls__failure_record *out)
{
    ls__failure_kind kind;
    const int ended = worst_end(a, &kind);
    int culprit = ended;
    if (ended < 0 && !failed_elsewhere) {
        return false;
    }
    if (ended >= 0 && is_stop(a, ended, out)) {
        return true;
    }
    for (int r = 0; r < a->started; r++) {
        const ls__failure_kind noted = kind_of_noted(a, r);
        if (noted < kind || (noted == kind && noted_earlier(a, r, culprit, kind))) {
            kind = noted;
            culprit = r;
        }
    }
    if (culprit >= 0) {
        describe(a, culprit, ended, kind, out);
        const int stopped = out->status == LS_ERR_TIMEOUT ? stopped_rank(a) : -1;
        if (kind == LS__FAILURE_WAITED && stopped >= 0) {
            describe_stopped(a, stopped, out);
        } else {
            blame_other(a, culprit, out);
        }
    }
    LS_ASSERT(culprit < 0 || kind < LS__FAILURE_NONE);
    return culprit >= 0;
}

/* Whether an explanation may become the root cause now. Strong ones do at once; weaker ones
 * start the clock and wait for better ones, longer where these may come from other hosts. */
static bool is_settled(ls__host_agent *a, ls__failure_kind kind)
{
    const bool alone = a->nodes == NULL;
    const bool dying = kind == LS__FAILURE_SIGNAL && ls__host_agent_awaits_end(a);
    if (kind <= LS__FAILURE_SIGNAL && !dying) {
        return true;
    }
    if (a->settle_ns == LS__NEVER) {
        a->settle_ns = ls__deadline_after(a->env, dying   ? SETTLE_DYING_MS
                                                  : alone ? SETTLE_MS
                                                          : SETTLE_NODES_MS);
    }
    return (alone && a->running == 0) || a->env->now_ns(a->env) >= a->settle_ns;
}

/* Sends the first host each explanation that is better than the last. The first host decides;
 * until its answer arrives nothing is published here. */
static void report_to_first(ls__host_agent *a, const ls__failure_record *f)
{
    if (f->kind < a->reported) {
        a->reported = f->kind;
        ls__nodes_report(a->nodes, f);
    }
}

/* One attempt to find the root cause; does nothing while no failure is known. A decision of the
 * first host is taken as it is. If the connection to the first host is lost (`there` on another
 * host), this host decides for itself. */
static void find_cause(ls__host_agent *a)
{
    ls__failure_record here;
    const bool several = a->nodes != NULL;
    const ls__failure_record *decided = several && !a->first ? ls__nodes_cause(a->nodes) : NULL;
    const ls__failure_record *there = several ? ls__nodes_failure(a->nodes) : NULL;
    if (decided != NULL) {
        settle_on(a, decided);
        return;
    }
    bool found = a->board != NULL && look_here(a, there != NULL && a->first, &here);
    if (there != NULL && (!found || there->kind < here.kind)) {
        here = *there;
        found = true;
    }
    if (!found) {
        return;
    }
    if (several && !a->first && there == NULL) {
        report_to_first(a, &here);
    } else if (is_settled(a, here.kind)) {
        settle_on(a, &here);
    }
}

/* Marks the ranks that have ended, and wakes their peers, so that these stop waiting for them. If
 * the first host cannot be reached to decide on the root cause, they say how it ended. */
static void mark_dead(ls__host_agent *a)
{
    for (int r = 0; r < a->started; r++) {
        _Atomic uint32_t *life = &a->board->rank[r].life;
        const uint32_t now = atomic_load_explicit(life, memory_order_relaxed);
        if (a->rank[r].ended && now != LS__LIFE_LEFT && now != LS__LIFE_DEAD) {
            LS_ASSERT(now != LS__LIFE_EMPTY);
            ls__board_rank *place = &a->board->rank[r];
            ls__failure_say_end(a, r, place->ended_text, sizeof place->ended_text);
            atomic_store_explicit(life, LS__LIFE_DEAD, memory_order_release);
            for (int peer = 0; peer < a->board->ranks; peer++) {
                ls__board_ring(a->board, a->env, peer);
            }
        }
    }
}

void ls__host_agent_conclude(ls__host_agent *a)
{
    if (!a->has_cause) {
        find_cause(a);
    }
    if (a->board != NULL) {
        mark_dead(a); /* only now: the root cause says what a rank did before */
    }
    if (a->nodes != NULL) {
        ls__nodes_flush(a->nodes);
    }
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Whether the root cause says this already. */
static bool is_told(const ls__host_agent *a, const ls__board_rank *place)
{
    char beginning[SAME_BYTES + 1];
    (void)snprintf(beginning, sizeof beginning, "%s", place->failed_text);
    return a->has_cause && strstr(a->cause.text, beginning) != NULL;
}

/* Whether the gradient that this rank found belongs to the root cause, which is another rank's: it
 * has spread from there. */
static bool has_spread(const ls__host_agent *a, const ls__board_rank *place)
{
    const int culprit = a->has_cause ? ls__board_local(a->board, a->cause.failed_rank) : -1;
    return culprit >= 0 && place->failed_about == LS__ABOUT_GRADIENT &&
           a->board->rank[culprit].failed_about == LS__ABOUT_GRADIENT &&
           is_told(a, &a->board->rank[culprit]);
}

/* The first recorded failure that is not the root cause: it may still help the user, for example
 * an error that the program ignored some minutes before it crashed. */
void ls__host_agent_past_failure(const ls__host_agent *a, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int r = 0; a->board != NULL && r < a->started && out[0] == '\0'; r++) {
        const ls__board_rank *place = &a->board->rank[r];
        bool killed;
        const uint64_t failed_ns = atomic_load_explicit(&place->failed_ns, memory_order_relaxed);
        if (noted_status(place) != LS_OK && is_past(a, place) && !is_told(a, place) &&
            !has_spread(a, place)) {
            snprintf(out, bytes, "note: %.0f s earlier rank %d failed and continued: %.800s",
                     (double)(first_end_ns(a, &killed) - failed_ns) * 1e-9, place->world_rank,
                     place->failed_text);
        }
    }
}
