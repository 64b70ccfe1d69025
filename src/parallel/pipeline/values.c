/* SPDX-License-Identifier: Apache-2.0 */
/* Values and their gradients between stages; Note [Values] in internal.h. */
#include <string.h>

#include "autograd/param.h"
#include "base/assert.h"
#include "base/error.h"
#include "comm/p2p/p2p.h"
#include "ddp/axes.h"
#include "ddp/wrapper.h"
#include "kernel/reduce/reduce.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"
#include "tensor/across.h"
#include "tensor/op.h"
#include "tensor/placement.h"

enum { HEAD, ELEMENTS, OTHERS, GRADIENT, KINDS };

/* One tag for each value that a stage takes, micro-batch and kind. Schedules have at most 2^20
 * stages times micro-batches, and as many times ranks, so it is below 2^30. */
static int tag_of(const ls_pipeline *p, const ls__stage_edge *e, int m, int kind)
{
    return ((e->to * LS_CALL_TENSORS_MAX + e->in) * p->slots + m) * KINDS + kind;
}

static int peer_of(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e, int m)
{
    return ls__stage_edge_peer(p, e, s->slot[m].number);
}

static ls__in_flight_value *leaving_value(const ls__stage *s, int m, int i)
{
    return &s->slot[m].leaving[i];
}

static ls__in_flight_value *arriving_value(const ls__stage *s, int m, int i)
{
    return &s->slot[m].arriving[i];
}

/* The elements as they are sent; *head is filled in. */
static ls_tensor *elements_of(ls_tensor *value, ls__value_head *head)
{
    bool channels_last;
    ls_tensor *plain = ls__part_elements(value, &channels_last);
    const ls_shape shape = ls_shape_of(plain);
    *head = (ls__value_head){.dtype = (int32_t)ls_dtype_of(plain),
                             .ndim = shape.ndim,
                             .requires_grad = ls_requires_grad(value),
                             .known = true,
                             .channels_last = channels_last,
                             .place = ls__param_placed(channels_last ? plain : value)};
    memcpy(head->dim, shape.dim, (size_t)shape.ndim * sizeof head->dim[0]);
    return plain;
}

