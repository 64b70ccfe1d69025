/* SPDX-License-Identifier: Apache-2.0 */
/* Products with weights of bfloat16 or int8, which are widened in registers. With few rows of x the
 * time is that of reading the weights, and they have a half or a quarter of float32's bytes.
 *
 *     for BLOCK rows of w:              w stays in the cache, if x has more rows than a tile:
 *       for TILE rows of x:             these stay for the block
 *         for each row of w:            read in the order of memory, once for the tile
 *
 * Each output is summed in STREAMS vectors of lanes, whose elements take turns along k; then over
 * those, over the lanes, and over what is left of k. So its bits depend on k alone: neither on the
 * number of rows nor on the threads, which share the blocks. */
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "base/half.h"
#include "kernel/cpu/isa.h"

#define BLOCK 16  /* rows of w */
#define STREAMS 4 /* sums that do not wait for each other, as many as hide the latency of one */
#if LS__LANES == 16
#define TILE 4 /* rows of x: 16 of 32 registers accumulate */
#else
#define TILE 2 /* 8 of 16 */
#endif
#define AHEAD 4096 /* bytes: more than arrive in the time that memory takes to answer */
#define LINE 64    /* of the cache */
#define PARALLEL_MIN ((int64_t)1 << 18) /* multiply-adds */

typedef int8_t bytes __attribute__((vector_size(LS__LANES), aligned(1), may_alias));
typedef uint16_t halves __attribute__((vector_size(2 * LS__LANES), aligned(2), may_alias));
typedef uint32_t bits __attribute__((vector_size(LS__VEC_BYTES)));

/* LS__LANES numbers of 8 bits; compilers make the general form of one element at a time. */
LS__INLINE ls__vec load_bytes(const int8_t *w)
{
#if LS__LANES == 16 && defined(__AVX512F__)
    return (ls__vec)_mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)w)));
#elif LS__LANES == 8 && defined(__AVX2__)
    return (ls__vec)_mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)w)));
#else
    const bytes few = *(const bytes *)w;
    return __builtin_convertvector(__builtin_convertvector(few, ls__vec_mask), ls__vec);
#endif
}

/* LS__LANES weights from element `at` on. */
LS__INLINE ls__vec load_weights(const void *w, int64_t at, const bool is_int8)
{
    if (is_int8) {
        return load_bytes((const int8_t *)w + at);
    }
    const halves few = *(const halves *)((const ls__bfloat16 *)w + at);
    return (ls__vec)(__builtin_convertvector(few, bits) << 16);
}

/* What is read AHEAD bytes later: the processor itself fetches nothing ahead across pages. */
LS__INLINE void prefetch_weights(const void *w, int64_t at, const bool is_int8)
{
    const int64_t element = is_int8 ? 1 : 2;
    for (int64_t i = 0; i < STREAMS * LS__LANES * element; i += LINE) {
        __builtin_prefetch((const char *)w + at * element + AHEAD + i);
    }
}

LS__INLINE float weight_at(const void *w, int64_t at, const bool is_int8)
{
    return is_int8 ? (float)((const int8_t *)w)[at]
                   : ls__bfloat16_widen(((const ls__bfloat16 *)w)[at]);
}

LS__INLINE float sum_lanes(ls__vec v)
{
    float lane[LS__LANES], sum = 0.0f;
    ls__store(lane, v);
#pragma omp simd reduction(+ : sum)
    for (int l = 0; l < LS__LANES; l++) {
        sum += lane[l];
    }
    return sum;
}

/* sum[i] = row i of x times the row of w that begins at element `at`; both have k elements.
 * `rows` and `is_int8` are constants where this is inlined, so the sums stay in registers. */
LS__INLINE void multiply_row(float *sum, const float *x, const void *w, int64_t at, int64_t k,
                             const int rows, const bool is_int8)
{
    ls__vec sums[TILE][STREAMS];
    int64_t p = 0;
    memset(sums, 0, sizeof sums);
    for (; p + STREAMS * LS__LANES <= k; p += STREAMS * LS__LANES) {
        prefetch_weights(w, at + p, is_int8);
        for (int s = 0; s < STREAMS; s++) {
            const ls__vec v = load_weights(w, at + p + s * LS__LANES, is_int8);
            for (int i = 0; i < rows; i++) {
                sums[i][s] += ls__load(x + i * k + p + s * LS__LANES) * v;
            }
        }
    }
    for (; p + LS__LANES <= k; p += LS__LANES) {
        const ls__vec v = load_weights(w, at + p, is_int8);
        for (int i = 0; i < rows; i++) {
            sums[i][0] += ls__load(x + i * k + p) * v;
        }
    }
    for (int i = 0; i < rows; i++) {
        float all = sum_lanes((sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]));
        for (int64_t q = p; q < k; q++) {
            all += x[i * k + q] * weight_at(w, at + q, is_int8);
        }
        sum[i] = all;
    }
}

/* Rows [i,i+rows) of x with rows [from,end) of w. */
LS__INLINE void multiply_tile(const ls__linear_rounded *l, int64_t i, int64_t from, int64_t end,
                              const int rows, const bool is_int8)
{
    for (int64_t j = from; j < end; j++) {
        float sum[TILE];
        multiply_row(sum, l->x + i * l->k, l->w, j * l->k, l->k, rows, is_int8);
        for (int r = 0; r < rows; r++) {
            const float scaled = is_int8 ? l->scale[j] * sum[r] : sum[r];
            l->y[(i + r) * l->n + j] = l->bias != NULL ? scaled + l->bias[j] : scaled;
        }
    }
}

/* All rows of x with rows [from,end) of w. */
LS__INLINE void multiply_block(const ls__linear_rounded *l, int64_t from, int64_t end,
                               const bool is_int8)
{
    int64_t i = 0;
    for (; i + TILE <= l->m; i += TILE) {
        multiply_tile(l, i, from, end, TILE, is_int8);
    }
    for (; i < l->m; i++) {
        multiply_tile(l, i, from, end, 1, is_int8);
    }
    for (i = 0; l->activates && i < l->m; i++) {
        float *y = l->y + i * l->n + from;
        LS__K(unary_block)(l->op, y, y, end - from);
    }
}

void LS__K(linear_rounded)(const ls__linear_rounded *l, ls_stream *stream)
{
    (void)stream;
    const int64_t blocks = (l->n + BLOCK - 1) / BLOCK;
    LS__PARALLEL_FOR(l->m * l->n * l->k >= PARALLEL_MIN, int64_t b = 0, b < blocks, b++, {
        const int64_t from = b * BLOCK, end = ls__min(from + BLOCK, l->n);
        if (l->scale != NULL) {
            multiply_block(l, from, end, true);
        } else {
            multiply_block(l, from, end, false);
        }
    })
}
