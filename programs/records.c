/* See records.h. The file of --log is JSON Lines: one object per line, which begins with its step.
 * An evaluation has a separate line. A number that is not finite is written as null.
 *
 *     {"step": 3, "dtype": "float32", "loss": 2.81, "lr": 0.002, "grad_norm": 1.1, …}
 *     {"step": 3, "held_out_loss": 2.79}
 */
#include "records.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/runtime.h>

#include "common.h"

#define DIGITS 9 /* significant digits, enough to represent a float32 exactly */

/* Only rank 0 writes; `wanted` is set on all ranks, because they average the numbers together. */
void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start)
{
    *r = (records){.wanted = json != NULL || board != NULL || losses != NULL};
    if (ls_rank() != 0) {
        return;
    }
    if (json != NULL) {
        step_log_open(&r->json, json, "log", "{\"step\": ", start);
    }
    if (losses != NULL) {
        step_log_open(&r->losses, losses, "log-losses", "", start);
    }
    if (board != NULL) {
        r->board = tensorboard_open(board, start);
    }
}

/* Converts "held-out loss" to the name in files, "held_out_loss". */
static void plain_name(const char *name, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "%s", name);
    for (char *c = out; *c; c++) {
        *c = *c == ' ' || *c == '-' ? '_' : *c;
    }
}

/* ---- steps -------------------------------------------------------------------------------- */

#define STEP_NUMBERS 6

typedef struct number {
    char name[TENSORBOARD_TAG_MAX + 1 - 6]; /* behind "train/" */
    double value;
} number;

/* Fills the numbers of a step and returns how many there are; without clipping there is no norm. */
static int numbers_of(const record *s, number out[STEP_NUMBERS])
{
    int count = 0;
    out[count++] = (number){"loss", s->loss};
    out[count++] = (number){"lr", s->lr};
    if (!(s->grad_norm < 0.0)) {
        out[count++] = (number){"grad_norm", s->grad_norm};
    }
    out[count++] = (number){"seconds", s->seconds};
    out[count++] = (number){"exposed_seconds", s->exposed};
    (void)snprintf(out[count].name, sizeof out[count].name, "%s_per_second", s->unit);
    out[count++].value = s->per_second;
    return count;
}

/* Writes one line of JSON. dtype NULL: omitted. NaN and infinity, which JSON lacks, become null. */
static void write_line(step_log *log, int64_t step, const char *dtype, const number *numbers,
                       int count)
{
    json_t *object = json_object();
    bool good = json_object_set_new(object, "step", json_integer(step)) == 0;
    if (dtype != NULL) {
        good = json_object_set_new(object, "dtype", json_string(dtype)) == 0 && good;
    }
    for (int i = 0; i < count; i++) {
        json_t *value = isfinite(numbers[i].value) ? json_real(numbers[i].value) : json_null();
        good = json_object_set_new(object, numbers[i].name, value) == 0 && good;
    }
    char *line = good ? json_dumps(object, JSON_REAL_PRECISION(DIGITS)) : NULL;
    if (line == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    step_log_add(log, "%s", line);
    free(line);
    json_decref(object);
}

static void show_board(tensorboard *board, const char *group, int64_t step, const number *numbers,
                       int count)
{
    tensorboard_scalar scalars[STEP_NUMBERS];
    for (int i = 0; i < count; i++) {
        (void)snprintf(scalars[i].tag, sizeof scalars[i].tag, "%s/%.57s", group, numbers[i].name);
        scalars[i].value = numbers[i].value;
    }
    tensorboard_add(board, step, scalars, count);
}

void records_step(records *r, const record *step)
{
    number numbers[STEP_NUMBERS];
    int count = numbers_of(step, numbers);
    write_line(&r->json, step->step, step->dtype, numbers, count);
    step_log_add(&r->losses, "%lld %.9g", (long long)step->step, step->loss);
    show_board(r->board, "train", step->step, numbers, count);
}

/* ---- evaluations -------------------------------------------------------------------------- */

void records_scores(records *r, int64_t step, const score *scores, int count)
{
    number numbers[SCORES_MAX] = {{"", 0.0}};
    for (int i = 0; i < count; i++) {
        plain_name(scores[i].name, numbers[i].name, sizeof numbers[i].name);
        numbers[i].value = scores[i].value;
    }
    write_line(&r->json, step, NULL, numbers, count);
    show_board(r->board, "eval", step, numbers, count);
}

void records_close(records *r)
{
    step_log_close(&r->json);
    step_log_close(&r->losses);
    tensorboard_close(r->board);
    r->board = NULL;
}
