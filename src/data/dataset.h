/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a sample of any data set, and what data sets share. */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/data.h>

#include "base/error.h"

/* Sample `index` as it is in `epoch`. Data sets whose samples do not depend on the epoch (most)
 * have no get_in_epoch. */
static inline ls_status ls__dataset_get(ls_dataset *d, int64_t epoch, int64_t index, void *x,
                                        void *y)
{
    const bool reaches = d->size >= offsetof(ls_dataset, get_in_epoch) + sizeof d->get_in_epoch;
    const ls__user_call user = ls__user_call_begin();
    const ls_status status = reaches && d->get_in_epoch != NULL
                                 ? d->get_in_epoch(d, epoch, index, x, y)
                                 : d->get(d, index, x, y);
    return ls__user_call_check(&user, status, "the data set's get of sample %lld",
                               (long long)index);
}

/* A zeroed struct of `bytes`, which begins with an ls_dataset, with its functions. NULL with the
 * error set: without a runtime it names `caller`, without memory `what`. */
void *ls__dataset_new(const char *caller, const char *what, size_t bytes,
                      ls_status (*get)(ls_dataset *, int64_t index, void *x, void *y),
                      void (*free)(ls_dataset *));
/* Ends a constructor: `d`, or NULL after freeing it, when loading it has failed. */
ls_dataset *ls__dataset_loaded(ls_dataset *d, ls_status status);

/* From now on ls_dataset_free does nothing with it: a thread that cannot be ended may still read
 * from it. */
void ls__dataset_keep(const ls_dataset *dataset);

/* LS_ERR_INVALID for a data set whose struct has an impossible size, or ends before `free`. */
ls_status ls__dataset_check_size(const ls_dataset *d, const char *caller);
/* LS_ERR_INVALID if sample `index` does not exist; `what` begins the message. */
ls_status ls__dataset_check(const ls_dataset *d, const char *what, int64_t index);

#endif
