/* SPDX-License-Identifier: Apache-2.0 */
/* A language model with long short-term memory (Hochreiter & Schmidhuber 1997; Zaremba et al.
 * 2014): token embeddings, LSTM layers, a linear head. The names of its parameters are those of
 * PyTorch's word_language_model example: encoder.weight, rnn.weight_ih_l0 …, decoder.weight, .bias.
 */
#ifndef LOCKSTEP_MODELS_LSTM_H
#define LOCKSTEP_MODELS_LSTM_H

#include <lockstep/lockstep.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_lstm_model_options {
    size_t size;
    int layers;
    int64_t dim, hidden; /* widths of the embeddings and of the LSTM layers */
    int64_t vocab;
    double dropout; /* of the embeddings and of the output of the LSTM layers */
} ls_lstm_model_options;
#define LS_DEFAULTS_ls_lstm_model_options .layers = 2, .dim = 200, .hidden = 200, .vocab = 256,
LS_DEFAULTS_FUNCTION(lstm_model)

/* x [B,T] int32 or int64 tokens -> logits [B,T,vocab]; each sequence starts from a state of zeros.
 * NULL with ls_error_message on failure. */
LS_API ls_module *ls_lstm_model_new(const ls_lstm_model_options *options);

#ifdef __cplusplus
}
#endif
#endif
