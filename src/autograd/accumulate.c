/* SPDX-License-Identifier: Apache-2.0 */
/* Adding gradients up.
 *
 * A leaf's gradient has an address of its own (a bucket's memory, say): rules write there directly,
 * overwriting when it is absent and adding when it is present. Other nodes get memory when their
 * first gradient comes; one that arrives ready-made (dy passed on) is shared, not copied, until
 * something must be added to it. The order of additions is that of the nodes, so it is the same in
 * every run. */
#include "autograd/accumulate.h"

#include "autograd/hooks.h"
#include "autograd/observers.h"
#include "base/assert.h"
#include "tensor/gradients.h"
#include "tensor/half.h"

/* A gradient has the type of its tensor, so that of bfloat16 is bfloat16. */
static size_t gradient_bytes(const ls__tensor_node *node)
{
    return (size_t)node->numel * ls_dtype_size((ls_dtype)node->dtype);
}

/* Whether the first gradient has arrived: the next one is then added instead of written over it. */
static bool present(ls__tensor_node *to)
{
    return ls__node_is_leaf(to) ? *ls__leaf_of(to)->present : to->grad != NULL;
}

/* to = from + (adds ? to : 0), both of one type */
static void add(ls__pool *on, ls_dtype dtype, void *to, const void *from, int64_t numel, bool adds)
{
    if (dtype == LS_FLOAT32) {
        on->k->axpby(to, from, numel, 1.0f, adds ? 1.0f : 0.0f, on->stream);
    } else if (adds) {
        on->k->axpby_bf16(to, from, numel, 1.0f, 1.0f, on->stream);
    } else {
        on->k->gather(to, from, (ls__strided){{1}}, 1, &numel, ls_dtype_size(dtype), on->stream);
    }
}

/* The observer of a leaf says where a gradient goes that is absent yet. */
static ls_status announce(const ls__leaf *leaf)
{
    ls__observer *observer = leaf->observer;
    return observer != NULL && observer->writes != NULL && !*leaf->present
               ? observer->writes(observer, leaf->observer_index)
               : LS_OK;
}

/* Returns memory for the gradient of `to` that no other node shares, so that a rule may write
 * there. It is allocated on first use, and copied when it is a dy that was passed on. Returns NULL
 * with the error set when memory runs out. */
static void *gradient_memory(ls__pool *on, ls__tensor_node *to)
{
    LS_ASSERT(to->numel >= 0);
    if (ls__node_is_leaf(to)) {
        ls__captured_meet(ls__leaf_of(to), LS__GRADIENT_USED);
        if (announce(ls__leaf_of(to)) < 0) {
            return NULL;
        }
    }
    ls__storage **slot = ls__node_is_leaf(to) ? &ls__leaf_of(to)->grad : &to->grad;
    if (*slot == NULL) {
        *slot = ls__storage_new(on, gradient_bytes(to));
    } else if (!ls__node_is_leaf(to) && !ls__storage_sole(*slot)) { /* dy that was passed on */
        ls__storage *own = ls__storage_new(on, gradient_bytes(to));
        if (own == NULL) {
            return NULL;
        }
        add(on, (ls_dtype)to->dtype, own->data, (*slot)->data, to->numel, false);
        ls__storage_unref(*slot);
        *slot = own;
    }
    return *slot != NULL ? (*slot)->data : NULL;
}

/* A gradient that was passed on belongs to other nodes as well, and one that a rule has given may
 * be what it saved. */
ls_status ls__gradient_own(ls__tensor_node *to)
{
    LS_ASSERT(to->grad != NULL && !ls__node_is_leaf(to));
    return gradient_memory(to->grad->pool, to) != NULL ? LS_OK : ls__self.status;
}

/* A node that is not a leaf needs no mark: its gradient is present once it has memory. */
static void mark_present(ls__tensor_node *to)
{
    if (ls__node_is_leaf(to)) {
        *ls__leaf_of(to)->present = true;
    }
}

/* The edge leads to the whole tensor. The first gradient of an operation's output is shared without
 * a copy; a leaf's is always copied, because its address is fixed. */
