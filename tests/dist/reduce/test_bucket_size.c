/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets whose sizes Lockstep chooses: there are several of them, alike on all ranks and from the
 * start, and they change no bit; sizes, maps and modes that the caller chose stay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/reducer.h>

#include "says.h"
#include "test.h"

/* The sizes are shown at this level. */
__attribute__((constructor)) static void ask_for_info(void)
{
    setenv("LOCKSTEP_DEBUG", "info", 1);
}

enum { PARAMS = 12, ROUNDS = 4 };

typedef struct job {
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    char names[PARAMS][16];
    uint64_t bits; /* hash of all gradients of all rounds */
} job;

/* 3.6 MB of float32, of which three gradients have 1.2 MB each. */
static int64_t count_of(int i)
{
    return i % 4 == 3 ? 300000 : 100 * (i + 1);
}

/* `mapped`: parameter i is in the caller's bucket 1 + i % 3. */
static void job_new(job *j, size_t bucket_bytes, ls_reduce_mode mode, bool mapped)
{
    memset(j, 0, sizeof *j);
    for (int i = 0; i < PARAMS; i++) {
        snprintf(j->names[i], sizeof j->names[i], "p%d", i);
        j->params[i] = (ls_reducer_param){.name = j->names[i],
                                          .count = count_of(i),
                                          .dtype = i % 5 == 4 ? LS_BFLOAT16 : LS_FLOAT32,
                                          .bucket = mapped ? 1 + i % 3 : 0};
    }
    CHECK_OK(ls_reducer_new(
        ls_world(), j->params, PARAMS,
        LS_OPTIONS(ls_reducer_options, .bucket_bytes = bucket_bytes, .mode = mode), &j->reducer));
}

/* Numbers whose sums depend on the order of adding. */
static void add_gradient(const job *j, int round, int i)
{
    uint64_t state = (uint64_t)((round * PARAMS + i) * 8 + ls_rank());
    for (int64_t k = 0; k < count_of(i); k++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float x = (float)(int32_t)(state >> 32) * 0x1p-31f;
        if (j->params[i].dtype == LS_FLOAT32) {
            ((float *)j->params[i].grad)[k] += x;
        } else {
            uint32_t bits = 0;
            memcpy(&bits, &x, sizeof bits);
            ((uint16_t *)j->params[i].grad)[k] = (uint16_t)(bits >> 16); /* they were zero */
        }
    }
}

static void keep_bits(job *j)
{
    for (int i = 0; i < PARAMS; i++) {
        const uint8_t *at = j->params[i].grad;
        const size_t bytes = (size_t)count_of(i) * ls_dtype_size(j->params[i].dtype);
        for (size_t b = 0; b < bytes; b += sizeof(uint64_t)) {
            uint64_t word = 0;
            memcpy(&word, at + b, bytes - b < sizeof word ? bytes - b : sizeof word);
            j->bits = (j->bits ^ word) * 1099511628211u;
            j->bits ^= j->bits >> 29; /* the highest bits count too */
        }
    }
}

/* In every other round the last parameter is used on one rank, in every third nowhere. */
static void run_round(job *j, int round)
{
    uint8_t used[PARAMS];
    memset(used, 1, sizeof used);
    used[0] = round % 2 == 0 || ls_rank() == 0;
    used[7] = round % 3 != 0;
    CHECK_OK(ls_reducer_begin(j->reducer, LS_OPTIONS(ls_reducer_begin_options, .used = used)));
    for (int i = PARAMS - 1; i >= 0; i--) {
        if (used[i]) {
            add_gradient(j, round, i);
            CHECK_OK(ls_reducer_ready(j->reducer, i, NULL));
        }
    }
    CHECK_OK(ls_reducer_wait(j->reducer));
    keep_bits(j);
    CHECK_OK(ls_reducer_zero(j->reducer));
}

static ls_reducer_stats stats_of(const job *j)
{
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(j->reducer, &stats));
    return stats;
}

/* The buckets in the order of launching, as one number. */
static uint64_t division_of(const job *j)
{
    uint64_t hash = 1;
    for (int b = 0; b < stats_of(j).buckets; b++) {
        ls_reducer_bucket bucket = {.size = sizeof bucket};
        CHECK_OK(ls_reducer_get_bucket(j->reducer, b, &bucket));
        hash = hash * 1099511628211u + bucket.bytes * 64 + (uint64_t)bucket.params;
    }
    return hash;
}

static void check_alike(const job *j)
{
    uint64_t own = division_of(j), all[16] = {0};
    CHECK_OK(ls_all_gather(ls_world(), &own, all, 1, LS_UINT64, NULL, NULL));
    for (int rank = 0; rank < ls_world_size(); rank++) {
        CHECK(all[rank] == own);
    }
}

