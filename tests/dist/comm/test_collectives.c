/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation against plain integer loops: dtypes, reduce-ops, odd sizes, buffers private,
 * registered and mixed, in place or not, through every way the engine has. Sums of random floats
 * are compared bit for bit with the canonical tree, written here a second time. */
#include "test.h"

#include <math.h>
#include <stdlib.h>

#include <lockstep/comm.h>

#include "comm/core/group.h"
#include "kernel/reduce/reduce.h"
#include "values.h"

#define ROOM ((size_t)8 << 20)
#define GUARD 64 /* bytes behind a result that nobody may touch */

typedef enum memory { PRIVATE, REGISTERED, MIXED } memory;

typedef struct world {
    ls_group *group;
    int n, rank;
    unsigned char *in[2], *out[2]; /* private, registered */
    unsigned char *want;
} world;

static unsigned char *private_memory(void)
{
    unsigned char *p = malloc(ROOM);
    CHECK(p != NULL);
    return p;
}

static unsigned char *registered_memory(ls_group *group, size_t shift)
{
    void *p = NULL;
    CHECK_OK(ls_group_alloc(group, ROOM + 64 * 16, &p));
    return (unsigned char *)p + shift; /* ranks use different offsets */
}

static world world_new(void)
{
    world w = {.group = ls_world()};
    w.n = ls_group_size(w.group);
    w.rank = ls_group_rank(w.group);
    w.in[0] = private_memory();
    w.out[0] = private_memory();
    w.want = private_memory();
    w.in[1] = registered_memory(w.group, 64 * (size_t)w.rank);
    w.out[1] = registered_memory(w.group, 128 * (size_t)w.rank);
    return w;
}

static void world_free(world *w)
{
    free(w->in[0]);
    free(w->out[0]);
    free(w->want);
    CHECK_OK(ls_group_dealloc(w->group, w->in[1] - 64 * (size_t)w->rank));
    CHECK_OK(ls_group_dealloc(w->group, w->out[1] - 128 * (size_t)w->rank));
}

typedef struct shape {
    ls__operation operation;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    int root;
    memory memory;
    bool in_place;
} shape;

static int which(const world *w, memory kind)
{
    return kind == PRIVATE ? 0 : kind == REGISTERED ? 1 : w->rank % 2;
}

/* Blocks of the result, each of `count` elements. */
static int blocks_of(const world *w, const shape *s)
{
    return s->operation == LS__OP_ALL_GATHER ? w->n : 1;
}

static int64_t in_count(const world *w, const shape *s)
{
    return s->operation == LS__OP_REDUCE_SCATTER ? s->count * w->n : s->count;
}

static int64_t out_count(const world *w, const shape *s)
{
    return s->count * blocks_of(w, s);
}

/* The value that must stand at out[i]. */
static int wanted(const world *w, const shape *s, int64_t i)
{
    switch (s->operation) {
    case LS__OP_ALL_REDUCE:
        return reduced_of(w->n, i, s->dtype, s->op);
    case LS__OP_REDUCE_SCATTER:
        return reduced_of(w->n, w->rank * s->count + i, s->dtype, s->op);
    case LS__OP_ALL_GATHER:
        return value_of((int)(i / s->count), i % s->count, s->dtype, s->op);
    default:
        return value_of(s->root, i, s->dtype, s->op);
    }
}

