/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary shared by the ranks of an axis: the embedding to the bit against the whole table,
 * the loss and its gradient against float64, what goes over the network, what is refused. */
#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "says.h"
#include "test.h"

enum { VOCAB = 24, DIM = 10, BATCH = 3, TIME = 4, ROWS = BATCH * TIME, IGNORE = -7 };

static ls_mesh *mesh;

static void begin(const char *axes)
{
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
}

static void end(void)
{
    CHECK_OK(ls_mesh_free(mesh));
}

static float random_at(int64_t i)
{
    return ls_random_normal(11, 3, (uint64_t)i);
}

/* Elements [first, first + count) of each of `rows` rows of `whole` elements. */
static ls_tensor *cut(ls_shape shape, int64_t whole, int64_t first)
{
    const int64_t count = shape.dim[shape.ndim - 1];
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = random_at(i / count * whole + first + i % count);
    }
    put_elements(t, at);
    return t;
}

/* Leaves that a module would own need no module here: what is placed counts. */
static ls_tensor *leaf(ls_tensor *t, ls_placement placement)
{
    CHECK_OK(ls_place(t, "tp", placement));
    CHECK_OK(ls_set_requires_grad(t, true));
    return t;
}

static ls_tensor *ids_of(ls_dtype dtype)
{
    ls_tensor *t = ls_empty(LS_SHAPE(BATCH, TIME), LS_INT64);
    int64_t *at = edit_elements(t);
    for (int64_t i = 0; i < ROWS; i++) {
        at[i] = i * 7 % VOCAB - i / 9 * 3; /* some of them twice */
    }
    put_elements(t, at);
    return dtype == LS_INT64 ? t : ls_cast(t, dtype);
}

/* a is b from its element b_first on. */
static void check_bits(ls_tensor *a, ls_tensor *b, int64_t b_first)
{
    CHECK_OK(ls_tensor_status(a));
    CHECK_OK(ls_tensor_status(b));
    const int64_t element = (int64_t)ls_dtype_size(ls_dtype_of(b));
    CHECK(ls_dtype_of(a) == ls_dtype_of(b));
    CHECK(memcmp(elements_of(a), (const char *)elements_of(b) + b_first * element,
                 (size_t)(ls_numel(a) * element)) == 0);
}

/* ---- embedding ---------------------------------------------------------------------------- */

static void check_embedding(ls_dtype ids_dtype, ls_placement to)
{
    const int n = ls_world_size(), r = ls_rank();
    const int64_t own = VOCAB / n;
    LS_SCOPE;
    {
        ls_tensor *ids = ids_of(ids_dtype), *whole = cut(LS_SHAPE(VOCAB, DIM), DIM, 0);
        CHECK_OK(ls_set_requires_grad(whole, true));
        ls_tensor *part = ls_contiguous(ls_slice(ls_detach(whole), 0, r * own, (r + 1) * own));
        ls_tensor *y = ls_sharded_embedding(leaf(ls_clone(part), LS_SHARDED(0)), ids, "tp");
        CHECK_OK(ls_tensor_status(y));
        CHECK(n == 1 || ls_placement_of(y, "tp") == LS_PARTIAL);
        y = ls_redistribute(y, "tp", LS_PARTIAL, to);
        ls_tensor *want = ls_embedding(whole, ids);
        check_bits(y, want, to == LS_SHARDED(0) ? r * ls_numel(y) : 0);
    }
}

static ls_tensor *embed(ls_tensor *weight, void *ids)
{
    return ls_redistribute(ls_sharded_embedding(weight, ids, "tp"), "tp", LS_PARTIAL, LS_INVARIANT);
}

