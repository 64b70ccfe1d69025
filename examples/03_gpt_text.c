/* SPDX-License-Identifier: Apache-2.0 */
/* A small GPT learns text byte by byte on all ranks. The whole program is in this file; the
 * training loop is train().
 *
 *     lockstep run -n 4 ./03_gpt_text --data book.txt          four workers
 *     ./03_gpt_text --data book.txt --batch 32                 one process, the same steps
 *     … --log gpt.jsonl; lockstep report gpt.jsonl             a page with its loss and speed
 *
 * A tenth of each file is held out. In the end the loss on it stands beside that of a trigram model
 * fitted to the same training text: below it, the model has learned more than which byte follows
 * which two. Then the model writes. Ctrl-C ends training after the step under way.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#define BYTES 256
#define REPORTS 36 /* lines of a whole run */

typedef struct settings {
    const char *data, *prompt, *log;
    int64_t steps, batch, context, layers, dim, heads, seed, sample_bytes;
    double lr, temperature;
} settings;

/* ---- the training loop -------------------------------------------------------------------- */

/* Means of all ranks since the last line, printed and, with --log, written. */
static void report(int64_t step, const settings *s, double loss, int64_t steps, double seconds,
                   ls_event_log *log)
{
    const double tokens = (double)(steps * s->batch * s->context * ls_world_size());
    LS_CHECK(ls_all_reduce(ls_world(), &loss, &loss, 1, LS_FLOAT64, LS_AVG, NULL, NULL));
    if (log != NULL) {
        const ls_event_value values[] = {{"loss", .number = loss / (double)steps},
                                         {"seconds", .number = seconds / (double)steps},
                                         {"tokens_per_second", .number = tokens / seconds}};
        LS_CHECK(ls_event_log_add_all(log, step, "train", values, 3));
    }
    if (ls_rank() == 0) {
        printf("step %5lld/%lld  loss %.3f  %6.0f tokens/s\n", (long long)step, (long long)s->steps,
               loss / (double)steps, tokens / seconds);
        fflush(stdout);
    }
}

static void train(const settings *s, ls_module *net, ls_optim *optim, ls_loader *loader)
{
    const ls_schedule_options *schedule =
        LS_OPTIONS(ls_schedule_options, .kind = LS_SCHEDULE_COSINE, .lr = s->lr,
                   .min_lr = s->lr / 10, .warmup = s->steps / 12, .total = s->steps);
    const int64_t every = s->steps / REPORTS > 0 ? s->steps / REPORTS : 1;
    double sum = 0.0, since = ls_time();
    ls_event_log *log = NULL;
    if (s->log != NULL) {
        LS_CHECK(log = ls_event_log_new(s->log, NULL)); /* of other ranks: writes nothing */
    }
    for (int64_t step = 0; step < s->steps && !ls_stop_requested(); step++) {
        ls_batch batch = {
            .size =
                sizeof batch}; /* x [B,T] and y [B,T]: windows of the text, and the same one byte
                                  later */
        while (!ls_loader_next(loader, &batch)) {
            LS_CHECK(ls_loader_status(loader)); /* else an epoch has ended, and the next begins */
        }
        LS_SCOPE; /* frees the tensors made below at the end of the step */
        ls_tensor *logits = ls_forward(net, batch.x); /* [B,T,256] */
        ls_tensor *loss = ls_cross_entropy(logits, batch.y, NULL);
        LS_CHECK(ls_backward(loss)); /* gradients are averaged over the ranks while it runs */
        LS_CHECK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
        ls_optim_set_lr(optim, ls_schedule_lr(step, schedule));
        LS_CHECK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);

        double value = 0.0;
        LS_CHECK(ls_item(loss, &value));
        sum += value;
        if ((step + 1) % every == 0) {
            report(step + 1, s, sum, every, ls_time() - since, log);
            sum = 0.0;
            since = ls_time();
        }
    }
    LS_CHECK(ls_event_log_free(log));
}

/* ---- judging ------------------------------------------------------------------------------ */

/* Mean loss of a byte of the text, in nats, each rank judging its share of the windows. They
 * overlap by half and only their second half counts, so that every judged byte has enough text
 * before it. */
