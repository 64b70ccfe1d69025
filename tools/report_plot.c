/* SPDX-License-Identifier: Apache-2.0 */
/* A plot of curves over steps, as SVG within a page: axes with round numbers, lines or points, in
 * the colours of the page's table. A curve of many steps is drawn as the means of as many pieces as
 * it has pixels. */
#include <math.h>
#include <stdlib.h>

#include "tools/report.h"

#define WIDTH 820
#define HEIGHT 280
#define LEFT 76
#define RIGHT 12
#define TOP 34
#define BOTTOM 40
#define TICKS 5
#define PIECES 640

typedef struct range {
    double low, high;
} range;

typedef struct axes {
    range x, y;
} axes;

const char *report_color(int run)
{
    static const char *const colors[REPORT_RUNS_MAX] = {"#3566a5", "#c2621c", "#3b8544", "#9a3b8c",
                                                        "#8a6d1f", "#2b8c96", "#a83246", "#555555"};
    return colors[run % REPORT_RUNS_MAX];
}

static void include(range *r, double value)
{
    if (!isnan(value)) {
        r->low = value < r->low ? value : r->low;
        r->high = value > r->high ? value : r->high;
    }
}

/* A range that is empty or a point gets a width. */
static range widened(range r)
{
    if (r.low > r.high) {
        return (range){0.0, 1.0};
    }
    if (r.low < r.high) {
        return r;
    }
    const double half = r.low != 0.0 ? fabs(r.low) / 2.0 : 1.0;
    return (range){r.low - half, r.high + half};
}

static axes axes_of(const report_curve *curves, int count)
{
    axes a = {{INFINITY, -INFINITY}, {INFINITY, -INFINITY}};
    for (int c = 0; c < count; c++) {
        for (int64_t i = 0; i < curves[c].count; i++) {
            if (!isnan(curves[c].y[i])) {
                include(&a.x, curves[c].x[i]);
                include(&a.y, curves[c].y[i]);
            }
        }
    }
    return (axes){widened(a.x), widened(a.y)};
}

static double at_x(const axes *a, double x)
{
    return LEFT + (x - a->x.low) / (a->x.high - a->x.low) * (WIDTH - LEFT - RIGHT);
}

static double at_y(const axes *a, double y)
{
    return HEIGHT - BOTTOM - (y - a->y.low) / (a->y.high - a->y.low) * (HEIGHT - TOP - BOTTOM);
}

/* The distance of ticks: 1, 2 or 5 times a power of ten. */
static double tick_of(range r)
{
    const double rough = (r.high - r.low) / TICKS, power = pow(10.0, floor(log10(rough)));
    const double first = rough / power;
    return power * (first < 1.5 ? 1.0 : first < 3.5 ? 2.0 : first < 7.5 ? 5.0 : 10.0);
}

static void write_axes(FILE *out, const axes *a)
{
    const double dx = tick_of(a->x), dy = tick_of(a->y);
    for (int i = 0; i <= 2 * TICKS; i++) {
        const double y = (ceil(a->y.low / dy) + i) * dy, x = (ceil(a->x.low / dx) + i) * dx;
        if (y <= a->y.high) {
            fprintf(out,
                    "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                    LEFT, WIDTH - RIGHT, at_y(a, y), at_y(a, y), LEFT - 6, at_y(a, y) + 4,
                    fabs(y) < dy / 2 ? 0.0 : y);
        }
        if (x <= a->x.high) {
            fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.6g</text>\n",
                    at_x(a, x), HEIGHT - BOTTOM + 18, x);
        }
    }
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">step</text>\n", WIDTH - RIGHT,
            HEIGHT - 6);
}

/* The mean of values from `i` on that fall into the same piece; *next is the first after it. A
 * value that is missing is a piece of its own. */
static void piece_of(const report_curve *c, const axes *a, int64_t i, int64_t *next, double *x,
                     double *y)
{
    const double width = (a->x.high - a->x.low) / PIECES;
    int64_t count = 1;
    *x = c->x[i];
    *y = c->y[i];
    while (i + count < c->count && !isnan(c->y[i]) && !isnan(c->y[i + count]) &&
           c->x[i + count] < c->x[i] + width) {
        *y += c->y[i + count];
        count++;
    }
    *y /= (double)count;
    *next = i + count;
}

static void write_line(FILE *out, const report_curve *c, const axes *a)
{
    bool open = false;
    fprintf(out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" d=\"",
            report_color(c->color));
    for (int64_t i = 0, next = 0; i < c->count; i = next) {
        double x, y;
        piece_of(c, a, i, &next, &x, &y);
        if (!isnan(y)) {
            fprintf(out, "%c%.1f %.1f", open ? 'L' : 'M', at_x(a, x), at_y(a, y));
        }
        open = !isnan(y);
    }
    fprintf(out, "\"/>\n");
}

static void write_points(FILE *out, const report_curve *c, const axes *a)
{
    for (int64_t i = 0, next = 0; i < c->count; i = next) {
        double x, y;
        piece_of(c, a, i, &next, &x, &y);
        if (!isnan(y)) {
            fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#fff\" stroke=\"%s\"/>\n",
                    at_x(a, x), at_y(a, y), report_color(c->color));
        }
    }
}

void report_plot(FILE *out, const char *title, const char *y_label, const report_curve *curves,
                 int count)
{
    const axes a = axes_of(curves, count);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" "
            "aria-label=\"%s\" font-family=\"sans-serif\" font-size=\"12\">\n"
            "<text x=\"%d\" y=\"16\" font-weight=\"bold\">%s</text>"
            "<text x=\"%d\" y=\"16\" text-anchor=\"end\">%s</text>\n",
            WIDTH, HEIGHT, title, LEFT, title, WIDTH - RIGHT, y_label);
    write_axes(out, &a);
    for (int c = 0; c < count; c++) {
        (curves[c].points ? write_points : write_line)(out, &curves[c], &a);
    }
    fprintf(out, "</svg>\n");
}
