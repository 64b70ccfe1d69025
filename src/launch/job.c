/* SPDX-License-Identifier: Apache-2.0 */
/* The front: starts the guard and through it the agent, passes signals on, and waits for the
 * result.
 *
 * It is the process that the user started and may kill. It owns only one child, one pipe and,
 * for `lockstep run`, the signals.
 *
 *     front ──▶ guard ──▶ agent ──▶ ranks ──▶ processes that they start
 *
 * The guard is an ancestor of all that the job starts, and adopts: whichever way a process has
 * left its group, session or environment, it becomes the guard's child once agent and ranks are
 * gone. So nothing is left even when front and agent are killed at once.
 *
 *     attempt: agent runs ──▶ result through the pipe ──code 0, or no restart──▶ returned
 *        ▲                                     └──restart decided──▶ delay ──┐
 *        └───────────────────────────────────────────────────────────────────┘ */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/text.h"
#include "launch/agent.h"
#include "launch/restart.h"

#define FIXED_ITEMS 2
#define ORPHAN_LOOK_MS 20

/* Passed on to the agent, except SIGCHLD: it may mean that the agent was stopped. */
static const int forwarded[] = {SIGINT,  SIGTERM, SIGHUP,  SIGUSR1,
                                SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD};

/* All of the front: the agent's process is forked from it and reads the same structure. */
typedef struct front {
    const ls__env *env;
    ls__job job;
    pid_t pid; /* the front's, which the agent watches */
    pid_t guard_pid;
    int front_fd; /* in the guard: the front's pidfd */
    int result_fd;
    int signals_fd; /* -1: none */
    int stopped_by; /* the last signal that requests a stop or reports a closed terminal; 0: none */
    char run_id[20];
    ls__restarts restarts;
} front;

/* ---- in the agent's process ------------------------------------------------------------------ */

/* The main of the agent's process. It sends the result through the pipe, which holds 64 KiB: the
 * write neither blocks nor is torn. */
static int agent_main(void *arg)
{
    const front *f = arg;
    const ls__env *env = f->env;
    ls__agent *agent = env->allocate(env, sizeof *agent);
    ls__job_result *result = env->allocate(env, sizeof *result);
    if (agent == NULL || result == NULL) {
        return 1;
    }
    memset(agent, 0, sizeof *agent);
    memset(result, 0, sizeof *result);
    result->culprit = -1;
    agent->env = env;
    agent->job = &f->job;
    agent->result = result;
    agent->restarts = &f->restarts;
    agent->front_fd = f->front_fd;
    agent->guard_fd = env->watch_parent(env, f->guard_pid);
    if (agent->guard_fd < 0) {
        return 1; /* it has ended already: so do we, before there is a rank */
    }
    ls__agent_run(agent);
    _Static_assert(sizeof *result < 65536, "fits a pipe");
    return env->write(env, f->result_fd, result, sizeof *result) == (ssize_t)sizeof *result ? 0 : 1;
}

/* ---- in the caller's process, and in the guard's --------------------------------------------- */

/* The next signal, or -EAGAIN. Remembers a request to stop; a closed terminal does not replace
 * one. */
static int next_signal(front *f)
{
    int number = f->env->signal_next(f->env, f->signals_fd);
    bool stop = number == SIGINT || number == SIGTERM;
    if (stop || (number == SIGHUP && f->stopped_by == 0)) {
        f->stopped_by = number;
    }
    return number;
}

/* A stopped agent notices no failure and shows no output, and only this process can say so. */
static void check_agent_stopped(const front *f, pid_t agent)
{
    if (f->env->process_state(f->env, agent) == 'T') {
        LS__WARN("the launcher's agent (process %d) is stopped (state T; `kill -CONT %d` lets it "
                 "go on): until then no failure is reported and no output shown",
                 (int)agent, (int)agent);
    }
}

/* Ctrl-Z stops the ranks, and then the process for which the shell waits. Where no shell waits,
 * both go on at once. */
