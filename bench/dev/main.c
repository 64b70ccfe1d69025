/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements for developers of the library: build/bench/dev/measure NAME ... */
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

static int page(int argc, char **argv)
{
    (void)argv;
    return argc == 0 ? ls__bench_page() : 2;
}

static int lines(int argc, char **argv)
{
    (void)argv;
    return argc == 0 ? ls__bench_lines() : 2;
}

static const struct {
    const char *name, *about;
    int (*run)(int argc, char **argv); /* the arguments after the name */
} measurements[] = {
    {"algorithms", "docs/algorithms.md: all algorithms, counted", page},
    {"cost-table", "[-n K]: the lectures' table of steps and bandwidths, counted",
     ls__bench_cost_table},
    {"tuner", "[--json FILE]: the chosen algorithm beside the best, at all sizes", ls__bench_tuner},
    {"lines", "the time of a cache line that two cores write and read in turn", lines},
    {"protections", "[-n N]: the cost of protections over a bare loop", ls__bench_protections},
};

int main(int argc, char **argv)
{
    const size_t count = sizeof measurements / sizeof *measurements;
    for (size_t i = 0; argc > 1 && i < count; i++) {
        if (strcmp(argv[1], measurements[i].name) == 0) {
            return measurements[i].run(argc - 2, argv + 2);
        }
    }
    fputs("usage: measure NAME ...\n\n", stderr);
    for (size_t i = 0; i < count; i++) {
        fprintf(stderr, "  %-12s %s\n", measurements[i].name, measurements[i].about);
    }
    return 2;
}
