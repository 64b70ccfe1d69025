/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients in 8 bits or 1 bit, there and back (Tang et al., ICML 2021, section 4):
 *
 *   own gradients, in blocks ──quantise──▶ all_to_all ──▶ mean of the blocks that this rank owns
 *   mean of these blocks     ──quantise──▶ all_gather ──▶ averages
 *
 * A block is 1024 elements of a parameter, or the rest of it; encoded, a scale and the codes.
 * Blocks and their owners follow from the parameter, not from the bucket: the averages have the
 * same bits in whichever buckets they travel, so a run goes on from a checkpoint to the bit, though
 * buckets are laid out anew after its first backward.
 *
 * Scales are powers of two, so a code times its scale is exact, and in 8 bits also what is left of
 * the gradient: sent + residual = gradient to the bit. The owner of a block adds what the second
 * rounding leaves to its own residual, times the number of ranks, since its next gradient is
 * divided by it. The 1-bit code of a zero is a positive one. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/options.h"
#include "compress/state.h"

#define BLOCK 1024 /* elements with one scale */
#define EXPONENT_MIN (-100)

enum { NOTHING = -128, NOT_FINITE = -127 }; /* in place of a scale's exponent */
enum { SLOT_OUT, SLOT_IN, SLOT_ALL, SLOT_PLACES };

typedef struct quantize {
    ls_quantize_options options;
    char about[64];
    ls__residuals residuals;
} quantize;

/* ---- a block of numbers ---------------------------------------------------------------------- */

/* The exponent of the block's scale. */
static int exponent_of(const float *x, int count, int bits)
{
    float largest = 0.0f;
    double sum = 0.0;
    int exponent = 0;
    for (int i = 0; i < count; i++) {
        const float magnitude = fabsf(x[i]);
        if (!(magnitude <= 3.40282347e+38f)) {
            return NOT_FINITE;
        }
        largest = magnitude > largest ? magnitude : largest;
        sum += magnitude;
    }
    if (largest == 0.0f) {
        return NOTHING;
    }
    if (bits == 8) { /* the smallest with largest <= 127 * 2^exponent */
        (void)frexpf(largest / 127.0f, &exponent);
        exponent -= ldexpf(127.0f, exponent - 1) >= largest;
    } else { /* the one next to the mean */
        const double fraction = frexp(sum / count, &exponent);
        exponent -= fraction < 0.75;
    }
    return exponent < EXPONENT_MIN ? EXPONENT_MIN : exponent;
}

/* Rounds half to even; |x| is below 2^22. */
static float round_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no fraction */
    return (x + magic) - magic;
}

/* x becomes the difference to the encoded values. */
static void encode_block(float *x, int count, int bits, int exponent, uint8_t *codes)
{
    if (exponent == NOTHING || exponent == NOT_FINITE) {
        memset(codes, 0, (size_t)(count * bits + 7) / 8);
        memset(x, 0, (size_t)count * sizeof *x);
        return;
    }
    const float scale = ldexpf(1.0f, exponent), inverse = ldexpf(1.0f, -exponent);
    for (int i = 0; i < count && bits == 8; i++) {
        const float code = round_even(x[i] * inverse);
        ((int8_t *)codes)[i] = (int8_t)code;
        x[i] -= code * scale;
    }
    for (int i = 0; i < count && bits == 1; i += 8) {
        uint8_t byte = 0;
        for (int k = i; k < i + 8 && k < count; k++) {
            const bool negative = x[k] < 0.0f;
            byte = (uint8_t)(byte | negative << (k - i));
            x[k] -= negative ? -scale : scale;
        }
        codes[i / 8] = byte;
    }
}

static void encode_codes(float *x, int count, int bits, uint8_t *to)
{
    const int exponent = exponent_of(x, count, bits);
    to[0] = (uint8_t)exponent;
    encode_block(x, count, bits, exponent, to + 1);
}

static float scale_of(int exponent)
{
    return exponent == NOTHING ? 0.0f : exponent == NOT_FINITE ? NAN : ldexpf(1.0f, exponent);
}

/* x += the values of the codes. */
static void decode_add(const uint8_t *from, int count, int bits, float *x)
{
    const uint8_t *codes = from + 1;
    const float scale = scale_of((int8_t)from[0]);
    for (int i = 0; i < count && bits == 8; i++) {
        x[i] += (float)((const int8_t *)codes)[i] * scale;
    }
    for (int i = 0; i < count && bits == 1; i++) {
        x[i] += (codes[i / 8] >> (i % 8) & 1) != 0 ? -scale : scale;
    }
}

/* ---- a bucket -------------------------------------------------------------------------------- */

