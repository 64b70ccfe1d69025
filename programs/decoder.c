/* SPDX-License-Identifier: Apache-2.0 */
/* The module of a decoder (decoder.h). */
#include "decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/gpt.h>

/* ---- the model ---------------------------------------------------------------------------- */

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
