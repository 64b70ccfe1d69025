/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners") in its
 * published sizes, with the names and layouts of Hugging Face's GPT2LMHeadModel, so that weights
 * go both ways:
 *
 *     transformer.wte.weight [V,C]   transformer.wpe.weight [T,C]
 *     transformer.h.N.ln_1.weight, .bias [C]       transformer.h.N.ln_2 …
 *     transformer.h.N.attn.c_attn.weight [C,3C]    (Conv1D: [in,out]), .bias [3C]
 *     transformer.h.N.attn.c_proj, .mlp.c_fc [C,4C], .mlp.c_proj [4C,C]
 *     transformer.ln_f               the head is transformer.wte.weight
 */
#ifndef LOCKSTEP_MODELS_GPT2_H
#define LOCKSTEP_MODELS_GPT2_H

#include <stdio.h>

#include <lockstep/lockstep.h>

#include <lockstep/models/kv_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_gpt2_options {
    size_t size;
    const char *variant; /* "gpt2", "gpt2-medium", "gpt2-large" or "gpt2-xl" sets layers, heads and
                            dim; NULL: the fields below */
    int layers, heads;
    int64_t dim; /* a multiple of heads */
    int64_t context, vocab;
    double dropout;  /* of embeddings, residual branches and attention weights; 0.1 in the paper */
    double init_std; /* weights are N(0, std), residual projections N(0, std/sqrt(2 layers)) */
    double eps;      /* of the layer norms */
    bool recompute;  /* blocks keep only their input and run again in backward */
} ls_gpt2_options;
#define LS_DEFAULTS_ls_gpt2_options                                                                \
    .layers = 12, .heads = 12, .dim = 768, .context = 1024, .vocab = 50257, .init_std = 0.02,      \
    .eps = 1e-5,
LS_DEFAULTS_FUNCTION(gpt2)

/* x [B,T] int32 or int64 tokens, T <= context -> logits [B,T,vocab]. NULL with ls_error_message on
 * failure. */
LS_API ls_module *ls_gpt2_new(const ls_gpt2_options *options);

/* A cache for `batch` texts (kv_cache.h); free it with ls_kv_cache_free. NULL with ls_error_message
 * on failure. */
LS_API ls_kv_cache *ls_gpt2_cache_new(ls_module *model, int64_t batch);
/* Reads the next tokens x [B,T] (int32 or int64), which follow those in the cache, and sets *logits
 * to those of the last `last` of them, [B,last,vocab], in the caller's scope and outside the graph.
 * `model` is the model without a wrapper, in evaluation mode. After ls_tensor_parallel the cache
 * has the keys of this rank's heads, the logits are whole on all ranks, and the call is collective;
 * LS_ERR_UNSUPPORTED if it was cut with `sequence`. LS_ERR_LIMIT when the context is full. After an
 * error the cache is unchanged. */
LS_API ls_status ls_gpt2_forward_cached(ls_module *model, ls_kv_cache *cache, ls_tensor *x,
                                        int64_t last, ls_tensor **logits);

/* The memory that a model of this size needs, computed without allocating it. */
typedef struct ls_gpt2_memory {
    int64_t parameters;      /* elements; the head is the token embedding and counts once */
    int64_t parameter_bytes; /* float32 */
    int64_t gradient_bytes;
    int64_t activation_bytes; /* estimate: tensors kept from forward to backward */
    int64_t total_bytes;      /* for one step of SGD without momentum */
} ls_gpt2_memory;
/* For `batch` sequences of `tokens` tokens. All fields are 0 for a variant that does not exist. */
LS_API ls_gpt2_memory ls_gpt2_memory_of(const ls_gpt2_options *options, int64_t batch,
                                        int64_t tokens);

/* Prints name, shape and size of each parameter, those of one layer only, and the sum. */
LS_API void ls_gpt2_describe(const ls_gpt2_options *options, FILE *out);

/* Loads a file, index or folder as transformers saves it (ls_safetensors_load). It also accepts
 * names without "transformer.", and ignores a stored causal mask. */
LS_API ls_status ls_gpt2_load(ls_module *model, const char *path);

#ifdef __cplusplus
}
#endif
#endif
