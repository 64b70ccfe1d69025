/* SPDX-License-Identifier: Apache-2.0 */
/* Saving, and going on in a new process: the same bits at the same rank count, no sample lost or
 * repeated at another one. Each part is a job of its own, started by ls_spawn, so nothing survives
 * but the folder; what the parts computed they leave in files beside it. */
#include <math.h>

#include "optim/optim.h"
#include "work.h"

typedef struct part {
    const char *folder;
    bool async;
    int64_t from, to, save; /* steps; save: after this many, 0: never */
    int64_t batch;
    const char *report;
} part;

static void report(const part *p, const work *w, const double *losses, int64_t count)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.%d", p->folder, p->report, ls_rank());
    FILE *f = fopen(path, "w");
    CHECK(f);
    for (int64_t i = 0; i < count; i++) {
        (void)fprintf(f, "%a\n", losses[i]);
    }
    (void)fprintf(f, "%016llx\n", (unsigned long long)work_hash_of(w->items, WORK_ITEMS));
    CHECK(fclose(f) == 0);
}

static int run_part(void *arg)
{
    const part *p = arg;
    double losses[64];
    work w;
    int64_t step = 0;
    ls_checkpoint *c = NULL;
    CHECK_OK(ls_init(NULL));
    work_open(&w, p->from == 0 ? 5 : 99, p->batch);
    CHECK_OK(ls_checkpoint_new(p->folder, ls_world(),
                               LS_OPTIONS(ls_checkpoint_options, .async = p->async), &c));
    if (p->from > 0) {
        CHECK_OK(ls_checkpoint_load(c, w.items, WORK_ITEMS, &step));
        CHECK_INT(step, p->from);
    }
    for (; step < p->to; step++) {
        losses[step - p->from] = work_step(&w);
        if (p->save && (step + 1) % p->save == 0) {
            CHECK_OK(ls_checkpoint_save(c, step + 1, w.items, WORK_ITEMS));
        }
    }
    CHECK_OK(ls_checkpoint_free(c));
    report(p, &w, losses, p->to - p->from);
    work_close(&w);
    CHECK_OK(ls_finalize());
    return 0;
}

/* 2N steps at once, and N steps, a save, a new job, N steps. */
static void check_resume(int ranks, bool async)
{
    const char *folder = folder_new();
    part straight = {folder, async, 0, 14, 0, 3, "straight"};
    part first = {folder, async, 0, 7, 7, 3, "first"},
         second = {folder, async, 7, 14, 0, 3, "second"};
    CHECK_OK(ls_spawn(run_part, &straight, ranks));
    CHECK_OK(ls_spawn(run_part, &first, ranks));
    CHECK_OK(ls_spawn(run_part, &second, ranks));
    shell("cd '%s' && for f in straight.*; do r=${f##*.}; head -n -1 first.$r | "
          "cat - second.$r | cmp - $f || exit 1; done",
          folder);
    folder_remove(folder);
}
#define RESUME(n, kind, async)                                                                     \
    TEST(a_resumed_##kind##_job_of_##n##_goes_on_bit_for_bit)                                      \
    {                                                                                              \
        check_resume(n, async);                                                                    \
    }
RESUME(1, async, true)
RESUME(1, sync, false)
RESUME(2, async, true)
RESUME(2, sync, false)
RESUME(3, async, true)
RESUME(4, async, true)

/* ---- another rank count --------------------------------------------------------------------- */

typedef struct change {
    const char *folder;
    bool first;
    int64_t batch;
    uint64_t hash;
} change;

static ls_status note_step(void *self, const char *name, int64_t *value)
{
    if (strcmp(name, "step") == 0) {
        *(int64_t *)self = *value;
    }
    return LS_OK;
}

/* The number under which this step draws its random values. */
static long long step_number(void)
{
    int64_t step = -1;
    const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .self = &step, .int64 = note_step};
    CHECK_OK(ls_runtime_state(ls_runtime_current(), "", &visitor));
    return (long long)step;
}

/* Appends the samples of this rank's steps, and the steps' numbers; the samples say who they are by
 * their order. */
