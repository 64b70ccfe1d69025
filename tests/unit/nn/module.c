/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: names, sharing, freeing, layers, initial values, clipping, hashing. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/lockstep.h>

#include "tensor/tensor.h"

typedef struct pair {
    ls_module base;
    ls_module *first, *second;
    int *freed;
} pair;

static ls_tensor *pair_forward(ls_module *m, ls_tensor *x)
{
    pair *self = (pair *)m;
    return ls_forward(self->second, ls_relu(ls_forward(self->first, x)));
}

static void pair_free(ls_module *m)
{
    if (((pair *)m)->freed) {
        ++*((pair *)m)->freed;
    }
}

static const ls_module_class pair_class =
    LS_MODULE_CLASS(.name = "pair", .forward = pair_forward, .free = pair_free);

static pair *pair_new(ls_module *first, ls_module *second)
{
    pair *p = ls_module_new(sizeof *p, &pair_class);
    p->first = ls_module_add(&p->base, "first", first);
    p->second = ls_module_add(&p->base, "second", second);
    return p;
}

static void start(void)
{
    CHECK(ls_init(NULL) == LS_OK);
}

static void end(void)
{
    CHECK(ls_finalize() == LS_OK);
}

TEST(parameters_have_dotted_names_in_order_of_addition)
{
    start();
    pair *inner = pair_new(ls_linear_new(3, 4, NULL),
                           ls_linear_new(4, 5, LS_OPTIONS(ls_linear_options, .bias = false)));
    pair *outer = pair_new(&inner->base, ls_layer_norm_new(5, NULL));
    CHECK(ls_module_status(&outer->base) == LS_OK);
    static const char *const names[] = {"first.first.weight", "first.first.bias",
                                        "first.second.weight", "second.weight", "second.bias"};
    ls_param params[8];
    CHECK_INT(ls_module_param_count(&outer->base), 5);
    CHECK_INT(ls_module_params(&outer->base, params, 2), 5); /* room for two only */
    CHECK_INT(ls_module_params(&outer->base, params, 8), 5);
    for (int i = 0; i < 5; i++) {
        CHECK(strcmp(params[i].name, names[i]) == 0);
        CHECK(ls_requires_grad(params[i].value));
    }
    CHECK_INT(ls_module_numel(&outer->base), 12 + 4 + 20 + 5 + 5);
    ls_module_free(&outer->base);
    end();
}

TEST(a_shared_parameter_counts_once_and_is_freed_once)
{
    start();
    int64_t alive = ls__tensor_alive();
    int freed = 0;
    ls_module *tied = ls_linear_new(3, 3, LS_OPTIONS(ls_linear_options, .bias = false));
    ls_param weight;
    CHECK_INT(ls_module_params(tied, &weight, 1), 1);
    pair *p = pair_new(tied, ls_relu_new());
    p->freed = &freed;
    CHECK(ls_module_add_param(&p->base, "same", weight.value) == weight.value);
    ls_param again[2];
    CHECK_INT(ls_module_params(&p->base, again, 2), 1);
    CHECK(strcmp(again[0].name, "first.weight") == 0);
    ls_module_free(&p->base);
    CHECK_INT(freed, 1);
    CHECK_INT(ls__tensor_alive(), alive);
    end();
}

TEST(names_stay_valid_when_the_tree_grows)
{
    start();
    pair *p = pair_new(ls_linear_new(2, 2, NULL), ls_relu_new());
    ls_param before[2];
    (void)ls_module_params(&p->base, before, 2);
    (void)ls_module_add(&p->base, "third", ls_linear_new(2, 2, NULL));
    CHECK_INT(ls_module_param_count(&p->base), 4);
    CHECK(strcmp(before[1].name, "first.bias") == 0);
    ls_module_free(&p->base);
    end();
}

