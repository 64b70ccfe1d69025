/* SPDX-License-Identifier: Apache-2.0 */
/* Processes: their start, their settings, signals and ends. */
#include "sim/entries.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"

#define END_DELAY_NS 5000000u /* from a death to what others see of it, at most */

/* ---- making -------------------------------------------------------------------------------- */

static void process_main(void *arg)
{
    ls__sim_process *p = arg;
    const int code = p->fn(p->arg);
    ls__sim_die(p, ls__sim_exited(code));
    ls__sim_switch(); /* never comes back */
}

ls__sim_process *ls__sim_process_new(int host, const char *name, int (*fn)(void *arg), void *arg)
{
    LS_ASSERT(ls__sim->processes < LS__SIM_PROCESSES_MAX);
    ls__sim_process *p = ls__sim_alloc(sizeof *p);
    p->pid = ls__sim->next_pid++;
    p->host = host;
    p->number = ls__sim->processes;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->fn = fn;
    p->arg = arg;
    p->reaped = true;
    ls__sim->process[ls__sim->processes++] = p;
    ls__sim->living++;
    p->main = ls__sim_fiber_new(p, process_main, p);
    return p;
}

ls__sim_process *ls__sim_by_pid(int pid)
{
    for (int i = 0; i < ls__sim->processes; i++) {
        if (ls__sim->process[i]->pid == pid) {
            return ls__sim->process[i];
        }
    }
    return NULL;
}

/* ---- settings ------------------------------------------------------------------------------ */

static int find_setting(const ls__sim_process *p, const char *name)
{
    const size_t length = strlen(name);
    for (int i = 0; i < p->settings; i++) {
        if (strncmp(p->setting[i], name, length) == 0 && p->setting[i][length] == '=') {
            return i;
        }
    }
    return -1;
}

void ls__sim_set(ls__sim_process *p, const char *name, const char *value)
{
    const size_t bytes = strlen(name) + strlen(value) + 2;
    char *text = ls__sim_alloc(bytes);
    snprintf(text, bytes, "%s=%s", name, value);
    int at = find_setting(p, name);
    if (at < 0) {
        LS_ASSERT(p->settings < LS__SIM_SETTINGS_MAX);
        at = p->settings++;
    }
    p->setting[at] = text;
}

char *ls__sim_getenv(const char *name)
{
    const ls__sim_process *p = ls__sim_current();
    const int at = p != NULL ? find_setting(p, name) : -1;
    return at >= 0 ? p->setting[at] + strlen(name) + 1 : NULL;
}

int ls__sim_setenv(const char *name, const char *value, int overwrite)
{
    (void)overwrite;
    ls__sim_set(ls__sim_current(), name, value);
    return 0;
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* Wakes who looks at a pidfd of this process, or has a signal to read. */
static void changed_of(ls__sim_process *p, ls__sim_kind kind)
{
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_process *other = ls__sim->process[i];
        for (int fd = 0; fd < other->fds; fd++) {
            ls__sim_object *o = other->fd[fd];
            if (o != NULL && o->kind == kind && o->process == p) {
                ls__sim_changed(o);
            }
        }
    }
}

static void send_signal(ls__sim_process *p, int signal)
{
    p->signals_pending |= (uint64_t)1 << (signal - 1);
    changed_of(p, LS__SIM_SIGNALS);
}

/* The end is to be seen: by the parent, and by who watches. */
static void show_end(void *process, uint64_t unused)
{
    ls__sim_process *p = process;
    (void)unused;
    p->ended = true;
    ls__sim_process *parent = ls__sim_by_pid(p->parent);
    if (parent != NULL && !parent->dead) {
        send_signal(parent, SIGCHLD);
    }
    changed_of(p, LS__SIM_PIDFD);
}

static void close_all(ls__sim_process *p)
{
    for (int fd = 0; fd < p->fds; fd++) {
        if (p->fd[fd] != NULL) {
            ls__sim_fd_close(p, fd);
        }
    }
}

