/* SPDX-License-Identifier: Apache-2.0 */
/* After the first steps a training step asks the system for no memory at all: every allocation
 * function of libc is counted, on all threads of the rank, but for the calls of other libraries:
 * the matrix library (oneDNN takes a buffer per product, and objects by the C++ library) and an
 * MPI. MPICH takes a table in each MPI_Testsome of more than 64 requests, which are 3 ranks and
 * more; Open MPI's lists of fragments grow at times. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <lockstep/lockstep.h>

#include "test.h"

static _Atomic long allocations;
static _Atomic bool counting; /* from the last warm-up step on */
static long shown;            /* of the allocations that are counted, with their callers */

/* Between hosts the choice of programs is measured behind the first operations, and what comes of
 * it is written down once, at a moment that nobody can know: after a few steps or after many. */
__attribute__((constructor)) static void without_tuning(void)
{
    setenv("LOCKSTEP_TUNE", "off", 1);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static bool is_in(const void *code, const char *library)
{
    Dl_info info;
    return dladdr(code, &info) != 0 && strstr(info.dli_fname, library) != NULL;
}

/* Clang's OpenMP takes memory for each parallel region. Those of the matrix library are its own. */
static bool is_region_of_onednn(const void *caller)
{
    void *frames[16];
    const int count = is_in(caller, "libomp") ? backtrace(frames, 16) : 0;
    for (int i = 0; i < count; i++) {
        if (is_in(frames[i], "libdnnl")) {
            return true;
        }
    }
    return false;
}

static bool is_of_another_library(const void *caller)
{
    static const char *const others[] = {"libdnnl", "libstdc++", "libmpi", "libopen-", "/openmpi/"};
    Dl_info info;
    bool is = false;
    if (dladdr(caller, &info) != 0) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            is = is || strstr(info.dli_fname, others[i]) != NULL;
        }
    }
    return is || is_region_of_onednn(caller);
}

/* The first wait of half a second takes memory to look for deadlocks. On a machine that does much
 * else it can be in any step. */
static bool is_of_a_long_wait(void *const *frames, int count)
{
    Dl_info info;
    for (int i = 0; i < count; i++) {
        if (dladdr(frames[i], &info) != 0 && info.dli_sname != NULL &&
            strcmp(info.dli_sname, "ls__deadlock_check") == 0) {
            return true;
        }
    }
    return false;
}

/* Counts a call made from `caller`, an address in the code, and shows who made the first ones. */
static void count_call(const void *caller)
{
    void *frames[24];
    if (!atomic_load(&counting) || is_of_another_library(caller)) {
        return;
    }
    const int count = backtrace(frames, 24);
    if (!is_of_a_long_wait(frames, count) && atomic_fetch_add(&allocations, 1) < shown) {
        backtrace_symbols_fd(frames, count, 2);
    }
}

void *malloc(size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}
void *realloc(void *memory, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}
#endif

enum { VOCAB = 50, DIM = 32, CONTEXT = 16, BATCH = 4, WARM_UP = 8 };

static ls_tensor *attend(ls_module *self, ls_tensor *x)
{
    (void)self;
    ls_tensor *h = ls_reshape(x, LS_SHAPE(BATCH, CONTEXT, 4, DIM / 4));
    h = ls_transpose(h, 1, 2);
    h = ls_transpose(ls_attention(h, h, h, LS_OPTIONS(ls_attention_options, .causal = true)), 1, 2);
    return ls_add(x, ls_reshape(h, LS_SHAPE(BATCH, CONTEXT, DIM)));
}
static const ls_module_class attend_class = LS_MODULE_CLASS(.name = "attend", .forward = attend);

static ls_module *make_net(size_t bucket_bytes, ls_dtype wire)
{
    ls_module *layers[] = {ls_embedding_new(VOCAB, DIM),
                           ls_layer_norm_new(DIM, NULL),
                           ls_module_new(sizeof(ls_module), &attend_class),
                           ls_linear_new(DIM, 4 * DIM, NULL),
                           ls_gelu_new(LS_GELU_TANH),
                           ls_dropout_new(0.1),
                           ls_linear_new(4 * DIM, VOCAB, NULL)};
    return ls_ddp_new(ls_sequential_new(layers, 7), ls_world(),
                      LS_OPTIONS(ls_ddp_options, .bucket_bytes = bucket_bytes, .wire_dtype = wire));
}

/* Its inner part runs again in backward. */
typedef struct again {
    ls_module base;
    ls_module *inner;
} again;

