/* SPDX-License-Identifier: Apache-2.0 */
/* GPT, written with public headers only.
 *
 *     tokens [B,T] -> embedding + position -> block x layers -> norm -> head -> logits [B,T,V]
 *
 *     block:  x = x + proj(attention(split(qkv(norm1(x)))))
 *             x = x + down(gelu(up(norm2(x))))       or, in every second one, + experts(norm2(x))
 */
#include <lockstep/models/gpt.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONTEXT "cp" /* the axis whose ranks share a sequence */

/* ---- one block ---------------------------------------------------------------------------- */

typedef struct block {
    ls_module base;
    ls_module *norm1, *qkv, *proj, *norm2, *up, *down, *drop;
    ls_module *experts; /* in place of up and down; or NULL */
    int64_t head_dim;
    bool recompute;
    ls_kv_cache *const
        *cache; /* points to the model's, which is set during ls_gpt_forward_cached */
} block;

/* Part i of [B,T,3C]: a view. */
static ls_tensor *part_of(ls_tensor *qkv, int i)
{
    int64_t c = ls_size(qkv, 2) / 3;
    return ls_slice(qkv, 2, i * c, (i + 1) * c);
}

/* Keys (1) and values (2), with those of earlier tokens where there is a cache: [B,H,T,D]. */
static ls_tensor *heads_of(block *self, ls_tensor *qkv, int i)
{
    return ls_tensor_parallel_heads(qkv, i, 3, self->head_dim);
}

/* Of the cache's view [B,T,C]: this rank's heads, if those of qkv are. */
static ls_tensor *cached_heads(const block *self, ls_tensor *x, const ls_tensor *qkv)
{
    (void)ls_place_like(x, qkv); /* fails only where an operation after it does */
    return ls_tensor_parallel_heads(x, 0, 1, self->head_dim);
}

static ls_tensor *attention(block *self, ls_tensor *qkv) /* [B,T,3C] -> [B,H,T,D] */
{
    ls_tensor *keys = heads_of(self, qkv, 1), *values = heads_of(self, qkv, 2);
    if (*self->cache) {
        ls_tensor *k = part_of(qkv, 1), *v = part_of(qkv, 2);
        ls_kv_cache_extend(*self->cache, &k, &v);
        keys = cached_heads(self, k, qkv);
        values = cached_heads(self, v, qkv);
    }
    ls_tensor *queries = heads_of(self, qkv, 0);
    const ls_attention_options *causal = LS_OPTIONS(ls_attention_options, .causal = true);
    return ls_context_divides(queries, CONTEXT)
               ? ls_ring_attention(queries, keys, values, CONTEXT, causal)
               : ls_attention(queries, keys, values, causal);
}

static ls_tensor *attend(block *self, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    ls_tensor *seen = ls_transpose(attention(self, ls_forward(self->qkv, x)), 1, 2);
    return ls_forward(self->proj,
                      ls_reshape(seen, LS_SHAPE(ls_size(seen, 0), ls_size(seen, 1), -1)));
}

/* x + dropped(part). No gradient needs what is added, so it is freed before backward. */
static ls_tensor *added(block *self, ls_tensor *x, ls_tensor *part)
{
    ls_tensor *dropped = ls_forward(self->drop, part);
    ls_tensor *sum = ls_add(x, dropped);
    ls_free(dropped);
    if (dropped != part) {
        ls_free(part);
    }
    return sum;
}

static ls_tensor *with_attention(block *self, ls_tensor *x)
{
    ls_tensor *normed = ls_forward(self->norm1, x);
    x = added(self, x, attend(self, normed));
    ls_free(normed); /* what a gradient needs of it is kept, perhaps the gathered copy alone */
    return x;
}

static ls_tensor *block_body(ls_tensor *x, void *block_of) /* [B,T,C] -> [B,T,C] */
{
    block *self = block_of;
    x = with_attention(self, x);
    ls_tensor *normed = ls_forward(self->norm2, x);
    ls_tensor *wide = ls_forward(self->up, normed);
    ls_free(normed);
    return added(self, x, ls_forward(self->down, wide));
}

/* The second output is the loss of the gate, which a recomputed function has to give out. Experts
 * see whole sequences, which choose as those of one process. */
static ls_status experts_body(ls_tensor *const *in, int n, ls_tensor **out, int m, void *block_of)
{
    (void)n, (void)m;
    block *self = block_of;
    ls_tensor *x = with_attention(self, in[0]), *normed = ls_forward(self->norm2, x);
    ls_tensor *whole = ls_tensor_parallel_whole(&self->base, normed, 1);
    LS_TRY(ls_forward_many(self->experts, &whole, 1, out, 2));
    ls_free(normed);
    if (whole != normed) {
        ls_free(whole);
    }
    out[0] = added(self, x, ls_tensor_parallel_between(&self->base, out[0], 1));
    return LS_OK;
}

static ls_tensor *experts_forward(block *self, ls_tensor *x)
{
    ls_tensor *out[2];
    const ls_status status = self->recompute
                                 ? ls_recompute_call_many(experts_body, &x, 1, out, 2, self)
                                 : experts_body(&x, 1, out, 2, self);
    if (status == LS_OK) {
        (void)ls_moe_set_loss(self->experts, out[1]);
    }
    return out[0];
}

