/* A rank that runs one algorithm of one operation for ever, over many sizes, and checks the
 * results.
 *
 *     looper OPERATION ALGORITHM WRONG
 *
 * Values are small whole numbers, so that every association of a sum gives the same. WRONG is the
 * rank that gives another count after a while (-1: none). It prints "PID n", and "READY" when all
 * ranks have come through once. */
#include <lockstep/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/program/program.h"

#define MOST 20000
#define RANKS 8
#define WRONG_ROUND 40

static float in[MOST * RANKS], out[MOST * RANKS];
static int rank, size;

/* Of rank r at element i of round k. */
static float value(int r, int64_t i, int64_t k)
{
    return (float)((r * 7 + i * 3 + k) % 101);
}

/* Over the first `ranks`. */
static float sum(int ranks, int64_t i, int64_t k)
{
    float total = 0;
    for (int r = 0; r < ranks; r++) {
        total += value(r, i, k);
    }
    return total;
}

static ls_status call(ls__operation operation, const char *algorithm, int64_t count, int root)
{
    const ls_collective_options o = {.size = sizeof o, .algorithm = algorithm};
    ls_group *w = ls_world();
    switch (operation) {
    case LS__OP_ALL_REDUCE:
        memcpy(out, in, (size_t)count * sizeof *in);
        return ls_all_reduce(w, out, count, LS_FLOAT32, LS_SUM, &o, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(w, in, out, count, LS_FLOAT32, LS_SUM, &o, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(w, in, out, count, LS_FLOAT32, &o, NULL);
    case LS__OP_BROADCAST:
        memcpy(out, in, (size_t)count * sizeof *in);
        return ls_broadcast(w, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(w, in, out, count, LS_FLOAT32, LS_SUM, root, &o, NULL);
    case LS__OP_GATHER:
        return ls_gather(w, in, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(w, in, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_BARRIER:
        return ls_barrier(w, &o, NULL);
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(w, in, out, count, LS_FLOAT32, &o, NULL);
    case LS__OP_SCAN:
        return ls_scan(w, in, out, count, LS_FLOAT32, LS_SUM, &o, NULL);
    case LS__OP_EXSCAN:
        return ls_exscan(w, in, out, count, LS_FLOAT32, LS_SUM, &o, NULL);
    default:
        fprintf(stderr, "looper: no such operation\n");
        exit(9);
    }
}

/* What out[i] must be; false: it is not used. */
static bool wanted(ls__operation operation, int64_t count, int root, int64_t k, int64_t i, float *x)
{
    switch (operation) {
    case LS__OP_ALL_REDUCE:
    case LS__OP_REDUCE:
        *x = sum(size, i, k);
        return i < count && (operation == LS__OP_ALL_REDUCE || rank == root);
    case LS__OP_REDUCE_SCATTER:
        *x = sum(size, rank * count + i, k);
        return i < count;
    case LS__OP_ALL_GATHER:
    case LS__OP_GATHER:
        *x = count > 0 ? value((int)(i / count), i % count, k) : 0;
        return i < count * size && (operation == LS__OP_ALL_GATHER || rank == root);
    case LS__OP_BROADCAST:
        *x = value(root, i, k);
        return i < count;
    case LS__OP_SCATTER:
        *x = value(root, rank * count + i, k);
        return i < count;
    case LS__OP_ALL_TO_ALL:
        *x = count > 0 ? value((int)(i / count), rank * count + i % count, k) : 0;
        return i < count * size;
    case LS__OP_SCAN:
    case LS__OP_EXSCAN:
        *x = sum(operation == LS__OP_SCAN ? rank + 1 : rank, i, k);
        return i < count && (operation == LS__OP_SCAN || rank > 0);
    default:
        return false;
    }
}

static void go_round(ls__operation operation, const char *algorithm, int64_t k, bool wrong)
{
    static const int64_t counts[] = {1, 17, 1000, MOST, 3, 4097};
    const int64_t count = counts[k % 6];
    const int root = (int)(k % size);
    for (int64_t i = 0; i < count * size; i++) {
        in[i] = value(rank, i, k);
    }
    LS_CHECK(call(operation, algorithm, count - wrong, root));
    /* Who is wrong may be through before the others have heard of it, a root for one. */
    for (int64_t i = 0; i < count * size && !wrong; i++) {
        float x = 0;
        if (wanted(operation, count, root, k, i, &x) && out[i] != x) {
            fprintf(stderr, "WRONG round %lld: element %lld is %g, must be %g\n", (long long)k,
                    (long long)i, (double)out[i], (double)x);
            _exit(9);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: looper OPERATION ALGORITHM WRONG\n");
        return 2;
    }
    fprintf(stderr, "PID %d\n", (int)getpid());
    LS_CHECK(ls_init(NULL));
    rank = ls_rank();
    size = ls_world_size();
    const ls__operation operation = (ls__operation)atoi(argv[1]);
    for (int64_t k = 0;; k++) {
        go_round(operation, argv[2], k, rank == atoi(argv[3]) && k == WRONG_ROUND);
        if (k == 6) {
            fprintf(stderr, "READY\n");
        }
    }
}
