/* SPDX-License-Identifier: Apache-2.0 */
/* Shifted, mirrored and normalised images against the padded image of the definition; the way of
 * the epoch to them; and ranks that each shuffle for themselves. */
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { CHANNELS = 2, HEIGHT = 5, WIDTH = 7, PIXELS = CHANNELS * HEIGHT * WIDTH, COUNT = 50 };

static int freed;

/* Pixel (c, i, k) of image n; never 0, so that what was shifted in is seen. */
static float pixel(int64_t n, int64_t c, int64_t i, int64_t k)
{
    return (float)(1 + k + 10 * i + 100 * c + 1000 * n);
}

static ls_status images_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    float *to = x;
    (void)self;
    for (int64_t c = 0; c < CHANNELS; c++) {
        for (int64_t i = 0; i < HEIGHT; i++) {
            for (int64_t k = 0; k < WIDTH; k++) {
                *to++ = pixel(index, c, i, k);
            }
        }
    }
    *(int32_t *)y = (int32_t)index;
    return LS_OK;
}

static void images_free(ls_dataset *self)
{
    (void)self;
    freed++;
}

static ls_dataset make_images(void)
{
    return (ls_dataset)LS_DATASET(.count = COUNT, .x_shape = LS_SHAPE(CHANNELS, HEIGHT, WIDTH),
                                  .y_shape = LS_SCALAR, .x_dtype = LS_FLOAT32, .y_dtype = LS_INT32,
                                  .get = images_get, .free = images_free);
}

static ls_dataset *transformed(ls_dataset *images, const ls_transform_options *options)
{
    ls_dataset *d = NULL;
    CHECK_OK(d = ls_transform_dataset_new(images, options));
    return d;
}

/* Pixel (i, k) of the image padded by zeros, whose place (0, 0) is the image's own. */
static float padded(int64_t n, int64_t c, int64_t i, int64_t k)
{
    const bool inside = i >= 0 && i < HEIGHT && k >= 0 && k < WIDTH;
    return inside ? pixel(n, c, i, k) : 0.0f;
}

