/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of bfloat16 on matrix tiles: the tiles of queries, rows and sums of attention.c, with
 * products of bfloat16 and sums of float32. P and dS are rounded before they are multiplied again,
 * as in PyTorch; the rows in between are float32.
 *
 * A product's right side lies as pairs of rows (tiles.h). With T a tile of 32 queries:
 *
 *     S = T K^T    dP = dT V^T       K^T and V^T in pairs, once a group of heads
 *     o = P V      dQ = dS K         V and K in pairs
 *     dV^T += dT^T P                 left the tile transposed, right P in pairs
 *     dK^T += T^T dS                 sums over the tiles stay [D,S], and are transposed in the end
 *
 * Head sizes and keys are filled up to multiples of 32 with zeros.
 *
 * The products are packed in the cache and too small for a library's call. Permission to use the
 * tiles is requested from the system by oneDNN, so a build without it does not use this file. */
#include "kernel/cpu/attention_rows.h"
#include "kernel/cpu/halves.h"
#include "kernel/cpu/tiles.h"
#include "kernel/cpu/transpose.h"

#define TILE LS__TILE_SIDE
#define TIME_MIN 24 /* queries, below which packing costs more than tiles save */
#define DIM_MAX 256

#if LS__LANES == 16 && defined(__AVX512F__)

typedef struct slot { /* of a thread; keys and dim are rounded up */
    int64_t keys, dim;
    uint32_t *keys_t, *values_t;  /* [dim/2,keys]: pairs of K^T and V^T */
    uint32_t *rows;               /* [keys/2,dim]: pairs of V, in backward of K */
    ls__bfloat16 *copy;           /* [keys,dim] while packing */
    ls__bfloat16 *q, *d_o;        /* [TILE,dim] */
    ls__bfloat16 *q_t, *d_o_t;    /* [dim,TILE] */
    uint32_t *pairs;              /* [dim/2,TILE] while transposing */
    float *scores, *grads;        /* [TILE,keys] */
    ls__bfloat16 *left;           /* [TILE,keys]: P or dS */
    uint32_t *p_pairs, *ds_pairs; /* [TILE/2,keys] */
    float *out;                   /* [TILE,dim] */
    float *dk_t, *dv_t;           /* [dim,keys] */
    float *wide;                  /* [keys,dim] while transposing back */
    float *keep;                  /* [keys] */
} slot;

/* The matrix unit multiplies whole tiles, so keys and head size are padded to its side. */
static int64_t rounded(int64_t n)
{
    return (n + TILE - 1) / TILE * TILE;
}

typedef struct layout { /* of a slot, as its parts are placed one after the other */
    char *memory;       /* NULL: only the size is asked for */
    int64_t used;
} layout;

/* The next `bytes`, all multiples of 64. */
static void *part(layout *r, int64_t bytes)
{
    void *out = r->memory != NULL ? r->memory + r->used : NULL;
    r->used += bytes;
    return out;
}

/* Places the parts of a slot in `memory` and returns their bytes; with NULL it only measures. */
static int64_t slot_of(slot *s, const ls__attention *a, bool backward, void *memory)
{
    const int64_t keys = rounded(a->keys), dim = rounded(a->dim);
    layout r = {memory, 0};
    *s = (slot){.keys = keys, .dim = dim};
    s->keys_t = part(&r, dim * keys * 2);
    s->rows = part(&r, dim * keys * 2);
    s->copy = part(&r, dim * keys * 2);
    s->q = part(&r, TILE * dim * 2);
    s->scores = part(&r, TILE * keys * 4);
    s->left = part(&r, TILE * keys * 2);
    s->out = part(&r, TILE * dim * 4);
    if (backward) {
        s->values_t = part(&r, dim * keys * 2);
        s->d_o = part(&r, TILE * dim * 2);
        s->q_t = part(&r, TILE * dim * 2);
        s->d_o_t = part(&r, TILE * dim * 2);
        s->pairs = part(&r, TILE * dim * 2);
        s->grads = part(&r, TILE * keys * 4);
        s->p_pairs = part(&r, TILE * keys * 2);
        s->ds_pairs = part(&r, TILE * keys * 2);
        s->dk_t = part(&r, dim * keys * 4);
        s->dv_t = part(&r, dim * keys * 4);
        s->wide = part(&r, dim * keys * 4);
        s->keep = part(&r, keys * 4);
    }
    return r.used;
}

/* Whether the tiles take this call: bfloat16, enough queries to pay for packing, heads that fit,
 * and a processor and system that allow the tiles. */
