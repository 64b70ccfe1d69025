/* SPDX-License-Identifier: Apache-2.0 */
/* What ls_memory_get_stats counts: in use, cached, most of both. */
#include <lockstep/memory.h>
#include <lockstep/optim.h>

#include "local.h"

#define KIB ((size_t)1024)

static ls_memory_stats now(void)
{
    ls_memory_stats m = {.size = sizeof m};
    CHECK_OK(ls_memory_get_stats(&m));
    return m;
}

static ls_tensor *kept(int64_t bytes)
{
    return ls_keep(ls_zeros(LS_SHAPE(bytes / 4), LS_FLOAT32));
}

LOCAL_TEST(what_is_freed_stays_reserved_until_it_is_released)
{
    const ls_memory_stats before = now();
    ls_tensor *a = kept(64 * KIB), *b = kept(96 * KIB);
    const ls_memory_stats both = now();
    CHECK_INT(both.allocated, before.allocated + 160 * KIB);
    CHECK_INT(both.blocks, before.blocks + 2);
    CHECK(both.reserved >= both.allocated);
    ls_free(a);
    const ls_memory_stats one = now();
    CHECK_INT(one.allocated, before.allocated + 96 * KIB);
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
    const ls_memory_stats before = now();
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
    const ls_memory_stats before = now();
    ls_free(ls_keep(ls_from_memory(own, LS_SHAPE(4096), LS_FLOAT32)));
    CHECK_INT(now().allocated, before.allocated);
    CHECK_INT(now().blocks, before.blocks);
    CHECK_INT(now().allocated_peak, before.allocated_peak);
}

LOCAL_TEST(the_second_of_two_equal_rounds_reserves_nothing_and_peaks_are_reset)
{
    ls_memory_stats first = now();
    for (int round = 0; round < 2; round++) {
        CHECK_OK(ls_memory_reset_peaks());
        CHECK_INT(now().allocated_peak, now().allocated);
        {
            LS_SCOPE;
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

/* ---- large blocks ------------------------------------------------------------------------- */

#define MIB (1024 * KIB)

LOCAL_TEST(what_a_large_block_leaves_serves_others_of_any_size)
{
    ls_tensor *part[8];
    const ls_memory_stats before = now();
    ls_free(kept(8 * MIB));
    const ls_memory_stats once = now();
    CHECK(once.reserved >= before.reserved + 8 * MIB);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) {
            part[i] = kept(MIB);
        }
        CHECK_INT(now().allocated, before.allocated + 8 * MIB);
        for (int i = 0; i < 8; i++) { /* in another order each time */
            ls_free(part[(3 * i + round) % 8]);
        }
        ls_free(kept(8 * MIB)); /* they are one again */
        CHECK_INT(now().reserved, once.reserved);
        CHECK_INT(now().allocated, before.allocated);
    }
    CHECK_OK(ls_memory_release_cached());
    CHECK_INT(now().reserved, before.reserved);
}

LOCAL_TEST(the_tightest_gap_is_taken)
{
    ls_free(kept(9 * MIB)); /* a region to cut up */
    ls_tensor *three = kept(3 * MIB), *between = kept(MIB), *two = kept(2 * MIB),
              *end = kept(3 * MIB);
    const ls_memory_stats full = now();
    ls_free(two);
    ls_free(three);
    two = kept(2 * MIB); /* not in the gap of three, though that is the newer */
    three = kept(3 * MIB);
    CHECK_INT(now().reserved, full.reserved);
    ls_free(two), ls_free(three), ls_free(between), ls_free(end);
}

static bool holds_only(ls_tensor *t, int32_t value)
{
    const int32_t *at = ls_data(t);
    int64_t i = 0;
    while (i < ls_numel(t) && at[i] == value) {
        i++;
    }
    return i == ls_numel(t);
}

LOCAL_TEST(blocks_in_use_never_share_memory)
{
    enum { SLOTS = 24, TURNS = 600 };
    ls_tensor *slot[SLOTS] = {NULL};
    uint64_t state = test_seed();
    CHECK_OK(ls_memory_release_cached());
    const ls_memory_stats before = now();
    for (int turn = 0; turn < TURNS + SLOTS; turn++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int i = turn < TURNS ? (int)((state >> 33) % SLOTS) : turn - TURNS;
        if (slot[i] != NULL) {
            CHECK(holds_only(slot[i], i));
            ls_free(slot[i]);
            slot[i] = NULL;
        } else if (turn < TURNS) { /* 4 bytes to 1 MiB, of all magnitudes alike */
            int64_t count = 1 + (int64_t)((state >> 20) % ((uint64_t)1 << (state >> 60) << 3));
            slot[i] = ls_keep(ls_full(LS_SHAPE(count), LS_INT32, i));
        }
    }
    CHECK_INT(now().allocated, before.allocated);
    CHECK_OK(ls_memory_release_cached());
    CHECK_INT(now().reserved, before.reserved);
}

static ls_tensor *no_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class holder_class =
    LS_MODULE_CLASS(.name = "holder", .forward = no_forward);

LOCAL_TEST(gradients_hold_no_memory_while_they_are_absent)
{
    ls_module *m = ls_module_new(sizeof *m, &holder_class);
    ls_tensor *w = ls_module_add_param(m, "w", ls_ones(LS_SHAPE(512, 512), LS_FLOAT32));
    ls_optim *optim = ls_sgd_new(m, LS_OPTIONS(ls_sgd_options, .lr = 1.0));
    const ls_memory_stats before = now();
    CHECK(optim != NULL);
    for (int step = 0; step < 2; step++) {
        {
            LS_SCOPE;
            CHECK_OK(ls_backward(ls_sum(w)));
        }
        ls_tensor *gradient = ls_grad(w);
        CHECK_NEAR(((float *)ls_data(gradient))[77], 1.0, 0.0);
        CHECK_INT(now().allocated, before.allocated + MIB);
        CHECK_OK(ls_optim_step(optim));
        ls_optim_zero_grad(optim);
        CHECK_INT(now().allocated, before.allocated);
        CHECK(ls_grad(w) == NULL);
        CHECK_STATUS(ls_tensor_status(gradient), LS_ERR_STALE);
    }
    CHECK_NEAR(((float *)ls_data(w))[77], -1.0, 0.0);
    ls_optim_free(optim);
    ls_module_free(m);
}

TEST_MAIN
