/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a trace and dividing its steps into parts; `lockstep trace` (cmd_trace.c) prints them. */
#ifndef TOOLS_TRACE_H
#define TOOLS_TRACE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lockstep/status.h>

#define TRACE_NAMES_MAX 512 /* operations of backward that are told apart */

/* The part of a step to which a span belongs; that of the outermost span counts, except that a wait
 * for communication inside forward, backward or optimizer is exposed. */
typedef enum trace_part {
    TRACE_FORWARD,
    TRACE_BACKWARD,
    TRACE_EXPOSED,
    TRACE_OPTIMIZER,
    TRACE_LOADER,
    TRACE_OTHER,
    TRACE_PARTS,
    TRACE_STEP = TRACE_PARTS, /* of spans only */
    TRACE_WIRE,
    TRACE_OPERATION,
    TRACE_WITHIN, /* of modules: part of the span around it */
} trace_part;

extern const char *const trace_part_names[TRACE_PARTS];

typedef struct trace_span {
    int rank, track;
    trace_part part;
    int number; /* of a step; of an operation, its name's */
    double begin_us, end_us;
} trace_span;

typedef struct trace_rank {
    bool present, finalized;
    int64_t dropped;
    int node;
    char host[65];
} trace_rank;

/* One step of one rank, in milliseconds. */
typedef struct trace_step {
    int rank, number;
    double begin_us, end_us;
    double ms, part[TRACE_PARTS]; /* these add up to `ms` */
    double wire_ms;               /* a collective was in flight */
} trace_step;

typedef struct trace_operation {
    char name[48];
    int64_t calls;
    double ms; /* of all steps in the means, without the operations within it */
} trace_operation;

typedef struct trace {
    trace_rank *ranks; /* [world_size] */
    int world_size;
    bool cut; /* the file ends in the middle */
    trace_span *spans;
    int64_t span_count, span_room;
    trace_step *steps; /* by rank, then by number */
    int64_t step_count, step_room;
    int first_counted; /* the means begin with this step: 1, unless there is only step 0 */
    int64_t counted;   /* steps of all ranks in the means */
    trace_operation operations[TRACE_NAMES_MAX];
    int operation_count;
} trace;

/* Reads the file. On failure, too, trace_free releases what was read. */
ls_status trace_read(const char *path, trace *out);
/* Fills steps and operations. LS_ERR_NOT_FOUND: the trace has none. */
ls_status trace_divide(const char *path, trace *t);
void trace_free(trace *t);
/* ---- means (trace_means.c) ------------------------------------------------------------------ */

typedef struct trace_mean { /* of steps, in milliseconds */
    int64_t steps;
    double ms, part[TRACE_PARTS], wire_ms;
} trace_mean;

/* rank -1: of all; number -1: of all steps that count. */
trace_mean trace_mean_of(const trace *t, int rank, int number);
/* Waiting for others, or for data, is not a rank's own work. */
double trace_busy_ms(const trace_mean *m);
/* The share of `wire_ms` that is not exposed. */
double trace_hidden(const trace_mean *m);
/* The rank that worked longest in a step; -1 in a world of one. */
int trace_slowest(const trace *t);

/* `items` with room for one more than `count`, moved if need be; NULL without memory, and `items`
 * stays. */
void *trace_room(void *items, int64_t count, int64_t *room, size_t bytes);

#endif
