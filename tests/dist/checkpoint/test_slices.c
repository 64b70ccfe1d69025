/* SPDX-License-Identifier: Apache-2.0 */
/* Distributed tensors: saved in slices by N ranks, loaded in other slices by M, of any cut; ranks
 * that hold the same slice; slices that do not make up the whole. What the state functions show
 * follows from a rule; every element says its own global index. */
#include <math.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "small.h"

enum { ROWS = 13, COLUMNS = 6 };

typedef struct sliced {
    int64_t start[2], local[2];
    float data[ROWS * COLUMNS];
} sliced;

/* cut 0: rows; 1: columns; 2: a grid of two columns; 3: all hold the whole; 4: a row is missing */
static void cut_it(sliced *s, int cut, int rank, int size)
{
    int64_t rows = ROWS, columns = COLUMNS, row = rank, column = 0, high = size, wide = 1;
    if (cut == 1) {
        row = 0, high = 1, column = rank, wide = size;
    } else if (cut == 2) {
        row = rank / 2, high = (size + 1) / 2, column = rank % 2, wide = size > 1 ? 2 : 1;
    } else if (cut == 3) {
        row = 0, high = 1;
    }
    memset(s, 0, sizeof *s);
    s->start[0] = rows * row / high;
    s->local[0] = rows * (row + 1) / high - s->start[0] - (cut == 4 && rank == 0);
    s->start[1] = columns * column / wide;
    s->local[1] = columns * (column + 1) / wide - s->start[1];
}

static float value_at(const sliced *s, int64_t i)
{
    return (float)((s->start[0] + i / s->local[1]) * COLUMNS + s->start[1] + i % s->local[1] + 1);
}

static ls_status sliced_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    sliced *s = object;
    const ls_state_tensor t = {.dtype = LS_FLOAT32,
                               .ndim = 2,
                               .global = {ROWS, COLUMNS},
                               .start = {s->start[0], s->start[1]},
                               .local = {s->local[0], s->local[1]},
                               .data = s->data};
    return v->tensor(v->self, prefix, &t);
}

typedef struct job {
    const char *folder;
    int cut;
    bool save;
} job;

static int run(void *arg)
{
    const job *j = arg;
    static sliced s;
    ls_checkpoint *c = NULL;
    int64_t step = 0;
    CHECK_OK(ls_init(NULL));
    cut_it(&s, j->cut, ls_rank(), ls_world_size());
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "table", .object = &s, .state = sliced_state};
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    if (j->save) {
        for (int64_t i = 0; i < s.local[0] * s.local[1]; i++) {
            s.data[i] = value_at(&s, i);
        }
        const ls_status status = ls_checkpoint_save(c, 1, &item, 1);
        CHECK_INT(status, j->cut == 4 ? LS_ERR_MISMATCH : LS_OK);
        if (status < 0) {
            CHECK_SAYS(ls_error_message(),
                       "ls_checkpoint_save: no rank shows %s of \"%.200s\" (%s); the slices of "
                       "all ranks together must be the whole tensor");
        }
    } else {
        CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
        for (int64_t i = 0; i < s.local[0] * s.local[1]; i++) {
            CHECK(s.data[i] == value_at(&s, i));
        }
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(what_n_ranks_save_in_slices_m_ranks_load_in_others)
{
    static const int ranks[][2] = {{3, 2}, {2, 3}, {4, 1}, {1, 4}};
    char folder[64];
    for (int k = 0; k < 4; k++) {
        for (int cut = 0; cut < 4; cut++) {
            small_folder(folder);
            job save = {folder, cut == 2 && ranks[k][0] == 3 ? 0 : cut, true};
            job load = {folder, (cut + 1) % 4, false};
            load.cut = load.cut == 2 && ranks[k][1] == 3 ? 1 : load.cut;
            CHECK_OK(ls_spawn(run, &save, ranks[k][0]));
            CHECK_OK(ls_spawn(run, &load, ranks[k][1]));
            small_remove(folder);
        }
    }
}

TEST(slices_that_leave_something_out_are_refused_by_the_save)
{
    char folder[64];
    small_folder(folder);
    job save = {folder, 4, true};
    CHECK_OK(ls_spawn(run, &save, 2));
    CHECK_INT(small_count(folder, "step-"), 0);
    small_remove(folder);
}

/* ---- a tensor too large for one rank's share ------------------------------------------------- */

enum { TALL = 1201, WIDE = 257, FILE_MAX = TALL * WIDE * 4 };

static ls_status large_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    const ls_state_tensor t = {.dtype = LS_FLOAT32,
                               .ndim = 2,
                               .global = {TALL, WIDE},
                               .local = {TALL, WIDE},
                               .data = object};
    return v->tensor(v->self, prefix, &t);
}

