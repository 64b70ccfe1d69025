/* SPDX-License-Identifier: Apache-2.0 */
/* The form NFC of Unicode (UAX 15): a letter and its accents as one character where there is one.
 * utf8proc is behind it, or nothing (normal_none.c). */
#ifndef LS_TOKENIZER_NORMAL_H
#define LS_TOKENIZER_NORMAL_H

#include <stdbool.h>
#include <stddef.h>

#include <lockstep/status.h>

/* LS_ERR_UNSUPPORTED without utf8proc; `path` is the file that asks for it. */
ls_status ls__normal_available(const char *path);
/* text[bytes] in the form NFC, free(*out); NULL if it is in that form. Bytes that are not UTF-8
 * stay. */
ls_status ls__normal_make(const char *text, size_t bytes, char **out, size_t *out_bytes);
ls_status ls__normal_check(const char *text, size_t bytes, bool *normal);
/* Whether the text may be cut at `at`, between two characters, so that its parts have the form of
 * the whole. */
bool ls__normal_may_cut(const char *text, size_t bytes, size_t at);

#endif
