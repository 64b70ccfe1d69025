/* What a run prints and records: the live line, evaluations, the summary. Loss is the mean over the
 * replicas, times are means over all ranks. */
#include "trainer_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SHOW_SECONDS 0.25 /* between two updates of the live line */

/* ---- reporting ---------------------------------------------------------------------------- */

/* The tokens or images of a step, over all replicas. */
static double units_of_step(const trainer *t)
{
    return (double)(t->set->batch * t->micro * t->task.units * ls_group_size(t->ranks.replicas));
}

static void mean_over(ls_group *group, double *values, int count, const char *tag)
{
    LS_CHECK(ls_all_reduce(group, values, values, count, LS_FLOAT64, LS_AVG,
                           LS_OPTIONS(ls_collective_options, .tag = tag), NULL));
}

/* Means over the ranks; collective. All stages of a pipeline have the loss of their replica, whose
 * mean over all ranks would not have the bits of that over the replicas. */
static measure average(const trainer *t, const measure *mine, const char *tag)
{
    double values[3] = {mine->seconds, mine->exposed, mine->loss};
    if (t->ranks.pipeline != NULL) {
        mean_over(t->ranks.replicas, &values[2], 1, tag);
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
    if (step != r->due && step != t->set->steps) {
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

void trainer_record_step(trainer *t, int64_t step, const measure *mine, double norm)
{
    if (!t->records.wanted) {
        return;
    }
    const measure mean = average(t, mine, "records");
    records_step(&t->records, &(record){.step = step,
                                        .loss = mean.loss,
                                        .lr = t->lr,
                                        .grad_norm = norm,
                                        .seconds = mean.seconds,
                                        .exposed = mean.exposed,
                                        .per_second = units_of_step(t) / mean.seconds,
                                        .unit = t->task.unit,
                                        .dtype = t->set->dtype});
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

/* What is judged may make every evaluation NaN; then the weights are worth keeping, but the run
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

/* Called after `step` steps. `keep` is false for the evaluation at the start of a resumed run,
 * which the previous run has recorded. */
void trainer_evaluate(trainer *t, int64_t step, bool keep)
{
    {
        LS_AUTOCAST(trainer_in_bf16(t));
        t->score_count = t->task.evaluate(t->task.arg, trainer_net(t), &t->ranks, t->scores);
    }
    if (keep && ls_rank() == 0) {
        records_scores(&t->records, step, t->scores, t->score_count);
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
    print_scores(t);
    (void)printf("%s%s\n", note ? " " : "", note ? note : "");
    (void)printf("replicas identical: %d of %d (hash %016llx)\n", t->identical, ls_world_size(),
                 (unsigned long long)t->hash);
    if (t->odd != NULL) {
        say_odd(t, "error: ");
    }
}
