/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes are pinned; messages are whole and survive being built from one another. */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/runtime.h"
#include "says.h"
#include "test.h"

typedef struct pinned {
    const char *name;
    int value;
} pinned;

/* Written by hand: a code that changes breaks files and peers of another version. */
static const pinned statuses[] = {
    {"LS_OK", 0},
    {"LS_IN_PROGRESS", 1},
    {"LS_ERR_INVALID", -1},
    {"LS_ERR_MEMORY", -2},
    {"LS_ERR_SYSTEM", -3},
    {"LS_ERR_TIMEOUT", -4},
    {"LS_ERR_PEER", -5},
    {"LS_ERR_MISMATCH", -6},
    {"LS_ERR_ABORTED", -7},
    {"LS_ERR_STATE", -8},
    {"LS_ERR_UNSUPPORTED", -9},
    {"LS_ERR_FORMAT", -10},
    {"LS_ERR_NOT_FOUND", -11},
    {"LS_ERR_AUTH", -12},
    {"LS_ERR_LIMIT", -13},
    {"LS_ERR_STALE", -14},
    {"LS_ERR_FORKED", -15},
    {"LS_ERR_INTERNAL", -16},
    {"LS_ERR_PLACEMENT", -17},
};

TEST(every_status_code_has_its_pinned_number_and_name)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        const char *name = ls_status_name((ls_status)statuses[i].value);
        if (strcmp(name, statuses[i].name) != 0) {
            test_fail(__FILE__, __LINE__, "%d is %s, want %s", statuses[i].value, name,
                      statuses[i].name);
        }
    }
#define COUNT(name, value, text) +1
    CHECK_INT(0 LS_STATUS_TABLE(COUNT), sizeof statuses / sizeof *statuses);
    CHECK(strcmp(ls_status_name((ls_status)-99), SAYS("unknown status")) == 0);
    CHECK(strcmp(ls_status_name((ls_status)2), "unknown status") == 0);
}

typedef struct element {
    int value;
    const char *name;
    size_t size;
} element;

static const element elements[] = {
    {0, "float32", 4}, {1, "float64", 8}, {2, "float16", 2}, {3, "bfloat16", 2}, {4, "int8", 1},
    {5, "uint8", 1},   {6, "int32", 4},   {7, "int64", 8},   {8, "bool", 1},     {9, "int16", 2},
    {10, "uint16", 2}, {11, "uint32", 4}, {12, "uint64", 8},
};

TEST(every_dtype_has_its_pinned_number_name_and_size)
{
    CHECK_INT(LS_DTYPE_COUNT, sizeof elements / sizeof *elements);
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        ls_dtype dtype = (ls_dtype)elements[i].value;
        CHECK(strcmp(ls_dtype_name(dtype), elements[i].name) == 0);
        CHECK_INT(ls_dtype_size(dtype), elements[i].size);
    }
}

TEST(every_reduce_op_has_its_pinned_number_and_name)
{
    static const char *const names[] = {"sum", "product", "min", "max",
                                        "avg", "band",    "bor", "bxor"};
    CHECK_INT(LS_PREMUL_SUM, 8);
    CHECK_INT(LS_REDUCE_OP_COUNT, 9);
    CHECK_INT(LS_REDUCE_OP_USER, 64);
    for (int i = 0; i < 8; i++) {
        CHECK(strcmp(ls_reduce_op_name((ls_reduce_op)i), names[i]) == 0);
    }
}

TEST(values_out_of_range_are_invalid_and_have_no_size)
{
    static const int wrong[] = {-1, 13, 1000, -2147483647};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_INT(ls_dtype_size((ls_dtype)wrong[i]), 0);
        CHECK(strcmp(ls_dtype_name((ls_dtype)wrong[i]), "invalid") == 0);
        CHECK(strcmp(ls_reduce_op_name((ls_reduce_op)wrong[i]), "invalid") == 0);
    }
}

