/* SPDX-License-Identifier: Apache-2.0 */
/* How the launcher names the end of a job that was not the ranks' own doing: a rank that is
 * stopped, a terminal that is closed, memory that is short. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

/* The launcher's first line, which is the headline of its report, has `part`. */
static void check_headline(const char *text, const char *part)
{
    test_output got = script_with("", text, 60);
    char *first = strstr(got.text, "lockstep: rank ");
    CHECK(first != NULL);
    first[strcspn(first, "\n")] = '\0';
    CHECK_SAYS(first, part);
    free(got.text);
}

TEST(a_stopped_rank_is_the_headline_when_the_others_reach_their_deadline)
{
    check_headline(
        "LOCKSTEP_TIMEOUT=2 $L run -n 3 sh -c '[ $RANK = 1 ] && { p=$$; (while [ ! -e up0 "
        "]; do sleep 0.1; done; kill -STOP $p) & }; exec $W train 1000000' 2>&1 | grep -v "
        "warning",
        "is stopped (state T; ");
}

TEST(a_closed_terminal_is_named)
{
    check_headline("$L run -n 2 sh -c 'echo up > up$RANK; exec sleep 20' & p=$!\n"
                   "until_file up0; until_file up1; kill -HUP $p; wait $p",
                   SAYS(": the terminal was closed"));
}

/* Version 1 of control groups, or 2; status 77: neither can be used here. */
#define GROUP                                                                                      \
    "G=/sys/fs/cgroup/memory/lockstep-test-$$; M=memory.limit_in_bytes\n"                          \
    "[ -d /sys/fs/cgroup/memory ] || { G=/sys/fs/cgroup/lockstep-test-$$; M=memory.max; }\n"       \
    "mkdir $G 2>/dev/null && echo 60000000 2>/dev/null > $G/$M || exit 77\n"                       \
    "trap 'sleep 0.2; rmdir $G' EXIT\n"

TEST(a_rank_that_the_kernel_kills_because_memory_is_short_is_told_from_others)
{
    test_output got = script_with(
        "",
        GROUP "export G; $L run -n 2 sh -c '[ $RANK = 0 ] && exec sleep 20; echo $$ > "
              "$G/cgroup.procs || exit 77; exec python3 -c \"len(bytes([1]) * 400000000)\"' 2>&1",
        60);
    if (got.status == 77 || geteuid() != 0) {
        SKIP("a control group of memory needs root and the controller");
    }
    CHECK_INT(got.status, 137);
    CHECK_SAYS(got.text, ": the kernel killed it because memory was short");
    free(got.text);
    check_headline("$L run -n 2 sh -c '[ $RANK = 0 ] && exec sleep 20; kill -KILL $$'",
                   "was killed by signal 9 (SIGKILL) ");
}

TEST_MAIN
