/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's own collectives as a backend: each operation of a group is one call of MPI's on a
 * communicator of the group's, tested until it has ended. Buffers that MPI may not have, because
 * they overlap or blocks lie apart, go through a scratch buffer, which the group keeps.
 *
 * Note [Making a communicator]
 * MPI_Init_thread and MPI_Comm_create_group wait until the other ranks call them, which they do at
 * about the same time (ls_backend.connect). A rank that dies in between keeps the others waiting,
 * and the launcher ends them. */
#include "comm/mpi/plugin.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define TAGS 32768 /* MPI has at least so many */

typedef struct mpi_request {
    MPI_Request mpi;
    void *to; /* where the result goes from the scratch buffer; NULL: it is there */
    size_t bytes;
} mpi_request;

typedef struct mpi_group {
    MPI_Comm comm; /* MPI_COMM_NULL: not connected */
    ls_backend_group_spec spec;
    int *world_rank;  /* [ranks] */
    int *table[2][2]; /* [ranks]: counts and offsets of the input [0] and the output [1] */
    mpi_request collective;
    unsigned char *scratch;
    size_t room;
} mpi_group;

/* ---- opening and closing -------------------------------------------------------------------- */

ls_status ls__mpi_group_open(const ls_backend_group_spec *spec, void *address, void **group,
                             char *error)
{
    const size_t ranks = (size_t)spec->ranks;
    (void)address; /* MPI has its own */
    mpi_group *g = calloc(1, sizeof *g + 5 * ranks * sizeof(int));
    if (g == NULL) {
        return ls__mpi_fail(LS_ERR_MEMORY, error, "no memory for a communicator");
    }
    g->comm = MPI_COMM_NULL;
    g->spec = *spec;
    g->world_rank = (int *)(void *)(g + 1);
    memcpy(g->world_rank, spec->world_rank, ranks * sizeof(int));
    g->spec.world_rank = g->world_rank;
    for (int side = 0; side < 2; side++) {
        g->table[side][0] = g->world_rank + (1 + 2 * (size_t)side) * ranks;
        g->table[side][1] = g->world_rank + (2 + 2 * (size_t)side) * ranks;
    }
    *group = g;
    return LS_OK;
}

static ls_status make_communicator(mpi_group *g, char *error)
{
    MPI_Group world = MPI_GROUP_NULL, members = MPI_GROUP_NULL;
    ls_status status =
        ls__mpi_check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group", error);
    if (status == LS_OK) {
        status = ls__mpi_check(MPI_Group_incl(world, g->spec.ranks, g->world_rank, &members),
                               "MPI_Group_incl", error);
    }
    if (status == LS_OK) {
        status = ls__mpi_check(
            MPI_Comm_create_group(MPI_COMM_WORLD, members, (int)(g->spec.id % TAGS), &g->comm),
            "MPI_Comm_create_group", error);
    }
    if (status == LS_OK) {
        ls__mpi_opened();
        status = ls__mpi_check(MPI_Comm_set_errhandler(g->comm, MPI_ERRORS_RETURN),
                               "MPI_Comm_set_errhandler", error);
    }
    if (members != MPI_GROUP_NULL) {
        (void)MPI_Group_free(&members);
    }
    if (world != MPI_GROUP_NULL) {
        (void)MPI_Group_free(&world);
    }
    return status;
}

ls_status ls__mpi_group_connect(void *group, const void *addresses, char *error)
{
    mpi_group *g = group;
    (void)addresses;
    if (!ls__mpi_initialised() && g->spec.ranks != g->spec.world_ranks) {
        return ls__mpi_fail(
            LS_ERR_STATE, error,
            "MPI is initialised by all ranks of the job together, and this group has %d of %d; set "
            "LOCKSTEP_BACKEND=mpi, or make a group of all ranks with this backend first",
            g->spec.ranks, g->spec.world_ranks);
    }
    const ls_status status = ls__mpi_initialise(&g->spec, error);
    return status != LS_OK ? status : make_communicator(g, error);
}

/* MPI_Comm_free is collective in MPI's text; in both MPIs it is local. */
void ls__mpi_group_close(void *group, bool failed)
{
    mpi_group *g = group;
    if (!failed && g->comm != MPI_COMM_NULL) {
        (void)MPI_Comm_free(&g->comm);
        ls__mpi_closed();
    }
    free(g->scratch);
    free(g);
}

/* ---- types and operators -------------------------------------------------------------------- */

