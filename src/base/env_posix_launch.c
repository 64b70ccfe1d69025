/* SPDX-License-Identifier: Apache-2.0 */
/* System calls that only the launcher needs: signals as a descriptor, orphans, and the host's name,
 * ports and limits. */
#include "base/env_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/hash.h"

/* Only the reading end is non-blocking: a child's standard output must behave as usual. */
int ls__posix_pipe(const ls__env *env LS__UNUSED, int out[2])
{
    if (pipe2(out, O_CLOEXEC) != 0) {
        return -errno;
    }
    int moved = ls__posix_pair_above_standard(out);
    if (moved < 0) {
        return moved;
    }
    if (fcntl(out[0], F_SETFL, O_NONBLOCK) != 0) {
        int error = errno;
        (void)close(out[0]);
        (void)close(out[1]);
        return -error;
    }
    return 0;
}

/* ---- signals: the mask travels as one bit a signal ------------------------------------------ */

/* Bit 0 is signal 1; env.h thus needs no sigset_t. */
static uint64_t mask_to_bits(const sigset_t *mask)
{
    uint64_t bits = 0;
    for (int number = 1; number <= 64; number++) {
        bits |= sigismember(mask, number) == 1 ? (uint64_t)1 << (number - 1) : 0;
    }
    return bits;
}

static sigset_t bits_to_mask(uint64_t bits)
{
    sigset_t mask;
    sigemptyset(&mask);
    for (int number = 1; number <= 64; number++) {
        if ((bits >> (number - 1) & 1) != 0) {
            (void)sigaddset(&mask, number);
        }
    }
    return mask;
}

/* The descriptor exists before the signals are blocked, so a failure leaves the mask as it was.
 * `saved` is for ls__posix_signals_close. */
int ls__posix_signals_open(const ls__env *env LS__UNUSED, const int *signals, int count,
                           uint64_t *saved)
{
    sigset_t wanted, before;
    sigemptyset(&wanted);
    for (int i = 0; i < count; i++) {
        (void)sigaddset(&wanted, signals[i]);
    }
    int fd = ls__posix_above_standard(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
    if (fd < 0) {
        return fd;
    }
    (void)pthread_sigmask(SIG_BLOCK, &wanted, &before);
    *saved = mask_to_bits(&before);
    return fd;
}

/* Restores the mask first seen by signals_open; a signal that is pending then takes its effect. */
void ls__posix_signals_close(const ls__env *env LS__UNUSED, int fd, uint64_t saved)
{
    sigset_t before = bits_to_mask(saved);
    (void)close(fd);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* -EAGAIN when no signal is waiting. */
int ls__posix_signal_next(const ls__env *env LS__UNUSED, int fd)
{
    struct signalfd_siginfo info;
    ssize_t got = read(fd, &info, sizeof info);
    return got == (ssize_t)sizeof info ? (int)info.ssi_signo : -EAGAIN;
}

/* ---- relatives ------------------------------------------------------------------------------ */

/* The parent is checked after the open: while it is still ours, no other process can have its
 * number. */
int ls__posix_watch_parent(const ls__env *env LS__UNUSED, pid_t parent)
{
    int fd = ls__posix_above_standard((int)syscall(SYS_pidfd_open, parent, 0));
    if (fd >= 0 && getppid() != parent) {
        (void)close(fd);
        return -ESRCH;
    }
    return fd;
}

/* Grandchildren whose parent ends become children of this process, so that none escapes the job.
 * Linux has done so since 3.4; EINVAL comes from an emulator that does not pass it on (qemu-user
 * 7), whose jobs shall run nevertheless. */
int ls__posix_adopt_orphans(const ls__env *env LS__UNUSED)
{
    return prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 && errno != EINVAL ? -errno : 0;
}

/* Any child, an adopted one too. */
int ls__posix_wait_any(const ls__env *env, ls__env_exit *out)
{
    return ls__posix_wait_exit(env, -1, out);
}

typedef struct proc_stat { /* the fields of /proc/PID/stat that are used here */
    char state;
    long parent;
    unsigned long flags, threads;
    unsigned long pending; /* signals that the first thread has not taken yet; bit 0 is signal 1 */
} proc_stat;

/* Reads /proc/PID/stat. The values stand behind the name, which may contain anything, so parsing
 * begins behind the last ")". */
static int read_stat(pid_t pid, proc_stat *out)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    ssize_t got = read(fd, line, sizeof line - 1);
    (void)close(fd);
    line[got > 0 ? got : 0] = '\0';
    const char *end = strrchr(line, ')');
    /* 3 state, 4 parent, 9 flags, 20 threads, 31 pending */
    const char *const format = " %c %ld %*s %*s %*s %*s %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                               " %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu";
    return end != NULL && sscanf(end + 1, format, &out->state, &out->parent, &out->flags,
                                 &out->threads, &out->pending) == 5
               ? 0
               : -ENOENT;
}

/* -1 when the process does not exist. */
static pid_t parent_of(pid_t pid)
{
    proc_stat found;
    return read_stat(pid, &found) == 0 ? (pid_t)found.parent : -1;
}

/* Whether a process is between the beginning of its end and the moment when it can be reaped: a
 * signal that it has not taken yet, memory that it gives back, or threads that outlive the first
 * one in a system call. */
static bool is_ending(const proc_stat *found)
{
    const unsigned long exiting = 4; /* PF_EXITING of the kernel */
    return found->state == 'Z'
               ? found->threads > 1
               : (found->pending >> (SIGKILL - 1) & 1) != 0 || (found->flags & exiting) != 0;
}

/* The kernel's letter, or 'K' for a process that is ending. */
int ls__posix_process_state(const ls__env *env LS__UNUSED, pid_t pid)
{
    proc_stat found;
    const int error = read_stat(pid, &found);
    return error < 0 ? error : is_ending(&found) ? 'K' : found.state;
}

/* TracerPid of /proc/PID/status is not 0. */
bool ls__posix_process_traced(const ls__env *env LS__UNUSED, pid_t pid)
{
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%ld/status", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    const ssize_t got = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *at = strstr(text, "\nTracerPid:");
    return at != NULL && strtol(at + strlen("\nTracerPid:"), NULL, 10) != 0;
}

/* Whether a process was started with a variable: `name` followed by `end`, which is '=' for any
 * value, or 0 when `name` is the whole entry. A process whose environment may not be read counts as
 * one without it. */
static bool started_with(pid_t pid, const char *name, char end)
{
    char path[64], window[8192 + 256];
    size_t length = strlen(name), held = 1;
    snprintf(path, sizeof path, "/proc/%ld/environ", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool found = false;
    window[0] = '\0'; /* as if before the first entry */
    for (ssize_t got = 1; fd >= 0 && got > 0 && !found;) {
        got = read(fd, window + held, sizeof window - held);
        held += got > 0 ? (size_t)got : 0;
        for (size_t i = 0; i + length + 2 <= held && !found; i++) {
            found = window[i] == '\0' && memcmp(window + i + 1, name, length) == 0 &&
                    window[i + 1 + length] == end;
        }
        const size_t keep = held < 256 ? held : 256; /* a name may lie across two pieces */
        memmove(window, window + held - keep, keep);
        held = keep;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return found;
}

/* Walks up to the first ancestor that was not started with the variable: the process
 * that set it. */
pid_t ls__posix_starter(const ls__env *env LS__UNUSED, const char *name)
{
    pid_t pid = getppid();
    for (pid_t above = pid; pid > 1 && above > 0 && started_with(pid, name, '='); pid = above) {
        above = parent_of(pid);
    }
    return pid;
}

/* Returns how many were signalled. Children that appear while /proc is read may be missed. */
int ls__posix_kill_children(const ls__env *env LS__UNUSED, int signal)
{
    int count = 0;
    pid_t self = getpid();
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return -errno;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && parent_of((pid_t)pid) == self) {
            count += kill((pid_t)pid, signal) == 0;
        }
    }
    (void)closedir(folder);
    return count;
}

/* The mark is a limit that children inherit, whatever environment and session they are given: on
 * the time that a thread under a realtime schedule may run without a pause, in microseconds. A
 * limit of more than a hundred thousand years is none. */
static rlim_t mark_of(const char *variable)
{
    return ((rlim_t)1 << 62) | (ls__hash_text(variable) >> 8);
}

/* A limit that the user has set stays. */
int ls__posix_mark(const ls__env *env LS__UNUSED, const char *variable)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_RTTIME, &limit) != 0 || limit.rlim_cur < (rlim_t)1 << 62) {
        return -EBUSY;
    }
    limit.rlim_cur = mark_of(variable);
    return setrlimit(RLIMIT_RTTIME, &limit) != 0 ? -errno : 0;
}

