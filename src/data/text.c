/* SPDX-License-Identifier: Apache-2.0 */
/* Text files as byte tokens: a data set of windows (windows.h).
 *
 *     file   |------------- training part -------------|- held out -|
 *
 * Of each file only one part is used, the training part or the held-out one, as the options say.
 * The whole text is read into memory.
 */
#include <lockstep/data.h>

#include "base/foreign.h"
#include "base/options.h"
#include "data/dataset.h"
#include "data/windows.h"

typedef struct text {
    ls__windows windows;
    ls_text_options options;
} text;

/* Runs on the loader's thread. y is x shifted by one byte, so a window has context + 1 bytes. */
static ls_status text_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const ls__windows *w = &((const text *)self)->windows;
    LS_TRY(ls__dataset_check(self, "text", index));
    const ls__window_file *file;
    const uint8_t *window = ls__windows_find(w, index, &file);
    int32_t *tokens = x, *targets = y;
    for (int64_t i = 0; i < w->context; i++) {
        tokens[i] = window[i];
        targets[i] = window[i + 1];
    }
    return LS_OK;
}

/* Keeps the asked part of a file. The held-out part is the end of each file, so both parts see
 * every file. */
static ls_status open_file(const ls__windows *w, ls__window_file *file, bool named)
{
    const ls_text_options *options = &((const text *)w)->options;
    LS_TRY(ls__file_read(w->env, "text", file->path, SIZE_MAX, &file->file));
    LS_TRY(ls__foreign_check_text("text", file->path, file->file.data, file->file.bytes, named));
    const int64_t all = (int64_t)file->file.bytes;
    const int64_t held_out = (int64_t)((double)all * options->held_out);
    const bool training = options->part == LS_TEXT_TRAIN;
    file->items = file->file.data + (training ? 0 : all - held_out);
    file->count = training ? all - held_out : held_out;
    file->item_bytes = 1;
    return LS_OK;
}

/* Tells the three reasons for an empty data set apart; the largest file shows how much is
 * missing. */
static ls_status no_samples(const text *t, const char *path)
{
    if (t->windows.count == 0) {
        return ls__fail(LS_ERR_INVALID,
                        "text: \"%s\" holds no regular file; name a file or a "
                        "folder with files in it",
                        path);
    }
    const ls__window_file *largest = ls__windows_largest(&t->windows);
    if (largest->file.bytes == 0) {
        return ls__fail(LS_ERR_INVALID, "text: \"%s\" is empty; give text to learn from",
                        largest->path);
    }
    return ls__fail(LS_ERR_INVALID,
                    "text: every file is shorter than a window: the %s part of the longest, "
                    "\"%s\", has %lld bytes, a window of context %lld needs %lld; give more text "
                    "or a smaller context",
                    t->options.part == LS_TEXT_TRAIN ? "training" : "held-out", largest->path,
                    (long long)largest->count, (long long)t->windows.context,
                    (long long)t->windows.context + 1);
}

/* The comparison is written so that NaN fails it, too. */
static ls_status check_options(text *t, const char *path)
{
    const ls_text_options *options = &t->options;
    if (path == NULL || !*path) {
        return ls__fail(LS_ERR_INVALID, "text: no path given; name a file or a folder");
    }
    LS_TRY(ls__windows_init(&t->windows, "text", options->context, options->stride));
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

static const ls__windows_kind text_kind = {.what = "text", .open = open_file};

static ls_status load(text *t, const char *path)
{
    LS_TRY(check_options(t, path));
    LS_TRY(ls__windows_open(&t->windows, &text_kind, path));
    return t->windows.base.count > 0 ? LS_OK : no_samples(t, path);
}

ls_dataset *ls_text_dataset_new(const char *path, const ls_text_options *options)
{
    LS__OPTIONS_OR(NULL, ls_text_options, given, options);
    text *t = ls__dataset_new(__func__, "text", sizeof *t, text_get, ls__windows_free);
    if (t == NULL) {
        return NULL;
    }
    t->options = given;
    return ls__dataset_loaded(&t->windows.base, load(t, path));
}

/* The get function identifies the type of the data set: other data sets give 0. */
int ls_text_files(const ls_dataset *self)
{
    return self != NULL && self->get == text_get ? ((const text *)self)->windows.count : 0;
}

/* Of all parts. */
int64_t ls_text_bytes(const ls_dataset *self)
{
    int64_t bytes = 0;
    for (int i = 0; i < ls_text_files(self); i++) {
        bytes += ((const text *)self)->windows.files[i].count;
    }
    return bytes;
}

/* The pointer stays valid until the data set is freed. */
const uint8_t *ls_text_file(const ls_dataset *self, int i, int64_t *bytes)
{
    *bytes = 0;
    if (i < 0 || i >= ls_text_files(self)) {
        return NULL;
    }
    const ls__window_file *file = &((const text *)self)->windows.files[i];
    *bytes = file->count;
    return file->items;
}
