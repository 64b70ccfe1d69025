/* SPDX-License-Identifier: Apache-2.0 */
/* TCP streams, pollers and events: Linux. Every socket is non-blocking, closed on exec, without
 * Nagle's delay (frames are sent whole, with one call). */
#include "base/env_posix.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/compiler.h"

#define BACKLOG 1024 /* a rank's listener at the start: 255 others with four connections each */
#define SPANS_MAX 64

/* ---- addresses ---------------------------------------------------------------------------- */

typedef struct address {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } at;
    socklen_t bytes;
} address;

/* Reads a numeric address, with an interface behind '%' where IPv6 wants it. Names are not looked
 * up, so it never blocks. */
static int parse(const char *text, int port, address *out)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    if (port < 0 || port > 65535 || getaddrinfo(text, service, &hints, &found) != 0) {
        return -EINVAL;
    }
    memset(out, 0, sizeof *out);
    memcpy(&out->at, found->ai_addr, found->ai_addrlen);
    out->bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return 0;
}

/* The inverse of parse; `port` may be NULL. */
static int print(const struct sockaddr *from, socklen_t length, char *out, size_t bytes, int *port)
{
    char service[16] = "0";
    if (getnameinfo(from, length, out, (socklen_t)bytes, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        return -EINVAL;
    }
    if (port != NULL) {
        *port = 0;
        for (const char *c = service; *c >= '0' && *c <= '9'; c++) {
            *port = *port * 10 + (*c - '0');
        }
    }
    return 0;
}

/* May block for as long as the resolver takes. Returns how many addresses were written. "localhost"
 * is the loopback interface even where no file and no server says so, as in a bare container (RFC
 * 6761, section 6.3). */
int ls__posix_resolve(const ls__env *env LS__UNUSED, const char *name, char (*out)[LS__ADDRESS_MAX],
                      int room)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int rc = getaddrinfo(name, NULL, &hints, &found);
    if (rc != 0 && strcmp(name, "localhost") == 0 && room > 0) {
        snprintf(out[0], LS__ADDRESS_MAX, "127.0.0.1");
        return 1;
    }
    if (rc != 0) {
        return rc == EAI_AGAIN ? -EAGAIN : rc == EAI_MEMORY ? -ENOMEM : -ENOENT;
    }
    int count = 0;
    for (struct addrinfo *a = found; a != NULL && count < room; a = a->ai_next) {
        count += print(a->ai_addr, a->ai_addrlen, out[count], LS__ADDRESS_MAX, NULL) == 0;
    }
    freeaddrinfo(found);
    return count;
}

/* One entry for each address, so an interface may occur several times. */
int ls__posix_interfaces(const ls__env *env LS__UNUSED, ls__env_interface *out, int room)
{
    struct ifaddrs *all = NULL;
    int count = 0;
    if (getifaddrs(&all) != 0) {
        return -errno;
    }
    for (struct ifaddrs *i = all; i != NULL && count < room; i = i->ifa_next) {
        const int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family != AF_INET && family != AF_INET6) || (i->ifa_flags & IFF_UP) == 0) {
            continue;
        }
        const socklen_t bytes =
            family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        ls__env_interface *to = &out[count];
        snprintf(to->name, sizeof to->name, "%s", i->ifa_name);
        to->loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
        count += print(i->ifa_addr, bytes, to->address, sizeof to->address, NULL) == 0;
    }
    freeifaddrs(all);
    return count;
}

/* ---- streams ------------------------------------------------------------------------------ */

/* Frames are written whole, so waiting for more bytes would only delay them. */
static int set_options(int fd)
{
    const int on = 1;
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ? -errno : 0;
}

