/* SPDX-License-Identifier: Apache-2.0 */
/* Recording a forward pass (graph.h). */
#include "plan/intra/graph.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/runtime.h"
#include "tensor/through.h"

#define CHUNK_BYTES ((size_t)256 << 10)
#define SEEN (4 * LS__GRAPH_OPS_MAX) /* places of a table by handles */

typedef struct seen {
    const ls_tensor *handle; /* NULL: free */
    int op;
} seen;

typedef struct recorder {
    ls__meter meter; /* first: the meter's functions get a pointer to it */
    ls__graph *graph;
    const ls__storage **storage; /* [params] */
    seen *seen;                  /* [SEEN], the newest result with a handle */
    ls_status status;
} recorder;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}

/* ---- results by their handles ---------------------------------------------------------------- */

static seen *place_of(recorder *r, const ls_tensor *handle)
{
    size_t at = ((uintptr_t)handle * 0x9E3779B97F4A7C15u >> 20) % SEEN;
    while (r->seen[at].handle != NULL && r->seen[at].handle != handle) {
        at = (at + 1) % SEEN;
    }
    return &r->seen[at];
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static int param_of(const recorder *r, const ls__record *in)
{
    for (int i = 0; i < r->graph->params; i++) {
        if (r->storage[i] == in->storage) {
            return i;
        }
    }
    return -1;
}

/* Parameters that are not trained are data. */
static void add_input(recorder *r, const ls__call *call, int i, ls__graph_op *op)
{
    const ls__record *in = call->in[i];
    op->from[i] = in == NULL ? LS__GRAPH_ABSENT : LS__GRAPH_DATA;
    if (in == NULL || in->node == NULL) {
        return;
    }
    const seen *found = place_of(r, ls__handle(in));
    const int param = ls__node_is_leaf(in->node) ? param_of(r, in) : -1;
    if (found->handle != NULL && param < 0) {
        op->from[i] = found->op;
    } else if (param >= 0) {
        op->from[i] = LS__GRAPH_PARAM;
        op->param[i] = param;
    } else {
        r->status =
            ls__fail(LS_ERR_UNSUPPORTED,
                     "plan: argument %d of %s is made by an operator that is not seen, such "
                     "as a cast of a mixed-precision step; plan a float32 model of plain "
                     "operators",
                     i + 1, call->name);
    }
}

/* ---- kinds ----------------------------------------------------------------------------------- */

static bool is_named(const ls__graph_kind *k, const char *prefix)
{
    return strncmp(k->name, prefix, strlen(prefix)) == 0;
}

static int64_t last_of(ls_shape s, int from_end)
{
    return s.ndim >= from_end ? s.dim[s.ndim - from_end] : 1;
}

static double numel(ls_shape s)
{
    double all = 1.0;
    for (int d = 0; d < s.ndim; d++) {
        all *= (double)s.dim[d];
    }
    return all;
}

/* Attention is two products of each head. */
static void measure_work(ls__graph_kind *k)
{
    const double out = numel(k->shape);
    if (is_named(k, "linear") || is_named(k, "matmul")) {
        k->k = last_of(k->in[0], 1);
        k->n = last_of(k->shape, 1);
        k->m = k->n > 0 ? (int64_t)(out / (double)k->n) : 0;
        k->macs = out * (double)k->k;
    } else if (k->how == LS__FOLLOW_ATTENDS) {
        k->k = last_of(k->in[0], 1);
        k->n = last_of(k->in[1], 2);
        k->m = k->k > 0 ? (int64_t)(numel(k->in[0]) / (double)k->k) : 0;
        k->macs = 2.0 * numel(k->in[0]) * (double)k->n;
    }
}

/* Slices of the last dimension in equal parts belong to a layer whose parts lie one after the
 * other, and which is sharded part by part. */
static void see_groups(ls__graph_kind *k)
{
    const int d = k->shape.ndim - 1;
    if (strcmp(k->name, "slice") == 0 && d >= 0 && k->shape.dim[d] > 0 &&
        k->shape.dim[d] < k->in[0].dim[d] && k->in[0].dim[d] % k->shape.dim[d] == 0 &&
        k->in[0].dim[d] / k->shape.dim[d] < 256) {
        k->groups = (uint8_t)(k->in[0].dim[d] / k->shape.dim[d]);
        k->to[0][d] = (int8_t)d;
    }
}

static void describe_kind(const recorder *r, const ls__call *call, const ls__record *out,
                          const ls__graph_op *op, ls__graph_kind *k)
{
    memset(k, 0, sizeof *k); /* kinds are compared byte by byte */
    (void)snprintf(k->name, sizeof k->name, "%s", call->name);
    k->shape = ls__record_shape(out);
    k->count = (uint8_t)call->count;
    k->how = call->follows.how;
    k->linear = call->follows.linear;
    k->constant = call->count > 0;
    for (int i = 0; i < call->count; i++) {
        k->from[i] = op->from[i] < 0 ? (int8_t)op->from[i] : 0;
        if (op->from[i] != LS__GRAPH_PARAM) {
            k->constant = k->constant && op->from[i] >= 0 &&
                          r->graph->kind[r->graph->op[op->from[i]].kind].constant;
        }
        if (call->in[i] == NULL) {
            continue;
        }
        k->in[i] = ls__record_shape(call->in[i]);
        k->view = k->view || call->in[i]->storage == out->storage;
        for (int d = 0; d < k->in[i].ndim; d++) {
            k->to[i][d] = (int8_t)ls__place_through(call, i, d, out);
        }
    }
    measure_work(k);
    see_groups(k);
}

/* -1: no memory. */
static int kind_index(ls__graph *g, const ls__graph_kind *k)
{
    for (int i = g->kinds - 1; i >= 0; i--) {
        if (memcmp(&g->kind[i], k, sizeof *k) == 0) {
            return i;
        }
    }
    if (g->kinds == g->kind_room) {
        const int room = g->kind_room > 0 ? 2 * g->kind_room : 64;
        ls__graph_kind *wider = ls__arena_alloc(&g->arena, (size_t)room * sizeof *wider);
        if (wider == NULL) {
            return -1;
        }
        if (g->kinds > 0) {
            memcpy(wider, g->kind, (size_t)g->kinds * sizeof *wider);
        }
        g->kind = wider;
        g->kind_room = room;
    }
    g->kind[g->kinds] = *k;
    return g->kinds++;
}

/* ---- recording ------------------------------------------------------------------------------- */

static ls_status add_op(recorder *r, const ls__call *call, const ls__record *out)
{
    ls__graph *g = r->graph;
    ls__graph_kind kind;
    if (g->count == LS__GRAPH_OPS_MAX) {
        return ls__fail(LS_ERR_LIMIT, "plan: the model has more than %d operators",
                        LS__GRAPH_OPS_MAX);
    }
    ls__graph_op *op = &g->op[g->count];
    for (int i = 0; i < call->count; i++) {
        add_input(r, call, i, op);
    }
    LS_TRY(r->status);
    describe_kind(r, call, out, op, &kind);
    op->kind = kind_index(g, &kind);
    if (op->kind < 0) {
        return no_memory();
    }
    *place_of(r, ls__handle(out)) = (seen){ls__handle(out), g->count++};
    return LS_OK;
}

static void record_forward(ls__meter *meter, const ls__call *call, const ls__record *out,
                           uint64_t ns)
{
    recorder *r = (recorder *)(void *)meter;
    (void)ns;
    if (r->status == LS_OK && out->node != NULL) {
        r->status = add_op(r, call, out);
    }
}

static void ignore_backward(ls__meter *meter, const ls__tensor_node *node, uint64_t ns)
{
    (void)meter, (void)node, (void)ns;
}

static ls_status run_once(recorder *r, ls__graph_fn *run, void *arg)
{
    ls__meter *before = ls__self.meter;
    ls_scope *scope = ls_scope_enter();
    ls__self.meter = &r->meter;
    const ls_tensor *loss = run(arg);
    ls__self.meter = before;
    const ls_status status = loss != NULL ? ls_tensor_status(loss) : ls__self.status;
    ls_scope_leave(scope);
    return r->status < 0 ? r->status : status;
}

static bool reads_shared(const ls__graph *g, const ls__graph_op *op, const int *readers)
{
    bool shared = false;
    for (int k = 0; k < g->kind[op->kind].count; k++) {
        shared = shared || (op->from[k] == LS__GRAPH_PARAM && readers[op->param[k]] > 1);
    }
    return shared;
}

static void count_readers(const ls__graph *g, int *readers)
{
    for (int i = 0; i < g->count; i++) {
        const ls__graph_op *op = &g->op[i];
        for (int k = 0; k < g->kind[op->kind].count; k++) {
            if (op->from[k] == LS__GRAPH_PARAM) {
                readers[op->param[k]]++;
            }
        }
    }
}

/* Results that nothing uses, parameters of several operators, and fused layers. */
static ls_status finish_graph(ls__graph *g)
{
    bool *used = ls__arena_alloc(&g->arena, (size_t)g->count + 1);
    int *readers = ls__arena_alloc(&g->arena, ((size_t)g->params + 1) * sizeof *readers);
    if (used == NULL || readers == NULL) {
        return no_memory();
    }
    count_readers(g, readers);
    for (int i = g->count - 1; i >= 0; i--) {
        ls__graph_kind kind = g->kind[g->op[i].kind];
        for (int k = 0; k < kind.count; k++) {
            if (g->op[i].from[k] >= 0) {
                used[g->op[i].from[k]] = true;
            }
        }
        kind.last = !used[i];
        kind.shares = reads_shared(g, &g->op[i], readers);
        g->op[i].kind = kind_index(g, &kind);
        const int layer = g->op[i].from[0];
        if (kind.groups > 1 && layer >= 0 && layer < i) {
            ls__graph_kind fused = g->kind[g->op[layer].kind];
            fused.groups = kind.groups;
            g->op[layer].kind = kind_index(g, &fused);
        }
        if (g->op[i].kind < 0 || (layer >= 0 && g->op[layer].kind < 0)) {
            return no_memory();
        }
    }
    return LS_OK;
}

static ls_status record_pass(recorder *r, ls_module *net, ls__graph_fn *run, void *arg)
{
    ls__graph *g = r->graph;
    ls__tensors *tensors = ls__tensors_get("plan");
    g->params = ls_module_param_count(net);
    g->op = ls__arena_alloc(&g->arena, LS__GRAPH_OPS_MAX * sizeof *g->op);
    g->param = ls__arena_alloc(&g->arena, ((size_t)g->params + 1) * sizeof *g->param);
    r->seen = ls__arena_alloc(&g->arena, SEEN * sizeof *r->seen);
    r->storage = ls__arena_alloc(&g->arena, ((size_t)g->params + 1) * sizeof(ls__storage *));
    if (g->op == NULL || g->param == NULL || r->seen == NULL || r->storage == NULL) {
        return no_memory();
    }
    (void)ls_module_params(net, g->param, g->params);
    for (int i = 0; i < g->params; i++) {
        const ls__record *value = ls__record_sound(tensors, g->param[i].value, "plan");
        r->storage[i] = value != NULL ? value->storage : NULL;
    }
    LS_TRY(run_once(r, run, arg));
    return finish_graph(g);
}

ls_status ls__graph_record(ls_module *net, ls__graph_fn *run, void *arg, ls__graph *out)
{
    const ls_runtime *runtime = ls__runtime_get("plan");
    *out = (ls__graph){.count = 0};
    if (runtime == NULL) {
        return ls__self.status;
    }
    ls__arena_init(&out->arena, runtime->env, CHUNK_BYTES);
    recorder r = {
        .meter = {.forward = record_forward, .backward = ignore_backward, .env = runtime->env},
        .graph = out};
    return record_pass(&r, net, run, arg);
}

void ls__graph_free(ls__graph *graph)
{
    if (graph->arena.env != NULL) {
        ls__arena_fini(&graph->arena);
    }
}
