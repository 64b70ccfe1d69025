/* SPDX-License-Identifier: Apache-2.0 */
/* Modules with several inputs and outputs, and the parts of a module by name. */
#include "test.h"

#include <string.h>

#include <lockstep/lockstep.h>

#include "base/runtime.h"
#include "tensor/tensor.h"

/* An encoder: (x, mask) -> (mean, deviation), as the first half of a variational autoencoder. */
typedef struct encoder {
    ls_module base;
    ls_module *body, *mean, *deviation;
    ls_tensor *between; /* of the last forward */
    int gives;          /* outputs it fills */
} encoder;

static ls_status encoder_forward(ls_module *m, ls_tensor *const *inputs, int input_count,
                                 ls_tensor **outputs, int output_count)
{
    encoder *self = (encoder *)m;
    if (input_count > 2 || output_count > 2) {
        return ls_fail(LS_ERR_INVALID, "encoder: %d inputs, %d outputs", input_count, output_count);
    }
    ls_tensor *x = inputs[0];
    if (input_count == 2 && inputs[1] != NULL) {
        x = ls_mul(x, inputs[1]);
    }
    ls_tensor *h = ls_relu(ls_forward(self->body, x));
    self->between = h;
    ls_tensor *made[] = {ls_forward(self->mean, h), ls_forward(self->deviation, h)};
    for (int i = 0; i < output_count && i < self->gives; i++) {
        outputs[i] = made[i];
    }
    return LS_OK;
}

static const ls_module_class encoder_class =
    LS_MODULE_CLASS(.name = "encoder", .forward_many = encoder_forward);

static encoder *encoder_new(void)
{
    encoder *e = ls_module_new(sizeof *e, &encoder_class);
    e->body = ls_module_add(&e->base, "body", ls_linear_new(3, 4, NULL));
    e->mean = ls_module_add(&e->base, "mean", ls_linear_new(4, 2, NULL));
    e->deviation = ls_module_add(&e->base, "deviation", ls_linear_new(4, 2, NULL));
    e->gives = 2;
    return e;
}

static void start(void)
{
    CHECK_OK(ls_init(NULL));
}

static void end(void)
{
    CHECK_OK(ls_finalize());
}

static void same_elements(ls_tensor *a, ls_tensor *b)
{
    CHECK_INT(ls_numel(a), ls_numel(b));
    CHECK(memcmp(ls_data(a), ls_data(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
}

TEST(two_inputs_go_in_and_two_outputs_come_out_with_gradients_of_both)
{
    start();
    encoder *e = encoder_new();
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(5, 3)), *mask = ls_zeros(LS_SHAPE(5, 3), LS_FLOAT32);
        ls_tensor *out[2];
        CHECK_OK(ls_forward_many(&e->base, (ls_tensor *[]){x, mask}, 2, out, 2));
        ls_tensor *h = ls_relu(ls_forward(e->body, ls_mul(x, mask)));
        same_elements(out[0], ls_forward(e->mean, h));
        same_elements(out[1], ls_forward(e->deviation, h));
        CHECK_OK(ls_backward(ls_add(ls_sum(out[0]), ls_sum(out[1]))));
        CHECK(ls_grad(ls_module_param(&e->base, "mean.bias")) != NULL);
        CHECK(ls_grad(ls_module_param(&e->base, "deviation.bias")) != NULL);
    }
    ls_module_free(&e->base);
    end();
}

TEST(either_call_works_on_either_kind_of_class_where_the_counts_fit)
{
    start();
    encoder *e = encoder_new();
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(5, 3)), *one[1], *two[2];
        CHECK_OK(ls_forward_many(&e->base, &x, 1, one, 1));
        same_elements(ls_forward(&e->base, x), one[0]);
        CHECK_OK(ls_forward_many(&e->base, (ls_tensor *[]){x, NULL}, 2, one, 1)); /* left out */
        same_elements(ls_forward(&e->base, x), one[0]);
        CHECK_OK(ls_forward_many(e->body, &x, 1, one, 1));
        same_elements(ls_forward(e->body, x), one[0]);
        CHECK_STATUS(ls_forward_many(e->body, &x, 1, two, 2), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "module Linear has 1 input and 1 output");
        CHECK_STATUS(ls_tensor_status(two[1]), LS_ERR_INVALID);
    }
    ls_module_free(&e->base);
    end();
}

