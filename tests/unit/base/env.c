/* SPDX-License-Identifier: Apache-2.0 */
/* The real env table: deadlines, parking across processes, passed descriptors, shared memory, and
 * what a spawned child inherits. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "scratch.h"
#include "test.h"

#define MS 1000000u

static const ls__env *env(void)
{
    return ls__env_posix();
}

TEST(parking_ends_at_the_deadline_at_a_wake_or_at_another_value)
{
    _Atomic uint32_t word = 5;
    uint64_t begin = env()->now_ns(env());
    CHECK_INT(env()->park(env(), &word, 5, begin + 20 * MS), -ETIMEDOUT);
    CHECK(env()->now_ns(env()) >= begin + 20 * MS);
    CHECK_INT(env()->park(env(), &word, 4, LS__NEVER), -EAGAIN);
    CHECK_INT(env()->park(env(), &word, 5, 0), -ETIMEDOUT);
}

static void wake_when_told(void *arg)
{
    _Atomic uint32_t *word = arg;
    env()->sleep_until(env(), env()->now_ns(env()) + 10 * MS);
    atomic_store(word, 1);
    env()->wake(env(), word, 1);
}

TEST(a_parked_thread_is_woken_by_another)
{
    _Atomic uint32_t word = 0;
    ls__env_thread *thread = NULL;
    CHECK_INT(env()->thread_start(env(), "a name longer than fits", wake_when_told, &word, &thread),
              0);
    while (atomic_load(&word) == 0) {
        int rc = env()->park(env(), &word, 0, LS__NEVER);
        CHECK(rc == 0 || rc == -EAGAIN);
    }
    env()->thread_join(env(), thread);
}

TEST(a_word_in_shared_memory_wakes_another_process)
{
    void *memory = NULL;
    int fd = env()->shm_create(env(), "test", 4096);
    CHECK(fd >= 0);
    CHECK_INT(env()->shm_map(env(), fd, 4096, LS__MAP_ANYWHERE, &memory), 0);
    pid_t pid = fork();
    if (pid == 0) { /* the mapping is not inherited; the descriptor is */
        void *own = NULL;
        if (env()->shm_map(env(), fd, 4096, LS__MAP_ANYWHERE, &own) == 0) {
            wake_when_told(own);
        }
        _exit(0);
    }
    _Atomic uint32_t *word = memory;
    while (atomic_load(word) == 0) {
        int rc = env()->park(env(), word, 0, env()->now_ns(env()) + 5000 * (uint64_t)MS);
        CHECK(rc == 0 || rc == -EAGAIN);
    }
    waitpid(pid, NULL, 0);
    env()->shm_unmap(env(), memory, 4096);
}

