/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons of two operands: out = op(a, b), bytes of 0 or 1, with broadcasting by strides;
 * formulas in ref/compare.c. One function of a row for each type. The loops are written for any
 * strides; compilers make a second version of each for rows that lie dense. Comparisons are C's,
 * so any with NaN is false but "not equal". */
#include "base/assert.h"
#include "kernel/cpu/walk.h"

/* Operand x begins `at_x` elements from `x` and goes on in steps of `sx`. */
typedef void (*row_of)(ls__compare op, uint8_t *out, const void *a, int64_t at_a, int64_t sa,
                       const void *b, int64_t at_b, int64_t sb, int64_t count);

#define EACH(test)                                                                                 \
    for (int64_t i = 0; i < count; i++) {                                                          \
        out[i] = (test);                                                                           \
    }                                                                                              \
    break;

/* READ makes a value of an element: of bytes that hold truth, whether they are set. */
#define ROW(name, type, READ)                                                                      \
    static void name(ls__compare op, uint8_t *out, const void *a, int64_t at_a, int64_t sa,        \
                     const void *b, int64_t at_b, int64_t sb, int64_t count)                       \
    {                                                                                              \
        const type *x = (const type *)a + at_a, *y = (const type *)b + at_b;                       \
        switch (op) {                                                                              \
        case LS__COMPARE_EQ:                                                                       \
            EACH(READ(x[i * sa]) == READ(y[i * sb]))                                               \
        case LS__COMPARE_NE:                                                                       \
            EACH(READ(x[i * sa]) != READ(y[i * sb]))                                               \
        case LS__COMPARE_LT:                                                                       \
            EACH(READ(x[i * sa]) < READ(y[i * sb]))                                                \
        case LS__COMPARE_LE:                                                                       \
            EACH(READ(x[i * sa]) <= READ(y[i * sb]))                                               \
        case LS__COMPARE_AND:                                                                      \
            EACH((x[i * sa] != 0) & (y[i * sb] != 0))                                              \
        case LS__COMPARE_OR:                                                                       \
            EACH((x[i * sa] != 0) | (y[i * sb] != 0))                                              \
        case LS__COMPARE_COUNT:                                                                    \
            break;                                                                                 \
        }                                                                                          \
    }
#define VALUE(x) (x)
#define TRUTH(x) ((x) != 0)

ROW(row_float32, float, VALUE)
ROW(row_float64, double, VALUE)
ROW(row_bool, uint8_t, TRUTH)
ROW(row_int8, int8_t, VALUE)
ROW(row_uint8, uint8_t, VALUE)
ROW(row_int16, int16_t, VALUE)
ROW(row_uint16, uint16_t, VALUE)
ROW(row_int32, int32_t, VALUE)
ROW(row_uint32, uint32_t, VALUE)
ROW(row_int64, int64_t, VALUE)
ROW(row_uint64, uint64_t, VALUE)

static const row_of rows[LS_DTYPE_COUNT] = {
    [LS_FLOAT32] = row_float32, [LS_FLOAT64] = row_float64, [LS_BOOL] = row_bool,
    [LS_INT8] = row_int8,       [LS_UINT8] = row_uint8,     [LS_INT32] = row_int32,
    [LS_INT64] = row_int64,     [LS_INT16] = row_int16,     [LS_UINT16] = row_uint16,
    [LS_UINT32] = row_uint32,   [LS_UINT64] = row_uint64,
};

/* Long rows are cut into pieces, so that a single row still occupies all threads. */
void LS__K(compare)(const ls__comparison *c, ls_stream *stream)
{
    (void)stream;
    const ls__kernel_walk w = ls__walk_of(c->ndim, c->shape, c->a_strides, c->b_strides);
    const int64_t sa = w.a.stride[w.ndim - 1], sb = w.b.stride[w.ndim - 1];
    const int64_t pieces = (w.width + LS__BLOCK - 1) / LS__BLOCK; /* of a row */
    const row_of row = rows[c->dtype];
    LS_ASSERT(row != NULL);
    LS__PARALLEL_FOR(w.rows * w.width >= LS__PARALLEL_MIN, int64_t task = 0, task < w.rows * pieces,
                     task++, {
                         int64_t i = task / pieces, from = task % pieces * LS__BLOCK, at_a, at_b;
                         ls__walk_row(&w, i, &at_a, &at_b);
                         row(c->op, c->out + i * w.width + from, c->a, at_a + from * sa, sa, c->b,
                             at_b + from * sb, sb, ls__min(LS__BLOCK, w.width - from));
                     })
}
