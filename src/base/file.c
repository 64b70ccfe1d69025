/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and mapping whole files. The size that stat tells is only the first guess of the buffer:
 * a file may grow or shrink while it is read, so reading goes on until the end and the buffer
 * doubles. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/patient.h"
#include "base/runtime.h"

#define CAPACITY_MIN ((size_t)4096)

/* ENOTDIR counts as missing: some part of the path does not exist as a folder. */
ls_status ls__file_fail(int negative_errno, const char *what, const char *tried, const char *path)
{
    if (negative_errno == -ENOENT || negative_errno == -ENOTDIR) {
        return ls__fail(LS_ERR_NOT_FOUND, "%s: %s \"%s\": %s; check the path", what, tried, path,
                        strerror(-negative_errno));
    }
    if (negative_errno == -ETIMEDOUT) {
        return ls__fail(LS_ERR_TIMEOUT,
                        "%s: %s \"%s\": the file system has not answered in time "
                        "(LOCKSTEP_TIMEOUT, or a checkpoint's timeout_ms); check the disk, or the "
                        "server that it is mounted from",
                        what, tried, path);
    }
    return ls__fail(LS_ERR_SYSTEM, "%s: %s \"%s\": %s", what, tried, path,
                    strerror(-negative_errno));
}

/* Files of a job's are opened and read within its deadline. */
static ls__patient *patient_for(const ls__env *env)
{
    const ls_runtime *runtime = ls__self.runtime;
    return runtime != NULL && runtime->env == env
               ? ls__patient_new(env, runtime->timeout_ms, LS__PATIENT_HEAD)
               : NULL;
}

static ls_status stat_file(const ls__env *env, const char *what, const char *path,
                           ls__env_stat *out)
{
    int error = env->stat(env, path, true, out);
    return error < 0 ? ls__file_fail(error, what, "cannot read", path) : LS_OK;
}

ls_status ls__file_stat(const ls__env *env, const char *what, const char *path, ls__env_stat *out)
{
    ls__patient *patient = patient_for(env);
    const ls_status status = stat_file(ls__patient_env(patient, env), what, path, out);
    ls__patient_free(patient);
    return status;
}

int ls__file_stat_open(const ls__env *env, int fd, ls__env_stat *out)
{
    char link[32];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return env->stat(env, link, true, out);
}

/* Whether root alone can make what lies there. */
static bool is_device(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 && strncmp(path, "/dev/shm/", 9) != 0;
}

int ls__file_create(const ls__env *env, const char *path, int mode)
{
    if (is_device(path)) {
        return env->open(env, path, O_WRONLY, 0);
    }
    const int removed = env->remove_file(env, path);
    const int fd = env->open(env, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
    return fd == -EEXIST && removed < 0 && removed != -ENOENT ? removed : fd;
}

ls_status ls__file_check_held(const ls__env *env, const char *what, const char *path)
{
    ls__env_stat found;
    if (env->stat(env, path, false, &found) < 0 || found.kind != LS__ENV_FILE) {
        return LS_OK;
    }
    const int fd = env->open(env, path, O_RDONLY | O_NOFOLLOW, 0);
    const int error = fd < 0 ? 0 : env->lock_file(env, fd);
    if (fd >= 0) {
        env->close(env, fd);
    }
    return error != -EAGAIN ? LS_OK
                            : ls__fail(LS_ERR_STATE,
                                       "%s: another run writes \"%s\", and it has not ended; give "
                                       "another file",
                                       what, path);
}

/* Where the file system has no locks the file is not protected. */
ls_status ls__file_create_held(const ls__env *env, const char *what, const char *path, int *fd)
{
    LS_TRY(ls__file_check_held(env, what, path));
    *fd = ls__file_create(env, path, 0666);
    if (*fd < 0) {
        return ls__file_fail(*fd, what, "cannot make", path);
    }
    if (!is_device(path)) {
        (void)env->lock_file(env, *fd);
    }
    return LS_OK;
}

/* Replaces the buffer by a larger one and keeps its contents. env has no realloc, so old and new
 * exist together for a moment. */
static ls_status reserve(const ls__env *env, const char *what, const char *path, size_t capacity,
                         ls__file *file)
{
    uint8_t *grown = env->allocate(env, capacity);
    if (grown == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: \"%s\": no memory for %zu bytes", what, path, capacity);
    }
    if (file->data) {
        memcpy(grown, file->data, file->bytes);
        env->release(env, file->data, file->capacity);
    }
    file->data = grown;
    file->capacity = capacity;
    return LS_OK;
}

