/* SPDX-License-Identifier: Apache-2.0 */
/* Every reason for which the verifier refuses a table, by a smallest example of it. */
#include <stdio.h>

#include "execute.h"
#include "says.h"
#include "tables.h"

/* Two ranks with a stage each, and one micro-batch. */
#define FIELDS "schedule x\nranks 2\nstages 2\nmicro-batches 1\n"
#define RANK_0 "rank 0: 0F0 0SEND_F0>1 0RECV_B0<1 0B0 0REDUCE 0STEP@1\n"
#define RANK_1 "rank 1: 1RECV_F0<0 1F0 1B0 1SEND_B0>0 1REDUCE 1STEP@1\n"

/* Refused at this action, for this reason; the independent execution refuses it, too. */
static void refused(const char *text, const char *where, const char *why)
{
    ls__schedule *s = table_parsed(text);
    const ls_status status = ls__schedule_verify(s);
    if (status != LS_ERR_INVALID) {
        test_fail(__FILE__, __LINE__, "not refused: %s", text);
    }
    CHECK_CONTAINS(ls_error_message(), where);
    CHECK_SAYS(ls_error_message(), why);
    CHECK(!executes_as_twin(s, NULL));
    ls__schedule_free(s);
}

TEST(good_tables_are_accepted)
{
    ls__schedule *s = table_parsed(FIELDS RANK_0 RANK_1);
    CHECK_OK(ls__schedule_verify(s));
    CHECK(executes_as_twin(s, NULL));
    ls__schedule_free(s);
    /* Two stages on one rank need no messages; B beside I and W. */
    s = table_parsed(
        "schedule x\nranks 1\nstages 2\nmicro-batches 2\n"
        "rank 0: 0F0 1F0 0F1 1F1 1I1 1B0 1W1 0B0 0I1 0W1 1REDUCE 0REDUCE 0STEP@1 1STEP@1");
    CHECK_OK(ls__schedule_verify(s));
    CHECK(executes_as_twin(s, NULL));
    ls__schedule_free(s);
}

TEST(fields_must_name_what_there_is)
{
    refused(FIELDS "rank 0: 2F0\n", "schedule x: rank 0, action 1 (2F0)",
            SAYS("there is no such stage; they are 0 to %d"));
    refused(FIELDS "rank 0: 1F0\n", "(1F0)", SAYS("stage %d belongs to rank %d"));
    refused(FIELDS "rank 0: 0F1\n", "(0F1)",
            SAYS("there is no such micro-batch; they are 0 to %d"));
    refused(FIELDS "rank 0: 0F0 0SEND_B0>1\n", "action 2 (0SEND_B0>1)",
            SAYS("there is no stage %s this one"));
    refused(FIELDS "rank 0: 0F0 0SEND_F0>0\n", "(0SEND_F0>0)",
            SAYS("the peer must be rank %d, which has stage %d"));
    refused("schedule x\nranks 1\nstages 2\nmicro-batches 1\nrank 0: 0F0 0SEND_F0>0\n",
            "(0SEND_F0>0)", SAYS("stage %d is on this rank too, so nothing is sent"));
}

TEST(computations_must_have_their_inputs)
{
    refused(FIELDS "rank 0: 0F0 0F0\n", "action 2 (0F0)",
            SAYS("micro-batch %d has passed stage %d already"));
    refused(FIELDS "rank 1: 1F0\n", "rank 1, action 1 (1F0)",
            SAYS("the activations of stage %d are not here yet"));
    refused(FIELDS "rank 0: 0B0\n", "(0B0)",
            SAYS("the backward of micro-batch %d comes before its forward"));
    refused(FIELDS "rank 0: 0F0 0B0\n", "(0B0)", SAYS("the gradient of stage %d is not here yet"));
    refused(FIELDS RANK_0 "rank 1: 1RECV_F0<0 1F0 1B0 1B0\n", "action 4 (1B0)",
            SAYS("micro-batch %d has gone back through stage %d already"));
    refused(FIELDS RANK_0 "rank 1: 1RECV_F0<0 1F0 1W0\n", "(1W0)",
            SAYS("the weight part of micro-batch %d comes before its input part"));
    refused(FIELDS RANK_0 "rank 1: 1RECV_F0<0 1F0 1I0 1W0 1W0\n", "action 5 (1W0)",
            SAYS("the weight gradient of micro-batch %d has been added already"));
}

TEST(recomputation_stands_between_forward_and_backward)
{
    refused(FIELDS "rank 0: 0F0 0R0\n", "(0R0)", SAYS("these activations are kept already"));
    refused(FIELDS "recompute yes\nrank 0: 0R0\n", "(0R0)",
            SAYS("a recomputation stands between forward and backward"));
    refused(FIELDS "recompute yes\nrank 0: 0F0 0B0\n", "(0B0)",
            SAYS("the activations of micro-batch %d have not been recomputed"));
}

