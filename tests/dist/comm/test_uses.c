/* SPDX-License-Identifier: Apache-2.0 */
/* What someone who comes from MPI would do with comm.h, by its words alone: any number of letters
 * in flight, waited for in any order; several threads on one group; nothing at all in every
 * operation; every call on a handle over several groups; more than fits. */
#include "says.h"
#include "test.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

#include "comm/core/group.h"
#include "comm/core/message_state.h"
#include "comm/core/progress_lock.h"

/* ---- joining ------------------------------------------------------------------------------ */

/* The descriptors by which the process joined are closed. */
static void check_joined_before(void)
{
    CHECK_STATUS(ls_init(NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "call ls_init once in a process (and ls_runtime_attach in "
                                       "further threads)");
}

static void *init_in_a_thread(void *arg)
{
    check_joined_before();
    return arg;
}

static int init_again(void *arg)
{
    pthread_t thread;
    (void)arg;
    CHECK_OK(ls_init(NULL));
    CHECK_INT(pthread_create(&thread, NULL, init_in_a_thread, NULL), 0);
    CHECK_INT(pthread_join(thread, NULL), 0);
    CHECK_OK(ls_finalize());
    check_joined_before();
    return 0;
}

TEST(a_second_ls_init_of_a_process_is_refused_in_words)
{
    CHECK_OK(ls_spawn(init_again, NULL, 2));
}

/* ---- letters ------------------------------------------------------------------------------ */

enum { LETTERS = 600, LONGEST = 70001 };

static size_t length_of(int k)
{
    static const size_t lengths[] = {0, 1, 7, 64, 4096, 40, LONGEST, 513};
    return lengths[k % 8];
}

static unsigned char byte_of(int from, int k)
{
    return (unsigned char)(31 * from + 7 * k + 1);
}

static bool is_all(const unsigned char *at, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++) {
        if (at[i] != value) {
            return false;
        }
    }
    return true;
}

/* Each rank sends hundreds to each, itself too, before anybody receives; they are received from
 * the last to the first, and waited for in yet another order. */
DIST_TEST(hundreds_of_letters_to_all_are_in_flight_and_received_backwards, 4)
{
    const int n = ls_world_size(), me = ls_rank(), all = LETTERS * n;
    ls_work **sent = calloc((size_t)all, sizeof(ls_work *));
    ls_work **got = calloc((size_t)all, sizeof(ls_work *));
    unsigned char *out = malloc((size_t)LETTERS * LONGEST), **in = calloc((size_t)all, sizeof *in);
    CHECK(sent != NULL && got != NULL && out != NULL && in != NULL);
    for (int k = 0; k < LETTERS; k++) {
        memset(out + (size_t)k * LONGEST, byte_of(me, k), length_of(k));
        for (int to = 0; to < n; to++) {
            CHECK_OK(ls_send(ls_world(), out + (size_t)k * LONGEST, (int64_t)length_of(k), LS_UINT8,
                             to, INT_MAX - k, NULL, &sent[k * n + to]));
        }
    }
    for (int i = all - 1; i >= 0; i--) {
        in[i] = malloc(length_of(i / n) + 1);
        CHECK(in[i] != NULL);
        CHECK_OK(ls_recv(ls_world(), in[i], (int64_t)length_of(i / n), LS_UINT8, i % n,
                         INT_MAX - i / n, NULL, &got[i]));
    }
    for (int j = 0; j < all; j++) {
        const int i = (int)((int64_t)j * 7919 % all); /* prime to all: each once */
        CHECK_OK(ls_work_wait(got[i]));
        CHECK(is_all(in[i], length_of(i / n), byte_of(i % n, i / n)));
        free(in[i]);
        CHECK_OK(ls_work_wait(sent[all - 1 - i]));
    }
    free(sent);
    free(got);
    free(out);
    free(in);
}

/* Without looking at each of them again and again: that took minutes. */
DIST_TEST(ten_thousand_letters_are_in_flight_both_ways, 2)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { N = 1000 };
#else
    enum { N = 10000 };
