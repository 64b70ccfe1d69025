/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep trace`: where the time of a traced job's steps went. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "commands.h"
#include "tools/cli/cli.h"
#include "tools/trace.h"

#define TOP_DEFAULT 10

static int64_t top = TOP_DEFAULT;
static bool every_step;
static const char *json_path;

static const cli_option options[] = {
    {"top", CLI_COUNT, &top, .low = 0, .high = TRACE_NAMES_MAX,
     .help = "operations of backward that are listed"},
    {"steps", CLI_SWITCH, &every_step, .help = "also list every step, as the mean of the ranks"},
    {"json", CLI_TEXT, &json_path, .value_name = "FILE",
     .help = "also write all steps of all ranks to FILE"},
};

static const cli_command command = {
    .name = "lockstep trace",
    .about = "Summarises the file that LOCKSTEP_TRACE=FILE.json made a job write.",
    .operands = "FILE",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "A step is the sum of forward, backward (its computation), exposed (the training thread\n"
        "waits for communication), optimizer, loader (it waits for a batch) and other. Wire is\n"
        "the time in which a collective was under way, hidden its share that is not exposed.\n"
        "Step 0 is left out of the means where there are others.\n"};

/* ---- printing ------------------------------------------------------------------------------- */

static void print_row(const char *name, const trace_mean *m)
{
    printf("%-10s %9.3f", name, m->ms);
    for (int p = 0; p < TRACE_PARTS; p++) {
        printf(" %9.3f", m->part[p]);
    }
    printf(" | %9.3f %5.0f %%\n", m->wire_ms, 100.0 * trace_hidden(m));
}

static void print_heads(const char *first)
{
    printf("%-10s %9s", first, "step");
    for (int p = 0; p < TRACE_PARTS; p++) {
        printf(" %9s", trace_part_names[p]);
    }
    printf(" | %9s %7s\n", "wire", "hidden");
}

static int hosts_of(const trace *t)
{
    int hosts = 0;
    for (int r = 0; r < t->world_size; r++) {
        bool known = !t->ranks[r].present;
        for (int s = 0; s < r && !known; s++) {
            known = t->ranks[s].present && t->ranks[s].node == t->ranks[r].node;
        }
        hosts += !known;
    }
    return hosts;
}

/* The first and the last step; returns how many the rank with most of them has. */
static int64_t range_of(const trace *t, int *first, int *last)
{
    int64_t most = 0, here = 0;
    *first = *last = t->steps[0].number;
    for (int64_t s = 0; s < t->step_count; s++) {
        const trace_step *step = &t->steps[s];
        here = s > 0 && step->rank == step[-1].rank ? here + 1 : 1;
        most = here > most ? here : most;
        *first = step->number < *first ? step->number : *first;
        *last = step->number > *last ? step->number : *last;
    }
    return most;
}

/* States what the trace lacks, so that its means are not taken for the whole job's. */
static void print_gaps(const trace *t)
{
    int64_t dropped = 0;
    for (int r = 0; r < t->world_size; r++) {
        dropped += t->ranks[r].dropped;
        if (!t->ranks[r].present) {
            printf("rank %d is missing\n", r);
        } else if (!t->ranks[r].finalized) {
            printf("rank %d ended before ls_finalize\n", r);
        }
    }
    if (dropped > 0) {
        printf("%lld spans, the oldest, were dropped; LOCKSTEP_TRACE_EVENTS keeps more\n",
               (long long)dropped);
    }
    if (t->cut) {
        printf("the file ends in the middle\n");
    }
}

static void print_operations(const trace *t)
{
    double all = 0.0;
    for (int i = 0; i < t->operation_count; i++) {
        all += t->operations[i].ms;
    }
    if (all <= 0.0 || top == 0) {
        return;
    }
    printf("\n%-24s %9s %8s %7s\n", "backward", "ms a step", "calls", "share");
    for (int i = 0; i < t->operation_count && i < top; i++) {
        const trace_operation *o = &t->operations[i];
        printf("%-24s %9.3f %8.1f %5.1f %%\n", o->name, o->ms / (double)t->counted,
               (double)o->calls / (double)t->counted, 100.0 * o->ms / all);
    }
}

static void print_ranks(const trace *t)
{
    char name[32];
    print_heads("ms");
    for (int r = 0; r < t->world_size; r++) {
        const trace_mean m = trace_mean_of(t, r, -1);
        (void)snprintf(name, sizeof name, "rank %d", r);
        if (m.steps > 0) {
            print_row(name, &m);
        }
    }
    const trace_mean all = trace_mean_of(t, -1, -1);
    print_row("mean", &all);
    const int slowest = trace_slowest(t);
    if (slowest >= 0) {
        const trace_mean m = trace_mean_of(t, slowest, -1);
        printf("\nslowest: rank %d (%s), which works for %.3f ms of a step; the mean is %.3f ms\n",
               slowest, t->ranks[slowest].host, trace_busy_ms(&m), trace_busy_ms(&all));
    }
}

/* The smallest number of a step above this one; INT_MAX: none. */
static int step_after(const trace *t, int number)
{
    int next = INT_MAX;
    for (int64_t s = 0; s < t->step_count; s++) {
        const int here = t->steps[s].number;
        next = here > number && here < next ? here : next;
    }
    return next;
}

static void print_steps(const trace *t, int first)
{
    char name[32];
    printf("\n");
    print_heads("ms");
    for (int number = first; number < INT_MAX; number = step_after(t, number)) {
        const trace_mean m = trace_mean_of(t, -1, number);
        (void)snprintf(name, sizeof name, "step %d", number);
        print_row(name, &m);
    }
}

static void print(const char *path, const trace *t)
{
    int first, last, ranks = 0;
    const int64_t count = range_of(t, &first, &last);
    const int hosts = hosts_of(t);
    for (int r = 0; r < t->world_size; r++) {
        ranks += t->ranks[r].present;
    }
    printf("%s: %lld step%s (%d to %d) of %d rank%s on %d host%s\n", path, (long long)count,
           count == 1 ? "" : "s", first, last, ranks, ranks == 1 ? "" : "s", hosts,
           hosts == 1 ? "" : "s");
    print_gaps(t);
    printf("\n");
    print_ranks(t);
    print_operations(t);
    if (every_step) {
        print_steps(t, first);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* NULL without memory, as all of these. */
static json_t *parts_json(const double part[TRACE_PARTS], double ms, double wire_ms)
{
    json_t *made = json_pack("{s:f, s:f}", "step_ms", ms, "wire_ms", wire_ms);
    for (int p = 0; p < TRACE_PARTS && made != NULL; p++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%s_ms", trace_part_names[p]);
        if (json_object_set_new(made, key, json_real(part[p])) < 0) {
            json_decref(made);
            made = NULL;
        }
    }
    return made;
}

static json_t *step_json(const trace_step *step)
{
    json_t *made = parts_json(step->part, step->ms, step->wire_ms);
    if (made != NULL && (json_object_set_new(made, "rank", json_integer(step->rank)) < 0 ||
                         json_object_set_new(made, "step", json_integer(step->number)) < 0)) {
        json_decref(made);
        made = NULL;
    }
    return made;
}

static json_t *steps_json(const trace *t)
{
    json_t *list = json_array();
    for (int64_t s = 0; s < t->step_count && list != NULL; s++) {
        if (json_array_append_new(list, step_json(&t->steps[s])) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static json_t *operations_json(const trace *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->operation_count && list != NULL; i++) {
        const trace_operation *o = &t->operations[i];
        if (json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "name", o->name, "ms_per_step",
                                                  o->ms / (double)t->counted, "calls_per_step",
                                                  (double)o->calls / (double)t->counted)) < 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static int write_json(const trace *t)
{
    const trace_mean all = trace_mean_of(t, -1, -1);
    json_t *root = json_pack("{s:i, s:i, s:i, s:o, s:o, s:o}", "world_size", t->world_size, "hosts",
                             hosts_of(t), "slowest_rank", trace_slowest(t), "mean",
                             parts_json(all.part, all.ms, all.wire_ms), "steps", steps_json(t),
                             "operations", operations_json(t));
    const bool written =
        root != NULL && cli_write_json(root, json_path, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    if (!written) {
        fprintf(stderr, "lockstep trace: --json %s: cannot be written\n", json_path);
        return 1;
    }
    return 0;
}

int cmd_trace(int argc, char **argv)
{
    static trace t;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, first == argc ? "the file is missing; give the one that "
                                                   "LOCKSTEP_TRACE named"
                                                 : "give one file");
    }
    if (cli_keep_input(&command, "json", json_path, argv[first]) != 0) {
        return CLI_WRONG_USE;
    }
    ls_status status = trace_read(argv[first], &t);
    status = status < 0 ? status : trace_divide(argv[first], &t);
    int result = 1;
    if (status < 0) {
        fprintf(stderr, "lockstep: %s\n", ls_error_message());
    } else {
        print(argv[first], &t);
        result = json_path != NULL ? write_json(&t) : 0;
    }
    trace_free(&t);
    return result;
}
