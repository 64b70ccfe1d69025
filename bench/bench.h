/* `lockstep bench`: how fast a collective is on this machine, beside the floor that memory sets.
 *
 *     command.c  the processes          parse.c   flags
 *     row.c      one size: samples      report.c  columns as of nccl-tests, JSON
 *     floor.c    which of floor_loop.c's variants runs
 *     which.c    the algorithm that ran
 */
#ifndef LS_BENCH_H
#define LS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/comm.h>

#define LS__BENCH_SIZES_MAX 64
#define LS__BENCH_RANKS_MAX 64
#define LS__BENCH_SAMPLES_MAX 1000

typedef struct ls__bench_options {
    int ranks;
    bool registered; /* buffers in memory that peers read in place; else the rank's own */
    int samples, warmups;
    int64_t sizes[LS__BENCH_SIZES_MAX]; /* bytes, a multiple of 4 */
    int size_count;
    const char *json; /* NULL: none */
} ls__bench_options;

typedef struct ls__bench_row {
    int64_t bytes, count;
    int calls;                   /* operations in one sample, back to back */
    double time_ms, time_spread; /* of one operation: median, (upper - lower quartile) / median */
    double floor_ms, floor_spread;
    int64_t wrong; /* elements of all ranks and samples that were not the sum */
    const char *algorithm;
} ls__bench_row;

/* Fills `options`; 0, or an exit status after it printed why (or the help: *done). */
int ls__bench_parse(int argc, char **argv, ls__bench_options *options, bool *done);

/* Measures one size on all ranks of `group`; collective. `shared` holds ranks * bytes that all
 * ranks of this program see. */
ls_status ls__bench_measure(ls_group *group, const ls__bench_options *options, int64_t bytes,
                            void *shared, ls__bench_row *row);

/* Name of the all-reduce algorithm that made this rank send and receive so many bytes in one
 * operation of `row`. */
const char *ls__bench_which(const ls__bench_row *row, int rank, int ranks, uint64_t sent,
                            uint64_t received);

/* x[s][i] of all n streams becomes their sum, i in [0,count): each stream is read and written
 * once, the least an all-reduce can do. */
void ls__bench_floor(float *const *x, int n, int64_t count);

void ls__bench_print_header(const ls__bench_options *options);
void ls__bench_print_row(const ls__bench_options *options, const ls__bench_row *row);
/* false after it printed why. */
bool ls__bench_write_json(const ls__bench_options *options, const ls__bench_row *rows, int count);

#endif
