/* SPDX-License-Identifier: Apache-2.0 */
/* Rows for people, in nccl-tests' columns, and as JSON: a list of rows, each with what it ran on.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"
#include "tools/cli/cli.h"
#include "tools/commands.h"

static double algorithm_bandwidth(const ls__bench_row *row) /* GB/s */
{
    return (double)row->bytes / row->time_ms * 1e-6;
}

static double bus_bandwidth(const ls__bench_options *options, const ls__bench_row *row)
{
    return algorithm_bandwidth(row) * options->operation->bus_factor(options->ranks);
}

static const char *op_name(const ls__bench_options *options)
{
    return options->operation->reduces ? ls_reduce_op_name(options->op) : "-";
}

void ls__bench_print_header(const ls__bench_options *options)
{
    const bool floor = ls__bench_has_floor(options);
    printf("# %s, %d ranks, %s buffers%s%s%s%s; medians of %d samples after %d warm-ups\n",
           options->operation->name, options->ranks, options->registered ? "registered" : "private",
           options->transport != NULL ? ", over " : "",
           options->transport != NULL ? options->transport : "",
           options->algorithm != NULL ? ", by " : "",
           options->algorithm != NULL ? options->algorithm : "", options->samples,
           options->warmups);
    if (floor) {
        printf("# floor: the same memory traffic by %d processes without any communication\n",
               options->ranks);
    }
    printf("# %10s %12s %8s %8s %10s %7s %8s %8s", "size", "count", "type", "redop", "time",
           "spread", "algbw", "busbw");
    printf(floor ? " %10s %7s\n" : "\n", "floor", "ratio");
    printf("# %10s %12s %8s %8s %10s %7s %8s %8s", "(B)", "(elements)", "", "", "(us)", "(%)",
           "(GB/s)", "(GB/s)");
    printf(floor ? " %10s %7s\n" : "\n", "(us)", "");
    fflush(stdout);
}

void ls__bench_print_row(const ls__bench_options *options, const ls__bench_row *row)
{
    printf("  %10lld %12lld %8s %8s %10.2f %7.1f %8.2f %8.2f", (long long)row->bytes,
           (long long)row->count, ls_dtype_name(options->dtype), op_name(options),
           row->time_ms * 1e3, row->time_spread * 100.0, algorithm_bandwidth(row),
           bus_bandwidth(options, row));
    if (ls__bench_has_floor(options)) {
        printf(" %10.2f %7.2f", row->floor_ms * 1e3, row->time_ms / row->floor_ms);
    }
    printf("\n");
    fflush(stdout);
}

json_t *ls__bench_machine(void)
{
    char cpu[256];
    processor_name(cpu, sizeof cpu);
    struct utsname system;
    if (uname(&system) != 0) {
        memset(&system, 0, sizeof system);
    }
    const long long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return json_pack("{s:s, s:I, s:I, s:s, s:s, s:s}", "cpu", cpu, "cores",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes",
                     (json_int_t)(pages * page), "system", system.sysname, "release",
                     system.release, "architecture", system.machine);
}

static json_t *row_json(const ls__bench_options *options, const ls__bench_row *row, json_t *machine)
{
    json_t *out = json_pack(
        "{s:s, s:I, s:I, s:i, s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:I, s:i, s:i, s:I, "
        "s:I, s:o, s:O}",
        "name", ls__operation_name(options->operation->operation), "bytes", (json_int_t)row->bytes,
        "count", (json_int_t)row->count, "ranks", options->ranks, "dtype",
        ls_dtype_name(options->dtype), "op", op_name(options), "buffers",
        options->registered ? "registered" : "private", "algorithm", row->algorithm, "transport",
        options->transport != NULL ? options->transport : "default", "time_ms", row->time_ms,
        "spread", row->time_spread, "algbw", algorithm_bandwidth(row), "busbw",
        bus_bandwidth(options, row), "wrong", (json_int_t)row->wrong, "samples", options->samples,
        "calls", row->calls, "sent_bytes", (json_int_t)row->sent, "received_bytes",
        (json_int_t)row->received, "samples_ms", ls__bench_list(row->samples_ms, row->shown),
        "machine", machine);
    if (out != NULL && ls__bench_has_floor(options)) {
        json_object_set_new(out, "floor_ms", json_real(row->floor_ms));
        json_object_set_new(out, "floor_spread", json_real(row->floor_spread));
        json_object_set_new(out, "ratio", json_real(row->time_ms / row->floor_ms));
    }
    return out;
}

bool ls__bench_dump(json_t *rows, int count, const char *path)
{
    const bool written = path == NULL || ((int)json_array_size(rows) == count &&
                                          cli_write_json(rows, path, JSON_INDENT(2)));
    json_decref(rows);
    if (!written) {
        fprintf(stderr, "lockstep bench: cannot write to %s\n", path);
    }
    return written;
}

void ls__bench_keep(json_t *rows, const char *path)
{
    if (path != NULL && json_array_size(rows) > 0) {
        (void)cli_write_json(rows, path, JSON_INDENT(2));
    }
    json_decref(rows);
}

static json_t *rows_json(const ls__bench_options *options, const ls__bench_row *rows, int count)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, row_json(options, &rows[i], machine));
    }
    json_decref(machine);
    return list;
}

bool ls__bench_write_json(const ls__bench_options *options, const ls__bench_row *rows, int count)
{
    return ls__bench_dump(rows_json(options, rows, count), count, options->json);
}

void ls__bench_keep_json(const ls__bench_options *options, const ls__bench_row *rows, int count)
{
    ls__bench_keep(rows_json(options, rows, count), options->json);
}
