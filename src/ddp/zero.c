/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO (Rajbhandari et al., SC 2020, section 5): every rank steps its part of each bucket.
 *
 *                      rank 0    rank 1    rank 2
 *     bucket         [ ········ ········ ········ ]     gradients of this rank's samples
 *     reduce-scatter [ averages                   ]     on rank 0; rank 1 has the middle
 *     step           [ ████████                   ]     with state for these elements alone
 *     all-gather     [ ████████ ████████ ████████ ]     parameters, equal on all ranks
 *
 * The two operations send what one all-reduce does. Sums are added in the order of the ranks by
 * both, and an update looks at one element at a time, so losses and parameters have the bits of
 * training without zero.
 *
 * Parameters lie in the layout of gradients (values.c), so they are gathered in place. They are
 * whole whenever an optimizer's step has returned: forward passes, checkpoints, exports and the
 * comparison of replicas need to know nothing.
 *
 * Note [The first step]
 * The first synchronised backward ends with the one change of the layout, which moves gradients
 * from one bucket to another and would tear averages apart that lie on one rank each. It is
 * therefore an all-reduce; averages, state and gathering are divided from then on. */

#include "autograd/param.h"
#include "base/assert.h"
#include "base/config.h"
#include "base/options.h"
#include "comm/core/group.h"
#include "comm/core/round_robin.h"
#include "ddp/apart.h"
#include "ddp/wrapper.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "tensor/tensor.h"

static ls__ddp *ddp_of(ls__observer *observer)
{
    return LS__LIST_ITEM(observer, ls__ddp, observer);
}

/* ---- what it is combined with ---------------------------------------------------------------- */

/* Buckets in memory of a device that the host does not reach have no second phase
 * (reduce/device.c). */
static ls_status check_device(const ls__ddp *d, const ls_ddp_options *options)
{
    if (options->zero == 0 || d->param_count == 0 || !ls__ddp_is_apart(d->params[0].value)) {
        return LS_OK;
    }
    if (d->on_host) {
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "zero: parameters are gathered in memory that kernels of their device do "
            "not reach; have gradients averaged there (backend \"nccl\"), or leave zero "
            "out");
    }
    if (options->shard_group != NULL) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "shard_group over backend \"%s\": the host would begin the second of a "
                        "bucket's two operations, and waits for none there; leave shard_group out",
                        ls_group_backend(ls__reducer_group(d->reducer)));
    }
    return LS_OK;
}

static ls_status check(const ls__ddp *d, const ls_ddp_options *options)
{
    if (options->zero < 0 || options->zero > 3) {
        return ls__fail(LS_ERR_INVALID,
                        "zero is %d; give 0, 1 (the optimizer's state is divided among the "
                        "ranks), 2 (gradients as well) or 3 (parameters, too)",
                        options->zero);
    }
    if (options->zero == 0 && options->shard_group != NULL) {
        return ls__fail(LS_ERR_INVALID, "shard_group without zero: nothing is divided; give zero "
                                        "1, 2 or 3, or leave shard_group out");
    }
    if (options->zero > 0 && options->shards > 0) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "zero and shards: shards are added in one tree of whole gradients on every "
                        "rank; leave one of them out");
    }
    if (options->zero > 0 && options->wire_dtype != LS_FLOAT32) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "zero and wire_dtype: only gradients would be sent in bfloat16, and the "
                        "other half of what is sent are parameters; leave one of them out");
    }
    if ((options->zero > 2 || options->shard_group != NULL) &&
        ls__reducer_domains(d->reducer) > 1) {
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "zero 3 or shard_group, and some gradients are added over a part of the "
                        "group (place, or a mesh): parameters are divided and gathered by all of "
                        "its ranks in one order, and some of them have others; take zero 1 or 2 "
                        "without shard_group");
    }
    return check_device(d, options);
}

ls_status ls__ddp_zero_init(ls__ddp *d, const ls_ddp_options *options)
{
    LS_TRY(check(d, options));
    d->zero.stage = options->zero;
    if (options->zero > 0) {
        ls__config_note(NULL, "ls_ddp_new", "", "zero %d%s", options->zero,
                        options->shard_group != NULL ? " in a shard_group" : "");
        LS_TRY(
            ls__reducer_divide(d->reducer, options->zero > 1 && d->on_host, options->shard_group));
    }
    return options->zero > 2 ? ls__unshard_open(d) : LS_OK;
}

/* ---- whose the elements are ------------------------------------------------------------------ */

static void owned(ls__observer *self, int index, int64_t *from, int64_t *count)
{
    ls__reducer_own(ddp_of(self)->reducer, index, from, count);
}

/* A parameter is divided among the ranks over which its gradient is added. */
static bool divides(ls__observer *self, int index, int world_rank)
{
    const ls_group *sums = ddp_of(self)->sums[index];
    return ls__member_of(ls__round_robin_at((ls_group *)sums, 0), world_rank) >= 0;
}

static void updated(ls__observer *self, int index)
{
    ls__ddp *d = ddp_of(self);
    const int bucket = ls__reducer_bucket_of(d->reducer, index);
    LS_ASSERT(bucket < d->zero.buckets);
    d->zero.changed[bucket] = true;
}

