/* SPDX-License-Identifier: Apache-2.0 */
/* Equal bits for any number of ranks (exact=layout), in the wrapper.
 *
 * Running statistics follow shard 0, which rank 0 computes first. Rank 0 notes them when the
 * backward of that shard begins, and takes back what its other shards have done to them before it
 * broadcasts them. */
#include "ddp/wrapper.h"

#include "base/config.h"
#include "base/error.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "nn/batch_norm.h"
#include "reduce/shards.h"

static ls_status check_options(const ls__ddp *d, const ls_ddp_options *options)
{
    ls_module *net = d->inner;
    const ls_group *group = ls__round_robin_at(d->group, 0);
    if ((group->can->flags & LS_BACKEND_CANONICAL) == 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "shards: backend \"%s\" adds in an order of its own, so bits would depend "
                        "on the number "
                        "of ranks; use a group of backend \"native\"",
                        ls_group_backend(group));
    }
    if (ls__norm_sync_in(net) != NULL) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "shards and ls_sync_batch_norm_convert: batch norm would take the statistics "
            "of as many shards as there are ranks, so bits would depend on the number "
            "of ranks; leave one of them out");
    }
    if (options->place != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "shards and place: with shards all parameters are reduced over the whole "
                        "group; leave one of them out");
    }
    if (!options->broadcast_buffers) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "shards without broadcast_buffers: each rank's running statistics would "
                        "follow other shards; leave broadcast_buffers true");
    }
    if (options->wire_dtype == LS_BFLOAT16) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "shards and wire_dtype: each rank rounds its sum before it is sent, so bits "
            "would depend on the number of ranks; leave one of them out");
    }
    return LS_OK;
}

/* The reducer makes the rest of the checks. */
ls_status ls__layout_set(ls__ddp *d, const ls_ddp_options *options)
{
    if (options->shards == 0) {
        return LS_OK;
    }
    LS_TRY(check_options(d, options));
    LS_TRY(ls__shards_set(d->reducer, options->shards));
    ls__config_note(NULL, "ls_ddp_new", "", "%d shards", options->shards);
    d->shards = true;
    return LS_OK;
}

ls_status ls__layout_begin(ls__ddp *d)
{
    if (!d->shards) {
        return LS_OK;
    }
    if (ls__shards_first(d->reducer)) {
        LS_TRY(ls__buffers_note(&d->buffers));
    }
    return d->synchronising ? ls__buffers_take_back(&d->buffers) : LS_OK;
}

void ls__layout_end(ls__ddp *d)
{
    if (d->shards) {
        ls__shards_keep(d->reducer);
    }
}

ls_status ls__layout_fail_early(const ls__ddp *d)
{
    return ls__fail(LS_ERR_STATE,
                    "ls_optim_step: %d of this rank's %d shards of the step are done; call "
                    "ls_backward for each of them before the optimizer steps",
                    ls__shards_done(d->reducer), ls__shards_of_rank(d->reducer));
}
