/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR-10 as a data set: one file, or the five training files or the test file of its folder. The
 * files are mapped; pixels become float32 when a sample is read. */
#include "data/cifar.h"

#include <lockstep/data.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/file.h"
#include "base/foreign.h"
#include "base/runtime.h"
#include "data/dataset.h"
#include "data/paths.h"
#include "data/unpack.h"

#define CLASSES 10
#define TRAINING_FILES 5

/* `first` is indexed by file; the entry after the last file holds the total. `files` counts those
 * that are mapped. */
typedef struct cifar {
    ls_dataset base;
    const ls__env *env;
    ls__file file[TRAINING_FILES];
    int64_t first[TRAINING_FILES + 1]; /* number of each file's first image; then of all */
    int files;
} cifar;

/* The usual mistake is the pickle of the Python version. */
static const char *other_format(const uint8_t *data, size_t bytes)
{
    if (bytes >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5) {
        return "it is the version for Python: give the binary version";
    }
    return ls__foreign_words(ls__foreign_kind_of(data, bytes),
                             "it is damaged or has another format");
}

/* The format has no magic, so every label is read: a file of another kind fails at its first odd
 * record. Labels come before the size, because a wrong format explains both. */
ls_status ls__cifar_check(const uint8_t *data, size_t bytes, const char *path, int64_t *count)
{
    if (bytes == 0) {
        return ls__fail(LS_ERR_INVALID, "CIFAR-10: \"%s\" is empty; name a file of images", path);
    }
    for (size_t at = 0; at < bytes; at += LS__CIFAR_RECORD) {
        if (data[at] >= CLASSES) {
            return ls__fail(LS_ERR_FORMAT,
                            "CIFAR-10: \"%s\" has label %d at offset %zu, labels are 0 to 9; %s",
                            path, data[at], at, other_format(data, bytes));
        }
    }
    const size_t cut = bytes % LS__CIFAR_RECORD;
    if (cut != 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "CIFAR-10: \"%s\" ends with %zu bytes at offset %zu, an image has %d; it "
                        "is truncated",
                        path, cut, bytes - cut, LS__CIFAR_RECORD);
    }
    *count = (int64_t)(bytes / LS__CIFAR_RECORD);
    return LS_OK;
}

/* Also used after a failed load: only the files counted so far are released. */
static void cifar_free(ls_dataset *self)
{
    cifar *d = (cifar *)self;
    for (int i = 0; i < d->files; i++) {
        ls__file_release(d->env, &d->file[i]);
    }
    free(d);
}

/* Runs on the loader's thread; it only reads mapped memory. Pixels become 0 … 1; at most five
 * files, hence the linear search. */
static ls_status cifar_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    const cifar *d = (const cifar *)self;
    LS_TRY(ls__dataset_check(self, "CIFAR-10", index));
    int file = 0;
    while (index >= d->first[file + 1]) {
        file++;
    }
    LS_ASSERT(file < d->files);
    const uint8_t *record = d->file[file].data + (index - d->first[file]) * LS__CIFAR_RECORD;
    float *pixels = x;
    *(int32_t *)y = record[0];
    for (int i = 0; i < LS__CIFAR_PIXELS; i++) {
        pixels[i] = (float)record[1 + i] / 255.0f;
    }
    return LS_OK;
}

/* The file is counted before its check, so that cifar_free unmaps it if the check fails. */
static ls_status add_file(cifar *d, const char *path)
{
    int64_t count = 0;
    LS_TRY(ls__file_map(d->env, "CIFAR-10", path, &d->file[d->files]));
    d->files++;
    LS_TRY(ls__unpack(d->env, "CIFAR-10", path, &d->file[d->files - 1]));
    LS_TRY(ls__cifar_check(d->file[d->files - 1].data, d->file[d->files - 1].bytes, path, &count));
    d->first[d->files] = d->first[d->files - 1] + count;
    return LS_OK;
}

/* FOLDER/NAME, or FOLDER/NAME.gz if only that is there; free(). NULL without memory. */
static char *find(const cifar *d, const char *folder, const char *name)
{
    char with_ending[40];
    ls__env_stat stat;
    (void)snprintf(with_ending, sizeof with_ending, "%s.gz", name);
    char *plain = ls__paths_join(folder, name), *packed = ls__paths_join(folder, with_ending);
    const bool take_packed = plain != NULL && packed != NULL &&
                             d->env->stat(d->env, plain, true, &stat) < 0 &&
                             d->env->stat(d->env, packed, true, &stat) == 0;
    free(take_packed ? plain : packed);
    return take_packed ? packed : plain;
}

/* A missing file gets the list of expected names, since users often name the folder above. */
static ls_status add_from(cifar *d, const char *folder, const char *name)
{
    char *path = find(d, folder, name);
    if (path == NULL) {
        return ls__fail(LS_ERR_MEMORY, "CIFAR-10: no memory for a path");
    }
    ls_status status = add_file(d, path);
    free(path);
    return status == LS_ERR_NOT_FOUND
               ? ls__fail_within(status,
                                 "CIFAR-10: \"%s\" should hold data_batch_1.bin to "
                                 "data_batch_5.bin and test_batch.bin",
                                 folder)
               : status;
}

/* A path that is not a folder is taken as one file of images; `train` then has no effect. A
 * folder must be complete: with a file missing, the data set would silently be smaller than in
 * published results. */
static ls_status load_files(cifar *d, const char *path, bool train)
{
    ls__env_stat stat;
    LS_TRY(ls__file_stat(d->env, "CIFAR-10", path, &stat));
    if (stat.kind != LS__ENV_FOLDER) {
        return add_file(d, path);
    }
    if (!train) {
        return add_from(d, path, "test_batch.bin");
    }
    for (int i = 1; i <= TRAINING_FILES; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "data_batch_%d.bin", i);
        LS_TRY(add_from(d, path, name));
    }
    return LS_OK;
}

static ls_status load(cifar *d, const char *folder_or_file, bool train)
{
    d->env = ls__self.runtime->env;
    d->base.x_shape = LS_SHAPE(3, 32, 32);
    d->base.y_shape = LS_SCALAR;
    d->base.x_dtype = LS_FLOAT32;
    d->base.y_dtype = LS_INT32;
    if (folder_or_file == NULL || !*folder_or_file) {
        return ls__fail(LS_ERR_INVALID, "CIFAR-10: no path given; name its folder or one file");
    }
    LS_TRY(load_files(d, folder_or_file, train));
    d->base.count = d->first[d->files];
    return LS_OK;
}

/* The loader's thread may read the result, because it does not change. */
ls_dataset *ls_cifar10_dataset_new(const char *folder_or_file, bool train)
{
    cifar *d = ls__dataset_new(__func__, "CIFAR-10", sizeof *d, cifar_get, cifar_free);
    return d != NULL ? ls__dataset_loaded(&d->base, load(d, folder_or_file, train)) : NULL;
}
