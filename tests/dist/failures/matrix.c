/* SPDX-License-Identifier: Apache-2.0 */
/* The failure matrix: every way in which a rank may fail, at every place, by real processes.
 *
 *     {how} × {where} × {transport}, with 2 to 6 ranks and another victim in turn
 *
 * Of each cell: the launcher's status; its report and that of every survivor name the same rank,
 * process, cause and place, in the same words, within half a second; and nothing is left (job.c).
 * A fixed part of the cells runs always, all of them with TEST_LONG=1.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "places.h"
#include "says.h"

#define REPORT_SECONDS 0.5
#define NAME_SECONDS 5.0    /* a stopped rank is named */
#define TIMEOUT_SECONDS 3.0 /* what its peers wait */

/* ---- the transports ------------------------------------------------------------------------- */

typedef struct transport {
    const char *name;
    const char *const *settings;
} transport;

static const char *const two_hosts[] = {"LOCKSTEP_HOSTS=0,1,0,1,0,1", NULL};
static const transport transports[] = {{"shm", NULL}, {"tcp", two_hosts}};
enum { TRANSPORTS = sizeof transports / sizeof *transports };

/* ---- ways ----------------------------------------------------------------------------------- */

typedef struct way {
    const char *name;
    int status;
    const char *words; /* behind "rank R (host H, pid P) " */
} way;

static const way ways[] = {{"kill", 137, "was killed by signal 9 (SIGKILL) "},
                           {"segv", 139, "was killed by signal 11 (SIGSEGV) "},
                           {"abort", 134, "was killed by signal 6 (SIGABRT) "},
                           {"exit0", 1, "exited with code 0 without ls_"},
                           {"exit3", 3, "exited with code 3 "},
                           {"stop", 1, "is stopped (state T; "},
                           {"oom", 1, ""}};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct cell {
    const way *way;
    const place *place;
    const transport *transport;
    int ranks, victim;
} cell;

static bool how_is(const cell *c, const char *name)
{
    return strcmp(c->way->name, name) == 0;
}

static bool is_at(const cell *c, const char *name)
{
    return is_place(c->place, name);
}

/* Operations need no memory. */
static bool makes_sense(const way *w, const place *p)
{
    static const char *const need_memory[] = {"startup", "forward", "between", "group",
                                              "checkpoint"};
    bool needs = strcmp(w->name, "oom") != 0;
    for (size_t i = 0; i < sizeof need_memory / sizeof *need_memory; i++) {
        needs = needs || is_place(p, need_memory[i]);
    }
    return needs && (strcmp(w->name, "stop") != 0 || is_waited_for_at(p));
}

/* ---- one cell ------------------------------------------------------------------------------- */

static job run_cell(const cell *c, void (*on_line)(job *j, const char *line))
{
    static const char *both[8];
    char ranks[16], victim[16];
    int n = 0;
    snprintf(ranks, sizeof ranks, "%d", c->ranks);
    snprintf(victim, sizeof victim, "%d", c->victim);
    both[n++] = how_is(c, "stop") ? "LOCKSTEP_TIMEOUT=3" : "LOCKSTEP_TIMEOUT=60";
    for (int i = 0; c->transport->settings != NULL && c->transport->settings[i] != NULL; i++) {
        both[n++] = c->transport->settings[i];
    }
    both[n] = NULL;
    char *command = strdup(test_build_path("lockstep"));
    char *program = strdup(test_build_path("tests/dist/failures/victim"));
    const char *argv[] = {command,      "run",          "-n",   ranks,   program,
                          c->way->name, c->place->name, victim, "saved", NULL};
    job j = {.settings = both, .deadline = 40, .on_line = on_line};
    job_run(&j, argv);
    free(command);
    free(program);
    return j;
}

static void complain(const cell *c, const job *j, const char *what)
{
    char why[512];
    snprintf(why, sizeof why, "%s at %s, rank %d of %d, %s: %.300s", c->way->name, c->place->name,
             c->victim, c->ranks, c->transport->name, what);
    job_fail(j, why);
}

