/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that dies or stops while an MPI carries the data, under that MPI's mpirun.
 *
 *     {Open MPI, MPICH} × {its messages, its collectives} × {kill, stop} × {where} × {victim}
 *
 * The MPIs use TCP, so that they notice the death as well; MPI alone would then wait for ever, or
 * abort. Of each cell: every survivor names the victim, its process, the operation in which it was,
 * and the line of victim.c, in time. Only a rank that has not met the victim yet names none: it
 * reports at the deadline of ls_init, also where it waits in MPI_Init. After ls_finalize there is
 * nothing to report, but the others end. mpirun is told not to kill the survivors
 * (--enable-recovery, -disable-auto-cleanup), and each rank's shell ends when all ranks have ended,
 * because mpirun would otherwise be faster than a report. A fixed part runs always, all with
 * TEST_LONG=1.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "places.h"
#include "says.h"
#include "scratch.h"

#define RANKS 4
#define REPORT_SECONDS 1.0
#define STUCK_SECONDS                                                                              \
    2.0 /* until a rank whose MPI does not return is ended (comm/core/plugin_watch.c) */

typedef struct kind {
    const char *name, *words; /* of mpirun */
    const char *launcher;     /* as LOCKSTEP_LAUNCHER */
} kind;

/* Open MPI 5 ends a rank whose peer's socket closes, unless it shall tolerate faults. */
static const kind openmpi = {"openmpi",
                             "--oversubscribe $(mpirun.openmpi --version | grep -q ') 4' && "
                             "echo --enable-recovery || echo --with-ft ulfm)",
                             "openmpi"};
static const kind mpich = {"mpich", "-disable-auto-cleanup", "hydra"};

/* What MPI carries: the messages of Lockstep's own algorithms, or the operations of the world, and
 * of all groups made from it, by MPI's. */
#define MESSAGES "LOCKSTEP_DATA_PLANE=mpi"
#define COLLECTIVES "LOCKSTEP_BACKEND=mpi"

typedef struct cell {
    const kind *mpi;
    const char *carried;
    const char *way;
    const place *place;
    int victim;
    int ended; /* survivors that have met the deadline */
} cell;

static bool stops(const cell *c)
{
    return strcmp(c->way, "stop") == 0;
}

static bool in_init(const cell *c)
{
    return is_place(c->place, "startup") || is_place(c->place, "rendezvous");
}

/* MPI_Finalize of the others would wait for it. */
static bool at_exit(const cell *c)
{
    return is_place(c->place, "exit");
}

/* RANK and WORLD_SIZE are for victim.c. Lines get the rank before them, as of `lockstep run`. A
 * rank that has ended leaves a file. */
#define SCRIPT                                                                                     \
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=tcp,self\n"     \
    "export OMPI_MCA_btl_tcp_if_include=lo\n"                                                      \
    "export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_orte_execute_quiet=1 UCX_TLS=tcp,self "        \
    "LOCKSTEP_HOSTS=64\n"                                                                          \
    "export %s LOCKSTEP_MPI=%s_%s.so LOCKSTEP_LAUNCHER=%s WORLD_SIZE=%d\n"                         \
    "exec mpirun.%s %s -n %d sh -c 'export RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"              \
    "%s %s %s %d saved 2>&1 | sed -u \"s/^/[$RANK] /\"; cd %s; : >$RANK\n"                         \
    "n=0; while [ $n -lt 100 ] && ! [ -e $((WORLD_SIZE-1)) -a -e 0 -a -e 1 -a -e 2 ]; do\n"        \
    "sleep 0.1; n=$((n+1)); done; sleep 0.3' 2>&1"

/* mpirun waits for the stopped process, so it is killed when all others have reported. */
static void end_stopped(job *j, const char *line)
{
    cell *c = j->arg;
    c->ended += strstr(line, ": LS_ERR_") != NULL;
    if (stops(c) && c->ended == RANKS - 1) {
        kill(j->pid[c->victim], SIGKILL);
    }
}