/* With 2 and 3 a gradient has a place only while its bucket is filled and reduced. */
static ls_status writes(ls__observer *self, int index)
{
    return ls__reducer_write(ddp_of(self)->reducer, index);
}

static void moved(void *arg, int param, void *memory)
{
    ls__param_place_grad(((ls__ddp *)arg)->params[param].value, memory);
}

static ls_status share(ls__observer *self)
{
    return ls__ddp_zero_share(ddp_of(self));
}

static size_t table_bytes(const ls__ddp_zero *z)
{
    return (size_t)z->buckets * (sizeof *z->works + sizeof *z->changed);
}

ls_status ls__ddp_zero_begin(ls__ddp *d)
{
    ls__ddp_zero *z = &d->zero;
    if (z->stage == 0) {
        return LS_OK;
    }
    LS_ASSERT(z->buckets == 0);
    z->buckets = ls__reducer_bucket_count(d->reducer);
    z->works = d->env->allocate(d->env, table_bytes(z));
    if (z->works == NULL) {
        z->buckets = 0;
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for a table of buckets");
    }
    z->changed = (bool *)(void *)(z->works + z->buckets);
    for (int b = 0; b < z->buckets; b++) {
        z->works[b] = NULL;
        z->changed[b] = false;
    }
    ls__reducer_on_moved(d->reducer, moved, d);
    LS_TRY(ls__reducer_scatter(d->reducer));
    d->observer.writes = z->stage > 1 && d->on_host ? writes : NULL;
    d->observer.owned = owned;
    d->observer.updated = updated;
    d->observer.share = share;
    const bool parts = ls__reducer_domains(d->reducer) > 1;
    d->observer.divides = parts ? divides : NULL;
    d->observer.owners =
        parts ? ls__reducer_group(d->reducer) : ls__reducer_bucket_place(d->reducer, 0).group;
    return z->stage > 2 && ls_group_size(d->observer.owners) > 1 ? ls__unshard_begin(d) : LS_OK;
}

void ls__ddp_zero_drop(ls__ddp *d)
{
    ls__ddp_zero *z = &d->zero;
    ls__unshard_drop(d);
    if (z->works != NULL) {
        d->env->release(d->env, z->works, table_bytes(z));
    }
    *z = (ls__ddp_zero){0};
    d->observer.owners = NULL;
}

/* ---- gathering parameters -------------------------------------------------------------------- */

/* A parameter that is part of a larger tensor has stayed where it was: it goes to its place in the
 * region and, when the others have filled it in, back. */
static void copy_outside(const ls__ddp *d, bool back)
{
    for (int i = 0; i < d->param_count; i++) {
        if (!d->zero.changed[ls__reducer_bucket_of(d->reducer, i)] ||
            ls__ddp_values_has(&d->values, d->reducer, d->params[i].value, i)) {
            continue;
        }
        ls__pool *on = NULL;
        ls_tensor *value = d->params[i].value;
        const size_t bytes = (size_t)ls_numel(value) * ls_dtype_size(ls_dtype_of(value));
        void *place = ls__ddp_values_place(&d->values, d->reducer, i);
        void *own = ls__tensor_elements(value, &on);
        if (own != NULL && bytes > 0) {
            on->k->copy(back ? own : place, back ? place : own, bytes, on->stream);
        }
    }
}

/* All buckets are on their way together. On a device its stream waits for them, and not the
 * host. */
static ls_status gather(ls__ddp *d)
{
    ls__ddp_zero *z = &d->zero;
    ls_stream *stream = ls__ddp_stream(d);
    ls_status status = LS_OK;
    for (int b = 0; b < z->buckets && status == LS_OK; b++) {
        const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, b);
        char *memory = ls__ddp_values_bucket(&d->values, &place);
        status = z->changed[b] ? ls__ddp_values_gather(&(ls__values_gathering){.bucket = &place,
                                                                               .group = place.group,
                                                                               .from = memory,
                                                                               .to = memory,
                                                                               .stream = stream},
                                                       &z->works[b])
                               : LS_OK;
    }
    for (int b = 0; b < z->buckets; b++) {
        ls_work *work = z->works[b];
        z->works[b] = NULL;
        const ls_status ended =
            work != NULL && status == LS_OK ? ls_work_wait_stream(work, stream) : LS_OK;
        if (work != NULL && status < 0) {
            (void)ls_work_wait(work);
        }
        status = status < 0 ? status : ended;
    }
    return status;
}

ls_status ls__ddp_zero_share(ls__ddp *d)
{
    ls__ddp_zero *z = &d->zero;
    if (z->buckets == 0) {
        return LS_OK;
    }
    if (z->stage > 2) {
        ls__unshard_changed(d);
        return LS_OK;
    }
    if (d->on_host) {
        ls__tensor_wait(d->params[0].value);
    }
    copy_outside(d, false);
    const ls_status status = gather(d);
    if (status < 0) {
        return ls__ddp_give_up(d, status);
    }
    copy_outside(d, true);
    for (int b = 0; b < z->buckets; b++) {
        z->changed[b] = false;
    }
    return LS_OK;
}
