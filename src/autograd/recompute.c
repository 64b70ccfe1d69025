/* Recomputation: a piece of the graph that is thrown away and made anew when backward needs it.
 *
 *     forward                          ls_backward
 *     x ─▶ [ a ─▶ b ─▶ c ] ─▶ y        … ─▶ (recompute): run the function again, x' over x's memory
 *     x ─────(recompute)────▶ y                          c ─▶ b ─▶ a ─▶ what lies before x
 *              └──▶ parameters
 *
 * The first run records its graph in a scope of its own. Before the scope is left the graph is
 * walked once for what it leads to: leaves, and older operations (x's, most often). These become
 * the *links* of one node, which stands for the whole piece: a plan that reaches it reaches them,
 * each leaf with one accumulation still to come, so nothing is ready before the piece has run.
 *
 * In backward the second graph leads to the very same nodes as the first did, for x' has x's node
 * and geometry, and y has those of its operation's output. Its operations run at the place in the
 * order where the first ones would have been (everything outside is older than all of them, or
 * younger), so every sum is made in the same order and has the same bits. The one accumulation
 * announced by a link is replaced by what the second graph really brings; were that nothing,
 * somebody would wait forever, so the two sets are compared first. */
#include <string.h>

#include "autograd/pass.h"
#include "base/assert.h"
#include "tensor/op.h"
#include "tensor/rng_stream.h"

typedef struct result { /* what came out: a view, it may be, of what an operation made */
    ls_shape shape;
    int64_t stride[LS_DIMS_MAX];
    int64_t offset;                  /* in storage */
    int64_t base_numel, base_offset; /* of the operation's output */
    int dtype;
} result;

typedef struct piece { /* the node's context */
    ls_recompute_fn fn;
    void *arg;
    ls__record x; /* as it was; never linked. Its storage is saved by the node */
    result y;
    ls__draws draws; /* where random operations stood before the first run */
    uint64_t drawn;  /* operations that drew */
    bool autocast;
} piece;

const ls__op ls__recompute_op = {.name = "recompute"}; /* the engine knows it; it has no rule */

static uint64_t nodes_made(ls__tensors *tensors)
{
    return atomic_load_explicit(&tensors->nodes_made, memory_order_relaxed);
}

static uint64_t new_number(ls__autograd *autograd)
{
    return atomic_fetch_add_explicit(&autograd->passes, 1, memory_order_relaxed) + 1;
}

static bool inside(const ls__tensor_node *node, uint64_t border)
{
    return node != NULL && !ls__node_is_leaf(node) && node->number > border;
}

static result result_of(const ls__record *y)
{
    result r = {.shape = ls__record_shape(y),
                .offset = y->offset,
                .base_numel = y->node->numel,
                .base_offset = y->node->offset,
                .dtype = y->dtype};
    memcpy(r.stride, y->stride, sizeof r.stride);
    return r;
}

/* NULL with the error set. */
static ls__record *call_function(ls__tensors *tensors, ls_recompute_fn fn, ls_tensor *x, void *arg)
{
    return ls__record_sound(tensors, fn(x, arg), "recompute");
}

/* ---- the first run ------------------------------------------------------------------------ */

static void links_fini(ls__storage *storage)
{
    const ls__links *links = storage->data;
    for (int64_t i = 0; i < links->count; i++) {
        ls__node_unref(links->at[i].node);
    }
}

static ls__storage *make_links(ls__tensors *tensors, const ls__pile *outside)
{
    size_t bytes = sizeof(ls__links) + (size_t)outside->count * sizeof(ls__link);
    ls__storage *storage = ls__storage_new(tensors, bytes);
    if (storage == NULL) {
        return NULL;
    }
    ls__links *links = storage->data;
    links->count = outside->count;
    for (int64_t i = 0; i < outside->count; i++) {
        ls__tensor_node *node = outside->at[i];
        bool leaf = ls__node_is_leaf(node);
        links->at[i].node = ls__node_ref(node);
        links->at[i].version = leaf ? ls__storage_version(ls__leaf_of(node)->value) : 0;
    }
    storage->fini = links_fini;
    return storage;
}

typedef struct outcome { /* of the first run, after its scope was left */
    ls__record y;        /* never linked; holds references to its storage and, outside, its node */
    ls__storage *links;  /* NULL: the piece leads nowhere */
    result result;       /* with links */
    bool x_reached;
} outcome;

static ls_status look_inside(ls__call *call, uint64_t border, const ls__record *y, outcome *out)
{
    ls__autograd *autograd = ls__autograd_get(call->name);
    if (autograd == NULL) {
        return ls__self.status;
    }
    ls__walk walk = {.name = call->name,
                     .tensors = call->tensors,
                     .number = new_number(autograd),
                     .border = border};
    ls_status status = ls__walk_run(&walk, y->node);
    if (status == LS_OK && walk.outside.count > 0) {
        out->links = make_links(call->tensors, &walk.outside);
        status = out->links != NULL ? LS_OK : ls__self.status;
    }
    const ls__tensor_node *x = call->in[0]->node;
    out->x_reached = x != NULL && x->pass == walk.number;
    ls__walk_fini(&walk);
    return status;
}

