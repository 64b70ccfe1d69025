/* Buckets whose sizes Lockstep chooses: they are found after some steps, alike on all ranks, and
 * change no bit; sizes, maps and modes that the caller chose stay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/reducer.h>

#include "says.h"
#include "test.h"

/* The decision is shown at this level. */
__attribute__((constructor)) static void ask_for_info(void)
{
    setenv("LOCKSTEP_DEBUG", "info", 1);
}

/* Three divisions are measured in 7 rounds, five are compared in 7, and up to five in 17. */
enum { PARAMS = 12, EARLIEST = 3 * 7 + 5 * 7, LATEST = EARLIEST + 5 * 17, ROUNDS = LATEST + 3 };

typedef struct job {
    ls_reducer *reducer;
    ls_reducer_param params[PARAMS];
    char names[PARAMS][16];
    uint64_t bits; /* hash of all gradients of all rounds */
} job;

static int64_t count_of(int i)
{
    return i % 4 == 3 ? 17000 : 100 * (i + 1); /* some take a cell of their own */
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
        for (size_t b = 0; b < bytes; b++) {
            j->bits = (j->bits ^ at[b]) * 1099511628211u;
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

/* Ends of buckets in the order of launching, as one number. */
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
    uint64_t own = 2 * division_of(j) + stats_of(j).settled, all[16] = {0};
    CHECK_OK(ls_all_gather(ls_world(), &own, all, 1, LS_UINT64, NULL, NULL));
    for (int rank = 0; rank < ls_world_size(); rank++) {
        CHECK(all[rank] == own);
    }
}

/* The bits of all rounds with buckets of this size. */
static uint64_t bits_with(size_t bucket_bytes)
{
    job j;
    job_new(&j, bucket_bytes, LS_REDUCE_OVERLAP, false);
    void *before[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        before[i] = j.params[i].grad;
    }
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(stats_of(&j).automatic ==
              (bucket_bytes == LS_BUCKET_BYTES_AUTO && ls_world_size() > 1));
        CHECK(!stats_of(&j).settled || (stats_of(&j).automatic && round >= EARLIEST));
        CHECK(stats_of(&j).settled || !stats_of(&j).automatic || round < LATEST);
        run_round(&j, round);
        if (bucket_bytes == LS_BUCKET_BYTES_AUTO) {
            check_alike(&j);
        }
    }
    for (int i = 0; i < PARAMS; i++) {
        CHECK(j.params[i].grad == before[i]);
    }
    CHECK_OK(ls_reducer_free(j.reducer));
    return j.bits;
}

DIST_TESTS(automatic_buckets_are_alike_and_change_no_bit_over_, _ranks, 1, 2, 3, 6)
{
    const uint64_t bits = bits_with(LS_BUCKET_BYTES_AUTO);
    CHECK(bits == bits_with(25 << 20));
    CHECK(bits == bits_with(ls_world_size() % 2 == 0 ? 0 : 100000));
}

/* ---- the caller's choice ------------------------------------------------------------------ */

static void stays(size_t bucket_bytes, ls_reduce_mode mode, bool mapped)
{
    job j;
    job_new(&j, bucket_bytes, mode, mapped);
    const uint64_t before = division_of(&j);
    for (int round = 0; round < ROUNDS; round++) {
        run_round(&j, round);
        CHECK(division_of(&j) == before);
    }
    CHECK(!stats_of(&j).automatic && !stats_of(&j).settled);
    CHECK_OK(ls_reducer_free(j.reducer));
}

DIST_TEST(sizes_maps_and_modes_that_the_caller_chose_stay, 2)
{
    stays(100000, LS_REDUCE_OVERLAP, false);
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_OVERLAP, true);
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_BUCKETED, false);
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_FLAT, false);
    stays(LS_BUCKET_BYTES_AUTO, LS_REDUCE_NAIVE, false);
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
    CHECK_CONTAINS(ls_error_message(), "rank 0 has bucket_bytes LS_BUCKET_BYTES_AUTO (the first "
                                       "bucket's 1048576), rank 1 has 26214400 (1048576)");
}

/* ---- the choice --------------------------------------------------------------------------- */

static char logged[1000];

static void keep_log(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_INFO && strstr(text, "buckets of") != NULL) {
        snprintf(logged, sizeof logged, "%s", text);
    }
}

static void sleep_ms(int ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

enum { LARGE = 3, COUNT = 1000000 };

/* A backward in which rank 0 computes each gradient for so long; the other rank learns of it. */
static void large_round(ls_reducer *reducer, int ms)
{
    CHECK_OK(ls_reducer_begin(reducer, NULL));
    for (int i = LARGE - 1; i >= 0; i--) {
        sleep_ms(ls_rank() == 0 ? ms : 0);
        CHECK_OK(ls_reducer_ready(reducer, i, NULL));
    }
    CHECK_OK(ls_reducer_wait(reducer));
    CHECK_OK(ls_reducer_zero(reducer));
}

/* Large gradients that become ready long after each other: the wire is idle meanwhile, so the
 * last one goes alone. The pause between them is measured in the first backward, which has none. */
DIST_TEST(gradients_that_are_ready_early_do_not_wait_for_the_last_one, 2)
{
    const char *hosts = getenv("LOCKSTEP_HOSTS");
    if (hosts == NULL || getenv("TEST_RANK_OF") != NULL) {
        SKIP("12 MB take less time over shared memory than noise does beside such pauses");
    }
    ls_set_log_callback(keep_log, NULL);
    ls_reducer *reducer = NULL;
    ls_reducer_param params[LARGE];
    for (int i = 0; i < LARGE; i++) {
        params[i] = (ls_reducer_param){.name = "p", .count = COUNT, .dtype = LS_FLOAT32};
    }
    CHECK_OK(ls_reducer_new(ls_world(), params, LARGE,
                            LS_OPTIONS(ls_reducer_options, .first_bucket_bytes = 25 << 20),
                            &reducer));
    ls_reducer_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_reducer_get_stats(reducer, &stats));
    CHECK_INT(stats.buckets, 1);
    for (int round = 0, pause_ms = 0; round < ROUNDS && !stats.settled; round++) {
        large_round(reducer, pause_ms);
        CHECK_OK(ls_reducer_get_stats(reducer, &stats));
        const int twice_one = (int)(stats.comm_seconds * 1e3 * 2 / LARGE);
        pause_ms = round > 0 ? pause_ms : twice_one > 20 ? twice_one : 20;
    }
    CHECK(stats.settled);
    large_round(reducer, 0); /* with the buckets that stay */
    CHECK_OK(ls_reducer_get_stats(reducer, &stats));
    ls_reducer_bucket last = {.size = sizeof last};
    CHECK_OK(ls_reducer_get_bucket(reducer, stats.buckets - 1, &last));
    CHECK_INT(last.params, 1);
    CHECK_OK(ls_reducer_free(reducer));
    ls_set_log_callback(NULL, NULL);
    if (ls_rank() == 0) {
        CHECK_SAYS(logged,
                   "reducer \"%s\": buckets of division %d stay, with %.3f ms from begin to end; "
                   "an all-reduce takes %.3f ms and %.3f ms a MB; the search took %d backwards and "
                   "%.1f ms longer than as many with this division");
    }
}

TEST_MAIN