static MPI_Datatype type_of(ls_dtype dtype)
{
    switch (dtype) {
    case LS_FLOAT32:
        return MPI_FLOAT;
    case LS_FLOAT64:
        return MPI_DOUBLE;
    case LS_INT8:
        return MPI_INT8_T;
    case LS_UINT8:
        return MPI_UINT8_T;
    case LS_INT16:
        return MPI_INT16_T;
    case LS_UINT16:
        return MPI_UINT16_T;
    case LS_INT32:
        return MPI_INT32_T;
    case LS_UINT32:
        return MPI_UINT32_T;
    case LS_INT64:
        return MPI_INT64_T;
    case LS_UINT64:
        return MPI_UINT64_T;
    default:
        return MPI_C_BOOL;
    }
}

/* For operations that move elements and do not look at them. */
static MPI_Datatype type_of_size(size_t bytes)
{
    return bytes == 1   ? MPI_UINT8_T
           : bytes == 2 ? MPI_UINT16_T
           : bytes == 4 ? MPI_UINT32_T
                        : MPI_UINT64_T;
}

static MPI_Op operator_of(ls_reduce_op op, bool truth)
{
    switch (op) {
    case LS_PRODUCT:
        return truth ? MPI_LAND : MPI_PROD;
    case LS_MIN:
        return truth ? MPI_LAND : MPI_MIN;
    case LS_MAX:
        return truth ? MPI_LOR : MPI_MAX;
    case LS_BAND:
        return truth ? MPI_LAND : MPI_BAND;
    case LS_BOR:
        return truth ? MPI_LOR : MPI_BOR;
    case LS_BXOR:
        return truth ? MPI_LXOR : MPI_BXOR;
    default:
        return truth ? MPI_LOR : MPI_SUM;
    }
}

/* ---- buffers -------------------------------------------------------------------------------- */

/* An operation on its way to MPI. */
typedef struct call {
    mpi_group *group;
    const ls_backend_operation *op;
    const void *in;
    void *out;
    int count;
    MPI_Datatype type;
    MPI_Op combine;
    int *counts[2], *offsets[2]; /* of v-variants */
    MPI_Request *request;
} call;

/* At least so many bytes of scratch; NULL: no memory. */
static void *scratch(mpi_group *g, size_t bytes)
{
    if (bytes > g->room) {
        free(g->scratch);
        g->scratch = malloc(bytes);
        g->room = g->scratch != NULL ? bytes : 0;
    }
    return g->scratch;
}

/* Copies the blocks of the input into the scratch buffer, one after the other. False: no memory. */
static bool pack(call *c)
{
    const ls_backend_operation *op = c->op;
    size_t total = 0, at = 0;
    for (int r = 0; r < c->group->spec.ranks; r++) {
        total += (size_t)(op->counts[0] != NULL ? op->counts[0][r] : op->count);
    }
    unsigned char *to = scratch(c->group, total * op->element + 1);
    if (to == NULL) {
        return false;
    }
    for (int r = 0; r < c->group->spec.ranks; r++) {
        const size_t count = (size_t)(op->counts[0] != NULL ? op->counts[0][r] : op->count);
        const size_t from = (size_t)(op->offsets[0] != NULL ? op->offsets[0][r] : r * op->count);
        if (count > 0) {
            memcpy(to + at * op->element, (const char *)op->input + from * op->element,
                   count * op->element);
        }
        if (c->offsets[0] != NULL) {
            c->offsets[0][r] = (int)at;
        }
        at += count;
    }
    c->in = to;
    return true;
}

/* Whether the blocks of the input lie one after the other. */
static bool is_packed(const call *c)
{
    int64_t at = 0;
    for (int r = 0; r < c->group->spec.ranks; r++) {
        if (c->op->offsets[0][r] != at) {
            return false;
        }
        at += c->op->counts[0][r];
    }
    return true;
}

/* This rank's block of a buffer of blocks. */
static const void *own_block(const call *c, const void *buffer, int side)
{
    const ls_backend_operation *op = c->op;
    const int rank = c->group->spec.rank;
    const int64_t at = op->offsets[side] != NULL ? op->offsets[side][rank] : rank * op->count;
    return buffer != NULL ? (const char *)buffer + (size_t)at * op->element : NULL;
}

/* The result of a reduce-scatter in place would overlap its input, so it is copied at the end.
 * False: no memory. */
static bool divert(call *c)
{
    mpi_request *q = &c->group->collective;
    if (c->op->count == 0 || own_block(c, c->op->input, 0) != c->op->output) {
        return true;
    }
    q->bytes = (size_t)c->op->count * c->op->element;
    q->to = c->op->output;
    c->out = scratch(c->group, q->bytes);
    return c->out != NULL;
}

