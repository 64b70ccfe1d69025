/* SPDX-License-Identifier: Apache-2.0 */
/* The only file that calls utf8proc. Most text needs no call: all characters below U+0300, the
 * first accent, are as they should be. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/normal.h"

#define FIRST_ACCENT 0xcc /* the first byte of U+0300 */
#define AROUND 32         /* bytes before a cut that are looked at; three characters decide */

ls_status ls__normal_available(const char *path)
{
    (void)path;
    return LS_OK;
}

/* The end of the run of UTF-8 that begins at `from`. */
static size_t valid_end(const char *text, size_t bytes, size_t from, bool *accents)
{
    for (size_t length; from < bytes; from += length) {
        *accents = *accents || (unsigned char)text[from] >= FIRST_ACCENT;
        length = ls__utf8_bytes(text + from, bytes - from);
        if (length == 0) {
            break;
        }
    }
    return from;
}

/* Of valid UTF-8; free(*out). */
static ls_status compose(const char *text, size_t bytes, utf8proc_uint8_t **out, size_t *out_bytes)
{
    const utf8proc_ssize_t made =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, out,
                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    *out_bytes = made > 0 ? (size_t)made : 0;
    return made >= 0 ? LS_OK
                     : ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for the form NFC of %zu bytes",
                                bytes);
}

/* A growing copy. */
typedef struct copy {
    char *text;
    size_t bytes, room;
} copy;

static ls_status append(copy *c, const void *from, size_t bytes)
{
    if (bytes > c->room - c->bytes) {
        const size_t room = 2 * (c->bytes + bytes) + 64;
        char *grown = realloc(c->text, room);
        if (grown == NULL) {
            return ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for the form NFC of %zu bytes",
                            bytes);
        }
        c->text = grown;
        c->room = room;
    }
    memcpy(c->text + c->bytes, from, bytes);
    c->bytes += bytes;
    return LS_OK;
}

/* A run of UTF-8 and the byte behind it, which is none. */
static ls_status append_run(copy *c, const char *text, size_t bytes, size_t *from)
{
    bool accents = false;
    utf8proc_uint8_t *composed = NULL;
    size_t composed_bytes = 0;
    const size_t end = valid_end(text, bytes, *from, &accents);
    LS_TRY(compose(text + *from, end - *from, &composed, &composed_bytes));
    ls_status status = append(c, composed, composed_bytes);
    free(composed);
    *from = end;
    if (status == LS_OK && end < bytes) {
        status = append(c, text + end, 1);
        *from = end + 1;
    }
    return status;
}

ls_status ls__normal_make(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    copy c = {0};
    bool accents = false;
    *out = NULL;
    if (valid_end(text, bytes, 0, &accents) == bytes && !accents) {
        return LS_OK;
    }
    ls_status status = LS_OK;
    for (size_t from = 0; status == LS_OK && from < bytes;) {
        status = append_run(&c, text, bytes, &from);
    }
    if (status < 0 || (c.bytes == bytes && memcmp(c.text, text, bytes) == 0)) {
        free(c.text);
        return status;
    }
    *out = c.text;
    *out_bytes = c.bytes;
    return LS_OK;
}

ls_status ls__normal_check(const char *text, size_t bytes, bool *normal)
{
    char *out = NULL;
    size_t out_bytes = 0;
    LS_TRY(ls__normal_make(text, bytes, &out, &out_bytes));
    *normal = out == NULL;
    free(out);
    return LS_OK;
}

/* The parts before and behind the cut, each by itself, and both together. Accents never begin a
 * part: they may change places with those before. */
bool ls__normal_may_cut(const char *text, size_t bytes, size_t at)
{
    utf8proc_int32_t next = 0;
    utf8proc_uint8_t *left = NULL, *right = NULL, *both = NULL;
    size_t left_bytes = 0, right_bytes = 0, both_bytes = 0, begin = at < AROUND ? 0 : at - AROUND;
    const size_t length = at < bytes ? ls__utf8_bytes(text + at, bytes - at) : 0;
    while (begin < at && (text[begin] & 0xc0) == 0x80) {
        begin++;
    }
    if (length == 0 || utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                        (utf8proc_ssize_t)length, &next) <= 0) {
        return true;
    }
    if (utf8proc_get_property(next)->combining_class != 0) {
        return false;
    }
    const bool made = compose(text + begin, at - begin, &left, &left_bytes) == LS_OK &&
                      compose(text + at, length, &right, &right_bytes) == LS_OK &&
                      compose(text + begin, at - begin + length, &both, &both_bytes) == LS_OK;
    const bool same =
        !made || (both_bytes == left_bytes + right_bytes && memcmp(both, left, left_bytes) == 0 &&
                  memcmp(both + left_bytes, right, right_bytes) == 0);
    free(left);
    free(right);
    free(both);
    return same;
}
