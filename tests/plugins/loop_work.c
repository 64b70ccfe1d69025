/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of the backend `loop`; see loop.h. */
#include "loop.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- blocks -------------------------------------------------------------------------------- */

bool loop_is_message(const ls_backend_operation *op)
{
    return op->kind == LS_BACKEND_SEND || op->kind == LS_BACKEND_RECV;
}

static bool reduces(const ls_backend_operation *op)
{
    return op->kind == LS_BACKEND_ALL_REDUCE || op->kind == LS_BACKEND_REDUCE ||
           op->kind == LS_BACKEND_REDUCE_SCATTER || op->kind == LS_BACKEND_REDUCE_SCATTER_V;
}

/* Whether the input (else the output) has a block for each rank. */
static bool has_blocks(const ls_backend_operation *op, bool input)
{
    switch (op->kind) {
    case LS_BACKEND_ALL_TO_ALL:
    case LS_BACKEND_ALL_TO_ALL_V:
        return true;
    case LS_BACKEND_REDUCE_SCATTER:
    case LS_BACKEND_REDUCE_SCATTER_V:
    case LS_BACKEND_SCATTER:
    case LS_BACKEND_SCATTER_V:
        return input;
    case LS_BACKEND_ALL_GATHER:
    case LS_BACKEND_ALL_GATHER_V:
    case LS_BACKEND_GATHER:
    case LS_BACKEND_GATHER_V:
        return !input;
    default:
        return false;
    }
}

/* Where block r of one side is, and how many elements it has. */
int64_t loop_block(const ls_backend_operation *op, int side, int r, int64_t *count)
{
    if (op->counts[side] != NULL) {
        *count = op->counts[side][r];
        return op->offsets[side][r];
    }
    *count = op->count;
    return has_blocks(op, side == 0) ? r * op->count : 0;
}

/* Elements from the start of the buffer to the end of its last block. */
int64_t loop_extent(const ls_backend_operation *op, int side, int ranks)
{
    int64_t end = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t count = 0;
        const int64_t at = loop_block(op, side, r, &count);
        end = at + count > end ? at + count : end;
    }
    return end;
}

/* ---- sums ---------------------------------------------------------------------------------- */

#define COMBINE(type)                                                                              \
    static void combine_##type(type *into, const type *from, int64_t n, ls_reduce_op op)           \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            into[i] = op == LS_SUM       ? (type)(into[i] + from[i])                               \
                      : op == LS_PRODUCT ? (type)(into[i] * from[i])                               \
                      : op == LS_MIN     ? (from[i] < into[i] ? from[i] : into[i])                 \
                                         : (from[i] > into[i] ? from[i] : into[i]);                    \
        }                                                                                          \
    }
COMBINE(float)
COMBINE(double)
COMBINE(int32_t)
COMBINE(int64_t)

static void combine(void *into, const void *from, const ls_backend_operation *op, int64_t n)
{
    switch (op->dtype) {
    case LS_FLOAT32:
        combine_float(into, from, n, op->op);
        break;
    case LS_FLOAT64:
        combine_double(into, from, n, op->op);
        break;
    case LS_INT32:
        combine_int32_t(into, from, n, op->op);
        break;
    default:
        combine_int64_t(into, from, n, op->op);
    }
}

/* ---- a thread's work ----------------------------------------------------------------------- */

static void pause_us(unsigned us)
{
    usleep(us > 0 ? us : 1);
}

/* xorshift64*, Vigna 2014 */
static void delay(loop_group *g)
{
    pthread_mutex_lock(&g->lock);
    g->seed ^= g->seed >> 12;
    g->seed ^= g->seed << 25;
    g->seed ^= g->seed >> 27;
    const uint64_t drawn = g->seed * UINT64_C(2685821657736338717) >> 33;
    pthread_mutex_unlock(&g->lock);
    if (g->delay_us > 0) {
        pause_us((unsigned)(drawn % g->delay_us));
    }
}

static bool has_fault(const loop_group *g, const request *q, const char *kind)
{
    return strcmp(g->fault, kind) == 0 && g->rank == g->fault_rank && q->number >= g->fault_from;
}

/* Until the word of every rank has come so far; false: the group is closed. */
static bool wait_all(loop_group *g, request *q, uint64_t number, bool finished)
{
    for (int r = 0; r < g->ranks; r++) {
        _Atomic uint64_t *word =
            finished ? &g->box[r]->finished : &g->box[r]->slot[q->number % 2].sequence;
        while (atomic_load(word) < number) {
            atomic_store(&q->awaited, r);
            if (atomic_load(&g->stop)) {
                return false;
            }
            pause_us(20);
        }
    }
    atomic_store(&q->awaited, -1);
    return true;
}

static void publish(loop_group *g, request *q)
{
    slot *mine = &g->box[g->rank]->slot[q->number % 2];
    const size_t bytes = (size_t)loop_extent(&q->op, 0, g->ranks) * q->op.element;
    for (int r = 0; r < g->ranks; r++) {
        int64_t count = 0;
        mine->at[r] = loop_block(&q->op, 0, r, &count) * (int64_t)q->op.element;
    }
    if (q->input != NULL) {
        memcpy(mine->data, q->input, bytes);
    }
    atomic_store(&mine->sequence, q->number);
}

