/* SPDX-License-Identifier: Apache-2.0 */
/* The step that makes a version; see step.h. */
#include "server/step.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "kernel/reduce/reduce.h"
#include "nn/clip_axes.h"
#include "reduce/plan.h"

/* ---- requests ------------------------------------------------------------------------------- */

size_t ls__server_head_bytes(const ls__ddp *d)
{
    return ls__round_up(sizeof(ls__server_head) + ((size_t)d->param_count + 7) / 8, LS__CACHE_LINE);
}

void ls__server_mark(const ls__ddp *d, ls__server_head *head)
{
    uint8_t *bits = (uint8_t *)(head + 1);
    memset(bits, 0, ((size_t)d->param_count + 7) / 8);
    for (int i = 0; i < d->param_count; i++) {
        if (*ls__reducer_present(d->reducer, i)) {
            bits[i / 8] = (uint8_t)(bits[i / 8] | 1u << (i % 8));
        }
    }
}

void ls__server_zero_absent(const ls__ddp *d, int bucket)
{
    for (int i = 0; i < d->param_count; i++) {
        const bool in = bucket < 0 || ls__reducer_bucket_of(d->reducer, i) == bucket;
        if (in && !*ls__reducer_present(d->reducer, i)) {
            const ls_tensor *value = d->params[i].value;
            ls__elements_zero(ls__reducer_grad(d->reducer, i),
                              (size_t)ls_numel(value) * ls_dtype_size(ls_dtype_of(value)));
        }
    }
}

static bool reaches_param(const ls__server_head *head, int param)
{
    return ((const uint8_t *)(head + 1))[param / 8] >> (param % 8) & 1;
}

ls_status ls__server_find_params(const ls__ddp *d, const ls_optim *optim, const char *caller,
                                 int *optim_param)
{
    for (int i = 0; i < d->param_count; i++) {
        int k = 0;
        while (k < optim->count && optim->params[k].value != d->params[i].value) {
            k++;
        }
        if (k == optim->count) {
            return ls__fail(LS_ERR_INVALID,
                            "%s: parameter %s is not one of the optimizer's; give one that was "
                            "made for the whole module",
                            caller, d->params[i].name);
        }
        optim_param[i] = k;
    }
    return LS_OK;
}

/* ---- a step --------------------------------------------------------------------------------- */

/* All pushes of a version are of one kind, and those of one step have one learning rate. */
static ls_status check_alike(const ls__server_push *first, const ls__server_push *other)
{
    if (other->head->weighted != first->head->weighted) {
        return ls__fail(LS_ERR_MISMATCH,
                        "server: the backward of worker %d in step %lld is a %s one, that of "
                        "worker %d a %s one; use ls_backward_weighted on all workers or on none",
                        first->worker, (long long)first->head->step,
                        first->head->weighted ? "weighted" : "plain", other->worker,
                        other->head->weighted ? "weighted" : "plain");
    }
    if (other->head->step == first->head->step &&
        memcmp(&other->head->lr, &first->head->lr, sizeof first->head->lr) != 0) {
        return ls__fail(LS_ERR_MISMATCH,
                        "server: the learning rate of worker %d in step %lld is %g, that of "
                        "worker %d is %g; set the same on all workers",
                        first->worker, (long long)first->head->step, first->head->lr, other->worker,
                        other->head->lr);
    }
    return LS_OK;
}

static void add_gradients(const ls__server_stepper *to, void *sum, int count, int64_t elements,
                          ls_dtype dtype, double divisor)
{
    ls__reduce(&(ls__reduce_args){.dst = &sum,
                                  .dst_count = 1,
                                  .src = to->operands,
                                  .src_count = count,
                                  .count = elements,
                                  .dtype = dtype,
                                  .op = LS_SUM,
                                  .divisor = divisor});
}

/* By what the sum is divided: the number of gradients, or the sum of their weights in the same
 * order. */
static double find_divisor(const ls__server_stepper *to, const ls__server_push *pushes, int count)
{
    double sum = 0.0;
    if (!pushes[0].head->weighted) {
        return (double)count;
    }
    for (int i = 0; i < count; i++) {
        to->operands[i] = &pushes[i].head->weight;
    }
    add_gradients(to, &sum, count, 1, LS_FLOAT64, 0.0);
    return sum > 0.0 ? sum : 1.0; /* no data: all gradients are zero */
}

static bool is_reached(const ls__server_push *pushes, int count, int param)
{
    bool any = false;
    for (int i = 0; i < count && !any; i++) {
        any = reaches_param(pushes[i].head, param);
    }
    return any;
}

/* With the kernels and in the order of ls_clip_grad_norm. A parameter that lies on several servers
 * is added in as many parts. */
