/* SPDX-License-Identifier: Apache-2.0 */
/* An unchanged program of MPI, like osu_allreduce: the time of MPI_Allreduce of floats by size, the
 * mean over the ranks. compare.py runs it with and without the interposer.
 *
 *     mpirun -n 2 ./latency                bytes and microseconds, a line each */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX 10000000
#define TURNS_MAX 5000
#define SECONDS 0.15 /* of a size, about */

static double time_of(const float *in, float *out, int bytes, int turns)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    for (int t = 0; t < turns; t++) {
        MPI_Allreduce(in, out, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return MPI_Wtime() - begun;
}

int main(int argc, char **argv)
{
    static const int sizes[] = {4, 64, 1000, 16000, 64000, 1000000, BYTES_MAX};
    int rank = 0, ranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *in = calloc(1, BYTES_MAX), *out = calloc(1, BYTES_MAX);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && in != NULL && out != NULL; i++) {
        (void)time_of(in, out, sizes[i], 10);
        double sum = 0, seconds = time_of(in, out, sizes[i], 10) / 10;
        MPI_Bcast(&seconds, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        const int turns = seconds * TURNS_MAX < SECONDS ? TURNS_MAX : 5 + (int)(SECONDS / seconds);
        seconds = time_of(in, out, sizes[i], turns);
        MPI_Reduce(&seconds, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%d %.3f\n", sizes[i], sum / ranks / turns * 1e6);
        }
    }
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
