/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes of a job of two ranks, with MPI: rank 1 makes them. `reproduce` builds and runs it. */
#include <mpi.h>

#include "mistake.h"

static int rank;
static float a[2 * COUNT], b[2 * COUNT];

static void fill(void)
{
    for (int i = 0; i < 2 * COUNT; i++) {
        a[i] = (float)(rank + 1);
        b[i] = (float)(100 * (rank + 1));
    }
}

static void sum(float *buf)
{
    MPI_Allreduce(MPI_IN_PLACE, buf, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Calls that differ between the ranks. */
static void disagree(void)
{
    static const char *const here[] = {"shape",     "dtype", "op",      "root",
                                       "operation", "order", "missing", NULL};
    static int whole[COUNT];
    if (rank == 1 && is_one_of(here)) {
        note_fault();
    }
    if (is("shape")) {
        const int count = rank == 1 ? 2 * COUNT : COUNT;
        MPI_Allreduce(MPI_IN_PLACE, a, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        tell_silent(rank, "MPI_Allreduce of 1000 and 2000 floats", a[0], a[count - 1]);
    } else if (is("dtype")) {
        for (int i = 0; i < COUNT; i++) {
            whole[i] = 2;
        }
        MPI_Allreduce(MPI_IN_PLACE, rank == 1 ? (void *)whole : a, COUNT,
                      rank == 1 ? MPI_INT : MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        tell_silent(rank, "MPI_Allreduce of float and int",
                    rank == 1 ? (double)whole[0] : (double)a[0],
                    rank == 1 ? (double)whole[COUNT - 1] : (double)a[COUNT - 1]);
    } else if (is("op")) {
        MPI_Allreduce(MPI_IN_PLACE, a, COUNT, MPI_FLOAT, rank == 1 ? MPI_MAX : MPI_SUM,
                      MPI_COMM_WORLD);
        tell_silent(rank, "MPI_Allreduce of SUM and MAX", a[0], a[COUNT - 1]);
    } else if (is("root")) {
        MPI_Bcast(a, COUNT, MPI_FLOAT, rank, MPI_COMM_WORLD);
        tell_silent(rank, "MPI_Bcast from root 0 and root 1", a[0], a[COUNT - 1]);
    } else if (is("operation")) {
        if (rank == 1) {
            MPI_Bcast(a, COUNT, MPI_FLOAT, 0, MPI_COMM_WORLD);
        } else {
            sum(a);
        }
        tell_silent(rank, "MPI_Allreduce and MPI_Bcast", a[0], a[COUNT - 1]);
    } else if (is("order")) {
        sum(rank == 1 ? b : a);
        sum(rank == 1 ? a : b);
        tell_silent(rank, "MPI_Allreduce of two buffers in another order", a[0], b[0]);
    } else if (is("missing")) {
        if (rank == 0) {
            sum(a);
            tell_silent(rank, "MPI_Allreduce of the first buffer", a[0], a[COUNT - 1]);
        }
        sum(b);
        tell_silent(rank, "MPI_Allreduce of the second buffer", b[0], b[COUNT - 1]);
    }
}

/* Memory that cannot be had: the program checks, says so, and gives up. */
static void run_out_of_memory(void)
{
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    setrlimit(RLIMIT_AS, &limit);
    note_fault();
    if (malloc((size_t)8 << 30) == NULL) {
        fprintf(stderr, "rank %d: no memory for 8 GiB\n", rank);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "";
    folder = argc > 2 ? argv[2] : ".";
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    number = number != NULL ? number : getenv("PMI_RANK");
    rank = number != NULL ? atoi(number) : 0;
    note_pid(rank);
    if (is("start") && rank == 1) { /* ends before it joins */
        note_fault();
        return 0;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fill();
    sum(b); /* one that is right */
    fill();
    disagree();
    if (rank == 1 && is("memory")) {
        run_out_of_memory();
    }
    if (rank == 1) {
        end_as_told();
    }
    if (is("launcher")) {
        sleep(2);
        if (rank == 1) {
            for (;;) {
                pause();
            }
        }
    }
    if (!is("missing")) {
        sum(a);
    }
    MPI_Finalize();
    return 0;
}