TEST(messages_are_sent_once_and_after_their_computation)
{
    refused(FIELDS "rank 0: 0SEND_F0>1\n", "(0SEND_F0>1)",
            SAYS("it is sent before it has been computed"));
    refused(FIELDS "rank 0: 0F0 0SEND_F0>1 0SEND_F0>1\n", "action 3 (0SEND_F0>1)",
            SAYS("a second message with the same contents"));
}

/* One rank, one stage. */
#define ALONE(micro_batches) "schedule x\nranks 1\nstages 1\nmicro-batches " micro_batches "\n"

TEST(gradients_are_summed_in_ascending_order_and_every_sum_is_reduced_and_used_once)
{
    refused(ALONE("2") "rank 0: 0F0 0F1 0B1 0B0 0REDUCE 0STEP@1\n", "(0B1)",
            SAYS("the weight gradients of a stage are added in ascending order, and that of "
                 "micro-batch %d is missing"));
    refused(ALONE("2") "per-step 1\nrank 0: 0F0 0B0 0F1 0B1 0REDUCE 0STEP@1\n", "(0F1)",
            "it would read version %d of the weights, but micro-batch %d uses version %d "
            "at stage %d");
    refused(ALONE("2") "per-step 1\ndelay 1\nrank 0: 0F0 0B0 0F1 0B1 0REDUCE 0STEP@1\n", "(0B1)",
            SAYS("a step is due before this gradient, for the %d micro-batches before it"));
    refused(ALONE("2") "rank 0: 0F0 0F1 0B0 0REDUCE\n", "(0REDUCE)",
            SAYS("the sum has the gradients of %d micro-batches, but a step takes %d"));
    refused(ALONE("1") "rank 0: 0F0 0B0 0REDUCE 0REDUCE\n", "action 4 (0REDUCE)",
            SAYS("this sum has been reduced already"));
    refused(ALONE("1") "rank 0: 0F0 0B0 0STEP@1\n", "(0STEP@1)",
            SAYS("a step follows the reduction of a sum of %d micro-batches, which is missing"));
    refused(ALONE("1") "rank 0: 0F0 0B0 0REDUCE 0STEP@2\n", "(0STEP@2)",
            SAYS("a step makes version %d from version %d"));
}

TEST(versions_must_be_there_and_be_those_of_the_rule)
{
    const char *other = SAYS("it would read version %d of the weights, but micro-batch %d uses "
                             "version %d at stage %d");
#define LATE ALONE("3") "per-step 1\ndelay 1\nrank 0: 0F0 0F1 0B0 0REDUCE "
    refused(LATE "0STASH@0 0STEP@1 0B1\n", "(0B1)", other); /* the backward reads another one */
    refused(LATE "0STASH@0 0STEP@1 0LOAD@0 0F2\n", "(0F2)", other);
    refused(LATE "0STEP@1 0LOAD@0\n", "action 6 (0LOAD@0)",
            SAYS("a step has overwritten version %d, which was not stashed before"));
    refused(LATE "0STEP@1 0LOAD@2\n", "(0LOAD@2)",
            SAYS("version %d has not been made; the newest is %d"));
    refused(LATE "0STEP@1 0STASH@0\n", "(0STASH@0)",
            SAYS("only the newest version can be stashed, which is %d"));
    refused(LATE "0STASH@0 0STASH@0\n", "action 6 (0STASH@0)",
            SAYS("version %d is stashed already"));
}

TEST(nothing_may_be_missing_at_the_end)
{
    const char *missing =
        SAYS("schedule %s: rank %d: the list ends without the %s of micro-batch %d at stage %d");
    refused(ALONE("1"), "without the forward of micro-batch 0", missing);
    refused(ALONE("1") "rank 0: 0F0\n", "without the backward of micro-batch 0", missing);
    refused(ALONE("1") "rank 0: 0F0 0I0\n", "without the weight part of micro-batch 0",
            SAYS("weight part"));
    refused(ALONE("1") "rank 0: 0F0 0B0 0REDUCE\n", "",
            SAYS("schedule %s: rank %d: the list ends without step %d of stage %d"));
}

#define TWO "schedule x\nranks 2\nstages 2\nmicro-batches 2\n"
#define END_0 "0B0 0B1 0REDUCE 0STEP@1\n"
#define END_1 "1REDUCE 1STEP@1\n"

TEST(messages_match_and_nobody_waits_for_ever)
{
    refused(TWO "rank 0: 0F0 0F1 0SEND_F1>1 0SEND_F0>1 0RECV_B0<1 0RECV_B1<1 " END_0
                "rank 1: 1RECV_F0<0 1RECV_F1<0 1F0 1F1 1B0 1SEND_B0>0 1B1 1SEND_B1>0 " END_1,
            "rank 1, action 1 (1RECV_F0<0)",
            SAYS("the next message from rank %d is %s (action %d there)"));
    /* Both wait for a receiver: two sends in a row need a receive of the first. */
    refused(TWO "rank 0: 0F0 0SEND_F0>1 0RECV_B0<1 0F1 0SEND_F1>1 0RECV_B1<1 " END_0
                "rank 1: 1RECV_F0<0 1F0 1RECV_F1<0 1F1 1B0 1SEND_B0>0 1B1 1SEND_B1>0 " END_1,
            "rank 0, action 3 (0RECV_B0<1): deadlock: it waits for rank 1, which waits in action 3 "
            "(1RECV_F1<0)",
            SAYS("deadlock: it waits for rank %d, which waits in action %d (%s)"));
    refused(FIELDS RANK_0 "rank 1: 1RECV_F0<0 1F0 1B0 1REDUCE 1STEP@1\n",
            "rank 0, action 3 (0RECV_B0<1)", SAYS("it waits for rank %d, whose list has ended"));
}

