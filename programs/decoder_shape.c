/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of a decoder: whether they fit, and as the options of its model (decoder.h). Nothing
 * here makes a module, so that commands which only plan can use it. */
#include "decoder.h"

#include <string.h>

/* ---- checks ------------------------------------------------------------------------------- */

static void check_rotary(const decoder_shape *shape)
{
    const int64_t groups = shape->kv_heads > 0 ? shape->kv_heads : shape->heads;
    if (shape->heads % groups != 0) {
        give_up(EXIT_USAGE, "--heads %lld is not a multiple of --kv-heads %lld",
                (long long)shape->heads, (long long)groups);
    }
    if ((shape->head_dim > 0 ? shape->head_dim : shape->dim / shape->heads) % 2 != 0) {
        give_up(EXIT_USAGE,
                "--dim %lld with --heads %lld: a head has an odd number of elements, which rotary "
                "positions turn in pairs; give it an even one",
                (long long)shape->dim, (long long)shape->heads);
    }
    if (shape->dropout > 0.0) {
        give_up(EXIT_USAGE, "--dropout %g: a %s has none; leave it out", shape->dropout,
                decoder_is_llama(shape->model) ? "Llama" : "Mixtral");
    }
}

static void refuse_flag(const char *flag, const decoder_shape *shape, const char *models)
{
    give_up(EXIT_USAGE, "--%s is for --model %s, and this is %s; leave it out, or give --model",
            flag, models, shape->model);
}

/* A flag that would be ignored is a mistake: often --model is missing. */
static void check_meaning(const decoder_shape *shape, char *const *argv)
{
    static const char *const of_rotary[] = {"kv-heads", "hidden", "tied"};
    static const char *const sizes[] = {"layers", "dim", "heads"};
    const bool lstm = strcmp(shape->model, "lstm") == 0;
    const char *const of_experts[] = {"experts", "experts-per-token", shape->top_k_flag, "capacity",
                                      "padded",  "balance-loss"};
    const bool llama = decoder_is_llama(shape->model);
    const bool rotary = llama || decoder_is_mixtral(shape->model);
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++) {
        const char *flag = of_experts[i];
        if (flag != NULL && !decoder_has_experts(shape->model) && is_given(flag, argv)) {
            refuse_flag(flag, shape, "moe or mixtral");
        }
    }
    if (lstm && is_given("heads", argv)) {
        refuse_flag("heads", shape, "gpt, moe, llama or mixtral");
    }
    if ((lstm || decoder_is_gpt2(shape->model)) && is_given("init-std", argv)) {
        refuse_flag("init-std", shape, "gpt, moe, llama or mixtral");
    }
    for (int i = 0; i < 3; i++) {
        if (!(i < 2 ? rotary : llama) && is_given(of_rotary[i], argv)) {
            refuse_flag(of_rotary[i], shape, i < 2 ? "llama or mixtral" : "llama");
        }
        if (decoder_is_gpt2(shape->model) && !shape->exact && is_given(sizes[i], argv)) {
            give_up(EXIT_USAGE,
                    "--%s: the sizes of %s are the published ones; leave it out, or give --model "
                    "gpt",
                    sizes[i], shape->model);
        }
    }
}

void decoder_check(const decoder_shape *shape, char *const *argv)
{
    check_meaning(shape, argv);
    if (shape->dim % shape->heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)shape->dim,
                (long long)shape->heads);
    }
    if (decoder_has_experts(shape->model) && shape->top_k > shape->experts) {
        give_up(EXIT_USAGE, "--experts-per-token %lld of --experts %lld; give at most all",
                (long long)shape->top_k, (long long)shape->experts);
    }
    if (shape->padded && shape->capacity == 0.0) {
        give_up(EXIT_USAGE, "--padded sends an expert all its capacity; give --capacity, as 1.25");
    }
    if (decoder_is_mixtral(shape->model) || decoder_is_llama(shape->model)) {
        check_rotary(shape);
    }
}

bool decoder_has_experts(const char *model)
{
    return strcmp(model, "moe") == 0 || decoder_is_mixtral(model);
}

bool decoder_is_llama(const char *model)
{
    return strcmp(model, "llama") == 0;
}

bool decoder_is_mixtral(const char *model)
{
    return strcmp(model, "mixtral") == 0;
}

bool decoder_is_gpt2(const char *model)
{
    return strncmp(model, "gpt2", strlen("gpt2")) == 0;
}

bool decoder_is_of_a_kind(const char *a, const char *b)
{
    return decoder_is_gpt2(a) == decoder_is_gpt2(b) && decoder_is_llama(a) == decoder_is_llama(b) &&
           decoder_is_mixtral(a) == decoder_is_mixtral(b);
}

/* ---- options of models -------------------------------------------------------------------- */

ls_gpt2_options decoder_gpt2_options(const decoder_shape *s)
{
    ls_gpt2_options o =
        *LS_OPTIONS(ls_gpt2_options, .context = s->positions ? s->positions : s->context,
                    .vocab = s->vocab, .dropout = s->dropout, .recompute = s->recompute);
    if (s->exact) {
        o.layers = (int)s->layers;
        o.heads = (int)s->heads;
        o.dim = s->dim;
    } else {
        o.variant = s->model;
    }
    o.eps = s->eps > 0.0 ? s->eps : o.eps;
    return o;
}

/* What the options of a Llama and of a Mixtral have in common, of a decoder_shape. The formatter
 * would give each field a line of its own. */
/* clang-format off */
#define ROTARY_OPTIONS(s)                                                                          \
    .layers = (int)(s)->layers, .heads = (int)(s)->heads,                                          \
    .kv_heads = (int)((s)->kv_heads > 0 ? (s)->kv_heads : (s)->heads), .dim = (s)->dim,            \
    .head_dim = (s)->head_dim > 0 ? (s)->head_dim : (s)->dim / (s)->heads,                         \
    .hidden = (s)->hidden > 0 ? (s)->hidden : 4 * (s)->dim, .vocab = (s)->vocab,                   \
    .context = (s)->positions > 0 ? (s)->positions : (s)->context, .recompute = (s)->recompute,    \
    .rope_scaling = (s)->rope_scaling.factor > 1.0 ? &(s)->rope_scaling : NULL
/* clang-format on */

/* A number that the shape lacks keeps its published value. */
static void set_numbers(const decoder_shape *s, double *rope_base, double *eps, double *init_std)
{
    *rope_base = s->rope_base > 0.0 ? s->rope_base : *rope_base;
    *eps = s->eps > 0.0 ? s->eps : *eps;
    *init_std = s->init_std > 0.0 ? s->init_std : *init_std;
}

ls_llama_options decoder_llama_options(const decoder_shape *s)
{
    ls_llama_options o = *LS_OPTIONS(ls_llama_options, ROTARY_OPTIONS(s), .tied = s->tied);
    set_numbers(s, &o.rope_base, &o.eps, &o.init_std);
    return o;
}

ls_mixtral_options decoder_mixtral_options(const decoder_shape *s)
{
    ls_mixtral_options o = *LS_OPTIONS(ls_mixtral_options, ROTARY_OPTIONS(s), .experts = s->experts,
                                       .top_k = (int)s->top_k, .capacity = s->capacity,
                                       .padded = s->padded, .balance_loss = s->balance_loss);
    set_numbers(s, &o.rope_base, &o.eps, &o.init_std);
    return o;
}
