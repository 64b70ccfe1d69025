/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a BERT to say which tokens were masked, on all ranks.
 *
 *     lockstep train bert -n 4 --data book.txt --steps 2000
 *     … --tokenizer gpt2 --layers 6 --dim 384 --heads 6 --context 128
 *     … --model bert-base --init bert-base-uncased --format tokens --data shards
 *
 * Text is read byte by byte or through --tokenizer, and the last tenth of each file is held out;
 * with --format tokens --data is a shard or a folder of them, as for train_gpt. A window is [CLS],
 * tokens, [SEP]; 15 % of the tokens are asked for (masked_tokens.h).
 *
 * [MASK], [CLS] and [SEP] are the tokenizer's, or BERT's own where the vocabulary is BERT's
 * (30522), or new tokens after the vocabulary; --mask-token, --cls-token and --sep-token name
 * others.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <lockstep/lockstep.h>
#include <lockstep/tokenizer.h>

#include "common.h"
#include "judge.h"
#include "masked_tokens.h"
#include "token_text.h"
#include "trainer.h"
#include <lockstep/models/bert.h>

#define JUDGE_BATCH 4 /* logits are [4,T,V] */
#define BERT_TOKENS 30522
#define BERT_POSITIONS 512

typedef struct settings {
    const char *model, *data, *format, *tokenizer, *held_out;
    const char *mask_token, *cls_token, *sep_token;
    int64_t vocab, context, layers, dim, heads, wide, eval_windows;
    double dropout, share;
    bool recompute;
    trainer_options train;
} settings;

typedef struct corpus {
    ls_dataset *train;
    ls_dataset *held_out;
    masking masking; /* its vocab is the data's */
    int64_t vocab;   /* the model's: special tokens may lie after the data's */
    int64_t windows; /* of what is held out, to judge by */
} corpus;

#define FORMATS "text|tokens"

/* ---- flags -------------------------------------------------------------------------------- */

static void check(const settings *s)
{
    if (!s->data) {
        give_up(EXIT_USAGE, "--data is missing: name a file or a folder of text or tokens");
    }
    if (s->dim % s->heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)s->dim,
                (long long)s->heads);
    }
    if (s->held_out && strcmp(s->format, "text") == 0) {
        give_up(EXIT_USAGE, "--held-out is for --format tokens; of text a tenth is held out");
    }
}

/* In static memory: run_file.h points to the values. */
static settings *read_flags(int argc, char **argv)
{
    static settings s = {.model = "bert",
                         .format = "text",
                         .context = 128,
                         .layers = 4,
                         .dim = 128,
                         .heads = 4,
                         .share = 0.15,
                         .eval_windows = 500,
                         .train = {TRAINER_DEFAULTS.steps = 2000, .batch = 16, .lr = 1e-3,
                                   .weight_decay = 0.01, .clip = 1.0}};
    const cli_option options[] = {
        {"model", CLI_CHOICE, &s.model, .choices = "bert|bert-base",
         .help = "bert, of the shape below, or bert-base, the published size"},
        {"data", CLI_TEXT, &s.data, .help = "file or folder to learn from", .value_name = "PATH"},
        {"format", CLI_CHOICE, &s.format, .choices = FORMATS,
         .help = "format of --data: text, or token shards (nanoGPT, llm.c)"},
        {"tokenizer", CLI_TEXT, &s.tokenizer, .value_name = "PATH", .fallback = "bytes",
         .help = "folder or file of a byte-pair encoding for the text"},
        {"held-out", CLI_TEXT, &s.held_out, .value_name = "PATH",
         .help = "token shards to evaluate on; of text a tenth is held out"},
        {"vocab", CLI_COUNT, &s.vocab, .low = 0, .high = 1e8,
         .help = "vocabulary of the data; 0: the tokenizer's, 30522 for shards"},
        {"context", CLI_COUNT, &s.context, .low = 3, .high = 1e5,
         .help = "tokens of a window, [CLS] and [SEP] included"},
        {"layers", CLI_COUNT, &s.layers, .low = 1, .high = 1000, .help = "transformer layers"},
        {"dim", CLI_COUNT, &s.dim, .low = 1, .high = 1e5, .help = "width; a multiple of --heads"},
        {"heads", CLI_COUNT, &s.heads, .low = 1, .high = 1e4, .help = "attention heads"},
        {"wide", CLI_COUNT, &s.wide, .low = 0, .high = 1e6,
         .help = "width of the feed-forward layers; 0: 4 x --dim"},
        {"dropout", CLI_NUMBER, &s.dropout, .low = 0, .high = 0.99, .help = "dropout probability"},
        {"mask-share", CLI_NUMBER, &s.share, .low = 0, .high = 1,
         .help = "share of the tokens that are masked"},
        {"mask-token", CLI_TEXT, &s.mask_token, .value_name = "TOKEN",
         .help = "text or number of the mask token; without it, the tokenizer's [MASK]"},
        {"cls-token", CLI_TEXT, &s.cls_token, .value_name = "TOKEN",
         .help = "first token of a window, as --mask-token; -1: none"},
        {"sep-token", CLI_TEXT, &s.sep_token, .value_name = "TOKEN",
         .help = "last token of a window, as --cls-token"},
        {"eval-windows", CLI_COUNT, &s.eval_windows, .low = 1, .high = 1e12,
         .help = "evaluate on at most N held-out windows"},
    };
    const cli_command command = {.name = "lockstep train bert",
                                 .about = "Trains a BERT as a masked language model, on all ranks.",
                                 .options = options,
                                 .count = (int)(sizeof options / sizeof options[0])};
    trainer_read_options(&command, &s.train, argc, argv);
    check(&s);
    s.recompute = parallel_recompute(&s.train, true);
    return &s;
}

