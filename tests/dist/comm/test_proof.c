/* SPDX-License-Identifier: Apache-2.0 */
/* What the issue calls proven, with real processes: every algorithm in groups of 1 to 9, 12 and 16
 * ranks, over sizes, dtypes, operators, in place or not, private and registered memory, in the
 * world's order and in reverse. Integers as numbers of each dtype, compared with memcmp to a plain
 * loop. And what the engine counts, messages and bytes, is what its program says, exactly. (Blocks
 * of unequal lengths: test_operations_v.c; here those operations have equal ones.)
 *
 * A quick run takes a sample in which every two values of any two of these occur together: rows u,
 * v of a plane over a prime p, the level of factor f being (u + f v) mod p. Of two factors each
 * pair of levels stands in one row. TEST_LONG=1 runs every algorithm with every size, dtype,
 * operator, in place and not, in either order of ranks or kind of memory in turn: ten minutes a
 * transport on a busy machine of two cores. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>

#include <lockstep/comm.h>

#include "base/env.h"
#include "comm/algorithm/registry.h"
#include "comm/core/group.h"
#include "values.h"

TEST_SETTING(tune, "LOCKSTEP_TUNE", "off") /* what is counted here is the operations' own */

#define ROOM ((size_t)18 << 20)
#define PERIOD 15 /* of the values along a buffer */
#define GUARD 64
#define OPS 10 /* those of the enum, and one of the user's, which keeps the order of ranks */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true /* the long form would take hours, and has the same code paths */
#else
#define SANITIZED false
#endif

static const int sizes_of_groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16};
#define GROUPS ((int)(sizeof sizes_of_groups / sizeof *sizes_of_groups))

typedef struct world {
    ls_group *group[2]; /* in the world's order, and in reverse */
    int n;
    bool quick;
    unsigned char *in[2], *out[2]; /* private, registered */
} world;

typedef struct shape {
    const ls__algorithm *algorithm;
    ls__operation operation;
    ls_group *group;
    int n, rank, root;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    bool registered, in_place;
} shape;

/* ---- values ------------------------------------------------------------------------------- */

static int contribution(const shape *s, int rank, int64_t i)
{
    const int j = (int)(i % PERIOD);
    if (s->dtype == LS_BOOL) {
        return (rank + j) % 2;
    }
    if (s->op == LS_PRODUCT) {
        return rank == j % 3 ? 2 : 1;
    }
    if (s->op == LS_REDUCE_OP_USER) {
        return 5 + (7 * rank + j) % 20;
    }
    if (s->op == LS_PREMUL_SUM) { /* not 0: of a negative factor it is -0 */
        return rank % 4 + j % 5 + 1;
    }
    if (s->op == LS_AVG && s->dtype == LS_INT8) { /* sums that it cannot hold */
        return j % 2 == 0 ? 127 - rank % 3 : rank % 5 - 128;
    }
    return s->op == LS_AVG ? 2 * rank + j % 5 + 1 : rank % 4 + j % 5; /* 16 of them: at most 112 */
}

/* Of a premultiplied sum. */
static int factor(const shape *s, int rank)
{
    return s->op == LS_PREMUL_SUM ? rank % 4 - 1 : 1;
}

/* 5 a + b, a from 1 to 4 and b from 0 to 4, is the map x -> a x + b modulo 5: first the left map,
 * then the right one. The order counts. Bools are just the left one. */
static int then(ls_dtype dtype, int left, int right)
{
    const int a = left / 5 * (right / 5) % 5, b = (left % 5 * (right / 5) + right) % 5;
    return dtype == LS_BOOL ? left : 5 * a + b;
}

#define COMPOSE(type)                                                                              \
    for (int64_t i = 0; i < count; i++) {                                                          \
        const int left = (int)((type *)into)[i], next = (int)((const type *)right)[i];             \
        ((type *)into)[i] = (type)then(dtype, left, next);                                         \
    }

