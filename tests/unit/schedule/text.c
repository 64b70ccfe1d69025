/* SPDX-License-Identifier: Apache-2.0 */
/* The text form: what is printed reads back as the same table, and a malformed text is refused with
 * the line, what stands there and what is expected. */
#include <stdio.h>

#include "base/env_posix.h"
#include "says.h"
#include "tables.h"

static void check_equal(const ls__schedule *a, const ls__schedule *b)
{
    CHECK_STR(a->name, b->name);
    CHECK(a->ranks == b->ranks && a->stages == b->stages && a->micro_batches == b->micro_batches);
    CHECK(a->per_step == b->per_step && a->delay == b->delay && a->recompute == b->recompute);
    CHECK(a->warm_up == b->warm_up || (a->warm_up <= 1 && b->warm_up <= 1));
    CHECK(memcmp(a->rank_of, b->rank_of, (size_t)a->stages * sizeof *a->rank_of) == 0);
    CHECK(memcmp(a->replicas, b->replicas, (size_t)a->stages * sizeof *a->replicas) == 0);
    for (int r = 0; r < a->ranks; r++) {
        CHECK_INT(a->rank[r].count, b->rank[r].count);
        for (int i = 0; i < a->rank[r].count; i++) {
            const ls__action *x = &a->rank[r].list[i], *y = &b->rank[r].list[i];
            CHECK(x->kind == y->kind && x->stage == y->stage && x->micro_batch == y->micro_batch &&
                  x->peer == y->peer && x->version == y->version);
        }
    }
}

TEST(a_printed_table_reads_back)
{
    for (int i = 0; i < table_kind_count; i++) {
        ls__schedule *s = table_of(table_kinds[i].name, &table_kinds[i].spec);
        ls__schedule *again = table_parsed(ls__schedule_print(s));
        check_equal(s, again);
        CHECK_OK(ls__schedule_verify(again));
        ls__schedule_free(again);
        ls__schedule_free(s);
    }
}

#define FIELDS "schedule x\nranks 2\nstages 2\nmicro-batches 1\n"

TEST(comments_blanks_and_defaults_are_accepted)
{
    ls__schedule *s = table_parsed("# one\n\n schedule  x # name\r\nstages 3\nranks 2\n\t\n"
                                   "micro-batches 4\nrank 1: 1F0\nrank 0:\nrank 1: 1F1 # more");
    CHECK(s->per_step == 4 && s->delay == 0 && !s->recompute && s->rank_of[2] == 0);
    CHECK(s->rank[0].count == 0 && s->rank[1].count == 2);
    ls__schedule_free(s);
    s = table_parsed(FIELDS); /* no list: for the verifier to refuse */
    CHECK_STATUS(ls__schedule_verify(s), LS_ERR_INVALID);
    ls__schedule_free(s);
}

static void refused(const char *text, int line, const char *found, const char *want)
{
    char whole[400];
    ls__schedule *s = (ls__schedule *)(uintptr_t)1;
    CHECK_STATUS(ls__schedule_parse(ls__env_posix(), "t", text, strlen(text), &s), LS_ERR_FORMAT);
    CHECK(s == NULL);
    (void)snprintf(whole, sizeof whole, "t, line %d: found %s; expected %s", line, found, want);
    CHECK_STR(ls_error_message(), whole);
}

TEST(a_number_out_of_range_is_named_with_the_range)
{
    ls__schedule *s = NULL;
    CHECK_STATUS(ls__schedule_parse(ls__env_posix(), "t", "delay x", 7, &s), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), SAYS("a number from %d to %d, or by-stage"));
    CHECK_STATUS(ls__schedule_parse(ls__env_posix(), "t", "ranks 0", 7, &s), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), SAYS("a number from %d to %d"));
    CHECK_STATUS(ls__schedule_parse(ls__env_posix(), "t", "ranks", 5, &s), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), SAYS("the end of the line"));
    CHECK_SAYS(ls_error_message(), SAYS("%s, line %d: found %s; expected %s"));
}

