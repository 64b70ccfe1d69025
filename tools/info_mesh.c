/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep info --mesh`: a mesh's ranks as a table, and the groups along its axes. */
#include <stdio.h>
#include <string.h>

#include "base/runtime.h"
#include "commands.h"
#include "dist/axes.h"

#define RANKS_SHOWN 4096

typedef struct drawing {
    ls__axes axes;
    int per_host;
    int ranks[RANKS_SHOWN]; /* scratch */
} drawing;

static int host_of(const drawing *d, int rank)
{
    return d->per_host > 0 ? rank / d->per_host : 0;
}

/* The rank, and with several hosts its host: "5@1". */
static void print_cell(const drawing *d, int rank)
{
    char cell[32];
    if (host_of(d, d->axes.ranks - 1) > 0) {
        snprintf(cell, sizeof cell, "%d@%d", rank, host_of(d, rank));
    } else {
        snprintf(cell, sizeof cell, "%d", rank);
    }
    printf(" %7s", cell);
}

/* The last axis runs to the right, the one before it downwards. */
static void print_table(const drawing *d, int first)
{
    const ls__axes *axes = &d->axes;
    const ls__axis *across = &axes->axis[axes->count - 1];
    const ls__axis *down = axes->count > 1 ? across - 1 : NULL;
    printf("%12s", "");
    for (int c = 0; c < across->size; c++) {
        char head[32];
        snprintf(head, sizeof head, "%.15s %d", c == 0 ? across->name : "", c);
        printf(" %7s", head);
    }
    printf("\n");
    for (int r = 0; r < (down != NULL ? down->size : 1); r++) {
        char head[32] = "";
        if (down != NULL) {
            snprintf(head, sizeof head, "%.15s %d", down->name, r);
        }
        printf("%12s", head);
        for (int c = 0; c < across->size; c++) {
            print_cell(d, first + r * across->size + c);
        }
        printf("\n");
    }
}

/* One table for each place along the axes before the last two. */
static void print_tables(const drawing *d)
{
    const ls__axes *axes = &d->axes;
    const int leading = axes->count > 2 ? axes->count - 2 : 0;
    const int each = leading > 0 ? axes->axis[leading - 1].stride : axes->ranks;
    for (int first = 0; first < axes->ranks; first += each) {
        printf("\n");
        for (int a = 0; a < leading; a++) {
            printf("%s%s %d", a > 0 ? ", " : "", axes->axis[a].name,
                   ls__axes_coordinate(axes, a, first));
        }
        printf("%s", leading > 0 ? "\n" : "");
        print_table(d, first);
    }
}

/* Whether the group of this rank along the axis has ranks on two hosts. */
static bool crosses(drawing *d, int axis, int rank)
{
    const int count = ls__axes_ranks(&d->axes, UINT32_C(1) << axis, rank, d->ranks);
    return host_of(d, d->ranks[0]) != host_of(d, d->ranks[count - 1]);
}

static void print_axis(drawing *d, int axis)
{
    const ls__axis *at = &d->axes.axis[axis];
    int crossing = 0, groups = 0;
    for (int r = 0; r < d->axes.ranks; r++) {
        if (ls__axes_coordinate(&d->axes, axis, r) == 0) {
            groups++;
            crossing += crosses(d, axis, r);
        }
    }
    const int count = ls__axes_ranks(&d->axes, UINT32_C(1) << axis, 0, d->ranks);
    printf("%-8s %5d %7d  %d of %d between hosts; the first is {", at->name, at->size, groups,
           crossing, groups);
    for (int i = 0; i < count && i < 8; i++) {
        printf("%s%d", i > 0 ? " " : "", d->ranks[i]);
    }
    printf("%s}\n", count > 8 ? " …" : "");
}

int print_mesh(const char *axes, int per_host)
{
    static drawing d;
    d.per_host = per_host;
    if (axes == NULL) {
        fprintf(stderr, "lockstep info: --per-host belongs to --mesh AXES\n");
        return 2;
    }
    if (ls__axes_parse(axes, 0, &d.axes) < 0) {
        fprintf(stderr, "lockstep info: %s\n", ls_error_message());
        return 2;
    }
    if (d.axes.ranks > RANKS_SHOWN) {
        fprintf(stderr, "lockstep info: mesh \"%s\" has %d ranks; at most %d are drawn\n", axes,
                d.axes.ranks, RANKS_SHOWN);
        return 2;
    }
    printf("mesh %s: %d ranks\n", axes, d.axes.ranks);
    print_tables(&d);
    printf("\naxis      size  groups\n");
    for (int a = 0; a < d.axes.count; a++) {
        print_axis(&d, a);
    }
    return 0;
}
