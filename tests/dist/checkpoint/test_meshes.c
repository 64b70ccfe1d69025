/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that show different names, several boxes of a name, and replicas of some: what N ranks
 * save, M ranks load in other boxes, bit for bit. The reference is the rule by which every element
 * follows from its name and its place in the whole tensor. */
#include <jansson.h>
#include <math.h>

#include "layout.h"
#include "says.h"
#include "small.h"

/* ---- random layouts -------------------------------------------------------------------------- */

typedef struct job {
    const char *folder;
    uint32_t shapes, boxes; /* seeds */
    bool save;
} job;

static uint8_t byte_of(int name, int64_t at, size_t byte)
{
    return (uint8_t)((uint64_t)(name * 1000 + at) * 0x9e3779b97f4a7c15u >> (8 * byte));
}

/* Writes what the layout says, or compares with it. */
static void walk(viewer *w, bool write)
{
    for (int i = 0; i < w->all->count; i++) {
        const slab *b = &w->all->slabs[i];
        const int64_t *whole = w->all->global[b->name];
        const size_t element = ls_dtype_size(dtype_of(b->name));
        for (int64_t at = 0; at < b->dim[0] * b->dim[1] * b->dim[2]; at++) {
            const int64_t x = b->start[0] + at / (b->dim[1] * b->dim[2]),
                          y = b->start[1] + at / b->dim[2] % b->dim[1],
                          z = b->start[2] + at % b->dim[2];
            for (size_t k = 0; k < element; k++) {
                uint8_t *place = &w->data[i][(size_t)at * element + k];
                const uint8_t value = byte_of(b->name, (x * whole[1] + y) * whole[2] + z, k);
                *place = write ? value : *place;
                CHECK((b->ranks >> w->rank & 1) == 0 || *place == value);
            }
        }
    }
    for (int n = 0; n < NAMES; n++) {
        const bool shown = (w->all->scalars[n] >> w->rank & 1) != 0;
        w->count[n] = write ? 100 + n : w->count[n];
        w->rate[n] = write ? 1.0 / (n + 1) : w->rate[n];
        CHECK(!shown || n % 2 != 0 || w->count[n] == 100 + n);
        CHECK(!shown || n % 2 == 0 || w->rate[n] == 1.0 / (n + 1));
    }
}

static int run_layout(void *arg)
{
    static uint8_t data[SLABS_MAX][SIDE * SIDE * SIDE * 8];
    static layout l;
    const job *j = arg;
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    l.random = j->shapes;
    draw_shapes(&l);
    l.random = j->boxes;
    draw_boxes(&l, ls_world_size());
    viewer w = {.all = &l, .rank = ls_rank(), .data = data};
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = &w, .state = show_layout};
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    if (j->save) {
        walk(&w, true);
        CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
        walk(&w, false);
    } else {
        CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
        CHECK_INT(step, 1);
        walk(&w, false);
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

static json_t *manifest_of(const char *folder)
{
    char path[128];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/step-00000001/manifest.json", folder);
    json_t *manifest = json_load_file(path, 0, &error);
    CHECK(manifest != NULL);
    return manifest;
}

TEST(whatever_boxes_one_to_eight_ranks_save_any_number_of_ranks_loads_in_any_others)
{
    char folder[64];
    uint32_t random = (uint32_t)test_seed();
    for (int ranks = 1; ranks <= 8; ranks++) {
        small_folder(folder);
        job j = {folder, random + (uint32_t)ranks, random * 3 + (uint32_t)ranks, true};
        CHECK_OK(ls_spawn(run_layout, &j, ranks));
        j.save = false;
        for (int k = 0; k < 3; k++) {
            j.boxes = j.boxes * 1664525u + 1013904223u;
            CHECK_OK(ls_spawn(run_layout, &j, 1 + (ranks * 5 + k * 3) % 8));
        }
        small_remove(folder);
    }
}

/* ---- pipeline stages ------------------------------------------------------------------------- */

enum { LAYERS = 4, WIDTH = 300, REPLICAS = 2 };

/* A stage has layers [first, last) whole, an embedding that its replicas show in halves of a row
 * and a half, and a number for each of its layers. */
typedef struct stage {
    int first, last;
    float layer[LAYERS][WIDTH * WIDTH];
    int64_t step[LAYERS];
} stage;

static ls_status stage_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    stage *s = object;
    char name[64];
    for (int i = s->first; i < s->last; i++) {
        const ls_state_tensor t = {.dtype = LS_FLOAT32,
                                   .ndim = 2,
                                   .global = {WIDTH, WIDTH},
                                   .local = {WIDTH, WIDTH},
                                   .data = s->layer[i]};
        (void)snprintf(name, sizeof name, "%s.layers.%d", prefix, i);
        LS_TRY(v->tensor(v->self, name, &t));
        (void)snprintf(name, sizeof name, "step.%s.layers.%d", prefix, i);
        LS_TRY(v->int64(v->self, name, &s->step[i]));
    }
    return LS_OK;
}

