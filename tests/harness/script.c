/* SPDX-License-Identifier: Apache-2.0 */
/* Shell scripts as tests of the command. */
#include "script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "says.h"

#define SECONDS 30
#define LATE_SECONDS_MAX 15
#define SCRIPT_BYTES 8192

/* A deadline that shall pass, but not before what comes in time has come. */
static int late_seconds(void)
{
    const double seconds = 2.0 * test_slow_down() * TEST_SLOWER;
    return seconds < LATE_SECONDS_MAX ? (int)seconds : LATE_SECONDS_MAX;
}

test_output script_with(const char *definitions, const char *text, int seconds)
{
    char command[SCRIPT_BYTES + 10240], examples[2048], programs[2048], member[2048], worker[2048];
    snprintf(examples, sizeof examples, "%s", test_build_path("examples"));
    snprintf(programs, sizeof programs, "%s", test_build_path("programs"));
    snprintf(member, sizeof member, "%s", test_build_path("tests/dist/launch/member"));
    snprintf(worker, sizeof worker, "%s", test_build_path("tests/dist/launch/worker"));
    snprintf(command, sizeof command,
             "L=%s; E=%s; P=%s; M=%s; W=%s; LATE=%d; D=$(mktemp -d); trap 'rm -rf $D' EXIT\n"
             "export L E P M W D\n"
             "cd $D; umask 077\n"
             "until_file() { until [ -s $1 ]; do sleep 0.01; done; }\n"
             "until_gone() { for p in \"$@\"; do while kill -0 $p 2>/dev/null; do sleep 0.01; "
             "done; done; }\n%s\n%s",
             test_build_path("lockstep"), examples, programs, member, worker, late_seconds(),
             definitions, text);
    return test_run(command, seconds);
}

test_output script(const char *text)
{
    return script_with("", text, SECONDS);
}

void check_script(const char *text, int status, const char *part)
{
    test_output got = script(text);
    if (got.status != status) {
        test_fail(__FILE__, __LINE__, "%s\nstatus %d, want %d: %s", text, got.status, status,
                  got.text);
    }
    if (part[0] != '\0') {
        CHECK_SAYS(got.text, part);
    }
    free(got.text);
}

int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part)) {
        count++;
    }
    return count;
}

void check_count(test_output (*run)(const char *text), const char *text, const char *part,
                 int times)
{
    test_output got = run(text);
    if (test_count_said(got.text, part) != times) {
        test_fail(__FILE__, __LINE__, "%s\nwant %d lines with \"%s\": %s", text, times, part,
                  got.text);
    }
    free(got.text);
}
