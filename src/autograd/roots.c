/* SPDX-License-Identifier: Apache-2.0 */
/* The roots of a backward pass: the tensors it begins at, and the gradients that they are given.
 *
 * ls_backward has one root, the loss, whose gradient is the weight. ls_backward_from has several:
 * the activations that a part of a model returned, with the gradients that the rest of the model
 * computed. Given gradients are added before any other contribution, in the order of the roots; so
 * a graph that was cut at these tensors adds as the whole graph does, where everything behind a cut
 * is younger than everything before it. */
#include "autograd/roots.h"

#include <math.h>

#include "autograd/accumulate.h"
#include "base/half.h"
#include "tensor/fill.h"
#include "tensor/placement.h"
#include "tensor/shape.h"

/* ---- checks ------------------------------------------------------------------------------- */

static ls_status check_weight(const ls__autograd_pass *pass)
{
    if (!(pass->weight >= 0.0) || !isfinite(pass->weight)) {
        return ls__fail(LS_ERR_INVALID, "%s: weight %g; give a finite number >= 0", pass->name,
                        pass->weight);
    }
    return LS_OK;
}

/* A tensor without a given gradient gets the weight, which must be exact in its type. */
static ls_status check_exact(const ls__autograd_pass *pass, const ls__record *record)
{
    if (record->dtype != LS_FLOAT32 &&
        (double)ls__bfloat16_widen(ls__bfloat16_round((float)pass->weight)) != pass->weight) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: weight %g of a loss in %s, which would round it; ls_cast the loss to "
                        "float32",
                        pass->name, pass->weight, ls_dtype_name((ls_dtype)record->dtype));
    }
    return LS_OK;
}

/* Takes `record` as the next root; its gradient is `dy`, or the weight (NULL). */
static ls_status add_root(ls__autograd_pass *pass, const ls__record *record, const ls__record *dy)
{
    ls__autograd_root *root = &pass->root[pass->roots];
    *root = (ls__autograd_root){.dy = dy, .on = record->storage->pool, .share = 1.0};
    if (LS__UNLIKELY(ls__axes_of(pass->tensors) != NULL) && dy == NULL) {
        LS_TRY(ls__place_check_loss(ls__axes_of(pass->tensors), pass->name, record, &root->share));
    }
    if (!ls__edge_to(pass->tensors, record, &root->edge)) {
        return ls__fail_within(ls__self.status, "%s", pass->name);
    }
    pass->roots++;
    return LS_OK;
}

ls_status ls__roots_of_loss(ls__autograd_pass *pass, const ls_tensor *loss)
{
    const ls__record *record = ls__record_sound(pass->tensors, loss, pass->name);
    if (record == NULL) {
        return ls__self.status;
    }
    if (record->numel != 1) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: the loss is %s; it must have exactly one element (ls_mean or ls_sum "
                        "make one)",
                        pass->name, ls__record_print(record).text);
    }
    if (record->node == NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: the loss requires no gradient: no parameter took part in it, it was "
                        "computed inside LS_NO_GRAD, or it was detached (ls_keep does too)",
                        pass->name);
    }
    LS_TRY(check_weight(pass));
    LS_TRY(check_exact(pass, record));
    return add_root(pass, record, NULL);
}

/* *out is the gradient given for tensor i; NULL where none is given and none is needed. */
static ls_status check_gradient(const ls__autograd_pass *pass, const ls__record *y, int i,
                                const ls_tensor *given, const ls__record **out)
{
    *out = NULL;
    if (given == NULL && (y->numel == 1 || pass->weight == 0.0)) {
        return check_exact(pass, y);
    }
    if (given == NULL) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: tensor %d is %s and has no gradient; give one of its shape (only a "
                        "tensor of one element may have NULL)",
                        pass->name, i, ls__record_print(y).text);
    }
    const ls__record *dy = ls__record_sound(pass->tensors, given, pass->name);
    if (dy == NULL) {
        return ls__self.status;
    }
    if (!ls__shape_equal(y, dy) || dy->dtype != y->dtype) {
        return ls__fail(LS_ERR_INVALID,
                        "%s: tensor %d is %s %s and its gradient %s %s; give one of the same shape "
                        "and type",
                        pass->name, i, ls_dtype_name((ls_dtype)y->dtype), ls__record_print(y).text,
                        ls_dtype_name((ls_dtype)dy->dtype), ls__record_print(dy).text);
    }
    LS_TRY(ls__fill_settle(dy->storage));
    *out = dy;
    return LS_OK;
}

