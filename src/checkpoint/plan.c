/* Who writes what. Replicated tensors go, the largest first, each to the rank that has the fewest
 * bytes so far (longest processing time first, Graham 1969: within 4/3 of the best). A rank's slice
 * of a distributed tensor is its own to write and counts for nobody, so the plan follows from names
 * and sizes alone and is the same on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/internal.h"

static int by_bytes(const void *a, const void *b)
{
    const ls__saved_entry *x = *(ls__saved_entry *const *)a, *y = *(ls__saved_entry *const *)b;
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int lightest(const size_t *load, int size)
{
    int best = 0;
    for (int r = 1; r < size; r++) {
        best = load[r] < load[best] ? r : best;
    }
    return best;
}

ls_status ls__plan_writers(ls__table *table, int rank, int size)
{
    size_t *load = calloc((size_t)size, sizeof *load);
    ls__saved_entry **order = malloc(((size_t)table->count + 1) * sizeof(ls__saved_entry *));
    if (!load || !order) {
        free(load);
        free(order);
        return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory to share out %d tensors",
                        table->count);
    }
    int tensors = 0;
    for (int i = 0; i < table->count; i++) {
        if (table->list[i].type == LS__ENTRY_TENSOR) {
            order[tensors++] = &table->list[i];
        }
    }
    qsort(order, (size_t)tensors, sizeof(ls__saved_entry *), by_bytes);
    for (int i = 0; i < tensors; i++) {
        bool whole = ls__tensor_is_whole(&order[i]->tensor);
        order[i]->writer = whole ? lightest(load, size) : rank;
        load[order[i]->writer] += whole ? order[i]->bytes : 0;
    }
    free(load);
    free(order);
    return LS_OK;
}
