/* Plans of convolutions through oneDNN 2: the cut, the layouts and the primitives. onednn_conv.c
 * runs them; see its Note [Parts].
 *
 * A plan is made for one ls__conv_request, its key: shape, pass, types, threads. The steps:
 *
 *     cut               which part of x [N,H,W,C], w, y [N,H',W',O] one primitive works on, how many
 *                       parts there are, and their strides in the caller's memory
 *     describe          the layouts given by the caller and those wanted of oneDNN ("any": its choice)
 *     make_convolution  the primitive, for one thread; refused if only oneDNN's plain loops remain
 *     make_reorder      for each operand whose two layouts differ
 *     slot_make         a stream and memory handles for each thread
 *
 * ls__conv_plan_take lends a plan to one call, ls__conv_plan_give ends that. The table owns
 * plans and ends them with plan_fini; a plan in the caller's `own` memory is ended by giving it
 * back. */
#include "kernel/cpu/onednn_conv.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
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

#define PART_WORK (1 << 24) /* multiply-adds of a part at least: some 0.3 ms */
#define PARTS_MAX 8
#define PART_CHANNELS 32      /* a multiple of the widest block of channels, 16 */
#define PART_WEIGHT (1 << 18) /* elements of a weight that each part has a sum of */
#define FEW_PIXELS 64 /* of an output: below, forward is faster in blocks, reorders included */
#define ALIGN 64

/* The operand that a pass writes. */
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

