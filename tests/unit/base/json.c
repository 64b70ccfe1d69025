/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of JSON: the scanner counts what jansson would make, whatever the text is. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "says.h"
#include "test.h"

static const ls__json_limit wide = {1 << 20, 1 << 20, 1 << 20, 1 << 20};

static ls_status check(const char *text, ls__json_limit limit)
{
    return ls__json_check("file.json", text, strlen(text), &limit);
}

/* Values, containers and depth, counted by hand: the exact numbers are allowed, one less is not. */
static void expect(const char *text, size_t values, size_t containers, size_t depth)
{
    const ls__json_limit exact = {strlen(text), values, containers, depth};
    ls__json_limit less = exact;
    CHECK_OK(check(text, exact));
    less.values--;
    if (values > containers) {
        CHECK_STATUS(check(text, less), LS_ERR_LIMIT);
        CHECK_CONTAINS(ls_error_message(), " values, but at most ");
    }
    less = exact;
    less.bytes--;
    CHECK_STATUS(check(text, less), LS_ERR_LIMIT);
    if (containers > depth) {
        less = exact;
        less.containers--;
        CHECK_STATUS(check(text, less), LS_ERR_LIMIT);
        CHECK_CONTAINS(ls_error_message(), " objects and arrays, but at most ");
    }
    if (depth > 0) {
        less = exact;
        less.depth--;
        CHECK_STATUS(check(text, less), LS_ERR_LIMIT);
        CHECK_SAYS(ls_error_message(), "levels of objects and arrays");
    }
}

TEST(values_containers_and_depth_are_counted)
{
    expect("1", 1, 0, 0);
    expect("[]", 1, 1, 1);
    expect(" { \n } ", 1, 1, 1);
    expect("[1]", 2, 1, 1);
    expect("[[],[],[]]", 4, 4, 2);
    expect("{\"a\":[{},{}]}", 4, 4, 3);
    expect("{\"a\":1,\"b\":[2,3],\"c\":{\"d\":null}}", 7, 3, 2);
}

TEST(what_stands_in_a_string_does_not_count)
{
    expect("[\"[[[,,,{{{\"]", 2, 1, 1);
    expect("[\"\\\"[,\",\"\\\\\",[]]", 4, 2, 2);
    expect("{\"[,\\\\\\\"]\":\"]]]\"}", 2, 1, 1);
}

TEST(a_malformed_text_has_an_end)
{
    CHECK_OK(check("]]]}}}", wide));
    CHECK_OK(check("\"", wide));
    CHECK_OK(check("[\"\\", wide));
    CHECK_OK(check("[\"abc\\\"", wide));
}

static size_t values_of(const json_t *value)
{
    size_t i, count = 1;
    const char *key;
    json_t *inner;
    json_array_foreach((json_t *)(uintptr_t)value, i, inner)
    {
        count += values_of(inner);
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, inner)
    {
        count += values_of(inner);
    }
    return count;
}

/* A random text of JSON's own pieces: one of a few hundred is well-formed. */
static size_t draw(uint32_t *x, char *out)
{
    static const char *const pieces[] = {"[",     "]",        "{",      "}",    ",", ":",  "1",
                                         "\"a\"", "\"\\\"\"", "\"[,\"", "null", " ", "[]", "{}"};
    size_t length = 0;
    *x = *x * 1664525u + 1013904223u;
    for (uint32_t n = 1 + (*x >> 24) % 9; n > 0; n--) {
        *x = *x * 1664525u + 1013904223u;
        const char *piece = pieces[(*x >> 16) % (sizeof pieces / sizeof *pieces)];
        memcpy(out + length, piece, strlen(piece));
        length += strlen(piece);
    }
    out[length] = '\0';
    return length;
}

TEST(jansson_makes_as_many_values_as_were_counted)
{
    uint32_t x = (uint32_t)test_seed();
    int good = 0;
    for (int i = 0; i < 300000; i++) {
        char text[128];
        const size_t bytes = draw(&x, text);
        json_t *root = json_loadb(text, bytes, 0, NULL);
        if (root != NULL) {
            const size_t values = values_of(root);
            ls__json_limit exact = {bytes, values, values, values};
            CHECK_OK(check(text, exact));
            exact.values--;
            exact.containers = exact.depth = 0;
            CHECK_STATUS(check(text, exact), LS_ERR_LIMIT);
            good++;
        }
        json_decref(root);
    }
    CHECK(good > 1000);
}

TEST(an_error_names_file_found_and_allowed)
{
    const ls__json_limit limit = {100, 4, 2, 2};
    json_t *root;
    CHECK_STATUS(ls__json_read("file.json", "[[],[],[]]", 10, 0, &limit, &root), LS_ERR_LIMIT);
    CHECK_STR(ls_error_message(),
              "file.json: its JSON has 4 objects and arrays, but at most 2 are allowed");
    CHECK_SAYS(ls_error_message(), "%s: its JSON has %zu %s, but at most %zu are allowed");
    CHECK_SAYS(ls_error_message(), "objects and arrays");
    CHECK(root == NULL);
    CHECK_STATUS(ls__json_read("file.json", "[1,,2]", 6, 1000, &limit, &root), LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(),
                   "file.json: its JSON is malformed at offset 1004 (line 1): ");
    CHECK_STATUS(ls__json_read("file.json", NULL, 0, 0, &limit, &root), LS_ERR_FORMAT);
    CHECK_CONTAINS(ls_error_message(), "file.json: it is empty");
    CHECK_OK(ls__json_read("file.json", "[1,2]", 5, 0, &limit, &root));
    CHECK_INT(json_array_size(root), 2);
    json_decref(root);
}

TEST_MAIN
