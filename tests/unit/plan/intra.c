/* SPDX-License-Identifier: Apache-2.0 */
/* The choice by elimination beside brute force, and what the search finds for models. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/gpt.h>

#include "base/env_posix.h"
#include "base/splitmix64.h"
#include "plan/intra/eliminate.h"
#include "plan/intra/search.h"
#include "says.h"

/* ---- elimination ----------------------------------------------------------------------------- */

#define NODES 7
#define OPTIONS 4

typedef struct drawn {
    ls__choice_problem p;
    int options[NODES];
    double node[NODES][OPTIONS], cost[3 * NODES][OPTIONS * OPTIONS];
    const double *nodes[NODES];
    ls__choice_edge edge[3 * NODES];
} drawn;

/* Small integers, so that sums are exact and ties are common; some pairs are impossible. */
static uint64_t next(uint64_t *state)
{
    *state += LS__SPLITMIX64_GAMMA;
    return ls__splitmix64(*state);
}

static double draw_cost(uint64_t *state)
{
    const uint64_t x = next(state);
    return x % 11 == 0 ? (double)INFINITY : (double)(x >> 32 & 15);
}

static void draw(drawn *d, uint64_t seed)
{
    uint64_t state = seed;
    d->p = (ls__choice_problem){.nodes = 1 + (int)(next(&state) % NODES),
                                .options = d->options,
                                .node = d->nodes,
                                .edge = d->edge};
    for (int i = 0; i < d->p.nodes; i++) {
        d->options[i] = 1 + (int)(next(&state) % OPTIONS);
        d->nodes[i] = d->node[i];
        for (int o = 0; o < d->options[i]; o++) {
            d->node[i][o] = draw_cost(&state);
        }
    }
    const int edges = d->p.nodes > 1 ? (int)(next(&state) % (3 * NODES)) : 0;
    for (; d->p.edges < edges; d->p.edges++) {
        const int a = (int)(next(&state) % (uint64_t)d->p.nodes);
        const int step = 1 + (int)(next(&state) % (uint64_t)(d->p.nodes - 1));
        const int b = (a + step) % d->p.nodes;
        double *cost = d->cost[d->p.edges];
        d->edge[d->p.edges] = (ls__choice_edge){a, b, cost};
        for (int k = 0; k < d->options[a] * d->options[b]; k++) {
            cost[k] = draw_cost(&state);
        }
    }
}

static double cost_of(const drawn *d, const int *choice)
{
    double sum = 0.0;
    for (int i = 0; i < d->p.nodes; i++) {
        sum += d->node[i][choice[i]];
    }
    for (int k = 0; k < d->p.edges; k++) {
        const ls__choice_edge *e = &d->edge[k];
        sum += e->cost[choice[e->a] * d->options[e->b] + choice[e->b]];
    }
    return sum;
}

static double by_brute_force(const drawn *d)
{
    int choice[NODES] = {0}, at;
    double least = INFINITY;
    do {
        least = fmin(least, cost_of(d, choice));
        for (at = 0; at < d->p.nodes && ++choice[at] == d->options[at]; at++) {
            choice[at] = 0;
        }
    } while (at < d->p.nodes);
    return least;
}

TEST(elimination_is_brute_force_on_a_thousand_random_graphs)
{
    int possible = 0;
    for (int i = 0; i < 1000; i++) {
        static drawn d;
        int choice[NODES];
        double cost;
        draw(&d, test_seed() * 1000 + (uint64_t)i);
        CHECK_OK(ls__choose(ls__env_posix(), &d.p, choice, &cost));
        const double least = by_brute_force(&d);
        if (cost != least) {
            test_fail(__FILE__, __LINE__, "graph %d: %g by elimination, %g by brute force", i, cost,
                      least);
        }
        if (isfinite(least)) {
            possible++;
            CHECK_NEAR(cost_of(&d, choice), least, 0.0);
        }
    }
    CHECK(possible > 500);
}

