/* SPDX-License-Identifier: Apache-2.0 */
/* A vision transformer, written with public headers only.
 *
 *     image [B,3,H,W] -> patches [B,S-1,3pp] -> conv_proj -> class token in front, positions ->
 *     encoder layers -> norm -> the class token's row -> head -> logits [B,classes]
 *
 *     layer:  x = x + attention(ln_1(x))
 *             x = x + mlp(ln_2(x))
 *
 * Patches do not overlap, so conv_proj is computed as a matrix product over them.
 */
#include <lockstep/models/vit.h>

#include <math.h>
#include <stdio.h>

/* A module that only contributes its name to the names of the parameters. */
static ls_module *container(ls_module *parent, const char *name)
{
    return ls_module_add(parent, name, ls_sequential_new(NULL, 0));
}

/* A new parameter, N(0, std) or, with std 0, zero. */
static ls_tensor *parameter(ls_module *m, const char *name, ls_shape shape, double std)
{
    const bool zero = !(std > 0.0);
    ls_tensor *made = ls_module_add_param(
        m, name, zero ? ls_zeros(shape, LS_FLOAT32) : ls_empty(shape, LS_FLOAT32));
    if (!zero) {
        (void)ls_fill_normal(made, 0.0, std); /* fails only as the parameter did */
    }
    return made;
}

/* torchvision's initialisation: weight U(-bound, bound), bias N(0, bias_std). */
static ls_module *linear(int64_t in, int64_t out, ls_activation activation, double bound,
                         double bias_std)
{
    ls_module *layer = NULL;
    ls_param params[2]; /* weight, bias */
    {
        LS_SKIP_INIT(true);
        layer = ls_linear_new(in, out, LS_OPTIONS(ls_linear_options, .activation = activation));
    }
    if (layer != NULL && ls_module_params(layer, params, 2) == 2) {
        (void)ls_fill_uniform(params[0].value, -bound, bound);
        (void)ls_fill_normal(params[1].value, 0.0, bias_std);
    }
    return layer;
}

static ls_module *norm(const ls_vit_options *o)
{
    return ls_layer_norm_new(o->dim, LS_OPTIONS(ls_layer_norm_options, .eps = 1e-6));
}

/* ---- one layer ---------------------------------------------------------------------------- */

typedef struct layer {
    ls_module base;
    ls_module *ln_1, *self_attention, *out_proj, *ln_2, *mlp, *drop;
    ls_tensor *in_weight, *in_bias; /* [3C,C], [3C] */
    int64_t head_dim;
    bool recompute;
} layer;

/* Part i of [B,S,3C] as heads [B,H,S,D]: views only. */
static ls_tensor *heads_of(const layer *self, ls_tensor *qkv, int i)
{
    return ls_tensor_parallel_heads(qkv, i, 3, self->head_dim);
}

static ls_tensor *attend(layer *self, ls_tensor *x) /* [B,S,C] -> [B,S,C] */
{
    ls_tensor *qkv = ls_tensor_parallel_linear(self->self_attention, x, self->in_weight,
                                               self->in_bias, LS_ACTIVATION_NONE);
    ls_tensor *seen = ls_transpose(
        ls_attention(heads_of(self, qkv, 0), heads_of(self, qkv, 1), heads_of(self, qkv, 2), NULL),
        1, 2);
    return ls_forward(self->out_proj,
                      ls_reshape(seen, LS_SHAPE(ls_size(seen, 0), ls_size(seen, 1), -1)));
}

static ls_tensor *layer_body(ls_tensor *x, void *layer_of) /* [B,S,C] -> [B,S,C] */
{
    layer *self = layer_of;
    ls_tensor *attended = attend(self, ls_forward(self->ln_1, x));
    x = ls_add(x, ls_forward(self->drop, attended));
    return ls_add(x, ls_forward(self->mlp, ls_forward(self->ln_2, x)));
}

/* With `recompute` only x is kept until backward. */
static ls_tensor *layer_forward(ls_module *m, ls_tensor *x)
{
    layer *self = (layer *)m;
    return self->recompute ? ls_recompute_call(layer_body, x, self) : layer_body(x, self);
}

static const ls_module_class layer_class =
    LS_MODULE_CLASS(.name = "encoder_layer", .forward = layer_forward);

/* The bound of Glorot & Bengio 2010. */
static double xavier(int64_t in, int64_t out)
{
    return sqrt(6.0 / (double)(in + out));
}

