/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout of a tensor that the ranks share draws the mask that one process would for the whole:
 * whichever dimension is cut, along whichever axes. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "elements.h"
#include "test.h"

static ls_mesh *mesh;

static void begin(const char *axes)
{
    CHECK_OK(ls_mesh_new(ls_world(), axes, &mesh));
}

static void end(void)
{
    CHECK_OK(ls_mesh_free(mesh));
}

enum { ZIGZAG = 16 };

/* Which dimension is cut along which axis; -1: none. ZIGZAG + dimension: in that order. */
typedef struct cuts {
    int dp, cp, tp;
} cuts;

static const char *const names[] = {"dp", "cp", "tp"};

static int cut_of(const cuts *c, int axis)
{
    return axis == 0 ? c->dp : axis == 1 ? c->cp : c->tp;
}

/* This rank's part. */
static ls_tensor *part_of(ls_tensor *whole, const cuts *c)
{
    for (int a = 0; a < 3; a++) {
        const int d = cut_of(c, a);
        if (d >= ZIGZAG) {
            whole = ls_context_shard(whole, d - ZIGZAG, names[a]);
            CHECK_OK(ls_place(whole, names[a], LS_UNPLACED));
        } else if (d >= 0) {
            const int64_t own = ls_size(whole, d) / ls_mesh_size(mesh, names[a]);
            const int64_t first = own * ls_mesh_coordinate(mesh, names[a]);
            whole = ls_slice(whole, d, first, first + own);
        }
    }
    return ls_clone(ls_contiguous(whole));
}

static ls_tensor *place(ls_tensor *t, const cuts *c)
{
    for (int a = 0; a < 3; a++) {
        if (cut_of(c, a) >= 0) {
            const int d = cut_of(c, a);
            CHECK_OK(ls_place(t, names[a], d >= ZIGZAG ? LS_ZIGZAG(d - ZIGZAG) : LS_SHARDED(d)));
        }
    }
    CHECK_OK(ls_set_requires_grad(t, true));
    return t;
}

static void check_same(ls_tensor *got, ls_tensor *want)
{
    CHECK_OK(ls_tensor_status(got));
    CHECK_OK(ls_tensor_status(want));
    CHECK(ls_numel(got) == ls_numel(want) && ls_dtype_of(got) == ls_dtype_of(want));
    CHECK(memcmp(elements_of(got), elements_of(want),
                 (size_t)ls_numel(got) * ls_dtype_size(ls_dtype_of(got))) == 0);
}

static void restart(int64_t offset)
{
    ls_step_begin((ls_step_context){.step = 5, .sample_offset = offset});
}

static ls_tensor *drop(ls_tensor *x, void *arg)
{
    (void)arg;
    return ls_dropout(x, 0.4);
}

/* Forward, backward and recomputed. */
static void check_dropout(ls_shape shape, ls_dtype dtype, const cuts *c, int64_t offset)
{
    LS_SCOPE;
    {
        restart(0);
        ls_tensor *mask = ls_dropout(ls_ones(shape, dtype), 0.4);
        ls_tensor *want = part_of(mask, c), *ones = part_of(ls_ones(shape, dtype), c);
        for (int again = 0; again < 2; again++) {
            restart(offset);
            ls_tensor *x = place(ls_clone(ones), c);
            ls_tensor *y = again == 1 ? ls_recompute_call(drop, x, NULL) : drop(x, NULL);
            check_same(y, want);
            CHECK_OK(ls_backward_from(&y, &ones, 1));
            check_same(ls_grad(x), want);
        }
    }
}

static void check_shapes(const cuts *c, int64_t offset)
{
    check_dropout(LS_SHAPE(8, 12, 16), LS_FLOAT32, c, offset);
    check_dropout(LS_SHAPE(4, 8, 200), LS_BFLOAT16, c, offset);
    check_dropout(LS_SHAPE(4, 4, 4, 3000), LS_FLOAT32, c, offset);
}

DIST_TEST(masks_of_parts_along_one_axis_are_those_of_the_whole, 4)
{
    begin("tp=4");
    for (int d = 0; d < 3; d++) {
        check_shapes(&(cuts){-1, -1, d}, 0);
    }
    check_shapes(&(cuts){-1, -1, -1}, 0);
    end();
}

DIST_TEST(masks_of_parts_along_two_axes_are_those_of_the_whole, 4)
{
    begin("dp=2,tp=2");
    for (int d = 0; d < 3; d++) {
        check_shapes(&(cuts){0, -1, d}, 0);
        check_shapes(&(cuts){2, -1, d}, 0);
    }
    end();
    begin("cp=2,tp=2");
    check_shapes(&(cuts){-1, 1, 2}, 0);
    check_shapes(&(cuts){-1, 2, 1}, 0);
    end();
}

DIST_TEST(masks_of_parts_along_three_axes_are_those_of_the_whole, 8)
{
    begin("dp=2,cp=2,tp=2");
    check_shapes(&(cuts){0, 1, 2}, 0);
    check_shapes(&(cuts){2, 1, 0}, 0);
    check_dropout(LS_SHAPE(3, 4, 2, 6, 10), LS_FLOAT32, &(cuts){1, 3, 4}, 0);
    end();
}

