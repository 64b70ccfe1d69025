/* SPDX-License-Identifier: Apache-2.0 */
/* See decoder.h. */
#include "decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/gpt.h>

/* ---- shape -------------------------------------------------------------------------------- */

static void check_rotary(const decoder_shape *shape)
{
    const int64_t groups = shape->kv_heads > 0 ? shape->kv_heads : shape->heads;
    if (shape->heads % groups != 0) {
        give_up(EXIT_USAGE, "--heads %lld is not a multiple of --kv-heads %lld",
                (long long)shape->heads, (long long)groups);
    }
    if (shape->dropout > 0.0) {
        give_up(EXIT_USAGE, "--dropout %g: a %s has none; leave it out", shape->dropout,
                decoder_is_llama(shape->model) ? "Llama" : "Mixtral");
    }
}

static void refuse_flag(const char *flag, const decoder_shape *shape, const char *models)
{
    give_up(EXIT_USAGE, "--%s is for --model %s, and this is a %s; leave it out, or give --model",
            flag, models, shape->model);
}

/* A flag that would be ignored is a mistake: often --model is missing. */
static void check_meaning(const decoder_shape *shape, char *const *argv)
{
    static const char *const of_experts[] = {"experts", "experts-per-token", "capacity", "padded"},
                             *const of_rotary[] = {"kv-heads", "hidden", "tied"},
                             *const sizes[] = {"layers", "dim", "heads"};
    const bool llama = decoder_is_llama(shape->model);
    const bool rotary = llama || decoder_is_mixtral(shape->model);
    for (int i = 0; i < 4; i++) {
        if (!decoder_has_experts(shape->model) && is_given(of_experts[i], argv)) {
            refuse_flag(of_experts[i], shape, "moe or mixtral");
        }
    }
    for (int i = 0; i < 3; i++) {
        if (!(i < 2 ? rotary : llama) && is_given(of_rotary[i], argv)) {
            refuse_flag(of_rotary[i], shape, i < 2 ? "llama or mixtral" : "llama");
        }
        if (decoder_is_gpt2(shape->model) && !shape->exact && is_given(sizes[i], argv)) {
            give_up(EXIT_USAGE,
                    "--%s: the sizes of %s are the published ones; leave it out, or give --model "
                    "gpt",
                    sizes[i], shape->model);
        }
    }
}

void decoder_check(const decoder_shape *shape, char *const *argv)
{
    check_meaning(shape, argv);
    if (shape->dim % shape->heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)shape->dim,
                (long long)shape->heads);
    }
    if (decoder_has_experts(shape->model) && shape->top_k > shape->experts) {
        give_up(EXIT_USAGE, "--experts-per-token %lld of --experts %lld; give at most all",
                (long long)shape->top_k, (long long)shape->experts);
    }
    if (shape->padded && shape->capacity == 0.0) {
        give_up(EXIT_USAGE, "--padded sends an expert all its capacity; give --capacity, as 1.25");
    }
    if (decoder_is_mixtral(shape->model) || decoder_is_llama(shape->model)) {
        check_rotary(shape);
    }
}

bool decoder_has_experts(const char *model)
{
    return strcmp(model, "moe") == 0 || decoder_is_mixtral(model);
}

bool decoder_is_llama(const char *model)
{
    return strcmp(model, "llama") == 0;
}

bool decoder_is_mixtral(const char *model)
{
    return strcmp(model, "mixtral") == 0;
}

bool decoder_is_gpt2(const char *model)
{
    return strncmp(model, "gpt2", strlen("gpt2")) == 0;
}

/* ---- the model ---------------------------------------------------------------------------- */

ls_gpt2_options decoder_gpt2_options(const decoder_shape *s)
{
    ls_gpt2_options o =
        *LS_OPTIONS(ls_gpt2_options, .context = s->positions ? s->positions : s->context,
                    .vocab = s->vocab, .dropout = s->dropout, .recompute = s->recompute);
    if (s->exact) {
        o.layers = (int)s->layers;
        o.heads = (int)s->heads;
        o.dim = s->dim;
    } else {
        o.variant = s->model;
    }
    o.eps = s->eps > 0.0 ? s->eps : o.eps;
    return o;
}

ls_llama_options decoder_llama_options(const decoder_shape *s)
{
    ls_llama_options o =
        *LS_OPTIONS(ls_llama_options, .layers = (int)s->layers, .heads = (int)s->heads,
                    .kv_heads = (int)(s->kv_heads > 0 ? s->kv_heads : s->heads), .dim = s->dim,
                    .head_dim = s->head_dim > 0 ? s->head_dim : s->dim / s->heads,
                    .hidden = s->hidden > 0 ? s->hidden : 4 * s->dim, .vocab = s->vocab,
                    .context = s->positions > 0 ? s->positions : s->context, .tied = s->tied,
                    .recompute = s->recompute);
    o.rope_base = s->rope_base > 0.0 ? s->rope_base : o.rope_base;
    o.eps = s->eps > 0.0 ? s->eps : o.eps;
    o.init_std = s->init_std > 0.0 ? s->init_std : o.init_std;
    return o;
}

