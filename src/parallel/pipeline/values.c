/* Values and their gradients between stages; Note [Values] in internal.h. */
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "comm/p2p/p2p.h"
#include "nn/parts.h"
#include "parallel/pipeline/internal.h"

enum { HEAD, ELEMENTS, OTHERS, GRADIENT, KINDS };

/* One tag for each value that a stage takes, micro-batch and kind. Schedules have at most 2^20
 * stages times micro-batches, and as many times ranks, so it is below 2^30. */
static int tag_of(const ls_pipeline *p, const ls__route *r, int m, int kind)
{
    return ((r->to * LS_CALL_TENSORS_MAX + r->in) * p->slots + m) * KINDS + kind;
}

static int peer_of(const ls_pipeline *p, const ls__stage *s, const ls__route *r, int m)
{
    return ls__route_peer(p, r, s->slot[m].number);
}

static ls__transit *leaving(const ls__stage *s, int m, int i)
{
    return &s->slot[m].leaving[i];
}

static ls__transit *arriving(const ls__stage *s, int m, int i)
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
                             .channels_last = channels_last};
    memcpy(head->dim, shape.dim, (size_t)shape.ndim * sizeof head->dim[0]);
    return plain;
}

static bool is_same(const ls__value_head *a, const ls__value_head *b)
{
    return a->known && b->known && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof a->dim[0]) == 0;
}

static ls_tensor *empty_like(const ls__value_head *head)
{
    ls_shape shape = {.ndim = head->ndim};
    memcpy(shape.dim, head->dim, (size_t)head->ndim * sizeof head->dim[0]);
    return ls_empty(shape, (ls_dtype)head->dtype);
}

static size_t bytes_of(const ls__value_head *head)
{
    size_t bytes = ls_dtype_size((ls_dtype)head->dtype);
    for (int i = 0; i < head->ndim; i++) {
        bytes *= (size_t)head->dim[i];
    }
    return bytes;
}

static ls_collective_options named(const char *tag)
{
    ls_collective_options options = ls_collective_defaults();
    options.tag = tag;
    return options;
}

/* ---- values ------------------------------------------------------------------------------- */

static ls_status receive(const ls_pipeline *p, const ls__stage *s, const ls__route *r, int m,
                         int kind, ls_tensor *into, ls_work **work)
{
    const ls_collective_options options = named("activations");
    LS_TRY(ls_tensor_status(into));
    return ls_recv_up_to(p->group, ls_data(into), ls_numel(into), ls_dtype_of(into),
                         peer_of(p, s, r, m), tag_of(p, r, m, kind), &options, work);
}

ls_status ls__values_expect(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = named("shapes");
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__route *r = &s->arriving[i];
        ls__transit *t = arriving(s, m, i);
        if (r->own || t->posted) {
            continue;
        }
        t->posted = true;
        t->before = t->head;
        LS_TRY(ls_recv(p->group, &t->head, (int64_t)sizeof t->head, LS_UINT8, peer_of(p, s, r, m),
                       tag_of(p, r, m, HEAD), &options, &t->work[HEAD]));
        if (t->before.known) {
            t->value = empty_like(&t->before);
            LS_TRY(receive(p, s, r, m, ELEMENTS, t->value, &t->work[ELEMENTS]));
        }
    }
    return LS_OK;
}

static ls_status wait_for(ls_work **work)
{
    ls_work *waiting = *work;
    *work = NULL;
    return waiting != NULL ? ls_work_wait(waiting) : LS_OK;
}

/* The elements are in t->value when the shape is as in the step before. */
static ls_status finish(const ls_pipeline *p, const ls__stage *s, const ls__route *r, int m,
                        ls__transit *t)
{
    LS_TRY(wait_for(&t->work[HEAD]));
    LS_TRY(wait_for(&t->work[ELEMENTS]));
    if (!is_same(&t->head, &t->before)) {
        t->value = empty_like(&t->head);
        LS_TRY(receive(p, s, r, m, OTHERS, t->value, &t->work[OTHERS]));
        LS_TRY(wait_for(&t->work[OTHERS]));
    }
    return LS_OK;
}

/* The place of the value in the stage that makes it, which is on this rank. */
static ls_tensor *handed_over(ls_pipeline *p, const ls__route *r, int m)
{
    return ls__pipeline_stage(p, r->from)->slot[m].out[r->out];
}

