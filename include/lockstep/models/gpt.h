/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder-only transformer (Radford et al. 2019, "GPT-2"): token and position embeddings, blocks
 * of causal attention and an MLP, each with a layer norm before it, a last layer norm and a linear
 * head. */
#ifndef LOCKSTEP_MODELS_GPT_H
#define LOCKSTEP_MODELS_GPT_H

#include <lockstep/lockstep.h>

#include <lockstep/models/kv_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_gpt_options {
    size_t size;
    int layers, heads;
    int64_t dim;     /* a multiple of heads */
    int64_t context; /* largest number of tokens in a sequence */
    int64_t vocab;
    double dropout;
    double init_std; /* as GPT-2: weights N(0, std), residual projections N(0, std/sqrt(2 layers)),
                        biases 0; init_std 0: PyTorch's default initialisation */
    bool recompute;  /* blocks keep only their input and run again in backward */
    const ls_moe_options *moe; /* not NULL: every second block, 1, 3, …, has a mixture of experts
                                  (moe.h) of width 4 dim in place of its MLP; add ls_moe_loss to the
                                  loss. Borrowed for the call */
} ls_gpt_options;
#define LS_DEFAULTS_ls_gpt_options                                                                 \
    .layers = 4, .heads = 4, .dim = 128, .context = 64, .vocab = 256, .init_std = 0.02,
LS_DEFAULTS_FUNCTION(gpt)

/* x [B,T] int32 or int64 tokens, T <= context -> logits [B,T,vocab]. NULL with ls_error_message on
 * failure. */
LS_API ls_module *ls_gpt_new(const ls_gpt_options *options);

/* For generation token by token; the same as ls_gpt2_cache_new and ls_gpt2_forward_cached in
 * gpt2.h. */
LS_API ls_kv_cache *ls_gpt_cache_new(ls_module *model, int64_t batch);
LS_API ls_status ls_gpt_forward_cached(ls_module *model, ls_kv_cache *cache, ls_tensor *x,
                                       int64_t last, ls_tensor **logits);

#ifdef __cplusplus
}
#endif
#endif
