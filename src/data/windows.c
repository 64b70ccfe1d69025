/* Windows over files; see windows.h. A table of each file's first sample is searched by halves. */
#include "data/windows.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/error.h"

/* A stride of 0 means `context`, windows without overlap. No memory is taken yet. */
ls_status ls__windows_init(ls__windows *w, const char *what, int64_t context, int64_t stride)
{
    if (context < 1 || context > INT32_MAX || stride < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: context %lld and stride %lld given; context must be in 1…%d and "
                        "stride at least 0",
                        what, (long long)context, (long long)stride, INT32_MAX);
    }
    *w = (ls__windows){.context = context, .stride = stride ? stride : context};
    return LS_OK;
}

/* Must come before the first ls__windows_add, with the final number of files. */
bool ls__windows_reserve(ls__windows *w, int files)
{
    w->first = calloc((size_t)files + 1, sizeof *w->first);
    return w->first != NULL;
}

/* Also after a failed reserve. */
void ls__windows_fini(ls__windows *w)
{
    free(w->first);
    w->first = NULL;
}

/* A window needs context + 1 items. A file that is too short gets no samples but keeps its
 * number. */
void ls__windows_add(ls__windows *w, int64_t items)
{
    LS_ASSERT(w->first != NULL);
    w->first[w->files++] = w->count;
    w->count += items > w->context ? (items - w->context - 1) / w->stride + 1 : 0;
}

/* `index` is below the number of samples. A file without samples shares its `first` with the
 * next one; the search returns the last file of that number, which has samples. */
int64_t ls__windows_find(const ls__windows *w, int64_t index, int *file)
{
    LS_ASSERT(index >= 0 && index < w->count);
    int low = 0, high = w->files - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (w->first[middle] <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *file = low;
    return (index - w->first[low]) * w->stride;
}

/* Also correct for an object without files: the data set then has no samples. */
void ls__windows_describe(const ls__windows *w, ls_dataset *d)
{
    d->count = w->count;
    d->x_shape = d->y_shape = LS_SHAPE(w->context);
    d->x_dtype = d->y_dtype = LS_INT32;
}
