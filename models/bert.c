/* SPDX-License-Identifier: Apache-2.0 */
/* BERT with its masked language model head, written with public headers only.
 *
 *     tokens [B,T] -> embeddings, norm -> layer x layers -> dense, GELU, norm -> times word
 *     embeddings^T + bias -> logits [B,T,V]
 *
 *     layer:  x = norm(x + dense(attention(x)))
 *             x = norm(x + dense(gelu(dense(x))))
 *
 * The tree of modules follows the names of BertForMaskedLM. Some modules only contribute a name;
 * the module above them calls their children.
 */
#include <lockstep/models/bert.h>

#include <stdio.h>
#include <string.h>

/* ---- pieces ------------------------------------------------------------------------------- */

/* A module that only contributes its name to the names of the parameters. */
static ls_module *container(ls_module *parent, const char *name)
{
    return ls_module_add(parent, name, ls_sequential_new(NULL, 0));
}

/* A linear layer with BERT's initialisation: weight N(0, init_std), bias 0. */
static ls_module *linear(int64_t in, int64_t out, ls_activation activation,
                         const ls_bert_options *o)
{
    ls_module *layer = NULL;
    ls_param params[2]; /* weight, bias */
    {
        LS_SKIP_INIT(true);
        layer = ls_linear_new(in, out, LS_OPTIONS(ls_linear_options, .activation = activation));
    }
    if (layer != NULL && ls_module_params(layer, params, 2) == 2) {
        (void)ls_fill_normal(params[0].value, 0.0, o->init_std); /* cannot fail: was just done */
        (void)ls_fill_constant(params[1].value, 0.0);
    }
    return layer;
}

static ls_module *norm(const ls_bert_options *o)
{
    return ls_layer_norm_new(o->dim, LS_OPTIONS(ls_layer_norm_options, .eps = o->eps));
}

/* An embedding; *weight, unless NULL, is its weight [count,C]. */
static ls_module *embedding(int64_t count, const ls_bert_options *o, ls_tensor **weight)
{
    ls_module *layer = NULL;
    ls_param made = {0};
    {
        LS_SKIP_INIT(true);
        layer = ls_embedding_new(count, o->dim);
    }
    if (layer != NULL && ls_module_params(layer, &made, 1) == 1) {
        (void)ls_fill_normal(made.value, 0.0, o->init_std);
    }
    if (weight != NULL) {
        *weight = made.value;
    }
    return layer;
}

/* ---- embeddings --------------------------------------------------------------------------- */

typedef struct embeddings {
    ls_module base;
    ls_module *words, *norm, *drop;
    ls_module *types;
    ls_tensor *word, *position, *type; /* weights */
} embeddings;

/* tokens [B,T], types [B,T] or NULL: all 0 -> [B,T,C] */
static ls_status embeddings_forward(ls_module *m, ls_tensor *const *inputs, int input_count,
                                    ls_tensor **outputs, int output_count)
{
    embeddings *self = (embeddings *)m;
    if (input_count != 2 || output_count != 1) {
        return ls_fail(LS_ERR_INVALID,
                       "embeddings: %d inputs, %d outputs; it takes tokens and "
                       "types and gives one tensor",
                       input_count, output_count);
    }
    ls_tensor *where = ls_slice(self->position, 0, 0, ls_size(inputs[0], -1)); /* [T,C] */
    ls_tensor *type = inputs[1] != NULL
                          ? ls_tensor_parallel_between(m, ls_forward(self->types, inputs[1]), 1)
                          : ls_slice(self->type, 0, 0, 1); /* [1,C] */
    ls_tensor *words = ls_tensor_parallel_between(m, ls_forward(self->words, inputs[0]), 1);
    ls_tensor *y = ls_add(ls_add(words, type), ls_tensor_parallel_between(m, where, 0));
    outputs[0] = ls_forward(self->drop, ls_forward(self->norm, y));
    return LS_OK;
}

static const ls_module_class embeddings_class =
    LS_MODULE_CLASS(.name = "embeddings", .forward_many = embeddings_forward);

