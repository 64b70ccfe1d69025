/* A schedule as text. A column is a unit of time that divides all times, so every action begins and
 * ends between two columns; if there is no such unit, a column shows what runs at its middle. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/plan.h"

#define COLUMNS_MAX 1000
#define PARTS_MAX 60 /* of the shortest computation: has all small divisors */
#define PARTS_OTHERWISE 4
#define NEARLY 1e-6 /* of a column: times are sums of rounded numbers */

static bool has(const ls__schedule *s, ls__action_kind kind)
{
    bool found = false;
    for (int i = 0; i < s->rank[0].count; i++) {
        found = found || s->rank[0].list[i].kind == (uint8_t)kind;
    }
    return found;
}

/* The time of a column: a part of the shortest computation that divides all times. */
static double column_of(const ls__schedule *s, const ls__stage_times *t, double latency)
{
    const double all[] = {t->forward, has(s, LS__BACKWARD) ? t->backward : 0.0,
                          has(s, LS__INPUT_PART) ? t->input : 0.0,
                          has(s, LS__WEIGHT_PART) ? t->weight : 0.0, latency};
    double least = 0.0;
    for (int i = 0; i < 4; i++) {
        least = all[i] > 0.0 && (least == 0.0 || all[i] < least) ? all[i] : least;
    }
    for (int parts = 1; least > 0.0 && parts <= PARTS_MAX; parts++) {
        bool whole = true;
        for (int i = 0; i < 5; i++) {
            const double columns = all[i] / least * parts;
            whole = whole && fabs(columns - round(columns)) < NEARLY;
        }
        if (whole) {
            return least / parts;
        }
    }
    return least > 0.0 ? least / PARTS_OTHERWISE : 1.0;
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
static void print_scale(int columns, int width, double column)
{
    int gap = 8; /* before the first one; between two there are always blanks */
    for (int c = 0; c < columns; c += 5) {
        gap = 5 * (width + 1) - printf("%*s%g", gap, "", c * column) + gap;
    }
    printf("\n");
}

/* The name in the first column of an action, dashes in the others. */
static void print_row(const ls__schedule *s, const ls__schedule_cost *cost,
                      const ls__stage_times *times, int rank, int columns, int width, double column)
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
        const int from = (int)ceil(begin / column - 0.5 - NEARLY);
        const int to = (int)ceil(end / column - 0.5 - NEARLY);
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
    const int width = label_width(s);
    const double column = column_of(s, times, latency);
    const double columns = ceil(cost->makespan / column - NEARLY);
    printf("%s: ranks %d, stages %d, micro-batches %d; a column is %g\n", s->name, s->ranks,
           s->stages, s->micro_batches, column);
    if (columns > COLUMNS_MAX) {
        printf("(%.0f columns are too many for text; --svg FILE draws them)\n", columns);
        return;
    }
    printf("\n");
    print_scale((int)columns, width, column);
    for (int r = 0; r < s->ranks; r++) {
        print_row(s, cost, times, r, (int)columns, width, column);
    }
}
