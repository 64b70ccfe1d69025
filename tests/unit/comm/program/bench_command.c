/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench`: rows that a program can read, sums that are right, flags that are understood or
 * answered in words. Times are not judged here. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test.h"

static test_output bench(const char *flags)
{
    char command[1024];
    snprintf(command, sizeof command, "'%s' bench %s", test_build_path("lockstep"), flags);
    return test_run(command, 50);
}

static void check_refused(const char *flags, const char *words)
{
    const test_output output = bench(flags);
    CHECK_INT(output.status, 2);
    CHECK_CONTAINS(output.text, words);
    CHECK_CONTAINS(output.text, "--help");
    free(output.text);
}

TEST(wrong_flags_are_answered_in_words)
{
    check_refused("", "say what to time");
    check_refused("all-to-none", "\"all-to-none\" is not known; there is all-reduce");
    check_refused("all-reduce -n 0", "--ranks is \"0\"; give a whole number from 1 to 64");
    check_refused("all-reduce -n many", "--ranks is \"many\"; give a whole number");
    check_refused("all-reduce -n", "--ranks needs a value");
    check_refused("all-reduce --sizes 1M,,2M", "\"\" is not a size");
    check_refused("all-reduce --sizes 1X", "\"1X\" is not a size");
    check_refused("all-reduce --sizes -4", "\"-4\" is not a size");
    check_refused("all-reduce --sizes 9999999999G", "is not a size");
    check_refused("all-reduce --sizes 7", "7 is not a multiple of 4 bytes");
    check_refused("all-reduce --buffers=both", "--buffers is \"both\"; give registered or private");
    check_refused("all-reduce --warmup 0", "--warmup is \"0\"; give a whole number from 1");
    check_refused("all-reduce --fast", "unknown option --fast");
    const test_output output = bench("all-reduce --json /nowhere/at/all.json");
    CHECK_INT(output.status, 1);
    CHECK_CONTAINS(output.text, "cannot write to /nowhere/at/all.json");
    free(output.text);
}

static double number(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    CHECK(json_is_number(value));
    return json_number_value(value);
}

static void check_row(const json_t *row, double bytes, int ranks, const char *buffers)
{
    CHECK_NEAR(number(row, "bytes"), bytes, 0);
    CHECK_NEAR(number(row, "ranks"), ranks, 0);
    CHECK_NEAR(number(row, "wrong"), 0, 0);
    CHECK(number(row, "time_ms") > 0 && number(row, "floor_ms") > 0);
    CHECK_NEAR(number(row, "ratio"), number(row, "time_ms") / number(row, "floor_ms"), 1e-9);
    CHECK_NEAR(number(row, "busbw"), number(row, "algbw") * 2 * (ranks - 1) / ranks, 1e-9);
    CHECK(strcmp(json_string_value(json_object_get(row, "buffers")), buffers) == 0);
    CHECK(strcmp(json_string_value(json_object_get(row, "algorithm")), "unknown") != 0);
    CHECK(json_is_string(json_object_get(json_object_get(row, "machine"), "cpu")));
}

static void check_rows(int ranks, const char *buffers)
{
    static const double bytes[] = {4, 1000, 65536, 300000};
    char flags[512], path[] = "/tmp/lockstep-bench-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && close(file) == 0);
    snprintf(flags, sizeof flags,
             "all-reduce -n %d --sizes 4,1K,64Ki,300K --buffers %s --samples 2 --json %s", ranks,
             buffers, path);
    const test_output output = bench(flags);
    json_error_t error;
    json_t *rows = json_load_file(path, 0, &error);
    unlink(path);
    if (output.status != 0) {
        test_fail(__FILE__, __LINE__, "%s: status %d: %s", flags, output.status, output.text);
    }
    CHECK_CONTAINS(output.text, "busbw");
    CHECK(json_array_size(rows) == 4);
    for (size_t i = 0; i < 4; i++) {
        check_row(json_array_get(rows, i), bytes[i], ranks, buffers);
    }
    json_decref(rows);
    free(output.text);
}

TEST(rows_are_right_on_1_to_5_ranks_in_both_kinds_of_memory)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        check_rows(ranks, "registered");
        check_rows(ranks, "private");
    }
}

TEST_MAIN
