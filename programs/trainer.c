/* SPDX-License-Identifier: Apache-2.0 */
/* See trainer.h. One step:
 *
 *     for each micro-batch: forward, loss / accum, backward     only the last backward communicates
 *     (or all of them through a pipeline, trainer_pipeline.c)
 *     clip, learning rate of the step, optimizer, zero_grad
 *     records, checkpoint, live line, and every --eval-every steps an evaluation
 *
 * A signal (Ctrl-C, SIGTERM) ends training on all ranks after the same step, with a checkpoint, the
 * same summary and status 0; a second one ends the program.
 */
#include "trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "save_folder.h"

#define HOOK_STATE "model.comm_hook." /* names of a hook's state in a checkpoint */

/* ---- setting up --------------------------------------------------------------------------- */

/* The world's backend also moves losses, settings and checkpoints, which the host has. */
static void refuse_world_of_gpus(void)
{
    if (strcmp(ls_group_backend(ls_world()), "nccl") == 0) {
        give_up(EXIT_USAGE,
                "LOCKSTEP_BACKEND=nccl: ranks of a trainer also exchange memory of the host, and "
                "nccl moves that of GPUs only; unset it, and give --device cuda --backend nccl");
    }
}

void trainer_init(trainer_options *options)
{
    must(ls_init(
        LS_OPTIONS(ls_init_options, .seed = (uint64_t)options->seed, .graceful_stop = true)));
    refuse_world_of_gpus();
    if (options->device != NULL) {
        must(ls_device_use(options->device));
    }
    parallel_read_plan(options);
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
        return parallel_has_pipeline(s) ? s->micro_batches : s->accum;
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

bool trainer_has_hook(const trainer_options *s)
{
    return s->comm != NULL && strcmp(s->comm, "plain") != 0;
}

static int shards_of(const trainer_options *s)
{
    return has_shards(s) ? (int)s->shards : 0;
}

void trainer_open_loader(const trainer *t, int rank, int ranks, ls_sampler **sampler,
                         ls_loader **loader)
{
    const trainer_options *s = t->set;
    const int64_t batch = has_shards(s) ? s->batch * t->micro : s->batch;
    must(LS_STATUS_OF(*sampler = ls_sampler_new(
                          t->task.data->count,
                          LS_OPTIONS(ls_sampler_options, .batch = batch, .rank = rank,
                                     .world_size = ranks, .drop_last = true,
                                     .seed = (uint64_t)s->seed, .batches = shares_batches(t)))));
    must(LS_STATUS_OF(*loader = ls_loader_new(t->task.data, *sampler,
                                              LS_OPTIONS(ls_loader_options, .feed = feed_of(s),
                                                         .shards = shards_of(s)))));
}

static void open_loader(trainer *t)
{
    const bool serves = served_workers(t) > 0;
    trainer_open_loader(t, serves ? served_rank(t) : ls_group_rank(t->ranks.replicas),
                        serves ? served_workers(t) : ls_group_size(t->ranks.replicas), &t->sampler,
                        &t->loader);
}

typedef struct moved {
    trainer_place place;
    int next;
    bool puts;
} moved;

static ls_status move_number(void *self, const char *name, int64_t *value)
{
    moved *m = self;
    (void)name;
    if (m->next < PLACE_NUMBERS) {
        int64_t *number = &m->place.value[m->next++];
        *(m->puts ? value : number) = *(m->puts ? number : value);
    }
    return LS_OK;
}

static void move(ls_loader *loader, moved *m)
{
    const ls_state_visitor visitor = {.size = sizeof visitor, .self = m, .int64 = move_number};
    must(ls_loader_state(loader, "", &visitor));
}

trainer_place trainer_place_of(ls_loader *loader)
{
    moved m = {.puts = false};
    move(loader, &m);
    return m.place;
}

void trainer_place_put(ls_loader *loader, const trainer_place *place)
{
    move(loader, &(moved){.place = *place, .puts = true});
}

void trainer_reopen_loader(trainer *t)
{
    const trainer_place place = trainer_place_of(t->loader);
    ls_loader_free(t->loader);
    ls_sampler_free(t->sampler);
    open_loader(t);
    trainer_place_put(t->loader, &place);
}

/* ---- the command of a replay log ---------------------------------------------------------- */

static bool is_plain(const char *word)
{
    return *word != '\0' && strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789-_./=,:+@%") == strlen(word);
}

/* A word as the shell takes it. */
static void print_word(FILE *out, const char *word)
{
    if (is_plain(word)) {
        (void)fputs(word, out);
        return;
    }
    (void)fputc('\'', out);
    for (; *word != '\0'; word++) {
        (void)fputs(*word == '\'' ? "'\\''" : (const char[]){*word, '\0'}, out);
    }
    (void)fputc('\'', out);
}

char *trainer_command(const trainer_options *o, int workers)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)fputs(o->program, out);
    for (char **word = o->words + 1; *word != NULL; word++) {
        (void)fputc(' ', out);
        print_word(out, *word);
    }
    (void)fprintf(out, " --workers %d", workers);
    if (fclose(out) != 0) {
        give_up(EXIT_FAILURE, "no memory");
    }
    return text;
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

