/* SPDX-License-Identifier: Apache-2.0 */
/* The store's wire: frames of a fixed header and a bounded payload, little-endian.
 *
 *   header, 24 bytes    magic u32 | version u16 | type u16 | id u64 | length u32 | zero u32
 *   request payload     number i64 | key length u16 | zero u16 | first length u32 | key | first |
 *                       second (the rest)
 *   reply payload       status i32 | flags u32 | number i64 | value or message (the rest)
 *
 * The client chooses `id`, and the reply carries it back. HELLO, the first frame of a connection,
 * has the job's secret as its payload; the server interprets it only when all its 24 + 32 bytes are
 * there.
 *
 *   type          number        first      second    reply: number   value
 *   SET                         value
 *   GET           timeout ms                                         value
 *   WAIT          timeout ms
 *   ADD           amount                             new value
 *   COMPARE_SET                 expected   desired   1: swapped
 *   DELETE                                           1: it existed
 *   PUT_FD        (the descriptor comes with the frame)
 *   GET_FD        timeout ms                         (the descriptor comes with the reply)
 */
#ifndef LS_JOB_STORE_WIRE_H
#define LS_JOB_STORE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "job/store/store.h"

#define LS__WIRE_MAGIC 0x4c535354u /* "LSST" */
#define LS__WIRE_VERSION 1
#define LS__WIRE_HEADER 24
#define LS__WIRE_REQUEST 16 /* fixed part of a request's payload */
#define LS__WIRE_REPLY 16
#define LS__WIRE_HELLO (LS__WIRE_HEADER + LS__STORE_SECRET_BYTES)
/* The largest payload: compare_set with two values. */
#define LS__WIRE_PAYLOAD_MAX (LS__WIRE_REQUEST + LS_STORE_KEY_MAX + 2 * LS_STORE_VALUE_MAX)

typedef enum ls__wire_type {
    LS__WIRE_HELLO_TYPE = 1,
    LS__WIRE_SET = 2,
    LS__WIRE_GET = 3,
    LS__WIRE_WAIT = 4,
    LS__WIRE_ADD = 5,
    LS__WIRE_COMPARE_SET = 6,
    LS__WIRE_DELETE = 7,
    LS__WIRE_PUT_FD = 8,
    LS__WIRE_GET_FD = 9,
    LS__WIRE_REPLY_TYPE = 10
} ls__wire_type;

typedef struct ls__wire_header {
    uint16_t type;
    uint64_t id;
    uint32_t length; /* of the payload */
} ls__wire_header;

typedef struct ls__wire_request {
    ls__wire_type type;
    int64_t number;
    const char *key; /* not terminated */
    size_t key_bytes;
    const void *first, *second;
    size_t first_bytes, second_bytes;
} ls__wire_request;

typedef struct ls__wire_reply {
    int32_t status;
    int64_t number;
    const void *value;
    size_t bytes;
} ls__wire_reply;

