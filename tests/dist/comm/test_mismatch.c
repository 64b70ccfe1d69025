/* SPDX-License-Identifier: Apache-2.0 */
/* The mismatch matrix: every way in which calls, or the ranks themselves, can differ, by every path
 * data can take. Each is named on all ranks within three seconds, with both sides' values and call
 * sites; no buffer changes; other groups go on. The rows of a path run at the same time. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>
#include <lockstep/version.h>

#include "base/cpu.h"
#include "comm/core/group.h"

/* This program's library: the version that it says can be another one on one rank. */
static bool old_version_on_rank_1;

const char *ls_version(void)
{
    const char *rank = getenv("RANK");
    return old_version_on_rank_1 && rank != NULL && strcmp(rank, "1") == 0 ? "0.0.9" : LS_VERSION;
}

typedef struct call {
    ls__operation operation;
    ls_dtype dtype;
    ls_reduce_op op;
    int root, more; /* elements more than the others */
    const char *tag;
} call;

typedef struct row {
    const char *name;
    call usual[2], odd[2]; /* of all ranks but the last, and of the last, in this order */
    const char *says[3];
} row;

#define SUM .operation = LS__OP_ALL_REDUCE, .op = LS_SUM, .dtype = LS_FLOAT32
#define FROM .operation = LS__OP_BROADCAST, .dtype = LS_FLOAT32
#define END .operation = LS__OP_BARRIER

static const row rows[] = {
    {"shape", {{SUM}}, {{SUM, .more = 1}}, {" has float32[", "] sum", "the same count"}},
    {"dtype",
     {{SUM}},
     {{SUM, .dtype = LS_INT32}},
     {" has float32[", " has int32[", "the same dtype"}},
    {"reduce-op", {{SUM}}, {{SUM, .op = LS_MAX}}, {"] sum", "] max", "the same reduce-op"}},
    {"root", {{FROM}}, {{FROM, .root = 1}}, {"from root 0", "from root 1", "the same root"}},
    {"operation",
     {{SUM}},
     {{FROM}},
     {" calls all_reduce", " calls broadcast", "same operations in the same order"}},
    {"order of tags",
     {{SUM, .tag = "bucket 1"}, {SUM, .tag = "bucket 2"}},
     {{SUM, .tag = "bucket 2"}, {SUM, .tag = "bucket 1"}},
     {"(bucket 1)", "(bucket 2)", "the tags differ"}},
    {"missing call",
     {{FROM}, {SUM}},
     {{SUM}, {END}},
     {" calls broadcast", " calls all_reduce", "same operations in the same order"}},
};

enum { ROWS = sizeof rows / sizeof *rows, CALLS = 2 };

typedef enum path { SMALL, REGISTERED, STAGED, PATHS } path;

typedef struct attempt {
    ls_group *group;
    unsigned char *buf;
    size_t bytes;
    ls_work *work[CALLS];
    ls_status status[CALLS];
    char text[LS__FAILURE_MAX];
} attempt;

static int64_t count_on(path p)
{
    return p == SMALL ? 5 : 60001;
}

static bool is_odd(void)
{
    return ls_rank() == ls_world_size() - 1;
}

static void prepare(attempt *a, const row *r, path p)
{
    void *buf = NULL;
    *a = (attempt){.bytes = (size_t)(count_on(p) + 1) * 4};
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, r->name, &a->group));
    if (p == REGISTERED) {
        CHECK_OK(ls_group_alloc(a->group, a->bytes, &buf));
    } else {
        buf = malloc(a->bytes);
    }
    CHECK(buf != NULL);
    memset(buf, 1 + ls_rank(), a->bytes);
    a->buf = buf;
}

static ls_status make_call(attempt *a, const call *c, path p, ls_work **work)
{
    const int64_t count = count_on(p) + c->more;
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .tag = c->tag);
    ls_site_set("row.c", 100 + ls_rank());
    switch (c->operation) {
    case LS__OP_BROADCAST:
        return ls_broadcast(a->group, a->buf, count, c->dtype, c->root, options, work);
    case LS__OP_BARRIER:
        return ls_barrier(a->group, options, work);
    default:
        return ls_all_reduce(a->group, a->buf, a->buf, count, c->dtype, c->op, options, work);
    }
}

static void start(attempt *a, const row *r, path p, bool blocking)
{
    const call *calls = is_odd() ? r->odd : r->usual;
    const int count = r->usual[1].operation != 0 ? CALLS : 1;
    for (int i = 0; i < count; i++) {
        a->status[i] = make_call(a, &calls[i], p, blocking ? NULL : &a->work[i]);
        if (i == 0 && a->status[i] < 0) { /* it may have failed already */
            (void)snprintf(a->text, sizeof a->text, "%s", ls_error_message());
        }
    }
}

