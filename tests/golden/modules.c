/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes with modules, optimizers and DDP in a world of one. */
#include <math.h>

#include "golden.h"

static ls_tensor *pass_on(ls_module *self, ls_tensor *x)
{
    (void)self;
    return x;
}
static const ls_module_class plain_class = LS_MODULE_CLASS(.name = "plain", .forward = pass_on);

static ls_module *plain(void)
{
    return ls_module_new(sizeof(ls_module), &plain_class);
}

/* What a module says after `build` has spoilt it. */
#define SHOW_BUILD(statement)                                                                      \
    do {                                                                                           \
        ls_module *m = plain();                                                                    \
        (void)(statement);                                                                         \
        golden_show(#statement, ls_module_status(m));                                              \
    } while (0)

GOLDEN(building_modules)
{
    static const ls_module_class nameless = LS_MODULE_CLASS(.forward = pass_on);
    static const ls_module_class sizeless = {.name = "sizeless", .forward = pass_on};
    ls_module *used = plain(), *owner = plain();
    (void)ls_module_add(owner, "used", used);
    SHOW_NULL(ls_module_new(sizeof(ls_module), NULL));
    SHOW_NULL(ls_module_new(8, &plain_class));
    SHOW_NULL(ls_module_new(sizeof(ls_module), &sizeless));
    SHOW_NULL(ls_module_new(sizeof(ls_module), &nameless));
    SHOW_BUILD(ls_module_add(m, "a.b", plain()));
    SHOW_BUILD(ls_module_add(m, "one", NULL));
    SHOW_BUILD(ls_module_add(m, "one", used));
    SHOW_BUILD(ls_module_add(m, "one", m));
    SHOW_BUILD((ls_module_add(m, "one", plain()), ls_module_add(m, "one", plain())));
    SHOW_BUILD(ls_module_add_param(m, "w", NULL));
    SHOW_BUILD(ls_module_add_param(m, "w", ls_zeros(LS_SHAPE(2), LS_INT32)));
    SHOW_BUILD(
        ls_module_add_param(m, "w", ls_transpose(ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32), 0, 1)));
    SHOW_BUILD(ls_module_add_param(
        m, "w",
        ls_matmul(ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32), ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32))));
    SHOW_BUILD(ls_module_add(m, "fc", ls_linear_new(0, 10, NULL)));
    SHOW(ls_module_status(NULL));
}

/* State of a class: on rank 1 larger than any memory. */
static ls_status show_huge(ls_module *self, const char *prefix, const ls_state_visitor *visitor)
{
    static float x;
    ls_state_tensor huge = {.dtype = LS_FLOAT32, .ndim = 2, .data = &x};
    (void)self;
    (void)prefix;
    for (int i = 0; i < huge.ndim; i++) {
        huge.global[i] = huge.local[i] = ls_rank() == 1 ? (int64_t)1 << 40 : 1;
    }
    return visitor->tensor(visitor->self, "huge", &huge);
}

GOLDEN_RANKS(state_that_is_too_large, 2)
{
    static const ls_module_class huge =
        LS_MODULE_CLASS(.name = "huge", .forward = pass_on, .state = show_huge);
    ls_module *m = ls_module_new(sizeof(ls_module), &huge);
    (void)ls_module_add(m, "fc", ls_linear_new(2, 3, NULL));
    SHOW_NULL(ls_ddp_new(m, ls_world(), NULL));
}

GOLDEN(state_of_what_was_freed)
{
    ls_module *linear = ls_linear_new(2, 3, NULL);
    const ls_checkpoint_item item = LS_ITEM("model", linear);
    ls_free(ls_module_param(linear, "weight"));
    SHOW(ls_safetensors_save("freed.safetensors", &item, 1, NULL));
}

GOLDEN(nesting_too_deep)
{
    ls_module *inner = plain();
    for (int i = 0; i < 100; i++) {
        ls_module *outer = plain();
        (void)ls_module_add(outer, "inner", inner);
        if (ls_module_status(outer) < 0) {
            golden_show("ls_module_add(outer, \"inner\", inner)", ls_module_status(outer));
            return;
        }
        inner = outer;
    }
}