bool LS__K(attention_is_tiled)(const ls__attention *a)
{
    return a->half && a->time >= TIME_MIN && a->dim <= DIM_MAX && ls__tiles_usable();
}

/* A slot a thread. slot_of without memory only measures. */
size_t LS__K(attention_tiles_workspace)(const ls__attention *a, bool backward)
{
    slot s;
    return (size_t)(ls__min(LS__ATTENTION_SLOTS, a->batch * a->kv_heads) *
                    slot_of(&s, a, backward, NULL));
}

/* ---- packing ------------------------------------------------------------------------------ */

/* out [whole,dim] = x [rows, a's dim], dense, zero beyond both sizes. */
static void copy_rows(const slot *s, ls__bfloat16 *out, const ls__bfloat16 *x, int64_t x_t,
                      int64_t rows, int64_t whole, int64_t dim)
{
    for (int64_t t = 0; t < rows; t++) {
        memcpy(out + t * s->dim, x + t * x_t, (size_t)dim * sizeof *x);
        memset(out + t * s->dim + dim, 0, (size_t)(s->dim - dim) * sizeof *x);
    }
    memset(out + rows * s->dim, 0, (size_t)((whole - rows) * s->dim) * sizeof *x);
}

/* Pairs of the rows of x [rows,dim], as tiles.h wants a right side: row 2i in the lower halves
 * of the words of out [rows/2,dim], row 2i + 1 in the upper ones. */
static void pair_rows(uint32_t *restrict out, const ls__bfloat16 *restrict x, int64_t rows,
                      int64_t dim)
{
    for (int64_t t = 0; t < rows; t += 2, out += dim) {
        const ls__bfloat16 *low = x + t * dim, *high = low + dim;
#pragma omp simd
        for (int64_t d = 0; d < dim; d++) {
            out[d] = (uint32_t)low[d] | (uint32_t)high[d] << 16;
        }
    }
}

/* out [dim,TILE] = x^T, made through its pairs. */
static void transpose_tile(const slot *s, ls__bfloat16 *restrict out, const ls__bfloat16 *x)
{
    ls__transpose_bits(s->pairs, TILE, x, s->dim / 2, TILE, s->dim / 2);
    for (int64_t d = 0; d < s->dim / 2; d++) {
        const uint32_t *both = s->pairs + d * TILE;
        ls__bfloat16 *low = out + 2 * d * TILE, *high = low + TILE;
#pragma omp simd
        for (int64_t t = 0; t < TILE; t++) {
            low[t] = (ls__bfloat16)both[t];
            high[t] = (ls__bfloat16)(both[t] >> 16);
        }
    }
}

/* Where a head's elements begin. */
typedef struct head {
    int64_t index; /* b H + h */
    const ls__bfloat16 *q, *k, *v, *o, *d_o;
    ls__bfloat16 *out, *dq, *dk, *dv;
    const float *mask;
    float *lse;
} head;

/* The pointers of an ls__attention are to bfloat16. */
static ls__bfloat16 *halves_at(const float *x, int64_t at)
{
    return x != NULL ? (ls__bfloat16 *)(void *)(uintptr_t)x + at : NULL;
}

/* Head `member` of a group, as pointers to bfloat16; the memory is the caller's. */
static head head_of(const ls__attention *a, int64_t group, int64_t member)
{
    const ls__kernel_place at = ls__place_of(a, group, member);
    return (head){.index = at.index,
                  .q = halves_at(a->q, at.q),
                  .k = halves_at(a->k, at.k),
                  .v = halves_at(a->v, at.v),
                  .o = halves_at(a->o, at.o),
                  .d_o = halves_at(a->d_o, at.o),
                  .out = halves_at(a->o, at.o),
                  .dq = halves_at(a->dq, at.q),
                  .dk = halves_at(a->dk, at.k),
                  .dv = halves_at(a->dv, at.v),
                  .mask = at.mask,
                  .lse = at.lse};
}

/* Once a group, not once a head: the pairs of K and V serve every head that shares them. */
static void pack_group(const ls__attention *a, const slot *s, const head *h, bool backward)
{
    copy_rows(s, s->copy, h->k, a->k_t, a->keys, s->keys, a->dim);
    ls__transpose_bits(s->keys_t, s->keys, s->copy, s->dim / 2, s->keys, s->dim / 2);
    if (backward) {
        pair_rows(s->rows, s->copy, s->keys, s->dim);
        memset(s->dk_t, 0, (size_t)(s->dim * s->keys) * sizeof(float));
        memset(s->dv_t, 0, (size_t)(s->dim * s->keys) * sizeof(float));
    }
    copy_rows(s, s->copy, h->v, a->v_t, a->keys, s->keys, a->dim);
    if (backward) {
        ls__transpose_bits(s->values_t, s->keys, s->copy, s->dim / 2, s->keys, s->dim / 2);
    } else {
        pair_rows(s->rows, s->copy, s->keys, s->dim);
    }
}

