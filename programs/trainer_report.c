/* SPDX-License-Identifier: Apache-2.0 */
/* The reports of a run: the live line, evaluations, the summary. Loss is the mean over the
 * replicas, times are means over all ranks. */
#include "trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SHOW_SECONDS 0.25 /* between two updates of the live line */

/* ---- reporting ---------------------------------------------------------------------------- */

/* The tokens or images of a step, over all replicas. */
static double units_of_step(const trainer *t)
{
    const int64_t replicas = federated_is_on(t)      ? t->set->per_round
                             : served_workers(t) > 0 ? served_workers(t)
                                                     : ls_group_size(t->ranks.replicas);
    return (double)(t->set->batch * t->micro * t->task.units * replicas);
}

static void mean_over(ls_group *group, double *values, int count, const char *tag)
{
    LS_CHECK(ls_all_reduce(group, values, values, count, LS_FLOAT64, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .tag = tag), NULL));
}

/* Means over the ranks, or over workers that are at one step; collective. All stages of a pipeline
 * have the loss of their replica, whose mean over all ranks would not have the bits of that over
 * the replicas. */
static measure average(const trainer *t, const measure *mine, const char *tag)
{
    double values[3] = {mine->seconds, mine->exposed, mine->loss};
    if (served_workers(t) > 0 && !served_in_step(t)) {
        return *mine; /* the others are at other steps */
    }
    if (served_workers(t) > 0) {
        mean_over(t->served.group, values, 3, tag);
        return (measure){.loss = values[2], .seconds = values[0], .exposed = values[1]};
    }
    if (t->ranks.pipeline != NULL) {
        mean_over(t->ranks.losses, &values[2], 1, tag);
        mean_over(ls_world(), values, 2, tag);
    } else {
        mean_over(ls_world(), values, 3, tag);
    }
    return (measure){.loss = values[2], .seconds = values[0], .exposed = values[1]};
}

/* "870", "12k", "3.21M" */
static const char *amount(double value, char *out, size_t bytes)
{
    bool many = value >= 1e6, some = value >= 1e4;
    (void)snprintf(out, bytes, "%.*f%s", many ? 2 : 0,
                   value * (many   ? 1e-6
                            : some ? 1e-3
                                   : 1.0),
                   many   ? "M"
                   : some ? "k"
                          : "");
    return out;
}

/* At most 80 columns with the launcher's prefix, because a line that wraps cannot be updated in
 * place. */
static void show(trainer *t, const measure *mean, int64_t step)
{
    char left[32], speed[32];
    report *r = &t->report;
    int64_t steps = t->set->steps;
    double exposed_ms = mean->exposed * 1e3;
    double seconds_left = r->seconds / (double)(step - t->start) * (double)(steps - step);
    live_show(&r->line, step == steps,
              "step %lld/%lld loss %.3f lr %.2g %s %s/s exposed %.*fms %.0f%% ETA %s",
              (long long)step, (long long)steps, mean->loss, t->lr,
              amount(units_of_step(t) / mean->seconds, speed, sizeof speed), t->task.unit,
              exposed_ms < 10.0 ? 1 : 0, exposed_ms, 100.0 * mean->exposed / mean->seconds,
              duration(seconds_left, left, sizeof left));
}

/* Called after `step` steps. Collective when a report is due, on which all ranks agree. */
void trainer_report_step(trainer *t, int64_t step)
{
    report *r = &t->report;
    if (step < r->due && step != t->set->steps) {
        return;
    }
    double n = (double)r->steps;
    const measure mine = {r->sum.loss / n, r->sum.seconds / n, r->sum.exposed / n};
    const measure mean = average(t, &mine, "report");
    r->seconds += mean.seconds * n;
    r->exposed += mean.exposed * n;
    if (ls_rank() == 0) {
        show(t, &mean, step);
    }
    double ahead = SHOW_SECONDS / fmax(mean.seconds, 1e-6);
    r->due = step + 1 + (int64_t)fmin(ahead, 1e6);
    r->sum = (measure){0};
    r->steps = 0;
}

