/* SPDX-License-Identifier: Apache-2.0 */
/* Files of tokens, in one shard or many: a data set of windows (windows.h).
 *
 *     shard    [header] t0 t1 t2 …
 *
 * Shards are mapped: they may be larger than memory, and the ranks of a host share their pages.
 * Tokens are compared with the vocabulary when their sample is read, not before.
 */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "data/bytes.h"
#include "data/dataset.h"
#include "data/shard.h"
#include "data/windows.h"

typedef struct tokens {
    ls__windows windows;
    const char *part; /* of the options, while it is made */
    int64_t vocab;    /* 0: unknown */
    uint32_t limit;   /* tokens are below it */
} tokens;

/* ---- samples ------------------------------------------------------------------------------ */

/* Token number i of a window; bytes are assembled singly, since a window may begin at any
 * address. */
static uint32_t token_at(const uint8_t *window, int token_bytes, int64_t i)
{
    return token_bytes == 2 ? ls__little_16(window + 2 * i) : ls__little_32(window + 4 * i);
}

/* Writes context + 1 tokens as x and y and returns the largest, so that one comparison per
 * sample checks them all against the vocabulary. */
static uint32_t read_window(const uint8_t *window, int token_bytes, int64_t context, int32_t *x,
                            int32_t *y)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < context; i++) {
        const uint32_t token = token_at(window, token_bytes, i);
        largest = token > largest ? token : largest;
        x[i] = (int32_t)token;
    }
    const uint32_t last = token_at(window, token_bytes, context);
    memcpy(y, x + 1, (size_t)(context - 1) * sizeof *y);
    y[context - 1] = (int32_t)last;
    return last > largest ? last : largest;
}

/* Searches the first token that is too large. For a file without a header the format itself may
 * be wrong, so the message says how it was recognised. */
static ls_status fail_token(const tokens *t, const ls__window_file *file, const uint8_t *window)
{
    int64_t i = 0;
    while (i < t->windows.context && token_at(window, file->item_bytes, i) < t->limit) {
        i++;
    }
    const uint8_t *at = window + i * file->item_bytes;
    if (file->items == file->file.data) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokens: \"%s\" has token %u at offset %lld, but tokens must be below %u; "
                        "it begins with %s, which is not a magic number of llm.c, so it was read "
                        "as tokens of 2 bytes: is it such a file, and of this vocabulary?",
                        file->path, token_at(at, file->item_bytes, 0),
                        (long long)(at - file->file.data), t->limit,
                        ls__shard_begins(file->file.data, file->file.bytes).text);
    }
    return ls__fail(LS_ERR_FORMAT,
                    "tokens: \"%s\" has token %u at offset %lld, but tokens must be below %u; was "
                    "the file written with another vocabulary?",
                    file->path, token_at(at, file->item_bytes, 0),
                    (long long)(at - file->file.data), t->limit);
}

/* Runs on the loader's thread; reads mapped pages, which may wait for the disk. */
static ls_status tokens_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const tokens *t = (const tokens *)self;
    LS_TRY(ls__dataset_check(self, "tokens", index));
    const ls__window_file *file;
    const uint8_t *window = ls__windows_find(&t->windows, index, &file);
    const uint32_t largest = read_window(window, file->item_bytes, t->windows.context, x, y);
    return largest < t->limit ? LS_OK : fail_token(t, file, window);
}

/* ---- opening ------------------------------------------------------------------------------ */

static ls_status open_file(const ls__windows *w, ls__window_file *file, bool named)
{
    const ls__file *data = &file->file;
    ls__shard shard;
    (void)named;
    LS_TRY(ls__file_map(w->env, "tokens", file->path, &file->file));
    LS_TRY(ls__shard_parse(data->data, data->bytes, file->path, &shard));
    if (shard.begin == 0) {
        LS_TRY(ls__shard_check_raw(w->env, data, file->path, ((const tokens *)w)->vocab));
    }
    file->items = data->data + shard.begin;
    file->count = shard.count;
    file->item_bytes = shard.token_bytes;
    return LS_OK;
}

