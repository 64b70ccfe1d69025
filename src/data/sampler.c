/* SPDX-License-Identifier: Apache-2.0 */
/* The distributed sampler: which global sample stands at which position of an epoch, and which
 * positions a rank reads.
 *
 *     positions  0 … count-1, cut into steps of batch*size, each step into a block per rank
 *     sample(position) = a permutation of [0,count) keyed by (seed, epoch)
 *
 * The permutation is a Feistel network whose round function is Philox (Luby & Rackoff 1988), over
 * the smallest even number of bits that holds count; a value outside [0,count) is encrypted again
 * until it falls inside (cycle walking, Black & Rogaway 2002), on average less than four times. So
 * nothing is stored, any rank can compute any other's order, and the order does not know the number
 * of ranks.
 */
#include "data/sampler.h"

#include <lockstep/random.h>
#include <lockstep/runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "base/config.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/options.h"
#include "base/size.h"

#define SHARED_MAX ((int64_t)1 << 31) /* samples of a step in shares: products fit into 64 bits */
#define FEISTEL_ROUNDS 8 /* 4 are enough for wide halves; narrow ones mix less in each */

/* Immutable after construction, except for the seed, which ls_loader_state may set while the
 * reader is stopped. The reader's thread may therefore read it without a lock. */
struct ls_sampler {
    int64_t count, batch, steps, global_batch;
    int64_t *offsets; /* [world_size + 1] of the ranks' samples in a full step; NULL: all have
                         `batch` */
    bool shuffle, drop_last;
    uint64_t seed;
    int rank, world_size;
    int half_bits;
};

/* One permutation: `stream` 0 is the one all ranks share, r + 1 is rank r's own. */
typedef struct shuffle {
    const ls_sampler *sampler;
    uint64_t epoch;
    uint32_t stream;
} shuffle;

/* Philox in counter mode serves as the round function; all inputs are in the counter or the key,
 * so no state is kept. */
static uint32_t feistel_round(const shuffle *p, uint32_t round, uint32_t half)
{
    const ls_sampler *s = p->sampler;
    const uint32_t counter[4] = {half, round | p->stream << 8, (uint32_t)p->epoch,
                                 (uint32_t)(p->epoch >> 32)};
    const uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
    uint32_t out[4];
    ls_philox4x32(counter, key, out);
    return out[0] & (uint32_t)(((uint64_t)1 << s->half_bits) - 1);
}

/* A permutation of the numbers of 2 * half_bits bits, whatever feistel_round returns. */
static uint64_t encrypt(const shuffle *p, uint64_t value)
{
    const int half_bits = p->sampler->half_bits;
    uint32_t left = (uint32_t)(value >> half_bits);
    uint32_t right = (uint32_t)(value & (((uint64_t)1 << half_bits) - 1));
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t mixed = left ^ feistel_round(p, round, right);
        left = right;
        right = mixed;
    }
    return ((uint64_t)left << half_bits) | right;
}

/* Terminates: the permutation's cycle returns to `position`, which is inside. A count of 1 is
 * excluded, because its domain of 4 values would be walked for nothing. */
static int64_t sample_at(const shuffle *p, int64_t position)
{
    const ls_sampler *s = p->sampler;
    if (!s->shuffle || s->count == 1) {
        return position;
    }
    uint64_t value = (uint64_t)position;
    do {
        value = encrypt(p, value);
    } while (value >= (uint64_t)s->count);
    return (int64_t)value;
}

/* The smallest half for which 2 halves hold count, hence a domain of less than 4 * count values
 * and few repetitions in sample_at. At least 1. */
static int half_bits_of(int64_t count)
{
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < count) {
        half++;
    }
    return half;
}

/* A sampler for other ranks than this process's is allowed: rank and world_size are options. */
static ls_status check(int64_t count, const ls_sampler *s)
{
    if (s->batch < 1) {
        return ls__fail(LS_ERR_INVALID, "sampler: batch is %lld; it must be at least 1",
                        (long long)s->batch);
    }
    if (s->world_size < 1 || s->rank < 0 || s->rank >= s->world_size) {
        return ls__fail(
            LS_ERR_INVALID,
            "sampler: rank %d of %d ranks is not valid; give at least 1 rank, and a rank below "
            "their number",
            s->rank, s->world_size);
    }
    if (count < s->world_size) {
        return ls__fail(LS_ERR_INVALID,
                        "sampler: %lld samples cannot feed %d ranks; start fewer ranks or give "
                        "more data",
                        (long long)count, s->world_size);
    }
    if (count > (int64_t)1 << 62) {
        return ls__fail(LS_ERR_LIMIT, "sampler: %lld samples; give at most 2^62", (long long)count);
    }
    return LS_OK;
}

