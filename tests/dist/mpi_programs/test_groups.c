/* SPDX-License-Identifier: Apache-2.0 */
/* ls_group_from_mpi, and ls_init in programs that initialise MPI themselves, under mpirun of Open
 * MPI and MPICH, where they are installed. */
#include "under_mpi.h"

static void groups_are_right(const char *mpi)
{
    char text[512];
    need_mpi(mpi, "groups");
    for (int n = 1; n <= 5; n++) {
        snprintf(text, sizeof text, "under %s %d groups; echo status $?", mpi, n);
        check_count(under_mpi, text, "all ranks are right", 1);
    }
    snprintf(text, sizeof text,
             "under %s 3 groups lockstep-first; under %s 3 groups multiple; echo status $?", mpi,
             mpi);
    check_count(under_mpi, text, "all ranks are right", 2);
    check_count(under_mpi, text, "status 0", 1);
    snprintf(text, sizeof text, "under %s 2 groups at-once", mpi);
    check_count(under_mpi, text, "all ranks are right", 1);
}

TEST(groups_of_communicators_over_open_mpi)
{
    groups_are_right("openmpi");
}

TEST(groups_of_communicators_over_mpich)
{
    groups_are_right("mpich");
}

/* On hosts that share no memory ls_init meets by the launcher, also after MPI_Init. */
static void hosts_meet(const char *mpi)
{
    char text[512];
    need_mpi(mpi, "groups");
    snprintf(text, sizeof text, "export LOCKSTEP_HOSTS=2; under %s 4 groups", mpi);
    check_count(under_mpi, text, "all ranks are right", 1);
    snprintf(text, sizeof text,
             "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi; under %s 4 groups multiple", mpi);
    check_count(under_mpi, text, "all ranks are right", 1);
}

TEST(two_pretended_hosts_meet_after_mpi_init_of_open_mpi)
{
    hosts_meet("openmpi");
}

TEST(two_pretended_hosts_meet_after_mpi_init_of_mpich)
{
    hosts_meet("mpich");
}

/* All ranks get the same error. */
static void errors_are_said(const char *mpi)
{
    static const struct {
        const char *name, *says;
        int times;
    } cases[] = {
        {"no-mpi",
         SAYS("LS_ERR_STATE ls_group_from_mpi: MPI is %s in this process; call it between MPI_Init "
              "and "
              "MPI_Finalize"),
         2},
        {"finalized",
         SAYS("LS_ERR_STATE ls_group_from_mpi: MPI is finalized in this process; call it "
              "between MPI_Init and MPI_Finalize"),
         2},
        {"no-init",
         SAYS("LS_ERR_STATE ls_group_from_mpi: rank %d of the communicator has not called ls_init; "
              "call it on every rank first"),
         2},
        {"null",
         SAYS("LS_ERR_INVALID ls_group_from_mpi: %s; call it on the ranks that have a "
              "communicator, with a place for the group"),
         2},
        {"inter",
         SAYS("LS_ERR_INVALID ls_group_from_mpi: this is an inter-communicator; make one "
              "communicator "
              "of both sides by MPI_Intercomm_merge"),
         2}};
    char text[512];
    need_mpi(mpi, "groups");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "under %s 2 groups %s", mpi, cases[i].name);
        check_count(under_mpi, text, cases[i].says, cases[i].times);
    }
}

TEST(errors_are_said_over_open_mpi)
{
    errors_are_said("openmpi");
}

TEST(errors_are_said_over_mpich)
{
    errors_are_said("mpich");
}

/* Rank 1 of 3 is a world of its own; the other two then wait for it in ls_init until their
 * deadline, so here both ranks of 2 are worlds of their own. */
TEST(a_rank_of_another_job_is_named)
{
    need_mpi("openmpi", "groups");
    check_count(
        under_mpi, "export LOCKSTEP_LAUNCHER=none; under openmpi 2 groups other-job",
        SAYS("LS_ERR_INVALID ls_group_from_mpi: rank %d of the communicator is not in the job "
             "of rank 0 (rank %d of %d in Lockstep): start all ranks by one mpirun or srun, "
             "and leave LOCKSTEP_LAUNCHER alone"),
        2);
}

/* With its data over MPI the engine's thread calls MPI beside the program. The first rank that ends
 * with the error makes mpirun end the other, which may not have said it by then, or may say it as
 * the other's failure. */
static void a_thread_level_is_refused(const char *mpi)
{
    char text[512];
    need_mpi(mpi, "groups");
    snprintf(text, sizeof text,
             "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi; under %s 2 groups 2>&1 "
             "| grep -o 'this program has initialised.*' | sort -u",
             mpi);
    check_count(
        under_mpi, text,
        SAYS("this program has initialised MPI with %s, but Lockstep calls MPI from a thread of "
             "its own; call MPI_Init_thread with MPI_THREAD_MULTIPLE"),
        1);
    snprintf(text, sizeof text,
             "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi; under %s 2 groups after-the-end; "
             "cat said.*",
             mpi);
    check_count(under_mpi, text,
                SAYS("MPI is finalized in this process; call ls_finalize before MPI_Finalize"), 4);
}

/* MPICH starts as a world of one under another's mpirun: refused, and then given up. */
TEST(mpi_that_was_given_up_is_not_used_again)
{
    need_mpi("openmpi", "groups");
    need_mpi("mpich", "groups");
    check_count(under_mpi,
                "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi "
                "LOCKSTEP_MPI=$B/src/comm/mpi/ls_backend_mpi_mpich.so; mpirun.openmpi "
                "--oversubscribe -n 2 "
                "./apart $F/groups_mpich given-up; cat said.*",
                SAYS("MPI was given up in this process after a failure; start a new one"), 2);
}

TEST(mpi_without_thread_multiple_is_refused_over_mpi_data)
{
    a_thread_level_is_refused("openmpi");
    a_thread_level_is_refused("mpich");
}

/* The example: both halves train, and the better learning rate is the larger one. */
TEST(the_example_trains_on_both_halves)
{
    static const char *const all[] = {"openmpi", "mpich"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        need_mpi(all[i], "groups");
        for (int n = 1; n <= 4; n += 3) {
            snprintf(text, sizeof text, "F=$E; under %s %d mpi_halves", all[i], n);
            check_count(under_mpi, text, "the better learning rate is 0.10", 1);
            check_count(under_mpi, text, "half 1: 2 ranks, learning rate 0.01", n / 4);
        }
    }
}

TEST_MAIN
