/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that joins a world and uses what lies below the engine: store, board, descriptors.
 *
 *     member port          prints a port of the loopback that is free
 *     member join          values across hosts, a counter, descriptors within a host
 *     member die R HOW     rank R ends (kill, exit, code; note: with a failure of its own on the
 *                          board) once all are there; the others wait in the store or on the board,
 *                          and print the root cause
 *     member squat UID ADDRESS PORT N   as user 65534: takes a name by which N ranks of user UID
 *                          might meet, as releases before 0.2 did; a file squats appears
 *     member mute          a name server that answers nothing, in a network of its own: a file mute
 *                          appears when it is there, and a file asked at the first question
 *     member early         joins, and says which ranks had been started by then
 *     member hold          all meet; then a file up.RANK appears and they wait for go.RANK
 */
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "job/bootstrap/bootstrap.h"
#include "job/store/store.h"

#define TIMEOUT_MS 20000

static ls__boot boot;

static void must(ls_status status, const char *what)
{
    if (status < 0) {
        printf("%s: %s\n", what, ls_error_message());
        exit(3);
    }
}

static void require(bool good, const char *what)
{
    if (!good) {
        printf("rank %d: not so: %s\n", boot.rank, what);
        exit(4);
    }
}

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* All ranks have come here. */
static void meet(const char *name)
{
    char key[64];
    int64_t count = 0;
    snprintf(key, sizeof key, "meet/%s", name);
    must(ls_store_add(boot.store, key, 1, &count, TIMEOUT_MS), "add");
    snprintf(key, sizeof key, "met/%s", name);
    if (count == boot.world_size) {
        must(ls_store_set(boot.store, key, "", 0, TIMEOUT_MS), "set");
    }
    must(ls_store_wait(boot.store, key, TIMEOUT_MS), "wait");
}

static void exchange_values(void)
{
    static char value[LS_STORE_VALUE_MAX];
    char key[32];
    const size_t bytes = boot.rank == 1 ? sizeof value : 100;
    memset(value, 'a' + boot.rank, sizeof value);
    snprintf(key, sizeof key, "value/%d", boot.rank);
    must(ls_store_set(boot.store, key, value, bytes, TIMEOUT_MS), "set");
    for (int r = 0; r < boot.world_size; r++) {
        size_t got = sizeof value;
        snprintf(key, sizeof key, "value/%d", r);
        must(ls_store_get(boot.store, key, value, &got, TIMEOUT_MS), "get");
        require(got == (r == 1 ? sizeof value : 100) && value[0] == 'a' + r &&
                    value[got - 1] == 'a' + r,
                "a value comes as it was set");
    }
    ls_status status = ls_store_wait(boot.store, "never", 50);
    require(status == LS_ERR_TIMEOUT && strstr(ls_error_message(), "\"never\"") != NULL,
            "a key that nobody sets is named");
}

/* Each rank's memfd holds its rank; the peers of its host read it. */
static void exchange_descriptors(const ls__env *env)
{
    char key[32];
    int32_t number = boot.rank;
    int fd = env->shm_create(env, "member", 4096);
    require(env->write(env, fd, &number, sizeof number) == sizeof number, "write");
    snprintf(key, sizeof key, "fd/%d", boot.rank);
    must(ls__store_put_fd(boot.store, key, fd, TIMEOUT_MS), "put_fd");
    int here = 0;
    for (int r = 0; r < boot.world_size; r++) {
        int local = ls__board_local(boot.board, r), got = -1;
        if (local < 0) {
            continue;
        }
        here++;
        snprintf(key, sizeof key, "fd/%d", r);
        must(ls__store_get_fd(boot.store, key, &got, TIMEOUT_MS), "get_fd");
        require(pread(got, &number, sizeof number, 0) == sizeof number && number == r,
                "a descriptor is its owner's");
        env->close(env, got);
        require((local == boot.local_rank) == (r == boot.rank), "places on the board");
    }
    require(here == boot.local_size, "as many as stand on the board");
    env->close(env, fd);
}

static int early(void)
{
    int started = 0;
    for (int r = 0; r < boot.local_size; r++) {
        started += atomic_load(&boot.board->rank[r].life) != LS__LIFE_EMPTY;
    }
    printf("joined %s\n",
           started < boot.local_size ? "while others were started" : "after the last start");
    return 0;
}