/* With `recompute` only x is kept until backward. */
static ls_tensor *block_forward(ls_module *m, ls_tensor *x)
{
    block *self = (block *)m;
    if (self->experts != NULL) {
        return experts_forward(self, x);
    }
    return self->recompute ? ls_recompute_call(block_body, x, self) : block_body(x, self);
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

/* A linear layer with GPT-2's initialisation; with `std` 0, PyTorch's remains. */
static ls_module *linear(int64_t in, int64_t out, const ls_linear_options *options, double std)
{
    ls_module *layer = NULL;
    ls_param params[2];
    {
        LS_SKIP_INIT(std > 0.0);
        layer = ls_linear_new(in, out, options);
    }
    if (layer == NULL || !(std > 0.0)) {
        return layer;
    }
    int count = ls_module_params(layer, params, 2); /* weight, bias */
    if (ls_fill_normal(params[0].value, 0.0, std) < 0 ||
        (count > 1 && ls_fill_constant(params[1].value, 0.0) < 0)) {
        ls_module_free(layer);
        return NULL;
    }
    return layer;
}

static bool ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

/* As the layers of an MLP: what is added to the residual stream is w2 and down. */
static bool init_experts(ls_module *experts, double std, double residual)
{
    ls_param params[8];
    const int count = ls_module_params(experts, params, 8);
    for (int i = 0; i < count && std > 0.0; i++) {
        const char *name = params[i].name;
        const bool bias = ends_in(name, "b1") || ends_in(name, "b2") || ends_in(name, "bias");
        const bool last = ends_in(name, "w2") || ends_in(name, "down.weight");
        if ((bias ? ls_fill_constant(params[i].value, 0.0)
                  : ls_fill_normal(params[i].value, 0.0, last ? residual : std)) < 0) {
            return false;
        }
    }
    return true;
}

static ls_module *experts_new(const ls_gpt_options *o, double residual)
{
    ls_module *experts = ls_moe_new(o->dim, 4 * o->dim, o->moe);
    if (experts != NULL && !init_experts(experts, o->init_std, residual)) {
        ls_module_free(experts);
        return NULL;
    }
    return experts;
}

static void add_mlp(block *self, const ls_gpt_options *o, double residual)
{
    ls_module *m = &self->base;
    const int64_t c = o->dim;
    self->up = ls_module_add(m, "up",
                             linear(c, 4 * c,
                                    LS_OPTIONS(ls_linear_options, .activation = LS_ACTIVATION_GELU),
                                    o->init_std));
    self->down = ls_module_add(m, "down", linear(4 * c, c, NULL, residual));
}

/* `cache` belongs to the model; it points to NULL except in ls_gpt_forward_cached. */
static ls_module *block_new(const ls_gpt_options *o, bool experts, ls_kv_cache *const *cache)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    int64_t c = o->dim;
    double std = o->init_std, residual = std / sqrt(2.0 * o->layers);
    self->head_dim = o->dim / o->heads;
    self->recompute = o->recompute;
    self->cache = cache;
    self->norm1 = ls_module_add(m, "norm1", ls_layer_norm_new(c, NULL));
    self->qkv = ls_module_add(m, "qkv", linear(c, 3 * c, NULL, std));
    self->proj = ls_module_add(m, "proj", linear(c, c, NULL, residual));
    self->norm2 = ls_module_add(m, "norm2", ls_layer_norm_new(c, NULL));
    if (experts) {
        self->experts = ls_module_add(m, "experts", experts_new(o, residual));
    } else {
        add_mlp(self, o, residual);
    }
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    return m; /* its status is its parent's */
}

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct gpt {
    ls_module base;
    ls_module *tokens, *blocks, *norm, *head, *drop;
    ls_tensor *positions; /* [context,C] */
    ls_kv_cache *cache;   /* during ls_gpt_forward_cached; else NULL */
    int layers;
} gpt;

/* The rows of the table of positions for tokens [B,T], whose first is at position `first`. */
static ls_tensor *positions_of(gpt *self, ls_tensor *x, int64_t first)
{
    if (ls_context_divides(x, CONTEXT)) {
        const int64_t length = ls_size(x, -1) * ls_mesh_size(ls_mesh_in_force(), CONTEXT);
        return ls_embedding(self->positions, ls_context_positions(CONTEXT, length));
    }
    return ls_slice(self->positions, 0, first, first + ls_size(x, -1));
}

/* Tokens whose first is at position `first`: [B,T] -> [B,T,C]. */
static ls_tensor *embed_at(gpt *self, ls_tensor *x, int64_t first)
{
    ls_module *m = &self->base;
    ls_tensor *where = positions_of(self, x, first); /* [T,C] */
    ls_tensor *tokens = ls_tensor_parallel_between(m, ls_forward(self->tokens, x), 1);
    return ls_forward(self->drop, ls_add(tokens, ls_tensor_parallel_between(m, where, 0)));
}

