/* A program for tests/python/test_transformers.py: loads a model and tokens from safetensors files,
 * writes the logits into one, and the model into another.
 *
 *     foreign gpt2|bert LAYERS HEADS DIM CONTEXT VOCAB BATCH TOKENS MODEL INPUTS LOGITS SAVED
 *
 * INPUTS holds input_ids, int64 [BATCH,TOKENS]; of bert [BATCH,2,TOKENS], the types behind them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bert.h"
#include "gpt2.h"

typedef struct named {
    const char *name;
    ls_tensor *value;
} named;

static ls_status show(void *object, const char *prefix, const ls_state_visitor *v)
{
    named *n = object;
    ls_shape shape = ls_shape_of(n->value);
    (void)prefix;
    ls_state_tensor seen = {
        .dtype = ls_dtype_of(n->value), .ndim = shape.ndim, .data = ls_data(n->value)};
    memcpy(seen.global, shape.dim, sizeof seen.global);
    memcpy(seen.local, shape.dim, sizeof seen.local);
    return v->tensor(v->self, n->name, &seen);
}

#define ITEM(name, value) (&(const ls_checkpoint_item){"", &(named){name, value}, show}), 1

enum {
    PROGRAM,
    KIND,
    LAYERS,
    HEADS,
    DIM,
    CONTEXT,
    VOCAB,
    BATCH,
    TOKENS,
    MODEL,
    INPUTS,
    LOGITS,
    SAVED
};

int main(int argc, char **argv)
{
    int64_t n[TOKENS + 1] = {0};
    if (argc != SAVED + 1) {
        return 2;
    }
    for (int i = LAYERS; i <= TOKENS; i++) {
        n[i] = strtoll(argv[i], NULL, 10);
    }
    LS_CHECK(ls_init(NULL));
    bool is_bert = strcmp(argv[KIND], "bert") == 0;
    ls_module *net =
        is_bert
            ? bert_new(LS_OPTIONS(bert_options, .layers = (int)n[LAYERS], .heads = (int)n[HEADS],
                                  .dim = n[DIM], .wide = 4 * n[DIM], .context = n[CONTEXT],
                                  .vocab = n[VOCAB]))
            : gpt2_new(LS_OPTIONS(gpt2_options, .layers = (int)n[LAYERS], .heads = (int)n[HEADS],
                                  .dim = n[DIM], .context = n[CONTEXT], .vocab = n[VOCAB]));
    LS_CHECK(ls_module_status(net));
    LS_CHECK(is_bert ? bert_load(net, argv[MODEL]) : gpt2_load(net, argv[MODEL]));
    ls_module_train(net, false);
    LS_SCOPE
    {
        ls_tensor *ids = ls_zeros(
            is_bert ? LS_SHAPE(n[BATCH], 2, n[TOKENS]) : LS_SHAPE(n[BATCH], n[TOKENS]), LS_INT64);
        LS_CHECK(ls_safetensors_load(argv[INPUTS], ITEM("input_ids", ids),
                                     LS_OPTIONS(ls_safetensors_options, .strict = false)));
        ls_tensor *logits = ls_forward(net, ids);
        LS_CHECK(ls_tensor_status(logits));
        LS_CHECK(ls_safetensors_save(argv[LOGITS], ITEM("logits", logits), NULL));
    }
    LS_CHECK(ls_module_save_safetensors(net, argv[SAVED], NULL));
    ls_module_free(net);
    LS_CHECK(ls_finalize());
    return 0;
}