/* Little-endian integers of 1 to 8 bytes, at any alignment. */
static inline void ls__wire_put(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static inline uint64_t ls__wire_take(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

static inline void ls__wire_header_write(uint8_t out[LS__WIRE_HEADER], ls__wire_header header)
{
    ls__wire_put(out, LS__WIRE_MAGIC, 4);
    ls__wire_put(out + 4, LS__WIRE_VERSION, 2);
    ls__wire_put(out + 6, header.type, 2);
    ls__wire_put(out + 8, header.id, 8);
    ls__wire_put(out + 16, header.length, 4);
    ls__wire_put(out + 20, 0, 4);
}

/* False: it is not a header of this version, or its payload would be too long. */
static inline bool ls__wire_header_read(const uint8_t in[LS__WIRE_HEADER], ls__wire_header *out)
{
    out->type = (uint16_t)ls__wire_take(in + 6, 2);
    out->id = ls__wire_take(in + 8, 8);
    out->length = (uint32_t)ls__wire_take(in + 16, 4);
    return ls__wire_take(in, 4) == LS__WIRE_MAGIC && ls__wire_take(in + 4, 2) == LS__WIRE_VERSION &&
           ls__wire_take(in + 20, 4) == 0 && out->length <= LS__WIRE_PAYLOAD_MAX;
}

/* Splits the payload of a request, which the result then points into; the caller sets the type.
 * False: its lengths contradict each other or exceed a limit, or the key contains a zero byte. */
static inline bool ls__wire_request_read(const uint8_t *in, size_t bytes, ls__wire_request *out)
{
    if (bytes < LS__WIRE_REQUEST) {
        return false;
    }
    size_t rest = bytes - LS__WIRE_REQUEST;
    out->number = (int64_t)ls__wire_take(in, 8);
    out->key_bytes = (size_t)ls__wire_take(in + 8, 2);
    out->first_bytes = (size_t)ls__wire_take(in + 12, 4);
    if (out->key_bytes < 1 || out->key_bytes > LS_STORE_KEY_MAX || out->key_bytes > rest ||
        out->first_bytes > rest - out->key_bytes || out->first_bytes > LS_STORE_VALUE_MAX) {
        return false;
    }
    out->second_bytes = rest - out->key_bytes - out->first_bytes;
    out->key = (const char *)in + LS__WIRE_REQUEST;
    out->first = in + LS__WIRE_REQUEST + out->key_bytes;
    out->second = in + LS__WIRE_REQUEST + out->key_bytes + out->first_bytes;
    return out->second_bytes <= LS_STORE_VALUE_MAX &&
           memchr(out->key, '\0', out->key_bytes) == NULL;
}

static inline size_t ls__wire_request_bytes(const ls__wire_request *request)
{
    return LS__WIRE_HEADER + LS__WIRE_REQUEST + request->key_bytes + request->first_bytes +
           request->second_bytes;
}

static inline uint8_t *ls__wire_append(uint8_t *to, const void *from, size_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return to + bytes;
}

/* Writes header and payload, ls__wire_request_bytes in all. */
static inline void ls__wire_request_write(uint8_t *out, uint64_t id,
                                          const ls__wire_request *request)
{
    size_t payload = ls__wire_request_bytes(request) - LS__WIRE_HEADER;
    ls__wire_header_write(out, (ls__wire_header){(uint16_t)request->type, id, (uint32_t)payload});
    uint8_t *at = out + LS__WIRE_HEADER;
    ls__wire_put(at, (uint64_t)request->number, 8);
    ls__wire_put(at + 8, request->key_bytes, 2);
    ls__wire_put(at + 10, 0, 2);
    ls__wire_put(at + 12, request->first_bytes, 4);
    at = ls__wire_append(at + LS__WIRE_REQUEST, request->key, request->key_bytes);
    at = ls__wire_append(at, request->first, request->first_bytes);
    ls__wire_append(at, request->second, request->second_bytes);
}

static inline bool ls__wire_reply_read(const uint8_t *in, size_t bytes, ls__wire_reply *out)
{
    if (bytes < LS__WIRE_REPLY) {
        return false;
    }
    out->status = (int32_t)(uint32_t)ls__wire_take(in, 4);
    out->number = (int64_t)ls__wire_take(in + 8, 8);
    out->value = in + LS__WIRE_REPLY;
    out->bytes = bytes - LS__WIRE_REPLY;
    return true;
}

static inline void ls__wire_reply_write(uint8_t *out, uint64_t id, const ls__wire_reply *reply)
{
    ls__wire_header_write(
        out, (ls__wire_header){LS__WIRE_REPLY_TYPE, id, (uint32_t)(LS__WIRE_REPLY + reply->bytes)});
    uint8_t *at = out + LS__WIRE_HEADER;
    ls__wire_put(at, (uint32_t)reply->status, 4);
    ls__wire_put(at + 4, 0, 4);
    ls__wire_put(at + 8, (uint64_t)reply->number, 8);
    ls__wire_append(at + LS__WIRE_REPLY, reply->value, reply->bytes);
}

#endif
