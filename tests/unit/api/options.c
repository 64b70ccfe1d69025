/* Structs whose size the caller states, each of them: a size that no struct can have is refused in
 * words, a shorter struct of an older header and a longer one of a newer header work. A new struct
 * belongs into the table here or in filled.c; tests/tidy looks for it. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>
#include <lockstep/models/bert.h>
#include <lockstep/models/gpt.h>
#include <lockstep/models/gpt2.h>
#include <lockstep/models/lstm.h>
#include <lockstep/models/vit.h>

#include "scratch.h"
#include "test.h"

/* ---- a use of every option struct: LS_OK where the options are good -------------------------- */

static ls_tensor *image(void)
{
    return ls_ones(LS_SHAPE(2, 2, 4, 4), LS_FLOAT32);
}

static ls_status made_optim(ls_module *net, ls_optim *optim)
{
    const ls_status status = optim != NULL ? LS_OK : LS_ERR_INVALID;
    ls_optim_free(optim);
    ls_module_free(net);
    return status;
}

#define USE_OPTIM(name)                                                                            \
    static ls_status use_##name(const ls_##name##_options *o)                                      \
    {                                                                                              \
        ls_module *net = ls_linear_new(2, 2, NULL);                                                \
        return made_optim(net, ls_##name##_new(net, o));                                           \
    }
USE_OPTIM(sgd)
USE_OPTIM(adam)
USE_OPTIM(adamw)

static ls_status use_schedule(const ls_schedule_options *o)
{
    return ls_schedule_lr(0, o) > 0.0 ? LS_OK : ls_error_status();
}

static ls_status use_optim_group(const ls_optim_group_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    ls_optim *optim = ls_sgd_new(net, NULL);
    const ls_status status = ls_optim_add_group(optim, ls_select_vectors, NULL, o);
    LS_TRY(made_optim(net, optim));
    return status;
}

static ls_status use_clip_grad_norm(const ls_clip_grad_norm_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    const ls_status status = ls_clip_grad_norm(net, 1.0, o, NULL);
    ls_module_free(net);
    return status;
}

static ls_status made_module(ls_module *made)
{
    const ls_status status = made != NULL ? ls_module_status(made) : LS_ERR_INVALID;
    ls_module_free(made);
    return status;
}

static ls_status use_linear(const ls_linear_options *o)
{
    return made_module(ls_linear_new(2, 2, o));
}

static ls_status use_layer_norm(const ls_layer_norm_options *o)
{
    return made_module(ls_layer_norm_new(2, o));
}

static ls_status use_conv2d_layer(const ls_conv2d_layer_options *o)
{
    return made_module(ls_conv2d_new(2, 2, 3, o));
}

static ls_status use_conv1d_layer(const ls_conv1d_layer_options *o)
{
    return made_module(ls_conv1d_new(2, 2, 3, o));
}

static ls_status use_conv_transpose2d_layer(const ls_conv_transpose2d_layer_options *o)
{
    return made_module(ls_conv_transpose2d_new(2, 2, 3, o));
}

static ls_status use_group_norm(const ls_group_norm_options *o)
{
    return made_module(ls_group_norm_new(2, 4, o));
}

static ls_status use_ddp(const ls_ddp_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL), *ddp = ls_ddp_new(net, ls_world(), o);
    const ls_status status = ddp != NULL ? LS_OK : LS_ERR_INVALID;
    ls_module_free(ddp != NULL ? ddp : net);
    return status;
}

static ls_status use_ddp_average(const ls_ddp_average_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    const ls_status status = ls_ddp_average(net, o);
    ls_module_free(net);
    return status;
}

static ls_status use_ddp_join(const ls_ddp_join_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    bool more;
    const ls_status status = ls_ddp_join(net, o, &more);
    ls_module_free(net);
    return status;
}

static ls_status use_attention(const ls_attention_options *o)
{
    return ls_tensor_status(ls_attention(image(), image(), image(), o));
}

static ls_status use_cross_entropy(const ls_cross_entropy_options *o)
{
    ls_tensor *logits = ls_zeros(LS_SHAPE(2, 3), LS_FLOAT32);
    return ls_tensor_status(ls_cross_entropy(logits, ls_zeros(LS_SHAPE(2), LS_INT32), o));
}

static ls_status use_conv2d(const ls_conv2d_options *o)
{
    ls_tensor *weight = ls_ones(LS_SHAPE(2, 2, 3, 3), LS_FLOAT32);
    return ls_tensor_status(ls_conv2d(image(), weight, NULL, o));
}