static int run_change(void *arg)
{
    const change *p = arg;
    work w;
    ls_checkpoint *c = NULL;
    ls_batch b = {.size = sizeof b};
    int64_t step = 0;
    char path[512];
    CHECK_OK(ls_init(NULL));
    work_open(&w, p->first ? 5 : 99, p->batch);
    CHECK_OK(ls_checkpoint_new(p->folder, ls_world(), NULL, &c));
    if (!p->first) {
        CHECK_OK(ls_checkpoint_load(c, w.items, WORK_ITEMS, &step));
        CHECK_INT(step, 2);
    }
    (void)snprintf(path, sizeof path, "%s/samples.%d.%d", p->folder, ls_rank(), p->first);
    FILE *f = fopen(path, "w");
    CHECK(f);
    (void)snprintf(path, sizeof path, "%s/hash.%d.%d", p->folder, ls_rank(), p->first);
    FILE *h = fopen(path, "w");
    CHECK(h);
    (void)fprintf(h, "%llx\n", (unsigned long long)work_hash_of(w.items, 2));
    for (int64_t k = 0; (!p->first || k < 2) && ls_loader_next(w.loader, &b); k++) {
        (void)fprintf(h, "step %lld\n", step_number());
        for (int64_t i = 0; i < b.count; i++) {
            (void)fprintf(f, "%a\n", (double)((const float *)ls_data(b.x))[i * WORK_IN]);
        }
    }
    CHECK_OK(ls_loader_status(w.loader));
    if (p->first) {
        CHECK_OK(ls_checkpoint_save(c, 2, w.items, WORK_ITEMS));
    }
    CHECK(fclose(f) == 0 && fclose(h) == 0);
    CHECK_OK(ls_checkpoint_free(c));
    work_close(&w);
    CHECK_OK(ls_finalize());
    return 0;
}

static void check_change(int before, int after, int64_t batch)
{
    const char *folder = folder_new();
    change first = {folder, true, 4, 0}, second = {folder, false, batch, 0};
    CHECK_OK(ls_spawn(run_change, &first, before));
    CHECK_OK(ls_spawn(run_change, &second, after));
    shell("cd '%s' && [ $(cat samples.* | wc -l) = 60 ] && [ $(cat samples.* | sort -u | wc -l) = "
          "60 ] && [ $(cat hash.* | grep -v step | sort -u | wc -l) = 1 ]",
          folder);
    /* No number of the first part is drawn under again: they go on, whatever a step holds now. */
    shell("cd '%s' && cat hash.0.1 hash.0.0 | grep step >got && n=$(wc -l <got) && [ $n -gt 2 ] && "
          "seq -f 'step %%.0f' 0 $((n - 1)) | cmp - got",
          folder);
    folder_remove(folder);
}
#define CHANGE(a, b, batch)                                                                        \
    TEST(from_##a##_to_##b##_ranks_every_sample_of_the_epoch_is_seen_once_with_batch_##batch)      \
    {                                                                                              \
        check_change(a, b, batch);                                                                 \
    }
CHANGE(4, 2, 4)
CHANGE(2, 3, 5)
CHANGE(1, 4, 3)
CHANGE(3, 1, 7)

/* ---- every field ---------------------------------------------------------------------------- */

typedef struct flipper {
    int at, which; /* flip field number `which` */
    char name[256];
} flipper;

static ls_status flip_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    flipper *f = self;
    if (f->at++ == f->which) {
        (void)snprintf(f->name, sizeof f->name, "%s", name);
        int64_t last = t->ndim > 0 ? t->local[t->ndim - 1] - 1 : 0;
        ((uint8_t *)t->data)[(size_t)last * ls_dtype_size(t->dtype) + 1] ^= 0x10;
    }
    return LS_OK;
}

static ls_status flip_int64(void *self, const char *name, int64_t *value)
{
    flipper *f = self;
    bool is_size = strcmp(name, "loader.count") == 0; /* of the data: not the state's to change */
    if (f->at++ == f->which && !is_size) {
        (void)snprintf(f->name, sizeof f->name, "%s", name);
        *value += 3;
    }
    return LS_OK;
}

static ls_status flip_float64(void *self, const char *name, double *value)
{
    flipper *f = self;
    if (f->at++ == f->which) {
        (void)snprintf(f->name, sizeof f->name, "%s", name);
        *value = *value * 0.5 + 1e-3;
    }
    return LS_OK;
}