typedef struct pipeline {
    const char *folder;
    int stages;
    bool save, partial;
    ls_status expect;
} pipeline;

static int run_stage(void *arg)
{
    static stage s;
    const pipeline *p = arg;
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    const int at = ls_rank() % p->stages;
    s.first = LAYERS * at / p->stages;
    s.last = LAYERS * (at + 1) / p->stages;
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "model", .object = &s, .state = stage_state};
    CHECK_OK(ls_checkpoint_new(p->folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .partial = p->partial), &c));
    for (int i = s.first; i < s.last && p->save; i++) {
        s.step[i] = 7 + i;
        for (int k = 0; k < WIDTH * WIDTH; k++) {
            s.layer[i][k] = (float)(i * WIDTH * WIDTH + k);
        }
    }
    s.last -= p->expect == LS_ERR_MISMATCH && ls_rank() == ls_world_size() - 1;
    const ls_status status =
        p->save ? ls_checkpoint_save(c, 1, &item, 1) : ls_checkpoint_load(c, &item, 1, &step);
    CHECK_INT(status, p->expect);
    if (status < 0) {
        CHECK_SAYS(ls_error_message(),
                   "%s: the checkpoint has the tensor \"%.200s\", but this program does not; build "
                   "the same model and optimizer as the run that saved it, or give another folder");
        CHECK_CONTAINS(ls_error_message(), "layers.3");
    }
    for (int i = s.first; i < s.last && status == LS_OK; i++) {
        CHECK(s.step[i] == 7 + i);
        for (int k = 0; k < WIDTH * WIDTH; k++) {
            CHECK(s.layer[i][k] == (float)(i * WIDTH * WIDTH + k));
        }
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

/* Layers are 360 KB: replicas of a stage write halves of them, and no rank writes twice as much. */
static void check_sizes(const char *folder, int ranks, int replicas)
{
    size_t total = 0;
    const char *name;
    json_t *file, *manifest = manifest_of(folder);
    json_object_foreach(json_object_get(manifest, "files"), name, file)
    {
        const size_t bytes = (size_t)json_integer_value(json_object_get(file, "bytes"));
        total += bytes;
        CHECK(bytes <= sizeof(float) * WIDTH * WIDTH * LAYERS / (size_t)ranks + 4096);
    }
    CHECK(total <= sizeof(float) * WIDTH * WIDTH * LAYERS + 4096 * (size_t)ranks);
    CHECK_INT(json_integer_value(json_object_get(manifest, "version")), 2);
    CHECK(replicas == 1 ||
          json_array_size(json_object_get(
              json_object_get(json_object_get(manifest, "tensors"), "model.layers.0"), "pieces")) >
              1);
    json_decref(manifest);
}

TEST(what_four_stages_save_two_and_one_load_and_the_reverse)
{
    static const int ranks[][3] = {{4, 2, 1}, {1, 4, 2}, {2, 4, 1}};
    char folder[64];
    for (int k = 0; k < 3; k++) {
        small_folder(folder);
        CHECK_OK(
            ls_spawn(run_stage, &(pipeline){folder, ranks[k][0], true, false, LS_OK}, ranks[k][0]));
        check_sizes(folder, ranks[k][0], 1);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, ranks[k][i], false, false, LS_OK},
                              ranks[k][i]));
        }
        small_remove(folder);
    }
}

TEST(replicas_of_a_stage_share_its_writing_among_themselves)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, 2, true, false, LS_OK}, 2 * REPLICAS));
    check_sizes(folder, 2 * REPLICAS, REPLICAS);
    CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, 4, false, false, LS_OK}, 4));
    small_remove(folder);
}

