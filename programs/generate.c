/* SPDX-License-Identifier: Apache-2.0 */
/* Generates text with a GPT-2, a Llama, a Mixtral or a GPT of train_gpt, one token after another.
 *
 *     lockstep generate --weights gpt2 --prompt "The answer is" --tokens 50 --top-p 0.9
 *     lockstep generate --checkpoint run7 --prompt "GNU" --temperature 0.8
 *
 * --weights is a safetensors file, or a folder as transformers saves it, which also contains the
 * tokenizer and, in config.json, the sizes of the model. A folder of checkpoints (train_gpt --save)
 * contains them in run.json. For a file alone pass the sizes with which it was trained.
 *
 * With the cache of keys and values a token costs the work of one token. When the model's context
 * is full, the newer half of it is read again and the older half is dropped. Most of the time of a
 * token goes into reading the weights, which --dtype bf16 halves and int8 quarters.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>
#include <lockstep/tokenizer.h>

#include "common.h"
#include "decoder.h"
#include "run_file.h"
#include "sampling.h"
#include "utf8_stream.h"

typedef struct settings {
    const char *weights, *checkpoint, *tokenizer, *prompt, *stop, *dtype;
    int64_t tokens, seed;
    bool greedy;
    bool published; /* the folder is of transformers, not of a run of train_gpt */
    sampling sampling;
    decoder_shape shape;
} settings;

typedef struct writer {
    const settings *set;
    ls_tokenizer *tokenizer;
    ls_module *net;
    ls_kv_cache *cache;
    candidate *candidates;
    int64_t vocab; /* tokens that can be drawn: those of the model that have a text */
    int32_t *text; /* the tokens of the prompt and those drawn so far */
    int64_t length;
    decoder_ends ends; /* tokens that end the text */
    double first;      /* when the first token was drawn */
    utf8_stream out;
} writer;

#define MODELS "gpt|moe|llama|mixtral|gpt2|gpt2-medium|gpt2-large|gpt2-xl"

/* ---- options -------------------------------------------------------------------------------- */

