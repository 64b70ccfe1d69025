/* SPDX-License-Identifier: Apache-2.0 */
/* A job under `lockstep run` that is watched from outside. */
#include "job.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "says.h"

#define TEXT_BYTES ((size_t)4 << 20)
#define REAP_SECONDS 10.0
#define LEFT_SECONDS 1.0 /* what is killed takes a moment to be gone */

/* ---- looking at it -------------------------------------------------------------------------- */

bool job_says(const job *j, const char *part)
{
    for (int i = 0; i < j->lines; i++) {
        if (test_count_said(j->line[i], part) > 0) {
            return true;
        }
    }
    return false;
}

bool job_all_say(const job *j, const char *part, const char *who)
{
    bool told = false;
    for (int i = 0; i < j->lines; i++) {
        const bool says = test_count_said(j->line[i], part) > 0;
        if (says && strstr(j->line[i], who) == NULL) {
            return false;
        }
        told = told || (says && strncmp(j->line[i], "lockstep: ", 10) == 0);
    }
    return told;
}

int job_find(const job *j, int r, const char *part)
{
    char prefix[16];
    snprintf(prefix, sizeof prefix, "[%d] ", r);
    const char *wanted = r < 0 ? "lockstep: " : prefix;
    for (int i = 0; i < j->lines; i++) {
        if (strncmp(j->line[i], wanted, strlen(wanted)) == 0 &&
            test_count_said(j->line[i], part) > 0) {
            return i;
        }
    }
    return -1;
}

void job_fail(const job *j, const char *why)
{
    fprintf(stderr, "%s; struck %.3f, ended %.3f, status %d\n", why, j->struck, j->ended,
            j->status);
    for (int i = 0; i < j->lines; i++) {
        fprintf(stderr, "  %+.3f %s\n", j->came[i] - (j->struck > 0 ? j->struck : j->came[0]),
                j->line[i]);
    }
    test_fail(__FILE__, __LINE__, "%s", why);
}

static bool has_mark(const char *pid, const char *mark)
{
    static char text[65536];
    char path[64];
    snprintf(path, sizeof path, "/proc/%.20s/environ", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    for (ssize_t at = 0; at < got; at += (ssize_t)strlen(text + at) + 1) {
        if (strcmp(text + at, mark) == 0) {
            return true;
        }
    }
    return false;
}

int job_processes(const job *j, pid_t *out, int room)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e = proc ? readdir(proc) : NULL; e != NULL; e = readdir(proc)) {
        pid_t pid = (pid_t)atoi(e->d_name);
        if (isdigit((unsigned char)e->d_name[0]) && pid != j->front && count < room &&
            has_mark(e->d_name, j->mark)) {
            out[count++] = pid;
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
    return count;
}

static pid_t first_child(pid_t of)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)of, (int)of);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        pid = fscanf(file, "%d", &pid) == 1 ? pid : 0;
        fclose(file);
    }
    return pid;
}

void job_kill_first(const job *j, int rank)
{
    const double begin = process_seconds();
    kill(j->pid[rank], SIGKILL);
    while (kill(j->pid[rank], 0) == 0) { /* a zombie until it is reaped */
        if (process_seconds() > begin + REAP_SECONDS) {
            job_fail(j, "the agent does not reap a rank that was killed");
        }
        usleep(100);
    }
}

pid_t job_guard(const job *j)
{
    return first_child(j->front);
}

pid_t job_agent(const job *j)
{
    const pid_t guard = job_guard(j);
    return guard > 0 ? first_child(guard) : 0;
}

/* ---- running it ----------------------------------------------------------------------------- */

static void take_line(job *j, char *line)
{
    int r = -1, number = 0;
    double when = 0.0;
    if (j->lines == JOB_LINES_MAX) {
        return;
    }
    j->line[j->lines] = line;
    j->came[j->lines++] = process_seconds();
    const char *said = strchr(line, ' ');
    if (sscanf(line, "[%d] PID %d", &r, &number) == 2 && r >= 0 && r < JOB_RANKS_MAX) {
        j->pid[r] = number;
    } else if (said != NULL && sscanf(said, " STRIKE %lf", &when) == 1) {
        j->struck = j->struck > 0.0 ? j->struck : when;
    }
    if (j->on_line != NULL) {
        j->on_line(j, line);
    }
}

