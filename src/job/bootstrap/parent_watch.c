/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that watches the process of local rank 0.
 *
 *     sleeps ──this rank leaves──▶ ends
 *        └──that process ends without ls_finalize──▶ stands in for the agent:
 *                                                    publishes the root cause
 *
 * When the agent dies with local rank 0, this rank looks for the root cause by the same logic,
 * over the same board. */
#include "job/bootstrap/methods.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "job/agent/host_agent.h"

struct ls__parent_watch {
    const ls__env *env;
    int pidfd, event_fd;
    ls__board *board;
    const char *launcher;
    ls__host_agent stand_in; /* for the agent that died with local rank 0 */
    ls__env_thread *thread;
};

/* Local rank 0 leaves last, after ls_finalize; its end is then no failure. */
static bool has_left(const ls__board *board)
{
    return atomic_load_explicit(&board->rank[0].life, memory_order_acquire) == LS__LIFE_LEFT;
}

/* All ranks of the host do this at once, without a word to each other: the board accepts the
 * first root cause and ignores the others. Ends when one is published or when this rank leaves. */
static void stand_in(ls__parent_watch *w, ls__env_poll *event)
{
    ls__host_agent *a = &w->stand_in;
    ls__host_agent_stand_in(a, w->env, w->launcher, w->board);
    ls__host_agent_note_end(a, 0, NULL);
    ls__host_agent_conclude(a);
    while (!a->has_cause && !event->can_read) {
        (void)w->env->poll(w->env, event, 1, a->settle_ns);
        ls__host_agent_conclude(a);
    }
}

/* The thread's main. */
static void run_watch(void *arg)
{
    ls__parent_watch *w = arg;
    ls__env_poll items[2] = {{.fd = w->event_fd, .want_read = true},
                             {.fd = w->pidfd, .want_read = true}};
    while (!items[0].can_read && !items[1].can_read) {
        (void)w->env->poll(w->env, items, 2, LS__NEVER);
    }
    if (!items[0].can_read && !has_left(w->board)) {
        stand_in(w, &items[0]);
    }
}

/* The thread has ended, or was never started. The board is borrowed. */
static void watch_free(ls__parent_watch *w)
{
    if (w->pidfd >= 0) {
        w->env->close(w->env, w->pidfd);
    }
    if (w->event_fd >= 0) {
        w->env->close(w->env, w->event_fd);
    }
    w->env->release(w->env, w, sizeof *w);
}

/* The process may have ended already: before its parent has seen that, its pidfd is readable at
 * once, and the thread reports it. */
ls_status ls__parent_watch_start(const ls__env *env, int pid, ls__board *board,
                                 const char *launcher, ls__parent_watch **out)
{
    ls__parent_watch *w = env->allocate(env, sizeof *w);
    if (w == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: no memory to watch local rank 0");
    }
    memset(w, 0, sizeof *w);
    w->env = env;
    w->board = board;
    w->launcher = launcher;
    w->event_fd = env->event_open(env);
    w->pidfd = env->watch_process(env, pid);
    int error = w->event_fd < 0 ? w->event_fd : w->pidfd;
    if (error >= 0) {
        error = env->thread_start(env, "ls-watch", run_watch, w, &w->thread);
    }
    if (error < 0) {
        watch_free(w);
        if (error == -ESRCH) {
            return ls__fail(LS_ERR_PEER,
                            "ls_init: process %d (local rank 0) has ended; look at its output",
                            pid);
        }
        return ls__fail(LS_ERR_SYSTEM, "ls_init: cannot watch process %d, local rank 0: %s", pid,
                        strerror(-error));
    }
    *out = w;
    return LS_OK;
}

/* Wakes the thread, waits for its end, and frees all. */
void ls__parent_watch_end(ls__parent_watch *w)
{
    if (w != NULL) {
        w->env->event_set(w->env, w->event_fd);
        w->env->thread_join(w->env, w->thread);
        watch_free(w);
    }
}
