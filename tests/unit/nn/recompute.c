/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputed parts against the same graph kept: every gradient bit for bit, what observers hear and
 * when, how much memory it takes, and what goes wrong. */
#undef LS_NO_SITES
#include "../tensor/local.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "autograd/param.h"

enum { WIDTH = 12, ROWS = 7, PARAMS_MAX = 64 };

/* ---- networks ----------------------------------------------------------------------------- */

/* x + drop(gelu(fc(norm(x)))), and whatever a test adds: a leaf used twice, a part within. */
typedef struct part {
    ls_module base;
    ls_module *norm, *fc, *drop, *inner; /* inner NULL: none */
    bool recompute;                      /* of inner */
} part;

static ls_tensor *run(bool recompute, ls_module *m, ls_tensor *x)
{
    return recompute ? ls_recompute(m, x) : ls_forward(m, x);
}

static ls_tensor *part_forward(ls_module *m, ls_tensor *x)
{
    part *self = (part *)m;
    ls_tensor *h = ls_gelu(ls_forward(self->fc, ls_forward(self->norm, x)), LS_GELU_TANH);
    if (self->inner != NULL) {
        h = ls_add(h, run(self->recompute, self->inner, h));
    }
    return ls_add(x, ls_forward(self->drop, h));
}

static const ls_module_class part_class = LS_MODULE_CLASS(.name = "part", .forward = part_forward);

static ls_module *part_new(ls_module *inner, bool recompute)
{
    part *p = ls_module_new(sizeof *p, &part_class);
    p->norm = ls_module_add(&p->base, "norm", ls_layer_norm_new(WIDTH, NULL));
    p->fc = ls_module_add(&p->base, "fc", ls_linear_new(WIDTH, WIDTH, NULL));
    p->drop = ls_module_add(&p->base, "drop", ls_dropout_new(0.25));
    p->recompute = recompute;
    if (inner != NULL) {
        p->inner = ls_module_add(&p->base, "inner", inner);
    }
    CHECK_OK(ls_module_status(&p->base));
    return &p->base;
}

/* An observer of all parameters that notes when each is ready, and what its gradient was then. */
typedef struct listener {
    ls__observer base;
    ls_param params[PARAMS_MAX];
    int order[PARAMS_MAX], count, begun, ended;
    uint8_t used[PARAMS_MAX];
    float at_ready[PARAMS_MAX];
} listener;

static ls_status on_begin(ls__observer *self, const ls__backward_info *info)
{
    listener *l = (listener *)self;
    l->begun++;
    l->count = 0;
    memcpy(l->used, info->used, (size_t)self->param_count);
    return LS_OK;
}

static ls_status on_ready(ls__observer *self, int index)
{
    listener *l = (listener *)self;
    CHECK(l->count < self->param_count);
    l->order[l->count++] = index;
    l->at_ready[index] = *(const float *)ls_data(ls_grad(l->params[index].value));
    return LS_OK;
}

static ls_status on_end(ls__observer *self)
{
    ((listener *)self)->ended++;
    return LS_OK;
}

static void on_abort(ls__observer *self, ls_status status, const char *message)
{
    (void)self;
    (void)status;
    (void)message;
}

static void listen(listener *l, ls_module *net)
{
    *l = (listener){
        .base = {.begin = on_begin, .ready = on_ready, .end = on_end, .abort = on_abort}};
    l->base.param_count = ls_module_params(net, l->params, PARAMS_MAX);
    CHECK(l->base.param_count <= PARAMS_MAX);
    CHECK_OK(ls__observer_add(&l->base));
    for (int i = 0; i < l->base.param_count; i++) {
        CHECK_OK(ls__param_observe(l->params[i].value, &l->base, i));
        CHECK_OK(ls__param_set_name(l->params[i].value, l->params[i].name));
    }
}

static void stop_listening(listener *l)
{
    for (int i = 0; i < l->base.param_count; i++) {
        CHECK_OK(ls__param_observe(l->params[i].value, NULL, -1));
    }
    ls__observer_remove(&l->base);
}

