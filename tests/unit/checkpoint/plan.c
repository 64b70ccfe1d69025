/* Who writes what: all ranks plan the same, every whole tensor has one writer, and the shares are
 * near to even. */
#include "checkpoint/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

static void fill(ls__table *table, int tensors)
{
    char name[32];
    ls__table_init(table, ls__env_posix());
    for (int i = 0; i < tensors; i++) {
        const int64_t count = i == 3 ? 0 : (i * 7919) % 1000 + 1;
        (void)snprintf(name, sizeof name, "t%d", i);
        CHECK_OK(ls__table_add(
            table, &(ls__saved_entry){.name = name,
                                      .type = LS__ENTRY_TENSOR,
                                      .tensor = {.ndim = 1, .global = {count}, .local = {count}},
                                      .bytes = (size_t)count * 4}));
    }
}

TEST(every_tensor_has_one_writer_on_all_ranks_and_shares_are_even)
{
    for (int size = 1; size <= 8; size++) {
        size_t load[8] = {0}, total = 0, most = 0;
        ls__table first;
        fill(&first, 100);
        CHECK_OK(ls__plan_writers(&first, 0, size));
        for (int rank = 1; rank < size; rank++) {
            ls__table other;
            fill(&other, 100);
            CHECK_OK(ls__plan_writers(&other, rank, size));
            for (int i = 0; i < first.count; i++) {
                CHECK_INT(other.list[i].writer, first.list[i].writer);
            }
            ls__table_fini(&other);
        }
        for (int i = 0; i < first.count; i++) {
            CHECK(first.list[i].writer >= 0 && first.list[i].writer < size);
            load[first.list[i].writer] += first.list[i].bytes;
            total += first.list[i].bytes;
        }
        for (int r = 0; r < size; r++) {
            most = load[r] > most ? load[r] : most;
        }
        CHECK((double)most <=
              1.05 * (double)total / size); /* 100 tensors: far below Graham's 4/3 */
        ls__table_fini(&first);
    }
}

TEST(a_slice_is_written_by_the_rank_that_has_it)
{
    ls__table table;
    fill(&table, 4);
    table.list[2].tensor.local[0]--;
    CHECK_OK(ls__plan_writers(&table, 5, 6));
    CHECK_INT(table.list[2].writer, 5);
    ls__table_fini(&table);
}

TEST_MAIN
