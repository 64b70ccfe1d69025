/* SPDX-License-Identifier: Apache-2.0 */
/* Where a long text may be cut, so that its parts can be encoded beside each other. */
#include <string.h>

#include "base/text.h"
#include "tokenizer/normal.h"
#include "tokenizer/tokenizer.h"

/* ASCII only: a byte of a longer character would need the expression's own notion of a letter. */
static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether an added token stands across `at`. Tests every token at every place it could begin,
 * which is cheap: there are few of them, and cuts are rare. */
static bool in_added(const ls_tokenizer *t, const char *text, size_t bytes, size_t at)
{
    for (int i = 0; i < t->added_count; i++) {
        const ls__added *a = &t->added[i];
        for (size_t before = 1; before < a->bytes + (a->rstrip ? 1 : 0) && before <= at; before++) {
            if (a->bytes <= bytes - (at - before) &&
                memcmp(text + at - before, a->text, a->bytes) == 0) {
                return true;
            }
        }
    }
    return false;
}

size_t ls__tokenizer_cut(const ls_tokenizer *t, const char *text, size_t bytes, size_t from,
                         size_t last)
{
    if (from == 0 || from >= bytes || t->bytes_only) {
        return from < bytes ? from : bytes;
    }
    for (size_t at = from; !t->joins_words && at < bytes && at < last; at++) {
        if (is_letter(text[at - 1]) && (text[at] == ' ' || text[at] == '\n') &&
            !in_added(t, text, bytes, at)) {
            return at;
        }
    }
    if (last >= bytes) {
        return bytes; /* the rest is short, so a forced cut would not pay */
    }
    for (int i = 0; i < 3 && from < bytes && (text[from] & 0xc0) == 0x80; i++) {
        from++; /* to the next character */
    }
    while (t->nfc && from < bytes && !ls__normal_may_cut(text, bytes, from)) {
        const size_t length = ls__utf8_bytes(text + from, bytes - from);
        from += length > 0 ? length : 1;
    }
    return from;
}