/* Of the address' family; not bound yet. */
static int open_socket(const address *to)
{
    return ls__posix_above_standard(
        socket(to->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* Returns `error`, which close might overwrite in errno. */
static int close_with(int fd, int error)
{
    (void)close(fd);
    return error;
}

/* Port 0 lets the kernel choose; ls__posix_tcp_name returns its choice. */
int ls__posix_tcp_listen(const ls__env *env LS__UNUSED, const char *text, int port)
{
    address at;
    const int on = 1;
    int error = parse(text, port, &at);
    int fd = error == 0 ? open_socket(&at) : error;
    if (fd < 0) {
        return fd;
    }
    /* It only ignores TIME_WAIT; a port on which a process listens stays refused. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &at.at.any, at.bytes) != 0 || listen(fd, BACKLOG) != 0) {
        return close_with(fd, -errno);
    }
    return fd;
}

/* The new stream has all options set; `text` receives the peer's address unless it is NULL. */
int ls__posix_tcp_accept(const ls__env *env LS__UNUSED, int fd, char *text, size_t bytes)
{
    address from = {.bytes = sizeof from.at};
    int got;
    do {
        got = accept4(fd, &from.at.any, &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (got < 0 && (errno == EINTR || errno == ECONNABORTED));
    got = ls__posix_above_standard(got);
    if (got < 0) {
        return got;
    }
    int error = set_options(got);
    if (text != NULL && error == 0) {
        error = print(&from.at.any, from.bytes, text, bytes, NULL);
    }
    return error == 0 ? got : close_with(got, error);
}

/* Starts to connect and returns at once; ls__posix_tcp_connected returns the outcome once the
 * stream is writable. */
int ls__posix_tcp_connect(const ls__env *env LS__UNUSED, const char *text, int port,
                          const char *from)
{
    address to, own;
    int error = parse(text, port, &to);
    error = error == 0 && from != NULL ? parse(from, 0, &own) : error;
    int fd = error == 0 ? open_socket(&to) : error;
    if (fd < 0) {
        return fd;
    }
    error = set_options(fd);
    if (error == 0 && from != NULL && bind(fd, &own.at.any, own.bytes) != 0) {
        error = -errno;
    }
    if (error == 0 && connect(fd, &to.at.any, to.bytes) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        error = -errno;
    }
    return error == 0 ? fd : close_with(fd, error);
}

/* 0 when connected, -EINPROGRESS while not, or the error. An error is reported once. */
int ls__posix_tcp_connected(const ls__env *env LS__UNUSED, int fd)
{
    address peer = {.bytes = sizeof peer.at};
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
        return -errno;
    }
    if (error != 0) {
        return -error;
    }
    if (getpeername(fd, &peer.at.any, &peer.bytes) == 0) {
        return 0;
    }
    return errno == ENOTCONN ? -EINPROGRESS : -errno;
}

int64_t ls__posix_tcp_unanswered_ms(const ls__env *env LS__UNUSED, int fd)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof info;
    int queued = 0; /* bytes that were not acknowledged, or could not be sent at all */
    if (ioctl(fd, SIOCOUTQ, &queued) != 0 || queued == 0 ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
        return 0;
    }
    return (int64_t)info.tcpi_last_ack_recv;
}

/* The numeric address and port of one end of a stream. */
int ls__posix_tcp_name(const ls__env *env LS__UNUSED, int fd, bool peer, char *text, size_t bytes,
                       int *port)
{
    address at = {.bytes = sizeof at.at};
    const int rc =
        peer ? getpeername(fd, &at.at.any, &at.bytes) : getsockname(fd, &at.at.any, &at.bytes);
    if (rc != 0) {
        return -errno;
    }
    return print(&at.at.any, at.bytes, text, bytes, port);
}

/* May send less than given, also because only SPANS_MAX pieces go at a time. */
ssize_t ls__posix_send_spans(const ls__env *env LS__UNUSED, int fd, const ls__env_span *spans,
                             int count)
{
    struct iovec pieces[SPANS_MAX];
    const int used = count < SPANS_MAX ? count : SPANS_MAX;
    for (int i = 0; i < used; i++) {
        pieces[i] =
            (struct iovec){.iov_base = (void *)(uintptr_t)spans[i].at, .iov_len = spans[i].bytes};
    }
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)used};
    ssize_t put;
    do {
        put = sendmsg(fd, &message, MSG_NOSIGNAL);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

/* Fills rooms in order; 0 means that the peer has closed its side. */
ssize_t ls__posix_recv_rooms(const ls__env *env LS__UNUSED, int fd, const ls__env_room *rooms,
                             int count)
{
    struct iovec pieces[SPANS_MAX];
    const int used = count < SPANS_MAX ? count : SPANS_MAX;
    for (int i = 0; i < used; i++) {
        pieces[i] = (struct iovec){.iov_base = rooms[i].at, .iov_len = rooms[i].bytes};
    }
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)used};
    ssize_t got;
    do {
        got = recvmsg(fd, &message, 0);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

/* ---- pollers and events ------------------------------------------------------------------- */

/* A poller can be polled itself, so one wait serves many streams and a few other descriptors. */
int ls__posix_poller_open(const ls__env *env LS__UNUSED)
{
    return ls__posix_above_standard(epoll_create1(EPOLL_CLOEXEC));
}

/* Edge-triggered: after an event the owner must read or write until -EAGAIN. */
int ls__posix_poller_add(const ls__env *env LS__UNUSED, int poller, int fd, uint64_t tag)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.u64 = tag};
    return epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0 ? -errno : 0;
}

/* Before the descriptor is closed: a copy of it would otherwise keep reporting. */
int ls__posix_poller_remove(const ls__env *env LS__UNUSED, int poller, int fd)
{
    struct epoll_event unused = {0};
    return epoll_ctl(poller, EPOLL_CTL_DEL, fd, &unused) != 0 ? -errno : 0;
}

/* Milliseconds until the deadline, rounded up so that a wait does not end early; -1 means no limit.
 * Long waits are cut; the caller looks at its deadline again. */
static int milliseconds_to(const ls__env *env, uint64_t deadline_ns)
{
    const uint64_t now = env->now_ns(env);
    if (deadline_ns == LS__NEVER) {
        return -1;
    }
    const uint64_t left = deadline_ns > now ? (deadline_ns - now + 999999) / 1000000 : 0;
    return left < 1000000 ? (int)left : 1000000;
}

/* Sleeps until something is ready or a deadline of less than a millisecond, which epoll_wait would
 * round up. */
static void wait_briefly(const ls__env *env, int poller, uint64_t deadline_ns)
{
    const uint64_t now = env->now_ns(env);
    if (deadline_ns > now && deadline_ns - now < 1000000) {
        struct pollfd watched = {.fd = poller, .events = POLLIN};
        const struct timespec left = {.tv_nsec = (long)(deadline_ns - now)};
        (void)ppoll(&watched, 1, &left, NULL);
    }
}

/* Returns 0 at the deadline, and also early after a signal. */
int ls__posix_poller_wait(const ls__env *env, int poller, ls__env_ready *out, int room,
                          uint64_t deadline_ns)
{
    struct epoll_event events[SPANS_MAX];
    const int most = room < SPANS_MAX ? room : SPANS_MAX;
    wait_briefly(env, poller, deadline_ns);
    int got = epoll_wait(poller, events, most, milliseconds_to(env, deadline_ns));
    if (got < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    for (int i = 0; i < got; i++) {
        const uint32_t e = events[i].events;
        out[i].tag = events[i].data.u64;
        out[i].what = ((e & EPOLLIN) != 0 ? LS__READY_READ : 0) |
                      ((e & EPOLLOUT) != 0 ? LS__READY_WRITE : 0) |
                      ((e & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0 ? LS__READY_HANGUP : 0);
    }
    return got;
}

/* A descriptor by which a thread or a signal handler wakes a poller. */
int ls__posix_event_open(const ls__env *env LS__UNUSED)
{
    return ls__posix_above_standard(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

/* Async-signal-safe, and never blocks in practice: the counter would have to overflow. */
void ls__posix_event_set(const ls__env *env LS__UNUSED, int fd)
{
    (void)eventfd_write(fd, 1);
}

/* Any number of events count as one. */
void ls__posix_event_clear(const ls__env *env LS__UNUSED, int fd)
{
    eventfd_t value;
    (void)eventfd_read(fd, &value);
}
