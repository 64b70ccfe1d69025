/* SPDX-License-Identifier: Apache-2.0 */
/* Fitting the figures of Note [Model]: least squares of relative errors with no figure below zero,
 * by coordinate descent (Lawson and Hanson 1974, chapter 23, states the problem). With relative
 * errors, row k of the equations is sum_i part(k, i) * figure_i = 1, and a step along coordinate i
 * solves its normal equation and cuts the result at zero:
 *
 *     figure_i = max(0, (right_i - sum_{j != i} square_ij * figure_j) / square_ii)
 *
 * The times can hardly distinguish some of the counts. Starting from zero, the descent gives each
 * of these a share, and their sum is still right. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "comm/tune/tune.h"

#define ROUNDS 2000 /* enough for the figures of all layouts timed so far to settle */

const ls__figures ls__tune_default_figures = {.of = {[LS__COST_STEPS] = 20000,
                                                     [LS__COST_RANK_MESSAGES] = 2000,
                                                     [LS__COST_LINK] = 0.8,
                                                     [LS__COST_LOCAL] = 0.1,
                                                     [LS__COST_SUM] = 0.1}};

/* A byte costs as much as in memory: 0.02 to 0.08 ns for 2 ranks, 0.05 to 0.2 for 4 (1 to 100 MB in
 * docs/measurements.md). Ranks that compute notice an operation later than those of that page,
 * which wait for it in 2 us: a sleeping engine takes 10 to 50 us to wake beside them. */
const ls__tune_link ls__tune_shared_memory = {.latency_ns = 20000, .byte_ns = 0.1};

const int64_t ls__tune_bytes[LS__TUNE_CLASSES] = {1 << 10, 32 << 10, 1 << 20, 4 << 20};

/* Note [Model]: constant terms, and terms in proportion to the bytes. */
double ls__tune_ns(const ls__figures *figures, const ls__counts *counts, double bytes)
{
    double ns = 0;
    for (int i = 0; i < LS__COST_COUNT; i++) {
        ns += figures->of[i] * counts->of[i] * (i >= LS__COST_BYTES ? bytes : 1.0);
    }
    return ns;
}

ls__tune_link ls__tune_line(const ls__figures *figures, const ls__counts *counts)
{
    const double start = ls__tune_ns(figures, counts, 0.0), bytes = 0x1p20;
    return (ls__tune_link){start, (ls__tune_ns(figures, counts, bytes) - start) / bytes};
}

/* One entry of a row of the equations: what a unit of figure i adds to a time, as a part of it. */
static double part(const ls__counts *counts, int class, double ns, int i)
{
    return counts->of[i] * (i >= LS__COST_BYTES ? (double)ls__tune_bytes[class] : 1.0) / ns;
}

/* The normal equations: square = A^T A, right = A^T 1, where A has a row for each time. */
typedef struct equations {
    double square[LS__COST_COUNT][LS__COST_COUNT], right[LS__COST_COUNT];
} equations;

/* Adds one time, that is one row, to the normal equations. */
static void add(equations *e, const ls__counts *counts, int class, double ns)
{
    LS_ASSERT(ns > 0);
    for (int i = 0; i < LS__COST_COUNT; i++) {
        e->right[i] += part(counts, class, ns, i);
        for (int j = 0; j < LS__COST_COUNT; j++) {
            e->square[i][j] += part(counts, class, ns, i) * part(counts, class, ns, j);
        }
    }
}

/* A fixed number of rounds and plain arithmetic: all ranks obtain the same bits. */
void ls__tune_fit(const ls__timings *timings, ls__figures *out)
{
    equations e = {0};
    for (int t = 0; t < timings->count; t++) {
        for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
            if (timings->of[t].ns[class] > 0) {
                add(&e, &timings->of[t].counts, class, timings->of[t].ns[class]);
            }
        }
    }
    memset(out, 0, sizeof *out);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LS__COST_COUNT; i++) {
            double left = e.right[i];
            for (int j = 0; j < LS__COST_COUNT; j++) {
                left -= j != i ? e.square[i][j] * out->of[j] : 0.0;
            }
            out->of[i] = e.square[i][i] > 0 && left > 0 ? left / e.square[i][i] : 0.0;
        }
    }
}

/* ---- what the model misses ---------------------------------------------------------------- */

/* Measured time over modelled time at a class; 0: not timed. */
static double excess_at(const ls__timings *timings, const ls__figures *figures, int t, int class)
{
    const double model =
        ls__tune_ns(figures, &timings->of[t].counts, (double)ls__tune_bytes[class]);
    return model > 0 ? timings->of[t].ns[class] / model : 0;
}

/* The mean over the algorithms timed at a class; 0: none was. */
static double mean_at(const ls__timings *timings, const ls__figures *figures, int class)
{
    double sum = 0;
    int count = 0;
    for (int t = 0; t < timings->count; t++) {
        const double excess = excess_at(timings, figures, t, class);
        sum += excess;
        count += excess > 0 ? 1 : 0;
    }
    return count > 0 ? sum / count : 0;
}

/* Linear between powers of two. Every rank computes this, and log() may round otherwise on another
 * processor; frexp() is exact. */
static double log2_of(double x)
{
    int exponent = 0;
    const double mantissa = frexp(x, &exponent); /* from 0.5 to below 1 */
    return exponent + 2 * mantissa - 2;
}

/* First fills every class, with the mean of the others or the class before where this algorithm was
 * not timed; then interpolates linearly in the logarithm of the size. */
double ls__tune_excess(const ls__timings *timings, const ls__figures *figures,
                       const ls__algorithm *algorithm, double bytes)
{
    double at[LS__TUNE_CLASSES];
    double last = 1;
    for (int class = 0; class < LS__TUNE_CLASSES; class ++) {
        at[class] = 0;
        for (int t = 0; t < timings->count; t++) {
            at[class] = timings->of[t].algorithm == algorithm
                            ? excess_at(timings, figures, t, class)
                            : at[class];
        }
        at[class] = at[class] > 0 ? at[class] : mean_at(timings, figures, class);
        at[class] = at[class] > 0 ? at[class] : last;
        last = at[class];
    }
    for (int class = 1; class < LS__TUNE_CLASSES; class ++) {
        const double low = (double)ls__tune_bytes[class - 1], high = (double)ls__tune_bytes[class];
        if (bytes < high) {
            const double share =
                bytes > low ? (log2_of(bytes) - log2_of(low)) / (log2_of(high) - log2_of(low)) : 0;
            return at[class - 1] + share * (at[class] - at[class - 1]);
        }
    }
    return at[LS__TUNE_CLASSES - 1];
}
