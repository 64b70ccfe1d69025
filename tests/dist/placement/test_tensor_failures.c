/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a tensor-parallel group dies, hangs, has weight 0 or no data left, by real processes
 * under the launcher. */
#include "../ending.h"

#define VICTIM "tests/dist/placement/tensor_victim"

TEST(a_rank_of_a_tensor_group_that_is_killed_is_named_by_all)
{
    for (int rank = 0; rank < 4; rank++) {
        check_killed(VICTIM, "forward", rank, "");
        check_killed(VICTIM, "backward", rank, "");
    }
}

TEST(a_rank_of_a_tensor_group_that_hangs_is_named)
{
    check_hangs(VICTIM, 2, "tensor_victim.c");
}

static void check_whole(const char *place)
{
    ending e = run_victim(VICTIM, place, 2, "");
    CHECK_INT(e.out.status, 0);
    CHECK_INT(count_of(e.out.text, "2 identical"), 4);
    free(e.out.text);
}

TEST(a_data_group_of_weight_0_answers_the_collectives)
{
    check_whole("weight0");
    check_whole("none");
}

TEST(a_data_group_without_data_joins)
{
    check_whole("join");
}

TEST_MAIN
