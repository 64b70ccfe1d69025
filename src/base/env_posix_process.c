/* SPDX-License-Identifier: Apache-2.0 */
/* Children of the real env table.
 *
 *     parent                                child
 *     block signals, fork ────────────────▶ own process group, SIGKILL when the parent ends
 *     setpgid too (whoever is first)        default signals, standard descriptors
 *     restore signals                       exec: only the kept descriptors stay open
 *     read the error pipe ◀──── errno ───── exec failed
 *                         ◀── end of file ─ exec worked
 *
 * The error pipe makes "no such program" an error of the spawn and not an odd exit code. Signals
 * are blocked around the fork so that no handler of the parent runs in the child.
 */
#include "base/env_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"

#define EXIT_NO_CHILD 127 /* the shell's code for "could not be started" */
#define FIRST_FREE_FD 3

/* Becomes readable when the process ends. */
static int pidfd_of(pid_t pid)
{
    return ls__posix_above_standard((int)syscall(SYS_pidfd_open, pid, 0));
}

/* Asks for SIGKILL when the spawning thread ends. If it ended before the request stood, the parent
 * is another process by now, and the answer is false. */
static bool follow_parent(pid_t parent)
{
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent;
}

/* Ignored signals stay ignored (nohup), except SIGPIPE, which programs ignore for themselves, and
 * SIGCHLD, without which a child could not learn how its own children ended. A helper that was
 * asked to stop before it is ready must not die of it: those signals stay blocked. */
static void default_signals(bool helper)
{
    static const int asks[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP};
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) != 0) {
            continue;
        }
        if (action.sa_handler != SIG_IGN || number == SIGPIPE || number == SIGCHLD) {
            (void)signal(number, SIG_DFL);
        }
    }
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; helper && i < sizeof asks / sizeof *asks; i++) {
        (void)sigaddset(&blocked, asks[i]);
    }
    (void)sigprocmask(SIG_SETMASK, &blocked, NULL);
}

/* Standard input is empty; output and error go where `spawn` says, or stay the parent's. */
static bool place_standard(const ls__env_spawn *spawn)
{
    int in = ls__posix_above_standard(open("/dev/null", O_RDONLY | O_CLOEXEC));
    int out = spawn->stdout_fd, err = spawn->stderr_fd;
    bool placed = in >= 0 && dup2(in, 0) == 0;
    placed = placed && (spawn->stdout_fd < 0 || dup2(out, 1) == 1);
    placed = placed && (spawn->stderr_fd < 0 || dup2(err, 2) == 2);
    if (in >= 0) {
        (void)close(in);
    }
    return placed;
}

/* Whether the caller wants the child to have this descriptor. */
static bool kept(const ls__env_spawn *spawn, int fd)
{
    for (int i = 0; i < spawn->keep_count; i++) {
        if (spawn->keep_fds[i] == fd) {
            return true;
        }
    }
    return false;
}

/* Decides whether the descriptor survives exec. */
static bool set_inherited(int fd, bool inherited)
{
    int flags = fcntl(fd, F_GETFD);
    if (flags < 0) {
        return false;
    }
    flags = inherited ? flags & ~FD_CLOEXEC : flags | FD_CLOEXEC;
    return fcntl(fd, F_SETFD, flags) == 0;
}

/* Makes all descriptors but the standard ones close-on-exec, then the kept ones inheritable. musl
 * has no function for the first system call. */
static bool mark_descriptors(const ls__env_spawn *spawn)
{
    if (syscall(SYS_close_range, FIRST_FREE_FD, ~0u, CLOSE_RANGE_CLOEXEC) != 0) {
        long open_max = sysconf(_SC_OPEN_MAX); /* a kernel before 5.11 */
        for (int fd = FIRST_FREE_FD; fd < open_max; fd++) {
            (void)set_inherited(fd, false);
        }
    }
    for (int i = 0; i < spawn->keep_count; i++) {
        if (!set_inherited(spawn->keep_fds[i], true)) {
            return false;
        }
    }
    return true;
}

/* Does what exec would for a child that runs `fn` instead: closes the parent's descriptors, among
 * them the ends of its other children's pipes. */
static void close_as_exec(const ls__env_spawn *spawn)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        int fd = atoi(entry->d_name);
        int flags = fd >= FIRST_FREE_FD && fd != dirfd(folder) ? fcntl(fd, F_GETFD) : -1;
        if (flags >= 0 && (flags & FD_CLOEXEC) != 0 && !kept(spawn, fd)) {
            (void)close(fd);
        }
    }
    (void)closedir(folder);
}

