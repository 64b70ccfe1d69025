/* SPDX-License-Identifier: Apache-2.0 */
/* ZeRO stage 3 (Rajbhandari et al., SC 2020, section 5.3): parameters are gathered when they are
 * read, and between two uses a rank keeps its part.
 *
 *               forward                  backward
 *     read      3 3  2 2  1  0  3        3  0  1 1  2
 *     gather    3 2  1    0              3 0  1  2          the next one while this one is used
 *     bucket 3  ████████████████         ██
 *     bucket 2     █████                            ██
 *     bucket 1          ███                  ████
 *     bucket 0             ███             ██
 *
 * A bucket is gathered in a block of memory (reduce/pool.c), in the layout of gradients (values.c);
 * a release copies this rank's part back to its place, for whoever has changed it, and leaves the
 * block to the next bucket. Between passes a parameter is found in its own memory, of which only
 * this rank's pages exist; ls_ddp_gather gathers there, so a program may keep the address until
 * ls_ddp_release. Storages follow, so tensors and graphs need not know. Code that reads elements
 * asks for them first (Note [Elements on other ranks] in tensor/fill.h).
 *
 * The first pass is one of data parallelism. It records the order in which parameters are read, and
 * which reads are the last. The order of rank 0 becomes that of all ranks. A bucket is released at
 * the border of a module or of a gradient rule, when a bucket is read whose first read comes after
 * its last read, and before the next one is gathered: at most two are whole where each layer reads
 * one.
 *
 * Note [Rounds]
 * Ranks must gather the same buckets in the same order, whatever their models read: some skip
 * layers, some have more micro-batches, some no data at all (ls_ddp_join). So a round gathers all
 * buckets in a fixed order, that of first reads, and every step has two of them: one in its first
 * forward pass, in the order of forward, and a second one when one of its buckets is needed again,
 * in the order of backward. Buckets of the first are released after their last read; those of the
 * second stay until the backward that synchronises has read them and has their gradients, so
 * further micro-batches send nothing, and a rank may read in another order than in the first step.
 * That backward begins and ends the gathers that a rank did not need, in all its rounds, before it
 * waits for gradients. Should a bucket be needed again after its release, a further round follows,
 * on all ranks alike. A pass that keeps the elements waits at its end for all gatherings, also
 * those of buckets that it did not read: a later one would overwrite a step or a load. A forward
 * pass without gradients makes both rounds, so that ranks which read other layers are in the same
 * round afterwards.
 *
 * Note [In the order of the stream]
 * In memory of a device that the host does not reach a rank has its parts alone (Note [Parts only]
 * in values.c), so buckets are always gathered in blocks, which the device's pool gives. Nothing
 * here waits for the device: a gathering begins after the kernels that were started before it, so
 * its block may be one that these still read, and the kernels after ls_work_wait_stream begin when
 * it has ended. */
#include "ddp/unshard.h"

#include <stdlib.h>
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/runtime.h"
#include "comm/api/control.h"
#include "ddp/wrapper.h"
#include "device/captured.h"
#include "kernel/reduce/reduce.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"

#define AHEAD 1  /* buckets that are gathered while one is used */
#define ROUNDS 2 /* of a step */

/* ---- one bucket ------------------------------------------------------------------------------ */

/* Where parameter i of a bucket lies whose elements are at `block`. */
static char *place_in(const ls__ddp *d, const ls__bucket_place *bucket, char *block, int i)
{
    return block != NULL ? block + (ls__reducer_place(d->reducer, i).offset - bucket->offset)
                         : ls__ddp_values_place(&d->values, d->reducer, i);
}

/* Hollow parameters lie in their own memory. */
static void set_hollow(const ls__ddp *d, int bucket, bool hollow)
{
    const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
    char *block = d->zero.unshard.buckets[bucket].block;
    for (int i = 0; i < d->param_count; i++) {
        if (ls__reducer_bucket_of(d->reducer, i) == bucket) {
            d->zero.unshard.params[i].keeper.hollow = hollow;
            ls__param_place_value(d->params[i].value,
                                  place_in(d, &place, hollow ? NULL : block, i));
        }
    }
}

