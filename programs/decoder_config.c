/* SPDX-License-Identifier: Apache-2.0 */
/* config.json, in which transformers writes the shape of a model beside its weights: read and
 * written for GPT-2, Llama and Mixtral. Only what models/ computes is accepted; anything else would
 * load and give wrong numbers. */
#include "decoder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

/* ---- reading -------------------------------------------------------------------------------- */

#define CONFIG_BYTES_MAX (1 << 20) /* true ones have a few thousand */
#define END_OF_TEXT 50256
#define EPS_MISSING 1e-6    /* of a Llama's norms, as transformers takes it */
#define COUNT_MAX (1 << 24) /* the largest count is the size of a vocabulary */

static _Noreturn void refuse_count(const char *path, const char *name)
{
    give_up(EXIT_FAILURE,
            "\"%s\": \"%s\" is missing or not a count; is it a GPT-2's, a Llama's or a Mixtral's?",
            path, name);
}

/* Gives up if the number is not plausible; `missing` where there is none, or null. */
static int64_t count_or(const json_t *config, const char *name, int64_t missing, const char *path)
{
    const json_t *value = json_object_get(config, name);
    if (value == NULL || json_is_null(value)) {
        return missing;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > COUNT_MAX) {
        refuse_count(path, name);
    }
    return json_integer_value(value);
}

/* Gives up if the number is missing, too. */
static int64_t count_in(const json_t *config, const char *name, const char *path)
{
    const int64_t count = count_or(config, name, 0, path);
    if (count == 0) {
        refuse_count(path, name);
    }
    return count;
}

/* Gives up unless it is a number above 0; 0 where there is none. */
static double number_or_0(const json_t *config, const char *name, const char *path)
{
    const json_t *value = json_object_get(config, name);
    if (value != NULL && !json_is_null(value) && !(json_number_value(value) > 0.0)) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is no number above 0; is it damaged?", path, name);
    }
    return json_number_value(value);
}

/* Gives up unless `name` is missing or has the value `wanted`. */
static void expect(const json_t *config, const char *name, const char *wanted, const char *path)
{
    const json_t *value = json_object_get(config, name);
    const char *found = json_string_value(value);
    if (value != NULL && (found == NULL || strcmp(found, wanted) != 0)) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is \"%s\"; only \"%s\" is supported", path, name,
                found ? found : "no text", wanted);
    }
}

/* The same for a boolean. */
static void expect_switch(const json_t *config, const char *name, bool wanted, const char *path)
{
    const json_t *value = json_object_get(config, name);
    if (value != NULL && json_is_true(value) != wanted) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is not %s, which is not computed here", path, name,
                wanted ? "true" : "false");
    }
}

/* Gives up unless `name` is missing or null. */
static void expect_none(const json_t *config, const char *name, const char *path)
{
    const json_t *value = json_object_get(config, name);
    if (value != NULL && !json_is_null(value)) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is given, which is not computed here", path, name);
    }
}

/* Writes to path[bytes] the file of this name in the folder `weights`, or in the folder of the file
 * `weights`. False: there is none. */
static bool file_beside(const char *weights, const char *name, char *path, size_t bytes)
{
    struct stat found;
    const char *slash = strrchr(weights, '/');
    bool folder = stat(weights, &found) == 0 && S_ISDIR(found.st_mode);
    int prefix = folder ? (int)strlen(weights) : slash != NULL ? (int)(slash - weights) : 0;
    const char *between = folder || slash != NULL ? "/" : "";
    int length = snprintf(path, bytes, "%.*s%s%s", prefix, weights, between, name);
    return length > 0 && (size_t)length < bytes && access(path, F_OK) == 0;
}