TEST(errors_of_a_module_with_many_reach_its_caller_and_its_outputs)
{
    start();
    encoder *e = encoder_new();
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(5, 3)), *wrong = ls_randn(LS_SHAPE(5, 7)), *out[3];
        ls_tensor *three[] = {x, x, x};
        CHECK_STATUS(ls_forward_many(&e->base, three, 3, out, 1), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "encoder: 3 inputs, 1 outputs");
        CHECK_STATUS(ls_tensor_status(ls_sum(out[0])), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "encoder: 3 inputs, 1 outputs");
        CHECK_STATUS(ls_forward_many(&e->base, &wrong, 1, out, 2), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "linear");
        e->gives = 1;
        CHECK_STATUS(ls_forward_many(&e->base, &x, 1, out, 2), LS_ERR_INVALID);
        CHECK_CONTAINS(ls_error_message(), "gave no output 1 of the 2");
        CHECK_STATUS(ls_forward_many(&e->base, &x, 0, out, 1), LS_ERR_INVALID);
        CHECK_STATUS(ls_forward_many(&e->base, &x, 1, NULL, 1), LS_ERR_INVALID);
        CHECK_STATUS(ls_forward_many(NULL, &x, 1, out, 1), LS_ERR_INVALID);
        CHECK_STATUS(ls_tensor_status(out[0]), LS_ERR_INVALID);
    }
    ls_module_free(&e->base);
    end();
}

/* Hidden tensors of the module go as backward passes; what it returned stays, all of it. */
TEST(all_outputs_outlive_backward_and_what_lay_between_does_not)
{
    start();
    encoder *e = encoder_new();
    {
        LS_SCOPE;
        ls_tensor *x = ls_randn(LS_SHAPE(5, 3)), *out[2];
        CHECK_OK(ls_forward_many(&e->base, &x, 1, out, 2));
        CHECK_OK(ls_tensor_status(e->between));
        CHECK_OK(ls_backward(ls_add(ls_sum(out[0]), ls_sum(out[1]))));
        CHECK_OK(ls_tensor_status(out[0]));
        CHECK_OK(ls_tensor_status(out[1]));
        CHECK_STATUS(ls_tensor_status(e->between), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "an intermediate result of a module");
    }
    CHECK_INT(ls__self.modules, 0);
    ls_module_free(&e->base);
    end();
}

/* ---- hooks -------------------------------------------------------------------------------- */

typedef struct seen {
    int before, after;
    double factor;
    bool refuse;
    ls_hook *self; /* frees itself */
} seen;

static ls_status watch_forward(void *arg, ls_module *module, ls_tensor **inputs, int input_count,
                               ls_tensor **outputs, int output_count)
{
    seen *s = arg;
    CHECK(module != NULL && input_count >= 1 && inputs[0] != NULL);
    CHECK((outputs == NULL) == (output_count == 0));
    ls_tensor **at = outputs != NULL ? outputs : inputs;
    at[0] = ls_scale(at[0], s->factor);
    *(outputs != NULL ? &s->after : &s->before) += 1;
    ls_hook_free(s->self);
    s->self = NULL;
    return s->refuse ? ls_fail(LS_ERR_INVALID, "the hook refuses") : LS_OK;
}