/* Whether this is a shard (.bin) and its name, not its folder, holds `part`. */
static bool has_part(const char *path, const char *part)
{
    const char *name = ls__paths_name(path);
    const size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".bin") == 0 &&
           (part == NULL || strstr(name, part) != NULL);
}

/* The first shard of a folder whose name holds `part`, or NULL. */
static const char *shard_of(const ls__paths *files, const char *part)
{
    for (int i = 0; i < files->count; i++) {
        if (has_part(files->path[i], part)) {
            return files->path[i];
        }
    }
    return NULL;
}

/* Keeps the shards of `part`. Without one, a folder must not hold both training and validation
 * shards: a model trained on all of them would be evaluated on its training text. */
static ls_status choose(const ls__windows *w, const char *folder, ls__paths *files)
{
    const char *part = ((const tokens *)w)->part;
    const char *train = shard_of(files, "train"), *val = shard_of(files, "val");
    if (part == NULL && train != NULL && val != NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "tokens: \"%s\" holds shards for training and for validation (\"%s\", "
                        "\"%s\"); choose by .part = \"train\" or \"val\"",
                        folder, ls__paths_name(train), ls__paths_name(val));
    }
    int kept = 0;
    for (int i = 0; i < files->count; i++) {
        if (has_part(files->path[i], part)) {
            char *path = files->path[i];
            files->path[i] = files->path[kept];
            files->path[kept++] = path;
        }
    }
    if (kept == 0) {
        return ls__fail(
            LS_ERR_NOT_FOUND,
            "tokens: \"%s\" holds no shard named %s%s*.bin; name a folder of shards, or "
            "one shard",
            folder, part != NULL ? "*" : "", part != NULL ? part : "");
    }
    for (int i = kept; i < files->count; i++) {
        free(files->path[i]);
    }
    files->count = kept;
    return LS_OK;
}

/* Called with at least one file: `choose` fails for a folder without shards. */
static ls_status no_samples(const tokens *t)
{
    const ls__window_file *largest = ls__windows_largest(&t->windows);
    return ls__fail(LS_ERR_INVALID,
                    "tokens: every shard is shorter than a window: the longest, \"%s\", has %lld "
                    "tokens, a window of context %lld needs %lld; give more tokens or a smaller "
                    "context",
                    largest->path, (long long)largest->count, (long long)t->windows.context,
                    (long long)t->windows.context + 1);
}

/* A vocabulary of 0 means unknown: then any token that fits int32 is accepted. */
static ls_status check_options(const char *path, const ls_tokens_options *options,
                               ls__windows *windows)
{
    if (path == NULL || !*path) {
        return ls__fail(LS_ERR_INVALID,
                        "tokens: no path given; name a shard or a folder of shards");
    }
    LS_TRY(ls__windows_init(windows, "tokens", options->context, options->stride));
    if (options->vocab < 0 || options->vocab > (int64_t)INT32_MAX + 1) {
        return ls__fail(LS_ERR_INVALID,
                        "tokens: a vocabulary of %lld tokens given; give 1…2147483648, or 0",
                        (long long)options->vocab);
    }
    return LS_OK;
}

/* A single file is taken whatever its name is. */
static const ls__windows_kind tokens_kind = {.what = "tokens", .choose = choose, .open = open_file};

/* A limit of 2^31 keeps every accepted token inside int32. */
static ls_status load(tokens *t, const char *path, const ls_tokens_options *options)
{
    LS_TRY(check_options(path, options, &t->windows));
    t->vocab = options->vocab;
    t->limit = options->vocab ? (uint32_t)options->vocab : (uint32_t)INT32_MAX + 1;
    t->part = options->part;
    LS_TRY(ls__windows_open(&t->windows, &tokens_kind, path));
    t->part = NULL;
    return t->windows.base.count > 0 ? LS_OK : no_samples(t);
}

ls_dataset *ls_tokens_dataset_new(const char *path, const ls_tokens_options *options)
{
    LS__OPTIONS_OR(NULL, ls_tokens_options, given, options);
    tokens *t = ls__dataset_new(__func__, "tokens", sizeof *t, tokens_get, ls__windows_free);
    return t != NULL ? ls__dataset_loaded(&t->windows.base, load(t, path, &given)) : NULL;
}