static void check_embedding_gradient(ls_dtype dtype, bool again)
{
    const int n = ls_world_size(), r = ls_rank();
    const int64_t own = VOCAB / n;
    LS_SCOPE;
    {
        ls_tensor *ids = ids_of(LS_INT32),
                  *whole = ls_cast(cut(LS_SHAPE(VOCAB, DIM), DIM, 0), dtype);
        ls_tensor *part = ls_contiguous(ls_slice(whole, 0, r * own, (r + 1) * own));
        part = leaf(ls_clone(part), LS_SHARDED(0));
        CHECK_OK(ls_set_requires_grad(whole, true));
        ls_tensor *y = again ? ls_recompute_call(embed, part, ids) : embed(part, ids);
        ls_tensor *want = ls_embedding(whole, ids);
        ls_tensor *dy = ls_cast(cut(LS_SHAPE(BATCH, TIME, DIM), DIM, 1000), dtype);
        check_bits(y, want, 0);
        CHECK_OK(ls_backward_from(&y, &dy, 1));
        CHECK_OK(ls_backward_from(&want, &dy, 1));
        check_bits(ls_grad(part), ls_grad(whole), r * own * DIM);
    }
}

DIST_TESTS(an_embedding_over_, _ranks_has_the_bits_of_the_whole, 1, 2, 3, 4)
{
    begin("tp=*");
    check_embedding(LS_INT64, LS_INVARIANT);
    check_embedding(LS_INT32, LS_INVARIANT);
    check_embedding(LS_INT32, LS_REPLICATED);
    if (ls_world_size() != 2 && ls_world_size() != 4) { /* dimension 0 of the result is 3 */
        check_embedding(LS_INT64, LS_SHARDED(0));
    }
    check_embedding_gradient(LS_FLOAT32, false);
    check_embedding_gradient(LS_FLOAT32, true);
    check_embedding_gradient(LS_BFLOAT16, false);
    check_embedding_gradient(LS_BFLOAT16, true);
    LS_SCOPE;
    {
        LS_NO_GRAD;
        ls_tensor *w = leaf(cut(LS_SHAPE(VOCAB / ls_world_size(), DIM), DIM, 0), LS_SHARDED(0));
        ls_tensor *y = ls_sharded_embedding(w, ids_of(LS_INT64), "tp");
        CHECK_OK(ls_tensor_status(y));
        CHECK(ls_world_size() == 1 || ls_placement_of(y, "tp") == LS_PARTIAL);
    }
    end();
}

/* ---- loss --------------------------------------------------------------------------------- */

typedef struct problem {
    double smoothing, z_loss;
    double scale, shift; /* of the logits */
    int masked;          /* so many classes at the end have no logit: -infinity */
    int ignored;         /* rows */
    ls_dtype targets;
    float dloss;
} problem;

static double logit_at(const problem *p, int64_t row, int64_t j)
{
    const double x = p->scale * (double)random_at(row * VOCAB + j) + p->shift;
    return j >= VOCAB - p->masked ? -INFINITY : (double)(float)x;
}

static int64_t target_at(const problem *p, int64_t row)
{
    return row < p->ignored ? IGNORE : row * 5 % (VOCAB - p->masked);
}

static ls_tensor *targets_of(const problem *p)
{
    ls_tensor *t = ls_empty(LS_SHAPE(BATCH, TIME), LS_INT64);
    int64_t *at = edit_elements(t);
    for (int64_t i = 0; i < ROWS; i++) {
        at[i] = target_at(p, i);
    }
    put_elements(t, at);
    return p->targets == LS_INT32 ? ls_cast(t, LS_INT32) : t;
}

static ls_tensor *logits_of(const problem *p, int part, int parts)
{
    const int64_t own = VOCAB / parts;
    ls_tensor *t = ls_empty(LS_SHAPE(BATCH, TIME, own), LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = (float)logit_at(p, i / own, part * own + i % own);
    }
    put_elements(t, at);
    return t;
}

