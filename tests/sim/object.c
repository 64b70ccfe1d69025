/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors and what stands behind them; who is told when something can be read or written. */
#include "sim/entries.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

ls__sim_object *ls__sim_object_new(ls__sim_kind kind)
{
    ls__sim_object *o = ls__sim_alloc(sizeof *o);
    o->kind = kind;
    o->refs = 1;
    o->number = ++ls__sim->made;
    ls__list_init(&o->watches);
    ls__list_init(&o->looked);
    ls__list_init(&o->link);
    ls__sim->objects++;
    return o;
}

static void watch_drop(ls__sim_watch *w)
{
    ls__list_remove(&w->link);
    ls__list_remove(&w->in_object);
}

void ls__sim_object_drop(ls__sim_object *o)
{
    if (--o->refs > 0) {
        return;
    }
    ls__sim->objects--;
    LS__LIST_EACH (at, &o->watches) {
        watch_drop(LS__LIST_ITEM(at, ls__sim_watch, in_object));
    }
    LS__LIST_EACH (at, &o->looked) {
        watch_drop(LS__LIST_ITEM(at, ls__sim_watch, link));
    }
    switch (o->kind) {
    case LS__SIM_STREAM:
        ls__sim_stream_gone(o);
        break;
    case LS__SIM_LISTENER:
        ls__sim_listener_gone(o);
        break;
    case LS__SIM_SHM:
        ls__sim_memory_drop(o->memory);
        break;
    case LS__SIM_FILE:
        ls__sim_file_gone(o);
        break;
    default:
        break;
    }
}

/* ---- descriptors --------------------------------------------------------------------------- */

int ls__sim_fd_new(ls__sim_process *p, ls__sim_object *o)
{
    for (int fd = 3; fd < LS__SIM_FDS_MAX; fd++) {
        if (p->fd[fd] == NULL) {
            p->fd[fd] = o;
            p->fds = fd < p->fds ? p->fds : fd + 1;
            p->open_fds++;
            return fd;
        }
    }
    ls__sim_object_drop(o);
    return -EMFILE;
}

ls__sim_object *ls__sim_fd_any(ls__sim_process *p, int fd)
{
    return fd >= 0 && fd < LS__SIM_FDS_MAX ? p->fd[fd] : NULL;
}

ls__sim_object *ls__sim_fd(int fd, ls__sim_kind kind)
{
    ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    return o != NULL && o->kind == kind ? o : NULL;
}

void ls__sim_fd_close(ls__sim_process *p, int fd)
{
    ls__sim_object *o = p->fd[fd];
    p->fd[fd] = NULL;
    p->open_fds--;
    ls__sim_object_drop(o);
}

int ls__sim_env_close(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    ls__sim_process *p = ls__sim_current();
    if (ls__sim_fd_any(p, fd) == NULL) {
        ls__sim_stop("%s closes descriptor %d, which is not open", p->name, fd);
        return -EBADF;
    }
    ls__sim_fd_close(p, fd);
    return 0;
}

/* ---- readiness ----------------------------------------------------------------------------- */

static bool poller_has_news(const ls__sim_object *poller)
{
    LS__LIST_EACH (at, &poller->looked) {
        if (LS__LIST_ITEM(at, ls__sim_watch, link)->news) {
            return true;
        }
    }
    return false;
}

int ls__sim_ready_for(const ls__sim_object *o)
{
    bool can_read = false;
    switch (o->kind) {
    case LS__SIM_STREAM:
        return ls__sim_stream_ready(o);
    case LS__SIM_LISTENER:
        can_read = o->queued > 0;
        break;
    case LS__SIM_PIDFD:
        can_read = o->process->ended;
        break;
    case LS__SIM_SIGNALS:
        can_read = (o->process->signals_pending & o->process->signals_watched) != 0;
        break;
    case LS__SIM_POLLER:
        can_read = poller_has_news(o);
        break;
    case LS__SIM_EVENT:
        can_read = o->set;
        break;
    default:
        return LS__READY_READ | LS__READY_WRITE;
    }
    return can_read ? LS__READY_READ : 0;
}

static bool polls(const ls__sim_fiber *f, const ls__sim_object *o)
{
    for (int i = 0; i < f->item_count; i++) {
        if (ls__sim_fd_any(f->process, f->items[i].fd) == o) {
            return true;
        }
    }
    return false;
}

void ls__sim_changed(ls__sim_object *o)
{
    LS__LIST_EACH (at, &o->watches) {
        ls__sim_watch *w = LS__LIST_ITEM(at, ls__sim_watch, in_object);
        if (!w->news) {
            w->news = true;
            ls__sim_changed(w->poller);
        }
    }
    for (int i = 0; i < ls__sim->fibers; i++) {
        ls__sim_fiber *f = ls__sim->fiber[i];
        if (f->state == LS__SIM_ASLEEP && (f->poller == o || (f->items != NULL && polls(f, o)))) {
            ls__sim_wake(f);
        }
    }
}

