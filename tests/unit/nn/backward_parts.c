/* SPDX-License-Identifier: Apache-2.0 */
/* Backward in two parts: the bits, the order of ready parameters and the hooks of whole passes;
 * what memory is kept in between; what goes wrong. */
#include "cut.h"

#include <stdio.h>

#include <lockstep/ops.h>

/* ---- micro-batches ------------------------------------------------------------------------ */

typedef struct listener {
    ls__observer base;
    ls_param params[PARAMS_MAX];
    outcome *out;
    int open, hooks;
    double weight;
} listener;

static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    listener *l = (listener *)self;
    CHECK_INT(l->open++, 0); /* one pass at a time */
    l->weight += info->weighted ? info->weight : 0.0;
    return LS_OK;
}

static ls_status on_ready(ls__observer *self, int index)
{
    listener *l = (listener *)self;
    CHECK(l->open == 1 && l->out->ready < PARAMS_MAX * MICRO);
    l->out->order[l->out->ready++] = index;
    return LS_OK;
}

static ls_status on_end(ls__observer *self)
{
    CHECK_INT(((listener *)self)->open--, 1);
    return LS_OK;
}

static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self, (void)status, (void)message;
}

static ls_status negate(void *arg, ls_tensor *t, ls_tensor *grad)
{
    float *values = ls_data(grad);
    (void)t;
    for (int64_t i = 0; i < ls_numel(grad); i++) {
        values[i] = -values[i];
    }
    ++*(int *)arg;
    return LS_OK;
}

static void listen(listener *l, model *m, outcome *out)
{
    *l = (listener){.base = {.begin = on_begin,
                             .ready = on_ready,
                             .end = on_end,
                             .abort = on_abort,
                             .param_count = ls_module_params(&m->base, l->params, PARAMS_MAX)},
                    .out = out};
    (void)ls_module_params(&m->base, l->params, PARAMS_MAX);
    CHECK_OK(ls__observer_add(&l->base));
    for (int i = 0; i < l->base.param_count; i++) {
        CHECK_OK(ls__param_observe(l->params[i].value, &l->base, i));
    }
}

static void stop_listening(listener *l)
{
    for (int i = 0; i < l->base.param_count; i++) {
        CHECK_OK(ls__param_observe(l->params[i].value, NULL, -1));
    }
    ls__observer_remove(&l->base);
}

/* Of weight 2 and, in micro-batch 1, 0. */
static double weight_of(int i)
{
    return i == 1 ? 0.0 : 2.0;
}

static void input_part(micro_batch *b, int i, bool weighted)
{
    CHECK_OK(ls_backward_input_part(&b->loss, NULL, 1,
                                    LS_OPTIONS(ls_backward_part_options, .inputs = &b->x,
                                               .input_count = 1, .weighted = weighted,
                                               .weight = weight_of(i))));
}

static void whole(micro_batch *b, int i, bool weighted)
{
    CHECK_OK(weighted ? ls_backward_from_weighted(&b->loss, NULL, 1, weight_of(i))
                      : ls_backward_from(&b->loss, NULL, 1));
}

static void step(char letter, int i, micro_batch *b, model *m, bool weighted, outcome *out)
{
    switch (letter) {
    case 'f':
        b->scope = ls_scope_enter();
        forward_micro(m, i, false, b);
        break;
    case 'b':
        whole(b, i, weighted);
        break;
    case 'i':
        input_part(b, i, weighted);
        break;
    case 'w':
        CHECK_OK(ls_backward_weight_part());
        break;
    }
    if (letter == 'b' || letter == 'i') { /* final, and on its way to the stage before */
        CHECK((ls_grad(b->x) == NULL) == (weighted && weight_of(i) == 0.0));
        if (ls_grad(b->x) != NULL) {
            keep_micro(b, i, out);
        }
    }
}

/* 'f2 i2 w2': forward, input part and weight part of micro-batch 2; 'b2': a whole backward. Its
 * scope ends with the last. */
