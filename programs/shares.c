/* SPDX-License-Identifier: Apache-2.0 */
/* See shares.h. What a rank computes in is measured without its waits for others (ls_ddp_stats), so
 * the slow one is slow in its own figure and not in all.
 *
 * The mean of LOOK_FIRST steps decides first. After every change twice as many are measured, so
 * shares change log2(steps/16) times at most, however noisy the machine is, and each time with a
 * steadier mean than before. */
#include "shares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer_internal.h"

#define LOOK_FIRST 16
#define LOOK_MAX 4096

/* ---- the option ------------------------------------------------------------------------------ */

static bool is_even(const trainer_options *o)
{
    return o->shares_of == NULL || strcmp(o->shares_of, "even") == 0;
}

void shares_check(const trainer_options *o)
{
    const char *with = o->local_steps > 0                ? "--local-steps"
                       : o->mesh != NULL                 ? "--mesh"
                       : o->plan != NULL                 ? "--plan"
                       : strcmp(o->exact, "layout") == 0 ? "--exact layout"
                       : strcmp(o->feed, "split") != 0   ? "--feed"
                                                         : NULL;
    if (!is_even(o) && with != NULL) {
        give_up(EXIT_USAGE,
                "--shares with %s: shares are for replicas that average gradients in every step "
                "and read their own part of an epoch; leave one of them out",
                with);
    }
}

/* "26,6": as many as ranks, of the samples of a step. */
static void read_list(shares *s, const char *text, int64_t total)
{
    int64_t sum = 0;
    const char *at = text;
    int count = 0;
    for (char *end = NULL; *at != '\0'; at = end + (*end == ',' ? 1 : 0)) {
        const long long share = strtoll(at, &end, 10);
        if (end == at || share < 1 || count == s->ranks || (*end != ',' && *end != '\0')) {
            count = -1;
            break;
        }
        s->now[count++] = share;
        sum += share;
    }
    if (count != s->ranks || sum != total) {
        give_up(EXIT_USAGE,
                "--shares is \"%s\"; give even, auto, or a list of %d numbers from 1 with the sum "
                "%lld (--batch times the ranks), as in 26,6",
                text, s->ranks, (long long)total);
    }
}

static void show(shares *s)
{
    for (int r = 0; r < s->ranks; r++) {
        s->shown[r] = (double)s->now[r];
    }
}

