/* SPDX-License-Identifier: Apache-2.0 */
/* `measure cost-table -n K`: the table of the lectures, counted from the programs. Time is
 * in steps, bandwidth in full buffers: the peak is the most that one rank has to send or receive,
 * per step and in all; the total is that of all ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "comm/algorithm/registry.h"
#include "forms.h"

typedef struct row {
    const char *name;
    ls__operation operation;
    const char *algorithm;
    int first, last; /* steps of it; last 0: all */
} row;

static const row rows[] = {
    {"reduce at a root", LS__OP_ALL_REDUCE, "root", 1, 1},
    {"broadcast from a root", LS__OP_ALL_REDUCE, "root", 2, 2},
    {"all-reduce via a root", LS__OP_ALL_REDUCE, "root", 1, 0},
    {"full exchange", LS__OP_ALL_REDUCE, "full_exchange", 1, 0},
    {"ring", LS__OP_ALL_REDUCE, "ring", 1, 0},
    {"recursive halving", LS__OP_REDUCE_SCATTER, "recursive_halving", 1, 0},
    {"recursive halving-doubling", LS__OP_ALL_REDUCE, "halving_doubling", 1, 0},
    {"recursive doubling", LS__OP_ALL_REDUCE, "recursive_doubling", 1, 0},
    {"direct (the default)", LS__OP_ALL_REDUCE, "direct", 1, 0},
};

static const char foot[] =
    "\n"
    "Bandwidth in full buffers; peak: the rank that sends or receives most. Per step: the "
    "largest.\n"
    "\n"
    "A picture that is often titled \"recursive halving\" draws recursive doubling: all ranks\n"
    "exchange whole buffers, log K times, K log K buffers in total. Halving exchanges half of "
    "what\n"
    "is left, so that it ends with a K-th of the sum at each rank (a reduce-scatter), and "
    "doubling\n"
    "these parts again makes it an all-reduce. Each stands above under its own name.\n"
    "Counted from the programs that run; docs/algorithms.md has all of them and their closed "
    "forms.\n";

static ls_status put_row(const row *r, int ranks)
{
    ls__program_totals t;
    double peak_step = 0, peak = 0, total_step = 0, total = 0;
    LS_TRY(ls__bench_count_totals(ls__algorithm_find(r->operation, r->algorithm), ranks, &t));
    const int last = r->last > 0 && r->last < t.steps ? r->last : t.steps;
    for (int s = r->first - 1; s < last; s++) {
        peak_step = t.step[s].rank > peak_step ? t.step[s].rank : peak_step;
        total_step = t.step[s].total > total_step ? t.step[s].total : total_step;
        total += t.step[s].total;
    }
    peak = r->first == last ? peak_step : t.rank;
    const int steps = last - r->first + 1;
    printf("%-28s%6d%13.3f%13.3f%13.3f%13.3f\n", r->name, steps > 0 ? steps : 0, peak_step, peak,
           total_step, total);
    return LS_OK;
}

static bool parse(int argc, char **argv, int *ranks)
{
    char *end = NULL;
    if (argc == 0) {
        return true;
    }
    if (argc != 2 || (strcmp(argv[0], "-n") != 0 && strcmp(argv[0], "--ranks") != 0)) {
        return false;
    }
    const long n = strtol(argv[1], &end, 10);
    *ranks = (int)n;
    return end != argv[1] && *end == '\0' && n >= 2 && n <= LS__BENCH_FORM_RANKS_MAX;
}

int ls__bench_cost_table(int argc, char **argv)
{
    int ranks = 8;
    if (!parse(argc, argv, &ranks)) {
        fprintf(stderr,
                "measure cost-table: give nothing, or -n and a number from 2 to %d; "
                "see lockstep bench --help\n",
                LS__BENCH_FORM_RANKS_MAX);
        return 2;
    }
    printf("K = %d ranks%22s%26s%26s\n", ranks, "time", "peak bandwidth", "total bandwidth");
    printf("%-28s%6s%13s%13s%13s%13s\n", "", "steps", "per step", "in all", "per step", "in all");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (put_row(&rows[i], ranks) != LS_OK) {
            fprintf(stderr, "lockstep bench: %s\n", ls_error_message());
            return 1;
        }
    }
    fputs(foot, stdout);
    return 0;
}