static outcome *played(model *m, const char *schedule, bool weighted)
{
    micro_batch b[MICRO];
    listener l;
    outcome *out = outcome_new();
    listen(&l, m, out);
    ls_hook *hook = ls_grad_hook_new(m->weight, negate, &l.hooks);
    for (const char *at = schedule; *at != '\0'; at += at[2] == ' ' ? 3 : 2) {
        const int i = at[1] - '0';
        if (at[0] != 'f') {
            CHECK_OK(ls_scope_resume(b[i].scope));
        }
        step(at[0], i, &b[i], m, weighted, out);
        if (at[0] == 'w' || at[0] == 'b') {
            ls_scope_leave(b[i].scope);
        } else {
            CHECK_OK(ls_scope_suspend(b[i].scope));
        }
    }
    CHECK_INT(l.hooks, weighted ? MICRO - 1 : MICRO);
    CHECK(l.open == 0 && out->ready == MICRO * l.base.param_count);
    CHECK(l.weight == (weighted ? 2.0 * (MICRO - 1) : 0.0));
    ls_hook_free(hook);
    stop_listening(&l);
    keep_gradients(m, out);
    return out;
}

static const char *const schedules[] = {"f0 i0 w0 f1 i1 w1 f2 i2 w2 f3 i3 w3",
                                        "f0 f1 f2 f3 i0 i1 i2 i3 w0 w1 w2 w3",
                                        "f0 f1 i0 f2 i1 w0 f3 i2 w1 i3 w2 w3"};

/* The same model with and without recomputation, under autocast, with weights. */
LOCAL_TEST(two_parts_give_the_bits_and_the_order_of_whole_passes)
{
    for (int way = 0; way < 8; way++) {
        model *m = model_new(way & 1, way & 2);
        outcome *once = played(m, "f0 b0 f1 b1 f2 b2 f3 b3", way & 4);
        for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
            outcome *parts = played(m, schedules[i], way & 4);
            check_same(once, parts);
            CHECK_INT(parts->ready, once->ready);
            CHECK(memcmp(parts->order, once->order, sizeof once->order) == 0);
            free(parts);
        }
        CHECK(once->grad[0][0] != 0.0f);
        free(once);
        ls_module_free(&m->base);
    }
}

LOCAL_TEST(the_steady_state_of_parts_allocates_nothing)
{
    model *m = model_new(true, false);
    uint64_t allocations = 0;
    for (int round = 0; round < 6; round++) {
        allocations = round == 3 ? ls__tensor_allocations(ls_runtime_current()) : allocations;
        free(played(m, schedules[2], false));
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()), allocations);
    ls_module_free(&m->base);
}

/* ---- operations --------------------------------------------------------------------------- */

typedef ls_tensor *(*operation)(ls_tensor *x, ls_tensor *w, ls_tensor *b);

static ls_tensor *op_linear(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *y = ls_linear(x, w, b);
    for (int a = LS_ACTIVATION_NONE; a <= LS_ACTIVATION_TANH; a++) {
        y = ls_linear_activation(y, w, b, (ls_activation)a);
        y = ls_add(y, ls_linear_activation(x, ls_transpose(w, 0, 1), NULL, (ls_activation)a));
    }
    return y;
}

static ls_tensor *op_matmul(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    return ls_add(ls_matmul(ls_matmul(x, w), ls_scale(w, 0.5)), b);
}

static ls_tensor *op_norms(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *scale = ls_slice(w, 0, 0, 1);
    scale = ls_reshape(scale, LS_SHAPE(8));
    x = ls_layer_norm(x, scale, b, 1e-5);
    x = ls_rms_norm(x, b, 1e-5);
    x = ls_batch_norm(x, scale, b, LS_OPTIONS(ls_batch_norm_options, .training = true));
    return ls_layer_norm(x, b, NULL, 1e-5);
}

static ls_tensor *op_elementwise(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *y = ls_div(ls_mul(ls_sub(x, b), ls_slice(w, 0, 2, 3)), ls_add_scalar(ls_exp(b), 1));
    y = ls_add(ls_add(b, y), ls_sub(ls_mean(w), y));
    return ls_add(ls_maximum(y, b), ls_tanh(ls_add(b, b)));
}

static ls_tensor *op_joined(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *list[] = {x, w, ls_reshape(b, LS_SHAPE(1, 8)), w};
    ls_tensor *joined = ls_concat(list, 4, 0);
    ls_tensor *mask = ls_cast(ls_tanh(ls_detach(joined)), LS_BOOL);
    return ls_where(mask, joined, b);
}