ls_mixtral_options decoder_mixtral_options(const decoder_shape *s)
{
    ls_mixtral_options o =
        *LS_OPTIONS(ls_mixtral_options, .layers = (int)s->layers, .heads = (int)s->heads,
                    .kv_heads = (int)(s->kv_heads > 0 ? s->kv_heads : s->heads), .dim = s->dim,
                    .head_dim = s->head_dim > 0 ? s->head_dim : s->dim / s->heads,
                    .hidden = s->hidden > 0 ? s->hidden : 4 * s->dim, .experts = s->experts,
                    .top_k = (int)s->top_k, .vocab = s->vocab, .capacity = s->capacity,
                    .context = s->positions > 0 ? s->positions : s->context, .padded = s->padded,
                    .balance_loss = s->balance_loss, .recompute = s->recompute);
    o.rope_base = s->rope_base > 0.0 ? s->rope_base : o.rope_base;
    o.eps = s->eps > 0.0 ? s->eps : o.eps;
    o.init_std = s->init_std > 0.0 ? s->init_std : o.init_std;
    return o;
}

static double parameters_of(const decoder_shape *s)
{
    const double c = (double)s->dim;
    if (decoder_is_mixtral(s->model) || decoder_is_llama(s->model)) {
        const ls_mixtral_options o = decoder_mixtral_options(s);
        const double heads = (double)(2 * (o.heads + o.kv_heads) * o.head_dim);
        const double experts = decoder_is_llama(s->model) ? 1.0 : (double)o.experts;
        const double tables = s->tied ? 1.0 : 2.0;
        return c * ((double)s->layers * (heads + experts * 3.0 * (double)o.hidden) +
                    tables * (double)s->vocab);
    }
    return 12.0 * (double)s->layers * c * c + (double)(s->vocab + s->context) * c;
}

/* Compares the size with the available memory before any value is drawn, because the system grants
 * memory that it does not have and kills the process when it is used. */
static void check_size(const decoder_shape *s)
{
    const double bytes = parameters_of(s) * (double)sizeof(float);
    const int64_t left = ls_memory_available();
    if (left >= 0 && bytes > (double)left) {
        give_up(EXIT_FAILURE,
                "a %s of %lld layers, width %lld and %lld tokens, as config.json says, takes "
                "%.2f GB, and %.2f GB of memory are left; is it damaged?",
                decoder_is_mixtral(s->model) ? "Mixtral"
                : decoder_is_llama(s->model) ? "Llama"
                                             : "GPT-2",
                (long long)s->layers, (long long)s->dim, (long long)s->vocab, bytes * 1e-9,
                (double)left * 1e-9);
    }
}

ls_module *decoder_new(const decoder_shape *s)
{
    if (s->exact) {
        check_size(s);
    }
    if (decoder_is_mixtral(s->model)) {
        const ls_mixtral_options o = decoder_mixtral_options(s);
        return ls_mixtral_new(&o);
    }
    if (decoder_is_llama(s->model)) {
        const ls_llama_options o = decoder_llama_options(s);
        return ls_llama_new(&o);
    }
    if (decoder_is_gpt2(s->model)) {
        const ls_gpt2_options o = decoder_gpt2_options(s);
        return ls_gpt2_new(&o);
    }
    const ls_moe_options *moe =
        LS_OPTIONS(ls_moe_options, .experts = s->experts, .top_k = (int)s->top_k,
                   .capacity = s->capacity, .padded = s->padded, .balance_loss = s->balance_loss);
    return ls_gpt_new(LS_OPTIONS(
        ls_gpt_options, .layers = (int)s->layers, .heads = (int)s->heads, .dim = s->dim,
        .context = s->context, .vocab = s->vocab, .dropout = s->dropout, .init_std = s->init_std,
        .recompute = s->recompute, .moe = decoder_has_experts(s->model) ? moe : NULL));
}

/* The functions of each kind of model. */
typedef struct family {
    ls_status (*load)(ls_module *net, const char *path);
    ls_kv_cache *(*cache_new)(ls_module *net, int64_t batch);
    ls_status (*forward_cached)(ls_module *net, ls_kv_cache *cache, ls_tensor *x, int64_t last,
                                ls_tensor **logits);
} family;

static ls_status load_plain(ls_module *net, const char *path)
{
    return ls_module_load_safetensors(net, path, NULL);
}

static const family *family_of(const char *model)
{
    static const family gpt = {load_plain, ls_gpt_cache_new, ls_gpt_forward_cached},
                        llama = {ls_llama_load, ls_llama_cache_new, ls_llama_forward_cached},
                        gpt2 = {ls_gpt2_load, ls_gpt2_cache_new, ls_gpt2_forward_cached},
                        mixtral = {ls_mixtral_load, ls_mixtral_cache_new,
                                   ls_mixtral_forward_cached};
    return decoder_is_gpt2(model)      ? &gpt2
           : decoder_is_llama(model)   ? &llama
           : decoder_is_mixtral(model) ? &mixtral
                                       : &gpt;
}

bool decoder_is_of_a_kind(const char *a, const char *b)
{
    return family_of(a) == family_of(b);
}

decoder_loader *decoder_loader_of(const char *model)
{
    return family_of(model)->load;
}

ls_kv_cache *decoder_cache_new(ls_module *net, const decoder_shape *s)
{
    return family_of(s->model)->cache_new(net, 1);
}

ls_status decoder_read(ls_module *net, const decoder_shape *s, ls_kv_cache *cache, ls_tensor *x,
                       ls_tensor **logits)
{
    return family_of(s->model)->forward_cached(net, cache, x, 1, logits);
}
