/* SPDX-License-Identifier: Apache-2.0 */
/* The flags that every training program has, after its own, and what they may be. */
#include "trainer_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIONS_MAX 96
#define LR_SCHEDULES "constant|linear|cosine"
#define SCHEDULES "naive|gpipe|1f1b|interleaved|zb-h1|pipedream|pipedream-2bw"

/* Until there were pipelines, it was the schedule of the learning rate. */
static int read_schedule(const cli_command *command, const cli_option *option, const char *text)
{
    if (cli_choice(LR_SCHEDULES, text) >= 0) {
        return cli_wrong(command,
                         "--schedule is that of a pipeline; the schedule of the learning rate is "
                         "--lr-schedule %s",
                         text);
    }
    if (cli_choice(option->choices, text) < 0) {
        return cli_wrong(command,
                         "--schedule is \"%s\"; give naive, gpipe, 1f1b, interleaved, zb-h1, "
                         "pipedream or pipedream-2bw",
                         text);
    }
    *(const char **)option->value = text;
    return 0;
}

/* Defaults that follow from other options. */
static void complete(trainer_options *o)
{
    o->lr_schedule_steps = o->lr_schedule_steps < 0 ? o->steps : o->lr_schedule_steps;
    o->warmup = o->warmup < 0 ? (o->lr_schedule_steps * 8 + 99) / 100 : o->warmup;
    o->min_lr = o->min_lr < 0.0 ? o->lr / 10.0 : o->min_lr;
    if (o->local_steps == 0 && o->described) { /* they may be those of the run so far */
        o->local_after = o->clients = o->per_round = 0;
        o->outer = NULL;
    }
}

/* As ls_schedule_lr, which would refuse it in the first step. */
static void check_schedule(const trainer_options *o)
{
    if (strcmp(o->lr_schedule, "constant") != 0 &&
        (o->lr_schedule_steps < 1 || o->warmup > o->lr_schedule_steps)) {
        give_up(EXIT_USAGE,
                "--lr-schedule %s of %lld steps with %lld of warm-up; it needs one step at least, "
                "warm-up included: --lr-schedule-steps and --warmup set them",
                o->lr_schedule, (long long)o->lr_schedule_steps, (long long)o->warmup);
    }
}

/* A text that is no hook, or one that cannot be used here, ends the program before anything is
 * opened. */
static void check_hook(const trainer_options *o)
{
    ls_comm_hook hook = {.size = sizeof hook};
    if (!trainer_has_hook(o)) {
        return;
    }
    if (ls_comm_hook_parse(o->comm, &hook) < 0) {
        give_up(EXIT_USAGE, "--comm: %s", ls_error_message());
    }
    if (hook.free != NULL) {
        hook.free(hook.state);
    }
    if (strcmp(o->exact, "layout") == 0) {
        give_up(EXIT_USAGE,
                "--comm %s with --exact layout: a hook sends other bits on other numbers of ranks; "
                "leave one of them out, or give --comm plain",
                o->comm);
    }
    if (!parallel_is_whole(o)) {
        give_up(EXIT_USAGE,
                "--comm %s with %s: hooks are for replicas of whole models in this version, since "
                "ranks with other parts would save their residuals under one name; give --comm "
                "plain, or --mesh dp alone",
                o->comm, o->plan != NULL ? "--plan" : "--mesh");
    }
}

static void check_zero(const trainer_options *o)
{
    if (o->shard_group > 0 && o->zero == 0) {
        give_up(EXIT_USAGE,
                "--shard-group %lld without --zero: nothing is divided; give --zero 1, 2 or 3, or "
                "leave --shard-group out",
                (long long)o->shard_group);
    }
}

