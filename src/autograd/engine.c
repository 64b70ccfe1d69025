/* The backward pass.
 *
 *   plan    walk from the loss to everything it came from, latest node first; count for each leaf
 *           how many accumulations it will receive; note which observed parameters are reached
 *   begin   observers learn what will come
 *   run     each node in that order: its gradient is complete, because whatever used its result was
 *           made later and is done; its rule adds to its inputs' gradients; a leaf whose count is
 *           reached is ready
 *   end     observers finish (buckets are reduced); the graph is released as it is walked
 *
 * Creation numbers make the order a plain max-heap: an input is always older than what uses it. So
 * nothing is recursive, and the order of work, and of every addition, is the same in every run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "autograd/pass.h"
#include "base/activity.h"
#include "base/assert.h"
#include "tensor/shape.h"

#define PILE_FIRST 256

/* ---- a pile of nodes, also used as a heap ------------------------------------------------- */

ls_status ls__pile_push(ls__pile *pile, ls__tensors *tensors, ls__node *node)
{
    if (pile->count == pile->room) {
        int64_t room = pile->room > 0 ? 2 * pile->room : PILE_FIRST;
        ls__storage *memory = ls__storage_new(tensors, (size_t)room * sizeof(ls__node *));
        if (memory == NULL) {
            return ls__self.status;
        }
        if (pile->count > 0) {
            memcpy(memory->data, pile->at, (size_t)pile->count * sizeof(ls__node *));
        }
        ls__storage_unref(pile->memory);
        pile->memory = memory;
        pile->at = memory->data;
        pile->room = room;
    }
    pile->at[pile->count++] = node;
    return LS_OK;
}

static void swap(ls__pile *heap, int64_t i, int64_t j)
{
    ls__node *node = heap->at[i];
    heap->at[i] = heap->at[j];
    heap->at[j] = node;
}

static ls_status heap_push(ls__pile *heap, ls__tensors *tensors, ls__node *node)
{
    LS_TRY(ls__pile_push(heap, tensors, node));
    for (int64_t i = heap->count - 1; i > 0; i = (i - 1) / 2) {
        if (heap->at[i]->number < heap->at[(i - 1) / 2]->number) {
            break;
        }
        swap(heap, i, (i - 1) / 2);
    }
    return LS_OK;
}

static ls__node *heap_pop(ls__pile *heap)
{
    ls__node *top = heap->at[0];
    heap->at[0] = heap->at[--heap->count];
    for (int64_t i = 0;;) {
        int64_t child = 2 * i + 1;
        if (child >= heap->count) {
            return top;
        }
        if (child + 1 < heap->count && heap->at[child + 1]->number > heap->at[child]->number) {
            child++;
        }
        if (heap->at[child]->number < heap->at[i]->number) {
            return top;
        }
        swap(heap, i, child);
        i = child;
    }
}

/* ---- plan --------------------------------------------------------------------------------- */

static ls_status fail_released(const ls__pass *pass, const ls__node *node)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: the graph of this loss (%s, made at %s:%d) was released by an earlier "
                    "backward through it; run the forward pass again for each ls_backward, or add "
                    "the losses up and call it once",
                    pass->name, node->op->name, node->file != NULL ? node->file : "?", node->line);
}

/* An edge leads to `to`: counts it, and puts an operation met for the first time on the heap. */
static ls_status reach(ls__pass *pass, ls__pile *heap, ls__node *to)
{
    bool first = to->pass != pass->number;
    to->pass = pass->number;
    if (ls__node_is_leaf(to)) {
        to->pending = first ? 1 : to->pending + 1;
        return first ? ls__observers_reached(pass, ls__leaf_of(to)) : LS_OK;
    }
    if (to->released) {
        return fail_released(pass, to);
    }
    return first ? heap_push(heap, pass->tensors, to) : LS_OK;
}

