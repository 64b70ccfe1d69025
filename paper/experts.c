/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts beside its dense twin (Shazeer et al. 2017; Fedus et al. 2021, "Switch"): each
 * token visits one of eight experts, so it costs the matrix products of a network with one, while
 * the model has nearly eight times as many parameters. On n ranks each has 8/n experts. */
#include <stdio.h>
#include <string.h>

#include "paper.h"

enum { ROUNDS = 10, MORE = 2 };

static const int counts[] = {1, 2, 4, 8};
enum { COUNTS = sizeof counts / sizeof *counts };

static const paper_column columns[] = {
    {"ranks", "", "%.0f"},
    {"dense", "tokens/s", "%.0f"},
    {"experts", "tokens/s", "%.0f"},
    {"experts / dense", "", "%.2f"},
    {"dense step", "ms", "%.2f"},
    {"experts step", "ms", "%.2f"},
    {"dense parameters", "", "%.0f"},
    {"experts parameters", "", "%.0f"},
    {"sent", "KB a step", "%.1f"},
    {"load", "", "%.2f"},
    {"dense turns", "", "list"},
    {"experts turns", "", "list"},
};

static void claim(paper *p, int ranks, const json_t *dense, const json_t *experts)
{
    char left[64];
    (void)snprintf(left, sizeof left, "a step with experts, %d rank%s", ranks,
                   ranks > 1 ? "s" : "");
    paper_claim_add(p, &(paper_claim){.text = "a model of several times as many parameters takes "
                                              "less than twice as long: a token visits one expert",
                                      .left = left,
                                      .right = "of the dense twin",
                                      .left_turns = json_object_get(experts, "round_ms"),
                                      .right_turns = json_object_get(dense, "round_ms"),
                                      .above = false,
                                      .factor = MORE});
}

/* Tokens a second of each step. */
static json_t *rates_of(const json_t *row)
{
    const json_t *rounds = json_object_get(row, "round_ms");
    const double tokens_ms = paper_number(row, "tokens_per_second") * paper_number(row, "step_ms");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(rounds); i++) {
        json_array_append_new(list,
                              json_real(tokens_ms / json_number_value(json_array_get(rounds, i))));
    }
    return list;
}

static bool measure(paper *p, json_t *table, int ranks)
{
    char rounds[16];
    (void)snprintf(rounds, sizeof rounds, "%d", p->options->steps > 0 ? p->options->steps : ROUNDS);
    const char *const arguments[] = {"experts", "--rounds", rounds, NULL};
    json_t *rows = paper_bench(p, ranks, "experts", arguments);
    const json_t *dense = paper_find(rows, "model", "dense", NULL),
                 *experts = paper_find(rows, "model", "experts", NULL);
    if (dense != NULL && experts != NULL) {
        const double plain = paper_number(dense, "tokens_per_second"),
                     mixed = paper_number(experts, "tokens_per_second");
        paper_row(table, "[i, f, f, f, f, f, f, f, f, f, o, o]", ranks, plain, mixed, mixed / plain,
                  paper_number(dense, "step_ms"), paper_number(experts, "step_ms"),
                  paper_number(dense, "parameters"), paper_number(experts, "parameters"),
                  1e-3 * paper_number(experts, "sent_bytes"), paper_number(experts, "load"),
                  rates_of(dense), rates_of(experts));
        claim(p, ranks, dense, experts);
    }
    const bool good = experts != NULL;
    json_decref(rows);
    return good;
}

bool paper_experts(paper *p)
{
    paper on = *p;
    char title[128], medium[64];
    const int asked = p->options->workers;
    on.star = p->link != NULL;
    (void)snprintf(title, sizeof title,
                   "A GPT with 8 experts, of which a token visits one, beside "
                   "one without; %s",
                   paper_medium(&on, medium));
    json_t *table = paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
    paper_plot_add(p, &(paper_plot){.title = "Throughput with and without experts",
                                    .kind = "lines",
                                    .table = table,
                                    .x = "ranks",
                                    .y = {"dense", "experts"},
                                    .spread = {"dense turns", "experts turns"},
                                    .says = "medians; bars: slowest to fastest step",
                                    .x_label = "ranks",
                                    .y_label = "tokens a second",
                                    .log = "x 2"});
    for (int i = 0; i < (asked > 0 ? 1 : COUNTS); i++) {
        const int ranks = asked > 0 ? asked : counts[i];
        if (ranks == 1 && p->link != NULL) {
            continue; /* a rank without a peer has no link */
        }
        if (!measure(&on, table, ranks)) {
            return false;
        }
    }
    paper_note(p, "Every rank has its own tokens, so the batch grows with the ranks. load: rows of "
                  "the busiest expert by their mean. sent: by rank 0 along ep, in shared memory "
                  "what it passed to its peers. Ranks share the cores of this machine, dense and "
                  "with experts alike.");
    return true;
}
