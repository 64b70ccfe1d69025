/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers against PyTorch 2.13. The numbers below are the output of
 *
 *     import math, torch
 *     CASES = [
 *         ("sgd", torch.optim.SGD, dict(lr=0.1)),
 *         ("momentum", torch.optim.SGD, dict(lr=0.05, momentum=0.9)),
 *         ("dampening", torch.optim.SGD, dict(lr=0.05, momentum=0.8, dampening=0.3,
 *                                             weight_decay=0.1)),
 *         ("nesterov", torch.optim.SGD, dict(lr=0.05, momentum=0.9, weight_decay=0.01,
 *                                            nesterov=True)),
 *         ("adam", torch.optim.Adam, dict(lr=0.01)),
 *         ("adam_decay", torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6,
 *                                               weight_decay=0.1)),
 *         ("adamw", torch.optim.AdamW, dict()),
 *         ("adamw_gpt", torch.optim.AdamW, dict(lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)),
 *         ("rmsprop", torch.optim.RMSprop, dict()),
 *         ("rmsprop_momentum", torch.optim.RMSprop, dict(lr=0.02, alpha=0.9, eps=1e-6,
 *                                                        weight_decay=0.1, momentum=0.8)),
 *         ("rmsprop_centered", torch.optim.RMSprop, dict(lr=0.01, alpha=0.8, centered=True)),
 *         ("rmsprop_both", torch.optim.RMSprop, dict(lr=0.005, alpha=0.95, weight_decay=0.01,
 *                                                    momentum=0.9, centered=True)),
 *     ]
 *     for name, make, options in CASES:
 *         w = torch.nn.Parameter(torch.tensor([0.1 * i - 0.3 for i in range(6)]))
 *         b = torch.nn.Parameter(torch.tensor([0.5, -0.25]))
 *         optim = make([w, b], **options)
 *         for step in range(20):
 *             w.grad = torch.tensor([math.sin(0.7 * i + 1.3 * step) * (i + 1) / 6
 *                                    for i in range(6)])
 *             b.grad = None if step % 3 == 1 else torch.tensor([math.cos(step + i)
 *                                                               for i in range(2)])
 *             if step == 10:
 *                 optim.param_groups[0]["lr"] *= 0.5
 *             optim.step()
 *         print(name, [*w.tolist(), *b.tolist()])
 *
 * b has no gradient in every third step: it must be left alone, its momentum and step count too.
 */
#include "optim_net.h"

#include "autograd/param.h"
#include "says.h"
#include "tensor/tensor.h"

static void check_twenty_steps(net *n, ls_optim *o, const float expected[8])
{
    CHECK(o != NULL);
    run_steps(n, o, 0, 20);
    check_values(n, expected);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

TEST(sgd_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n, ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.1)),
                       (const float[]){-0.297514439f, -0.206942618f, -0.12338651f, -0.0338134654f,
                                       0.0743226111f, 0.20358631f, 0.491369605f, -0.220202431f});
}

TEST(sgd_with_momentum_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(
        n, ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9)),
        (const float[]){-0.33817485f, -0.29561004f, -0.204855114f, -0.0226402469f, 0.231468007f,
                        0.475285918f, 0.413638294f, -0.168241546f});
}

TEST(sgd_with_dampening_and_decay_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n,
                       ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.8,
                                                       .dampening = 0.3, .weight_decay = 0.1)),
                       (const float[]){-0.255708814f, -0.206469432f, -0.144741088f, -0.0410049595f,
                                       0.108850084f, 0.274624556f, 0.346833766f, -0.214605361f});
}

TEST(sgd_with_nesterov_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n,
                       ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9,
                                                       .weight_decay = 0.01, .nesterov = true)),
                       (const float[]){-0.319010347f, -0.277953416f, -0.198334277f, -0.0361392982f,
                                       0.197683766f, 0.432805479f, 0.407454073f, -0.156482324f});
}

TEST(adam_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n, ls_adam_new(&n->base, LS_OPTIONS(ls_adam_options, .lr = 0.01)),
                       (const float[]){-0.321922928f, -0.232769251f, -0.124517426f, -0.0106643252f,
                                       0.106436275f, 0.233993992f, 0.486782193f, -0.250297636f});
}

TEST(adam_with_decay_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(
        n,
        ls_adam_new(&n->base, LS_OPTIONS(ls_adam_options, .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95,
                                         .eps = 1e-6, .weight_decay = 0.1)),
        (const float[]){-0.251651675f, -0.2280927f, -0.129486308f, -0.0161912255f, 0.103590265f,
                        0.2479202f, 0.466976941f, -0.245614856f});
}

