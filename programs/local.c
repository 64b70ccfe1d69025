/* SPDX-License-Identifier: Apache-2.0 */
/* See local.h. Between two averages ranks take steps of their own (ls_ddp_set_local). All of them
 * count the same steps, so they agree where rounds end without asking each other. */
#include "local.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer_internal.h"

/* ---- --outer --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    double lr, momentum;
    bool nesterov, inner_lr;
} outers[] = {
    {"average", 1.0, 0.0, false, false},
    {"diloco", 0.7, 0.9, true, false},
    {"slowmo", 1.0, 0.5, false, true},
};
#define OUTERS (sizeof outers / sizeof outers[0])

/* "lr=0.7" at *at, which moves past it. */
static bool read_setting(const char **at, ls_outer_options *o)
{
    char *end = NULL;
    const size_t name = strcspn(*at, "=");
    double *to = name == 2 && strncmp(*at, "lr", 2) == 0         ? &o->lr
                 : name == 8 && strncmp(*at, "momentum", 8) == 0 ? &o->momentum
                                                                 : NULL;
    if (to == NULL || (*at)[name] == '\0') {
        return false;
    }
    *to = strtod(*at + name + 1, &end);
    const bool read = end != *at + name + 1 && (*end == '\0' || *end == ',');
    *at = end + (*end == ',' ? 1 : 0);
    return read;
}

