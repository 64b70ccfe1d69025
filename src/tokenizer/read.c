/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the files of a vocabulary. */
#include "tokenizer/read.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/foreign.h"
#include "base/json.h"

/* The largest tokenizer.json in use has about 35 MB, 262,144 tokens and 514,906 merges, each an
 * array of two texts. */
#define FILE_BYTES_MAX ((size_t)1 << 27)
static const ls__json_limit limit = {FILE_BYTES_MAX, LS__JSON_VALUES_MAX, LS__JSON_CONTAINERS_MAX,
                                     16};

/* A line of base64, a space and a number: the first of a .tiktoken file. */
static bool is_tiktoken(const char *text, size_t bytes)
{
    size_t at = 0, digits = 0;
    while (at < bytes && (isalnum((unsigned char)text[at]) || strchr("+/=", text[at]) != NULL) &&
           text[at] != '\0') {
        at++;
    }
    const bool spaced = at >= 4 && at % 4 == 0 && at < bytes && text[at] == ' ';
    for (at++; spaced && at < bytes && text[at] >= '0' && text[at] <= '9'; at++) {
        digits++;
    }
    return digits > 0 && at < bytes && (text[at] == '\n' || text[at] == '\r');
}

/* What the file is that is no file of a vocabulary here; NULL: it may be one. */
static const char *other_format(const uint8_t *data, size_t bytes)
{
    if (is_tiktoken((const char *)data, bytes)) {
        return "it is a .tiktoken file: give the tokenizer.json of the same model";
    }
    if (bytes > 16 && data[0] == '\n' && memmem(data, 16, "<unk>", 5) != NULL) {
        return "it is a model of SentencePiece, which is not read: give the tokenizer.json of the "
               "same model";
    }
    return ls__foreign_words(ls__foreign_kind_of(data, bytes), NULL);
}

/* Asks for one byte more than allowed, which tells a file of exactly the maximum from a longer one.
 * The caller releases the file on success. */
static ls_status read_file(const ls__env *env, const char *path, ls__file *file)
{
    LS_TRY(ls__file_read(env, "tokenizer", path, FILE_BYTES_MAX + 1, file));
    if (file->bytes > FILE_BYTES_MAX) {
        ls__file_release(env, file);
        return ls__fail(LS_ERR_LIMIT,
                        "tokenizer: \"%s\" has more than %zu bytes; is it a vocabulary?", path,
                        FILE_BYTES_MAX);
    }
    const char *other = other_format(file->data, file->bytes);
    if (other != NULL) {
        ls__file_release(env, file);
        return ls__fail(LS_ERR_FORMAT, "tokenizer: \"%s\": %s", path, other);
    }
    if (file->bytes == 0) {
        ls__file_release(env, file);
        return ls__fail(LS_ERR_FORMAT, "tokenizer: \"%s\" is empty", path);
    }
    return LS_OK;
}

ls_status ls__read_text(const ls__env *env, const char *path, char **text, size_t *bytes)
{
    ls__file file;
    LS_TRY(read_file(env, path, &file));
    *bytes = file.bytes;
    *text = malloc(file.bytes + 1);
    if (*text != NULL) {
        memcpy(*text, file.data, file.bytes);
        (*text)[file.bytes] = '\0';
    }
    ls__file_release(env, &file);
    return *text != NULL ? LS_OK
                         : ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", path);
}

/* Duplicate keys are refused: a token with two ids would silently get the last one. */
ls_status ls__read_json(const ls__env *env, const char *path, json_t **root)
{
    ls__file file;
    char what[LS__WHERE_MAX];
    LS_TRY(read_file(env, path, &file));
    (void)snprintf(what, sizeof what, "tokenizer: \"%.*s\"", LS__PATH_QUOTED, path);
    const ls_status status =
        ls__json_read(what, (const char *)file.data, file.bytes, 0, &limit, root);
    ls__file_release(env, &file);
    return status;
}
