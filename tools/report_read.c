/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of the training programs and traces of LOCKSTEP_TRACE, for `lockstep report`. A job may have
 * died in a line, a disk may have been full, and two runs may have written to one file: lines that
 * cannot be read are counted and left out, and of a number that a step has twice the later one
 * counts, as for TensorBoard. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "tools/cli/cli.h"
#include "tools/report.h"

/* A line of --log has a dozen numbers, and one for each expert. */
static const ls__json_limit line_limit = {
    .bytes = 1 << 20, .values = 1 << 16, .containers = 16, .depth = 4};

static bool is_trace(FILE *file)
{
    char head[512];
    const size_t bytes = fread(head, 1, sizeof head - 1, file);
    head[bytes] = '\0';
    rewind(file);
    return strstr(head, "\"otherData\"") != NULL || strstr(head, "\"traceEvents\"") != NULL;
}

static double number_of(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    const double number = json_number_value(value);
    return json_is_number(value) && report_is_known(number) ? number : NAN;
}

/* "tokens" of "tokens_per_second", from the first line that has one. */
static double per_second_of(const json_t *line, report_run *run)
{
    static const char ending[] = "_per_second";
    const size_t end = sizeof ending - 1;
    for (void *at = json_object_iter((json_t *)(uintptr_t)line); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)line, at)) {
        const char *key = json_object_iter_key(at);
        const size_t length = strlen(key);
        if (length > end && strcmp(key + length - end, ending) == 0) {
            if (run->unit[0] == '\0') {
                (void)snprintf(run->unit, sizeof run->unit, "%.*s", (int)(length - end), key);
            }
            return number_of(line, key);
        }
    }
    return NAN;
}

static bool is_row(const report_row *r)
{
    return !isnan(r->loss) || !isnan(r->seconds) || !isnan(r->exposed) || !isnan(r->per_second);
}

static bool is_score(const report_score *s)
{
    return !isnan(s->loss) || !isnan(s->peak_bytes) || !isnan(s->estimate_bytes);
}

/* A number that a later line of the step has not repeated stays. */
static void keep_known(double *number, double later)
{
    *number = isnan(later) ? *number : later;
}

/* Of a run that went on from a checkpoint before, the later lines count. */
static ls_status add_row(report_run *run, const report_row *row)
{
    while (run->count > 0 && run->rows[run->count - 1].step > row->step) {
        run->count--;
    }
    if (run->count > 0 && run->rows[run->count - 1].step == row->step) {
        report_row *same = &run->rows[run->count - 1];
        keep_known(&same->loss, row->loss);
        keep_known(&same->seconds, row->seconds);
        keep_known(&same->exposed, row->exposed);
        keep_known(&same->per_second, row->per_second);
        return LS_OK;
    }
    report_row *rows = trace_room(run->rows, run->count, &run->room, sizeof *rows);
    if (rows == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the steps of \"%s\"", run->log);
    }
    run->rows = rows;
    rows[run->count++] = *row;
    return LS_OK;
}

static ls_status add_score(report_run *run, const report_score *score)
{
    while (run->score_count > 0 && run->scores[run->score_count - 1].step > score->step) {
        run->score_count--;
    }
    if (run->score_count > 0 && run->scores[run->score_count - 1].step == score->step) {
        report_score *same = &run->scores[run->score_count - 1];
        keep_known(&same->loss, score->loss);
        keep_known(&same->peak_bytes, score->peak_bytes);
        keep_known(&same->estimate_bytes, score->estimate_bytes);
        return LS_OK;
    }
    report_score *scores =
        trace_room(run->scores, run->score_count, &run->score_room, sizeof *scores);
    if (scores == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the evaluations of \"%s\"", run->log);
    }
    run->scores = scores;
    scores[run->score_count++] = *score;
    return LS_OK;
}

/* A program may write the numbers of a step in one line or in several. The trainers' line of a step
 * has a loss, of which null is one that is not finite. */
static ls_status add_numbers(report_run *run, int64_t step, const json_t *line)
{
    const double held_out = number_of(line, "held_out_loss");
    const report_row row = {.step = step,
                            .loss = number_of(line, "loss"),
                            .seconds = number_of(line, "seconds"),
                            .exposed = number_of(line, "exposed_seconds"),
                            .per_second = per_second_of(line, run)};
    const report_score score = {.step = step,
                                .loss = isnan(held_out) ? number_of(line, "test_loss") : held_out,
                                .peak_bytes = number_of(line, "peak_memory_bytes"),
                                .estimate_bytes = number_of(line, "estimated_memory_bytes")};
    if (json_object_get(line, "loss") != NULL || is_row(&row)) {
        LS_TRY(add_row(run, &row));
    }
    return is_score(&score) ? add_score(run, &score) : LS_OK;
}

/* One line of the log; damaged ones are counted. */
static ls_status take_line(report_run *run, const char *text, size_t bytes)
{
    json_t *line = NULL;
    ls_status status = LS_OK;
    run->lines++;
    if (ls__json_read("line", text, bytes, 0, &line_limit, &line) != LS_OK) {
        run->damaged++;
        return LS_OK;
    }
    const json_t *step = json_object_get(line, "step");
    const int64_t number = json_integer_value(step);
    if (!json_is_integer(step) || number < 0) {
        run->damaged++;
    } else {
        status = add_numbers(run, number, line);
    }
    json_decref(line);
    return status;
}

