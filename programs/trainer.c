/* See trainer.h. One step:
 *
 *     for each micro-batch: forward, loss / accum, backward     only the last backward communicates
 *     clip, learning rate of the step, optimizer, zero_grad
 *     records, checkpoint, live line, and every --eval-every steps an evaluation
 *
 * A signal (Ctrl-C, SIGTERM) ends training on all ranks after the same step, with a checkpoint, the
 * same summary and status 0; a second one ends the program.
 */
#include "trainer.h"

#include "resumed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOW_SECONDS 0.25 /* between two updates of the live line */
#define ITEMS 5

/* Measurements of a rank since the last report. Their mean over the ranks is the same on all ranks,
 * so all ranks agree when the next report is due. */
typedef struct measure {
    double loss, seconds, exposed; /* means of a step */
} measure;

typedef struct report {
    live line;
    measure sum;             /* of the steps since the last report, this rank's */
    int64_t steps;           /* the number of these steps */
    int64_t done;            /* steps so far, including those before a resume */
    int64_t due;             /* step after which the next report is made */
    double exposed, seconds; /* of all steps so far, mean over the ranks */
} report;

struct trainer {
    const trainer_options *set;
    trainer_task task;
    ls_sampler *sampler;
    ls_loader *loader;
    int64_t micro;  /* backward passes of a step */
    double *losses; /* [micro] of them */
    ls_module *net; /* wrapped */
    ls_optim *optim;
    run_settings settings; /* of this run */
    ls_schedule_options schedule;
    ls_checkpoint *checkpoint; /* with --save */
    ls_checkpoint_item items[ITEMS];
    int64_t start; /* steps done when this run began; 0 without --resume */
    records records;
    report report;
    double seconds; /* of training, evaluations included */
    score scores[SCORES_MAX];
    int score_count; /* of the last evaluation */
    int identical;   /* number of identical replicas at the end, and their hash */
    uint64_t hash;
};

/* ---- setting up --------------------------------------------------------------------------- */

void trainer_init(const trainer_options *options)
{
    must(ls_init(
        LS_OPTIONS(ls_init_options, .seed = (uint64_t)options->seed, .graceful_stop = true)));
}

static ls_feed feed_of(const trainer_options *s)
{
    return strcmp(s->feed, "shared") == 0    ? LS_FEED_SHARED
           : strcmp(s->feed, "scatter") == 0 ? LS_FEED_SCATTER
                                             : LS_FEED_SPLIT;
}

static bool has_shards(const trainer_options *s)
{
    return strcmp(s->exact, "layout") == 0;
}

int64_t trainer_micro_batches(const trainer_options *s)
{
    const int64_t ranks = ls_world_size();
    if (!has_shards(s)) {
        return s->accum;
    }
    if (s->accum != 1) {
        give_up(EXIT_FAILURE, "--exact layout divides a step into --shards; leave --accum out");
    }
    if ((s->shards & (s->shards - 1)) != 0 || s->shards % ranks != 0) {
        give_up(EXIT_FAILURE,
                "--exact layout: %lld shards on %lld ranks; both must be powers of two, and the "
                "ranks at most as many as the shards",
                (long long)s->shards, (long long)ranks);
    }
    return s->shards / ranks;
}

static int shards_of(const trainer_options *s)
{
    return has_shards(s) ? (int)s->shards : 0;
}

static void open_loader(trainer *t)
{
    const trainer_options *s = t->set;
    const int64_t batch = has_shards(s) ? s->batch * t->micro : s->batch;
    must(LS_STATUS_OF(
        t->sampler = ls_sampler_new(t->task.data->count,
                                    LS_OPTIONS(ls_sampler_options, .batch = batch,
                                               .drop_last = true, .seed = (uint64_t)s->seed))));
    must(LS_STATUS_OF(t->loader = ls_loader_new(t->task.data, t->sampler,
                                                LS_OPTIONS(ls_loader_options, .feed = feed_of(s),
                                                           .shards = shards_of(s)))));
}

static ls_optim *make_optim(const trainer *t)
{
    const trainer_options *s = t->set;
    if (strcmp(s->optim, "sgd") == 0) {
        return ls_sgd_new(t->net, LS_OPTIONS(ls_sgd_options, .lr = s->lr, .momentum = s->momentum,
                                             .weight_decay = s->weight_decay));
    }
    return ls_adamw_new(t->net, LS_OPTIONS(ls_adamw_options, .lr = s->lr, .beta2 = s->beta2,
                                           .weight_decay = s->weight_decay));
}

