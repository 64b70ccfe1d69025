/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient-ready timelines: when the gradients of a backward are final. `lockstep bench ddp
 * --timeline` records one (record.c), `lockstep bench replay` repeats it (timeline.c reads). Those
 * of timelines/ are part of the command. */
#ifndef LS_BENCH_TIMELINE_H
#define LS_BENCH_TIMELINE_H

#include <jansson.h>

#include <lockstep/reducer.h>

#include "ddp.h"

typedef struct ls__timeline_gradient {
    const char *name;
    int64_t elements;
    ls_dtype dtype;
    double ready_s; /* since backward began */
} ls__timeline_gradient;

typedef struct ls__timeline {
    json_t *root; /* its file; owns all texts */
    const char *name, *title;
    char recorded[320]; /* "AMD EPYC, 2 cores, 2026-11-23" */
    int batch;
    double forward_s, backward_s, optimizer_s;
    int64_t bytes; /* of all gradients */
    double parameters;
    int count;
    ls__timeline_gradient *gradients; /* [count] as they were registered */
} ls__timeline;

/* A timeline of the command by its name, or a file. Free it with ls__timeline_free, after an error,
 * too. */
ls_status ls__timeline_read(const char *name_or_path, ls__timeline *out);
void ls__timeline_free(ls__timeline *t);
/* Sorts the gradients: the first to be ready first. */
void ls__timeline_sort(ls__timeline *t);
/* The names of those of the command, with ", " between them. */
const char *ls__timeline_names(char *out, size_t bytes);

typedef struct ls__timeline_text { /* one of timelines/ */
    const char *name;
    const char *text;
    size_t bytes;
} ls__timeline_text;
extern const ls__timeline_text ls__timeline_texts[]; /* made by timelines/embed.py */
extern const int ls__timeline_text_count;
extern const ls__timeline_text ls__digits_texts[]; /* one: digits/digits.txt */
extern const int ls__digits_text_count;
extern const ls__timeline_text ls__novel_texts[]; /* one, of examples/data */
extern const int ls__novel_text_count;

typedef struct ls__recording ls__recording;
/* NULL without memory. */
ls__recording *ls__recording_new(ls_reducer *reducer, int steps_max);
/* The last backward; not more than steps_max. */
ls_status ls__recording_add(ls__recording *r, ls_reducer *reducer);
/* Medians over the steps, and of the first contender's forward, backward and optimizer. False after
 * it printed why. */
bool ls__recording_write(const ls__recording *r, const ls__bench_ddp *b, const char *path);
void ls__recording_free(ls__recording *r);

#endif
