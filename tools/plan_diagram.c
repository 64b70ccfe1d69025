/* SPDX-License-Identifier: Apache-2.0 */
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

/* Which kinds of computations the first rank has. */
static unsigned kinds_of(const ls__schedule *s)
{
    unsigned found = 0;
    for (int i = 0; i < s->rank[0].count; i++) {
        found |= 1u << s->rank[0].list[i].kind;
    }
    return found;
}

/* Time that a kind takes in a stage; 0: the schedule has none of it. */
static double time_in(unsigned kinds, const ls__stage_times *times, int kind)
{
    const ls__action action = {.kind = (uint8_t)kind};
    return kinds & 1u << kind ? ls__action_time(&action, times) : 0.0;
}

static bool is_whole(double columns)
{
    return fabs(columns - round(columns)) < NEARLY;
}

static bool divides_all(const ls__schedule *s, const ls__stage_times *times, double column)
{
    const unsigned kinds = kinds_of(s);
    bool whole = true;
    for (int i = 0; i < s->stages; i++) {
        for (int kind = 0; kind <= LS__WEIGHT_PART; kind++) {
            whole = whole && is_whole(time_in(kinds, &times[i], kind) / column);
        }
    }
    return whole;
}

static double shortest(const ls__schedule *s, const ls__stage_times *times)
{
    const unsigned kinds = kinds_of(s);
    double least = 0.0;
    for (int i = 0; i < s->stages; i++) {
        for (int kind = 0; kind <= LS__WEIGHT_PART; kind++) {
            const double time = time_in(kinds, &times[i], kind);
            least = time > 0.0 && (least == 0.0 || time < least) ? time : least;
        }
    }
    return least;
}

/* The time of a column: a part of the shortest computation that divides all times. */
static double column_of(const ls__schedule *s, const ls__stage_times *times, double latency)
{
    const double least = shortest(s, times);
    for (int parts = 1; least > 0.0 && parts <= PARTS_MAX; parts++) {
        const double column = least / parts;
        if (divides_all(s, times, column) && is_whole(latency / column)) {
            return column;
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
static void print_row(const ls__schedule *s, const ls__sim_result *cost,
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
        const double begin = cost->begin[rank][i],
                     end = begin + ls__action_time(a, &times[a->stage]);
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

void plan_print_diagram(const ls__schedule *s, const ls__sim_result *cost,
                        const ls__stage_times *times, double latency)
{
    const int width = label_width(s);
    const double column = column_of(s, times, latency);
    const double columns = ceil(cost->makespan / column - NEARLY);
    printf("%s: ranks %d, stages %d, ", s->name, s->ranks, s->stages);
    for (int i = 0; i < s->stages && ls__schedule_has_replicas(s); i++) {
        printf("%s%d%s", i == 0 ? "replicas " : ",", s->replicas[i], i < s->stages - 1 ? "" : ", ");
    }
    printf("micro-batches %d; a column is %g\n", s->micro_batches, column);
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
