/* SPDX-License-Identifier: Apache-2.0 */
/* What users read after the common mistakes: the whole text, with the line in *their* file. */
#undef LS_NO_SITES
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/ops.h>

#include "local.h"

#define USE_LINES 5 /* of one EXPECT: compilers differ in which line a macro over several has */

/* The message is "FILE:LINE: text", its line one of the use that ends or begins at `line`. */
static void expect_message(const char *file, int line, const char *text)
{
    char *end = NULL;
    const char *got = ls_error_message();
    const size_t length = strlen(file);
    const bool ours = strncmp(got, file, length) == 0 && got[length] == ':';
    const long at = ours ? strtol(got + length + 1, &end, 10) : 0;
    if (!ours || labs(at - line) >= USE_LINES || strncmp(end, ": ", 2) != 0 ||
        strcmp(end + 2, text) != 0) {
        test_fail(file, line, "got:  %s\nwant: %s:%d: %s", got, file, line, text);
    }
}

/* Status and full text of what `expression` on this line yields. */
#define EXPECT(expression, status, text)                                                           \
    do {                                                                                           \
        CHECK_STATUS(ls_tensor_status(expression), status);                                        \
        expect_message(__FILE__, __LINE__, text);                                                  \
    } while (0)

#define f32(shape) ls_zeros(shape, LS_FLOAT32)

LOCAL_TEST(shape_mistakes_are_told_with_both_shapes_and_the_line)
{
    ls_tensor *a = f32(LS_SHAPE(4, 3)), *b = f32(LS_SHAPE(5, 2)), *v = f32(LS_SHAPE(3));
    ls_tensor *c = f32(LS_SHAPE(2, 4, 3)), *d = f32(LS_SHAPE(3, 3, 2));
    EXPECT(ls_matmul(a, b), LS_ERR_INVALID,
           "matmul: [4,3] x [5,2]: the inner dimensions 3 and 5 differ; the last of the first must "
           "equal the last but one of the second (ls_transpose one?)");
    EXPECT(ls_matmul(a, v), LS_ERR_INVALID,
           "matmul: [4,3] x [3]: both must have at least two dimensions; ls_reshape a vector to "
           "[1,n] or [n,1]");
    EXPECT(ls_matmul(c, d), LS_ERR_INVALID,
           "matmul: [2,4,3] x [3,3,2]: the leading dimensions [2] and [3] do not broadcast; each "
           "pair must be equal or contain a 1");
    EXPECT(ls_add(a, b), LS_ERR_INVALID,
           "add: [4,3] with [5,2]: shapes align at the right and every pair of sizes must be equal "
           "or contain a 1; ls_reshape one of them");
    EXPECT(ls_linear(a, b, NULL), LS_ERR_INVALID,
           "linear: x [4,3] with weight [5,2]: the last dimension of x must equal the last of the "
           "weight [out,in]");
    EXPECT(ls_linear(a, f32(LS_SHAPE(7, 3)), v), LS_ERR_INVALID,
           "linear: bias [3] with weight [7,3]: the bias must be [7], one for each output");
    EXPECT(ls_reshape(a, LS_SHAPE(5, -1)), LS_ERR_INVALID,
           "reshape: [4,3] to [5,-1]: 12 elements do not fill that shape; the sizes must have the "
           "same product (one of them may be -1)");
    EXPECT(ls_transpose(a, 0, 2), LS_ERR_INVALID, "transpose: dimension 2 of [4,3]; give -2 to 1");
    EXPECT(ls_slice(a, 0, 2, 5), LS_ERR_INVALID,
           "slice: [2,5) of dimension 0 of [4,3]; give 0 <= start <= end <= 4");
    EXPECT(ls_permute(a, LS_SHAPE(0, 0)), LS_ERR_INVALID,
           "permute: [4,3] by [0,0]: give each dimension 0 to 1 exactly once");
    EXPECT(ls_layer_norm(a, f32(LS_SHAPE(4)), NULL, 1e-5), LS_ERR_INVALID,
           "layer_norm: x [4,3] with weight [4]: it must be [3], the last dimension of x");
    EXPECT(ls_mse_loss(a, v), LS_ERR_INVALID,
           "mse_loss: [4,3] against [3]; both must have the same shape");
    EXPECT(ls_attention(c, c, c, LS_OPTIONS(ls_attention_options, .causal = true)), LS_ERR_INVALID,
           "attention: q [2,4,3], k [2,4,3], v [2,4,3]; q must be [B,H,T,D], k and v [B,G,S,D] "
           "with H a multiple of G");
    EXPECT(ls_zeros(LS_SHAPE(1, 2, 3, 4, 5, 6, 7, -8), LS_FLOAT32), LS_ERR_INVALID,
           "zeros: shape [1,2,3,4,5,6,7,-8]: a size is negative, or the elements take more bytes "
           "than memory can address; give sizes of at least 0");
}

