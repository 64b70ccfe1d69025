/* Divisions of the same gradients, timed in turns; see turns.c. */
#ifndef LS_REDUCE_TURNS_H
#define LS_REDUCE_TURNS_H

#include <stdbool.h>

#define LS__TRIED 3 /* divisions that are measured before others are searched for */
#define LS__FOUND 2 /* divisions that the search finds */
#define LS__DIVISIONS (LS__TRIED + LS__FOUND)
#define LS__DIVISION_SAMPLES 6  /* synchronised backwards with each that count; one more does not */
#define LS__COMPARED_SAMPLES 16 /* as many at most when they are compared; both are even */

typedef struct ls__turns {
    int division;   /* of the backward that comes next, or the one that stays */
    bool settled;   /* it stays */
    int stage;      /* 0: the tried ones are measured; then those of `kept` are compared … */
    int round;      /* … with one backward each in a round */
    int backwards;  /* all of them, also those that do not count */
    double seconds; /* which they took on this rank */
    bool kept[LS__DIVISIONS];
    float took[LS__DIVISIONS][LS__COMPARED_SAMPLES]; /* seconds */
} ls__turns;

void ls__turns_start(ls__turns *t);
/* The number of the sample that comes next; -1: it does not count, as in a stage's first round, because
 * in the first backward with a division memory and programs of new sizes are made. */
int ls__turns_sample(const ls__turns *t);
/* A backward with `division` took so long. True: the stage is over. Then the ranks bring `took` together,
 * so that all choose the same, and call ls__turns_choose. */
bool ls__turns_took(ls__turns *t, float seconds);
/* Begins the next stage, or settles. */
void ls__turns_choose(ls__turns *t);
/* Of the last stage's samples of the division that stays. */
float ls__turns_median(const ls__turns *t);
/* Seconds that the search took longer than as many backwards with the division that stays. */
double ls__turns_cost(const ls__turns *t);

/* Of up to LS__COMPARED_SAMPLES. */
float ls__samples_median(const float *samples, int count);

#endif