/* In float64, of one row: loss, and the gradient of the sum of the rows' losses. */
static double row_loss(const problem *p, int64_t row, double *dx)
{
    double max = -INFINITY, sum = 0.0, mean = 0.0;
    const int64_t target = target_at(p, row);
    for (int64_t j = 0; j < VOCAB; j++) {
        max = fmax(max, logit_at(p, row, j));
        mean += logit_at(p, row, j) / VOCAB;
    }
    for (int64_t j = 0; j < VOCAB; j++) {
        sum += exp(logit_at(p, row, j) - max);
    }
    const double lse = max + log(sum), e = p->smoothing;
    for (int64_t j = 0; j < VOCAB; j++) {
        const double share = (j == target ? 1.0 - e : 0.0) + e / VOCAB;
        dx[j] = exp(logit_at(p, row, j) - lse) * (1.0 + 2.0 * p->z_loss * lse) - share;
    }
    return lse - (1.0 - e) * logit_at(p, row, target) - (e > 0.0 ? e * mean : 0.0) +
           p->z_loss * lse * lse;
}

static double expected(const problem *p, double *dx)
{
    double sum = 0.0;
    for (int64_t i = 0; i < ROWS; i++) {
        if (i < p->ignored) {
            memset(dx + i * VOCAB, 0, VOCAB * sizeof *dx);
        } else {
            sum += row_loss(p, i, dx + i * VOCAB);
        }
    }
    for (int64_t i = 0; i < ROWS * VOCAB && p->ignored < ROWS; i++) {
        dx[i] *= (double)p->dloss / (ROWS - p->ignored);
    }
    return sum / (ROWS - p->ignored);
}

#define OPTIONS(p)                                                                                 \
    LS_OPTIONS(ls_cross_entropy_options, .label_smoothing = (p)->smoothing, .z_loss = (p)->z_loss, \
               .ignore_index = IGNORE)

static void check_gradient(ls_tensor *logits, const double *dx, int part, int parts, double close)
{
    const int64_t own = VOCAB / parts;
    ls_tensor *got = ls_cast(ls_grad(logits), LS_FLOAT32);
    CHECK_OK(ls_tensor_status(got));
    const float *at = elements_of(got);
    for (int64_t i = 0; i < ls_numel(got); i++) {
        const double want = dx[i / own * VOCAB + part * own + i % own];
        CHECK_NEAR((double)at[i], want, close * (fabs(want) + 1e-2));
    }
}

static void check_loss(const problem *p, ls_dtype dtype, double close)
{
    const int n = ls_world_size(), r = ls_rank();
    double dx[ROWS * VOCAB], loss, want = expected(p, dx);
    LS_SCOPE;
    {
        ls_tensor *x = leaf(ls_cast(logits_of(p, r, n), dtype), LS_SHARDED(-1));
        ls_tensor *y = ls_sharded_cross_entropy(x, targets_of(p), "tp", OPTIONS(p));
        CHECK_OK(ls_item(y, &loss));
        CHECK(n == 1 || ls_placement_of(y, "tp") == LS_INVARIANT);
        if (p->ignored == ROWS) {
            CHECK(isnan(loss));
        } else {
            CHECK_NEAR(loss, want, close * (fabs(want) + 1e-3));
        }
        CHECK_OK(ls_backward(ls_scale(y, (double)p->dloss)));
        check_gradient(x, dx, r, n, close);
    }
}

static const problem problems[] = {
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f},
    {.scale = 2.0, .targets = LS_INT32, .dloss = -3.0f, .ignored = 5},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f, .smoothing = 0.1},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f, .smoothing = 1.0, .ignored = 1},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 2.0f, .z_loss = 0.01},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f, .z_loss = 0.01, .smoothing = 0.3},
    {.scale = 1.0, .targets = LS_INT64, .dloss = 1.0f, .shift = 1000.0},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f, .ignored = ROWS},
    {.scale = 2.0, .targets = LS_INT64, .dloss = 1.0f, .masked = 13}, /* all of the last ranks */
};

DIST_TESTS(losses_over_, _ranks_are_those_of_the_whole_vocabulary, 1, 2, 3, 4)
{
    begin("tp=*");
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        check_loss(&problems[i], LS_FLOAT32, 3e-6);
    }
    end();
}