/* ---- forward ------------------------------------------------------------------------------ */

/* Keys that a tile from query `first` on may see, rounded up. */
static int64_t keys_of(const ls__attention *a, const slot *s, int64_t first)
{
    return ls__min(s->keys, rounded(ls__row_keys(a, first + TILE - 1)));
}

/* scores = T K^T, and likewise for their gradients. */
static void multiply_keys(const slot *s, const ls__bfloat16 *tile, const uint32_t *keys, float *out,
                          int64_t nk)
{
    ls__tiles_run(&(ls__tiles_product){.m = TILE,
                                       .n = nk,
                                       .k = s->dim,
                                       .a = tile,
                                       .a_row = s->dim,
                                       .b = keys,
                                       .b_row = s->keys,
                                       .c = out,
                                       .c_row = s->keys});
}

/* out [TILE,dim] = left times V or K. */
static void multiply_rows(const slot *s, int64_t nk)
{
    ls__tiles_run(&(ls__tiles_product){.m = TILE,
                                       .n = s->dim,
                                       .k = nk,
                                       .a = s->left,
                                       .a_row = s->keys,
                                       .b = s->rows,
                                       .b_row = s->dim,
                                       .c = s->out,
                                       .c_row = s->dim});
}

/* The matrix unit has no scale, so it is applied to the float32 result. */
static void scale_row(float *row, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        row[j] *= scale;
    }
}

/* Rows beyond the last query are filled with zeros, because the matrix unit always multiplies whole
 * tiles; their outputs are not stored. */
static void forward_tile(const ls__attention *a, const slot *s, const head *h, int64_t first)
{
    const int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, s, first);
    float scale[TILE];
    copy_rows(s, s->q, h->q + first * a->q_t, a->q_t, rows, TILE, a->dim);
    multiply_keys(s, s->q, s->keys_t, s->scores, nk);
    for (int64_t i = 0; i < rows; i++) {
        const ls__row row = {h->index, first + i, nk, h->mask, NULL};
        float *scores = s->scores + i * s->keys;
        scale_row(scores, a->scale, nk);
        scale[i] = ls__row_softmax(a, &row, scores, &h->lse[first + i]);
        ls__halves_narrow(s->left + i * s->keys, scores, nk);
    }
    for (int64_t i = rows; i < TILE; i++) {
        memset(s->left + i * s->keys, 0, (size_t)nk * sizeof *s->left);
    }
    multiply_rows(s, nk);
    for (int64_t i = 0; i < rows; i++) {
        scale_row(s->out + i * s->dim, scale[i], a->dim);
        ls__halves_narrow(h->out + (first + i) * a->o_t, s->out + i * s->dim, a->dim);
    }
}

/* ---- backward ----------------------------------------------------------------------------- */

/* delta = o · dO of one query, in float32: the rounded output is what forward delivered. */
static float dot(const ls__bfloat16 *x, const ls__bfloat16 *y, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += ls__bfloat16_widen(x[i]) * ls__bfloat16_widen(y[i]);
    }
    return sum;
}

/* Pairs of the rows of x [TILE,keys], up to column n. */
static void pair_floats(const slot *s, uint32_t *out, const float *x, int64_t n)
{
    for (int64_t i = 0; i < TILE; i += 2) {
        const float *low = x + i * s->keys, *high = low + s->keys;
        uint32_t *to = out + i / 2 * s->keys;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            to[j] = (uint32_t)ls__bfloat16_round(low[j]) | (uint32_t)ls__bfloat16_round(high[j])
                                                               << 16;
        }
    }
}

/* sums [dim,keys] += tile_t right */
static void add_gradient(const slot *s, float *sums, const ls__bfloat16 *tile_t,
                         const uint32_t *right, int64_t nk)
{
    ls__tiles_run(&(ls__tiles_product){.m = s->dim,
                                       .n = nk,
                                       .k = TILE,
                                       .a = tile_t,
                                       .a_row = TILE,
                                       .b = right,
                                       .b_row = s->keys,
                                       .c = sums,
                                       .c_row = s->keys,
                                       .accumulate = true});
}