/* Reads until the end of the file or bytes_max. stat's size is not trusted, because the file may
 * change meanwhile. A call that a signal interrupted is repeated. The caller releases the buffer
 * on failure. */
static ls_status fill(const ls__env *env, const char *what, const char *path, int fd,
                      size_t bytes_max, ls__file *file)
{
    while (file->bytes < bytes_max) {
        if (file->bytes == file->capacity) {
            LS_ASSERT(file->capacity <= SIZE_MAX / 2); /* it is a block of memory */
            LS_TRY(reserve(env, what, path, 2 * file->capacity, file));
        }
        size_t room = file->capacity - file->bytes;
        size_t want = room < bytes_max - file->bytes ? room : bytes_max - file->bytes;
        ssize_t got = env->read(env, fd, file->data + file->bytes, want);
        if (got == -EINTR) {
            continue;
        }
        if (got < 0) {
            return ls__file_fail((int)got, what, "cannot read", path);
        }
        if (got == 0) {
            break;
        }
        file->bytes += (size_t)got;
    }
    return LS_OK;
}

/* Reading a FIFO or a device could block for ever, so only regular files pass. */
static ls_status stat_regular(const ls__env *env, const char *what, const char *path,
                              ls__env_stat *stat)
{
    LS_TRY(stat_file(env, what, path, stat));
    if (stat->kind != LS__ENV_FILE) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: \"%s\" is not a regular file; give the path of a regular file", what,
                        path);
    }
    return LS_OK;
}

/* On failure *out is empty. A file that grows during the call is read to its new end. */
static ls_status read_file(const ls__env *env, const char *what, const char *path, size_t bytes_max,
                           ls__file *out)
{
    *out = (ls__file){0};
    ls__env_stat stat;
    LS_TRY(stat_regular(env, what, path, &stat));
    /* One byte more than the size, so that the read that finds the end needs no larger buffer. */
    size_t guess = (size_t)stat.bytes < bytes_max ? (size_t)stat.bytes + 1 : bytes_max;
    int fd = env->open(env, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return ls__file_fail(fd, what, "cannot read", path);
    }
    ls_status status = reserve(env, what, path, guess < CAPACITY_MIN ? CAPACITY_MIN : guess, out);
    if (status == LS_OK) {
        status = fill(env, what, path, fd, bytes_max, out);
    }
    (void)env->close(env, fd);
    if (status < 0) {
        ls__file_release(env, out);
    }
    return status;
}

ls_status ls__file_read(const ls__env *env, const char *what, const char *path, size_t bytes_max,
                        ls__file *out)
{
    ls__patient *patient = patient_for(env);
    const ls_status status = read_file(ls__patient_env(patient, env), what, path, bytes_max, out);
    ls__patient_free(patient);
    return status;
}

/* An empty file has data NULL and bytes 0, since mmap refuses a length of 0. Truncating the file
 * while it is mapped raises SIGBUS on access. */
static ls_status map_file(const ls__env *env, const char *what, const char *path, ls__file *out)
{
    *out = (ls__file){.mapped = true};
    ls__env_stat stat;
    LS_TRY(stat_regular(env, what, path, &stat));
    void *memory = NULL;
    int error = env->map_file(env, path, &memory, &out->bytes);
    if (error < 0) {
        *out = (ls__file){0};
        return ls__file_fail(error, what, "cannot read", path);
    }
    out->data = memory;
    return LS_OK;
}

ls_status ls__file_map(const ls__env *env, const char *what, const char *path, ls__file *out)
{
    ls__patient *patient = patient_for(env);
    const ls_status status = map_file(ls__patient_env(patient, env), what, path, out);
    ls__patient_free(patient);
    return status;
}

/* Also correct for a zeroed ls__file, and resets to one. */
void ls__file_release(const ls__env *env, ls__file *file)
{
    if (file->mapped) {
        env->unmap_file(env, file->data, file->bytes);
    } else if (file->data) {
        env->release(env, file->data, file->capacity);
    }
    *file = (ls__file){0};
}
