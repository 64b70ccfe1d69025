/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors, files and shared memory of the real env table. Every descriptor made here is
 * close-on-exec; a child inherits only those that its ls__env_spawn lists. */
#include "base/env_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"

#define POLL_ITEMS_MAX 2048 /* 16 KB of stack; 256 ranks need about 4 each */
#define NS_PER_SECOND 1000000000u

/* Moves a descriptor above 2, so that a program started with closed standard streams does not print
 * into our sockets. Returns -errno for one below 0. Closes the original when it makes a copy. */
int ls__posix_above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd < 0 ? -errno : fd;
    }
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int error = errno;
    (void)close(fd);
    return copy < 0 ? -error : copy;
}

/* On failure both descriptors are closed. */
int ls__posix_pair_above_standard(int pair[2])
{
    int first = ls__posix_above_standard(pair[0]);
    int second = ls__posix_above_standard(pair[1]);
    if (first < 0 || second < 0) {
        (void)close(first);
        (void)close(second);
        return first < 0 ? first : second;
    }
    pair[0] = first;
    pair[1] = second;
    return 0;
}

/* Hang-ups are always reported, wanted or not. */
static void items_to_polls(const ls__env_poll *items, int count, struct pollfd *polls)
{
    for (int i = 0; i < count; i++) {
        short events =
            (short)((items[i].want_read ? POLLIN : 0) | (items[i].want_write ? POLLOUT : 0));
        polls[i] = (struct pollfd){.fd = items[i].fd, .events = events};
    }
}

/* An error or an invalid descriptor counts as a hang-up: the next read or write reports it. */
static void polls_to_items(const struct pollfd *polls, int count, ls__env_poll *items)
{
    for (int i = 0; i < count; i++) {
        items[i].can_read = (polls[i].revents & POLLIN) != 0;
        items[i].can_write = (polls[i].revents & POLLOUT) != 0;
        items[i].hangup = (polls[i].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    }
}

/* Returns how many items are ready; 0 also after a signal, so that a caller that watches a flag of
 * its handler sees it. */
int ls__posix_poll(const ls__env *env, ls__env_poll *items, int count, uint64_t deadline_ns)
{
    struct pollfd polls[POLL_ITEMS_MAX];
    if (count < 0 || count > POLL_ITEMS_MAX) {
        return -EINVAL;
    }
    items_to_polls(items, count, polls);
    struct timespec left = {0};
    if (deadline_ns != LS__NEVER) {
        uint64_t now = env->now_ns(env);
        uint64_t ns = deadline_ns > now ? deadline_ns - now : 0;
        left.tv_sec = (time_t)(ns / NS_PER_SECOND);
        left.tv_nsec = (long)(ns % NS_PER_SECOND);
    }
    int ready = ppoll(polls, (nfds_t)count, deadline_ns == LS__NEVER ? NULL : &left, NULL);
    if (ready < 0 && errno != EINTR) {
        return -errno;
    }
    polls_to_items(polls, ready > 0 ? count : 0, items);
    for (int i = 0; ready <= 0 && i < count; i++) {
        items[i].can_read = items[i].can_write = items[i].hangup = false;
    }
    return ready > 0 ? ready : 0;
}

/* A signal does not end the read; fewer bytes than asked for may come. */
ssize_t ls__posix_read(const ls__env *env LS__UNUSED, int fd, void *out, size_t bytes)
{
    ssize_t got;
    do {
        got = read(fd, out, bytes);
    } while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

/* May write less than given. */
ssize_t ls__posix_write(const ls__env *env LS__UNUSED, int fd, const void *in, size_t bytes)
{
    ssize_t put;
    do {
        put = write(fd, in, bytes);
    } while (put < 0 && errno == EINTR);
    return put < 0 ? -errno : put;
}

/* Always close-on-exec. A pipe in the place of a file waits neither for its other end nor, where it
 * is read, for data; one that is written to, as the standard output may be, takes its time. */
int ls__posix_open(const ls__env *env LS__UNUSED, const char *path, int flags, int mode)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, (mode_t)mode);
    } while (fd < 0 && errno == EINTR);
    if (fd >= 0 && (flags & O_ACCMODE) != O_RDONLY && (flags & O_NONBLOCK) == 0) {
        (void)fcntl(fd, F_SETFL, flags & O_APPEND);
    }
    return ls__posix_above_standard(fd);
}

