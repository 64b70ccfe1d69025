/* SPDX-License-Identifier: Apache-2.0 */
/* GPipe beside PipeDream, as the lectures draw them: four stages, a backward twice as long as a
 * forward. GPipe empties the pipeline after each minibatch of four micro-batches and steps once;
 * PipeDream goes on with the next one, steps after each micro-batch, and keeps old weights for the
 * micro-batches that are under way. `lockstep bench pipeline` runs both with stages that sleep. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "cost/simulate.h"
#include "paper.h"
#include "schedule/schedule.h"

enum { RANKS = 4, MICRO = 4, DRAWN = 6, ROUNDS = 5, COLUMNS_MAX = 64 };
enum { FORWARD = 1, BACKWARD = 2 }; /* units of time */
#define UNIT_MS "4"

static const int minibatches[] = {1, 2, 4, 8};
enum { COUNTS = sizeof minibatches / sizeof *minibatches };

static const paper_column columns[] = {
    {"minibatches", "", "%.0f"},         {"gpipe", "ms", "%.1f"},
    {"pipedream", "ms", "%.1f"},         {"gpipe idle", "%", "%.1f"},
    {"pipedream idle", "%", "%.1f"},     {"gpipe expected", "%", "%.1f"},
    {"pipedream expected", "%", "%.1f"}, {"gpipe turns", "", "list"},
    {"pipedream turns", "", "list"},
};
static const paper_column memory_columns[] = {
    {"rank", "", "%.0f"},
    {"gpipe activations", "", "%.0f"},
    {"pipedream activations", "", "%.0f"},
    {"gpipe old weights", "", "%.0f"},
    {"pipedream old weights", "", "%.0f"},
};
static const paper_column drawing_columns[] = {
    {"schedule", "", NULL}, {"rank", "", "%.0f"}, {"time", "", NULL}};

/* ---- the drawing ----------------------------------------------------------------------------- */

static const ls__stage_times unit = {FORWARD, BACKWARD, BACKWARD / 2.0, BACKWARD / 2.0};

static ls__schedule *schedule_of(const char *name, int micro_batches)
{
    ls__schedule *s = NULL;
    const ls__schedule_spec spec = {.ranks = RANKS, .micro_batches = micro_batches};
    if (ls__schedule_new(ls__env_posix(), name, &spec, &s) < 0) {
        fprintf(stderr, "lockstep paper: %s\n", ls_error_message());
    }
    return s;
}

/* A unit of time is two characters and a blank: "F0 F1 .. B0---". */
static void draw_rank(const ls__schedule *s, const ls__sim_result *cost, int rank, char *out)
{
    const int columns_used = (int)(cost->makespan + 0.5);
    for (int c = 0; c < columns_used; c++) {
        memcpy(&out[3 * c], ".. ", 4);
    }
    out[3 * columns_used - 1] = '\0';
    for (int i = 0; i < s->rank[rank].count; i++) {
        const ls__action *a = &s->rank[rank].list[i];
        const int length = (int)(ls__action_time(a, &unit) + 0.5);
        char *at = &out[3 * (int)(cost->begin[rank][i] + 0.5)];
        if (length > 0) {
            memset(at, '-', (size_t)(3 * length - 1));
            at[0] = a->kind == LS__FORWARD ? 'F' : 'B';
            at[1] = (char)('0' + a->micro_batch % 10);
        }
    }
}

static bool draw(json_t *table, const char *name)
{
    ls__stage_times times[RANKS];
    ls__sim_result cost;
    ls__schedule *s = schedule_of(name, DRAWN);
    for (int i = 0; i < RANKS; i++) {
        times[i] = unit;
    }
    const bool good = s != NULL &&
                      ls__simulate(s, &(ls__sim_spec){.times = times}, &cost) == LS_OK &&
                      cost.makespan < COLUMNS_MAX;
    for (int r = 0; good && r < RANKS; r++) {
        char line[3 * COLUMNS_MAX + 1];
        draw_rank(s, &cost, r, line);
        paper_row(table, "[s, i, s]", name, r, line);
    }
    ls__schedule_free(s);
    return good;
}

/* ---- what they keep -------------------------------------------------------------------------- */

static bool add_memory(json_t *table)
{
    ls__schedule *gpipe = schedule_of("gpipe", MICRO),
                 *dream = schedule_of("pipedream", MICRO * minibatches[COUNTS - 1]);
    for (int r = 0; gpipe != NULL && dream != NULL && r < RANKS; r++) {
        ls__schedule_peak a, b;
        ls__schedule_closed_peak(gpipe, r, &a);
        ls__schedule_closed_peak(dream, r, &b);
        paper_row(table, "[i, I, I, I, I]", r, (json_int_t)a.activations, (json_int_t)b.activations,
                  (json_int_t)a.stashed, (json_int_t)b.stashed);
    }
    const bool good = gpipe != NULL && dream != NULL;
    ls__schedule_free(gpipe);
    ls__schedule_free(dream);
    return good;
}

/* ---- measured -------------------------------------------------------------------------------- */

