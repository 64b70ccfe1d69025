/* The main job: a small GPT learns text byte by byte on all ranks.
 *
 *     build/lockstep run -n 4 build/examples/03_gpt_text --data /usr/share/common-licenses
 *     build/examples/03_gpt_text --data book.txt --batch 32          # one process, no launcher
 *     … --save run7 --every 100 --resume run7     # goes on where it was, however it ended
 *
 * The last tenth of each file is held out. At the end the loss on it stands beside that of a
 * byte-trigram count model fitted on the same training text: below it, the model has learned more
 * than which byte follows which two. A signal (Ctrl-C, SIGTERM) ends training after the step under
 * way, with a checkpoint, the same summary and status 0; a second one ends the program.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "common.h"
#include "gpt.h"
#include "loss_log.h"
#include "text_eval.h"
#include "trigram.h"

#define SHOW_SECONDS 0.25 /* between two updates of the live line */
#define SAMPLE_MAX 100000

typedef struct settings {
    const char *data, *log_losses, *save, *resume;
    int64_t every;
    int64_t steps, batch, context, layers, dim, heads, accum, warmup, seed, bucket_bytes, sample,
        eval_every;
    double lr, min_lr, beta2, weight_decay, clip, dropout, init_std;
} settings;

typedef struct job {
    settings set;
    ls_dataset *train, *held_out;
    ls_sampler *sampler;
    ls_loader *loader;
    ls_module *net;
    ls_optim *optim;
    ls_checkpoint *checkpoint; /* with --save */
    ls_checkpoint_item items[4];
    int64_t start; /* steps done when this run began; 0 without --resume */
    FILE *losses;  /* rank 0 with --log-losses */
} job;

static settings read_flags(int argc, char **argv)
{
    settings s = {.steps = 1800,
                  .batch = 8,
                  .context = 64,
                  .layers = 2,
                  .dim = 64,
                  .heads = 4,
                  .accum = 1,
                  .warmup = -1,
                  .every = 200,
                  .seed = 0,
                  .bucket_bytes = 25 << 20,
                  .sample = 300,
                  .lr = 6e-3,
                  .min_lr = -1.0,
                  .beta2 = 0.99,
                  .weight_decay = 0.1,
                  .clip = 1.0,
                  .init_std = 0.08};
    const flag flags[] = {
        {"data", FLAG_TEXT, &s.data, 0, 0, "a file, or a folder of files, to learn from"},
        {"steps", FLAG_COUNT, &s.steps, 1, 1e12, "optimizer steps"},
        {"batch", FLAG_COUNT, &s.batch, 1, 1e6, "windows a rank takes per step"},
        {"context", FLAG_COUNT, &s.context, 1, 1e5, "bytes of a window"},
        {"layers", FLAG_COUNT, &s.layers, 1, 1000, "transformer blocks"},
        {"dim", FLAG_COUNT, &s.dim, 1, 1e5, "width; a multiple of --heads"},
        {"heads", FLAG_COUNT, &s.heads, 1, 1e4, "attention heads"},
        {"lr", FLAG_NUMBER, &s.lr, 0, 1e3, "highest learning rate"},
        {"min-lr", FLAG_NUMBER, &s.min_lr, -1, 1e3, "last learning rate; -1: a tenth of --lr"},
        {"warmup", FLAG_COUNT, &s.warmup, -1, 1e12, "steps of warm-up; -1: 8 % of --steps"},
        {"seed", FLAG_COUNT, &s.seed, 0, 9e15, "of weights, order, dropout and sample"},
        {"accum", FLAG_COUNT, &s.accum, 1, 1e6, "micro-batches of a step"},
        {"bucket-bytes", FLAG_COUNT, &s.bucket_bytes, 0, 1e12, "of a gradient bucket"},
        {"beta2", FLAG_NUMBER, &s.beta2, 0, 0.999999999, "AdamW's second-moment decay"},
        {"weight-decay", FLAG_NUMBER, &s.weight_decay, 0, 1e3, "AdamW's weight decay"},
        {"clip", FLAG_NUMBER, &s.clip, 0, 1e9, "largest gradient norm; 0: none"},
        {"dropout", FLAG_NUMBER, &s.dropout, 0, 0.99, "probability"},
        {"init-std", FLAG_NUMBER, &s.init_std, 0, 1e3, "of the first weights; 0: PyTorch's"},
        {"sample", FLAG_COUNT, &s.sample, 0, SAMPLE_MAX, "bytes to write at the end"},
        {"eval-every", FLAG_COUNT, &s.eval_every, 0, 1e12, "steps between evaluations; 0: none"},
        {"save", FLAG_TEXT, &s.save, 0, 0, "folder for checkpoints; the two newest are kept"},
        {"every", FLAG_COUNT, &s.every, 1, 1e12, "steps between checkpoints"},
        {"resume", FLAG_TEXT, &s.resume, 0, 0,
         "folder whose newest checkpoint to go on from; as --save: or start"},
        {"log-losses", FLAG_TEXT, &s.log_losses, 0, 0,
         "file for each step's global mean loss; goes on with --resume"},
    };
    flags_parse("Trains a small GPT on text, byte by byte, on all ranks.", flags,
                (int)(sizeof flags / sizeof flags[0]), argc, argv);
    if (!s.data) {
        give_up(EXIT_USAGE, "--data is missing: name a file or a folder of text");
    }
    if (s.dim % s.heads) {
        give_up(EXIT_USAGE, "--dim %lld is not a multiple of --heads %lld", (long long)s.dim,
                (long long)s.heads);
    }
    s.warmup = s.warmup < 0 ? (s.steps * 8 + 99) / 100 : s.warmup;
    s.min_lr = s.min_lr < 0.0 ? s.lr / 10.0 : s.min_lr;
    return s;
}

