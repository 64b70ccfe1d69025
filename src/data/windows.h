/* SPDX-License-Identifier: Apache-2.0 */
/* A data set whose samples are windows of context + 1 items, `stride` apart, within files of items:
 * a window never crosses a file, so no sample joins two unrelated texts.
 *
 *     file     x0 x1 x2 x3 x4 x5 …
 *     sample   [x0 x1 … x(T-1)] xT        x = window[0…T), y = window[1…T]
 *                    [x0 x1 … x(T-1)] xT      starts are `stride` apart */
#ifndef LS_DATA_WINDOWS_H
#define LS_DATA_WINDOWS_H

#include <lockstep/data.h>

#include "base/file.h"
#include "data/paths.h"

typedef struct ls__window_file {
    char *path; /* for messages */
    ls__file file;
    const uint8_t *items; /* the first one that is used, within file.data */
    int64_t count;        /* of them */
    int item_bytes;
    int64_t first; /* number of its first sample */
} ls__window_file;

typedef struct ls__windows {
    ls_dataset base;
    const ls__env *env;
    int64_t context;
    int64_t stride;
    ls__window_file *files; /* [count] */
    int count;
} ls__windows;

typedef struct ls__windows_kind {
    const char *what; /* begins messages */
    /* Keeps some of the files of a folder; NULL: all. */
    ls_status (*choose)(const ls__windows *w, const char *folder, ls__paths *files);
    /* Reads or maps file->path, and finds the items; what it has opened is released after an error,
     * too. `named`: the user gave this path, not its folder's. */
    ls_status (*open)(const ls__windows *w, ls__window_file *file, bool named);
} ls__windows_kind;

/* Checks the options; stride 0 stands for the context, windows without overlap. `what` begins the
 * message. */
ls_status ls__windows_init(ls__windows *w, const char *what, int64_t context, int64_t stride);
/* Opens the file, or those below the folder, in the order of their paths, so that all ranks number
 * the windows alike. Afterwards base.count may be 0. */
ls_status ls__windows_open(ls__windows *w, const ls__windows_kind *kind, const char *path);
void ls__windows_free(ls_dataset *self);

/* The items at which sample `index` begins; the sample must exist. */
const uint8_t *ls__windows_find(const ls__windows *w, int64_t index, const ls__window_file **file);
/* For messages: the largest file, of at least one. */
const ls__window_file *ls__windows_largest(const ls__windows *w);

#endif
