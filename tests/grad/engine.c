/* SPDX-License-Identifier: Apache-2.0 */
/* The engine: exact counts, absent gradients, order, where gradients live, and what goes wrong. */
#undef LS_NO_SITES
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/function.h>
#include <lockstep/memory.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "../unit/tensor/local.h"
#include "autograd/param.h"

static ls_tensor *leaf(ls_shape shape, double value)
{
    return ls_set_requires_grad(ls_full(shape, LS_FLOAT32, value), true);
}

static double grad_at(ls_tensor *t, int64_t i)
{
    ls_tensor *g = ls_grad(t);
    CHECK(g != NULL);
    return (double)((const float *)ls_data(g))[i];
}

/* An observer that notes what it is told. */
typedef struct notes {
    ls__observer base;
    char text[512];
    int fail_ready; /* index whose ready fails; -1: none */
    ls_tensor **params;
    double at_ready[8];
} notes;

/* "text" or, when `number` is not NONE, "text7" */
#define NONE INT32_MIN
static void note(notes *n, const char *text, int number)
{
    size_t used = strlen(n->text);
    snprintf(n->text + used, sizeof n->text - used, number == NONE ? "%s" : "%s%d", text, number);
}

static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    notes *n = (notes *)self;
    note(n, "begin", NONE);
    for (int i = 0; i < self->param_count; i++) {
        note(n, "", info->used[i]);
    }
    if (info->weighted) {
        note(n, " w=", (int)info->weight);
    }
    return LS_OK;
}

static ls_status on_ready(ls__observer *self, int index)
{
    notes *n = (notes *)self;
    note(n, " ready:", index);
    n->at_ready[index] = grad_at(n->params[index], 0);
    return index == n->fail_ready ? ls__fail(LS_ERR_PEER, "rank 3 died") : LS_OK;
}

static ls_status on_end(ls__observer *self)
{
    note((notes *)self, " end", NONE);
    return LS_OK;
}

static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    notes *n = (notes *)self;
    note(n, " abort:", status);
    CHECK(message[0] != '\0');
    (void)ls__fail(LS_ERR_INTERNAL, "another text");
    self->armed = NULL;
}

static void watch(notes *n, ls_tensor **params, int count)
{
    *n = (notes){.base = {.param_count = count,
                          .begin = on_begin,
                          .ready = on_ready,
                          .end = on_end,
                          .abort = on_abort},
                 .fail_ready = -1,
                 .params = params};
    CHECK_OK(ls__observer_add(&n->base));
    for (int i = 0; i < count; i++) {
        CHECK_OK(ls__param_observe(params[i], &n->base, i));
    }
}

#define CHECK_NOTES(n, want)                                                                       \
    do {                                                                                           \
        if (strcmp((n)->text, want) != 0) {                                                        \
            test_fail(__FILE__, __LINE__, "got \"%s\", want \"%s\"", (n)->text, want);             \
        }                                                                                          \
        (n)->text[0] = '\0';                                                                       \
    } while (0)

/* ---- counting ----------------------------------------------------------------------------- */

LOCAL_TEST(shared_parameter_is_ready_once_after_its_last_use)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2, 2), 0.5), leaf(LS_SHAPE(2), 1)};
    ls_tensor *x = ls_ones(LS_SHAPE(3, 2), LS_FLOAT32);
    notes n;
    watch(&n, p, 2);
    ls_tensor *h = ls_linear(ls_linear(ls_linear(x, p[0], p[1]), p[0], p[1]), p[0], NULL);
    CHECK_OK(ls_backward(ls_sum(h)));
    CHECK_NOTES(&n, "begin11 ready:0 ready:1 end");
    /* y = W(W(Wx+b)+b), W = w all over, x = 1: sums of 3 rows and 2 outputs. h1 = 2, h2 = 3,
     * dW = each use's dy^T x: 3*(3 + 2*1 + 1*1*1) = 18 for w = .5; db = 3*(1 + 1). */
    CHECK_NEAR(grad_at(p[0], 0), 18, 1e-5);
    CHECK_NEAR(grad_at(p[1], 0), 6, 1e-5);
    CHECK_NEAR(n.at_ready[0], 18, 1e-5);
    CHECK_NEAR(n.at_ready[1], 6, 1e-5);
}