void shares_open(trainer *t)
{
    shares *s = &t->shares;
    const trainer_options *o = t->set;
    if (is_even(o)) {
        return;
    }
    s->given = true;
    s->every = LOOK_FIRST;
    s->automatic = strcmp(o->shares_of, "auto") == 0;
    s->ranks = ls_world_size();
    s->now = calloc((size_t)s->ranks, sizeof *s->now);
    s->shown = calloc((size_t)s->ranks, sizeof *s->shown);
    if (s->now == NULL || s->shown == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    for (int r = 0; r < s->ranks; r++) {
        s->now[r] = o->batch;
    }
    if (!s->automatic) {
        read_list(s, o->shares_of, o->batch * s->ranks);
    }
    show(s);
}

void shares_close(trainer *t)
{
    free(t->shares.now);
    free(t->shares.shown);
}

const int64_t *shares_batches(const trainer *t)
{
    return t->shares.now;
}

double shares_weight(const trainer *t)
{
    return t->shares.given ? (double)t->shares.now[ls_rank()] / (double)t->set->batch : 1.0;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Of as many ranks only, and optional, so that a run without shares is gone on with. */
ls_status shares_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    shares *s = object;
    for (int r = 0; r < s->ranks; r++) {
        char name[128];
        (void)snprintf(name, sizeof name, "%s.%d-of-%d", prefix, r, s->ranks);
        LS_TRY(visitor->optional_float64 != NULL
                   ? visitor->optional_float64(visitor->self, name, &s->shown[r])
                   : visitor->float64(visitor->self, name, &s->shown[r]));
    }
    return LS_OK;
}

/* Another --batch has another sum. */
void shares_settle(trainer *t)
{
    shares *s = &t->shares;
    double sum = 0.0;
    bool differ = false;
    for (int r = 0; r < s->ranks; r++) {
        sum += s->shown[r];
        differ |= s->shown[r] != (double)s->now[r];
    }
    if (!s->automatic || !differ || sum != (double)(t->set->batch * s->ranks)) {
        show(s);
        return;
    }
    for (int r = 0; r < s->ranks; r++) {
        s->now[r] = (int64_t)s->shown[r];
    }
    trainer_reopen_loader(t);
}

/* ---- dividing anew --------------------------------------------------------------------------- */

static void print_list(const int64_t *list, int count)
{
    for (int r = 0; r < count; r++) {
        (void)printf("%s%lld", r > 0 ? "," : "", (long long)list[r]);
    }
}

/* Who is slow, and what follows. Collective. */
static void say_change(trainer *t, int64_t step, double cost, const int64_t *before)
{
    const shares *s = &t->shares;
    double *costs = calloc((size_t)s->ranks, sizeof *costs);
    if (costs == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    LS_CHECK(ls_all_gather(ls_world(), &cost, costs, 1, LS_FLOAT64,
                           LS_OPTIONS(ls_collective_options, .tag = "seconds"), NULL));
    int slow = 0, fast = 0;
    for (int r = 1; r < s->ranks; r++) {
        slow = costs[r] > costs[slow] ? r : slow;
        fast = costs[r] < costs[fast] ? r : fast;
    }
    if (ls_rank() == 0) {
        live_end(&t->report.line);
        (void)printf("step %lld: rank %d needs %.1f times as long as rank %d for a sample; the "
                     "shares ",
                     (long long)step, slow, costs[slow] / costs[fast], fast);
        print_list(before, s->ranks);
        (void)printf(" become ");
        print_list(s->now, s->ranks);
        (void)printf("\n");
        cli_flush(stdout);
    }
    free(costs);
}

static void look(trainer *t, int64_t step)
{
    shares *s = &t->shares;
    bool changed = false;
    const double seconds = s->computing / (double)s->steps;
    int64_t *before = calloc((size_t)s->ranks, sizeof *before);
    if (before == NULL) {
        give_up(EXIT_FAILURE, "no memory");
    }
    memcpy(before, s->now, (size_t)s->ranks * sizeof *before);
    must(ls_shares_by_speed(ls_world(), seconds, s->now, &changed));
    if (changed) {
        s->before = s->before > 0.0 ? s->before : s->passed / (double)s->steps;
        s->after = 0.0;
        show(s);
        s->every = s->every < LOOK_MAX ? 2 * s->every : LOOK_MAX;
        say_change(t, step, seconds / (double)before[ls_rank()], before);
        trainer_reopen_loader(t);
    } else {
        s->after = s->passed / (double)s->steps;
    }
    free(before);
}

/* The first step allocates, and so does that after a change; they are left out. */
void shares_step(trainer *t, int64_t step, double seconds)
{
    shares *s = &t->shares;
    ls_ddp_stats stats = {.size = sizeof stats};
    if (!s->automatic || ++s->steps <= 0) {
        return;
    }
    LS_CHECK(ls_ddp_get_stats(t->net, &stats));
    s->computing += stats.forward.last + stats.backward.last;
    s->passed += seconds;
    if (s->steps == s->every) {
        look(t, step);
        s->steps = -1;
        s->computing = s->passed = 0.0;
    }
}

void shares_print(const trainer *t)
{
    const shares *s = &t->shares;
    if (s->before > 0.0 && s->after > 0.0) {
        (void)printf("shares ");
        print_list(s->now, s->ranks);
        (void)printf(": a step took %.3g ms before they changed, and takes %.3g ms\n",
                     1e3 * s->before, 1e3 * s->after);
    }
}