/* ---- special tokens ----------------------------------------------------------------------- */

/* "-1", "103" or a token's text. */
static int64_t named_token(const char *name, const char *text, const ls_tokenizer *tokenizer)
{
    char *end = NULL;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end != text && !*end && !errno) {
        return number;
    }
    int64_t id = tokenizer != NULL ? ls_tokenizer_id(tokenizer, text) : -1;
    if (id < 0) {
        give_up(EXIT_USAGE, "--%s is \"%s\", which is not a token%s", name, text,
                tokenizer ? " of the tokenizer" : "; without a tokenizer give its number");
    }
    return id;
}

/* `usual` has two names it may have, `bert` is its number in BERT's own vocabulary. */
static int64_t find_token(const ls_tokenizer *tokenizer, const char *const usual[2], int64_t bert,
                          corpus *c)
{
    for (int i = 0; tokenizer != NULL && i < 2; i++) {
        int64_t id = ls_tokenizer_id(tokenizer, usual[i]);
        if (id >= 0) {
            return id;
        }
    }
    return c->masking.vocab == BERT_TOKENS ? bert : c->vocab++;
}

static void find_specials(const settings *s, const ls_tokenizer *tokenizer, corpus *c)
{
    static const char *const masks[] = {"[MASK]", "<mask>"}, *const firsts[] = {"[CLS]", "<s>"},
                             *const lasts[] = {"[SEP]", "</s>"};
    masking *m = &c->masking;
    c->vocab = m->vocab;
    m->mask = s->mask_token ? named_token("mask-token", s->mask_token, tokenizer)
                            : find_token(tokenizer, masks, 103, c);
    m->first = s->cls_token ? named_token("cls-token", s->cls_token, tokenizer)
                            : find_token(tokenizer, firsts, 101, c);
    m->last = s->sep_token ? named_token("sep-token", s->sep_token, tokenizer)
                           : find_token(tokenizer, lasts, 102, c);
    if (m->mask < 0 || m->mask > INT32_MAX || m->first > INT32_MAX || m->last > INT32_MAX) {
        give_up(EXIT_USAGE, "--mask-token is %lld; a token is in 0 to %d", (long long)m->mask,
                INT32_MAX);
    }
    const int64_t all[] = {m->mask, m->first, m->last};
    for (int i = 0; i < 3; i++) {
        c->vocab = all[i] < c->vocab ? c->vocab : all[i] + 1;
    }
}

/* ---- data --------------------------------------------------------------------------------- */

static ls_dataset *open_shards(const settings *s, const corpus *c, int64_t context, bool judged)
{
    ls_dataset *data = NULL;
    const char *path = judged && s->held_out ? s->held_out : s->data;
    const char *part = s->held_out ? NULL : judged ? "val" : "train";
    must_be_tokens(path);
    must(LS_STATUS_OF(
        data = ls_tokens_dataset_new(path, LS_OPTIONS(ls_tokens_options, .context = context,
                                                      .part = part, .stride = judged ? context : 1,
                                                      .vocab = c->masking.vocab))));
    return data;
}

static ls_dataset *open_part(const settings *s, const corpus *c, const ls_tokenizer *tokenizer,
                             bool judged)
{
    const int64_t context = s->context - (c->masking.first >= 0) - (c->masking.last >= 0);
    ls_dataset *windows = NULL, *masked = NULL;
    if (strcmp(s->format, "tokens") == 0) {
        windows = open_shards(s, c, context, judged);
    } else {
        must(text_windows_new(s->data, s->tokenizer ? tokenizer : NULL, context,
                              judged ? LS_TEXT_HELD_OUT : LS_TEXT_TRAIN, &windows));
    }
    must(masked_tokens_new(windows, &c->masking, &masked));
    return masked;
}

