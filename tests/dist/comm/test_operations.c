/* SPDX-License-Identifier: Apache-2.0 */
/* all_to_all, scan and exscan with real processes, in groups of 1 to 8 ranks in another order than
 * the world's: against plain loops over dtypes, reduce-ops, odd sizes, kinds of memory, in place or
 * not, by every algorithm; and with random floats: prefixes have the bits of the canonical tree
 * over their ranks, whatever runs them, and are rounded and divided once. */
#include "test.h"

#include <lockstep/comm.h>

#include "base/half.h"
#include "comm/algorithm/registry.h"
#include "comm/core/group.h"
#include "in_groups.h"
#include "values.h"

/* ---- values ------------------------------------------------------------------------------- */

typedef struct shape {
    ls__operation operation;
    const char *algorithm;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    int memory; /* 0 private, 1 registered, 2 mixed */
    bool in_place;
} shape;

static ls_status call(const world *w, const shape *s, void *in, void *out)
{
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = s->algorithm);
    switch (s->operation) {
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(w->group, in, out, s->count, s->dtype, options, NULL);
    case LS__OP_SCAN:
        return ls_scan(w->group, in, out, s->count, s->dtype, s->op, options, NULL);
    default:
        return ls_exscan(w->group, in, out, s->count, s->dtype, s->op, options, NULL);
    }
}

static int64_t elements(const world *w, const shape *s)
{
    return s->operation == LS__OP_ALL_TO_ALL ? s->count * w->n : s->count;
}

/* What must stand at out[i]; false: what stood there before. */
static bool wanted(const world *w, const shape *s, int64_t i, int *value)
{
    switch (s->operation) {
    case LS__OP_ALL_TO_ALL:
        *value = value_of((int)(i / s->count), w->rank * s->count + i % s->count, s->dtype, s->op);
        return true;
    case LS__OP_SCAN:
        *value = reduced_of(w->rank + 1, i, s->dtype, s->op);
        return true;
    default:
        *value = w->rank > 0 ? reduced_of(w->rank, i, s->dtype, s->op) : 0;
        return w->rank > 0;
    }
}

/* Blocks that repeat by themselves (values.h). */
static int blocks_of(const world *w, const shape *s)
{
    return s->operation == LS__OP_ALL_TO_ALL ? w->n : 1;
}

static void put_input(const world *w, const shape *s, unsigned char *in)
{
    for (int64_t i = 0; i < values_own(elements(w, s)); i++) {
        put_value(in, i, s->dtype, value_of(w->rank, i, s->dtype, s->op));
    }
    values_repeat(in, elements(w, s), ls_dtype_size(s->dtype));
}

static bool is_right(const world *w, const shape *s, const unsigned char *out)
{
    const size_t element = ls_dtype_size(s->dtype);
    const int64_t count = elements(w, s) / blocks_of(w, s);
    bool good = true;
    for (int b = 0; b < blocks_of(w, s); b++) {
        for (int64_t i = b * count; i < b * count + values_own(count); i++) {
            unsigned char want[8];
            int value = 0;
            const bool written = wanted(w, s, i, &value);
            memset(want, 0xa5, sizeof want);
            if (written || s->in_place) {
                put_value(want, 0, s->dtype,
                          written ? value : value_of(w->rank, i, s->dtype, s->op));
            }
            good = good && memcmp(out + (size_t)i * element, want, element) == 0;
        }
        good = good && values_do_repeat(out + (size_t)(b * count) * element, count, element);
    }
    return good;
}

static void check_shape(const world *w, shape s)
{
    const size_t element = ls_dtype_size(s.dtype);
    const size_t bytes = (size_t)elements(w, &s) * element;
    const int kind = s.memory == 2 ? w->rank % 2 : s.memory;
    unsigned char *in = w->in[kind], *out = s.in_place ? in : w->out[kind];
    memset(out, 0xa5, bytes + GUARD);
    put_input(w, &s, in);
    CHECK_OK(call(w, &s, in, out));
    bool good = is_right(w, &s, out);
    for (size_t i = bytes; i < bytes + GUARD; i++) {
        good = good && out[i] == 0xa5;
    }
    if (!good) {
        test_fail(__FILE__, __LINE__,
                  "%s %s of %s[%lld] %s on %d ranks, memory %d, in place %d, way %d: wrong bytes",
                  ls__operation_name(s.operation), s.algorithm ? s.algorithm : "(chosen)",
                  ls_dtype_name(s.dtype), (long long)s.count, ls_reduce_op_name(s.op), w->n,
                  s.memory, s.in_place, w->group->comm->forced);
    }
}