/* The block of rank r that is for this rank. */
static const unsigned char *from_peer(const loop_group *g, const request *q, int r)
{
    const slot *s = &g->box[r]->slot[q->number % 2];
    return s->data + s->at[g->rank];
}

/* The sum begins with rank 1, so that it is not the canonical one. LOOP_BROKEN=sums: one bit of it
 * is wrong. */
static void take_sum(const loop_group *g, const request *q)
{
    const size_t bytes = (size_t)q->op.count * q->op.element;
    unsigned char *sum = malloc(bytes + 1);
    for (int i = 0; i < g->ranks && sum != NULL; i++) {
        const unsigned char *from = from_peer(g, q, (i + 1) % g->ranks);
        if (i == 0) {
            memcpy(sum, from, bytes);
        } else {
            combine(sum, from, &q->op, q->op.count);
        }
    }
    if (sum != NULL && bytes > 0) {
        const char *broken = getenv("LOOP_BROKEN");
        sum[0] ^= broken != NULL && strcmp(broken, "sums") == 0;
        memcpy(q->op.output, sum, bytes);
    }
    free(sum);
}

static void take(const loop_group *g, const request *q)
{
    const ls_backend_operation *op = &q->op;
    if (op->output == NULL) {
        return;
    }
    if (reduces(op)) {
        take_sum(g, q);
        return;
    }
    const bool from_root = op->kind == LS_BACKEND_BROADCAST || op->kind == LS_BACKEND_SCATTER ||
                           op->kind == LS_BACKEND_SCATTER_V;
    for (int r = 0; r < g->ranks; r++) {
        int64_t count = 0;
        const int64_t at = loop_block(op, 1, r, &count);
        if (count > 0 && (!from_root || r == op->root)) {
            memcpy((unsigned char *)op->output + (size_t)at * op->element, from_peer(g, q, r),
                   (size_t)count * op->element);
        }
    }
}

static void run_collective(loop_group *g, request *q)
{
    delay(g);
    while (has_fault(g, q, "hang") && !atomic_load(&g->stop)) {
        pause_us(1000);
    }
    if (has_fault(g, q, "error")) {
        atomic_store(&q->status, LS_ERR_SYSTEM);
        return;
    }
    if (q->number > 2 && !wait_all(g, q, q->number - 2, true)) {
        return;
    }
    publish(g, q);
    delay(g);
    if (!wait_all(g, q, q->number, false)) {
        return;
    }
    if (has_fault(g, q, "early")) { /* as if nobody waited for the last copy */
        atomic_store(&g->box[g->rank]->finished, q->number);
        atomic_store(&q->status, LS_OK);
        return;
    }
    take(g, q);
    atomic_store(&g->box[g->rank]->finished, q->number);
    delay(g);
    atomic_store(&q->status, LS_OK);
}

/* Whether it has ended: a send in a free slot of this rank, a receive from that of its peer. */
static bool try_message(loop_group *g, request *q)
{
    const ls_backend_operation *op = &q->op;
    const bool send = op->kind == LS_BACKEND_SEND;
    const size_t bytes = (size_t)op->count * op->element;
    outbox *box = g->box[send ? g->rank : op->root];
    for (int i = 0; i < MESSAGE_SLOTS; i++) {
        message_slot *m = &box->message[i];
        const uint64_t number = atomic_load(&m->number);
        if (send && number == 0) {
            m->to = op->root;
            memcpy(m->data, q->input, bytes);
            atomic_store(&m->number, op->message);
            return true;
        }
        if (!send && number == op->message && m->to == g->rank) {
            memcpy(op->output, m->data, bytes);
            atomic_store(&m->number, 0);
            return true;
        }
    }
    return false;
}

void loop_push(loop_group *g, int queue, request *q)
{
    pthread_mutex_lock(&g->lock);
    q->next = NULL;
    *(g->last[queue] != NULL ? &g->last[queue]->next : &g->first[queue]) = q;
    g->last[queue] = q;
    pthread_mutex_unlock(&g->lock);
}

static request *pop(loop_group *g, int queue)
{
    pthread_mutex_lock(&g->lock);
    request *q = g->first[queue];
    if (q != NULL) {
        g->first[queue] = q->next;
        g->last[queue] = g->first[queue] != NULL ? g->last[queue] : NULL;
    }
    pthread_mutex_unlock(&g->lock);
    return q;
}

void *loop_collectives(void *arg)
{
    loop_group *g = arg;
    while (!atomic_load(&g->stop)) {
        request *q = pop(g, 0);
        if (q != NULL) {
            run_collective(g, q);
        } else {
            pause_us(20);
        }
    }
    return NULL;
}

/* A message whose peer is late goes to the end of the queue. */
void *loop_messages(void *arg)
{
    loop_group *g = arg;
    while (!atomic_load(&g->stop)) {
        request *q = pop(g, 1);
        if (q != NULL && try_message(g, q)) {
            delay(g);
            atomic_store(&q->status, LS_OK);
            continue;
        }
        if (q != NULL) {
            atomic_store(&q->awaited, q->op.root);
            loop_push(g, 1, q);
        }
        pause_us(20);
    }
    return NULL;
}
