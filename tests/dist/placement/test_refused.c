/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that compose wrongly, each of which trained with wrong gradients somewhere: they are
 * refused where they are written, with the axis, the argument and the missing conversion. */
#include <string.h>

#include <lockstep/lockstep.h>

#include "says.h"
#include "test.h"

enum { BATCH = 4, WIDTH = 8 };

/* Parameters of any shape, with names. */
typedef struct holder {
    ls_module base;
} holder;

static ls_tensor *holder_forward(ls_module *m, ls_tensor *x)
{
    (void)m;
    return x;
}

static const ls_module_class holder_class =
    LS_MODULE_CLASS(.name = "holder", .forward = holder_forward);

typedef struct setting {
    ls_mesh *mesh;
    holder *net;
    ls_tensor *up, *down, *bias, *norm; /* column, row, of the row, [WIDTH] */
    ls_tensor *x;
} setting;

static ls_tensor *param(setting *s, const char *name, ls_shape shape, const char *axis,
                        ls_placement placement)
{
    ls_tensor *t = ls_module_add_param(&s->net->base, name, ls_full(shape, LS_FLOAT32, 0.5));
    CHECK(t != NULL);
    if (axis != NULL) {
        CHECK_OK(ls_place(t, axis, placement));
    }
    return t;
}

static setting begin(const char *axes)
{
    setting s = {0};
    CHECK_OK(ls_mesh_new(ls_world(), axes, &s.mesh));
    s.net = ls_module_new(sizeof *s.net, &holder_class);
    const char *tp = ls_mesh_has(s.mesh, "tp") ? "tp" : NULL;
    s.up = param(&s, "up", LS_SHAPE(WIDTH, WIDTH), tp, LS_SHARDED(0));
    s.down = param(&s, "down", LS_SHAPE(WIDTH, WIDTH), tp, LS_SHARDED(1));
    s.bias = param(&s, "bias", LS_SHAPE(WIDTH), NULL, 0);
    s.norm = param(&s, "norm", LS_SHAPE(WIDTH), NULL, 0);
    s.x = ls_keep(ls_ones(LS_SHAPE(BATCH, WIDTH), LS_FLOAT32));
    return s;
}

static void end(setting *s)
{
    ls_free(s->x);
    ls_module_free(&s->net->base);
    CHECK_OK(ls_mesh_free(s->mesh));
}

static void check_text(ls_status got, const char *text)
{
    if (got != LS_ERR_PLACEMENT || test_count_said(ls_error_message(), text) == 0) {
        test_fail(__FILE__, __LINE__, "%s: \"%s\", not \"%s\"", ls_status_name(got),
                  ls_error_message(), text);
    }
}

static void check_refused(ls_tensor *t, const char *text)
{
    check_text(ls_tensor_status(t), text);
}

/* Hidden activations, invariant: of a norm. */
static ls_tensor *hidden(const setting *s)
{
    return ls_mul(s->x, s->norm);
}

static ls_tensor *f(ls_tensor *x)
{
    return ls_redistribute(x, "tp", LS_INVARIANT, LS_REPLICATED);
}

static ls_tensor *g(ls_tensor *x)
{
    return ls_redistribute(x, "tp", LS_PARTIAL, LS_INVARIANT);
}

/* column, gelu, row: a partial sum */
static ls_tensor *partial(const setting *s)
{
    ls_tensor *h = ls_gelu(ls_linear(f(hidden(s)), s->up, NULL), LS_GELU_ERF);
    CHECK(ls_placement_of(h, "tp") == LS_SHARDED(1));
    ls_tensor *y = ls_linear(h, s->down, NULL);
    CHECK_OK(ls_tensor_status(y));
    CHECK(ls_placement_of(y, "tp") == LS_PARTIAL);
    return y;
}

DIST_TEST(what_composes_is_accepted, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *y = ls_add(g(partial(&s)), s.bias);
        CHECK(ls_placement_of(y, "tp") == LS_INVARIANT);
        CHECK_OK(ls_backward(ls_mean(y)));
    }
    end(&s);
}

