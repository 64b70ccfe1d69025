/* SPDX-License-Identifier: Apache-2.0 */
/* The layer, and what is asked of all such layers of a model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/mesh.h>
#include <lockstep/ops.h>

#include "autograd/param.h"
#include "base/options.h"
#include "nn/layer.h"
#include "nn/moe/moe.h"
#include "tensor/op.h"
#include "tensor/placement.h"

/* ---- forward -------------------------------------------------------------------------------- */

static ls__moe_rules rules_of(const ls__moe *m)
{
    const ls_moe_options *o = &m->options;
    return (ls__moe_rules){.ranks = m->ranks,
                           .rank = m->rank,
                           .experts = o->experts,
                           .top_k = o->top_k,
                           .capacity = o->capacity,
                           .global = o->tokens == LS_MOE_GLOBAL,
                           .padded = o->padded};
}

/* A second run of the same forward counts nothing. */
static void count(ls__moe *m, const ls__moe_rules *r, const ls__moe_choice *choice,
                  const ls__moe_route *route)
{
    if (ls_recomputing()) {
        return;
    }
    memcpy(m->kept, route->kept, (size_t)r->experts * sizeof *m->kept);
    m->dropped = route->dropped;
    for (int64_t i = 0; m->base.training && i < r->top_k * r->experts; i++) {
        m->chosen[i % r->experts] += choice->facts[LS__MOE_CHOICES + i];
    }
}

/* y and the loss, from what has been chosen. `all`: room for the facts of all ranks. */
static ls_status run_routed(ls__moe *m, ls_tensor *x, const ls__moe_rules *r,
                            ls__moe_choice *choice, int64_t *all, unsigned parts, ls_tensor *out[2])
{
    ls__moe_route route;
    LS_TRY(ls__moe_gather(m, r, choice->facts, all));
    LS_TRY(ls__moe_count_shares(m, r, choice, all, parts));
    LS_TRY(ls__moe_route_init(&route, r, choice->index, ls_size(x, 0), all));
    out[0] = ls__moe_experts(m, x, choice->weights, &route);
    out[1] = ls__moe_gate_loss(m, r, choice, all);
    count(m, r, choice, &route);
    ls__moe_route_fini(&route);
    return ls_tensor_status(out[0]);
}

static ls_status run(ls__moe *m, ls_tensor *x, ls_tensor *mask, unsigned parts, ls_tensor *out[2])
{
    const ls__moe_rules r = rules_of(m);
    ls__moe_choice choice;
    LS_TRY(ls__moe_choose(m, x, mask, &r, &choice));
    int64_t *all = calloc((size_t)(r.ranks * ls__moe_facts(&r)), sizeof *all);
    const ls_status status =
        all != NULL ? run_routed(m, x, &r, &choice, all, parts, out) : ls__moe_no_memory();
    free(all);
    free(choice.counted);
    free(choice.facts);
    free(choice.index);
    return status;
}

static ls_status check_mask(const ls_tensor *x, const ls_tensor *mask)
{
    ls_shape want = ls_shape_of(x);
    want.ndim--;
    const ls_shape got = mask != NULL ? ls_shape_of(mask) : want;
    bool fits = got.ndim == want.ndim;
    for (int d = 0; fits && d < want.ndim; d++) {
        fits = got.dim[d] == want.dim[d];
    }
    return fits ? LS_OK
                : ls__fail(LS_ERR_INVALID,
                           "moe: a mask %s for x %s; give one number for each token, of x's shape "
                           "without its last dimension",
                           ls__shape_print(got).text, ls__shape_print(ls_shape_of(x)).text);
}

