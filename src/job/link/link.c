/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a link, and its bytes once it is open. See link.h; the states are in internal.h.
 *
 * An operation on an open link goes to TLS if link->tls exists, else straight to the env table. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "job/link/internal.h"

/* The name of the peer for messages. An IPv6 address is put in brackets before the port. */
static void put_name(ls__link *link, const char *address, int port)
{
    const bool v6 = strchr(address, ':') != NULL;
    snprintf(link->peer, sizeof link->peer, v6 ? "[%s]:%d" : "%s:%d", address, port);
}

/* Does not take the descriptor if it fails: the caller still closes it then. */
static ls__link *link_new(const ls__link_spec *spec, int fd, bool client)
{
    ls__link *link = spec->env->allocate(spec->env, sizeof *link);
    if (link != NULL) {
        memset(link, 0, sizeof *link);
        link->spec = *spec;
        link->env = spec->env;
        memcpy(link->secret, spec->secret, sizeof link->secret);
        link->spec.secret = link->secret;
        link->fd = fd;
        link->client = client;
        link->state = client ? LS__LINK_CONNECTING : LS__LINK_HELLO;
    }
    return link;
}

/* Asked before anything is opened, so that the message names the remedy and not a failed link. */
ls_status ls__link_available(ls__link_mode mode)
{
    return mode == LS__LINK_TLS ? ls__tls_available() : LS_OK;
}

/* Returns before the connection stands: ls__link_handshake completes it. `spec->purpose` is kept
 * as a pointer, the secret as a copy that ls__link_close erases. */
ls_status ls__link_connect(const ls__link_spec *spec, const char *address, int port,
                           const char *from, ls__link **out)
{
    LS_TRY(ls__link_available(spec->mode));
    const int fd = spec->env->tcp_connect(spec->env, address, port, from);
    if (fd < 0) {
        return ls__fail(LS_ERR_PEER, "cannot connect to %s port %d: %s", address, port,
                        strerror(-fd));
    }
    ls__link *link = link_new(spec, fd, true);
    if (link == NULL) {
        spec->env->close(spec->env, fd);
        return ls__fail(LS_ERR_MEMORY, "no memory for a connection to %s", address);
    }
    put_name(link, address, port);
    *out = link;
    return LS_OK;
}

/* The descriptor is closed on every failure, so a caller never has to. */
ls_status ls__link_accept(const ls__link_spec *spec, int fd, ls__link **out)
{
    char address[LS__ADDRESS_MAX] = "unknown";
    int port = 0;
    ls_status status = ls__link_available(spec->mode);
    if (status != LS_OK) {
        spec->env->close(spec->env, fd);
        return status;
    }
    ls__link *link = link_new(spec, fd, false);
    if (link == NULL) {
        spec->env->close(spec->env, fd);
        return ls__fail(LS_ERR_MEMORY, "no memory for a connection");
    }
    (void)spec->env->tcp_name(spec->env, fd, true, address, sizeof address, &port);
    put_name(link, address, port);
    status = ls__proof_begin(link);
    if (status != LS_OK) {
        ls__link_close(link);
        return status;
    }
    *out = link;
    return LS_OK;
}

/* As many states as the bytes that have arrived allow. TLS gets its memory only after the peer
 * has proved the secret. */
static ls_status advance(ls__link *link)
{
    if (link->state == LS__LINK_CONNECTING) {
        const int error = link->env->tcp_connected(link->env, link->fd);
        if (error == -EINPROGRESS) {
            return LS_IN_PROGRESS;
        }
        if (error != 0) {
            return ls__fail(LS_ERR_PEER, "cannot connect to %s: %s", link->peer, strerror(-error));
        }
        LS_TRY(ls__proof_begin(link));
        LS_ASSERT(link->state == LS__LINK_HELLO);
    }
    if (link->state != LS__LINK_SEALING) {
        const ls_status status = ls__proof_advance(link);
        if (status != LS_OK || link->spec.mode == LS__LINK_PLAIN) {
            return status;
        }
        LS_ASSERT(link->state == LS__LINK_LAST && link->tls == NULL);
        LS_TRY(ls__tls_begin(link));
        link->state = LS__LINK_SEALING;
    }
    return ls__tls_handshake(link);
}

/* A failed handshake is final: the two ends can no longer agree on what has been read, so the
 * link stays LS__LINK_FAILED. */
ls_status ls__link_handshake(ls__link *link)
{
    if (link->state == LS__LINK_OPEN) {
        return LS_OK;
    }
    if (link->state == LS__LINK_FAILED) {
        return ls__fail(LS_ERR_STATE, "the connection with %s has failed before", link->peer);
    }
    LS_ASSERT(link->state < LS__LINK_OPEN);
    const ls_status status = advance(link);
    if (status != LS_IN_PROGRESS) {
        link->state = status == LS_OK ? LS__LINK_OPEN : LS__LINK_FAILED;
    }
    return status;
}

int ls__link_fd(const ls__link *link)
{
    return link->fd;
}

/* While connecting, "can be written" means that the connection stands or has failed. */
bool ls__link_wants_write(const ls__link *link)
{
    return link->state == LS__LINK_CONNECTING || link->put < link->queued ||
           (link->tls != NULL && ls__tls_holds(link->tls));
}

ssize_t ls__link_read(ls__link *link, void *out, size_t bytes)
{
    LS_ASSERT(link->state == LS__LINK_OPEN);
    return link->tls != NULL ? ls__tls_read(link->tls, out, bytes)
                             : link->env->recv(link->env, link->fd, out, bytes, NULL);
}

/* Fills the rooms in order until nothing more has arrived. An end or an error that follows the
 * first bytes is reported by the next call. */
static ssize_t tls_read_rooms(ls__tls *tls, const ls__env_room *rooms, int count)
{
    ssize_t all = 0;
    for (int i = 0; i < count; i++) {
        for (size_t have = 0; have < rooms[i].bytes;) {
            const ssize_t got =
                ls__tls_read(tls, (unsigned char *)rooms[i].at + have, rooms[i].bytes - have);
            if (got <= 0) {
                return all > 0 ? all : got;
            }
            have += (size_t)got;
            all += got;
        }
    }
    return all;
}

ssize_t ls__link_read_rooms(ls__link *link, const ls__env_room *rooms, int count)
{
    LS_ASSERT(link->state == LS__LINK_OPEN);
    return link->tls != NULL ? tls_read_rooms(link->tls, rooms, count)
                             : link->env->recv_rooms(link->env, link->fd, rooms, count);
}

/* With TLS a byte counts as taken once it is encrypted; ls__link_flush sends it. */
ssize_t ls__link_send(ls__link *link, const ls__env_span *spans, int count)
{
    LS_ASSERT(link->state == LS__LINK_OPEN);
    return link->tls != NULL ? ls__tls_send(link->tls, spans, count)
                             : link->env->send_spans(link->env, link->fd, spans, count);
}

int ls__link_flush(ls__link *link)
{
    return link->tls != NULL ? ls__tls_flush(link->tls) : 0;
}

const char *ls__link_peer(const ls__link *link)
{
    return link->peer;
}

const char *ls__link_protection(const ls__link *link)
{
    return link->tls != NULL ? ls__tls_protection(link->tls)
                             : "plain: the secret is proven, data is not encrypted";
}

/* Erases the copy of the secret before the memory may be reused. */
void ls__link_close(ls__link *link)
{
    if (link != NULL) {
        const ls__env *env = link->env;
        ls__tls_end(link->tls);
        env->close(env, link->fd);
        explicit_bzero(link->secret, sizeof link->secret);
        env->release(env, link, sizeof *link);
    }
}
