/* A schedule as text. A column is a unit of time that divides all times, so every action begins and
 * ends between two columns; if there is no such unit, a column shows what runs at its middle. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/plan.h"

#define COLUMNS_MAX 1000
#define UNITS_MAX 60 /* of one time unit: has all small divisors */
#define CELL_BYTES (2 * LS__ACTION_BYTES)

/* Columns per unit of time. */
static int columns_per_unit(const ls__stage_times *t, double latency)
{
    const double all[] = {t->forward, t->backward, t->input, t->weight, latency};
    for (int k = 1; k <= UNITS_MAX; k++) {
        bool whole = true;
        for (int i = 0; i < 5; i++) {
            whole = whole && fabs(all[i] * k - round(all[i] * k)) < 1e-6;
        }
        if (whole) {
            return k;
        }
    }
    return UNITS_MAX;
}

/* "F3", or with several stages on a rank "2F3". */
static const char *label(const ls__schedule *s, const ls__action *a, char *out)
{
    (void)ls__action_print(a, out);
    return s->stages > s->ranks ? out : out + strspn(out, "0123456789");
}

static int label_width(const ls__schedule *s)
{
    char text[LS__ACTION_BYTES];
    const ls__action longest = {.kind = LS__FORWARD,
                                .stage = (uint16_t)(s->stages - 1),
                                .micro_batch = (uint16_t)(s->micro_batches - 1)};
    return (int)strlen(label(s, &longest, text));
}

/* The time above every fifth column. */
static void print_scale(int columns, int width, int per_unit)
{
    int gap = 8; /* before the first one; between two there are always blanks */
    for (int c = 0; c < columns; c += 5) {
        gap = 5 * (width + 1) - printf("%*s%g", gap, "", (double)c / per_unit) + gap;
    }
    printf("\n");
}

/* The name in the first column of an action, dashes in the others. */
static void print_row(const ls__schedule *s, const ls__schedule_cost *cost,
                      const ls__stage_times *times, int rank, int columns, int width, int per_unit)
{
    char row[COLUMNS_MAX * 16], text[LS__ACTION_BYTES];
    const int step = width + 1;
    for (int c = 0; c < columns; c++) {
        memset(&row[c * step], ' ', (size_t)step);
        row[c * step] = '.';
    }
    for (int i = 0; i < s->rank[rank].count; i++) {
        const ls__action *a = &s->rank[rank].list[i];
        const double begin = cost->begin[rank][i], end = begin + ls__action_time(a, times);
        const int from = (int)ceil(begin * per_unit - 0.5 - 1e-6);
        const int to = (int)ceil(end * per_unit - 0.5 - 1e-6);
        if (to > from) {
            const char *name = label(s, a, text);
            memset(&row[from * step], '-', (size_t)((to - from) * step - 1));
            memcpy(&row[from * step], name, strlen(name));
            memset(&row[from * step + (int)strlen(name)], to - from > 1 ? '-' : ' ',
                   (size_t)(width - (int)strlen(name)));
        }
    }
    int length = columns * step;
    while (length > 0 && row[length - 1] == ' ') {
        length--;
    }
    printf("rank %-3d%.*s\n", rank, length, row);
}

void plan_print_diagram(const ls__schedule *s, const ls__schedule_cost *cost,
                        const ls__stage_times *times, double latency)
{
    const int per_unit = columns_per_unit(times, latency), width = label_width(s);
    const double columns = ceil(cost->makespan * per_unit - 1e-6);
    printf("%s: ranks %d, stages %d, micro-batches %d; a column is %g\n", s->name, s->ranks,
           s->stages, s->micro_batches, 1.0 / per_unit);
    if (columns > COLUMNS_MAX) {
        printf("(%.0f columns are too many for text; --svg FILE draws them)\n", columns);
        return;
    }
    printf("\n");
    print_scale((int)columns, width, per_unit);
    for (int r = 0; r < s->ranks; r++) {
        print_row(s, cost, times, r, (int)columns, width, per_unit);
    }
}
