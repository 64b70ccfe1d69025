/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer of a connection, for one direction: bytes are added at the end and removed at the
 * start. It grows by doubling up to a bound, because the other side decides how much it sends or
 * leaves unread.
 */
#ifndef LS_JOB_STORE_BUFFER_H
#define LS_JOB_STORE_BUFFER_H

#include <string.h>

#include "base/assert.h"
#include "base/env.h"

#define LS__BUFFER_FIRST 1024 /* first size */

typedef struct ls__store_buffer {
    uint8_t *data;
    size_t start, end, room; /* data[start … end) holds bytes; start <= end <= room */
} ls__store_buffer;

static inline void ls__store_buffer_free(const ls__env *env, ls__store_buffer *b)
{
    if (b->data != NULL) {
        env->release(env, b->data, b->room);
    }
    *b = (ls__store_buffer){NULL, 0, 0, 0};
}

/* Makes room for `bytes` more at the end; the held bytes may move. False, and nothing changes: the
 * buffer would exceed `max` or there is no memory. */
static inline bool ls__store_buffer_reserve(const ls__env *env, ls__store_buffer *b, size_t bytes,
                                            size_t max)
{
    LS_ASSERT(b->start <= b->end && b->end <= b->room);
    const size_t held = b->end - b->start;
    if (b->start > 0) {
        memmove(b->data, b->data + b->start, held);
        b->start = 0;
        b->end = held;
    }
    if (held + bytes <= b->room) {
        return true;
    }
    if (held + bytes > max) {
        return false;
    }
    size_t room = b->room == 0 ? LS__BUFFER_FIRST : b->room;
    while (room < held + bytes) {
        room *= 2;
    }
    uint8_t *data = env->allocate(env, room);
    if (data == NULL) {
        return false;
    }
    if (held > 0) {
        memcpy(data, b->data, held);
    }
    ls__store_buffer_free(env, b);
    *b = (ls__store_buffer){data, 0, held, room};
    return true;
}

#endif
