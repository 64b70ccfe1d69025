/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer over memory of a device: gradients that a stream computes, averaged by the backend
 * `nccl` over its fakes, beside the same training on the host over the native backend. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/compression.h>
#include <lockstep/ddp.h>
#include <lockstep/nn.h>
#include <lockstep/reducer.h>

#include "../comm/nccl_fakes.h"
#include "says.h"

enum { PARAMS = 6, STEPS = 6, MICRO_BATCHES = 2 };
static const int64_t SIZE[PARAMS] = {700, 1, 2300, 64, 17, 1500};

typedef struct model {
    float *value[PARAMS], *grad[PARAMS];
    ls_reducer *reducer;
    ls_stream *stream; /* NULL: on the host */
} model;

/* What a kernel computes with. */
typedef struct kernel {
    float *value, *grad;
    int64_t count;
    float scale;
} kernel;

/* A gradient that depends on the values and on the rank's data. */
static void add_gradient(void *arg)
{
    const kernel *k = arg;
    for (int64_t i = 0; i < k->count; i++) {
        k->grad[i] += k->scale * (k->value[i] - sinf((float)(i % 97) * k->scale));
    }
}

static void update(void *arg)
{
    const kernel *k = arg;
    for (int64_t i = 0; i < k->count; i++) {
        k->value[i] -= 0.1f * k->grad[i];
    }
}

static void run(const model *m, void (*body)(void *), int param, float scale)
{
    static kernel kernels[4096];
    static int next;
    kernel *k = &kernels[next++ % 4096];
    *k = (kernel){m->value[param], m->grad[param], SIZE[param], scale};
    if (m->stream != NULL) {
        CHECK_INT(cuda.launch(m->stream, body, k), 0);
    } else {
        body(k);
    }
}

/* Each rank registers the same parameters; parameter 3 is reached in every second step only. */
static model make(ls_group *group, const char *backend, ls_stream *stream)
{
    model m = {.stream = stream};
    ls_reducer_param params[PARAMS];
    static const char *const names[PARAMS] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < PARAMS; i++) {
        params[i] = (ls_reducer_param){.name = names[i], .count = SIZE[i], .dtype = LS_FLOAT32};
        m.value[i] = stream != NULL ? device_memory((size_t)SIZE[i] * sizeof(float))
                                    : malloc((size_t)SIZE[i] * sizeof(float));
        for (int64_t k = 0; k < SIZE[i]; k++) {
            m.value[i][k] = (float)(k % 13) * 0.1f;
        }
    }
    CHECK_OK(ls_reducer_new(group, params, PARAMS,
                            LS_OPTIONS(ls_reducer_options, .bucket_bytes = 4096,
                                       .first_bucket_bytes = 2048, .backend = backend),
                            &m.reducer));
    for (int i = 0; i < PARAMS; i++) {
        m.grad[i] = params[i].grad;
    }
    return m;
}

static void backward(const model *m, int step, bool local)
{
    uint8_t used[PARAMS];
    for (int i = 0; i < PARAMS; i++) {
        used[i] = i != 3 || step % 2 == 0 || (step == 3 && ls_rank() == 0);
    }
    CHECK_OK(ls_reducer_begin(m->reducer, LS_OPTIONS(ls_reducer_begin_options, .local = local,
                                                     .used = used, .stream = m->stream)));
    for (int i = PARAMS - 1; i >= 0; i--) {
        if (used[i]) {
            run(m, add_gradient, i, 0.01f * (float)(1 + ls_rank() + 3 * step + (local ? 7 : 0)));
            CHECK_OK(ls_reducer_ready(m->reducer, i, m->stream));
        }
    }
    CHECK_OK(ls_reducer_wait(m->reducer));
}

static void train(const model *m)
{
    for (int step = 0; step < STEPS; step++) {
        if (step == 2) { /* two micro-batches */
            backward(m, step, true);
        }
        backward(m, step, false);
        for (int i = 0; i < PARAMS; i++) {
            if (ls_reducer_used(m->reducer, i)) {
                run(m, update, i, 0);
            }
        }
        CHECK_OK(ls_reducer_zero(m->reducer));
    }
    if (m->stream != NULL) {
        CHECK_INT(cuda.synchronize(m->stream), 0);
    }
}

/* NCCL adds in another order, and rounds each average by itself: of values below 2 the steps may
 * differ by some 2^-23 each. */
