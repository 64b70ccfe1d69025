/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions through oneDNN: running them. onednn_conv_plan.c makes the plans, onednn_conv.h
 * has their structs; formulas are those of kernel/ref/conv.c.
 *
 * Images x [N,H,W,C] and y [N,H',W',O] come with their channels last, which most of its kernels
 * take as they are. Weights [O,C/groups,kh,kw] go into a blocked layout and back by its own
 * reorders, images only where its kernels for channels last are slow, a part of the work at a
 * time:
 *
 *     x [part] --(reorder)--> x' --+
 *                                  +--convolution--> y' --(reorder)--> y [part]
 *     w ------once, reorder--> w'--+
 *
 * A call takes these steps: ls__conv_plan_take obtains the plan; slot_point sets the memory
 * handles of each thread to this call's memory; run reorders what all parts share, runs the
 * parts on the threads, adds the sums of the parts and brings a shared output back;
 * ls__conv_plan_give returns the plan. The caller owns operands and workspace, the table owns
 * the plan:
 *
 *     workspace:  shared (copies of operands without parts, sums of dw)  |  slot 0  |  slot 1 …
 *                 a slot holds a thread's copies of part operands and oneDNN's scratch memory
 *
 * Note [Parts]
 * Forward and backward to x are cut into parts along the batch. Backward to w is cut along the
 * batch, too, each part with a sum of its own, and these are added up in order; where the
 * weights are large, along the output channels instead. How, the shape alone decides. Each part
 * runs on one thread with a primitive made for one thread, so the bits do not depend on the
 * number of threads (made for several, oneDNN 2.6.3 sums weight gradients in another order).
 *
 * Note [ReLU]
 * oneDNN's own, as a post-op, turns NaN into 0 and would hide that a training has failed. So
 * ours runs on each part when it is made, and parts are then as small as they may be: it is
 * still in the cache. */
#include "kernel/cpu/onednn_conv.h"
#include "base/assert.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/threads.h"

#define X LS__CONV_X
#define W LS__CONV_W
#define Y LS__CONV_Y
#define OPERANDS LS__CONV_OPERANDS

typedef ls__conv_operand operand;
typedef ls__conv_slot slot;
typedef ls__conv_request request;
typedef ls__conv_plan plan;

typedef struct job { /* one call; all memory is the caller's */
    const plan *p;
    char *base[OPERANDS]; /* the caller's memory; inputs are only read through it */
    char *shared, *own;   /* workspace: of all parts, of a slot each */
    void (*relu)(void *y, int64_t count, bool half); /* NULL: none */
} job;

/* Points a handle at memory; nothing is allocated or copied. */
static void set(dnnl_memory_t memory, void *data)
{
    (void)dnnl_memory_set_data_handle(memory, data);
}

/* Sets the handles of thread `index` to this call's memory, laid out as the head of the file
 * draws it; run_part moves those that change with the part. */
static void slot_point(const job *j, int index, float *bias)
{
    const plan *p = j->p;
    const slot *s = &p->slot[index];
    char *shared = j->shared, *own = j->own + (size_t)index * p->slot_bytes;
    for (int i = 0; i < OPERANDS; i++) {
        const operand *o = &p->operand[i];
        bool all = o->stride == 0;
        set(s->given[i], j->base[i]);
        set(s->wanted[i], o->reorder == NULL ? j->base[i] : all ? shared : own);
        *(all ? &shared : &own) +=
            i == W && p->summed ? p->sum_bytes * (size_t)p->parts : o->copy_bytes;
    }
    set(s->scratch, own);
    if (bias != NULL) {
        set(s->bias, bias);
    }
}

/* Runs a primitive on this thread and waits for it. Cannot fail once primitive and memory are
 * there: nothing is allocated. */
static void execute(const slot *s, dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *of)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, s->stream, count, of);
    LS_ASSERT(status == dnnl_success);
    (void)dnnl_stream_wait(s->stream);
}

/* Brings operand i of a part, or of all, into the layout that the kernel wants; the output goes
 * back from it to the caller's. */
static void reorder(const job *j, const slot *s, int i)
{
    bool back = i == j->p->output;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_FROM, back ? s->wanted[i] : s->given[i]},
        {DNNL_ARG_TO, back ? s->given[i] : s->wanted[i]},
    };
    execute(s, j->p->operand[i].reorder, 2, arguments);
}

/* The convolution of one part, on the wanted layouts. oneDNN has other names for operands that
 * are gradients. */
static void convolve(const job *j, const slot *s)
{
    static const int read[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    static const int gradient[OPERANDS] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS,
                                           DNNL_ARG_DIFF_DST};
    dnnl_exec_arg_t arguments[OPERANDS + 2];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        const int *name = ls__conv_is_gradient(j->p, i) ? gradient : read;
        arguments[count++] = (dnnl_exec_arg_t){name[i], s->wanted[i]};
    }
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, s->scratch};
    if (s->bias != NULL) {
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, s->bias};
    }
    execute(s, j->p->convolution, count, arguments);
}