/* Never to be repeated, whatever it returns. */
int ls__posix_close(const ls__env *env LS__UNUSED, int fd)
{
    /* Linux has closed it even if a signal came; a second close could hit a newer descriptor. */
    return close(fd) != 0 && errno != EINTR ? -errno : 0;
}

/* After an error the file's contents on the disk are unknown; the caller must not try again. */
int ls__posix_fsync(const ls__env *env LS__UNUSED, int fd)
{
    int rc;
    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    return rc != 0 ? -errno : 0;
}

/* Atomic: readers see either the old file or the new one. */
int ls__posix_rename(const ls__env *env LS__UNUSED, const char *from, const char *to)
{
    return rename(from, to) != 0 ? -errno : 0;
}

/* The memory is sealed against shrinking, so that no peer can kill a process that maps it by
 * SIGBUS. */
int ls__posix_shm_create(const ls__env *env LS__UNUSED, const char *name, size_t bytes)
{
    int fd = ls__posix_above_standard(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0) {
        return fd;
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        int error = errno;
        (void)close(fd);
        return -error;
    }
    return fd;
}

/* Only grows: peers may have mapped the whole. */
int ls__posix_shm_resize(const ls__env *env LS__UNUSED, int fd, size_t bytes)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return -errno;
    }
    if ((size_t)info.st_size >= bytes) {
        return 0;
    }
    return ftruncate(fd, (off_t)bytes) != 0 ? -errno : 0;
}

/* Returns the size, or -EINVAL for a descriptor that is not one of ours: only a memfd made above
 * can have the seal against shrinking, and descriptors come from peers. */
int64_t ls__posix_shm_size(const ls__env *env LS__UNUSED, int fd)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd, &info) != 0) {
        return -EINVAL;
    }
    return info.st_size;
}

/* After this neither side can change size or contents; existing writable mappings make it fail. */
int ls__posix_shm_seal(const ls__env *env LS__UNUSED, int fd)
{
    int rc = fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    return rc != 0 ? -errno : 0;
}

/* Address space whose first address has this phase; MAP_FAILED with errno. The space around it goes
 * back at once. */
static void *reserve_at_phase(size_t bytes, size_t phase)
{
    const size_t all = bytes + 2 * LS__MAP_PHASES;
    unsigned char *space =
        mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) {
        return MAP_FAILED;
    }
    const size_t before = LS__MAP_PHASES - (uintptr_t)space % LS__MAP_PHASES + phase;
    (void)munmap(space, before);
    (void)munmap(space + before + bytes, all - before - bytes);
    return space + before;
}

/* Reserves address space for later growth. The mapping is not inherited by fork: a child must not
 * touch memory that peers read. */
int ls__posix_shm_map(const ls__env *env LS__UNUSED, int fd, size_t reserve, size_t phase,
                      void **out)
{
    void *at = phase == LS__MAP_ANYWHERE ? NULL : reserve_at_phase(reserve, phase);
    if (at == MAP_FAILED) {
        return -errno;
    }
    void *memory = mmap(at, reserve, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0), fd, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        if (at != NULL) {
            (void)munmap(at, reserve);
        }
        return -error;
    }
    if (madvise(memory, reserve, MADV_DONTFORK) != 0) {
        int error = errno;
        (void)munmap(memory, reserve);
        return -error;
    }
    *out = memory;
    return 0;
}

/* Pages that this process has mapped, from the first number of statm; 0: /proc is not there. */
static unsigned long long mapped_pages(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file != NULL) {
        pages = fscanf(file, "%llu", &pages) == 1 ? pages : 0;
        (void)fclose(file);
    }
    return pages;
}

/* What the limit of `ulimit -v` leaves. */
size_t ls__posix_address_space(const ls__env *env LS__UNUSED)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return SIZE_MAX;
    }
    const unsigned long long mapped = mapped_pages() * (unsigned long long)sysconf(_SC_PAGESIZE);
    return mapped < limit.rlim_cur ? (size_t)(limit.rlim_cur - mapped) : 0;
}

void ls__posix_shm_forget(const ls__env *env LS__UNUSED, void *memory, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory;
    const uintptr_t from = (at + page - 1) / page * page, to = (at + bytes) / page * page;
    if (from < to) {
        (void)madvise((void *)from, to - from, MADV_REMOVE);
    }
}

/* The whole reservation, also where the file has not grown into it. */
void ls__posix_shm_unmap(const ls__env *env LS__UNUSED, void *memory, size_t reserve)
{
    (void)munmap(memory, reserve);
}
