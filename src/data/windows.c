/* Windows over files; see windows.h. A table of each file's first sample is searched by halves. */
#include "data/windows.h"

#include <stdlib.h>

#include "base/error.h"

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

bool ls__windows_reserve(ls__windows *w, int files)
{
    w->first = calloc((size_t)files + 1, sizeof *w->first);
    return w->first != NULL;
}

void ls__windows_fini(ls__windows *w)
{
    free(w->first);
    w->first = NULL;
}

void ls__windows_add(ls__windows *w, int64_t items)
{
    w->first[w->files++] = w->count;
    w->count += items > w->context ? (items - w->context - 1) / w->stride + 1 : 0;
}

int64_t ls__windows_find(const ls__windows *w, int64_t index, int *file)
{
    /* The last file that begins at or before it: never one without samples. */
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

void ls__windows_describe(const ls__windows *w, ls_dataset *d)
{
    d->count = w->count;
    d->x_shape = d->y_shape = LS_SHAPE(w->context);
    d->x_dtype = d->y_dtype = LS_INT32;
}