#endif
    static int64_t out[N], in[N];
    static ls_work *work[2 * N];
    const int other = 1 - ls_rank();
    for (int i = 0; i < N; i++) {
        out[i] = 2 * i + ls_rank();
        CHECK_OK(ls_send(ls_world(), &out[i], 1, LS_INT64, other, i, NULL, &work[i]));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    for (int i = N - 1; i >= 0; i--) {
        CHECK_OK(ls_recv(ls_world(), &in[i], 1, LS_INT64, i % 2 == 0 ? other : LS_ANY_SOURCE, i,
                         NULL, &work[N + i]));
    }
    for (int i = 0; i < 2 * N; i++) {
        CHECK_OK(ls_work_wait(work[i]));
    }
    for (int i = 0; i < N; i++) {
        CHECK_INT(in[i], 2 * i + other);
    }
}

static int count_warned(ls_group *group)
{
    int warned = 0;
    ls__progress_take(group->comm);
    LS__LIST_EACH (at, &group->p2p->recvs) {
        warned += LS__LIST_ITEM(at, ls_work, link)->watch.warned;
    }
    ls__progress_release(group->comm);
    return warned;
}

DIST_TEST(of_hundreds_of_letters_that_wait_one_is_warned_about, 2)
{
    static int32_t in[300];
    static ls_work *work[300];
    int64_t unused = 0;
    if (getenv("LOCKSTEP_HOSTS") != NULL && getenv("LOCKSTEP_HOSTS")[0] != '\0') {
        return; /* it takes five seconds, and is the same over all transports */
    }
    for (int i = 0; i < 300 && ls_rank() == 0; i++) {
        CHECK_OK(ls_recv(ls_world(), &in[i], 1, LS_INT32, 1, i, NULL, &work[i]));
    }
    while (ls_rank() == 0 && count_warned(ls_world()) == 0) {
        CHECK_INT(ls_work_wait_for(work[299], 100), LS_IN_PROGRESS);
    }
    if (ls_rank() == 0) {
        CHECK(count_warned(ls_world()) < 4); /* another every five seconds */
        CHECK_OK(ls_store_add(ls_runtime_store(), "warned", 1, &unused, -1));
    }
    CHECK_OK(ls_store_wait(ls_runtime_store(), "warned", -1));
    for (int i = 0; i < 300; i++) {
        CHECK_OK(ls_rank() == 0 ? ls_work_wait(work[i])
                                : ls_send(ls_world(), &in[i], 1, LS_INT32, 0, i, NULL, NULL));
    }
}

/* The same tag to the same rank in two groups of the same ranks are two different letters. */
DIST_TEST(a_duplicate_does_not_take_the_letters_of_its_parent, 2)
{
    ls_group *copy = NULL;
    int32_t x[2] = {1, 2}, y[2] = {0, 0};
    ls_work *work[2] = {NULL, NULL};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "copy", &copy));
    if (ls_rank() == 0) {
        CHECK_OK(ls_send(ls_world(), &x[0], 1, LS_INT32, 1, 5, NULL, &work[0]));
        CHECK_OK(ls_send(copy, &x[1], 1, LS_INT32, 1, 5, NULL, &work[1]));
    } else {
        CHECK_OK(ls_recv(copy, &y[1], 1, LS_INT32, LS_ANY_SOURCE, 5, NULL, &work[1]));
        CHECK_OK(ls_recv(ls_world(), &y[0], 1, LS_INT32, LS_ANY_SOURCE, 5, NULL, &work[0]));
    }
    for (int i = 1; i >= 0; i--) {
        CHECK_OK(ls_work_wait_for(work[i], 60000));
        CHECK_INT(y[i], ls_rank() == 1 ? i + 1 : 0);
    }
    CHECK_OK(ls_group_free(copy));
}

typedef struct talker {
    ls_runtime *runtime;
    int tag, wrong;
} talker;