static bool is_same(const ls__value_head *a, const ls__value_head *b)
{
    return a->known && b->known && a->linked == b->linked && a->dtype == b->dtype &&
           a->ndim == b->ndim && memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

static ls_tensor *empty_like(const ls__value_head *head)
{
    ls_shape shape = {.ndim = head->ndim};
    memcpy(shape.dim, head->dim, (size_t)head->ndim * sizeof head->dim[0]);
    return head->linked
               ? ls__tensor_on(ls__tensors_get("pipeline")->made, shape, (ls_dtype)head->dtype)
               : ls__tensor_here(shape, (ls_dtype)head->dtype);
}

/* Whether the elements lie where a receive of the host is posted before the head has come. */
static bool is_expected(const ls__value_head *head)
{
    return head->known && !head->linked;
}

static size_t bytes_of(const ls__value_head *head)
{
    size_t bytes = ls_dtype_size((ls_dtype)head->dtype);
    for (int i = 0; i < head->ndim; i++) {
        bytes *= (size_t)head->dim[i];
    }
    return bytes;
}

static ls_collective_options options_with_tag(const char *tag)
{
    ls_collective_options options = ls_collective_defaults();
    options.tag = tag;
    return options;
}

/* ---- in memory of a device ---------------------------------------------------------------- */

static ls__stage_link_message link_message(int peer, int tag, const ls_tensor *value,
                                           const char *what)
{
    return (ls__stage_link_message){.peer = peer,
                                    .tag = tag,
                                    .count = ls_numel(value),
                                    .dtype = ls_dtype_of(value),
                                    .what = what};
}

static ls_status send_linked(const ls_pipeline *p, ls__stage_link_message message, ls_tensor *value,
                             ls_work **work)
{
    ls__pool *on = NULL;
    const void *elements = ls__tensor_elements(value, &on);
    message.on = on;
    return elements != NULL ? ls__stage_link_send(p, &message, elements, work) : ls__self.status;
}

/* The tensor is new, so its memory is free when its stream has come this far. */
static ls_status receive_linked(const ls_pipeline *p, ls__stage_link_message message,
                                ls_tensor *into, ls_work **work)
{
    ls__pool *on = NULL;
    void *elements = ls__tensor_elements(into, &on);
    message.on = on;
    return elements != NULL ? ls__stage_link_receive(p, &message, elements, work) : ls__self.status;
}

/* The stream of the tensor's device waits for the message, or else the host. */
static ls_status wait_for_linked(const ls_tensor *into, ls_work **work)
{
    ls__pool *on = NULL;
    ls_work *waiting = *work;
    *work = NULL;
    (void)ls__tensor_place((ls_tensor *)(uintptr_t)into, &on);
    return waiting != NULL ? ls_work_wait_stream(waiting, on != NULL ? on->stream : NULL) : LS_OK;
}

/* ---- values ------------------------------------------------------------------------------- */

static ls_status post_receive(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e,
                              int m, int kind, ls_tensor *into, ls_work **work)
{
    const ls_collective_options options = options_with_tag("activations");
    LS_TRY(ls_tensor_status(into));
    return ls_recv_up_to(p->group, ls_data(into), ls_numel(into), ls_dtype_of(into),
                         peer_of(p, s, e, m), tag_of(p, e, m, kind), &options, work);
}

ls_status ls__values_expect(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = options_with_tag("shapes");
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__stage_edge *e = &s->arriving[i];
        ls__in_flight_value *v = arriving_value(s, m, i);
        if (e->own || v->posted) {
            continue;
        }
        v->posted = true;
        v->before = v->head;
        LS_TRY(ls_recv(p->group, &v->head, (int64_t)sizeof v->head, LS_UINT8, peer_of(p, s, e, m),
                       tag_of(p, e, m, HEAD), &options, &v->work[HEAD]));
        if (is_expected(&v->before)) {
            v->value = empty_like(&v->before);
            LS_TRY(post_receive(p, s, e, m, ELEMENTS, v->value, &v->work[ELEMENTS]));
        }
    }
    return LS_OK;
}

static ls_status wait_for_work(ls_work **work)
{
    ls_work *waiting = *work;
    *work = NULL;
    return waiting != NULL ? ls_work_wait(waiting) : LS_OK;
}

/* The elements are in v->value when the shape is as in the step before. */
static ls_status finish_value(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e,
                              int m, ls__in_flight_value *v)
{
    LS_ASSERT(v->posted);
    LS_TRY(wait_for_work(&v->work[HEAD]));
    LS_TRY(wait_for_work(&v->work[ELEMENTS]));
    if (v->head.linked) {
        v->value = empty_like(&v->head);
        LS_TRY(ls_tensor_status(v->value));
        LS_TRY(receive_linked(
            p, link_message(peer_of(p, s, e, m), tag_of(p, e, m, OTHERS), v->value, "activations"),
            v->value, &v->work[OTHERS]));
        LS_TRY(wait_for_linked(v->value, &v->work[OTHERS]));
    } else if (!is_same(&v->head, &v->before)) {
        v->value = empty_like(&v->head);
        LS_TRY(post_receive(p, s, e, m, OTHERS, v->value, &v->work[OTHERS]));
        LS_TRY(wait_for_work(&v->work[OTHERS]));
    }
    v->value = ls__tensor_to_made(v->value);
    return LS_OK;
}

/* The place of the value in the stage that makes it, which is on this rank. */
static ls_tensor *handed_over(ls_pipeline *p, const ls__stage_edge *e, int m)
{
    return ls__pipeline_stage(p, e->from)->slot[m].out[e->out];
}