/* Sends of more than a channel holds, before anybody receives. */
TEST(a_table_that_needs_larger_channels_deadlocks)
{
    refused("schedule x\nranks 2\nstages 2\nmicro-batches 4\n"
            "rank 0: 0F0 0F1 0F2 0F3 0SEND_F0>1 0SEND_F1>1 0SEND_F2>1 0SEND_F3>1 0RECV_B0<1 0B0 "
            "0RECV_B1<1 0B1 0RECV_B2<1 0B2 0RECV_B3<1 0B3 0REDUCE 0STEP@1\n"
            "rank 1: 1RECV_F0<0 1F0 1B0 1SEND_B0>0 1RECV_F1<0 1F1 1B1 1SEND_B1>0 1RECV_F2<0 1F2 "
            "1B2 1SEND_B2>0 1RECV_F3<0 1F3 1B3 1SEND_B3>0 1REDUCE 1STEP@1\n",
            "rank 0, action 8 (0SEND_F3>1): deadlock: it waits for rank 1, which waits in action 8 "
            "(1SEND_B1>0)",
            "deadlock: it waits for rank %d, which waits in action %d (%s)");
}

/* Stage 0 on ranks 0 and 1, stage 1 on rank 2; micro-batch 1 on rank 1. */
#define SHARED "schedule x\nranks 3\nstages 2\nmicro-batches 2\nreplicas 2,1\n"
#define SHARED_0 "rank 0: 0F0 0SEND_F0>2 0RECV_B0<2 0B0 "
#define SHARED_1 "rank 1: 0F1 0SEND_F1>2 0RECV_B1<2 0B1 "
#define SHARED_2                                                                                   \
    "rank 2: 1RECV_F0<0 1F0 1B0 1SEND_B0>0 1RECV_F1<1 1F1 1B1 1SEND_B1>1 1REDUCE 1STEP@1\n"
#define SHARED_END "0REDUCE 0STEP@1\n"

TEST(a_micro_batch_is_on_its_replica)
{
    ls__schedule *s = table_parsed(SHARED SHARED_0 SHARED_END SHARED_1 SHARED_END SHARED_2);
    CHECK_OK(ls__schedule_verify(s));
    CHECK(executes_as_twin(s, NULL));
    ls__schedule_free(s);
    refused(SHARED "rank 0: 0F1\n", "(0F1)",
            SAYS("micro-batch %d of stage %d belongs to its replica on rank %d"));
    refused(SHARED "rank 2: 0F1\n", "(0F1)", SAYS("stage %d belongs to ranks %d to %d"));
    refused(SHARED "rank 1: 0F1 0SEND_F1>0\n", "(0SEND_F1>0)",
            "the peer must be rank %d, which has stage %d");
    refused(SHARED SHARED_0 SHARED_END SHARED_1 "\n" SHARED_2, "rank 1",
            "the list ends without step %d of stage %d");
    refused(SHARED SHARED_0 SHARED_END SHARED_2,
            "rank 1: the list ends without the forward of "
            "micro-batch 1",
            "the list ends without the %s of micro-batch %d at stage %d");
    refused(SHARED SHARED_0 SHARED_END "rank 1: 0F1 0SEND_F1>2 0REDUCE\n", "(0REDUCE)",
            "the sum has the gradients of %d micro-batches, but a step takes %d");
}

/* The second replica of stage 1 waits for a forward that stage 0 begins after it has the gradient
 * that the first one sends behind its reduction. */
TEST(a_reduction_waits_for_all_replicas)
{
    const char *early =
        "schedule x\nranks 3\nstages 2\nmicro-batches 2\nreplicas 1,2\n"
        "rank 0: 0F0 0SEND_F0>1 0RECV_B0<1 0B0 0F1 0SEND_F1>2 0RECV_B1<2 0B1 0REDUCE 0STEP@1\n"
        "rank 1: 1RECV_F0<0 1F0 1B0 1REDUCE 1SEND_B0>0 1STEP@1\n"
        "rank 2: 1RECV_F1<0 1F1 1B1 1SEND_B1>0 1REDUCE 1STEP@1\n";
    refused(early,
            "rank 0, action 3 (0RECV_B0<1): deadlock: it waits for rank 1, which waits in "
            "action 4 (1REDUCE)",
            "deadlock: it waits for rank %d, which waits in action %d (%s)");
}

TEST_MAIN
