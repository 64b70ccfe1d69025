/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of which a part of the elements is sent: the largest of each rank (top_k), or places
 * that all ranks draw alike (random_k). An element that is sent leaves the residual, and is sent
 * whole, so sent + residual = gradient to the bit.
 *
 *   top_k      own (place, value) pairs [K] ──all_gather──▶ [ranks][K] ──sum in order of ranks──▶
 *   random_k   values [K] ──all_reduce──▶ values [K]
 *
 * Places are elements of the bucket. A parameter that no rank uses sends nothing, and keeps its
 * residual. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/random.h>

#include "base/assert.h"
#include "base/error.h"
#include "base/nonfinite.h"
#include "base/options.h"
#include "compress/state.h"
#include "kernel/reduce/reduce.h"

enum { SLOT_OWN, SLOT_ALL };

typedef struct sparse {
    ls_sparse_options options;
    bool random;
    char about[96];
    ls__residuals residuals;
} sparse;

typedef struct pair {
    uint32_t place;
    float value;
} pair;

/* ---- which elements -------------------------------------------------------------------------- */

/* Elements of a parameter that are sent. */
static int64_t share_of(const sparse *s, const ls_bucket_param *param)
{
    const int64_t share = (int64_t)ceil(s->options.density * (double)param->count);
    return !param->used ? 0 : share < param->count ? share : param->count;
}

/* Of finite numbers the order of magnitudes. */
static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffU;
}

/* The magnitude of which `share` elements are larger or equal, and in *above how many are larger:
 * digit by digit, from the highest. */
static uint32_t threshold_of(const float *x, int64_t count, int64_t share, int64_t *above)
{
    static const int shifts[] = {20, 10, 0};
    uint32_t prefix = 0;
    *above = 0;
    for (int digit = 0; digit < 3; digit++) {
        const int shift = shifts[digit], width = digit == 0 ? 11 : 10;
        const uint32_t mask = digit == 0 ? 0 : ~0U << (shift + width);
        int64_t histogram[1 << 11] = {0};
        for (int64_t i = 0; i < count; i++) {
            const uint32_t key = magnitude(x[i]);
            histogram[key >> shift & ((1U << width) - 1)] += (key & mask) == prefix;
        }
        int value = (1 << width) - 1;
        for (; value > 0 && *above + histogram[value] < share; value--) {
            *above += histogram[value];
        }
        prefix |= (uint32_t)value << shift;
    }
    return prefix;
}

/* Takes the elements of largest magnitude, of equal ones the first; returns how many. */
static int64_t take_largest(const float *x, int64_t count, int64_t share, uint32_t first, pair *out)
{
    int64_t above = 0, taken = 0;
    const uint32_t threshold = share > 0 ? threshold_of(x, count, share, &above) : 0;
    int64_t equal = share - above;
    for (int64_t i = 0; i < count && taken < share; i++) {
        const uint32_t key = magnitude(x[i]);
        if (key > threshold || (key == threshold && equal-- > 0)) {
            out[taken++] = (pair){first + (uint32_t)i, x[i]};
        }
    }
    return taken;
}

/* Draws `share` of `count` places, each subset as likely as any other (Knuth, volume 2, section
 * 3.4.2, algorithm S). */
static int64_t draw_places(const sparse *s, const ls_bucket_param *param, uint64_t step,
                           int64_t share, uint32_t first, uint32_t *out)
{
    const uint32_t key[2] = {(uint32_t)s->options.seed, (uint32_t)(s->options.seed >> 32)};
    uint32_t words[4] = {0};
    int64_t taken = 0;
    for (int64_t i = 0; i < param->count && taken < share; i++) {
        if (i % 4 == 0) {
            const uint32_t counter[4] = {(uint32_t)(i / 4), (uint32_t)param->index, (uint32_t)step,
                                         (uint32_t)(step >> 32)};
            ls_philox4x32(counter, key, words);
        }
        if ((uint64_t)words[i % 4] * (uint64_t)(param->count - i) >> 32 <
            (uint64_t)(share - taken)) {
            out[taken++] = first + (uint32_t)i;
        }
    }
    return taken;
}

/* ---- a bucket -------------------------------------------------------------------------------- */

