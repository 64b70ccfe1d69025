/* The files with the numbers of a run: --log, --tensorboard, --log-losses. */
#ifndef PROGRAMS_RECORDS_H
#define PROGRAMS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "step_log.h"
#include "tensorboard.h"

#define SCORES_MAX 4

/* One result of an evaluation. */
typedef struct score {
    const char *name; /* "held-out loss"; in files "held_out_loss" */
    double value;
    bool percent; /* a share in [0,1], printed in percent */
} score;

/* The numbers of a step; means over the ranks. */
typedef struct record {
    int64_t step; /* steps so far, including this one */
    double loss, lr;
    double grad_norm;        /* before clipping; negative: not computed */
    double seconds, exposed; /* of the step, and of waiting for communication in it */
    double per_second;       /* units per second, over all ranks */
    const char *unit;        /* "tokens" */
    const char *dtype;       /* of training: "float32", "bf16" */
} record;

/* Only rank 0 has files open. */
typedef struct records {
    step_log json, losses;
    tensorboard *board;
    bool wanted; /* on all ranks: at least one file is written */
} records;

/* Opens the files; NULL: none of this kind. A run that resumes after step `start` > 0 continues
 * them. */
void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start);
void records_step(records *r, const record *step);
void records_scores(records *r, int64_t step, const score *scores, int count);
void records_close(records *r);

#endif
