/* SPDX-License-Identifier: Apache-2.0 */
/* The files with the numbers of a run: --log, --tensorboard, --log-losses. */
#ifndef PROGRAMS_RECORDS_H
#define PROGRAMS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include <lockstep/event_log.h>

#define SCORES_MAX 4

/* One result of an evaluation. */
typedef struct score {
    const char *name; /* "held-out loss"; in files "held_out_loss" */
    double value;
    bool percent; /* a share in [0,1], printed in percent */
} score;

/* Of a process: resident memory so far, of the rank with most, and what was expected. */
typedef struct memory_use {
    double peak_bytes, estimate_bytes; /* 0: no estimate */
} memory_use;

/* Of a step's tokens on all ranks, all layers together. */
typedef struct expert_shares {
    int64_t experts;        /* 0: the model has none */
    const int64_t *rows;    /* [experts] that each has computed; borrowed */
    int64_t lost;           /* choices that found no place */
    double dropped;         /* the same, of all choices */
    double busiest, idlest; /* rows of an expert, by their mean */
} expert_shares;

/* The numbers of a step; means over the ranks. */
typedef struct record {
    int64_t step; /* steps so far, including this one */
    double loss, lr;
    double grad_norm; /* before clipping; negative: not computed */
    expert_shares experts;
    double seconds, exposed; /* of the step, and of waiting for communication in it */
    double per_second;       /* units per second, over all ranks */
    const char *unit;        /* "tokens" */
    const char *dtype;       /* of training: "float32", "bf16" */
} record;

typedef struct records {
    ls_event_log *json, *losses, *board; /* NULL: not asked for */
    bool wanted;                         /* at least one is */
} records;

/* Opens the files; NULL: none of this kind. A run that resumes after step `start` > 0 continues
 * them. */
void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start);
void records_step(records *r, const record *step);
void records_scores(records *r, int64_t step, const score *scores, int count,
                    const memory_use *memory);
void records_close(records *r);

#endif