static void *talk(void *arg)
{
    talker *t = arg;
    t->wrong += ls_runtime_attach(t->runtime) != LS_OK;
    const int n = ls_world_size(), me = ls_rank();
    for (int i = 0; i < 60 && t->wrong == 0; i++) {
        int64_t out[40] = {1000 * t->tag + i}, in[40] = {-1};
        const int64_t count = i % 40 + 1;
        int from = -1;
        ls_work *work = NULL;
        t->wrong +=
            ls_send(ls_world(), out, count, LS_INT64, (me + 1) % n, t->tag, NULL, &work) != 0;
        t->wrong +=
            (t->tag % 2 == 0
                 ? ls_recv(ls_world(), in, count, LS_INT64, (me + n - 1) % n, t->tag, NULL, NULL)
                 : ls_recv_any(ls_world(), in, count, LS_INT64, t->tag, NULL, &from)) != LS_OK;
        t->wrong += ls_work_wait(work) != LS_OK || memcmp(in, out, (size_t)count * 8) != 0;
        t->wrong += t->tag % 2 == 1 && from != (me + n - 1) % n;
    }
    (void)ls_runtime_attach(NULL);
    return NULL;
}

DIST_TEST(threads_that_share_a_group_exchange_letters_of_their_own_tags, 3)
{
    pthread_t thread[4];
    talker t[4];
    for (int i = 0; i < 4; i++) {
        t[i] = (talker){ls_runtime_current(), i, 0};
        CHECK(pthread_create(&thread[i], NULL, talk, &t[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(thread[i], NULL) == 0);
        CHECK_INT(t[i].wrong, 0);
    }
}

/* ---- nothing ------------------------------------------------------------------------------ */

static void nothing_in(ls_group *g)
{
    const int64_t none[8] = {0};
    const ls_dtype t = LS_BFLOAT16;
    ls_work *work[12];
    int made = 0;
    CHECK_OK(ls_all_reduce(g, NULL, NULL, 0, t, LS_AVG, NULL, &work[made++]));
    CHECK_OK(ls_reduce(g, NULL, NULL, 0, t, LS_MAX, 0, NULL, &work[made++]));
    CHECK_OK(ls_broadcast(g, NULL, 0, t, 0, NULL, &work[made++]));
    CHECK_OK(ls_all_gather(g, NULL, NULL, 0, t, NULL, &work[made++]));
    CHECK_OK(ls_reduce_scatter(g, NULL, NULL, 0, t, LS_SUM, NULL, &work[made++]));
    CHECK_OK(ls_gather(g, NULL, NULL, 0, t, 0, NULL, &work[made++]));
    CHECK_OK(ls_scatter(g, NULL, NULL, 0, t, 0, NULL, &work[made++]));
    CHECK_OK(ls_all_to_all(g, NULL, NULL, 0, t, NULL, &work[made++]));
    CHECK_OK(ls_scan(g, NULL, NULL, 0, t, LS_SUM, NULL, &work[made++]));
    CHECK_OK(ls_exscan(g, NULL, NULL, 0, t, LS_SUM, NULL, &work[made++]));
    while (made > 0) {
        CHECK_OK(ls_work_wait(work[--made]));
    }
    CHECK_OK(ls_all_to_all_v(g, NULL, none, NULL, NULL, none, NULL, t, NULL, &work[made++]));
    CHECK_OK(ls_all_gather_v(g, NULL, 0, NULL, none, NULL, t, NULL, &work[made++]));
    CHECK_OK(ls_reduce_scatter_v(g, NULL, none, NULL, NULL, t, LS_SUM, NULL, &work[made++]));
    CHECK_OK(ls_gather_v(g, NULL, 0, NULL, none, NULL, t, 0, NULL, &work[made++]));
    CHECK_OK(ls_scatter_v(g, NULL, none, NULL, NULL, 0, t, 0, NULL, &work[made++]));
    CHECK_OK(ls_all_reduce_many(g, NULL, NULL, 0, t, LS_SUM, NULL, &work[made++]));
    CHECK_OK(ls_broadcast_many(g, NULL, NULL, 0, t, 0, NULL, &work[made++]));
    CHECK_OK(
        ls_all_reduce_many(g, (void *[]){NULL, NULL}, none, 2, t, LS_SUM, NULL, &work[made++]));
    CHECK_OK(ls_send(g, NULL, 0, t, ls_group_rank(g), 0, NULL, &work[made++]));
    CHECK_OK(ls_recv(g, NULL, 0, t, ls_group_rank(g), 0, NULL, &work[made++]));
    while (made > 0) {
        CHECK_OK(ls_work_wait(work[--made]));
    }
}

DIST_TEST(every_operation_may_be_of_nothing, 3)
{
    ls_group *copies[2] = {NULL, NULL}, *turns = NULL, *alone = NULL;
    nothing_in(ls_world());
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &copies[i]));
    }
    CHECK_OK(ls_group_round_robin(copies, 2, NULL, &turns));
    CHECK_SAYS(ls_group_name(turns), "round robin");
    nothing_in(turns);
    CHECK_OK(ls_group_split(turns, ls_rank(), 0, NULL, &alone));
    nothing_in(alone);
    CHECK_OK(ls_group_free(alone));
    CHECK_OK(ls_group_free(turns));
    CHECK_OK(ls_group_free(copies[1]));
    CHECK_OK(ls_group_free(copies[0]));
}