static job run_cell(cell *c)
{
    char script[4096], plugin[1024];
    const char *const settings[] = {
        stops(c) || in_init(c) || at_exit(c) ? "LOCKSTEP_TIMEOUT=3" : "LOCKSTEP_TIMEOUT=60", NULL};
    snprintf(plugin, sizeof plugin, "%s", test_build_path("src/comm/mpi/ls_backend_mpi"));
    scratch_begin();
    snprintf(script, sizeof script, SCRIPT, c->carried, plugin, c->mpi->name, c->mpi->launcher,
             RANKS, c->mpi->name, c->mpi->words, RANKS,
             test_build_path("tests/dist/failures/victim"), c->way, c->place->name, c->victim,
             scratch_folder());
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    job j = {.settings = settings, .deadline = 40, .on_line = end_stopped, .arg = c};
    job_run(&j, argv);
    scratch_end();
    return j;
}

static void complain(const cell *c, const job *j, const char *what, int rank)
{
    char why[512];
    snprintf(why, sizeof why, "%s at %s, rank %d of %d over %s, %s: rank %d %.200s", c->way,
             c->place->name, c->victim, RANKS, c->mpi->name, c->carried, rank, what);
    job_fail(j, why);
}

static void check_init(const cell *c, const job *j, int rank)
{
    char who[64], missing[64];
    snprintf(who, sizeof who, "ls_init: rank %d (host ", c->victim);
    snprintf(missing, sizeof missing, "local rank %d did not join within the deadline", c->victim);
    const bool no_server = c->victim == 0 && job_find(j, rank, "local rank 0) has ended") >= 0;
    const bool in_mpi = job_find(j, rank,
                                 SAYS("MPI_Init_thread has not returned within %.1f s; look for a "
                                      "rank that has ended or not started, or set LOCKSTEP_TIMEOUT "
                                      "higher")) >= 0;
    if (job_find(j, rank, who) < 0 && job_find(j, rank, missing) < 0 && !no_server && !in_mpi &&
        job_find(j, rank, "did not start its agent within the deadline") < 0) {
        complain(c, j, "does not say why ls_init failed", rank);
    }
}

static void check_death(const cell *c, const job *j, int rank)
{
    char who[128];
    snprintf(who, sizeof who, "pid %d) ended without ls_finalize ", (int)j->pid[c->victim]);
    const int line = job_find(j, rank, who);
    if (line < 0) {
        complain(c, j, "does not name the victim and its process", rank);
    }
    if (strstr(j->line[line], c->place->doing) == NULL ||
        (c->place->with_site && strstr(j->line[line], "victim.c:") == NULL)) {
        complain(c, j, "does not say what the victim was doing, and where", rank);
    }
    const double stuck = is_place(c->place, "transfer") ? STUCK_SECONDS : 0.0;
    if (!test_is_within(j->came[line] - j->struck, REPORT_SECONDS + stuck)) {
        complain(c, j, "reported late", rank);
    }
}

/* The rank is named as stopped, or silent, and the deadline passes. */
static void check_stop(const cell *c, const job *j, int rank)
{
    char silent[64], stopped[64];
    snprintf(silent, sizeof silent, "pid %d) has sent no heartbeat", (int)j->pid[c->victim]);
    snprintf(stopped, sizeof stopped, "pid %d) is stopped", (int)j->pid[c->victim]);
    const int line = job_find(j, rank, silent);
    if (line < 0 && job_find(j, rank, stopped) < 0) {
        complain(c, j, "does not name the stopped rank", rank);
    }
    if (job_find(j, rank, ": LS_ERR_") < 0) {
        complain(c, j, "goes on after the deadline", rank);
    }
}

