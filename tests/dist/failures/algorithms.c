/* SPDX-License-Identifier: Apache-2.0 */
/* Every algorithm of the registry under fire: at a random moment a rank is killed, stopped for good
 * or gives another count, over every transport. All others say the same of it, and nothing is left.
 * With TEST_LONG=1 every algorithm many times; otherwise a few of them, in turn by the seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/algorithm/registry.h"
#include "comm/program/program.h"
#include "strike.h"

#define SHORT_RUNS 6
#define LONG_KILLS 12 /* of each algorithm; stops and mismatches: 2 and 4 */

typedef struct run {
    const ls__algorithm *algorithm;
    strike strike;
    bool remote;
} run;

static uint64_t dice;

static void complain(const run *r, const job *j, const char *what)
{
    char why[320];
    snprintf(why, sizeof why, "%s %s, rank %d of %d %s%s: %s",
             ls__operation_name(r->algorithm->operation), r->algorithm->name, r->strike.victim,
             r->strike.ranks, way_names[r->strike.how], r->remote ? ", tcp" : "", what);
    job_fail(j, why);
}

static void judge(const run *r, const job *j)
{
    char who[64], has[64];
    snprintf(who, sizeof who, "rank %d (host ", r->strike.victim);
    snprintf(has, sizeof has, "rank %d has ", r->strike.victim);
    if (job_says(j, "WRONG")) {
        complain(r, j, "a result is wrong");
    }
    if (r->strike.how == KILL &&
        (j->status != 137 || !job_all_say(j, " was killed by signal ", who))) {
        complain(r, j, "the killed rank is not named");
    }
    if (r->strike.how == STOP &&
        (j->status != 1 || !job_all_say(j, " did not finish within ", who))) {
        complain(r, j, "the stopped rank is not named");
    }
    if (r->strike.how == MISMATCH && (j->status != 1 || !job_all_say(j, " disagrees", has))) {
        complain(r, j, "the mismatch is not named");
    }
}

static void run_one(const ls__algorithm *algorithm, way how, bool remote)
{
    static const char *const near_to[] = {"LOCKSTEP_TIMEOUT=3", NULL};
    static const char *const far_off[] = {"LOCKSTEP_TIMEOUT=3", "LOCKSTEP_HOSTS=0,1,0,1,0,1", NULL};
    run r = {.algorithm = algorithm, .strike = strike_draw(&dice, how), .remote = remote};
    char command[1024], program[1024], ranks[8], operation[8], wrong[8];
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/looper"));
    snprintf(ranks, sizeof ranks, "%d", r.strike.ranks);
    snprintf(operation, sizeof operation, "%d", (int)algorithm->operation);
    snprintf(wrong, sizeof wrong, "%d", how == MISMATCH ? r.strike.victim : -1);
    const char *argv[] = {command,   "run",           "-n",  ranks, program,
                          operation, algorithm->name, wrong, NULL};
    job j = {.settings = remote ? far_off : near_to,
             .deadline = 30,
             .on_line = strike_on_line,
             .arg = &r.strike};
    job_run(&j, argv);
    judge(&r, &j);
    job_free(&j);
}

static bool runs_far(const ls__algorithm *a)
{
    return (a->memories & LS__IN_MESSAGES) != 0;
}

/* A call of another count is one only where there are counts. */
static bool can(const ls__algorithm *a, way how)
{
    return how != MISMATCH || a->operation != LS__OP_BARRIER;
}

static int run_all(const ls__algorithm *a)
{
    static const int times[WAYS] = {LONG_KILLS, 2, 4};
    int runs = 0;
    for (int remote = 0; remote < (runs_far(a) ? 2 : 1); remote++) {
        for (int how = 0; how < WAYS; how++) {
            for (int i = 0; i < times[how] && can(a, (way)how); i++, runs++) {
                run_one(a, (way)how, remote != 0);
            }
        }
    }
    return runs;
}

TEST_OF(a_fault_in_any_algorithm_is_named_by_all_and_no_result_is_wrong, 0, 3000)
{
    int count = 0, runs = 0;
    const ls__algorithm *const *all = ls__algorithms(&count);
    dice = test_seed();
    for (int a = 0; getenv("TEST_LONG") != NULL && a < count; a++) {
        runs += run_all(all[a]);
    }
    for (int i = 0; getenv("TEST_LONG") == NULL && runs < SHORT_RUNS && i < 100; i++) {
        const ls__algorithm *a = all[draw(&dice, count)];
        const way how = i % 3 == 2 ? MISMATCH : KILL;
        if (can(a, how)) {
            run_one(a, how, i % 2 == 1 && runs_far(a));
            runs++;
        }
    }
    printf("%d runs\n", runs);
    CHECK(runs >= SHORT_RUNS);
}

TEST_MAIN
