/* An unchanged program of MPI, like osu_allreduce: the time of MPI_Allreduce of floats by size, the mean over
 * the ranks. compare_pmpi.py runs it with and without the interposer.
 *
 *     mpirun -n 2 ./mpi_latency            bytes and microseconds, a line each */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES_MAX 10000000

int main(int argc, char **argv)
{
    static const int sizes[] = {4, 64, 1000, 16000, 64000, 1000000, BYTES_MAX};
    int rank = 0, ranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *in = calloc(1, BYTES_MAX), *out = calloc(1, BYTES_MAX);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && in != NULL && out != NULL; i++) {
        const int turns = sizes[i] < 10000 ? 5000 : sizes[i] < 100000 ? 1000 : 60000000 / sizes[i];
        double seconds = 0, sum = 0;
        for (int t = -turns / 10; t < turns; t++) {
            if (t == 0) {
                MPI_Barrier(MPI_COMM_WORLD);
                seconds = -MPI_Wtime();
            }
            MPI_Allreduce(in, out, sizes[i] / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        seconds += MPI_Wtime();
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
