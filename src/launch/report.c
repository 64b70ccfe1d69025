/* SPDX-License-Identifier: Apache-2.0 */
/* The root cause as this process passes it on: to the ranks, which are ended, and to the front,
 * which reads the result with its report.
 *
 *     no cause ──ls__agent_conclude or ls__agent_fail──▶ cause, term_ns and kill_ns set (once)
 *         ──all ranks have ended──▶ report */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "launch/agent.h"

#define CODE_NOT_FOUND 127  /* also a dynamic loader's, of a library */
#define GRACE_MS 300        /* for the others to read the root cause and end by themselves */
#define GRACE_STOP_MS 10000 /* the same when the user asked to stop: they may save their work */
#define GRACE_TERM_MS 200   /* between SIGTERM and SIGKILL */
#define TAIL_LINES_BYTES 1500
#define SAME_BYTES 160 /* texts that agree in so many bytes count as the same */

/* ---- the root cause -------------------------------------------------------------------------- */

/* How long the ranks may run on: long after a stop request of the user, so that they can save their
 * work. */
static int64_t grace_ms(const ls__agent *agent)
{
    const bool stop = agent->host.cause.stop || agent->host.stop_signal != 0;
    return stop ? GRACE_STOP_MS : GRACE_MS;
}

/* For the decision about a restart. The last lines of output are added with the report, because
 * they may still be in the pipe. */
static void describe_failure(ls__agent *agent, const ls__failure_record *f)
{
    ls__job_failure *failure = &agent->result->failure;
    failure->final = f->final;
    failure->status = f->status;
    failure->signal = f->signal;
    failure->before_init = f->before_init;
    failure->step = f->step;
    failure->updates = f->updates;
}

/* Once, when the root cause is known: fills in the result, and starts the clock for the ranks of
 * this host. */
static void take_cause(ls__agent *agent, int64_t grace)
{
    const ls__failure_record *f = &agent->host.cause;
    ls__job_result *result = agent->result;
    if (!agent->host.has_cause || result->cause[0] != '\0') {
        return;
    }
    LS_ASSERT(f->text[0] != '\0' && agent->host.settle_ns == LS__NEVER);
    LS_ASSERT(result->code == 0);
    result->culprit = f->failed_rank;
    result->code = f->job_code;
    snprintf(result->cause, sizeof result->cause, "%s", f->text);
    describe_failure(agent, f);
    agent->term_ns = ls__deadline_after(agent->env, grace);
    agent->kill_ns = ls__deadline_after(agent->env, grace + GRACE_TERM_MS);
}

/* Called in every turn; see ls__host_agent_conclude. */
void ls__agent_conclude(ls__agent *agent)
{
    ls__host_agent_conclude(&agent->host);
    take_cause(agent, grace_ms(agent));
}

/* Without effect if a root cause is known already. The ranks of this host cannot go on at all (a
 * program that cannot be started); those of other hosts have time to report it. */
void ls__agent_fail(ls__agent *agent, int code, const char *format, ...)
{
    ls__failure_record f = {
        .kind = LS__FAILURE_OWN, .failed_rank = -1, .job_code = code, .final = true};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f.text, sizeof f.text, format, arguments);
    va_end(arguments);
    ls__host_agent_fail(&agent->host, &f);
    take_cause(agent, 0);
}

/* ---- the report ----------------------------------------------------------------------------- */

/* Only the host of the culprit has its output. */
void ls__agent_tail(const ls__agent *agent, char *out, size_t bytes)
{
    const int culprit = agent->result->culprit;
    out[0] = '\0';
    if (culprit >= 0 && agent->output != NULL && agent->host.board != NULL) {
        const int local = ls__board_local(agent->host.board, culprit);
        if (local >= 0 && local < agent->host.started) {
            ls__output_tail(agent->output, local, out, bytes);
        }
    }
}