static ls_status check_inputs(const ls__moe *m, ls_tensor *const *in, int n, int outputs)
{
    if (n > 2 || outputs > 2 || in[0] == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "moe: %d inputs and %d outputs; give x and perhaps a mask, and ask for y "
                        "and perhaps the loss",
                        n, outputs);
    }
    LS_TRY(ls_tensor_status(in[0]));
    const int64_t dim = ls_size(m->w1, 2);
    if (ls_ndim(in[0]) < 1 || ls_size(in[0], -1) != dim) {
        return ls__fail(LS_ERR_INVALID, "moe: x is %s; give one whose last dimension is %lld",
                        ls__shape_print(ls_shape_of(in[0])).text, (long long)dim);
    }
    if (ls_dtype_of(in[0]) != LS_FLOAT32 && ls_dtype_of(in[0]) != LS_BFLOAT16) {
        return ls__fail(LS_ERR_INVALID, "moe: x is of %s; cast it to float32 or bfloat16",
                        ls_dtype_name(ls_dtype_of(in[0])));
    }
    LS_TRY(n == 2 && in[1] != NULL ? ls_tensor_status(in[1]) : LS_OK);
    return n == 2 && in[1] != NULL ? check_mask(in[0], in[1]) : LS_OK;
}

/* The experts of this rank are parts along an axis of the mesh under which the layer was made. */
static ls_status check_mesh(const ls__moe *m)
{
    const ls_mesh *mesh = ls_mesh_in_force();
    const bool has = mesh != NULL && ls_mesh_has(mesh, m->axis);
    const int ranks = has ? ls_mesh_size(mesh, m->axis) : 1;
    if (m->ranks == 1 || (ranks == m->ranks && ls_mesh_coordinate(mesh, m->axis) == m->rank)) {
        return LS_OK;
    }
    return ls__fail(LS_ERR_STATE,
                    "moe: its experts are divided along axis %s of a mesh that is not in force; "
                    "put it in force with ls_mesh_use",
                    m->axis);
}

static ls_tensor *with_shared(const ls__moe *m, ls_tensor *x, ls_tensor *y)
{
    if (m->shared == NULL) {
        return y;
    }
    ls_tensor *wide = ls_forward(ls_module_child_at(m->shared, 0), x);
    if (m->options.gated) {
        wide = ls_mul(ls_silu(wide), ls_forward(ls_module_child_at(m->shared, 1), x));
    }
    return ls_add(y, ls_forward(ls_module_child(m->shared, "down"), wide));
}

/* Axes along which the ranks have other parts of the same sequences, by x [..,T,C]. */
static unsigned parts_of(const ls_tensor *x)
{
    const uint32_t word = ls__param_placed(x);
    unsigned parts = 0;
    for (int a = 0; a < LS__AXES_MAX; a++) {
        parts |= (unsigned)(ls__place_dim(ls__place_at(word, a)) > 0) << a;
    }
    return parts;
}

/* Rows of tokens: that they are parts of a sequence is nothing to the experts. */
static void forget_parts(ls_tensor *rows)
{
    ls__record *record = ls__record_sound(ls__tensors_get("moe"), rows, "moe");
    for (int a = 0; record != NULL && a < LS__AXES_MAX; a++) {
        if (ls__place_dim(ls__place_at(record->place, a)) == 0) {
            record->place = ls__place_with(record->place, a, LS__PLACED_VARYING);
        }
    }
}

/* y has a row for each of x's, in their order: parts of a dimension of x are such parts of y. */
static void place_rows(ls_tensor *y, const ls_tensor *x)
{
    const uint32_t word = ls__param_placed(x);
    ls__record *record = ls__record_sound(ls__tensors_get("moe"), y, "moe");
    for (int a = 0; record != NULL && a < LS__AXES_MAX; a++) {
        if (ls__place_at(record->place, a) == LS__PLACED_VARYING &&
            ls__place_dim(ls__place_at(word, a)) >= 0) {
            record->place = ls__place_with(record->place, a, ls__place_at(word, a));
        }
    }
}

/* ls_moe_loss is that of the last forward, not of its second run in backward. */
static void note_loss(ls__moe *m, ls_tensor *loss)
{
    (void)ls_module_set_loss(&m->base, loss);
    if (!ls_recomputing()) {
        m->loss = loss;
        m->ran = true;
    }
}

