/* SPDX-License-Identifier: Apache-2.0 */
/* What layers do along the axis of tensor parallelism. How a layer's weight is cut says which
 * conversions its product needs:
 *
 *     weight       x in                      product          out
 *     sharded(0)   replicated (f)            sharded(last)    as it is
 *     sharded(1)   sharded(last)             partial          invariant (g), then the bias
 *     invariant    invariant                 invariant        as it is
 *
 * With sequence parallelism x comes in as a part of the sequence and is gathered, and partial sums
 * leave as such a part. Intermediate results that no gradient needs are freed at once. */
#include <stdio.h>
#include <string.h>

#include <lockstep/sharded.h>

#include "base/error.h"
#include "nn/parallel.h"
#include "placement/redistribute.h"
#include "tensor/fill.h"
#include "tensor/op.h"

static ls__converter *converter = ls_redistribute;

ls__converter *ls__parallel_use_converter(ls__converter *other)
{
    ls__converter *former = converter;
    converter = other;
    return former;
}

static ls_tensor *convert(const ls__parallel *p, ls_tensor *x, ls_placement from, ls_placement to)
{
    return converter(x, p->axis, from, to);
}

/* x -> to, whose elements alone are needed from here on. */
static ls_tensor *converted(const ls__parallel *p, ls_tensor *x, ls_placement from, ls_placement to)
{
    ls_tensor *y = convert(p, x, from, to);
    if (y != x) {
        ls_free(x);
    }
    return y;
}

/* The placement of [..,T,C] between layers. */
static ls_placement between(const ls__parallel *p, const ls_tensor *x)
{
    return p->sequence ? LS_SHARDED(ls_ndim(x) - 2) : LS_INVARIANT;
}

/* Whether the mesh in force is that along which the model was cut: under another one, or none, its
 * parts would be taken for whole. */
static bool in_force(const ls__parallel *p)
{
    const ls__tensors *tensors = ls__tensors_get("tensor_parallel");
    const ls__axes_in_force *axes = tensors != NULL ? ls__axes_of(tensors) : NULL;
    const ls__axis_in_force *axis =
        axes != NULL && p->number < axes->count ? &axes->axis[p->number] : NULL;
    return axis != NULL && strcmp(axis->name, p->axis) == 0 && axis->size == p->ranks &&
           axis->coordinate == p->rank;
}

/* How the layers of m convert; NULL: they do not, or *refused is the answer. */
static const ls__parallel *parallel_of(const ls_module *m, ls_tensor **refused)
{
    *refused = NULL;
    if (m != NULL && (!ls__is_parallel(m) || in_force(&m->entries->parallel))) {
        return ls__is_parallel(m) ? &m->entries->parallel : NULL;
    }
    if (m == NULL) {
        (void)ls__fail(LS_ERR_INVALID,
                       "tensor_parallel: the module is NULL; give the one whose forward runs");
    } else {
        (void)ls__fail(LS_ERR_STATE,
                       "tensor_parallel: the model is cut along axis %s of a mesh that is not in "
                       "force; put it in force with ls_mesh_use",
                       m->entries->parallel.axis);
    }
    *refused = ls__call_refused();
    return NULL;
}

/* ---- linear ------------------------------------------------------------------------------- */

static ls_tensor *activated(ls_tensor *x, ls_activation activation)
{
    switch (activation) {
    case LS_ACTIVATION_RELU:
        return ls_relu(x);
    case LS_ACTIVATION_GELU:
        return ls_gelu(x, LS_GELU_ERF);
    case LS_ACTIVATION_GELU_TANH:
        return ls_gelu(x, LS_GELU_TANH);
    case LS_ACTIVATION_SILU:
        return ls_silu(x);
    case LS_ACTIVATION_TANH:
        return ls_tanh(x);
    case LS_ACTIVATION_NONE:
        break;
    }
    return x;
}

/* activation(x + bias); x is freed where no gradient needs it. */
static ls_tensor *finished(ls_tensor *x, ls_tensor *bias, ls_activation activation)
{
    ls_tensor *sum = x;
    if (bias != NULL) {
        sum = ls_add(x, bias);
        ls_free(x);
    }
    return activated(sum, activation);
}

/* A result of several column layers' common input is replicated already; without gradients it is
 * unplaced. */
