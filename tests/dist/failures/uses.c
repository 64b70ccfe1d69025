/* SPDX-License-Identifier: Apache-2.0 */
/* What comm.h has beside the algorithms, under fire: objects, lists of many, letters from anybody,
 * groups that are made and split, groups in turn, several operations in flight, operators of the
 * user's, callbacks, threads. At a random moment a rank is killed, stopped for good or calls
 * something else, over each transport. All who say something of it say the same, and nothing is
 * left. With TEST_LONG=1 each of them many times; otherwise a few, in turn by the seed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "strike.h"

#define SHORT_RUNS 8
#define TIMEOUT_SECONDS 3 /* what peers of a stopped rank wait, on a quiet machine */

static const int times[WAYS] = {10, 2, 3}; /* of each, use and transport, in the long form */

typedef struct use {
    const char *name;
    const char *mismatch; /* in all that is said of one */
} use;

static const use uses[] = {
    {"many", " disagrees: "},      {"objects", " disagrees: "},   {"letters", " disagree: "},
    {"watched", " disagrees: "},   {"split", " names the group"}, {"in_turn", " disagrees: "},
    {"in_flight", " disagrees: "}, {"unequal", " disagrees: "},   {"operators", " disagrees: "},
    {"callbacks", " disagrees: "}, {"threads", " disagrees: "}};
enum { USES = sizeof uses / sizeof *uses };

static const char *const transports[] = {"", "0,1,0,1,0,1", "0,1,2,3,4,5"}; /* hosts of the ranks */
enum { TRANSPORTS = sizeof transports / sizeof *transports };

typedef struct run {
    const use *use;
    int transport;
    strike strike;
} run;

static uint64_t dice;

static void judge(const run *r, const job *j)
{
    const char *const parts[WAYS] = {" was killed by signal ", " within ", r->use->mismatch};
    static const int codes[WAYS] = {137, 1, 1};
    char who[64], why[320];
    snprintf(who, sizeof who, r->strike.how == MISMATCH ? "rank %d " : "rank %d (host ",
             r->strike.victim);
    const bool wrong = job_says(j, "WRONG");
    if (wrong || j->status != codes[r->strike.how] || !job_all_say(j, parts[r->strike.how], who)) {
        snprintf(why, sizeof why, "%s, rank %d of %d %s, hosts \"%s\": %s", r->use->name,
                 r->strike.victim, r->strike.ranks, way_names[r->strike.how],
                 transports[r->transport],
                 wrong                               ? "a result is wrong"
                 : j->status != codes[r->strike.how] ? "another status than expected"
                                                     : "it is not named by all");
        job_fail(j, why);
    }
}

static void run_one(const use *u, way how, int transport)
{
    run r = {.use = u, .strike = strike_draw(&dice, how), .transport = transport};
    char command[1024], program[1024], ranks[8], wrong[8], timeout[64], hosts[64];
    const int seconds = how == STOP ? (int)(TIMEOUT_SECONDS * test_slow_down()) : 60;
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/mixer"));
    snprintf(ranks, sizeof ranks, "%d", r.strike.ranks);
    snprintf(wrong, sizeof wrong, "%d", how == MISMATCH ? r.strike.victim : -1);
    snprintf(timeout, sizeof timeout, "LOCKSTEP_TIMEOUT=%d", seconds);
    snprintf(hosts, sizeof hosts, "LOCKSTEP_HOSTS=%s", transports[transport]);
    const char *argv[] = {command, "run", "-n", ranks, program, u->name, wrong, NULL};
    const char *const settings[] = {timeout, transport > 0 ? hosts : NULL, NULL};
    job j = {.settings = settings,
             .deadline = seconds + 30,
             .on_line = strike_on_line,
             .arg = &r.strike};
    job_run(&j, argv);
    judge(&r, &j);
    job_free(&j);
}

static int run_all(const use *u)
{
    int runs = 0;
    for (int transport = 0; transport < TRANSPORTS; transport++) {
        for (int how = 0; how < WAYS; how++) {
            for (int i = 0; i < times[how]; i++, runs++) {
                run_one(u, (way)how, transport);
            }
        }
    }
    return runs;
}

TEST_OF(a_fault_in_any_use_is_named_by_all_and_no_result_is_wrong, 0, 3000)
{
    int runs = 0;
    dice = test_seed();
    for (int u = 0; getenv("TEST_LONG") != NULL && u < USES; u++) {
        runs += run_all(&uses[u]);
    }
    const int first = draw(&dice, USES);
    for (int i = 0; getenv("TEST_LONG") == NULL && i < SHORT_RUNS; i++, runs++) {
        run_one(&uses[(first + i) % USES], i % 3 == 2 ? MISMATCH : KILL, (i + first) % TRANSPORTS);
    }
    printf("%d runs\n", runs);
    CHECK(runs >= SHORT_RUNS);
}

TEST_MAIN
