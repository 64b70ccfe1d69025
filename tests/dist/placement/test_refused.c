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
    if (got != LS_ERR_PLACEMENT || strstr(ls_error_message(), text) == NULL) {
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
        check_refused(ls_linear(hidden(&s), s.up, NULL),
                      "is invariant, and argument 2 (parameter up) sharded(0); its gradient would "
                      "be this rank's share alone; convert it before: ls_redistribute from "
                      "LS_INVARIANT to LS_REPLICATED");
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
        check_refused(ls_layer_norm(h, NULL, NULL, 1e-5), "needs the whole of this dimension");
        check_refused(ls_softmax(h, -1), "needs the whole of this dimension");
    }
    end(&s);
}

DIST_TEST(a_bias_added_to_a_partial_sum, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_add(partial(&s), s.bias), "would count once for each");
        check_refused(ls_add(partial(&s), s.x), "would count once for each");
        check_refused(ls_add_scalar(partial(&s), 1.0), "not linear");
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        check_refused(ls_linear(h, s.down, s.bias), "add the bias after ls_redistribute");
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
        check_refused(ls_gelu(partial(&s), LS_GELU_ERF), "is partial; the operation is not linear");
        check_refused(ls_mul(partial(&s), partial(&s)), "goes with what is replicated only");
        check_refused(ls_linear(partial(&s), s.up, NULL), "goes with what is replicated only");
        check_text(ls_backward(ls_mean(partial(&s))), "the loss is partial on axis tp");
    }
    end(&s);
}

DIST_TEST(g_twice_and_f_twice, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(g(g(partial(&s))), "is invariant, and the call takes it for partial");
        check_refused(f(f(hidden(&s))), "is replicated, and the call takes it for invariant");
    }
    end(&s);
}

DIST_TEST(a_product_with_a_part_of_what_is_summed, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        check_refused(ls_linear(f(hidden(&s)), s.down, NULL), "shard both along it, or neither");
        check_refused(ls_linear(ls_linear(f(hidden(&s)), s.up, NULL), s.up, NULL),
                      "shard both along it, or neither");
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        CHECK(ls_placement_of(ls_matmul(h, ls_transpose(h, 0, 1)), "tp") == LS_PARTIAL);
        check_refused(ls_matmul(ls_transpose(h, 0, 1), h), "their parts do not belong together");
    }
    end(&s);
}

DIST_TEST(a_loss_that_varies_where_no_reducer_divides, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        ls_tensor *h = ls_linear(f(hidden(&s)), s.up, NULL);
        check_text(ls_backward(ls_mean(h)), "the loss is varying on axis tp");
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
        check_refused(hidden(&s), "wrap the module by ls_ddp_new over this axis");
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
        check_text(LS_ERR_PLACEMENT, "parameter up is sharded(0) on axis tp, and the wrapper would "
                                     "add the gradients of different parts");
        CHECK_OK(ls_place(s.norm, "tp", LS_REPLICATED));
        CHECK(ls_ddp_new(&s.net->base, ls_mesh_group(s.mesh, "dp"), NULL) == NULL);
        check_text(LS_ERR_PLACEMENT, "parameter norm is replicated on axis tp, over which group");
    }
    end(&s);
}

DIST_TEST(a_replicated_parameter_that_nobody_sums, 2)
{
    setting s = begin("tp=2");
    {
        LS_SCOPE;
        CHECK_OK(ls_place(s.norm, "tp", LS_REPLICATED));
        check_refused(hidden(&s), "no reducer adds its gradient over this axis");
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
        check_refused(ls_function_apply(&pointwise, partial(&s), NULL), "copy: on axis tp");
        check_refused(ls_function_apply(&silent, partial(&s), NULL), "copy: on axis tp");
        check_refused(ls_function_apply(&silent, hidden(&s), NULL), "copy: on axis tp");
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
        check_refused(ls_add(ls_linear(h, s.down, NULL), s.bias), "would count once for each");
    }
    end(&s);
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
        check_refused(ls_argmax(h, 2), "needs the whole of this dimension");
        check_refused(ls_cumsum(h, 2), "needs the whole of this dimension");
    }
    end(&s);
}

TEST_MAIN
