/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that runs one algorithm of one operation for ever, over many sizes, and checks the
 * results.
 *
 *     looper OPERATION ALGORITHM WRONG
 *
 * Values are small whole numbers, so that every association of a sum gives the same. What reduces
 * is in turn a sum, a premultiplied one and, where the order of ranks is kept, an operator of the
 * user's. WRONG is the rank that gives another count after a while (-1: none). It prints "PID n",
 * and "READY" when all ranks have come through once. */
#include <lockstep/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/algorithm/registry.h"
#include "comm/core/comm.h"
#include "comm/program/program.h"

#define MOST 20000
#define RANKS 8
#define WRONG_ROUND 40

static float in[(MOST + RANKS) * RANKS], out[(MOST + RANKS) * RANKS];
static int rank, size;
static ls_reduce_op composing, op; /* op: of this round */

/* ---- values ------------------------------------------------------------------------------- */

/* 5 a + b, a from 1 to 4 and b from 0 to 4, is the map x -> a x + b modulo 5. */
static float then(float left, float right)
{
    const int l = (int)left, r = (int)right;
    return (float)(l / 5 * (r / 5) % 5 * 5 + (l % 5 * (r / 5) + r) % 5);
}

/* First the left map, then the right one: associative, and the order counts. */
static void compose(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)dtype;
    (void)arg;
    for (int64_t i = 0; i < count; i++) {
        ((float *)into)[i] = then(((float *)into)[i], ((const float *)right)[i]);
    }
}

static int factor(int r)
{
    return r % 4 - 1;
}

/* Of rank r at element i of round k. */
static float value(int r, int64_t i, int64_t k)
{
    const int64_t mixed = r * 7 + i * 3 + k;
    return (float)(op == composing ? 5 + mixed % 20 : mixed % 101);
}

/* Over the first `ranks`. */
static float combined(int ranks, int64_t i, int64_t k)
{
    float total = op == composing ? 5 : 0; /* x -> x; nothing */
    for (int r = 0; r < ranks; r++) {
        const float v = value(r, i, k);
        total = op == composing       ? then(total, v)
                : op == LS_PREMUL_SUM ? total + (float)factor(r) * v
                                      : total + v;
    }
    return total;
}

/* ---- unequal blocks ----------------------------------------------------------------------- */

/* Of what rank i gives rank j; where there is one block a rank, j is 0. */
static int64_t length(int i, int j, int64_t count)
{
    return count + (i + j) % size;
}

/* Where block `block` lies among rank r's; `both`: each rank has its own. */
static int64_t offset(int r, int block, bool both, int64_t count)
{
    int64_t at = 0;
    for (int b = 0; b < block; b++) {
        at += length(b, both ? r : 0, count);
    }
    return at;
}