static ls_status plan(ls__pass *pass)
{
    ls__pile heap = {0};
    ls_status status = reach(pass, &heap, pass->root.to);
    while (status == LS_OK && heap.count > 0) {
        ls__node *node = heap_pop(&heap);
        status = ls__pile_push(&pass->order, pass->tensors, node);
        for (int i = 0; i < LS__EDGES_MAX && status == LS_OK; i++) {
            if (node->edge[i].to != NULL) {
                status = reach(pass, &heap, node->edge[i].to);
            }
        }
    }
    ls__storage_unref(heap.memory);
    return status;
}

/* ---- run ---------------------------------------------------------------------------------- */

static ls_status fail_changed(const ls__pass *pass, const ls__node *node, const ls__saved *saved)
{
    char what[160];
    const ls__leaf *leaf = saved->leaf != NULL ? ls__leaf_of(saved->leaf) : NULL;
    if (leaf != NULL && leaf->name != NULL) {
        (void)snprintf(what, sizeof what, "parameter %.100s %.40s", leaf->name,
                       ls__shape_print(leaf->shape).text);
    } else if (saved->argument > 0) {
        (void)snprintf(what, sizeof what, "argument %d", saved->argument);
    } else {
        (void)snprintf(what, sizeof what, "result");
    }
    return ls__fail(LS_ERR_STATE,
                    "%s: %s at %s:%d needs its %s as it was in the forward pass, but it was "
                    "changed in place since; change it after ls_backward, or change a copy "
                    "(ls_clone)",
                    pass->name, node->op->name, node->file != NULL ? node->file : "?", node->line,
                    what);
}

/* Parameters are saved by identity: their numbers are looked up now. */
static ls_status resolve_saved(const ls__pass *pass, const ls__node *node, ls__rule *rule)
{
    for (int i = 0; i < LS__SAVED_MAX; i++) {
        const ls__saved *saved = &node->saved[i];
        ls__storage *storage =
            saved->leaf != NULL ? ls__leaf_of(saved->leaf)->value : saved->storage;
        if (storage == NULL) {
            continue;
        }
        if (ls__storage_version(storage) != saved->version) {
            return fail_changed(pass, node, saved);
        }
        rule->saved[i] = (const char *)storage->data + saved->offset;
    }
    return LS_OK;
}

static bool needs_rule(const ls__node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (node->edge[i].to != NULL && !(node->op->passes >> i & 1)) {
            return true;
        }
    }
    return false;
}

static ls_status run_node(ls__pass *pass, ls__node *node)
{
    ls__rule rule = {.node = node, .tensors = pass->tensors, .k = pass->tensors->kernels};
    ls__target target[LS__EDGES_MAX] = {{0}};
    LS_ASSERT(node->grad != NULL);
    ls__storage *dy = node->grad;
    node->grad = NULL; /* this frame's; what passes it on takes references */
    rule.dy = dy->data;
    ls_status status = resolve_saved(pass, node, &rule);
    for (int i = 0; i < LS__EDGES_MAX && status == LS_OK; i++) {
        status = ls__target_open(pass, node, i, &rule, &target[i]);
    }
    if (status == LS_OK && needs_rule(node)) {
        status = node->op->backward(&rule);
    }
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        if (status == LS_OK) {
            status = ls__target_close(pass, node, i, &rule, dy, &target[i]);
        }
        ls__storage_unref(rule.in[i].give);
        ls__storage_unref(target[i].aside);
    }
    ls__storage_unref(dy);
    return status;
}

/* Weight 0: the pass goes through the motions and computes nothing, so that no NaN of a batch that
 * does not count gets in. What an observer will read must be defined, so an absent gradient of its
 * is zero. */
static ls_status skip_edge(ls__pass *pass, ls__node *to)
{
    if (to != NULL && ls__node_is_leaf(to) && ls__leaf_of(to)->observer != NULL) {
        LS_TRY(ls__leaf_grad_zero(pass->tensors, ls__leaf_of(to)));
    }
    return to != NULL ? ls__arrived(pass, to) : LS_OK;
}

