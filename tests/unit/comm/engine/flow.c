/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers that join the two ends of a message in a trace. */
#include "comm/core/flight.h"
#include "comm/core/group.h"
#include "test.h"

/* Of a member of a group of world's ranks 4 and 7; `peer` is a member too. */
static uint64_t flow_of(int own, ls__operation operation, int peer, uint64_t number)
{
    ls_runtime runtime = {.rank = own};
    ls__comm comm = {.runtime = &runtime};
    ls__group_member member[] = {{.world_rank = 4}, {.world_rank = 7}};
    ls_group group = {.comm = &comm, .id = 3, .size = 2, .member = member};
    const ls_work work = {.group = &group,
                          .operation = operation,
                          .descriptor = {.root = peer},
                          .message = {.number = number}};
    return ls__flight_flow(&work);
}

TEST(both_ends_of_a_message_have_one_number_and_others_have_others)
{
    const uint64_t sent = flow_of(4, LS__OP_SEND, 1, 5);
    CHECK(sent != 0 && flow_of(7, LS__OP_RECV, 0, 5) == sent);
    CHECK(flow_of(7, LS__OP_SEND, 0, 5) != sent);
    CHECK(flow_of(4, LS__OP_SEND, 1, 6) != sent);
}

TEST(a_failed_receive_from_any_rank_has_no_other_end)
{
    CHECK_INT(flow_of(4, LS__OP_RECV, LS_ANY_SOURCE, 5), 0);
    CHECK_INT(flow_of(4, LS__OP_RECV, 2, 5), 0);
}

TEST_MAIN
