/* SPDX-License-Identifier: Apache-2.0 */
/* Views alias, copies do not; broadcasting against plain loops; casts, random streams, printing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/ops.h>
#include <lockstep/random.h>

#include "local.h"

#define LENGTH(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* 0, 1, 2, … */
static ls_tensor *counting(ls_shape shape)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *x = ls_data(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        x[i] = (float)i;
    }
    return t;
}

static void check_values(ls_tensor *t, const float *want, int64_t count)
{
    float got[256];
    CHECK_INT(ls_numel(t), count);
    CHECK_OK(ls_copy_out(t, got, (size_t)count * sizeof(float)));
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(got[i], want[i], 0);
    }
}

/* ---- views -------------------------------------------------------------------------------- */

LOCAL_TEST(views_show_the_right_elements)
{
    ls_tensor *t = counting(LS_SHAPE(2, 3, 4));
    const float transposed[] = {0, 12, 4, 16, 8, 20};
    check_values(ls_slice(ls_transpose(t, 0, 1), 2, 0, 1), transposed, LENGTH(transposed));
    const float permuted[] = {1, 13, 2, 14, 5, 17, 6, 18};
    ls_tensor *p = ls_permute(ls_slice(ls_slice(t, 2, 1, 3), 1, 0, 2), LS_SHAPE(1, 2, 0));
    check_values(p, permuted, LENGTH(permuted));
    const float row[] = {20, 21, 22, 23};
    check_values(ls_reshape(ls_slice(ls_slice(t, 0, 1, 2), 1, -0 + 2, 3), LS_SHAPE(4)), row, 4);
    check_values(ls_slice(t, 1, 2, 2), NULL, 0);
}

LOCAL_TEST(views_share_memory_and_copies_do_not)
{
    ls_tensor *t = counting(LS_SHAPE(3, 4));
    ls_tensor *view = ls_slice(ls_transpose(t, 0, 1), 0, 1, 2); /* column 1 */
    ls_tensor *copy = ls_clone(view), *other = ls_contiguous(view);
    const float fresh[] = {-1, -2, -3}, old[] = {1, 5, 9};
    CHECK_OK(ls_copy_in(view, fresh, sizeof fresh));
    CHECK_NEAR(((float *)ls_data(t))[1], -1, 0);
    CHECK_NEAR(((float *)ls_data(t))[9], -3, 0);
    check_values(copy, old, 3);
    check_values(other, old, 3);
    CHECK(ls_contiguous(t) == t);
    CHECK(ls_data(ls_reshape(t, LS_SHAPE(2, -1))) == ls_data(t));
    CHECK(ls_data(ls_detach(t)) == ls_data(t));
    CHECK(ls_data(ls_clone(t)) != ls_data(t));
}

/* Every reshape of a view equals the reshape of its copy, whether or not it had to copy. */
LOCAL_TEST(reshape_of_any_view_keeps_row_major_order)
{
    const ls_shape shapes[] = {LS_SHAPE(24),   LS_SHAPE(1, 24, 1),   LS_SHAPE(2, 12),
                               LS_SHAPE(4, 6), LS_SHAPE(2, 3, 4),    LS_SHAPE(3, 1, 2, 4),
                               LS_SHAPE(8, 3), LS_SHAPE(2, 2, 2, 3), LS_SHAPE(6, 2, 2)};
    ls_tensor *base = counting(LS_SHAPE(2, 3, 4));
    ls_tensor *wide = counting(LS_SHAPE(2, 3, 8));
    ls_tensor *views[] = {base,
                          ls_transpose(base, 0, 1),
                          ls_transpose(base, 1, 2),
                          ls_permute(base, LS_SHAPE(2, 1, 0)),
                          ls_slice(wide, 2, 2, 6),
                          ls_reshape(ls_slice(wide, 2, 4, 8), LS_SHAPE(2, 1, 3, 4))};
    int viewed = 0;
    for (int64_t v = 0; v < LENGTH(views); v++) {
        float want[24];
        CHECK_OK(ls_copy_out(views[v], want, sizeof want));
        for (int64_t s = 0; s < LENGTH(shapes); s++) {
            ls_tensor *r = ls_reshape(views[v], shapes[s]);
            CHECK_OK(ls_tensor_status(r));
            check_values(r, want, 24);
            ls__tensors *tensors = ls__tensors_get("test");
            viewed += ls__record_of(tensors, r, "", 0)->storage ==
                      ls__record_of(tensors, views[v], "", 0)->storage;
        }
    }
    CHECK(viewed > LENGTH(shapes)); /* more than those of `base` needed no copy */
    CHECK(viewed < LENGTH(views) * LENGTH(shapes));
}

