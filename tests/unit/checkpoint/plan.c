/* Who writes what: put together, the parts of all ranks are every tensor exactly once, each lies in
 * one piece of memory, and the shares are near to even, however uneven the tensors. */
#include "checkpoint/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

enum { RANKS_MAX = 9 };

static void add(ls__table *table, const char *name, int ndim, const int64_t *dims)
{
    ls__saved_entry e = {.name = name, .type = LS__ENTRY_TENSOR, .bytes = 1};
    e.tensor = (ls_state_tensor){.dtype = LS_UINT8, .ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        e.tensor.global[i] = e.tensor.local[i] = dims[i];
        e.bytes *= (size_t)dims[i];
    }
    CHECK_OK(ls__table_add(table, &e));
}

/* A byte an element, so that an element's place is its offset. */
static void fill_many(ls__table *table)
{
    char name[32];
    for (int i = 0; i < 100; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        add(table, name, 1, (int64_t[]){i == 3 ? 0 : 4 * ((i * 7919) % 1000 + 1)});
    }
    add(table, "number", 0, NULL);
}

static void fill_uneven(ls__table *table)
{
    add(table, "embedding", 2, (int64_t[]){5003, 700});
    add(table, "wide", 2, (int64_t[]){2, 900001});
    add(table, "long", 3, (int64_t[]){1, 1, 500009});
    add(table, "boxes", 4, (int64_t[]){2, 3, 7, 12345});
    add(table, "bias", 1, (int64_t[]){700});
    add(table, "number", 0, NULL);
}

/* Marks the box [start, start+dim) of a tensor, element by element. */
static void mark(const ls_state_tensor *t, const ls__part *part, uint8_t *seen, size_t *marked)
{
    int64_t at[LS_DIMS_MAX];
    memcpy(at, part->start, sizeof at);
    for (size_t left = part->bytes; left > 0; left--) {
        size_t index = 0;
        for (int i = 0; i < t->ndim; i++) {
            CHECK(at[i] >= part->start[i] && at[i] < part->start[i] + part->dim[i]);
            index = index * (size_t)t->global[i] + (size_t)at[i];
        }
        CHECK(index == part->skip + (part->bytes - left)); /* one piece of memory */
        CHECK(seen[index] == 0);
        seen[index] = 1;
        *marked += 1;
        for (int i = t->ndim - 1; i >= 0 && ++at[i] == part->start[i] + part->dim[i]; i--) {
            at[i] = part->start[i];
        }
    }
}

/* Plans for each rank; the largest share over the even one. */
static double plan_all(void (*fill)(ls__table *), int size)
{
    ls__table table[RANKS_MAX] = {0};
    size_t load[RANKS_MAX] = {0}, total = 0, most = 0;
    for (int r = 0; r < size; r++) {
        ls__table_init(&table[r], ls__env_posix());
        fill(&table[r]);
        CHECK_OK(ls__plan_writers(&table[r], r, size));
    }
    for (int i = 0; i < table[0].count; i++) {
        size_t marked = 0, bytes = table[0].list[i].bytes;
        int writers = 0;
        uint8_t *seen = calloc(bytes + 1, 1);
        CHECK(seen);
        for (int r = 0; r < size; r++) {
            const ls__saved_entry *e = &table[r].list[i];
            if (e->mine) {
                writers++;
                load[r] += e->part.bytes;
                mark(&e->tensor, &e->part, seen, &marked);
            }
        }
        CHECK(writers >= 1 && marked == bytes);
        CHECK(bytes >= 65536 || writers == 1);
        total += bytes;
        free(seen);
    }
    for (int r = 0; r < size; r++) {
        most = load[r] > most ? load[r] : most;
        ls__table_fini(&table[r]);
    }
    return (double)most * size / (double)total;
}

TEST(every_element_has_one_writer_and_shares_of_many_tensors_are_even)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        CHECK(plan_all(fill_many, size) <= 1.05);
    }
}

/* An even share and one part, which is an eighth of it. */
TEST(a_few_large_tensors_are_cut_so_that_shares_are_even_too)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        CHECK(plan_all(fill_uneven, size) <= 1.125);
    }
}

TEST(a_slice_is_written_by_the_rank_that_has_it_and_whole)
{
    ls__table table;
    ls__table_init(&table, ls__env_posix());
    fill_uneven(&table);
    table.list[0].tensor.local[0] -= 3;
    table.list[0].tensor.start[0] = 2;
    table.list[0].bytes -= (size_t)3 * 700;
    CHECK_OK(ls__plan_writers(&table, 5, 6));
    CHECK(table.list[0].mine);
    CHECK(table.list[0].part.bytes == (size_t)5000 * 700 && table.list[0].part.skip == 0);
    CHECK_INT(table.list[0].part.start[0], 2);
    CHECK_INT(table.list[0].part.dim[0], 5000);
    ls__table_fini(&table);
}

TEST_MAIN
