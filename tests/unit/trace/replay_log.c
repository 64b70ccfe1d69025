/* SPDX-License-Identifier: Apache-2.0 */
/* The replay log: what is written is read again, and each line that is no event is named. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "says.h"
#include "scratch.h"
#include "test.h"
#include "trace/replay_log.h"

static const ls__env *env;
static char path[256];

static void begin(void)
{
    env = ls__env_posix();
    scratch_begin();
    (void)snprintf(path, sizeof path, "%s", scratch_at("log"));
}

static const ls__replay_event some[] = {
    {.kind = LS__REPLAY_PUSH,
     .worker = 2,
     .step = 41,
     .read = 39,
     .made = 57,
     .shard = 1,
     .hashed = true,
     .hash = UINT64_C(0x0f0c3a51e7b2d846)},
    {.kind = LS__REPLAY_PUSH, .worker = 0, .step = 7, .read = 3, .made = LS__REPLAY_NONE},
    {.kind = LS__REPLAY_AVERAGE, .round = 3, .worker = 1, .step = 40, .weight = 0.1, .made = 3},
    {.kind = LS__REPLAY_STAGE,
     .shard = 1,
     .step = INT64_C(123456789012345678),
     .read = 3,
     .made = 4,
     .hashed = true,
     .hash = UINT64_MAX},
};
#define SOME ((int)(sizeof some / sizeof *some))

static void write_some(const char *command)
{
    ls__replay_writer w = {0};
    CHECK_OK(ls__replay_open(&w, env, path, command, 2));
    for (int i = 0; i < SOME; i++) {
        CHECK_OK(ls__replay_write(&w, &some[i]));
    }
    CHECK_OK(ls__replay_close(&w));
    CHECK_OK(ls__replay_close(&w)); /* twice is once */
}

static void check_event(const ls__replay_event *got, const ls__replay_event *want, int64_t line)
{
    CHECK_INT(got->kind, want->kind);
    CHECK_INT(got->worker, want->worker);
    CHECK_INT(got->shard, want->shard);
    CHECK_INT(got->round, want->round);
    CHECK_INT(got->step, want->step);
    CHECK_INT(got->read, want->read);
    CHECK_INT(got->made, want->made);
    CHECK(memcmp(&got->weight, &want->weight, sizeof got->weight) == 0);
    CHECK_INT(got->hashed, want->hashed);
    CHECK(got->hash == want->hash);
    CHECK_INT(got->line, line);
}

TEST(events_are_read_as_they_were_written)
{
    begin();
    const char *const commands[] = {"", "lockstep train gpt 'a b' \\ c\nd \\n", NULL};
    for (int c = 0; c < 3; c++) {
        ls__replay_log log;
        write_some(commands[c]);
        CHECK_OK(ls__replay_read(env, path, &log));
        CHECK_STR(log.command, commands[c] != NULL ? commands[c] : "");
        CHECK_INT(log.shards, 2);
        CHECK_INT(log.count, SOME);
        CHECK(log.ended);
        for (int i = 0; i < SOME; i++) {
            check_event(&log.events[i], &some[i], i + (commands[c] != NULL ? 4 : 3));
        }
        ls__replay_release(&log);
    }
    scratch_end();
}

TEST(a_line_has_the_form_that_the_header_shows)
{
    begin();
    char text[512] = "";
    write_some("lockstep train gpt");
    FILE *file = fopen(path, "r");
    CHECK(file != NULL && fread(text, 1, sizeof text - 1, file) > 0);
    (void)fclose(file);
    CHECK_STR(text, "# lockstep replay 1\n"
                    "# command lockstep train gpt\n"
                    "# shards 2\n"
                    "push worker=2 step=41 read=39 made=57 shard=1 hash=0f0c3a51e7b2d846\n"
                    "push worker=0 step=7 read=3 made=- shard=0 hash=-\n"
                    "average round=3 worker=1 step=40 weight=0.10000000000000001 made=3 hash=-\n"
                    "stage step=123456789012345678 read=3 made=4 shard=1 hash=ffffffffffffffff\n"
                    "# end 4\n");
    scratch_end();
}

