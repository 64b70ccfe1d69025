/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of convolutions through oneDNN: the cut, the layouts and the primitives. onednn_conv.c
 * runs them; see its Note [Parts].
 *
 * A plan is made for one ls__conv_request, its key: shape, pass, types, threads. The steps:
 *
 *     cut               which part of x [N,H,W,C], w, y [N,H',W',O] one primitive works on, how
 *                       many parts there are, and their strides in the caller's memory
 *     describe          the layouts given by the caller and those wanted of oneDNN ("any": its
 *                       choice)
 *     make_convolution  the primitive, for one thread; refused if only oneDNN's plain loops remain
 *     make_reorder      for each operand whose two layouts differ
 *     slot_make         a stream and memory handles for each thread
 *
 * ls__conv_plan_take lends a plan to one call, ls__conv_plan_give ends that. The table owns
 * plans and ends them with plan_fini; a plan in the caller's `own` memory is ended by giving it
 * back. */
#include "kernel/cpu/onednn_conv.h"

#include <stdio.h>
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
static bool describe_image(const plan *p, int i, operand *o)
{
    const ls__conv2d *c = &p->part;
    const bool x = i == X;
    int64_t channels = x ? c->in : c->out, all = x ? c->in : p->of.conv.out;
    int64_t height = x ? c->height : c->out_height, width = x ? c->width : c->out_width;
    ls__image s = ls__image_strides(all, height, width);
    const dnnl_dims_t strides = {s.n, s.c, s.h, s.w};
    o->shape = (ls__layout_shape){4, {c->batch, channels, height, width}, type_of(p, i)};
    return ls__layout_strided(&o->given, &o->shape, strides);
}

/* The caller's layout of w of one part: [O,I,kh,kw], or [groups,O/groups,I,kh,kw], since oneDNN
 * wants the groups as a dimension of their own. */
static bool describe_weight(const plan *p, operand *o)
{
    const ls__conv2d *c = &p->part;
    int64_t in = c->in / c->groups, rows = c->kernel[0], columns = c->kernel[1];
    if (c->groups == 1) {
        o->shape = (ls__layout_shape){4, {c->out, in, rows, columns}, type_of(p, W)};
        return ls__layout_tagged(&o->given, &o->shape, dnnl_abcd);
    }
    o->shape =
        (ls__layout_shape){5, {c->groups, c->out / c->groups, in, rows, columns}, type_of(p, W)};
    return ls__layout_tagged(&o->given, &o->shape, dnnl_abcde);
}

/* The layout asked of oneDNN for operand i, of numbers of `type`: images keep their channels last
 * unless a part has only some channels, for no kernel takes one image this way, the other that; or
 * few pixels make blocked layouts faster, reorders included. The rest is oneDNN's choice. */
static bool describe_wanted(const plan *p, int i, dnnl_data_type_t type, dnnl_memory_desc_t *out)
{
    const ls__conv2d *c = &p->part;
    const bool blocks = c->out != p->of.conv.out || (p->of.pass == LS__CONV2D_FORWARD &&
                                                     c->out_height * c->out_width <= FEW_PIXELS);
    ls__layout_shape shape = p->operand[i].shape;
    shape.type = type;
    return ls__layout_tagged(out, &shape, i == W || blocks ? dnnl_format_tag_any : dnnl_acdb);
}

/* A sum that is not finished is float32. */
static dnnl_data_type_t wanted_type(const plan *p, int i)
{
    const bool unfinished = i == p->output && (i == W || p->of.adds);
    return unfinished ? dnnl_f32 : type_of(p, i);
}

