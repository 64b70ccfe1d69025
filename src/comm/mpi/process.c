/* SPDX-License-Identifier: Apache-2.0 */
/* MPI in this process: initialising and finalizing.
 *
 * Note [MPI_Init, MPI_Finalize]
 * Both wait for all ranks, and a rank that has died keeps them for ever: so each runs on a thread
 * of its own, which is given up at the deadline. A thread that is still in MPI_Init crashes where
 * exit takes MPI's libraries down, so the process ends without that. A process can initialise MPI
 * once only, but may call ls_init again after ls_finalize. So MPI is finalized when the process
 * exits. After a failure it is not called at all, and neither is any other function of MPI: a dead
 * peer would make it wait, or abort this process before it has said why the job failed. A process
 * that exits without ls_finalize has failed. A mismatch is no such failure: all ranks are there,
 * and mpirun of Open MPI takes an end without MPI_Finalize for a crash. */
#include "comm/mpi/plugin.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct {
    bool ours;      /* initialised here, so finalized here */
    bool abandoned; /* Note [MPI_Init, MPI_Finalize] */
    int users;      /* described and not unloaded */
    int open;       /* communicators that were not closed */
    int64_t timeout_ms;
    int code, level; /* of MPI_Init_thread */
    _Atomic int returned;
} process;

ls_status ls__mpi_fail(ls_status status, char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error, LS_BACKEND_ERROR_MAX, format, arguments);
    va_end(arguments);
    return status;
}

ls_status ls__mpi_check(int code, const char *call, char *error)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) {
        return LS_OK;
    }
    (void)MPI_Error_string(code, text, &length);
    return ls__mpi_fail(LS_ERR_SYSTEM, error, "%s: %.400s", call, text);
}

typedef enum outcome { RETURNED, LATE, NO_THREAD } outcome;

/* Note [MPI_Init, MPI_Finalize] */
static outcome call_in_time(void *(*call)(void *))
{
    pthread_t thread;
    const struct timespec pause = {.tv_nsec = 1000000};
    atomic_store(&process.returned, 0);
    if (pthread_create(&thread, NULL, call, NULL) != 0) {
        return NO_THREAD;
    }
    for (int64_t ms = 0; atomic_load(&process.returned) == 0; ms++) {
        if (ms >= process.timeout_ms) {
            return LATE;
        }
        (void)nanosleep(&pause, NULL);
    }
    (void)pthread_join(thread, NULL);
    return RETURNED;
}

/* ---- leaving -------------------------------------------------------------------------------- */

static void *finalize_main(void *arg)
{
    (void)arg;
    (void)MPI_Finalize();
    atomic_store(&process.returned, 1);
    return NULL;
}

static void at_exit(void)
{
    int finalized = 0;
    if (process.users > 0 || process.open > 0 || process.abandoned ||
        MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) {
        return;
    }
    if (call_in_time(finalize_main) == LATE) {
        (void)fprintf(stderr,
                      "lockstep: MPI_Finalize did not end in %lld ms and is given up; look for "
                      "a rank that has not left\n",
                      (long long)process.timeout_ms);
    }
}

void ls__mpi_opened(void)
{
    process.open++;
}

void ls__mpi_closed(void)
{
    process.open--;
}

void ls__mpi_abandon(void)
{
    process.abandoned = true;
}

void ls__mpi_described(void)
{
    process.users++;
}

void ls__mpi_unload(bool failed)
{
    process.users--;
    process.abandoned = process.abandoned || (process.ours && failed);
}

/* ---- initialising --------------------------------------------------------------------------- */

static const char *level_name(int level)
{
    return level == MPI_THREAD_SINGLE       ? "MPI_THREAD_SINGLE"
           : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
           : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                                            : "MPI_THREAD_MULTIPLE";
}

/* The program's own calls cannot be kept apart from those of the engine's thread, so its MPI has to
 * allow calls by several threads at once. */
static ls_status adopt(char *error)
{
    int level = MPI_THREAD_SINGLE, finalized = 0;
    (void)MPI_Finalized(&finalized);
    if (finalized != 0) {
        return ls__mpi_fail(
            LS_ERR_STATE, error,
            "MPI is finalized in this process; call ls_finalize before MPI_Finalize");
    }
    const ls_status status = ls__mpi_check(MPI_Query_thread(&level), "MPI_Query_thread", error);
    if (status == LS_OK && level < MPI_THREAD_MULTIPLE) {
        return ls__mpi_fail(
            LS_ERR_STATE, error,
            "this program has initialised MPI with %s, but Lockstep calls MPI from a thread of its "
            "own; call MPI_Init_thread with MPI_THREAD_MULTIPLE",
            level_name(level));
    }
    return status;
}

static void *init_main(void *arg)
{
    (void)arg;
    process.code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &process.level);
    atomic_store(&process.returned, 1);
    return NULL;
}

#ifdef __GLIBC__ /* others have no on_exit */
static void end_at_once(int status, void *arg)
{
    (void)arg;
    (void)fflush(NULL);
    _exit(status);
}
#endif

static ls_status initialise(char *error)
{
    if (process.abandoned) {
        return ls__mpi_fail(LS_ERR_STATE, error,
                            "MPI was given up in this process after a failure; start a new one");
    }
    if (ls__mpi_initialised()) {
        return process.ours ? LS_OK : adopt(error);
    }
    const outcome o = call_in_time(init_main);
    if (o == NO_THREAD) {
        (void)init_main(NULL);
    } else if (o == LATE) {
        ls__mpi_abandon();
#ifdef __GLIBC__
        (void)on_exit(end_at_once, NULL);
#endif
        return ls__mpi_fail(
            LS_ERR_TIMEOUT, error,
            "MPI_Init_thread has not returned within %.1f s; look for a rank that has "
            "ended or not started, or set LOCKSTEP_TIMEOUT higher",
            (double)process.timeout_ms * 1e-3);
    }
    const ls_status status = ls__mpi_check(process.code, "MPI_Init_thread", error);
    if (status != LS_OK) {
        return status;
    }
    process.ours = true;
    (void)atexit(at_exit);
    return process.level >= MPI_THREAD_SERIALIZED
               ? LS_OK
               : ls__mpi_fail(LS_ERR_STATE, error,
                              "this MPI offers %s only; use one that was built with threads",
                              level_name(process.level));
}

bool ls__mpi_initialised(void)
{
    int initialised = 0;
    return MPI_Initialized(&initialised) == MPI_SUCCESS && initialised != 0;
}

ls_status ls__mpi_initialise(const ls_backend_group_spec *spec, char *error)
{
    int rank = 0, size = 0;
    const int own = spec->world_rank[spec->rank];
    process.timeout_ms = spec->timeout_ms;
    const ls_status status = initialise(error);
    if (status != LS_OK) {
        return status;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == own && size == spec->world_ranks) {
        return LS_OK;
    }
    ls__mpi_abandon(); /* who would take part in MPI_Finalize? */
    return ls__mpi_fail(LS_ERR_STATE, error,
                        "this process is rank %d of %d, but rank %d of %d in MPI; start it "
                        "by the mpirun of this MPI, or by srun, and nothing else",
                        own, spec->world_ranks, rank, size);
}