/* jansson takes up to 80 times the bytes of a text, so a longer one is not read. json_decref(). */
static json_t *read_config(const char *path)
{
    json_error_t error;
    char *text = malloc(CONFIG_BYTES_MAX + 1);
    FILE *file = cli_open(path, "r");
    const size_t bytes =
        file != NULL && text != NULL ? fread(text, 1, CONFIG_BYTES_MAX + 1, file) : 0;
    if (file == NULL && errno == EINVAL) {
        give_up(EXIT_FAILURE, "\"%s\" is not a regular file; give the path of a regular file",
                path);
    }
    if (file == NULL || text == NULL || ferror(file)) {
        give_up(EXIT_FAILURE, "\"%s\" cannot be read: %s", path, strerror(errno));
    }
    if (bytes > CONFIG_BYTES_MAX) {
        give_up(EXIT_FAILURE, "\"%s\" has more than %d bytes; is it a config.json?", path,
                CONFIG_BYTES_MAX);
    }
    json_t *config = json_loadb(text, bytes, 0, &error);
    if (config == NULL) {
        give_up(EXIT_FAILURE, "\"%s\", line %d: %s", path, error.line, error.text);
    }
    (void)fclose(file);
    free(text);
    return config;
}

static void read_gpt2(const json_t *config, const char *path, decoder_shape *shape)
{
    expect(config, "activation_function", "gelu_new", path);
    expect_switch(config, "tie_word_embeddings", true, path);
    expect_switch(config, "scale_attn_weights", true, path);
    expect_switch(config, "scale_attn_by_inverse_layer_idx", false, path);
    shape->model = "gpt2";
    shape->layers = count_in(config, "n_layer", path);
    shape->heads = count_in(config, "n_head", path);
    shape->dim = count_in(config, "n_embd", path);
    shape->positions = count_in(config, "n_positions", path);
    shape->eps = number_or_0(config, "layer_norm_epsilon", path);
}

static _Noreturn void refuse_scaled(const char *name, const char *path)
{
    give_up(
        EXIT_FAILURE,
        "\"%s\": rotary positions are scaled (%s), which is not computed here; give a model with "
        "\"rope_type\" \"llama3\", \"linear\" or \"default\"",
        path, name != NULL ? name : "by a factor");
}

/* Gives up if the number is missing, too. */
static double number_in(const json_t *config, const char *name, const char *path)
{
    const double number = number_or_0(config, name, path);
    if (number == 0.0) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" of the rotary positions is missing; is it damaged?",
                path, name);
    }
    return number;
}

/* Frequencies of a part of each head are scaled as if that were all of it, and no Llama of
 * transformers computes with them; where nothing is scaled it ignores the number. */
static void refuse_part(const json_t *config, const json_t *rope, const char *path)
{
    static const char name[] = "partial_rotary_factor";
    const bool inside = json_object_get(rope, name) != NULL;
    const double part = number_or_0(inside ? rope : config, name, path);
    if (part != 0.0 && part != 1.0) {
        give_up(EXIT_FAILURE,
                "\"%s\": \"%s\" is %g, and scaled rotary positions of a part of each head are not "
                "computed here; give a model without it",
                path, name, part);
    }
}

static void read_scaling(const json_t *config, const json_t *rope, const char *path,
                         ls_rotary_scaling_options *s)
{
    const json_t *type = json_object_get(rope, "rope_type");
    const char *name = json_string_value(type != NULL ? type : json_object_get(rope, "type"));
    if (name != NULL ? strcmp(name, "default") == 0 : json_object_get(rope, "factor") == NULL) {
        return;
    }
    if (name == NULL || (strcmp(name, "llama3") != 0 && strcmp(name, "linear") != 0)) {
        refuse_scaled(name, path);
    }
    refuse_part(config, rope, path);
    s->factor = number_in(rope, "factor", path);
    if (s->factor < 1.0) {
        refuse_scaled("by a factor below 1", path);
    }
    s->original_positions = 0;
    if (strcmp(name, "llama3") == 0) {
        s->low_freq_factor = number_in(rope, "low_freq_factor", path);
        s->high_freq_factor = number_in(rope, "high_freq_factor", path);
        s->original_positions = count_in(rope, "original_max_position_embeddings", path);
    }
}

/* transformers 5 writes "rope_parameters", earlier versions "rope_theta" and, where it is scaled,
 * "rope_scaling". transformers 5 takes the latter where a file has both. NULL: it has none. */
static const json_t *rope_of(const json_t *config, const char *path)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    const json_t *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && json_object_size(found) == 0; i++) {
        found = json_object_get(config, names[i]);
        if (found != NULL && !json_is_null(found) && !json_is_object(found)) {
            give_up(EXIT_FAILURE, "\"%s\": \"%s\" is no object; is it damaged?", path, names[i]);
        }
    }
    return found;
}

