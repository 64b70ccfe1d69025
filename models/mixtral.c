/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral, written with public headers only.
 *
 *     tokens [B,T] -> embed_tokens -> layers.0 … layers.N -> norm -> lm_head -> logits [B,T,V]
 *
 *     layer:  x = x + self_attn(input_layernorm(x))      rotary positions, grouped keys and values
 *             x = x + block_sparse_moe(post_attention_layernorm(x))
 */
#include <lockstep/models/mixtral.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/rotary_attention.h>

/* ---- one layer ------------------------------------------------------------------------------ */

typedef struct block {
    ls_module base;
    ls_module *input_norm, *attention, *post_norm, *experts;
    bool recompute;
} block;

/* x + part, which no gradient needs, so it is freed before backward. */
static ls_tensor *added(ls_tensor *x, ls_tensor *part)
{
    ls_tensor *sum = ls_add(x, part);
    ls_free(part);
    return sum;
}

/* The second output is the loss of the gate, which a recomputed function has to give out. Experts
 * see whole sequences, which choose as those of one process. */
static ls_status block_body(ls_tensor *const *in, int n, ls_tensor **out, int m, void *block_of)
{
    (void)n, (void)m;
    block *self = block_of;
    ls_tensor *normed = ls_forward(self->input_norm, in[0]);
    ls_tensor *x = added(in[0], ls_forward(self->attention, normed));
    ls_free(normed);
    normed = ls_forward(self->post_norm, x);
    ls_tensor *whole = ls_tensor_parallel_whole(&self->base, normed, 1);
    LS_TRY(ls_forward_many(self->experts, &whole, 1, out, 2));
    if (whole != normed) {
        ls_free(whole);
    }
    ls_free(normed);
    out[0] = added(x, ls_tensor_parallel_between(&self->base, out[0], 1));
    return LS_OK;
}

/* With `recompute` only x is kept until backward. */
static ls_tensor *block_forward(ls_module *m, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    block *self = (block *)m;
    ls_tensor *out[2] = {NULL, NULL};
    const ls_status status = self->recompute
                                 ? ls_recompute_call_many(block_body, &x, 1, out, 2, self)
                                 : block_body(&x, 1, out, 2, self);
    if (status == LS_OK) {
        (void)ls_moe_set_loss(self->experts, out[1]);
    }
    return out[0];
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static ls_module *experts_new(const ls_mixtral_options *o)
{
    return ls_moe_new(o->dim, o->hidden,
                      LS_OPTIONS(ls_moe_options, .experts = o->experts, .top_k = o->top_k,
                                 .capacity = o->capacity, .padded = o->padded,
                                 .gate = LS_MOE_SOFTMAX_LAST, .gated = true,
                                 .balance_loss = o->balance_loss));
}

static ls_module *attention_new(const ls_mixtral_options *o, ls_kv_cache *const *cache)
{
    return ls_rotary_attention_new(LS_OPTIONS(ls_rotary_attention_options, .heads = o->heads,
                                              .kv_heads = o->kv_heads, .dim = o->dim,
                                              .head_dim = o->head_dim, .rope_base = o->rope_base,
                                              .rope_scaling = o->rope_scaling, .cache = cache));
}

static ls_module *block_new(const ls_mixtral_options *o, ls_kv_cache *const *cache)
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
    self->experts = ls_module_add(m, "block_sparse_moe", experts_new(o));
    return m;
}

/* ---- the model ------------------------------------------------------------------------------ */

typedef struct mixtral {
    ls_module base;
    ls_module *tokens, *layers, *norm, *head;
    ls_kv_cache *cache; /* during ls_mixtral_forward_cached; else NULL */
    int64_t context;
    ls_module_class cls; /* this model's, because `plan` depends on its shape */
    char plan[400];
} mixtral;

static ls_tensor *embed(ls_module *m, ls_tensor *const *x) /* [B,T] -> [B,T,C] */
{
    return ls_tensor_parallel_between(m, ls_forward(((mixtral *)m)->tokens, x[0]), 1);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,V] */
{
    mixtral *self = (mixtral *)m;
    return ls_forward(self->head, ls_forward(self->norm, x[0]));
}

static ls_tensor *mixtral_forward(ls_module *m, ls_tensor *x) /* [B,T] -> [B,T,V] */
{
    x = ls_forward(((mixtral *)m)->layers, embed(m, &x));
    return head(m, &x);
}

static void mixtral_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add(parts, &LS_PART(.name = "embed", .run = embed, .uses = "model.embed_tokens"));
    ls_parts_add_children(parts, ((mixtral *)m)->layers);
    ls_parts_add(parts, &LS_PART(.name = "head", .run = head, .uses = "model.norm lm_head"));
}

static const ls_module_class mixtral_class =
    LS_MODULE_CLASS(.name = "mixtral", .forward = mixtral_forward, .parts = mixtral_parts);

#define LAYER "model.layers.*."
#define PLAN                                                                                       \
    LAYER "self_attn.q_proj=column " LAYER "self_attn.k_proj=column(heads=%d) " LAYER              \
          "self_attn.v_proj=column(heads=%d) " LAYER "self_attn.o_proj=row " LAYER                 \
          "*_layernorm=sequence model.norm=sequence model.embed_tokens=vocab lm_head=column"

/* Experts are whole on each rank. Ranks may share a head of keys and values, so the plan has their
 * number. */
static void write_plan(mixtral *self, const ls_mixtral_options *o)
{
    const int heads = o->kv_heads != 0 ? o->kv_heads : o->heads;
    (void)snprintf(self->plan, sizeof self->plan, PLAN, heads, heads);
    self->cls = mixtral_class;
    self->cls.plan = self->plan;
    self->base.cls = &self->cls;
}

