/* SPDX-License-Identifier: Apache-2.0 */
/* reduce, gather and scatter, and every algorithm by its name, with real processes: against plain
 * integer loops over dtypes, reduce-ops, odd sizes, roots and kinds of memory; and with random
 * floats: exact ones have the bits of the canonical tree, the ring's are near it and equal on all
 * ranks. 16-bit floats are rounded once, and means divided once, whatever the algorithm. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include <lockstep/comm.h>

#include "base/half.h"
#include "comm/algorithm/registry.h"
#include "comm/core/group.h"
#include "values.h"

#define ROOM ((size_t)8 << 20)
#define GUARD 64

typedef struct world {
    ls_group *group;
    int n, rank;
    unsigned char *in[2], *out[2]; /* private, registered */
} world;

static unsigned char *private_memory(void)
{
    unsigned char *p = malloc(ROOM);
    CHECK(p != NULL);
    return p;
}

static world world_new(void)
{
    world w = {.group = ls_world(), .n = ls_world_size(), .rank = ls_rank()};
    void *in = NULL, *out = NULL;
    CHECK_OK(ls_group_alloc(w.group, ROOM, &in));
    CHECK_OK(ls_group_alloc(w.group, ROOM, &out));
    w.in[0] = private_memory();
    w.out[0] = private_memory();
    w.in[1] = in;
    w.out[1] = out;
    return w;
}

static void world_free(world *w)
{
    free(w->in[0]);
    free(w->out[0]);
    CHECK_OK(ls_group_dealloc(w->group, w->in[1]));
    CHECK_OK(ls_group_dealloc(w->group, w->out[1]));
}

typedef struct shape {
    ls__operation operation;
    const char *algorithm;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    int root;
    int memory; /* 0 private, 1 registered, 2 mixed */
    bool in_place;
} shape;

