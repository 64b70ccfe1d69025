/* Where the numbers of a run are kept for later: --log, --tensorboard, --log-losses. */
#ifndef PROGRAMS_RECORDS_H
#define PROGRAMS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "step_log.h"
#include "tensorboard.h"

#define SCORES_MAX 4

/* One of the numbers an evaluation finds. */
typedef struct score {
    const char *name; /* "held-out loss"; in files "held_out_loss" */
    double value;
    bool percent; /* a share, 0 to 1, that people read in percent */
} score;

/* What a step was; means over the ranks. */
typedef struct record {
    int64_t step; /* steps done, this one included */
    double loss, lr;
    double grad_norm;        /* before clipping; negative: not known */
    double seconds, exposed; /* of the step; of it, waiting for communication */
    double per_second;       /* units of all ranks */
    const char *unit;        /* "tokens" */
    const char *dtype;       /* of training: "float32", "bf16" */
} record;

/* Only rank 0 holds files. */
typedef struct records {
    step_log json, losses;
    tensorboard *board;
    bool wanted; /* on all ranks: some file was asked for */
} records;

/* NULL: not asked for. A run that goes on behind step `start` > 0 continues the files. */
void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start);
void records_step(records *r, const record *step);
void records_scores(records *r, int64_t step, const score *scores, int count);
void records_close(records *r);

#endif
