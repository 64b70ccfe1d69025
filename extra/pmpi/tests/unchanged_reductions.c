/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of unchanged.c. */
#include <stdlib.h>
#include <string.h>

#include "unchanged.h"

#define COUNT_MAX 40001
#define BYTES ((size_t)COUNT_MAX * 16 * 2)

static char in[BYTES * 4], out[BYTES * 4];

typedef enum kind { INTEGER, FLOAT32, FLOAT64, COMPLEX32, COMPLEX64, BITS, TRUTH } kind;

typedef struct type {
    MPI_Datatype handle;
    size_t size;
    kind kind;
} type;

/* Numbers in (-1,1), or for products near 1; truth values; integers: any for bits, else small ones.
 * The sums of 8 and 16 bits of Open MPI 4.1 do not wrap around, its minimum of unsigned long and
 * MPICH 4.0's of unsigned short are wrong for large numbers. */
static void fill(const type *t, int count, MPI_Op op)
{
    const bool product = op == MPI_PROD;
    const uint32_t below = product                          ? 3
                           : op == MPI_SUM                  ? 20
                           : op == MPI_MIN || op == MPI_MAX ? 100
                                                            : 0;
    for (int i = 0; i < count; i++) {
        const double x = product ? 0.5 + draw() / 16777216.0 : draw() / 8388608.0 - 1.0;
        const double pair[2] = {x, draw() / 8388608.0 - 1.0};
        const float floats[2] = {(float)pair[0], (float)pair[1]};
        const uint64_t any = (uint64_t)draw() << 40 | draw();
        const uint64_t bits[2] = {below > 0 ? any % below : any, 0};
        const unsigned char truth[16] = {draw() % 2};
        const void *from = t->kind == INTEGER || t->kind == BITS        ? (const void *)bits
                           : t->kind == TRUTH                           ? (const void *)truth
                           : t->kind == FLOAT32 || t->kind == COMPLEX32 ? (const void *)floats
                                                                        : (const void *)pair;
        memcpy(in + (size_t)i * t->size, from, t->size);
    }
}

static bool allows(const type *t, MPI_Op op)
{
    const bool bits = op == MPI_BAND || op == MPI_BOR || op == MPI_BXOR;
    const bool logical = op == MPI_LAND || op == MPI_LOR || op == MPI_LXOR;
    const bool complex = op == MPI_SUM || op == MPI_PROD;
    return t->kind == INTEGER                             ? true
           : t->kind == BITS                              ? bits
           : t->kind == TRUTH                             ? logical
           : t->kind == COMPLEX32 || t->kind == COMPLEX64 ? complex
                                                          : !bits && !logical;
}

static int digits_of(const type *t, MPI_Op op)
{
    const bool rounds = op == MPI_SUM || op == MPI_PROD;
    return !rounds                                      ? 0
           : t->kind == FLOAT32 || t->kind == COMPLEX32 ? 6
           : t->kind == FLOAT64 || t->kind == COMPLEX64 ? 13
                                                        : 0;
}

/* The six functions, each into another buffer or in place. */
static void all_functions(const type *t, MPI_Op op, int count, bool in_place, MPI_Comm comm)
{
    int rank, size, counts[64];
    const int digits = digits_of(t, op);
    const size_t bytes = (size_t)count * t->size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    const int root = in_place ? 0 : count % size; /* MPICH 4.0 crashes in place at another one */
    const void *from = in_place ? MPI_IN_PLACE : in;

    fill(t, count, op);
    memcpy(out, in, bytes);
    MPI_Allreduce(from, out, count, t->handle, op, comm);
    record(out, bytes, digits);
    memcpy(out, in, bytes);
    MPI_Reduce(rank == root ? from : in, rank == root ? out : NULL, count, t->handle, op, root,
               comm);
    record(out, bytes, digits);
    memcpy(out, in, bytes);
    MPI_Scan(from, out, count, t->handle, op, comm);
    record(out, bytes, digits);
    memcpy(out, in, bytes);
    MPI_Exscan(from, out, count, t->handle, op, comm);
    record(out, rank == 0 ? 0 : bytes, digits);

    const int block = count / size;
    memcpy(out, in, bytes);
    MPI_Reduce_scatter_block(from, out, block, t->handle, op, comm);
    record(out, (size_t)block * t->size, digits);
    for (int r = 0; r < size; r++) {
        counts[r] = r == 0 ? count - block * (size - 1) : block;
    }
    memcpy(out, in, bytes);
    MPI_Reduce_scatter(from, out, counts, t->handle, op, comm);
    record(out, (size_t)counts[rank] * t->size, digits);
}