TEST(shared_memory_grows_within_its_reserve_and_never_shrinks)
{
    char *memory = NULL;
    int fd = env()->shm_create(env(), "test", 4096);
    CHECK_INT(env()->shm_map(env(), fd, (size_t)1 << 36, LS__MAP_ANYWHERE, (void **)&memory), 0);
    memory[0] = 1;
    CHECK_INT(env()->shm_resize(env(), fd, (size_t)1 << 20), 0);
    memory[(1 << 20) - 1] = 2;
    CHECK_INT(env()->shm_resize(env(), fd, 4096), 0); /* smaller: nothing happens */
    CHECK_INT(memory[(1 << 20) - 1], 2);
    CHECK(ftruncate(fd, 10) != 0); /* the seal */
    env()->shm_unmap(env(), memory, (size_t)1 << 36);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST(shared_memory_that_is_forgotten_reads_as_zeros_in_whole_pages)
{
    if (getenv("TEST_UNDER") != NULL) {
        SKIP("an emulator may ignore MADV_REMOVE, as qemu-user does");
    }
    char *memory = NULL, *other = NULL;
    int fd = env()->shm_create(env(), "forget", 5 * 4096);
    CHECK_INT(env()->shm_map(env(), fd, 5 * 4096, LS__MAP_ANYWHERE, (void **)&memory), 0);
    CHECK_INT(env()->shm_map(env(), fd, 5 * 4096, LS__MAP_ANYWHERE, (void **)&other), 0);
    memset(memory, 7, 5 * 4096);
    env()->shm_forget(env(), memory + 100, 3 * 4096);
    env()->shm_forget(env(), memory + 4 * 4096 + 1, 4000); /* no whole page */
    for (int i = 0; i < 5 * 4096; i++) {
        CHECK_INT(other[i], i >= 4096 && i < 3 * 4096 ? 0 : 7);
    }
    memory[4096] = 3;
    CHECK_INT(other[4096], 3);
    env()->shm_unmap(env(), memory, 5 * 4096);
    env()->shm_unmap(env(), other, 5 * 4096);
}

TEST(shared_memory_is_mapped_at_the_asked_phase)
{
    const size_t phases[] = {0, 4096, (size_t)2 << 20, LS__MAP_PHASES - 4096};
    int fd = env()->shm_create(env(), "phase", 4096);
    for (int i = 0; i < 4; i++) {
        char *memory = NULL;
        CHECK_INT(env()->shm_map(env(), fd, (size_t)1 << 36, phases[i], (void **)&memory), 0);
        CHECK_INT((uintptr_t)memory % LS__MAP_PHASES, phases[i]);
        memory[0] = 1;
        env()->shm_unmap(env(), memory, (size_t)1 << 36);
    }
}

/* Whether this process has a mapping of the memfd of that name. */
static bool is_mapped(const char *name)
{
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps) != NULL) {
        found = found || strstr(line, name) != NULL;
    }
    fclose(maps);
    return found;
}

