/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's parts: trainer.c sets up and runs the steps, trainer_pipeline.c makes a step of a
 * pipeline, trainer_report.c says how it goes. */
#ifndef PROGRAMS_TRAINER_INTERNAL_H
#define PROGRAMS_TRAINER_INTERNAL_H

#include "federated.h"
#include "finite.h"
#include "local.h"
#include "parallel.h"
#include "resumed.h"
#include "served.h"
#include "shares.h"
#include "trainer.h"

#define ITEMS 6 /* at most, with local steps or with shares */

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

/* Rows that experts have computed, and choices that found no place, since the last record; this
 * rank's tokens, all layers together. */
typedef struct expert_counts {
    int64_t *rows; /* [experts], room for one more, and [experts] for those of a forward */
    int64_t dropped;
} expert_counts;

struct trainer {
    const trainer_options *set;
    trainer_task task;
    parallel ranks;
    ls_sampler *sampler;
    ls_loader *loader;
    int64_t micro;                 /* backward passes of a step */
    double *losses;                /* [micro] of them */
    ls_micro_batch *micro_batches; /* [micro], for a pipeline */
    ls_module *net;                /* wrapped */
    ls_captured *captured;         /* of --graph; NULL: none */
    ls_step_context *contexts;     /* [micro], of a captured step */
    double norm;                   /* of the gradients, which a captured step writes */
    ls_optim *optim;               /* NULL: this rank's stages have no parameters */
    double lr;                     /* of the last step */
    local_outer outer;             /* of --outer */
    char *command;                 /* of a replay log's header; NULL: none is written */
    shares shares;                 /* of --shares */
    federated fed;                 /* of --clients */
    double averaging;              /* seconds of the last step's average of parameters */
    served served;                 /* of --server */
    run_settings settings;         /* of this run */
    ls_schedule_options schedule;
    ls_checkpoint *checkpoint; /* with --save */
    bool saved;                /* this run has saved there */
    char *export_file;         /* of the weights; NULL: none */
    ls_checkpoint_item items[ITEMS];
    int item_count;
    int64_t start; /* steps done when this run began; 0 without --resume */
    records records;
    report report;
    expert_counts experts;
    double seconds; /* of training, evaluations included */
    score scores[SCORES_MAX];
    int score_count; /* of the last evaluation */
    bool judged;     /* an evaluation was finite, so what is judged is */
    const char *odd; /* the score that was not finite before training, borrowed; NULL: none */
    int identical;   /* number of identical replicas at the end, and their hash */
    uint64_t hash;
};

/* trainer.c */
void trainer_next_batch(trainer *t, ls_batch *batch);
/* Opens what a rank of `ranks` learns from. */
void trainer_open_loader(const trainer *t, int rank, int ranks, ls_sampler **sampler,
                         ls_loader **loader);
/* The numbers that a loader shows, in its order: where it is. */
#define PLACE_NUMBERS 8
typedef struct trainer_place {
    int64_t value[PLACE_NUMBERS];
} trainer_place;
trainer_place trainer_place_of(ls_loader *loader);
void trainer_place_put(ls_loader *loader, const trainer_place *place);
/* The command that makes the run of this many workers again, for a replay log. From malloc. */
char *trainer_command(const trainer_options *o, int workers);
/* The samples of a rank have changed: the next batch is the one that would have come. */
void trainer_reopen_loader(trainer *t);
/* One step of this replica, optimizer included; its mean loss. */
double trainer_step(trainer *t, int64_t step, double *norm);
/* `count` steps have ended with step number `step`: records, checkpoint, live line. */
void trainer_note(trainer *t, int64_t step, int64_t count, const measure *mine, double norm,
                  bool *stop);
/* Forwards and backwards of a step, with its learning rate. */
ls_status trainer_replay_step(trainer *t, int64_t step);
void trainer_set_rate(trainer *t, int64_t step);
bool trainer_in_bf16(const trainer *t);

/* trainer_report.c: counts the rows of each forward, where they are recorded; and begins anew. */
void trainer_count_experts(trainer *t);
void trainer_forget_counts(trainer *t);

/* Whether --comm says another hook than plain. */
bool trainer_has_hook(const trainer_options *options);

/* The file of weights of --export `to`. */
void trainer_export_file(const char *to, char *out, size_t bytes);
/* exported.c: makes and tries the place of --export before the first step, writes there after the
 * last. */
void trainer_export_prepare(trainer *t);
void trainer_export(const trainer *t);

/* profile_parts.c: of --profile; ends the program */
_Noreturn void trainer_profile(trainer *t);

/* plan_tensor.c: of --tensor-search; ends the program */
_Noreturn void trainer_search(trainer *t);

/* trainer_pipeline.c: forwards and backwards of a step; t->losses become the losses. */
ls_status trainer_pipeline_step(trainer *t);
/* This rank's part of the next sequences. */
ls_micro_batch trainer_next_micro_batch(trainer *t);

/* replay.c: makes the versions of the log of --replay again, compares them, and ends the program */
_Noreturn void trainer_replay(trainer *t);

/* trainer_report.c */
void trainer_report_step(trainer *t,
                         int64_t step); /* after `step` steps; collective if it is due */
void trainer_record_step(trainer *t, int64_t step, const measure *mine, double norm);
/* Evaluates after `step` steps; `keep`: and records the scores. Weights that are not finite end the
 * program. */
void trainer_evaluate(trainer *t, int64_t step, bool keep);
void trainer_evaluate_between(trainer *t, int64_t step);
void trainer_evaluate_before(trainer *t);
void trainer_print_summary(const trainer *t, const char *note);

#endif