TEST(adamw_with_default_options_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n, ls_adamw_new(&n->base, NULL),
                       (const float[]){-0.302146912f, -0.203246564f, -0.102436408f, -0.00106628006f,
                                       0.10062854f, 0.203369021f, 0.49862811f, -0.250004709f});
}

TEST(adamw_takes_pytorchs_steps)
{
    net *n = start();
    check_twenty_steps(n,
                       ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02,
                                                         .beta2 = 0.95, .weight_decay = 0.1)),
                       (const float[]){-0.333676368f, -0.258078903f, -0.145094395f, -0.0207843222f,
                                       0.109537043f, 0.260269403f, 0.464009434f, -0.245620191f});
}

TEST(rmsprop_takes_pytorchs_steps)
{
    static const struct {
        ls_rmsprop_options options;
        float expected[8];
    } cases[] = {{{.size = sizeof(ls_rmsprop_options), .lr = 0.01, .alpha = 0.99, .eps = 1e-8},
                  {-0.35063082f, -0.299980253f, -0.169216648f, -0.0409758091f, 0.0677884519f,
                   0.324135542f, 0.472869396f, -0.261994541f}},
                 {{.size = sizeof(ls_rmsprop_options),
                   .lr = 0.02,
                   .alpha = 0.9,
                   .eps = 1e-6,
                   .weight_decay = 0.1,
                   .momentum = 0.8},
                  {-0.044125732f, -0.335930526f, -0.220140263f, -0.053349115f, 0.0606055371f,
                   0.549068511f, 0.356349438f, -0.274996996f}},
                 {{.size = sizeof(ls_rmsprop_options),
                   .lr = 0.01,
                   .alpha = 0.8,
                   .eps = 1e-8,
                   .centered = true},
                  {-0.311482519f, -0.225616351f, -0.119298927f, -0.0125097949f, 0.0885320306f,
                   0.23102054f, 0.492952287f, -0.253890663f}},
                 {{.size = sizeof(ls_rmsprop_options),
                   .lr = 0.005,
                   .alpha = 0.95,
                   .eps = 1e-8,
                   .weight_decay = 0.01,
                   .momentum = 0.9,
                   .centered = true},
                  {-0.253367156f, -0.410981148f, -0.230859786f, -0.0492180288f, 0.0882205144f,
                   0.467825681f, 0.440638155f, -0.279133201f}}};
    for (int i = 0; i < 4; i++) {
        net *n = start();
        check_twenty_steps(n, ls_rmsprop_new(&n->base, &cases[i].options), cases[i].expected);
    }
}

/* Of equal gradients the variance is 0, and rounding would make it negative. */
TEST(centered_rmsprop_of_equal_gradients_stays_finite)
{
    net *n = start();
    ls_optim *o = ls_rmsprop_new(
        &n->base, LS_OPTIONS(ls_rmsprop_options, .alpha = 0.3, .eps = 1e-3, .centered = true));
    float values[8];
    for (int i = 0; i < 60; i++) {
        give_gradients(n, 0);
        CHECK_OK(ls_optim_step(o));
        ls_optim_zero_grad(o);
    }
    values_of(n, values);
    for (int i = 0; i < 8; i++) {
        CHECK(isfinite(values[i]));
    }
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

TEST(senseless_options_are_refused_by_name)
{
    net *n = start();
    CHECK(!ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = -1.0)));
    CHECK(strstr(ls_error_message(), "lr is -1") != NULL);
    CHECK(!ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.1, .nesterov = true)));
    CHECK(strstr(ls_error_message(), "nesterov") != NULL);
    CHECK(!ls_adam_new(&n->base, LS_OPTIONS(ls_adam_options, .beta1 = 1.0)));
    CHECK(strstr(ls_error_message(), "beta1") != NULL);
    CHECK(!ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = NAN)));
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

TEST(a_step_after_the_first_allocates_nothing)
{
    net *n = start();
    ls_optim *o = ls_adamw_new(&n->base, NULL);
    run_steps(n, o, 0, 3);
    uint64_t before = ls__tensor_allocations(ls_runtime_current());
    run_steps(n, o, 3, 9);
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()), before);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- groups of parameters -------------------------------------------------------------------- */

/* The script with optim = make([{"params": [w]}, {"params": [b], "lr": lr / 2, "weight_decay": 0}],
 * …), and all rates halved in step 10. */
