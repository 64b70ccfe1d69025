/* A backend that is not ours: the plug-in `loop` (tests/plugins/loop.c) moves the data of a group.
 * Its results are those of the native group, what it does not promise is refused in words, and its
 * failures are reported as our own. */
#include "test.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/backend.h>
#include <lockstep/comm.h>

#include "comm/backend/plugin_group.h"
#include "comm/group/group.h"
#include "comm/p2p/p2p.h"
#include "job/operation.h"
#include "says.h"

#define LOOP test_build_path("tests/plugins/ls_backend_loop.so")

enum { RANKS_MAX = 4, ROOM = 4096 };

static ls_group *loop_group(const char *name)
{
    ls_group *group = NULL;
    CHECK_OK(ls_group_create(ls_world(),
                             LS_OPTIONS(ls_group_options, .name = name, .backend = LOOP), &group));
    CHECK(strcmp(ls_group_backend(group), "loop") == 0);
    return group;
}

/* ---- results ------------------------------------------------------------------------------- */

typedef union values {
    float f[ROOM];
    double d[ROOM];
    int32_t i[ROOM];
    int64_t l[ROOM];
    unsigned char bytes[ROOM * 8];
} values;

/* Small whole numbers: any order of adding gives the same sum. */
static void fill(values *v, ls_dtype dtype, int64_t count, int seed)
{
    memset(v, 0x11, sizeof *v);
    for (int64_t k = 0; k < count; k++) {
        const int x = (int)((k * 7 + seed * 3) % 5) - 1;
        switch (dtype) {
        case LS_FLOAT32:
            v->f[k] = (float)x;
            break;
        case LS_FLOAT64:
            v->d[k] = x;
            break;
        case LS_INT32:
            v->i[k] = x;
            break;
        case LS_INT64:
            v->l[k] = x;
            break;
        default:
            memset(v->bytes + (size_t)k * ls_dtype_size(dtype), x == 0 ? 0 : 1,
                   ls_dtype_size(dtype));
        }
    }
}

typedef struct operation {
    ls__operation kind;
    ls_dtype dtype;
    ls_reduce_op op;
    int64_t count;
    bool in_place;
} operation;

/* Block r has count + r elements, with a gap behind each. */
static void blocks(int64_t count, int64_t *counts, int64_t *offsets, int size)
{
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = count + r;
        offsets[r] = end;
        end += counts[r] + 1;
    }
}

/* The block that rank a has for rank b, both ways. */
static void square(int64_t count, int64_t *to, int64_t *from, int64_t *offsets, int rank, int size)
{
    int64_t end = 0;
    for (int r = 0; r < size; r++) {
        to[r] = count + rank + 2 * r;
        from[r] = count + r + 2 * rank;
        offsets[r] = end;
        end += count + 3 * size;
    }
}

static ls_status call_v(ls_group *g, const operation *o, const void *in, void *out)
{
    const int size = ls_group_size(g), me = ls_group_rank(g), root = size - 1;
    int64_t counts[RANKS_MAX], offsets[RANKS_MAX], from[RANKS_MAX];
    blocks(o->count, counts, offsets, size);
    switch (o->kind) {
    case LS__OP_ALL_TO_ALL_V:
        square(o->count, counts, from, offsets, me, size);
        return ls_all_to_all_v(g, in, counts, offsets, out, from, offsets, o->dtype, NULL, NULL);
    case LS__OP_ALL_GATHER_V:
        return ls_all_gather_v(g, in, counts[me], out, counts, offsets, o->dtype, NULL, NULL);
    case LS__OP_REDUCE_SCATTER_V:
        return ls_reduce_scatter_v(g, in, counts, offsets, out, o->dtype, o->op, NULL, NULL);
    case LS__OP_GATHER_V:
        return ls_gather_v(g, in, counts[me], out, counts, offsets, o->dtype, root, NULL, NULL);
    default:
        return ls_scatter_v(g, in, counts, offsets, out, counts[me], o->dtype, root, NULL, NULL);
    }
}