static ls_status accumulate_whole(ls__tensor_node *to, ls__storage *from)
{
    bool adds = present(to);
    if (!adds && !ls__node_is_leaf(to)) {
        to->grad = ls__storage_ref(from);
        return LS_OK;
    }
    void *memory = gradient_memory(from->pool, to);
    if (memory == NULL) {
        return ls__self.status;
    }
    add(from->pool, (ls_dtype)to->dtype, memory, from->data, to->numel, adds);
    mark_present(to);
    return LS_OK;
}

/* The edge leads to a part of the tensor. Elements outside the view receive zero when this is the
 * first gradient, and stay as they are otherwise. */
static ls_status accumulate_view(ls__tensor_node *to, const ls__geometry *view, ls__storage *from)
{
    ls__pool *on = from->pool;
    bool adds = present(to);
    char *memory = gradient_memory(on, to);
    if (memory == NULL) {
        return ls__self.status;
    }
    if (!adds && view->numel < to->numel) {
        ls__fill_zero(on, memory, (ls_dtype)to->dtype, to->numel);
    }
    if (view->numel > 0) {
        size_t element = ls_dtype_size((ls_dtype)to->dtype);
        on->k->scatter(memory + view->offset * (int64_t)element, view->stride, from->data,
                       view->ndim, view->dim, element, adds ? 1.0f : 0.0f, on->stream);
    }
    mark_present(to);
    return LS_OK;
}

/* An edge with a geometry leads to a view: the gradient covers only a part of the tensor. */
ls_status ls__accumulate(const ls__edge *edge, ls__storage *from)
{
    LS_ASSERT(edge->to != NULL && from != NULL);
    return edge->geometry != NULL ? accumulate_view(edge->to, edge->geometry, from)
                                  : accumulate_whole(edge->to, from);
}

/* Whether an earlier edge of the same node leads to the same place. A rule may fill its gradients
 * in any order, so only one of the two edges can be written in place. */
static bool shares_target(const ls__tensor_node *node, int i)
{
    for (int j = 0; j < i; j++) {
        if (node->edge[j].to == node->edge[i].to) {
            return true;
        }
    }
    return false;
}

/* Chooses where the rule writes the gradient of input i: in place when the edge leads to a whole
 * tensor and the rule can add (or nothing is there yet), otherwise aside. A rule that passes dy on
 * or gives its own storage needs neither. */
ls_status ls__target_open(const ls__tensor_node *node, int i, ls__tensor_rule *rule,
                          ls__autograd_target *out)
{
    const ls__edge *edge = &node->edge[i];
    *out = (ls__autograd_target){0};
    if (edge->to == NULL || node->op->gives || (node->op->passes >> i & 1)) {
        return LS_OK;
    }
    bool adds = present(edge->to);
    bool direct =
        edge->geometry == NULL && !shares_target(node, i) && (!adds || node->op->accumulates);
    rule->in[i].dtype = (ls_dtype)edge->to->dtype;
    if (direct) {
        rule->in[i].data = gradient_memory(rule->on, edge->to);
        rule->in[i].beta = adds ? 1.0f : 0.0f;
        return rule->in[i].data != NULL ? LS_OK : ls__self.status;
    }
    int64_t numel = edge->geometry != NULL ? edge->geometry->numel : edge->to->numel;
    out->aside = ls__storage_new(rule->on, (size_t)numel * ls_dtype_size(rule->in[i].dtype));
    if (out->aside == NULL) {
        return ls__self.status;
    }
    rule->in[i].data = out->aside->data;
    return LS_OK;
}

/* Accumulates dy itself, converted when the tensor behind the edge has another type: a sum of
 * bfloat16 and float32 is float32, and the gradient of its one operand bfloat16. */
static ls_status pass_on(const ls__tensor_node *node, const ls__edge *edge, ls__storage *dy)
{
    if (edge->to->dtype == node->dtype) {
        return ls__accumulate(edge, dy);
    }
    ls_dtype dtype = (ls_dtype)edge->to->dtype;
    ls__storage *cast = ls__storage_new(dy->pool, (size_t)node->numel * ls_dtype_size(dtype));
    if (cast == NULL) {
        return ls__self.status;
    }
    ls__cast_gradient(dy->pool, cast->data, dtype, dy->data, node->numel, 0.0f);
    ls_status status = ls__accumulate(edge, cast);
    ls__storage_unref(cast);
    return status;
}