static int run_large(void *arg)
{
    const job *j = arg;
    static float data[TALL * WIDE];
    ls_checkpoint *c = NULL;
    int64_t step = 0;
    const ls_checkpoint_item item = {.size = sizeof(ls_checkpoint_item),
                                     .prefix = "large",
                                     .object = data,
                                     .state = large_state};
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    for (int i = 0; i < TALL * WIDE && j->save; i++) {
        data[i] = (float)i;
    }
    if (j->save) {
        CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    } else {
        CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
    }
    for (int i = 0; i < TALL * WIDE; i++) {
        CHECK(data[i] == (float)i);
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

/* No file is more than a row and its header above the even share. */
static void check_files(const char *folder, int ranks)
{
    for (int r = 1; r <= ranks; r++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/step-00000001/state-%05d-of-%05d.safetensors", folder,
                       r, ranks);
        FILE *f = fopen(path, "rb");
        CHECK(f && fseek(f, 0, SEEK_END) == 0);
        CHECK(ftell(f) <= FILE_MAX / ranks + WIDE * 4 + 300);
        (void)fclose(f);
    }
}

TEST(a_large_replicated_tensor_is_written_in_even_parts_and_loads_at_any_rank_count)
{
    char folder[64];
    for (int ranks = 1; ranks <= 4; ranks++) {
        small_folder(folder);
        CHECK_OK(ls_spawn(run_large, &(job){folder, 0, true}, ranks));
        check_files(folder, ranks);
        CHECK_OK(ls_spawn(run_large, &(job){folder, 0, false}, 5 - ranks));
        CHECK_OK(ls_spawn(run_large, &(job){folder, 0, false}, ranks));
        small_remove(folder);
    }
}

/* ---- ranks that do not agree ----------------------------------------------------------------- */

/* Its last dimension is longer on rank 1. */
static ls_status cube_state(void *object, const char *prefix, const ls_state_visitor *v)
{
    static float data[2 * 2 * 3];
    const int64_t last = ls_rank() == 1 ? 3 : 2;
    const ls_state_tensor t = {.dtype = LS_FLOAT32,
                               .ndim = 3,
                               .global = {2, 2, last},
                               .local = {2, 2, last},
                               .data = data};
    (void)object;
    return v->tensor(v->self, prefix, &t);
}

static int run_apart(void *arg)
{
    const char *folder = arg;
    ls_checkpoint *c = NULL;
    small s;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    CHECK_STATUS(small_save(c, ls_rank() == 2 ? 8 : 9), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "rank 2 saves step 8, rank 0 step 9");
    small_fill(&s, 1);
    s.count += ls_rank() == 1;
    CHECK_STATUS(ls_checkpoint_save(c, 1, SMALL_ITEM(&s)), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "\"count\" is int64 -1 on rank 0 and int64 0 on rank 1");
    const ls_checkpoint_item cube = {
        .size = sizeof(ls_checkpoint_item), .prefix = "cube", .object = &s, .state = cube_state};
    CHECK_STATUS(ls_checkpoint_save(c, 1, &cube, 1), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(),
                   "\"cube\" is float32 [2,2,2] on rank 0 and float32 [2,2,3] on rank 1");
    CHECK_OK(small_save(c, 3));
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(ranks_that_save_different_steps_or_scalars_are_told)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_apart, folder, 3));
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

/* ---- replicas that differ -------------------------------------------------------------------- */

