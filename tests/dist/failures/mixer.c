/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that uses one thing of comm.h beside the algorithms for ever, and checks what comes of it.
 *
 *     mixer USE WRONG
 *
 * WRONG is the rank that calls something else than the others after a while (-1: none). It prints
 * "PID n", and "READY" when all ranks have come through a few times; "WRONG …" and code 9 where a
 * result is. */
#include <lockstep/comm.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRONG_ROUND 20
#define READY_ROUND 3
#define RANKS 8
#define LARGE (1 << 20)

static int rank, size;
static ls_group *group; /* of all, and no other operations are on it */
static ls_group *copies[4], *turns;

static void expect(bool right, const char *what, int64_t round)
{
    if (!right) {
        fprintf(stderr, "WRONG %s in round %lld\n", what, (long long)round);
        _exit(9);
    }
}

static int32_t sum_of_ranks(int64_t round)
{
    return (int32_t)(size * round + size * (size - 1) / 2);
}

/* ---- what is used ------------------------------------------------------------------------- */

static void many(int64_t k, bool wrong)
{
    int32_t x[3] = {(int32_t)k + rank, rank == 0, 7}, pair[2] = {rank, 1};
    void *const bufs[] = {&x[2], pair, &x[0]};
    const int64_t counts[] = {1, wrong ? 1 : 2, 1}, two[] = {1, 2, 1};
    LS_CHECK(ls_all_reduce_many(group, bufs, counts, 3, LS_INT32, LS_SUM, NULL, NULL));
    expect(x[0] == sum_of_ranks(k) && x[2] == 7 * size && pair[1] == size, "sum", k);
    LS_CHECK(ls_broadcast_many(group, bufs, two, 3, LS_INT32, (int)(k % size), NULL, NULL));
}

static void objects(int64_t k, bool wrong)
{
    static unsigned char bytes[3000];
    const size_t length = (size_t)(k * 331 % 3000);
    const int root = (int)(k % size);
    ls_bytes *list = NULL;
    void *got = rank == root ? bytes : NULL;
    size_t have = length;
    memset(bytes, rank + 1, sizeof bytes);
    if (wrong) {
        LS_CHECK(ls_barrier(group, NULL, NULL));
    }
    LS_CHECK(ls_all_gather_bytes(group, bytes, length, NULL, &list));
    for (int r = 0; r < size; r++) {
        expect(list[r].length == length && (length == 0 || *(char *)list[r].data == r + 1), "list",
               k);
    }
    LS_CHECK(ls_broadcast_bytes(group, &got, &have, root, NULL));
    expect(have == length && (length == 0 || ((char *)got)[length - 1] == root + 1), "object", k);
    ls_bytes_free(rank == root ? NULL : got);
    LS_CHECK(ls_scatter_bytes(group, list, root, NULL, &got, &have));
    expect(have == length && (length == 0 || *(char *)got == rank + 1), "part", k);
    ls_bytes_free(got);
    ls_bytes_free(list);
}

/* Everybody sends to everybody, and takes what comes first. */
static void letters(int64_t k, bool wrong)
{
    static int64_t out[600], in[RANKS][601];
    const int64_t count = k % 2 == 0 ? 1 : 600;
    bool seen[RANKS] = {false};
    ls_work *sent[RANKS];
    out[0] = 1000 * k + rank;
    for (int r = 0; r < size; r++) {
        LS_CHECK(ls_send(group, out, count - wrong, LS_INT64, r, (int)(k % 3), NULL, &sent[r]));
    }
    for (int i = 0; i < size; i++) {
        int from = -1;
        LS_CHECK(ls_recv_any(group, in[i], count, LS_INT64, (int)(k % 3), NULL, &from));
        expect(from >= 0 && from < size && !seen[from] && in[i][0] == 1000 * k + from, "letter", k);
        seen[from] = true;
    }
    for (int r = 0; r < size; r++) {
        LS_CHECK(ls_work_wait(sent[r]));
    }
    LS_CHECK(ls_barrier(group, NULL, NULL)); /* a letter of the next round is not taken for one */
}

static void watched(int64_t k, bool wrong)
{
    (void)k;
    LS_CHECK(wrong ? ls_barrier(group, NULL, NULL) : ls_monitored_barrier(group, 0, NULL));
}

