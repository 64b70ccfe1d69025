/* Files of tokens as a data set: windows of context + 1 tokens, in one shard or many.
 *
 *     shard    [header] t0 t1 t2 …
 *     sample   [x0 x1 … x(T-1)] xT        x = window[0…T), y = window[1…T]
 *
 * Shards are mapped: they may be larger than memory, and the ranks of a host share their pages.
 * Tokens are compared with the vocabulary when their sample is read, not before.
 */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/options.h"
#include "base/runtime.h"
#include "data/bytes.h"
#include "data/dataset.h"
#include "data/paths.h"
#include "data/shard.h"
#include "data/windows.h"

/* The path is kept for messages: a token out of range is found only when its sample is read. */
typedef struct token_file {
    char *path;
    ls__file file;
    ls__shard shard;
} token_file;

/* The data set; `count` shards are open. */
typedef struct tokens {
    ls_dataset base;
    const ls__env *env;
    token_file *files;
    ls__windows windows;
    int count;
    int64_t vocab;  /* 0: unknown */
    uint32_t limit; /* tokens are below it */
} tokens;

/* Counted files are released whatever state they are in. */
static void tokens_free(ls_dataset *self)
{
    tokens *t = (tokens *)self;
    for (int i = 0; i < t->count; i++) {
        ls__file_release(t->env, &t->files[i].file);
        free(t->files[i].path);
    }
    free(t->files);
    ls__windows_fini(&t->windows);
    free(t);
}

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
static ls_status fail_token(const tokens *t, const token_file *file, const uint8_t *window)
{
    int64_t i = 0;
    while (i < t->windows.context && token_at(window, file->shard.token_bytes, i) < t->limit) {
        i++;
    }
    const uint8_t *at = window + i * file->shard.token_bytes;
    if (file->shard.begin == 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "tokens: \"%s\" has token %u at offset %lld, but tokens must be below %u; "
                        "it begins with %s, which is not a magic number of llm.c, so it was read "
                        "as tokens of 2 bytes: is it such a file, and of this vocabulary?",
                        file->path, token_at(at, file->shard.token_bytes, 0),
                        (long long)(at - file->file.data), t->limit,
                        ls__shard_begins(file->file.data, file->file.bytes).text);
    }
    return ls__fail(LS_ERR_FORMAT,
                    "tokens: \"%s\" has token %u at offset %lld, but tokens must be below %u; was "
                    "the file written with another vocabulary?",
                    file->path, token_at(at, file->shard.token_bytes, 0),
                    (long long)(at - file->file.data), t->limit);
}

/* Runs on the loader's thread; reads mapped pages, which may wait for the disk. */
static ls_status tokens_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const tokens *t = (const tokens *)self;
    LS_TRY(ls__dataset_check(self, "tokens", index));
    int number = 0;
    const int64_t start = ls__windows_find(&t->windows, index, &number);
    const token_file *file = &t->files[number];
    const uint8_t *window = file->file.data + file->shard.begin + start * file->shard.token_bytes;
    const uint32_t largest = read_window(window, file->shard.token_bytes, t->windows.context, x, y);
    return largest < t->limit ? LS_OK : fail_token(t, file, window);
}

/* ---- opening ------------------------------------------------------------------------------ */

/* Takes *path. The file is counted as soon as it is mapped, so that tokens_free unmaps it if its
 * header is malformed. */
static ls_status add_file(tokens *t, char **path)
{
    token_file *file = &t->files[t->count];
    LS_TRY(ls__file_map(t->env, "tokens", *path, &file->file));
    file->path = *path;
    *path = NULL;
    t->count++;
    LS_TRY(ls__shard_parse(file->file.data, file->file.bytes, file->path, &file->shard));
    if (file->shard.begin == 0) {
        LS_TRY(ls__shard_check_raw(t->env, &file->file, file->path, t->vocab));
    }
    ls__windows_add(&t->windows, file->shard.count);
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
static ls_status choose(const char *folder, const char *part, ls__paths *files)
{
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

/* A single file is taken whatever its name is; `part` selects only within a folder. */
static ls_status find_shards(const tokens *t, const char *path, const char *part, ls__paths *files)
{
    ls__env_stat stat;
    LS_TRY(ls__file_stat(t->env, "tokens", path, &stat));
    if (stat.kind != LS__ENV_FOLDER) {
        return ls__paths_add(files, "tokens", strdup(path));
    }
    LS_TRY(ls__paths_find(t->env, "tokens", path, files));
    return choose(path, part, files);
}

/* Called with at least one file: find_shards fails for a folder without shards. */
static ls_status no_samples(const tokens *t)
{
    const token_file *longest = &t->files[0];
    for (int i = 1; i < t->count; i++) {
        longest = t->files[i].shard.count > longest->shard.count ? &t->files[i] : longest;
    }
    return ls__fail(LS_ERR_INVALID,
                    "tokens: every shard is shorter than a window: the longest, \"%s\", has %lld "
                    "tokens, a window of context %lld needs %lld; give more tokens or a smaller "
                    "context",
                    longest->path, (long long)longest->shard.count, (long long)t->windows.context,
                    (long long)t->windows.context + 1);
}

/* On failure, the files opened so far stay in `t` and are released by tokens_free. */
static ls_status load_files(tokens *t, const char *path, const char *part)
{
    ls__paths files = {0};
    ls_status status = find_shards(t, path, part, &files);
    if (status == LS_OK) {
        t->files = calloc((size_t)files.count, sizeof *t->files);
        status = t->files && ls__windows_reserve(&t->windows, files.count)
                     ? LS_OK
                     : ls__fail(LS_ERR_MEMORY, "tokens: no memory for a table of %d shards",
                                files.count);
    }
    for (int i = 0; status == LS_OK && i < files.count; i++) {
        status = add_file(t, &files.path[i]);
    }
    ls__paths_free(&files);
    ls__windows_describe(&t->windows, &t->base);
    return status == LS_OK && t->base.count == 0 ? no_samples(t) : status;
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

/* A limit of 2^31 keeps every accepted token inside int32. */
static ls_status load(tokens *t, const char *path, const ls_tokens_options *options)
{
    t->env = ls__self.runtime->env;
    LS_TRY(check_options(path, options, &t->windows));
    t->vocab = options->vocab;
    t->limit = options->vocab ? (uint32_t)options->vocab : (uint32_t)INT32_MAX + 1;
    return load_files(t, path, options->part);
}

ls_dataset *ls_tokens_dataset_new(const char *path, const ls_tokens_options *options)
{
    LS__OPTIONS_OR(NULL, ls_tokens_options, given, options);
    tokens *t = ls__dataset_new(__func__, "tokens", sizeof *t, tokens_get, tokens_free);
    return t != NULL ? ls__dataset_loaded(&t->base, load(t, path, &given)) : NULL;
}