/* What one way of doing it left behind. */
typedef struct trace {
    uint64_t loss; /* bits */
    float grad[PARAMS_MAX][WIDTH * WIDTH];
    bool present[PARAMS_MAX];
    float dx[ROWS * WIDTH];
    int order[PARAMS_MAX], count, params;
    uint8_t used[PARAMS_MAX];
} trace;

typedef ls_tensor *(*loss_fn)(ls_module *net, ls_tensor *x, bool recompute);

static void backward_of(loss_fn loss_of, ls_module *net, bool recompute, uint64_t step,
                        double weight, trace *out)
{
    LS_SCOPE;
    ls_step_begin((ls_step_context){step, 3});
    /* Only an observed leaf may take part in a weighted pass. */
    ls_tensor *x = ls_set_requires_grad(ls_randn(LS_SHAPE(ROWS, WIDTH)), weight < 0.0);
    ls_tensor *loss = loss_of(net, x, recompute);
    double value = 0.0;
    CHECK_OK(weight < 0.0 ? ls_backward(loss) : ls_backward_weighted(loss, weight));
    CHECK_OK(ls_item(loss, &value));
    memcpy(&out->loss, &value, sizeof value);
    if (ls_grad(x) != NULL) {
        memcpy(out->dx, ls_data(ls_grad(x)), sizeof out->dx);
    }
    CHECK(ls_runtime_current()->calls_in_step < 100);
}

/* Two backwards onto the same gradients and, `weight` not negative, a third of that weight. */
static trace *traced(ls_module *net, loss_fn loss_of, bool recompute, double weight)
{
    trace *t = calloc(1, sizeof *t);
    listener *l = calloc(1, sizeof *l);
    CHECK(t != NULL && l != NULL);
    listen(l, net);
    backward_of(loss_of, net, recompute, 1, weight < 0.0 ? -1.0 : 1.0, t);
    backward_of(loss_of, net, recompute, 2, weight, t);
    CHECK_INT(l->begun, 2);
    CHECK_INT(l->ended, 2);
    t->params = l->base.param_count;
    t->count = l->count;
    memcpy(t->order, l->order, sizeof l->order);
    memcpy(t->used, l->used, sizeof l->used);
    for (int i = 0; i < t->params; i++) {
        ls_tensor *value = l->params[i].value;
        t->present[i] = ls__param_grad_present(value);
        if (t->present[i]) {
            size_t bytes = (size_t)ls_numel(value) * sizeof(float);
            CHECK(bytes <= sizeof t->grad[i]);
            memcpy(t->grad[i], ls_data(ls_grad(value)), bytes);
            CHECK(!t->used[i] || l->at_ready[i] == t->grad[i][0]); /* final when announced */
        }
        CHECK_OK(ls__param_set_grad_present(value, false));
    }
    stop_listening(l);
    free(l);
    return t;
}

static void check_equal_weighted(ls_module *net, loss_fn loss_of, double weight)
{
    trace *kept = traced(net, loss_of, false, weight), *again = traced(net, loss_of, true, weight);
    CHECK(kept->loss == again->loss);
    CHECK_INT(kept->count, again->count);
    CHECK(kept->count > 0);
    CHECK(memcmp(kept->order, again->order, sizeof kept->order) == 0);
    CHECK(memcmp(kept->used, again->used, sizeof kept->used) == 0);
    CHECK(memcmp(kept->present, again->present, sizeof kept->present) == 0);
    for (int i = 0; i < kept->params; i++) {
        if (memcmp(kept->grad[i], again->grad[i], sizeof kept->grad[i]) != 0) {
            test_fail(__FILE__, __LINE__, "gradient %d differs: %.9g, %.9g", i,
                      (double)kept->grad[i][0], (double)again->grad[i][0]);
        }
    }
    CHECK(memcmp(kept->dx, again->dx, sizeof kept->dx) == 0);
    free(kept);
    free(again);
}