TEST(hooks_run_before_and_after_a_forward_and_may_replace_tensors)
{
    start();
    encoder *e = encoder_new();
    LS_SCOPE;
    seen before = {.factor = 2.0}, after = {.factor = 3.0}, once = {.factor = 1.0};
    ls_tensor *x = ls_randn(LS_SHAPE(5, 3)), *out[2], *plain[2], *doubled = ls_scale(x, 2.0);
    CHECK_OK(ls_forward_many(&e->base, &doubled, 1, plain, 2));
    ls_hook *hooks[] = {ls_forward_pre_hook_new(&e->base, watch_forward, &before),
                        ls_forward_hook_new(&e->base, watch_forward, &after)};
    once.self = ls_forward_hook_new(&e->base, watch_forward, &once);
    CHECK(hooks[0] != NULL && hooks[1] != NULL && once.self != NULL);
    CHECK_OK(ls_forward_many(&e->base, &x, 1, out, 2));
    same_elements(out[0], ls_scale(plain[0], 3.0));
    same_elements(out[1], plain[1]);
    CHECK(ls_requires_grad(out[0]));
    CHECK_OK(ls_tensor_status(ls_recompute(&e->base, x)));
    CHECK_INT(before.before, 2);
    CHECK_INT(after.after, 2);
    CHECK_INT(once.after, 1);
    CHECK_INT(before.after + after.before, 0);
    ls_hook_free(hooks[0]);
    before.refuse = after.refuse = true;
    CHECK_STATUS(ls_tensor_status(ls_forward(&e->base, x)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "the hook refuses");
    CHECK_INT(before.before, 2);
    CHECK(ls_forward_hook_new(NULL, watch_forward, NULL) == NULL);
    CHECK(ls_forward_hook_new(&e->base, NULL, NULL) == NULL);
    ls_module_free(&e->base); /* with the one hook that is left */
    end();
}

/* ---- recomputed --------------------------------------------------------------------------- */

enum { NUMBERS = 3 * 4 + 4 + 2 * (4 * 2 + 2) + 2 * 5 * 3 };

typedef struct gradients {
    float value[NUMBERS];
    bool present[8];
    int count;
} gradients;

static void take(gradients *g, int slot, ls_tensor *t)
{
    ls_tensor *grad = ls_grad(t);
    g->present[slot] = grad != NULL;
    if (grad != NULL) {
        CHECK_OK(ls_copy_out(grad, g->value + g->count, (size_t)ls_numel(grad) * sizeof(float)));
        g->count += (int)ls_numel(grad);
    }
}

/* `used`: bit i, the loss depends on output i. */
static gradients gradients_of(bool recompute, int used)
{
    gradients g = {.count = 0};
    CHECK_OK(ls_manual_seed(4));
    ls_step_begin((ls_step_context){.step = 1});
    encoder *e = encoder_new();
    LS_SCOPE;
    ls_tensor *inputs[2], *out[2], *loss = ls_zeros(LS_SCALAR, LS_FLOAT32);
    for (int i = 0; i < 2; i++) {
        inputs[i] = ls_set_requires_grad(ls_randn(LS_SHAPE(5, 3)), true);
    }
    ls_tensor *through[] = {ls_tanh(inputs[0]), inputs[1]}; /* an operation and a leaf */
    CHECK_OK((recompute ? ls_recompute_many : ls_forward_many)(&e->base, through, 2, out, 2));
    for (int i = 0; i < 2; i++) {
        loss = used >> i & 1 ? ls_add(loss, ls_mean(ls_mul(out[i], out[i]))) : loss;
    }
    CHECK_OK(ls_backward(loss));
    ls_param params[6];
    CHECK_INT(ls_module_params(&e->base, params, 6), 6);
    for (int i = 0; i < 6; i++) {
        take(&g, i, params[i].value);
    }
    take(&g, 6, inputs[0]);
    take(&g, 7, inputs[1]);
    ls_module_free(&e->base);
    return g;
}

TEST(recomputed_with_many_inputs_and_outputs_the_gradients_are_the_same_bits)
{
    start();
    for (int used = 1; used <= 3; used++) { /* of an output that nobody uses they are absent */
        const gradients kept = gradients_of(false, used), again = gradients_of(true, used);
        CHECK_INT(again.count, kept.count);
        CHECK(memcmp(kept.value, again.value, (size_t)kept.count * sizeof(float)) == 0);
        CHECK(memcmp(kept.present, again.present, sizeof kept.present) == 0);
        CHECK(kept.present[2] == ((used & 1) != 0) && kept.present[4] == ((used & 2) != 0));
        CHECK(kept.count > 20);
    }
    end();
}

static ls_status fickle(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                        int output_count, void *arg)
{
    ls_tensor *const *weights = arg;
    (void)input_count;
    (void)output_count;
    outputs[0] = ls_mul(inputs[0], weights[0]);
    outputs[1] = ls_mul(inputs[1], weights[ls_recomputing() ? 0 : 1]);
    return LS_OK;
}

static ls_status failing(ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                         int output_count, void *arg)
{
    (void)inputs;
    (void)arg;
    (void)outputs;
    return ls_fail(LS_ERR_INVALID, "failing: %d in, %d out", input_count, output_count);
}

TEST(mistakes_of_recomputed_functions_with_many_are_told)
{
    start();
    LS_SCOPE;
    ls_tensor *x[] = {ls_ones(LS_SHAPE(2), LS_FLOAT32), ls_ones(LS_SHAPE(2), LS_FLOAT32)}, *y[2];
    ls_tensor *weights[2];
    for (int i = 0; i < 2; i++) {
        weights[i] = ls_set_requires_grad(ls_ones(LS_SHAPE(2), LS_FLOAT32), true);
    }
    CHECK_OK(ls_recompute_call_many(fickle, x, 2, y, 2, weights));
    CHECK_STATUS(ls_backward(ls_sum(ls_add(y[0], y[1]))), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "used other parameters or tensors");
    CHECK_OK(ls_recompute_call_many(fickle, x, 2, y, 2, weights));
    CHECK_OK(ls_fill_constant(x[1], 3.0));
    CHECK_STATUS(ls_backward(ls_sum(y[0])), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "needs its argument 2 as it was");
    CHECK_STATUS(ls_recompute_call_many(failing, x, 2, y, 1, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "failing: 2 in, 1 out");
    CHECK_STATUS(ls_tensor_status(y[0]), LS_ERR_INVALID);
    CHECK_STATUS(ls_recompute_call_many(failing, x, 0, y, 1, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_recompute_call_many(NULL, x, 1, y, 1, NULL), LS_ERR_INVALID);
    end();
}

/* ---- classes ------------------------------------------------------------------------------ */

static ls_tensor *pass_on(ls_module *self, ls_tensor *x)
{
    (void)self;
    return x;
}

TEST(a_class_that_is_not_whole_is_refused)
{
    static const ls_module_class sizeless = {.name = "sizeless", .forward = pass_on};
    static const ls_module_class neither = LS_MODULE_CLASS(.name = "neither");
    static const ls_module_class both =
        LS_MODULE_CLASS(.name = "both", .forward = pass_on, .forward_many = encoder_forward);
    static const ls_module_class huge = {.size = 5000, .name = "huge", .forward = pass_on};
    CHECK(ls_module_new(sizeof(ls_module), &sizeless) == NULL);
    CHECK_CONTAINS(ls_error_message(), "the class' size is 0; fill the class with LS_MODULE_CLASS");
    CHECK(ls_module_new(sizeof(ls_module), &huge) == NULL);
    CHECK_CONTAINS(ls_error_message(), "5000");
    CHECK(ls_module_new(sizeof(ls_module), &neither) == NULL);
    CHECK_CONTAINS(ls_error_message(), "\"neither\": its class must have");
    CHECK(ls_module_new(sizeof(ls_module), &both) == NULL);
    CHECK_CONTAINS(ls_error_message(), "\"both\": its class must have");
    CHECK(ls_module_new(3, &encoder_class) == NULL);
    CHECK(ls_module_new(sizeof(ls_module), NULL) == NULL);
}

/* ---- parts by name ------------------------------------------------------------------------ */

TEST(children_and_parts_are_found_by_name_through_a_wrapper_too)
{
    start();
    encoder *e = encoder_new();
    ls_module *inner = ls_sequential_new((ls_module *[]){ls_relu_new(), &e->base}, 2);
    ls_module *net = ls_ddp_new(inner, ls_world(), NULL);
    CHECK(net != NULL);
    CHECK_INT(ls_module_child_count(inner), 2);
    CHECK(ls_module_child_at(inner, 1) == &e->base);
    CHECK_STR(ls_module_child_name(inner, 1), "1");
    CHECK(ls_module_child_at(inner, 2) == NULL && ls_module_child_at(inner, -1) == NULL);
    CHECK(ls_module_child_name(inner, 2) == NULL);
    CHECK(ls_module_child(inner, "1.body") == e->body);
    CHECK(ls_module_child(net, "1.body") == e->body);
    ls_param params[6];
    CHECK_INT(ls_module_params(net, params, 6), 6);
    for (int i = 0; i < 6; i++) {
        CHECK(ls_module_param(net, params[i].name) == params[i].value);
    }
    CHECK_INT(ls_module_child_count(NULL), 0);
    ls_module_free(net);
    end();
}

TEST(a_part_that_is_missing_is_named)
{
    start();
    ls_module *norm = ls_batch_norm2d_new(4, 1e-5, 0.1);
    ls_module *net = ls_sequential_new((ls_module *[]){ls_relu_new(), norm}, 2);
    CHECK(ls_module_buffer(net, "1.running_mean") != NULL);
    CHECK(ls_module_param(net, "1.running_mean") == NULL);
    CHECK_CONTAINS(ls_error_message(), "\"1.running_mean\"");
    CHECK_CONTAINS(ls_error_message(), "the part of that name is a buffer");
    CHECK(ls_module_child(net, "7.norm") == NULL);
    CHECK_CONTAINS(ls_error_message(), "it has no module \"7\" (asked for: \"7.norm\")");
    CHECK(ls_module_child(net, "1.weight.x") == NULL);
    CHECK(ls_module_child(net, "") == NULL);
    CHECK(ls_module_child(net, NULL) == NULL);
    CHECK(ls_module_child(NULL, "1") == NULL);
    CHECK(ls_module_buffer(net, "1.") == NULL);
    ls_module_free(net);
    end();
}

TEST_MAIN