LOCAL_TEST(unused_parameter_stays_absent_and_is_not_announced)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2), 3), leaf(LS_SHAPE(2), 4), leaf(LS_SHAPE(2), 5)};
    notes n;
    watch(&n, p, 3);
    CHECK_OK(ls_backward(ls_sum(ls_mul(p[0], p[2]))));
    CHECK_NOTES(&n, "begin101 ready:0 ready:2 end");
    CHECK(ls_grad(p[1]) == NULL);
    CHECK(!ls__param_grad_present(p[1]));
    CHECK_NEAR(grad_at(p[0], 1), 5, 0);
    n.base.armed =
        &ls__self; /* a loss that reaches none of its parameters: begin is due all the same */
    ls_tensor *other = leaf(LS_SHAPE(1), 1);
    CHECK_OK(ls_backward(ls_sum(other)));
    CHECK_NOTES(&n, "begin000 end");
}

LOCAL_TEST(gradients_accumulate_until_made_absent)
{
    ls_tensor *w = leaf(LS_SHAPE(3), 2), *v = leaf(LS_SHAPE(3), 1);
    for (int i = 1; i <= 3; i++) {
        CHECK_OK(ls_backward(ls_sum(ls_mul(w, w))));
        CHECK_NEAR(grad_at(w, 0), 4 * i, 0);
    }
    CHECK_OK(ls__param_set_grad_present(w, false));
    CHECK(ls_grad(w) == NULL);
    CHECK_OK(ls_backward(ls_sum(w)));
    CHECK_NEAR(grad_at(w, 2), 1, 0);
    CHECK(ls_grad(v) == NULL);
    CHECK(ls_grad(w) == ls_grad(w)); /* one view, not one a call */
}

LOCAL_TEST(two_losses_of_one_forward_need_their_sum)
{
    ls_tensor *w = leaf(LS_SHAPE(2), 3);
    ls_tensor *h = ls_mul(w, w);
    ls_tensor *a = ls_sum(h), *b = ls_mean(ls_exp(w));
    CHECK_OK(ls_backward(ls_add(a, b)));
    CHECK_NEAR(grad_at(w, 0), 6 + exp(3) / 2, 1e-4);
    ls_tensor *c = ls_sum(ls_neg(w)), *d = ls_sum(ls_scale(w, 2)); /* separate graphs: both work */
    CHECK_OK(ls_backward(c));
    CHECK_OK(ls_backward(d));
    CHECK_NEAR(grad_at(w, 0), 6 + exp(3) / 2 + 1, 1e-4);
}

/* The older input stands first and waits for the newer one, which it feeds. */
LOCAL_TEST(node_waits_for_everything_that_used_its_result)
{
    ls_tensor *w = leaf(LS_SHAPE(1), 0.5);
    ls_tensor *old = ls_exp(w), *young = ls_tanh(old);
    CHECK_OK(ls_backward(ls_add(old, young)));
    double e = exp(0.5), t = tanh(e);
    CHECK_NEAR(grad_at(w, 0), e * (1 + (1 - t * t)), 1e-5);
}

LOCAL_TEST(deep_graph_needs_no_deep_stack)
{
    ls_tensor *w = leaf(LS_SHAPE(1), 1), *x = w;
    for (int i = 0; i < 20000; i++) {
        x = ls_add_scalar(ls_scale(x, 1.0), 1e-3);
    }
    CHECK_OK(ls_backward(x));
    CHECK_NEAR(grad_at(w, 0), 1, 0);
}

LOCAL_TEST(every_run_adds_in_the_same_order)
{
    float first[64] = {0};
    for (int run = 0; run < 5; run++) {
        LS_SCOPE;
        ls_step_begin((ls_step_context){1, 0});
        ls_tensor *w = ls_set_requires_grad(ls_randn(LS_SHAPE(8, 8)), true);
        ls_tensor *x = ls_randn(LS_SHAPE(5, 8)), *sum = NULL;
        for (int i = 0; i < 9; i++) {
            ls_tensor *part = ls_sum(ls_tanh(ls_linear(ls_scale(x, i * 0.37), w, NULL)));
            sum = sum == NULL ? part : ls_add(sum, part);
        }
        CHECK_OK(ls_backward(sum));
        const float *g = ls_data(ls_grad(w));
        if (run == 0) {
            memcpy(first, g, sizeof first);
        }
        CHECK(memcmp(first, g, sizeof first) == 0);
    }
}

