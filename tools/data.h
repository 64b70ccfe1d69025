/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep data tokens`: the declarations that its parts share. cmd_data.c reads the command line,
 * data_tokens.c encodes on several threads, data_shards.c writes. */
#ifndef TOOLS_DATA_H
#define TOOLS_DATA_H

#include "base/env.h"
#include <lockstep/status.h>

/* All of each file, only its training part, or only its held-out part. */
typedef enum tokens_part { TOKENS_ALL, TOKENS_TRAIN, TOKENS_VAL } tokens_part;

typedef struct tokens_job {
    const ls__env *env;
    char *const *texts; /* files and folders */
    int text_count;
    const char *tokenizer, *folder;
    const char *begin; /* the token before each file; NULL: <|endoftext|>, if it exists */
    double held_out;   /* share of each file, at its end */
    tokens_part part;
    int64_t shard_tokens;
    int threads;
    bool force;
    /* Called a few times a second and at the end; may be NULL. */
    void (*progress)(void *arg, int64_t bytes_done, int64_t bytes_all, int64_t tokens);
    void *arg;
} tokens_job;

typedef struct tokens_made {
    int files, shards;
    int64_t bytes, tokens;
} tokens_made;

ls_status tokens_make(const tokens_job *job, tokens_made *out);

/* ---- shards ------------------------------------------------------------------------------- */

#define SHARD_TOKENS_MAX INT32_MAX /* llm.c's header has an int32 */

/* Files in llm.c's format, FOLDER/tokens_000000.bin and so on (tokens_train_…, tokens_val_…), of
 * which only the last is not full. They have temporary names until all are complete, so a folder
 * never contains only a part of them. */
typedef struct shards {
    const ls__env *env;
    const char *folder, *prefix; /* the names begin with `prefix`: "tokens_" */
    int lock, fd;                /* of the folder, and of the shard being written; -1: none */
    int token_bytes;             /* 2, or 4 for more than 2^16 tokens */
    int64_t limit;               /* tokens of a full shard */
    int64_t held;                /* tokens of the shard being written */
    int count;                   /* shards so far, including the one being written */
    bool force;
    uint8_t *buffer;
    size_t used;
} shards;

/* Makes the folder and locks it. LS_ERR_STATE: it contains shards and `force` is not set. */
ls_status shards_begin(shards *s, const ls__env *env, const char *folder, const char *prefix,
                       int token_bytes, int64_t limit, bool force);
ls_status shards_add(shards *s, const int32_t *ids, int64_t count);
/* Gives all shards their names; with `force`, earlier shards are removed first. */
ls_status shards_end(shards *s);
void shards_free(shards *s); /* removes shards that still have temporary names */

#endif
