/* SPDX-License-Identifier: Apache-2.0 */
/* Streams by a name of this host: sockets in a folder that only this user can write. Another user
 * can neither take a name first nor listen in its place.
 *
 *     $XDG_RUNTIME_DIR/lockstep    if that folder is this user's own, and other users cannot
 *                                  exchange it (base/trusted.h); after `su` the variable still
 *                                  names theirs
 *     /run/user/UID/lockstep       the same folder, where the variable is not set (mpirun, cron)
 *     /tmp/lockstep-UID            otherwise
 *     /tmp/lockstep-UID.RANDOM     where another user has made that one first: who listens takes or
 *                                  makes a folder of such a name, who connects tries all that are
 *                                  this user's, since processes may choose at different moments
 *
 * Names count within a network namespace, as ports do: its number is a part of the file's name.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/env_posix.h"
#include "base/trusted.h"

#define BACKLOG 128
#define SPARE_MAX 64 /* bytes of the name of a spare folder */
#define OTHERS 077   /* permissions of everybody else */
#define OTHERS_WRITE 022

/* ---- the folder ------------------------------------------------------------------------------ */

/* Whether it is a folder of this user, without any of the forbidden permissions. */
static bool is_own(const struct stat *found, mode_t forbidden)
{
    return S_ISDIR(found->st_mode) && found->st_uid == geteuid() &&
           (found->st_mode & forbidden) == 0;
}

/* Opens `name` in the folder `at`, which is made if need be. -EPERM when it does not belong to this
 * user alone. O_NOFOLLOW: a link could lead to a folder of another user. */
static int open_own(int at, const char *name)
{
    struct stat found;
    if (mkdirat(at, name, 0700) != 0 && errno != EEXIST) {
        return -errno;
    }
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno == EACCES || errno == ELOOP || errno == ENOTDIR ? -EPERM : -errno;
    }
    if (fstat(fd, &found) != 0 || !is_own(&found, OTHERS)) {
        (void)close(fd);
        return -EPERM;
    }
    return ls__posix_above_standard(fd);
}

/* Opens the folder `lockstep` within a session's folder; an error means that the next candidate is
 * to be tried. */