/* By rows of a tile: scores become P, grads scale dS, and the left side of dQ's product is dS
 * rounded; all zero beyond the queries. */
static void gradient_rows(const ls__attention *a, const slot *s, const head *h, int64_t first,
                          int64_t nk)
{
    const int64_t rows = ls__min(TILE, a->time - first);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t t = first + i;
        const ls__row row = {h->index, t, nk, h->mask, s->keep};
        float *p = s->scores + i * s->keys, *ds = s->grads + i * s->keys;
        float delta = dot(h->o + t * a->o_t, h->d_o + t * a->o_t, a->dim);
        scale_row(p, a->scale, nk);
        ls__row_gradient(a, &row, p, ds, h->lse[t], delta);
        ls__halves_narrow(s->left + i * s->keys, ds, nk);
    }
    for (int64_t i = rows; i < TILE; i++) {
        memset(s->scores + i * s->keys, 0, (size_t)nk * sizeof *s->scores);
        memset(s->grads + i * s->keys, 0, (size_t)nk * sizeof *s->grads);
        memset(s->left + i * s->keys, 0, (size_t)nk * sizeof *s->left);
    }
}

/* The tile's queries and output gradients are needed in both directions, so each is copied once and
 * transposed once. dk and dv grow transposed and are transposed back when the group is done. */
static void backward_tile(const ls__attention *a, const slot *s, const head *h, int64_t first)
{
    const int64_t rows = ls__min(TILE, a->time - first), nk = keys_of(a, s, first);
    copy_rows(s, s->q, h->q + first * a->q_t, a->q_t, rows, TILE, a->dim);
    copy_rows(s, s->d_o, h->d_o + first * a->o_t, a->o_t, rows, TILE, a->dim);
    transpose_tile(s, s->q_t, s->q);
    transpose_tile(s, s->d_o_t, s->d_o);
    multiply_keys(s, s->q, s->keys_t, s->scores, nk);
    multiply_keys(s, s->d_o, s->values_t, s->grads, nk);
    gradient_rows(a, s, h, first, nk);
    pair_floats(s, s->p_pairs, s->scores, nk);
    pair_floats(s, s->ds_pairs, s->grads, nk);
    add_gradient(s, s->dv_t, s->d_o_t, s->p_pairs, nk);
    add_gradient(s, s->dk_t, s->q_t, s->ds_pairs, nk);
    multiply_rows(s, nk);
    for (int64_t i = 0; i < rows; i++) {
        ls__halves_narrow(h->dq + (first + i) * a->q_t, s->out + i * s->dim, a->dim);
    }
}

/* Writes sums^T, the finished dK or dV [keys,dim] of a group, rounded once to bfloat16. */
static void store_transposed(const ls__attention *a, const slot *s, ls__bfloat16 *out,
                             int64_t out_t, const float *sums)
{
    ls__transpose(s->wide, s->dim, sums, s->keys, s->dim, s->keys, 1.0f);
    for (int64_t t = 0; t < a->keys; t++) {
        ls__halves_narrow(out + t * out_t, s->wide + t * s->dim, a->dim);
    }
}

/* All heads that share keys and values, on this thread. */
void LS__K(attention_tiles_group)(const ls__attention *a, int64_t group, bool backward)
{
    slot s;
    int64_t bytes = slot_of(&s, a, backward, NULL);
    (void)slot_of(&s, a, backward, (char *)a->workspace + ls__thread_index() * bytes);
    head h = head_of(a, group, 0);
    pack_group(a, &s, &h, backward);
    ls__tiles_begin();
    for (int64_t member = 0; member < a->heads / a->kv_heads; member++) {
        h = head_of(a, group, member);
        for (int64_t first = 0; first < a->time; first += TILE) {
            if (backward) {
                backward_tile(a, &s, &h, first);
            } else {
                forward_tile(a, &s, &h, first);
            }
        }
    }
    ls__tiles_end();
    if (backward) {
        store_transposed(a, &s, h.dk, a->k_t, s.dk_t);
        store_transposed(a, &s, h.dv, a->v_t, s.dv_t);
    }
}

#else /* an instruction set without the tiles: never chosen, so the others are never called */

bool LS__K(attention_is_tiled)(const ls__attention *a)
{
    (void)a;
    return false;
}

size_t LS__K(attention_tiles_workspace)(const ls__attention *a, bool backward)
{
    (void)a, (void)backward;
    return 0;
}

void LS__K(attention_tiles_group)(const ls__attention *a, int64_t group, bool backward)
{
    (void)a, (void)group, (void)backward;
}

#endif