static ls_status skip_node(ls__pass *pass, const ls__node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        LS_TRY(skip_edge(pass, node->edge[i].to));
    }
    return LS_OK;
}

/* "fc1.weight" when the node uses a named parameter, else "matmul". */
static const char *detail_of(const ls__node *node)
{
    for (int i = 0; i < LS__EDGES_MAX; i++) {
        ls__node *to = node->edge[i].to;
        if (to != NULL && ls__node_is_leaf(to) && ls__leaf_of(to)->name != NULL) {
            return ls__leaf_of(to)->name;
        }
    }
    return node->op->name;
}

static ls_status seed(ls__pass *pass)
{
    if (pass->weight == 0.0) {
        return skip_edge(pass, pass->root.to);
    }
    ls__storage *one = ls__storage_new(pass->tensors, sizeof(float));
    if (one == NULL) {
        return ls__self.status;
    }
    *(float *)one->data = (float)pass->weight;
    ls_status status = ls__accumulate(pass, &pass->root, one);
    ls__storage_unref(one);
    return status == LS_OK ? ls__arrived(pass, pass->root.to) : status;
}

static ls_status run(ls__pass *pass)
{
    LS_TRY(seed(pass));
    for (int64_t i = 0; i < pass->order.count; i++) {
        ls__node *node = pass->order.at[i];
        (void)ls__activity_enter(LS__PHASE_BACKWARD, detail_of(node));
        LS_TRY(pass->weight != 0.0 ? run_node(pass, node) : skip_node(pass, node));
        ls__node_release(node);
    }
    return LS_OK;
}

/* ---- the whole pass ----------------------------------------------------------------------- */

static ls_status check_loss(ls__pass *pass, const ls_tensor *loss)
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
    if (!(pass->weight >= 0.0) || !isfinite(pass->weight)) {
        return ls__fail(LS_ERR_INVALID, "%s: weight %g; give a finite number >= 0", pass->name,
                        pass->weight);
    }
    return ls__edge_to(pass->tensors, record, &pass->root) ? LS_OK : ls__self.status;
}

static void drop_gradients(ls__pass *pass)
{
    for (int64_t i = 0; i < pass->order.count; i++) {
        ls__storage_unref(pass->order.at[i]->grad);
        pass->order.at[i]->grad = NULL;
    }
}

static ls_status backward(const char *name, ls_tensor *loss, bool weighted, double weight)
{
    ls__pass pass = {.name = name, .weighted = weighted, .weight = weight};
    pass.tensors = ls__tensors_get(name);
    pass.autograd = pass.tensors != NULL ? ls__autograd_get(name) : NULL;
    if (pass.autograd == NULL) {
        return ls__self.status;
    }
    pass.number = atomic_fetch_add_explicit(&pass.autograd->passes, 1, memory_order_relaxed) + 1;
    ls__phase former = ls__activity_enter(LS__PHASE_BACKWARD, "");
    ls_status status = check_loss(&pass, loss);
    status = status == LS_OK ? plan(&pass) : status;
    if (status < 0) { /* the caller's mistake, at this line */
        (void)ls__fail_at_site(status);
    }
    status = status == LS_OK ? ls__observers_begin(&pass) : status;
    status = status == LS_OK ? run(&pass) : status;
    status = status == LS_OK ? ls__observers_end(&pass) : status;
    if (status < 0) {
        drop_gradients(&pass);
        ls__observers_abort(&pass, status);
    }
    ls__observers_drop(&pass);
    ls__node_unref(pass.root.to);
    ls__storage_unref(pass.order.memory);
    ls__activity_leave(former);
    return status;
}

ls_status ls_backward(ls_tensor *loss)
{
    return backward("backward", loss, false, 1.0);
}

ls_status ls_backward_weighted(ls_tensor *loss, double weight)
{
    return backward("backward_weighted", loss, true, weight);
}