static ls_status call(const world *w, const shape *s, void *in, void *out)
{
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = s->algorithm);
    switch (s->operation) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(w->group, out, out, s->count, s->dtype, s->op, options, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(w->group, in, out, s->count, s->dtype, s->op, options, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(w->group, in, out, s->count, s->dtype, options, NULL);
    case LS__OP_BROADCAST:
        return ls_broadcast(w->group, out, s->count, s->dtype, s->root, options, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(w->group, in, out, s->count, s->dtype, s->op, s->root, options, NULL);
    case LS__OP_GATHER:
        return ls_gather(w->group, in, out, s->count, s->dtype, s->root, options, NULL);
    default:
        return ls_scatter(w->group, in, out, s->count, s->dtype, s->root, options, NULL);
    }
}

static bool in_has_blocks(const shape *s)
{
    return s->operation == LS__OP_REDUCE_SCATTER || s->operation == LS__OP_SCATTER;
}

static bool out_has_blocks(const shape *s)
{
    return s->operation == LS__OP_ALL_GATHER || s->operation == LS__OP_GATHER;
}

/* Whether this rank's output counts. */
static bool has_output(const world *w, const shape *s)
{
    return (s->operation != LS__OP_REDUCE && s->operation != LS__OP_GATHER) || w->rank == s->root;
}

/* The value that must stand at out[i]. */
static int wanted(const world *w, const shape *s, int64_t i)
{
    switch (s->operation) {
    case LS__OP_ALL_REDUCE:
    case LS__OP_REDUCE:
        return reduced_of(w->n, i, s->dtype, s->op);
    case LS__OP_REDUCE_SCATTER:
        return reduced_of(w->n, w->rank * s->count + i, s->dtype, s->op);
    case LS__OP_ALL_GATHER:
    case LS__OP_GATHER:
        return value_of((int)(i / s->count), i % s->count, s->dtype, s->op);
    case LS__OP_SCATTER:
        return value_of(s->root, w->rank * s->count + i, s->dtype, s->op);
    default:
        return value_of(s->root, i, s->dtype, s->op);
    }
}

/* Input and output of this rank; they share memory in place and where an operation has one buffer.
 * NULL for what does not count. */
static void place(const world *w, const shape *s, unsigned char **in, unsigned char **out)
{
    const size_t block = (size_t)s->count * ls_dtype_size(s->dtype) * (size_t)w->rank;
    const int kind = s->memory == 2 ? w->rank % 2 : s->memory;
    const bool one_buffer = s->operation == LS__OP_ALL_REDUCE || s->operation == LS__OP_BROADCAST;
    *in = w->in[kind];
    *out = w->out[kind];
    if (one_buffer || (s->in_place && s->operation == LS__OP_REDUCE && w->rank == s->root)) {
        *in = *out;
    } else if (s->in_place && out_has_blocks(s) && has_output(w, s)) {
        *in = *out + block;
    } else if (s->in_place && in_has_blocks(s)) {
        *out = *in + block;
    }
    if (!has_output(w, s) && s->count % 2 == 1) {
        *out = NULL;
    }
}

static void fill(const world *w, const shape *s, unsigned char *in)
{
    const int64_t count = in_has_blocks(s) ? s->count * w->n : s->count;
    for (int64_t i = 0; i < values_own(count); i++) {
        put_value(in, i, s->dtype, value_of(w->rank, i, s->dtype, s->op));
    }
    values_repeat(in, count, ls_dtype_size(s->dtype));
}

/* Of this rank's output. */
static bool is_right(const world *w, const shape *s, const unsigned char *out)
{
    const size_t element = ls_dtype_size(s->dtype);
    bool good = true;
    for (int b = 0; b < (out_has_blocks(s) ? w->n : 1); b++) {
        const int64_t first = b * s->count;
        for (int64_t i = first; i < first + values_own(s->count); i++) {
            unsigned char want[8];
            put_value(want, 0, s->dtype, wanted(w, s, i));
            good = good && memcmp(out + (size_t)i * element, want, element) == 0;
        }
        good = good && values_do_repeat(out + (size_t)first * element, s->count, element);
    }
    return good;
}

static void check_shape(const world *w, shape s)
{
    const size_t element = ls_dtype_size(s.dtype);
    const int64_t count = out_has_blocks(&s) ? s.count * w->n : s.count;
    unsigned char *in = NULL, *out = NULL;
    place(w, &s, &in, &out);
    const bool guarded = out != NULL && !(s.in_place && in_has_blocks(&s));
    if (guarded) {
        memset(out, 0xa5, (size_t)count * element + GUARD);
    }
    fill(w, &s, in);
    const bool unread = s.operation == LS__OP_SCATTER && w->rank != s.root;
    CHECK_OK(call(w, &s, unread ? NULL : in, out));
    bool good = !has_output(w, &s) || is_right(w, &s, out);
    /* an output that does not count is not touched */
    const size_t from = has_output(w, &s) ? (size_t)count * element : 0;
    for (size_t i = from; guarded && i < (size_t)count * element + GUARD; i++) {
        good = good && (out[i] == 0xa5 || out + i < in + (size_t)s.count * element);
    }
    if (!good) {
        test_fail(__FILE__, __LINE__,
                  "%s %s of %s[%lld] %s, root %d, memory %d, in place %d, way %d: wrong bytes",
                  ls__operation_name(s.operation), s.algorithm ? s.algorithm : "(chosen)",
                  ls_dtype_name(s.dtype), (long long)s.count, ls_reduce_op_name(s.op), s.root,
                  s.memory, s.in_place, w->group->comm->forced);
    }
}

static const int64_t counts[] = {0, 1, 3, 17, 1023, 16411, 60001};
#define COUNTS (sizeof counts / sizeof *counts)

static void every_size(const world *w, shape s)
{
    for (size_t c = 0; c < COUNTS; c++) {
        const bool blocks = in_has_blocks(&s) || out_has_blocks(&s);
        s.count = blocks ? (counts[c] + w->n - 1) / w->n : counts[c];
        s.root = (int)(c % (size_t)w->n);
        s.op = ls__operation_reduces(s.operation) ? LS_AVG : LS_SUM;
        s.memory = (int)(c % 3);
        s.in_place = false;
        check_shape(w, s);
        s.in_place = true;
        check_shape(w, s);
    }
}

static void every_type(const world *w, shape s, int64_t count)
{
    s.count = count;
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        s.dtype = (ls_dtype)d;
        s.root = d % w->n;
        for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
            const bool sum_of_bools = d == LS_BOOL && (op == LS_SUM || op == LS_PRODUCT);
            s.op = (ls_reduce_op)op;
            if (ls__operation_reduces(s.operation)
                    ? ls__reduce_supported(s.dtype, s.op) && !sum_of_bools
                    : s.op == LS_SUM) {
                check_shape(w, s);
            }
        }
    }
}

