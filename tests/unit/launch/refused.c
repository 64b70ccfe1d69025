/* SPDX-License-Identifier: Apache-2.0 */
/* What the launcher says when the system refuses it memory, descriptors, random numbers or a
 * process: each call that can fail does, in turn, and no rank is started. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "job/board.h"
#include "launch/launch.h"
#include "says.h"
#include "test.h"

/* An env table of which one call fails, in the launcher's processes; of some the first ones are
 * good. */
static ls__env table;
static int good; /* calls before the first that fails */

static bool due(void)
{
    return good-- <= 0;
}

static int no_signals(const ls__env *env, const int *signals, int count, uint64_t *saved)
{
    (void)env;
    (void)signals;
    (void)count;
    (void)saved;
    return -EMFILE;
}

static int no_adoption(const ls__env *env)
{
    (void)env;
    return -EPERM;
}

static int no_poller(const ls__env *env)
{
    (void)env;
    return -EMFILE;
}

static int no_random(const ls__env *env, void *out, size_t bytes)
{
    const ls__env *real = ls__env_posix();
    (void)env;
    return due() ? -EIO : real->random_bytes(real, out, bytes);
}

static int no_secret(const ls__env *env, const char *name, size_t bytes)
{
    const ls__env *real = ls__env_posix();
    (void)env;
    return strcmp(name, "lockstep-secret") == 0 ? -EMFILE : real->shm_create(real, name, bytes);
}

static int no_process(const ls__env *env, const ls__env_spawn *spawn, pid_t *pid, int *pidfd)
{
    const ls__env *real = ls__env_posix();
    (void)env;
    return due() ? -EAGAIN : real->spawn(real, spawn, pid, pidfd);
}

static void *no_memory(const ls__env *env, size_t bytes)
{
    const ls__env *real = ls__env_posix();
    (void)env;
    return due() ? NULL : real->allocate(real, bytes);
}

static const char *const program[] = {"true", NULL};

/* What the launcher says of a job of 2 ranks, with the table as it is; `calls` are good before. */
static const char *said(int calls)
{
    static ls__job_result result;
    const ls__job job = {.ranks = 2, .argv = program, .capture = true, .forward_signals = true};
    memset(&result, 0, sizeof result);
    good = calls;
    const ls_status status = ls__job_run(&table, &job, &result);
    return status < 0 ? ls_error_message() : result.report;
}

static void renew(void)
{
    table = *ls__env_posix();
}

TEST(calls_that_the_system_refuses_are_named)
{
    renew();
    table.signals_open = no_signals;
    CHECK_SAYS(said(0), "cannot watch signals: %s");
    renew();
    table.adopt_orphans = no_adoption;
    CHECK_SAYS(said(0), "cannot adopt orphaned processes: %s");
    renew();
    table.poller_open = no_poller;
    CHECK_SAYS(said(0), "cannot watch the processes of the ranks: %s");
    renew();
    table.shm_create = no_secret;
    CHECK_SAYS(said(0), "cannot pass the secret to the ranks: %s");
}

/* The reports of a launcher of which ever more calls are good, until the job comes through. */
static void collect(char *out, size_t room)
{
    out[0] = '\0';
    for (int calls = 0; calls < 200; calls++) {
        const char *text = said(calls);
        if (text[0] == '\0') {
            return;
        }
        strncat(out, text, room - strlen(out) - 1);
        strncat(out, "\n", room - strlen(out) - 1);
    }
    test_fail(__FILE__, __LINE__, "no job came through: %s", out);
}

static char all[1 << 16];

TEST(random_numbers_and_processes_that_are_refused_are_named)
{
    renew();
    table.random_bytes = no_random;
    collect(all, sizeof all);
    CHECK_SAYS(all, "cannot draw a random number for the job: %s");
    CHECK_SAYS(all, "cannot draw the secret of the job: %s");
    renew();
    table.spawn = no_process;
    collect(all, sizeof all);
    CHECK_SAYS(all, "cannot start %d ranks: %s");
    CHECK_SAYS(all, "cannot start rank %d of \"%s\": %s; %s");
}

TEST(memory_that_is_refused_is_named)
{
    renew();
    table.allocate = no_memory;
    collect(all, sizeof all);
    CHECK_SAYS(all, "no memory for the launcher's poll loop");
    CHECK_SAYS(all, "no memory for the output of %d ranks");
}

TEST_MAIN