static const char *const names[] = {[LS_BACKEND_ALL_REDUCE] = "MPI_Iallreduce",
                                    [LS_BACKEND_REDUCE_SCATTER] = "MPI_Ireduce_scatter_block",
                                    [LS_BACKEND_ALL_GATHER] = "MPI_Iallgather",
                                    [LS_BACKEND_BROADCAST] = "MPI_Ibcast",
                                    [LS_BACKEND_SEND] = "MPI_Isend",
                                    [LS_BACKEND_RECV] = "MPI_Irecv",
                                    [LS_BACKEND_REDUCE] = "MPI_Ireduce",
                                    [LS_BACKEND_GATHER] = "MPI_Igather",
                                    [LS_BACKEND_SCATTER] = "MPI_Iscatter",
                                    [LS_BACKEND_ALL_TO_ALL] = "MPI_Ialltoall",
                                    [LS_BACKEND_SCAN] = "MPI_Iscan",
                                    [LS_BACKEND_EXSCAN] = "MPI_Iexscan",
                                    [LS_BACKEND_ALL_TO_ALL_V] = "MPI_Ialltoallv",
                                    [LS_BACKEND_ALL_GATHER_V] = "MPI_Iallgatherv",
                                    [LS_BACKEND_REDUCE_SCATTER_V] = "MPI_Ireduce_scatter",
                                    [LS_BACKEND_GATHER_V] = "MPI_Igatherv",
                                    [LS_BACKEND_SCATTER_V] = "MPI_Iscatterv"};

/* ---- operations ----------------------------------------------------------------------------- */

static int reduce(const call *c)
{
    const void *in = c->in != NULL && c->in == c->out ? MPI_IN_PLACE : c->in;
    MPI_Comm comm = c->group->comm;
    switch (c->op->kind) {
    case LS_BACKEND_ALL_REDUCE:
        return MPI_Iallreduce(in, c->out, c->count, c->type, c->combine, comm, c->request);
    case LS_BACKEND_REDUCE:
        return MPI_Ireduce(in, c->out, c->count, c->type, c->combine, c->op->root, comm,
                           c->request);
    case LS_BACKEND_SCAN:
        return MPI_Iscan(in, c->out, c->count, c->type, c->combine, comm, c->request);
    case LS_BACKEND_EXSCAN:
        return MPI_Iexscan(in, c->out, c->count, c->type, c->combine, comm, c->request);
    case LS_BACKEND_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(c->in, c->out, c->count, c->type, c->combine, comm,
                                         c->request);
    default:
        return MPI_Ireduce_scatter(c->in, c->out, c->counts[0], c->type, c->combine, comm,
                                   c->request);
    }
}

static int gather(const call *c)
{
    const MPI_Datatype t = c->type;
    MPI_Comm comm = c->group->comm;
    const void *in = c->in != NULL && c->in == own_block(c, c->out, 1) ? MPI_IN_PLACE : c->in;
    switch (c->op->kind) {
    case LS_BACKEND_ALL_GATHER:
        return MPI_Iallgather(in, c->count, t, c->out, c->count, t, comm, c->request);
    case LS_BACKEND_ALL_GATHER_V:
        return MPI_Iallgatherv(in, c->count, t, c->out, c->counts[1], c->offsets[1], t, comm,
                               c->request);
    case LS_BACKEND_GATHER:
        return MPI_Igather(in, c->count, t, c->out, c->count, t, c->op->root, comm, c->request);
    default:
        return MPI_Igatherv(in, c->count, t, c->out, c->counts[1], c->offsets[1], t, c->op->root,
                            comm, c->request);
    }
}

static int scatter(const call *c)
{
    const MPI_Datatype t = c->type;
    MPI_Comm comm = c->group->comm;
    void *out = c->out != NULL && c->out == own_block(c, c->in, 0) ? MPI_IN_PLACE : c->out;
    if (c->op->kind == LS_BACKEND_SCATTER) {
        return MPI_Iscatter(c->in, c->count, t, out, c->count, t, c->op->root, comm, c->request);
    }
    return MPI_Iscatterv(c->in, c->counts[0], c->offsets[0], t, out, c->count, t, c->op->root, comm,
                         c->request);
}

static int exchange(const call *c)
{
    const MPI_Datatype t = c->type;
    MPI_Comm comm = c->group->comm;
    if (c->op->kind == LS_BACKEND_ALL_TO_ALL) {
        return MPI_Ialltoall(c->in, c->count, t, c->out, c->count, t, comm, c->request);
    }
    return MPI_Ialltoallv(c->in, c->counts[0], c->offsets[0], t, c->out, c->counts[1],
                          c->offsets[1], t, comm, c->request);
}

