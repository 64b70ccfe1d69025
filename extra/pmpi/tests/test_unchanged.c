/* SPDX-License-Identifier: Apache-2.0 */
/* The interposer: an unchanged program of MPI gets the same results with it as without, and a
 * mistake or a death is named. Under mpirun of Open MPI and MPICH, where they are installed. */
#include <stdlib.h>

#include "under_mpi.h"

/* `served MPI N PROGRAM ARGUMENT…` is `under` with the interposer. */
#define SERVED                                                                                     \
    "served() { PRE=\"env LD_PRELOAD=$B/extra/pmpi/liblockstep_pmpi_$1.so\"; under \"$@\"; "       \
    "status=$?; "                                                                                  \
    "PRE=; return $status; }\n"

static void same_results(const char *mpi, int ranks, const char *settings)
{
    char text[1024];
    need_mpi(mpi, "unchanged");
    snprintf(text, sizeof text,
             SERVED "export %s; under %s %d unchanged write $D/r && served %s %d unchanged compare "
                    "$D/r; echo status $?",
             settings, mpi, ranks, mpi, ranks);
    check_count(under_mpi, text, "wrote %d records, 0 wrong", 1);
    check_count(under_mpi, text, "compared %d records, 0 wrong", 1);
}

TEST(the_same_results_with_open_mpi)
{
    same_results("openmpi", 1, "QUICK=1");
    same_results("openmpi", 2, "LOCKSTEP_TIMEOUT=60");
    same_results("openmpi", 5, "QUICK=1");
}

/* MPICH itself spins: with more ranks than free cores it takes most of a minute. */
TEST(the_same_results_with_mpich)
{
    same_results("mpich", 1, "QUICK=1");
    same_results("mpich", 2, "QUICK=1");
}

TEST(the_same_results_at_every_size)
{
    if (getenv("TEST_LONG") == NULL) {
        test_skip("TEST_LONG=1 runs it");
    }
    same_results("openmpi", 5, "LOCKSTEP_TIMEOUT=60");
    same_results("mpich", 2, "LOCKSTEP_TIMEOUT=60");
}

TEST(the_same_results_with_mpich_on_more_ranks_than_cores)
{
    if (getenv("TEST_LONG") == NULL) {
        test_skip("TEST_LONG=1 runs it");
    }
    same_results("mpich", 3, "QUICK=1");
    same_results("mpich", 5, "QUICK=1");
}

TEST(threads_use_communicators_of_their_own)
{
    same_results("openmpi", 3, "QUICK=1 MULTIPLE=1");
    same_results("mpich", getenv("TEST_LONG") != NULL ? 3 : 2, "QUICK=1 MULTIPLE=1");
}

static void said(const char *mpi, const char *command, const char *part, int times)
{
    char text[1024];
    need_mpi(mpi, "strikes");
    snprintf(text, sizeof text, SERVED "m=%s; %s", mpi, command);
    check_count(under_mpi, text, part, times);
}

TEST(the_report_counts_what_was_served)
{
    said("openmpi", "export LOCKSTEP_PMPI_REPORT=1; served openmpi 2 strikes",
         SAYS("lockstep: rank %d: %s: %llu calls of %llu bytes served, %llu passed to MPI"), 1);
    said("mpich", "export LOCKSTEP_PMPI_REPORT=1; served mpich 2 strikes",
         "MPI_Allreduce: 1000 calls of 8000 bytes served, 0 passed", 1);
}

TEST(it_can_be_switched_off)
{
    said("openmpi",
         "export LOCKSTEP_PMPI_REPORT=1 LOCKSTEP_PMPI=0; served openmpi 2 strikes; echo end",
         "lockstep", 0);
}

/* It ends before the first call of MPI: handles of the one mean nothing to the other. */
TEST(the_interposer_of_the_other_mpi_says_so)
{
    need_mpi("openmpi", "strikes");
    need_mpi("mpich", "strikes");
    static const char *const mpis[] = {"openmpi", "mpich"};
    for (int i = 0; i < 2; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "PRE=\"env LD_PRELOAD=$B/extra/pmpi/liblockstep_pmpi_%s.so\"; under %s 1 strikes "
                 ">$D/out && echo well; cat $D/out",
                 mpis[1 - i], mpis[i]);
        check_count(under_mpi, text,
                    SAYS("lockstep: this program runs on %.*s, whose interposer is "
                         "liblockstep_pmpi_%s.so; liblockstep_pmpi_%s.so was preloaded"),
                    1);
        check_count(under_mpi, text, i == 0 ? "egmentation" : "well", 0);
    }
}

/* All calls pass through, and the program ends well. */
TEST(where_lockstep_cannot_begin_one_line_says_so)
{
    said("openmpi", "export LOCKSTEP_LAUNCHER=none; served openmpi 3 strikes && echo well",
         SAYS("lockstep: all collectives are served by MPI: rank %d: %s"), 1);
    said("mpich", "export LOCKSTEP_LAUNCHER=none; served mpich 3 strikes && echo well",
         SAYS("its place in the job of Lockstep is another one"), 1);
    said("mpich", "export LOCKSTEP_LAUNCHER=lam; served mpich 3 strikes && echo well", "well", 1);
}

/* Each rank says it before MPI ends the job; mpirun of MPICH may end the others before. */
TEST(a_mistake_is_named_with_both_sides)
{
    static const char *const both = "rank 0 has int64[1] sum";
    said("openmpi", "served openmpi 3 strikes mismatch 1 2>&1 | grep -am1 disagrees", both, 1);
    said("mpich", "served mpich 3 strikes mismatch 1 2>&1 | grep -am1 disagrees", both, 1);
    said("openmpi", "served openmpi 3 strikes mismatch 1 2>&1 | grep -am1 ^lockstep",
         SAYS("lockstep: rank %d: %s"), 1);
    said("openmpi", "served openmpi 2 strikes lengths 1 2>&1 | grep -am1 'rank 1:'",
         SAYS("this rank sends %lld bytes a block, but receives %lld"), 1);
}

TEST(the_error_handler_of_the_communicator_is_called)
{
    said("openmpi", "served openmpi 3 strikes returned 1",
         "got an error: MPI_Allreduce: all_reduce #501", 3);
    said("mpich", "served mpich 3 strikes returned 1",
         "got an error: MPI_Allreduce: all_reduce #501", 3);
}

/* Not over MPICH: its mpirun ends the ranks of a job in which one dies, mostly before they can say
 * why, with -disable-auto-cleanup, too (named in 3 of 8 runs). There only the end is looked at. */
TEST(a_dead_rank_is_named_and_the_job_ends)
{
    said("openmpi", "served openmpi 3 strikes killed 1 2>&1 | grep -am1 'lockstep: rank'",
         "MPI_Allreduce: rank 1 (", 1);
    said("mpich", "served mpich 3 strikes killed 1 >log 2>&1 || echo the job has ended",
         "the job has ended", 1);
}

TEST_MAIN
