/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings that end at a held-out loss, one for each seed: the rows of `lockstep bench learn` and
 * `lockstep bench straggler`, by what they compare. */
#ifndef PAPER_TO_LOSS_H
#define PAPER_TO_LOSS_H

#include "paper.h"

enum { PAPER_SEEDS_MAX = 10 };

typedef struct paper_trainings {
    const json_t *row[PAPER_SEEDS_MAX]; /* borrowed */
    double seconds[PAPER_SEEDS_MAX];    /* until the loss is reached */
    int count, reaching;
    bool reached, finite; /* by all seeds */
} paper_trainings;

/* Those rows whose `key` is `value`. */
paper_trainings paper_trainings_of(const json_t *rows, const char *key, const char *value);
/* The value below which a share of them are. */
double paper_at_share(const double *values, int count, double share);
/* The median of a key of the rows. */
double paper_median_of(const paper_trainings *t, const char *key);
/* The seconds, a new list. */
json_t *paper_seconds_of(const paper_trainings *t);
json_t *paper_number_if(bool there, double value); /* else null */

/* Beside others, with the same seeds: the ratios of the seconds, and who is sooner with all seeds,
 * of which there are several, else "undecided"; "-": neither reaches the loss. */
typedef struct paper_beside {
    bool both;    /* reach the loss */
    double ratio; /* the median */
    const char *sooner;
} paper_beside;
paper_beside paper_compare(const paper_trainings *t, const char *name, const paper_trainings *other,
                           const char *other_name);

/* The held-out losses of each seed: a table of its own, and rows of it. */
json_t *paper_curves(paper *p, const char *title, const char *key);
void paper_curve_add(json_t *table, const paper_trainings *t, const char *name);
void paper_curves_plot(paper *p, const json_t *table, const char *title, const char *key);

#endif
