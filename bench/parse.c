/* The flags of `lockstep bench`. A wrong one is answered with what was found and what would do. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "bench.h"
#include "kernel/reduce/reduce.h"

static const char help[] =
    "usage: lockstep bench OPERATION [options]\n"
    "       lockstep bench cost-table [-n K]   the lectures' table of steps and bandwidths, "
    "counted\n"
    "       lockstep bench algorithms          docs/algorithms.md: all algorithms, counted\n"
    "       lockstep bench tuner [--json FILE] what is chosen beside the best, at all sizes\n"
    "       lockstep bench protections [-n N]  what is added to a bare loop over the same memory\n"
    "       lockstep bench step --model NAME   training steps in one process, by operation\n"
    "\n"
    "Times one operation on ranks of this host, size after size, and checks every result.\n"
    "OPERATION: all-reduce, all-gather, reduce-scatter, broadcast, all-to-all, sendrecv (a\n"
    "ring), reduce, gather, scatter, barrier. The root is rank 0. With uneven blocks, of which "
    "rank\n"
    "r's has r+1 parts of 1+2+...+N: all-gather-v, reduce-scatter-v, gather-v, scatter-v,\n"
    "all-to-all-v (r's for j: 1 + (r+j) mod N parts).\n"
    "\n"
    "  -n, --ranks N        ranks (default 2)\n"
    "      --sizes LIST     bytes of the larger buffer of a rank, e.g. 1M,10M,100M (default); K, "
    "M,\n"
    "                       G are powers of 1000, Ki, Mi, Gi of 1024\n"
    "      --buffers KIND   registered: memory that peers read in place (default)\n"
    "                       private: the rank's own memory\n"
    "      --transport T    shm: shared memory; tcp: as if every rank had a host of its own\n"
    "                       (default: as the environment says, else shm)\n"
    "      --algorithm NAME the algorithm (default: chosen for each size)\n"
    "      --dtype NAME     float32 (default), float64, float16, bfloat16, int8, uint8, int32,\n"
    "                       int64 or bool\n"
    "      --op NAME        of reductions: sum (default), product, min, max, avg, band, bor, bxor\n"
    "      --samples N      timed samples a size (default 21)\n"
    "      --warmup N       samples before them (default 5, at least 5)\n"
    "      --json FILE      also write the rows to FILE\n"
    "  -h, --help           this text\n"
    "\n"
    "A sample lasts from the first rank's start to the last one's end; time is the median, spread\n"
    "the quartiles' distance. algbw is size / time, busbw what one link would carry (nccl-tests).\n"
    "A float32 sum over shared memory stands beside the memory floor: the same bytes read and\n"
    "written by as many processes with no communication at all.\n";

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

static int parse_transport(const char *text, ls__bench_options *options)
{
    if (strcmp(text, "shm") != 0 && strcmp(text, "tcp") != 0) {
        return complain("--transport: '%s' is neither 'shm' nor 'tcp'", text);
    }
    options->transport = text;
    return 0;
}

static int parse_dtype(const char *text, ls__bench_options *options)
{
    for (int i = 0; i < LS_DTYPE_COUNT; i++) {
        if (strcmp(text, ls_dtype_name((ls_dtype)i)) == 0) {
            options->dtype = (ls_dtype)i;
            return 0;
        }
    }
    return complain("--dtype: '%s' is no element type", text);
}

static int parse_op(const char *text, ls__bench_options *options)
{
    for (int i = 0; i <= LS_BXOR; i++) {
        if (strcmp(text, ls_reduce_op_name((ls_reduce_op)i)) == 0) {
            options->op = (ls_reduce_op)i;
            return 0;
        }
    }
    return complain("--op: '%s' is no operator of a reduction", text);
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
    if (is(flag, "--transport", NULL)) {
        return parse_transport(value, options);
    }
    if (is(flag, "--dtype", NULL)) {
        return parse_dtype(value, options);
    }
    if (is(flag, "--op", NULL)) {
        return parse_op(value, options);
    }
    if (is(flag, "--algorithm", NULL)) {
        options->algorithm = value;
        return 0;
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
    static const char *const flags[] = {"-n",          "--ranks",     "--sizes", "--buffers",
                                        "--transport", "--algorithm", "--dtype", "--op",
                                        "--samples",   "--warmup",    "--json"};
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

static int check_algorithm(const ls__bench_options *options)
{
    const ls__operation operation = options->operation->operation;
    if (options->algorithm == NULL || ls__algorithm_find(operation, options->algorithm) != NULL) {
        return 0;
    }
    char names[256] = "no choice";
    int count = 0;
    size_t used = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    for (int a = 0; a < count && used < sizeof names; a++) {
        if (all[a]->operation == operation) {
            const int length = snprintf(names + used, sizeof names - used, "%s%s",
                                        used > 0 ? ", " : "", all[a]->name);
            used += length > 0 ? (size_t)length : 0;
        }
    }
    return complain("--algorithm: %s has no '%s'; there is %s", options->operation->name,
                    options->algorithm, names);
}

/* What only the whole of the flags tells. */
static int check(const ls__bench_options *options)
{
    const char *dtype = ls_dtype_name(options->dtype);
    const int64_t width = (int64_t)ls_dtype_size(options->dtype);
    if (options->operation->reduces && !ls__reduce_supported(options->dtype, options->op)) {
        return complain("--op: there is no %s of %s", ls_reduce_op_name(options->op), dtype);
    }
    for (int i = 0; i < options->size_count && options->operation->out != LS__BENCH_NONE; i++) {
        const int64_t bytes = options->sizes[i];
        if (bytes % width != 0) {
            return complain("--sizes: %lld is no multiple of %lld bytes, the size of a %s",
                            (long long)bytes, (long long)width, dtype);
        }
        if (ls__bench_count(options, bytes) == 0) {
            return complain("--sizes: %lld bytes are less than a %s for each of %d ranks",
                            (long long)bytes, dtype, options->ranks);
        }
    }
    return check_algorithm(options);
}

static int parse_operation(const char *text, ls__bench_options *options)
{
    char names[256];
    ls__bench_operation_names(names, sizeof names);
    if (text == NULL || text[0] == '-') {
        return complain("say what to time: %s", names);
    }
    options->operation = ls__bench_operation_find(text);
    if (options->operation == NULL) {
        return complain("'%s' is not known; there is %s", text, names);
    }
    return 0;
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
    int status = parse_operation(argc < 1 ? NULL : argv[0], options);
    for (int i = 1; i < argc && status == 0; i++) {
        status = parse_flag(argc, argv, &i, options);
    }
    if (status == 0 && options->operation->out == LS__BENCH_NONE) {
        options->size_count = 1; /* it moves nothing: once will do */
    }
    return status == 0 ? check(options) : status;
}
