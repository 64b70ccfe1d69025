/* SPDX-License-Identifier: Apache-2.0 */
/* A program of MPI: its communicators become groups.
 *
 * This header calls MPI, so it is compiled with the MPI that the program uses; the library itself
 * is linked with none, and lockstep.h does not include it. Started by mpirun or srun, ls_init finds
 * its rank by itself, before or after MPI_Init, and nothing has to be set. docs/coming-from-mpi.md
 * has a table of the calls. */
#ifndef LOCKSTEP_MPI_H
#define LOCKSTEP_MPI_H

#include <mpi.h>
#include <stdio.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LS_MPI_RANKS_MAX 1024 /* of a job of Lockstep, and so of a communicator */

/* What every rank can say about its own call. */
static inline ls_status ls_mpi_check_(MPI_Comm comm, const ls_group *const *out, int *size)
{
    int begun = 0, ended = 0, inter = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (!begun || ended) {
        return ls_fail(LS_ERR_STATE,
                       "ls_group_from_mpi: MPI is %s in this process; call it between MPI_Init and "
                       "MPI_Finalize",
                       ended ? "finalized" : "not initialised");
    }
    if (comm == MPI_COMM_NULL || out == NULL) {
        return ls_fail(
            LS_ERR_INVALID,
            "ls_group_from_mpi: %s; call it on the ranks that have a communicator, with a "
            "place for the group",
            out == NULL ? "out is NULL" : "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(comm, &inter);
    MPI_Comm_size(comm, size);
    if (inter || *size > LS_MPI_RANKS_MAX) {
        return ls_fail(inter ? LS_ERR_INVALID : LS_ERR_LIMIT, "ls_group_from_mpi: %s; %s",
                       inter ? "this is an inter-communicator"
                             : "the communicator has more than 1024 ranks",
                       inter ? "make one communicator of both sides by MPI_Intercomm_merge"
                             : "a job of Lockstep has at most 1024");
    }
    return LS_OK;
}

static inline ls_status ls_mpi_status_(int code, const char *call)
{
    return code == MPI_SUCCESS
               ? LS_OK
               : ls_fail(LS_ERR_SYSTEM, "ls_group_from_mpi: %s returned error %d of MPI", call,
                         code);
}

/* Rank 0 puts a key into the store of its job, and every rank looks whether its own store has it.
 * Ranks and threads that make other groups at the same time have keys of their own. */
static inline ls_status ls_mpi_same_job_(MPI_Comm comm, int rank, int size)
{
    char key[96] = "";
    bool found = false;
    int same[LS_MPI_RANKS_MAX], mine;
    const ls_store_value one = {"1", 1};
    ls_status status = LS_OK;
    if (rank == 0) {
        snprintf(key, sizeof key, "ls_group_from_mpi/%d/%p/%.9f", ls_rank(), (void *)key,
                 ls_time());
        status = ls_store_set(ls_runtime_store(), key, "1", 1, -1);
    }
    LS_TRY(ls_mpi_status_(MPI_Bcast(key, sizeof key, MPI_CHAR, 0, comm), "MPI_Bcast"));
    if (status == LS_OK) {
        status = ls_store_compare_set(ls_runtime_store(), key, one, one, &found, -1);
    }
    mine = status == LS_OK && found;
    LS_TRY(
        ls_mpi_status_(MPI_Allgather(&mine, 1, MPI_INT, same, 1, MPI_INT, comm), "MPI_Allgather"));
    if (rank == 0 && status == LS_OK) {
        status = ls_store_delete(ls_runtime_store(), key, NULL, -1);
    }
    LS_TRY(status);
    for (int r = 0; r < size; r++) {
        if (!same[r]) {
            return ls_fail(LS_ERR_INVALID,
                           "ls_group_from_mpi: rank %d of the communicator is not in the job of "
                           "rank 0 (rank %d of %d in Lockstep): start all ranks by one mpirun or "
                           "srun, and leave LOCKSTEP_LAUNCHER alone",
                           r, ls_rank(), ls_world_size());
        }
    }
    return LS_OK;
}

/* *out becomes a group of the communicator's ranks, in their order there (ls_group_new). Collective
 * over the communicator: every member calls it after ls_init, and gets the same error if one has
 * not. `name` appears in reports (copied; NULL: a number). The group and the communicator are
 * independent afterwards; free the group with ls_group_free. Costs four small collectives of MPI
 * and one request of the store a rank. LS_ERR_STATE: outside MPI_Init … MPI_Finalize, or a rank has
 * not called ls_init; LS_ERR_INVALID: MPI_COMM_NULL, an inter-communicator, or a rank of another
 * job; LS_ERR_LIMIT: more than LS_MPI_RANKS_MAX ranks. */
static inline ls_status ls_group_from_mpi(MPI_Comm comm, const char *name, ls_group **out)
{
    int ranks[LS_MPI_RANKS_MAX], rank = 0, size = 0;
    int mine = ls_runtime_current() != NULL ? ls_rank() : -1;
    LS_TRY(ls_mpi_check_(comm, (const ls_group *const *)out, &size));
    *out = NULL;
    MPI_Comm_rank(comm, &rank);
    LS_TRY(
        ls_mpi_status_(MPI_Allgather(&mine, 1, MPI_INT, ranks, 1, MPI_INT, comm), "MPI_Allgather"));
    for (int r = 0; r < size; r++) {
        if (ranks[r] < 0) {
            return ls_fail(LS_ERR_STATE,
                           "ls_group_from_mpi: rank %d of the communicator has not called ls_init; "
                           "call it on every rank first",
                           r);
        }
    }
    LS_TRY(ls_mpi_same_job_(comm, rank, size));
    return (ls_group_new_among)(ls_world(), ranks, size, name, out);
}

#if !defined(LS_NO_SITES)
#define ls_group_from_mpi(...) LS_AT(ls_group_from_mpi(__VA_ARGS__))
#endif

#ifdef __cplusplus
}
#endif
#endif
