/* SPDX-License-Identifier: Apache-2.0 */
/* Rooflines, and what was measured (processor.h). */
#include "cost/processor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/units.h"

#define WORD "matmul"
#define SIZE_MAX_EACH (1LL << 32) /* so that m n k is exact enough in a double, and finite */

static double work_of(int64_t m, int64_t n, int64_t k)
{
    return (double)m * (double)n * (double)k;
}

static double roofline_seconds(const ls__processor *d, int64_t m, int64_t n, int64_t k)
{
    const double elements = (double)m * (double)k + (double)k * (double)n + (double)m * (double)n;
    return fmax(2.0 * work_of(m, n, k) / d->flops, d->width * elements / d->memory);
}

static ls_status fail_item(const char *what, const char *item, size_t length)
{
    return ls__fail(LS_ERR_FORMAT,
                    "%s: \"%.*s\" is not a speed of a device; give its speed as 312tflop, its "
                    "memory's as 2039gbyte, or matmul M N K TIME, such as matmul 8192 6144 2048 "
                    "0.92ms",
                    what, (int)(length < 60 ? length : 60), item);
}

/* "matmul 8192 6144 2048 0.92ms" */
static bool parse_point(const char *item, size_t length, ls__processor_point *out)
{
    char copy[128], *at = copy + strlen(WORD);
    if (length >= sizeof copy) {
        return false;
    }
    memcpy(copy, item, length);
    copy[length] = '\0';
    if (strncmp(copy, WORD " ", strlen(WORD) + 1) != 0) {
        return false;
    }
    int64_t sizes[3];
    for (int i = 0; i < 3; i++) {
        char *end;
        sizes[i] = strtoll(at, &end, 10);
        if (end == at || *end != ' ' || sizes[i] < 1 || sizes[i] > SIZE_MAX_EACH) {
            return false;
        }
        at = end;
    }
    at += strspn(at, " ");
    *out =
        (ls__processor_point){sizes[0], sizes[1], sizes[2], ls__seconds_parse(at, strlen(at)), 0.0};
    return out->seconds > 0.0;
}

static int by_work(const void *a, const void *b)
{
    const ls__processor_point *p = a, *q = b;
    const double x = work_of(p->m, p->n, p->k), y = work_of(q->m, q->n, q->k);
    return (x > y) - (x < y);
}

static ls_status add_item(const char *what, const char *item, size_t length, ls__processor *out)
{
    ls__processor_point point;
    const double flops = ls__flops_parse(item, length),
                 memory = ls__amount_parse(item, length, true);
    if (flops > 0.0) {
        out->flops = flops;
    } else if (memory > 0.0) {
        out->memory = memory;
    } else if (!parse_point(item, length, &point)) {
        return fail_item(what, item, length);
    } else if (out->points == LS__PROCESSOR_POINTS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "%s: more than %d measured matmuls; leave some out", what,
                        LS__PROCESSOR_POINTS_MAX);
    } else {
        out->point[out->points++] = point;
    }
    return LS_OK;
}

ls_status ls__processor_parse(const char *what, const char *text, size_t bytes, int width,
                              ls__processor *out)
{
    ls__items items = {.text = text, .bytes = bytes};
    const char *item;
    size_t length;
    *out = (ls__processor){.width = width};
    while (ls__items_next(&items, &item, &length)) {
        LS_TRY(add_item(what, item, length, out));
    }
    if (out->flops == 0.0 || out->memory == 0.0) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: it lacks the speed of %s; give both, such as 312tflop,2039gbyte", what,
                        out->flops == 0.0 ? "the device" : "its memory");
    }
    for (int i = 0; i < out->points; i++) {
        ls__processor_point *p = &out->point[i];
        p->efficiency = roofline_seconds(out, p->m, p->n, p->k) / p->seconds;
    }
    qsort(out->point, (size_t)out->points, sizeof *out->point, by_work);
    return LS_OK;
}

static double efficiency_at(const ls__processor *d, double wanted)
{
    const ls__processor_point *p = d->point;
    int i = 0;
    while (i < d->points && work_of(p[i].m, p[i].n, p[i].k) < wanted) {
        i++;
    }
    if (d->points == 0 || i == 0 || i == d->points) {
        return d->points == 0 ? 1.0 : p[i == 0 ? 0 : i - 1].efficiency;
    }
    const double low = log(work_of(p[i - 1].m, p[i - 1].n, p[i - 1].k));
    const double high = log(work_of(p[i].m, p[i].n, p[i].k));
    const double share = (log(wanted) - low) / (high - low);
    return p[i - 1].efficiency + share * (p[i].efficiency - p[i - 1].efficiency);
}

double ls__processor_matmul(const ls__processor *d, int64_t m, int64_t n, int64_t k)
{
    for (int i = 0; i < d->points; i++) {
        const ls__processor_point *p = &d->point[i];
        if (p->m == m && p->n == n && p->k == k) {
            return p->seconds;
        }
    }
    return roofline_seconds(d, m, n, k) / efficiency_at(d, work_of(m, n, k));
}

double ls__processor_bytes(const ls__processor *d, double bytes)
{
    return bytes / d->memory;
}