/* [T,1] bool, of a mask of any type; NULL without one. */
static ls_tensor *counting(ls_tensor *mask)
{
    LS_NO_GRAD;
    return mask != NULL ? ls_ne(ls_cast(ls_reshape(mask, LS_SHAPE(ls_numel(mask), 1)), LS_FLOAT32),
                                ls_zeros(LS_SCALAR, LS_FLOAT32))
                        : NULL;
}

/* Zeros for padding, whatever it holds: NaN times a weight of 0 would be NaN. */
static ls_tensor *where_counted(ls_tensor *counted, ls_tensor *rows)
{
    return counted != NULL ? ls_where(counted, rows, ls_zeros(LS_SCALAR, ls_dtype_of(rows))) : rows;
}

static ls_status forward(ls_module *module, ls_tensor *const *in, int n, ls_tensor **out, int m)
{
    ls__moe *self = (ls__moe *)module;
    ls_tensor *given[2] = {NULL, NULL};
    LS_TRY(check_inputs(self, in, n, m));
    LS_TRY(check_mesh(self));
    ls_tensor *mask = n == 2 ? in[1] : NULL, *counted = counting(mask);
    ls_tensor *x = where_counted(
        counted,
        ls_reshape(in[0], LS_SHAPE(ls_numel(in[0]) / ls_size(self->w1, 2), ls_size(self->w1, 2))));
    forget_parts(x);
    LS_TRY(run(self, x, mask != NULL ? ls_reshape(mask, LS_SHAPE(ls_numel(mask))) : NULL,
               parts_of(in[0]), given));
    ls_tensor *y = with_shared(self, x, given[0]);
    out[0] = ls_reshape(self->shared != NULL ? where_counted(counted, y) : y, ls_shape_of(in[0]));
    place_rows(out[0], in[0]);
    if (out[0] != y) {
        ls_free(y); /* a view of it shares its storage */
    }
    note_loss(self, given[1]);
    if (m == 2) {
        out[1] = given[1] != NULL ? given[1] : ls_zeros(LS_SCALAR, LS_FLOAT32);
    }
    return LS_OK;
}

static void release(ls_module *module)
{
    ls__moe *self = (ls__moe *)module;
    free(self->kept);
    free(self->chosen);
}

static const ls_module_class moe_class =
    LS_MODULE_CLASS(.name = "MoE", .forward_many = forward, .free = release);

/* ---- construction --------------------------------------------------------------------------- */

static ls_status check_numbers(const ls_moe_options *o)
{
    if (o->experts < 1 || o->top_k < 1 || o->top_k > o->experts || o->shared < 0) {
        return ls__fail(LS_ERR_INVALID,
                        "MoE: %lld experts, top_k %d and %d shared experts; give at least one "
                        "expert, and a top_k from 1 to their number",
                        (long long)o->experts, o->top_k, o->shared);
    }
    if (!(o->capacity >= 0.0) || !isfinite(o->capacity) || !isfinite(o->balance_loss) ||
        !isfinite(o->z_loss)) {
        return ls__fail(LS_ERR_INVALID,
                        "MoE: capacity %g, balance_loss %g, z_loss %g; give a factor of at least 0 "
                        "and finite coefficients",
                        o->capacity, o->balance_loss, o->z_loss);
    }
    return LS_OK;
}

