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

#define GRACE_MS 400        /* for the others to end by themselves, having read the verdict */
#define GRACE_STOP_MS 10000 /* the same when the user asked to stop: they may save their work */
#define GRACE_TERM_MS 200   /* between SIGTERM and SIGKILL */
#define SETTLE_MS 50
#define TAIL_LINES_BYTES 1500

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

typedef enum kind { /* the lower explains the higher */
                    KIND_FINDING,
                    KIND_SIGNAL,
                    KIND_WAITED,
                    KIND_CODE,
                    KIND_UNFINISHED,
                    KIND_NONE
} kind;

static bool any_joined(const ls__agent *agent)
{
    for (int r = 0; r < agent->started; r++) {
        uint32_t life = atomic_load_explicit(&agent->board->rank[r].life, memory_order_acquire);
        if (!agent->rank[r].ended && life == LS__LIFE_JOINED) {
            return true;
        }
    }
    return false;
}

static kind kind_of_end(const ls__agent *agent, const ls__agent_rank *rank)
{
    if (!rank->ended) {
        return KIND_NONE;
    }
    if (rank->exit.signal != 0) {
        return KIND_SIGNAL;
    }
    if (rank->exit.code != 0) {
        return KIND_CODE;
    }
    bool waited_for = rank->life == LS__LIFE_STARTED && any_joined(agent);
    return rank->life == LS__LIFE_JOINED || waited_for ? KIND_UNFINISHED : KIND_NONE;
}

static kind kind_of_finding(const ls__board_rank *rank)
{
    ls_status status = -(int)atomic_load_explicit(&rank->failed, memory_order_acquire);
    if (status == LS_OK) {
        return KIND_NONE;
    }
    bool waited = status == LS_ERR_PEER || status == LS_ERR_TIMEOUT || status == LS_ERR_ABORTED;
    return waited ? KIND_WAITED : KIND_FINDING;
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
    char name[128];
    ls__board_name(agent->board, r, name, sizeof name);
    snprintf(out, bytes, "%s failed: %.800s", name, agent->board->rank[r].failed_text);
}

/* ---- the verdict ---------------------------------------------------------------------------- */

bool ls__agent_failed(const ls__agent *agent)
{
    return agent->result->cause[0] != '\0';
}

static int count_consequences(const ls__agent *agent, int culprit)
{
    int count = 0;
    for (int r = 0; r < agent->started; r++) {
        const ls__agent_rank *rank = &agent->rank[r];
        count += r != culprit && (!rank->ended || kind_of_end(agent, rank) != KIND_NONE);
    }
    return count;
}

static void publish(ls__agent *agent, int culprit, const char *text)
{
    const ls__agent_rank *rank = culprit >= 0 ? &agent->rank[culprit] : NULL;
    (void)ls__board_give(agent->board, agent->env,
                         &(ls__verdict){.culprit = culprit,
                                        .pid = rank != NULL ? (int)rank->pid : 0,
                                        .signal = rank != NULL ? rank->exit.signal : 0,
                                        .code = rank != NULL ? rank->exit.code : 0,
                                        .text = text});
    ls__store_server_fail(agent->store, text);
}

/* The output's last lines follow in the report: they may still be in the pipe. */
static void describe_failure(ls__agent *agent, int culprit)
{
    ls__failure *failure = &agent->result->failure;
    failure->final = culprit < 0;
    if (culprit >= 0) {
        const ls__board_rank *place = &agent->board->rank[culprit];
        const ls__activity *activity = &place->activity;
        failure->status = -(int)atomic_load_explicit(&place->failed, memory_order_acquire);
        failure->signal = agent->rank[culprit].exit.signal;
        failure->before_init =
            failure->signal == 0 && agent->rank[culprit].life == LS__LIFE_STARTED;
        failure->step = atomic_load_explicit(&activity->step, memory_order_relaxed);
        failure->updates = atomic_load_explicit(&activity->updates, memory_order_relaxed);
    }
}

