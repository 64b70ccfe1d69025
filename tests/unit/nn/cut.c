/* SPDX-License-Identifier: Apache-2.0 */
/* Backward from several tensors with given gradients: a graph that was cut gives the bits of the
 * whole one, and every wrong argument an error. */
#include "cut.h"

#include <math.h>

/* ---- a cut graph -------------------------------------------------------------------------- */

static outcome *computed(model *m, bool cut)
{
    outcome *out = outcome_new();
    for (int i = 0; i < MICRO; i++) {
        LS_SCOPE;
        micro_batch b;
        forward_micro(m, i, cut, &b);
        CHECK_OK(ls_backward(b.loss));
        if (cut) {
            CHECK(ls_grad(b.x) == NULL);
            ls_tensor *dys[] = {ls_grad(b.k[0]), ls_grad(b.k[1])};
            CHECK_OK(ls_backward_from(b.h, dys, 2));
        }
        keep_micro(&b, i, out);
    }
    keep_gradients(m, out);
    return out;
}

LOCAL_TEST(a_cut_graph_gives_the_bits_of_the_whole_one)
{
    for (int way = 0; way < 4; way++) {
        model *m = model_new(way & 1, way & 2);
        outcome *whole = computed(m, false), *cut = computed(m, true);
        check_same(whole, cut);
        CHECK(whole->grad[0][0] != 0.0f);
        free(whole);
        free(cut);
        ls_module_free(&m->base);
    }
}

/* The caller's gradient is neither written nor kept, also where a rule may write over its dy. */
LOCAL_TEST(given_gradients_are_left_as_they_are)
{
    ls_tensor *x = ls_set_requires_grad(ls_randn(LS_SHAPE(ROWS, WIDTH)), true);
    ls_tensor *w = ls_set_requires_grad(ls_randn(LS_SHAPE(WIDTH, WIDTH)), true);
    ls_tensor *y = ls_linear_activation(x, w, NULL, LS_ACTIVATION_GELU);
    ls_tensor *dy = ls_full(LS_SHAPE(ROWS, WIDTH), LS_FLOAT32, 0.5);
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    for (int64_t i = 0; i < ls_numel(dy); i++) {
        CHECK(((float *)ls_data(dy))[i] == 0.5f);
    }
    /* dy is the gradient to which this pass adds: x = x + dy, and not twice that. */
    ls_tensor *leaf = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    CHECK_OK(ls_backward(ls_sum(leaf)));
    ls_tensor *twice = ls_scale(leaf, 2.0), *given = ls_grad(leaf);
    ls_tensor *ys[] = {leaf, twice}, *dys[] = {given, given};
    CHECK_OK(ls_backward_from(ys, dys, 2));
    CHECK(*(float *)ls_data(ls_grad(leaf)) == 4.0f);
}

/* ---- the sum of y * dy -------------------------------------------------------------------- */

typedef struct several { /* tensors of all kinds over x and w */
    ls_tensor *x, *w, *y[5], *dy[5];
} several;

static several several_new(void)
{
    several s = {.x = ls_set_requires_grad(ls_randn(LS_SHAPE(6, 4)), true),
                 .w = ls_set_requires_grad(ls_randn(LS_SHAPE(4, 4)), true)};
    ls_tensor *h = ls_tanh(ls_matmul(s.x, s.w));
    s.y[0] = ls_transpose(h, 0, 1);        /* a view, in another order */
    s.y[1] = ls_matmul(ls_mul(h, h), s.w); /* uses the base of the one before */
    s.y[2] = ls_slice(h, 0, 1, 3);         /* another view of that base */
    s.y[3] = ls_mean(s.y[1]);              /* one element */
    s.y[4] = s.w;                          /* a leaf */
    s.dy[0] = ls_randn(LS_SHAPE(4, 6));
    s.dy[1] = ls_transpose(ls_randn(LS_SHAPE(4, 6)), 0, 1);
    s.dy[2] = ls_randn(LS_SHAPE(2, 4));
    s.dy[3] = NULL;
    s.dy[4] = ls_randn(LS_SHAPE(4, 4));
    return s;
}