static ls_status check_options(const ls_moe_options *o)
{
    LS_TRY(check_numbers(o));
    if (o->gate < LS_MOE_SOFTMAX_FIRST || o->gate > LS_MOE_SIGMOID || o->tokens < LS_MOE_LOCAL ||
        o->tokens > LS_MOE_GLOBAL || o->activation < LS_ACTIVATION_NONE ||
        o->activation > LS_ACTIVATION_TANH) {
        return ls__fail(LS_ERR_INVALID,
                        "MoE: gate %d, tokens %d, activation %d; give values of ls_moe_gate, "
                        "ls_moe_tokens and ls_activation",
                        (int)o->gate, (int)o->tokens, (int)o->activation);
    }
    if (o->padded && (o->capacity == 0.0 || o->tokens == LS_MOE_GLOBAL)) {
        return ls__fail(LS_ERR_INVALID,
                        "MoE: padded needs a capacity of each rank's own tokens; give .capacity, "
                        "and leave .tokens LS_MOE_LOCAL");
    }
    if (o->axis[0] == '\0' || strlen(o->axis) >= LS__AXIS_NAME_BYTES) {
        return ls__fail(LS_ERR_INVALID,
                        "MoE: the axis is \"%.40s\"; give the name of one, as \"ep\"", o->axis);
    }
    return LS_OK;
}

/* Uniform as in a linear layer of so many inputs. */
static ls_tensor *stacked(ls__moe *m, const char *name, ls_shape shape, int64_t inputs)
{
    const double bound = 1.0 / sqrt((double)inputs);
    ls_tensor *t = ls__layer_param(&m->base, name, shape);
    if (m->base.status == LS_OK) {
        ls__layer_note(&m->base, ls_fill_uniform(t, -bound, bound));
    }
    return t;
}

/* Experts become those of this rank, if the mesh in force has the axis. */
static ls_status divide(ls__moe *m, void *arg)
{
    (void)arg;
    ls_tensor *const stacks[] = {m->w1, m->b1, m->w2, m->b2, m->w3};
    const ls_mesh *mesh = ls_mesh_in_force();
    ls__axes_in_force *axes;
    if (mesh == NULL || !ls_mesh_has(mesh, m->axis) || ls_mesh_size(mesh, m->axis) == 1 ||
        m->ranks > 1) {
        return LS_OK;
    }
    const int a = ls__axis_find(m->axis, "MoE", &axes);
    for (int i = 0; i < 5; i++) {
        if (stacks[i] != NULL) {
            LS_TRY(ls_tensor_shard(stacks[i], m->axis, 0, NULL, 0));
            LS_TRY(ls__param_set_complete(stacks[i], 1u << a));
        }
    }
    m->ranks = axes->axis[a].size;
    m->rank = axes->axis[a].coordinate;
    return LS_OK;
}

static void add_experts(ls__moe *m, int64_t dim, int64_t hidden)
{
    const int64_t e = m->options.experts;
    m->w1 = stacked(m, "w1", LS_SHAPE(e, hidden, dim), dim);
    m->b1 = m->options.gated ? NULL : stacked(m, "b1", LS_SHAPE(e, hidden), dim);
    m->w2 = stacked(m, "w2", LS_SHAPE(e, dim, hidden), hidden);
    m->b2 = m->options.gated ? NULL : stacked(m, "b2", LS_SHAPE(e, dim), hidden);
    m->w3 = m->options.gated ? stacked(m, "w3", LS_SHAPE(e, hidden, dim), dim) : NULL;
}

/* Experts that every token visits are one network of the sum of their widths. */
static void add_shared(ls__moe *m, int64_t dim, int64_t hidden)
{
    const int64_t width = hidden * m->options.shared;
    const bool gated = m->options.gated;
    const ls_activation activation = gated ? LS_ACTIVATION_NONE : m->options.activation;
    m->shared = ls_module_add(&m->base, "shared", ls_sequential_new(NULL, 0));
    if (m->shared == NULL) {
        return;
    }
    (void)ls_module_add(
        m->shared, "up",
        ls_linear_new(dim, width,
                      LS_OPTIONS(ls_linear_options, .bias = !gated, .activation = activation)));
    if (gated) {
        (void)ls_module_add(
            m->shared, "gate",
            ls_linear_new(dim, width, LS_OPTIONS(ls_linear_options, .bias = false)));
    }
    (void)ls_module_add(m->shared, "down",
                        ls_linear_new(width, dim, LS_OPTIONS(ls_linear_options, .bias = !gated)));
}