/* A process that nobody has reaped yet keeps its limits. */
static bool is_marked(const ls__env *env, pid_t pid, const char *variable)
{
    struct rlimit limit;
    return prlimit(pid, RLIMIT_RTTIME, NULL, &limit) == 0 && limit.rlim_cur == mark_of(variable) &&
           ls__posix_process_state(env, pid) != 'Z';
}

/* Finds processes that left the job's process groups by what they inherited. */
int ls__posix_kill_marked(const ls__env *env, const char *variable, int signal)
{
    int count = 0;
    const long self = (long)getpid();
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return -errno;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid > 0 && pid != self &&
            (started_with((pid_t)pid, variable, '\0') || is_marked(env, (pid_t)pid, variable))) {
            count += kill((pid_t)pid, signal) == 0;
        }
    }
    (void)closedir(folder);
    return count;
}

/* Raises the soft limit as far as the hard one allows; reaching less than `count` is not an
 * error. */
int ls__posix_allow_descriptors(const ls__env *env LS__UNUSED, int count)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return -errno;
    }
    if (limit.rlim_cur >= (rlim_t)count) {
        return 0;
    }
    limit.rlim_cur = (rlim_t)count < limit.rlim_max ? (rlim_t)count : limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) != 0 ? -errno : 0;
}

/* ---- host ----------------------------------------------------------------------------------- */

/* Success if it exists already; -ENOTDIR when another kind of file has the name. */
int ls__posix_make_folder(const ls__env *env LS__UNUSED, const char *path)
{
    struct stat info;
    if (mkdir(path, 0777) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        return -errno;
    }
    return stat(path, &info) != 0 ? -errno : S_ISDIR(info.st_mode) ? 0 : -ENOTDIR;
}

/* A name that is too long is cut, and ends in 0 all the same. */
int ls__posix_host_name(const ls__env *env LS__UNUSED, char *out, size_t bytes)
{
    if (bytes == 0 || gethostname(out, bytes) != 0) {
        return -errno;
    }
    out[bytes - 1] = '\0';
    return 0;
}

/* Another process may take the port before the caller does. */
int ls__posix_free_port(const ls__env *env LS__UNUSED)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -errno;
    }
    int rc = bind(fd, (const struct sockaddr *)&address, sizeof address);
    rc = rc == 0 ? getsockname(fd, (struct sockaddr *)&address, &length) : rc;
    int error = errno;
    (void)close(fd);
    return rc != 0 ? -error : ntohs(address.sin_port);
}

/* Decides whether a line of output may be updated in place. */
bool ls__posix_is_terminal(const ls__env *env LS__UNUSED, int fd)
{
    return isatty(fd) == 1;
}
