/* SPDX-License-Identifier: Apache-2.0 */
/* `lockstep plan pipeline`: stages and replicas for a profile, beside data parallelism and a
 * straight pipeline. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env_posix.h"
#include "base/text.h"
#include "cost/cluster.h"
#include "cost/units.h"
#include "plan/choose.h"
#include "tools/cli/cli.h"
#include "tools/plan.h"

#define OPTIMIZERS "sgd|momentum|adamw"

static int64_t workers, micro_batches;
static double bandwidth, memory;
static const char *optimizer = "adamw", *out;
static ls__level levels[LS__LEVELS_MAX];
static int level_count;

static int read_amount(const cli_command *command, const cli_option *o, const char *text);
static int read_levels(const cli_command *command, const cli_option *o, const char *text);

static const cli_option options[] = {
    {"workers", CLI_COUNT, &workers, .low = 1, .high = LS__SCHEDULE_RANKS_MAX, .letter = 'w',
     .fallback = "", .help = "ranks of the job; with --levels their product"},
    {"bandwidth", CLI_READ, &bandwidth, .read = read_amount, .value_name = "RATE", .letter = 'b',
     .help =
         "of a worker, what it sends and receives together: 1gbit, 100mbit, or bytes per second"},
    {"levels", CLI_READ, levels, .read = read_levels, .value_name = "N:RATE,...",
     .help =
         "several levels, the lowest first, instead of --bandwidth: 4:10gbit,2:1gbit is 2 hosts "
         "of 4 workers, 10 Gbit/s of each worker within a host and 1 Gbit/s of each host"},
    {"memory", CLI_READ, &memory, .read = read_amount, .value_name = "BYTES",
     .help = "what a worker has for parameters and activations: 8g, 512m, or bytes; of one level"},
    {"optimizer", CLI_CHOICE, &optimizer, .choices = OPTIMIZERS,
     .help = "what it keeps of a parameter counts as memory: parameter and gradient (sgd), one "
             "moment more (momentum), or two (adamw)"},
    {"micro-batches", CLI_COUNT, &micro_batches, .low = 1, .high = LS__SCHEDULE_MICRO_BATCHES_MAX,
     .letter = 'm', .fallback = "at least 4 for each stage",
     .help = "M, micro-batches of a step in all"},
    {"out", CLI_TEXT, &out, .value_name = "FILE", .letter = 'o',
     .help = "write the plan: lockstep train gpt -n N --plan FILE follows it"},
};

static const cli_command command = {
    .name = "lockstep plan pipeline",
    .about =
        "Finds which parts of a profiled model become a stage, and how many workers have each.",
    .operands = "PROFILE",
    .options = options,
    .count = (int)(sizeof options / sizeof *options),
    .more =
        "PROFILE is a file of `lockstep plan profile` or ls_profile_write. Plans are searched for\n"
        "by two programs: PipeDream's (Narayanan et al., SOSP 2019, section 3.1) finds the least\n"
        "time of a micro-batch without a flush, that of the slowest stage or cut, and Alpa's "
        "(Zheng\n"
        "et al., OSDI 2022, section 5.2) that of a step with a flush. The plan is the one whose\n"
        "step by the schedule 1f1b, as simulated, is the shortest, data parallelism and fewer\n"
        "workers included.\n"};

/* ---- what was asked -------------------------------------------------------------------------- */

static int read_amount(const cli_command *c, const cli_option *o, const char *text)
{
    double *value = o->value;
    const bool rate = value == &bandwidth;
    *value = ls__amount_parse(text, strlen(text), rate);
    return *value > 0.0 ? 0
           : rate       ? cli_wrong(c,
                                    "--bandwidth is \"%s\"; give a rate such as 1gbit, or bytes "
                                          "per second",
                                    text)
                        : cli_wrong(c, "--memory is \"%s\"; give bytes, such as 8g", text);
}

static int read_levels(const cli_command *c, const cli_option *o, const char *text)
{
    (void)o;
    level_count = 0;
    for (const char *at = text; level_count < LS__LEVELS_MAX; at++) {
        const size_t length = strcspn(at, ",");
        ls__cluster_level level;
        if (!ls__cluster_parse_level(at, length, &level) || level.count > LS__SCHEDULE_RANKS_MAX ||
            level.latency > 0.0 || level.core > 0.0) {
            break;
        }
        levels[level_count++] = (ls__level){level.count, level.bandwidth};
        at += length;
        if (*at == '\0') {
            return 0;
        }
    }
    return cli_wrong(c,
                     "--levels is \"%s\"; give 1 to %d levels as workers:rate, the lowest first, "
                     "such as 4:10gbit,2:1gbit",
                     text, LS__LEVELS_MAX);
}

static double copies_of(const char *name)
{
    return 2.0 + cli_choice(OPTIMIZERS, name);
}