/* ---- where gradients live ----------------------------------------------------------------- */

LOCAL_TEST(gradient_is_written_where_it_is_bound)
{
    float bucket[8] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    bool present = true, moved = false;
    ls_tensor *w = leaf(LS_SHAPE(2, 3), 1), *x = ls_ones(LS_SHAPE(4, 3), LS_FLOAT32);
    CHECK_OK(ls__param_bind_grad(w, bucket + 1, &present));
    CHECK(ls_grad(w) == NULL && !present);
    CHECK_OK(ls_backward(ls_sum(ls_linear(x, w, NULL)))); /* overwrites the NaN: beta 0 */
    CHECK(ls_data(ls_grad(w)) == bucket + 1 && present);
    CHECK_NEAR(bucket[1], 4, 0);
    CHECK_NEAR(bucket[6], 4, 0);
    CHECK(isnan(bucket[0]) && isnan(bucket[7]));
    CHECK_OK(ls_backward(ls_sum(ls_linear(x, w, NULL)))); /* adds: beta 1 */
    CHECK_NEAR(bucket[6], 8, 0);
    float other[6];
    ls_tensor *grad = ls_grad(w);
    CHECK_OK(ls__param_bind_grad(w, other, &moved)); /* a present one moves along, and its view */
    CHECK(moved);
    CHECK_NEAR(other[5], 8, 0);
    CHECK(ls_data(grad) == other);
    CHECK_OK(ls__param_bind_grad(w, NULL, NULL));
    memset(other, 0, sizeof other);
    CHECK_NEAR(grad_at(w, 3), 8, 0);
    ls_free(grad); /* borrowed: nothing */
    CHECK_NEAR(grad_at(w, 3), 8, 0);
}

LOCAL_TEST(parameter_may_be_freed_before_its_graph)
{
    ls_tensor *w = ls_keep(leaf(LS_SHAPE(2), 3));
    {
        LS_SCOPE;
        ls_tensor *view = ls_slice(w, 0, 0, 1), *loss = ls_sum(ls_mul(w, w));
        ls_free(w);
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_tensor_status(view));
    }
    CHECK_INT(ls__tensor_alive(), 0);
}

/* ---- weights ------------------------------------------------------------------------------ */

LOCAL_TEST(weighted_backward_seeds_with_the_weight)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(4), 3)};
    notes n;
    watch(&n, p, 1);
    CHECK_OK(ls_backward_weighted(ls_mean(p[0]), 8));
    CHECK_NOTES(&n, "begin1 w=8 ready:0 end");
    CHECK_NEAR(grad_at(p[0], 0), 2, 0);
    CHECK_STATUS(ls_backward_weighted(ls_mean(p[0]), -1), LS_ERR_INVALID);
    CHECK_STATUS(ls_backward_weighted(ls_mean(p[0]), NAN), LS_ERR_INVALID);
}

LOCAL_TEST(weight_zero_takes_part_but_adds_nothing_not_even_nan)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2), -1), leaf(LS_SHAPE(2), 5)};
    notes n;
    watch(&n, p, 2);
    CHECK_OK(ls_backward(ls_sum(p[1])));
    n.text[0] = '\0';
    ls_tensor *loss = ls_sum(ls_mul(ls_log(p[0]), p[1])); /* NaN */
    CHECK_OK(ls_backward_weighted(loss, 0));
    CHECK_NOTES(&n, "begin11 w=0 ready:1 ready:0 end");
    CHECK_NEAR(grad_at(p[0], 0), 0, 0); /* observed: defined for the reduction */
    CHECK_NEAR(grad_at(p[1], 0), 1, 0); /* as it was */
}

LOCAL_TEST(a_weight_that_nobody_would_divide_by_is_refused_before_any_gradient)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2), 3)}, *free_leaf = leaf(LS_SHAPE(2), 1);
    notes n;
    watch(&n, p, 1);
    ls_tensor *loss = ls_mean(ls_mul(p[0], free_leaf));
    for (int weight = 0; weight < 2; weight++) {
        CHECK_STATUS(ls_backward_weighted(loss, weight), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "belongs to no ls_ddp_new");
        CHECK_CONTAINS(ls_error_message(), "a leaf [2] (made at");
    }
    CHECK_NOTES(&n, "");
    CHECK(ls_grad(p[0]) == NULL && ls_grad(free_leaf) == NULL);
    CHECK_OK(ls_backward(loss)); /* the graph is whole */
    CHECK(ls_grad(p[0]) != NULL && ls_grad(free_leaf) != NULL);
}