/* A clique of many nodes needs a table over all of them. */
TEST(too_large_tables_are_refused)
{
    enum { N = 16, O = 8 };
    static double zero[O * O];
    static int options[N];
    static const double *nodes[N];
    static ls__choice_edge edges[N * N];
    int choice[N], count = 0;
    double cost;
    for (int a = 0; a < N; a++) {
        options[a] = O;
        nodes[a] = zero;
        for (int b = 0; b < a; b++) {
            edges[count++] = (ls__choice_edge){a, b, zero};
        }
    }
    const ls__choice_problem p = {N, count, options, nodes, edges};
    CHECK_STATUS(ls__choose(ls__env_posix(), &p, choice, &cost), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "plan: placements depend on each other in tables of more than "
                                   "%d entries; give a mesh of one axis");
}

/* ---- models ---------------------------------------------------------------------------------- */

typedef struct gpt_case {
    ls_module *net;
    ls_tensor *x, *y;
} gpt_case;

static gpt_case gpt_of(int layers, int64_t dim, int64_t batch)
{
    CHECK_OK(ls_init(NULL));
    gpt_case c = {.net = ls_gpt_new(LS_OPTIONS(ls_gpt_options, .vocab = 256, .context = 16,
                                               .layers = layers, .heads = 8, .dim = dim))};
    CHECK(c.net != NULL);
    c.x = ls_zeros(LS_SHAPE(batch, 16), LS_INT64);
    c.y = ls_zeros(LS_SHAPE(batch, 16), LS_INT64);
    return c;
}

static ls_tensor_plan *plan_of(const gpt_case *c, const char *mesh, const char *cluster)
{
    ls_tensor_plan *plan = NULL;
    CHECK_OK(ls_tensor_plan_find(c->net, &c->x, 1, c->y,
                                 LS_OPTIONS(ls_tensor_plan_options, .mesh = mesh,
                                            .cluster = cluster, .device = "1gflop,100gbyte"),
                                 &plan));
    return plan;
}

#define MEGATRON                                                                                   \
    "blocks.*.qkv=column(3) blocks.*.proj=row blocks.*.up=column blocks.*.down=row head=column"

/* One sequence, so that samples cannot be divided. The whole table of tokens costs nothing along
 * the axis, and one that is cut an all-reduce; so this is cheaper than Megatron's with
 * tokens=vocab. */
TEST(one_sequence_of_a_gpt_is_divided_as_by_megatron)
{
    const gpt_case c = gpt_of(3, 64, 1);
    ls_tensor_plan *plan = plan_of(&c, "tp=4", "4:1gbyte");
    CHECK_STR(ls_tensor_plan_words(plan, "tp"), MEGATRON);
    CHECK(!ls_tensor_plan_data(plan, "tp") && !ls_tensor_plan_sequence(plan, "tp"));
    CHECK(ls_tensor_plan_any_seconds(plan) <= ls_tensor_plan_seconds(plan));
    CHECK(ls_tensor_plan_work_seconds(plan) < ls_tensor_plan_seconds(plan));
    CHECK_INT(ls_tensor_plan_placement(plan, 0, "tp"), LS_INVARIANT); /* positions */
    CHECK_INT(ls_tensor_plan_placement(plan, 5, "tp"), LS_SHARDED(0));
    CHECK_INT(ls_tensor_plan_placement(plan, 1000, "tp"), LS_UNPLACED);
    CHECK(ls_tensor_plan_words(plan, "dp") == NULL);
    CHECK_SAYS(ls_error_message(), "ls_tensor_plan: the mesh has no axis \"%.40s\"; its first is "
                                   "\"%s\"");
    ls_tensor_plan_free(plan);
    ls_module_free(c.net);
    CHECK_OK(ls_finalize());
}

/* Much larger weights than activations: the gradients' sum costs more than to share the matrices.
 * With many samples it is the other way round. A slow link is not used at all. */
TEST(what_is_divided_follows_from_sizes_and_links)
{
    const gpt_case many = gpt_of(2, 16, 64);
    ls_tensor_plan *data = plan_of(&many, "tp=4", "4:1gbyte");
    CHECK(ls_tensor_plan_data(data, "tp"));
    CHECK_STR(ls_tensor_plan_words(data, "tp"), "");
    ls_tensor_plan *slow = plan_of(&many, "tp=4", "4:1kbyte");
    CHECK(!ls_tensor_plan_data(slow, "tp"));
    CHECK_STR(ls_tensor_plan_words(slow, "tp"), "");
    CHECK_NEAR(ls_tensor_plan_seconds(slow), ls_tensor_plan_work_seconds(slow), 1e-12);
    ls_tensor_plan_free(data);
    ls_tensor_plan_free(slow);
    ls_module_free(many.net);
    CHECK_OK(ls_finalize());
}