/* After a forward of a layer. Its second run in backward computes the same rows. */
static ls_status count_rows(void *arg, ls_module *layer, ls_tensor **inputs, int input_count,
                            ls_tensor **outputs, int output_count)
{
    trainer *t = arg;
    int64_t dropped = 0, *last = t->experts.rows + t->task.experts + 1;
    (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    if (ls_recomputing()) {
        return LS_OK;
    }
    LS_TRY(ls_moe_counts(layer, last, &dropped));
    for (int64_t e = 0; e < t->task.experts; e++) {
        t->experts.rows[e] += last[e];
    }
    t->experts.dropped += dropped;
    return LS_OK;
}

/* Whether the module has layers of experts, of which it counts the rows from now on. */
static bool count_in(trainer *t, ls_module *module)
{
    bool within = false;
    for (int i = 0; i < ls_module_child_count(module); i++) {
        within |= count_in(t, ls_module_child_at(module, i));
    }
    if (within || ls_moe_counts(module, NULL, NULL) < 0) {
        return within;
    }
    must(LS_STATUS_OF(ls_forward_hook_new(module, count_rows, t)));
    return true;
}

void trainer_count_experts(trainer *t)
{
    if (t->task.experts > 0 && t->records.wanted) {
        (void)count_in(t, t->task.net);
    }
}

void trainer_forget_counts(trainer *t)
{
    t->experts.dropped = 0;
    memset(t->experts.rows, 0, (size_t)(t->task.experts + 1) * sizeof *t->experts.rows);
}

/* Ranks of tp have the same tokens, which count once. Without a common step there are this rank's
 * counts alone. */
static void add_counts(const trainer *t, int64_t *counts, int64_t count)
{
    const int64_t copies = t->ranks.tensor ? ls_mesh_size(t->ranks.mesh, "tp") : 1;
    ls_group *group = served_workers(t) == 0 ? ls_world() : t->served.group;
    if (served_workers(t) > 0 && !served_in_step(t)) {
        return;
    }
    LS_CHECK(ls_all_reduce(group, counts, counts, count, LS_INT64, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .tag = "experts"), NULL));
    for (int64_t i = 0; i < count; i++) {
        counts[i] /= copies;
    }
}

/* Adds the counts over the ranks. */
static expert_shares shares_of(trainer *t)
{
    const int64_t experts = t->task.experts;
    int64_t *rows = t->experts.rows, most = 0, least = INT64_MAX, all = 0;
    if (experts == 0) {
        return (expert_shares){.experts = 0};
    }
    rows[experts] = t->experts.dropped;
    add_counts(t, rows, experts + 1);
    for (int64_t e = 0; e < experts; e++) {
        most = rows[e] > most ? rows[e] : most;
        least = rows[e] < least ? rows[e] : least;
        all += rows[e];
    }
    const double mean = (double)all / (double)experts, dropped = (double)rows[experts];
    return (expert_shares){.experts = experts,
                           .rows = rows,
                           .lost = rows[experts],
                           .dropped = dropped / ((double)all + dropped),
                           .busiest = (double)most / mean,
                           .idlest = (double)least / mean};
}

void trainer_record_step(trainer *t, int64_t step, const measure *mine, double norm)
{
    if (!t->records.wanted) {
        return;
    }
    const measure mean = average(t, mine, "records");
    const expert_shares experts = shares_of(t);
    records_step(&t->records, &(record){.step = step,
                                        .loss = mean.loss,
                                        .lr = t->lr,
                                        .grad_norm = norm,
                                        .experts = experts,
                                        .seconds = mean.seconds,
                                        .exposed = mean.exposed,
                                        .per_second = units_of_step(t) / mean.seconds,
                                        .unit = t->task.unit,
                                        .dtype = t->set->dtype});
    trainer_forget_counts(t);
}

/* ---- evaluation --------------------------------------------------------------------------- */

static void say_odd(const trainer *t, const char *prefix)
{
    cli_flush(stdout);
    (void)fprintf(stderr,
                  "%sthe %s is not finite before training, though all weights are; look for NaN "
                  "and infinity in what is judged, and for outputs that overflow\n",
                  prefix, t->odd);
}

/* The held-out data may make every evaluation NaN; then the weights are worth keeping, but the run
 * does not end well. After an evaluation that was finite it is the weights' fault. All ranks have
 * the same scores. */
static void check_scores(trainer *t, int64_t step)
{
    const char *odd = NULL;
    for (int i = t->score_count - 1; i >= 0; i--) {
        odd = isfinite(t->scores[i].value) ? odd : t->scores[i].name;
    }
    t->judged |= odd == NULL;
    if (odd == NULL || t->odd != NULL) {
        return;
    }
    live_end(&t->report.line);
    must_end_finite(trainer_net(t), step, t->checkpoint);
    if (t->judged) {
        must(t->checkpoint != NULL ? ls_checkpoint_wait(t->checkpoint) : LS_OK);
        give_up(
            EXIT_FAILURE,
            "step %lld: the %s is not finite, though it was before and all weights are: outputs "
            "overflow, so training has diverged, and nothing is exported. Give a lower --lr or "
            "--weight-decay, or --clip, and start anew or from an older checkpoint",
            (long long)step, odd);
    }
    t->odd = odd;
    if (ls_rank() == 0) {
        say_odd(t, "");
    }
}

