/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: a path is a file, an index of files, or a folder with one of the two under the name that
 * Hugging Face's libraries give it. An index is
 *     {"metadata": {..}, "weight_map": {"h.0.attn.weight": "model-00001-of-00002.safetensors", ..}}
 * and is trusted as little as the files: it may name only files of its own folder, and each must
 * hold the tensors that the index lists for it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights.h"

/* A name for each tensor, and a few facts in "metadata". Models of 10^12 parameters have about
 * 140,000 tensors. */
static const ls__json_limit index_limit = {(size_t)64 << 20, (size_t)1 << 20, 1024, 8};

static ls_status no_memory(const char *path)
{
    return ls__fail(LS_ERR_MEMORY, "safetensors: no memory to open \"%s\"", path);
}

/* `name` must live in the arena or be static. Once the file is counted, ls__weights_close unmaps
 * it, also if its header turns out to be malformed. */
static ls_status open_file(ls__weights *w, const char *name, const char *path)
{
    ls__weights_file *file = &w->files[w->count];
    const ls__env *env = w->arena.env;
    *file = (ls__weights_file){.name = name};
    int error = env->map_file(env, path, &file->mapped, &file->bytes);
    if (error < 0) {
        return ls__file_fail(error, "checkpoint", "cannot read", path);
    }
    w->count++;
    const size_t header = ls__safetensors_header_bytes(file->mapped, file->bytes);
    if (header <= LS__SAFETENSORS_HEADER_MAX) { /* a larger one is refused by the parser */
        w->header_bytes += header;
    }
    if (w->header_bytes > LS__WEIGHTS_HEADERS_MAX) {
        return ls__fail(
            LS_ERR_LIMIT,
            "\"%s\": the headers of the index's files up to this one have %zu bytes; at most "
            "%zu are read",
            path, w->header_bytes, LS__WEIGHTS_HEADERS_MAX);
    }
    LS_TRY(ls__safetensors_parse(file->mapped ? file->mapped : "", file->bytes, path, &w->arena,
                                 &file->header));
    file->used = ls__arena_alloc(&w->arena, (size_t)file->header.count + 1);
    return file->used ? LS_OK : no_memory(path);
}

/* One file without an index; it has no name of its own in messages about lists. */
static ls_status open_single(ls__weights *w, const char *path)
{
    w->files = ls__arena_alloc(&w->arena, sizeof *w->files);
    return w->files ? open_file(w, "", path) : no_memory(path);
}

/* ---- an index ----------------------------------------------------------------------------- */

/* The index is hostile input: a name with a slash or a leading dot could lead out of its folder. */
static bool is_plain_name(const char *name)
{
    return name != NULL && name[0] != '\0' && name[0] != '.' && !strchr(name, '/') &&
           strlen(name) < LS__CHECKPOINT_PATH_MAX - LS__CHECKPOINT_FOLDER_MAX;
}

/* A pair of names; both live in the JSON or in the arena. */
typedef struct pair {
    const char *tensor, *file;
} pair;

static int by_file(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return strcmp(x->file, y->file);
}

static int by_tensor(const void *a, const void *b)
{
    const pair *x = a, *y = b;
    return strcmp(x->tensor, y->tensor);
}

/* The file lies beside the index, whatever the working folder is. `name` is borrowed from the
 * JSON and copied. */
static ls_status open_listed(ls__weights *w, const char *index, const char *name)
{
    char path[LS__CHECKPOINT_PATH_MAX];
    const char *slash = strrchr(index, '/');
    if (w->count == LS__WEIGHTS_FILES_MAX) {
        return ls__fail(LS_ERR_LIMIT, "\"%s\": its weight_map names more than %d files", index,
                        LS__WEIGHTS_FILES_MAX);
    }
    size_t bytes = strlen(name) + 1;
    char *kept = ls__arena_alloc(&w->arena, bytes);
    if (kept == NULL) {
        return no_memory(index);
    }
    (void)snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - index) + 1 : 0, index, name);
    return open_file(w, memcpy(kept, name, bytes), path);
}

