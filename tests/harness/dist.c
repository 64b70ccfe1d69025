/* DIST_TEST: the body of a test on N ranks, each a process started by ls_spawn. */
#include <stdio.h>

#include "harness.h"

static int rank_main(void *arg)
{
    const test_case *test = arg;
    CHECK_OK(ls_init(NULL));
    CHECK_INT(ls_world_size(), test->ranks);
    test->body();
    CHECK_OK(ls_finalize());
    return 0;
}

int test_run_ranks(const test_case *test)
{
    ls_status status = ls_spawn(rank_main, (void *)(uintptr_t)test, test->ranks);
    if (test_skips() == test->ranks) { /* of some alone: another failed, and that counts */
        return TEST_EXIT_SKIPPED;
    }
    if (status != LS_OK) {
        printf("%s: %s\n", ls_status_name(status), ls_error_message());
    }
    return status == LS_OK ? 0 : 1;
}
