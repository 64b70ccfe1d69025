/* SPDX-License-Identifier: Apache-2.0 */
/* out = factor x^T, by blocks: so that each line read is used while it is near. Blocks of 16 x 16
 * stay in registers where there are 32 of them; elsewhere eight rows at a time are plain loops. */
#ifndef LS_KERNEL_CPU_TRANSPOSE_H
#define LS_KERNEL_CPU_TRANSPOSE_H

#include "kernel/cpu/isa.h"

#if LS__LANES == 16 && defined(__AVX512F__)
#include <immintrin.h>

#define LS__TRANSPOSE_SIDE 16

LS__INLINE __m512 ls__pairs_low(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

LS__INLINE __m512 ls__pairs_high(__m512 a, __m512 b)
{
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}

/* Within each quarter of the rows: q[4g + i] holds columns i, i + 4, i + 8, i + 12 of rows 4g…4g+3.
 */
LS__INLINE void ls__transpose_quarter(__m512 *q, const __m512 row[4])
{
    __m512 a = row[0], b = row[1], c = row[2], d = row[3];
    __m512 ab = _mm512_unpacklo_ps(a, b), cd = _mm512_unpacklo_ps(c, d);
    q[0] = ls__pairs_low(ab, cd);
    q[1] = ls__pairs_high(ab, cd);
    ab = _mm512_unpackhi_ps(a, b), cd = _mm512_unpackhi_ps(c, d);
    q[2] = ls__pairs_low(ab, cd);
    q[3] = ls__pairs_high(ab, cd);
}

LS__INLINE void ls__transpose_rows(float *out, int64_t out_row, const __m512 row[16])
{
    __m512 q[16];
    for (int g = 0; g < 4; g++) {
        ls__transpose_quarter(q + 4 * g, row + 4 * g);
    }
    for (int i = 0; i < 4; i++) {
        __m512 even_low = _mm512_shuffle_f32x4(q[i], q[4 + i], 0x88);
        __m512 even_high = _mm512_shuffle_f32x4(q[8 + i], q[12 + i], 0x88);
        __m512 odd_low = _mm512_shuffle_f32x4(q[i], q[4 + i], 0xdd);
        __m512 odd_high = _mm512_shuffle_f32x4(q[8 + i], q[12 + i], 0xdd);
        _mm512_storeu_ps(out + i * out_row, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
        _mm512_storeu_ps(out + (i + 4) * out_row, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_ps(out + (i + 8) * out_row, _mm512_shuffle_f32x4(even_low, even_high, 0xdd));
        _mm512_storeu_ps(out + (i + 12) * out_row, _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd));
    }
}

LS__INLINE void ls__transpose_block(float *out, int64_t out_row, const float *x, int64_t x_row,
                                    float factor)
{
    __m512 row[16];
    for (int i = 0; i < 16; i++) {
        row[i] = _mm512_mul_ps(_mm512_set1_ps(factor), _mm512_loadu_ps(x + i * x_row));
    }
    ls__transpose_rows(out, out_row, row);
}

/* The same of 32 bits that are no numbers; sizes are multiples of 16. */
LS__INLINE void ls__transpose_bits(uint32_t *out, int64_t out_row, const void *x, int64_t x_row,
                                   int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i += 16) {
        for (int64_t j = 0; j < columns; j += 16) {
            __m512 row[16];
            for (int r = 0; r < 16; r++) {
                row[r] = _mm512_loadu_ps((const uint32_t *)x + (i + r) * x_row + j);
            }
            ls__transpose_rows((float *)(void *)(out + j * out_row + i), out_row, row);
        }
    }
}
#else
#define LS__TRANSPOSE_SIDE 8

LS__INLINE void ls__transpose_block(float *out, int64_t out_row, const float *x, int64_t x_row,
                                    float factor)
{
    for (int j = 0; j < LS__TRANSPOSE_SIDE; j++) {
        for (int i = 0; i < LS__TRANSPOSE_SIDE; i++) {
            out[j * out_row + i] = factor * x[i * x_row + j];
        }
    }
}
#endif

/* x [rows,columns] -> out [columns,rows]; out_row and x_row are the strides of rows. */
static inline void ls__transpose(float *restrict out, int64_t out_row, const float *restrict x,
                                 int64_t x_row, int64_t rows, int64_t columns, float factor)
{
    const int64_t side = LS__TRANSPOSE_SIDE;
    const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
    for (int64_t i = 0; i < whole_rows; i += side) {
        for (int64_t j = 0; j < whole_columns; j += side) {
            ls__transpose_block(out + j * out_row + i, out_row, x + i * x_row + j, x_row, factor);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; j++) {
            out[j * out_row + i] = factor * x[i * x_row + j];
        }
    }
}

#endif