GOLDEN(layers)
{
    SHOW_NULL(ls_linear_new(0, 10, NULL));
    SHOW_NULL(ls_linear_new(4, 10, LS_OPTIONS(ls_linear_options, .activation = (ls_activation)9)));
    SHOW_NULL(ls_lstm_new(8, 0, 2));
    SHOW_NULL(ls_gru_new(8, 4, 0));
    SHOW_NULL(ls_embedding_new(10, -1));
    SHOW_NULL(ls_dropout_new(2.0));
    SHOW_NULL(ls_gelu_new((ls_gelu_kind)7));
    SHOW(ls_fill_uniform(ls_zeros(LS_SHAPE(2), LS_INT32), 0, 1));
    ls_tensor *part = ls_zeros(LS_SHAPE(4, 5), LS_FLOAT32);
    SHOW(ls_tensor_set_part(part, LS_SHAPE(4, 8), LS_SHAPE(0, 4)));
    SHOW(ls_tensor_set_part(ls_slice(part, 0, 0, 2), LS_SHAPE(4, 5), LS_SHAPE(0, 0)));
    MUST(ls_fill_uniform(part, 0, 1));
    MUST(ls_data(part) != NULL ? LS_OK : LS_ERR_INVALID);
    SHOW(ls_tensor_set_part(part, LS_SHAPE(8, 5), LS_SHAPE(0, 0)));
}

GOLDEN(running_a_module)
{
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32);
    SHOW_TENSOR(ls_forward(ls_linear_new(4, 4, NULL), x));
    SHOW_TENSOR(ls_forward(ls_linear_new(0, 4, NULL), x));
    ls_module *m = plain();
    (void)ls_module_add(m, "a.b", plain());
    SHOW_TENSOR(ls_forward(m, x));
}

static ls_status give_nothing(ls_module *self, ls_tensor *const *inputs, int input_count,
                              ls_tensor **outputs, int output_count)
{
    (void)self;
    (void)inputs;
    (void)outputs;
    return input_count == output_count ? LS_OK
                                       : ls_fail(LS_ERR_INVALID, "giver: %d inputs for %d outputs",
                                                 input_count, output_count);
}

GOLDEN(running_a_module_with_many_inputs)
{
    static const ls_module_class giver_class =
        LS_MODULE_CLASS(.name = "giver", .forward_many = give_nothing);
    ls_tensor *x[2] = {ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32), NULL}, *y[2];
    ls_module *giver = ls_module_new(sizeof *giver, &giver_class);
    SHOW(ls_forward_many(giver, NULL, 1, y, 1));
    SHOW(ls_forward_many(giver, x, 0, y, 1));
    SHOW(ls_forward_many(giver, x, 2, y, 2));
    SHOW(ls_forward_many(giver, x, 2, y, 1));
    SHOW(ls_forward_many(plain(), x, 2, y, 1));
}

static ls_status see_gradient(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)arg, (void)t, (void)grad;
    return LS_OK;
}

GOLDEN(hooks)
{
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(2, 3), LS_FLOAT32), true);
    ls_tensor *y = ls_exp(x), *z = ls_exp(x);
    SHOW_NULL(ls_grad_hook_new(x, NULL, NULL));
    SHOW_NULL(ls_grad_hook_new(ls_detach(y), see_gradient, NULL));
    SHOW_NULL(ls_grad_hook_new(ls_slice(y, 0, 0, 1), see_gradient, NULL));
    (void)ls_backward(ls_sum(z));
    SHOW_NULL(ls_grad_hook_new(z, see_gradient, NULL));
    SHOW_NULL(ls_forward_hook_new(NULL, NULL, NULL));
    SHOW_NULL(ls_forward_pre_hook_new(plain(), NULL, NULL));
    SHOW(ls_backward_weighted(ls_mean(x), 2));
}