/* All layouts of a part. */
static bool describe(plan *p)
{
    const ls__layout_shape bias = {1, {p->part.out}, dnnl_f32};
    operand *o = p->operand;
    bool made = describe_image(p, X, &o[X]) && describe_weight(p, &o[W]) &&
                describe_image(p, Y, &o[Y]) && ls__layout_tagged(&p->bias, &bias, dnnl_a);
    for (int i = 0; made && i < OPERANDS; i++) {
        made = describe_wanted(p, i, wanted_type(p, i), &o[i].wanted);
    }
    return made;
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
    ls__image x = ls__image_strides(c->in, c->height, c->width);
    ls__image y = ls__image_strides(c->out, c->out_height, c->out_width);
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
static ls__conv_layouts layouts_of(const plan *p)
{
    const ls__conv2d *c = &p->part;
    const operand *o = p->operand;
    return (ls__conv_layouts){.x = &o[X].wanted,
                              .w = &o[W].wanted,
                              .bias = p->of.biased ? &p->bias : NULL,
                              .y = &o[Y].wanted,
                              .stride = {c->stride[0], c->stride[1]},
                              .gaps = {c->dilation[0] - 1, c->dilation[1] - 1},
                              .padding = {c->padding[0], c->padding[1]}};
}

/* The forward pass that a backward one belongs to: the same layouts, of the types that one has. */
static bool describe_hint(const plan *p, dnnl_primitive_attr_t attributes,
                          dnnl_primitive_desc_t *out)
{
    ls__conv_layouts of = layouts_of(p);
    dnnl_memory_desc_t input;
    if (!describe_wanted(p, p->output, p->of.half ? dnnl_bf16 : dnnl_f32, &input)) {
        return false;
    }
    *(p->output == X ? &of.x : &of.w) = &input;
    bool made = ls__describe_conv_forward(out, &of, attributes, p->engine);
    ls__layout_fini(&input);
    return made;
}

static bool describe_pass(plan *p, dnnl_primitive_attr_t attributes)
{
    const ls__conv_layouts of = layouts_of(p);
    dnnl_primitive_desc_t hint = NULL;
    if (p->of.pass == LS__CONV2D_FORWARD) {
        return ls__describe_conv_forward(&p->description, &of, attributes, p->engine);
    }
    bool made = describe_hint(p, attributes, &hint);
    if (made && p->of.pass == LS__CONV2D_BACKWARD_X) {
        made = ls__describe_conv_backward_x(&p->description, &of, hint, attributes, p->engine);
    } else if (made) {
        made = ls__describe_conv_backward_w(&p->description, &of, hint, attributes, p->engine);
    }
    if (hint != NULL) {
        (void)dnnl_primitive_desc_destroy(hint);
    }
    return made;
}

/* oneDNN's plain loops take any layout and a hundred times as long. Without bfloat16 instructions
 * its kernels for bfloat16 are slower than float32's on widened numbers. */
static bool is_fast(const plan *p, dnnl_primitive_desc_t description)
{
    const char *name = NULL;
    return (!p->of.half || ls__onednn_has_bf16()) &&
           is_ok(dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0,
                                           (void *)&name)) &&
           strncmp(name, "ref", 3) != 0;
}

/* The primitive, for one thread, whose scratch memory is the caller's. */
static bool make_convolution(plan *p)
{
    dnnl_primitive_attr_t attributes = NULL;
    bool made =
        is_ok(dnnl_primitive_attr_create(&attributes)) &&
        is_ok(dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user)) &&
        describe_pass(p, attributes) && is_fast(p, p->description) &&
        is_ok(dnnl_primitive_create(&p->convolution, p->description));
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    return made;
}

/* Adds to the output instead of overwriting it. */
static bool add_sum(dnnl_primitive_attr_t attributes)
{
    dnnl_post_ops_t sum = NULL;
    bool added = is_ok(dnnl_post_ops_create(&sum)) && ls__append_sum(sum) &&
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
    if (ls__layout_equal(from, to) && !adds && !(back && p->summed)) {
        return true;
    }
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    bool made = is_ok(dnnl_primitive_attr_create(&attributes)) && (!adds || add_sum(attributes)) &&
                ls__describe_reorder(&description, from, to, attributes, p->engine) &&
                is_ok(dnnl_primitive_create(&o->reorder, description));
    if (description != NULL) {
        (void)dnnl_primitive_desc_destroy(description);
    }
    if (attributes != NULL) {
        (void)dnnl_primitive_attr_destroy(attributes);
    }
    o->copy_bytes = ls__round_up(ls__layout_bytes(&o->wanted), ALIGN);
    return made;
}