/* A third each of parameters, buffers and children, each known under its name. */
TEST(a_module_of_100000_parts_is_built_and_searched_in_seconds)
{
    enum { PARTS = 33334 };
    start();
    const double begin = ls_time();
    pair *p = pair_new(ls_relu_new(), ls_relu_new());
    ls_tensor **added = calloc(2 * PARTS, sizeof *added);
    ls_param *params = calloc(PARTS, sizeof *params);
    char name[32];
    CHECK(added != NULL && params != NULL);
    for (int i = 0; i < PARTS; i++) {
        (void)snprintf(name, sizeof name, "part%d", 3 * i);
        added[2 * i] = ls_module_add_param(&p->base, name, ls_empty(LS_SHAPE(1), LS_FLOAT32));
        (void)snprintf(name, sizeof name, "part%d", 3 * i + 1);
        added[2 * i + 1] = ls_module_add_buffer(&p->base, name, ls_empty(LS_SHAPE(1), LS_INT64));
        (void)snprintf(name, sizeof name, "part%d", 3 * i + 2);
        (void)ls_module_add(&p->base, name, ls_identity_new());
    }
    CHECK_OK(ls_module_status(&p->base));
    CHECK_INT(ls_module_params(&p->base, params, PARTS), PARTS);
    CHECK_INT(ls_module_child_count(&p->base), PARTS + 2);
    for (int i = 0; i < PARTS; i++) {
        CHECK(params[i].value == added[2 * i]);
        CHECK(ls_module_param(&p->base, params[i].name) == added[2 * i]);
        (void)snprintf(name, sizeof name, "part%d", 3 * i + 1);
        CHECK(ls_module_buffer(&p->base, name) == added[2 * i + 1]);
    }
    CHECK(ls_module_param(&p->base, "part") == NULL); /* the beginning of a name */
    CHECK_WITHIN(ls_time() - begin, 5);
    ls_module_free(&p->base);
    free(added), free(params);
    end();
}

TEST(a_failed_child_fails_its_parents_with_its_words)
{
    start();
    pair *inner = pair_new(ls_linear_new(3, -4, NULL), ls_relu_new());
    pair *outer = pair_new(&inner->base, ls_relu_new());
    CHECK(ls_module_status(&outer->base) == LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "-4") != NULL);
    {
        LS_SCOPE;
        ls_tensor *y = ls_forward(&outer->base, ls_zeros(LS_SHAPE(1, 3), LS_FLOAT32));
        CHECK(ls_tensor_status(y) == LS_ERR_INVALID);
    }
    ls_module_free(&outer->base);

    ls_module *children[] = {ls_relu_new(), ls_dropout_new(2.0)};
    ls_module *s = ls_sequential_new(children, 2);
    CHECK(ls_module_status(s) == LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "2") != NULL);
    ls_module_free(s);
    end();
}

TEST(wrong_structure_is_refused_in_words)
{
    start();
    pair *p = pair_new(ls_relu_new(), ls_relu_new());
    (void)ls_module_add(&p->base, "first", ls_relu_new());
    CHECK(ls_module_status(&p->base) == LS_ERR_INVALID);
    CHECK(strstr(ls_error_message(), "\"first\" already") != NULL);
    ls_module_free(&p->base);

    p = pair_new(ls_relu_new(), ls_relu_new());
    CHECK(ls_module_add(p->first, "loop", &p->base) == NULL); /* p would contain itself */
    CHECK(strstr(ls_error_message(), "contain itself") != NULL);
    ls_module_free(&p->base);

    p = pair_new(ls_relu_new(), ls_relu_new());
    (void)ls_module_add(&p->base, "a.b", ls_relu_new());
    CHECK(ls_module_status(&p->base) == LS_ERR_INVALID);
    ls_module_free(&p->base);

    ls_module *deep = ls_relu_new();
    bool refused = false;
    for (int i = 0; i < 100 && !refused; i++) {
        ls_module *children[] = {deep};
        deep = ls_sequential_new(children, 1);
        refused = ls_module_status(deep) == LS_ERR_LIMIT;
    }
    CHECK(refused);
    ls_module_free(deep);
    end();
}

TEST(linear_computes_what_a_loop_does_and_its_first_values_are_in_range)
{
    start();
    ls_module *m = ls_linear_new(17, 9, NULL);
    ls_param p[2];
    CHECK_INT(ls_module_params(m, p, 2), 2);
    float w[9 * 17], b[9], x[3 * 17], y[3 * 9];
    CHECK(ls_copy_out(p[0].value, w, sizeof w) == LS_OK);
    CHECK(ls_copy_out(p[1].value, b, sizeof b) == LS_OK);
    float bound = (float)(1.0 / sqrt(17.0)), most = 0.0f;
    for (int i = 0; i < 9 * 17; i++) {
        CHECK(fabsf(w[i]) <= bound);
        most = fmaxf(most, fabsf(w[i]));
    }
    CHECK(most > 0.9f * bound);
    for (int i = 0; i < 3 * 17; i++) {
        x[i] = sinf((float)i);
    }
    {
        LS_SCOPE;
        ls_tensor *out = ls_forward(m, ls_from_data(x, LS_SHAPE(3, 17), LS_FLOAT32));
        CHECK(ls_copy_out(out, y, sizeof y) == LS_OK);
    }
    for (int r = 0; r < 3; r++) {
        for (int o = 0; o < 9; o++) {
            double sum = (double)b[o];
            for (int k = 0; k < 17; k++) {
                sum += (double)w[o * 17 + k] * (double)x[r * 17 + k];
            }
            CHECK(fabs(sum - (double)y[r * 9 + o]) < 1e-5);
        }
    }
    ls_module_free(m);
    end();
}

