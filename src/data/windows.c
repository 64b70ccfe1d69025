/* SPDX-License-Identifier: Apache-2.0 */
/* Windows over files; see windows.h. A table of each file's first sample is searched by halves. */
#include "data/windows.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/runtime.h"

ls_status ls__windows_init(ls__windows *w, const char *what, int64_t context, int64_t stride)
{
    if (context < 1 || context > INT32_MAX || stride < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: context %lld and stride %lld given; context must be in 1…%d and "
                        "stride at least 0",
                        what, (long long)context, (long long)stride, INT32_MAX);
    }
    w->env = ls__self.runtime->env;
    w->context = context;
    w->stride = stride > 0 ? stride : context;
    w->base.x_shape = w->base.y_shape = LS_SHAPE(context);
    w->base.x_dtype = w->base.y_dtype = LS_INT32;
    return LS_OK;
}

/* Counted files are released whatever state they are in. */
void ls__windows_free(ls_dataset *self)
{
    ls__windows *w = (ls__windows *)self;
    for (int i = 0; i < w->count; i++) {
        ls__file_release(w->env, &w->files[i].file);
        free(w->files[i].path);
    }
    free(w->files);
    free(w);
}

static ls_status find_files(const ls__windows *w, const ls__windows_kind *kind, const char *path,
                            ls__paths *files, bool *named)
{
    ls__env_stat stat;
    LS_TRY(ls__file_stat(w->env, kind->what, path, &stat));
    *named = stat.kind != LS__ENV_FOLDER;
    if (*named) {
        return ls__paths_add(files, kind->what, strdup(path));
    }
    LS_TRY(ls__paths_find(w->env, kind->what, path, files));
    return kind->choose != NULL ? kind->choose(w, path, files) : LS_OK;
}

/* Takes *path. A window needs context + 1 items; a file that is too short gets no samples but keeps
 * its number. */
static ls_status add_file(ls__windows *w, const ls__windows_kind *kind, char **path, bool named)
{
    ls__window_file *file = &w->files[w->count++];
    file->path = *path;
    *path = NULL;
    LS_TRY(kind->open(w, file, named));
    file->first = w->base.count;
    w->base.count += file->count > w->context ? (file->count - w->context - 1) / w->stride + 1 : 0;
    return LS_OK;
}

ls_status ls__windows_open(ls__windows *w, const ls__windows_kind *kind, const char *path)
{
    ls__paths files = {0};
    bool named = false;
    ls_status status = find_files(w, kind, path, &files, &named);
    if (status == LS_OK) {
        w->files = calloc((size_t)files.count + 1, sizeof *w->files);
        status = w->files != NULL
                     ? LS_OK
                     : ls__fail(LS_ERR_MEMORY, "%s: no memory for the file table", kind->what);
    }
    for (int i = 0; status == LS_OK && i < files.count; i++) {
        status = add_file(w, kind, &files.path[i], named);
    }
    ls__paths_free(&files);
    return status;
}

/* A file without samples shares its `first` with the next one; the search returns the last file of
 * that number, which has samples. */
const uint8_t *ls__windows_find(const ls__windows *w, int64_t index, const ls__window_file **file)
{
    LS_ASSERT(index >= 0 && index < w->base.count);
    int low = 0, high = w->count - 1;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (w->files[middle].first <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const ls__window_file *found = &w->files[low];
    *file = found;
    return found->items + (index - found->first) * w->stride * found->item_bytes;
}

const ls__window_file *ls__windows_largest(const ls__windows *w)
{
    const ls__window_file *largest = &w->files[0];
    for (int i = 1; i < w->count; i++) {
        largest = w->files[i].file.bytes > largest->file.bytes ? &w->files[i] : largest;
    }
    return largest;
}