/* The index's entries, sorted by file. */
static ls_status read_map(const char *index, json_t *map, pair *pairs)
{
    const char *tensor;
    json_t *value;
    size_t count = 0;
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!is_plain_name(name)) {
            return ls__fail(LS_ERR_FORMAT,
                            "\"%s\": the weight_map of \"%.80s\" must be the name of a file in the "
                            "same folder",
                            index, tensor);
        }
        pairs[count++] = (pair){tensor, name};
    }
    qsort(pairs, count, sizeof *pairs, by_file);
    return LS_OK;
}

/* Opens every file once and requires each tensor to be in the file that the index names. */
static ls_status open_pairs(ls__weights *w, const char *index, const pair *pairs, size_t count)
{
    size_t tensors = 0;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || strcmp(pairs[i].file, pairs[i - 1].file) != 0) {
            LS_TRY(open_listed(w, index, pairs[i].file));
            tensors += (size_t)w->files[w->count - 1].header.count;
        }
        if (tensors > index_limit.values) { /* files may be links to one file */
            return ls__fail(LS_ERR_LIMIT, "\"%s\": its files have more than %zu tensors", index,
                            index_limit.values);
        }
        if (!ls__safetensors_find(&w->files[w->count - 1].header, pairs[i].tensor)) {
            return ls__fail(LS_ERR_FORMAT,
                            "\"%s\": it lists \"%.80s\" in \"%s\", which has no such tensor", index,
                            pairs[i].tensor, pairs[i].file);
        }
    }
    return LS_OK;
}

static ls_status open_all(ls__weights *w, const char *index, json_t *map)
{
    const size_t count = json_object_size(map);
    pair *pairs = malloc((count + 1) * sizeof *pairs);
    if (pairs == NULL) {
        return no_memory(index);
    }
    ls_status status = read_map(index, map, pairs);
    if (status == LS_OK) {
        status = open_pairs(w, index, pairs, count);
    }
    free(pairs);
    return status;
}

/* All tensors of all files, each with its file. NULL without memory; free(). */
static pair *list_tensors(const ls__weights *w, size_t *count)
{
    size_t all = 0;
    for (int i = 0; i < w->count; i++) {
        all += (size_t)w->files[i].header.count;
    }
    pair *pairs = malloc((all + 1) * sizeof *pairs);
    *count = 0;
    for (int i = 0; pairs != NULL && i < w->count; i++) {
        for (int k = 0; k < w->files[i].header.count; k++) {
            pairs[(*count)++] = (pair){w->files[i].header.list[k].name, w->files[i].name};
        }
    }
    return pairs;
}

/* A tensor that two files hold is ambiguous, so the index is rejected. */
static ls_status check_once(const ls__weights *w, const char *index)
{
    size_t count;
    ls_status status = LS_OK;
    pair *pairs = list_tensors(w, &count);
    if (pairs == NULL) {
        return no_memory(index);
    }
    qsort(pairs, count, sizeof *pairs, by_tensor);
    for (size_t i = 1; status == LS_OK && i < count; i++) {
        if (by_tensor(&pairs[i - 1], &pairs[i]) == 0) {
            status = ls__fail(LS_ERR_FORMAT, "\"%s\": \"%.80s\" is in \"%s\" and in \"%s\"", index,
                              pairs[i].tensor, pairs[i - 1].file, pairs[i].file);
        }
    }
    free(pairs);
    return status;
}

/* The JSON text is unmapped as soon as it is parsed. */
static ls_status read_index(const ls__env *env, const char *path, json_t **root)
{
    void *text = NULL;
    size_t bytes = 0;
    const int failed = env->map_file(env, path, &text, &bytes);
    if (failed < 0) {
        return ls__file_fail(failed, "checkpoint", "cannot read", path);
    }
    const char *kind = ls__safetensors_other_kind(text != NULL ? text : "", bytes);
    const ls_status status = kind == NULL
                                 ? ls__json_read(path, text, bytes, 0, &index_limit, root)
                                 : ls__fail(LS_ERR_FORMAT, "\"%s\": not an index: %s", path, kind);
    env->unmap_file(env, text, bytes);
    return status;
}

