/* SPDX-License-Identifier: Apache-2.0 */
/* The three questions that the paper asks of a user (section 6.1, its lessons): which backend,
 * which bucket size, which machines. They are answered from the files of earlier experiments, and
 * nothing is measured. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "questions.h"

static const paper_column columns[] = {{"question", "", NULL},
                                       {"the paper", "", NULL},
                                       {"of", "", NULL},
                                       {"here", "", NULL},
                                       {"from", "", NULL}};

static const struct {
    const char *asked, *paper;
} questions[] = {
    [BACKEND] = {"which backend?", "NCCL where there is one; mostly much faster than Gloo"},
    [BUCKET] = {"which bucket size?", "neither small nor large; grows with the network"},
    [RESOURCES] = {"which machines?", "one, where links between them are slow; or skip steps"},
};

void question_answer(const answers *a, const char *of, const char *format, ...)
{
    char text[1024];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    paper_row(a->table, "[s, s, s, s, s]", questions[a->question].asked,
              questions[a->question].paper, of, text, a->file);
}

bool question_is_absent(const answers *a, const json_t *rows)
{
    const char *out = a->p->options->out;
    if (json_array_size(rows) == 0) {
        question_answer(a, "-", "not measured: run `lockstep paper %s --out %.200s` first", a->file,
                        out != NULL ? out : "DIR");
        return true;
    }
    return false;
}

bool question_is_same(const json_t *a, const json_t *b)
{
    return strcmp(paper_text(a, "medium"), paper_text(b, "medium")) == 0 &&
           strcmp(paper_text(a, "network"), paper_text(b, "network")) == 0;
}

/* ---- which backend? -------------------------------------------------------------------------- */

static const char *const parts[] = {"s:reduction", "s:medium", "s:network", "n:step", NULL};

/* The overlapped row of the network with the shortest step but for `without`; NULL: there is
 * none. */
static const json_t *fastest(const json_t *rows, const char *network, const json_t *without)
{
    const json_t *best = NULL, *row;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        if (row != without && strcmp(paper_text(row, "network"), network) == 0 &&
            strcmp(paper_text(row, "reduction"), "overlapped") == 0 &&
            (best == NULL || paper_number(row, "step") < paper_number(best, "step"))) {
            best = row;
        }
    }
    return best;
}

static void compare_media(const answers *a, const json_t *rows, const char *network)
{
    const json_t *best = fastest(rows, network, NULL), *next = fastest(rows, network, best);
    if (best == NULL) {
        question_answer(a, network, "no overlapped step was measured");
    } else if (next == NULL) {
        question_answer(a, network, "%s: %.2f ms a step; no other medium was measured",
                        paper_text(best, "medium"), paper_number(best, "step"));
    } else {
        question_answer(a, network, "%s: %.2f ms a step; %s takes %.2f times as long",
                        paper_text(best, "medium"), paper_number(best, "step"),
                        paper_text(next, "medium"),
                        paper_number(next, "step") / paper_number(best, "step"));
    }
}

static void compare_link(const answers *a, const json_t *rows, const char *network)
{
    const json_t *memory = paper_find(rows, "network", network, "reduction", "overlapped", "medium",
                                      "shared memory", NULL);
    const json_t *link = paper_find(rows, "network", network, "reduction", "overlapped", "medium",
                                    "TCP at 1gbit/s", NULL);
    if (memory == NULL || link == NULL) {
        question_answer(a, network, "shared memory and 1 Gbit/s were not both measured (as root)");
    } else {
        question_answer(a, network,
                        "2 ranks: over 1 Gbit/s a step takes %.2f times as long as over memory",
                        paper_number(link, "step") / paper_number(memory, "step"));
    }
}

/* An answer for each network of fig6. */
static bool from_parts(paper *p, json_t *table, question q,
                       void (*compare)(const answers *, const json_t *, const char *))
{
    const answers a = {p, table, q, "fig6"};
    json_t *rows = paper_earlier(p, a.file, parts);
    if (rows == NULL) {
        return false;
    }
    (void)question_is_absent(&a, rows);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *network = paper_text(row, "network");
        if (paper_find(rows, "network", network, NULL) == row) {
            compare(&a, rows, network);
        }
    }
    json_decref(rows);
    return true;
}

/* ---- all ------------------------------------------------------------------------------------- */

bool paper_questions(paper *p)
{
    json_t *table = paper_table(p, "Questions and answers", columns, 5);
    paper_note(p, "The paper's answers are in our words (section 6.1). NCCL has no figures: no GPU "
                  "here. Figures are those of the files, which `from` names:");
    return from_parts(p, table, BACKEND, compare_media) && question_buckets(p, table) &&
           from_parts(p, table, RESOURCES, compare_link) && question_ranks(p, table);
}
