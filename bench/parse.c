/* The flags of `lockstep bench`. A wrong one is answered with what was found and what would do. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "bench.h"

static const char help[] =
    "usage: lockstep bench all-reduce [options]\n"
    "\n"
    "Times float32 sums over ranks of this host, in place, beside the memory floor: the same\n"
    "bytes read and written by as many processes with no communication at all.\n"
    "\n"
    "  -n, --ranks N        ranks (default 2)\n"
    "      --sizes LIST     bytes of the buffer, e.g. 1M,10M,100M (default); K, M, G are powers "
    "of\n"
    "                       1000, Ki, Mi, Gi of 1024\n"
    "      --buffers KIND   registered: memory that peers read in place (default)\n"
    "                       private: the rank's own memory\n"
    "      --samples N      timed samples a size (default 21)\n"
    "      --warmup N       samples before them (default 5, at least 5)\n"
    "      --json FILE      also write the rows to FILE\n"
    "  -h, --help           this text\n";

static int complain(const char *format, ...) LS__PRINTF(1, 2);
static int complain(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("lockstep bench: ", stderr);
    vfprintf(stderr, format, args);
    fputs("; see lockstep bench --help\n", stderr);
    va_end(args);
    return 2;
}

static int64_t unit_of(const char *text)
{
    static const struct {
        const char *name;
        int64_t unit;
    } units[] = {{"", 1},           {"B", 1},        {"K", 1000},     {"M", 1000000},
                 {"G", 1000000000}, {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(text, units[i].name) == 0) {
            return units[i].unit;
        }
    }
    return 0;
}

static int parse_size(const char *text, int64_t *bytes)
{
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const int64_t unit = unit_of(end);
    if (end == text || errno != 0 || number <= 0 || unit == 0 || number > INT64_MAX / 64 / unit) {
        return complain("--sizes: '%s' is no size; give bytes like 4096, 64K, 1M or 100M", text);
    }
    *bytes = number * unit;
    if (*bytes % (int64_t)sizeof(float) != 0) {
        return complain("--sizes: %s is no multiple of 4 bytes, the size of a float32", text);
    }
    return 0;
}

static int parse_sizes(const char *text, ls__bench_options *options)
{
    char list[512];
    if (strlen(text) >= sizeof list) {
        return complain("--sizes: the list is longer than %zu characters", sizeof list - 1);
    }
    memcpy(list, text, strlen(text) + 1);
    options->size_count = 0;
    char *rest = list;
    while (rest != NULL) {
        char *item = rest;
        rest = strchr(rest, ',');
        if (rest != NULL) {
            *rest++ = '\0';
        }
        if (options->size_count == LS__BENCH_SIZES_MAX) {
            return complain("--sizes: more than %d sizes", LS__BENCH_SIZES_MAX);
        }
        const int status = parse_size(item, &options->sizes[options->size_count++]);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int parse_number(const char *flag, const char *text, int low, int high, int *out)
{
    char *end = NULL;
    errno = 0;
    const long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < low || number > high) {
        return complain("%s: '%s' is no number from %d to %d", flag, text, low, high);
    }
    *out = (int)number;
    return 0;
}

static int parse_buffers(const char *text, ls__bench_options *options)
{
    options->registered = strcmp(text, "registered") == 0;
    if (!options->registered && strcmp(text, "private") != 0) {
        return complain("--buffers: '%s' is neither 'registered' nor 'private'", text);
    }
    return 0;
}

static bool is(const char *flag, const char *name, const char *other)
{
    return strcmp(flag, name) == 0 || (other != NULL && strcmp(flag, other) == 0);
}

static int parse_value(const char *flag, const char *value, ls__bench_options *options)
{
    if (is(flag, "--ranks", "-n")) {
        return parse_number(flag, value, 1, LS__BENCH_RANKS_MAX, &options->ranks);
    }
    if (is(flag, "--sizes", NULL)) {
        return parse_sizes(value, options);
    }
    if (is(flag, "--buffers", NULL)) {
        return parse_buffers(value, options);
    }
    if (is(flag, "--samples", NULL)) {
        return parse_number(flag, value, 1, LS__BENCH_SAMPLES_MAX, &options->samples);
    }
    if (is(flag, "--warmup", NULL)) {
        return parse_number(flag, value, 5, LS__BENCH_SAMPLES_MAX, &options->warmups);
    }
    if (is(flag, "--json", NULL)) {
        options->json = value;
        return 0;
    }
    return complain("unknown option '%s'", flag);
}

static bool takes_value(const char *flag)
{
    static const char *const flags[] = {"-n",        "--ranks",  "--sizes", "--buffers",
                                        "--samples", "--warmup", "--json"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(flag, flags[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The value of a flag: "--flag=value" or the next argument. */
static int parse_flag(int argc, char **argv, int *at, ls__bench_options *options)
{
    char flag[32];
    const char *equals = strchr(argv[*at], '=');
    const size_t length = equals ? (size_t)(equals - argv[*at]) : strlen(argv[*at]);
    if (length >= sizeof flag) {
        return complain("unknown option '%s'", argv[*at]);
    }
    memcpy(flag, argv[*at], length);
    flag[length] = '\0';
    if (!takes_value(flag)) {
        return complain("unknown option '%s'", argv[*at]);
    }
    if (equals != NULL) {
        return parse_value(flag, equals + 1, options);
    }
    if (*at + 1 >= argc) {
        return complain("%s needs a value", flag);
    }
    return parse_value(flag, argv[++*at], options);
}

int ls__bench_parse(int argc, char **argv, ls__bench_options *options, bool *done)
{
    *options = (ls__bench_options){.ranks = 2,
                                   .registered = true,
                                   .samples = 21,
                                   .warmups = 5,
                                   .sizes = {1000000, 10000000, 100000000},
                                   .size_count = 3};
    *done = false;
    for (int i = 0; i < argc; i++) {
        if (is(argv[i], "--help", "-h")) {
            fputs(help, stdout);
            *done = true;
            return 0;
        }
    }
    if (argc < 1 || argv[0][0] == '-') {
        return complain("say what to time: lockstep bench all-reduce");
    }
    if (strcmp(argv[0], "all-reduce") != 0 && strcmp(argv[0], "all_reduce") != 0) {
        return complain("'%s' is not known; there is all-reduce", argv[0]);
    }
    for (int i = 1; i < argc; i++) {
        const int status = parse_flag(argc, argv, &i, options);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}