static void read_rope(const json_t *config, const char *path, decoder_shape *shape)
{
    const json_t *rope = rope_of(config, path);
    const bool inside = json_object_get(rope, "rope_theta") != NULL;
    read_scaling(config, rope, path, &shape->rope_scaling);
    shape->rope_base = number_or_0(inside ? rope : config, "rope_theta", path);
}

/* The part that Llama and Mixtral have alike. */
static void read_rotary(const json_t *config, const char *path, decoder_shape *shape)
{
    expect(config, "hidden_act", "silu", path);
    shape->layers = count_in(config, "num_hidden_layers", path);
    shape->heads = count_in(config, "num_attention_heads", path);
    shape->dim = count_in(config, "hidden_size", path);
    shape->kv_heads = count_or(config, "num_key_value_heads", shape->heads, path);
    shape->head_dim = count_or(config, "head_dim", 0, path);
    shape->hidden = count_in(config, "intermediate_size", path);
    shape->positions = count_in(config, "max_position_embeddings", path);
    read_rope(config, path, shape);
    shape->eps = number_or_0(config, "rms_norm_eps", path);
}

static void read_llama(const json_t *config, const char *path, decoder_shape *shape)
{
    expect_switch(config, "attention_bias", false, path);
    expect_switch(config, "mlp_bias", false, path);
    read_rotary(config, path, shape);
    shape->model = "llama";
    shape->eps = shape->eps > 0.0 ? shape->eps : EPS_MISSING;
    shape->tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
}

static void read_mixtral(const json_t *config, const char *path, decoder_shape *shape)
{
    expect_switch(config, "tie_word_embeddings", false, path);
    expect_none(config, "sliding_window", path);
    read_rotary(config, path, shape);
    shape->model = "mixtral";
    shape->experts = count_in(config, "num_local_experts", path);
    shape->top_k = count_in(config, "num_experts_per_tok", path);
}

/* Gives up if the command line says otherwise. */
static void check_given(const char *path, const decoder_shape *asked, const decoder_shape *found,
                        char *const *argv)
{
    const struct {
        const char *flag;
        int64_t asked, found;
    } sizes[] = {{"layers", asked->layers, found->layers},
                 {"dim", asked->dim, found->dim},
                 {"heads", asked->heads, found->heads},
                 {"vocab", asked->vocab, found->vocab},
                 {"kv-heads", asked->kv_heads, found->kv_heads},
                 {"hidden", asked->hidden, found->hidden},
                 {"experts", asked->experts, found->experts},
                 {"experts-per-token", asked->top_k, found->top_k},
                 {asked->top_k_flag, asked->top_k, found->top_k},
                 {"tied", asked->tied, found->tied}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].flag != NULL && sizes[i].asked != sizes[i].found &&
            is_given(sizes[i].flag, argv)) {
            give_up(EXIT_USAGE, "--%s contradicts \"%s\", whose model has %lld; leave it out",
                    sizes[i].flag, path, (long long)sizes[i].found);
        }
    }
    if (is_given("model", argv) && !decoder_is_of_a_kind(asked->model, found->model)) {
        give_up(EXIT_USAGE, "--model %s contradicts \"%s\", whose model is %s; leave it out",
                asked->model, path, found->model);
    }
}

/* ---- a tied model whose file has another head ------------------------------------------------ */

/* One after the other in the same memory: they may be the largest tensors of a model. */
typedef struct stored_tables {
    int64_t rows, columns;
    float *data;
    uint64_t hash[2]; /* of the head, and of the table */
    bool missing;
} stored_tables;

static uint64_t hash_of(const float *data, int64_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &data[i], sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return hash;
}

/* The last walk of a load is the one that fills in. */
static ls_status visit_tables(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    static const char *const names[] = {"lm_head.weight", "model.embed_tokens.weight"};
    stored_tables *t = object;
    const ls_state_tensor tensor = {.dtype = LS_FLOAT32,
                                    .ndim = 2,
                                    .global = {t->rows, t->columns},
                                    .local = {t->rows, t->columns},
                                    .data = t->data};
    (void)prefix;
    for (int i = 0; i < 2; i++) {
        const ls_status status = visitor->tensor(visitor->self, names[i], &tensor);
        if (status < 0) {
            return status;
        }
        t->hash[i] = hash_of(t->data, t->rows * t->columns);
    }
    return LS_OK;
}

