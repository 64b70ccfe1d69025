/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions of placements: values by an independent computation of the whole tensor, gradients by
 * the inner product that defines an adjoint. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { ROWS = 12, COLUMNS = 24, DEPTH = 2 };

static float whole_at(int64_t i, int64_t j, int64_t k)
{
    return (float)((i * 7 + j * 3 + k * 5) % 31 - 15);
}

/* Rank `part` of `parts` along d of the whole, times `factor`. */
static ls_tensor *part_of_whole(int d, int part, int parts, float factor)
{
    ls_shape shape = LS_SHAPE(ROWS, COLUMNS, DEPTH);
    int64_t first[3] = {0};
    if (d >= 0) {
        shape.dim[d] /= parts;
        first[d] = part * shape.dim[d];
    }
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t), *next = at;
    for (int64_t i = 0; i < shape.dim[0]; i++) {
        for (int64_t j = 0; j < shape.dim[1]; j++) {
            for (int64_t k = 0; k < shape.dim[2]; k++) {
                *next++ = factor * whole_at(first[0] + i, first[1] + j, first[2] + k);
            }
        }
    }
    put_elements(t, at);
    return t;
}

/* What rank r of n has of the whole when it is so placed: terms of a sum are (r+1) wholes, so the
 * sum is n(n+1)/2 of them. */
static ls_tensor *placed(ls_placement p, int r, int n, float factor)
{
    ls_tensor *t;
    if (p >= LS_SHARDED(0)) {
        t = part_of_whole(p - LS_SHARDED(0), r, n, factor);
    } else {
        t = part_of_whole(-1, 0, 1, p == LS_PARTIAL ? factor * (float)(r + 1) : factor);
    }
    CHECK_OK(ls_place(t, "tp", p));
    return t;
}

