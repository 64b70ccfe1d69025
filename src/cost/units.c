/* SPDX-License-Identifier: Apache-2.0 */
/* Units and lists (units.h). */
#include "cost/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit sizes[] = {{"", 1.0}, {"k", 0x1p10}, {"m", 0x1p20}, {"g", 0x1p30}, {NULL, 0.0}};
static const unit rates[] = {{"", 1.0},      {"k", 0x1p10},   {"m", 0x1p20},   {"g", 0x1p30},
                             {"kbit", 125},  {"mbit", 125e3}, {"gbit", 125e6}, {"kbyte", 1e3},
                             {"mbyte", 1e6}, {"gbyte", 1e9},  {"tbyte", 1e12}, {NULL, 0.0}};
static const unit times[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1.0}, {NULL, 0.0}};
static const unit flops[] = {
    {"mflop", 1e6}, {"gflop", 1e9}, {"tflop", 1e12}, {"pflop", 1e15}, {NULL, 0.0}};

/* Negative: it is no number with one of the units. */
static double parse_amount(const char *text, size_t length, const unit *units)
{
    char copy[64], *end;
    if (length == 0 || length >= sizeof copy || strchr("0123456789.", text[0]) == NULL) {
        return -1.0;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    if (strlen(copy) != length) {
        return -1.0;
    }
    const double number = strtod(copy, &end);
    for (const unit *u = units; u->name != NULL; u++) {
        if (strcasecmp(end, u->name) == 0 && isfinite(number)) {
            return number * u->factor;
        }
    }
    return -1.0;
}

double ls__amount_parse(const char *text, size_t length, bool rate)
{
    const double amount = parse_amount(text, length, rate ? rates : sizes);
    return amount > 0.0 && amount <= 1e15 ? amount : -1.0;
}

double ls__seconds_parse(const char *text, size_t length)
{
    return parse_amount(text, length, times);
}

double ls__flops_parse(const char *text, size_t length)
{
    const double amount = parse_amount(text, length, flops);
    return amount > 0.0 && amount <= 1e20 ? amount : -1.0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Up to the next comma, comment or end of a line, and past it. */
static void cut_item(ls__items *items, const char **item, size_t *length)
{
    const char *at = items->text, *end = at + items->bytes;
    while (at < end && *at != ',' && *at != '#' && *at != '\n') {
        at++;
    }
    *item = items->text;
    *length = (size_t)(at - items->text);
    while (at < end && *at == '#') {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        at = line != NULL ? line : end;
    }
    items->ended = at == end;
    at += at < end;
    items->bytes = (size_t)(end - at);
    items->text = at;
}

bool ls__items_next(ls__items *items, const char **item, size_t *length)
{
    items->lines = items->lines || memchr(items->text, '\n', items->bytes) != NULL;
    while (!items->ended) {
        cut_item(items, item, length);
        for (; *length > 0 && is_space(**item); --*length) {
            ++*item;
        }
        while (*length > 0 && is_space((*item)[*length - 1])) {
            --*length;
        }
        if (*length > 0 || !items->lines) {
            return true;
        }
    }
    return false;
}
