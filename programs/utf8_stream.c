/* SPDX-License-Identifier: Apache-2.0 */
/* See utf8_stream.h. The bytes that may follow a first byte (Unicode, table 3-7):
 *
 *     C2-DF 80-BF         E0 A0-BF 80-BF      E1-EC,EE,EF 80-BF 80-BF     ED 80-9F 80-BF
 *     F0 90-BF 80-BF 80-BF            F1-F3 80-BF 80-BF 80-BF             F4 80-8F 80-BF 80-BF
 */
#include "utf8_stream.h"

#include <stdbool.h>

#include "tools/cli/cli.h"

static void replace(utf8_stream *s)
{
    (void)fputs("\xEF\xBF\xBD", s->out);
    s->count = s->missing = 0;
}

/* The number of bytes that follow a first byte; -1: it is not a first byte. */
static int followers(uint8_t byte)
{
    return byte < 0x80    ? 0
           : byte < 0xC2  ? -1
           : byte < 0xE0  ? 1
           : byte < 0xF0  ? 2
           : byte <= 0xF4 ? 3
                          : -1;
}

static bool may_follow(const utf8_stream *s, uint8_t byte)
{
    if (byte < 0x80 || byte > 0xBF) {
        return false;
    }
    switch (s->count == 1 ? s->held[0] : 0) {
    case 0xE0:
        return byte >= 0xA0;
    case 0xED:
        return byte <= 0x9F;
    case 0xF0:
        return byte >= 0x90;
    case 0xF4:
        return byte <= 0x8F;
    default:
        return true;
    }
}

static void take_byte(utf8_stream *s, uint8_t byte)
{
    if (s->count > 0 && !may_follow(s, byte)) {
        replace(s);
    }
    if (s->count == 0) {
        int more = followers(byte);
        if (more < 0) {
            replace(s);
            return;
        }
        s->missing = more + 1;
    }
    s->held[s->count++] = byte;
    if (--s->missing == 0) {
        (void)fwrite(s->held, 1, (size_t)s->count, s->out);
        s->count = 0;
    }
}

void utf8_write(utf8_stream *s, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        take_byte(s, (uint8_t)bytes[i]);
    }
    cli_flush(s->out);
}

void utf8_end(utf8_stream *s)
{
    if (s->count > 0) {
        replace(s);
    }
    cli_flush(s->out);
}