static int open_in_session(const char *session, ls__env_folder *out)
{
    struct stat found;
    char real[LS__TRUSTED_PATH_MAX];
    ls__untrusted why;
    const int trusted = ls__trusted_path(ls__env_posix(), session, geteuid(), real, &why);
    const int at = trusted < 0 ? -1 : open(real, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (at < 0) {
        return trusted < 0 ? trusted : -errno;
    }
    const bool own = fstat(at, &found) == 0 && is_own(&found, OTHERS_WRITE);
    const int fd = own ? open_own(at, "lockstep") : -EPERM;
    (void)close(at);
    snprintf(out->path, sizeof out->path, "%.200s/lockstep", session);
    return fd;
}

/* Tries the first three folders in order. On -EPERM `out` holds the owner of the one that was
 * refused, for the error text. */
static int open_folder(ls__env_folder *out)
{
    char session[64];
    struct stat found;
    /* Not of a process that runs with more rights than its user. */
    const char *given = secure_getenv("XDG_RUNTIME_DIR");
    int fd = given != NULL ? open_in_session(given, out) : -ENOENT;
    if (fd < 0) {
        snprintf(session, sizeof session, "/run/user/%ld", (long)geteuid());
        fd = open_in_session(session, out);
    }
    if (fd < 0) {
        snprintf(out->path, sizeof out->path, "/tmp/lockstep-%ld", (long)geteuid());
        fd = open_own(AT_FDCWD, out->path);
    }
    if (fd == -EPERM && lstat(out->path, &found) == 0) {
        out->uid = found.st_uid;
        out->mode = (int)(found.st_mode & 07777);
    }
    return fd;
}

/* Opens the folder only to see whether it can be; -EPERM with the owner in *out. */
int ls__posix_name_folder(const ls__env *env LS__UNUSED, ls__env_folder *out)
{
    memset(out, 0, sizeof *out);
    const int fd = open_folder(out);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd < 0 ? fd : 0;
}

/* ---- spare folders --------------------------------------------------------------------------- */

typedef int each_spare(void *arg, int folder, const char *name);

/* Calls each() with every spare folder of this user until one returns 0 or more, which is the
 * result; else the last error, -ENOENT without any. The descriptor is closed afterwards. Entries
 * that are other users' cost a stat each. */
static int try_spares(each_spare *each, void *arg)
{
    char prefix[SPARE_MAX];
    struct stat found;
    int result = -ENOENT;
    const int length = snprintf(prefix, sizeof prefix, "lockstep-%ld.", (long)geteuid());
    DIR *all = opendir("/tmp");
    for (struct dirent *e = NULL; all != NULL && result < 0 && (e = readdir(all)) != NULL;) {
        if (strncmp(e->d_name, prefix, (size_t)length) != 0 ||
            fstatat(dirfd(all), e->d_name, &found, AT_SYMLINK_NOFOLLOW) != 0 ||
            !is_own(&found, OTHERS)) {
            continue;
        }
        const int fd = open_own(dirfd(all), e->d_name);
        if (fd >= 0) {
            result = each(arg, fd, e->d_name);
            (void)close(fd);
        }
    }
    if (all != NULL) {
        (void)closedir(all);
    }
    return result;
}

/* Keeps the least name, so that listeners of one job mostly agree. A longer one than this library
 * makes is not used. */
static int keep_least(void *arg, int folder LS__UNUSED, const char *name)
{
    char *least = arg;
    const size_t size = strlen(name) + 1;
    if (size <= SPARE_MAX && (least[0] == '\0' || strcmp(name, least) < 0)) {
        memcpy(least, name, size);
    }
    return -ENOENT; /* look at all */
}

/* Opens the spare folder to listen in, which is made if there is none. */
static int open_spare(void)
{
    char name[SPARE_MAX] = "", path[SPARE_MAX + 8];
    uint64_t random = 0;
    (void)try_spares(keep_least, name);
    if (name[0] == '\0') {
        if (ls__posix_random_bytes(NULL, &random, sizeof random) != 0) {
            return -EPERM;
        }
        snprintf(name, sizeof name, "lockstep-%ld.%016llx", (long)geteuid(),
                 (unsigned long long)random);
    }
    snprintf(path, sizeof path, "/tmp/%s", name);
    const int fd = open_own(AT_FDCWD, path);
    return fd < 0 ? -EPERM : fd;
}

/* ---- sockets in it --------------------------------------------------------------------------- */

typedef struct place { /* of a name */
    int folder;
    char file[LS__HOST_NAME_MAX + 24];
    struct sockaddr_un address; /* through the folder's descriptor: whatever its path's length */
} place;

static bool is_name(const char *name)
{
    return name[0] != '\0' && strlen(name) <= LS__HOST_NAME_MAX && strchr(name, '/') == NULL;
}

/* The place of a name in an open folder, which stays the caller's to close. */
static int place_in(int folder, const char *name, place *out)
{
    struct stat network = {.st_ino = 0};
    memset(out, 0, sizeof *out);
    out->folder = folder;
    (void)stat("/proc/self/ns/net", &network);
    snprintf(out->file, sizeof out->file, "%s.%llu", name, (unsigned long long)network.st_ino);
    out->address.sun_family = AF_UNIX;
    const int length = snprintf(out->address.sun_path, sizeof out->address.sun_path,
                                "/proc/self/fd/%d/%s", out->folder, out->file);
    return length >= (int)sizeof out->address.sun_path ? -ENAMETOOLONG : 0;
}

/* For listening. On success out->folder is open and the caller's to close. */
static int find_place(const char *name, place *out)
{
    ls__env_folder refused;
    if (!is_name(name)) {
        return -EINVAL;
    }
    int folder = open_folder(&refused);
    folder = folder == -EPERM ? open_spare() : folder;
    if (folder < 0) {
        return folder;
    }
    const int error = place_in(folder, name, out);
    if (error < 0) {
        (void)close(folder);
    }
    return error;
}

/* A non-blocking stream, above the standard descriptors. */
static int new_socket(void)
{
    return ls__posix_above_standard(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* -ECONNREFUSED: the file is there, but no process listens behind it. */
static int connect_to(const place *p)
{
    const int fd = new_socket();
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&p->address, sizeof p->address) != 0) {
        const int error = errno; /* EAGAIN: its queue is full */
        (void)close(fd);
        return -error;
    }
    return fd;
}

/* A file behind which nobody listens was left by a process that was killed; it is replaced. Must be
 * called under the folder's lock. */
static int bind_to(int fd, const place *p)
{
    const struct sockaddr *address = (const struct sockaddr *)&p->address;
    if (bind(fd, address, sizeof p->address) == 0) {
        return 0;
    }
    const int error = errno, other = error == EADDRINUSE ? connect_to(p) : -EAGAIN;
    if (other >= 0) {
        (void)close(other);
    }
    if (other != -ECONNREFUSED) {
        return -error;
    }
    (void)unlinkat(p->folder, p->file, 0);
    return bind(fd, address, sizeof p->address) == 0 ? 0 : -errno;
}

/* Takes the folder's lock, so that two processes that find a dead file do not both replace it. */
int ls__posix_host_listen(const ls__env *env LS__UNUSED, const char *name)
{
    place p;
    int error = find_place(name, &p);
    if (error < 0) {
        return error;
    }
    const int fd = new_socket();
    error = fd < 0 ? fd : flock(p.folder, LOCK_EX) != 0 ? -errno : bind_to(fd, &p);
    if (error >= 0 && listen(fd, BACKLOG) != 0) {
        error = -errno;
    }
    (void)close(p.folder); /* and its lock */
    if (error < 0 && fd >= 0) {
        (void)close(fd);
    }
    return error < 0 ? error : fd;
}

static int remove_name(void *arg, int folder, const char *spare LS__UNUSED)
{
    place p;
    int error = place_in(folder, arg, &p);
    if (error == 0) {
        (void)flock(folder, LOCK_EX);
        error = unlinkat(folder, p.file, 0) == 0 ? 0 : -errno;
        (void)flock(folder, LOCK_UN);
    }
    return error;
}

/* The file goes before the socket closes, under the lock: nobody can find a name without a
 * listener. It lies in a spare folder if the first one was not this user's when it was made. */
void ls__posix_host_unlisten(const ls__env *env LS__UNUSED, int fd, const char *name)
{
    ls__env_folder refused;
    char copy[LS__HOST_NAME_MAX + 1];
    snprintf(copy, sizeof copy, "%s", name);
    const int folder = open_folder(&refused);
    if (folder < 0 || remove_name(copy, folder, NULL) < 0) {
        (void)try_spares(remove_name, copy);
    }
    if (folder >= 0) {
        (void)close(folder);
    }
    (void)close(fd);
}

/* A peer that has given up in the queue is passed over. */
int ls__posix_host_accept(const ls__env *env LS__UNUSED, int fd)
{
    int got;
    do {
        got = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    } while (got < 0 && (errno == EINTR || errno == ECONNABORTED));
    return ls__posix_above_standard(got);
}

static int connect_in(void *arg, int folder, const char *spare LS__UNUSED)
{
    place p;
    const int error = place_in(folder, arg, &p);
    return error < 0 ? error : connect_to(&p);
}

/* Does not wait: -EAGAIN when the listener's queue is full. */
int ls__posix_host_connect(const ls__env *env LS__UNUSED, const char *name)
{
    ls__env_folder refused;
    char copy[LS__HOST_NAME_MAX + 1];
    if (!is_name(name)) {
        return -EINVAL;
    }
    snprintf(copy, sizeof copy, "%s", name);
    const int folder = open_folder(&refused);
    int fd = folder < 0 ? folder : connect_in(copy, folder, NULL);
    if (fd == -EPERM || fd == -ENOENT || fd == -ECONNREFUSED) {
        fd = try_spares(connect_in, copy);
    }
    if (folder >= 0) {
        (void)close(folder);
    }
    return fd;
}
