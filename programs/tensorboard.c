/* TensorBoard's event files, written by hand: records around Event messages in protobuf's wire
 * format.
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
#include "tensorboard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

/* A scalar takes its tag, 5 bytes of number and 6 of heads and lengths at most. */
#define SUMMARY_MAX_BYTES (TENSORBOARD_SCALARS_MAX * (TENSORBOARD_TAG_MAX + 12))
#define EVENT_MAX_BYTES (SUMMARY_MAX_BYTES + 64)

enum { VARINT = 0, EIGHT_BYTES = 1, BYTES = 2, FOUR_BYTES = 5 };

struct tensorboard {
    FILE *file;
    char path[1024];
};

static _Noreturn void cannot(const char *path, const char *what)
{
    give_up(EXIT_FAILURE, "--tensorboard: \"%s\" %s: %s", path, what, strerror(errno));
}

/* ---- protobuf's wire format --------------------------------------------------------------- */

typedef struct message {
    size_t used;
    uint8_t at[EVENT_MAX_BYTES];
} message;

static void put_little_endian(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        m->at[m->used++] = (uint8_t)(value >> (8 * i));
    }
}

static void put_varint(message *m, uint64_t value)
{
    while (value >= 0x80) {
        m->at[m->used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    m->at[m->used++] = (uint8_t)value;
}

static void put_head(message *m, int field, int wire_type)
{
    put_varint(m, (uint64_t)(field << 3 | wire_type));
}

static void put_double(message *m, int field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_head(m, field, EIGHT_BYTES);
    put_little_endian(m, bits, 8);
}

static void put_float(message *m, int field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_head(m, field, FOUR_BYTES);
    put_little_endian(m, bits, 4);
}

static void put_bytes(message *m, int field, const void *bytes, size_t count)
{
    put_head(m, field, BYTES);
    put_varint(m, count);
    memcpy(m->at + m->used, bytes, count);
    m->used += count;
}

/* ---- TFRecord ----------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli), bit by bit, because a record has only some hundred bytes. */
static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

/* TFRecord rotates the CRC and adds a constant, because the CRC of data that contains a CRC is
 * weak. */
static uint32_t masked_crc(const uint8_t *bytes, size_t count)
{
    uint32_t crc = crc32c(bytes, count);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void write_record(tensorboard *board, const message *event)
{
    message head = {0}, foot = {0};
    put_little_endian(&head, event->used, 8);
    put_little_endian(&head, masked_crc(head.at, 8), 4);
    put_little_endian(&foot, masked_crc(event->at, event->used), 4);
    if (fwrite(head.at, 1, head.used, board->file) != head.used ||
        fwrite(event->at, 1, event->used, board->file) != event->used ||
        fwrite(foot.at, 1, foot.used, board->file) != foot.used || fflush(board->file) != 0) {
        cannot(board->path, "cannot be written");
    }
}

/* ---- events ------------------------------------------------------------------------------- */

static void start_event(message *m, int64_t step)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    m->used = 0;
    put_double(m, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_head(m, 2, VARINT);
    put_varint(m, (uint64_t)step);
}

/* TensorBoard reads the files whose names contain "tfevents", in the order of their names. */
static void open_file(tensorboard *board, const char *folder)
{
    char host[64] = "host";
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        cannot(folder, "cannot be made");
    }
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(board->path, sizeof board->path, "%.800s/events.out.tfevents.%010lld.%09ld.%s",
                   folder, (long long)now.tv_sec, now.tv_nsec, host);
    board->file = cli_create(board->path);
    if (!board->file) {
        cannot(board->path, "cannot be made");
    }
}

tensorboard *tensorboard_open(const char *folder, int64_t start)
{
    static const char version[] = "brain.Event:2";
    static const uint8_t session_start[] = {1 << 3 | VARINT, 1};
    tensorboard *board = calloc(1, sizeof *board);
    message event;
    if (board == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    open_file(board, folder);
    start_event(&event, 0);
    put_bytes(&event, 3, version, sizeof version - 1);
    write_record(board, &event);
    if (start > 0) {
        start_event(&event, start + 1);
        put_bytes(&event, 7, session_start, sizeof session_start);
        write_record(board, &event);
    }
    return board;
}

static void put_scalar(message *summary, const tensorboard_scalar *scalar)
{
    message value = {0};
    put_bytes(&value, 1, scalar->tag, strlen(scalar->tag));
    put_float(&value, 2, (float)scalar->value);
    put_bytes(summary, 1, value.at, value.used);
}

void tensorboard_add(tensorboard *board, int64_t step, const tensorboard_scalar *scalars, int count)
{
    if (board == NULL) {
        return;
    }
    message summary = {0}, event;
    for (int i = 0; i < count && i < TENSORBOARD_SCALARS_MAX; i++) {
        put_scalar(&summary, &scalars[i]);
    }
    start_event(&event, step);
    put_bytes(&event, 5, summary.at, summary.used);
    write_record(board, &event);
}

void tensorboard_close(tensorboard *board)
{
    if (board != NULL && fclose(board->file) != 0) {
        cannot(board->path, "cannot be written");
    }
    free(board);
}
