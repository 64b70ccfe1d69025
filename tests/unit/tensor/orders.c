/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting and picking in every type, beside an independent reference: places sorted by qsort, whose
 * comparison reads a long double, which holds every number of every type, and then the place. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/ops.h>

#include "base/half.h"
#include "local.h"

#define COUNT 300

/* Bit patterns, most of them from a few, so that many elements are equal and the extremes occur. */
static uint64_t pattern(int i)
{
    static const uint64_t odd[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, 42};
    const uint64_t random = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
    return i % 3 == 0 ? odd[random % 6] : random;
}

/* Element i of `x` as a number: integers exactly, NaN as NaN. */
static long double number(const void *x, ls_dtype dtype, int i)
{
    const char *at = (const char *)x + (size_t)i * ls_dtype_size(dtype);
    uint64_t bits = 0;
    memcpy(&bits, at, ls_dtype_size(dtype));
    switch (dtype) {
    case LS_FLOAT32:
        return (long double)ls__bits_float((uint32_t)bits);
    case LS_FLOAT16:
        return (long double)ls__float16_widen((uint16_t)bits);
    case LS_BFLOAT16:
        return (long double)ls__bfloat16_widen((uint16_t)bits);
    case LS_FLOAT64: {
        double value;
        memcpy(&value, &bits, sizeof value);
        return (long double)value;
    }
    case LS_BOOL:
        return bits != 0;
    case LS_INT8:
    case LS_INT16:
    case LS_INT32:
    case LS_INT64: {
        const int unused = 64 - 8 * (int)ls_dtype_size(dtype);
        return (long double)((int64_t)(bits << unused) >> unused);
    }
    default:
        return (long double)bits;
    }
}

static struct {
    const void *x;
    ls_dtype dtype;
    bool descending;
} sorted;

/* NaN is above all numbers; equal elements keep their order. */
static int compare(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    const long double x = number(sorted.x, sorted.dtype, (int)a);
    const long double y = number(sorted.x, sorted.dtype, (int)b);
    int order = isnan(x) || isnan(y) ? (int)isnan(x) - (int)isnan(y) : (x > y) - (x < y);
    order = sorted.descending ? -order : order;
    return order != 0 ? order : (a > b) - (a < b);
}

static void check_order(const void *x, ls_dtype dtype, int64_t k, bool descending)
{
    LS_SCOPE;
    int64_t want[COUNT], got[COUNT];
    char values[COUNT * 8];
    const size_t bytes = ls_dtype_size(dtype);
    for (int i = 0; i < COUNT; i++) {
        want[i] = i;
    }
    sorted.x = x, sorted.dtype = dtype, sorted.descending = descending;
    qsort(want, COUNT, sizeof *want, compare);
    ls_tensor *t = ls_from_data(x, LS_SHAPE(COUNT), dtype), *at;
    ls_tensor *y = k == COUNT ? ls_sort(t, 0, descending, &at) : ls_topk(t, k, 0, descending, &at);
    CHECK(ls_dtype_of(y) == dtype && ls_numel(y) == k);
    CHECK_OK(ls_copy_out(at, got, (size_t)k * sizeof *got));
    CHECK_OK(ls_copy_out(y, values, (size_t)k * bytes));
    for (int64_t i = 0; i < k; i++) {
        if (got[i] != want[i]) {
            test_fail(__FILE__, __LINE__, "%s, %s: place %lld is %lld, not %lld",
                      ls_dtype_name(dtype), descending ? "down" : "up", (long long)i,
                      (long long)got[i], (long long)want[i]);
        }
        const long double found = number(values, dtype, (int)i);
        const long double there = number(x, dtype, (int)want[i]);
        CHECK(found == there || (isnan(found) && isnan(there)));
    }
}

LOCAL_TEST(every_type_has_its_order)
{
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        char x[COUNT * 8];
        const size_t bytes = ls_dtype_size((ls_dtype)dtype);
        for (int i = 0; i < COUNT; i++) {
            const uint64_t bits = pattern(i) >> (dtype == LS_BOOL ? 63 : 0);
            memcpy(x + (size_t)i * bytes, &bits, bytes); /* the low bytes */
        }
        for (int descending = 0; descending < 2; descending++) {
            check_order(x, (ls_dtype)dtype, COUNT, descending != 0);
            check_order(x, (ls_dtype)dtype, 7, descending != 0);
        }
    }
}

LOCAL_TEST(columns_of_integers_are_sorted_and_picked)
{
    const int64_t x[] = {3, INT64_MIN, INT64_MAX, 3, -1, INT64_MAX - 1},
                  want[] = {-1, INT64_MIN, 3, 3};
    const int16_t shorts[] = {5, -7, 300, 4};
    const int32_t index[] = {1, 0, 1, 1};
    int64_t got[4];
    ls_tensor *at, *y = ls_topk(ls_from_data(x, LS_SHAPE(3, 2), LS_INT64), 2, 0, false, &at);
    CHECK_OK(ls_copy_out(y, got, sizeof got));
    CHECK(memcmp(got, want, sizeof got) == 0);
    CHECK_OK(ls_copy_out(at, got, sizeof got));
    CHECK(got[0] == 2 && got[1] == 0 && got[2] == 0 && got[3] == 1);
    int16_t picked[4];
    ls_tensor *from = ls_from_data(shorts, LS_SHAPE(2, 2), LS_INT16);
    y = ls_gather_dim(from, 1, ls_from_data(index, LS_SHAPE(2, 2), LS_INT32));
    CHECK(ls_dtype_of(y) == LS_INT16);
    CHECK_OK(ls_copy_out(y, picked, sizeof picked));
    CHECK(picked[0] == -7 && picked[1] == 5 && picked[2] == 4 && picked[3] == 4);
}

TEST_MAIN
