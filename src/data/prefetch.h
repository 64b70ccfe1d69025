/* SPDX-License-Identifier: Apache-2.0 */
/* Batches read ahead into a ring of buffers.
 *
 *          reader --filled--> [slot][slot][slot] --taken--> the user's thread
 *                  <--free-------------------------
 *
 * There is one slot more than batches read ahead: the one whose batch the user holds. The reader
 * thread walks (epoch, position) on its own (Note [Positions] in sampler.h); the user's side walks
 * the same sequence and so knows which slot holds which step. Both counters only grow; each side
 * sleeps on an event word. Without reading ahead there is one slot and no thread, and a batch is
 * read when it is taken. */
#ifndef LS_DATA_PREFETCH_H
#define LS_DATA_PREFETCH_H

#include <stdatomic.h>

#include "base/runtime.h"
#include "data/sampler.h"

typedef struct ls__prefetch_slot {
    uint8_t *x, *y;             /* the samples, one after the other */
    ls_tensor *x_full, *y_full; /* views of a full batch of this rank */
    ls_sample *batch;           /* of a data set with arrays, in place of these */
    ls_status status;           /* of reading it */
    char message[LS__MESSAGE_MAX];
} ls__prefetch_slot;

typedef struct ls__prefetch {
    ls_dataset *dataset; /* borrowed, as the sampler is */
    ls_sampler *sampler;
    ls_runtime *runtime;
    const ls__env *env;
    ls__sampler_order order;
    bool all_ranks;          /* a slot holds the samples of all ranks, in blocks */
    bool threaded;           /* a reader thread fills the slots */
    size_t x_bytes, y_bytes; /* of one sample */

    ls__prefetch_slot *slots; /* [slot_count] the loader makes and frees their memory */
    int slot_count;
    int64_t *indices;    /* [samples of a slot] Sync: owned by the reader while it runs */
    ls_sample **samples; /* [as many, 1 at least] of a data set with arrays. Sync: likewise */

    ls__env_thread *reader;                /* NULL: not running */
    int64_t reader_epoch, reader_position; /* Sync: owned by the reader while it runs */
    _Atomic uint32_t filled; /* Sync: release by the reader, acquire by the user's thread */
    _Atomic uint32_t freed;  /* Sync: release by the user's thread, acquire by the reader */
    _Atomic uint32_t stop;   /* Sync: release by the user's thread, acquire by the reader */
    _Atomic uint32_t ended; /* Sync: release by the reader, which then ends; acquire by the other */
    _Atomic uint32_t filled_event, freed_event; /* Sync: bumped after a change, parked on */
} ls__prefetch;

/* The number of the step at `position` within its epoch. */
int64_t ls__prefetch_step(const ls__prefetch *p, int64_t position);

/* The slot of the step at (epoch, position), read now or awaited from the reader, which is started
 * there if it is not running. The caller takes the steps in the order of the sampler, and between
 * two calls releases the former slot. The deadline is the job's timeout. */
ls_status ls__prefetch_take(ls__prefetch *p, int64_t epoch, int64_t position,
                            ls__prefetch_slot **out);
/* The slot taken last may be filled again. */
void ls__prefetch_release(ls__prefetch *p);
/* Ends the reader and forgets the batches it has read ahead; before a step out of order is taken,
 * and before the slots are freed. LS_ERR_TIMEOUT: the data set holds the reader for longer than the
 * job's timeout, so it still uses the data set and all that is here. */
ls_status ls__prefetch_stop(ls__prefetch *p);

#endif