GOLDEN(losses_of_modules)
{
    SHOW(ls_module_set_loss(NULL, NULL));
    SHOW(ls_module_set_loss(plain(), ls_ones(LS_SHAPE(2, 3), LS_FLOAT32)));
    SHOW_TENSOR(ls_module_loss(NULL));
}

GOLDEN(parts_by_name)
{
    ls_module *net = ls_sequential_new((ls_module *[]){ls_linear_new(2, 3, NULL)}, 1);
    SHOW_NULL(ls_module_child(net, NULL));
    SHOW_NULL(ls_module_child(net, "1.fc"));
    SHOW_NULL(ls_module_buffer(net, "0.weight"));
    SHOW_NULL(ls_module_param(net, "0"));
}

static ls_tensor *within; /* what a module made on the way to its result */

static ls_tensor *show_off(ls_module *self, ls_tensor *x)
{
    (void)self;
    within = ls_exp(x);
    return ls_relu(within);
}

GOLDEN(looking_into_a_module_after_backward)
{
    static const ls_module_class open_class = LS_MODULE_CLASS(.name = "open", .forward = show_off);
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(2, 3), LS_FLOAT32), true);
    ls_tensor *loss = ls_mean(ls_forward(ls_module_new(sizeof(ls_module), &open_class), x));
    SHOW(ls_backward(loss));
    SHOW_TENSOR(within);
}

GOLDEN(freeing_a_part)
{
    ls_module *owner = plain(), *part = plain();
    (void)ls_module_add(owner, "part", part);
    ls_module_free(part);
}

static ls_status take(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)self;
    (void)name;
    (void)tensor;
    return LS_OK;
}

static ls_status take_int(void *self, const char *name, int64_t *value)
{
    (void)self;
    (void)name;
    (void)value;
    return LS_OK;
}

static ls_status take_float(void *self, const char *name, double *value)
{
    (void)self;
    (void)name;
    (void)value;
    return LS_OK;
}

GOLDEN(state)
{
    char prefix[300];
    static const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .tensor = take, .int64 = take_int, .float64 = take_float};
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    memset(prefix, 'x', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    SHOW(ls_module_state(net, "net", NULL));
    SHOW(ls_module_state(net, prefix, &visitor));
    SHOW(ls_optim_state(optim, "optim", NULL));
    SHOW(ls_runtime_state(ls_runtime_current(), "random", NULL));
    SHOW(ls_runtime_state(NULL, "random", &visitor));
    SHOW(ls_runtime_state(ls_runtime_current(), prefix, &visitor));
}

GOLDEN(state_under_a_name_that_is_too_long)
{
    static char prefix[5000];
    static const ls_state_visitor visitor = {
        .size = sizeof(ls_state_visitor), .tensor = take, .int64 = take_int, .float64 = take_float};
    memset(prefix, 'x', sizeof prefix - 1);
    SHOW(ls_module_state(ls_linear_new(2, 2, NULL), prefix, &visitor));
}

GOLDEN(more_wrapped_modules_than_one_pass_takes)
{
    ls_tensor *sum = ls_zeros(LS_SHAPE(1, 1), LS_FLOAT32);
    for (int i = 0; i < 65; i++) {
        ls_module *net = ls_ddp_new(ls_linear_new(1, 1, NULL), ls_world(), NULL);
        sum = ls_add(sum, ls_forward(net, ls_ones(LS_SHAPE(1, 1), LS_FLOAT32)));
    }
    SHOW(ls_backward(ls_mean(sum)));
}

GOLDEN_BARE(a_module_that_is_null)
{
    SHOW(ls_module_status(NULL));
}

GOLDEN_BARE(an_optimizer_of_a_former_runtime)
{
    MUST(ls_init(NULL));
    ls_optim *optim = ls_sgd_new(ls_linear_new(2, 2, NULL), NULL);
    MUST(ls_finalize());
    MUST(ls_init(NULL));
    SHOW(ls_optim_step(optim));
    MUST(ls_finalize());
}