/* ---- a handle over several groups --------------------------------------------------------- */

static void parts_of(ls_group *turns)
{
    const int n = ls_group_size(turns), me = ls_group_rank(turns);
    ls_group *made[3] = {NULL};
    CHECK_OK(ls_group_split(turns, me % 2, -me, NULL, &made[0]));
    CHECK_INT(ls_group_rank(made[0]), ls_group_size(made[0]) - 1 - me / 2);
    CHECK_OK(ls_group_new(turns, (int[]){n - 1, 0}, 2, "ends", &made[1]));
    CHECK_OK(me == 0 || me == 1 ? ls_group_new_among(turns, (int[]){0, 1}, 2, "first", &made[2])
                                : LS_OK);
    for (int i = 0; i < 3; i++) {
        if (made[i] != NULL) {
            CHECK_OK(ls_barrier(made[i], NULL, NULL));
            CHECK_OK(ls_group_free(made[i]));
        }
    }
}

static void objects_of(ls_group *turns)
{
    const int n = ls_group_size(turns), me = ls_group_rank(turns);
    char word[3000], *given = word;
    size_t length = sizeof word;
    ls_bytes *list = NULL, *gathered = NULL;
    memset(word, 'a' + me, sizeof word);
    CHECK_OK(ls_all_gather_bytes(turns, word, (size_t)(100 * me), NULL, &list));
    CHECK_INT(list[n - 1].length, 100 * (n - 1));
    CHECK_OK(ls_gather_bytes(turns, word, sizeof word, 1, NULL, &gathered));
    CHECK(me == 1 ? ((char *)gathered[0].data)[2999] == 'a' : gathered == NULL);
    CHECK_OK(ls_broadcast_bytes(turns, (void **)&given, &length, 1, NULL));
    CHECK_INT(given[2999], 'b');
    if (me != 1) {
        ls_bytes_free(given);
    }
    CHECK_OK(ls_scatter_bytes(turns, list, 0, NULL, (void **)&given, &length));
    CHECK_INT(length, 100 * me);
    ls_bytes_free(given);
    ls_bytes_free(list);
    ls_bytes_free(gathered);
}

DIST_TEST(a_handle_over_several_groups_can_all_that_a_group_can, 5)
{
    ls_group *copies[3] = {NULL}, *turns = NULL;
    ls_counters c = {.size = sizeof c};
    void *memory = NULL;
    bool stop = true;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &copies[i]));
    }
    CHECK_OK(ls_group_round_robin(copies, 3, "turns", &turns));
    CHECK_STR(ls_group_name(turns), "turns");
    for (int round = 0; round < 4; round++) { /* each call begins at each of the groups */
        CHECK_OK(ls_monitored_barrier(turns, 60000, NULL));
        CHECK_OK(ls_stop_agree(turns, &stop));
        CHECK(!stop);
        CHECK_OK(ls_group_set_channels(turns, 1 + round % 2));
        CHECK_OK(ls_group_alloc(turns, 4096, &memory));
        CHECK_OK(ls_all_reduce(turns, memory, memory, 1024, LS_INT32, LS_BXOR, NULL, NULL));
        CHECK_OK(ls_group_dealloc(turns, memory));
        parts_of(turns);
        objects_of(turns);
    }
    CHECK_OK(ls_group_get_counters(turns, &c));
    CHECK(c.operations > 30);
    CHECK_OK(ls_group_free(turns));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(ls_group_free(copies[i]));
    }
}

