/* Text files as byte tokens.
 *
 *     file   |------------- training part -------------|- held out -|
 *     sample   [x0 x1 … x(T-1)] xT        x = window[0…T), y = window[1…T]
 *                    [x0 x1 … x(T-1)] xT      starts are `stride` apart
 *
 * A window never crosses a file, so no sample joins two unrelated texts. Only the asked part of
 * each file is kept in memory. A sample's number is found by bisection over the files' first
 * samples.
 */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/options.h"
#include "base/runtime.h"
#include "base/size.h"
#include "data/file.h"

#define TEXT_FILES_MAX (1 << 20) /* bounds what a mistyped path such as "/" can cost */

typedef struct text_file {
    char *path;
    ls__file file;
    const uint8_t *part; /* within file.data */
    int64_t bytes;       /* of the part */
    int64_t first;       /* number of its first sample */
} text_file;

typedef struct text {
    ls_dataset base;
    const ls__env *env;
    text_file *files;
    int count, capacity;
    int64_t context, stride, bytes;
} text;

/* ---- finding the files -------------------------------------------------------------------- */

typedef struct path_list {
    char **path;
    int count, capacity;
} path_list;

static void paths_free(path_list *list)
{
    for (int i = 0; i < list->count; i++) {
        free(list->path[i]);
    }
    free(list->path);
    *list = (path_list){0};
}

/* Takes `path`. */
static ls_status paths_add(path_list *list, char *path)
{
    if (!path) {
        return ls__fail(LS_ERR_MEMORY, "text: no memory for a path");
    }
    if (list->count == TEXT_FILES_MAX) {
        ls_status status = ls__fail(LS_ERR_LIMIT,
                                    "text: more than %d files or folders at \"%s\"; name a folder "
                                    "that holds only the data",
                                    TEXT_FILES_MAX, path);
        free(path);
        return status;
    }
    if (list->count == list->capacity) {
        int capacity = list->capacity ? 2 * list->capacity : 16;
        char **grown = realloc(list->path, (size_t)capacity * sizeof *grown);
        if (!grown) {
            free(path);
            return ls__fail(LS_ERR_MEMORY, "text: no memory for %d paths", capacity);
        }
        list->path = grown;
        list->capacity = capacity;
    }
    list->path[list->count++] = path;
    return LS_OK;
}

static char *join(const char *folder, const char *name)
{
    size_t folder_length = strlen(folder), name_length = strlen(name);
    while (folder_length > 1 && folder[folder_length - 1] == '/') {
        folder_length--;
    }
    char *path = malloc(folder_length + name_length + 2);
    if (path) {
        memcpy(path, folder, folder_length);
        path[folder_length] = '/';
        memcpy(path + folder_length + 1, name, name_length + 1);
    }
    return path;
}

typedef struct listing {
    const ls__env *env;
    const char *folder;
    path_list *files, *folders;
    ls_status status; /* of the entry that stopped the listing */
} listing;

static int list_entry(void *arg, const char *name)
{
    listing *at = arg;
    char *path = join(at->folder, name);
    ls__env_stat stat;
    int error = path ? at->env->stat(at->env, path, false, &stat) : 0;
    if (error < 0) {
        at->status = ls__file_fail(error, "text", path);
        free(path);
        return 1;
    }
    if (path && stat.kind != LS__ENV_FILE && stat.kind != LS__ENV_FOLDER) {
        free(path); /* links, sockets, devices */
        return 0;
    }
    bool folder = path && stat.kind == LS__ENV_FOLDER;
    at->status = paths_add(folder ? at->folders : at->files, path);
    return at->status < 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All regular files below `root`, sorted. Folders wait in a list: no recursion. */
static ls_status find_files(const ls__env *env, const char *root, path_list *files)
{
    path_list folders = {0};
    ls_status status = paths_add(&folders, strdup(root));
    for (int i = 0; status == LS_OK && i < folders.count; i++) {
        listing at = {env, folders.path[i], files, &folders, LS_OK};
        int error = env->list(env, folders.path[i], list_entry, &at);
        status = error < 0 ? ls__file_fail(error, "text", folders.path[i]) : at.status;
    }
    paths_free(&folders);
    if (status == LS_OK && files->count > 1) {
        qsort(files->path, (size_t)files->count, sizeof *files->path, by_name);
    }
    return status;
}

/* ---- the data set ------------------------------------------------------------------------- */

static void text_free(ls_dataset *self)
{
    text *t = (text *)self;
    for (int i = 0; i < t->count; i++) {
        ls__file_release(t->env, &t->files[i].file);
        free(t->files[i].path);
    }
    free(t->files);
    free(t);
}

static const text_file *file_of_sample(const text *t, int64_t index)
{
    int low = 0, high = t->count - 1; /* the last file whose first sample is <= index */
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (t->files[middle].first <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &t->files[low];
}

static ls_status text_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const text *t = (const text *)self;
    if (index < 0 || index >= t->base.count) {
        return ls__fail(LS_ERR_INVALID, "text: sample %lld asked, there are %lld; count from 0",
                        (long long)index, (long long)t->base.count);
    }
    const text_file *file = file_of_sample(t, index);
    const uint8_t *window = file->part + (index - file->first) * t->stride;
    int32_t *tokens = x, *targets = y;
    for (int64_t i = 0; i < t->context; i++) {
        tokens[i] = window[i];
        targets[i] = window[i + 1];
    }
    return LS_OK;
}

static int64_t samples_in(const text *t, int64_t bytes)
{
    return bytes > t->context ? (bytes - t->context - 1) / t->stride + 1 : 0;
}

/* Reads one file and keeps the asked part of it. Takes *path. */
static ls_status add_file(text *t, char **path, const ls_text_options *options)
{
    text_file *file = &t->files[t->count];
    LS_TRY(ls__file_read(t->env, "text", *path, SIZE_MAX, &file->file));
    int64_t all = (int64_t)file->file.bytes;
    int64_t held_out = (int64_t)((double)all * options->held_out);
    bool training = options->part == LS_TEXT_TRAIN;
    file->part = file->file.data + (training ? 0 : all - held_out);
    file->bytes = training ? all - held_out : held_out;
    file->path = *path;
    *path = NULL;
    file->first = t->base.count;
    t->count++;
    t->bytes += file->bytes;
    t->base.count += samples_in(t, file->bytes);
    return LS_OK;
}

static ls_status no_samples(const text *t, const char *path, const ls_text_options *options)
{
    if (t->count == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "text: \"%s\" holds no regular file; name a file or a "
                        "folder with files in it",
                        path);
    }
    const text_file *longest = &t->files[0];
    for (int i = 1; i < t->count; i++) {
        longest = t->files[i].file.bytes > longest->file.bytes ? &t->files[i] : longest;
    }
    if (longest->file.bytes == 0) {
        return ls__fail(LS_ERR_INVALID, "text: \"%s\" is empty; give text to learn from",
                        longest->path);
    }
    return ls__fail(LS_ERR_INVALID,
                    "text: every file is shorter than a window: the %s part of the longest, "
                    "\"%s\", has %lld bytes, a window of context %lld needs %lld; give more text "
                    "or a smaller context",
                    options->part == LS_TEXT_TRAIN ? "training" : "held-out", longest->path,
                    (long long)longest->bytes, (long long)t->context, (long long)t->context + 1);
}

