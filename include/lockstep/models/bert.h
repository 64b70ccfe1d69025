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
    int64_t dim;  /* a multiple of heads */
    int64_t wide; /* of the feed-forward layers */
    int64_t context, vocab, types;
    double dropout; /* of embeddings, of what each half of a layer adds, and of the attention's
                       weights; theirs was 0.1 */
    double init_std;
    double eps;     /* of the layer norms */
    bool recompute; /* layers keep their input only and run again in backward */
} ls_bert_options;
#define LS_DEFAULTS_ls_bert_options                                                                \
    .layers = 12, .heads = 12, .dim = 768, .wide = 3072, .context = 512, .vocab = 30522,           \
    .types = 2, .init_std = 0.02, .eps = 1e-12,
LS_DEFAULTS_FUNCTION(bert)

/* Logits [B,T,vocab] of one to three inputs, int32 or int64 [B,T], T <= context:
 *     tokens
 *     types     which of two sentences a token is of; missing or NULL: all 0
 *     seen      1, or 0 for padding, which no token then sees; missing or NULL: all 1
 * So ls_forward(net, tokens) does, and ls_forward_many(net, (ls_tensor *[]){tokens, types, seen},
 * 3, &logits, 1). NULL with ls_error_message on failure. */
LS_API ls_module *ls_bert_new(const ls_bert_options *options);

/* Cross-entropy over the masked tokens: labels [B,T] hold the token that was there, and -100 where
 * nothing is asked. */
LS_API ls_tensor *ls_bert_loss(ls_tensor *logits, ls_tensor *labels);

/* Loads a file, index or folder as transformers saves it, or as the hub holds BERT: with
 * LayerNorm.gamma and .beta, a pooler and a next-sentence head that this model has not. */
LS_API ls_status ls_bert_load(ls_module *model, const char *path);

#ifdef __cplusplus
}
#endif
#endif