static embeddings *embeddings_new(const ls_bert_options *o)
{
    embeddings *self = ls_module_new(sizeof *self, &embeddings_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->words = ls_module_add(m, "word_embeddings", embedding(o->vocab, o, &self->word));
    (void)ls_module_add(m, "position_embeddings", embedding(o->context, o, &self->position));
    self->types = ls_module_add(m, "token_type_embeddings", embedding(o->types, o, &self->type));
    self->norm = ls_module_add(m, "LayerNorm", norm(o));
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    return self; /* its status is its parent's */
}

/* ---- one layer ---------------------------------------------------------------------------- */

typedef struct layer {
    ls_module base;
    ls_module *query, *key, *value, *joined, *norm1, *up, *down, *norm2, *drop;
    int64_t head_dim;
    double dropout;
    bool recompute;
} layer;

/* [B,T,C] -> [B,H,T,D] */
static ls_tensor *heads_of(const layer *self, ls_module *projection, ls_tensor *x)
{
    return ls_tensor_parallel_heads(ls_forward(projection, x), 0, 1, self->head_dim);
}

static ls_tensor *attend(layer *self, ls_tensor *x, ls_tensor *mask) /* [B,T,C] -> [B,T,C] */
{
    x = ls_tensor_parallel_input(&self->base, x);
    ls_tensor *seen =
        ls_attention(heads_of(self, self->query, x), heads_of(self, self->key, x),
                     heads_of(self, self->value, x),
                     LS_OPTIONS(ls_attention_options, .mask = mask,
                                .dropout = self->base.training ? self->dropout : 0.0));
    ls_tensor *rows = ls_transpose(seen, 1, 2);
    return ls_forward(self->joined,
                      ls_reshape(rows, LS_SHAPE(ls_size(rows, 0), ls_size(rows, 1), -1)));
}

/* norm(x + drop(part)). No gradient needs what is added, so it is freed before backward. */
static ls_tensor *joined(layer *self, ls_module *norm, ls_tensor *part, ls_tensor *x)
{
    ls_tensor *dropped = ls_forward(self->drop, part);
    ls_tensor *sum = ls_add(dropped, x);
    ls_free(dropped);
    if (dropped != part) {
        ls_free(part);
    }
    return ls_forward(norm, sum);
}

/* x [B,T,C], mask [B,1,1,T] or NULL -> [B,T,C] */
static ls_status layer_body(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                            int output_count, void *layer_of)
{
    layer *self = layer_of;
    if (input_count != 2 || output_count != 1) {
        return ls_fail(LS_ERR_INVALID,
                       "layer: %d inputs, %d outputs; it takes x and a mask and gives one tensor",
                       input_count, output_count);
    }
    ls_tensor *attended = attend(self, inputs[0], inputs[1]);
    ls_tensor *x = joined(self, self->norm1, attended, inputs[0]);
    ls_tensor *wide = ls_forward(self->up, x); /* with its GELU */
    outputs[0] = joined(self, self->norm2, ls_forward(self->down, wide), x);
    return LS_OK;
}

/* With `recompute` only x and the mask are kept until backward. */
static ls_status layer_forward(ls_module *m, ls_tensor *const *inputs, int input_count,
                               ls_tensor **outputs, int output_count)
{
    layer *self = (layer *)m;
    return self->recompute ? ls_recompute_call_many(layer_body, inputs, input_count, outputs,
                                                    output_count, self)
                           : layer_body(inputs, input_count, outputs, output_count, self);
}

static const ls_module_class layer_class =
    LS_MODULE_CLASS(.name = "layer", .forward_many = layer_forward);

/* Its status is checked by the model, as that of all parts. */
static ls_module *layer_new(const ls_bert_options *o)
{
    layer *self = ls_module_new(sizeof *self, &layer_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *attention = container(&self->base, "attention");
    ls_module *own = container(attention, "self");
    self->head_dim = o->dim / o->heads;
    self->dropout = o->dropout;
    self->recompute = o->recompute;
    self->query = ls_module_add(own, "query", linear(o->dim, o->dim, LS_ACTIVATION_NONE, o));
    self->key = ls_module_add(own, "key", linear(o->dim, o->dim, LS_ACTIVATION_NONE, o));
    self->value = ls_module_add(own, "value", linear(o->dim, o->dim, LS_ACTIVATION_NONE, o));
    ls_module *attended = container(attention, "output");
    self->joined = ls_module_add(attended, "dense", linear(o->dim, o->dim, LS_ACTIVATION_NONE, o));
    self->norm1 = ls_module_add(attended, "LayerNorm", norm(o));
    ls_module *intermediate = container(&self->base, "intermediate");
    self->up = ls_module_add(intermediate, "dense", linear(o->dim, o->wide, LS_ACTIVATION_GELU, o));
    ls_module *output = container(&self->base, "output");
    self->down = ls_module_add(output, "dense", linear(o->wide, o->dim, LS_ACTIVATION_NONE, o));
    self->norm2 = ls_module_add(output, "LayerNorm", norm(o));
    self->drop = ls_module_add(&self->base, "drop", ls_dropout_new(o->dropout));
    return &self->base;
}

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct bert {
    ls_module base;
    ls_module *embeddings, *layers, *dense, *norm;
    ls_tensor *words, *bias; /* [V,C], [V]: the decoder */
} bert;

#define HIDDEN 1e30 /* larger than any score; not infinity, because infinity times 0 is NaN */

/* 1 or 0 for each token -> 0 or -HIDDEN, which is added to the scores of its key. */
static ls_tensor *mask_of(ls_tensor *seen) /* [B,T] -> [B,1,1,T] */
{
    ls_tensor *mask = ls_scale(ls_add_scalar(ls_cast(seen, LS_FLOAT32), -1.0), HIDDEN);
    return ls_reshape(mask, LS_SHAPE(ls_size(seen, 0), 1, 1, ls_size(seen, -1)));
}

/* All of a stage's tensors exist, so without `seen` the mask is one of zeros. */
static ls_tensor *mask_part(ls_module *m, ls_tensor *const *inputs)
{
    (void)m;
    const int64_t b = ls_size(inputs[1], 0), t = ls_size(inputs[1], 1);
    return inputs[0] != NULL ? mask_of(inputs[0]) : ls_zeros(LS_SHAPE(b, 1, 1, t), LS_FLOAT32);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,V] */
{
    bert *self = (bert *)m;
    ls_tensor *y = ls_forward(self->norm, ls_forward(self->dense, x[0]));
    return ls_tensor_parallel_linear(m, y, self->words, self->bias, LS_ACTIVATION_NONE);
}

/* Calls the layers itself, because each takes the mask as a second input. */
static ls_tensor *run_layers(bert *self, ls_tensor *x, ls_tensor *mask)
{
    const int layers = ls_module_child_count(self->layers);
    for (int i = 0; i < layers; i++) {
        ls_tensor *inputs[] = {x, mask};
        (void)ls_forward_many(ls_module_child_at(self->layers, i), inputs, 2, &x, 1);
    }
    return x; /* poisoned if a layer failed */
}

/* tokens [B,T], types [B,T] and seen [B,T], the last two optional -> [B,T,V] */
static ls_status bert_forward(ls_module *m, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count)
{
    bert *self = (bert *)m;
    if (input_count > 3 || output_count != 1) {
        return ls_fail(LS_ERR_INVALID,
                       "bert: %d inputs, %d outputs; it takes tokens, types and a mask, and "
                       "gives logits",
                       input_count, output_count);
    }
    ls_tensor *const words[] = {inputs[0], input_count > 1 ? inputs[1] : NULL};
    ls_tensor *seen = input_count > 2 ? inputs[2] : NULL, *y = NULL;
    (void)ls_forward_many(self->embeddings, words, 2, &y, 1);
    y = run_layers(self, y, seen != NULL ? mask_of(seen) : NULL);
    outputs[0] = head(m, &y);
    return LS_OK;
}

/* Every layer takes the mask from the part "mask", which makes 0 of the input that is left out. */
static void bert_parts(ls_module *m, ls_parts *parts)
{
    bert *self = (bert *)m;
    const int mask = ls_parts_add(
        parts, &LS_PART(.name = "mask", .run = mask_part, .uses = "",
                        .from = (int[]){LS_PART_INPUT(2), LS_PART_INPUT(0)}, .from_count = 2));
    int before = ls_parts_add(parts, &LS_PART(.module = self->embeddings,
                                              .from = (int[]){LS_PART_INPUT(0), LS_PART_INPUT(1)},
                                              .from_count = 2));
    for (int i = 0; i < ls_module_child_count(self->layers); i++) {
        before = ls_parts_add(parts, &LS_PART(.module = ls_module_child_at(self->layers, i),
                                              .from = (int[]){before, mask}, .from_count = 2));
    }
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head,
                                 .uses = "cls bert.embeddings.word_embeddings"));
}

