/* SPDX-License-Identifier: Apache-2.0 */
/* The loader against direct reads in the sampler's order. */
#include "says.h"
#include "test.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>

#include "base/runtime.h"
#include "tensor/tensor.h"

/* Sample i is x = {i, -i}, y = 3 i; sample `broken` cannot be read. */
typedef struct numbers {
    ls_dataset base;
    int64_t broken;
} numbers;

static ls_status numbers_get(ls_dataset *self, int64_t index, void *x, void *y)
{
    if (index == ((numbers *)self)->broken) {
        return ls__fail(LS_ERR_SYSTEM, "\"numbers.bin\" cannot be read");
    }
    ((float *)x)[0] = (float)index;
    ((float *)x)[1] = -(float)index;
    *(int32_t *)y = (int32_t)(3 * index);
    return LS_OK;
}

static numbers make_numbers(int64_t count)
{
    return (numbers){{.size = sizeof(ls_dataset),
                      .count = count,
                      .x_shape = LS_SHAPE(2),
                      .y_shape = LS_SCALAR,
                      .x_dtype = LS_FLOAT32,
                      .y_dtype = LS_INT32,
                      .get = numbers_get},
                     -1};
}

static ls_sampler *make_sampler(int64_t count, int64_t batch, int rank, int ranks)
{
    ls_sampler *s = NULL;
    CHECK(LS_STATUS_OF(
              s = ls_sampler_new(count, LS_OPTIONS(ls_sampler_options, .batch = batch, .rank = rank,
                                                   .world_size = ranks, .seed = 5))) == LS_OK);
    return s;
}

static ls_loader *make_loader(numbers *d, ls_sampler *s, int prefetch)
{
    ls_loader *l = NULL;
    CHECK(LS_STATUS_OF(l = ls_loader_new(&d->base, s,
                                         LS_OPTIONS(ls_loader_options, .prefetch = prefetch))) ==
          LS_OK);
    return l;
}

static void check_batch(const ls_batch *b, const ls_sampler *s, int64_t epoch, int64_t step)
{
    int64_t expected[16];
    int64_t count = ls_sampler_get(s, epoch, step, expected);
    CHECK_INT(b->epoch, epoch);
    CHECK_INT(b->step, step);
    CHECK_INT(b->count, count);
    CHECK(b->last == (step + 1 == ls_sampler_steps(s)));
    CHECK_INT(ls_ndim(b->x), 2);
    CHECK_INT(ls_size(b->x, 0), count);
    CHECK_INT(ls_ndim(b->y), 1);
    float x[32];
    int32_t y[16];
    CHECK(ls_copy_out(b->x, x, (size_t)count * 2 * sizeof *x) == LS_OK);
    CHECK(ls_copy_out(b->y, y, (size_t)count * sizeof *y) == LS_OK);
    for (int64_t i = 0; i < count; i++) {
        CHECK(x[2 * i] == (float)expected[i] && x[2 * i + 1] == -(float)expected[i]);
        CHECK_INT(y[i], 3 * expected[i]);
    }
}

TEST(batches_equal_direct_reads_with_and_without_a_thread)
{
    CHECK(ls_init(NULL) == LS_OK);
    static const int64_t counts[] = {3, 17, 64};
    static const int prefetch[] = {0, 1, 2, 5};
    for (int c = 0; c < 3; c++) {
        for (int p = 0; p < 4; p++) {
            numbers d = make_numbers(counts[c]);
            ls_sampler *s = make_sampler(counts[c], 4, 1, 3);
            ls_loader *l = make_loader(&d, s, prefetch[p]);
            ls_batch b = {.size = sizeof b};
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                for (int64_t step = 0; step < ls_sampler_steps(s); step++) {
                    CHECK(ls_loader_next(l, &b));
                    check_batch(&b, s, epoch, step);
                }
                CHECK(!ls_loader_next(l, &b));
                CHECK(ls_loader_status(l) == LS_OK);
            }
            ls_loader_free(l);
            ls_sampler_free(s);
        }
    }
    CHECK(ls_finalize() == LS_OK);
}

