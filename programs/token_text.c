/* SPDX-License-Identifier: Apache-2.0 */
/* See token_text.h. */
#include "token_text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common.h"

#define SHARD_OF_16_BITS 20240520 /* magic numbers of llm.c, <lockstep/data.h> */
#define SHARD_OF_32_BITS 20240801
#define LOOKED_AT 512 /* bytes; numbers of 2 bytes have control characters among them */
#define LOOKED_AT_MIN 128

typedef struct text_file {
    int32_t *ids;
    int64_t first; /* number of its first sample */
} text_file;

typedef struct token_text {
    ls_dataset base;
    int64_t context, stride;
    int files;
    text_file file[];
} token_text;

static void token_text_free(ls_dataset *self)
{
    token_text *t = (token_text *)self;
    for (int i = 0; i < t->files; i++) {
        ls_bytes_free(t->file[i].ids);
    }
    free(t);
}

/* The last file whose first sample is not after `index`. */
static const text_file *file_of(const token_text *t, int64_t index)
{
    int low = 0, high = t->files - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        low = t->file[middle].first <= index ? middle : low;
        high = t->file[middle].first <= index ? high : middle - 1;
    }
    return &t->file[low];
}

static ls_status token_text_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const token_text *t = (const token_text *)self;
    const text_file *f = file_of(t, index);
    const int32_t *window = f->ids + (index - f->first) * t->stride;
    memcpy(x, window, (size_t)t->context * sizeof *window);
    memcpy(y, window + 1, (size_t)t->context * sizeof *window);
    return LS_OK;
}

static ls_status encode(token_text *t, const ls_dataset *text, const ls_tokenizer *tokenizer)
{
    int64_t longest = 0;
    for (; t->files < ls_text_files(text); t->files++) {
        int64_t bytes, count;
        text_file *f = &t->file[t->files];
        const uint8_t *from = ls_text_file(text, t->files, &bytes);
        f->first = t->base.count;
        LS_TRY(ls_tokenizer_encode(tokenizer, (const char *)from, (size_t)bytes, &f->ids, &count));
        t->base.count += count > t->context ? (count - t->context - 1) / t->stride + 1 : 0;
        longest = count > longest ? count : longest;
    }
    return t->base.count > 0
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "text: every file is shorter than a window: the longest has "
                         "%lld tokens, a window of context %lld needs %lld; give "
                         "more text or a smaller context",
                         (long long)longest, (long long)t->context, (long long)t->context + 1);
}

ls_status token_text_new(const ls_dataset *text, const ls_tokenizer *tokenizer, int64_t context,
                         int64_t stride, ls_dataset **out)
{
    const size_t files = (size_t)ls_text_files(text);
    token_text *t = calloc(1, sizeof *t + files * sizeof t->file[0]);
    *out = NULL;
    if (t == NULL) {
        return ls_fail(LS_ERR_MEMORY, "no memory");
    }
    t->context = context;
    t->stride = stride;
    t->base = (ls_dataset){.size = sizeof(ls_dataset),
                           .x_shape = LS_SHAPE(context),
                           .y_shape = LS_SHAPE(context),
                           .x_dtype = LS_INT32,
                           .y_dtype = LS_INT32,
                           .get = token_text_get,
                           .free = token_text_free};
    ls_status status = encode(t, text, tokenizer);
    if (status < 0) {
        token_text_free(&t->base);
        return status;
    }
    *out = &t->base;
    return LS_OK;
}

/* ---- files of another kind ------------------------------------------------------------------- */

/* 0: it is none. */
static int64_t magic_of_shard(const uint8_t *file, int64_t bytes)
{
    uint32_t magic = 0;
    for (int i = 3; bytes >= 4 && i >= 0; i--) {
        magic = magic << 8 | file[i];
    }
    return magic == SHARD_OF_16_BITS || magic == SHARD_OF_32_BITS ? magic : 0;
}

static bool is_page(const uint8_t *file, int64_t bytes)
{
    static const char first[] = "<!doctype html", other[] = "<html";
    while (bytes > 0 && memchr(" \t\r\n", *file, 4) != NULL) {
        file++, bytes--;
    }
    return (bytes >= (int64_t)strlen(first) &&
            strncasecmp((const char *)file, first, strlen(first)) == 0) ||
           (bytes >= (int64_t)strlen(other) &&
            strncasecmp((const char *)file, other, strlen(other)) == 0);
}

/* A text may be a page, or hold one, so that is only said. */
static ls_status check_texts(const char *path, const ls_dataset *text)
{
    int pages = 0;
    for (int i = 0; i < ls_text_files(text); i++) {
        int64_t bytes;
        const uint8_t *file = ls_text_file(text, i, &bytes);
        const int64_t magic = magic_of_shard(file, bytes);
        if (magic != 0) {
            return ls_fail(
                LS_ERR_FORMAT,
                "text: file %d of \"%s\" begins with %lld, the magic number of a shard of "
                "tokens, which is no text; give --format tokens",
                i + 1, path, (long long)magic);
        }
        pages += is_page(file, bytes);
    }
    if (pages > 0 && ls_rank() == 0) {
        (void)fprintf(
            stderr,
            "%s: %d of %d files begin as a page of HTML, whose tags are learned, too; look "
            "whether a server sent it in place of the text\n",
            path, pages, ls_text_files(text));
    }
    return LS_OK;
}

void must_be_tokens(const char *path)
{
    uint8_t head[LOOKED_AT];
    FILE *file = cli_open(path, "r");
    const size_t bytes = file != NULL ? fread(head, 1, sizeof head, file) : 0;
    bool text = bytes >= LOOKED_AT_MIN;
    for (size_t i = 0; i < bytes && text; i++) {
        const uint8_t byte = head[i]; /* of UTF-8, which has none from F5 on */
        text = (byte >= ' ' && byte != 0x7f && byte < 0xF5) || (byte >= '\t' && byte <= '\r');
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    if (text) {
        give_up(
            EXIT_USAGE,
            "--format tokens: \"%s\" begins as a text, of which two characters would be a token; "
            "leave --format out, or make shards of it by lockstep data tokens",
            path);
    }
}

/* ---- windows --------------------------------------------------------------------------------- */

ls_status text_windows_new(const char *path, const ls_tokenizer *tokenizer, int64_t context,
                           ls_text_part part, ls_dataset **out)
{
    ls_text_options o = *LS_OPTIONS(ls_text_options, .context = context, .part = part);
    o.stride = part == LS_TEXT_HELD_OUT ? context : 1;
    if (tokenizer == NULL) {
        LS_TRY(LS_STATUS_OF(*out = ls_text_dataset_new(path, &o)));
        ls_status status = part == LS_TEXT_TRAIN ? check_texts(path, *out) : LS_OK;
        if (status < 0) {
            ls_dataset_free(*out);
            *out = NULL;
        }
        return status;
    }
    ls_dataset *text = NULL;
    const int64_t stride = o.stride;
    o.context = o.stride = 1; /* only the files are used, so even short ones must be accepted */
    *out = NULL;
    ls_status status = LS_STATUS_OF(text = ls_text_dataset_new(path, &o));
    if (status >= 0 && part == LS_TEXT_TRAIN) {
        status = check_texts(path, text);
    }
    if (status >= 0) {
        status = token_text_new(text, tokenizer, context, stride, out);
        ls_dataset_free(text);
    }
    return status;
}