/* Images of a part: a divisor of the batch. Where ReLU follows, a part is to stay in the cache. */
static int64_t images_of_part(const ls__conv2d *c, bool relu)
{
    int64_t work = ls__conv2d_weights(c) * c->out_height * c->out_width;
    int64_t images = (PART_WORK + work - 1) / work;
    int64_t fewest = relu ? 1 : (c->batch + PARTS_MAX - 1) / PARTS_MAX;
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

/* oneDNN's status as a truth. */
static bool is_ok(dnnl_status_t status)
{
    return status == dnnl_success;
}

/* The element type of operand i in the caller's memory. */
static dnnl_data_type_t type_of(const plan *p, int i)
{
    bool half = i == p->output ? p->of.half_out : p->of.half;
    return half ? dnnl_bf16 : dnnl_f32;
}

/* The caller's layout of x or y [N,H,W,channels] of one part; of y perhaps some channels among
 * all that lie in memory. False where oneDNN refuses. */
static bool describe_image(const plan *p, int i, dnnl_memory_desc_t *out)
{
    const ls__conv2d *c = &p->part;
    const bool x = i == X;
    int64_t channels = x ? c->in : c->out, all = x ? c->in : p->of.conv.out;
    int64_t height = x ? c->height : c->out_height, width = x ? c->width : c->out_width;
    ls__image s = ls__image_strides(LS__NHWC, all, height, width);
    const dnnl_dims_t dims = {c->batch, channels, height, width};
    const dnnl_dims_t strides = {s.n, s.c, s.h, s.w};
    return is_ok(dnnl_memory_desc_init_by_strides(out, 4, dims, type_of(p, i), strides));
}

/* The caller's layout of w of one part: [O,I,kh,kw], or [groups,O/groups,I,kh,kw], since oneDNN
 * wants the groups as a dimension of their own. */
static bool describe_weight(const plan *p, dnnl_memory_desc_t *out)
{
    const ls__conv2d *c = &p->part;
    int64_t in = c->in / c->groups;
    if (c->groups == 1) {
        const dnnl_dims_t dims = {c->out, in, c->kernel[0], c->kernel[1]};
        return is_ok(dnnl_memory_desc_init_by_tag(out, 4, dims, type_of(p, W), dnnl_abcd));
    }
    const dnnl_dims_t dims = {c->groups, c->out / c->groups, in, c->kernel[0], c->kernel[1]};
    return is_ok(dnnl_memory_desc_init_by_tag(out, 5, dims, type_of(p, W), dnnl_abcde));
}

/* The layout asked of oneDNN for operand i: the caller's where `keep`, else oneDNN's choice. A
 * sum that is not finished is float32. */
static bool describe_wanted(const plan *p, int i, operand *o, bool keep)
{
    bool unfinished = i == p->output && (i == W || p->of.adds);
    dnnl_data_type_t type = unfinished ? dnnl_f32 : type_of(p, i);
    o->wanted = o->given;
    if (keep && type == o->given.data_type) {
        return true;
    }
    const int64_t *dims = o->given.dims;
    return keep ? is_ok(dnnl_memory_desc_init_by_tag(&o->wanted, 4, dims, type, dnnl_acdb))
                : is_ok(dnnl_memory_desc_init_by_tag(&o->wanted, o->given.ndims, dims, type,
                                                     dnnl_format_tag_any));
}

/* All layouts of a part. Images keep their channels last unless a part has only some channels,
 * or few pixels make blocked layouts faster, reorders included. */
static bool describe(plan *p)
{
    const ls__conv2d *c = &p->part;
    const dnnl_dims_t channels = {c->out};
    operand *o = p->operand;
    bool blocks =
        c->out != p->of.conv.out || /* and no kernel takes one image this way, the other that */
        (p->of.pass == LS__CONV2D_FORWARD && c->out_height * c->out_width <= FEW_PIXELS);
    return describe_image(p, X, &o[X].given) && describe_weight(p, &o[W].given) &&
           describe_image(p, Y, &o[Y].given) && describe_wanted(p, X, &o[X], !blocks) &&
           describe_wanted(p, W, &o[W], false) && describe_wanted(p, Y, &o[Y], !blocks) &&
           is_ok(dnnl_memory_desc_init_by_tag(&p->bias, 1, channels, dnnl_f32, dnnl_a));
}

static int64_t bytes_of(const plan *p, int i) /* of an element */
{
    return type_of(p, i) == dnnl_bf16 ? 2 : 4;
}

/* Fills part, parts and strides; see Note [Parts]. An operand that all parts share has stride 0. */
static void cut(plan *p)
{
    ls__conv2d *c = &p->part;
    *c = p->of.conv;
    p->output = output_of(p->of.pass);
    ls__image x = ls__image_strides(LS__NHWC, c->in, c->height, c->width);
    ls__image y = ls__image_strides(LS__NHWC, c->out, c->out_height, c->out_width);
    bool to_w = p->of.pass == LS__CONV2D_BACKWARD_W;
    int64_t images = images_of_part(c, p->of.relu), channels = channels_of_part(c);
    if (to_w && (ls__conv2d_weights(c) > PART_WEIGHT || c->batch / images < c->out / channels)) {
        p->parts = c->out / channels;
        c->out = channels;
        p->operand[W].stride = ls__conv2d_weights(c) * bytes_of(p, W);
        p->operand[Y].stride = c->out * y.c * bytes_of(p, Y);
    } else {
        p->parts = c->batch / images;
        c->batch = images;
        p->operand[X].stride = c->batch * x.n * bytes_of(p, X);
        p->operand[Y].stride = c->batch * y.n * bytes_of(p, Y);
        p->summed = to_w && p->parts > 1;
    }
}

/* oneDNN counts the gaps of a dilation, not its steps. */
static bool describe_pass(dnnl_convolution_desc_t *out, const plan *p, ls__conv2d_pass pass,
                          const dnnl_memory_desc_t of[OPERANDS])
{
    const ls__conv2d *c = &p->part;
    const dnnl_dims_t strides = {c->stride[0], c->stride[1]};
    const dnnl_dims_t dilation = {c->dilation[0] - 1, c->dilation[1] - 1}; /* gaps */
    const dnnl_dims_t padding = {c->padding[0], c->padding[1]};
    switch (pass) {
    case LS__CONV2D_FORWARD:
        return is_ok(dnnl_dilated_convolution_forward_desc_init(
            out, dnnl_forward_training, dnnl_convolution_direct, &of[X], &of[W],
            p->of.biased ? &p->bias : NULL, &of[Y], strides, dilation, padding, padding));
    case LS__CONV2D_BACKWARD_X:
        return is_ok(dnnl_dilated_convolution_backward_data_desc_init(
            out, dnnl_convolution_direct, &of[X], &of[W], &of[Y], strides, dilation, padding,
            padding));
    case LS__CONV2D_BACKWARD_W:
        break;
    }
    return is_ok(dnnl_dilated_convolution_backward_weights_desc_init(
        out, dnnl_convolution_direct, &of[X], &of[W], NULL, &of[Y], strides, dilation, padding,
        padding));
}

/* oneDNN's plain loops take any layout and a hundred times as long. Without bfloat16 instructions
 * its kernels for bfloat16 are slower than float32's on widened numbers. */
static bool is_fast(const plan *p, dnnl_primitive_desc_t description)
{
    const char *name = NULL;
    return (!p->of.half || dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core_bf16) &&
           is_ok(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0,
                                           (void *)&name)) &&
           strncmp(name, "ref", 3) != 0;
}

/* The primitive; backward ones are chosen with a forward one as a hint, of the types that one has.
 */
