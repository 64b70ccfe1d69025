/* Samples that are windows of context + 1 items, `stride` apart, within files of items: a window
 * never crosses a file, so no sample joins two unrelated texts. */
#ifndef LS_DATA_WINDOWS_H
#define LS_DATA_WINDOWS_H

#include <lockstep/data.h>

typedef struct ls__windows {
    int64_t context, stride;
    int64_t *first; /* [files] number of each file's first sample */
    int files;
    int64_t count; /* samples of all files */
} ls__windows;

/* Options of a data set of windows, stride 0 for the context; `what` begins the message. */
ls_status ls__windows_init(ls__windows *w, const char *what, int64_t context, int64_t stride);
bool ls__windows_reserve(ls__windows *w, int files); /* false: no memory */
void ls__windows_fini(ls__windows *w);

/* The next file, of `items`. */
void ls__windows_add(ls__windows *w, int64_t items);
/* The item in its file at which sample `index` begins; the sample must exist. */
int64_t ls__windows_find(const ls__windows *w, int64_t index, int *file);

/* Sets the shapes and dtypes of a data set of windows: `context` int32 numbers as x and as y. */
void ls__windows_describe(const ls__windows *w, ls_dataset *d);

#endif
