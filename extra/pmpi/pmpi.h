/* SPDX-License-Identifier: Apache-2.0 */
/* The interposer: LD_PRELOAD puts it before an MPI, and it serves the blocking collectives of an
 * unchanged C program through Lockstep. docs/mpi.md says what it serves.
 *
 * Note [The same on all ranks]
 * Whether a call is served may depend only on what MPI requires to be equal on all ranks: the
 * communicator, the function, the root, the predefined type and operator of a reduction. For
 * functions that move data MPI requires equal type signatures only, and a rank may describe the
 * same bytes by a type of its own. So all of these calls are served, as bytes, and a rank whose
 * type is not contiguous packs them (blocks.c).
 *
 * Note [Progress]
 * MPI makes progress only while it is called. A rank that waits in Lockstep must therefore call
 * MPI: its peer may be receiving from it before it comes to the same collective. The wait callback
 * does that, and so does every CREDIT-th collective that ended without a wait (init.c). */
#ifndef PMPI_H
#define PMPI_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/comm.h>

#define PMPI_FUNCTIONS(X)                                                                          \
    X(ALLREDUCE, "MPI_Allreduce")                                                                  \
    X(REDUCE, "MPI_Reduce")                                                                        \
    X(REDUCE_SCATTER, "MPI_Reduce_scatter")                                                        \
    X(REDUCE_SCATTER_BLOCK, "MPI_Reduce_scatter_block")                                            \
    X(SCAN, "MPI_Scan")                                                                            \
    X(EXSCAN, "MPI_Exscan")                                                                        \
    X(BARRIER, "MPI_Barrier")                                                                      \
    X(BCAST, "MPI_Bcast")                                                                          \
    X(ALLGATHER, "MPI_Allgather")                                                                  \
    X(ALLGATHERV, "MPI_Allgatherv")                                                                \
    X(GATHER, "MPI_Gather")                                                                        \
    X(GATHERV, "MPI_Gatherv")                                                                      \
    X(SCATTER, "MPI_Scatter")                                                                      \
    X(SCATTERV, "MPI_Scatterv")                                                                    \
    X(ALLTOALL, "MPI_Alltoall")                                                                    \
    X(ALLTOALLV, "MPI_Alltoallv")

typedef enum pmpi_function {
#define X(name, text) PMPI_##name,
    PMPI_FUNCTIONS(X)
#undef X
        PMPI_FUNCTION_COUNT
} pmpi_function;

/* ---- the process (init.c) ------------------------------------------------------------------- */

/* Between MPI_Init and MPI_Finalize of a job that is served. */
typedef struct pmpi_process {
    bool on;
    bool multiple; /* MPI_THREAD_MULTIPLE: several threads call at once */
    int size;      /* of MPI_COMM_WORLD */
    ls_runtime *runtime;
    MPI_Comm quiet;                /* of all ranks; nothing is sent on it */
    ls_collective_options options; /* of every operation */
} pmpi_process;
extern pmpi_process pmpi;

/* ---- communicators (groups.c) --------------------------------------------------------------- */

/* Cached as an attribute of the communicator. */
typedef struct pmpi_place {
    ls_group *group; /* NULL: calls are passed through */
    int rank, size;
    int64_t id; /* the same on all members, and another one for other groups of a member */
    int *ranks; /* [size] in MPI_COMM_WORLD */
    struct pmpi_place *next;
} pmpi_place;

/* NULL: pass the call through. Collective over the communicator the first time. */
pmpi_place *pmpi_find(MPI_Comm comm);
int pmpi_groups_init(void);
void pmpi_groups_fini(void);

/* ---- calls (call.c) ------------------------------------------------------------------------- */

/* One call that is served: from pmpi_begin to pmpi_end, which returns what the MPI function
 * does. */
typedef struct pmpi_call {
    pmpi_place *place;
    MPI_Comm comm;
    pmpi_function function;
    bool attached; /* this thread, for this call */
} pmpi_call;

/* False: pass it through. `possible` is a condition that is the same on all ranks. */
bool pmpi_begin(pmpi_call *call, MPI_Comm comm, pmpi_function function, bool possible);
int pmpi_end(pmpi_call *call, ls_status status, int64_t bytes);
void pmpi_report(int rank);

/* ---- types (types.c) ------------------------------------------------------------------------ */

void pmpi_types_init(void);

/* A reduction of `count` elements of MPI is one of count * factor elements of `dtype`. */
typedef struct pmpi_reduction {
    ls_dtype dtype;
    ls_reduce_op op;
    int factor;
    size_t size;  /* bytes of one element of MPI */
    bool logical; /* of truth values: the inputs become 0 or 1 first */
} pmpi_reduction;

/* False: a type or an operator that Lockstep does not combine. */
bool pmpi_reduction_of(MPI_Datatype type, MPI_Op op, pmpi_reduction *out);
/* `in`, or for a logical operator its truth values, in new memory *copy; NULL: no memory. */
const void *pmpi_truths(const pmpi_reduction *r, const void *in, int64_t count, void **copy);
/* Bytes of a predefined type without gaps; 0: another type. */
int pmpi_type_size(MPI_Datatype type);

/* ---- blocks (blocks.c) ---------------------------------------------------------------------- */

/* One side of a call that moves data: n blocks, block r of counts[r] (or `count`) elements of
 * `type`. */
typedef struct pmpi_blocks {
    char *user;
    MPI_Datatype type;
    int n, count;
    const int *counts, *displs; /* NULL: all blocks have `count` elements, one after the other */
    bool plain;                 /* predefined: data is the user's memory */
    int64_t size, extent;       /* of one element, in bytes */
    char *data;                 /* what Lockstep reads or writes */
    char *packed;               /* to free; NULL: none */
    int64_t bytes;              /* of one block, of a call without `counts` */
    int64_t *lengths, *offsets; /* [n] in data, of a call with `counts` */
} pmpi_blocks;

/* Both leave an error for ls_error_message. */
ls_status pmpi_blocks_init(pmpi_blocks *b, const void *user, int n, int count, MPI_Datatype type);
ls_status pmpi_blocks_init_v(pmpi_blocks *b, const void *user, int n, const int *counts,
                             const int *displs, MPI_Datatype type);
/* Blocks first … first+n-1 between the user's memory and data; nothing for a plain type. */
ls_status pmpi_pack(pmpi_blocks *b, int first, int n);
ls_status pmpi_unpack(pmpi_blocks *b);
void pmpi_blocks_fini(pmpi_blocks *b);
int64_t pmpi_blocks_total(const pmpi_blocks *b);

#endif