DIST_TEST(a_column_layer_without_f, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_linear(hidden(&s), s.up, NULL), "linear: on axis tp argument 1");
        check_refused(ls_linear(hidden(&s), s.up, NULL), SAYS("on axis %s %s; %s"));
        check_refused(ls_linear(hidden(&s), s.up, NULL), SAYS("argument %d (made at %.100s:%d)"));
        check_refused(ls_linear(hidden(&s), s.up, NULL),
                      "is invariant, and argument 2 (parameter up) sharded(0)");
        check_refused(ls_linear(hidden(&s), s.up, NULL),
                      SAYS("its gradient would be this rank's share alone; convert it before: "
                           "ls_redistribute from LS_INVARIANT to LS_REPLICATED"));
    }
    end(&s);
}

DIST_TEST(a_norm_within_the_parallel_region, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_layer_norm(f(hidden(&s)), s.norm, NULL, 1e-5),
                      "argument 2 (parameter norm) is invariant, and argument 1");
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        check_refused(
            ls_layer_norm(h, NULL, NULL, 1e-5),
            SAYS("the operation needs the whole of this dimension; gather it before: "
                 "ls_redistribute to LS_REPLICATED, or use the operation's parallel form"));
        check_refused(
            ls_softmax(h, -1),
            SAYS("the operation needs the whole of this dimension; gather it before: "
                 "ls_redistribute to LS_REPLICATED, or use the operation's parallel form"));
    }
    end(&s);
}

DIST_TEST(a_bias_added_to_a_partial_sum, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_add(partial(&s), s.bias),
                      SAYS("a term added on every rank would count once for each; convert the sum "
                           "before: ls_redistribute from LS_PARTIAL"));
        check_refused(ls_add(partial(&s), s.x),
                      SAYS("a term added on every rank would count once for each; convert the sum "
                           "before: ls_redistribute from LS_PARTIAL"));
        check_refused(ls_add_scalar(partial(&s), 1.0),
                      SAYS("the operation is not linear in it, so its terms do not add up "
                           "afterwards; convert it before: ls_redistribute from LS_PARTIAL"));
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        check_refused(ls_linear(h, s.down, s.bias),
                      SAYS("of a partial sum and what is added to it the latter would count once "
                           "for each rank; add the bias after ls_redistribute from LS_PARTIAL"));
        CHECK_OK(ls_tensor_status(ls_add(partial(&s), partial(&s))));
        CHECK_OK(ls_tensor_status(ls_scale(partial(&s), 0.5)));
    }
    end(&s);
}

DIST_TEST(a_partial_sum_taken_for_whole, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_gelu(partial(&s), LS_GELU_ERF),
                      SAYS("the operation is not linear in it, so its terms do not add up "
                           "afterwards; convert it before: ls_redistribute from LS_PARTIAL"));
        check_refused(ls_mul(partial(&s), partial(&s)),
                      SAYS("a partial sum goes with what is replicated only; convert one of them: "
                           "ls_redistribute"));
        check_refused(ls_linear(partial(&s), s.up, NULL),
                      SAYS("a partial sum goes with what is replicated only; convert one of them: "
                           "ls_redistribute"));
        check_text(ls_backward(ls_mean(partial(&s))),
                   SAYS("add it up before: ls_redistribute from LS_PARTIAL to LS_INVARIANT"));
    }
    end(&s);
}

DIST_TEST(g_twice_and_f_twice, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(g(g(partial(&s))),
                      SAYS("redistribute: on axis %s %s is %s, and the call takes it for %s; "));
        check_refused(f(f(hidden(&s))), SAYS("give what it is, or leave this conversion out"));
        check_refused(
            g(ls_mean(ls_gelu(ls_linear(f(hidden(&s)), s.up, NULL), LS_GELU_ERF))),
            SAYS("a mean or a piece of parts is no part: make it of sums (ls_sum), or say "
                 "by ls_place what it is"));
        check_refused(f(f(hidden(&s))), "is replicated, and the call takes it for invariant");
    }
    end(&s);
}

DIST_TEST(a_product_with_a_part_of_what_is_summed, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_linear(f(hidden(&s)), s.down, NULL),
                      SAYS("the product adds over a dimension of which one has a part and the "
                           "other does not; shard both along it, or neither"));
        check_refused(ls_linear(ls_linear(f(hidden(&s)), s.up, NULL), s.up, NULL),
                      SAYS("the product adds over a dimension of which one has a part and the "
                           "other does not; shard both along it, or neither"));
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        CHECK(ls_placement_of(ls_matmul(h, ls_transpose(h, 0, 1)), "tp") == LS_PARTIAL);
        check_refused(ls_matmul(ls_transpose(h, 0, 1), h),
                      SAYS("their parts do not belong together; bring them to one dimension: "
                           "ls_redistribute"));
    }
    end(&s);
}