/* Words of the library, without a source line: the user's data is at fault, not the program. */
static void must(ls_status status)
{
    if (status < 0) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
}

/* ---- setting up --------------------------------------------------------------------------- */

static void open_data(job *j)
{
    const settings *s = &j->set;
    /* stride 1: a window may start at any byte, so an epoch holds every window once. */
    must(ls_text_new(s->data, LS_OPTIONS(ls_text_options, .context = s->context, .stride = 1),
                     &j->train));
    must(ls_text_new(s->data, LS_OPTIONS(ls_text_options, .context = 1, .part = LS_TEXT_HELD_OUT),
                     &j->held_out));
    must(ls_sampler_new(j->train->count,
                        LS_OPTIONS(ls_sampler_options, .batch = s->batch, .drop_last = true,
                                   .seed = (uint64_t)s->seed),
                        &j->sampler));
    must(ls_loader_new(j->train, j->sampler, NULL, &j->loader));
}

static void build_model(job *j)
{
    const settings *s = &j->set;
    ls_module *net = gpt_new(
        LS_OPTIONS(gpt_options, .layers = (int)s->layers, .heads = (int)s->heads, .dim = s->dim,
                   .context = s->context, .dropout = s->dropout, .init_std = s->init_std));
    LS_CHECK(ls_module_status(net));
    j->net =
        ls_ddp_new(net, ls_world(), LS_OPTIONS(ls_ddp_options, .bucket_bytes = s->bucket_bytes));
    LS_CHECK(ls_module_status(j->net));
    j->optim = ls_adamw_new(j->net, LS_OPTIONS(ls_adamw_options, .lr = s->lr, .beta2 = s->beta2,
                                               .weight_decay = s->weight_decay));
    if (!j->optim) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
}

/* ---- checkpoints -------------------------------------------------------------------------- */

/* Where --save and --resume name one folder an empty one is no mistake: so the same command line
 * starts a job and restarts it. Elsewhere it is a slip of the finger, and nothing is made there. */
