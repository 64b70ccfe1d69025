/* Convolutions through oneDNN 2.
 *
 * Its kernels want blocked layouts, so images and weights are brought there and back by its own
 * reorders, a part of the work at a time:
 *
 *     x [part] --reorder--> x' --+
 *                                +--convolution--> y' --reorder--> y [part]
 *     w -----once, reorder--> w'-+
 *
 * Note [Parts]
 * Forward and backward to x are cut into parts along the batch, backward to w along the output
 * channels; how, the shape alone decides. Each part runs on one thread with a primitive made for
 * one thread, so the bits do not depend on the number of threads (made for several, oneDNN 2.6.3
 * sums weight gradients in another order), and copies of a part stay in the cache.
 *
 * Primitives come from oneDNN's own cache, keyed by shape, layout and threads: some microseconds
 * each after the first time. Scratch memory is the caller's.
 */
#include <oneapi/dnnl/dnnl.h>

#include "base/assert.h"
#include "base/size.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/threads.h"

#define PART_WORK (1 << 24) /* multiply-adds of a part at least: some 0.3 ms */
#define PARTS_MAX 8
#define PART_CHANNELS 32 /* a multiple of the widest block of channels, 16 */
#define SLOTS_MAX 64     /* threads that run parts */
#define ALIGN 64

enum { X, W, Y, OPERANDS };

typedef struct operand {
    dnnl_memory_desc_t given, wanted; /* the caller's layout, and the primitive's, of one part */
    dnnl_primitive_t reorder;         /* to `wanted`, or back from it; NULL: they are one */
    int64_t stride;                   /* from part to part in the caller's memory, in elements */
    size_t copy_bytes;                /* of one in the wanted layout; 0 without a reorder */
} operand;

typedef struct plan {
    ls__conv2d part;
    int64_t parts;
    int output; /* which operand */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t convolution;
    dnnl_memory_desc_t bias, scratch;
    operand operand[OPERANDS];
    size_t shared_bytes, slot_bytes;
} plan;

static int output_of(ls__conv2d_pass pass)
{
    switch (pass) {
    case LS__CONV2D_FORWARD:
        return Y;
    case LS__CONV2D_BACKWARD_X:
        return X;
    case LS__CONV2D_BACKWARD_W:
        break;
    }
    return W;
}

/* Images of a part: a divisor of the batch. */
static int64_t images_of_part(const ls__conv2d *c)
{
    int64_t work =
        c->out * c->out_height * c->out_width * (c->in / c->groups) * c->kernel[0] * c->kernel[1];
    int64_t images = (PART_WORK + work - 1) / work;
    int64_t fewest = (c->batch + PARTS_MAX - 1) / PARTS_MAX;
    images = images < fewest ? fewest : images;
    images = images > c->batch ? c->batch : images;
    while (c->batch % images != 0) {
        images++;
    }
    return images;
}

/* Output channels of a part: a divisor of them; all where there are groups. */
static int64_t channels_of_part(const ls__conv2d *c)
{
    int64_t channels = c->out;
    for (int cuts = 0; cuts < 2 && c->groups == 1; cuts++) {
        if (channels % (2 * PART_CHANNELS) == 0) {
            channels /= 2;
        }
    }
    return channels;
}

static bool is_ok(dnnl_status_t status)
{
    return status == dnnl_success;
}

/* Images of `channels` among `all` that lie in memory. */
static bool describe_image(dnnl_memory_desc_t *out, const ls__conv2d *c, int64_t channels,
                           int64_t all, int64_t height, int64_t width)
{
    ls__image s = ls__image_strides(c->layout, all, height, width);
    const dnnl_dims_t dims = {c->batch, channels, height, width};
    const dnnl_dims_t strides = {s.n, s.c, s.h, s.w};
    return is_ok(dnnl_memory_desc_init_by_strides(out, 4, dims, dnnl_f32, strides));
}

static bool describe_weight(dnnl_memory_desc_t *out, const ls__conv2d *c)
{
    int64_t in = c->in / c->groups;
    if (c->groups == 1) {
        const dnnl_dims_t dims = {c->out, in, c->kernel[0], c->kernel[1]};
        return is_ok(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, dnnl_abcd));
    }
    const dnnl_dims_t dims = {c->groups, c->out / c->groups, in, c->kernel[0], c->kernel[1]};
    return is_ok(dnnl_memory_desc_init_by_tag(out, 5, dims, dnnl_f32, dnnl_abcde));
}

/* NHWC stays as it is, where it is whole; anything else oneDNN may choose. */
static bool describe_wanted(operand *o, bool keep)
{
    if (keep) {
        o->wanted = o->given;
        return true;
    }
    return is_ok(dnnl_memory_desc_init_by_tag(&o->wanted, o->given.ndims, o->given.dims, dnnl_f32,
                                              dnnl_format_tag_any));
}

