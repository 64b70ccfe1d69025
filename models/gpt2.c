/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2, written with public headers only.
 *
 *     tokens [B,T] -> wte + wpe -> h.0 … h.N -> ln_f -> times wte^T -> logits [B,T,V]
 *
 *     h.i:  x = x + attn(ln_1(x))         attn: c_attn, heads, causal attention, c_proj
 *           x = x + mlp(ln_2(x))          mlp:  c_fc, GELU (tanh form), c_proj
 */
#include <lockstep/models/gpt2.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The end of a constructor: returns the module, or frees it and returns NULL, with its first error
 * set. */
static ls_module *finished(ls_module *m)
{
    if (m != NULL && ls_module_status(m) < 0) {
        ls_module_free(m);
        return NULL;
    }
    return m;
}

/* x + drop(part). No gradient needs what is added, so it is freed before backward. */
static ls_tensor *added(ls_tensor *x, ls_module *drop, ls_tensor *part)
{
    ls_tensor *dropped = ls_forward(drop, part);
    ls_tensor *sum = ls_add(dropped, x);
    ls_free(dropped);
    if (dropped != part) {
        ls_free(part);
    }
    return sum;
}

/* ---- Conv1D: a linear layer whose weight is transposed, [in,out] --------------------------- */

typedef struct conv1d {
    ls_module base;
    ls_tensor *weight, *bias; /* [in,out], [out] */
    ls_activation activation;
} conv1d;

static ls_tensor *conv1d_forward(ls_module *m, ls_tensor *x) /* [..,in] -> [..,out] */
{
    conv1d *self = (conv1d *)m;
    return ls_tensor_parallel_linear(m, x, ls_transpose(self->weight, 0, 1), self->bias,
                                     self->activation);
}

static const ls_module_class conv1d_class =
    LS_MODULE_CLASS(.name = "Conv1D", .forward = conv1d_forward);

