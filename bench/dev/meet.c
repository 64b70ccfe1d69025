/* SPDX-License-Identifier: Apache-2.0 */
/* What it costs ranks to wait for each other between computations: each computes for MICROSECONDS
 * of its processor's time and calls an all-reduce of BYTES, or sends BYTES around a ring while it
 * computes, MEETS times; in turns with as much computation that waits for nobody. Ranks that share
 * cores lose the time in which a core has only ranks that wait, and that of switching between them.
 * compare_sim.py takes both from here.
 *
 *     meet sum|shift MICROSECONDS BYTES ROUNDS     started by lockstep run
 *
 * Rank 0 prints a line a round: "ROUND alone with", in microseconds of one meeting. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/comm.h>

enum { MEETS = 50, WARMUPS = 2, TAG = 1 };

static float *out, *in;
static int count;
static bool shifts;

static double clock_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* In registers, so caches do not matter. */
static void compute(long loops)
{
    volatile double result;
    double a = 1.0, b = 1.0, c = 1.0, d = 1.0;
    for (long i = 0; i < loops * 10; i++) {
        a = a * 1.0000001 + 1e-9;
        b = b * 1.0000001 + 2e-9;
        c = c * 1.0000001 + 3e-9;
        d = d * 1.0000001 + 4e-9;
    }
    result = a + b + c + d;
    (void)result;
}

static void sum(long loops)
{
    compute(loops);
    LS_CHECK(ls_all_reduce(ls_world(), out, out, count, LS_FLOAT32, LS_SUM, NULL, NULL));
}

static void shift(long loops)
{
    const int n = ls_group_size(ls_world()), me = ls_rank();
    ls_work *receive, *send;
    LS_CHECK(ls_recv(ls_world(), in, count, LS_FLOAT32, (me + n - 1) % n, TAG, NULL, &receive));
    LS_CHECK(ls_send(ls_world(), out, count, LS_FLOAT32, (me + 1) % n, TAG, NULL, &send));
    compute(loops);
    LS_CHECK(ls_work_wait(receive));
    LS_CHECK(ls_work_wait(send));
}

/* Microseconds of a meeting, until the slowest rank has had all of them. */
static double turn(bool meets, long loops)
{
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    const double begin = clock_us(CLOCK_MONOTONIC);
    for (int i = 0; i < MEETS; i++) {
        if (!meets) {
            compute(loops);
        } else if (shifts) {
            shift(loops);
        } else {
            sum(loops);
        }
    }
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
    return (clock_us(CLOCK_MONOTONIC) - begin) / MEETS;
}

/* Loops that take so many microseconds of this thread's processor, on the first rank. */
static long loops_of(double microseconds)
{
    long loops = 1000;
    double took = 0.0;
    while (took < 2e4) {
        loops *= 2;
        const double begin = clock_us(CLOCK_THREAD_CPUTIME_ID);
        compute(loops);
        took = clock_us(CLOCK_THREAD_CPUTIME_ID) - begin;
    }
    int64_t wanted = (int64_t)((double)loops * microseconds / took);
    LS_CHECK(ls_broadcast(ls_world(), &wanted, 1, LS_INT64, 0, NULL, NULL));
    return (long)wanted;
}

int main(int argc, char **argv)
{
    if (argc != 5 || (strcmp(argv[1], "sum") != 0 && strcmp(argv[1], "shift") != 0)) {
        fprintf(stderr, "usage: meet sum|shift MICROSECONDS BYTES ROUNDS\n");
        return 2;
    }
    LS_CHECK(ls_init(NULL));
    shifts = strcmp(argv[1], "shift") == 0;
    count = atoi(argv[3]) / (int)sizeof(float);
    out = calloc((size_t)count + 1, sizeof(float));
    in = calloc((size_t)count + 1, sizeof(float));
    if (out == NULL || in == NULL) {
        return 1;
    }
    const long loops = loops_of(atof(argv[2]));
    for (int k = -WARMUPS; k < atoi(argv[4]); k++) {
        const double alone = turn(false, loops), with = turn(true, loops);
        if (ls_rank() == 0 && k >= 0) {
            printf("ROUND %.2f %.2f\n", alone, with);
        }
    }
    free(out);
    free(in);
    LS_CHECK(ls_finalize());
    return 0;
}
