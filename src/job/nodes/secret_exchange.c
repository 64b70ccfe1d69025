/* Handing out and fetching. */
#include "job/nodes/secret_exchange.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "job/name_folder.h"

#define FETCH_MS 1000

static void name_of(int port, char *out, size_t bytes)
{
    snprintf(out, bytes, "port-%d", port);
}

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

void ls__secret_exchange_turn(const ls__env *env, int fd,
                              const uint8_t secret[LS__SECRET_EXCHANGE_BYTES])
{
    for (int got = env->host_accept(env, fd); got >= 0; got = env->host_accept(env, fd)) {
        uid_t uid;
        if (env->peer_uid(env, got, &uid) == 0 && uid == env->uid(env)) {
            (void)env->send(env, got, secret, LS__SECRET_EXCHANGE_BYTES, -1);
        }
        env->close(env, got);
    }
}

static ls_status not_given(int port, const char *why)
{
    return ls__fail(LS_ERR_AUTH,
                    "node 0 at port %d of this host gave no secret (%s): only processes of its own "
                    "user may join without one; give all nodes the same --secret-file",
                    port, why);
}

ls_status ls__secret_exchange_fetch(const ls__env *env, int port,
                                    uint8_t secret[LS__SECRET_EXCHANGE_BYTES])
{
    char name[LS__HOST_NAME_MAX];
    uid_t uid;
    name_of(port, name, sizeof name);
    int fd = env->host_connect(env, name);
    if (fd < 0) {
        return fd == -EPERM ? ls__name_folder_fail(env, "the job's secret") : LS_IN_PROGRESS;
    }
    ls__env_poll item = {.fd = fd, .want_read = true};
    size_t held = 0;
    ssize_t got = env->peer_uid(env, fd, &uid) == 0 && uid == env->uid(env) ? -EAGAIN : -EACCES;
    uint64_t deadline = ls__deadline_after(env, FETCH_MS);
    while ((got > 0 || got == -EAGAIN) && held < LS__SECRET_EXCHANGE_BYTES &&
           env->now_ns(env) < deadline) {
        (void)env->poll(env, &item, 1, deadline);
        got = env->recv(env, fd, secret + held, LS__SECRET_EXCHANGE_BYTES - held, NULL);
        held += got > 0 ? (size_t)got : 0;
    }
    env->close(env, fd);
    if (held == LS__SECRET_EXCHANGE_BYTES) {
        return LS_OK;
    }
    return got == -EACCES ? not_given(port, "it belongs to another user") : LS_IN_PROGRESS;
}