static corpus open_corpus(const settings *s)
{
    const bool text = strcmp(s->format, "text") == 0;
    corpus c = {.windows = s->eval_windows,
                .masking = {.share = s->share, .seed = (uint64_t)s->train.seed}};
    ls_tokenizer *tokenizer = NULL;
    if (text || s->tokenizer) {
        must(LS_STATUS_OF(tokenizer = ls_tokenizer_new(s->tokenizer ? s->tokenizer : "bytes")));
    }
    const int64_t known = tokenizer != NULL ? ls_tokenizer_count(tokenizer) : BERT_TOKENS;
    c.masking.vocab = s->vocab ? s->vocab : known;
    if (text && c.masking.vocab < known) {
        give_up(EXIT_USAGE, "--vocab is %lld; the tokenizer has %lld tokens",
                (long long)c.masking.vocab, (long long)known);
    }
    find_specials(s, tokenizer, &c);
    c.train = open_part(s, &c, tokenizer, false);
    c.held_out = open_part(s, &c, tokenizer, true);
    ls_tokenizer_free(tokenizer);
    return c;
}

/* ---- the task ----------------------------------------------------------------------------- */

static ls_module *make_model(const settings *s, const corpus *c)
{
    if (strcmp(s->model, "bert-base") == 0) {
        return ls_bert_new(LS_OPTIONS(
            ls_bert_options, .vocab = c->vocab, .dropout = s->dropout, .recompute = s->recompute,
            .context = s->context > BERT_POSITIONS ? s->context : BERT_POSITIONS));
    }
    return ls_bert_new(LS_OPTIONS(ls_bert_options, .layers = (int)s->layers, .heads = (int)s->heads,
                                  .dim = s->dim, .wide = s->wide ? s->wide : 4 * s->dim,
                                  .context = s->context, .vocab = c->vocab, .dropout = s->dropout,
                                  .recompute = s->recompute));
}

/* The config.json of a BertForMaskedLM. */
static char *config_of(const settings *s, const corpus *c)
{
    const bool base = strcmp(s->model, "bert-base") == 0;
    const ls_bert_options o = *LS_OPTIONS(ls_bert_options, .context = s->context);
    const int64_t positions = base && s->context < BERT_POSITIONS ? BERT_POSITIONS : s->context;
    const int64_t wide = s->wide ? s->wide : 4 * s->dim;
    json_t *config = json_pack(
        "{s:s, s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:s}",
        "model_type", "bert", "architectures", "BertForMaskedLM", "hidden_act", "gelu",
        "num_hidden_layers", (json_int_t)(base ? o.layers : s->layers), "num_attention_heads",
        (json_int_t)(base ? o.heads : s->heads), "hidden_size", (json_int_t)(base ? o.dim : s->dim),
        "intermediate_size", (json_int_t)(base ? o.wide : wide), "max_position_embeddings",
        (json_int_t)positions, "vocab_size", (json_int_t)c->vocab, "type_vocab_size",
        (json_int_t)o.types, "layer_norm_eps", o.eps, "hidden_dropout_prob", s->dropout,
        "attention_probs_dropout_prob", s->dropout, "pad_token_id", (json_int_t)0, "dtype",
        "float32");
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(config);
    return text;
}

static ls_tensor *loss_of(void *arg, ls_tensor *logits, ls_tensor *answers)
{
    (void)arg;
    return ls_bert_loss(logits, answers);
}

static int evaluate(void *arg, ls_module *net, const parallel *ranks, score *out)
{
    const corpus *c = arg;
    verdict v;
    LS_CHECK(judge(ranks, net, c->held_out, c->windows, JUDGE_BATCH, &v));
    out[0] = (score){"held-out loss", v.loss, false};
    out[1] = (score){"held-out accuracy", v.right, true};
    return 2;
}

static void introduce(const settings *s, const corpus *c, const trainer *t)
{
    const masking *m = &c->masking;
    const int64_t tokens = s->context - (m->first >= 0) - (m->last >= 0);
    (void)printf("%s: %lld windows of %lld tokens to learn from, %lld held out; %lld of %lld are "
                 "asked for\n",
                 s->data, (long long)c->train->count, (long long)s->context,
                 (long long)c->held_out->count, (long long)masked_tokens_asked(m, tokens),
                 (long long)tokens);
    (void)printf("vocabulary %lld: [MASK] %lld, [CLS] %lld, [SEP] %lld\n", (long long)c->vocab,
                 (long long)m->mask, (long long)m->first, (long long)m->last);
    trainer_introduce(t, s->model, "windows");
}

int main(int argc, char **argv)
{
    settings *s = read_flags(argc, argv);
    trainer_init(&s->train);
    parallel_check_plan(&s->train, s->model, NULL, 0);
    corpus data = open_corpus(s);
    ls_module *net = NULL;
    {
        LS_SKIP_INIT(s->train.init != NULL);
        net = make_model(s, &data);
    }
    trainer *t = trainer_new(&s->train, &(trainer_task){.arg = &data,
                                                        .net = net,
                                                        .divided_by = "tp",
                                                        .data = data.train,
                                                        .unit = "tokens",
                                                        .units = s->context,
                                                        .load = ls_bert_load,
                                                        .config = config_of(s, &data),
                                                        .tokenizer = s->tokenizer,
                                                        .loss = loss_of,
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
