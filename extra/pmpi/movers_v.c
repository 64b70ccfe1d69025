/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that move data in blocks of unequal lengths: movers.c, with an array for the lengths. */
#include "pmpi.h"

/* What this rank contributes: its send buffer, or its block of `out` in place. */
static ls_status own_block(pmpi_blocks *in, const void *sendbuf, int sendcount,
                           MPI_Datatype sendtype, pmpi_blocks *out, int me)
{
    if (out != NULL) {
        LS_TRY(pmpi_pack(out, me, 1));
        in->data = out->data + out->offsets[me];
        in->bytes = out->lengths[me];
        return LS_OK;
    }
    LS_TRY(pmpi_blocks_init(in, sendbuf, 1, sendcount, sendtype));
    return pmpi_pack(in, 0, 1);
}

int MPI_Allgatherv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
                   const int recvcounts[], const int displs[], MPI_Datatype recvtype, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (!pmpi_begin(&call, comm, PMPI_ALLGATHERV, true)) {
        return PMPI_Allgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype,
                               comm);
    }
    const int me = call.place->rank;
    ls_status status =
        pmpi_blocks_init_v(&out, recvbuf, call.place->size, recvcounts, displs, recvtype);
    status = status == LS_OK
                 ? own_block(&in, sendbuf, sendcount, sendtype, in_place ? &out : NULL, me)
                 : status;
    if (status == LS_OK) {
        status = ls_all_gather_v(call.place->group, in.data, in.bytes, out.data, out.lengths,
                                 out.offsets, LS_UINT8, &pmpi.options, NULL);
    }
    status = status == LS_OK ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, in.bytes);
}

int MPI_Gatherv(const void *sendbuf, int sendcount, MPI_Datatype sendtype, void *recvbuf,
                const int recvcounts[], const int displs[], MPI_Datatype recvtype, int root,
                MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    if (!pmpi_begin(&call, comm, PMPI_GATHERV, true)) {
        return PMPI_Gatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype,
                            root, comm);
    }
    const int me = call.place->rank;
    const bool at_root = me == root, in_place = at_root && sendbuf == MPI_IN_PLACE;
    ls_status status = LS_OK;
    if (at_root) {
        status = pmpi_blocks_init_v(&out, recvbuf, call.place->size, recvcounts, displs, recvtype);
    }
    status = status == LS_OK
                 ? own_block(&in, sendbuf, sendcount, sendtype, in_place ? &out : NULL, me)
                 : status;
    if (status == LS_OK) {
        status = ls_gather_v(call.place->group, in.data, in.bytes, out.data, out.lengths,
                             out.offsets, LS_UINT8, root, &pmpi.options, NULL);
    }
    status = status == LS_OK && at_root ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, in.bytes);
}

int MPI_Scatterv(const void *sendbuf, const int sendcounts[], const int displs[],
                 MPI_Datatype sendtype, void *recvbuf, int recvcount, MPI_Datatype recvtype,
                 int root, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    if (!pmpi_begin(&call, comm, PMPI_SCATTERV, true)) {
        return PMPI_Scatterv(sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype,
                             root, comm);
    }
    const bool at_root = call.place->rank == root, in_place = at_root && recvbuf == MPI_IN_PLACE;
    ls_status status = LS_OK;
    if (at_root) {
        status = pmpi_blocks_init_v(&in, sendbuf, call.place->size, sendcounts, displs, sendtype);
        status = status == LS_OK ? pmpi_pack(&in, 0, in.n) : status;
    }
    if (status == LS_OK && in_place) {
        out.data = in.data + in.offsets[root];
        out.bytes = in.lengths[root];
    } else if (status == LS_OK) {
        status = pmpi_blocks_init(&out, recvbuf, 1, recvcount, recvtype);
    }
    if (status == LS_OK) {
        status = ls_scatter_v(call.place->group, in.data, in.lengths, in.offsets, out.data,
                              out.bytes, LS_UINT8, root, &pmpi.options, NULL);
    }
    status = status == LS_OK && !in_place ? pmpi_unpack(&out) : status;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, out.bytes);
}

int MPI_Alltoallv(const void *sendbuf, const int sendcounts[], const int sdispls[],
                  MPI_Datatype sendtype, void *recvbuf, const int recvcounts[], const int rdispls[],
                  MPI_Datatype recvtype, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_blocks in = {0}, out = {0};
    const bool in_place = sendbuf == MPI_IN_PLACE;
    if (!pmpi_begin(&call, comm, PMPI_ALLTOALLV, true)) {
        return PMPI_Alltoallv(sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls,
                              recvtype, comm);
    }
    const int n = call.place->size;
    ls_status status = pmpi_blocks_init_v(&out, recvbuf, n, recvcounts, rdispls, recvtype);
    if (status == LS_OK && in_place) {
        status = pmpi_pack(&out, 0, n);
    } else if (status == LS_OK) {
        status = pmpi_blocks_init_v(&in, sendbuf, n, sendcounts, sdispls, sendtype);
        status = status == LS_OK ? pmpi_pack(&in, 0, n) : status;
    }
    const pmpi_blocks *from = in_place ? &out : &in;
    if (status == LS_OK) {
        status = ls_all_to_all_v(call.place->group, from->data, from->lengths, from->offsets,
                                 out.data, out.lengths, out.offsets, LS_UINT8, &pmpi.options, NULL);
    }
    status = status == LS_OK ? pmpi_unpack(&out) : status;
    const int64_t bytes = status == LS_OK ? pmpi_blocks_total(&out) : 0;
    pmpi_blocks_fini(&in);
    pmpi_blocks_fini(&out);
    return pmpi_end(&call, status, bytes);
}