static ls_status call(ls_group *g, const operation *o, void *in, void *out)
{
    const int root = ls_group_size(g) - 1;
    switch (o->kind) {
    case LS__OP_ALL_REDUCE:
        return ls_all_reduce(g, o->in_place ? out : in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(g, in, out, o->count, o->dtype, NULL, NULL);
    case LS__OP_BROADCAST:
        return ls_broadcast(g, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(g, in, out, o->count, o->dtype, o->op, root, NULL, NULL);
    case LS__OP_GATHER:
        return ls_gather(g, in, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(g, in, out, o->count, o->dtype, root, NULL, NULL);
    case LS__OP_ALL_TO_ALL:
        return ls_all_to_all(g, o->in_place ? out : in, out, o->count, o->dtype, NULL, NULL);
    case LS__OP_SCAN:
        return ls_scan(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    case LS__OP_EXSCAN:
        return ls_exscan(g, in, out, o->count, o->dtype, o->op, NULL, NULL);
    default:
        return call_v(g, o, in, out);
    }
}

/* Whether the backend says that it carries the operation. */
static bool promised(const ls_group *g, const operation *o)
{
    const ls_reduce_op op = o->op == LS_AVG ? LS_SUM : o->op;
    const bool reduces = ls__operation_reduces(o->kind);
    return (g->can->operations >> o->kind & 1) != 0 &&
           (!reduces ||
            ((g->can->dtypes >> o->dtype & 1) != 0 && (g->can->reduce_ops >> op & 1) != 0));
}

/* On both groups; a promise is kept, and what is not promised is refused. */
static int compare(ls_group *native, ls_group *loop, const operation *o)
{
    static values in, want, got;
    fill(&in, o->dtype, ROOM / 2, ls_rank());
    fill(&want, o->dtype, ROOM / 2, ls_rank() + 10);
    got = want;
    CHECK_OK(call(native, o, &in, &want));
    const ls_status status = call(loop, o, &in, &got);
    if (!promised(loop, o)) {
        CHECK_INT(status, LS_ERR_UNSUPPORTED);
        return 0;
    }
    if (status != LS_OK || memcmp(&want, &got, sizeof want) != 0) {
        test_fail(__FILE__, __LINE__, "%s of %s, %s, %lld elements: %s",
                  ls__operation_name(o->kind), ls_dtype_name(o->dtype), ls_reduce_op_name(o->op),
                  (long long)o->count, status == LS_OK ? "other values" : ls_error_message());
    }
    return 1;
}

/* Every function, dtype and operator of the table that `lockstep info --backends` prints. */
static void every_promise_is_kept(ls_group *native, ls_group *loop)
{
    static const int64_t counts[] = {0, 1, 37};
    int kept = 0;
    for (int k = 0; k < LS__OP_COUNT; k++) {
        for (int d = 0; d < LS_DTYPE_COUNT && k != LS__OP_BARRIER && !ls__operation_is_p2p(k);
             d++) {
            for (int op = 0; op < (ls__operation_reduces(k) ? LS_PREMUL_SUM : 1); op++) {
                operation o = {.kind = k, .dtype = d, .op = op};
                if (ls__operation_reduces(k) &&
                    (!ls__reduce_supported(d, op) || (op == LS_AVG && ls__operation_scans(k)))) {
                    continue;
                }
                for (int c = 0; c < 3; c++) {
                    o.count = counts[c];
                    o.in_place = c == 2;
                    kept += compare(native, loop, &o);
                }
            }
        }
    }
    CHECK(kept > 500);
}

static void check_results(void)
{
    setenv("LOOP_DELAY_US", "20", 1);
    ls_group *native = NULL, *loop = loop_group("loop");
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "native", &native));
    every_promise_is_kept(native, loop);
    CHECK_OK(ls_group_free(loop));
    CHECK_OK(ls_group_free(native));
}

DIST_TEST(what_a_plug_in_promises_it_does_as_native_on_1_rank, 1)
{
    check_results();
}

DIST_TEST(what_a_plug_in_promises_it_does_as_native_on_3_ranks, 3)
{
    check_results();
}

DIST_TEST(messages_travel_by_the_plug_in, 3)
{
    enum { MESSAGES = 12, LARGE = 70000 };
    static int32_t out[MESSAGES][LARGE], in[MESSAGES][LARGE];
    ls_group *loop = loop_group("letters");
    const int me = ls_rank(), next = (me + 1) % 3, before = (me + 2) % 3;
    ls_work *send[MESSAGES], *recv[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        for (int k = 0; k < count; k++) {
            out[m][k] = me * 1000 + m * 10 + k;
        }
        CHECK_OK(ls_send(loop, out[m], count, LS_INT32, next, m, NULL, &send[m]));
    }
    for (int m = MESSAGES - 1; m >= 0; m--) { /* in another order than they were sent */
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        const int from = m == 4 ? LS_ANY_SOURCE : before;
        CHECK_OK(ls_recv(loop, in[m], count, LS_INT32, from, m, NULL, &recv[m]));
    }
    for (int m = 0; m < MESSAGES; m++) {
        CHECK_OK(ls_work_wait(send[m]));
        CHECK_OK(ls_work_wait(recv[m]));
        const int64_t count = m % 3 == 0 ? 0 : m % 3 == 1 ? 1 : LARGE;
        for (int k = 0; k < count; k++) {
            CHECK_INT(in[m][k], before * 1000 + m * 10 + k);
        }
    }
    CHECK_INT(loop->p2p->carried, 0);
    void *bytes = ls_rank() == 0 ? (void *)"an object" : NULL;
    size_t length = ls_rank() == 0 ? sizeof "an object" : 0;
    CHECK_OK(ls_broadcast_bytes(loop, &bytes, &length, 0, NULL));
    CHECK(strcmp(bytes, "an object") == 0);
    if (ls_rank() != 0) {
        ls_bytes_free(bytes);
    }
    CHECK_OK(ls_group_free(loop));
}

/* ---- which group has it -------------------------------------------------------------------- */

DIST_TEST(groups_inherit_their_backend, 2)
{
    static const int both[] = {0, 1};
    ls_group *loop = loop_group("parent"), *child[4], *turns = NULL;
    CHECK_OK(ls_group_new(loop, NULL, 0, "duplicate", &child[0]));
    CHECK_OK(ls_group_split(loop, 0, ls_rank(), "split", &child[1]));
    CHECK_OK(ls_group_new_among(loop, both, 2, "among", &child[2]));
    CHECK_OK(ls_group_create(loop, LS_OPTIONS(ls_group_options, .backend = "native"), &child[3]));
    CHECK_OK(ls_group_round_robin(child, 2, "turns", &turns));
    CHECK(strcmp(ls_group_backend(turns), "loop") == 0);
    CHECK(strcmp(ls_group_backend(ls_world()), "native") == 0);
    for (int i = 0; i < 4; i++) {
        int32_t x = 1;
        CHECK(strcmp(ls_group_backend(child[i]), i < 3 ? "loop" : "native") == 0);
        CHECK_OK(ls_all_reduce(i == 1 ? turns : child[i], &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_INT(x, 2);
    }
    CHECK_OK(ls_group_free(turns));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(ls_group_free(child[i]));
    }
    CHECK_OK(ls_group_free(loop));
}

DIST_TEST(ranks_that_ask_for_different_backends_are_told, 2)
{
    ls_group *group = NULL;
    const char *backend = ls_rank() == 0 ? "native" : LOOP;
    CHECK_STATUS(
        ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = backend), &group),
        LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_message(), " by native") != NULL);
    CHECK(group == NULL);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void add(void *into, const void *right, int64_t count, ls_dtype dtype, void *arg)
{
    (void)dtype;
    (void)arg;
    for (int64_t i = 0; i < count; i++) {
        ((float *)into)[i] += ((const float *)right)[i];
    }
}

DIST_TEST(what_a_backend_does_not_promise_is_refused_in_words, 2)
{
    ls_group *loop = loop_group("small"), *other = NULL;
    float x[2] = {1, 2};
    void *memory = NULL;
    ls_reduce_op op = LS_SUM;
    CHECK_STATUS(ls_group_alloc(loop, 64, &memory), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_group_alloc of group \"%s\": backend \"%s\" has no registered memory; use "
               "malloc, or a group of backend \"native\"");
    CHECK_STATUS(ls_group_abort(loop, "why"), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s of group \"%s\": backend \"%s\" cannot end operations in flight; wait for them, "
               "or give them a timeout_ms");
    CHECK_STATUS(ls_scan(loop, x, x, 2, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" does not have it; use a group "
               "of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_BFLOAT16, LS_SUM, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" does not reduce %s; convert "
                                   "the values, or use a group of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_INT32, LS_BXOR, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" does not reduce by %s; use a "
               "group of backend \"native\"");
    CHECK_OK(ls_reduce_op_new(add, NULL, "add", &op));
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, op, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" does not apply operators of "
                                   "ls_reduce_op_new; use a group of backend \"native\"");
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .algorithm = "ring"), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" chooses its algorithms "
                                   "itself; pass algorithm = NULL");
    ls_stream *stream = (ls_stream *)(void *)x;
    CHECK_STATUS(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .stream = stream), NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" has no streams; pass stream = NULL");
    CHECK_STATUS(
        ls_group_create(loop, LS_OPTIONS(ls_group_options, .canonical_sums = true), &other),
        LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "group \"%s\" shall add in the library's order, and backend \"%s\" does not; use "
               "backend \"native\", or leave canonical_sums false");
    CHECK_OK(ls_all_reduce(loop, x, x, 2, LS_FLOAT32, LS_SUM, NULL, NULL)); /* it still works */
    CHECK(x[0] == 2 && x[1] == 4);
    CHECK_OK(ls_group_free(loop));
}