TEST(the_last_batch_says_how_many_samples_all_ranks_have)
{
    CHECK(ls_init(NULL) == LS_OK);
    for (int rank = 0; rank < 4; rank++) {
        numbers d = make_numbers(4 * 2 + 3); /* 3 samples are left for 4 ranks */
        ls_sampler *s = make_sampler(11, 2, rank, 4);
        ls_loader *l = make_loader(&d, s, 2);
        ls_batch b = {.size = sizeof b};
        CHECK(ls_loader_next(l, &b));
        CHECK_INT(b.global_count, 8);
        CHECK_INT(ls_runtime_current()->sample_offset, rank * 2);
        CHECK(ls_loader_next(l, &b) && b.last);
        CHECK_INT(b.global_count, 3);
        CHECK_INT(b.count, rank < 3 ? 1 : 0);
        CHECK_INT(ls_runtime_current()->sample_offset, rank);
        CHECK_INT(ls_runtime_current()->step, 1);
        ls_loader_free(l);
        ls_sampler_free(s);
    }
    CHECK(ls_finalize() == LS_OK);
}

TEST(a_failing_read_reaches_the_caller_with_its_words)
{
    CHECK(ls_init(NULL) == LS_OK);
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        numbers d = make_numbers(12);
        ls_sampler *s = make_sampler(12, 3, 0, 1);
        int64_t indices[3];
        (void)ls_sampler_get(s, 0, 2, indices);
        d.broken = indices[1];
        ls_loader *l = make_loader(&d, s, prefetch);
        ls_batch b = {.size = sizeof b};
        CHECK(ls_loader_next(l, &b) && ls_loader_next(l, &b));
        CHECK(!ls_loader_next(l, &b));
        CHECK(ls_loader_status(l) == LS_ERR_SYSTEM);
        CHECK(strstr(ls_error_message(), "numbers.bin") != NULL);
        CHECK(strstr(ls_error_message(), "step 2") != NULL);
        CHECK(!ls_loader_next(l, &b)); /* and stays failed */
        d.broken = -1;
        CHECK(ls_loader_seek(l, 0, 2) == LS_OK);
        CHECK(ls_loader_next(l, &b));
        check_batch(&b, s, 0, 2);
        ls_loader_free(l);
        ls_sampler_free(s);
    }
    CHECK(ls_finalize() == LS_OK);
}

TEST(samples_of_too_many_dimensions_are_refused)
{
    CHECK(ls_init(NULL) == LS_OK);
    numbers d = make_numbers(10);
    ls_sampler *s = make_sampler(10, 2, 0, 1);
    const int dims[] = {-1, LS_DIMS_MAX};
    for (size_t i = 0; i < 2; i++) {
        d.base.x_shape = (ls_shape){.ndim = dims[i], .dim = {1, 1, 1, 1, 1, 1, 1, 1}};
        CHECK(ls_loader_new(&d.base, s, NULL) == NULL);
        CHECK_INT(ls_error_status(), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "loader: samples of the data set's %s have %d dimensions "
                                       "and a batch has one more; give samples of 0 to %d");
    }
    ls_sampler_free(s);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- a data set that hangs ------------------------------------------------------------------- */

static atomic_int hung, let_go, freed;

static ls_status hang(ls_dataset *self, int64_t index, void *x, void *y)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (atomic_store(&hung, 1); atomic_load(&let_go) == 0;) {
        (void)nanosleep(&pause, NULL);
    }
    atomic_store(&hung, 0);
    return numbers_get(self, index, x, y);
}

static void note_free(ls_dataset *self)
{
    (void)self;
    atomic_fetch_add(&freed, 1);
}

static char warned[512];

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN) {
        (void)snprintf(warned, sizeof warned, "%s", text);
    }
}

