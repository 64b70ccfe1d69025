/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of encryption: plain and TLS links between two processes of this host, in turns.
 *
 *     make bench-dev && build/bench/dev/links
 *
 * Throughput counts the bytes of one stream in one direction, read as they come and thrown away.
 * The handshake is from connecting until both ends have proved the secret (and TLS is made).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "job/link/listener.h"

#define STREAM_BYTES ((size_t)1 << 28)
#define PIECE ((size_t)1 << 17)
#define ROUNDS 7
#define HANDSHAKES 200

static const ls__env *env;
static uint8_t piece[PIECE];

static void wait_for(int fd, bool write)
{
    ls__env_poll item = {.fd = fd, .want_read = true, .want_write = write};
    (void)env->poll(env, &item, 1, LS__NEVER);
}

static void die(const char *what)
{
    fprintf(stderr, "links: %s: %s\n", what, ls_error_message());
    exit(1);
}

/* Reads until the peer closes; answers with one byte after each stream. */
static void serve(ls__link *link)
{
    size_t held = 0;
    for (;;) {
        const ssize_t got = ls__link_read(link, piece, sizeof piece);
        if (got == -EAGAIN) {
            wait_for(ls__link_fd(link), false);
            continue;
        }
        if (got <= 0) {
            return;
        }
        held += (size_t)got;
        if (held == STREAM_BYTES) {
            const ls__env_span answer = {piece, 1};
            held = 0;
            (void)ls__link_send(link, &answer, 1);
        }
    }
}

static void be_door(ls__listener *door)
{
    for (;;) {
        ls__link *link = ls__listener_next(door);
        if (link == NULL) {
            wait_for(ls__listener_fd(door), false);
            continue;
        }
        serve(link);
        ls__link_close(link);
    }
}

static ls__link *come_in(const ls__link_spec *spec, int port)
{
    ls__link *link = NULL;
    if (ls__link_connect(spec, "127.0.0.1", port, NULL, &link) < 0) {
        die("connecting");
    }
    for (ls_status s = LS_IN_PROGRESS; s != LS_OK;) {
        s = ls__link_handshake(link);
        if (s < 0) {
            die("handshake");
        }
        if (s == LS_IN_PROGRESS) {
            wait_for(ls__link_fd(link), ls__link_wants_write(link));
        }
    }
    return link;
}

static double seconds_since(uint64_t start)
{
    return (double)(env->now_ns(env) - start) * 1e-9;
}

static double stream_seconds(ls__link *link)
{
    const uint64_t start = env->now_ns(env);
    for (size_t sent = 0; sent < STREAM_BYTES || ls__link_flush(link) == -EAGAIN;) {
        const size_t left = STREAM_BYTES - sent;
        const ls__env_span span = {piece, left < PIECE ? left : PIECE};
        const ssize_t put = left > 0 ? ls__link_send(link, &span, 1) : -EAGAIN;
        sent += put > 0 ? (size_t)put : 0;
        if (put == -EAGAIN) {
            wait_for(ls__link_fd(link), true);
        } else if (put < 0) {
            die("sending");
        }
    }
    while (ls__link_read(link, piece, 1) == -EAGAIN) {
        wait_for(ls__link_fd(link), false);
    }
    return seconds_since(start);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void say(const char *what, const char *mode, double *x, int count, const char *unit)
{
    qsort(x, (size_t)count, sizeof *x, ascending);
    printf("%-11s %-6s median %9.1f  (%.1f to %.1f) %s\n", what, mode, x[count / 2], x[0],
           x[count - 1], unit);
}

int main(void)
{
    static const char *const names[] = {"plain", "TLS"};
    static const uint8_t secret[LS__LINK_SECRET] = {1};
    static double shake[2][HANDSHAKES], speed[2][ROUNDS];
    ls__listener *door[2];
    pid_t child[2];
    env = ls__env_posix();
    ls__link_spec spec = {.env = env, .secret = secret, .purpose = "bench"};
    for (int m = 0; m < 2; m++) {
        spec.mode = (ls__link_mode)m;
        if (ls__listener_open(&spec, "127.0.0.1", 0, &door[m]) < 0) {
            die("listening");
        }
        child[m] = fork();
        if (child[m] == 0) {
            be_door(door[m]);
        }
    }
    for (int i = 0; i < 2 * HANDSHAKES; i++) {
        spec.mode = (ls__link_mode)(i % 2);
        const uint64_t start = env->now_ns(env);
        ls__link *link = come_in(&spec, ls__listener_port(door[i % 2]));
        shake[i % 2][i / 2] = seconds_since(start) * 1e6;
        ls__link_close(link);
    }
    for (int i = 0; i < 2 * ROUNDS; i++) {
        spec.mode = (ls__link_mode)(i % 2);
        ls__link *link = come_in(&spec, ls__listener_port(door[i % 2]));
        speed[i % 2][i / 2] = (double)STREAM_BYTES * 1e-6 / stream_seconds(link);
        ls__link_close(link);
    }
    for (int m = 0; m < 2; m++) {
        say("handshake", names[m], shake[m], HANDSHAKES, "us");
        say("throughput", names[m], speed[m], ROUNDS, "MB/s");
        (void)kill(child[m], SIGKILL);
        (void)waitpid(child[m], NULL, 0);
    }
    return 0;
}