static void every_rooted_operation(const world *w)
{
    static const ls__operation operations[] = {LS__OP_REDUCE, LS__OP_GATHER, LS__OP_SCATTER};
    for (size_t o = 0; o < 3; o++) {
        shape s = {.operation = operations[o]};
        every_size(w, s);
        every_type(w, s, 17);
        for (s.root = 0; s.root < w->n; s.root++) {
            s.count = 301;
            check_shape(w, s);
        }
    }
}

/* One that needs shared memory is refused by a group on several hosts. */
static bool runs_here(const world *w, const ls__algorithm *algorithm)
{
    return algorithm->operation != LS__OP_BARRIER &&
           algorithm->operation <= LS__OP_SCATTER && /* the others: test_operations.c */
           (!w->group->has_remote || (algorithm->memories & LS__IN_MESSAGES) != 0);
}

/* Every algorithm that has a name, whatever it runs in; every type of each, or of some of them with
 * this number of ranks and of the others with another. */
static void every_named_algorithm(const world *w)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        if (runs_here(w, algorithms[a])) {
            const shape s = {.operation = algorithms[a]->operation,
                             .algorithm = algorithms[a]->name};
            every_size(w, s);
            if (getenv("TEST_LONG") != NULL || (a + w->n) % 4 == 0) {
                every_type(w, s, 501);
            }
        }
    }
}

__extension__ typedef __int128 int128;

/* `low`: near the smallest value, else near the largest. */
static int128 extreme(ls_dtype dtype, bool low, int rank, int64_t i)
{
    const bool plain =
        dtype == LS_UINT8 || dtype == LS_UINT16 || dtype == LS_UINT32 || dtype == LS_UINT64;
    const int128 most = ((int128)1 << (8 * ls_dtype_size(dtype) - !plain)) - 1,
                 off = (rank + i) % 3;
    return !low ? most - off : plain ? off : off - most - 1;
}

/* Sums in 128 bits, in any order. */
static void check_mean_of_extremes(const world *w, shape s, bool low)
{
    const size_t element = ls_dtype_size(s.dtype);
    const int64_t inputs = in_has_blocks(&s) ? s.count * w->n : s.count;
    const int64_t first = in_has_blocks(&s) ? w->rank * s.count : 0;
    unsigned char *in = NULL, *out = NULL;
    place(w, &s, &in, &out);
    for (int64_t i = 0; i < values_own(inputs); i++) {
        const int128 value = extreme(s.dtype, low, w->rank, i);
        memcpy(in + (size_t)i * element, &value, element); /* its low bytes */
    }
    values_repeat(in, inputs, element);
    CHECK_OK(call(w, &s, in, out));
    for (int64_t i = 0; has_output(w, &s) && i < values_own(s.count); i++) {
        int128 sum = 0;
        for (int r = 0; r < w->n; r++) {
            sum += extreme(s.dtype, low, r, first + i);
        }
        sum /= w->n;
        CHECK(memcmp(out + (size_t)i * element, &sum, element) == 0);
    }
    CHECK(!has_output(w, &s) || values_do_repeat(out, s.count, element));
}

static void means_of_extremes(const world *w, shape s)
{
    static const int64_t few[] = {1, 5, 301, 20011}; /* inline, one shot, in blocks, in pieces */
    s.op = LS_AVG;
    for (int d = LS_INT8; d < LS_DTYPE_COUNT; d++) {
        for (size_t c = 0; c < sizeof few / sizeof *few && d != LS_BOOL; c++) {
            s.dtype = (ls_dtype)d;
            s.count = few[c];
            s.root = d % w->n;
            s.memory = d % 3;
            check_mean_of_extremes(w, s, false);
            check_mean_of_extremes(w, s, true);
        }
    }
}

