/* What all data sets share: being freed by whoever made them, and having so many samples. */
#include "data/dataset.h"

#include "base/error.h"

void ls_dataset_free(ls_dataset *dataset)
{
    if (dataset != NULL && dataset->free) {
        dataset->free(dataset);
    }
}

ls_status ls__dataset_check(const ls_dataset *d, const char *what, int64_t index)
{
    if (index >= 0 && index < d->count) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_INVALID, "%s: sample %lld asked, there are %lld; count from 0", what,
                    (long long)index, (long long)d->count);
}