/* ---- control is native --------------------------------------------------------------------- */

DIST_TEST(descriptors_are_compared_before_the_plug_in_moves_a_byte, 2)
{
    ls_group *loop = loop_group("compared");
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    CHECK_STATUS(ls_all_reduce(loop, x, x, ls_rank() == 0 ? 8 : 4, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_message(), "give every rank the same count") != NULL);
    CHECK(x[0] == 1 && x[7] == 8); /* no poison, no sum */
    ls_group *again = loop_group("again");
    int64_t counts[2] = {2, 2}, out[2] = {2, ls_rank() == 0 ? 3 : 2};
    float y[8];
    if (!again->has_remote) { /* between hosts only the two ends of a block know its length */
        CHECK_STATUS(ls_all_to_all_v(again, x, counts, NULL, y, out, NULL, LS_FLOAT32, NULL, NULL),
                     LS_ERR_MISMATCH);
    }
}

static _Atomic int ended;

static void on_end(void *arg, ls_status status)
{
    (void)arg;
    atomic_store(&ended, status == LS_OK ? 1 : -1);
}

/* The user's thread makes no call while the operation is in flight. */
DIST_TEST(the_engine_tests_the_plug_in_while_nobody_waits, 2)
{
    ls_group *loop = loop_group("polled");
    int64_t x = ls_rank() + 1, sum = 0;
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(loop, &x, &sum, 1, LS_INT64, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_on_done(work, on_end, NULL));
    const double begin = ls_time();
    while (atomic_load(&ended) == 0 && ls_time() < begin + 20) {
        usleep(100);
    }
    CHECK_INT(atomic_load(&ended), 1);
    CHECK_INT(sum, 3);
    CHECK_OK(ls_work_wait(work));
    CHECK_OK(ls_group_free(loop));
}

