/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI that goes wrong. `strikes CASE RANK`: rank RANK dies in a loop of all-reduces,
 * or makes a mistake. test_unchanged.c runs it under the interposer. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, code = MPI_SUCCESS, length = 0;
    long value = 1, sum = 0;
    char text[MPI_MAX_ERROR_STRING] = "";
    const char *name = argc > 2 ? argv[1] : "";
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int it = argc > 2 && rank == atoi(argv[2]);
    if (strcmp(name, "returned") == 0) {
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (strcmp(name, "lengths") == 0) {
        MPI_Allgather(&value, it ? 1 : 0, MPI_LONG, &sum, 0, MPI_LONG, MPI_COMM_WORLD);
    }
    for (int i = 0; i < 1000; i++) {
        if (it && i == 500 && strcmp(name, "killed") == 0) {
            raise(SIGKILL);
        }
        if (it && i == 500) { /* another count */
            long two[2] = {1, 1}, twice[2];
            code = MPI_Allreduce(two, twice, 2, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        } else {
            code = MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        }
        if (code != MPI_SUCCESS) {
            MPI_Error_string(code, text, &length);
            printf("rank %d got an error: %s\n", rank, text);
            fflush(stdout);
            sleep(1);
            _exit(3);
        }
    }
    MPI_Finalize();
    return 0;
}
