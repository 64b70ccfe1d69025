/* Opening: a path is a file, an index of files, or a folder with one of the two under the name that
 * Hugging Face's libraries give it. An index is
 *     {"metadata": {..}, "weight_map": {"h.0.attn.weight": "model-00001-of-00002.safetensors", ..}}
 * and is trusted as little as the files: it may name only files of its own folder, and each must
 * hold the tensors that the index lists for it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/weights.h"

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
        return ls__file_failed("cannot read", path, error);
    }
    w->count++;
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

/* Linear: indexes list tens of files, and LS__WEIGHTS_FILES_MAX bounds the worst case. */
static ls__weights_file *file_named(const ls__weights *w, const char *name)
{
    for (int i = 0; i < w->count; i++) {
        if (strcmp(w->files[i].name, name) == 0) {
            return &w->files[i];
        }
    }
    return NULL;
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

/* Opens every file once and requires each tensor to be in the file that the index names. Two
 * passes, since a later entry may open the file that an earlier check would miss. */
static ls_status open_all(ls__weights *w, const char *index, json_t *map)
{
    const char *tensor;
    json_t *value;
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!is_plain_name(name)) {
            return ls__fail(LS_ERR_FORMAT,
                            "\"%s\": the weight_map of \"%.80s\" must be the name of a file in the "
                            "same folder",
                            index, tensor);
        }
        if (!file_named(w, name)) {
            LS_TRY(open_listed(w, index, name));
        }
    }
    json_object_foreach(map, tensor, value)
    {
        const ls__weights_file *file = file_named(w, json_string_value(value));
        if (!ls__safetensors_find(&file->header, tensor)) {
            return ls__fail(LS_ERR_FORMAT,
                            "\"%s\": it lists \"%.80s\" in \"%s\", which has no such tensor", index,
                            tensor, file->name);
        }
    }
    return LS_OK;
}

/* A tensor that two files hold is ambiguous, so the index is rejected. */
static ls_status check_once(const ls__weights *w, const char *index)
{
    for (int i = 0; i < w->count; i++) {
        for (int k = 0; k < w->files[i].header.count; k++) {
            const char *name = w->files[i].header.list[k].name;
            for (int other = 0; other < i; other++) {
                if (ls__safetensors_find(&w->files[other].header, name)) {
                    return ls__fail(LS_ERR_FORMAT, "\"%s\": \"%.80s\" is in \"%s\" and in \"%s\"",
                                    index, name, w->files[other].name, w->files[i].name);
                }
            }
        }
    }
    return LS_OK;
}

/* The JSON text is unmapped as soon as it is parsed. All file records are allocated at once,
 * because pointers to them are kept while more files open. */
static ls_status open_index(ls__weights *w, const char *path)
{
    const ls__env *env = w->arena.env;
    void *text = NULL;
    size_t bytes = 0;
    json_error_t error = {.text = "it is empty"};
    w->files = ls__arena_alloc(&w->arena, LS__WEIGHTS_FILES_MAX * sizeof *w->files);
    if (!w->files) {
        return no_memory(path);
    }
    int failed = env->map_file(env, path, &text, &bytes);
    if (failed < 0) {
        return ls__file_failed("cannot read", path, failed);
    }
    json_t *root = text != NULL ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    json_t *map = json_object_get(root, "weight_map");
    ls_status status = LS_OK;
    if (root == NULL) {
        status = ls__fail(LS_ERR_FORMAT, "\"%s\" is not JSON: %s", path, error.text);
    } else if (!json_is_object(map)) {
        status = ls__fail(LS_ERR_FORMAT, "\"%s\" is not an index: it has no object \"weight_map\"",
                          path);
    }
    env->unmap_file(env, text, bytes);
    if (status == LS_OK) {
        status = open_all(w, path, map);
    }
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
        return ls__file_failed("cannot read", path, error);
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
