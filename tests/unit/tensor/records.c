/* SPDX-License-Identifier: Apache-2.0 */
/* Lifetimes: handles, scopes, keeping, poison; and that a steady loop asks the system for nothing.
 */
#include <pthread.h>
#include <string.h>

#include <lockstep/ops.h>

#include "local.h"

static ls_tensor *filled(double value)
{
    return ls_full(LS_SHAPE(2, 3), LS_FLOAT32, value);
}

static double first(ls_tensor *t)
{
    float values[6] = {0};
    CHECK_OK(ls_copy_out(t, values, sizeof values));
    return (double)values[0];
}

/* ---- scopes ------------------------------------------------------------------------------- */

LOCAL_TEST(tensors_die_with_their_scope)
{
    ls_tensor *inside = NULL, *outside = filled(1);
    int64_t before = ls__tensor_alive();
    {
        LS_SCOPE;
        inside = filled(2);
        CHECK_OK(ls_tensor_status(inside));
        CHECK_INT(ls__tensor_alive(), before + 1);
    }
    CHECK_INT(ls__tensor_alive(), before);
    CHECK_STATUS(ls_tensor_status(inside), LS_ERR_STALE);
    CHECK_OK(ls_tensor_status(outside));
}

LOCAL_TEST(stale_handle_is_seen_a_hundred_scopes_later)
{
    ls_tensor *old = NULL;
    {
        LS_SCOPE;
        old = filled(2);
    }
    for (int i = 0; i < 100; i++) {
        {
            LS_SCOPE;
            for (int j = 0; j < 50; j++) {
                (void)filled(i);
            }
        }
        CHECK_STATUS(ls_tensor_status(ls_relu(old)), LS_ERR_STALE);
    }
}

/* Each reuse of a record raises its generation: none of its 200 former handles is taken for it. */
LOCAL_TEST(handles_of_a_record_differ_in_every_use)
{
    enum { ROUNDS = 200, SLAB = 1024 };
    static ls_tensor *old[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        LS_SCOPE;
        for (int j = 0; j < SLAB; j++) {
            ls_tensor *t = ls_empty(LS_SCALAR, LS_INT8);
            old[i] = j == 0 ? t : old[i];
        }
    }
    LS_SCOPE;
    for (int j = 0; j < 4 * SLAB; j++) { /* every record is in use again */
        CHECK_OK(ls_tensor_status(ls_empty(LS_SCALAR, LS_INT8)));
    }
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_STATUS(ls_tensor_status(old[i]), LS_ERR_STALE);
    }
}

LOCAL_TEST(no_pointer_is_followed_that_is_no_handle)
{
    char memory[1024];
    memset(memory, 0xff, sizeof memory);
    for (size_t i = 0; i < 512; i += 7) {
        CHECK_STATUS(ls_tensor_status((ls_tensor *)(void *)(memory + i)), LS_ERR_STALE);
    }
    CHECK_STATUS(ls_tensor_status((ls_tensor *)(uintptr_t)64), LS_ERR_STALE);
    CHECK_STATUS(ls_tensor_status(ls_neg(NULL)), LS_ERR_INVALID);
}

static double leave_by_return(ls_tensor **out)
{
    LS_SCOPE;
    *out = filled(1);
    return first(*out); /* read before the scope ends */
}

/* A scope is a declaration and hides no loop: `break` leaves the program's own. */
LOCAL_TEST(break_in_a_scope_leaves_the_loop_around_it)
{
    ls_tensor *t = NULL;
    int turns = 0;
    for (int i = 0; i < 5; i++) {
        LS_SCOPE;
        LS_NO_GRAD;
        LS_AUTOCAST(true);
        t = filled(1);
        if (i == 2) {
            break;
        }
        turns++;
    }
    CHECK_INT(turns, 2);
    CHECK_STATUS(ls_tensor_status(t), LS_ERR_STALE);
    CHECK(ls_set_grad_mode(true));
    CHECK(!ls_set_autocast(false));
}

