/* SPDX-License-Identifier: Apache-2.0 */
/* When the memory of an operation in one shot may be written again. */
#include "comm/engine/one_shot.h"
#include "comm/core/group.h"
#include "test.h"

/* Operation 8 takes the slot of operation 6 in the wide stage, which every member must have read by
 * then: by what was looked up, or by what was reported. */
TEST(a_wide_slot_is_written_again_only_when_all_have_read_it)
{
    static ls_group group;
    static ls__control_block control;
    static ls__group_member member = {.control = &control};
    group.size = 1, group.member = &member;
    group.sequence = 7;
    group.room_until = 5, group.finished_seen = 4;
    atomic_store(&control.finished, 5);
    CHECK(!ls__one_shot_has_wide(&group));
    atomic_store(&control.finished, 6);
    CHECK(ls__one_shot_has_wide(&group));
    atomic_store(&control.finished, 0);
    group.room_until = 5, group.finished_seen = 6;
    CHECK(ls__one_shot_has_wide(&group));
    group.sequence = 8;
    CHECK(!ls__one_shot_has_wide(&group));
}

TEST_MAIN