static ls_status run_first(ls__call *call, ls_recompute_fn fn, ls_tensor *x, void *arg,
                           outcome *out)
{
    uint64_t border = nodes_made(call->tensors);
    ls__record *y = call_function(call->tensors, fn, x, arg);
    if (y == NULL) {
        return ls__self.status;
    }
    bool made = inside(y->node, border);
    if (made) {
        LS_TRY(look_inside(call, border, y, out));
        out->result = result_of(y);
    }
    out->y = *y;
    out->y.storage = ls__storage_ref(y->storage);
    out->y.node = made ? NULL : ls__node_ref(y->node); /* x itself, say: nothing to do again */
    return LS_OK;
}

static void drop_outcome(outcome *out)
{
    ls__storage_unref(out->y.storage);
    ls__node_unref(out->y.node);
    ls__storage_unref(out->links);
}

/* The node of `y`; it takes the links and what is saved of x. */
static void record_piece(ls__call *call, const piece *p, ls__record *y, ls__tensor_saved *x,
                         outcome *out)
{
    call->grad = true;
    call->count = 0; /* links, no edges */
    ls__tensor_node *node = ls__call_record(call, &ls__recompute_op, y, sizeof *p);
    if (node == NULL) {
        return;
    }
    memcpy(node->context, p, sizeof *p);
    node->numel = p->y.base_numel; /* it takes the place of the operation that y is a view of */
    node->offset = p->y.base_offset;
    node->saved[LS__RECOMPUTE_X] = *x;
    x->storage = NULL;
    node->saved[LS__RECOMPUTE_LINKS].storage = out->links;
    out->links = NULL;
}

ls_tensor *ls_recompute_call(ls_recompute_fn fn, ls_tensor *x, void *arg)
{
    ls__call call;
    if (!ls__call_begin(&call, "recompute", 1, &x)) {
        return call.failed;
    }
    if (fn == NULL) {
        return ls__call_fail(&call, LS_ERR_INVALID, "the function is NULL; give the one to run");
    }
    const char *file = ls__self.file;
    int line = ls__self.line;
    ls_runtime *runtime = call.tensors->runtime;
    piece p = {.fn = fn,
               .arg = arg,
               .x = *call.in[0],
               .draws = ls__draws_take(runtime, 0),
               .autocast = ls__self.autocast};
    ls__tensor_saved saved = {.storage = ls__storage_ref(p.x.storage),
                              .version = ls__storage_version(p.x.storage),
                              .argument = 1};
    outcome out = {0};
    ls_scope *scope = ls_scope_enter();
    ls_status status = run_first(&call, fn, x, arg, &out);
    ls_scope_leave(scope);
    p.drawn = ls__draws_take(runtime, 0).calls - p.draws.calls;
    ls__self.file = file;
    ls__self.line = line;
    ls__record *y = status == LS_OK ? ls__record_alias(call.tensors, &out.y) : NULL;
    if (y == NULL) {
        call.failed = ls__poison(call.tensors);
    } else if (out.links != NULL) {
        p.y = out.result;
        p.x.node = out.x_reached ? p.x.node : NULL;
        record_piece(&call, &p, y, &saved, &out);
    }
    ls__storage_unref(saved.storage);
    drop_outcome(&out);
    return ls__call_finish(&call, y);
}

ls_tensor *ls_recompute_with(ls_recompute_fn fn, ls_tensor *x, const void *arg, size_t bytes)
{
    ls__tensors *tensors = ls__tensors_get("recompute");
    if (tensors == NULL) {
        return ls__poison_fixed(ls__self.status);
    }
    void *copy = ls__scope_alloc(tensors, bytes); /* lives as long as the node */
    if (copy == NULL) {
        return ls__poison(tensors);
    }
    memcpy(copy, arg, bytes);
    return ls_recompute_call(fn, x, copy);
}

bool ls_recomputing(void)
{
    return ls__self.replay != NULL;
}

/* ---- the second run, in backward ---------------------------------------------------------- */

static ls_status fail_differs(const ls__pass *pass, const ls__tensor_node *node, const char *how)
{
    return ls__fail(LS_ERR_STATE,
                    "%s: recompute at %s:%d: run again for its gradients, the function %s than in "
                    "the forward pass; it must do the same both times (call ls_module_train after "
                    "ls_backward, and keep what it reads as it was)",
                    pass->name, node->file != NULL ? node->file : "?", node->line, how);
}

