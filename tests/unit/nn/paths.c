/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers by path: what a model draws depends on its names, and not on what else was made or
 * run. An independent twin computes the streams from the names by random.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include <lockstep/nn.h>
#include <lockstep/ops.h>
#include <lockstep/random.h>

enum { DIM = 24, LAYERS = 6, BATCH = 4, SEED = 9 };

/* ---- a small transformer without attention, of which any layers can be built ----------------- */

typedef struct block {
    ls_module base;
    ls_module *norm, *up, *down, *drop;
    bool recompute;
} block;

static ls_tensor *block_body(ls_tensor *x, void *arg)
{
    block *self = arg;
    ls_tensor *h = ls_forward(self->drop, ls_forward(self->up, ls_forward(self->norm, x)));
    return ls_add(x, ls_forward(self->drop, ls_forward(self->down, h)));
}

static ls_tensor *block_forward(ls_module *m, ls_tensor *x)
{
    block *self = (block *)m;
    return self->recompute ? ls_recompute_call(block_body, x, self) : block_body(x, self);
}

static const ls_module_class block_class =
    LS_MODULE_CLASS(.name = "block", .forward = block_forward);

static ls_module *block_new(bool recompute)
{
    block *self = ls_module_new(sizeof *self, &block_class);
    self->recompute = recompute;
    self->norm = ls_module_add(&self->base, "norm", ls_layer_norm_new(DIM, NULL));
    self->up = ls_module_add(&self->base, "up", ls_linear_new(DIM, 2 * DIM, NULL));
    self->down = ls_module_add(&self->base, "down", ls_linear_new(2 * DIM, DIM, NULL));
    self->drop = ls_module_add(&self->base, "drop", ls_dropout_new(0.4));
    return &self->base;
}

/* Layers [first, end) of the model; the outer ones also have the embedding and the head. */
static ls_module *model(int first, int end, bool recompute)
{
    ls_module *net = ls_sequential_new(NULL, 0);
    if (first == 0) {
        (void)ls_module_add(net, "tokens", ls_embedding_new(10, DIM));
    }
    ls_module *blocks = ls_sequential_new(NULL, 0);
    for (int i = first; i < end; i++) {
        char name[12];
        (void)snprintf(name, sizeof name, "%d", i);
        (void)ls_module_add(blocks, name, block_new(recompute));
    }
    (void)ls_module_add(net, "blocks", blocks); /* the last: no block knows its path before */
    if (end == LAYERS) {
        (void)ls_module_add(net, "head", ls_linear_new(DIM, 10, NULL));
    }
    CHECK_OK(ls_module_status(net));
    return net;
}

static void check_equal(ls_tensor *a, ls_tensor *b)
{
    CHECK(ls_numel(a) == ls_numel(b) && ls_numel(a) > 0);
    CHECK(memcmp(ls_data(a), ls_data(b), (size_t)ls_numel(a) * sizeof(float)) == 0);
}

static bool same(ls_tensor *a, ls_tensor *b)
{
    return memcmp(ls_data(a), ls_data(b), (size_t)ls_numel(a) * sizeof(float)) == 0;
}

static void begin(void)
{
    CHECK_OK(ls_init(LS_OPTIONS(ls_init_options, .seed = SEED)));
}

/* ---- weights -------------------------------------------------------------------------------- */

static uint64_t stream_of(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    }
    return hash & ~(UINT64_C(3) << 62);
}