#define LAYER "bert.encoder.layer.*."
#define WORDS "bert.embeddings."
static const ls_module_class bert_class =
    LS_MODULE_CLASS(.name = "bert", .forward_many = bert_forward, .parts = bert_parts,
                    .plan = LAYER
                    "attention.self.*=column " LAYER "attention.output.dense=row " LAYER
                    "intermediate.dense=column " LAYER "output.dense=row " LAYER
                    "*.LayerNorm=sequence " LAYER "*.*.LayerNorm=sequence " WORDS
                    "LayerNorm=sequence " WORDS "position_embeddings=sequence " WORDS
                    "token_type_embeddings=sequence cls.predictions.transform.*=sequence " WORDS
                    "word_embeddings=vocab cls.predictions.bias=column");

/* Names and order are those of BertForMaskedLM. */
static void build(bert *self, const ls_bert_options *o)
{
    ls_module *body = container(&self->base, "bert");
    embeddings *first = embeddings_new(o);
    self->embeddings = ls_module_add(body, "embeddings", first ? &first->base : NULL);
    self->words = self->embeddings ? first->word : NULL;
    self->layers = container(container(body, "encoder"), "layer");
    for (int i = 0; self->layers && i < o->layers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(self->layers, name, layer_new(o));
    }
    ls_module *predictions = container(container(&self->base, "cls"), "predictions");
    self->bias = ls_module_add_param(predictions, "bias", ls_zeros(LS_SHAPE(o->vocab), LS_FLOAT32));
    ls_module *transform = container(predictions, "transform");
    self->dense = ls_module_add(transform, "dense", linear(o->dim, o->dim, LS_ACTIVATION_GELU, o));
    self->norm = ls_module_add(transform, "LayerNorm", norm(o));
}