static void wait_for(attempt *a)
{
    for (int i = 0; i < CALLS; i++) {
        if (a->work[i] != NULL) {
            a->status[i] = ls_work_wait(a->work[i]);
            if (i == 0) {
                (void)snprintf(a->text, sizeof a->text, "%s", ls_error_message());
            }
        }
    }
}

/* By messages a broadcast that root and receiver agree on may be done before another rank was heard
 * of: it has the root's numbers, and what comes next fails. */
static const call *may_be_done(const row *r)
{
    const call *first = is_odd() ? r->odd : r->usual;
    return ls_world()->has_remote && first->operation == LS__OP_BROADCAST ? first : NULL;
}

static void check_row(attempt *a, const row *r)
{
    char odd[32];
    const call *sent = may_be_done(r);
    if (a->status[0] == LS_OK && sent != NULL) {
        a->status[0] = ls_barrier(a->group, NULL, NULL);
        (void)snprintf(a->text, sizeof a->text, "%s", ls_error_message());
    }
    CHECK_INT(a->status[0], LS_ERR_MISMATCH);
    CHECK(r->usual[1].operation == 0 || a->status[1] == LS_ERR_MISMATCH);
    for (int i = 0; i < 3; i++) {
        CHECK_CONTAINS(a->text, r->says[i]);
    }
    CHECK_CONTAINS(a->text, r->name); /* of the group */
    const char *site = strstr(a->text, " at row.c:10");
    CHECK(site != NULL); /* of the last rank, and before it of one of the others */
    (void)snprintf(odd, sizeof odd, " at row.c:%d (host ", 99 + ls_world_size());
    CHECK_CONTAINS(site + 1, odd);
    for (size_t i = 0; i < a->bytes; i++) {
        CHECK(a->buf[i] == 1 + ls_rank() || (sent != NULL && a->buf[i] == 1 + sent->root));
    }
}

static void same_on_all(const attempt *a)
{
    static char all[8][LS__FAILURE_MAX];
    CHECK_OK(ls_all_gather(ls_world(), a->text, all, sizeof a->text, LS_UINT8, NULL, NULL));
    for (int r = 0; r < ls_world_size(); r++) {
        CHECK(strcmp(all[r], a->text) == 0);
    }
}

static void end(attempt *a, path p)
{
    if (p == REGISTERED) {
        CHECK_OK(ls_group_dealloc(a->group, a->buf));
    } else {
        free(a->buf);
    }
    CHECK_STATUS(ls_group_free(a->group), LS_ERR_MISMATCH);
}

static void every_row(bool blocking)
{
    attempt attempts[PATHS][ROWS];
    for (int i = 0; i < PATHS * ROWS; i++) {
        prepare(&attempts[i / ROWS][i % ROWS], &rows[i % ROWS], (path)(i / ROWS));
    }
    const double begin = ls_time();
    for (int i = 0; i < PATHS * ROWS; i++) {
        start(&attempts[i / ROWS][i % ROWS], &rows[i % ROWS], (path)(i / ROWS), blocking);
    }
    for (int i = 0; i < PATHS * ROWS; i++) {
        wait_for(&attempts[i / ROWS][i % ROWS]);
    }
    CHECK_WITHIN(ls_time() - begin, 3 * (blocking ? PATHS * ROWS : 1));
    float x = 1;
    CHECK_OK(ls_all_reduce(ls_world(), &x, &x, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(x == (float)ls_world_size());
    for (int i = 0; i < PATHS * ROWS; i++) {
        check_row(&attempts[i / ROWS][i % ROWS], &rows[i % ROWS]);
        same_on_all(&attempts[i / ROWS][i % ROWS]);
    }
    for (int i = 0; i < PATHS * ROWS; i++) {
        end(&attempts[i / ROWS][i % ROWS], (path)(i / ROWS));
    }
}

DIST_TEST(every_row_is_named_on_every_path_of_two_ranks, 2)
{
    every_row(true);
}

DIST_TEST(every_row_is_named_of_operations_in_flight, 2)
{
    every_row(false);
}

DIST_TEST(every_row_is_named_in_flight_among_three, 3)
{
    every_row(false);
}

DIST_TEST(every_row_is_named_in_flight_among_four, 4)
{
    every_row(false);
}

/* ---- call sites --------------------------------------------------------------------------- */

static ls_status call_from_two_places(bool strict, path p)
{
    static float x[60001];
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "sites", &group));
    group->comm->strict = strict;
    ls_site_set(is_odd() ? "eval.c" : "train.c", is_odd() ? 7 : 3);
    const ls_status status =
        ls_all_reduce(group, x, x, count_on(p), LS_FLOAT32, LS_SUM, NULL, NULL);
    group->comm->strict = false;
    return status;
}