static void resume(job *j)
{
    ls_checkpoint *from = j->checkpoint;
    if (!from) {
        must(ls_checkpoint_open(j->set.resume, ls_world(),
                                LS_OPTIONS(ls_checkpoint_options, .load_only = true), &from));
    }
    ls_status status = ls_checkpoint_load(from, j->items, 4, &j->start);
    if (status == LS_ERR_NOT_FOUND && from != j->checkpoint) {
        give_up(EXIT_FAILURE, "--resume: %s; without --resume training starts anew",
                ls_error_message());
    }
    if (status != LS_ERR_NOT_FOUND) {
        must(status);
    }
    if (from != j->checkpoint) {
        must(ls_checkpoint_close(from));
    }
    if (ls_rank() == 0) {
        (void)printf("%s: %s at step %lld\n", j->set.resume,
                     status == LS_OK ? "going on" : "nothing to go on from, starting",
                     (long long)j->start);
    }
}

static void open_checkpoints(job *j)
{
    const ls_checkpoint_item items[4] = {LS_ITEM("model", ls_ddp_module(j->net)),
                                         LS_ITEM("optim", j->optim), LS_ITEM("loader", j->loader),
                                         LS_ITEM("random", ls_runtime_current())};
    for (int i = 0; i < 4; i++) {
        j->items[i] = items[i];
    }
    const settings *s = &j->set;
    const bool same = s->save && s->resume && strcmp(s->save, s->resume) == 0;
    if (same) {
        must(ls_checkpoint_open(s->save, ls_world(), NULL, &j->checkpoint));
    }
    if (s->resume) {
        resume(j);
    }
    if (s->save && !same) {
        must(ls_checkpoint_open(s->save, ls_world(), NULL, &j->checkpoint));
    }
}

/* `step` steps are done; `last`: no more follow. */
static void save(job *j, int64_t step, bool last)
{
    if (j->checkpoint && (last || step % j->set.every == 0)) {
        must(ls_checkpoint_save(j->checkpoint, step, j->items, 4));
    }
}

static void open_log(job *j)
{
    if (j->set.log_losses && ls_rank() == 0) {
        j->losses = loss_log_open(j->set.log_losses, j->start);
    }
}

/* ---- one step ----------------------------------------------------------------------------- */

static void next_batch(job *j, ls_batch *batch)
{
    while (!ls_loader_next(j->loader, batch)) {
        LS_CHECK(ls_loader_status(j->loader)); /* else an epoch ended: the next one follows */
    }
}

/* Returns this rank's mean loss over the step's micro-batches. */
static double train_step(job *j, int64_t step)
{
    const settings *s = &j->set;
    const ls_schedule schedule = {LS_SCHEDULE_COSINE, s->lr, s->min_lr, s->warmup, s->steps};
    double loss = 0.0;
    for (int64_t k = 0; k < s->accum; k++) {
        ls_batch batch;
        double part = 0.0;
        next_batch(j, &batch);
        LS_CHECK(ls_ddp_set_sync(j->net, k == s->accum - 1)); /* only the last one communicates */
        LS_SCOPE
        {
            ls_tensor *mean = ls_cross_entropy(ls_forward(j->net, batch.x), batch.y);
            LS_CHECK(ls_backward(ls_scale(mean, 1.0 / (double)s->accum)));
            LS_CHECK(ls_item(mean, &part));
        }
        loss += part / (double)s->accum;
    }
    if (s->clip > 0.0) {
        LS_CHECK(ls_clip_grad_norm(j->net, s->clip, NULL));
    }
    ls_optim_set_lr(j->optim, ls_schedule_lr(&schedule, step));
    LS_CHECK(ls_optim_step(j->optim));
    ls_optim_zero_grad(j->optim);
    return loss;
}

/* ---- reporting ---------------------------------------------------------------------------- */

/* What a rank measured since the last report; averaged over the ranks it is the same on all, so
 * all agree on when the next one is due. */
typedef struct measure {
    double loss, seconds, exposed; /* means of a step */
} measure;