static ls_status call(const world *w, const shape *s, void *in, void *out)
{
    switch (s->operation) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(w->group, out, out, s->count, s->dtype, s->op, NULL, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(w->group, in, out, s->count, s->dtype, s->op, NULL, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(w->group, in, out, s->count, s->dtype, NULL, NULL);
    default:
        return ls_broadcast(w->group, out, s->count, s->dtype, s->root, NULL, NULL);
    }
}

/* Input and output for this rank; they share memory in place and for all_reduce and broadcast. */
static void place(const world *w, const shape *s, unsigned char **in, unsigned char **out)
{
    const size_t block = (size_t)s->count * ls_dtype_size(s->dtype) * (size_t)w->rank;
    *in = w->in[which(w, s->memory)];
    *out = w->out[which(w, s->memory)];
    if (s->operation == LS__OP_ALL_REDUCE || s->operation == LS__OP_BROADCAST) {
        *in = *out;
    } else if (s->in_place && s->operation == LS__OP_ALL_GATHER) {
        *in = *out + block;
    } else if (s->in_place) {
        *out = *in + block;
    }
}

static void put_input(const world *w, const shape *s, unsigned char *in)
{
    const int64_t count = in_count(w, s);
    for (int64_t i = 0; i < values_own(count); i++) {
        put_value(in, i, s->dtype, value_of(w->rank, i, s->dtype, s->op));
    }
    values_repeat(in, count, ls_dtype_size(s->dtype));
}

static void put_wanted(const world *w, const shape *s)
{
    const size_t element = ls_dtype_size(s->dtype);
    for (int b = 0; b < blocks_of(w, s); b++) {
        const int64_t first = b * s->count;
        for (int64_t i = first; i < first + values_own(s->count); i++) {
            put_value(w->want, i, s->dtype, wanted(w, s, i));
        }
        values_repeat(w->want + (size_t)first * element, s->count, element);
    }
}

static void check_shape(const world *w, shape s)
{
    const size_t element = ls_dtype_size(s.dtype);
    const size_t bytes = (size_t)out_count(w, &s) * element;
    unsigned char *in = NULL, *out = NULL;
    place(w, &s, &in, &out);
    const bool guarded = !(s.in_place && s.operation == LS__OP_REDUCE_SCATTER);
    if (guarded) {
        memset(out, 0xa5, bytes + GUARD);
    }
    put_input(w, &s, in);
    put_wanted(w, &s);
    memset(w->want + bytes, 0xa5, GUARD);
    CHECK_OK(call(w, &s, in, out));
    if (memcmp(out, w->want, bytes + (guarded ? GUARD : 0)) != 0) {
        test_fail(__FILE__, __LINE__,
                  "%s of %s[%lld] %s, root %d, memory %d, in place %d, way %d: wrong bytes",
                  ls__operation_name(s.operation), ls_dtype_name(s.dtype), (long long)s.count,
                  ls_reduce_op_name(s.op), s.root, s.memory, s.in_place, w->group->comm->forced);
    }
}

static bool meaningful(ls_dtype dtype, ls_reduce_op op)
{
    return ls__reduce_supported(dtype, op);
}

static void every_type(const world *w, memory kind, int64_t count)
{
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        shape s = {.count = count, .dtype = (ls_dtype)d, .memory = kind};
        for (int op = 0; op < LS_REDUCE_OP_COUNT; op++) {
            s.op = (ls_reduce_op)op;
            if (meaningful(s.dtype, s.op)) {
                s.operation = LS__OP_ALL_REDUCE;
                check_shape(w, s);
                s.operation = LS__OP_REDUCE_SCATTER;
                check_shape(w, s);
            }
        }
        s.op = LS_SUM;
        s.operation = LS__OP_ALL_GATHER;
        check_shape(w, s);
        s.operation = LS__OP_BROADCAST;
        s.root = (int)(count % w->n);
        check_shape(w, s);
    }
}

static void every_size(const world *w, memory kind)
{
    static const int64_t counts[] = {0, 1, 3, 17, 1023, 4096, 16411, 140001};
    static const ls__operation operations[] = {LS__OP_ALL_REDUCE, LS__OP_REDUCE_SCATTER,
                                               LS__OP_ALL_GATHER, LS__OP_BROADCAST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t o = 0; o < sizeof operations / sizeof *operations; o++) {
            shape s = {.operation = operations[o],
                       .count = o % 3 == 0 ? counts[c] : (counts[c] + w->n - 1) / w->n,
                       .op = LS_AVG,
                       .root = w->n - 1,
                       .memory = kind};
            check_shape(w, s);
            s.in_place = o % 3 != 0; /* all_reduce and broadcast always are */
            if (s.in_place) {
                check_shape(w, s);
            }
        }
        CHECK_OK(ls_barrier(w->group, NULL, NULL));
    }
}

static void every_way(void)
{
    world w = world_new();
    for (int kind = PRIVATE; kind <= MIXED; kind++) {
        every_size(&w, (memory)kind);
    }
    every_type(&w, MIXED, 17);
    every_type(&w, REGISTERED, 5003);
    every_type(&w, PRIVATE, 5003);
    for (int way = LS__MEMORY_MESSAGES; way <= LS__MEMORY_STAGED; way++) {
        w.group->comm->forced = way;
        every_size(&w, way == LS__MEMORY_REGISTERED ? REGISTERED : MIXED);
        every_type(&w, way == LS__MEMORY_REGISTERED ? REGISTERED : MIXED, 17);
    }
    w.group->comm->forced = LS__MEMORY_UNDECIDED;
    world_free(&w);
}

/* clang-format off */
DIST_TEST(all_operations_are_exact_on_1_rank, 1) { every_way(); }
DIST_TEST(all_operations_are_exact_on_2_ranks, 2) { every_way(); }
DIST_TEST(all_operations_are_exact_on_3_ranks, 3) { every_way(); }
DIST_TEST(all_operations_are_exact_on_4_ranks, 4) { every_way(); }
DIST_TEST(all_operations_are_exact_on_5_ranks, 5) { every_way(); }
DIST_TEST(all_operations_are_exact_on_6_ranks, 6) { every_way(); }
DIST_TEST(all_operations_are_exact_on_7_ranks, 7) { every_way(); }
DIST_TEST(all_operations_are_exact_on_8_ranks, 8) { every_way(); }
/* clang-format on */

/* ---- the canonical association ------------------------------------------------------------ */

static float random_float(int rank, int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ x >> 31) * 0x94d049bb133111ebu;
    x ^= x >> 29;
    return ((float)(x & 0xffffff) - 8388608.0f) * (x >> 40 & 1 ? 1e-3f : 1e+3f);
}