static void *kept_set(numbers *d)
{
    ls_sampler *s = make_sampler(12, 3, 0, 1);
    ls_loader *l = make_loader(d, s, 1);
    ls_batch b = {.size = sizeof b};
    CHECK(!ls_loader_next(l, &b));
    CHECK_STATUS(ls_loader_status(l), LS_ERR_TIMEOUT);
    CHECK_STATUS(ls_loader_seek(l, 0, 2), LS_ERR_TIMEOUT);
    CHECK_SAYS(ls_error_message(),
               "loader: the data set's get function has not returned for %lld ms; "
               "look at it, and at the disk that it reads from");
    const double begin = ls_time();
    ls_set_log_callback(keep_warning, NULL);
    ls_loader_free(l);
    CHECK_WITHIN(ls_time() - begin, 2);
    CHECK_SAYS(warned, "ls_loader_free: %s; the loader and its data set are not freed");
    ls_dataset_free(&d->base);
    CHECK_INT(atomic_load(&freed), 0); /* a thread still reads from it */
    ls_sampler_free(s);
    return l;
}

TEST(a_loader_whose_data_set_hangs_is_freed_in_time_and_leaves_the_data_set_to_it)
{
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .timeout_ms = 300)));
    numbers d = make_numbers(12), other = make_numbers(12);
    d.base.get = hang;
    d.base.free = other.base.free = note_free;
    static const void *volatile left; /* seen by a leak checker until the end */
    left = kept_set(&d);
    ls_dataset_free(&other.base);
    CHECK_INT(atomic_load(&freed), 1);
    CHECK_OK(ls_finalize());
    atomic_store(&let_go, 1); /* the disk answers after all: the thread ends, and touches nothing */
    while (atomic_load(&hung) != 0) {
        sched_yield();
    }
    (void)left;
}

/* A disk that answers late: the loader goes on from the next seek. */
TEST(a_loader_goes_on_when_its_data_set_has_answered_late)
{
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .timeout_ms = 300)));
    numbers d = make_numbers(12);
    d.base.get = hang;
    ls_sampler *s = make_sampler(12, 3, 0, 1);
    ls_loader *l = make_loader(&d, s, 1);
    ls_batch b = {.size = sizeof b};
    CHECK(!ls_loader_next(l, &b));
    CHECK_STATUS(ls_loader_seek(l, 0, 2), LS_ERR_TIMEOUT);
    atomic_store(&let_go, 1);
    CHECK_OK(ls_loader_seek(l, 0, 2));
    CHECK(ls_loader_next(l, &b));
    check_batch(&b, s, 0, 2);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

TEST(seeking_goes_anywhere_and_the_loader_stops_at_any_point)
{
    CHECK(ls_init(NULL) == LS_OK);
    numbers d = make_numbers(40);
    ls_sampler *s = make_sampler(40, 3, 1, 2);
    static const int64_t places[][2] = {{0, 5}, {3, 0}, {1, 6}, {0, 0}};
    for (int i = 0; i < 4; i++) {
        ls_loader *l = make_loader(&d, s, 2);
        ls_batch b = {.size = sizeof b};
        CHECK(ls_loader_next(l, &b));
        CHECK(ls_loader_seek(l, places[i][0], places[i][1]) == LS_OK);
        CHECK(ls_loader_next(l, &b));
        check_batch(&b, s, places[i][0], places[i][1]);
        CHECK(ls_loader_seek(l, 0, 8) == LS_ERR_INVALID);
        ls_loader_free(l); /* with batches read ahead, or being read */
    }
    ls_loader_free(make_loader(&d, s, 2)); /* before its first batch */
    ls_sampler_free(s);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- state -------------------------------------------------------------------------------- */

typedef struct fields {
    int64_t value[5];
    int at;
    bool loading;
} fields;

static ls_status on_int64(void *self, const char *name, int64_t *value)
{
    fields *f = self;
    static const char *const names[] = {"data.epoch", "data.sample", "data.seed", "data.count",
                                        "data.batches"};
    CHECK(f->at < 5 && strcmp(name, names[f->at]) == 0);
    if (f->loading) {
        *value = f->value[f->at];
    }
    f->value[f->at++] = *value;
    return LS_OK;
}

static ls_status try_walk(ls_loader *l, fields *f, bool loading)
{
    f->at = 0;
    f->loading = loading;
    const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .self = f, .int64 = on_int64};
    ls_status status = ls_loader_state(l, "data", &visitor);
    CHECK_INT(f->at, 5);
    return status;
}

