/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep plan schedule`: a pipeline schedule as a diagram, with its bubble and its memory beside
 * the formulas of the papers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/file.h"
#include "base/text.h"
#include "tools/cli/cli.h"
#include "tools/plan.h"

#define RANKS_DEFAULT 4
#define MICRO_BATCHES_DEFAULT 8
#define NOT_GIVEN (-1.0)

static int64_t ranks, micro_batches, chunks, per_step, warm_up;
static double forward = 1.0, backward = NOT_GIVEN, input = NOT_GIVEN, weight = NOT_GIVEN, latency;
static bool recompute, vertical_sync, table;
static const char *svg, *replicas;

static const cli_option options[] = {
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__SCHEDULE_RANKS_MAX, .letter = 'p',
     .fallback = "4", .help = "P, ranks of the pipeline"},
    {"micro-batches", CLI_COUNT, &micro_batches, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .letter = 'm', .fallback = "8", .help = "M, micro-batches in all"},
    {"chunks", CLI_COUNT, &chunks, .low = 1, .high = LS__SCHEDULE_STAGES_MAX, .fallback = "2",
     .help = "V, of interleaved: stages on each rank"},
    {"replicas", CLI_TEXT, &replicas, .value_name = "R,R,...", .fallback = "1 of each stage",
     .help =
         "of gpipe and 1f1b: ranks of each stage; micro-batch m is on replica m mod R, and each "
         "takes R F and R B, so that all stages have the same throughput"},
    {"per-step", CLI_COUNT, &per_step, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .fallback = "P", .help = "of pipedream-2bw: micro-batches of an optimizer step"},
    {"forward", CLI_NUMBER, &forward, .low = 0, .high = 1e9,
     .help = "F, time of a forward of one micro-batch on a rank, in any unit; each of V stages "
             "takes 1/V of it"},
    {"backward", CLI_NUMBER, &backward, .low = 0, .high = 1e9, .fallback = "2, or input + weight",
     .help = "B, time of a backward"},
    {"input", CLI_NUMBER, &input, .low = 0, .high = 1e9, .fallback = "half of backward",
     .help = "I, time of its input part (zb-h1)"},
    {"weight", CLI_NUMBER, &weight, .low = 0, .high = 1e9, .fallback = "backward - input",
     .help = "W, time of its weight part (zb-h1)"},
    {"latency", CLI_NUMBER, &latency, .low = 0, .high = 1e9,
     .help = "c, time from a computation's end until another rank has its result"},
    {"recompute", CLI_SWITCH, &recompute,
     .help = "keep only the input of each stage, and run its forward again before its backward"},
    {"warm-up", CLI_COUNT, &warm_up, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .fallback = "1",
     .help = "w, of 1f1b: forwards that a rank runs ahead, for each later rank; 2 hides the "
             "latency"},
    {"vertical-sync", CLI_SWITCH, &vertical_sync,
     .help = "of pipedream: all stages use the version of the first one"},
    {"svg", CLI_TEXT, &svg, .value_name = "FILE", .fallback = "",
     .help = "also write the diagram to FILE"},
    {"table", CLI_SWITCH, &table,
     .help = "print the table instead: each rank's actions, as a text that reads back as FILE"},
};

static char more[1536];

static const cli_command command = {
    .name = "lockstep plan schedule",
    .about = "Draws a pipeline schedule, and prints its bubble and memory beside the formulas.",
    .operands = "NAME|FILE",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more = more};

/* The paragraphs after the options. */
static void write_more(void)
{
    const char *const *names, *const *abouts;
    const int count = ls__schedule_names(&names, &abouts);
    ls__text text = {more, sizeof more};
    ls__text_add(&text, "NAME:\n");
    for (int i = 0; i < count; i++) {
        ls__text_add(&text, "  %-14s %s\n", names[i], abouts[i]);
    }
    ls__text_add(
        &text,
        "FILE (its name has a . or /) holds a table as --table prints it. It is verified,\n"
        "and the first action at which it fails is named.\n\n"
        "In the diagram F3 is the forward of micro-batch 3, B its backward, I and W the\n"
        "input and the weight part of one, R a recomputation; with several stages on a rank\n"
        "2F3 is of stage 2. A dot is idle.\n");
}

void plan_schedule_print_operands(void)
{
    const char *const *names, *const *abouts;
    const int count = ls__schedule_names(&names, &abouts);
    for (int i = 0; i < count; i++) {
        printf("%s\n", names[i]);
    }
}

/* ---- what was asked -------------------------------------------------------------------------- */

/* Fills in the times that were not given. Returns 0 or the exit status. */
static int complete_times(void)
{
    const bool parts = input >= 0.0 && weight >= 0.0;
    if (backward < 0.0) {
        backward = parts ? input + weight : 2.0;
    }
    if (parts && input + weight != backward) {
        return cli_wrong(&command,
                         "--input %g and --weight %g are not --backward %g; omit one of "
                         "the three",
                         input, weight, backward);
    }
    if (input > backward || weight > backward) {
        return cli_wrong(&command, "a part of a backward takes longer than all of it, %g",
                         backward);
    }
    input = input >= 0.0 ? input : weight >= 0.0 ? backward - weight : backward / 2;
    weight = backward - input;
    return 0;
}

static bool is_file(const char *operand)
{
    return strpbrk(operand, "./") != NULL;
}

static ls_status open_file(const char *path, ls__schedule **out)
{
    const ls__env *env = ls__env_posix();
    ls__file file;
    LS_TRY(ls__file_map(env, "schedule", path, &file));
    ls_status status = ls__schedule_parse(env, path, (const char *)file.data, file.bytes, out);
    ls__file_release(env, &file);
    if (status == LS_OK) {
        status = ls__schedule_verify(*out);
    }
    return status;
}

static ls_status open_schedule(const char *operand, ls__schedule **out)
{
    if (is_file(operand)) {
        return open_file(operand, out);
    }
    const int otherwise = replicas != NULL ? 0 : RANKS_DEFAULT; /* 0: as the replicas say */
    const ls__schedule_spec spec = {.ranks = ranks > 0 ? (int)ranks : otherwise,
                                    .micro_batches = micro_batches > 0 ? (int)micro_batches
                                                                       : MICRO_BATCHES_DEFAULT,
                                    .chunks = (int)chunks,
                                    .per_step = (int)per_step,
                                    .recompute = recompute,
                                    .vertical_sync = vertical_sync,
                                    .warm_up = (int)warm_up,
                                    .replicas = replicas};
    return ls__schedule_new(ls__env_posix(), operand, &spec, out);
}

/* ---- what is printed ------------------------------------------------------------------------- */

/* `formula` NULL: there is none. */
static void print_columns(const char *what, const char *here, const char *there,
                          const char *formula)
{
    printf("%-13s  %-16s  ", what, here);
    printf(formula != NULL ? "%-16s  %s\n" : "%s\n", there, formula);
}

static void print_number(ls__text *text, double number)
{
    if (number < 0.0) {
        ls__text_add(text, "-");
    } else {
        ls__text_add(text, "%.6g", number);
    }
}

/* A row of one number each. */
static void print_row(const char *what, double found, double closed, const char *formula)
{
    char here[32], there[32];
    ls__text a = {here, sizeof here}, b = {there, sizeof there};
    print_number(&a, found);
    print_number(&b, closed);
    print_columns(what, here, formula != NULL ? there : "-", formula);
}

typedef int64_t (*peak_field)(const ls__schedule_peak *);

static int64_t activations(const ls__schedule_peak *p)
{
    return p->activations;
}

static int64_t inputs(const ls__schedule_peak *p)
{
    return p->inputs;
}

static int64_t received(const ls__schedule_peak *p)
{
    return p->received;
}

static int64_t stashed(const ls__schedule_peak *p)
{
    return p->stashed;
}

/* A row of one number for each rank. */
static void print_peaks(const char *what, const ls__schedule *s, const ls__schedule_peak *peaks,
                        peak_field field, const char *formula)
{
    static char here[LS__SCHEDULE_RANKS_MAX * 12], there[sizeof here];
    ls__text a = {here, sizeof here}, b = {there, sizeof there};
    here[0] = there[0] = '\0';
    for (int r = 0; r < s->ranks; r++) {
        ls__schedule_peak closed;
        ls__schedule_closed_peak(s, r, &closed);
        ls__text_add(&a, "%s%lld", r > 0 ? " " : "", (long long)field(&peaks[r]));
        ls__text_add(&b, "%s%lld", r > 0 ? " " : "", (long long)field(&closed));
    }
    print_columns(what, here, formula != NULL ? there : "-", formula);
}

/* Mean time from one backward of the last stage to the next: without a flush, that of a
 * micro-batch. */
static double period(const ls__schedule *s, const ls__sim_result *cost)
{
    const int rank = s->rank_of[s->stages - 1];
    double first = -1.0, last = 0.0;
    for (int i = 0; i < s->rank[rank].count; i++) {
        const ls__action *a = &s->rank[rank].list[i];
        if (ls__action_form_of(a->kind)->backward && a->stage == s->stages - 1) {
            last = cost->begin[rank][i];
            first = first < 0.0 ? last : first;
        }
    }
    return s->micro_batches > 1 ? (last - first) / (s->micro_batches - 1) : 0.0;
}

static void print_numbers(const ls__schedule *s, const ls__sim_result *cost,
                          const ls__stage_times *times, const ls__schedule_peak *peaks,
                          bool generated)
{
    ls__closed_form closed;
    ls__schedule_closed_form(s, times, latency, &closed);
    const bool steady = ls__schedule_steps(s) > 1;
    const char *kept = generated ? closed.activations_text : NULL;
    printf("\n");
    print_columns("", "this table", "closed form", "formula");
    print_row("makespan", cost->makespan, closed.makespan, generated ? "work + bubble" : NULL);
    print_row("bubble", cost->bubble, closed.bubble, generated ? closed.bubble_text : NULL);
    if (cost->makespan > 0.0) {
        printf("%-13s  %.1f %%\n", "share", 100.0 * cost->bubble / cost->makespan);
    }
    if (steady) {
        print_row("period", period(s, cost), times->forward + times->backward,
                  generated && latency == 0.0 && !s->recompute ? "F+B" : NULL);
    }
    print_peaks("activations", s, peaks, activations, s->recompute ? NULL : kept);
    if (s->recompute) {
        print_peaks("kept inputs", s, peaks, inputs, kept);
    }
    print_peaks("received", s, peaks, received, NULL);
    print_peaks("stashed", s, peaks, stashed, generated ? closed.stashed_text : NULL);
    printf(
        "\nbubble: makespan - work of a rank. Of each rank at most: activations, kept inputs and\n"
        "received inputs, in micro-batches of a stage; stashed versions of the weights, beside "
        "the\n"
        "newest one.%s%s%s\n",
        steady ? " period: from a backward of the last stage to its next." : "",
        ls__schedule_has_replicas(s) ? " r: ranks of a stage, R: those from it on." : "",
        s->warm_up > 1 ? " w: --warm-up." : "");
}

static int fail(void)
{
    fprintf(stderr, "lockstep: %s\n", ls_error_message());
    return 1;
}

static int write_svg(const ls__schedule *s, const ls__sim_result *cost,
                     const ls__stage_times *times)
{
    FILE *out = cli_create(svg);
    const bool written = out != NULL && plan_write_svg(out, s, cost, times);
    if (out == NULL || fclose(out) != 0 || !written) {
        return plan_fail_to_write(svg);
    }
    return 0;
}

static int show(ls__schedule *s, bool generated)
{
    static ls__schedule_peak peaks[LS__SCHEDULE_RANKS_MAX];
    static ls__stage_times all[LS__SCHEDULE_STAGES_MAX];
    ls__sim_result cost;
    for (int i = 0; i < s->stages; i++) { /* of V stages 1/V of the time; of r replicas, r of it */
        const double share = (double)s->replicas[i] * s->ranks / s->replica_count;
        all[i] =
            (ls__stage_times){forward * share, backward * share, input * share, weight * share};
    }
    if (ls__simulate(s, &(ls__sim_spec){.times = all, .latency = latency}, &cost) < 0 ||
        ls__schedule_peaks(s, NULL, peaks) < 0) {
        return fail();
    }
    plan_print_diagram(s, &cost, all, latency);
    print_numbers(s, &cost, all, peaks, generated);
    return svg != NULL ? write_svg(s, &cost, all) : 0;
}

static int print_table(ls__schedule *s)
{
    const char *text = ls__schedule_print(s);
    if (text == NULL) {
        return fail();
    }
    fputs(text, stdout);
    return 0;
}

int plan_schedule(int argc, char **argv)
{
    ls__schedule *s = NULL;
    write_more();
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "give one schedule, such as 1f1b, or one file");
    }
    const bool sized = ranks > 0 || micro_batches > 0 || chunks > 0 || per_step > 0 || recompute ||
                       vertical_sync || warm_up > 0 || replicas != NULL;
    if (is_file(argv[first]) && sized) {
        return cli_wrong(&command, "\"%s\" is a file, which has its own sizes; give only times",
                         argv[first]);
    }
    int status = cli_keep_input(&command, "svg", svg, argv[first]);
    status = status == 0 ? complete_times() : status;
    if (status != 0) {
        return status;
    }
    if (open_schedule(argv[first], &s) < 0) {
        status = fail();
    } else {
        status = table ? print_table(s) : show(s, !is_file(argv[first]));
    }
    ls__schedule_free(s);
    return status;
}
