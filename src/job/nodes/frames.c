/* Frames in and out of a link. */
#include "job/nodes/frames.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"

#define IN_MAX (2 * (LS__WIRE_HEADER + LS__WIRE_PAYLOAD_MAX))
#define OUT_MAX                                                                                    \
    ((size_t)64 << 20) /* as much as the store holds: a node that stops reading is lost */
#define READ_BYTES ((size_t)16 << 10)
#define CONTROL_MAX ((size_t)32 << 10) /* of a frame of the nodes' own */

void ls__frames_init(ls__frames *f, const ls__env *env, ls__link *link, int poller)
{
    memset(f, 0, sizeof *f);
    f->env = env;
    f->link = link;
    f->poller = poller;
    f->heard_ns = f->said_ns = env->now_ns(env);
    (void)env->poller_add(env, poller, ls__link_fd(link), 0);
}

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

static void drop_taken(ls__frames *f)
{
    f->in.start += f->taken;
    f->taken = 0;
}

static bool holds_frame(const ls__frames *f)
{
    ls__wire_header header;
    size_t held = f->in.end - f->in.start;
    return held >= LS__WIRE_HEADER && ls__wire_header_read(f->in.data + f->in.start, &header) &&
           held >= LS__WIRE_HEADER + header.length;
}

/* What came before the end is taken first: it may say why. */
static ls_status lost(ls__frames *f, ssize_t error)
{
    f->ended = true;
    f->reason = error;
    if (holds_frame(f)) {
        return LS_OK;
    }
    return error == 0 ? ls__fail(LS_ERR_PEER, "the connection was closed")
                      : ls__fail(LS_ERR_PEER, "the connection broke: %s", strerror((int)-error));
}

void ls__frames_write(ls__frames *f)
{
    while (!f->ended && f->out.start < f->out.end) {
        ls__env_span span = {f->out.data + f->out.start, f->out.end - f->out.start};
        ssize_t sent = ls__link_send(f->link, &span, 1);
        if (sent == -EAGAIN) {
            return;
        }
        if (sent <= 0) {
            return; /* what has come is read first; then the end shows there */
        }
        f->out.start += (size_t)sent;
    }
    (void)ls__link_flush(f->link);
}

/* As much as fits: what remains is read once the frames that are there have been taken. */
static ls_status fill(ls__frames *f)
{
    drop_taken(f);
    while (f->in.end - f->in.start + READ_BYTES <= IN_MAX) {
        if (!ls__store_buffer_reserve(f->env, &f->in, READ_BYTES, IN_MAX)) {
            return ls__fail(LS_ERR_MEMORY, "receiving from another node");
        }
        ssize_t got = ls__link_read(f->link, f->in.data + f->in.end, READ_BYTES);
        if (got == -EAGAIN) {
            return LS_OK;
        }
        if (got <= 0) {
            return lost(f, got);
        }
        f->in.end += (size_t)got;
        f->heard_ns = f->env->now_ns(f->env);
    }
    return LS_OK;
}

ls_status ls__frames_turn(ls__frames *f)
{
    if (!f->open) {
        ls_status status = ls__link_handshake(f->link);
        if (status != LS_OK) {
            return status;
        }
        f->open = true;
        f->heard_ns = f->env->now_ns(f->env);
    }
    if (f->broken) {
        return ls__fail(LS_ERR_FORMAT, "the data is not a frame of this version");
    }
    if (f->ended) {
        drop_taken(f);
        return lost(f, f->reason);
    }
    ls__frames_write(f);
    return fill(f);
}

bool ls__frames_next(ls__frames *f, ls__wire_header *header, const uint8_t **payload)
{
    drop_taken(f);
    size_t held = f->in.end - f->in.start;
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

bool ls__frames_put(ls__frames *f, const uint8_t *frame, size_t bytes)
{
    if (f->link == NULL || !ls__store_buffer_reserve(f->env, &f->out, bytes, OUT_MAX)) {
        return false;
    }
    memcpy(f->out.data + f->out.end, frame, bytes);
    f->out.end += bytes;
    f->said_ns = f->env->now_ns(f->env);
    return true;
}

bool ls__frames_put_reply(ls__frames *f, uint64_t id, const ls__wire_reply *reply)
{
    size_t bytes = LS__WIRE_HEADER + LS__WIRE_REPLY + reply->bytes;
    if (f->link == NULL || !ls__store_buffer_reserve(f->env, &f->out, bytes, OUT_MAX)) {
        return false;
    }
    ls__wire_reply_write(f->out.data + f->out.end, id, reply);
    f->out.end += bytes;
    f->said_ns = f->env->now_ns(f->env);
    return true;
}

bool ls__frames_say(ls__frames *f, ls__node_type type, json_t *object)
{
    char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
    size_t bytes = text != NULL ? strlen(text) : 0;
    bool fits = bytes <= CONTROL_MAX && (text != NULL || object == NULL) && f->link != NULL &&
                ls__store_buffer_reserve(f->env, &f->out, LS__WIRE_HEADER + bytes, OUT_MAX);
    if (fits) {
        uint8_t *at = f->out.data + f->out.end;
        ls__wire_header_write(at, (ls__wire_header){(uint16_t)type, 0, (uint32_t)bytes});
        ls__wire_append(at + LS__WIRE_HEADER, text, bytes);
        f->out.end += LS__WIRE_HEADER + bytes;
        f->said_ns = f->env->now_ns(f->env);
    }
    free(text);
    json_decref(object);
    return fits;
}

bool ls__frames_idle(const ls__frames *f)
{
    return f->out.start == f->out.end && (f->link == NULL || !ls__link_wants_write(f->link));
}
