/* SPDX-License-Identifier: Apache-2.0 */
/* Folders, kinds of files, and whole files of the real env table. */
#include "base/env_posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/mapped.h"

/* Devices, sockets and pipes are all LS__ENV_OTHER: nobody may read them as data. */
static ls__env_kind kind_of(mode_t mode)
{
    if (S_ISREG(mode)) {
        return LS__ENV_FILE;
    }
    if (S_ISDIR(mode)) {
        return LS__ENV_FOLDER;
    }
    return S_ISLNK(mode) ? LS__ENV_LINK : LS__ENV_OTHER;
}

/* `mode` holds only the permission bits; only regular files have a size. */
int ls__posix_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    (void)env;
    struct stat found;
    if ((follow ? stat(path, &found) : lstat(path, &found)) != 0) {
        return -errno;
    }
    out->kind = kind_of(found.st_mode);
    out->bytes = S_ISREG(found.st_mode) ? (int64_t)found.st_size : 0;
    out->mode = (int)(found.st_mode & 07777);
    out->uid = found.st_uid;
    out->gid = found.st_gid;
    return 0;
}

/* A target that does not fit is an error: a part of a path leads elsewhere. */
int ls__posix_read_link(const ls__env *env, const char *path, char *out, size_t bytes)
{
    (void)env;
    const ssize_t length = readlink(path, out, bytes);
    if (length < 0 || (size_t)length == bytes) {
        return length < 0 ? -errno : -ENAMETOOLONG;
    }
    out[length] = '\0';
    return (int)length;
}

/* Stops at the first result of `each` other than 0 and returns it. Names come in the order of the
 * file system. */
int ls__posix_list(const ls__env *env, const char *path, int (*each)(void *arg, const char *name),
                   void *arg)
{
    (void)env;
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return -errno;
    }
    int result = 0;
    while (result == 0) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            result = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            result = each(arg, entry->d_name);
        }
    }
    (void)closedir(folder);
    return result;
}

/* Without the blocks that are reserved for root; quotas are not counted. */
int ls__posix_free_bytes(const ls__env *env, const char *path, uint64_t *out)
{
    (void)env;
    struct statvfs info;
    if (statvfs(path, &info) != 0) {
        return -errno;
    }
    *out = (uint64_t)info.f_bavail * info.f_frsize;
    return 0;
}

/* A symbolic link itself is removed, not its target. */
int ls__posix_remove_file(const ls__env *env, const char *path)
{
    (void)env;
    return unlink(path) != 0 ? -errno : 0;
}

/* -ENOTEMPTY when it holds anything. */
int ls__posix_remove_folder(const ls__env *env, const char *path)
{
    (void)env;
    return rmdir(path) != 0 ? -errno : 0;
}

/* -EAGAIN when another process holds it. The lock belongs to the open file and ends with its last
 * descriptor. */
int ls__posix_lock_file(const ls__env *env, int fd)
{
    (void)env;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return 0;
    }
    return errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

/* Takes the size from the mapped descriptor itself, so that a rename cannot come between. An empty
 * file gives NULL and 0, and success. */
static int map_descriptor(int fd, void **out, size_t *bytes)
{
    struct stat found;
    if (fstat(fd, &found) != 0) {
        return -errno;
    }
    if (!S_ISREG(found.st_mode)) {
        return -EINVAL;
    }
    *bytes = (size_t)found.st_size;
    *out = NULL;
    if (*bytes == 0) {
        return 0;
    }
    void *memory = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (memory == MAP_FAILED) {
        return -errno;
    }
    *out = memory;
    return 0;
}

/* O_NONBLOCK keeps a named pipe in the file's place from blocking the open. */
int ls__posix_map_file(const ls__env *env, const char *path, void **out, size_t *bytes)
{
    (void)env;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return -errno;
    }
    int rc = map_descriptor(fd, out, bytes);
    (void)close(fd);
    if (rc == 0 && *out != NULL) {
        ls__mapped_add(*out, *bytes, path);
    }
    return rc;
}

/* NULL is the mapping of an empty file. */
void ls__posix_unmap_file(const ls__env *env, void *memory, size_t bytes)
{
    (void)env;
    if (memory != NULL) {
        ls__mapped_remove(memory);
        (void)munmap(memory, bytes);
    }
}
