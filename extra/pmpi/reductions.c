/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of predefined types by predefined operators, and the barrier. */
#include "pmpi.h"

#include <stdlib.h>
#include <string.h>

/* The counts of all ranks are on every rank, so one of them decides on all. */
static bool are_counts(const int *counts, int n)
{
    for (int r = 0; r < n; r++) {
        if (counts[r] < 0) {
            return false;
        }
    }
    return true;
}

static bool is_root(int root, MPI_Comm comm)
{
    int size = 0;
    return PMPI_Comm_size(comm, &size) == MPI_SUCCESS && root >= 0 && root < size;
}

static ls_status no_memory(void)
{
    return ls_fail(LS_ERR_MEMORY, "no memory for a copy of the input");
}

int MPI_Barrier(MPI_Comm comm)
{
    pmpi_call call;
    if (!pmpi_begin(&call, comm, PMPI_BARRIER, true)) {
        return PMPI_Barrier(comm);
    }
    return pmpi_end(&call, ls_barrier(call.place->group, &pmpi.options, NULL), 0);
}

int MPI_Allreduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    void *copy = NULL;
    if (!pmpi_begin(&call, comm, PMPI_ALLREDUCE, count >= 0 && pmpi_reduction_of(type, op, &r))) {
        return PMPI_Allreduce(sendbuf, recvbuf, count, type, op, comm);
    }
    const void *in = pmpi_truths(&r, sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf, count, &copy);
    const ls_status status =
        r.logical && in == NULL
            ? no_memory()
            : ls_all_reduce(call.place->group, in, recvbuf, (int64_t)count * r.factor, r.dtype,
                            r.op, &pmpi.options, NULL);
    free(copy);
    return pmpi_end(&call, status, (int64_t)r.size * count);
}

int MPI_Reduce(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
               int root, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    void *copy = NULL;
    if (!pmpi_begin(&call, comm, PMPI_REDUCE,
                    count >= 0 && pmpi_reduction_of(type, op, &r) && is_root(root, comm))) {
        return PMPI_Reduce(sendbuf, recvbuf, count, type, op, root, comm);
    }
    const bool at_root = call.place->rank == root;
    const void *in =
        pmpi_truths(&r, at_root && sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf, count, &copy);
    const ls_status status =
        r.logical && in == NULL
            ? no_memory()
            : ls_reduce(call.place->group, in, at_root ? recvbuf : NULL, (int64_t)count * r.factor,
                        r.dtype, r.op, root, &pmpi.options, NULL);
    free(copy);
    return pmpi_end(&call, status, (int64_t)r.size * count);
}

/* MPI's input in place begins where its output does; Lockstep's output would lie within the input.
 * So the output is made elsewhere. `counts` NULL: all are `count`. */
static ls_status reduce_scatter(const pmpi_call *call, const pmpi_reduction *r, const void *sendbuf,
                                void *recvbuf, const int64_t *counts, int64_t count)
{
    const bool in_place = sendbuf == MPI_IN_PLACE;
    const pmpi_place *p = call->place;
    const size_t own =
        (size_t)(counts != NULL ? counts[p->rank] : count) * r->size / (size_t)r->factor;
    int64_t total = counts != NULL ? 0 : count * p->size;
    void *copy = NULL, *out = in_place ? malloc(own + 1) : recvbuf;
    ls_status status = LS_OK;
    for (int i = 0; i < p->size && counts != NULL; i++) {
        total += counts[i];
    }
    const void *in = pmpi_truths(r, in_place ? recvbuf : sendbuf, total, &copy);
    if (out == NULL && (in_place || own > 0)) {
        status = no_memory();
    } else if (counts != NULL) {
        status = ls_reduce_scatter_v(p->group, in, counts, NULL, out, r->dtype, r->op,
                                     &pmpi.options, NULL);
    } else {
        status = ls_reduce_scatter(p->group, in, out, count, r->dtype, r->op, &pmpi.options, NULL);
    }
    if (in_place && out != NULL) {
        memcpy(recvbuf, out, status == LS_OK ? own : 0);
        free(out);
    }
    free(copy);
    return status;
}

int MPI_Reduce_scatter(const void *sendbuf, void *recvbuf, const int recvcounts[],
                       MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    int size = 0;
    const bool sized = pmpi.on && PMPI_Comm_size(comm, &size) == MPI_SUCCESS;
    if (!pmpi_begin(&call, comm, PMPI_REDUCE_SCATTER,
                    sized && pmpi_reduction_of(type, op, &r) && are_counts(recvcounts, size))) {
        return PMPI_Reduce_scatter(sendbuf, recvbuf, recvcounts, type, op, comm);
    }
    int64_t *counts = malloc((size_t)size * sizeof *counts);
    for (int i = 0; i < size && counts != NULL; i++) {
        counts[i] = (int64_t)recvcounts[i] * r.factor;
    }
    const ls_status status =
        counts != NULL ? reduce_scatter(&call, &r, sendbuf, recvbuf, counts, 0) : no_memory();
    free(counts);
    return pmpi_end(&call, status, (int64_t)r.size * recvcounts[call.place->rank]);
}

int MPI_Reduce_scatter_block(const void *sendbuf, void *recvbuf, int recvcount, MPI_Datatype type,
                             MPI_Op op, MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    if (!pmpi_begin(&call, comm, PMPI_REDUCE_SCATTER_BLOCK,
                    recvcount >= 0 && pmpi_reduction_of(type, op, &r))) {
        return PMPI_Reduce_scatter_block(sendbuf, recvbuf, recvcount, type, op, comm);
    }
    return pmpi_end(
        &call, reduce_scatter(&call, &r, sendbuf, recvbuf, NULL, (int64_t)recvcount * r.factor),
        (int64_t)r.size * recvcount);
}

/* A logical operator leaves the first rank's value as it is, where Lockstep would give its truth
 * value. */
static bool is_scanned(int count, MPI_Datatype type, MPI_Op op, pmpi_reduction *r)
{
    return count >= 0 && pmpi_reduction_of(type, op, r) && !r->logical;
}

int MPI_Scan(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
             MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    if (!pmpi_begin(&call, comm, PMPI_SCAN, is_scanned(count, type, op, &r))) {
        return PMPI_Scan(sendbuf, recvbuf, count, type, op, comm);
    }
    const void *in = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
    const ls_status status = ls_scan(call.place->group, in, recvbuf, (int64_t)count * r.factor,
                                     r.dtype, r.op, &pmpi.options, NULL);
    return pmpi_end(&call, status, (int64_t)r.size * count);
}

int MPI_Exscan(const void *sendbuf, void *recvbuf, int count, MPI_Datatype type, MPI_Op op,
               MPI_Comm comm)
{
    pmpi_call call;
    pmpi_reduction r;
    if (!pmpi_begin(&call, comm, PMPI_EXSCAN, is_scanned(count, type, op, &r))) {
        return PMPI_Exscan(sendbuf, recvbuf, count, type, op, comm);
    }
    const void *in = sendbuf == MPI_IN_PLACE ? recvbuf : sendbuf;
    const ls_status status = ls_exscan(call.place->group, in, recvbuf, (int64_t)count * r.factor,
                                       r.dtype, r.op, &pmpi.options, NULL);
    return pmpi_end(&call, status, (int64_t)r.size * count);
}
