/* SPDX-License-Identifier: Apache-2.0 */
/* From a graph to a problem of choice, and back (search.h). Tables of alike operators, and of the
 * edges between them, are made once. */
#include "plan/intra/search.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "plan/intra/eliminate.h"

enum { I = LS__PLACED_INVARIANT, V = LS__PLACED_VARYING, S0 = LS__PLACED_SHARDED };

typedef struct options { /* of a kind of operators */
    ls__strategy *strategy;
    int count;
    double *cost;
} options;

/* Between two kinds: a conversion into input i; or a parameter that input i and input j read. */
typedef struct table {
    struct table *next;
    int from, to, i, j;
    const double *cost;
} table;

typedef struct search {
    ls__graph *g;
    const ls__intra_mesh *mesh;
    options *of; /* [kinds] */
    table *tables;
    ls__choice_edge *edge;
    int edges;
} search;

static ls_status no_memory(void)
{
    return ls__fail(LS_ERR_MEMORY, "plan: no memory to find it");
}

/* Whether other operators see no difference: equal results, inputs that operators make, and ways in
 * which shared parameters are kept. */
static bool look_alike(const ls__graph_kind *k, const ls__strategy *a, const ls__strategy *b,
                       int axes)
{
    bool alike = true;
    for (int x = 0; x < axes && alike; x++) {
        alike = a->way[x].out == b->way[x].out;
        for (int i = 0; i < k->count && alike; i++) {
            const int p = a->way[x].in[i], q = b->way[x].in[i];
            alike = k->from[i] >= 0 ? p == q
                    : k->shares     ? ls__place_kept(p) == ls__place_kept(q)
                                    : true;
        }
    }
    return alike;
}

/* Of strategies that look alike the cheapest. */
static bool make_options(search *s, int kind)
{
    options *o = &s->of[kind];
    const ls__graph_kind *k = &s->g->kind[kind];
    ls__strategy all[LS__STRATEGIES_MAX];
    const size_t count = (size_t)ls__strategies(k, s->mesh, all);
    o->strategy = ls__arena_alloc(&s->g->arena, (count + 1) * sizeof *o->strategy);
    o->cost = ls__arena_alloc(&s->g->arena, (count + 1) * sizeof *o->cost);
    if (o->strategy == NULL || o->cost == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        const double cost = ls__strategy_seconds(k, &all[i], s->mesh);
        int at = 0;
        while (at < o->count && !look_alike(k, &o->strategy[at], &all[i], s->mesh->axes)) {
            at++;
        }
        if (at == o->count || cost < o->cost[at]) {
            o->strategy[at] = all[i];
            o->cost[at] = cost;
            o->count += at == o->count;
        }
    }
    return true;
}

/* A parameter is kept in one way, whoever reads it. */
static double same_kept(const search *s, const ls__strategy *a, int i, const ls__strategy *b, int j)
{
    for (int k = 0; k < s->mesh->axes; k++) {
        if (ls__place_kept(a->way[k].in[i]) != ls__place_kept(b->way[k].in[j])) {
            return INFINITY;
        }
    }
    return 0.0;
}

/* `i` negative: a parameter that -1 - i and j read. */
static const double *table_of(search *s, int from, int to, int i, int j)
{
    for (const table *t = s->tables; t != NULL; t = t->next) {
        if (t->from == from && t->to == to && t->i == i && t->j == j) {
            return t->cost;
        }
    }
    const options *a = &s->of[from], *b = &s->of[to];
    table *t = ls__arena_alloc(&s->g->arena, sizeof *t);
    double *cost =
        ls__arena_alloc(&s->g->arena, (size_t)a->count * (size_t)b->count * sizeof *cost);
    if (t == NULL || cost == NULL) {
        return NULL;
    }
    for (int x = 0; x < a->count; x++) {
        for (int y = 0; y < b->count; y++) {
            const ls__strategy *p = &a->strategy[x], *q = &b->strategy[y];
            cost[x * b->count + y] = i < 0 ? same_kept(s, p, -1 - i, q, j)
                                           : ls__resharding_seconds(&s->g->kind[from], p,
                                                                    &s->g->kind[to], q, i, s->mesh);
        }
    }
    *t = (table){s->tables, from, to, i, j, cost};
    s->tables = t;
    return cost;
}

static bool add_edge(search *s, int a, int b, int i, int j)
{
    const double *cost = table_of(s, s->g->op[a].kind, s->g->op[b].kind, i, j);
    s->edge[s->edges++] = (ls__choice_edge){a, b, cost};
    return cost != NULL;
}

