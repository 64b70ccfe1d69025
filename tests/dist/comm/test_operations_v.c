/* SPDX-License-Identifier: Apache-2.0 */
/* The v-variants with real processes, in groups of 1 to 8 ranks: blocks of unequal lengths, some
 * empty, packed or with gaps and backwards, in place or not, every dtype, against images built by
 * plain loops, gaps and all. And counts that differ: the entry and both sides are named. */
#include "says.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

#include "comm/algorithm/registry.h"
#include "comm/core/group.h"
#include "in_groups.h"
#include "values.h"

#define LENGTHS 6

typedef struct shape {
    ls__operation operation;
    const char *algorithm;
    int lengths; /* which table */
    ls_dtype dtype;
    ls_reduce_op op;
    int root;
    bool in_place;
} shape;

/* Elements from rank i to rank j (gather-like operations: of rank i, j = 0). Symmetric: all_to_all
 * can be in place. */
static int64_t length_of(int lengths, int i, int j)
{
    switch (lengths) {
    case 0:
        return 0;
    case 1:
        return (i + j) % 4;
    case 2:
        return 17 * ((i + j + 1) % 3);
    case 3:
        return i == 1 || j == 1 ? 4099 : 0;
    case 4:
        return 1021 * ((i + j) % 2) + (i == j);
    default:
        return 1;
    }
}

typedef struct layout {
    int64_t count[RANKS], offset[RANKS], end;
    const int64_t *offsets; /* NULL: packed */
} layout;

/* Of what rank `rank` has on its side with blocks. With odd tables the blocks lie backwards, with
 * gaps between. */
static void lay_out(const world *w, const shape *s, layout *l)
{
    const bool both = s->operation == LS__OP_ALL_TO_ALL_V;
    *l = (layout){0};
    for (int k = 0; k < w->n; k++) {
        const int r = s->lengths % 2 == 0 ? k : w->n - 1 - k;
        l->count[r] = both ? length_of(s->lengths, w->rank, r) : length_of(s->lengths, r, 0);
        l->offset[r] = l->end;
        l->end += l->count[r] + (s->lengths % 2 == 0 ? 0 : 3);
    }
    l->offsets = s->lengths % 2 == 0 ? NULL : l->offset;
}

static int64_t own_count(const world *w, const shape *s)
{
    return length_of(s->lengths, w->rank, 0);
}