static ls_status call_v(ls__operation operation, const ls_collective_options *o, int64_t count,
                        int root)
{
    const ls_dtype t = LS_FLOAT32;
    const int64_t own = length(rank, 0, count);
    int64_t counts[RANKS];
    ls_group *w = ls_world();
    for (int r = 0; r < size; r++) {
        counts[r] = length(r, operation == LS__OP_ALL_TO_ALL_V ? rank : 0, count);
    }
    switch (operation) {
    case LS__OP_ALL_TO_ALL_V:
        return ls_all_to_all_v(w, in, counts, NULL, out, counts, NULL, t, o, NULL);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(w, in, own, out, counts, NULL, t, o, NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(w, in, counts, NULL, out, t, op, o, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(w, in, own, out, counts, NULL, t, root, o, NULL);
    default:
        return ls_scatter_v(w, in, counts, NULL, out, own, t, root, o, NULL);
    }
}

/* What out[i] must be; false: it is not used. */
static bool wanted_v(ls__operation operation, int64_t count, int root, int64_t k, int64_t i,
                     float *x)
{
    const bool both = operation == LS__OP_ALL_TO_ALL_V;
    const int64_t own = offset(rank, rank, both, count);
    int block = 0;
    while (block + 1 < size && i >= offset(rank, block + 1, both, count)) {
        block++;
    }
    const int64_t at = i - offset(rank, block, both, count);
    switch (operation) {
    case LS__OP_ALL_TO_ALL_V:
        *x = value(block, offset(block, rank, true, count) + at, k);
        return i < offset(rank, size, true, count);
    case LS__OP_ALL_GATHER_V:
    case LS__OP_GATHER_V:
        *x = value(block, at, k);
        return i < offset(rank, size, false, count) &&
               (operation == LS__OP_ALL_GATHER_V || rank == root);
    case LS__OP_REDUCE_SCATTER_V:
        *x = combined(size, own + i, k);
        return i < length(rank, 0, count);
    default:
        *x = value(root, own + i, k);
        return i < length(rank, 0, count);
    }
}

/* ---- all of them -------------------------------------------------------------------------- */

static ls_status call(ls__operation operation, const char *algorithm, int64_t count, int root)
{
    const ls_collective_options o = {
        .size = sizeof o, .algorithm = algorithm, .factor = factor(rank)};
    ls_group *w = ls_world();
    if (ls__operation_is_v(operation)) {
        return call_v(operation, &o, count, root);
    }
    switch (operation) {
    case LS__OP_ALL_REDUCE:
        memcpy(out, in, (size_t)count * sizeof *in);
        return ls_all_reduce(w, out, out, count, LS_FLOAT32, op, &o, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(w, in, out, count, LS_FLOAT32, op, &o, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(w, in, out, count, LS_FLOAT32, &o, NULL);
    case LS__OP_BROADCAST:
        memcpy(out, in, (size_t)count * sizeof *in);
        return ls_broadcast(w, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(w, in, out, count, LS_FLOAT32, op, root, &o, NULL);
    case LS__OP_GATHER:
        return ls_gather(w, in, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(w, in, out, count, LS_FLOAT32, root, &o, NULL);
    case LS__OP_BARRIER:
        return ls_barrier(w, &o, NULL);
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(w, in, out, count, LS_FLOAT32, &o, NULL);
    case LS__OP_SCAN:
        return ls_scan(w, in, out, count, LS_FLOAT32, op, &o, NULL);
    case LS__OP_EXSCAN:
        return ls_exscan(w, in, out, count, LS_FLOAT32, op, &o, NULL);
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
        *x = combined(size, i, k);
        return i < count && (operation == LS__OP_ALL_REDUCE || rank == root);
    case LS__OP_REDUCE_SCATTER:
        *x = combined(size, rank * count + i, k);
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
        *x = combined(operation == LS__OP_SCAN ? rank + 1 : rank, i, k);
        return i < count && (operation == LS__OP_SCAN || rank > 0);
    default:
        return false;
    }
}

/* Of round k: which, at the round in which a rank is wrong, depends on who it is. */
static ls_reduce_op op_of(ls__operation operation, const char *algorithm, int64_t k, int who)
{
    const bool reduces = ls__operation_reduces(operation);
    const ls__algorithm *found = ls__algorithm_find(operation, algorithm);
    const bool exact = found != NULL && found->exact;
    const ls_reduce_op ops[] = {LS_SUM, LS_PREMUL_SUM, exact ? composing : LS_SUM};
    return reduces ? ops[(k + k / 6 + who + 1) % 3] : LS_SUM; /* and other counts with each */
}

static void go_round(ls__operation operation, const char *algorithm, int64_t k, bool wrong)
{
    static const int64_t counts[] = {1, 17, 1000, MOST, 3, 4097};
    const int64_t count = counts[k % 6];
    const int64_t most = (count + size) * size; /* unequal blocks are that much longer */
    const int root = (int)(k % size);
    for (int64_t i = 0; i < most; i++) {
        in[i] = value(rank, i, k);
    }
    LS_CHECK(call(operation, algorithm, count - wrong, root));
    /* Who is wrong may be through before the others have heard of it, a root for one. */
    const bool unequal = ls__operation_is_v(operation);
    for (int64_t i = 0; i < most && !wrong; i++) {
        float x = 0;
        const bool used = unequal ? wanted_v(operation, count, root, k, i, &x)
                                  : wanted(operation, count, root, k, i, &x);
        if (used && out[i] != x) {
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
    LS_CHECK(ls_reduce_op_new(compose, NULL, "compose", &composing));
    for (int64_t k = 0;; k++) {
        op = op_of(operation, argv[2], k, atoi(argv[3]));
        go_round(operation, argv[2], k, rank == atoi(argv[3]) && k == WRONG_ROUND);
        if (k == 6) {
            fprintf(stderr, "READY\n");
        }
    }
}