static void check_equal(ls_module *net, loss_fn loss_of)
{
    check_equal_weighted(net, loss_of, -1.0);
}

static ls_tensor *loss_from(ls_tensor *y)
{
    return ls_mean(ls_mul(y, ls_tanh(y)));
}

/* ---- equal to the last bit ---------------------------------------------------------------- */

typedef struct chain {
    ls_module base;
    ls_module *part[8];
    int count;
} chain;

static ls_tensor *not_called(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}
static const ls_module_class chain_class = LS_MODULE_CLASS(.name = "chain", .forward = not_called);

static chain *chain_new(int count)
{
    chain *c = ls_module_new(sizeof *c, &chain_class);
    c->count = count;
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        c->part[i] = ls_module_add(&c->base, name, part_new(NULL, false));
    }
    return c;
}

/* Parts one behind the other, with dropout; x goes around them, too. */
static ls_tensor *several_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    chain *c = (chain *)m;
    ls_tensor *h = ls_scale(x, 1.5), *first = h;
    for (int i = 0; i < c->count; i++) {
        h = run(recompute && i != 1, c->part[i], h); /* one is kept */
        h = ls_add(ls_dropout(h, 0.1), first);
    }
    return loss_from(h);
}

LOCAL_TEST(several_parts_in_one_graph_give_the_same_bits)
{
    chain *c = chain_new(4);
    check_equal(&c->base, several_parts);
    ls_module_free(&c->base);
}

/* The input itself is a leaf, and is a view. */
static ls_tensor *strided_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    chain *c = (chain *)m;
    ls_tensor *y = run(recompute, c->part[0], x);
    ls_tensor *turned = ls_transpose(ls_slice(ls_transpose(y, 0, 1), 1, 2, 6), 0, 1);
    ls_tensor *z = run(recompute, c->part[1], turned);
    return ls_add(loss_from(z), loss_from(run(recompute, c->part[1], ls_slice(x, 0, 1, 3))));
}

LOCAL_TEST(views_go_in_and_a_part_may_run_twice_on_other_shapes)
{
    chain *c = chain_new(2);
    check_equal(&c->base, strided_parts);
    ls_module_free(&c->base);
}

/* One part used three times, and one of its parameters directly, before and after. */
static ls_tensor *shared_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    chain *c = (chain *)m;
    ls_param params[8];
    CHECK(ls_module_params(((part *)c->part[0])->fc, params, 8) == 2);
    ls_tensor *weight = params[0].value;
    ls_tensor *h = ls_linear(x, weight, NULL);
    h = run(recompute, c->part[0], h);
    h = run(recompute, c->part[1], run(recompute, c->part[0], h));
    h = ls_add(run(false, c->part[0], h), run(recompute, c->part[0], h));
    return ls_add(loss_from(ls_linear(h, weight, NULL)), ls_mean(weight));
}

LOCAL_TEST(parameters_shared_by_parts_and_by_what_is_kept_give_the_same_bits)
{
    chain *c = chain_new(2);
    check_equal(&c->base, shared_parts);
    ls_module_free(&c->base);
}

static ls_tensor *unused_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    chain *c = (chain *)m;
    (void)run(recompute, c->part[2], x); /* its result leads to no loss */
    return loss_from(run(recompute, c->part[1], x));
}

LOCAL_TEST(unused_parameters_stay_absent_and_unannounced)
{
    chain *c = chain_new(3);
    check_equal(&c->base, unused_parts);
    trace *t = traced(&c->base, unused_parts, true, -1.0);
    CHECK_INT(t->count, 4);
    CHECK(!t->present[0] && t->present[4] && !t->present[8]);
    free(t);
    ls_module_free(&c->base);
}

