/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's common part: attaching, forks, the activity record. */
#include <lockstep/random.h>
#include <lockstep/runtime.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/runtime.h"
#include "says.h"
#include "test.h"

TEST(without_a_runtime_there_is_one_rank_and_calls_say_to_init_first)
{
    CHECK_INT(ls_rank(), 0);
    CHECK_INT(ls_world_size(), 1);
    CHECK_INT(ls_local_rank(), 0);
    CHECK_INT(ls_local_world_size(), 1);
    CHECK(ls_runtime_current() == NULL);
    CHECK_STATUS(ls_manual_seed(1), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "ls_manual_seed: ");
    CHECK_CONTAINS(ls_error_message(), "call ls_init first");
    CHECK(ls_time() > 0);
}

TEST(an_attached_runtime_answers_for_its_thread_alone)
{
    ls_runtime runtime, other;
    ls__runtime_init(&runtime, ls__env_posix());
    ls__runtime_init(&other, ls__env_posix());
    runtime.rank = 2;
    runtime.world_size = 5;
    runtime.local_rank = 1;
    runtime.local_size = 3;
    CHECK_OK(ls_runtime_attach(&runtime));
    CHECK_OK(ls_runtime_attach(&runtime));
    CHECK_INT(ls_rank(), 2);
    CHECK_INT(ls_world_size(), 5);
    CHECK_INT(ls_local_rank(), 1);
    CHECK_INT(ls_local_world_size(), 3);
    CHECK_STATUS(ls_runtime_attach(&other), LS_ERR_STATE);
    CHECK(ls_runtime_current() == &runtime);
    CHECK_OK(ls_runtime_attach(NULL));
    CHECK_OK(ls_runtime_attach(&other));
    CHECK_INT(ls_rank(), 0);
}

TEST(seeding_restarts_the_streams_and_a_step_restarts_its_calls)
{
    ls_runtime runtime;
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_OK(ls_runtime_attach(&runtime));
    runtime.param_streams = 9;
    runtime.calls_in_step = 9;
    CHECK_OK(ls_manual_seed(77));
    CHECK_INT(runtime.seed, 77);
    CHECK_INT(runtime.param_streams, 0);
    CHECK_INT(runtime.calls_in_step, 0);
    runtime.calls_in_step = 4;
    ls_step_begin((ls_step_context){.step = 12, .sample_offset = 640});
    CHECK_INT(runtime.step, 12);
    CHECK_INT(runtime.sample_offset, 640);
    CHECK_INT(runtime.calls_in_step, 0);
}

