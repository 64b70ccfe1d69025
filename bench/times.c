/* SPDX-License-Identifier: Apache-2.0 */
/* The clock, and what is said of many times. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "bench.h"

enum { TIMES_MAX = 10000 };

double ls__bench_now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ls__bench_sort(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_size);
}

static void copy_sorted(const double *times, int count, double sorted[TIMES_MAX])
{
    LS_ASSERT(count > 0 && count <= TIMES_MAX);
    memcpy(sorted, times, (size_t)count * sizeof *times);
    ls__bench_sort(sorted, count);
}

double ls__bench_quantile(const double *times, int count, int k, int n)
{
    double sorted[TIMES_MAX];
    copy_sorted(times, count, sorted);
    return sorted[(count - 1) * k / n];
}

double ls__bench_median(const double *times, int count)
{
    double sorted[TIMES_MAX];
    copy_sorted(times, count, sorted);
    return count % 2 == 1 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

json_t *ls__bench_number(double number)
{
    return isfinite(number) ? json_real(number) : json_null();
}

json_t *ls__bench_list(const double *numbers, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, ls__bench_number(numbers[i]));
    }
    return list;
}
