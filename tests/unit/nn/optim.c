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
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "optim/optim.h"
#include "tensor/tensor.h"

#define TOLERANCE 2e-6 /* 20 roundings of values below 1 in float32, on both sides */

typedef struct net {
    ls_module base;
    ls_tensor *w, *b;
} net;

static ls_tensor *net_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class net_class = LS_MODULE_CLASS(.name = "net", .forward = net_forward);

static net *make_net(void)
{
    float w[6], b[2] = {0.5f, -0.25f};
    for (int i = 0; i < 6; i++) {
        w[i] = (float)(0.1 * i - 0.3);
    }
    net *n = ls_module_new(sizeof *n, &net_class);
    n->w = ls_module_add_param(&n->base, "w", ls_from_data(w, LS_SHAPE(2, 3), LS_FLOAT32));
    n->b = ls_module_add_param(&n->base, "b", ls_from_data(b, LS_SHAPE(2), LS_FLOAT32));
    LS_CHECK(ls_module_status(&n->base));
    return n;
}

/* Gives the parameters the gradients of the script: those of a sum of products. */
static void give_gradients(net *n, int step)
{
    float gw[6], gb[2];
    for (int i = 0; i < 6; i++) {
        gw[i] = (float)(sin(0.7 * i + 1.3 * step) * (i + 1) / 6);
    }
    for (int i = 0; i < 2; i++) {
        gb[i] = (float)cos(step + i);
    }
    LS_SCOPE;
    ls_tensor *loss = ls_sum(ls_mul(n->w, ls_from_data(gw, LS_SHAPE(2, 3), LS_FLOAT32)));
    if (step % 3 != 1) {
        ls_tensor *of_b = ls_mul(n->b, ls_from_data(gb, LS_SHAPE(2), LS_FLOAT32));
        loss = ls_add(loss, ls_sum(of_b));
    }
    CHECK(ls_backward(loss) == LS_OK);
}

static void run_steps(net *n, ls_optim *o, int from, int to)
{
    for (int step = from; step < to; step++) {
        give_gradients(n, step);
        if (step == 10) {
            ls_optim_set_lr(o, 0.5 * ls_optim_lr(o));
        }
        CHECK(ls_optim_step(o) == LS_OK);
        ls_optim_zero_grad(o);
        CHECK(ls_grad(n->w) == NULL && ls_grad(n->b) == NULL);
    }
}

static void values_of(net *n, float out[8])
{
    CHECK(ls_copy_out(n->w, out, 6 * sizeof *out) == LS_OK);
    CHECK(ls_copy_out(n->b, out + 6, 2 * sizeof *out) == LS_OK);
}

static void check_values(net *n, const float expected[8])
{
    float got[8];
    values_of(n, got);
    for (int i = 0; i < 8; i++) {
        if (!(fabs((double)got[i] - (double)expected[i]) <= TOLERANCE)) {
            test_fail(__FILE__, __LINE__, "value %d is %.9g, PyTorch has %.9g", i, (double)got[i],
                      (double)expected[i]);
        }
    }
}

