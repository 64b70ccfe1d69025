/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a GPT, or an LSTM, on text or tokens, on all ranks.
 *
 *     lockstep train gpt -n 4 --data book.txt --steps 2000
 *     … --layers 6 --dim 384 --heads 6 --context 256 --dropout 0.1 --accum 4
 *     … --save run7 --every 100 --resume run7 --eval-every 100 --log run7.jsonl --tensorboard runs
 *
 *     … --model gpt2 --tokenizer gpt2 --init gpt2        with a folder of Hugging Face's
 *     … --model moe --experts 8 --top-k 2 --mesh ep=4    a mixture of experts in every second block
 *     … --model llama --init DIR --export OUT/           a Llama, or a mixtral, in a folder of
 *                                                        Hugging Face's
 *
 * Text is learned byte by byte, or through --tokenizer, and the last tenth of each file is held
 * out. With --format tokens
 * --data is a shard of tokens or a folder of them, as nanoGPT and llm.c write them, and what is
 * held out is --held-out, or the folder's shards whose names hold "val". 03_gpt_text.c is the same
 * with less to choose and more to look at.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/tokenizer.h>

#include "common.h"
#include "decoder.h"
#include "judge.h"
#include "memory_check.h"
#include "token_text.h"
#include "trainer.h"
#include <lockstep/models/gpt2.h>
#include <lockstep/models/lstm.h>

#define JUDGE_BATCH 16
#define GPT2_TOKENS 50257
#define BYTES 256 /* tokens without a tokenizer */

typedef struct settings {
    const char *data, *format, *tokenizer, *held_out;
    int64_t eval_windows;
    decoder_shape shape;
    trainer_options train;
} settings;

typedef struct tokens {
    ls_dataset *train;
    ls_dataset *held_out;
    int64_t windows; /* of what is held out, to judge by */
    int64_t judged;  /* windows at a time */
} tokens;

#define MODELS "gpt|moe|llama|mixtral|lstm|gpt2|gpt2-medium|gpt2-large|gpt2-xl"
#define FORMATS "text|tokens"
enum { TEXT, TOKENS };

/* In static memory: run_file.h points to the values. */
static settings *read_flags(int argc, char **argv)
{
    static settings s = {.format = "text",
                         .eval_windows = 1000,
                         .shape = {DECODER_DEFAULTS, .top_k_flag = "top-k", .balance_loss = 0.01},
                         .train = {TRAINER_DEFAULTS.steps = 2000, .batch = 8, .lr = 1e-3,
                                   .beta2 = 0.95, .weight_decay = 0.1, .clip = 1.0}};
    const cli_option options[] = {
        {"model", CLI_CHOICE, &s.shape.model, .choices = MODELS, .value_name = "NAME",
         .help = "gpt, moe, llama, mixtral or lstm, of the shape below, or gpt2 to gpt2-xl, the "
                 "published sizes (with --init, the shape in the config.json beside the weights)"},
        {"data", CLI_TEXT, &s.data, .help = "file or folder to learn from", .value_name = "PATH"},
        {"format", CLI_CHOICE, &s.format, .choices = FORMATS,
         .help = "format of --data: text, or token shards (nanoGPT, llm.c)"},
        {"tokenizer", CLI_TEXT, &s.tokenizer, .value_name = "PATH", .fallback = "bytes",
         .help = "folder or file of a byte-pair encoding for the text"},
        {"held-out", CLI_TEXT, &s.held_out, .value_name = "PATH",
         .help = "token shards to evaluate on; of text a tenth is held out"},
        {"vocab", CLI_COUNT, &s.shape.vocab, .low = 0, .high = 1e8,
         .help = "size of the vocabulary; 0: the tokenizer's, 50257 for shards"},
        {"dropout", CLI_NUMBER, &s.shape.dropout, .low = 0, .high = 0.99,
         .help = "dropout probability"},
        {"init-std", CLI_NUMBER, &s.shape.init_std, .low = 0, .high = 1e3,
         .help = "standard deviation of the initial weights; 0: PyTorch's defaults"},
        {"eval-windows", CLI_COUNT, &s.eval_windows, .low = 1, .high = 1e12,
         .help = "evaluate on at most N held-out windows"},
        DECODER_FLAGS(s.shape),
        {"top-k", CLI_COUNT, &s.shape.top_k, .low = 1, .high = 1e4,
         .help = "the same as --experts-per-token"},
        {"balance-loss", CLI_NUMBER, &s.shape.balance_loss, .low = 0, .high = 1e3,
         .help = "weight of the loss that evens out the experts' tokens"},
    };
    const cli_command command = {.name = "lockstep train gpt",
                                 .about = "Trains a GPT on text or tokens, on all ranks.",
                                 .options = options,
                                 .count = (int)(sizeof options / sizeof options[0])};
    trainer_read_options(&command, &s.train, argc, argv);
    const int format = cli_choice(FORMATS, s.format);
    if (s.train.init && is_given("init-std", argv)) {
        give_up(EXIT_USAGE, "--init-std is of values that are drawn, and --init loads them; leave "
                            "one of them out");
    }
    if (!s.data) {
        give_up(EXIT_USAGE, "--data is missing: name a file or a folder of text or tokens");
    }
    const bool published = s.train.init && decoder_read_config(s.train.init, &s.shape, argv);
    if (!published) {
        decoder_check(&s.shape, argv);
    } else if (s.shape.context > s.shape.positions) {
        give_up(EXIT_USAGE, "--context is %lld, the model of --init knows %lld positions",
                (long long)s.shape.context, (long long)s.shape.positions);
    }
    (void)parallel_recompute(&s.train, strcmp(s.shape.model, "lstm") != 0);
    parallel_check_experts(&s.train, decoder_has_experts(s.shape.model) ? s.shape.experts : 0);
    if (format == TEXT && s.held_out) {
        give_up(EXIT_USAGE, "--held-out is for --format tokens; of text a tenth is held out");
    }
    if (format == TOKENS && s.tokenizer) {
        give_up(EXIT_USAGE, "--tokenizer is for --format text; shards hold tokens");
    }
    return &s;
}

