/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that all data sets share: making and freeing one, and checking a sample's number. */
#include "data/dataset.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/options.h"
#include "base/runtime.h"

#define KEPT_MAX 64 /* of a process whose disk hangs; it is about to end */

/* Data sets in which a thread hangs: they live until the process ends. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static const ls_dataset *kept[KEPT_MAX];
static int kept_count;

void *ls__dataset_new(const char *caller, const char *what, size_t bytes,
                      ls_status (*get)(ls_dataset *, int64_t index, void *x, void *y),
                      void (*free)(ls_dataset *))
{
    if (ls__runtime_get(caller) == NULL) {
        return NULL;
    }
    ls_dataset *d = calloc(1, bytes);
    if (d == NULL) {
        (void)ls__fail(LS_ERR_MEMORY, "%s: no memory for a data set", what);
        return NULL;
    }
    d->size = sizeof *d;
    d->get = get;
    d->free = free;
    return d;
}

ls_dataset *ls__dataset_loaded(ls_dataset *d, ls_status status)
{
    if (status < 0) {
        d->free(d);
        return NULL;
    }
    return d;
}

void ls__dataset_keep(const ls_dataset *dataset)
{
    pthread_mutex_lock(&kept_lock);
    if (kept_count < KEPT_MAX) {
        kept[kept_count++] = dataset;
    }
    pthread_mutex_unlock(&kept_lock);
}

static bool is_kept(const ls_dataset *dataset)
{
    bool found = false;
    pthread_mutex_lock(&kept_lock);
    for (int i = 0; i < kept_count; i++) {
        found = found || kept[i] == dataset;
    }
    pthread_mutex_unlock(&kept_lock);
    return found;
}

/* Any data set may be freed this way, also a user's; NULL is allowed. */
void ls_dataset_free(ls_dataset *dataset)
{
    if (dataset != NULL && dataset->free && !is_kept(dataset)) {
        dataset->free(dataset);
    }
}

ls_status ls__dataset_check_size(const ls_dataset *d, const char *caller)
{
    const size_t least = offsetof(ls_dataset, free) + sizeof d->free;
    if (ls__struct_size_fits(d->size) && d->size >= least) {
        return LS_OK;
    }
    return ls__fail(
        LS_ERR_INVALID,
        "%s: the data set's size is %zu; fill an ls_dataset with LS_DATASET(.count = …), "
        "or set its size to sizeof(ls_dataset)",
        caller, d->size);
}

/* A data set's get is public and may be called with any index, so this is an error and not an
 * assertion. */
ls_status ls__dataset_check(const ls_dataset *d, const char *what, int64_t index)
{
    if (index >= 0 && index < d->count) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID, "%s: there is no sample %lld; give 0 to %lld", what,
                    (long long)index, (long long)d->count - 1);
}
