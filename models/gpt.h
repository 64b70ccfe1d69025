/* A decoder-only transformer (Radford et al. 2019, "GPT-2"): token and position embeddings, blocks
 * of causal attention and an MLP with layer norms before them, a last norm and a linear head. */
#ifndef MODELS_GPT_H
#define MODELS_GPT_H

#include <lockstep/lockstep.h>

#include "kv_cache.h"

typedef struct gpt_options {
    size_t size;
    int layers, heads;
    int64_t dim;     /* a multiple of heads */
    int64_t context; /* most tokens of a sequence */
    int64_t vocab;
    double dropout;
    double init_std; /* GPT-2's N(0, std), residual projections N(0, std/sqrt(2 layers)), biases 0;
                        0: PyTorch's default initialisation */
    bool recompute;  /* blocks keep their input only and run again in backward */
} gpt_options;
#define LS_DEFAULTS_gpt_options                                                                    \
    .layers = 4, .heads = 4, .dim = 128, .context = 64, .vocab = 256, .init_std = 0.02,

/* x [B,T] int32 or int64 tokens, T <= context -> logits [B,T,vocab]. NULL with ls_error_message on
 * failure. */
ls_module *gpt_new(const gpt_options *options);

/* Reading a text token by token; as gpt2_cache_new and gpt2_forward_cached in gpt2.h. */
kv_cache *gpt_cache_new(ls_module *model, int64_t batch);
ls_status gpt_forward_cached(ls_module *model, kv_cache *cache, ls_tensor *x, int64_t last,
                             ls_tensor **logits);

#endif