TEST(what_no_rank_loads_is_named_on_all_ranks_unless_the_load_is_partial)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, 4, true, false, LS_OK}, 4));
    CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, 2, false, false, LS_ERR_MISMATCH}, 2));
    CHECK_OK(ls_spawn(run_stage, &(pipeline){folder, 5, false, true, LS_OK}, 3));
    small_remove(folder);
}

/* ---- a shard that begins in the middle of a row ---------------------------------------------- */

enum { ROWS = 7, COLUMNS = 5 };

typedef struct flat { /* elements [from, to) of the tensor, as ZeRO cuts it */
    int64_t from, to;
    float data[ROWS * COLUMNS];
} flat;

static ls_status flat_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    flat *f = object;
    for (int64_t at = f->from, end; at < f->to; at = end) {
        const int64_t row = at / COLUMNS, column = at % COLUMNS;
        const int64_t rows = column == 0 && f->to - at >= COLUMNS ? (f->to - at) / COLUMNS : 1;
        const int64_t left = f->to - at < COLUMNS - column ? f->to - at : COLUMNS - column;
        end = at + (rows > 1 ? rows * COLUMNS : left);
        const ls_state_tensor t = {.dtype = LS_FLOAT32,
                                   .ndim = 2,
                                   .global = {ROWS, COLUMNS},
                                   .start = {row, column},
                                   .local = {rows, rows > 1 ? COLUMNS : left},
                                   .data = f->data + (at - f->from)};
        LS_TRY(v->tensor(v->self, prefix, &t));
    }
    return LS_OK;
}

static int run_flat(void *arg)
{
    static flat f;
    const job *j = arg;
    int64_t step;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    f.from = ROWS * COLUMNS * ls_rank() / ls_world_size();
    f.to = ROWS * COLUMNS * (ls_rank() + 1) / ls_world_size();
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "w", .object = &f, .state = flat_state};
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    for (int64_t i = f.from; i < f.to && j->save; i++) {
        f.data[i - f.from] = (float)(i + 1);
    }
    CHECK_OK(j->save ? ls_checkpoint_save(c, 1, &item, 1) : ls_checkpoint_load(c, &item, 1, &step));
    for (int64_t i = f.from; i < f.to; i++) {
        CHECK(f.data[i - f.from] == (float)(i + 1));
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(shards_that_begin_in_the_middle_of_a_row_are_saved_and_loaded_by_other_numbers_of_ranks)
{
    char folder[64];
    for (int ranks = 1; ranks <= 8; ranks++) {
        small_folder(folder);
        CHECK_OK(ls_spawn(run_flat, &(job){.folder = folder, .save = true}, ranks));
        json_t *manifest = manifest_of(folder);
        CHECK_INT(json_integer_value(json_object_get(manifest, "version")),
                  ranks == 1 || ranks == 7 ? 2 : 3);
        json_decref(manifest);
        CHECK_OK(ls_spawn(run_flat, &(job){.folder = folder}, 9 - ranks));
        CHECK_OK(ls_spawn(run_flat, &(job){.folder = folder}, ranks));
        small_remove(folder);
    }
}

/* ---- an older library's checkpoint ----------------------------------------------------------- */

/* version-2 was saved by three ranks with 0.2.0 of 24 November 2026, which had no keys. */
typedef struct old_values {
    float rows[5 * 3];
    double whole[4], rate;
    int64_t count;
} old_values;

static ls_status old_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    old_values *old = object;
    const int64_t from = 5 * ls_rank() / ls_world_size();
    const int64_t to = 5 * (ls_rank() + 1) / ls_world_size();
    const ls_state_tensor rows = {.dtype = LS_FLOAT32,
                                  .ndim = 2,
                                  .global = {5, 3},
                                  .start = {from, 0},
                                  .local = {to - from, 3},
                                  .data = old->rows + 3 * from};
    const ls_state_tensor whole = {
        .dtype = LS_FLOAT64, .ndim = 1, .global = {4}, .local = {4}, .data = old->whole};
    (void)prefix;
    LS_TRY(v->tensor(v->self, "rows", &rows));
    if (ls_rank() > 0) {
        return LS_OK; /* a rank needs only what it shows */
    }
    LS_TRY(v->tensor(v->self, "whole", &whole));
    LS_TRY(v->int64(v->self, "count", &old->count));
    return v->float64(v->self, "rate", &old->rate);
}

