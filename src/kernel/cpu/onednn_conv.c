/* Convolutions through oneDNN 2.
 *
 * Images come with their channels last, which most of its kernels take as they are. Weights go into
 * a blocked layout and back by its own reorders, images only where its kernels for channels last
 * are slow, a part of the work at a time:
 *
 *     x [part] --(reorder)--> x' --+
 *                                  +--convolution--> y' --(reorder)--> y [part]
 *     w ------once, reorder--> w'--+
 *
 * Note [Parts]
 * Forward and backward to x are cut into parts along the batch. Backward to w is cut along the
 * batch, too, each part with a sum of its own, and these are added up in order; where the weights
 * are large, along the output channels instead. How, the shape alone decides. Each part runs on one
 * thread with a primitive made for one thread, so the bits do not depend on the number of threads
 * (made for several, oneDNN 2.6.3 sums weight gradients in another order).
 *
 * All that is made for a shape is a plan, kept in the runtime's table (plans.h).
 */
#include <oneapi/dnnl/dnnl.h>

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "kernel/cpu/onednn.h"
#include "kernel/cpu/plans.h"
#include "kernel/cpu/threads.h"

#define PART_WORK (1 << 24) /* multiply-adds of a part at least: some 0.3 ms */
#define PARTS_MAX 8
#define PART_CHANNELS 32      /* a multiple of the widest block of channels, 16 */
#define PART_WEIGHT (1 << 18) /* elements of a weight that each part has a sum of */
#define SLOTS_MAX 64          /* threads that run parts */
#define FEW_PIXELS 64 /* of an output: below, forward is faster in blocks, reorders included */
#define ALIGN 64

enum { X, W, Y, OPERANDS };

typedef struct operand {
    dnnl_memory_desc_t given, wanted; /* the caller's layout, and the primitive's, of one part */
    dnnl_primitive_t reorder;         /* to `wanted`, or back from it; NULL: they are one */
    int64_t stride;                   /* from part to part in the caller's memory, in elements */
    size_t copy_bytes;                /* of one in the wanted layout; 0 without a reorder */
} operand;

typedef struct slot { /* what one thread needs to run a part */
    dnnl_stream_t stream;
    dnnl_memory_t given[OPERANDS], wanted[OPERANDS], bias, scratch;
} slot;

typedef struct request { /* what a plan is made for */
    ls__conv2d conv;
    ls__conv2d_pass pass;
    bool biased, adds;
    int threads;
} request;

typedef struct plan {
    request of;
    ls__conv2d part;
    int64_t parts;
    int output; /* which operand */
    dnnl_engine_t engine;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t convolution;
    dnnl_memory_desc_t bias, scratch;
    operand operand[OPERANDS];
    bool summed;      /* each part has a whole output of its own */
    size_t sum_bytes; /* of one */
    size_t shared_bytes, slot_bytes;
    int slots;
    slot slot[SLOTS_MAX];
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
    int64_t work = ls__conv2d_weights(c) * c->out_height * c->out_width;
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
    ls__image s = ls__image_strides(LS__NHWC, all, height, width);
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

/* The caller's layout is kept, or oneDNN may choose. */
static bool describe_wanted(operand *o, bool keep)
{
    if (keep) {
        o->wanted = o->given;
        return true;
    }
    return is_ok(dnnl_memory_desc_init_by_tag(&o->wanted, o->given.ndims, o->given.dims, dnnl_f32,
                                              dnnl_format_tag_any));
}

static bool describe(plan *p)
{
    const ls__conv2d *c = &p->part;
    const dnnl_dims_t channels = {c->out};
    operand *o = p->operand;
    int64_t all = p->of.conv.out;
    bool blocks = c->out != all || /* and no kernel takes one image this way, the other that */
                  (p->of.pass == LS__CONV2D_FORWARD && c->out_height * c->out_width <= FEW_PIXELS);
    return describe_image(&o[X].given, c, c->in, c->in, c->height, c->width) &&
           describe_weight(&o[W].given, c) &&
           describe_image(&o[Y].given, c, c->out, all, c->out_height, c->out_width) &&
           describe_wanted(&o[X], !blocks) && describe_wanted(&o[W], false) &&
           describe_wanted(&o[Y], !blocks) &&
           is_ok(dnnl_memory_desc_init_by_tag(&p->bias, 1, channels, dnnl_f32, dnnl_a));
}

/* Cuts the work; see Note [Parts]. */
static void cut(plan *p)
{
    ls__conv2d *c = &p->part;
    *c = p->of.conv;
    p->output = output_of(p->of.pass);
    ls__image x = ls__image_strides(LS__NHWC, c->in, c->height, c->width);
    ls__image y = ls__image_strides(LS__NHWC, c->out, c->out_height, c->out_width);
    bool to_w = p->of.pass == LS__CONV2D_BACKWARD_W;
    int64_t images = images_of_part(c), channels = channels_of_part(c);
    if (to_w && (ls__conv2d_weights(c) > PART_WEIGHT || c->batch / images < c->out / channels)) {
        p->parts = c->out / channels;
        c->out = channels;
        p->operand[W].stride = ls__conv2d_weights(c);
        p->operand[Y].stride = c->out * y.c;
    } else {
        p->parts = c->batch / images;
        c->batch = images;
        p->operand[X].stride = c->batch * x.n;
        p->operand[Y].stride = c->batch * y.n;
        p->summed = to_w && p->parts > 1;
    }
}

static bool describe_pass(dnnl_convolution_desc_t *out, const plan *p, ls__conv2d_pass pass)
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
            p->of.biased ? &p->bias : NULL, &o[Y].wanted, strides, dilation, padding, padding));
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

