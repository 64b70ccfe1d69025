/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to ranks: what arrives, gradients the other way, bytes, and what is refused. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { WIDTH = 3, RANKS_MAX = 8 };

static ls_mesh *mesh_of(const char *axes)
{
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
    return mesh;
}

/* Rows that rank a sends to rank b: some ranks send nothing to some, and rank 1 to none. */
static int64_t rows_between(int a, int b)
{
    return a == 1 ? 0 : (a * 5 + b * 3) % 4;
}

static float number(int a, int b, int64_t row, int column)
{
    return (float)(1000 * a + 100 * b + 10 * (int)row + column);
}

static void counts_of(int rank, int n, int64_t *to, int64_t *from)
{
    for (int r = 0; r < n; r++) {
        to[r] = rows_between(rank, r);
        from[r] = rows_between(r, rank);
    }
}

/* The rows of all pairs (rank, r), or of all (r, rank) with `back`. */
static ls_tensor *rows_of(int rank, int n, bool back, float factor)
{
    int64_t total = 0;
    for (int r = 0; r < n; r++) {
        total += back ? rows_between(r, rank) : rows_between(rank, r);
    }
    ls_tensor *t = ls_empty(LS_SHAPE(total, WIDTH), LS_FLOAT32);
    float *at = edit_elements(t), *next = at;
    for (int r = 0; r < n; r++) {
        const int a = back ? r : rank, b = back ? rank : r;
        for (int64_t i = 0; i < rows_between(a, b); i++) {
            for (int c = 0; c < WIDTH; c++) {
                *next++ = factor * number(a, b, i, c);
            }
        }
    }
    put_elements(t, at);
    return t;
}

static void check_equal(ls_tensor *got, ls_tensor *want)
{
    CHECK_OK(ls_tensor_status(got));
    CHECK_INT(ls_numel(got), ls_numel(want));
    CHECK(ls_numel(got) == 0 ||
          memcmp(elements_of(got), elements_of(want), (size_t)ls_numel(got) * sizeof(float)) == 0);
}

static void check_stats(uint64_t exchanges, int64_t rows)
{
    ls_redistribute_stats stats = {.size = sizeof stats};
    CHECK_OK(ls_redistribute_get_stats("ep", &stats));
    CHECK_INT(stats.all_to_alls, exchanges);
    CHECK_INT(stats.bytes, rows * WIDTH * (int64_t)sizeof(float));
}