static int look(ls__sim_process *p, ls__env_poll *items, int count)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        ls__env_poll *item = &items[i];
        const ls__sim_object *o = ls__sim_fd_any(p, item->fd);
        const int what = o != NULL ? ls__sim_ready_for(o) : item->fd >= 0 ? LS__READY_HANGUP : 0;
        item->can_read = item->want_read && (what & LS__READY_READ) != 0;
        item->can_write = item->want_write && (what & LS__READY_WRITE) != 0;
        item->hangup = (what & LS__READY_HANGUP) != 0;
        found += item->can_read || item->can_write || item->hangup;
    }
    return found;
}

int ls__sim_env_poll(const ls__env *env LS__UNUSED, ls__env_poll *items, int count,
                     uint64_t deadline_ns)
{
    ls__sim_point();
    ls__sim_fiber *f = ls__sim->running;
    int found = look(f->process, items, count);
    while (found == 0 && ls__sim->now_ns < deadline_ns) {
        f->items = items;
        f->item_count = count;
        const bool late = ls__sim_sleep(deadline_ns);
        found = look(f->process, items, count);
        if (late) {
            break;
        }
    }
    return found;
}

/* ---- pollers and events -------------------------------------------------------------------- */

int ls__sim_env_poller_open(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return ls__sim_fd_new(ls__sim_current(), ls__sim_object_new(LS__SIM_POLLER));
}

static ls__sim_watch *find_watch(const ls__sim_object *poller, const ls__sim_object *o)
{
    LS__LIST_EACH (at, &poller->looked) {
        ls__sim_watch *w = LS__LIST_ITEM(at, ls__sim_watch, link);
        if (w->object == o) {
            return w;
        }
    }
    return NULL;
}

int ls__sim_env_poller_add(const ls__env *env LS__UNUSED, int poller, int fd, uint64_t tag)
{
    ls__sim_point();
    ls__sim_object *p = ls__sim_fd(poller, LS__SIM_POLLER);
    ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    if (p == NULL || o == NULL || find_watch(p, o) != NULL) {
        return p == NULL || o == NULL ? -EBADF : -EEXIST;
    }
    ls__sim_watch *w = ls__sim_alloc(sizeof *w);
    *w = (ls__sim_watch){.poller = p, .object = o, .fd = fd, .tag = tag};
    ls__list_push_back(&p->looked, &w->link);
    ls__list_push_back(&o->watches, &w->in_object);
    if (ls__sim_ready_for(o) != 0) {
        w->news = true;
        ls__sim_changed(p);
    }
    return 0;
}

int ls__sim_env_poller_remove(const ls__env *env LS__UNUSED, int poller, int fd)
{
    ls__sim_point();
    ls__sim_object *p = ls__sim_fd(poller, LS__SIM_POLLER);
    ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    ls__sim_watch *w = p != NULL && o != NULL ? find_watch(p, o) : NULL;
    if (w == NULL) {
        return p == NULL || o == NULL ? -EBADF : -ENOENT;
    }
    watch_drop(w);
    return 0;
}

static int take_news(ls__sim_object *poller, ls__env_ready *out, int room)
{
    int count = 0;
    LS__LIST_EACH (at, &poller->looked) {
        ls__sim_watch *w = LS__LIST_ITEM(at, ls__sim_watch, link);
        const int what = w->news ? ls__sim_ready_for(w->object) : 0;
        if (count == room) {
            break;
        }
        w->news = false;
        if (what != 0) {
            out[count++] = (ls__env_ready){.tag = w->tag, .what = what};
        }
    }
    return count;
}

int ls__sim_env_poller_wait(const ls__env *env LS__UNUSED, int poller, ls__env_ready *out, int room,
                            uint64_t deadline_ns)
{
    ls__sim_point();
    ls__sim_object *p = ls__sim_fd(poller, LS__SIM_POLLER);
    if (p == NULL) {
        return -EBADF;
    }
    int count = take_news(p, out, room);
    while (count == 0 && ls__sim->now_ns < deadline_ns) {
        ls__sim->running->poller = p;
        const bool late = ls__sim_sleep(deadline_ns);
        count = take_news(p, out, room);
        if (late) {
            break;
        }
    }
    return count;
}

int ls__sim_env_event_open(const ls__env *env LS__UNUSED)
{
    ls__sim_point();
    return ls__sim_fd_new(ls__sim_current(), ls__sim_object_new(LS__SIM_EVENT));
}

void ls__sim_env_event_set(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    ls__sim_object *o = ls__sim_fd(fd, LS__SIM_EVENT);
    if (o != NULL) {
        o->set = true;
        ls__sim_changed(o);
    }
}

void ls__sim_env_event_clear(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    ls__sim_object *o = ls__sim_fd(fd, LS__SIM_EVENT);
    if (o != NULL) {
        o->set = false;
    }
}
