/* SPDX-License-Identifier: Apache-2.0 */
/* A function of the user that returns a positive number has neither succeeded nor failed: every
 * kind of them becomes an error that names the function. */
#include "says.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

static ls_status given; /* what the functions return */

static void check_names(ls_status status, const char *what)
{
    char start[160];
    snprintf(start, sizeof start, "%s", what);
    CHECK_STATUS(status, LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), start);
    snprintf(start, sizeof start, "returned %d", (int)given);
    CHECK_CONTAINS(ls_error_message(), start);
    CHECK_SAYS(ls_error_message(), "%s returned %d, which is neither LS_OK nor an error; return "
                                   "LS_OK, or a negative ls_status");
}

/* 5 is no value of ls_status; 1 is LS_IN_PROGRESS, and no function of a user may return that. */
static void for_each_number(void (*check)(void))
{
    CHECK_OK(ls_init(NULL));
    for (given = (ls_status)5; given > 0; given = given == 5 ? LS_IN_PROGRESS : LS_OK) {
        LS_SCOPE;
        check();
    }
    CHECK_OK(ls_finalize());
}

/* ---- operations and hooks ------------------------------------------------------------------- */

static ls_status doubles(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                         int m, void *arg)
{
    (void)call, (void)n, (void)m;
    out[0] = ls_scale(in[0], 2.0);
    return arg != NULL ? given : LS_OK;
}

static ls_status doubles_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                  ls_tensor **din, int n)
{
    (void)call, (void)m, (void)n;
    din[0] = ls_scale(dout[0], 2.0);
    return given;
}

static const ls_function doubling =
    LS_FUNCTION(.name = "doubling", .forward = doubles, .backward = doubles_backward);

static ls_status grad_hook(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)arg, (void)t, (void)grad;
    return given;
}

static ls_status forward_hook(void *arg, ls_module *module, ls_tensor **inputs, int input_count,
                              ls_tensor **outputs, int output_count)
{
    (void)arg, (void)module, (void)inputs, (void)input_count, (void)outputs, (void)output_count;
    return given;
}

static ls_status segment(ls_tensor *const *in, int n, ls_tensor **out, int m, void *arg)
{
    (void)n, (void)m, (void)arg;
    out[0] = ls_scale(in[0], 2.0);
    return given;
}

static void check_operations(void)
{
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_FLOAT32), *y = NULL;
    CHECK_OK(ls_set_requires_grad(x, true));
    check_names(ls_tensor_status(ls_function_apply(&doubling, x, x)), "forward of \"doubling\"");
    check_names(ls_backward(ls_sum(ls_function_apply(&doubling, x, NULL))),
                "backward of \"doubling\"");
    check_names(ls_recompute_call_many(segment, &x, 1, &y, 1, NULL),
                "the function of ls_recompute_call_many");
    ls_hook *hook = ls_grad_hook_new(x, grad_hook, NULL);
    check_names(ls_backward(ls_sum(ls_scale(x, 2.0))), "gradient hook of a leaf");
    ls_hook_free(hook);
}

TEST(operations_and_hooks_that_return_a_positive_number_fail)
{
    for_each_number(check_operations);
}

/* ---- modules ------------------------------------------------------------------------------- */

static ls_status odd_forward(ls_module *self, ls_tensor *const *in, int n, ls_tensor **out, int m)
{
    (void)self, (void)n, (void)m;
    out[0] = in[0];
    return given;
}

static ls_status odd_state(ls_module *self, const char *prefix, const ls_state_visitor *visitor)
{
    (void)self, (void)prefix, (void)visitor;
    return given;
}

static const ls_module_class odd_class =
    LS_MODULE_CLASS(.name = "odd", .forward_many = odd_forward, .state = odd_state);

static ls_status see(void *self, const char *name, int64_t *value)
{
    (void)name, (void)value;
    return strcmp(self, "int64") == 0 ? given : LS_OK;
}

static ls_status see_float(void *self, const char *name, double *value)
{
    (void)name, (void)value;
    return strcmp(self, "float64") == 0 ? given : LS_OK;
}

static ls_status see_optional(void *self, const char *name, double *value)
{
    (void)name, (void)value;
    return strcmp(self, "optional") == 0 ? given : LS_OK;
}

static ls_status see_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)name, (void)tensor;
    return strcmp(self, "tensor") == 0 ? given : LS_OK;
}

static const ls_state_visitor *visitor_of(const char *which)
{
    static char self[16];
    static const ls_state_visitor visitor = {.size = sizeof visitor,
                                             .self = self,
                                             .tensor = see_tensor,
                                             .int64 = see,
                                             .float64 = see_float,
                                             .optional_float64 = see_optional};
    snprintf(self, sizeof self, "%s", which);
    return &visitor;
}