static bool note_missing(void *arg, const char *name, bool in_file)
{
    stored_tables *t = arg;
    (void)name;
    t->missing = t->missing || !in_file;
    return true;
}

/* Whether the files have both, and other numbers in each. If they do not have them so, who loads
 * the weights says why. */
static bool tables_differ(const char *weights, const decoder_shape *shape)
{
    stored_tables t = {.rows = shape->vocab, .columns = shape->dim};
    t.data = calloc((size_t)t.rows, (size_t)t.columns * sizeof *t.data);
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = &t, .state = visit_tables};
    const bool both = t.data != NULL &&
                      ls_safetensors_load(weights, &item, 1,
                                          LS_OPTIONS(ls_safetensors_options, .allow = note_missing,
                                                     .arg = &t)) == LS_OK &&
                      !t.missing;
    free(t.data);
    return both && t.hash[0] != t.hash[1];
}

/* transformers 5 takes both, too. */
void decoder_untie(const char *weights, decoder_shape *shape)
{
    if (!shape->tied || !shape->exact || !tables_differ(weights, shape)) {
        return;
    }
    shape->tied = false;
    if (ls_rank() == 0) {
        (void)fprintf(stderr,
                      "config.json beside \"%s\" says \"tie_word_embeddings\", but lm_head.weight "
                      "differs from model.embed_tokens.weight; the model is made with both\n",
                      weights);
    }
}

bool decoder_read_config(const char *weights, decoder_shape *shape, char *const *argv)
{
    char path[1024];
    const decoder_shape asked = *shape;
    if (!file_beside(weights, "config.json", path, sizeof path)) {
        return false;
    }
    json_t *config = read_config(path);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (type != NULL && decoder_is_mixtral(type)) {
        read_mixtral(config, path, shape);
    } else if (type != NULL && decoder_is_llama(type)) {
        read_llama(config, path, shape);
    } else if (type == NULL || strcmp(type, "gpt2") == 0) {
        read_gpt2(config, path, shape);
    } else {
        give_up(EXIT_FAILURE, "\"%s\": \"model_type\" is \"%s\"; give a gpt2, a llama or a mixtral",
                path, type);
    }
    shape->exact = true;
    shape->vocab = count_in(config, "vocab_size", path);
    json_decref(config);
    check_given(path, &asked, shape, argv);
    decoder_check(shape, argv);
    return true;
}

/* Appends "eos_token_id" of a file beside the weights: a number or a list. False: it has none. */
static bool read_ends(const char *weights, const char *name, decoder_ends *ends)
{
    char path[1024];
    if (!file_beside(weights, name, path, sizeof path)) {
        return false;
    }
    json_t *config = read_config(path);
    const json_t *value = json_object_get(config, "eos_token_id");
    const size_t listed = json_is_array(value) ? json_array_size(value) : 1;
    const bool found = value != NULL && !json_is_null(value);
    for (size_t i = 0; found && i < listed; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > COUNT_MAX || ends->count == DECODER_ENDS_MAX) {
            give_up(EXIT_FAILURE,
                    "\"%s\": \"eos_token_id\" is neither a token nor a list of at most %d; is it "
                    "damaged?",
                    path, DECODER_ENDS_MAX);
        }
        ends->token[ends->count++] = (int32_t)json_integer_value(id);
    }
    json_decref(config);
    return found;
}

decoder_ends decoder_read_ends(const char *weights)
{
    decoder_ends ends = {.count = 0};
    if (!read_ends(weights, "generation_config.json", &ends)) {
        (void)read_ends(weights, "config.json", &ends);
    }
    return ends;
}

/* ---- writing -------------------------------------------------------------------------------- */

static json_t *rope_config(const ls_llama_options *o)
{
    const ls_rotary_scaling_options *s = o->rope_scaling;
    if (s == NULL) {
        return json_pack("{s:f, s:s}", "rope_theta", o->rope_base, "rope_type", "default");
    }
    if (s->original_positions == 0) {
        return json_pack("{s:f, s:s, s:f}", "rope_theta", o->rope_base, "rope_type", "linear",
                         "factor", s->factor);
    }
    return json_pack("{s:f, s:s, s:f, s:f, s:f, s:I}", "rope_theta", o->rope_base, "rope_type",
                     "llama3", "factor", s->factor, "low_freq_factor", s->low_freq_factor,
                     "high_freq_factor", s->high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)s->original_positions);
}