/* oneDNN's plain loops take any layout and a hundred times as long. */
static bool is_fast(dnnl_primitive_desc_t description)
{
    const char *name = NULL;
    return is_ok(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0,
                                           (void *)&name)) &&
           strncmp(name, "ref", 3) != 0;
}

/* The primitive; backward ones are chosen with a forward one as a hint. */
static bool make_convolution(plan *p)
{
    dnnl_convolution_desc_t forward, own;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    bool backward = p->of.pass != LS__CONV2D_FORWARD;
    bool made =
        is_ok(dnnl_primitive_attr_create(&attributes)) &&
        is_ok(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user)) &&
        describe_pass(&own, p, p->of.pass);
    if (made && backward) {
        made = describe_pass(&forward, p, LS__CONV2D_FORWARD) &&
               is_ok(dnnl_primitive_desc_create(&hint, &forward, attributes, p->engine, NULL));
    }
    made = made &&
           is_ok(dnnl_primitive_desc_create(&p->description, &own, attributes, p->engine, hint)) &&
           is_fast(p->description) && is_ok(dnnl_primitive_create(&p->convolution, p->description));
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

static bool make_reorder(plan *p, int i)
{
    operand *o = &p->operand[i];
    bool back = i == p->output;
    const dnnl_memory_desc_t *from = back ? &o->wanted : &o->given;
    const dnnl_memory_desc_t *to = back ? &o->given : &o->wanted;
    bool adds = back && p->of.adds;
    if (dnnl_memory_desc_equal(from, to) && !adds && !(back && p->summed)) {
        return true;
    }
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    bool made = is_ok(dnnl_primitive_attr_create(&attributes)) && (!adds || add_sum(attributes)) &&
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

static bool is_gradient(const plan *p, int i)
{
    return p->of.pass != LS__CONV2D_FORWARD && (i == Y || i == p->output);
}

/* The layout oneDNN chose for operand i. */
static const dnnl_memory_desc_t *chosen(const plan *p, int i)
{
    static const dnnl_query_t read[OPERANDS] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                dnnl_query_dst_md};
    static const dnnl_query_t gradient[OPERANDS] = {
        dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    dnnl_query_t what = is_gradient(p, i) ? gradient[i] : read[i];
    return dnnl_primitive_desc_query_md(p->description, what, 0);
}

static void slot_fini(slot *s)
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

static void plan_fini(void *of)
{
    plan *p = of;
    for (int i = 0; i < p->slots; i++) {
        slot_fini(&p->slot[i]);
    }
    for (int i = 0; i < OPERANDS; i++) {
        if (p->operand[i].reorder != NULL) {
            (void)dnnl_primitive_destroy(p->operand[i].reorder);
        }
    }
    (void)dnnl_primitive_destroy(p->convolution);
    if (p->description != NULL) {
        (void)dnnl_primitive_desc_destroy(p->description);
    }
    if (p->engine != NULL) {
        (void)dnnl_engine_destroy(p->engine);
    }
}

static bool memory_new(const plan *p, dnnl_memory_t *out, const dnnl_memory_desc_t *d)
{
    return is_ok(dnnl_memory_create(out, d, p->engine, DNNL_MEMORY_NONE));
}

static bool slot_make(const plan *p, slot *s)
{
    bool made = is_ok(dnnl_stream_create(&s->stream, p->engine, dnnl_stream_default_flags));
    for (int i = 0; made && i < OPERANDS; i++) {
        made = memory_new(p, &s->given[i], &p->operand[i].given) &&
               memory_new(p, &s->wanted[i], &p->operand[i].wanted);
    }
    return made && memory_new(p, &s->scratch, &p->scratch) &&
           (!p->of.biased || memory_new(p, &s->bias, &p->bias));
}

/* Primitives are made for one thread, but those that bring what all parts share. */
static bool make_primitives(plan *p)
{
    int threads = p->of.threads;
    ls__threads_set(1);
    bool made =
        is_ok(dnnl_engine_create(&p->engine, dnnl_cpu, 0)) && describe(p) && make_convolution(p);
    if (made) {
        p->scratch = *dnnl_primitive_desc_query_md(p->description, dnnl_query_scratchpad_md, 0);
        p->slot_bytes = ls__round_up(dnnl_memory_desc_get_size(&p->scratch), ALIGN);
    }
    for (int i = 0; made && i < OPERANDS; i++) {
        operand *o = &p->operand[i];
        o->wanted = *chosen(p, i);
        ls__threads_set(o->stride == 0 ? threads : 1);
        made = make_reorder(p, i);
        if (i == W && p->summed) {
            p->sum_bytes = o->copy_bytes;
            p->shared_bytes += o->copy_bytes * (size_t)p->parts;
        } else {
            *(o->stride == 0 ? &p->shared_bytes : &p->slot_bytes) += o->copy_bytes;
        }
    }
    ls__threads_set(threads);
    return made;
}

static bool plan_make(void *of, const void *arg)
{
    plan *p = of;
    *p = (plan){.of = *(const request *)arg, .parts = 1};
    cut(p);
    bool made = make_primitives(p);
    int slots = p->parts > 1 && p->of.threads <= SLOTS_MAX ? p->of.threads : 1;
    while (made && p->slots < slots) {
        made = slot_make(p, &p->slot[p->slots++]);
    }
    if (!made) {
        plan_fini(p);
    }
    return made;
}

static const ls__plan_kind kind = {sizeof(plan), plan_make, plan_fini};

static request request_of(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    return (request){*c, pass, d->b != NULL, d->beta != 0.0f, ls__threads_own()};
}

static ls__plan_key key_of(const request *r)
{
    const ls__conv2d *c = &r->conv;
    return (ls__plan_key){{c->batch, c->in, c->height, c->width, c->groups, c->out, c->kernel[0],
                           c->kernel[1], c->stride[0], c->stride[1], c->padding[0], c->padding[1],
                           c->dilation[0], c->dilation[1], r->pass, r->biased, r->adds,
                           r->threads}};
}

/* The plan: of the table, or made into `own` where there is no table or it cannot give one now.
 * NULL: oneDNN has none. */
static plan *plan_take(ls__plans *plans, const request *r, plan *own)
{
    ls__plan_key key = key_of(r);
    plan *p = plans != NULL ? ls__plans_take(plans, &key, &kind, r) : NULL;
    return p != NULL ? p : plan_make(own, r) ? own : NULL;
}

static void plan_give(ls__plans *plans, plan *p, plan *own)
{
    if (p == own) {
        plan_fini(p);
    } else {
        ls__plans_give(plans, p);
    }
}

/* ---- running ------------------------------------------------------------------------------ */

typedef struct job {
    const plan *p;
    float *base[OPERANDS]; /* the caller's memory; what is only read is not written through it */
    char *shared, *own;    /* workspace: of all parts, of a slot each */
} job;

static void set(dnnl_memory_t memory, void *data)
{
    (void)dnnl_memory_set_data_handle(memory, data);
}

static void slot_point(const job *j, int index, float *bias)
{
    const plan *p = j->p;
    const slot *s = &p->slot[index];
    char *shared = j->shared, *own = j->own + (size_t)index * p->slot_bytes;
    for (int i = 0; i < OPERANDS; i++) {
        const operand *o = &p->operand[i];
        bool all = o->stride == 0;
        set(s->given[i], j->base[i]);
        set(s->wanted[i], o->reorder == NULL ? (void *)j->base[i] : (void *)(all ? shared : own));
        *(all ? &shared : &own) +=
            i == W && p->summed ? p->sum_bytes * (size_t)p->parts : o->copy_bytes;
    }
    set(s->scratch, own);
    if (bias != NULL) {
        set(s->bias, bias);
    }
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
        const int *name = is_gradient(j->p, i) ? gradient : read;
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
}

/* The sums of all parts into that of the first, in order. */
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

static void run(const job *j)
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

bool ls__onednn_conv2d(const ls__conv2d *c, ls__conv2d_pass pass, const ls__conv2d_data *d)
{
    plan own;
    request r = request_of(c, pass, d);
    plan *p = plan_take(d->plans, &r, &own);
    if (p == NULL) {
        return false;
    }
    job j = {.p = p, .shared = d->workspace, .own = (char *)d->workspace + p->shared_bytes};
    const float *base[OPERANDS] = {d->x, d->w, pass == LS__CONV2D_FORWARD ? d->out : d->dy};
    base[p->output] = d->out;
    for (int i = 0; i < OPERANDS; i++) {
        j.base[i] = (float *)(uintptr_t)base[i]; /* oneDNN's interface knows no const */
    }
    for (int i = 0; i < p->slots; i++) {
        slot_point(&j, i, (float *)(uintptr_t)d->b);
    }
    run(&j);
    plan_give(d->plans, p, &own);
    return true;
}

size_t ls__onednn_conv2d_workspace(const ls__conv2d *c, ls__conv2d_pass pass,
                                   const ls__conv2d_data *d)
{
    plan own;
    request r = request_of(c, pass, d);
    plan *p = plan_take(d->plans, &r, &own);
    if (p == NULL) {
        return 0;
    }
    size_t bytes = p->shared_bytes + (size_t)p->slots * p->slot_bytes;
    plan_give(d->plans, p, &own);
    return bytes;
}