static fields walk(ls_loader *l, fields f, bool loading)
{
    CHECK_OK(try_walk(l, &f, loading));
    return f;
}

TEST(every_field_of_the_state_comes_back)
{
    CHECK(ls_init(NULL) == LS_OK);
    numbers d = make_numbers(30);
    ls_sampler *s = make_sampler(30, 2, 0, 3);
    ls_loader *l = make_loader(&d, s, 2);
    ls_batch b = {.size = sizeof b};
    for (int i = 0; i < 8; i++) { /* 5 steps, the end, 2 steps of the next epoch */
        (void)ls_loader_next(l, &b);
    }
    fields saved = walk(l, (fields){0}, false);
    CHECK_INT(saved.value[0], 1);
    CHECK_INT(saved.value[1], 12); /* of all 3 ranks */
    CHECK_INT(saved.value[2], 5);
    CHECK_INT(saved.value[3], 30);
    CHECK_INT(saved.value[4], 7); /* in both epochs */
    CHECK(ls_loader_next(l, &b));
    check_batch(&b, s, 1, 2);
    (void)walk(l, (fields){{7, 24, 99, 30, 1234}, 0, false}, true);
    CHECK(ls_loader_next(l, &b));
    check_batch(&b, s, 7, 4); /* by the sampler's new seed */
    CHECK_INT(ls_runtime_current()->step, 1234);
    (void)walk(l, saved, true);
    fields after = walk(l, (fields){0}, false);
    CHECK(memcmp(after.value, saved.value, sizeof saved.value) == 0);
    CHECK(ls_loader_next(l, &b));
    check_batch(&b, s, 1, 2);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK(ls_finalize() == LS_OK);
}

TEST(a_saved_position_of_other_data_or_outside_of_the_epoch_is_refused)
{
    CHECK(ls_init(NULL) == LS_OK);
    numbers d = make_numbers(30);
    ls_sampler *s = make_sampler(30, 2, 0, 3);
    ls_loader *l = make_loader(&d, s, 0);
    fields other = {{0, 6, 5, 31, 1}, 0, false}, outside = {{0, 31, 5, 30, 5}, 0, false};
    CHECK_STATUS(try_walk(l, &other, true), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "31 samples, this one has 30");
    CHECK_STATUS(try_walk(l, &outside, true), LS_ERR_FORMAT);
    CHECK_INT(walk(l, (fields){0}, false).value[1], 0);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK(ls_finalize() == LS_OK);
}

/* Trains some steps on `before` ranks, goes on with `after`: every sample of the epoch once. */
static void check_change(int before, int after, int64_t count, int64_t batch, int64_t steps)
{
    uint8_t seen[256] = {0};
    fields at = {0};
    numbers d = make_numbers(count);
    for (int phase = 0; phase < 2; phase++) {
        int ranks = phase == 0 ? before : after;
        for (int r = 0; r < ranks; r++) {
            ls_sampler *s = make_sampler(count, batch, r, ranks);
            ls_loader *l = make_loader(&d, s, r % 2 ? 2 : 0);
            ls_batch b = {.size = sizeof b};
            if (phase == 1) {
                fields mine = walk(l, at, true);
                CHECK_INT(mine.value[1], at.value[1]);
            }
            for (int64_t k = 0; (phase == 1 || k < steps) && ls_loader_next(l, &b); k++) {
                for (int64_t i = 0; i < b.count; i++) {
                    seen[(int64_t)((const float *)ls_data(b.x))[i * 2]]++;
                }
                CHECK(b.step < ls_sampler_steps(s));
            }
            fields now = walk(l, (fields){0}, false);
            CHECK(phase == 1 || r == 0 || memcmp(now.value, at.value, sizeof at.value) == 0);
            at = phase == 0 ? now : at;
            ls_loader_free(l);
            ls_sampler_free(s);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        CHECK_INT(seen[i], 1);
    }
}

TEST(at_another_rank_count_no_sample_of_the_epoch_is_lost_or_repeated)
{
    CHECK(ls_init(NULL) == LS_OK);
    for (int before = 1; before <= 8; before++) {
        for (int after = 1; after <= 8; after++) {
            check_change(before, after, 101, 3, 2);
            check_change(before, after, 48, 2, 3);
        }
    }
    CHECK(ls_finalize() == LS_OK);
}

TEST(steady_loading_allocates_nothing)
{
    CHECK(ls_init(NULL) == LS_OK);
    numbers d = make_numbers(31);
    ls_sampler *s = make_sampler(31, 4, 0, 1);
    ls_loader *l = make_loader(&d, s, 2);
    ls_batch b = {.size = sizeof b};
    for (int i = 0; i < 20; i++) {
        (void)ls_loader_next(l, &b);
    }
    uint64_t before = ls__tensor_allocations(ls_runtime_current());
    int64_t alive = ls__tensor_alive();
    for (int i = 0; i < 9 * 8; i++) { /* whole epochs of 8 batches and an end */
        (void)ls_loader_next(l, &b);
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()), before);
    CHECK_INT(ls__tensor_alive(), alive);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK(ls_finalize() == LS_OK);
}