/* The axes along which a value varies are those of batches: only a wrapper divides by their ranks,
 * and a stage without parameters has none. */
static uint32_t place_of_leaf(const ls_pipeline *p, uint32_t sent)
{
    for (int a = 0; ls__ddp_of(p->wrapped) == NULL && a < LS__AXES_MAX; a++) {
        sent = ls__place_at(sent, a) == LS__PLACED_VARYING ? ls__place_with(sent, a, 0) : sent;
    }
    return sent;
}

/* The value as it is on the axes of the mesh: a leaf, whose gradient goes back. */
static ls_tensor *leaf_of(const ls_pipeline *p, const ls__in_flight_value *v)
{
    ls_tensor *leaf = ls_set_requires_grad(ls_detach(v->value), v->head.requires_grad);
    ls__record *record = ls__record_sound(ls__tensors_get("pipeline"), leaf, "pipeline");
    if (record != NULL) {
        record->place = place_of_leaf(p, v->head.place);
    }
    return leaf;
}

/* As a wrapper's forward does with what it is given; evaluation has no wrapper. */
static ls_status mark_inputs(const ls_pipeline *p, const ls__slot *slot, int m, int count)
{
    ls__ddp *d = m < p->set.micro_batches ? ls__ddp_of(p->wrapped) : NULL;
    if (d == NULL || count == 0) {
        return LS_OK;
    }
    LS_TRY(ls__ddp_axes_check_inputs(d, slot->in, count));
    ls__ddp_axes_mark(d, slot->in, count);
    return LS_OK;
}

/* Every value becomes a leaf, whose gradient goes back to the stage that made it. */
ls_status ls__values_take(ls_pipeline *p, ls__stage *s, int m)
{
    ls__slot *slot = &s->slot[m];
    int given = 0;
    LS_TRY(ls__values_expect(p, s, m));
    for (; given < s->edges.in_count && s->edges.in[given] < 0; given++) {
        slot->in[given] = p->micro[slot->number].inputs[LS_PART_INPUT(s->edges.in[given])];
    }
    LS_TRY(mark_inputs(p, slot, m, given));
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__stage_edge *e = &s->arriving[i];
        ls__in_flight_value *v = arriving_value(s, m, i);
        if (e->own) {
            v->value = elements_of(handed_over(p, e, m), &v->head);
            ls__pipeline_stage(p, e->from)->slot[m].handed_over++;
        } else {
            LS_TRY(finish_value(p, s, e, m, v));
        }
        slot->leaf[i] = leaf_of(p, v);
        slot->in[e->in] = ls__part_value(slot->leaf[i], v->head.channels_last);
        LS_TRY(ls_tensor_status(slot->in[e->in]));
    }
    return LS_OK;
}

static ls_status send_elements(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e,
                               int m, int kind, ls_tensor *value, int64_t count, ls_dtype dtype,
                               ls_work **work)
{
    const ls_collective_options options = options_with_tag("activations");
    value = ls__tensor_to_here(value); /* a copy lives as long as the value, in the slot's scope */
    LS_TRY(ls_tensor_status(value));
    return ls_send(p->group, ls_data(value), count, dtype, peer_of(p, s, e, m),
                   tag_of(p, e, m, kind), &options, work);
}

/* If the receiver does not take them where it has posted a receive, an empty message goes there. */
static ls_status send_others(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e,
                             int m, ls__in_flight_value *v, ls_tensor *value)
{
    if (is_expected(&v->before)) {
        LS_TRY(send_elements(p, s, e, m, ELEMENTS, value, 0, (ls_dtype)v->before.dtype,
                             &v->work[ELEMENTS]));
    }
    return v->head.linked ? send_linked(p,
                                        link_message(peer_of(p, s, e, m), tag_of(p, e, m, OTHERS),
                                                     value, "activations"),
                                        value, &v->work[OTHERS])
                          : send_elements(p, s, e, m, OTHERS, value, ls_numel(value),
                                          ls_dtype_of(value), &v->work[OTHERS]);
}

