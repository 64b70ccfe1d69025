/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes what. Every rank's plan follows from the tables of all ranks, which are given to it
 * here as texts, without messages: all plans are the same; put together, the parts of all ranks are
 * every tensor exactly once; each lies in one piece of memory of a rank that shows it; and the
 * shares are near to even, however uneven the tensors. */
#include "checkpoint/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "layout.h"
#include "says.h"

enum { RANKS_MAX = 9 };

static void add(const ls_state_visitor *v, const char *name, int ndim, const int64_t *dims)
{
    ls_state_tensor t = {.dtype = LS_UINT8, .ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        t.global[i] = t.local[i] = dims[i];
    }
    CHECK_OK(v->tensor(v->self, name, &t));
}

/* A byte an element, so that an element's place is its offset. */
static ls_status fill_many(void *object, const char *prefix, const ls_state_visitor *v)
{
    char name[32];
    (void)object;
    (void)prefix;
    for (int i = 0; i < 100; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        add(v, name, 1, (int64_t[]){i == 3 ? 0 : 4 * ((i * 7919) % 1000 + 1)});
    }
    add(v, "number", 0, NULL);
    return LS_OK;
}

static ls_status fill_uneven(void *object, const char *prefix, const ls_state_visitor *v)
{
    (void)object;
    (void)prefix;
    add(v, "embedding", 2, (int64_t[]){5003, 700});
    add(v, "wide", 2, (int64_t[]){2, 900001});
    add(v, "long", 3, (int64_t[]){1, 1, 500009});
    add(v, "boxes", 4, (int64_t[]){2, 3, 7, 12345});
    add(v, "bias", 1, (int64_t[]){700});
    add(v, "number", 0, NULL);
    return LS_OK;
}

/* ---- tables of several ranks, without messages ----------------------------------------------- */

typedef ls_status show(void *object, const char *prefix, const ls_state_visitor *v);

/* Rank r shows what `state` does for objects[r] (NULL: nothing is passed). */
static void collect_all(ls__shown *shown, int size, show *state, void **objects)
{
    uint64_t hash[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        const ls_checkpoint_item item = {.size = sizeof item,
                                         .prefix = "",
                                         .object = objects != NULL ? objects[r] : NULL,
                                         .state = state};
        CHECK_OK(ls__shown_init(&shown[r], ls__env_posix(), r, size));
        CHECK_OK(ls__table_collect(&shown[r].table, &item, 1));
        CHECK_OK(ls__shown_write(&shown[r], &hash[r]));
    }
    for (int r = 0; r < size; r++) {
        for (int q = 0; q < size; q++) {
            int lowest = 0;
            while (hash[lowest] != hash[q]) {
                lowest++;
            }
            shown[r].same_as[q] = lowest;
            if (lowest == q && hash[r] != hash[q]) {
                CHECK_OK(ls__shown_read(&shown[r], q, shown[q].text, shown[q].bytes));
            }
        }
        CHECK_OK(ls__shown_sort(&shown[r]));
    }
}

static void plan_all(ls__shown *shown, int size)
{
    for (int r = 0; r < size; r++) {
        CHECK_OK(ls__shown_compare(&shown[r]));
        CHECK_OK(ls__plan_writers(&shown[r]));
        CHECK_INT(shown[r].piece_count, shown[0].piece_count);
        for (int i = 0; i < shown[r].piece_count; i++) {
            const ls__piece *a = &shown[r].pieces[i], *b = &shown[0].pieces[i];
            CHECK(a->rank == b->rank && a->key == b->key &&
                  strcmp(a->entry->name, b->entry->name) == 0);
            CHECK(memcmp(&a->part, &b->part, sizeof a->part) == 0);
        }
    }
}