LOCAL_TEST(weights_and_a_weight_of_zero_go_through_parts)
{
    chain *c = chain_new(3);
    check_equal_weighted(&c->base, several_parts, 3.0);
    check_equal_weighted(&c->base, several_parts, 0.0);
    check_equal_weighted(&c->base, shared_parts, 0.0);
    ls_module_free(&c->base);
}

/* part( part( part ) ), recomputed at every level. */
static ls_tensor *nested_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    for (part *p = (part *)m; p != NULL; p = (part *)p->inner) {
        p->recompute = recompute;
    }
    ls_tensor *h = run(recompute, m, ls_exp(x));
    return loss_from(ls_dropout(run(recompute, m, h), 0.5));
}

LOCAL_TEST(parts_within_parts_give_the_same_bits)
{
    ls_module *net = part_new(part_new(part_new(NULL, false), true), true);
    check_equal(net, nested_parts);
    ls_module_free(net);
}

/* A function that takes tensors from elsewhere, gives a view of what it made, and draws. */
typedef struct captured {
    ls_tensor *outer, *weight;
    ls_module *part;
} captured;

static ls_tensor *use_captured(ls_tensor *x, void *arg)
{
    captured *c = arg;
    ls_tensor *mixed = ls_matmul(ls_mul(x, c->outer), c->weight);
    ls_tensor *turned = ls_slice(ls_transpose(c->weight, 0, 1), 0, 0, ROWS);
    mixed = ls_add(mixed, ls_mul(ls_rand(LS_SHAPE(ROWS, WIDTH)), turned));
    {
        LS_NO_GRAD;
        (void)ls_forward(c->part, mixed);
    }
    return ls_transpose(ls_slice(ls_add(ls_forward(c->part, mixed), ls_detach(c->outer)), 0, 1, 5),
                        0, 1);
}

static ls_tensor *captured_parts(ls_module *m, ls_tensor *x, bool recompute)
{
    chain *c = (chain *)m;
    ls_param params[8];
    CHECK(ls_module_params(((part *)c->part[0])->fc, params, 8) == 2);
    captured given = {ls_tanh(x), ls_slice(params[0].value, 0, 0, WIDTH), c->part[1]};
    captured *arg = ls_data(ls_from_data(&given, LS_SHAPE(sizeof given), LS_UINT8));
    ls_tensor *plain = ls_full(LS_SHAPE(ROWS, WIDTH), LS_FLOAT32, 0.5); /* wants no gradient */
    ls_tensor *y =
        recompute ? ls_recompute_call(use_captured, plain, arg) : use_captured(plain, arg);
    CHECK_INT(ls_size(y, 0), WIDTH);
    ls_tensor *twice = ls_add(ls_mul(y, y), ls_scale(y, 0.3));
    return ls_add(loss_from(twice), ls_mean(given.outer));
}

LOCAL_TEST(tensors_from_elsewhere_get_their_gradients)
{
    chain *c = chain_new(2);
    check_equal(&c->base, captured_parts);
    ls_module_free(&c->base);
}

static ls_tensor *pass_on(ls_tensor *x, void *arg)
{
    return arg != NULL ? ls_reshape(x, LS_SHAPE(WIDTH, ROWS)) : x;
}

static ls_tensor *constant(ls_tensor *x, void *arg)
{
    (void)arg;
    return ls_detach(ls_exp(x));
}

LOCAL_TEST(what_makes_no_graph_needs_none)
{
    ls_tensor *x = ls_set_requires_grad(ls_full(LS_SHAPE(ROWS, WIDTH), LS_FLOAT32, 2.0), true);
    int any;
    ls_tensor *y = ls_recompute_call(pass_on, x, NULL), *z = ls_recompute_call(pass_on, x, &any);
    CHECK(!ls_requires_grad(ls_recompute_call(constant, x, NULL)));
    CHECK_OK(ls_backward(ls_add(ls_sum(y), ls_sum(ls_mul(z, z)))));
    CHECK_NEAR(*(float *)ls_data(ls_grad(x)), 5.0, 0.0);
    ls_module *gelu = ls_gelu_new(LS_GELU_ERF);
    {
        LS_NO_GRAD;
        y = ls_recompute(gelu, x);
    }
    CHECK(!ls_requires_grad(y));
    CHECK_OK(ls_tensor_status(y));
    ls_module_free(gelu);
}

