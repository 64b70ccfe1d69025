/* The thread. */
#include "job/bootstrap/parent_watch.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

struct ls__parent_watch {
    const ls__env *env;
    int pidfd, event_fd;
    ls__board *board;
    const char *launcher;
    ls__env_thread *thread;
};

static bool has_left(const ls__board *board)
{
    return atomic_load_explicit(&board->rank[0].life, memory_order_acquire) == LS__LIFE_LEFT;
}

/* As the steward says it of others. */
static void say_death(const ls__parent_watch *w)
{
    char name[128], doing[640], text[1024];
    ls__board_name(w->board, 0, name, sizeof name);
    ls__board_doing(w->board, w->env, 0, doing, sizeof doing);
    snprintf(text, sizeof text,
             "%s ended without ls_finalize while %s; its launcher (%s) knows how", name, doing,
             w->launcher);
    (void)ls__board_give(
        w->board, w->env,
        &(ls__verdict){.culprit = w->board->rank[0].world_rank,
                       .pid = atomic_load_explicit(&w->board->rank[0].pid, memory_order_relaxed),
                       .text = text});
    atomic_store_explicit(&w->board->rank[0].life, LS__LIFE_DEAD, memory_order_release);
    for (int r = 0; r < w->board->ranks; r++) {
        ls__board_ring(w->board, w->env, r);
    }
}

static void run(void *arg)
{
    ls__parent_watch *w = arg;
    ls__env_poll items[2] = {{.fd = w->event_fd, .want_read = true},
                             {.fd = w->pidfd, .want_read = true}};
    while (!items[0].can_read && !items[1].can_read) {
        (void)w->env->poll(w->env, items, 2, LS__NEVER);
    }
    if (!items[0].can_read && !has_left(w->board)) {
        say_death(w);
    }
}

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

ls_status ls__parent_watch_start(const ls__env *env, int pid, ls__board *board,
                                 const char *launcher, ls__parent_watch **out)
{
    ls__parent_watch *w = env->allocate(env, sizeof *w);
    if (w == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_init: the watch over local rank 0");
    }
    memset(w, 0, sizeof *w);
    w->env = env;
    w->board = board;
    w->launcher = launcher;
    w->event_fd = env->event_open(env);
    w->pidfd = env->watch_process(env, pid);
    int error = w->event_fd < 0 ? w->event_fd : w->pidfd;
    if (error >= 0) {
        error = env->thread_start(env, "ls-watch", run, w, &w->thread);
    }
    if (error < 0) {
        watch_free(w);
        return ls__fail(LS_ERR_SYSTEM, "ls_init: watching process %d, local rank 0: %s", pid,
                        strerror(-error));
    }
    *out = w;
    return LS_OK;
}

void ls__parent_watch_end(ls__parent_watch *w)
{
    if (w != NULL) {
        w->env->event_set(w->env, w->event_fd);
        w->env->thread_join(w->env, w->thread);
        watch_free(w);
    }
}