static void averages_of_integers(void)
{
    world w = world_new();
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        if (runs_here(&w, algorithms[a]) && ls__operation_reduces(algorithms[a]->operation)) {
            shape s = {.operation = algorithms[a]->operation, .algorithm = algorithms[a]->name};
            means_of_extremes(&w, s);
            s.algorithm = NULL;
            means_of_extremes(&w, s);
        }
    }
    world_free(&w);
}

static void everything(void)
{
    world w = world_new();
    every_named_algorithm(&w);
    static const ls__memory ways[] = {LS__MEMORY_UNDECIDED, LS__MEMORY_STAGED, LS__MEMORY_MESSAGES};
    for (size_t k = 0; k < 3; k++) {
        w.group->comm->forced = (int)ways[k];
        every_rooted_operation(&w);
    }
    w.group->comm->forced = 0;
    world_free(&w);
}

/* Larger than what messages and STAGE carry at a time: several slices. */
static void in_slices(void)
{
    world w = world_new();
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        shape s = {.operation = algorithms[a]->operation,
                   .algorithm = algorithms[a]->name,
                   .dtype = LS_BFLOAT16,
                   .op = LS_MAX,
                   .root = 1,
                   .in_place = a % 2 == 1};
        const bool blocks = in_has_blocks(&s) || out_has_blocks(&s);
        s.count = 2500001 / (blocks ? w.n : 1);
        if (runs_here(&w, algorithms[a])) {
            check_shape(&w, s);
        }
    }
    world_free(&w);
}

DIST_TEST(large_buffers_go_in_slices, 3)
{
    in_slices();
}

/* clang-format off */
DIST_TEST(averages_of_integers_do_not_overflow_on_2_ranks, 2) { averages_of_integers(); }
DIST_TEST(averages_of_integers_do_not_overflow_on_5_ranks, 5) { averages_of_integers(); }
DIST_TEST(every_algorithm_is_right_on_1_rank, 1) { everything(); }
DIST_TEST(every_algorithm_is_right_on_2_ranks, 2) { everything(); }
DIST_TEST(every_algorithm_is_right_on_3_ranks, 3) { everything(); }
DIST_TEST(every_algorithm_is_right_on_4_ranks, 4) { everything(); }
DIST_TEST(every_algorithm_is_right_on_5_ranks, 5) { everything(); }
DIST_TEST(every_algorithm_is_right_on_6_ranks, 6) { everything(); }
DIST_TEST(every_algorithm_is_right_on_7_ranks, 7) { everything(); }
DIST_TEST(every_algorithm_is_right_on_8_ranks, 8) { everything(); }
/* clang-format on */

/* ---- bits --------------------------------------------------------------------------------- */

#define FLOATS 3001

static float random_float(int rank, int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ x >> 31) * 0x94d049bb133111ebu;
    x ^= x >> 29;
    return ((float)(x & 0xffffff) - 8388608.0f) * (x >> 40 & 1 ? 0x1p-20f : 0x1p-14f);
}

/* As the dtype holds it. */
static float contribution(int rank, int64_t i, ls_dtype dtype)
{
    const float x = random_float(rank, i);
    return dtype == LS_FLOAT16    ? ls__float16_widen(ls__float16_round(x))
           : dtype == LS_BFLOAT16 ? ls__bfloat16_widen(ls__bfloat16_round(x))
                                  : x;
}

static void put_float(unsigned char *at, float x, ls_dtype dtype)
{
    const uint16_t half = dtype == LS_FLOAT16 ? ls__float16_round(x) : ls__bfloat16_round(x);
    memcpy(at, dtype == LS_FLOAT32 ? (const void *)&x : &half, ls_dtype_size(dtype));
}

static float get_float(const unsigned char *at, ls_dtype dtype)
{
    uint16_t half;
    float x;
    memcpy(&half, at, sizeof half);
    if (dtype == LS_FLOAT32) {
        memcpy(&x, at, sizeof x);
        return x;
    }
    return dtype == LS_FLOAT16 ? ls__float16_widen(half) : ls__bfloat16_widen(half);
}

/* The sum over ranks [low, high): the left part is the largest power of two below the number. */
static float tree(int64_t i, int low, int high, ls_dtype dtype)
{
    if (high - low == 1) {
        return contribution(low, i, dtype);
    }
    int left = 1;
    while (left * 2 < high - low) {
        left *= 2;
    }
    return tree(i, low, low + left, dtype) + tree(i, low + left, high, dtype);
}

