/* SPDX-License-Identifier: Apache-2.0 */
/* Event logs: the bytes of a line, runs that go on, files that cannot be written. TensorBoard's
 * records are read by tests/programs/test_train_image.py. */
#include "test.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/event_log.h>

#include "says.h"
#include "scratch.h"

static const char *text_of(const char *path)
{
    static char text[1024];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    return text;
}

static ls_event_log *opened(const char *name, ls_event_format format, int64_t start)
{
    return ls_event_log_new(scratch_at(name),
                            LS_OPTIONS(ls_event_log_options, .format = format, .start = start));
}

TEST(a_line_begins_with_its_step_and_leaves_the_group_out)
{
    const int64_t rows[] = {3, 0, 5};
    const ls_event_value values[] = {{"dtype", .text = "bf16"},
                                     {"loss", .number = 0.1f},
                                     {"norm", .number = NAN},
                                     {"dropped", .numbers = rows},
                                     {"rows", .numbers = rows, .count = 3}};
    scratch_begin();
    ls_event_log *json = opened("j", LS_EVENTS_JSON, 0), *lines = opened("l", LS_EVENTS_LINES, 0);
    CHECK_OK(ls_event_log_add_all(json, 3, "train", values, 5));
    CHECK_OK(ls_event_log_add_all(lines, 3, "train", values, 5));
    CHECK_OK(ls_event_log_add(json, 4, "a/b/c", 2.0));
    CHECK_OK(ls_event_log_add(lines, 4, "c", 2.0));
    CHECK(strcmp(text_of(scratch_at("j")),
                 "{\"step\": 3, \"dtype\": \"bf16\", \"loss\": 0.100000001, \"norm\": null, "
                 "\"dropped\": 3, \"rows\": [3, 0, 5]}\n{\"step\": 4, \"c\": 2.0}\n") == 0);
    CHECK(strcmp(text_of(scratch_at("l")), "3 0.100000001 nan\n4 2\n") == 0);
    CHECK_OK(ls_event_log_free(json));
    CHECK_OK(ls_event_log_free(lines));
    CHECK_OK(ls_event_log_free(NULL));
    scratch_end();
}

/* What stays of a log when a run goes on after step 2. */
static const char *kept_of(const char *text, ls_event_format format)
{
    ls_event_log *log = NULL;
    scratch_write("log", text, strlen(text));
    CHECK((log = opened("log", format, 2)) != NULL);
    CHECK_OK(ls_event_log_free(log));
    return text_of(scratch_at("log"));
}

TEST(a_run_that_goes_on_keeps_the_whole_lines_of_the_steps_before)
{
    scratch_begin();
    CHECK(strcmp(kept_of("1 5\n2 4\n3 3\n", LS_EVENTS_LINES), "1 5\n2 4\n") == 0);
    CHECK(strcmp(kept_of("1 5\n2 4", LS_EVENTS_LINES), "1 5\n") == 0);
    CHECK(strcmp(kept_of("", LS_EVENTS_LINES), "") == 0);
    CHECK(strcmp(kept_of("{\"step\": 2, \"a\": 1}\n{\"step\": 3}\n", LS_EVENTS_JSON),
                 "{\"step\": 2, \"a\": 1}\n") == 0);
    CHECK(access(scratch_at("log.part"), F_OK) != 0);
    CHECK_OK(ls_event_log_free(opened("new", LS_EVENTS_LINES, 2)));
    CHECK(strcmp(text_of(scratch_at("new")), "") == 0);
    scratch_end();
}

TEST(a_file_of_something_else_is_left_as_it_is)
{
    static const char letter[] = "Dear rank,\n", half[] = "{\"loss\": 3}\n";
    scratch_begin();
    scratch_write("letter", letter, sizeof letter - 1);
    CHECK(opened("letter", LS_EVENTS_LINES, 1) == NULL);
    CHECK_SAYS(ls_error_message(),
               "event log: \"%s\" holds something else than steps; give another file");
    CHECK_STATUS(ls_error_status(), LS_ERR_FORMAT);
    CHECK(strcmp(text_of(scratch_at("letter")), letter) == 0);
    scratch_write("half", half, sizeof half - 1);
    CHECK(opened("half", LS_EVENTS_JSON, 1) == NULL);
    CHECK(symlink(scratch_at("letter"), scratch_at("link")) == 0);
    CHECK(opened("link", LS_EVENTS_LINES, 1) == NULL);
    CHECK_SAYS(ls_error_message(),
               "event log: \"%s\" cannot be cut behind the step to go on from, as it is no regular "
               "file; give another file");
    CHECK_OK(ls_event_log_free(opened("link", LS_EVENTS_LINES, 0))); /* a new file in its place */
    CHECK(strcmp(text_of(scratch_at("letter")), letter) == 0);
    CHECK(mkdir(scratch_at("folder"), 0700) == 0);
    CHECK(opened("folder", LS_EVENTS_JSON, 0) == NULL);
    CHECK(opened("letter", LS_EVENTS_TENSORBOARD, 0) == NULL);
    CHECK(opened("no/log", LS_EVENTS_JSON, 0) == NULL);
    CHECK_STATUS(ls_error_status(), LS_ERR_NOT_FOUND);
    scratch_end();
}

TEST(a_full_disk_is_an_error_of_the_call)
{
    ls_event_log *log = ls_event_log_new("/dev/full", NULL);
    CHECK(log != NULL);
    CHECK_STATUS(ls_event_log_add(log, 1, "loss", 2.0), LS_ERR_SYSTEM);
    CHECK_SAYS(ls_error_message(), "event log");
    CHECK_SAYS(ls_error_message(), "cannot write \"/dev/full\"");
    CHECK_OK(ls_event_log_free(log));
}