static void check_modules(void)
{
    ls_tensor *x = ls_ones(LS_SHAPE(1, 2), LS_FLOAT32);
    ls_module *odd = ls_module_new(sizeof *odd, &odd_class);
    check_names(ls_tensor_status(ls_forward(odd, x)), "forward of the odd");
    check_names(ls_module_state(odd, "", visitor_of("none")), "state of the odd");
    CHECK_SAYS(ls_error_message(), "state of the %s");
    ls_module_free(odd);
    ls_module *linear = ls_linear_new(2, 2, NULL);
    check_names(ls_module_state(linear, "net", visitor_of("tensor")),
                "the visitor's function for \"net.weight\"");
    CHECK_SAYS(ls_error_message(), "the visitor's function for \"%s\"");
    CHECK_OK(ls_module_state(linear, "net", visitor_of("none")));
    ls_hook *before = ls_forward_pre_hook_new(linear, forward_hook, NULL);
    check_names(ls_tensor_status(ls_forward(linear, x)), "forward hook of Linear");
    ls_hook_free(before);
    CHECK(ls_forward_hook_new(linear, forward_hook, NULL) != NULL);
    check_names(ls_tensor_status(ls_forward(linear, x)), "forward hook of Linear");
    ls_module_free(linear);
}

TEST(modules_that_return_a_positive_number_fail)
{
    for_each_number(check_modules);
}

/* ---- state --------------------------------------------------------------------------------- */

static ls_status item_state(void *object, const char *prefix, const ls_state_visitor *visitor)
{
    (void)prefix;
    LS_TRY(visitor->int64(visitor->self, "count", object));
    return given;
}

static void check_optim(void)
{
    ls_module *linear = ls_linear_new(2, 2, NULL);
    ls_optim *sgd = ls_sgd_new(linear, LS_OPTIONS(ls_sgd_options, .lr = 0.1));
    check_names(ls_optim_state(sgd, "o", visitor_of("float64")), "the visitor's function for \"o.");
    check_names(ls_optim_state(sgd, "o", visitor_of("int64")),
                "the visitor's function for \"o.step.");
    CHECK_OK(ls_optim_add_group(sgd, ls_select_vectors, NULL, NULL));
    check_names(ls_optim_state(sgd, "o", visitor_of("optional")),
                "the visitor's function for \"o.group.1.lr_scale\"");
    CHECK_OK(ls_optim_state(sgd, "o", visitor_of("none")));
    ls_optim_free(sgd);
    ls_module_free(linear);
}

static void check_state(void)
{
    check_optim();
    check_names(ls_runtime_state(ls_runtime_current(), "r", visitor_of("int64")),
                "the visitor's function for \"r.seed\"");
    char folder[] = "/tmp/lockstep-callbacks-XXXXXX", command[64];
    int64_t count = 3;
    ls_checkpoint *c = NULL;
    const ls_checkpoint_item item = {
        .size = sizeof item, .prefix = "mine", .object = &count, .state = item_state};
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(ls_checkpoint_new(folder, ls_world(), NULL, &c));
    check_names(ls_checkpoint_save(c, 1, &item, 1), "the state function of \"mine\"");
    CHECK_SAYS(ls_error_message(), "the state function of \"%s\"");
    CHECK_OK(ls_checkpoint_free(c));
    snprintf(command, sizeof command, "rm -r %s", folder);
    test_output removed = test_run(command, 30);
    CHECK_INT(removed.status, 0);
    free(removed.text);
}

TEST(state_functions_and_visitors_that_return_a_positive_number_fail)
{
    for_each_number(check_state);
}

/* ---- data ---------------------------------------------------------------------------------- */

static ls_status get(ls_dataset *self, int64_t index, void *x, void *y)
{
    (void)self, (void)index;
    *(float *)x = 0.0f;
    *(int32_t *)y = 0;
    return given;
}

static ls_status get_in_epoch(ls_dataset *self, int64_t epoch, int64_t index, void *x, void *y)
{
    (void)epoch;
    return get(self, index, x, y);
}

static void check_loader(ls_dataset *data, int prefetch)
{
    ls_sampler *sampler =
        ls_sampler_new(data->count, LS_OPTIONS(ls_sampler_options, .batch = 2, .world_size = 1));
    ls_loader *l =
        ls_loader_new(data, sampler, LS_OPTIONS(ls_loader_options, .prefetch = prefetch));
    ls_batch batch = {.size = sizeof batch};
    CHECK(!ls_loader_next(l, &batch));
    check_names(ls_loader_status(l), "the data set's get of sample ");
    ls_loader_free(l);
    ls_sampler_free(sampler);
}

static void check_data(void)
{
    ls_dataset data = LS_DATASET(.count = 4, .x_shape = LS_SCALAR, .y_shape = LS_SCALAR,
                                 .x_dtype = LS_FLOAT32, .y_dtype = LS_INT32, .get = get);
    check_loader(&data, 0);
    check_loader(&data, 2);
    data.get_in_epoch = get_in_epoch;
    check_loader(&data, 0);
}

TEST(data_sets_that_return_a_positive_number_fail)
{
    for_each_number(check_data);
}

TEST_MAIN