static void check_twenty_steps(net *n, ls_optim *o, const float expected[8])
{
    CHECK(o != NULL);
    run_steps(n, o, 0, 20);
    check_values(n, expected);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

static net *start(void)
{
    CHECK(ls_init(NULL) == LS_OK);
    return make_net();
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

/* ---- the state visitor: save all, disturb all, load all ----------------------------------- */

#define FIELDS_MAX 64

typedef struct saved {
    int count, at;
    bool loading, flipping;
    char name[FIELDS_MAX][64];
    double value[FIELDS_MAX][8];
} saved;

static void visit(saved *s, const char *name, int index, double *live)
{
    if (s->flipping) {
        *live = *live == 0.0 ? 3.0 : -*live;
    } else if (s->loading) {
        CHECK(strcmp(name, s->name[s->at]) == 0);
        *live = s->value[s->at][index];
    } else {
        CHECK(s->at < FIELDS_MAX && strlen(name) < 64);
        (void)snprintf(s->name[s->at], sizeof s->name[0], "%s", name);
        s->value[s->at][index] = *live;
    }
}

static ls_status on_tensor(void *self, const char *name, const ls_state_tensor *t)
{
    saved *s = self;
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++) {
        CHECK_INT(t->local[d], t->global[d]);
        CHECK_INT(t->start[d], 0);
        count *= t->local[d];
    }
    CHECK(t->dtype == LS_FLOAT32 && count <= 8);
    for (int i = 0; i < (int)count; i++) {
        double value = (double)((float *)t->data)[i];
        visit(s, name, i, &value);
        ((float *)t->data)[i] = (float)value;
    }
    s->at++;
    return LS_OK;
}

static ls_status on_int64(void *self, const char *name, int64_t *live)
{
    saved *s = self;
    double value = (double)*live;
    visit(s, name, 0, &value);
    *live = (int64_t)value;
    s->at++;
    return LS_OK;
}

static ls_status on_float64(void *self, const char *name, double *live)
{
    saved *s = self;
    visit(s, name, 0, live);
    s->at++;
    return LS_OK;
}

static void walk(saved *s, ls_module *m, ls_optim *o, bool loading, bool flipping)
{
    const ls_state_visitor visitor = {sizeof(ls_state_visitor), s, on_tensor, on_int64, on_float64};
    s->at = 0;
    s->loading = loading;
    s->flipping = flipping;
    CHECK(ls_module_state(m, "model", &visitor) == LS_OK);
    CHECK(ls_optim_state(o, "optim", &visitor) == LS_OK);
    s->count = s->at;
}

static bool has_field(const saved *s, const char *name)
{
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->name[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void check_state_comes_back(net *n, ls_optim *o, int fields)
{
    static saved before, flipped, after;
    run_steps(n, o, 0, 9);
    walk(&before, &n->base, o, false, false);
    CHECK_INT(before.count, fields);
    CHECK(has_field(&before, "model.w") && has_field(&before, "optim.lr"));
    CHECK(has_field(&before, "optim.step.b"));
    float want[8], got[8];
    run_steps(n, o, 9, 20);
    values_of(n, want);

    walk(&flipped, &n->base, o, false, true); /* every field of the live objects changes */
    walk(&flipped, &n->base, o, false, false);
    for (int i = 0; i < before.count; i++) {
        CHECK(memcmp(flipped.value[i], before.value[i], sizeof before.value[i]) != 0);
    }
    walk(&before, &n->base, o, true, false);
    walk(&after, &n->base, o, false, false);
    CHECK(memcmp(after.value, before.value, sizeof before.value) == 0);
    run_steps(n, o, 9, 20); /* the second half again, from the loaded state */
    values_of(n, got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

/* ---- one step against a float64 twin ------------------------------------------------------ */

static double *field(saved *s, const char *name)
{
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->name[i], name) == 0) {
            return s->value[i];
        }
    }
    test_fail(__FILE__, __LINE__, "no field %s", name);
}

static void check_near_twin(const char *what, int64_t step, double got, double want)
{
    if (!(fabs(got - want) <= 2e-6 * fabs(want) + 1e-7)) {
        test_fail(__FILE__, __LINE__, "%s after step %lld is %.9g, want %.9g", what,
                  (long long)step, got, want);
    }
}

/* Kingma & Ba 2015, algorithm 1, of w from the state `was`, which step `t` - 1 left. */
static void check_step_of_w(saved *was, saved *now, int64_t t, int script, bool decoupled)
{
    const double lr = *field(was, "optim.lr"), decay = *field(was, "optim.weight_decay");
    const double b1 = *field(was, "optim.beta1"), b2 = *field(was, "optim.beta2");
    const double correction1 = 1 - pow(b1, (double)t), correction2 = 1 - pow(b2, (double)t);
    for (int i = 0; i < 6; i++) {
        const double p = field(was, "model.w")[i];
        const double raw = (double)(float)(sin(0.7 * i + 1.3 * script) * (i + 1) / 6);
        const double g = decoupled ? raw : raw + decay * p;
        const double m = b1 * field(was, "optim.exp_avg.w")[i] + (1 - b1) * g;
        const double v = b2 * field(was, "optim.exp_avg_sq.w")[i] + (1 - b2) * g * g;
        const double kept = decoupled ? p - lr * decay * p : p;
        const double step = m / correction1 / (sqrt(v / correction2) + 1e-8);
        check_near_twin("exp_avg", t, field(now, "optim.exp_avg.w")[i], m);
        check_near_twin("exp_avg_sq", t, field(now, "optim.exp_avg_sq.w")[i], v);
        check_near_twin("w", t, field(now, "model.w")[i], kept - lr * step);
    }
    CHECK(*field(now, "optim.step.w") == (double)t);
}

/* Steps 1 to 70, then 1000 and a million, to which the state says that training has come. lr 0.1,
 * so that a bias correction of step 60 in step 61 is seen: it changes w by 1 % of lr. */
static void check_steps(net *n, ls_optim *o, bool decoupled)
{
    static saved was, now;
    for (int script = 0; script < 72; script++) {
        walk(&was, &n->base, o, false, false);
        if (script >= 70) {
            *field(&was, "optim.step.w") = script == 70 ? 999 : 999999;
            walk(&was, &n->base, o, true, false);
        }
        const int64_t t = 1 + (int64_t)*field(&was, "optim.step.w");
        give_gradients(n, script);
        CHECK(ls_optim_step(o) == LS_OK);
        ls_optim_zero_grad(o);
        walk(&now, &n->base, o, false, false);
        check_step_of_w(&was, &now, t, script, decoupled);
    }
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

TEST(adam_corrects_its_bias_in_early_and_late_steps)
{
    net *n = start();
    const ls_adam_options *options = LS_OPTIONS(ls_adam_options, .lr = 0.1, .weight_decay = 0.1);
    check_steps(n, ls_adam_new(&n->base, options), false);
}

TEST(adamw_corrects_its_bias_in_early_and_late_steps)
{
    net *n = start();
    const ls_adamw_options *options = LS_OPTIONS(ls_adamw_options, .lr = 0.1, .weight_decay = 0.1);
    check_steps(n, ls_adamw_new(&n->base, options), true);
}

TEST(the_state_of_adamw_comes_back)
{
    net *n = start();
    /* 2 parameters; 5 hyper-parameters; per parameter a step count and two moments */
    check_state_comes_back(n, ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02)),
                           2 + 5 + 2 * 3);
}

TEST(the_state_of_sgd_comes_back)
{
    net *n = start();
    check_state_comes_back(n,
                           ls_sgd_new(&n->base, LS_OPTIONS(ls_sgd_options, .lr = 0.02,
                                                           .momentum = 0.9, .nesterov = true)),
                           2 + 5 + 2 * 2);
}

TEST(state_loads_into_an_optimizer_that_never_stepped)
{
    net *n = start();
    static saved before;
    float want[8], got[8];
    ls_optim *o = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    run_steps(n, o, 0, 5);
    walk(&before, &n->base, o, false, false);
    run_steps(n, o, 5, 9);
    values_of(n, want);
    ls_optim_free(o);
    o = ls_adamw_new(&n->base, NULL);
    walk(&before, &n->base, o, true, false);
    run_steps(n, o, 5, 9);
    values_of(n, got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK(ls_finalize() == LS_OK);
}

/* With data parallelism that is the order of the buckets: each one's state is in one piece. */
TEST(state_lies_in_the_order_of_the_parameters_addresses)
{
    enum { COUNT = 8 };
    static const int order[COUNT] = {3, 0, 6, 1, 7, 2, 5, 4}; /* neither up nor down */
    static const char *const names[COUNT] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    ls_tensor *made[COUNT];
    CHECK_OK(ls_init(NULL));
    for (int i = 0; i < COUNT; i++) {
        made[i] = ls_ones(LS_SHAPE(40), LS_FLOAT32);
    }
    ls_module *m = ls_module_new(sizeof *m, &net_class);
    ls_tensor *sum = ls_zeros(LS_SHAPE(40), LS_FLOAT32);
    for (int i = 0; i < COUNT; i++) {
        sum = ls_add(sum, ls_module_add_param(m, names[i], made[order[i]]));
    }
    ls_optim *o = ls_adam_new(m, NULL);
    CHECK_OK(ls_backward(ls_mean(sum)));
    CHECK_OK(ls_optim_step(o));
    bool rises = true;
    for (int i = 0; i < COUNT; i++) {
        for (int k = 0; k < i; k++) {
            const bool above = ls_data(o->params[i].value) > ls_data(o->params[k].value);
            rises = rises && above;
            CHECK((o->params[i].state[0] > o->params[k].state[0]) == above);
            CHECK((o->params[i].state[1] > o->params[k].state[1]) == above);
        }
    }
    CHECK(!rises);
    ls_optim_free(o);
    ls_module_free(m);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
