/* Text files as byte tokens.
 *
 *     file   |------------- training part -------------|- held out -|
 *     sample   [x0 x1 … x(T-1)] xT        x = window[0…T), y = window[1…T]
 *                    [x0 x1 … x(T-1)] xT      starts are `stride` apart
 *
 * A window never crosses a file. Of each file only one part is used, the training part or the
 * held-out one, as the options say.
 */
#include <lockstep/data.h>

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/foreign.h"
#include "base/options.h"
#include "base/runtime.h"
#include "data/dataset.h"
#include "data/paths.h"
#include "data/windows.h"

/* A file and the part of it that is used. `part` points into `file`, which is kept as long as the
 * data set lives. */
typedef struct text_file {
    char *path;
    ls__file file;
    const uint8_t *part; /* within file.data */
    int64_t bytes;       /* of the part */
} text_file;

/* The data set; `bytes` counts those of all parts. */
typedef struct text {
    ls_dataset base;
    const ls__env *env;
    text_file *files;
    ls__windows windows;
    int count;
    int64_t bytes;
} text;

/* files[0 … count) are complete; add_file counts a file only when both its parts are set. */
static void text_free(ls_dataset *self)
{
    text *t = (text *)self;
    for (int i = 0; i < t->count; i++) {
        ls__file_release(t->env, &t->files[i].file);
        free(t->files[i].path);
    }
    free(t->files);
    ls__windows_fini(&t->windows);
    free(t);
}

/* Runs on the loader's thread. y is x shifted by one byte, so a window has context + 1 bytes. */
static ls_status text_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const text *t = (const text *)self;
    LS_TRY(ls__dataset_check(self, "text", index));
    int file = 0;
    const int64_t start = ls__windows_find(&t->windows, index, &file);
    const uint8_t *window = t->files[file].part + start;
    int32_t *tokens = x, *targets = y;
    for (int64_t i = 0; i < t->windows.context; i++) {
        tokens[i] = window[i];
        targets[i] = window[i + 1];
    }
    return LS_OK;
}

/* Reads one file and keeps the asked part of it. Takes *path on success and sets it to NULL. The
 * held-out part is the end of each file, so both parts see every file. */
static ls_status add_file(text *t, char **path, bool named, const ls_text_options *options)
{
    text_file *file = &t->files[t->count];
    LS_TRY(ls__file_read(t->env, "text", *path, SIZE_MAX, &file->file));
    const ls_status status =
        ls__foreign_check_text("text", *path, file->file.data, file->file.bytes, named);
    if (status < 0) {
        ls__file_release(t->env, &file->file);
        return status;
    }
    int64_t all = (int64_t)file->file.bytes;
    int64_t held_out = (int64_t)((double)all * options->held_out);
    bool training = options->part == LS_TEXT_TRAIN;
    file->part = file->file.data + (training ? 0 : all - held_out);
    file->bytes = training ? all - held_out : held_out;
    file->path = *path;
    *path = NULL;
    t->count++;
    t->bytes += file->bytes;
    ls__windows_add(&t->windows, file->bytes);
    return LS_OK;
}

/* Tells the three reasons for an empty data set apart; the longest file shows how much is
 * missing. */
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
                    (long long)longest->bytes, (long long)t->windows.context,
                    (long long)t->windows.context + 1);
}

/* The comparison is written so that NaN fails it, too. */
static ls_status check_options(const char *path, const ls_text_options *options,
                               ls__windows *windows)
{
    if (path == NULL || !*path) {
        return ls__fail(LS_ERR_INVALID, "text: no path given; name a file or a folder");
    }
    LS_TRY(ls__windows_init(windows, "text", options->context, options->stride));
    if (!(options->held_out >= 0.0 && options->held_out <= 1.0)) {
        return ls__fail(LS_ERR_INVALID, "text: held_out is %g; it must be a fraction in 0…1",
                        options->held_out);
    }
    if (options->part != LS_TEXT_TRAIN && options->part != LS_TEXT_HELD_OUT) {
        return ls__fail(LS_ERR_INVALID,
                        "text: part %d is not valid; give LS_TEXT_TRAIN or LS_TEXT_HELD_OUT",
                        (int)options->part);
    }
    return LS_OK;
}

/* The paths are sorted by ls__paths_find, so all ranks number the windows alike. The whole text
 * is read into memory. */
static ls_status load(text *t, const char *path, const ls_text_options *options)
{
    t->env = ls__self.runtime->env;
    LS_TRY(check_options(path, options, &t->windows));
    ls__paths files = {0};
    ls__env_stat stat;
    ls_status status = ls__file_stat(t->env, "text", path, &stat);
    if (status == LS_OK) {
        status = stat.kind == LS__ENV_FOLDER ? ls__paths_find(t->env, "text", path, &files)
                                             : ls__paths_add(&files, "text", strdup(path));
    }
    if (status == LS_OK) {
        t->files = calloc((size_t)files.count + 1, sizeof *t->files);
        status = t->files && ls__windows_reserve(&t->windows, files.count)
                     ? LS_OK
                     : ls__fail(LS_ERR_MEMORY, "text: no memory for the file table");
    }
    for (int i = 0; status == LS_OK && i < files.count; i++) {
        status = add_file(t, &files.path[i], stat.kind != LS__ENV_FOLDER, options);
    }
    ls__paths_free(&files);
    ls__windows_describe(&t->windows, &t->base);
    if (status == LS_OK && t->base.count == 0) {
        status = no_samples(t, path, options);
    }
    return status;
}

ls_dataset *ls_text_dataset_new(const char *path, const ls_text_options *options)
{
    LS__OPTIONS_OR(NULL, ls_text_options, given, options);
    text *t = ls__dataset_new(__func__, "text", sizeof *t, text_get, text_free);
    return t != NULL ? ls__dataset_loaded(&t->base, load(t, path, &given)) : NULL;
}

/* The free function identifies the type of the data set: other data sets give 0. */
int ls_text_files(const ls_dataset *self)
{
    return self != NULL && self->free == text_free ? ((const text *)self)->count : 0;
}

/* Of all parts. */
int64_t ls_text_bytes(const ls_dataset *self)
{
    return self != NULL && self->free == text_free ? ((const text *)self)->bytes : 0;
}

/* The pointer stays valid until the data set is freed. */
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
