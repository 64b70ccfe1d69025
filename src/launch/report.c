/* The verdict: which failure was the first, and what every rank and the user read about it.
 *
 * A failure spreads faster than it is reported: when one rank is killed the others fail too, and
 * several ends may be found in one turn of the loop. So all of them are looked at together, and the
 * cause is taken by kind, the ones that explain the others first:
 *
 *     a rank's own finding (another shape, a poisoned loss …)   it noted it on the board
 *     killed by a signal                                        nobody does that to itself
 *     a deadline, an abort, a lost peer                         noted on the board too
 *     an exit code
 *     status 0 without ls_finalize                              the others wait for it
 *
 * A finding counts where it is near the end: one that the program survived for long, or before a
 * signal, did not end the job. It is mentioned in a note.
 *
 * A process that was killed takes a while to end, longer the more memory it has, and a peer that
 * noticed may be faster. So a weaker explanation becomes the verdict only when no better one has
 * come within SETTLE_MS.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "launch/agent.h"

#define GRACE_MS 300        /* for the others to end by themselves, having read the verdict */
#define GRACE_STOP_MS 10000 /* the same when the user asked to stop: they may save their work */
#define GRACE_TERM_MS 200   /* between SIGTERM and SIGKILL */
#define SETTLE_MS 50
#define SETTLE_DYING_MS 200 /* for a rank that was killed first and ends last */
#define SETTLE_NODES_MS 200
#define NEAR_MS 2000 /* an end that long after a finding may have another cause */
#define TAIL_LINES_BYTES 1500
#define SAME_BYTES 160 /* two texts that begin alike for so long are the same */

const char *ls__signal_name(int signal)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},
                 {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},
                 {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"},
                 {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
                 {SIGPIPE, "SIGPIPE"}, {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
                 {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].number == signal) {
            return names[i].name;
        }
    }
    return "a signal";
}

/* ---- kinds of failure ----------------------------------------------------------------------- */

/* Some rank has called ls_init, which needs all of them, or come through it. */
static bool any_joins(const ls__agent *agent)
{
    for (int r = 0; r < agent->started; r++) {
        const ls__board_rank *place = &agent->board->rank[r];
        uint32_t life = atomic_load_explicit(&place->life, memory_order_acquire);
        bool joining = atomic_load_explicit(&place->activity.since_ns, memory_order_relaxed) != 0;
        if (!agent->rank[r].ended && (life == LS__LIFE_JOINED || joining)) {
            return true;
        }
    }
    return false;
}

static ls__found_kind kind_of_end(const ls__agent *agent, const ls__agent_rank *rank)
{
    if (!rank->ended) {
        return LS__FOUND_NONE;
    }
    if (rank->exit.signal != 0) {
        return LS__FOUND_SIGNAL;
    }
    if (rank->exit.code != 0) {
        return LS__FOUND_CODE;
    }
    bool waited_for = rank->life == LS__LIFE_STARTED && any_joins(agent);
    return rank->life == LS__LIFE_JOINED || waited_for ? LS__FOUND_UNFINISHED : LS__FOUND_NONE;
}

/* When the first of the ranks ended that have failed; now, if none has. SIGABRT is how a program
 * gives up, and so no cause of its own. */
static uint64_t first_end_ns(const ls__agent *agent, bool *killed)
{
    uint64_t first = agent->env->now_ns(agent->env);
    *killed = false;
    for (int r = 0; r < agent->started; r++) {
        const ls__agent_rank *rank = &agent->rank[r];
        if (kind_of_end(agent, rank) != LS__FOUND_NONE) {
            first = rank->ended_ns < first ? rank->ended_ns : first;
            *killed = *killed || (rank->exit.signal != 0 && rank->exit.signal != SIGABRT);
        }
    }
    return first;
}

static bool is_past(const ls__agent *agent, const ls__board_rank *rank)
{
    bool killed;
    uint64_t end_ns = first_end_ns(agent, &killed);
    uint64_t failed_ns = atomic_load_explicit(&rank->failed_ns, memory_order_relaxed);
    bool survived = atomic_load_explicit(&rank->survived, memory_order_acquire) != 0;
    bool far = end_ns > failed_ns + NEAR_MS * 1000000ull;
    return survived ? killed || far : killed && far;
}

