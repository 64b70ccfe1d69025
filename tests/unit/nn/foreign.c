/* SPDX-License-Identifier: Apache-2.0 */
/* A program for tests/python/test_transformers.py and test_torchvision.py: loads a model and its
 * input from safetensors files, writes the logits into one, and the model into another.
 *
 *     foreign gpt2|bert MODEL INPUTS LOGITS SAVED BATCH TOKENS LAYERS HEADS DIM CONTEXT VOCAB
 *     foreign llama|llama3|mixtral …, the same
 *     foreign resnetN|alexnet|vit MODEL INPUTS LOGITS SAVED BATCH SIDE CLASSES
 *
 * INPUTS holds "inputs": int64 [BATCH,TOKENS]; of bert [BATCH,2,TOKENS], the types behind the
 * tokens; or images, float32 [BATCH,3,SIDE,SIDE].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/models/alexnet.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>
#include <lockstep/models/resnet.h>
#include <lockstep/models/vit.h>

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

#define ITEM(name, value)                                                                          \
    (&(const ls_checkpoint_item){.size = sizeof(ls_checkpoint_item),                               \
                                 .prefix = "",                                                     \
                                 .object = &(named){name, value},                                  \
                                 .state = show}),                                                  \
        1

enum {
    PROGRAM,
    KIND,
    MODEL,
    INPUTS,
    LOGITS,
    SAVED,
    BATCH,
    TOKENS,
    LAYERS,
    HEADS,
    DIM,
    CONTEXT,
    VOCAB
};
enum { SIDE = TOKENS, CLASSES = LAYERS }; /* of images */

typedef struct foreign {
    ls_module *net;
    ls_status (*load)(ls_module *net, const char *path);
    ls_shape shape; /* of the inputs */
    ls_dtype dtype;
    ls_status (*save)(ls_module *net, const char *path);
} foreign;

static ls_status load_plain(ls_module *net, const char *path)
{
    return ls_module_load_safetensors(net, path, NULL);
}

static ls_status save_plain(ls_module *net, const char *path)
{
    return ls_module_save_safetensors(net, path, NULL);
}

static foreign make(const char *kind, const int64_t *n)
{
    if (strcmp(kind, "gpt2") == 0) {
        return (foreign){ls_gpt2_new(LS_OPTIONS(ls_gpt2_options, .layers = (int)n[LAYERS],
                                                .heads = (int)n[HEADS], .dim = n[DIM],
                                                .context = n[CONTEXT], .vocab = n[VOCAB])),
                         ls_gpt2_load, LS_SHAPE(n[BATCH], n[TOKENS]), LS_INT64, save_plain};
    }
    if (strcmp(kind, "mixtral") == 0) {
        return (foreign){ls_mixtral_new(LS_OPTIONS(
                             ls_mixtral_options, .layers = (int)n[LAYERS], .heads = (int)n[HEADS],
                             .kv_heads = (int)n[HEADS] / 2, .dim = n[DIM], .hidden = 2 * n[DIM],
                             .context = n[CONTEXT], .vocab = n[VOCAB])),
                         ls_mixtral_load, LS_SHAPE(n[BATCH], n[TOKENS]), LS_INT64, ls_mixtral_save};
    }
    if (strncmp(kind, "llama", 5) == 0) { /* or "llama3", with its scaled positions */
        const ls_rotary_scaling_options *scaling =
            LS_OPTIONS(ls_rotary_scaling_options, .original_positions = 16);
        return (foreign){ls_llama_new(LS_OPTIONS(
                             ls_llama_options, .layers = (int)n[LAYERS], .heads = (int)n[HEADS],
                             .kv_heads = (int)n[HEADS] / 2, .dim = n[DIM], .hidden = 2 * n[DIM],
                             .context = n[CONTEXT], .vocab = n[VOCAB], .tied = true,
                             .rope_scaling = strcmp(kind, "llama3") == 0 ? scaling : NULL)),
                         ls_llama_load, LS_SHAPE(n[BATCH], n[TOKENS]), LS_INT64, save_plain};
    }
    if (strcmp(kind, "bert") == 0) {
        return (foreign){
            ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = (int)n[LAYERS],
                                   .heads = (int)n[HEADS], .dim = n[DIM], .wide = 4 * n[DIM],
                                   .context = n[CONTEXT], .vocab = n[VOCAB])),
            ls_bert_load, LS_SHAPE(n[BATCH], 2, n[TOKENS]), LS_INT64, save_plain};
    }
    ls_module *net =
        strcmp(kind, "alexnet") == 0 ? ls_alexnet_new(n[CLASSES], 0.5)
        : strcmp(kind, "vit") == 0
            ? ls_vit_new(LS_OPTIONS(ls_vit_options, .image = n[SIDE], .classes = n[CLASSES]))
            : ls_resnet_new((int)strtol(kind + strlen("resnet"), NULL, 10), n[CLASSES], false);
    return (foreign){net, load_plain, LS_SHAPE(n[BATCH], 3, n[SIDE], n[SIDE]), LS_FLOAT32,
                     save_plain};
}

/* Tokens and types, of a BERT, lie in one tensor of the file. */
static ls_tensor *logits_of(const foreign *f, ls_tensor *inputs)
{
    if (f->dtype == LS_FLOAT32 || f->shape.ndim == 2) {
        return ls_forward(f->net, inputs);
    }
    const ls_shape plane = LS_SHAPE(f->shape.dim[0], f->shape.dim[2]);
    ls_tensor *logits = NULL;
    ls_tensor *planes[] = {ls_reshape(ls_slice(inputs, 1, 0, 1), plane),
                           ls_reshape(ls_slice(inputs, 1, 1, 2), plane)};
    LS_CHECK(ls_forward_many(f->net, planes, 2, &logits, 1));
    return logits;
}

int main(int argc, char **argv)
{
    int64_t n[VOCAB + 1] = {0};
    if (argc <= CLASSES || argc > VOCAB + 1) {
        return 2;
    }
    for (int i = BATCH; i < argc; i++) {
        n[i] = strtoll(argv[i], NULL, 10);
    }
    LS_CHECK(ls_init(NULL));
    foreign f = make(argv[KIND], n);
    LS_CHECK(ls_module_status(f.net));
    LS_CHECK(f.load(f.net, argv[MODEL]));
    ls_module_train(f.net, false);
    {
        LS_NO_GRAD;
        LS_SCOPE;
        ls_tensor *inputs = ls_zeros(f.shape, f.dtype);
        LS_CHECK(ls_safetensors_load(argv[INPUTS], ITEM("inputs", inputs),
                                     LS_OPTIONS(ls_safetensors_options, .strict = false)));
        ls_tensor *logits = logits_of(&f, inputs);
        LS_CHECK(ls_tensor_status(logits));
        LS_CHECK(ls_safetensors_save(argv[LOGITS], ITEM("logits", logits), NULL));
    }
    LS_CHECK(f.save(f.net, argv[SAVED]));
    ls_module_free(f.net);
    LS_CHECK(ls_finalize());
    return 0;
}
