/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of a test: waiting with a deadline (pidfd), orphans (children a subreaper was given),
 * and running a shell command. */
#include "processes.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

#define ORPHAN_POLL_MS 5
#define OUTPUT_BYTES_MAX ((size_t)64 << 20)

double process_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool process_wait(pid_t pid, int deadline_ms, int *status)
{
    struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool in_time = ended.fd < 0 || poll(&ended, 1, deadline_ms) > 0;
    if (in_time) {
        waitpid(pid, status, 0);
    }
    if (ended.fd >= 0) {
        close(ended.fd);
    }
    return in_time;
}

/* Parent of a process, from /proc/PID/stat: "pid (name) state ppid …"; 0 when it is gone. */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0';
    const char *name_end = strrchr(text, ')');
    int parent = 0;
    if (name_end == NULL || sscanf(name_end + 1, " %*c %d", &parent) != 1) {
        return 0;
    }
    return parent;
}

static void signal_children(int number)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *e = proc ? readdir(proc) : NULL; e != NULL; e = readdir(proc)) {
        if (isdigit((unsigned char)e->d_name[0]) && parent_of(e->d_name) == getpid()) {
            kill((pid_t)atoi(e->d_name), number);
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
}

/* Reaps what has ended; false when no child is left. */
static bool reap_some(int *reaped)
{
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid <= 0) {
            return pid == 0;
        }
        *reaped += 1;
    }
}

void processes_kill_children(void)
{
    int reaped = 0;
    while (reap_some(&reaped)) {
        signal_children(SIGKILL); /* again and again: a killed one's children come to us */
        poll(NULL, 0, ORPHAN_POLL_MS);
    }
}

int processes_end_orphans(int grace_ms)
{
    int reaped = 0;
    for (int waited = 0; reap_some(&reaped); waited += ORPHAN_POLL_MS) {
        if (waited >= grace_ms) {
            int before = reaped;
            while (reap_some(&reaped)) {
                signal_children(SIGKILL);
                poll(NULL, 0, ORPHAN_POLL_MS);
            }
            return reaped - before;
        }
        poll(NULL, 0, ORPHAN_POLL_MS);
    }
    return 0;
}

static pid_t start_shell(const char *command, int output)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        setpgid(pid, pid);
        return pid;
    }
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static char *read_all(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    size_t bytes = size < 0 ? 0 : (size_t)size;
    bytes = bytes > OUTPUT_BYTES_MAX ? OUTPUT_BYTES_MAX : bytes;
    char *text = malloc(bytes + 1);
    ssize_t got = pread(fd, text, bytes, 0);
    text[got < 0 ? 0 : got] = '\0';
    return text;
}

/* A program of the build that an emulator runs cannot be started by a shell: see tests/run. */
static void skip_under_emulator(const char *command)
{
    if (getenv("TEST_UNDER") != NULL && strstr(command, TEST_BUILD_ROOT) != NULL) {
        test_skip("it starts a program of the build, which only an emulator can run here");
    }
}

/* A command on a busy machine gets more time, but less than its test, which shows its output. */
static bool wait_for_command(pid_t pid, int deadline_seconds, int *status)
{
    if (process_wait(pid, deadline_seconds * 1000 * TEST_SLOWER, status)) {
        return true;
    }
    const double most = 0.9 * TEST_DEADLINE_SECONDS;
    const double busy = deadline_seconds * test_slow_down() * TEST_SLOWER;
    const double more = (busy < most ? busy : most) - deadline_seconds * TEST_SLOWER;
    return more > 0.0 && process_wait(pid, (int)(1e3 * more), status);
}

test_output test_run(const char *command, int deadline_seconds)
{
    skip_under_emulator(command);
    test_output out = {.status = 124};
    double begin = process_seconds();
    int output = memfd_create("command output", MFD_CLOEXEC);
    pid_t pid = start_shell(command, output);
    int status = 0;
    if (wait_for_command(pid, deadline_seconds, &status)) {
        out.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    } else {
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    out.seconds = process_seconds() - begin;
    out.text = read_all(output);
    close(output);
    return out;
}

test_output test_run_helper(const char *variables, const char *helper)
{
    char program[512], command[1024];
    const ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    program[bytes > 0 ? bytes : 0] = '\0';
    snprintf(command, sizeof command, "TEST_VERBOSE=1 %s %s %s", variables, program, helper);
    return test_run(command, 60);
}