DIST_TEST(a_loss_that_varies_where_no_reducer_divides, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        check_text(ls_backward(ls_mean(h)), SAYS("%s: the loss is %s on axis %s, whose ranks would "
                                                 "each start from a part of it; %s"));
        check_text(ls_backward(ls_mean(h)),
                   SAYS("wrap the module by ls_ddp_new over this axis, which divides by the number "
                        "of ranks, or by their weights"));
    }
    end(&s);
}

DIST_TEST(a_wrapper_whose_group_lacks_the_context_axis, 4)
{
    setting s = begin("dp=2,cp=2");
    {
        LS_SCOPE;
        ls_module *ddp = ls_ddp_new(&s.net->base, ls_mesh_group(s.mesh, "dp"), NULL);
        CHECK(ddp != NULL);
        CHECK_OK(ls_place(s.x, "dp", LS_SHARDED(0)));
        CHECK_OK(ls_tensor_status(hidden(&s)));
        CHECK_OK(ls_place(s.x, "cp", LS_VARYING));
        check_refused(hidden(&s), "mul: on axis cp argument 2 (parameter norm) is invariant");
        check_refused(hidden(&s),
                      SAYS("its gradient would be this rank's share alone; wrap the module by "
                           "ls_ddp_new over this axis, or convert the parameter: ls_redistribute "
                           "from LS_INVARIANT to LS_REPLICATED"));
        CHECK(ls_ddp_unwrap(ddp) == &s.net->base);
    }
    end(&s);
}

DIST_TEST(a_sum_over_data_ranks_twice, 2)
{
    setting s = begin("dp=2");
    {
        LS_SCOPE;
        ls_module *ddp = ls_ddp_new(&s.net->base, ls_world(), NULL);
        CHECK(ls_placement_of(s.norm, "dp") == LS_REPLICATED);
        check_refused(ls_redistribute(s.norm, "dp", LS_INVARIANT, LS_REPLICATED),
                      "(parameter norm) is replicated, and the call takes it for invariant");
        CHECK(ls_ddp_unwrap(ddp) == &s.net->base);
        CHECK(ls_placement_of(s.norm, "dp") == LS_INVARIANT);
    }
    end(&s);
}

DIST_TEST(a_wrapper_over_the_parts_of_a_parameter, 4)
{
    setting s = begin("dp=2,tp=2");
    {
        LS_SCOPE;
        CHECK(ls_ddp_new(&s.net->base, ls_world(), NULL) == NULL);
        check_text(LS_ERR_PLACEMENT, "parameter up is sharded(0) on axis tp");
        check_text(
            LS_ERR_PLACEMENT,
            SAYS(
                "and the wrapper would add the gradients of different parts; give it the "
                "group of the other axes, or name the axes of batches in batch_axes (\"\": none)"));
        CHECK_OK(ls_place(s.norm, "tp", LS_REPLICATED));
        CHECK(ls_ddp_new(&s.net->base, ls_mesh_group(s.mesh, "dp"), NULL) == NULL);
        check_text(
            LS_ERR_PLACEMENT,
            SAYS("parameter %s is replicated on axis %s, over which group \"%s\" does not add its "
                 "gradient; give ls_ddp_new a group with this axis, and batch_axes"));
    }
    end(&s);
}

DIST_TEST(a_replicated_parameter_that_nobody_sums, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        CHECK_OK(ls_place(s.norm, "tp", LS_REPLICATED));
        check_refused(
            hidden(&s),
            SAYS("no reducer adds its gradient over this axis; wrap the module by ls_ddp_new over "
                 "a group with it"));
    }
    end(&s);
}

static ls_status copy_forward(ls_function_call *call, ls_tensor *const *in, int n, ls_tensor **out,
                              int m, void *arg)
{
    (void)call, (void)n, (void)m, (void)arg;
    out[0] = ls_clone(in[0]);
    return LS_OK;
}

static ls_status copy_backward(ls_function_call *call, ls_tensor *const *dout, int m,
                               ls_tensor **din, int n)
{
    (void)call, (void)n, (void)m;
    din[0] = ls_clone(dout[0]);
    return LS_OK;
}

