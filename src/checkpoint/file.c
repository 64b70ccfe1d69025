/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: written with every short write continued and every return checked, and read back
 * through `read`, so that a bad disk is an error here and not a signal in the mapped file later.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

#define CHUNK_BYTES ((size_t)1 << 20) /* hashed while it is in the cache, then written */

/* Never truncates in practice: the folder's length is checked at opening and leaves room for
 * every name used below it. */
void ls__path_join(char out[LS__CHECKPOINT_PATH_MAX], const char *folder, const char *name)
{
    (void)snprintf(out, LS__CHECKPOINT_PATH_MAX, "%s/%s", folder, name);
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Hashes each chunk right before it is written, while it is in the cache. A write of zero bytes
 * counts as an I/O error, since repeating it might never end. Returns 0 or -errno. */
static int write_all(const ls__env *env, int fd, const uint8_t *at, size_t bytes, ls__digest *hash)
{
    while (bytes > 0) {
        size_t chunk = bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
        ls__digest_add(hash, at, chunk);
        for (size_t done = 0; done < chunk;) {
            ssize_t put = env->write(env, fd, at + done, chunk - done);
            if (put <= 0) {
                return put < 0 ? (int)put : -EIO;
            }
            done += (size_t)put;
        }
        at += chunk;
        bytes -= chunk;
    }
    return 0;
}

/* On a full disk the user needs the numbers. The free bytes are those of the folder's file system,
 * after the part that was written. */
ls_status ls__file_write_failed(const ls__env *env, const char *folder, const char *path,
                                size_t bytes, int error)
{
    uint64_t room = 0;
    if (error != -ENOSPC || env->free_bytes(env, folder, &room) < 0) {
        return ls__file_fail(error, "checkpoint", "cannot write", path);
    }
    return ls__fail(
        LS_ERR_SYSTEM,
        "checkpoint: cannot write \"%s\": %s: the file needs %zu bytes, and %llu more are "
        "free there; remove files, or give a folder on another file system",
        path, strerror(-error), bytes, (unsigned long long)room);
}

/* O_EXCL: the temporary folder is new, so an existing file means that another job works there.
 * The descriptor is closed on every path, and a failed close counts, since network file systems
 * report lost writes there. */
ls_status ls__file_write(const ls__env *env, const char *folder, const char *name, const void *data,
                         size_t bytes, uint8_t out[LS__DIGEST_BYTES])
{
    char path[LS__CHECKPOINT_PATH_MAX];
    ls__digest hash;
    ls__path_join(path, folder, name);
    int fd = env->open(env, path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (fd < 0) {
        return ls__file_fail(fd, "checkpoint", "cannot make", path);
    }
    ls__digest_init(&hash);
    const int wrote = write_all(env, fd, data, bytes, &hash);
    int synced = wrote < 0 ? 0 : env->fsync(env, fd);
    int closed = env->close(env, fd);
    ls_status hashed = ls__digest_end(&hash, out);
    if (wrote < 0) {
        return ls__file_write_failed(env, folder, path, bytes, wrote);
    }
    if (synced < 0 || closed < 0) {
        return ls__file_fail(synced < 0 ? synced : closed, "checkpoint", "cannot sync to disk",
                             path);
    }
    return hashed;
}

/* An fsync of the file alone does not make its name durable; the folder's entry needs its own. */
ls_status ls__file_sync_folder(const ls__env *env, const char *path)
{
    int fd = env->open(env, path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) {
        return ls__file_fail(fd, "checkpoint", "cannot open", path);
    }
    int synced = env->fsync(env, fd);
    (void)env->close(env, fd);
    return synced < 0 ? ls__file_fail(synced, "checkpoint", "cannot sync to disk", path) : LS_OK;
}

/* ---- reading ------------------------------------------------------------------------------ */

/* Something else than a file in its place is damage, as a missing file is. All other errors say
 * nothing about the file, so no older checkpoint is tried; the user decides. */
ls_status ls__file_read_failed(const char *path, int error)
{
    if (error == -EINVAL || error == -ENOTDIR || error == -ELOOP || error == -EISDIR ||
        error == -ENXIO) {
        return ls__fail(LS_ERR_FORMAT, "checkpoint: \"%s\" is not a regular file", path);
    }
    if (error == -ENOENT || error == -ETIMEDOUT) {
        return ls__file_fail(error, "checkpoint", "cannot read", path);
    }
    return ls__fail(
        LS_ERR_SYSTEM,
        "checkpoint: cannot read \"%s\": %s; the checkpoint may be whole, so no older one "
        "was loaded. Remove the cause and start again; if the file is lost for good, "
        "move its step-... folder away to load the one before it",
        path, strerror(-error));
}

/* Reads through `read` rather than the mapping, so that a bad sector is an error and not SIGBUS.
 * `chunk` holds CHUNK_BYTES. */
static ls_status hash_file(const ls__env *env, int fd, const char *path, uint8_t *chunk,
                           char hex[LS__DIGEST_HEX + 1])
{
    uint8_t out[LS__DIGEST_BYTES];
    ssize_t got;
    ls__digest hash;
    ls__digest_init(&hash);
    while ((got = env->read(env, fd, chunk, CHUNK_BYTES)) > 0) {
        ls__digest_add(&hash, chunk, (size_t)got);
    }
    LS_TRY(ls__digest_end(&hash, out));
    ls__digest_hex(out, hex);
    return got < 0 ? ls__file_read_failed(path, (int)got) : LS_OK;
}

/* The size was compared by the caller already. A wrong hash is LS_ERR_FORMAT, which lets load go
 * on to an older checkpoint. */
ls_status ls__file_verify(const ls__env *env, const char *path, const ls__manifest_file *expected)
{
    char hex[LS__DIGEST_HEX + 1] = "";
    uint8_t *chunk = env->allocate(env, CHUNK_BYTES);
    if (chunk == NULL) {
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to read \"%s\"", path);
    }
    int fd = env->open(env, path, O_RDONLY, 0);
    ls_status status =
        fd < 0 ? ls__file_read_failed(path, fd) : hash_file(env, fd, path, chunk, hex);
    if (fd >= 0) {
        (void)env->close(env, fd);
    }
    env->release(env, chunk, CHUNK_BYTES);
    if (status == LS_OK && strcmp(hex, expected->hash) != 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "checkpoint: the bytes of \"%s\" do not match its hash in the manifest",
                        path);
    }
    return status;
}