/* All file records are allocated at once, because pointers to them are kept while more files
 * open. */
static ls_status open_index(ls__weights *w, const char *path)
{
    json_t *root = NULL;
    w->files = ls__arena_alloc(&w->arena, LS__WEIGHTS_FILES_MAX * sizeof *w->files);
    if (!w->files) {
        return no_memory(path);
    }
    LS_TRY(read_index(w->arena.env, path, &root));
    json_t *map = json_object_get(root, "weight_map");
    const ls_status status =
        json_is_object(map)
            ? open_all(w, path, map)
            : ls__fail(LS_ERR_FORMAT, "\"%s\" is not an index: it has no object \"weight_map\"",
                       path);
    json_decref(root);
    LS_TRY(status);
    return check_once(w, path);
}

/* ---- what a path is ----------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* A single file wins over an index, as in Hugging Face's loaders. */
static ls_status open_folder(ls__weights *w, const char *folder)
{
    const ls__env *env = w->arena.env;
    ls__env_stat found;
    char path[LS__CHECKPOINT_PATH_MAX];
    ls__path_join(path, folder, LS__WEIGHTS_NAME);
    if (env->stat(env, path, true, &found) == 0) {
        return open_single(w, path);
    }
    ls__path_join(path, folder, LS__WEIGHTS_INDEX_NAME);
    if (env->stat(env, path, true, &found) == 0) {
        return open_index(w, path);
    }
    ls__path_join(path, folder, "pytorch_model.bin");
    if (env->stat(env, path, true, &found) == 0) {
        return ls__fail(
            LS_ERR_NOT_FOUND,
            "\"%s\" has pytorch_model.bin, a pickle, and no safetensors; convert it once, "
            "in this folder: " LS__SAFETENSORS_CONVERT,
            folder);
    }
    return ls__fail(LS_ERR_NOT_FOUND,
                    "\"%s\" is a folder with neither model.safetensors nor "
                    "model.safetensors.index.json; give the file",
                    folder);
}

/* The caller closes `out` in every case. The path's limit leaves room for the names appended to
 * it. */
ls_status ls__weights_open(const ls__env *env, const char *path, ls__weights *out)
{
    ls__env_stat found;
    *out = (ls__weights){0};
    ls__arena_init(&out->arena, env, LS__CHECKPOINT_ARENA_CHUNK);
    if (path == NULL || path[0] == '\0' || strlen(path) >= LS__CHECKPOINT_FOLDER_MAX) {
        return ls__fail(LS_ERR_INVALID, "safetensors: give a path of 1 to %d bytes",
                        LS__CHECKPOINT_FOLDER_MAX - 1);
    }
    int error = env->stat(env, path, true, &found);
    if (error < 0) {
        return ls__file_fail(error, "checkpoint", "cannot read", path);
    }
    if (found.kind == LS__ENV_FOLDER) {
        return open_folder(out, path);
    }
    return ends_with(path, ".json") ? open_index(out, path) : open_single(out, path);
}

/* Also correct after a failed open. */
void ls__weights_close(ls__weights *w)
{
    const ls__env *env = w->arena.env;
    for (int i = 0; i < w->count; i++) {
        env->unmap_file(env, w->files[i].mapped, w->files[i].bytes);
    }
    ls__arena_fini(&w->arena);
    *w = (ls__weights){0};
}

/* With an index, no name is in two files, so the first match is the only one. `*used` points
 * into the file's marks; setting it keeps the tensor from being reported as unexpected. */
const ls__safetensor *ls__weights_find(const ls__weights *w, const char *name,
                                       const uint8_t **bytes, bool **used)
{
    for (int i = 0; i < w->count; i++) {
        const ls__weights_file *file = &w->files[i];
        const ls__safetensor *found = ls__safetensors_find(&file->header, name);
        if (found != NULL) {
            *bytes = (const uint8_t *)file->mapped + found->begin;
            *used = &file->used[found - file->header.list];
            return found;
        }
    }
    return NULL;
}