static double held_out_loss(ls_module *net, ls_dataset *text, int64_t context)
{
    double sums[2] = {0.0, 0.0}; /* nats, windows */
    int32_t *x = malloc((size_t)context * sizeof *x), *y = malloc((size_t)context * sizeof *y);
    ls_module_train(net, false);
    for (int64_t i = ls_rank(); x != NULL && y != NULL && i < text->count; i += ls_world_size()) {
        LS_NO_GRAD;
        LS_SCOPE;
        double nats = 0.0;
        LS_CHECK(text->get(text, i, x, y));
        ls_tensor *logits = ls_forward(net, ls_from_memory(x, LS_SHAPE(1, context), LS_INT32));
        ls_tensor *target = ls_from_memory(y, LS_SHAPE(1, context), LS_INT32);
        const int64_t from = context / 2;
        ls_tensor *loss = ls_cross_entropy(ls_contiguous(ls_slice(logits, 1, from, context)),
                                           ls_contiguous(ls_slice(target, 1, from, context)), NULL);
        LS_CHECK(ls_item(loss, &nats));
        sums[0] += nats;
        sums[1] += 1.0;
    }
    ls_module_train(net, true);
    free(x);
    free(y);
    LS_CHECK(ls_all_reduce(ls_world(), sums, sums, 2, LS_FLOAT64, LS_SUM, NULL, NULL));
    return sums[0] / sums[1];
}

/* Counts of bytes after no, one and two bytes before them: rows 0, 1 + a, and 257 + 256 a + b. */
#define CONTEXTS (1 + BYTES + BYTES * BYTES)
static uint32_t follow[CONTEXTS][BYTES], total[CONTEXTS], kinds[CONTEXTS];

static size_t context_at(const uint8_t *text, int64_t i, int order)
{
    return order == 0   ? 0
           : order == 1 ? 1 + (size_t)text[i - 1]
                        : 1 + BYTES + BYTES * (size_t)text[i - 1] + text[i - 2];
}

static void count(const uint8_t *text, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        for (int order = 0; order <= 2 && order <= i; order++) {
            const size_t context = context_at(text, i, order);
            kinds[context] += follow[context][text[i]]++ == 0;
            total[context]++;
        }
    }
}

/* p_k = (count + kinds p_(k-1)) / (total + kinds), from p = 1/256 on (Witten & Bell 1991). */
static double probability(const uint8_t *text, int64_t i)
{
    double p = 1.0 / BYTES;
    for (int order = 0; order <= 2 && order <= i; order++) {
        const size_t context = context_at(text, i, order);
        if (total[context] > 0) {
            p = (follow[context][text[i]] + kinds[context] * p) / (total[context] + kinds[context]);
        }
    }
    return p;
}