TEST(tensors_serve_as_a_data_set)
{
    CHECK(ls_init(NULL) == LS_OK);
    float x[6] = {1, 2, 3, 4, 5, 6};
    int32_t y[3] = {7, 8, 9};
    ls_dataset *d = NULL;
    {
        LS_SCOPE;
        ls_tensor *tx = ls_from_data(x, LS_SHAPE(2, 3), LS_FLOAT32);
        ls_tensor *columns = ls_transpose(tx, 0, 1); /* not contiguous: [3,2] */
        CHECK(LS_STATUS_OF(d = ls_tensor_dataset_new(
                               columns, ls_from_data(y, LS_SHAPE(3), LS_INT32))) == LS_OK);
    }
    CHECK_INT(d->count, 3);
    for (int i = 0; i < 3; i++) {
        float sample[2];
        int32_t label;
        CHECK(d->get(d, i, sample, &label) == LS_OK);
        CHECK(sample[0] == x[i] && sample[1] == x[3 + i] && label == 7 + i);
    }
    ls_dataset_free(d);
    {
        LS_SCOPE;
        CHECK(LS_STATUS_OF(d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32),
                                                     ls_zeros(LS_SHAPE(3), LS_INT32))) ==
              LS_ERR_INVALID);
        CHECK(strstr(ls_error_message(), "2 samples") != NULL);
    }
    CHECK(ls_finalize() == LS_OK);
}

/* The batch's memory is read into again after the next call; a graph that saved it must not use
 * what is there then. */
static void check_given_back(int64_t count, int prefetch)
{
    numbers d = make_numbers(count);
    ls_sampler *s = make_sampler(count, 4, 0, 1);
    ls_loader *l = make_loader(&d, s, prefetch);
    ls_module *m = ls_linear_new(2, 1, NULL);
    {
        LS_SCOPE;
        ls_batch b = {.size = sizeof b};
        CHECK(ls_loader_next(l, &b));
        ls_tensor *loss = ls_mean(ls_forward(m, b.x));
        (void)ls_loader_next(l, &b);
        CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "argument 1");
        CHECK_CONTAINS(ls_error_message(), "changed");
    }
    ls_module_free(m);
    ls_loader_free(l);
    ls_sampler_free(s);
}

TEST(a_backward_through_a_batch_that_was_given_back_is_refused)
{
    CHECK(ls_init(NULL) == LS_OK);
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        check_given_back(8, prefetch);
        check_given_back(3, prefetch); /* a short batch has tensors of its own */
    }
    CHECK(ls_finalize() == LS_OK);
}

/* ---- samples of several arrays -------------------------------------------------------------- */

enum { SENTENCES = 11, PAD = 99 };