/* A helper leaves by _exit: the parent's exit handlers and buffers are not its own. */
static LS__NORETURN void run_function(const ls__env_spawn *spawn)
{
    close_as_exec(spawn);
    int code = spawn->fn(spawn->arg);
    if (spawn->helper) {
        _exit(code);
    }
    exit(code);
}

/* Returns only by ending; the errno of a failed exec goes to the parent through `report`. */
static LS__NORETURN void run_program(const ls__env_spawn *spawn, int report)
{
    int error = EBADF;
    if (mark_descriptors(spawn)) {
        char *const *argv = (char *const *)(uintptr_t)spawn->argv;
        char *const *envp = spawn->envp != NULL ? (char *const *)(uintptr_t)spawn->envp : environ;
        (void)execvpe(argv[0], argv, envp);
        error = errno;
    }
    ssize_t put LS__UNUSED = write(report, &error, sizeof error);
    _exit(EXIT_NO_CHILD);
}

/* Runs in the child, which has only this thread, and never returns. */
static LS__NORETURN void child_main(const ls__env_spawn *spawn, pid_t parent, int report)
{
    (void)setpgid(0, 0);
    default_signals(spawn->helper);
    if ((!spawn->helper && !follow_parent(parent)) || !place_standard(spawn)) {
        _exit(EXIT_NO_CHILD);
    }
    if (spawn->argv == NULL) {
        run_function(spawn);
    }
    run_program(spawn, report);
}

/* Returns 0 when the child runs its program, or else the errno that its exec reported. */
static int wait_for_exec(int report)
{
    int error = 0;
    ssize_t got;
    do {
        got = read(report, &error, sizeof error);
    } while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof error ? error : 0;
}

/* Waits for a child that is about to end. */
static void reap(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* Returns the child's number or -errno. Both sides call setpgid, so that the group exists whichever
 * runs first. */
static pid_t fork_child(const ls__env_spawn *spawn, int report)
{
    sigset_t all, before;
    pid_t parent = getpid();
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0) {
        child_main(spawn, parent, report);
    }
    int error = errno;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid > 0) {
        (void)setpgid(pid, pid);
    }
    return pid < 0 ? -error : pid;
}

/* On failure no child remains. */
int ls__posix_spawn(const ls__env *env LS__UNUSED, const ls__env_spawn *spawn, pid_t *pid,
                    int *pidfd)
{
    int report[2];
    int error = pipe2(report, O_CLOEXEC) != 0 ? -errno : ls__posix_pair_above_standard(report);
    if (error < 0) {
        return error;
    }
    pid_t child = fork_child(spawn, report[1]);
    (void)close(report[1]);
    error = child < 0 ? -child : 0;
    if (error == 0 && spawn->argv != NULL) {
        error = wait_for_exec(report[0]);
    }
    (void)close(report[0]);
    if (child < 0) {
        return -error;
    }
    int fd = error == 0 ? pidfd_of(child) : -error;
    if (fd < 0) {
        (void)kill(-child, SIGKILL);
        reap(child);
        return fd;
    }
    *pid = child;
    *pidfd = fd;
    return 0;
}

/* -EAGAIN when no child has ended; never waits. */
int ls__posix_wait_exit(const ls__env *env LS__UNUSED, pid_t pid, ls__env_exit *out)
{
    int status = 0;
    pid_t got;
    do {
        got = waitpid(pid, &status, WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        return got < 0 ? -errno : -EAGAIN;
    }
    *out = (ls__env_exit){.pid = got,
                          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                          .code = WIFEXITED(status) ? WEXITSTATUS(status) : 0};
    return 0;
}

/* By pidfd, so that the signal cannot reach a later process with the same number. */
int ls__posix_kill(const ls__env *env LS__UNUSED, int pidfd, int signal)
{
    return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) != 0 ? -errno : 0;
}

/* -ESRCH when no process of the group is left. */
int ls__posix_kill_group(const ls__env *env LS__UNUSED, pid_t pid, int signal)
{
    return kill(-pid, signal) != 0 ? -errno : 0;
}

pid_t ls__posix_pid(const ls__env *env LS__UNUSED)
{
    return getpid();
}

uid_t ls__posix_uid(const ls__env *env LS__UNUSED)
{
    return geteuid();
}

/* -ESRCH when it has ended and was reaped. */
int ls__posix_watch_process(const ls__env *env LS__UNUSED, pid_t pid)
{
    return pidfd_of(pid);
}
