/* SPDX-License-Identifier: Apache-2.0 */
/* Data over MPI (LOCKSTEP_DATA_PLANE=mpi) under mpirun of Open MPI and MPICH, where they are
 * installed: the choice of the MPI in words, and what MPICH's mpirun says of a rank that dies. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

#define SECONDS 40

/* `over MPI N COMMAND…` runs N ranks, each on a pretended host, with their data over MPI. */
static test_output over_mpi(const char *text)
{
    char definitions[2048];
    snprintf(definitions, sizeof definitions,
             "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
             "export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_execute_quiet=1 "
             "LOCKSTEP_HOSTS=64 LOCKSTEP_DATA_PLANE=mpi\n"
             "over() { m=$1; n=$2; shift 2; LOCKSTEP_MPI=%s_$m.so mpirun.$m "
             "$([ $m = mpich ] || echo --oversubscribe) -n $n \"$@\"; }\n"
             "exec 2>&1",
             test_build_path("src/comm/mpi/ls_backend_mpi"));
    return script_with(definitions, text, SECONDS);
}

static void need(const char *mpi)
{
    char command[256];
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -e %s_%s.so", mpi,
             test_build_path("src/comm/mpi/ls_backend_mpi"), mpi);
    test_output got = test_run(command, SECONDS);
    free(got.text);
    if (got.status != 0) {
        SKIP("no mpirun of this MPI, or no plug-in (apt-get install libopenmpi-dev libmpich-dev "
             "mpich, then build)");
    }
}

static void sums_are_right(const char *mpi)
{
    char text[256];
    need(mpi);
    snprintf(text, sizeof text,
             "export LOCKSTEP_DEBUG=info; over %s 4 $E/01_hello_all_reduce; echo status $?", mpi);
    check_count(over_mpi, text, "4 of 4 ranks hold the right sums", 1);
    check_count(over_mpi, text, "status 0", 1);
    check_count(over_mpi, text, " bytes were sent over MPI", 4);
}

TEST(four_ranks_sum_over_open_mpi)
{
    sums_are_right("openmpi");
}

TEST(four_ranks_sum_over_mpich)
{
    sums_are_right("mpich");
}

/* A server takes messages of any worker. */
static void servers_serve(const char *mpi)
{
    char text[256];
    need(mpi);
    snprintf(text, sizeof text, "over %s 4 $E/09_parameter_server async; echo status $?", mpi);
    check_count(over_mpi, text, "made all of them again: the same bits", 1);
    check_count(over_mpi, text, "status 0", 1);
}

TEST(a_parameter_server_over_open_mpi)
{
    servers_serve("openmpi");
}

TEST(a_parameter_server_over_mpich)
{
    servers_serve("mpich");
}

/* Averages of parameters, and of the outer optimizer's start; one process makes them again. */
static void parameters_are_averaged(const char *mpi)
{
    char text[512];
    need(mpi);
    snprintf(text, sizeof text,
             "seq 3000 >data; over %s 3 $L train gpt --data data --steps 6 --local-steps 3 --outer "
             "diloco --layers 1 --dim 16 --heads 2 --context 8 --batch 2 --eval-windows 8 "
             "--log-replay run.log; echo status $?; $L replay run.log",
             mpi);
    test_output got = over_mpi(text);
    CHECK_CONTAINS(got.text, "replicas identical: 3 of 3");
    CHECK_CONTAINS(got.text, "status 0\n");
    CHECK_CONTAINS(got.text, "run.log: 3 versions, each with the bits of the run");
    free(got.text);
}

TEST(parameters_are_averaged_over_open_mpi)
{
    parameters_are_averaged("openmpi");
}

TEST(parameters_are_averaged_over_mpich)
{
    parameters_are_averaged("mpich");
}

/* Without -disable-auto-cleanup mpirun of MPICH kills the other ranks, mostly before they can say
 * anything. How ranks report where it lets them: tests/dist/failures/over_mpi.c. */
