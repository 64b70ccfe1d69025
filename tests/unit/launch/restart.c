/* SPDX-License-Identifier: Apache-2.0 */
/* The decision about a restart, by itself. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "launch/restart.h"
#include "says.h"
#include "test.h"

#define SECOND 1000000000ull

static ls__job_result failure(const char *cause, uint64_t step)
{
    ls__job_result result = {.code = 1, .failure = {.step = step}};
    snprintf(result.cause, sizeof result.cause, "%s", cause);
    return result;
}

/* Whether two failures, one after the other, are taken for the same one. */
static bool same(const ls__job_result *a, const ls__job_result *b)
{
    ls__restarts restarts = {.max = 5};
    CHECK(ls__restart_decide(&restarts, a, SECOND).again);
    ls__restart second = ls__restart_decide(&restarts, b, 2 * SECOND);
    CHECK(second.again || strstr(second.text, "the same failure occurred twice") != NULL);
    return !second.again;
}

static bool same_cause(const char *a, const char *b, uint64_t step)
{
    ls__job_result x = failure(a, step), y = failure(b, step);
    return same(&x, &y);
}

TEST(what_passes_is_left_out_of_the_comparison)
{
    static const char *const pairs[][2] = {
        {"rank 1 (host a, pid 12) failed: no loss", "rank 3 (host b, pid 999) failed: no loss"},
        {"x of process 12 died", "x of process 5412 died"},
        {"waited for 3.2 s for it", "waited for 300.0 s for it"},
        {"after 13 ms", "after 9 ms"},
        {"at 12:03:59 it failed", "at 01:00:00.5 it failed"},
        {"pointer 0x7fa0bc", "pointer 0x55d0"},
        {"all_reduce #12 of w", "all_reduce #90 of w"},
        {"has not called it; last operation: send #3 of group \"w\", queued",
         "has not called it; last operation: recv #9 of group \"w\", done"},
        {"exited with code 9 while in its own code at a.c:62 for 0.1 s",
         "exited with code 9 while in the forward pass for 0.1 s"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (!same_cause(pairs[i][0], pairs[i][1], 6)) {
            test_fail(__FILE__, __LINE__, "%s", pairs[i][0]);
        }
    }
}

TEST(what_lasts_is_compared)
{
    static const char *const pairs[][2] = {
        {"rank 1 (host a, pid 12) failed: no loss", "rank 1 (host a, pid 12) failed: no gain"},
        {"loss is 3.5", "loss is 3.6"},
        {"at train.c:88", "at train.c:89"},
        {"has float32 [64,10]", "has float32 [32,10]"},
        {"file 12 s.txt is missing", "file 12 sx.txt is missing"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (same_cause(pairs[i][0], pairs[i][1], 6)) {
            test_fail(__FILE__, __LINE__, "%s", pairs[i][0]);
        }
    }
    CHECK(!same_cause("all_reduce #12 of w", "all_reduce #90 of w", 0)); /* all that tells them */
}

TEST(another_step_is_another_failure)
{
    ls__job_result a = failure("same", 6), b = failure("same", 7);
    CHECK(!same(&a, &b));
    b = a;
    b.failure.updates = 3;
    CHECK(!same(&a, &b));
    b = a;
    b.code = 2;
    CHECK(!same(&a, &b));
}

TEST(without_a_step_the_last_lines_decide_and_outer_signals_prove_nothing)
{
    ls__job_result a = failure("same", 0), b = a;
    CHECK(same(&a, &b));
    snprintf(a.failure.last_lines, sizeof a.failure.last_lines, "step 3\n");
    snprintf(b.failure.last_lines, sizeof b.failure.last_lines, "step 4\n");
    CHECK(!same(&a, &b));
    b = a;
    a.failure.signal = b.failure.signal = SIGKILL;
    CHECK(!same(&a, &b));
    a.failure.signal = b.failure.signal = SIGSEGV;
    CHECK(same(&a, &b));
}

TEST(mistakes_and_mismatches_are_not_tried_again)
{
    static const int lasting[] = {LS_ERR_MISMATCH, LS_ERR_INVALID, LS_ERR_FORMAT,
                                  LS_ERR_UNSUPPORTED};
    static const int passing[] = {LS_OK, LS_ERR_PEER, LS_ERR_TIMEOUT, LS_ERR_SYSTEM, LS_ERR_MEMORY};
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++) {
        ls__restarts restarts = {.max = 5};
        ls__job_result result = failure("x", 1);
        result.failure.status = lasting[i];
        CHECK(!ls__restart_decide(&restarts, &result, SECOND).again);
    }
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        ls__restarts restarts = {.max = 5};
        ls__job_result result = failure("x", 1);
        result.failure.status = passing[i];
        CHECK(ls__restart_decide(&restarts, &result, SECOND).again);
    }
}

TEST(wrong_use_is_not_tried_again_unless_the_library_was_at_work)
{
    for (int code = 1; code <= 70; code++) {
        ls__job_result early = failure("exited", 0), later = failure("exited", 0);
        ls__restarts restarts = {.max = 5};
        early.code = later.code = code;
        early.failure.before_init = true;
        bool usage = code == 2 || code == 64;
        CHECK(ls__restart_decide(&restarts, &early, SECOND).again == !usage);
        restarts = (ls__restarts){.max = 5};
        CHECK(ls__restart_decide(&restarts, &later, SECOND).again);
    }
}

TEST(the_step_at_which_a_failure_recurs_is_told)
{
    for (int updates = 0; updates < 2; updates++) {
        ls__restarts restarts = {.max = 5};
        ls__job_result result = failure("x", updates ? 0 : 6);
        result.failure.updates = updates ? 6 : 0;
        CHECK(ls__restart_decide(&restarts, &result, SECOND).again);
        const ls__restart next = ls__restart_decide(&restarts, &result, SECOND);
        CHECK(!next.again);
        CHECK_INT(test_count_said(next.text, SAYS(" at step %llu")), !updates);
        CHECK_INT(test_count_said(next.text, SAYS(" after optimizer step %llu")), updates);
    }
}

TEST(delays_double_up_to_half_a_minute)
{
    static const int64_t want_ms[] = {0, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
    ls__restarts restarts = {.max = 8};
    for (int i = 0; i < 8; i++) {
        ls__job_result result = failure("x", (uint64_t)i + 1);
        ls__restart next = ls__restart_decide(&restarts, &result, SECOND);
        CHECK(next.again);
        CHECK_INT(next.delay_ms, want_ms[i]);
    }
    ls__job_result result = failure("x", 99);
    ls__restart last = ls__restart_decide(&restarts, &result, SECOND);
    CHECK(!last.again);
    CHECK_CONTAINS(last.text, "8 of 8 restarts are used");
}

TEST(with_a_window_only_its_restarts_count)
{
    ls__restarts restarts = {.max = 2, .window_s = 10};
    for (uint64_t i = 1; i <= 4; i++) { /* one every 20 s for ever */
        ls__job_result result = failure("x", i);
        ls__restart next = ls__restart_decide(&restarts, &result, i * 20 * SECOND);
        CHECK(next.again);
        CHECK_CONTAINS(next.text, "restart 1 of 2 within 10 s, at once");
    }
    ls__job_result a = failure("x", 10), b = failure("x", 11);
    CHECK_INT(ls__restart_decide(&restarts, &a, 81 * SECOND).delay_ms, 1000);
    CHECK(!ls__restart_decide(&restarts, &b, 82 * SECOND).again);
}

TEST_MAIN
