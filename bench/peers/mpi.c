/* SPDX-License-Identifier: Apache-2.0 */
/* MPI as a contender: built with mpicc.openmpi and with mpicc.mpich. Which settings are best for
 * which size is known in compare.py; they are all variables of the environment. */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "contender.h"

/* Huge pages come by glibc's tunable, if compare.py sets it. */
static void *allocate(size_t bytes, bool registered)
{
    return registered ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void release(void *memory, bool registered)
{
    (void)registered;
    free(memory);
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void maximum(double *x, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void operate(contender_op op, const float *in, float *out, int64_t count)
{
    const int n = (int)count; /* 1000 MB are 250 million elements */
    switch (op) {
    case CONTENDER_ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case CONTENDER_ALL_GATHER:
        MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case CONTENDER_BROADCAST:
        MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case CONTENDER_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case CONTENDER_ALL_TO_ALL:
        MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    }
}

/* argv[1]: the folder of the pipes, or --once. */
int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv); /* errors end the job, as is MPI's default */
    contender self = {.allocate = allocate,
                      .release = release,
                      .barrier = barrier,
                      .maximum = maximum,
                      .operate = operate};
    MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &self.ranks);
    int status = 2;
    if (argc == 2 && strcmp(argv[1], "--once") == 0) {
        status = contender_once(&self);
    } else if (argc == 2) {
        status = contender_serve(&self, argv[1]);
    }
    MPI_Finalize();
    return status;
}
