/* SPDX-License-Identifier: Apache-2.0 */
/* The process manager's interface for ranks that it started: a small broadcast from rank 0, with
 * which the ranks of a job agree on an address and a secret before any connection between them
 * exists.
 *
 *     PMIx    mpirun of Open MPI, srun --mpi=pmix     libpmix.so.2, opened at run time (pmix.c)
 *     PMI-1   mpirun of MPICH and Intel MPI, srun --mpi=pmi2, flux
 *                                                     lines over the socket PMI_FD (pmi_wire.c)
 *
 * Neither is linked. The value travels over the process manager's own connections; it is as private
 * as they are. */
#ifndef LS_JOB_PMI_PMI_H
#define LS_JOB_PMI_PMI_H

#include <lockstep/status.h>

#include "base/env.h"

#define LS__PMI_VALUE 1024 /* with the 0 at its end: PMI-1 allows no more */
#define LS__PMI_REASON 256

/* The interface that this process has, for messages; NULL: none. */
const char *ls__pmi_name(void);

/* Every rank of the job calls it; rank 0 gives `value` (no space, no newline, not empty), the
 * others receive it. False: `reason` says why not. */
bool ls__pmi_broadcast(const ls__env *env, int rank, char value[LS__PMI_VALUE],
                       uint64_t deadline_ns, char reason[LS__PMI_REASON]);

/* In ls_finalize: what the broadcast has left open for an MPI in this process is closed, unless
 * that MPI does so. */
void ls__pmi_end(const ls__env *env);

/* ---- internal to this folder: one call of each interface. What the broadcast opens stays open
 * until its end.
 * -------------------------------------------------------------------------------------- */

bool ls__pmix_broadcast(const ls__env *env, int rank, const char *key, char value[LS__PMI_VALUE],
                        uint64_t deadline_ns, char reason[LS__PMI_REASON]);
void ls__pmix_end(void);
bool ls__pmi_wire_broadcast(const ls__env *env, int fd, int rank, const char *key,
                            char value[LS__PMI_VALUE], uint64_t deadline_ns,
                            char reason[LS__PMI_REASON]);
void ls__pmi_wire_end(const ls__env *env, int fd, uint64_t deadline_ns);

#endif
