/* SPDX-License-Identifier: Apache-2.0 */
/* The program's own destination of log lines. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include <lockstep/runtime.h>

#include "test.h"

typedef struct seen {
    _Atomic int lines;
    ls_log_level level;
    char text[128];
} seen;

static void keep(ls_log_level level, const char *text, void *arg)
{
    seen *s = arg;
    s->level = level;
    (void)strncpy(s->text, text, sizeof s->text - 1);
    atomic_fetch_add(&s->lines, 1);
}

TEST(lines_go_to_the_callback_before_ls_init_and_after)
{
    seen first = {0}, second = {0};
    ls_set_log_callback(keep, &first);
    ls_log_message(LS_LOG_WARN, "number %d", 7);
    CHECK_INT(first.lines, 1);
    CHECK_INT(first.level, LS_LOG_WARN);
    CHECK_STR(first.text, "number 7");
    CHECK_OK(ls_init(NULL));
    ls_log_message(LS_LOG_ERROR, "with a runtime");
    CHECK_STR(first.text, "with a runtime"); /* no rank, no level: the callback has them */
    ls_set_log_callback(keep, &second);
    ls_log_message(LS_LOG_ERROR, "elsewhere");
    CHECK_STR(second.text, "elsewhere");
    CHECK_INT(first.lines, 2);
    ls_set_log_callback(NULL, NULL);
    ls_log_message(LS_LOG_ERROR, "to stderr");
    CHECK_INT(second.lines, 1);
    CHECK_OK(ls_finalize());
}

TEST(levels_that_are_off_do_not_reach_the_callback)
{
    seen s = {0};
    ls_set_log_callback(keep, &s);
    ls_log_message(LS_LOG_DEBUG, "not asked for");
    CHECK_INT(s.lines, 0);
    ls_set_log_callback(NULL, NULL);
}

enum { THREADS = 4, LINES = 500 };

/* `arg` counts down to the thread's last line; freed memory behind the callback would be seen by
 * the sanitizers. */
static void *write_lines(void *arg)
{
    (void)arg;
    for (int i = 0; i < LINES; i++) {
        ls_log_message(LS_LOG_WARN, "line %d", i);
    }
    return NULL;
}

static void count(ls_log_level level, const char *text, void *arg)
{
    (void)level;
    CHECK(strncmp(text, "line ", 5) == 0);
    atomic_fetch_add((_Atomic int *)arg, 1);
}

/* While threads write, the destination changes; no line is lost, and none comes after a change. */
TEST(a_change_waits_for_calls_that_are_under_way)
{
    static _Atomic int lines[50];
    pthread_t threads[THREADS];
    ls_set_log_callback(count, &lines[0]);
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, write_lines, NULL) == 0);
    }
    int sum = 0;
    for (int i = 1; i < 50; i++) {
        ls_set_log_callback(count, &lines[i]);
        sum += lines[i - 1];
        lines[i - 1] = -1; /* what comes now would be seen below */
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    for (int i = 0; i < 49; i++) {
        CHECK_INT(lines[i], -1);
    }
    CHECK_INT(sum + lines[49], THREADS * LINES);
    ls_set_log_callback(NULL, NULL);
}

TEST_MAIN