static void pause_job(const front *f, int pidfd)
{
    const bool is_front = f->guard_pid == 0;
    (void)f->env->kill(f->env, pidfd, SIGTSTP);
    if (is_front) {
        f->env->stop_self(f->env);
        (void)f->env->kill(f->env, pidfd, SIGCONT);
    }
}

/* Waits for one event and serves it. True: the agent has ended. */
static bool agent_ended(front *f, pid_t pid, int pidfd)
{
    const ls__env *env = f->env;
    ls__env_poll items[FIXED_ITEMS] = {{.fd = pidfd, .want_read = true},
                                       {.fd = f->signals_fd, .want_read = true}};
    (void)env->poll(env, items, f->signals_fd >= 0 ? FIXED_ITEMS : 1, LS__NEVER);
    while (f->signals_fd >= 0 && items[1].can_read) {
        int number = next_signal(f);
        if (number <= 0) {
            break;
        }
        if (number == SIGCHLD) {
            check_agent_stopped(f, pid);
        } else if (number == SIGTSTP) {
            pause_job(f, pidfd);
        } else {
            (void)env->kill(env, pidfd, number);
        }
    }
    return items[0].can_read;
}

/* After the agent or the guard was killed. The kernel has killed the ranks, but not the processes
 * that these had started: they are children of this process by now, which adopts. */
static void end_orphans(const ls__env *env)
{
    ls__env_exit how;
    int rc = 0;
    while (rc != -ECHILD) {
        (void)env->kill_children(env, SIGKILL);
        env->sleep_until(env, ls__deadline_after(env, ORPHAN_LOOK_MS));
        do {
            rc = env->wait_any(env, &how);
        } while (rc == 0);
    }
}

/* The end of the agent (or guard) is then the root cause, and final: a job whose launcher was
 * killed is not restarted. */
static void describe_kill(const front *f, const ls__env_exit *how, ls__job_result *result)
{
    memset(result, 0, sizeof *result);
    result->culprit = -1;
    result->attempt = f->job.attempt;
    result->code = how->signal != 0 ? 128 + how->signal : 1;
    result->failure.final = true;
    if (how->signal != 0) {
        snprintf(
            result->cause, sizeof result->cause,
            "the launcher's agent (process %d) was killed by signal %d (%s), and the ranks with it",
            (int)how->pid, how->signal, ls__signal_name(how->signal));
    } else {
        snprintf(result->cause, sizeof result->cause,
                 "the launcher's agent (process %d) ended with code %d before it could start a "
                 "rank; check that /dev/null and /proc exist (ls /dev/null /proc/self)",
                 (int)how->pid, how->code);
    }
    snprintf(result->report, sizeof result->report, "lockstep: %s\n", result->cause);
}

/* Runs `fn` in a helper process that keeps these descriptors, and passes signals on to it until it
 * has ended and is reaped. */
static int run_helper(front *f, int (*fn)(void *arg), const int *keep, int keep_count,
                      ls__env_exit *how)
{
    const ls__env *env = f->env;
    int pidfd = -1;
    pid_t pid = -1;
    const ls__env_spawn spawn = {.fn = fn,
                                 .arg = f,
                                 .stdout_fd = -1,
                                 .stderr_fd = -1,
                                 .keep_fds = keep,
                                 .keep_count = keep_count,
                                 .helper = true};
    const int error = env->spawn(env, &spawn, &pid, &pidfd);
    if (error < 0) {
        return error;
    }
    while (!agent_ended(f, pid, pidfd)) {
    }
    *how = (ls__env_exit){.pid = pid};
    (void)env->wait_exit(env, pid, how);
    env->close(env, pidfd);
    return 0;
}

/* In the guard: ends what a killed agent has left, then says so in the agent's place. The front may
 * be gone too, so the write comes last. */
