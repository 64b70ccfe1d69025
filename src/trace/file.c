/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, fills and closes the file of a trace.
 *
 *     FILE.json        all ranks, written on node 0
 *     FILE.node_1.json ranks of node 1 whose spans did not reach node 0, because the job failed
 *     FILE.attempt_1.json  the same for a job that was started again
 *
 * It is written under another name and renamed, so a file of that name is always whole. */
#include "trace/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/version.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "trace/internal.h"

#define MARK "\"lockstep_trace\"" /* within the first bytes of each file */
#define MARK_BYTES 128
#define PATH_BYTES (LS__TRACE_PATH_MAX + 64)

/* ---- the path ------------------------------------------------------------------------------- */

/* Whether the file may be replaced: it is a trace, or empty. */
static bool is_replaceable(const ls__env *env, const char *path)
{
    char head[MARK_BYTES + 1] = "";
    const int fd = env->open(env, path, O_RDONLY, 0);
    const ssize_t got = fd < 0 ? fd : env->read(env, fd, head, MARK_BYTES);
    if (fd >= 0) {
        env->close(env, fd);
    }
    return got == 0 || (got > 0 && strstr(head, MARK) != NULL);
}

/* The folder is known to exist if it can be listed, even in part. */
static int stop_listing(void *arg, const char *name)
{
    (void)arg;
    (void)name;
    return 1;
}