/* Every value becomes a leaf, whose gradient goes back to the stage that made it. */
ls_status ls__values_take(ls_pipeline *p, ls__stage *s, int m)
{
    ls__slot *slot = &s->slot[m];
    LS_TRY(ls__values_expect(p, s, m));
    for (int i = 0; i < s->edges.in_count && s->edges.in[i] < 0; i++) {
        slot->in[i] = p->micro[slot->number].inputs[LS_PART_INPUT(s->edges.in[i])];
    }
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__route *r = &s->arriving[i];
        ls__transit *t = arriving(s, m, i);
        if (r->own) {
            t->value = elements_of(handed_over(p, r, m), &t->head);
            ls__pipeline_stage(p, r->from)->slot[m].handed_over++;
        } else {
            LS_TRY(finish(p, s, r, m, t));
        }
        slot->leaf[i] = ls_set_requires_grad(ls_detach(t->value), t->head.requires_grad);
        slot->in[r->in] = ls__part_value(slot->leaf[i], t->head.channels_last);
        LS_TRY(ls_tensor_status(slot->in[r->in]));
    }
    return LS_OK;
}

static ls_status send(const ls_pipeline *p, const ls__stage *s, const ls__route *r, int m, int kind,
                      ls_tensor *value, int64_t count, ls_dtype dtype, ls_work **work)
{
    const ls_collective_options options = named("activations");
    LS_TRY(ls_tensor_status(value));
    return ls_send(p->group, ls_data(value), count, dtype, peer_of(p, s, r, m),
                   tag_of(p, r, m, kind), &options, work);
}

/* Of another shape than in the step before, an empty message takes the place of the elements. */
static ls_status send_value(const ls_pipeline *p, const ls__stage *s, const ls__route *r, int m,
                            ls__transit *t, ls_tensor *value)
{
    const ls_collective_options options = named("shapes");
    t->before = t->head;
    value = elements_of(value, &t->head);
    LS_TRY(ls_send(p->group, &t->head, (int64_t)sizeof t->head, LS_UINT8, peer_of(p, s, r, m),
                   tag_of(p, r, m, HEAD), &options, &t->work[HEAD]));
    if (is_same(&t->head, &t->before)) {
        return send(p, s, r, m, ELEMENTS, value, ls_numel(value), ls_dtype_of(value),
                    &t->work[ELEMENTS]);
    }
    if (t->before.known) {
        LS_TRY(send(p, s, r, m, ELEMENTS, value, 0, (ls_dtype)t->before.dtype, &t->work[ELEMENTS]));
    }
    return send(p, s, r, m, OTHERS, value, ls_numel(value), ls_dtype_of(value), &t->work[OTHERS]);
}

ls_status ls__values_send(ls_pipeline *p, ls__stage *s, int m)
{
    ls__slot *slot = &s->slot[m];
    for (int i = 0; i < s->leaving_count; i++) {
        const ls__route *r = &s->leaving[i];
        ls__transit *t = leaving(s, m, i);
        if (r->own) {
            (void)elements_of(slot->out[r->out], &t->head);
        } else {
            LS_TRY(send_value(p, s, r, m, t, slot->out[r->out]));
        }
    }
    return LS_OK;
}

/* ---- gradients ---------------------------------------------------------------------------- */

ls_status ls__grads_expect(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = named("gradients");
    for (int i = 0; i < s->leaving_count; i++) {
        const ls__route *r = &s->leaving[i];
        ls__transit *t = leaving(s, m, i);
        if (r->own || !t->head.requires_grad || t->grad != NULL) {
            continue;
        }
        t->grad = empty_like(&t->head);
        LS_TRY(ls_tensor_status(t->grad));
        LS_TRY(ls_recv(p->group, ls_data(t->grad), ls_numel(t->grad), ls_dtype_of(t->grad),
                       peer_of(p, s, r, m), tag_of(p, r, m, GRADIENT), &options, &t->grad_work));
    }
    return LS_OK;
}

/* On this rank: of what the later stage has made a leaf of. */
static ls_tensor *gradient_of(const ls__stage *to, int m, const ls__route *way)
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
        const ls__route *r = &s->leaving[i];
        ls__transit *t = leaving(s, m, i);
        ls_tensor *grad = t->grad;
        if (r->out != out || !t->head.requires_grad) {
            continue;
        }
        if (r->own) {
            LS_ASSERT(grad == NULL);
            grad = gradient_of(ls__pipeline_stage(p, r->to), m, r);
        }
        LS_TRY(wait_for(&t->grad_work));
        if (grad == NULL) {
            continue;
        }
        grad = ls__part_value(grad, t->head.channels_last);
        *sum = *sum == NULL ? grad : ls_add(*sum, grad);
        LS_TRY(ls_tensor_status(*sum));
    }
    return LS_OK;
}

/* The next place of the outbox, with room for `bytes`. */
static ls_status open_outbox(ls_pipeline *p, ls__outbox *box, size_t bytes, ls__outbox_place **out)
{
    ls__outbox_place *place = &box->place[box->next];
    box->next = (box->next + 1) % box->places;
    LS_TRY(wait_for(&place->work));
    if (bytes > place->room) {
        void *memory = p->env->allocate(p->env, bytes);
        if (memory == NULL) {
            return ls__fail(LS_ERR_MEMORY, "no memory for %zu bytes of a gradient between stages",
                            bytes);
        }
        if (place->memory != NULL) {
            p->env->release(p->env, place->memory, place->room);
        }
        place->memory = memory;
        place->room = bytes;
    }
    *out = place;
    return LS_OK;
}

