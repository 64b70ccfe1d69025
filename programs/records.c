/* See records.h. --log is JSON Lines: an object a line, each with its step first; an evaluation has
 * a line of its own. JSON has no word for what is not finite: it is null there.
 *
 *     {"step": 3, "dtype": "float32", "loss": 2.81, "lr": 0.002, "grad_norm": 1.1, …}
 *     {"step": 3, "held_out_loss": 2.79}
 */
#include "records.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/runtime.h>

#define NUMBER_BYTES 32
#define LINE_BYTES 512

void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start)
{
    *r = (records){.wanted = json != NULL || board != NULL || losses};
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

static const char *json_number(double value, char out[NUMBER_BYTES])
{
    if (!isfinite(value)) {
        return "null";
    }
    (void)snprintf(out, NUMBER_BYTES, "%.9g", value);
    return out;
}

/* "held-out loss" as a name in files: "held_out_loss". */
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

/* Returns how many numbers a step has. */
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

/* dtype: NULL where there is none to tell. */
static void write_line(step_log *log, int64_t step, const char *dtype, const number *numbers,
                       int count)
{
    char line[LINE_BYTES] = "", text[NUMBER_BYTES];
    size_t used = 0;
    if (dtype != NULL) {
        used = (size_t)snprintf(line, sizeof line, ", \"dtype\": \"%s\"", dtype);
    }
    for (int i = 0; i < count && used < sizeof line; i++) {
        used += (size_t)snprintf(line + used, sizeof line - used, ", \"%s\": %s", numbers[i].name,
                                 json_number(numbers[i].value, text));
    }
    step_log_add(log, "{\"step\": %lld%s}", (long long)step, line);
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