/* A captured step is one function of its batches. */
static void check_graph(const trainer_options *o)
{
    const char *other = strcmp(o->exact, "layout") == 0 ? "--exact layout"
                        : o->server != NULL             ? "--server"
                        : o->local_steps > 0            ? "--local-steps"
                        : o->shares_of != NULL          ? "--shares"
                        : o->zero > 0                   ? "--zero"
                        : trainer_has_hook(o)           ? "--comm"
                        : o->plan != NULL               ? "--plan"
                        : o->mesh != NULL               ? "--mesh"
                                                        : NULL;
    if (o->graph && other != NULL) {
        give_up(EXIT_USAGE,
                "--graph with %s: a captured step is that of whole replicas, which average their "
                "gradients as they are; leave one of them out",
                other);
    }
    if (o->graph && o->accum > LS_CAPTURED_MAX / 2) {
        give_up(EXIT_USAGE,
                "--graph with --accum %lld: a captured step has at most %d micro-batches; give "
                "fewer, of a larger --batch",
                (long long)o->accum, LS_CAPTURED_MAX / 2);
    }
}

static void check(const trainer_options *o)
{
    check_graph(o);
    check_schedule(o);
    check_zero(o);
    check_hook(o);
    local_check(o);
    federated_check(o);
    shares_check(o);
    served_check(o);
}

/* Appends rows to a table. */
static void add(cli_command *command, cli_option *table, const cli_option *rows, int count)
{
    assert(command->count + count <= OPTIONS_MAX);
    memcpy(table + command->count, rows, (size_t)count * sizeof *rows);
    command->options = table;
    command->count += count;
}

static void add_pipeline(cli_command *command, cli_option *table, trainer_options *o)
{
    const cli_option rows[] = {
        {"mesh", CLI_TEXT, &o->mesh, .value_name = "AXES",
         .help = "pp=4,dp=2: stages of a pipeline and replicas; tp: parts of each layer, cp: parts "
                 "of each sequence; without it all ranks are replicas"},
        {"sequence", CLI_SWITCH, &o->sequence, .help = "with an axis tp: sequence parallelism"},
        {"schedule", CLI_READ, &o->schedule, .choices = SCHEDULES, .value_name = "NAME",
         .fallback = "1f1b", .read = read_schedule,
         .help = "schedule of a pipeline: naive, gpipe, 1f1b, interleaved, zb-h1, pipedream or "
                 "pipedream-2bw; lockstep plan schedule draws them"},
        {"micro-batches", CLI_COUNT, &o->micro_batches, .low = 1, .high = 32768, .fallback = "8",
         .help = "micro-batches of a pipeline in a step"},
        {"cut", CLI_TEXT, &o->cut, .value_name = "PARTS", .fallback = "evenly",
         .help = "first part of each stage but the first, as in \"blocks.2 head\""},
        {"replicas", CLI_TEXT, &o->replicas, .value_name = "LIST",
         .help =
             "ranks of each stage, as in 3,1, which take its micro-batches in turns; with gpipe "
             "and 1f1b"},
        {"plan", CLI_TEXT, &o->plan, .value_name = "FILE",
         .help = "mesh, stages and steps as lockstep plan auto or plan pipeline has planned them"},
        {"profile", CLI_TEXT, &o->profile, .value_name = "FILE",
         .help = "measure the parts of the model on one batch into FILE, and end (lockstep plan "
                 "profile)"},
        {"tensor-plan", CLI_TEXT, &o->tensor_plan, .value_name = "WORDS", .fallback = "the model's",
         .help = "with an axis tp: which parameters are cut, as lockstep plan tensor prints it"},
        {"tensor-search", CLI_TEXT, &o->tensor_search, .value_name = "MESH",
         .help = "find and print such words for a mesh, and end (lockstep plan tensor)"},
        {"chunks", CLI_COUNT, &o->chunks, .low = 1, .high = 4096, .fallback = "2",
         .help = "stages of a rank with --schedule interleaved"},
        {"vertical-sync", CLI_SWITCH, &o->vertical_sync,
         .help = "with --schedule pipedream all stages of a micro-batch have weights of one step"},
        {"recompute", CLI_SWITCH, &o->recompute,
         .help =
             "keep only the inputs of blocks, or with --schedule gpipe those of stages, and run "
             "them again in backward"},
    };
    add(command, table, rows, (int)(sizeof rows / sizeof rows[0]));
}

