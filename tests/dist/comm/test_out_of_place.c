/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce from one buffer into another: the bytes of the one in place, in every kind of memory,
 * of every dtype, small and large, blocking or not; `in` stays as it is. */
#include "test.h"

#include <stdlib.h>

#include <lockstep/comm.h>

#include "kernel/reduce/reduce.h"
#include "values.h"

enum { COUNT_MAX = 300007, GUARD = 64 };

typedef struct buffers {
    unsigned char *in, *out, *same;
    bool registered;
} buffers;

static unsigned char *memory_of(bool registered)
{
    const size_t bytes = (size_t)COUNT_MAX * 8 + GUARD;
    void *memory = NULL;
    if (registered) {
        CHECK_OK(ls_group_alloc(ls_world(), bytes, &memory));
    } else {
        memory = malloc(bytes);
    }
    CHECK(memory != NULL);
    return memory;
}

static buffers buffers_new(bool registered)
{
    return (buffers){memory_of(registered), memory_of(registered), memory_of(registered),
                     registered};
}

static void buffers_free(const buffers *b)
{
    unsigned char *all[] = {b->in, b->out, b->same};
    for (int i = 0; i < 3; i++) {
        if (b->registered) {
            CHECK_OK(ls_group_dealloc(ls_world(), all[i]));
        } else {
            free(all[i]);
        }
    }
}

static void check(const buffers *b, int64_t count, ls_dtype dtype, ls_reduce_op op, bool blocking)
{
    const size_t bytes = (size_t)count * ls_dtype_size(dtype);
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .factor = op == LS_PREMUL_SUM ? 3.0 : 1.0);
    memset(b->out, 0xa5, bytes + GUARD);
    for (int64_t i = 0; i < count; i++) {
        put_value(b->in, i, dtype, value_of(ls_rank(), i, dtype, op));
        put_value(b->same, i, dtype, value_of(ls_rank(), i, dtype, op));
    }
    ls_work *work = NULL;
    CHECK_OK(ls_all_reduce(ls_world(), b->in, b->out, count, dtype, op, options,
                           blocking ? NULL : &work));
    if (!blocking) {
        CHECK_OK(ls_work_wait(work));
    }
    for (int64_t i = 0; i < count; i++) { /* it was not written to */
        unsigned char was[8];
        put_value(was, 0, dtype, value_of(ls_rank(), i, dtype, op));
        CHECK(memcmp(b->in + (size_t)i * ls_dtype_size(dtype), was, ls_dtype_size(dtype)) == 0);
    }
    CHECK_OK(ls_all_reduce(ls_world(), b->same, b->same, count, dtype, op, options, NULL));
    CHECK(memcmp(b->out, b->same, bytes) == 0);
    for (size_t i = 0; i < GUARD; i++) {
        CHECK_INT(b->out[bytes + i], 0xa5);
    }
}

static void every_case(bool registered)
{
    static const int64_t counts[] = {0, 1, 7, 250, 4099, COUNT_MAX};
    static const ls_reduce_op ops[] = {LS_SUM, LS_AVG, LS_MAX, LS_PREMUL_SUM, LS_BXOR};
    const buffers b = buffers_new(registered);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int d = 0; d < LS_DTYPE_COUNT; d++) {
            const ls_reduce_op op = ops[((size_t)d + c) % (sizeof ops / sizeof *ops)];
            if (ls__reduce_supported((ls_dtype)d, op) && (counts[c] < COUNT_MAX || d % 4 == 0)) {
                check(&b, counts[c], (ls_dtype)d, op, (c + (size_t)d) % 2 == 0);
            }
        }
    }
    buffers_free(&b);
}

DIST_TEST(out_of_place_has_the_bytes_of_in_place_on_2, 2)
{
    every_case(false);
    every_case(true);
}

DIST_TEST(out_of_place_has_the_bytes_of_in_place_on_3, 3)
{
    every_case(ls_rank() == 1); /* kinds of memory may differ */
}

DIST_TEST(out_of_place_has_the_bytes_of_in_place_on_5, 5)
{
    every_case(true);
}

/* A peer that comes late: the small message's caller sleeps meanwhile. */
DIST_TEST(a_small_one_waits_for_a_late_peer, 2)
{
    for (int k = 0; k < 20; k++) {
        const float in = (float)(ls_rank() + 1);
        float out = -1.0f;
        if (ls_rank() == k % 2) {
            const double until = ls_time() + 0.01;
            while (ls_time() < until) {
            }
        }
        CHECK_OK(ls_all_reduce(ls_world(), &in, &out, 1, LS_FLOAT32, LS_SUM, NULL, NULL));
        CHECK_NEAR(out, 3.0, 0.0);
        CHECK_NEAR(in, ls_rank() + 1, 0.0);
    }
}

DIST_TEST(overlapping_buffers_are_refused, 2)
{
    float x[16] = {0};
    for (int shift = 1; shift < 8; shift++) {
        CHECK_STATUS(ls_all_reduce(ls_world(), x, x + shift, 8, LS_FLOAT32, LS_SUM, NULL, NULL),
                     LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "give one buffer for both, or two that are disjoint");
    }
    CHECK_OK(ls_all_reduce(ls_world(), x, x + 8, 8, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK_STATUS(ls_all_reduce(ls_world(), NULL, x, 8, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_INVALID);
    CHECK_STATUS(ls_all_reduce(ls_world(), x, NULL, 8, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_INVALID);
}

TEST_MAIN
