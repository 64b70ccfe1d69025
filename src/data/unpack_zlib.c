/* SPDX-License-Identifier: Apache-2.0 */
/* gzip's format (RFC 1952) by zlib, the only file that calls it. A file may have several members,
 * one after the other, as bgzip and cat write them; what they hold is joined. Nothing that the file
 * claims about its size is believed: the buffer doubles until all is there. */
#include <string.h>
#include <zlib.h>

#include "base/error.h"
#include "data/unpack.h"

#define GZIP_ONLY (16 + MAX_WBITS) /* of inflateInit2: no zlib and no raw streams */
#define UNPACKED_MAX ((size_t)1 << 34)
#define PIECE_MAX ((size_t)1 << 30) /* zlib counts in 32 bits */
#define CAPACITY_MIN ((size_t)1 << 16)

typedef struct unpacking {
    const ls__env *env;
    const char *what, *path;
    const ls__file *from;
    ls__file to;
    z_stream z;
} unpacking;

static ls_status damaged(const unpacking *u, size_t at, const char *reason)
{
    return ls__fail(
        LS_ERR_FORMAT,
        "%s: \"%s\" is compressed by gzip, but cannot be unpacked at byte %zu of %zu: %s; "
        "is it complete?",
        u->what, u->path, at, u->from->bytes, reason);
}

/* Makes room for at least one byte more. */
static ls_status grow(unpacking *u)
{
    const size_t capacity = u->to.capacity > 0 ? 2 * u->to.capacity : CAPACITY_MIN;
    if (capacity > UNPACKED_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "%s: \"%s\" holds more than %zu bytes, compressed; unpack it with gunzip",
                        u->what, u->path, u->to.capacity);
    }
    uint8_t *data = u->env->allocate(u->env, capacity);
    if (data == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: \"%s\": no memory for %zu bytes", u->what, u->path,
                        capacity);
    }
    if (u->to.data != NULL) {
        memcpy(data, u->to.data, u->to.bytes);
        u->env->release(u->env, u->to.data, u->to.capacity);
    }
    u->to.data = data;
    u->to.capacity = capacity;
    return LS_OK;
}

/* One call of inflate, from byte *at on. */
static ls_status inflate_piece(unpacking *u, size_t *at, bool *ended)
{
    const size_t left = u->from->bytes - *at, room = u->to.capacity - u->to.bytes;
    const uInt in = (uInt)(left < PIECE_MAX ? left : PIECE_MAX);
    const uInt out = (uInt)(room < PIECE_MAX ? room : PIECE_MAX);
    u->z.next_in = u->from->data + *at;
    u->z.avail_in = in;
    u->z.next_out = u->to.data + u->to.bytes;
    u->z.avail_out = out;
    const int got = inflate(&u->z, Z_NO_FLUSH);
    *at += in - u->z.avail_in;
    u->to.bytes += out - u->z.avail_out;
    *ended = got == Z_STREAM_END;
    if (got == Z_MEM_ERROR) {
        return ls__fail(LS_ERR_MEMORY, "%s: \"%s\": no memory to unpack it", u->what, u->path);
    }
    return got == Z_OK || got == Z_STREAM_END ? LS_OK
                                              : damaged(u, *at,
                                                        got == Z_BUF_ERROR ? "it ends too early"
                                                        : u->z.msg != NULL ? u->z.msg
                                                                           : "wrong data");
}

static ls_status inflate_all(unpacking *u)
{
    bool ended = false;
    for (size_t at = 0; !ended || at < u->from->bytes;) {
        if (ended && inflateReset(&u->z) != Z_OK) {
            return damaged(u, at, "wrong data");
        }
        if (u->to.bytes == u->to.capacity) {
            LS_TRY(grow(u));
        }
        LS_TRY(inflate_piece(u, &at, &ended));
    }
    return LS_OK;
}

ls_status ls__unpack(const ls__env *env, const char *what, const char *path, ls__file *file)
{
    unpacking u = {.env = env, .what = what, .path = path, .from = file};
    if (!ls__is_packed(file->data, file->bytes)) {
        return LS_OK;
    }
    if (inflateInit2(&u.z, GZIP_ONLY) != Z_OK) {
        return ls__fail(LS_ERR_MEMORY, "%s: \"%s\": no memory to unpack it", what, path);
    }
    const ls_status status = inflate_all(&u);
    (void)inflateEnd(&u.z);
    if (status < 0) {
        ls__file_release(env, &u.to);
        return status;
    }
    ls__file_release(env, file);
    *file = u.to;
    return LS_OK;
}
