/* SPDX-License-Identifier: Apache-2.0 */
/* Operators: the user's own, in the order of ranks; sums of what is multiplied first; averages of
 * integers. Compared with plain loops over small numbers, which every dtype holds exactly. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

#include "comm/algorithm/registry.h"
#include "comm/core/comm.h"
#include "comm/core/group.h"
#include "values.h"

enum { MOST = 70001, RANKS_MAX = 8 };
static const int64_t counts[] = {0, 1, 3, 257, 4099, MOST};
enum { COUNTS = sizeof counts / sizeof *counts };

static const ls__operation reducing[] = {LS__OP_ALL_REDUCE, LS__OP_REDUCE, LS__OP_REDUCE_SCATTER,
                                         LS__OP_SCAN, LS__OP_EXSCAN};
enum { REDUCING = sizeof reducing / sizeof *reducing };

typedef struct call {
    ls__operation operation;
    ls_dtype dtype;
    ls_reduce_op op;
    int64_t count;
    int root;
    const ls_collective_options *options;
} call;

/* all_reduce in place in `out`, which holds the input then. */
static ls_status run(const call *c, const void *in, void *out)
{
    ls_group *w = ls_world();
    switch (c->operation) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(w, out, out, c->count, c->dtype, c->op, c->options, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(w, in, out, c->count, c->dtype, c->op, c->root, c->options, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(w, in, out, c->count, c->dtype, c->op, c->options, NULL);
    case LS__OP_SCAN:
        return ls_scan(w, in, out, c->count, c->dtype, c->op, c->options, NULL);
    default:
        return ls_exscan(w, in, out, c->count, c->dtype, c->op, c->options, NULL);
    }
}

/* Of which ranks, and which elements, out[i] is made. */
typedef struct part {
    int ranks;
    int64_t first;
    bool is; /* this rank has a result */
} part;

static part part_of(const call *c)
{
    const int rank = ls_rank(), n = ls_world_size();
    switch (c->operation) {
    case LS__OP_REDUCE:
        return (part){n, 0, rank == c->root};
    case LS__OP_REDUCE_SCATTER:
        return (part){n, rank * c->count, true};
    case LS__OP_SCAN:
        return (part){rank + 1, 0, true};
    case LS__OP_EXSCAN:
        return (part){rank, 0, rank > 0};
    default:
        return (part){n, 0, true};
    }
}

typedef struct memory { /* private [0] and registered [1] */
    void *in[2], *out[2];
    unsigned char *kept;
} memory;

static memory memory_new(void)
{
    const size_t bytes = (size_t)MOST * 8 * RANKS_MAX;
    memory m = {.kept = malloc(bytes)};
    m.in[0] = malloc(bytes);
    m.out[0] = malloc(bytes);
    CHECK(m.in[0] != NULL && m.out[0] != NULL && m.kept != NULL);
    CHECK_OK(ls_group_alloc(ls_world(), bytes, &m.in[1]));
    CHECK_OK(ls_group_alloc(ls_world(), bytes, &m.out[1]));
    return m;
}

static void memory_free(memory *m)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    free(m->in[0]);
    free(m->out[0]);
    free(m->kept);
    CHECK_OK(ls_group_dealloc(ls_world(), m->in[1]));
    CHECK_OK(ls_group_dealloc(ls_world(), m->out[1]));
}

static int64_t inputs_of(const call *c)
{
    return c->operation == LS__OP_REDUCE_SCATTER ? c->count * ls_world_size() : c->count;
}

/* ---- premultiplied sums ------------------------------------------------------------------- */

static int element(int rank, int64_t i)
{
    return (int)((i + rank) % 3);
}

static int factor_of(int rank)
{
    return rank % 3 - 1;
}

static void check_premul(const call *c, memory *m, int kind)
{
    const size_t bytes = (size_t)inputs_of(c) * ls_dtype_size(c->dtype);
    const part p = part_of(c);
    for (int64_t i = 0; i < inputs_of(c); i++) {
        put_value(m->in[kind], i, c->dtype, element(ls_rank(), i));
    }
    memcpy(m->kept, m->in[kind], bytes);
    if (c->operation == LS__OP_ALL_REDUCE) {
        memcpy(m->out[kind], m->in[kind], bytes);
    }
    CHECK_OK(run(c, m->in[kind], m->out[kind]));
    CHECK(memcmp(m->kept, m->in[kind], bytes) == 0);
    for (int64_t i = 0; p.is && i < c->count; i++) {
        int sum = 0;
        unsigned char want[8];
        for (int r = 0; r < p.ranks; r++) {
            sum += factor_of(r) * element(r, p.first + i);
        }
        put_value(want, 0, c->dtype, sum);
        unsigned char *got = (unsigned char *)m->out[kind] + (size_t)i * ls_dtype_size(c->dtype);
        if (sum == 0 && c->dtype <= LS_BFLOAT16) { /* -0 is right, too */
            got[ls_dtype_size(c->dtype) - 1] &= 0x7f;
        }
        CHECK(memcmp(want, got, ls_dtype_size(c->dtype)) == 0);
    }
}

