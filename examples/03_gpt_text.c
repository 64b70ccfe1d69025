/* The main job: a small GPT learns text byte by byte on all ranks.
 *
 *     build/lockstep run -n 4 build/examples/03_gpt_text --data examples/data
 *     build/examples/03_gpt_text --data book.txt --batch 32          # one process, no launcher
 *     … --save run7 --every 100 --resume run7     # goes on where it was, however it ended
 *
 * The last tenth of each file is held out. At the end the loss on it stands beside that of a
 * byte-trigram count model fitted on the same training text: below it, the model has learned more
 * than which byte follows which two. What is the same for all models, the loop and its flags,
 * stands in trainer.c; a signal (Ctrl-C, SIGTERM) ends training after the step under way.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include "text_eval.h"
#include "trainer.h"
#include "trigram.h"
#include <lockstep/models/gpt.h>

#define SAMPLE_MAX 100000

typedef struct settings {
    const char *data, *prompt;
    int64_t context, layers, dim, heads, sample;
    double dropout, init_std, temperature;
    trainer_options train;
} settings;

typedef struct text {
    ls_dataset *train, *held_out;
    int64_t context;
} text;

static settings read_flags(int argc, char **argv)
{
    settings s = {.prompt = "It is a truth",
                  .context = 64,
                  .layers = 2,
                  .dim = 64,
                  .heads = 4,
                  .sample = 400,
                  .temperature = 0.8,
                  .init_std = 0.08,
                  .train = {TRAINER_DEFAULTS.steps = 1800, .batch = 8, .lr = 6e-3, .beta2 = 0.99,
                            .weight_decay = 0.1, .clip = 1.0}};
    const flag flags[] = {
        {"data", FLAG_TEXT, &s.data, 0, 0, "a file, or a folder of files, to learn from"},
        {"context", FLAG_COUNT, &s.context, 1, 1e5, "bytes of a window, which is a sample"},
        {"layers", FLAG_COUNT, &s.layers, 1, 1000, "transformer blocks"},
        {"dim", FLAG_COUNT, &s.dim, 1, 1e5, "width; a multiple of --heads"},
        {"heads", FLAG_COUNT, &s.heads, 1, 1e4, "attention heads"},
        {"dropout", FLAG_NUMBER, &s.dropout, 0, 0.99, "probability"},
        {"init-std", FLAG_NUMBER, &s.init_std, 0, 1e3, "of the first weights; 0: PyTorch's"},
        {"sample", FLAG_COUNT, &s.sample, 0, SAMPLE_MAX, "bytes to write at the end"},
        {"prompt", FLAG_TEXT, &s.prompt, 0, 0, "what the sample starts with"},
        {"temperature", FLAG_NUMBER, &s.temperature, 0.01, 100, "of the sample"},
    };
    trainer_read_flags("Trains a small GPT on text, byte by byte, on all ranks.", flags,
                       (int)(sizeof flags / sizeof flags[0]), &s.train, argc, argv);
    if (!s.data) {
        give_up(EXIT_USAGE, "--data is missing: name a file or a folder of text");
    }
    if (s.dim % s.heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)s.dim,
                (long long)s.heads);
    }
    return s;
}

static text open_text(const settings *s)
{
    text t = {.context = s->context};
    /* stride 1: a window may start at any byte, so an epoch holds every window once. */
    must(ls_text_new(s->data, LS_OPTIONS(ls_text_options, .context = s->context, .stride = 1),
                     &t.train));
    must(ls_text_new(s->data, LS_OPTIONS(ls_text_options, .context = 1, .part = LS_TEXT_HELD_OUT),
                     &t.held_out));
    return t;
}

static ls_module *make_model(const settings *s)
{
    return ls_gpt_new(LS_OPTIONS(ls_gpt_options, .layers = (int)s->layers, .heads = (int)s->heads,
                                 .dim = s->dim, .context = s->context, .dropout = s->dropout,
                                 .init_std = s->init_std));
}

static int evaluate(void *arg, ls_module *net, score *out)
{
    const text *t = arg;
    out[0] = (score){.name = "held-out loss"};
    LS_CHECK(text_loss(net, t->held_out, t->context, ls_world(), &out[0].value));
    return 1;
}

static void introduce(const settings *s, const text *t, ls_module *net)
{
    long long files = ls_text_files(t->train);
    (void)printf("%s: %lld file%s, %lld bytes to learn from, %lld held out\n", s->data, files,
                 files == 1 ? "" : "s", (long long)ls_text_bytes(t->train),
                 (long long)ls_text_bytes(t->held_out));
    (void)printf("GPT: %lld layers, dim %lld, %lld heads, context %lld: %lld parameters; %d rank%s "
                 "x %lld windows x %lld\n",
                 (long long)s->layers, (long long)s->dim, (long long)s->heads,
                 (long long)s->context, (long long)ls_module_numel(net), ls_world_size(),
                 ls_world_size() == 1 ? "" : "s", (long long)s->train.batch,
                 (long long)s->train.accum);
    (void)fflush(stdout);
}

static void print_sample(const settings *s, ls_module *net)
{
    const text_prompt prompt = {s->prompt, s->temperature, (uint64_t)s->train.seed};
    uint8_t *bytes = malloc((size_t)s->sample + 1);
    if (bytes && s->sample > 0) {
        LS_CHECK(text_sample(net, s->context, &prompt, bytes, s->sample));
        (void)printf("sample at temperature %g:\n%s", s->temperature, s->prompt);
        print_escaped(bytes, s->sample);
        (void)printf("\n");
    }
    free(bytes);
}

/* Rank 0 shows what the model writes and says what the other model's loss is. */
static void look_closer(const settings *s, const text *t, ls_module *net, char *note, size_t bytes)
{
    double loss = 0.0;
    LS_CHECK(trigram_loss(t->train, t->held_out, &loss));
    print_sample(s, net);
    (void)snprintf(note, bytes, "(trigram %.3f)", loss);
}

int main(int argc, char **argv)
{
    settings s = read_flags(argc, argv);
    char note[64] = "";
    trainer_init(&s.train);
    text data = open_text(&s);
    trainer *t = trainer_new(&s.train, &(trainer_task){.arg = &data,
                                                       .net = make_model(&s),
                                                       .data = data.train,
                                                       .unit = "tokens",
                                                       .units = s.context,
                                                       .evaluate = evaluate});
    if (ls_rank() == 0) {
        introduce(&s, &data, trainer_net(t));
    }
    trainer_train(t);
    if (ls_rank() == 0) {
        look_closer(&s, &data, trainer_net(t), note, sizeof note);
    }
    int status = trainer_end(t, note);
    ls_dataset_free(data.train);
    ls_dataset_free(data.held_out);
    LS_CHECK(ls_finalize());
    return status;
}
