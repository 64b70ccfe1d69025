/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that write a trace: file.c opens and closes it, spans.c writes the spans of a
 * rank, flows.c the arrows between them. */
#ifndef LS_TRACE_INTERNAL_H
#define LS_TRACE_INTERNAL_H

#include <jansson.h>

#include "trace/file.h"

#define LS__TRACE_BUFFER ((size_t)64 << 10)

/* The file while it is written. After an error nothing more is written. */
typedef struct ls__trace_out {
    const ls__env *env;
    int fd;
    int error; /* 0, or a negative errno */
    size_t used;
    bool any; /* an event was written: the next one follows a comma */
    char buffer[LS__TRACE_BUFFER];
} ls__trace_out;

/* The format's unit is the microsecond. */
static inline double ls__trace_us(uint64_t ns)
{
    return (double)ns / 1e3;
}

void ls__trace_out_text(ls__trace_out *out, const char *text, size_t bytes);
/* Takes `event`; NULL (no memory) is an error of the file. */
void ls__trace_out_event(ls__trace_out *out, json_t *event);

/* One end of an arrow. */
typedef struct ls__trace_tip {
    uint64_t flow;
    bool in; /* the arrow's point */
    uint16_t kind;
    int32_t rank, track;
    uint64_t begin_ns, end_ns; /* of the span that it is fixed to, since the trace's begin */
} ls__trace_tip;

typedef struct ls__trace_tips {
    ls__trace_tip *at; /* [room] */
    int64_t count, room;
} ls__trace_tips;

/* Writes the spans of a part and the names of its tracks, and collects the ends of arrows. Returns
 * how many spans did not fit on a track. */
int64_t ls__trace_write_spans(ls__trace_out *out, const ls__trace_part *part, uint64_t zero_ns,
                              ls__trace_tips *ends);
/* Writes the arrows both of whose ends were recorded. Sorts `ends`. */
void ls__trace_write_flows(ls__trace_out *out, ls__trace_tips *ends);

#endif