TEST(groups_take_pytorchs_steps)
{
    net *n = start();
    ls_optim *o =
        ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02, .weight_decay = 0.1));
    CHECK_OK(
        ls_optim_add_group(o, ls_select_vectors, NULL,
                           LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5, .weight_decay = 0)));
    check_twenty_steps(n, o,
                       (const float[]){-0.334002852f, -0.258060515f, -0.144870311f, -0.0207272787f,
                                       0.109745368f, 0.260457009f, 0.486782223f, -0.250297636f});
    n = start();
    o = ls_sgd_new(&n->base,
                   LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9, .weight_decay = 0.1));
    CHECK_OK(
        ls_optim_add_group(o, ls_select_vectors, NULL,
                           LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5, .weight_decay = 0)));
    check_twenty_steps(n, o,
                       (const float[]){-0.220912814f, -0.200731695f, -0.142513722f, -0.0140800597f,
                                       0.168134764f, 0.340222478f, 0.456819147f, -0.20912075f});
}

/* Selects the parameter of this name, and counts the calls. */
typedef struct by_name {
    const char *name;
    int calls;
} by_name;

static bool select_by_name(void *arg, const char *name, const ls_tensor *param)
{
    by_name *by = arg;
    by->calls++;
    return ls_tensor_status(param) == LS_OK && strcmp(name, by->name) == 0;
}