/* Four ranks hold two slices of rows, each twice; then one number of the last rank is another. */
static int run_differing(void *arg)
{
    static sliced s;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    cut_it(&s, 0, ls_rank() % 2, 2);
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "table", .object = &s, .state = sliced_state};
    CHECK_OK(ls_checkpoint_new(arg, ls_world(), NULL, &c));
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    s.data[3] = ls_rank() == 3 ? 1.0f : 0.0f;
    CHECK_STATUS(ls_checkpoint_save(c, 2, &item, 1), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(),
               "ls_checkpoint_save: \"%.200s\" (%s) has other numbers on rank %d than on rank %d, "
               "and only one of them could be saved. After local steps (ls_ddp_set_local) call "
               "ls_ddp_average with the optimizer first; else show the state of each rank under a "
               "name of its own (its rank in the item's prefix)");
    CHECK_CONTAINS(ls_error_message(),
                   "\"table\" (float32 [13,6]) has other numbers on rank 3 than on rank 1");
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(slices_that_should_be_equal_and_are_not_are_refused_with_their_ranks)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_differing, folder, 4));
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

static void local_step(ls_module *net, ls_optim *optim)
{
    LS_SCOPE;
    const float x[3] = {1, (float)ls_rank(), 2};
    ls_tensor *y = ls_forward(net, ls_from_data(x, LS_SHAPE(1, 3), LS_FLOAT32));
    CHECK_OK(ls_backward(ls_mean(ls_mul(y, y))));
    CHECK_OK(ls_optim_step(optim));
    ls_optim_zero_grad(optim);
}

static int run_local(void *arg)
{
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    ls_module *net = ls_ddp_new(ls_linear_new(3, 4, NULL), ls_world(), NULL);
    ls_optim *optim = ls_adamw_new(net, NULL);
    const ls_checkpoint_item items[] = {LS_ITEM("model", ls_ddp_module(net)),
                                        LS_ITEM("optim", optim)};
    CHECK_OK(ls_checkpoint_new(arg, ls_world(), NULL, &c));
    CHECK_OK(ls_ddp_set_local(net, true));
    CHECK_OK(ls_ddp_set_sync(net, false));
    local_step(net, optim);
    CHECK_STATUS(ls_checkpoint_save(c, 1, items, 2), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "has other numbers on rank 1 than on rank 0");
    CHECK_OK(ls_ddp_average(net, NULL)); /* the moments still differ */
    CHECK_STATUS(ls_checkpoint_save(c, 1, items, 2), LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "\"optim.exp_avg");
    CHECK_OK(ls_ddp_average(net, LS_OPTIONS(ls_ddp_average_options, .optim = optim)));
    CHECK_OK(ls_checkpoint_save(c, 1, items, 2));
    CHECK_OK(ls_checkpoint_free(c));
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(after_local_steps_a_save_is_refused_until_the_ranks_have_averaged)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_local, folder, 2));
    CHECK_INT(small_count(folder, "step-"), 1);
    small_remove(folder);
}

/* ---- parts of parameters (ls_tensor_set_part) ------------------------------------------------ */

enum { OUT = 8, IN = 16 };

typedef struct places {
    ls_state_visitor visitor;
    bool write;
} places;

/* Rows of the weight, all of the bias: what a column-parallel layer holds. Every element and every
 * moment of the optimizer is a number that follows from its place in the whole. */
static ls_status place_state(void *self, const char *name, const ls_state_tensor *t)
{
    const places *p = self;
    const bool weight = strstr(name, "weight") != NULL;
    const float kind = strstr(name, "exp_avg_sq") ? 2000.0f : strstr(name, "exp_avg") ? 1000.0f : 0;
    const int64_t columns = weight ? IN : 1, rows = weight ? OUT / ls_world_size() : OUT;
    const int64_t first = weight ? ls_rank() * rows * columns : 0;
    float *data = t->data;
    for (int64_t i = 0; i < rows * columns; i++) {
        const float want = kind + (float)(first + i);
        data[i] = p->write ? want : data[i];
        CHECK(data[i] == want);
    }
    return LS_OK;
}

