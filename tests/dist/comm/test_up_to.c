/* SPDX-License-Identifier: Apache-2.0 */
/* Receives of messages whose length only the sender has: any length up to the receiver's room. */
#include "says.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

enum { ROOM = 300000 }; /* of int32: beyond a piece of any transport */

static const int64_t lengths[] = {0, 1, 7, 4096, 70001, ROOM};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static int32_t value(int from, int message, int64_t i)
{
    return (int32_t)(i * 7 + message * 1000003 + from);
}

static void fill(int32_t *x, int64_t count, int from, int message)
{
    for (int64_t i = 0; i < count; i++) {
        x[i] = value(from, message, i);
    }
}

/* What came is what was sent, and nothing behind it was written. */
static void check(const int32_t *x, int64_t count, int from, int message)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < ROOM; i++) {
        wrong += x[i] != (i < count ? value(from, message, i) : -1);
    }
    CHECK_INT(wrong, 0);
}

/* All lengths around a ring, every receive posted with the same room, before or after the send. */
static void around(bool any, bool late)
{
    const int size = ls_world_size(), next = (ls_rank() + 1) % size;
    const int from = (ls_rank() + size - 1) % size;
    int32_t *in = malloc(ROOM * sizeof *in), *out = malloc(ROOM * sizeof *out);
    CHECK(in != NULL && out != NULL);
    for (int m = 0; m < LENGTHS; m++) {
        ls_work *sent = NULL, *came = NULL;
        fill(in, lengths[m], ls_rank(), m);
        memset(out, 0xff, ROOM * sizeof *out);
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 1) == late) {
                CHECK_OK(ls_recv_up_to(ls_world(), out, ROOM, LS_INT32, any ? LS_ANY_SOURCE : from,
                                       m, NULL, &came));
            } else {
                CHECK_OK(ls_send(ls_world(), in, lengths[m], LS_INT32, next, m, NULL, &sent));
                CHECK_INT(ls_work_count(sent), -1);
            }
        }
        while (ls_work_test(came) == LS_IN_PROGRESS) {
        }
        CHECK_INT(ls_work_count(came), lengths[m]);
        CHECK_INT(ls_work_source(came), from);
        CHECK_OK(ls_work_wait(came));
        CHECK_OK(ls_work_wait(sent));
        check(out, lengths[m], from, m);
    }
    free(in);
    free(out);
}

DIST_TEST(every_length_up_to_the_room_arrives_1, 1)
{
    around(false, false);
    around(true, true);
}

DIST_TEST(every_length_up_to_the_room_arrives_2, 2)
{
    around(false, false);
    around(false, true);
    around(true, false);
}

DIST_TEST(every_length_up_to_the_room_arrives_5, 5)
{
    around(true, false);
    around(false, true);
}

/* Lengths that differ from message to message, all in flight at once, one tag. */
DIST_TEST(messages_of_one_tag_keep_their_order_and_lengths, 2)
{
    enum { MESSAGES = 40 };
    int32_t x[MESSAGES][MESSAGES];
    ls_work *work[MESSAGES];
    for (int m = 0; m < MESSAGES; m++) {
        fill(x[m], MESSAGES, ls_rank(), m);
        CHECK_OK(ls_rank() == 0
                     ? ls_send(ls_world(), x[m], m * 17 % MESSAGES, LS_INT32, 1, 3, NULL, &work[m])
                     : ls_recv_up_to(ls_world(), x[m], MESSAGES, LS_INT32, 0, 3, NULL, &work[m]));
    }
    for (int m = 0; m < MESSAGES; m++) {
        const int64_t length = m * 17 % MESSAGES;
        while (ls_work_test(work[m]) == LS_IN_PROGRESS) {
        }
        CHECK_INT(ls_work_count(work[m]), ls_rank() == 0 ? -1 : length);
        CHECK_OK(ls_work_wait(work[m]));
        for (int64_t i = 0; i < MESSAGES; i++) {
            CHECK_INT(x[m][i], value(ls_rank() == 1 && i < length ? 0 : ls_rank(), m, i));
        }
    }
}

DIST_TEST(nothing_has_been_counted_before_the_message, 2)
{
    int32_t x[4] = {0};
    ls_work *work = NULL;
    if (ls_rank() == 0) {
        CHECK_OK(ls_recv_up_to(ls_world(), x, 4, LS_INT32, 1, 0, NULL, &work));
        CHECK_INT(ls_work_count(work), -1);
        CHECK_INT(ls_work_count(NULL), -1);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    if (ls_rank() == 1) {
        CHECK_OK(ls_send(ls_world(), x, 2, LS_INT32, 0, 0, NULL, NULL));
    } else {
        CHECK_OK(ls_work_wait(work));
    }
}

/* Both sides fail, whichever comes first. */
static void refused(int64_t count, ls_dtype sent, const char *text)
{
    int32_t x[8] = {0};
    ls_group *group = NULL;
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "room", &group));
    CHECK_STATUS(ls_rank() == 0 ? ls_recv_up_to(group, x, 4, LS_INT32, 1, 9, NULL, NULL)
                                : ls_send(group, x, count, sent, 0, 9, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), text);
    CHECK_SAYS(ls_error_message(), "receives up to");
    CHECK_CONTAINS(ls_error_message(), "rank 0 receives up to int32[4]");
    CHECK_SAYS(ls_error_message(),
               "send/recv with tag %d on group \"%s\" disagree: %s, %s; give the "
               "receiver room for the message, and both the same dtype");
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_message_beyond_the_room_fails_on_both_sides, 2)
{
    refused(5, LS_INT32, "rank 1 sends int32[5]");
}

DIST_TEST(a_message_of_another_dtype_fails_on_both_sides, 2)
{
    refused(3, LS_FLOAT32, "rank 1 sends float32[3]");
}

TEST_MAIN