LOCAL_TEST(scope_ends_at_continue_goto_and_return)
{
    ls_tensor *b = NULL, *c = NULL, *d = NULL;
    int turns = 0;
    for (int i = 0; i < 2; i++) {
        CHECK(i == 0 || ls_tensor_status(b) == LS_ERR_STALE);
        LS_SCOPE;
        b = filled(1);
        turns++;
        if (i >= 0) {
            continue;
        }
        turns = 100;
    }
    CHECK_INT(turns, 2);
    {
        LS_SCOPE;
        d = filled(1);
        goto out;
    }
out:
    CHECK_STATUS(ls_tensor_status(d), LS_ERR_STALE);
    CHECK_NEAR(leave_by_return(&c), 1.0, 0.0);
    CHECK_STATUS(ls_tensor_status(c), LS_ERR_STALE);
}

LOCAL_TEST(leaving_a_scope_leaves_those_inside_it)
{
    ls_scope *outer = ls_scope_enter();
    ls_tensor *a = filled(1);
    ls_scope *inner = ls_scope_enter();
    ls_tensor *b = filled(2);
    ls_scope_leave(outer);
    CHECK_STATUS(ls_tensor_status(a), LS_ERR_STALE);
    CHECK_STATUS(ls_tensor_status(b), LS_ERR_STALE);
    ls_scope_leave(inner); /* again: nothing */
    ls_scope_leave(outer);
    CHECK_OK(ls_tensor_status(filled(3)));
}

LOCAL_TEST(kept_tensor_outlives_its_scope_until_freed)
{
    ls_tensor *kept = NULL;
    {
        LS_SCOPE;
        kept = ls_keep(ls_neg(filled(4)));
    }
    CHECK_NEAR(first(kept), -4, 0);
    ls_free(kept);
    CHECK_STATUS(ls_tensor_status(kept), LS_ERR_STALE);
    ls_free(kept); /* harmless */
    ls_free(NULL);
}

LOCAL_TEST(tensor_of_a_scope_may_be_freed_early)
{
    LS_SCOPE;
    ls_tensor *t = filled(1);
    ls_tensor *view = ls_transpose(t, 0, 1);
    ls_free(t);
    CHECK_STATUS(ls_tensor_status(t), LS_ERR_STALE);
    CHECK_NEAR(first(view), 1, 0); /* the storage lives as long as a view */
}

LOCAL_TEST(kept_result_leaves_the_graph)
{
    ls_tensor *x = ls_set_requires_grad(filled(1), true), *kept = NULL;
    {
        LS_SCOPE;
        kept = ls_keep(ls_sum(x));
        CHECK(!ls_requires_grad(kept));
    }
    CHECK_STATUS(ls_backward(kept), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "requires no gradient");
    ls_free(kept);
}

static void *other_thread(void *arg)
{
    ls_tensor *shared = ((void **)arg)[1];
    CHECK_OK(ls_runtime_attach(((void **)arg)[0]));
    for (int i = 0; i < 300; i++) {
        LS_SCOPE;
        CHECK_NEAR(first(ls_neg(ls_add(shared, filled(1)))), -3, 0);
    }
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

LOCAL_TEST(threads_have_scopes_of_their_own)
{
    pthread_t thread[3];
    ls_tensor *shared = ls_keep(filled(2));
    void *arg[2] = {ls_runtime_current(), shared};
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_create(&thread[i], NULL, other_thread, arg), 0);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(pthread_join(thread[i], NULL), 0);
    }
    ls_free(shared);
}

/* ---- poison ------------------------------------------------------------------------------- */

LOCAL_TEST(poison_passes_through_expressions_with_its_first_error)
{
    ls_tensor *bad = ls_matmul(filled(1), filled(2));
    CHECK_STATUS(ls_tensor_status(bad), LS_ERR_INVALID);
    ls_tensor *end = ls_sum(ls_add(ls_relu(ls_transpose(bad, 0, 5)), ls_slice(filled(1), 9, 0, 0)));
    double value;
    float out[6];
    CHECK_STATUS(ls_tensor_status(end), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(),
                   "matmul: [2,3] x [2,3]: the inner dimensions 3 and 2 differ");
    CHECK_STATUS(ls_item(end, &value), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "inner dimensions");
    CHECK_STATUS(ls_backward(end), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "inner dimensions");
    CHECK_STATUS(ls_copy_out(end, out, sizeof out), LS_ERR_INVALID);
    CHECK(ls_data(end) == NULL);
    CHECK_INT(ls_numel(end), 0);
}

