/* SPDX-License-Identifier: Apache-2.0 */
/* What befalls the launcher itself, and a second failure while the first is handled: front or agent
 * killed or stopped, ranks stopped and continued, a job that is restarted. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job.h"
#include "processes.h"
#include "says.h"

#define RANKS 4

/* ---- running -------------------------------------------------------------------------------- */

/* Tells the processes of this test's unmarked children from others: the time that they sleep. */
static void unmarked_seconds(char out[32])
{
    snprintf(out, 32, "4%07d.25", (int)getpid());
}

/* Processes that sleep for so long; with `end` they are killed. */
static int count_sleepers(const char *seconds, bool end)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *e = proc ? readdir(proc) : NULL; e != NULL; e = readdir(proc)) {
        char path[64], text[256] = "";
        snprintf(path, sizeof path, "/proc/%.20s/cmdline", e->d_name);
        FILE *file = atoi(e->d_name) > 0 ? fopen(path, "r") : NULL;
        const size_t got = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file != NULL) {
            fclose(file);
        }
        if (got > 6 && strcmp(text, "sleep") == 0 && strcmp(text + 6, seconds) == 0) {
            count++;
            (void)(end && kill((pid_t)atoi(e->d_name), SIGKILL));
        }
    }
    if (proc != NULL) {
        closedir(proc);
    }
    return count;
}

static void check_unmarked(const job *j)
{
    char seconds[32];
    unmarked_seconds(seconds);
    while (count_sleepers(seconds, false) > 0 && process_seconds() < j->ended + 1.0) {
        usleep(5000);
    }
    if (count_sleepers(seconds, true) > 0) {
        job_fail(j, "processes without the job's environment are left");
    }
}

/* Four ranks of the victim; before it starts, each starts two processes that belong to nobody, one
 * of them without the environment by which the launcher could know it. */
static job run_script(const char *flags, const char *victim, void (*on_line)(job *, const char *),
                      void *arg, const char *const *settings)
{
    char script[4096], command[1024], program[1024], seconds[32];
    unmarked_seconds(seconds);
    snprintf(command, sizeof command, "%s", test_build_path("lockstep"));
    snprintf(program, sizeof program, "%s", test_build_path("tests/dist/failures/victim"));
    snprintf(script, sizeof script,
             "exec %s run -n 4 %s sh -c 'setsid sleep 300 >/dev/null 2>&1 & "
             "env -i setsid sleep %s >/dev/null 2>&1 & exec %s %s saved'",
             command, flags, seconds, program, victim);
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    job j = {.settings = settings, .deadline = 40, .on_line = on_line, .arg = arg};
    job_run(&j, argv);
    check_unmarked(&j);
    return j;
}

static bool all_started(const job *j)
{
    int count = 0;
    for (int r = 0; r < RANKS; r++) {
        count += j->pid[r] != 0;
    }
    return count == RANKS;
}

/* ---- killed --------------------------------------------------------------------------------- */

typedef struct kill_plan {
    bool front, guard, agent;
    int delay_ms;
    bool done;
} kill_plan;

static void kill_launcher(job *j, const char *line)
{
    kill_plan *plan = j->arg;
    (void)line;
    if (plan->done || !all_started(j)) {
        return;
    }
    plan->done = true;
    usleep((useconds_t)plan->delay_ms * 1000u);
    const pid_t guard = job_guard(j), agent = job_agent(j);
    CHECK(guard > 0 && agent > 0);
    if (plan->guard) {
        kill(guard, SIGKILL);
    }
    if (plan->agent) {
        kill(agent, SIGKILL);
    }
    if (plan->front) {
        kill(j->front, SIGKILL);
    }
}

/* job_run checks that all of it is gone a second after the front. */
static job kill_it(kill_plan plan)
{
    const int rounds = getenv("TEST_LONG") != NULL ? 20 : 1;
    job j = {0};
    for (int i = 0; i < rounds; i++) {
        job_free(&j);
        plan.done = false;
        plan.delay_ms = (i * 7) % 40; /* ranks start, join and train */
        j = run_script("", "none forever 0", kill_launcher, &plan, NULL);
        CHECK(plan.done);
    }
    return j;
}