LOCAL_TEST(type_and_index_mistakes_name_the_element)
{
    const int64_t index[] = {0, 3, 9, -1};
    ls_tensor *i = ls_from_data(index, LS_SHAPE(2, 2), LS_INT64), *w = f32(LS_SHAPE(5, 3));
    ls_tensor *x = f32(LS_SHAPE(2, 2, 4));
    EXPECT(ls_embedding(w, i), LS_ERR_INVALID,
           "embedding: element 2 of argument 2 [2,2] is 9; give values in [0,5)");
    EXPECT(ls_embedding(w, w), LS_ERR_INVALID,
           "embedding: argument 2 is float32 [5,3]; it takes indices of int32 or int64");
    EXPECT(ls_cross_entropy(x, i, NULL), LS_ERR_INVALID,
           "cross_entropy: element 2 of target [2,2] is 9; give values in [0,4), or -100 for rows "
           "that do not count");
    EXPECT(ls_cross_entropy(w, i, NULL), LS_ERR_INVALID,
           "cross_entropy: logits [5,3] of float32 with target [2,2]; logits must be float32 or "
           "bfloat16 [..,C] and the target the same without the last dimension");
    EXPECT(ls_relu(i), LS_ERR_INVALID,
           "relu: argument 1 is int64 [2,2]; it takes float32 or bfloat16: convert with ls_cast");
    EXPECT(ls_dropout(x, 1.5), LS_ERR_INVALID, "dropout: p is 1.5; give a probability from 0 to 1");
    EXPECT(ls_gelu(x, (ls_gelu_kind)9), LS_ERR_INVALID,
           "gelu: kind 9; give LS_GELU_ERF or LS_GELU_TANH");
    EXPECT(ls_softmax(ls_full(LS_SCALAR, LS_FLOAT32, 1), 0), LS_ERR_INVALID,
           "softmax: dimension 0 of a scalar, which has none; ls_reshape it to [1]");
    EXPECT(ls_embedding(w, ls_reshape(i, LS_SHAPE(1, 1, 1, 1, 1, 1, 2, 2))), LS_ERR_INVALID,
           "embedding: index [1,1,1,1,1,1,2,2]: the result has one dimension more, and 8 is the "
           "most");
    EXPECT(ls_set_requires_grad(i, true), LS_ERR_INVALID,
           "set_requires_grad: [2,2] of int64; only contiguous float32 and bfloat16 tensors carry "
           "gradients (ls_cast, ls_contiguous)");
}

LOCAL_TEST(a_tensor_that_does_not_fit_names_its_operation_and_shape)
{
    ls_tensor *t = ls_ones(LS_SHAPE((int64_t)1 << 46), LS_FLOAT32);
    CHECK_STATUS(ls_tensor_status(t), LS_ERR_MEMORY);
    CHECK_CONTAINS(ls_error_message(), "messages.c:");
    CHECK_CONTAINS(ls_error_message(),
                   ": ones: [70368744177664]: a new tensor of 281474976710656 bytes: out of "
                   "memory; free tensors, end scopes earlier or make batches smaller");
}

LOCAL_TEST(dead_handles_are_told_where_they_were_made)
{
    ls_tensor *dead = NULL;
    int line = 0;
    char want[512];
    {
        LS_SCOPE;
        dead = f32(LS_SHAPE(2));
        line = __LINE__ + 1;
        dead = ls_relu(dead);
    }
    int used = __LINE__ + 1;
    CHECK_STATUS(ls_tensor_status(ls_add(f32(LS_SHAPE(2)), dead)), LS_ERR_STALE);
    snprintf(
        want, sizeof want,
        "%s:%d: add: argument 2 is the tensor made at %s:%d, whose scope has ended or which was "
        "freed; ls_keep tensors that outlive their scope",
        __FILE__, used, __FILE__, line);
    CHECK_CONTAINS(ls_error_message(), want);
    EXPECT(ls_add(NULL, dead), LS_ERR_INVALID, "add: argument 1 is NULL; give a tensor");
}

LOCAL_TEST(data_access_says_what_to_use_instead)
{
    ls_tensor *t = f32(LS_SHAPE(2, 3));
    double value;
    CHECK(ls_data(ls_transpose(t, 0, 1)) == NULL);
    CHECK_CONTAINS(ls_error_message(), "data: the tensor [3,2] is a view whose elements do not lie "
                                       "one after the other; take ls_data(ls_contiguous(t)), or "
                                       "ls_copy_out");
    CHECK_STATUS(ls_item(t, &value), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "item: the tensor [2,3] has 6 elements; give one of exactly "
                                       "one, or use ls_copy_out");
    CHECK_STATUS(ls_copy_in(t, &value, sizeof value), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(),
                   "copy_in: [2,3] of float32 takes 24 bytes of memory; 8 were given");
}

TEST_MAIN