/* A tensor may be a leaf, or another view of the base of another root. */
static ls_status check_root(ls__autograd_pass *pass, ls_tensor *const *ys, int i,
                            const ls_tensor *given)
{
    if (ys[i] == NULL) {
        return ls__fail(LS_ERR_INVALID, "%s: tensor %d is NULL; give one that requires gradients",
                        pass->name, i);
    }
    for (int j = 0; j < i; j++) {
        if (ys[j] == ys[i]) {
            return ls__fail(LS_ERR_INVALID,
                            "%s: tensors %d and %d are the same; give it once, with the sum of the "
                            "gradients",
                            pass->name, j, i);
        }
    }
    const ls__record *y = ls__record_sound(pass->tensors, ys[i], pass->name), *dy = NULL;
    if (y == NULL) {
        return ls__self.status;
    }
    if (y->node == NULL) {
        return ls__fail(LS_ERR_STATE,
                        "%s: tensor %d, %s, requires no gradient: no parameter took part in it, it "
                        "was computed inside LS_NO_GRAD, or it was detached (ls_keep does too)",
                        pass->name, i, ls__record_print(y).text);
    }
    LS_TRY(check_gradient(pass, y, i, given, &dy));
    return add_root(pass, y, dy);
}

ls_status ls__roots_given(ls__autograd_pass *pass, ls_tensor *const *ys, ls_tensor *const *dys,
                          int count)
{
    if (ys == NULL || count < 1 || count > LS_CALL_TENSORS_MAX) {
        return ls__fail(LS_ERR_INVALID, "%s: %d tensors%s; give an array of 1 to %d", pass->name,
                        count, ys == NULL ? ", and their array is NULL" : "", LS_CALL_TENSORS_MAX);
    }
    LS_TRY(check_weight(pass));
    for (int i = 0; i < count; i++) {
        LS_TRY(check_root(pass, ys, i, dys != NULL ? dys[i] : NULL));
    }
    return LS_OK;
}

/* ---- their gradients ---------------------------------------------------------------------- */

/* Row-major from offset 0. A copy, because the first rule may write over it, and because the caller
 * may give a gradient to which this pass adds. */
static ls__storage *copy_of(const ls__record *dy)
{
    ls__pool *on = dy->storage->pool;
    const size_t element = ls_dtype_size((ls_dtype)dy->dtype);
    ls__storage *copy = ls__storage_new(on, (size_t)dy->numel * element);
    if (copy != NULL && dy->numel > 0) {
        on->k->gather(copy->data, ls__record_data(dy), ls__record_strided(dy), dy->ndim, dy->dim,
                      element, on->stream);
    }
    return copy;
}

/* The weight in the type of a root. */
static ls__storage *weight_as(const ls__autograd_root *root, double value, ls_dtype dtype)
{
    ls__pool *on = root->on;
    ls__storage *weight = ls__storage_new(on, sizeof(float)), *half = NULL;
    if (weight == NULL) {
        return NULL;
    }
    on->k->fill(weight->data, 1, (float)value, on->stream);
    if (dtype == LS_FLOAT32) {
        return weight;
    }
    half = ls__storage_new(on, ls_dtype_size(dtype));
    if (half != NULL) {
        ls__cast_gradient(on, half->data, dtype, weight->data, 1, 0.0f);
    }
    ls__storage_unref(weight);
    return half;
}

/* The gradient of a loss with respect to itself. The pass holds a weight of 1, so nothing adds to
 * that memory or writes over it, and rules see it for what it is without reading it. */
static ls__storage *weight_of(ls__autograd_pass *pass, const ls__autograd_root *root)
{
    const ls_dtype dtype = (ls_dtype)root->edge.to->dtype;
    if (dtype != LS_FLOAT32 || pass->weight * root->share != 1.0 ||
        (pass->one != NULL && pass->one->pool != root->on)) {
        return weight_as(root, pass->weight * root->share, dtype);
    }
    pass->one = pass->one != NULL ? pass->one : weight_as(root, 1.0, LS_FLOAT32);
    return pass->one != NULL ? ls__storage_ref(pass->one) : NULL;
}

/* All are read before the first is added: a given gradient may be one to which another is added.
 * Nothing is added in a pass of weight 0. */
ls_status ls__roots_seed(ls__autograd_pass *pass)
{
    for (int i = 0; i < pass->roots && pass->weight != 0.0; i++) {
        ls__autograd_root *root = &pass->root[i];
        root->grad = root->dy != NULL ? copy_of(root->dy) : weight_of(pass, root);
        if (root->grad == NULL) {
            return ls__self.status;
        }
    }
    for (int i = 0; i < pass->roots; i++) {
        ls__autograd_root *root = &pass->root[i];
        LS_TRY(ls__contribute(pass, &root->edge, root->grad));
        ls__storage_unref(root->grad); /* a rule may write over it if nobody else holds it */
        root->grad = NULL;
    }
    return LS_OK;
}

/* The edges hold references to leaves. */
void ls__roots_drop(ls__autograd_pass *pass)
{
    for (int i = 0; i < pass->roots; i++) {
        ls__node_unref(pass->root[i].edge.to);
        ls__storage_unref(pass->root[i].grad);
    }
    pass->roots = 0;
}