static uint64_t hash_of_fresh(uint64_t seed)
{
    CHECK(ls_manual_seed(seed) == LS_OK);
    ls_module *children[] = {ls_linear_new(5, 7, NULL), ls_embedding_new(3, 2)};
    ls_module *m = ls_sequential_new(children, 2);
    uint64_t hash = ls_module_hash(m);
    ls_module_free(m);
    return hash;
}

TEST(the_seed_decides_the_first_values)
{
    start();
    uint64_t hash = hash_of_fresh(1);
    CHECK(hash_of_fresh(1) == hash);
    CHECK(hash_of_fresh(2) != hash);
    end();
}

TEST(every_parameter_starts_with_numbers_of_its_own)
{
    start();
    ls_module *children[] = {ls_linear_new(16, 16, NULL), ls_linear_new(16, 16, NULL)};
    ls_module *m = ls_sequential_new(children, 2);
    ls_param p[4];
    CHECK_INT(ls_module_params(m, p, 4), 4);
    const float *a = ls_data(p[0].value), *b = ls_data(p[2].value), *bias = ls_data(p[1].value);
    for (int i = 0; i < 16; i++) {
        CHECK(a[i] != b[i] && a[i] != bias[i] && a[i] != a[16 + i]);
    }
    ls_module_free(m);
    end();
}

TEST(initial_distributions_have_their_moments)
{
    start();
    ls_module *m = ls_embedding_new(100, 50);
    ls_param p;
    (void)ls_module_params(m, &p, 1);
    const float *x = ls_data(p.value);
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < 5000; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    CHECK(fabs(sum / 5000) < 5.0 / sqrt(5000.0));
    CHECK(fabs(squares / 5000 - 1.0) < 5.0 * sqrt(2.0 / 5000));
    ls_module_free(m);
    m = ls_layer_norm_new(3, NULL);
    ls_param n[2];
    (void)ls_module_params(m, n, 2);
    for (int i = 0; i < 3; i++) {
        CHECK(((float *)ls_data(n[0].value))[i] == 1.0f);
        CHECK(((float *)ls_data(n[1].value))[i] == 0.0f);
    }
    ls_module_free(m);
    end();
}

TEST(a_hash_sees_every_bit_and_every_name)
{
    start();
    ls_module *m = ls_linear_new(5, 3, NULL);
    uint64_t hash = ls_module_hash(m);
    ls_param p[2];
    (void)ls_module_params(m, p, 2);
    for (int t = 0; t < 2; t++) {
        uint8_t *bytes = ls_data(p[t].value);
        for (int64_t bit = 0; bit < ls_numel(p[t].value) * 32; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << (bit % 8));
            CHECK(ls_module_hash(m) != hash);
            bytes[bit / 8] ^= (uint8_t)(1 << (bit % 8));
        }
    }
    CHECK(ls_module_hash(m) == hash);
    ls_module *wrapped = ls_sequential_new(&m, 1);
    CHECK(ls_module_hash(wrapped) != hash);
    ls_module_free(wrapped);
    end();
}

TEST(dropout_is_the_identity_in_evaluation)
{
    start();
    ls_module *m = ls_dropout_new(0.5);
    ls_module *s = ls_sequential_new(&m, 1);
    {
        LS_SCOPE;
        ls_tensor *x = ls_ones(LS_SHAPE(1000), LS_FLOAT32);
        double sum;
        ls_module_train(s, false);
        CHECK(ls_item(ls_sum(ls_forward(s, x)), &sum) == LS_OK && sum == 1000.0);
        ls_module_train(s, true);
        ls_tensor *y = ls_forward(s, x);
        CHECK(ls_item(ls_sum(y), &sum) == LS_OK && fabs(sum - 1000.0) < 5.0 * sqrt(1000.0));
        float values[1000];
        CHECK(ls_copy_out(y, values, sizeof values) == LS_OK);
        for (int i = 0; i < 1000; i++) {
            CHECK(values[i] == 0.0f || values[i] == 2.0f);
        }
    }
    ls_module_free(s);
    end();
}