/* The elements go where the receiver expects them, if their shape is that of the step before. */
static ls_status send_value(const ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e,
                            int m, ls__in_flight_value *v, ls_tensor *value)
{
    const ls_collective_options options = options_with_tag("shapes");
    LS_ASSERT(v->work[HEAD] == NULL); /* ls__values_sent has waited for the slot's last one */
    v->before = v->head;
    value = elements_of(value, &v->head);
    v->head.linked = ls__stage_link_carries(p, peer_of(p, s, e, m), value);
    LS_TRY(ls_send(p->group, &v->head, (int64_t)sizeof v->head, LS_UINT8, peer_of(p, s, e, m),
                   tag_of(p, e, m, HEAD), &options, &v->work[HEAD]));
    return is_same(&v->head, &v->before) && !v->head.linked
               ? send_elements(p, s, e, m, ELEMENTS, value, ls_numel(value), ls_dtype_of(value),
                               &v->work[ELEMENTS])
               : send_others(p, s, e, m, v, value);
}

ls_status ls__values_send(ls_pipeline *p, ls__stage *s, int m)
{
    ls__slot *slot = &s->slot[m];
    for (int i = 0; i < s->leaving_count; i++) {
        const ls__stage_edge *e = &s->leaving[i];
        ls__in_flight_value *v = leaving_value(s, m, i);
        if (e->own) {
            (void)elements_of(slot->out[e->out], &v->head);
        } else {
            LS_TRY(send_value(p, s, e, m, v, slot->out[e->out]));
        }
    }
    return LS_OK;
}

/* ---- gradients ---------------------------------------------------------------------------- */

ls_status ls__grads_expect(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = options_with_tag("gradients");
    for (int i = 0; i < s->leaving_count; i++) {
        const ls__stage_edge *e = &s->leaving[i];
        ls__in_flight_value *v = leaving_value(s, m, i);
        if (e->own || !v->head.requires_grad || v->grad != NULL) {
            continue;
        }
        v->grad = empty_like(&v->head);
        LS_TRY(ls_tensor_status(v->grad));
        if (v->head.linked) {
            LS_TRY(receive_linked(
                p,
                link_message(peer_of(p, s, e, m), tag_of(p, e, m, GRADIENT), v->grad, "gradients"),
                v->grad, &v->grad_work));
            continue;
        }
        LS_TRY(ls_recv(p->group, ls_data(v->grad), ls_numel(v->grad), ls_dtype_of(v->grad),
                       peer_of(p, s, e, m), tag_of(p, e, m, GRADIENT), &options, &v->grad_work));
    }
    return LS_OK;
}

/* Within a rank: the gradient of the leaf that the later stage made of the value. */
static ls_tensor *gradient_of(const ls__stage *to, int m, const ls__stage_edge *way)
{
    for (int i = 0; i < to->arriving_count; i++) {
        if (to->arriving[i].part == way->part) {
            return ls_grad(to->slot[m].leaf[i]);
        }
    }
    return NULL;
}

/* Later stages come first, as in the backward of the whole graph. */
ls_status ls__grads_take(ls_pipeline *p, ls__stage *s, int m, int out, ls_tensor **sum)
{
    *sum = NULL;
    LS_TRY(ls__grads_expect(p, s, m));
    for (int i = 0; i < s->leaving_count; i++) {
        const ls__stage_edge *e = &s->leaving[i];
        ls__in_flight_value *v = leaving_value(s, m, i);
        ls_tensor *grad = v->grad;
        if (e->out != out || !v->head.requires_grad) {
            continue;
        }
        if (e->own) {
            LS_ASSERT(grad == NULL);
            grad = gradient_of(ls__pipeline_stage(p, e->to), m, e);
        }
        LS_TRY(v->head.linked && grad != NULL ? wait_for_linked(grad, &v->grad_work)
                                              : wait_for_work(&v->grad_work));
        if (grad == NULL) {
            continue;
        }
        grad = ls__part_value(ls__tensor_to_made(grad), v->head.channels_last);
        *sum = *sum == NULL ? grad : ls_add(*sum, grad);
        LS_TRY(ls_tensor_status(*sum));
    }
    return LS_OK;
}