LOCAL_TEST(fused_heads_split_without_a_copy)
{
    ls_tensor *x = counting(LS_SHAPE(2, 5, 3 * 2 * 4));
    ls_tensor *all = ls_reshape(x, LS_SHAPE(2, 5, 3, 2, 4));
    ls_tensor *k = ls_reshape(ls_slice(all, 2, 1, 2), LS_SHAPE(2, 5, 2, 4));
    k = ls_transpose(k, 1, 2);
    ls__tensors *tensors = ls__tensors_get("test");
    CHECK(ls__record_of(tensors, k, "", 0)->storage == ls__record_of(tensors, x, "", 0)->storage);
    ls_tensor *o = ls_attention(k, k, k, LS_OPTIONS(ls_attention_options, .causal = true));
    ls_tensor *merged = ls_reshape(ls_transpose(o, 1, 2), LS_SHAPE(2, 5, 8));
    CHECK(ls__record_of(tensors, o, "", 0)->storage ==
          ls__record_of(tensors, merged, "", 0)->storage);
}

/* ---- broadcasting ------------------------------------------------------------------------- */

static int64_t element_of(ls_shape shape, ls_shape out, int64_t flat)
{
    int64_t index = 0, stride = 1;
    for (int d = 1; d <= out.ndim; d++) {
        int64_t at = flat % out.dim[out.ndim - d];
        flat /= out.dim[out.ndim - d];
        if (d <= shape.ndim) {
            index += (shape.dim[shape.ndim - d] == 1 ? 0 : at) * stride;
            stride *= shape.dim[shape.ndim - d];
        }
    }
    return index;
}

static void check_broadcast(ls_shape a, ls_shape b, ls_shape out)
{
    ls_tensor *x = counting(a), *y = ls_add_scalar(counting(b), 1);
    ls_tensor *results[] = {ls_add(x, y), ls_sub(x, y), ls_mul(x, y), ls_div(x, y)};
    for (int op = 0; op < 4; op++) {
        ls_shape got = ls_shape_of(results[op]);
        CHECK_INT(got.ndim, out.ndim);
        CHECK(memcmp(got.dim, out.dim, (size_t)out.ndim * sizeof(int64_t)) == 0);
        const float *z = ls_data(results[op]);
        for (int64_t i = 0; i < ls_numel(results[op]); i++) {
            double u = (double)element_of(a, out, i), v = (double)element_of(b, out, i) + 1;
            double want = op == 0 ? u + v : op == 1 ? u - v : op == 2 ? u * v : u / v;
            CHECK_NEAR(z[i], want, 1e-5 * fabs(want));
        }
    }
}

LOCAL_TEST(broadcasting_follows_the_rule)
{
    check_broadcast(LS_SHAPE(3, 4), LS_SHAPE(4), LS_SHAPE(3, 4));
    check_broadcast(LS_SHAPE(4), LS_SHAPE(3, 1), LS_SHAPE(3, 4));
    check_broadcast(LS_SHAPE(2, 1, 5), LS_SHAPE(3, 1), LS_SHAPE(2, 3, 5));
    check_broadcast(LS_SHAPE(1, 1, 1), LS_SHAPE(2, 3), LS_SHAPE(1, 2, 3));
    check_broadcast(LS_SCALAR, LS_SHAPE(17), LS_SHAPE(17));
    check_broadcast(LS_SCALAR, LS_SCALAR, LS_SCALAR);
    check_broadcast(LS_SHAPE(0, 3), LS_SHAPE(1, 3), LS_SHAPE(0, 3));
    check_broadcast(LS_SHAPE(2, 1, 2, 1, 2, 1, 2, 1), LS_SHAPE(1, 2, 1, 2, 1, 2, 1, 2),
                    LS_SHAPE(2, 2, 2, 2, 2, 2, 2, 2));
    check_broadcast(LS_SHAPE(1023), LS_SHAPE(1), LS_SHAPE(1023));
}

LOCAL_TEST(empty_tensors_work_everywhere)
{
    ls_tensor *none = ls_empty(LS_SHAPE(0, 3), LS_FLOAT32), *w = counting(LS_SHAPE(2, 3));
    double value = 1;
    CHECK_INT(ls_numel(ls_linear(none, w, NULL)), 0);
    CHECK_INT(ls_numel(ls_matmul(none, ls_transpose(w, 0, 1))), 0);
    CHECK_INT(ls_numel(ls_softmax(none, 1)), 0);
    CHECK_INT(ls_numel(ls_layer_norm(none, NULL, NULL, 1e-5)), 0);
    CHECK_INT(ls_numel(ls_gelu(none, LS_GELU_ERF)), 0);
    CHECK_OK(ls_item(ls_sum(none), &value));
    CHECK_NEAR(value, 0, 0);
    const float zeros[] = {0, 0, 0};
    check_values(ls_sum_dim(none, 0, false), zeros, 3);
    ls_tensor *inner =
        ls_matmul(ls_empty(LS_SHAPE(2, 0), LS_FLOAT32), ls_empty(LS_SHAPE(0, 1), LS_FLOAT32));
    check_values(inner, zeros, 2);
}

