/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI that makes groups of its communicators. `groups CASE`; test_groups.c runs it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/mpi.h>

#define AT_ONCE_SECONDS 10 /* MPICH's ranks spin, and wait long for each other beside other work */

static int rank, size;

/* Rank 0 prints what all ranks agree on: "ok", or how many are wrong. */
static void report(bool right)
{
    int wrong = !right, all = 0;
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf(all == 0 ? "all ranks are right\n" : "%d ranks are wrong\n", all);
    }
}

/* The group has the communicator's order, and sums over its members. */
static bool is_group_of(MPI_Comm comm)
{
    ls_group *group = NULL;
    int at = 0, count = 0, value = rank + 1, ours = 0, theirs = 0;
    MPI_Comm_rank(comm, &at);
    MPI_Comm_size(comm, &count);
    LS_CHECK(ls_group_from_mpi(comm, "of MPI", &group));
    LS_CHECK(ls_scan(group, &value, &ours, 1, LS_INT32, LS_SUM, NULL, NULL));
    MPI_Scan(&value, &theirs, 1, MPI_INT, MPI_SUM, comm);
    const bool right = ls_group_rank(group) == at && ls_group_size(group) == count &&
                       ours == theirs && strcmp(ls_group_name(group), "of MPI") == 0;
    LS_CHECK(ls_group_free(group));
    return right;
}

/* The world, its duplicate, halves in the reverse order, and one rank alone. */
static bool groups_of_all_kinds(void)
{
    MPI_Comm duplicate, half;
    MPI_Comm_dup(MPI_COMM_WORLD, &duplicate);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    bool right = is_group_of(MPI_COMM_WORLD);
    right = is_group_of(duplicate) && right;
    right = is_group_of(half) && right;
    right = is_group_of(MPI_COMM_SELF) && right;
    MPI_Comm_free(&half);
    MPI_Comm_free(&duplicate);
    return right;
}

/* Every rank makes groups of itself at the same moments, as often as there is time for. */
static bool groups_made_at_once(void)
{
    const double begin = MPI_Wtime();
    bool right = true;
    for (int i = 0, go_on = 1; i < 2000 && go_on; i++) {
        int mine = right && MPI_Wtime() - begin < AT_ONCE_SECONDS;
        MPI_Allreduce(&mine, &go_on, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        right = is_group_of(MPI_COMM_SELF) && right;
    }
    return right;
}

static void say_error(MPI_Comm comm)
{
    ls_group *group = NULL;
    const ls_status status = ls_group_from_mpi(comm, NULL, &group);
    printf("%s %s\n", ls_status_name(status), ls_error_message());
    fflush(stdout);
}

/* The second call meets the state in which the first one left MPI. */
static int say_errors_of_two_starts(void)
{
    for (int i = 0; i < 2; i++) {
        const ls_status status = ls_init(NULL);
        printf("%s %s\n", ls_status_name(status), ls_error_message());
    }
    return 0;
}

static void say_error_of_inter(void)
{
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &both);
    say_error(both);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

/* Both orders of initialising, and MPI_Init_thread with less than MPI_THREAD_MULTIPLE. */
static void begin(const char *name)
{
    int given = 0;
    if (strcmp(name, "lockstep-first") == 0) {
        LS_CHECK(ls_init(NULL));
        MPI_Init(NULL, NULL);
    } else if (strcmp(name, "multiple") == 0) {
        MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &given);
        LS_CHECK(ls_init(NULL));
    } else {
        MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        if (strcmp(name, "other-job") == 0 && rank == 1) {
            setenv("LOCKSTEP_LAUNCHER", "none", 1);
        }
        if (strcmp(name, "no-init") != 0) {
            LS_CHECK(ls_init(NULL));
        }
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (strcmp(name, "no-mpi") == 0) {
        say_error(MPI_COMM_WORLD);
        return 0;
    }
    if (strcmp(name, "after-the-end") == 0) {
        MPI_Init(NULL, NULL);
        MPI_Finalize();
    }
    if (strcmp(name, "after-the-end") == 0 || strcmp(name, "given-up") == 0) {
        return say_errors_of_two_starts();
    }
    begin(name);
    if (strcmp(name, "no-init") == 0 || strcmp(name, "other-job") == 0) {
        say_error(MPI_COMM_WORLD);
    } else if (strcmp(name, "null") == 0) {
        say_error(MPI_COMM_NULL);
    } else if (strcmp(name, "inter") == 0) {
        say_error_of_inter();
    } else if (strcmp(name, "at-once") == 0) {
        report(groups_made_at_once());
    } else {
        report(groups_of_all_kinds() && ls_rank() == rank && ls_world_size() == size);
    }
    (void)ls_finalize();
    MPI_Finalize();
    if (strcmp(name, "finalized") == 0) {
        say_error(MPI_COMM_WORLD);
    }
    return 0;
}