static ls_module *layer_new(const ls_vit_options *o)
{
    layer *self = ls_module_new(sizeof *self, &layer_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    const int64_t c = o->dim;
    const double bound = xavier(c, o->wide);
    self->head_dim = o->dim / o->heads;
    self->recompute = o->recompute;
    self->ln_1 = ls_module_add(m, "ln_1", norm(o));
    ls_module *attention = container(m, "self_attention");
    self->self_attention = attention;
    self->in_weight =
        ls_module_add_param(attention, "in_proj_weight", ls_empty(LS_SHAPE(3 * c, c), LS_FLOAT32));
    (void)ls_fill_uniform(self->in_weight, -xavier(c, 3 * c), xavier(c, 3 * c));
    self->in_bias = parameter(attention, "in_proj_bias", LS_SHAPE(3 * c), 0.0);
    self->out_proj = ls_module_add(attention, "out_proj",
                                   linear(c, c, LS_ACTIVATION_NONE, 1.0 / sqrt((double)c), 0.0));
    self->ln_2 = ls_module_add(m, "ln_2", norm(o));
    ls_module *steps[] = {linear(c, o->wide, LS_ACTIVATION_GELU, bound, 1e-6),
                          ls_identity_new(), /* in the place of torchvision's GELU */
                          ls_dropout_new(o->dropout),
                          linear(o->wide, c, LS_ACTIVATION_NONE, bound, 1e-6),
                          ls_dropout_new(o->dropout)};
    self->mlp = ls_module_add(m, "mlp", ls_sequential_new(steps, 5)); /* "0" … "4" */
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    return m; /* its status is its parent's */
}

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct vit {
    ls_module base;
    ls_module *drop, *layers, *ln, *head;
    ls_tensor *class_token, *proj_weight, *proj_bias, *positions;
    int64_t patch;
} vit;

/* [B,P,H,W] -> [B, H/p W/p, P p p]: each row is a patch, in the order of the kernel's weights. */
static ls_tensor *patches_of(ls_tensor *x, int64_t p)
{
    int64_t b = ls_size(x, 0), planes = ls_size(x, 1);
    int64_t rows = ls_size(x, 2) / p, columns = ls_size(x, 3) / p;
    ls_tensor *cut = ls_reshape(x, LS_SHAPE(b, planes, rows, p, columns, p));
    ls_tensor *patches = ls_permute(cut, LS_SHAPE(0, 2, 4, 1, 3, 5));
    return ls_reshape(patches, LS_SHAPE(b, rows * columns, planes * p * p));
}

static ls_tensor *embed(ls_module *m, ls_tensor *const *x) /* [B,P,H,W] -> [B,S,C] */
{
    vit *self = (vit *)m;
    int64_t b = ls_size(x[0], 0), c = ls_size(self->class_token, 2);
    ls_tensor *kernel = ls_reshape(self->proj_weight, LS_SHAPE(c, -1));
    ls_tensor *patches = ls_linear(patches_of(x[0], self->patch), kernel, self->proj_bias);
    ls_tensor *first = ls_add(self->class_token, ls_zeros(LS_SHAPE(b, 1, 1), LS_FLOAT32));
    ls_tensor *y = ls_concat((ls_tensor *[]){first, patches}, 2, 1);
    return ls_forward(self->drop, ls_tensor_parallel_between(m, ls_add(y, self->positions), 1));
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,S,C] -> [B,classes] */
{
    vit *self = (vit *)m;
    ls_tensor *y = ls_tensor_parallel_whole(m, ls_forward(self->ln, x[0]), 1);
    y = ls_slice(y, 1, 0, 1);
    return ls_forward(self->head, ls_reshape(y, LS_SHAPE(ls_size(y, 0), ls_size(y, 2))));
}

static ls_tensor *vit_forward(ls_module *m, ls_tensor *x) /* [B,P,H,W] -> [B,classes] */
{
    x = ls_forward(((vit *)m)->layers, embed(m, &x));
    return head(m, &x);
}

static void vit_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add(parts, &LS_PART(.name = "embed", .run = embed,
                                 .uses = "class_token conv_proj encoder.pos_embedding "
                                         "encoder.dropout"));
    ls_parts_add_children(parts, ((vit *)m)->layers);
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head, .uses = "encoder.ln heads"));
}

#define LAYER "encoder.layers.*."
static const ls_module_class vit_class =
    LS_MODULE_CLASS(.name = "vit", .forward = vit_forward, .parts = vit_parts,
                    .plan = LAYER "self_attention.in_proj_*=shard(0,3) " LAYER
                                  "self_attention.out_proj=row " LAYER "mlp.0=column " LAYER
                                  "mlp.3=row " LAYER "ln_*=sequence encoder.ln=sequence");

/* Names and order are those of torchvision's VisionTransformer. */
static void build(vit *self, const ls_vit_options *o)
{
    ls_module *m = &self->base;
    const int64_t c = o->dim, across = o->image / o->patch, fan = o->channels * o->patch * o->patch;
    self->patch = o->patch;
    self->class_token = parameter(m, "class_token", LS_SHAPE(1, 1, c), 0.0);
    ls_module *proj = container(m, "conv_proj");
    self->proj_weight = parameter(proj, "weight", LS_SHAPE(c, o->channels, o->patch, o->patch),
                                  1.0 / sqrt((double)fan));
    self->proj_bias = parameter(proj, "bias", LS_SHAPE(c), 0.0);
    ls_module *encoder = container(m, "encoder");
    self->positions =
        parameter(encoder, "pos_embedding", LS_SHAPE(1, across * across + 1, c), 0.02);
    self->drop = ls_module_add(encoder, "dropout", ls_dropout_new(o->dropout));
    self->layers = container(encoder, "layers");
    for (int i = 0; self->layers && i < o->layers; i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "encoder_layer_%d", i);
        (void)ls_module_add(self->layers, name, layer_new(o));
    }
    self->ln = ls_module_add(encoder, "ln", norm(o));
    /* As in torchvision the head is zero at first, so an untrained model prefers no class. */
    self->head = ls_module_add(container(m, "heads"), "head",
                               linear(c, o->classes, LS_ACTIVATION_NONE, 0.0, 0.0));
}

ls_module *ls_vit_new(const ls_vit_options *options)
{
    LS_READ_OPTIONS(ls_vit_options, given, options, __func__, NULL);
    const ls_vit_options *o = &given;
    if (o->heads < 1 || o->layers < 1 || o->dim % o->heads != 0 || o->patch < 1 ||
        o->image % o->patch != 0) {
        (void)ls_fail(LS_ERR_INVALID,
                      "vit: %d layers, %d heads, dim %lld, image %lld, patch %lld; there must be "
                      "one of each, dim a multiple of heads and image of patch",
                      o->layers, o->heads, (long long)o->dim, (long long)o->image,
                      (long long)o->patch);
        return NULL;
    }
    vit *self = ls_module_new(sizeof *self, &vit_class);
    if (self == NULL) {
        return NULL;
    }
    build(self, o);
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    return &self->base;
}
