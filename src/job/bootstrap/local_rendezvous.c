/* A rank's side of the local rendezvous. */
#include "job/bootstrap/local_rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
#include "job/name_folder.h"

#define RETRY_MS 10
#define MORE_MS 3000 /* for local rank 0, whose deadline is the same, to say what was missing */

/* FNV-1a: names are short, jobs' descriptions are not. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *text != '\0'; text++) {
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    }
    return hash;
}

void ls__local_name(const ls__found *found, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.16s-%016llx", found->launcher, (unsigned long long)hash_of(found->job));
}

static bool of_this_user(const ls__env *env, int fd)
{
    uid_t uid;
    return env->peer_uid(env, fd, &uid) == 0 && uid == env->uid(env);
}

static int say_hello(const ls__env *env, const ls__found *found, int fd)
{
    ls__local_hello hello = {.magic = LS__LOCAL_MAGIC,
                             .rank = found->rank,
                             .world_size = found->size,
                             .local_rank = found->local_rank,
                             .local_size = found->local_size};
    snprintf(hello.version, sizeof hello.version, "%s", LS_VERSION);
    ssize_t put = env->send(env, fd, &hello, sizeof hello, -1);
    return put == (ssize_t)sizeof hello ? 0 : put < 0 ? (int)put : -EIO;
}

/* -errno: the other side has gone, which is no answer; 0: *reply is whole. */
static int hear(const ls__env *env, int fd, uint64_t deadline_ns, ls__local_reply *reply,
                int *board_fd)
{
    size_t held = 0;
    *board_fd = -1;
    while (held < sizeof *reply) {
        ls__env_poll item = {.fd = fd, .want_read = true};
        int got_fd = -1;
        (void)env->poll(env, &item, 1, deadline_ns);
        ssize_t got = env->recv(env, fd, (uint8_t *)reply + held, sizeof *reply - held, &got_fd);
        *board_fd = got_fd >= 0 ? got_fd : *board_fd;
        held += got > 0 ? (size_t)got : 0;
        if (got == 0 || (got < 0 && got != -EAGAIN)) {
            return got == 0 ? -ECONNRESET : (int)got;
        }
        if (got < 0 && env->now_ns(env) >= deadline_ns) {
            return -ETIMEDOUT;
        }
    }
    reply->text[LS__LOCAL_TEXT - 1] = '\0';
    return reply->magic == LS__LOCAL_MAGIC ? 0 : -EPROTO;
}

static ls_status nobody(const ls__found *found, const char *why)
{
    return ls__fail(LS_ERR_TIMEOUT,
                    "ls_init: %s, so this is rank %d of %d (%s), local rank %d of %d: local rank 0 "
                    "of this host "
                    "%s. Start all ranks of the job, or set LOCKSTEP_LAUNCHER=none to run alone",
                    found->why, found->rank, found->size, found->launcher, found->local_rank,
                    found->local_size, why);
}

/* One try. LS_IN_PROGRESS: nobody is there, or has gone again. */
static ls_status try_once(const ls__env *env, const ls__found *found, const char *name,
                          uint64_t deadline_ns, ls__local_joined *out)
{
    ls__local_reply reply;
    pid_t pid = 0;
    int fd = env->host_connect(env, name);
    if (fd < 0) {
        return fd == -EPERM ? ls__name_folder_fail(env, "ls_init") : LS_IN_PROGRESS;
    }
    int error = !of_this_user(env, fd) ? -EACCES : say_hello(env, found, fd);
    error = error < 0 ? error : hear(env, fd, deadline_ns, &reply, &out->board_fd);
    if (error < 0 || reply.status < 0) {
        env->close(env, fd);
        return error < 0 ? LS_IN_PROGRESS : ls__fail((ls_status)reply.status, "%s", reply.text);
    }
    (void)env->peer_pid(env, fd, &pid);
    out->fd = fd;
    out->host_pid = (int)pid;
    memcpy(out->secret, reply.secret, sizeof out->secret);
    memset(&reply, 0, sizeof reply);
    return LS_OK;
}

ls_status ls__local_join(const ls__env *env, const ls__found *found, uint64_t deadline_ns,
                         ls__local_joined *out)
{
    char name[LS__HOST_NAME_MAX];
    const uint64_t last = deadline_ns < LS__NEVER - MORE_MS * 1000000ull
                              ? deadline_ns + MORE_MS * 1000000ull
                              : LS__NEVER;
    ls__local_name(found, name, sizeof name);
    for (;;) {
        ls_status status = try_once(env, found, name, last, out);
        if (status != LS_IN_PROGRESS) {
            return status;
        }
        if (env->now_ns(env) >= deadline_ns) {
            return nobody(found, "did not come within the deadline");
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    }
}
