/* Samples that are windows of context + 1 items, `stride` apart, within files of items: a window
 * never crosses a file, so no sample joins two unrelated texts. */
#ifndef LS_DATA_WINDOWS_H
#define LS_DATA_WINDOWS_H

#include <stdint.h>

static inline int64_t ls__windows_in(int64_t items, int64_t context, int64_t stride)
{
    return items > context ? (items - context - 1) / stride + 1 : 0;
}

/* The file of sample `index` >= 0, where first[i] is the number of file i's first sample: the last
 * one that begins at or before it. Files without samples never are. */
static inline int ls__windows_file(const int64_t *first, int files, int64_t index)
{
    int low = 0, high = files - 1;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (first[middle] <= index) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

#endif