/* The beginning and the end of a text are tokens of the tokenizer, which is not known here. Before
 * version 5 transformers reads "rope_theta" and "rope_scaling". */
static json_t *rotary_config(const ls_llama_options *o, const char *type, const char *architecture)
{
    json_t *config = json_pack(
        "{s:s, s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:b, s:n, s:n, "
        "s:s}",
        "model_type", type, "architectures", architecture, "hidden_act", "silu",
        "num_hidden_layers", (json_int_t)o->layers, "num_attention_heads", (json_int_t)o->heads,
        "num_key_value_heads", (json_int_t)o->kv_heads, "hidden_size", (json_int_t)o->dim,
        "head_dim", (json_int_t)o->head_dim, "intermediate_size", (json_int_t)o->hidden,
        "max_position_embeddings", (json_int_t)o->context, "vocab_size", (json_int_t)o->vocab,
        "rms_norm_eps", o->eps, "rope_theta", o->rope_base, "rope_parameters", rope_config(o),
        "tie_word_embeddings", (int)o->tied, "bos_token_id", "eos_token_id", "dtype", "float32");
    if (o->rope_scaling != NULL) {
        (void)json_object_set_new(config, "rope_scaling", rope_config(o));
    }
    return config;
}

static json_t *llama_config(const decoder_shape *s)
{
    const ls_llama_options o = decoder_llama_options(s);
    return rotary_config(&o, "llama", "LlamaForCausalLM");
}

static json_t *mixtral_config(const decoder_shape *s)
{
    const ls_mixtral_options o = decoder_mixtral_options(s);
    ls_llama_options alike = decoder_llama_options(s);
    alike.rope_base = o.rope_base;
    json_t *config = rotary_config(&alike, "mixtral", "MixtralForCausalLM");
    json_t *more = json_pack("{s:I, s:I, s:n}", "num_local_experts", (json_int_t)o.experts,
                             "num_experts_per_tok", (json_int_t)o.top_k, "sliding_window");
    (void)json_object_update_new(config, more);
    return config;
}

/* The beginning and the end of a text are tokens of GPT-2's own vocabulary only. */
static json_t *gpt2_config(const decoder_shape *s)
{
    static const struct {
        const char *name;
        int64_t layers, heads, dim;
    } published[] = {{"gpt2", 12, 12, 768},
                     {"gpt2-medium", 24, 16, 1024},
                     {"gpt2-large", 36, 20, 1280},
                     {"gpt2-xl", 48, 25, 1600}};
    int64_t layers = s->layers, heads = s->heads, dim = s->dim;
    for (size_t i = 0; !s->exact && i < sizeof published / sizeof published[0]; i++) {
        if (strcmp(s->model, published[i].name) == 0) {
            layers = published[i].layers, heads = published[i].heads, dim = published[i].dim;
        }
    }
    const ls_gpt2_options o = decoder_gpt2_options(s);
    const int64_t end = o.vocab > END_OF_TEXT ? END_OF_TEXT : o.vocab - 1;
    return json_pack(
        "{s:s, s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:I, s:I, s:s}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "activation_function", "gelu_new",
        "n_layer", (json_int_t)layers, "n_head", (json_int_t)heads, "n_embd", (json_int_t)dim,
        "n_positions", (json_int_t)o.context, "vocab_size", (json_int_t)o.vocab,
        "layer_norm_epsilon", o.eps, "attn_pdrop", o.dropout, "embd_pdrop", o.dropout,
        "resid_pdrop", o.dropout, "tie_word_embeddings", 1, "bos_token_id", (json_int_t)end,
        "eos_token_id", (json_int_t)end, "dtype", "float32");
}

char *decoder_config(const decoder_shape *s)
{
    json_t *config = decoder_is_gpt2(s->model)      ? gpt2_config(s)
                     : decoder_is_llama(s->model)   ? llama_config(s)
                     : decoder_is_mixtral(s->model) ? mixtral_config(s)
                                                    : NULL;
    if (config == NULL) {
        return NULL;
    }
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(config);
    return text;
}