static void find_squares(const ls__server_stepper *to, const ls__server_push *pushes, int count)
{
    const ls__kernels *k = to->optim->on->k;
    ls_stream *stream = to->optim->on->stream;
    for (int i = 0; i < to->params; i++) {
        to->squares[i] = 0.0;
    }
    for (int p = 0; p < to->layout->part_count; p++) {
        const ls__server_part *part = &to->layout->parts[p];
        const char *grad = to->gradient + part->at;
        double *out = &to->squares[part->param];
        if (part->shard != to->shard || !is_reached(pushes, count, part->param)) {
            continue;
        }
        if (to->optim->params[to->optim_param[part->param]].half) {
            k->sum_squares_bf16(out, (const void *)grad, part->count, stream);
        } else {
            k->sum_squares(out, (const void *)grad, part->count, stream);
        }
    }
}

void ls__server_mean(const ls__server_stepper *to, const ls__server_push *pushes, int count)
{
    const double divisor = find_divisor(to, pushes, count);
    for (int b = 0; b < to->layout->buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(to->layout, to->shard, b);
        for (int i = 0; i < count; i++) {
            to->operands[i] = pushes[i].gradient + slice->at;
        }
        add_gradients(to, to->gradient + slice->at, count,
                      (int64_t)(slice->bytes / ls_dtype_size(slice->dtype)), slice->dtype, divisor);
    }
    if (to->clip_norm > 0.0) {
        find_squares(to, pushes, count);
    }
}

static void scale_gradient(const ls__server_stepper *to, float factor)
{
    const ls__kernels *k = to->optim->on->k;
    ls_stream *stream = to->optim->on->stream;
    for (int b = 0; b < to->layout->buckets; b++) {
        const ls__server_slice *slice = ls__server_slice_of(to->layout, to->shard, b);
        const int64_t count = (int64_t)(slice->bytes / ls_dtype_size(slice->dtype));
        void *grad = to->gradient + slice->at;
        if (slice->dtype == LS_BFLOAT16) {
            k->axpby_bf16(grad, grad, count, factor, 0.0f, stream);
        } else {
            k->axpby(grad, grad, count, factor, 0.0f, stream);
        }
    }
}

/* As ls_clip_grad_norm. */
static ls_status limit_norm(const ls__server_stepper *to)
{
    double sum = 0.0;
    LS_TRY(to->add_squares(to->arg, to->shard, to->squares));
    for (int i = 0; i < to->params; i++) {
        sum += to->squares[i];
    }
    const double norm = sqrt(sum), factor = to->clip_norm / (norm + LS__CLIP_EPS);
    if (!isfinite(norm)) {
        return ls__fail(LS_ERR_INVALID,
                        "server: the norm of the gradients is %g, though each of them is finite; "
                        "lower the learning rate",
                        norm);
    }
    if (factor < 1.0) {
        scale_gradient(to, (float)factor);
    }
    return LS_OK;
}

/* Parameters that no worker reached are not stepped. */
static int64_t list_places(const ls__server_stepper *to, const ls__server_push *pushes, int count)
{
    int64_t places = 0;
    for (int p = 0; p < to->layout->part_count; p++) {
        const ls__server_part *part = &to->layout->parts[p];
        if (part->shard == to->shard && is_reached(pushes, count, part->param)) {
            to->places[places++] = (ls__optim_place){.param = to->optim_param[part->param],
                                                     .from = part->from,
                                                     .step = ++to->steps[p],
                                                     .count = part->count,
                                                     .value = to->parameters + part->at,
                                                     .grad = to->gradient + part->at};
        }
    }
    return places;
}

/* Where gradients were dropped, workers are at different steps: the rate is that of the foremost.
 */
static const ls__server_push *foremost_push(const ls__server_push *pushes, int count)
{
    const ls__server_push *found = &pushes[0];
    for (int i = 1; i < count; i++) {
        found = pushes[i].head->step > found->head->step ? &pushes[i] : found;
    }
    return found;
}

ls_status ls__server_step(const ls__server_stepper *to, const ls__server_push *pushes, int count)
{
    const ls__server_push *first = foremost_push(pushes, count);
    for (int i = 0; i < count; i++) {
        LS_TRY(check_alike(first, &pushes[i]));
    }
    ls__server_mean(to, pushes, count);
    LS_TRY(to->clip_norm > 0.0 ? limit_norm(to) : LS_OK);
    return ls__optim_step_at(to->optim, first->head->lr, to->places,
                             list_places(to, pushes, count));
}

void ls__server_steps_begin(const ls__server_stepper *to)
{
    for (int p = 0; p < to->layout->part_count; p++) {
        const ls__server_part *part = &to->layout->parts[p];
        to->steps[p] = to->optim->params[to->optim_param[part->param]].steps;
    }
}

void ls__server_steps_end(const ls__server_stepper *to)
{
    for (int p = 0; p < to->layout->part_count; p++) {
        const ls__server_part *part = &to->layout->parts[p];
        int64_t *steps = &to->optim->params[to->optim_param[part->param]].steps;
        *steps = part->shard == to->shard && to->steps[p] > *steps ? to->steps[p] : *steps;
    }
}