static bool read_output(job *j, int fd)
{
    ssize_t got = read(fd, j->text + j->bytes, TEXT_BYTES - j->bytes);
    if (got <= 0) {
        return got < 0 && errno == EAGAIN;
    }
    j->bytes += (size_t)got;
    char *end;
    while ((end = memchr(j->text + j->partial, '\n', j->bytes - j->partial)) != NULL) {
        char *line = j->text + j->partial;
        *end = '\0';
        j->partial = (size_t)(end + 1 - j->text);
        take_line(j, line);
    }
    return j->bytes < TEXT_BYTES;
}

static void start(job *j, const char *const *argv, int output)
{
    fflush(NULL);
    j->front = fork();
    if (j->front != 0) {
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    dup2(output, 1);
    dup2(output, 2);
    setenv("TMPDIR", j->folder, 1);
    char *equals = strchr(j->mark, '=');
    setenv("FAILURES_JOB", equals + 1, 1);
    for (int i = 0; j->settings != NULL && j->settings[i] != NULL; i++) {
        putenv((char *)(size_t)j->settings[i]);
    }
    if (chdir(j->folder) == 0) {
        execv(argv[0], (char *const *)(size_t)argv);
    }
    _exit(127);
}

static void watch(job *j, int output)
{
    const double deadline = process_seconds() + j->deadline;
    struct pollfd items[2] = {{.fd = output, .events = POLLIN},
                              {.fd = (int)syscall(SYS_pidfd_open, j->front, 0), .events = POLLIN}};
    int status = 0;
    while (items[1].fd >= 0) {
        const int left = (int)((deadline - process_seconds()) * 1000.0);
        if (left <= 0 || poll(items, 2, left) <= 0) {
            pid_t all[256];
            int count = job_processes(j, all, 256);
            for (int i = 0; i < count; i++) {
                kill(all[i], SIGKILL);
            }
            kill(j->front, SIGKILL);
            waitpid(j->front, &status, 0);
            job_fail(j, "the job did not end in time");
        }
        if ((items[0].revents & (POLLIN | POLLHUP)) != 0 && !read_output(j, output)) {
            items[0].fd = -1;
        }
        if (items[1].revents != 0) {
            break;
        }
    }
    waitpid(j->front, &status, 0);
    j->ended = process_seconds();
    j->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    close(items[1].fd);
    while (items[0].fd >= 0 && read_output(j, output) && poll(items, 1, 0) > 0) {
    }
}

/* ---- what it leaves ------------------------------------------------------------------------- */

static void check_processes(const job *j)
{
    pid_t left[64];
    int count;
    do {
        count = job_processes(j, left, 64);
        poll(NULL, 0, count > 0 ? 5 : 0);
    } while (count > 0 && process_seconds() < j->ended + LEFT_SECONDS);
    if (count > 0) {
        char why[128];
        snprintf(why, sizeof why, "%d processes are left, one is %d", count, (int)left[0]);
        for (int i = 0; i < count; i++) {
            kill(left[i], SIGKILL);
        }
        job_fail(j, why);
    }
}

static int count_entries(const char *folder, const char *part)
{
    int count = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        count += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

/* A checkpoint may be left, complete or not: it is the user's folder. Anything else may not. */
static void check_files(const job *j)
{
    if (count_entries("/dev/shm", "lockstep") != 0) {
        job_fail(j, "something is left in /dev/shm");
    }
    if (count_entries(j->folder, "") != count_entries(j->folder, "saved")) {
        job_fail(j, "a temporary file is left");
    }
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", j->folder);
    test_output removed = test_run(command, 10);
    CHECK_INT(removed.status, 0);
    free(removed.text);
}

void job_run(job *j, const char *const *argv)
{
    static int number;
    int output[2];
    j->text = calloc(1, TEXT_BYTES + 1);
    snprintf(j->folder, sizeof j->folder, "/tmp/lockstep-failures-XXXXXX");
    CHECK(j->text != NULL && mkdtemp(j->folder) != NULL);
    snprintf(j->mark, sizeof j->mark, "FAILURES_JOB=%d.%d", (int)getpid(), number++);
    CHECK(pipe2(output, O_CLOEXEC | O_NONBLOCK) == 0);
    (void)fcntl(output[1], F_SETFL, 0);
    start(j, argv, output[1]);
    close(output[1]);
    watch(j, output[0]);
    close(output[0]);
    check_processes(j);
    check_files(j);
}

void job_free(job *j)
{
    free(j->text);
    j->text = NULL;
}