DIST_TESTS(losses_without_gradients_over_, _ranks_are_the_same, 2, 4)
{
    begin("tp=*");
    LS_SCOPE;
    {
        LS_NO_GRAD;
        double dx[ROWS * VOCAB], loss;
        const double want = expected(&problems[1], dx);
        ls_tensor *x = logits_of(&problems[1], ls_rank(), ls_world_size());
        CHECK_OK(ls_place(x, "tp", LS_SHARDED(2)));
        ls_tensor *y =
            ls_sharded_cross_entropy(x, targets_of(&problems[1]), "tp", OPTIONS(&problems[1]));
        CHECK_OK(ls_item(y, &loss));
        CHECK_NEAR(loss, want, 3e-6 * want);
        CHECK(!ls_requires_grad(y) && ls_placement_of(y, "tp") == LS_UNPLACED);
    }
    end();
}

/* The plain loss has the same terms: it is the oracle of z-loss and bfloat16. */
static void check_against_plain(const problem *p, ls_dtype dtype, double close)
{
    const int n = ls_world_size(), r = ls_rank();
    double got, want;
    LS_SCOPE;
    {
        ls_tensor *x = leaf(ls_cast(logits_of(p, r, n), dtype), LS_SHARDED(-1));
        ls_tensor *all = ls_cast(logits_of(p, 0, 1), dtype);
        CHECK_OK(ls_set_requires_grad(all, true));
        ls_tensor *y = ls_sharded_cross_entropy(x, targets_of(p), "tp", OPTIONS(p));
        ls_tensor *plain = ls_cross_entropy(all, targets_of(p), OPTIONS(p));
        CHECK_OK(ls_item(y, &got));
        CHECK_OK(ls_item(plain, &want));
        CHECK(p->ignored == ROWS || fabs(got - want) <= close * fabs(want));
        CHECK_OK(ls_backward(ls_scale(y, (double)p->dloss)));
        CHECK_OK(ls_backward(ls_scale(plain, (double)p->dloss)));
        CHECK(ls_dtype_of(ls_grad(x)) == dtype);
        ls_tensor *wide = ls_cast(ls_grad(all), LS_FLOAT32);
        const float *at = elements_of(wide);
        double dx[ROWS * VOCAB];
        for (int64_t i = 0; i < ROWS * VOCAB; i++) {
            dx[i] = (double)at[i];
        }
        check_gradient(x, dx, r, n, dtype == LS_BFLOAT16 ? 0.01 : close);
    }
}

DIST_TESTS(losses_over_, _ranks_are_those_of_the_plain_operation, 1, 2, 3, 4)
{
    begin("tp=*");
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        check_against_plain(&problems[i], LS_FLOAT32, 3e-6);
        check_against_plain(&problems[i], LS_BFLOAT16, 3e-6);
    }
    end();
}

static ls_tensor *loss_of_logits(ls_tensor *x, void *arg)
{
    const problem *p = arg;
    return ls_sharded_cross_entropy(x, targets_of(p), "tp", OPTIONS(p));
}

DIST_TESTS(a_recomputed_loss_over_, _ranks_is_the_same, 2, 3)
{
    problem p = problems[2];
    double dx[ROWS * VOCAB];
    (void)expected(&p, dx);
    begin("tp=*");
    LS_SCOPE;
    {
        ls_tensor *x = leaf(logits_of(&p, ls_rank(), ls_world_size()), LS_SHARDED(2));
        ls_tensor *y = ls_recompute_call(loss_of_logits, x, &p);
        CHECK_OK(ls_tensor_status(y));
        CHECK(ls_placement_of(y, "tp") == LS_INVARIANT);
        CHECK_OK(ls_backward(y));
        check_gradient(x, dx, ls_rank(), ls_world_size(), 3e-6);
    }
    end();
}

