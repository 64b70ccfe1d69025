/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the loops of peak_loop.c, and copies, on threads that begin together; the best of a few. */
#include "peak.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"

#define THREADS_MAX 256
#define TRIES 5
#define ROUNDS 2000000
#define COPY_BYTES ((size_t)96 << 20)

double ls__bench_peak_base(int64_t rounds, float times, float plus);
double ls__bench_peak_v3(int64_t rounds, float times, float plus);
double ls__bench_peak_v4(int64_t rounds, float times, float plus);

typedef struct runner {
    pthread_barrier_t *start;
    double (*work)(struct runner *self); /* what it did */
    char *from, *to;
    double best; /* a second */
} runner;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double multiply_add(runner *self)
{
    (void)self;
    switch (ls__cpu_best()) {
#if defined(__x86_64__)
    case LS__ISA_V4:
        return ls__bench_peak_v4(ROUNDS, 0.5f, 1.0f);
    case LS__ISA_V3:
        return ls__bench_peak_v3(ROUNDS, 0.5f, 1.0f);
#endif
    default:
        return ls__bench_peak_base(ROUNDS, 0.5f, 1.0f);
    }
}

static double multiply_tiles(runner *self)
{
    (void)self;
    return ls__bench_peak_amx(ROUNDS / 4);
}

static double copy(runner *self)
{
    memcpy(self->to, self->from, COPY_BYTES);
    return 2.0 * (double)COPY_BYTES;
}

static void *run_loop(void *arg)
{
    runner *self = arg;
    for (int i = 0; i < TRIES; i++) {
        pthread_barrier_wait(self->start);
        const double begin = seconds();
        const double rate = self->work(self) / (seconds() - begin);
        self->best = rate > self->best ? rate : self->best;
    }
    return NULL;
}

static double together(runner *runners, int threads)
{
    pthread_t thread[THREADS_MAX];
    pthread_barrier_t start;
    double sum = 0.0;
    if (pthread_barrier_init(&start, NULL, (unsigned)threads) != 0) {
        return 0.0;
    }
    for (int i = 0; i < threads; i++) {
        runners[i].start = &start;
        if (i > 0 && pthread_create(&thread[i], NULL, run_loop, &runners[i]) != 0) {
            abort(); /* those before it wait at the barrier */
        }
    }
    (void)run_loop(&runners[0]);
    for (int i = 0; i < threads; i++) {
        if (i > 0) {
            (void)pthread_join(thread[i], NULL);
        }
        sum += runners[i].best;
    }
    (void)pthread_barrier_destroy(&start);
    return sum;
}

static int capped(int threads)
{
    return threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
}

static double in_registers(double (*work)(runner *self), int threads)
{
    runner runners[THREADS_MAX] = {{0}};
    threads = capped(threads);
    for (int i = 0; i < threads; i++) {
        runners[i].work = work;
    }
    return together(runners, threads);
}

double ls__bench_peak_flops(int threads)
{
    return in_registers(multiply_add, threads);
}

double ls__bench_peak_tiles(int threads)
{
    const bool here = ls__cpu_best_level() == LS__CPU_AMX && ls__bench_amx_allowed();
    return here ? in_registers(multiply_tiles, threads) : 0.0;
}

double ls__bench_peak_copy(int threads)
{
    runner runners[THREADS_MAX] = {{0}};
    threads = capped(threads);
    char *memory = malloc(2 * COPY_BYTES * (size_t)threads);
    if (memory == NULL) {
        return 0.0;
    }
    memset(memory, 1, 2 * COPY_BYTES * (size_t)threads);
    for (int i = 0; i < threads; i++) {
        runners[i].work = copy;
        runners[i].from = memory + 2 * COPY_BYTES * (size_t)i;
        runners[i].to = runners[i].from + COPY_BYTES;
    }
    const double rate = together(runners, threads);
    free(memory);
    return rate;
}