static ls_status call(const world *w, const shape *s, const layout *l, void *in, void *out)
{
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .algorithm = s->algorithm);
    const int64_t own = own_count(w, s);
    const bool root = w->rank == s->root;
    switch (s->operation) {
    case LS__OP_ALL_TO_ALL_V:
        return ls_all_to_all_v(w->group, in, l->count, l->offsets, out, l->count, l->offsets,
                               s->dtype, options, NULL);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(w->group, in, own, out, l->count, l->offsets, s->dtype, options,
                               NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(w->group, in, l->count, l->offsets, out, s->dtype, s->op,
                                   options, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(w->group, in, own, root ? out : NULL, root ? l->count : NULL,
                           root ? l->offsets : NULL, s->dtype, s->root, options, NULL);
    default:
        return ls_scatter_v(w->group, root ? in : NULL, root ? l->count : NULL,
                            root ? l->offsets : NULL, out, own, s->dtype, s->root, options, NULL);
    }
}

static int element_of(const shape *s, int from, int to, int64_t i)
{
    return value_of(from, i + 3 * to, s->dtype, s->op);
}

/* Blocks of this rank's input, or the one it has. */
static void put_input(const world *w, const shape *s, const layout *l, unsigned char *in)
{
    const bool blocks = ls__operation_has_blocks(s->operation, true);
    for (int r = 0; r < (blocks ? w->n : 1); r++) {
        const int64_t count = blocks ? l->count[r] : own_count(w, s);
        unsigned char *at = in + (size_t)(blocks ? l->offset[r] : 0) * ls_dtype_size(s->dtype);
        for (int64_t i = 0; i < values_own(count); i++) {
            put_value(at, i, s->dtype, element_of(s, w->rank, blocks ? r : 0, i));
        }
        values_repeat(at, count, ls_dtype_size(s->dtype));
    }
}

static void put_output(const world *w, const shape *s, const layout *l, unsigned char *out)
{
    const bool blocks = ls__operation_has_blocks(s->operation, false);
    const bool both = s->operation == LS__OP_ALL_TO_ALL_V;
    for (int r = 0; r < (blocks ? w->n : 1); r++) {
        const int64_t count = blocks ? l->count[r] : own_count(w, s);
        unsigned char *at = out + (size_t)(blocks ? l->offset[r] : 0) * ls_dtype_size(s->dtype);
        for (int64_t i = 0; i < values_own(count); i++) {
            const int value = blocks ? element_of(s, r, both ? w->rank : 0, i)
                              : s->operation == LS__OP_SCATTER_V
                                  ? element_of(s, s->root, w->rank, i)
                                  : reduced_of(w->n, i + 3 * w->rank, s->dtype, s->op);
            put_value(at, i, s->dtype, value);
        }
        values_repeat(at, count, ls_dtype_size(s->dtype));
    }
}

static void check_shape(const world *w, shape s)
{
    const bool rooted = ls__operation_has_root(s.operation), root = w->rank == s.root;
    const bool has_output = s.operation != LS__OP_GATHER_V || root;
    const bool long_in = ls__operation_has_blocks(s.operation, true);
    const bool long_out = ls__operation_has_blocks(s.operation, false);
    layout l;
    lay_out(w, &s, &l);
    const size_t element = ls_dtype_size(s.dtype), bytes = ((size_t)l.end + GUARD) * element;
    const size_t block = (size_t)l.offset[w->rank] * element;
    unsigned char *in = w->in[s.lengths % 2], *out = w->out[(s.lengths + w->rank) % 2];
    unsigned char *want = w->out[(s.lengths + w->rank + 1) % 2];
    if (s.in_place && (!rooted || root)) {
        in = long_in ? in : out + block;
        out = long_in ? in + (long_out ? 0 : block) : out;
    }
    memset(long_in && s.in_place ? in : out, 0xa5, bytes);
    put_input(w, &s, &l, in);
    memcpy(want, out, (size_t)(long_out ? l.end : own_count(w, &s)) * element + GUARD);
    if (has_output) {
        put_output(w, &s, &l, want);
    }
    CHECK_OK(call(w, &s, &l, in, out));
    const bool rest = !(s.in_place && s.operation == LS__OP_REDUCE_SCATTER_V);
    if (memcmp(out, want,
               (size_t)(long_out ? l.end : own_count(w, &s)) * element + (rest ? GUARD : 0)) != 0) {
        test_fail(__FILE__, __LINE__, "%s %s of %s %s on %d ranks, table %d, root %d, in place %d",
                  ls__operation_name(s.operation), s.algorithm ? s.algorithm : "(chosen)",
                  ls_dtype_name(s.dtype), ls_reduce_op_name(s.op), w->n, s.lengths, s.root,
                  s.in_place);
    }
}

static void every_table(const world *w, shape s)
{
    for (s.lengths = 0; s.lengths < LENGTHS; s.lengths++) {
        s.root = s.lengths % w->n;
        s.op = ls__operation_reduces(s.operation) ? LS_AVG : LS_SUM;
        s.in_place = false;
        check_shape(w, s);
        s.in_place = true;
        check_shape(w, s);
    }
}

static void every_type(const world *w, shape s)
{
    for (int d = 0; d < LS_DTYPE_COUNT; d++) {
        for (int op = 0; op <= LS_BXOR; op++) {
            const bool sum_of_bools = d == LS_BOOL && (op == LS_SUM || op == LS_PRODUCT);
            s.dtype = (ls_dtype)d;
            s.op = (ls_reduce_op)op;
            s.in_place = (d + op) % 2 == 1;
            s.lengths = (d + op) % 2 == 0 ? 2 : 1;
            if (ls__operation_reduces(s.operation)
                    ? ls__reduce_supported(s.dtype, s.op) && !sum_of_bools
                    : s.op == LS_SUM) {
                check_shape(w, s);
            }
        }
    }
}

/* As chosen; staged or registered even where blocks could be packed; by messages. */
static void every_way(const world *w, shape s)
{
    static const int ways[] = {0, LS__MEMORY_REGISTERED, LS__MEMORY_STAGED, LS__MEMORY_MESSAGES};
    for (int i = 0; i < 4; i++) {
        w->group->comm->forced = ways[i];
        every_table(w, s);
    }
    w->group->comm->forced = 0;
}

static void everything(const world *w)
{
    int count = 0;
    const ls__algorithm *const *algorithms = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        shape s = {.operation = algorithms[a]->operation};
        if (ls__operation_is_v(s.operation)) {
            every_way(w, s);
            s.algorithm = algorithms[a]->name;
            every_table(w, s);
            every_type(w, s);
        }
    }
}

