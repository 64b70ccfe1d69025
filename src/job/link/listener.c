/* SPDX-License-Identifier: Apache-2.0 */
/* A listening port and the connections to it that have not proved the secret yet. See
 * listener.h.
 *
 *     kernel's queue ──accept──▶ pending[64] ──proof (and TLS)──▶ returned by ls__listener_next
 *                                   └──refused, timed out or replaced──▶ closed */
#include "job/link/listener.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "job/link/internal.h"

/* How long a connection keeps its place when others wait for one. A silent peer goes first; a peer
 * that has sent its hello needs the time of an answer on a busy host; a peer that has proved the
 * secret needs that of the TLS handshake. The kernel queues the others in the order of arrival. */
#define SILENT_NS 10000000u
#define GREETED_NS 25000000u
#define PROVEN_NS 1000000000u
#define READY_ROOM 64
#define TOLD_MAX 4 /* different refusals that are reported */

_Static_assert(sizeof(ls__link) <= LS__LISTENER_BYTES, "the cost of an unauthenticated peer");

/* A connection between accept and the end of its handshake. */
typedef struct pending {
    ls__link *link; /* NULL: free */
    uint64_t since_ns;
} pending;

struct ls__listener {
    const ls__env *env;
    ls__link_spec spec;
    uint8_t secret[LS__LINK_SECRET];
    int fd, poller, port;
    bool more; /* a connection may wait in the kernel's queue, of which no event will come */
    uint64_t again_ns; /* with `more`: when to accept again */
    int told;          /* warnings about peers that were refused */
    char refusal[256]; /* the last of them */
    pending pending[LS__LISTENER_PENDING];
};

/* What the user can do depends on the error: another port, another address, or neither. */
static ls_status listen_failed(const char *address, int port, int error)
{
    if (error == -EADDRINUSE) {
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot listen on %s port %d: another process uses the port; choose "
                        "another one, or end that process (`ss -ltnp` names it)",
                        address, port);
    }
    if (error == -EADDRNOTAVAIL) {
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot listen on %s port %d: no interface of this host has that address; "
                        "use an address of this host, or choose an interface by LOCKSTEP_IFNAME",
                        address, port);
    }
    return ls__fail(LS_ERR_SYSTEM, "cannot listen on %s port %d: %s", address, port,
                    strerror(-error));
}

/* Returns 0, or -errno with what was opened left to ls__listener_close. */
static int open_port(ls__listener *listener, const char *address, int port)
{
    const ls__env *env = listener->env;
    char own[LS__ADDRESS_MAX];
    listener->poller = -1;
    listener->fd = env->tcp_listen(env, address, port);
    if (listener->fd < 0) {
        return listener->fd;
    }
    listener->poller = env->poller_open(env);
    if (listener->poller < 0) {
        return listener->poller;
    }
    const int error = env->poller_add(env, listener->poller, listener->fd, 0);
    return error != 0 ? error
                      : env->tcp_name(env, listener->fd, false, own, sizeof own, &listener->port);
}