static void add_zero(cli_command *command, cli_option *table, trainer_options *o)
{
    const cli_option rows[] = {
        {"zero", CLI_COUNT, &o->zero, .low = 0, .high = 3,
         .help = "divide among the ranks: 1, the optimizer's state; 2, gradients as well; 3, "
                 "parameters, too"},
        {"shard-group", CLI_COUNT, &o->shard_group, .low = 0, .high = 1e6,
         .help = "with --zero: groups of this many neighbouring ranks divide it, each all of it; "
                 "0: all ranks"},
    };
    add(command, table, rows, (int)(sizeof rows / sizeof rows[0]));
}

static void add_local(cli_command *command, cli_option *table, trainer_options *o)
{
    const cli_option rows[] = {
        {"local-steps", CLI_COUNT, &o->local_steps, .low = 0, .high = 1e12,
         .help = "steps that each rank takes alone between two averages of the parameters (local "
                 "SGD); 0: gradients are averaged in every step"},
        {"local-after", CLI_COUNT, &o->local_after, .low = 0, .high = 1e12,
         .help = "steps before local ones, in which gradients are averaged (post-local SGD)"},
        {"outer", CLI_TEXT, &o->outer, .value_name = "NAME", .fallback = "average",
         .help = "what an average becomes: average, diloco:lr=0.7,momentum=0.9 or "
                 "slowmo:lr=1,momentum=0.5"},
        {"clients", CLI_COUNT, &o->clients, .low = 0, .high = 1e6,
         .help = "pieces of the data, each of which one rank reads (federated averaging); 0: none"},
        {"per-round", CLI_COUNT, &o->per_round, .low = 0, .high = 1e6,
         .help = "clients that are drawn for a round of --local-steps steps"},
        {"shares", CLI_TEXT, &o->shares_of, .value_name = "HOW", .fallback = "even",
         .help = "samples of each rank in a step: even, auto (by measured speed), or a list with "
                 "the sum of --batch times the ranks, as in 26,6"},
    };
    add(command, table, rows, (int)(sizeof rows / sizeof rows[0]));
}

static void add_server(cli_command *command, cli_option *table, trainer_options *o)
{
    const cli_option rows[] = {
        {"server", CLI_TEXT, &o->server, .value_name = "HOW",
         .help = "parameter servers on the last ranks: sync, async or stale=N, and after a colon "
                 "servers=N, backup=N, colocated, as in async:servers=2"},
        {"log-replay", CLI_TEXT, &o->replay, .value_name = "FILE",
         .help = "with --server, --local-steps or --schedule pipedream: write what made which "
                 "version; lockstep replay FILE makes them again"},
        {"replay", CLI_TEXT, &o->replayed, .value_name = "FILE",
         .help = "of lockstep replay: make the versions of a log again, and end"},
        {"workers", CLI_COUNT, &o->workers, .low = 0, .high = 65536,
         .help = "of lockstep replay: the workers of the log, or copies of its pipeline"},
    };
    add(command, table, rows, (int)(sizeof rows / sizeof rows[0]));
}

/* ---- files that are written ----------------------------------------------------------------- */

static const char *text_of(const cli_command *command, const char *name)
{
    for (int i = 0; i < command->count; i++) {
        const cli_option *o = &command->options[i];
        if (o->kind == CLI_TEXT && o->name != NULL && strcmp(o->name, name) == 0) {
            return *(const char *const *)o->value;
        }
    }
    return NULL;
}

/* The file that the option writes, for --export that of the weights, in `place`; NULL: none. */
static const char *written_by(const cli_command *command, const char *name, char *place,
                              size_t bytes)
{
    const char *path = text_of(command, name);
    if (path != NULL && strcmp(name, "export") == 0) {
        trainer_export_file(path, place, bytes);
        return place;
    }
    return path;
}

/* The file that the option names; of a folder of --init the weights, in `place`. */
static const char *read_by(const cli_command *command, const char *name, char *place, size_t bytes)
{
    const char *path = text_of(command, name);
    if (path != NULL && strcmp(name, "init") == 0) {
        trainer_export_file(path, place, bytes); /* of one name in all such folders */
        return place;
    }
    return path;
}

