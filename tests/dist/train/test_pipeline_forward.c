/* SPDX-License-Identifier: Apache-2.0 */
/* ls_pipeline_forward: what test_pipeline.c does not compare with a twin. Failures reach all ranks,
 * activations are freed on the way, and stages compute at the same time. */
#include "elements.h"
#include "says.h"
#include "test.h"

#include <lockstep/lockstep.h>

enum { DIM = 8, WIDE = 1 << 15, MICRO = 4, COUNT = 40 };

/* Small values at the ends, large ones between. */
static ls_module *make_net(int wide)
{
    ls_module *layers[] = {ls_linear_new(DIM, wide, NULL), ls_relu_new(), ls_dropout_new(0.1),
                           ls_relu_new(), ls_linear_new(wide, DIM, NULL)};
    return ls_sequential_new(layers, 5);
}

static ls_pipeline *make_pipe(ls_module *net, const char *schedule, int chunks)
{
    ls_pipeline *pipe = NULL;
    CHECK_OK(ls_pipeline_new(net, ls_world(),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = MICRO, .chunks = chunks),
                             &pipe));
    return pipe;
}

static ls_micro_batch ones(int rows)
{
    return (ls_micro_batch){.size = sizeof(ls_micro_batch),
                            .inputs = {ls_ones(LS_SHAPE(rows, DIM), LS_FLOAT32)}};
}

/* ---- failures ----------------------------------------------------------------------------- */

/* What the call says on this rank, which gives `count` micro-batches, of which `bad` is none. */
static void check_failure(int count, int bad, const char *first, const char *second)
{
    LS_SCOPE;
    ls_module *net = make_net(DIM);
    ls_pipeline *pipe = make_pipe(net, "1f1b", 0);
    ls_micro_batch micro[MICRO];
    ls_tensor *outputs[MICRO];
    for (int m = 0; m < MICRO; m++) {
        micro[m] = ones(2);
        micro[m].inputs[0] = m == bad ? NULL : micro[m].inputs[0];
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL)); /* all have made it */
    CHECK(ls_pipeline_forward(pipe, micro, count, outputs) < 0);
    if (test_count_said(ls_error_message(), first) == 0) {
        CHECK_CONTAINS(ls_error_message(), second);
    }
    CHECK(ls_pipeline_backward(pipe, net, micro, NULL) < 0);
    (void)ls_pipeline_free(pipe);
    ls_module_free(net);
}

DIST_TEST(an_error_of_one_rank_is_reported_by_all, 3)
{
    check_failure(MICRO, ls_rank() == 0 ? 2 : -1, "is NULL; give a tensor", "aborted by rank 0");
}

DIST_TEST(counts_that_differ_are_reported_by_all, 3)
{
    check_failure(ls_rank() == 1 ? 2 : 3, -1, SAYS("evaluation of %d micro-batches"),
                  "aborted by rank");
}

DIST_TEST(a_call_that_is_refused_does_not_let_the_others_wait, 2)
{
    check_failure(ls_rank() == 1 ? 0 : 3, -1, "their number is 0", "aborted by rank 1");
}

/* ---- memory ------------------------------------------------------------------------------- */

static size_t peak_of(ls_pipeline *pipe, int count)
{
    LS_SCOPE;
    ls_memory_stats before = {.size = sizeof before}, after = before;
    ls_micro_batch micro[COUNT];
    ls_tensor *outputs[COUNT];
    for (int m = 0; m < count; m++) {
        micro[m] = ones(2);
    }
    CHECK_OK(ls_barrier(ls_world(), NULL, NULL));
    CHECK_OK(ls_memory_reset_peaks());
    CHECK_OK(ls_memory_get_stats(&before));
    CHECK_OK(ls_pipeline_forward(pipe, micro, count, outputs));
    CHECK_OK(ls_memory_get_stats(&after));
    CHECK(after.allocated - before.allocated < (size_t)WIDE); /* outputs only, a few bytes each */
    return after.allocated_peak - before.allocated;
}

/* `most` values of WIDE elements of two rows at one time, however many micro-batches there are. */
static void check_memory(int chunks, int most)
{
    ls_module *net = make_net(WIDE);
    ls_pipeline *pipe = make_pipe(net, chunks > 0 ? "interleaved" : "1f1b", chunks);
    (void)peak_of(pipe, COUNT);
    const size_t peak = peak_of(pipe, COUNT), value = 2 * WIDE * sizeof(float);
    if (peak > (size_t)most * value + value / 2) {
        test_fail(__FILE__, __LINE__, "rank %d: %.2f values at one time, not %d", ls_rank(),
                  (double)peak / (double)value, most);
    }
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

/* On rank 1 the micro-batch received ahead, the one being computed, and two results of its layers.
 * Messages of a device lie in memory of the program, too. */
DIST_TEST(activations_are_freed_as_soon_as_they_were_read, 2)
{
    check_memory(0, test_on_device() ? 6 : 4);
}

DIST_TEST(activations_of_stages_of_one_rank_are_freed_when_the_next_one_took_them, 1)
{
    check_memory(5, 3);
}

/* ---- stages at the same time --------------------------------------------------------------- */

/* The stage of rank 1 computes a micro-batch until the stage of rank 0 has begun the next one. */
typedef struct meeting {
    ls_module base;
    int calls;
} meeting;

static ls_tensor *meet(ls_module *module, ls_tensor *x)
{
    meeting *self = (meeting *)module;
    const int call = self->calls++;
    int32_t token = call;
    if (ls_rank() == 0 && call > 0) {
        CHECK_OK(ls_send(ls_world(), &token, 1, LS_INT32, 1, 0, NULL, NULL));
    }
    if (ls_rank() == 1 && call < MICRO - 1) {
        CHECK_OK(ls_recv(ls_world(), &token, 1, LS_INT32, 0, 0, NULL, NULL));
        CHECK_INT(token, call + 1);
    }
    return ls_scale(x, 2.0);
}

static const ls_module_class meeting_class = LS_MODULE_CLASS(.name = "meeting", .forward = meet);

DIST_TEST(a_rank_goes_on_with_the_next_micro_batch, 2)
{
    LS_SCOPE;
    ls_module *layers[] = {ls_module_new(sizeof(meeting), &meeting_class),
                           ls_module_new(sizeof(meeting), &meeting_class)};
    ls_module *net = ls_sequential_new(layers, 2);
    ls_pipeline *pipe = make_pipe(net, "naive", 0);
    ls_micro_batch micro[MICRO] = {ones(1), ones(1), ones(1), ones(1)};
    ls_tensor *outputs[MICRO];
    CHECK_OK(ls_pipeline_forward(pipe, micro, MICRO, outputs));
    double score = ls_rank() == 1 ? ((const float *)elements_of(outputs[0]))[0] : 0.0;
    CHECK_OK(ls_broadcast(ls_world(), &score, 1, LS_FLOAT64, 1, NULL, NULL));
    CHECK(score == 4.0);
    CHECK_OK(ls_pipeline_free(pipe));
    ls_module_free(net);
}

TEST_MAIN
