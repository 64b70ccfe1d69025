/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files: records around Event messages in protobuf's wire format. Of protobuf
 * this needs three kinds of fields, so it is written by hand.
 *
 *     record   uint64 length | masked crc of it | the message | masked crc of it   (TFRecord)
 *     Event    1: wall_time double, 2: step varint, then one of
 *              3: file_version "brain.Event:2", in the first record
 *              5: Summary, whose field 1, repeated, is { 1: tag string, 2: simple_value float }
 *              7: SessionLog { 1: status = START }: steps from this one on are repeated
 *
 * Field n of wire type w starts with the byte n << 3 | w; 0 is a varint, 1 and 5 are 8 and 4 bytes
 * little-endian, 2 is a length and that many bytes. Sources: tensorflow/core/util/event.proto,
 * framework/summary.proto and lib/io/record_writer.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/error.h"
#include "events/events.h"

enum { VARINT = 0, EIGHT_BYTES = 1, BYTES = 2, FOUR_BYTES = 5 };

/* ---- protobuf's wire format --------------------------------------------------------------- */

static ls_status put_little_endian(ls__event_bytes *b, uint64_t value, int bytes)
{
    uint8_t text[8];
    for (int i = 0; i < bytes; i++) {
        text[i] = (uint8_t)(value >> (8 * i));
    }
    return ls__event_bytes_put(b, text, (size_t)bytes);
}

static ls_status put_varint(ls__event_bytes *b, uint64_t value)
{
    uint8_t text[10];
    size_t used = 0;
    for (; value >= 0x80; value >>= 7) {
        text[used++] = (uint8_t)(value | 0x80);
    }
    text[used++] = (uint8_t)value;
    return ls__event_bytes_put(b, text, used);
}

static ls_status put_head(ls__event_bytes *b, int field, int wire_type)
{
    return put_varint(b, (uint64_t)(field << 3 | wire_type));
}

static ls_status put_bytes(ls__event_bytes *b, int field, const void *bytes, size_t count)
{
    LS_TRY(put_head(b, field, BYTES));
    LS_TRY(put_varint(b, count));
    return ls__event_bytes_put(b, bytes, count);
}

/* ---- TFRecord ----------------------------------------------------------------------------- */

/* TFRecord rotates the CRC and adds a constant, because the CRC of data that contains a CRC is
 * weak. */
static uint32_t masked_crc(const void *bytes, size_t count)
{
    const uint32_t crc = ls__crc32c(0, bytes, count);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static ls_status put_record(ls__event_bytes *b, const ls__event_bytes *event)
{
    const size_t from = b->used;
    LS_TRY(put_little_endian(b, event->used, 8));
    LS_TRY(put_little_endian(b, masked_crc(b->at + from, 8), 4));
    LS_TRY(ls__event_bytes_put(b, event->at, event->used));
    return put_little_endian(b, masked_crc(event->at, event->used), 4);
}

/* ---- events ------------------------------------------------------------------------------- */

static ls_status start_event(ls__event_bytes *b, uint64_t wall_ns, int64_t step)
{
    const double seconds = (double)wall_ns * 1e-9;
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    b->used = 0;
    LS_TRY(put_head(b, 1, EIGHT_BYTES));
    LS_TRY(put_little_endian(b, bits, 8));
    LS_TRY(put_head(b, 2, VARINT));
    return put_varint(b, (uint64_t)step);
}

static ls_status make_head(ls__event_bytes *b, ls__event_bytes *event, uint64_t wall_ns,
                           int64_t start)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t session_start[] = {1 << 3 | VARINT, 1};
    LS_TRY(start_event(event, wall_ns, 0));
    LS_TRY(put_bytes(event, 3, version, sizeof version - 1));
    LS_TRY(put_record(b, event));
    if (start > 0) {
        LS_TRY(start_event(event, wall_ns, start + 1));
        LS_TRY(put_bytes(event, 7, session_start, sizeof session_start));
        LS_TRY(put_record(b, event));
    }
    return LS_OK;
}

ls_status ls__tensorboard_head(ls__event_bytes *b, uint64_t wall_ns, int64_t start)
{
    ls__event_bytes event = {0};
    const ls_status status = make_head(b, &event, wall_ns, start);
    free(event.at);
    return status;
}

/* { 1: tag, 2: simple_value }, whose length precedes it. */
static ls_status put_value(ls__event_bytes *b, const char *group, const ls_event_value *value)
{
    const size_t prefix = strlen(group), name = strlen(value->name);
    const size_t tag = prefix + (prefix > 0) + name;
    const float number = (float)value->number;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    LS_TRY(put_head(b, 1, BYTES));
    LS_TRY(put_varint(b, 2 + tag + 5)); /* a tag's length is one byte */
    LS_TRY(put_head(b, 1, BYTES));
    LS_TRY(put_varint(b, tag));
    LS_TRY(ls__event_bytes_put(b, group, prefix));
    LS_TRY(ls__event_bytes_put(b, "/", prefix > 0));
    LS_TRY(ls__event_bytes_put(b, value->name, name));
    LS_TRY(put_head(b, 2, FOUR_BYTES));
    return put_little_endian(b, bits, 4);
}

static ls_status make_event(ls__event_bytes *b, ls__event_bytes *event, ls__event_bytes *summary,
                            uint64_t wall_ns, const ls__event *e)
{
    for (int i = 0; i < e->count; i++) {
        if (e->values[i].text == NULL && e->values[i].numbers == NULL) {
            LS_TRY(put_value(summary, e->group, &e->values[i]));
        }
    }
    LS_TRY(start_event(event, wall_ns, e->step));
    LS_TRY(put_bytes(event, 5, summary->at, summary->used));
    return put_record(b, event);
}

ls_status ls__tensorboard_event(ls__event_bytes *b, uint64_t wall_ns, const ls__event *e)
{
    ls__event_bytes event = {0}, summary = {0};
    const ls_status status = make_event(b, &event, &summary, wall_ns, e);
    free(event.at);
    free(summary.at);
    return status;
}
