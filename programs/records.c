/* SPDX-License-Identifier: Apache-2.0 */
/* See records.h. The file of --log is JSON Lines: one object per line, which begins with its step.
 * An evaluation has a separate line. A number that is not finite is written as null.
 *
 *     {"step": 3, "dtype": "float32", "loss": 2.81, "lr": 0.002, "grad_norm": 1.1, …}
 *     {"step": 3, …, "dropped": 12, "expert_rows": [140, 101, …]}    with experts
 *     {"step": 3, "held_out_loss": 2.79, "peak_memory_bytes": 104857600}
 */
#include "records.h"

#include <stdio.h>
#include <string.h>

#include "common.h"

#define CURVES_MAX 16 /* experts of one record for TensorBoard */

/* NULL: no such file is wanted. */
static ls_event_log *open_log(const char *path, ls_event_format format, int64_t start)
{
    if (path == NULL) {
        return NULL;
    }
    ls_event_log *log =
        ls_event_log_new(path, LS_OPTIONS(ls_event_log_options, .format = format, .start = start));
    must(LS_STATUS_OF(log));
    return log;
}

/* `wanted` is set on all ranks, because they average the numbers together. */
void records_open(records *r, const char *json, const char *board, const char *losses,
                  int64_t start)
{
    *r = (records){.json = open_log(json, LS_EVENTS_JSON, start),
                   .losses = open_log(losses, LS_EVENTS_LINES, start),
                   .board = open_log(board, LS_EVENTS_TENSORBOARD, start),
                   .wanted = json != NULL || board != NULL || losses != NULL};
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

#define STEP_NUMBERS 9
#define STEP_OTHERS 3 /* of JSON: dtype, and what experts have computed */

static void add(ls_event_log *log, int64_t step, const char *group, const ls_event_value *values,
                int count)
{
    if (log != NULL) {
        must(ls_event_log_add_all(log, step, group, values, count));
    }
}

/* Fills the numbers of a step and returns how many there are; without clipping there is no norm.
 * `speed` is the name of the last but those of experts. */
static int numbers_of(const record *s, const char *speed, ls_event_value out[STEP_NUMBERS])
{
    int count = 0;
    out[count++] = (ls_event_value){"loss", .number = s->loss};
    out[count++] = (ls_event_value){"lr", .number = s->lr};
    if (!(s->grad_norm < 0.0)) {
        out[count++] = (ls_event_value){"grad_norm", .number = s->grad_norm};
    }
    out[count++] = (ls_event_value){"seconds", .number = s->seconds};
    out[count++] = (ls_event_value){"exposed_seconds", .number = s->exposed};
    out[count++] = (ls_event_value){speed, .number = s->per_second};
    if (s->experts.experts > 0) {
        out[count++] = (ls_event_value){"dropped_share", .number = s->experts.dropped};
        out[count++] = (ls_event_value){"busiest_expert", .number = s->experts.busiest};
        out[count++] = (ls_event_value){"idlest_expert", .number = s->experts.idlest};
    }
    return count;
}

/* The dtype first; behind the numbers those of experts. */
static void write_line(ls_event_log *log, const record *s, const ls_event_value *numbers, int count)
{
    ls_event_value all[STEP_NUMBERS + STEP_OTHERS] = {{"dtype", .text = s->dtype}};
    memcpy(all + 1, numbers, (size_t)count * sizeof *numbers);
    count++;
    if (s->experts.experts > 0) {
        all[count++] = (ls_event_value){"dropped", .numbers = &s->experts.lost};
        all[count++] = (ls_event_value){"expert_rows", .numbers = s->experts.rows,
                                        .count = s->experts.experts};
    }
    add(log, s->step, "train", all, count);
}

/* A curve for each expert: its rows by their mean. */
static void show_experts(ls_event_log *board, int64_t step, const expert_shares *e)
{
    ls_event_value curves[CURVES_MAX];
    char names[CURVES_MAX][24];
    int64_t all = 0;
    for (int64_t i = 0; i < e->experts; i++) {
        all += e->rows[i];
    }
    for (int64_t i = 0; i < e->experts; i++) {
        const int at = (int)(i % CURVES_MAX);
        (void)snprintf(names[at], sizeof names[at], "%lld", (long long)i);
        curves[at] = (ls_event_value){names[at], .number = (double)e->rows[i] * (double)e->experts /
                                                           (double)all};
        if (at == CURVES_MAX - 1 || i == e->experts - 1) {
            add(board, step, "experts", curves, at + 1);
        }
    }
}

void records_step(records *r, const record *step)
{
    ls_event_value numbers[STEP_NUMBERS];
    char speed[32];
    (void)snprintf(speed, sizeof speed, "%s_per_second", step->unit);
    const int count = numbers_of(step, speed, numbers);
    write_line(r->json, step, numbers, count);
    add(r->losses, step->step, "train", numbers, 1); /* the loss */
    add(r->board, step->step, "train", numbers, count);
    show_experts(r->board, step->step, &step->experts);
}

/* ---- evaluations -------------------------------------------------------------------------- */

void records_scores(records *r, int64_t step, const score *scores, int count,
                    const memory_use *memory)
{
    ls_event_value numbers[SCORES_MAX + 2];
    char names[SCORES_MAX][LS_EVENT_NAME_MAX + 1 - 5]; /* behind "eval/" */
    for (int i = 0; i < count; i++) {
        plain_name(scores[i].name, names[i], sizeof names[i]);
        numbers[i] = (ls_event_value){names[i], .number = scores[i].value};
    }
    numbers[count++] = (ls_event_value){"peak_memory_bytes", .number = memory->peak_bytes};
    if (memory->estimate_bytes > 0.0) {
        numbers[count++] =
            (ls_event_value){"estimated_memory_bytes", .number = memory->estimate_bytes};
    }
    add(r->json, step, "eval", numbers, count);
    add(r->board, step, "eval", numbers, count);
}

void records_close(records *r)
{
    must(ls_event_log_free(r->json));
    must(ls_event_log_free(r->losses));
    must(ls_event_log_free(r->board));
    *r = (records){.wanted = false};
}
