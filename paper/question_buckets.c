/* SPDX-License-Identifier: Apache-2.0 */
/* "Which bucket size?": the sizes with the shortest median step in figures 7 and 8, and the knees
 * of figure 2. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp_rows.h"
#include "questions.h"

#define NEAR 1.03 /* sizes this near the best one are named, too: the noise of a few turns */

static const char *const bucket_columns[] = {"s:bucket", "t:medium", "s:network", "l:steps", NULL};

typedef struct best_size { /* of a network over a medium */
    const char *medium, *network, *bucket;
    double median;
} best_size;

/* Of those that figures 7 and 8 measure; in all files alike. 0: not known. */
static double millions_of(const char *network)
{
    static const struct {
        const char *title;
        double parameters;
    } known[] = {
        {"ResNet-18", 11.2}, {"GPT 6x384", 17.0}, {"ResNet-50", 25.6}, {"BERT base", 109.5}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].title, network) == 0) {
            return known[i].parameters;
        }
    }
    return 0.0;
}

static double median(const json_t *row)
{
    return paper_quantile(json_object_get(row, "steps"), 0.5);
}

/* The best of the sizes of rows[from] to rows[end - 1], which are of one network and medium. */
static best_size add_best(const answers *a, const json_t *rows, size_t from, size_t end)
{
    char of[160], near[96] = "", small[64] = "";
    const json_t *best = json_array_get(rows, from);
    for (size_t i = from; i < end; i++) {
        const json_t *row = json_array_get(rows, i);
        const bool is_auto = strcmp(paper_text(row, "bucket"), "auto") == 0;
        best = !is_auto && median(row) < median(best) ? row : best;
    }
    for (size_t i = from; i < end; i++) {
        const json_t *row = json_array_get(rows, i);
        const char *bucket = paper_text(row, "bucket");
        if (row != best && median(row) <= NEAR * median(best)) {
            (void)snprintf(near + strlen(near), sizeof near - strlen(near), "%s%s",
                           near[0] == '\0' ? "; within 3 %: " : ", ", bucket);
        } else if (strcmp(bucket, "0") == 0 && row != best) {
            (void)snprintf(small, sizeof small, "; 0 MB takes %.2f times as long",
                           median(row) / median(best));
        }
    }
    const best_size of_best = {paper_text(best, "medium"), paper_text(best, "network"),
                               paper_text(best, "bucket"), median(best)};
    (void)snprintf(of, sizeof of, "%.70s, %.70s", of_best.network, of_best.medium);
    question_answer(a, of, "%s MB: %.2f ms a step%s%s", of_best.bucket, median(best), near, small);
    return of_best;
}

/* A size that is near the best one of both; NULL: there is none. */
static const char *size_for_both(const json_t *rows, const best_size *x, const best_size *y)
{
    const json_t *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        const char *bucket = paper_text(row, "bucket");
        const json_t *other =
            paper_find(rows, "medium", y->medium, "network", y->network, "bucket", bucket, NULL);
        if (strcmp(bucket, "auto") != 0 && other != NULL &&
            strcmp(paper_text(row, "medium"), x->medium) == 0 &&
            strcmp(paper_text(row, "network"), x->network) == 0 &&
            median(row) <= NEAR * x->median && median(other) <= NEAR * y->median) {
            return bucket;
        }
    }
    return NULL;
}

/* Whether the larger of two networks over one medium wants larger buckets. */
static void add_growth(const answers *a, const json_t *rows, const best_size *x, const best_size *y)
{
    const double first = millions_of(x->network), second = millions_of(y->network);
    if (strcmp(x->medium, y->medium) == 0 && first > 0.0 && second > 0.0 && first != second) {
        const best_size *s = first < second ? x : y, *l = first < second ? y : x;
        const char *both = size_for_both(rows, s, l);
        if (both != NULL) {
            question_answer(a, s->medium,
                            "no difference: %s MB is within 3 %% for %.1f M parameters and %.1f M",
                            both, millions_of(s->network), millions_of(l->network));
            return;
        }
        question_answer(a, s->medium, "%s: %s MB for %.1f M parameters, %s MB for %.1f M",
                        atof(l->bucket) > atof(s->bucket) ? "grows" : "does not grow", s->bucket,
                        millions_of(s->network), l->bucket, millions_of(l->network));
    }
}

/* *any: whether there was such a file. */
static bool from_buckets(paper *p, json_t *table, const char *file, bool *any)
{
    const answers a = {p, table, BUCKET, file};
    best_size last = {"", "", "", 0.0};
    json_t *rows = paper_earlier(p, file, bucket_columns);
    const size_t count = json_array_size(rows);
    for (size_t from = 0, end; from < count; from = end) {
        for (end = from + 1;
             end < count && question_is_same(json_array_get(rows, from), json_array_get(rows, end));
             end++) {
        }
        const best_size best = add_best(&a, rows, from, end);
        add_growth(&a, rows, &last, &best);
        last = best;
    }
    *any = *any || count > 0;
    json_decref(rows);
    return rows != NULL;
}

/* Calls of an all-reduce alone, without a network. */
static bool knees(paper *p, json_t *table)
{
    static const char *const knee[] = {"n:knee", "s:backend", "s:algorithm", "n:ranks", NULL};
    const answers a = {p, table, BUCKET, "fig2"};
    const json_t *row;
    size_t i;
    json_t *rows = paper_earlier(p, a.file, knee);
    (void)(rows != NULL && question_is_absent(&a, rows));
    json_array_foreach(rows, i, row)
    {
        char of[160];
        (void)snprintf(of, sizeof of, "all-reduce of %.0f ranks, %.70s", paper_number(row, "ranks"),
                       paper_text(row, "backend"));
        if (strcmp(paper_text(row, "algorithm"), "chosen") == 0) {
            question_answer(&a, of, "calls from %.2f MB on are within 10 %% of the best",
                            paper_number(row, "knee") * 4e-6);
        }
    }
    json_decref(rows);
    return rows != NULL;
}

bool question_buckets(paper *p, json_t *table)
{
    bool any = false;
    if (!knees(p, table) || !from_buckets(p, table, "fig7", &any) ||
        !from_buckets(p, table, "fig8", &any)) {
        return false;
    }
    if (!any) {
        (void)question_is_absent(&(answers){p, table, BUCKET, "fig7"}, NULL);
    }
    return true;
}
