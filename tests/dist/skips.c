/* SPDX-License-Identifier: Apache-2.0 */
/* SKIP in a DIST_TEST: all ranks together, or the failure of another one counts. */
#include <stdio.h>
#include <unistd.h>

#include "test.h"

static test_output run_helper(const char *helper)
{
    char command[2048];
    snprintf(command, sizeof command, "'%s' helper_%s", test_build_path("tests/dist/skips"),
             helper);
    return test_run(command, 60);
}

DIST_TEST(helper_all_skip, 3)
{
    usleep((useconds_t)ls_rank() * 20000u);
    SKIP("no rank can");
}

DIST_TEST(helper_one_skips_and_one_fails, 3)
{
    if (ls_rank() == 1) {
        usleep(50000);
        CHECK_INT(1, 2);
    }
    SKIP("only rank 1 tries");
}

TEST(a_test_all_of_whose_ranks_skip_is_skipped)
{
    test_output out = run_helper("all_skip");
    CHECK_CONTAINS(out.text, "ok 1 - helper_all_skip # SKIP no rank can\n");
    CHECK_INT(out.status, 0);
    free(out.text);
}

TEST(a_rank_that_skips_does_not_hide_the_failure_of_another)
{
    test_output out = run_helper("one_skips_and_one_fails");
    CHECK_CONTAINS(out.text, "not ok 1 - helper_one_skips_and_one_fails\n");
    CHECK_CONTAINS(out.text, "1: got 1, want 2");
    CHECK_INT(out.status, 1);
    free(out.text);
}

TEST_MAIN
