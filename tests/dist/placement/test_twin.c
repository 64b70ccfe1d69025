/* SPDX-License-Identifier: Apache-2.0 */
/* A GPT over the axis tp against its order-matched twin: one process that computes the parts of
 * all ranks, one after the other, and adds them in the order in which an all-reduce adds. */
#include <stdio.h>

#include <lockstep/function.h>
#include <lockstep/lockstep.h>

#include "tensor/op.h"
#include "test.h"
#include "train.h"

enum { RANKS_MAX = 4, LAYERS = 4, HEAD_DIM = 32 };

static int parts;  /* of the matrices */
static int pieces; /* of the activations between them: as many with sequence parallelism, else 1 */

/* In the canonical order of a group of 2^k ranks: adjacent pairs first (docs/design.md, D5). */
static ls_tensor *sum_of(ls_tensor *const *term, int n)
{
    return n == 1 ? term[0] : ls_add(sum_of(term, n / 2), sum_of(term + n / 2, n / 2));
}

/* ---- the conversion f: copies, whose gradients are added ---------------------------------- */

static ls_status copies_forward(ls_function_call *call, ls_tensor *const *in, int n,
                                ls_tensor **out, int m, void *arg)
{
    (void)call, (void)n, (void)arg;
    for (int i = 0; i < m; i++) {
        out[i] = ls_clone(in[0]);
    }
    return LS_OK;
}

static ls_status copies_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                                 ls_tensor **din, int n)
{
    (void)call, (void)n;
    din[0] = sum_of(dout, m);
    return ls_tensor_status(din[0]);
}

static const ls_function copies =
    LS_FUNCTION(.name = "copies", .forward = copies_forward, .backward = copies_backward);

static void copied(ls_tensor *x, ls_tensor **out, int count)
{
    CHECK_OK(ls_function_apply_many(&copies, &x, 1, out, count, NULL));
}

/* ---- the loss over parts of the classes --------------------------------------------------- */

/* A part's arguments of the kernels, with its numbers of each row: max, sum, target. */
typedef struct part_loss {
    ls__vocab_loss of[RANKS_MAX];
} part_loss;

/* In `at` are the three numbers of each of `rows` rows of every part. */
static float in_order(const float *at, int64_t rows, int first, int n, int64_t i)
{
    return n == 1
               ? at[(3 * first + 1) * rows + i]
               : in_order(at, rows, first, n / 2, i) + in_order(at, rows, first + n / 2, n / 2, i);
}

/* What all parts have of an all-reduce. */
static void combine_max(ls_tensor *numbers, int64_t rows)
{
    float *at = edit_elements(numbers);
    for (int64_t i = 0; i < rows; i++) {
        float most = at[i];
        for (int r = 1; r < parts; r++) {
            most = fmaxf(most, at[3 * r * rows + i]);
        }
        for (int r = 0; r < parts; r++) {
            at[3 * r * rows + i] = most;
        }
    }
    put_elements(numbers, at);
}

static void combine_sums(ls_tensor *numbers, int64_t rows)
{
    float *at = edit_elements(numbers);
    for (int64_t i = 0; i < 2 * rows; i++) {
        const float sum = in_order(at, rows, 0, parts, i);
        for (int r = 0; r < parts; r++) {
            at[(3 * r + 1) * rows + i] = sum;
        }
    }
    put_elements(numbers, at);
}

/* For kernels. */
static void *place_of(ls_tensor *t)
{
    ls__pool *on = NULL;
    return ls__tensor_elements(t, &on);
}

static ls_status loss_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    const ls__pool *on = ls__tensors_get("twin")->made;
    const int64_t rows = ls_numel(in[parts]), own = ls_size(in[0], -1);
    ls_tensor *numbers = ls_empty(LS_SHAPE(parts, 3, rows), LS_FLOAT32);
    part_loss p;
    (void)m, (void)arg;
    for (int r = 0; r < parts; r++) {
        float *at = (float *)place_of(numbers) + 3 * rows * r;
        p.of[r] = (ls__vocab_loss){.logits = {.at = place_of(in[r])},
                                   .target = place_of(in[parts]),
                                   .index_bytes = sizeof(int64_t),
                                   .rows = rows,
                                   .n = own,
                                   .first = r * own,
                                   .classes = parts * own,
                                   .ignore = -100,
                                   .max = at,
                                   .sums = at + rows};
        on->k->vocab_max(&p.of[r], on->stream);
    }
    combine_max(numbers, rows);
    for (int r = 0; r < parts; r++) {
        on->k->vocab_sums(&p.of[r], on->stream);
    }
    combine_sums(numbers, rows);
    out[0] = ls_empty((ls_shape){0}, LS_FLOAT32);
    on->k->vocab_loss(place_of(out[0]), &p.of[0], on->stream);
    for (int i = 0; i < n; i++) {
        LS_TRY(ls_function_save(call, in[i]));
    }
    LS_TRY(ls_function_save(call, numbers));
    return ls_function_save_data(call, &p, sizeof p);
}

