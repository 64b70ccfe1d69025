/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench`: how fast an operation is on this machine; the all-reduce also beside the floor
 * that memory sets.
 *
 *     command.c    the processes          parse.c   flags
 *     row.c        one size: samples      report.c  columns as of nccl-tests, JSON
 *     operation.c  what can be timed      data.c    operands, and what must come out
 *     blocks.c     a block for each rank
 *     floor.c      which of floor_loop.c's variants runs
 *     which.c      the algorithm that ran
 *     step.c       training steps of nets.c   profile.c their operations    peak.c the machine
 *     ddp.c        training steps under DDP   replay.c  the same without a network
 *     pieces.c     all-reduces in pieces      digits.c  training that skips them
 *     pipeline.c   idle time of schedules     learn.c   time to a held-out loss   tasks.c  of what
 *     mesh.c       the same of meshes         experts.c steps of a mixture of experts
 *     straggler.c  the same where one worker is slow  times.c   medians
 *
 * Developers' measurements lie in dev/: closed forms and docs/algorithms.md, the tuner,
 * protections, kernels, links.
 */
#ifndef LS_BENCH_H
#define LS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/lockstep.h>

#include "comm/program/program.h"

#define LS__BENCH_SIZES_MAX 64
#define LS__BENCH_RANKS_MAX 64
#define LS__BENCH_SAMPLES_MAX 1000
#define LS__BENCH_SHOWN_MAX 16 /* of them in a row of JSON */

/* ---- operations ---------------------------------------------------------------------------- */

typedef struct ls__bench_blocks {
    int64_t counts[LS__BENCH_RANKS_MAX], offsets[LS__BENCH_RANKS_MAX]; /* elements */
    int64_t total;
} ls__bench_blocks;

typedef struct ls__bench_call { /* the arguments of an operation */
    ls_group *group;
    void *in, *out; /* `in` is not used by operations in place */
    int64_t count;  /* of this rank's block */
    ls__bench_blocks blocks;
    ls_dtype dtype;
    ls_reduce_op op;
    const ls_collective_options *options;
} ls__bench_call;

typedef enum ls__bench_shape { /* elements of a buffer */
                               LS__BENCH_NONE,
                               LS__BENCH_COUNT,
                               LS__BENCH_BLOCKS, /* a block for every rank */
} ls__bench_shape;

typedef enum ls__bench_result { /* the right contents of `out` */
                                LS__BENCH_NOTHING,
                                LS__BENCH_SUM,       /* the reduction */
                                LS__BENCH_SUM_BLOCK, /* this rank's block of it */
                                LS__BENCH_ALL,       /* the operands of all ranks */
                                LS__BENCH_ROOT,      /* the root's operand */
                                LS__BENCH_ROOT_BLOCK,
                                LS__BENCH_TRANSPOSED, /* this rank's block of everyone's */
                                LS__BENCH_LEFT,       /* the operand of the rank before */
} ls__bench_result;

typedef struct ls__bench_operation {
    const char *name; /* "all-reduce" */
    ls__operation operation;
    ls__bench_shape in, out; /* without `in`: in place */
    ls__bench_result result;
    bool reduces, at_root, uneven;   /* at_root: rank 0 alone has the result */
    double (*bus_factor)(int ranks); /* nccl-tests' busbw = algbw times this */
    ls_status (*call)(const ls__bench_call *call);
} ls__bench_operation;

/* Print, and return an exit status. The first has the arguments after "cost-table". */
int ls__bench_cost_table(int argc, char **argv);
int ls__bench_page(void);
int ls__bench_lines(void);
int ls__bench_tuner(int argc, char **argv); /* the arguments after "tuner" */
int ls__bench_protections(int argc, char **argv);
int ls__bench_step(int argc, char **argv);      /* argv[0] is "step" */
int ls__bench_ddp_run(int argc, char **argv);   /* argv[0] is "ddp" */
int ls__bench_replay(int argc, char **argv);    /* argv[0] is "replay" */
int ls__bench_digits(int argc, char **argv);    /* argv[0] is "digits" */
int ls__bench_learn(int argc, char **argv);     /* argv[0] is "learn" */
int ls__bench_straggler(int argc, char **argv); /* argv[0] is "straggler" */
int ls__bench_pieces(int argc, char **argv);    /* argv[0] is "pieces" */
int ls__bench_pipeline(int argc, char **argv);  /* argv[0] is "pipeline" */
int ls__bench_mesh(int argc, char **argv);      /* argv[0] is "mesh" */
int ls__bench_experts(int argc, char **argv);   /* argv[0] is "experts" */

/* ---- times (times.c) ------------------------------------------------------------------------ */

double ls__bench_now_ms(void);
void ls__bench_sort(double *times, int count);
/* Of up to 10,000 numbers, whose order stays. k of n: 1 of 4 is the lower quartile. */
double ls__bench_quantile(const double *times, int count, int k, int n);
double ls__bench_median(const double *times, int count);
/* jansson's; null where the number is not finite, which JSON cannot say. */
struct json_t *ls__bench_number(double number);
struct json_t *ls__bench_list(const double *numbers, int count);

/* ---- ranks that sleep in place of computing (sleep.c) --------------------------------------- */

double ls__bench_sleep(double ms);  /* returns the milliseconds */
void ls__bench_sleep_exactly(void); /* from now on sleeps end within microseconds */

/* A module of one weight, which a gradient leads to. A class begins with it, and has `forward`. */
typedef struct ls__bench_sleeper {
    ls_module base;
    ls_tensor *weight;
} ls__bench_sleeper;

/* Takes `one` as module number `i` of `net`; NULL: an error of the net. */
void ls__bench_add_sleeper(ls_module *net, int i, ls__bench_sleeper *one);
/* `count` times the same input. Its gradient is asked for, so that the first stage's backward takes
 * the time of the others'. */
void ls__bench_same_inputs(ls_micro_batch *micro, int count, ls_shape shape);
/* The loss of a pipeline of them: the sum of its outputs. */
ls_tensor *ls__bench_sum_of(void *arg, ls_tensor *output, ls_tensor *target);

/* ---- processes ------------------------------------------------------------------------------ */

/* Ranks of the launcher's job that this process belongs to; 0: to none. */
int ls__bench_job_size(void);
/* Runs `rank` as a rank of the launcher's job, else as `ranks` ranks of this host; its exit status.
 * `transport` is ls__bench_set_transport's, `json` ls__bench_can_write's. */
int ls__bench_start(const char *transport, const char *json, int ranks, int (*rank)(void *),
                    void *arg);
/* Whether the rows can be written, before they are measured: false after it printed why. NULL:
 * true. */
bool ls__bench_can_write(const char *path);
/* For processes to be spawned: "shm", "tcp" or NULL, as the environment says. */
bool ls__bench_set_transport(const char *transport, int ranks);
struct json_t *ls__bench_machine(void); /* jansson's; of a row */
/* Takes the list. A NULL path: nothing is written. False after it printed the error, also where
 * memory for the `count` rows was missing. */
bool ls__bench_dump(struct json_t *rows, int count, const char *path);
/* The rows of the turns so far, while more are measured, so that what is cut short leaves them.
 * Takes the list; a NULL path: nothing is written. Nothing is said of an error: the last turn's
 * ls__bench_dump meets it again. */
void ls__bench_keep(struct json_t *rows, const char *path);
/* Memory, zeroed, that ranks to be spawned and this process see alike; NULL: there is none. */
void *ls__bench_share(size_t bytes);

/* NULL when there is none of that name ("all-reduce", "all_reduce"). */
const ls__bench_operation *ls__bench_operation_find(const char *name);
/* The names, with ", " between them. */
void ls__bench_operation_names(char *out, size_t bytes);

/* ---- what was asked for -------------------------------------------------------------------- */

typedef struct ls__bench_options {
    const ls__bench_operation *operation;
    int ranks;
    bool joins; /* its ranks are those of a launcher's job, perhaps on several hosts: no floor is
                   measured */
    bool registered; /* buffers in memory that peers read in place; else the rank's own */
    ls_dtype dtype;
    ls_reduce_op op;
    const char *algorithm; /* NULL: chosen by the library */
    const char *transport; /* "shm", "tcp"; NULL: as the environment says */
    int samples, warmups;
    int64_t sizes[LS__BENCH_SIZES_MAX]; /* bytes */
    int size_count;
    const char *json; /* NULL: none */
} ls__bench_options;

/* Fills `options`; 0, or an exit status after it printed why (or the help: *done). */
int ls__bench_parse(int argc, char **argv, ls__bench_options *options, bool *done);

/* "64K" and "4K,1M" as the value of --NAME: of `out`, of options->sizes. 0, or an exit status after
 * it printed why. */
struct cli_command;
int ls__bench_parse_count(const struct cli_command *command, const char *name, const char *text,
                          int64_t *out);
int ls__bench_parse_counts(const struct cli_command *command, const char *name, const char *text,
                           ls__bench_options *options);
/* Whether the operation has options->algorithm; as above. */
int ls__bench_check_algorithm(const struct cli_command *command, const ls__bench_options *options);

/* Elements that each rank passes to the operation for a buffer of `bytes`, uneven blocks all
 * together; 0: too few bytes. */
int64_t ls__bench_count(const ls__bench_options *options, int64_t bytes);

/* The blocks of `rank`'s buffer; count is ls__bench_count's. */
void ls__bench_blocks_of(const ls__bench_options *options, int rank, int64_t count,
                         ls__bench_blocks *out);

/* The floor is that of sums of float32 in shared memory. */
bool ls__bench_has_floor(const ls__bench_options *options);

/* ---- data ---------------------------------------------------------------------------------- */

/* Every rank's operand repeats after a prime number of elements, so that a result made of the right
 * elements in a wrong place is found, and written and compared by the block. */
typedef struct ls__bench_data ls__bench_data;

/* NULL without memory. `calls`: operations that run in place one after the other. */
ls__bench_data *ls__bench_data_new(const ls__bench_options *options, int calls);
void ls__bench_data_free(ls__bench_data *data);

/* Operations of one sample at most, so that sums of sums stay finite. */
int ls__bench_calls_max(const ls__bench_options *options);

/* x[i] = operand of `rank`. */
void ls__bench_fill(const ls__bench_data *data, int rank, void *x, int64_t count);

/* How many elements of x are not those from `first` on of the operand of `rank`; of the reduction
 * for rank LS__BENCH_REDUCED. */
#define LS__BENCH_REDUCED (-1)
int64_t ls__bench_wrong(const ls__bench_data *data, int rank, int64_t first, const void *x,
                        int64_t count);

/* ---- measuring ----------------------------------------------------------------------------- */

typedef struct ls__bench_row {
    int64_t bytes, count;        /* of the larger buffer of a rank; of that buffer */
    int calls;                   /* operations in one sample, back to back */
    double time_ms, time_spread; /* of one operation: median, (upper - lower quartile) / median */
    double floor_ms, floor_spread;
    int64_t wrong; /* elements of all ranks and samples that were not the result */
    const char *algorithm;
    uint64_t sent, received; /* bytes of one operation, of this rank, as ls_counters has them */
    int shown;               /* the first samples, in their order: */
    double samples_ms[LS__BENCH_SHOWN_MAX];
} ls__bench_row;

/* Measures one size on all ranks of `group`; collective. `shared` holds ranks * bytes that all
 * ranks of this program see; NULL without a floor. */
ls_status ls__bench_measure(ls_group *group, const ls__bench_options *options, int64_t bytes,
                            void *shared, ls__bench_row *row);

/* Name of the algorithm by which this rank sent and received its bytes in one operation of
 * `row`. */
const char *ls__bench_which(const ls__bench_options *options, const ls__bench_row *row, int rank,
                            uint64_t sent, uint64_t received);

/* x[s][i] of all n streams becomes their sum, i in [0,count): each stream is read and written
 * once, the least an all-reduce can do. */
void ls__bench_floor(float *const *x, int n, int64_t count);

void ls__bench_print_header(const ls__bench_options *options);
void ls__bench_print_row(const ls__bench_options *options, const ls__bench_row *row);
/* false after it printed why. */
bool ls__bench_write_json(const ls__bench_options *options, const ls__bench_row *rows, int count);
/* ls__bench_keep of them. */
void ls__bench_keep_json(const ls__bench_options *options, const ls__bench_row *rows, int count);

#endif
