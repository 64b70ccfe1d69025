/* A causal language model, GPT or GPT-2, with its options: shared by the program that trains it and
 * the one that generates text with it. */
#ifndef PROGRAMS_DECODER_H
#define PROGRAMS_DECODER_H

#include <lockstep/lockstep.h>

#include "common.h"
#include <lockstep/models/gpt2.h>

typedef struct decoder_shape {
    const char *model; /* "gpt", with the sizes below, or "gpt2", "gpt2-medium" … */
    bool exact;        /* the sizes below also apply to "gpt2" */
    int64_t vocab, context, layers, dim, heads;
    int64_t positions; /* the number of GPT-2's position embeddings; 0: context */
    double dropout, init_std;
    double eps; /* of GPT-2's norms; 0: the published one */
    bool recompute;
} decoder_shape;
#define DECODER_DEFAULTS                                                                           \
    .model = "gpt", .context = 128, .layers = 4, .dim = 128, .heads = 4, .init_std = 0.02

/* Rows of a table of options. The hidden ones are of a config.json, for run.json. */
#define DECODER_FLAGS(s)                                                                             \
    {"context", CLI_COUNT,   &(s).context,                                                           \
     .low = 1,  .high = 1e5, .help = "tokens of a window, which is a sample"},                       \
        {"layers", CLI_COUNT,    &(s).layers,                                                        \
         .low = 1, .high = 1000, .help = "transformer blocks, or layers of an LSTM"},                \
        {"dim", CLI_COUNT, &(s).dim, .low = 1, .high = 1e5, .help = "width; a multiple of --heads"}, \
        {"heads", CLI_COUNT, &(s).heads, .low = 1, .high = 1e4, .help = "attention heads"},          \
        {"positions",                                                                                \
         CLI_COUNT,                                                                                  \
         &(s).positions,                                                                             \
         .low = 0,                                                                                   \
         .high = 1 << 24,                                                                            \
         .hidden = true,                                                                             \
         .help = "position embeddings of GPT-2"},                                                    \
        {"norm-eps",                                                                                 \
         CLI_NUMBER,                                                                                 \
         &(s).eps,                                                                                   \
         .low = 0,                                                                                   \
         .high = 1,                                                                                  \
         .hidden = true,                                                                             \
         .help = "epsilon of GPT-2's norms"},                                                        \
    {                                                                                                \
        "exact-shape", CLI_SWITCH, &(s).exact, .hidden = true,                                       \
                                               .help = "the sizes also apply to gpt2"                \
    }

void decoder_check(const decoder_shape *shape); /* ends the program if the sizes do not fit */

bool decoder_is_gpt2(const char *model); /* gpt2 and its larger sizes */
ls_gpt2_options decoder_gpt2_options(const decoder_shape *shape);

/* Reads the sizes of GPT-2, except `context`, from the config.json that transformers writes beside
 * the weights; `weights` is the folder or a file in it. False: there is no such file. The
 * config.json of another model, or of a variant that ls_gpt2_new does not compute, ends the
 * program. */
bool decoder_read_config(const char *weights, decoder_shape *shape);

/* The config.json of this shape for transformers, from malloc; NULL: it has no model of the
 * kind. */
char *decoder_config(const decoder_shape *shape);

ls_module *decoder_new(const decoder_shape *shape);
ls_status decoder_load(ls_module *net, const decoder_shape *shape, const char *path);

/* As ls_gpt2_cache_new and ls_gpt2_forward_cached. */
ls_kv_cache *decoder_cache_new(ls_module *net, const decoder_shape *shape);
ls_status decoder_read(ls_module *net, const decoder_shape *shape, ls_kv_cache *cache, ls_tensor *x,
                       ls_tensor **logits); /* of the last token: [1,1,vocab] */

#endif