DIST_TEST(blocks_of_every_length_and_type_arrive_in_groups_of_1_to_8, RANKS)
{
    in_every_group(everything);
}

/* One rank has nearly everything; then all have the same. */
static void check_large(int32_t *in, int32_t *out)
{
    enum { MOST = 1300001 };
    static const int64_t counts[] = {7, MOST, 0}, same[] = {400001, 400001, 400001};
    const int rank = ls_rank();
    for (int32_t i = 0; i < 2 * MOST; i++) {
        in[i] = rank * 3 + i;
        out[i] = -1;
    }
    CHECK_OK(
        ls_all_gather_v(ls_world(), in, counts[rank], out, counts, NULL, LS_INT32, NULL, NULL));
    CHECK(out[6] == 6 && out[7] == 3 && out[MOST + 6] == MOST + 2 && out[MOST + 7] == -1);
    CHECK_OK(ls_reduce_scatter_v(ls_world(), in, counts, NULL, out, LS_INT32, LS_SUM, NULL, NULL));
    CHECK(rank != 1 || (out[0] == 9 + 21 && out[MOST - 1] == 9 + 3 * (MOST + 6)));
    CHECK_OK(ls_gather_v(ls_world(), in, counts[rank], out, counts, NULL, LS_INT32, 2, NULL, NULL));
    CHECK(rank != 2 || (out[6] == 6 && out[7] == 3 && out[MOST + 6] == MOST + 2));
    CHECK_OK(
        ls_scatter_v(ls_world(), in, counts, NULL, out, counts[rank], LS_INT32, 0, NULL, NULL));
    CHECK(rank != 1 || (out[0] == 7 && out[MOST - 1] == MOST + 6));
    CHECK_OK(ls_all_to_all_v(ls_world(), in, same, NULL, out, same, NULL, LS_INT32, NULL, NULL));
    for (int r = 0; r < 3; r++) {
        CHECK(out[r * 400001 + 400000] == r * 3 + rank * 400001 + 400000);
    }
    CHECK_OK(ls_all_to_all_v(ls_world(), in, same, NULL, in, same, NULL, LS_INT32, NULL, NULL));
    CHECK(memcmp(in, out, sizeof *in * 1200003) == 0);
}

/* In slices, in place, and where some ranks' memory is registered and others' is not. */
DIST_TEST(large_blocks_arrive_whole_from_memory_of_each_kind, 3)
{
    const size_t bytes = (size_t)12 << 20;
    int32_t *own = malloc(2 * bytes), *shared = NULL;
    CHECK_OK(ls_group_alloc(ls_world(), 2 * bytes, (void **)&shared));
    CHECK(own != NULL);
    for (int i = 0; i < 4; i++) {
        int32_t *in = i == 0 || (i == 2 && ls_rank() == 1) ? own : shared;
        check_large(in, (in == own ? shared : own) + (i == 3 ? 0 : bytes / sizeof *in));
    }
    CHECK_OK(ls_group_dealloc(ls_world(), shared));
    free(own);
}

/* What rank `rank` gives at place i; sums of four are exact. */
static float given(int rank, int64_t i)
{
    return (float)(100000 * rank + (int)i);
}

/* out[0,count) is what `from` gives from place `first` on; then it is wiped. */
static void check_given(float *out, int64_t count, int from, int64_t first)
{
    for (int64_t i = 0; i < count; i++) {
        if (out[i] != given(from, first + i)) {
            test_fail(__FILE__, __LINE__, "element %lld of rank %d's block: got %g, want %g",
                      (long long)i, from, (double)out[i], (double)given(from, first + i));
        }
        out[i] = -1.0f;
    }
}

