/* SPDX-License-Identifier: Apache-2.0 */
/* The products of PowerSGD, of one element type: REAL is float or double, NAME(x) gives the names.
 * Matrices are row-major; a factor of rank r is kept as r rows, so that inner loops run over
 * elements that lie side by side. Sums are made in LANES parts, in an order that depends on the
 * shapes alone. Included by powersgd.c, once for each type. */

#define LANES 16

static REAL NAME(dot)(const REAL *x, const REAL *y, int64_t count)
{
    REAL part[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int lane = 0; lane < LANES; lane++) {
            part[lane] += x[i + lane] * y[i + lane];
        }
    }
    for (; i < count; i++) {
        sum += x[i] * y[i];
    }
    for (int lane = 0; lane < LANES; lane++) {
        sum += part[lane];
    }
    return sum;
}

/* to += factor * x */
static void NAME(add_scaled)(REAL *to, REAL factor, const REAL *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] += factor * x[i];
    }
}

/* p[k][i] = sum over j of m[i][j] q[k][j]: P = M Q. */
static void NAME(times)(const REAL *m, int64_t rows, int64_t columns, const REAL *q, int rank,
                        REAL *p)
{
    for (int64_t i = 0; i < rows; i++) {
        const REAL *row = m + i * columns;
        for (int k = 0; k < rank; k++) {
            p[k * rows + i] = NAME(dot)(row, q + k * columns, columns);
        }
    }
}

/* q[k][j] = sum over i of p[k][i] m[i][j]: Q = M' P. */
static void NAME(transposed_times)(const REAL *m, int64_t rows, int64_t columns, const REAL *p,
                                   int rank, REAL *q)
{
    memset(q, 0, (size_t)(rank * columns) * sizeof *q);
    for (int64_t i = 0; i < rows; i++) {
        const REAL *row = m + i * columns;
        for (int k = 0; k < rank; k++) {
            NAME(add_scaled)(q + k * columns, p[k * rows + i], row, columns);
        }
    }
}

/* m = P Q', and left = what it was minus that; `left` may be NULL. */
static void NAME(approximate)(REAL *m, int64_t rows, int64_t columns, const REAL *p, const REAL *q,
                              int rank, REAL *left)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL *row = m + i * columns;
        if (left != NULL) {
            memcpy(left + i * columns, row, (size_t)columns * sizeof *row);
        }
        memset(row, 0, (size_t)columns * sizeof *row);
        for (int k = 0; k < rank; k++) {
            NAME(add_scaled)(row, p[k * rows + i], q + k * columns, columns);
        }
        if (left != NULL) {
            NAME(add_scaled)(left + i * columns, -1, row, columns);
        }
    }
}

/* Exactly, so that squares neither overflow nor vanish. */
static void NAME(scale_to_one)(REAL *row, int64_t count)
{
    REAL largest = 0;
    for (int64_t i = 0; i < count; i++) {
        const REAL size = row[i] < 0 ? -row[i] : row[i];
        largest = size > largest ? size : largest;
    }
    int exponent = 0;
    (void)frexp((double)largest, &exponent);
    for (int64_t i = 0; i < count && exponent != 0 && isfinite(largest); i++) {
        row[i] = (REAL)ldexp((double)row[i], -exponent);
    }
}

/* Row k less what the rows before it span. Returns false if nothing is left but rounding. */
static bool NAME(clear_row)(REAL *p, int64_t rows, int k)
{
    REAL *row = p + k * rows;
    NAME(scale_to_one)(row, rows);
    const REAL before = NAME(dot)(row, row, rows);
    for (int pass = 0; pass < 2; pass++) {
        for (int other = 0; other < k; other++) {
            const REAL *done = p + other * rows;
            NAME(add_scaled)(row, -NAME(dot)(row, done, rows), done, rows);
        }
    }
    const REAL after = NAME(dot)(row, row, rows);
    const bool left = after > before * TINY;
    const REAL factor = left ? 1 / ROOT(after) : 1;
    for (int64_t i = 0; i < rows; i++) {
        row[i] *= factor;
    }
    return left;
}

/* Makes the rank rows of p orthonormal (modified Gram-Schmidt, each row twice). A row that the
 * earlier ones span, as of a gradient that is zero or has a lower rank, becomes a random direction,
 * the same on all ranks: divided by its length it would be noise or not a number, and zero would
 * stay zero in every later step. */
static void NAME(orthonormalize)(REAL *p, int64_t rows, int rank)
{
    for (int k = 0; k < rank; k++) {
        for (uint64_t draw = 0; !NAME(clear_row)(p, rows, k) && draw < DRAWS; draw++) {
            for (int64_t i = 0; i < rows; i++) {
                p[k * rows + i] = ls_random_normal(draw, (uint64_t)k, (uint64_t)i);
            }
        }
    }
}

#undef LANES
