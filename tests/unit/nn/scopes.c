/* SPDX-License-Identifier: Apache-2.0 */
/* Suspended scopes: one for each micro-batch, forward and backward in any order; misuse; memory. */
#include "cut.h"

#include <pthread.h>

/* ---- micro-batches side by side ----------------------------------------------------------- */

/* 'f3': forward of micro-batch 3; 'b3': its backward, in two parts, and the end of its scope. */
static void play(model *m, const char *schedule, outcome *out)
{
    micro_batch b[MICRO];
    for (const char *at = schedule; *at != '\0'; at += at[2] == ' ' ? 3 : 2) {
        const int i = at[1] - '0';
        if (at[0] == 'f') {
            b[i].scope = ls_scope_enter();
            forward_micro(m, i, true, &b[i]);
            CHECK_OK(ls_scope_suspend(b[i].scope));
            continue;
        }
        CHECK_OK(ls_scope_resume(b[i].scope));
        CHECK_OK(ls_backward(b[i].loss));
        if (i % 2 == 1) { /* and others in between */
            CHECK_OK(ls_scope_suspend(b[i].scope));
            CHECK_OK(ls_scope_resume(b[i].scope));
        }
        ls_tensor *dys[] = {ls_grad(b[i].k[0]), ls_grad(b[i].k[1])};
        CHECK_OK(ls_backward_from(b[i].h, dys, 2));
        keep_micro(&b[i], i, out);
        ls_scope_leave(b[i].scope);
    }
}

static const char *const schedules[] = {"f0 b0 f1 b1 f2 b2 f3 b3", "f0 f1 f2 f3 b0 b1 b2 b3",
                                        "f0 f1 b0 f2 b1 f3 b2 b3", "f0 f1 f2 b0 f3 b1 b2 b3"};

LOCAL_TEST(any_interleaving_of_micro_batches_gives_the_same_bits)
{
    for (int way = 0; way < 4; way++) {
        model *m = model_new(way & 1, way & 2);
        outcome *first = NULL;
        for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
            outcome *out = outcome_new();
            LS_SCOPE; /* of a step */
            play(m, schedules[i], out);
            keep_gradients(m, out);
            if (first == NULL) {
                first = out;
            } else {
                check_same(first, out);
                free(out);
            }
        }
        free(first);
        ls_module_free(&m->base);
    }
}

/* After two rounds nothing is asked of the system, and a scope that ends returns its memory while
 * others are suspended. */
LOCAL_TEST(the_steady_state_allocates_nothing)
{
    model *m = model_new(true, false);
    uint64_t allocations = 0;
    ls_memory_stats start = {.size = sizeof start}, end = start;
    outcome *out = outcome_new();
    for (int round = 0; round < 6; round++) {
        if (round == 3) {
            allocations = ls__tensor_allocations(ls_runtime_current());
            CHECK_OK(ls_memory_get_stats(&start));
        }
        play(m, schedules[3], out);
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()), allocations);
    CHECK_OK(ls_memory_get_stats(&end));
    CHECK_INT(end.allocated, start.allocated);
    free(out);
    ls_module_free(&m->base);
}

LOCAL_TEST(a_scope_frees_its_memory_while_others_are_suspended)
{
    ls_memory_stats before = {.size = sizeof before}, now = before;
    ls_scope *scope[3];
    ls_tensor *t[3];
    for (int i = 0; i < 3; i++) {
        scope[i] = ls_scope_enter();
        t[i] = ls_full(LS_SHAPE(1 << 20), LS_FLOAT32, i);
        CHECK_OK(ls_scope_suspend(scope[i]));
        CHECK_OK(ls_memory_get_stats(i == 0 ? &before : &now));
    }
    CHECK_INT(now.allocated, 3 * before.allocated);
    CHECK_OK(ls_scope_resume(scope[1]));
    ls_scope_leave(scope[1]);
    CHECK_OK(ls_memory_get_stats(&now));
    CHECK_INT(now.allocated, 2 * before.allocated);
    CHECK(((float *)ls_data(t[2]))[7] == 2.0f); /* suspended, and valid */
    CHECK_INT(ls_tensor_status(t[1]), LS_ERR_STALE);
    ls_scope_leave(scope[0]); /* suspended scopes can be left as they are */
    ls_scope_leave(scope[2]);
    CHECK_OK(ls_memory_get_stats(&now));
    CHECK_INT(now.allocated, 0);
}