/* Gradients 3 and 4 (times ones): norm sqrt(9 n + 16 m). */
static void give_gradients(ls_module *m, double first, double second)
{
    ls_param p[2];
    CHECK_INT(ls_module_params(m, p, 2), 2);
    LS_SCOPE;
    ls_tensor *loss =
        ls_add(ls_scale(ls_sum(p[0].value), first), ls_scale(ls_sum(p[1].value), second));
    CHECK(ls_backward(loss) == LS_OK);
}

static double grad_at(ls_module *m, int param, int64_t i)
{
    ls_param p[2];
    (void)ls_module_params(m, p, 2);
    return (double)((float *)ls_data(ls_grad(p[param].value)))[i];
}

TEST(clipping_scales_to_the_norm_and_leaves_smaller_ones_alone)
{
    start();
    ls_module *m = ls_linear_new(2, 3, NULL); /* 6 and 3 elements */
    give_gradients(m, 3.0, 4.0);
    double norm, expected = sqrt(9.0 * 6 + 16.0 * 3);
    CHECK(ls_clip_grad_norm(m, 1000.0, NULL, &norm) == LS_OK);
    CHECK(fabs(norm - expected) < 1e-6 && grad_at(m, 0, 5) == 3.0);
    CHECK(ls_clip_grad_norm(m, 0.5, NULL, &norm) == LS_OK);
    CHECK(fabs(norm - expected) < 1e-6);
    CHECK(fabs(grad_at(m, 0, 5) - 3.0 * 0.5 / expected) < 1e-6);
    CHECK(fabs(grad_at(m, 1, 2) - 4.0 * 0.5 / expected) < 1e-6);
    CHECK(ls_clip_grad_norm(m, -1.0, NULL, NULL) == LS_ERR_INVALID);
    give_gradients(m, INFINITY, 0.0);
    double before = grad_at(m, 1, 0);
    CHECK(ls_clip_grad_norm(m, 0.1, NULL, NULL) == LS_ERR_INVALID);
    CHECK(grad_at(m, 1, 0) == before);
    ls_module_free(m);
    end();
}

/* Its calls note lines of their own, as those of a module in another file do. */
static ls_tensor *elsewhere_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    ls_site_set("elsewhere.c", 5000);
    return ls_relu(x);
}

static const ls_module_class elsewhere_class =
    LS_MODULE_CLASS(.name = "elsewhere", .forward = elsewhere_forward);

TEST(what_stands_around_a_forward_is_blamed_on_its_own_line)
{
    start();
    ls_module *m = ls_module_new(sizeof *m, &elsewhere_class);
    {
        LS_SCOPE;
        ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32);
        ls_tensor *wrong = ls_zeros(LS_SHAPE(4, 5), LS_FLOAT32);
        ls_site_set("here.c", 10); /* what the macros do for ls_add(ls_forward(m, x), wrong) */
        CHECK(ls_tensor_status(ls_add(ls_forward(m, x), wrong)) < 0);
        CHECK_CONTAINS(ls_error_message(), "here.c:10");
    }
    ls_module_free(m);
    end();
}

TEST(tensors_that_cannot_be_parameters_or_buffers_fail_the_module)
{
    start();
    ls_tensor *t = ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32);
    pair *p = pair_new(ls_relu_new(), ls_relu_new());
    (void)ls_module_add_param(&p->base, "counts", ls_zeros(LS_SHAPE(2), LS_INT64));
    CHECK(ls_module_status(&p->base) == LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "module pair: parameter \"counts\": ");
    CHECK_CONTAINS(ls_error_message(), "int64");
    CHECK_INT(ls_module_param_count(&p->base), 0);
    ls_module_free(&p->base);

    p = pair_new(ls_relu_new(), ls_relu_new());
    (void)ls_module_add_buffer(&p->base, "mask", ls_transpose(t, 0, 1));
    CHECK(ls_module_status(&p->base) == LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "buffer \"mask\"");
    CHECK_CONTAINS(ls_error_message(), "ls_contiguous");
    (void)ls_module_hash(&p->base); /* must not read what is not there */
    ls_module_free(&p->base);
    end();
}