static ls_tensor *embed(ls_module *m, ls_tensor *const *x)
{
    return embed_at((gpt *)m, x[0], 0);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,V] */
{
    gpt *self = (gpt *)m;
    return ls_forward(self->head, ls_forward(self->norm, x[0]));
}

static ls_tensor *gpt_forward(ls_module *m, ls_tensor *x) /* [B,T] -> [B,T,V] */
{
    x = ls_forward(((gpt *)m)->blocks, embed(m, &x));
    return head(m, &x);
}

static void gpt_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add(parts, &LS_PART(.name = "embed", .run = embed, .uses = "tokens positions drop"));
    ls_parts_add_children(parts, ((gpt *)m)->blocks);
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head, .uses = "norm head"));
}

static const ls_module_class gpt_class = LS_MODULE_CLASS(
        .name = "gpt", .forward = gpt_forward, .parts = gpt_parts,
        .plan =
            "blocks.*.qkv=column(3) blocks.*.proj=row blocks.*.up=column blocks.*.down=row "
            "blocks.*.norm*=sequence norm=sequence positions=sequence tokens=vocab head=column");

/* With `std` 0, PyTorch's initialisation remains. */
static ls_module *embedding(int64_t count, int64_t dim, double std)
{
    ls_module *layer = NULL;
    ls_param weight;
    {
        LS_SKIP_INIT(std > 0.0);
        layer = ls_embedding_new(count, dim);
    }
    if (layer != NULL && std > 0.0) {
        (void)ls_module_params(layer, &weight, 1);
        (void)ls_fill_normal(weight.value, 0.0, std); /* cannot fail: the layer just did the same */
    }
    return layer;
}

/* Failures are recorded in the module; ls_gpt_new checks its status once. */
static void build(gpt *self, const ls_gpt_options *o)
{
    ls_module *m = &self->base;
    double std = o->init_std;
    self->tokens = ls_module_add(m, "tokens", embedding(o->vocab, o->dim, std));
    self->positions =
        ls_module_add_param(m, "positions", ls_empty(LS_SHAPE(o->context, o->dim), LS_FLOAT32));
    (void)ls_fill_normal(self->positions, 0.0, std > 0.0 ? std : 1.0);
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    self->blocks = ls_module_add(m, "blocks", ls_sequential_new(NULL, 0));
    self->layers = o->layers;
    for (int i = 0; self->blocks && i < o->layers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(self->blocks, name,
                            block_new(o, o->moe != NULL && i % 2 == 1, &self->cache));
    }
    self->norm = ls_module_add(m, "norm", ls_layer_norm_new(o->dim, NULL));
    /* Small weights, so that the loss of the untrained model is close to log(vocab). */
    self->head = ls_module_add(
        m, "head",
        linear(o->dim, o->vocab, LS_OPTIONS(ls_linear_options, .bias = false), std / 4.0));
}

ls_module *ls_gpt_new(const ls_gpt_options *options)
{
    LS_READ_OPTIONS(ls_gpt_options, given, options, __func__, NULL);
    const ls_gpt_options *o = &given;
    gpt *self = ls_module_new(sizeof *self, &gpt_class);
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

/* ---- generation with a cache -------------------------------------------------------------- */

/* A wrapper has no cache, and its `self` is not a gpt. */
static ls_status check_plain(const ls_module *m)
{
    return m->cls == &gpt_class ? LS_OK
                                : ls_fail(LS_ERR_INVALID,
                                          "gpt: the module's class is %s; a cache is for the plain "
                                          "model of ls_gpt_new",
                                          m->cls->name);
}

/* Of keys and values of this rank's heads. */
static int64_t own_dim(const gpt *self)
{
    const ls_tensor *bias = self->layers > 0 ? ls_module_param(self->blocks, "0.qkv.bias") : NULL;
    return bias != NULL ? ls_size(bias, 0) / 3 : 0;
}

ls_kv_cache *ls_gpt_cache_new(ls_module *m, int64_t batch)
{
    const gpt *self = (gpt *)m;
    return check_plain(m) < 0
               ? NULL
               : ls_kv_cache_new(self->layers, batch, ls_size(self->positions, 0), own_dim(self));
}

/* The head computes only the last positions. */
ls_status ls_gpt_forward_cached(ls_module *m, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                                ls_tensor **logits)
{
    gpt *self = (gpt *)m;
    LS_TRY(check_plain(m));
    LS_TRY(ls_kv_cache_check(m, x, last));
    int64_t tokens = ls_size(x, 1);
    LS_TRY(ls_kv_cache_begin(cache, ls_size(x, 0), tokens));
    {
        LS_NO_GRAD;
        self->cache = cache;
        ls_tensor *y = embed_at(self, x, ls_kv_cache_length(cache));
        y = ls_slice(ls_forward(self->blocks, y), 1, tokens - last, tokens);
        self->cache = NULL;
        *logits = ls_tensor_parallel_whole(m, head(m, &y), 2);
    }
    LS_TRY(ls_tensor_status(*logits));
    return ls_kv_cache_commit(cache);
}
