/* SPDX-License-Identifier: Apache-2.0 */
/* See resumed.h. The state of the optimizer, the loader and the random numbers comes from the
 * checkpoint, and with it their settings; the schedule is a function of the step, and the flags of
 * this run make it. */
#include "resumed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS 3

static const char *const kind_name[KINDS] = {"constant", "cosine", "linear"};

static ls_schedule_kind kind_of(const char *name)
{
    ls_schedule_kind kind = LS_SCHEDULE_CONSTANT;
    for (int k = 0; k < KINDS; k++) {
        kind = strcmp(name, kind_name[k]) == 0 ? (ls_schedule_kind)k : kind;
    }
    return kind;
}

/* Settings that the optimizer does not have are 0, so that they never differ. */
run_settings settings_of(const trainer_options *o)
{
    const bool sgd = strcmp(o->optim, "sgd") == 0;
    return (run_settings){.steps = o->lr_schedule_steps,
                          .schedule = (int64_t)kind_of(o->lr_schedule),
                          .warmup = o->warmup,
                          .seed = o->seed,
                          .lr = o->lr,
                          .min_lr = o->min_lr,
                          .momentum = sgd ? o->momentum : 0.0,
                          .beta2 = sgd ? 0.0 : o->beta2,
                          .weight_decay = o->weight_decay,
                          .decay_all = strcmp(o->decay, "all") == 0};
}

ls_schedule_options schedule_of(const run_settings *s)
{
    return *LS_OPTIONS(ls_schedule_options, .kind = (ls_schedule_kind)s->schedule, .lr = s->lr,
                       .min_lr = s->min_lr, .warmup = s->warmup, .total = s->steps);
}

ls_status run_settings_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    run_settings *s = object;
    const struct {
        const char *name;
        int64_t *whole;
        double *number;
    } field[] = {{"schedule-steps", &s->steps, NULL},
                 {"schedule", &s->schedule, NULL},
                 {"warmup", &s->warmup, NULL},
                 {"seed", &s->seed, NULL},
                 {"lr", NULL, &s->lr},
                 {"min-lr", NULL, &s->min_lr},
                 {"momentum", NULL, &s->momentum},
                 {"beta2", NULL, &s->beta2},
                 {"weight-decay", NULL, &s->weight_decay}};
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%s.%s", prefix, field[i].name);
        LS_TRY(field[i].whole != NULL ? visitor->int64(visitor->self, name, field[i].whole)
                                      : visitor->float64(visitor->self, name, field[i].number));
    }
    char name[128];
    (void)snprintf(name, sizeof name, "%s.decay-all", prefix);
    return visitor->optional_float64 != NULL
               ? visitor->optional_float64(visitor->self, name, &s->decay_all)
               : visitor->float64(visitor->self, name, &s->decay_all);
}

/* A setting whose saved value came with the state. */
static void print_kept(const char *flag, double saved, double now)
{
    if (saved != now) {
        (void)printf("the checkpoint's %s %.10g is kept; %s %.10g has no effect\n", flag, saved,
                     flag, now);
    }
}

/* "cosine from 0.001 to 0.0001 over 40 steps, 3 of them warm-up" */
static void print_schedule(const run_settings *s)
{
    (void)printf("%s", kind_name[s->schedule >= 0 && s->schedule < KINDS ? s->schedule : 0]);
    if (s->schedule == LS_SCHEDULE_CONSTANT) {
        (void)printf(" at %g, %lld steps of warm-up", s->lr, (long long)s->warmup);
        return;
    }
    (void)printf(" from %g to %g over %lld steps, %lld of them warm-up", s->lr, s->min_lr,
                 (long long)s->steps, (long long)s->warmup);
}

/* A constant schedule has neither an end nor a lowest rate. */
static bool same_schedule(const run_settings *a, const run_settings *b)
{
    const bool constant = a->schedule == LS_SCHEDULE_CONSTANT;
    return a->schedule == b->schedule && a->lr == b->lr && a->warmup == b->warmup &&
           (constant || (a->min_lr == b->min_lr && a->steps == b->steps));
}

static void print_schedules(const run_settings *saved, const run_settings *now, int64_t step)
{
    const ls_schedule_options before = schedule_of(saved), after = schedule_of(now);
    (void)printf("the schedule of the checkpoint's run was ");
    print_schedule(saved);
    (void)printf("; this run's is ");
    print_schedule(now);
    (void)printf(
        ": the learning rate goes on at %.3g instead of %.3g. Runs that divide one training "
        "among them need the same --lr, --min-lr, --warmup, --lr-schedule and "
        "--lr-schedule-steps (the steps of the whole training)\n",
        ls_schedule_lr(step, &after), ls_schedule_lr(step, &before));
}

void print_differences(const run_settings *saved, const run_settings *now, int64_t step,
                       int64_t steps)
{
    if (step >= steps) {
        (void)printf("the checkpoint is at step %lld; --steps %lld leaves nothing to do\n",
                     (long long)step, (long long)steps);
    } else if (!same_schedule(saved, now)) {
        print_schedules(saved, now, step);
    }
    print_kept("--seed", (double)saved->seed, (double)now->seed);
    print_kept("--momentum", saved->momentum, now->momentum);
    print_kept("--beta2", saved->beta2, now->beta2);
    print_kept("--weight-decay", saved->weight_decay, now->weight_decay);
    if (saved->decay_all > now->decay_all) {
        (void)printf("biases and norms decayed in the checkpoint's run; in this one they do not "
                     "(--decay matrices). --decay all goes on as before\n");
    }
}

/* A group of the checkpoint that this run's optimizer has not is a mismatch of its scalars. */
void must_resume(ls_status status)
{
    if (status == LS_ERR_MISMATCH && strstr(ls_error_message(), "\"optim.group.") != NULL) {
        give_up(EXIT_FAILURE,
                "%s. Biases and norms did not decay in the checkpoint's run: give --decay matrices",
                ls_error_message());
    }
    if (status == LS_ERR_MISMATCH && strstr(ls_error_message(), "\"optim.") != NULL) {
        give_up(EXIT_FAILURE, "%s. If the checkpoint's run had another --optim, give that one",
                ls_error_message());
    }
    must(status);
}
