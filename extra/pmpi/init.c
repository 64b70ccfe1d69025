/* SPDX-License-Identifier: Apache-2.0 */
/* MPI_Init and MPI_Finalize: the job of Lockstep begins after the one and ends before the other. */
#include "pmpi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEADLINE_MS ((int64_t)1000 * 86400 * 1000) /* MPI has none: about three years */

pmpi_process pmpi;

/* ---- the idle thread ------------------------------------------------------------------------- */

/* Where all threads of a rank that are attached wait, Lockstep may report a deadlock. Under
 * MPI_THREAD_MULTIPLE others may be inside MPI: this thread stands for them, and never waits. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool running, stop;
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *idle_main(void *arg)
{
    (void)ls_runtime_attach(arg);
    (void)pthread_mutex_lock(&idle.lock);
    while (!idle.stop) {
        (void)pthread_cond_wait(&idle.changed, &idle.lock);
    }
    (void)pthread_mutex_unlock(&idle.lock);
    (void)ls_runtime_attach(NULL);
    return NULL;
}

static void idle_stop(void)
{
    if (idle.running) {
        (void)pthread_mutex_lock(&idle.lock);
        idle.stop = true;
        (void)pthread_cond_signal(&idle.changed);
        (void)pthread_mutex_unlock(&idle.lock);
        (void)pthread_join(idle.thread, NULL);
        idle.running = false;
    }
}

/* ---- MPI_Init -------------------------------------------------------------------------------- */

static bool is_set(const char *name, const char *value)
{
    const char *given = getenv(name);
    return given != NULL && strcmp(given, value) == 0;
}

/* The first rank that says no, or `size`. Collective. */
static int first_no(bool yes, int rank, int size)
{
    int mine = yes ? size : rank, first = 0;
    return PMPI_Allreduce(&mine, &first, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) == MPI_SUCCESS ? first
                                                                                             : 0;
}

/* True: all ranks run on one host, and were started together. Collective. */
static bool may_serve(int rank, int size)
{
    MPI_Comm parent = MPI_COMM_NULL, host = MPI_COMM_NULL;
    int here = 0;
    const bool wanted = !is_set("LOCKSTEP_PMPI", "0");
    (void)PMPI_Comm_get_parent(&parent);
    (void)PMPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    (void)PMPI_Comm_size(host, &here);
    (void)PMPI_Comm_free(&host);
    if (first_no(wanted, rank, size) < size) {
        return false;
    }
    if (parent == MPI_COMM_NULL && here == size) {
        return true;
    }
    if (rank == 0) {
        (void)fprintf(stderr, "lockstep: all collectives are served by MPI: %s\n",
                      here != size ? "the ranks run on several hosts"
                                   : "these ranks were started by MPI_Comm_spawn");
    }
    return false;
}

/* Joins, and compares with MPI. Collective; one line says why not. */
static bool join(int rank, int size)
{
    const ls_status status = ls_init(NULL);
    const bool same = ls_rank() == rank && ls_world_size() == size &&
                      ls_local_world_size() == size && pmpi_groups_init() == MPI_SUCCESS;
    const int first = first_no(status == LS_OK && same, rank, size);
    if (first == rank) {
        (void)fprintf(stderr, "lockstep: all collectives are served by MPI: rank %d: %s\n", rank,
                      status != LS_OK ? ls_error_message()
                                      : "its place in the job of Lockstep is another one");
    }
    return first == size;
}

static void begin(void)
{
    int rank = 0, size = 0, level = MPI_THREAD_SINGLE;
    (void)PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)PMPI_Comm_size(MPI_COMM_WORLD, &size);
    (void)PMPI_Query_thread(&level);
    if (size < 2 || !may_serve(rank, size)) {
        return;
    }
    pmpi.size = size;
    pmpi_types_init();
    if (!join(rank, size)) {
        return;
    }
    pmpi.runtime = ls_runtime_current();
    pmpi.multiple = level == MPI_THREAD_MULTIPLE;
    pmpi.options = ls_collective_defaults();
    pmpi.options.timeout_ms = getenv("LOCKSTEP_TIMEOUT") != NULL ? 0 : NO_DEADLINE_MS;
    idle.running =
        pmpi.multiple && pthread_create(&idle.thread, NULL, idle_main, pmpi.runtime) == 0;
    pmpi.on = PMPI_Comm_dup(MPI_COMM_WORLD, &pmpi.quiet) == MPI_SUCCESS;
}

/* ---- the MPI of this interposer ------------------------------------------------------------- */

#ifdef OPEN_MPI
static const bool for_open_mpi = true;
#else
static const bool for_open_mpi = false; /* for MPICH, and those that share its binary interface */
#endif
#define VERSION_BYTES 8192 /* what an MPICH may write; an Open MPI writes 256 */

/* Ends a program of the other MPI: not one of its calls can be passed on, since its handles are
 * pointers where those of this interposer are integers, or the reverse. */
static void check_mpi(void)
{
    int (*get_version)(char *, int *) = NULL;
    char version[VERSION_BYTES] = "";
    int length = 0;
    *(void **)&get_version = dlsym(RTLD_NEXT, "MPI_Get_library_version");
    if (get_version == NULL || get_version(version, &length) != MPI_SUCCESS) {
        return;
    }
    const bool open_mpi = strstr(version, "Open MPI") != NULL;
    if (open_mpi != for_open_mpi) {
        (void)fprintf(stderr,
                      "lockstep: this program runs on %.*s, whose interposer is "
                      "liblockstep_pmpi_%s.so; liblockstep_pmpi_%s.so was preloaded\n",
                      (int)strcspn(version, ",\n"), version, open_mpi ? "openmpi" : "mpich",
                      open_mpi ? "mpich" : "openmpi");
        _Exit(EXIT_FAILURE);
    }
}

int MPI_Init(int *argc, char ***argv)
{
    check_mpi();
    const int code = PMPI_Init(argc, argv);
    if (code == MPI_SUCCESS) {
        begin();
    }
    return code;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    check_mpi();
    const int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS) {
        begin();
    }
    return code;
}

/* The barrier has no deadline, as MPI has none: ls_finalize has one. */
int MPI_Finalize(void)
{
    if (pmpi.on) {
        (void)PMPI_Barrier(MPI_COMM_WORLD);
        if (ls_rank() == 0 && is_set("LOCKSTEP_PMPI_REPORT", "1")) {
            pmpi_report(0);
        }
        pmpi.on = false;
        idle_stop();
        ls_set_wait_callback(NULL, NULL);
        pmpi_groups_fini();
        (void)PMPI_Comm_free(&pmpi.quiet);
        if (ls_finalize() < 0) {
            (void)fprintf(stderr, "lockstep: %s\n", ls_error_message());
        }
    }
    return PMPI_Finalize();
}
