/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep bench pipeline`: the bubble of schedules as the executor runs them. The stages sleep
 * for given times instead of computing, so ranks need no cores of their own, and what remains of a
 * step is idle time: the schedule's bubble and the cost of messages. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "base/env_posix.h"
#include "bench.h"
#include "cost/simulate.h"
#include "schedule/schedule.h"
#include "tools/cli/cli.h"

enum { SCHEDULES_MAX = 16, ROUNDS_MAX = 100, MICRO_MAX = 256, WARM_UP = 1 };

/* ---- options ------------------------------------------------------------------------------- */

static const char *names = "gpipe,1f1b,interleaved,zb-h1", *json, *transport, *replicas;
static int64_t ranks, micro_batches, chunks, warm_up, rounds;
static double forward_ms, input_ms, weight_ms; /* of a micro-batch on a rank */

static const cli_option options[] = {
    {"schedule", CLI_TEXT, &names, .value_name = "LIST", .help = "names of schedules"},
    {"ranks", CLI_COUNT, &ranks, .low = 1, .high = LS__BENCH_RANKS_MAX, .letter = 'n',
     .help = "P, ranks on this host"},
    {"micro-batches", CLI_COUNT, &micro_batches, .low = 1, .high = MICRO_MAX, .letter = 'm',
     .help = "M, micro-batches of a step"},
    {"chunks", CLI_COUNT, &chunks, .low = 1, .high = 64,
     .help = "V, of interleaved: stages on each rank, each of which takes 1/V of the times"},
    {"replicas", CLI_TEXT, &replicas, .value_name = "R,R,...", .fallback = "1 of each stage",
     .help = "of gpipe and 1f1b: ranks of each stage, of which each takes R times as long"},
    {"warm-up", CLI_COUNT, &warm_up, .low = 1, .high = MICRO_MAX, .fallback = "1",
     .help = "of 1f1b: forwards that a rank runs ahead, for each later rank"},
    {"forward", CLI_NUMBER, &forward_ms, .low = 0, .high = 1e4,
     .help = "F, milliseconds of a micro-batch's forward on a rank"},
    {"input", CLI_NUMBER, &input_ms, .low = 0, .high = 1e4,
     .help = "I, of the input part of its backward"},
    {"weight", CLI_NUMBER, &weight_ms, .low = 0, .high = 1e4,
     .help = "W, of the weight part; B = I + W"},
    {"transport", CLI_CHOICE, &transport, .choices = "shm|tcp",
     .fallback = "as the environment says, else shm",
     .help = "shm: shared memory; tcp: as if every rank had a host of its own"},
    {"rounds", CLI_COUNT, &rounds, .low = 1, .high = ROUNDS_MAX,
     .help = "measured steps of each schedule"},
    {"json", CLI_TEXT, &json, .value_name = "FILE", .help = "also write the rows to FILE"},
};

static const cli_command command = {
    .name = "lockstep bench pipeline",
    .about = "Runs pipeline schedules with stages that sleep, and measures their idle time.",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "step is the time of ls_pipeline_backward on the slowest rank, work is the sleep of\n"
        "the rank that sleeps longest, bubble is their difference: medians of the rounds.\n"
        "formula is the bubble of `lockstep plan schedule`, with --replicas that of its table.\n"
        "spread is the distance of the quartiles / bubble. The schedules take turns. Under a\n"
        "launcher (`lockstep run ... lockstep bench pipeline`) the ranks of the job take part.\n"};

typedef struct row { /* of a schedule */
    char name[LS__SCHEDULE_NAME_BYTES];
    ls__schedule *schedule;
    ls__closed_form formula;
    double step_ms[ROUNDS_MAX], work_ms[ROUNDS_MAX], bubble_ms[ROUNDS_MAX];
} row;

static row rows[SCHEDULES_MAX];
static int row_count;

/* ---- stages that sleep ---------------------------------------------------------------------- */

static double share;    /* of the times, that this rank's stage takes */
static double slept_ms; /* by this rank in this step */

static void sleep_for(double ms)
{
    slept_ms += ls__bench_sleep(ms * share);
}

static ls_status sleep_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                               int m, void *ms)
{
    (void)n, (void)m;
    const double *times = ms; /* forward, backward */
    sleep_for(times[0]);
    out[0] = ls_scale(in[0], 1.0);
    return ls_function_save_data(call, &times[1], sizeof times[1]);
}

static ls_status sleep_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                ls_tensor **din, int n)
{
    (void)m, (void)n;
    sleep_for(*(const double *)ls_function_data(call));
    din[0] = ls_scale(dout[0], 1.0);
    return LS_OK;
}

static const ls_function sleep_function =
    LS_FUNCTION(.name = "sleep", .forward = sleep_forward, .backward = sleep_backward);

/* What leads to the weight alone runs in the weight part of a backward, the rest in its input
 * part. */
static ls_tensor *sleeper_forward(ls_module *m, ls_tensor *x)
{
    ls_tensor *weight = ((ls__bench_sleeper *)m)->weight;
    return ls_add(ls_function_apply(&sleep_function, x, (double[]){forward_ms, input_ms}),
                  ls_function_apply(&sleep_function, weight, (double[]){0.0, weight_ms}));
}

static const ls_module_class sleeper_class =
    LS_MODULE_CLASS(.name = "sleeper", .forward = sleeper_forward);

static ls_module *make_net(int stages)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    for (int s = 0; s < stages; s++) {
        ls__bench_add_sleeper(net, s, ls_module_new(sizeof(ls__bench_sleeper), &sleeper_class));
    }
    return net;
}

/* Only 1f1b has it. */
static int warm_up_of(const char *name)
{
    return strcmp(name, "1f1b") == 0 ? (int)warm_up : 0;
}

/* A stage's part of the times of a rank: 1/V of V stages; r of r replicas. */
static double share_of(const ls__schedule *s, int stage)
{
    return (double)s->replicas[stage] * s->ranks / s->replica_count;
}

/* ---- measuring ------------------------------------------------------------------------------ */

typedef struct runner {
    ls_module *net;
    ls_group *alike; /* the ranks of the stage, where stages have several */
    ls_optim *optim;
    ls_pipeline *pipe;
} runner;

static ls_status make_runner(const row *r, runner *out)
{
    out->net = make_net(r->schedule->stages);
    LS_TRY(out->net != NULL ? LS_OK : ls_error_status());
    LS_TRY(ls_pipeline_new(
        out->net, ls_world(),
        LS_OPTIONS(ls_pipeline_options, .schedule = r->name, .micro_batches = (int)micro_batches,
                   .chunks = r->schedule->stages / r->schedule->ranks, /* 0: it has replicas */
                   .replicas = replicas, .warm_up = warm_up_of(r->name), .loss = ls__bench_sum_of),
        &out->pipe));
    if (replicas != NULL) {
        LS_TRY(ls_group_split(ls_world(), ls_pipeline_stage(out->pipe), 0, "stage", &out->alike));
        ls_module *wrapped = ls_ddp_new(out->net, out->alike, NULL);
        LS_TRY(wrapped != NULL ? LS_OK : ls_error_status());
        out->net = wrapped;
    }
    out->optim = ls_sgd_new(out->net, LS_OPTIONS(ls_sgd_options, .lr = 0.0));
    LS_TRY(out->optim != NULL ? LS_OK : ls_error_status());
    return ls__schedule_steps_itself(r->schedule) ? ls_pipeline_set_optim(out->pipe, out->optim)
                                                  : LS_OK;
}

static void free_runner(runner *r)
{
    ls_optim_free(r->optim);
    (void)ls_pipeline_free(r->pipe);
    ls_module_free(r->net);
    (void)ls_group_free(r->alike);
}

/* A step after which the ranks know the longest time and the most work of any. */
static ls_status step(const row *r, runner *with, double *longest)
{
    LS_SCOPE;
    ls_micro_batch micro[MICRO_MAX];
    ls__bench_same_inputs(micro, (int)micro_batches, LS_SHAPE(1));
    share = share_of(r->schedule, ls_pipeline_stage(with->pipe));
    slept_ms = 0.0;
    LS_TRY(ls_barrier(ls_world(), NULL, NULL));
    const double begin = ls__bench_now_ms();
    LS_TRY(ls_pipeline_backward(with->pipe, with->net, micro, NULL));
    longest[0] = ls__bench_now_ms() - begin;
    longest[1] = slept_ms;
    ls_optim_zero_grad(with->optim);
    return ls_all_reduce(ls_world(), longest, longest, 2, LS_FLOAT64, LS_MAX, NULL, NULL);
}

static ls_status measure(runner *runners)
{
    for (int i = 0; i < row_count; i++) {
        LS_TRY(make_runner(&rows[i], &runners[i]));
    }
    for (int round = -WARM_UP; round < rounds; round++) {
        for (int i = 0; i < row_count; i++) {
            double longest[2];
            LS_TRY(step(&rows[i], &runners[i], longest));
            if (round >= 0) {
                rows[i].step_ms[round] = longest[0];
                rows[i].work_ms[round] = longest[1];
                rows[i].bubble_ms[round] = longest[0] - longest[1];
            }
        }
    }
    return LS_OK;
}

/* ---- rows ----------------------------------------------------------------------------------- */

static double median(const double *ms)
{
    return ls__bench_median(ms, (int)rounds);
}

static double spread(const row *r)
{
    const double middle = median(r->bubble_ms);
    const double upper = ls__bench_quantile(r->bubble_ms, (int)rounds, 3, 4),
                 lower = ls__bench_quantile(r->bubble_ms, (int)rounds, 1, 4);
    return middle > 0.0 ? (upper - lower) / middle : 0.0;
}

/* Negative, or null in JSON, where no formula holds or its value is 0. */
static double ratio(const row *r)
{
    return r->formula.bubble > 0.0 ? median(r->bubble_ms) / r->formula.bubble : -1.0;
}

static json_t *number_or_null(double number)
{
    return number >= 0.0 ? json_real(number) : json_null();
}

static json_t *row_of(const row *r, json_t *machine)
{
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:o, s:o, s:O}",
        "name", "pipeline", "schedule", r->name, "ranks", r->schedule->ranks, "micro_batches",
        (int)micro_batches, "chunks", r->schedule->stages / r->schedule->ranks, "forward_ms",
        forward_ms, "input_ms", input_ms, "weight_ms", weight_ms, "step_ms", median(r->step_ms),
        "work_ms", median(r->work_ms), "bubble_ms", median(r->bubble_ms), "formula_ms",
        number_or_null(r->formula.bubble), "ratio", number_or_null(ratio(r)), "spread", spread(r),
        "round_ms", ls__bench_list(r->bubble_ms, (int)rounds), "steps_ms",
        ls__bench_list(r->step_ms, (int)rounds), "machine", machine);
}

static void print_row(const row *r)
{
    char formula[24] = "-", of_it[24] = "-";
    if (r->formula.bubble >= 0.0) {
        (void)snprintf(formula, sizeof formula, "%.2f", r->formula.bubble);
    }
    if (r->formula.bubble > 0.0) {
        (void)snprintf(of_it, sizeof of_it, "%.3f", ratio(r));
    }
    printf("  %-14s %10.2f %10.2f %10.2f %10s %8s %7.1f%%\n", r->name, median(r->step_ms),
           median(r->work_ms), median(r->bubble_ms), formula, of_it, 100.0 * spread(r));
}

static bool report(void)
{
    json_t *list = json_array(), *machine = ls__bench_machine();
    printf("# P %d, M %d, F %g ms, I %g ms, W %g ms; medians of %d steps\n",
           rows[0].schedule->ranks, (int)micro_batches, forward_ms, input_ms, weight_ms,
           (int)rounds);
    printf("# %-14s %10s %10s %10s %10s %8s %8s\n", "schedule", "step", "work", "bubble", "formula",
           "ratio", "spread");
    printf("# %-14s %10s %10s %10s %10s\n", "", "(ms)", "(ms)", "(ms)", "(ms)");
    for (int i = 0; i < row_count; i++) {
        print_row(&rows[i]);
        json_array_append_new(list, row_of(&rows[i], machine));
    }
    json_decref(machine);
    return ls__bench_dump(list, row_count, json);
}

/* One rank. Returns its exit status. */
static int run_rank(void *arg)
{
    static runner runners[SCHEDULES_MAX];
    (void)arg;
    ls__bench_sleep_exactly();
    LS_CHECK(ls_init(NULL));
    LS_CHECK(measure(runners));
    const bool written = ls_rank() != 0 || report();
    for (int i = row_count - 1; i >= 0; i--) {
        free_runner(&runners[i]);
    }
    LS_CHECK(ls_finalize());
    return written ? 0 : 1;
}

/* ---- the command ---------------------------------------------------------------------------- */

static ls__stage_times times_of(const ls__schedule *s, int stage)
{
    const double of = share_of(s, stage);
    return (ls__stage_times){forward_ms * of, (input_ms + weight_ms) * of, input_ms * of,
                             weight_ms * of};
}

/* The bubble of the table, where no formula is known. */
static bool add_bubble(row *r)
{
    static ls__stage_times times[LS__SCHEDULE_STAGES_MAX];
    ls__sim_result cost;
    for (int s = 0; s < r->schedule->stages; s++) {
        times[s] = times_of(r->schedule, s);
    }
    if (ls__simulate(r->schedule, &(ls__sim_spec){.times = times}, &cost) < 0) {
        return false;
    }
    r->formula.bubble = cost.bubble;
    return true;
}

/* 0, or the status to end with. */
static int add_row(const char *name, size_t length)
{
    row *r = &rows[row_count];
    (void)snprintf(r->name, sizeof r->name, "%.*s", (int)length, name);
    const bool interleaved = strncmp(name, "interleaved", length) == 0;
    const ls__schedule_spec spec = {.ranks = (int)ranks,
                                    .micro_batches = (int)micro_batches,
                                    .chunks = interleaved ? (int)chunks : 0,
                                    .replicas = replicas,
                                    .warm_up = warm_up_of(r->name)};
    if (ls__schedule_new(ls__env_posix(), r->name, &spec, &r->schedule) < 0) {
        return cli_wrong(&command, "%s", ls_error_message());
    }
    const ls__stage_times times = times_of(r->schedule, 0);
    row_count++;
    ls__schedule_closed_form(r->schedule, &times, 0.0, &r->formula);
    return replicas == NULL || add_bubble(r) ? 0 : cli_wrong(&command, "%s", ls_error_message());
}

static int add_rows(void)
{
    for (const char *at = names; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        if (row_count == SCHEDULES_MAX) {
            return cli_wrong(&command, "--schedule: more than %d names", SCHEDULES_MAX);
        }
        const int status = add_row(at, length);
        if (status != 0) {
            return status;
        }
        at += length + (at[length] == ',');
    }
    return row_count > 0 ? 0 : add_row("", 0);
}

int ls__bench_pipeline(int argc, char **argv)
{
    ranks = 4;
    micro_batches = 8;
    chunks = 2;
    rounds = 5;
    forward_ms = input_ms = weight_ms = 10.0;
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    const int job = ls__bench_job_size();
    ranks = job > 0 ? job : ranks;
    int status = add_rows();
    if (status == 0) {
        status = ls__bench_start(transport, json, (int)ranks, run_rank, NULL);
    }
    for (int i = 0; i < row_count; i++) {
        ls__schedule_free(rows[i].schedule);
    }
    row_count = 0;
    return status;
}
