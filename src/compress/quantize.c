/* Gradients in 8 bits or 1 bit, there and back (Tang et al., ICML 2021, section 4):
 *
 *   own bucket, in parts for all ranks ──quantise──▶ all_to_all ──▶ mean of one part
 *   mean of one part                   ──quantise──▶ all_gather ──▶ averages
 *
 * A part is [scales][codes]. Scales are powers of two, so a code times its scale is exact, and in 8
 * bits also what is left of the gradient: sent + residual = gradient to the bit. The rank that
 * averages a part adds what the second rounding leaves to its own residual, times the number of
 * ranks, since its next gradient is divided by it. The 1-bit code of a zero is a positive one; the
 * gaps between parameters are cleared again. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "compress/state.h"

#define BLOCK 1024 /* elements with one scale */
#define EXPONENT_MIN (-100)

enum { NOTHING = -128, NOT_FINITE = -127 }; /* in place of a scale's exponent */
enum { SLOT_OUT, SLOT_IN, SLOT_MEAN, SLOT_ALL };

typedef struct quantize {
    ls_quantize_options options;
    char about[64];
    ls__residuals residuals;
} quantize;

/* ---- a part ----------------------------------------------------------------------------------- */

static int64_t blocks_of(int64_t count)
{
    return (count + BLOCK - 1) / BLOCK;
}

/* Bytes of an encoded part of `count` elements, a multiple of 8. */
static int64_t bytes_of(int bits, int64_t count)
{
    return blocks_of(count) + (count * bits + 7) / 8;
}

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
        exponent -= frexp(sum / count, &exponent) < 0.75;
    }
    return exponent < EXPONENT_MIN ? EXPONENT_MIN : exponent;
}

/* Rounds half to even; |x| is below 2^22. */
static float round_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum has no fraction */
    return (x + magic) - magic;
}

/* x becomes what is left of it. */
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

static void encode(float *x, int64_t count, int bits, uint8_t *to)
{
    uint8_t *codes = to + blocks_of(count);
    for (int64_t at = 0; at < count; at += BLOCK) {
        const int length = (int)(count - at < BLOCK ? count - at : BLOCK);
        const int exponent = exponent_of(x + at, length, bits);
        ((int8_t *)to)[at / BLOCK] = (int8_t)exponent;
        encode_block(x + at, length, bits, exponent, codes + at * bits / 8);
    }
}

static float scale_of(int exponent)
{
    return exponent == NOTHING ? 0.0f : exponent == NOT_FINITE ? NAN : ldexpf(1.0f, exponent);
}

/* x += the values of the codes. */
static void decode_add(const uint8_t *from, int64_t count, int bits, float *x)
{
    const uint8_t *codes = from + blocks_of(count);
    for (int64_t block = 0; block < blocks_of(count); block++) {
        const float scale = scale_of(((const int8_t *)from)[block]);
        const int64_t begin = block * BLOCK, end = begin + BLOCK < count ? begin + BLOCK : count;
        for (int64_t i = begin; i < end && bits == 8; i++) {
            x[i] += (float)((const int8_t *)codes)[i] * scale;
        }
        for (int64_t i = begin; i < end && bits == 1; i++) {
            x[i] += (codes[i / 8] >> (i % 8) & 1) != 0 ? -scale : scale;
        }
    }
}

/* ---- a bucket --------------------------------------------------------------------------------- */

static bool is_whole(const quantize *q, const ls_bucket *bucket)
{
    return ls_bucket_dtype(bucket) != LS_FLOAT32 ||
           ls_bucket_step(bucket) < (uint64_t)q->options.start_step;
}