static void check_equal(ls_tensor *a, ls_tensor *b)
{
    CHECK_OK(ls_tensor_status(a));
    CHECK(ls_numel(a) == ls_numel(b));
    CHECK(memcmp(elements_of(a), elements_of(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
}

typedef struct row {
    ls_placement from, to;
} row;

static const row rows[] = {
    {LS_INVARIANT, LS_REPLICATED},  {LS_PARTIAL, LS_INVARIANT},     {LS_PARTIAL, LS_REPLICATED},
    {LS_PARTIAL, LS_SHARDED(0)},    {LS_PARTIAL, LS_SHARDED(1)},    {LS_SHARDED(0), LS_REPLICATED},
    {LS_SHARDED(1), LS_REPLICATED}, {LS_SHARDED(0), LS_INVARIANT},  {LS_SHARDED(1), LS_INVARIANT},
    {LS_INVARIANT, LS_SHARDED(0)},  {LS_REPLICATED, LS_SHARDED(1)}, {LS_SHARDED(0), LS_SHARDED(1)},
    {LS_SHARDED(1), LS_SHARDED(0)}, {LS_REPLICATED, LS_PARTIAL},    {LS_REPLICATED, LS_INVARIANT},
    {LS_INVARIANT, LS_PARTIAL},     {LS_SHARDED(0), LS_PARTIAL},    {LS_SHARDED(1), LS_PARTIAL},
};

/* The whole of what the ranks have, on each of them, in double: a sum of terms, or of any equal
 * copy. */
static double dot(ls_tensor *a, ls_tensor *b)
{
    const float *x = elements_of(a), *y = elements_of(b);
    double sum = 0.0;
    for (int64_t i = 0; i < ls_numel(a); i++) {
        sum += (double)x[i] * (double)y[i];
    }
    return sum;
}

/* A gradient's inner product with its tensor, over the whole: of equal copies with equal gradients
 * one counts; else the ranks' add up. */
static double whole_dot(ls_tensor *x, ls_tensor *dx, ls_placement p)
{
    double own = dot(x, dx);
    if (p == LS_INVARIANT) {
        own /= ls_world_size();
    }
    CHECK_OK(ls_all_reduce(ls_world(), &own, &own, 1, LS_FLOAT64, LS_SUM, NULL, NULL));
    return own;
}

static ls_placement dual(ls_placement p)
{
    return p == LS_PARTIAL ? LS_REPLICATED : p == LS_REPLICATED ? LS_PARTIAL : p;
}

/* <y, dy> = <x, dx>: backward is the adjoint of forward. Numbers are small integers, so all sums
 * are exact. */
static void check_row(const row *c)
{
    const int r = ls_rank(), n = ls_world_size();
    LS_SCOPE;
    {
        ls_tensor *x = placed(c->from, r, n, 1.0f);
        CHECK_OK(ls_set_requires_grad(x, true));
        ls_tensor *y = ls_redistribute(x, "tp", c->from, c->to);
        CHECK_OK(ls_tensor_status(y));
        CHECK(ls_placement_of(y, "tp") == c->to);
        if (c->to != LS_PARTIAL) {
            const float terms = c->from == LS_PARTIAL ? (float)(n * (n + 1) / 2) : 1.0f;
            check_equal(y, placed(c->to, r, n, terms));
        }
        ls_tensor *dy = placed(dual(c->to), r, n, 2.0f);
        CHECK_OK(ls_backward_from(&y, &dy, 1));
        CHECK(ls_grad(x) != NULL);
        CHECK(whole_dot(y, dy, c->to) == whole_dot(x, ls_grad(x), c->from));
    }
}

static void check_all(void)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    CHECK(ls_mesh_in_force() == mesh);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_row(&rows[i]);
    }
    CHECK_OK(ls_mesh_free(mesh));
    CHECK(ls_mesh_in_force() == NULL);
}

DIST_TESTS(conversions_and_their_adjoints_over_, _ranks, 2, 3, 4)
{
    check_all();
}

DIST_TEST(an_axis_of_one_rank_converts_nothing, 1)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=1", &mesh));
    LS_SCOPE;
    {
        ls_tensor *x = placed(LS_UNPLACED, 0, 1, 1.0f);
        CHECK(ls_redistribute(x, "tp", LS_PARTIAL, LS_INVARIANT) == x);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

static int64_t allocated(void)
{
    ls_memory_stats s = {.size = sizeof s};
    CHECK_OK(ls_memory_get_stats(&s));
    return (int64_t)s.allocated;
}

/* The result, and nothing of how it was made. */
DIST_TEST(a_conversion_keeps_its_result_alone, 2)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=2", &mesh));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        LS_SCOPE;
        ls_tensor *x = placed(rows[i].from, ls_rank(), 2, 1.0f);
        CHECK_OK(ls_set_requires_grad(x, true));
        const int64_t before = allocated();
        ls_tensor *y = ls_redistribute(x, "tp", rows[i].from, rows[i].to);
        CHECK_OK(ls_tensor_status(y));
        const int64_t own = ls_numel(y) * (int64_t)sizeof(float);
        CHECK(allocated() - before <= (own + 255) / 256 * 256 * 5 / 4);
    }
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(bytes_of_conversions_are_counted, 4)
{
    ls_mesh *mesh = NULL;
    ls_redistribute_stats s = {.size = sizeof s};
    CHECK_OK(ls_mesh_new(ls_world(), "dp=2,tp=2", &mesh));
    LS_SCOPE;
    {
        ls_tensor *x = ls_ones(LS_SHAPE(4, 8), LS_FLOAT32); /* 128 bytes */
        CHECK_OK(ls_place(x, "tp", LS_PARTIAL));
        ls_tensor *y = ls_redistribute(x, "tp", LS_PARTIAL, LS_SHARDED(1));             /* 64 */
        y = ls_redistribute(y, "tp", LS_SHARDED(1), LS_SHARDED(0));                     /* 32 */
        y = ls_redistribute(y, "tp", LS_SHARDED(0), LS_INVARIANT);                      /* 64 */
        CHECK_OK(ls_tensor_status(ls_redistribute(x, "tp", LS_PARTIAL, LS_INVARIANT))); /* 128 */
        CHECK_OK(ls_tensor_status(y));
    }
    CHECK_OK(ls_redistribute_get_stats("tp", &s));
    CHECK(s.all_reduces == 1 && s.all_gathers == 1 && s.reduce_scatters == 1 && s.all_to_alls == 1);
    CHECK(s.bytes == 64 + 32 + 64 + 128);
    CHECK_OK(ls_redistribute_get_stats("dp", &s));
    CHECK(s.bytes == 0);
    CHECK_OK(ls_mesh_free(mesh));
}

/* ---- weight 0 ------------------------------------------------------------------------------- */

typedef struct scale {
    ls_module base;
    ls_tensor *factor;
    bool recompute;
} scale;

static ls_tensor *gathered(ls_tensor *x, void *arg)
{
    ls_tensor *h = ls_mul(x, ((scale *)arg)->factor);
    return ls_redistribute(h, "cp", LS_SHARDED(0), LS_REPLICATED);
}

static ls_tensor *scale_forward(ls_module *m, ls_tensor *x)
{
    return ((scale *)m)->recompute ? ls_recompute_call(gathered, x, m) : gathered(x, m);
}

static const ls_module_class scale_class =
    LS_MODULE_CLASS(.name = "scale", .forward = scale_forward);

static ls_status count_hook(void *arg, ls_tensor *t, ls_tensor *grad)
{
    (void)t, (void)grad;
    ++*(int *)arg;
    return LS_OK;
}

/* Rank r has x = r + 1, and all losses depend on all of them; only rank 0's has a weight. */
static void check_light(bool recompute)
{
    int hooked = 0;
    scale *s = ls_module_new(sizeof *s, &scale_class);
    s->factor = ls_module_add_param(&s->base, "factor", ls_ones(LS_SHAPE(1), LS_FLOAT32));
    s->recompute = recompute;
    ls_hook *hook = ls_grad_hook_new(s->factor, count_hook, &hooked);
    ls_module *m = ls_ddp_new(&s->base, ls_world(), NULL);
    CHECK_OK(ls_module_status(m));
    {
        LS_SCOPE;
        ls_tensor *x = ls_full(LS_SHAPE(1), LS_FLOAT32, ls_rank() + 1.0);
        CHECK_OK(ls_place(x, "cp", LS_SHARDED(0)));
        ls_tensor *loss = ls_sum(ls_forward(m, x));
        CHECK_OK(ls_backward_weighted(loss, ls_rank() == 0 ? 2.0 : 0.0));
        CHECK(*(const float *)elements_of(ls_grad(ls_module_param(m, "factor"))) == 6.0F);
    }
    CHECK_INT(hooked, 1);
    ls_hook_free(hook);
    ls_module_free(m);
}

DIST_TEST(a_rank_of_weight_0_gives_the_gradients_of_what_others_have_of_it, 3)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), "cp=3", &mesh));
    check_light(false);
    check_light(true);
    CHECK_OK(ls_mesh_free(mesh));
}

TEST_MAIN