/* Shares of unequal ranks: the samples before each rank's in a full step, and their sum. */
static ls_status list_offsets(ls_sampler *s, const int64_t *batches)
{
    const int64_t most = s->count < SHARED_MAX ? s->count : SHARED_MAX;
    s->offsets = calloc((size_t)s->world_size + 1, sizeof *s->offsets);
    if (s->offsets == NULL) {
        return ls__fail(LS_ERR_MEMORY, "sampler: no memory");
    }
    for (int r = 0; r < s->world_size; r++) {
        if (batches[r] < 1 || batches[r] > most - s->offsets[r]) {
            return ls__fail(LS_ERR_INVALID,
                            "sampler: batches[%d] is %lld, after %lld samples of lower ranks; give "
                            "at least 1, and together at most %lld",
                            r, (long long)batches[r], (long long)s->offsets[r], (long long)most);
        }
        s->offsets[r + 1] = s->offsets[r] + batches[r];
    }
    s->batch = batches[s->rank];
    s->global_batch = s->offsets[s->world_size];
    return LS_OK;
}

/* Samples of a full step. */
static ls_status find_global_batch(ls_sampler *s, const ls_sampler_options *given)
{
    if (given->batches != NULL) {
        return list_offsets(s, given->batches);
    }
    return ls__mul_int64(s->batch, s->world_size, &s->global_batch)
               ? LS_OK
               : ls__fail(LS_ERR_INVALID,
                          "sampler: batch %lld times %d ranks overflows; give a smaller batch",
                          (long long)s->batch, s->world_size);
}

/* Of those that are compared with other ranks: equal on all, also where shares are not. */
static void note(const ls_sampler *s)
{
    char batch[64];
    if (s->offsets != NULL) {
        (void)snprintf(batch, sizeof batch, "%lld in a step (hash %08x)",
                       (long long)s->global_batch,
                       (unsigned)ls__hash_bytes(0, s->offsets,
                                                ((size_t)s->world_size + 1) * sizeof *s->offsets));
    } else {
        (void)snprintf(batch, sizeof batch, "batch %lld", (long long)s->batch);
    }
    ls__config_note(NULL, "sampler", "", "%lld samples, %s, seed %llu%s%s", (long long)s->count,
                    batch, (unsigned long long)s->seed, s->shuffle ? ", shuffled" : "",
                    s->drop_last ? ", drop_last" : "");
}

/* What follows from the options; after a failure nothing is left. */
static ls_status finish_sampler(ls_sampler *s, const ls_sampler_options *given)
{
    const ls_status found = find_global_batch(s, given);
    s->steps = found == LS_OK ? s->count / s->global_batch : 0;
    if (found == LS_OK && !given->drop_last && s->count % s->global_batch) {
        s->steps++;
    }
    if (s->steps > 0) {
        return LS_OK;
    }
    free(s->offsets);
    LS_TRY(found);
    return ls__fail(LS_ERR_INVALID,
                    "sampler: %lld samples are less than one step of %d ranks x %lld, and the "
                    "last partial step is dropped; give a smaller batch, fewer ranks or "
                    "drop_last = false",
                    (long long)s->count, s->world_size, (long long)s->batch);
}

/* Nothing is allocated until all options are valid. The entry recorded here lets the reducer
 * compare the samplers of all ranks. */
static ls_status make_sampler(int64_t count, const ls_sampler_options *given, ls_sampler **out)
{
    ls_sampler made = {.count = count,
                       .batch = given->batch,
                       .shuffle = given->shuffle,
                       .drop_last = given->drop_last,
                       .seed = given->seed,
                       .rank = given->rank < 0 ? ls_rank() : given->rank,
                       .world_size = given->world_size < 0 ? ls_world_size() : given->world_size,
                       .half_bits = half_bits_of(count)};
    LS_TRY(check(count, &made));
    LS_TRY(finish_sampler(&made, given));
    *out = malloc(sizeof **out);
    if (*out == NULL) {
        free(made.offsets);
        return ls__fail(LS_ERR_MEMORY, "sampler: no memory");
    }
    **out = made;
    if (ls__sampler_of_job(&made)) {
        note(&made);
    }
    return LS_OK;
}

/* NULL with the error set. */
ls_sampler *ls_sampler_new(int64_t count, const ls_sampler_options *options)
{
    LS__OPTIONS_OR(NULL, ls_sampler_options, given, options);
    ls_sampler *made = NULL;
    return make_sampler(count, &given, &made) == LS_OK ? made : NULL;
}

/* Only such samplers are compared across ranks: a sampler for one rank or a subset may differ on
 * purpose. */
