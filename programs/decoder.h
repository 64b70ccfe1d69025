/* A language model that reads from left to right, GPT or GPT-2: its flags, made alike by the
 * program that trains one and the one that writes with it. */
#ifndef PROGRAMS_DECODER_H
#define PROGRAMS_DECODER_H

#include <lockstep/lockstep.h>

#include "common.h"
#include <lockstep/models/gpt2.h>

typedef struct decoder_shape {
    const char *model; /* "gpt", of the shape below, or "gpt2", "gpt2-medium" … */
    bool exact;        /* "gpt2" is of the shape below, too */
    int64_t vocab, context, layers, dim, heads;
    int64_t positions; /* that GPT-2 knows; 0: context */
    double dropout, init_std;
    double eps; /* of the norms of GPT-2; 0: theirs */
    bool recompute;
} decoder_shape;
#define DECODER_DEFAULTS                                                                           \
    .model = "gpt", .context = 128, .layers = 4, .dim = 128, .heads = 4, .init_std = 0.02

/* Rows of a table of flags. */
#define DECODER_FLAGS(s)                                                                             \
    {"context", CLI_COUNT,   &(s).context,                                                           \
     .low = 1,  .high = 1e5, .help = "tokens of a window, which is a sample"},                       \
        {"layers", CLI_COUNT,    &(s).layers,                                                        \
         .low = 1, .high = 1000, .help = "transformer blocks, or layers of an LSTM"},                \
        {"dim", CLI_COUNT, &(s).dim, .low = 1, .high = 1e5, .help = "width; a multiple of --heads"}, \
    {                                                                                                \
        "heads", CLI_COUNT, &(s).heads, .low = 1, .high = 1e4, .help = "attention heads"             \
    }

void decoder_check(const decoder_shape *shape); /* a mistake ends the program */

bool decoder_is_gpt2(const char *model); /* gpt2 and its larger sizes */
ls_gpt2_options decoder_gpt2_options(const decoder_shape *shape);

/* The shape of GPT-2, but for `context`, from the config.json that transformers writes into the
 * folder of the weights, which are that folder or a file in it; false: there is no such file.
 * Another model's, or one this GPT-2 does not compute, ends the program. */
bool decoder_read_config(const char *weights, decoder_shape *shape);

ls_module *decoder_new(const decoder_shape *shape);
ls_status decoder_load(ls_module *net, const decoder_shape *shape, const char *path);

/* As ls_gpt2_cache_new and ls_gpt2_forward_cached. */
ls_kv_cache *decoder_cache_new(ls_module *net, const decoder_shape *shape);
ls_status decoder_read(ls_module *net, const decoder_shape *shape, ls_kv_cache *cache, ls_tensor *x,
                       ls_tensor **logits); /* of the last token: [1,1,vocab] */

#endif