/* A value that the stage's results do not depend on has no gradient: zeros go back. */
ls_status ls__grads_send(ls_pipeline *p, ls__stage *s, int m)
{
    const ls_collective_options options = named("gradients");
    for (int i = 0; i < s->arriving_count; i++) {
        const ls__route *r = &s->arriving[i];
        ls__outbox_place *place = NULL;
        if (r->own || !arriving(s, m, i)->head.requires_grad) {
            continue;
        }
        ls_tensor *leaf = s->slot[m].leaf[i], *grad = ls_grad(leaf);
        const size_t bytes = bytes_of(&arriving(s, m, i)->head);
        LS_TRY(grad != NULL ? ls_tensor_status(grad) : LS_OK);
        LS_TRY(open_outbox(p, &s->outbox[i], bytes, &place));
        if (grad == NULL) {
            memset(place->memory, 0, bytes);
        } else {
            memcpy(place->memory, ls_data(grad), bytes);
        }
        LS_TRY(ls_send(p->group, place->memory, ls_numel(leaf), ls_dtype_of(leaf),
                       peer_of(p, s, r, m), tag_of(p, r, m, GRADIENT), &options, &place->work));
    }
    return LS_OK;
}

/* ---- the end of a micro-batch ------------------------------------------------------------- */

ls_status ls__values_sent(ls__stage *s, int m)
{
    for (int i = 0; i < s->leaving_count; i++) {
        for (int k = 0; k < 3; k++) {
            LS_TRY(wait_for(&leaving(s, m, i)->work[k]));
        }
    }
    return LS_OK;
}

ls_status ls__grads_sent(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        for (int i = 0; i < p->own[k].arriving_count; i++) {
            const ls__outbox *box = &p->own[k].outbox[i];
            for (int j = 0; j < box->places; j++) {
                LS_TRY(wait_for(&box->place[j].work));
            }
        }
    }
    return LS_OK;
}

void ls__values_unknown(ls__stage *s, int m)
{
    for (int i = 0; i < s->arriving_count; i++) {
        arriving(s, m, i)->head.known = false;
    }
    for (int i = 0; i < s->leaving_count; i++) {
        leaving(s, m, i)->head.known = false;
    }
}

static void forget_works(ls__transit *t)
{
    for (int k = 0; k < 3; k++) {
        (void)wait_for(&t->work[k]);
    }
    (void)wait_for(&t->grad_work);
}

/* After the group has failed: works end at once. */
void ls__values_forget(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->slots; m++) {
            for (int i = 0; i < s->arriving_count; i++) {
                forget_works(arriving(s, m, i));
            }
            for (int i = 0; i < s->leaving_count; i++) {
                forget_works(leaving(s, m, i));
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
            ls__messages_prepare(p->group, 2 * p->slots, ls__route_peer(p, &s->arriving[i], 0),
                                 sizeof(ls__value_head));
        }
    }
}

/* Once for each size, so that sizes that change by turns do not add up. */
static void prepare(ls_pipeline *p, const ls__stage *s, const ls__route *r, int m, ls__transit *t)
{
    const size_t bytes = t->head.known && !r->own ? bytes_of(&t->head) : 0;
    int i = 0;
    while (i < LS__SIZES_PREPARED && t->prepared[i] != bytes && t->prepared[i] != 0) {
        i++;
    }
    if (i < LS__SIZES_PREPARED && t->prepared[i] != bytes) {
        ls__messages_prepare(p->group, 1, peer_of(p, s, r, m), bytes);
        t->prepared[i] = bytes;
    }
}

void ls__values_prepare(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        ls__stage *s = &p->own[k];
        for (int m = 0; m < p->slots; m++) {
            for (int i = 0; i < s->arriving_count; i++) {
                prepare(p, s, &s->arriving[i], m, arriving(s, m, i));
            }
            for (int i = 0; i < s->leaving_count; i++) {
                prepare(p, s, &s->leaving[i], m, leaving(s, m, i));
            }
        }
    }
}

void ls__outboxes_free(ls_pipeline *p)
{
    for (int k = 0; k < p->own_count; k++) {
        const ls__stage *s = &p->own[k];
        for (int i = 0; s->outbox != NULL && i < s->arriving_count; i++) {
            for (int j = 0; j < s->outbox[i].places; j++) {
                const ls__outbox_place *place = &s->outbox[i].place[j];
                if (place->memory != NULL) {
                    p->env->release(p->env, place->memory, place->room);
                }
            }
        }
    }
}