/* ---- hooks -------------------------------------------------------------------------------- */

typedef struct seen {
    char *log;
    char name;
    double factor;
    ls_hook *self; /* frees itself after its first call */
    ls_status status;
} seen;

static ls_status look(void *arg, ls_tensor *t, ls_tensor *grad)
{
    seen *s = arg;
    const size_t used = strlen(s->log);
    s->log[used] = s->name;
    CHECK(ls_requires_grad(t) && !ls_requires_grad(ls_mul(t, grad)));
    float *values = ls_data(grad);
    for (int64_t i = 0; i < ls_numel(grad); i++) {
        values[i] *= (float)s->factor;
    }
    ls_hook_free(s->self);
    s->self = NULL;
    return s->status < 0 ? ls_fail(s->status, "hook %c says no", s->name) : LS_OK;
}

LOCAL_TEST(hooks_see_a_final_gradient_before_its_observer_and_may_change_it)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2), 3), leaf(LS_SHAPE(2), 5)};
    char log[16] = "";
    seen a = {.log = log, .name = 'a', .factor = 2}, b = {.log = log, .name = 'b', .factor = 5};
    notes n;
    watch(&n, p, 2);
    a.self = ls_grad_hook_new(p[0], look, &a);
    ls_hook *second = ls_grad_hook_new(p[0], look, &b);
    CHECK(a.self != NULL && second != NULL);
    ls_tensor *twice = ls_add(p[0], ls_mul(p[0], p[0])); /* three accumulations, one call */
    CHECK_OK(ls_backward(ls_sum(ls_mul(twice, p[1]))));
    CHECK_STR(log, "ab");
    CHECK_NEAR(n.at_ready[0], 10 * 5 * (1 + 2 * 3), 0); /* the observer sees it changed */
    CHECK_NEAR(grad_at(p[1], 0), 12, 0);
    CHECK_OK(ls__param_set_grad_present(p[0], false));
    CHECK_OK(ls_backward(ls_sum(p[0])));
    CHECK_STR(log, "abb"); /* a has freed itself */
    CHECK_OK(ls_backward_weighted(ls_sum(p[0]), 0));
    CHECK_OK(ls_backward(ls_sum(p[1])));
    CHECK_STR(log, "abb"); /* weight 0 changes nothing; another parameter */
    ls_hook_free(second);
    CHECK_OK(ls_backward(ls_sum(p[0])));
    CHECK_STR(log, "abb");
    ls_hook_free(NULL);
}

