/* SPDX-License-Identifier: Apache-2.0 */
/* Connections between processes of one host: streams of AF_UNIX, over which descriptors can be
 * passed and whose peer the kernel names. */
#include "base/env_posix.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/compiler.h"

/* Both ends are non-blocking and close-on-exec. */
int ls__posix_socket_pair(const ls__env *env LS__UNUSED, int out[2])
{
    int rc = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, out);
    return rc != 0 ? -errno : ls__posix_pair_above_standard(out);
}

/* Room for one descriptor; aligned as the kernel's header wants it. */
typedef union passed {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
} passed;

/* Sends a descriptor along when pass_fd >= 0; it travels with the first byte, so a short write has
 * sent it. */
ssize_t ls__posix_send(const ls__env *env LS__UNUSED, int fd, const void *in, size_t bytes,
                       int pass_fd)
{
    passed control = {0};
    struct iovec data = {.iov_base = (void *)(uintptr_t)in, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    if (pass_fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &pass_fd, sizeof pass_fd);
    }
    ssize_t put;
    do {
        put = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

/* Returns the descriptor that came with a message, or a value below 0. More than one cannot come:
 * there is no room, and the kernel closes what does not fit. */
static int take_descriptor(struct msghdr *message)
{
    for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h != NULL; h = CMSG_NXTHDR(message, h)) {
        if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS &&
            h->cmsg_len == CMSG_LEN(sizeof(int))) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(h), sizeof fd);
            return ls__posix_above_standard(fd);
        }
    }
    return -1;
}

/* A descriptor that the caller did not ask for is closed, so that a peer cannot fill our table. */
ssize_t ls__posix_recv(const ls__env *env LS__UNUSED, int fd, void *out, size_t bytes, int *got_fd)
{
    passed control = {0};
    struct iovec data = {.iov_base = out, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.bytes};
    if (got_fd != NULL) {
        *got_fd = -1;
    }
    ssize_t got;
    do {
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return -errno;
    }
    int came = take_descriptor(&message);
    if (got_fd != NULL) {
        *got_fd = came;
    } else if (came >= 0) {
        (void)close(came);
    }
    return got;
}

/* Credentials of the process that connected, recorded by the kernel at that moment. */
static int peer_of(int fd, struct ucred *out)
{
    socklen_t length = sizeof *out;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &length) != 0 ? -errno : 0;
}

/* The user to whom the peer's process belonged when it connected. */
int ls__posix_peer_uid(const ls__env *env LS__UNUSED, int fd, uid_t *uid)
{
    struct ucred credentials;
    int error = peer_of(fd, &credentials);
    if (error == 0) {
        *uid = credentials.uid;
    }
    return error;
}

/* Its process, which may have ended since. */
int ls__posix_peer_pid(const ls__env *env LS__UNUSED, int fd, pid_t *pid)
{
    struct ucred credentials;
    int error = peer_of(fd, &credentials);
    if (error == 0) {
        *pid = credentials.pid;
    }
    return error;
}