static ls_status check_options(const char *path, const ls_text_options *options)
{
    if (!path || !*path) {
        return ls__fail(LS_ERR_INVALID, "text: no path given; name a file or a folder");
    }
    if (options->context < 1 || options->context > INT32_MAX || options->stride < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "text: context %lld and stride %lld given; context must be in 1…%d and "
                        "stride at least 0",
                        (long long)options->context, (long long)options->stride, INT32_MAX);
    }
    if (!(options->held_out >= 0.0 && options->held_out <= 1.0)) {
        return ls__fail(LS_ERR_INVALID, "text: held_out is %g; it is a share in 0…1",
                        options->held_out);
    }
    if (options->part != LS_TEXT_TRAIN && options->part != LS_TEXT_HELD_OUT) {
        return ls__fail(LS_ERR_INVALID,
                        "text: part %d is none; give LS_TEXT_TRAIN or LS_TEXT_HELD_OUT",
                        (int)options->part);
    }
    return LS_OK;
}

static ls_status load(text *t, const char *path, const ls_text_options *options)
{
    path_list files = {0};
    ls__env_stat stat;
    ls_status status = ls__file_stat(t->env, "text", path, &stat);
    if (status == LS_OK) {
        status = stat.kind == LS__ENV_FOLDER ? find_files(t->env, path, &files)
                                             : paths_add(&files, strdup(path));
    }
    if (status == LS_OK) {
        t->files = calloc((size_t)files.count + 1, sizeof *t->files);
        status = t->files ? LS_OK : ls__fail(LS_ERR_MEMORY, "text: no memory for the file table");
    }
    for (int i = 0; status == LS_OK && i < files.count; i++) {
        status = add_file(t, &files.path[i], options);
    }
    paths_free(&files);
    if (status == LS_OK && t->base.count == 0) {
        status = no_samples(t, path, options);
    }
    return status;
}

ls_status ls_text_new(const char *path, const ls_text_options *options, ls_dataset **out)
{
    *out = NULL;
    LS__OPTIONS(ls_text_options, given, options);
    ls_runtime *runtime = ls__runtime_get("ls_text_new");
    if (!runtime) {
        return ls__self.status;
    }
    LS_TRY(check_options(path, &given));
    text *t = calloc(1, sizeof *t);
    if (!t) {
        return ls__fail(LS_ERR_MEMORY, "text: no memory for a data set");
    }
    t->env = runtime->env;
    t->context = given.context;
    t->stride = given.stride ? given.stride : given.context;
    t->base.x_shape = t->base.y_shape = LS_SHAPE(t->context);
    t->base.x_dtype = t->base.y_dtype = LS_INT32;
    t->base.get = text_get;
    t->base.free = text_free;
    ls_status status = load(t, path, &given);
    if (status < 0) {
        text_free(&t->base);
        return status;
    }
    *out = &t->base;
    return LS_OK;
}

int ls_text_files(const ls_dataset *self)
{
    return self && self->free == text_free ? ((const text *)self)->count : 0;
}

int64_t ls_text_bytes(const ls_dataset *self)
{
    return self && self->free == text_free ? ((const text *)self)->bytes : 0;
}

const uint8_t *ls_text_file(const ls_dataset *self, int i, int64_t *bytes)
{
    *bytes = 0;
    if (i < 0 || i >= ls_text_files(self)) {
        return NULL;
    }
    const text_file *file = &((const text *)self)->files[i];
    *bytes = file->bytes;
    return file->part;
}