static ls_tensor *again_forward(ls_module *self, ls_tensor *x)
{
    return ls_add(x, ls_recompute(((again *)self)->inner, x));
}
static const ls_module_class again_class =
    LS_MODULE_CLASS(.name = "again", .forward = again_forward);

/* Convolutions, running statistics (which are broadcast), recomputation. */
static ls_module *make_image_net(void)
{
    again *part = ls_module_new(sizeof *part, &again_class);
    ls_module *inner[] = {ls_conv2d_new(4, 4, 3, LS_OPTIONS(ls_conv2d_layer_options, .padding = 1)),
                          ls_batch_norm2d_new(4, 1e-5, 0.1), ls_relu_new(), ls_dropout_new(0.1)};
    part->inner = ls_module_add(&part->base, "inner", ls_sequential_new(inner, 4));
    ls_module *layers[] = {ls_conv2d_new(1, 4, 3, NULL),
                           ls_batch_norm2d_new(4, 1e-5, 0.1),
                           ls_max_pool2d_new(2, 2, 0),
                           &part->base,
                           ls_flatten_new(),
                           ls_linear_new(4 * 3 * 3, VOCAB, NULL)};
    return ls_ddp_new(ls_sequential_new(layers, 6), ls_world(),
                      LS_OPTIONS(ls_ddp_options, .bucket_bytes = 2048));
}

static ls_dataset *make_images(void)
{
    static float x[64 * 64];
    static int32_t y[64];
    for (int i = 0; i < 64 * 64; i++) {
        x[i] = (float)(i * 7 % 31) / 16.0f;
        y[i / 64] = i / 64 % VOCAB;
    }
    ls_tensor *tx = ls_from_data(x, LS_SHAPE(64, 1, 8, 8), LS_FLOAT32);
    ls_tensor *ty = ls_from_data(y, LS_SHAPE(64), LS_INT32);
    ls_dataset *data = NULL;
    CHECK_OK(data = ls_tensor_dataset_new(tx, ty));
    return data;
}

static ls_dataset *make_data(void)
{
    static int32_t x[64 * CONTEXT], y[64 * CONTEXT];
    for (int i = 0; i < 64 * CONTEXT; i++) {
        x[i] = (i * 7) % VOCAB;
        y[i] = (i * 11) % VOCAB;
    }
    ls_tensor *tx = ls_from_data(x, LS_SHAPE(64, CONTEXT), LS_INT32);
    ls_tensor *ty = ls_from_data(y, LS_SHAPE(64, CONTEXT), LS_INT32);
    ls_dataset *data = NULL;
    CHECK_OK(data = ls_tensor_dataset_new(tx, ty));
    return data;
}

/* One batch as two micro-batches of a pipeline stage: their scopes side by side, their backwards in
 * two parts, the second one averaged. */
static void train_in_parts(ls_module *net, const ls_batch *batch)
{
    ls_scope *scope[2];
    ls_tensor *x[2], *loss[2];
    for (int i = 0; i < 2; i++) {
        scope[i] = ls_scope_enter();
        x[i] = ls_set_requires_grad(ls_detach(batch->x), true);
        loss[i] = ls_cross_entropy(ls_forward(net, x[i]), batch->y, NULL);
        CHECK_OK(ls_scope_suspend(scope[i]));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_scope_resume(scope[i]));
        CHECK_OK(ls_backward_input_part(
            &loss[i], NULL, 1,
            LS_OPTIONS(ls_backward_part_options, .inputs = &x[i], .input_count = 1)));
        CHECK_OK(ls_tensor_status(ls_grad(x[i])));
        CHECK_OK(ls_scope_suspend(scope[i]));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_scope_resume(scope[i]));
        CHECK_OK(ls_ddp_set_sync(net, i == 1));
        CHECK_OK(ls_backward_weight_part());
        ls_scope_leave(scope[i]);
    }
}

static ls_pipeline *pipeline; /* of four micro-batches; NULL: none */
static bool steps_within;     /* its schedule does */

static bool alternating; /* every other batch is shorter */

/* Four times the same one, and an evaluation of five. */
static void train_pipeline(ls_module *net, const ls_batch *batch)
{
    static int calls;
    const int64_t rows = ls_size(batch->x, 0) - (alternating && calls++ % 2 == 0);
    ls_tensor *x = ls_slice(batch->x, 0, 0, rows), *y = ls_slice(batch->y, 0, 0, rows);
    ls_micro_batch micro[5];
    ls_tensor *outputs[5];
    double losses[4];
    for (int m = 0; m < 5; m++) {
        micro[m] = (ls_micro_batch){.size = sizeof micro[m], .inputs = {x}, .target = y};
    }
    CHECK_OK(ls_pipeline_backward(pipeline, net, micro, losses));
    CHECK_OK(ls_pipeline_forward(pipeline, micro, 5, outputs));
}

