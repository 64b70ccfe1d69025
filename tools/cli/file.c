/* SPDX-License-Identifier: Apache-2.0 */
/* As ls__file_create and ls__file_read of the library (base/file.h), for programs that use only its
 * public headers: nothing is written through a link, and no pipe is waited for. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli/cli.h"

/* Whether root alone can make what lies there. */
static bool is_device(const char *path)
{
    return strncmp(path, "/dev/", 5) == 0 && strncmp(path, "/dev/shm/", 9) != 0;
}

/* Takes the descriptor. NULL with errno. */
static FILE *stream_of(int fd, const char *mode)
{
    FILE *file = fd >= 0 ? fdopen(fd, mode) : NULL;
    if (fd >= 0 && file == NULL) {
        const int error = errno;
        (void)close(fd);
        errno = error;
    }
    return file;
}

FILE *cli_create(const char *path)
{
    if (is_device(path)) {
        return stream_of(open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY), "w");
    }
    const int error = unlink(path) != 0 ? errno : 0;
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST && error != 0 && error != ENOENT) {
        errno = error; /* why the old one could not be removed */
    }
    return stream_of(fd, "w");
}

bool cli_can_create(const char *path)
{
    char beside[4200];
    if (is_device(path)) {
        return access(path, W_OK) == 0;
    }
    (void)snprintf(beside, sizeof beside, "%.4096s.%d.part", path, (int)getpid());
    FILE *file = cli_create(beside);
    const bool made = file != NULL && fclose(file) == 0;
    return made && unlink(beside) == 0;
}

bool cli_same_file(const char *a, const char *b)
{
    struct stat one, two;
    return a != NULL && b != NULL && stat(a, &one) == 0 && stat(b, &two) == 0 &&
           S_ISREG(one.st_mode) && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

int cli_keep_input(const cli_command *command, const char *option, const char *written,
                   const char *read)
{
    return !cli_same_file(written, read)
               ? 0
               : cli_wrong(command,
                           "--%s would replace \"%s\", which this command reads; give another file",
                           option, read);
}

/* Beside it first, so that there is always a whole file. */
bool cli_write_json(const json_t *root, const char *path, size_t flags)
{
    char beside[4200];
    const bool device = is_device(path);
    (void)snprintf(beside, sizeof beside, "%.4096s.%d.part", path, (int)getpid());
    FILE *file = cli_create(device ? path : beside);
    bool written = file != NULL && json_dumpf(root, file, flags) == 0;
    written = file != NULL && fclose(file) == 0 && written;
    if (device || file == NULL || (written && rename(beside, path) == 0)) {
        return written;
    }
    const int error = errno;
    (void)unlink(beside);
    errno = error;
    return false;
}

FILE *cli_open(const char *path, const char *mode)
{
    struct stat found = {0};
    const bool changed = strcmp(mode, "r+") == 0;
    const int fd =
        open(path, (changed ? O_RDWR | O_NOFOLLOW : O_RDONLY) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) {
        const int error = fd < 0 ? errno : S_ISDIR(found.st_mode) ? EISDIR : EINVAL;
        if (fd >= 0) {
            (void)close(fd);
        }
        errno = error;
        return NULL;
    }
    return stream_of(fd, mode);
}