/* ---- memory ------------------------------------------------------------------------------- */

enum { LAYERS = 8, WIDE = 64, MANY = 512 };

static ls_tensor *deep_loss(ls_module **layer, bool recompute)
{
    ls_tensor *h = ls_ones(LS_SHAPE(MANY, WIDE), LS_FLOAT32);
    for (int i = 0; i < LAYERS; i++) {
        h = run(recompute, layer[i], h);
    }
    return ls_mean(h);
}

/* Most memory above what was there before, in units of one activation. */
static double peak_of(ls_module **layer, bool recompute)
{
    ls_memory_stats before = {.size = sizeof before}, after = before;
    CHECK_OK(ls_memory_reset_peaks());
    CHECK_OK(ls_memory_get_stats(&before));
    {
        LS_SCOPE;
        CHECK_OK(ls_backward(deep_loss(layer, recompute)));
    }
    CHECK_OK(ls_memory_get_stats(&after));
    return (double)(after.allocated_peak - before.allocated) / (MANY * WIDE * sizeof(float));
}

static ls_module *deep_layer(void)
{
    ls_module *list[] = {ls_linear_new(WIDE, WIDE, NULL),
                         ls_gelu_new(LS_GELU_ERF),
                         ls_layer_norm_new(WIDE, NULL),
                         ls_linear_new(WIDE, WIDE, NULL),
                         ls_relu_new(),
                         ls_linear_new(WIDE, WIDE, NULL)};
    return ls_sequential_new(list, 6);
}

LOCAL_TEST(eight_recomputed_layers_hold_their_inputs_and_one_layer)
{
    ls_module *layer[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layer[i] = deep_layer();
    }
    (void)peak_of(layer, false); /* gradients of parameters are made once, and stay */
    double kept = peak_of(layer, false), again = peak_of(layer, true);
    CHECK(kept >= 6 * LAYERS);
    CHECK(again <= LAYERS + 8.5); /* and what backward of one layer needs */
    CHECK(again >= LAYERS);
    uint64_t allocations = 0;
    for (int i = 0; i < 4; i++) {
        (void)peak_of(layer, true);
        if (i == 1) {
            allocations = ls__tensor_allocations(ls_runtime_current());
        }
    }
    CHECK_INT(ls__tensor_allocations(ls_runtime_current()), allocations);
    for (int i = 0; i < LAYERS; i++) {
        ls_module_free(layer[i]);
    }
    CHECK_INT(ls__tensor_alive(), 0);
}

/* ---- what goes wrong ---------------------------------------------------------------------- */

typedef struct fickle {
    int calls, change; /* what the second call does differently */
    ls_tensor *a, *b;
} fickle;

enum { SAME, OTHER_SHAPE, OTHER_PARAMETER, MORE_PARAMETERS, NO_GRAPH, MORE_DRAWS, FAILURE };

static ls_tensor *fickle_forward(ls_tensor *x, void *arg)
{
    fickle *f = arg;
    CHECK(ls_recomputing() == (f->calls > 0));
    switch (f->calls++ == 0 ? SAME : f->change) {
    case OTHER_SHAPE:
        return ls_slice(ls_mul(x, f->a), 0, 0, 1);
    case OTHER_PARAMETER:
        return ls_mul(x, f->b);
    case MORE_PARAMETERS:
        return ls_mul(ls_mul(x, f->a), f->b);
    case NO_GRAPH:
        return ls_mul(x, ls_detach(f->a));
    case MORE_DRAWS:
        return ls_mul(ls_dropout(x, 0.5), f->a);
    case FAILURE:
        return ls_matmul(x, ls_ones(LS_SHAPE(7, 7), LS_FLOAT32));
    default:
        return ls_mul(x, f->a);
    }
}