LOCAL_TEST(an_error_of_a_hook_ends_backward_and_a_hook_dies_with_its_tensor)
{
    char log[16] = "";
    seen a = {.log = log, .name = 'a', .factor = 1, .status = LS_ERR_INVALID};
    ls_tensor *p = leaf(LS_SHAPE(2), 3);
    CHECK(ls_grad_hook_new(p, look, &a) != NULL);
    CHECK(ls_grad_hook_new(p, look, &a) != NULL);
    CHECK_STATUS(ls_backward(ls_sum(p)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "hook a says no");
    CHECK_STR(log, "a");
    ls_free(p);
    CHECK(ls_grad_hook_new(ls_ones(LS_SHAPE(2), LS_FLOAT32), look, &a) == NULL);
    CHECK_CONTAINS(ls_error_message(), "grad_hook: [2] requires no gradients; ");
    CHECK(ls_grad_hook_new(leaf(LS_SHAPE(2), 1), NULL, &a) == NULL);
}

/* y = x^2, loss = sum(y c) + sum(y): dy = c + 1 when all uses are added up. */
LOCAL_TEST(a_hook_on_an_activation_sees_all_of_its_gradient_and_what_it_writes_flows_on)
{
    char log[16] = "";
    seen a = {.log = log, .name = 'a', .factor = 10}, b = {.log = log, .name = 'b', .factor = 1};
    ls_tensor *x = leaf(LS_SHAPE(2), 3), *c = leaf(LS_SHAPE(2), 4), *y = ls_mul(x, x);
    ls_tensor *loss = ls_add(ls_sum(ls_mul(y, c)), ls_sum(y));
    ls_hook *hook = ls_grad_hook_new(y, look, &a); /* after the uses of y */
    CHECK(hook != NULL && ls_grad_hook_new(ls_reshape(y, LS_SHAPE(1, 2)), look, &b) != NULL);
    CHECK_OK(ls_backward(loss));
    CHECK_STR(log, "ab");
    CHECK_NEAR(grad_at(x, 0), 10 * (4 + 1) * 2 * 3, 0);
    CHECK_NEAR(grad_at(c, 0), 9, 0);
    ls_hook_free(hook); /* the scope still has it */
    CHECK(ls_grad_hook_new(y, look, &a) == NULL);
    CHECK_CONTAINS(ls_error_message(), "has released the graph of [2]");
}

/* dy of a sum is handed on: a hook must not write over the gradient of the other operand. */
LOCAL_TEST(a_hook_on_an_activation_changes_no_other_gradient)
{
    char log[16] = "";
    seen a = {.log = log, .name = 'a', .factor = 10};
    ls_tensor *x = leaf(LS_SHAPE(2), 3), *y = ls_exp(x), *z = ls_exp(x);
    ls_tensor *at = ls_from_data((const int32_t[]){0, 1}, LS_SHAPE(2), LS_INT32);
    CHECK(ls_grad_hook_new(y, look, &a) != NULL);
    CHECK_OK(ls_backward(ls_sum(ls_add(y, z))));
    CHECK_NEAR(grad_at(x, 0), 11 * exp(3), 1e-3);
    ls_tensor *logits = leaf(LS_SHAPE(2, 2), 0), *scaled = ls_scale(logits, 1.0);
    CHECK(ls_grad_hook_new(scaled, look, &a) != NULL);
    ls_tensor *loss = ls_cross_entropy(scaled, at, NULL);
    {
        LS_RETAIN_GRAPH; /* the loss gives memory that it keeps */
        CHECK_OK(ls_backward(loss));
    }
    CHECK_OK(ls_backward(loss));
    CHECK_NEAR(grad_at(logits, 0), 2 * 10 * -0.25, 1e-6);
    CHECK_STR(log, "aaa");
}

LOCAL_TEST(a_hook_on_a_part_or_in_a_suspended_scope_is_refused_and_an_error_names_the_operation)
{
    char log[16] = "";
    seen a = {.log = log, .name = 'a', .factor = 1, .status = LS_ERR_LIMIT};
    ls_tensor *x = leaf(LS_SHAPE(4), 3), *y = ls_exp(x);
    CHECK(ls_grad_hook_new(ls_slice(y, 0, 1, 3), look, &a) == NULL);
    CHECK_CONTAINS(ls_error_message(), "is a view, of a leaf or of a part of 4 elements");
    CHECK(ls_grad_hook_new(ls_reshape(x, LS_SHAPE(2, 2)), look, &a) == NULL);
    CHECK_CONTAINS(ls_error_message(), "give that tensor, or use ls_clone");
    ls_scope *scope = ls_scope_enter();
    ls_tensor *z = ls_exp(x);
    CHECK_OK(ls_scope_suspend(scope));
    CHECK(ls_grad_hook_new(z, look, &a) == NULL);
    CHECK_CONTAINS(ls_error_message(), "grad_hook: the tensor [4]");
    CHECK_OK(ls_scope_resume(scope));
    ls_scope_leave(scope);
    CHECK(ls_grad_hook_new(y, look, &a) != NULL);
    CHECK_STATUS(ls_backward(ls_sum(y)), LS_ERR_LIMIT);
    CHECK_CONTAINS(ls_error_message(), "gradient hook of exp (");
    CHECK_CONTAINS(ls_error_message(), "hook a says no");
}

/* ---- kept graphs -------------------------------------------------------------------------- */

LOCAL_TEST(a_kept_graph_takes_another_backward_and_adds_its_gradients)
{
    ls_tensor *w = leaf(LS_SHAPE(2), 3), *h = ls_exp(w), *first = ls_sum(h), *second = ls_mean(h);
    for (int i = 1; i <= 2; i++) {
        LS_RETAIN_GRAPH;
        CHECK_OK(ls_backward(first));
        CHECK_NEAR(grad_at(w, 0), i * exp(3), 1e-4);
    }
    CHECK_OK(ls_backward(second)); /* frees what it walks */
    CHECK_NEAR(grad_at(w, 0), 2.5 * exp(3), 1e-4);
    CHECK_STATUS(ls_backward(first), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "LS_RETAIN_GRAPH");
}

LOCAL_TEST(a_kept_graph_checks_what_was_changed_between_its_backwards)
{
    const float fresh[] = {1, 2};
    ls_tensor *w = leaf(LS_SHAPE(2), 3), *x = leaf(LS_SHAPE(2), 4), *loss = ls_sum(ls_mul(x, w));
    LS_RETAIN_GRAPH;
    CHECK_OK(ls_backward(loss));
    CHECK_OK(ls_copy_in(w, fresh, sizeof fresh));
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "was changed in place since");
    CHECK_STATUS(ls_backward_input_part(&loss, NULL, 1, NULL), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "call ls_backward_from");
}