static void free_all(ls__shown *shown, int size)
{
    for (int r = 0; r < size; r++) {
        ls__shown_fini(&shown[r]);
    }
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Marks the part [start, start+dim) of a box of a tensor, element by element. */
static void mark(const ls_state_tensor *t, const ls__part *part, uint8_t *seen, size_t *marked)
{
    int64_t at[LS_DIMS_MAX];
    memcpy(at, part->start, sizeof at);
    for (size_t left = part->bytes; left > 0; left--) {
        size_t index = 0, in_box = 0;
        for (int i = 0; i < t->ndim; i++) {
            CHECK(at[i] >= part->start[i] && at[i] < part->start[i] + part->dim[i]);
            index = index * (size_t)t->global[i] + (size_t)at[i];
            in_box = in_box * (size_t)t->local[i] + (size_t)(at[i] - t->start[i]);
        }
        CHECK(in_box == part->skip + (part->bytes - left)); /* one piece of memory */
        CHECK(seen[index] == 0);
        seen[index] = 1;
        *marked += 1;
        for (int i = t->ndim - 1; i >= 0 && ++at[i] == part->start[i] + part->dim[i]; i--) {
            at[i] = part->start[i];
        }
    }
}

/* The largest share over the even one, if all ranks show the same whole tensors. */
static double largest_share(show *fill, int size)
{
    ls__shown shown[RANKS_MAX];
    size_t load[RANKS_MAX] = {0}, total = 0, most = 0;
    collect_all(shown, size, fill, NULL);
    plan_all(shown, size);
    for (int i = 0; i < shown[0].count; i++) {
        const ls__saved_entry *e = shown[0].sorted[i];
        size_t marked = 0;
        int writers = 0;
        uint8_t *seen = calloc(e->bytes + 1, 1);
        CHECK(seen);
        for (int k = 0; k < shown[0].piece_count; k++) {
            const ls__piece *p = &shown[0].pieces[k];
            if (p->entry == e) {
                CHECK_INT(p->key, 0);
                writers++;
                load[p->rank] += p->part.bytes;
                mark(&e->tensor, &p->part, seen, &marked);
            }
        }
        CHECK(writers >= 1 && marked == e->bytes);
        CHECK(e->bytes >= 65536 || writers == 1);
        total += e->bytes;
        free(seen);
    }
    for (int r = 0; r < size; r++) {
        most = load[r] > most ? load[r] : most;
    }
    free_all(shown, size);
    return (double)most * size / (double)total;
}

TEST(every_element_has_one_writer_and_shares_of_many_tensors_are_even)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        CHECK(largest_share(fill_many, size) <= 1.05);
    }
}

/* An even share and one part, which is an eighth of it. */
TEST(a_few_large_tensors_are_cut_so_that_shares_are_even_too)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        CHECK(largest_share(fill_uneven, size) <= 1.125);
    }
}

/* Ranks 0 to 3 have the upper rows, 4 to 7 the lower ones. */
static ls_status fill_halves(void *object, const char *prefix, const ls_state_visitor *v)
{
    const bool upper = *(int *)object < 4;
    (void)prefix;
    const ls_state_tensor t = {.dtype = LS_UINT8,
                               .ndim = 3,
                               .global = {5, 3, 50000},
                               .start = {upper ? 0 : 2},
                               .local = {upper ? 2 : 3, 3, 50000}};
    return v->tensor(v->self, "halves", &t);
}

TEST(a_large_slice_is_cut_among_the_ranks_that_have_it)
{
    ls__shown shown[8];
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7}, writers[2] = {0};
    size_t marked = 0;
    static uint8_t seen[5 * 3 * 50000];
    collect_all(shown, 8, fill_halves,
                (void *[]){&ranks[0], &ranks[1], &ranks[2], &ranks[3], &ranks[4], &ranks[5],
                           &ranks[6], &ranks[7]});
    plan_all(shown, 8);
    for (int i = 0; i < shown[0].piece_count; i++) {
        const ls__piece *p = &shown[0].pieces[i];
        CHECK((p->rank < 4) == (p->part.start[0] < 2));
        CHECK_INT(p->key, 0);
        writers[p->rank < 4]++;
        mark(&p->entry->tensor, &p->part, seen, &marked);
    }
    CHECK(marked == sizeof seen);
    CHECK(writers[1] == 4 && writers[0] == 3); /* in halves of rows, and in rows */
    free_all(shown, 8);
}