/* The row of one schedule; NULL after it printed why. */
static json_t *run(paper *p, const char *schedule, int micro_batches)
{
    char count[16], rounds[16];
    (void)snprintf(count, sizeof count, "%d", micro_batches);
    (void)snprintf(rounds, sizeof rounds, "%d", p->options->steps > 0 ? p->options->steps : ROUNDS);
    const char *const arguments[] = {
        "pipeline", "--schedule", schedule,   "--micro-batches", count,      "--forward", UNIT_MS,
        "--input",  UNIT_MS,      "--weight", UNIT_MS,           "--rounds", rounds,      NULL};
    json_t *rows = paper_bench(p, RANKS, schedule, arguments), *row = NULL;
    if (json_array_size(rows) == 1) {
        row = json_incref(json_array_get(rows, 0));
    }
    json_decref(rows);
    return row;
}

/* Of a stage's time: of (P - 1) micro-batches' it waits, of `busy` it works. */
static double expected_idle(int busy)
{
    return 100.0 * (RANKS - 1) / (RANKS - 1 + busy);
}

static double idle(const json_t *row)
{
    return 100.0 * paper_number(row, "bubble_ms") / paper_number(row, "step_ms");
}

/* The same of each step. */
static json_t *idles_of(const json_t *row)
{
    const json_t *bubbles = json_object_get(row, "round_ms"),
                 *steps = json_object_get(row, "steps_ms");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_array_append_new(list,
                              json_real(100.0 * json_number_value(json_array_get(bubbles, i)) /
                                        json_number_value(json_array_get(steps, i))));
    }
    return list;
}

/* `count` times each step. */
static json_t *steps_of(const json_t *row, int count)
{
    const json_t *steps = json_object_get(row, "steps_ms");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_array_append_new(list, json_real(count * json_number_value(json_array_get(steps, i))));
    }
    return list;
}

static void claim(paper *p, int count, const json_t *gpipe, const json_t *dream)
{
    char left[64];
    json_t *lefts = steps_of(dream, 1), *rights = steps_of(gpipe, count);
    (void)snprintf(left, sizeof left, "PipeDream, %d minibatches", count);
    paper_claim_add(p, &(paper_claim){.text = "without a flush a pipeline idles less (Narayanan et "
                                              "al. 2019, figure 4)",
                                      .left = left,
                                      .right = "GPipe",
                                      .left_turns = lefts,
                                      .right_turns = rights,
                                      .above = false,
                                      .factor = 1.0});
    json_decref(lefts);
    json_decref(rights);
}

static bool measure(paper *p, json_t *table)
{
    json_t *gpipe = run(p, "gpipe", MICRO);
    bool good = gpipe != NULL;
    for (int i = 0; i < COUNTS && good; i++) {
        const int count = minibatches[i];
        json_t *dream = run(p, "pipedream", count * MICRO);
        good = dream != NULL;
        if (good) {
            const double ms = count * paper_number(gpipe, "step_ms"),
                         other = paper_number(dream, "step_ms");
            paper_row(table, "[i, f, f, f, f, f, f, o, o]", count, ms, other, idle(gpipe),
                      idle(dream), expected_idle(MICRO), expected_idle(count * MICRO),
                      idles_of(gpipe), idles_of(dream));
            if (count > 1) {
                claim(p, count, gpipe, dream);
            }
        }
        json_decref(dream);
    }
    json_decref(gpipe);
    return good;
}

bool paper_pipeline(paper *p)
{
    json_t *drawing =
        paper_table(p, "As the lectures draw them: F a forward, B a backward, .. idle",
                    drawing_columns, (int)(sizeof drawing_columns / sizeof *drawing_columns));
    if (!draw(drawing, "gpipe") || !draw(drawing, "pipedream")) {
        return false;
    }
    json_t *table = paper_table(p, "Minibatches of 4 micro-batches through 4 stages", columns,
                                (int)(sizeof columns / sizeof *columns));
    paper_plot_add(p, &(paper_plot){.title = "Idle time of a pipeline",
                                    .kind = "lines",
                                    .table = table,
                                    .x = "minibatches",
                                    .y = {"gpipe idle", "pipedream idle", "gpipe expected",
                                          "pipedream expected"},
                                    .spread = {"gpipe turns", "pipedream turns"},
                                    .says = "medians; bars: lowest to highest step; expected: by "
                                            "the formula",
                                    .x_label = "minibatches",
                                    .y_label = "idle share, %",
                                    .log = "x 2"});
    if (!measure(p, table)) {
        return false;
    }
    json_t *memory =
        paper_table(p,
                    "Kept at most: micro-batches' activations, versions of weights beside the "
                    "newest",
                    memory_columns, (int)(sizeof memory_columns / sizeof *memory_columns));
    paper_note(
        p,
        "GPipe waits (P-1)(F+B) for each minibatch, PipeDream once. A forward and each half of "
        "a backward sleep %s ms. GPipe's times are those of one minibatch, as often as there "
        "are some. `lockstep plan schedule` draws any other.",
        UNIT_MS);
    return add_memory(memory);
}
