/* SPDX-License-Identifier: Apache-2.0 */
/* How much of an all-reduce a computation hides. Built by compare_overlap.py as well: over the
 * library, and with -DOVER_MPI by an mpicc, where nothing calls MPI between MPI_Iallreduce and
 * MPI_Waitall. compare_sim.py takes from it how much longer the computation takes.
 *
 *     overlap BUCKETS BYTES FACTOR ROUNDS     started by mpirun, or by lockstep run
 *
 * In turns, ROUNDS times: BUCKETS all-reduces of BYTES of float32 alone; a computation alone; and
 * the computation between their start and their end. The computation is FACTOR times as long as the
 * all-reduces, and makes no call. Rank 0 prints a line a round: "ROUND comm compute both waited",
 * in ms; waited: of both, from the end of the computation on. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BUCKETS_MAX = 64, WARMUPS = 3 };

static float *bucket[BUCKETS_MAX];
static int buckets, count;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- all-reduces ---------------------------------------------------------------------------- */

#ifdef OVER_MPI
#include <mpi.h>

static MPI_Request request[BUCKETS_MAX];
static MPI_Status ended[BUCKETS_MAX];

static int begin_buckets(void)
{
    int rank = 0;
    MPI_Init(NULL, NULL); /* errors end the job, as is MPI's default */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

static void end(void)
{
    MPI_Finalize();
}

static void start(int i)
{
    MPI_Iallreduce(MPI_IN_PLACE, bucket[i], count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request[i]);
}

static void wait_all(void)
{
    MPI_Waitall(buckets, request, ended);
}

static void meet(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static double slowest(double x)
{
    MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return x;
}
#else
#include <lockstep/comm.h>

static ls_work *work[BUCKETS_MAX];

static int begin_buckets(void)
{
    LS_CHECK(ls_init(NULL));
    return ls_rank();
}

static void end(void)
{
    LS_CHECK(ls_finalize());
}

static void start(int i)
{
    LS_CHECK(
        ls_all_reduce(ls_world(), bucket[i], bucket[i], count, LS_FLOAT32, LS_SUM, NULL, &work[i]));
}

static void wait_all(void)
{
    for (int i = 0; i < buckets; i++) {
        LS_CHECK(ls_work_wait(work[i]));
    }
}

static void meet(void)
{
    LS_CHECK(ls_barrier(ls_world(), NULL, NULL));
}

static double slowest(double x)
{
    LS_CHECK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    return x;
}
#endif

/* ---- turns ---------------------------------------------------------------------------------- */

/* In registers: no memory is shared with the all-reduces but the processor's time. */
static void compute(long loops)
{
    volatile double result;
    double a = 1.0, b = 1.0, c = 1.0, d = 1.0;
    for (long i = 0; i < loops * 100; i++) {
        a = a * 1.0000001 + 1e-9;
        b = b * 1.0000001 + 2e-9;
        c = c * 1.0000001 + 3e-9;
        d = d * 1.0000001 + 4e-9;
    }
    result = a + b + c + d;
    (void)result;
}

/* The slowest rank's time of one turn; *waited (may be NULL) of its end. */
static double turn(int communicate, long loops, double *waited)
{
    meet();
    const double begin = now_ms();
    for (int i = 0; communicate && i < buckets; i++) {
        start(i);
    }
    compute(loops);
    const double computed = now_ms();
    if (communicate) {
        wait_all();
    }
    const double end = now_ms();
    if (waited != NULL) {
        *waited = slowest(end - computed);
    }
    return slowest(end - begin);
}

int main(int argc, char **argv)
{
    if (argc != 5 || atoi(argv[1]) < 1 || atoi(argv[1]) > BUCKETS_MAX) {
        fprintf(stderr, "usage: overlap BUCKETS BYTES FACTOR ROUNDS\n");
        return 2;
    }
    const int rank = begin_buckets(), rounds = atoi(argv[4]);
    buckets = atoi(argv[1]);
    count = atoi(argv[2]) / (int)sizeof(float);
    for (int i = 0; i < buckets; i++) {
        bucket[i] = calloc((size_t)count, sizeof(float));
        if (bucket[i] == NULL) {
            return 1;
        }
    }
    double comm = 0.0;
    for (int k = 0; k < WARMUPS; k++) {
        comm = turn(1, 0, NULL);
    }
    long loops = 1000; /* doubled until they take long enough to be measured */
    double took = turn(0, loops, NULL);
    while (took < 50.0) {
        loops *= 2;
        took = turn(0, loops, NULL);
    }
    loops = (long)((double)loops * comm * atof(argv[3]) / took);
    for (int k = 0; k < rounds; k++) {
        comm = turn(1, 0, NULL);
        double waited = 0.0;
        const double alone = turn(0, loops, NULL), both = turn(1, loops, &waited);
        if (rank == 0) {
            printf("ROUND %.3f %.3f %.3f %.3f\n", comm, alone, both, waited);
        }
    }
    for (int i = 0; i < buckets; i++) {
        free(bucket[i]);
    }
    end();
    return 0;
}
