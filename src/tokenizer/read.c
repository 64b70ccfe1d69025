/* Reading the files of a vocabulary. */
#include "tokenizer/read.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

#define FILE_BYTES_MAX ((size_t)1 << 28) /* the largest tokenizer.json in use has some 30 MB */

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
    json_error_t error;
    LS_TRY(read_file(env, path, &file));
    *root = json_loadb((const char *)file.data, file.bytes, JSON_REJECT_DUPLICATES, &error);
    ls__file_release(env, &file);
    if (*root == NULL) {
        return ls__fail(LS_ERR_FORMAT, "tokenizer: \"%s\" is not JSON: line %d (byte %d): %s", path,
                        error.line, error.position, error.text);
    }
    return LS_OK;
}