static bool shows(const float *x, int64_t n, int64_t down, int64_t right, bool flip)
{
    for (int64_t c = 0; c < CHANNELS; c++) {
        for (int64_t i = 0; i < HEIGHT; i++) {
            for (int64_t k = 0; k < WIDTH; k++) {
                const int64_t from = flip ? WIDTH - 1 - k : k;
                if (*x++ != padded(n, c, i + down, from + right)) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* Which window of image n padded by p pixels x is, numbered from 0; -1: none. */
static int window_of(const float *x, int64_t n, int p, bool may_flip)
{
    for (int flip = 0; flip <= may_flip; flip++) {
        for (int down = -p; down <= p; down++) {
            for (int right = -p; right <= p; right++) {
                if (shows(x, n, down, right, flip != 0)) {
                    return (flip * (2 * p + 1) + down + p) * (2 * p + 1) + right + p;
                }
            }
        }
    }
    return -1;
}

/* Every window comes, about as often as every other, and nothing else. */
static void check_windows(int p, bool flip, int samples)
{
    ls_dataset images = make_images();
    ls_dataset *d = transformed(
        &images, LS_OPTIONS(ls_transform_options, .crop_padding = p, .flip = flip, .seed = 9));
    const int windows = (2 * p + 1) * (2 * p + 1) * (flip ? 2 : 1);
    int *seen = calloc((size_t)windows, sizeof *seen);
    CHECK(seen != NULL);
    for (int s = 0; s < samples; s++) {
        float x[PIXELS];
        int32_t y;
        CHECK_OK(d->get_in_epoch(d, s / COUNT, s % COUNT, x, &y));
        CHECK_INT(y, s % COUNT);
        const int window = window_of(x, s % COUNT, p, flip);
        CHECK(window >= 0 && window < windows);
        seen[window]++;
    }
    const double expected = (double)samples / windows;
    for (int w = 0; w < windows; w++) { /* the numbers are fixed: the seed is */
        CHECK(fabs(seen[w] - expected) < 5 * sqrt(expected));
    }
    free(seen);
    ls_dataset_free(d);
}

TEST(all_windows_of_the_padded_image_and_its_mirror_come_equally_often)
{
    check_windows(0, false, 100);
    check_windows(0, true, 1000);
    check_windows(1, false, 2000);
    check_windows(2, true, 5000);
}

TEST(a_shift_beyond_the_image_shows_zeros)
{
    ls_dataset images = make_images();
    ls_dataset *d =
        transformed(&images, LS_OPTIONS(ls_transform_options, .crop_padding = 9, .flip = true));
    int empty = 0;
    for (int s = 0; s < 400; s++) {
        static const float zeros[PIXELS];
        float x[PIXELS];
        int32_t y;
        CHECK_OK(d->get_in_epoch(d, s, s % COUNT, x, &y));
        const bool none = memcmp(x, zeros, sizeof x) == 0;
        CHECK(none || window_of(x, s % COUNT, 9, true) >= 0);
        empty += none;
    }
    CHECK(empty > 20 && empty < 380);
    ls_dataset_free(d);
}

TEST(what_is_drawn_depends_on_seed_epoch_and_index_alone)
{
    ls_dataset images = make_images();
    const ls_transform_options *options =
        LS_OPTIONS(ls_transform_options, .crop_padding = 2, .flip = true, .seed = 1);
    ls_dataset *d = transformed(&images, options), *same = transformed(&images, options);
    ls_dataset *other = transformed(
        &images, LS_OPTIONS(ls_transform_options, .crop_padding = 2, .flip = true, .seed = 2));
    int by_seed = 0, by_epoch = 0, by_index = 0;
    float a[PIXELS], b[PIXELS];
    int32_t y;
    for (int64_t n = COUNT - 1; n >= 0; n--) { /* another order */
        CHECK_OK(d->get_in_epoch(d, 3, n, a, &y));
        const int window = window_of(a, n, 2, true);
        CHECK_OK(same->get_in_epoch(same, 3, n, b, &y));
        CHECK(memcmp(a, b, sizeof a) == 0);
        CHECK_OK(d->get_in_epoch(d, 4, n, b, &y));
        by_epoch += window_of(b, n, 2, true) != window;
        CHECK_OK(other->get_in_epoch(other, 3, n, b, &y));
        by_seed += window_of(b, n, 2, true) != window;
        CHECK_OK(d->get_in_epoch(d, 3, (n + 1) % COUNT, b, &y));
        by_index += window_of(b, (n + 1) % COUNT, 2, true) != window;
        CHECK_OK(d->get(d, n, a, &y)); /* without an epoch: the first */
        CHECK_OK(d->get_in_epoch(d, 0, n, b, &y));
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
    CHECK(by_seed > 40 && by_epoch > 40 && by_index > 40); /* 49 of 50 windows are others */
    ls_dataset_free(d);
    ls_dataset_free(same);
    ls_dataset_free(other);
}

TEST(images_are_normalised_after_they_were_padded)
{
    ls_dataset images = make_images();
    const double mean[] = {0.5, 300}, std[] = {0.25, 7};
    ls_dataset *d =
        transformed(&images, LS_OPTIONS(ls_transform_options, .crop_padding = 1, .mean = mean,
                                        .std = std, .channels = CHANNELS, .seed = 3));
    ls_dataset *plain =
        transformed(&images, LS_OPTIONS(ls_transform_options, .crop_padding = 1, .seed = 3));
    ls_dataset *centred =
        transformed(plain, LS_OPTIONS(ls_transform_options, .mean = mean, .channels = CHANNELS));
    for (int64_t n = 0; n < COUNT; n++) {
        float x[PIXELS], before[PIXELS], middle[PIXELS];
        int32_t y;
        CHECK_OK(d->get_in_epoch(d, 7, n, x, &y));
        CHECK_OK(plain->get_in_epoch(plain, 7, n, before, &y));
        CHECK_OK(centred->get_in_epoch(centred, 7, n, middle, &y)); /* hands the epoch on */
        for (int i = 0; i < PIXELS; i++) {
            const int c = i / (HEIGHT * WIDTH);
            CHECK(x[i] == (before[i] - (float)mean[c]) / (float)std[c]);
            CHECK(middle[i] == before[i] - (float)mean[c]);
        }
    }
    ls_dataset_free(d);
    ls_dataset_free(centred);
}

TEST(a_data_set_that_cannot_be_transformed_is_refused_and_freed)
{
    ls_dataset images = make_images(), *d = NULL;
    const double two[] = {1, 0};
    freed = 0;
    CHECK_STATUS(d = ls_transform_dataset_new(NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(
        d = ls_transform_dataset_new(&images, LS_OPTIONS(ls_transform_options, .crop_padding = -1)),
        LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "crop_padding is -1");
    CHECK_STATUS(d = ls_transform_dataset_new(
                     &images, LS_OPTIONS(ls_transform_options, .mean = two, .channels = 3)),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "3 channels, the images have 2");
    CHECK_STATUS(d = ls_transform_dataset_new(
                     &images, LS_OPTIONS(ls_transform_options, .std = two, .channels = 2)),
                 LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "std[1] is 0");
    images.x_shape = LS_SHAPE(PIXELS);
    CHECK_STATUS(d = ls_transform_dataset_new(&images, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "float32 [70]");
    CHECK(d == NULL && freed == 4);
}

/* ---- by the loader -------------------------------------------------------------------------- */

static ls_sampler *sampler_of(int rank, int ranks, bool shuffle)
{
    ls_sampler *s = NULL;
    CHECK_OK(
        s = ls_sampler_new(COUNT, LS_OPTIONS(ls_sampler_options, .batch = 4, .rank = rank,
                                             .world_size = ranks, .seed = 5, .shuffle = shuffle)));
    return s;
}

static ls_loader *loader_of(ls_dataset *d, ls_sampler *s, int prefetch, ls_feed feed)
{
    ls_loader *l = NULL;
    CHECK_OK(
        l = ls_loader_new(d, s, LS_OPTIONS(ls_loader_options, .prefetch = prefetch, .feed = feed)));
    return l;
}

TEST(the_loader_shows_each_epoch_its_own_images_at_any_rank_count)
{
    CHECK_OK(ls_init(NULL));
    ls_dataset images = make_images();
    ls_dataset *d = transformed(
        &images, LS_OPTIONS(ls_transform_options, .crop_padding = 2, .flip = true, .seed = 1));
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int rank = 0; rank < ranks; rank++) {
            ls_sampler *s = sampler_of(rank, ranks, true);
            ls_loader *l = loader_of(d, s, rank % 3, LS_FEED_SPLIT);
            for (int64_t epoch = 0; epoch < 2; epoch++) {
                ls_batch b = {.size = sizeof b};
                while (ls_loader_next(l, &b)) {
                    CHECK_INT(b.epoch, epoch);
                    const float *x = ls_data(b.x);
                    const int32_t *y = ls_data(b.y);
                    for (int64_t i = 0; i < b.count; i++) {
                        float expected[PIXELS];
                        int32_t label;
                        CHECK_OK(d->get_in_epoch(d, epoch, y[i], expected, &label));
                        CHECK(memcmp(x + i * PIXELS, expected, sizeof expected) == 0);
                    }
                }
                CHECK_OK(ls_loader_status(l));
            }
            ls_loader_free(l);
            ls_sampler_free(s);
        }
    }
    ls_dataset_free(d);
    CHECK_OK(ls_finalize());
}

/* Writes the samples of an epoch in the order of a rank; returns how many. */
static int epoch_of(int rank, int ranks, ls_feed feed, int64_t epoch, int32_t *order)
{
    ls_dataset images = make_images();
    ls_sampler *s = sampler_of(rank, ranks, true);
    ls_loader *l = loader_of(&images, s, 0, feed);
    CHECK_OK(ls_loader_seek(l, epoch, 0));
    ls_batch b = {.size = sizeof b};
    int count = 0;
    while (ls_loader_next(l, &b)) {
        int64_t indices[4];
        CHECK_INT(b.count, ls_sampler_get(s, epoch, b.step, indices)); /* steps as with SPLIT */
        memcpy(order + count, ls_data(b.y), (size_t)b.count * sizeof *order);
        count += (int)b.count;
    }
    CHECK_OK(ls_loader_status(l));
    ls_loader_free(l);
    ls_sampler_free(s);
    return count;
}

TEST(shared_data_is_shuffled_by_each_rank_for_itself)
{
    CHECK_OK(ls_init(NULL));
    enum { RANKS = 3 };
    int32_t order[RANKS][COUNT], again[COUNT], split[COUNT], next[COUNT];
    int count[RANKS], times[COUNT] = {0}, all = 0;
    for (int r = 0; r < RANKS; r++) {
        bool seen[COUNT] = {false};
        count[r] = epoch_of(r, RANKS, LS_FEED_SHARED, 2, order[r]);
        for (int i = 0; i < count[r]; i++) {
            CHECK(!seen[order[r][i]]);
            seen[order[r][i]] = true;
            times[order[r][i]]++;
        }
        all += count[r];
        CHECK_INT(epoch_of(r, RANKS, LS_FEED_SHARED, 2, again), count[r]);
        CHECK(memcmp(order[r], again, (size_t)count[r] * sizeof again[0]) == 0);
        CHECK_INT(epoch_of(r, RANKS, LS_FEED_SPLIT, 2, split), count[r]);
        CHECK(memcmp(order[r], split, (size_t)count[r] * sizeof split[0]) != 0);
        CHECK_INT(epoch_of(r, RANKS, LS_FEED_SHARED, 3, next), count[r]);
        CHECK(memcmp(order[r], next, (size_t)count[r] * sizeof next[0]) != 0);
    }
    CHECK_INT(all, COUNT);
    int several = 0;
    for (int i = 0; i < COUNT; i++) {
        several += times[i] > 1;
    }
    CHECK(several > 3); /* they do not share the epoch out */
    ls_dataset images = make_images();
    ls_sampler *s = sampler_of(0, 1, false);
    ls_loader *l = NULL;
    CHECK_STATUS(
        l = ls_loader_new(&images, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SHARED)),
        LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), ".shuffle = true");
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

/* The same five numbers as NumPy's other types hold them; 0.1 is no float32, 1/3 no float16. */
TEST(images_of_other_types_become_float32)
{
    static const double f64[5] = {0.0, 0.1, -2.5, 1e-8, 1e300};
    static const uint16_t f16[5] = {0x0000, 0x3555, 0xc100, 0x0001, 0x7bff};
    static const uint8_t u8[5] = {0, 1, 127, 254, 255}, bools[5] = {0, 1, 1, 0, 1};
    static const float wanted[][5] = {{0.0f, 0.1f, -2.5f, 1e-8f, INFINITY},
                                      {0.0f, 0.333251953125f, -2.5f, 0x1p-24f, 65504.0f},
                                      {0.0f, 1.0f / 255.0f, 127.0f / 255.0f, 254.0f / 255.0f, 1.0f},
                                      {0.0f, 1.0f, 1.0f, 0.0f, 1.0f}};
    const struct {
        const void *from;
        ls_dtype dtype;
    } kinds[] = {{f64, LS_FLOAT64}, {f16, LS_FLOAT16}, {u8, LS_UINT8}, {bools, LS_BOOL}};
    CHECK_OK(ls_init(NULL));
    for (int kind = 0; kind < 4; kind++) {
        ls_tensor *x = ls_empty(LS_SHAPE(1, 1, 1, 5), kinds[kind].dtype);
        memcpy(ls_data(x), kinds[kind].from, 5 * ls_dtype_size(kinds[kind].dtype));
        ls_dataset *d =
            transformed(ls_tensor_dataset_new(x, ls_zeros(LS_SHAPE(1), LS_INT32)), NULL);
        float got[5];
        int32_t y;
        CHECK(d->x_dtype == LS_FLOAT32);
        CHECK_OK(d->get(d, 0, got, &y));
        for (int i = 0; i < 5; i++) {
            CHECK(got[i] == wanted[kind][i]);
        }
        ls_dataset_free(d);
    }
    ls_dataset *d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(1, 1, 1, 5), LS_INT32),
                                          ls_zeros(LS_SHAPE(1), LS_INT32));
    CHECK(LS_STATUS_OF(d = ls_transform_dataset_new(d, NULL)) == LS_ERR_INVALID);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