/* A run must not replace a file that it reads, nor write one file twice. */
static int check_written(const cli_command *command)
{
    static const char *const written[] = {"log",         "log-losses", "log-replay",
                                          "tensorboard", "profile",    "export"},
                             *const read[] = {"data", "held-out", "tokenizer", "init", "plan"};
    const size_t outputs = sizeof written / sizeof *written, inputs = sizeof read / sizeof *read;
    int status = 0;
    for (size_t w = 0; w < outputs; w++) {
        char to[4400], from[4400];
        const char *path = written_by(command, written[w], to, sizeof to);
        for (size_t r = 0; r < inputs && status == 0; r++) {
            status = cli_keep_input(command, written[w], path,
                                    read_by(command, read[r], from, sizeof from));
        }
        for (size_t e = 0; e < w && path != NULL && status == 0; e++) {
            const char *earlier = text_of(command, written[e]);
            if (earlier != NULL && strcmp(earlier, path) == 0) {
                status = cli_wrong(command, "--%s and --%s write the same file, \"%s\"; give two",
                                   written[e], written[w], path);
            }
        }
    }
    return status;
}

/* ---- reading them ---------------------------------------------------------------------------- */

static void add_devices(cli_command *command, cli_option *all, trainer_options *o)
{
    const cli_option table[] = {
        {"device", CLI_TEXT, &o->device, .value_name = "NAME", .fallback = "cpu",
         .help =
             "where to compute: cpu, or cuda for the GPU with the number of the rank on its host"},
        {"backend", CLI_TEXT, &o->backend, .value_name = "NAME",
         .help = "what averages gradients: native, through the host, or nccl, on the GPUs; without "
                 "it nccl with --device cuda where it is installed"},
        {"graph", CLI_SWITCH, &o->graph,
         .help = "with --device cuda, of several ranks over nccl: record the third step and repeat "
                 "it, all kernels by one start (a CUDA graph)"},
    };
    add(command, all, table, (int)(sizeof table / sizeof table[0]));
}

/* The command's own options, those that all have, and those of a pipeline. */
static void read_tables(const cli_command *own, const cli_option *shared, int count,
                        trainer_options *o, int argc, char **argv)
{
    cli_option all[OPTIONS_MAX];
    cli_command command = *own;
    command.count = 0;
    command.ranked = true;
    add(&command, all, own->options, own->count);
    add(&command, all, shared, count);
    add_devices(&command, all, o);
    add_pipeline(&command, all, o);
    add_zero(&command, all, o);
    add_local(&command, all, o);
    add_server(&command, all, o);
    read_options(&command, argc, argv);
    o->run = run_file_new(&command);
    const int64_t accum = o->accum;
    o->described = o->resume != NULL && run_file_read(o->run, o->resume, false, argv);
    run_file_note(o->run, own->count);
    const int status = check_written(&command);
    if (status != 0) {
        exit(status);
    }
    parallel_resume_step(o, accum);
    o->words = argv;
    o->program = own->name;
}

static void complete_and_check(trainer_options *o)
{
    complete(o);
    check(o);
    parallel_complete(o);
}

