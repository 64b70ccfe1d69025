/* SPDX-License-Identifier: Apache-2.0 */
/* A causal language model, GPT, GPT-2, Llama or Mixtral, with its options: shared by the program
 * that trains it and the one that generates text with it. */
#ifndef PROGRAMS_DECODER_H
#define PROGRAMS_DECODER_H

#include <lockstep/lockstep.h>

#include "common.h"
#include <lockstep/models/gpt2.h>
#include <lockstep/models/llama.h>
#include <lockstep/models/mixtral.h>

typedef struct decoder_shape {
    /* "gpt", "moe", "llama", "mixtral", with the sizes below, or "gpt2", "gpt2-medium" … */
    const char *model;
    bool exact; /* the sizes are of a config.json; they also apply to "gpt2" */
    int64_t vocab, context, layers, dim, heads;
    int64_t positions; /* tokens that a published model can read at once; 0: context */
    double dropout, init_std;
    double eps; /* of their norms; 0: the published one */
    bool recompute;
    /* Of "mixtral", and of "moe", a gpt whose every second block has experts. */
    int64_t experts, top_k;
    const char *top_k_flag; /* of the command, beside --experts-per-token; NULL: none */
    /* Of "llama" and "mixtral"; 0: heads, 4 dim, dim / heads. */
    int64_t kv_heads, hidden, head_dim;
    double rope_base; /* 0: the published one */
    ls_rotary_scaling_options rope_scaling;
    bool tied; /* of "llama" */
    double capacity, balance_loss;
    bool padded; /* sends whole capacities */
} decoder_shape;
#define DECODER_DEFAULTS                                                                           \
    .model = "gpt", .context = 128, .layers = 4, .dim = 128, .heads = 4, .init_std = 0.02,         \
    .experts = 8, .top_k = 2,                                                                      \
    .rope_scaling = {.size = sizeof(ls_rotary_scaling_options), .factor = 1.0}

/* Rows of a table of options. The hidden ones are of a config.json, for run.json. The
 * formatter would give each field a line of its own. */
/* clang-format off */
#define DECODER_FLAGS(s)                                                                           \
    {"context", CLI_COUNT, &(s).context, .low = 1, .high = 1e5,                                    \
     .help = "tokens of a window, which is a sample"},                                             \
    {"layers", CLI_COUNT, &(s).layers, .low = 1, .high = 1000,                                     \
     .help = "transformer blocks, or layers of an LSTM"},                                          \
    {"dim", CLI_COUNT, &(s).dim, .low = 1, .high = 1e5, .help = "width; a multiple of --heads"},   \
    {"heads", CLI_COUNT, &(s).heads, .low = 1, .high = 1e4, .help = "attention heads"},            \
    {"experts", CLI_COUNT, &(s).experts, .low = 1, .high = 1e4,                                    \
     .help = "experts of every second block of moe, of every one of mixtral"},                     \
    {"experts-per-token", CLI_COUNT, &(s).top_k, .low = 1, .high = 1e4,                            \
     .help = "experts that a token visits"},                                                       \
    {"capacity", CLI_NUMBER, &(s).capacity, .low = 0, .high = 1e6,                                 \
     .help = "an expert takes X times its even share of the tokens; 0: all that come"},            \
    {"padded", CLI_SWITCH, &(s).padded,                                                            \
     .help = "send an expert all its --capacity, zeros where less has come"},                      \
    {"kv-heads", CLI_COUNT, &(s).kv_heads, .low = 0, .high = 1e4, .fallback = "--heads",           \
     .help = "of llama and mixtral: heads of keys and values"},                                    \
    {"hidden", CLI_COUNT, &(s).hidden, .low = 0, .high = 1e6, .fallback = "4 times --dim",         \
     .help = "of llama and mixtral: width of the gated layer, or of an expert"},                   \
    {"tied", CLI_SWITCH, &(s).tied, .help = "of llama: the head is the table of tokens"},          \
    {"head-dim", CLI_COUNT, &(s).head_dim, .low = 0, .high = 1e5, .hidden = true,                  \
     .help = "of llama and mixtral: width of a head"},                                             \
    {"rope-base", CLI_NUMBER, &(s).rope_base, .low = 0, .high = 1e12, .hidden = true,              \
     .help = "of llama and mixtral: base of the rotary positions"},                                \
    {"rope-factor", CLI_NUMBER, &(s).rope_scaling.factor, .low = 1, .high = 1e6, .hidden = true,   \
     .help = "of llama and mixtral: slow pairs turn so many times slower"},                        \
    {"rope-low", CLI_NUMBER, &(s).rope_scaling.low_freq_factor, .low = 0, .high = 1e6,             \
     .hidden = true, .help = "of llama and mixtral: pairs of fewer turns are slow"},               \
    {"rope-high", CLI_NUMBER, &(s).rope_scaling.high_freq_factor, .low = 0, .high = 1e6,           \
     .hidden = true, .help = "of llama and mixtral: pairs of more turns are not"},                 \
    {"rope-positions", CLI_COUNT, &(s).rope_scaling.original_positions, .low = 0, .high = 1 << 24, \
     .hidden = true, .help = "of llama and mixtral: within so many positions"},                    \
    {"positions", CLI_COUNT, &(s).positions, .low = 0, .high = 1 << 24, .hidden = true,            \
     .help = "tokens that a published model can read"},                                            \
    {"norm-eps", CLI_NUMBER, &(s).eps, .low = 0, .high = 1, .hidden = true,                        \
     .help = "epsilon of a published model's norms"},                                              \
    {"exact-shape", CLI_SWITCH, &(s).exact, .hidden = true, .help = "the sizes also apply to gpt2"}