/* Ten of 50,000 bytes only rank 0 has, and ten of 60,000 both ranks. */
static ls_status fill_unequal(void *object, const char *prefix, const ls_state_visitor *v)
{
    char name[16];
    (void)prefix;
    for (int i = 0; i < 10; i++) {
        (void)snprintf(name, sizeof name, "both%d", i);
        add(v, name, 1, (int64_t[]){60000});
        (void)snprintf(name, sizeof name, "own%d", i);
        if (*(int *)object == 0) {
            add(v, name, 1, (int64_t[]){50000});
        }
    }
    return LS_OK;
}

TEST(a_rank_with_much_of_its_own_writes_less_of_what_others_have_too)
{
    ls__shown shown[2];
    int ranks[2] = {0, 1};
    size_t load[2] = {0};
    collect_all(shown, 2, fill_unequal, (void *[]){&ranks[0], &ranks[1]});
    plan_all(shown, 2);
    for (int i = 0; i < shown[0].piece_count; i++) {
        load[shown[0].pieces[i].rank] += shown[0].pieces[i].part.bytes;
    }
    CHECK(load[0] + load[1] == 1100000);
    CHECK(load[0] <= 550000 + 60000 && load[1] <= 550000 + 60000);
    free_all(shown, 2);
}

/* ---- random boxes ---------------------------------------------------------------------------- */

/* The plain reference: a count for each element of each tensor. */
static void check_layout(const layout *l, const ls__shown *s)
{
    static uint8_t held[NAMES][SIDE * SIDE * SIDE];
    char name[32], key[LS__PIECE_KEY_MAX], other[LS__PIECE_KEY_MAX];
    memset(held, 0, sizeof held);
    for (int i = 0; i < s->piece_count; i++) {
        const ls__piece *p = &s->pieces[i];
        const ls_state_tensor *t = &p->entry->tensor;
        int n = 0, holder = 0;
        while (strcmp(name_of(n, name), p->entry->name) != 0) {
            n++;
        }
        for (int k = 0; k < l->count; k++) { /* the rank shows a box in which the part is */
            const slab *b = &l->slabs[k];
            holder += b->name == n && (b->ranks >> p->rank & 1) != 0 &&
                      memcmp(b->start, t->start, (size_t)t->ndim * 8) == 0 &&
                      memcmp(b->dim, t->local, (size_t)t->ndim * 8) == 0;
        }
        CHECK_INT(holder, 1);
        size_t elements = 0;
        for (int64_t at = 0; at < l->global[n][0] * l->global[n][1] * l->global[n][2]; at++) {
            const int64_t x[3] = {at / (l->global[n][1] * l->global[n][2]),
                                  at / l->global[n][2] % l->global[n][1], at % l->global[n][2]};
            bool in = true;
            for (int d = 0; d < t->ndim; d++) {
                in &= x[d] >= p->part.start[d] && x[d] < p->part.start[d] + p->part.dim[d];
            }
            held[n][at] += in;
            elements += in;
        }
        CHECK(elements * ls_dtype_size(t->dtype) == p->part.bytes);
        for (int k = 0; k < i; k++) { /* no key stands twice in a file */
            CHECK(s->pieces[k].rank != p->rank ||
                  strcmp(ls__piece_key(p->entry->name, p->key, key),
                         ls__piece_key(s->pieces[k].entry->name, s->pieces[k].key, other)) != 0);
        }
    }
    for (int n = 0; n < NAMES; n++) {
        for (int64_t at = 0; at < l->global[n][0] * l->global[n][1] * l->global[n][2]; at++) {
            CHECK_INT(held[n][at], 1);
        }
    }
}

TEST(random_boxes_on_random_ranks_are_each_written_once_by_a_rank_that_shows_them)
{
    static layout l;
    ls__shown shown[RANKS_MAX];
    viewer viewers[RANKS_MAX];
    void *objects[RANKS_MAX];
    l.random = (uint32_t)test_seed();
    for (int round = 0; round < 400; round++) {
        const int size = 1 + round % 8;
        draw_shapes(&l);
        draw_boxes(&l, size);
        for (int r = 0; r < size; r++) {
            viewers[r] = (viewer){.all = &l, .rank = r};
            objects[r] = &viewers[r];
        }
        collect_all(shown, size, show_layout, objects);
        plan_all(shown, size);
        check_layout(&l, &shown[0]);
        free_all(shown, size);
    }
}

