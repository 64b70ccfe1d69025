/* SPDX-License-Identifier: Apache-2.0 */
/* Writing shards of tokens as llm.c reads them (its dev/data/data_common.py).
 *
 *     256 int32: magic, version, number of tokens, zeros      then the tokens, little-endian
 *     uint16: magic 20240520, version 1       uint32: magic 20240801, version 7
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tools/data.h"

#define HEADER_BYTES 1024
#define BUFFER_BYTES ((size_t)1 << 20)
#define PATH_BYTES 4096
#define SUFFIX ".bin"
#define UNNAMED ".partial" /* ends a name until all shards are complete */
#define SHARDS_MAX 1000000 /* six digits */

/* ---- names -------------------------------------------------------------------------------- */

static void path_of(const shards *s, int number, const char *end, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s%06d" SUFFIX "%s", s->folder, s->prefix, number, end);
}

static ls_status failed(const char *what, const char *path, int error)
{
    return ls__fail(LS_ERR_SYSTEM, "data tokens: cannot %s \"%s\": %s", what, path,
                    strerror(-error));
}

/* The number in the name of a shard that ends with `end`; -1: the name is not one of a shard. */
static int number_of(const char *prefix, const char *name, const char *end)
{
    const size_t digits_at = strlen(prefix), digits = 6;
    int number = 0;
    if (strncmp(name, prefix, digits_at) != 0) {
        return -1;
    }
    for (size_t i = 0; i < digits; i++) {
        char c = name[digits_at + i];
        if (c < '0' || c > '9') {
            return -1;
        }
        number = 10 * number + (c - '0');
    }
    const char *rest = name + digits_at + digits;
    size_t suffix = sizeof SUFFIX - 1;
    return strncmp(rest, SUFFIX, suffix) == 0 && strcmp(rest + suffix, end) == 0 ? number : -1;
}

typedef struct sweep { /* through the folder */
    const shards *s;
    const char *end; /* of the names that count */
    bool remove;
    int found; /* the lowest number; -1: none */
    int error;
} sweep;

/* Called for each name in the folder; a result other than 0 ends the walk. */
static int sweep_entry(void *arg, const char *name)
{
    sweep *w = arg;
    char path[PATH_BYTES];
    int number = number_of(w->s->prefix, name, w->end);
    if (number < 0) {
        return 0;
    }
    w->found = w->found < 0 || number < w->found ? number : w->found;
    if (w->remove) {
        path_of(w->s, number, w->end, path);
        w->error = w->s->env->remove_file(w->s->env, path);
    }
    return w->error < 0;
}

/* Finds the lowest number of a shard whose name ends with `end`, and removes all of them if
 * `remove`. */
static ls_status sweep_folder(const shards *s, const char *end, bool remove, int *found)
{
    sweep w = {s, end, remove, -1, 0};
    int error = s->env->list(s->env, s->folder, sweep_entry, &w);
    *found = w.found;
    error = error < 0 ? error : w.error;
    return error < 0 ? failed(remove ? "remove the old shards of" : "read", s->folder, error)
                     : LS_OK;
}

/* ---- beginning ---------------------------------------------------------------------------- */

/* The lock keeps two commands from writing to one folder; it ends with the process. */
static ls_status lock_folder(shards *s)
{
    const ls__env *env = s->env;
    int error = env->make_folder(env, s->folder);
    if (error < 0) {
        return failed("make the folder", s->folder, error);
    }
    s->lock = env->open(env, s->folder, O_RDONLY | O_DIRECTORY, 0);
    error = s->lock < 0 ? s->lock : env->lock_file(env, s->lock);
    if (error == -EAGAIN) {
        return ls__fail(LS_ERR_STATE,
                        "data tokens: another process writes shards into \"%s\"; wait for it, or "
                        "give another folder",
                        s->folder);
    }
    return error < 0 ? failed("lock the folder", s->folder, error) : LS_OK;
}

ls_status shards_begin(shards *s, const ls__env *env, const char *folder, const char *prefix,
                       int token_bytes, int64_t limit, bool force)
{
    int found;
    *s = (shards){.env = env,
                  .folder = folder,
                  .prefix = prefix,
                  .lock = -1,
                  .fd = -1,
                  .token_bytes = token_bytes,
                  .limit = limit,
                  .force = force};
    if (strlen(folder) > PATH_BYTES - 64) {
        return ls__fail(LS_ERR_INVALID, "data tokens: the folder's name is too long");
    }
    LS_TRY(lock_folder(s));
    LS_TRY(sweep_folder(s, "", false, &found));
    if (found >= 0 && !force) {
        return ls__fail(LS_ERR_STATE,
                        "data tokens: \"%s\" holds %s%06d" SUFFIX " already; give another "
                        "folder, or --force to replace the shards in it",
                        folder, prefix, found);
    }
    LS_TRY(sweep_folder(s, UNNAMED, true, &found)); /* of a run that was interrupted */
    s->buffer = malloc(BUFFER_BYTES);
    return s->buffer ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory");
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Writes may be short. */
static ls_status write_all(const shards *s, int fd, const uint8_t *at, size_t bytes)
{
    char path[PATH_BYTES];
    while (bytes > 0) {
        ssize_t put = s->env->write(s->env, fd, at, bytes);
        if (put <= 0) {
            path_of(s, s->count - 1, UNNAMED, path);
            return failed("write", path, put < 0 ? (int)put : -EIO);
        }
        at += put;
        bytes -= (size_t)put;
    }
    return LS_OK;
}

static ls_status flush(shards *s)
{
    ls_status status = write_all(s, s->fd, s->buffer, s->used);
    s->used = 0;
    return status;
}

static void put_number(uint8_t *at, uint32_t number, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        at[i] = (uint8_t)(number >> (8 * i));
    }
}

