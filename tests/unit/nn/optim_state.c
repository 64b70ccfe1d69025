/* SPDX-License-Identifier: Apache-2.0 */
/* The state of optimizers: what a checkpoint saves comes back, each step from the state before it
 * agrees with a float64 twin, bfloat16 parameters have master copies in it. */
#include "optim_net.h"
#include "says.h"

#include <stdio.h>

#include "base/activity.h"
#include "base/runtime.h"

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
    CHECK((t->dtype == LS_FLOAT32 || t->dtype == LS_BFLOAT16) && count <= 8);
    for (int i = 0; i < (int)count; i++) {
        if (t->dtype == LS_BFLOAT16) { /* its bits */
            double bits = (double)((uint16_t *)t->data)[i];
            visit(s, name, i, &bits);
            ((uint16_t *)t->data)[i] = (uint16_t)bits;
            continue;
        }
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
    const ls_state_visitor visitor = {.size = sizeof visitor,
                                      .self = s,
                                      .tensor = on_tensor,
                                      .int64 = on_int64,
                                      .float64 = on_float64};
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

/* ---- bfloat16 parameters --------------------------------------------------------------------- */

typedef struct half_net {
    ls_module base;
    ls_tensor *w;
} half_net;

static half_net *make_half_net(void)
{
    float w[6];
    for (int i = 0; i < 6; i++) {
        w[i] = (float)(0.1 * i - 0.3);
    }
    half_net *n = ls_module_new(sizeof *n, &net_class);
    LS_SCOPE;
    n->w = ls_module_add_param(&n->base, "w",
                               ls_cast(ls_from_data(w, LS_SHAPE(2, 3), LS_FLOAT32), LS_BFLOAT16));
    LS_CHECK(ls_module_status(&n->base));
    return n;
}

/* Autograd rounds the gradients to the parameter's type. */
static void half_steps(half_net *n, ls_optim *o, int from, int to)
{
    for (int step = from; step < to; step++) {
        float g[6];
        for (int i = 0; i < 6; i++) {
            g[i] = (float)(sin(0.7 * i + 1.3 * step) * (i + 1) / 6);
        }
        LS_SCOPE;
        ls_tensor *by = ls_from_data(g, LS_SHAPE(2, 3), LS_FLOAT32);
        CHECK_OK(ls_backward(ls_sum(ls_mul(ls_cast(n->w, LS_FLOAT32), by))));
        CHECK_OK(ls_optim_step(o));
        ls_optim_zero_grad(o);
    }
}

static void half_values(half_net *n, float out[6])
{
    LS_SCOPE;
    CHECK_OK(ls_copy_out(ls_cast(n->w, LS_FLOAT32), out, 6 * sizeof *out));
}

/* 30 steps of PyTorch 2.13, of which a parameter without a master copy would lose most:
 *     w = torch.tensor([0.1 * i - 0.3 for i in range(6)]).bfloat16()
 *     master = torch.nn.Parameter(w.float())
 *     optim = make([master], **options)
 *     for step in range(30):
 *         g = torch.tensor([math.sin(0.7 * i + 1.3 * step) * (i + 1) / 6 for i in range(6)])
 *         master.grad = g.bfloat16().float()
 *         optim.step()
 *     print(master.tolist())
 * The parameter must be the master copy, rounded. */
static void check_half(ls_optim *(*make)(ls_module *), const float expected[6])
{
    half_net *n = make_half_net();
    ls_optim *o = make(&n->base);
    CHECK(o != NULL);
    half_steps(n, o, 0, 30);
    float got[6], rounded[6];
    half_values(n, got);
    for (int i = 0; i < 6; i++) {
        CHECK_NEAR(o->params[0].master[i], expected[i], 1e-6);
    }
    LS_SCOPE;
    ls_tensor *master = ls_from_data(o->params[0].master, LS_SHAPE(6), LS_FLOAT32);
    CHECK_OK(ls_copy_out(ls_cast(ls_cast(master, LS_BFLOAT16), LS_FLOAT32), rounded, sizeof got));
    CHECK(memcmp(got, rounded, sizeof got) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
}

static ls_optim *half_sgd(ls_module *m)
{
    return ls_sgd_new(m, LS_OPTIONS(ls_sgd_options, .lr = 1e-4));
}

static ls_optim *half_adamw(ls_module *m)
{
    return ls_adamw_new(m, LS_OPTIONS(ls_adamw_options, .lr = 1e-4));
}

TEST(bfloat16_parameters_take_pytorchs_steps_with_a_master_copy)
{
    CHECK_OK(ls_init(NULL));
    check_half(half_sgd, (const float[]){-0.30078125f, -0.200216696f, -0.100146599f,
                                         -5.69091681e-05f, 0.100069843f, 0.200230047f});
    check_half(half_adamw, (const float[]){-0.301010519f, -0.20054464f, -0.100363605f,
                                           -0.00011459591f, 0.100170426f, 0.200554401f});
    CHECK_OK(ls_finalize());
}

TEST(a_bfloat16_parameter_that_the_program_writes_is_where_the_next_step_begins)
{
    CHECK_OK(ls_init(NULL));
    half_net *n = make_half_net();
    ls_optim *o = half_sgd(&n->base);
    half_steps(n, o, 0, 5);
    {
        LS_SCOPE;
        ls_tensor *ones = ls_ones(LS_SHAPE(2, 3), LS_BFLOAT16);
        CHECK_OK(ls_copy_in(n->w, ls_data(ones), 6 * 2));
    }
    half_steps(n, o, 5, 6);
    for (int i = 0; i < 6; i++) {
        const double g = sin(0.7 * i + 1.3 * 5) * (i + 1) / 6;
        CHECK_NEAR(o->params[0].master[i], 1.0 - 1e-4 * g, 1e-6);
    }
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

/* What is loaded continues with the bits of the run that saved, master copies included. */
TEST(the_master_copy_of_a_bfloat16_parameter_comes_back)
{
    static saved before;
    CHECK_OK(ls_init(NULL));
    half_net *n = make_half_net();
    ls_optim *o = half_adamw(&n->base);
    float want[6], got[6];
    half_steps(n, o, 0, 9);
    walk(&before, &n->base, o, false, false);
    CHECK_INT(before.count, 1 + 5 + 4);
    CHECK(has_field(&before, "optim.master.w"));
    half_steps(n, o, 9, 30);
    memcpy(want, o->params[0].master, sizeof want);
    walk(&before, &n->base, o, true, false);
    half_steps(n, o, 9, 30);
    memcpy(got, o->params[0].master, sizeof got);
    CHECK(memcmp(got, want, sizeof want) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
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

static ls_optim *adamw_with_a_group(net *n)
{
    ls_optim *o = ls_adamw_new(&n->base, LS_OPTIONS(ls_adamw_options, .lr = 0.02));
    CHECK_OK(ls_optim_add_group(
        o, ls_select_vectors, NULL,
        LS_OPTIONS(ls_optim_group_options, .lr_scale = 0.5, .weight_decay = 0.25)));
    return o;
}

/* The visitor has no optional_float64, so the two settings of the group are shown by float64. */
TEST(the_state_of_groups_comes_back)
{
    net *n = start();
    check_state_comes_back(n, adamw_with_a_group(n), 2 + 5 + 2 + 2 * 3);
}

static ls_status keep_optional(void *self, const char *name, double *value)
{
    saved *s = self;
    (void)value;
    CHECK(strncmp(name, "optim.group.1.", strlen("optim.group.1.")) == 0);
    s->count++;
    return LS_OK;
}

TEST(a_visitor_is_told_which_numbers_older_files_do_not_contain)
{
    static saved seen;
    net *n = start();
    ls_optim *o = adamw_with_a_group(n);
    const ls_state_visitor visitor = {
        sizeof(ls_state_visitor), &seen, on_tensor, on_int64, on_float64, keep_optional};
    CHECK_OK(ls_optim_state(o, "optim", &visitor));
    CHECK_INT(seen.count, 2);
    CHECK_INT(seen.at, 5 + 2 * 3);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

TEST(a_visitor_that_is_missing_or_of_no_version_is_refused_everywhere)
{
    static saved seen;
    net *n = start();
    ls_optim *o = adamw_with_a_group(n);
    const ls_state_visitor odd = {3, &seen, on_tensor, on_int64, on_float64, keep_optional};
    const ls_state_visitor *const refused[] = {NULL, &odd};
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ls_optim_state(o, "optim", refused[i]), LS_ERR_INVALID);
        CHECK(strstr(ls_error_message(), "ls_optim_state: ") == ls_error_message());
        CHECK_STATUS(ls_module_state(&n->base, "net", refused[i]), LS_ERR_INVALID);
        CHECK(strstr(ls_error_message(), "ls_module_state: ") == ls_error_message());
        CHECK_STATUS(ls_runtime_state(NULL, "random", refused[i]), LS_ERR_INVALID);
        CHECK(strstr(ls_error_message(), "ls_runtime_state: ") == ls_error_message());
    }
    CHECK_INT(seen.at + seen.count, 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
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

static ls_status check_shape(void *self, const char *name, const ls_state_tensor *t)
{
    static const int64_t dim[] = {3, 2, 5, 4};
    CHECK(self == NULL && strstr(name, "exp_avg") != NULL);
    CHECK_INT(t->ndim, 4);
    for (int d = 0; d < 4; d++) {
        CHECK_INT(t->local[d], dim[d]);
        CHECK_INT(t->global[d], dim[d]);
        CHECK_INT(t->start[d], 0);
    }
    return LS_OK;
}

static ls_status skip_int64(void *self, const char *name, int64_t *live)
{
    return self == NULL && name != NULL && live != NULL ? LS_OK : LS_ERR_INTERNAL;
}

static ls_status skip_float64(void *self, const char *name, double *live)
{
    return self == NULL && name != NULL && live != NULL ? LS_OK : LS_ERR_INTERNAL;
}

TEST(state_has_the_shape_of_its_parameter)
{
    const ls_state_visitor visitor = {sizeof visitor, NULL,         check_shape,
                                      skip_int64,     skip_float64, skip_float64};
    CHECK_OK(ls_init(NULL));
    ls_module *m = ls_module_new(sizeof *m, &net_class);
    (void)ls_module_add_param(m, "w", ls_ones(LS_SHAPE(3, 2, 5, 4), LS_FLOAT32));
    ls_optim *o = ls_adam_new(m, NULL);
    CHECK_OK(ls_optim_state(o, "optim", &visitor));
    ls_optim_free(o);
    ls_module_free(m);
    CHECK_OK(ls_finalize());
}

static uint64_t updates_of(const ls_optim *o)
{
    return atomic_load(&o->guest.runtime->activity->updates);
}

/* A launcher compares the number before and after a restart. */
TEST(the_number_of_updates_is_shown_and_goes_on_after_a_load)
{
    net *n = start();
    static saved before;
    ls_optim *o = ls_adam_new(&n->base, NULL);
    run_steps(n, o, 0, 5);
    CHECK_INT(updates_of(o), 5); /* w's: b has no gradient in each third step */
    walk(&before, &n->base, o, false, false);
    ls_optim_free(o);
    o = ls_adam_new(&n->base, NULL);
    walk(&before, &n->base, o, true, false);
    run_steps(n, o, 5, 6);
    CHECK_INT(updates_of(o), 6);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
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

TEST(ranges_that_no_memory_can_hold_change_nothing)
{
    const ls__optim_range whole = {.param = 0, .count = 6};
    float before[8], after[8];
    net *n = start();
    ls_optim *o = ls_adam_new(&n->base, NULL);
    give_gradients(n, 0);
    values_of(n, before);
    CHECK_OK(ls__optim_begin(o));
    CHECK_STATUS(ls__optim_step_ranges(o, &whole, INT64_MAX / 2), LS_ERR_MEMORY);
    CHECK_SAYS(ls_error_message(), "%s: no memory to update %lld ranges");
    values_of(n, after);
    CHECK(memcmp(before, after, sizeof before) == 0);
    ls_optim_free(o);
    ls_module_free(&n->base);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
