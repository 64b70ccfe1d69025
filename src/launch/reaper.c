/* SPDX-License-Identifier: Apache-2.0 */
/* The reaper: a process that sleeps until the agent has ended without it.
 *
 *     front killed            the agent ends the job
 *     agent killed            the kernel kills the ranks; the guard (job.c) kills its descendants
 *     guard killed            the agent ends the job; the front of `lockstep run` its descendants
 *     guard and agent killed  the front of `lockstep run` kills its descendants; under ls_spawn,
 *                             and when the front is killed too, the reaper kills what carries the
 *                             mark
 *
 * It waits for the end of a pipe whose other end only the agent has, and then kills every
 * process that carries this job's number in its environment, or as the mark of the env table, which
 * a process keeps when it is given another environment. When a job ends normally the agent ends the
 * reaper with its other children. */
#include <signal.h>
#include <stdio.h>

#include "launch/agent.h"

#define LOOK_MS 20
#define LOOKS_MAX 100 /* a process that survives for so long is stuck in the kernel */
#define LOOKS_CLEAN 3 /* without a find: a process that is being forked appears later */

typedef struct reaper {
    const ls__env *env;
    int fd;
    const char *mark;
} reaper;

/* The reaper's main. Repeats until LOOKS_CLEAN searches in a row have found nothing, because a
 * process may fork while it is searched for. */
static int reaper_main(void *arg)
{
    const reaper *g = arg; /* the agent's memory: read now */
    const ls__env *env = g->env;
    ls__env_poll item = {.fd = g->fd, .want_read = true};
    char mark[LS__JOB_NUMBER_MAX + 16];
    snprintf(mark, sizeof mark, "%s", g->mark);
    while (!item.can_read && !item.hangup) {
        (void)env->poll(env, &item, 1, LS__NEVER);
    }
    for (int look = 0, clean = 0; look < LOOKS_MAX && clean < LOOKS_CLEAN; look++) {
        clean = env->kill_marked(env, mark, SIGKILL) > 0 ? 0 : clean + 1;
        env->sleep_until(env, ls__deadline_after(env, LOOK_MS));
    }
    return 0;
}

/* The agent's process number is part of it, because the nodes of a job share the random number. */
void ls__agent_number(const ls__agent *agent, char out[LS__JOB_NUMBER_MAX])
{
    snprintf(out, LS__JOB_NUMBER_MAX, "%016llx.%d", (unsigned long long)agent->host.board->job,
             (int)agent->env->pid(agent->env));
}

/* A failure is ignored: the reaper matters only if two processes are killed at once. */
void ls__agent_start_reaper(ls__agent *agent)
{
    const ls__env *env = agent->env;
    char number[LS__JOB_NUMBER_MAX], mark[LS__JOB_NUMBER_MAX + 16];
    int pipe[2], pidfd = -1;
    pid_t pid = -1;
    if (env->pipe(env, pipe) < 0) {
        return; /* a job without a reaper still runs */
    }
    ls__agent_number(agent, number);
    snprintf(mark, sizeof mark, "LOCKSTEP_JOB=%s", number);
    (void)env->mark(env, mark);
    reaper g = {.env = env, .fd = pipe[0], .mark = mark};
    const ls__env_spawn spawn = {.fn = reaper_main,
                                 .arg = &g,
                                 .stdout_fd = -1,
                                 .stderr_fd = -1,
                                 .keep_fds = &pipe[0],
                                 .keep_count = 1,
                                 .helper = true};
    if (env->spawn(env, &spawn, &pid, &pidfd) >= 0) {
        env->close(env, pidfd);
        agent->reaper_fd = pipe[1];
    } else {
        env->close(env, pipe[1]);
    }
    env->close(env, pipe[0]);
}