static void split(int64_t k, bool wrong)
{
    ls_group *half = NULL, *all = NULL;
    int32_t x = 1;
    LS_CHECK(ls_group_split(group, (int)(rank + k) % 2, -rank, wrong ? "other" : "half", &half));
    LS_CHECK(ls_all_reduce(half, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
    expect(x == ls_group_size(half), "half", k);
    LS_CHECK(ls_group_new(group, NULL, 0, NULL, &all));
    LS_CHECK(ls_all_reduce(all, &x, &x, 1, LS_INT32, LS_MAX, NULL, NULL));
    expect(x == (size + 1) / 2, "all", k);
    LS_CHECK(ls_group_free(half));
    LS_CHECK(ls_group_free(all));
}

/* Seven in flight on four groups, waited for backwards. */
static void in_turn(int64_t k, bool wrong)
{
    int32_t x[7][2];
    ls_work *work[7];
    for (int i = 0; i < 7; i++) {
        x[i][0] = (int32_t)k + rank;
        LS_CHECK(ls_all_reduce(turns, x[i], x[i], 1 + (wrong && i == 4), LS_INT32, LS_SUM, NULL,
                               &work[i]));
    }
    for (int i = 6; i >= 0; i--) {
        LS_CHECK(ls_work_wait(work[i]));
        expect(x[i][0] == sum_of_ranks(k), "sum", k);
    }
}

/* Other operations on each of four groups at the same time, some long. */
static void in_flight(int64_t k, bool wrong)
{
    static int32_t large[LARGE], blocks[RANKS * 2000], got[RANKS * 2000];
    int32_t x = rank + 1, y = -1;
    ls_work *work[4];
    large[LARGE - 1] = 1;
    for (int i = 0; i < size * 2000; i++) {
        blocks[i] = rank * RANKS + i / 2000;
    }
    LS_CHECK(ls_all_reduce(copies[0], large, large, LARGE, LS_INT32, LS_SUM, NULL, &work[0]));
    LS_CHECK(ls_all_to_all(copies[1], blocks, got, 2000, LS_INT32, NULL, &work[1]));
    LS_CHECK(ls_exscan(copies[2], &x, &y, 1, LS_INT32, LS_MAX, NULL, &work[2]));
    LS_CHECK(ls_broadcast(copies[3], &large[1], 1000 + wrong, LS_INT32, (int)(k % size), NULL,
                          &work[3]));
    for (int i = 0; i < 4; i++) {
        LS_CHECK(ls_work_wait(work[(i + k) % 4]));
    }
    expect(large[LARGE - 1] == size && y == (rank == 0 ? -1 : rank), "sum", k);
    expect(got[2000 * size - 1] == (size - 1) * RANKS + rank, "block", k);
}

/* Blocks of unequal lengths, some empty. */
static void unequal(int64_t k, bool wrong)
{
    static int32_t in[RANKS * 1000], out[RANKS * 1000];
    int64_t lengths[RANKS], places[RANKS];
    for (int r = 0; r < size; r++) {
        lengths[r] = (k + r) % 3 * 300 + (wrong && r == 0);
        places[r] = 1000L * r;
        in[places[r]] = 100 * r + rank;
    }
    const int64_t own = (k + rank) % 3 * 300 + (wrong && rank == 0);
    LS_CHECK(ls_reduce_scatter_v(group, in, lengths, places, out, LS_INT32, LS_SUM, NULL, NULL));
    expect(own == 0 || out[0] == 100 * rank * size + size * (size - 1) / 2, "sum", k);
    LS_CHECK(
        ls_all_gather_v(group, in + places[rank], own, out, lengths, places, LS_INT32, NULL, NULL));
    for (int r = 0; r < size; r++) {
        expect(lengths[r] == 0 || out[places[r]] == 101 * r, "block", k);
    }
}

/* The last of two that is something: associative, and the order counts. */
static void last_of(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    int32_t *left = into;
    const int32_t *next = right;
    (void)dtype;
    (void)arg;
    for (int64_t i = 0; i < count; i++) {
        left[i] = next[i] != 0 ? next[i] : left[i];
    }
}

/* An operator of the user's that is freed while it is used, and a premultiplied sum. */
static void operators(int64_t k, bool wrong)
{
    static int32_t x[1000], y[1000];
    const ls_collective_options *o = LS_OPTIONS(ls_collective_options, .factor = rank + 1);
    const int root = (int)(k % size);
    int32_t z = (int32_t)k, sum = 0;
    ls_reduce_op op;
    ls_work *work[3];
    for (int i = 0; i < 1000; i++) {
        x[i] = i % size >= rank ? rank + 1 : 0;
    }
    LS_CHECK(ls_reduce_op_new(last_of, NULL, wrong ? "other" : "last of", &op));
    LS_CHECK(ls_scan(group, x, y, 1000, LS_INT32, op, NULL, &work[0]));
    LS_CHECK(ls_work_wait(work[0]));
    LS_CHECK(ls_all_reduce(copies[0], x, x, 1000, LS_INT32, op, NULL, &work[1]));
    LS_CHECK(ls_reduce(copies[1], &z, &sum, 1, LS_INT32, LS_PREMUL_SUM, root, o, &work[2]));
    LS_CHECK(ls_reduce_op_free(op));
    LS_CHECK(ls_work_wait(work[2]));
    LS_CHECK(ls_work_wait(work[1]));
    for (int i = 0; i < 1000; i++) {
        const int last = i % size;
        expect(x[i] == last + 1 && y[i] == (last < rank ? last : rank) + 1, "order", k);
    }
    expect(rank != root || sum == (int32_t)k * size * (size + 1) / 2, "premultiplied sum", k);
}

static _Atomic int chained;
static int32_t chain_value[2];

static void chain_end(void *arg, ls_status status)
{
    (void)arg;
    atomic_store(&chained, status == LS_OK ? 2 : 1);
}

/* The end of one operation starts the next, on another group. */
static void chain_on(void *arg, ls_status status)
{
    ls_work **work = arg;
    if (status != LS_OK || ls_all_reduce(copies[1], &chain_value[1], &chain_value[1], 1, LS_INT32,
                                         LS_SUM, NULL, work) != LS_OK) {
        *work = NULL;
        chain_end(NULL, LS_ERR_PEER);
        return;
    }
    (void)ls_work_on_done(*work, chain_end, NULL);
}

static void callbacks(int64_t k, bool wrong)
{
    ls_work *first = NULL, *second = NULL;
    atomic_store(&chained, 0);
    chain_value[0] = chain_value[1] = (int32_t)k + rank;
    LS_CHECK(ls_all_reduce(copies[0], chain_value, chain_value, 1, wrong ? LS_FLOAT32 : LS_INT32,
                           LS_SUM, NULL, &first));
    LS_CHECK(ls_work_on_done(first, chain_on, &second));
    LS_CHECK(ls_work_wait(first));
    if (second != NULL) {
        LS_CHECK(ls_work_wait(second));
    }
    expect(atomic_load(&chained) == 2 && chain_value[1] == sum_of_ranks(k), "chain", k);
}

typedef struct worker {
    ls_runtime *runtime;
    ls_group *on;
    int64_t round;
    int32_t value;
    bool wrong;
} worker;

static void *work_alone(void *arg)
{
    worker *w = arg;
    LS_CHECK(ls_runtime_attach(w->runtime));
    for (int i = 0; i < 5; i++) {
        w->value = (int32_t)w->round + rank;
        LS_CHECK(ls_all_reduce(w->on, &w->value, &w->value, 1, LS_INT32, w->wrong ? LS_MAX : LS_SUM,
                               NULL, NULL));
    }
    LS_CHECK(ls_runtime_attach(NULL));
    return NULL;
}

static void threads(int64_t k, bool wrong)
{
    pthread_t thread[3];
    worker w[3];
    for (int t = 0; t < 3; t++) {
        w[t] = (worker){ls_runtime_current(), copies[t], k, 0, wrong && t == 1};
        expect(pthread_create(&thread[t], NULL, work_alone, &w[t]) == 0, "thread", k);
    }
    for (int t = 0; t < 3; t++) {
        (void)pthread_join(thread[t], NULL);
        expect(w[t].value == sum_of_ranks(k), "sum of a thread", k);
    }
}

/* ---- the loop ----------------------------------------------------------------------------- */

typedef struct use {
    const char *name;
    void (*run)(int64_t round, bool wrong);
} use;

static const use uses[] = {{"many", many},           {"objects", objects}, {"letters", letters},
                           {"watched", watched},     {"split", split},     {"in_turn", in_turn},
                           {"in_flight", in_flight}, {"unequal", unequal}, {"operators", operators},
                           {"callbacks", callbacks}, {"threads", threads}};

int main(int argc, char **argv)
{
    const use *chosen = NULL;
    for (size_t i = 0; i < sizeof uses / sizeof *uses && argc == 3; i++) {
        chosen = strcmp(argv[1], uses[i].name) == 0 ? &uses[i] : chosen;
    }
    if (chosen == NULL) {
        fprintf(stderr, "usage: mixer USE WRONG\n");
        return 2;
    }
    fprintf(stderr, "PID %d\n", (int)getpid());
    LS_CHECK(ls_init(NULL));
    rank = ls_rank();
    size = ls_world_size();
    group = ls_world();
    for (int i = 0; i < 4; i++) {
        LS_CHECK(ls_group_new(group, NULL, 0, NULL, &copies[i]));
    }
    LS_CHECK(ls_group_round_robin(copies, 4, "turns", &turns));
    for (int64_t k = 0;; k++) {
        chosen->run(k, rank == atoi(argv[2]) && k == WRONG_ROUND);
        if (k == READY_ROUND) {
            fprintf(stderr, "READY\n");
        }
    }
}
