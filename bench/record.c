/* SPDX-License-Identifier: Apache-2.0 */
/* Records the timeline of a backward: medians over steps; see timeline.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "timeline.h"
#include "tools/cli/cli.h"

struct ls__recording {
    int count, steps, steps_max;
    ls_reducer *reducer;
    double *ready; /* [count][steps_max] */
};

static int count_of(ls_reducer *reducer)
{
    ls_reducer_event event = {.size = sizeof event};
    int count = 0;
    while (ls_reducer_get_event(reducer, count, &event) == LS_OK) {
        count++;
    }
    return count;
}

ls__recording *ls__recording_new(ls_reducer *reducer, int steps_max)
{
    ls__recording *r = calloc(1, sizeof *r);
    if (r != NULL) {
        *r =
            (ls__recording){.count = count_of(reducer), .steps_max = steps_max, .reducer = reducer};
        r->ready = calloc((size_t)r->count * (size_t)steps_max + 1, sizeof *r->ready);
    }
    if (r != NULL && r->ready == NULL) {
        free(r);
        return NULL;
    }
    return r;
}

void ls__recording_free(ls__recording *r)
{
    free(r != NULL ? r->ready : NULL);
    free(r);
}

ls_status ls__recording_add(ls__recording *r, ls_reducer *reducer)
{
    for (int i = 0; i < r->count; i++) {
        ls_reducer_event event = {.size = sizeof event};
        LS_TRY(ls_reducer_get_event(reducer, i, &event));
        r->ready[(size_t)i * (size_t)r->steps_max + (size_t)r->steps] = event.ready;
    }
    r->steps++;
    return LS_OK;
}

/* Of the part of the first contender, by its name. */
static double part_of(const ls__bench_ddp *b, const char *name)
{
    const ls__bench_ddp_contender *c = b->contender;
    double numbers[BENCH_DDP_STEPS];
    int part = 0;
    while (strcmp(ls__bench_ddp_parts[part], name) != 0) {
        part++;
    }
    for (int s = 0; s < c->samples; s++) {
        numbers[s] = c->seconds[s][part];
    }
    return ls__bench_median(numbers, c->samples);
}

static double ready_of(const ls__recording *r, int i)
{
    return ls__bench_median(r->ready + (size_t)i * (size_t)r->steps_max, r->steps);
}

/* Not before the last gradient: that is a median of other steps, and of this rank alone. */
static double backward_of(const ls__recording *r, const ls__bench_ddp *b)
{
    double seconds = part_of(b, "backward");
    for (int i = 0; i < r->count; i++) {
        seconds = ready_of(r, i) > seconds ? ready_of(r, i) : seconds;
    }
    return seconds;
}

/* {"name": …, "elements": …, "dtype": …, "ready_s": …} */
static json_t *gradient_of(const ls__recording *r, int i)
{
    ls_reducer_event event = {.size = sizeof event};
    if (ls_reducer_get_event(r->reducer, i, &event) < 0) {
        return NULL;
    }
    return json_pack("{s:s, s:I, s:s, s:f}", "name", event.name, "elements",
                     (json_int_t)event.count, "dtype", ls_dtype_name(event.dtype), "ready_s",
                     ready_of(r, i));
}

static json_t *head_of(const ls__recording *r, const ls__bench_ddp *b)
{
    char how[256], command[256], date[32];
    json_t *machine = ls__bench_machine();
    (void)json_object_del(machine, "release"); /* says nothing about these times */
    const time_t now = time(NULL);
    struct tm day;
    (void)strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &day));
    (void)snprintf(how, sizeof how, "medians of %d steps of %d rank%s; gradients reduced: %s",
                   r->steps, b->ranks, b->ranks == 1 ? "" : "s", ls__bench_ddp_mode(b->contender));
    (void)snprintf(command, sizeof command,
                   "lockstep bench ddp --model %s --batch %d -n %d --mode %s --steps %d --rounds "
                   "%d",
                   b->model, b->batch, b->ranks, ls__bench_ddp_mode(b->contender), b->steps,
                   b->rounds);
    return json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:o, s:f, s:f, s:f}", "name", b->model,
                     "title", b->about, "batch", b->batch, "how", how, "command", command, "date",
                     date, "machine", machine, "forward_s", part_of(b, "forward"), "backward_s",
                     backward_of(r, b), "optimizer_s", part_of(b, "optimizer"));
}

/* A line for each gradient. */
static bool dump(const ls__recording *r, json_t *head, FILE *out)
{
    char *text = json_dumps(head, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    bool good = text != NULL;
    if (good) {
        text[strlen(text) - 2] = '\0'; /* the end of the object */
        fprintf(out, "%s,\n \"gradients\": [", text);
    }
    free(text);
    for (int i = 0; i < r->count && good; i++) {
        json_t *gradient = gradient_of(r, i);
        text = json_dumps(gradient, JSON_REAL_PRECISION(6));
        good = text != NULL;
        fprintf(out, "%s\n  %s", i > 0 ? "," : "", good ? text : "");
        free(text);
        json_decref(gradient);
    }
    fputs("\n ]\n}\n", out);
    return good;
}

bool ls__recording_write(const ls__recording *r, const ls__bench_ddp *b, const char *path)
{
    FILE *out = cli_create(path);
    json_t *head = head_of(r, b);
    bool written = out != NULL && head != NULL && dump(r, head, out);
    written = out != NULL && fclose(out) == 0 && written;
    json_decref(head);
    if (!written) {
        fprintf(stderr, "lockstep bench: cannot write to %s\n", path);
    }
    return written;
}