/* Without gradients on one rank the others need not wait for it, nor where forward runs again. */
DIST_TESTS(a_rank_of_weight_0_among_, _holds_nobody_up, 2, 3)
{
    problem p = problems[2];
    begin("tp=*");
    for (int again = 0; again < 2; again++) {
        LS_SCOPE;
        ls_tensor *x = leaf(logits_of(&p, ls_rank(), ls_world_size()), LS_SHARDED(2));
        ls_tensor *y =
            again == 1 ? ls_recompute_call(loss_of_logits, x, &p) : loss_of_logits(x, &p);
        CHECK_OK(ls_backward_from_weighted(&y, NULL, 1, ls_rank() == 0 ? 0.0 : 1.0));
        CHECK((ls_grad(x) == NULL) == (ls_rank() == 0));
    }
    end();
}

/* ---- what goes over the network ----------------------------------------------------------- */

static uint64_t bytes_now(uint64_t *all_reduces)
{
    ls_redistribute_stats s = {.size = sizeof s};
    CHECK_OK(ls_redistribute_get_stats("tp", &s));
    CHECK(s.all_gathers == 0 && s.reduce_scatters == 0 && s.all_to_alls == 0);
    *all_reduces = s.all_reduces;
    return s.bytes;
}

static void check_bytes(const problem *p, int vectors)
{
    const int n = ls_world_size();
    uint64_t calls, calls_after;
    LS_SCOPE;
    {
        ls_tensor *x = leaf(logits_of(p, ls_rank(), n), LS_SHARDED(2)), *targets = targets_of(p);
        const uint64_t before = bytes_now(&calls);
        ls_tensor *y = ls_sharded_cross_entropy(x, targets, "tp", OPTIONS(p));
        CHECK_OK(ls_tensor_status(y));
        const uint64_t after = bytes_now(&calls_after);
        CHECK_INT(after - before, vectors * ROWS * 4 * 2 * (n - 1) / n);
        CHECK_INT(calls_after - calls, 2);
        CHECK_OK(ls_backward(y));
        CHECK_INT(bytes_now(&calls), after);
        ls_tensor *w = leaf(cut(LS_SHAPE(VOCAB / n, DIM), DIM, 0), LS_SHARDED(0));
        ls_tensor *e = ls_sharded_embedding(w, ids_of(LS_INT64), "tp");
        ls_tensor *dy = cut(LS_SHAPE(BATCH, TIME, DIM), DIM, 0);
        CHECK_OK(ls_backward_from(&e, &dy, 1));
        CHECK_INT(bytes_now(&calls), after);
    }
}

DIST_TESTS(three_numbers_a_row_go_between_, _ranks, 2, 3, 4)
{
    begin("tp=*");
    check_bytes(&problems[0], 3);
    check_bytes(&problems[4], 3);
    check_bytes(&problems[2], 4);
    end();
}

/* ---- with other axes ---------------------------------------------------------------------- */

DIST_TEST(other_axes_go_by_the_rules_of_the_plain_operations, 4)
{
    const problem *p = &problems[0];
    begin("dp=2,tp=2");
    LS_SCOPE;
    {
        const int part = ls_mesh_coordinate(mesh, "tp");
        ls_tensor *x = leaf(logits_of(p, part, 2), LS_SHARDED(2)), *targets = targets_of(p);
        CHECK_OK(ls_place(x, "dp", LS_SHARDED(0)));
        CHECK_OK(ls_place(targets, "dp", LS_SHARDED(0)));
        ls_tensor *y = ls_sharded_cross_entropy(x, targets, "tp", OPTIONS(p));
        CHECK_OK(ls_tensor_status(y));
        CHECK(ls_placement_of(y, "tp") == LS_INVARIANT && ls_placement_of(y, "dp") == LS_VARYING);
        ls_tensor *ids = ids_of(LS_INT64);
        CHECK_OK(ls_place(ids, "dp", LS_SHARDED(0)));
        ls_tensor *w = cut(LS_SHAPE(VOCAB / 2, DIM), DIM, 0);
        CHECK_OK(ls_place(w, "tp", LS_SHARDED(0)));
        ls_tensor *e = ls_sharded_embedding(w, ids, "tp");
        CHECK(ls_placement_of(e, "tp") == LS_PARTIAL && ls_placement_of(e, "dp") == LS_SHARDED(0));
    }
    end();
}

