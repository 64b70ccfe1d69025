/* What ls_memory_stats counts: in use, cached, most of both. */
#include <lockstep/memory.h>

#include "local.h"

#define KIB ((int64_t)1024)

static ls_memory now(void)
{
    ls_memory m;
    CHECK_OK(ls_memory_stats(&m));
    return m;
}

static ls_tensor *kept(int64_t bytes)
{
    return ls_keep(ls_zeros(LS_SHAPE(bytes / 4), LS_FLOAT32));
}

LOCAL_TEST(what_is_freed_stays_reserved_until_it_is_released)
{
    const ls_memory before = now();
    ls_tensor *a = kept(64 * KIB), *b = kept(256 * KIB);
    const ls_memory both = now();
    CHECK_INT(both.allocated, before.allocated + 320 * KIB);
    CHECK_INT(both.blocks, before.blocks + 2);
    CHECK(both.reserved >= both.allocated);
    ls_free(a);
    const ls_memory one = now();
    CHECK_INT(one.allocated, before.allocated + 256 * KIB);
    CHECK_INT(one.reserved, both.reserved);
    CHECK_INT(one.allocated_peak, both.allocated);
    CHECK_OK(ls_memory_release_cached());
    CHECK_INT(now().reserved, now().allocated);
    CHECK_INT(now().reserved_peak, both.reserved);
    ls_free(b);
}

LOCAL_TEST(a_view_adds_nothing_and_keeps_all)
{
    ls_tensor *a = kept(64 * KIB);
    const ls_memory before = now();
    ls_tensor *part = ls_keep(ls_slice(a, 0, 0, 16));
    CHECK_INT(now().allocated, before.allocated);
    ls_free(a);
    CHECK_INT(now().allocated, before.allocated);
    ls_free(part);
    CHECK_INT(now().allocated, before.allocated - 64 * KIB);
}

LOCAL_TEST(memory_of_the_callers_is_not_counted)
{
    static float own[4096];
    const ls_memory before = now();
    ls_free(ls_keep(ls_from_memory(own, LS_SHAPE(4096), LS_FLOAT32)));
    CHECK_INT(now().allocated, before.allocated);
    CHECK_INT(now().blocks, before.blocks);
    CHECK_INT(now().allocated_peak, before.allocated_peak);
}

LOCAL_TEST(the_second_of_two_equal_rounds_reserves_nothing_and_peaks_are_reset)
{
    ls_memory first = now();
    for (int round = 0; round < 2; round++) {
        CHECK_OK(ls_memory_reset_peaks());
        CHECK_INT(now().allocated_peak, now().allocated);
        LS_SCOPE
        {
            for (int64_t i = 1; i < 20; i++) {
                CHECK_OK(ls_tensor_status(ls_ones(LS_SHAPE(i, 1000), LS_FLOAT32)));
            }
        }
        CHECK(round == 0 || now().reserved == first.reserved);
        CHECK(round == 0 || now().allocated_peak == first.allocated_peak);
        first = now();
    }
    CHECK(first.allocated_peak >= first.allocated + 190 * 4000);
}

TEST_MAIN