/* Of the sum in float64, relative to the magnitudes that were added. */
static double error_of(float got, int n, int64_t i, ls_dtype dtype)
{
    double sum = 0, magnitude = 0;
    for (int r = 0; r < n; r++) {
        sum += (double)contribution(r, i, dtype);
        magnitude += fabs((double)contribution(r, i, dtype));
    }
    return fabs((double)got * n - sum) / magnitude;
}

static void same_on_all(const world *w, const unsigned char *buf, size_t bytes)
{
    unsigned char *all = malloc(bytes * (size_t)w->n);
    CHECK(all != NULL);
    CHECK_OK(ls_all_gather(w->group, buf, all, (int64_t)bytes, LS_UINT8, NULL, NULL));
    for (int r = 0; r < w->n; r++) {
        CHECK(memcmp(all + (size_t)r * bytes, buf, bytes) == 0);
    }
    free(all);
}

static void average(const world *w, const char *algorithm, ls_dtype dtype, bool exact)
{
    const size_t element = ls_dtype_size(dtype);
    unsigned char *buf = w->out[0];
    for (int64_t i = 0; i < FLOATS; i++) {
        put_float(buf + (size_t)i * element, contribution(w->rank, i, dtype), dtype);
    }
    const ls__algorithm *found =
        algorithm != NULL ? ls__algorithm_find(LS__OP_ALL_REDUCE, algorithm) : NULL;
    if (found != NULL && !runs_here(w, found)) {
        return;
    }
    CHECK_OK(ls_all_reduce(w->group, buf, buf, FLOATS, dtype, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .algorithm = algorithm), NULL));
    const double rounding = dtype == LS_FLOAT32 ? 0x1p-23 : dtype == LS_FLOAT16 ? 0x1p-11 : 0x1p-8;
    for (int64_t i = 0; i < FLOATS; i++) {
        unsigned char want[4];
        put_float(want, tree(i, 0, w->n, dtype) / (float)w->n, dtype);
        const unsigned char *got = buf + (size_t)i * element;
        CHECK(!exact || memcmp(got, want, element) == 0);
        /* one rounding to the dtype, n of float32 on the way */
        CHECK(error_of(get_float(got, dtype), w->n, i, dtype) <= rounding + w->n * 0x1p-23);
    }
    same_on_all(w, buf, FLOATS * element);
}

static void averages(void)
{
    world w = world_new();
    static const ls_dtype dtypes[] = {LS_FLOAT32, LS_FLOAT16, LS_BFLOAT16};
    for (size_t d = 0; d < 3; d++) {
        average(&w, "direct", dtypes[d], true);
        average(&w, "one_shot", dtypes[d], true);
        average(&w, "recursive_doubling", dtypes[d], true);
        average(&w, "halving_doubling", dtypes[d], true);
        average(&w, "tree_stages", dtypes[d], true);
        average(&w, "root", dtypes[d], true);
        average(&w, "full_exchange", dtypes[d], true);
        average(&w, "ring", dtypes[d], false);
        average(&w, NULL, dtypes[d], true);
    }
    world_free(&w);
}

/* clang-format off */
DIST_TEST(exact_means_have_the_bits_of_the_tree_on_3_ranks, 3) { averages(); }
DIST_TEST(exact_means_have_the_bits_of_the_tree_on_5_ranks, 5) { averages(); }
DIST_TEST(exact_means_have_the_bits_of_the_tree_on_8_ranks, 8) { averages(); }
/* clang-format on */

DIST_TEST(reduce_has_the_bits_of_all_reduce_at_the_root, 5)
{
    world w = world_new();
    float *in = (float *)(void *)w.in[0], *out = (float *)(void *)w.out[0];
    for (int root = 0; root < w.n; root++) {
        for (int64_t i = 0; i < FLOATS; i++) {
            in[i] = random_float(w.rank, i);
            out[i] = -1;
        }
        w.group->comm->forced = root % 2 ? LS__MEMORY_MESSAGES : 0;
        CHECK_OK(ls_reduce(w.group, in, out, FLOATS, LS_FLOAT32, LS_SUM, root, NULL, NULL));
        for (int64_t i = 0; i < FLOATS; i++) {
            const float want = w.rank == root ? tree(i, 0, w.n, LS_FLOAT32) : -1;
            CHECK(memcmp(&out[i], &want, sizeof want) == 0);
            CHECK(in[i] == random_float(w.rank, i));
        }
    }
    w.group->comm->forced = 0;
    world_free(&w);
}