static ls_dataset *open_shards(const settings *s, const char *path, int64_t stride,
                               const char *part)
{
    ls_dataset *data = NULL;
    must_be_tokens(path);
    must(LS_STATUS_OF(
        data = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options,
                                                      .context = s->shape.context, .stride = stride,
                                                      .part = part, .vocab = s->shape.vocab))));
    return data;
}

/* The parts of the text, and the vocabulary where none was given. */
static void open_text(settings *s, tokens *t)
{
    ls_tokenizer *tokenizer = NULL;
    must(LS_STATUS_OF(tokenizer = ls_tokenizer_new(s->tokenizer ? s->tokenizer : "bytes")));
    const int64_t known = ls_tokenizer_count(tokenizer);
    s->shape.vocab = s->shape.vocab ? s->shape.vocab : known;
    if (s->shape.vocab < known) {
        give_up(EXIT_USAGE, "--vocab is %lld; the tokenizer has %lld tokens",
                (long long)s->shape.vocab, (long long)known);
    }
    const ls_tokenizer *used = s->tokenizer ? tokenizer : NULL;
    must(text_windows_new(s->data, used, s->shape.context, LS_TEXT_TRAIN, &t->train));
    must(text_windows_new(s->data, used, s->shape.context, LS_TEXT_HELD_OUT, &t->held_out));
    ls_tokenizer_free(tokenizer);
}

static tokens open_tokens(settings *s)
{
    tokens t = {.windows = s->eval_windows, .judged = JUDGE_BATCH};
    if (cli_choice(FORMATS, s->format) == TEXT) {
        open_text(s, &t);
        return t;
    }
    s->shape.vocab = s->shape.vocab ? s->shape.vocab : GPT2_TOKENS;
    t.train = open_shards(s, s->data, 1, s->held_out ? NULL : "train");
    t.held_out =
        s->held_out ? open_shards(s, s->held_out, 0, NULL) : open_shards(s, s->data, 0, "val");
    return t;
}

static ls_module *make_model(const settings *s)
{
    const decoder_shape *m = &s->shape;
    if (strcmp(m->model, "lstm") == 0) {
        return ls_lstm_model_new(LS_OPTIONS(ls_lstm_model_options, .layers = (int)m->layers,
                                            .dim = m->dim, .hidden = m->dim, .vocab = m->vocab,
                                            .dropout = m->dropout));
    }
    ls_module *net = NULL;
    {
        LS_SKIP_INIT(s->train.init != NULL);
        net = decoder_new(m);
    }
    return net;
}