/* Sample i has words {i, i, ...} of 1 + i % 4, a table [1 + i % 2, 2] of halves, and a number. */
typedef struct sentences {
    ls_dataset base;
    int64_t odd; /* this sample does not fit the others; -1: none */
    bool empty;  /* … because it has no arrays */
} sentences;

static ls_status sentences_get(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
{
    const sentences *d = (sentences *)self;
    const int64_t length = 1 + i % 4, rows = 1 + i % 2;
    if (i == d->odd && d->empty) {
        return LS_OK;
    }
    int32_t *words = ls_sample_add(sample, i == d->odd ? LS_UINT32 : LS_INT32, LS_SHAPE(length));
    float *table = ls_sample_add(sample, LS_FLOAT32, LS_SHAPE(rows, 2));
    int64_t *number = ls_sample_add(sample, LS_INT64, LS_SCALAR);
    CHECK(words != NULL && table != NULL && number != NULL);
    for (int64_t k = 0; k < length; k++) {
        words[k] = (int32_t)i;
    }
    for (int64_t k = 0; k < 2 * rows; k++) {
        table[k] = 0.5f * (float)(i + k);
    }
    *number = i + 100 * epoch;
    return LS_OK;
}

static sentences make_sentences(void)
{
    static const double pad[] = {PAD, -1.0, 0.0};
    return (sentences){LS_DATASET(.count = SENTENCES, .get_sample = sentences_get, .pad = pad), -1,
                       false};
}

static ls_loader *loader_of(sentences *d, ls_sampler *s, int prefetch)
{
    ls_loader *l = ls_loader_new(&d->base, s, LS_OPTIONS(ls_loader_options, .prefetch = prefetch));
    CHECK(l != NULL);
    return l;
}

static void check_sentence(const int32_t *words, int64_t width, const float *table, int64_t rows,
                           int64_t i)
{
    for (int64_t k = 0; k < width; k++) {
        CHECK_INT(words[k], k < 1 + i % 4 ? i : PAD);
    }
    for (int64_t k = 0; k < 2 * rows; k++) {
        CHECK(table[k] == (k < 2 * (1 + i % 2) ? 0.5f * (float)(i + k) : -1.0f));
    }
}

/* The samples of a step in the sampler's order, each padded to the largest of the batch. */
static void check_sentences(const ls_batch *b, const ls_sampler *s)
{
    int64_t want[16], width = 1, rows = 1;
    const int64_t count = ls_sampler_get(s, b->epoch, b->step, want);
    for (int64_t n = 0; n < count; n++) {
        width = 1 + want[n] % 4 > width ? 1 + want[n] % 4 : width;
        rows = 1 + want[n] % 2 > rows ? 1 + want[n] % 2 : rows;
    }
    CHECK(b->count == count && b->array_count == 3);
    CHECK(b->x == b->arrays[0] && b->y == b->arrays[1]);
    CHECK(ls_size(b->x, 0) == count && ls_size(b->x, 1) == width && ls_ndim(b->x) == 2);
    CHECK(ls_size(b->y, 0) == count && ls_size(b->y, 1) == rows && ls_size(b->y, 2) == 2);
    CHECK(ls_ndim(b->arrays[2]) == 1 && ls_dtype_of(b->arrays[2]) == LS_INT64);
    for (int64_t n = 0; n < count; n++) {
        check_sentence((const int32_t *)ls_data(b->x) + n * width, width,
                       (const float *)ls_data(b->y) + n * rows * 2, rows, want[n]);
        CHECK_INT(((const int64_t *)ls_data(b->arrays[2]))[n], want[n] + 100 * b->epoch);
    }
}

TEST(arrays_of_any_shape_are_padded_to_the_largest_of_the_batch)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    ls_sampler *s = make_sampler(SENTENCES, 3, 0, 1);
    for (int prefetch = 0; prefetch < 3; prefetch += 2) {
        ls_loader *l = loader_of(&d, s, prefetch);
        ls_batch b = {.size = sizeof b};
        int batches = 0;
        for (int i = 0; i < 2 * (4 + 1); i++) {
            if (ls_loader_next(l, &b)) {
                check_sentences(&b, s);
                batches++;
            }
        }
        CHECK_INT(batches, 8);
        CHECK_OK(ls_loader_seek(l, 5, 2));
        CHECK(ls_loader_next(l, &b) && b.epoch == 5 && b.step == 2);
        check_sentences(&b, s);
        CHECK_OK(ls_loader_status(l));
        ls_loader_free(l);
    }
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

/* 11 samples of 4 ranks in batches of 2: the last step has 3, one for each of the first ranks. */
TEST(a_rank_without_samples_gets_arrays_of_none)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    ls_sampler *s = make_sampler(SENTENCES, 2, 3, 4);
    ls_loader *l = loader_of(&d, s, 0);
    ls_batch b = {.size = sizeof b};
    CHECK(ls_loader_next(l, &b) && b.count == 2);
    CHECK(ls_loader_next(l, &b) && b.count == 0 && b.global_count == 3 && b.array_count == 3);
    CHECK(ls_size(b.x, 0) == 0 && ls_ndim(b.x) == 2 && ls_size(b.y, 2) == 2);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

/* One array of all words, and where each sentence begins in it. */
static ls_status join(ls_dataset *self, const ls_sample *const *samples, int64_t count,
                      ls_sample *batch)
{
    int64_t total = 0, at = 0;
    (void)self;
    for (int64_t n = 0; n < count; n++) {
        total += ls_sample_array(samples[n], 0)->shape.dim[0];
    }
    int64_t *begins = ls_sample_add(batch, LS_INT64, LS_SHAPE(count));
    int32_t *words = ls_sample_add(batch, LS_INT32, LS_SHAPE(count, total));
    if (begins == NULL || words == NULL) {
        return ls_error_status();
    }
    memset(words, 0, (size_t)(count * total) * sizeof *words);
    for (int64_t n = 0; n < count; n++) {
        const ls_array *a = ls_sample_array(samples[n], 0);
        begins[n] = at;
        memcpy(words + at, a->data, (size_t)a->shape.dim[0] * sizeof *words);
        at += a->shape.dim[0];
    }
    return LS_OK;
}

static ls_status drop_last(ls_dataset *self, const ls_sample *const *samples, int64_t count,
                           ls_sample *batch)
{
    (void)self;
    return ls_sample_pad(batch, samples, count - 1, NULL);
}

static ls_status add_nothing(ls_dataset *self, const ls_sample *const *samples, int64_t count,
                             ls_sample *batch)
{
    (void)self, (void)samples, (void)count, (void)batch;
    return LS_OK;
}

TEST(a_program_makes_batches_of_its_own)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    d.base.collate = join;
    ls_sampler *s =
        ls_sampler_new(SENTENCES, LS_OPTIONS(ls_sampler_options, .batch = 3, .shuffle = false,
                                             .rank = 0, .world_size = 1));
    ls_loader *l = loader_of(&d, s, 2);
    ls_batch b = {.size = sizeof b};
    CHECK(ls_loader_next(l, &b) && b.array_count == 2);
    CHECK(((const int64_t *)ls_data(b.x))[2] == 3 && ((const int32_t *)ls_data(b.y))[5] == 2);
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

/* The error of the first batch of all samples. */
static void check_first_fails(sentences *d, const char *words)
{
    ls_sampler *s = make_sampler(SENTENCES, SENTENCES, 0, 1);
    ls_loader *l = loader_of(d, s, 0);
    ls_batch b = {.size = sizeof b};
    CHECK(!ls_loader_next(l, &b));
    CHECK_STATUS(ls_loader_status(l), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), words);
    ls_loader_free(l);
    ls_sampler_free(s);
}