TEST(what_a_failed_constructor_returned_is_answered_in_words)
{
    start();
    double norm;
    ls_module *none = ls_linear_new(0, 3, NULL);
    CHECK(none == NULL);
    CHECK_INT(ls_module_param_count(none), 0);
    CHECK_INT(ls_module_numel(none), 0);
    CHECK(ls_module_hash(none) == 0);
    ls_module_train(none, false);
    CHECK(ls_clip_grad_norm(none, 1.0, NULL, &norm) == LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "Linear: in is 0");
    CHECK(ls_module_state(none, "", NULL) == LS_ERR_INVALID);
    ls_optim *optim = ls_sgd_new(none, NULL);
    CHECK(optim == NULL);
    ls_site_set("here.c", 7);
    CHECK(ls_tensor_status(ls_forward(none, ls_ones(LS_SHAPE(2, 3), LS_FLOAT32))) < 0);
    CHECK_CONTAINS(ls_error_message(), "here.c:7: forward: the module is NULL");
    CHECK(ls_optim_step(optim) == LS_ERR_INVALID);
    ls_optim_zero_grad(optim);
    ls_optim_set_lr(optim, 0.1);
    CHECK(ls_optim_lr(optim) == 0.0);
    CHECK(ls_optim_state(optim, "", NULL) == LS_ERR_INVALID);
    ls_batch batch = {.size = sizeof batch};
    CHECK(!ls_loader_next(NULL, &batch));
    CHECK(ls_loader_status(NULL) == LS_ERR_INVALID);
    CHECK(ls_loader_seek(NULL, 0, 0) == LS_ERR_INVALID);
    CHECK_INT(ls_sampler_steps(NULL), 0);
    CHECK_INT(ls_text_files(NULL), 0);
    end();
}

/* Counts the tensors that the state has, and whether one is the table. */
static ls_status count_tensor(void *self, const char *name, const ls_state_tensor *tensor)
{
    (void)tensor;
    int *count = self;
    count[0]++;
    count[1] += strcmp(name, "first.table") == 0;
    return LS_OK;
}

static void check_state(ls_module *m, int tensors, int tables)
{
    int count[2] = {0};
    CHECK_OK(ls_module_state(m, "",
                             &(ls_state_visitor){.size = sizeof(ls_state_visitor),
                                                 .self = count,
                                                 .tensor = count_tensor}));
    CHECK(count[0] == tensors && count[1] == tables);
}

TEST(a_buffer_that_is_not_persistent_is_not_in_the_state_but_in_the_hash)
{
    start();
    ls_module *layer = ls_linear_new(2, 3, NULL);
    pair *p = pair_new(layer, ls_linear_new(3, 1, NULL));
    ls_tensor *table = ls_module_add_buffer(layer, "table", ls_ones(LS_SHAPE(4), LS_FLOAT32));
    ls_module *outer = ls_sequential_new((ls_module *[]){&p->base}, 1);
    const uint64_t hash = ls_module_hash(&p->base);
    check_state(&p->base, 5, 1);
    CHECK_OK(ls_module_set_persistent(outer, "0.first.table", false));
    check_state(&p->base, 4, 0);
    check_state(outer, 4, 0);
    CHECK(ls_module_hash(&p->base) == hash && ls_module_buffer(layer, "table") == table);
    ((float *)ls_data(table))[1] = 2.0f;
    CHECK(ls_module_hash(&p->base) != hash);
    CHECK_OK(ls_module_set_persistent(layer, "table", true));
    check_state(&p->base, 5, 1);
    CHECK_STATUS(ls_module_set_persistent(outer, "0.first.weight", false), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "the part of that name is a parameter");
    ls_module_free(outer);
    end();
}

/* Another context length, another table: the weights are the same. */
TEST(a_file_of_weights_fits_a_model_whose_table_is_of_another_length)
{
    start();
    char path[] = "/tmp/lockstep-persistent-XXXXXX";
    const int fd = mkstemp(path);
    CHECK(fd >= 0 && close(fd) == 0);
    for (int length = 4; length < 6; length++) {
        ls_module *m = ls_linear_new(2, 3, NULL);
        (void)ls_module_add_buffer(m, "table", ls_zeros(LS_SHAPE(length), LS_FLOAT32));
        CHECK_OK(ls_module_set_persistent(m, "table", false));
        CHECK_OK(length == 4 ? ls_module_save_safetensors(m, path, NULL)
                             : ls_module_load_safetensors(m, path, NULL));
        ls_module_free(m);
    }
    CHECK(unlink(path) == 0);
    end();
}

TEST(a_step_after_the_module_was_freed_or_with_no_rate_is_refused)
{
    start();
    ls_module *m = ls_linear_new(2, 3, NULL);
    ls_optim *optim = ls_sgd_new(m, NULL);
    ls_optim_set_lr(optim, NAN);
    CHECK(ls_optim_step(optim) == LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "lr is nan");
    ls_optim_set_lr(optim, 0.1);
    ls_module_free(m);
    CHECK(ls_optim_step(optim) == LS_ERR_STALE);
    ls_optim_free(optim);
    end();
}

TEST_MAIN
