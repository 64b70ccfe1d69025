/* The front: starts the agent, passes signals on, and waits for the result.
 *
 * It is the process that the user started and may kill. All it owns is one child, one pipe and, for
 * `lockstep run`, the signals.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "launch/agent.h"

#define FIXED_ITEMS 2
#define ORPHAN_LOOK_MS 20

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

typedef struct front {
    const ls__env *env;
    const ls__job *job;
    pid_t pid; /* ours, which the agent watches */
    int result_fd;
} front;

/* ---- in the agent's process ------------------------------------------------------------------ */

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
    agent->job = f->job;
    agent->result = result;
    agent->parent_fd = env->watch_parent(env, f->pid);
    if (agent->parent_fd < 0) {
        return 1; /* it has ended already: so do we, before there is a rank */
    }
    ls__agent_run(agent);
    /* A pipe takes 64 KiB, so this neither blocks nor tears. */
    _Static_assert(sizeof *result < 65536, "fits a pipe");
    return env->write(env, f->result_fd, result, sizeof *result) == (ssize_t)sizeof *result ? 0 : 1;
}

/* ---- in the caller's process ----------------------------------------------------------------- */

static bool agent_ended(const front *f, int pidfd, int signals_fd)
{
    const ls__env *env = f->env;
    ls__env_poll items[FIXED_ITEMS] = {{.fd = pidfd, .want_read = true},
                                       {.fd = signals_fd, .want_read = true}};
    (void)env->poll(env, items, signals_fd >= 0 ? FIXED_ITEMS : 1, LS__NEVER);
    while (signals_fd >= 0 && items[1].can_read) {
        int number = env->signal_next(env, signals_fd);
        if (number <= 0) {
            break;
        }
        (void)env->kill(env, pidfd, number);
    }
    return items[0].can_read;
}

/* When the agent itself was killed its ranks were too (by the kernel), but not what they had
 * started: that is ours by now, if we adopt. */
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

static void read_result(const front *f, int fd, const ls__env_exit *how, ls__job_result *result)
{
    if (f->env->read(f->env, fd, result, sizeof *result) == (ssize_t)sizeof *result) {
        return;
    }
    memset(result, 0, sizeof *result);
    result->culprit = -1;
    result->code = how->signal != 0 ? 128 + how->signal : 1;
    snprintf(
        result->cause, sizeof result->cause,
        "the launcher's agent (process %d) was killed by signal %d (%s), and the ranks with it",
        (int)how->pid, how->signal, ls__signal_name(how->signal));
    snprintf(result->report, sizeof result->report, "lockstep: %s\n", result->cause);
}

static void await_agent(const front *f, pid_t pid, int pidfd, int signals_fd, ls__env_exit *how)
{
    const ls__env *env = f->env;
    while (!agent_ended(f, pidfd, signals_fd)) {
    }
    *how = (ls__env_exit){.pid = pid};
    (void)env->wait_exit(env, pid, how);
    if (how->signal != 0 && f->job->forward_signals) {
        end_orphans(env);
    }
}

ls_status ls__job_run(const ls__env *env, const ls__job *job, ls__job_result *result)
{
    LS_ASSERT(job->ranks >= 1 && job->ranks <= LS__BOARD_RANKS_MAX);
    int pipe[2], signals_fd = -1, pidfd = -1;
    pid_t pid = -1;
    uint64_t mask = 0;
    ls__env_exit how;
    int error = env->pipe(env, pipe);
    if (error < 0) {
        return ls__fail(LS_ERR_SYSTEM, "starting %d ranks: a pipe: %s", job->ranks,
                        strerror(-error));
    }
    if (job->forward_signals) {
        (void)env->adopt_orphans(env);
        signals_fd =
            env->signals_open(env, forwarded, (int)(sizeof forwarded / sizeof *forwarded), &mask);
    }
    front f = {.env = env, .job = job, .pid = env->pid(env), .result_fd = pipe[1]};
    ls__env_spawn spawn = {.fn = agent_main,
                           .arg = &f,
                           .stdout_fd = -1,
                           .stderr_fd = -1,
                           .keep_fds = &pipe[1],
                           .keep_count = 1,
                           .helper = true};
    error = env->spawn(env, &spawn, &pid, &pidfd);
    env->close(env, pipe[1]);
    if (error >= 0) {
        await_agent(&f, pid, pidfd, signals_fd, &how);
        read_result(&f, pipe[0], &how, result);
        env->close(env, pidfd);
    }
    env->close(env, pipe[0]);
    if (signals_fd >= 0) {
        env->signals_close(env, signals_fd, mask);
    }
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "starting %d ranks: %s", job->ranks, strerror(-error))
               : LS_OK;
}