/* ---- everything --------------------------------------------------------------------------- */

static void every_size(const world *w, shape s)
{
    static const int64_t counts[] = {0, 1, 3, 17, 1021, 9001};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        s.count = s.operation == LS__OP_ALL_TO_ALL ? (counts[c] + w->n - 1) / w->n : counts[c];
        s.memory = (int)(c % 3);
        s.in_place = false;
        check_shape(w, s);
        s.in_place = true;
        check_shape(w, s);
    }
    s.count = (int64_t)w->n; /* registered throughout, so nothing is staged but what is in place */
    s.memory = 1;
    for (int i = 0; i < 3; i++, s.count += 3001) {
        s.in_place = i == 1;
        check_shape(w, s);
    }
}

static void every_type(const world *w, shape s, int64_t count)
{
    s.count = count;
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        for (int op = 0; op <= LS_BXOR; op++) {
            const bool sum_of_bools = d == LS_BOOL && (op == LS_SUM || op == LS_PRODUCT);
            s.dtype = (ls_dtype)d;
            s.op = (ls_reduce_op)op;
            s.in_place = (d + op) % 2 == 1;
            s.memory = (d + op) % 3;
            if (op != LS_AVG && (ls__operation_reduces(s.operation)
                                     ? ls__reduce_supported(s.dtype, s.op) && !sum_of_bools
                                     : s.op == LS_SUM)) {
                check_shape(w, s);
            }
        }
    }
}

static bool is_ours(const ls__algorithm *algorithm)
{
    return algorithm->operation == LS__OP_ALL_TO_ALL || ls__operation_scans(algorithm->operation);
}

static void everything(const world *w)
{
    static const ls__memory ways[] = {LS__MEMORY_UNDECIDED, LS__MEMORY_STAGED, LS__MEMORY_MESSAGES};
    static const ls__operation operations[] = {LS__OP_ALL_TO_ALL, LS__OP_SCAN, LS__OP_EXSCAN};
    for (int k = 0; k < 9; k++) {
        const shape s = {.operation = operations[k % 3]};
        w->group->comm->forced = (int)ways[k / 3];
        every_size(w, s);
        every_type(w, s, 37);
    }
    w->group->comm->forced = 0;
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        if (is_ours(algorithms[a])) {
            const shape s = {.operation = algorithms[a]->operation,
                             .algorithm = algorithms[a]->name};
            every_size(w, s);
            every_type(w, s, 501);
        }
    }
}

TEST_OF(every_algorithm_moves_every_type_of_every_size_in_groups_of_1_to_8, RANKS, 300)
{
    in_every_group(everything);
}

/* Larger than what messages and STAGE carry at a time: several slices. */
static void in_slices(const world *w)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count && w->n == 3; a++) {
        for (int i = 0; i < 3 && is_ours(algorithms[a]); i++) {
            const bool blocks = algorithms[a]->operation == LS__OP_ALL_TO_ALL;
            const shape s = {.operation = algorithms[a]->operation,
                             .algorithm = algorithms[a]->name,
                             .count = 700001 / (blocks ? w->n : 1),
                             .dtype = LS_INT64,
                             .op = LS_MAX,
                             .memory = i,
                             .in_place = (a + i) % 2 == 1};
            check_shape(w, s);
        }
    }
}

DIST_TEST(large_buffers_go_in_slices_in_every_kind_of_memory, RANKS)
{
    in_every_group(in_slices);
}

/* ---- bits --------------------------------------------------------------------------------- */

#define FLOATS 1003