/* Failures are recorded in the module, whose status ls_mixtral_new checks once. */
static void build(mixtral *self, const ls_mixtral_options *o)
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
    self->head = ls_module_add(
        &self->base, "lm_head",
        ls_linear_new(o->dim, o->vocab, LS_OPTIONS(ls_linear_options, .bias = false)));
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

static void draw_all(mixtral *self, double std)
{
    draw(self->tokens, std);
    draw(self->head, std);
    for (int i = 0; i < ls_module_child_count(self->layers); i++) {
        draw(ls_module_child_at(self->layers, i), std);
    }
}

static ls_status check(const ls_mixtral_options *o)
{
    return o->layers > 0 && o->context > 0
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "mixtral: %d layers, a context of %lld; give at least one of each",
                         o->layers, (long long)o->context);
}

ls_module *ls_mixtral_new(const ls_mixtral_options *options)
{
    LS_READ_OPTIONS(ls_mixtral_options, o, options, __func__, NULL);
    mixtral *self = check(&o) == LS_OK ? ls_module_new(sizeof *self, &mixtral_class) : NULL;
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
    return &self->base;
}

/* ---- files ---------------------------------------------------------------------------------- */

/* The start of "w1", "w2" or "w3" in "…block_sparse_moe.w1"; NULL: it is no stack. */
static const char *stack_in(const char *name)
{
    static const char layer[] = "block_sparse_moe.";
    const char *end = strrchr(name, '.');
    const size_t before = end != NULL ? (size_t)(end + 1 - name) : 0, length = strlen(layer);
    const bool is_one = before >= length && end[1] == 'w' && end[2] != '\0' && end[3] == '\0' &&
                        strncmp(name + before - length, layer, length) == 0;
    return is_one ? end + 1 : NULL;
}

ls_status ls_mixtral_show(const ls_state_visitor *to, const char *name,
                          const ls_state_tensor *tensor)
{
    const char *stack = stack_in(name);
    if (stack == NULL) {
        return to->tensor(to->self, name, tensor);
    }
    ls_state_tensor one = {.dtype = tensor->dtype, .ndim = tensor->ndim - 1};
    int64_t elements = 1;
    for (int d = 0; d < one.ndim; d++) {
        one.global[d] = tensor->global[d + 1];
        one.start[d] = tensor->start[d + 1];
        one.local[d] = tensor->local[d + 1];
        elements *= one.local[d];
    }
    for (int64_t e = 0; e < tensor->local[0]; e++) {
        char path[512];
        one.data = (char *)tensor->data + e * elements * (int64_t)ls_dtype_size(one.dtype);
        (void)snprintf(path, sizeof path, "%.*sexperts.%lld.%s.weight", (int)(stack - name), name,
                       (long long)(tensor->start[0] + e), stack);
        LS_TRY(to->tensor(to->self, path, &one));
    }
    return LS_OK;
}

/* The state of a model as it is in a file, and the experts of which it has no tensors. */
typedef struct shown {
    ls_module *model;
    const ls_state_visitor *to;
    int64_t first, end, all; /* experts of this rank, and of a layer */
} shown;

static ls_status show_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    shown *s = self;
    if (stack_in(name) != NULL) {
        s->first = tensor->start[0];
        s->end = s->first + tensor->local[0];
        s->all = tensor->global[0];
    }
    return ls_mixtral_show(s->to, name, tensor);
}

static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status shown_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    shown *s = object;
    s->to = visitor;
    return ls_module_state(s->model, prefix,
                           &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                               .self = s,
                                               .tensor = show_tensor,
                                               .int64 = skip_int64,
                                               .float64 = skip_float64});
}

static ls_checkpoint_item item_of(shown *s)
{
    return (ls_checkpoint_item){
        .size = sizeof(ls_checkpoint_item), .prefix = "", .object = s, .state = shown_state};
}

/* Experts of other ranks. */
static bool is_elsewhere(void *arg, const char *name, bool in_file)
{
    static const char before[] = ".block_sparse_moe.experts.";
    const shown *s = arg;
    const char *at = in_file ? strstr(name, before) : NULL;
    const long long e = at != NULL ? strtoll(at + strlen(before), NULL, 10) : -1;
    return e >= 0 && e < s->all && (e < s->first || e >= s->end);
}

ls_status ls_mixtral_load(ls_module *model, const char *path)
{
    shown s = {.model = ls_ddp_module(model)};
    const ls_checkpoint_item item = item_of(&s);
    return ls_safetensors_load(
        path, &item, 1, LS_OPTIONS(ls_safetensors_options, .allow = is_elsewhere, .arg = &s));
}

ls_status ls_mixtral_save(ls_module *model, const char *path)
{
    shown s = {.model = ls_ddp_module(model)};
    const ls_checkpoint_item item = item_of(&s);
    return ls_safetensors_save(path, &item, 1, NULL);
}

/* ---- generation with a cache ---------------------------------------------------------------- */

/* A wrapper has no cache, and its `self` is not a mixtral. */
static ls_status check_plain(const ls_module *m)
{
    return m->cls->forward == mixtral_forward
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "mixtral: the module's class is %s; a cache is for the plain model of "
                         "ls_mixtral_new",
                         m->cls->name);
}

ls_kv_cache *ls_mixtral_cache_new(ls_module *m, int64_t batch)
{
    const mixtral *self = (mixtral *)m;
    return check_plain(m) < 0
               ? NULL
               : ls_kv_cache_new(
                     ls_module_child_count(self->layers), batch, self->context,
                     ls_rotary_attention_keys(ls_module_child(self->layers, "0.self_attn")));
}

/* The head computes only the last positions. */
ls_status ls_mixtral_forward_cached(ls_module *m, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                                    ls_tensor **logits)
{
    mixtral *self = (mixtral *)m;
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
