/* SPDX-License-Identifier: Apache-2.0 */
/* A row of attention: scores of one query, and their gradients. Shared by the kernels of float32
 * (attention.c) and of bfloat16 on matrix tiles (attention_tiles.c); all of it is float32. */
#ifndef LS_KERNEL_CPU_ATTENTION_ROWS_H
#define LS_KERNEL_CPU_ATTENTION_ROWS_H

#include "kernel/cpu/vmath.h"

#define LS__ATTENTION_SLOTS 16 /* threads of one call, each with a slot of the workspace */

/* attention_tiles.c */
bool LS__K(attention_is_tiled)(const ls__attention *a);
size_t LS__K(attention_tiles_workspace)(const ls__attention *a, bool backward);
void LS__K(attention_tiles_group)(const ls__attention *a, int64_t group, bool backward);

typedef struct ls__kernel_place { /* where a head's elements begin */
    int64_t index;                /* b H + h */
    int64_t q, k, v, o;
    const float *mask; /* of the head; NULL: none */
    float *lse;
} ls__kernel_place;

/* Head `member` of those that share keys and values. */
static inline ls__kernel_place ls__place_of(const ls__attention *a, int64_t group, int64_t member)
{
    int64_t b = group / a->kv_heads, g = group % a->kv_heads;
    int64_t h = g * (a->heads / a->kv_heads) + member;
    int64_t index = b * a->heads + h;
    return (ls__kernel_place){.index = index,
                              .q = b * a->q_b + h * a->q_h,
                              .k = b * a->k_b + g * a->k_h,
                              .v = b * a->v_b + g * a->v_h,
                              .o = b * a->o_b + h * a->o_h,
                              .mask = a->mask != NULL ? a->mask + b * a->m_b + h * a->m_h : NULL,
                              .lse = a->lse + index * a->time};
}

typedef struct ls__row {
    int64_t head;      /* b H + h */
    int64_t query;     /* t */
    int64_t width;     /* of the buffers, a multiple of the vector: columns beyond the keys are 0 */
    const float *mask; /* of the head; NULL: none */
    float *keep;       /* [width] for dropout in backward */
} ls__row;

/* Keys that a query sees. */
static inline int64_t ls__row_keys(const ls__attention *a, int64_t query)
{
    return a->causal ? query + 1 + a->keys - a->time : a->keys;
}

/* Rows end anywhere, vectors do not: [n, end of the vector) gets `value`, the rest up to width 0.
 * Returns the rounded end; the row's loops then need no scalar remainder. */
LS__INLINE int64_t ls__row_pad(float *row, int64_t n, int64_t width, float value)
{
    int64_t end = (n + LS__LANES - 1) / LS__LANES * LS__LANES;
    for (int64_t j = n; j < end; j++) {
        row[j] = value;
    }
    for (int64_t j = end; j < width; j += LS__LANES) {
        ls__store(row + j, (ls__vec){0.0f});
    }
    return end;
}

static inline void ls__row_mask(const ls__attention *a, const ls__row *r, float *scores, int64_t n)
{
    const float *mask = r->mask + r->query * a->m_t;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        scores[j] += mask[j];
    }
}

/* Drops n weights; in and out may be one. */
static inline void ls__row_drop(const ls__attention *a, const ls__row *r, float *weights, int64_t n)
{
    const int64_t b = r->head / a->heads, h = r->head % a->heads;
    const ls__drop drop = {.p = a->dropout,
                           .seed = a->seed,
                           .stream_id = a->stream_id,
                           .first =
                               a->first + (uint64_t)(b * a->w_b + h * a->w_h + r->query * a->w_t)};
    LS__K(dropout)(weights, weights, n, &drop, 0.0f, NULL);
}

/* row = exp(row - max) for the first n, 0 for the rest; returns max and sum. */
static inline float ls__row_exp(float *row, int64_t n, int64_t width, float *out_max)
{
    int64_t end = ls__row_pad(row, n, width, -INFINITY);
    float max = ls__row_max(row, end), sum = 0.0f;
    max = max == -INFINITY ? 0.0f : max; /* no key is seen: all become 0 */
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < end; j++) {
        row[j] = ls__exp(row[j] - max);
        sum += row[j];
    }
    *out_max = max;
    return sum;
}

/* Scores become exp(score - max), dropped; returns the factor still to be applied. */
static inline float ls__row_softmax(const ls__attention *a, const ls__row *r, float *scores,
                                    float *lse)
{
    float max;
    int64_t n = ls__row_keys(a, r->query);
    if (r->mask != NULL) {
        ls__row_mask(a, r, scores, n);
    }
    float sum = ls__row_exp(scores, n, r->width, &max);
    bool seen = sum != 0.0f;
    *lse = seen ? max + logf(sum) : INFINITY;
    if (a->dropout > 0.0) {
        ls__row_drop(a, r, scores, n);
    }
    return seen ? 1.0f / sum : 0.0f;
}

/* With dropout: p is P, ds dropped(P)'s gradient; they become dropped(P) and scale dS. */
static inline void ls__row_gradient_dropped(const ls__attention *a, const ls__row *r, float *p,
                                            float *ds, int64_t n, float delta)
{
    float scale = a->scale, *keep = r->keep;
    for (int64_t j = 0; j < n; j++) {
        keep[j] = 1.0f;
    }
    ls__row_drop(a, r, keep, n);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        ds[j] = scale * p[j] * (ds[j] * keep[j] - delta);
        p[j] *= keep[j];
    }
}

/* Scores p become P (dropped), gradients ds of P become scale dS. */
static inline void ls__row_gradient(const ls__attention *a, const ls__row *r, float *p, float *ds,
                                    float lse, float delta)
{
    int64_t n = ls__row_keys(a, r->query);
    float scale = a->scale;
    if (r->mask != NULL) {
        ls__row_mask(a, r, p, n);
    }
    int64_t end = ls__row_pad(p, n, r->width, -INFINITY);
    ls__row_pad(ds, n, r->width, delta);
    if (a->dropout > 0.0) {
#pragma omp simd
        for (int64_t j = 0; j < end; j++) {
            p[j] = ls__exp(p[j] - lse);
        }
        ls__row_gradient_dropped(a, r, p, ds, n, delta);
        ls__row_pad(ds, n, r->width, 0.0f);
        return;
    }
#pragma omp simd
    for (int64_t j = 0; j < end; j++) {
        p[j] = ls__exp(p[j] - lse);
        ds[j] = scale * p[j] * (ds[j] - delta);
    }
}

#endif
