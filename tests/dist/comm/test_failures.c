/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong use and deaths: nothing hangs, nothing is silently wrong, both sides are named, and all
 * ranks report the same cause. */
#include "comm/core/cause.h"
#include "comm/core/progress_lock.h"
#include "comm/core/reclaim.h"
#include "says.h"
#include "test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/comm.h>
#include <lockstep/store.h>

/* ---- mismatches --------------------------------------------------------------------------- */

typedef struct attempt { /* one rank's call */
    ls__operation operation;
    int64_t count;
    ls_dtype dtype;
    ls_reduce_op op;
    int root;
    const char *tag;
    double divisor;
    const char *algorithm;
} attempt;

#define GOOD .operation = LS__OP_ALL_REDUCE, .count = 4, .dtype = LS_FLOAT32, .op = LS_SUM

typedef struct disagreement {
    attempt usual, odd; /* of all ranks but 1, and of rank 1 */
    const char *says[3];
} disagreement;

static const disagreement disagreements[] = {
    {{GOOD},
     {GOOD, .count = 8},
     {"rank 0 has float32[4] sum", "rank 1 has float32[8] sum", "count"}},
    {{GOOD}, {GOOD, .dtype = LS_INT32}, {"rank 0 has float32[4]", "rank 1 has int32[4]", "dtype"}},
    {{GOOD}, {GOOD, .op = LS_MAX}, {"float32[4] sum", "float32[4] max", "reduce-op"}},
    {{GOOD}, {GOOD, .op = LS_AVG}, {"float32[4] sum", "float32[4] avg", "reduce-op"}},
    {{GOOD}, {GOOD, .divisor = 3}, {"rank 0 has", "divided by 3", "divisor"}},
    {{GOOD, .tag = "bucket 1"}, {GOOD, .tag = "bucket 2"}, {"(bucket 1)", "(bucket 2)", "tags"}},
    {{GOOD}, {GOOD, .count = 100000}, {"float32[4]", "float32[100000]", "count"}},
    {{GOOD, .count = 100000}, {GOOD, .count = 0}, {"float32[100000]", "float32[0]", "count"}},
    {{GOOD},
     {GOOD, .operation = LS__OP_BROADCAST},
     {"rank 0 calls all_reduce", "rank 1 calls broadcast", "same operations in the same order"}},
    {{GOOD},
     {GOOD, .operation = LS__OP_BARRIER},
     {"rank 0 calls all_reduce", "rank 1 calls barrier", "same order"}},
    {{GOOD, .operation = LS__OP_BROADCAST, .root = 0},
     {GOOD, .operation = LS__OP_BROADCAST, .root = 1},
     {"from root 0", "from root 1", "give every rank the same root"}},
    {{GOOD, .operation = LS__OP_SCATTER, .root = 0},
     {GOOD, .operation = LS__OP_SCATTER, .root = 1},
     {"from root 0", "from root 1", "give every rank the same root"}},
    {{GOOD, .operation = LS__OP_GATHER, .root = 0},
     {GOOD, .operation = LS__OP_GATHER, .root = 1},
     {"float32[4] to root 0", "float32[4] to root 1", "give every rank the same root"}},
    {{GOOD, .operation = LS__OP_REDUCE, .root = 0},
     {GOOD, .operation = LS__OP_REDUCE, .root = 1},
     {"sum to root 0", "sum to root 1", "give every rank the same root"}},
    {{GOOD, .operation = LS__OP_REDUCE},
     {GOOD, .operation = LS__OP_REDUCE, .op = LS_MAX},
     {"sum to root 0", "max to root 0", "reduce-op"}},
    {{GOOD, .algorithm = "ring"},
     {GOOD, .algorithm = "recursive_doubling"},
     {"sum by ring", "sum by recursive_doubling", "same algorithm on every rank"}},
    {{GOOD}, {GOOD, .algorithm = "ring"}, {"float32[4] sum at", "by ring", "same algorithm"}},
    {{GOOD, .operation = LS__OP_ALL_GATHER},
     {GOOD, .operation = LS__OP_ALL_GATHER, .count = 5},
     {"rank 0 has float32[4]", "rank 1 has float32[5]", "count"}},
    {{GOOD, .operation = LS__OP_REDUCE_SCATTER},
     {GOOD, .operation = LS__OP_REDUCE_SCATTER, .op = LS_MIN},
     {"float32[4] sum", "float32[4] min", "reduce-op"}},
};

