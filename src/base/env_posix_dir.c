/* Folders and kinds of files of the real env table. */
#include "base/env_posix.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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

int ls__posix_stat(const ls__env *env, const char *path, bool follow, ls__env_stat *out)
{
    (void)env;
    struct stat found;
    if ((follow ? stat(path, &found) : lstat(path, &found)) != 0) {
        return -errno;
    }
    out->kind = kind_of(found.st_mode);
    out->bytes = S_ISREG(found.st_mode) ? (int64_t)found.st_size : 0;
    return 0;
}

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