static void every_premul(void)
{
    memory m = memory_new();
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .factor = factor_of(ls_rank()));
    for (int o = 0; o < REDUCING; o++) {
        for (int d = 0; d < LS_BOOL; d++) {
            for (int k = 0; k < COUNTS; k++) {
                if (counts[k] == MOST && ls_world_size() > 5) {
                    continue;
                }
                if (counts[k] == MOST && d != LS_FLOAT32 && d != LS_BFLOAT16) {
                    continue;
                }
                const call c = {.operation = reducing[o],
                                .dtype = (ls_dtype)d,
                                .op = LS_PREMUL_SUM,
                                .count = counts[k],
                                .root = k % ls_world_size(),
                                .options = options};
                check_premul(&c, &m, (k + d) % 2);
            }
        }
    }
    memory_free(&m);
}

DIST_TEST(one_rank_premultiplies, 1)
{
    every_premul();
}

DIST_TEST(two_ranks_premultiply, 2)
{
    every_premul();
}

DIST_TEST(five_ranks_premultiply, 5)
{
    every_premul();
}

DIST_TEST(eight_ranks_premultiply, 8)
{
    every_premul();
}

DIST_TEST(fractions_and_unequal_blocks_are_premultiplied, 3)
{
    float in[12], out[5] = {0};
    const int64_t lengths[3] = {2, 0, 5}, offsets[3] = {1, 4, 6};
    for (int i = 0; i < 12; i++) {
        in[i] = (float)(8 * i);
    }
    CHECK_OK(ls_reduce_scatter_v(
        ls_world(), in, lengths, offsets, out, LS_FLOAT32, LS_PREMUL_SUM,
        LS_OPTIONS(ls_collective_options, .factor = 0.25 * (ls_rank() + 1)), NULL));
    for (int i = 0; i < lengths[ls_rank()]; i++) {
        CHECK(out[i] == 1.5f * 8.0f * (float)(offsets[ls_rank()] + i));
    }
    for (int i = 0; i < 12; i++) {
        CHECK(in[i] == (float)(8 * i));
    }
    CHECK_OK(ls_all_reduce(ls_world(), out, out, 1, LS_FLOAT32, LS_PREMUL_SUM, NULL, NULL));
}

DIST_TEST(premultiplied_in_place_in_lists_and_with_handles, 4)
{
    const int rank = ls_rank();
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .factor = rank + 1); /* 1 + 2 + 3 + 4 = 10 */
    float x[8], y[3] = {1, 2, 3}, z[2] = {4, 5};
    void *const lists[2] = {y, z};
    const int64_t lengths[2] = {3, 2};
    ls_work *work[2];
    ls_group *half = NULL;
    for (int i = 0; i < 8; i++) {
        x[i] = (float)i;
    }
    CHECK_OK(ls_reduce_scatter(ls_world(), x, x + 2 * rank, 2, LS_FLOAT32, LS_PREMUL_SUM, options,
                               NULL));
    CHECK(x[2 * rank] == 20.0f * (float)rank && x[2 * rank + 1] == 20.0f * (float)rank + 10);
    CHECK_OK(ls_reduce(ls_world(), y, y, 3, LS_FLOAT32, LS_PREMUL_SUM, 2, options, NULL));
    CHECK(rank == 2 ? y[2] == 30 : y[2] == 3);
    CHECK_OK(ls_scan(ls_world(), z, z, 2, LS_FLOAT32, LS_PREMUL_SUM, options, NULL));
    CHECK(z[1] == 2.5f * (float)((rank + 1) * (rank + 2)));
    x[0] = x[1] = y[0] = y[1] = y[2] = z[0] = z[1] = 1;
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 2, LS_FLOAT32, LS_PREMUL_SUM, options, &work[0]));
    CHECK_OK(ls_exscan(ls_world(), y, x + 2, 3, LS_FLOAT32, LS_PREMUL_SUM, options, &work[1]));
    CHECK_OK(ls_work_wait(work[1]));
    CHECK_OK(ls_work_wait(work[0]));
    CHECK(x[1] == 10 && (rank == 0 || x[4] == (float)(rank * (rank + 1) / 2)));
    CHECK_OK(ls_all_reduce_many(ls_world(), lists, lengths, 2, LS_FLOAT32, LS_PREMUL_SUM, options,
                                NULL));
    CHECK(y[2] == 10 && z[1] == 10);
    CHECK_OK(ls_group_split(ls_world(), rank % 2, 0, NULL, &half));
    x[0] = 1;
    CHECK_OK(ls_all_reduce(half, x, x, 1, LS_FLOAT32, LS_PREMUL_SUM, options, NULL));
    CHECK(x[0] == (rank % 2 ? 6 : 4));
    CHECK_OK(ls_group_free(half));
}

