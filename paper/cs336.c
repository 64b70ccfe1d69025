/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the course CS336's notebook, with its keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cost/overlap.h"

#include "ddp_rows.h"

#define QUICK_BYTES 100e6 /* of the largest all_reduce with --quick */

/* ---- all-reduce ------------------------------------------------------------------------------ */

static const paper_column all_reduce_columns[] = {
    {"backend", "", NULL},   {"world_size", "", "%.0f"}, {"size_mb", "", "%.6g"},
    {"time_ms", "", "%.3f"}, {"algbw", "GB/s", "%.2f"},  {"busbw", "GB/s", "%.2f"},
    {"samples", "", "list"},
};

/* "64K", "10M" or "1G" in bytes; lockstep bench refuses what is not a size. */
static double bytes_of(const char *size)
{
    char *end = NULL;
    const double number = strtod(size, &end);
    return number * (*end == 'G' ? 1e9 : *end == 'M' ? 1e6 : *end == 'K' ? 1e3 : 1.0);
}

/* The sizes whose buffers fit into memory: each rank has one, what must come out, and the
 * floor's. */
static const char *that_fit(paper *p, int ranks, char out[256])
{
    const double available = (double)ls__memory_available(ls__env_posix());
    char copy[256], *rest = copy, *size;
    (void)snprintf(copy, sizeof copy, "%s", p->options->sizes);
    out[0] = '\0';
    while ((size = strtok_r(rest, ",", &rest)) != NULL) {
        const double needed = 3.0 * ranks * bytes_of(size);
        if (p->options->quick && bytes_of(size) > QUICK_BYTES) {
            continue;
        }
        if (available >= 0.0 && needed > 0.9 * available) {
            paper_note(p,
                       "Left out: %s with %d ranks needs %.1f GB of memory; %.1f GB are available.",
                       size, ranks, needed * 1e-9, available * 1e-9);
            continue;
        }
        (void)snprintf(out + strlen(out), 256 - strlen(out), "%s%s", out[0] != '\0' ? "," : "",
                       size);
    }
    return out;
}

static bool all_reduce(paper *p, json_t *table, int ranks)
{
    char medium[64], sizes[256];
    const char *const arguments[] = {
        "all-reduce", "--buffers", "private", "--sizes", that_fit(p, ranks, sizes),
        "--samples",  "5",         NULL};
    if (sizes[0] == '\0') {
        return true;
    }
    json_t *rows = paper_bench(p, ranks, "all_reduce", arguments);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        paper_row(table, "[s, i, f, f, f, f, O]", paper_medium(p, medium), ranks,
                  paper_number(row, "bytes") * 1e-6, paper_number(row, "time_ms"),
                  paper_number(row, "algbw"), paper_number(row, "busbw"),
                  json_object_get(row, "samples_ms"));
    }
    json_decref(rows);
    return rows != NULL;
}

/* ---- DDP ------------------------------------------------------------------------------------- */

/* The notebook's keys, in its order; wire time is not in it. */
static const paper_column ddp_columns[] = {
    {"bucket_size", "", NULL},
    {"model", "", NULL},
    {"backend", "", NULL},
    {"world_size", "", "%.0f"},
    {"global_batch_size", "", "%.0f"},
    {"warmup_steps", "", "%.0f"},
    {"benchmark_steps", "", "%.0f"},
    {"step_time_avg_s", "", "%.5f"},
    {"step_time_std_s", "", "%.5f"},
    {"comm_time_avg_s", "", "%.5f"},
    {"comm_time_std_s", "", "%.5f"},
    {"comm_frac_avg", "", "%.3f"},
    {"comm_frac_std", "", "%.3f"},
    {"wire_time_avg_s", "", "%.5f"},
    {"wire_time_std_s", "", "%.5f"},
};

