/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench pieces`: all-reduces as DDP makes them. A number of elements is summed in pieces
 * of one size, all of them started before the first is waited for; size after size, in turns, so
 * that a slow minute of the machine meets all sizes. Every result is checked. Under a launcher its
 * ranks take part, else -n ranks are started on this host. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "tools/cli/cli.h"

enum { ROUNDS_MAX = 100, CALLS_MAX = 65536 };

/* ---- options ------------------------------------------------------------------------------- */

static ls__bench_options given; /* sizes: elements of a piece */
static int64_t ranks, rounds, total;

static int parse_total(const cli_command *command, const cli_option *o, const char *text)
{
    return ls__bench_parse_count(command, o->name, text, &total);
}

static int parse_pieces(const cli_command *command, const cli_option *o, const char *text)
{
    return ls__bench_parse_counts(command, o->name, text, &given);
}

static const cli_option options[] = {
    {"total", CLI_READ, .read = parse_total, .value_name = "N", .fallback = "60M",
     .help = "elements of float32 that are summed in all"},
    {"pieces", CLI_READ, .read = parse_pieces, .value_name = "LIST", .fallback = "10K,1M,20M",
     .help = "elements of a call"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "ranks on this host"},
    {"algorithm", CLI_TEXT, &given.algorithm, .value_name = "NAME",
     .help = "of all_reduce instead of the library's choice"},
    {"transport", CLI_CHOICE, &given.transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"rounds", CLI_COUNT, &rounds, .low = 1, .high = ROUNDS_MAX, .help = "turns of each size"},
    {"json", CLI_TEXT, &given.json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench pieces",
    .about = "Times all-reduces of many elements in pieces, all started before any is waited for.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "A time is that from the first rank's first call to the last rank's last result, of all\n"
        "pieces together; the table has the median of the turns. Buffers are registered\n"
        "memory, as DDP's buckets, or private memory where the backend cannot register any. Under "
        "a\n"
        "launcher (`lockstep run ... lockstep bench pieces`) the ranks of the job take part.\n"};

/* -1, or the status to end with. */
static int parse(int argc, char **argv)
{
    given = (ls__bench_options){.operation = ls__bench_operation_find("all-reduce"),
                                .dtype = LS_FLOAT32,
                                .op = LS_SUM,
                                .sizes = {10000, 1000000, 20000000},
                                .size_count = 3};
    ranks = 2;
    rounds = 5;
    total = 60000000;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    given.ranks = (int)ranks;
    for (int s = 0; s < given.size_count; s++) {
        if ((total - 1) / given.sizes[s] + 1 > CALLS_MAX) {
            return cli_wrong(&command,
                             "--pieces: %lld elements in pieces of %lld are more than %d calls",
                             (long long)total, (long long)given.sizes[s], CALLS_MAX);
        }
    }
    return ls__bench_check_algorithm(&command, &given) == 0 ? -1 : CLI_WRONG_USE;
}

/* ---- measuring ----------------------------------------------------------------------------- */

typedef struct pieces {
    const ls__bench_data *data;
    const ls_collective_options *collective;
    float *memory; /* [total] */
    bool registered;
    ls_work *work[CALLS_MAX];
    double ms[LS__BENCH_SIZES_MAX][ROUNDS_MAX];
} pieces;

static ls_status reduce_all(pieces *p, int64_t piece)
{
    int calls = 0;
    for (int64_t at = 0; at < total; at += piece) {
        const int64_t count = total - at < piece ? total - at : piece;
        LS_TRY(ls_all_reduce(ls_world(), p->memory + at, p->memory + at, count, LS_FLOAT32, LS_SUM,
                             p->collective, &p->work[calls++]));
    }
    for (int i = 0; i < calls; i++) {
        LS_TRY(ls_work_wait(p->work[i]));
    }
    return LS_OK;
}

/* One turn of one size: its milliseconds on the slowest rank. Ranks leave a barrier within
 * microseconds of each other; clocks of different hosts are not compared. */
static ls_status turn(pieces *p, int64_t piece, double *ms)
{
    ls__bench_fill(p->data, ls_rank(), p->memory, total);
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = ls__bench_now_ms();
    LS_TRY(reduce_all(p, piece));
    *ms = ls__bench_now_ms() - begin;
    int64_t wrong = ls__bench_wrong(p->data, LS__BENCH_REDUCED, 0, p->memory, total);
    LS_TRY(ls_all_reduce(ls_world(), &wrong, &wrong, 1, LS_INT64, LS_SUM, NULL, NULL));
    LS_TRY(ls_all_reduce(ls_world(), ms, ms, 1, LS_FLOAT64, LS_MAX, NULL, NULL));
    return wrong == 0 ? LS_OK
                      : ls_fail(LS_ERR_INTERNAL,
                                "wrong results: %lld elements of all-reduces of %lld elements",
                                (long long)wrong, (long long)piece);
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Of the first turns. */
static json_t *row_of(const pieces *p, int s, int turns, json_t *machine)
{
    return json_pack("{s:s, s:I, s:I, s:i, s:i, s:s, s:s, s:f, s:o, s:O}", "name", "pieces",
                     "total", (json_int_t)total, "elements", (json_int_t)given.sizes[s], "calls",
                     (int)((total - 1) / given.sizes[s] + 1), "ranks", given.ranks, "buffers",
                     p->registered ? "registered" : "private", "algorithm",
                     given.algorithm != NULL ? given.algorithm : "chosen", "time_ms",
                     ls__bench_median(p->ms[s], turns), "round_ms", ls__bench_list(p->ms[s], turns),
                     "machine", machine);
}

static json_t *rows_of(const pieces *p, int turns)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    for (int s = 0; s < given.size_count; s++) {
        json_array_append_new(list, row_of(p, s, turns, machine));
    }
    json_decref(machine);
    return list;
}

static bool report(const pieces *p)
{
    printf("# all-reduce of %lld float32 in pieces, %d ranks, %s buffers; medians of %d turns\n",
           (long long)total, given.ranks, p->registered ? "registered" : "private", (int)rounds);
    printf("# %10s %8s %12s\n# %10s %8s %12s\n", "elements", "calls", "time", "a call", "", "(ms)");
    for (int s = 0; s < given.size_count; s++) {
        printf("  %10lld %8lld %12.3f\n", (long long)given.sizes[s],
               (long long)((total - 1) / given.sizes[s] + 1),
               ls__bench_median(p->ms[s], (int)rounds));
    }
    return ls__bench_dump(rows_of(p, (int)rounds), given.size_count, given.json);
}

/* ---- turns --------------------------------------------------------------------------------- */

static ls_status measure(pieces *p)
{
    double unused;
    for (int s = 0; s < given.size_count; s++) {
        LS_TRY(turn(p, given.sizes[s], &unused));
    }
    for (int r = 0; r < rounds; r++) {
        for (int s = 0; s < given.size_count; s++) {
            const int at = (s + r) % given.size_count; /* another is first each time */
            LS_TRY(turn(p, given.sizes[at], &p->ms[at][r]));
        }
        if (ls_rank() == 0) {
            ls__bench_keep(rows_of(p, r + 1), given.json);
        }
    }
    return LS_OK;
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    (void)arg;
    bool written = true;
    LS_CHECK(ls_init(NULL));
    given.ranks = ls_world_size();
    const size_t bytes = ((size_t)total * sizeof(float) + 63) / 64 * 64;
    pieces *p = calloc(1, sizeof *p);
    void *memory = NULL;
    ls__bench_data *data = ls__bench_data_new(&given, 1);
    if (p == NULL || data == NULL) {
        LS_CHECK(ls_fail(LS_ERR_MEMORY, "no memory"));
    }
    p->registered = ls_group_alloc(ls_world(), bytes, &memory) == LS_OK;
    p->memory = p->registered ? memory : aligned_alloc(64, bytes);
    if (p->memory == NULL) {
        LS_CHECK(ls_fail(LS_ERR_MEMORY, "no memory"));
    }
    p->data = data;
    p->collective = LS_OPTIONS(ls_collective_options, .algorithm = given.algorithm);
    LS_CHECK(measure(p));
    if (ls_rank() == 0) {
        written = report(p);
    }
    if (p->registered) {
        LS_CHECK(ls_group_dealloc(ls_world(), p->memory));
    } else {
        free(p->memory);
    }
    ls__bench_data_free(data);
    free(p);
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

int ls__bench_pieces(int argc, char **argv)
{
    const int ended = parse(argc, argv);
    return ended >= 0 ? ended
                      : ls__bench_start(given.transport, given.json, given.ranks, run_rank, NULL);
}