static int status_of_child(int (*child)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        _exit(child());
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int child_seeds(void)
{
    bool said = ls_manual_seed(1) == LS_ERR_FORKED &&
                test_contains(ls_error_message(), "ls_manual_seed: called in a child");
    return said ? 42 : 1;
}

static void *thread_attaches(void *runtime)
{
    return (void *)(uintptr_t)(ls_runtime_attach(runtime) == LS_ERR_FORKED);
}

static ls_runtime *inherited;

static int child_thread_attaches(void)
{
    pthread_t thread;
    void *refused = NULL;
    pthread_create(&thread, NULL, thread_attaches, inherited);
    pthread_join(thread, &refused);
    bool detaching_helps_not =
        ls_runtime_attach(NULL) != LS_OK && ls_manual_seed(1) == LS_ERR_FORKED;
    return refused != NULL && detaching_helps_not ? 42 : 1;
}

TEST(a_child_made_by_fork_is_refused_and_the_parent_goes_on)
{
    ls_runtime runtime;
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_OK(ls_runtime_attach(&runtime));
    inherited = &runtime;
    CHECK_INT(status_of_child(child_seeds), 42);
    CHECK_INT(status_of_child(child_thread_attaches), 42);
    CHECK_OK(ls_manual_seed(1));
}

static int child_without_runtime(void)
{
    ls_runtime runtime;
    ls__runtime_init(&runtime, ls__env_posix());
    return ls_runtime_attach(&runtime) == LS_OK && ls_manual_seed(3) == LS_OK ? 42 : 1;
}

TEST(a_fork_before_init_does_no_harm)
{
    CHECK_INT(status_of_child(child_without_runtime), 42);
}

TEST(the_activity_record_says_phase_detail_and_the_tail_of_the_file)
{
    ls_runtime runtime;
    ls__activity_copy copy;
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_INT(ls__activity_enter(LS__PHASE_FORWARD, "ignored"), LS__PHASE_USER);
    CHECK_OK(ls_runtime_attach(&runtime));
    ls_site_set("/a/rather/long/path/that/does/not/fit/into/the/record/train.c", 88);
    CHECK_INT(ls__activity_enter(LS__PHASE_BACKWARD, "fc1"), LS__PHASE_USER);
    CHECK(ls__activity_read(runtime.activity, &copy));
    CHECK_INT(copy.phase, LS__PHASE_BACKWARD);
    CHECK(strcmp(copy.detail, "fc1") == 0);
    CHECK_INT(copy.line, 88);
    CHECK_INT(strlen(copy.file), LS__ACTIVITY_FILE_MAX - 1);
    CHECK_CONTAINS(copy.file, "/record/train.c");
    CHECK(copy.since_ns > 0);
    CHECK_INT(ls__activity_enter(LS__PHASE_COLLECTIVE, NULL), LS__PHASE_BACKWARD);
    ls__activity_leave(LS__PHASE_BACKWARD);
    CHECK(ls__activity_read(runtime.activity, &copy));
    CHECK_INT(copy.phase, LS__PHASE_BACKWARD);
    CHECK(copy.detail[0] == '\0');
}

#define WRITES 20000

static void *write_activities(void *arg)
{
    CHECK_OK(ls_runtime_attach(arg));
    for (int i = 0; i < WRITES; i++) {
        char detail[LS__ACTIVITY_DETAIL_MAX];
        memset(detail, 'a' + i % 26, sizeof detail - 1);
        detail[sizeof detail - 1] = '\0';
        ls_site_set("x.c", i % 26);
        (void)ls__activity_enter((ls__phase)(i % 8), detail);
    }
    return NULL;
}

TEST(how_far_training_has_come_is_told_by_the_optimizer_or_else_the_step)
{
    ls__activity activity = {.phase = LS__PHASE_BACKWARD};
    char text[LS__PROGRESS_MAX];
    ls__activity_progress(&activity, text);
    CHECK_STR(text, "");
    atomic_store(&activity.step, 4);
    ls__activity_progress(&activity, text);
    CHECK_STR(text, " (in step 3, counted from 0)");
    CHECK_SAYS(text, " (in step %llu, counted from 0)");
    atomic_store(&activity.updates, UINT64_MAX);
    ls__activity_progress(&activity, text);
    CHECK_STR(text, " (after optimizer step 18446744073709551615)");
    CHECK_SAYS(text, " (after optimizer step %llu)");
}

TEST(an_activity_read_during_writes_is_never_a_mixture)
{
    static ls_runtime runtime;
    pthread_t writer;
    int seen = 0;
    ls__runtime_init(&runtime, ls__env_posix());
    pthread_create(&writer, NULL, write_activities, &runtime);
    while (seen < 1000) {
        ls__activity_copy copy;
        if (!ls__activity_read(runtime.activity, &copy) || copy.detail[0] == '\0') {
            sched_yield(); /* the writer lost its core within a write, or has not begun */
            continue;
        }
        seen++;
        CHECK_INT(copy.line, copy.detail[0] - 'a');
        CHECK_INT(strspn(copy.detail, (char[]){copy.detail[0], '\0'}), sizeof copy.detail - 1);
    }
    pthread_join(writer, NULL);
}

TEST(a_writer_that_died_within_a_write_does_not_hang_readers)
{
    ls__activity activity = {.phase = LS__PHASE_OPTIMIZER, .detail = "half", .line = 3};
    ls__activity_copy copy;
    atomic_store(&activity.sequence, 5);
    CHECK(!ls__activity_read(&activity, &copy));
    CHECK_INT(copy.phase, LS__PHASE_OPTIMIZER);
    CHECK(strcmp(copy.detail, "half") == 0);
}

TEST(every_phase_has_a_name_of_its_own)
{
    CHECK_STR(ls__phase_name(LS__PHASE_DATA), SAYS("the data loader"));
    CHECK_STR(ls__phase_name(LS__PHASE_BACKWARD), SAYS("the backward pass"));
    CHECK_STR(ls__phase_name(LS__PHASE_OPTIMIZER), SAYS("the optimizer step"));
    for (int i = 0; i <= LS__PHASE_EXIT; i++) {
        for (int j = 0; j < i; j++) {
            CHECK(strcmp(ls__phase_name((ls__phase)i), ls__phase_name((ls__phase)j)) != 0);
        }
    }
    CHECK_STR(ls__phase_name((ls__phase)99), SAYS("an unknown phase"));
}

TEST(a_failed_assertion_names_its_place_and_traps)
{
    setenv("ASSERT_NOW", "1", 1);
    char command[1024];
    snprintf(command, sizeof command, "'%s' helper_asserts",
             test_build_path("tests/unit/base/runtime"));
    test_output out = test_run(command, 20);
    CHECK_SAYS(out.text, "lockstep: bug: %s:%d: assertion failed: %s");
    CHECK_CONTAINS(out.text, "runtime.c:");
    CHECK_CONTAINS(out.text, "assertion failed: one == 2");
    CHECK_CONTAINS(out.text, "killed by signal");
    free(out.text);
}

TEST(helper_asserts)
{
    int one = getenv("ASSERT_NOW") != NULL ? 1 : 2;
    LS_ASSERT(one == 2);
}

TEST_MAIN