/* One level of --workers, or --levels. Returns 0 or the exit status. */
static int complete_levels(void)
{
    int64_t product = 1;
    if ((level_count > 0) == (bandwidth > 0.0)) {
        return cli_wrong(&command, "give either --bandwidth, or --levels with a rate for each");
    }
    for (int k = 0; k < level_count; k++) {
        product *= levels[k].count;
    }
    if (product > LS__SCHEDULE_RANKS_MAX) {
        return cli_wrong(&command, "--levels has %lld workers; at most %d are possible",
                         (long long)product, LS__SCHEDULE_RANKS_MAX);
    }
    if (level_count == 0) {
        if (workers == 0) {
            return cli_wrong(&command, "--workers is missing; give the number of ranks");
        }
        levels[level_count++] = (ls__level){(int)workers, bandwidth};
    } else if (workers > 0 && workers != product) {
        return cli_wrong(&command, "--workers is %lld and --levels has %lld; leave --workers out",
                         (long long)workers, (long long)product);
    }
    return 0;
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct planning {
    ls__profile *profile;
    ls__chain chain;
    ls__partition_spec spec;
    ls__plan_choice choice;
    ls__plan_prediction prediction;
} planning;

static planning plan;

static int fail(void)
{
    fprintf(stderr, "lockstep: %s\n", ls_error_message());
    return 1;
}

static int explain_memory(void)
{
    static ls__partition least;
    ls__partition_spec spec = plan.spec;
    spec.kind = LS__PARTITION_SMALLEST;
    if (ls__partition_find(ls__env_posix(), &plan.chain, &spec, &least) < 0) {
        return fail();
    }
    fprintf(stderr,
            "lockstep: no plan of %d workers fits into --memory %.0f; the least is %.0f bytes of a "
            "worker; give more memory, more workers, or profile a smaller batch\n",
            levels[0].count, memory, least.seconds);
    return 1;
}

static int find_plans(void)
{
    const ls_status status = ls__plan_choose(ls__env_posix(), plan.profile, &plan.chain, &plan.spec,
                                             (int)micro_batches, &plan.choice);
    if (status < 0) {
        return status == LS_ERR_LIMIT && memory > 0.0 ? explain_memory() : fail();
    }
    ls__plan_prediction *p = &plan.prediction;
    p->micro_batches = plan.choice.micro_batches;
    p->step = plan.choice.best.step;
    p->worker = 0.0;
    for (int i = 0; i < plan.chain.parts; i++) {
        p->worker += plan.chain.compute[i];
    }
    p->worker_step = p->worker * p->micro_batches;
    p->bandwidth = levels[0].bandwidth;
    p->memory = memory;
    return 0;
}

static const ls__partition *best(void)
{
    return &plan.choice.best.partition;
}

/* ---- what is printed ------------------------------------------------------------------------- */

static void print_head(void)
{
    const ls__profile *p = plan.profile;
    printf(
        "%s: %d parts, batch %lld; a micro-batch takes %.6g ms on one worker, %d thread%s of %s\n",
        p->model, p->part_count, (long long)p->batch, 1e3 * plan.prediction.worker, p->threads,
        p->threads == 1 ? "" : "s", p->cpu);
    for (int k = 0; k < plan.spec.level_count; k++) {
        const ls__level *l = &plan.spec.levels[k];
        printf("%s%d %s at %.6g MB/s", k > 0 ? "; " : "", l->count,
               k == 0   ? "workers"
               : k == 1 ? "hosts"
                        : "groups",
               l->bandwidth / 1e6);
    }
    printf("\n\n");
}

/* "-" for what takes no time. */
static const char *ms(double seconds, char text[24])
{
    snprintf(text, 24, seconds > 0.0 ? "%.6g" : "-", 1e3 * seconds);
    return text;
}

static void print_stages(void)
{
    char sum[24], transfer[24], parts[64];
    printf("%-5s  %-32s %7s  %10s  %13s  %11s  %10s  %9s\n", "stage", "parts", "workers",
           "compute ms", "all-reduce ms", "transfer ms", "weights MB", "memory MB");
    for (int i = 0; i < best()->stages; i++) {
        const ls__partition_stage *s = &best()->stage[i];
        const char *first = plan.profile->parts[s->first].name;
        const char *last = plan.profile->parts[s->first + s->count - 1].name;
        snprintf(parts, sizeof parts, s->count > 1 ? "%.28s ... %.28s" : "%.28s", first, last);
        printf("%-5d  %-32s %7d  %10.6g  %13s  %11s  %10.6g  %9.6g\n", i, parts, s->replicas,
               1e3 * s->compute, ms(s->all_reduce, sum), ms(s->transfer, transfer),
               s->weight_bytes / 1e6, s->memory_bytes / 1e6);
    }
}

/* The stage or cut that takes longest. */
static void print_bottleneck(void)
{
    char text[LS__REPLICAS_TEXT_BYTES];
    double most = 0.0;
    const char *what = "compute";
    int stage = 0;
    for (int i = 0; i < best()->stages; i++) {
        const ls__partition_stage *s = &best()->stage[i];
        const double times[3] = {s->compute, s->all_reduce, s->transfer};
        static const char *const names[3] = {"compute of", "all-reduce of", "transfer after"};
        for (int k = 0; k < 3; k++) {
            if (times[k] > most) {
                most = times[k];
                what = names[k];
                stage = i;
            }
        }
    }
    printf("\nplan %s: %.6g ms for each micro-batch of the job; the longest is the %s stage %d.\n"
           "A stage of r workers takes 1/r of the time of one. Memory of a worker: %g times the\n"
           "parameters (%s), and the activations of the micro-batches that 1f1b holds.\n\n",
           ls__plan_replicas_text(best(), '-', text, sizeof text), 1e3 * best()->seconds, what,
           stage, plan.spec.copies, optimizer);
}

static void print_row(const char *name, const char *replicas, double seconds, double step)
{
    printf("%-16s %-16s %12.6g  %8.2f  %12.6g  %8.2f\n", name, replicas, 1e3 * seconds,
           plan.prediction.worker / seconds, 1e3 * step, plan.prediction.worker_step / step);
}

static void print_candidate(const char *name, const ls__plan_candidate *c)
{
    char text[LS__REPLICAS_TEXT_BYTES];
    if (!c->exists) {
        return;
    }
    ls__plan_replicas_text(&c->partition, '-', text, sizeof text);
    if (strlen(text) > 16) {
        snprintf(text, sizeof text, "%d stages", c->partition.stages);
    }
    print_row(name, text, c->partition.seconds, c->step);
}

static void print_comparison(void)
{
    static const char *const names[LS__PLAN_CANDIDATES] = {"data parallel", "straight",
                                                           "PipeDream's", "Alpa's"};
    const ls__plan_prediction *p = &plan.prediction;
    char head[32];
    snprintf(head, sizeof head, "step of %d, ms", p->micro_batches);
    printf("%-16s %-16s %12s  %8s  %12s  %8s\n", "", "workers", "steady ms", "speed-up", head,
           "speed-up");
    print_row("one worker", "1", p->worker, p->worker_step);
    for (int k = 0; k < LS__PLAN_CANDIDATES; k++) {
        print_candidate(names[k], &plan.choice.candidate[k]);
    }
    print_candidate("plan", &plan.choice.best);
    printf("\nsteady: a micro-batch without a flush, which PipeDream's search makes the shortest. "
           "Step: 1f1b\nwith a flush, without the optimizer, by simulation; the plan is the one "
           "whose step is the\nshortest.\n");
}

static int all_workers(void)
{
    int all = 1;
    for (int k = 0; k < plan.spec.level_count; k++) {
        all *= plan.spec.levels[k].count;
    }
    return all;
}

static void print_fewer(void)
{
    const int used = best()->workers, left = all_workers() - used;
    if (left > 0) {
        printf("\nnote: %d worker%s faster: communication costs more than the other%s save%s; "
               "start it with -n %d\n",
               used, used == 1 ? " is" : "s are", left == 1 ? "" : "s", left == 1 ? "s" : "", used);
    }
    if (plan.prediction.worker_step < plan.prediction.step * (1.0 - 1e-9)) {
        printf("\nnote: one worker is faster, but does not fit into --memory\n");
    }
}

static void print_notes(void)
{
    print_fewer();
    bool ordered = true;
    for (int i = 0; i < best()->workers; i++) {
        ordered = ordered && best()->worker[i] == i;
    }
    if (!ordered) {
        printf("\nnote: each host has all stages, so the stages have the workers");
        for (int i = 0; i < best()->workers; i++) {
            printf(" %d", best()->worker[i]);
        }
        printf(", in this order\n");
    }
}

static int show(void)
{
    const int status = find_plans();
    if (status != 0) {
        return status;
    }
    print_head();
    print_stages();
    print_bottleneck();
    print_comparison();
    print_notes();
    return out == NULL || ls__plan_write(ls__env_posix(), plan.profile, best(), &plan.prediction,
                                         out) == LS_OK
               ? 0
               : fail();
}

int plan_fail_to_write(const char *path)
{
    fprintf(stderr, "lockstep: \"%s\" cannot be written: %s\n", path, strerror(errno));
    return 1;
}

int plan_pipeline(int argc, char **argv)
{
    const int first = cli_parse(&command, argc, argv);
    if (first < 0) {
        return -1 - first;
    }
    if (argc - first != 1) {
        return cli_wrong(&command, "give one profile; `lockstep plan profile` makes it");
    }
    int status = cli_keep_input(&command, "out", out, argv[first]);
    if (status != 0) {
        return status;
    }
    if (out != NULL && !cli_can_create(out)) {
        return plan_fail_to_write(out);
    }
    status = complete_levels();
    if (status != 0) {
        return status;
    }
    if (ls__profile_read(ls__env_posix(), argv[first], &plan.profile) < 0) {
        return fail();
    }
    plan.spec = (ls__partition_spec){
        .level_count = level_count, .memory_bytes = memory, .copies = copies_of(optimizer)};
    memcpy(plan.spec.levels, levels, sizeof levels);
    status = ls__profile_chain(plan.profile, &plan.chain) == LS_OK ? show() : fail();
    ls__profile_free(plan.profile);
    return status;
}
