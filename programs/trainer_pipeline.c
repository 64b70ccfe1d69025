/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a pipeline: its micro-batches are read first, all of them on all stages, since each is
 * a step of the loader as with --accum, and random numbers draw from the same streams. */
#include "trainer_internal.h"

/* The loader overwrites a batch in its next call. */
ls_micro_batch trainer_next_micro_batch(trainer *t)
{
    ls_batch batch = {.size = sizeof batch};
    trainer_next_batch(t, &batch);
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {parallel_part(&t->ranks, ls_clone(batch.x))},
                            .target = parallel_part(&t->ranks, ls_clone(batch.y)),
                            .context = batch.context};
}

ls_status trainer_pipeline_step(trainer *t)
{
    LS_SCOPE;
    LS_AUTOCAST(trainer_in_bf16(t));
    for (int64_t k = 0; k < t->micro; k++) {
        t->micro_batches[k] = trainer_next_micro_batch(t);
    }
    return ls_pipeline_backward(t->ranks.pipeline, t->net, t->micro_batches, t->losses);
}
