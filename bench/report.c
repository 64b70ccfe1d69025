/* Rows for people, in nccl-tests' columns, and as JSON: a list of rows, each with what it ran on.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"
#include "tools/commands.h"

static double algorithm_bandwidth(const ls__bench_row *row) /* GB/s */
{
    return (double)row->bytes / row->time_ms * 1e-6;
}

/* What one link would carry: an all-reduce moves 2(n-1)/n of the buffer through each rank. */
static double bus_bandwidth(const ls__bench_options *options, const ls__bench_row *row)
{
    return algorithm_bandwidth(row) * 2.0 * (options->ranks - 1) / options->ranks;
}

void ls__bench_print_header(const ls__bench_options *options)
{
    printf("# all-reduce, %d ranks, %s buffers, in place; medians of %d samples after %d warm-ups\n"
           "# floor: the same memory traffic by %d processes without any communication\n",
           options->ranks, options->registered ? "registered" : "private", options->samples,
           options->warmups, options->ranks);
    printf("# %10s %12s %8s %6s %10s %8s %8s %7s %10s %7s\n", "size", "count", "type", "redop",
           "time", "algbw", "busbw", "#wrong", "floor", "ratio");
    printf("# %10s %12s %8s %6s %10s %8s %8s %7s %10s %7s\n", "(B)", "(elements)", "", "", "(us)",
           "(GB/s)", "(GB/s)", "", "(us)", "");
    fflush(stdout);
}

void ls__bench_print_row(const ls__bench_options *options, const ls__bench_row *row)
{
    printf("  %10lld %12lld %8s %6s %10.1f %8.2f %8.2f %7lld %10.1f %7.2f\n", (long long)row->bytes,
           (long long)row->count, "float32", "sum", row->time_ms * 1e3, algorithm_bandwidth(row),
           bus_bandwidth(options, row), (long long)row->wrong, row->floor_ms * 1e3,
           row->time_ms / row->floor_ms);
    fflush(stdout);
}

static json_t *machine_json(void)
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
        "{s:s, s:I, s:I, s:i, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:i, "
        "s:i, s:O}",
        "name", "all_reduce", "bytes", (json_int_t)row->bytes, "count", (json_int_t)row->count,
        "ranks", options->ranks, "dtype", "float32", "op", "sum", "buffers",
        options->registered ? "registered" : "private", "algorithm", row->algorithm, "time_ms",
        row->time_ms, "floor_ms", row->floor_ms, "ratio", row->time_ms / row->floor_ms, "spread",
        row->time_spread, "floor_spread", row->floor_spread, "algbw", algorithm_bandwidth(row),
        "busbw", bus_bandwidth(options, row), "wrong", (json_int_t)row->wrong, "samples",
        options->samples, "calls", row->calls, "machine", machine);
    return out;
}

bool ls__bench_write_json(const ls__bench_options *options, const ls__bench_row *rows, int count)
{
    json_t *list = json_array(), *machine = machine_json();
    for (int i = 0; i < count; i++) {
        json_array_append_new(list, row_json(options, &rows[i], machine));
    }
    const bool written = (int)json_array_size(list) == count &&
                         json_dump_file(list, options->json, JSON_INDENT(2)) == 0;
    json_decref(list);
    json_decref(machine);
    if (!written) {
        fprintf(stderr, "lockstep bench: cannot write the rows to %s\n", options->json);
    }
    return written;
}
