/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral (Jiang et al. 2024, "Mixtral of Experts"), with the names and layouts of Hugging Face's
 * MixtralForCausalLM, so that weights go both ways. In a file:
 *
 *     model.embed_tokens.weight [V,C]
 *     model.layers.N.input_layernorm.weight, .post_attention_layernorm.weight [C]
 *     model.layers.N.self_attn.q_proj.weight [H D,C]   .k_proj, .v_proj [G D,C]   .o_proj [C,H D]
 *     model.layers.N.block_sparse_moe.gate.weight [E,C]
 *     model.layers.N.block_sparse_moe.experts.M.w1.weight, .w3.weight [F,C]   .w2.weight [C,F]
 *     model.norm.weight [C]
 *     lm_head.weight [V,C]
 *
 * In the model, and in checkpoints, the experts of a layer are the stacks of ls_moe_new:
 * block_sparse_moe.w1 [E,F,C], .w2, .w3. */
#ifndef LOCKSTEP_MODELS_MIXTRAL_H
#define LOCKSTEP_MODELS_MIXTRAL_H

#include <lockstep/lockstep.h>

#include <lockstep/models/kv_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_mixtral_options {
    size_t size;
    int layers, heads;
    int kv_heads;     /* G: heads of keys and values, of which `heads` is a multiple */
    int64_t dim;      /* C */
    int64_t head_dim; /* D, even; 0: dim / heads */
    int64_t hidden;   /* F: width of an expert */
    int64_t experts;  /* E */
    int top_k;
    int64_t context; /* tokens that a cache has room for; positions have no end */
    int64_t vocab;
    double rope_base; /* of rotary position embeddings ("rope_theta") */
    const ls_rotary_scaling_options *rope_scaling; /* of their frequencies; NULL: none; copied */
    double eps;                                    /* of the norms */
    double balance_loss; /* as of ls_moe_options: add ls_moe_loss to the loss */
    double capacity;     /* as of ls_moe_options; the published model has none */
    bool padded;         /* as of ls_moe_options */
    double init_std;     /* weights are N(0, std) */
    bool recompute;      /* blocks keep only their input and run again in backward */
} ls_mixtral_options;
/* Mixtral-8x7B: 46.7e9 parameters. */
#define LS_DEFAULTS_ls_mixtral_options                                                             \
    .layers = 32, .heads = 32, .kv_heads = 8, .dim = 4096, .hidden = 14336, .experts = 8,          \
    .top_k = 2, .context = 32768, .vocab = 32000, .rope_base = 1e6, .eps = 1e-5, .init_std = 0.02,
LS_DEFAULTS_FUNCTION(mixtral)

/* x [B,T] int32 or int64 tokens -> logits [B,T,vocab]. Where a mesh with an axis "ep"
 * is in force, each rank has its part of the experts; along "tp" ls_tensor_parallel leaves them
 * whole. NULL with ls_error_message on failure. */
LS_API ls_module *ls_mixtral_new(const ls_mixtral_options *options);

/* Loads a file, index or folder as transformers saves it (ls_safetensors_load); of experts, those
 * of this rank. */
LS_API ls_status ls_mixtral_load(ls_module *model, const char *path);
/* Writes one file with these names. LS_ERR_UNSUPPORTED: the experts are divided over ranks. */
LS_API ls_status ls_mixtral_save(ls_module *model, const char *path);
/* For programs that write such a file themselves: shows `to` one tensor of ls_module_state of this
 * model with its name in the file, a stack as a tensor for each expert. */
LS_API ls_status ls_mixtral_show(const ls_state_visitor *to, const char *name,
                                 const ls_state_tensor *tensor);

/* For generation token by token; the same as ls_gpt2_cache_new and ls_gpt2_forward_cached in
 * gpt2.h. */
LS_API ls_kv_cache *ls_mixtral_cache_new(ls_module *model, int64_t batch);
LS_API ls_status ls_mixtral_forward_cached(ls_module *model, ls_kv_cache *cache, ls_tensor *x,
                                           int64_t last, ls_tensor **logits);

#ifdef __cplusplus
}
#endif
#endif