static void compose(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)arg;
    switch (dtype) {
    case LS_FLOAT32: /* and those of 16 bits */
        COMPOSE(float)
        break;
    case LS_FLOAT64:
        COMPOSE(double)
        break;
    case LS_INT16:
    case LS_UINT16:
        COMPOSE(uint16_t)
        break;
    case LS_INT32:
    case LS_UINT32:
        COMPOSE(uint32_t)
        break;
    case LS_INT64:
    case LS_UINT64:
        COMPOSE(uint64_t)
        break;
    default:
        COMPOSE(uint8_t)
        break;
    }
}

static int combined(const shape *s, int ranks, int64_t i)
{
    int result = factor(s, 0) * contribution(s, 0, i);
    for (int r = 1; r < ranks; r++) {
        const int v = factor(s, r) * contribution(s, r, i);
        result = s->op == LS_REDUCE_OP_USER ? then(s->dtype, result, v)
                 : s->op == LS_PRODUCT      ? result * v
                 : s->op == LS_MIN          ? (v < result ? v : result)
                 : s->op == LS_MAX          ? (v > result ? v : result)
                 : s->op == LS_BAND         ? (result & v)
                 : s->op == LS_BOR          ? (result | v)
                 : s->op == LS_BXOR         ? (result ^ v)
                                            : result + v;
    }
    if (s->op == LS_AVG) {
        return result / ranks;
    }
    return s->dtype == LS_BOOL ? result != 0 : result;
}

/* What stands at out[i], which is in block `block` of the result where it has blocks. */
static int wanted(const shape *s, int64_t i)
{
    const int64_t c = s->count > 0 ? s->count : 1;
    switch (ls__operation_plain(s->operation)) {
    case LS__OP_REDUCE_SCATTER:
        return combined(s, s->n, s->rank * c + i);
    case LS__OP_ALL_GATHER:
    case LS__OP_GATHER:
        return contribution(s, (int)(i / c), i % c);
    case LS__OP_ALL_TO_ALL:
        return contribution(s, (int)(i / c), s->rank * c + i % c);
    case LS__OP_SCATTER:
        return contribution(s, s->root, s->rank * c + i);
    case LS__OP_BROADCAST:
        return contribution(s, s->root, i);
    case LS__OP_SCAN:
        return combined(s, s->rank + 1, i);
    case LS__OP_EXSCAN:
        return combined(s, s->rank, i);
    default:
        return combined(s, s->n, i);
    }
}

static bool compare(const shape *s, const unsigned char *out, int64_t from, int64_t count)
{
    const size_t element = ls_dtype_size(s->dtype);
    unsigned char want[PERIOD * 8];
    for (int64_t j = 0; j < PERIOD && j < count; j++) {
        put_value(want, j, s->dtype, wanted(s, from + j));
    }
    for (int64_t i = 0; i < count; i += PERIOD) {
        const int64_t some = count - i < PERIOD ? count - i : PERIOD;
        if (memcmp(out + (size_t)(from + i) * element, want, (size_t)some * element) != 0) {
            return false;
        }
    }
    return true;
}

static void fill(const shape *s, unsigned char *in, int64_t count)
{
    const size_t element = ls_dtype_size(s->dtype);
    unsigned char values[PERIOD * 8];
    for (int64_t j = 0; j < PERIOD; j++) {
        put_value(values, j, s->dtype, contribution(s, s->rank, j));
    }
    for (int64_t i = 0; i < count; i += PERIOD) {
        const int64_t some = count - i < PERIOD ? count - i : PERIOD;
        memcpy(in + (size_t)i * element, values, (size_t)some * element);
    }
}

/* ---- one operation ------------------------------------------------------------------------ */

