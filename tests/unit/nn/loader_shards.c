/* SPDX-License-Identifier: Apache-2.0 */
/* The loader with shards: parts of a rank's batch, which are the same on any number of ranks. */
#include "says.h"
#include "test.h"

#include <string.h>

#include <lockstep/lockstep.h>

#include "base/runtime.h"

/* Sample i is x = {i, -i}, y = 3 i. */
static ls_status numbers_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    ((float *)x)[0] = (float)index;
    ((float *)x)[1] = -(float)index;
    *(int32_t *)y = (int32_t)(3 * index);
    return LS_OK;
}

static ls_dataset make_numbers(int64_t count)
{
    return (ls_dataset){.size = sizeof(ls_dataset),
                        .count = count,
                        .x_shape = LS_SHAPE(2),
                        .y_shape = LS_SCALAR,
                        .x_dtype = LS_FLOAT32,
                        .y_dtype = LS_INT32,
                        .get = numbers_get};
}

enum { SHARDS = 8, SHARD_SAMPLES = 3, SHARD_STEPS = 4, EPOCH = SHARDS * SHARD_SAMPLES * 2 + 5 };

static ls_loader *sharded(ls_dataset *d, int rank, int ranks, int prefetch, ls_sampler **sampler)
{
    ls_loader *l = NULL;
    CHECK_OK(
        LS_STATUS_OF(*sampler = ls_sampler_new(
                         EPOCH, LS_OPTIONS(ls_sampler_options,
                                           .batch = SHARD_SAMPLES * SHARDS / ranks, .rank = rank,
                                           .world_size = ranks, .seed = 5, .drop_last = true))));
    CHECK_OK(LS_STATUS_OF(
        l = ls_loader_new(d, *sampler,
                          LS_OPTIONS(ls_loader_options, .prefetch = prefetch, .shards = SHARDS))));
    return l;
}

/* What a rank gets in SHARD_STEPS steps (two epochs), by step and shard. */
static void read_shards(int rank, int ranks, int prefetch, float out[SHARD_STEPS][SHARDS][2 * 3])
{
    ls_dataset d = make_numbers(EPOCH);
    ls_sampler *s;
    ls_loader *l = sharded(&d, rank, ranks, prefetch, &s);
    const int of_rank = SHARDS / ranks;
    ls_batch b = {.size = sizeof b};
    for (int i = 0; i < SHARD_STEPS * of_rank; i++) {
        const int step = i / of_rank, shard = rank * of_rank + i % of_rank;
        if (!ls_loader_next(l, &b)) {
            CHECK_INT(step, 2); /* an epoch has ended, after all shards of its last step */
            CHECK(i % of_rank == 0 && ls_loader_status(l) == LS_OK && ls_loader_next(l, &b));
        }
        CHECK_INT(b.count, SHARD_SAMPLES);
        CHECK_INT(b.global_count, SHARD_SAMPLES * SHARDS);
        CHECK_INT(b.epoch, step / 2);
        CHECK_INT(b.step, step % 2);
        CHECK(b.last == (step % 2 == 1 && i % of_rank == of_rank - 1));
        CHECK_INT((int64_t)ls_runtime_current()->step, step);
        CHECK_INT(ls_runtime_current()->sample_offset, shard * SHARD_SAMPLES);
        CHECK_OK(ls_copy_out(b.x, out[step][shard], sizeof out[step][shard]));
    }
    ls_loader_free(l);
    ls_sampler_free(s);
}

TEST(shards_have_the_same_samples_on_any_number_of_ranks)
{
    static float one[SHARD_STEPS][SHARDS][6], more[SHARD_STEPS][SHARDS][6];
    CHECK_OK(ls_init(NULL));
    read_shards(0, 1, 2, one);
    for (int ranks = 2; ranks <= SHARDS; ranks *= 2) {
        memset(more, 0, sizeof more);
        for (int rank = 0; rank < ranks; rank++) {
            read_shards(rank, ranks, rank % 2, more);
        }
        CHECK(memcmp(one, more, sizeof one) == 0);
    }
    CHECK_OK(ls_finalize());
}

static ls_status int64_unchanged(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

TEST(a_position_between_shards_of_a_step_is_not_saved)
{
    CHECK_OK(ls_init(NULL));
    const ls_state_visitor visitor = {.size = sizeof visitor, .int64 = int64_unchanged};
    ls_dataset d = make_numbers(EPOCH);
    ls_sampler *s;
    ls_loader *l = sharded(&d, 1, 4, 1, &s);
    ls_batch b = {.size = sizeof b};
    CHECK_OK(ls_loader_state(l, "", &visitor));
    CHECK(ls_loader_next(l, &b));
    ls_tensor *first = b.x;
    CHECK_STATUS(ls_loader_state(l, "", &visitor), LS_ERR_STATE);
    CHECK_SAYS(ls_error_message(),
               "loader: %d of this rank's %d shards of the step were handed out; save "
               "and load between steps");
    CHECK(ls_loader_next(l, &b));
    CHECK_STATUS(ls_tensor_status(first), LS_ERR_STALE);
    CHECK_OK(ls_loader_state(l, "", &visitor));
    CHECK_OK(ls_loader_seek(l, 0, 1));
    CHECK(ls_loader_next(l, &b));
    CHECK_INT(b.step, 1);
    CHECK_INT(ls_runtime_current()->sample_offset, 2 * SHARD_SAMPLES);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

static void refuse_shards(int64_t batch, int ranks, bool drop_last, ls_feed feed)
{
    ls_dataset d = make_numbers(EPOCH);
    ls_sampler *s = ls_sampler_new(EPOCH, LS_OPTIONS(ls_sampler_options, .batch = batch, .rank = 0,
                                                     .world_size = ranks, .drop_last = drop_last));
    CHECK(s != NULL);
    CHECK(ls_loader_new(&d, s, LS_OPTIONS(ls_loader_options, .feed = feed, .shards = SHARDS)) ==
          NULL);
    ls_sampler_free(s);
}

TEST(unequal_shards_are_refused)
{
    CHECK_OK(ls_init(NULL));
    for (int ranks = 2; ranks <= 3; ranks++) {
        refuse_shards(ranks == 2 ? 7 : 8, ranks, true, LS_FEED_SPLIT);
        CHECK_SAYS(
            ls_error_message(),
            "loader: a step of %d ranks x %lld samples cannot be divided into %d equal shards "
            "that belong to one rank each; give a multiple of the ranks, and a batch that is a "
            "multiple of shards/ranks");
    }
    refuse_shards(8, 2, false, LS_FEED_SPLIT);
    CHECK_SAYS(ls_error_message(),
               "loader: the last step of an epoch has fewer samples, so its shards "
               "would not be equal; make the sampler with .drop_last = true");
    refuse_shards(8, 2, true, LS_FEED_SHARED);
    CHECK_SAYS(
        ls_error_message(),
        "loader: LS_FEED_SHARED gives each rank a shuffle of its own, so shards would depend on "
        "the ranks; give LS_FEED_SPLIT or LS_FEED_SCATTER");
    CHECK_OK(ls_finalize());
}

TEST_MAIN
