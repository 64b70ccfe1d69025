/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a file of tokens.
 *
 *     llm.c     256 little-endian int32: magic, version, number of tokens, zeros; then the tokens,
 *               uint16 (magic 20240520, version 1) or uint32 (20240801, version 7)
 *     nanoGPT   uint16 tokens and nothing else
 *
 * A file that begins with no magic is nanoGPT's. With GPT-2's 50257 tokens none of its files can
 * begin with a magic of llm.c, whose lower half would be token 55432 or higher. Source: the writers
 * of both (llm.c dev/data/data_common.py, nanoGPT data/openwebtext/prepare.py).
 */
#ifndef LS_DATA_SHARD_H
#define LS_DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#include "base/file.h"

#define LS__SHARD_HEADER 1024

typedef struct ls__shard {
    int token_bytes; /* 2 or 4 */
    size_t begin;    /* of the first token, in the file */
    int64_t count;   /* tokens; at least 1 */
} ls__shard;

/* `data` is the whole file; `path` names it in messages. LS_ERR_FORMAT, LS_ERR_UNSUPPORTED, or
 * LS_ERR_INVALID when there are no tokens. */
ls_status ls__shard_parse(const uint8_t *data, size_t bytes, const char *path, ls__shard *out);

/* Whether the tokens of a file without a header may be what the header's absence makes of them: 2
 * bytes each. LS_ERR_UNSUPPORTED if `vocab` (0: unknown) does not fit 2 bytes, or if another tool's
 * index lies beside the file; a warning if every second token is 0, as of 4-byte tokens. */
ls_status ls__shard_check_raw(const ls__env *env, const ls__file *file, const char *path,
                              int64_t vocab);

typedef struct ls__shard_magic {
    char text[12];
} ls__shard_magic;
/* The first bytes, four at most, for messages: "9e 01 4f 20". */
ls__shard_magic ls__shard_begins(const uint8_t *data, size_t bytes);

#endif
