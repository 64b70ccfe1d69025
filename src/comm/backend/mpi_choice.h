/* SPDX-License-Identifier: Apache-2.0 */
/* Which MPI the backend "mpi" stands for: two MPIs have different types, so each has its
 * plug-in. */
#ifndef LS_COMM_BACKEND_MPI_CHOICE_H
#define LS_COMM_BACKEND_MPI_CHOICE_H

#include <stddef.h>

#include "base/error.h"

#define LS__BACKEND_MPI "mpi"

/* Writes the name of the plug-in, "mpi_openmpi" or "mpi_mpich", or a path. In this order:
 * LOCKSTEP_MPI (openmpi, mpich, or a path), an MPI that the process has loaded, the variables of
 * mpirun or srun. Errors: LS_ERR_NOT_FOUND, LS_ERR_INVALID. */
ls_status ls__mpi_choose(char *out, size_t bytes);

#endif
