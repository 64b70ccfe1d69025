/* SPDX-License-Identifier: Apache-2.0 */
/* The backend `nccl` over a fake CUDA and a fake NCCL (tests/fake_cuda):
 * operations, order in streams, refusals, failures. Streams are threads with random pauses, so what
 * is not waited for is seen as poison. */
#include "nccl_fakes.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/backend/plugin.h"
#include "promises.h"
#include "says.h"

enum { COUNT = 3000 };
#define TIMEOUT_MS 1500

/* ---- operations ---------------------------------------------------------------------------- */

/* All memory counts as the device's, so the comparison with native can be made here. */
DIST_TEST(what_nccl_promises_it_does_as_native, 3)
{
    ls_group *native = NULL;
    use_fakes();
    setenv("FAKE_CUDA_ALL", "1", 1);
    setenv("FAKE_CUDA_DELAY_US", "1", 1);
    ls_group *nccl = group_over_nccl("promises");
    CHECK(strcmp(ls_group_backend(nccl), "nccl") == 0);
    CHECK_OK(ls_group_new(ls_world(), NULL, 0, "native", &native));
    every_promise_is_kept(native, nccl);
    CHECK_OK(ls_group_free(nccl));
    CHECK_OK(ls_group_free(native));
}

DIST_TEST(one_rank_is_a_group, 1)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("alone");
    float *x = device_memory(2 * sizeof *x), *y = device_memory(2 * sizeof *y);
    x[0] = 3;
    x[1] = 5;
    CHECK_OK(ls_all_reduce(nccl, x, y, 2, LS_FLOAT32, LS_AVG, NULL, NULL));
    CHECK(y[0] == 3 && y[1] == 5);
    y[0] = 0;
    CHECK_OK(ls_all_to_all(nccl, x, y, 1, LS_FLOAT32, NULL, NULL));
    CHECK(y[0] == 3);
    CHECK_OK(ls_group_free(nccl));
}

DIST_TEST(sums_are_multiplied_and_divided_on_the_device, 2)
{
    use_fakes();
    setenv("FAKE_CUDA_ALL", "1", 1);
    ls_group *nccl = group_over_nccl("scaled");
    float x[3] = {1, 2, 3}, y[3];
    int32_t i[2] = {3, -4};
    CHECK_OK(ls_all_reduce(nccl, x, y, 3, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .divisor = 8), NULL));
    CHECK(y[0] == 0.25f && y[1] == 0.5f && y[2] == 0.75f && x[0] == 1);
    CHECK_OK(ls_all_reduce(nccl, x, y, 3, LS_FLOAT32, LS_PREMUL_SUM,
                           LS_OPTIONS(ls_collective_options, .factor = ls_rank() + 1), NULL));
    CHECK(y[0] == 3 && y[1] == 6 && y[2] == 9 && x[0] == 1);
    CHECK_OK(ls_all_reduce(nccl, i, i, 2, LS_INT32, LS_PREMUL_SUM,
                           LS_OPTIONS(ls_collective_options, .factor = ls_rank() == 0 ? 2 : 1),
                           NULL));
    CHECK(i[0] == 9 && i[1] == -12);
    CHECK_OK(ls_group_free(nccl));
}

/* ---- streams ------------------------------------------------------------------------------- */

typedef struct kernel {
    float *at;
    float value, seen[2];
} kernel;

static void write_all(void *arg)
{
    const kernel *k = arg;
    for (int i = 0; i < COUNT; i++) {
        k->at[i] = k->value + (float)i;
    }
}

static void read_ends(void *arg)
{
    kernel *k = arg;
    k->seen[0] = k->at[0];
    k->seen[1] = k->at[COUNT - 1];
}

