/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with data sets, samplers and loaders. */
#include <sys/stat.h>

#include "golden.h"

#define IDX(name, ...)                                                                             \
    golden_file(name, (const unsigned char[]){__VA_ARGS__},                                        \
                sizeof((const unsigned char[]){__VA_ARGS__}))

static ls_dataset *made;

/* An IDX file of images beside good labels, or of labels beside good images. */
static void show_idx(const char *what, const char *images, const char *labels)
{
    ls_dataset *d = NULL;
    const char *good = IDX("labels", 0, 0, 8, 1, 0, 0, 0, 2, 0, 1);
    const char *two = IDX("images", 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4);
    golden_show(
        what, LS_STATUS_OF(d = ls_idx_dataset_new(images ? images : two, labels ? labels : good)));
}

GOLDEN(idx_files)
{
    ls_dataset *d = NULL;
    SHOW(d = ls_idx_dataset_new(NULL, "labels"));
    show_idx("missing", "/does/not/exist", NULL);
    show_idx("a folder", "/tmp", NULL);
    show_idx("short", IDX("short", 0, 0, 8), NULL);
    show_idx("an archive", IDX("images.zip", 'P', 'K', 3, 4, 0, 0, 0, 0, 0, 0), NULL);
    show_idx("text", IDX("readme", 'H', 'e', 'l', 'l', 'o', ' ', 'y', 'o', 'u'), NULL);
    show_idx("floats", IDX("floats", 0, 0, 0x0d, 1, 0, 0, 0, 1, 0, 0, 0, 0), NULL);
    show_idx("no dimensions", IDX("dimensions", 0, 0, 8, 0, 0, 0, 0, 1), NULL);
    show_idx("header cut", IDX("cut", 0, 0, 8, 3, 0, 0, 0, 1, 0), NULL);
    show_idx("overflow",
             IDX("overflow", 0, 0, 8, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
                 255, 255, 255, 255),
             NULL);
    show_idx("truncated", IDX("truncated", 0, 0, 8, 1, 0, 0, 0, 9, 1, 2), NULL);
    show_idx("empty", IDX("empty", 0, 0, 8, 1, 0, 0, 0, 0), NULL);
    show_idx("swapped", IDX("first", 0, 0, 8, 1, 0, 0, 0, 2, 0, 1),
             IDX("second", 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4));
    show_idx("other counts", NULL, IDX("three", 0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2));
}

GOLDEN(samples_that_are_not_there)
{
    float x[16];
    int32_t y[16];
    MUST(made = ls_idx_dataset_new(
             IDX("images", 0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4),
             IDX("labels", 0, 0, 8, 1, 0, 0, 0, 2, 0, 1)));
    SHOW(made->get(made, 2, x, y));
    ls_dataset *table = NULL;
    MUST(table = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(3, 2), LS_FLOAT32),
                                       ls_zeros(LS_SHAPE(3), LS_INT32)));
    SHOW(table->get(table, -1, x, y));
    ls_dataset *text = NULL;
    MUST(text = ls_text_dataset_new(golden_file("text", "abcdefghijklmnop", 16),
                                    LS_OPTIONS(ls_text_options, .context = 4, .held_out = 0)));
    SHOW(text->get(text, 99, x, y));
}

GOLDEN(tensors_as_data)
{
    ls_dataset *d = NULL;
    ls_tensor *x = ls_zeros(LS_SHAPE(3, 2), LS_FLOAT32);
    SHOW(d = ls_tensor_dataset_new(x, ls_zeros(LS_SHAPE(4), LS_INT32)));
    SHOW(d = ls_tensor_dataset_new(x, ls_full(LS_SCALAR, LS_FLOAT32, 1)));
    SHOW(d = ls_tensor_dataset_new(x, ls_zeros(LS_SHAPE(3, 0), LS_FLOAT32)));
    SHOW(d = ls_tensor_dataset_new(NULL, x));
}

GOLDEN(text_files)
{
    ls_dataset *d = NULL;
    char folder[300];
    SHOW(d = ls_text_dataset_new(NULL, NULL));
    SHOW(d = ls_text_dataset_new("/does/not/exist", NULL));
    SHOW(d = ls_text_dataset_new("/dev/null", NULL));
    SHOW(d = ls_text_dataset_new(golden_file("empty", "", 0), NULL));
    SHOW(d = ls_text_dataset_new(golden_file("short", "a few words", 11), NULL));
    SHOW(d = ls_text_dataset_new("x", LS_OPTIONS(ls_text_options, .context = 0)));
    SHOW(d = ls_text_dataset_new("x", LS_OPTIONS(ls_text_options, .held_out = 2)));
    SHOW(d = ls_text_dataset_new("x", LS_OPTIONS(ls_text_options, .part = (ls_text_part)9)));
    (void)snprintf(folder, sizeof folder, "%s/nothing", golden_folder());
    if (mkdir(folder, 0700) != 0) {
        exit(3);
    }
    golden_show("ls_text_dataset_new of an empty folder",
                LS_STATUS_OF(d = ls_text_dataset_new(folder, NULL)));
    (void)rmdir(folder);
}