static ls_status skip_int64(void *self, const char *name, int64_t *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static ls_status skip_float64(void *self, const char *name, double *value)
{
    (void)self, (void)name, (void)value;
    return LS_OK;
}

static void walk_places(ls_module *net, ls_optim *optim, bool write)
{
    places p = {.write = write};
    p.visitor = (ls_state_visitor){.size = sizeof p.visitor,
                                   .self = &p,
                                   .tensor = place_state,
                                   .int64 = skip_int64,
                                   .float64 = skip_float64};
    CHECK_OK(ls_module_state(net, "model", &p.visitor));
    CHECK_OK(ls_optim_state(optim, "optim", &p.visitor));
}

static int run_parts(void *arg)
{
    const job *j = arg;
    int64_t step;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    const int64_t rows = OUT / ls_world_size();
    ls_module *net = ls_sequential_new(NULL, 0);
    ls_tensor *weight =
        ls_module_add_param(net, "weight", ls_zeros(LS_SHAPE(rows, IN), LS_FLOAT32));
    CHECK(ls_module_add_param(net, "bias", ls_zeros(LS_SHAPE(OUT), LS_FLOAT32)) != NULL);
    CHECK_OK(ls_tensor_set_part(weight, LS_SHAPE(OUT, IN), LS_SHAPE(ls_rank() * rows, 0)));
    ls_optim *optim = ls_adamw_new(net, NULL);
    const ls_checkpoint_item items[] = {LS_ITEM("model", net), LS_ITEM("optim", optim)};
    CHECK_OK(ls_checkpoint_new(j->folder, ls_world(), NULL, &c));
    if (j->save) {
        walk_places(net, optim, true);
        CHECK_OK(ls_checkpoint_save(c, 1, items, 2));
    } else {
        CHECK_OK(ls_checkpoint_load(c, items, 2, &step));
    }
    walk_places(net, optim, false);
    CHECK_OK(ls_checkpoint_free(c));
    ls_optim_free(optim);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(parts_of_a_parameter_and_their_optimizer_state_load_at_any_rank_count)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_parts, &(job){folder, 0, true}, 4));
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        CHECK_OK(ls_spawn(run_parts, &(job){folder, 0, false}, ranks));
    }
    small_remove(folder);
}

/* The user's operations go on between the writer's, on all ranks at their own pace. */
static int run_busy(void *arg)
{
    const char *folder = arg;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    for (int64_t step = 1; step <= 10; step++) {
        CHECK_OK(small_save(c, step));
        for (int k = 0; k < 200; k++) {
            double one = 1.0;
            CHECK_OK(ls_all_reduce(ls_world(), &one, &one, 1, LS_FLOAT64, LS_SUM, NULL, NULL));
            CHECK(one == ls_world_size());
        }
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(user_operations_go_on_while_a_save_is_written)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(run_busy, folder, 4));
    CHECK_INT(small_count(folder, "step-"), 2);
    small_remove(folder);
}

/* ---- values that are not finite ------------------------------------------------------------- */

/* Saves steps [first, last], of which those in `bad` (bit s for step s) hold NaN on the last
 * rank. */
typedef struct spell {
    const char *folder;
    int first, last;
    unsigned bad;
    int keep;
    int64_t newest; /* what a load of it finds; 0: none is tried */
} spell;

static char warned[2][1024];
static int warnings;

static void keep_warning(ls_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == LS_LOG_WARN && warnings < 2) {
        (void)snprintf(warned[warnings++], sizeof warned[0], "%s", text);
    }
}