ls_module *ls_bert_new(const ls_bert_options *options)
{
    LS_READ_OPTIONS(ls_bert_options, given, options, __func__, NULL);
    const ls_bert_options *o = &given;
    if (o->heads < 1 || o->layers < 1 || o->dim % o->heads != 0) {
        (void)ls_fail(LS_ERR_INVALID,
                      "bert: %d layers, %d heads, dim %lld; there must be one of each, and dim a "
                      "multiple of heads",
                      o->layers, o->heads, (long long)o->dim);
        return NULL;
    }
    bert *self = ls_module_new(sizeof *self, &bert_class);
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

ls_tensor *ls_bert_loss(ls_tensor *logits, ls_tensor *labels)
{
    return ls_tensor_parallel_cross_entropy(logits, labels, NULL);
}

/* ---- published weights -------------------------------------------------------------------- */

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Files made from the first TensorFlow checkpoints call the weight of a norm gamma and its bias
 * beta; names in files of BertModel do not begin with "bert.". Kind 1 is the first difference, 2
 * the second, 3 both. */
static bool older_name(void *arg, const char *name, int number, char *out, size_t bytes)
{
    (void)arg;
    const char *from = NULL, *to = NULL;
    int kind = number + 1;
    if (kind > 3) {
        return false;
    }
    if ((kind & 1) && ends_with(name, "LayerNorm.weight")) {
        from = "weight", to = "gamma";
    } else if ((kind & 1) && ends_with(name, "LayerNorm.bias")) {
        from = "bias", to = "beta";
    }
    const char *shown = (kind & 2) && begins_with(name, "bert.") ? name + strlen("bert.") : name;
    int kept = (int)(strlen(shown) - (from ? strlen(from) : 0));
    return (size_t)snprintf(out, bytes, "%.*s%s", kept, shown, to ? to : "") < bytes;
}

/* Heads of other tasks, the positions as a tensor, and the decoder, whose parameters are stored
 * twice. */
static bool is_no_weight(void *arg, const char *name, bool in_file)
{
    (void)arg;
    return in_file && (begins_with(name, "bert.pooler.") || begins_with(name, "pooler.") ||
                       begins_with(name, "cls.seq_relationship.") ||
                       begins_with(name, "cls.predictions.decoder.") ||
                       ends_with(name, "embeddings.position_ids"));
}

ls_status ls_bert_load(ls_module *model, const char *path)
{
    return ls_module_load_safetensors(
        model, path,
        LS_OPTIONS(ls_safetensors_options, .other_name = older_name, .allow = is_no_weight));
}