static void take_grads(const several *s, float *to)
{
    CHECK_OK(ls_copy_out(ls_grad(s->x), to, 24 * sizeof(float)));
    CHECK_OK(ls_copy_out(ls_grad(s->w), to + 24, 16 * sizeof(float)));
}

/* The sum is built backwards: what the engine adds last to first is then y[0] to y[4]. */
LOCAL_TEST(it_is_the_backward_of_the_sum_of_products)
{
    float sum_grads[40], from_grads[40];
    for (int from = 0; from < 2; from++) {
        CHECK_OK(ls_manual_seed(5));
        ls_step_begin((ls_step_context){0, 0});
        several s = several_new();
        if (from) {
            CHECK_OK(ls_backward_from(s.y, s.dy, 5));
        } else {
            ls_tensor *product[5], *loss = s.y[3];
            for (int i = 4; i >= 0; i--) {
                product[i] = i != 3 ? ls_sum(ls_mul(s.y[i], s.dy[i])) : NULL;
            }
            for (int i = 0; i < 5; i++) {
                loss = i != 3 ? ls_add(loss, product[i]) : loss;
            }
            CHECK_OK(ls_backward(loss));
        }
        take_grads(&s, from ? from_grads : sum_grads);
    }
    CHECK(memcmp(sum_grads, from_grads, sizeof sum_grads) == 0);
}

LOCAL_TEST(a_scalar_needs_no_gradient_and_an_array_of_them_no_array)
{
    ls_tensor *x = ls_set_requires_grad(ls_full(LS_SCALAR, LS_FLOAT32, 3.0), true);
    ls_tensor *ys[] = {ls_mul(x, x), x};
    CHECK_OK(ls_backward_from(ys, NULL, 2));
    CHECK(*(float *)ls_data(ls_grad(x)) == 7.0f);
}

/* ---- observers ---------------------------------------------------------------------------- */

typedef struct listener {
    ls__observer base;
    int begun, ended, ready;
    bool weighted;
    double weight;
} listener;

static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    listener *l = (listener *)self;
    l->begun++;
    l->weighted = info->weighted;
    l->weight = info->weight;
    return LS_OK;
}

static ls_status on_ready(ls__observer *self, int index)
{
    (void)index;
    ((listener *)self)->ready++;
    return LS_OK;
}

static ls_status on_end(ls__observer *self)
{
    ((listener *)self)->ended++;
    return LS_OK;
}

static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self, (void)status, (void)message;
}

/* w belongs to an observer, as under ls_ddp_new; the received activation to none. */
LOCAL_TEST(a_weighted_pass_announces_the_weight_and_scales_nothing)
{
    ls_tensor *w = ls_set_requires_grad(ls_full(LS_SHAPE(2), LS_FLOAT32, 3.0), true);
    listener l = {.base = {.param_count = 1,
                           .begin = on_begin,
                           .ready = on_ready,
                           .end = on_end,
                           .abort = on_abort}};
    CHECK_OK(ls__observer_add(&l.base));
    CHECK_OK(ls__param_observe(w, &l.base, 0));
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(2), LS_FLOAT32), true);
    ls_tensor *y = ls_mul(x, w), *dy = ls_full(LS_SHAPE(2), LS_FLOAT32, 5.0);
    CHECK_OK(ls_backward_from_weighted(&y, &dy, 1, 4.0));
    CHECK(l.begun == 1 && l.ended == 1 && l.ready == 1 && l.weighted && l.weight == 4.0);
    CHECK(*(float *)ls_data(ls_grad(x)) == 15.0f && *(float *)ls_data(ls_grad(w)) == 5.0f);
    y = ls_sum(ls_mul(x, w)); /* NULL stands for the weight */
    CHECK_OK(ls_backward_from_weighted(&y, NULL, 1, 4.0));
    CHECK(*(float *)ls_data(ls_grad(w)) == 9.0f);
    y = ls_mul(x, w);
    dy = ls_full(LS_SHAPE(2), LS_FLOAT32, (double)NAN);
    CHECK_OK(ls_backward_from_weighted(&y, &dy, 1, 0.0));
    CHECK(l.begun == 3 && l.ready == 3 && l.weight == 0.0);
    CHECK(*(float *)ls_data(ls_grad(w)) == 9.0f);
    CHECK_OK(ls__param_observe(w, NULL, -1));
    ls__observer_remove(&l.base);
}

