/* SPDX-License-Identifier: Apache-2.0 */
/* The spans of one rank as complete events ("X") of the trace event format.
 *
 * Spans of threads lie within each other as they are. Operations overlap each other, so each kind
 * of them has as many tracks as run at once: a span goes to the first track on which the span
 * before has ended. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/text.h"
#include "trace/internal.h"

#define LANES_MAX 64   /* tracks of one kind */
#define LANE_STEP 1000 /* between the first tracks of two kinds; threads have lower numbers */

/* The categories, which `lockstep trace` reads again. */
static const struct {
    const char *category;
    int lanes;         /* 0: the track of its thread; else a class of tracks */
    const char *track; /* the name of these */
    bool out, in;      /* an arrow leaves, arrives */
} kinds[LS__TRACE_KINDS] = {
    [LS__TRACE_STEP] = {"step", 0, NULL, false, false},
    [LS__TRACE_LOADER] = {"loader", 0, NULL, false, false},
    [LS__TRACE_READ] = {"read", 0, NULL, false, false},
    [LS__TRACE_FORWARD] = {"forward", 0, NULL, false, false},
    [LS__TRACE_MODULE] = {"module", 0, NULL, false, false},
    [LS__TRACE_RECOMPUTE] = {"recompute", 0, NULL, false, false},
    [LS__TRACE_BACKWARD] = {"backward", 0, NULL, false, false},
    [LS__TRACE_NODE] = {"operation", 0, NULL, false, false},
    [LS__TRACE_EXPOSED] = {"exposed", 0, NULL, false, false},
    [LS__TRACE_OPTIMIZER] = {"optimizer", 0, NULL, false, false},
    [LS__TRACE_CHECKPOINT] = {"checkpoint", 0, NULL, false, false},
    [LS__TRACE_BUCKET] = {"bucket", 1, "buckets", true, false},
    [LS__TRACE_WIRE] = {"wire", 2, "engine", false, true},
    [LS__TRACE_SEND] = {"send", 3, "messages", true, false},
    [LS__TRACE_RECV] = {"recv", 3, "messages", false, true},
};

typedef struct tracks {
    uint64_t end_ns[4][LANES_MAX]; /* of the last span on it */
    int used[4];
    const char *names[UINT8_MAX + 1]; /* of threads with a task of their own */
    int threads;                      /* the highest number */
} tracks;

/* The number of the span's track; -1: all tracks of its kind are taken. */
static int track_of(tracks *t, const ls__trace_event *event)
{
    const int class = kinds[event->kind].lanes;
    if (class == 0) {
        t->threads = event->thread > t->threads ? event->thread : t->threads;
        const char **name = &t->names[event->thread & UINT8_MAX];
        *name = event->kind == LS__TRACE_READ         ? "loader"
                : event->kind == LS__TRACE_CHECKPOINT ? "checkpoint"
                                                      : *name;
        return event->thread;
    }
    for (int i = 0; i < LANES_MAX; i++) {
        if (i == t->used[class] || t->end_ns[class][i] <= event->begin_ns) {
            t->used[class] += i == t->used[class];
            t->end_ns[class][i] = event->end_ns;
            return class * LANE_STEP + i;
        }
    }
    return -1;
}

/* Other bytes than UTF-8 become '?': a text may have been cut, and names are the user's. */
static void put_valid(char out[LS__TRACE_TEXT], const char *text)
{
    size_t length = strnlen(text, LS__TRACE_TEXT - 1), at = 0;
    while (at < length) {
        const size_t bytes = ls__utf8_bytes(text + at, length - at);
        if (bytes == 0) {
            out[at++] = '?';
        } else {
            memcpy(out + at, text + at, bytes);
            at += bytes;
        }
    }
    out[at] = '\0';
}

