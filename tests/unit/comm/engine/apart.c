/* Who leaves a core that ranks share, and for which. */
#include "comm/engine/apart.h"

#include "test.h"

/* The cores it will not go to, as a sum of 1 << core; -1: it stays. */
static int avoids(const int *cpu, int ranks, int me)
{
    int taken[LS__PROGRAM_RANKS_MAX], count = 0, found = 0;
    if (!ls__apart_leaves(cpu, ranks, me, taken, &count)) {
        return -1;
    }
    for (int i = 0; i < count; i++) {
        found |= 1 << taken[i];
    }
    return found;
}

TEST(of_two_on_one_core_the_second_leaves)
{
    const int cpu[] = {1, 1};
    CHECK_INT(avoids(cpu, 2, 0), -1);
    CHECK_INT(avoids(cpu, 2, 1), 1 << 1);
}

TEST(who_is_alone_or_does_not_know_stays)
{
    const int apart[] = {0, 1}, unknown[] = {-1, -1};
    for (int r = 0; r < 2; r++) {
        CHECK_INT(avoids(apart, 2, r), -1);
        CHECK_INT(avoids(unknown, 2, r), -1);
    }
}

TEST(a_core_with_one_rank_is_no_better_than_one_that_two_share)
{
    const int cpu[] = {0, 1, 0};
    CHECK_INT(avoids(cpu, 3, 2), 1 << 0 | 1 << 1); /* a third one, if there is */
    CHECK_INT(avoids(cpu, 3, 0), -1);
}

TEST(of_more_ranks_than_cores_as_many_share_each)
{
    const int three[] = {0, 0, 1, 0}, even[] = {0, 1, 1, 0};
    CHECK_INT(avoids(three, 4, 3), 1 << 0); /* to core 1, where one is */
    CHECK_INT(avoids(three, 4, 1), -1);
    CHECK_INT(avoids(even, 4, 3), 1 << 0 | 1 << 1);
}

TEST_MAIN