static ls__found_kind kind_of_status(ls_status status)
{
    bool waited = status == LS_ERR_PEER || status == LS_ERR_TIMEOUT || status == LS_ERR_ABORTED;
    return waited ? LS__FOUND_WAITED : LS__FOUND_MISMATCH;
}

static ls__found_kind kind_of_finding(const ls__agent *agent, const ls__board_rank *rank)
{
    ls_status status = -(int)atomic_load_explicit(&rank->failed, memory_order_acquire);
    if (status == LS_OK || is_past(agent, rank)) {
        return LS__FOUND_NONE;
    }
    return kind_of_status(status);
}

/* Whether a rank that ended has done so after a failure that is another's doing. */
static bool was_told(const ls__agent *agent, int r)
{
    const ls__board_rank *place = &agent->board->rank[r];
    const uint64_t told_ns = atomic_load_explicit(&place->told_ns, memory_order_relaxed);
    return atomic_load_explicit(&place->told, memory_order_acquire) != 0 &&
           agent->rank[r].ended_ns < told_ns + NEAR_MS * 1000000ull;
}

/* ---- sentences ------------------------------------------------------------------------------ */

static void say_end(const ls__agent *agent, int r, char *out, size_t bytes)
{
    const ls__agent_rank *rank = &agent->rank[r];
    char name[128], doing[640];
    ls__board_name(agent->board, r, name, sizeof name);
    ls__board_doing(agent->board, agent->env, r, doing, sizeof doing);
    if (rank->exit.signal != 0) {
        snprintf(out, bytes, "%s was killed by signal %d (%s) while %s", name, rank->exit.signal,
                 ls__signal_name(rank->exit.signal), doing);
    } else if (rank->exit.code != 0) {
        snprintf(out, bytes, "%s exited with code %d while %s", name, rank->exit.code, doing);
    } else if (rank->life == LS__LIFE_JOINED) {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_finalize while %s: the other ranks may wait for "
                 "it; end every rank with ls_finalize",
                 name, doing);
    } else {
        snprintf(out, bytes,
                 "%s exited with code 0 without ls_init, which the other ranks have called and "
                 "wait in: start the same program on every rank",
                 name);
    }
}

static void say_finding(const ls__agent *agent, int r, char *out, size_t bytes)
{
    const ls__board_rank *rank = &agent->board->rank[r];
    char name[128];
    ls__board_name(agent->board, r, name, sizeof name);
    if (atomic_load_explicit(&rank->failed, memory_order_acquire) == -LS_ERR_MISMATCH) {
        snprintf(out, bytes, "%.1000s",
                 rank->failed_text); /* both sides are named; no one's fault */
    } else {
        snprintf(out, bytes, "%s failed: %.800s", name, rank->failed_text);
    }
}

/* ---- the verdict ---------------------------------------------------------------------------- */

bool ls__agent_failed(const ls__agent *agent)
{
    return agent->result->cause[0] != '\0';
}

/* It still runs, or ended otherwise than well, or well after it had heard of a failure: which of
 * these is a matter of who is faster. */
static bool is_consequence(const ls__agent *agent, int r)
{
    const ls__agent_rank *rank = &agent->rank[r];
    return !rank->ended || kind_of_end(agent, rank) != LS__FOUND_NONE || was_told(agent, r) ||
           kind_of_finding(agent, &agent->board->rank[r]) != LS__FOUND_NONE;
}

/* Of other hosts all ranks are counted: they run until all have ended. */
static int count_consequences(const ls__agent *agent, int culprit)
{
    int count = agent->world.world_size - agent->job->ranks;
    int local = culprit - agent->world.first_rank;
    bool here = culprit >= 0 && local >= 0 && local < agent->started;
    count -= count > 0 && culprit >= 0 && !here;
    for (int r = 0; r < agent->started; r++) {
        count += r != (here ? local : -1) && is_consequence(agent, r);
    }
    return count;
}

static void publish(ls__agent *agent, const ls__finding *f)
{
    (void)ls__board_give(agent->board, agent->env,
                         &(ls__verdict){.culprit = f->culprit,
                                        .pid = f->pid,
                                        .signal = f->signal,
                                        .code = f->code,
                                        .text = f->text});
    ls__store_server_fail(agent->store, f->text);
}