/* The next buffer of the queue, when what it had was read. */
static ls_status next_buffer(ls__send_queue *queue, ls__send_buffer **out)
{
    *out = &queue->buffer[queue->next];
    queue->next = (queue->next + 1) % queue->count;
    return wait_for_work(&(*out)->work);
}

/* With room for `bytes`. */
static ls_status next_send_buffer(ls_pipeline *p, ls__send_queue *queue, size_t bytes,
                                  ls__send_buffer **out)
{
    ls__send_buffer *buffer = NULL;
    LS_TRY(next_buffer(queue, &buffer));
    if (bytes > buffer->room) {
        void *memory = p->env->allocate(p->env, bytes);
        if (memory == NULL) {
            return ls__fail(LS_ERR_MEMORY, "no memory for %zu bytes of a gradient between stages",
                            bytes);
        }
        if (buffer->memory != NULL) {
            p->env->release(p->env, buffer->memory, buffer->room);
        }
        buffer->memory = memory;
        buffer->room = bytes;
    }
    *out = buffer;
    return LS_OK;
}

/* The same in memory of the device, in its stream. `grad` NULL: zeros. */
static ls_status send_grad_linked(const ls_pipeline *p, ls__send_queue *queue, ls_tensor *grad,
                                  ls__stage_link_message message)
{
    ls__pool *on = ls__tensors_get("pipeline")->made;
    ls__send_buffer *buffer = NULL;
    const size_t bytes = (size_t)message.count * ls_dtype_size(message.dtype);
    const void *from = grad != NULL ? ls__tensor_elements(ls_contiguous(grad), &on) : NULL;
    if (grad != NULL && from == NULL) {
        return ls__self.status;
    }
    LS_TRY(next_buffer(queue, &buffer));
    if (buffer->linked == NULL || buffer->linked->bytes < bytes) {
        ls__storage_unref(buffer->linked);
        buffer->linked = ls__storage_new(on, bytes);
    }
    if (buffer->linked == NULL) {
        return ls__self.status;
    }
    if (from != NULL) {
        on->k->copy(buffer->linked->data, from, bytes, on->stream);
    } else {
        on->k->zero(buffer->linked->data, bytes, on->stream);
    }
    message.on = on;
    return ls__stage_link_send(p, &message, buffer->linked->data, &buffer->work);
}

/* A value that the stage's results do not depend on has no gradient: zeros go back. */
ls_status ls__grads_send(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = options_with_tag("gradients");
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__stage_edge *e = &s->arriving[i];
        ls__send_buffer *buffer = NULL;
        if (e->own || !arriving_value(s, m, i)->head.requires_grad) {
            continue;
        }
        ls_tensor *leaf = s->slot[m].leaf[i], *grad = ls_grad(leaf);
        const size_t bytes = bytes_of(&arriving_value(s, m, i)->head);
        LS_TRY(grad != NULL ? ls_tensor_status(grad) : LS_OK);
        if (arriving_value(s, m, i)->head.linked) {
            LS_TRY(send_grad_linked(
                p, &s->send_queue[i], grad,
                link_message(peer_of(p, s, e, m), tag_of(p, e, m, GRADIENT), leaf, "gradients")));
            continue;
        }
        LS_TRY(next_send_buffer(p, &s->send_queue[i], bytes, &buffer));
        if (grad == NULL) {
            ls__elements_zero(buffer->memory, bytes);
        } else {
            LS_TRY(ls_copy_out(grad, buffer->memory, bytes));
        }
        LS_TRY(ls_send(p->group, buffer->memory, ls_numel(leaf), ls_dtype_of(leaf),
                       peer_of(p, s, e, m), tag_of(p, e, m, GRADIENT), &options, &buffer->work));
    }
    return LS_OK;
}