static ls_tensor *op_attention(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *q = ls_reshape(ls_add(x, b), LS_SHAPE(1, 1, 8, 8));
    ls_tensor *k = ls_reshape(w, LS_SHAPE(1, 1, 8, 8));
    return ls_reshape(ls_attention(q, k, ls_scale(k, 2.0), NULL), LS_SHAPE(8, 8));
}

static ls_tensor *op_lstm(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *weight = ls_slice(w, 1, 0, 2);
    ls_tensor *gates = ls_reshape(ls_add(x, b), LS_SHAPE(4, 2, 8));
    return ls_lstm(gates, weight, ls_reshape(b, LS_SHAPE(2, 2, 2)));
}

static ls_tensor *op_conv(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *image = ls_reshape(x, LS_SHAPE(1, 2, 4, 8));
    ls_tensor *weight = ls_reshape(w, LS_SHAPE(8, 2, 2, 2));
    ls_tensor *y = ls_conv2d(image, weight, b, NULL);
    return ls_conv_transpose2d(y, weight, NULL, NULL);
}

static ls_tensor *op_embedding(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    const int64_t index[] = {3, 1, 3, 0, 7, 7, 2, 5};
    ls_tensor *rows = ls_embedding(w, ls_from_data(index, LS_SHAPE(8), LS_INT64));
    return ls_linear(ls_add(x, ls_add(rows, b)), w, b); /* tied */
}

static ls_tensor *op_half(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *y = ls_linear_activation(ls_cast(x, LS_BFLOAT16), ls_cast(w, LS_BFLOAT16), b,
                                        LS_ACTIVATION_GELU);
    LS_AUTOCAST(true);
    return ls_cast(ls_add(ls_linear(y, w, b), ls_matmul(y, w)), LS_FLOAT32);
}

/* Users' functions: both inputs at once; the first output does not lead to the loss. */
static ls_status both_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    (void)arg, (void)n, (void)m;
    out[0] = ls_scale(in[0], 3.0);
    out[1] = ls_matmul(in[0], in[1]);
    LS_TRY(ls_function_save(call, in[0]));
    return ls_function_save(call, in[1]);
}

static ls_status both_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    (void)m, (void)n;
    ls_tensor *x = ls_function_saved(call, 0), *w = ls_function_saved(call, 1);
    din[0] = ls_matmul(dout[1], ls_transpose(w, 0, 1));
    din[1] = ls_matmul(ls_transpose(x, 0, 1), dout[1]);
    return LS_OK; /* none for the third */
}

static const ls_function both =
    LS_FUNCTION(.name = "both", .forward = both_forward, .backward = both_backward);

static ls_tensor *op_function(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *in[] = {x, w, b}, *out[2];
    CHECK_OK(ls_function_apply_many(&both, in, 3, out, 2, NULL));
    in[0] = ls_add(out[1], b);
    in[1] = ls_scale(w, 0.25); /* not a leaf, and leads to no input */
    CHECK_OK(ls_function_apply_many(&both, in, 3, out, 2, NULL));
    in[0] = w; /* reaches no input at all */
    CHECK_OK(ls_function_apply_many(&both, in, 2, &in[1], 2, NULL));
    return ls_add(out[1], ls_mul(in[2], b));
}

/* Of its two results one leads to parameters only; within it stands another one. */
static ls_status inner_segment(ls_tensor *const *in, int n, ls_tensor **out, int m, void *arg)
{
    ls_tensor **given = arg;
    (void)n, (void)m;
    out[0] = ls_linear_activation(given[0], given[0], NULL, LS_ACTIVATION_GELU);
    out[1] = ls_add(ls_linear_activation(in[0], given[0], given[1], LS_ACTIVATION_GELU), given[1]);
    return LS_OK;
}

static ls_status outer_segment(ls_tensor *const *in, int n, ls_tensor **out, int m, void *arg)
{
    ls_tensor **given = arg, *middle[2];
    LS_TRY(ls_recompute_call_many(inner_segment, in, n, middle, m, arg));
    out[0] = ls_mul(middle[0], given[1]);
    out[1] = ls_add(ls_matmul(middle[1], given[0]), ls_mul(middle[0], given[1]));
    return LS_OK;
}