TEST(a_parameter_begins_with_the_stream_of_its_name)
{
    begin();
    ls_module *net = model(0, LAYERS, false);
    const float *up = ls_data(ls_module_param(net, "blocks.4.up.weight"));
    const float *tokens = ls_data(ls_module_param(net, "tokens.weight"));
    const double bound = 1.0 / sqrt((double)DIM);
    for (uint64_t i = 0; i < 200; i++) {
        double u = (double)ls_random_uniform(SEED, stream_of("blocks.4.up.weight"), i);
        CHECK(up[i] == (float)(-bound + 2.0 * bound * u));
        CHECK(tokens[i] == ls_random_normal(SEED, stream_of("tokens.weight"), i));
    }
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST(layers_that_are_built_alone_are_those_of_the_whole_model)
{
    begin();
    ls_module *whole = model(0, LAYERS, false), *part = model(3, LAYERS, false);
    ls_param params[32];
    const int count = ls_module_params(part, params, 32);
    CHECK(count == 3 * 6 + 2);
    for (int i = 0; i < count; i++) {
        check_equal(params[i].value, ls_module_param(whole, params[i].name));
    }
    CHECK(!same(ls_module_param(whole, "blocks.3.up.weight"),
                ls_module_param(whole, "blocks.4.up.weight")));
    CHECK(!same(ls_module_param(whole, "blocks.3.up.bias"),
                ls_module_param(whole, "blocks.4.up.bias")));
    ls_module_free(part);
    ls_module_free(whole);
    CHECK_OK(ls_finalize());
}

/* The order in which the two are made, read and run does not count. */
TEST(two_models_of_one_seed_begin_equally_and_of_two_seeds_do_not)
{
    begin();
    ls_module *a = model(0, 2, false), *b = model(0, 2, false);
    CHECK_OK(ls_manual_seed(SEED + 1));
    ls_module *c = model(0, 2, false);
    CHECK_OK(ls_manual_seed(SEED));
    const uint64_t hash = ls_module_hash(b);
    CHECK(ls_module_hash(a) == hash && ls_module_hash(c) != hash);
    ls_module_free(a);
    ls_module_free(b);
    ls_module_free(c);
    CHECK_OK(ls_finalize());
}

/* What a program reads stays, also when the layer gets a longer name later. */
TEST(values_that_were_read_or_written_stay)
{
    begin();
    ls_module *net = ls_sequential_new(NULL, 0), *up = ls_linear_new(DIM, DIM, NULL);
    float *weight = ls_data(ls_module_param(up, "weight"));
    const float first = weight[0];
    CHECK(weight[0] != 0.0f);
    weight[1] = 5.0f;
    (void)ls_module_add(net, "up", up);
    ls_tensor *again = ls_module_param(net, "up.weight");
    CHECK(((float *)ls_data(again))[0] == first && ((float *)ls_data(again))[1] == 5.0f);
    float values[DIM];
    for (int i = 0; i < DIM; i++) {
        values[i] = (float)i;
    }
    CHECK_OK(ls_copy_in(ls_module_param(net, "up.bias"), values, sizeof values));
    CHECK(memcmp(ls_data(ls_module_param(net, "up.bias")), values, sizeof values) == 0);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* A parameter in two places has the name under which it was added first. */
TEST(a_shared_parameter_is_drawn_under_its_first_name)
{
    begin();
    ls_module *net = ls_sequential_new(NULL, 0), *alone = ls_sequential_new(NULL, 0);
    ls_module *tokens = ls_embedding_new(10, DIM), *head = ls_sequential_new(NULL, 0);
    ls_tensor *weight = ls_module_param(tokens, "weight");
    (void)ls_module_add_param(head, "weight", weight);
    (void)ls_module_add(net, "head", head);
    (void)ls_module_add(net, "tokens", tokens);
    (void)ls_module_add(alone, "tokens", ls_embedding_new(10, DIM));
    check_equal(weight, ls_module_param(alone, "tokens.weight"));
    CHECK_INT(ls_module_param_count(net), 1);
    ls_module_free(net);
    ls_module_free(alone);
    CHECK_OK(ls_finalize());
}

/* A program's own tensors: each fill draws other numbers. */
TEST(tensors_that_are_no_parameters_take_a_stream_each)
{
    begin();
    ls_tensor *a = ls_zeros(LS_SHAPE(DIM), LS_FLOAT32), *b = ls_zeros(LS_SHAPE(DIM), LS_FLOAT32);
    CHECK_OK(ls_fill_normal(a, 0.0, 1.0));
    CHECK_OK(ls_fill_normal(b, 0.0, 1.0));
    CHECK(!same(a, b));
    CHECK_OK(ls_manual_seed(SEED));
    ls_tensor *c = ls_zeros(LS_SHAPE(DIM), LS_FLOAT32);
    CHECK_OK(ls_fill_normal(c, 0.0, 1.0));
    check_equal(a, c);
    ls_tensor *rows = ls_zeros(LS_SHAPE(3, DIM), LS_FLOAT32);
    CHECK_OK(ls_fill_normal(ls_slice(rows, 0, 1, 2), 0.0, 1.0));
    const float *x = ls_data(rows);
    CHECK(x[0] == 0.0f && x[DIM] != 0.0f && x[2 * DIM] == 0.0f);
    CHECK_OK(ls_finalize());
}

/* ---- parts of a tensor ----------------------------------------------------------------------- */

enum { ROWS = 12, COLUMNS = 20 };

static ls_tensor *weight_of(ls_module **net, int64_t rows, int64_t columns)
{
    *net = ls_sequential_new(NULL, 0);
    ls_tensor *w =
        ls_module_add_param(*net, "weight", ls_zeros(LS_SHAPE(rows, columns), LS_FLOAT32));
    return w;
}

/* A part of [rows, columns] from (row, column) on against the whole's elements. */
static void check_part(int64_t row, int64_t column, int64_t rows, int64_t columns, int kind)
{
    ls_module *net, *net_of_whole;
    ls_tensor *part = weight_of(&net, rows, columns);
    ls_tensor *whole = weight_of(&net_of_whole, ROWS, COLUMNS);
    CHECK_OK(ls_tensor_set_part(part, LS_SHAPE(ROWS, COLUMNS), LS_SHAPE(row, column)));
    for (int i = 0; i < 2; i++) {
        ls_tensor *t = i == 0 ? part : whole;
        CHECK_OK(kind == 0   ? ls_fill_uniform(t, -1.0, 2.0)
                 : kind == 1 ? ls_fill_normal(t, 1.0, 2.0)
                             : ls_fill_kaiming_normal(t, kind == 2));
    }
    check_equal(part, ls_contiguous(ls_slice(ls_slice(whole, 0, row, row + rows), 1, column,
                                             column + columns)));
    ls_module_free(net);
    ls_module_free(net_of_whole);
}

TEST(a_part_of_a_parameter_begins_with_the_values_of_the_whole_there)
{
    begin();
    for (int kind = 0; kind < 4; kind++) {
        check_part(0, 5, ROWS, 5, kind);
        check_part(3, 0, 3, COLUMNS, kind);
        check_part(7, 13, 5, 7, kind);
        check_part(0, 0, ROWS, COLUMNS, kind);
    }
    CHECK_OK(ls_finalize());
}

TEST(a_part_must_lie_within_the_whole_and_not_be_read_yet)
{
    begin();
    ls_module *net;
    ls_tensor *w = weight_of(&net, 4, 5);
    CHECK_STATUS(ls_tensor_set_part(w, LS_SHAPE(4, 8), LS_SHAPE(0, 4)), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "[4,5] does not lie in one of [4,8] from [0,4] on");
    CHECK_STATUS(ls_tensor_set_part(w, LS_SHAPE(20), LS_SHAPE(0)), LS_ERR_INVALID);
    CHECK_STATUS(ls_tensor_set_part(ls_slice(w, 0, 0, 2), LS_SHAPE(4, 5), LS_SHAPE(0, 0)),
                 LS_ERR_INVALID);
    CHECK_OK(ls_fill_normal(w, 0.0, 1.0));
    CHECK(ls_data(w) != NULL);
    CHECK_STATUS(ls_tensor_set_part(w, LS_SHAPE(8, 5), LS_SHAPE(4, 0)), LS_ERR_STATE);
    CHECK_CONTAINS(ls_error_message(), "drawn and read already");
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Layers 3 to 5 of `net` for samples [first, first + samples) of x. */
static ls_tensor *run(ls_module *net, ls_tensor *x, int64_t first, int64_t samples)
{
    ls_step_begin((ls_step_context){.step = 4, .sample_offset = first});
    ls_tensor *h = ls_slice(x, 0, first, first + samples);
    for (int i = 3; i < LAYERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "blocks.%d", i);
        h = ls_forward(ls_module_child(net, name), h);
    }
    return ls_contiguous(h);
}

/* Also with only some of the samples, and when each block is run twice in backward. */
TEST(layers_that_are_built_alone_draw_the_masks_of_the_whole_model)
{
    begin();
    ls_module *whole = model(0, LAYERS, false), *part = model(3, LAYERS, false);
    ls_module *again = model(3, LAYERS, true);
    ls_tensor *x = ls_randn(LS_SHAPE(BATCH, 3, DIM));
    ls_tensor *a = run(whole, x, 0, BATCH);
    check_equal(a, run(part, x, 0, BATCH));
    check_equal(ls_contiguous(ls_slice(a, 0, 1, 3)), run(part, x, 1, 2));
    CHECK(!same(a, ls_forward(ls_module_child(part, "blocks"), x))); /* later draws of the step */
    CHECK_OK(ls_backward(ls_sum(a)));
    CHECK_OK(ls_backward(ls_sum(run(again, x, 0, BATCH))));
    ls_param params[32];
    const int count = ls_module_params(again, params, 32);
    for (int i = 0; i < count - 2; i++) { /* the head was not run */
        check_equal(ls_grad(params[i].value), ls_grad(ls_module_param(whole, params[i].name)));
    }
    ls_module_free(part);
    ls_module_free(again);
    ls_module_free(whole);
    CHECK_OK(ls_finalize());
}

/* Places, steps and the draws of one place have masks of their own. */
TEST(no_two_draws_have_one_mask)
{
    begin();
    ls_module *net = ls_sequential_new(NULL, 0);
    ls_module *a = ls_module_add(net, "a", ls_dropout_new(0.5));
    ls_module *b = ls_module_add(net, "b", ls_dropout_new(0.5));
    ls_tensor *x = ls_ones(LS_SHAPE(64), LS_FLOAT32), *y[7];
    ls_step_begin((ls_step_context){.step = 1});
    y[0] = ls_forward(a, x), y[1] = ls_forward(b, x), y[2] = ls_forward(a, x);
    y[3] = ls_dropout(x, 0.5), y[4] = ls_dropout(x, 0.5);
    ls_step_begin((ls_step_context){.step = 2});
    y[5] = ls_forward(a, x), y[6] = ls_dropout(x, 0.5);
    for (int i = 0; i < 7; i++) {
        for (int k = 0; k < i; k++) {
            CHECK(!same(y[i], y[k]));
        }
    }
    ls_step_begin((ls_step_context){.step = 1});
    check_equal(ls_forward(b, x), y[1]);
    check_equal(ls_forward(a, x), y[0]);
    check_equal(ls_dropout(x, 0.5), y[3]);
    ls_module_free(net);
    CHECK_OK(ls_finalize());
}

TEST_MAIN
