/* SPDX-License-Identifier: Apache-2.0 */
/* The build without PCRE2: no expression can be compiled, and opening a tokenizer that needs one
 * fails with that reason. So the other functions are never reached with a split. */
#include "base/assert.h"
#include "base/error.h"
#include "tokenizer/split.h"

ls_status ls__split_new(const char *expression, const char *path, ls__split **out)
{
    (void)expression;
    *out = NULL;
    return ls__fail(
        LS_ERR_UNSUPPORTED,
        "tokenizer: \"%s\" splits by a regular expression, and this build has no PCRE2; "
        "install libpcre2-dev and build again, or use the tokenizer \"bytes\"",
        path);
}

void ls__split_free(ls__split *split)
{
    LS_ASSERT(split == NULL);
}

ls__split_match *ls__split_match_new(const ls__split *split)
{
    LS_ASSERT(split == NULL);
    return NULL;
}

void ls__split_match_free(ls__split_match *match)
{
    LS_ASSERT(match == NULL);
}

void ls__split_limit_time(ls__split_match *match, const ls__env *env, uint64_t deadline_ns)
{
    (void)env;
    (void)deadline_ns;
    LS_ASSERT(match == NULL);
}

ls_status ls__split_check_time(const ls__split_match *match, size_t at)
{
    (void)at;
    LS_ASSERT(match == NULL);
    return LS_OK;
}

ls_status ls__split_find(const ls__split *split, ls__split_match *match, const char *text,
                         size_t bytes, size_t from, size_t skew, size_t *begin, size_t *end)
{
    (void)match;
    (void)text;
    (void)from;
    (void)skew;
    LS_ASSERT(split == NULL);
    *begin = *end = bytes;
    return LS_OK;
}
