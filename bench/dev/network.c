/* SPDX-License-Identifier: Apache-2.0 */
/* An all-reduce between hosts beside the wire: `bench/dev/network.sh` runs it on two hosts that it
 * makes, and over the loopback.
 *
 *     network ADDRESS PORT SAMPLES SIZE…     every rank, as a program of `lockstep run`
 *
 * Two hosts that sum a buffer must each send one buffer and receive one, however many ranks they
 * have. So the floor is what plain sockets between rank 0 and the last rank need to carry the
 * buffer both ways at once: over 1, 2 or 4 connections, of which the fastest counts. Floors and
 * all-reduce are measured in turns; a sample is the slowest rank's. The time of processors is that
 * of all ranks together, for a byte of one rank's buffer.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <lockstep/comm.h>

#define SAMPLES_MAX 101
#define PIECE ((size_t)1 << 18)
#define WARM_UPS 3

#define WIRES_MAX 4
#define FLOORS 3 /* over 1, 2 and 4 connections */

typedef struct wire { /* sockets between the two ends; none elsewhere */
    int fd[WIRES_MAX], count;
    char *piece; /* [PIECE] */
} wire;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double processor_ms(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int new_socket(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) {
        die("network: socket");
    }
    return fd;
}

/* All connections of one end; rank 0 listens. Every rank calls it, for the barrier. */
static void open_wires(wire *w, const char *address, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const int one = 1;
    const bool first = ls_rank() == 0, last = ls_rank() == ls_world_size() - 1;
    const int listener = first ? new_socket() : -1;
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1) {
        die("network: address");
    }
    if (first) {
        (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 ||
            listen(listener, WIRES_MAX) != 0) {
            die("network: listen");
        }
    }
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    for (; (first || last) && w->count < WIRES_MAX; w->count++) {
        const int fd = first ? accept(listener, NULL, NULL) : new_socket();
        if (fd < 0 || (last && connect(fd, (struct sockaddr *)&at, sizeof at) != 0)) {
            die("network: connect");
        }
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        w->fd[w->count] = fd;
    }
    if (first) {
        close(listener);
    }
}

/* Bytes that a call has moved; 0: none for now. */
static size_t moved(ssize_t result)
{
    if (result == 0 || (result < 0 && errno != EAGAIN)) {
        die("network: the plain socket");
    }
    return result > 0 ? (size_t)result : 0;
}

static size_t at_most(size_t bytes)
{
    return bytes < PIECE ? bytes : PIECE;
}