/* Must be called once for each opened target, in the order of the edges: this is the order in which
 * sums are made. */
ls_status ls__target_close(ls__autograd_pass *pass, const ls__tensor_node *node, int i,
                           ls__tensor_rule *rule, ls__storage *dy, ls__autograd_target *target)
{
    const ls__edge *edge = &node->edge[i];
    ls_status status = LS_OK;
    if (edge->to == NULL) {
        return LS_OK;
    }
    if (node->op->passes >> i & 1) {
        status = pass_on(node, edge, dy);
    } else if (rule->in[i].give != NULL) {
        status = ls__accumulate(edge, rule->in[i].give);
    } else if (target->aside != NULL) {
        status = ls__accumulate(edge, target->aside);
    } else {
        mark_present(edge->to);
    }
    ls__storage_unref(rule->in[i].give);
    ls__storage_unref(target->aside);
    rule->in[i].give = NULL;
    target->aside = NULL;
    LS_TRY(status);
    return ls__arrived(pass, edge->to);
}

ls_status ls__give_zeros(ls__autograd_pass *pass, ls__tensor_node *node)
{
    ls__pool *on = pass->tensors->made;
    void *memory = gradient_memory(on, node);
    if (memory == NULL) {
        return ls__self.status;
    }
    ls__fill_zero(on, memory, (ls_dtype)node->dtype, node->numel);
    pass->lit = pass->lit || pass->weight == 0.0;
    return LS_OK;
}

/* Makes an absent gradient of a leaf present and zero. */
static ls_status zero_grad_of(ls__leaf *leaf)
{
    ls__captured_meet(leaf, LS__GRADIENT_USED);
    if (*leaf->present) {
        return LS_OK;
    }
    LS_TRY(announce(leaf));
    if (leaf->grad == NULL) {
        leaf->grad = ls__storage_new(leaf->value->pool, gradient_bytes(&leaf->node));
        if (leaf->grad == NULL) {
            return ls__self.status;
        }
    }
    ls__fill_zero(leaf->grad->pool, leaf->grad->data, (ls_dtype)leaf->node.dtype, leaf->node.numel);
    *leaf->present = true;
    return LS_OK;
}

/* Only an observed leaf receives zeros; other absent gradients stay absent. */
ls_status ls__accumulate_nothing(ls__autograd_pass *pass, ls__tensor_node *to)
{
    if (to == NULL) {
        return LS_OK;
    }
    if (ls__node_is_leaf(to) && ls__leaf_of(to)->observer != NULL) {
        LS_TRY(zero_grad_of(ls__leaf_of(to)));
    }
    return ls__arrived(pass, to);
}

/* Every accumulation was announced by the plan, so the last one makes the gradient final: hooks run
 * first, because they may change it, and the observer may reduce it at once. */
ls_status ls__arrived(ls__autograd_pass *pass, ls__tensor_node *to)
{
    if (!ls__node_is_leaf(to)) {
        return LS_OK;
    }
    LS_ASSERT(to->pending > 0); /* counted when the pass was planned */
    if (--to->pending > 0) {
        return LS_OK;
    }
    if (to->hooks != NULL && (pass->weight != 0.0 || pass->lit)) {
        LS_TRY(ls__grad_hooks_run(to));
    }
    return ls__observers_ready(ls__leaf_of(to));
}

/* For contributions that are whole when they arrive: a given gradient, one that a user's function
 * returned, and those that do not come. */
ls_status ls__contribute(ls__autograd_pass *pass, const ls__edge *edge, ls__storage *from)
{
    if (edge->to == NULL) {
        return LS_OK;
    }
    if (pass->part == LS__PART_INPUT && !edge->to->leads) {
        const ls__put_off item = {.edge = *edge, .grad = from};
        (void)ls__node_ref(edge->to);
        (void)(from != NULL ? ls__storage_ref(from) : NULL);
        return ls__later_put(pass->tensors, pass->later, &item);
    }
    if (from == NULL) {
        return ls__accumulate_nothing(pass, edge->to);
    }
    LS_TRY(ls__accumulate(edge, from));
    return ls__arrived(pass, edge->to);
}