static int message(const call *c)
{
    const int tag = (int)(c->op->message % TAGS); /* those in flight differ */
    return c->op->kind == LS_BACKEND_SEND
               ? MPI_Isend(c->in, c->count, c->type, c->op->root, tag, c->group->comm, c->request)
               : MPI_Irecv(c->out, c->count, c->type, c->op->root, tag, c->group->comm, c->request);
}

static bool reduces(ls_backend_kind kind)
{
    return kind == LS_BACKEND_ALL_REDUCE || kind == LS_BACKEND_REDUCE ||
           kind == LS_BACKEND_REDUCE_SCATTER || kind == LS_BACKEND_REDUCE_SCATTER_V ||
           kind == LS_BACKEND_SCAN || kind == LS_BACKEND_EXSCAN;
}

static int begin_collective(const call *c)
{
    if (reduces(c->op->kind)) {
        return reduce(c);
    }
    switch (c->op->kind) {
    case LS_BACKEND_BROADCAST:
        return MPI_Ibcast(c->out != NULL ? c->out : (void *)(uintptr_t)c->in, c->count, c->type,
                          c->op->root, c->group->comm, c->request);
    case LS_BACKEND_SCATTER:
    case LS_BACKEND_SCATTER_V:
        return scatter(c);
    case LS_BACKEND_ALL_TO_ALL:
    case LS_BACKEND_ALL_TO_ALL_V:
        return exchange(c);
    case LS_BACKEND_SEND:
    case LS_BACKEND_RECV:
        return message(c);
    default:
        return gather(c);
    }
}

/* Makes the buffers such that MPI may have them. False: no memory. */
static bool prepare(call *c)
{
    switch (c->op->kind) {
    case LS_BACKEND_REDUCE_SCATTER:
        return divert(c);
    case LS_BACKEND_REDUCE_SCATTER_V: /* MPI's has no offsets */
        return is_packed(c) ? divert(c) : pack(c);
    case LS_BACKEND_ALL_TO_ALL:
    case LS_BACKEND_ALL_TO_ALL_V:
        return c->in != c->out || pack(c);
    case LS_BACKEND_EXSCAN: /* rank 0 has no result, and MPICH refuses NULL */
        c->out = c->out != NULL ? c->out : scratch(c->group, (size_t)c->count * c->op->element + 1);
        return c->out != NULL;
    default:
        return true;
    }
}

static void copy_tables(call *c)
{
    for (int side = 0; side < 2; side++) {
        if (c->op->counts[side] == NULL) {
            continue;
        }
        c->counts[side] = c->group->table[side][0];
        c->offsets[side] = c->group->table[side][1];
        for (int r = 0; r < c->group->spec.ranks; r++) {
            c->counts[side][r] = (int)c->op->counts[side][r];
            c->offsets[side][r] = (int)c->op->offsets[side][r];
        }
    }
}

static mpi_request *request_of(mpi_group *g, ls_backend_kind kind)
{
    mpi_request *q =
        kind == LS_BACKEND_SEND || kind == LS_BACKEND_RECV ? malloc(sizeof *q) : &g->collective;
    if (q != NULL) {
        *q = (mpi_request){.mpi = MPI_REQUEST_NULL};
    }
    return q;
}

static void release(mpi_group *g, mpi_request *q)
{
    if (q != &g->collective) {
        free(q);
    }
}

ls_status ls__mpi_start(void *group, const ls_backend_operation *op, void **request, char *error)
{
    mpi_group *g = group;
    mpi_request *q = request_of(g, op->kind);
    call c = {.group = g,
              .op = op,
              .in = op->input,
              .out = op->output,
              .count = (int)op->count,
              .type = reduces(op->kind) ? type_of(op->dtype) : type_of_size(op->element),
              .combine = operator_of(op->op, op->dtype == LS_BOOL),
              .request = q != NULL ? &q->mpi : NULL};
    copy_tables(&c);
    if (q == NULL || !prepare(&c)) {
        return ls__mpi_fail(LS_ERR_MEMORY, error, "no memory for a copy of the data");
    }
    const ls_status status = ls__mpi_check(begin_collective(&c), names[op->kind], error);
    if (status != LS_OK) {
        release(g, q);
        return status;
    }
    *request = q;
    return LS_OK;
}

ls_status ls__mpi_test(void *group, void *request, char *error)
{
    mpi_group *g = group;
    mpi_request *q = request;
    int done = 0;
    const ls_status status =
        ls__mpi_check(MPI_Test(&q->mpi, &done, MPI_STATUS_IGNORE), "MPI_Test", error);
    if (status == LS_OK && done == 0) {
        return LS_IN_PROGRESS;
    }
    if (status == LS_OK && q->to != NULL) {
        memcpy(q->to, g->scratch, q->bytes);
    }
    release(g, q);
    return status;
}