/* Makes the next shard under its temporary name, with room for the header. It is a new file:
 * the rest of an interrupted run is removed, and an existing symlink is not followed. */
static ls_status start_one(shards *s)
{
    char path[PATH_BYTES];
    if (s->count == SHARDS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "data tokens: more than %d shards; give more --shard-tokens",
                        SHARDS_MAX);
    }
    path_of(s, s->count, UNNAMED, path);
    s->fd = s->env->open(s->env, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    if (s->fd < 0) {
        return failed("make", path, s->fd);
    }
    s->count++;
    s->held = 0;
    s->used = HEADER_BYTES; /* room for the header, which is written when the count is known */
    memset(s->buffer, 0, HEADER_BYTES);
    return LS_OK;
}

/* Opens the file a second time, because a new descriptor is at the beginning of the file. */
static ls_status write_header(shards *s)
{
    char path[PATH_BYTES];
    uint8_t header[HEADER_BYTES] = {0};
    put_number(header, s->token_bytes == 2 ? 20240520 : 20240801, 4);
    put_number(header + 4, s->token_bytes == 2 ? 1 : 7, 4);
    put_number(header + 8, (uint32_t)s->held, 4);
    path_of(s, s->count - 1, UNNAMED, path);
    int fd = s->env->open(s->env, path, O_WRONLY | O_NOFOLLOW, 0);
    if (fd < 0) {
        return failed("open", path, fd);
    }
    ls_status status = write_all(s, fd, header, sizeof header);
    int synced = s->env->fsync(s->env, fd), closed = s->env->close(s->env, fd);
    if (status == LS_OK && (synced < 0 || closed < 0)) {
        return failed("sync to disk", path, synced < 0 ? synced : closed);
    }
    return status;
}

/* Completes the current shard: the rest of its tokens, then the header, then fsync. */
static ls_status end_one(shards *s)
{
    char path[PATH_BYTES];
    LS_TRY(flush(s));
    int closed = s->env->close(s->env, s->fd);
    s->fd = -1;
    if (closed < 0) {
        path_of(s, s->count - 1, UNNAMED, path);
        return failed("write", path, closed);
    }
    return write_header(s);
}

ls_status shards_add(shards *s, const int32_t *ids, int64_t count)
{
    const size_t bytes = (size_t)s->token_bytes;
    for (int64_t i = 0; i < count; i++) {
        if (s->fd < 0) {
            LS_TRY(start_one(s));
        }
        if (s->used + bytes > BUFFER_BYTES) {
            LS_TRY(flush(s));
        }
        put_number(s->buffer + s->used, (uint32_t)ids[i], s->token_bytes);
        s->used += bytes;
        if (++s->held == s->limit) {
            LS_TRY(end_one(s));
        }
    }
    return LS_OK;
}

/* ---- ending ------------------------------------------------------------------------------- */

/* Renames in order, so that an interruption leaves a complete beginning; the folder is synced
 * last. */
ls_status shards_end(shards *s)
{
    const ls__env *env = s->env;
    char from[PATH_BYTES], to[PATH_BYTES];
    int found;
    if (s->fd >= 0) {
        LS_TRY(end_one(s));
    }
    if (s->force) {
        LS_TRY(sweep_folder(s, "", true, &found));
    }
    for (int i = 0; i < s->count; i++) {
        path_of(s, i, UNNAMED, from);
        path_of(s, i, "", to);
        int error = env->rename(env, from, to);
        if (error < 0) {
            return failed("name", to, error);
        }
    }
    int error = env->fsync(env, s->lock);
    return error < 0 ? failed("sync to disk", s->folder, error) : LS_OK;
}

void shards_free(shards *s)
{
    int found;
    if (s->fd >= 0) {
        (void)s->env->close(s->env, s->fd);
    }
    if (s->count > 0) {
        (void)sweep_folder(s, UNNAMED, true, &found);
    }
    if (s->lock >= 0) {
        (void)s->env->close(s->env, s->lock);
    }
    free(s->buffer);
}
