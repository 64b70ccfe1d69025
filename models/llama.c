/* SPDX-License-Identifier: Apache-2.0 */
/* Llama, written with public headers only.
 *
 *     tokens [B,T] -> embed_tokens -> layers.0 … layers.N -> norm -> lm_head -> logits [B,T,V]
 *
 *     layer:  x = x + self_attn(input_layernorm(x))
 *             x = x + mlp(post_attention_layernorm(x))      mlp: down(silu(gate(x)) up(x))
 */
#include <lockstep/models/llama.h>

#include <stdio.h>
#include <string.h>

#include <lockstep/models/rotary_attention.h>

/* ---- one layer ------------------------------------------------------------------------------ */

typedef struct mlp {
    ls_module base;
    ls_module *gate, *up, *down;
} mlp;

static ls_tensor *mlp_forward(ls_module *m, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    mlp *self = (mlp *)m;
    x = ls_tensor_parallel_input(m, x);
    return ls_forward(self->down, ls_mul(ls_forward(self->gate, x), ls_forward(self->up, x)));
}

static const ls_module_class mlp_class = LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);

static ls_module *linear(int64_t in, int64_t out, ls_activation activation)
{
    return ls_linear_new(in, out,
                         LS_OPTIONS(ls_linear_options, .bias = false, .activation = activation));
}

static ls_module *mlp_new(const ls_llama_options *o)
{
    mlp *self = ls_module_new(sizeof *self, &mlp_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->gate = ls_module_add(m, "gate_proj", linear(o->dim, o->hidden, LS_ACTIVATION_SILU));
    self->up = ls_module_add(m, "up_proj", linear(o->dim, o->hidden, LS_ACTIVATION_NONE));
    self->down = ls_module_add(m, "down_proj", linear(o->hidden, o->dim, LS_ACTIVATION_NONE));
    return m; /* its status is its parent's */
}

typedef struct block {
    ls_module base;
    ls_module *input_norm, *attention, *post_norm, *mlp;
    bool recompute;
} block;

/* x + layer(norm(x)). What is added, and the norm but for what the layer keeps of it, no gradient
 * needs, so it is freed before backward. */
static ls_tensor *with_layer(ls_tensor *x, ls_module *norm, ls_module *layer)
{
    ls_tensor *normed = ls_forward(norm, x), *part = ls_forward(layer, normed);
    ls_tensor *sum = ls_add(x, part);
    ls_free(part);
    ls_free(normed);
    return sum;
}

static ls_tensor *block_body(ls_tensor *x, void *block_of) /* [B,T,C] -> [B,T,C] */
{
    block *self = block_of;
    x = with_layer(x, self->input_norm, self->attention);
    return with_layer(x, self->post_norm, self->mlp);
}

/* With `recompute` only x is kept until backward. */
static ls_tensor *block_forward(ls_module *m, ls_tensor *x)
{
    block *self = (block *)m;
    return self->recompute ? ls_recompute_call(block_body, x, self) : block_body(x, self);
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static ls_module *attention_new(const ls_llama_options *o, ls_kv_cache *const *cache)
{
    return ls_rotary_attention_new(LS_OPTIONS(ls_rotary_attention_options, .heads = o->heads,
                                              .kv_heads = o->kv_heads, .dim = o->dim,
                                              .head_dim = o->head_dim, .rope_base = o->rope_base,
                                              .rope_scaling = o->rope_scaling, .cache = cache));
}

static ls_module *block_new(const ls_llama_options *o, ls_kv_cache *const *cache)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->recompute = o->recompute;
    self->input_norm = ls_module_add(m, "input_layernorm", ls_rms_norm_new(o->dim, o->eps));
    self->attention = ls_module_add(m, "self_attn", attention_new(o, cache));
    self->post_norm = ls_module_add(m, "post_attention_layernorm", ls_rms_norm_new(o->dim, o->eps));
    self->mlp = ls_module_add(m, "mlp", mlp_new(o));
    return m;
}

/* ---- the model ------------------------------------------------------------------------------ */

typedef struct llama {
    ls_module base;
    ls_module *tokens, *layers, *norm;
    ls_module *head;    /* NULL: the table of tokens is the head */
    ls_tensor *table;   /* [V,C] */
    ls_kv_cache *cache; /* during ls_llama_forward_cached; else NULL */
    int64_t context;
    ls_module_class cls; /* this model's, because `plan` depends on its shape */
    char plan[400];
} llama;

static ls_tensor *embed(ls_module *m, ls_tensor *const *x) /* [B,T] -> [B,T,C] */
{
    return ls_tensor_parallel_between(m, ls_forward(((llama *)m)->tokens, x[0]), 1);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,V] */
{
    llama *self = (llama *)m;
    ls_tensor *normed = ls_forward(self->norm, x[0]);
    return self->head != NULL
               ? ls_forward(self->head, normed)
               : ls_tensor_parallel_linear(m, normed, self->table, NULL, LS_ACTIVATION_NONE);
}

static ls_tensor *llama_forward(ls_module *m, ls_tensor *x) /* [B,T] -> [B,T,V] */
{
    x = ls_forward(((llama *)m)->layers, embed(m, &x));
    return head(m, &x);
}

static void llama_parts(ls_module *m, ls_parts *parts)
{
    const llama *self = (llama *)m;
    ls_parts_add(parts, &LS_PART(.name = "embed", .run = embed, .uses = "model.embed_tokens"));
    ls_parts_add_children(parts, self->layers);
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head,
                                 .uses = self->head != NULL ? "model.norm lm_head"
                                                            : "model.norm model.embed_tokens"));
}

static const ls_module_class llama_class =
    LS_MODULE_CLASS(.name = "llama", .forward = llama_forward, .parts = llama_parts);