void trainer_read_options(const cli_command *own, trainer_options *o, int argc, char **argv)
{
    const cli_option shared[] = {
        {"steps", CLI_COUNT, &o->steps, .low = 1, .high = 1e12, .help = "optimizer steps"},
        {"batch", CLI_COUNT, &o->batch, .low = 1, .high = 1e6, .help = "samples of a micro-batch"},
        {"accum", CLI_COUNT, &o->accum, .low = 1, .high = 1e6,
         .help = "micro-batches of a rank in a step"},
        {"optim", CLI_CHOICE, &o->optim, .choices = "sgd|adamw", .help = "optimizer"},
        {"lr", CLI_NUMBER, &o->lr, .low = 0, .high = 1e3, .help = "highest learning rate"},
        {"lr-schedule", CLI_CHOICE, &o->lr_schedule, .choices = LR_SCHEDULES, .value_name = "NAME",
         .help = "learning rate over the steps: constant, or linear or cosine down to --min-lr"},
        {"min-lr", CLI_NUMBER, &o->min_lr, .low = -1, .high = 1e3,
         .help = "learning rate at the end of the schedule; -1: a tenth of --lr"},
        {"lr-schedule-steps", CLI_COUNT, &o->lr_schedule_steps, .low = -1, .high = 1e12,
         .help = "steps of the schedule; -1: --steps. Runs that divide one training among them "
                 "(--save, --resume) need the same number: its steps in all"},
        {"warmup", CLI_COUNT, &o->warmup, .low = -1, .high = 1e12,
         .help = "steps of warm-up; -1: 8 % of --lr-schedule-steps"},
        {"momentum", CLI_NUMBER, &o->momentum, .low = 0, .high = 1, .help = "momentum of sgd"},
        {"beta2", CLI_NUMBER, &o->beta2, .low = 0, .high = 0.999999999,
         .help = "decay of adamw's second moment"},
        {"weight-decay", CLI_NUMBER, &o->weight_decay, .low = 0, .high = 1e3,
         .help = "weight decay"},
        {"decay", CLI_CHOICE, &o->decay, .choices = "matrices|all", .value_name = "NAME",
         .help = "parameters that decay: all, or matrices, without biases and norms"},
        {"clip", CLI_NUMBER, &o->clip, .low = 0, .high = 1e9,
         .help = "largest norm of the gradient; 0: no limit"},
        {"dtype", CLI_CHOICE, &o->dtype, .choices = "float32|bf16",
         .help = "bf16: products in bfloat16, weights in float32"},
        {"seed", CLI_COUNT, &o->seed, .low = 0, .high = 9e15,
         .help = "seed of weights, order and dropout"},
        {"bucket-bytes", CLI_COUNT, &o->bucket_bytes, .low = -1, .high = 1e12,
         .help = "bytes of a gradient bucket; -1: Lockstep chooses"},
        {"comm", CLI_TEXT, &o->comm, .value_name = "HOOK",
         .help = "send less: bf16, powersgd:rank=4, top_k, random_k, int8, one_bit; plain: all"},
        {"feed", CLI_CHOICE, &o->feed, .choices = "split|shared|scatter", .value_name = "NAME",
         .help = "split: each rank reads its part of an epoch; shared: each reads all of it; "
                 "scatter: rank 0 reads for all"},
        {"exact", CLI_CHOICE, &o->exact, .choices = "run|layout", .value_name = "NAME",
         .help = "layout: equal bits on 1, 2, 4, ... ranks, up to --shards; --batch is then the "
                 "samples of a shard. run: for equal numbers of ranks"},
        {"shards", CLI_COUNT, &o->shards, .low = 1, .high = 65536,
         .help = "shards of a step with --exact layout, over all ranks: a power of two"},
        {"eval-every", CLI_COUNT, &o->eval_every, .low = 0, .high = 1e12,
         .help = "steps between evaluations; 0: none"},
        {"init", CLI_TEXT, &o->init, .value_name = "PATH",
         .help = "initial weights, as safetensors"},
        {"export", CLI_TEXT, &o->export_to, .value_name = "PATH",
         .help = "write the trained weights as safetensors; a folder, or a name with / at its end: "
                 "with config.json and tokenizer, as transformers does"},
        {"save", CLI_TEXT, &o->save, .value_name = "DIR",
         .help = "folder for checkpoints; the two newest are kept"},
        {"every", CLI_COUNT, &o->every, .low = 1, .high = 1e12,
         .help = "steps between checkpoints"},
        {"resume", CLI_TEXT, &o->resume, .value_name = "DIR",
         .help = "go on from the newest checkpoint in DIR; if DIR is that of --save and empty, "
                 "start anew"},
        {"log", CLI_TEXT, &o->log, .value_name = "FILE",
         .help = "write a line of JSON for each step and evaluation; --resume continues it"},
        {"tensorboard", CLI_TEXT, &o->tensorboard, .value_name = "DIR",
         .help = "write event files for TensorBoard"},
        {"log-losses", CLI_TEXT, &o->log_losses, .value_name = "FILE",
         .help = "write the mean loss of all ranks for each step; --resume continues it"},
    };
    read_tables(own, shared, (int)(sizeof shared / sizeof shared[0]), o, argc, argv);
    complete_and_check(o);
}