static bool is_whole(const quantize *q, const ls_bucket *bucket)
{
    return ls_bucket_dtype(bucket) != LS_FLOAT32 ||
           ls_bucket_step(bucket) < (uint64_t)q->options.start_step;
}

typedef struct block {
    float *x;
    int count;
    int owner;     /* the rank that averages it */
    int64_t place; /* where its code lies in the owner's piece of a message */
} block;

typedef struct walk { /* over the blocks of a bucket, of parameters that some rank uses */
    ls_bucket *bucket;
    int bits, ranks;
    int next_param;
    int64_t at; /* element of `param` */
    ls_bucket_param param;
    int64_t *places; /* [ranks] bytes of each owner's blocks so far; NULL: there was no memory */
} walk;

/* Every rank walks the same blocks in the same order, whatever the bucket holds. */
static walk start_walk(const quantize *q, ls_bucket *bucket)
{
    walk w = {.bucket = bucket, .bits = q->options.bits, .ranks = ls_bucket_ranks(bucket)};
    const size_t bytes = (size_t)w.ranks * sizeof *w.places;
    w.places = ls_bucket_scratch(bucket, SLOT_PLACES, bytes);
    if (w.places != NULL) {
        memset(w.places, 0, bytes);
    }
    return w;
}

static bool next_block(walk *w, block *out)
{
    while (!w->param.used || w->at >= w->param.count) {
        if (w->next_param == ls_bucket_params(w->bucket)) {
            return false;
        }
        w->param = (ls_bucket_param){.size = sizeof w->param};
        (void)ls_bucket_get_param(w->bucket, w->next_param++, &w->param);
        w->at = 0;
    }
    const int64_t left = w->param.count - w->at;
    out->x = (float *)w->param.grad + w->at;
    out->count = (int)(left < BLOCK ? left : BLOCK);
    out->owner = (int)((w->param.index + w->at / BLOCK) % w->ranks);
    out->place = w->places[out->owner];
    w->places[out->owner] += 1 + (out->count * w->bits + 7) / 8;
    w->at += BLOCK;
    return true;
}

/* Bytes of the longest piece of an owner, the same on all ranks; -1 without memory. */
static int64_t piece_bytes(const quantize *q, ls_bucket *bucket)
{
    int64_t most = 0;
    block b;
    walk w = start_walk(q, bucket);
    while (w.places != NULL && next_block(&w, &b)) {
    }
    for (int rank = 0; w.places != NULL && rank < w.ranks; rank++) {
        most = w.places[rank] > most ? w.places[rank] : most;
    }
    return w.places != NULL ? most : -1;
}

static void add_residuals(const quantize *q, const ls_bucket *bucket)
{
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        ls_bucket_param param = {.size = sizeof param};
        (void)ls_bucket_get_param(bucket, i, &param);
        if (param.used) {
            ls__residual_add(&q->residuals, &param);
        }
    }
}

/* Keeps the differences, which are in the bucket's memory, as residuals. */
static void keep_residuals(const quantize *q, const ls_bucket *bucket)
{
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        ls_bucket_param param = {.size = sizeof param};
        (void)ls_bucket_get_param(bucket, i, &param);
        char *residual = q->residuals.params[param.index].memory;
        if (param.used && residual != NULL) {
            memcpy(residual, param.grad, (size_t)param.count * sizeof(float));
        }
    }
}

static ls_status send_pieces(const quantize *q, ls_bucket *bucket, ls_exchange *out)
{
    block b;
    const int64_t bytes = piece_bytes(q, bucket);
    if (bytes < 0) {
        return ls_error_status();
    }
    const size_t all = (size_t)(bytes * ls_bucket_ranks(bucket)) + 1;
    uint8_t *to = ls_bucket_scratch(bucket, SLOT_OUT, all);
    void *from = ls_bucket_scratch(bucket, SLOT_IN, all);
    if (to == NULL || from == NULL) {
        return ls_error_status();
    }
    add_residuals(q, bucket);
    walk w = start_walk(q, bucket);
    while (next_block(&w, &b)) {
        LS_ASSERT(b.place < bytes); /* both walks find the same blocks */
        encode_codes(b.x, b.count, w.bits, to + b.owner * bytes + b.place);
    }
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = LS_EXCHANGE_ALL_TO_ALL,
                         .input = to,
                         .output = from,
                         .count = bytes,
                         .dtype = LS_UINT8};
    return LS_OK;
}

/* The mean of a block over the ranks' pieces, encoded; what that leaves is this rank's. */
static void send_mean(const walk *w, const block *b, const uint8_t *from, int64_t bytes,
                      uint8_t *to)
{
    float mean[BLOCK] = {0};
    for (int rank = 0; rank < w->ranks; rank++) {
        decode_add(from + rank * bytes + b->place, b->count, w->bits, mean);
    }
    for (int i = 0; i < b->count; i++) {
        mean[i] /= (float)w->ranks;
    }
    encode_codes(mean, b->count, w->bits, to + b->place);
    for (int i = 0; i < b->count; i++) {
        b->x[i] += (float)w->ranks * mean[i];
    }
}