static ls_status use_conv1d(const ls_conv1d_options *o)
{
    ls_tensor *x = ls_ones(LS_SHAPE(2, 2, 4), LS_FLOAT32);
    return ls_tensor_status(ls_conv1d(x, ls_ones(LS_SHAPE(2, 2, 3), LS_FLOAT32), NULL, o));
}

static ls_status use_conv_transpose2d(const ls_conv_transpose2d_options *o)
{
    ls_tensor *weight = ls_ones(LS_SHAPE(2, 2, 3, 3), LS_FLOAT32);
    return ls_tensor_status(ls_conv_transpose2d(image(), weight, NULL, o));
}

static ls_status use_upsample(const ls_upsample_options *o)
{
    return ls_tensor_status(ls_upsample(image(), o));
}

static ls_status use_kl_div(const ls_kl_div_options *o)
{
    return ls_tensor_status(ls_kl_div(image(), image(), o));
}

static ls_status use_pipeline(const ls_pipeline_options *o)
{
    ls_pipeline *pipeline = NULL;
    ls_module *net = ls_linear_new(2, 2, NULL);
    const ls_status status = ls_pipeline_new(net, ls_world(), o, &pipeline);
    (void)ls_pipeline_free(pipeline);
    ls_module_free(net);
    return status;
}

static ls_status use_profile(const ls_profile_options *o)
{
    ls_module *net = ls_linear_new(4, 4, NULL);
    ls_tensor *x = image(), *y = ls_zeros(LS_SHAPE(2, 2, 4), LS_INT32);
    const ls_status status = ls_profile_write(net, &x, 1, y, o, scratch_at("profile.json"));
    ls_module_free(net);
    return status;
}

static ls_status use_pool2d(const ls_pool2d_options *o)
{
    LS_TRY(ls_tensor_status(ls_avg_pool2d(image(), o)));
    return ls_tensor_status(ls_max_pool2d(image(), o));
}

static ls_status use_batch_norm(const ls_batch_norm_options *o)
{
    return ls_tensor_status(ls_batch_norm(image(), NULL, NULL, o));
}

static ls_tensor *square(ls_tensor **inputs, void *arg)
{
    (void)arg;
    return ls_mul(inputs[0], inputs[0]);
}

static ls_status use_gradcheck(const ls_gradcheck_options *o)
{
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true);
    return ls_gradcheck(square, &x, 1, NULL, o);
}

static ls_status use_backward_part(const ls_backward_part_options *o)
{
    ls_tensor *x = ls_set_requires_grad(ls_ones(LS_SHAPE(3), LS_FLOAT32), true), *y = ls_sum(x);
    LS_TRY(ls_backward_input_part(&y, NULL, 1, o));
    return ls_backward_weight_part();
}

static ls_status use_group(const ls_group_options *o)
{
    ls_group *group = NULL;
    LS_TRY(ls_group_create(ls_world(), o, &group));
    return ls_group_free(group);
}

static ls_status use_collective(const ls_collective_options *o)
{
    float one = 1.0f;
    LS_TRY(ls_all_reduce(ls_world(), &one, &one, 1, LS_FLOAT32, LS_SUM, o, NULL));
    LS_TRY(ls_monitored_barrier(ls_world(), 0, o));
    void *bytes = &one;
    size_t length = sizeof one;
    return ls_broadcast_bytes(ls_world(), &bytes, &length, 0, o);
}

static ls_status use_reducer(const ls_reducer_options *o)
{
    ls_reducer_param param = {.name = "w", .count = 4, .dtype = LS_FLOAT32};
    ls_reducer *r = NULL;
    LS_TRY(ls_reducer_new(ls_world(), &param, 1, o, &r));
    return ls_reducer_free(r);
}

static ls_status use_reducer_begin(const ls_reducer_begin_options *o)
{
    ls_reducer_param param = {.name = "w", .count = 4, .dtype = LS_FLOAT32};
    ls_reducer *r = NULL;
    LS_TRY(ls_reducer_new(ls_world(), &param, 1, NULL, &r));
    const ls_status status = ls_reducer_begin(r, o);
    if (status == LS_OK) {
        CHECK_OK(ls_reducer_ready(r, 0, NULL));
        CHECK_OK(ls_reducer_wait(r));
    }
    CHECK_OK(ls_reducer_free(r));
    return status;
}

static ls_status use_checkpoint(const ls_checkpoint_options *o)
{
    ls_checkpoint *c = NULL;
    LS_TRY(ls_checkpoint_new(scratch_at("checkpoint"), ls_world(), o, &c));
    return ls_checkpoint_free(c);
}

