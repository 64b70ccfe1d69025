/* SPDX-License-Identifier: Apache-2.0 */
/* The recorder of a trace: the ring, its texts, steps, several threads, and damaged memory. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/trace.h"
#include "says.h"
#include "test.h"
#include "trace/file.h"

enum { THREADS = 4, EACH = 5000, ROOM = 256 };

static ls_runtime runtime;

static ls__trace *trace_new(const char *events, const char *steps)
{
    setenv("LOCKSTEP_TRACE", "t.json", 1);
    setenv("LOCKSTEP_TRACE_EVENTS", events, 1);
    setenv("LOCKSTEP_TRACE_STEPS", steps, 1);
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_OK(ls__trace_new(&runtime, &runtime.trace));
    CHECK(runtime.trace != NULL);
    (void)ls_runtime_attach(NULL);
    CHECK_OK(ls_runtime_attach(&runtime));
    return runtime.trace;
}

static void trace_end(ls__trace *trace)
{
    (void)ls_runtime_attach(NULL);
    ls__trace_free(trace);
    runtime.trace = NULL;
}

static ls__trace_part part_of(const ls__trace *trace)
{
    ls__trace_part part;
    CHECK_OK(ls__trace_part_open(ls__env_posix(), trace->fd, &part));
    return part;
}

TEST(without_the_setting_there_is_no_trace)
{
    unsetenv("LOCKSTEP_TRACE");
    ls__trace *trace = &(ls__trace){0};
    ls__runtime_init(&runtime, ls__env_posix());
    CHECK_OK(ls__trace_new(&runtime, &trace));
    CHECK(trace == NULL);
    CHECK_OK(ls_runtime_attach(&runtime));
    CHECK(ls__trace_begin() == 0);
    (void)ls_runtime_attach(NULL);
}

TEST(spans_come_back_in_order_with_the_outer_one_first)
{
    ls__trace *trace = trace_new("64", "");
    const ls__trace_span spans[] = {
        {.kind = LS__TRACE_NODE, .begin_ns = 20, .end_ns = 30, .name = "inner"},
        {.kind = LS__TRACE_NODE, .begin_ns = 5, .end_ns = 9, .name = "first"},
        {.kind = LS__TRACE_BACKWARD, .begin_ns = 20, .end_ns = 50, .name = "outer"},
    };
    for (int i = 0; i < 3; i++) {
        ls__trace_add(trace, &spans[i]);
    }
    ls__trace_part part = part_of(trace);
    CHECK_INT(part.count, 3);
    CHECK_STR(part.events[0]->text, "first");
    CHECK_STR(part.events[1]->text, "outer");
    CHECK_STR(part.events[2]->text, "inner");
    CHECK_INT((int64_t)part.dropped, 0);
    ls__trace_part_close(&part);
    trace_end(trace);
}

/* A name keeps its end, a sentence its beginning, and neither pushes the other out. */
TEST(long_texts_are_cut_to_the_room)
{
    ls__trace *trace = trace_new("64", "");
    char name[200];
    memset(name, 'n', sizeof name);
    memcpy(name + sizeof name - 8, ".weight", 8);
    ls__trace_add(trace, &(ls__trace_span){.kind = LS__TRACE_NODE,
                                           .name = name,
                                           .detail = "bucket 3: the first of very many words that "
                                                     "nobody will ever read to the end"});
    ls__trace_part part = part_of(trace);
    const char *text = part.events[0]->text, *detail = text + strlen(text) + 1;
    CHECK_INT((int64_t)(strlen(text) + strlen(detail) + 2), LS__TRACE_TEXT);
    CHECK_STR(text + strlen(text) - 7, ".weight");
    CHECK(strncmp(detail, "bucket 3: the first", 19) == 0);
    ls__trace_part_close(&part);
    trace_end(trace);
}

static void *record(void *arg)
{
    CHECK_OK(ls_runtime_attach(&runtime));
    for (int i = 0; i < EACH; i++) {
        const uint64_t begin = ls__trace_begin();
        ls__trace_end(begin, LS__TRACE_NODE, "op", arg);
    }
    (void)ls_runtime_attach(NULL);
    return NULL;
}

TEST(threads_record_at_once_and_the_newest_spans_stay)
{
    ls__trace *trace = trace_new("256", "");
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&thread[i], NULL, record, (void *)"detail") == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        (void)pthread_join(thread[i], NULL);
    }
    ls__trace_part part = part_of(trace);
    CHECK(part.count > ROOM / 2 && part.count <= ROOM);
    CHECK_INT(part.count + (int64_t)part.dropped, THREADS * EACH);
    for (int64_t i = 0; i < part.count; i++) {
        CHECK_STR(part.events[i]->text, "op");
        CHECK_STR(part.events[i]->text + 3, "detail");
        CHECK(part.events[i]->thread >= 2 && part.events[i]->thread <= 1 + THREADS);
        CHECK(i == 0 || part.events[i - 1]->begin_ns <= part.events[i]->begin_ns);
    }
    ls__trace_part_close(&part);
    trace_end(trace);
}

