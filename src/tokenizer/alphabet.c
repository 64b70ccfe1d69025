/* SPDX-License-Identifier: Apache-2.0 */
/* The byte-level alphabet of GPT-2: a printable character for each byte, so that a vocabulary is a
 * text file. The bytes that are printable in Latin-1 (33…126, 161…172, 174…255) stand for
 * themselves, U+0021 … U+00FF; the 68 others are U+0100 … U+0143 in order. So a space is U+0120.
 */
#include <string.h>

#include "tokenizer/tokenizer.h"

#define OTHERS_FIRST 0x100

/* 173, the soft hyphen, is left out, as in GPT-2's bytes_to_unicode; so are 127 to 160. */
static bool is_printable(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* The n-th byte that is not printable, or -1 if there are fewer. Linear, since it runs only
 * while a vocabulary is read. */
static int nth_other(int n)
{
    for (int byte = 0; byte < 256; byte++) {
        if (!is_printable(byte) && n-- == 0) {
            return byte;
        }
    }
    return -1;
}

/* Decodes the character at *at, of one or two bytes: no character of the alphabet is longer.
 * Returns -1 for a longer or malformed one; *at then points anywhere inside it. */
static int next_character(const unsigned char **at)
{
    int first = *(*at)++;
    if (first < 0x80) {
        return first;
    }
    if ((first & 0xe0) != 0xc0 || (**at & 0xc0) != 0x80) {
        return -1;
    }
    return (first & 0x1f) << 6 | (*(*at)++ & 0x3f);
}

/* Each character of the text becomes one byte, so strlen(text) bounds the output. On false,
 * `out` holds an unusable prefix. */
bool ls__alphabet_read(const char *text, char *out, size_t *bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    char *to = out;
    while (*at != '\0') {
        int character = next_character(&at);
        int byte = character >= OTHERS_FIRST                   ? nth_other(character - OTHERS_FIRST)
                   : character >= 0 && is_printable(character) ? character
                                                               : -1;
        if (byte < 0) {
            return false;
        }
        *to++ = (char)byte;
    }
    *bytes = (size_t)(to - out);
    return true;
}