static ls_tensor *entered(const ls__parallel *p, ls_tensor *x)
{
    const ls_placement place = ls_placement_of(x, p->axis);
    const bool whole = place == LS_REPLICATED || (p->sequence && place == LS_UNPLACED);
    return whole ? x : convert(p, x, between(p, x), LS_REPLICATED);
}

static ls_tensor *row(const ls__parallel *p, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                      ls_activation activation)
{
    ls_tensor *product = ls_linear(x, weight, NULL);
    return finished(converted(p, product, LS_PARTIAL, between(p, x)), bias, activation);
}

/* Rows of a parameter of fewer heads than ranks -> those of this rank's head: each head stands
 * once for each of the ranks that share it, and each takes its own. */
static ls_tensor *shared_rows(const ls__parallel *p, ls_tensor *param, int copies)
{
    const int64_t rows = ls_size(param, 0), each = rows / p->heads;
    ls_shape shape = ls_shape_of(param);
    ls_tensor *all = convert(p, param, LS_INVARIANT, LS_REPLICATED);
    ls_tensor *heads = ls_reshape(all, LS_SHAPE(p->heads, 1, each * (ls_numel(param) / rows)));
    ls_tensor *room = ls_zeros(LS_SHAPE(1, copies, 1), ls_dtype_of(param));
    shape.dim[0] = rows * copies;
    return convert(p, ls_reshape(ls_add(heads, room), shape), LS_REPLICATED, LS_SHARDED(0));
}

/* ---- column layers that gather again ------------------------------------------------------ */

/* y = x W^T of a gathered x, which backward gathers a second time (Korthikanti et al. 2022, 4.2.2).
 */
enum { EDGE_X, EDGE_WEIGHT };

typedef struct again {
    ls__parallel how;
    ls_placement sequence; /* of x */
    ls_shape x, weight, y;
    ls_dtype type[2]; /* of the inputs */
} again;

static ls_tensor *gathered(const again *a, ls_tensor *x)
{
    return convert(&a->how, x, a->sequence, LS_REPLICATED);
}

static ls_tensor *rows_of(ls_tensor *x)
{
    return ls_reshape(x, LS_SHAPE(-1, ls_size(x, -1)));
}

/* dy W, whose terms the ranks add up, each for its part of the sequence. */
static ls_tensor *again_dx(const again *a, const ls__tensor_rule *r, ls_tensor *dy)
{
    ls_tensor *weight =
        ls__tensor_over(r->on, r->saved[EDGE_WEIGHT], a->weight, a->type[EDGE_WEIGHT]);
    ls_tensor *dx = ls_matmul(dy, weight);
    (void)ls_place(dx, a->how.axis, LS_PARTIAL);
    return convert(&a->how, dx, LS_PARTIAL, a->sequence);
}

static ls_tensor *again_dweight(const again *a, const ls__tensor_rule *r, ls_tensor *dy)
{
    ls_tensor *x = ls__tensor_over(r->on, r->saved[EDGE_X], a->x, a->type[EDGE_X]);
    (void)ls_place(x, a->how.axis, a->sequence);
    return ls_matmul(ls_transpose(rows_of(dy), 0, 1), rows_of(gathered(a, x)));
}

static ls_status again_give(const again *a, ls__tensor_rule *r, int i)
{
    ls_tensor *dy = ls__tensor_over(r->on, r->dy, a->y, (ls_dtype)r->node->dtype);
    ls_tensor *dx = i == EDGE_X ? again_dx(a, r, dy) : again_dweight(a, r, dy);
    const ls__record *record =
        ls__record_sound(r->on->tensors, ls_contiguous(ls_cast(dx, a->type[i])), "linear_gathered");
    return record != NULL ? ls__rule_give(r, i, record) : ls__self.status;
}

static ls_status again_backward(ls__tensor_rule *r)
{
    const again *a = r->node->context;
    ls_status status = LS_OK;
    const bool recorded = ls_set_grad_mode(false);
    for (int i = 0; i < 2 && status == LS_OK; i++) {
        ls_scope *scope = ls_scope_enter();
        status = r->node->edge[i].to != NULL ? again_give(a, r, i) : LS_OK;
        ls_scope_leave(scope);
    }
    (void)ls_set_grad_mode(recorded);
    return status;
}