LOCAL_TEST(a_scope_ends_with_those_suspended_in_it)
{
    const int64_t alive = ls__tensor_alive();
    ls_scope *inner[2], *outer = ls_scope_enter();
    for (int i = 0; i < 2; i++) {
        inner[i] = ls_scope_enter();
        CHECK_OK(ls_tensor_status(ls_ones(LS_SHAPE(4), LS_FLOAT32)));
        CHECK_OK(ls_scope_suspend(inner[i]));
    }
    CHECK_INT(ls__tensor_alive(), alive + 2);
    ls_scope_leave(outer);
    CHECK_INT(ls__tensor_alive(), alive);
    CHECK_INT(ls_scope_resume(inner[0]), LS_ERR_STATE);
    ls_scope_leave(inner[1]); /* ignored */
}

/* ---- misuse ------------------------------------------------------------------------------- */

#define CHECK_FAILS(call, format)                                                                  \
    do {                                                                                           \
        CHECK_INT((call), LS_ERR_STATE);                                                           \
        CHECK_SAYS(ls_error_message(), format);                                                    \
    } while (0)

static const char not_entered[] =
    SAYS("%s: this thread has not entered the scope, or has left it; give "
         "what ls_scope_enter returned, on the same thread");

LOCAL_TEST(misuse_is_an_error_and_changes_nothing)
{
    ls_scope *a = ls_scope_enter(), *b = ls_scope_enter();
    CHECK_FAILS(ls_scope_resume(a), SAYS("scope_resume: the scope is not suspended"));
    CHECK_FAILS(
        ls_scope_suspend(a),
        SAYS("scope_suspend: scopes that were entered in this one have not ended; leave them "
             "first"));
    CHECK_OK(ls_scope_suspend(b));
    CHECK_FAILS(ls_scope_suspend(b), SAYS("scope_suspend: the scope is suspended already"));
    CHECK_FAILS(
        ls_scope_suspend(a),
        SAYS("scope_suspend: scopes that were entered in this one have not ended; leave them "
             "first"));
    ls_scope *c = ls_scope_enter();
    CHECK_FAILS(
        ls_scope_resume(b),
        SAYS("scope_resume: the innermost scope is not the one in which this scope was entered; "
             "leave or suspend the scopes that were entered since"));
    ls_scope_leave(c);
    CHECK_FAILS(ls_scope_suspend(c), not_entered);
    CHECK_FAILS(ls_scope_resume(NULL), not_entered);
    CHECK_OK(ls_scope_resume(b));
    ls_scope_leave(b);
    CHECK_OK(ls_scope_suspend(a));
    ls_scope_leave(a);
    CHECK_FAILS(ls_scope_resume(a), not_entered);
}

static void *on_another_thread(void *scope)
{
    CHECK_FAILS(ls_scope_resume(scope), not_entered);
    CHECK_FAILS(ls_scope_suspend(scope), not_entered);
    ls_scope_leave(scope); /* ignored */
    return NULL;
}

LOCAL_TEST(another_thread_cannot_resume)
{
    ls_scope *scope = ls_scope_enter();
    ls_tensor *t = ls_ones(LS_SHAPE(3), LS_FLOAT32);
    CHECK_OK(ls_scope_suspend(scope));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_another_thread, scope) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_OK(ls_scope_resume(scope));
    CHECK_OK(ls_tensor_status(t));
    ls_scope_leave(scope);
}

/* A node in another scope would lead to memory that may be gone. */
LOCAL_TEST(another_scope_cannot_continue_its_graph)
{
    static const char *const says = SAYS(
        "the tensor %s made at %s:%d belongs to a suspended scope, whose graph no other scope can "
        "continue; call ls_scope_resume first, or use ls_detach of the tensor");
    ls_tensor *w = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    ls_scope *scope = ls_scope_enter();
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    ls_tensor *y = ls_mul(w, x), *dy = ls_ones(LS_SHAPE(3), LS_FLOAT32), *loss = ls_sum(y);
    CHECK_OK(ls_scope_suspend(scope));
    CHECK_FAILS(ls_tensor_status(ls_relu(y)), says);
    CHECK_FAILS(ls_tensor_status(ls_reshape(y, LS_SHAPE(3, 1))), says);
    ls_module *relu = ls_relu_new();
    CHECK_FAILS(ls_tensor_status(ls_recompute(relu, y)), says);
    ls_module_free(relu);
    CHECK_FAILS(ls_backward(loss), says);
    CHECK_FAILS(ls_backward_from(&y, &dy, 1), says);
    CHECK_OK(ls_tensor_status(ls_detach(y)));
    CHECK_OK(ls_tensor_status(ls_mul(w, x))); /* leaves */
    {
        LS_NO_GRAD;
        CHECK_OK(ls_tensor_status(ls_reshape(ls_relu(y), LS_SHAPE(3, 1))));
    }
    CHECK_OK(ls_copy_in(dy, (float[]){2, 2, 2}, 3 * sizeof(float)));
    CHECK_OK(ls_scope_resume(scope));
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    CHECK(*(float *)ls_data(ls_grad(w)) == 2.0f);
    ls_scope_leave(scope);
}

TEST_MAIN