void ls__sim_die(ls__sim_process *p, ls__env_exit how)
{
    if (p->dead) {
        return;
    }
    p->dead = true;
    p->exit = how;
    p->exit.pid = p->pid;
    ls__sim->living--;
    ls__sim_note("process %d (%s) ends: signal %d, code %d", p->pid, p->name, how.signal, how.code);
    for (int i = 0; i < ls__sim->fibers; i++) {
        if (ls__sim->fiber[i]->process == p) {
            ls__sim_fiber_end(ls__sim->fiber[i]);
        }
    }
    p->leaked_fds = p->open_fds;
    close_all(p);
    /* Ranks die with their launcher; a helper watches it itself. */
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_process *child = ls__sim->process[i];
        if (child->parent == p->pid && !child->dead && !child->helper) {
            ls__sim_die(child, (ls__env_exit){.signal = SIGKILL});
        }
        if (child->parent == p->pid) {
            child->parent = 1;
            child->reaped = true;
        }
    }
    ls__sim_at(ls__sim->now_ns + ls__sim_below(&ls__sim->random, END_DELAY_NS), show_end, p, 0);
}

void ls__sim_kill(ls__sim_process *p, int signal)
{
    if (p->dead) {
        return;
    }
    ls__sim_note("signal %d to process %d (%s)", signal, p->pid, p->name);
    if (signal == SIGSTOP || signal == SIGCONT) {
        ls__sim_freeze(p, signal == SIGSTOP);
        return;
    }
    const uint64_t bit = (uint64_t)1 << (signal - 1);
    const bool stop = signal == SIGINT || signal == SIGTERM;
    if (signal != SIGKILL && (p->signals_watched & bit) != 0) {
        send_signal(p, signal);
    } else if (stop && p->stop_over != NULL && p->stop_caught == 0 &&
               __atomic_load_n((const uint32_t *)(const void *)p->stop_over, __ATOMIC_RELAXED) ==
                   0) {
        p->stop_caught = signal;
    } else if (signal != SIGCHLD) {
        ls__sim_die(p, (ls__env_exit){.signal = signal});
    }
}

/* ---- the table's entries ------------------------------------------------------------------- */

static bool kept(const ls__env_spawn *spawn, int fd)
{
    for (int i = 0; i < spawn->keep_count; i++) {
        if (spawn->keep_fds[i] == fd) {
            return true;
        }
    }
    return false;
}

int ls__sim_env_spawn(const ls__env *env LS__UNUSED, const ls__env_spawn *spawn, pid_t *pid,
                      int *pidfd)
{
    ls__sim_point();
    ls__sim_process *parent = ls__sim_current();
    LS_ASSERT(spawn->argv == NULL); /* programs have no place here */
    char name[48];
    snprintf(name, sizeof name, "%s.%d", parent->name, parent->children++);
    ls__sim_process *p = ls__sim_process_new(parent->host, name, spawn->fn, spawn->arg);
    parent->first_child = parent->first_child != NULL ? parent->first_child : p;
    p->parent = parent->pid;
    p->reaped = false;
    p->helper = spawn->helper;
    for (int i = 0; i < parent->settings; i++) {
        p->setting[p->settings++] = parent->setting[i];
    }
    for (int fd = 3; fd < parent->fds; fd++) {
        if (parent->fd[fd] != NULL && kept(spawn, fd)) {
            parent->fd[fd]->refs++;
            p->fd[fd] = parent->fd[fd];
            p->open_fds++;
            p->fds = fd + 1;
        }
    }
    ls__sim_object *watch = ls__sim_object_new(LS__SIM_PIDFD);
    watch->process = p;
    *pid = p->pid;
    *pidfd = ls__sim_fd_new(parent, watch);
    ls__sim_note("starts process %d (%s)", p->pid, p->name);
    /* fork copies the parent's memory, and this does not: so the child runs until it has read its
     * argument, which it has at its first call. */
    p->fresh = true;
    ls__sim_run_first(p->main);
    return 0;
}

static int reap(ls__sim_process *p, ls__env_exit *out)
{
    *out = p->exit;
    p->reaped = true;
    return 0;
}