static ls_status six_dimensions(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
{
    (void)self, (void)epoch, (void)i;
    ls_shape shape = {.ndim = LS_DIMS_MAX};
    for (int d = 0; d < LS_DIMS_MAX; d++) {
        shape.dim[d] = 1;
    }
    return ls_sample_add(sample, LS_UINT8, shape) != NULL ? LS_OK : ls_error_status();
}

static ls_status nine_arrays(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
{
    (void)self, (void)epoch, (void)i;
    while (ls_sample_add(sample, LS_UINT8, LS_SHAPE(1)) != NULL) {
    }
    return ls_error_status();
}

static ls_status get_without_words(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
{
    (void)self, (void)epoch, (void)i, (void)sample;
    return LS_ERR_INVALID;
}

static ls_status collate_without_words(ls_dataset *self, const ls_sample *const *samples,
                                       int64_t count, ls_sample *batch)
{
    (void)self, (void)samples, (void)count, (void)batch;
    return LS_ERR_INVALID;
}

TEST(a_status_without_words_is_said_to_be_the_data_sets)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    d.base.collate = collate_without_words;
    check_first_fails(&d, SAYS("the data set's collate of %lld samples"));
    d.base.get_sample = get_without_words;
    check_first_fails(&d, SAYS("the data set's get_sample of sample %lld"));
    CHECK_OK(ls_finalize());
}

TEST(arrays_that_do_not_fit_are_refused_with_the_sample)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    d.odd = 4;
    check_first_fails(&d, SAYS("ls_sample_pad: array %d of sample %lld of the batch is %s %s, of "
                               "the first %s %s; give all samples arrays of one type and number of "
                               "dimensions"));
    d.empty = true;
    check_first_fails(&d, SAYS("the data set's get_sample of sample %lld added no array; add them "
                               "with ls_sample_add"));
    d = make_sentences();
    d.base.collate = drop_last;
    check_first_fails(&d, SAYS("the data set's collate made array %d %s of %lld samples; its first "
                               "dimension is their number"));
    d.base.collate = add_nothing;
    check_first_fails(&d, SAYS("the data set's collate added no array; add them with "
                               "ls_sample_add"));
    d.base.collate = NULL;
    d.base.get_sample = six_dimensions;
    check_first_fails(&d,
                      SAYS("ls_sample_pad: array %d has %d dimensions and a batch has one more; "
                           "give arrays of 0 to %d"));
    d.base.get_sample = nine_arrays;
    check_first_fails(&d, SAYS("ls_sample_add: array %d, %s %s; give a sample, at most %d arrays, "
                               "and a type and a shape that a tensor can have"));
    CHECK_STATUS(ls_sample_pad(NULL, NULL, 0, NULL), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_sample_pad: a batch and samples are needed; give those that "
                                   "`collate` was given");
    ls_sampler *s = make_sampler(SENTENCES, 2, 0, 1);
    CHECK(!ls_loader_new(&d.base, s, LS_OPTIONS(ls_loader_options, .feed = LS_FEED_SCATTER)));
    CHECK_SAYS(
        ls_error_message(),
        "loader: the samples are arrays of any shape (get_sample), and are neither scattered "
        "nor divided into shards; give LS_FEED_SPLIT without shards");
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

static ls_status one_or_two(ls_dataset *self, int64_t epoch, int64_t i, ls_sample *sample)
{
    (void)self, (void)epoch;
    CHECK(ls_sample_add(sample, LS_UINT8, LS_SHAPE(1)) != NULL);
    CHECK(i % 2 == 0 || ls_sample_add(sample, LS_UINT8, LS_SHAPE(1)) != NULL);
    return LS_OK;
}

TEST(samples_of_different_numbers_of_arrays_are_refused)
{
    CHECK_OK(ls_init(NULL));
    sentences d = make_sentences();
    d.base.get_sample = one_or_two;
    ls_sampler *s = make_sampler(SENTENCES, SENTENCES, 0, 1);
    ls_loader *l = loader_of(&d, s, 0);
    ls_batch b = {.size = sizeof b};
    CHECK(!ls_loader_next(l, &b));
    CHECK_SAYS(ls_error_message(), "ls_sample_pad: sample %lld of the batch has %d arrays, the "
                                   "first has %d; give all samples the same arrays");
    ls_loader_free(l);
    ls_sampler_free(s);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
