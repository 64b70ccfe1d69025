/* See decoder.h. */
#include "decoder.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <lockstep/models/gpt.h>

/* ---- shape -------------------------------------------------------------------------------- */

void decoder_check(const decoder_shape *shape)
{
    if (shape->dim % shape->heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)shape->dim,
                (long long)shape->heads);
    }
}

bool decoder_is_gpt2(const char *model)
{
    return strncmp(model, "gpt2", strlen("gpt2")) == 0;
}

/* ---- config.json -------------------------------------------------------------------------- */

#define CONFIG_BYTES_MAX (1 << 20) /* true ones have a few thousand */
#define END_OF_TEXT 50256
#define COUNT_MAX (1 << 24) /* the largest count is the size of a vocabulary */

/* Gives up if the number is missing or not plausible. */
static int64_t count_in(const json_t *config, const char *name, const char *path)
{
    const json_t *value = json_object_get(config, name);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > COUNT_MAX) {
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is missing or not a count; is it a GPT-2's?", path,
                name);
    }
    return json_integer_value(value);
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
        give_up(EXIT_FAILURE, "\"%s\": \"%s\" is not %s, which this GPT-2 does not compute", path,
                name, wanted ? "true" : "false");
    }
}

/* Writes to path[bytes] the config.json in the folder `weights`, or in the folder of the file
 * `weights`. False: there is none. */
static bool config_of(const char *weights, char *path, size_t bytes)
{
    struct stat found;
    const char *slash = strrchr(weights, '/');
    bool folder = stat(weights, &found) == 0 && S_ISDIR(found.st_mode);
    int prefix = folder ? (int)strlen(weights) : slash != NULL ? (int)(slash - weights) : 0;
    const char *between = folder || slash != NULL ? "/" : "";
    int length = snprintf(path, bytes, "%.*s%sconfig.json", prefix, weights, between);
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

/* Accepts only what ls_gpt2_new computes; anything else would load and give wrong numbers. */
bool decoder_read_config(const char *weights, decoder_shape *shape)
{
    char path[1024];
    if (!config_of(weights, path, sizeof path)) {
        return false;
    }
    json_t *config = read_config(path);
    expect(config, "model_type", "gpt2", path);
    expect(config, "activation_function", "gelu_new", path);
    expect_switch(config, "tie_word_embeddings", true, path);
    expect_switch(config, "scale_attn_weights", true, path);
    expect_switch(config, "scale_attn_by_inverse_layer_idx", false, path);
    shape->model = "gpt2";
    shape->exact = true;
    shape->layers = count_in(config, "n_layer", path);
    shape->heads = count_in(config, "n_head", path);
    shape->dim = count_in(config, "n_embd", path);
    shape->positions = count_in(config, "n_positions", path);
    shape->vocab = count_in(config, "vocab_size", path);
    shape->eps = json_number_value(json_object_get(config, "layer_norm_epsilon"));
    json_decref(config);
    return true;
}

/* decoder_read_config reads it, too. The beginning and the end of a text are tokens of GPT-2's own
 * vocabulary only. */
char *decoder_config(const decoder_shape *s)
{
    static const struct {
        const char *name;
        int64_t layers, heads, dim;
    } published[] = {{"gpt2", 12, 12, 768},
                     {"gpt2-medium", 24, 16, 1024},
                     {"gpt2-large", 36, 20, 1280},
                     {"gpt2-xl", 48, 25, 1600}};
    int64_t layers = s->layers, heads = s->heads, dim = s->dim;
    if (!decoder_is_gpt2(s->model)) {
        return NULL;
    }
    for (size_t i = 0; !s->exact && i < sizeof published / sizeof published[0]; i++) {
        if (strcmp(s->model, published[i].name) == 0) {
            layers = published[i].layers, heads = published[i].heads, dim = published[i].dim;
        }
    }
    const ls_gpt2_options o = decoder_gpt2_options(s);
    const int64_t end = o.vocab > END_OF_TEXT ? END_OF_TEXT : o.vocab - 1;
    json_t *config = json_pack(
        "{s:s, s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:b, s:I, s:I, s:s}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "activation_function", "gelu_new",
        "n_layer", (json_int_t)layers, "n_head", (json_int_t)heads, "n_embd", (json_int_t)dim,
        "n_positions", (json_int_t)o.context, "vocab_size", (json_int_t)o.vocab,
        "layer_norm_epsilon", o.eps, "attn_pdrop", o.dropout, "embd_pdrop", o.dropout,
        "resid_pdrop", o.dropout, "tie_word_embeddings", 1, "bos_token_id", (json_int_t)end,
        "eos_token_id", (json_int_t)end, "dtype", "float32");
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(config);
    return text;
}

/* ---- the model ---------------------------------------------------------------------------- */

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

/* Compares the size with the available memory before any value is drawn, because the system grants
 * memory that it does not have and kills the process when it is used. */
static void check_size(const decoder_shape *s)
{
    const double c = (double)s->dim, tokens = (double)(s->vocab + s->context);
    const double bytes = (12.0 * (double)s->layers * c * c + tokens * c) * (double)sizeof(float);
    const int64_t left = ls_memory_available();
    if (left >= 0 && bytes > (double)left) {
        give_up(EXIT_FAILURE,
                "a GPT-2 of %lld layers, width %lld and %lld tokens, as config.json says, takes "
                "%.2f GB, and %.2f GB of memory are left; is it damaged?",
                (long long)s->layers, (long long)s->dim, (long long)s->vocab, bytes * 1e-9,
                (double)left * 1e-9);
    }
}

ls_module *decoder_new(const decoder_shape *s)
{
    if (decoder_is_gpt2(s->model)) {
        if (s->exact) {
            check_size(s);
        }
        const ls_gpt2_options o = decoder_gpt2_options(s);
        return ls_gpt2_new(&o);
    }
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = (int)s->layers, .heads = (int)s->heads,
                                 .dim = s->dim, .context = s->context, .vocab = s->vocab,
                                 .dropout = s->dropout, .init_std = s->init_std,
                                 .recompute = s->recompute));
}

ls_status decoder_load(ls_module *net, const decoder_shape *s, const char *path)
{
    return decoder_is_gpt2(s->model) ? ls_gpt2_load(net, path)
                                     : ls_module_load_safetensors(net, path, NULL);
}

ls_kv_cache *decoder_cache_new(ls_module *net, const decoder_shape *s)
{
    return decoder_is_gpt2(s->model) ? ls_gpt2_cache_new(net, 1) : ls_gpt_cache_new(net, 1);
}

ls_status decoder_read(ls_module *net, const decoder_shape *s, ls_kv_cache *cache, ls_tensor *x,
                       ls_tensor **logits)
{
    return decoder_is_gpt2(s->model) ? ls_gpt2_forward_cached(net, cache, x, 1, logits)
                                     : ls_gpt_forward_cached(net, cache, x, 1, logits);
}
