/* SPDX-License-Identifier: Apache-2.0 */
/* Batches that rank 0 reads and scatters are those that each rank would have read; what goes wrong
 * on rank 0 is told on all. */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

enum { COUNT = 103, BATCH = 4, EPOCHS = 2, BROKEN = 17 };

/* Sample i is x = {i, i + 0.5, -i} and y = i * i; the numbers say where they were read. */
typedef struct numbers {
    ls_dataset base;
    int64_t broken, reads;
} numbers;

static ls_status numbers_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    numbers *n = (numbers *)self;
    n->reads++;
    if (index == n->broken) {
        return ls_tensor_status(ls_relu(NULL)); /* any error */
    }
    const float i = (float)index;
    memcpy(x, (float[]){i, i + 0.5f, -i}, 3 * sizeof(float));
    *(int64_t *)y = index * index;
    return LS_OK;
}

static numbers make_numbers(int64_t broken)
{
    return (numbers){{.size = sizeof(ls_dataset),
                      .count = COUNT,
                      .x_shape = LS_SHAPE(3),
                      .y_shape = LS_SCALAR,
                      .x_dtype = LS_FLOAT32,
                      .y_dtype = LS_INT64,
                      .get = numbers_get},
                     broken,
                     0};
}

static ls_sampler *make_sampler(int64_t count)
{
    ls_sampler *s = NULL;
    CHECK_OK(s = ls_sampler_new(count, LS_OPTIONS(ls_sampler_options, .batch = BATCH, .seed = 7)));
    return s;
}

static void check_batch(const ls_batch *b, const ls_sampler *s, int64_t epoch, int64_t step)
{
    int64_t indices[BATCH];
    CHECK_INT(b->epoch, epoch);
    CHECK_INT(b->step, step);
    CHECK_INT(b->count, ls_sampler_get(s, epoch, step, indices));
    CHECK_INT(ls_size(b->x, 0), b->count);
    const float *x = elements_of(b->x);
    const int64_t *y = elements_of(b->y);
    for (int64_t i = 0; i < b->count; i++) {
        const float n = (float)indices[i];
        CHECK(x[3 * i] == n && x[3 * i + 1] == n + 0.5f && x[3 * i + 2] == -n);
        CHECK_INT(y[i], indices[i] * indices[i]);
    }
}

static void check_scattered(int prefetch)
{
    numbers n = make_numbers(-1);
    ls_dataset *d = NULL;
    CHECK_OK(d = ls_dataset_share(ls_rank() == 0 ? &n.base : NULL));
    CHECK_INT(d->count, COUNT);
    ls_sampler *s = make_sampler(d->count);
    ls_loader *l = NULL;
    CHECK_OK(
        l = ls_loader_new(
            d, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER, .prefetch = prefetch)));
    ls_batch b = {.size = sizeof b};
    for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
        for (int64_t step = 0; step < ls_sampler_steps(s); step++) {
            CHECK(ls_loader_next(l, &b));
            check_batch(&b, s, epoch, step);
            if (step == 3) { /* the user's own operations go between */
                CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
            }
        }
        CHECK(!ls_loader_next(l, &b));
        CHECK_OK(ls_loader_status(l));
    }
    CHECK_OK(ls_loader_seek(l, 5, 2)); /* rank 0 has read ahead */
    CHECK(ls_loader_next(l, &b));
    check_batch(&b, s, 5, 2);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK(ls_rank() == 0 ? n.reads >= EPOCHS * COUNT : n.reads == 0);
    if (ls_rank() != 0) {
        ls_dataset_free(d);
    }
}

DIST_TEST(two_ranks_get_the_batches_that_they_would_have_read, 2)
{
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        check_scattered(prefetch);
    }
}

DIST_TEST(four_ranks_get_them_too, 4)
{
    check_scattered(2);
}

DIST_TEST(a_world_of_one_scatters_to_itself, 1)
{
    check_scattered(1);
}

DIST_TEST(what_rank_0_cannot_read_is_told_on_all_ranks, 3)
{
    numbers n = make_numbers(ls_rank() == 0 ? BROKEN : -1);
    ls_sampler *s = make_sampler(COUNT);
    ls_loader *l = NULL;
    CHECK_OK(l = ls_loader_new(&n.base, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)));
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* else some learn of it in ls_loader_new */
    ls_batch b = {.size = sizeof b};
    int64_t step = 0;
    while (ls_loader_next(l, &b)) {
        check_batch(&b, s, 0, step++);
    }
    CHECK(step < ls_sampler_steps(s));
    CHECK(ls_loader_status(l) < 0);
    CHECK_CONTAINS(ls_error_message(), "relu");
    CHECK_CONTAINS(ls_error_message(), "epoch 0, step");
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* the world goes on */
}

DIST_TEST(ranks_that_expect_other_samples_are_named_on_all, 3)
{
    numbers n = make_numbers(-1);
    if (ls_rank() == 2) {
        n.base.x_shape = LS_SHAPE(1, 3);
    }
    ls_sampler *s = make_sampler(COUNT);
    ls_loader *l = NULL;
    CHECK_STATUS(
        l = ls_loader_new(&n.base, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)),
        LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(),
                   "rank 2 expects 103 samples in batches of 4, x float32 [1,3]");
    CHECK_CONTAINS(ls_error_message(), "rank 0 scatters 103 in batches of 4, x float32 [3]");
    CHECK(l == NULL);
    ls_sampler_free(s);
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
}

DIST_TEST(a_shared_data_set_has_rank_0s_shapes_and_types, 2)
{
    numbers n = make_numbers(-1);
    n.base.x_shape = LS_SHAPE(2, 5);
    n.base.x_dtype = LS_INT32;
    n.base.y_dtype = LS_BFLOAT16;
    ls_dataset *d = NULL;
    CHECK_OK(d = ls_dataset_share(ls_rank() == 0 ? &n.base : NULL));
    CHECK_INT(d->count, COUNT);
    CHECK(d->x_shape.ndim == 2 && d->x_shape.dim[0] == 2 && d->x_shape.dim[1] == 5);
    CHECK_INT(d->y_shape.ndim, 0);
    CHECK_INT(d->x_dtype, LS_INT32);
    CHECK_INT(d->y_dtype, LS_BFLOAT16);
    if (ls_rank() != 0) {
        ls_dataset_free(d);
    }
}

DIST_TEST(a_data_set_that_rank_0_has_not_cannot_be_shared, 2)
{
    ls_dataset *d = NULL;
    CHECK_STATUS(d = ls_dataset_share(NULL), LS_ERR_INVALID);
    CHECK(d == NULL);
    numbers n = make_numbers(-1);
    CHECK_OK(d = ls_dataset_share(&n.base));
    float x[3];
    int64_t y = 0;
    if (ls_rank() == 1) {
        CHECK_STATUS(d->get(d, 3, x, &y), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "LS_FEED_SCATTER");
        ls_dataset_free(d);
    } else {
        CHECK_OK(d->get(d, 3, x, &y));
        CHECK_INT(y, 9);
    }
}

TEST_MAIN