/* What a peer sends is not trusted: whatever is missing or changed, nothing outside is read. */
TEST(a_table_that_is_cut_or_changed_is_refused_or_read)
{
    static layout l;
    ls__shown from, to;
    viewer v = {.all = &l};
    uint64_t hash;
    l.random = (uint32_t)test_seed();
    draw_shapes(&l);
    draw_boxes(&l, 1);
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "", .object = &v, .state = show_layout};
    CHECK_OK(ls__shown_init(&from, ls__env_posix(), 0, 2));
    CHECK_OK(ls__table_collect(&from.table, &item, 1));
    CHECK_OK(ls__shown_write(&from, &hash));
    for (size_t bytes = 0; bytes < from.bytes; bytes++) {
        CHECK_OK(ls__shown_init(&to, ls__env_posix(), 1, 2));
        uint8_t *text = malloc(bytes + 1); /* of just the size, for a sanitizer */
        CHECK(text != NULL);
        memcpy(text, from.text, bytes);
        const ls_status cut = ls__shown_read(&to, 0, text, bytes);
        CHECK(cut == LS_OK || cut == LS_ERR_INTERNAL);
        if (cut < 0) {
            CHECK_SAYS(ls_error_message(), "checkpoint: the table of rank %d is malformed");
        }
        if (bytes > 0) {
            text[draw(&l, (uint32_t)bytes)] = (uint8_t)draw(&l, 256);
            (void)ls__shown_read(&to, 0, text, bytes);
        }
        free(text);
        ls__shown_fini(&to);
    }
    ls__shown_fini(&from);
}

/* ---- what does not fit together -------------------------------------------------------------- */

/* Of 3 by 4 elements: what there is of it on two ranks. */
static const char *faults[][3] = {
    {"0:3,0:4", "", ""},
    {"0:3,0:2", "0:3,2:4", ""},
    {"0:3,0:2", "", "no rank shows [0:3,2:4] of \"w\" (uint8 [3,4])"},
    {"0:2,0:4", "2:3,1:4", "no rank shows [2:3,0:1] of \"w\" (uint8 [3,4])"},
    {"", "", ""},
    {"0:3,0:3", "0:3,2:4", "rank 0 shows [0:3,0:3] and rank 1 [0:3,2:4], which overlap"},
    {"0:3,0:3", "1:3,2:4", "no rank shows [0:1,3:4] of"},
    {"1:2,0:4", "0:3,0:4", "rank 1 shows [0:3,0:4] and rank 0 [1:2,0:4], which overlap"},
    {"0:1,0:4", "2:3,0:4", "no rank shows [1:2,0:4] of"},
    {"2:2,0:4", "0:3,0:4", ""},
};

static ls_status show_fault(void *object, const char *prefix, const ls_state_visitor *v)
{
    const char *text = object;
    long long at[4];
    (void)prefix;
    if (sscanf(text, "%lld:%lld,%lld:%lld", &at[0], &at[1], &at[2], &at[3]) < 4) {
        return LS_OK;
    }
    const ls_state_tensor t = {.dtype = LS_UINT8,
                               .ndim = 2,
                               .global = {3, 4},
                               .start = {at[0], at[2]},
                               .local = {at[1] - at[0], at[3] - at[2]}};
    return v->tensor(v->self, "w", &t);
}

TEST(what_slices_lack_and_where_they_overlap_is_said)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        ls__shown shown[2];
        collect_all(shown, 2, show_fault, (void *[]){(void *)faults[i][0], (void *)faults[i][1]});
        const ls_status status = ls__shown_compare(&shown[1]);
        CHECK_INT(status, faults[i][2][0] != '\0' ? LS_ERR_MISMATCH : LS_OK);
        if (status < 0) {
            CHECK_CONTAINS(ls_error_message(), faults[i][2]);
            CHECK_SAYS(ls_error_message(),
                       strstr(faults[i][2], "overlap") != NULL
                           ? SAYS("ls_checkpoint_save: of \"%.200s\" (%s) rank %d shows %s and "
                                  "rank %d %s, which overlap; slices must be equal or apart")
                           : SAYS("ls_checkpoint_save: no rank shows %s of \"%.200s\" (%s); the "
                                  "slices of all ranks together must be the whole tensor"));
        }
        free_all(shown, 2);
    }
}

