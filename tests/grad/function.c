/* SPDX-License-Identifier: Apache-2.0 */
/* Differentiable operations of one's own: equal to built-in ones to the last bit, checked
 * numerically, used twice, recomputed, and every mistake told in words. */
#undef LS_NO_SITES
#include <string.h>

#include <lockstep/lockstep.h>

#include "../unit/tensor/local.h"

/* ---- (a, b) -> (a * b, a + b) ------------------------------------------------------------- */

static ls_status pair_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    (void)arg;
    CHECK(n == 2 && m == 2);
    out[0] = ls_mul(in[0], in[1]);
    out[1] = ls_add(in[0], in[1]);
    CHECK(!ls_requires_grad(out[0])); /* no graph inside */
    LS_TRY(ls_function_save(call, in[0]));
    return ls_function_save(call, in[1]);
}

static ls_tensor *sum_of(ls_tensor *a, ls_tensor *b)
{
    return a == NULL ? b : b == NULL ? a : ls_add(a, b);
}

static ls_status pair_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    CHECK(n == 2 && m == 2);
    for (int i = 0; i < 2; i++) {
        ls_tensor *other = ls_function_saved(call, 1 - i);
        if (ls_function_needs_grad(call, i)) {
            din[i] = sum_of(dout[0] != NULL ? ls_mul(dout[0], other) : NULL, dout[1]);
        }
    }
    return LS_OK;
}

static const ls_function pair =
    LS_FUNCTION(.name = "pair", .forward = pair_forward, .backward = pair_backward);

static void apply_pair(bool own, ls_tensor *a, ls_tensor *b, ls_tensor **out)
{
    if (own) {
        CHECK_OK(ls_function_apply_many(&pair, (ls_tensor *[]){a, b}, 2, out, 2, NULL));
    } else {
        out[0] = ls_mul(a, b);
        out[1] = ls_add(a, b);
    }
}

enum { N = 12 };

/* Both leaves' gradients, of a loss that uses the outputs of `used` (bits), through views. */
static void gradients(bool own, int used, bool views, float *out)
{
    LS_SCOPE;
    ls_step_begin((ls_step_context){.step = 1});
    ls_tensor *leaf[2], *at[2], *y[2], *loss = ls_zeros(LS_SCALAR, LS_FLOAT32);
    for (int i = 0; i < 2; i++) {
        leaf[i] = ls_set_requires_grad(ls_randn(LS_SHAPE(3, 4)), true);
        at[i] = views ? ls_transpose(ls_slice(leaf[i], 0, i, 2 + i), 0, 1) : ls_tanh(leaf[i]);
    }
    apply_pair(own, at[0], at[1], y);
    for (int i = 0; i < 2; i++) {
        loss = used >> i & 1 ? ls_add(loss, ls_sum(ls_mul(y[i], ls_exp(y[i])))) : loss;
    }
    CHECK_OK(ls_backward(loss));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_copy_out(ls_grad(leaf[i]), out + N * i, N * sizeof(float)));
    }
}

LOCAL_TEST(gradients_are_those_of_built_in_operations_to_the_last_bit)
{
    for (int views = 0; views < 2; views++) {
        for (int used = 1; used <= 3; used++) {
            float built_in[2 * N], own[2 * N];
            gradients(false, used, views != 0, built_in);
            gradients(true, used, views != 0, own);
            CHECK(memcmp(built_in, own, sizeof own) == 0);
            CHECK(own[0] != 0.0f && own[2 * N - 1] != 0.0f);
        }
    }
}

static ls_tensor *checked(ls_tensor **inputs, void *arg)
{
    ls_tensor *y[2];
    (void)arg;
    apply_pair(true, ls_tanh(inputs[0]), inputs[1], y);
    return ls_mul(y[0], ls_tanh(y[1]));
}

LOCAL_TEST(the_numeric_check_agrees)
{
    ls_tensor *inputs[2];
    for (int i = 0; i < 2; i++) {
        inputs[i] = ls_set_requires_grad(ls_randn(LS_SHAPE(2, 3)), true);
    }
    CHECK_OK(ls_gradcheck(checked, inputs, 2, NULL, NULL));
}

/* ---- one input: x -> k x^2, with data ------------------------------------------------------ */

static int freed;
static void note_free(void *data)
{
    CHECK(*(double *)data == 3.0);
    freed++;
}

typedef enum mistake { NONE, SHAPE, TYPE, FAIL, NOTHING, NO_OUTPUT, SAVE_MANY, TWICE } mistake;

typedef struct settings {
    double factor;
    mistake mistake;
    bool pointer;
} settings;

