/* SPDX-License-Identifier: Apache-2.0 */
// oneCCL as a contender. Its ranks find each other through Intel MPI, which it also uses as its transport.
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include <oneapi/ccl.hpp>

extern "C" {
#include "contender.h"
}

static std::unique_ptr<ccl::communicator> world;

// Huge pages come by glibc's tunable, if compare.py sets it.
static void *allocate(size_t bytes, bool registered)
{
    return registered ? nullptr : aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void release(void *memory, bool)
{
    free(memory);
}

static void barrier(void)
{
    ccl::barrier(*world);
}

static void maximum(double *x, int count)
{
    ccl::allreduce(x, x, (size_t)count, ccl::reduction::max, *world).wait();
}

static void operate(contender_op op, const float *in, float *out, int64_t count)
{
    const size_t n = (size_t)count;
    switch (op) {
    case CONTENDER_ALL_REDUCE:
        ccl::allreduce(out, out, n, ccl::reduction::sum, *world).wait();
        break;
    case CONTENDER_ALL_GATHER:
        ccl::allgather(in, out, n, *world).wait();
        break;
    case CONTENDER_BROADCAST:
        ccl::broadcast(out, n, 0, *world).wait();
        break;
    case CONTENDER_REDUCE_SCATTER:
        ccl::reduce_scatter(in, out, n, ccl::reduction::sum, *world).wait();
        break;
    case CONTENDER_ALL_TO_ALL:
        ccl::alltoall(in, out, n, *world).wait();
        break;
    }
}

// The address of the store that oneCCL's ranks meet at, from rank 0.
static ccl::shared_ptr_class<ccl::kvs> meet(int rank)
{
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    return rank == 0 ? store : ccl::create_kvs(address);
}

// argv[1]: the folder of the pipes, or --once.
int main(int argc, char **argv)
{
    ccl::init();
    MPI_Init(&argc, &argv);
    contender self = {};
    self.allocate = allocate;
    self.release = release;
    self.barrier = barrier;
    self.maximum = maximum;
    self.operate = operate;
    MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &self.ranks);
    world = std::make_unique<ccl::communicator>(
        ccl::create_communicator(self.ranks, self.rank, meet(self.rank)));
    int status = 2;
    if (argc == 2 && strcmp(argv[1], "--once") == 0) {
        status = contender_once(&self);
    } else if (argc == 2) {
        status = contender_serve(&self, argv[1]);
    }
    world.reset();
    MPI_Finalize();
    return status;
}
