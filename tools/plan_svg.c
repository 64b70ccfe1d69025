/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule as a picture: a row per rank, a box per computation, its micro-batch inside. Stages of
 * a rank after the first one have lighter boxes. */
#include "tools/plan.h"

#define ROW 28
#define LEFT 64
#define TOP 28
#define UNIT 24.0 /* width of the shortest computation */
#define WIDTH_MAX 8000.0

static const char *color(const ls__action *a)
{
    switch (a->kind) {
    case LS__FORWARD:
        return "#4c78a8";
    case LS__RECOMPUTE:
        return "#9ecae9";
    case LS__WEIGHT_PART:
        return "#e9a23b";
    default:
        return "#54a24b";
    }
}

/* Pixels per unit of time. */
static double scale_of(const ls__schedule *s, const ls__stage_times *times, double makespan)
{
    double least = makespan;
    for (int i = 0; i < 2 * s->stages; i++) {
        const double time = i % 2 == 0 ? times[i / 2].forward : times[i / 2].backward;
        least = time > 0.0 && time < least ? time : least;
    }
    const double wanted = least > 0.0 ? UNIT / least : 1.0;
    return makespan * wanted > WIDTH_MAX ? WIDTH_MAX / makespan : wanted;
}

static void write_row(FILE *out, const ls__schedule *s, const ls__sim_result *cost,
                      const ls__stage_times *times, int rank, double scale)
{
    const int y = TOP + rank * ROW;
    fprintf(out, "<text x=\"4\" y=\"%d\">rank %d</text>\n", y + 17, rank);
    for (int i = 0; i < s->rank[rank].count; i++) {
        const ls__action *a = &s->rank[rank].list[i];
        const double x = LEFT + scale * cost->begin[rank][i];
        const double width = scale * ls__action_time(a, &times[a->stage]);
        if (width > 0.0) {
            fprintf(out,
                    "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                    "fill-opacity=\"%s\" stroke=\"#fff\"/>"
                    "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
                    x, y, width, ROW - 4, color(a), a->stage < s->ranks ? "0.9" : "0.45",
                    x + width / 2, y + 17, a->micro_batch);
        }
    }
}

bool plan_write_svg(FILE *out, const ls__schedule *s, const ls__sim_result *cost,
                    const ls__stage_times *times)
{
    const double scale = scale_of(s, times, cost->makespan);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"4\" y=\"18\">%s: makespan %g, bubble %g</text>\n",
            LEFT + scale * cost->makespan + 8, TOP + s->ranks * ROW + 4, s->name, cost->makespan,
            cost->bubble);
    for (int r = 0; r < s->ranks; r++) {
        write_row(out, s, cost, times, r, scale);
    }
    fprintf(out, "</svg>\n");
    return ferror(out) == 0;
}