/* ---- wrong arguments ---------------------------------------------------------------------- */

#define CHECK_FAILS(call, expected, format)                                                        \
    do {                                                                                           \
        CHECK_INT((call), (expected));                                                             \
        CHECK_SAYS(ls_error_message(), format);                                                    \
    } while (0)

LOCAL_TEST(wrong_arguments_are_errors_and_compute_nothing)
{
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(2, 3), LS_FLOAT32), true);
    ls_tensor *y = ls_scale(x, 2.0), *dy = ls_ones(LS_SHAPE(2, 3), LS_FLOAT32);
    ls_tensor *wide = ls_ones(LS_SHAPE(3, 2), LS_FLOAT32), *half = ls_cast(dy, LS_BFLOAT16);
    ls_tensor *ys[LS_CALL_TENSORS_MAX + 1] = {y, x}, *dys[LS_CALL_TENSORS_MAX + 1] = {dy, dy};
    const char *count = SAYS("%s: %d tensors%s; give an array of 1 to %d");
    CHECK_FAILS(ls_backward_from(NULL, dys, 1), LS_ERR_INVALID, count);
    CHECK_SAYS(ls_error_message(), ", and their array is NULL");
    CHECK_FAILS(ls_backward_from(ys, dys, 0), LS_ERR_INVALID, count);
    CHECK_FAILS(ls_backward_from(ys, dys, LS_CALL_TENSORS_MAX + 1), LS_ERR_INVALID, count);
    CHECK_FAILS(ls_backward_from((ls_tensor *[]){y, NULL}, dys, 2), LS_ERR_INVALID,
                SAYS("%s: tensor %d is NULL; give one that requires gradients"));
    CHECK_FAILS(
        ls_backward_from((ls_tensor *[]){y, x, y}, (ls_tensor *[]){dy, dy, dy}, 3), LS_ERR_INVALID,
        SAYS("%s: tensors %d and %d are the same; give it once, with the sum of the gradients"));
    CHECK_FAILS(
        ls_backward_from(ys, NULL, 1), LS_ERR_INVALID,
        SAYS("%s: tensor %d is %s and has no gradient; give one of its shape (only a tensor of "
             "one element may have NULL)"));
    const char *differs =
        SAYS("%s: tensor %d is %s %s and its gradient %s %s; give one of the same shape and type");
    CHECK_FAILS(ls_backward_from(ys, &wide, 1), LS_ERR_INVALID, differs);
    CHECK_FAILS(ls_backward_from(ys, &half, 1), LS_ERR_INVALID, differs);
    CHECK_FAILS(
        ls_backward_from((ls_tensor *[]){y, dy}, dys, 2), LS_ERR_STATE,
        SAYS("%s: tensor %d, %s, requires no gradient: no parameter took part in it, it was "
             "computed inside LS_NO_GRAD, or it was detached (ls_keep does too)"));
    ls_tensor *poisoned = ls_matmul(x, x);
    CHECK_INT(ls_backward_from((ls_tensor *[]){y, poisoned}, dys, 2), LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "matmul") != NULL);
    CHECK_INT(ls_backward_from(ys, &poisoned, 1), LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "matmul") != NULL);
    CHECK_INT(ls_backward_from_weighted(ys, dys, 2, -1.0), LS_ERR_INVALID);
    CHECK(ls_grad(x) == NULL);
    CHECK_OK(ls_backward_from(ys, dys, 2)); /* the graph is whole */
    CHECK_INT(ls_backward_from(ys, dys, 2), LS_ERR_STATE);
    CHECK(*(float *)ls_data(ls_grad(x)) == 3.0f);
}

TEST_MAIN