static void stand_in(const front *f, int error, const ls__env_exit *how)
{
    const ls__env *env = f->env;
    end_orphans(env);
    ls__job_result *result = env->allocate(env, sizeof *result);
    if (result == NULL) {
        return;
    }
    describe_kill(f, how, result);
    if (error < 0) {
        snprintf(result->cause, sizeof result->cause, "cannot start %d ranks: %s", f->job.ranks,
                 strerror(-error));
        snprintf(result->report, sizeof result->report, "lockstep: %s\n", result->cause);
    }
    (void)env->write(env, f->result_fd, result, sizeof *result);
    env->release(env, result, sizeof *result);
}

/* The main of the guard's process. It has signals of its own, because the front of ls_spawn passes
 * none on, and the agent's stop is reported to its parent. */
static int guard_main(void *arg)
{
    front f = *(const front *)arg; /* read before the first call: the front goes on */
    const ls__env *env = f.env;
    uint64_t mask = 0;
    ls__env_exit how = {0};
    f.front_fd = env->watch_parent(env, f.pid);
    if (f.front_fd < 0) {
        return 1;
    }
    (void)env->adopt_orphans(env);
    f.guard_pid = env->pid(env);
    f.signals_fd =
        env->signals_open(env, forwarded, (int)(sizeof forwarded / sizeof *forwarded), &mask);
    const int keep[] = {f.result_fd, f.front_fd};
    const int error = run_helper(&f, agent_main, keep, 2, &how);
    if (error < 0 || how.signal != 0) {
        stand_in(&f, error, &how);
    }
    return 0;
}

/* ---- in the caller's process ----------------------------------------------------------------- */

/* The guard's process has the write end of the pipe, so that the guard's end is the pipe's end. */
static int run_attempt(front *f, ls__job_result *result)
{
    const ls__env *env = f->env;
    int pipe[2];
    ls__env_exit how;
    int error = env->pipe(env, pipe);
    if (error < 0) {
        return error;
    }
    f->result_fd = pipe[1];
    error = run_helper(f, guard_main, &pipe[1], 1, &how);
    if (error >= 0 && how.signal != 0 && f->job.forward_signals) {
        end_orphans(env);
    }
    if (error >= 0 && env->read(env, pipe[0], result, sizeof *result) != (ssize_t)sizeof *result) {
        describe_kill(f, &how, result);
    }
    env->close(env, pipe[1]);
    env->close(env, pipe[0]);
    return error;
}

/* ---- restarts -------------------------------------------------------------------------------- */

/* The delay before a restart. False: a stop was requested. A closed terminal alone is no
 * request, since under nohup the job continues. */
static bool wait_unless_stopped(front *f, int64_t delay_ms)
{
    const ls__env *env = f->env;
    uint64_t deadline = ls__deadline_after(env, delay_ms);
    ls__env_poll item = {.fd = f->signals_fd, .want_read = true};
    do {
        (void)env->poll(env, &item, f->signals_fd >= 0 ? 1 : 0, deadline);
        while (f->signals_fd >= 0 && next_signal(f) > 0) {
        }
    } while (f->stopped_by != SIGINT && f->stopped_by != SIGTERM && env->now_ns(env) < deadline);
    return f->stopped_by != SIGINT && f->stopped_by != SIGTERM;
}

/* Appends a line to the report; a full report is truncated. */
static void add_line(ls__job_result *result, const char *format, const char *what)
{
    size_t used = strlen(result->report);
    ls__text to = {result->report + used, sizeof result->report - used};
    ls__text_add(&to, format, what);
}

/* Whether the user wants the job to end. SIGHUP counts only if a rank died of it. */
static bool asked_to_stop(const front *f, const ls__job_result *result)
{
    return f->stopped_by == SIGINT || f->stopped_by == SIGTERM ||
           (f->stopped_by == SIGHUP && result->failure.signal == SIGHUP);
}