LOCAL_TEST(poison_may_be_kept_and_freed)
{
    ls_tensor *bad = NULL;
    {
        LS_SCOPE;
        bad = ls_keep(ls_matmul(filled(1), filled(2)));
    }
    CHECK_STATUS(ls_tensor_status(bad), LS_ERR_INVALID);
    ls_free(bad);
    CHECK_STATUS(ls_tensor_status(bad), LS_ERR_STALE);
}

TEST(without_a_runtime_results_are_poisoned)
{
    LS_SCOPE;
    ls_tensor *t = ls_add(filled(1), filled(2));
    CHECK(t != NULL);
    CHECK_STATUS(ls_tensor_status(t), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "ls_init");
    ls_free(ls_keep(t));
}

static void *no_memory(const ls__env *env, size_t bytes)
{
    (void)env, (void)bytes;
    return NULL;
}

LOCAL_TEST(refused_memory_poisons_and_later_calls_work)
{
    ls__tensors *tensors = ls__tensors_get("test");
    ls_tensor *t = filled(1);
    void *(*allocate)(const ls__env *, size_t) = tensors->env.table.allocate;
    tensors->env.table.allocate = no_memory;
    ls_tensor *huge = ls_empty(LS_SHAPE(1 << 20), LS_FLOAT64);
    CHECK_STATUS(ls_tensor_status(huge), LS_ERR_MEMORY);
    CHECK_CONTAINS(ls_error_message(), "memory");
    for (int i = 0; i < 5000; i++) { /* until records and small blocks run out too */
        huge = ls_neg(t);
    }
    CHECK_STATUS(ls_tensor_status(huge), LS_ERR_MEMORY);
    tensors->env.table.allocate = allocate;
    CHECK_NEAR(first(ls_neg(t)), -1, 0);
}

/* ---- steady state ------------------------------------------------------------------------- */

static void mlp_step(ls_tensor **w, ls_tensor *x, ls_tensor *y, double factor)
{
    LS_SCOPE;
    ls_tensor *h = ls_relu(ls_linear(x, w[0], w[1]));
    h = ls_dropout(ls_layer_norm(ls_gelu(h, LS_GELU_ERF), NULL, NULL, 1e-5), 0.1);
    ls_tensor *loss = ls_cross_entropy(ls_linear(h, w[2], w[3]), y, NULL);
    CHECK_OK(ls_backward(ls_scale(loss, factor)));
}

LOCAL_TEST(steady_training_loop_allocates_nothing)
{
    ls_tensor *w[4] = {ls_randn(LS_SHAPE(32, 20)), ls_zeros(LS_SHAPE(32), LS_FLOAT32),
                       ls_randn(LS_SHAPE(5, 32)), ls_zeros(LS_SHAPE(5), LS_FLOAT32)};
    int64_t labels[7] = {0, 1, 2, 3, 4, 0, 1};
    ls_tensor *x = ls_rand(LS_SHAPE(7, 20)), *y = ls_from_data(labels, LS_SHAPE(7), LS_INT64);
    for (int i = 0; i < 4; i++) {
        (void)ls_set_requires_grad(w[i], true);
    }
    mlp_step(w, x, y, 1.0);
    mlp_step(w, x, y, 0.5);
    uint64_t before = ls__tensor_allocations(ls_runtime_current());
    CHECK(before > 0);
    int64_t alive = ls__tensor_alive();
    for (int i = 0; i < 50; i++) {
        mlp_step(w, x, y, i % 2 == 0 ? 1.0 : 0.5);
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()) - before, 0);
    CHECK_INT(ls__tensor_alive(), alive);
}

TEST_MAIN