TEST_OF(a_killed_front_leaves_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.front = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

TEST_OF(a_killed_agent_is_told_and_leaves_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.agent = true});
    CHECK_INT(j.status, 137);
    CHECK(job_find(&j, -1,
                   SAYS("the launcher's agent (process %d) was killed by signal %d (%s), and the "
                        "ranks with it")) >= 0);
    job_free(&j);
}

TEST_OF(front_and_agent_killed_at_once_leave_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.front = true, .agent = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

TEST_OF(a_killed_guard_leaves_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.guard = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

TEST_OF(guard_and_agent_killed_at_once_leave_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.guard = true, .agent = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

TEST_OF(front_and_guard_killed_at_once_leave_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.front = true, .guard = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

/* The reaper finds what has neither the job's environment nor its session by the mark. */
TEST_OF(front_guard_and_agent_killed_at_once_leave_nothing, 0, 120)
{
    job j = kill_it((kill_plan){.front = true, .guard = true, .agent = true});
    CHECK_INT(j.status, 137);
    job_free(&j);
}

/* ---- stopped -------------------------------------------------------------------------------- */

/* On the first line with `part` it continues the process that was stopped. */
typedef struct stop_plan {
    const char *part;
    bool front, agent; /* stopped when all ranks have started; else the victim stops itself */
    bool stopped, continued;
    pid_t pid;
} stop_plan;

static void stop_and_continue(job *j, const char *line)
{
    stop_plan *plan = j->arg;
    if (!plan->stopped && all_started(j)) {
        plan->stopped = true;
        plan->pid = plan->agent ? job_agent(j) : plan->front ? j->front : 0;
        if (plan->pid > 0) {
            kill(plan->pid, SIGSTOP);
        }
    }
    if (!plan->continued && strstr(line, plan->part) != NULL) {
        const char *at = strstr(line, ", pid ");
        plan->continued = true;
        usleep(300000);
        kill(plan->pid > 0 ? plan->pid : (pid_t)atoi(at + 6), SIGCONT);
    }
}

TEST(a_stopped_rank_that_goes_on_in_time_costs_nothing_but_time)
{
    stop_plan plan = {.part = "lockstep: warning: rank 1 (host "};
    job j = run_script("", "stop reduce 1", stop_and_continue, &plan, NULL);
    if (!plan.continued || j.status != 0 ||
        job_find(&j, -1, SAYS("lockstep: %s continues after %.1f s")) < 0) {
        job_fail(&j, "the job should have gone on");
    }
    job_free(&j);
}

#define PAUSES 4

typedef struct pause_plan {
    int seconds; /* the deadline */
    bool done;
} pause_plan;

/* What the front does at Ctrl-Z and `fg`, for longer than the deadline of all operations. */
static void pause_and_continue(job *j, const char *line)
{
    pause_plan *plan = j->arg;
    (void)line;
    if (plan->done || !all_started(j)) {
        return;
    }
    plan->done = true;
    const pid_t agent = job_agent(j);
    CHECK(agent > 0);
    for (int i = 0; i < PAUSES; i++) {
        sleep(1); /* they train */
        kill(agent, SIGTSTP);
        usleep((useconds_t)plan->seconds * 1000000u + 300000u);
        kill(agent, SIGCONT);
    }
    sleep(1);
    kill(j->pid[1], SIGKILL);
}

/* The ranks go on one after another: the first one must not find that the others are late. */
TEST(a_job_goes_on_after_ctrl_z_for_longer_than_its_deadline)
{
    const double slow = test_slow_down() < 3.0 ? test_slow_down() : 3.0;
    pause_plan plan = {.seconds = (int)(1.0 * slow + 0.5)};
    char timeout[64];
    snprintf(timeout, sizeof timeout, "LOCKSTEP_TIMEOUT=%d", plan.seconds);
    const char *const settings[] = {timeout, NULL};
    job j = run_script("", "none forever 0", pause_and_continue, &plan, settings);
    if (!plan.done || j.status != 137 || job_says(&j, SAYS("keeps the others waiting"))) {
        job_fail(&j, "the job should have gone on until the rank was killed");
    }
    job_free(&j);
}

TEST(a_stopped_agent_is_named_by_the_front)
{
    stop_plan plan = {.part = "lockstep: warning: the launcher's agent (process ", .agent = true};
    job j = run_script("", "none x 0", stop_and_continue, &plan, NULL);
    if (!plan.continued || j.status != 0) {
        job_fail(&j, "the job should have gone on");
    }
    job_free(&j);
}

static void stop_front_for_a_moment(job *j, const char *line)
{
    bool *done = j->arg;
    (void)line;
    if (!*done && all_started(j)) {
        *done = true;
        kill(j->front, SIGSTOP);
        usleep(400000); /* the job ends meanwhile */
        kill(j->front, SIGCONT);
    }
}

TEST(a_stopped_front_does_not_stop_the_job)
{
    bool done = false;
    job j = run_script("", "none x 0", stop_front_for_a_moment, &done, NULL);
    CHECK(done);
    CHECK_INT(j.status, 0);
    job_free(&j);
}

typedef struct blind_plan {
    double stopped, continued;
    int file;
} blind_plan;

/* The agent sees no death while it is stopped: the ranks find it themselves. */
static void kill_behind_its_back(job *j, const char *line)
{
    blind_plan *plan = j->arg;
    if (plan->stopped == 0.0 && all_started(j)) {
        plan->stopped = process_seconds();
        usleep(150000); /* they have joined and train; in the store they would need the agent */
        kill(job_agent(j), SIGSTOP);
        kill(j->pid[1], SIGKILL);
    } else if (plan->continued == 0.0 && strstr(line, "agent (process ") != NULL) {
        plan->continued = process_seconds();
        usleep(3500000);
        kill((pid_t)atoi(strstr(line, "process ") + 8), SIGCONT);
    }
}

TEST(a_death_that_a_stopped_agent_does_not_see_is_found_by_the_ranks)
{
    blind_plan plan = {0};
    job j = run_script("", "none forever 0", kill_behind_its_back, &plan, NULL);
    if (j.status == 0 || job_find(&j, -1, "rank 1 (host ") < 0 ||
        !job_says(&j, SAYS("ended (unconfirmed: the launcher has not reported it)")) ||
        !job_says(
            &j, SAYS("the launcher's agent (process %d) is stopped (state T; `kill -CONT %d` lets "
                     "it go on): until then no failure is reported and no output shown"))) {
        job_fail(&j, "the death is not reported");
    }
    job_free(&j);
}

/* ---- a second failure ------------------------------------------------------------------------ */

typedef struct second_plan {
    int gap_ms;
    bool done;
} second_plan;

static void kill_two(job *j, const char *line)
{
    second_plan *plan = j->arg;
    (void)line;
    if (!plan->done && all_started(j)) {
        plan->done = true;
        usleep(30000);
        j->struck = process_seconds();
        job_kill_first(j, 2);
        usleep((useconds_t)plan->gap_ms * 1000u);
        kill(j->pid[0], SIGKILL);
    }
}

TEST_OF(a_second_failure_does_not_hide_the_first, 0, 120)
{
    const int step = getenv("TEST_LONG") != NULL ? 1 : 12;
    for (int gap_ms = 0; gap_ms <= 50; gap_ms += step) {
        second_plan plan = {.gap_ms = gap_ms};
        job j = run_script("", "none forever 0", kill_two, &plan, NULL);
        if (j.status != 137 || job_find(&j, -1, "lockstep: rank 2 (host ") < 0) {
            fprintf(stderr, "gap %d ms\n", gap_ms);
            job_fail(&j, "the first failure is not the cause");
        }
        job_free(&j);
    }
}

/* ---- restarts -------------------------------------------------------------------------------- */

typedef struct open_files {
    int count[8], seen;
} open_files;

/* Each attempt's rank 0 says its number. */
static void count_files(job *j, const char *line)
{
    open_files *files = j->arg;
    char path[64];
    if (strncmp(line, "[0] PID ", 8) != 0 || files->seen == 8) {
        return;
    }
    snprintf(path, sizeof path, "/proc/%d/fd", (int)j->front);
    DIR *folder = opendir(path);
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    files->count[files->seen++] = count;
}

TEST(restarts_leave_no_descriptor_open)
{
    open_files files = {0};
    job j = run_script("--max-restarts 2", "kill startup 1", count_files, &files, NULL);
    CHECK_INT(j.status, 137);
    CHECK_INT(files.seen, 3);
    CHECK_INT(files.count[2], files.count[0]);
    job_free(&j);
}

TEST_MAIN