TEST(failing_sets_the_message_and_yields_the_code)
{
    CHECK(ls_error_message()[0] == '\0');
    CHECK_INT(ls__fail(LS_ERR_LIMIT, "store: %d keys, %s", 7, "delete some"), LS_ERR_LIMIT);
    CHECK(strcmp(ls_error_message(), "store: 7 keys, delete some") == 0);
    CHECK_INT(ls__self.status, LS_ERR_LIMIT);
}

TEST(context_is_put_before_the_message_with_a_colon)
{
    ls__fail(LS_ERR_FORMAT, "line 3: no value");
    CHECK_INT(ls__fail_within(LS_ERR_FORMAT, "reading %s", "a.json"), LS_ERR_FORMAT);
    CHECK(strcmp(ls_error_message(), "reading a.json: line 3: no value") == 0);
}

TEST(a_message_may_be_built_from_the_former_one)
{
    ls__fail(LS_ERR_PEER, "inner");
    ls__fail(LS_ERR_PEER, "outer (%s)", ls_error_message());
    CHECK(strcmp(ls_error_message(), "outer (inner)") == 0);
    ls__fail_again(LS_ERR_TIMEOUT, ls_error_message() + 6);
    CHECK(strcmp(ls_error_message(), "(inner)") == 0);
    CHECK_INT(ls__self.status, LS_ERR_TIMEOUT);
}

TEST(a_message_too_long_is_cut_with_an_ellipsis_and_stays_a_string)
{
    static char text[3 * LS__MESSAGE_MAX];
    for (size_t length = LS__MESSAGE_MAX - 2; length < LS__MESSAGE_MAX + 2; length++) {
        memset(text, 'x', length);
        text[length] = '\0';
        ls__fail(LS_ERR_INVALID, "%s", text);
        size_t want = length < LS__MESSAGE_MAX ? length : LS__MESSAGE_MAX - 1;
        CHECK_INT(strlen(ls_error_message()), want);
        bool cut = strcmp(ls_error_message() + want - 3, "...") == 0;
        CHECK_INT(cut, length >= LS__MESSAGE_MAX);
    }
    memset(text, 'y', sizeof text - 1);
    ls__fail_again(LS_ERR_INVALID, text);
    ls__fail_within(LS_ERR_INVALID, "%s", text);
    CHECK_INT(strlen(ls_error_message()), LS__MESSAGE_MAX - 1);
}

TEST(check_prints_rank_place_expression_and_message_and_ends_with_one)
{
    char command[2048];
    snprintf(command, sizeof command, "'%s' helper_that_fails_a_check 2>&1",
             test_build_path("tests/unit/base/status"));
    setenv("STATUS_TEST_FAIL", "1", 1);
    test_output out = test_run(command, 20);
    CHECK_INT(out.status, 1);
    CHECK_CONTAINS(out.text, "exit status 1");
    CHECK_CONTAINS(out.text, "rank 3: ");
    CHECK_CONTAINS(out.text, "status.c:");
    CHECK_CONTAINS(out.text, ": ls__fail(LS_ERR_STATE, \"too early\"): LS_ERR_STATE: too early");
    CHECK(!test_contains(out.text, "not reached"));
    free(out.text);
}

TEST(helper_that_fails_a_check)
{
    ls_runtime runtime;
    ls__runtime_init(&runtime, ls__env_posix());
    runtime.rank = 3;
    LS_CHECK(ls_runtime_attach(&runtime));
    LS_CHECK(LS_IN_PROGRESS);
    if (getenv("STATUS_TEST_FAIL") != NULL) {
        LS_CHECK(ls__fail(LS_ERR_STATE, "too early"));
        printf("not reached\n");
    }
}

TEST(the_library_has_the_version_of_its_headers)
{
    CHECK(strcmp(ls_version(), LS_VERSION) == 0);
}

TEST_MAIN
