/* A listening port and its connections that have not proved the secret yet. See listener.h. */
#include "job/link/listener.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "job/link/internal.h"

/* How long somebody may stay though others wait for the place. Who has said nothing is the first to
 * go; who has greeted needs the time of an answer on a busy host; who has proved the secret needs
 * that of TLS. Those who wait are kept by the kernel, in the order they came. */
#define SILENT_NS 10000000u
#define GREETED_NS 25000000u
#define PROVEN_NS 1000000000u
#define READY_ROOM 64

_Static_assert(sizeof(ls__link) <= LS__LISTENER_BYTES, "the cost of an unauthenticated peer");

typedef struct pending {
    ls__link *link; /* NULL: free */
    uint64_t since_ns;
} pending;

struct ls__listener {
    const ls__env *env;
    ls__link_spec spec;
    uint8_t secret[LS__LINK_SECRET];
    int fd, poller, port;
    bool more;         /* somebody may wait to be accepted, of whom nothing will be said again */
    uint64_t again_ns; /* when to look */
    pending pending[LS__LISTENER_PENDING];
};

static ls_status listen_failed(const char *address, int port, int error)
{
    if (error == -EADDRINUSE) {
        return ls__fail(LS_ERR_SYSTEM,
                        "listening on %s port %d: another process has the port; choose another "
                        "one, or end that process (`ss -ltnp` names it)",
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

ls_status ls__listener_open(const ls__link_spec *spec, const char *address, int port,
                            ls__listener **out)
{
    const ls__env *env = spec->env;
    char own[LS__ADDRESS_MAX];
    LS_TRY(ls__link_available(spec->mode));
    ls__listener *listener = env->allocate(env, sizeof *listener);
    if (listener == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory to listen on %s", address);
    }
    memset(listener, 0, sizeof *listener);
    listener->env = env;
    listener->spec = *spec;
    memcpy(listener->secret, spec->secret, sizeof listener->secret);
    listener->spec.secret = listener->secret;
    listener->fd = env->tcp_listen(env, address, port);
    listener->poller = env->poller_open(env);
    int error = listener->fd < 0 ? listener->fd : listener->poller < 0 ? listener->poller : 0;
    error = error == 0 ? env->poller_add(env, listener->poller, listener->fd, 0) : error;
    error = error == 0 ? env->tcp_name(env, listener->fd, false, own, sizeof own, &listener->port)
                       : error;
    if (error != 0) {
        ls__listener_close(listener);
        return listen_failed(address, port, error);
    }
    *out = listener;
    return LS_OK;
}

int ls__listener_port(const ls__listener *listener)
{
    return listener->port;
}

int ls__listener_fd(const ls__listener *listener)
{
    return listener->poller;
}

uint64_t ls__listener_deadline(const ls__listener *listener)
{
    uint64_t first = listener->more ? listener->again_ns : LS__NEVER;
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        const pending *p = &listener->pending[i];
        const uint64_t end = ls__time_after(p->since_ns, LS__LISTENER_MS);
        first = p->link != NULL && end < first ? end : first;
    }
    return first;
}

static ls__link *let_go(ls__listener *listener, pending *p)
{
    ls__link *link = p->link;
    (void)listener->env->poller_remove(listener->env, listener->poller, ls__link_fd(link));
    p->link = NULL;
    return link;
}

static uint64_t end_of_grace(const pending *p)
{
    const ls__link_state state = p->link->state;
    return p->since_ns + (state == LS__LINK_HELLO     ? SILENT_NS
                          : state == LS__LINK_SEALING ? PROVEN_NS
                                                      : GREETED_NS);
}

/* A free place, or else the one whose grace ends first. */
static pending *place_for(ls__listener *listener)
{
    pending *best = &listener->pending[0];
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        pending *p = &listener->pending[i];
        if (p->link == NULL) {
            return p;
        }
        best = end_of_grace(p) < end_of_grace(best) ? p : best;
    }
    return best;
}

/* Out of descriptors, or the network is in trouble: unauthenticated peers lose theirs first. */
static void accept_failed(ls__listener *listener, pending *p, int error, uint64_t now)
{
    listener->more = error != -EAGAIN;
    listener->again_ns = now + SILENT_NS;
    if (listener->more) {
        for (int i = 0; i < LS__LISTENER_PENDING && p->link == NULL; i++) {
            p = listener->pending[i].link != NULL ? &listener->pending[i] : p;
        }
        if (p->link != NULL && p->link->state != LS__LINK_SEALING) {
            ls__link_close(let_go(listener, p));
        }
    }
}

/* Fills the places that are free or may be taken; returns whether anybody came. */
static bool accept_all(ls__listener *listener)
{
    const ls__env *env = listener->env;
    const uint64_t now = env->now_ns(env);
    for (bool came = false;; came = true) {
        pending *p = place_for(listener);
        if (p->link != NULL && end_of_grace(p) > now) {
            listener->more = true;
            listener->again_ns = end_of_grace(p);
            return came;
        }
        const int fd = env->tcp_accept(env, listener->fd, NULL, 0);
        if (fd < 0) {
            accept_failed(listener, p, fd, now);
            return came;
        }
        if (p->link != NULL) {
            ls__link_close(let_go(listener, p));
        }
        p->since_ns = now;
        if (ls__link_accept(&listener->spec, fd, &p->link) != LS_OK) {
            p->link = NULL;
        } else if (env->poller_add(env, listener->poller, fd, 0) != 0) {
            ls__link_close(p->link);
            p->link = NULL;
        }
    }
}

/* Moves all proofs on; the first that is complete, or NULL. */
static ls__link *drive_all(ls__listener *listener)
{
    const uint64_t now = listener->env->now_ns(listener->env);
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        pending *p = &listener->pending[i];
        const ls_status status = p->link != NULL ? ls__link_handshake(p->link) : LS_IN_PROGRESS;
        if (status == LS_OK) {
            return let_go(listener, p);
        }
        if (p->link != NULL &&
            (status < 0 || now >= ls__time_after(p->since_ns, LS__LISTENER_MS))) {
            ls__link_close(let_go(listener, p));
        }
    }
    return NULL;
}

ls__link *ls__listener_next(ls__listener *listener)
{
    const ls__env *env = listener->env;
    ls__env_ready ready[READY_ROOM];
    while (env->poller_wait(env, listener->poller, ready, READY_ROOM, 0) == READY_ROOM) {
        /* who it was does not matter: all are looked at */
    }
    ls__link *link = drive_all(listener); /* before anybody has to give way */
    while (link == NULL && accept_all(listener)) {
        link = drive_all(listener);
    }
    return link;
}

void ls__listener_close(ls__listener *listener)
{
    if (listener == NULL) {
        return;
    }
    const ls__env *env = listener->env;
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        if (listener->pending[i].link != NULL) {
            ls__link_close(let_go(listener, &listener->pending[i]));
        }
    }
    if (listener->fd >= 0) {
        env->close(env, listener->fd);
    }
    if (listener->poller >= 0) {
        env->close(env, listener->poller);
    }
    memset(listener->secret, 0, sizeof listener->secret);
    env->release(env, listener, sizeof *listener);
}