/* clang-format on */

/* Ends the program if the sizes do not fit, or the model would ignore a flag. */
void decoder_check(const decoder_shape *shape, char *const *argv);

bool decoder_is_gpt2(const char *model); /* gpt2 and its larger sizes */
bool decoder_is_llama(const char *model);
bool decoder_is_mixtral(const char *model);
bool decoder_has_experts(const char *model);
bool decoder_is_of_a_kind(const char *a, const char *b); /* as gpt2 and gpt2-xl */
ls_gpt2_options decoder_gpt2_options(const decoder_shape *shape);
ls_llama_options decoder_llama_options(const decoder_shape *shape);
ls_mixtral_options decoder_mixtral_options(const decoder_shape *shape);

/* Reads the sizes of GPT-2, Llama or Mixtral, except `context`, from the config.json that
 * transformers writes beside the weights; `weights` is the folder or a file in it. False: there is
 * none. The config.json of another model, or of a variant not computed here, ends the program, and
 * so does a flag that says otherwise. */
bool decoder_read_config(const char *weights, decoder_shape *shape, char *const *argv);

#define DECODER_ENDS_MAX 16

typedef struct decoder_ends {
    int32_t token[DECODER_ENDS_MAX];
    int count;
} decoder_ends;
/* The tokens that end a text of a model that transformers wrote, from the same folder:
 * "eos_token_id" of generation_config.json, or else of config.json. */
decoder_ends decoder_read_ends(const char *weights);

/* The config.json of this shape for transformers, from malloc; NULL: it has no model of the
 * kind. */
char *decoder_config(const decoder_shape *shape);

/* A tied shape of a config.json is no longer tied, which is said once, if the files have a head
 * of other numbers than the table. */
void decoder_untie(const char *weights, decoder_shape *shape);

ls_module *decoder_new(const decoder_shape *shape);
typedef ls_status decoder_loader(ls_module *net, const char *path);
decoder_loader *decoder_loader_of(const char *model);

/* As ls_gpt2_cache_new and ls_gpt2_forward_cached. */
ls_kv_cache *decoder_cache_new(ls_module *net, const decoder_shape *shape);
ls_status decoder_read(ls_module *net, const decoder_shape *shape, ls_kv_cache *cache, ls_tensor *x,
                       ls_tensor **logits); /* of the last token: [1,1,vocab] */

#endif
