/* SPDX-License-Identifier: Apache-2.0 */
/* The lectures' sums, each with its steps. Nothing is measured. */
#include "paper.h"

static const paper_column columns[] = {
    {"quantity", "", NULL}, {"value", "", "%.5g"}, {"unit", "", NULL}, {"from", "", NULL}};

static json_t *table_of(paper *p, const char *title)
{
    return paper_table(p, title, columns, (int)(sizeof columns / sizeof *columns));
}

static void add(json_t *table, const char *quantity, double value, const char *unit,
                const char *from)
{
    paper_row(table, "[s, f, s, s]", quantity, value, unit, from);
}

static void years(paper *p)
{
    json_t *t = table_of(p, "GPT-3 on one GPU: how long");
    const double parameters = 175e9, tokens = 300e9, flops = 6.0 * parameters * tokens;
    const double rate = 67e12, seconds = flops / rate, year = 365.25 * 24 * 3600;
    const double counted = 3.14e23; /* table D.1 of Brown et al. 2020 */
    add(t, "parameters N", parameters, "", "GPT-3");
    add(t, "tokens D", tokens, "", "GPT-3");
    add(t, "training", flops, "FLOP", "6 N D");
    add(t, "one H100, float32", rate, "FLOP/s", "data sheet, SXM, without tensor cores");
    add(t, "time", seconds, "s", "6 N D / rate, at the peak rate");
    add(t, "time", seconds / year, "years", "s / (365.25 x 24 x 3600)");
    add(t, "time by the authors' count", counted / rate / year, "years",
        "3.14e23 FLOP (Brown et al. 2020, table D.1) / rate");
}

static void memory(paper *p)
{
    json_t *t = table_of(p, "GPT-3 on one GPU: whether it fits");
    const double parameters = 175e9, half = parameters * 2.0, gpu = 80e9;
    add(t, "parameters N", parameters, "", "GPT-3");
    add(t, "weights, 16 bit", half * 1e-9, "GB", "2 N");
    add(t, "one H100", gpu * 1e-9, "GB", "data sheet");
    add(t, "GPUs for the weights alone", half / gpu, "", "2 N / 80 GB");
    add(t, "with gradients and Adam", parameters * 16.0 * 1e-9, "GB",
        "16 N: weights 2, gradients 2, float32 weights and two moments 12");
}

static void server(paper *p)
{
    json_t *t = table_of(p, "A parameter server for ResNet-50");
    const double model = 97.5, workers = 256.0, per_second = 3.0;
    add(t, "gradients of a worker", model, "MiB", "25.6 million float32");
    add(t, "workers", workers, "", "the lecture's");
    add(t, "gradients of a worker", per_second, "1/s", "1/3 s for each");
    add(t, "into the server", model * workers * per_second / 1024.0, "GiB/s",
        "97.5 x 256 x 3 / 1024");
    add(t, "out of the server", model * workers * per_second / 1024.0, "GiB/s",
        "as much again: the model to every worker");
    add(t, "ring all-reduce, a worker",
        2.0 * model * per_second / 1024.0 * (workers - 1.0) / workers, "GiB/s",
        "2 x 97.5 x 255/256 x 3 / 1024, in and out");
}

bool paper_arithmetic(paper *p)
{
    years(p);
    memory(p);
    server(p);
    paper_note(p, "Computed from the numbers in the tables; nothing was measured.");
    return true;
}