static ls_status use_safetensors(const ls_safetensors_options *o)
{
    ls_module *net = ls_linear_new(2, 2, NULL);
    const char *path = scratch_at("weights.safetensors");
    CHECK_OK(ls_module_save_safetensors(net, path, NULL));
    const ls_status status = ls_module_load_safetensors(net, path, o);
    CHECK_INT(ls_module_save_safetensors(net, path, o), status);
    ls_module_free(net);
    return status;
}

static ls_status made_dataset(ls_dataset *dataset)
{
    const ls_status status = LS_STATUS_OF(dataset);
    ls_dataset_free(dataset);
    return status;
}

static ls_status use_text(const ls_text_options *o)
{
    static const char text[4096] = "text";
    return made_dataset(ls_text_dataset_new(scratch_write("text", text, sizeof text), o));
}

static ls_status use_tokens(const ls_tokens_options *o)
{
    static const uint16_t tokens[1024] = {1, 2, 3};
    return made_dataset(ls_tokens_dataset_new(scratch_write("t.bin", tokens, sizeof tokens), o));
}

static ls_status use_transform(const ls_transform_options *o)
{
    ls_dataset *images = NULL;
    CHECK_OK(images = ls_tensor_dataset_new(image(), ls_zeros(LS_SHAPE(2), LS_INT32)));
    return made_dataset(ls_transform_dataset_new(images, o));
}

static ls_status use_sampler(const ls_sampler_options *o)
{
    ls_sampler *sampler = NULL;
    const ls_status status = LS_STATUS_OF(sampler = ls_sampler_new(10, o));
    ls_sampler_free(sampler);
    return status;
}

static ls_status use_loader(const ls_loader_options *o)
{
    ls_dataset *images = NULL;
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    CHECK_OK(images = ls_tensor_dataset_new(image(), ls_zeros(LS_SHAPE(2), LS_INT32)));
    CHECK_OK(sampler = ls_sampler_new(2, NULL));
    const ls_status status = LS_STATUS_OF(loader = ls_loader_new(images, sampler, o));
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(images);
    return status;
}