/* ---- products against plain loops --------------------------------------------------------- */

LOCAL_TEST(matmul_of_any_layout_equals_plain_loops)
{
    enum { B = 3, M = 5, K = 7, N = 4 };
    ls_tensor *a = ls_rand(LS_SHAPE(B, M, K)), *b = ls_rand(LS_SHAPE(B, K, N));
    ls_tensor *wide = ls_rand(LS_SHAPE(B, M, 2 * K));
    ls_tensor *lefts[] = {a,
                          ls_transpose(ls_contiguous(ls_transpose(a, 1, 2)), 1, 2),
                          ls_transpose(ls_contiguous(ls_transpose(a, 0, 1)), 0, 1),
                          ls_slice(wide, 2, 3, 3 + K),
                          ls_slice(a, 0, 1, 2),
                          ls_permute(ls_rand(LS_SHAPE(K, B, M)), LS_SHAPE(1, 2, 0))};
    ls_tensor *rights[] = {b, ls_transpose(ls_rand(LS_SHAPE(B, N, K)), 1, 2),
                           ls_reshape(ls_slice(b, 0, 2, 3), LS_SHAPE(K, N)),
                           ls_transpose(ls_rand(LS_SHAPE(N, K)), 0, 1), ls_slice(b, 0, 0, 1)};
    for (int64_t i = 0; i < LENGTH(lefts) * LENGTH(rights); i++) {
        float x[B * M * K], y[B * K * N];
        ls_tensor *l = lefts[i % LENGTH(lefts)], *r = rights[i / LENGTH(lefts)];
        CHECK_OK(ls_copy_out(l, x, (size_t)ls_numel(l) * sizeof(float)));
        CHECK_OK(ls_copy_out(r, y, (size_t)ls_numel(r) * sizeof(float)));
        ls_tensor *c = ls_matmul(l, r);
        CHECK_OK(ls_tensor_status(c));
        const float *z = ls_data(c);
        int64_t batch = ls_size(c, 0);
        for (int64_t at = 0; at < batch * M * N; at++) {
            int64_t which = at / (M * N), row = at / N % M, col = at % N;
            int64_t from_x = ls_size(l, 0) == 1 ? 0 : which * M * K;
            int64_t from_y = ls_numel(r) == (int64_t)K * N ? 0 : which * K * N;
            double want = 0;
            for (int64_t k = 0; k < K; k++) {
                want += (double)x[from_x + row * K + k] * (double)y[from_y + k * N + col];
            }
            CHECK_NEAR(z[at], want, 1e-5);
        }
    }
}

/* ---- types, streams, text ----------------------------------------------------------------- */

LOCAL_TEST(casts_round_and_saturate)
{
    const float values[] = {0.0f, -1.75f, 3.99f, 300.0f, -300.0f, 1e30f, 65504.0f, 6e-8f, 1e-3f};
    const int8_t int8[] = {0, -1, 3, 127, -128, 127, 127, 0, 0};
    const uint16_t half[] = {0, 0xbf00, 0x43fb, 0x5cb0, 0xdcb0, 0x7c00, 0x7bff, 0x0001, 0x1419};
    const uint16_t bfloat[] = {0, 0xbfe0, 0x407f, 0x4396, 0xc396, 0x714a, 0x4780, 0x3381, 0x3a83};
    ls_tensor *t = ls_from_data(values, LS_SHAPE(9), LS_FLOAT32);
    uint16_t got[9];
    CHECK(memcmp(ls_data(ls_cast(t, LS_INT8)), int8, sizeof int8) == 0);
    CHECK_OK(ls_copy_out(ls_cast(t, LS_FLOAT16), got, sizeof got));
    for (int i = 0; i < 9; i++) {
        CHECK_INT(got[i], half[i]);
    }
    CHECK_OK(ls_copy_out(ls_cast(t, LS_BFLOAT16), got, sizeof got));
    for (int i = 0; i < 9; i++) {
        CHECK_INT(got[i], bfloat[i]);
    }
    float back[9];
    ls_tensor *again = ls_cast(ls_cast(t, LS_FLOAT16), LS_FLOAT32);
    CHECK_OK(ls_copy_out(again, back, sizeof back));
    CHECK_NEAR(back[2], 3.99, 0.002);
    CHECK(isinf(back[5]));
    CHECK_NEAR(back[7], 5.9604645e-8, 1e-12);
    CHECK(((const uint8_t *)ls_data(ls_cast(t, LS_BOOL)))[1] == 1);
}