static bool describe(plan *p, const ls__conv2d *whole)
{
    const ls__conv2d *c = &p->part;
    const dnnl_dims_t channels = {c->out};
    operand *o = p->operand;
    bool nhwc = c->layout == LS__NHWC;
    return describe_image(&o[X].given, c, c->in, c->in, c->height, c->width) &&
           describe_weight(&o[W].given, c) &&
           describe_image(&o[Y].given, c, c->out, whole->out, c->out_height, c->out_width) &&
           describe_wanted(&o[X], nhwc) && describe_wanted(&o[W], false) &&
           describe_wanted(&o[Y], nhwc && c->out == whole->out) &&
           is_ok(dnnl_memory_desc_init_by_tag(&p->bias, 1, channels, dnnl_f32, dnnl_a));
}

/* Cuts the work; see Note [Parts]. */
static void cut(plan *p, const ls__conv2d *whole, ls__conv2d_pass pass)
{
    ls__conv2d *c = &p->part;
    *c = *whole;
    p->output = output_of(pass);
    ls__image x = ls__image_strides(c->layout, c->in, c->height, c->width);
    ls__image y = ls__image_strides(c->layout, c->out, c->out_height, c->out_width);
    if (pass == LS__CONV2D_BACKWARD_W) {
        c->out = channels_of_part(whole);
        p->parts = whole->out / c->out;
        p->operand[W].stride = c->out * (c->in / c->groups) * c->kernel[0] * c->kernel[1];
        p->operand[Y].stride = c->out * y.c;
    } else {
        c->batch = images_of_part(whole);
        p->parts = whole->batch / c->batch;
        p->operand[X].stride = c->batch * x.n;
        p->operand[Y].stride = c->batch * y.n;
    }
}

static bool describe_pass(dnnl_convolution_desc_t *out, const plan *p, ls__conv2d_pass pass,
                          bool biased)
{
    const ls__conv2d *c = &p->part;
    const operand *o = p->operand;
    const dnnl_dims_t strides = {c->stride[0], c->stride[1]};
    const dnnl_dims_t dilation = {c->dilation[0] - 1, c->dilation[1] - 1}; /* gaps */
    const dnnl_dims_t padding = {c->padding[0], c->padding[1]};
    switch (pass) {
    case LS__CONV2D_FORWARD:
        return is_ok(dnnl_dilated_convolution_forward_desc_init(
            out, dnnl_forward_training, dnnl_convolution_direct, &o[X].wanted, &o[W].wanted,
            biased ? &p->bias : NULL, &o[Y].wanted, strides, dilation, padding, padding));
    case LS__CONV2D_BACKWARD_X:
        return is_ok(dnnl_dilated_convolution_backward_data_desc_init(
            out, dnnl_convolution_direct, &o[X].wanted, &o[W].wanted, &o[Y].wanted, strides,
            dilation, padding, padding));
    case LS__CONV2D_BACKWARD_W:
        break;
    }
    return is_ok(dnnl_dilated_convolution_backward_weights_desc_init(
        out, dnnl_convolution_direct, &o[X].wanted, &o[W].wanted, NULL, &o[Y].wanted, strides,
        dilation, padding, padding));
}

/* The primitive; backward ones are chosen with a forward one as a hint. */
static bool make_convolution(plan *p, ls__conv2d_pass pass, bool biased)
{
    dnnl_convolution_desc_t forward, own;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    bool backward = pass != LS__CONV2D_FORWARD;
    bool made =
        is_ok(dnnl_primitive_attr_create(&attributes)) &&
        is_ok(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user)) &&
        describe_pass(&own, p, pass, biased);
    if (made && backward) {
        made = describe_pass(&forward, p, LS__CONV2D_FORWARD, false) &&
               is_ok(dnnl_primitive_desc_create(&hint, &forward, attributes, p->engine, NULL));
    }
    made = made &&
           is_ok(dnnl_primitive_desc_create(&p->description, &own, attributes, p->engine, hint)) &&
           is_ok(dnnl_primitive_create(&p->convolution, p->description));
    if (hint != NULL) {
        (void)dnnl_primitive_desc_destroy(hint);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return made;
}

/* Adds to what is there instead of overwriting it. */
static bool add_sum(dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t sum = NULL;
    bool added = is_ok(dnnl_post_ops_create(&sum)) && is_ok(dnnl_post_ops_append_sum(sum, 1.0f)) &&
                 is_ok(dnnl_primitive_attr_set_post_ops(attributes, sum));
    if (sum != NULL) {
        (void)dnnl_post_ops_destroy(sum);
    }
    return added;
}