/* NULL without memory. */
static json_t *args_of(const ls__trace_event *event, const char *detail)
{
    json_t *args = json_object();
    int failed = args == NULL;
    if (event->kind == LS__TRACE_STEP) {
        failed |= json_object_set_new(args, "step", json_integer((json_int_t)event->bytes));
    } else if (event->bytes > 0) {
        failed |= json_object_set_new(args, "bytes", json_integer((json_int_t)event->bytes));
    }
    if (detail[0] != '\0') {
        failed |= json_object_set_new(args, "of", json_string(detail));
    }
    if (failed) {
        json_decref(args);
        return NULL;
    }
    return args;
}

static void write_span(ls__trace_out *out, const ls__trace_event *event, ls__trace_tip *at)
{
    char name[LS__TRACE_TEXT], detail[LS__TRACE_TEXT] = "";
    const size_t first = strnlen(event->text, LS__TRACE_TEXT - 1) + 1;
    put_valid(name, event->text);
    if (first < LS__TRACE_TEXT) {
        char rest[LS__TRACE_TEXT] = "";
        memcpy(rest, event->text + first, LS__TRACE_TEXT - first);
        put_valid(detail, rest);
    }
    json_t *args = args_of(event, detail);
    ls__trace_out_event(
        out, args == NULL ? NULL
                          : json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "ph", "X", "name",
                                      name, "cat", kinds[event->kind].category, "pid", at->rank,
                                      "tid", at->track, "ts", ls__trace_us(at->begin_ns), "dur",
                                      ls__trace_us(at->end_ns - at->begin_ns), "args", args));
}

static void add_end(ls__trace_tips *ends, const ls__trace_event *event, const ls__trace_tip *at)
{
    if (event->flow != 0 && (kinds[event->kind].out || kinds[event->kind].in)) {
        LS_ASSERT(ends->count < ends->room);
        ends->at[ends->count++] = *at;
    }
}

/* A track's name, and where it stands below its process: threads first. */
static void write_name(ls__trace_out *out, int rank, int track, const char *name)
{
    ls__trace_out_event(out,
                        json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "ph", "M", "name", "thread_name",
                                  "pid", rank, "tid", track, "args", "name", name));
    ls__trace_out_event(out, json_pack("{s:s, s:s, s:i, s:i, s:{s:i}}", "ph", "M", "name",
                                       "thread_sort_index", "pid", rank, "tid", track, "args",
                                       "sort_index", track));
}

static void write_tracks(ls__trace_out *out, int rank, const tracks *t)
{
    char name[64];
    for (int i = 1; i <= t->threads; i++) {
        const char *kind = t->names[i & UINT8_MAX];
        (void)snprintf(name, sizeof name, i == 1 ? "training" : "%s %d",
                       kind != NULL ? kind : "thread", i);
        write_name(out, rank, i, name);
    }
    for (int kind = LS__TRACE_BUCKET; kind <= LS__TRACE_SEND; kind++) {
        const int class = kinds[kind].lanes;
        for (int i = 0; i < t->used[class]; i++) {
            (void)snprintf(name, sizeof name, i == 0 ? "%s" : "%s %d", kinds[kind].track, i + 1);
            write_name(out, rank, class * LANE_STEP + i, name);
        }
    }
}

int64_t ls__trace_write_spans(ls__trace_out *out, const ls__trace_part *part, uint64_t zero_ns,
                              ls__trace_tips *ends)
{
    tracks t = {.threads = 1};
    int64_t without = 0;
    for (int64_t i = 0; i < part->count; i++) {
        const ls__trace_event *event = part->events[i];
        const int track = track_of(&t, event);
        if (track < 0) {
            without++;
            continue;
        }
        const uint64_t begin = ls__trace_part_time(part, event->begin_ns);
        const uint64_t end = ls__trace_part_time(part, event->end_ns);
        ls__trace_tip at = {.flow = event->flow,
                            .in = kinds[event->kind].in,
                            .kind = event->kind,
                            .rank = part->head->rank,
                            .track = track,
                            .begin_ns = begin - zero_ns,
                            .end_ns = end - zero_ns};
        write_span(out, event, &at);
        add_end(ends, event, &at);
    }
    write_tracks(out, part->head->rank, &t);
    return without;
}
