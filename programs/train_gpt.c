/* Trains a GPT, or an LSTM, on text or tokens, on all ranks.
 *
 *     build/lockstep run -n 4 build/programs/train_gpt --data book.txt --steps 2000
 *     … --layers 6 --dim 384 --heads 6 --context 256 --dropout 0.1 --accum 4
 *     … --save run7 --every 100 --resume run7 --eval-every 100 --log run7.jsonl --tensorboard runs
 *
 *     … --model gpt2 --tokenizer gpt2 --init gpt2        with a folder of Hugging Face's
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

static const char *const models[] = {"gpt",        "lstm",    "gpt2", "gpt2-medium",
                                     "gpt2-large", "gpt2-xl", NULL};
enum { TEXT, TOKENS };
static const char *const formats[] = {"text", "tokens", NULL};

static settings read_flags(int argc, char **argv)
{
    settings s = {.format = "text",
                  .eval_windows = 1000,
                  .shape = {DECODER_DEFAULTS},
                  .train = {TRAINER_DEFAULTS.steps = 2000, .batch = 8, .lr = 1e-3, .beta2 = 0.95,
                            .weight_decay = 0.1, .clip = 1.0}};
    const flag flags[] = {
        {"model", FLAG_TEXT, &s.shape.model, 0, 0,
         "gpt or lstm, of the shape below, or gpt2 … gpt2-xl; config.json beside --init says it"},
        {"data", FLAG_TEXT, &s.data, 0, 0, "a file, or a folder of files, to learn from"},
        {"format", FLAG_TEXT, &s.format, 0, 0, "of --data: text, or tokens of nanoGPT or llm.c"},
        {"tokenizer", FLAG_TEXT, &s.tokenizer, 0, 0,
         "of the text: a folder or file of byte-pair encoding; none: bytes"},
        {"held-out", FLAG_TEXT, &s.held_out, 0, 0, "tokens to judge by; text holds out a tenth"},
        {"vocab", FLAG_COUNT, &s.shape.vocab, 0, 1e8,
         "tokens there are; 0: the tokenizer's, of shards 50257"},
        {"dropout", FLAG_NUMBER, &s.shape.dropout, 0, 0.99, "probability"},
        {"init-std", FLAG_NUMBER, &s.shape.init_std, 0, 1e3, "of the first weights; 0: PyTorch's"},
        {"recompute", FLAG_SWITCH, &s.shape.recompute, 0, 0,
         "blocks keep their input only and run again in backward; not of an lstm"},
        {"eval-windows", FLAG_COUNT, &s.eval_windows, 1, 1e12, "most held-out windows judged"},
        DECODER_FLAGS(s.shape),
    };
    trainer_read_flags("Trains a GPT on text or tokens, on all ranks.", flags,
                       (int)(sizeof flags / sizeof flags[0]), &s.train, argc, argv);
    (void)flag_choice("model", s.shape.model, models);
    int format = flag_choice("format", s.format, formats);
    if (!s.data) {
        give_up(EXIT_USAGE, "--data is missing: name a file or a folder of text or tokens");
    }
    decoder_check(&s.shape);
    if (s.train.init && decoder_read_config(s.train.init, &s.shape) &&
        s.shape.context > s.shape.positions) {
        give_up(EXIT_USAGE, "--context is %lld, the model of --init knows %lld positions",
                (long long)s.shape.context, (long long)s.shape.positions);
    }
    if (s.shape.recompute && strcmp(s.shape.model, "lstm") == 0) {
        give_up(EXIT_USAGE, "--recompute is for the models of blocks; an lstm has none");
    }
    if (format == TEXT && s.held_out) {
        give_up(EXIT_USAGE, "--held-out is for --format tokens; of text a tenth is held out");
    }
    if (format == TOKENS && s.tokenizer) {
        give_up(EXIT_USAGE, "--tokenizer is for --format text; shards hold tokens");
    }
    return s;
}

static ls_dataset *open_shards(const settings *s, const char *path, int64_t stride,
                               const char *part)
{
    ls_dataset *data = NULL;
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
    if (strcmp(s->format, formats[TEXT]) == 0) {
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

static int evaluate(void *arg, ls_module *net, score *out)
{
    const tokens *t = arg;
    verdict v;
    must(judge(net, t->held_out, t->windows, t->judged, &v));
    out[0] = (score){"held-out loss", v.loss, false};
    out[1] = (score){"held-out accuracy", v.right, true};
    return 2;
}

static void introduce(const settings *s, const tokens *t, ls_module *net)
{
    (void)printf("%s: %lld windows of %lld tokens to learn from, %lld held out; vocabulary %lld\n",
                 s->data, (long long)t->train->count, (long long)s->shape.context,
                 (long long)t->held_out->count, (long long)s->shape.vocab);
    trainer_introduce(&s->train, s->shape.model, net, "windows");
}

int main(int argc, char **argv)
{
    settings s = read_flags(argc, argv);
    trainer_init(&s.train);
    tokens data = open_tokens(&s);
    if (decoder_is_gpt2(s.shape.model)) {
        memory_check(&s.shape, &s.train);
        data.judged = s.train.batch < JUDGE_BATCH ? s.train.batch : JUDGE_BATCH;
    }
    trainer *t = trainer_new(
        &s.train, &(trainer_task){.arg = &data,
                                  .net = make_model(&s),
                                  .data = data.train,
                                  .unit = "tokens",
                                  .units = s.shape.context,
                                  .load = decoder_is_gpt2(s.shape.model) ? ls_gpt2_load : NULL,
                                  .evaluate = evaluate});
    if (ls_rank() == 0) {
        introduce(&s, &data, trainer_net(t));
    }
    trainer_train(t);
    int status = trainer_end(t, NULL);
    ls_dataset_free(data.train);
    ls_dataset_free(data.held_out);
    LS_CHECK(ls_finalize());
    return status;
}