bool ls__sampler_of_job(const ls_sampler *s)
{
    return s->world_size > 1 && s->world_size == ls_world_size() && s->rank == ls_rank();
}

/* NULL is allowed. Loaders borrow the sampler, so they are freed first. */
void ls_sampler_free(ls_sampler *sampler)
{
    if (sampler != NULL) {
        free(sampler->offsets);
    }
    free(sampler);
}

/* Of one epoch. The getters below serve the loader. */
int64_t ls_sampler_steps(const ls_sampler *sampler)
{
    return sampler != NULL ? sampler->steps : 0;
}

int64_t ls__sampler_count(const ls_sampler *sampler)
{
    return sampler->count;
}

/* Samples of all ranks in a full step. */
int64_t ls__sampler_global_batch(const ls_sampler *sampler)
{
    return sampler->global_batch;
}

/* Samples of one rank in a full step. */
int64_t ls__sampler_batch(const ls_sampler *sampler)
{
    return sampler->batch;
}

int ls__sampler_rank(const ls_sampler *sampler)
{
    return sampler->rank;
}

int ls__sampler_ranks(const ls_sampler *sampler)
{
    return sampler->world_size;
}

/* Also after a resume in the middle of an epoch: with drop_last, what is left of it is dropped. */
bool ls__sampler_even(const ls_sampler *sampler)
{
    return sampler->drop_last || sampler->count % sampler->global_batch == 0;
}

bool ls__sampler_shuffles(const ls_sampler *sampler)
{
    return sampler->shuffle;
}

bool ls__sampler_has_shares(const ls_sampler *sampler)
{
    return sampler->offsets != NULL;
}

uint64_t ls__sampler_seed(const ls_sampler *sampler)
{
    return sampler->seed;
}

/* Changes the order of all epochs. The caller guarantees that no reader runs. */
void ls__sampler_set_seed(ls_sampler *sampler, uint64_t seed)
{
    sampler->seed = seed;
}

/* Samples before those of a rank in a step of `global`. A full step gives every rank `batch`
 * samples, or its share. The last one is divided as evenly as possible: the first ranks get one
 * sample more, and a rank may get none; shares are scaled, and no rank gets more than its own. */
static int64_t offset_of(const ls_sampler *s, int64_t global, int rank)
{
    if (s->offsets != NULL) {
        return s->offsets[rank] * global / s->global_batch; /* both below SHARED_MAX */
    }
    const int64_t share = global / s->world_size, more = global % s->world_size;
    return rank * share + (rank < more ? rank : more);
}

ls__sampler_span ls__sampler_span_of(const ls_sampler *s, int64_t position, int rank)
{
    LS_ASSERT(position >= 0 && rank >= 0 && rank < s->world_size);
    int64_t left = s->count - position;
    int64_t global = left < s->global_batch ? left : s->global_batch;
    if (left <= 0 || (s->drop_last && left < s->global_batch)) {
        return (ls__sampler_span){.first = position};
    }
    const int64_t offset = offset_of(s, global, rank);
    return (ls__sampler_span){.first = position + offset,
                              .count = offset_of(s, global, rank + 1) - offset,
                              .global = global,
                              .offset = offset};
}

/* This rank's own span. */
ls__sampler_span ls__sampler_span_at(const ls_sampler *s, int64_t position)
{
    return ls__sampler_span_of(s, position, s->rank);
}

/* Positions past the count are the caller's error. With LS__SAMPLER_OWN, every rank has a
 * permutation of its own over all samples. */
void ls__sampler_read(const ls_sampler *sampler, ls__sampler_order order, int64_t epoch,
                      int64_t first, int64_t count, int64_t *indices)
{
    const shuffle p = {.sampler = sampler,
                       .epoch = (uint64_t)epoch,
                       .stream = order == LS__SAMPLER_OWN ? (uint32_t)sampler->rank + 1 : 0};
    LS_ASSERT(first >= 0 && count >= 0 && first + count <= sampler->count);
    for (int64_t i = 0; i < count; i++) {
        indices[i] = sample_at(&p, first + i);
    }
}

/* Public: invalid arguments give 0 samples rather than an error, like a step that is empty.
 * `indices` has room for `batch` numbers. */
int64_t ls_sampler_get(const ls_sampler *sampler, int64_t epoch, int64_t step, int64_t *indices)
{
    if (sampler == NULL || epoch < 0 || step < 0 || step >= sampler->steps) {
        return 0;
    }
    ls__sampler_span span = ls__sampler_span_at(sampler, step * sampler->global_batch);
    ls__sampler_read(sampler, LS__SAMPLER_COMMON, epoch, span.first, span.count, indices);
    return span.count;
}
