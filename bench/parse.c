/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `lockstep bench OPERATION`. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "comm/algorithm/registry.h"
#include "kernel/reduce/reduce.h"
#include "tools/cli/cli.h"

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

int ls__bench_parse_count(const cli_command *command, const char *name, const char *text,
                          int64_t *out)
{
    char *end = NULL;
    errno = 0;
    const long long number = strtoll(text, &end, 10);
    const int64_t unit = unit_of(end);
    if (end == text || errno != 0 || number <= 0 || unit == 0 || number > INT64_MAX / 64 / unit) {
        return cli_wrong(command, "--%s: \"%s\" is not a size; give one like 4096, 64K, 1M or 100M",
                         name, text);
    }
    *out = number * unit;
    return 0;
}

int ls__bench_parse_counts(const cli_command *command, const char *name, const char *text,
                           ls__bench_options *options)
{
    char list[512];
    if (strlen(text) >= sizeof list) {
        return cli_wrong(command, "--%s: the list is longer than %zu characters", name,
                         sizeof list - 1);
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
            return cli_wrong(command, "--%s: more than %d sizes", name, LS__BENCH_SIZES_MAX);
        }
        const int status =
            ls__bench_parse_count(command, name, item, &options->sizes[options->size_count++]);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int parse_sizes(const cli_command *command, const cli_option *o, const char *text)
{
    return ls__bench_parse_counts(command, o->name, text, o->value);
}

static int parse_dtype(const cli_command *command, const cli_option *o, const char *text)
{
    ls__bench_options *options = o->value;
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i < LS_DTYPE_COUNT; i++) {
        const char *name = ls_dtype_name((ls_dtype)i);
        if (strcmp(text, name) == 0) {
            options->dtype = (ls_dtype)i;
            return 0;
        }
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", name);
    }
    return cli_wrong(command, "--dtype: \"%s\" is not an element type; give one of %s", text,
                     names);
}

static int parse_op(const cli_command *command, const cli_option *o, const char *text)
{
    ls__bench_options *options = o->value;
    char names[256] = "";
    size_t used = 0;
    for (int i = 0; i <= LS_BXOR; i++) {
        const char *name = ls_reduce_op_name((ls_reduce_op)i);
        if (strcmp(text, name) == 0) {
            options->op = (ls_reduce_op)i;
            return 0;
        }
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", name);
    }
    return cli_wrong(command, "--op: \"%s\" is not an operator of a reduction; give one of %s",
                     text, names);
}

/* ---- the table ----------------------------------------------------------------------------- */

static ls__bench_options given; /* cli_parse fills it */
static int64_t ranks, samples, warmups;
static const char *buffers;

static const cli_option options_table[] = {
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host"},
    {"sizes", CLI_READ, &given, .read = parse_sizes, .value_name = "LIST",
     .fallback = "1M,10M,100M",
     .help =
         "bytes of the larger buffer of a rank; K, M, G are powers of 1000, Ki, Mi, Gi of 1024"},
    {"buffers", CLI_CHOICE, &buffers, .choices = "registered|private", .value_name = "KIND",
     .help = "registered: memory that peers read in place; private: the rank's own memory"},
    {"transport", CLI_CHOICE, &given.transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"algorithm", CLI_TEXT, &given.algorithm, .value_name = "NAME",
     .fallback = "chosen for each size", .help = "the algorithm"},
    {"dtype", CLI_READ, &given, .read = parse_dtype, .value_name = "NAME", .fallback = "float32",
     .help =
         "element type: float32, float64, float16, bfloat16, int8, uint8, int32, int64, bool ..."},
    {"op", CLI_READ, &given, .read = parse_op, .value_name = "NAME", .fallback = "sum",
     .help = "operator of reductions: sum, product, min, max, avg, band, bor, bxor"},
    {"samples", CLI_COUNT, &samples, .low = 1, .high = LS__BENCH_SAMPLES_MAX,
     .help = "timed samples for each size"},
    {"warmup", CLI_COUNT, &warmups, .low = 1, .high = LS__BENCH_SAMPLES_MAX,
     .help = "samples before them"},
    {"json", CLI_TEXT, &given.json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench",
    .about = "Times one operation on several ranks, size after size, and checks every result.",
    .operands = "OPERATION",
    .options = options_table,
    .count = (int)(sizeof options_table / sizeof *options_table),
    .more =
        "OPERATION: all-reduce, all-gather, reduce-scatter, broadcast, all-to-all, sendrecv (a\n"
        "ring), reduce, gather, scatter, barrier. The root is rank 0. With uneven blocks (rank "
        "r's\n"
        "has r+1 parts of 1+2+...+N): all-gather-v, reduce-scatter-v, gather-v, scatter-v,\n"
        "all-to-all-v (that of r for j: 1 + (r+j) mod N parts).\n"
        "`lockstep bench step` times training steps in one process, `lockstep bench ddp` on\n"
        "ranks, `lockstep bench replay` on ranks without a network, `lockstep bench pieces` many\n"
        "all-reduces in flight, `lockstep bench pipeline` the idle time of pipeline schedules,\n"
        "`lockstep bench mesh` a GPT divided between and within operators, `lockstep bench\n"
        "experts` a mixture of experts beside its dense twin.\n"
        "Under a launcher (`lockstep run ... lockstep bench all-reduce`, mpirun) the ranks of the\n"
        "job take part.\n"
        "\n"
        "A sample lasts from the first rank's start to the last one's end; time is the median,\n"
        "spread the distance of the quartiles. algbw is size / time, busbw what one link would\n"
        "carry (nccl-tests). A float32 sum of -n ranks over shared memory stands beside the "
        "memory\n"
        "floor: the same bytes read and written by as many processes with no communication at "
        "all.\n"};

int ls__bench_check_algorithm(const cli_command *of, const ls__bench_options *options)
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
    return cli_wrong(of, "--algorithm: %s has no '%s'; there is %s", options->operation->name,
                     options->algorithm, names);
}

