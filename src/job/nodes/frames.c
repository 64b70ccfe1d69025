/* SPDX-License-Identifier: Apache-2.0 */
/* Frames in and out of a link: buffers in front of its byte stream.
 *
 * The owner alternates ls__frames_turn, which moves bytes, and ls__frames_next, which hands out
 * frames in place. A frame is removed from the buffer by the next call, so nothing is copied. When
 * the link ends, the frames before its end are handed out first: they may contain the reason.
 */
#include "job/nodes/frames.h"

#include <errno.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/error.h"

#define IN_MAX (2 * (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX))
/* The size of the whole store: a node with more unread replies than that has stopped reading. */
#define OUT_MAX ((size_t)64 << 20)
#define READ_BYTES ((size_t)16 << 10)
#define CONTROL_MAX ((size_t)32 << 10) /* payload of a frame of the nodes' own */

/* If the poller has no room, the owner's deadlines (a heartbeat per second) still drive the
 * link, only more slowly, so the result is ignored. */
void ls__frames_init(ls__frames *f, const ls__env *env, ls__link *link, int poller)
{
    LS_ASSERT(link != NULL);
    memset(f, 0, sizeof *f);
    f->env = env;
    f->link = link;
    f->poller = poller;
    f->received_ns = f->sent_ns = env->now_ns(env);
    (void)env->poller_add(env, poller, ls__link_fd(link), 0);
}

/* The times and flags stay readable; queued bytes are dropped. */
void ls__frames_close(ls__frames *f)
{
    if (f->link != NULL) {
        (void)f->env->poller_remove(f->env, f->poller, ls__link_fd(f->link));
        ls__link_close(f->link);
        f->link = NULL;
        ls__store_buffer_free(f->env, &f->in);
        ls__store_buffer_free(f->env, &f->out);
    }
}

/* Removes the frame that was handed out last. */
static void drop_taken(ls__frames *f)
{
    LS_ASSERT(f->taken <= f->in.end - f->in.start);
    f->in.start += f->taken;
    f->taken = 0;
}

/* Whether a complete frame is in the buffer. */
static bool holds_frame(const ls__frames *f)
{
    ls__wire_header header;
    const size_t held = f->in.end - f->in.start;
    return held >= LS__WIRE_HEADER && ls__wire_header_read(f->in.data + f->in.start, &header) &&
           held >= LS__WIRE_HEADER + header.length;
}

/* The link has ended. LS_OK as long as complete frames are left; then the failure. */
static ls_status end_of_link(ls__frames *f, ssize_t error)
{
    f->ended = true;
    f->reason = error;
    if (holds_frame(f)) {
        return LS_OK;
    }
    return error == 0 ? ls__fail(LS_ERR_PEER, "the connection was closed")
                      : ls__fail(LS_ERR_PEER, "the connection broke: %s", strerror((int)-error));
}

/* An error is not reported here: the frames that arrived before it are read first (end_of_link). */
void ls__frames_write(ls__frames *f)
{
    while (!f->ended && f->out.start < f->out.end) {
        ls__env_span span = {f->out.data + f->out.start, f->out.end - f->out.start};
        const ssize_t sent = ls__link_send(f->link, &span, 1);
        if (sent <= 0) {
            return; /* -EAGAIN: later; after an error the next read reports the end of the link */
        }
        f->out.start += (size_t)sent;
    }
    (void)ls__link_flush(f->link);
}

/* Reads as much as fits into the buffer; the rest is read after the owner has taken frames. */
static ls_status fill(ls__frames *f)
{
    drop_taken(f);
    while (f->in.end - f->in.start + READ_BYTES <= IN_MAX) {
        if (!ls__store_buffer_reserve(f->env, &f->in, READ_BYTES, IN_MAX)) {
            return ls__fail(LS_ERR_MEMORY, "receiving from another node");
        }
        ssize_t received = ls__link_read(f->link, f->in.data + f->in.end, READ_BYTES);
        if (received == -EAGAIN) {
            return LS_OK;
        }
        if (received <= 0) {
            return end_of_link(f, received);
        }
        f->in.end += (size_t)received;
        f->received_ns = f->env->now_ns(f->env);
    }
    return LS_OK;
}

/* Called again for a link that has ended, it drops the last frame and reports the end. */
ls_status ls__frames_turn(ls__frames *f)
{
    if (!f->open) {
        const ls_status status = ls__link_handshake(f->link);
        if (status != LS_OK) {
            return status;
        }
        f->open = true;
        f->received_ns = f->env->now_ns(f->env);
    }
    if (f->broken) {
        return ls__fail(LS_ERR_FORMAT, "the data is not a frame of this version");
    }
    if (f->ended) {
        drop_taken(f);
        return end_of_link(f, f->reason);
    }
    ls__frames_write(f);
    return fill(f);
}

/* A malformed header makes the link broken; the next turn reports it. */
bool ls__frames_next(ls__frames *f, ls__wire_header *header, const uint8_t **payload)
{
    drop_taken(f);
    const size_t held = f->in.end - f->in.start;
    const uint8_t *at = f->in.data + f->in.start;
    if (held < LS__WIRE_HEADER || f->broken) {
        return false;
    }
    f->broken = !ls__wire_header_read(at, header);
    if (f->broken || held < LS__WIRE_HEADER + header->length) {
        return false;
    }
    *payload = at + LS__WIRE_HEADER;
    f->taken = LS__WIRE_HEADER + header->length;
    return true;
}

/* Appends room for a frame of `bytes`, which the caller fills in at once. NULL: the link is closed,
 * too much is queued, or there is no memory. */
static uint8_t *append(ls__frames *f, size_t bytes)
{
    if (f->link == NULL || !ls__store_buffer_reserve(f->env, &f->out, bytes, OUT_MAX)) {
        return NULL;
    }
    uint8_t *at = f->out.data + f->out.end;
    f->out.end += bytes;
    f->sent_ns = f->env->now_ns(f->env);
    return at;
}

bool ls__frames_put(ls__frames *f, const uint8_t *frame, size_t bytes)
{
    uint8_t *at = append(f, bytes);
    if (at != NULL) {
        memcpy(at, frame, bytes);
    }
    return at != NULL;
}

bool ls__frames_put_reply(ls__frames *f, uint64_t id, const ls__wire_reply *reply)
{
    uint8_t *at = append(f, LS__WIRE_HEADER + LS__WIRE_REPLY + reply->bytes);
    if (at != NULL) {
        ls__wire_reply_write(at, id, reply);
    }
    return at != NULL;
}

/* An object that could not be packed or printed (no memory) arrives here as NULL, or leaves `text`
 * NULL; the frame is then empty, or is not sent. */
bool ls__frames_send(ls__frames *f, ls__node_type type, json_t *object)
{
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    const size_t bytes = text != NULL ? strlen(text) : 0;
    const bool sound = bytes <= CONTROL_MAX && (text != NULL || object == NULL);
    uint8_t *at = sound ? append(f, LS__WIRE_HEADER + bytes) : NULL;
    if (at != NULL) {
        ls__wire_header_write(at, (ls__wire_header){(uint16_t)type, 0, (uint32_t)bytes});
        ls__wire_append(at + LS__WIRE_HEADER, text, bytes);
    }
    free(text);
    json_decref(object);
    return at != NULL;
}
