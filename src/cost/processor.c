/* SPDX-License-Identifier: Apache-2.0 */
/* Rooflines, and what was measured (processor.h). */
#include "cost/processor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cost/units.h"

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

/* Two matmuls. */
static double attention_roofline(const ls__processor *d, int64_t m, int64_t n, int64_t k)
{
    return 2.0 * roofline_seconds(d, m, n, k);
}

static ls_status fail_item(const char *what, const char *item, size_t length)
{
    return ls__fail(LS_ERR_FORMAT,
                    "%s: \"%.*s\" is not a speed of a device; give its speed as 312tflop, its "
                    "memory's as 2039gbyte, or matmul M N K TIME or attention ROWS CONTEXT WIDTH "
                    "TIME, such as matmul 8192 6144 2048 0.92ms, or message or wait "
                    "TIME",
                    what, (int)(length < 60 ? length : 60), item);
}

/* "matmul 8192 6144 2048 0.92ms", of which `word` is the first. */
static bool parse_point(const char *word, const char *item, size_t length, ls__processor_point *out)
{
    char copy[128], *at = copy + strlen(word);
    if (length >= sizeof copy) {
        return false;
    }
    memcpy(copy, item, length);
    copy[length] = '\0';
    if (strncmp(copy, word, strlen(word)) != 0 || *at != ' ') {
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

/* By which points are ordered, and found. */
static double size_of(const ls__processor_points *of, int64_t m, int64_t n, int64_t k)
{
    return work_of(of->by_row ? 1 : m, n, k);
}

static int by_work(const void *a, const void *b)
{
    const ls__processor_point *p = a, *q = b;
    const double x = work_of(p->m, p->n, p->k), y = work_of(q->m, q->n, q->k);
    return (x > y) - (x < y);
}

/* "wait 15us", of which `word` is the first, with a space. */
static bool parse_time(const char *word, const char *item, size_t length, double *out)
{
    const size_t before = strlen(word);
    const double seconds = length > before && memcmp(item, word, before) == 0
                               ? ls__seconds_parse(item + before, length - before)
                               : -1.0;
    *out = seconds >= 0.0 ? seconds : *out;
    return seconds >= 0.0;
}

static int by_row(const void *a, const void *b)
{
    const ls__processor_point *p = a, *q = b;
    const double x = work_of(1, p->n, p->k), y = work_of(1, q->n, q->k);
    return (x > y) - (x < y);
}

static ls_status add_point(const char *what, ls__processor_points *to, ls__processor_point point)
{
    if (to->count == LS__PROCESSOR_POINTS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "%s: more than %d measured times of a kind; leave some out",
                        what, LS__PROCESSOR_POINTS_MAX);
    }
    to->point[to->count++] = point;
    return LS_OK;
}

static ls_status add_item(const char *what, const char *item, size_t length, ls__processor *out)
{
    ls__processor_point point;
    const double flops = ls__flops_parse(item, length),
                 memory = ls__amount_parse(item, length, true);
    if (parse_time("message ", item, length, &out->message) ||
        parse_time("wait ", item, length, &out->wait)) {
        return LS_OK;
    }
    if (flops > 0.0) {
        out->flops = flops;
    } else if (memory > 0.0) {
        out->memory = memory;
    } else if (parse_point("matmul", item, length, &point)) {
        return add_point(what, &out->matmul, point);
    } else if (parse_point("attention", item, length, &point)) {
        return add_point(what, &out->attention, point);
    } else {
        return fail_item(what, item, length);
    }
    return LS_OK;
}

typedef double (*roofline)(const ls__processor *d, int64_t m, int64_t n, int64_t k);

static void rate_points(const ls__processor *d, ls__processor_points *points, roofline of)
{
    for (int i = 0; i < points->count; i++) {
        ls__processor_point *p = &points->point[i];
        p->efficiency = of(d, p->m, p->n, p->k) / p->seconds;
    }
    qsort(points->point, (size_t)points->count, sizeof *points->point,
          points->by_row ? by_row : by_work);
}

ls_status ls__processor_parse(const char *what, const char *text, size_t bytes, int width,
                              ls__processor *out)
{
    ls__items items = {.text = text, .bytes = bytes};
    const char *item;
    size_t length;
    *out = (ls__processor){.width = width, .attention.by_row = true};
    while (ls__items_next(&items, &item, &length)) {
        LS_TRY(add_item(what, item, length, out));
    }
    if (out->flops == 0.0 || out->memory == 0.0) {
        return ls__fail(LS_ERR_FORMAT,
                        "%s: it lacks the speed of %s; give both, such as 312tflop,2039gbyte", what,
                        out->flops == 0.0 ? "the device" : "its memory");
    }
    rate_points(out, &out->matmul, roofline_seconds);
    rate_points(out, &out->attention, attention_roofline);
    return LS_OK;
}

static double efficiency_at(const ls__processor_points *points, double wanted)
{
    const ls__processor_point *p = points->point;
    int i = 0;
    while (i < points->count && size_of(points, p[i].m, p[i].n, p[i].k) < wanted) {
        i++;
    }
    if (i == 0 || i == points->count) {
        return p[i == 0 ? 0 : i - 1].efficiency;
    }
    const double low = log(size_of(points, p[i - 1].m, p[i - 1].n, p[i - 1].k));
    const double high = log(size_of(points, p[i].m, p[i].n, p[i].k));
    const double share = (log(wanted) - low) / (high - low);
    return p[i - 1].efficiency + share * (p[i].efficiency - p[i - 1].efficiency);
}

static double seconds_by(const ls__processor_points *points, double least, int64_t m, int64_t n,
                         int64_t k)
{
    for (int i = 0; i < points->count; i++) {
        const ls__processor_point *p = &points->point[i];
        if (p->m == m && p->n == n && p->k == k) {
            return p->seconds;
        }
    }
    return points->count == 0 ? least : least / efficiency_at(points, size_of(points, m, n, k));
}

double ls__processor_matmul(const ls__processor *d, int64_t m, int64_t n, int64_t k)
{
    return seconds_by(&d->matmul, roofline_seconds(d, m, n, k), m, n, k);
}

double ls__processor_attention(const ls__processor *d, int64_t rows, int64_t context, int64_t width)
{
    return d->attention.count > 0
               ? seconds_by(&d->attention, attention_roofline(d, rows, context, width), rows,
                            context, width)
               : 2.0 * ls__processor_matmul(d, rows, context, width);
}

double ls__processor_bytes(const ls__processor *d, double bytes)
{
    return bytes / d->memory;
}