/* `bytes` there and as many back, at once, over the first `wires` connections in equal shares. */
static void exchange(const wire *w, int wires, size_t bytes)
{
    size_t out[WIRES_MAX], in[WIRES_MAX], left = 0;
    struct pollfd item[WIRES_MAX];
    for (int i = 0; i < wires && w->count > 0; i++) {
        out[i] = in[i] = bytes / (size_t)wires + (i == 0 ? bytes % (size_t)wires : 0);
        left += out[i] + in[i];
    }
    while (left > 0) {
        for (int i = 0; i < wires; i++) {
            const int events = (out[i] > 0 ? POLLOUT : 0) | (in[i] > 0 ? POLLIN : 0);
            item[i] = (struct pollfd){.fd = events != 0 ? w->fd[i] : -1, .events = (short)events};
        }
        (void)poll(item, (nfds_t)wires, -1);
        for (int i = 0; i < wires; i++) {
            if (item[i].revents & POLLOUT) {
                const size_t sent = moved(send(w->fd[i], w->piece, at_most(out[i]), MSG_DONTWAIT));
                out[i] -= sent;
                left -= sent;
            }
            if (item[i].revents & (POLLIN | POLLHUP)) {
                const size_t got = moved(recv(w->fd[i], w->piece, at_most(in[i]), MSG_DONTWAIT));
                in[i] -= got;
                left -= got;
            }
        }
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figures { /* samples, ms */
    double floor[FLOORS][SAMPLES_MAX], time[SAMPLES_MAX], processor;
} figures;

static double slowest(double ms)
{
    LS_CHECK(ls_all_reduce(ls_world(), &ms, &ms, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    return ms;
}

static void check_sums(const float *x, int64_t count, int ranks)
{
    for (int64_t i = 0; i < count; i++) {
        if (x[i] != (float)(ranks * (ranks + 1) / 2)) {
            fprintf(stderr, "network: element %lld is %g\n", (long long)i, (double)x[i]);
            exit(1);
        }
    }
}

/* Milliseconds of a call on the slowest rank. */
static double floor_of(const wire *w, int wires, size_t bytes, int calls)
{
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    const double start = now_ms();
    for (int k = 0; k < calls; k++) {
        exchange(w, wires, bytes);
    }
    return slowest(now_ms() - start) / calls;
}

static void measure(const wire *w, float *x, int64_t count, int samples, int calls, figures *out)
{
    const int ranks = ls_world_size();
    out->processor = 0;
    for (int s = -WARM_UPS; s < samples; s++) {
        double floor_ms[FLOORS];
        for (int f = 0; f < FLOORS; f++) {
            floor_ms[f] = floor_of(w, 1 << f, (size_t)count * sizeof *x, calls);
        }
        for (int64_t i = 0; i < count; i++) {
            x[i] = (float)(ls_rank() + 1);
        }
        LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
        const double busy = processor_ms();
        const double start = now_ms();
        for (int k = 0; k < calls; k++) {
            LS_CHECK(ls_all_reduce(ls_world(), x, x, count, LS_FLOAT32, k == 0 ? LS_SUM : LS_MAX,
                                   NULL, NULL));
        }
        const double ms = now_ms() - start, used = processor_ms() - busy;
        if (s >= 0) {
            for (int f = 0; f < FLOORS; f++) {
                out->floor[f][s] = floor_ms[f];
            }
            out->processor += used / calls;
        }
        const double time_ms = slowest(ms) / calls;
        check_sums(x, count, ranks);
        if (s >= 0) {
            out->time[s] = time_ms;
        }
    }
    LS_CHECK(ls_all_reduce(ls_world(), &out->processor, &out->processor, 1, LS_FLOAT64, LS_SUM,
                           NULL, NULL));
    for (int f = 0; f < FLOORS; f++) {
        qsort(out->floor[f], (size_t)samples, sizeof *out->floor[f], ascending);
    }
    qsort(out->time, (size_t)samples, sizeof *out->time, ascending);
}

static void measure_size(const wire *w, size_t bytes, int samples)
{
    const int64_t count = (int64_t)(bytes / sizeof(float));
    const int calls = bytes >= 1000000 ? 1 : 10;
    static figures f;
    float *x = malloc((size_t)count * sizeof *x);
    if (x == NULL) {
        die("network: memory");
    }
    measure(w, x, count, samples, calls, &f);
    if (ls_rank() == 0) {
        int best = 0;
        for (int i = 1; i < FLOORS; i++) {
            best = f.floor[i][samples / 2] < f.floor[best][samples / 2] ? i : best;
        }
        const double floor_ms = f.floor[best][samples / 2], time_ms = f.time[samples / 2];
        printf("%12zu %9.3f %d %9.3f (%.3f to %.3f) %6.2f %8.2f\n", bytes, floor_ms, 1 << best,
               time_ms, f.time[samples / 4], f.time[samples * 3 / 4], time_ms / floor_ms,
               f.processor / samples * 1e6 / (double)bytes);
        fflush(stdout);
    }
    free(x);
}

int main(int argc, char **argv)
{
    const int samples = argc > 4 ? atoi(argv[3]) : 0;
    if (samples < 1 || samples > SAMPLES_MAX) {
        fprintf(stderr, "usage: network ADDRESS PORT SAMPLES SIZE...\n");
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    wire w = {.piece = calloc(1, PIECE)};
    if (w.piece == NULL) {
        die("network: memory");
    }
    open_wires(&w, argv[1], atoi(argv[2]));
    if (ls_rank() == 0) {
        printf("# %d ranks, %d samples; floor: the buffer both ways over 1, 2 or 4 plain sockets\n"
               "# %10s %11s %9s %15s %8s %8s\n",
               ls_world_size(), samples, "bytes", "floor ms, n", "time ms", "quartiles", "ratio",
               "cpu ns/B");
    }
    for (int i = 4; i < argc; i++) {
        measure_size(&w, (size_t)strtoull(argv[i], NULL, 10), samples);
    }
    LS_CHECK(ls_finalize());
    return 0;
}