static const ls__op gather_again = {
    .name = "linear_gathered",
    .backward = again_backward,
    .gives = true,
    .gathers = true,
    .reads = {LS__READS(1u << EDGE_WEIGHT), LS__READS(1u << EDGE_X)}};

/* The result, without a node; NULL with call->failed set. */
static ls__record *again_forward(ls__call *call, const again *a, ls_tensor *x, ls_tensor *weight)
{
    const bool recorded = ls_set_grad_mode(false);
    ls_tensor *whole = gathered(a, x), *y = ls_linear(whole, weight, NULL);
    if (whole != x) {
        ls_free(whole);
    }
    (void)ls_set_grad_mode(recorded);
    call->failed = ls_tensor_status(y) < 0 ? y : NULL;
    return call->failed == NULL ? ls__record_sound(call->tensors, y, call->name) : NULL;
}

static void again_save(ls__call *call, again *a, ls__record *out)
{
    ls__tensor_node *node = ls__call_record(call, &gather_again, out, sizeof *a);
    if (node == NULL) {
        return;
    }
    a->x = ls__record_shape(call->in[EDGE_X]);
    a->weight = ls__record_shape(call->in[EDGE_WEIGHT]);
    a->y = ls__record_shape(out);
    *(again *)node->context = *a;
    for (int i = 0; i < 2; i++) {
        ls__dense saved = ls__call_dense(call, i);
        ls__node_save(node, i, &saved);
        ls__dense_drop(&saved);
    }
}

static ls_tensor *linear_gathered(const ls__parallel *p, ls_tensor *x, ls_tensor *weight)
{
    ls__call call;
    again a = {.how = *p, .sequence = between(p, x), .type = {ls_dtype_of(x), ls_dtype_of(weight)}};
    if (!ls__call_begin(&call, gather_again.name, 2, (ls_tensor *[]){x, weight})) {
        return call.failed;
    }
    ls__record *out = again_forward(&call, &a, x, weight);
    again_save(&call, &a, out);
    call.follows = LS__CONTRACTS(LINEAR);
    call.across = p->number + 1;
    call.across_place = LS__PLACED_SHARDED + ls_ndim(x) - 1;
    return ls__call_finish(&call, out);
}

/* ---- tables ------------------------------------------------------------------------------- */

/* Of a table that is cut by rows, terms of a sum: ls_tensor_parallel_between adds them up. */
ls_tensor *ls__parallel_embedding(ls_module *m, ls_tensor *weight, ls_tensor *index)
{
    ls_tensor *refused;
    const ls__parallel *p = parallel_of(m, &refused);
    return refused != NULL ? refused
           : p != NULL && ls_placement_of(weight, p->axis) == LS_SHARDED(0)
               ? ls_sharded_embedding(weight, index, p->axis)
               : ls_embedding(weight, index);
}

/* ---- plans that name one layer of a pair ---------------------------------------------------- */

/* The path of m in the plan: from below the module that was cut. */
static void path_of(const ls_module *m, char *out, size_t bytes)
{
    const ls_module *root = m;
    while (root->entries->parent != NULL && ls__is_parallel(root->entries->parent)) {
        root = root->entries->parent;
    }
    if (root == m || !ls__module_path_below(root, m, out, bytes)) {
        (void)snprintf(out, bytes, "%s", ls__module_name(m));
    }
}

/* Features that a column layer has divided are for a row layer, which takes no others. */
static ls_status check_features(const ls__parallel *p, const ls_module *m, ls_tensor *x,
                                ls_tensor *weight, ls_placement cut)
{
    char path[200];
    const bool row = cut == LS_SHARDED(1), sound = x != NULL && ls_tensor_status(x) == LS_OK;
    const int last = sound ? ls_ndim(x) - 1 : -1;
    const bool part = last >= 0 && ls_placement_of(x, p->axis) == LS_SHARDED(last);
    if (last < 0 || row == part || (row && ls_size(x, last) != p->ranks * ls_size(weight, 1))) {
        return LS_OK;
    }
    path_of(m, path, sizeof path);
    return row ? ls__fail(LS_ERR_PLACEMENT,
                          "tensor_parallel: layer %s has the role row along axis %s, and its input "
                          "%s is whole; give the layer before it the role column in the plan "
                          "(--tensor-plan), or leave %s=row out",
                          path, p->axis, ls__shape_print(ls_shape_of(x)).text, path)
               : ls__fail(LS_ERR_PLACEMENT,
                          "tensor_parallel: layer %s got an input %s whose features are divided "
                          "along axis %s, because the layer before it has the role column; add "
                          "%s=row to the plan (--tensor-plan), or leave column out before it",
                          path, ls__shape_print(ls_shape_of(x)).text, p->axis, path);
}