static int flip(work *w, int which, char *name, size_t bytes)
{
    flipper f = {.which = which};
    const ls_state_visitor visitor = {.size = sizeof(ls_state_visitor),
                                      .self = &f,
                                      .tensor = flip_tensor,
                                      .int64 = flip_int64,
                                      .float64 = flip_float64};
    for (int i = 0; i < WORK_ITEMS; i++) {
        CHECK_OK(w->items[i].state(w->items[i].object, w->items[i].prefix, &visitor));
    }
    (void)snprintf(name, bytes, "%s", f.name);
    return f.at;
}

static void check_every_field(void)
{
    work w;
    ls_checkpoint *c = NULL;
    char name[256], path[64] = "";
    int64_t step = 0;
    if (ls_rank() == 0) {
        memcpy(path, folder_new(), 32);
    }
    CHECK_OK(ls_broadcast(ls_world(), path, sizeof path, LS_UINT8, 0, NULL, NULL));
    work_open(&w, 5, 3);
    (void)work_step(&w);
    (void)work_step(&w);
    CHECK_OK(ls_checkpoint_new(path, ls_world(), NULL, &c));
    CHECK_OK(ls_checkpoint_save(c, 2, w.items, WORK_ITEMS));
    uint64_t saved = work_hash_of(w.items, WORK_ITEMS);
    int fields = flip(&w, -1, name, sizeof name), flipped = 0;
    CHECK_INT(fields, 4 + 2 + 5 + 2 + 4 * 3 + 5 + 4);
    for (int i = 0; i < fields; i++) {
        (void)flip(&w, i, name, sizeof name);
        CHECK((work_hash_of(w.items, WORK_ITEMS) == saved) == (name[0] == '\0'));
        flipped += name[0] != '\0';
        CHECK_OK(ls_checkpoint_load(c, w.items, WORK_ITEMS, &step));
        if (work_hash_of(w.items, WORK_ITEMS) != saved) {
            test_fail(__FILE__, __LINE__, "%s did not come back", name);
        }
    }
    CHECK_INT(flipped, fields - 1);
    CHECK_OK(ls_checkpoint_free(c));
    work_close(&w);
    if (ls_rank() == 0) {
        folder_remove(path);
    }
}
DIST_TEST(every_field_of_the_state_that_changes_comes_back_on_1, 1)
{
    check_every_field();
}
DIST_TEST(every_field_of_the_state_that_changes_comes_back_on_3, 3)
{
    check_every_field();
}

/* ---- checkpoints of versions without groups of parameters ---------------------------------- */

static ls_optim *optim_with_group(ls_module *net, bool group)
{
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK(optim != NULL);
    if (group) {
        CHECK_OK(ls_optim_add_group(
            optim, ls_select_vectors, NULL,
            LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5, .weight_decay = 0.25)));
    }
    return optim;
}

static void save_and_load(const char *folder, bool saved_group, bool group, ls_status want)
{
    ls_checkpoint *c = NULL;
    int64_t step = 0;
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *saved = optim_with_group(net, saved_group), *o = optim_with_group(net, group);
    const ls_checkpoint_item old = LS_ITEM("optim", saved), item = LS_ITEM("optim", o);
    ls_optim_set_lr(saved, 0.75);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    CHECK_OK(ls_checkpoint_save(c, 1, &old, 1));
    CHECK_STATUS(ls_checkpoint_load(c, &item, 1, &step), want);
    CHECK(ls_optim_lr(o) == (want == LS_OK ? 0.75 : 1e-3));
    for (int i = 0; i < o->group_count; i++) {
        CHECK(o->groups[i].lr_scale == 0.5 && o->groups[i].weight_decay == 0.25);
    }
    CHECK_OK(ls_checkpoint_free(c));
    ls_optim_free(saved);
    ls_optim_free(o);
    ls_module_free(net);
}

DIST_TEST(a_checkpoint_without_groups_leaves_those_of_the_program, 1)
{
    const char *folder = folder_new();
    save_and_load(folder, false, true, LS_OK);
    folder_remove(folder);
}

DIST_TEST(a_checkpoint_with_groups_needs_those_groups, 1)
{
    const char *folder = folder_new();
    save_and_load(folder, true, false, LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "the checkpoint has the scalar \"optim.group.1.");
    folder_remove(folder);
}

TEST_MAIN
