/* SPDX-License-Identifier: Apache-2.0 */
/* What the tokenizer's tests share. */
#ifndef TOKENIZER_COMMON_H
#define TOKENIZER_COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/runtime.h>
#include <lockstep/tokenizer.h>

#include "test.h"

static inline const char *fixture(const char *name)
{
    static char path[4][1024];
    static int next;
    char *out = path[next++ % 4];
    (void)snprintf(out, sizeof path[0], "%s/%s", test_source_path("tests/unit/tokenizer/fixture"),
                   name);
    return out;
}

/* Opens one; in a build without PCRE2 the test is skipped where it needs that. */
static inline ls_tokenizer *open_path(const char *path)
{
    ls_tokenizer *t = NULL;
    ls_status status = LS_STATUS_OF(t = ls_tokenizer_new(path));
    if (status == LS_ERR_UNSUPPORTED && strstr(ls_error_message(), "has no PCRE2")) {
        test_skip("this build has no PCRE2");
    }
    if (status < 0) {
        test_fail(__FILE__, __LINE__, "%s: %s", path, ls_error_message());
    }
    return t;
}

typedef struct tokens {
    int32_t *ids;
    int64_t count;
} tokens;

static inline tokens encode(const ls_tokenizer *t, const char *text, size_t bytes)
{
    tokens got = {0};
    CHECK_OK(ls_tokenizer_encode(t, text, bytes, &got.ids, &got.count));
    return got;
}

static inline void check_round_trip(const ls_tokenizer *t, const char *text, size_t bytes)
{
    char *back = NULL;
    size_t back_bytes = 0;
    tokens got = encode(t, text, bytes);
    CHECK_OK(ls_tokenizer_decode(t, got.ids, got.count, &back, &back_bytes));
    CHECK_INT(back_bytes, bytes);
    CHECK(memcmp(back, text, bytes) == 0);
    ls_bytes_free(back);
    ls_bytes_free(got.ids);
}

static inline uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

#endif
