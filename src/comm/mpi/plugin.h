/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `mpi` (lockstep/backend.h): compiled once with each MPI's header into
 * ls_backend_mpi_openmpi.so and ls_backend_mpi_mpich.so, linked with that MPI and nothing of the
 * library, because two MPIs have different types. It offers
 *
 *     messages.c      the transport over which the library runs its programs
 *                     (LOCKSTEP_DATA_PLANE=mpi)
 *     collectives.c   MPI's own collectives, for comparison (LOCKSTEP_BACKEND=mpi)
 *
 * All calls but the first, `describe`, are made by the holder of the library's progress lock, so
 * MPI_THREAD_SERIALIZED is enough. */
#ifndef LS_COMM_MPI_PLUGIN_H
#define LS_COMM_MPI_PLUGIN_H

#include <lockstep/backend.h>

#include <mpi.h>

/* ---- process.c ------------------------------------------------------------------------------- */

/* LS_OK if the call succeeded; else LS_ERR_SYSTEM, and `error` names the call and MPI's reason. */
ls_status ls__mpi_check(int code, const char *call, char *error);
/* Writes one line to `error`; returns the status. */
ls_status ls__mpi_fail(ls_status status, char *error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Initialises MPI, or adopts the one that the program has initialised, and compares its rank with
 * that of the library. MPI_Init_thread waits for all ranks. */
ls_status ls__mpi_initialise(const ls_backend_group_spec *spec, char *error);
bool ls__mpi_initialised(void);
/* How many communicators are in use; if one has failed, MPI_Finalize is never called. */
void ls__mpi_opened(void);
void ls__mpi_closed(void);
void ls__mpi_abandon(void); /* no MPI call is made any more, now or when the process exits */
void ls__mpi_described(void);
void ls__mpi_unload(bool failed);

/* ---- messages.c, collectives.c --------------------------------------------------------------- */

extern const ls_backend_transport ls__mpi_messages;

ls_status ls__mpi_group_open(const ls_backend_group_spec *spec, void *address, void **group,
                             char *error);
ls_status ls__mpi_group_connect(void *group, const void *addresses, char *error);
void ls__mpi_group_close(void *group, bool failed);
ls_status ls__mpi_start(void *group, const ls_backend_operation *operation, void **request,
                        char *error);
ls_status ls__mpi_test(void *group, void *request, char *error);

#endif
