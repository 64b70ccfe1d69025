/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' output: read line by line, written whole with a prefix, logged, remembered. */
#ifndef LS_LAUNCH_OUTPUT_H
#define LS_LAUNCH_OUTPUT_H

#include "base/env.h"
#include "base/error.h"

typedef struct ls__output ls__output;

typedef struct ls__output_spec {
    int ranks, first_rank; /* of this host; the first one's number in the world */
    bool prefix;           /* "[2] " before lines */
    const char *log_dir;   /* NULL: no files; else log_dir/RANK/std{out,err}.log, in folders made */
} ls__output_spec;

ls_status ls__output_new(const ls__env *env, const ls__output_spec *spec, ls__output **out);
void ls__output_free(ls__output *output);
/* Below, r counts this host's ranks from 0. Reads rank r's standard output (which 0) or error (1)
 * from fd, which is taken. */
void ls__output_attach(ls__output *output, int r, int which, int fd);
/* For the owner's poll loop, as the store's. */
int ls__output_poll(ls__output *output, ls__env_poll *items, int room);
void ls__output_turn(ls__output *output, const ls__env_poll *items, int count);
bool ls__output_reading(const ls__output *output); /* a stream has not ended */
bool ls__output_writing(const ls__output *output); /* something is not written yet */
/* A line of the launcher's own, to standard error. */
void ls__output_say(ls__output *output, const char *line);
/* Ends all streams: what stands in them without a newline is written too. */
void ls__output_end(ls__output *output);
bool ls__output_is_cut(const ls__output *output); /* a log could not be written whole */
/* The last lines of rank r, at most `bytes` - 1 and terminated. */
void ls__output_tail(const ls__output *output, int r, char *out, size_t bytes);
/* The output is a terminal, where a line may be updated. */
bool ls__output_live(const ls__output *output);

#endif