local_outer local_read_outer(const char *text)
{
    local_outer out = {.options = *LS_OPTIONS(ls_outer_options, .lr = 1.0)};
    if (text == NULL) {
        return out;
    }
    const size_t name = strcspn(text, ":");
    for (size_t k = 0; k < OUTERS; k++) {
        if (strlen(outers[k].name) == name && strncmp(text, outers[k].name, name) == 0) {
            out.given = true;
            out.inner_lr = outers[k].inner_lr;
            out.options.lr = outers[k].lr;
            out.options.momentum = outers[k].momentum;
            out.options.nesterov = outers[k].nesterov;
        }
    }
    bool good = out.given;
    for (const char *at = text[name] == ':' ? text + name + 1 : ""; good && *at != '\0';) {
        good = read_setting(&at, &out.options);
    }
    const ls_outer_options *o = &out.options;
    if (!good || !(o->lr > 0.0) || isinf(o->lr) || !(o->momentum >= 0.0 && o->momentum < 1.0)) {
        give_up(EXIT_USAGE,
                "--outer is \"%s\"; give average, diloco or slowmo, with settings after a colon: "
                "diloco:lr=0.7,momentum=0.9, lr above 0 and momentum from 0 to below 1",
                text);
    }
    return out;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void check_replay(const trainer_options *o)
{
    if ((o->replay != NULL || o->replayed != NULL) && o->local_after > 0) {
        give_up(EXIT_USAGE, "--log-replay with --local-after: a replay log has averages of "
                            "parameters only, and no gradients; leave one of them out");
    }
}

static void check_without(const trainer_options *o)
{
    const char *given = o->local_after > 0 ? "local-after" : o->outer != NULL ? "outer" : NULL;
    if (given != NULL) {
        give_up(EXIT_USAGE,
                "--%s is for local steps: give --local-steps, the steps between two "
                "averages of the parameters",
                given);
    }
}

/* Each excludes local steps for a reason of its own. */
static void check_alone(const trainer_options *o)
{
    if (o->mesh != NULL || o->plan != NULL) {
        give_up(EXIT_USAGE,
                "--local-steps with %s: local steps are for replicas of whole models in this "
                "version; leave one of them out",
                o->mesh != NULL ? "--mesh" : "--plan");
    }
    if (strcmp(o->exact, "layout") == 0) {
        give_up(EXIT_USAGE, "--local-steps with --exact layout: local steps depend on the number "
                            "of ranks; leave one of them out");
    }
    if (o->zero > 0) {
        give_up(EXIT_USAGE, "--local-steps with --zero: a rank of it steps its part of the "
                            "parameters only; leave one of them out");
    }
    if (trainer_has_hook(o)) {
        give_up(EXIT_USAGE, "--local-steps with --comm: averages of parameters are sent as they "
                            "are; leave one of them out");
    }
}

void local_check(const trainer_options *o)
{
    if (o->local_steps == 0) {
        check_without(o);
        return;
    }
    check_alone(o);
    check_replay(o);
    (void)local_read_outer(o->outer);
    if (o->eval_every > 0 && !(local_round_ends(o, o->local_after + o->eval_every) &&
                               o->local_after % o->eval_every == 0)) {
        give_up(EXIT_USAGE,
                "--eval-every %lld with --local-steps %lld: within a round the ranks have "
                "different parameters, and none of them is the model; give a multiple of %lld "
                "that divides --local-after",
                (long long)o->eval_every, (long long)o->local_steps, (long long)o->local_steps);
    }
    if (o->replay != NULL && o->resume != NULL) {
        give_up(EXIT_USAGE, "--log-replay with --resume: a replay begins with the first step; "
                            "leave one of them out");
    }
}

/* ---- rounds ---------------------------------------------------------------------------------- */

bool local_is_on(const trainer_options *o, int64_t step)
{
    return o->local_steps > 0 && step >= o->local_after;
}

bool local_round_ends(const trainer_options *o, int64_t step)
{
    return (step - o->local_after) % o->local_steps == 0;
}

double local_average(trainer *t, int64_t step, double weight)
{
    const double begun = ls_time();
    const double lr = step > 0 ? ls_schedule_lr(step - 1, &t->schedule) : 0.0; /* also without a
                                                                                  step of its own */
    ls_outer_options outer = t->outer.options;
    outer.inner_lr = t->outer.inner_lr && lr > 0.0 ? lr : 1.0;
    if (t->set->replay != NULL && t->command == NULL) {
        t->command = trainer_command(t->set, ls_world_size());
    }
    must(ls_ddp_average(t->net,
                        LS_OPTIONS(ls_ddp_average_options, .weight = weight,
                                   .outer = t->outer.given ? &outer : NULL, .log = t->set->replay,
                                   .command = t->command, .step = step)));
    return ls_time() - begun;
}

/* With an outer optimizer the first average notes where the first round starts. */
void local_begin(trainer *t, int64_t step)
{
    if (!local_is_on(t->set, step) || ls_ddp_local(t->net)) {
        return;
    }
    must(ls_ddp_set_local(t->net, true));
    if (t->outer.given) {
        (void)local_average(t, step, 1.0);
    }
}

double local_end_step(trainer *t, int64_t step)
{
    const bool ends =
        ls_ddp_local(t->net) && (local_round_ends(t->set, step) || step == t->set->steps);
    return ends ? local_average(t, step, 1.0) : 0.0;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Of each rank, and of an outer optimizer, which a run may lack. */
#define OF_LOCAL "ranks. model.outer."

/* The parts of a run that its checkpoint holds. */
typedef struct way {
    bool each;   /* of every rank what is its own */
    bool outer;  /* with the outer optimizer's state */
    bool optim;  /* one optimizer for all ranks */
    bool shares; /* of the samples */
} way;

static void add(trainer *t, ls_checkpoint_item item, ls_replicas replicas)
{
    item.replicas = replicas;
    t->items[t->item_count++] = item;
}

static void list_items(trainer *t, const way *w)
{
    t->item_count = 0;
    add(t, (ls_checkpoint_item)LS_ITEM("model", w->outer ? t->net : trainer_net(t)),
        w->each ? LS_REPLICAS_MEAN : LS_REPLICAS_EQUAL);
    add(t, (ls_checkpoint_item)LS_ITEM("loader", t->loader), LS_REPLICAS_EQUAL);
    add(t, (ls_checkpoint_item)LS_ITEM("random", ls_runtime_current()), LS_REPLICAS_EQUAL);
    add(t,
        (ls_checkpoint_item){.size = sizeof(ls_checkpoint_item),
                             .prefix = "run",
                             .object = &t->settings,
                             .state = run_settings_state},
        LS_REPLICAS_EQUAL);
    if (w->each) { /* after the mean, so that a rank's own wins */
        add(t, (ls_checkpoint_item)LS_ITEM("model", trainer_net(t)), LS_REPLICAS_EACH);
        add(t, (ls_checkpoint_item)LS_ITEM("optim", t->optim), LS_REPLICAS_EACH);
        return;
    }
    if (w->optim && t->optim != NULL) {
        add(t, (ls_checkpoint_item)LS_ITEM("optim", t->optim), LS_REPLICAS_EQUAL);
    }
    if (w->shares && t->shares.given) {
        add(t,
            (ls_checkpoint_item){.size = sizeof(ls_checkpoint_item),
                                 .prefix = "ranks.shares",
                                 .object = &t->shares,
                                 .state = shares_state},
            LS_REPLICAS_EQUAL);
    }
}

void local_list_items(trainer *t)
{
    const bool one = federated_is_on(t); /* clients keep no optimizer */
    list_items(
        t,
        &(way){.each = ls_ddp_local(t->net) && !one, .outer = true, .optim = !one, .shares = true});
}

static ls_status load_way(trainer *t, const way *w, int64_t *start)
{
    ls_checkpoint *from = NULL;
    list_items(t, w);
    LS_TRY(ls_checkpoint_new(
        t->set->resume, ls_world(),
        LS_OPTIONS(ls_checkpoint_options, .load_only = true, .ignore = w->each ? NULL : OF_LOCAL),
        &from));
    const ls_status status = ls_checkpoint_load(from, t->items, t->item_count, start);
    char text[2048];
    (void)snprintf(text, sizeof text, "%s", ls_error_message());
    must(ls_checkpoint_free(from));
    return status < 0 ? ls_fail(status, "%s", text) : LS_OK;
}

static void say_mean(const trainer *t)
{
    if (ls_rank() == 0) {
        (void)printf("%s: the mean of ranks that took local steps; their optimizers' states are "
                     "for as many ranks that take local steps, so the optimizer starts anew\n",
                     t->set->resume);
    }
}

/* The mode as it is after `start` steps. A checkpoint that is the same on all ranks begins a
 * round. */
static void settle_mode(trainer *t, bool each, int64_t start)
{
    const bool on = local_is_on(t->set, start);
    if (each && !on) { /* --local-after was raised */
        must(ls_ddp_average(t->net, LS_OPTIONS(ls_ddp_average_options, .optim = t->optim)));
    }
    if (!each || !on) {
        must(ls_ddp_set_local(t->net, false));
    }
    local_begin(t, start);
}

ls_status local_load(trainer *t, int64_t *start)
{
    static const way ways[] = {
        {.each = true, .outer = true},
        {.outer = true, .optim = true},
        {.optim = true},
        {.outer = true},
        {.each = false},
    };
    char first[2048] = "";
    ls_status status = LS_ERR_MISMATCH;
    size_t k = 0;
    local_begin(t, t->set->local_after); /* its state needs a place to be loaded into */
    for (; k < sizeof ways / sizeof ways[0]; k++) {
        status = load_way(t, &ways[k], start);
        if (status != LS_ERR_MISMATCH) {
            break;
        }
        if (first[0] == '\0' && strstr(ls_error_message(), "\"ranks.") == NULL) {
            (void)snprintf(first, sizeof first, "%s", ls_error_message());
        }
    }
    if (status == LS_ERR_MISMATCH && first[0] != '\0') {
        return ls_fail(status, "%s", first);
    }
    if (status == LS_OK) {
        settle_mode(t, ways[k].each, *start);
        if (!ways[k].each && !ways[k].optim && !federated_is_on(t)) {
            say_mean(t);
        }
    } else {
        settle_mode(t, false, 0);
    }
    return status;
}

ls_status local_load_mean(trainer *t, ls_status failed, int64_t *start)
{
    char first[2048];
    (void)snprintf(first, sizeof first, "%s", ls_error_message());
    if (failed != LS_ERR_MISMATCH) {
        return ls_fail(failed, "%s", first);
    }
    if (load_way(t, &(way){.optim = true}, start) == LS_OK) { /* shares of other ranks, or none */
        return LS_OK;
    }
    if (load_way(t, &(way){.optim = false}, start) < 0) {
        return ls_fail(failed, "%s", first);
    }
    say_mean(t);
    return LS_OK;
}

void local_introduce(const trainer *t)
{
    const trainer_options *o = t->set;
    if (o->local_steps == 0) {
        return;
    }
    (void)printf("parameters are averaged every %lld steps", (long long)o->local_steps);
    if (o->local_after > 0) {
        (void)printf(" from step %lld on, gradients in every step before",
                     (long long)o->local_after);
    }
    if (federated_is_on(t)) {
        (void)printf(" of %lld of %lld clients", (long long)o->per_round, (long long)o->clients);
    }
    if (t->outer.given) {
        (void)printf(", and stepped by --outer %s", o->outer);
    }
    (void)printf("\n");
    if (o->save != NULL && !federated_is_on(t)) {
        (void)printf("checkpoints of local steps hold the mean of the ranks' models, and each "
                     "rank's state, with which as many ranks go on\n");
    }
}