/* What a trigram model of the training text would lose on the held-out text; no network. */
static double trigram_loss(const ls_dataset *text, const ls_dataset *held_out)
{
    double sum = 0.0;
    int64_t bytes, judged = 0;
    for (int f = 0; f < ls_text_files(text); f++) {
        const uint8_t *at = ls_text_file(text, f, &bytes);
        count(at, bytes);
    }
    for (int f = 0; f < ls_text_files(held_out); f++) {
        const uint8_t *at = ls_text_file(held_out, f, &bytes);
        for (int64_t i = 1; i < bytes; i++, judged++) {
            sum -= log(probability(at, i));
        }
    }
    return sum / (double)judged;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* A byte, drawn from softmax(logits / temperature); `uniform` is in [0,1). */
static uint8_t draw(const float *logits, double temperature, double uniform)
{
    double weight[BYTES], sum = 0.0, most = logits[0];
    for (int b = 1; b < BYTES; b++) {
        most = fmax(most, logits[b]);
    }
    for (int b = 0; b < BYTES; b++) {
        sum += weight[b] = exp((logits[b] - most) / temperature);
    }
    int b = 0;
    for (double below = weight[0]; b < BYTES - 1 && below <= uniform * sum; below += weight[b]) {
        b++;
    }
    return (uint8_t)b;
}

/* The byte after text[0..length), of which the model sees the last `context`. */
static uint8_t next_byte(const settings *s, ls_module *net, const uint8_t *text, int64_t length)
{
    LS_NO_GRAD;
    LS_SCOPE;
    const int64_t seen = length < s->context ? length : s->context;
    ls_tensor *x = ls_empty(LS_SHAPE(1, seen), LS_INT32);
    int32_t *tokens = ls_data(x);
    for (int64_t i = 0; i < seen; i++) {
        tokens[i] = text[length - seen + i];
    }
    ls_tensor *logits =
        ls_contiguous(ls_slice(ls_forward(net, x), 1, seen - 1, seen)); /* [1,1,256] */
    LS_CHECK(ls_tensor_status(logits));
    return draw(ls_data(logits), s->temperature,
                ls_random_uniform((uint64_t)s->seed, 0, (uint64_t)length));
}

static void write_sample(const settings *s, ls_module *net)
{
    const int64_t given = (int64_t)strlen(s->prompt);
    uint8_t *text = malloc((size_t)(given + s->sample_bytes) + 1);
    if (text == NULL || s->sample_bytes == 0) {
        free(text);
        return;
    }
    memcpy(text, s->prompt, (size_t)given);
    ls_module_train(net, false);
    for (int64_t i = given; i < given + s->sample_bytes; i++) {
        text[i] = next_byte(s, net, text, i);
    }
    printf("sample at temperature %g:\n", s->temperature);
    for (int64_t i = 0; i < given + s->sample_bytes; i++) {
        const bool plain = text[i] == '\n' || (text[i] >= ' ' && text[i] <= '~');
        printf(plain ? "%c" : "\\x%02x", text[i]);
    }
    printf("\n");
    free(text);
}

/* ---- the program -------------------------------------------------------------------------- */

typedef struct flag {
    const char *name, *help;
    const char **text; /* where its value goes: one of these three */
    int64_t *count;
    double *number;
} flag;

static void refuse(const char *format, const char *name, const char *value)
{
    fputs("error: ", stderr);
    fprintf(stderr, format, name, value);
    fputs("\n", stderr);
    exit(2);
}

static void set(const flag *f, const char *value)
{
    char *end = NULL;
    if (f->text != NULL) {
        *f->text = value;
        return;
    }
    const double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= 0.0) || number > 1e15) {
        refuse("%s is \"%s\"; it takes a number, 0 or more", f->name, value);
    }
    if (f->count != NULL) {
        *f->count = (int64_t)number;
    } else {
        *f->number = number;
    }
}

static void print_help(const flag *flags)
{
    printf("Trains a small GPT on text, byte by byte, on all ranks.\n\n");
    for (const flag *f = flags; f->name != NULL; f++) {
        printf("  %-16s %s\n", f->name, f->help);
    }
    exit(0);
}

static void parse(const flag *flags, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const flag *f = flags;
        if (strcmp(argv[i], "--help") == 0) {
            print_help(flags);
        }
        while (f->name != NULL && strcmp(f->name, argv[i]) != 0) {
            f++;
        }
        if (f->name == NULL || i + 1 == argc) {
            refuse(f->name == NULL ? "unknown flag %s; --help lists them" : "%s needs a value",
                   argv[i], "");
        }
        set(f, argv[i + 1]);
    }
}

