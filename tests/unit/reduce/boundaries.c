/* Where buckets end, against a search of all divisions of a few cells. */
#include "reduce/boundaries.h"

#include <math.h>

#include <lockstep/random.h>

#include "test.h"

enum { CELLS_MAX = 11, CASES = 4000 };

typedef struct draw {
    ls__boundary_cell cells[CELLS_MAX];
    int count;
    ls__boundary_cost cost;
    double slack;
} draw;

static double uniform(int trial, int lane)
{
    return (double)ls_random_uniform(test_seed(), (uint64_t)trial, (uint64_t)lane);
}

/* Wires that are idle most of the time, and such that are never idle; some cells are ready
 * together, some before an earlier one. */
static draw draw_case(int trial)
{
    draw d = {.count = 1 + (int)(uniform(trial, 0) * CELLS_MAX), .slack = 0.02 * uniform(trial, 1)};
    double ready = 0.0;
    d.count = d.count > CELLS_MAX ? CELLS_MAX : d.count;
    for (int c = 0; c < d.count; c++) {
        const double step = uniform(trial, 10 + 2 * c);
        ready += step < 0.2 ? 0.0 : step;
        d.cells[c].ready = step > 0.9 ? ready - step : ready;
        d.cells[c].bytes = floor(1.0 + 100.0 * pow(uniform(trial, 11 + 2 * c), 3.0));
    }
    d.cost.each = uniform(trial, 2) < 0.1 ? 0.0 : pow(10.0, 3.0 * uniform(trial, 3) - 2.5);
    d.cost.byte = uniform(trial, 4) < 0.1 ? 0.0 : pow(10.0, 3.0 * uniform(trial, 5) - 4.0);
    return d;
}

static int count_buckets(const draw *d, const bool *ends)
{
    int buckets = 1;
    for (int c = 0; c < d->count - 1; c++) {
        buckets += ends[c];
    }
    return buckets;
}

static double end_of(const draw *d, int bits)
{
    bool ends[CELLS_MAX] = {false};
    for (int c = 0; c < d->count - 1; c++) {
        ends[c] = bits >> c & 1;
    }
    return ls__boundaries_end(d->cells, d->count, &d->cost, ends);
}

static int bits_in(int bits)
{
    int count = 0;
    for (; bits != 0; bits &= bits - 1) {
        count++;
    }
    return count;
}

/* A tolerance below the steps of the figures, since sums are made in another order. */
TEST(the_division_is_that_of_an_exhaustive_search)
{
    int several = 0;
    for (int trial = 0; trial < CASES; trial++) {
        const draw d = draw_case(trial);
        bool ends[CELLS_MAX];
        const double found = ls__boundaries_find(d.cells, d.count, &d.cost, d.slack, ends);
        double best = INFINITY;
        for (int bits = 0; bits < 1 << (d.count - 1); bits++) {
            best = fmin(best, end_of(&d, bits));
        }
        CHECK_NEAR(found, best, 1e-12 * best);
        int fewest = d.count;
        for (int bits = 0; bits < 1 << (d.count - 1); bits++) {
            if (end_of(&d, bits) <= best * (1.0 + d.slack) * (1.0 - 1e-12)) {
                fewest = bits_in(bits) + 1 < fewest ? bits_in(bits) + 1 : fewest;
            }
        }
        const double end = ls__boundaries_end(d.cells, d.count, &d.cost, ends);
        if (end > best * (1.0 + d.slack) * (1.0 + 1e-12) || count_buckets(&d, ends) > fewest) {
            test_fail(__FILE__, __LINE__, "case %d: %d buckets end at %.17g; %d end by %.17g",
                      trial, count_buckets(&d, ends), end, fewest, best * (1.0 + d.slack));
        }
        several += fewest > 1;
    }
    CHECK(several > CASES / 4); /* the cases are not all trivial */
}

/* The wire is never idle: one bucket; it is idle but for the last gradient: that one goes alone. */
TEST(one_bucket_where_the_start_costs_and_a_small_last_one_where_the_wire_waits)
{
    const ls__boundary_cell cells[4] = {{1.0, 100}, {2.0, 100}, {3.0, 100}, {4.0, 1}};
    bool ends[4];
    (void)ls__boundaries_find(cells, 4, &(ls__boundary_cost){10.0, 1e-3}, 0.0, ends);
    CHECK(!ends[0] && !ends[1] && !ends[2] && ends[3]);
    CHECK_NEAR(ls__boundaries_find(cells, 4, &(ls__boundary_cost){0.1, 2e-3}, 0.0, ends), 4.102,
               1e-12);
    CHECK(ends[2] && ends[3]);
}

/* Neighbours stay together where cells are too many for the search, and every cell is covered. */
TEST(thousands_of_cells_are_divided_quickly)
{
    enum { MANY = 20000 };
    static ls__boundary_cell cells[MANY];
    static bool ends[MANY];
    for (int c = 0; c < MANY; c++) {
        cells[c] = (ls__boundary_cell){c * 1e-5, 65536};
    }
    const ls__boundary_cost cost = {1e-4, 1e-10};
    const double found = ls__boundaries_find(cells, MANY, &cost, 0.0, ends);
    CHECK(ends[MANY - 1]);
    CHECK_NEAR(ls__boundaries_end(cells, MANY, &cost, ends), found, 1e-9);
    CHECK(found < 0.2 + 1e-3 && found >= (MANY - 1) * 1e-5);
    CHECK(ls__boundaries_find(cells, 0, &cost, 0.0, ends) == 0.0);
}

TEST(a_cost_is_fitted_to_the_divisions_and_never_below_what_was_measured)
{
    const double buckets[3] = {2, 5, 17};
    double seconds[3];
    for (int t = 0; t < 3; t++) {
        seconds[t] = buckets[t] * 2e-4 + 1e7 * 3e-9;
    }
    ls__boundary_cost cost = ls__boundaries_fit(buckets, seconds, 3, 1e7, 1e-5);
    CHECK_NEAR(cost.each, 2e-4, 1e-12);
    CHECK_NEAR(cost.byte, 3e-9, 1e-15);
    cost = ls__boundaries_fit(buckets, seconds, 3, 1e7, 1e-3);
    CHECK_NEAR(cost.each, 1e-3, 0.0);
    CHECK_NEAR(cost.byte, 2.36e-9, 1e-12); /* the same mean */
    cost = ls__boundaries_fit(buckets, (double[]){3.0, 2.0, 1.0}, 3, 1e7, 1e-5);
    CHECK(cost.each == 1e-5 && cost.byte > 1e-7);
    cost = ls__boundaries_fit(buckets, (double[]){1e-6, 1e-6, 1e-6}, 3, 1e7, 1e-5);
    CHECK(cost.each == 1e-5 && cost.byte == 0.0);
    cost = ls__boundaries_fit(NULL, NULL, 0, 0, 0);
    CHECK(cost.each == 0.0 && cost.byte == 0.0);
}

TEST_MAIN
