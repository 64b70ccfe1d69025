/* SPDX-License-Identifier: Apache-2.0 */
/* ls_print: a tensor as torch would show it, rows of long dimensions left out in the middle.
 *
 *     tensor([[ 1.0000,  2.5000],
 *             [-3.0000,  4.0000]], float32 [2,2])
 *
 * Two passes over the row-major elements: `measure` finds one format and one width for all
 * cells, `elements` prints them with an odometer over the indices. Dimensions longer than 2
 * EDGE_ITEMS show that many at each end, but only if the tensor has more than SUMMARISE_FROM
 * elements. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "tensor/convert.h"
#include "tensor/op.h"

#define SUMMARISE_FROM 1000 /* elements, as in torch */
#define EDGE_ITEMS 3
#define CELL_BYTES 32

typedef struct printer {
    const ls__record *record;
    const void *data; /* row-major; borrowed from ls_print */
    bool summarised;  /* long dimensions are shown by their ends only */
    bool fractions;   /* some element is not a whole number: four decimals */
    bool scientific;  /* four decimals and an exponent */
    int width;        /* of the longest cell, in characters; others are padded on the left */
} printer;

/* Types whose cells have a decimal point. */
static bool is_float(ls_dtype dtype)
{
    return dtype == LS_FLOAT32 || dtype == LS_FLOAT64 || dtype == LS_FLOAT16 ||
           dtype == LS_BFLOAT16;
}

/* Writes element i as text without padding; returns its length. Integers of 64 bits are printed
 * as they are, because a double does not hold all of them. */
