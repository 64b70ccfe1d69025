/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop that the programs share. A program supplies a *task*: a module, its loss and
 * its evaluation. The trainer does the rest: options, schedule, accumulation, clipping,
 * checkpoints, stop requests, the live line, records.
 *
 *     trainer_options o = {TRAINER_DEFAULTS .steps = 1000, .batch = 32, .lr = 0.1};
 *     trainer_read_options(&command, &o, argc, argv);
 *     trainer_init(&o);
 *     … open data, build a module …
 *     trainer *t = trainer_new(&o, &task);
 *     trainer_train(t);
 *     int status = trainer_end(t, NULL);
 *
 * A failure ends the program with an error text.
 */
#ifndef PROGRAMS_TRAINER_H
#define PROGRAMS_TRAINER_H

#include <lockstep/lockstep.h>

#include "common.h"
#include "parallel.h"
#include "records.h"
#include "run_file.h"

/* ---- flags -------------------------------------------------------------------------------- */

/* Each field has the name of its option, with _ for - (export_to: --export). */
typedef struct trainer_options {
    int64_t steps, lr_schedule_steps, batch, accum, warmup, seed, bucket_bytes, zero, shard_group,
        eval_every, every, shards;
    double lr, min_lr, momentum, beta2, weight_decay, clip;
    const char *lr_schedule, *optim, *decay, *dtype, *feed, *exact, *comm;
    const char *mesh, *schedule, *cut, *replicas, *plan; /* of a pipeline; NULL: not given */
    const char *tensor_plan, *tensor_search;             /* of an axis tp; NULL: not given */
    ls_plan *followed; /* the plan of --plan, with which trainer_init fills in those before it */
    int64_t micro_batches, chunks;
    int64_t ahead;                    /* warm-up of 1f1b, of a plan; 0: the default */
    int64_t local_steps, local_after; /* 0: none */
    int64_t clients, per_round;       /* of federated rounds; 0: none */
    const char *outer;                /* of local steps; NULL: not given */
    const char *shares_of;            /* --shares */
    char **words;                     /* of the command, the first unused, … */
    const char *program;              /* … and its name: lockstep train gpt */
    const char *server, *replay;      /* with servers: how; and the log; NULL: not given */
    const char *replayed;             /* --replay */
    bool replays_stages;              /* … of a pipeline; parallel_complete sets it */
    int64_t workers;                  /* of --replay */
    int64_t accum_so_far; /* micro-batches in a step of the run that goes on; 0: unknown, or a new
                             run */
    bool recompute, vertical_sync, sequence;
    const char *device;  /* NULL: the processor */
    const char *backend; /* of gradients; NULL: that of the device */
    bool graph;
    const char *profile, *init, *export_to, *save, *resume, *log, *tensorboard, *log_losses;
    run_file *run;  /* all flags */
    bool described; /* the folder of --resume says the flags of its run */
} trainer_options;
/* Defaults that all programs share; the others each program chooses. */
#define TRAINER_DEFAULTS                                                                           \
    .lr_schedule_steps = -1, .accum = 1, .warmup = -1, .bucket_bytes = -1, .every = 200,           \
    .min_lr = -1.0, .momentum = 0.9, .beta2 = 0.999, .lr_schedule = "cosine", .optim = "adamw",    \
    .decay = "matrices", .dtype = "float32", .feed = "split", .exact = "run", .shards = 8,

/* Reads the command's own options and those of the trainer; see read_options. With --resume those
 * that are not given become those of the run that saved there. What `own` points to must live as
 * long as the trainer. */
void trainer_read_options(const cli_command *own, trainer_options *options, int argc, char **argv);

/* The micro-batches of a rank in a step: --accum, --micro-batches of a pipeline, or with --exact
 * layout its part of --shards. After trainer_init; ends the program when the shards cannot be
 * divided. */
int64_t trainer_micro_batches(const trainer_options *options);

/* ---- training ----------------------------------------------------------------------------- */

typedef struct trainer_task {
    void *arg;
    ls_module *net;         /* taken */
    const char *divided_by; /* axes of --mesh that may divide it: "tp", "tp,cp"; NULL: none */
    int64_t experts;        /* in a layer of ls_moe_new, whose loss is added; 0: it has none */
    ls_dataset *data; /* to learn from; borrowed. The last samples of an epoch that do not make a
                         whole batch on every rank are left out */
    const char *unit; /* "tokens", "images": the unit of the speed */
    int64_t units;    /* units per sample */
    int64_t memory_bytes; /* that a rank is expected to need; 0: unknown */
    /* Loads --init's weights into the plain module. NULL: ls_module_load_safetensors. */
    ls_status (*load)(ls_module *net, const char *path);
    parallel_show *show;   /* gives tensors the names of an export. NULL: they keep theirs */
    char *config;          /* the config.json of an export, from malloc; taken. NULL: none */
    const char *tokenizer; /* folder or file whose files an export copies; borrowed. NULL: none */
    /* The mean loss of a batch, a scalar, from net(x) and y. NULL: their cross-entropy. */
    ls_pipeline_loss_fn loss;
    /* Judges the plain module on these ranks, in training mode before and after; all ranks, all
     * with the same result. Returns how many of out[SCORES_MAX] it filled. */
    int (*evaluate)(void *arg, ls_module *net, const parallel *ranks, score *out);
} trainer_task;

typedef struct trainer trainer;

void trainer_init(trainer_options *options); /* ls_init; reads --plan */

/* Wraps the net, makes optimizer, loader and records, and loads the checkpoint of --resume; with
 * --profile it measures the net and ends the program. Borrows the options; copies the task. */
trainer *trainer_new(const trainer_options *options, const trainer_task *task);

ls_module *trainer_net(const trainer *t); /* the module without its wrapper; borrowed */

/* Prints the model and the batch: "resnet18: … parameters; 2 ranks x 32 images x 1", the
 * samples of a batch in `units` and the batches of a step. For rank 0. */
void trainer_introduce(const trainer *t, const char *model, const char *units);

/* Trains to the last step or until a stop request, then evaluates. */
void trainer_train(trainer *t);

/* Prints the summary, with `note` after the scores unless it is NULL, and frees the trainer.
 * Returns the program's exit status: not 0 when replicas differ or an evaluation's loss was not
 * finite. */
int trainer_end(trainer *t, const char *note);

#endif
