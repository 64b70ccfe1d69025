/* A listening port and those who have not proven themselves yet. See door.h. */
#include "comm/link/door.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "comm/link/inside.h"

#define ACCEPT_MAX 256 /* connections taken from the queue a call */
#define READY_ROOM 64

_Static_assert(sizeof(ls__link) <= LS__DOOR_BYTES, "what a stranger may cost");

typedef struct pending {
    ls__link *link; /* NULL: free */
    uint64_t deadline_ns;
} pending;

struct ls__door {
    const ls__env *env;
    ls__link_spec spec;
    uint8_t secret[LS__LINK_SECRET];
    int fd, poller, port;
    bool more; /* somebody may still wait to be accepted, of whom nothing will be said again */
    pending pending[LS__DOOR_PENDING];
};

static ls_status listen_failed(const char *address, int port, int error)
{
    if (error == -EADDRINUSE) {
        return ls__fail(LS_ERR_SYSTEM,
                        "listening on %s port %d: the port is in use; choose another, or end who "
                        "has it (`ss -ltnp` names the process)",
                        address, port);
    }
    if (error == -EADDRNOTAVAIL) {
        return ls__fail(LS_ERR_SYSTEM,
                        "listening on %s port %d: no interface of this host has that address; give "
                        "one that it has, or choose an interface by LOCKSTEP_IFNAME",
                        address, port);
    }
    return ls__fail(LS_ERR_SYSTEM, "listening on %s port %d: %s", address, port, strerror(-error));
}

ls_status ls__door_open(const ls__link_spec *spec, const char *address, int port, ls__door **out)
{
    const ls__env *env = spec->env;
    char own[LS__ADDRESS_MAX];
    ls__door *door = env->allocate(env, sizeof *door);
    if (door == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory to listen on %s", address);
    }
    memset(door, 0, sizeof *door);
    door->env = env;
    door->spec = *spec;
    memcpy(door->secret, spec->secret, sizeof door->secret);
    door->spec.secret = door->secret;
    door->fd = env->tcp_listen(env, address, port);
    door->poller = env->poller_open(env);
    int error = door->fd < 0 ? door->fd : door->poller < 0 ? door->poller : 0;
    error = error == 0 ? env->poller_add(env, door->poller, door->fd, 0) : error;
    error = error == 0 ? env->tcp_name(env, door->fd, false, own, sizeof own, &door->port) : error;
    if (error != 0) {
        ls__door_close(door);
        return listen_failed(address, port, error);
    }
    *out = door;
    return LS_OK;
}

int ls__door_port(const ls__door *door)
{
    return door->port;
}

int ls__door_fd(const ls__door *door)
{
    return door->poller;
}

uint64_t ls__door_deadline(const ls__door *door)
{
    uint64_t first = door->more ? 0 : LS__NEVER;
    for (int i = 0; i < LS__DOOR_PENDING; i++) {
        const pending *p = &door->pending[i];
        first = p->link != NULL && p->deadline_ns < first ? p->deadline_ns : first;
    }
    return first;
}

static ls__link *let_go(ls__door *door, pending *p)
{
    ls__link *link = p->link;
    (void)door->env->poller_remove(door->env, door->poller, ls__link_fd(link));
    p->link = NULL;
    return link;
}

/* A free place; where there is none, the one whose time is up first gives way. */
static pending *place_for(ls__door *door)
{
    pending *oldest = &door->pending[0];
    for (int i = 0; i < LS__DOOR_PENDING; i++) {
        pending *p = &door->pending[i];
        if (p->link == NULL) {
            return p;
        }
        oldest = p->deadline_ns < oldest->deadline_ns ? p : oldest;
    }
    ls__link_close(let_go(door, oldest));
    return oldest;
}

static void accept_all(ls__door *door)
{
    const ls__env *env = door->env;
    for (int i = 0; i < ACCEPT_MAX; i++) {
        const int fd = env->tcp_accept(env, door->fd, NULL, 0);
        if (fd < 0) {
            door->more = false;
            return;
        }
        pending *p = place_for(door);
        if (ls__link_accept(&door->spec, fd, &p->link) != LS_OK) {
            p->link = NULL;
            continue;
        }
        p->deadline_ns = ls__deadline_after(env, LS__DOOR_MS);
        if (env->poller_add(env, door->poller, fd, 0) != 0) {
            ls__link_close(p->link);
            p->link = NULL;
        }
    }
    door->more = true;
}

ls__link *ls__door_next(ls__door *door)
{
    const ls__env *env = door->env;
    ls__env_ready ready[READY_ROOM];
    while (env->poller_wait(env, door->poller, ready, READY_ROOM, 0) == READY_ROOM) {
        /* who it was does not matter: all are looked at */
    }
    accept_all(door);
    const uint64_t now = env->now_ns(env);
    for (int i = 0; i < LS__DOOR_PENDING; i++) {
        pending *p = &door->pending[i];
        const ls_status status = p->link != NULL ? ls__link_handshake(p->link) : LS_IN_PROGRESS;
        if (status == LS_OK) {
            return let_go(door, p);
        }
        if (p->link != NULL && (status < 0 || now >= p->deadline_ns)) {
            ls__link_close(let_go(door, p));
        }
    }
    return NULL;
}

void ls__door_close(ls__door *door)
{
    if (door == NULL) {
        return;
    }
    const ls__env *env = door->env;
    for (int i = 0; i < LS__DOOR_PENDING; i++) {
        if (door->pending[i].link != NULL) {
            ls__link_close(let_go(door, &door->pending[i]));
        }
    }
    if (door->fd >= 0) {
        env->close(env, door->fd);
    }
    if (door->poller >= 0) {
        env->close(env, door->poller);
    }
    memset(door->secret, 0, sizeof door->secret);
    env->release(env, door, sizeof *door);
}