#define LAYER "model.layers.*."
#define PLAN                                                                                       \
    LAYER "self_attn.q_proj=column " LAYER "self_attn.k_proj=column(heads=%d) " LAYER              \
          "self_attn.v_proj=column(heads=%d) " LAYER "self_attn.o_proj=row " LAYER                 \
          "mlp.gate_proj=column " LAYER "mlp.up_proj=column " LAYER "mlp.down_proj=row " LAYER     \
          "*_layernorm=sequence model.norm=sequence model.embed_tokens=vocab%s"

/* Ranks may share a head of keys and values, so the plan has their number. */
static void write_plan(llama *self, const ls_llama_options *o)
{
    const int heads = o->kv_heads != 0 ? o->kv_heads : o->heads;
    (void)snprintf(self->plan, sizeof self->plan, PLAN, heads, heads,
                   o->tied ? "" : " lm_head=column");
    self->cls = llama_class;
    self->cls.plan = self->plan;
    self->base.cls = &self->cls;
}

/* Failures are recorded in the module, whose status ls_llama_new checks once. */
static void build(llama *self, const ls_llama_options *o)
{
    /* A module that only contributes its name to the names of the parameters. */
    ls_module *model = ls_module_add(&self->base, "model", ls_sequential_new(NULL, 0));
    self->context = o->context;
    self->tokens = ls_module_add(model, "embed_tokens", ls_embedding_new(o->vocab, o->dim));
    self->layers = ls_module_add(model, "layers", ls_sequential_new(NULL, 0));
    for (int i = 0; self->layers != NULL && i < o->layers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(self->layers, name, block_new(o, &self->cache));
    }
    self->norm = ls_module_add(model, "norm", ls_rms_norm_new(o->dim, o->eps));
    if (!o->tied) {
        self->head =
            ls_module_add(&self->base, "lm_head", linear(o->dim, o->vocab, LS_ACTIVATION_NONE));
    }
}

/* Matrices are N(0, std); norms keep their ones. */
static void draw(ls_module *m, double std)
{
    ls_param params[16];
    const int count = ls_module_params(m, params, 16);
    for (int i = 0; i < count; i++) {
        if (ls_ndim(params[i].value) > 1) {
            (void)ls_fill_normal(params[i].value, 0.0, std); /* cannot fail where it was made */
        }
    }
}

static void draw_all(llama *self, double std)
{
    draw(self->tokens, std);
    if (self->head != NULL) {
        draw(self->head, std);
    }
    for (int i = 0; i < ls_module_child_count(self->layers); i++) {
        draw(ls_module_child_at(self->layers, i), std);
    }
}

static ls_status check(const ls_llama_options *o)
{
    return o->layers > 0 && o->context > 0
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "llama: %d layers, a context of %lld; give at least one of each",
                         o->layers, (long long)o->context);
}

ls_module *ls_llama_new(const ls_llama_options *options)
{
    LS_READ_OPTIONS(ls_llama_options, o, options, __func__, NULL);
    llama *self = check(&o) == LS_OK ? ls_module_new(sizeof *self, &llama_class) : NULL;
    if (self == NULL) {
        return NULL;
    }
    write_plan(self, &o);
    {
        LS_SKIP_INIT(true);
        build(self, &o);
    }
    if (ls_module_status(&self->base) < 0) {
        ls_module_free(&self->base);
        return NULL;
    }
    draw_all(self, o.init_std);
    self->table = ls_module_param(self->tokens, "weight");
    return &self->base;
}

/* ---- files ---------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* The head of a tied model, which is the table again, and angles that early versions stored. */
static bool is_no_weight(void *tied, const char *name, bool in_file)
{
    return in_file && ((tied != NULL && strcmp(name, "lm_head.weight") == 0) ||
                       ends_with(name, ".rotary_emb.inv_freq"));
}

ls_status ls_llama_load(ls_module *model, const char *path)
{
    ls_module *plain = ls_ddp_module(model);
    const bool tied = ls_module_child_count(plain) == 1;
    return ls_module_load_safetensors(
        model, path,
        LS_OPTIONS(ls_safetensors_options, .allow = is_no_weight, .arg = tied ? model : NULL));
}

/* ---- generation with a cache ---------------------------------------------------------------- */

/* A wrapper has no cache, and its `self` is not a llama. */
static ls_status check_plain(const ls_module *m)
{
    return m->cls->forward == llama_forward
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "llama: the module's class is %s; a cache is for the plain model of "
                         "ls_llama_new",
                         m->cls->name);
}

ls_kv_cache *ls_llama_cache_new(ls_module *m, int64_t batch)
{
    const llama *self = (llama *)m;
    return check_plain(m) < 0
               ? NULL
               : ls_kv_cache_new(
                     ls_module_child_count(self->layers), batch, self->context,
                     ls_rotary_attention_keys(ls_module_child(self->layers, "0.self_attn")));
}

/* The head computes only the last positions. */
ls_status ls_llama_forward_cached(ls_module *m, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                                  ls_tensor **logits)
{
    llama *self = (llama *)m;
    LS_TRY(check_plain(m));
    LS_TRY(ls_kv_cache_check(m, x, last));
    const int64_t tokens = ls_size(x, 1);
    LS_TRY(ls_kv_cache_begin(cache, ls_size(x, 0), tokens));
    {
        LS_NO_GRAD;
        self->cache = cache;
        ls_tensor *y = ls_slice(ls_forward(self->layers, embed(m, &x)), 1, tokens - last, tokens);
        self->cache = NULL;
        *logits = ls_tensor_parallel_whole(m, head(m, &y), 2);
    }
    LS_TRY(ls_tensor_status(*logits));
    return ls_kv_cache_commit(cache);
}