/* Checks of all flags together. */
static int check(const ls__bench_options *options)
{
    const char *dtype = ls_dtype_name(options->dtype);
    const int64_t width = (int64_t)ls_dtype_size(options->dtype);
    if (options->ranks > LS__BENCH_RANKS_MAX) {
        return cli_wrong(&command, "the launcher's job has %d ranks; start %d or fewer",
                         options->ranks, LS__BENCH_RANKS_MAX);
    }
    if (options->operation->reduces && !ls__reduce_supported(options->dtype, options->op)) {
        return cli_wrong(&command, "--op: there is no %s of %s", ls_reduce_op_name(options->op),
                         dtype);
    }
    for (int i = 0; i < options->size_count && options->operation->out != LS__BENCH_NONE; i++) {
        const int64_t bytes = options->sizes[i];
        if (bytes % width != 0) {
            return cli_wrong(&command,
                             "--sizes: %lld is not a multiple of %lld bytes, the size of a %s",
                             (long long)bytes, (long long)width, dtype);
        }
        if (ls__bench_count(options, bytes) == 0) {
            return cli_wrong(&command,
                             "--sizes: %lld bytes are less than a %s for each of %d ranks",
                             (long long)bytes, dtype, options->ranks);
        }
    }
    return ls__bench_check_algorithm(&command, options);
}

static int parse_operation(const char *text, ls__bench_options *options)
{
    char names[256];
    ls__bench_operation_names(names, sizeof names);
    if (text == NULL) {
        return cli_wrong(&command, "say what to time: %s", names);
    }
    options->operation = ls__bench_operation_find(text);
    if (options->operation == NULL) {
        return cli_wrong(&command, "\"%s\" is not known; there is %s", text, names);
    }
    return 0;
}

int ls__bench_parse(int argc, char **argv, ls__bench_options *options, bool *done)
{
    given = (ls__bench_options){.sizes = {1000000, 10000000, 100000000}, .size_count = 3};
    ranks = 2;
    samples = 21;
    warmups = 5;
    buffers = "registered";
    const int first = cli_parse(&command, argc, argv);
    *done = first < 0;
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first > 1) {
        return cli_wrong(&command, "unexpected argument \"%s\"", argv[first + 1]);
    }
    const int status = parse_operation(first < argc ? argv[first] : NULL, &given);
    const int job = ls__bench_job_size();
    given.joins = job > 0;
    given.ranks = given.joins ? job : (int)ranks;
    given.samples = (int)samples;
    given.warmups = (int)warmups;
    given.registered = strcmp(buffers, "registered") == 0;
    *options = given;
    if (status == 0 && options->operation->out == LS__BENCH_NONE) {
        options->size_count = 1; /* it moves nothing: once will do */
    }
    return status == 0 ? check(options) : status;
}