/* ---- the end of a micro-batch ------------------------------------------------------------- */

ls_status ls__values_sent(ls__stage *s, int m)
{
    for (int i = 0; i < s->leaving_count; i++) {
        for (int k = 0; k < 3; k++) {
            LS_TRY(wait_for_work(&leaving_value(s, m, i)->work[k]));
        }
    }
    return LS_OK;
}

ls_status ls__grads_sent(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        for (int i = 0; i < p->own[k].arriving_count; i++) {
            const ls__send_queue *queue = &p->own[k].send_queue[i];
            for (int j = 0; j < queue->count; j++) {
                LS_TRY(wait_for_work(&queue->buffer[j].work));
            }
        }
    }
    return LS_OK;
}

void ls__values_unknown(ls__stage *s, int m)
{
    for (int i = 0; i < s->arriving_count; i++) {
        arriving_value(s, m, i)->head.known = false;
    }
    for (int i = 0; i < s->leaving_count; i++) {
        leaving_value(s, m, i)->head.known = false;
    }
}

static void forget_works(ls__in_flight_value *v)
{
    for (int k = 0; k < 3; k++) {
        (void)wait_for_work(&v->work[k]);
    }
    (void)wait_for_work(&v->grad_work);
}

/* After the group has failed: works end at once. */
void ls__values_forget(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->slots; m++) {
            for (int i = 0; i < s->arriving_count; i++) {
                forget_works(arriving_value(s, m, i));
            }
            for (int i = 0; i < s->leaving_count; i++) {
                forget_works(leaving_value(s, m, i));
            }
        }
    }
    while (ls__grads_sent(p) < 0) {
    }
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Beside each head there may be the empty message of a shape that has changed. */
void ls__values_prepare_heads(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        const ls__stage *s = &p->own[k];
        for (int i = 0; i < s->arriving_count; i++) {
            ls__messages_prepare(p->group, 2 * p->slots, ls__stage_edge_peer(p, &s->arriving[i], 0),
                                 sizeof(ls__value_head));
        }
    }
}

/* Once for each size, so that alternating sizes do not add up. */
static void prepare_message(ls_pipeline *p, const ls__stage *s, const ls__stage_edge *e, int m,
                            ls__in_flight_value *v)
{
    const size_t bytes = is_expected(&v->head) && !e->own ? bytes_of(&v->head) : 0;
    int i = 0;
    while (i < LS__SIZES_PREPARED && v->prepared[i] != bytes && v->prepared[i] != 0) {
        i++;
    }
    if (i < LS__SIZES_PREPARED && v->prepared[i] != bytes) {
        ls__messages_prepare(p->group, 1, peer_of(p, s, e, m), bytes);
        v->prepared[i] = bytes;
    }
}

void ls__values_prepare(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->slots; m++) {
            for (int i = 0; i < s->arriving_count; i++) {
                prepare_message(p, s, &s->arriving[i], m, arriving_value(s, m, i));
            }
            for (int i = 0; i < s->leaving_count; i++) {
                prepare_message(p, s, &s->leaving[i], m, leaving_value(s, m, i));
            }
        }
    }
}

void ls__send_queues_free(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        const ls__stage *s = &p->own[k];
        for (int i = 0; s->send_queue != NULL && i < s->arriving_count; i++) {
            for (int j = 0; j < s->send_queue[i].count; j++) {
                const ls__send_buffer *buffer = &s->send_queue[i].buffer[j];
                if (p->guest.runtime != NULL) { /* else ls_finalize has freed it */
                    ls__storage_unref(buffer->linked);
                }
                if (buffer->memory != NULL) {
                    p->env->release(p->env, buffer->memory, buffer->room);
                }
            }
        }
    }
}