static ls_status square_forward(ls_function_call *call, ls_tensor *const *in, int n,
                                ls_tensor **out, int m, void *arg)
{
    settings *s = arg;
    CHECK(n == 1 && m == 1);
    CHECK_STATUS(ls_tensor_status(ls_function_saved(call, 0)), LS_ERR_STATE);
    ls_tensor *y = ls_scale(ls_mul(in[0], in[0]), s->factor);
    out[0] = s->mistake == NO_OUTPUT ? NULL : y;
    for (int i = 0; i < (s->mistake == SAVE_MANY ? LS_FUNCTION_SAVED_MAX : 0); i++) {
        CHECK_OK(ls_function_save(call, y));
    }
    LS_TRY(ls_function_save(call, in[0]));
    LS_TRY(s->pointer ? ls_function_save_pointer(call, s, note_free)
                      : ls_function_save_data(call, s, sizeof *s));
    return s->mistake == TWICE ? ls_function_save_data(call, s, sizeof *s) : LS_OK;
}

static ls_status square_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                 ls_tensor **din, int n)
{
    const settings *s = ls_function_data(call);
    CHECK(n == 1 && m == 1);
    CHECK_STATUS(ls_function_save(call, dout[0]), LS_ERR_STATE);
    ls_tensor *dx = ls_scale(ls_mul(ls_function_saved(call, 0), dout[0]), 2.0 * s->factor);
    CHECK(!ls_requires_grad(dx));
    CHECK_STATUS(ls_tensor_status(ls_function_saved(call, 1)), LS_ERR_INVALID);
    switch (s->mistake) {
    case SHAPE:
        dx = ls_reshape(dx, LS_SHAPE(1, -1));
        break;
    case TYPE:
        dx = ls_cast(dx, LS_BFLOAT16);
        break;
    case FAIL:
        return ls_fail(LS_ERR_UNSUPPORTED, "square: it does not know how");
    default:
        break;
    }
    din[0] = s->mistake == NOTHING ? NULL : dx;
    return LS_OK;
}

static const ls_function square =
    LS_FUNCTION(.name = "square", .forward = square_forward, .backward = square_backward);

static ls_tensor *leaf_of(double value)
{
    return ls_set_requires_grad(ls_full(LS_SHAPE(3), LS_FLOAT32, value), true);
}

static double grad_of(ls_tensor *t)
{
    ls_tensor *g = ls_grad(t);
    CHECK(g != NULL);
    return (double)((const float *)ls_data(g))[0];
}

LOCAL_TEST(used_twice_on_one_input_and_on_its_own_result_gradients_add_up)
{
    settings s = {.factor = 3.0};
    ls_tensor *x = leaf_of(2.0);
    ls_tensor *once = ls_function_apply(&square, x, &s); /* 3 x^2 */
    s.factor = 0.5;                                      /* the first has a copy */
    ls_tensor *twice = ls_function_apply(&square, ls_function_apply(&square, x, &s), &s);
    CHECK_OK(ls_backward(ls_sum(ls_add(once, twice)))); /* + x^4 / 8 */
    CHECK_NEAR(grad_of(x), 6 * 2.0 + 2.0 * 2.0 * 2.0 / 2, 1e-6);
}

LOCAL_TEST(data_is_freed_when_backward_has_passed_or_the_scope_ends_or_at_once)
{
    settings s = {.factor = 3.0, .pointer = true};
    freed = 0;
    ls_tensor *x = leaf_of(1.0);
    ls_tensor *loss = ls_sum(ls_function_apply(&square, x, &s));
    CHECK_INT(freed, 0);
    CHECK_OK(ls_backward(loss));
    CHECK_INT(freed, 1);
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "was released by an earlier backward");
    {
        LS_SCOPE;
        (void)ls_function_apply(&square, x, &s);
    }
    CHECK_INT(freed, 2);
    {
        LS_NO_GRAD;
        CHECK(!ls_requires_grad(ls_function_apply(&square, x, &s)));
    }
    CHECK_INT(freed, 3);
    CHECK(!ls_requires_grad(ls_function_apply(&square, ls_ones(LS_SHAPE(3), LS_FLOAT32), &s)));
    CHECK_INT(freed, 4);
}

static ls_status mistake_in_backward(mistake kind)
{
    settings s = {.factor = 1.0, .mistake = kind};
    ls_tensor *x = leaf_of(1.0);
    return ls_backward(ls_sum(ls_function_apply(&square, ls_tanh(x), &s)));
}

static ls_status mistake_in_forward(mistake kind)
{
    settings s = {.factor = 1.0, .mistake = kind};
    ls_tensor *y = ls_function_apply(&square, leaf_of(1.0), &s);
    return ls_tensor_status(ls_sum(y));
}

LOCAL_TEST(mistakes_of_the_two_functions_are_told)
{
    CHECK_OK(mistake_in_backward(NONE));
    CHECK_STATUS(mistake_in_backward(SHAPE), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "gave a gradient float32 [1,3] for input 0");
    CHECK_CONTAINS(ls_error_message(), "which is float32 [3]");
    CHECK_STATUS(mistake_in_backward(TYPE), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "bfloat16");
    CHECK_STATUS(mistake_in_backward(FAIL), LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "does not know how");
    CHECK_STATUS(mistake_in_forward(NO_OUTPUT), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "gave no output 0 of 1");
    CHECK_STATUS(mistake_in_forward(SAVE_MANY), LS_ERR_LIMIT);
    CHECK_STATUS(mistake_in_forward(TWICE), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "saved data already");
}