TEST(a_map_is_not_inherited_by_a_fork)
{
    if (getenv("TEST_UNDER") != NULL) {
        SKIP("an emulator keeps its own list of maps across a fork");
    }
    void *memory = NULL;
    int fd = env()->shm_create(env(), "not-inherited", 4096);
    CHECK_INT(env()->shm_map(env(), fd, 4096, LS__MAP_ANYWHERE, &memory), 0);
    CHECK(is_mapped("memfd:not-inherited"));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        _exit(is_mapped("memfd:not-inherited") ? 1 : 42);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST(a_descriptor_is_passed_with_a_message)
{
    int pair[2], pipes[2], got = -1;
    char text[16] = "";
    uid_t uid = (uid_t)-1;
    CHECK_INT(env()->socket_pair(env(), pair), 0);
    CHECK_INT(pipe(pipes), 0);
    CHECK_INT(env()->recv(env(), pair[1], text, sizeof text, &got), -EAGAIN);
    CHECK_INT(got, -1);
    CHECK_INT(env()->send(env(), pair[0], "hello", 5, pipes[1]), 5);
    CHECK_INT(env()->recv(env(), pair[1], text, sizeof text, &got), 5);
    CHECK(got >= 0 && got != pipes[1]);
    CHECK((fcntl(got, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK_INT(env()->write(env(), got, "x", 1), 1);
    CHECK_INT(env()->read(env(), pipes[0], text, 1), 1);
    CHECK_INT(env()->send(env(), pair[0], "more", 4, -1), 4);
    CHECK_INT(env()->recv(env(), pair[1], text, sizeof text, &got), 4);
    CHECK_INT(got, -1);
    CHECK_INT(env()->peer_uid(env(), pair[0], &uid), 0);
    CHECK_INT(uid, getuid());
    CHECK_INT(env()->close(env(), pair[1]), 0);
    CHECK_INT(env()->send(env(), pair[0], "x", 1, -1), -EPIPE); /* and no signal */
    CHECK_INT(env()->recv(env(), pair[0], text, 1, NULL), 0);
}

TEST(polling_reports_readers_writers_and_hang_ups_and_keeps_its_deadline)
{
    int pair[2];
    CHECK_INT(env()->socket_pair(env(), pair), 0);
    ls__env_poll items[2] = {{.fd = pair[0], .want_read = true},
                             {.fd = pair[1], .want_write = true}};
    CHECK_INT(env()->poll(env(), items, 1, env()->now_ns(env()) + 5 * MS), 0);
    CHECK_INT(env()->poll(env(), items, 2, LS__NEVER), 1);
    CHECK(!items[0].can_read && items[1].can_write);
    CHECK_INT(env()->write(env(), pair[1], "x", 1), 1);
    CHECK_INT(env()->poll(env(), items, 2, 0), 2);
    CHECK(items[0].can_read && !items[0].can_write && !items[0].hangup);
    CHECK_INT(env()->close(env(), pair[1]), 0);
    CHECK_INT(env()->poll(env(), items, 1, LS__NEVER), 1);
    CHECK(items[0].hangup);
    CHECK_INT(env()->poll(env(), items, -1, 0), -EINVAL);
}

TEST(memory_is_aligned_at_every_size)
{
    static const size_t sizes[] = {0, 1, 63, 65, 4096, (size_t)5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *memory = env()->allocate(env(), sizes[i]);
        CHECK(memory != NULL && (uintptr_t)memory % 64 == 0);
        memset(memory, 1, sizes[i]);
        env()->release(env(), memory, sizes[i]);
    }
    CHECK(env()->allocate(env(), SIZE_MAX - 5) == NULL);
}

/* ---- children ----------------------------------------------------------------------------- */

static ls__env_exit wait_for(pid_t pid, int pidfd)
{
    ls__env_exit ended = {0};
    ls__env_poll item = {.fd = pidfd, .want_read = true};
    while (env()->wait_exit(env(), pid, &ended) == -EAGAIN) {
        CHECK(env()->poll(env(), &item, 1, env()->now_ns(env()) + 20000 * (uint64_t)MS) == 1);
    }
    env()->close(env(), pidfd);
    return ended;
}

/* Runs a shell script as a child with its output in a pipe and returns what it printed. */
static ls__env_exit spawn_shell(const char *script, const int *keep, int keep_count, char *text,
                                size_t room)
{
    int pipes[2], pidfd = -1;
    pid_t pid = 0;
    CHECK_INT(pipe2(pipes, O_CLOEXEC), 0);
    const char *const argv[] = {"sh", "-c", script, NULL};
    ls__env_spawn spawn = {.argv = argv,
                           .stdout_fd = pipes[1],
                           .stderr_fd = pipes[1],
                           .keep_fds = keep,
                           .keep_count = keep_count};
    CHECK_INT(env()->spawn(env(), &spawn, &pid, &pidfd), 0);
    close(pipes[1]);
    size_t used = 0;
    ssize_t got;
    while ((got = env()->read(env(), pipes[0], text + used, room - 1 - used)) > 0) {
        used += (size_t)got;
    }
    text[used] = '\0';
    close(pipes[0]);
    ls__env_exit ended = wait_for(pid, pidfd);
    CHECK_INT(ended.pid, pid);
    return ended;
}

TEST(a_child_inherits_the_listed_descriptors_and_no_others)
{
    char text[1024], script[256];
    int kept = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int leaked = open("/dev/null", O_RDONLY); /* not close-on-exec, as a user's may be */
    int number = fcntl(kept, F_DUPFD_CLOEXEC, 50);
    CHECK(number == 50 && leaked > 2);
    snprintf(script, sizeof script,
             "for f in /proc/$$/fd/*; do echo fd=${f##*/}; done; readlink /proc/$$/fd/0");
    ls__env_exit ended = spawn_shell(script, &number, 1, text, sizeof text);
    CHECK_INT(ended.code, 0);
    CHECK_CONTAINS(text, "fd=0\nfd=1\n");
    CHECK_CONTAINS(text, "fd=2\n");
    CHECK_CONTAINS(text, "fd=50\n");
    CHECK_CONTAINS(text, "/dev/null\n");
    snprintf(script, sizeof script, "fd=%d\n", leaked);
    CHECK(!test_contains(text, script));
    CHECK((fcntl(number, F_GETFD) & FD_CLOEXEC) != 0); /* ours is as it was */
}

TEST(a_child_reports_how_it_ended)
{
    char text[64];
    CHECK_INT(spawn_shell("exit 7", NULL, 0, text, sizeof text).code, 7);
    ls__env_exit killed = spawn_shell("kill -KILL $$", NULL, 0, text, sizeof text);
    CHECK_INT(killed.signal, SIGKILL);
    CHECK_INT(killed.code, 0);
}

TEST(a_child_leads_its_own_group_with_default_signals)
{
    char text[1024];
    signal(SIGPIPE, SIG_IGN);
    spawn_shell("set -- $(cat /proc/$$/stat); echo pid=$1 group=$5; grep SigIgn /proc/$$/status",
                NULL, 0, text, sizeof text);
    int pid = 0, group = 0;
    unsigned long long ignored = 1;
    CHECK_INT(sscanf(text, "pid=%d group=%d SigIgn: %llx", &pid, &group, &ignored), 3);
    CHECK_INT(pid, group);
    CHECK_INT(ignored & (1ull << (SIGPIPE - 1)), 0);
    CHECK(group != getpgrp());
}

TEST(a_program_that_does_not_exist_is_an_error_of_the_spawn)
{
    const char *const argv[] = {"/no/such/program", NULL};
    ls__env_spawn spawn = {.argv = argv, .stdout_fd = -1, .stderr_fd = -1};
    pid_t pid = 0;
    int pidfd = -1;
    CHECK_INT(env()->spawn(env(), &spawn, &pid, &pidfd), -ENOENT);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left to reap */
}

static int function_child(void *arg)
{
    const int *fds = arg; /* kept, close-on-exec, the user's */
    bool right =
        fcntl(fds[0], F_GETFD) >= 0 && fcntl(fds[1], F_GETFD) < 0 && fcntl(fds[2], F_GETFD) >= 0;
    return right ? 33 : 1;
}

TEST(a_function_child_keeps_what_an_exec_would_keep)
{
    int fds[3] = {open("/dev/null", O_RDONLY | O_CLOEXEC), open("/dev/null", O_RDONLY | O_CLOEXEC),
                  open("/dev/null", O_RDONLY)};
    ls__env_spawn spawn = {.fn = function_child,
                           .arg = fds,
                           .stdout_fd = -1,
                           .stderr_fd = -1,
                           .keep_fds = fds,
                           .keep_count = 1};
    pid_t pid = 0;
    int pidfd = -1;
    CHECK_INT(env()->spawn(env(), &spawn, &pid, &pidfd), 0);
    CHECK_INT(wait_for(pid, pidfd).code, 33);
}

TEST(killing_the_group_reaches_what_the_child_started)
{
    int pipes[2], pidfd = -1;
    pid_t pid = 0;
    char text[8];
    CHECK_INT(pipe2(pipes, O_CLOEXEC), 0);
    const char *const argv[] = {"sh", "-c", "sleep 1000 & echo up; wait", NULL};
    ls__env_spawn spawn = {.argv = argv, .stdout_fd = pipes[1], .stderr_fd = -1};
    CHECK_INT(env()->spawn(env(), &spawn, &pid, &pidfd), 0);
    close(pipes[1]);
    CHECK_INT(env()->read(env(), pipes[0], text, sizeof text), 3);
    CHECK_INT(env()->kill_group(env(), pid, SIGKILL), 0);
    CHECK_INT(env()->read(env(), pipes[0], text, sizeof text), 0); /* both ends are closed */
    CHECK_INT(wait_for(pid, pidfd).signal, SIGKILL);
}

TEST(a_child_dies_with_its_parent)
{
    int pipes[2];
    char text[8];
    CHECK_INT(pipe2(pipes, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t parent = fork();
    if (parent == 0) {
        pid_t pid = 0;
        int pidfd = -1;
        const char *const argv[] = {"sh", "-c", "echo up; exec sleep 1000", NULL};
        ls__env_spawn spawn = {.argv = argv, .stdout_fd = pipes[1], .stderr_fd = -1};
        env()->spawn(env(), &spawn, &pid, &pidfd);
        close(pipes[1]);
        pause();
    }
    close(pipes[1]);
    CHECK_INT(env()->read(env(), pipes[0], text, sizeof text), 3);
    kill(parent, SIGKILL);
    CHECK_INT(env()->read(env(), pipes[0], text, sizeof text), 0); /* the child's end is closed */
    waitpid(parent, NULL, 0);
}

TEST(a_signal_by_pidfd_reaches_the_child)
{
    const char *const argv[] = {"sleep", "1000", NULL};
    ls__env_spawn spawn = {.argv = argv, .stdout_fd = -1, .stderr_fd = -1};
    pid_t pid = 0;
    int pidfd = -1;
    CHECK_INT(env()->spawn(env(), &spawn, &pid, &pidfd), 0);
    ls__env_exit ended;
    CHECK_INT(env()->wait_exit(env(), pid, &ended), -EAGAIN);
    CHECK_INT(env()->kill(env(), pidfd, SIGTERM), 0);
    CHECK_INT(wait_for(pid, pidfd).signal, SIGTERM);
}

/* A program may be started with its standard output closed; what it prints then must not land in
 * shared memory or in a connection. */
TEST(descriptors_leave_0_to_2_to_the_standard_streams)
{
    int fds[11] = {0}, count = 0;
    uint64_t mask;
    for (int fd = 0; fd < 3; fd++) { /* what the harness reads stays open above */
        (void)fcntl(fd, F_DUPFD, 10);
        (void)close(fd);
    }
    fds[count++] = env()->open(env(), "/dev/null", O_RDONLY, 0);
    fds[count++] = env()->shm_create(env(), "test", 4096);
    bool made = env()->socket_pair(env(), fds + count) == 0;
    count += 2;
    made = made && env()->pipe(env(), fds + count) == 0;
    count += 2;
    fds[count++] = env()->signals_open(env(), (const int[]){SIGUSR1}, 1, &mask);
    fds[count++] = env()->watch_parent(env(), getppid());
    char byte = 0;
    made = made && env()->send(env(), fds[2], &byte, 1, fds[1]) == 1 &&
           env()->recv(env(), fds[3], &byte, 1, &fds[count++]) == 1;
    pid_t pid = 0;
    ls__env_spawn spawn = {
        .argv = (const char *const[]){"true", NULL}, .stdout_fd = -1, .stderr_fd = -1};
    made = made && env()->spawn(env(), &spawn, &pid, &fds[count++]) == 0;
    for (int fd = 0; fd < 3; fd++) {
        (void)dup2(10 + fd, fd);
    }
    CHECK(made);
    CHECK_INT(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < count; i++) {
        CHECK(fds[i] > 2);
    }
}

/* Nobody has the other end. */
TEST(a_pipe_in_the_place_of_a_file_is_not_waited_for)
{
    char path[256], byte = 0;
    int pair[2];
    scratch_begin();
    (void)snprintf(path, sizeof path, "%s", scratch_at("pipe"));
    CHECK(mkfifo(path, 0600) == 0);
    const int fd = env()->open(env(), path, O_RDONLY, 0);
    CHECK(fd > 2);
    CHECK_INT(env()->read(env(), fd, &byte, 1), 0);
    const int other = env()->open(env(), path, O_RDWR, 0);
    CHECK_INT(env()->read(env(), fd, &byte, 1), -EAGAIN);
    CHECK(close(other) == 0 && close(fd) == 0);
    CHECK_INT(env()->open(env(), path, O_WRONLY, 0), -ENXIO);
    CHECK(pipe(pair) == 0); /* a stream of this process's own takes its time */
    (void)snprintf(path, sizeof path, "/dev/fd/%d", pair[1]);
    const int out = ls__file_create(env(), path, 0600);
    CHECK(out > 2);
    CHECK((fcntl(out, F_GETFL) & O_NONBLOCK) == 0);
    scratch_end();
}

TEST_MAIN
