/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a tokenizer: finds the files to which a path leads, reads them, and builds the tables
 * that encoding needs beyond theirs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/runtime.h"
#include "tokenizer/tokenizer.h"

#define PATH_BYTES 4096

/* ---- the object --------------------------------------------------------------------------- */

/* All tables are empty; ls_tokenizer_free accepts the object from here on. */
static ls_tokenizer *tokenizer_new(const ls__env *env)
{
    ls_tokenizer *t = calloc(1, sizeof *t);
    if (t != NULL) {
        t->env = env;
        t->unknown_id = -1;
        t->start_id = -1;
        memset(t->byte_id, 0xff, sizeof t->byte_id); /* -1 each */
        ls__vocab_init(&t->vocab, env);
        ls__merges_init(&t->merges, env);
    }
    return t;
}

/* The caller makes sure that no thread encodes with it any more. */
void ls_tokenizer_free(ls_tokenizer *t)
{
    if (t != NULL) {
        for (int i = 0; i < t->split_count; i++) {
            ls__split_free(t->splits[i]);
        }
        ls__vocab_fini(&t->vocab);
        ls__merges_fini(&t->merges);
        free(t->added);
        free(t);
    }
}

/* The largest id plus 1: ids that no token has are counted. */
int64_t ls_tokenizer_count(const ls_tokenizer *t)
{
    return t != NULL ? t->vocab.count : 0;
}

/* Added tokens are tried by their literal text first; other tokens by their bytes, not in the
 * alphabet of the file. */
int32_t ls_tokenizer_id(const ls_tokenizer *t, const char *token)
{
    size_t bytes = token != NULL ? strlen(token) : 0;
    for (int i = 0; t != NULL && token != NULL && i < t->added_count; i++) {
        const ls__added *a = &t->added[i];
        if (a->bytes - a->prefix == bytes && memcmp(a->text + a->prefix, token, bytes) == 0) {
            return a->id;
        }
    }
    return t != NULL && token != NULL ? ls__vocab_find(&t->vocab, token, bytes) : -1;
}

int32_t ls_tokenizer_start(const ls_tokenizer *t)
{
    return t != NULL ? t->start_id : -1;
}

/* ---- tables for encoding ------------------------------------------------------------------ */

/* Sorts by first byte, and among equal first bytes the longest first: the order that added_at
 * relies on. */
static int by_start(const void *a, const void *b)
{
    const ls__added *x = a, *y = b;
    int first = (unsigned char)x->text[0] - (unsigned char)y->text[0];
    return first != 0 ? first : (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

/* Builds the tables that encoding needs after all rows are read. `added` is sorted first, since
 * added_from and the tokens' back references are places in it. */
static void finish_tables(ls_tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        int32_t id = ls__vocab_find(&t->vocab, &text, 1);
        if (!t->pieces) { /* else the file names them */
            t->byte_id[byte] = id >= 0 ? id : t->unknown_id;
        }
    }
    if (t->added_count > 1) {
        qsort(t->added, (size_t)t->added_count, sizeof *t->added, by_start);
    }
    for (int i = 0; i < t->added_count; i++) {
        t->vocab.tokens[t->added[i].id].added = i + 1;
        t->added_from[(unsigned char)t->added[i].text[0] + 1]++;
    }
    for (int byte = 0; byte < 256; byte++) { /* from counts to places */
        t->added_from[byte + 1] += t->added_from[byte];
    }
}

/* ---- which files -------------------------------------------------------------------------- */

/* The vocabulary serves only decoding; encoding needs no table. */
static ls_status read_bytes(ls_tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        if (!ls__vocab_add(&t->vocab, byte, &text, 1, true)) {
            return ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for 256 tokens");
        }
    }
    t->bytes_only = true;
    return LS_OK;
}

/* Writes FOLDER/name into `path`, of PATH_BYTES, and returns whether it exists. */
static bool find(const ls__env *env, const char *folder, const char *name, char *path)
{
    ls__env_stat stat;
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return env->stat(env, path, true, &stat) == 0;
}

/* tokenizer.json wins over the older pair, because it also names the expression. With the pair,
 * GPT-2's expression is implied. */
