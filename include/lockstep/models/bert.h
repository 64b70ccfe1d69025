/* SPDX-License-Identifier: Apache-2.0 */
/* BERT (Devlin et al. 2019) with its masked language model head, with the names and layouts of
 * Hugging Face's BertForMaskedLM, so that weights go both ways:
 *
 *     bert.embeddings.word_embeddings.weight [V,C]     .position_embeddings.weight [T,C]
 *     bert.embeddings.token_type_embeddings.weight [2,C]          .LayerNorm.weight, .bias
 *     bert.encoder.layer.N.attention.self.query, .key, .value     [C,C] and bias
 *     bert.encoder.layer.N.attention.output.dense, .LayerNorm
 *     bert.encoder.layer.N.intermediate.dense [4C,C]   .output.dense [C,4C], .output.LayerNorm
 *     cls.predictions.transform.dense, .LayerNorm      cls.predictions.bias [V]
 *     the decoder's weight is bert.embeddings.word_embeddings.weight
 */
#ifndef LOCKSTEP_MODELS_BERT_H
#define LOCKSTEP_MODELS_BERT_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_bert_options { /* the defaults are BERT base */
    size_t size;
    int layers, heads;
    int64_t dim;                   /* C, a multiple of heads */
    int64_t wide;                  /* width of the feed-forward layers */
    int64_t context, vocab, types; /* T, V, and the number of token types */
    double dropout;  /* of embeddings, residual branches and attention weights; 0.1 in the paper */
    double init_std; /* weights are N(0, std) */
    double eps;      /* of the layer norms */
    bool recompute;  /* layers keep only their input and run again in backward */
} ls_bert_options;
#define LS_DEFAULTS_ls_bert_options                                                                \
    .layers = 12, .heads = 12, .dim = 768, .wide = 3072, .context = 512, .vocab = 30522,           \
    .types = 2, .init_std = 0.02, .eps = 1e-12,
LS_DEFAULTS_FUNCTION(bert)

/* A module that computes logits [B,T,vocab] from one to three inputs, int32 or int64 [B,T], T <=
 * context:
 *     tokens
 *     types     the sentence of each token, 0 or 1; missing or NULL: all 0
 *     seen      1, or 0 for padding, to which no token attends; missing or NULL: all 1
 * Both ls_forward(net, tokens) and ls_forward_many(net, (ls_tensor *[]){tokens, types, seen}, 3,
 * &logits, 1) work. NULL with ls_error_message on failure. */
LS_API ls_module *ls_bert_new(const ls_bert_options *options);

/* The mean cross-entropy over the masked tokens, a scalar: labels [B,T] (int32 or int64) are the
 * original tokens at masked positions and -100 elsewhere. */
LS_API ls_tensor *ls_bert_loss(ls_tensor *logits, ls_tensor *labels);

/* Loads a file, index or folder as transformers saves it (ls_safetensors_load). It also accepts the
 * older names LayerNorm.gamma and .beta, and ignores a pooler and a next-sentence head. */
LS_API ls_status ls_bert_load(ls_module *model, const char *path);

#ifdef __cplusplus
}
#endif
#endif