/* ---- more than fits ----------------------------------------------------------------------- */

DIST_TEST(more_than_memory_holds_is_refused_before_anything_is_sent, 2)
{
    float x[4] = {0};
    void *list[2] = {x, x + 2};
    ls_group *w = ls_world();
    const ls_dtype t = LS_FLOAT32;
    const int64_t huge = INT64_MAX / 2, most[2] = {INT64_MAX, 1}, one[2] = {1, 1}, two[2] = {2, 1};
    const int64_t before[2] = {-1, 0}, remote[2] = {0, INT64_MAX};
    CHECK_STATUS(ls_all_reduce(w, x, x, huge, t, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather(w, x, x, huge, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_to_all(w, x, x, INT64_MAX / 7, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_scan(w, x, x, -1, t, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_send(w, x, huge, t, 0, 0, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather_v(w, x, 1, x, most, NULL, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather_v(w, x, 1, x, one, remote, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather_v(w, x, 1, x, one, before, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_gather_v(w, x, 3 + ls_rank(), x, two, NULL, t, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce_many(w, list, most, 2, t, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce_many(w, list, one, -1, t, LS_SUM, NULL, NULL), LS_ERR_INVALID);
    CHECK_OK(ls_barrier(w, NULL, NULL));
    CHECK_OK(ls_group_status(w));
}

/* ---- one buffer on another ---------------------------------------------------------------- */

static float room[64];

#define CHECK_OVERLAP(x, where)                                                                    \
    do {                                                                                           \
        CHECK_STATUS(x, LS_ERR_INVALID);                                                           \
        CHECK_CONTAINS(ls_error_message(), "in and out overlap; " where);                          \
    } while (0)

/* MPI calls these erroneous and may return anything; here they are told, and the group lives on. */
DIST_TEST(buffers_that_overlap_and_are_not_in_place_are_refused, 3)
{
    ls_group *w = ls_world();
    const ls_dtype t = LS_FLOAT32;
    const int me = ls_rank(), other = (me + 1) % 3;
    float *const x = room + 8, *const own = x + 4L * me, *const foreign = x + 4L * other;
    const int64_t gaps[3] = {0, 8, 16}, two[3] = {2, 2, 2}, four[3] = {4, 4, 4};
    CHECK_OVERLAP(ls_all_gather(w, foreign, x, 4, t, NULL, NULL), "only in may be");
    CHECK_OVERLAP(ls_all_gather(w, own + 1, x, 4, t, NULL, NULL), "only in may be");
    CHECK_OVERLAP(ls_reduce_scatter(w, x, foreign, 4, t, LS_SUM, NULL, NULL), "only out may be");
    CHECK_OVERLAP(ls_reduce_scatter(w, x, own - 1, 4, t, LS_SUM, NULL, NULL), "only out may be");
    CHECK_OVERLAP(ls_gather(w, foreign, x, 4, t, me, NULL, NULL), "only in may be");
    CHECK_OVERLAP(ls_scatter(w, x, foreign, 4, t, me, NULL, NULL), "only out may be");
    CHECK_OVERLAP(ls_reduce(w, x, x + 1, 4, t, LS_SUM, me, NULL, NULL), "give one buffer");
    CHECK_OVERLAP(ls_scan(w, x + 3, x, 4, t, LS_SUM, NULL, NULL), "give one buffer");
    CHECK_OVERLAP(ls_all_to_all(w, x, x + 11, 4, t, NULL, NULL), "give one buffer");
    CHECK_OVERLAP(ls_all_gather_v(w, foreign, 4, x, four, NULL, t, NULL, NULL), "only in may be");
    CHECK_OVERLAP(ls_all_gather_v(w, x + 8L * other, 2, x, two, gaps, t, NULL, NULL), "only in");
    CHECK_OVERLAP(ls_reduce_scatter_v(w, x, four, NULL, foreign, t, LS_SUM, NULL, NULL),
                  "only out");
    /* Beside each other, in a gap, or where nobody uses it. */
    CHECK_OK(ls_all_to_all(w, x, x + 12, 4, t, NULL, NULL));
    CHECK_OK(ls_all_gather(w, x - 4, x, 4, t, NULL, NULL));
    CHECK_OK(ls_all_gather_v(w, x + 3, 2, x, two, gaps, t, NULL, NULL));
    CHECK_OK(ls_barrier(w, NULL, NULL));
}

/* ---- numbers ------------------------------------------------------------------------------ */

#define CHECK_WRAP(type, name, a, b, sum, product)                                                 \
    do {                                                                                           \
        type x = ls_rank() == 0 ? (a) : (b), y = x;                                                \
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, name, LS_SUM, NULL, NULL));                  \
        CHECK_OK(ls_all_reduce(ls_world(), &y, &y, 1, name, LS_PRODUCT, NULL, NULL));              \
        CHECK_INT(x, (type)(sum));                                                                 \
        CHECK_INT(y, (type)(product));                                                             \
    } while (0)

DIST_TEST(sums_and_products_of_integers_wrap, 2)
{
    CHECK_WRAP(int8_t, LS_INT8, 100, 100, -56, 16);
    CHECK_WRAP(uint8_t, LS_UINT8, 200, 100, 44, 32);
    CHECK_WRAP(int32_t, LS_INT32, INT32_MAX, 2, INT32_MIN + 1, -2);
    CHECK_WRAP(int64_t, LS_INT64, INT64_MIN, -1, INT64_MAX, INT64_MIN);
}

/* ---- callbacks ---------------------------------------------------------------------------- */

typedef struct caller {
    ls_group *group, *left;
    ls_work *other;
    ls_status got[8];
} caller;

static void call_what_waits(void *arg, ls_status status)
{
    caller *c = arg;
    int32_t x = 1;
    c->got[0] = status;
    c->got[1] = ls_all_reduce(c->group, &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL);
    c->got[2] = ls_work_wait(c->other);
    c->got[3] = ls_work_wait_for(c->other, 10);
    c->got[4] = ls_recv_any(c->group, &x, 1, LS_INT32, 0, NULL, NULL);
    c->got[5] = ls_group_free(c->group);
    c->got[6] = ls_group_new(c->group, NULL, 0, NULL, &c->left);
    c->got[7] = ls_finalize();
}

DIST_TEST(what_a_callback_would_wait_for_is_refused, 2)
{
    int32_t x = 1, y = 2;
    caller c = {.group = ls_world()};
    ls_work *work = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "part", &c.group));
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &c.other));
    CHECK_OK(ls_all_reduce(c.group, &y, &y, 1, LS_INT32, LS_SUM, NULL, &work));
    CHECK_OK(ls_work_on_done(work, call_what_waits, &c));
    CHECK_OK(ls_work_wait(work));
    CHECK_INT(c.got[0], LS_OK);
    for (int i = 1; i < 8; i++) {
        CHECK_INT(c.got[i], LS_ERR_STATE);
    }
    CHECK_OK(ls_work_wait(c.other));
    CHECK_INT(x + y, 6);
    CHECK_OK(ls_group_free(c.group));
}

static void give_up(void *arg, ls_status status)
{
    (void)status;
    (void)ls_group_abort(arg, "the callback has seen enough");
}

DIST_TEST(a_callback_may_abort_a_group, 3)
{
    int32_t x = 1, y = 2;
    ls_group *part = NULL;
    ls_work *work[2] = {NULL, NULL};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "part", &part));
    if (ls_rank() == 1) {
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, &work[0]));
        CHECK_OK(ls_work_on_done(work[0], give_up, part));
        CHECK_OK(ls_work_wait(work[0]));
    } else {
        CHECK_OK(ls_all_reduce(part, &y, &y, 1, LS_INT32, LS_SUM, NULL, &work[1]));
        CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_INT32, LS_SUM, NULL, NULL));
        CHECK_STATUS(ls_work_wait(work[1]), LS_ERR_ABORTED);
        CHECK_CONTAINS(ls_error_message(), "the callback has seen enough");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

TEST_MAIN