/* ---- averages of integers ----------------------------------------------------------------- */

DIST_TEST(averages_of_integers_go_towards_zero, 3)
{
    int32_t x[4] = {-1 - ls_rank(), 1 + ls_rank(), ls_rank() == 0 ? -5 : 0, 7};
    int8_t small[2] = {(int8_t)(ls_rank() == 2 ? -4 : 0), 100}; /* their sum is 300 */
    CHECK_OK(ls_all_reduce(ls_world(), x, x, 4, LS_INT32, LS_AVG, NULL, NULL));
    CHECK(x[0] == -2 && x[1] == 2 && x[2] == -1 && x[3] == 7);
    CHECK_OK(ls_all_reduce(ls_world(), small, small, 2, LS_INT8, LS_AVG, NULL, NULL));
    CHECK(small[0] == -1 && small[1] == 100);
    CHECK_STATUS(ls_all_reduce(ls_world(), small, small, 2, LS_BOOL, LS_AVG, NULL, NULL),
                 LS_ERR_INVALID);
}

/* ---- the user's --------------------------------------------------------------------------- */

/* x -> a x + b modulo 2^32, a in the upper half: first the left map, then the right one. */
static void compose(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    int64_t *left = into;
    const int64_t *next = right;
    *(int *)arg += dtype != LS_INT64;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t l = (uint64_t)left[i], r = (uint64_t)next[i];
        const uint32_t a = (uint32_t)(l >> 32) * (uint32_t)(r >> 32);
        const uint32_t b = (uint32_t)(r >> 32) * (uint32_t)l + (uint32_t)r;
        left[i] = (int64_t)((uint64_t)a << 32 | b);
    }
}