/* Bytes in use while the graph is there, and when the last backward has passed. */
LOCAL_TEST(the_last_backward_of_a_kept_graph_frees_its_memory)
{
    ls_memory_stats kept = {.size = sizeof kept}, passed = {.size = sizeof passed};
    ls_tensor *w = leaf(LS_SHAPE(64, 64), 0.01), *loss;
    {
        LS_SCOPE;
        ls_tensor *h = ls_tanh(ls_scale(w, 2.0));
        for (int i = 0; i < 20; i++) {
            ls_tensor *next = ls_tanh(ls_scale(h, 1.5));
            ls_free(h);
            h = next;
        }
        loss = ls_sum(h);
        {
            LS_RETAIN_GRAPH;
            CHECK_OK(ls_backward(loss));
        }
        CHECK_OK(ls_memory_get_stats(&kept));
        CHECK_OK(ls_backward(loss));
        CHECK_OK(ls_memory_get_stats(&passed));
        CHECK((int64_t)kept.allocated - (int64_t)passed.allocated >= 20 * 64 * 64 * 4);
    }
    CHECK_INT(ls__tensor_alive(), 1);
}

/* Two losses that share a function of the user's, a recomputed part and views: the gradients of
 * one kept graph are those of two graphs, to the bit. */
static ls_status cube_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    (void)arg;
    CHECK(n == 1 && m == 1);
    out[0] = ls_mul(ls_mul(in[0], in[0]), in[0]);
    return ls_function_save(call, in[0]);
}

static ls_status cube_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    ls_tensor *x = ls_function_saved(call, 0);
    CHECK(n == 1 && m == 1);
    din[0] = ls_scale(ls_mul(ls_mul(x, x), dout[0]), 3.0);
    return LS_OK;
}

static const ls_function cube =
    LS_FUNCTION(.name = "cube", .forward = cube_forward, .backward = cube_backward);

static ls_tensor *segment(ls_tensor *x, void *arg)
{
    return ls_tanh(ls_mul(ls_function_apply(&cube, x, NULL), arg));
}

static void losses_of(ls_tensor *w, ls_tensor *out[2])
{
    ls_tensor *x = ls_function_apply(&cube, w, NULL);
    ls_tensor *y = ls_recompute_call(segment, ls_transpose(x, 0, 1), w);
    ls_tensor *z = ls_recompute_call(segment, y, w);
    out[0] = ls_sum(ls_mul(ls_slice(z, 0, 0, 1), ls_slice(x, 0, 1, 2)));
    out[1] = ls_mean(ls_exp(ls_add(y, x)));
}

LOCAL_TEST(functions_and_recomputed_parts_of_a_kept_graph_give_the_same_bits)
{
    float apart[9], kept[9], values[9];
    for (int i = 0; i < 9; i++) {
        values[i] = (float)sin(i + 1.0);
    }
    for (int keeps = 0; keeps < 2; keeps++) {
        ls_tensor *w = ls_set_requires_grad(ls_from_data(values, LS_SHAPE(3, 3), LS_FLOAT32), true);
        ls_tensor *loss[2], *again[2];
        losses_of(w, loss);
        losses_of(w, again);
        {
            LS_RETAIN_GRAPH;
            CHECK_OK(ls_backward(loss[0]));
            CHECK_OK(ls_backward(loss[1]));
        }
        CHECK_OK(ls_backward_from(keeps ? loss : again, NULL, 2));
        CHECK_OK(ls_copy_out(ls_grad(w), keeps ? kept : apart, sizeof kept));
    }
    CHECK(memcmp(apart, kept, sizeof kept) == 0);
}