/* Two axes that were solved apart would both take the samples, of which there are eight. */
TEST(axes_are_chosen_together)
{
    const gpt_case c = gpt_of(2, 64, 8);
    ls_tensor_plan *plan = plan_of(&c, "a=8,b=8", "8:1gbyte,8:100mbyte");
    CHECK(ls_tensor_plan_data(plan, "a") + ls_tensor_plan_data(plan, "b") == 1);
    CHECK(strlen(ls_tensor_plan_words(plan, "a")) + strlen(ls_tensor_plan_words(plan, "b")) > 0);
    ls_tensor_plan_free(plan);
    ls_module_free(c.net);
    CHECK_OK(ls_finalize());
}

/* With TEST_LONG 96 layers, which take half a second of processor time; nothing depends on it. */
TEST(many_layers_on_64_ranks)
{
    const gpt_case c = gpt_of(getenv("TEST_LONG") != NULL ? 96 : 24, 64, 8);
    const clock_t begin = clock();
    ls_tensor_plan *plan = plan_of(&c, "dp=8,tp=8", "8:1gbyte,8:100mbyte");
    printf("%.2f s of processor time\n", (double)(clock() - begin) / CLOCKS_PER_SEC);
    CHECK(ls_tensor_plan_data(plan, "dp") + ls_tensor_plan_data(plan, "tp") == 1);
    CHECK(ls_tensor_plan_any_seconds(plan) <= ls_tensor_plan_seconds(plan));
    ls_tensor_plan_free(plan);
    ls_module_free(c.net);
    CHECK_OK(ls_finalize());
}

/* ---- a small graph by brute force ------------------------------------------------------------ */