static ls_tensor *given_now[2];

static ls_tensor *op_recompute(ls_tensor *x, ls_tensor *w, ls_tensor *b)
{
    ls_tensor *out[2], *alone[2];
    given_now[0] = w, given_now[1] = b;
    ls_tensor *h = ls_linear(x, w, b);
    CHECK_OK(ls_recompute_call_many(outer_segment, &h, 1, out, 2, given_now));
    CHECK_OK(ls_recompute_call_many(outer_segment, &w, 1, alone, 2, given_now)); /* no input */
    return ls_linear(ls_add(ls_add(out[0], ls_mul(out[1], b)), alone[1]), w, NULL);
}

static const operation operations[] = {op_linear,    op_matmul,    op_norms,    op_elementwise,
                                       op_joined,    op_attention, op_lstm,     op_conv,
                                       op_embedding, op_half,      op_function, op_recompute};

typedef struct grads {
    float x[64], w[64], b[8];
} grads;

/* Twice: onto absent gradients of w and b, and onto present ones. */
static grads grads_of(operation op, bool parts)
{
    grads g;
    CHECK_OK(ls_manual_seed(7));
    ls_step_begin((ls_step_context){0, 0});
    ls_tensor *w = ls_set_requires_grad(ls_randn(LS_SHAPE(8, 8)), true);
    ls_tensor *b = ls_set_requires_grad(ls_randn(LS_SHAPE(8)), true);
    for (int i = 0; i < 2; i++) {
        LS_SCOPE;
        ls_tensor *x = ls_set_requires_grad(ls_randn(LS_SHAPE(8, 8)), true);
        ls_tensor *y = op(x, w, b), *dy = ls_randn(ls_shape_of(y));
        CHECK_OK(ls_tensor_status(y));
        ls_tensor *ys[] = {y, w}, *dys[] = {dy, ls_randn(LS_SHAPE(8, 8))};
        if (parts) {
            CHECK_OK(ls_backward_input_part(
                ys, dys, 2, LS_OPTIONS(ls_backward_part_options, .inputs = &x, .input_count = 1)));
            CHECK(i == 1 || (ls_grad(w) == NULL && ls_grad(b) == NULL));
            CHECK(ls_grad(x) != NULL);
            CHECK_OK(ls_copy_out(ls_grad(x), g.x, sizeof g.x));
            CHECK_INT(ls_backward_from(ys, dys, 2), LS_ERR_STATE); /* released */
            CHECK_OK(ls_backward_weight_part());
        } else {
            CHECK_OK(ls_backward_from(ys, dys, 2));
            CHECK_OK(ls_copy_out(ls_grad(x), g.x, sizeof g.x));
        }
    }
    CHECK_OK(ls_copy_out(ls_grad(w), g.w, sizeof g.w));
    CHECK_OK(ls_copy_out(ls_grad(b), g.b, sizeof g.b));
    return g;
}

LOCAL_TEST(every_kind_of_operation_can_run_in_parts)
{
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        const grads once = grads_of(operations[i], false), parts = grads_of(operations[i], true);
        if (memcmp(&once, &parts, sizeof once) != 0) {
            test_fail(__FILE__, __LINE__, "operation %zu: %g %g %g, in parts %g %g %g", i,
                      (double)once.x[0], (double)once.w[0], (double)once.b[0], (double)parts.x[0],
                      (double)parts.w[0], (double)parts.b[0]);
        }
    }
}

/* Without inputs the weight part is the whole backward, also when w was an input before. */
LOCAL_TEST(without_inputs_everything_is_put_off)
{
    ls_tensor *w = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    ls_tensor *loss = ls_sum(ls_mul(w, w));
    CHECK_OK(ls_backward_input_part(
        &loss, NULL, 1, LS_OPTIONS(ls_backward_part_options, .inputs = &w, .input_count = 1)));
    CHECK(*(float *)ls_data(ls_grad(w)) == 2.0f);
    CHECK_OK(ls_backward_weight_part());
    CHECK_OK(ls__param_set_grad_present(w, false));
    loss = ls_sum(ls_mul(w, w));
    CHECK_OK(ls_backward_input_part(&loss, NULL, 1, NULL));
    CHECK(ls_grad(w) == NULL);
    CHECK_OK(ls_backward_weight_part());
    CHECK(*(float *)ls_data(ls_grad(w)) == 2.0f);
}