static ls_status check_unchanged(const ls__pass *pass, const ls__tensor_node *node)
{
    const ls__tensor_saved *x = &node->saved[LS__RECOMPUTE_X];
    if (ls__storage_version(x->storage) != x->version) {
        return ls__fail_changed(pass, node, x);
    }
    const ls__links *links = ls__links_of(node);
    for (int64_t i = 0; i < links->count; i++) {
        ls__tensor_node *to = links->at[i].node;
        if (ls__node_is_leaf(to) &&
            ls__storage_version(ls__leaf_of(to)->value) != links->at[i].version) {
            return ls__fail_changed(pass, node, &(ls__tensor_saved){.leaf = to});
        }
    }
    return LS_OK;
}

/* Calls the function as it was called first: its mode, its random numbers, its line. */
static ls__record *call_again(ls__pass *pass, const ls__tensor_node *node, ls__draws *draws)
{
    const piece *p = node->context;
    const ls__thread *self = &ls__self;
    bool no_grad = self->no_grad, autocast = self->autocast;
    ls__draws *replay = self->replay;
    const char *file = self->file;
    int line = self->line;
    *draws = p->draws;
    ls__self.no_grad = false;
    ls__self.autocast = p->autocast;
    ls__self.replay = draws;
    ls__self.file = node->file;
    ls__self.line = node->line;
    ls__record *x = ls__record_alias(pass->tensors, &p->x);
    ls__record *y = x != NULL ? call_function(pass->tensors, p->fn, ls__handle(x), p->arg) : NULL;
    ls__self.no_grad = no_grad;
    ls__self.autocast = autocast;
    ls__self.replay = replay;
    ls__self.file = file;
    ls__self.line = line;
    return y;
}

static bool same_result(const ls__record *y, const result *r)
{
    const result now = result_of(y);
    size_t bytes = (size_t)r->shape.ndim * sizeof r->stride[0];
    return now.shape.ndim == r->shape.ndim && now.offset == r->offset &&
           now.base_numel == r->base_numel && now.dtype == r->dtype &&
           now.base_offset == r->base_offset && memcmp(now.shape.dim, r->shape.dim, bytes) == 0 &&
           memcmp(now.stride, r->stride, bytes) == 0;
}

/* The walk met all that the links announced and nothing else: what was announced is taken back, for
 * it is counted in full now. */
static ls_status settle_links(ls__pass *pass, ls__tensor_node *node, const ls__walk *walk)
{
    const ls__links *links = ls__links_of(node);
    bool same = walk->outside.count == links->count;
    for (int64_t i = 0; i < links->count && same; i++) {
        same = links->at[i].node->pass == walk->number;
    }
    if (!same) {
        return fail_differs(pass, node, "used other parameters or tensors");
    }
    for (int64_t i = 0; i < links->count; i++) {
        links->at[i].node->pending--; /* of a leaf; for others it says nothing */
    }
    return LS_OK;
}

/* Makes the second graph in `scope`; what it holds in the end is only what its rules will read. */
static ls_status make_graph(ls__pass *pass, ls__tensor_node *node, ls_scope *scope, ls__walk *walk,
                            ls__edge *root)
{
    const piece *p = node->context;
    ls__draws draws;
    LS_TRY(check_unchanged(pass, node));
    walk->border = nodes_made(pass->tensors);
    const ls__record *y = call_again(pass, node, &draws);
    if (y == NULL) {
        return ls__self.status;
    }
    if (draws.calls - p->draws.calls != p->drawn) {
        return fail_differs(pass, node, "drew other random numbers");
    }
    if (!inside(y->node, walk->border)) {
        return fail_differs(pass, node, "used other parameters or tensors");
    }
    if (!same_result(y, &p->y)) {
        return fail_differs(pass, node, "gave another shape or type");
    }
    LS_TRY(ls__walk_run(walk, y->node));
    LS_TRY(settle_links(pass, node, walk));
    root->to = y->node; /* whole: this node's gradient lies as that of y's operation does */
    ls__scope_forget(scope);
    return LS_OK;
}

ls_status ls__recompute_run(ls__pass *pass, ls__tensor_node *node)
{
    LS_ASSERT(node->grad != NULL);
    ls__storage *dy = node->grad;
    node->grad = NULL;
    ls__walk walk = {.name = pass->name,
                     .tensors = pass->tensors,
                     .number = new_number(pass->autograd),
                     .count = LS__COUNT_ON};
    ls__edge root = {0};
    ls_scope *scope = ls_scope_enter();
    ls_status status =
        ls__self.scope == scope ? make_graph(pass, node, scope, &walk, &root) : ls__self.status;
    status = status == LS_OK ? ls__accumulate(pass, &root, dy) : status;
    ls__storage_unref(dy);
    status = status == LS_OK ? ls__pass_run(pass, &walk.order) : status;
    ls__walk_fini(&walk);
    ls_scope_leave(scope);
    return status;
}
