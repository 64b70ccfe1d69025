/* Text that comes in pieces of any bytes, written as UTF-8: never half a character. */
#ifndef PROGRAMS_UTF8_STREAM_H
#define PROGRAMS_UTF8_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct utf8_stream {
    FILE *out;
    uint8_t held[4]; /* a character that has begun */
    int count, missing;
} utf8_stream;

/* Writes whole characters and flushes; what is no UTF-8 becomes U+FFFD, one for as many bytes as
 * could have begun a character (Unicode 15, section 3.9; Python's errors="replace"). */
void utf8_write(utf8_stream *s, const char *bytes, size_t count);
void utf8_end(utf8_stream *s); /* no more comes: a character that has begun is U+FFFD */

#endif