/* Puts the layout that oneDNN chose for operand i in the place of the wish. */
static bool choose(plan *p, int i)
{
    static const dnnl_query_t read[OPERANDS] = {dnnl_query_src_md, dnnl_query_weights_md,
                                                dnnl_query_dst_md};
    static const dnnl_query_t gradient[OPERANDS] = {
        dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md};
    const dnnl_query_t which = ls__conv_is_gradient(p, i) ? gradient[i] : read[i];
    ls__layout_fini(&p->operand[i].wanted);
    return ls__layout_chosen(&p->operand[i].wanted, p->description, which);
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
        operand *o = &p->operand[i];
        if (o->reorder != NULL) {
            (void)dnnl_primitive_destroy(o->reorder);
        }
        ls__layout_fini(&o->given);
        ls__layout_fini(&o->wanted);
    }
    ls__layout_fini(&p->bias);
    ls__layout_fini(&p->scratch);
    (void)dnnl_primitive_destroy(p->convolution);
    if (p->description != NULL) {
        (void)dnnl_primitive_desc_destroy(p->description);
    }
    if (p->engine != NULL) {
        (void)dnnl_engine_destroy(p->engine);
    }
}

/* A stream and handles of one thread; threads must not share handles, whose data pointers
 * change. */
static bool slot_make(const plan *p, slot *s)
{
    bool made = is_ok(dnnl_stream_create(&s->stream, p->engine, dnnl_stream_default_flags));
    for (int i = 0; made && i < OPERANDS; i++) {
        made = ls__memory_new(&s->given[i], &p->operand[i].given, p->engine) &&
               ls__memory_new(&s->wanted[i], &p->operand[i].wanted, p->engine);
    }
    return made && ls__memory_new(&s->scratch, &p->scratch, p->engine) &&
           (!p->of.biased || ls__memory_new(&s->bias, &p->bias, p->engine));
}

/* Primitives are made for one thread, except the reorders of operands that all parts share. */
static bool make_primitives(plan *p)
{
    int threads = p->of.threads;
    ls__threads_set(1);
    bool made = is_ok(dnnl_engine_create(&p->engine, dnnl_cpu, 0)) && describe(p) &&
                make_convolution(p) &&
                ls__layout_chosen(&p->scratch, p->description, dnnl_query_scratchpad_md);
    if (made) {
        p->slot_bytes = ls__round_up(ls__layout_bytes(&p->scratch), ALIGN);
    }
    for (int i = 0; made && i < OPERANDS; i++) {
        operand *o = &p->operand[i];
        ls__threads_set(o->stride == 0 ? threads : 1);
        made = choose(p, i) && make_reorder(p, i);
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

static void report_refusal(const request *r)
{
    static const char *const passes[] = {"forward", "backward to x", "backward to w"};
    const ls__conv2d *c = &r->conv;
    char what[192];
    (void)snprintf(what, sizeof what,
                   "a convolution of %s %s, x [%lld,%lld,%lld,%lld], w [%lld,%lld,%lld,%lld]",
                   r->half ? "bfloat16" : "float32", passes[r->pass], (long long)c->batch,
                   (long long)c->in, (long long)c->height, (long long)c->width, (long long)c->out,
                   (long long)(c->in / c->groups), (long long)c->kernel[0],
                   (long long)c->kernel[1]);
    ls__onednn_refused(
        what, (double)ls__conv2d_weights(c) * (double)(c->batch * c->out_height * c->out_width),
        r->half);
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
        report_refusal(&p->of);
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
    if (!ls__onednn_present()) {
        return NULL;
    }
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