/* Every block of `all` is what its rank gives from the beginning. */
static void check_blocks(float *out, const int64_t *all)
{
    for (int r = 0; r < 4; out += all[r++]) {
        check_given(out, all[r], r, 0);
    }
}

static void exchange_blocks(const float *in, float *out, const int64_t *all)
{
    static const int64_t one[] = {1, 1, 1, 1};
    const int rank = ls_rank();
    int64_t first = 0; /* place of this rank's block */
    for (int r = 0; r < rank; r++) {
        first += all[r];
    }
    CHECK_OK(ls_all_gather_v(ls_world(), in, all[rank], out, all, NULL, LS_FLOAT32, NULL, NULL));
    check_blocks(out, all);
    CHECK_OK(ls_reduce_scatter_v(ls_world(), in, all, NULL, out, LS_FLOAT32, LS_AVG, NULL, NULL));
    for (int64_t i = 0; i < all[rank]; i++) {
        out[i] -= 150000.0f; /* the mean of the ranks' beginnings */
    }
    check_given(out, all[rank], 0, first);
    CHECK_OK(ls_gather_v(ls_world(), in, all[rank], out, all, NULL, LS_FLOAT32, 1, NULL, NULL));
    if (rank == 1) {
        check_blocks(out, all);
    }
    CHECK_OK(ls_scatter_v(ls_world(), in, all, NULL, out, all[rank], LS_FLOAT32, 1, NULL, NULL));
    check_given(out, all[rank], 1, first);
    CHECK_OK(ls_all_to_all_v(ls_world(), in, one, NULL, out, one, NULL, LS_FLOAT32, NULL, NULL));
    for (int r = 0; r < 4; r++) {
        check_given(out + r, 1, r, rank);
    }
}

/* On one host no byte is sent: blocks are read where they lie. */
DIST_TEST(ranks_on_one_host_exchange_unequal_blocks_without_messages, 4)
{
    static const int64_t unequal[] = {5000, 0, 3, 20000}, one[] = {1, 1, 1, 1};
    float *in = calloc(30000, sizeof *in), *out = calloc(30000, sizeof *out);
    ls_counters c = {.size = sizeof c};
    CHECK(in != NULL && out != NULL);
    for (int64_t i = 0; i < 30000; i++) {
        in[i] = given(ls_rank(), i);
    }
    exchange_blocks(in, out, unequal);
    exchange_blocks(in, out, one);
    CHECK_OK(ls_group_get_counters(ls_world(), &c));
    CHECK_INT(c.operations, 10);
    CHECK_INT(c.bytes_sent > 0, ls_world()->has_remote);
    CHECK(c.bytes_received > 0);
    free(in);
    free(out);
}

/* ---- counts that differ ------------------------------------------------------------------- */

typedef struct wrong {
    const char *name;
    ls__operation operation;
    int64_t usual[2][4], odd[2][4]; /* counts, in and out; `odd` on rank 1 (rooted: on rank 2) */
    const char *says[2];
} wrong;

static const wrong wrongs[] = {
    {"one entry",
     LS__OP_ALL_GATHER_V,
     {{0}, {3, 1, 5, 2}},
     {{0}, {3, 1, 6, 2}},
     {"the same counts: counts[2] is ", "6 on rank 1"}},
    {"two entries",
     LS__OP_REDUCE_SCATTER_V,
     {{4, 7, 1, 1}},
     {{7, 4, 1, 1}},
     {"the same counts: counts[0] is ", "7 on rank 1"}},
    {"three entries",
     LS__OP_REDUCE_SCATTER_V,
     {{4, 7, 1, 1}},
     {{5, 8, 2, 1}},
     {SAYS(": more than two of the counts differ"), ""}},
    {"what the root expects",
     LS__OP_GATHER_V,
     {{0}, {3, 1, 7, 2}},
     {{0}, {3, 1, 9, 2}},
     {"rank 2 sends 9 elements to rank 0, which expects 7", "give"}},
    {"what the root gives",
     LS__OP_SCATTER_V,
     {{3, 1, 9, 2}},
     {{3, 1, 7, 2}},
     {"rank 0 sends 9 elements to rank 2, which expects 7", "the same count for this block"}},
    {"what two ranks exchange",
     LS__OP_ALL_TO_ALL_V,
     {{2, 2, 2, 2}, {2, 2, 2, 2}},
     {{2, 2, 2, 5}, {2, 2, 2, 2}},
     {"rank 1 sends 5 elements to rank 3, which expects 2", "disagrees on a block"}},
};