static ls_status send_means(const quantize *q, ls_bucket *bucket, ls_exchange *out)
{
    block b;
    const int64_t bytes = piece_bytes(q, bucket);
    const uint8_t *from = ls_bucket_scratch(bucket, SLOT_IN, 0);
    uint8_t *to = ls_bucket_scratch(bucket, SLOT_OUT, 0);
    LS_ASSERT(bytes >= 0 && from != NULL && to != NULL); /* allocated by send_pieces */
    void *all = ls_bucket_scratch(bucket, SLOT_ALL, (size_t)(bytes * ls_bucket_ranks(bucket)) + 1);
    if (all == NULL) {
        return ls_error_status();
    }
    walk w = start_walk(q, bucket);
    while (next_block(&w, &b)) {
        if (b.owner == ls_bucket_rank(bucket)) {
            send_mean(&w, &b, from, bytes, to);
        }
    }
    keep_residuals(q, bucket);
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = LS_EXCHANGE_ALL_GATHER,
                         .input = to,
                         .output = all,
                         .count = bytes,
                         .dtype = LS_UINT8};
    return LS_OK;
}

static ls_status quantize_before(void *state, ls_bucket *bucket, int phase, ls_exchange *out,
                                 ls_stream *stream LS__UNUSED)
{
    const quantize *q = state;
    if (!is_whole(q, bucket)) {
        return phase == 0 ? send_pieces(q, bucket, out) : send_means(q, bucket, out);
    }
    if (phase == 0) {
        ls__exchange_whole(bucket, out);
    }
    return LS_OK;
}

static ls_status quantize_after(void *state, ls_bucket *bucket, int phase,
                                ls_stream *stream LS__UNUSED)
{
    const quantize *q = state;
    if (phase == 0 || is_whole(q, bucket)) {
        return LS_OK;
    }
    block b;
    const int64_t bytes = piece_bytes(q, bucket);
    const uint8_t *all = ls_bucket_scratch(bucket, SLOT_ALL, 0);
    memset(ls_bucket_memory(bucket), 0, (size_t)ls_bucket_numel(bucket) * sizeof(float));
    walk w = start_walk(q, bucket);
    while (next_block(&w, &b)) {
        decode_add(all + b.owner * bytes + b.place, b.count, w.bits, b.x);
    }
    return LS_OK;
}

/* ---- the hook -------------------------------------------------------------------------------- */

static bool wanted(const void *arg LS__UNUSED, const ls_bucket_param *param)
{
    return ls__compress_takes(param);
}

static ls_status quantize_open(void *state, const ls_bucket_param *params, int count, int rank,
                               int ranks)
{
    quantize *q = state;
    return ls__residuals_open(&q->residuals, params, count, rank, ranks, q->options.error_feedback,
                              wanted, q);
}

static ls_status quantize_visit(void *state, const char *prefix, const ls_state_visitor *visitor)
{
    return ls__residuals_visit(&((quantize *)state)->residuals, prefix, visitor);
}

static void quantize_free(void *state)
{
    quantize *q = state;
    const ls__env *env = ls__env_posix();
    ls__residuals_close(&q->residuals);
    env->release(env, q, sizeof *q);
}

ls_status ls_quantize_new(const ls_quantize_options *options, ls_comm_hook *out)
{
    LS__OPTIONS(ls_quantize_options, given, options);
    if (out == NULL || (given.bits != 1 && given.bits != 8) || given.start_step < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_quantize_new: %d bits, start_step %lld, out %p; give 1 or 8 bits, a "
                        "step >= 0, and a place for the hook",
                        given.bits, (long long)given.start_step, (void *)out);
    }
    const ls__env *env = ls__env_posix();
    quantize *q = env->allocate(env, sizeof *q);
    if (q == NULL) {
        return ls__fail(LS_ERR_MEMORY, "ls_quantize_new: no memory");
    }
    *q = (quantize){.options = given};
    (void)snprintf(q->about, sizeof q->about, "bits=%d, start=%lld, feedback=%d", given.bits,
                   (long long)given.start_step, given.error_feedback);
    const ls_comm_hook hook =
        *LS_OPTIONS(ls_comm_hook, .name = given.bits == 8 ? "int8" : "one_bit", .about = q->about,
                    .phases = 2, .state = q, .open = quantize_open, .before = quantize_before,
                    .after = quantize_after, .visit = quantize_visit, .free = quantize_free);
    return ls__hook_give(&hook, out, "ls_quantize_new");
}
