/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by `lockstep bench ddp` and `lockstep bench replay`: contenders, turns, rows.
 *
 *     ddp_asked.c    the options that both have, and the contenders they ask for
 *     ddp_turns.c    warm-up, turns, means; the ranks
 *     ddp_report.c   rows for people and as JSON
 *     ddp.c          steps of a network          record.c   its timeline
 *     replay.c       steps of a timeline.c: sleeps instead of a network
 */
#ifndef LS_BENCH_DDP_H
#define LS_BENCH_DDP_H

#include <lockstep/reducer.h>

#include "bench.h"

enum {
    BENCH_DDP_CONTENDERS = 32, /* rows */
    BENCH_DDP_STEPS = 10000,   /* timed ones of a contender */
    BENCH_DDP_PARTS = 6,
    BENCH_DDP_BUCKETS = 1000, /* shown */
};
#define BENCH_DDP_LOCAL (-1) /* as a mode: no communication */

typedef struct ls__bench_ddp ls__bench_ddp;

typedef struct ls__bench_ddp_contender {
    int mode;                           /* an ls_reduce_mode, or BENCH_DDP_LOCAL */
    ls_dtype wire;                      /* in which float32 gradients travel */
    const char *comm;                   /* communication hook; "plain": none */
    size_t bucket_bytes;                /* of bucketed and overlap */
    int skip;                           /* every skip-th step synchronises */
    int groups;                         /* in turns (ls_group_round_robin) */
    void *run;                          /* the command's own */
    ls_reducer *reducer;                /* NULL: no communication */
    int taken;                          /* timed steps so far */
    int samples;                        /* of them: means over `skip` steps */
    double (*own)[BENCH_DDP_PARTS];     /* [samples] of this rank */
    double (*seconds)[BENCH_DDP_PARTS]; /* [samples] means over the ranks */
    double mean[BENCH_DDP_PARTS], deviation[BENCH_DDP_PARTS];
    double medians[BENCH_DDP_STEPS]; /* [rounds] of a step */
    double slowest[BENCH_DDP_STEPS]; /* [rounds] of a step's slowest rank */
    int buckets;                     /* with their bytes, in the order of launching: */
    uint64_t bytes[BENCH_DDP_BUCKETS];
    uint64_t sent; /* bytes that a rank sent in the last step, the mean over the ranks */
} ls__bench_ddp_contender;

/* The functions of a contender. */
typedef struct ls__bench_ddp_steps {
    /* Once, before any is opened: false on all ranks after rank 0 printed why they cannot be. NULL:
     * true. */
    bool (*check)(const ls__bench_ddp *b);
    /* Sets `run` and `reducer`; after a failure, too, `close` frees what there is. */
    ls_status (*open)(const ls__bench_ddp *b, ls__bench_ddp_contender *c);
    /* Parts of one step, in the order of ls__bench_ddp_parts. */
    ls_status (*step)(const ls__bench_ddp *b, ls__bench_ddp_contender *c, bool synchronise,
                      double parts[BENCH_DDP_PARTS]);
    ls_status (*close)(ls__bench_ddp_contender *c);
    /* After a timed step, and at the end on rank 0: false after it printed why. NULL: nothing. */
    ls_status (*note)(const ls__bench_ddp *b, const ls__bench_ddp_contender *c);
    bool (*end)(const ls__bench_ddp *b);
} ls__bench_ddp_steps;

struct ls__bench_ddp {
    const ls__bench_ddp_steps *of;
    const char *model, *about; /* "gpt", "GPT 6 layers, d 384, T 256, V 8192" */
    const char *compute;       /* "measured", "replay" */
    int ranks, batch, steps, rounds, warmups;
    int untimed;           /* steps at the start of a turn */
    const char *transport; /* NULL: as the environment says */
    const char *json;
    const char *gate; /* folder of named pipes that say when a turn may begin; NULL: at once */
    double parameters;
    struct json_t *more; /* jansson's: of every row; NULL: nothing */
    int count;
    ls__bench_ddp_contender contender[BENCH_DDP_CONTENDERS];
};

extern const char *const ls__bench_ddp_parts[BENCH_DDP_PARTS]; /* "step", "forward" … */

/* ---- options ------------------------------------------------------------------------------- */

typedef struct ls__bench_ddp_asked { /* with defaults before the command line is read */
    const char *modes, *sizes, *wires, *comms, *skips, *groups, *transport, *json;
    int64_t ranks, steps, rounds, warmups, untimed;
} ls__bench_ddp_asked;

#define LS__BENCH_DDP_OPTIONS(a) /* rows of a cli_option table */                                  \
    {"mode", CLI_TEXT, &(a).modes, .value_name = "LIST",                                           \
     .help = "naive, flat, bucketed, overlap, local (no communication)"},                          \
        {"buckets", CLI_TEXT, &(a).sizes, .value_name = "LIST",                                    \
         .help = "sizes of buckets in MB, or auto: of bucketed and overlap"},                      \
        {"wire", CLI_TEXT, &(a).wires, .value_name = "LIST",                                       \
         .help = "types in which float32 gradients travel: float32, bfloat16"},                    \
        {"ranks",                                                                                  \
         CLI_COUNT,                                                                                \
         &(a).ranks,                                                                               \
         .low = 1,                                                                                 \
         .high = LS__BENCH_RANKS_MAX,                                                              \
         .letter = 'n',                                                                            \
         .help = "ranks on this host"},                                                            \
        {"transport",                                                                              \
         CLI_CHOICE,                                                                               \
         &(a).transport,                                                                           \
         .choices = "shm|tcp",                                                                     \
         .fallback = "as the environment says, else shm",                                          \
         .help = "shm: shared memory; tcp: as if every rank had a host of its own"},               \
        {"steps", CLI_COUNT, &(a).steps, .low = 1, .high = 1000, .help = "timed steps of a turn"}, \
        {"rounds", CLI_COUNT, &(a).rounds, .low = 1, .high = 10, .help = "turns of each"},         \
        {"warmup", CLI_COUNT, &(a).warmups, .low = 1, .high = 1000, .help = "steps before them"},  \
        {"untimed", CLI_COUNT,    &(a).untimed,                                                    \
         .low = 0,  .high = 1000, .help = "untimed steps at the start of each turn"},              \
    {                                                                                              \
        "json", CLI_TEXT, &(a).json, .value_name = "FILE", .help = "also write the rows to FILE"   \
    }

struct cli_command;
/* Fills in the rows that the options ask for. Returns 0, or the exit status after it printed the
 * error. */
int ls__bench_ddp_ask(ls__bench_ddp *b, const ls__bench_ddp_asked *asked,
                      const struct cli_command *command);

/* ---- measuring ----------------------------------------------------------------------------- */

/* The ranks, started here or by a launcher: the exit status. */
int ls__bench_ddp_measure(ls__bench_ddp *b);

/* Of a step whose forward, backward, optimizer and end were at these nanoseconds. */
void ls__bench_ddp_set_parts(double parts[BENCH_DDP_PARTS], const uint64_t at[4],
                             double wire_seconds, double exposed_seconds);

/* "overlap", "5", "auto" or "-". */
const char *ls__bench_ddp_mode(const ls__bench_ddp_contender *c);
const char *ls__bench_ddp_size(const ls__bench_ddp_contender *c, char out[32]);

void ls__bench_ddp_print(const ls__bench_ddp *b);
bool ls__bench_ddp_write(const ls__bench_ddp *b); /* false after it printed why */
void ls__bench_ddp_keep(const ls__bench_ddp *b);  /* those of the turns so far: ls__bench_keep */

#endif