/* Resident memory of the rank with most; collective, unless workers are at different steps. */
static memory_use memory_of(const trainer *t)
{
    struct rusage used = {0};
    (void)getrusage(RUSAGE_SELF, &used);
    memory_use memory = {.peak_bytes = 1024.0 * (double)used.ru_maxrss,
                         .estimate_bytes = (double)t->task.memory_bytes};
    if (served_workers(t) == 0) {
        LS_CHECK(ls_all_reduce(ls_world(), &memory.peak_bytes, &memory.peak_bytes, 1, LS_FLOAT64,
                               LS_MAX, LS_OPTIONS(ls_collective_options, .tag = "memory"), NULL));
    }
    return memory;
}

/* Called after `step` steps. `keep` is false for the evaluation at the start of a resumed run,
 * which the previous run has recorded. Ranks may judge different numbers of batches, so parameters
 * are whole afterwards, with --zero 3, too. */
void trainer_evaluate(trainer *t, int64_t step, bool keep)
{
    LS_CHECK(ls_ddp_gather(t->net));
    {
        LS_AUTOCAST(trainer_in_bf16(t));
        t->score_count = t->task.evaluate(t->task.arg, trainer_net(t), &t->ranks, t->scores);
    }
    trainer_forget_counts(t);
    if (keep && t->records.wanted) {
        const memory_use memory = memory_of(t);
        records_scores(&t->records, step, t->scores, t->score_count, &memory);
    }
    check_scores(t, step);
}

/* "held-out loss 2.345, …" without a newline; on rank 0. */
static void print_scores(const trainer *t)
{
    for (int i = 0; i < t->score_count; i++) {
        const score *s = &t->scores[i];
        (void)printf("%s%s %.*f%s", i == 0 ? "" : ", ", s->name, s->percent ? 2 : 3,
                     s->percent ? 100.0 * s->value : s->value, s->percent ? " %" : "");
    }
}

void trainer_evaluate_between(trainer *t, int64_t step)
{
    trainer_evaluate(t, step, true);
    LS_CHECK(ls_ddp_release(t->net));
    live_end(&t->report.line);
    if (ls_rank() == 0) {
        (void)printf("step %lld: ", (long long)step);
        print_scores(t);
        (void)printf("\n");
        cli_flush(stdout);
    }
}

void trainer_evaluate_before(trainer *t)
{
    trainer_evaluate(t, t->start, t->start == 0);
    if (ls_rank() == 0) {
        (void)printf("before training: ");
        print_scores(t);
        (void)printf("\n");
        cli_flush(stdout);
    }
}

/* ---- the summary -------------------------------------------------------------------------- */

/* By the formula; tests compare it with the counters. Parameters are float32. */
static void say_zero(const trainer *t)
{
    const uint64_t ranks = (uint64_t)ls_group_size(parallel_copies(&t->ranks));
    ls_ddp_stats stats = {.size = sizeof stats};
    const bool otherwise = t->ranks.batch_axes != NULL || t->ranks.experts; /* and by others */
    if (t->set->zero == 0 || ranks < 2 || otherwise || ls_ddp_get_stats(t->net, &stats) < 0) {
        return;
    }
    const uint64_t bytes = stats.reduce.bucket_bytes;
    const uint64_t within = t->set->shard_group > 0 ? (uint64_t)t->set->shard_group : ranks;
    const uint64_t groups = ranks / within, part = bytes / within;
    const uint64_t sent = (t->set->zero > 2 ? 3 : 2) * (within - 1) * part +
                          2 * (groups - 1) * part / groups; /* across, an all-reduce */
    (void)printf(
        "zero %lld: a step sends %llu bytes on each rank; of the %llu bytes of all buckets "
        "%llu are padding\n",
        (long long)t->set->zero, (unsigned long long)sent, (unsigned long long)bytes,
        (unsigned long long)(bytes - 4 * (uint64_t)ls_module_numel(t->task.net)));
}

void trainer_print_summary(const trainer *t, const char *note)
{
    char took[32], all[32], speed[32];
    const report *r = &t->report;
    double units = (double)(r->done - t->start) * units_of_step(t);
    if (r->done > t->start) {
        (void)printf(
            "trained %lld steps in %s, %s %s, in %s: %s %s/s, exposed communication%s %.1f %% "
            "of the time\n",
            (long long)(r->done - t->start), t->set->dtype, amount(units, all, sizeof all),
            t->task.unit, duration(t->seconds, took, sizeof took),
            amount(units / t->seconds, speed, sizeof speed), t->task.unit,
            t->ranks.pipeline != NULL ? " of replicas" : "",
            100.0 * r->exposed / fmax(r->seconds, 1e-9));
    }
    shares_print(t);
    say_zero(t);
    print_scores(t);
    (void)printf("%s%s\n", note ? " " : "", note ? note : "");
    (void)printf("replicas identical: %d of %d (hash %016llx)\n", t->identical, ls_world_size(),
                 (unsigned long long)t->hash);
    if (t->odd != NULL) {
        say_odd(t, "error: ");
    }
}
