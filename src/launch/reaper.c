/* The guard: a process that does nothing until front and agent are both gone.
 *
 *     front killed    the agent ends the job
 *     agent killed    the kernel ends the ranks; the front what they had started
 *     both            the kernel ends the ranks, and nobody would be left for what they had started
 *
 * It waits for the end of a pipe whose other end only the agent has, and then kills every process
 * that carries this job's number in its environment. When a job ends well the agent ends the guard
 * with its other children.
 */
#include <signal.h>
#include <stdio.h>

#include "launch/agent.h"

#define LOOK_MS 20
#define LOOKS_MAX 100 /* what cannot be killed for so long is stuck in the kernel */
#define LOOKS_CLEAN 3 /* that found nothing: a process that was just being forked shows later */

typedef struct guard {
    const ls__env *env;
    int fd;
    const char *mark;
} guard;

static int guard_main(void *arg)
{
    const guard *g = arg; /* the agent's memory: read now */
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

void ls__agent_number(const ls__agent *agent, char out[LS__JOB_NUMBER_MAX])
{
    snprintf(out, LS__JOB_NUMBER_MAX, "%016llx.%d", (unsigned long long)agent->host.board->job,
             (int)agent->env->pid(agent->env));
}

void ls__agent_start_guard(ls__agent *agent)
{
    const ls__env *env = agent->env;
    char number[LS__JOB_NUMBER_MAX], mark[LS__JOB_NUMBER_MAX + 16];
    int pipe[2], pidfd = -1;
    pid_t pid = -1;
    if (env->pipe(env, pipe) < 0) {
        return; /* a job without a guard is no worse than the user's own scripts */
    }
    ls__agent_number(agent, number);
    snprintf(mark, sizeof mark, "LOCKSTEP_JOB=%s", number);
    guard g = {.env = env, .fd = pipe[0], .mark = mark};
    const ls__env_spawn spawn = {.fn = guard_main,
                                 .arg = &g,
                                 .stdout_fd = -1,
                                 .stderr_fd = -1,
                                 .keep_fds = &pipe[0],
                                 .keep_count = 1,
                                 .helper = true};
    if (env->spawn(env, &spawn, &pid, &pidfd) >= 0) {
        env->close(env, pidfd);
        agent->guard_fd = pipe[1];
    } else {
        env->close(env, pipe[1]);
    }
    env->close(env, pipe[0]);
}