/* The finding, within the sentence that all such lines get. */
static void refuse_bytes(const char *text, size_t bytes, const char *found)
{
    ls__replay_log log;
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fwrite(text, 1, bytes, file) == bytes && fclose(file) == 0);
    CHECK_STATUS(ls__replay_read(env, path, &log), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), found);
    CHECK_CONTAINS(ls_error_message(), path);
    CHECK(log.events == NULL && log.file.data == NULL);
}

static void refuse(const char *text, const char *found)
{
    refuse_bytes(text, strlen(text), found);
}

#define HEAD "# lockstep replay 1\n# shards 2\n"
#define PUSH "push worker=2 step=41 read=39 made=57 shard=1 hash=0f0c3a51e7b2d846\n"

TEST(a_line_that_is_no_event_is_named)
{
    begin();
    refuse(HEAD "poll worker=1\n", "line 3: unknown event \"poll\"");
    CHECK_SAYS(ls_error_message(), "unknown event");
    CHECK_SAYS(ls_error_message(), "this version knows push, average and stage");
    refuse(HEAD PUSH "\n", "line 4: unknown event \"\"");
    refuse(HEAD PUSH "push worker=2 read=39\n", "line 4: found \"read=39\"; step=… comes next");
    CHECK_SAYS(ls_error_message(), "%s=… comes next");
    CHECK_SAYS(ls_error_message(), "the file was cut or changed, record it again");
    refuse(HEAD "push worker=2 step=41\n", "line 3: found \"\"; read=… comes next");
    refuse(HEAD "push worker=-2\n", "line 3: no value in \"worker=-2\"");
    CHECK_SAYS(ls_error_message(), "no value in");
    CHECK_SAYS(ls_error_message(), "counts are digits, and a hash has 16");
    refuse(HEAD "push worker=4294967296\n", "no value in \"worker=4294967296\"");
    refuse(HEAD "push worker=\n", "no value in \"worker=\"");
    refuse(HEAD "push worker=1 step=+1\n", "no value in \"step=+1\"");
    refuse(HEAD "push worker=1 step=1234567890123456789\n", "no value in \"step=1234567890123456");
    refuse(HEAD "push worker=1 step=1 read=-\n", "no value in \"read=-\"");
    refuse(HEAD "push worker=1 step=1 read=1 made=2 shard=2 hash=-\n", "too large a shard in");
    CHECK_SAYS(ls_error_message(), "too large a shard in");
    CHECK_SAYS(ls_error_message(), "the header says how many there are");
    refuse(HEAD "push worker=1 step=1 read=1 made=2 shard=1 hash=12\n", "no value in \"hash=12\"");
    refuse(HEAD "push worker=1 step=1 read=1 made=2 shard=1 hash=- x=1\n",
           "found \"x=1\"; the event ends before it");
    CHECK_SAYS(ls_error_message(), "the event ends before it");
    refuse(HEAD "average round=1 worker=1 step=1 weight=nan made=1 hash=-\n",
           "no value in \"weight=nan\"");
    refuse(HEAD "average round=1 worker=1 step=1 weight=-1 made=1 hash=-\n",
           "no value in \"weight=-1\"");
    refuse(HEAD "average round=1 worker=1 step=1 weight= made=1 hash=-\n",
           "no value in \"weight=\"");
    scratch_end();
}

TEST(a_header_that_is_none_is_refused)
{
    begin();
    refuse("", "it begins with \"\", not with \"# lockstep replay 1\"");
    CHECK_SAYS(ls_error_message(),
               "give the file that --log-replay or ls_server_options.log named");
    CHECK_SAYS(ls_error_message(), "# lockstep replay 1");
    refuse("# lockstep replay 2\n", "it begins with \"# lockstep replay 2\"");
    refuse("# lockstep replay 1\n", "found \"\"; \"# shards N\" comes next");
    CHECK_SAYS(ls_error_message(), "\"# shards N\" comes next");
    refuse("# lockstep replay 1\n# command x\n# shards 0\n", "line 3: found \"# shards 0\"");
    refuse("# lockstep replay 1\n# shards two\n", "line 2: found \"# shards two\"");
    refuse("# lockstep replay 1\n# shards 9999999\n", "line 2: found \"# shards 9999999\"");
    scratch_end();
}