/* Elements that a rank averages: buckets are padded to 64 bytes for each rank. */
static int64_t part_of(const ls_bucket *bucket)
{
    return ls_bucket_numel(bucket) / ls_bucket_ranks(bucket);
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

/* The bucket's memory holds what is left of the gradients. */
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

/* Gaps, and parameters that no rank uses. */
static void clear_unused(ls_bucket *bucket)
{
    float *at = ls_bucket_memory(bucket), *const end = at + ls_bucket_numel(bucket);
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        ls_bucket_param param = {.size = sizeof param};
        (void)ls_bucket_get_param(bucket, i, &param);
        float *grad = param.grad;
        memset(at, 0, (size_t)(grad - at) * sizeof *at);
        at = param.used ? grad + param.count : grad;
    }
    memset(at, 0, (size_t)(end - at) * sizeof *at);
}

static ls_status send_parts(const quantize *q, ls_bucket *bucket, ls_exchange *out)
{
    const int64_t count = part_of(bucket), bytes = bytes_of(q->options.bits, count);
    const int ranks = ls_bucket_ranks(bucket);
    float *memory = ls_bucket_memory(bucket);
    uint8_t *to = ls_bucket_scratch(bucket, SLOT_OUT, (size_t)(bytes * ranks));
    void *from = ls_bucket_scratch(bucket, SLOT_IN, (size_t)(bytes * ranks));
    if (to == NULL || from == NULL) {
        return ls_error_status();
    }
    add_residuals(q, bucket);
    for (int rank = 0; rank < ranks; rank++) {
        encode(memory + rank * count, count, q->options.bits, to + rank * bytes);
    }
    *out = (ls_exchange){.size = sizeof *out,
                         .kind = LS_EXCHANGE_ALL_TO_ALL,
                         .input = to,
                         .output = from,
                         .count = bytes,
                         .dtype = LS_UINT8};
    return LS_OK;
}

static ls_status send_mean(const quantize *q, ls_bucket *bucket, ls_exchange *out)
{
    const int64_t count = part_of(bucket), bytes = bytes_of(q->options.bits, count);
    const int ranks = ls_bucket_ranks(bucket), rank = ls_bucket_rank(bucket);
    const uint8_t *from = ls_bucket_scratch(bucket, SLOT_IN, 0);
    uint8_t *to = ls_bucket_scratch(bucket, SLOT_OUT, 0);
    float *mean = ls_bucket_scratch(bucket, SLOT_MEAN, (size_t)count * sizeof *mean);
    void *all = ls_bucket_scratch(bucket, SLOT_ALL, (size_t)(bytes * ranks));
    if (mean == NULL || all == NULL) {
        return ls_error_status();
    }
    memset(mean, 0, (size_t)count * sizeof *mean);
    for (int from_rank = 0; from_rank < ranks; from_rank++) {
        decode_add(from + from_rank * bytes, count, q->options.bits, mean);
    }
    for (int64_t i = 0; i < count; i++) {
        mean[i] /= (float)ranks;
    }
    encode(mean, count, q->options.bits, to);
    float *left = (float *)ls_bucket_memory(bucket) + rank * count;
    for (int64_t i = 0; i < count; i++) {
        left[i] += (float)ranks * mean[i];
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
        return phase == 0 ? send_parts(q, bucket, out) : send_mean(q, bucket, out);
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
    const int64_t count = part_of(bucket), bytes = bytes_of(q->options.bits, count);
    const uint8_t *all = ls_bucket_scratch(bucket, SLOT_ALL, 0);
    float *memory = ls_bucket_memory(bucket);
    memset(memory, 0, (size_t)ls_bucket_numel(bucket) * sizeof *memory);
    for (int rank = 0; rank < ls_bucket_ranks(bucket); rank++) {
        decode_add(all + rank * bytes, count, q->options.bits, memory + rank * count);
    }
    clear_unused(bucket);
    return LS_OK;
}

/* ---- the hook --------------------------------------------------------------------------------- */

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
    *out =
        *LS_OPTIONS(ls_comm_hook, .name = given.bits == 8 ? "int8" : "one_bit", .about = q->about,
                    .phases = 2, .state = q, .open = quantize_open, .before = quantize_before,
                    .after = quantize_after, .visit = quantize_visit, .free = quantize_free);
    return LS_OK;
}
