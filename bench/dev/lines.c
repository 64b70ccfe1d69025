/* SPDX-License-Identifier: Apache-2.0 */
/* `measure lines`: the time to write a cache line that another core has written, read, or read and
 * claimed (Note [Claimed lines] in base/copy.h). One process writes 128 KiB, another one touches
 * it, the first writes it again, by memset or by words; printed are both processes' times in ns a
 * line, medians of 61 rounds. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/copy.h"
#include "bench/bench.h"

#define BYTES ((size_t)128 << 10)
#define ROUNDS 61

typedef struct shared {
    LS__ALIGNED(LS__CACHE_LINE) _Atomic int turn;
    LS__ALIGNED(LS__CACHE_LINE) unsigned char data[BYTES];
    double ns[2][ROUNDS]; /* of the first, of the second process */
} shared;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void write_lines(shared *s)
{
    memset(s->data, s->turn, BYTES);
}

/* By ordinary stores; memset uses the string instruction for this size. */
static void write_words(shared *s)
{
    volatile uint64_t *word = (volatile uint64_t *)(void *)s->data;
    for (size_t i = 0; i < BYTES / sizeof *word; i++) {
        word[i] = i;
    }
}

static void read_lines(shared *s)
{
    for (size_t i = 0; i < BYTES; i += LS__CACHE_LINE) {
        (void)*(volatile uint64_t *)(void *)(s->data + i);
    }
}

static void read_and_claim(shared *s)
{
    read_lines(s);
    ls__claim_lines(s->data, BYTES);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One of the two processes, on a core of its own where there are two: its turns are those of its
 * parity. */
static void run_process(shared *s, int self, void (*work)(shared *))
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    const bool known = sched_getaffinity(0, sizeof all, &all) == 0;
    for (size_t cpu = 0, seen = 0; known && cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &all) && seen++ == (size_t)self) {
            CPU_SET(cpu, &one);
            (void)sched_setaffinity(0, sizeof one, &one);
        }
    }
    for (int k = 0; k < ROUNDS; k++) {
        while (atomic_load(&s->turn) != 2 * k + self) {
            (void)sched_yield();
        }
        const double start = now_ns();
        work(s);
        s->ns[self][k] = now_ns() - start;
        atomic_fetch_add(&s->turn, 1);
    }
    qsort(s->ns[self], ROUNDS, sizeof s->ns[self][0], compare);
}

static int measure(shared *s, const char *name, void (*first)(shared *), void (*second)(shared *))
{
    atomic_store(&s->turn, 0);
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        run_process(s, 1, second);
        _exit(0);
    }
    cpu_set_t before;
    const int kept = sched_getaffinity(0, sizeof before, &before);
    run_process(s, 0, first);
    if (kept == 0) {
        (void)sched_setaffinity(0, sizeof before, &before);
    }
    (void)waitpid(child, NULL, 0);
    const double lines = (double)BYTES / LS__CACHE_LINE;
    printf("%-24s %6.1f   write again %6.1f\n", name, s->ns[1][ROUNDS / 2] / lines,
           s->ns[0][ROUNDS / 2] / lines);
    return 0;
}

int ls__bench_lines(void)
{
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    puts("the other core              ns a line");
    const int failed = measure(s, "writes", write_lines, write_lines) +
                       measure(s, "reads", write_lines, read_lines) +
                       measure(s, "reads, claims", write_lines, read_and_claim) +
                       measure(s, "reads; words", write_words, read_lines) +
                       measure(s, "reads, claims; words", write_words, read_and_claim);
    (void)munmap(s, sizeof *s);
    return failed != 0;
}
