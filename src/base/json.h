/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of files and peers, read by jansson after its size is known to be within limits.
 *
 * jansson makes an object of memory for every value: 232 bytes for "{}", 136 for "[]", 40 to 129
 * for the others (measured with jansson 2.14 on x86-64). A text of a few bytes a value therefore
 * takes up to 80 times its own size, so ls__json_read counts the values of a text before jansson
 * sees it.
 */
#ifndef LS_BASE_JSON_H
#define LS_BASE_JSON_H

#include <jansson.h>
#include <stddef.h>

#include <lockstep/status.h>

/* The largest text of a kind. It follows from the largest true file of that kind, and bounds the
 * memory: 4 million values, of which 1 million are containers, take at most 1.1 GB. */
typedef struct ls__json_limit {
    size_t bytes;
    size_t values;     /* at any depth, containers included */
    size_t containers; /* objects and arrays */
    size_t depth;      /* containers around a value */
} ls__json_limit;

#define LS__JSON_VALUES_MAX ((size_t)1 << 22)
#define LS__JSON_CONTAINERS_MAX ((size_t)1 << 20)

/* LS_ERR_LIMIT if `text` exceeds the limit. `what` begins the message and names the file. Takes no
 * memory, and one pass over the text. */
ls_status ls__json_check(const char *what, const char *text, size_t bytes,
                         const ls__json_limit *limit);
/* Checks the text and parses it; a key that occurs twice in an object is refused. LS_ERR_FORMAT
 * names the offset, counted from `begin`: the offset of the text in its file.
 * json_decref(*root). */
ls_status ls__json_read(const char *what, const char *text, size_t bytes, size_t begin,
                        const ls__json_limit *limit, json_t **root);

#endif