LOCAL_TEST(dropout_of_a_share_equals_that_part_of_the_whole_batch)
{
    ls_runtime *runtime = ls_runtime_current();
    runtime->seed = 11;
    ls_step_begin((ls_step_context){3, 0});
    ls_tensor *whole = ls_dropout(ls_ones(LS_SHAPE(6, 37), LS_FLOAT32), 0.5);
    ls_step_begin((ls_step_context){3, 2});
    ls_tensor *share = ls_dropout(ls_ones(LS_SHAPE(4, 37), LS_FLOAT32), 0.5);
    ls_tensor *next = ls_dropout(ls_ones(LS_SHAPE(4, 37), LS_FLOAT32), 0.5);
    ls_step_begin((ls_step_context){4, 2});
    ls_tensor *later = ls_dropout(ls_ones(LS_SHAPE(4, 37), LS_FLOAT32), 0.5);
    const float *all = ls_data(whole);
    size_t bytes = 4 * 37 * sizeof(float);
    CHECK(memcmp(ls_data(share), all + 2 * 37, bytes) == 0);
    CHECK(memcmp(ls_data(next), ls_data(share), bytes) != 0);
    CHECK(memcmp(ls_data(later), ls_data(share), bytes) != 0);
    int kept = 0;
    for (int i = 0; i < 6 * 37; i++) {
        CHECK(all[i] == 0.0f || all[i] == 2.0f);
        kept += all[i] != 0.0f;
    }
    CHECK(kept > 70 && kept < 150);
}

static void check_printed(ls_tensor *t, const char *want)
{
    char got[4096] = {0}, path[] = "/tmp/lockstep-print-XXXXXX";
    int fd = mkstemp(path), keep = dup(STDOUT_FILENO);
    fflush(stdout);
    CHECK(fd >= 0 && keep >= 0 && unlink(path) == 0 && dup2(fd, STDOUT_FILENO) >= 0);
    ls_status status = ls_print(t);
    fflush(stdout);
    CHECK(dup2(keep, STDOUT_FILENO) >= 0);
    CHECK(pread(fd, got, sizeof got - 1, 0) >= 0);
    CHECK_OK(status);
    if (strcmp(got, want) != 0) {
        test_fail(__FILE__, __LINE__, "printed\n%s\nnot\n%s", got, want);
    }
}

LOCAL_TEST(print_shows_what_torch_would)
{
    const float values[] = {1, 2.5f, -3, 4};
    ls_tensor *t = ls_from_data(values, LS_SHAPE(2, 2), LS_FLOAT32);
    check_printed(t, "tensor([[ 1.0000,  2.5000],\n"
                     "        [-3.0000,  4.0000]], float32 [2,2])\n");
    check_printed(ls_transpose(ls_cast(t, LS_INT32), 0, 1), "tensor([[ 1, -3],\n"
                                                            "        [ 2,  4]], int32 [2,2])\n");
    check_printed(ls_sum(t), "tensor(4.5000, float32 [])\n");
    const float large[] = {1e30f, 2};
    check_printed(ls_from_data(large, LS_SHAPE(2), LS_FLOAT32),
                  "tensor([1.0000e+30, 2.0000e+00], float32 [2])\n");
    check_printed(counting(LS_SHAPE(1, 2, 1)), "tensor([[[0.],\n"
                                               "         [1.]]], float32 [1,2,1])\n");
    check_printed(ls_empty(LS_SHAPE(0), LS_FLOAT32), "tensor([], float32 [0])\n");
    check_printed(counting(LS_SHAPE(2000)), "tensor([   0.,    1.,    2., ..., 1997., 1998., "
                                            "1999.], float32 [2000])\n");
    check_printed(ls_reshape(counting(LS_SHAPE(1400)), LS_SHAPE(700, 2)),
                  "tensor([[   0.,    1.],\n"
                  "        [   2.,    3.],\n"
                  "        [   4.,    5.],\n"
                  "        ...,\n"
                  "        [1394., 1395.],\n"
                  "        [1396., 1397.],\n"
                  "        [1398., 1399.]], float32 [700,2])\n");
}

LOCAL_TEST(argmax_finds_the_first_largest)
{
    const float values[] = {1, 5, 5, -1, NAN, 7};
    const int64_t by_row[] = {1, 1}, by_column[] = {0, 1, 1};
    ls_tensor *t = ls_from_data(values, LS_SHAPE(2, 3), LS_FLOAT32);
    CHECK(memcmp(ls_data(ls_argmax(t, 1)), by_row, sizeof by_row) == 0);
    CHECK(memcmp(ls_data(ls_argmax(t, 0)), by_column, sizeof by_column) == 0);
}

TEST_MAIN