static bool make_convolution(plan *p)
{
    dnnl_convolution_desc_t forward, own;
    dnnl_memory_desc_t layout[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        layout[i] = p->operand[i].wanted;
    }
    dnnl_primitive_desc_t hint = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    bool backward = p->of.pass != LS__CONV2D_FORWARD;
    bool made =
        is_ok(dnnl_primitive_attr_create(&attributes)) &&
        is_ok(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user)) &&
        describe_pass(&own, p, p->of.pass, layout);
    layout[p->output].data_type = p->of.half ? dnnl_bf16 : dnnl_f32;
    if (made && backward) {
        made = describe_pass(&forward, p, LS__CONV2D_FORWARD, layout) &&
               is_ok(dnnl_primitive_desc_create(&hint, &forward, attributes, p->engine, NULL));
    }
    made = made &&
           is_ok(dnnl_primitive_desc_create(&p->description, &own, attributes, p->engine, hint)) &&
           is_fast(p, p->description) &&
           is_ok(dnnl_primitive_create(&p->convolution, p->description));
    if (hint != NULL) {
        (void)dnnl_primitive_desc_destroy(hint);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return made;
}

/* Adds to the output instead of overwriting it. */
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

/* No reorder where the layouts agree, unless the reorder also adds to the output. */
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

/* The layout oneDNN chose for operand i. */
static const dnnl_memory_desc_t *chosen(const plan *p, int i)
{
    static const dnnl_query_t read[OPERANDS] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                dnnl_query_dst_md};
    static const dnnl_query_t gradient[OPERANDS] = {
        dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    dnnl_query_t what = ls__conv_is_gradient(p, i) ? gradient[i] : read[i];
    return dnnl_primitive_desc_query_md(p->description, what, 0);
}

/* Also for a slot that was made in part. */
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

/* Also for a plan that was made in part. */
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

/* A handle without memory; its address is set at each call. */
static bool memory_new(const plan *p, dnnl_memory_t *out, const dnnl_memory_desc_t *d)
{
    return is_ok(dnnl_memory_create(out, d, p->engine, DNNL_MEMORY_NONE));
}

/* A stream and handles of one thread; threads must not share handles, whose data pointers change. */
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

/* Primitives are made for one thread, except the reorders of operands that all parts share. */
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

/* A plan that oneDNN refuses is kept too, with `none` set, so that it is asked only once. */
static bool plan_make(void *of, const void *arg)
{
    plan *p = of;
    *p = (plan){.of = *(const request *)arg, .parts = 1};
    cut(p);
    bool made = make_primitives(p);
    int slots = p->parts > 1 && p->of.threads <= LS__CONV_SLOTS ? p->of.threads : 1;
    LS_ASSERT(p->parts >= 1 && slots <= LS__CONV_SLOTS);
    while (made && p->slots < slots) {
        made = slot_make(p, &p->slot[p->slots++]);
    }
    if (!made) {
        plan_fini(p);
        *p = (plan){.none = true};
    }
    return true; /* a refusal is kept, too: asking again takes milliseconds */
}

static const ls__plan_kind kind = {sizeof(plan), plan_make, plan_fini};

/* All of the request: two calls with one key may use one plan, one after the other. */
static ls__plan_key key_of(const request *r)
{
    const ls__conv2d *c = &r->conv;
    int flags = (int)r->pass | r->biased << 2 | r->adds << 3 | r->relu << 4 | r->half << 5 |
                r->half_out << 6;
    return (ls__plan_key){{c->batch, c->in, c->height, c->width, c->groups, c->out, c->kernel[0],
                           c->kernel[1], c->stride[0], c->stride[1], c->padding[0], c->padding[1],
                           c->dilation[0], c->dilation[1], flags, r->threads}};
}

/* NULL if oneDNN has no kernel. Without a store, or when another thread holds the plan, it is made
 * in `own`. Give it back with ls__conv_plan_give. */
plan *ls__conv_plan_take(ls__plans *plans, const request *r, plan *own)
{
    ls__plan_key key = key_of(r);
    plan *p = plans != NULL ? ls__plans_take(plans, &key, &kind, r) : NULL;
    if (p == NULL) {
        p = own;
        (void)plan_make(own, r);
    }
    if (p->none) {
        ls__conv_plan_give(plans, p, own);
        return NULL;
    }
    return p;
}

/* `own` as in ls__conv_plan_take: a plan made there is freed. */
void ls__conv_plan_give(ls__plans *plans, plan *p, const plan *own)
{
    if (p == own) {
        plan_fini(p);
    } else {
        ls__plans_give(plans, p);
    }
}