/* weight N(0, std), bias 0. */
static ls_module *conv1d_new(int64_t in, int64_t out, ls_activation activation, double std)
{
    conv1d *self = ls_module_new(sizeof *self, &conv1d_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    self->activation = activation;
    self->weight = ls_module_add_param(m, "weight", ls_empty(LS_SHAPE(in, out), LS_FLOAT32));
    self->bias = ls_module_add_param(m, "bias", ls_zeros(LS_SHAPE(out), LS_FLOAT32));
    (void)ls_fill_normal(self->weight, 0.0, std); /* fails only as the parameter did */
    return finished(m);
}

/* ---- one block ---------------------------------------------------------------------------- */

typedef struct attention {
    ls_module base;
    ls_module *c_attn, *c_proj;
    int64_t head_dim;
    double dropout;
    ls_kv_cache *const
        *cache; /* points to the model's, which is set during ls_gpt2_forward_cached */
} attention;

/* Part i of [B,T,3C]: a view. */
static ls_tensor *part_of(ls_tensor *qkv, int i)
{
    int64_t c = ls_size(qkv, 2) / 3;
    return ls_slice(qkv, 2, i * c, (i + 1) * c);
}

static ls_tensor *heads_of(attention *self, ls_tensor *qkv, int i)
{
    return ls_tensor_parallel_heads(qkv, i, 3, self->head_dim);
}

/* Of the cache's view [B,T,C]: this rank's heads, if those of qkv are. */
static ls_tensor *cached_heads(const attention *self, ls_tensor *x, const ls_tensor *qkv)
{
    (void)ls_place_like(x, qkv); /* fails only where an operation after it does */
    return ls_tensor_parallel_heads(x, 0, 1, self->head_dim);
}

/* Keys and values are those of earlier tokens as well where there is a cache. */
static ls_tensor *attend(attention *self, ls_tensor *qkv) /* [B,T,3C] -> [B,H,T,D] */
{
    ls_tensor *keys = heads_of(self, qkv, 1), *values = heads_of(self, qkv, 2);
    if (*self->cache) {
        ls_tensor *k = part_of(qkv, 1), *v = part_of(qkv, 2);
        ls_kv_cache_extend(*self->cache, &k, &v);
        keys = cached_heads(self, k, qkv);
        values = cached_heads(self, v, qkv);
    }
    return ls_attention(heads_of(self, qkv, 0), keys, values,
                        LS_OPTIONS(ls_attention_options, .causal = true,
                                   .dropout = self->base.training ? self->dropout : 0.0));
}

static ls_tensor *attention_forward(ls_module *m, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    attention *self = (attention *)m;
    ls_tensor *seen = ls_transpose(attend(self, ls_forward(self->c_attn, x)), 1, 2);
    return ls_forward(self->c_proj,
                      ls_reshape(seen, LS_SHAPE(ls_size(seen, 0), ls_size(seen, 1), -1)));
}

static const ls_module_class attention_class =
    LS_MODULE_CLASS(.name = "attn", .forward = attention_forward);

typedef struct mlp {
    ls_module base;
    ls_module *c_fc, *c_proj;
} mlp;

static ls_tensor *mlp_forward(ls_module *m, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    mlp *self = (mlp *)m;
    return ls_forward(self->c_proj, ls_forward(self->c_fc, x));
}

static const ls_module_class mlp_class = LS_MODULE_CLASS(.name = "mlp", .forward = mlp_forward);

typedef struct block {
    ls_module base;
    ls_module *ln_1, *attn, *ln_2, *mlp, *drop;
    bool recompute;
} block;

static ls_tensor *block_body(ls_tensor *x, void *block_of) /* [B,T,C] -> [B,T,C] */
{
    block *self = block_of;
    x = added(x, self->drop, ls_forward(self->attn, ls_forward(self->ln_1, x)));
    return added(x, self->drop, ls_forward(self->mlp, ls_forward(self->ln_2, x)));
}

/* With `recompute` only x is kept until backward. */
static ls_tensor *block_forward(ls_module *m, ls_tensor *x)
{
    block *self = (block *)m;
    return self->recompute ? ls_recompute_call(block_body, x, self) : block_body(x, self);
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static ls_module *attention_new(const ls_gpt2_options *o, double residual,
                                ls_kv_cache *const *cache)
{
    attention *self = ls_module_new(sizeof *self, &attention_class);
    if (self == NULL) {
        return NULL;
    }
    self->head_dim = o->dim / o->heads;
    self->dropout = o->dropout;
    self->cache = cache;
    self->c_attn = ls_module_add(&self->base, "c_attn",
                                 conv1d_new(o->dim, 3 * o->dim, LS_ACTIVATION_NONE, o->init_std));
    self->c_proj = ls_module_add(&self->base, "c_proj",
                                 conv1d_new(o->dim, o->dim, LS_ACTIVATION_NONE, residual));
    return &self->base; /* its status is its parent's */
}

static ls_module *ls_mlp_new(const ls_gpt2_options *o, double residual)
{
    mlp *self = ls_module_new(sizeof *self, &mlp_class);
    if (self == NULL) {
        return NULL;
    }
    self->c_fc = ls_module_add(
        &self->base, "c_fc", conv1d_new(o->dim, 4 * o->dim, LS_ACTIVATION_GELU_TANH, o->init_std));
    self->c_proj = ls_module_add(&self->base, "c_proj",
                                 conv1d_new(4 * o->dim, o->dim, LS_ACTIVATION_NONE, residual));
    return &self->base;
}

static ls_module *norm_new(const ls_gpt2_options *o)
{
    return ls_layer_norm_new(o->dim, LS_OPTIONS(ls_layer_norm_options, .eps = o->eps));
}

/* The weights of the two projections into the residual have std / sqrt(2 layers) (Radford et al.
 * 2019). */
static ls_module *block_new(const ls_gpt2_options *o, ls_kv_cache *const *cache)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    if (self == NULL) {
        return NULL;
    }
    ls_module *m = &self->base;
    double residual = o->init_std / sqrt(2.0 * o->layers);
    self->recompute = o->recompute;
    self->ln_1 = ls_module_add(m, "ln_1", norm_new(o));
    self->attn = ls_module_add(m, "attn", attention_new(o, residual, cache));
    self->ln_2 = ls_module_add(m, "ln_2", norm_new(o));
    self->mlp = ls_module_add(m, "mlp", ls_mlp_new(o, residual));
    self->drop = ls_module_add(m, "drop", ls_dropout_new(o->dropout));
    return m;
}

/* ---- the model ---------------------------------------------------------------------------- */

typedef struct gpt2 {
    ls_module base;
    ls_module *wte, *h, *ln_f, *drop;
    ls_tensor *tokens, *positions; /* [V,C], the head as well; [context,C] */
    ls_kv_cache *cache;            /* during ls_gpt2_forward_cached; else NULL */
    int layers;
} gpt2;

/* Tokens whose first is at position `first`: [B,T] -> [B,T,C]. */
static ls_tensor *embed_at(gpt2 *self, ls_tensor *x, int64_t first)
{
    ls_tensor *where = ls_slice(self->positions, 0, first, first + ls_size(x, -1)); /* [T,C] */
    ls_module *m = &self->base;
    ls_tensor *tokens = ls_tensor_parallel_between(m, ls_forward(self->wte, x), 1);
    return ls_forward(self->drop, ls_add(tokens, ls_tensor_parallel_between(m, where, 0)));
}

static ls_tensor *embed(ls_module *m, ls_tensor *const *x)
{
    return embed_at((gpt2 *)m, x[0], 0);
}

static ls_tensor *head(ls_module *m, ls_tensor *const *x) /* [B,T,C] -> [B,T,V] */
{
    gpt2 *self = (gpt2 *)m;
    return ls_tensor_parallel_linear(m, ls_forward(self->ln_f, x[0]), self->tokens, NULL,
                                     LS_ACTIVATION_NONE);
}

static ls_tensor *gpt2_forward(ls_module *m, ls_tensor *x) /* [B,T] -> [B,T,V] */
{
    x = ls_forward(((gpt2 *)m)->h, embed(m, &x));
    return head(m, &x);
}

/* The embedding of the tokens is tied to the head: the first and the last part use it. */
static void gpt2_parts(ls_module *m, ls_parts *parts)
{
    ls_parts_add(parts, &LS_PART(.name = "embed", .run = embed,
                                 .uses = "transformer.wte transformer.wpe transformer.drop"));
    ls_parts_add_children(parts, ((gpt2 *)m)->h);
    ls_parts_add(parts,
                 &LS_PART(.name = "head", .run = head, .uses = "transformer.ln_f transformer.wte"));
}

#define BLOCK "transformer.h.*."
static const ls_module_class gpt2_class =
    LS_MODULE_CLASS(.name = "gpt2", .forward = gpt2_forward, .parts = gpt2_parts,
                    .plan = BLOCK
                    "attn.c_attn.weight=shard(1,3) " BLOCK "attn.c_attn.bias=shard(0,3) " BLOCK
                    "*.c_proj.weight=shard(0) " BLOCK "*.c_proj.bias=sequence " BLOCK
                    "mlp.c_fc.weight=shard(1) " BLOCK "mlp.c_fc.bias=shard(0) " BLOCK
                    "ln_*=sequence transformer.ln_f=sequence transformer.wpe=sequence "
                    "transformer.wte=vocab");

/* An embedding whose weight is N(0, std); *weight becomes the weight, NULL on failure. */
static ls_module *embedding_new(int64_t count, int64_t dim, double std, ls_tensor **weight)
{
    ls_module *m = NULL;
    ls_param made = {0};
    {
        LS_SKIP_INIT(true);
        m = ls_embedding_new(count, dim);
    }
    if (m != NULL && ls_module_params(m, &made, 1) == 1) {
        (void)ls_fill_normal(made.value, 0.0, std);
    }
    *weight = made.value;
    return m;
}

/* Names and order are those of GPT2LMHeadModel. */
static void build(gpt2 *self, const ls_gpt2_options *o)
{
    /* A module that only contributes its name to the names of the parameters. */
    ls_module *t = ls_module_add(&self->base, "transformer", ls_sequential_new(NULL, 0));
    const double std = o->init_std;
    self->wte = ls_module_add(t, "wte", embedding_new(o->vocab, o->dim, std, &self->tokens));
    (void)ls_module_add(t, "wpe", embedding_new(o->context, o->dim, std, &self->positions));
    self->drop = ls_module_add(t, "drop", ls_dropout_new(o->dropout));
    self->h = ls_module_add(t, "h", ls_sequential_new(NULL, 0));
    self->layers = o->layers;
    for (int i = 0; self->h && i < o->layers; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(self->h, name, block_new(o, &self->cache));
    }
    self->ln_f = ls_module_add(t, "ln_f", norm_new(o));
}

/* ---- generation with a cache -------------------------------------------------------------- */

/* A wrapper has no cache, and its `self` is not a gpt2. */
static ls_status check_plain(const ls_module *m)
{
    return m->cls == &gpt2_class
               ? LS_OK
               : ls_fail(LS_ERR_INVALID,
                         "gpt2: the module's class is %s; a cache is for the plain "
                         "model of ls_gpt2_new",
                         m->cls->name);
}

/* Of keys and values of this rank's heads. */
static int64_t own_dim(const gpt2 *self)
{
    const ls_tensor *bias =
        self->layers > 0 ? ls_module_param(self->h, "0.attn.c_attn.bias") : NULL;
    return bias != NULL ? ls_size(bias, 0) / 3 : 0;
}

ls_kv_cache *ls_gpt2_cache_new(ls_module *m, int64_t batch)
{
    const gpt2 *self = (gpt2 *)m;
    return check_plain(m) < 0
               ? NULL
               : ls_kv_cache_new(self->layers, batch, ls_size(self->positions, 0), own_dim(self));
}

/* The head computes only the last positions, since a vocabulary of logits costs more than a
 * block. */
ls_status ls_gpt2_forward_cached(ls_module *m, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                                 ls_tensor **logits)
{
    gpt2 *self = (gpt2 *)m;
    LS_TRY(check_plain(m));
    LS_TRY(ls_kv_cache_check(m, x, last));
    int64_t tokens = ls_size(x, 1);
    LS_TRY(ls_kv_cache_begin(cache, ls_size(x, 0), tokens));
    {
        LS_NO_GRAD;
        self->cache = cache;
        ls_tensor *y = embed_at(self, x, ls_kv_cache_length(cache));
        y = ls_slice(ls_forward(self->h, y), 1, tokens - last, tokens);
        self->cache = NULL;
        *logits = ls_tensor_parallel_whole(m, head(m, &y), 2);
    }
    LS_TRY(ls_tensor_status(*logits));
    return ls_kv_cache_commit(cache);
}

/* ---- the published sizes ------------------------------------------------------------------ */

static const struct {
    const char *name;
    int layers, heads;
    int64_t dim;
} variants[] = {{"gpt2", 12, 12, 768},
                {"gpt2-medium", 24, 16, 1024},
                {"gpt2-large", 36, 20, 1280},
                {"gpt2-xl", 48, 25, 1600}};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* Sets layers, heads and dim of the variant; false: the variant does not exist. */
static bool resolve(ls_gpt2_options *o)
{
    for (int i = 0; o->variant && i < VARIANTS; i++) {
        if (strcmp(o->variant, variants[i].name) == 0) {
            o->layers = variants[i].layers;
            o->heads = variants[i].heads;
            o->dim = variants[i].dim;
            return true;
        }
    }
    return !o->variant;
}

/* Also fills in the variant. */
static ls_status check(ls_gpt2_options *o)
{
    if (!resolve(o)) {
        return ls_fail(LS_ERR_INVALID,
                       "gpt2: there is no variant \"%s\"; give gpt2, gpt2-medium, gpt2-large or "
                       "gpt2-xl",
                       o->variant);
    }
    if (o->heads < 1 || o->layers < 1 || o->dim % o->heads != 0) {
        return ls_fail(LS_ERR_INVALID,
                       "gpt2: %d layers, %d heads, dim %lld; there must be one of each, and dim a "
                       "multiple of heads",
                       o->layers, o->heads, (long long)o->dim);
    }
    return LS_OK;
}

ls_module *ls_gpt2_new(const ls_gpt2_options *options)
{
    LS_READ_OPTIONS(ls_gpt2_options, o, options, __func__, NULL);
    if (check(&o) < 0) {
        return NULL;
    }
    gpt2 *self = ls_module_new(sizeof *self, &gpt2_class);
    if (self == NULL) {
        return NULL;
    }
    build(self, &o);
    return finished(&self->base);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* A parameter of a block, or of the rest of the model: name and shape (dim[1] 0: one dimension). */
typedef struct row {
    const char *name;
    int64_t dim[2];
} row;

enum { BLOCK_ROWS = 12, OTHER_ROWS = 4 };

/* All parameters, in the order of the model. */
static void rows_of(const ls_gpt2_options *o, row in_block[BLOCK_ROWS], row others[OTHER_ROWS])
{
    const int64_t c = o->dim;
    const row of_block[BLOCK_ROWS] = {{"ln_1.weight", {c, 0}},
                                      {"ln_1.bias", {c, 0}},
                                      {"attn.c_attn.weight", {c, 3 * c}},
                                      {"attn.c_attn.bias", {3 * c, 0}},
                                      {"attn.c_proj.weight", {c, c}},
                                      {"attn.c_proj.bias", {c, 0}},
                                      {"ln_2.weight", {c, 0}},
                                      {"ln_2.bias", {c, 0}},
                                      {"mlp.c_fc.weight", {c, 4 * c}},
                                      {"mlp.c_fc.bias", {4 * c, 0}},
                                      {"mlp.c_proj.weight", {4 * c, c}},
                                      {"mlp.c_proj.bias", {c, 0}}};
    const row of_others[OTHER_ROWS] = {{"wte.weight", {o->vocab, c}},
                                       {"wpe.weight", {o->context, c}},
                                       {"ln_f.weight", {c, 0}},
                                       {"ln_f.bias", {c, 0}}};
    memcpy(in_block, of_block, sizeof of_block);
    memcpy(others, of_others, sizeof of_others);
}

static int64_t elements(const row *r)
{
    return r->dim[0] * (r->dim[1] ? r->dim[1] : 1);
}

ls_gpt2_memory ls_gpt2_memory_of(const ls_gpt2_options *options, int64_t batch, int64_t tokens)
{
    ls_gpt2_memory sum = {0};
    LS_READ_OPTIONS(ls_gpt2_options, o, options, __func__, sum);
    row in_block[BLOCK_ROWS], others[OTHER_ROWS];
    if (!resolve(&o)) {
        return sum;
    }
    rows_of(&o, in_block, others);
    for (int i = 0; i < BLOCK_ROWS; i++) {
        sum.parameters += o.layers * elements(&in_block[i]);
    }
    for (int i = 0; i < OTHER_ROWS; i++) {
        sum.parameters += elements(&others[i]);
    }
    const int64_t bytes = sizeof(float);
    sum.parameter_bytes = sum.gradient_bytes = bytes * sum.parameters;
    /* Per token: a block keeps 16 C elements (norms 2, c_attn 3, heads 1, c_fc and GELU 8, sums 2);
     * with recomputation it keeps its input, and one block at a time keeps all. Backward has
     * gradients of 8 C elements at a time, and the head has the logits and their gradient. */
    const int64_t kept = o.recompute ? 16 * o.dim + o.dim * o.layers : 16 * o.dim * o.layers;
    const int64_t blocks = kept + 8 * o.dim;
    sum.activation_bytes = bytes * batch * tokens * (blocks + 2 * o.vocab);
    sum.total_bytes = sum.parameter_bytes + sum.gradient_bytes + sum.activation_bytes;
    return sum;
}

static void print_row(FILE *out, const char *prefix, const row *r, int64_t times)
{
    char name[64], shape[48];
    (void)snprintf(name, sizeof name, "%s%s", prefix, r->name);
    if (r->dim[1]) {
        (void)snprintf(shape, sizeof shape, "[%lld,%lld]", (long long)r->dim[0],
                       (long long)r->dim[1]);
    } else {
        (void)snprintf(shape, sizeof shape, "[%lld]", (long long)r->dim[0]);
    }
    (void)fprintf(out, "%-44s %-14s %12lld", name, shape, (long long)elements(r));
    (void)(times > 1 ? fprintf(out, " x %lld\n", (long long)times) : fprintf(out, "\n"));
}

void ls_gpt2_describe(const ls_gpt2_options *options, FILE *out)
{
    LS_READ_OPTIONS(ls_gpt2_options, o, options, __func__, );
    row in_block[BLOCK_ROWS], others[OTHER_ROWS];
    if (!resolve(&o)) {
        return;
    }
    rows_of(&o, in_block, others);
    for (int i = 0; i < 2; i++) {
        print_row(out, "transformer.", &others[i], 1);
    }
    char prefix[40];
    (void)snprintf(prefix, sizeof prefix, "transformer.h.{0..%d}.", o.layers - 1);
    for (int i = 0; i < BLOCK_ROWS; i++) {
        print_row(out, prefix, &in_block[i], o.layers);
    }
    for (int i = 2; i < OTHER_ROWS; i++) {
        print_row(out, "transformer.", &others[i], 1);
    }
    ls_gpt2_memory sum = ls_gpt2_memory_of(&o, 1, o.context);
    (void)fprintf(out, "%-44s %-14s %12lld\n", "sum (the head is wte.weight)", "",
                  (long long)sum.parameters);
}

/* ---- published weights -------------------------------------------------------------------- */

static const char container[] = "transformer.";

/* The published files contain GPT2Model, whose names have no "transformer." before them. */
static bool name_on_the_hub(void *arg, const char *name, int number, char *out, size_t bytes)
{
    (void)arg;
    size_t skip = strlen(container);
    return number == 0 && strncmp(name, container, skip) == 0 &&
           (size_t)snprintf(out, bytes, "%s", name + skip) < bytes;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* The causal mask stored as a tensor, and the head, which is the token embedding again. */
static bool is_no_weight(void *arg, const char *name, bool in_file)
{
    (void)arg;
    return in_file && (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
                       strcmp(name, "lm_head.weight") == 0);
}

ls_status ls_gpt2_load(ls_module *model, const char *path)
{
    return ls_module_load_safetensors(
        model, path,
        LS_OPTIONS(ls_safetensors_options, .other_name = name_on_the_hub, .allow = is_no_weight));
}