TEST(a_file_that_a_run_writes_is_not_replaced)
{
    scratch_begin();
    ls_event_log *log = opened("log", LS_EVENTS_JSON, 0);
    CHECK_OK(ls_event_log_add(log, 1, "loss", 2.0));
    for (int start = 0; start < 2; start++) {
        CHECK(opened("log", LS_EVENTS_JSON, start) == NULL);
        CHECK_STATUS(ls_error_status(), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(),
                   "%s: another run writes \"%s\", and it has not ended; give another file");
    }
    CHECK_OK(ls_event_log_add(log, 2, "loss", 2.0));
    CHECK_OK(ls_event_log_free(log));
    CHECK(strcmp(text_of(scratch_at("log")),
                 "{\"step\": 1, \"loss\": 2.0}\n{\"step\": 2, \"loss\": 2.0}\n") == 0);
    log = opened("log", LS_EVENTS_JSON, 1); /* and a log that went on is held as well */
    CHECK(log != NULL && opened("log", LS_EVENTS_JSON, 0) == NULL);
    CHECK_OK(ls_event_log_free(log));
    CHECK_OK(ls_event_log_free(opened("log", LS_EVENTS_JSON, 0)));
    scratch_end();
}

TEST(after_a_full_disk_the_next_line_is_whole)
{
    struct rlimit limit, small;
    scratch_begin();
    ls_event_log *log = opened("log", LS_EVENTS_JSON, 0);
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &limit) == 0);
    small = (struct rlimit){.rlim_cur = 40, .rlim_max = limit.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    CHECK_OK(ls_event_log_add(log, 1, "loss", 2.0));
    CHECK_STATUS(ls_event_log_add(log, 2, "loss", 2.0), LS_ERR_SYSTEM);
    CHECK_STATUS(ls_event_log_add(log, 3, "loss", 2.0), LS_ERR_SYSTEM);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK_OK(ls_event_log_add(log, 4, "loss", 2.0));
    CHECK_OK(ls_event_log_add(log, 5, "loss", 2.0));
    CHECK_OK(ls_event_log_free(log));
    CHECK(strcmp(text_of(scratch_at("log")),
                 "{\"step\": 1, \"loss\": 2.0}\n{\"step\": 2, \"lo\n"
                 "{\"step\": 4, \"loss\": 2.0}\n{\"step\": 5, \"loss\": 2.0}\n") == 0);
    scratch_end();
}

TEST(what_cannot_be_a_log_or_a_value_is_refused_in_words)
{
    char long_name[80] = "", path[900] = "";
    memset(long_name, 'n', sizeof long_name - 1);
    memset(path, 'p', sizeof path - 1);
    scratch_begin();
    CHECK(ls_event_log_new("", NULL) == NULL);
    CHECK_SAYS(ls_error_message(), "ls_event_log_new: no path; give that of a file or folder");
    CHECK(ls_event_log_new(path, NULL) == NULL);
    CHECK_SAYS(ls_error_message(), "ls_event_log_new: a path of %zu bytes; give at most 800");
    CHECK(opened("l", (ls_event_format)7, 0) == NULL);
    CHECK_SAYS(ls_error_message(), "ls_event_log_new: format %d is none of LS_EVENTS_JSON, "
                                   "LS_EVENTS_LINES, LS_EVENTS_TENSORBOARD; give one of them");
    CHECK(opened("l", LS_EVENTS_JSON, -1) == NULL);
    CHECK_SAYS(ls_error_message(),
               "ls_event_log_new: start is %lld; give the steps that are done, 0 or more");
    ls_event_log *log = opened("l", LS_EVENTS_JSON, 0);
    for (int i = 0; i < 3; i++) {
        const char *name = i == 0 ? NULL : i == 1 ? "group/" : "\xff";
        CHECK_STATUS(ls_event_log_add(log, 1, name, 1.0), LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "ls_event_log_add: a value has no name, or one that is not "
                                       "UTF-8; give one such as \"train/loss\"");
    }
    CHECK_STATUS(ls_event_log_add(log, 1, "train/step", 1.0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_event_log_add: a value is called \"step\", as the step of "
                                   "each line of JSON; give another name");
    CHECK_STATUS(ls_event_log_add(log, 1, long_name, 1.0), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(),
               "ls_event_log_add: \"%.80s/%.80s\" has %zu bytes; give at most %d");
    CHECK_STATUS(ls_event_log_add(NULL, 1, "loss", 1.0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_event_log_add: no log; give one that ls_event_log_new has made");
    CHECK_STATUS(ls_event_log_add(log, -1, "loss", 1.0), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_event_log_add: step %lld, %d values; give a step of at "
                                   "least 0 and 1 to %d values");
    CHECK_OK(ls_event_log_free(log));
    CHECK(strcmp(text_of(scratch_at("l")), "") == 0);
    scratch_end();
}

DIST_TEST(only_rank_0_writes, 2)
{
    char path[64];
    scratch_begin();
    snprintf(path, sizeof path, "of%d", ls_rank());
    ls_event_log *log = opened(path, LS_EVENTS_JSON, 0);
    CHECK_OK(ls_event_log_add(log, 1, "loss", 1.0));
    CHECK_OK(ls_event_log_free(log));
    CHECK((access(scratch_at(path), F_OK) == 0) == (ls_rank() == 0));
    scratch_end();
}

TEST_MAIN