static void one_step(ls__trace *trace)
{
    static const ls__trace_kind kinds[] = {LS__TRACE_FORWARD, LS__TRACE_BACKWARD,
                                           LS__TRACE_OPTIMIZER};
    for (int i = 0; i < 3; i++) {
        const uint64_t begin = ls__trace_begin();
        ls__trace_end(begin, kinds[i], "part", NULL);
    }
    ls__trace_step(trace, trace->env->now_ns(trace->env));
}

TEST(steps_outside_of_the_range_leave_no_spans)
{
    ls__trace *trace = trace_new("256", "1-2");
    for (int i = 0; i < 5; i++) {
        one_step(trace);
    }
    ls__trace_part part = part_of(trace);
    CHECK_INT(part.count, 2 * 4);
    for (int64_t i = 0; i < part.count; i++) {
        const bool step = part.events[i]->kind == LS__TRACE_STEP;
        CHECK(!step || part.events[i]->bytes == 1 || part.events[i]->bytes == 2);
    }
    ls__trace_part_close(&part);
    trace_end(trace);
}

/* Two optimizers after one backward: the second one belongs to the step that it is in. */
TEST(a_step_without_a_backward_does_not_count)
{
    ls__trace *trace = trace_new("256", "");
    one_step(trace);
    ls__trace_step(trace, trace->env->now_ns(trace->env));
    one_step(trace);
    CHECK_INT((int64_t)trace->step, 2);
    trace_end(trace);
}

TEST(times_of_another_host_are_moved_by_the_line_through_both_measurements)
{
    ls__trace_part part = {
        .clock = {{.at_ns = 1000, .offset_ns = -100}, {.at_ns = 2000, .offset_ns = -300}}};
    CHECK_INT((int64_t)ls__trace_part_time(&part, 500), 400);
    CHECK_INT((int64_t)ls__trace_part_time(&part, 1500), 1300);
    CHECK_INT((int64_t)ls__trace_part_time(&part, 3000), 2700);
    part.clock[1].at_ns = 0; /* the job failed before the second one */
    CHECK_INT((int64_t)ls__trace_part_time(&part, 3000), 2900);
    part.clock[0].at_ns = 0;
    CHECK_INT((int64_t)ls__trace_part_time(&part, 3000), 3000);
}

/* As after a rank that died while it wrote, or that wrote over the memory. */
TEST(damaged_memory_gives_no_wrong_spans)
{
    ls__trace *trace = trace_new("64", "");
    one_step(trace);
    atomic_store(&trace->events[0].stamp, 0); /* begun, not finished */
    trace->events[1].kind = LS__TRACE_KINDS;
    trace->events[2].end_ns = 0;
    ls__trace_part part = part_of(trace);
    CHECK_INT(part.count, 1);
    CHECK_INT((int64_t)part.dropped, 3);
    ls__trace_part_close(&part);
    CHECK_STATUS(ls__trace_part_open(trace->env, 0, &part), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), "trace: descriptor %d holds no events");
    trace->head->capacity = 1 << 20;
    CHECK_STATUS(ls__trace_part_open(trace->env, trace->fd, &part), LS_ERR_FORMAT);
    CHECK_SAYS(ls_error_message(), "trace: the memory of a rank's events is damaged");
    trace_end(trace);
}

TEST(flows_of_different_operations_differ)
{
    CHECK(ls__trace_flow(1, 2, 3) == ls__trace_flow(1, 2, 3));
    CHECK(ls__trace_flow(1, 2, 3) != ls__trace_flow(2, 1, 3));
    CHECK(ls__trace_flow(0, 0, 0) != 0);
}

/* ---- without memory -------------------------------------------------------------------------- */

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env;
    (void)bytes;
    return NULL;
}

static void keep_text(ls_log_level level, const char *text, void *arg)
{
    (void)level;
    (void)snprintf(arg, ROOM, "%s", text);
}

TEST(memory_that_is_refused_to_who_collects_a_trace_is_named)
{
    ls__trace *trace = trace_new("64", "");
    ls__env poor = *ls__env_posix();
    ls__trace_part part;
    char warned[ROOM] = "";
    poor.allocate = no_memory;
    CHECK_STATUS(ls__trace_part_open(&poor, trace->fd, &part), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "trace: no memory to sort the events of a rank");
    ls_set_log_callback(keep_text, warned);
    ls__trace_collect(&poor, &(ls__trace_job){.world_size = 3});
    ls_set_log_callback(NULL, NULL);
    CHECK_SAYS(warned, "no memory for the traces of %d ranks");
    trace_end(trace);
}

TEST_MAIN