static ls_status check_folder(const ls__env *env, const char *path)
{
    char folder[PATH_BYTES] = ".";
    const char *slash = strrchr(path, '/');
    if (slash != NULL) {
        const size_t length = slash > path ? (size_t)(slash - path) : 1;
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    const int error = env->list(env, folder, stop_listing, NULL);
    return error >= 0 ? LS_OK
                      : ls__fail(LS_ERR_INVALID,
                                 "ls_init: LOCKSTEP_TRACE=%s: the folder %s cannot be read: %s; "
                                 "make it first",
                                 path, folder, strerror(-error));
}

ls_status ls__trace_check_path(const ls__env *env, const char *path)
{
    ls__env_stat found;
    const int error = env->stat(env, path, true, &found);
    if (error == 0 && (found.kind != LS__ENV_FILE || !is_replaceable(env, path))) {
        return ls__fail(LS_ERR_INVALID,
                        "ls_init: LOCKSTEP_TRACE=%s exists and is not a trace, so it would be "
                        "lost; name another file, or remove this one",
                        path);
    }
    return check_folder(env, path);
}

/* Adds ".WORD_NUMBER" before ".json", or at the end. */
static void add_word(char path[PATH_BYTES], const char *word, int number)
{
    const size_t length = strlen(path);
    const bool json = length > 5 && strcmp(path + length - 5, ".json") == 0;
    ls__text text = {path + length - (json ? 5 : 0), PATH_BYTES - length + (json ? 5 : 0)};
    ls__text_add(&text, ".%s_%d%s", word, number, json ? ".json" : "");
}

static void path_of(const ls__trace_job *job, const ls__trace_head *head, char out[PATH_BYTES])
{
    memcpy(out, head->path, strlen(head->path) + 1);
    if (job->attempt > 0) {
        add_word(out, "attempt", job->attempt);
    }
    if (job->node > 0) {
        add_word(out, "node", job->node);
    }
}

/* ---- output --------------------------------------------------------------------------------- */

static void flush(ls__trace_out *out)
{
    for (size_t at = 0; at < out->used && out->error == 0;) {
        const ssize_t put = out->env->write(out->env, out->fd, out->buffer + at, out->used - at);
        out->error = put > 0 ? 0 : put < 0 ? (int)put : -EIO;
        at += put > 0 ? (size_t)put : 0;
    }
    out->used = 0;
}

void ls__trace_out_text(ls__trace_out *out, const char *text, size_t bytes)
{
    while (bytes > 0 && out->error == 0) {
        const size_t room = sizeof out->buffer - out->used;
        const size_t part = bytes < room ? bytes : room;
        memcpy(out->buffer + out->used, text, part);
        out->used += part;
        text += part;
        bytes -= part;
        if (out->used == sizeof out->buffer) {
            flush(out);
        }
    }
}

/* For json_dump_callback. */
static int take_text(const char *text, size_t bytes, void *arg)
{
    ls__trace_out_text(arg, text, bytes);
    return 0;
}

/* Takes `value`. Times have nanoseconds, and 15 digits hold those of a day in microseconds. */
static void put_json(ls__trace_out *out, json_t *value)
{
    if (value == NULL ||
        json_dump_callback(value, take_text, out,
                           JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) < 0) {
        out->error = out->error != 0 ? out->error : -ENOMEM;
    }
    json_decref(value);
}

void ls__trace_out_event(ls__trace_out *out, json_t *event)
{
    ls__trace_out_text(out, out->any ? ",\n" : "\n", out->any ? 2 : 1);
    out->any = true;
    put_json(out, event);
}

/* ---- contents ------------------------------------------------------------------------------- */

typedef struct contents {
    const ls__trace_job *job;
    ls__trace_part *parts; /* [world_size] */
    ls__trace_tips ends;
    uint64_t zero_ns; /* the begin of the first span, by the clock of node 0 */
    uint64_t dropped;
    int first, present, missing, unfinished;
} contents;

/* Ranks of one host share a clock: all take the best measurements among them. */
static void share_clocks(contents *c)
{
    for (int r = 0; r < c->job->world_size; r++) {
        for (int s = 0; c->parts[r].head != NULL && s < c->job->world_size; s++) {
            const ls__trace_part *other = &c->parts[s];
            if (other->head == NULL || other->head->node != c->parts[r].head->node) {
                continue;
            }
            for (int k = 0; k < 2; k++) {
                const ls__trace_clock *theirs = &other->head->clock[k];
                ls__trace_clock *ours = &c->parts[r].clock[k];
                if (theirs->at_ns != 0 && (ours->at_ns == 0 || theirs->error_ns < ours->error_ns)) {
                    *ours = *theirs;
                }
            }
        }
    }
}

/* Counts, and looks for the first span of all. */
static void survey(contents *c)
{
    c->first = -1;
    c->zero_ns = UINT64_MAX;
    for (int r = 0; r < c->job->world_size; r++) {
        const ls__trace_part *part = &c->parts[r];
        if (part->head == NULL) {
            c->missing++;
            continue;
        }
        c->first = c->first < 0 ? r : c->first;
        c->present++;
        c->dropped += part->dropped;
        c->unfinished += atomic_load_explicit(&part->head->left, memory_order_acquire) == 0;
        c->ends.room += part->count;
        if (part->count > 0) {
            const uint64_t begin = ls__trace_part_time(part, part->events[0]->begin_ns);
            c->zero_ns = begin < c->zero_ns ? begin : c->zero_ns;
        }
    }
}

/* Of one rank, for readers of the file. NULL without memory. */
static json_t *rank_json(const contents *c, int rank)
{
    const ls__trace_part *part = &c->parts[rank];
    const ls__trace_clock *a = &part->clock[0], *b = &part->clock[1];
    if (part->head == NULL) {
        return json_pack("{s:i, s:b}", "rank", rank, "missing", 1);
    }
    const uint64_t error = a->error_ns > b->error_ns ? a->error_ns : b->error_ns;
    const bool left = atomic_load_explicit(&part->head->left, memory_order_relaxed) != 0;
    return json_pack("{s:i, s:s, s:i, s:i, s:b, s:I, s:I, s:f, s:f}", "rank", rank, "host",
                     ls__utf8_valid(part->head->host) ? part->head->host : "?", "node",
                     part->head->node, "pid", part->head->pid, "finalized", left, "events",
                     (json_int_t)part->count, "dropped", (json_int_t)part->dropped,
                     "clock_offset_us", (double)a->offset_ns * 1e-3, "clock_error_us",
                     (double)error * 1e-3);
}

static json_t *head_json(const contents *c)
{
    json_t *ranks = json_array();
    for (int r = 0; r < c->job->world_size && ranks != NULL; r++) {
        if (json_array_append_new(ranks, rank_json(c, r)) < 0) {
            json_decref(ranks);
            ranks = NULL;
        }
    }
    return ranks == NULL ? NULL
                         : json_pack("{s:i, s:s, s:i, s:i, s:o}", "lockstep_trace", 1, "version",
                                     LS_VERSION, "world_size", c->job->world_size, "attempt",
                                     c->job->attempt, "ranks", ranks);
}

/* "rank 3 (host b)", in the order of the ranks. */
static void write_process(ls__trace_out *out, const ls__trace_part *part)
{
    char name[128];
    const char *host = ls__utf8_valid(part->head->host) ? part->head->host : "?";
    const int rank = part->head->rank;
    (void)snprintf(name, sizeof name, "rank %d (%s)", rank, host);
    ls__trace_out_event(out, json_pack("{s:s, s:s, s:i, s:{s:s}}", "ph", "M", "name",
                                       "process_name", "pid", rank, "args", "name", name));
    ls__trace_out_event(out,
                        json_pack("{s:s, s:s, s:i, s:{s:i}}", "ph", "M", "name",
                                  "process_sort_index", "pid", rank, "args", "sort_index", rank));
}

static void write_contents(ls__trace_out *out, contents *c)
{
    static const char before[] = "{\"otherData\":",
                      between[] = ",\n\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    ls__trace_out_text(out, before, sizeof before - 1);
    put_json(out, head_json(c));
    ls__trace_out_text(out, between, sizeof between - 1);
    for (int r = 0; r < c->job->world_size; r++) {
        if (c->parts[r].head != NULL) {
            write_process(out, &c->parts[r]);
            c->dropped += (uint64_t)ls__trace_write_spans(out, &c->parts[r], c->zero_ns, &c->ends);
        }
    }
    ls__trace_write_flows(out, &c->ends);
    ls__trace_out_text(out, "\n]}\n", 4);
    flush(out);
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* Writes under another name and renames. Returns 0 or a negative errno. */
static int write_file(const ls__env *env, contents *c, const char *path)
{
    char part[PATH_BYTES + 32];
    ls__trace_out *out = env->allocate(env, sizeof *out);
    const size_t bytes = (size_t)(c->ends.room + 1) * sizeof *c->ends.at;
    c->ends.at = env->allocate(env, bytes);
    (void)snprintf(part, sizeof part, "%s.%d.part", path, (int)env->pid(env));
    int error = out != NULL && c->ends.at != NULL ? 0 : -ENOMEM;
    if (error == 0) {
        *out = (ls__trace_out){.env = env};
        out->fd = ls__file_create(env, part, 0666);
        error = out->fd < 0 ? out->fd : 0;
    }
    if (error == 0) {
        write_contents(out, c);
        env->close(env, out->fd);
        error = out->error != 0 ? out->error : env->rename(env, part, path);
        if (error < 0) {
            (void)env->remove_file(env, part);
        }
    }
    if (c->ends.at != NULL) {
        env->release(env, c->ends.at, bytes);
    }
    if (out != NULL) {
        env->release(env, out, sizeof *out);
    }
    return error;
}

static void write_and_report(const ls__env *env, contents *c)
{
    char path[PATH_BYTES];
    path_of(c->job, c->parts[c->first].head, path);
    const ls_status sound = ls__trace_check_path(env, path);
    const int error = sound < 0 ? 0 : write_file(env, c, path);
    if (sound < 0 || error < 0) {
        LS__WARN("the trace %s was not written: %s", path,
                 sound < 0 ? ls_error_message() : strerror(-error));
        return;
    }
    LS__INFO("the trace of %d rank%s is in %s", c->present, c->present == 1 ? "" : "s", path);
    if (c->dropped > 0) {
        LS__WARN(
            "the trace %s lacks %llu spans, the oldest: raise LOCKSTEP_TRACE_EVENTS, or record "
            "fewer steps with LOCKSTEP_TRACE_STEPS",
            path, (unsigned long long)c->dropped);
    }
    if (c->missing > 0 || c->unfinished > 0) {
        LS__WARN("the trace %s lacks %d of %d ranks, and %d ended before ls_finalize", path,
                 c->missing, c->job->world_size, c->unfinished);
    }
}

/* A part whose copy is on node 0 is written there. */
static void open_part(const ls__env *env, const ls__trace_job *job, int rank, ls__trace_part *out)
{
    const int fd = job->part(job->arg, rank);
    if (fd < 0) {
        return;
    }
    if (ls__trace_part_open(env, fd, out) < 0) {
        LS__WARN("%s", ls_error_message());
    } else if (out->head->rank != rank ||
               (job->node > 0 && atomic_load_explicit(&out->head->sent, memory_order_acquire))) {
        ls__trace_part_close(out);
    }
}

ls_status ls__trace_write(const ls__env *env, ls__trace_part *parts, int world_size,
                          const char *path)
{
    const ls__trace_job job = {.world_size = world_size};
    contents c = {.job = &job, .parts = parts};
    LS_TRY(ls__trace_check_path(env, path));
    survey(&c);
    const int error = write_file(env, &c, path);
    return error < 0 ? ls__file_fail(error, "trace", "cannot write", path) : LS_OK;
}

void ls__trace_collect(const ls__env *env, const ls__trace_job *job)
{
    const size_t bytes = (size_t)job->world_size * sizeof(ls__trace_part);
    contents c = {.job = job, .parts = env->allocate(env, bytes)};
    if (c.parts == NULL) {
        LS__WARN("no memory for the traces of %d ranks", job->world_size);
        return;
    }
    memset(c.parts, 0, bytes);
    for (int r = 0; r < job->world_size; r++) {
        open_part(env, job, r, &c.parts[r]);
    }
    share_clocks(&c);
    survey(&c);
    if (c.present > 0) {
        write_and_report(env, &c);
    }
    for (int r = 0; r < job->world_size; r++) {
        ls__trace_part_close(&c.parts[r]);
    }
    env->release(env, c.parts, bytes);
}