/* ---- what is counted, and what is refused -------------------------------------------------- */

DIST_TEST(a_named_algorithm_is_the_one_that_runs, 4)
{
    static const struct {
        const char *name;
        uint64_t messages, remote; /* sent and received; the same where members share no memory */
    } rows[] = {
        {"ring", 12, 12}, {"recursive_doubling", 4, 4}, {"direct", 6, 12}, {"one_shot", 3, 0}};
    float x[64] = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (ls_world()->has_remote && rows[i].remote == 0) {
            CHECK_STATUS(ls_all_reduce(ls_world(), x, x, 64, LS_FLOAT32, LS_SUM,
                                       LS_OPTIONS(ls_collective_options, .algorithm = rows[i].name),
                                       NULL),
                         LS_ERR_UNSUPPORTED);
            continue;
        }
        ls_counters before = {.size = sizeof before}, after = before;
        CHECK_OK(ls_group_get_counters(ls_world(), &before));
        CHECK_OK(ls_all_reduce(ls_world(), x, x, 64, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .algorithm = rows[i].name), NULL));
        CHECK_OK(ls_group_get_counters(ls_world(), &after));
        CHECK_INT(after.messages - before.messages,
                  ls_world()->has_remote ? rows[i].remote : rows[i].messages);
    }
}

/* A root that does not wait is not waited for: many in flight, and each gets its own. */
DIST_TEST(rooted_operations_may_overtake_each_other, 4)
{
    enum { MANY = 40 };
    int32_t in[MANY], out[MANY][4];
    ls_work *work[MANY];
    for (int forced = 0; forced < 2; forced++) {
        ls_world()->comm->forced = forced ? LS__MEMORY_MESSAGES : 0;
        memset(out, 0, sizeof out);
        for (int k = 0; k < MANY; k++) {
            in[k] = 100 * k + ls_rank();
            CHECK_OK(ls_gather(ls_world(), &in[k], out[k], 1, LS_INT32, k % 4, NULL, &work[k]));
        }
        for (int k = 0; k < MANY; k++) {
            CHECK_OK(ls_work_wait(work[k]));
            for (int r = 0; r < 4; r++) {
                CHECK_INT(out[k][r], k % 4 == ls_rank() ? 100 * k + r : 0);
            }
        }
        CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    }
    ls_world()->comm->forced = 0;
}

DIST_TEST(wrong_arguments_are_named, 2)
{
    ls_group *g = ls_world();
    float x[4] = {0};
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .algorithm = "rings");
    CHECK_STATUS(ls_all_reduce(g, x, x, 4, LS_FLOAT32, LS_SUM, options, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "algorithm \"rings\" does not exist");
    CHECK_CONTAINS(ls_error_message(),
                   "\"direct\", \"one_shot\", \"ring\", \"recursive_doubling\"");
    CHECK_STATUS(ls_send(g, x, 1, LS_FLOAT32, 1 - ls_rank(), 0, options, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "known: none");
    CHECK_STATUS(ls_reduce(g, x, x, 4, LS_FLOAT32, LS_SUM, 2, NULL, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "root 2 is not a rank of this group; use 0 to 1");
    CHECK_STATUS(ls_reduce(g, x, NULL, 4, LS_FLOAT32, LS_SUM, ls_rank(), NULL, NULL),
                 LS_ERR_INVALID);
    CHECK_STATUS(ls_gather(g, NULL, x, 1, LS_FLOAT32, 0, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_scatter(g, NULL, x, 1, LS_FLOAT32, ls_rank(), NULL, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "the buffer is NULL");
    CHECK_STATUS(ls_scatter(g, x, NULL, 1, LS_FLOAT32, 0, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_reduce(g, x, x, 4, LS_BOOL, LS_AVG, 0, NULL, NULL), LS_ERR_INVALID);
    CHECK_OK(ls_barrier(g, NULL, NULL));
}

TEST_MAIN