static int cell(const printer *p, int64_t i, char out[CELL_BYTES])
{
    ls_dtype dtype = (ls_dtype)p->record->dtype;
    double value = ls__convert_load(p->data, dtype, i);
    if (dtype == LS_INT64) {
        return snprintf(out, CELL_BYTES, "%" PRId64, ((const int64_t *)p->data)[i]);
    }
    if (dtype == LS_UINT64) {
        return snprintf(out, CELL_BYTES, "%" PRIu64, ((const uint64_t *)p->data)[i]);
    }
    if (dtype == LS_BOOL) {
        return snprintf(out, CELL_BYTES, "%s", value != 0.0 ? "true" : "false");
    }
    if (!is_float(dtype)) {
        return snprintf(out, CELL_BYTES, "%.0f", value);
    }
    if (!isfinite(value)) {
        return snprintf(out, CELL_BYTES, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    }
    return snprintf(out, CELL_BYTES,
                    p->scientific  ? "%.4e"
                    : p->fractions ? "%.4f"
                                   : "%.0f.",
                    value);
}

/* Whether index i of dimension d falls into the gap of a summarised dimension. */
static bool left_out(const printer *p, int d, int64_t i)
{
    return p->summarised && p->record->dim[d] > 2 * EDGE_ITEMS && i >= EDGE_ITEMS &&
           i < p->record->dim[d] - EDGE_ITEMS;
}

/* Sets format and width. As torch: exponents from 1e8 on and, if some number is not whole, below
 * 1e-4 or where numbers differ by more than a factor of 1000. */
static void measure(printer *p)
{
    double largest = 0.0, smallest = INFINITY;
    char text[CELL_BYTES];
    for (int64_t i = 0; i < p->record->numel; i++) {
        double value = fabs(ls__convert_load(p->data, (ls_dtype)p->record->dtype, i));
        if (isfinite(value) && value > 0.0) {
            largest = fmax(largest, value);
            smallest = fmin(smallest, value);
            p->fractions = p->fractions || value != floor(value);
        }
    }
    p->scientific =
        largest >= 1e8 || (p->fractions && (smallest < 1e-4 || largest > 1000.0 * smallest));
    for (int64_t i = 0; i < p->record->numel; i++) {
        int width = cell(p, i, text);
        LS_ASSERT(width > 0 && width < CELL_BYTES); /* no cell was cut */
        p->width = width > p->width ? width : p->width;
    }
}

/* Aligns a new line with the elements of the line above: below "tensor(" and one bracket for
 * each outer dimension. */
static void indent(int changed)
{
    fputs("        ", stdout);
    for (int d = 0; d < changed; d++) {
        fputc(' ', stdout);
    }
}

/* Prints the text between two elements: brackets closed, a comma, line breaks, brackets opened.
 * `changed` is the outermost dimension whose index moved; `gap`: some elements were left out. */
static void separate(int ndim, int changed, bool gap)
{
    if (changed == ndim - 1) {
        fputs(gap ? ", ..., " : ", ", stdout);
        return;
    }
    for (int d = ndim - 1; d > changed; d--) {
        fputc(']', stdout);
    }
    fputc(',', stdout);
    for (int d = ndim - 1; d > changed; d--) {
        fputc('\n', stdout);
    }
    if (gap) {
        indent(changed);
        fputs("...,\n", stdout);
    }
    indent(changed);
    for (int d = ndim - 1; d > changed; d--) {
        fputc('[', stdout);
    }
}

/* Moves to the next shown element; returns the outermost dimension that moved, -1 at the end. */
static int advance(const printer *p, int64_t at[LS_DIMS_MAX], bool *gap)
{
    *gap = false;
    for (int d = p->record->ndim - 1; d >= 0; d--) {
        if (++at[d] < p->record->dim[d]) {
            if (left_out(p, d, at[d])) {
                at[d] = p->record->dim[d] - EDGE_ITEMS;
                *gap = true;
            }
            return d;
        }
        at[d] = 0;
    }
    return -1;
}

/* Position of the element `at` in the row-major data. */
static int64_t flat_index(const printer *p, const int64_t at[LS_DIMS_MAX])
{
    int64_t index = 0;
    for (int d = 0; d < p->record->ndim; d++) {
        index = index * p->record->dim[d] + at[d];
    }
    return index;
}

/* Prints all shown elements. There is no recursion over the dimensions: `at` is a counter of
 * LS_DIMS_MAX digits, whose carry says how many brackets to close. */
static void elements(const printer *p)
{
    int64_t at[LS_DIMS_MAX] = {0};
    char text[CELL_BYTES];
    int moved = p->record->numel > 0 ? 0 : -1;
    for (bool first = true, gap = false; moved >= 0; first = false) {
        if (!first) {
            separate(p->record->ndim, moved, gap);
        }
        (void)cell(p, flat_index(p, at), text);
        for (int pad = (int)strlen(text); pad < p->width; pad++) {
            fputc(' ', stdout);
        }
        fputs(text, stdout);
        moved = advance(p, at, &gap);
    }
}

/* To stdout; large tensors are summarised as in torch. */
ls_status ls_print(ls_tensor *t)
{
    ls__call call;
    if (!ls__call_begin(&call, "print", 1, &t)) {
        return ls__self.status;
    }
    ls__dense dense = ls__call_dense(&call, 0);
    if (dense.storage == NULL) {
        return ls__self.status;
    }
    const ls__record *record = call.in[0];
    ls__host_view view;
    const size_t bytes = (size_t)record->numel * ls_dtype_size((ls_dtype)record->dtype);
    if (ls__host_view_open(call.on, dense.data, bytes, &view) < 0) {
        ls__dense_drop(&dense);
        return ls__self.status;
    }
    printer p = {.record = record, .data = view.data};
    p.summarised = record->numel > SUMMARISE_FROM;
    measure(&p);
    fputs("tensor(", stdout);
    for (int d = 0; d < record->ndim; d++) {
        fputc('[', stdout);
    }
    elements(&p);
    for (int d = 0; d < record->ndim; d++) {
        fputc(']', stdout);
    }
    fputs(", ", stdout);
    fputs(ls_dtype_name((ls_dtype)record->dtype), stdout);
    fputs(" ", stdout);
    fputs(ls__record_print(record).text, stdout);
    fputs(")\n", stdout);
    ls__host_view_close(&view, false);
    ls__dense_drop(&dense);
    return LS_OK;
}