/* Lets the caller show the report, then waits. False: a stop was requested during the delay, and
 * the report consists of that alone, because the caller has shown the rest. */
static bool prepare(front *f, ls__job_result *result, int64_t delay_ms)
{
    if (f->job.on_restart != NULL) {
        f->job.on_restart(result);
    }
    if (!wait_unless_stopped(f, delay_ms)) { /* the report was given already */
        snprintf(result->report, sizeof result->report,
                 "lockstep: not restarted: a stop was requested (%s)\n",
                 ls__signal_name(f->stopped_by));
        return false;
    }
    return true;
}

/* All nodes restart, or none: this one does what node 0 has decided. */
static bool follow_node0(front *f, ls__job_result *result)
{
    if (result->node0_text[0] != '\0') {
        add_line(result, "lockstep: %s\n", result->node0_text);
    }
    return result->node0_restarts && prepare(f, result, result->node0_delay_ms);
}

/* Whether another attempt follows. Adds the reason to the report. */
static bool again(front *f, ls__job_result *result)
{
    if (result->node0_decided && result->code != 0) {
        return follow_node0(f, result);
    }
    if (result->cause[0] == '\0' || f->job.max_restarts == 0) {
        return false;
    }
    if (asked_to_stop(f, result)) {
        add_line(result, "lockstep: not restarted: a stop was requested (%s)\n",
                 ls__signal_name(f->stopped_by));
        return false;
    }
    ls__restart next = ls__restart_decide(&f->restarts, result, f->env->now_ns(f->env));
    add_line(result, "lockstep: %s\n", next.text);
    return next.again && prepare(f, result, next.delay_ms);
}

/* The run id is the same in all attempts; each attempt draws its own job number and secret. */
static int run_attempts(front *f, ls__job_result *result)
{
    uint64_t id = 0;
    int error = f->env->random_bytes(f->env, &id, sizeof id);
    snprintf(f->run_id, sizeof f->run_id, "%016llx", (unsigned long long)id);
    f->job.run_id = f->run_id;
    error = error < 0 ? error : run_attempt(f, result);
    while (error >= 0 && again(f, result)) {
        f->job.attempt = result->attempt + 1;
        error = run_attempt(f, result);
    }
    return error;
}

/* The processes of a job are found in /proc, so without it nothing could be ended reliably. A
 * system without /proc is refused before there is a process. */
static ls_status check_system(const ls__env *env)
{
    const int state = env->process_state(env, env->pid(env));
    return state >= 0 ? LS_OK
                      : ls__fail(LS_ERR_SYSTEM,
                                 "the launcher finds the processes of a job in /proc, but cannot "
                                 "read its own entry there (%s): mount it (mount -t proc proc "
                                 "/proc), in a chroot as well",
                                 strerror(-state));
}

/* Adopts orphans only where it owns the signals: a program that calls ls_spawn keeps its
 * children to itself. */
ls_status ls__job_run(const ls__env *env, const ls__job *job, ls__job_result *result)
{
    LS_ASSERT(job->ranks >= 1 && job->ranks <= LS__BOARD_RANKS_MAX);
    LS_ASSERT(job->max_restarts >= 0 && job->max_restarts <= LS__RESTARTS_MAX);
    uint64_t mask = 0;
    LS_TRY(check_system(env));
    front f = {.env = env,
               .job = *job,
               .pid = env->pid(env),
               .signals_fd = -1,
               .restarts = {.max = job->max_restarts, .window_s = job->restart_window_s}};
    if (job->forward_signals) {
        (void)env->adopt_orphans(env);
        f.signals_fd =
            env->signals_open(env, forwarded, (int)(sizeof forwarded / sizeof *forwarded), &mask);
    }
    int error = run_attempts(&f, result);
    if (f.signals_fd >= 0) {
        env->signals_close(env, f.signals_fd, mask);
    }
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "cannot start %d ranks: %s", job->ranks, strerror(-error))
               : LS_OK;
}