static bool has_vectors(ls_module *net)
{
    const int count = ls_module_param_count(net);
    bool found = false;
    ls_param *params = calloc((size_t)count + 1, sizeof *params);
    if (params == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    (void)ls_module_params(net, params, count);
    for (int i = 0; i < count; i++) {
        found |= ls_select_vectors(NULL, params[i].name, params[i].value);
    }
    free(params);
    return found;
}

/* As GPT-2 and BERT were trained; every model here has biases or norms, a stage of it need not. */
static void group_params(const trainer *t)
{
    if (strcmp(t->set->decay, "matrices") == 0 && has_vectors(t->net)) {
        must(ls_optim_add_group(t->optim, ls_select_vectors, NULL,
                                LS_OPTIONS(ls_optim_group_options, .weight_decay = 0)));
    }
}

/* Each rank reads the weights by itself. */
static void load_weights(const trainer *t)
{
    const char *path = t->set->init;
    if (path != NULL) {
        char from[512];
        const ls_status status = t->task.load ? t->task.load(t->task.net, path)
                                              : ls_module_load_safetensors(t->task.net, path, NULL);
        if (status == LS_ERR_MISMATCH) {
            give_up(EXIT_FAILURE,
                    "--init: %s. The model is built as --model and its sizes say, or as the "
                    "config.json beside the weights",
                    ls_error_message());
        }
        must(status);
        (void)snprintf(from, sizeof from, "--init %s", path);
        must_be_finite(&(ls_checkpoint_item)LS_ITEM("model", t->task.net), 1, from);
    }
}

/* Neighbouring ranks; NULL: all of them. */
static ls_group *shard_group_of(const trainer *t)
{
    ls_group *copies = parallel_copies(&t->ranks), *own = NULL;
    const int64_t size = t->set->shard_group, ranks = ls_group_size(copies);
    if (size == 0) {
        return NULL;
    }
    if (ranks % size != 0) {
        give_up(EXIT_FAILURE,
                "--shard-group %lld: %lld ranks have the same parameters, which are not a multiple "
                "of it; give a divisor of %lld",
                (long long)size, (long long)ranks, (long long)ranks);
    }
    must(ls_group_split(copies, ls_group_rank(copies) / (int)size, 0, "shard_group", &own));
    return own;
}

/* NULL: that of the device. Hooks compute on the host. */
static const char *backend_of(const trainer_options *s)
{
    const bool native = strcmp(ls_group_backend(ls_world()), "native") == 0;
    return s->backend == NULL && trainer_has_hook(s) && native ? "native" : s->backend;
}

/* Stages that are nowhere else have no rank to average with, nor has a captured step's if it is
 * alone, and a replay of stages averages itself; with --replicas the wrapper knows how many
 * micro-batches the mean is over. */
static void wrap(trainer *t)
{
    const trainer_options *s = t->set;
    t->net = t->task.net;
    if (served_workers(t) > 0) {
        t->net = served_wrap(t);
        LS_CHECK(ls_module_status(t->net));
        return;
    }
    if (ls_module_param_count(t->net) == 0 || s->replays_stages ||
        (s->graph && ls_world_size() == 1) ||
        (t->ranks.pipeline != NULL && s->replicas == NULL && ls_group_size(t->ranks.copies) == 1)) {
        return;
    }
    ls_group *within = shard_group_of(t);
    t->net = ls_ddp_new(t->task.net, parallel_copies(&t->ranks),
                        LS_OPTIONS(ls_ddp_options,
                                   .bucket_bytes = s->bucket_bytes < 0 ? LS_BUCKET_BYTES_AUTO
                                                                       : (size_t)s->bucket_bytes,
                                   .shards = shards_of(s), .batch_axes = t->ranks.batch_axes,
                                   .zero = (int)s->zero, .shard_group = within,
                                   .backend = backend_of(s)));
    LS_CHECK(ls_module_status(t->net));
    must(ls_group_free(within));
    if (trainer_has_hook(s)) {
        ls_comm_hook hook = {.size = sizeof hook};
        must(ls_comm_hook_parse(s->comm, &hook));
        must(ls_ddp_set_hook(t->net, &hook));
    }
}

/* The model in its final form, and its optimizer. */
static void prepare(trainer *t)
{
    load_weights(t);
    if (t->set->profile != NULL) {
        trainer_profile(t);
    }
    if (t->set->replay != NULL && parallel_steps_within(t->set)) {
        t->command = trainer_command(t->set, ls_group_size(t->ranks.copies));
        t->ranks.command = t->command;
    }
    if (t->set->tensor_search != NULL) {
        trainer_search(t);
    }
    parallel_cut(&t->ranks, t->set, t->task.net, t->task.loss, t->task.arg);
    wrap(t);
    if (ls_module_param_count(t->net) > 0) {
        t->optim = make_optim(t);
        if (t->optim == NULL) {
            give_up(EXIT_FAILURE, "%s", ls_error_message());
        }
        group_params(t);
    }
    if (t->ranks.steps) {
        must(ls_pipeline_set_optim(t->ranks.pipeline, t->optim));
    }
    t->settings = settings_of(t->set);
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

/* Compares the data with those of the run before, or says that its flags are not known. */
static void describe(const trainer *t)
{
    if (ls_rank() != 0) {
        return;
    }
    if (t->set->described) {
        run_file_compare_data(t->set->run, t->task.data);
    } else {
        (void)fprintf(stderr,
                      "%s: no run.json, because an earlier version saved there; the model's heads, "
                      "--dropout, --dtype, --batch and the data are not compared\n",
                      t->set->resume);
    }
}

/* The checkpoint's state of a communication hook is not that of this run's, or one of them has no
 * hook. Hooks lose little by starting anew, and the rest is the run's. */
static ls_status load_without_hook(trainer *t)
{
    ls_checkpoint *from = NULL;
    ls_checkpoint_item items[ITEMS];
    memcpy(items, t->items, sizeof items);
    items[0] = (ls_checkpoint_item)LS_ITEM("model", trainer_net(t));
    must(ls_checkpoint_new(
        t->set->resume, ls_world(),
        LS_OPTIONS(ls_checkpoint_options, .load_only = true, .ignore = HOOK_STATE), &from));
    const ls_status status = ls_checkpoint_load(from, items, t->item_count, &t->start);
    if (status == LS_OK && ls_rank() == 0 && trainer_has_hook(t->set)) {
        (void)printf("%s: no state of --comm %s on %d rank%s, because that run had another hook, "
                     "none, or another number of ranks: its residuals start from zero\n",
                     t->set->resume, t->set->comm, ls_world_size(),
                     ls_world_size() == 1 ? "" : "s");
    } else if (status == LS_OK && ls_rank() == 0) {
        (void)printf("%s: the run so far had a communication hook, and this one has none: what the "
                     "hook had not sent yet is dropped\n",
                     t->set->resume);
    }
    must(ls_checkpoint_free(from));
    return status;
}

static ls_status load(trainer *t, ls_checkpoint *from)
{
    if (t->set->local_steps > 0) {
        return local_load(t, &t->start);
    }
    const ls_status status = ls_checkpoint_load(from, t->items, t->item_count, &t->start);
    if (status == LS_ERR_MISMATCH && strstr(ls_error_message(), "\"" HOOK_STATE) != NULL) {
        return load_without_hook(t);
    }
    return status == LS_ERR_MISMATCH ? local_load_mean(t, status, &t->start) : status;
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
    const ls_status status = load(t, from);
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
        char what[512];
        (void)snprintf(what, sizeof what, "--resume %s: step %lld", t->set->resume,
                       (long long)t->start);
        must_be_finite(t->items, t->item_count, what);
        settle(t, &mine);
        shares_settle(t);
        describe(t);
    }
}

static void open_checkpoints(trainer *t)
{
    local_list_items(t); /* the wrapper has the hook's state */
    const trainer_options *s = t->set;
    const bool same = save_folder_is(s->save, s->resume);
    if (same) {
        must(ls_checkpoint_new(s->save, ls_world(), NULL, &t->checkpoint));
    }
    if (s->resume) {
        resume(t);
    }
    if (s->save && !same) {
        must(ls_checkpoint_new(s->save, ls_world(), NULL, &t->checkpoint));
        save_folder_must_take(s->save, s->resume != NULL ? t->start : -1);
    }
}

/* Saves after `step` steps if it was due in the last `count` of them, and always after the `last`
 * one. */
static void save(trainer *t, int64_t step, int64_t count, bool last)
{
    if (t->checkpoint && (last || step % t->set->every < count)) {
        if (!t->saved && ls_rank() == 0) {
            run_file_write(t->set->run, t->set->save, t->task.data);
        }
        t->saved = true;
        local_list_items(t);
        must(ls_checkpoint_save(t->checkpoint, step, t->items, t->item_count));
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
    LS_CHECK(ls_module_status(task->net));
    parallel_check_model(options, task->net, task->divided_by);
    t->micro = trainer_micro_batches(options);
    if (parallel_has_pipeline(options)) {
        run_file_set(options->run, "accum", t->micro);
    }
    t->losses = calloc((size_t)t->micro, sizeof *t->losses);
    t->micro_batches = calloc((size_t)t->micro, sizeof *t->micro_batches);
    t->contexts = calloc((size_t)t->micro, sizeof *t->contexts);
    t->experts.rows = calloc(2 * (size_t)task->experts + 1, sizeof *t->experts.rows);
    if (t->losses == NULL || t->micro_batches == NULL || t->contexts == NULL ||
        t->experts.rows == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    trainer_export_prepare(t);
    t->outer = local_read_outer(options->outer);
    parallel_open(&t->ranks, options);
    served_open(t);
    shares_open(t);
    open_loader(t);
    prepare(t);
    if (options->replayed != NULL) {
        trainer_replay(t);
    }
    open_checkpoints(t);
    local_begin(t, t->start);
    federated_open(t);
    records_open(&t->records, options->log, options->tensorboard, options->log_losses, t->start);
    trainer_count_experts(t);
    return t;
}

/* A module without a wrapper is its own. */
ls_module *trainer_net(const trainer *t)
{
    return t->task.net;
}

void trainer_introduce(const trainer *t, const char *model, const char *units)
{
    const parallel *p = &t->ranks;
    const int replicas = served_workers(t) > 0 ? served_workers(t) : ls_group_size(p->replicas);
    if (p->pipeline != NULL) {
        (void)printf("%s: %lld parameters, %lld to %lld on a rank; %d rank%s run %s; ", model,
                     (long long)p->numel, (long long)p->smallest, (long long)p->largest,
                     ls_group_size(p->stages), ls_group_size(p->stages) == 1 ? "" : "s",
                     t->set->schedule);
        (void)printf("%d replica%s x %lld %s x %lld micro-batches\n", replicas,
                     replicas == 1 ? "" : "s", (long long)t->set->batch, units,
                     (long long)t->micro);
    } else {
        (void)printf("%s: %lld parameters; %d rank%s x %lld %s x %lld\n", model,
                     (long long)p->numel, replicas, replicas == 1 ? "" : "s",
                     (long long)t->set->batch, units, (long long)t->micro);
    }
    if (trainer_has_hook(t->set)) {
        (void)printf(replicas > 1 ? "gradients are sent by --comm %s\n"
                                  : "one rank sends no gradients: --comm %s changes nothing\n",
                     t->set->comm);
    }
    if (strcmp(ls_ddp_backend(t->net), ls_group_backend(ls_world())) != 0) {
        (void)printf("gradients are averaged by %s\n", ls_ddp_backend(t->net));
    }
    local_introduce(t);
    cli_flush(stdout);
}

/* ---- one step ----------------------------------------------------------------------------- */

void trainer_next_batch(trainer *t, ls_batch *batch)
{
    while (!ls_loader_next(t->loader, batch)) {
        must(
            ls_loader_status(t->loader)); /* without an error an epoch ended, and the next begins */
    }
    federated_context(t);
}

bool trainer_in_bf16(const trainer *t)
{
    return strcmp(t->set->dtype, "bf16") == 0;
}

/* With bf16 products are computed in bfloat16; parameters, gradients and optimizer state stay
 * float32. */
static ls_tensor *loss_of(const trainer *t, const ls_batch *batch)
{
    ls_tensor *loss = NULL;
    {
        LS_AUTOCAST(trainer_in_bf16(t));
        ls_tensor *output = ls_forward(t->net, parallel_part(&t->ranks, batch->x));
        ls_tensor *y = parallel_part(&t->ranks, batch->y);
        loss = t->task.loss ? t->task.loss(t->task.arg, output, y) : parallel_loss(output, y);
    }
    return loss;
}

/* The mean in the order of a binary tree, which that over the ranks continues: with --exact layout
 * it does not depend on their number. Overwrites the values. */
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

/* With the losses of its gates, which are no part of what is reported. */
static ls_tensor *with_gates(const trainer *t, ls_tensor *mean)
{
    return t->task.experts > 0 ? ls_add(mean, ls_moe_loss(t->task.net)) : mean;
}

/* Forward and backward of one micro-batch, whose mean loss *mean becomes; only the last one of a
 * step communicates. Shards are averaged by the reducer, other micro-batches here. */
static ls_status learn_from(trainer *t, const ls_batch *batch, bool last, ls_tensor **mean)
{
    const double share = has_shards(t->set) ? 1.0 : 1.0 / (double)t->micro;
    LS_TRY(ls_ddp_set_sync(t->net, last && !ls_ddp_local(t->net)));
    *mean = loss_of(t, batch);
    ls_tensor *whole = with_gates(t, *mean);
    return t->shares.given ? ls_backward_weighted(whole, (double)batch->count)
                           : ls_backward(ls_scale(whole, share));
}

static double micro_batch(trainer *t, bool last)
{
    ls_batch batch = {.size = sizeof batch};
    ls_tensor *mean = NULL;
    double loss = 0.0;
    trainer_next_batch(t, &batch);
    LS_SCOPE;
    LS_CHECK(learn_from(t, &batch, last, &mean));
    LS_CHECK(ls_item(mean, &loss));
    return loss;
}

/* Forwards and backwards; t->losses become the losses of the micro-batches. */
static ls_status add_gradients(trainer *t)
{
    if (t->ranks.pipeline != NULL) {
        return trainer_pipeline_step(t);
    }
    for (int64_t k = 0; k < t->micro; k++) {
        t->losses[k] = micro_batch(t, k == t->micro - 1);
    }
    return LS_OK;
}

/* Limits the gradient's norm, which *norm becomes. It is computed without --clip, too: where it is
 * not finite, all ranks end before the weights become so. A pipeline that steps itself looks
 * itself. */
static ls_status limit_gradients(trainer *t, double *norm)
{
    const ls_clip_grad_norm_options clipping = parallel_clip_options(&t->ranks);
    const double most = t->set->clip > 0.0 ? t->set->clip : INFINITY;
    *norm = -1.0;
    return t->ranks.steps || served_workers(t) > 0
               ? LS_OK
               : ls_clip_grad_norm(t->net, most, &clipping, norm);
}

/* Other ranks may have a finite one, and wait for this one in the next step. */
static ls_status check_loss(double loss)
{
    if (isfinite(loss)) {
        return LS_OK;
    }
    (void)ls_fail(
        LS_ERR_INVALID,
        "the loss is %g on rank %d, though the gradient is finite; look for a division by "
        "zero or a logarithm of 0",
        loss, ls_rank());
    (void)ls_group_abort(ls_world(), ls_error_message());
    return LS_ERR_INVALID;
}

/* *loss becomes this replica's mean over the micro-batches. */
static ls_status find_gradients(trainer *t, double *loss, double *norm)
{
    LS_TRY(add_gradients(t));
    *loss = mean_of(t->losses, t->micro);
    LS_TRY(limit_gradients(t, norm));
    return check_loss(*loss);
}

/* The last checkpoint is finite, and still being written perhaps. */
static _Noreturn void end_in_step(const trainer *t, int64_t step)
{
    char why[1024];
    (void)snprintf(why, sizeof why, "%s", ls_error_message());
    if (t->checkpoint != NULL) {
        (void)ls_checkpoint_wait(t->checkpoint);
    }
    give_up(EXIT_FAILURE, "step %lld: %s", (long long)step, why);
}

void trainer_set_rate(trainer *t, int64_t step)
{
    t->lr = ls_schedule_lr(step, &t->schedule);
    if (t->optim != NULL) {
        ls_optim_set_lr(t->optim, t->lr);
    }
}

ls_status trainer_replay_step(trainer *t, int64_t step)
{
    trainer_set_rate(t, step);
    return add_gradients(t);
}

/* Micro-batch k of a captured step. Its tensors end with it, but for the loss. */
static ls_status captured_micro_batch(trainer *t, int64_t k, ls_tensor *const *in, ls_tensor **out)
{
    const ls_batch batch = {.size = sizeof batch, .x = in[2 * k], .y = in[2 * k + 1]};
    ls_tensor *mean = NULL;
    ls_scope *scope = ls_scope_enter();
    ls_status status = ls_captured_step_begin(&t->contexts[k]);
    status = status < 0 ? status : learn_from(t, &batch, k == t->micro - 1, &mean);
    status = status < 0 ? status : ls_scope_suspend(scope);
    if (status == LS_OK) {
        out[k] = ls_detach(mean);
        status = ls_scope_resume(scope);
    }
    ls_scope_leave(scope);
    return status;
}

/* What is repeated: all of a step, but for its batches and learning rate. */
static ls_status captured_step(void *arg, ls_tensor *const *in, ls_tensor **out)
{
    trainer *t = arg;
    for (int64_t k = 0; k < t->micro; k++) {
        LS_TRY(captured_micro_batch(t, k, in, out));
    }
    LS_TRY(limit_gradients(t, &t->norm));
    LS_TRY(ls_optim_step(t->optim));
    ls_optim_zero_grad(t->optim);
    return LS_OK;
}

/* The loader ends a batch with the next one. */
static ls_status run_captured(trainer *t, double *loss, double *norm)
{
    ls_tensor *in[LS_CAPTURED_MAX];
    LS_SCOPE;
    for (int64_t k = 0; k < t->micro; k++) {
        ls_batch batch = {.size = sizeof batch};
        trainer_next_batch(t, &batch);
        t->contexts[k] = batch.context;
        in[2 * k] = t->micro > 1 ? ls_clone(batch.x) : batch.x;
        in[2 * k + 1] = t->micro > 1 ? ls_clone(batch.y) : batch.y;
    }
    LS_TRY(ls_captured_run(t->captured, in, 2 * (int)t->micro, t->losses, (int)t->micro));
    *loss = mean_of(t->losses, t->micro);
    *norm = t->norm;
    return check_loss(*loss);
}

/* Returns this replica's mean loss over the micro-batches of the step. A loss or a gradient that is
 * not finite ends the program, with the weights and checkpoints as they were. */
double trainer_step(trainer *t, int64_t step, double *norm)
{
    double loss = 0.0;
    trainer_set_rate(t, step);
    if ((t->captured != NULL ? run_captured(t, &loss, norm) : find_gradients(t, &loss, norm)) < 0) {
        end_in_step(t, step + 1);
    }
    if (!t->ranks.steps && t->optim != NULL && t->captured == NULL) {
        LS_CHECK(ls_optim_step(t->optim));
        ls_optim_zero_grad(t->optim);
    }
    return loss;
}

/* Of the replicas' sums; what stages wait for each other is not measured. */
static double exposed_seconds(const trainer *t)
{
    ls_ddp_stats stats = {.size = sizeof stats};
    if (t->net == t->task.net || ls_ddp_local(t->net)) {
        return t->averaging;
    }
    LS_CHECK(ls_ddp_get_stats(t->net, &stats));
    return stats.exposed.last;
}

/* The reducers of replicas agree for the world only if they are all of it. Between two averages the
 * ranks do not speak to each other, and a stop waits for the next. */
static bool stop_requested(const trainer *t, int64_t step)
{
    bool stop = false;
    if (ls_ddp_local(t->net)) {
        LS_CHECK(local_round_ends(t->set, step) ? ls_stop_agree(ls_world(), &stop) : LS_OK);
        return stop;
    }
    if (t->ranks.pipeline == NULL && t->captured == NULL) {
        return ls_stop_requested();
    }
    LS_CHECK(ls_stop_agree(ls_world(), &stop));
    return stop;
}

/* ---- training and the summary ------------------------------------------------------------- */

void trainer_note(trainer *t, int64_t step, int64_t count, const measure *mine, double norm,
                  bool *stop)
{
    report *r = &t->report;
    r->sum.loss += mine->loss * (double)count;
    r->sum.seconds += mine->seconds * (double)count;
    r->sum.exposed += mine->exposed * (double)count;
    r->steps += count;
    trainer_record_step(t, step, mine, norm);
    r->done = step;
    if (served_meet(t, &r->done, stop)) {
        save(t, r->done, count, *stop || r->done == t->set->steps);
    }
    trainer_report_step(t, step);
}

/* Trains one step and records it. Returns whether a stop was requested, on all ranks after the same
 * step. */
static bool one_step(trainer *t, int64_t step)
{
    if (served_begin(t, &step)) { /* a server; the workers have met after `step` steps */
        const bool stop = ls_stop_requested();
        save(t, step, 1, stop || step == t->set->steps);
        t->report.done = step;
        return stop;
    }
    double before = ls_time(), norm;
    local_begin(t, step);
    double loss = trainer_step(t, step, &norm);
    t->averaging = local_end_step(t, step + 1);
    const measure mine = {loss * shares_weight(t), ls_time() - before, exposed_seconds(t)};
    bool stop = stop_requested(t, step + 1);
    shares_step(t, step + 1, mine.seconds);
    trainer_note(t, step + 1, 1, &mine, norm, &stop);
    return stop;
}

static void run_steps(trainer *t)
{
    const trainer_options *s = t->set;
    report *r = &t->report;
    live_start(&r->line, stdout);
    r->due = t->start + 1;
    r->done = t->start;
    while (r->done < s->steps &&
           !(federated_is_on(t) ? federated_round(t) : one_step(t, r->done))) {
        if (s->eval_every && r->done % s->eval_every == 0 && r->done < s->steps) {
            trainer_evaluate_between(t, r->done);
        }
    }
    live_end(&r->line);
    if (r->done < s->steps && ls_rank() == 0) {
        (void)printf("stopped after step %lld of %lld, as a signal asked\n", (long long)r->done,
                     (long long)s->steps);
    }
}

/* A rank counts as identical if it has what the first rank with its parameters has; the hash is
 * made of those of all stages and parts. */
static void compare_replicas(trainer *t)
{
    const parallel *p = &t->ranks;
    ls_group *copies = parallel_copies(p);
    LS_CHECK(ls_replicas_identical(t->net, copies, &t->identical, &t->hash));
    if (p->mesh != NULL) {
        const uint64_t place = 2 * (uint64_t)parallel_place(p) + 1;
        const bool alone = p->alike == NULL || ls_group_rank(p->alike) == 0;
        const bool first = alone && parallel_is_first_copy(p);
        uint64_t sums[2] = {ls_group_rank(copies) == 0 ? (uint64_t)t->identical : 0,
                            first ? ls_module_hash(t->task.net) * place : 0};
        LS_CHECK(ls_all_reduce(ls_world(), sums, sums, 2, LS_UINT64, LS_SUM,
                               LS_OPTIONS(ls_collective_options, .tag = "replicas"), NULL));
        t->identical = (int)sums[0];
        t->hash = sums[1];
    }
}

void trainer_train(trainer *t)
{
    if (t->set->graph) {
        must(LS_STATUS_OF(t->captured = ls_captured_new(captured_step, t)));
    }
    trainer_evaluate_before(t);
    double started = ls_time();
    run_steps(t);
    t->seconds = ls_time() - started;
    must_end_finite(t->task.net, t->report.done, t->checkpoint);
    trainer_evaluate(t, t->report.done, t->report.done > t->start);
    compare_replicas(t);
    trainer_export(t);
}

static void print_captured(const trainer *t)
{
    const char *why = ls_captured_why(t->captured);
    if (t->captured != NULL && why[0] != '\0') {
        (void)printf("no step was captured: %s\n", why);
    } else if (t->captured != NULL) {
        (void)printf("%lld of the steps were replays of a captured one\n",
                     (long long)ls_captured_replays(t->captured));
    }
}

int trainer_end(trainer *t, const char *note)
{
    bool good = t->identical == ls_world_size() && t->odd == NULL;
    if (ls_rank() == 0) {
        trainer_print_summary(t, note);
        print_captured(t);
    }
    records_close(&t->records);
    must(ls_checkpoint_free(t->checkpoint));
    must(ls_pipeline_free(t->ranks.pipeline));
    ls_captured_free(t->captured);
    ls_optim_free(t->optim);
    ls_module_free(t->net);
    served_close(t);
    parallel_close(&t->ranks);
    ls_loader_free(t->loader);
    ls_sampler_free(t->sampler);
    shares_close(t);
    federated_close(t);
    free(t->command);
    run_file_free(t->set->run);
    free(t->task.config);
    free(t->export_file);
    free(t->micro_batches);
    free(t->contexts);
    free(t->experts.rows);
    free(t->losses);
    free(t);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