static int64_t map_of(int rank, int64_t i)
{
    const uint64_t mixed =
        ((uint64_t)rank * 1000003u + (uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (int64_t)(mixed | UINT64_C(1) << 32);
}

static void check_composed(const call *c, memory *m, int kind)
{
    const part p = part_of(c);
    int wrong = 0;
    int64_t *in = m->in[kind], *out = m->out[kind];
    for (int64_t i = 0; i < inputs_of(c); i++) {
        in[i] = map_of(ls_rank(), i);
    }
    if (c->operation == LS__OP_ALL_REDUCE) {
        memcpy(out, in, (size_t)c->count * sizeof *in);
    }
    CHECK_OK(run(c, in, out));
    for (int64_t i = 0; p.is && i < c->count; i++) {
        int64_t want = map_of(0, p.first + i);
        for (int r = 1; r < p.ranks; r++) {
            const int64_t next = map_of(r, p.first + i);
            compose(&want, &next, 1, LS_INT64, &wrong);
        }
        CHECK(out[i] == want);
    }
}

/* By every program that keeps the order, and as chosen. */
static void every_composition(void)
{
    memory m = memory_new();
    int others = 0, count = 0;
    ls_reduce_op op;
    const ls__algorithm *const *all = ls__algorithms(&count);
    CHECK_OK(ls_reduce_op_new(compose, &others, "compose", &op));
    for (int o = 0; o < REDUCING; o++) {
        for (int k = 0; k < COUNTS; k++) {
            for (int a = -1; a < count; a++) {
                if (counts[k] == MOST && ls_world_size() > 3) {
                    break;
                }
                if (a >= 0 && (all[a]->operation != reducing[o] || !all[a]->exact ||
                               (ls_world()->has_remote && !(all[a]->memories & LS__IN_MESSAGES)))) {
                    continue;
                }
                const call c = {.operation = reducing[o],
                                .dtype = LS_INT64,
                                .op = op,
                                .count = counts[k],
                                .root = (k + a + 1) % ls_world_size(),
                                .options = LS_OPTIONS(ls_collective_options,
                                                      .algorithm = a < 0 ? NULL : all[a]->name)};
                check_composed(&c, &m, k % 2);
            }
        }
    }
    CHECK_INT(others, 0);
    CHECK_OK(ls_reduce_op_free(op));
    memory_free(&m);
}

DIST_TEST(two_ranks_keep_their_order, 2)
{
    every_composition();
}

DIST_TEST(three_ranks_keep_their_order, 3)
{
    every_composition();
}

DIST_TEST(seven_ranks_keep_their_order, 7)
{
    every_composition();
}

DIST_TEST(eight_ranks_keep_their_order, 8)
{
    every_composition();
}

#define LARGER(type)                                                                               \
    for (int64_t i = 0; i < count; i++) {                                                          \
        ((type *)into)[i] = ((type *)into)[i] > ((const type *)right)[i]                           \
                                ? ((type *)into)[i]                                                \
                                : ((const type *)right)[i];                                        \
    }

static void larger(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    *(unsigned *)arg |= 1u << dtype;
    switch (dtype) {
    case LS_FLOAT32:
        LARGER(float);
        break;
    case LS_FLOAT64:
        LARGER(double);
        break;
    case LS_INT8:
        LARGER(int8_t);
        break;
    case LS_INT32:
        LARGER(int32_t);
        break;
    case LS_INT64:
        LARGER(int64_t);
        break;
    case LS_INT16:
        LARGER(int16_t);
        break;
    case LS_UINT16:
        LARGER(uint16_t);
        break;
    case LS_UINT32:
        LARGER(uint32_t);
        break;
    case LS_UINT64:
        LARGER(uint64_t);
        break;
    default:
        LARGER(uint8_t);
        break;
    }
}

DIST_TEST(every_dtype_has_operators_of_the_user, 4)
{
    memory m = memory_new();
    unsigned seen = 0;
    ls_reduce_op op;
    CHECK_OK(ls_reduce_op_new(larger, &seen, "larger", &op));
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        const size_t size = ls_dtype_size((ls_dtype)d);
        for (int k = 1; k < COUNTS - 1; k++) {
            unsigned char *mine = m.out[k % 2], *theirs = m.in[k % 2];
            for (int64_t i = 0; i < counts[k]; i++) {
                put_value(mine, i, (ls_dtype)d, value_of(ls_rank(), i, (ls_dtype)d, LS_MAX));
            }
            memcpy(theirs, mine, (size_t)counts[k] * size);
            CHECK_OK(ls_all_reduce(ls_world(), mine, mine, counts[k], (ls_dtype)d, op, NULL, NULL));
            CHECK_OK(ls_all_reduce(ls_world(), theirs, theirs, counts[k], (ls_dtype)d, LS_MAX, NULL,
                                   NULL));
            CHECK(memcmp(mine, theirs, (size_t)counts[k] * size) == 0);
        }
    }
    CHECK_OK(ls_all_reduce(ls_world(), &seen, &seen, 1, LS_INT32, LS_BOR, NULL,
                           NULL));                               /* by one at least */
    CHECK((seen & (1u << LS_FLOAT16 | 1u << LS_BFLOAT16)) == 0); /* they come as float32 */
    CHECK((seen & 1u << LS_BOOL) != 0 && (seen & 1u << LS_FLOAT32) != 0);
    CHECK_OK(ls_reduce_op_free(op));
    memory_free(&m);
}

DIST_TEST(operators_are_compared_by_name, 2)
{
    unsigned seen = 0;
    int x = 1;
    ls_reduce_op first, op;
    ls_group *group = NULL;
    if (ls_rank() == 1) { /* the same operator has another value here */
        CHECK_OK(ls_reduce_op_new(larger, &seen, "unused", &first));
    }
    CHECK_OK(ls_reduce_op_new(larger, &seen, "mine", &op));
    x = ls_rank();
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, op, NULL, NULL));
    CHECK_INT(x, 1);
    CHECK_OK(ls_reduce_op_free(op));
    CHECK_OK(ls_reduce_op_new(larger, &seen, ls_rank() == 0 ? "left" : "right", &op));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "g", &group));
    CHECK_STATUS(ls_all_reduce(group, &x, &x, 1, LS_INT32, op, NULL, NULL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "user-defined \"left\"");
    CHECK_CONTAINS(ls_error_message(), "user-defined \"right\"");
    CHECK_CONTAINS(ls_error_message(), "reduce-op");
}