static ls_tensor *same(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class small_class = LS_MODULE_CLASS(.name = "small", .forward = same);

typedef struct small {
    ls_module *net;
    ls_tensor *x, *w, *v;
} small;

/* A norm follows a product and a sum follows the norm: what is cheapest to convert, and where. */
static ls_tensor *small_loss(void *arg)
{
    const small *s = arg;
    ls_tensor *y = ls_relu(ls_linear(s->x, s->w, NULL));
    ls_tensor *z = ls_linear(ls_softmax(y, 1), s->v, NULL);
    return ls_mean(ls_mul(z, z));
}

static double least_by_brute_force(const ls__graph *g, const ls__intra_mesh *mesh)
{
    static ls__strategy of[8][LS__STRATEGIES_MAX];
    ls__strategy op[8];
    int count[8], at[8] = {0}, i;
    double least = INFINITY;
    CHECK(g->count <= 8);
    for (i = 0; i < g->count; i++) {
        count[i] = ls__strategies(&g->kind[g->op[i].kind], mesh, of[i]);
    }
    do {
        for (i = 0; i < g->count; i++) {
            op[i] = of[i][at[i]];
        }
        least = fmin(least, ls__intra_seconds(g, mesh, op));
        for (i = 0; i < g->count && ++at[i] == count[i]; i++) {
            at[i] = 0;
        }
    } while (i < g->count);
    return least;
}

TEST(the_search_is_brute_force_over_strategies)
{
    CHECK_OK(ls_init(NULL));
    small s = {.net = ls_module_new(sizeof(ls_module), &small_class)};
    s.w = ls_module_add_param(s.net, "w", ls_ones(LS_SHAPE(16, 8), LS_FLOAT32));
    s.v = ls_module_add_param(s.net, "v", ls_ones(LS_SHAPE(8, 16), LS_FLOAT32));
    s.x = ls_ones(LS_SHAPE(4, 8), LS_FLOAT32);
    ls__graph g;
    CHECK_OK(ls__graph_record(s.net, small_loss, &s, &g));
    CHECK_INT(g.count, 6);
    for (int k = 0; k < 40; k++) {
        ls__intra_plan plan;
        ls__intra_mesh mesh = {.axes = 1, .runnable = k % 2 == 1, .device = {.width = 4}};
        mesh.axis[0] = (ls__intra_axis){k % 4 < 2 ? 2 : 4, k % 3 * 1e-7, 1e-11 * (1 << k / 4)};
        mesh.device.flops = 1e9;
        mesh.device.memory = 1e9;
        CHECK_OK(ls__intra_search(&g, &mesh, &plan));
        CHECK_NEAR(plan.seconds, least_by_brute_force(&g, &mesh), 1e-15);
        CHECK_NEAR(plan.seconds, ls__intra_seconds(&g, &mesh, plan.op), 1e-15);
    }
    ls__graph_free(&g);
    ls_module_free(s.net);
    CHECK_OK(ls_finalize());
}

/* ---- errors ---------------------------------------------------------------------------------- */

static ls_tensor *rounded_loss(void *arg)
{
    const small *s = arg;
    return ls_mean(ls_relu(ls_cast(s->w, LS_BFLOAT16)));
}

static ls_tensor *endless_loss(void *arg)
{
    const small *s = arg;
    ls_tensor *x = s->w;
    for (int i = 0; i <= LS__GRAPH_OPS_MAX; i++) {
        x = ls_relu(x);
    }
    return ls_mean(x);
}

TEST(graphs_that_cannot_be_planned_are_refused)
{
    CHECK_OK(ls_init(NULL));
    small s = {.net = ls_module_new(sizeof(ls_module), &small_class)};
    ls__graph g;
    s.w = ls_module_add_param(s.net, "w", ls_ones(LS_SHAPE(1), LS_FLOAT32));
    CHECK_STATUS(ls__graph_record(s.net, rounded_loss, &s, &g), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(
        ls_error_message(),
        "plan: argument %d of %s is made by an operator that is not seen, such as a cast of a "
        "mixed-precision step; plan a float32 model of plain operators");
    ls__graph_free(&g);
    CHECK_STATUS(ls__graph_record(s.net, endless_loss, &s, &g), LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "plan: the model has more than %d operators");
    ls__graph_free(&g);
    ls_module_free(s.net);
    CHECK_OK(ls_finalize());
}

TEST(calls_that_lack_something_are_refused)
{
    const gpt_case c = gpt_of(1, 16, 1);
    ls_tensor_plan *plan;
    CHECK_STATUS(ls_tensor_plan_find(c.net, NULL, 1, c.y, NULL, &plan), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_tensor_plan_find: the module, its inputs or the place of the "
               "plan is NULL, or %d inputs; give all three, and 1 to %d inputs");
    CHECK_STATUS(ls_tensor_plan_find(c.net, &c.x, 1, c.y, NULL, &plan), LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ls_tensor_plan_find: mesh, cluster or device is NULL; give a mesh, such as tp=4");
    CHECK(plan == NULL);
    CHECK_STATUS(ls_tensor_plan_find(c.net, &c.x, 1, c.y,
                                     LS_OPTIONS(ls_tensor_plan_options, .mesh = "a=2,b=2,c=2"),
                                     &plan),
                 LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(), "ls_tensor_plan_find: the mesh \"%.200s\" has %d axes and %d "
                                   "ranks; give one or two axes, and %d ranks at most");
    const char *huge = "a=65536,b=65536";
    CHECK_STATUS(ls_tensor_plan_find(c.net, &c.x, 1, c.y,
                                     LS_OPTIONS(ls_tensor_plan_options, .mesh = huge), &plan),
                 LS_ERR_LIMIT);
    CHECK_SAYS(ls_error_message(), "mesh \"%.200s\": its sizes make more than %d ranks");
    CHECK_STATUS(ls_tensor_plan_find(
                     c.net, &c.x, 1, c.y,
                     LS_OPTIONS(ls_tensor_plan_options, .mesh = "a=2", .cluster = "x"), &plan),
                 LS_ERR_FORMAT);
    ls_tensor_plan_free(NULL);
    ls_module_free(c.net);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