static ls_status make_call(ls_group *group, const attempt *a, void *buf)
{
    const ls_collective_options *options = LS_OPTIONS(
        ls_collective_options, .tag = a->tag, .divisor = a->divisor, .algorithm = a->algorithm);
    unsigned char *in = buf, *out = in + (1 << 19);
    ls_site_set("train.c", 80 + ls_group_rank(group));
    switch (a->operation) {
    case LS__OP_BROADCAST:
        return ls_broadcast(group, buf, a->count, a->dtype, a->root, options, NULL);
    case LS__OP_BARRIER:
        return ls_barrier(group, options, NULL);
    case LS__OP_REDUCE:
        return ls_reduce(group, in, out, a->count, a->dtype, a->op, a->root, options, NULL);
    case LS__OP_GATHER:
        return ls_gather(group, in, out, a->count, a->dtype, a->root, options, NULL);
    case LS__OP_SCATTER:
        return ls_scatter(group, in, out, a->count, a->dtype, a->root, options, NULL);
    case LS__OP_ALL_GATHER:
        return ls_all_gather(group, in, in + (1 << 19), a->count, a->dtype, options, NULL);
    case LS__OP_REDUCE_SCATTER:
        return ls_reduce_scatter(group, in, in + (1 << 19), a->count, a->dtype, a->op, options,
                                 NULL);
    default:
        return ls_all_reduce(group, buf, buf, a->count, a->dtype, a->op, options, NULL);
    }
}

static bool all_zero(const unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != 0) {
            return false;
        }
    }
    return true;
}

/* Every rank reads every rank's message and finds them equal. */
static void same_text_on_all(const char *text)
{
    char mine[1024] = "", all[8][1024];
    snprintf(mine, sizeof mine, "%s", text);
    CHECK_OK(ls_all_gather(ls_world(), mine, all, sizeof mine, LS_UINT8, NULL, NULL));
    for (int r = 0; r < ls_world_size(); r++) {
        CHECK(strcmp(all[r], mine) == 0);
    }
}

static void try_disagreement(const disagreement *d, int way)
{
    ls_group *group = NULL;
    void *buf = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "pair", &group));
    CHECK_OK(ls_group_alloc(group, 1 << 20, &buf));
    group->comm->forced = way;
    const double begin = ls_time();
    const ls_status status = make_call(group, ls_rank() == 1 ? &d->odd : &d->usual, buf);
    CHECK_WITHIN(ls_time() - begin, 3);
    group->comm->forced = 0;
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    const char *text = ls_error_message();
    for (size_t i = 0; i < 3; i++) {
        CHECK_CONTAINS(text, d->says[i]);
    }
    CHECK_CONTAINS(text, "#1 on group \"pair\"");
    CHECK_CONTAINS(text, "at train.c:80");
    CHECK_CONTAINS(text, "at train.c:81");
    CHECK(all_zero(buf, 1 << 20)); /* nothing was combined or copied */
    CHECK_STATUS(ls_barrier(group, NULL, NULL), LS_ERR_MISMATCH); /* it stays failed */
    CHECK_STATUS(ls_group_status(group), LS_ERR_MISMATCH);
    same_text_on_all(ls_error_message());
    CHECK_OK(ls_group_dealloc(group, buf));
    CHECK_STATUS(ls_group_free(group), LS_ERR_MISMATCH);
}

static void every_disagreement(int way)
{
    for (size_t i = 0; i < sizeof disagreements / sizeof *disagreements; i++) {
        try_disagreement(&disagreements[i], way);
    }
}

DIST_TEST(every_kind_of_mismatch_is_named_on_both_sides, 2)
{
    every_disagreement(LS__MEMORY_UNDECIDED);
}