/* Part number `at`: points the handles at it, brings its inputs into layout, convolves, brings
 * the output back, applies the ReLU. `s` is the thread's own slot. */
static void run_part(const job *j, const slot *s, int64_t at)
{
    const plan *p = j->p;
    LS_ASSERT(at >= 0 && at < p->parts);
    for (int i = 0; i < OPERANDS; i++) {
        const operand *o = &p->operand[i];
        char *data = j->base[i] + at * o->stride;
        if (o->stride == 0) {
            continue;
        }
        set(s->given[i], data);
        if (o->reorder == NULL) {
            set(s->wanted[i], data);
        } else if (i != p->output) {
            reorder(j, s, i);
        }
    }
    if (p->summed) {
        set(s->wanted[W], j->shared + (size_t)at * p->sum_bytes);
    }
    convolve(j, s);
    if (p->operand[p->output].stride != 0 && p->operand[p->output].reorder != NULL) {
        reorder(j, s, p->output);
    }
    if (j->relu != NULL) {
        const ls__conv2d *c = &p->part;
        j->relu(j->base[Y] + at * p->operand[Y].stride,
                c->batch * c->out_height * c->out_width * c->out, p->of.half_out);
    }
}

/* Adds the parts' sums of dw into that of the first, in the order of the parts for every
 * element. */
static void add_parts(const job *j)
{
    const plan *p = j->p;
    int64_t count = (int64_t)(p->sum_bytes / sizeof(float)), block = 4096;
    float *sum = (float *)(void *)j->shared;
    LS__PARALLEL_FOR(count >= LS__PARALLEL_MIN, int64_t from = 0, from < count, from += block, {
        int64_t end = from + block < count ? from + block : count;
        for (int64_t part = 1; part < p->parts; part++) {
            for (int64_t i = from; i < end; i++) {
                sum[i] += sum[part * count + i];
            }
        }
    })
}

/* All parts. The weight is reordered once, before the threads start, because all parts read it;
 * a shared output goes back once, after them. */
static void run_job(const job *j)
{
    const plan *p = j->p;
    const operand *out = &p->operand[p->output];
    for (int i = 0; i < OPERANDS; i++) {
        if (i != p->output && p->operand[i].stride == 0 && p->operand[i].reorder != NULL) {
            reorder(j, &p->slot[0], i);
        }
    }
    LS__PARALLEL_FOR(p->slots > 1, int64_t at = 0, at < p->parts, at++, {
        int threads = ls__threads_own();
        ls__threads_set(1);
        run_part(j, &p->slot[p->slots > 1 ? ls__thread_index() : 0], at);
        ls__threads_set(threads);
    })
    if (p->summed) {
        add_parts(j);
        set(p->slot[0].wanted[W], j->shared);
    }
    if (out->stride == 0 && out->reorder != NULL) {
        reorder(j, &p->slot[0], p->output);
    }
}

/* Everything the plan depends on and nothing else: it becomes the key of the store. */
static request request_of(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    return (request){.conv = *c,
                     .pass = pass,
                     .biased = d->b != NULL,
                     .adds = d->beta != 0.0f,
                     .relu = d->relu,
                     .half = d->half,
                     .half_out = d->half_out,
                     .threads = ls__threads_own()};
}

/* False if oneDNN has no kernel for it; the output is then unchanged. `relu` runs on a part of y
 * while it lies in the cache. */
bool ls__onednn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d,
                       void (*relu)(void *y, int64_t count, bool half))
{
    plan own;
    request r = request_of(c, pass, d);
    plan *p = ls__conv_plan_take(d->plans, &r, &own);
    if (p == NULL) {
        return false;
    }
    job j = {.p = p, .shared = d->workspace, .own = (char *)d->workspace + p->shared_bytes};
    j.relu = d->relu ? relu : NULL;
    const void *base[OPERANDS] = {d->x, d->w, pass == LS__CONV2D_FORWARD ? d->out : d->dy};
    base[p->output] = d->out;
    for (int i = 0; i < OPERANDS; i++) {
        j.base[i] = (char *)(uintptr_t)base[i]; /* oneDNN's interface knows no const */
    }
    for (int i = 0; i < p->slots; i++) {
        slot_point(&j, i, (float *)(uintptr_t)d->b);
    }
    run_job(&j);
    ls__conv_plan_give(d->plans, p, &own);
    return true;
}

/* Bytes; 0 where oneDNN has no kernel for it. */
size_t ls__onednn_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                   const ls__conv2d_data *d)
{
    plan own;
    request r = request_of(c, pass, d);
    plan *p = ls__conv_plan_take(d->plans, &r, &own);
    if (p == NULL) {
        return 0;
    }
    size_t bytes = p->shared_bytes + (size_t)p->slots * p->slot_bytes;
    ls__conv_plan_give(d->plans, p, &own);
    return bytes;
}