/* ---- optimizers ------------------------------------------------------------------------------ */

static ls_module *with_gradient(float value)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_tensor *x = ls_full(LS_SHAPE(1, 2), LS_FLOAT32, value);
    MUST(ls_backward(ls_mean(ls_forward(net, x))));
    return net;
}

GOLDEN(schedules_without_their_steps)
{
    ls_optim *optim = ls_sgd_new(ls_linear_new(2, 2, NULL), NULL);
    const ls_schedule_options *o = LS_OPTIONS(ls_schedule_options, .kind = LS_SCHEDULE_COSINE);
    ls_optim_set_lr(optim, ls_schedule_lr(0, o));
    golden_show("ls_schedule_lr(0, &cosine_without_total)", ls_error_status());
    SHOW(ls_optim_step(optim));
    (void)ls_schedule_lr(0, LS_OPTIONS(ls_schedule_options, .kind = (ls_schedule_kind)7));
    golden_show("ls_schedule_lr(0, &of_kind_7)", ls_error_status());
}

GOLDEN(making_optimizers)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    SHOW_NULL(ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .lr = -1)));
    SHOW_NULL(ls_sgd_new(net, LS_OPTIONS(ls_sgd_options, .nesterov = true)));
    SHOW_NULL(ls_adam_new(net, LS_OPTIONS(ls_adam_options, .beta1 = 1)));
    SHOW_NULL(ls_adamw_new(plain(), NULL));
    SHOW_NULL(ls_adamw_new(NULL, NULL));
    SHOW_NULL(ls_rmsprop_new(net, LS_OPTIONS(ls_rmsprop_options, .alpha = -0.5)));
    ls_optim *optim = ls_rmsprop_new(net, NULL);
    SHOW(ls_optim_add_module(optim, "", ls_linear_new(2, 2, NULL)));
    SHOW(ls_optim_add_module(optim, "critic", NULL));
    SHOW(ls_optim_add_module(optim, "critic", ls_linear_new(2, 2, NULL)));
    SHOW(ls_optim_add_module(optim, "critic", ls_linear_new(2, 2, NULL)));
    SHOW(ls_optim_step(optim));
    SHOW(ls_optim_add_module(optim, "late", ls_linear_new(2, 2, NULL)));
}

static bool select_none(void *arg, const char *name, const ls_tensor *param)
{
    (void)arg, (void)name, (void)param;
    return false;
}

GOLDEN(groups_of_parameters)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    SHOW(ls_optim_add_group(NULL, ls_select_vectors, NULL, NULL));
    SHOW(ls_optim_add_group(optim, NULL, NULL, NULL));
    SHOW(ls_optim_add_group(optim, select_none, NULL, NULL));
    SHOW(ls_optim_add_group(optim, ls_select_vectors, NULL,
                            LS_OPTIONS(ls_optim_group_options, .lr_scale = -1)));
    SHOW(ls_optim_add_group(optim, ls_select_vectors, NULL,
                            LS_OPTIONS(ls_optim_group_options, .weight_decay = -2)));
    MUST(ls_optim_add_group(optim, ls_select_vectors, NULL, NULL));
    SHOW(ls_optim_add_group(optim, ls_select_vectors, NULL, NULL));
    MUST(ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(1, 2), LS_FLOAT32)))));
    MUST(ls_optim_step(optim));
    SHOW(ls_optim_add_group(optim, ls_select_vectors, NULL, NULL));
}

GOLDEN(stepping)
{
    SHOW(ls_optim_step(NULL));
    ls_module *net = with_gradient(1);
    ls_optim *optim = ls_sgd_new(net, NULL);
    ls_module_free(net);
    SHOW(ls_optim_step(optim));
}

