/* Reading and creating the file of a secret. Copies of the secret on the stack are erased after
 * use. */
#include "job/nodes/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

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
 * of its keys. */
static ls_status check_owner(const ls__env *env, const char *path, const char *from)
{
    ls__env_stat found;
    const int error = env->stat(env, path, true, &found);
    if (error < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s %s: %s; `lockstep secret %s` makes one", from, path,
                        strerror(-error), path);
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

/* Reads one byte more than a secret has, so that a longer file is detected. */
ls_status ls__secret_read(const ls__env *env, const char *path, const char *from,
                          uint8_t secret[LS__SECRET_FILE_BYTES])
{
    char text[DIGITS + 2];
    LS_TRY(check_owner(env, path, from));
    const int fd = env->open(env, path, O_RDONLY, 0);
    const ssize_t received = fd < 0 ? fd : env->read(env, fd, text, sizeof text);
    if (fd >= 0) {
        env->close(env, fd);
    }
    if (received < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s %s: %s", from, path, strerror((int)-received));
    }
    const bool sound = ls__secret_parse(text, (size_t)received, secret);
    memset(text, 0, sizeof text);
    return sound ? LS_OK
                 : ls__fail(LS_ERR_FORMAT,
                            "%s %s does not hold 64 hexadecimal digits: make it with `lockstep "
                            "secret FILE` and copy it unchanged",
                            from, path);
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
    memset(secret, 0, sizeof secret);
    return error < 0
               ? ls__fail(LS_ERR_SYSTEM, "cannot draw the secret of the job: %s", strerror(-error))
               : LS_OK;
}

/* O_EXCL: replacing a secret would lock out the nodes that have a copy of it. */
ls_status ls__secret_create(const ls__env *env, const char *path)
{
    char text[DIGITS + 1];
    LS_TRY(ls__secret_draw(env, text));
    const int fd = env->open(env, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        return ls__fail(LS_ERR_SYSTEM, "%s: %s%s", path, strerror(-fd),
                        fd == -EEXIST ? "; an existing secret is not replaced: remove it first, or "
                                        "use it"
                                      : "");
    }
    text[DIGITS] = '\n';
    const ssize_t put = env->write(env, fd, text, sizeof text);
    env->close(env, fd);
    memset(text, 0, sizeof text);
    return put == (ssize_t)sizeof text
               ? LS_OK
               : ls__fail(LS_ERR_SYSTEM, "%s: %s", path, strerror(put < 0 ? (int)-put : EIO));
}