TEST(a_group_with_the_defaults_changes_nothing)
{
    net *n = start();
    by_name w = {"w", 0};
    float want[8], got[8];
    ls_optim *o = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    run_steps(n, o, 0, 5);
    values_of(n, want);
    ls_optim_free(o);
    ls_module_free(&n->base);
    n = make_net();
    o = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_OK(ls_optim_add_group(o, select_by_name, &w, NULL));
    CHECK_INT(w.calls, 2);
    run_steps(n, o, 0, 5);
    values_of(n, got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

TEST(a_senseless_group_is_refused_by_name_and_changes_nothing)
{
    net *n = start();
    by_name w = {"w", 0}, none = {"fc1", 0};
    ls_optim *o = ls_adamw_new(&n->base, NULL);
    CHECK_STATUS(ls_optim_add_group(NULL, ls_select_vectors, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_optim_add_group(o, NULL, NULL, NULL), LS_ERR_INVALID);
    CHECK_STATUS(ls_optim_add_group(o, select_by_name, &none, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "none of the 2 parameters of this AdamW is selected");
    const ls_optim_group_options *bad[] = {LS_OPTIONS(ls_optim_group_options, .lr_scale = -1),
                                           LS_OPTIONS(ls_optim_group_options, .lr_scale = NAN),
                                           LS_OPTIONS(ls_optim_group_options, .weight_decay = -0.5),
                                           LS_OPTIONS(ls_optim_group_options, .weight_decay = NAN)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(ls_optim_add_group(o, select_by_name, &w, bad[i]), LS_ERR_INVALID);
    }
    CHECK_INT(o->group_count, 0);
    CHECK_OK(ls_optim_add_group(o, select_by_name, &w, NULL));
    CHECK_STATUS(ls_optim_add_group(o, select_by_name, &w, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "w is in group 1 of this AdamW already");
    CHECK_INT(o->group_count, 1);
    CHECK_INT(o->params[1].group, 0);
    run_steps(n, o, 0, 1);
    CHECK_STATUS(ls_optim_add_group(o, ls_select_vectors, NULL, NULL), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "has stepped already");
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

/* ---- several modules ------------------------------------------------------------------------ */

/* The parameters of the script, each in a module of its own. */
typedef struct two_modules {
    ls_module *w, *b;
} two_modules;

static ls_module *holding(const char *name, ls_tensor *value)
{
    ls_module *m = ls_module_new(sizeof *m, &net_class);
    (void)ls_module_add_param(m, name, value);
    return m;
}

static two_modules apart(const net *n)
{
    return (two_modules){holding("w", ls_clone(n->w)), holding("b", ls_clone(n->b))};
}

TEST(one_optimizer_steps_two_modules_as_pytorchs_does)
{
    net *n = start();
    two_modules h = apart(n);
    net both = {.w = ls_module_param(h.w, "w"), .b = ls_module_param(h.b, "b")};
    ls_optim *o = ls_adamw_new(h.w, LS_OPTIONS(ls_adamw_options, .lr = 0.02, .weight_decay = 0.1));
    CHECK_OK(ls_optim_add_module(o, "bias", h.b));
    by_name b = {"bias.b", 0};
    CHECK_OK(
        ls_optim_add_group(o, select_by_name, &b,
                           LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5, .weight_decay = 0)));
    CHECK_INT(b.calls, 2);
    run_steps(&both, o, 0, 20);
    check_values(&both, (const float[]){-0.334002852f, -0.258060515f, -0.144870311f, -0.0207272787f,
                                        0.109745368f, 0.260457009f, 0.486782223f, -0.250297636f});
    ls_optim_free(o);
    ls_module_free(h.w);
    ls_module_free(h.b);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

TEST(a_parameter_that_two_modules_share_is_stepped_once)
{
    net *n = start();
    ls_module *other = holding("tied", n->w);
    ls_optim *o = ls_sgd_new(&n->base, NULL);
    CHECK_OK(ls_optim_add_module(o, "other", other));
    CHECK_INT(o->count, 2);
    CHECK_STATUS(ls_optim_add_module(o, NULL, other), LS_ERR_INVALID);
    CHECK_STATUS(ls_optim_add_module(NULL, "x", other), LS_ERR_INVALID);
    ls_optim_free(o);
    ls_module_free(other);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

/* Of servers only the mark that their wrapper sets is needed. */
TEST(an_optimizer_of_which_servers_step_a_part_alone_is_refused)
{
    net *n = start(), *other = make_net();
    ls_module *ddp = ls_ddp_new(&n->base, ls_world(), NULL);
    ls_optim *o = ls_sgd_new(ddp, NULL);
    ls__observer *observer = ls__param_observer(n->w);
    CHECK_OK(ls_optim_add_module(o, "other", &other->base));
    observer->elsewhere = true;
    give_gradients(other, 0);
    CHECK_STATUS(ls_optim_step(o), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "ls_optim_step: servers make steps of this %s, and parameter %s does not belong to "
               "the same wrapper; give its module an optimizer of its own");
    observer->elsewhere = false;
    ls_optim_free(o);
    ls_module_free(ddp);
    ls_module_free(&other->base);
    CHECK_OK(ls_finalize());
}

/* ---- steps in several calls ------------------------------------------------------------------ */

/* Updates both halves of each parameter (the first half of w ends within a row), in one call or in
 * one for each half. */
static void step_halves(ls_optim *o, bool in_two_calls)
{
    const ls__optim_range halves[] = {{0, 0, 2}, {1, 1, 1}, {0, 2, 4}, {1, 0, 1}};
    CHECK_OK(ls__optim_begin(o));
    if (in_two_calls) {
        CHECK_OK(ls__optim_step_ranges(o, halves, 2));
        CHECK_OK(ls__optim_step_ranges(o, halves + 2, 2));
    } else {
        CHECK_OK(ls__optim_step_ranges(o, halves, 4));
    }
}

static ls_optim *make_optim(net *n, int kind)
{
    switch (kind) {
    case 0:
        return ls_sgd_new(&n->base, NULL);
    case 1:
        return ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.05, .momentum = 0.9));
    case 2:
        return ls_adam_new(&n->base, LS_OPTIONS(ls_adam_options, .weight_decay = 0.1));
    case 3:
        return ls_rmsprop_new(&n->base,
                              LS_OPTIONS(ls_rmsprop_options, .momentum = 0.9, .centered = true));
    default:
        return ls_adamw_new(&n->base, NULL);
    }
}

static void compare_halves(int kind, bool in_two_calls)
{
    net *whole = make_net(), *halves = make_net();
    ls_optim *of_whole = make_optim(whole, kind), *of_halves = make_optim(halves, kind);
    for (int step = 0; step < 12; step++) {
        float want[8], got[8];
        give_gradients(whole, step);
        give_gradients(halves, step);
        CHECK_OK(ls_optim_step(of_whole));
        step_halves(of_halves, in_two_calls);
        values_of(whole, want);
        values_of(halves, got);
        CHECK(memcmp(got, want, sizeof want) == 0);
        for (int i = 0; i < 2; i++) {
            CHECK_INT(of_halves->params[i].steps, of_whole->params[i].steps);
        }
        ls_optim_zero_grad(of_whole);
        ls_optim_zero_grad(of_halves);
    }
    CHECK_INT(of_whole->params[1].steps, 8); /* b has no gradient in every third step */
    ls_optim_free(of_whole);
    ls_optim_free(of_halves);
    ls_module_free(&whole->base);
    ls_module_free(&halves->base);
}

TEST(stepping_two_halves_of_each_parameter_equals_stepping_it_whole)
{
    CHECK_OK(ls_init(NULL));
    for (int kind = 0; kind < 5; kind++) {
        compare_halves(kind, false);
        compare_halves(kind, true);
    }
    CHECK_OK(ls_finalize());
}

TEST_MAIN