static int join(const ls__env *env)
{
    exchange_values();
    exchange_descriptors(env);
    meet("end");
    printf("member %d of %d, local %d of %d, at %s, %s: joined\n", boot.rank, boot.world_size,
           boot.local_rank, boot.local_size, boot.address[0] != '\0' ? boot.address : "-",
           boot.plain ? "plain" : "protected");
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As a group does when it finds that ranks do not fit. */
static void note_failure(void)
{
    ls__board_rank *place = &boot.board->rank[boot.local_rank];
    snprintf(place->failed_text, sizeof place->failed_text, "planted mismatch of rank %d",
             boot.rank);
    atomic_store(&place->failed_ns, ls__env_posix()->now_ns(ls__env_posix()));
    atomic_store(&place->failed, (uint32_t)-LS_ERR_MISMATCH);
}

static int die(int victim, const char *how)
{
    meet("start");
    if (boot.rank == victim) {
        pause_ms(100);
        if (strcmp(how, "kill") == 0) {
            kill(getpid(), SIGKILL);
        }
        if (strcmp(how, "note") == 0) {
            note_failure();
        }
        _exit(strcmp(how, "code") == 0 ? 7 : 0);
    }

    const double start = now();
    if (boot.rank % 2 == 0) {
        ls_status status = ls_store_wait(boot.store, "never", TIMEOUT_MS);
        printf("rank %d: %s after %.1f s: %s\n", boot.rank, ls_status_name(status), now() - start,
               ls_error_message());
    } else {
        while (atomic_load(&boot.board->root_cause) == 0 && now() - start < 20) {
            pause_ms(2);
        }
        printf("rank %d: root cause after %.1f s: %s\n", boot.rank, now() - start,
               boot.board->root_cause_text);
    }
    fflush(stdout);
    return 1;
}

static int hold(void)
{
    char name[32];
    meet("start");
    snprintf(name, sizeof name, "up.%d", boot.rank);
    FILE *file = fopen(name, "w");
    require(file != NULL && fprintf(file, "%d\n", (int)getpid()) > 0 && fclose(file) == 0, "up");
    snprintf(name, sizeof name, "go.%d", boot.rank);
    while (access(name, F_OK) != 0) {
        pause_ms(5);
    }
    return 0;
}

/* The name was made of what everybody can know: user, launcher, variables. */
static int squat(char **arguments)
{
    char job[256];
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    snprintf(job, sizeof job, "%s/%s///0/%s/0", arguments[1], arguments[2], arguments[3]);
    for (const char *c = job; *c != '\0'; c++) {
        hash = (hash ^ (uint8_t)*c) * 0x100000001b3u;
    }
    const int length =
        snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "lockstep/%s/environment/%016llx",
                 arguments[0], (unsigned long long)hash);
    const socklen_t bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    FILE *file = fopen("squats", "w");
    require(file != NULL && setuid(65534) == 0, "another user");
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    require(bind(fd, (const struct sockaddr *)&at, bytes) == 0 && listen(fd, 10) == 0, "taken");
    require(fprintf(file, "%s\n", job) > 0 && fclose(file) == 0, "said");
    pause_ms(30000); /* the test ends it before */
    return 0;
}

/* Touches a file: scripts wait for it. */
static void show(const char *name)
{
    FILE *file = fopen(name, "w");
    require(file != NULL && fputs("yes\n", file) >= 0 && fclose(file) == 0, name);
}

/* A name server that answers nothing, in a network of its own. */
static int mute(void)
{
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char question[512];
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    require(ioctl(fd, SIOCSIFFLAGS, &loopback) == 0, "a loopback");
    require(bind(fd, (const struct sockaddr *)&at, sizeof at) == 0, "port 53");
    show("mute");
    require(recv(fd, question, sizeof question, 0) > 0, "a question");
    show("asked");
    pause_ms(30000); /* the test ends it before */
    return 0;
}

int main(int argc, char **argv)
{
    const ls__env *env = ls__env_posix();
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "port") == 0) {
        printf("%d\n", env->free_port(env));
        return 0;
    }
    if (strcmp(mode, "mute") == 0) {
        return mute();
    }
    if (strcmp(mode, "squat") == 0 && argc > 5) {
        return squat(argv + 2);
    }
    must(ls__bootstrap(env, TIMEOUT_MS, &boot), "bootstrap");
    int status = strcmp(mode, "die") == 0 && argc > 3 ? die(atoi(argv[2]), argv[3])
                 : strcmp(mode, "hold") == 0          ? hold()
                 : strcmp(mode, "early") == 0         ? early()
                                                      : join(env);
    fflush(stdout);
    ls__bootstrap_close(env, &boot);
    return status;
}