/* False: it cannot be read. It asks no keeper: the bucket is whole. */
static bool hash_param(ls__ddp *d, int i)
{
    ls__pool *on = NULL;
    ls__host_view view;
    ls_tensor *value = d->params[i].value;
    void *at = ls__tensor_place(value, &on);
    const size_t bytes = (size_t)ls_numel(value) * ls_dtype_size(ls_dtype_of(value));
    if (at == NULL || ls__host_view_open(on, at, bytes, &view) < 0) {
        return false;
    }
    d->hashes[i] = ls__hash_bytes(0, view.data, bytes);
    ls__host_view_close(&view, false);
    return true;
}

/* The ranks compare gathered parameters as they compare replicas without zero. */
static void look_at(ls__ddp *d, int bucket)
{
    bool seen = true;
    for (int i = 0; i < d->param_count; i++) {
        seen = seen && (ls__reducer_bucket_of(d->reducer, i) != bucket || hash_param(d, i));
    }
    d->zero.unshard.buckets[bucket].seen = seen;
}

bool ls__unshard_look(ls__ddp *d)
{
    bool all = true;
    for (int b = 0; b < d->zero.unshard.count; b++) {
        const ls__unshard_bucket *bucket = &d->zero.unshard.buckets[b];
        if (bucket->whole) { /* the program may have changed it since */
            look_at(d, b);
        }
        all = all && bucket->seen;
    }
    return all;
}

static void forget_looks(ls__unshard *u)
{
    for (int b = 0; u->buckets != NULL && b < u->count; b++) {
        u->buckets[b].seen = false;
    }
}

/* This rank's part of a bucket, from its own memory to the block, or back. */
static void copy_own(const ls__ddp *d, int bucket, bool back)
{
    const ls__unshard *u = &d->zero.unshard;
    const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
    const size_t part = place.bytes / (size_t)ls_group_size(u->group);
    const size_t at = part * (size_t)ls_group_rank(u->group);
    char *own = ls__ddp_values_bucket(&d->values, &place) + at;
    char *in_block = u->buckets[bucket].block + at;
    char *to = back ? own : in_block;
    const char *from = back ? in_block : own;
    if (u->on != NULL) {
        u->on->k->copy(to, from, part, u->on->stream);
    } else {
        ls__elements_copy(to, from, part);
    }
}

static ls_stream *stream_of(const ls__unshard *u)
{
    return u->on != NULL ? u->on->stream : NULL;
}

/* The host has its parameters in memory that kernels may still read. */
static void wait_for_kernels(const ls__ddp *d)
{
    if (d->zero.unshard.on == NULL) {
        ls__tensor_wait(d->params[0].value);
    }
}

/* None in memory of the host where the reducer has no pool. */
static ls_status take_block(ls__ddp *d, int bucket)
{
    ls__unshard *u = &d->zero.unshard;
    ls__unshard_bucket *b = &u->buckets[bucket];
    if (u->on == NULL) {
        return ls__reducer_block_take(d->reducer, bucket, &b->block);
    }
    b->lent = ls__storage_new(u->on, ls__reducer_bucket_place(d->reducer, bucket).bytes);
    b->block = b->lent != NULL ? b->lent->data : NULL;
    return b->lent != NULL ? LS_OK : ls__self.status;
}

static void give_block(ls__ddp *d, int bucket)
{
    ls__unshard_bucket *b = &d->zero.unshard.buckets[bucket];
    if (b->lent != NULL) {
        ls__storage_unref(b->lent);
    } else {
        ls__reducer_block_give(d->reducer, bucket, b->block);
    }
    b->lent = NULL;
    b->block = NULL;
}

