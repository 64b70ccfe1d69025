/* Chooses the MPI that this process runs under, and loads its plug-in. */
#ifndef LS_COMM_MPI_LOAD_H
#define LS_COMM_MPI_LOAD_H

#include "base/error.h"
#include "comm/mpi/table.h"

/* In this order: LOCKSTEP_MPI (openmpi, mpich, or the path of a plug-in), an MPI that the process has
 * loaded, the variables of mpirun or srun. Errors: LS_ERR_NOT_FOUND, LS_ERR_INVALID,
 * LS_ERR_UNSUPPORTED, each in words. The plug-in is never unloaded: MPI leaves threads behind. */
ls_status ls__mpi_load(const ls__mpi_table **out);

#endif
