/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and creating the file of a secret. Copies of the secret on the stack are erased after
 * use. */
#include "job/nodes/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/trusted.h"

#define DIGITS (2 * LS__SECRET_FILE_BYTES)

/* The value of a hexadecimal digit; -1: it is not one. */
static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* 64 digits, and at most a newline: anything more suggests another file. */
bool ls__secret_parse(const char *text, size_t bytes, uint8_t secret[LS__SECRET_FILE_BYTES])
{
    if (bytes < DIGITS || (bytes == DIGITS + 1 && text[DIGITS] != '\n') || bytes > DIGITS + 1) {
        return false;
    }
    for (size_t i = 0; i < LS__SECRET_FILE_BYTES; i++) {
        const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        secret[i] = (uint8_t)(high * 16 + low);
    }
    return true;
}

/* Any user who can read the secret could join the job, so the file must be private, as ssh demands
 * of its keys. By the descriptor: the path may lead to another file by now. */
static ls_status check_owner(const ls__env *env, int fd, const char *path, const char *from)
{
    ls__env_stat found;
    const int error = ls__file_stat_open(env, fd, &found);
    if (error < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s %s: %s", from, path, strerror(-error));
    }
    if (found.kind != LS__ENV_FILE) {
        return ls__fail(LS_ERR_INVALID, "%s %s is not a file", from, path);
    }
    if ((found.mode & 077) != 0 || found.uid != env->uid(env)) {
        return ls__fail(LS_ERR_AUTH,
                        "%s %s can be read by others (mode %04o, owner %ld, this user is %ld): "
                        "chmod 600 it, make it your own, or make a new one if others may have read "
                        "it",
                        from, path, (unsigned)found.mode, (long)found.uid, (long)env->uid(env));
    }
    return LS_OK;
}

/* Whether other users cannot exchange the file; `real` is its path without links. */
static ls_status check_place(const ls__env *env, const char *path, const char *from,
                             char real[LS__TRUSTED_PATH_MAX])
{
    ls__untrusted why;
    const int error = ls__trusted_path(env, path, env->uid(env), real, &why);
    if (error == -EPERM) {
        return ls__untrusted_fail(env, from, path, &why);
    }
    return error < 0 ? ls__fail(LS_ERR_SYSTEM, "%s %s: %s; `lockstep secret %s` makes one", from,
                                path, strerror(-error), path)
                     : LS_OK;
}

/* O_NONBLOCK: a pipe in its place would wait for a writer. */
static ls_status open_secret(const ls__env *env, const char *path, const char *from, int *fd)
{
    char real[LS__TRUSTED_PATH_MAX];
    LS_TRY(check_place(env, path, from, real));
    *fd = env->open(env, real, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    return *fd < 0 ? ls__fail(LS_ERR_SYSTEM, "%s %s: %s", from, path, strerror(-*fd)) : LS_OK;
}

/* Reads one byte more than a secret has, so that a longer file is detected. */
static ls_status read_secret(const ls__env *env, int fd, const char *path, const char *from,
                             uint8_t secret[LS__SECRET_FILE_BYTES])
{
    char text[DIGITS + 2];
    LS_TRY(check_owner(env, fd, path, from));
    const ssize_t received = env->read(env, fd, text, sizeof text);
    if (received < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s %s: %s", from, path, strerror((int)-received));
    }
    const bool sound = ls__secret_parse(text, (size_t)received, secret);
    explicit_bzero(text, sizeof text);
    return sound ? LS_OK
                 : ls__fail(LS_ERR_FORMAT,
                            "%s %s does not hold 64 hexadecimal digits: make it with `lockstep "
                            "secret FILE` and copy it unchanged",
                            from, path);
}

ls_status ls__secret_read(const ls__env *env, const char *path, const char *from,
                          uint8_t secret[LS__SECRET_FILE_BYTES])
{
    int fd;
    LS_TRY(open_secret(env, path, from, &fd));
    const ls_status status = read_secret(env, fd, path, from, secret);
    env->close(env, fd);
    return status;
}

ls_status ls__secret_draw(const ls__env *env, char text[DIGITS + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t secret[LS__SECRET_FILE_BYTES];
    const int error = env->random_bytes(env, secret, sizeof secret);
    for (size_t i = 0; i < sizeof secret; i++) {
        text[2 * i] = digits[secret[i] >> 4];
        text[2 * i + 1] = digits[secret[i] & 15];
    }
    text[DIGITS] = '\0';
    explicit_bzero(secret, sizeof secret);
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "cannot draw the secret of the job: %s", strerror(-error))
               : LS_OK;
}

/* A secret that could not be written whole is removed: an empty file would pass for one that
 * exists. */
static int write_secret(const ls__env *env, int fd, const char *path, const char *text,
                        size_t bytes)
{
    const ssize_t put = env->write(env, fd, text, bytes);
    const int synced = put == (ssize_t)bytes ? env->fsync(env, fd) : put < 0 ? (int)put : -ENOSPC;
    const int closed = env->close(env, fd);
    const int error = synced < 0 ? synced : closed;
    if (error < 0) {
        (void)env->remove_file(env, path);
    }
    return error;
}

/* O_EXCL: replacing a secret would lock out the nodes that have a copy of it. */
ls_status ls__secret_create(const ls__env *env, const char *path)
{
    char text[DIGITS + 1], real[LS__TRUSTED_PATH_MAX];
    LS_TRY(ls__secret_draw(env, text));
    const int fd = env->open(env, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    text[DIGITS] = '\n';
    const int error = fd < 0 ? fd : write_secret(env, fd, path, text, sizeof text);
    explicit_bzero(text, sizeof text);
    if (fd == -EEXIST) {
        return ls__fail(LS_ERR_SYSTEM,
                        "%s: %s; an existing secret is not replaced: remove it first, or use it",
                        path, strerror(EEXIST));
    }
    if (error < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s: %s", path, strerror(-error));
    }
    const ls_status status = check_place(env, path, "secret", real);
    if (status < 0) {
        (void)env->remove_file(env, path); /* no job would take it */
    }
    return status;
}
