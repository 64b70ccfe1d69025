/* SPDX-License-Identifier: Apache-2.0 */
/* Serving and fetching the secret of a job on one host. Node 0 listens by a name that contains the
 * port; the kernel tells each end the user of the other, and both ends check it. */
#include "job/nodes/secret.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "job/name_folder.h"

#define FETCH_MS 1000 /* for node 0 to answer; then the caller tries again */

/* The name of the socket for a port. */
static void name_of(int port, char *out, size_t bytes)
{
    snprintf(out, bytes, "port-%d", port);
}

/* The name is free only if no other job of this user has the port, which makes it a lock as
 * well. */
int ls__secret_exchange_open(const ls__env *env, int port)
{
    char name[LS__HOST_NAME_MAX];
    name_of(port, name, sizeof name);
    return env->host_listen(env, name);
}

void ls__secret_exchange_close(const ls__env *env, int fd, int port)
{
    char name[LS__HOST_NAME_MAX];
    name_of(port, name, sizeof name);
    env->host_unlisten(env, fd, name);
}

/* Connects only to ask the kernel for the process on the other end. */
void ls__secret_exchange_owner(const ls__env *env, int port, char *out, size_t bytes)
{
    char name[LS__HOST_NAME_MAX];
    pid_t pid = 0;
    name_of(port, name, sizeof name);
    int fd = env->host_connect(env, name);
    out[0] = '\0';
    if (fd >= 0 && env->peer_pid(env, fd, &pid) == 0) {
        snprintf(out, bytes, ", process %ld", (long)pid);
    }
    if (fd >= 0) {
        env->close(env, fd);
    }
}

/* A new stream takes 32 bytes without blocking, so the secret is sent at once and the stream
 * closed. */
void ls__secret_exchange_turn(const ls__env *env, int fd,
                              const uint8_t secret[LS__SECRET_EXCHANGE_BYTES])
{
    for (int peer = env->host_accept(env, fd); peer >= 0; peer = env->host_accept(env, fd)) {
        if (ls__name_peer_is_own(env, peer)) {
            (void)env->send(env, peer, secret, LS__SECRET_EXCHANGE_BYTES, -1);
        }
        env->close(env, peer);
    }
}

/* The failure of a fetch that a retry cannot cure. */
static ls_status not_given(int port, const char *why)
{
    return ls__fail(LS_ERR_AUTH,
                    "node 0 at port %d of this host gave no secret (%s): only processes of its own "
                    "user may join without one; give all nodes the same --secret-file",
                    port, why);
}

/* Blocks for at most FETCH_MS, as the launcher has nothing else to do yet. A partial secret is not
 * used: node 0 has ended within its answer. */
ls_status ls__secret_exchange_fetch(const ls__env *env, int port,
                                    uint8_t secret[LS__SECRET_EXCHANGE_BYTES])
{
    char name[LS__HOST_NAME_MAX];
    name_of(port, name, sizeof name);
    const int fd = env->host_connect(env, name);
    if (fd < 0) {
        return fd == -EPERM ? ls__name_folder_fail(env, "the job's secret") : LS_IN_PROGRESS;
    }
    ls__env_poll item = {.fd = fd, .want_read = true};
    size_t held = 0;
    ssize_t received = ls__name_peer_is_own(env, fd) ? -EAGAIN : -EACCES;
    const uint64_t deadline = ls__deadline_after(env, FETCH_MS);
    while ((received > 0 || received == -EAGAIN) && held < LS__SECRET_EXCHANGE_BYTES &&
           env->now_ns(env) < deadline) {
        (void)env->poll(env, &item, 1, deadline);
        received = env->recv(env, fd, secret + held, LS__SECRET_EXCHANGE_BYTES - held, NULL);
        held += received > 0 ? (size_t)received : 0;
    }
    env->close(env, fd);
    if (held == LS__SECRET_EXCHANGE_BYTES) {
        return LS_OK;
    }
    return received == -EACCES ? not_given(port, "it belongs to another user") : LS_IN_PROGRESS;
}