/* As GPT-2 and BERT were trained; every model here has biases or norms. */
static void group_params(const trainer *t)
{
    if (strcmp(t->set->decay, "matrices") == 0) {
        must(ls_optim_add_group(t->optim, ls_select_vectors, NULL,
                                LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
    }
}

/* Each rank reads the weights by itself. */
static void load_weights(const trainer *t)
{
    const char *path = t->set->init;
    if (path != NULL) {
        must(t->task.load ? t->task.load(t->task.net, path)
                          : ls_module_load_safetensors(t->task.net, path, NULL));
    }
}

static void wrap(trainer *t)
{
    const trainer_options *s = t->set;
    LS_CHECK(ls_module_status(t->task.net));
    load_weights(t);
    t->net = ls_ddp_new(t->task.net, ls_world(),
                        LS_OPTIONS(ls_ddp_options,
                                   .bucket_bytes = s->bucket_bytes < 0 ? LS_BUCKET_BYTES_AUTO
                                                                       : (size_t)s->bucket_bytes,
                                   .shards = shards_of(s)));
    LS_CHECK(ls_module_status(t->net));
    t->optim = make_optim(t);
    if (!t->optim) {
        give_up(EXIT_FAILURE, "%s", ls_error_message());
    }
    group_params(t);
    t->settings = settings_of(s);
    t->schedule = schedule_of(&t->settings);
}

/* ---- checkpoints -------------------------------------------------------------------------- */

/* After a load that left the checkpoint's settings in place of this run's. What optimizer, sampler
 * and random state brought along continues; the schedule is this run's. */
static void settle(trainer *t, const run_settings *mine)
{
    if (ls_rank() == 0) {
        print_differences(&t->settings, mine, t->start, t->set->steps);
    }
    t->settings.steps = mine->steps;
    t->settings.schedule = mine->schedule;
    t->settings.warmup = mine->warmup;
    t->settings.lr = mine->lr;
    t->settings.min_lr = mine->min_lr;
    t->settings.decay_all = mine->decay_all;
}

/* If --save and --resume name the same folder, it may be empty, so that one command line both
 * starts and restarts a job. Otherwise an empty folder is an error, and nothing is created in
 * it. */
static void resume(trainer *t)
{
    ls_checkpoint *from = t->checkpoint;
    const run_settings mine = t->settings;
    if (from == NULL) {
        must(ls_checkpoint_new(t->set->resume, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .load_only = true), &from));
    }
    t->settings.decay_all = 1; /* of a checkpoint that does not say it */
    ls_status status = ls_checkpoint_load(from, t->items, ITEMS, &t->start);
    if (status == LS_ERR_NOT_FOUND && from != t->checkpoint) {
        give_up(EXIT_FAILURE, "--resume: %s; without --resume training starts anew",
                ls_error_message());
    }
    if (status == LS_ERR_NOT_FOUND) {
        t->settings = mine;
    } else {
        must_resume(status);
    }
    if (from != t->checkpoint) {
        must(ls_checkpoint_free(from));
    }
    if (ls_rank() == 0) {
        (void)printf("%s: %s at step %lld\n", t->set->resume,
                     status == LS_OK ? "going on" : "nothing to go on from, starting",
                     (long long)t->start);
    }
    if (status == LS_OK) {
        settle(t, &mine);
    }
}

static void open_checkpoints(trainer *t)
{
    const ls_checkpoint_item items[ITEMS] = {
        LS_ITEM("model", ls_ddp_module(t->net)), LS_ITEM("optim", t->optim),
        LS_ITEM("loader", t->loader), LS_ITEM("random", ls_runtime_current()),
        (ls_checkpoint_item){sizeof(ls_checkpoint_item), "run", &t->settings, run_settings_state}};
    for (int i = 0; i < ITEMS; i++) {
        t->items[i] = items[i];
    }
    const trainer_options *s = t->set;
    const bool same = s->save && s->resume && strcmp(s->save, s->resume) == 0;
    if (same) {
        must(ls_checkpoint_new(s->save, ls_world(), NULL, &t->checkpoint));
    }
    if (s->resume) {
        resume(t);
    }
    if (s->save && !same) {
        must(ls_checkpoint_new(s->save, ls_world(), NULL, &t->checkpoint));
    }
}

/* Saves after `step` steps if it is due, and always after the `last` one. */
static void save(trainer *t, int64_t step, bool last)
{
    if (t->checkpoint && (last || step % t->set->every == 0)) {
        must(ls_checkpoint_save(t->checkpoint, step, t->items, ITEMS));
    }
}

trainer *trainer_new(const trainer_options *options, const trainer_task *task)
{
    trainer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    t->set = options;
    t->task = *task;
    t->micro = trainer_micro_batches(options);
    t->losses = calloc((size_t)t->micro, sizeof *t->losses);
    if (t->losses == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    open_loader(t);
    wrap(t);
    open_checkpoints(t);
    records_open(&t->records, options->log, options->tensorboard, options->log_losses, t->start);
    return t;
}

ls_module *trainer_net(const trainer *t)
{
    return ls_ddp_module(t->net);
}

void trainer_introduce(const trainer_options *options, const char *model, ls_module *net,
                       const char *units)
{
    (void)printf("%s: %lld parameters; %d rank%s x %lld %s x %lld\n", model,
                 (long long)ls_module_numel(net), ls_world_size(), ls_world_size() == 1 ? "" : "s",
                 (long long)options->batch, units, (long long)trainer_micro_batches(options));
    (void)fflush(stdout);
}

/* ---- one step ----------------------------------------------------------------------------- */

static void next_batch(trainer *t, ls_batch *batch)
{
    while (!ls_loader_next(t->loader, batch)) {
        must(
            ls_loader_status(t->loader)); /* without an error an epoch ended, and the next begins */
    }
}

static bool in_bf16(const trainer *t)
{
    return strcmp(t->set->dtype, "bf16") == 0;
}

/* With bf16 products are computed in bfloat16; parameters, gradients and optimizer state stay
 * float32. */
static ls_tensor *loss_of(const trainer *t, const ls_batch *batch)
{
    ls_tensor *loss = NULL;
    {
        LS_AUTOCAST(in_bf16(t));
        loss = t->task.loss ? t->task.loss(t->task.arg, t->net, batch)
                            : ls_cross_entropy(ls_forward(t->net, batch->x), batch->y, NULL);
    }
    return loss;
}

/* The mean in the order of a binary tree, which that over the ranks continues: with --exact layout it
 * does not depend on their number. Overwrites the values. */
static double mean_of(double *values, int64_t count)
{
    int64_t left = count;
    while (left > 1) {
        const int64_t pairs = left / 2;
        for (int64_t i = 0; i < pairs; i++) {
            values[i] = values[2 * i] + values[2 * i + 1];
        }
        if (left % 2 != 0) {
            values[pairs] = values[left - 1];
        }
        left = pairs + left % 2;
    }
    return values[0] / (double)count;
}

/* Forward and backward of one micro-batch; only the last one of a step communicates. Shards are averaged
 * by the reducer, other micro-batches here. */
static double micro_batch(trainer *t, bool last)
{
    ls_batch batch = {.size = sizeof batch};
    const double share = has_shards(t->set) ? 1.0 : 1.0 / (double)t->micro;
    double loss = 0.0;
    next_batch(t, &batch);
    LS_CHECK(ls_ddp_set_sync(t->net, last));
    {
        LS_SCOPE;
        ls_tensor *mean = loss_of(t, &batch);
        LS_CHECK(ls_backward(ls_scale(mean, share)));
        LS_CHECK(ls_item(mean, &loss));
    }
    return loss;
}

/* Returns this rank's mean loss over the micro-batches of the step; *norm becomes the gradient's
 * norm, or -1 without clipping. */
static double train_step(trainer *t, int64_t step, double *norm)
{
    const trainer_options *s = t->set;
    for (int64_t k = 0; k < t->micro; k++) {
        t->losses[k] = micro_batch(t, k == t->micro - 1);
    }
    const double loss = mean_of(t->losses, t->micro);
    *norm = -1.0;
    if (s->clip > 0.0) {
        LS_CHECK(ls_clip_grad_norm(t->net, s->clip, NULL, norm));
    }
    ls_optim_set_lr(t->optim, ls_schedule_lr(step, &t->schedule));
    LS_CHECK(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
    return loss;
}

static double exposed_seconds(const trainer *t)
{
    ls_ddp_stats stats = {.size = sizeof stats};
    LS_CHECK(ls_ddp_get_stats(t->net, &stats));
    return stats.exposed.last;
}

/* ---- reporting ---------------------------------------------------------------------------- */

/* The tokens or images of a step, over all ranks. */
static double units_of_step(const trainer *t)
{
    return (double)(t->set->batch * t->micro * t->task.units * ls_world_size());
}

/* Means over the ranks; collective. */
static measure average(const measure *mine, const char *tag)
{
    double values[3] = {mine->loss, mine->seconds, mine->exposed};
    LS_CHECK(ls_all_reduce(ls_world(), values, values, 3, LS_FLOAT64, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .tag = tag), NULL));
    return (measure){values[0], values[1], values[2]};
}

/* "870", "12k", "3.21M" */
static const char *amount(double value, char *out, size_t bytes)
{
    bool many = value >= 1e6, some = value >= 1e4;
    (void)snprintf(out, bytes, "%.*f%s", many ? 2 : 0,
                   value * (many   ? 1e-6
                            : some ? 1e-3
                                   : 1.0),
                   many   ? "M"
                   : some ? "k"
                          : "");
    return out;
}

/* At most 80 columns with the launcher's prefix, because a line that wraps cannot be updated in
 * place. */
static void show(trainer *t, const measure *mean, int64_t step)
{
    char left[32], speed[32];
    report *r = &t->report;
    int64_t steps = t->set->steps;
    double exposed_ms = mean->exposed * 1e3;
    double seconds_left = r->seconds / (double)(step - t->start) * (double)(steps - step);
    live_show(&r->line, step == steps,
              "step %lld/%lld loss %.3f lr %.2g %s %s/s exposed %.*fms %.0f%% ETA %s",
              (long long)step, (long long)steps, mean->loss, ls_optim_lr(t->optim),
              amount(units_of_step(t) / mean->seconds, speed, sizeof speed), t->task.unit,
              exposed_ms < 10.0 ? 1 : 0, exposed_ms, 100.0 * mean->exposed / mean->seconds,
              duration(seconds_left, left, sizeof left));
}

/* Called after `step` steps. Collective when a report is due, on which all ranks agree. */
static void report_step(trainer *t, int64_t step)
{
    report *r = &t->report;
    if (step != r->due && step != t->set->steps) {
        return;
    }
    double n = (double)r->steps;
    const measure mine = {r->sum.loss / n, r->sum.seconds / n, r->sum.exposed / n};
    const measure mean = average(&mine, "report");
    r->seconds += mean.seconds * n;
    r->exposed += mean.exposed * n;
    if (ls_rank() == 0) {
        show(t, &mean, step);
    }
    double ahead = SHOW_SECONDS / fmax(mean.seconds, 1e-6);
    r->due = step + 1 + (int64_t)fmin(ahead, 1e6);
    r->sum = (measure){0};
    r->steps = 0;
}

static void record_step(trainer *t, int64_t step, const measure *mine, double norm)
{
    if (!t->records.wanted) {
        return;
    }
    const measure mean = average(mine, "records");
    records_step(&t->records, &(record){.step = step,
                                        .loss = mean.loss,
                                        .lr = ls_optim_lr(t->optim),
                                        .grad_norm = norm,
                                        .seconds = mean.seconds,
                                        .exposed = mean.exposed,
                                        .per_second = units_of_step(t) / mean.seconds,
                                        .unit = t->task.unit,
                                        .dtype = t->set->dtype});
}

/* ---- evaluation --------------------------------------------------------------------------- */

/* Called after `step` steps. `keep` is false for the evaluation at the start of a resumed run,
 * which the previous run has recorded. */
static void evaluate(trainer *t, int64_t step, bool keep)
{
    {
        LS_AUTOCAST(in_bf16(t));
        t->score_count = t->task.evaluate(t->task.arg, trainer_net(t), t->scores);
    }
    if (keep && ls_rank() == 0) {
        records_scores(&t->records, step, t->scores, t->score_count);
    }
}

/* "held-out loss 2.345, …" without a newline; on rank 0. */
static void print_scores(const trainer *t)
{
    for (int i = 0; i < t->score_count; i++) {
        const score *s = &t->scores[i];
        (void)printf("%s%s %.*f%s", i == 0 ? "" : ", ", s->name, s->percent ? 2 : 3,
                     s->percent ? 100.0 * s->value : s->value, s->percent ? " %" : "");
    }
}

static void evaluate_between(trainer *t, int64_t step)
{
    evaluate(t, step, true);
    live_end(&t->report.line);
    if (ls_rank() == 0) {
        (void)printf("step %lld: ", (long long)step);
        print_scores(t);
        (void)printf("\n");
        (void)fflush(stdout);
    }
}

static void evaluate_before(trainer *t)
{
    evaluate(t, t->start, t->start == 0);
    if (ls_rank() == 0) {
        (void)printf("before training: ");
        print_scores(t);
        (void)printf("\n");
        (void)fflush(stdout);
    }
}

/* ---- training and the summary ------------------------------------------------------------- */

/* Trains one step and records it. Returns whether a stop was requested, on all ranks after the same
 * step. */
static bool one_step(trainer *t, int64_t step)
{
    report *r = &t->report;
    double before = ls_time(), norm;
    double loss = train_step(t, step, &norm);
    const measure mine = {loss, ls_time() - before, exposed_seconds(t)};
    r->sum.loss += mine.loss;
    r->sum.seconds += mine.seconds;
    r->sum.exposed += mine.exposed;
    r->steps++;
    record_step(t, step + 1, &mine, norm);
    bool stop = ls_stop_requested();
    save(t, step + 1, stop || step + 1 == t->set->steps);
    report_step(t, step + 1);
    r->done = step + 1;
    return stop;
}

static void run_steps(trainer *t)
{
    const trainer_options *s = t->set;
    report *r = &t->report;
    live_start(&r->line, stdout);
    r->due = t->start + 1;
    r->done = t->start;
    while (r->done < s->steps && !one_step(t, r->done)) {
        if (s->eval_every && r->done % s->eval_every == 0 && r->done < s->steps) {
            evaluate_between(t, r->done);
        }
    }
    live_end(&r->line);
    if (r->done < s->steps && ls_rank() == 0) {
        (void)printf("stopped after step %lld of %lld, as a signal asked\n", (long long)r->done,
                     (long long)s->steps);
    }
}

void trainer_train(trainer *t)
{
    evaluate_before(t);
    double started = ls_time();
    run_steps(t);
    t->seconds = ls_time() - started;
    evaluate(t, t->report.done, t->report.done > t->start);
    LS_CHECK(ls_replicas_identical(t->net, ls_world(), &t->identical, &t->hash));
    if (t->set->export_to && ls_rank() == 0) {
        must(ls_module_save_safetensors(trainer_net(t), t->set->export_to, NULL));
    }
}

static void print_summary(const trainer *t, const char *note)
{
    char took[32], all[32], speed[32];
    const report *r = &t->report;
    double units = (double)(r->done - t->start) * units_of_step(t);
    if (r->done > t->start) {
        (void)printf(
            "trained %lld steps in %s, %s %s, in %s: %s %s/s, exposed communication %.1f %% of "
            "the time\n",
            (long long)(r->done - t->start), t->set->dtype, amount(units, all, sizeof all),
            t->task.unit, duration(t->seconds, took, sizeof took),
            amount(units / t->seconds, speed, sizeof speed), t->task.unit,
            100.0 * r->exposed / fmax(r->seconds, 1e-9));
    }
    print_scores(t);
    (void)printf("%s%s\n", note ? " " : "", note ? note : "");
    (void)printf("replicas identical: %d of %d (hash %016llx)\n", t->identical, ls_world_size(),
                 (unsigned long long)t->hash);
}

int trainer_end(trainer *t, const char *note)
{
    bool good = t->identical == ls_world_size();
    if (ls_rank() == 0) {
        print_summary(t, note);
    }
    records_close(&t->records);
    must(ls_checkpoint_free(t->checkpoint));
    ls_optim_free(t->optim);
    ls_module_free(t->net);
    ls_loader_free(t->loader);
    ls_sampler_free(t->sampler);
    free(t->losses);
    free(t);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