/* `larger`, which on rank 2 says that it cannot: whatever it has written there is nobody's. */
static void reluctant(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    unsigned *calls = arg;
    if (ls_rank() != 2) {
        unsigned seen = 0;
        larger(into, right, count, dtype, &seen);
        return;
    }
    (*calls)++;
    memset(into, 0x7f, (size_t)count * ls_dtype_size(dtype));
    CHECK_OK(ls_reduce_op_fail("rank 2 does not like it"));
    CHECK_OK(ls_reduce_op_fail("a second cause"));
    CHECK_STATUS(ls_barrier(ls_world(), NULL, NULL), LS_ERR_STATE); /* it must not wait */
}

static void check_reluctance(ls_reduce_op op, const unsigned *calls, int64_t count,
                             const char *algorithm)
{
    static int32_t x[MOST];
    ls_group *group = NULL;
    const unsigned before = *calls;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "tried", &group));
    for (int64_t i = 0; i < count; i++) {
        x[i] = ls_rank() + (int32_t)(i % 7);
    }
    const ls_status status =
        ls_all_reduce(group, x, x, count, LS_INT32, op,
                      LS_OPTIONS(ls_collective_options, .algorithm = algorithm), NULL);
    CHECK(status == LS_OK || status == LS_ERR_ABORTED);
    for (int64_t i = 0; i < count && status == LS_OK; i++) { /* then it did not need rank 2's */
        CHECK_INT(x[i], ls_world_size() - 1 + (int32_t)(i % 7));
    }
    uint32_t called = *calls > before;
    CHECK_OK(ls_all_reduce(ls_world(), &called, &called, 1, LS_INT32, LS_MAX, NULL, NULL));
    CHECK(called || count < MOST); /* of few elements rank 2 may have none to combine */
    if (!called) {
        CHECK_OK(status);
        return;
    }
    CHECK_STATUS(ls_barrier(group, NULL, NULL), LS_ERR_ABORTED);
    CHECK_CONTAINS(ls_error_message(), "the operator \"reluctant\" failed on rank 2: "
                                       "rank 2 does not like it");
}

DIST_TEST(an_operator_that_cannot_fails_its_group_on_every_rank, 4)
{
    static const char *const algorithms[] = {NULL, "direct", "recursive_doubling",
                                             "halving_doubling", "tree_stages"};
    unsigned calls = 0;
    ls_reduce_op op;
    CHECK_OK(ls_reduce_op_new(reluctant, &calls, "reluctant", &op));
    CHECK_STATUS(ls_reduce_op_fail("not within one"), LS_ERR_STATE);
    for (int a = 0; a < (int)(sizeof algorithms / sizeof *algorithms); a++) {
        for (int k = 1; k < COUNTS; k++) {
            check_reluctance(op, &calls, counts[k] < 4 ? 4 : counts[k], algorithms[a]);
        }
    }
    CHECK_OK(ls_reduce_op_free(op));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(what_is_no_operator_is_refused, 2)
{
    unsigned seen = 0;
    int32_t x = 1;
    ls_reduce_op op;
    CHECK_OK(ls_reduce_op_new(larger, &seen, "larger", &op));
    CHECK_STATUS(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, op,
                               LS_OPTIONS(ls_collective_options, .algorithm = "ring"), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "in the order of ranks");
    CHECK_STATUS(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_PREMUL_SUM,
                               LS_OPTIONS(ls_collective_options, .factor = 0.5), NULL),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "multiplied by 0.5");
    CHECK_INT(x, 1);
    CHECK_OK(ls_reduce_op_free(op));
    CHECK_STATUS(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, op, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_reduce_op_free(op), LS_ERR_INVALID);
    CHECK_STATUS(ls_reduce_op_free(LS_SUM), LS_ERR_INVALID);
    CHECK_STATUS(ls_reduce_op_new(larger, NULL, "a name that is much too long", &op),
                 LS_ERR_INVALID);
    for (int i = 0; i < 64; i++) {
        CHECK_OK(ls_reduce_op_new(larger, &seen, "one of many", &op));
    }
    CHECK_STATUS(ls_reduce_op_new(larger, &seen, "one too many", &op), LS_ERR_LIMIT);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

TEST_MAIN