static ls_status call_v(const shape *s, void *in, void *out, const ls_collective_options *o)
{
    const ls_dtype t = s->dtype;
    int64_t c[16];
    for (int r = 0; r < 16; r++) {
        c[r] = s->count;
    }
    switch (s->operation) {
    case LS__OP_ALL_TO_ALL_V:
        return ls_all_to_all_v(s->group, in, c, NULL, out, c, NULL, t, o, NULL);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(s->group, in, s->count, out, c, NULL, t, o, NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(s->group, in, c, NULL, out, t, s->op, o, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(s->group, in, s->count, out, c, NULL, t, s->root, o, NULL);
    default:
        return ls_scatter_v(s->group, in, c, NULL, out, s->count, t, s->root, o, NULL);
    }
}

static ls_status call(const shape *s, void *in, void *out)
{
    const ls_collective_options *o = LS_OPTIONS(
        ls_collective_options, .algorithm = s->algorithm->name, .factor = factor(s, s->rank));
    const ls_dtype t = s->dtype;
    if (ls__operation_is_v(s->operation)) {
        return call_v(s, in, out, o);
    }
    switch (s->operation) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(s->group, in, out, s->count, t, s->op, o, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(s->group, in, out, s->count, t, s->op, o, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(s->group, in, out, s->count, t, o, NULL);
    case LS__OP_BROADCAST:
        return ls_broadcast(s->group, out, s->count, t, s->root, o, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(s->group, in, out, s->count, t, s->op, s->root, o, NULL);
    case LS__OP_GATHER:
        return ls_gather(s->group, in, out, s->count, t, s->root, o, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(s->group, in, out, s->count, t, s->root, o, NULL);
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(s->group, in, out, s->count, t, o, NULL);
    case LS__OP_SCAN:
        return ls_scan(s->group, in, out, s->count, t, s->op, o, NULL);
    case LS__OP_EXSCAN:
        return ls_exscan(s->group, in, out, s->count, t, s->op, o, NULL);
    default:
        return ls_barrier(s->group, o, NULL);
    }
}

static bool is_here(const world *w, const ls__algorithm *algorithm)
{
    return !w->group[0]->has_remote || (algorithm->memories & LS__IN_MESSAGES) != 0;
}

static bool is_meant(const shape *s)
{
    const bool part = s->op == LS_AVG && ls__operation_scans(s->operation);
    const bool can = s->op == LS_REDUCE_OP_USER ? s->algorithm->exact
                                                : ls__reduce_supported(s->dtype, s->op) && !part;
    return ls__operation_reduces(s->operation) ? can : s->op == LS_SUM;
}

/* In place: where input and output lie on each other. */
static void place(const world *w, const shape *s, unsigned char **in, unsigned char **out)
{
    const size_t own = (size_t)s->count * ls_dtype_size(s->dtype) * (size_t)s->rank;
    const bool at_root = s->rank == s->root;
    const ls__operation plain = ls__operation_plain(s->operation);
    *in = w->in[s->registered];
    *out = w->out[s->registered];
    if (plain == LS__OP_BROADCAST ||
        (s->in_place &&
         (plain == LS__OP_ALL_REDUCE || plain == LS__OP_ALL_TO_ALL ||
          ls__operation_scans(s->operation) || (plain == LS__OP_REDUCE && at_root)))) {
        *in = *out;
    } else if (s->in_place && (plain == LS__OP_ALL_GATHER || (plain == LS__OP_GATHER && at_root))) {
        *in = *out + own;
    } else if (s->in_place &&
               (plain == LS__OP_REDUCE_SCATTER || (plain == LS__OP_SCATTER && at_root))) {
        *out = *in + own;
    }
}

static void check_shape(const world *w, const shape *s)
{
    const int64_t n = s->n, blocks_in = ls__operation_has_blocks(s->operation, true) ? n : 1;
    const int64_t blocks_out = ls__operation_has_blocks(s->operation, false) ? n : 1;
    const size_t element = ls_dtype_size(s->dtype);
    unsigned char *in = NULL, *out = NULL;
    place(w, s, &in, &out);
    const size_t end = (size_t)(s->count * blocks_out) * element;
    const bool inside =
        blocks_in > blocks_out && out >= in && out <= in + (size_t)(s->count * blocks_in) * element;
    if (!inside) {
        memset(out, 0xa5, end + GUARD);
    }
    fill(s, in, s->count * blocks_in);
    CHECK_OK(call(s, in, out));
    bool good = true;
    for (int64_t b = 0; b < blocks_out && ls__operation_uses(s->operation, false, s->rank, s->root);
         b++) {
        good = good && compare(s, out, b * s->count, s->count);
    }
    for (size_t i = end; i < end + GUARD && !inside; i++) {
        good = good && out[i] == 0xa5;
    }
    if (!good) {
        test_fail(
            __FILE__, __LINE__,
            "%s %s of %s[%lld] %s, rank %d of %d, root %d, registered %d, in place %d: wrong bytes",
            ls__operation_name(s->operation), s->algorithm->name, ls_dtype_name(s->dtype),
            (long long)s->count, ls_reduce_op_name(s->op), s->rank, s->n, s->root, s->registered,
            s->in_place);
    }
}

/* ---- groups ------------------------------------------------------------------------------- */

static void open_world(world *w)
{
    ls_reduce_op made;
    for (int i = 0; i < 2; i++) {
        void *at = NULL;
        CHECK_OK(ls_group_alloc(ls_world(), ROOM, &at));
        *(i == 0 ? &w->in[1] : &w->out[1]) = at;
        *(i == 0 ? &w->in[0] : &w->out[0]) = malloc(ROOM);
    }
    CHECK(w->in[0] != NULL && w->out[0] != NULL);
    CHECK_OK(ls_reduce_op_new(compose, NULL, "compose", &made));
    CHECK_INT(made, LS_REDUCE_OP_USER);
    w->quick = getenv("TEST_LONG") == NULL || SANITIZED;
}

static void close_world(world *w)
{
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    free(w->in[0]);
    free(w->out[0]);
    CHECK_OK(ls_group_dealloc(ls_world(), w->in[1]));
    CHECK_OK(ls_group_dealloc(ls_world(), w->out[1]));
    CHECK_OK(ls_reduce_op_free(LS_REDUCE_OP_USER));
}

/* Runs `body` in groups of n ranks, on the members. */
static void in_groups_of(world *w, int n, int which, void (*body)(const world *w, int which))
{
    int ranks[2][16];
    w->n = n;
    for (int i = 0; i < n; i++) {
        ranks[0][i] = i;
        ranks[1][i] = n - 1 - i;
    }
    for (int order = 0; order < 2; order++) {
        CHECK_OK(ls_group_new(ls_world(), ranks[order], n, NULL, &w->group[order]));
    }
    if (w->group[0] != NULL) {
        body(w, which);
    }
    for (int order = 0; order < 2 && w->group[0] != NULL; order++) {
        CHECK_OK(ls_group_free(w->group[order]));
    }
}

/* ---- every algorithm ---------------------------------------------------------------------- */

enum { SIZES = 13, PRIME = 53 };

static int64_t count_of(int level, int n, bool quick)
{
    const int64_t counts[SIZES] = {0,    1,    n - 1, n,     n + 1,        7, 97, 1009,
                                   4095, 4096, 4097,  10007, (1 << 20) + 3};
    return quick && level == SIZES - 1 ? (1 << 15) + 3 : counts[level];
}

static void check_levels(const world *w, const ls__algorithm *algorithm, int size, int dtype,
                         int op, int bits)
{
    shape s = {.algorithm = algorithm,
               .operation = algorithm->operation,
               .group = w->group[bits & 1],
               .n = w->n,
               .dtype = (ls_dtype)dtype,
               .op = op == OPS - 1 ? LS_REDUCE_OP_USER : (ls_reduce_op)op,
               .in_place = (bits & 2) != 0,
               .registered = (bits & 4) != 0};
    const bool blocks =
        ls__operation_has_blocks(s.operation, true) || ls__operation_has_blocks(s.operation, false);
    s.rank = ls_group_rank(s.group);
    s.root = (size + dtype + bits) % s.n;
    s.count = count_of(size, s.n, w->quick);
    s.count = blocks && size >= 5 ? (s.count + s.n - 1) / s.n : s.count;
    if (w->quick && !is_meant(&s)) { /* so that no other pair is lost with it */
        s.op = ls__operation_reduces(s.operation) ? LS_MAX : LS_SUM;
    }
    if (s.operation != LS__OP_BARRIER && is_here(w, algorithm) && is_meant(&s)) {
        check_shape(w, &s);
    }
}

/* The rows of the plane that fall to this number of ranks. */
static void sample(const world *w, int which)
{
    int count = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int row = 0; row < PRIME * PRIME; row++) {
        const int u = row / PRIME, v = row % PRIME;
        const int a = (u + v) % PRIME;
        if ((u % GROUPS) != which || a >= count) {
            continue;
        }
        const int op =
            ls__operation_reduces(all[a]->operation) ? (u + 4 * v) % PRIME % OPS : LS_SUM;
        check_levels(w, all[a], (u + 2 * v) % PRIME % SIZES, (u + 3 * v) % PRIME % LS_DTYPE_COUNT,
                     op, (u + 5 * v) % PRIME % 8);
    }
}

static void everything(const world *w)
{
    int count = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int a = 0; a < count; a++) {
        for (int i = 0; i < SIZES * LS_DTYPE_COUNT * OPS * 2; i++) {
            const int in_place = i % 2, op = i / 2 % OPS, dtype = i / 2 / OPS % LS_DTYPE_COUNT;
            const int size = i / 2 / OPS / LS_DTYPE_COUNT;
            const int turn = (a + in_place + op + dtype + size) % 4; /* order and memory */
            const int bits = turn % 2 + 2 * in_place + 4 * (turn / 2);
            const bool large = size == SIZES - 1;
            if (!large || (op + dtype) % 2 == in_place) { /* megabytes: each pair once */
                check_levels(w, all[a], size, dtype, op, bits);
            }
        }
    }
}

static void prove(const world *w, int which)
{
    if (w->quick) {
        sample(w, which);
    } else {
        everything(w);
    }
}

/* ---- counters ----------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t messages, sent, received;
} tally;

/* Bytes of a chunk, by the words of chunks.c: blocks, or equal parts on cache lines. */
static uint64_t bytes_of(const shape *s, const ls__program *p, ls__ref ref)
{
    const bool blocks = ls__operation_has_blocks(s->operation, true) ||
                        ls__operation_has_blocks(s->operation, false);
    const bool wide = p->wide && ref.buffer == LS__BUFFER_SCRATCH;
    const int64_t element = (int64_t)ls_dtype_size(s->dtype), line = 64 / element;
    const int64_t width = wide && element == 2 ? 4 : element;
    int64_t part = (s->count + p->chunks - 1) / p->chunks;
    part = (part + line - 1) / line * line;
    const int64_t left = s->count - ref.chunk % p->chunks * part;
    const int64_t some = left < 0 ? 0 : left < part ? left : part;
    return s->operation == LS__OP_BARRIER ? 0 : (uint64_t)((blocks ? s->count : some) * width);
}

static tally expected(const shape *s)
{
    const char *hosts = getenv("LOCKSTEP_HOSTS");
    const int pretended = hosts != NULL && atoi(hosts) > 0 ? atoi(hosts) : 1;
    int host[16];
    for (int r = 0; r < s->n; r++) {
        host[r] = s->group->member[r].world_rank % pretended;
    }
    const ls__program_spec spec = {.operation = s->operation,
                                   .memory = LS__MEMORY_MESSAGES,
                                   .rank = s->rank,
                                   .size = s->n,
                                   .root = s->root,
                                   .host = host};
    ls__program *p = NULL;
    tally t = {0};
    CHECK_OK(s->algorithm->generate(&spec, ls__env_posix(), &p));
    for (int i = 0; i < p->step_count; i++) {
        const ls__step *step = &p->steps[i];
        const bool sends = step->kind == LS__STEP_SEND;
        if (sends || step->kind == LS__STEP_RECV) {
            t.messages++;
            *(sends ? &t.sent : &t.received) +=
                bytes_of(s, p, p->refs[sends ? step->first_src : step->first_dst]);
        }
    }
    ls__program_free(p);
    return t;
}

static void check_counters(const world *w, shape s)
{
    const tally t = expected(&s);
    ls_counters before = {.size = sizeof before}, after = before;
    CHECK_OK(ls_group_get_counters(s.group, &before));
    CHECK_OK(call(&s, w->in[0], w->out[0]));
    CHECK_OK(ls_group_get_counters(s.group, &after));
    const uint64_t messages = after.messages - before.messages;
    const uint64_t sent = after.bytes_sent - before.bytes_sent;
    const uint64_t received = after.bytes_received - before.bytes_received;
    if (messages != t.messages || sent != t.sent || received != t.received) {
        test_fail(__FILE__, __LINE__,
                  "%s %s of %s[%lld], rank %d of %d, root %d: %llu messages, %llu bytes sent, %llu "
                  "received; the program has %llu, %llu, %llu",
                  ls__operation_name(s.operation), s.algorithm->name, ls_dtype_name(s.dtype),
                  (long long)s.count, s.rank, s.n, s.root, (unsigned long long)messages,
                  (unsigned long long)sent, (unsigned long long)received,
                  (unsigned long long)t.messages, (unsigned long long)t.sent,
                  (unsigned long long)t.received);
    }
}

static void count(const world *w, int which)
{
    static const int64_t counts[] = {1, 97, 4099, 0, 15, 17, 1009, 2503, 5003};
    int algorithms = 0;
    const ls__algorithm *const *all = ls__algorithms(&algorithms);
    w->group[0]->comm->forced = LS__MEMORY_MESSAGES;
    for (int a = 0; a < algorithms; a++) {
        for (int i = 0; i < (w->quick ? 3 : 9); i++) {
            shape s = {.algorithm = all[a],
                       .operation = all[a]->operation,
                       .group = w->group[i % 2],
                       .n = w->n,
                       .count = counts[i],
                       .dtype = (a + i) % 2 == 0 ? LS_FLOAT32 : LS_BFLOAT16,
                       .op = LS_MAX};
            s.rank = ls_group_rank(s.group);
            s.root = (which + i) % s.n;
            if ((all[a]->memories & LS__IN_MESSAGES) != 0) {
                check_counters(w, s);
            }
        }
    }
    w->group[0]->comm->forced = 0;
}

/* ---- tests -------------------------------------------------------------------------------- */

static void prove_group(int which)
{
    world w = {0};
    open_world(&w);
    in_groups_of(&w, sizes_of_groups[which], which, prove);
    close_world(&w);
}

/* clang-format off */
TEST_OF(every_algorithm_is_proven_on_up_to_3_ranks, 3, 1800)
    { for (int i = 0; i < 3; i++) { prove_group(i); } }
TEST_OF(every_algorithm_is_proven_on_4_ranks, 4, 1800) { prove_group(3); }
TEST_OF(every_algorithm_is_proven_on_5_ranks, 5, 1800) { prove_group(4); }
TEST_OF(every_algorithm_is_proven_on_6_ranks, 6, 1800) { prove_group(5); }
TEST_OF(every_algorithm_is_proven_on_7_ranks, 7, 1800) { prove_group(6); }
TEST_OF(every_algorithm_is_proven_on_8_ranks, 8, 1800) { prove_group(7); }
TEST_OF(every_algorithm_is_proven_on_9_ranks, 9, 1800) { prove_group(8); }
TEST_OF(every_algorithm_is_proven_on_12_ranks, 12, 1800) { prove_group(9); }
TEST_OF(every_algorithm_is_proven_on_16_ranks, 16, 1800) { prove_group(10); }
/* clang-format on */

TEST_OF(the_engine_counts_what_the_programs_say, 16, 600)
{
    world w = {0};
    open_world(&w);
    for (int n = 1; n <= 16; n++) {
        if (!w.quick || n <= 5 || n == 8 || n == 11 || n == 16) {
            in_groups_of(&w, n, n, count);
        }
    }
    close_world(&w);
}

TEST_MAIN
