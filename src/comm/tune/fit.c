/* Fitting the figures of Note [Model]: least squares of relative errors with no figure below zero,
 * by going down one coordinate after the other (Lawson and Hanson 1974, chapter 23, states the
 * problem). Some counts are hardly told apart by what is timed; starting from zero, the way down
 * then gives something to each, and what they add up to is still right. */
#include <math.h>
#include <string.h>

#include "comm/tune/tune.h"

#define ROUNDS 2000

const ls__figures ls__tune_default_figures = {.of = {[LS__COST_STEPS] = 20000,
                                                     [LS__COST_RANK_MESSAGES] = 2000,
                                                     [LS__COST_LINK] = 0.8,
                                                     [LS__COST_NEAR] = 0.1,
                                                     [LS__COST_SUM] = 0.1}};

const int64_t ls__tune_bytes[LS__TUNE_CLASSES] = {1 << 10, 32 << 10, 1 << 20, 4 << 20};

double ls__tune_ns(const ls__figures *figures, const ls__counts *counts, double bytes)
{
    double ns = 0;
    for (int i = 0; i < LS__COST_COUNT; i++) {
        ns += figures->of[i] * counts->of[i] * (i >= LS__COST_BYTES ? bytes : 1.0);
    }
    return ns;
}

/* One row of the equations: what figure i adds to a time, as a part of it. */
static double part(const ls__counts *counts, int class, double ns, int i)
{
    return counts->of[i] * (i >= LS__COST_BYTES ? (double)ls__tune_bytes[class] : 1.0) / ns;
}

typedef struct equations {
    double square[LS__COST_COUNT][LS__COST_COUNT], right[LS__COST_COUNT];
} equations;

static void add(equations *e, const ls__counts *counts, int class, double ns)
{
    for (int i = 0; i < LS__COST_COUNT; i++) {
        e->right[i] += part(counts, class, ns, i);
        for (int j = 0; j < LS__COST_COUNT; j++) {
            e->square[i][j] += part(counts, class, ns, i) * part(counts, class, ns, j);
        }
    }
}

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

/* At a class; 0: not timed. */
static double excess_at(const ls__timings *timings, const ls__figures *figures, int t, int class)
{
    const double model =
        ls__tune_ns(figures, &timings->of[t].counts, (double)ls__tune_bytes[class]);
    return model > 0 ? timings->of[t].ns[class] / model : 0;
}

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
        if (bytes < high) { /* between two: by the logarithm of the size */
            const double share =
                bytes > low ? (log2_of(bytes) - log2_of(low)) / (log2_of(high) - log2_of(low)) : 0;
            return at[class - 1] + share * (at[class] - at[class - 1]);
        }
    }
    return at[LS__TUNE_CLASSES - 1];
}