DIST_TEST(masks_of_parts_in_zigzag_order_are_those_of_the_whole, 4)
{
    begin("cp=4");
    for (int d = 0; d < 3; d++) {
        check_dropout(LS_SHAPE(8, 16, 24), LS_FLOAT32, &(cuts){-1, ZIGZAG + d, -1}, 0);
        check_dropout(LS_SHAPE(8, 8, 400), LS_BFLOAT16, &(cuts){-1, ZIGZAG + d, -1}, 0);
    }
    end();
    begin("cp=2,tp=2");
    for (int d = 0; d < 3; d++) {
        check_shapes(&(cuts){-1, ZIGZAG + 1, d}, 0);
    }
    end();
    begin("tp=2,cp=2");
    check_shapes(&(cuts){-1, ZIGZAG + 1, 1}, 0);
    end();
}

/* Of three parts of a part in zigzag order the middle one has the end of a chunk and the beginning
 * of another. */
DIST_TEST(masks_of_parts_across_two_chunks_are_those_of_the_whole, 6)
{
    begin("cp=2,tp=3");
    check_dropout(LS_SHAPE(2, 24, 7), LS_FLOAT32, &(cuts){-1, ZIGZAG + 1, 1}, 0);
    check_dropout(LS_SHAPE(3, 24, 7), LS_FLOAT32, &(cuts){-1, ZIGZAG + 1, 0}, 0);
    end();
}

/* A wrapper's batch is counted by the sample offset, as without a mesh. */
DIST_TEST(samples_of_a_wrapper_are_counted_by_the_offset, 4)
{
    begin("dp=2,tp=2");
    ls_module *net = ls_linear_new(4, 4, NULL);
    ls_module *ddp = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
    CHECK(ddp != NULL);
    const int dp = ls_mesh_coordinate(mesh, "dp");
    for (int d = 1; d < 3; d++) {
        check_dropout(LS_SHAPE(8, 12, 16), LS_FLOAT32, &(cuts){0, -1, d}, 4 * dp);
    }
    LS_SCOPE;
    {
        ls_tensor *x = ls_ones(LS_SHAPE(4, 16), LS_FLOAT32);
        restart(4 * dp);
        ls_tensor *unplaced = ls_dropout(x, 0.4);
        restart(4 * dp);
        ls_tensor *varying = ls_clone(x);
        CHECK_OK(ls_place(varying, "tp", LS_VARYING));
        check_same(ls_dropout(varying, 0.4), unplaced);
        float seen[2][64];
        CHECK_OK(ls_all_gather(ls_mesh_group(mesh, "dp"), elements_of(unplaced), seen, 64,
                               LS_FLOAT32, NULL, NULL));
        CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) != 0);
    }
    ls_module_free(ddp);
    end();
}

/* ---- attention ---------------------------------------------------------------------------- */

static ls_tensor *numbers(ls_shape shape, uint64_t stream)
{
    ls_tensor *t = ls_empty(shape, LS_FLOAT32);
    float *at = edit_elements(t);
    for (int64_t i = 0; i < ls_numel(t); i++) {
        at[i] = ls_random_normal(1, stream, (uint64_t)i);
    }
    put_elements(t, at);
    return t;
}

static ls_tensor *attend(ls_tensor *const *x)
{
    restart(0);
    return ls_attention(x[0], x[1], x[2],
                        LS_OPTIONS(ls_attention_options, .causal = true, .dropout = 0.3));
}

static void check_attention(const cuts *c)
{
    LS_SCOPE;
    {
        ls_tensor *whole[3], *part[3];
        for (int i = 0; i < 3; i++) {
            whole[i] = numbers(LS_SHAPE(4, i == 0 ? 8 : 4, 33, 16), (uint64_t)i);
            part[i] = place(part_of(whole[i], c), c);
            CHECK_OK(ls_set_requires_grad(whole[i], true));
        }
        ls_tensor *want = attend(whole), *y = attend(part);
        check_same(ls_contiguous(y), part_of(ls_detach(want), c));
        ls_tensor *dwant = numbers(LS_SHAPE(4, 8, 33, 16), 7), *dy = part_of(dwant, c);
        CHECK_OK(ls_backward_from(&want, &dwant, 1));
        CHECK_OK(ls_backward_from(&y, &dy, 1));
        for (int i = 0; i < 3; i++) {
            check_same(ls_grad(part[i]), part_of(ls_grad(whole[i]), c));
        }
    }
}

DIST_TEST(weights_of_attention_are_dropped_as_by_one_process, 4)
{
    begin("tp=4");
    check_attention(&(cuts){-1, -1, 1});
    check_attention(&(cuts){-1, -1, 0});
    end();
    begin("dp=2,tp=2");
    check_attention(&(cuts){0, -1, 1});
    end();
}

TEST_MAIN