static const ls_function silent =
    LS_FUNCTION(.name = "copy", .forward = copy_forward, .backward = copy_backward);
static const ls_function pointwise =
    LS_FUNCTION(.name = "copy", .forward = copy_forward, .backward = copy_backward,
                .placing = LS_PLACING_POINTWISE);

DIST_TEST(parts_that_would_be_repeated_or_misread, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *one = ls_ones(LS_SHAPE(1, WIDTH), LS_FLOAT32);
        ls_tensor *heads = ls_ones(LS_SHAPE(2, 2, 4, 8), LS_FLOAT32);
        ls_tensor *all = ls_ones(LS_SHAPE(2, 2, 4, 8), LS_FLOAT32);
        CHECK_OK(ls_place(one, "tp", LS_SHARDED(0)));
        CHECK_OK(ls_place(heads, "tp", LS_SHARDED(1)));
        check_refused(ls_add(one, s.x),
                      SAYS("its part, of size 1, would be repeated as if it were whole; gather it "
                           "before: ls_redistribute to LS_REPLICATED"));
        check_refused(ls_attention(heads, all, all, NULL),
                      SAYS("queries, keys, values and a mask must be divided alike; "
                           "ls_redistribute one of them"));
    }
    end(&s);
}

/* A table of positions whose first rows each rank takes for those of its part of the sequence. */
DIST_TEST(a_whole_of_the_size_of_a_part, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *part = ls_ones(LS_SHAPE(2, BATCH, WIDTH), LS_FLOAT32);
        ls_tensor *table = f(ls_mul(ls_ones(LS_SHAPE(BATCH, WIDTH), LS_FLOAT32), s.norm));
        CHECK_OK(ls_place(part, "tp", LS_SHARDED(1)));
        CHECK(ls_placement_of(table, "tp") == LS_REPLICATED);
        check_refused(
            ls_add(part, table),
            SAYS("a part and a whole of the part's size do not belong together; shard the "
                 "whole alike: ls_redistribute to LS_SHARDED, ls_context_shard, or of "
                 "positions ls_context_positions"));
        CHECK_OK(ls_tensor_status(ls_add(part, f(s.norm)))); /* along the whole dimension */
        CHECK_OK(ls_tensor_status(ls_add(part, ls_slice(table, 0, 0, 1))));
        CHECK_OK(ls_tensor_status(ls_add(part, ls_ones(LS_SHAPE(BATCH, WIDTH), LS_FLOAT32))));
    }
    end(&s);
}

DIST_TEST(placements_that_are_said_are_checked, 2)
{
    CHECK_STATUS(ls_place(ls_ones(LS_SHAPE(2), LS_FLOAT32), "tp", LS_VARYING), LS_ERR_STATE);
    CHECK_SAYS(
        ls_error_message(),
        "%s: no mesh is in force; make one with ls_mesh_new, or put it in force with ls_mesh_use");
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        CHECK_STATUS(ls_place(s.x, "dp", LS_VARYING), LS_ERR_NOT_FOUND);
        CHECK_SAYS(ls_error_message(), "%s: the mesh in force has no axis \"%.40s\"; it has %s");
        CHECK_CONTAINS(ls_error_message(), "no axis \"dp\"; it has tp");
        CHECK_STATUS(ls_place(s.x, "tp", LS_SHARDED(2)), LS_ERR_INVALID);
        CHECK_SAYS(
            ls_error_message(),
            "place: %s of a tensor of %s; give one of ls_placement, and a dimension that it has");
        CHECK_STATUS(ls_place(s.x, "tp", LS_SHARDED(-3)), LS_ERR_INVALID);
        CHECK_STATUS(ls_place(s.x, "tp", 5), LS_ERR_INVALID);
        CHECK_STATUS(ls_place(s.x, "tp", -1), LS_ERR_INVALID);
        check_text(ls_place(hidden(&s), "tp", LS_SHARDED(0)),
                   SAYS("place: the tensor is %s on axis %s, and operations made it so; convert it "
                        "with ls_redistribute"));
        CHECK_STATUS(ls_tensor_status(ls_redistribute(s.x, "tp", LS_REPLICATED, LS_SHARDED(3))),
                     LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "redistribute: %s of %s; give one of ls_placement, and a "
                                       "dimension that the tensor has");
        check_refused(
            ls_redistribute(s.x, "tp", LS_REPLICATED, LS_VARYING),
            SAYS("redistribute: there is no conversion from %s to %s; placement.h lists them, and "
                 "ls_context_gather joins parts in zigzag order"));
        CHECK_STATUS(ls_tensor_status(ls_redistribute(ls_ones(LS_SHAPE(3), LS_FLOAT32), "tp",
                                                      LS_REPLICATED, LS_SHARDED(0))),
                     LS_ERR_INVALID);
        CHECK_SAYS(ls_error_message(), "redistribute: dimension %d of %s for %d ranks of axis %s; "
                                       "give a size that %d divides, as %lld");
    }
    end(&s);
}