/* Elements that all parameters of the bucket send. */
static int64_t total_of(const sparse *s, const ls_bucket *bucket)
{
    int64_t total = 0;
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        ls_bucket_param param = {.size = sizeof param};
        (void)ls_bucket_get_param(bucket, i, &param);
        total += share_of(s, &param);
    }
    return total;
}

/* The residual becomes the gradient, and what is sent leaves it. What is not finite is dropped: the
 * step is lost, and those after it must not be. */
static float *keep_residual(const sparse *s, const ls_bucket_param *param)
{
    float *residual = (float *)(void *)s->residuals.params[param->index].memory;
    const float *grad = param->grad;
    for (int64_t i = 0; i < param->count && residual != NULL; i++) {
        residual[i] = isfinite(grad[i]) ? grad[i] : 0.0f;
    }
    return residual;
}

static void send_largest(const sparse *s, ls_bucket *bucket, const ls_bucket_param *param,
                         pair *pairs, int64_t *at)
{
    const float *grad = param->grad, *memory = ls_bucket_memory(bucket);
    const uint32_t first = (uint32_t)(grad - memory);
    const int64_t taken = take_largest(grad, param->count, share_of(s, param), first, pairs + *at);
    float *residual = keep_residual(s, param);
    for (int64_t i = 0; i < taken && residual != NULL; i++) {
        residual[pairs[*at + i].place - first] = 0.0f;
    }
    *at += taken;
}

static void send_drawn(const sparse *s, ls_bucket *bucket, const ls_bucket_param *param,
                       uint32_t *places, float *values, int64_t *at)
{
    const float *grad = param->grad, *memory = ls_bucket_memory(bucket);
    const uint32_t first = (uint32_t)(grad - memory);
    const int64_t taken =
        draw_places(s, param, ls_bucket_step(bucket), share_of(s, param), first, places + *at);
    float *residual = keep_residual(s, param);
    for (int64_t i = 0; i < taken; i++) {
        const uint32_t place = places[*at + i] - first;
        values[*at + i] = grad[place];
        if (residual != NULL) {
            residual[place] = 0.0f;
        }
    }
    if (taken > 0 && ls__nonfinite_find(grad, LS_FLOAT32, 0, param->count) >= 0) {
        values[*at] = NAN; /* it may lie at a place that was not drawn, and all must learn of it */
    }
    *at += taken;
}

static bool is_whole(const sparse *s, const ls_bucket *bucket)
{
    return ls_bucket_dtype(bucket) != LS_FLOAT32 ||
           ls_bucket_step(bucket) < (uint64_t)s->options.start_step;
}

static ls_status sparse_before(void *state, ls_bucket *bucket, int phase LS__UNUSED,
                               ls_exchange *out, ls_stream *stream LS__UNUSED)
{
    const sparse *s = state;
    if (is_whole(s, bucket)) {
        ls__exchange_whole(bucket, out);
        return LS_OK;
    }
    if (ls_bucket_numel(bucket) > UINT32_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "a bucket of %lld elements, of which at most 2^32 - 1 have a place; set "
                        "bucket_bytes",
                        (long long)ls_bucket_numel(bucket));
    }
    const int64_t total = total_of(s, bucket);
    const size_t ranks = (size_t)ls_bucket_ranks(bucket);
    void *own = ls_bucket_scratch(bucket, SLOT_OWN, (size_t)total * sizeof(pair));
    void *all = ls_bucket_scratch(
        bucket, SLOT_ALL, (size_t)total * (s->random ? sizeof(float) : ranks * sizeof(pair)));
    if (total > 0 && (own == NULL || all == NULL)) {
        return ls_error_status();
    }
    int64_t at = 0;
    for (int i = 0; i < ls_bucket_params(bucket); i++) {
        ls_bucket_param param = {.size = sizeof param};
        LS_TRY(ls_bucket_get_param(bucket, i, &param));
        if (param.used && param.count > 0) {
            ls__residual_add(&s->residuals, &param);
            if (s->random) {
                send_drawn(s, bucket, &param, own, all, &at);
            } else {
                send_largest(s, bucket, &param, own, &at);
            }
        }
    }
    LS_ASSERT(at == total);
    *out = s->random ? (ls_exchange){.size = sizeof *out,
                                     .kind = LS_EXCHANGE_ALL_REDUCE,
                                     .input = all,
                                     .output = all,
                                     .count = total,
                                     .dtype = LS_FLOAT32,
                                     .mean = true}
                     : (ls_exchange){.size = sizeof *out,
                                     .kind = LS_EXCHANGE_ALL_GATHER,
                                     .input = own,
                                     .output = all,
                                     .count = 2 * total,
                                     .dtype = LS_INT32};
    return LS_OK;
}

