/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket elimination (eliminate.h). The node whose table would be smallest goes first. */
#include "plan/intra/eliminate.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/error.h"

#define CHUNK_BYTES ((size_t)1 << 20)
#define SCOPE_MAX 16 /* neighbours of a node that is left out; each has two options or more */

/* Costs of the options of some nodes, those of the last one contiguous. */
typedef struct factor {
    struct factor *next; /* of the same node */
    int count, node[SCOPE_MAX + 1];
    const double *cost;
} factor;

/* The choice of a node, by the options of the nodes that were left when it was eliminated. */
typedef struct removed {
    int node, count, scope[SCOPE_MAX];
    uint16_t *best;
} removed;

typedef struct elimination {
    const ls__choice_problem *p;
    ls__arena arena;
    factor **of; /* [nodes] the factors of a node */
    bool *left_out;
    removed *order; /* [nodes] */
    int done;
    double constant;
} elimination;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}

static int options_of(const elimination *e, int node)
{
    return e->p->options[node];
}

/* ---- factors --------------------------------------------------------------------------------- */

typedef struct scope {
    int count, node[SCOPE_MAX];
} scope;

/* Adds the other nodes of the factor. False: there are too many. */
static bool widen_scope(scope *s, const factor *f, int except)
{
    for (int i = 0; i < f->count; i++) {
        bool known = f->node[i] == except;
        for (int k = 0; k < s->count && !known; k++) {
            known = s->node[k] == f->node[i];
        }
        if (!known && s->count == SCOPE_MAX) {
            return false;
        }
        if (!known) {
            s->node[s->count++] = f->node[i];
        }
    }
    return true;
}

/* The factors of a node are a list in `next` of copies, since each is in as many lists as it has
 * nodes. */
static ls_status add_factor(elimination *e, const factor *f)
{
    for (int i = 0; i < f->count; i++) {
        factor *copy = ls__arena_alloc(&e->arena, sizeof *copy);
        if (copy == NULL) {
            return no_memory();
        }
        *copy = *f;
        copy->next = e->of[f->node[i]];
        e->of[f->node[i]] = copy;
    }
    return LS_OK;
}

static void drop_factors(elimination *e, int node, const scope *s)
{
    for (int i = 0; i < s->count; i++) {
        for (factor **at = &e->of[s->node[i]]; *at != NULL;) {
            bool has = false;
            for (int k = 0; k < (*at)->count; k++) {
                has = has || (*at)->node[k] == node;
            }
            if (has) {
                *at = (*at)->next;
            } else {
                at = &(*at)->next;
            }
        }
    }
    e->of[node] = NULL;
}

/* Entries of the table that takes the node's place; INFINITY: too many neighbours. */
static double size_without(const elimination *e, int node, scope *s)
{
    double size = 1.0;
    s->count = 0;
    for (const factor *f = e->of[node]; f != NULL; f = f->next) {
        if (!widen_scope(s, f, node)) {
            return INFINITY;
        }
    }
    for (int i = 0; i < s->count; i++) {
        size *= options_of(e, s->node[i]);
    }
    return size;
}

/* ---- one node -------------------------------------------------------------------------------- */

/* A factor as it is read: its step where a node of the scope takes its next option, and a copy in
 * which the options of the node that is left out are contiguous. */
typedef struct reading {
    const double *cost;
    size_t at, step[SCOPE_MAX];
} reading;

static size_t size_of(const elimination *e, const factor *f)
{
    size_t size = 1;
    for (int i = 0; i < f->count; i++) {
        size *= (size_t)options_of(e, f->node[i]);
    }
    return size;
}

/* The factor with `node` last. NULL without memory. */
static const double *transposed(elimination *e, const factor *f, int at)
{
    const size_t all = size_of(e, f), n = (size_t)options_of(e, f->node[at]);
    size_t inner = 1;
    for (int i = at + 1; i < f->count; i++) {
        inner *= (size_t)options_of(e, f->node[i]);
    }
    double *to = inner > 1 ? ls__arena_alloc(&e->arena, all * sizeof *to) : NULL;
    for (size_t k = 0; to != NULL && k < all; k++) {
        const size_t outer = k / (n * inner), own = k / inner % n;
        to[(outer * inner + k % inner) * n + own] = f->cost[k];
    }
    return inner > 1 ? to : f->cost;
}

static bool read_factor(elimination *e, const factor *f, int node, const scope *s, reading *out)
{
    int at = 0;
    size_t step = (size_t)options_of(e, node);
    *out = (reading){.cost = NULL};
    while (f->node[at] != node) {
        at++;
    }
    out->cost = transposed(e, f, at);
    for (int i = f->count - 1; i >= 0; i--) {
        for (int k = 0; k < s->count && i != at; k++) {
            out->step[k] = s->node[k] == f->node[i] ? step : out->step[k];
        }
        step *= i != at ? (size_t)options_of(e, f->node[i]) : 1;
    }
    return out->cost != NULL;
}

/* The first of the least. */
static double least_of(const double *sum, int count, uint16_t *best)
{
    double least = sum[0];
    int at = 0;
    for (int v = 1; v < count; v++) {
        if (sum[v] < least) {
            least = sum[v];
            at = v;
        }
    }
    *best = (uint16_t)at;
    return least;
}