/* "rank 2 (host h, pid 12) was killed …" of the launcher's report, to the line's end. */
static const char *cause_of(const job *j, int *line)
{
    *line = -1;
    for (int i = 0; i < j->lines; i++) {
        if (strncmp(j->line[i], "lockstep: rank ", 15) == 0 &&
            strstr(j->line[i], " goes on ") == NULL) {
            *line = i;
            return j->line[i] + 10;
        }
    }
    return "";
}

/* Whether a line came in time after the fault. */
static bool came_within(const job *j, int line, double promised)
{
    return line >= 0 && test_is_within(j->came[line] - j->struck, promised);
}

static void check_cause(const cell *c, const job *j, const char *cause)
{
    char who[64], words[128];
    snprintf(who, sizeof who, "rank %d (host ", c->victim);
    snprintf(words, sizeof words, ", pid %d) %s", (int)j->pid[c->victim], c->way->words);
    if (strstr(cause, who) == NULL || strstr(cause, words) == NULL) {
        complain(c, j, "the report names not the victim, its process and what happened to it");
    }
    if (strstr(cause, c->place->doing) == NULL ||
        (c->place->with_site && strstr(cause, "victim.c:") == NULL)) {
        complain(c, j, "the report does not say what the victim was doing, and where");
    }
}

/* Every survivor said the cause in the launcher's words, and in time. */
static void check_survivors(const cell *c, const job *j, const char *cause)
{
    for (int r = 0; r < c->ranks; r++) {
        if (r == c->victim) {
            continue;
        }
        int line = job_find(j, r, cause);
        char what[128];
        if (line < 0) {
            snprintf(what, sizeof what, "rank %d did not report the launcher's cause", r);
            complain(c, j, what);
        }
        if (!came_within(j, line, REPORT_SECONDS)) {
            snprintf(what, sizeof what, "rank %d reported after %.3f s", r,
                     j->came[line] - j->struck);
            complain(c, j, what);
        }
    }
}

/* Ranks that are not in the job yet, or not any more, have nothing to report. */
static bool survivors_report(const cell *c)
{
    return !is_at(c, "exit");
}

static void check_death(const cell *c, const job *j)
{
    int line;
    const char *cause = cause_of(j, &line);
    if (j->status != c->way->status) {
        complain(c, j, "another status than expected");
    }
    check_cause(c, j, cause);
    /* Ranks that compute do not end by themselves. */
    const double ending = is_at(c, "compute") ? 0.4 : 0.0;
    if (!came_within(j, line, REPORT_SECONDS + ending)) {
        complain(c, j, "the launcher's report came late");
    }
    if (is_at(c, "survived") &&
        !job_says(j, SAYS("note: %.0f s earlier rank %d failed and continued: %.800s"))) {
        complain(c, j, "the failure that was survived is not mentioned");
    }
    if (survivors_report(c)) {
        check_survivors(c, j, cause);
    }
}

/* What rank r (-1: the launcher) says of the victim; over TCP it hears nothing of it. */
static int find_naming(const cell *c, const job *j, int r)
{
    char who[128], remote[128];
    snprintf(who, sizeof who, "pid %d) is stopped (state T; `kill -CONT %d`",
             (int)j->pid[c->victim], (int)j->pid[c->victim]);
    snprintf(remote, sizeof remote, "pid %d) has sent no heartbeat for", (int)j->pid[c->victim]);
    int line = job_find(j, r, who);
    return line < 0 && r >= 0 && c->transport->settings != NULL ? job_find(j, r, remote) : line;
}

/* Named by the launcher and by all that wait, and then the deadline. */
static void check_stop(const cell *c, const job *j)
{
    for (int r = -1; r < c->ranks; r++) {
        const bool in_init = is_at(c, "startup") || is_at(c, "rendezvous");
        if (r == c->victim || (r >= 0 && in_init)) {
            continue;
        }
        int line = find_naming(c, j, r);
        if (!came_within(j, line, NAME_SECONDS)) {
            complain(c, j, "the stopped rank is not named by all in time");
        }
    }
    if (j->status != c->way->status) {
        complain(c, j, "another status than expected");
    }
    int line;
    const char *cause = cause_of(j, &line);
    char name[32];
    snprintf(name, sizeof name, "rank %d", c->victim);
    if (strstr(cause, name) == NULL ||
        !test_is_within(j->ended - j->struck, TIMEOUT_SECONDS + 2.5)) {
        complain(c, j, "the deadline's report names another rank, or came late");
    }
}