/* ---- memory and work ---------------------------------------------------------------------- */

enum { LINE_MAX_BYTES = 512, WIDE = 64, MANY = 512, LAYERS = 6 };

static double units_in_use(void) /* in activations */
{
    ls_memory_stats m = {.size = sizeof m};
    CHECK_OK(ls_memory_get_stats(&m));
    return (double)m.allocated / (MANY * WIDE * (double)sizeof(float));
}

static int bent; /* calls of the kernel */
static const ls__kernels *real;

static void count_bends(const ls__activation_grad *g, ls_stream *stream)
{
    bent++;
    real->activation_backward(g, stream);
}

/* Of each layer x and dz are kept, and z is not, with the gradient of the input and the last x: the
 * weight part gives them back. */
LOCAL_TEST(what_the_weight_part_reads_is_kept_and_no_more)
{
    ls_tensor *w[LAYERS], *b = ls_set_requires_grad(ls_zeros(LS_SHAPE(WIDE), LS_FLOAT32), true);
    ls__tensors *tensors = ls__tensors_get("test");
    real = tensors->host.k;
    ls__kernels counting = *real;
    counting.activation_backward = count_bends;
    CHECK_OK(ls__tensor_use_kernels(&counting));
    for (int i = 0; i < LAYERS; i++) {
        w[i] = ls_set_requires_grad(ls_randn(LS_SHAPE(WIDE, WIDE)), true);
    }
    for (int round = 0; round < 2; round++) { /* the first makes the gradients of w */
        const double start = units_in_use();
        bent = 0;
        LS_SCOPE;
        ls_tensor *x = ls_set_requires_grad(ls_randn(LS_SHAPE(MANY, WIDE)), true), *y = x;
        for (int i = 0; i < LAYERS; i++) {
            ls_tensor *next = ls_linear_activation(y, w[i], b, LS_ACTIVATION_GELU);
            if (i > 0) {
                ls_free(y); /* as a module's own */
            }
            y = next;
        }
        CHECK_NEAR(units_in_use() - start, 2 * LAYERS + 1, 0.5); /* x, and z and y of each */
        ls_tensor *dy = ls_ones(LS_SHAPE(MANY, WIDE), LS_FLOAT32);
        CHECK_OK(ls_backward_input_part(
            &y, &dy, 1, LS_OPTIONS(ls_backward_part_options, .inputs = &x, .input_count = 1)));
        ls_free(y);
        ls_free(dy);
        CHECK_INT(bent, LAYERS);
        CHECK_NEAR(units_in_use() - start, 2 * LAYERS + 1, 0.5); /* x and dz of each, dx */
        CHECK_OK(ls_backward_weight_part());
        CHECK_INT(bent, LAYERS);
        CHECK(round == 0 || units_in_use() - start < 2.5); /* x and dx */
    }
    CHECK_OK(ls__tensor_use_kernels(real));
}

/* ---- misuse ------------------------------------------------------------------------------- */

#define CHECK_FAILS(call, expected, format)                                                        \
    do {                                                                                           \
        CHECK_INT((call), (expected));                                                             \
        CHECK_SAYS(ls_error_message(), format);                                                    \
    } while (0)

static void keep_line(ls_log_level level, const char *text, void *arg)
{
    CHECK_INT(level, LS_LOG_WARN);
    (void)snprintf(arg, LINE_MAX_BYTES, "%s", text);
}