static int run_old(void *arg)
{
    static old_values old;
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = &old, .state = old_state};
    CHECK_OK(ls_checkpoint_new(arg, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .load_only = true), &c));
    CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
    CHECK_INT(step, 7);
    const int64_t from = 5 * ls_rank() / ls_world_size() * 3;
    for (int64_t i = from; i < 5 * (ls_rank() + 1) / ls_world_size() * 3; i++) {
        CHECK(old.rows[i] == (float)i + 0.5f);
    }
    if (ls_rank() == 0) {
        CHECK(old.whole[0] == 0.0 && old.whole[3] == 0.75);
        CHECK(old.count == 42 && isinf(old.rate) && old.rate > 0);
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_checkpoint_of_an_older_library_loads)
{
    char folder[512];
    (void)snprintf(folder, sizeof folder, "%s",
                   test_source_path("tests/dist/checkpoint/corpus/version-2"));
    for (int ranks = 1; ranks <= 3; ranks++) {
        CHECK_OK(ls_spawn(run_old, folder, ranks));
    }
}

/* ---- what ranks show must fit together ------------------------------------------------------- */

/* Rank 1 shows "w" with another last dimension, or a number with another value. */
typedef struct odd {
    int64_t columns, number;
    double rate;
    bool shown;
} odd;

static ls_status odd_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    static float data[2 * 4];
    odd *o = object;
    const ls_state_tensor t = {.dtype = LS_FLOAT32,
                               .ndim = 2,
                               .global = {2, o->columns},
                               .local = {2, o->columns},
                               .data = data};
    (void)prefix;
    if (!o->shown) {
        return LS_OK;
    }
    LS_TRY(v->tensor(v->self, "w", &t));
    LS_TRY(v->int64(v->self, "number", &o->number));
    return v->float64(v->self, "rate", &o->rate);
}

static int run_odd(void *arg)
{
    const char *folder = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    const bool differs = ls_rank() == 2;
    odd o = {.columns = differs ? 4 : 3, .number = 1, .rate = 0.5, .shown = ls_rank() > 0};
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = &o, .state = odd_state};
    CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_checkpoint_save: \"%.200s\" is %s on rank %d and %s on rank %d; what several "
               "ranks show under one name must be the same (is a loader at another place of the "
               "epoch?)");
    CHECK_CONTAINS(ls_error_message(),
                   "\"w\" is float32 [2,3] on rank 1 and float32 [2,4] on rank 2;");
    o = (odd){3, differs ? 2 : 1, 0.5, ls_rank() > 0};
    CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "\"number\" is int64 1 on rank 1 and int64 2 on rank 2;");
    o = (odd){3, 1, differs ? -0.25 : 0.5, ls_rank() > 0};
    CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(),
                   "\"rate\" is float64 0.5 on rank 1 and float64 -0.25 on rank 2;");
    o = (odd){3, 1, 0.5, ls_rank() > 0};
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

/* Rank 1 fails: in the first walk by a name that it shows twice, in the second by one that it did
 * not show before. All ranks have different names. */
typedef struct failing {
    int walk; /* that fails; 0: none */
    int walks;
} failing;

static ls_status failing_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    failing *f = object;
    char name[16];
    int64_t value = ls_rank();
    (void)prefix;
    (void)snprintf(name, sizeof name, "own.%d", ls_rank());
    LS_TRY(v->int64(v->self, name, &value));
    return ++f->walks == f->walk && ls_rank() == 1 ? v->int64(v->self, "own.1", &value) : LS_OK;
}

static int run_failing(void *arg)
{
    const char *folder = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    for (int walk = 2; walk >= 0; walk--) {
        failing f = {.walk = walk};
        const ls_checkpoint_item item = {
            .size = sizeof item, .prefix = "", .object = &f, .state = failing_state};
        CHECK_STATUS(ls_checkpoint_save(c, 1, &item, 1), walk > 0 ? LS_ERR_INVALID : LS_OK);
        if (walk > 0) {
            CHECK_CONTAINS(ls_error_message(),
                           walk == 1 ? "rank 1: checkpoint: two items have state named \"own.1\""
                                     : "rank 1: checkpoint: at \"own.1\" the state changed");
        }
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_rank_that_fails_in_either_walk_is_the_same_error_on_all)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_failing, folder, 3));
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

TEST(ranks_that_differ_in_a_name_are_told_the_name_both_ranks_and_both_values)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_odd, folder, 3));
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

TEST_MAIN