static int run_spell(void *arg)
{
    const spell *p = arg;
    static sliced s;
    ls_checkpoint *c = NULL;
    int64_t step = 0;
    CHECK_OK(ls_init(NULL));
    ls_set_log_callback(keep_warning, NULL);
    cut_it(&s, 0, ls_rank(), ls_world_size());
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "table", .object = &s, .state = sliced_state};
    const int64_t last = s.local[0] * s.local[1] - 1;
    CHECK_OK(ls_checkpoint_new(p->folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .keep = p->keep), &c));
    for (int i = p->first; i <= p->last; i++) {
        const bool bad = (p->bad >> i & 1u) != 0 && ls_rank() == ls_world_size() - 1;
        s.data[last] = bad ? (i % 2 == 0 ? NAN : -INFINITY) : 1.0f;
        CHECK_OK(ls_checkpoint_save(c, i, &item, 1));
    }
    CHECK_OK(ls_checkpoint_wait(c));
    CHECK_INT(warnings, ls_rank() == 0 && p->bad != 0);
    if (p->newest != 0) {
        CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
        CHECK_INT(step, p->newest);
    }
    if (ls_rank() == 0 && p->bad != 0) {
        CHECK_SAYS(
            warned[0],
            "checkpoint: \"%.200s\" of rank %d is not finite in step %lld of \"%s\"; it is "
            "saved, and so long as no finite one follows, the newest finite checkpoint is kept "
            "beside the newest %d");
        CHECK_CONTAINS(warned[0], "\"table\" of rank 1 is not finite in step");
        CHECK_SAYS(warned[1],
                   "checkpoint: step %lld of \"%s\" holds values that are not finite, in "
                   "\"%.200s\" at least: the run that saved it had diverged");
    }
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

static void check_steps(const char *folder, const char *expected)
{
    char list[256] = "", path[128];
    for (int i = 0; i < 16; i++) {
        (void)snprintf(path, sizeof path, "%s/step-%08d", folder, i);
        if (access(path, F_OK) == 0) {
            (void)snprintf(list + strlen(list), sizeof list - strlen(list), "%d ", i);
        }
    }
    CHECK_STR(list, expected);
}

TEST(a_checkpoint_that_is_not_finite_pushes_no_finite_one_out)
{
    char folder[64];
    small_folder(folder);
    spell diverges = {folder, 1, 7, 0xf0u, 2, 7}, recovers = {folder, 8, 9, 0, 2, 0};
    CHECK_OK(ls_spawn(run_spell, &diverges, 2)); /* 1, 2, 3 are finite, 4 to 7 are not */
    check_steps(folder, "3 6 7 ");
    CHECK_OK(ls_spawn(run_spell, &recovers, 2));
    check_steps(folder, "8 9 ");
    small_remove(folder);
}

/* Such as a mask that holds -inf: as many are kept as were asked for. */
TEST(a_state_that_is_never_finite_is_kept_as_any_other)
{
    char folder[64];
    small_folder(folder);
    spell always = {folder, 1, 5, 0x3eu, 3, 5};
    CHECK_OK(ls_spawn(run_spell, &always, 2));
    check_steps(folder, "3 4 5 ");
    small_remove(folder);
}

static int replace_step(void *arg)
{
    static sliced s;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    cut_it(&s, 0, ls_rank(), ls_world_size());
    const ls_checkpoint_item item = {
        .size = sizeof(ls_checkpoint_item), .prefix = "table", .object = &s, .state = sliced_state};
    CHECK_OK(ls_checkpoint_new(arg, ls_world(), NULL, &c));
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    s.data[0] = NAN;
    CHECK_OK(ls_checkpoint_save(c, 1, &item, 1));
    CHECK_STATUS(ls_checkpoint_wait(c), LS_ERR_INVALID);
    CHECK_SAYS(
        ls_error_message(),
        "checkpoint: \"%s\" is saved already and finite; it is not replaced by a state whose "
        "\"%.200s\" is not; give another step, or stop this run");
    s.data[0] = 0.0f;
    int64_t step = 0;
    CHECK_OK(ls_checkpoint_load(c, &item, 1, &step));
    CHECK(step == 1 && s.data[0] == 0.0f);
    CHECK_OK(ls_checkpoint_free(c));
    CHECK_OK(ls_finalize());
    return 0;
}

TEST(a_finite_step_is_not_replaced_by_one_that_is_not)
{
    char folder[64];
    small_folder(folder);
    CHECK_OK(ls_spawn(replace_step, folder, 2));
    check_steps(folder, "1 ");
    small_remove(folder);
}

TEST_MAIN