static ls_status wait_for(ls__ddp *d, int bucket)
{
    ls__unshard_bucket *b = &d->zero.unshard.buckets[bucket];
    ls_work *work = b->work;
    if (work != NULL) {
        b->work = NULL;
        LS_TRY(ls_work_wait_stream(work, stream_of(&d->zero.unshard)));
        if (b->block != NULL && !b->whole && d->optim != NULL) { /* it may have stepped meanwhile */
            copy_own(d, bucket, false);
        }
        b->whole = true;
        set_hollow(d, bucket, false);
        if (!b->seen && ls__ddp_compares(d)) {
            look_at(d, bucket);
        }
    }
    return LS_OK;
}

/* One that is whole already is gathered where it is. */
static ls_status start(ls__ddp *d, int bucket)
{
    ls__unshard *u = &d->zero.unshard;
    ls__unshard_bucket *b = &u->buckets[bucket];
    const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
    LS_TRY(wait_for(d, bucket)); /* of the round before */
    char *own = ls__ddp_values_bucket(&d->values, &place);
    const char *from = b->whole && b->block != NULL ? b->block : own;
    if (!b->whole && b->block == NULL) {
        LS_TRY(take_block(d, bucket));
    }
    return ls__ddp_values_gather(&(ls__values_gathering){.bucket = &place,
                                                         .group = u->group,
                                                         .from = from,
                                                         .to = b->block != NULL ? b->block : own,
                                                         .stream = stream_of(u)},
                                 &b->work);
}

/* The elements of other ranks go; this rank's may have been changed. */
static ls_status release(ls__ddp *d, int bucket)
{
    ls__unshard *u = &d->zero.unshard;
    ls__unshard_bucket *b = &u->buckets[bucket];
    LS_TRY(wait_for(d, bucket));
    if (b->whole && b->block != NULL) {
        copy_own(d, bucket, true);
        give_block(d, bucket);
    } else if (b->whole) {
        const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
        ls__ddp_values_discard(&d->values, &place, u->group);
    }
    if (b->whole) {
        b->whole = false;
        set_hollow(d, bucket, true);
    }
    return LS_OK;
}