/* The region that is named is wrong as it says, in every layout that lost or doubled a slab. */
TEST(of_random_boxes_too_a_fault_is_found)
{
    static layout l;
    ls__shown shown[2];
    viewer viewers[2] = {{.all = &l}, {.all = &l, .rank = 1}};
    int missing = 0, overlaps = 0;
    l.random = (uint32_t)test_seed();
    for (int round = 0; round < 300; round++) {
        draw_shapes(&l);
        draw_boxes(&l, 2);
        slab *b = &l.slabs[draw(&l, (uint32_t)l.count)];
        const int64_t elements = b->dim[0] * b->dim[1] * b->dim[2];
        const bool whole = memcmp(b->dim, l.global[b->name], sizeof b->dim) == 0;
        const bool grows = b->start[0] > 0 && round % 2 == 1;
        b->start[0] -= grows;
        b->dim[0] += grows;
        b->ranks = grows ? b->ranks : 0;
        collect_all(shown, 2, show_layout, (void *[]){&viewers[0], &viewers[1]});
        const ls_status status = ls__shown_compare(&shown[0]);
        CHECK_INT(status, elements == 0 || (whole && !grows) ? LS_OK : LS_ERR_MISMATCH);
        if (status < 0) {
            CHECK_CONTAINS(ls_error_message(), grows ? "overlap" : "no rank shows");
            overlaps += grows;
            missing += !grows;
        }
        free_all(shown, 2);
    }
    CHECK(missing > 50 && overlaps > 20);
}

/* ---- size ------------------------------------------------------------------------------------ */

/* 16,384 tensors, of which each rank has its own rows. */
static ls_status show_large(void *object, const char *prefix, const ls_state_visitor *v)
{
    const int rank = *(int *)object;
    char name[64];
    (void)prefix;
    for (int i = 0; i < 16384; i++) {
        (void)snprintf(name, sizeof name, "model.layers.%d.attention.weight.%d", i / 16, i % 16);
        const ls_state_tensor t = {.dtype = LS_FLOAT32,
                                   .ndim = 2,
                                   .global = {64, 64},
                                   .start = {8 * rank, 0},
                                   .local = {8, 64}};
        CHECK_OK(v->tensor(v->self, name, &t));
    }
    return LS_OK;
}

static double cpu_seconds(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Its tables are 16 MB. With time quadratic in names it would be an hour. */
TEST(sixteen_thousand_names_in_slices_of_eight_ranks_take_a_second_a_rank)
{
    static ls__shown shown[8];
    int ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const double start = cpu_seconds();
    collect_all(shown, 8, show_large,
                (void *[]){&ranks[0], &ranks[1], &ranks[2], &ranks[3], &ranks[4], &ranks[5],
                           &ranks[6], &ranks[7]});
    plan_all(shown, 8);
    CHECK(cpu_seconds() - start < 8.0 * TEST_SLOWER);
    CHECK_INT(shown[0].piece_count, 8 * 16384);
    free_all(shown, 8);
}

TEST(tables_of_more_than_the_limit_are_refused)
{
    static ls__checkpoint_report reports[2];
    static ls_checkpoint c = {.size = 2, .reports = reports};
    reports[0].word[1] = 1;
    reports[1].word[2] = (size_t)257 << 20;
    CHECK_OK(ls__shown_init(&c.shown, ls__env_posix(), 0, 2));
    CHECK_STATUS(ls__shown_exchange(&c), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "ls_checkpoint_save: the names, shapes and slices of all ranks have %zu bytes; at "
               "most %zu can be compared. Show fewer or shorter names");
    ls__shown_fini(&c.shown);
}

TEST_MAIN