static ls_status loss_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    const ls__pool *on = ls__tensors_get("twin")->made;
    const part_loss *p = ls_function_data(call);
    (void)m, (void)n;
    for (int r = 0; r < parts; r++) {
        din[r] = ls_empty(ls_shape_of(ls_function_saved(call, r)), LS_FLOAT32);
        on->k->vocab_loss_backward(place_of(din[r]), &p->of[r], place_of(dout[0]), on->stream);
    }
    return LS_OK;
}

static const ls_function cross_entropy =
    LS_FUNCTION(.name = "cross_entropy_of_parts", .forward = loss_forward,
                .backward = loss_backward);

/* ---- the model ---------------------------------------------------------------------------- */

static ls_tensor *param(const ls_module *m, const char *name)
{
    ls_tensor *found = ls_module_param(m, name);
    CHECK(found != NULL);
    return found;
}

static ls_tensor *forward(ls_module *m, const char *child, ls_tensor *x)
{
    ls_module *found = ls_module_child(m, child);
    CHECK(found != NULL);
    return ls_forward(found, x);
}

/* Part r of dimension d. */
static ls_tensor *part_of(ls_tensor *t, int d, int r)
{
    const int64_t own = ls_size(t, d) / parts;
    return ls_contiguous(ls_slice(t, d, r * own, (r + 1) * own));
}

/* Rows of a fused query, key and value: part r of each. */
static ls_tensor *part_of_qkv(ls_tensor *t, int r)
{
    const int64_t c = ls_size(t, 0) / 3;
    ls_tensor *of[3];
    for (int i = 0; i < 3; i++) {
        of[i] = part_of(ls_slice(t, 0, i * c, (i + 1) * c), 0, r);
    }
    return ls_concat(of, 3, 0);
}

static ls_tensor *attend(ls_module *m, ls_tensor *x, int r)
{
    ls_tensor *qkv = ls_linear_activation(x, part_of_qkv(param(m, "qkv.weight"), r),
                                          part_of_qkv(param(m, "qkv.bias"), r), LS_ACTIVATION_NONE);
    ls_tensor *of[3];
    for (int i = 0; i < 3; i++) {
        of[i] = ls_tensor_parallel_heads(qkv, i, 3, HEAD_DIM);
    }
    ls_tensor *seen = ls_transpose(
        ls_attention(of[0], of[1], of[2], LS_OPTIONS(ls_attention_options, .causal = true)), 1, 2);
    seen = ls_reshape(seen, LS_SHAPE(ls_size(seen, 0), ls_size(seen, 1), -1));
    return ls_linear(seen, part_of(param(m, "proj.weight"), 1, r), NULL);
}

static ls_tensor *widen(ls_module *m, ls_tensor *x, int r)
{
    ls_tensor *wide = ls_linear_activation(x, part_of(param(m, "up.weight"), 0, r),
                                           part_of(param(m, "up.bias"), 0, r), LS_ACTIVATION_GELU);
    return ls_linear(wide, part_of(param(m, "down.weight"), 1, r), NULL);
}

static ls_tensor *piece_of(ls_tensor *t, int p)
{
    const int64_t own = ls_size(t, 1) / pieces;
    return pieces == 1 ? t : ls_contiguous(ls_slice(t, 1, p * own, (p + 1) * own));
}

static ls_tensor *joined(ls_tensor *const *x)
{
    return pieces == 1 ? x[0] : ls_concat(x, pieces, 1);
}

/* The whole of the normalised pieces, for each part. Each piece has a share of the gradients of
 * weight and bias. */
static void normalised(ls_module *norm, ls_tensor *const *x, ls_tensor **in)
{
    ls_tensor *weight[RANKS_MAX], *bias[RANKS_MAX], *y[RANKS_MAX];
    copied(param(norm, "weight"), weight, pieces);
    copied(param(norm, "bias"), bias, pieces);
    for (int p = 0; p < pieces; p++) {
        y[p] = ls_layer_norm(x[p], weight[p], bias[p], 1e-5);
    }
    copied(joined(y), in, parts);
}