/* The output's last lines follow in the report: they may still be in the pipe. */
static void describe_failure(ls__agent *agent, const ls__finding *f)
{
    ls__failure *failure = &agent->result->failure;
    failure->final = f->final;
    failure->status = f->status;
    failure->signal = f->signal;
    failure->before_init = f->before_init;
    failure->step = f->step;
    failure->updates = f->updates;
}

/* This is the job's first failure: the ranks read it, then those of this host are ended. */
static void give(ls__agent *agent, const ls__finding *f)
{
    ls__job_result *result = agent->result;
    const int64_t grace_ms = f->kind == LS__FOUND_OWN && !f->stop ? 0
                             : f->stop || agent->stop_signal != 0 ? GRACE_STOP_MS
                                                                  : GRACE_MS;
    agent->settle_ns = LS__NEVER;
    result->culprit = f->culprit;
    result->code = f->job_code;
    snprintf(result->cause, sizeof result->cause, "%s", f->text);
    describe_failure(agent, f);
    agent->consequences = count_consequences(agent, f->culprit);
    agent->term_ns = ls__deadline_after(agent->env, grace_ms);
    agent->kill_ns = ls__deadline_after(agent->env, grace_ms + GRACE_TERM_MS);
    if (agent->board != NULL && agent->store != NULL) {
        publish(agent, f);
    }
    if (agent->nodes != NULL && agent->job->node == 0) {
        ls__nodes_give(agent->nodes, f);
    }
}

/* ---- judging ------------------------------------------------------------------------------------
 */

static int code_of(const ls__env_exit *how)
{
    return how->signal != 0 ? 128 + how->signal : how->code != 0 ? how->code : 1;
}

/* After the user's SIGINT or SIGTERM a rank that ends by it, or with a code, has not failed. */
static bool is_stop(const ls__agent *agent, int r, ls__finding *out)
{
    const ls__env_exit *how = &agent->rank[r].exit;
    if (agent->stop_signal == 0 || (how->signal != 0 && how->signal != agent->stop_signal)) {
        return false;
    }
    *out = (ls__finding){.kind = LS__FOUND_OWN, .culprit = -1, .final = true, .stop = true};
    out->job_code = how->code != 0 ? how->code : 128 + agent->stop_signal;
    snprintf(out->text, sizeof out->text, "the job was stopped by signal %d (%s)",
             agent->stop_signal, ls__signal_name(agent->stop_signal));
    return true;
}

/* Of two ends of a kind: who was told by others comes after who was not; of two that were killed
 * the earlier counts. A mistake that all ranks find is the first rank's, whoever is quickest. */
static bool explains(const ls__agent *agent, int r, int other, ls__found_kind kind)
{
    if (kind == LS__FOUND_CODE && was_told(agent, r) != was_told(agent, other)) {
        return was_told(agent, other);
    }
    return kind == LS__FOUND_SIGNAL && agent->rank[r].order < agent->rank[other].order;
}

/* The rank of this host whose end explains most; -1: none has failed. */
static int worst_end(const ls__agent *agent, ls__found_kind *kind)
{
    int worst = -1;
    *kind = LS__FOUND_NONE;
    for (int r = 0; r < agent->started; r++) {
        ls__found_kind end = kind_of_end(agent, &agent->rank[r]);
        if (end < *kind || (end == *kind && worst >= 0 && explains(agent, r, worst, end))) {
            *kind = end;
            worst = r;
        }
    }
    return worst;
}

