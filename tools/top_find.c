/* SPDX-License-Identifier: Apache-2.0 */
/* Boards are memory without a name, so they are found as descriptors of the launchers that made
 * them, in /proc. Of other users' processes the kernel shows none. See top.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/top.h"

#define BOARD_LINK "/memfd:lockstep-board"
#define LEVELS_MAX 4 /* of processes of the launcher */

typedef struct search {
    top_job *jobs;
    int count, room;
} search;

/* The user that a process runs as; false: there is no such process. */
static bool owner_of(int pid, uid_t *out)
{
    char path[64];
    struct stat found;
    (void)snprintf(path, sizeof path, "/proc/%d", pid);
    const bool exists = stat(path, &found) == 0;
    *out = exists ? found.st_uid : 0;
    return exists;
}

/* Arguments of a process, separated by blanks. */
static void read_command(int pid, char *out, size_t bytes)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
    FILE *file = fopen(path, "r");
    const size_t got = file != NULL ? fread(out, 1, bytes - 1, file) : 0;
    size_t used = got;
    if (file != NULL) {
        (void)fclose(file);
    }
    while (used > 0 && out[used - 1] == '\0') {
        used--;
    }
    for (size_t i = 0; i < used; i++) {
        const unsigned char c = (unsigned char)out[i];
        out[i] = c == '\0' ? ' ' : c < 0x20 || c == 0x7f ? '?' : out[i];
    }
    out[used] = '\0';
}

/* Whether both run the same program. */
static bool run_the_same(int a, int b)
{
    char path[64];
    struct stat one, two;
    (void)snprintf(path, sizeof path, "/proc/%d/exe", a);
    const bool found = stat(path, &one) == 0;
    (void)snprintf(path, sizeof path, "/proc/%d/exe", b);
    return found && stat(path, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

/* The parent of a process, from "PID (NAME) STATE PARENT …"; 0: unknown. */
static int parent_of(int pid)
{
    char path[64], text[512] = "", state;
    int parent = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        (void)!fgets(text, sizeof text, file);
        (void)fclose(file);
    }
    const char *end = strrchr(text, ')');
    return end != NULL && sscanf(end + 1, " %c %d", &state, &parent) == 2 ? parent : 0;
}

/* `lockstep run` makes the board in a child of a child, which a user does not know by number. */
static int launcher_of(int pid)
{
    for (int level = 0; level < LEVELS_MAX; level++) {
        const int parent = parent_of(pid);
        if (parent <= 1 || !run_the_same(pid, parent)) {
            break;
        }
        pid = parent;
    }
    return pid;
}

static bool is_known(const search *s, uint64_t file)
{
    for (int i = 0; i < s->count; i++) {
        if (s->jobs[i].file == file) {
            return true;
        }
    }
    return false;
}

/* Maps the memory of a descriptor if it is a board of this version. */
static void take(search *s, int fd)
{
    struct stat found;
    if (fstat(fd, &found) != 0 || s->count == s->room || is_known(s, (uint64_t)found.st_ino) ||
        found.st_size < (off_t)sizeof(ls__board)) {
        return;
    }
    const size_t bytes = (size_t)found.st_size;
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return;
    }
    if (!ls__board_is_sound(memory, bytes)) {
        (void)munmap(memory, bytes);
        return;
    }
    top_job *job = &s->jobs[s->count++];
    *job = (top_job){.board = memory,
                     .bytes = bytes,
                     .file = (uint64_t)found.st_ino,
                     .launcher = launcher_of(((const ls__board *)memory)->launcher_pid)};
    const int pid = atomic_load_explicit(&job->board->rank[0].pid, memory_order_relaxed);
    if (pid > 0) {
        read_command(pid, job->program, sizeof job->program);
    }
}

static void look_at_descriptors(search *s, int pid)
{
    char path[64], target[64], full[320];
    (void)snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    for (struct dirent *e = NULL; folder != NULL && (e = readdir(folder)) != NULL;) {
        const ssize_t length = readlinkat(dirfd(folder), e->d_name, target, sizeof target - 1);
        if (length <= 0) {
            continue;
        }
        target[length] = '\0';
        if (strncmp(target, BOARD_LINK, strlen(BOARD_LINK)) == 0) {
            (void)snprintf(full, sizeof full, "%s/%s", path, e->d_name);
            const int fd = open(full, O_RDONLY | O_CLOEXEC);
            if (fd >= 0) {
                take(s, fd);
                (void)close(fd);
            }
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

int top_find(top_job *out, int room)
{
    search s = {.jobs = out, .room = room};
    DIR *all = opendir("/proc");
    for (struct dirent *e = NULL; all != NULL && (e = readdir(all)) != NULL;) {
        char *end = NULL;
        const long pid = strtol(e->d_name, &end, 10);
        uid_t owner = 0;
        if (pid > 0 && pid <= INT32_MAX && *end == '\0' && owner_of((int)pid, &owner) &&
            owner == geteuid()) {
            look_at_descriptors(&s, (int)pid);
        }
    }
    if (all != NULL) {
        (void)closedir(all);
    }
    return s.count;
}

void top_close(top_job *jobs, int count)
{
    for (int i = 0; i < count; i++) {
        (void)munmap((void *)(uintptr_t)jobs[i].board, jobs[i].bytes);
    }
}

bool top_has_process(const top_job *job, int pid)
{
    bool has = job->launcher == pid || job->board->launcher_pid == pid;
    for (int r = 0; r < job->board->ranks && !has; r++) {
        has = atomic_load_explicit(&job->board->rank[r].pid, memory_order_relaxed) == pid;
    }
    return has;
}

void top_explain(int pid, char *out, size_t bytes)
{
    uid_t owner = 0;
    if (!owner_of(pid, &owner)) {
        (void)snprintf(out, bytes,
                       "process %d does not run; without a number `lockstep top` lists the jobs",
                       pid);
    } else if (owner != geteuid()) {
        const struct passwd *user = getpwuid(owner);
        (void)snprintf(out, bytes,
                       "process %d is %s's (uid %ld), and a job is shown to its own user only; run "
                       "lockstep top as that user",
                       pid, user != NULL ? user->pw_name : "somebody", (long)owner);
    } else {
        (void)snprintf(out, bytes,
                       "process %d is no launcher and no rank of a job; without a number `lockstep "
                       "top` lists the jobs",
                       pid);
    }
}