LOCAL_TEST(misuse_of_parts_is_an_error)
{
    const char *none = SAYS("%s: the innermost scope has no weight part to run; call it once after "
                            "ls_backward_input_part, in the same scope");
    const char *no_leaf =
        SAYS("%s: input %d, %s, is %s; give leaves that require gradients and belong "
             "to no ls_ddp_new, such as received activations");
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    ls_tensor *w = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    ls__observer observer = {.param_count = 1};
    ls_tensor *y = ls_sum(ls_mul(x, w));
    ls_tensor *inputs[] = {x, y};
    ls_backward_part_options o = {.size = sizeof o, .inputs = inputs, .input_count = 2};
    CHECK_FAILS(ls_backward_weight_part(), LS_ERR_STATE, none);
    CHECK_FAILS(ls_backward_input_part(&y, NULL, 1, &o), LS_ERR_STATE, no_leaf);
    CHECK_SAYS(ls_error_message(), "no leaf");
    CHECK_OK(ls__param_observe(w, &observer, 0));
    inputs[1] = w;
    CHECK_FAILS(ls_backward_input_part(&y, NULL, 1, &o), LS_ERR_STATE, no_leaf);
    CHECK_SAYS(ls_error_message(), "a parameter of a wrapper");
    CHECK_OK(ls__param_observe(w, NULL, -1));
    o.input_count = LS_CALL_TENSORS_MAX + 1;
    CHECK_FAILS(ls_backward_input_part(&y, NULL, 1, &o), LS_ERR_INVALID,
                SAYS("%s: %d inputs%s; give an array of 0 to %d"));
    o.inputs = NULL;
    CHECK_INT(ls_backward_input_part(&y, NULL, 1, &o), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), ", and their array is NULL");
    o.inputs = inputs;
    o.input_count = 1;
    CHECK_OK(ls_backward_input_part(&y, NULL, 1, &o));
    ls_tensor *z = ls_sum(ls_mul(x, w));
    CHECK_FAILS(ls_backward_input_part(&z, NULL, 1, &o), LS_ERR_STATE,
                SAYS("%s: the innermost scope still has a weight part to run; call "
                     "ls_backward_weight_part first, or use a scope for each micro-batch"));
    {
        LS_SCOPE;
        CHECK_FAILS(ls_backward_weight_part(), LS_ERR_STATE, none);
    }
    CHECK_OK(ls_backward_weight_part());
    CHECK_FAILS(ls_backward_weight_part(), LS_ERR_STATE, none);
    CHECK(*(float *)ls_data(ls_grad(w)) == 1.0f);
}

/* Nothing is left of the graph, and the gradients of parameters stay as they were. */
LOCAL_TEST(a_scope_that_ends_before_its_weight_part_says_so)
{
    char line[LINE_MAX_BYTES] = "";
    ls_tensor *w = ls_set_requires_grad(ls_ones(LS_SHAPE(3, 3), LS_FLOAT32), true);
    const double before = units_in_use();
    ls_set_log_callback(keep_line, line);
    for (int bad = 0; bad < 2; bad++) {
        LS_SCOPE;
        ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3, 3), LS_FLOAT32), true);
        ls_tensor *y = op_recompute(x, w, ls_reshape(ls_slice(w, 0, 0, 1), LS_SHAPE(3)));
        if (bad) { /* the input part fails at its last node */
            CHECK_OK(ls_copy_in(x, (float[9]){1}, 9 * sizeof(float)));
        }
        ls_tensor *dy = ls_ones(LS_SHAPE(3, 3), LS_FLOAT32);
        const ls_status status = ls_backward_input_part(
            &y, &dy, 1, LS_OPTIONS(ls_backward_part_options, .inputs = &x, .input_count = 1));
        CHECK_INT(status, bad ? LS_ERR_STATE : LS_OK);
        CHECK_INT(ls_backward_weight_part(), bad ? LS_ERR_STATE : LS_OK);
        CHECK_INT(ls_backward_weight_part(), LS_ERR_STATE);
    }
    CHECK_STR(line, "");
    {
        LS_SCOPE;
        ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3, 3), LS_FLOAT32), true);
        ls_tensor *y = ls_sum(op_recompute(x, w, ls_reshape(ls_slice(w, 0, 0, 1), LS_SHAPE(3))));
        CHECK_OK(ls_backward_input_part(
            &y, NULL, 1, LS_OPTIONS(ls_backward_part_options, .inputs = &x, .input_count = 1)));
    }
    CHECK_SAYS(line, "a scope ends before the weight part of the backward at %s:%d, so its "
                     "gradients are missing; call ls_backward_weight_part in the scope");
    ls_set_log_callback(NULL, NULL);
    CHECK(units_in_use() - before < 0.01);
}

TEST_MAIN
