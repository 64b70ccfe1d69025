/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions that cut a text into words; PCRE2 behind it, or nothing (split_none.c). */
#ifndef LS_TOKENIZER_SPLIT_H
#define LS_TOKENIZER_SPLIT_H

#include <lockstep/status.h>

#include "base/env.h"

typedef struct ls__split ls__split;             /* compiled; for any number of threads */
typedef struct ls__split_match ls__split_match; /* what one thread needs to match */

/* `path` is the file that asks for it, for messages. LS_ERR_UNSUPPORTED without PCRE2. */
ls_status ls__split_new(const char *expression, const char *path, ls__split **out);
void ls__split_free(ls__split *split); /* NULL is allowed */

ls__split_match *ls__split_match_new(const ls__split *split); /* NULL: no memory */
void ls__split_match_free(ls__split_match *match);            /* NULL is allowed */

/* The expression may be made to be slow: searches fail from this time on. */
void ls__split_limit_time(ls__split_match *match, const ls__env *env, uint64_t deadline_ns);
/* LS_ERR_LIMIT: that time has come; `at` is the place in the text. */
ls_status ls__split_check_time(const ls__split_match *match, size_t at);

/* The first match that is not empty at or after `from`; *begin == *end == bytes: there is none. The
 * text is valid UTF-8. `skew` is added to places in messages. */
ls_status ls__split_find(const ls__split *split, ls__split_match *match, const char *text,
                         size_t bytes, size_t from, size_t skew, size_t *begin, size_t *end);

#endif
