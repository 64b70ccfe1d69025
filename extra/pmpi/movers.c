/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that move data, as bytes: Note [The same on all ranks]. Blocks of equal lengths. */
#include "pmpi.h"

/* The block of rank `rank`. */
static char *block(const pmpi_blocks *b, int rank)
{
    return b->data + rank * b->bytes;
}

static ls_status check_equal(const pmpi_blocks *in, const pmpi_blocks *out)
{
    return in->bytes == out->bytes
               ? LS_OK
               : ls_fail(LS_ERR_INVALID, "this rank sends %lld bytes a block, but receives %lld",
                         (long long)in->bytes, (long long)out->bytes);
}

int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks b;
    if (!pmpi_begin(&call, comm, PMPI_BCAST, true)) {
        return PMPI_Bcast(buffer, count, type, root, comm);
    }
    const bool at_root = call.place->rank == root;
    ls_status status = pmpi_blocks_init(&b, buffer, 1, count, type);
    status = status == LS_OK && at_root ? pmpi_pack(&b, 0, 1) : status;
    if (status == LS_OK) {
        status =
            ls_broadcast(call.place->group, b.data, b.bytes, LS_UINT8, root, &pmpi.options, NULL);
    }
    status = status == LS_OK && !at_root ? pmpi_unpack(&b) : status;
    pmpi_blocks_fini(&b);
    return pmpi_end(&call, status, b.bytes);
}

/* `in` becomes a block of `out`, or with MPI_IN_PLACE is the own one there. */
static ls_status begin_gather(pmpi_blocks *in, pmpi_blocks *out, const pmpi_call *call,
                              bool in_place)
{
    LS_TRY(check_equal(in_place ? out : in, out));
    LS_TRY(in_place ? pmpi_pack(out, call->place->rank, 1) : pmpi_pack(in, 0, 1));
    if (in_place) {
        in->data = block(out, call->place->rank);
    }
    return LS_OK;
}

int MPI_Allgather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
                  int recvcount, MPI_Datatype recvtype, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (!pmpi_begin(&call, comm, PMPI_ALLGATHER, true)) {
        return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
    }
    ls_status status = pmpi_blocks_init(&out, recvbuf, call.place->size, recvcount, recvtype);
    if (status == LS_OK && !in_place) {
        status = pmpi_blocks_init(&in, sendbuf, 1, sendcount, sendtype);
    }
    status = status == LS_OK ? begin_gather(&in, &out, &call, in_place) : status;
    if (status == LS_OK) {
        status = ls_all_gather(call.place->group, in.data, out.data, out.bytes, LS_UINT8,
                               &pmpi.options, NULL);
    }
    status = status == LS_OK ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, out.bytes);
}

int MPI_Gather(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
               int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    if (!pmpi_begin(&call, comm, PMPI_GATHER, true)) {
        return PMPI_Gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
    }
    const bool at_root = call.place->rank == root, in_place = at_root && sendbuf == MPI_IN_PLACE;
    ls_status status = LS_OK;
    if (!in_place) {
        status = pmpi_blocks_init(&in, sendbuf, 1, sendcount, sendtype);
    }
    if (status == LS_OK && at_root) {
        status = pmpi_blocks_init(&out, recvbuf, call.place->size, recvcount, recvtype);
    }
    if (status == LS_OK) {
        status = at_root ? begin_gather(&in, &out, &call, in_place) : pmpi_pack(&in, 0, 1);
    }
    const int64_t bytes = at_root ? out.bytes : in.bytes;
    if (status == LS_OK) {
        status = ls_gather(call.place->group, in.data, out.data, bytes, LS_UINT8, root,
                           &pmpi.options, NULL);
    }
    status = status == LS_OK && at_root ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, bytes);
}

int MPI_Scatter(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
                int recvcount, MPI_Datatype recvtype, int root, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    if (!pmpi_begin(&call, comm, PMPI_SCATTER, true)) {
        return PMPI_Scatter(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm);
    }
    const bool at_root = call.place->rank == root, in_place = at_root && recvbuf == MPI_IN_PLACE;
    ls_status status = LS_OK;
    if (at_root) {
        status = pmpi_blocks_init(&in, sendbuf, call.place->size, sendcount, sendtype);
        status = status == LS_OK ? pmpi_pack(&in, 0, in.n) : status;
    }
    if (status == LS_OK && !in_place) {
        status = pmpi_blocks_init(&out, recvbuf, 1, recvcount, recvtype);
        status = status == LS_OK && at_root ? check_equal(&in, &out) : status;
    }
    const int64_t bytes = at_root ? in.bytes : out.bytes;
    if (status == LS_OK) {
        status = ls_scatter(call.place->group, in.data, in_place ? block(&in, root) : out.data,
                            bytes, LS_UINT8, root, &pmpi.options, NULL);
    }
    status = status == LS_OK && !in_place ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, bytes);
}

int MPI_Alltoall(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
                 int recvcount, MPI_Datatype recvtype, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (!pmpi_begin(&call, comm, PMPI_ALLTOALL, true)) {
        return PMPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
    }
    const int n = call.place->size;
    ls_status status = pmpi_blocks_init(&out, recvbuf, n, recvcount, recvtype);
    if (status == LS_OK && in_place) {
        status = pmpi_pack(&out, 0, n);
    } else if (status == LS_OK) {
        status = pmpi_blocks_init(&in, sendbuf, n, sendcount, sendtype);
        status = status == LS_OK ? check_equal(&in, &out) : status;
        status = status == LS_OK ? pmpi_pack(&in, 0, n) : status;
    }
    if (status == LS_OK) {
        status = ls_all_to_all(call.place->group, in_place ? out.data : in.data, out.data,
                               out.bytes, LS_UINT8, &pmpi.options, NULL);
    }
    status = status == LS_OK ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, out.bytes * n);
}