static void check_cell(cell *c)
{
    job j = run_cell(c);
    if (j.struck == 0.0) {
        complain(c, &j, "was not struck", c->victim);
    }
    for (int r = 0; r < RANKS; r++) {
        if (r != c->victim && !at_exit(c)) {
            (in_init(c) ? check_init : stops(c) ? check_stop : check_death)(c, &j, r);
        }
    }
    job_free(&j);
}

/* ---- the matrix ----------------------------------------------------------------------------- */

static void need(const kind *mpi)
{
    char command[2048];
    snprintf(command, sizeof command, "command -v mpirun.%s >/dev/null && test -e %s_%s.so",
             mpi->name, test_build_path("src/comm/mpi/ls_backend_mpi"), mpi->name);
    test_output got = test_run(command, 10);
    free(got.text);
    if (got.status != 0) {
        SKIP("no mpirun of this MPI, or no plug-in (apt-get install libopenmpi-dev libmpich-dev "
             "mpich)");
    }
}

/* Groups with MPI's collectives are made by calls of MPI that wait for the dead rank until mpirun
 * ends their process (src/comm/mpi/collectives.c, Note [Making a communicator]). */
static bool makes_sense(const char *carried, const char *way, const place *p)
{
    const bool makes_group =
        is_place(p, "startup") || is_place(p, "rendezvous") || is_place(p, "group");
    return (strcmp(way, "kill") == 0 || is_waited_for_at(p)) &&
           (strcmp(carried, MESSAGES) == 0 || !makes_group);
}

/* Of the short run: the places that `chosen` names, each with another victim. Of the long one all,
 * each with every victim that is killed. */
static void check_way(const kind *mpi, const char *carried, const char *way, const char *chosen)
{
    const bool all = getenv("TEST_LONG") != NULL;
    const int victims = all && strcmp(way, "kill") == 0 ? RANKS : 1;
    const char *only = getenv("TEST_PLACE"); /* of those who look into one */
    need(mpi);
    for (int p = 0, victim = 0; p < PLACES; p++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", places[p].name);
        const bool wanted =
            only != NULL ? is_place(&places[p], only) : all || strstr(chosen, word) != NULL;
        for (int k = 0; wanted && makes_sense(carried, way, &places[p]) && k < victims; k++) {
            cell c = {mpi, carried, way, &places[p], victim++ % RANKS, 0};
            check_cell(&c);
        }
    }
}

TEST_OF(a_killed_rank_is_named_by_all_over_open_mpi, 0, 600)
{
    check_way(&openmpi, MESSAGES, "kill", " rendezvous stage all_reduce send between exit ");
}

TEST_OF(a_killed_rank_is_named_by_all_over_mpich, 0, 600)
{
    check_way(&mpich, MESSAGES, "kill", " rendezvous stage all_reduce send between exit ");
}

TEST_OF(a_stopped_rank_is_named_by_all_over_open_mpi, 0, 900)
{
    check_way(&openmpi, MESSAGES, "stop", "");
}

TEST_OF(a_stopped_rank_is_named_by_all_over_mpich, 0, 900)
{
    check_way(&mpich, MESSAGES, "stop", " all_reduce ");
}

TEST_OF(a_rank_killed_in_the_collectives_of_open_mpi_is_named_by_all, 0, 900)
{
    check_way(&openmpi, COLLECTIVES, "kill", " transfer send exit ");
}

TEST_OF(a_rank_killed_in_the_collectives_of_mpich_is_named_by_all, 0, 900)
{
    check_way(&mpich, COLLECTIVES, "kill", " transfer send exit ");
}

TEST_OF(a_rank_stopped_in_the_collectives_of_open_mpi_is_named_by_all, 0, 900)
{
    check_way(&openmpi, COLLECTIVES, "stop", " transfer ");
}

TEST_OF(a_rank_stopped_in_the_collectives_of_mpich_is_named_by_all, 0, 900)
{
    check_way(&mpich, COLLECTIVES, "stop", "");
}

TEST_MAIN