/* Two kernels around each operation; nobody waits for the device before the end. */
static void check_order(void)
{
    enum { ROUNDS = 20, BUFFERS = 2 };
    static kernel kernels[ROUNDS];
    use_fakes();
    ls_group *nccl = group_over_nccl("streams");
    ls_stream *stream = new_stream();
    float *buffer[BUFFERS] = {device_memory(COUNT * sizeof(float)),
                              device_memory(COUNT * sizeof(float))};
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .stream = stream);
    for (int i = 0; i < ROUNDS; i++) {
        ls_work *work = NULL;
        kernel *k = &kernels[i];
        *k = (kernel){.at = buffer[i % BUFFERS], .value = (float)(i * 100 + ls_rank())};
        CHECK_INT(cuda.launch(stream, write_all, k), 0);
        CHECK_OK(ls_all_reduce(nccl, k->at, k->at, COUNT, LS_FLOAT32, LS_SUM, options, &work));
        CHECK_OK(ls_work_wait_stream(work, stream));
        CHECK_INT(cuda.launch(stream, read_ends, k), 0);
    }
    CHECK_INT(cuda.synchronize(stream), 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(kernels[i].seen[0] == (float)(300 * i + 3));
        CHECK(kernels[i].seen[1] == (float)(300 * i + 3 + 3 * (COUNT - 1)));
    }
    CHECK_OK(ls_group_free(nccl));
}

DIST_TEST(an_operation_comes_after_its_stream_and_its_stream_after_it, 3)
{
    check_order();
}

DIST_TEST(helper_order, 3)
{
    check_order();
}

static void set_flag(void *arg)
{
    usleep(300000);
    atomic_store((_Atomic int *)arg, 1);
}

/* The host has given the device both operations while the stream is still at its first kernel. */
DIST_TEST(the_host_does_not_wait_for_the_data, 2)
{
    static _Atomic int come;
    use_fakes();
    ls_group *nccl = group_over_nccl("ahead");
    ls_stream *stream = new_stream();
    float *x = device_memory(COUNT * sizeof *x), *y = device_memory(COUNT * sizeof *y);
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .stream = stream);
    ls_work *work[2];
    CHECK_INT(cuda.launch(stream, set_flag, &come), 0);
    CHECK_OK(ls_all_reduce(nccl, x, x, COUNT, LS_FLOAT32, LS_SUM, options, &work[0]));
    CHECK_OK(ls_all_reduce(nccl, y, y, COUNT, LS_FLOAT32, LS_SUM, options, &work[1]));
    CHECK_OK(ls_work_wait_stream(work[0], stream));
    CHECK_OK(ls_work_wait_stream(work[1], stream));
    CHECK_INT(atomic_load(&come), 0);
    CHECK_OK(ls_group_free(nccl)); /* waits for them */
    CHECK_INT(atomic_load(&come), 1);
}

