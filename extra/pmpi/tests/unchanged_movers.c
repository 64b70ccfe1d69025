/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of unchanged.c that move data, and the rules of MPI that a served collective must keep. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unchanged.h"

#define RANKS_MAX 8
#define BYTES 400000 /* of a block in memory, at most */
#define LARGE (8 << 20)

static char in[RANKS_MAX * BYTES], out[RANKS_MAX * BYTES];

static void fill(char *memory, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        memory[i] = (char)draw();
    }
}

/* One side: `count` elements of `type` have the signature of the call's data. */
typedef struct side {
    MPI_Datatype type;
    int count;
    size_t extent; /* bytes from one element to the next */
} side;

static size_t span(const side *s)
{
    return (size_t)s->count * s->extent;
}

static void uniform(const side *send, const side *receive, int turn, bool in_place, MPI_Comm comm)
{
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    const int root = turn % size;
    const size_t all = (size_t)size * span(receive);
    const side *own = rank == root ? send : receive;

    fill(in, (size_t)size * span(send));
    fill(out, all);
    memcpy(out, in, rank == root ? span(own) : 0);
    MPI_Bcast(out, own->count, own->type, root, comm);
    record(out, span(own), 0);
    fill(out, all);
    MPI_Allgather(in_place ? MPI_IN_PLACE : in, send->count, send->type, out, receive->count,
                  receive->type, comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Gather(in_place && rank == root ? MPI_IN_PLACE : in, send->count, send->type,
               rank == root ? out : NULL, receive->count, receive->type, root, comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Scatter(rank == root ? in : NULL, send->count, send->type,
                in_place && rank == root ? MPI_IN_PLACE : out, receive->count, receive->type, root,
                comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Alltoall(in_place ? MPI_IN_PLACE : in, send->count, send->type, out, receive->count,
                 receive->type, comm);
    record(out, all, 0);
}

/* Block r has a length that depends on r; blocks lie in the reverse order, with gaps of an
 * element. */
static void unequal(const side *send, const side *receive, int elements, bool in_place,
                    MPI_Comm comm)
{
    int rank, size, lengths[RANKS_MAX], places[RANKS_MAX], pairs[RANKS_MAX], at[RANKS_MAX];
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    const int root = elements % size;
    int total = 0, sum = 0;
    for (int r = size - 1; r >= 0; r--) {
        lengths[r] = elements * (r % 3) / 2;
        places[r] = total;
        total += lengths[r] + 1;
        pairs[r] = elements * ((r + rank) % 3) / 2; /* the same for both ends */
        at[r] = sum;
        sum += pairs[r] + 1;
    }
    const size_t all = (size_t)(total > sum ? total : sum) * receive->extent;

    fill(in, (size_t)(total > sum ? total : sum) * send->extent);
    fill(out, all);
    MPI_Allgatherv(in_place ? MPI_IN_PLACE : in, lengths[rank], send->type, out, lengths, places,
                   receive->type, comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Gatherv(in_place && rank == root ? MPI_IN_PLACE : in, lengths[rank], send->type,
                rank == root ? out : NULL, rank == root ? lengths : NULL,
                rank == root ? places : NULL, receive->type, root, comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Scatterv(rank == root ? in : NULL, rank == root ? lengths : NULL,
                 rank == root ? places : NULL, send->type,
                 in_place && rank == root ? MPI_IN_PLACE : out, lengths[rank], receive->type, root,
                 comm);
    record(out, all, 0);
    fill(out, all);
    MPI_Alltoallv(in_place ? MPI_IN_PLACE : in, pairs, at, send->type, out, pairs, at,
                  receive->type, comm);
    record(out, all, 0);
}

/* Predefined types (MPICH 4.0 cannot move many pairs, or any in place), and one signature of 2 * n
 * integers written as different types by the ranks. */
void movers(MPI_Comm comm)
{
    const MPI_Datatype plain[] = {MPI_CHAR,   MPI_SHORT, MPI_INT,
                                  MPI_DOUBLE, MPI_BYTE,  MPI_DOUBLE_INT};
    const size_t extents[] = {1, 2, 4, 8, 1, 16};
    const int counts[] = {0, 1, 3, 1001, 20001};
    MPI_Datatype gaps, turned;
    int rank;
    MPI_Comm_rank(comm, &rank);
    for (size_t t = quick ? 4 : 0; t < sizeof plain / sizeof *plain; t++) {
        const bool pairs = plain[t] == MPI_DOUBLE_INT;
        for (size_t c = 0; c < (pairs ? 3u : 5u); c++) {
            const side s = {plain[t], counts[c], extents[t]};
            for (int in_place = 0; in_place < (pairs ? 1 : 2); in_place++) {
                uniform(&s, &s, (int)(t + c), in_place, comm);
                unequal(&s, &s, counts[c], in_place, comm);
            }
        }
    }
    MPI_Type_vector(2, 1, 3, MPI_INT, &gaps); /* two integers with a gap: 16 bytes */
    MPI_Type_indexed(2, (int[]){1, 1}, (int[]){1, 0}, MPI_INT, &turned); /* size == extent */
    MPI_Type_commit(&gaps);
    MPI_Type_commit(&turned);
    const side kinds[] = {{MPI_INT, 2 * 101, 4}, {gaps, 101, 16}, {turned, 101, 8}};
    for (int i = 0; i < (quick ? 3 : 9); i++) {
        const side *send = &kinds[(i + rank) % 3], *receive = &kinds[(i / 3 + 2 * rank) % 3];
        uniform(send, receive, i, false, comm);
        uniform(receive, receive, i, true, comm);
    }
    for (int i = 1; i < 3; i++) { /* unequal lengths are in elements: one type on all */
        unequal(&kinds[i], &kinds[i], 77, false, comm);
        unequal(&kinds[i], &kinds[3 - i], 77, false, comm);
        unequal(&kinds[i], &kinds[i], 77, true, comm);
    }
    MPI_Type_free(&gaps);
    MPI_Type_free(&turned);
}

void few(MPI_Comm comm)
{
    int value = (int)draw(), sum = 0, all[RANKS_MAX] = {0}, size;
    MPI_Comm_size(comm, &size);
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
    record(&sum, sizeof sum, 0);
    MPI_Allgather(&value, 1, MPI_INT, all, 1, MPI_INT, comm);
    record(all, sizeof all, 0);
    MPI_Bcast(&value, 1, MPI_INT, size - 1, comm);
    record(&value, sizeof value, 0);
    MPI_Barrier(comm);
}

/* Note [Progress] of the interposer: rank 0 is in a barrier while rank 1 needs its MPI. */
void progress(int rank, int size)
{
    char *large = calloc(1, LARGE);
    MPI_Request request;
    if (size > 1 && large != NULL) {
        if (rank == 0) {
            memset(large, 7, LARGE);
            MPI_Isend(large, LARGE, MPI_BYTE, 1, 3, MPI_COMM_WORLD, &request);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            if (rank == 1) {
                usleep(20000);
                MPI_Recv(large, LARGE, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                check(large[0] == 7 && large[LARGE - 1] == 7);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
        /* Collectives that never wait must not starve a message. */
        int done = 0, all = 0;
        if (rank < 2) {
            rank == 0 ? MPI_Isend(large, LARGE, MPI_BYTE, 1, 4, MPI_COMM_WORLD, &request)
                      : MPI_Irecv(large, LARGE, MPI_BYTE, 0, 4, MPI_COMM_WORLD, &request);
        }
        while (!all) {
            if (rank == 1) {
                MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            }
            const int mine = rank != 1 || done;
            MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
        }
        if (rank == 0) {
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
    }
    free(large);
}

/* Threads of MPI_THREAD_MULTIPLE, each with its own communicator, whose first collectives and
 * messages overlap in any order. */
static void *thread_main(void *arg)
{
    MPI_Comm comm = *(MPI_Comm *)arg;
    int rank, size, sum = 0, token = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (int i = 0; i < 100; i++) {
        const int value = rank + i;
        MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, comm);
        check(sum == size * (size - 1) / 2 + size * i);
        if (size > 1 && rank < 2) {
            MPI_Sendrecv(&i, 1, MPI_INT, 1 - rank, 0, &token, 1, MPI_INT, 1 - rank, 0, comm,
                         MPI_STATUS_IGNORE);
            check(token == i);
        }
    }
    return NULL;
}

void threads(void)
{
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    MPI_Comm comm[THREADS];
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        check(pthread_create(&thread[i], NULL, thread_main, &comm[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        check(pthread_join(thread[i], NULL) == 0);
        MPI_Comm_free(&comm[i]);
    }
}
