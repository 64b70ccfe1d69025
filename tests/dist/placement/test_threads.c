/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads of each rank compute at once while a mesh is in force: each has its own graph, its
 * own axis and its own errors. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { ROUNDS = 50, SIDE = 8 };

static ls_module *shared; /* a linear layer that both threads read */

typedef struct worker {
    ls_runtime *runtime;
    const char *axis, *other; /* along which it divides; along which all is equal */
    float loss[ROUNDS];
} worker;

static ls_tensor *values(ls_shape shape, int stream)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = ls_random_normal(4, (uint64_t)stream, (uint64_t)i);
    }
    put_elements(t, at);
    return t;
}

static void check_place(const ls_tensor *t, const char *axis, ls_placement want)
{
    CHECK_OK(ls_tensor_status(t));
    CHECK_INT(ls_placement_of(t, axis), want);
}

/* A column and a row product with f and g around them. */
static float pass(const worker *w, int round)
{
    ls_tensor *x = ls_set_requires_grad(values(LS_SHAPE(2, SIDE), round), true);
    ls_tensor *up = values(LS_SHAPE(SIDE, SIDE), 100), *down = values(LS_SHAPE(SIDE, SIDE), 101);
    CHECK_OK(ls_place(up, w->axis, LS_SHARDED(0)));
    CHECK_OK(ls_place(down, w->axis, LS_SHARDED(1)));
    CHECK_OK(ls_place(x, w->axis, LS_INVARIANT));
    CHECK_OK(ls_place(x, w->other, LS_REPLICATED));
    ls_tensor *in = ls_redistribute(x, w->axis, LS_INVARIANT, LS_REPLICATED);
    ls_tensor *wide = ls_gelu(ls_linear(in, up, NULL), LS_GELU_ERF);
    check_place(wide, w->axis, LS_SHARDED(1));
    check_place(wide, w->other, LS_REPLICATED);
    ls_tensor *term = ls_linear(wide, down, NULL);
    check_place(term, w->axis, LS_PARTIAL);
    ls_tensor *sum = ls_redistribute(term, w->axis, LS_PARTIAL, LS_INVARIANT);
    check_place(sum, w->axis, LS_INVARIANT);
    ls_tensor *loss = ls_mean(ls_mul(sum, sum));
    CHECK_OK(ls_backward(loss));
    CHECK_OK(ls_tensor_status(ls_grad(x)));
    double value = 0.0;
    CHECK_OK(ls_item(loss, &value));
    return (float)value;
}

/* Each thread reads its own message, which names its own axis. */
static void check_refused(const worker *w)
{
    char text[64];
    ls_tensor *x = values(LS_SHAPE(2, SIDE), 7);
    CHECK_OK(ls_place(x, w->axis, LS_SHARDED(1)));
    check_place(ls_relu(x), w->axis, LS_SHARDED(1));
    CHECK_STATUS(ls_tensor_status(ls_softmax(x, 1)), LS_ERR_PLACEMENT);
    (void)snprintf(text, sizeof text, "on axis %s argument 1", w->axis);
    CHECK_CONTAINS(ls_error_message(), text);
    ls_tensor *varying = values(LS_SHAPE(2, SIDE), 8);
    CHECK_OK(ls_place(varying, w->axis, LS_VARYING));
    CHECK_STATUS(ls_tensor_status(ls_forward(shared, varying)), LS_ERR_PLACEMENT);
    CHECK_CONTAINS(ls_error_message(), "parameter weight");
    (void)snprintf(text, sizeof text, "on axis %s argument", w->axis);
    CHECK_CONTAINS(ls_error_message(), text);
}

static void *work(void *arg)
{
    worker *w = arg;
    CHECK_OK(ls_runtime_attach(w->runtime));
    for (int i = 0; i < ROUNDS; i++) {
        LS_SCOPE;
        w->loss[i] = pass(w, i);
        check_refused(w);
    }
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

/* f and g: one all-reduce in forward and one in backward, of 2 SIDE numbers. */
static void check_sent(const char *axis)
{
    ls_redistribute_stats s = {.size = sizeof s};
    CHECK_OK(ls_redistribute_get_stats(axis, &s));
    CHECK_INT(s.all_reduces, 2 * ROUNDS);
    CHECK_INT(s.bytes, 2 * ROUNDS * 2 * SIDE * (int)sizeof(float));
}

DIST_TEST(threads_keep_placements_and_refusals_apart, 4)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    shared = ls_linear_new(SIDE, SIDE, NULL);
    worker w[2] = {{.runtime = ls_runtime_current(), .axis = "dp", .other = "tp"},
                   {.runtime = ls_runtime_current(), .axis = "tp", .other = "dp"}};
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        CHECK_INT(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(pthread_join(thread[i], NULL), 0);
    }
    check_sent("dp");
    check_sent("tp");
    CHECK(memcmp(w[0].loss, w[1].loss, sizeof w[0].loss) == 0);
    ls_module_free(shared);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