/* ---- faults -------------------------------------------------------------------------------- */

DIST_TEST(a_result_that_is_not_waited_for_is_poison, 2)
{
    setenv("LOOP_FAULT", "early:1:2", 1); /* rank 1, from its second collective on */
    setenv("LOOP_DELAY_US", "2000", 1);
    ls_group *loop = loop_group("early");
    for (int i = 0; i < 3; i++) {
        float x[4] = {1, 1, 1, 1};
        CHECK_OK(ls_all_reduce(loop, x, x, 4, LS_FLOAT32, LS_SUM, NULL, NULL));
        const bool poison = x[0] != x[0]; /* NaN */
        CHECK(poison == (ls_rank() == 1 && i >= 1));
        CHECK(poison || x[3] == 2);
    }
    CHECK_OK(ls_group_free(loop));
}

static void keep_log(ls_log_level level, const char *text, void *arg)
{
    char *to = arg;
    if (level <= LS_LOG_WARN && strstr(text, "cannot abort") != NULL) {
        snprintf(to, 4096, "%s", text);
    }
}

DIST_TEST(a_plug_in_that_hangs_ends_at_the_deadline_and_the_rank_is_named, 3)
{
    static char logged[4096];
    ls_set_log_callback(keep_log, logged);
    setenv("LOOP_FAULT", "hang:2:2", 1);
    ls_group *loop = loop_group("hanging");
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .timeout_ms = 1500);
    float x = 1;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, options, NULL));
    const double begin = ls_time();
    CHECK_STATUS(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, options, NULL), LS_ERR_TIMEOUT);
    CHECK(ls_time() - begin > 1.0);
    const char *text = ls_error_message();
    CHECK(strstr(text, "backend \"loop\"") != NULL && strstr(text, "rank 2") != NULL);
    if (strstr(text, "has not ended it") != NULL) { /* rank 2 was the first to give up */
        CHECK_SAYS(text,
                   "all ranks have called it, and backend \"%s\" has not ended it on rank %d");
    } else {
        CHECK_SAYS(text, "all ranks have called it, and backend \"%s\" waits on rank %d for %s");
    }
    CHECK_SAYS(logged,
               "group \"%s\" has failed, and backend \"%s\" cannot abort: it may write to "
               "the buffers of operations in flight until this process ends; do not free or "
               "use them");
}

DIST_TEST(an_asynchronous_error_is_the_root_cause_on_all_ranks, 3)
{
    setenv("LOOP_FAULT", "error:1:2", 1);
    ls_group *loop = loop_group("failing");
    float x = 1;
    CHECK_OK(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK_STATUS(ls_all_reduce(loop, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_SYSTEM);
    CHECK(strstr(ls_error_message(), "all_reduce #4 on group \"failing\"") != NULL);
    CHECK_SAYS(ls_error_message(), "%s cannot run on rank %d: %s");
    CHECK(strstr(ls_error_message(), "rank 1: backend \"loop\": an injected error") != NULL);
    CHECK_STATUS(ls_group_status(loop), LS_ERR_SYSTEM);
}

TEST_MAIN