static bool has_file(const char *folder, const char *name)
{
    char path[4400];
    (void)snprintf(path, sizeof path, "%.4096s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Reads the flags of the run that saved the checkpoints, or exported the folder. Its run_file
 * stays: texts belong to it. The tokenizer's files lie in the folder of an export; of a run that
 * learned bytes they are those of an earlier one. False: no run wrote the folder. */
static bool read_run(settings *s, const cli_command *command, char **argv)
{
    const char *folder = s->checkpoint != NULL ? s->checkpoint : s->weights;
    const bool beside = has_file(folder, "tokenizer.json") || has_file(folder, "vocab.json");
    const char *given = s->tokenizer;
    run_file *run = run_file_new(command);
    if (!run_file_read(run, folder, true, argv)) {
        if (s->checkpoint != NULL) {
            (void)fprintf(stderr,
                          "%s: no run.json, because an earlier version saved there; the model is "
                          "taken to be as --model, --layers, --dim, --heads, --context and "
                          "--tokenizer say\n",
                          folder);
        }
        return false;
    }
    const char *format = run_file_text(run, "format"), *used = run_file_text(run, "tokenizer");
    const bool shards = format != NULL && strcmp(format, "tokens") == 0;
    const bool bytes = !shards && (used == NULL || strcmp(used, "bytes") == 0);
    if (given == NULL && beside && !bytes) {
        s->tokenizer = folder;
    } else if (s->tokenizer == NULL && shards) {
        give_up(EXIT_USAGE,
                "the model in \"%s\" learned from shards of tokens, whose tokenizer it does "
                "not know; give --tokenizer",
                folder);
    } else if (s->tokenizer == NULL) {
        s->tokenizer = "bytes";
    }
    return true;
}

static void check_model_is_named(const settings *s)
{
    if (s->weights != NULL && s->checkpoint != NULL) {
        give_up(EXIT_USAGE, "--weights and --checkpoint are both given, and each names a model; "
                            "leave one of them out");
    }
    if (s->weights == NULL && s->checkpoint == NULL) {
        give_up(EXIT_USAGE,
                "no model given: use --weights FILE-OR-FOLDER (safetensors) or --checkpoint "
                "FOLDER (from lockstep train gpt --save)");
    }
    if (s->checkpoint != NULL && access(s->checkpoint, F_OK) != 0) {
        give_up(EXIT_FAILURE,
                "--checkpoint: \"%s\" does not exist; give the folder that lockstep train gpt "
                "--save made",
                s->checkpoint);
    }
    if (s->weights != NULL && access(s->weights, F_OK) != 0) {
        give_up(EXIT_FAILURE,
                "--weights: \"%s\" does not exist; give a safetensors file, or a folder with "
                "config.json, model.safetensors and the tokenizer",
                s->weights);
    }
}

/* Also reads config.json beside the weights, which options must not contradict. */
static settings read_flags(int argc, char **argv)
{
    static settings s = {.prompt = "",
                         .tokens = 100,
                         .dtype = "float32",
                         .sampling = {.temperature = 1.0, .top_p = 1.0},
                         .shape = {DECODER_DEFAULTS}};
    const cli_option options[] = {
        {"weights", CLI_TEXT, &s.weights, .value_name = "PATH",
         .help = "safetensors: a file, an index or a folder"},
        {"checkpoint", CLI_TEXT, &s.checkpoint, .value_name = "DIR",
         .help = "or a folder of checkpoints, from `lockstep train gpt --save`"},
        {"model", CLI_CHOICE, &s.shape.model, .choices = MODELS, .value_name = "NAME",
         .help = "gpt, moe, llama, mixtral, or gpt2 to gpt2-xl; read from the config.json of a "
                 "folder of weights"},
        {"tokenizer", CLI_TEXT, &s.tokenizer, .value_name = "PATH",
         .fallback = "the folder of the weights, or bytes",
         .help = "bytes, or a folder or file of a byte-pair encoding"},
        {"prompt", CLI_TEXT, &s.prompt, .help = "beginning of the text"},
        {"tokens", CLI_COUNT, &s.tokens, .low = 0, .high = 1e9,
         .help =
             "number of tokens to write at most; beyond the context, the newer half is read again"},
        {"temperature", CLI_NUMBER, &s.sampling.temperature, .low = 0, .high = 1e6,
         .help = "divides the logits; 0: as --greedy"},
        {"top-k", CLI_COUNT, &s.sampling.top_k, .low = 0, .high = 1e9,
         .help = "draw among the N most probable tokens; 0: all"},
        {"top-p", CLI_NUMBER, &s.sampling.top_p, .low = 0, .high = 1,
         .help = "draw among the most probable tokens whose probabilities add up to X"},
        {"greedy", CLI_SWITCH, &s.greedy, .help = "always take the most probable token"},
        {"seed", CLI_COUNT, &s.seed, .low = 0, .high = 9e15,
         .help = "seed of the draws: the same seed writes the same text"},
        {"stop", CLI_TEXT, &s.stop, .value_name = "TOKEN", .fallback = "a published model's own",
         .help = "a token that ends the text, as <|endoftext|>"},
        {"vocab", CLI_COUNT, &s.shape.vocab, .low = 0, .high = 1e8,
         .help = "vocabulary of the model; 0: the tokenizer's"},
        {"dtype", CLI_CHOICE, &s.dtype, .choices = "float32|bf16|int8",
         .help = "type of the weights in products; int8 has a scale for each output"},
        DECODER_FLAGS(s.shape),
    };
    const cli_command command = {
        .name = "lockstep generate",
        .about = "Writes text with a GPT-2, a Llama, a Mixtral, or a GPT of `lockstep train gpt`.",
        .options = options,
        .count = (int)(sizeof options / sizeof options[0]),
        .ranked = true};
    read_options(&command, argc, argv);
    check_model_is_named(&s);
    const bool of_run = read_run(&s, &command, argv);
    if (s.greedy) {
        s.sampling.temperature = 0.0;
    }
    if (s.weights && decoder_read_config(s.weights, &s.shape, argv)) {
        s.shape.context = s.shape.positions;
        s.published = !of_run;
    } else {
        decoder_check(&s.shape, argv);
    }
    return s;
}

/* ---- opening ------------------------------------------------------------------------------ */

/* The vocabulary of the model may be larger than the tokenizer's; only tokens with a text are
 * drawn. */
static void open_tokenizer(writer *w, settings *s)
{
    const char *path = s->tokenizer;
    if (path == NULL) {
        const bool published = decoder_is_gpt2(s->shape.model) || s->shape.exact;
        const bool beside =
            s->weights != NULL && (published || has_file(s->weights, "tokenizer.json"));
        path = beside ? s->weights : "bytes";
    }
    if (LS_STATUS_OF(w->tokenizer = ls_tokenizer_new(path)) < 0) {
        give_up(EXIT_FAILURE, "%s%s", ls_error_message(),
                s->tokenizer ? "" : " (--tokenizer names another tokenizer)");
    }
    int64_t texts = ls_tokenizer_count(w->tokenizer);
    s->shape.vocab = s->shape.vocab ? s->shape.vocab : texts;
    w->vocab = texts < s->shape.vocab ? texts : s->shape.vocab;
}

/* Loads the model only; the checkpoint also contains the optimizer and the position in the data. */
static void load_checkpoint(const writer *w)
{
    const ls_checkpoint_item item = LS_ITEM("model", w->net);
    ls_checkpoint *c = NULL;
    int64_t step;
    must(ls_checkpoint_new(w->set->checkpoint, ls_world(),
                           LS_OPTIONS(ls_checkpoint_options, .load_only = true, .partial = true),
                           &c));
    must(ls_checkpoint_load(c, &item, 1, &step));
    must(ls_checkpoint_free(c));
}

/* A file of weights alone does not say of which model they are, so this is the commonest
 * mistake. */
static void load_weights(const writer *w)
{
    const settings *s = w->set;
    const ls_status status = decoder_loader_of(s->shape.model)(w->net, s->weights);
    if (status == LS_ERR_MISMATCH) {
        give_up(
            EXIT_FAILURE,
            "--weights: \"%s\" does not hold model %s of %lld layers and width %lld. Give --model "
            "(as gpt2) and the sizes with which it was trained, or the folder that --export DIR/ "
            "or save_pretrained wrote, whose files say them",
            s->weights, s->shape.model, (long long)s->shape.layers, (long long)s->shape.dim);
    }
    must(status);
}

static ls_dtype dtype_of(const char *name)
{
    return strcmp(name, "int8") == 0   ? LS_INT8
           : strcmp(name, "bf16") == 0 ? LS_BFLOAT16
                                       : LS_FLOAT32;
}

static void open_model(writer *w)
{
    const decoder_shape *shape = &w->set->shape;
    {
        LS_SKIP_INIT(true); /* all values are loaded below */
        w->net = decoder_new(shape);
    }
    w->candidates = calloc((size_t)w->vocab, sizeof *w->candidates);
    if (!w->net || !w->candidates) {
        give_up(EXIT_FAILURE, "%s", w->net ? "no memory" : ls_error_message());
    }
    ls_module_train(w->net, false);
    if (w->set->checkpoint) {
        load_checkpoint(w);
    } else {
        load_weights(w);
    }
    must(ls_module_quantize(w->net, dtype_of(w->set->dtype)));
    w->cache = decoder_cache_new(w->net, shape);
    if (!w->cache) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
}

/* The token before the first of the prompt, -1: none. A published model expects the one of its
 * tokenizer; texts of train_gpt have none. An empty prompt needs one to begin with. */
static int32_t start_of_text(const writer *w, const int32_t *ids, int64_t count)
{
    const int32_t start = w->set->published ? ls_tokenizer_start(w->tokenizer) : -1;
    if (count > 0) {
        return ids[0] == start ? -1 : start; /* the prompt may have it in its text */
    }
    const int32_t end = ls_tokenizer_id(w->tokenizer, "<|endoftext|>");
    const int32_t usual = start >= 0 ? start : end;
    return usual >= 0 ? usual : ls_tokenizer_id(w->tokenizer, "\n");
}

/* Encodes the prompt into w->text, which has room for all tokens to come. */
static void read_prompt(writer *w)
{
    const settings *s = w->set;
    int32_t *ids = NULL;
    int64_t count;
    must(ls_tokenizer_encode(w->tokenizer, s->prompt, strlen(s->prompt), &ids, &count));
    w->text = calloc((size_t)(count + s->tokens + 1), sizeof *w->text);
    if (!w->text) {
        give_up(EXIT_FAILURE, "no memory");
    }
    const int32_t start = start_of_text(w, ids, count);
    if (start >= 0) {
        w->text[w->length++] = start;
    } else if (count == 0) {
        give_up(EXIT_USAGE, "--prompt is empty and the tokenizer has no <|endoftext|> to begin "
                            "with; give a prompt");
    }
    memcpy(w->text + w->length, ids, (size_t)count * sizeof *ids);
    w->length += count;
    ls_bytes_free(ids);
    for (int64_t i = 0; i < w->length; i++) {
        if (w->text[i] >= s->shape.vocab) {
            give_up(EXIT_FAILURE,
                    "the prompt has token %d, the model has %lld tokens; give the tokenizer it was "
                    "trained with",
                    (int)w->text[i], (long long)s->shape.vocab);
        }
    }
}

/* A published model ends a text at the tokens that its folder names, as in transformers. */
static void find_ends(writer *w)
{
    const settings *s = w->set;
    if (s->stop == NULL) {
        w->ends = s->published ? decoder_read_ends(s->weights) : (decoder_ends){.count = 0};
        return;
    }
    w->ends = (decoder_ends){.token = {ls_tokenizer_id(w->tokenizer, s->stop)}, .count = 1};
    if (w->ends.token[0] < 0) {
        give_up(EXIT_USAGE, "--stop is \"%s\", which is not a token of the tokenizer", s->stop);
    }
}

static bool is_end(const writer *w, int32_t token)
{
    int i = 0;
    while (i < w->ends.count && w->ends.token[i] != token) {
        i++;
    }
    return i < w->ends.count;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* Reads the tokens from `from` on and draws the next one, number `index` of the stream. */
static int32_t next_token(writer *w, int64_t from, int64_t index)
{
    const settings *s = w->set;
    int32_t token = -1;
    {
        LS_SCOPE;
        int64_t count = 0;
        ls_tensor *x = ls_from_memory(w->text + from, LS_SHAPE(1, w->length - from), LS_INT32);
        ls_tensor *logits = NULL;
        must(decoder_read(w->net, &s->shape, w->cache, x, &logits));
        must(sampling_candidates(&s->sampling, ls_data(ls_contiguous(logits)), w->vocab,
                                 w->candidates, &count));
        token = sampling_draw(w->candidates, count,
                              sampling_uniform((uint64_t)s->seed, (uint64_t)index));
    }
    return token;
}

/* A token may end within a character, so the stream holds back incomplete ones. */
static void show(writer *w, int32_t token)
{
    char *text = NULL;
    size_t bytes = 0;
    must(ls_tokenizer_decode(w->tokenizer, &token, 1, &text, &bytes));
    utf8_write(&w->out, text, bytes);
    ls_bytes_free(text);
}

/* Draws and writes tokens until the limit, an end of the text or a stop request. Returns their
 * number. */
static int64_t write_text(writer *w)
{
    const settings *s = w->set;
    const int64_t context = s->shape.context, kept = context > 1 ? context / 2 : 1;
    int64_t from = w->length > context ? w->length - context : 0, written = 0;
    while (written < s->tokens && !ls_stop_requested()) {
        if (ls_kv_cache_length(w->cache) == context) {
            ls_kv_cache_cut(w->cache, 0);
            from = w->length - kept;
        }
        int32_t token = next_token(w, from, written);
        w->first = written == 0 ? ls_time() : w->first;
        from = w->length;
        w->text[w->length++] = token;
        if (is_end(w, token)) {
            break;
        }
        show(w, token);
        written++;
    }
    return written;
}

/* The first token is apart: it costs the reading of the prompt, and the rounding of the weights. */
static void report(const writer *w, int64_t written, double started, double ended)
{
    (void)fprintf(stderr, "%s%lld tokens", ls_stop_requested() ? "stopped by a signal; " : "",
                  (long long)written);
    if (written > 1 && ended > w->first) {
        (void)fprintf(stderr, ", %.1f tokens/s after the first, which took %.2f s",
                      (double)(written - 1) / (ended - w->first), w->first - started);
    }
    (void)fputs("\n", stderr);
}

int main(int argc, char **argv)
{
    cli_leave_job();
    settings s = read_flags(argc, argv);
    must(ls_init(LS_OPTIONS(ls_init_options, .graceful_stop = true)));
    if (ls_world_size() > 1) {
        give_up(EXIT_USAGE, "%d ranks were started; one writes a text: run it without lockstep run",
                ls_world_size());
    }
    writer w = {.set = &s, .out = {.out = stdout}};
    open_tokenizer(&w, &s);
    read_prompt(&w);
    find_ends(&w);
    if (s.weights != NULL) {
        decoder_untie(s.weights, &s.shape);
    }
    open_model(&w);
    utf8_write(&w.out, s.prompt, strlen(s.prompt));
    double started = ls_time();
    int64_t written = write_text(&w);
    const double ended = ls_time();
    utf8_end(&w.out);
    (void)fputs("\n", stdout);
    cli_flush(stdout);
    report(&w, written, started, ended);
    ls_kv_cache_free(w.cache);
    ls_module_free(w.net);
    ls_tokenizer_free(w.tokenizer);
    free(w.candidates);
    free(w.text);
    must(ls_finalize());
    return cli_end(EXIT_SUCCESS);
}