static bool joined; /* all ranks but 0 have no data */
static bool in_parts;

static void train_steps(ls_module *net, ls_optim *optim, ls_loader *loader, int steps)
{
    for (int step = 0; step < steps;) {
        ls_batch batch = {.size = sizeof batch};
        if (!ls_loader_next(loader, &batch)) {
            CHECK_OK(ls_loader_status(loader));
            continue; /* the next epoch */
        }
        {
            LS_SCOPE;
            bool more = !joined || ls_rank() == 0;
            if (pipeline != NULL) {
                train_pipeline(net, &batch);
            } else if (in_parts) {
                train_in_parts(net, &batch);
            } else if (more) {
                ls_tensor *loss = ls_cross_entropy(ls_forward(net, batch.x), batch.y, NULL);
                CHECK_OK(ls_backward(loss));
            } else {
                CHECK_OK(ls_ddp_join(net, NULL, &more));
            }
            CHECK(more);
        }
        if (!steps_within) {
            CHECK_OK(ls_clip_grad_norm(net, 1.0, NULL, NULL));
            CHECK_OK(ls_optim_step(optim));
            ls_optim_zero_grad(optim);
        }
        if (ls_ddp_local(net)) {
            CHECK_OK(ls_ddp_average(net, LS_OPTIONS(ls_ddp_average_options, .optim = optim)));
        }
        step++;
    }
}

static bool in_backward;

/* Takes both. */
static void steady_state(ls_module *net, ls_dataset *data, int warm_up)
{
    if (SANITIZED) {
        SKIP("the sanitizer replaces the allocator");
    }
    CHECK(net);
    ls_optim *optim = ls_adamw_new(net, NULL);
    CHECK_OK(in_backward ? ls_ddp_step_in_backward(net, optim) : LS_OK);
    CHECK_OK(steps_within ? ls_pipeline_set_optim(pipeline, optim) : LS_OK);
    ls_memory_stats warm = {.size = sizeof warm}, later = warm;
    ls_sampler *sampler = NULL;
    ls_loader *loader = NULL;
    CHECK_OK(sampler = ls_sampler_new(data->count, LS_OPTIONS(ls_sampler_options, .batch = BATCH)));
    CHECK_OK(loader = ls_loader_new(data, sampler, NULL));
    train_steps(net, optim, loader, warm_up);
    void *frame;
    (void)backtrace(&frame, 1); /* takes memory the first time */
    atomic_store(&counting, true);
    void *volatile one = malloc(1);
    free(one);
    CHECK(atomic_load(&allocations) > 0); /* the counter works */
    CHECK_OK(ls_memory_get_stats(&warm));
    shown = 3;
    atomic_store(&allocations, 0);
    train_steps(net, optim, loader, getenv("TEST_LONG") != NULL ? 300 : 30);
    CHECK_INT(atomic_load(&allocations), 0);
    CHECK_OK(ls_memory_get_stats(&later));
    CHECK_INT(later.reserved, warm.reserved);
    ls_loader_free(loader);
    ls_sampler_free(sampler);
    ls_dataset_free(data);
    ls_optim_free(optim);
    ls_module_free(net);
}

