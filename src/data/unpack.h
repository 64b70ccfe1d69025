/* SPDX-License-Identifier: Apache-2.0 */
/* Files that gzip has compressed, as those of MNIST come. zlib is behind it, or nothing
 * (unpack_none.c). */
#ifndef LS_DATA_UNPACK_H
#define LS_DATA_UNPACK_H

#include "base/file.h"
#include "base/foreign.h"

/* Whether a file that begins so is compressed by gzip. */
static inline bool ls__is_packed(const uint8_t *data, size_t bytes)
{
    return ls__foreign_kind_of(data, bytes) == LS__FOREIGN_GZIP;
}

/* If *file, all of the file at `path`, is compressed by gzip, replaces it by what it holds, in
 * memory; else does nothing. `what` begins the messages: LS_ERR_FORMAT (damaged), LS_ERR_LIMIT,
 * LS_ERR_MEMORY, or LS_ERR_UNSUPPORTED without zlib. On failure *file stays as it was. */
ls_status ls__unpack(const ls__env *env, const char *what, const char *path, ls__file *file);

#endif
