/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of Llama and Mixtral, written with public headers only.
 *
 *     x -> q_proj, k_proj, v_proj -> heads -> q and k turned by their positions
 *       -> causal attention, a key head for heads / kv_heads query heads -> o_proj
 */
#include <lockstep/models/rotary_attention.h>

#define CONTEXT "cp" /* the axis whose ranks share a sequence */

typedef struct attention {
    ls_module base;
    ls_module *q, *k, *v, *o;
    int heads, kv_heads;
    int64_t head_dim;
    double rope_base;
    ls_rotary_scaling_options scaling;
    ls_kv_cache *const *cache;
} attention;

static ls_tensor *heads_of(const attention *self, ls_tensor *x) /* [B,T,H D] -> [B,H,T,D] */
{
    return ls_tensor_parallel_heads(x, 0, 1, self->head_dim);
}

static ls_tensor *joined(ls_tensor *x) /* [B,H,T,D] -> [B,T,H D] */
{
    return ls_reshape(ls_transpose(x, 1, 2), LS_SHAPE(ls_size(x, 0), ls_size(x, 2), -1));
}

static ls_kv_cache *cache_of(const attention *self)
{
    return self->cache != NULL ? *self->cache : NULL;
}

/* The gradient needs no x, which its caller frees. */
static ls_tensor *turned(const attention *self, ls_tensor *x)
{
    ls_tensor *heads = heads_of(self, x);
    ls_kv_cache *cache = cache_of(self);
    const int64_t first = cache != NULL ? ls_kv_cache_length(cache) : 0;
    ls_tensor *out = ls_context_divides(heads, CONTEXT)
                         ? ls_context_rotary_scaled(heads, CONTEXT, self->rope_base, &self->scaling)
                         : ls_rotary_scaled(heads, first, self->rope_base, &self->scaling);
    ls_free(heads);
    return out;
}

/* A cache keeps keys that are turned already. */
static void extend(const attention *self, ls_tensor *k, ls_tensor *v, ls_tensor **keys,
                   ls_tensor **values)
{
    ls_tensor *rows = joined(*keys), *columns = v;
    ls_kv_cache_extend(cache_of(self), &rows, &columns);
    (void)ls_place_like(rows, k); /* fails only where an operation after it does */
    (void)ls_place_like(columns, v);
    *keys = heads_of(self, rows);
    *values = heads_of(self, columns);
}

static ls_tensor *attention_forward(ls_module *m, ls_tensor *x) /* [B,T,C] -> [B,T,C] */
{
    const attention *self = (attention *)m;
    x = ls_tensor_parallel_input(m, x);
    ls_tensor *q = ls_forward(self->q, x), *k = ls_forward(self->k, x), *v = ls_forward(self->v, x);
    ls_tensor *queries = turned(self, q);
    ls_tensor *keys = turned(self, k), *values = heads_of(self, v);
    if (cache_of(self) != NULL) {
        extend(self, k, v, &keys, &values);
    }
    ls_free(q);
    ls_free(k);
    const ls_attention_options *causal = LS_OPTIONS(ls_attention_options, .causal = true);
    ls_tensor *seen = ls_context_divides(queries, CONTEXT)
                          ? ls_ring_attention(queries, keys, values, CONTEXT, causal)
                          : ls_attention(queries, keys, values, causal);
    return ls_forward(self->o, joined(seen));
}

static const ls_module_class attention_class =
    LS_MODULE_CLASS(.name = "self_attn", .forward = attention_forward);

static ls_status check(const ls_rotary_attention_options *o)
{
    if (o->heads < 1 || o->kv_heads < 1 || o->heads % o->kv_heads != 0) {
        return ls_fail(LS_ERR_INVALID,
                       "rotary_attention: %d heads, %d kv_heads; there must be one of each, and "
                       "heads a multiple of kv_heads",
                       o->heads, o->kv_heads);
    }
    if (o->head_dim < 2 || o->head_dim % 2 != 0) {
        return ls_fail(LS_ERR_INVALID,
                       "rotary_attention: a head's dimension is %lld; give an even head_dim, or a "
                       "dim of which heads is a divisor",
                       (long long)o->head_dim);
    }
    return LS_OK;
}

static ls_module *linear(int64_t in, int64_t out)
{
    return ls_linear_new(in, out, LS_OPTIONS(ls_linear_options, .bias = false));
}

ls_module *ls_rotary_attention_new(const ls_rotary_attention_options *options)
{
    LS_READ_OPTIONS(ls_rotary_attention_options, o, options, __func__, NULL);
    o.kv_heads = o.kv_heads != 0 ? o.kv_heads : o.heads;
    if (o.head_dim == 0 && o.heads > 0 && o.dim % o.heads == 0) {
        o.head_dim = o.dim / o.heads;
    }
    LS_READ_OPTIONS(ls_rotary_scaling_options, scaling, o.rope_scaling, __func__, NULL);
    scaling.factor = o.rope_scaling != NULL ? scaling.factor : 1.0;
    attention *self = check(&o) == LS_OK ? ls_module_new(sizeof *self, &attention_class) : NULL;
    if (self == NULL) {
        return NULL;
    }
    const int64_t wide = o.heads * o.head_dim, narrow = o.kv_heads * o.head_dim;
    ls_module *m = &self->base;
    self->heads = o.heads;
    self->kv_heads = o.kv_heads;
    self->head_dim = o.head_dim;
    self->rope_base = o.rope_base;
    self->scaling = scaling;
    self->cache = o.cache;
    self->q = ls_module_add(m, "q_proj", linear(o.dim, wide));
    self->k = ls_module_add(m, "k_proj", linear(o.dim, narrow));
    self->v = ls_module_add(m, "v_proj", linear(o.dim, narrow));
    self->o = ls_module_add(m, "o_proj", linear(wide, o.dim));
    if (ls_module_status(m) < 0) {
        ls_module_free(m);
        return NULL;
    }
    return m;
}

/* Ranks that share a key head have one. */
int64_t ls_rotary_attention_keys(const ls_module *m)
{
    const attention *self = (const attention *)m;
    const ls_tensor *weight = ls_module_param(self->q, "weight");
    const int64_t own = weight != NULL ? ls_size(weight, 0) / self->head_dim : self->heads;
    const int64_t heads = self->kv_heads * own / self->heads;
    return (heads > 0 ? heads : 1) * self->head_dim;
}
