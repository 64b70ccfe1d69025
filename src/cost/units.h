/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers with units, and lists of them: on command lines and in files of clusters and devices. */
#ifndef LS_COST_UNITS_H
#define LS_COST_UNITS_H

#include <stdbool.h>
#include <stddef.h>

/* "8g", or a number, of `length` characters, in bytes; as a rate also "1gbit" and "200gbyte", in
 * bytes a second. Negative: it is none of these. */
double ls__amount_parse(const char *text, size_t length, bool rate);
/* "5us", in seconds; 0 is allowed. Negative: it is no time. */
double ls__seconds_parse(const char *text, size_t length);
/* "312tflop", in operations a second. */
double ls__flops_parse(const char *text, size_t length);

/* The rest of a list: items with "," or ends of lines between them; "#" begins a comment, which
 * lasts until the end of the line. Of several lines, empty items are left out. */
typedef struct ls__items {
    const char *text;
    size_t bytes;
    bool ended, lines;
} ls__items;

/* The next item, without the spaces around it. False: there is none. */
bool ls__items_next(ls__items *items, const char **item, size_t *length);

#endif