DIST_TESTS(rows_of_, _ranks_arrive_in_their_order_and_gradients_go_back, 1, 2, 3, 5, 8)
{
    const int n = ls_world_size(), rank = ls_rank();
    ls_mesh *mesh = mesh_of("ep=*");
    int64_t to[RANKS_MAX], from[RANKS_MAX], leave = 0, come = 0;
    counts_of(rank, n, to, from);
    for (int r = 0; r < n; r++) {
        leave += r != rank ? to[r] : 0;
        come += r != rank ? from[r] : 0;
    }
    LS_SCOPE;
    ls_tensor *x = rows_of(rank, n, false, 1.0f);
    CHECK_OK(ls_place(x, "ep", LS_VARYING));
    CHECK_OK(ls_set_requires_grad(x, true));
    ls_tensor *y = ls_redistribute_rows(x, "ep", to, from);
    check_equal(y, rows_of(rank, n, true, 1.0f));
    CHECK(n == 1 || ls_placement_of(y, "ep") == LS_VARYING);
    check_stats(n > 1, leave);
    ls_tensor *dy = rows_of(rank, n, true, 2.0f);
    CHECK_OK(ls_place(dy, "ep", LS_VARYING));
    CHECK_OK(ls_backward_from(&y, &dy, 1));
    check_equal(ls_grad(x), rows_of(rank, n, false, 2.0f));
    check_stats(n > 1 ? 2 : 0, leave + come);
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(half_precision_rows_and_rows_of_more_dimensions_travel_as_they_are, 2)
{
    ls_mesh *mesh = mesh_of("ep=2");
    const int other = 1 - ls_rank();
    int64_t counts[2] = {0, 0};
    counts[other] = 2;
    LS_SCOPE;
    ls_tensor *x = ls_cast(ls_full(LS_SHAPE(2, 2, 3), LS_FLOAT32, 1.0 + ls_rank()), LS_BFLOAT16);
    ls_tensor *y = ls_redistribute_rows(ls_place(x, "ep", LS_SHARDED(0)) == LS_OK ? x : NULL, "ep",
                                        counts, counts);
    CHECK_OK(ls_tensor_status(y));
    CHECK(ls_dtype_of(y) == LS_BFLOAT16 && ls_ndim(y) == 3 && ls_size(y, 0) == 2);
    double first = 0.0;
    CHECK_OK(ls_item(ls_sum(ls_cast(y, LS_FLOAT32)), &first));
    CHECK_NEAR(first, 12.0 * (1.0 + other), 0.0);
    CHECK_OK(ls_mesh_free(mesh));
}

static void check_refused(ls_tensor *y, ls_status status, const char *says)
{
    CHECK_STATUS(ls_tensor_status(y), status);
    CHECK_SAYS(ls_error_message(), says);
}

DIST_TEST(rows_that_no_counts_describe_or_that_are_equal_on_all_ranks_are_refused, 2)
{
    ls_mesh *mesh = mesh_of("ep=2");
    const int64_t one[2] = {1, 1}, negative[2] = {3, -1};
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32);
    CHECK_OK(ls_place(x, "ep", LS_INVARIANT));
    CHECK_OK(ls_set_requires_grad(x, true));
    check_refused(ls_redistribute_rows(x, "ep", one, NULL), LS_ERR_INVALID,
                  SAYS("redistribute_rows: counts are NULL; give %d of rows to send and %d of rows "
                       "to receive, one for each rank of axis %s"));
    check_refused(
        ls_redistribute_rows(x, "ep", negative, one), LS_ERR_INVALID,
        SAYS("redistribute_rows: %lld rows to rank %d of axis %s and %lld from it; give numbers "
             "of rows that there can be"));
    const int64_t huge[2] = {INT64_MAX / 2 + 1, INT64_MAX / 2 + 1};
    check_refused(ls_redistribute_rows(x, "ep", one, huge), LS_ERR_INVALID, "give numbers of rows");
    check_refused(ls_redistribute_rows(ls_ones(LS_SHAPE(3, WIDTH), LS_FLOAT32), "ep", one, one),
                  LS_ERR_INVALID,
                  SAYS("redistribute_rows: the counts for the ranks of axis %s are %lld rows, and "
                       "argument 1 is %s; give counts that add up to its dimension 0"));
    check_refused(ls_redistribute_rows(x, "ep", one, one), LS_ERR_PLACEMENT,
                  SAYS("redistribute_rows: on axis %s %s is %s; give each rank rows of its own: of "
                       "a batch that varies along the axis"));
    CHECK_STATUS(ls_tensor_status(ls_redistribute_rows(x, "tp", one, one)), LS_ERR_NOT_FOUND);
    CHECK_OK(ls_mesh_free(mesh));
}

/* Before a row is used. */
DIST_TEST(ends_of_a_block_that_differ_in_its_rows_are_a_mismatch, 2)
{
    ls_mesh *mesh = mesh_of("ep=2");
    const int64_t send[2] = {1, 1}, receive[2] = {1, ls_rank() == 0 ? 2 : 1};
    LS_SCOPE;
    ls_tensor *x = ls_ones(LS_SHAPE(2, WIDTH), LS_FLOAT32);
    ls_tensor *y = ls_redistribute_rows(x, "ep", send, receive);
    if (ls_rank() == 0) {
        CHECK_STATUS(ls_tensor_status(y), LS_ERR_MISMATCH);
        CHECK_SAYS(ls_error_message(), "redistribute rows%s");
    }
    (void)ls_mesh_free(mesh); /* its group has failed */
}

TEST_MAIN