/* The bits of all rounds, whose buckets are those of the start. */
static uint64_t bits_with(size_t bucket_bytes, ls_reduce_mode mode)
{
    job j;
    job_new(&j, bucket_bytes, mode, false);
    const uint64_t before = division_of(&j);
    CHECK(stats_of(&j).automatic == (bucket_bytes == LS_BUCKET_BYTES_AUTO));
    check_alike(&j);
    for (int round = 0; round < ROUNDS; round++) {
        run_round(&j, round);
        CHECK(division_of(&j) == before);
    }
    CHECK_OK(ls_reducer_free(j.reducer));
    return j.bits;
}

DIST_TESTS(chosen_buckets_are_alike_and_change_no_bit_over_, _ranks, 1, 2, 3, 6)
{
    const uint64_t bits = bits_with(LS_BUCKET_BYTES_AUTO, LS_REDUCE_OVERLAP);
    CHECK(bits == bits_with(LS_BUCKET_BYTES_AUTO, LS_REDUCE_BUCKETED));
    CHECK(bits == bits_with(25 << 20, LS_REDUCE_OVERLAP));
    CHECK(bits == bits_with(ls_world_size() % 2 == 0 ? 0 : 100000, LS_REDUCE_OVERLAP));
}

/* ---- how many there are ------------------------------------------------------------------- */

/* Over any link, so that one is reduced while backward computes the next. */
DIST_TEST(a_model_of_4_mib_in_equal_parts_has_at_least_two_buckets, 2)
{
    enum { EQUAL = 16 };
    ls_reducer *reducer = NULL;
    ls_reducer_param params[EQUAL];
    for (int i = 0; i < EQUAL; i++) {
        params[i] = (ls_reducer_param){.name = "p", .count = 1 << 16, .dtype = LS_FLOAT32};
    }
    CHECK_OK(ls_reducer_new(ls_world(), params, EQUAL,
                            LS_OPTIONS(ls_reducer_options, .first_bucket_bytes = 25 << 20),
                            &reducer));
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(reducer, &stats));
    CHECK(stats.buckets >= 2 && stats.buckets <= 4);
    CHECK_OK(ls_reducer_free(reducer));
}

DIST_TEST(a_small_model_has_one_bucket, 2)
{
    ls_reducer *reducer = NULL;
    ls_reducer_param params[2] = {{.name = "weight", .count = 100000, .dtype = LS_FLOAT32},
                                  {.name = "bias", .count = 100, .dtype = LS_FLOAT32}};
    CHECK_OK(ls_reducer_new(ls_world(), params, 2, NULL, &reducer));
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(reducer, &stats));
    CHECK_INT(stats.buckets, 1);
    CHECK_OK(ls_reducer_free(reducer));
}

static char logged[1000];

static void keep_log(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_INFO && strstr(text, "buckets of") != NULL) {
        snprintf(logged, sizeof logged, "%s", text);
    }
}

DIST_TEST(rank_0_says_how_large_the_buckets_are_and_why, 2)
{
    job j;
    ls_set_log_callback(keep_log, NULL);
    job_new(&j, LS_BUCKET_BYTES_AUTO, LS_REDUCE_OVERLAP, false);
    ls_set_log_callback(NULL, NULL);
    if (ls_rank() == 0) {
        CHECK_SAYS(logged,
                   "reducer \"%s\": buckets of at most %.2f MB for %.2f MB of gradients, since "
                   "an all-reduce takes about %.3f ms and %.3f ms a MB");
    } else {
        CHECK(logged[0] == '\0');
    }
    CHECK_OK(ls_reducer_free(j.reducer));
}

/* ---- the caller's choice ------------------------------------------------------------------ */

static void stays(size_t bucket_bytes, ls_reduce_mode mode, bool mapped, int buckets)
{
    job j;
    job_new(&j, bucket_bytes, mode, mapped);
    CHECK(!stats_of(&j).automatic);
    CHECK_INT(stats_of(&j).buckets, buckets);
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(sizes_maps_and_modes_that_the_caller_chose_stay, 2)
{
    stays(25 << 20, LS_REDUCE_OVERLAP, false, 3);            /* 1.2 MB, the rest, the other type */
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_OVERLAP, true, 5); /* both types are in two of three */
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_FLAT, false, 2);
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_NAIVE, false, PARAMS);
}

DIST_TEST(ranks_of_which_one_chose_a_size_are_a_mismatch, 2)
{
    ls_reducer *reducer = NULL;
    ls_reducer_param param = {.name = "p", .count = 1, .dtype = LS_FLOAT32};
    CHECK_STATUS(
        ls_reducer_new(ls_world(), &param, 1,
                       LS_OPTIONS(ls_reducer_options,
                                  .bucket_bytes = ls_rank() == 0 ? LS_BUCKET_BYTES_AUTO : 25 << 20),
                       &reducer),
        LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the ranks differ in bucket_bytes: rank 0 has "
                                       "LS_BUCKET_BYTES_AUTO, rank 1 has 26214400; ");
}

TEST_MAIN