DIST_TEST(users_operations_say_what_they_make_of_placements, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        CHECK(ls_placement_of(ls_function_apply(&silent, h, NULL), "tp") == LS_VARYING);
        CHECK(ls_placement_of(ls_function_apply(&pointwise, h, NULL), "tp") == LS_SHARDED(1));
        CHECK(ls_placement_of(ls_function_apply(&pointwise, hidden(&s), NULL), "tp") ==
              LS_INVARIANT);
        check_refused(ls_function_apply(&pointwise, partial(&s), NULL),
                      SAYS("the operation is not linear in it, so its terms do not add up "
                           "afterwards; convert it before: ls_redistribute from LS_PARTIAL"));
        check_refused(ls_function_apply(&silent, partial(&s), NULL), "copy: on axis tp");
        ls_tensor *many[5] = {h, h, h, h, h}, *out = NULL;
        CHECK_STATUS(ls_function_apply_many(&pointwise, many, 5, &out, 1, NULL),
                     LS_ERR_UNSUPPORTED);
        CHECK_SAYS(ls_error_message(), "function \"%s\": %d inputs, and placements follow at most "
                                       "%d; place its results by LS_PLACING_BY_CALLER");
        check_refused(ls_function_apply(&silent, hidden(&s), NULL),
                      SAYS("%s: on axis %s %s is invariant, and nothing says what the operation "
                           "makes of it; set ls_function.placing, or convert it before: "
                           "ls_redistribute from LS_INVARIANT to LS_REPLICATED"));
    }
    end(&s);
}

static ls_tensor *without_f(ls_tensor *x, void *arg)
{
    return ls_linear(x, ((setting *)arg)->up, NULL);
}

DIST_TEST(a_recomputed_function_is_checked_in_its_first_run, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_recompute_call(without_f, hidden(&s), &s), "is invariant, and argument 2");
        ls_tensor *h = ls_recompute_call(without_f, f(hidden(&s)), &s);
        CHECK(ls_placement_of(h, "tp") == LS_SHARDED(1));
    }
    end(&s);
}

DIST_TEST(without_gradients_equal_is_equal, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        LS_NO_GRAD;
        ls_tensor *h = ls_linear(hidden(&s), s.up, NULL); /* no f is needed */
        CHECK(ls_placement_of(h, "tp") == LS_SHARDED(1));
        check_refused(ls_add(ls_linear(h, s.down, NULL), s.bias),
                      SAYS("a term added on every rank would count once for each; convert the sum "
                           "before: ls_redistribute from LS_PARTIAL"));
    }
    end(&s);
}

DIST_TEST(a_mesh_that_is_freed_before_backward, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *loss = ls_mean(g(partial(&s)));
        ls_tensor *q = ls_ones(LS_SHAPE(1, 1, 2, 8), LS_FLOAT32);
        CHECK_OK(ls_place(q, "tp", LS_SHARDED(2)));
        (void)ls_set_requires_grad(q, true);
        ls_tensor *seen = ls_ring_attention(q, q, q, "tp", NULL);
        ls_tensor *sum = ls_redistribute(ls_sum(seen), "tp", LS_PARTIAL, LS_INVARIANT);
        CHECK_OK(ls_tensor_status(sum));
        CHECK_OK(ls_mesh_free(s.mesh));
        s.mesh = NULL;
        CHECK_STATUS(ls_backward(loss), LS_ERR_STATE);
        CHECK_SAYS(ls_error_message(), "%s: the mesh of the forward pass was freed; call "
                                       "ls_backward before ls_mesh_free");
        CHECK_STATUS(ls_backward(sum), LS_ERR_STATE);
        CHECK_CONTAINS(ls_error_message(), "ring_attention: the mesh of the forward pass");
    }
    end(&s);
}