/* On failure everything is closed again. The spec is copied, the secret included. */
ls_status ls__listener_open(const ls__link_spec *spec, const char *address, int port,
                            ls__listener **out)
{
    const ls__env *env = spec->env;
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
    const int error = open_port(listener, address, port);
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

/* The earliest time at which a pending connection must be closed, or, with `more`, at which a
 * place becomes free. */
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

/* Takes a connection out of the table and out of the poller; the caller returns or closes it. */
static ls__link *detach(ls__listener *listener, pending *p)
{
    ls__link *link = p->link;
    LS_ASSERT(link != NULL);
    (void)listener->env->poller_remove(listener->env, listener->poller, ls__link_fd(link));
    p->link = NULL;
    return link;
}

/* Until when a connection keeps its place though others wait. A silent peer has the least time,
 * so a flood of silent connections cannot keep the ranks out. */
static uint64_t end_of_grace(const pending *p)
{
    const ls__link_state state = p->link->state;
    return p->since_ns + (state == LS__LINK_HELLO     ? SILENT_NS
                          : state == LS__LINK_SEALING ? PROVEN_NS
                                                      : GREETED_NS);
}

/* A free place, or else the place whose grace ends first. */
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

/* The process is out of descriptors, or the network has failed. In the first case closing an
 * unauthenticated connection helps: it frees a descriptor for an honest one. A peer that has
 * proved the secret keeps its own. Accepting is tried again a moment later. */
static void accept_failed(ls__listener *listener, pending *p, int error, uint64_t now)
{
    listener->more = error != -EAGAIN;
    listener->again_ns = now + SILENT_NS;
    if (listener->more) {
        for (int i = 0; i < LS__LISTENER_PENDING && p->link == NULL; i++) {
            p = listener->pending[i].link != NULL ? &listener->pending[i] : p;
        }
        if (p->link != NULL && p->link->state != LS__LINK_SEALING) {
            ls__link_close(detach(listener, p));
        }
    }
}

/* Accepts while places are free or may be taken. Returns whether a connection was accepted,
 * which means that drive_all may have work again. */
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
            ls__link_close(detach(listener, p));
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

/* The peer learns the reason or finds the connection closed; the user of this side would see
 * nothing and wait for a node that cannot join. Few warnings only: strangers may come by the
 * thousand. */
static void tell_refusal(ls__listener *listener)
{
    const char *why = ls_error_message();
    const char *reason = why + strcspn(why, " "); /* behind the address, whose port varies */
    if (listener->told < TOLD_MAX &&
        strncmp(reason, listener->refusal, sizeof listener->refusal - 1) != 0) {
        listener->told++;
        snprintf(listener->refusal, sizeof listener->refusal, "%s", reason);
        LS__WARN("port %d: a connection was refused: %s", listener->port, why);
    }
}

/* Advances every handshake, and closes those that failed or took too long. Returns the first
 * link whose proof is complete, or NULL; the next call continues with the rest. */
static ls__link *drive_all(ls__listener *listener)
{
    const uint64_t now = listener->env->now_ns(listener->env);
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        pending *p = &listener->pending[i];
        const ls_status status = p->link != NULL ? ls__link_handshake(p->link) : LS_IN_PROGRESS;
        if (status == LS_OK) {
            return detach(listener, p);
        }
        if (p->link != NULL &&
            (status < 0 || now >= ls__time_after(p->since_ns, LS__LISTENER_MS))) {
            if (status == LS_ERR_AUTH) {
                tell_refusal(listener);
            }
            ls__link_close(detach(listener, p));
        }
    }
    return NULL;
}

/* The poller is only emptied: there are few places, so all are examined, whichever are ready.
 * Handshakes are advanced before new connections are accepted, because a connection that can
 * complete must not lose its place to a newer one. */
ls__link *ls__listener_next(ls__listener *listener)
{
    const ls__env *env = listener->env;
    ls__env_ready ready[READY_ROOM];
    while (env->poller_wait(env, listener->poller, ready, READY_ROOM, 0) == READY_ROOM) {
        continue;
    }
    ls__link *link = drive_all(listener);
    while (link == NULL && accept_all(listener)) {
        link = drive_all(listener);
    }
    return link;
}

/* Closes the pending connections too; links that were returned belong to the caller. */
void ls__listener_close(ls__listener *listener)
{
    if (listener == NULL) {
        return;
    }
    const ls__env *env = listener->env;
    for (int i = 0; i < LS__LISTENER_PENDING; i++) {
        if (listener->pending[i].link != NULL) {
            ls__link_close(detach(listener, &listener->pending[i]));
        }
    }
    if (listener->fd >= 0) {
        env->close(env, listener->fd);
    }
    if (listener->poller >= 0) {
        env->close(env, listener->poller);
    }
    explicit_bzero(listener->secret, sizeof listener->secret);
    env->release(env, listener, sizeof *listener);
}
