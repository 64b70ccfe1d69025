/* Reading the files of a vocabulary. */
#include "tokenizer/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

/* The largest tokenizer.json in use has about 35 MB, 262,144 tokens and 514,906 merges, each an array
 * of two texts. */
#define FILE_BYTES_MAX ((size_t)1 << 27)
static const ls__json_limit limit = {FILE_BYTES_MAX, LS__JSON_VALUES_MAX, LS__JSON_CONTAINERS_MAX,
                                     16};

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
