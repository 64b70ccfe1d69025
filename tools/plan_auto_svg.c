/* SPDX-License-Identifier: Apache-2.0 */
/* The best plan of each mesh as a picture: a bar for each, as long as its step, divided into what
 * the step consists of. */
#include "plan/auto.h"
#include "tools/plan.h"

#define ROW 30
#define LEFT 150
#define WIDTH 560.0 /* of the longest bar */
#define TOP 64
#define ROWS_MAX 24

typedef struct piece {
    const char *name, *color;
} piece;

static const piece pieces[] = {
    {"compute", "#4c78a8"},    {"tp", "#9ecae9"},         {"cp exposed", "#72b7b2"},
    {"ep", "#9d755d"},         {"pp exposed", "#b279a2"}, {"bubble", "#d8d8d8"},
    {"dp exposed", "#e45756"}, {"optimizer", "#54a24b"},  {"gather", "#e9a23b"}};
#define PIECES ((int)(sizeof pieces / sizeof *pieces))

static double seconds_of(const ls__auto_plan *p, int index)
{
    const double all[PIECES] = {p->compute,    p->tp_seconds, p->cp_seconds,
                                p->ep_seconds, p->pp_seconds, p->bubble,
                                p->dp_seconds, p->optimizer,  p->gather};
    return all[index];
}

static void write_legend(FILE *out)
{
    for (int k = 0; k < PIECES; k++) {
        const int x = LEFT + k * 80;
        fprintf(out,
                "<rect x=\"%d\" y=\"34\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                "<text x=\"%d\" y=\"46\">%s</text>\n",
                x, pieces[k].color, x + 18, pieces[k].name);
    }
}

static void write_bar(FILE *out, const ls__auto_mesh *m, int row, double longest)
{
    char mesh[LS__AUTO_MESH_BYTES];
    const int y = TOP + row * ROW;
    double x = LEFT;
    fprintf(out, "<text x=\"4\" y=\"%d\">%s</text>\n", y + 17, ls__auto_mesh_text(&m->best, mesh));
    for (int k = 0; k < PIECES; k++) {
        const double width = WIDTH * seconds_of(&m->best, k) / longest;
        if (width > 0.0) {
            fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n",
                    x, y, width, ROW - 6, pieces[k].color);
            x += width;
        }
    }
    fprintf(out, "<text x=\"%.2f\" y=\"%d\">%.4g ms, %.4g MB</text>\n", x + 6, y + 17,
            m->best.step * 1e3, m->best.memory * 1e-6);
}

bool plan_write_auto_svg(FILE *out, const ls__auto_result *found, const char *title)
{
    int rows = 0;
    while (rows < found->meshes && rows < ROWS_MAX && found->mesh[rows].exists) {
        rows++;
    }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<text x=\"4\" y=\"18\">%s: the best plan of each mesh</text>\n",
            LEFT + WIDTH + 160, TOP + rows * ROW + 4, title);
    write_legend(out);
    for (int i = 0; i < rows; i++) {
        write_bar(out, &found->mesh[i], i, found->mesh[rows - 1].best.step);
    }
    fprintf(out, "</svg>\n");
    return ferror(out) == 0;
}