static ls_status use_init(const ls_init_options *o)
{
    CHECK_OK(ls_finalize());
    const ls_status status = ls_init(o);
    if (status != LS_OK) {
        char text[2048];
        (void)snprintf(text, sizeof text, "%s", ls_error_message());
        CHECK_OK(ls_init(NULL));
        return ls_fail(status, "%s", text);
    }
    return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define BYTES_MAX 512

typedef ls_status (*use_fn)(const void *options);

typedef struct row {
    const char *name;
    size_t bytes;       /* of the struct in these headers */
    size_t least;       /* of the shortest one with which the use below succeeds */
    const void *values; /* with which it succeeds */
    ls_status (*use)(const void *options);
} row;

#define LEAST (2 * sizeof(size_t))
/* name, least bytes, fields that the use needs beside the defaults */
#define ROWS(X)                                                                                    \
    X(adam, LEAST, )                                                                               \
    X(adamw, LEAST, )                                                                              \
    X(attention, LEAST, )                                                                          \
    X(backward_part, LEAST, )                                                                      \
    X(batch_norm, offsetof(ls_batch_norm_options, momentum), .training = true)                     \
    X(checkpoint, LEAST, )                                                                         \
    X(clip_grad_norm, LEAST, )                                                                     \
    X(collective, LEAST, )                                                                         \
    X(conv1d, LEAST, )                                                                             \
    X(conv1d_layer, LEAST, )                                                                       \
    X(conv2d, LEAST + sizeof(int64_t), )                                                           \
    X(conv2d_layer, LEAST, )                                                                       \
    X(conv_transpose2d, LEAST + sizeof(int64_t), )                                                 \
    X(conv_transpose2d_layer, LEAST, )                                                             \
    X(cross_entropy, LEAST, )                                                                      \
    X(ddp, LEAST, )                                                                                \
    X(ddp_average, LEAST, )                                                                        \
    X(ddp_join, LEAST, )                                                                           \
    X(gradcheck, LEAST, )                                                                          \
    X(group, LEAST, )                                                                              \
    X(group_norm, LEAST, )                                                                         \
    X(init, LEAST, )                                                                               \
    X(kl_div, LEAST, )                                                                             \
    X(layer_norm, LEAST, )                                                                         \
    X(linear, LEAST, )                                                                             \
    X(loader, LEAST, )                                                                             \
    X(optim_group, LEAST, )                                                                        \
    X(pipeline, LEAST, )                                                                           \
    X(pool2d, offsetof(ls_pool2d_options, stride), .kernel = {2, 2})                               \
    X(profile, LEAST, )                                                                            \
    X(reducer, LEAST, )                                                                            \
    X(reducer_begin, LEAST, )                                                                      \
    X(safetensors, LEAST, )                                                                        \
    X(sampler, LEAST, )                                                                            \
    X(schedule, LEAST + sizeof(double), )                                                          \
    X(sgd, LEAST, )                                                                                \
    X(text, LEAST, )                                                                               \
    X(tokens, LEAST, )                                                                             \
    X(transform, LEAST, )                                                                          \
    X(upsample, offsetof(ls_upsample_options, scale), .output = {8, 8})

#define DEFINE_USE(name, least, ...)                                                               \
    static ls_status any_##name(const void *options)                                               \
    {                                                                                              \
        return use_##name(options);                                                                \
    }
ROWS(DEFINE_USE)

/* Calls body with every row. */
static void each_row(void (*body)(const row *r))
{
#define CALL(name, shortest, ...)                                                                  \
    body(&(row){"ls_" #name, sizeof(ls_##name##_options), shortest,                                \
                LS_OPTIONS(ls_##name##_options, __VA_ARGS__), any_##name});
    ROWS(CALL)
}

static void begin(void)
{
    scratch_begin();
    CHECK_OK(ls_init(NULL));
}

static void end(void)
{
    CHECK_OK(ls_finalize());
    scratch_end();
}

/* The row's values in `known` bytes that state `size`; every byte behind them is garbage. */
static ls_status use_with(const row *r, size_t known, size_t size)
{
    LS_SCOPE;
    _Alignas(16) char options[BYTES_MAX];
    CHECK(r->bytes <= sizeof options);
    memset(options, 0xa5, sizeof options);
    memcpy(options, r->values, known);
    memcpy(options, &size, sizeof size);
    return r->use(options);
}

static void check_refused(const row *r)
{
    char expected[128];
    (void)snprintf(expected, sizeof expected, "LS_OPTIONS(%s_options, …)", r->name);
    const size_t sizes[] = {0, 1, 4, sizeof(size_t), r->bytes + 4, 4104, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const ls_status status = use_with(r, r->bytes, sizes[i]);
        if (status != LS_ERR_INVALID) {
            test_fail(__FILE__, __LINE__, "%s_options of size %zu: %s", r->name, sizes[i],
                      ls_status_name(status));
        }
        CHECK_CONTAINS(ls_error_message(),
                       sizes[i] == 0 ? "options->size is 0; fill" : "_options has ");
        CHECK_CONTAINS(ls_error_message(), expected);
        (void)snprintf(expected, sizeof expected, "%s_defaults()", r->name);
        CHECK_CONTAINS(ls_error_message(), expected);
        (void)snprintf(expected, sizeof expected, "LS_OPTIONS(%s_options, …)", r->name);
    }
}

static void check_works(const row *r)
{
    const size_t sizes[] = {r->least, r->bytes, r->bytes + 64};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t known = sizes[i] < r->bytes ? sizes[i] : r->bytes;
        const ls_status status = use_with(r, known, sizes[i]);
        if (status != LS_OK) {
            test_fail(__FILE__, __LINE__, "%s_options of %zu bytes: %s", r->name, sizes[i],
                      ls_error_message());
        }
    }
}

TEST(a_size_that_no_struct_can_have_is_refused_in_words)
{
    begin();
    each_row(check_refused);
    end();
}

TEST(shorter_structs_of_older_headers_and_longer_ones_of_newer_work)
{
    begin();
    each_row(check_works);
    end();
}

/* The mistake that C makes easy: a plain initialiser, without LS_OPTIONS. */
TEST(an_optimizer_without_a_size_does_not_train_with_another_rate)
{
    begin();
    ls_module *net = ls_linear_new(2, 2, NULL);
    const ls_sgd_options o = {.lr = 0.5};
    CHECK(ls_sgd_new(net, &o) == NULL);
    CHECK_CONTAINS(ls_error_message(), "ls_sgd_new: options->size is 0; fill options with "
                                       "LS_OPTIONS(ls_sgd_options, …) or start from "
                                       "ls_sgd_defaults()");
    ls_module_free(net);
    end();
}

/* The models' structs follow the same rule: by ls_options_read, as a program's own may. */
TEST(options_of_models_are_refused_alike)
{
    begin();
#define REFUSED(name)                                                                              \
    {                                                                                              \
        const ls_##name##_options o = {.layers = 1};                                               \
        CHECK(ls_##name##_new(&o) == NULL);                                                        \
        CHECK_CONTAINS(ls_error_message(), "ls_" #name "_new: options->size is 0");                \
        CHECK_INT(ls_##name##_defaults().size, sizeof o);                                          \
    }
    REFUSED(bert)
    REFUSED(gpt)
    REFUSED(gpt2)
    REFUSED(lstm_model)
    REFUSED(vit)
    end();
}

/* ---- defaults -------------------------------------------------------------------------------- */

TEST(defaults_by_function_by_macro_and_by_name)
{
#define SIZED(name, least, ...)                                                                    \
    {                                                                                              \
        ls_##name##_options named = {.size = sizeof named};                                        \
        CHECK_INT(ls_##name##_defaults().size, sizeof named);                                      \
        CHECK_OK(ls_options_defaults("ls_" #name "_options", &named));                             \
    }
    ROWS(SIZED)
#define SAME(name, field)                                                                          \
    {                                                                                              \
        ls_##name##_options named = {.size = sizeof named};                                        \
        CHECK_OK(ls_options_defaults("ls_" #name "_options", &named));                             \
        const double function = (double)ls_##name##_defaults().field;                              \
        CHECK(function != 0.0);                                                                    \
        CHECK_NEAR(named.field, function, 0.0);                                                    \
        CHECK_NEAR(LS_OPTIONS(ls_##name##_options, .size = sizeof named)->field, function, 0.0);   \
    }
    SAME(sgd, lr)
    SAME(adamw, weight_decay)
    SAME(optim_group, weight_decay)
    SAME(collective, factor)
    SAME(conv2d, dilation[1])
    SAME(checkpoint, keep)
    SAME(cross_entropy, ignore_index)
    SAME(ddp, broadcast_buffers)
    SAME(text, held_out)
    CHECK_STATUS(ls_options_defaults("ls_soap_options", NULL), LS_ERR_NOT_FOUND);
    CHECK_STATUS(ls_options_defaults("ls_sgd_options", &(ls_sgd_options){0}), LS_ERR_INVALID);
}

/* ---- structs in lists ------------------------------------------------------------------------ */

/* Structs in lists, and the table of functions of a visitor. */
TEST(list_items_visitors_and_batches_state_their_size)
{
    begin();
    ls_module *net = ls_linear_new(2, 2, NULL);
    const char *path = scratch_at("item.safetensors");
    ls_checkpoint_item item = LS_ITEM("", net);
    item.size = 0;
    CHECK_STATUS(ls_safetensors_save(path, &item, 1, NULL), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "items[0].size is 0; fill items with LS_ITEM");
    /* of a newer header: longer, and so is the distance to the next */
    struct {
        ls_checkpoint_item item;
        size_t newer;
    } longer[2] = {{LS_ITEM("a", net), 7}, {LS_ITEM("b", net), 7}};
    longer[0].item.size = longer[1].item.size = sizeof longer[0];
    CHECK_OK(ls_safetensors_save(path, &longer[0].item, 2, NULL));
    CHECK_OK(ls_safetensors_load(path, &longer[0].item, 2, NULL));
    CHECK_STATUS(ls_module_state(net, "", &(ls_state_visitor){0}), LS_ERR_INVALID);
    CHECK_CONTAINS(ls_error_message(), "ls_module_state: visitor->size is 0");
    ls_module_free(net);
    end();
}

static void fill_batch(size_t size, bool good)
{
    ls_dataset *images = ls_tensor_dataset_new(image(), ls_zeros(LS_SHAPE(2), LS_INT32));
    ls_sampler *sampler = ls_sampler_new(2, NULL);
    ls_loader *loader = ls_loader_new(images, sampler, NULL);
    struct {
        ls_batch batch;
        size_t newer;
    } b = {.batch = {.size = size}, .newer = 7};
    CHECK_INT(ls_loader_next(loader, &b.batch), good);
    CHECK(good || strstr(ls_error_message(), "ls_loader_next: out->size is") != NULL);
    CHECK_STATUS(ls_loader_status(loader), good ? LS_OK : LS_ERR_INVALID);
    CHECK_INT(b.newer, 7);
    CHECK(!good || (b.batch.x != NULL && b.batch.size == size));
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(images);
}

TEST(batches_are_filled_as_far_as_they_reach)
{
    begin();
    fill_batch(sizeof(ls_batch), true);
    fill_batch(2 * sizeof(size_t), true);
    fill_batch(sizeof(ls_batch) + sizeof(size_t), true);
    fill_batch(0, false);
    fill_batch(4104, false);
    end();
}

TEST_MAIN