typedef struct report {
    live line;
    measure sum;             /* of the steps since the last report, this rank's */
    int64_t steps;           /* how many those are */
    int64_t done;            /* steps so far, those before a resume too */
    int64_t due;             /* step after which the next report is made */
    double exposed, seconds; /* of all steps so far, mean over the ranks */
} report;

static double exposed_seconds(const job *j)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    LS_CHECK(ls_ddp_stats(j->net, &stats));
    return stats.exposed_seconds;
}

/* At most 80 columns with the launcher's prefix: a line that wraps cannot be updated in place. */
static void show(const job *j, report *r, const measure *mean, int64_t step)
{
    const settings *s = &j->set;
    char left[32];
    double tokens = (double)(s->batch * s->accum * s->context * ls_world_size());
    double exposed_ms = mean->exposed * 1e3;
    double seconds_left = r->seconds / (double)(step - j->start) * (double)(s->steps - step);
    live_show(&r->line, step == s->steps,
              "step %lld/%lld loss %.3f lr %.2g %.0fk tokens/s exposed %.*fms %.0f%% ETA %s",
              (long long)step, (long long)s->steps, mean->loss, ls_optim_lr(j->optim),
              tokens / mean->seconds * 1e-3, exposed_ms < 10.0 ? 1 : 0, exposed_ms,
              100.0 * mean->exposed / mean->seconds, duration(seconds_left, left, sizeof left));
}

/* `step` steps are done. Collective when a report is due, which all ranks find out alike. */
static void report_step(const job *j, report *r, int64_t step)
{
    if (step != r->due && step != j->set.steps) {
        return;
    }
    double n = (double)r->steps;
    double values[3] = {r->sum.loss / n, r->sum.seconds / n, r->sum.exposed / n};
    LS_CHECK(ls_all_reduce(ls_world(), values, 3, LS_FLOAT64, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .tag = "report"), NULL));
    const measure mean = {values[0], values[1], values[2]};
    r->seconds += mean.seconds * n;
    r->exposed += mean.exposed * n;
    if (ls_rank() == 0) {
        show(j, r, &mean, step);
    }
    double ahead = SHOW_SECONDS / fmax(mean.seconds, 1e-6);
    r->due = step + 1 + (int64_t)fmin(ahead, 1e6);
    r->sum = (measure){0};
    r->steps = 0;
}

static void log_loss(const job *j, int64_t step, double loss)
{
    if (!j->set.log_losses) {
        return;
    }
    LS_CHECK(ls_all_reduce(ls_world(), &loss, 1, LS_FLOAT64, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .tag = "log-losses"), NULL));
    if (j->losses) {
        loss_log_add(j->losses, j->set.log_losses, step, loss);
    }
}

static double evaluate(const job *j)
{
    double loss;
    LS_CHECK(text_loss(ls_ddp_module(j->net), j->held_out, j->set.context, ls_world(), &loss));
    return loss;
}

static void introduce(const job *j, double loss)
{
    const settings *s = &j->set;
    long long files = ls_text_files(j->train);
    (void)printf("%s: %lld file%s, %lld bytes to learn from, %lld held out\n", s->data, files,
                 files == 1 ? "" : "s", (long long)ls_text_bytes(j->train),
                 (long long)ls_text_bytes(j->held_out));
    (void)printf("GPT: %lld layers, dim %lld, %lld heads, context %lld: %lld parameters; %d rank%s "
                 "x %lld windows x %lld\n",
                 (long long)s->layers, (long long)s->dim, (long long)s->heads,
                 (long long)s->context, (long long)ls_module_numel(j->net), ls_world_size(),
                 ls_world_size() == 1 ? "" : "s", (long long)s->batch, (long long)s->accum);
    (void)printf("before training: held-out loss %.3f\n", loss);
    (void)fflush(stdout);
}

/* ---- training and the summary ------------------------------------------------------------- */