/* Mean and standard deviation over the steps of exposed / step. */
static void fractions(const json_t *row, double *mean, double *deviation)
{
    const json_t *samples = json_object_get(row, "samples_ms");
    const json_t *step = json_object_get(samples, "step"),
                 *exposed = json_object_get(samples, "exposed");
    const size_t count = json_array_size(step);
    double sum = 0.0, squares = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < count; i++) {
            const double f = json_number_value(json_array_get(exposed, i)) /
                             json_number_value(json_array_get(step, i));
            sum += pass == 0 ? f : 0.0;
            squares += pass == 1 ? (f - sum / (double)count) * (f - sum / (double)count) : 0.0;
        }
    }
    *mean = count > 0 ? sum / (double)count : 0.0;
    *deviation = count > 1 ? sqrt(squares / (double)(count - 1)) : 0.0;
}

static void add(paper *p, json_t *table, const char *name, const json_t *row)
{
    char medium[64];
    double fraction, deviation;
    fractions(row, &fraction, &deviation);
    paper_row(table, "[s, s, s, i, i, i, i, f, f, f, f, f, f, f, f]", name,
              paper_text(row, "model"), paper_medium(p, medium), (int)paper_number(row, "ranks"),
              (int)(paper_number(row, "ranks") * paper_number(row, "batch")),
              (int)paper_number(row, "warmup"),
              (int)(paper_number(row, "steps") * paper_number(row, "rounds")),
              paper_mean(row, "step") * 1e-3, paper_deviation(row, "step") * 1e-3,
              paper_mean(row, "exposed") * 1e-3, paper_deviation(row, "exposed") * 1e-3, fraction,
              deviation, paper_mean(row, "wire") * 1e-3, paper_deviation(row, "wire") * 1e-3);
}

/* Buckets at least as large as all gradients are flat, but for the first one, of 1 MiB. */
static void add_bucket(paper *p, json_t *table, const char *size, const json_t *row)
{
    char name[64];
    double bytes = 0.0;
    size_t i;
    const json_t *bucket;
    json_array_foreach(json_object_get(row, "bucket_bytes"), i, bucket)
    {
        bytes += json_number_value(bucket);
    }
    (void)snprintf(name, sizeof name, atof(size) * 1e6 >= bytes ? "%s = flat" : "%s", size);
    add(p, table, name, row);
}

static void claims(paper *p, const json_t *naive, const json_t *flat, const json_t *overlap)
{
    const json_t *naive_turns = json_object_get(naive, "round_ms");
    paper_claim_add(
        p, &(paper_claim){.text = "one all-reduce of all gradients is not slower than one for each",
                          .left = "flat",
                          .right = "naive",
                          .left_turns = json_object_get(flat, "round_ms"),
                          .right_turns = naive_turns,
                          .factor = 1.02});
    paper_claim_add(
        p, &(paper_claim){.text =
                              "overlap with backward is faster than one after it for each gradient",
                          .left = "overlap",
                          .right = "naive",
                          .left_turns = json_object_get(overlap, "round_ms"),
                          .right_turns = naive_turns,
                          .factor = 1.0});
}

static bool ddp(paper *p, json_t *table)
{
    static const char *const sizes[] = {"1", "10", "100", "1000"};
    const paper_network *network = paper_network_at(p, p->options->model != NULL ? 0 : 1);
    json_t *rows = paper_ddp_rows(p, network, 2, "naive,flat,overlap", "1e-06,1,10,100,1000");
    const json_t *naive = paper_find(rows, "mode", "naive", NULL);
    const json_t *flat = paper_find(rows, "mode", "flat", NULL);
    const json_t *overlap = paper_find(rows, "mode", "overlap", "buckets", "1e-06", NULL);
    if (naive == NULL || flat == NULL || overlap == NULL) {
        json_decref(rows);
        return false;
    }
    add(p, table, "naive", naive);
    add(p, table, "flat", flat);
    add(p, table, "overlap", overlap);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        add_bucket(p, table, sizes[i],
                   paper_find(rows, "mode", "overlap", "buckets", sizes[i], NULL));
    }
    claims(p, naive, flat, overlap);
    json_decref(rows);
    return true;
}

/* ---- the notebook's own rows, by the model --------------------------------------------------- */

/* The rows do not say what they are of; taken is what the course asks for. */
enum { LAYERS = 48, DIM = 1600, WITHIN = 6400, VOCABULARY = 10000, GRADIENTS = 9 * LAYERS + 3 };
#define PARAMETERS                                                                                 \
    (LAYERS * (4.0 * DIM * DIM + 3.0 * DIM * WITHIN + 2.0 * DIM) + 2.0 * VOCABULARY * DIM + DIM)