/* Whether a line repeats the cause: most programs print the error message before they end. */
static bool is_repeated(const char *line, size_t length, const char *cause)
{
    char finding[SAME_BYTES + 1];
    const char *behind = strstr(cause, " failed: ");
    snprintf(finding, sizeof finding, "%.*s", SAME_BYTES,
             behind != NULL ? behind + strlen(" failed: ") : cause);
    const char *found = strstr(line, finding);
    return found != NULL && found < line + length;
}

/* The culprit's last lines, without those that repeat the cause. Output of another host arrived
 * with the result. */
static void add_last_lines(const ls__agent *agent, ls__text *to)
{
    char tail[TAIL_LINES_BYTES];
    int culprit = agent->result->culprit;
    ls__agent_tail(agent, tail, sizeof tail);
    if (tail[0] == '\0') {
        snprintf(tail, sizeof tail, "%s", agent->result->failure.last_lines);
    }
    if (culprit < 0 || tail[0] == '\0') {
        return;
    }
    bool any = false;
    for (char *line = tail; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        if (!is_repeated(line, length, agent->result->cause)) {
            if (!any) {
                ls__text_add(to, "lockstep: last lines of rank %d:\n", culprit);
            }
            any = true;
            ls__text_add(to, "lockstep:   | %.*s\n", (int)length, line);
        }
        line += length + (line[length] == '\n');
    }
}

/* The program's loader named the file, in the last lines. */
static void add_loader_hint(const ls__job_result *result, ls__text *to)
{
    if (result->code == CODE_NOT_FOUND &&
        strstr(result->failure.last_lines, "liblockstep") != NULL) {
        ls__text_add(to, "lockstep: link the program with the flags of `pkg-config --libs "
                         "lockstep`, which name the library's folder, or put that folder into "
                         "LD_LIBRARY_PATH\n");
    }
}

/* So that a user need not search the output of each rank for another cause. */
static void add_consequences(const ls__agent *agent, ls__text *to)
{
    int count = agent->host.consequences;
    if (count > 0 && agent->result->culprit >= 0) {
        ls__text_add(to, "lockstep: %d other rank%s stopped because of this\n", count,
                     count == 1 ? "" : "s");
    }
}

/* A stop request that all ranks followed is no failure, but worth a line. */
static void add_good_stop(const ls__agent *agent, ls__text *to)
{
    if (agent->host.stop_signal != 0) {
        ls__text_add(to, "lockstep: stopped by signal %d (%s); all ranks ended well\n",
                     agent->host.stop_signal, ls__signal_name(agent->host.stop_signal));
    }
}

/* A reader of the logs must be told that they are not all that the ranks printed. */
static void add_cut_logs(ls__agent *agent, ls__text *to)
{
    if (agent->output != NULL && ls__output_is_cut(agent->output)) {
        agent->result->code = 1;
        ls__text_add(to,
                     "lockstep: all ranks ended well, but logs in %s are not complete; make room "
                     "there, or give another --log-dir\n",
                     agent->job->log_dir);
    }
}

/* cause, last lines of the culprit, number of ranks that it stopped, and a failure that a rank
 * had survived before. */
void ls__agent_report(ls__agent *agent)
{
    ls__job_result *result = agent->result;
    char note[1024];
    ls__text to = {result->report, sizeof result->report};
    if (!agent->host.has_cause) {
        add_good_stop(agent, &to);
        add_cut_logs(agent, &to);
        return;
    }
    if (result->failure.last_lines[0] == '\0') {
        ls__agent_tail(agent, result->failure.last_lines, sizeof result->failure.last_lines);
    }
    ls__text_add(&to, "lockstep: %s\n", result->cause);
    add_last_lines(agent, &to);
    add_loader_hint(result, &to);
    add_consequences(agent, &to);
    ls__host_agent_past_failure(&agent->host, note, sizeof note);
    if (note[0] != '\0') {
        ls__text_add(&to, "lockstep: %s\n", note);
    }
}