static void build(ls__moe *m, int64_t dim, int64_t hidden)
{
    const int64_t experts = m->options.experts;
    m->ranks = 1;
    m->kept = calloc((size_t)experts, sizeof *m->kept);
    m->chosen = calloc((size_t)experts, sizeof *m->chosen);
    if (m->kept == NULL || m->chosen == NULL) {
        ls__layer_note(&m->base,
                       ls__fail(LS_ERR_MEMORY,
                                "MoE: no memory for the counts of %lld experts; give fewer",
                                (long long)experts));
        return;
    }
    m->gate =
        ls_module_add(&m->base, "gate",
                      ls_linear_new(dim, experts, LS_OPTIONS(ls_linear_options, .bias = false)));
    add_experts(m, dim, hidden);
    if (m->options.shared > 0 && m->base.status == LS_OK) {
        add_shared(m, dim, hidden);
    }
    if (m->options.balance_bias) {
        m->bias = ls_module_add_buffer(&m->base, "bias", ls_zeros(LS_SHAPE(experts), LS_FLOAT32));
    }
    if (m->base.status == LS_OK) {
        ls__layer_note(&m->base, divide(m, NULL));
    }
}

ls_module *ls_moe_new(int64_t dim, int64_t hidden, const ls_moe_options *options)
{
    LS__OPTIONS_OR(NULL, ls_moe_options, given, options);
    given.axis = given.axis != NULL ? given.axis : "ep";
    if (!ls__layer_positive("MoE", "dim", dim) || !ls__layer_positive("MoE", "hidden", hidden) ||
        check_options(&given) < 0) {
        return NULL;
    }
    ls__moe *m = ls_module_new(sizeof *m, &moe_class);
    if (m == NULL) {
        return NULL;
    }
    m->options = given;
    memcpy(m->axis, given.axis, strlen(given.axis) + 1);
    m->options.axis = m->axis;
    build(m, dim, hidden);
    return ls__layer_finished(&m->base);
}

/* ---- all layers of a model ------------------------------------------------------------------ */

typedef ls_status visitor(ls__moe *m, void *arg);

/* The recursion is bounded by LS__MODULE_DEPTH_MAX. */
static ls_status visit(ls_module *module, visitor *fn, void *arg)
{
    LS_TRY(module->cls == &moe_class ? fn((ls__moe *)module, arg) : LS_OK);
    for (int i = 0; i < ls_module_child_count(module); i++) {
        LS_TRY(visit(ls_module_child_at(module, i), fn, arg));
    }
    return LS_OK;
}

ls_status ls_expert_parallel(ls_module *net)
{
    if (net == NULL || ls_mesh_in_force() == NULL) {
        return ls__fail(net == NULL ? LS_ERR_INVALID : LS_ERR_STATE,
                        "expert_parallel: %s; give the model, after ls_mesh_new",
                        net == NULL ? "the module is NULL" : "no mesh is in force");
    }
    return visit(net, divide, NULL);
}

static ls_status add_loss(ls__moe *m, void *arg)
{
    ls_tensor **sum = arg;
    if (!m->ran) {
        return ls__fail(LS_ERR_STATE,
                        "moe_loss: a layer has not run yet; call ls_forward in a statement before");
    }
    if (m->loss != NULL) {
        *sum = *sum != NULL ? ls_add(*sum, m->loss) : m->loss;
        LS_TRY(ls_tensor_status(*sum));
    }
    return LS_OK;
}

ls_tensor *(ls_moe_loss)(ls_module *module)
{
    ls_tensor *sum = NULL;
    if (module == NULL) {
        (void)ls__fail(LS_ERR_INVALID, "moe_loss: the module is NULL; give the model");
        return ls__call_refused();
    }
    if (visit(module, add_loss, &sum) < 0) {
        return ls__call_refused();
    }
    return sum != NULL ? sum : ls_zeros(LS_SCALAR, LS_FLOAT32);
}