static ls_status make_wrong(const wrong *x, ls_group *g, float *in, float *out)
{
    const bool rooted = ls__operation_has_root(x->operation);
    const int64_t(*counts)[4] = ls_rank() == (rooted ? 2 : 1) ? x->odd : x->usual;
    switch (x->operation) {
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(g, in, counts[1][ls_rank()], out, counts[1], NULL, LS_FLOAT32, NULL,
                               NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(g, in, counts[0], NULL, out, LS_FLOAT32, LS_SUM, NULL, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(g, in, counts[1][ls_rank()], out, counts[1], NULL, LS_FLOAT32, 0, NULL,
                           NULL);
    case LS__OP_SCATTER_V:
        return ls_scatter_v(g, in, counts[0], NULL, out, counts[0][ls_rank()], LS_FLOAT32, 0, NULL,
                            NULL);
    default:
        return ls_all_to_all_v(g, in, counts[0], NULL, out, counts[1], NULL, LS_FLOAT32, NULL,
                               NULL);
    }
}

DIST_TEST(a_count_that_differs_is_named_on_every_rank_with_both_sides, 4)
{
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        const wrong *x = &wrongs[i];
        ls_group *g = NULL;
        float in[32] = {0}, out[32] = {0};
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, x->name, &g));
        ls_site_set("row.c", 100 + ls_rank());
        const ls_status status = make_wrong(x, g, in, out);
        CHECK(status == LS_OK || status == LS_ERR_MISMATCH);
        /* Who had sent all it had to may be through before the receiver has looked. */
        CHECK_STATUS(ls_barrier(g, NULL, NULL), LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(), x->says[0]);
        CHECK_CONTAINS(ls_error_message(), x->says[1]);
        CHECK_CONTAINS(ls_error_message(), " at row.c:10");
        (void)ls_group_free(g);
    }
    float x[4] = {0}, y[16] = {0};
    ls_group *g = NULL;
    const int64_t counts[] = {1, 1, 1, 1};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "other", &g));
    const ls_status status =
        ls_rank() == 3 ? ls_all_gather(g, x, y, 1, LS_FLOAT32, NULL, NULL)
                       : ls_all_gather_v(g, x, 1, y, counts, NULL, LS_FLOAT32, NULL, NULL);
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "calls all_gather_v float32[4]");
    (void)ls_group_free(g);
}

/* Counts must agree, but each rank may lay out its blocks as it likes. */
DIST_TEST(ranks_may_place_the_blocks_at_different_offsets, 2)
{
    const int64_t counts[2] = {1, 2}, offsets[2][2] = {{0, 1}, {2, 0}};
    const int me = ls_rank();
    const float in[2] = {(float)(10 * me), (float)(10 * me + 1)};
    float out[3] = {-1, -1, -1};
    CHECK_OK(ls_all_gather_v(ls_world(), in, counts[me], out, counts, offsets[me], LS_FLOAT32, NULL,
                             NULL));
    CHECK(out[offsets[me][0]] == 0);
    CHECK(out[offsets[me][1]] == 10 && out[offsets[me][1] + 1] == 11);
}

DIST_TEST(a_steady_state_of_unequal_blocks_makes_no_new_handles, 2)
{
    const int64_t counts[] = {3, 1};
    float in[4] = {1, 2, 3, 4}, out[4] = {0};
    uint64_t made = 0;
    for (int i = 0; i < 200; i++) {
        CHECK_OK(ls_all_gather_v(ls_world(), in, counts[ls_rank()], out, counts, NULL, LS_FLOAT32,
                                 NULL, NULL));
        CHECK_OK(
            ls_reduce_scatter_v(ls_world(), in, counts, NULL, out, LS_FLOAT32, LS_SUM, NULL, NULL));
        made = i == 10 ? ls_world()->comm->pool.made : made;
    }
    CHECK_INT(ls_world()->comm->pool.made, made);
}

TEST_MAIN