DIST_TEST(calls_from_two_places_are_told_apart_when_strict, 3)
{
    CHECK_STATUS(call_from_two_places(true, SMALL), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), " has float32[5] sum at train.c:3 (host ");
    CHECK_CONTAINS(ls_error_message(), "rank 2 has float32[5] sum at eval.c:7 (host ");
    CHECK_CONTAINS(ls_error_message(), "LOCKSTEP_CHECK=strict requires");
    CHECK_STATUS(call_from_two_places(true, STAGED), LS_ERR_MISMATCH);
    CHECK_OK(call_from_two_places(false, SMALL));
    CHECK_OK(call_from_two_places(false, STAGED));
}

/* ---- the ranks themselves ----------------------------------------------------------------- */

typedef struct difference {
    const char *variable; /* set on rank 1 alone; NULL: its library is another version */
    const char *value, *usual, *odd;
} difference;

static int joins_with_a_difference(void *arg)
{
    const difference *d = arg;
    const bool odd = strcmp(getenv("RANK"), "1") == 0;
    old_version_on_rank_1 = d->variable == NULL;
    if (odd && d->variable != NULL) {
        CHECK(setenv(d->variable, d->value, 1) == 0);
    }
    const double begin = ls_time();
    CHECK_STATUS(ls_init(NULL), LS_ERR_MISMATCH);
    CHECK_WITHIN(ls_time() - begin, 3);
    CHECK_CONTAINS(ls_error_message(), d->usual);
    CHECK_CONTAINS(ls_error_message(), d->odd);
    CHECK_CONTAINS(ls_error_message(), "rank 0");
    CHECK_CONTAINS(ls_error_message(), "rank 1");
    return 0;
}

/* The job has failed with what the ranks were told, although they returned 0. */
static void every_rank_finds(difference d)
{
    CHECK_STATUS(ls_spawn(joins_with_a_difference, &d, 2), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "ls_init: ranks are set up differently");
    CHECK_CONTAINS(ls_error_message(), d.usual);
    CHECK_CONTAINS(ls_error_message(), d.odd);
}

TEST(another_version_of_the_library_is_named_with_both)
{
    every_rank_finds((difference){NULL, NULL, "version=" LS_VERSION ",", "version=0.0.9;"});
}

TEST(settings_that_must_agree_are_named_with_both)
{
    every_rank_finds((difference){"LOCKSTEP_CHECK", "strict", "LOCKSTEP_CHECK=default",
                                  "LOCKSTEP_CHECK=strict"});
}

TEST(other_kernels_are_named_with_both)
{
    const char *other = ls__cpu_level() == LS__CPU_REF ? "base" : "ref";
    char want[32];
    snprintf(want, sizeof want, "LOCKSTEP_CPU=%s", other);
    every_rank_finds((difference){"LOCKSTEP_CPU", other, "LOCKSTEP_CPU=", want});
}

TEST(ranks_with_and_without_onednn_are_named)
{
    every_rank_finds(
        (difference){"LOCKSTEP_ONEDNN", "0", "LOCKSTEP_ONEDNN=1", "LOCKSTEP_ONEDNN=0"});
}

/* The others may hear of the barrier before they hear of the abort. */
DIST_TEST(what_a_rank_starts_behind_its_abort_is_compared_with_nothing, 3)
{
    static float x[100];
    for (int i = 0; i < 20; i++) {
        ls_group *group = NULL;
        CHECK_OK(ls_group_new(ls_world(), NULL, 0, "trio", &group));
        if (ls_rank() == 1) {
            CHECK_OK(ls_group_abort(group, "the loss is poisoned"));
            CHECK_STATUS(ls_barrier(group, NULL, NULL), LS_ERR_ABORTED);
        } else {
            CHECK_STATUS(ls_broadcast(group, x, 100, LS_FLOAT32, 0, NULL, NULL), LS_ERR_ABORTED);
        }
        CHECK_CONTAINS(ls_error_message(), "group \"trio\" was aborted by rank 1");
        (void)ls_group_free(group);
    }
}

TEST_MAIN