/* Everything about a failure of rank r; `ended` is the rank whose end is the job's. */
static void describe(const ls__agent *agent, int r, int ended, ls__found_kind kind,
                     ls__finding *out)
{
    const ls__agent_rank *rank = &agent->rank[r];
    const ls__board_rank *place = &agent->board->rank[r];
    const ls__activity *activity = &place->activity;
    bool failed = kind_of_end(agent, rank) != LS__FOUND_NONE;
    *out = (ls__finding){.kind = kind, .culprit = place->world_rank, .pid = (int)rank->pid};
    out->signal = rank->exit.signal;
    out->code = rank->exit.code;
    out->job_code = failed || ended < 0 ? code_of(&rank->exit) : code_of(&agent->rank[ended].exit);
    out->before_init = rank->exit.signal == 0 && rank->ended && rank->life == LS__LIFE_STARTED;
    out->status = is_past(agent, place)
                      ? LS_OK
                      : -(int)atomic_load_explicit(&place->failed, memory_order_acquire);
    out->step = atomic_load_explicit(&activity->step, memory_order_relaxed);
    out->updates = atomic_load_explicit(&activity->updates, memory_order_relaxed);
    if (kind == LS__FOUND_MISMATCH || kind == LS__FOUND_WAITED) {
        say_finding(agent, r, out->text, sizeof out->text);
    } else {
        say_end(agent, r, out->text, sizeof out->text);
    }
}

/* A rank has ended with a code after a failure that is another's doing. */
static void describe_told(const ls__agent *agent, int r, ls__finding *out)
{
    const ls__board_rank *place = &agent->board->rank[r];
    ls_status status = -(int)atomic_load_explicit(&place->told, memory_order_acquire);
    *out = (ls__finding){.kind = kind_of_status(status),
                         .culprit = place->told_by,
                         .status = status,
                         .job_code = code_of(&agent->rank[r].exit)};
    snprintf(out->text, sizeof out->text, "rank %d failed: %.900s", place->told_by,
             place->told_text);
}

/* The best explanation that this host has, given that something has failed, here or elsewhere. */
static bool look_here(const ls__agent *agent, bool failed_elsewhere, ls__finding *out)
{
    ls__found_kind kind;
    int ended = worst_end(agent, &kind), culprit = ended;
    if (ended < 0 && !failed_elsewhere) {
        return false;
    }
    if (ended >= 0 && is_stop(agent, ended, out)) {
        return true;
    }
    for (int r = 0; r < agent->started; r++) {
        ls__found_kind finding = kind_of_finding(agent, &agent->board->rank[r]);
        if (finding < kind) {
            kind = finding;
            culprit = r;
        }
    }
    if (culprit >= 0 && kind == LS__FOUND_CODE && was_told(agent, culprit)) {
        describe_told(agent, culprit, out);
    } else if (culprit >= 0) {
        describe(agent, culprit, ended, kind, out);
    }
    return culprit >= 0;
}

/* Weaker explanations wait for better ones; from other hosts these take longer. */
static bool settled(ls__agent *agent, ls__found_kind kind)
{
    const bool alone = agent->nodes == NULL;
    const bool dying = kind == LS__FOUND_SIGNAL && ls__agent_awaits_end(agent);
    if (kind <= LS__FOUND_SIGNAL && !dying) {
        return true;
    }
    if (agent->settle_ns == LS__NEVER) {
        agent->settle_ns = ls__deadline_after(agent->env, dying   ? SETTLE_DYING_MS
                                                          : alone ? SETTLE_MS
                                                                  : SETTLE_NODES_MS);
    }
    return (alone && agent->running == 0) || agent->env->now_ns(agent->env) >= agent->settle_ns;
}

/* Node 0 decides; until its word comes nothing is given here. */
static void report_to_first(ls__agent *agent, const ls__finding *f)
{
    if (f->kind < agent->reported) {
        agent->reported = f->kind;
        ls__nodes_find(agent->nodes, f);
    }
}

void ls__agent_judge(ls__agent *agent)
{
    ls__finding here;
    if (ls__agent_failed(agent)) {
        return;
    }
    const bool several = agent->nodes != NULL, first = agent->job->node == 0;
    const ls__finding *verdict = several && !first ? ls__nodes_verdict(agent->nodes) : NULL;
    const ls__finding *there = several ? ls__nodes_found(agent->nodes) : NULL;
    if (verdict != NULL) {
        give(agent, verdict);
        return;
    }
    bool found = agent->board != NULL && look_here(agent, there != NULL && first, &here);
    if (there != NULL && (!found || there->kind < here.kind)) {
        here = *there;
        found = true;
    }
    if (!found) {
        return;
    }
    if (several && !first && there == NULL) {
        report_to_first(agent, &here);
    } else if (settled(agent, here.kind)) {
        give(agent, &here);
    }
}