static void refused(int change, const char *words)
{
    LS_SCOPE;
    ls_tensor *a = ls_set_requires_grad(ls_full(LS_SHAPE(2), LS_FLOAT32, 3.0), true);
    ls_tensor *b = ls_set_requires_grad(ls_full(LS_SHAPE(2), LS_FLOAT32, 4.0), true);
    fickle f = {0, change, a, b};
    char want[128];
    ls_tensor *x = ls_ones(LS_SHAPE(2), LS_FLOAT32);
    int line = __LINE__ + 1;
    ls_tensor *y = ls_recompute_call(fickle_forward, x, &f);
    ls_tensor *loss = ls_sum(ls_mul(y, b));
    ls_status status = ls_backward(loss);
    CHECK_INT(f.calls, 2);
    if (change == SAME) {
        CHECK_OK(status);
        CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "was released by an earlier backward");
    } else {
        CHECK(status < 0);
        CHECK_CONTAINS(ls_error_message(), words);
        snprintf(want, sizeof want, "recompute at %s:%d", __FILE__, line);
        CHECK(change == FAILURE || strstr(ls_error_message(), want) != NULL);
    }
    CHECK_OK(ls_backward(ls_sum(ls_mul(a, b)))); /* later passes are whole */
}

LOCAL_TEST(a_function_that_does_something_else_the_second_time_is_an_error)
{
    refused(SAME, "");
    refused(OTHER_SHAPE, "gave another shape");
    refused(OTHER_PARAMETER, "used other parameters or tensors");
    refused(MORE_PARAMETERS, "used other parameters or tensors");
    refused(NO_GRAPH, "used other parameters or tensors");
    refused(MORE_DRAWS, "drew other random numbers");
    refused(FAILURE, "matmul");
    CHECK_INT(ls__tensor_alive(), 0);
}

LOCAL_TEST(a_changed_input_or_parameter_is_named)
{
    const float fresh[ROWS * WIDTH] = {1};
    char want[256];
    ls_module *p = part_new(NULL, false);
    listener *l = calloc(1, sizeof *l);
    CHECK(l != NULL);
    listen(l, p);
    {
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(ROWS, WIDTH), LS_FLOAT32);
        int line = __LINE__ + 1;
        ls_tensor *loss = ls_mean(ls_recompute(p, x));
        CHECK_OK(ls_copy_in(x, fresh, sizeof fresh));
        CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
        snprintf(want, sizeof want, "recompute at %s:%d needs its argument 1", __FILE__, line);
        CHECK_CONTAINS(ls_error_message(), want);
        loss = ls_mean(ls_recompute(p, x));
        CHECK_OK(ls_fill_constant(l->params[3].value, 0.5));
        CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "needs its parameter fc.bias [12] as it was");
    }
    stop_listening(l);
    free(l);
    ls_module_free(p);
}

LOCAL_TEST(poison_and_nothing_to_run_are_refused)
{
    ls_tensor *bad =
        ls_matmul(ls_ones(LS_SHAPE(2, 3), LS_FLOAT32), ls_ones(LS_SHAPE(2, 3), LS_FLOAT32));
    ls_module *p = part_new(NULL, false);
    CHECK_STATUS(ls_tensor_status(ls_recompute(p, bad)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "matmul");
    ls_tensor *x = ls_ones(LS_SHAPE(3, 4), LS_FLOAT32);
    CHECK_STATUS(ls_tensor_status(ls_recompute(p, x)), LS_ERR_INVALID); /* 4 is not WIDTH */
    CHECK_CONTAINS(ls_error_message(), "layer_norm");
    CHECK_STATUS(ls_tensor_status(ls_recompute(NULL, x)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(ls_recompute_call(NULL, x, NULL)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_status(ls_recompute(p, NULL)), LS_ERR_INVALID);
    ls_module_free(p);
}

TEST_MAIN