static ls_status sparse_after(void *state, ls_bucket *bucket, int phase LS__UNUSED,
                              ls_stream *stream LS__UNUSED)
{
    const sparse *s = state;
    if (is_whole(s, bucket)) {
        return LS_OK;
    }
    const int64_t total = total_of(s, bucket), numel = ls_bucket_numel(bucket);
    const int ranks = ls_bucket_ranks(bucket);
    const void *own = ls_bucket_scratch(bucket, SLOT_OWN, 0);
    const void *all = ls_bucket_scratch(bucket, SLOT_ALL, 0);
    float *memory = ls_bucket_memory(bucket);
    memset(memory, 0, (size_t)numel * sizeof *memory);
    if (s->random) {
        const uint32_t *places = own;
        const float *values = all;
        for (int64_t i = 0; i < total; i++) {
            memory[places[i]] = values[i];
        }
        return LS_OK;
    }
    const pair *pairs = all;
    for (int64_t i = 0; i < total * ranks; i++) {
        if (pairs[i].place >= numel) {
            return ls__fail(LS_ERR_INTERNAL, "element %u of a bucket with %lld", pairs[i].place,
                            (long long)numel);
        }
        memory[pairs[i].place] += pairs[i].value;
    }
    ls__divide(memory, numel, LS_FLOAT32, ranks);
    return LS_OK;
}

/* ---- the hooks ------------------------------------------------------------------------------- */

static bool wanted(const void *arg LS__UNUSED, const ls_bucket_param *param)
{
    return ls__compress_takes(param);
}

static ls_status sparse_open(void *state, const ls_bucket_param *params, int count, int rank,
                             int ranks)
{
    sparse *s = state;
    return ls__residuals_open(&s->residuals, params, count, rank, ranks, s->options.error_feedback,
                              wanted, s);
}

static ls_status sparse_visit(void *state, const char *prefix, const ls_state_visitor *visitor)
{
    return ls__residuals_visit(&((sparse *)state)->residuals, prefix, visitor);
}

static void sparse_free(void *state)
{
    sparse *s = state;
    const ls__env *env = ls__env_posix();
    ls__residuals_close(&s->residuals);
    env->release(env, s, sizeof *s);
}

static ls_status make_sparse_hook(const char *caller, const ls_sparse_options *options, bool random,
                                  ls_comm_hook *out)
{
    LS_READ_OPTIONS(ls_sparse_options, given, options, caller, LS_ERR_INVALID);
    if (out == NULL || !(given.density > 0.0 && given.density <= 1.0) || given.start_step < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: density %g, start_step %lld, out %p; give a density above 0 and at "
                        "most 1, a step >= 0, and a place for the hook",
                        caller, given.density, (long long)given.start_step, (void *)out);
    }
    const ls__env *env = ls__env_posix();
    sparse *s = env->allocate(env, sizeof *s);
    if (s == NULL) {
        return ls__fail(LS_ERR_MEMORY, "%s: no memory", caller);
    }
    *s = (sparse){.options = given, .random = random};
    (void)snprintf(s->about, sizeof s->about, "density=%.9g, start=%lld, feedback=%d, seed=%llu",
                   given.density, (long long)given.start_step, given.error_feedback,
                   (unsigned long long)given.seed);
    const ls_comm_hook hook =
        *LS_OPTIONS(ls_comm_hook, .name = random ? "random_k" : "top_k", .about = s->about,
                    .state = s, .open = sparse_open, .before = sparse_before, .after = sparse_after,
                    .visit = sparse_visit, .free = sparse_free);
    return ls__hook_give(&hook, out, caller);
}

ls_status ls_top_k_new(const ls_sparse_options *options, ls_comm_hook *out)
{
    return make_sparse_hook("ls_top_k_new", options, false, out);
}

ls_status ls_random_k_new(const ls_sparse_options *options, ls_comm_hook *out)
{
    return make_sparse_hook("ls_random_k_new", options, true, out);
}