/* The sum over ranks [low, high): the left part is the largest power of two below the number. */
static float tree(int64_t i, int low, int high)
{
    if (high - low == 1) {
        return random_float(low, i);
    }
    int left = 1;
    while (left * 2 < high - low) {
        left *= 2;
    }
    return tree(i, low, low + left) + tree(i, low + left, high);
}

static void sums_follow_the_tree(void)
{
    world w = world_new();
    static const ls__memory ways[] = {LS__MEMORY_UNDECIDED, LS__MEMORY_REGISTERED,
                                      LS__MEMORY_STAGED, LS__MEMORY_MESSAGES};
    static const int64_t counts[] = {5, 1003, 100003};
    for (size_t k = 0; k < sizeof ways / sizeof *ways * 3; k++) {
        const int64_t count = counts[k % 3];
        w.group->comm->forced = (int)ways[k / 3];
        float *buf = (float *)(void *)w.out[1], *want = (float *)(void *)w.want;
        for (int64_t i = 0; i < count; i++) {
            buf[i] = random_float(w.rank, i);
            want[i] = tree(i, 0, w.n);
        }
        CHECK_OK(ls_all_reduce(w.group, buf, buf, count, LS_FLOAT32, LS_SUM, NULL, NULL));
        CHECK(memcmp(buf, want, (size_t)count * sizeof *buf) == 0);
    }
    w.group->comm->forced = LS__MEMORY_UNDECIDED;
    world_free(&w);
}

/* clang-format off */
DIST_TEST(sums_have_the_bits_of_the_tree_on_3_ranks, 3) { sums_follow_the_tree(); }
DIST_TEST(sums_have_the_bits_of_the_tree_on_6_ranks, 6) { sums_follow_the_tree(); }
/* clang-format on */

/* From 1 to 2, so that a term that is left out is as large as the others. */
static float long_value(int rank, int64_t i)
{
    return 1.0f + (float)((uint32_t)(i * 2654435761 + rank * 40503) % 8388608u) / 8388608.0f;
}

static double long_sum(int ranks, int64_t i)
{
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        sum += (double)long_value(r, i);
    }
    return sum;
}

/* Every element against float64: pieces, slices and chunks are at their largest here, and end in
 * fewer elements than a vector has. */
static void long_sum_is_near(ls_group *group, float *x, const float *term, const double *sum,
                             int64_t count, const char *algorithm)
{
    memcpy(x, term, (size_t)count * sizeof *x);
    CHECK_OK(ls_all_reduce(group, x, x, count, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .algorithm = algorithm), NULL));
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)x[i] - sum[i]) <= 1e-6)) { /* at most two roundings of a sum below 8 */
            test_fail(__FILE__, __LINE__, "way %d, %s: element %lld of %lld is %.9g, must be %.9g",
                      group->comm->forced, algorithm ? algorithm : "(chosen)", (long long)i,
                      (long long)count, (double)x[i], sum[i]);
        }
    }
}

static void long_sums(void)
{
    static const int64_t counts[] = {200003, 262147, 1500007};
    static const char *const algorithms[] = {NULL, "ring"};
    const int64_t most = counts[2];
    ls_group *group = ls_world();
    float *private = malloc((size_t)most * sizeof *private);
    float *term = malloc((size_t)most * sizeof *term);
    double *sum = malloc((size_t)most * sizeof *sum);
    void *registered = NULL;
    CHECK(private != NULL && term != NULL && sum != NULL);
    for (int64_t i = 0; i < most; i++) {
        term[i] = long_value(ls_group_rank(group), i);
        sum[i] = long_sum(ls_group_size(group), i);
    }
    CHECK_OK(ls_group_alloc(group, (size_t)most * sizeof(float), &registered));
    for (int k = 0; k < 6; k++) {
        const int64_t count = counts[k % 3];
        const char *algorithm = algorithms[k / 3];
        for (int way = LS__MEMORY_UNDECIDED; way <= LS__MEMORY_STAGED; way++) {
            group->comm->forced = way;
            long_sum_is_near(group, registered, term, sum, count, algorithm);
            long_sum_is_near(group, private, term, sum, count, algorithm);
        }
    }
    group->comm->forced = LS__MEMORY_UNDECIDED;
    free(sum);
    free(term);
    free(private);
    CHECK_OK(ls_group_dealloc(group, registered));
}

/* clang-format off */
DIST_TEST(long_sums_have_every_term_on_1_rank, 1) { long_sums(); }
DIST_TEST(long_sums_have_every_term_on_2_ranks, 2) { long_sums(); }
DIST_TEST(long_sums_have_every_term_on_3_ranks, 3) { long_sums(); }
DIST_TEST(long_sums_have_every_term_on_4_ranks, 4) { long_sums(); }
/* clang-format on */

DIST_TEST(a_divisor_divides_the_sum_once, 3)
{
    float x[4] = {1, 2, 3, 0.3f};
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 4, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .divisor = 7), NULL));
    for (int i = 0; i < 3; i++) {
        CHECK(x[i] == (float)(3 * (i + 1)) / 7.0f);
    }
    CHECK(x[3] == (0.3f + 0.3f + 0.3f) / 7.0f);
}

TEST_MAIN
