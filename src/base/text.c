/* SPDX-License-Identifier: Apache-2.0 */
/* A text that grows in the caller's buffer, and the validity of UTF-8. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* Text that does not fit is cut off, and the result always ends in 0; room must be at least 1. */
void ls__text_add(ls__text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at, text->room, format, arguments);
    va_end(arguments);
    size_t used = length < 0 ? 0 : (size_t)length;
    used = used < text->room ? used : text->room - 1;
    text->at += used;
    text->room -= used;
}

ls_status ls__state_name(char *out, size_t bytes, const char *prefix, const char *kind,
                         const char *name)
{
    const char *parts[] = {prefix != NULL ? prefix : "", kind, name};
    size_t length = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof parts / sizeof *parts && length < bytes; i++) {
        if (parts[i][0] != '\0') {
            length += (size_t)snprintf(out + length, bytes - length, "%s%s", length > 0 ? "." : "",
                                       parts[i]);
        }
    }
    if (length >= bytes) {
        return ls__fail(LS_ERR_LIMIT, "state: the name \"%.60s.%.60s\" is longer than %zu bytes",
                        parts[0], name, bytes - 1);
    }
    return LS_OK;
}

/* Whether bytes 1 to bytes - 1 are continuation bytes; the caller has checked the room. */
static bool continues(const unsigned char *at, size_t bytes)
{
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return false;
        }
    }
    return true;
}

/* The first byte gives the length; the second one decides about overlong forms, surrogates and the
 * upper end. */
size_t ls__utf8_bytes(const char *text, size_t room)
{
    const unsigned char *at = (const unsigned char *)text;
    if (room == 0) {
        return 0;
    }
    const size_t bytes = *at < 0x80                  ? 1
                         : *at >= 0xc2 && *at < 0xe0 ? 2
                         : *at >= 0xe0 && *at < 0xf0 ? 3
                         : *at >= 0xf0 && *at < 0xf5 ? 4
                                                     : 0;
    if (bytes == 0 || bytes > room || !continues(at, bytes)) {
        return 0;
    }
    const bool wrong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f) ||
                       (at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f);
    return wrong ? 0 : bytes;
}

/* The empty text is valid. */
bool ls__utf8_valid(const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const size_t bytes = ls__utf8_bytes(text, left);
        if (bytes == 0) {
            return false;
        }
        text += bytes;
        left -= bytes;
    }
    return true;
}