DIST_TEST(every_kind_of_mismatch_is_named_among_four, 4)
{
    every_disagreement(LS__MEMORY_UNDECIDED);
}

DIST_TEST(mismatches_are_found_in_messages_too, 2)
{
    try_disagreement(&disagreements[0], LS__MEMORY_MESSAGES);
    try_disagreement(&disagreements[1], LS__MEMORY_MESSAGES);
    try_disagreement(&disagreements[2], LS__MEMORY_MESSAGES);
}

DIST_TEST(ranks_that_differ_are_told_though_a_third_never_comes, 3)
{
    float x[8] = {0};
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    if (ls_rank() != 2) {
        const double begin = ls_time();
        CHECK_STATUS(ls_all_reduce(group, x, x, 4 + ls_rank(), LS_FLOAT32, LS_SUM, NULL, NULL),
                     LS_ERR_MISMATCH);
        CHECK_WITHIN(ls_time() - begin, 3);
        CHECK_CONTAINS(ls_error_message(), "rank 0 has float32[4] sum");
        CHECK_CONTAINS(ls_error_message(), "rank 1 has float32[5] sum");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(send_and_recv_of_other_shapes_fail_on_both_sides, 2)
{
    float x[8] = {0};
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    const ls_status status = ls_rank() == 0 ? ls_send(group, x, 4, LS_FLOAT32, 1, 5, NULL, NULL)
                                            : ls_recv(group, x, 8, LS_FLOAT32, 0, 5, NULL, NULL);
    CHECK_STATUS(status, LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 0 sends float32[4]");
    CHECK_CONTAINS(ls_error_message(), "rank 1 receives float32[8]");
    CHECK_CONTAINS(ls_error_message(), "tag 5");
}

DIST_TEST(groups_of_different_ranks_are_refused, 2)
{
    ls_group *group = NULL;
    const int ranks[2] = {0, 1}, swapped[2] = {1, 0};
    CHECK_STATUS(ls_group_new(ls_world(), ls_rank() == 0 ? ranks : swapped, 2, "tp", &group),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "new group \"tp\" of ranks 0,1");
    CHECK_CONTAINS(ls_error_message(), "new group \"tp\" of ranks 1,0");
    CHECK(group == NULL);
}

/* ---- missing ranks ------------------------------------------------------------------------ */

DIST_TEST(a_missing_call_times_out_and_names_the_rank, 3)
{
    float x = 1;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "trio", &group));
    if (ls_rank() != 1) {
        CHECK_STATUS(ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM,
                                   LS_OPTIONS(ls_collective_options, .timeout_ms = 400), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(), "all_reduce #1 on group \"trio\" did not finish");
        CHECK_CONTAINS(ls_error_message(), "rank 1 has not called it");
        CHECK_CONTAINS(ls_error_message(), "(host ");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls_status status = ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
    if (ls_rank() == 1 &&
        status == LS_OK) { /* its peers' parts came before the failure's message */
        CHECK(x == 3);
        status = ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL);
    }
    CHECK_STATUS(status, LS_ERR_TIMEOUT);
}

DIST_TEST(a_timeout_beyond_the_clock_is_no_timeout, 2)
{
    float x = 1;
    if (ls_rank() == 1) {
        const ls__env *env = ls_world()->comm->env;
        env->sleep_until(env, env->now_ns(env) + 300000000);
    }
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .timeout_ms = INT64_MAX), NULL));
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .timeout_ms = INT64_MAX / 1000000 + 1),
                           NULL));
}