GOLDEN(clipping)
{
    double norm;
    SHOW(ls_clip_grad_norm(with_gradient(1), -1, NULL, &norm));
    SHOW(ls_clip_grad_norm(with_gradient(NAN), 1, NULL, &norm));
    SHOW(ls_clip_grad_norm(
        with_gradient(NAN), 1,
        LS_OPTIONS(ls_clip_grad_norm_options, .group = ls_world(), .replicated = ls_select_vectors),
        &norm));
    SHOW(ls_clip_grad_norm(with_gradient(1), 1,
                           LS_OPTIONS(ls_clip_grad_norm_options, .replicated = ls_select_vectors),
                           &norm));
}

/* ---- ddp in a world of one ------------------------------------------------------------------- */

GOLDEN(wrapping)
{
    ls_module *owner = plain(), *part = ls_linear_new(2, 2, NULL);
    (void)ls_module_add(owner, "part", part);
    SHOW_NULL(ls_ddp_new(NULL, ls_world(), NULL));
    SHOW_NULL(ls_ddp_new(ls_linear_new(0, 2, NULL), ls_world(), NULL));
    SHOW_NULL(ls_ddp_new(part, NULL, NULL));
    SHOW_NULL(ls_ddp_new(part, ls_world(), NULL));
    SHOW_NULL(ls_ddp_new(plain(), ls_world(), NULL));
    ls_module *shared = ls_linear_new(2, 2, NULL), *twice = plain(), *wrapped = NULL;
    ls_param params[2];
    (void)ls_module_params(shared, params, 2);
    (void)ls_module_add_param(twice, "w", params[0].value);
    wrapped = ls_ddp_new(shared, ls_world(), NULL);
    SHOW_NULL(ls_ddp_new(twice, ls_world(), NULL));
    SHOW_NULL(ls_ddp_new(wrapped, ls_world(), NULL));
    ls_ddp_stats stats = {.size = sizeof stats};
    SHOW(ls_ddp_get_stats(owner, &stats));
    stats.size = 0;
    SHOW(ls_ddp_get_stats(wrapped, &stats));
    SHOW(ls_replicas_identical(wrapped, ls_world(), NULL, NULL));
}

GOLDEN(structs_of_an_impossible_size)
{
    ls_module *net = plain();
    float one = 1.0f;
    SHOW_NULL(ls_sgd_new(net, &(ls_sgd_options){.lr = 0.5}));
    SHOW_NULL(ls_sgd_new(net, &(ls_sgd_options){.size = 4, .lr = 0.5}));
    SHOW_TENSOR(ls_conv2d(NULL, NULL, NULL, &(ls_conv2d_options){.groups = 2}));
    SHOW(ls_all_reduce(ls_world(), &one, &one, 1, LS_FLOAT32, LS_SUM,
                       &(ls_collective_options){.timeout_ms = 1000}, NULL));
    SHOW(ls_options_defaults("ls_sdg_options", NULL));
    SHOW(ls_options_defaults("ls_sgd_options", NULL));
    SHOW(ls_options_defaults("ls_sgd_options", &(ls_sgd_options){0}));
    SHOW(ls_group_get_counters(NULL, NULL));
    SHOW(ls_reducer_get_stats(NULL, NULL));
    SHOW(ls_module_state(net, "", &(ls_state_visitor){0}));
    SHOW(ls_runtime_state(NULL, "", NULL));
}

static ls_status one_backward(ls_module *net)
{
    return ls_backward(ls_mean(ls_forward(net, ls_ones(LS_SHAPE(1, 2), LS_FLOAT32))));
}

GOLDEN(a_step_without_synchronisation)
{
    ls_module *net = ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    {
        LS_NO_SYNC(net);
        MUST(one_backward(net));
    }
    SHOW(ls_optim_step(optim));
}

GOLDEN(a_layer_added_after_wrapping)
{
    ls_module *layers[] = {ls_linear_new(2, 2, NULL)};
    ls_module *inner = ls_sequential_new(layers, 1);
    ls_module *net = ls_ddp_new(inner, ls_world(), NULL);
    (void)ls_module_add(inner, "1", ls_linear_new(2, 2, NULL));
    SHOW(one_backward(net));
}