static ls_status read_log(FILE *file, report_run *run)
{
    char *text = NULL;
    size_t room = 0;
    ssize_t bytes;
    ls_status status = LS_OK;
    while (status == LS_OK && (bytes = getline(&text, &room, file)) > 0) {
        status = take_line(run, text, (size_t)bytes);
    }
    free(text);
    LS_TRY(status);
    if (ferror(file)) {
        return ls__fail(LS_ERR_SYSTEM, "\"%s\" cannot be read: %s", run->log, strerror(errno));
    }
    if (run->lines == 0) {
        return ls__fail(LS_ERR_FORMAT,
                        "\"%s\" is empty: its job has not ended a step yet; give the file of --log "
                        "of a job that has",
                        run->log);
    }
    if (run->damaged == run->lines) {
        return ls__fail(LS_ERR_FORMAT,
                        "\"%s\" has no step in %lld lines; give the file that `lockstep train "
                        "--log` wrote, or a trace of LOCKSTEP_TRACE",
                        run->log, (long long)run->lines);
    }
    return run->count + run->score_count > 0
               ? LS_OK
               : ls__fail(LS_ERR_FORMAT,
                          "\"%s\" has steps, but no number that is shown: loss, seconds, "
                          "exposed_seconds, held_out_loss or one that ends with _per_second; write "
                          "them with ls_event_log_add",
                          run->log);
}

static ls_status read_trace(const char *path, report_run *run)
{
    run->trace_file = path;
    run->trace = calloc(1, sizeof *run->trace);
    if (run->trace == NULL) {
        return ls__fail(LS_ERR_MEMORY, "no memory for the trace \"%s\"", path);
    }
    LS_TRY(trace_read(path, run->trace));
    return trace_divide(path, run->trace);
}

static ls_status read_file(const char *path, report_run *runs, int *count)
{
    FILE *file = cli_open(path, "r");
    if (file == NULL) {
        return ls__fail(LS_ERR_NOT_FOUND, "\"%s\" cannot be read: %s", path,
                        errno == EINVAL ? "it is not a regular file" : strerror(errno));
    }
    const bool traced = is_trace(file);
    const bool joins = traced && *count > 0 && runs[*count - 1].trace == NULL;
    if (!joins && *count == REPORT_RUNS_MAX) {
        (void)fclose(file);
        return ls__fail(LS_ERR_LIMIT, "\"%s\" would be run %d; give at most %d", path,
                        REPORT_RUNS_MAX + 1, REPORT_RUNS_MAX);
    }
    report_run *run = joins ? &runs[*count - 1] : &runs[(*count)++];
    run->log = traced ? run->log : path;
    const ls_status status = traced ? read_trace(path, run) : read_log(file, run);
    (void)fclose(file);
    return status;
}

ls_status report_read(char *const *files, int file_count, report_run *runs, int *count)
{
    *count = 0;
    for (int i = 0; i < file_count; i++) {
        LS_TRY(read_file(files[i], runs, count));
    }
    return LS_OK;
}

void report_free(report_run *runs, int count)
{
    for (int i = 0; i < count; i++) {
        if (runs[i].trace != NULL) {
            trace_free(runs[i].trace);
        }
        free(runs[i].trace);
        free(runs[i].rows);
        free(runs[i].scores);
    }
}

/* ---- the summary ---------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* NAN without a value, or without memory. The first step prepares kernels and buckets, so it counts
 * only where it is alone. */
static double median_of(const report_run *run, bool speed)
{
    double *values = calloc((size_t)run->count + 1, sizeof *values);
    int64_t count = 0;
    for (int64_t i = run->count > 1; values != NULL && i < run->count; i++) {
        const double value = speed ? run->rows[i].per_second : run->rows[i].seconds;
        if (!isnan(value)) {
            values[count++] = value;
        }
    }
    if (count > 0) {
        qsort(values, (size_t)count, sizeof *values, by_value);
    }
    const double median = count > 0 ? values[count / 2] : NAN;
    free(values);
    return median;
}

static double exposed_of(const report_run *run)
{
    double exposed = 0.0, seconds = 0.0;
    for (int64_t i = run->count > 1; i < run->count; i++) {
        const report_row *row = &run->rows[i];
        if (!isnan(row->exposed) && !isnan(row->seconds)) {
            exposed += row->exposed;
            seconds += row->seconds;
        }
    }
    return seconds > 0.0 ? exposed / seconds : NAN;
}

static void add_trace(report_summary *s, const trace *t, bool alone)
{
    const trace_mean all = trace_mean_of(t, -1, -1);
    s->slowest = trace_slowest(t);
    s->mean_ms = trace_busy_ms(&all);
    if (s->slowest >= 0) {
        const trace_mean m = trace_mean_of(t, s->slowest, -1);
        s->slowest_ms = trace_busy_ms(&m);
    }
    if (alone) {
        s->steps = t->step_count / (t->world_size > 0 ? t->world_size : 1);
        s->step_seconds = all.ms * 1e-3;
        s->exposed = all.ms > 0.0 ? all.part[TRACE_EXPOSED] / all.ms : NAN;
    }
}

report_summary report_summarise(const report_run *run)
{
    report_summary s = {.steps = run->count,
                        .last_loss = run->count > 0 ? run->rows[run->count - 1].loss : NAN,
                        .best_held_out = NAN,
                        .per_second = median_of(run, true),
                        .step_seconds = median_of(run, false),
                        .exposed = exposed_of(run),
                        .slowest = -1,
                        .peak_bytes = NAN,
                        .estimate_bytes = NAN};
    for (int64_t i = 0; i < run->score_count; i++) {
        const report_score *score = &run->scores[i];
        s.best_held_out = fmin(s.best_held_out, score->loss); /* of a number and NAN the number */
        s.peak_bytes = fmax(s.peak_bytes, score->peak_bytes);
        s.estimate_bytes = fmax(s.estimate_bytes, score->estimate_bytes);
    }
    if (run->trace != NULL) {
        add_trace(&s, run->trace, run->log == NULL);
    }
    return s;
}

const char *report_name(const report_run *run)
{
    return run->log != NULL ? run->log : run->trace_file;
}
