/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's side of the local rendezvous: connect to the name, send a hello, wait for the reply.
 *
 * Local rank 0 may start later than the others, or its name may still belong to a former job, so
 * a rank tries until its deadline. agent_thread_gather.c is the other side. */
#include "job/bootstrap/local_rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "job/name_folder.h"

#define RETRY_MS 10  /* between two attempts to connect */
#define WARN_MS 5000 /* between two warnings that local rank 0 is missing */
/* Local rank 0, whose deadline is the same, needs a moment more to name the missing ranks. */
#define MORE_MS 3000

/* The same for all ranks of the job on this host, and different for every other job. A hash, since
 * the description of a job is longer than a socket's name may be. */
void ls__local_name(const ls__detected *detected, char *out, size_t bytes)
{
    snprintf(out, bytes, "%.16s-%016llx", detected->launcher,
             (unsigned long long)ls__hash_text(detected->job));
}

/* 0, or -errno. A hello fits every socket buffer, so a short write is an error. */
static int send_hello(const ls__env *env, const ls__detected *detected, int fd)
{
    ls__local_hello hello = {.magic = LS__LOCAL_MAGIC,
                             .rank = detected->rank,
                             .world_size = detected->size,
                             .local_rank = detected->local_rank,
                             .local_size = detected->local_size};
    snprintf(hello.version, sizeof hello.version, "%s", LS_VERSION);
    ssize_t put = env->send(env, fd, &hello, sizeof hello, -1);
    return put == (ssize_t)sizeof hello ? 0 : put < 0 ? (int)put : -EIO;
}

/* 0: *reply is complete, and *board_fd is open if the reply carries it. -errno: the other side
 * has gone without an answer, for instance an agent of a former job; the caller tries again. */
static int receive_reply(const ls__env *env, int fd, uint64_t deadline_ns, ls__local_reply *reply,
                         int *board_fd)
{
    size_t received = 0;
    *board_fd = -1;
    while (received < sizeof *reply) {
        ls__env_poll item = {.fd = fd, .want_read = true};
        int got_fd = -1;
        (void)env->poll(env, &item, 1, deadline_ns);
        ssize_t got =
            env->recv(env, fd, (uint8_t *)reply + received, sizeof *reply - received, &got_fd);
        *board_fd = got_fd >= 0 ? got_fd : *board_fd;
        received += got > 0 ? (size_t)got : 0;
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

/* The message lists the numbers that this process was given: they may be the mistake. */
static ls_status fail_no_agent(const ls__detected *detected)
{
    return ls__fail(LS_ERR_TIMEOUT,
                    "ls_init: %s, so this is rank %d of %d (%s), local rank %d of %d, but local "
                    "rank 0 of this host did not start its agent within the deadline; start all "
                    "ranks of the job, or set LOCKSTEP_LAUNCHER=none to run alone",
                    detected->why, detected->rank, detected->size, detected->launcher,
                    detected->local_rank, detected->local_size);
}

/* The variables may be left from another job, so a user need not wait for the deadline to see
 * them. */
static void warn_no_agent(const ls__detected *detected)
{
    LS__WARN("ls_init: %s, so this is local rank %d of %d (%s): waiting for local rank 0 of this "
             "host; LOCKSTEP_LAUNCHER=none runs alone",
             detected->why, detected->local_rank, detected->local_size, detected->launcher);
}

/* One attempt. LS_IN_PROGRESS: no agent listens there, or it has gone; any other failure is the
 * agent's refusal and final. The secret is erased from the stack. */
static ls_status try_once(const ls__env *env, const ls__detected *detected, const char *name,
                          uint64_t deadline_ns, ls__local_joined *out)
{
    ls__local_reply reply;
    pid_t pid = 0;
    int fd = env->host_connect(env, name);
    if (fd < 0) {
        return fd == -EPERM ? ls__name_folder_fail(env, "ls_init") : LS_IN_PROGRESS;
    }
    int error = !ls__name_peer_is_own(env, fd) ? -EACCES : send_hello(env, detected, fd);
    error = error < 0 ? error : receive_reply(env, fd, deadline_ns, &reply, &out->board_fd);
    if (error < 0 || reply.status < 0) {
        env->close(env, fd);
        return error < 0 ? LS_IN_PROGRESS : ls__fail((ls_status)reply.status, "%s", reply.text);
    }
    (void)env->peer_pid(env, fd, &pid);
    out->fd = fd;
    out->host_pid = (int)pid;
    memcpy(out->secret, reply.secret, sizeof out->secret);
    explicit_bzero(&reply, sizeof reply);
    return LS_OK;
}

/* Waits MORE_MS longer for a reply than for the agent, because the agent's reply at the deadline
 * says which ranks are missing. */
ls_status ls__local_join(const ls__env *env, const ls__detected *detected, uint64_t deadline_ns,
                         ls__local_joined *out)
{
    char name[LS__HOST_NAME_MAX];
    const uint64_t last = deadline_ns < LS__NEVER - MORE_MS * 1000000ull
                              ? deadline_ns + MORE_MS * 1000000ull
                              : LS__NEVER;
    uint64_t warn_ns = ls__deadline_after(env, WARN_MS);
    ls__local_name(detected, name, sizeof name);
    for (;;) {
        ls_status status = try_once(env, detected, name, last, out);
        if (status != LS_IN_PROGRESS) {
            return status;
        }
        if (env->now_ns(env) >= deadline_ns) {
            return fail_no_agent(detected);
        }
        if (env->now_ns(env) >= warn_ns) {
            warn_no_agent(detected);
            warn_ns = ls__deadline_after(env, WARN_MS);
        }
        env->sleep_until(env, ls__deadline_after(env, RETRY_MS));
    }
}