static float random_float(int rank, int64_t i)
{
    uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + 1;
    x = (x ^ x >> 31) * 0x94d049bb133111ebu;
    x ^= x >> 29;
    return ((float)(x & 0xffffff) - 8388608.0f) * (x >> 40 & 1 ? 0x1p-20f : 0x1p-14f);
}

static float widened(int rank, int64_t i, bool half)
{
    const float x = random_float(rank, i);
    return half ? ls__bfloat16_widen(ls__bfloat16_round(x)) : x;
}

/* Adjacent pairs first: the left part is the largest power of two below the number of ranks. */
static float tree(int64_t i, int low, int high, bool half)
{
    int left = 1;
    while (left * 2 < high - low) {
        left *= 2;
    }
    return high - low == 1 ? widened(low, i, half)
                           : tree(i, low, low + left, half) + tree(i, low + left, high, half);
}

static void put_float(unsigned char *at, int64_t i, float x, bool half)
{
    const uint16_t rounded = ls__bfloat16_round(x);
    memcpy(at + (size_t)i * (half ? 2 : 4), half ? (const void *)&rounded : &x, half ? 2 : 4);
}

static void check_bits(const world *w, const char *algorithm, bool exclusive, bool half,
                       float divisor)
{
    const int terms = exclusive ? w->rank : w->rank + 1;
    unsigned char *buf = w->in[w->rank % 2], *want = w->out[0];
    for (int64_t i = 0; i < FLOATS; i++) {
        put_float(buf, i, widened(w->rank, i, half), half);
        put_float(want, i,
                  terms > 0 ? tree(i, 0, terms, half) / divisor : widened(w->rank, i, half), half);
    }
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = algorithm,
                   .divisor = divisor == 1.0f ? 0 : (double)divisor);
    CHECK_OK((exclusive ? ls_exscan : ls_scan)(
        w->group, buf, buf, FLOATS, half ? LS_BFLOAT16 : LS_FLOAT32, LS_SUM, options, NULL));
    if (memcmp(buf, want, FLOATS * (half ? 2u : 4u)) != 0) {
        test_fail(__FILE__, __LINE__, "%s by %s of %s on %d ranks, divisor %g: other bits",
                  exclusive ? "exscan" : "scan", algorithm, half ? "bfloat16" : "float32", w->n,
                  (double)divisor);
    }
}

static void every_prefix(const world *w)
{
    static const char *const algorithms[] = {"direct", "recursive_doubling"};
    static const ls__memory ways[] = {LS__MEMORY_UNDECIDED, LS__MEMORY_STAGED, LS__MEMORY_MESSAGES};
    for (int k = 0; k < 48; k++) {
        w->group->comm->forced = (int)ways[k % 3];
        check_bits(w, algorithms[k / 3 % 2], k / 6 % 2 == 1, k / 12 % 2 == 1,
                   k / 24 == 1 ? 3.0f : 1.0f);
    }
    w->group->comm->forced = 0;
}

DIST_TEST(prefixes_have_the_bits_of_the_tree_over_their_ranks_rounded_and_divided_once, RANKS)
{
    in_every_group(every_prefix);
}

/* ---- mistakes ----------------------------------------------------------------------------- */

DIST_TEST(scans_refuse_an_average_and_registered_memory_in_place_is_not_written_ahead, 2)
{
    float x[2] = {1, 2}, y[2] = {0};
    CHECK_STATUS(ls_scan(ls_world(), x, y, 2, LS_FLOAT32, LS_AVG, NULL, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "is not defined");
    void *shared = NULL;
    CHECK_OK(ls_group_alloc(ls_world(), 8, &shared));
    float *own = shared;
    for (int i = 0; i < 50; i++) {
        own[0] = 3;
        own[1] = (float)ls_rank();
        CHECK_OK(ls_scan(ls_world(), own, own, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
        CHECK(own[0] == 3.0f * (float)(ls_rank() + 1) && own[1] == (float)ls_rank());
    }
    CHECK_OK(ls_group_dealloc(ls_world(), shared));
    CHECK_OK(
        ls_exscan(ls_world(), x, ls_rank() == 0 ? NULL : y, 2, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(ls_rank() == 0 || (y[0] == 1 && y[1] == 2));
}

TEST_MAIN