DIST_TEST(a_training_step_of_one_process_allocates_nothing, 1)
{
    steady_state(make_net(8192, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(a_training_step_of_four_workers_allocates_nothing, 4)
{
    steady_state(make_net(8192, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(nor_does_one_with_buckets_that_lockstep_chose, 2)
{
    steady_state(make_net(LS_BUCKET_BYTES_AUTO, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(nor_does_one_under_autocast, 2)
{
    (void)ls_set_autocast(true);
    steady_state(make_net(8192, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(nor_does_one_with_bfloat16_on_the_wire, 2)
{
    steady_state(make_net(8192, LS_BFLOAT16), make_data(), WARM_UP);
}

DIST_TEST(nor_does_one_with_the_optimizer_in_backward, 2)
{
    in_backward = true;
    steady_state(make_net(8192, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(nor_does_one_of_a_rank_without_data, 4)
{
    joined = true;
    steady_state(make_net(8192, LS_FLOAT32), make_data(), WARM_UP);
}

DIST_TEST(nor_does_a_local_step_with_its_average, 2)
{
    ls_module *net = make_image_net();
    CHECK_OK(ls_ddp_set_local(net, true));
    CHECK_OK(ls_ddp_set_sync(net, false));
    steady_state(net, make_images(), WARM_UP);
}

DIST_TEST(a_training_step_over_images_allocates_nothing, 1)
{
    steady_state(make_image_net(), make_images(), WARM_UP);
}

DIST_TEST(nor_does_one_of_micro_batches_side_by_side_with_backward_in_parts, 2)
{
    in_parts = true;
    steady_state(make_image_net(), make_images(), WARM_UP);
}

/* Stages of uneven pace: how many messages wait at one time changes from step to step. */
static ls_tensor *dawdle(ls_module *self, ls_tensor *x)
{
    static uint64_t draws;
    (void)self;
    const uint64_t drawn = (++draws * 1000 + (uint64_t)ls_rank()) * UINT64_C(0x9e3779b97f4a7c15);
    const long us = (long)(drawn >> 54); /* 0 to 1023 */
    if (drawn >> 40 & 1) {
        (void)nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
    return x;
}
static const ls_module_class dawdle_class = LS_MODULE_CLASS(.name = "dawdle", .forward = dawdle);

static ls_module *dawdle_new(void)
{
    return ls_module_new(sizeof(ls_module), &dawdle_class);
}

static const char *replicas;

/* Over all ranks, or over those of the axis pp of a mesh whose axis dp averages. */
static void steady_pipeline(const char *schedule, const char *mesh_text, bool recompute)
{
    ls_module *layers[] = {ls_embedding_new(VOCAB, 16),
                           dawdle_new(),
                           ls_linear_new(16, 16, NULL),
                           ls_dropout_new(0.1),
                           dawdle_new(),
                           ls_linear_new(16, 16, NULL),
                           ls_linear_new(16, 16, NULL),
                           ls_linear_new(16, VOCAB, NULL)};
    ls_module *net = ls_sequential_new(layers, 8);
    ls_mesh *mesh = NULL;
    CHECK_OK(ls_mesh_new(ls_world(), mesh_text, &mesh));
    CHECK_OK(ls_pipeline_new(net, ls_mesh_group(mesh, "pp"),
                             LS_OPTIONS(ls_pipeline_options, .schedule = schedule,
                                        .micro_batches = 4, .chunks = 2 * (schedule[0] == 'i'),
                                        .recompute = recompute, .replicas = replicas),
                             &pipeline));
    ls_group *alike = NULL;
    if (strstr(mesh_text, "dp") != NULL) {
        net = ls_ddp_new(net, ls_mesh_group(mesh, "dp"), NULL);
    } else if (replicas != NULL) {
        CHECK_OK(ls_group_split(ls_world(), ls_pipeline_stage(pipeline), 0, "alike", &alike));
        net = ls_ddp_new(net, alike, NULL);
    }
    steps_within = strncmp(schedule, "pipedream", 9) == 0;
    steady_state(net, make_data(), WARM_UP);
    CHECK_OK(ls_pipeline_free(pipeline));
    CHECK_OK(ls_group_free(alike));
    CHECK_OK(ls_mesh_free(mesh));
}

DIST_TEST(nor_does_a_step_of_a_pipeline, 2)
{
    steady_pipeline("1f1b", "pp=2", false);
}

DIST_TEST(nor_does_one_of_a_pipeline_of_four, 4)
{
    steady_pipeline("1f1b", "pp=4", false);
}

DIST_TEST(nor_does_one_of_a_pipeline_that_recomputes, 2)
{
    steady_pipeline("gpipe", "pp=2", true);
}

DIST_TEST(nor_does_one_of_a_pipeline_with_two_stages_on_a_rank, 2)
{
    steady_pipeline("interleaved", "pp=2", false);
}

DIST_TEST(nor_does_one_of_a_pipeline_that_puts_off_weight_parts, 2)
{
    steady_pipeline("zb-h1", "pp=2", false);
}

DIST_TEST(nor_does_one_of_a_pipeline_that_steps_within, 2)
{
    steady_pipeline("pipedream", "pp=2", false);
}

DIST_TEST(nor_does_one_of_pipelines_side_by_side, 4)
{
    steady_pipeline("1f1b", "dp=2,pp=2", false);
}

DIST_TEST(nor_does_one_of_a_pipeline_whose_batches_change_size, 2)
{
    alternating = true;
    steady_pipeline("1f1b", "pp=2", false);
}

DIST_TEST(nor_does_one_of_stages_with_several_ranks, 4)
{
    replicas = "3,1";
    steady_pipeline("1f1b", "pp=4", false);
}

DIST_TEST(nor_do_two_workers_who_share_running_statistics, 2)
{
    steady_state(make_image_net(), make_images(), WARM_UP);
}

TEST_MAIN