static ls_tensor *with_bias(ls_tensor *x, ls_tensor *bias)
{
    ls_tensor *own[RANKS_MAX], *y[RANKS_MAX];
    copied(bias, own, pieces);
    for (int p = 0; p < pieces; p++) {
        y[p] = ls_add(piece_of(x, p), own[p]);
    }
    return joined(y);
}

/* x + dropped(sum of the parts + bias), in place of x */
static void half_block(ls_module *m, ls_tensor **x, const char *norm, const char *bias,
                       ls_tensor *(*part)(ls_module *m, ls_tensor *x, int r))
{
    ls_tensor *in[RANKS_MAX], *term[RANKS_MAX];
    normalised(ls_module_child(m, norm), x, in);
    for (int r = 0; r < parts; r++) {
        term[r] = part(m, in[r], r);
    }
    ls_tensor *sum = with_bias(sum_of(term, parts), param(m, bias));
    ls_tensor *dropped = forward(m, "drop", sum);
    for (int p = 0; p < pieces; p++) {
        x[p] = ls_add(x[p], piece_of(dropped, p));
    }
}

static ls_tensor *loss_of(ls_module *net, ls_tensor *const *x, int step)
{
    ls_tensor *in[RANKS_MAX], *logits[RANKS_MAX + 1], *loss = NULL;
    normalised(ls_module_child(net, "norm"), x, in);
    for (int r = 0; r < parts; r++) {
        logits[r] = ls_linear(in[r], part_of(param(net, "head.weight"), 0, r), NULL);
    }
    logits[parts] = tokens(BATCH, TIME, VOCAB, step + 1);
    CHECK_OK(ls_function_apply_many(&cross_entropy, logits, parts + 1, &loss, 1, NULL));
    return loss;
}

static ls_tensor *twin_loss(ls_module *net, int step)
{
    ls_tensor *whole = forward(net, "tokens", tokens(BATCH, TIME, VOCAB, step)), *x[RANKS_MAX];
    whole = forward(net, "drop", ls_add(whole, ls_slice(param(net, "positions"), 0, 0, TIME)));
    for (int p = 0; p < pieces; p++) {
        x[p] = piece_of(whole, p);
    }
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "blocks.%d", i);
        ls_module *m = ls_module_child(net, name);
        half_block(m, x, "norm1", "proj.bias", attend);
        half_block(m, x, "norm2", "down.bias", widen);
    }
    return loss_of(net, x, step);
}

/* ---- the comparison ----------------------------------------------------------------------- */

/* The losses of rank 0, which alone computes them. */
static void train_once(const trial *t, int steps, double *losses)
{
    if (ls_rank() == 0) {
        train(t, NULL, steps, losses);
    }
    CHECK_OK(ls_broadcast(ls_world(), losses, steps, LS_FLOAT64, 0, NULL, NULL));
}

/* Sums of float32 are rounded, in one process otherwise than in parts: over 100 steps the losses,
 * from 5.5 to 0.35, differ by 5e-7 at most. Those of the twin do not differ. */
static void check_twin(const ls_tensor_parallel_options *how)
{
    const int steps = ls_world_size() > 1 ? step_count() : 2; /* along one rank nothing changes */
    double whole[STEPS_MAX], twin[STEPS_MAX], own[STEPS_MAX];
    ls_mesh *mesh = NULL;
    parts = ls_world_size();
    pieces = how->sequence ? parts : 1;
    CHECK_OK(ls_mesh_new(ls_world(), "tp=*", &mesh));
    train(&(trial){gpt, gpt_loss}, how, steps, own);
    CHECK_OK(ls_mesh_free(mesh));
    train_once(&(trial){gpt, gpt_loss}, steps, whole);
    train_once(&(trial){gpt, twin_loss}, steps, twin);
    CHECK_NEAR(worst(whole, own, steps), 0.0, 1e-5);
    CHECK(memcmp(own, twin, (size_t)steps * sizeof *own) == 0);
}

DIST_TESTS(gpt_over_, _ranks_has_the_bits_of_its_twin, 1, 2, 4)
{
    check_twin(LS_OPTIONS(ls_tensor_parallel_options, .sequence = false));
}

DIST_TESTS(gpt_with_sequence_parallelism_over_, _ranks_has_the_bits_of_its_twin, 2, 4)
{
    check_twin(LS_OPTIONS(ls_tensor_parallel_options, .sequence = true));
}

DIST_TESTS(gpt_that_gathers_again_over_, _ranks_has_the_bits_of_its_twin, 2, 4)
{
    check_twin(LS_OPTIONS(ls_tensor_parallel_options, .sequence = true, .keep_gathered = false));
}

TEST_MAIN
