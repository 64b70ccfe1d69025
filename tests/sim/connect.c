/* SPDX-License-Identifier: Apache-2.0 */
/* Making connections: by a name of the host, and over TCP. See stream.c for what then travels. */
#include "sim/entries.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- listening ----------------------------------------------------------------------------- */

static ls__sim_object *find_listener(const char *name, int host, int port)
{
    LS__LIST_EACH (at, &ls__sim->listeners) {
        ls__sim_object *l = LS__LIST_ITEM(at, ls__sim_object, link);
        if (l->host == host &&
            (name != NULL ? strcmp(l->name, name) == 0 : l->name[0] == '\0' && l->port == port)) {
            return l;
        }
    }
    return NULL;
}

static int listen_new(const char *name, int port)
{
    ls__sim_process *p = ls__sim_current();
    if (find_listener(name, p->host, port) != NULL) {
        return -EADDRINUSE;
    }
    ls__sim_object *l = ls__sim_object_new(LS__SIM_LISTENER);
    snprintf(l->name, sizeof l->name, "%s", name != NULL ? name : "");
    l->host = p->host;
    l->port = port;
    ls__list_push_back(&ls__sim->listeners, &l->link);
    return ls__sim_fd_new(p, l);
}

void ls__sim_listener_gone(ls__sim_object *l)
{
    ls__list_remove(&l->link);
    for (int i = 0; i < l->queued; i++) {
        ls__sim_object_drop(l->queue[i]);
    }
}

/* The other end of a connecting stream, in the listener's queue. */
static bool enqueue(ls__sim_object *l, ls__sim_object *s)
{
    const int room = (int)(sizeof l->queue / sizeof *l->queue);
    if (l->queued == room) {
        return false;
    }
    ls__sim_object *end = ls__sim_object_new(LS__SIM_STREAM);
    end->in = s->out;
    end->out = s->in;
    end->in->reader = end;
    end->out->writer = end;
    end->tcp = s->tcp;
    end->opener = NULL;
    end->host = l->host;
    end->port = l->port;
    end->peer_host = s->host;
    end->peer_port = s->port;
    l->queue[l->queued++] = end;
    ls__sim_changed(l);
    return true;
}

static ls__sim_object *accept_next(int fd)
{
    ls__sim_object *l = ls__sim_fd(fd, LS__SIM_LISTENER);
    if (l == NULL || l->queued == 0) {
        return NULL;
    }
    ls__sim_object *end = l->queue[0];
    memmove(l->queue, l->queue + 1, (size_t)--l->queued * sizeof *l->queue);
    return end;
}

int ls__sim_env_host_listen(const ls__env *env LS__UNUSED, const char *name)
{
    ls__sim_point();
    return listen_new(name, 0);
}

void ls__sim_env_host_unlisten(const ls__env *env, int fd, const char *name LS__UNUSED)
{
    (void)env->close(env, fd); /* nothing is left of a name here */
}

int ls__sim_env_name_folder(const ls__env *env LS__UNUSED, ls__env_folder *out)
{
    *out = (ls__env_folder){.path = "simulated"};
    return 0;
}

int ls__sim_env_host_accept(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    ls__sim_object *end = accept_next(fd);
    return end != NULL ? ls__sim_fd_new(ls__sim_current(), end) : -EAGAIN;
}

int ls__sim_env_host_connect(const ls__env *env LS__UNUSED, const char *name)
{
    ls__sim_point();
    ls__sim_object *l = find_listener(name, ls__sim_current()->host, 0);
    if (l == NULL) {
        return -ECONNREFUSED;
    }
    ls__sim_object *s = ls__sim_end_new(ls__sim_channel_new(LS__SIM_UNIX_BYTES),
                                        ls__sim_channel_new(LS__SIM_UNIX_BYTES));
    if (!enqueue(l, s)) {
        ls__sim_object_drop(s);
        return -EAGAIN;
    }
    return ls__sim_fd_new(ls__sim_current(), s);
}

/* ---- TCP ----------------------------------------------------------------------------------- */

static int host_at(const char *address)
{
    if (strcmp(address, "127.0.0.1") == 0) {
        return ls__sim_current()->host;
    }
    for (int h = 0; h < ls__sim->hosts; h++) {
        if (strcmp(ls__sim->host[h].address, address) == 0) {
            return h;
        }
    }
    return -1;
}

