/* SPDX-License-Identifier: Apache-2.0 */
/* A small BERT on masked tokens: two in each sequence, so that equal shares hold equally many. */
#include "nets.h"

#include <lockstep/models/bert.h>

#define CONTEXT 8
#define VOCAB 16
#define MASK 0 /* the token that stands where one is hidden */

static ls_module *bert_make(void)
{
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = 2, .heads = 2, .dim = 12, .wide = 24,
                                  .context = CONTEXT, .vocab = VOCAB, .types = 2));
}

static ls_tensor *hidden_loss(ls_module *net, int64_t first, int64_t count)
{
    int32_t x[BATCH * CONTEXT], place[BATCH * CONTEXT], token[BATCH * CONTEXT];
    int64_t hidden = 0;
    CHECK(count <= BATCH);
    for (int64_t i = 0; i < count; i++) {
        formula_tokens(x + i * CONTEXT, first + i, CONTEXT, VOCAB);
    }
    for (int64_t i = 0; i < count * CONTEXT; i++) {
        int64_t sample = first + i / CONTEXT, t = i % CONTEXT;
        if ((t + sample) % (CONTEXT / 2) == 0) {
            place[hidden] = (int32_t)i;
            token[hidden++] = x[i];
            x[i] = MASK;
        }
    }
    ls_tensor *logits = ls_forward(net, ls_from_data(x, LS_SHAPE(count, CONTEXT), LS_INT32));
    ls_tensor *rows = ls_reshape(logits, LS_SHAPE(-1, VOCAB)); /* of them those of hidden tokens */
    ls_tensor *said = ls_embedding(rows, ls_from_data(place, LS_SHAPE(hidden), LS_INT32));
    return ls_cross_entropy(said, ls_from_data(token, LS_SHAPE(hidden), LS_INT32), NULL);
}

const reference_net bert_net = {
    .name = "bert", .groups = true, .make = bert_make, .loss = hidden_loss};