DIST_TEST(an_operation_behind_a_patient_one_keeps_its_own_deadline, 2)
{
    float x = 1, y = 1;
    ls_work *patient = NULL;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "pair", &group));
    if (ls_rank() == 0) {
        const double begin = ls_time();
        CHECK_OK(ls_all_reduce(group, &x, &x, 1, LS_FLOAT32, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .timeout_ms = 20000), &patient));
        CHECK_STATUS(ls_all_reduce(group, &y, &y, 1, LS_FLOAT32, LS_MAX,
                                   LS_OPTIONS(ls_collective_options, .timeout_ms = 300), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_WITHIN(ls_time() - begin, 3);
        CHECK_CONTAINS(ls_error_message(), "all_reduce #2 on group \"pair\" did not finish");
        CHECK_CONTAINS(ls_error_message(), "rank 1 has not called it");
        CHECK_STATUS(ls_work_wait(patient), LS_ERR_TIMEOUT);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* Rank 1 announces its operation and then does not move, as if it were stopped. */
static void stuck_inside(int64_t count, bool registered)
{
    void *x = NULL;
    int64_t unused = 0;
    ls_group *group = NULL;
    ls_work *work = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "trio", &group));
    CHECK_OK(ls_group_alloc(group, (size_t)count * 4, &x));
    void *buf = registered ? x : calloc((size_t)count, 4);
    CHECK(buf != NULL);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls__progress_take(group->comm);
    if (ls_rank() != 1) {
        ls__progress_release(group->comm);
        CHECK_OK(ls_store_wait(ls_runtime_store(), registered ? "called r" : "called p", -1));
        CHECK_STATUS(ls_all_reduce(group, buf, buf, count, LS_FLOAT32, LS_SUM,
                                   LS_OPTIONS(ls_collective_options, .timeout_ms = 400), NULL),
                     LS_ERR_TIMEOUT);
        /* What is stuck with the token cannot tell another host either. */
        CHECK_CONTAINS(ls_error_message(), "rank 1 has ");
        if (!group->has_remote) {
            CHECK_SAYS(ls_error_message(), "has called it but not come through");
        }
        CHECK_OK(ls_store_add(ls_runtime_store(), registered ? "r" : "p", 1, &unused, -1));
    } else {
        CHECK_OK(ls_all_reduce(group, buf, buf, count, LS_FLOAT32, LS_SUM, NULL, &work));
        CHECK_OK(
            ls_store_set(ls_runtime_store(), registered ? "called r" : "called p", "y", 1, -1));
        while (unused < 2) {
            const ls__env *env = group->comm->env;
            env->sleep_until(env, env->now_ns(env) + 1000000);
            CHECK_OK(ls_store_add(ls_runtime_store(), registered ? "r" : "p", 0, &unused, -1));
        }
        ls__progress_release(group->comm);
        CHECK_STATUS(ls_work_wait(work), LS_ERR_TIMEOUT);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (!registered) {
        free(buf);
    }
}

DIST_TEST(a_rank_stuck_inside_an_operation_is_named, 3)
{
    stuck_inside(1 << 18, true);
    stuck_inside(1 << 18, false);
}

DIST_TEST(ranks_in_different_groups_time_out, 2)
{
    ls_group *group[2];
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "a", &group[0]));
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "b", &group[1]));
    CHECK_STATUS(
        ls_barrier(group[ls_rank()], LS_OPTIONS(ls_collective_options, .timeout_ms = 500), NULL),
        LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), "has not called it");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* nobody leaves before the other has waited */
}