static ls_status count_call(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)t, (void)grad;
    ++*(int *)arg;
    return LS_OK;
}

static ls_tensor *hooked_segment(ls_tensor *x, void *calls)
{
    ls_tensor *y = ls_exp(x);
    CHECK(ls_grad_hook_new(y, count_call, calls) != NULL);
    return ls_mul(y, y);
}

LOCAL_TEST(a_hook_that_a_recomputed_function_adds_is_called_once_a_backward)
{
    int calls = 0;
    ls_tensor *w = leaf(LS_SHAPE(2), 0.5);
    ls_tensor *loss = ls_sum(ls_recompute_call(hooked_segment, w, &calls));
    for (int i = 1; i <= 3; i++) {
        LS_RETAIN_GRAPH;
        CHECK_OK(ls_backward(loss));
        CHECK_INT(calls, i);
    }
}

/* The hook is called where the gradient is whole, in whichever part that is. */
LOCAL_TEST(hooks_of_activations_run_once_in_a_backward_of_two_parts)
{
    int calls[2] = {0, 0};
    ls_tensor *x = leaf(LS_SHAPE(3, 2), 1), *w = leaf(LS_SHAPE(2, 2), 0.5);
    ls_tensor *y = ls_linear(x, w, NULL), *v = ls_exp(w), *out = ls_linear(y, v, NULL);
    ls_tensor *dout = ls_ones(LS_SHAPE(3, 2), LS_FLOAT32);
    CHECK(ls_grad_hook_new(y, count_call, &calls[0]) != NULL);
    CHECK(ls_grad_hook_new(v, count_call, &calls[1]) != NULL);
    CHECK_OK(ls_backward_input_part(
        &out, &dout, 1, LS_OPTIONS(ls_backward_part_options, .inputs = &x, .input_count = 1)));
    CHECK(calls[0] == 1 && calls[1] == 0);
    CHECK_OK(ls_backward_weight_part());
    CHECK(calls[0] == 1 && calls[1] == 1);
}

/* ---- modes -------------------------------------------------------------------------------- */

LOCAL_TEST(no_grad_records_nothing)
{
    ls_tensor *w = leaf(LS_SHAPE(2), 3), *y = NULL, *view = NULL;
    {
        LS_NO_GRAD;
        y = ls_sum(ls_mul(w, w));
        view = ls_reshape(w, LS_SHAPE(1, 2));
    }
    CHECK(!ls_requires_grad(y));
    CHECK(!ls_requires_grad(view));
    CHECK_STATUS(ls_backward(y), LS_ERR_STATE);
    CHECK(ls_requires_grad(ls_sum(w)));
    CHECK(!ls_requires_grad(ls_detach(ls_sum(w))));
    CHECK(!ls_requires_grad(ls_set_requires_grad(w, false)));
    CHECK(!ls_requires_grad(ls_sum(w)));
}

/* ---- what goes wrong ---------------------------------------------------------------------- */

LOCAL_TEST(second_backward_through_a_graph_is_refused)
{
    ls_tensor *w = leaf(LS_SHAPE(2), 3);
    ls_tensor *h = ls_exp(w), *loss = ls_sum(h);
    CHECK_OK(ls_backward(loss));
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "was released by an earlier backward");
    CHECK_STATUS(ls_backward(ls_mean(h)), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "exp");
    CHECK_NEAR(grad_at(w, 0), exp(3), 1e-4);
}