/* ---- the calls of modules ----------------------------------------------------------------- */

ls_tensor *ls_tensor_parallel_linear(ls_module *m, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                     ls_activation activation)
{
    ls_tensor *refused;
    const ls__parallel *p = parallel_of(m, &refused);
    if (p == NULL) {
        return refused != NULL ? refused : ls_linear_activation(x, weight, bias, activation);
    }
    const ls_placement cut = ls_placement_of(weight, p->axis);
    if (check_features(p, m, x, weight, cut) < 0) {
        return ls__call_refused();
    }
    if (cut == LS_SHARDED(1)) {
        return row(p, x, weight, bias, activation);
    }
    if (p->heads > 0) {
        const int copies = p->ranks / p->heads;
        weight = shared_rows(p, weight, copies);
        bias = bias != NULL ? shared_rows(p, bias, copies) : NULL;
    }
    const bool part = p->sequence && ls_placement_of(x, p->axis) == between(p, x);
    if (cut != LS_SHARDED(0) && p->heads == 0) {
        x = part && cut == LS_INVARIANT ? convert(p, x, between(p, x), LS_INVARIANT) : x;
        return ls_linear_activation(x, weight, bias, activation);
    }
    return part && !p->keep_gathered
               ? finished(linear_gathered(p, x, weight), bias, activation)
               : ls_linear_activation(entered(p, x), weight, bias, activation);
}

ls_tensor *ls_tensor_parallel_input(ls_module *m, ls_tensor *x)
{
    ls_tensor *refused;
    const ls__parallel *p = parallel_of(m, &refused);
    return p != NULL && p->cuts ? entered(p, x) : refused != NULL ? refused : x;
}

ls_tensor *ls_tensor_parallel_between(ls_module *m, ls_tensor *x, int dim)
{
    ls_tensor *refused;
    const ls__parallel *p = parallel_of(m, &refused);
    if (p == NULL) {
        return refused != NULL ? refused : x;
    }
    const ls_placement is = ls_placement_of(x, p->axis);
    const ls_placement to = p->sequence ? LS_SHARDED(dim) : LS_INVARIANT;
    const bool equal = is == LS_UNPLACED || is == LS_INVARIANT;
    return is == to || (equal && !p->sequence) ? x
           : equal                             ? convert(p, x, LS_INVARIANT, to)
                                               : convert(p, x, is, to);
}

ls_tensor *ls_tensor_parallel_whole(ls_module *m, ls_tensor *x, int dim)
{
    ls_tensor *refused;
    const ls__parallel *p = parallel_of(m, &refused);
    if (p == NULL) {
        return refused != NULL ? refused : x;
    }
    return ls_placement_of(x, p->axis) == LS_SHARDED(dim)
               ? convert(p, x, LS_SHARDED(dim), LS_INVARIANT)
               : x;
}

bool ls_tensor_parallel_sequence(const ls_module *m)
{
    return ls__is_parallel(m) && m->entries->parallel.sequence;
}

/* Into how many groups the weight is cut whose product x is, along either dimension (of [out,in] or
 * [in,out]); 0: it is whole, or x is not seen to be a product. */
static int groups_of(const ls__record *x)
{
    const ls__tensor_node *node = x->node;
    for (int e = 0; node != NULL && !ls__node_is_leaf(node) && e < LS__EDGES_MAX; e++) {
        ls__tensor_node *to = node->edge[e].to;
        const ls__leaf *leaf = to != NULL && ls__node_is_leaf(to) ? ls__leaf_of(to) : NULL;
        const ls__initial *initial = leaf != NULL ? leaf->value->initial : NULL;
        if (initial != NULL && initial->is_part && leaf->shape.ndim == 2) {
            const int rows = initial->part.runs[0], columns = initial->part.runs[1];
            return rows > columns ? rows : columns;
        }
    }
    return 0;
}