DIST_TESTS(training_on_the_device_of_, _ranks_equals_training_on_the_host, 2, 3, 4)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("device");
    model device = make(nccl, NULL, new_stream()), host = make(nccl, "native", NULL);
    model world = make(ls_world(), "nccl", new_stream()); /* which stays native */
    train(&device);
    train(&host);
    train(&world);
    for (int i = 0; i < PARAMS; i++) {
        for (int64_t k = 0; k < SIZE[i]; k++) {
            CHECK_NEAR(device.value[i][k], host.value[i][k], 1e-5);
            CHECK(world.value[i][k] == device.value[i][k]);
        }
        free(host.value[i]);
    }
    CHECK_OK(ls_reducer_free(device.reducer));
    CHECK_OK(ls_reducer_free(world.reducer));
    CHECK_OK(ls_reducer_free(host.reducer));
    CHECK_OK(ls_group_free(nccl));
}

/* A program that waits for the device itself has no stream to give. */
DIST_TEST(without_a_stream_the_host_waits, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("waiting");
    ls_reducer *r = NULL;
    ls_reducer_param param = {.name = "w", .count = 1000, .dtype = LS_FLOAT32};
    CHECK_OK(ls_reducer_new(nccl, &param, 1, NULL, &r));
    float *grad = param.grad;
    for (int step = 0; step < 3; step++) {
        CHECK(grad[0] == 0 && grad[999] == 0);
        CHECK_OK(ls_reducer_begin(r, NULL));
        grad[0] = (float)(step + 2 * ls_rank());
        CHECK_OK(ls_reducer_ready(r, 0, NULL));
        CHECK_OK(ls_reducer_wait(r));
        CHECK(grad[0] == (float)(step + 1) && grad[999] == 0);
        CHECK_OK(ls_reducer_zero(r));
    }
    CHECK_OK(ls_reducer_free(r));
    CHECK_OK(ls_group_free(nccl));
}

static ls_status refused(ls_group *group, ls_reducer_param param, const ls_reducer_options *options)
{
    ls_reducer *r = NULL;
    const ls_status status = ls_reducer_new(group, &param, 1, options, &r);
    CHECK(r == NULL);
    return status;
}

DIST_TEST(what_the_host_would_compute_is_refused, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("refusing");
    ls_reducer *r = NULL;
    ls_reducer_param param = {.name = "w", .count = 10, .dtype = LS_FLOAT32};
    CHECK_STATUS(refused(nccl, param, LS_OPTIONS(ls_reducer_options, .wire_dtype = LS_BFLOAT16)),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "ls_reducer_new with wire_dtype");
    CHECK_OK(ls_reducer_new(nccl, &param, 1, NULL, &r));
    ls_comm_hook hook = {.size = sizeof hook};
    CHECK_OK(ls_comm_hook_parse("int8", &hook));
    CHECK_STATUS(ls_reducer_set_hook(r, &hook), LS_ERR_UNSUPPORTED);
    CHECK_OK(ls_reducer_begin(r, NULL));
    CHECK_OK(ls_reducer_ready(r, 0, NULL));
    CHECK_OK(ls_reducer_wait(r));
    CHECK_STATUS(ls_reducer_begin(r, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "reducer \"%s\": parameter %s still holds an average, and backend \"%s\" cannot set "
               "it aside; zero gradients after each step (ls_optim_zero_grad, ls_reducer_zero)");
    CHECK_OK(ls_reducer_free(r));
    ls_module *net = ls_linear_new(3, 2, NULL);
    CHECK(ls_ddp_new(net, nccl, NULL) == NULL);
    CHECK_SAYS(ls_error_message(),
               "parameter %.200s is on device \"%s\", whose memory backend \"%s\" of group \"%s\" "
               "does not carry; move the module to the backend's device before it is wrapped "
               "(ls_module_to), or give a group of backend \"native\"");
    CHECK_CONTAINS(ls_error_message(), "ls_ddp_new: parameter weight is on device \"cpu\"");
    ls_module_free(net);
}

DIST_TEST(gradients_of_the_programs_own_are_refused, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("own");
    ls_reducer_param param = {.name = "w", .count = 10, .dtype = LS_FLOAT32};
    param.grad = device_memory(40);
    CHECK_STATUS(refused(nccl, param, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "reducer \"%s\": parameter %s has %s, and backend \"%s\" has "
                                   "memory of a device only; leave `grad` NULL and `rows` 0");
    CHECK_SAYS(ls_error_message(), "a gradient of its own");
    ls_group *other = group_over_nccl("other");
    param = (ls_reducer_param){
        .name = "w", .count = 10, .dtype = LS_FLOAT32, .reduce_group = ls_world()};
    CHECK_STATUS(refused(other, param, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "reducer \"%s\": parameter %s is added over group \"%s\" of backend \"%s\", and "
               "backend \"%s\" keeps gradients in other memory; give groups of one backend");
}

TEST_MAIN
