/* SPDX-License-Identifier: Apache-2.0 */
/* The largest or least elements of rows, in order: by insertion. */
#include "kernel/ref/ref.h"

/* Whether `a` stands before `b`, which came first; NaN is the largest. */
static bool before(long double a, long double b, bool largest)
{
    const bool a_is_nan = a != a, b_is_nan = b != b;
    return largest ? !b_is_nan && (a_is_nan || a > b) : !a_is_nan && (b_is_nan || a < b);
}

/* `found` holds the best so far in order; an element moves up past those it stands before. */
static void top_of_row(int64_t *found, const void *x, ls_dtype dtype, int64_t first, int64_t n,
                       int64_t k, bool largest)
{
    for (int64_t i = 0; i < n; i++) {
        const long double value = ls__ref_load(x, dtype, first + i);
        int64_t at = i < k ? i : k;
        for (; at > 0 && before(value, ls__ref_load(x, dtype, first + found[at - 1]), largest);
             at--) {
            if (at < k) {
                found[at] = found[at - 1];
            }
        }
        if (at < k) {
            found[at] = i;
        }
    }
}

void ls__ref_top(int64_t *index, const void *x, ls_dtype dtype, int64_t rows, int64_t n, int64_t k,
                 bool largest, ls_stream *stream)
{
    (void)stream;
    for (int64_t r = 0; r < rows; r++) {
        top_of_row(index + r * k, x, dtype, r * n, n, k, largest);
    }
}
