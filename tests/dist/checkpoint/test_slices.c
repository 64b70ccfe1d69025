/* Distributed tensors: saved in slices by N ranks, loaded in other slices by M, of any cut; ranks
 * that hold the same slice; slices that do not make up the whole. What the state functions show
 * follows from a rule; every element says its own global index. */
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
    const ls_checkpoint_item item = {sizeof(ls_checkpoint_item), "table", &s, sliced_state};
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

/* ---- a tensor too large for one rank's share ---------------------------------------------------
 */

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
    const ls_checkpoint_item item = {sizeof(ls_checkpoint_item), "large", data, large_state};
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

/* ---- ranks that do not agree ------------------------------------------------------------------
 */

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
    const ls_checkpoint_item cube = {sizeof(ls_checkpoint_item), "cube", &s, cube_state};
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

TEST_MAIN