/* Sent in one order and received in another, by tags; in the streams of both ranks. */
DIST_TEST(messages_go_one_way_over_a_group_of_two, 2)
{
    enum { MESSAGES = 6 };
    static kernel kernels[MESSAGES];
    use_fakes();
    ls_group *one_way = group_over_nccl("one way");
    ls_stream *stream = new_stream();
    ls_work *work[MESSAGES];
    const bool sends = ls_rank() == 0;
    const ls_collective_options *options = LS_OPTIONS(ls_collective_options, .stream = stream);
    for (int i = 0; i < MESSAGES; i++) {
        const int tag = sends ? i : (i * 5 + 2) % MESSAGES;
        kernel *k = &kernels[i];
        *k = (kernel){.at = device_memory(COUNT * sizeof(float)), .value = (float)(100 * tag)};
        if (sends) {
            CHECK_INT(cuda.launch(stream, write_all, k), 0);
            CHECK_OK(ls_send(one_way, k->at, COUNT, LS_FLOAT32, 1, tag, options, &work[i]));
        } else {
            CHECK_OK(ls_recv(one_way, k->at, COUNT, LS_FLOAT32, 0, tag, options, &work[i]));
        }
    }
    for (int i = 0; i < MESSAGES; i++) {
        CHECK_OK(ls_work_wait_stream(work[i], stream));
        CHECK_INT(cuda.launch(stream, read_ends, &kernels[i]), 0);
    }
    CHECK_INT(cuda.synchronize(stream), 0);
    for (int i = 0; i < MESSAGES; i++) {
        const kernel *k = &kernels[i];
        CHECK(k->seen[0] == k->value && k->seen[1] == k->value + COUNT - 1);
    }
    float *x = kernels[0].at;
    CHECK_STATUS(sends ? ls_recv(one_way, x, 1, LS_FLOAT32, 1, 0, NULL, NULL)
                       : ls_send(one_way, x, 1, LS_FLOAT32, 0, 0, NULL, NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "messages of NCCL go one way over a group of two ranks; make a group for each pair "
               "and direction, or use one of backend \"native\"");
    CHECK_OK(ls_group_free(one_way));
}

/* NCCL would run those of one rank with different peers one after the other. */
DIST_TEST(messages_in_a_group_of_three_are_refused, 3)
{
    use_fakes();
    ls_group *all = group_over_nccl("all");
    float *x = device_memory(sizeof(float));
    CHECK_STATUS(ls_send(all, x, 1, LS_FLOAT32, (ls_rank() + 1) % 3, 0, NULL, NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_CONTAINS(ls_error_message(), "over a group of two ranks");
    CHECK_OK(ls_group_free(all));
}

DIST_TEST(a_message_whose_peer_does_not_come_ends_at_the_deadline, 2)
{
    use_fakes();
    setenv("FAKE_NCCL_FAULT", "hang:1:1", 1);
    ls_group *one_way = group_over_nccl("one way");
    float *x = device_memory(COUNT * sizeof *x);
    const ls_collective_options *options =
        LS_OPTIONS(ls_collective_options, .timeout_ms = TIMEOUT_MS);
    const double begin = ls_time();
    CHECK(ls_rank() == 0 ? ls_send(one_way, x, COUNT, LS_FLOAT32, 1, 7, options, NULL) < 0
                         : ls_recv(one_way, x, COUNT, LS_FLOAT32, 0, 7, options, NULL) < 0);
    CHECK_WITHIN(ls_time() - begin, TIMEOUT_MS * 1e-3 + 5 * TEST_SLOWER);
    CHECK_CONTAINS(ls_error_message(), "group \"one way\"");
}

DIST_TEST(memory_is_registered_once_and_zero, 2)
{
    int (*enrolled)(void) = NULL;
    float *x = NULL, *y = NULL;
    use_fakes();
    ls_group *nccl = group_over_nccl("memory");
    find(dlopen(FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD), "fake_nccl_enrolled", &enrolled);
    CHECK_OK(ls_group_alloc(nccl, COUNT * sizeof *x, (void **)&x));
    CHECK_OK(ls_group_alloc(nccl, sizeof *y, (void **)&y));
    CHECK_INT(enrolled(), 2);
    CHECK((uintptr_t)x % 64 == 0 && x[0] == 0 && x[COUNT - 1] == 0);
    x[5] = 2;
    CHECK_OK(ls_all_reduce(nccl, x, x, COUNT, LS_FLOAT32, LS_SUM, NULL, NULL));
    CHECK(x[5] == 4);
    CHECK_OK(ls_group_dealloc(nccl, y));
    CHECK_INT(enrolled(), 1);
    CHECK_OK(ls_group_free(nccl)); /* with what is left */
    CHECK_INT(enrolled(), 0);
}

/* ---- refusals ------------------------------------------------------------------------------ */

DIST_TEST(what_the_device_cannot_do_is_refused_at_the_call, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("refused");
    float host[8] = {0}, *x = device_memory(sizeof host);
    int32_t *i = device_memory(sizeof host);
    void *parts[2] = {host, x};
    const int64_t counts[2] = {1, 1};
    ls_work *work = NULL;
    CHECK_STATUS(ls_all_reduce(nccl, host, host, 8, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "the %s is not memory of a GPU; give memory of cudaMalloc or "
                                   "ls_group_alloc, or use a group of backend \"native\"");
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\": %s");
    CHECK_STATUS(ls_all_to_all(nccl, x, x, 2, LS_FLOAT32, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "NCCL does not exchange blocks in place; give two buffers");
    CHECK_STATUS(ls_all_reduce(nccl, i, i, 2, LS_INT32, LS_AVG, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(), "%s on group \"%s\": backend \"%s\" does not average integers; "
                                   "give LS_SUM and divide");
    CHECK_STATUS(ls_all_reduce_many(nccl, parts, counts, 2, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_UNSUPPORTED);
    CHECK_SAYS(ls_error_message(),
               "%s on group \"%s\": backend \"%s\" has memory of a device only, and this needs the "
               "host's; use a group of backend \"native\"");
    CHECK_STATUS(ls_scan(nccl, x, x, 1, LS_FLOAT32, LS_SUM, NULL, NULL), LS_ERR_UNSUPPORTED);
    CHECK_OK(ls_barrier(ls_world(), NULL, &work));
    CHECK_STATUS(ls_work_wait_stream(work, new_stream()), LS_ERR_UNSUPPORTED);
    CHECK_OK(ls_work_wait_stream(work, NULL)); /* as ls_work_wait */
    CHECK_OK(ls_barrier(nccl, NULL, NULL));    /* it is still usable */
    CHECK_OK(ls_group_free(nccl));
}

DIST_TEST(two_ranks_on_one_gpu_are_named, 2)
{
    ls_group *group = NULL;
    if (ls_world()->has_remote) { /* on hosts of their own */
        return;
    }
    use_fakes();
    CHECK_INT(cuda.set_context(NULL), 0);
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    CHECK_STATUS(
        ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = "nccl"), &group),
        LS_ERR_INVALID);
    CHECK_SAYS(ls_error_message(),
               "ranks %d and %d of the group both have the GPU %.23s; call cudaSetDevice before "
               "the group is made, or, for tests, give each rank its own NCCL_HOSTID");
    setenv("NCCL_HOSTID", ls_rank() == 0 ? "a" : "b", 1);
    CHECK_OK(ls_group_free(group_over_nccl("shared")));
}

static const char *refusal(const char *variable, const char *value, ls_status want)
{
    ls__plugin plugin;
    name_fakes();
    setenv(variable, value, 1);
    CHECK_STATUS(ls__plugin_load("nccl", &plugin), want);
    unsetenv(variable);
    return ls_error_message();
}

TEST(what_is_missing_of_cuda_and_nccl_is_named_with_what_to_install)
{
    CHECK_SAYS(refusal("LOCKSTEP_CUDA", "/nowhere/libcuda.so.1", LS_ERR_NOT_FOUND),
               "%.250s; %s, or give its path in %s");
    CHECK_SAYS(ls_error_message(), "install NVIDIA's driver");
    (void)refusal("LOCKSTEP_NCCL", "/nowhere/libnccl.so.2", LS_ERR_NOT_FOUND);
    CHECK_SAYS(ls_error_message(),
               "install NCCL 2.19 or later (libnccl2, or the wheel nvidia-nccl-cu13)");
    CHECK_SAYS(refusal("LOCKSTEP_NCCL", FAKE_NCCL_HALF, LS_ERR_UNSUPPORTED),
               "%.200s lacks %s, so it is too old or only a part; %s, or give the path of another "
               "in %s");
    CHECK_CONTAINS(ls_error_message(), "lacks ncclMemAlloc");
    CHECK_SAYS(refusal("FAKE_NCCL_VERSION", "21805", LS_ERR_UNSUPPORTED),
               "NCCL has version %d, and 2.19 (21900) or later is needed; install libnccl2 or the "
               "wheel nvidia-nccl-cu13, or give the path of another libnccl.so.2 in "
               "LOCKSTEP_NCCL");
    CHECK_SAYS(refusal("FAKE_CUDA_DEVICES", "0", LS_ERR_NOT_FOUND),
               "the driver shows no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
    (void)refusal("FAKE_CUDA_DEVICES", "-1", LS_ERR_SYSTEM);
    CHECK_CONTAINS(ls_error_message(), "cuInit: CUDA_ERROR_NO_DEVICE (100)");
}

/* ---- failures ------------------------------------------------------------------------------ */

static ls_status sum(ls_group *group, float *x)
{
    return ls_all_reduce(group, x, x, COUNT, LS_FLOAT32, LS_SUM,
                         LS_OPTIONS(ls_collective_options, .timeout_ms = TIMEOUT_MS), NULL);
}

/* The other group's communicator is aborted, too: its kernels might lie behind the hanging one. */
DIST_TEST(a_kernel_that_hangs_ends_at_the_deadline_and_takes_all_communicators_with_it, 2)
{
    use_fakes();
    setenv("FAKE_NCCL_FAULT", "hang:1:2", 1);
    ls_group *nccl = group_over_nccl("hanging"), *other = group_over_nccl("other");
    float *x = device_memory(COUNT * sizeof *x);
    CHECK_OK(sum(nccl, x));
    CHECK_OK(sum(other, x));
    const double begin = ls_time();
    CHECK_STATUS(sum(nccl, x), LS_ERR_TIMEOUT);
    CHECK_WITHIN(ls_time() - begin, TIMEOUT_MS * 1e-3 + 5 * TEST_SLOWER);
    CHECK_CONTAINS(ls_error_message(), "all_reduce #4 on group \"hanging\"");
    CHECK_SAYS(ls_error_message(), "its kernel runs, and waits for another rank's");
    x[0] = 1; /* nothing writes there any more */
    usleep(50000);
    CHECK(x[0] == 1);
    CHECK(sum(other, x) < 0); /* with the cause of the first */
    CHECK_CONTAINS(ls_error_message(), "all_reduce #4 on group \"hanging\"");
}

DIST_TEST(a_stream_that_does_not_come_to_the_operation_is_named, 2)
{
    static _Atomic int come;
    use_fakes();
    ls_group *nccl = group_over_nccl("late");
    ls_stream *stream = new_stream();
    float *x = device_memory(COUNT * sizeof *x);
    ls_work *work = NULL;
    for (int i = 0; i < 8 && ls_rank() == 1; i++) { /* longer than the deadline */
        CHECK_INT(cuda.launch(stream, set_flag, &come), 0);
    }
    CHECK_OK(ls_all_reduce(nccl, x, x, COUNT, LS_FLOAT32, LS_SUM,
                           LS_OPTIONS(ls_collective_options, .stream = stream,
                                      .timeout_ms = ls_rank() == 1 ? TIMEOUT_MS : 20 * TIMEOUT_MS),
                           &work));
    CHECK_STATUS(ls_work_wait(work), LS_ERR_TIMEOUT);
    CHECK_SAYS(ls_error_message(),
               "all ranks have called it, and backend \"%s\" has not ended it on rank %d%s%s");
    CHECK_CONTAINS(ls_error_message(), "on rank 1: the program's stream has not come to it");
    CHECK_SAYS(ls_error_message(),
               "the program's stream has not come to it; look for a kernel that does not end, or a "
               "stream that waits for this operation");
}

DIST_TEST(an_asynchronous_error_of_nccl_names_the_rank, 3)
{
    use_fakes();
    setenv("FAKE_NCCL_FAULT", "error:2:2", 1);
    ls_group *nccl = group_over_nccl("failing");
    float *x = device_memory(COUNT * sizeof *x);
    CHECK_OK(sum(nccl, x));
    CHECK_STATUS(sum(nccl, x), LS_ERR_PEER);
    CHECK_CONTAINS(ls_error_message(), "cannot run on rank 2: backend \"nccl\": nccl");
    CHECK_SAYS(ls_error_message(), "%s: %s%s%.300s; NCCL_DEBUG=INFO prints more");
    CHECK_CONTAINS(ls_error_message(), ": remote process exited or there was a network error");
    CHECK_CONTAINS(ls_error_message(), "all_reduce #4 on group \"failing\"");
}

DIST_TEST(descriptors_are_compared_before_nccl_is_called, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("compared");
    float *x = device_memory(8 * sizeof *x);
    CHECK_STATUS(ls_all_reduce(nccl, x, x, ls_rank() == 0 ? 8 : 4, LS_FLOAT32, LS_SUM, NULL, NULL),
                 LS_ERR_MISMATCH);
    CHECK_CONTAINS(ls_error_message(), "give every rank the same count");
}

/* ---- calls that do not return -------------------------------------------------------------- */

DIST_TEST(helper_stuck, 2)
{
    use_fakes();
    ls_group *nccl = group_over_nccl("stuck");
    float *x = device_memory(COUNT * sizeof *x);
    CHECK(sum(nccl, x) < 0);
    (void)fprintf(stderr, "rank %d: %s\n", ls_rank(), ls_error_message());
}

DIST_TEST(helper_connect, 2)
{
    ls_group *group = NULL;
    use_fakes();
    CHECK_STATUS(
        ls_group_create(ls_world(), LS_OPTIONS(ls_group_options, .backend = "nccl"), &group),
        LS_ERR_TIMEOUT);
    CHECK_CONTAINS(ls_error_message(), "it has not connected the ranks within");
}

TEST(waits_between_streams_that_are_missing_are_found_within_20_runs)
{
    int status = 0;
    for (int seed = 1; seed <= 20 && status == 0; seed++) {
        char variables[64];
        snprintf(variables, sizeof variables, "FAKE_CUDA_WAITS=0 FAKE_CUDA_SEED=%d", seed);
        test_output run = test_run_helper(variables, "helper_order");
        status = run.status;
        free(run.text);
    }
    CHECK(status != 0);
}

static void check_stuck(const char *fault, const char *call)
{
    char variables[128], said[128];
    snprintf(variables, sizeof variables, "TEST_VERBOSE=1 FAKE_NCCL_FAULT=%s:1:1", fault);
    const double begin = ls_time();
    test_output run = test_run_helper(variables, "helper_stuck");
    CHECK_WITHIN(ls_time() - begin, TIMEOUT_MS * 1e-3 + 15 * TEST_SLOWER); /* the start is in it */
    CHECK(run.status != 0);
    CHECK_SAYS(run.text,
               SAYS("lockstep: backend \"nccl\": rank %d ends: %s of group \"%s\" has not "
                    "returned within %d s after the failure, and the GPU may still use "
                    "the group's buffers"));
    snprintf(said, sizeof said, "rank 1 ends: %s of group \"stuck\"", call);
    CHECK_CONTAINS(run.text, said);
    CHECK_CONTAINS(run.text, "all_reduce #3 on group \"stuck\"");
    free(run.text);
}

TEST(a_rank_whose_call_of_nccl_does_not_return_ends_within_5_seconds_of_the_deadline)
{
    check_stuck("late", "ncclAllReduce");
}

TEST(so_does_one_whose_abort_does_not_return)
{
    check_stuck("stuck", "ncclAllReduce");
}

TEST(a_communicator_that_is_never_made_ends_at_the_deadline)
{
    test_output run =
        test_run_helper("LOCKSTEP_TIMEOUT=2 FAKE_NCCL_FAULT=init:1:0", "helper_connect");
    if (run.status != 0) {
        test_fail(__FILE__, __LINE__, "%s", run.text);
    }
    free(run.text);
}

TEST_MAIN