ls_status ls_moe_set_loss(ls_module *layer, ls_tensor *loss)
{
    if (layer == NULL || layer->cls != &moe_class || loss == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "moe_set_loss: %s; give a layer of ls_moe_new and the second output of its "
                        "forward",
                        layer == NULL              ? "the layer is NULL"
                        : layer->cls != &moe_class ? "the module is no such layer"
                                                   : "the loss is NULL");
    }
    note_loss((ls__moe *)layer, loss);
    return LS_OK;
}

typedef struct totals {
    int64_t *tokens, dropped, experts;
} totals;

static ls_status add_counts(ls__moe *m, void *arg)
{
    totals *t = arg;
    if (t->experts != 0 && t->experts != m->options.experts) {
        return ls__fail(LS_ERR_INVALID,
                        "moe_counts: layers of %lld and of %lld experts; ask each layer by itself",
                        (long long)t->experts, (long long)m->options.experts);
    }
    for (int64_t e = 0; t->tokens != NULL && e < m->options.experts; e++) {
        t->tokens[e] = (t->experts != 0 ? t->tokens[e] : 0) + m->kept[e];
    }
    t->experts = m->options.experts;
    t->dropped += m->dropped;
    return LS_OK;
}

ls_status ls_moe_counts(ls_module *module, int64_t *tokens, int64_t *dropped)
{
    totals t = {.tokens = tokens};
    if (module == NULL) {
        return ls__fail(LS_ERR_INVALID, "moe_counts: the module is NULL; give the model");
    }
    LS_TRY(visit(module, add_counts, &t));
    if (dropped != NULL) {
        *dropped = t.dropped;
    }
    return t.experts > 0 ? LS_OK
                         : ls__fail(LS_ERR_NOT_FOUND,
                                    "moe_counts: the %s has no layer of ls_moe_new; give the model "
                                    "that has",
                                    module->cls->name);
}

/* ---- balance without a loss ----------------------------------------------------------------- */

typedef struct balancing {
    ls_group *group;
    double rate;
} balancing;

/* Down where an expert had more than the mean, up where fewer; its choices are counted anew. */
static ls_status move_biases(ls__moe *m, double mean, double rate)
{
    const size_t experts = (size_t)m->options.experts;
    float *bias = calloc(experts, sizeof *bias);
    if (bias == NULL) {
        return ls__moe_no_memory();
    }
    ls_status status = ls_copy_out(m->bias, bias, experts * sizeof *bias);
    for (size_t e = 0; e < experts; e++) {
        const double excess = (double)m->chosen[e] - mean;
        bias[e] -= (float)(excess > 0.0 ? rate : excess < 0.0 ? -rate : 0.0);
        m->chosen[e] = 0;
    }
    status = status < 0 ? status : ls_copy_in(m->bias, bias, experts * sizeof *bias);
    free(bias);
    return status;
}

static ls_status balance(ls__moe *m, void *arg)
{
    const balancing *b = arg;
    const int64_t experts = m->options.experts;
    double mean = 0.0;
    if (m->bias == NULL) {
        return LS_OK;
    }
    if (b->group != NULL) {
        LS_TRY(ls_all_reduce(b->group, m->chosen, m->chosen, experts, LS_INT64, LS_SUM,
                             LS_OPTIONS(ls_collective_options, .tag = "balance"), NULL));
    }
    for (int64_t e = 0; e < experts; e++) {
        mean += (double)m->chosen[e] / (double)experts;
    }
    return move_biases(m, mean, b->rate);
}

ls_status ls_moe_balance(ls_module *module, ls_group *group, double rate)
{
    balancing b = {.group = group, .rate = rate};
    if (module == NULL || !(rate >= 0.0) || !isfinite(rate)) {
        return ls__fail(LS_ERR_INVALID,
                        "moe_balance: %s; give the model and a rate of at least 0, as 0.001",
                        module == NULL ? "the module is NULL" : "the rate is no such number");
    }
    return visit(module, balance, &b);
}
