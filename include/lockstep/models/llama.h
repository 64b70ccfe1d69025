/* SPDX-License-Identifier: Apache-2.0 */
/* Llama (Touvron et al. 2023, "LLaMA"; "Llama 2"), with the names and layouts of Hugging Face's
 * LlamaForCausalLM, so that weights go both ways; SmolLM and TinyLlama are such models.
 *
 *     model.embed_tokens.weight [V,C]
 *     model.layers.N.input_layernorm.weight, .post_attention_layernorm.weight [C]
 *     model.layers.N.self_attn.q_proj.weight [H D,C]   .k_proj, .v_proj [G D,C]   .o_proj [C,H D]
 *     model.layers.N.mlp.gate_proj.weight, .up_proj.weight [F,C]   .down_proj.weight [C,F]
 *     model.norm.weight [C]
 *     lm_head.weight [V,C]                not if it is tied
 */
#ifndef LOCKSTEP_MODELS_LLAMA_H
#define LOCKSTEP_MODELS_LLAMA_H

#include <lockstep/lockstep.h>

#include <lockstep/models/kv_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_llama_options {
    size_t size;
    int layers, heads;
    int kv_heads;     /* G: heads of keys and values, of which `heads` is a multiple; 0: heads */
    int64_t dim;      /* C */
    int64_t head_dim; /* D, even; 0: dim / heads */
    int64_t hidden;   /* F: width of the gated layer */
    int64_t context;  /* tokens that a cache has room for; positions have no end */
    int64_t vocab;
    bool tied;        /* the head is embed_tokens.weight, as in SmolLM */
    double rope_base; /* of rotary position embeddings ("rope_theta") */
    const ls_rotary_scaling_options *rope_scaling; /* of their frequencies; NULL: none; copied */
    double eps;                                    /* of the norms */
    double init_std;                               /* weights are N(0, std) */
    bool recompute; /* blocks keep only their input and run again in backward */
} ls_llama_options;
/* TinyLlama-1.1B: 1,100,048,384 parameters. */
#define LS_DEFAULTS_ls_llama_options                                                               \
    .layers = 22, .heads = 32, .kv_heads = 4, .dim = 2048, .hidden = 5632, .context = 2048,        \
    .vocab = 32000, .rope_base = 1e4, .eps = 1e-5, .init_std = 0.02,
LS_DEFAULTS_FUNCTION(llama)

/* x [B,T] int32 or int64 tokens -> logits [B,T,vocab]. With an axis "cp" in force x is this rank's
 * part of the tokens (context.h). NULL with ls_error_message on failure. */
LS_API ls_module *ls_llama_new(const ls_llama_options *options);

/* Loads a file, index or folder as transformers saves it (ls_safetensors_load). Of a tied model a
 * stored head is ignored. */
LS_API ls_status ls_llama_load(ls_module *model, const char *path);

/* For generation token by token; the same as ls_gpt2_cache_new and ls_gpt2_forward_cached in
 * gpt2.h. */
LS_API ls_kv_cache *ls_llama_cache_new(ls_module *model, int64_t batch);
LS_API ls_status ls_llama_forward_cached(ls_module *model, ls_kv_cache *cache, ls_tensor *x,
                                         int64_t last, ls_tensor **logits);

#ifdef __cplusplus
}
#endif
#endif