#define MEMORY 2039e9 /* bytes a second */

static const paper_column model_columns[] = {
    {"bucket_size", "", NULL},
    {"published step", "s", "%.4f"},
    {"model", "s", "%.4f"},
    {"model is off by", "%", "%+.1f"},
};

static void add_modelled(json_t *table, const ls__overlap *o, const char *name, double published,
                         double calls, double last)
{
    const double step = ls__overlap_step(o, calls, last);
    paper_row(table, "[s, f, f, f]", name, published, step, 100.0 * (step / published - 1.0));
}

/* A gradient is larger than most buckets of 1 and 10 MB. */
static void add_model(paper *p)
{
    const double bytes = 4.0 * PARAMETERS, embedding = 4.0 * VOCABULARY * DIM;
    ls__overlap o = ls__overlap_of((ls__overlap_row){0.4167, 0.4167 * 0.217},
                                   (ls__overlap_row){0.4115, 0.4115 * 0.206}, GRADIENTS, bytes);
    json_t *table =
        paper_table(p, "The notebook's steps, by the model from its rows naive and flat",
                    model_columns, (int)(sizeof model_columns / sizeof *model_columns));
    o.traffic = ls__overlap_traffic(2, MEMORY);
    add_modelled(table, &o, "overlap", 0.3554, GRADIENTS, embedding);
    add_modelled(table, &o, "1", 0.3574, GRADIENTS, embedding);
    add_modelled(table, &o, "10", 0.3586, GRADIENTS, embedding);
    add_modelled(table, &o, "100", 0.3521, bytes / 100e6, 100e6);
    add_modelled(table, &o, "1000", 0.3582, bytes / 1000e6, 1000e6);
    paper_note(p,
               "By the model of src/cost/overlap.h: a call takes %.1f us and %.2f ps a byte, and a "
               "bucket of %.0f MB is the best. The notebook's rows do not say what they are of; "
               "taken are the course's 2 devices and model XL (%.2f billion parameters in "
               "float32), and a memory of %.0f GB/s.",
               o.latency * 1e6, o.byte * 1e12,
               ls__overlap_bucket(o.latency, o.byte, o.bytes) * 1e-6, PARAMETERS * 1e-9,
               MEMORY * 1e-9);
}

bool paper_cs336(paper *p)
{
    json_t *table =
        paper_table(p, "all_reduce of float32, private buffers; medians", all_reduce_columns,
                    (int)(sizeof all_reduce_columns / sizeof *all_reduce_columns));
    paper_plot_add(p, &(paper_plot){.title = "all_reduce",
                                    .kind = "lines",
                                    .table = table,
                                    .x = "size_mb",
                                    .y = {"time_ms"},
                                    .spread = {"samples"},
                                    .says = "medians; bars: lowest to highest sample",
                                    .group = "world_size",
                                    .x_label = "MB",
                                    .y_label = "ms",
                                    .log = "xy"});
    for (int ranks = 2; ranks <= 6; ranks += 2) {
        if (!all_reduce(p, table, ranks)) {
            return false;
        }
    }
    char title[64];
    (void)snprintf(title, sizeof title, "Training steps, %s", paper_computed(p));
    json_t *steps =
        paper_table(p, title, ddp_columns, (int)(sizeof ddp_columns / sizeof *ddp_columns));
    paper_transpose(steps);
    if (!ddp(p, steps)) {
        return false;
    }
    add_model(p);
    paper_note(p, "`= flat`: all gradients fit into such a bucket; the first 1 MiB of them still "
                  "goes ahead. comm_time is the exposed wait, as in the notebook; "
                  "wire_time is the time "
                  "in which a collective was under way. The notebook (gloo, a laptop, 1000 MB): "
                  "algorithm bandwidth "
                  "1.12, 0.48 and 0.26 GB/s with 2, 4 and 6 processes; naive 0.4167 s (21.7 %% "
                  "communication), flat "
                  "0.4115 s, overlap 0.3554 s.");
    paper_skip_nccl(p);
    return true;
}