void ls__agent_fail(ls__agent *agent, int code, const char *format, ...)
{
    ls__finding f = {.kind = LS__FOUND_OWN, .culprit = -1, .job_code = code, .final = true};
    if (ls__agent_failed(agent)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f.text, sizeof f.text, format, arguments);
    va_end(arguments);
    if (agent->nodes != NULL && agent->job->node != 0) {
        ls__nodes_find(agent->nodes, &f);
        ls__nodes_flush(agent->nodes);
    }
    give(agent, &f);
}

/* ---- the report ----------------------------------------------------------------------------- */

void ls__agent_tail(const ls__agent *agent, char *out, size_t bytes)
{
    int local = agent->result->culprit - agent->world.first_rank;
    out[0] = '\0';
    if (agent->result->culprit >= 0 && agent->output != NULL && local >= 0 &&
        local < agent->started) {
        ls__output_tail(agent->output, local, out, bytes);
    }
}

/* What the cause says already: most programs print the message before they end. */
static bool is_said(const char *line, size_t length, const char *cause)
{
    char finding[SAME_BYTES + 1];
    const char *behind = strstr(cause, " failed: ");
    snprintf(finding, sizeof finding, "%.*s", SAME_BYTES,
             behind != NULL ? behind + strlen(" failed: ") : cause);
    const char *found = strstr(line, finding);
    return found != NULL && found < line + length;
}

static void add_last_lines(const ls__agent *agent, ls__text *to)
{
    char tail[TAIL_LINES_BYTES];
    int culprit = agent->result->culprit;
    ls__agent_tail(agent, tail, sizeof tail);
    if (tail[0] == '\0') { /* it ran on another host, which has sent them */
        snprintf(tail, sizeof tail, "%s", agent->result->failure.last_lines);
    }
    if (culprit < 0 || tail[0] == '\0') {
        return;
    }
    bool any = false;
    for (char *line = tail; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (!is_said(line, length, agent->result->cause)) {
            if (!any) {
                ls__text_add(to, "lockstep: last lines of rank %d:\n", culprit);
            }
            any = true;
            ls__text_add(to, "lockstep:   | %.*s\n", (int)length, line);
        }
        line += length + (line[length] == '\n');
    }
}

static void add_consequences(const ls__agent *agent, ls__text *to)
{
    int count = agent->consequences;
    if (count > 0 && agent->result->culprit >= 0) {
        ls__text_add(to, "lockstep: %d other rank%s stopped because of this\n", count,
                     count == 1 ? "" : "s");
    }
}

/* What a rank had found and lived on with. */
static void add_past(const ls__agent *agent, ls__text *to)
{
    for (int r = 0; agent->board != NULL && r < agent->started; r++) {
        const ls__board_rank *place = &agent->board->rank[r];
        bool failed = atomic_load_explicit(&place->failed, memory_order_acquire) != 0;
        if (failed && is_past(agent, place)) {
            bool killed;
            uint64_t failed_ns = atomic_load_explicit(&place->failed_ns, memory_order_relaxed);
            ls__text_add(to,
                         "lockstep: note: %.0f s before, rank %d had failed and gone on: %.800s\n",
                         (double)(first_end_ns(agent, &killed) - failed_ns) * 1e-9,
                         place->world_rank, place->failed_text);
            return;
        }
    }
}

static void add_good_stop(const ls__agent *agent, ls__text *to)
{
    if (agent->stop_signal != 0) {
        ls__text_add(to, "lockstep: stopped by signal %d (%s); all ranks ended well\n",
                     agent->stop_signal, ls__signal_name(agent->stop_signal));
    }
}

void ls__agent_report(ls__agent *agent)
{
    ls__job_result *result = agent->result;
    ls__text to = {result->report, sizeof result->report};
    if (!ls__agent_failed(agent)) {
        add_good_stop(agent, &to);
        return;
    }
    if (result->failure.last_lines[0] == '\0') {
        ls__agent_tail(agent, result->failure.last_lines, sizeof result->failure.last_lines);
    }
    ls__text_add(&to, "lockstep: %s\n", result->cause);
    add_last_lines(agent, &to);
    add_consequences(agent, &to);
    add_past(agent, &to);
}