static void check_oom(const cell *c, const job *j)
{
    int line;
    const char *cause = cause_of(j, &line);
    char name[32];
    snprintf(name, sizeof name, "rank %d", c->victim);
    if (j->status == 0 || strstr(cause, name) == NULL) {
        complain(c, j, "the report does not name the rank that lacks memory");
    }
    if (!came_within(j, line, 1.0)) {
        complain(c, j, "the report came late");
    }
}

static void check_cell(const cell *c)
{
    job j = run_cell(c, NULL);
    if (j.struck == 0.0) {
        complain(c, &j, "nothing happened");
    }
    if (how_is(c, "stop")) {
        check_stop(c, &j);
    } else if (how_is(c, "oom")) {
        check_oom(c, &j);
    } else if (how_is(c, "exit0") && is_at(c, "exit")) {
        if (j.status != 0 || job_find(&j, -1, "") >= 0) {
            complain(c, &j, "to end with 0 after ls_finalize is no failure");
        }
    } else {
        check_death(c, &j);
    }
    if (getenv("TEST_VERBOSE") != NULL) {
        printf("%s at %s, rank %d of %d, %s: ended after %.3f s\n", c->way->name, c->place->name,
               c->victim, c->ranks, c->transport->name, j.ended - j.struck);
    }
    job_free(&j);
}

/* ---- the matrix ----------------------------------------------------------------------------- */

/* The cells of one way. Of the short run: those that `chosen` names, else all. */
static void check_way(const char *name, const char *chosen)
{
    int number = 0, run = 0;
    const bool all = getenv("TEST_LONG") != NULL;
    const char *only = getenv("TEST_PLACE"); /* of those who look into one */
    for (int t = 0; t < TRANSPORTS; t++) {
        for (int w = 0; w < WAYS; w++) {
            for (int p = 0; p < PLACES; p++, number++) {
                char word[32];
                snprintf(word, sizeof word, " %s ", places[p].name);
                const int ranks = 2 + number % 5;
                const cell c = {&ways[w], &places[p], &transports[t], ranks, number % ranks};
                const bool wanted =
                    only != NULL ? is_place(&places[p], only) : all || strstr(chosen, word) != NULL;
                if (strcmp(ways[w].name, name) == 0 && makes_sense(&ways[w], &places[p]) &&
                    wanted) {
                    check_cell(&c);
                    run++;
                }
            }
        }
    }
    printf("%d cells\n", run);
    CHECK(run > 0 || only != NULL);
}

#define LONG_SECONDS 300

TEST_OF(a_killed_rank_is_named_by_all, 0, LONG_SECONDS)
{
    check_way("kill",
              " startup forward stage reduce_scatter send compute survived exit hook0 hook1 "
              "zero_forward ");
}

TEST_OF(a_segfault_is_named_by_all, 0, LONG_SECONDS)
{
    check_way("segv", " rendezvous backward gather zero_step ");
}

TEST_OF(an_abort_is_named_by_all, 0, LONG_SECONDS)
{
    check_way("abort", " broadcast checkpoint ");
}

TEST_OF(leaving_early_with_status_0_is_a_failure_unless_nobody_needs_the_rank, 0, LONG_SECONDS)
{
    check_way("exit0", " startup rendezvous all_gather between exit ");
}

TEST_OF(an_exit_code_is_named_by_all, 0, LONG_SECONDS)
{
    check_way("exit3", " all_reduce group recv exit zero_backward ");
}

TEST_OF(a_stopped_rank_is_named_and_fails_at_the_deadline, 0, LONG_SECONDS)
{
    check_way("stop", " barrier hook0 hook1 ");
}

TEST_OF(a_rank_without_memory_is_named, 0, LONG_SECONDS)
{
    check_way("oom", " startup group checkpoint ");
}

TEST_MAIN
