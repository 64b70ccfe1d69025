/* Reading a sample of any data set. */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

/* Sample `index` as epoch `epoch` sees it: its own way where it depends on the epoch. */
static inline ls_status ls__dataset_get(ls_dataset *d, int64_t epoch, int64_t index, void *x,
                                        void *y)
{
    return d->get_in_epoch ? d->get_in_epoch(d, epoch, index, x, y) : d->get(d, index, x, y);
}

#endif