/* To the next options of the scope's nodes, the last of which runs fastest. */
static void advance_options(const elimination *e, const scope *s, int *option, reading *in,
                            int count)
{
    for (int k = s->count - 1; k >= 0; k--) {
        const int n = options_of(e, s->node[k]);
        const bool wraps = ++option[k] == n;
        for (int i = 0; i < count; i++) {
            in[i].at += in[i].step[k];
            in[i].at -= wraps ? (size_t)n * in[i].step[k] : 0;
        }
        if (!wraps) {
            return;
        }
        option[k] = 0;
    }
}

static void fill_table(elimination *e, int node, const scope *s, reading *in, int count,
                       double *table, uint16_t *best, size_t size)
{
    const int n = options_of(e, node);
    const double *own = e->p->node[node];
    double sum[LS__CHOICE_OPTIONS_MAX];
    int option[SCOPE_MAX] = {0};
    for (size_t at = 0; at < size; at++) {
        memcpy(sum, own, (size_t)n * sizeof *sum);
        for (int i = 0; i < count; i++) {
            const double *cost = in[i].cost + in[i].at;
            for (int v = 0; v < n; v++) {
                sum[v] += cost[v];
            }
        }
        table[at] = least_of(sum, n, &best[at]);
        advance_options(e, s, option, in, count);
    }
}

static ls_status eliminate_node(elimination *e, int node)
{
    scope s;
    removed *r = &e->order[e->done++];
    const double size = size_without(e, node, &s);
    int count = 0;
    if (size > LS__CHOICE_TABLE_MAX) {
        return ls__fail(LS_ERR_LIMIT,
                        "plan: placements depend on each other in tables of more than %d entries; "
                        "give a mesh of one axis",
                        LS__CHOICE_TABLE_MAX);
    }
    for (const factor *f = e->of[node]; f != NULL; f = f->next) {
        count++;
    }
    *r = (removed){.node = node, .count = s.count};
    memcpy(r->scope, s.node, sizeof s.node);
    factor made = {.count = s.count};
    memcpy(made.node, s.node, sizeof s.node);
    r->best = ls__arena_alloc(&e->arena, (size_t)size * sizeof *r->best);
    double *table = ls__arena_alloc(&e->arena, (size_t)size * sizeof *table);
    reading *in = ls__arena_alloc(&e->arena, ((size_t)count + 1) * sizeof *in);
    if (r->best == NULL || table == NULL || in == NULL) {
        return no_memory();
    }
    count = 0;
    for (const factor *f = e->of[node]; f != NULL; f = f->next) {
        if (!read_factor(e, f, node, &s, &in[count++])) {
            return no_memory();
        }
    }
    fill_table(e, node, &s, in, count, table, r->best, (size_t)size);
    drop_factors(e, node, &s);
    e->left_out[node] = true;
    made.cost = table;
    e->constant += s.count == 0 ? table[0] : 0.0;
    return s.count > 0 ? add_factor(e, &made) : LS_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int smallest_node(const elimination *e)
{
    double least = INFINITY;
    int found = -1;
    scope s;
    for (int v = 0; v < e->p->nodes; v++) {
        const double size = e->left_out[v] ? INFINITY : size_without(e, v, &s);
        if (!e->left_out[v] && (found < 0 || size < least)) {
            found = v;
            least = size;
        }
        if (!e->left_out[v] && s.count <= 1) {
            return v; /* it adds no table that is larger than one it had */
        }
    }
    return found;
}

static void trace_back(const elimination *e, int *choice)
{
    for (int i = e->done - 1; i >= 0; i--) {
        const removed *r = &e->order[i];
        size_t at = 0;
        for (int k = 0; k < r->count; k++) {
            at = at * (size_t)options_of(e, r->scope[k]) + (size_t)choice[r->scope[k]];
        }
        choice[r->node] = r->best[at];
    }
}

static ls_status eliminate_all(elimination *e, int *choice, double *cost)
{
    const size_t nodes = (size_t)e->p->nodes + 1;
    e->of = ls__arena_alloc(&e->arena, nodes * sizeof(factor *));
    e->left_out = ls__arena_alloc(&e->arena, nodes);
    e->order = ls__arena_alloc(&e->arena, nodes * sizeof *e->order);
    if (e->of == NULL || e->left_out == NULL || e->order == NULL) {
        return no_memory();
    }
    for (int i = 0; i < e->p->edges; i++) {
        const ls__choice_edge *edge = &e->p->edge[i];
        LS_ASSERT(edge->a != edge->b);
        LS_TRY(
            add_factor(e, &(factor){.count = 2, .node = {edge->a, edge->b}, .cost = edge->cost}));
    }
    while (e->done < e->p->nodes) {
        LS_TRY(eliminate_node(e, smallest_node(e)));
    }
    trace_back(e, choice);
    *cost = e->constant;
    return LS_OK;
}

ls_status ls__choose(const ls__env *env, const ls__choice_problem *problem, int *choice,
                     double *cost)
{
    elimination e = {.p = problem};
    ls__arena_init(&e.arena, env, CHUNK_BYTES);
    const ls_status status = eliminate_all(&e, choice, cost);
    ls__arena_fini(&e.arena);
    return status;
}
