/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of several arrays, and batches of them: memory that grows and is used again. */
#ifndef LS_DATA_SAMPLE_H
#define LS_DATA_SAMPLE_H

#include <lockstep/data.h>

#include "data/dataset.h"

/* NULL with the error set. */
ls_sample *ls__sample_new(void);
void ls__sample_free(ls_sample *sample); /* NULL is allowed */
/* It has no arrays, and keeps their memory. */
void ls__sample_clear(ls_sample *sample);

/* Whether the data set gives samples of several arrays. */
static inline bool ls__dataset_has_arrays(const ls_dataset *d)
{
    return d->size >= offsetof(ls_dataset, get_sample) + sizeof d->get_sample &&
           d->get_sample != NULL;
}

/* Sample `index` as it is in `epoch`, into `out`. */
ls_status ls__dataset_get_sample(ls_dataset *d, int64_t epoch, int64_t index, ls_sample *out);
/* The batch of samples[count], by the data set's `collate`; of 0 samples, with samples[0] for their
 * shapes. */
ls_status ls__dataset_collate(ls_dataset *d, const ls_sample *const *samples, int64_t count,
                              ls_sample *batch);

#endif