LOCAL_TEST(a_function_that_is_not_whole_is_refused)
{
    static const ls_function sizeless = {.name = "sizeless"};
    static const ls_function half = LS_FUNCTION(.name = "half", .forward = square_forward);
    ls_tensor *x = leaf_of(1.0), *y[1];
    CHECK_STATUS(ls_tensor_status(ls_function_apply(&sizeless, x, NULL)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "LS_FUNCTION");
    CHECK_STATUS(ls_tensor_status(ls_function_apply(&half, x, NULL)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "\"half\": it needs");
    CHECK_STATUS(ls_tensor_status(ls_function_apply(NULL, x, NULL)), LS_ERR_INVALID);
    CHECK_STATUS(ls_function_apply_many(&square, &x, 0, y, 1, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(y[0]), LS_ERR_INVALID);
    ls_tensor *poisoned = ls_add(x, ls_ones(LS_SHAPE(7), LS_FLOAT32));
    CHECK_STATUS(ls_tensor_status(ls_function_apply(&square, poisoned, NULL)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "add");
    CHECK_STATUS(ls_function_save(NULL, x), LS_ERR_STATE);
    CHECK(ls_function_data(NULL) == NULL && !ls_function_needs_grad(NULL, 0));
}

LOCAL_TEST(what_was_saved_must_stay_as_it_was)
{
    settings s = {.factor = 1.0};
    ls_tensor *x = leaf_of(1.0), *h = ls_tanh(x);
    ls_tensor *loss = ls_sum(ls_function_apply(&square, h, &s));
    CHECK_OK(ls_fill_constant(h, 0.5));
    CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "square at");
    CHECK_CONTAINS(ls_error_message(), "needs its argument 1 as it was");
}

LOCAL_TEST(no_gradient_leaves_what_lies_behind_absent)
{
    settings s = {.factor = 1.0, .mistake = NOTHING};
    ls_tensor *x = leaf_of(1.0), *z = leaf_of(1.0);
    ls_tensor *y = ls_function_apply(&square, ls_exp(x), &s);
    CHECK_OK(ls_backward(ls_sum(ls_add(y, z))));
    CHECK(ls_grad(x) == NULL && ls_grad(z) != NULL);
}

/* ---- outputs that have no gradient; inputs that are left out -------------------------------- */

static ls_status top_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                             int m, void *arg)
{
    (void)arg;
    CHECK(n == 2 && m == 2 && in[1] == NULL);
    CHECK(ls_function_needs_grad(call, 0) && !ls_function_needs_grad(call, 1));
    out[0] = in[0]; /* as it came */
    out[1] = ls_argmax(in[0], 0);
    return LS_OK;
}

static ls_status top_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                              ls_tensor **din, int n)
{
    (void)call;
    CHECK(n == 2 && m == 2 && dout[1] == NULL);
    din[0] = dout[0];
    return LS_OK;
}

LOCAL_TEST(an_index_has_no_gradient_and_an_input_may_be_the_output)
{
    static const ls_function top =
        LS_FUNCTION(.name = "top", .forward = top_forward, .backward = top_backward);
    ls_tensor *x = leaf_of(2.0), *out[2];
    CHECK_OK(ls_function_apply_many(&top, (ls_tensor *[]){x, NULL}, 2, out, 2, NULL));
    CHECK(ls_requires_grad(out[0]) && !ls_requires_grad(out[1]));
    CHECK_OK(ls_backward(ls_sum(ls_mul(out[0], out[0]))));
    CHECK_NEAR(grad_of(x), 4.0, 0.0);
}

/* ---- recomputed ---------------------------------------------------------------------------- */

static ls_tensor *segment(ls_tensor *x, void *arg)
{
    ls_tensor *y[2];
    apply_pair(true, ls_tanh(x), arg, y);
    return ls_mul(y[0], y[1]);
}

LOCAL_TEST(within_a_recomputed_function_the_gradients_are_the_same_bits)
{
    float kept[2][3], again[2][3];
    for (int recompute = 0; recompute < 2; recompute++) {
        ls_tensor *x = leaf_of(0.7), *w = leaf_of(-1.3);
        ls_tensor *y = recompute ? ls_recompute_call(segment, x, w) : segment(x, w);
        CHECK_OK(ls_backward(ls_sum(y)));
        CHECK_OK(ls_copy_out(ls_grad(x), (recompute ? again : kept)[0], sizeof kept[0]));
        CHECK_OK(ls_copy_out(ls_grad(w), (recompute ? again : kept)[1], sizeof kept[1]));
    }
    CHECK(memcmp(kept, again, sizeof kept) == 0);
}

TEST_MAIN