static settings read_flags(int argc, char **argv)
{
    settings s = {.prompt = "It is a truth",
                  .steps = 1600,
                  .batch = 8,
                  .context = 64,
                  .layers = 2,
                  .dim = 96,
                  .heads = 4,
                  .sample_bytes = 400,
                  .lr = 6e-3,
                  .temperature = 0.8};
    const flag flags[] = {
        {"--data", "a file or a folder of text", .text = &s.data},
        {"--steps", "optimizer steps; default 1600", .count = &s.steps},
        {"--batch", "windows that a rank takes in a step; default 8", .count = &s.batch},
        {"--lr", "highest learning rate; default 0.006", .number = &s.lr},
        {"--context", "bytes of a window; default 64", .count = &s.context},
        {"--layers", "transformer blocks; default 2", .count = &s.layers},
        {"--dim", "width, a multiple of --heads; default 96", .count = &s.dim},
        {"--heads", "attention heads; default 4", .count = &s.heads},
        {"--seed", "of weights, order and sample; default 0", .count = &s.seed},
        {"--prompt", "start of the sample; default \"It is a truth\"", .text = &s.prompt},
        {"--temperature", "of the sample; below 1 likely bytes become likelier; default 0.8",
         .number = &s.temperature},
        {"--log", "writes loss and speed to a file, for lockstep report", .text = &s.log},
        {"--sample-bytes", "length of the sample; default 400", .count = &s.sample_bytes},
        {0}};
    parse(flags, argc, argv);
    if (s.data == NULL) {
        refuse("--data is missing: name a file or a folder of text%s%s", "", "");
    }
    if (s.steps < 1 || s.context < 2 || s.heads < 1 || s.dim % s.heads != 0) {
        refuse("--steps is at least 1, --context at least 2, --dim a multiple of --heads%s%s", "",
               "");
    }
    s.prompt = s.prompt[0] != '\0' ? s.prompt : "\n";
    s.temperature = s.temperature > 0.01 ? s.temperature : 0.01; /* 0: the likeliest byte */
    return s;
}

int main(int argc, char **argv)
{
    const settings s = read_flags(argc, argv);
    LS_CHECK(ls_init(LS_OPTIONS(ls_init_options, .seed = (uint64_t)s.seed, .graceful_stop = true)));

    /* stride 1: a window may start at any byte. */
    ls_dataset *text = NULL, *held_out = NULL;
    LS_CHECK(text = ls_text_dataset_new(
                 s.data, LS_OPTIONS(ls_text_options, .context = s.context, .stride = 1)));
    LS_CHECK(held_out = ls_text_dataset_new(
                 s.data, LS_OPTIONS(ls_text_options, .context = s.context,
                                    .stride = (s.context + 1) / 2, .part = LS_TEXT_HELD_OUT)));
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    LS_CHECK(sampler = ls_sampler_new(text->count,
                                      LS_OPTIONS(ls_sampler_options, .batch = s.batch,
                                                 .drop_last = true, .seed = (uint64_t)s.seed)));
    LS_CHECK(loader = ls_loader_new(text, sampler, NULL));

    ls_module *gpt =
        ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = (int)s.layers, .heads = (int)s.heads,
                              .dim = s.dim, .context = s.context, .init_std = 0.08));
    LS_CHECK(ls_module_status(gpt));
    ls_module *net = ls_ddp_new(gpt, ls_world(), NULL); /* the one line that makes it parallel */
    LS_CHECK(ls_module_status(net));
    ls_optim *optim = ls_adamw_new(
        net, LS_OPTIONS(ls_adamw_options, .lr = s.lr, .beta2 = 0.99, .weight_decay = 0.1));
    LS_CHECK(ls_optim_add_group(optim, ls_select_vectors, NULL, /* biases and norms do not decay */
                                LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));

    if (ls_rank() == 0) {
        printf("%s: %lld bytes to learn from, %lld held out\n", s.data,
               (long long)ls_text_bytes(text), (long long)ls_text_bytes(held_out));
        printf("GPT: %lld parameters; %d rank%s x %lld windows of %lld bytes\n",
               (long long)ls_module_numel(gpt), ls_world_size(), ls_world_size() == 1 ? "" : "s",
               (long long)s.batch, (long long)s.context);
        fflush(stdout);
    }
    train(&s, net, optim, loader);

    int identical = 0;
    uint64_t hash = 0;
    const double loss = held_out_loss(gpt, held_out, s.context);
    LS_CHECK(ls_replicas_identical(net, ls_world(), &identical, &hash));
    if (ls_rank() == 0) {
        printf("held-out loss %.3f (trigram %.3f)\n", loss, trigram_loss(text, held_out));
        printf("replicas identical: %d of %d (hash %016llx)\n", identical, ls_world_size(),
               (unsigned long long)hash);
        write_sample(&s, gpt);
    }
    const int failed = identical != ls_world_size();
    ls_optim_free(optim);
    ls_module_free(net);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(text);
    ls_dataset_free(held_out);
    LS_CHECK(ls_finalize());
    return failed;
}
