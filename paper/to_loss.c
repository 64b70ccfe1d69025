/* SPDX-License-Identifier: Apache-2.0 */
/* See to_loss.h. */
#include "to_loss.h"

#include <string.h>

#include "bench/bench.h"

paper_trainings paper_trainings_of(const json_t *rows, const char *key, const char *value)
{
    paper_trainings t = {.reached = true, .finite = true};
    for (size_t i = 0; i < json_array_size(rows) && t.count < PAPER_SEEDS_MAX; i++) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(paper_text(row, key), value) != 0) {
            continue;
        }
        t.row[t.count] = row;
        t.seconds[t.count++] = paper_number(row, "seconds");
        t.reaching += json_is_true(json_object_get(row, "reached"));
        t.reached = t.reaching == t.count;
        t.finite = t.finite && json_is_number(json_object_get(row, "loss"));
    }
    return t;
}

double paper_at_share(const double *values, int count, double share)
{
    double sorted[PAPER_SEEDS_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    ls__bench_sort(sorted, count);
    return sorted[(int)(share * (count - 1) + 0.5)];
}

double paper_median_of(const paper_trainings *t, const char *key)
{
    double values[PAPER_SEEDS_MAX] = {0};
    for (int k = 0; k < t->count; k++) {
        values[k] = paper_number(t->row[k], key);
    }
    return paper_at_share(values, t->count, 0.5);
}

json_t *paper_seconds_of(const paper_trainings *t)
{
    json_t *list = json_array();
    for (int k = 0; k < t->count; k++) {
        json_array_append_new(list, json_real(t->seconds[k]));
    }
    return list;
}

json_t *paper_number_if(bool there, double value)
{
    return there ? json_real(value) : json_null();
}

paper_beside paper_compare(const paper_trainings *t, const char *name, const paper_trainings *other,
                           const char *other_name)
{
    double ratios[PAPER_SEEDS_MAX] = {0};
    for (int k = 0; k < t->count; k++) {
        ratios[k] = t->seconds[k] / other->seconds[k];
    }
    paper_beside out = {.both = t->reached && other->reached,
                        .ratio = paper_at_share(ratios, t->count, 0.5)};
    const bool any = t->reached || other->reached;
    out.sooner = !any            ? "-"
                 : t->count == 1 ? "undecided" /* one seed decides nothing */
                 : !out.both     ? (t->reached ? name : other_name)
                 : paper_at_share(ratios, t->count, 1.0) < 1.0 ? name
                 : paper_at_share(ratios, t->count, 0.0) > 1.0 ? other_name
                                                               : "undecided";
    return out;
}

json_t *paper_curves(paper *p, const char *title, const char *key)
{
    const paper_column columns[] = {/* only plotted */
                                    {"seconds", "", "list"},
                                    {"loss", "", "list"},
                                    {key, "", "list"},
                                    {"seed", "", "list"}};
    return paper_table(p, title, columns, 4);
}

void paper_curve_add(json_t *table, const paper_trainings *t, const char *name)
{
    for (int k = 0; k < t->count; k++) {
        const json_t *losses = json_object_get(t->row[k], "losses"),
                     *times = json_object_get(t->row[k], "times");
        for (size_t i = 0; i < json_array_size(losses); i++) {
            paper_row(table, "[f, O, s, i]", json_number_value(json_array_get(times, i)),
                      json_array_get(losses, i), name, k + 1);
        }
    }
}

void paper_curves_plot(paper *p, const json_t *table, const char *title, const char *key)
{
    paper_plot_add(p, &(paper_plot){.title = title,
                                    .kind = "lines",
                                    .table = table,
                                    .x = "seconds",
                                    .y = {"loss"},
                                    .group = key,
                                    .part = "seed",
                                    .says = "a line for each seed",
                                    .x_label = "seconds",
                                    .y_label = "held-out loss",
                                    .log = ""});
}