static ls_status release_all(ls__ddp *d)
{
    wait_for_kernels(d);
    for (int b = 0; b < d->zero.unshard.count; b++) {
        LS_TRY(release(d, b));
    }
    return LS_OK;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static int way_of(const ls__unshard *u)
{
    return u->round > 1 ? LS__UNSHARD_BACKWARD : LS__UNSHARD_FORWARD;
}

/* Begins all gatherings of the round before place `limit`. */
static ls_status start_to(ls__ddp *d, int limit)
{
    ls__unshard *u = &d->zero.unshard;
    limit = limit < u->count ? limit : u->count;
    while (u->round > 0 && u->started < limit) {
        LS_TRY(start(d, u->order[way_of(u)][u->started++]));
    }
    return LS_OK;
}

/* Whether buckets that this rank does not read now stay for a later pass. */
static bool stay(const ls__unshard *u)
{
    return u->pinned || (u->round >= ROUNDS && !u->ends);
}

/* Begins and ends what is left of the round. */
static ls_status finish_round(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    for (int i = u->started; u->round > 0 && i < u->count; i++) {
        const int bucket = u->order[way_of(u)][i];
        const bool keep = u->buckets[bucket].whole || stay(u);
        LS_TRY(start_to(d, i + 1 + AHEAD));
        LS_TRY(keep ? wait_for(d, bucket) : release(d, bucket));
    }
    return LS_OK;
}

static ls_status next_round(ls__ddp *d)
{
    LS_TRY(finish_round(d));
    d->zero.unshard.round++;
    d->zero.unshard.started = 0;
    return LS_OK;
}

/* ---- reads ----------------------------------------------------------------------------------- */

static void note(ls__unshard *u, ls__unshard_param *p)
{
    if (u->inside && p->first[u->way] < 0) {
        p->first[u->way] = u->read[u->way]++;
        p->pass[u->way] = u->passes;
    }
    if (u->inside && p->pass[u->way] == u->passes) { /* a micro-batch that follows begins anew */
        p->last[u->way] = u->read[u->way] - 1;
    }
}

/* In the last round of a step this rank cannot gather a released bucket alone, and its order of
 * reads may differ from that of the first step. Backward has passed the last rule that reads a
 * parameter when its gradient is final. It has no such moment for a parameter that it does not
 * reach, such as a frozen one. */
static bool may_go(const ls__ddp *d, int bucket)
{
    const ls__unshard *u = &d->zero.unshard;
    return u->round < ROUNDS || (u->buckets[bucket].read && u->buckets[bucket].reached &&
                                 ls__reducer_bucket_is_ready(d->reducer, bucket));
}

/* Releases the buckets that were read before the last border and are not read after it, as far as
 * the read under way tells. */
static ls_status release_passed(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const bool crossed = u->within != ls__self.crossings;
    u->within = ls__self.crossings;
    if (!crossed || u->round == 0 || stay(u)) {
        return LS_OK;
    }
    wait_for_kernels(d);
    for (int b = 0; b < u->count; b++) {
        if (u->buckets[b].whole && u->buckets[b].last[u->way] < u->at && may_go(d, b)) {
            LS_TRY(release(d, b));
        }
    }
    return LS_OK;
}

/* Note [Rounds]. */
static ls_status bring(ls__ddp *d, int bucket)
{
    ls__unshard *u = &d->zero.unshard;
    ls__unshard_bucket *b = &u->buckets[bucket];
    u->at = b->place[u->way] > u->at ? b->place[u->way] : u->at;
    LS_TRY(release_passed(d));
    if (!b->whole && b->work == NULL && (u->round == 0 || b->place[way_of(u)] < u->started)) {
        LS_TRY(next_round(d));
    }
    LS_TRY(start_to(d, b->place[way_of(u)] + 1 + AHEAD));
    LS_TRY(wait_for(d, bucket));
    b->read = true;
    return LS_OK;
}

static ls_status refuse(const ls__ddp *d, const ls__unshard_param *p)
{
    const ls_param *param = &d->params[p->index];
    return ls__fail(LS_ERR_STATE,
                    "parameter %s is divided among the ranks (zero 3), and this one has elements "
                    "%lld to %lld of %lld; read it in a forward pass of the ddp, or call "
                    "ls_ddp_gather on all ranks before",
                    param->name, (long long)p->keeper.from,
                    (long long)(p->keeper.from + p->keeper.count),
                    (long long)ls_numel(param->value));
}

/* Peers learn of it at once. */
static ls_status give_up(ls__ddp *d, ls_status status)
{
    char message[LS__MESSAGE_MAX];
    memcpy(message, ls_error_message(), sizeof message);
    ls__reducer_abort(d->reducer, status, message);
    return ls__fail_again(status, message);
}

static ls_status on_read(ls__keeper *keeper)
{
    ls__unshard_param *p = LS__LIST_ITEM(keeper, ls__unshard_param, keeper);
    ls__ddp *d = p->ddp;
    ls__unshard *u = &d->zero.unshard;
    if (u->buckets == NULL) {
        note(u, p);
        return LS_OK;
    }
    ls__captured_refuse("parameters of ls_ddp_new are gathered when they are read (zero 3)");
    const int bucket = ls__reducer_bucket_of(d->reducer, p->index);
    if (!u->inside) {
        return u->buckets[bucket].whole ? LS_OK : refuse(d, p);
    }
    const ls_status status = bring(d, bucket);
    return status < 0 ? give_up(d, status) : LS_OK;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static void enter(ls__unshard *u, int way, bool ends)
{
    u->inside = u->params != NULL;
    u->way = way;
    u->ends = ends;
    u->passes++;
    u->at = -1;
    u->within = ls__self.crossings;
    for (int b = 0; u->buckets != NULL && b < u->count; b++) {
        u->buckets[b].read = false;
    }
}

/* Makes the rounds of the step that are left. */
static ls_status end_rounds(ls__ddp *d)
{
    while (d->zero.unshard.round < ROUNDS) {
        LS_TRY(next_round(d));
        LS_TRY(finish_round(d));
    }
    return LS_OK;
}

/* Nothing may be gathered after the pass: it would overwrite a step or a load. */
static ls_status keep_or_release(ls__ddp *d)
{
    if (!stay(&d->zero.unshard)) {
        return release_all(d);
    }
    for (int b = 0; b < d->zero.unshard.count; b++) {
        LS_TRY(wait_for(d, b));
    }
    return LS_OK;
}

static ls_status end_forward(ls__ddp *d)
{
    const ls__unshard *u = &d->zero.unshard;
    LS_TRY(finish_round(d));
    LS_TRY(ls__self.no_grad && !u->pinned && u->round > 0 ? end_rounds(d) : LS_OK);
    return keep_or_release(d);
}

bool ls__unshard_forward_begin(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const bool own = u->params != NULL && !u->inside;
    if (own) {
        enter(u, LS__UNSHARD_FORWARD, false);
    }
    return own;
}

ls_status ls__unshard_forward_end(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const ls_status status = u->buckets != NULL ? end_forward(d) : LS_OK;
    u->inside = false;
    return status < 0 ? give_up(d, status) : LS_OK;
}

void ls__unshard_backward_begin(ls__ddp *d, bool ends)
{
    ls__unshard *u = &d->zero.unshard;
    enter(u, LS__UNSHARD_BACKWARD, ends);
    for (int b = 0; u->buckets != NULL && b < u->count; b++) {
        u->buckets[b].reached = ls__reducer_bucket_is_reached(d->reducer, b);
    }
}

/* The rounds that a rank did not need are those that others do. */
static ls_status end_step(ls__ddp *d)
{
    LS_TRY(end_rounds(d));
    LS_TRY(release_all(d));
    d->zero.unshard.round = 0;
    return LS_OK;
}

static ls_status end_backward(ls__ddp *d)
{
    const ls__unshard *u = &d->zero.unshard;
    LS_TRY(finish_round(d));
    return u->ends && !u->pinned ? end_step(d) : stay(u) ? keep_or_release(d) : LS_OK;
}

ls_status ls__unshard_backward_end(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const ls_status status = u->buckets != NULL ? end_backward(d) : LS_OK;
    if (u->ends) {
        forget_looks(u);
    }
    u->inside = false;
    return status;
}

/* Nothing lies in a block any more. */
static void leave_blocks(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    for (int b = 0; u->buckets != NULL && b < u->count; b++) {
        const bool begun = u->buckets[b].work != NULL;
        (void)(begun ? ls_work_wait(u->buckets[b].work) : LS_OK);
        u->buckets[b].work = NULL;
        if (u->buckets[b].block != NULL && u->buckets[b].whole) {
            (void)release(d, b);
        } else if (u->buckets[b].block != NULL) { /* its gathering has not ended */
            give_block(d, b);
        }
    }
}

void ls__unshard_abort(ls__ddp *d)
{
    d->zero.unshard.inside = false;
}

void ls__unshard_changed(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    u->pinned = false;
    u->round = 0;
    forget_looks(u);
    (void)release_all(d); /* rounds end with their pass: nothing is waited for */
}

/* ---- whole on demand ------------------------------------------------------------------------- */

/* All ranks gather all buckets in place, also those that are whole on some. */
static ls_status gather_all(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    LS_TRY(release_all(d));
    for (int b = 0; b < u->count; b++) {
        const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, b);
        char *own = ls__ddp_values_bucket(&d->values, &place);
        LS_TRY(u->on != NULL ? take_block(d, b) : LS_OK);
        LS_TRY(ls__ddp_values_gather(
            &(ls__values_gathering){.bucket = &place,
                                    .group = u->group,
                                    .from = own,
                                    .to = u->buckets[b].block != NULL ? u->buckets[b].block : own,
                                    .stream = stream_of(u)},
            &u->buckets[b].work));
    }
    for (int b = 0; b < u->count; b++) {
        LS_TRY(wait_for(d, b));
    }
    return LS_OK;
}

ls_status ls__unshard_pin(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    if (u->buckets == NULL || u->pinned) {
        return LS_OK;
    }
    if (u->inside) {
        return ls__fail(LS_ERR_STATE, "ls_ddp_gather: a forward or a backward of the ddp is under "
                                      "way; call it before or after");
    }
    ls_status status = u->round > 0 ? end_rounds(d) : LS_OK;
    status = status < 0 ? status : gather_all(d);
    u->round = 0;
    u->pinned = status == LS_OK;
    return status < 0 ? give_up(d, status) : LS_OK;
}

ls_status ls__unshard_unpin(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const bool pinned = u->pinned;
    u->pinned = false;
    forget_looks(u); /* the program may have changed parameters */
    return pinned ? release_all(d) : LS_OK;
}

/* ---- the tables ------------------------------------------------------------------------------ */

ls_status ls__unshard_open(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    u->params = d->env->allocate(d->env, (size_t)d->param_count * sizeof *u->params);
    if (u->params == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for %d parameters", d->param_count);
    }
    for (int i = 0; i < d->param_count; i++) {
        ls__unshard_param *p = &u->params[i];
        *p = (ls__unshard_param){
            .keeper.read = on_read, .ddp = d, .index = i, .first = {-1, -1}, .last = {-1, -1}};
        const ls_status status = ls__fill_keep((ls_tensor *)d->params[i].value, &p->keeper);
        if (status == LS_ERR_UNSUPPORTED) {
            return ls__fail(status,
                            "zero 3: parameter %s is part of a larger tensor, whose elements stay "
                            "where they are; give it memory of its own (ls_clone), or take zero 2",
                            d->params[i].name);
        }
        LS_TRY(status);
    }
    return LS_OK;
}

/* Rank 0's order, or that of the first rank that had data. `firsts` and `lasts`: [param_count]. */
static ls_status agree(ls__ddp *d, int way, int *firsts, int *lasts)
{
    const ls__unshard *u = &d->zero.unshard;
    ls_group *all = ls__reducer_group(d->reducer);
    const int root = ls__reducer_first_live(d->reducer), n = d->param_count;
    for (int i = 0; i < n; i++) {
        firsts[i] = u->params[i].first[way];
        lasts[i] = u->params[i].last[way];
    }
    LS_TRY(ls__control_broadcast(all, firsts, n, LS_INT32, root, NULL));
    return ls__control_broadcast(all, lasts, n, LS_INT32, root, NULL);
}

/* A bucket's first read and its last one. */
typedef struct reads {
    int first, last, bucket;
} reads;

/* Buckets that were not read are the last ones. */
static int by_first(const void *a, const void *b)
{
    const reads *x = a, *y = b;
    const unsigned first_x = (unsigned)x->first, first_y = (unsigned)y->first;
    return first_x != first_y ? (first_x > first_y ? 1 : -1)
                              : (x->bucket > y->bucket) - (x->bucket < y->bucket);
}

static void put_in_order(ls__ddp *d, int way, const int *firsts, const int *lasts, reads *sorted)
{
    ls__unshard *u = &d->zero.unshard;
    for (int b = 0; b < u->count; b++) {
        sorted[b] = (reads){-1, -1, b};
    }
    for (int i = 0; i < d->param_count; i++) {
        reads *r = &sorted[ls__reducer_bucket_of(d->reducer, i)];
        r->first = (unsigned)firsts[i] < (unsigned)r->first ? firsts[i] : r->first;
        r->last = lasts[i] > r->last ? lasts[i] : r->last;
    }
    qsort(sorted, (size_t)u->count, sizeof *sorted, by_first);
    for (int i = 0; i < u->count; i++) {
        ls__unshard_bucket *b = &u->buckets[sorted[i].bucket];
        u->order[way][i] = sorted[i].bucket;
        b->place[way] = b->last[way] = i;
        while (b->last[way] + 1 < u->count && sorted[b->last[way] + 1].first >= 0 &&
               sorted[b->last[way] + 1].first <= sorted[i].last) {
            b->last[way]++;
        }
    }
}

static ls_status make_tables(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    const size_t n = (size_t)u->count;
    u->bytes = n * (sizeof *u->buckets + LS__UNSHARD_WAYS * sizeof(int));
    u->buckets = d->env->allocate(d->env, u->bytes);
    const size_t scratch = 2 * (size_t)d->param_count * sizeof(int) + n * sizeof(reads);
    reads *sorted = d->env->allocate(d->env, scratch);
    if (u->buckets == NULL || sorted == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for a table of buckets");
    }
    int *firsts = (int *)(void *)(sorted + n), *lasts = firsts + d->param_count;
    ls_status status = LS_OK;
    for (int b = 0; b < u->count; b++) {
        u->buckets[b] = (ls__unshard_bucket){.whole = true};
    }
    for (int way = 0; way < LS__UNSHARD_WAYS && status == LS_OK; way++) {
        u->order[way] = (int *)(void *)(u->buckets + n) + (size_t)way * n;
        status = agree(d, way, firsts, lasts);
        if (status == LS_OK) {
            put_in_order(d, way, firsts, lasts, sorted);
        }
    }
    d->env->release(d->env, sorted, scratch);
    return status;
}

/* Where the parameters of a bucket are to lie from now on; NULL: each in memory of its own. */
static ls_status bind_params(ls__ddp *d, int bucket, char *block)
{
    const ls__bucket_place place = ls__reducer_bucket_place(d->reducer, bucket);
    ls_status status = LS_OK;
    for (int i = 0; i < d->param_count; i++) {
        if (ls__reducer_bucket_of(d->reducer, i) == bucket) {
            const ls_status bound = ls__param_bind_value(
                d->params[i].value, block != NULL ? place_in(d, &place, block, i) : NULL);
            status = status < 0 ? status : bound;
        }
    }
    return status;
}

/* Of each bucket this rank's part goes to memory of the device's own, by way of a block. */
static ls_status divide(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    LS_TRY(ls__ddp_values_divide(&d->values, d->env, d->reducer, u->group));
    (void)ls__tensor_place(d->params[0].value, &u->on);
    for (int b = 0; b < u->count; b++) {
        LS_TRY(take_block(d, b));
        LS_TRY(bind_params(d, b, u->buckets[b].block));
        LS_TRY(release(d, b));
    }
    return LS_OK;
}

/* And back: elements that were not gathered are undefined then. */
static void undivide(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    for (int i = 0; u->buckets != NULL && i < u->count; i++) {
        ls__unshard_bucket *b = &u->buckets[i];
        (void)(b->work != NULL ? ls_work_wait(b->work) : LS_OK);
        b->work = NULL;
        if (!b->whole && (b->block != NULL || take_block(d, i) == LS_OK)) {
            copy_own(d, i, false);
            b->whole = true;
            set_hollow(d, i, false);
        }
        if (b->whole) {
            (void)bind_params(d, i, NULL);
        }
        if (b->block != NULL) {
            give_block(d, i);
        }
    }
}

ls_status ls__unshard_begin(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    u->count = ls__reducer_bucket_count(d->reducer);
    LS_TRY(ls__reducer_second_group(d->reducer, &u->group));
    LS_TRY(make_tables(d));
    for (int i = 0; i < d->param_count; i++) {
        ls__keeper *keeper = &u->params[i].keeper;
        ls__reducer_own(d->reducer, i, &keeper->from, &keeper->count);
    }
    return d->on_host ? release_all(d) : divide(d);
}

void ls__unshard_close(ls__ddp *d)
{
    const ls__unshard *u = &d->zero.unshard;
    if (u->on != NULL) {
        undivide(d);
    } else {
        leave_blocks(d);
    }
    for (int i = 0; u->params != NULL && i < d->param_count; i++) {
        (void)ls__fill_keep((ls_tensor *)d->params[i].value, NULL);
    }
}

void ls__unshard_drop(ls__ddp *d)
{
    ls__unshard *u = &d->zero.unshard;
    if (u->buckets != NULL) {
        d->env->release(d->env, u->buckets, u->bytes);
    }
    if (u->params != NULL) {
        d->env->release(d->env, u->params, (size_t)d->param_count * sizeof *u->params);
    }
    *u = (ls__unshard){0};
}