TEST(malformed_words_are_named_with_their_line_and_what_is_expected)
{
    const char *name = SAYS("a name of at most 31 letters, digits, - and _");
    const char *action = SAYS("an action such as 2F3, 2SEND_F3>1 or 2STEP@1");
    const char *rank = SAYS("a rank and a colon, as in \"rank 0:\"");
    refused("schedule a/b\n", 1, "a/b", name);
    refused("schedule\n", 1, "the end of the line", name);
    refused("\nranks 257\n", 2, "257", "a number from 1 to 256");
    refused("ranks 99999999999999999999\n", 1, "99999999999999999999", "a number from 1 to 256");
    refused("ranks 18446744073709551617\n", 1, "18446744073709551617",
            "a number from 1 to 256"); /* 2^64 + 1 */
    refused("ranks -1\n", 1, "-1", "a number from 1 to 256");
    refused("delay 1.5\n", 1, "1.5", "a number from 0 to 32768, or by-stage");
    refused("recompute maybe\n", 1, "maybe", SAYS("yes or no"));
    refused("ranks 1 2\n", 1, "2", "the end of the line");
    refused("rankz 1\n", 1, "rankz",
            SAYS("schedule, ranks, stages, micro-batches, per-step, delay, recompute, warm-up, "
                 "replicas, "
                 "placement or rank"));
    refused(FIELDS "placement 0 2\n", 5, "2", SAYS("a rank for each stage"));
    refused(FIELDS "placement 0\n", 5, "the end of the line", "a rank for each stage");
    refused(FIELDS "rank 2: 0F0\n", 5, "2:", rank);
    refused(FIELDS "rank 0 0F0\n", 5, "0", rank);
    refused(FIELDS "rank\n", 5, "the end of the line", rank);
    static const char *const bad[] = {"F0",         "0F",       "0X0",    "0F0>1", "0SEND_F0",
                                      "0SEND_F0<1", "0STEP",    "0STEP1", "0f0",   "65536F0",
                                      "0REDUCE0",   "0STEP@-1", "0F0,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[100];
        (void)snprintf(text, sizeof text, FIELDS "rank 0: 0F0 %s\n", bad[i]);
        refused(text, 5, bad[i], action);
    }
    refused(FIELDS "rank 0: \x01\xff\"\n", 5, "???", action);
}

static void says(const char *text, ls_status status, const char *sentence)
{
    ls__schedule *s = NULL;
    CHECK_STATUS(ls__schedule_parse(ls__env_posix(), "t", text, strlen(text), &s), status);
    CHECK_SAYS(ls_error_message(), sentence);
}

TEST(fields_that_are_missing_repeated_or_late_are_refused)
{
    const char *once = SAYS("%s, line %d: %s stands here a second time, or behind placement or "
                            "ranks' lists; give it once, before them");
    says("ranks 1\nranks 1\n", LS_ERR_FORMAT, once);
    says(FIELDS "rank 0:\ndelay 0\n", LS_ERR_FORMAT, once);
    says(FIELDS "placement 0 1\nplacement 0 1\n", LS_ERR_FORMAT,
         SAYS("%s, line %d: a second placement"));
    says("ranks 1\nrank 0:\n", LS_ERR_FORMAT,
         SAYS("%s, line %d: there is no line \"%s ...\" before this one"));
    says("", LS_ERR_FORMAT, "%s, line %d: there is no line \"%s ...\" before this one");
    says(FIELDS "per-step 2\n", LS_ERR_FORMAT,
         SAYS("%s: %d micro-batches are no whole number of steps of %d; change per-step"));
    says(FIELDS "replicas 2,1,1\n", LS_ERR_FORMAT,
         SAYS("%s: the replicas are those of %d stages, and there are %d"));
    says(FIELDS "replicas 2,\n", LS_ERR_INVALID, "with commas between them, as in 2,1,1");
    says(
        FIELDS "replicas 2,1\ndelay 1\n", LS_ERR_FORMAT,
        SAYS("%s: replicas need one step of all micro-batches, so no delay and no other per-step"));
    says("schedule x\nranks 3\nstages 2\nmicro-batches 4\nper-step 2\nreplicas 2,1\n",
         LS_ERR_FORMAT,
         "%s: replicas need one step of all micro-batches, so no delay and no other per-step");
    says("schedule x\nranks 3\nstages 2\nmicro-batches 4\nreplicas 2,1\nplacement 2 0\n",
         LS_ERR_FORMAT, "a rank for each stage");
    says("schedule x\nranks 2\nstages 1\nmicro-batches 1\n", LS_ERR_INVALID,
         "%s: %d ranks, %lld stages, %d micro-batches; there must be one of each, and a stage for "
         "every rank");
}

TEST_MAIN