static ls_status read_folder(ls_tokenizer *t, const char *folder, ls__expressions *expressions)
{
    char path[PATH_BYTES], merges[PATH_BYTES];
    if (strlen(folder) > PATH_BYTES - 20) {
        return ls__fail(LS_ERR_INVALID,
                        "tokenizer: the path has %zu bytes; at most %d are possible",
                        strlen(folder), PATH_BYTES - 20);
    }
    if (find(t->env, folder, "tokenizer.json", path)) {
        return ls__tokenizer_read_json(t, path, expressions);
    }
    bool vocab = find(t->env, folder, "vocab.json", path) ||
                 find(t->env, folder, "encoder.json", path); /* OpenAI's names */
    if ((!find(t->env, folder, "merges.txt", merges) &&
         !find(t->env, folder, "vocab.bpe", merges)) ||
        !vocab) {
        return ls__fail(LS_ERR_NOT_FOUND,
                        "tokenizer: \"%s\" holds no tokenizer.json, and %s; give a folder with "
                        "tokenizer.json, or with vocab.json and merges.txt",
                        folder, vocab ? "vocab.json without merges.txt" : "no vocab.json");
    }
    LS_TRY(ls__tokenizer_read_pair(t, path, merges));
    return ls__expressions_add(expressions, folder, LS__GPT2_EXPRESSION);
}

ls_status ls__expressions_add(ls__expressions *e, const char *path, const char *expression)
{
    if (e->count == LS__SPLITS_MAX) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "tokenizer: \"%s\": the pre_tokenizer has more than %d steps, which is not "
                        "supported",
                        path, LS__SPLITS_MAX);
    }
    e->text[e->count] = strdup(expression);
    if (e->text[e->count] == NULL) {
        return ls__fail(LS_ERR_MEMORY, "tokenizer: \"%s\": no memory to read it", path);
    }
    e->count++;
    return LS_OK;
}

/* Expressions are compiled last, so a malformed file is reported as such even by a build
 * without PCRE2. */
static ls_status read_and_compile(ls_tokenizer *t, const char *path, bool folder,
                                  ls__expressions *expressions)
{
    LS_TRY(folder ? read_folder(t, path, expressions)
                  : ls__tokenizer_read_json(t, path, expressions));
    for (; t->split_count < expressions->count; t->split_count++) {
        LS_TRY(ls__split_new(expressions->text[t->split_count], path, &t->splits[t->split_count]));
    }
    return LS_OK;
}

static ls_status read_path(ls_tokenizer *t, const char *path)
{
    ls__env_stat stat;
    ls__expressions expressions = {0};
    if (strcmp(path, "bytes") == 0) {
        return read_bytes(t);
    }
    LS_TRY(ls__file_stat(t->env, "tokenizer", path, &stat));
    const ls_status status = read_and_compile(t, path, stat.kind == LS__ENV_FOLDER, &expressions);
    for (int i = 0; i < expressions.count; i++) {
        free(expressions.text[i]);
    }
    return status;
}

/* On failure *out is NULL and everything is freed. The result does not change anymore and may be
 * used by several threads. */
ls_status ls__tokenizer_open(const ls__env *env, const char *path, ls_tokenizer **out)
{
    *out = NULL;
    if (path == NULL || !*path) {
        return ls__fail(LS_ERR_INVALID,
                        "tokenizer: the path is missing; give a tokenizer.json, a folder that "
                        "holds one, or \"bytes\"");
    }
    ls_tokenizer *t = tokenizer_new(env);
    if (t == NULL) {
        return ls__fail(LS_ERR_MEMORY, "tokenizer: no memory for a tokenizer");
    }
    ls_status status = read_path(t, path);
    if (status < 0) {
        ls_tokenizer_free(t);
        return status;
    }
    finish_tables(t);
    *out = t;
    return LS_OK;
}

/* The public form: the runtime's env, and NULL with the error set. */
ls_tokenizer *ls_tokenizer_new(const char *path)
{
    ls_tokenizer *made = NULL;
    const ls_runtime *runtime = ls__runtime_get(__func__);
    const bool opened = runtime != NULL && ls__tokenizer_open(runtime->env, path, &made) == LS_OK;
    return opened ? made : NULL;
}