/* The operations of an evaluation are like those of training, so they would pair with them, and
 * every rank would go on with sums of two different passes. */
static void check_told(const setting *s, bool evaluates)
{
    LS_SCOPE;
    const bool before = ls_set_grad_mode(!evaluates);
    ls_tensor *y = ls_add(g(partial(s)), s->bias);
    (void)ls_set_grad_mode(before);
    CHECK_STATUS(ls_tensor_status(y), LS_ERR_MISMATCH);
    CHECK_SAYS(ls_error_message(), ", without gradients");
    CHECK_CONTAINS(ls_error_message(), "the tags differ");
}

DIST_TEST(an_evaluation_on_one_rank_is_told, 2)
{
    setting s = begin("tp=2");
    check_told(&s, ls_rank() == 0);
    ls_free(s.x);
    ls_module_free(&s.net->base);
    (void)ls_mesh_free(s.mesh); /* its group has failed */
}

/* One rank is a forward pass ahead. */
DIST_TEST(a_forward_pass_on_one_rank_is_told, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *loss = ls_mean(g(partial(&s)));
        CHECK_OK(ls_tensor_status(loss));
        const ls_status status =
            ls_rank() == 0 ? ls_tensor_status(g(partial(&s))) : ls_backward(loss);
        CHECK_STATUS(status, LS_ERR_MISMATCH);
        CHECK_CONTAINS(ls_error_message(), "partial to invariant, backward)");
    }
    ls_free(s.x);
    ls_module_free(&s.net->base);
    (void)ls_mesh_free(s.mesh);
}

DIST_TEST(shapes_carry_what_is_sharded, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *h = ls_ones(LS_SHAPE(2, 6, 8), LS_FLOAT32);
        CHECK_OK(ls_place(h, "tp", LS_SHARDED(-1)));
        ls_tensor *heads = ls_reshape(h, LS_SHAPE(2, 6, 4, 2));
        CHECK(ls_placement_of(heads, "tp") == LS_SHARDED(2));
        ls_tensor *front = ls_transpose(heads, 1, 2);
        CHECK(ls_placement_of(front, "tp") == LS_SHARDED(1));
        ls_tensor *seen = ls_attention(front, front, front, NULL);
        CHECK(ls_placement_of(seen, "tp") == LS_SHARDED(1));
        ls_tensor *back = ls_reshape(ls_transpose(seen, 1, 2), LS_SHAPE(2, 6, 8));
        CHECK(ls_placement_of(back, "tp") == LS_SHARDED(2));
        CHECK(ls_placement_of(ls_reshape(h, LS_SHAPE(12, 8)), "tp") == LS_SHARDED(1));
        CHECK(ls_placement_of(ls_reshape(h, LS_SHAPE(96)), "tp") == LS_VARYING);
        CHECK(ls_placement_of(ls_slice(h, 2, 0, 4), "tp") == LS_VARYING);
        CHECK(ls_placement_of(ls_slice(h, 1, 0, 4), "tp") == LS_SHARDED(2));
        CHECK(ls_placement_of(ls_sum_dim(h, 0, false), "tp") == LS_SHARDED(1));
        CHECK(ls_placement_of(ls_sum_dim(h, 2, false), "tp") == LS_PARTIAL);
        CHECK(ls_placement_of(ls_sum(h), "tp") == LS_PARTIAL);
        CHECK(ls_placement_of(ls_mean(h), "tp") == LS_VARYING);
        CHECK(ls_placement_of(ls_concat((ls_tensor *[]){h, h, h}, 3, 0), "tp") == LS_SHARDED(2));
        CHECK(ls_placement_of(ls_concat((ls_tensor *[]){h, h, h}, 3, 2), "tp") == LS_VARYING);
        CHECK(ls_placement_of(ls_expand(ls_slice(h, 0, 0, 1), LS_SHAPE(5, 6, 8)), "tp") ==
              LS_SHARDED(2));
        check_refused(
            ls_argmax(h, 2),
            SAYS("the operation needs the whole of this dimension; gather it before: "
                 "ls_redistribute to LS_REPLICATED, or use the operation's parallel form"));
        check_refused(
            ls_cumsum(h, 2),
            SAYS("the operation needs the whole of this dimension; gather it before: "
                 "ls_redistribute to LS_REPLICATED, or use the operation's parallel form"));
    }
    end(&s);
}

TEST_MAIN