static bool make_reorder(plan *p, int i, float beta)
{
    operand *o = &p->operand[i];
    bool back = i == p->output;
    const dnnl_memory_desc_t *from = back ? &o->wanted : &o->given;
    const dnnl_memory_desc_t *to = back ? &o->given : &o->wanted;
    if (dnnl_memory_desc_equal(from, to) && (!back || beta == 0.0f)) {
        return true;
    }
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    bool made = is_ok(dnnl_primitive_attr_create(&attributes)) &&
                (!back || beta == 0.0f || add_sum(attributes)) &&
                is_ok(dnnl_reorder_primitive_desc_create(&description, from, p->engine, to,
                                                         p->engine, attributes)) &&
                is_ok(dnnl_primitive_create(&o->reorder, description));
    if (description != NULL) {
        (void)dnnl_primitive_desc_destroy(description);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    o->copy_bytes = ls__round_up(dnnl_memory_desc_get_size(&o->wanted), ALIGN);
    return made;
}

static bool is_gradient(const plan *p, ls__conv2d_pass pass, int i)
{
    return pass != LS__CONV2D_FORWARD && (i == Y || i == p->output);
}

/* The layout oneDNN chose for operand i. */
static const dnnl_memory_desc_t *chosen(const plan *p, ls__conv2d_pass pass, int i)
{
    static const dnnl_query_t read[OPERANDS] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                dnnl_query_dst_md};
    static const dnnl_query_t gradient[OPERANDS] = {
        dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    dnnl_query_t what = is_gradient(p, pass, i) ? gradient[i] : read[i];
    return dnnl_primitive_desc_query_md(p->description, what, 0);
}

static void plan_free(plan *p)
{
    for (int i = 0; i < OPERANDS; i++) {
        if (p->operand[i].reorder != NULL) {
            (void)dnnl_primitive_destroy(p->operand[i].reorder);
        }
    }
    if (p->convolution != NULL) {
        (void)dnnl_primitive_destroy(p->convolution);
    }
    if (p->description != NULL) {
        (void)dnnl_primitive_desc_destroy(p->description);
    }
    if (p->engine != NULL) {
        (void)dnnl_engine_destroy(p->engine);
    }
}

static bool plan_make(plan *p, const ls__conv2d *c, ls__conv2d_pass pass, bool biased, float beta)
{
    int threads = ls__threads_own();
    cut(p, c, pass);
    ls__threads_set(1); /* for one thread, whatever the caller has */
    bool made = is_ok(dnnl_engine_create(&p->engine, dnnl_cpu, 0)) && describe(p, c) &&
                make_convolution(p, pass, biased);
    ls__threads_set(threads);
    if (!made) {
        return false;
    }
    p->scratch = *dnnl_primitive_desc_query_md(p->description, dnnl_query_scratchpad_md, 0);
    p->slot_bytes = ls__round_up(dnnl_memory_desc_get_size(&p->scratch), ALIGN);
    for (int i = 0; made && i < OPERANDS; i++) {
        operand *o = &p->operand[i];
        o->wanted = *chosen(p, pass, i);
        ls__threads_set(o->stride == 0 ? threads : 1);
        made = make_reorder(p, i, beta);
        *(o->stride == 0 ? &p->shared_bytes : &p->slot_bytes) += o->copy_bytes;
    }
    ls__threads_set(threads);
    return made;
}

static bool plan_new(plan *p, const ls__conv2d *c, ls__conv2d_pass pass, bool biased, float beta)
{
    *p = (plan){.parts = 1};
    bool made = plan_make(p, c, pass, biased, beta);
    if (!made) {
        plan_free(p);
    }
    return made;
}

/* ---- running ------------------------------------------------------------------------------ */

typedef struct slot { /* what one thread needs to run a part */
    dnnl_stream_t stream;
    dnnl_memory_t given[OPERANDS], wanted[OPERANDS], bias, scratch;
} slot;

typedef struct job {
    const plan *p;
    ls__conv2d_pass pass;
    float *base[OPERANDS]; /* the caller's memory; what is only read is not written through it */
    float *bias;
    int slots;
    slot slot[SLOTS_MAX];
} job;

static int slots_of(const plan *p)
{
    int threads = ls__threads_own();
    return p->parts > 1 && threads <= SLOTS_MAX ? threads : 1;
}

static void slot_free(slot *s)
{
    for (int i = 0; i < OPERANDS; i++) {
        (void)dnnl_memory_destroy(s->given[i]); /* NULL is allowed */
        (void)dnnl_memory_destroy(s->wanted[i]);
    }
    (void)dnnl_memory_destroy(s->bias);
    (void)dnnl_memory_destroy(s->scratch);
    if (s->stream != NULL) {
        (void)dnnl_stream_destroy(s->stream);
    }
}

static bool memory_new(const plan *p, dnnl_memory_t *out, const dnnl_memory_desc_t *d, void *data)
{
    return is_ok(dnnl_memory_create(out, d, p->engine, data));
}

static bool slot_new(const job *j, slot *s, char *shared, char *own)
{
    const plan *p = j->p;
    bool made = is_ok(dnnl_stream_create(&s->stream, p->engine, dnnl_stream_default_flags));
    for (int i = 0; made && i < OPERANDS; i++) {
        const operand *o = &p->operand[i];
        char **from = o->stride == 0 ? &shared : &own;
        made = memory_new(p, &s->given[i], &o->given, j->base[i]) &&
               memory_new(p, &s->wanted[i], &o->wanted,
                          o->reorder != NULL ? (void *)*from : (void *)j->base[i]);
        *from += o->copy_bytes;
    }
    return made && memory_new(p, &s->scratch, &p->scratch, own) &&
           (j->bias == NULL || memory_new(p, &s->bias, &p->bias, j->bias));
}

/* Cannot fail once primitive and memory are there: nothing is allocated. */
static void execute(const slot *s, dnnl_primitive_t primitive, int count, const dnnl_exec_arg_t *of)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, s->stream, count, of);
    LS_ASSERT(is_ok(status));
    (void)dnnl_stream_wait(s->stream);
}