static double train(job *j, report *r)
{
    double started = ls_time();
    live_start(&r->line);
    r->due = j->start + 1;
    r->done = j->start;
    for (int64_t step = j->start; step < j->set.steps; step++) {
        double before = ls_time();
        double loss = train_step(j, step);
        r->sum.seconds += ls_time() - before;
        r->sum.exposed += exposed_seconds(j);
        r->sum.loss += loss;
        r->steps++;
        log_loss(j, step + 1, loss);
        bool stop = ls_stop_requested(); /* on all ranks after the same step */
        save(j, step + 1, stop || step + 1 == j->set.steps);
        report_step(j, r, step + 1);
        r->done = step + 1;
        if (stop) {
            break;
        }
        if (j->set.eval_every && (step + 1) % j->set.eval_every == 0 && step + 1 < j->set.steps) {
            double held_out = evaluate(j);
            live_end(&r->line);
            if (ls_rank() == 0) {
                (void)printf("step %lld: held-out loss %.3f\n", (long long)step + 1, held_out);
            }
        }
    }
    live_end(&r->line);
    if (r->done < j->set.steps && ls_rank() == 0) {
        (void)printf("stopped after step %lld of %lld, as a signal asked\n", (long long)r->done,
                     (long long)j->set.steps);
    }
    return ls_time() - started;
}

static void print_sample(const job *j)
{
    int64_t count = j->set.sample;
    uint8_t *text = malloc((size_t)count + 1);
    if (!text || count == 0) {
        free(text);
        return;
    }
    LS_CHECK(
        text_sample(ls_ddp_module(j->net), j->set.context, (uint64_t)j->set.seed, text, count));
    (void)printf("sample:\n");
    print_escaped(text, count);
    (void)printf("\n");
    free(text);
}

/* Returns the program's exit status. */
static int summarise(const job *j, const report *r, double seconds)
{
    const settings *s = &j->set;
    double loss = evaluate(j), trigram = 0.0;
    int identical = 0, ranks = ls_world_size();
    uint64_t hash = 0;
    LS_CHECK(ls_replicas_identical(j->net, ls_world(), &identical, &hash));
    if (ls_rank() == 0) {
        char took[32];
        int64_t steps = r->done - j->start;
        double tokens = (double)(steps * s->batch * s->accum * s->context * ranks);
        LS_CHECK(trigram_loss(j->train, j->held_out, &trigram));
        print_sample(j);
        (void)printf("trained %lld steps, %.2fM tokens, in %s: %.1fk tokens/s, exposed "
                     "communication %.1f %% of the time\n",
                     (long long)steps, tokens * 1e-6, duration(seconds, took, sizeof took),
                     tokens / seconds * 1e-3, 100.0 * r->exposed / fmax(r->seconds, 1e-9));
        (void)printf("held-out loss %.3f (trigram %.3f)\n", loss, trigram);
        (void)printf("replicas identical: %d of %d (hash %016llx)\n", identical, ranks,
                     (unsigned long long)hash);
    }
    return identical == ranks ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void close_job(job *j)
{
    loss_log_close(j->losses, j->set.log_losses);
    must(ls_checkpoint_close(j->checkpoint));
    ls_optim_free(j->optim);
    ls_module_free(j->net);
    ls_loader_free(j->loader);
    ls_sampler_free(j->sampler);
    ls_dataset_free(j->train);
    ls_dataset_free(j->held_out);
}

int main(int argc, char **argv)
{
    job j = {.set = read_flags(argc, argv)};
    report r = {.steps = 0};
    must(ls_init(LS_OPTIONS(ls_init_options, .seed = (uint64_t)j.set.seed, .graceful_stop = true)));
    open_data(&j);
    build_model(&j);
    open_checkpoints(&j);
    open_log(&j);
    double before = evaluate(&j);
    if (ls_rank() == 0) {
        introduce(&j, before);
    }
    double seconds = train(&j, &r);
    int status = summarise(&j, &r, seconds);
    close_job(&j);
    LS_CHECK(ls_finalize());
    return status;
}