/* ---- refused ------------------------------------------------------------------------------ */

static void check_refused(ls_tensor *t, ls_status status, const char *format)
{
    if (ls_tensor_status(t) != status) {
        test_fail(__FILE__, __LINE__, "%s: %s", ls_status_name(ls_tensor_status(t)),
                  ls_error_message());
    }
    CHECK_SAYS(ls_error_message(), format);
}

static void check_refused_losses(const problem *p)
{
    ls_tensor *targets = targets_of(p), *whole = logits_of(p, 0, 1);
    const char *give = SAYS("on axis %s %s is %s; %s%s");
    check_refused(ls_sharded_cross_entropy(whole, targets, "tp", OPTIONS(p)), LS_ERR_PLACEMENT,
                  give);
    CHECK_CONTAINS(ls_error_message(), "is unplaced; give this rank's part of it, sharded(2); ");
    CHECK_SAYS(ls_error_message(), "give this rank's part of it, sharded(%d); ");
    CHECK_SAYS(ls_error_message(), "gathered logits go to ls_cross_entropy");
    ls_tensor *x = logits_of(p, ls_rank(), 2);
    CHECK_OK(ls_place(x, "tp", LS_SHARDED(2)));
    ls_tensor *gathered = ls_redistribute(x, "tp", LS_SHARDED(2), LS_REPLICATED);
    check_refused(ls_sharded_cross_entropy(gathered, targets, "tp", OPTIONS(p)), LS_ERR_PLACEMENT,
                  give);
    check_refused(ls_cross_entropy(x, ls_zeros(LS_SHAPE(BATCH, TIME), LS_INT64), NULL),
                  LS_ERR_PLACEMENT, "the operation needs the whole of this dimension");
    CHECK_OK(ls_place(x, "tp", LS_SHARDED(0)));
    check_refused(ls_sharded_cross_entropy(x, targets, "tp", OPTIONS(p)), LS_ERR_PLACEMENT, give);
    CHECK_OK(ls_place(x, "tp", LS_SHARDED(2)));
    CHECK_OK(ls_place(targets, "tp", LS_SHARDED(0)));
    check_refused(ls_sharded_cross_entropy(x, targets, "tp", OPTIONS(p)), LS_ERR_PLACEMENT, give);
    CHECK_SAYS(ls_error_message(), "every rank needs the whole of it, the same");
    CHECK_SAYS(ls_error_message(), ": ls_redistribute to LS_REPLICATED");
    CHECK_OK(ls_place(targets, "tp", LS_UNPLACED));
    check_refused(ls_sharded_cross_entropy(x, targets, "cp", OPTIONS(p)), LS_ERR_NOT_FOUND,
                  "the mesh in force has no axis");
    check_refused(ls_sharded_cross_entropy(x, targets, "tp",
                                           LS_OPTIONS(ls_cross_entropy_options, .z_loss = -1.0)),
                  LS_ERR_INVALID, SAYS("z_loss is %g; it is a factor of at least 0"));
    ls_tensor *weights = ls_ones(LS_SHAPE(VOCAB), LS_FLOAT32);
    check_refused(ls_sharded_cross_entropy(x, targets, "tp",
                                           LS_OPTIONS(ls_cross_entropy_options, .weight = weights)),
                  LS_ERR_UNSUPPORTED,
                  SAYS("weights of classes, which this loss does not take; gather the logits "
                       "(ls_redistribute) and call ls_cross_entropy"));
    put_int64(targets, 1, VOCAB);
    check_refused(ls_sharded_cross_entropy(x, targets, "tp", OPTIONS(p)), LS_ERR_INVALID,
                  "element %lld of target %s is %lld; give values in [0,%lld), or %lld for rows "
                  "that do not count");
}

