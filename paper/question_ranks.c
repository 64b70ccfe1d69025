/* SPDX-License-Identifier: Apache-2.0 */
/* "Which machines?": the cost of more ranks in figures 9 and 10. */
#include <stdio.h>
#include <string.h>

#include "questions.h"

/* The step of a row like this one, but with `ranks` ranks, synchronised every `every`-th step; 0:
 * there is none. */
static double step_of(const json_t *rows, const json_t *like, const char *ranks, const char *every)
{
    return paper_number(paper_find(rows, "medium", paper_text(like, "medium"), "network",
                                   paper_text(like, "network"), "ranks", ranks, "every", every,
                                   NULL),
                        "step");
}

static bool from_skipping(paper *p, json_t *table)
{
    static const char *const skips[] = {"n:every", "t:medium", "s:network",
                                        "n:ranks", "n:step",   NULL};
    const answers a = {p, table, RESOURCES, "fig10"};
    const json_t *row;
    size_t i;
    json_t *rows = paper_earlier(p, a.file, skips);
    (void)(rows != NULL && question_is_absent(&a, rows));
    json_array_foreach(rows, i, row)
    {
        char of[200];
        const double two = step_of(rows, row, "2", "1"), eight = step_of(rows, row, "8", "1"),
                     skipped = step_of(rows, row, "8", "8");
        if ((i == 0 || !question_is_same(row, json_array_get(rows, i - 1))) &&
            two * eight * skipped > 0.0) {
            (void)snprintf(of, sizeof of, "%.70s, %.70s, replayed", paper_text(row, "network"),
                           paper_text(row, "medium"));
            question_answer(
                &a, of,
                "8 ranks: %.2f ms a step, %.2f times that of 2; %.2f times with every 8th "
                "step synchronised",
                eight, eight / two, skipped / two);
        }
    }
    json_decref(rows);
    return rows != NULL;
}

/* The step of weak scaling over the medium of this row with this many ranks; 0: there is none. */
static double weak_step(const json_t *rows, const json_t *like, const char *count)
{
    return paper_number(paper_find(rows, "medium", paper_text(like, "medium"), "network",
                                   paper_text(like, "network"), "scaling", "weak", "ranks", count,
                                   NULL),
                        "step");
}

/* Nothing is said where there is no such file. */
static bool from_scaling(paper *p, json_t *table)
{
    static const char *const scales[] = {"s:scaling", "t:medium", "s:network",
                                         "n:ranks",   "n:step",   NULL};
    const answers a = {p, table, RESOURCES, "fig9"};
    const json_t *row;
    size_t i;
    json_t *rows = paper_earlier(p, a.file, scales);
    json_array_foreach(rows, i, row)
    {
        char of[200];
        const double one = weak_step(rows, row, "1"), eight = weak_step(rows, row, "8"),
                     most = weak_step(rows, row, "256");
        if ((i == 0 || !question_is_same(row, json_array_get(rows, i - 1))) &&
            one * eight * most > 0.0) {
            (void)snprintf(of, sizeof of, "%.70s, %.70s, 64 samples a rank",
                           paper_text(row, "network"), paper_text(row, "medium"));
            question_answer(&a, of, "8 ranks: %.2f times the step of 1; 256, modelled: %.2f times",
                            eight / one, most / one);
        }
    }
    json_decref(rows);
    return rows != NULL;
}

bool question_ranks(paper *p, json_t *table)
{
    return from_skipping(p, table) && from_scaling(p, table);
}
