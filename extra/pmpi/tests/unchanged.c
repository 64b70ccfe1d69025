/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI that does not know Lockstep: every blocking collective with many types,
 * operators and counts, on several communicators. `unchanged write FILE` records what each rank
 * gets in FILE.RANK; `unchanged compare FILE` compares, bit by bit, or for sums of floats with the
 * error of another order of addition. test_unchanged.c runs the one without and the other with the
 * interposer. */
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unchanged.h"

bool quick;
static FILE *file;
static bool compares;
static long wrong, records;
static uint32_t state;

void check_at(bool right, int line)
{
    wrong += !right;
    if (!right && wrong < 5) {
        fprintf(stderr, "unchanged.c:%d: wrong\n", line);
    }
}

/* Rounding of a sum of a few numbers below 1 in magnitude. */
static bool is_near(const void *a, const void *b, size_t bytes, int digits)
{
    for (size_t at = 0; at < bytes; at += digits == 6 ? sizeof(float) : sizeof(double)) {
        double x, y;
        if (digits == 6) {
            float fx, fy;
            memcpy(&fx, (const char *)a + at, sizeof fx);
            memcpy(&fy, (const char *)b + at, sizeof fy);
            x = fx;
            y = fy;
        } else {
            memcpy(&x, (const char *)a + at, sizeof x);
            memcpy(&y, (const char *)b + at, sizeof y);
        }
        if (!(fabs(x - y) <= (digits == 6 ? 1e-5 : 1e-13) * (1 + fabs(x)))) {
            return false;
        }
    }
    return true;
}

void record(const void *data, size_t bytes, int digits)
{
    records++;
    if (!compares) {
        fwrite(data, 1, bytes, file);
        return;
    }
    void *was = malloc(bytes + 1);
    const bool whole = fread(was, 1, bytes, file) == bytes;
    const bool same =
        whole && (digits == 0 ? memcmp(was, data, bytes) == 0 : is_near(was, data, bytes, digits));
    if (!same && wrong++ < 5) {
        fprintf(stderr, "record %ld of %zu bytes differs\n", records, bytes);
    }
    free(was);
}

uint32_t draw(void)
{
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

/* The world, a duplicate, reversed parts, and a communicator made again and again after it is
 * freed. */
static void on_all_communicators(int rank)
{
    MPI_Comm duplicate, part;
    reductions(MPI_COMM_WORLD);
    movers(MPI_COMM_WORLD);
    passed_through(MPI_COMM_WORLD);
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
    few(duplicate);
    few(part);
    few(MPI_COMM_SELF);
    if (rank % 2 == 0) { /* freed in another order on other ranks */
        MPI_Comm_free(&duplicate);
        MPI_Comm_free(&part);
    } else {
        MPI_Comm_free(&part);
        MPI_Comm_free(&duplicate);
    }
    for (int i = 0; i < 20; i++) {
        MPI_Comm_split(MPI_COMM_WORLD, rank % (i % 3 + 1), rank, &part);
        few(part);
        MPI_Comm_free(&part);
    }
}

int main(int argc, char **argv)
{
    char path[1024];
    int rank, size, level;
    if (argc != 3) {
        return 2;
    }
    MPI_Init_thread(&argc, &argv, getenv("MULTIPLE") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE,
                    &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    compares = strcmp(argv[1], "compare") == 0;
    snprintf(path, sizeof path, "%.1000s.%d", argv[2], rank);
    file = fopen(path, compares ? "rb" : "wb");
    quick = getenv("QUICK") != NULL;
    state = 7u * (uint32_t)rank + 1u;
    if (file != NULL) {
        on_all_communicators(rank);
        progress(rank, size);
        if (level == MPI_THREAD_MULTIPLE) {
            threads();
        }
        fclose(file);
    }
    long all = 0;
    wrong += file == NULL;
    MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("%s %ld records, %ld wrong\n", compares ? "compared" : "wrote", records, all);
        fflush(stdout); /* MPI_Finalize may not return */
    }
    MPI_Finalize();
    return all != 0;
}
