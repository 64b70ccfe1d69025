/* SPDX-License-Identifier: Apache-2.0 */
/* When the memory of an operation in one shot may be written again. */
#include "comm/engine/one_shot.h"
#include "comm/core/group.h"
#include "test.h"

/* Of the two slots of the wide stage the one used longer ago is written again, which every member
 * must have read by then: by what was looked up, or by what was reported. */
TEST(a_wide_slot_is_written_again_only_when_all_have_read_it)
{
    static ls_group group;
    group.stage.wide[0] = 7, group.stage.wide[1] = 5;
    group.room_until = 4, group.finished_seen = 3;
    CHECK(!ls__one_shot_has_wide(&group));
    group.room_until = 5;
    CHECK(ls__one_shot_has_wide(&group));
    group.room_until = 4, group.finished_seen = 5;
    CHECK(ls__one_shot_has_wide(&group));
    group.stage.wide[1] = 9; /* now the other one is the older */
    CHECK(!ls__one_shot_has_wide(&group));
    group.finished_seen = 7;
    CHECK(ls__one_shot_has_wide(&group));
}

TEST_MAIN
