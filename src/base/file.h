/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files in memory through the env table, and nothing else. What is read once and shared by
 * every epoch is read; a file that may be larger than memory (token shards, arrays) is mapped, so
 * that all ranks of a host share its pages. */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include "base/env.h"
#include <lockstep/status.h>

typedef struct ls__file {
    uint8_t *data;
    size_t bytes;
    size_t capacity; /* what was allocated */
    bool mapped;     /* the file's own pages: not to be written */
} ls__file;

/* What lies at `path`, links followed. LS_ERR_NOT_FOUND and LS_ERR_SYSTEM name `what` and the path.
 */
ls_status ls__file_stat(const ls__env *env, const char *what, const char *path, ls__env_stat *out);

/* Of an open file, whatever its path leads to by now. 0, or -errno. */
int ls__file_stat_open(const ls__env *env, int fd, ls__env_stat *out);

/* Makes a new file for writing; the descriptor, or -errno. What lies at the path is removed first:
 * an existing symlink could point anywhere, and opening a pipe could wait forever. Devices and this
 * process's own streams, in /dev, are written to as they are. */
int ls__file_create(const ls__env *env, const char *path, int mode);
/* The same for a file that is written as long as a run lasts, and is locked until it is closed:
 * another run must not replace it meanwhile. LS_ERR_STATE where one would; `what` begins errors. */
ls_status ls__file_create_held(const ls__env *env, const char *what, const char *path, int *fd);
/* LS_ERR_STATE if a run writes the file that lies there. */
ls_status ls__file_check_held(const ls__env *env, const char *what, const char *path);

/* Reads the first `bytes_max` bytes, or all. The file is *out's until ls__file_release. */
ls_status ls__file_read(const ls__env *env, const char *what, const char *path, size_t bytes_max,
                        ls__file *out);
/* Maps a regular file, whole; of an empty one `data` is NULL. It must not be cut while it is used.
 */
ls_status ls__file_map(const ls__env *env, const char *what, const char *path, ls__file *out);
void ls__file_release(const ls__env *env, ls__file *file);

/* ls__fail with "what: tried "path": reason" for a negative errno of the table; `tried` is "cannot
 * read", "cannot make", and so on. A missing file is LS_ERR_NOT_FOUND, one of a file system that
 * hangs LS_ERR_TIMEOUT, any other LS_ERR_SYSTEM. */
ls_status ls__file_fail(int negative_errno, const char *what, const char *tried, const char *path);

#endif