/* The whole lines of a run that was killed, or whose disk was full, are read. */
TEST(a_log_without_its_end_is_read_up_to_its_last_whole_line)
{
    begin();
    static const char *const cut[] = {HEAD PUSH, HEAD PUSH "push worker=2 st", HEAD PUSH "# en"};
    for (int i = 0; i < 3; i++) {
        ls__replay_log log;
        (void)scratch_write("log", cut[i], strlen(cut[i]));
        CHECK_OK(ls__replay_read(env, path, &log));
        CHECK_INT(log.count, 1);
        CHECK(!log.ended);
        ls__replay_release(&log);
    }
    scratch_end();
}

TEST(a_log_that_goes_on_after_its_end_or_is_no_text_is_refused)
{
    begin();
    refuse(HEAD PUSH "# end 2\n", "line 4: found \"# end 2\"");
    CHECK_SAYS(ls_error_message(), "as many events stand before it");
    refuse(HEAD PUSH "# end \n", "line 4: found \"# end \"");
    refuse(HEAD PUSH "# end 1\n" PUSH, "line 5: found \"push worker=2 step=41");
    CHECK_SAYS(ls_error_message(), "the log has ended before it");
    refuse("# lockstep repl", "it begins with \"\"");
    static const char zero[] = HEAD "push worker=2 \0step=41\n";
    refuse_bytes(zero, sizeof zero - 1, "line 3: a byte 0 after \"push worker=2 \"");
    CHECK_SAYS(ls_error_message(), "a log is text");
    scratch_end();
}

TEST(a_file_that_does_not_exist_is_named)
{
    begin();
    ls__replay_log log;
    CHECK_STATUS(ls__replay_read(env, path, &log), LS_ERR_NOT_FOUND);
    CHECK_CONTAINS(ls_error_message(), "replay log: cannot read");
    ls__replay_release(&log);
    ls__replay_writer w;
    (void)strncat(path, "/log", sizeof path - strlen(path) - 1);
    CHECK_STATUS(ls__replay_open(&w, env, path, NULL, 1), LS_ERR_NOT_FOUND);
    CHECK_SAYS(ls_error_message(), "replay log");
    CHECK_SAYS(ls_error_message(), "cannot make");
    CHECK_OK(ls__replay_close(&w));
    scratch_end();
}

/* ---- a disk that is full ------------------------------------------------------------------- */

static int writes_left;

static ssize_t write_some_then_fail(const ls__env *full, int fd, const void *in, size_t bytes)
{
    (void)full;
    return writes_left-- > 0 ? env->write(env, fd, in, bytes > 5 ? 5 : bytes) : -ENOSPC;
}

TEST(a_full_disk_is_an_error_of_the_line_that_does_not_fit)
{
    begin();
    ls__env full = *env;
    full.write = write_some_then_fail;
    ls__replay_writer w;
    int opened = 0, written = 0;
    for (int most = 0; written < 1; most++) { /* short writes go on where they ended */
        writes_left = most;
        if (ls__replay_open(&w, &full, path, "lockstep", 1) == LS_OK) {
            opened++;
            written += ls__replay_write(&w, &some[0]) == LS_OK ? 1 : 0;
        }
        if (written == 0) {
            CHECK_SAYS(ls_error_message(), "cannot write");
            CHECK_CONTAINS(ls_error_message(), "No space left on device");
        }
        writes_left = written > 0 ? 9 : 0;
        CHECK_OK(ls__replay_close(&w));
    }
    CHECK(opened > 2);
    ls__replay_log log;
    CHECK_STATUS(ls__replay_read(env, path, &log), LS_ERR_INVALID); /* shard 1 of 1 */
    CHECK_CONTAINS(ls_error_message(), "too large a shard");
    scratch_end();
}

TEST_MAIN