static int new_port(int host)
{
    return 20000 + ls__sim->host[host].next_port++;
}

int ls__sim_env_tcp_listen(const ls__env *env LS__UNUSED, const char *address, int port)
{
    ls__sim_point();
    const int host = ls__sim_current()->host;
    const bool any = strcmp(address, "0.0.0.0") == 0 || strcmp(address, "::") == 0;
    if (!any && host_at(address) != host) {
        return -EADDRNOTAVAIL;
    }
    return listen_new(NULL, port != 0 ? port : new_port(host));
}

int ls__sim_env_tcp_accept(const ls__env *env LS__UNUSED, int fd, char *address, size_t bytes)
{
    ls__sim_point();
    ls__sim_object *end = accept_next(fd);
    if (end == NULL) {
        return -EAGAIN;
    }
    if (address != NULL) {
        snprintf(address, bytes, "%s", ls__sim->host[end->peer_host].address);
    }
    return ls__sim_fd_new(ls__sim_current(), end);
}

typedef struct call { /* a connection being made */
    ls__sim_object *stream;
} call;

static void connected(void *a, uint64_t unused)
{
    ls__sim_object *s = ((call *)a)->stream;
    (void)unused;
    if (s->refs == 0 || ls__sim_held_up(s->peer_host, s->host, connected, a, 0)) {
        return;
    }
    s->connecting = false;
    ls__sim_changed(s);
}

static void refused(void *a, uint64_t unused)
{
    ls__sim_object *s = ((call *)a)->stream;
    (void)unused;
    if (s->refs > 0 && !ls__sim_held_up(s->peer_host, s->host, refused, a, 0)) {
        s->connecting = false;
        ls__sim_fail_end(s, -ECONNREFUSED);
    }
}

static void knock(void *a, uint64_t unused)
{
    ls__sim_object *s = ((call *)a)->stream;
    (void)unused;
    if (s->refs == 0 || ls__sim_held_up(s->host, s->peer_host, knock, a, 0)) {
        return;
    }
    ls__sim_object *l = find_listener(NULL, s->peer_host, s->peer_port);
    const bool taken = l != NULL && enqueue(l, s);
    ls__sim_at(ls__sim->now_ns + ls__sim_flight_ns(), taken ? connected : refused, a, 0);
}

int ls__sim_env_tcp_connect(const ls__env *env LS__UNUSED, const char *address, int port,
                            const char *from)
{
    ls__sim_point();
    const int host = host_at(address);
    if (host < 0) {
        return -EHOSTUNREACH;
    }
    if (from != NULL && host_at(from) != ls__sim_current()->host) {
        return -EADDRNOTAVAIL;
    }
    const size_t limit = ls__sim->pace.socket_bytes;
    ls__sim_object *s = ls__sim_end_new(ls__sim_channel_new(limit), ls__sim_channel_new(limit));
    s->tcp = s->connecting = true;
    s->peer_host = host;
    s->peer_port = port;
    s->port = new_port(s->host);
    call *c = ls__sim_alloc(sizeof *c);
    c->stream = s;
    ls__sim_at(ls__sim->now_ns + ls__sim_flight_ns(), knock, c, 0);
    return ls__sim_fd_new(ls__sim_current(), s);
}

int ls__sim_env_tcp_connected(const ls__env *env LS__UNUSED, int fd)
{
    ls__sim_point();
    const ls__sim_object *s = ls__sim_fd(fd, LS__SIM_STREAM);
    return s == NULL ? -EBADF : s->connecting ? -EINPROGRESS : s->error;
}

int ls__sim_env_tcp_name(const ls__env *env LS__UNUSED, int fd, bool peer, char *address,
                         size_t bytes, int *port)
{
    ls__sim_point();
    const ls__sim_object *o = ls__sim_fd_any(ls__sim_current(), fd);
    if (o == NULL || (o->kind != LS__SIM_STREAM && o->kind != LS__SIM_LISTENER)) {
        return -EBADF;
    }
    snprintf(address, bytes, "%s", ls__sim->host[peer ? o->peer_host : o->host].address);
    if (port != NULL) {
        *port = o->port;
    }
    return 0;
}