/* This rank's piece of q alone would be taken for its heads of q, k and v. */
static bool is_cut_by(ls_tensor *x, int parts)
{
    const ls__record *in =
        ls__record_sound(ls__tensors_get("tensor_parallel_heads"), x, "tensor_parallel_heads");
    const int groups = in != NULL && parts > 1 ? groups_of(in) : 0;
    if (groups == 0 || groups == parts) {
        return true;
    }
    (void)ls__fail(LS_ERR_PLACEMENT,
                   "tensor_parallel_heads: %d parts of a layer that is cut in %d; give it the "
                   "role column(%d) in the plan",
                   parts, groups, parts);
    return false;
}

/* A part of the features of a layer that is cut by parts has whole heads, as the features. */
static void place_heads(ls_tensor *heads, const ls_tensor *x)
{
    ls__tensors *tensors = ls__tensors_get("tensor_parallel_heads");
    const ls__record *in = ls__record_sound(tensors, x, "tensor_parallel_heads");
    ls__record *out = in != NULL ? ls__record_sound(tensors, heads, "tensor_parallel_heads") : NULL;
    const ls__axes_in_force *axes = ls__axes_of(tensors);
    for (int a = 0; out != NULL && axes != NULL && a < axes->count; a++) {
        if (ls__place_at(in->place, a) == LS__PLACED_SHARDED + 2) {
            out->place = ls__place_with(out->place, a, LS__PLACED_SHARDED + 2);
        }
    }
}

ls_tensor *ls_tensor_parallel_heads(ls_tensor *x, int i, int parts, int64_t head_dim)
{
    if (x != NULL && ls_tensor_status(x) < 0) {
        return x;
    }
    if (x == NULL || ls_ndim(x) != 3 || i < 0 || i >= parts || head_dim < 1) {
        (void)ls__fail(
            LS_ERR_INVALID,
            "tensor_parallel_heads: part %d of %d in heads of %lld, of a tensor of %d "
            "dimensions; give x [B,T,C], a part from 0 to parts - 1, and a size of heads",
            i, parts, (long long)head_dim, x != NULL ? ls_ndim(x) : 0);
        return ls__call_refused();
    }
    const int64_t b = ls_size(x, 0), t = ls_size(x, 1), all = ls_size(x, 2), c = all / parts;
    if (all % parts != 0 || c % head_dim != 0) {
        (void)ls__fail(LS_ERR_INVALID,
                       "tensor_parallel_heads: %lld features of this rank in %d parts are no whole "
                       "heads of %lld; give a number of heads that the size of the axis divides",
                       (long long)all, parts, (long long)head_dim);
        return ls__call_refused();
    }
    if (!is_cut_by(x, parts)) {
        return ls__call_refused();
    }
    ls_tensor *part = ls_slice(x, 2, i * c, (i + 1) * c);
    ls_tensor *heads = ls_reshape(part, LS_SHAPE(b, t, c / head_dim, head_dim));
    place_heads(heads, x);
    ls_tensor *by_heads = ls_transpose(heads, 1, 2);
    ls_free(heads); /* as long as a view lives, so does its storage */
    ls_free(part);
    return by_heads;
}

/* The axis along which the classes of the logits are sharded, or NULL. */
static const char *axis_of_classes(const ls_tensor *logits)
{
    ls__tensors *tensors = ls__tensors_get("tensor_parallel_cross_entropy");
    const ls__record *in =
        tensors != NULL ? ls__record_sound(tensors, logits, "tensor_parallel_cross_entropy") : NULL;
    const ls__axes_in_force *axes = in != NULL ? ls__axes_of(tensors) : NULL;
    for (int a = 0; axes != NULL && a < axes->count; a++) {
        if (axes->axis[a].size > 1 &&
            ls__place_at(in->place, a) == LS__PLACED_SHARDED + in->ndim - 1) {
            return axes->axis[a].name;
        }
    }
    return NULL;
}

ls_tensor *ls_tensor_parallel_cross_entropy(ls_tensor *logits, ls_tensor *target,
                                            const ls_cross_entropy_options *options)
{
    const char *axis = axis_of_classes(logits);
    return axis != NULL ? ls_sharded_cross_entropy(logits, target, axis, options)
                        : ls_cross_entropy(logits, target, options);
}
