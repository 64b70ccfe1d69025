/* Rates and sizes on the command line of `lockstep plan pipeline`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tools/plan.h"

/* The factor of a unit; 0: there is none of this name. */
static double factor_of(const char *unit)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1.0},     {"kbit", 125.0},  {"mbit", 125e3},    {"gbit", 125e6},
                 {"k", 1024.0}, {"m", 1048576.0}, {"g", 1073741824.0}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(unit, units[i].name) == 0) {
            return units[i].factor;
        }
    }
    return 0.0;
}

double plan_parse_amount(const char *text, size_t length, bool rate)
{
    char copy[64], *end;
    if (length == 0 || length >= sizeof copy || strchr("0123456789.", text[0]) == NULL) {
        return -1.0;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    const double number = strtod(copy, &end), factor = factor_of(end);
    const bool bits = strlen(end) == 4;
    return factor > 0.0 && number > 0.0 && number * factor <= 1e15 && (rate || !bits)
               ? number * factor
               : -1.0;
}
