/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers, and a rank that they try to disturb; run by strangers.c.
 *
 *     stranger address               prints an IPv4 address of this host, if possible not loopback
 *     stranger rank                  steps with sums that are compared, until the file "stop"
 *                                    exists; rank 1 begins once the file "doors" exists
 *     stranger store ADDRESS PORT N  N connections of all kinds to the port once somebody listens,
 *                                    then makes "stop"; prints how many descriptors the listener
 *                                    had at most
 *     stranger doors ADDRESS         as many to every data port of a rank, then makes "doors"
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/comm.h>

#include "job/link/internal.h"
#include "job/link/listener.h"
#include "port_owner.h"

#define AT_ONCE 600
#define DOOR_CONNECTIONS 2000

static const ls__env *env;

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void make(const char *path)
{
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)close(fd);
    }
}

static int say_address(void)
{
    ls__env_interface all[64];
    const char *found = "127.0.0.1";
    const int count = env->interfaces(env, all, 64);
    for (int i = 0; i < count; i++) {
        if (!all[i].loopback && strchr(all[i].address, ':') == NULL) {
            found = all[i].address;
        }
    }
    puts(found);
    return 0;
}

/* ---- a rank ------------------------------------------------------------------------------- */

enum { COUNT = 5000 };

/* Element 0 says whether rank 0 wants to stop. */
static bool step(int64_t number, bool *stop)
{
    static int64_t x[COUNT];
    const int rank = ls_rank(), size = ls_world_size();
    for (int i = 1; i < COUNT; i++) {
        x[i] = (rank + 1) * (i + number);
    }
    x[0] = rank == 0 && exists("stop");
    LS_CHECK(ls_all_reduce(ls_world(), x, x, COUNT, LS_INT64, LS_SUM, NULL, NULL));
    *stop = x[0] != 0;
    for (int i = 1; i < COUNT; i++) {
        if (x[i] != (i + number) * size * (size + 1) / 2) {
            return false;
        }
    }
    return true;
}

static int be_rank(void)
{
    const char *rank = getenv("RANK");
    while (rank != NULL && strcmp(rank, "1") == 0 && !exists("doors")) {
        pause_ms(10);
    }
    LS_CHECK(ls_init(NULL));
    int64_t number = 0;
    bool stop = false;
    while (!stop) {
        if (!step(number++, &stop)) {
            printf("rank %d: step %lld is wrong\n", ls_rank(), (long long)number);
            return 1;
        }
        pause_ms(1);
    }
    printf("rank %d: all sums were right\n", ls_rank());
    LS_CHECK(ls_finalize());
    return 0;
}

/* ---- strangers ---------------------------------------------------------------------------- */

static int held[AT_ONCE];

/* Of six kinds: silence, one byte, another protocol, half a handshake, a huge length, and a code
 * that is wrong behind a hello that is right (a recorded proof looks like that). */
static void knock(const char *address, int port, int number)
{
    static const unsigned char huge[64] = {0x31, 0x4b, 0x53, 0x4c, 0xff, 0xff, 0xff, 0xff, 0xff};
    struct {
        ls__proof_hello hello;
        uint8_t code[LS__PROOF_MAC];
    } proof = {
        .hello = {
            .magic = 0x4c534b31u, .version = 2, .client = 1, .mode = (uint8_t)(number / 6 % 2)}};
    const void *bytes[] = {"", "x", "GET / HTTP/1.1\r\n\r\n", &proof, huge, &proof};
    const size_t sizes[] = {0, 1, 18, sizeof proof.hello, sizeof huge, sizeof proof};
    int *fd = &held[number % AT_ONCE];
    if (*fd > 0) {
        env->close(env, *fd);
    }
    *fd = env->tcp_connect(env, address, port, NULL);
    if (*fd > 0) {
        (void)env->send(env, *fd, bytes[number % 6], sizes[number % 6], -1);
    }
}

static void leave_all(void)
{
    for (int i = 0; i < AT_ONCE; i++) {
        if (held[i] > 0) {
            env->close(env, held[i]);
            held[i] = 0;
        }
    }
}

static int count_entry(void *arg, const char *name)
{
    (void)name;
    ++*(int *)arg;
    return 0;
}

/* Of the process that `owner` names. */
static int descriptors(const char *owner)
{
    char folder[64];
    long pid = 0;
    int count = 0;
    if (sscanf(owner, "process %ld", &pid) != 1) {
        return 0;
    }
    snprintf(folder, sizeof folder, "/proc/%ld/fd", pid);
    (void)env->list(env, folder, count_entry, &count);
    return count;
}

static int disturb_store(const char *address, int port, int total)
{
    char owner[256] = "";
    while (strncmp(ls__port_owner(env, port, owner, sizeof owner), "process", 7) != 0) {
        pause_ms(10);
    }
    const int before = descriptors(owner);
    int most = 0;
    for (int i = 0; i < total; i++) {
        knock(address, port, i);
        const int now = i % 100 == 0 ? descriptors(owner) : 0;
        most = now > most ? now : most;
        if (i % 500 == 499) {
            pause_ms(20); /* so that they come from beginning to end, not in one moment */
        }
    }
    while (!exists("doors")) {
        pause_ms(10);
    }
    printf("strangers: the store's process had %d descriptors more at most\n", most - before);
    printf("strangers: within bounds: %s\n",
           most - before < LS__LISTENER_PENDING + 24 ? "yes" : "no");
    leave_all();
    make("stop");
    return 0;
}

/* The ports that a process with "stranger rank" as its command listens on. */
static int disturb_doors(const char *address)
{
    char line[512], owner[256];
    int found = 0;
    while (found == 0) {
        FILE *f = fopen("/proc/net/tcp", "re");
        while (f != NULL && fgets(line, sizeof line, f) != NULL) {
            unsigned port = 0, state = 0;
            if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x", &port, &state) == 2 &&
                state == 10 &&
                strstr(ls__port_owner(env, (int)port, owner, sizeof owner), "stranger rank")) {
                found++;
                for (int i = 0; i < DOOR_CONNECTIONS; i++) {
                    knock(address, (int)port, i);
                }
            }
        }
        if (f != NULL) {
            (void)fclose(f);
        }
        pause_ms(5);
    }
    make("doors");
    pause_ms(200); /* they are still there when the other ranks come */
    leave_all();
    printf("strangers: %d data port%s\n", found, found == 1 ? "" : "s");
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    env = ls__env_posix();
    (void)env->allow_descriptors(env, AT_ONCE + 64);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(mode, "address") == 0) {
        return say_address();
    }
    if (strcmp(mode, "rank") == 0) {
        return be_rank();
    }
    if (strcmp(mode, "store") == 0 && argc == 5) {
        return disturb_store(argv[2], atoi(argv[3]), atoi(argv[4]));
    }
    return strcmp(mode, "doors") == 0 && argc == 3 ? disturb_doors(argv[2]) : 2;
}