static void give(ls__agent *agent, int culprit, int code, int64_t grace_ms)
{
    ls__job_result *result = agent->result;
    agent->settle_ns = LS__NEVER;
    result->culprit = culprit;
    result->code = code;
    describe_failure(agent, culprit);
    agent->consequences = count_consequences(agent, culprit);
    agent->term_ns = ls__deadline_after(agent->env, grace_ms);
    agent->kill_ns = ls__deadline_after(agent->env, grace_ms + GRACE_TERM_MS);
    if (agent->board != NULL && agent->store != NULL) {
        publish(agent, culprit, result->cause);
    }
}

static int code_of(const ls__env_exit *how)
{
    return how->signal != 0 ? 128 + how->signal : how->code != 0 ? how->code : 1;
}

/* After the user's SIGINT or SIGTERM a rank that ends by it, or with a code, has not failed. */
static bool judge_stop(ls__agent *agent, int r)
{
    const ls__env_exit *how = &agent->rank[r].exit;
    if (agent->stop_signal == 0 || (how->signal != 0 && how->signal != agent->stop_signal)) {
        return false;
    }
    snprintf(agent->result->cause, sizeof agent->result->cause,
             "the job was stopped by signal %d (%s)", agent->stop_signal,
             ls__signal_name(agent->stop_signal));
    give(agent, -1, how->code != 0 ? how->code : 128 + agent->stop_signal, GRACE_STOP_MS);
    return true;
}

static bool settled(ls__agent *agent)
{
    if (agent->settle_ns == LS__NEVER) {
        agent->settle_ns = ls__deadline_after(agent->env, SETTLE_MS);
    }
    return agent->running == 0 || agent->env->now_ns(agent->env) >= agent->settle_ns;
}

void ls__agent_judge(ls__agent *agent)
{
    kind first = KIND_NONE;
    int culprit = -1, ended = -1;
    if (ls__agent_failed(agent)) {
        return;
    }
    for (int r = 0; r < agent->started; r++) {
        kind end = kind_of_end(agent, &agent->rank[r]);
        if (end < first) {
            first = end;
            culprit = ended = r;
        }
    }
    if (ended < 0 || judge_stop(agent, ended)) {
        return;
    }
    for (int r = 0; r < agent->started; r++) {
        kind finding = kind_of_finding(&agent->board->rank[r]);
        if (finding < first) {
            first = finding;
            culprit = r;
        }
    }
    if (first > KIND_SIGNAL && !settled(agent)) {
        return;
    }
    char *cause = agent->result->cause;
    size_t bytes = sizeof agent->result->cause;
    if (first == KIND_FINDING || first == KIND_WAITED) {
        say_finding(agent, culprit, cause, bytes);
    } else {
        say_end(agent, culprit, cause, bytes);
    }
    bool culprit_failed = kind_of_end(agent, &agent->rank[culprit]) != KIND_NONE;
    give(agent, culprit, code_of(&agent->rank[culprit_failed ? culprit : ended].exit),
         agent->stop_signal != 0 ? GRACE_STOP_MS : GRACE_MS);
}

void ls__agent_fail(ls__agent *agent, int code, const char *format, ...)
{
    if (ls__agent_failed(agent)) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(agent->result->cause, sizeof agent->result->cause, format, arguments);
    va_end(arguments);
    give(agent, -1, code, 0);
}

/* ---- the report ----------------------------------------------------------------------------- */

static void add_last_lines(const ls__agent *agent, ls__text *to)
{
    char tail[TAIL_LINES_BYTES];
    int culprit = agent->result->culprit;
    if (culprit < 0 || agent->output == NULL) {
        return;
    }
    ls__output_tail(agent->output, culprit, tail, sizeof tail);
    if (tail[0] == '\0') {
        return;
    }
    ls__text_add(to, "lockstep: last lines of rank %d:\n", culprit);
    for (char *line = tail; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        ls__text_add(to, "lockstep:   | %.*s\n", (int)length, line);
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
    if (agent->output != NULL && result->culprit >= 0) {
        ls__output_tail(agent->output, result->culprit, result->failure.last_lines,
                        sizeof result->failure.last_lines);
    }
    ls__text_add(&to, "lockstep: %s\n", result->cause);
    add_last_lines(agent, &to);
    add_consequences(agent, &to);
}