static void check_refused_embeddings(void)
{
    ls_tensor *ids = ids_of(LS_INT64), *w = cut(LS_SHAPE(VOCAB / 2, DIM), DIM, 0);
    check_refused(ls_sharded_embedding(w, ids, "tp"), LS_ERR_PLACEMENT, "on axis %s %s is %s");
    CHECK_SAYS(ls_error_message(), "a whole table goes to ls_embedding");
    CHECK_OK(ls_place(w, "tp", LS_SHARDED(0)));
    check_refused(ls_embedding(w, ls_zeros(LS_SHAPE(3), LS_INT64)), LS_ERR_PLACEMENT,
                  "the operation needs the whole of this dimension");
    CHECK_OK(ls_place(ids, "tp", LS_VARYING));
    check_refused(ls_sharded_embedding(w, ids, "tp"), LS_ERR_PLACEMENT, "on axis %s %s is %s");
    CHECK_OK(ls_place(ids, "tp", LS_UNPLACED));
    check_refused(ls_gelu(ls_sharded_embedding(w, ids, "tp"), LS_GELU_ERF), LS_ERR_PLACEMENT,
                  "the operation is not linear in it");
    put_int64(ids, 5, VOCAB - 1);
    CHECK_OK(ls_tensor_status(ls_sharded_embedding(w, ids, "tp")));
    put_int64(ids, 5, VOCAB);
    check_refused(ls_sharded_embedding(w, ids, "tp"), LS_ERR_INVALID,
                  "element %lld of argument %d %s is %lld; give values in [0,%lld)");
    ls_tensor *uneven = ls_empty(LS_SHAPE(13, DIM), LS_FLOAT32);
    CHECK_OK(ls_tensor_set_part(uneven, LS_SHAPE(25, DIM), LS_SHAPE(ls_rank() * 12, 0)));
    CHECK_OK(ls_place(uneven, "tp", LS_SHARDED(0)));
    check_refused(ls_sharded_embedding(uneven, ids, "tp"), LS_ERR_INVALID,
                  SAYS("argument 1 %s is a part of %lld rows, which the %d ranks of axis %s do "
                       "not share evenly; pad them to %lld"));
    CHECK_CONTAINS(ls_error_message(), "pad them to 26");
}

DIST_TEST(what_is_not_a_part_of_the_vocabulary_is_refused, 2)
{
    begin("tp=2");
    LS_SCOPE;
    {
        check_refused_losses(&problems[0]);
        check_refused_embeddings();
    }
    end();
    LS_SCOPE;
    {
        ls_tensor *x = logits_of(&problems[0], 0, 2);
        check_refused(ls_sharded_cross_entropy(x, targets_of(&problems[0]), "tp", NULL),
                      LS_ERR_STATE, "no mesh is in force");
    }
}

DIST_TEST(parts_of_different_sizes_are_found_out, 2)
{
    begin("tp=2");
    LS_SCOPE;
    {
        ls_tensor *x = cut(LS_SHAPE(ROWS, 12 - ls_rank()), VOCAB, 0);
        CHECK_OK(ls_place(x, "tp", LS_SHARDED(1)));
        ls_tensor *targets = ls_zeros(LS_SHAPE(ROWS), LS_INT64);
        ls_tensor *y = ls_sharded_cross_entropy(x, targets, "tp", NULL);
        CHECK_STATUS(ls_tensor_status(y), LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), "sharded_cross_entropy of 12 classes a rank");
        CHECK_CONTAINS(ls_error_message(), "sharded_cross_entropy of 11 classes a rank");
    }
    (void)ls_mesh_free(mesh);
}

DIST_TEST(a_batch_of_nothing_has_no_loss, 2)
{
    begin("tp=2");
    LS_SCOPE;
    {
        double loss;
        ls_tensor *x = leaf(ls_zeros(LS_SHAPE(0, VOCAB / 2), LS_FLOAT32), LS_SHARDED(1));
        ls_tensor *targets = ls_zeros(LS_SHAPE(0), LS_INT64);
        ls_tensor *y = ls_sharded_cross_entropy(x, targets, "tp", NULL);
        CHECK_OK(ls_item(y, &loss));
        CHECK(isnan(loss));
        CHECK_OK(ls_backward(y));
    }
    end();
}

TEST_MAIN