TEST(mpirun_of_mpich_kills_the_other_ranks_of_a_dead_one_unless_they_have_named_it)
{
    char text[1024];
    need("mpich");
    snprintf(text, sizeof text,
             "cat > rank <<'END'\n"
             "[ $PMI_RANK != 2 ] || (sleep 1; kill -9 $$) &\n"
             "exec %s all_reduce ring -1\n"
             "END\n"
             "export UCX_TLS=tcp,self; over mpich 4 sh rank; echo status $?",
             test_build_path("tests/dist/failures/looper"));
    test_output got = over_mpi(text);
    if (strstr(got.text, "status 1\n") != NULL) { /* they were faster */
        CHECK_CONTAINS(got.text, "rank 0] error: rank 2 ");
    } else {
        CHECK_CONTAINS(got.text, "=   EXIT CODE: 9\n");
        CHECK(strstr(got.text, "status 0\n") == NULL);
    }
    free(got.text);
}

TEST(the_library_and_the_command_are_linked_with_no_mpi)
{
    char text[1024];
    snprintf(text, sizeof text, "ldd $L %s | grep libmp; echo none",
             test_build_path("src/liblockstep.so"));
    check_count(over_mpi, text, "libmp", 0);
}

TEST(without_an_mpi_the_error_says_what_to_do)
{
    check_script(
        "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi; $L run -n 2 "
        "$E/01_hello_all_reduce",
        1,
        SAYS("backend \"mpi\": this process does not run under an MPI; start it by mpirun or "
             "srun, or set LOCKSTEP_MPI=openmpi or mpich"));
}

TEST(another_mpi_and_a_missing_plug_in_are_named)
{
    check_script("export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_MPI=lam; $L run -n 2 "
                 "$E/01_hello_all_reduce",
                 1, SAYS("LOCKSTEP_MPI=%.60s; give openmpi, mpich, or the path of a plug-in"));
    check_script(
        "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_MPI=/none.so; $L run -n 2 "
        "$E/01_hello_all_reduce",
        1, SAYS("%s cannot be loaded: %.300s"));
    check_script("export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_MPI=mpich "
                 "LOCKSTEP_BACKEND_PATH=/nowhere; $L run -n 2 $E/01_hello_all_reduce",
                 1,
                 SAYS("backend \"%s\": there is no ls_backend_%s.so in %s; install the plug-in, "
                      "or give its folder in LOCKSTEP_BACKEND_PATH, or its path as the backend"));
}

/* Runs two ranks with this plug-in in place of an MPI's. */
static void refuse_plug_in(const char *variables, const char *file, const char *says)
{
    char text[1024];
    snprintf(text, sizeof text,
             "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_MPI=%s/%s; %s $L run -n 2 "
             "$E/01_hello_all_reduce",
             test_build_path("tests/plugins"), file, variables);
    check_script(text, 1, says);
}

TEST(a_wrong_or_half_plug_in_for_mpi_is_named_with_its_path)
{
    refuse_plug_in("", "ls_backend_empty.so",
                   SAYS("backend \"%s\": %s is no plug-in, it does not export ls_backend_plugin"));
    refuse_plug_in("LOOP_BROKEN=half", "ls_backend_loop.so",
                   SAYS("backend \"%s\": %s is incomplete, it lacks %s; install a complete build"));
    refuse_plug_in("LOOP_BROKEN=version", "ls_backend_loop.so",
                   SAYS("backend \"%s\": %s is of another version than %d; build it with this "
                        "library's lockstep/backend.h"));
    refuse_plug_in("", "ls_backend_loop.so",
                   SAYS("ls_init: LOCKSTEP_DATA_PLANE=mpi: %s carries no messages between hosts; "
                        "set LOCKSTEP_MPI to openmpi or mpich"));
}

/* MPICH starts as a world of one without its mpirun. */
TEST(ranks_that_are_no_ranks_of_mpi_are_refused)
{
    char text[1024];
    need("mpich");
    snprintf(text, sizeof text,
             "export LOCKSTEP_HOSTS=2 LOCKSTEP_DATA_PLANE=mpi LOCKSTEP_MPI=%s; $L run -n 2 "
             "$E/01_hello_all_reduce",
             test_build_path("src/comm/mpi/ls_backend_mpi_mpich.so"));
    check_script(text, 1,
                 SAYS("this process is rank %d of %d, but rank %d of %d in MPI; start it by the "
                      "mpirun of this MPI, or by srun, and nothing else"));
}

TEST_MAIN
