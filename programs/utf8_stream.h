/* SPDX-License-Identifier: Apache-2.0 */
/* Writes text that arrives in pieces of any bytes as UTF-8, without splitting a character. */
#ifndef PROGRAMS_UTF8_STREAM_H
#define PROGRAMS_UTF8_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct utf8_stream {
    FILE *out;
    uint8_t held[4]; /* an incomplete character */
    int count, missing;
} utf8_stream;

/* Writes complete characters and flushes. Invalid bytes become U+FFFD, one for each longest
 * sequence that could begin a character (Unicode 15, section 3.9; Python's errors="replace"). */
void utf8_write(utf8_stream *s, const char *bytes, size_t count);
void utf8_end(utf8_stream *s); /* ends the text: an incomplete character becomes U+FFFD */

#endif