LOCAL_TEST(changed_saved_tensor_is_named)
{
    const float fresh[] = {1, 2};
    char want[256];
    ls_tensor *w = leaf(LS_SHAPE(2), 3), *x = ls_ones(LS_SHAPE(2), LS_FLOAT32);
    CHECK_OK(ls__param_set_name(w, "fc1.weight"));
    (void)ls_set_requires_grad(x, true);
    int line = __LINE__ + 1;
    ls_tensor *loss = ls_sum(ls_mul(x, w));
    CHECK_OK(ls_copy_in(w, fresh, sizeof fresh));
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    snprintf(want, sizeof want, "mul at %s:%d needs its parameter fc1.weight [2]", __FILE__, line);
    CHECK_CONTAINS(ls_error_message(), want);
    ls_tensor *h = ls_exp(w); /* a saved result, changed through a view of it */
    loss = ls_sum(h);
    CHECK_OK(ls_copy_in(ls_slice(h, 0, 1, 2), fresh, sizeof(float)));
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "exp at ");
    CHECK_CONTAINS(ls_error_message(), "its result as it was");
    ls__tensor_changed(w); /* not saved by anything that is left */
    CHECK_OK(ls_backward(ls_sum(ls_neg(w))));
}

LOCAL_TEST(failed_pass_aborts_observers_with_its_cause)
{
    ls_tensor *p[] = {leaf(LS_SHAPE(2), 1), leaf(LS_SHAPE(2), 1)};
    notes n;
    watch(&n, p, 2);
    n.base.armed = &ls__self; /* poisoned loss: the peers wait, so they must hear */
    CHECK_STATUS(ls_backward(ls_sum(ls_matmul(p[0], p[1]))), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "matmul: [2] x [2]");
    CHECK_NOTES(&n, " abort:-1");
    n.fail_ready = 1;
    ls_tensor *h = ls_mul(p[0], p[0]);
    CHECK_STATUS(ls_backward(ls_sum(ls_mul(h, p[1]))), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "rank 3 died");
    CHECK_NOTES(&n, "begin11 ready:1 abort:-5");
    n.fail_ready = -1;
    CHECK_OK(ls_backward(ls_sum(ls_mul(p[0], p[1])))); /* later passes are whole again */
    CHECK_NOTES(&n, "begin11 ready:0 ready:1 end");
}

typedef struct worker {
    pthread_t thread;
    ls_runtime *runtime;
    double first, last; /* gradients of the first and the last pass */
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    CHECK_OK(ls_runtime_attach(w->runtime));
    for (int i = 0; i < 100; i++) {
        LS_SCOPE;
        ls_tensor *x = leaf(LS_SHAPE(9, 7), 0.5);
        ls_tensor *y = ls_matmul(ls_gelu(x, LS_GELU_ERF), ls_transpose(x, 0, 1));
        CHECK_OK(ls_tensor_status(ls_rand(LS_SHAPE(3))));
        CHECK_OK(ls_backward(ls_mean(y)));
        w->last = grad_at(x, 5);
        w->first = i == 0 ? w->last : w->first;
    }
    CHECK_OK(ls_runtime_attach(NULL));
    return NULL;
}

/* In a runtime where nothing has been made yet: its pools are made by whoever comes first. */
LOCAL_TEST(threads_run_passes_of_their_own_at_once)
{
    worker workers[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (worker){.runtime = ls_runtime_current()};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        CHECK(workers[i].last == workers[0].first && workers[i].first == workers[0].first);
    }
    ls_tensor *x = leaf(LS_SHAPE(2), 1.0); /* a leaf that sees one pass after another */
    for (int i = 0; i < 10; i++) {
        CHECK_OK(ls_backward(ls_sum(ls_mul(x, x))));
        CHECK_NEAR(grad_at(x, 1), 2.0 * (i + 1), 0.0);
    }
}

LOCAL_TEST(backward_needs_one_element)
{
    ls_tensor *w = leaf(LS_SHAPE(2), 3);
    CHECK_STATUS(ls_backward(w), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(),
                   "backward: the loss is [2]; it must have exactly one element");
    CHECK_STATUS(ls_backward(NULL), LS_ERR_INVALID);
    ls_tensor *scalar = leaf(LS_SCALAR, 3);
    CHECK_OK(ls_backward(scalar)); /* a leaf is a graph of its own */
    CHECK_NEAR(grad_at(scalar, 0), 1, 0);
    CHECK_OK(ls_backward(ls_slice(w, 0, 1, 2))); /* and a view of one */
    CHECK_NEAR(grad_at(w, 0), 0, 0);
    CHECK_NEAR(grad_at(w, 1), 1, 0);
    CHECK_STATUS(ls_tensor_status(ls_set_requires_grad(ls_exp(w), false)), LS_ERR_STATE);
}

TEST_MAIN