static void reorder(const job *j, const slot *s, int i)
{
    bool back = i == j->p->output;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_FROM, back ? s->wanted[i] : s->given[i]},
        {DNNL_ARG_TO, back ? s->given[i] : s->wanted[i]},
    };
    execute(s, j->p->operand[i].reorder, 2, arguments);
}

static void convolve(const job *j, const slot *s)
{
    static const int read[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    static const int gradient[OPERANDS] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS,
                                           DNNL_ARG_DIFF_DST};
    dnnl_exec_arg_t arguments[OPERANDS + 2];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        const int *name = is_gradient(j->p, j->pass, i) ? gradient : read;
        arguments[count++] = (dnnl_exec_arg_t){name[i], s->wanted[i]};
    }
    arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, s->scratch};
    if (s->bias != NULL) {
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, s->bias};
    }
    execute(s, j->p->convolution, count, arguments);
}

static void run_part(const job *j, const slot *s, int64_t at)
{
    const plan *p = j->p;
    for (int i = 0; i < OPERANDS; i++) {
        const operand *o = &p->operand[i];
        float *data = j->base[i] + at * o->stride;
        if (o->stride == 0) {
            continue;
        }
        (void)dnnl_memory_set_data_handle(s->given[i], data);
        if (o->reorder == NULL) {
            (void)dnnl_memory_set_data_handle(s->wanted[i], data);
        } else if (i != p->output) {
            reorder(j, s, i);
        }
    }
    convolve(j, s);
    if (p->operand[p->output].reorder != NULL) {
        reorder(j, s, p->output);
    }
}

static void run(const job *j)
{
    const plan *p = j->p;
    for (int i = 0; i < OPERANDS; i++) {
        if (p->operand[i].stride == 0 && p->operand[i].reorder != NULL) {
            reorder(j, &j->slot[0], i);
        }
    }
    LS__PARALLEL_FOR(j->slots > 1, int64_t at = 0, at < p->parts, at++, {
        int threads = ls__threads_own();
        ls__threads_set(1);
        run_part(j, &j->slot[j->slots > 1 ? ls__thread_index() : 0], at);
        ls__threads_set(threads);
    })
}

bool ls__onednn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    plan p;
    if (!plan_new(&p, c, pass, d->b != NULL, d->beta)) {
        return false;
    }
    job j = {.p = &p, .pass = pass, .slots = slots_of(&p), .bias = (float *)(uintptr_t)d->b};
    const float *base[OPERANDS] = {d->x, d->w, pass == LS__CONV2D_FORWARD ? d->out : d->dy};
    base[p.output] = d->out;
    for (int i = 0; i < OPERANDS; i++) {
        j.base[i] = (float *)(uintptr_t)base[i]; /* oneDNN's interface knows no const */
    }
    char *shared = d->workspace, *own = shared + p.shared_bytes;
    bool made = true;
    for (int i = 0; made && i < j.slots; i++) {
        made = slot_new(&j, &j.slot[i], shared, own + (size_t)i * p.slot_bytes);
    }
    if (made) {
        run(&j);
    }
    for (int i = 0; i < j.slots; i++) {
        slot_free(&j.slot[i]);
    }
    plan_free(&p);
    return made;
}

/* With beta 1: then there are all the copies that there can be. */
size_t ls__onednn_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass)
{
    plan p;
    if (!plan_new(&p, c, pass, pass == LS__CONV2D_FORWARD, 1.0f)) {
        return 0;
    }
    size_t bytes = p.shared_bytes + (size_t)slots_of(&p) * p.slot_bytes;
    plan_free(&p);
    return bytes;
}