DIST_TEST(a_receive_without_a_send_times_out, 2)
{
    char x = 0;
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    if (ls_rank() == 0) {
        CHECK_STATUS(ls_recv(group, &x, 1, LS_UINT8, 1, 0,
                             LS_OPTIONS(ls_collective_options, .timeout_ms = 300), NULL),
                     LS_ERR_TIMEOUT);
        CHECK_CONTAINS(ls_error_message(), "rank 1 has not called its side");
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

static int leaves_early(void *arg)
{
    float x = 1;
    (void)arg;
    LS_CHECK(ls_init(NULL));
    if (ls_rank() == 1) {
        LS_CHECK(ls_finalize());
        return 0;
    }
    const double begin = ls_time();
    CHECK_STATUS(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_PEER);
    CHECK_WITHIN(ls_time() - begin, 2);
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    LS_CHECK(ls_finalize());
    return 0;
}

TEST(a_rank_that_left_is_named_by_those_who_wait)
{
    CHECK_OK(ls_spawn(leaves_early, NULL, 2));
}

DIST_TEST(a_receive_with_another_tag_than_the_send_is_explained, 2)
{
    float x = 1;
    ls_group *group = NULL;
    ls_work *work = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    if (ls_rank() == 0) {
        ls_site_set("pipe.c", 12);
        CHECK_OK(ls_send(group, &x, 1, LS_FLOAT32, 1, 6, NULL, &work));
        CHECK_STATUS(ls_work_wait(work), LS_ERR_TIMEOUT);
    } else {
        CHECK_STATUS(ls_recv(group, &x, 1, LS_FLOAT32, 0, 5,
                             LS_OPTIONS(ls_collective_options, .timeout_ms = 400), NULL),
                     LS_ERR_TIMEOUT);
    }
    CHECK_CONTAINS(ls_error_message(), "this receive has tag 5, but rank 0 has sent a message with "
                                       "tag 6 (float32[1] at pipe.c:12)");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

typedef struct stopped { /* shared with the ranks */
    _Atomic int pid;     /* of rank 0, when it is stopped */
} stopped;

/* Rank 0 is stopped while the answer comes and rank 1, having done all it had to, leaves. */
static int leaves_after_receiving(void *arg)
{
    stopped *s = arg;
    char x[100] = {0};
    LS_CHECK(ls_init(NULL));
    if (ls_rank() == 0) {
        int pid = getpid();
        CHECK_OK(ls_send(ls_world(), &pid, 1, LS_INT32, 1, 0, NULL, NULL));
        CHECK_OK(ls_send(ls_world(), x, sizeof x, LS_UINT8, 1, 1, NULL, NULL));
    } else {
        int pid = 0;
        CHECK_OK(ls_recv(ls_world(), &pid, 1, LS_INT32, 0, 0, NULL, NULL));
        usleep(30000); /* it sleeps in its second send now */
        CHECK(kill(pid, SIGSTOP) == 0);
        atomic_store(&s->pid, pid);
        CHECK_OK(ls_recv(ls_world(), x, sizeof x, LS_UINT8, 0, 1, NULL, NULL));
    }
    LS_CHECK(ls_finalize());
    return 0;
}

TEST(a_rank_that_did_its_part_may_leave)
{
    stopped *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(s != MAP_FAILED);
    const pid_t waker = fork();
    CHECK(waker >= 0);
    if (waker == 0) {
        while (atomic_load(&s->pid) == 0) {
            usleep(1000);
        }
        usleep(300000); /* beyond the time at which rank 0 looks whom it waits for */
        _exit(kill(atomic_load(&s->pid), SIGCONT));
    }
    CHECK_OK(ls_spawn(leaves_after_receiving, s, 2));
    CHECK(waitpid(waker, NULL, 0) == waker);
}

/* ---- aborts ------------------------------------------------------------------------------- */

static int takes_part_and_leaves(void *arg)
{
    const int last = *(const int *)arg - 1;
    float x = 1.0f;
    LS_CHECK(ls_init(NULL));
    LS_CHECK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    if (ls_rank() == last) {
        LS_CHECK(ls_send(ls_world(), &x, 1, LS_FLOAT32, 0, 7, NULL, NULL));
    } else if (ls_rank() == 0) {
        LS_CHECK(ls_recv(ls_world(), &x, 1, LS_FLOAT32, last, 7, NULL, NULL));
    }
    LS_CHECK(ls_finalize());
    return 0;
}

/* More ranks than cores: some look after others have left. See Note [Leaving] in check.c. */
TEST(ranks_that_leave_at_once_have_taken_part)
{
    int ranks = 6;
    for (int i = 0; i < 40; i++) {
        CHECK_OK(ls_spawn(takes_part_and_leaves, &ranks, ranks));
    }
}

DIST_TEST(an_abort_reaches_ranks_that_wait, 3)
{
    static float x[100000];
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "trio", &group));
    if (ls_rank() == 1) {
        CHECK_OK(ls_group_abort(group, "the loss is poisoned"));
    }
    CHECK_STATUS(ls_all_reduce(group, x, x, 99999, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_ABORTED);
    CHECK_CONTAINS(ls_error_message(), "group \"trio\" was aborted by rank 1");
    CHECK_CONTAINS(ls_error_message(), "the loss is poisoned");
    /* a layer above that fails with these words does not become the cause */
    ls__group_record_failure(group, LS_ERR_ABORTED, ls_error_message());
    const ls__board_rank *me = group->comm->me;
    CHECK(ls_rank() == 1 ? me->failed_by == 1 : atomic_load(&me->failed) == 0);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* other groups live on */
}

DIST_TEST(an_abort_ends_everything_in_flight, 2)
{
    enum { N = 40 };
    static float x[N][1000];
    ls_work *work[N];
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    for (int i = 0; ls_rank() == 0 && i < N; i++) {
        CHECK_OK(ls_all_reduce(group, x[i], x[i], 1000, LS_FLOAT32, LS_SUM, NULL, &work[i]));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        CHECK_OK(ls_group_abort(group, NULL));
    }
    for (int i = 0; ls_rank() == 0 && i < N; i++) {
        CHECK_STATUS(ls_work_wait(work[i]), LS_ERR_ABORTED);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

/* Rank 1 cannot turn away from the group as long as it holds its own token. */
DIST_TEST(memory_of_a_failed_group_waits_for_every_member, 2)
{
    ls_group *group = NULL;
    void *memory = NULL;
    int64_t unused = 0;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, NULL, &group));
    CHECK_OK(ls_group_alloc(group, 4096, &memory));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    ls__comm *comm = group->comm;
    if (ls_rank() == 1) {
        ls__progress_take(comm);
        CHECK_OK(ls_store_add(ls_runtime_store(), "held", 1, &unused, -1));
        CHECK_OK(ls_store_wait(ls_runtime_store(), "seen", -1));
        ls__progress_release(comm);
    } else {
        CHECK_OK(ls_store_wait(ls_runtime_store(), "held", -1));
        CHECK_OK(ls_group_abort(group, "test"));
        while (ls_group_status(group) == LS_OK) { /* the engine's thread may have the token */
        }
        CHECK_OK(ls_group_dealloc(group, memory));
        CHECK_INT(comm->heap.quarantined, 1);
        CHECK_OK(ls_store_add(ls_runtime_store(), "seen", 1, &unused, -1));
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    while (ls_rank() == 0 && ls__reclaim_settle(comm)) { /* rank 1's engine turns soon */
        CHECK_OK(ls_store_add(ls_runtime_store(), "tries", 1, &unused, -1));
        CHECK(unused < 100000);
    }
    CHECK_INT(ls_rank() == 0 ? comm->heap.quarantined : 0, 0);
}

/* ---- deaths ------------------------------------------------------------------------------- */

typedef struct witness { /* shared with the ranks */
    volatile int right[8];
    char text[8][1024];
    double died, heard[8];
} witness;

static int dies_inside(void *arg)
{
    witness *w = arg;
    static float x[1 << 20];
    LS_CHECK(ls_init(NULL));
    for (int i = 0;; i++) {
        if (ls_rank() == 1 && i == 20) {
            w->died = ls_time();
            raise(SIGKILL);
        }
        const ls_status status =
            ls_all_reduce(ls_world(), x, x, 1 << 20, LS_FLOAT32, LS_SUM, NULL, NULL);
        if (status != LS_OK) {
            w->heard[ls_rank()] = ls_time();
            snprintf(w->text[ls_rank()], sizeof w->text[0], "%s", ls_error_message());
            w->right[ls_rank()] = status == LS_ERR_PEER;
            break;
        }
    }
    LS_CHECK(ls_finalize());
    return 0;
}

TEST(the_death_of_a_rank_is_told_to_all_with_one_text)
{
    witness *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(w != MAP_FAILED);
    CHECK_STATUS(ls_spawn(dies_inside, w, 4), LS_ERR_PEER);
    for (int r = 0; r < 4; r++) {
        if (r != 1) {
            CHECK(w->right[r]);
            CHECK_WITHIN(w->heard[r] - w->died, 1);
            CHECK_CONTAINS(w->text[r], "rank 1");
            CHECK(strcmp(w->text[r], w->text[0]) == 0);
        }
    }
}

TEST_MAIN