void reductions(MPI_Comm comm)
{
    const type types[] = {{MPI_INT, sizeof(int), INTEGER},
                          {MPI_UNSIGNED, sizeof(int), INTEGER},
                          {MPI_SHORT, sizeof(short), INTEGER},
                          {MPI_UNSIGNED_SHORT, sizeof(short), INTEGER},
                          {MPI_SIGNED_CHAR, 1, INTEGER},
                          {MPI_UNSIGNED_CHAR, 1, INTEGER},
                          {MPI_LONG, sizeof(long), INTEGER},
                          {MPI_UNSIGNED_LONG, sizeof(long), INTEGER},
                          {MPI_INT64_T, 8, INTEGER},
                          {MPI_UINT16_T, 2, INTEGER},
                          {MPI_FLOAT, sizeof(float), FLOAT32},
                          {MPI_DOUBLE, sizeof(double), FLOAT64},
                          {MPI_C_FLOAT_COMPLEX, 8, COMPLEX32},
                          {MPI_C_DOUBLE_COMPLEX, 16, COMPLEX64},
                          {MPI_BYTE, 1, BITS},
                          {MPI_C_BOOL, 1, TRUTH}};
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN,  MPI_MAX, MPI_BAND,
                          MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
    const int counts[] = {0, 1, 7, 1000, COUNT_MAX};
    for (size_t t = 0; t < sizeof types / sizeof *types; t += quick ? 5 : 1) {
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
            /* the large count with one operator of each type */
            for (size_t c = 0; c < (quick            ? 2u
                                    : o == t % 2 * 2 ? 5u
                                                     : 4u) &&
                               allows(&types[t], ops[o]);
                 c++) {
                all_functions(&types[t], ops[o], counts[c], (o + c) % 2 == 0, comm);
                all_functions(&types[t], ops[o], counts[c], (o + c) % 2 == 1, comm);
            }
        }
    }
}

static void user_op(void *from, void *into, int *count, MPI_Datatype *t)
{
    const int *a = from;
    int *b = into;
    (void)t;
    for (int i = 0; i < *count; i++) {
        b[i] = a[i] ^ (b[i] * 3);
    }
}

/* What MPI keeps: operators of the user's, pairs, derived types, inter-communicators. */
void passed_through(MPI_Comm comm)
{
    MPI_Op op;
    MPI_Comm half, both;
    int rank, size, value[4] = {(int)draw(), (int)draw(), (int)draw(), (int)draw()}, sum[4] = {0};
    struct {
        double value;
        int at;
    } mine, best;
    memset(&mine, 0, sizeof mine);
    mine.value = draw() / 3.0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    MPI_Op_create(user_op, 0, &op);
    MPI_Allreduce(value, sum, 4, MPI_INT, op, comm);
    record(sum, sizeof sum, 0);
    MPI_Op_free(&op);
    long double wide = draw() / 3.0L, most = 0;
    MPI_Allreduce(&wide, &most, 1, MPI_LONG_DOUBLE, MPI_MAX, comm);
    record(&(double){(double)most}, sizeof(double), 0);
    mine.at = rank;
    memset(&best, 0, sizeof best);
    MPI_Allreduce(&mine, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
    record(&best, sizeof best, 0);
    if (size < 2) {
        return;
    }
    MPI_Comm_split(comm, rank % 2, 0, &half);
    MPI_Intercomm_create(half, 0, comm, 1 - rank % 2, 5, &both);
    MPI_Allreduce(value, sum, 4, MPI_INT, MPI_SUM, both); /* of the other side */
    record(sum, sizeof sum, 0);
    MPI_Barrier(both);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}