/* GPT-2 has no ring attention. */
static const char *divided_by(const char *model)
{
    return strcmp(model, "gpt") == 0 || decoder_is_llama(model) ? "tp,cp"
           : decoder_has_experts(model)                         ? "tp,cp,ep"
           : strcmp(model, "lstm") == 0                         ? NULL
                                                                : "tp";
}

static int evaluate(void *arg, ls_module *net, const parallel *ranks, score *out)
{
    const tokens *t = arg;
    verdict v;
    must(judge(ranks, net, t->held_out, t->windows, t->judged, &v));
    out[0] = (score){"held-out loss", v.loss, false};
    out[1] = (score){"held-out accuracy", v.right, true};
    return 2;
}

static void introduce(const settings *s, const tokens *data, const trainer *t)
{
    (void)printf("%s: %lld windows of %lld tokens to learn from, %lld held out; vocabulary %lld\n",
                 s->data, (long long)data->train->count, (long long)s->shape.context,
                 (long long)data->held_out->count, (long long)s->shape.vocab);
    if (decoder_is_gpt2(s->shape.model) && s->tokenizer == NULL && s->shape.vocab < GPT2_TOKENS) {
        (void)printf("note: without --tokenizer a token is a byte, so this is GPT-2's shape with a "
                     "vocabulary of %lld, not its own of %d\n",
                     (long long)s->shape.vocab, GPT2_TOKENS);
    }
    if (s->shape.exact && s->tokenizer == NULL && s->shape.vocab > BYTES &&
        cli_choice(FORMATS, s->format) == TEXT) {
        (void)printf("note: the model has %lld tokens, and without --tokenizer a token of the text "
                     "is a byte; give the tokenizer that it was trained with\n",
                     (long long)s->shape.vocab);
    }
    trainer_introduce(t, s->shape.model, "windows");
}

/* The plan may say that blocks are recomputed, and is for these sizes, of which it has those of its
 * model; those of a published GPT-2 follow from its name. */
static void follow_plan(settings *s)
{
    const decoder_shape *m = &s->shape;
    const ls_mixtral_options o = decoder_mixtral_options(m);
    const ls_plan_size sizes[] = {
        {"vocab", m->vocab},  {"context", m->context},  {"layers", m->layers},
        {"dim", m->dim},      {"heads", m->heads},      {"experts", m->experts},
        {"top_k", m->top_k},  {"kv_heads", o.kv_heads}, {"head_dim", o.head_dim},
        {"hidden", o.hidden}, {"tied", m->tied}};
    const bool published = decoder_is_gpt2(m->model) && !m->exact;
    const bool experts = decoder_has_experts(m->model);
    parallel_check_plan(&s->train, m->model, sizes, published ? 2 : sizeof sizes / sizeof *sizes);
    parallel_check_experts(&s->train, experts ? m->experts : 0);
    s->shape.recompute = parallel_recompute(&s->train, strcmp(m->model, "lstm") != 0);
}

int main(int argc, char **argv)
{
    settings *s = read_flags(argc, argv);
    trainer_init(&s->train);
    tokens data = open_tokens(s);
    int64_t memory = 0;
    if (s->train.init != NULL) {
        decoder_untie(s->train.init, &s->shape);
    }
    follow_plan(s);
    if (decoder_is_gpt2(s->shape.model)) {
        memory = memory_check(&s->shape, &s->train);
        data.judged = s->train.batch < JUDGE_BATCH ? s->train.batch : JUDGE_BATCH;
    }
    trainer *t = trainer_new(
        &s->train,
        &(trainer_task){.arg = &data,
                        .net = make_model(s),
                        .divided_by = divided_by(s->shape.model),
                        .experts = decoder_has_experts(s->shape.model) ? s->shape.experts : 0,
                        .data = data.train,
                        .unit = "tokens",
                        .units = s->shape.context,
                        .memory_bytes = memory,
                        .load = decoder_loader_of(s->shape.model),
                        .show = decoder_is_mixtral(s->shape.model) ? ls_mixtral_show : NULL,
                        .config = decoder_config(&s->shape),
                        .tokenizer = s->tokenizer,
                        .evaluate = evaluate});
    if (ls_rank() == 0) {
        introduce(s, &data, t);
    }
    trainer_train(t);
    int status = trainer_end(t, NULL);
    ls_dataset_free(data.train);
    ls_dataset_free(data.held_out);
    LS_CHECK(ls_finalize());
    return cli_end(status);
}