GOLDEN(samplers)
{
    ls_sampler *s = NULL;
    SHOW(s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .batch = 0)));
    SHOW(s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .rank = 4, .world_size = 2)));
    SHOW(s = ls_sampler_new(3, LS_OPTIONS(ls_sampler_options, .rank = 0, .world_size = 8)));
    SHOW(s = ls_sampler_new(INT64_MAX, NULL));
    SHOW(s = ls_sampler_new((int64_t)1 << 61,
                            LS_OPTIONS(ls_sampler_options, .batch = (int64_t)1 << 62, .rank = 0,
                                       .world_size = 4)));
    SHOW(s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .batch = 32, .drop_last = true)));
}

/* ---- loaders --------------------------------------------------------------------------------- */

static ls_dataset *numbers(int64_t count)
{
    ls_dataset *d = NULL;
    MUST(d = ls_tensor_dataset_new(ls_zeros(LS_SHAPE(count, 2), LS_FLOAT32),
                                   ls_zeros(LS_SHAPE(count), LS_INT32)));
    return d;
}

static ls_loader *loader_of(ls_dataset *d)
{
    ls_sampler *s = NULL;
    ls_loader *l = NULL;
    MUST(s = ls_sampler_new(d->count, NULL));
    MUST(l = ls_loader_new(d, s, LS_OPTIONS(ls_loader_options, .prefetch = 0)));
    return l;
}

static ls_status break_down(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    (void)index;
    (void)x;
    (void)y;
    return ls_tensor_status(ls_relu(NULL)); /* any error */
}

GOLDEN(loaders)
{
    ls_loader *l = NULL;
    ls_sampler *s = NULL;
    ls_batch batch = {.size = sizeof batch};
    ls_dataset *d = numbers(10);
    MUST(s = ls_sampler_new(10, NULL));
    SHOW(l = ls_loader_new(NULL, s, NULL));
    SHOW(l = ls_loader_new(d, s, LS_OPTIONS(ls_loader_options, .prefetch = -1)));
    printf("ls_loader_next(NULL, &batch) is %d\n    %s\n", ls_loader_next(NULL, &batch),
           ls_error_message());
    SHOW(ls_loader_seek(loader_of(d), 0, 11));
    SHOW(ls_loader_state(loader_of(d), "loader", NULL));
    char prefix[300];
    static const ls_state_visitor visitor = {.size = sizeof visitor};
    memset(prefix, 'x', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    SHOW(ls_loader_state(loader_of(d), prefix, &visitor));
    d->get = break_down;
    l = loader_of(d);
    (void)ls_loader_next(l, &batch);
    SHOW(ls_loader_status(l));
}

static ls_status get_slowly(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self;
    (void)index;
    (void)x;
    (void)y;
    sleep(3);
    return LS_OK;
}

GOLDEN_BARE(a_data_set_that_is_slow)
{
    ls_loader *l = NULL;
    ls_sampler *s = NULL;
    ls_batch batch = {.size = sizeof batch};
    MUST(ls_init(LS_OPTIONS(ls_init_options, .timeout_ms = 200)));
    ls_dataset *d = numbers(10);
    d->get = get_slowly;
    MUST(s = ls_sampler_new(10, NULL));
    MUST(l = ls_loader_new(d, s, NULL));
    (void)ls_loader_next(l, &batch);
    SHOW(ls_loader_status(l));
}

GOLDEN(a_batch_that_is_too_large)
{
    ls_loader *l = NULL;
    ls_sampler *s = NULL;
    ls_dataset *d = numbers(10);
    d->x_shape = LS_SHAPE((int64_t)1 << 60);
    MUST(s = ls_sampler_new(10, LS_OPTIONS(ls_sampler_options, .batch = 10)));
    SHOW(l = ls_loader_new(d, s, NULL));
}

/* A position that does not fit, as a checkpoint of another run would bring. */
static int64_t bring[2];

static ls_status set(void *self, const char *name, int64_t *value)
{
    (void)self;
    if (strstr(name, "count") != NULL || strstr(name, "data") != NULL) {
        *value = bring[0] != 0 ? bring[0] : *value;
    } else if (strstr(name, "sample") != NULL || strstr(name, "done") != NULL) {
        *value = bring[1];
    }
    return LS_OK;
}

static ls_status set_float(void *self, const char *name, double *value)
{
    (void)self;
    (void)name;
    (void)value;
    return LS_OK;
}

GOLDEN(a_position_of_another_data_set)
{
    static const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .int64 = set, .float64 = set_float};
    bring[0] = 99;
    SHOW(ls_loader_state(loader_of(numbers(10)), "loader", &visitor));
    bring[0] = 0;
    bring[1] = 1000;
    SHOW(ls_loader_state(loader_of(numbers(10)), "loader", &visitor));
}