GOLDEN(unwrapped_within_another_module)
{
    ls_module *layers[] = {ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL)};
    MUST(ls_module_status(ls_sequential_new(layers, 1)));
    SHOW_NULL(ls_ddp_unwrap(layers[0]));
}

GOLDEN(layers_that_cannot_be)
{
    SHOW_NULL(ls_sequential_new(NULL, 3));
    SHOW_NULL(ls_conv2d_new(1, 1, 3, LS_OPTIONS(ls_conv2d_layer_options, .stride = 0)));
    SHOW_NULL(ls_conv1d_new(1, 1, 3, LS_OPTIONS(ls_conv1d_layer_options, .padding = -1)));
    SHOW_NULL(ls_linear_new((int64_t)1 << 31, (int64_t)1 << 31, NULL));
}

GOLDEN(thawed_after_wrapping)
{
    ls_module *inner = ls_linear_new(2, 2, NULL);
    ls_param params[2];
    (void)ls_module_params(inner, params, 2);
    (void)ls_set_requires_grad(params[0].value, false);
    ls_module *net = ls_ddp_new(inner, ls_world(), NULL);
    (void)ls_set_requires_grad(params[0].value, true);
    SHOW(one_backward(net));
}

GOLDEN(weighted_and_plain_in_one_step)
{
    ls_module *net = ls_ddp_new(ls_linear_new(2, 2, NULL), ls_world(), NULL);
    {
        LS_NO_SYNC(net);
        MUST(one_backward(net));
    }
    ls_tensor *x = ls_ones(LS_SHAPE(1, 2), LS_FLOAT32);
    SHOW(ls_backward_weighted(ls_mean(ls_forward(net, x)), 2));
}

/* ---- the reducer ----------------------------------------------------------------------------- */

static ls_reducer *reducer(void)
{
    static ls_reducer_param params[] = {{.name = "w", .count = 4}, {.name = "b", .count = 2}};
    ls_reducer *r = NULL;
    MUST(ls_reducer_new(ls_world(), params, 2, LS_OPTIONS(ls_reducer_options, .name = "mine"), &r));
    return r;
}

GOLDEN(making_reducers)
{
    ls_reducer *r = NULL;
    ls_reducer_param nameless = {.count = 4}, whole = {.name = "w", .count = 4, .dtype = LS_INT32};
    SHOW(ls_reducer_new(NULL, NULL, 0, NULL, &r));
    SHOW(ls_reducer_new(ls_world(), &nameless, 1, NULL, &r));
    SHOW(ls_reducer_new(ls_world(), &whole, 1, NULL, &r));
    SHOW(ls_reducer_new(ls_world(), &whole, 1, LS_OPTIONS(ls_reducer_options, .param_bytes = 8),
                        &r));
}

GOLDEN(using_reducers)
{
    ls_reducer *r = reducer();
    ls_reducer_stats stats = {.size = 0};
    SHOW(ls_reducer_begin(NULL, NULL));
    SHOW(ls_reducer_wait(NULL));
    SHOW(ls_reducer_zero(NULL));
    SHOW(ls_reducer_get_stats(r, &stats));
    SHOW(ls_reducer_begin(r, LS_OPTIONS(ls_reducer_begin_options, .weighted = true, .weight = -1)));
    MUST(ls_reducer_begin(r, NULL));
    SHOW(ls_reducer_begin(r, NULL));
    SHOW(ls_reducer_zero(r));
    SHOW(ls_reducer_ready(r, 2, NULL));
    MUST(ls_reducer_ready(r, 0, NULL));
    SHOW(ls_reducer_ready(r, 0, NULL));
    SHOW(ls_reducer_wait(r));
}

GOLDEN(freed_before_wait)
{
    ls_reducer *r = reducer();
    MUST(ls_reducer_begin(r, NULL));
    SHOW(ls_reducer_free(r));
}

GOLDEN(a_weight_that_is_infinite)
{
    SHOW(ls_reducer_begin(
        reducer(), LS_OPTIONS(ls_reducer_begin_options, .weighted = true, .weight = INFINITY)));
}