/* Results that are used, and parameters that several operators read. */
static bool add_edges(search *s)
{
    const size_t params = (size_t)s->g->params + 1;
    int *reader = ls__arena_alloc(&s->g->arena, params * sizeof *reader); /* 1 + operator */
    int *input = ls__arena_alloc(&s->g->arena, params * sizeof *input);
    bool enough = reader != NULL && input != NULL;
    for (int b = 0; b < s->g->count && enough; b++) {
        const ls__graph_op *op = &s->g->op[b];
        for (int i = 0; i < s->g->kind[op->kind].count && enough; i++) {
            const int p = op->param[i];
            if (op->from[i] >= 0) {
                enough = add_edge(s, op->from[i], b, i, 0);
            } else if (op->from[i] == LS__GRAPH_PARAM && reader[p] > 0 && reader[p] - 1 != b) {
                enough = add_edge(s, reader[p] - 1, b, -1 - input[p], i);
            }
            if (op->from[i] == LS__GRAPH_PARAM) {
                reader[p] = 1 + b;
                input[p] = i;
            }
        }
    }
    return enough;
}

static ls_status choose_options(search *s, int *choice, double *seconds)
{
    const size_t ops = (size_t)s->g->count + 1;
    int *counts = ls__arena_alloc(&s->g->arena, ops * sizeof *counts);
    const double **costs = ls__arena_alloc(&s->g->arena, ops * sizeof(double *));
    if (counts == NULL || costs == NULL) {
        return no_memory();
    }
    for (int i = 0; i < s->g->count; i++) {
        const options *o = &s->of[s->g->op[i].kind];
        counts[i] = o->count;
        costs[i] = o->cost;
        if (o->count == 0) {
            *seconds = INFINITY;
            return LS_OK;
        }
    }
    const ls__choice_problem problem = {
        .nodes = s->g->count, .edges = s->edges, .options = counts, .node = costs, .edge = s->edge};
    return ls__choose(s->g->arena.env, &problem, choice, seconds);
}

/* Stores the choice, by operators and by parameters. */
static void store_choice(const search *s, const int *choice, ls__intra_plan *out)
{
    const ls__graph *g = s->g;
    for (int p = 0; p < g->params; p++) {
        for (int a = 0; a < s->mesh->axes; a++) {
            out->param[p].way[a].in[0] = I;
        }
    }
    for (int i = 0; i < g->count; i++) {
        const ls__graph_kind *k = &g->kind[g->op[i].kind];
        out->op[i] = s->of[g->op[i].kind].strategy[choice[i]];
        for (int a = 0; a < s->mesh->axes; a++) {
            const ls__way *way = &out->op[i].way[a];
            out->data[a] = out->data[a] || (k->last && way->out == V);
            out->sequence[a] = out->sequence[a] || (way->made != way->out && way->out >= S0);
            for (int in = 0; in < k->count; in++) {
                if (g->op[i].from[in] == LS__GRAPH_PARAM) {
                    out->param[g->op[i].param[in]].way[a].in[0] =
                        (int8_t)ls__place_kept(way->in[in]);
                }
            }
        }
    }
}

static double work_of_plan(const ls__graph *g, const ls__intra_mesh *mesh,
                           const ls__intra_plan *plan)
{
    ls__intra_mesh silent = *mesh;
    double sum = 0.0;
    for (int a = 0; a < mesh->axes; a++) {
        silent.axis[a].byte = silent.axis[a].latency = 0.0;
    }
    for (int i = 0; i < g->count; i++) {
        sum += ls__strategy_seconds(&g->kind[g->op[i].kind], &plan->op[i], &silent);
    }
    return sum;
}

ls_status ls__intra_search(ls__graph *g, const ls__intra_mesh *mesh, ls__intra_plan *out)
{
    const size_t ops = (size_t)g->count + 1;
    search s = {.g = g, .mesh = mesh};
    int *choice = ls__arena_alloc(&g->arena, ops * sizeof *choice);
    *out = (ls__intra_plan){
        .op = ls__arena_alloc(&g->arena, ops * sizeof *out->op),
        .param = ls__arena_alloc(&g->arena, ((size_t)g->params + 1) * sizeof *out->param)};
    s.of = ls__arena_alloc(&g->arena, ((size_t)g->kinds + 1) * sizeof *s.of);
    s.edge = ls__arena_alloc(&g->arena, LS__INPUTS_MAX * ops * sizeof *s.edge);
    bool enough =
        choice != NULL && out->op != NULL && out->param != NULL && s.of != NULL && s.edge != NULL;
    for (int k = 0; k < g->kinds && enough; k++) {
        enough = make_options(&s, k);
    }
    if (!enough || !add_edges(&s)) {
        return no_memory();
    }
    LS_TRY(choose_options(&s, choice, &out->seconds));
    out->possible = isfinite(out->seconds);
    if (out->possible) {
        store_choice(&s, choice, out);
        out->work = work_of_plan(g, mesh, out);
    }
    return LS_OK;
}

double ls__intra_seconds(const ls__graph *g, const ls__intra_mesh *mesh, const ls__strategy *op)
{
    double sum = 0.0;
    for (int b = 0; b < g->count; b++) {
        const ls__graph_kind *k = &g->kind[g->op[b].kind];
        sum += ls__strategy_seconds(k, &op[b], mesh);
        for (int i = 0; i < k->count; i++) {
            const int a = g->op[b].from[i];
            sum += a >= 0
                       ? ls__resharding_seconds(&g->kind[g->op[a].kind], &op[a], k, &op[b], i, mesh)
                       : 0.0;
        }
    }
    return sum;
}