int ls__sim_env_wait_exit(const ls__env *env LS__UNUSED, pid_t pid, ls__env_exit *out)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_by_pid(pid);
    if (p == NULL || p->parent != ls__sim_current()->pid || p->reaped) {
        return -ECHILD;
    }
    return p->ended ? reap(p, out) : -EAGAIN;
}

int ls__sim_env_wait_any(const ls__env *env LS__UNUSED, ls__env_exit *out)
{
    ls__sim_point();
    const int self = ls__sim_current()->pid;
    bool any = false;
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_process *p = ls__sim->process[i];
        if (p->parent == self && !p->reaped) {
            any = true;
            if (p->ended) {
                return reap(p, out);
            }
        }
    }
    return any ? -EAGAIN : -ECHILD;
}

int ls__sim_env_kill(const ls__env *env LS__UNUSED, int pidfd, int signal)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd(pidfd, LS__SIM_PIDFD);
    if (o == NULL) {
        return -EBADF;
    }
    if (o->process->reaped) {
        return -ESRCH;
    }
    ls__sim_kill(o->process, signal);
    return 0;
}

int ls__sim_env_kill_group(const ls__env *env LS__UNUSED, pid_t pid, int signal)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_by_pid(pid);
    if (p == NULL || p->reaped) {
        return -ESRCH;
    }
    ls__sim_kill(p, signal);
    return 0;
}

int ls__sim_env_kill_children(const ls__env *env LS__UNUSED, int signal)
{
    ls__sim_point();
    const int self = ls__sim_current()->pid;
    int count = 0;
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_process *p = ls__sim->process[i];
        if (p->parent == self && !p->reaped) {
            ls__sim_kill(p, signal);
            count++;
        }
    }
    return count;
}

int ls__sim_env_kill_marked(const ls__env *env LS__UNUSED, const char *variable, int signal)
{
    ls__sim_point();
    const ls__sim_process *self = ls__sim_current();
    int count = 0;
    for (int i = 0; i < ls__sim->processes; i++) {
        ls__sim_process *p = ls__sim->process[i];
        bool marked = false;
        for (int s = 0; s < p->settings; s++) {
            marked = marked || strcmp(p->setting[s], variable) == 0;
        }
        if (marked && p != self && !p->dead && p->host == self->host) {
            ls__sim_kill(p, signal);
            count++;
        }
    }
    return count;
}

int ls__sim_env_watch_process(const ls__env *env LS__UNUSED, pid_t pid)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_by_pid(pid);
    if (p == NULL || (p->ended && p->reaped) || p->host != ls__sim_current()->host) {
        return -ESRCH;
    }
    ls__sim_object *watch = ls__sim_object_new(LS__SIM_PIDFD);
    watch->process = p;
    return ls__sim_fd_new(ls__sim_current(), watch);
}

int ls__sim_env_watch_parent(const ls__env *env, pid_t parent)
{
    return ls__sim_current()->parent == parent ? ls__sim_env_watch_process(env, parent) : -ESRCH;
}

int ls__sim_env_signals_open(const ls__env *env LS__UNUSED, const int *signals, int count,
                             uint64_t *saved)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_current();
    *saved = p->signals_watched;
    for (int i = 0; i < count; i++) {
        p->signals_watched |= (uint64_t)1 << (signals[i] - 1);
    }
    ls__sim_object *o = ls__sim_object_new(LS__SIM_SIGNALS);
    o->process = p;
    return ls__sim_fd_new(p, o);
}

void ls__sim_env_signals_close(const ls__env *env LS__UNUSED, int fd, uint64_t saved)
{
    ls__sim_point();
    ls__sim_current()->signals_watched = saved;
    ls__sim_fd_close(ls__sim_current(), fd);
}

int ls__sim_env_signal_next(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_current();
    const ls__sim_object *o = ls__sim_fd(fd, LS__SIM_SIGNALS);
    const uint64_t here = o != NULL ? p->signals_pending & p->signals_watched : 0;
    if (here == 0) {
        return -EAGAIN;
    }
    const int signal = __builtin_ctzll(here) + 1;
    p->signals_pending &= ~((uint64_t)1 << (signal - 1));
    return signal;
}
