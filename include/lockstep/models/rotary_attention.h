/* SPDX-License-Identifier: Apache-2.0 */
/* Causal self-attention with rotary positions (Su et al. 2021) and grouped keys and values (Ainslie
 * et al. 2023, "GQA"), without biases, as Llama and Mixtral have it:
 *
 *     .q_proj.weight [H D,C]   .k_proj.weight, .v_proj.weight [G D,C]   .o_proj.weight [C,H D]
 */
#ifndef LOCKSTEP_MODELS_ROTARY_ATTENTION_H
#define LOCKSTEP_MODELS_ROTARY_ATTENTION_H

#include <lockstep/lockstep.h>

#include <lockstep/models/kv_cache.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_rotary_attention_options {
    size_t size;
    int heads;                                     /* H */
    int kv_heads;                                  /* G, of which `heads` is a multiple; 0: heads */
    int64_t dim;                                   /* C */
    int64_t head_dim;                              /* D, even; 0: dim / heads */
    double rope_base;                              /* of the rotation's angles ("rope_theta") */
    const ls_rotary_scaling_options *rope_scaling; /* of their frequencies; NULL: none; copied */
    ls_kv_cache *const
        *cache; /* the model's, read in each forward pass: NULL, or keys and values of earlier
                   tokens; borrowed while the module lives */
} ls_rotary_attention_options;
#define LS_DEFAULTS_ls_rotary_attention_options .rope_base = 1e4,
LS_DEFAULTS_FUNCTION(rotary_attention)

/* x [B,T,C] -> [B,T,C]. Tokens that an axis "cp" divides (context.h) attend around the ring; for
 * tensor parallelism q_proj is column, k_proj and v_proj are column(heads=G) and o_proj is row.
 * NULL with ls_error_message on failure. */
LS_API ls_module *ls_rotary_attention_new(const ls_rotary_attention_options *options);
/* Numbers of the keys of a token on this rank: the `dim` of its cache. */
LS_API int64_t ls_rotary_attention_keys(const ls_module *attention);

#ifdef __cplusplus
}
#endif
#endif
